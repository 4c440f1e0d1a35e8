// Requests whose completion needs more than the MPI's own: data to copy back, staging buffers to give back.
//
// The program always holds a real request of the MPI's. For a nonblocking operation it is the native request on the
// staging buffer, for a persistent one the native persistent request; this table knows which of them are ours and what
// is to be done when they complete. Everything else (mixing with native requests in one Waitall, handle conversions,
// storing handles anywhere) is then the MPI's own.
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
#include "call/stage.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

class Call;
class Operation;

/// Operations whose progress operations are under way, oldest first.
using UnderWay = std::list<std::shared_ptr<Operation>, RecyclingAllocator<std::shared_ptr<Operation>>>;

/// What an operation does beside the MPI: bytes that another process fetches from here, or that are fetched from it.
class ProgressOp {
  public:
    ProgressOp() = default;
    virtual ~ProgressOp() = default;
    ProgressOp(const ProgressOp&) = delete;
    ProgressOp& operator=(const ProgressOp&) = delete;

    /// Does what can be done now; `arrived` is the native operation's status, null as long as that is not complete.
    /// True when nothing remains but to complete the native operation. `asked`: somebody waits. Throws Error.
    [[nodiscard]] virtual bool advance(const MPI_Status* arrived, bool asked) = 0;
    /// After the native operation was completed with this outcome: makes the status and the error what the program is
    /// to see, and raises the error where it is not the MPI's own.
    virtual void conclude(MPI_Status& status, int& error) = 0;
    /// The call ends and the operation goes on.
    virtual void leave() = 0;
    /// The operation must go on without any call of this process's: to be called until it returns true.
    [[nodiscard]] virtual bool flush_to_native() {
        leave();
        return true;
    }
    /// False when a look at memory says that an RTS, which is what mostly comes, has not come yet.
    [[nodiscard]] virtual bool may_have_arrived() const = 0;
    /// That look tells for certain, once the native operation is complete, that it was no RTS.
    [[nodiscard]] virtual bool shows_rts() const { return false; }
};

/// One tracked operation. A program may not use one request in two threads at a time, so an operation is touched by one
/// thread at a time, except for the partitions of a partitioned one.
class Operation {
  public:
    enum class Kind : std::uint8_t {
        once,        ///< nonblocking: done when it completes
        rebinding,   ///< persistent: each start looks the buffer up and is carried by a request of its own when that is
                     ///< device memory, or by the native persistent request itself
        bound,       ///< persistent collective of the MPI's: the native request was initialised on the staging buffers
        partitioned  ///< as bound, and copied partition by partition
    };

    explicit Operation(Kind what) : kind(what) {}
    Operation(Kind what, Stage buffers) : kind(what), stage(std::move(buffers)) {}

    const Kind kind;
    MPI_Request handle = MPI_REQUEST_NULL;          ///< what the program holds
    MPI_Request native_request = MPI_REQUEST_NULL;  ///< the native request under way; equal to handle unless rebinding
    std::optional<Stage> stage;
    bool receives = false;  ///< the status says how many bytes to store
    bool reads = false;     ///< from a file: so it does, with transferred_bytes()
    bool active = true;     ///< started and not yet completed
    bool stored = false;    ///< data already copied back, by MPI_Request_get_status
    /// Rebinding: starts a native nonblocking operation on a fresh stage, or returns false when the buffer is host
    /// memory and the native persistent request is to be started.
    std::function<bool(Call&, const std::shared_ptr<Operation>&, int& error)> launch;
    std::mutex mutex;  ///< of the partitions' bookkeeping
    /// Null while all bytes of the operation travel through the MPI. Its state belongs to exchange_mutex, since any
    /// thread may advance it.
    std::unique_ptr<ProgressOp> progress_op;
    std::mutex progress_mutex;
    std::atomic<bool> progressing{false};  ///< there is a progress operation
    std::atomic<bool> ready{false};        ///< it is over: the native request may be completed
    /// A call is completing it. Its handle is the MPI's to give out again before the call comes back to the table, so
    /// nobody may find the operation by the handle from then on.
    std::atomic<bool> completing{false};
    bool unprepared = false;  ///< persistent: started natively, and counted as not ready for an RTS

