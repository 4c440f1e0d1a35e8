// A thread that keeps transfers going while the program is not in a call of ours.
//
// A receiver that has claimed a message and then computes, or waits in a collective of the MPI's, must still tell the
// sender when the bytes have been fetched; a sender whose message passes through a ring must still fill it. Neither
// needs a call of the MPI's, so a thread may do it at any thread level that the program asked for. It exists only once
// a call has left a transfer unfinished, and sleeps while there is none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace awaken::ipc {

/// Something that goes on by itself when it is asked to now and then. Thread-safe.
class Job {
  public:
    virtual ~Job() = default;
    Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    /// Does what can be done now. True when nothing remains to be done in the background.
    virtual bool pump() noexcept = 0;
    /// Until it is asked again. The default is short beside the milliseconds of a transfer that outlasts a call, and
    /// long beside the microseconds of a look.
    [[nodiscard]] virtual std::chrono::microseconds pause() const noexcept { return std::chrono::microseconds{30}; }
};

class Background {
  public:
    /// `housekeeping` is called by the thread now and then once it runs, between jobs, which wait while it blocks;
    /// false: there is nothing to keep for the moment.
    explicit Background(std::function<bool()> housekeeping = {}) : _housekeeping(std::move(housekeeping)) {}
    ~Background() { stop(); }
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    /// Takes care of the job until it is done. One that is here already is asked once more at least.
    void take(std::shared_ptr<Job> job);
    /// There is something to keep.
    void reclaim_idle();
    /// Finishes with what is there and ends the thread. Safe to call twice.
    void stop() noexcept;

  private:
    void run();
    void start();  ///< needs the lock

    const std::function<bool()> _housekeeping;
    std::mutex _mutex;
    std::condition_variable _wake;
    struct Entry {
        std::shared_ptr<Job> job;
        bool again;  ///< was handed over since it was last asked: what it says then may be older than that
    };
    std::vector<Entry> _jobs;
    std::thread _thread;
    bool _house = false;
    bool _stopping = false;
};

}  // namespace awaken::ipc
