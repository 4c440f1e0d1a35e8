// When other processes may send RTS messages to this one.
//
// An RTS message takes a message's place (see ipc/link.h), so any receive that is outstanding when the first one may
// come must be ready for it. Receives that were started before this process found its GPU runtime are the MPI's own and
// are not; they are counted here, and only when none is left does the process say that it takes RTS messages. From then
// on each of its receives is prepared for one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

class ReceiveReadiness {
  public:
    /// MPI is up, and others may come to send RTS messages.
    void begin() noexcept { _world_up.store(true, std::memory_order_release); }
    /// MPI is down: none will come.
    void end() noexcept;
    /// This process can take RTS messages. `say_so` tells the others, once, when no receive stands against it.
    void want(std::function<void()> say_so);

    /// Whether receives may meet RTS messages: each must be prepared for one.
    [[nodiscard]] bool takes_rts() const noexcept { return _takes.load(std::memory_order_seq_cst); }
    /// Says so if nothing hinders it any more. Cheap when there is nothing to say.
    void say_when_ready() {
        if (_wants.load(std::memory_order_relaxed)) {
            try_to_take_rts();
        }
    }

    /// A native receive that knows nothing of RTS messages, for as long as the object lives.
    class Unprepared {
      public:
        explicit Unprepared(ReceiveReadiness& readiness) noexcept;
        ~Unprepared();
        Unprepared(const Unprepared&) = delete;
        Unprepared& operator=(const Unprepared&) = delete;
        /// False: too late, receives must be prepared.
        [[nodiscard]] bool allowed() const noexcept { return _allowed; }
        /// It goes on under this request when the object is gone.
        void continues(MPI_Request request);
        /// It goes on until ended_unprepared(), which is to be called if this returns true.
        [[nodiscard]] bool keep() noexcept { return std::exchange(_counted, false); }

      private:
        ReceiveReadiness& _readiness;
        bool _counted = false;
        bool _allowed = true;
    };
    /// Whether some unprepared receive goes on under a request.
    [[nodiscard]] bool any_unprepared() const noexcept {
        return _unprepared_requests.load(std::memory_order_acquire) != 0;
    }
    /// The MPI has completed (or freed) the request.
    void completed(MPI_Request request);
    void ended_unprepared() noexcept { _unprepared.fetch_sub(1, std::memory_order_seq_cst); }

  private:
    void try_to_take_rts();

    std::atomic<bool> _world_up{false};
    std::atomic<bool> _wants{false};
    std::atomic<bool> _takes{false};
    std::atomic<std::int64_t> _unprepared{0};
    std::atomic<std::size_t> _unprepared_requests{0};
    std::mutex _mutex;
    std::function<void()> _say_so;
    std::mutex _requests_mutex;
    std::unordered_map<MPI_Request, unsigned> _requests;  ///< and how many stand under it
};

}  // namespace awaken::AWAKEN_ABI