    /// Gives it a progress operation, which goes on until complete().
    void begin(std::unique_ptr<ProgressOp> what);
    /// Puts a request of its own in the place of a native one that is complete already: MPIs hand out one and the same
    /// for all such operations, but this one is not over.
    void take_own_handle(MPI_Request* request);
    /// Starts with a request of its own: there is no native operation.
    [[nodiscard]] int start_own_handle(MPI_Request* request);
    /// The same for one start of a persistent operation, whose handle stays.
    [[nodiscard]] int start_own_native_request();
    /// Whom to ask for news of the native operation.
    enum class Ask : std::uint8_t {
        mpi,    ///< the MPI, which costs a tenth of a microsecond or two
        memory  ///< the MPI only when a look at memory makes it worth while
    };
    /// Advances the progress operation, if there is one. True when the native request may be completed, which does not
    /// wait. Errors come out of complete().
    bool advance(bool asked, Ask ask = Ask::mpi);
    /// The native operation is complete, or was when advance() last looked.
    [[nodiscard]] bool has_arrived() const noexcept { return _seen.load(std::memory_order_relaxed); }
    /// The call ends without completing the operation.
    void leave();
    /// The same of one whose native operation is complete, unless another thread is at it.
    void leave_if_arrived();
    /// True when it goes on without calls of this process's, as far as it is this process's to do something.
    [[nodiscard]] bool flush_to_native();
    /// Some buffer has a staging buffer.
    [[nodiscard]] bool has_staging_buffers() const noexcept { return stage && stage->active(); }
    /// What remains to be done once the native request has completed with this status; `error` is the native outcome.
    /// Both become what the program is to see.
    void complete(MPI_Status& status, int& error);
    /// The same without ending it: MPI_Request_get_status said "complete".
    void store(MPI_Status& status, int error);

  private:
    friend class Requests;
    /// Asks the MPI whether the native operation is complete.
    void look();

    UnderWay* _list = nullptr;  ///< of Requests, with whose lock both belong; null: in none
    UnderWay::iterator _place;

    bool _arrived = false;  ///< the native operation is complete, with this status
    std::atomic<bool> _seen{false};
    bool _own_handle = false;
    /// Each look at the MPI takes longer than one at memory.
    static constexpr unsigned kLooksPerProgress = 16;
    unsigned _looks = 0;
    MPI_Status _status{};
};

template <class... Arguments>
[[nodiscard]] std::shared_ptr<Operation> make_operation(Arguments&&... arguments) {
    return std::allocate_shared<Operation>(RecyclingAllocator<Operation>{}, std::forward<Arguments>(arguments)...);
}

/// Bytes that a completed receive delivered.
[[nodiscard]] std::int64_t received_bytes(const MPI_Status& status);
/// Bytes that a completed access to a file has read or written. Nobody cancels one, and Open MPI's status leaves open
/// whether somebody did.
[[nodiscard]] std::int64_t transferred_bytes(const MPI_Status& status);

/// Gives the program `own` as the status of a function that returns a single one, which leaves the field MPI_ERROR as
/// it is (MPI-4.1, 3.2.5). `status` may be MPI_STATUS_IGNORE.
void return_status(MPI_Status* status, const MPI_Status& own) noexcept;

/// The communicators of messages that matched probes have found, which nothing else tells: errors of their receives
/// belong there.
class MatchedMessages {
  public:
    void found(MPI_Message message, MPI_Comm communicator);
    /// Forgets the message, whose handle is the MPI's to give out again once it is received. MPI_COMM_SELF, where the
    /// MPI itself raises errors of a bad handle, for one that is not known.
    [[nodiscard]] MPI_Comm take(MPI_Message message);

  private:
    std::mutex _mutex;
    std::vector<std::pair<MPI_Message, MPI_Comm>> _found;  ///< few at a time
};

class Requests {
  public:
    explicit Requests(const Native& native) : _native(native) {}

