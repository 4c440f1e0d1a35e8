// SPDX-License-Identifier: Apache-2.0
// When other processes may send RTS messages to this one.
//
// An RTS takes the place of a message (see ipc/link.h). So each outstanding receive must be prepared for one before the
// first RTS may arrive. Receives that started before this process found its GPU runtime are native ones, and are not
// prepared. This class counts them. When none is left, the process tells the others that it takes RTS messages. From
// then on it prepares each of its receives for one.
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
    /// MPI is up: other processes may want to send RTS messages.
    void begin() noexcept { _world_up.store(true, std::memory_order_release); }
    /// MPI is down: no RTS will arrive.
    void end() noexcept;
    /// This process can take RTS messages. `say_so` tells the others, once, when no unprepared receive is left.
    void want(std::function<void()> say_so);

    /// True when an RTS may arrive: each receive must be prepared for one.
    [[nodiscard]] bool takes_rts() const noexcept { return _takes.load(std::memory_order_seq_cst); }
    /// Tells the others if no unprepared receive is left. Cheap when there is nothing to tell.
    void say_when_ready() {
        if (_wants.load(std::memory_order_relaxed)) {
            try_to_take_rts();
        }
    }

    /// A native receive that is not prepared for an RTS, while the object lives.
    class Unprepared {
      public:
        /// Before it counts the receive, it finds a GPU runtime that the program has begun to use since its last call:
        /// the receive can then take an RTS, and its message need not be staged.
        explicit Unprepared(ReceiveReadiness& readiness);
        ~Unprepared();
        Unprepared(const Unprepared&) = delete;
        Unprepared& operator=(const Unprepared&) = delete;
        /// False when it is too late: receives must be prepared.
        [[nodiscard]] bool allowed() const noexcept { return _allowed; }
        /// The receive goes on under this request after the object is gone.
        void continues(MPI_Request request);
        /// The receive goes on until ended_unprepared(). The caller must call that if this returns true.
        [[nodiscard]] bool keep() noexcept { return std::exchange(_counted, false); }

      private:
        ReceiveReadiness& _readiness;
        bool _counted = false;
        bool _allowed = true;
    };
    /// True when an unprepared receive goes on under a request.
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
    std::unordered_map<MPI_Request, unsigned> _requests;  ///< how many receives go on under each request
};

}  // namespace awaken::AWAKEN_ABI
