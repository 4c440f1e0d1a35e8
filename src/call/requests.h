// SPDX-License-Identifier: Apache-2.0
// Requests that need more than the MPI's completion: the layer copies data back or frees staging buffers.
//
// The program always holds a real request of the MPI. For a nonblocking operation this is the native request on the
// staging buffer. For a persistent operation it is the native persistent request. This table knows which requests the
// layer tracks, and what the layer must do when they complete. The MPI does everything else itself: it mixes them with
// native requests in one Waitall, converts handles, and lets the program store handles anywhere.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/recycled.h"
#include "call/request_hash.h"
#include "call/stage.h"
#include "mpi/native.h"
#include "transport/transport.h"

namespace awaken::AWAKEN_ABI {

class Call;
class Operation;

/// Operations with an active progress operation, oldest first.
using UnderWay = std::list<std::shared_ptr<Operation>, RecyclingAllocator<std::shared_ptr<Operation>>>;

/// The part of an operation that goes on beside the MPI: another process fetches bytes from here, or this process
/// fetches bytes from another one.
class ProgressOp {
  public:
    ProgressOp() = default;
    virtual ~ProgressOp() = default;
    ProgressOp(const ProgressOp&) = delete;
    ProgressOp& operator=(const ProgressOp&) = delete;

    /// Does what can be done now. `arrived` is the status of the native operation, or null while that is not complete.
    /// Returns true when only the native operation remains to be completed. Throws Error.
    [[nodiscard]] virtual bool advance(const MPI_Status* arrived, transport::Patience patience) = 0;
    /// Called after the native operation has completed with this outcome. Sets the status and the error that the
    /// program sees, and raises the error unless the MPI has raised it.
    virtual void conclude(MPI_Status& status, int& error) = 0;
    /// The call ends, and the operation goes on.
    virtual void leave() = 0;
    /// See OutgoingMessage::needs_calls().
    [[nodiscard]] virtual bool needs_calls() const noexcept { return false; }
    /// False when a look at memory shows that no RTS has arrived yet. Most messages here are RTS messages.
    [[nodiscard]] virtual bool may_have_arrived() const = 0;
    /// True when that look is certain once the native operation is complete: it then shows whether an RTS arrived.
    [[nodiscard]] virtual bool shows_rts() const { return false; }
};

/// One tracked operation. A program may not use one request in two threads at a time. So only one thread at a time
/// touches an operation, except for the partitions of a partitioned one.
class Operation {
  public:
    enum class Kind : std::uint8_t {
        once,        ///< nonblocking: over when it completes
        rebinding,   ///< persistent: each start looks the buffer up. Device memory gets a native request of its own for
                     ///< this start; host memory uses the native persistent request.
        bound,       ///< persistent collective of the MPI: the native request was initialised on the staging buffers
        partitioned  ///< like bound, but copied partition by partition
    };

    explicit Operation(const Kind what) : kind(what), _state(what == Kind::once ? State::native : State::inactive) {}
    Operation(const Kind what, Stage buffers) : Operation(what) { stage.emplace(std::move(buffers)); }
    ~Operation();
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    const Kind kind;
    MPI_Request handle = MPI_REQUEST_NULL;  ///< the request that the program holds
    /// The native request under way: equal to `handle`, unless the operation is rebinding or has a spare handle. Null
    /// if no native operation is left to complete.
    MPI_Request native_request = MPI_REQUEST_NULL;
    std::optional<Stage> stage;
    bool receives = false;  ///< the status says how many bytes to store
    bool reads = false;     ///< reads from a file: transferred_bytes() says how many bytes to store
    bool stored = false;    ///< MPI_Request_get_status has already copied the data back
    /// Rebinding: starts a native nonblocking operation on a fresh stage. Returns false when the buffer is host memory;
    /// the caller then starts the native persistent request.
    std::function<bool(Call&, const std::shared_ptr<Operation>&, int& error)> launch;
    std::mutex mutex;  ///< guards the state of the partitions
    /// Null while all bytes of the operation travel through the MPI. `progress_mutex` guards its state, since any
    /// thread may advance it.
    std::unique_ptr<ProgressOp> progress_op;
    std::mutex progress_mutex;
    /// A call is completing the operation. The MPI may give the handle to a new operation before that call updates the
    /// table, so from now on find() does not return this operation.
    std::atomic<bool> completing{false};
    /// A call that waits for the operation until it is over advances it. Other calls leave it alone.
    std::atomic<bool> attended{false};
    bool unprepared = false;  ///< persistent: started natively, and counted as unprepared for an RTS

