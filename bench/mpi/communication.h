// SPDX-License-Identifier: Apache-2.0
// What a contender can do: send, receive, and call collectives on buffers of the run. Benchmarks are written once
// against this interface; the MPI itself, the layer, hand-staging and NCCL/RCCL implement it.
//
// Compiled once per MPI ABI (types of mpi.h).
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/catalogue.h"
#include "engine/memory.h"
#include "engine/options.h"

namespace awaken::bench {

/// Counts are of elements of a type; large counts go through the _c functions where the MPI has them.
using Count = MPI_Count;

enum class Direction : std::uint8_t { send, receive };

/// One message, as one of its ranks sends or receives it.
struct MessageCall {
    Direction direction = Direction::send;
    void* data = nullptr;  ///< read only where it is sent
    Count count = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    int peer = 0;
    int tag = 0;
    MPI_Comm communicator = MPI_COMM_NULL;
};

/// All arguments of one collective call; which are used depends on `collective`, as in the MPI function of that name.
struct CollectiveCall {
    Collective collective = Collective::none;
    const void* send = nullptr;  ///< MPI_IN_PLACE allowed
    void* receive = nullptr;
    Count send_count = 0;
    Count receive_count = 0;
    std::vector<Count> send_counts, receive_counts;
    std::vector<MPI_Aint> send_displacements, receive_displacements;  ///< elements; bytes for the w forms
    MPI_Datatype send_type = MPI_DATATYPE_NULL;
    MPI_Datatype receive_type = MPI_DATATYPE_NULL;
    std::vector<MPI_Datatype> send_types, receive_types;
    MPI_Op operation = MPI_OP_NULL;
    int root = 0;
    MPI_Comm communicator = MPI_COMM_NULL;
};

/// One one-sided operation. Which of the members are used depends on `operation`, as in the MPI function of that name;
/// there is one count and one type for all sides.
struct WindowCall {
    OneSided operation = OneSided::none;
    const void* origin = nullptr;
    void* result = nullptr;  ///< what is fetched
    const void* compare = nullptr;
    Count count = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Op combine = MPI_OP_NULL;
    int target = 0;
    MPI_Aint displacement = 0;  ///< bytes from the beginning of the target's window
};

/// What an epoch means for the memory of this rank's window: whoever keeps an image of it must copy.
enum class Exposure : std::uint8_t { none, begins, ends };

enum class LockKind : std::uint8_t { shared, exclusive };

/// Memory of two ranks in which the other may work. The functions are MPI's; those of an active target's epochs are
/// called for the one other rank.
class Window {
  public:
    virtual ~Window() = default;

    /// Where the memory begins that displacements count from, at this rank.
    [[nodiscard]] virtual void* base() const noexcept = 0;

    /// Must be called before the window is destroyed, unless something went wrong that the other rank cannot know of.
    /// Collective.
    virtual void close() = 0;

    virtual void issue(const WindowCall& call) = 0;

    virtual void fence(Exposure exposure) = 0;
    virtual void post() = 0;
    virtual void start() = 0;
    virtual void complete() = 0;
    virtual void wait() = 0;
    virtual void lock(int target, LockKind kind) = 0;
    virtual void unlock(int target) = 0;
    virtual void lock_all() = 0;
    virtual void unlock_all() = 0;
    virtual void flush(int target) = 0;
    virtual void flush_local(int target) = 0;
};

/// A window to be made.
struct WindowRequest {
    WindowForm form = WindowForm::create;
    void* base = nullptr;  ///< this rank's memory; of allocate, the MPI chooses
    std::size_t bytes = 0;
    /// allocate: kinds of memory to ask for, as the value of mpi_memory_alloc_kinds (MPI-4.1, 11.4.3); null: any.
    const char* memory_kinds = nullptr;
    OneSided operation = OneSided::none;  ///< what will be done in it
    bool is_target = false;               ///< whether the other rank works in this rank's memory
    bool target_takes_part = false;       ///< whether targets call fence, or post and wait
    int peer = 0;
    MPI_Comm communicator = MPI_COMM_NULL;
};

/// Says that a contender cannot do something; the engine prints the reason and goes on without it.
class Unavailable : public Error {
  public:
    using Error::Error;
};

/// Messages of the other tests need calls that wait for them.
inline void refuse_graph(const TestInfo& test, const bool is_replayed) {
    if (is_replayed && test.family != Family::halo && test.family != Family::collective) {
        throw Unavailable("only halo and blocking collectives are launched in graphs",
                          "compare enqueue or xccl instead");
    }
}

/// What a contender other than the MPI itself keeps for an operation under way.
class OperationState {
  public:
    virtual ~OperationState() = default;
};

/// Operations under way or persistent, by index. Requests lie next to each other, so that MPI_Waitall takes them as
/// they are and starting one allocates nothing.
struct Operations {
    explicit Operations(std::size_t count) : requests(count, MPI_REQUEST_NULL), states(count) {}