    /// False, at the cost of one load, as long as nothing is tracked.
    [[nodiscard]] bool any() const noexcept { return _tracked.load(std::memory_order_acquire) != 0; }
    /// Null as well for one that a call is completing: the handle may stand for another operation by now.
    [[nodiscard]] std::shared_ptr<Operation> find(MPI_Request request) const;
    /// Starts tracking `operation` under operation->handle.
    void track(std::shared_ptr<Operation> operation);
    /// Stops tracking, unless the handle's value was taken by a newer operation meanwhile.
    void forget(const Operation& operation);

    /// Advances the progress operations: whoever waits for one thing keeps the others going, since their peers may be
    /// waiting for those. All whose native operation is complete, and of the others the next few, so that a call does
    /// not take longer the more the program has under way. Cheap when there is none.
    void advance_progress_ops();
    /// The thread is about to wait for something else: what remains of them goes on without it.
    void leave_progress_ops();
    /// The same where it waits in the MPI itself, and nobody calls here meanwhile: see call/waiting.h.
    void flush_progress_ops();
    /// Waits for a native request while everything goes on, without completing it.
    void await_native(MPI_Request request);
    /// A thread comes to where it may wait in the MPI, or is back.
    void enter_waiting() noexcept {
        ++_own_waiting;
        _waiting.fetch_add(1);
    }
    void leave_waiting() noexcept {
        --_own_waiting;
        _waiting.fetch_sub(1);
    }
    /// Some other thread may be there.
    [[nodiscard]] bool others_wait() const noexcept { return _waiting.load() != _own_waiting; }
    [[nodiscard]] bool any_progress_ops() const noexcept {
        return _progress_count.load(std::memory_order_acquire) != 0;
    }
    /// A progress operation begins; its native operation is complete; it is over. Each in the same time, however many
    /// there are.
    void add_progress_op(const std::shared_ptr<Operation>& operation, std::unique_ptr<ProgressOp> progress_op);
    void arrived(Operation& operation);
    void remove_progress_op(Operation& operation);

    /// Takes over an active operation whose request the program has freed; it is completed in passing.
    void orphan(std::shared_ptr<Operation> operation);
    [[nodiscard]] bool any_orphaned() const noexcept { return _orphaned_count.load(std::memory_order_acquire) != 0; }
    /// Completes what can be completed of the orphaned operations. Every served call ends with this while there are
    /// any. A copy that fails (the program gave the buffer back too early) has no caller left to tell: it is said on
    /// stderr. An error of a message goes to the program's error handler, and what that throws comes out of here.
    void progress_orphaned();
    /// Waits for all orphaned operations.
    void finish_orphaned();

  private:
    struct Hash {
        std::size_t operator()(MPI_Request request) const noexcept;
    };
    const Native& _native;
    mutable std::mutex _mutex;
    std::atomic<std::size_t> _tracked{0};
    std::unordered_map<MPI_Request, std::shared_ptr<Operation>, Hash> _operations;
    /// Those under way, to be looked at without the lock.
    [[nodiscard]] std::vector<std::shared_ptr<Operation>> progress_ops(bool awaited_too);
    /// Next of the awaited ones; they go in a circle.
    [[nodiscard]] UnderWay::iterator in_turn(UnderWay::iterator& next);
    void leave_list(const Operation& operation);

    std::atomic<int> _waiting{0};  ///< calls that may wait, of a program that has several threads in the MPI
    static inline thread_local int _own_waiting = 0;
    std::mutex _progress_mutex;
    std::atomic<std::size_t> _progress_count{0};
    UnderWay _awaited;  ///< their native operations
    UnderWay _arrived;
    UnderWay::iterator _next_look = _awaited.end(), _next_question = _awaited.end();
    std::size_t _turn = 0;
    /// The orphaned operations, out of other threads' reach while one looks through them.
    class Taken {
      public:
        explicit Taken(Requests& from);
        ~Taken();
        Taken(const Taken&) = delete;
        Taken& operator=(const Taken&) = delete;
        [[nodiscard]] std::size_t size() const noexcept { return _operations.size(); }
        [[nodiscard]] Operation& operator[](const std::size_t at) noexcept { return *_operations[at]; }
        /// For good: it is over.
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
