// SPDX-License-Identifier: Apache-2.0
// All communicators with streams, the requests of what is queued there, and the thread that acts for the streams.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "call/request_hash.h"
#include "call/stream_work.h"
#include "enqueue/stream_comm.h"

namespace awaken::AWAKEN_ABI {

class StreamComms final : public StreamWork {
  public:
    static StreamComms& instance();

    // ---- streams

    /// Throws Error.
    [[nodiscard]] int make_stream(gpu::StreamHandle stream);
    /// Null when the layer has not made it.
    [[nodiscard]] std::shared_ptr<ProgramStream> stream_of(int handle);
    void free_stream(int handle);

    // ---- communicators

    /// Null when the layer has given it no stream.
    [[nodiscard]] std::shared_ptr<StreamComm> find(MPI_Comm communicator);
    /// Without a stream: only its messages travel as host bytes. Throws Error.
    void add(MPI_Comm communicator, const std::shared_ptr<ProgramStream>& stream);
    /// The members find out which of them messages reach in places of device memory. Collective, behind add().
    void meet(MPI_Comm communicator);
    [[nodiscard]] bool covers(MPI_Comm communicator) override;
    /// Waits until all is over, and forgets the communicator.
    void remove(MPI_Comm communicator);
    void settle(MPI_Comm communicator) override;
    [[nodiscard]] bool is_busy(MPI_Comm communicator) override;
    void finish(std::span<const MPI_Request> requests) override;
    void announce() override;
    void stop() noexcept override;

    // ---- requests

    /// Makes the request that the program gets for an operation.
    void give_request(const std::shared_ptr<StreamComm>& of, const std::shared_ptr<Enqueued>& operation,
                      MPI_Request* request);
    /// Makes a persistent request's next operation.
    using Again = std::function<std::shared_ptr<Enqueued>(Call& call)>;
    struct Known {
        std::shared_ptr<StreamComm> of;
        std::shared_ptr<Enqueued> operation;  ///< null: a persistent request that was not started here yet
        Again again;                          ///< null: not persistent
    };
    /// The program has made a persistent request on the communicator.
    void made(MPI_Request request, const std::shared_ptr<StreamComm>& of, Again again);
    /// Throws Error when nothing was queued with the request.
    [[nodiscard]] Known known(MPI_Request request, const char* function);
    /// A persistent request's next operation.
    void started(MPI_Request request, const std::shared_ptr<Enqueued>& operation);
    void forget(MPI_Request request) noexcept;
    /// Keeps a request that is not complete for give_request(): the MPI's lock is much in use by the thread.
    void keep(MPI_Request request, BehindRequest* behind);

    /// There is something for the thread.
    void wake() noexcept;

  private:
    StreamComms() = default;
    void run() noexcept;
    [[nodiscard]] stream::StepKernel& prepare(int device);

    std::mutex _mutex;
    std::vector<std::shared_ptr<ProgramStream>> _streams;
    std::vector<std::shared_ptr<StreamComm>> _comms;
    std::unordered_map<MPI_Request, Known, RequestHash> _requests;
    std::vector<std::pair<MPI_Request, BehindRequest*>> _kept;    ///< begun, and of no operation
    std::map<int, std::unique_ptr<stream::StepKernel>> _kernels;  ///< by device
    std::vector<MPI_Comm> _covered;
    std::vector<std::shared_ptr<StreamComm>> _gone;
    std::condition_variable _wake;
    std::atomic<bool> _has_work{false};
    std::atomic<bool> _sleeps{false};  ///< the thread, until it is woken
    std::atomic<bool> _ends{false};
    std::thread _thread;
    static inline thread_local bool is_thread = false;
};

}  // namespace awaken::AWAKEN_ABI