    std::vector<MPI_Request> requests;
    std::vector<std::unique_ptr<OperationState>> states;  ///< null where the contender needs none
};

/// One contender. Every call may throw Unavailable (the same on all ranks) or Error.
class Communication {
  public:
    virtual ~Communication() = default;

    /// "MPICH 5.0.2 through Awaken", "NCCL 2.27.3".
    [[nodiscard]] virtual std::string description() const = 0;

    /// Makes what a program has to make before it communicates in this way, such as NCCL's communicator; does nothing
    /// once that is there. `first` times it with the first operation. Collective; all ranks come to the same answer.
    virtual void connect() {}

    /// Called by all ranks before a size is measured, with all buffers that calls will use at this rank. Allocates
    /// what is needed (pinned images, IPC mappings) and throws Unavailable when this contender cannot run with them;
    /// all ranks must come to the same answer.
    virtual void prepare(MPI_Comm communicator, std::span<const Buffer* const> buffers) = 0;

    // ---- messages and collectives -----------------------------------------------------------------------------------
    virtual void run(const MessageCall& call) = 0;
    virtual void run(const CollectiveCall& call) = 0;
    virtual void start(Operations& operations, std::size_t index, const MessageCall& call) = 0;
    virtual void start(Operations& operations, std::size_t index, const CollectiveCall& call) = 0;

    // ---- persistent: initialised once, started often ----------------------------------------------------------------
    virtual void initialize(Operations& operations, std::size_t index, const MessageCall& call) = 0;
    virtual void initialize(Operations& operations, std::size_t index, const CollectiveCall& call) = 0;
    /// A message in `partitions` equal parts of call.count elements, which make_ready hands over one by one.
    virtual void initialize_partitioned(Operations& operations, std::size_t index, const MessageCall& call,
                                        int partitions) = 0;
    /// All parts of a send that was started, in their order.
    virtual void make_ready(Operations& operations, std::size_t index, int partitions) = 0;
    /// Starts operations [first, first + count).
    virtual void restart(Operations& operations, std::size_t first, std::size_t count) = 0;
    /// Frees persistent operations.
    virtual void release(Operations& operations) = 0;

    // ---- one-sided --------------------------------------------------------------------------------------------------
    /// Collective.
    [[nodiscard]] virtual std::unique_ptr<Window> open_window(const WindowRequest& request) = 0;

    // ---- completion: of operations [first, first + count) -----------------------------------------------------------
    virtual void wait(Operations& operations, std::size_t first, std::size_t count) = 0;
    /// One after the other, as they complete; all at once where the contender has no such call.
    virtual void wait_one_by_one(Operations& operations, std::size_t first, std::size_t count) {
        wait(operations, first, count);
    }

    // ---- beside kernels ---------------------------------------------------------------------------------------------
    /// Where a program's kernels go: a stream; null is the default stream.
    [[nodiscard]] virtual void* stream() const { return nullptr; }
    /// Whether a message that is started waits by itself for what that stream was given before. Where it does not, a
    /// program synchronises first.
    [[nodiscard]] virtual bool follows_stream() const { return false; }
    /// As wait(), for a program that looks at the data by way of that stream alone.
    virtual void wait_in_stream(Operations& operations, std::size_t first, std::size_t count) {
        wait(operations, first, count);
    }
    /// Whether what an iteration does is captured into a graph, which is launched for each: see Replay. A collective is
    /// then captured from start(), and wait() waits for all that was launched.
    [[nodiscard]] virtual bool is_replayed() const { return false; }

    /// Makes progress; true when the operation is complete (wait may be called all the same).
    virtual bool test(Operations& operations, std::size_t index) = 0;
};

}  // namespace awaken::bench
