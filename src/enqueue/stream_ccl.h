// NCCL or RCCL for the collectives that are queued in a communicator's stream.
//
// All members must queue a collective in the same way, and no call may wait for another member's program. So when the
// communicator is made, which all members do together and while their GPUs have nothing to do, they make the library's,
// too. The library waits for the GPU then, and what a program's stream waits for may come later in the program. It
// costs up to seconds and hundreds of megabytes.
//
// Threads of the layer make it, and end with a vote: a member that fails, or takes too long, votes no, and none uses
// the library.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ccl/ccl.h"
#include "coll/device/ccl_communicator.h"
#include "coll/own_communicator.h"
#include "gpu/gpu.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// One member's end. Calls of one communicator come one after another, as MPI demands.
class StreamCcl : public std::enable_shared_from_this<StreamCcl> {
  public:
    using Operation = coll::CclCommunicator::Operation;

    /// Collective over a communicator that has just got its streams. Null, on all members, if the library cannot be
    /// used. `stream` may be null: this member has none.
    [[nodiscard]] static std::shared_ptr<StreamCcl> agree(MPI_Comm communicator, const gpu::StreamHandle* stream);
    /// For agree().
    StreamCcl(MPI_Comm communicator, gpu::StreamHandle stream, int nodes);
    ~StreamCcl();
    StreamCcl(const StreamCcl&) = delete;
    StreamCcl& operator=(const StreamCcl&) = delete;

    /// Whether a collective is to be queued by the library: the same on all members. Call once for each collective.
    /// `code` and `bytes` as in coll::Occasion. Throws Error.
    [[nodiscard]] bool takes(coll::Kind kind, std::uint32_t code, std::uint64_t bytes);
    /// Queues what it takes, in the communicator's stream. `capture` as in gpu::Runtime::capture_of(). Throws Error.
    void queue(Operation operation, std::uint64_t capture);
    [[nodiscard]] int rank() const noexcept { return _rank; }
    [[nodiscard]] int size() const noexcept { return _size; }

    /// Whether the stream has something to do.
    [[nodiscard]] bool is_busy() const noexcept;
    /// Waits for what the stream has. Ends it if the library has failed, or if another member is gone.
    void finish() noexcept;
    /// Throws the error that made finish() end it.
    void throw_failure() const;
    /// The communicator ends, on all members, and its stream has nothing left.
    void leave(bool mpi_ends) noexcept;
    /// The library has given up its communicator.
    [[nodiscard]] bool has_left() const noexcept { return _ccl.has_left(); }
    /// The library gives up no communicator of which there are graphs.
    [[nodiscard]] bool has_graphs() const noexcept { return _graphs->load(std::memory_order_acquire) != 0; }

    // ---- the thread's side

    /// Goes on making the library's communicator. True while there is something to wait for, apart from a call.
    [[nodiscard]] bool advance() noexcept;
    [[nodiscard]] bool is_decided() const noexcept { return _step == Step::is_over; }

  private:
    enum class State : std::uint8_t { open, usable, unusable, failed };
    enum class Step : std::uint8_t { waits_for_call, prepares, invites, joins, connects, votes, is_over };
    /// What a member tells the others before they join.
    struct Invitation {
        int version = 0;  ///< of the library; 0: this member has none
        ccl::UniqueId identifier;
    };
    struct Preparation;
    struct Connection;

    void check_members(std::optional<std::chrono::steady_clock::time_point>& missed) const;
    [[nodiscard]] bool is_chosen(coll::Kind kind, std::uint32_t code, std::uint64_t bytes) const noexcept;
    void await_decision() const noexcept;
    void count_graph();
    [[nodiscard]] MPI_Comm channel() const noexcept { return _own ? _own->handle() : MPI_COMM_NULL; }
    [[nodiscard]] std::array<int, 3> neighbours() const noexcept;
    void listen();
    void stop_listening() noexcept;
    [[nodiscard]] bool is_called_up();
    void tell(int other, int tag) const;
    [[nodiscard]] bool has_failed_elsewhere() const;
    void prepare();
    void invite();
    void join();
    void connect();
    void look_at_others();
    void vote(bool usable, const std::string& why);
    void decide(bool usable);

    const gpu::StreamHandle _stream;
    const int _nodes;
    int _rank = 0, _size = 0;
    std::vector<int> _near;               ///< other members on this node, as the segment counts
    std::optional<OwnCommunicator> _own;  ///< for the threads' words
    std::mutex _mutex;                    ///< the library lets one thread at a time use its communicator
    std::atomic<bool> _wanted{false};
    std::atomic<State> _state{State::open};
    const ccl::Library* _library = nullptr;
    coll::CclCommunicator _ccl;
    std::optional<Error> _failure;
    std::uint64_t _last_capture = 0;
    std::shared_ptr<std::atomic<int>> _graphs = std::make_shared<std::atomic<int>>(0);

    Step _step = Step::waits_for_call;
    std::chrono::steady_clock::time_point _begun;
    std::shared_ptr<Preparation> _preparation;
    std::shared_ptr<Connection> _connection;
    /// What the neighbours send when they begin. All must be received: a message that is left may be found on another
    /// communicator.
    std::array<MPI_Request, 3> _call_ups{MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    std::vector<Invitation> _invitations;
    MPI_Request _request = MPI_REQUEST_NULL;
    int _vote = 0, _votes = 0;
    std::string _why_not;
};

/// Waits until the communicators of the library have gone that were left, but not for ever. MPI is about to go down.
void finish_leaving() noexcept;

}  // namespace awaken::AWAKEN_ABI