    /// What is under way. Without a progress operation the states are `native` and, for a persistent one, `inactive`.
    enum class State : std::uint8_t {
        inactive,      ///< over, or not started yet
        native,        ///< the MPI alone has work to do
        posted,        ///< the native operation is not complete, as far as the layer knows
        transferring,  ///< it is; the progress operation is not over
        complete       ///< only the native request remains to be completed
    };
    [[nodiscard]] State state() const noexcept { return _state.load(std::memory_order_acquire); }
    [[nodiscard]] bool is_active() const noexcept { return state() != State::inactive; }
    /// True while the operation has a progress operation.
    [[nodiscard]] bool progresses() const noexcept { return state() >= State::posted; }
    /// True when the native operation was complete at the last look of advance().
    [[nodiscard]] bool has_arrived() const noexcept { return state() >= State::transferring; }
    [[nodiscard]] bool is_complete() const noexcept { return state() == State::complete; }
    /// A persistent operation was started, or could not be.
    void started(bool successfully) noexcept;

    /// Attaches a progress operation, which lives until complete().
    void begin(std::unique_ptr<ProgressOp> what);
    /// Replaces a native request that is already complete by a handle of the layer: a spare one, after which there is
    /// no native request, or a generalized request. MPIs use one shared handle for all operations that complete at
    /// once, but this operation is not over.
    void take_own_handle(MPI_Request* request);
    /// MPI_Waitany and its relatives complete no null request. After this call, an operation that is over and has none
    /// has a native request that is complete.
    void need_native_request();
    /// A send whose native operation is over: nothing can be cancelled any more.
    [[nodiscard]] bool has_spare_handle() const noexcept { return _spare_handle; }
    /// Starts the operation with a request of the layer; no native operation exists.
    [[nodiscard]] int start_own_handle(MPI_Request* request);
    /// Does the same for one start of a persistent operation, whose handle stays.
    [[nodiscard]] int start_own_native_request();
    /// Where advance() looks for news of the native operation.
    enum class Ask : std::uint8_t {
        mpi,    ///< asks the MPI, which costs 0.1 to 0.2 microseconds
        memory  ///< asks the MPI only when a look at memory makes that worthwhile
    };
    /// Advances the progress operation, if there is one. Returns true when the native request may be completed without
    /// waiting. complete() reports errors.
    bool advance(bool asked, Ask ask = Ask::mpi);
    /// The call ends without completing the operation.
    void leave();
    /// Does the same if the native operation is complete and no other thread works on the operation.
    void leave_if_arrived();
    /// True when at least one buffer has a staging buffer.
    [[nodiscard]] bool has_staging_buffers() const noexcept { return stage && stage->active(); }
    /// Finishes the operation after its native request has completed with this status. `error` is the native outcome.
    /// Both become what the program sees.
    void complete(MPI_Status& status, int& error);
    /// Stores the data without ending the operation: MPI_Request_get_status has reported completion.
    void store(MPI_Status& status, int error);

  private:
    friend class Requests;
    /// Asks the MPI whether the native operation is complete.
    void look();

    UnderWay* _list = nullptr;  ///< list of Requests with this operation, or null; its lock guards both
    UnderWay::iterator _place;

    std::atomic<State> _state;
    bool _own_handle = false;
    bool _spare_handle = false;
    /// A look at the MPI takes longer than a look at memory, so only one in so many looks asks the MPI.
    static constexpr unsigned kLooksPerProgress = 16;
    unsigned _looks = 0;
    MPI_Status _status{};  ///< of the native operation, from State::transferring on
};

template <class... Arguments>
[[nodiscard]] std::shared_ptr<Operation> make_operation(Arguments&&... arguments) {
    return std::allocate_shared<Operation>(RecyclingAllocator<Operation>{}, std::forward<Arguments>(arguments)...);
}

/// Makes the program's handle of a persistent operation that the layer does itself: a native persistent request that is
/// never started. Returns the MPI's error code.
[[nodiscard]] int make_persistent_handle(MPI_Request* handle);

/// Bytes that a completed receive delivered.
[[nodiscard]] std::int64_t received_bytes(const MPI_Status& status);
/// Bytes that a completed file access has read or written. A program cannot cancel a file access, and Open MPI's status
/// does not say whether one was cancelled.
[[nodiscard]] std::int64_t transferred_bytes(const MPI_Status& status);

/// Copies `own` to the status of a function that returns a single status. Such a function leaves the field MPI_ERROR
/// unchanged (MPI-4.1, 3.2.5). `status` may be MPI_STATUS_IGNORE.
void return_status(MPI_Status* status, const MPI_Status& own) noexcept;

/// Remembers the communicator of each message that a matched probe has found. The message handle does not tell it, but
/// errors of the receive belong to that communicator.
class MatchedMessages {
  public:
    void found(MPI_Message message, MPI_Comm communicator);
    /// Forgets the message and returns its communicator. The MPI may use the handle again once the message is received.
    /// For an unknown message it returns MPI_COMM_SELF, where the MPI raises errors of a bad handle.
    [[nodiscard]] MPI_Comm take(MPI_Message message);

  private:
    std::mutex _mutex;
    std::vector<std::pair<MPI_Message, MPI_Comm>> _found;  ///< a few at a time
};

class Requests {
  public:
    explicit Requests(const Native& native) : _native(native) {}

    /// True when an operation is tracked; costs one load.
    [[nodiscard]] bool any() const noexcept { return _tracked.load(std::memory_order_acquire) != 0; }
    /// Returns null also for an operation that a call is completing: by now its handle may stand for another operation.
    [[nodiscard]] std::shared_ptr<Operation> find(MPI_Request request) const;
    /// The first of these requests whose progress operation is over, or `count`.
    [[nodiscard]] int first_over(int count, const MPI_Request* requests) const;
    /// The same as find() for each of several.
    void find(const std::vector<MPI_Request>& requests, std::vector<std::shared_ptr<Operation>>& operations) const;
    /// Whether an operation was over when the MPI gave out its request. MPIs have one request for all such operations.
    /// That handle identifies none of them, and nothing is left to wait for. Only for messages, collectives and
    /// one-sided operations, of which the MPIs answer rightly. In MPICH, MPI_Test completes a file access once more if
    /// somebody has asked before.
    [[nodiscard]] static bool is_over_at_once(MPI_Request request);
    /// A handle that stands for no native operation, MPI_REQUEST_NULL where there is none: an inactive persistent
    /// request, which the MPI never completes. It costs a tenth of what a generalized request costs.
    [[nodiscard]] MPI_Request take_spare_handle();
    void give_back(MPI_Request spare_handle) noexcept;
    /// Spare handles belong to MPI_COMM_SELF, which exists between these two calls.
    void world_started() noexcept;
    void world_stopping() noexcept;
    /// Starts tracking `operation` under operation->handle.
    void track(std::shared_ptr<Operation> operation);
    /// Stops tracking, unless a newer operation has taken the same handle meanwhile.
    void forget(const Operation& operation);

    /// Advances the progress operations that no call attends to. A thread that waits for one operation keeps the others
    /// going, since their peers may be waiting for them. The function advances the next few whose native operation is
    /// complete, and the next few of the others. So a call does not take longer when the program has more under way.
    /// Cheap when there is none.
    void advance_progress_ops();
    /// The thread is about to wait for something else. The progress operations go on without it.
    void leave_progress_ops();
    [[nodiscard]] bool any_progress_ops() const noexcept {
        return _progress_count.load(std::memory_order_acquire) != 0;
    }
    /// A progress operation begins; its native operation has completed; it is over. Each takes the same time for any
    /// number of progress operations. The first returns when the operation needs no calls of this process.
    void add_progress_op(const std::shared_ptr<Operation>& operation, std::unique_ptr<ProgressOp> progress_op);
    void arrived(Operation& operation);
    void remove_progress_op(Operation& operation);

    /// Takes over an active operation whose request the program has freed. Later calls complete it.
    void orphan(std::shared_ptr<Operation> operation);
    [[nodiscard]] bool any_orphaned() const noexcept { return _orphaned_count.load(std::memory_order_acquire) != 0; }
    /// Completes the orphaned operations that can be completed. Every served call ends with this while there are any.
    /// If a copy fails because the program freed the buffer too early, no call is left that could return the error, so
    /// the layer prints it on stderr. An error of a message goes to the program's error handler; what the handler
    /// throws leaves this function.
    void progress_orphaned();
    /// Waits for all orphaned operations.
    void finish_orphaned();

  private:
    const Native& _native;
    mutable std::mutex _mutex;
    std::atomic<std::size_t> _tracked{0};
    [[nodiscard]] std::shared_ptr<Operation> find_locked(MPI_Request request) const;
    using Tracked = std::pair<const MPI_Request, std::shared_ptr<Operation>>;
    std::unordered_map<MPI_Request, std::shared_ptr<Operation>, RequestHash, std::equal_to<>,
                       RecyclingAllocator<Tracked>>
        _operations;
    std::mutex _spare_mutex;
    std::vector<MPI_Request> _spare_handles;
    bool _has_world = false;
    /// Returns the next operation of the list; the order is circular.
    [[nodiscard]] static UnderWay::iterator in_turn(UnderWay& list, UnderWay::iterator& next);
    void leave_list(const Operation& operation);

    std::mutex _progress_mutex;
    std::atomic<std::size_t> _progress_count{0};
    UnderWay _awaited;  ///< their native operations are not complete yet
    UnderWay _arrived;
    UnderWay::iterator _next_look = _awaited.end(), _next_question = _awaited.end(), _next_arrived = _arrived.end();
    std::size_t _turn = 0;
    /// Holds the orphaned operations out of reach of other threads while one thread looks through them.
    class Taken {
      public:
        explicit Taken(Requests& from);
        ~Taken();
        Taken(const Taken&) = delete;
        Taken& operator=(const Taken&) = delete;
        [[nodiscard]] std::size_t size() const noexcept { return _operations.size(); }
        [[nodiscard]] Operation& operator[](const std::size_t at) noexcept { return *_operations[at]; }
        /// The operation is over: removes it for good.
        std::shared_ptr<Operation> remove(std::size_t at);

      private:
        Requests& _from;
        std::vector<std::shared_ptr<Operation>> _operations;
    };

    std::mutex _orphaned_mutex;
    std::atomic<std::size_t> _orphaned_count{0};
    std::vector<std::shared_ptr<Operation>> _orphaned;
};

}  // namespace awaken::AWAKEN_ABI
