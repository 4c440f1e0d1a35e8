// SPDX-License-Identifier: Apache-2.0
// A communicator with a GPU's stream, and what is queued there: MPI's stream API on any MPI.
//
// Each call queues the copies of its buffers into staging buffers, and a word that says when the stream has come so
// far. Then a thread of the layer gives the staging buffers to the MPI. Where the program wants the operation to be
// over, its stream waits for a word that the thread writes; copies of what was received come behind that. So anything
// goes that goes in host memory: other nodes, shared GPUs, every datatype, wildcards, partners that call other
// functions.
//
// While the program captures the stream into a graph, all that is captured with it, and the operation is kept: whenever
// the graph comes to it, the thread begins it once more. A word counts how often that was.
//
// The thread never calls the driver. The program may be in a call of it that keeps a lock until its stream goes on, and
// the stream may wait for the thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/round_up.h"
#include "call/layer.h"
#include "call/node_peers.h"
#include "call/stage.h"
#include "enqueue/enqueued.h"
#include "stream/steps.h"

namespace awaken::AWAKEN_ABI {

class StreamCcl;

/// A communicator with a stream. Thread-safe.
class StreamComm {
  public:
    /// Operations that are not over, or whose data have not been fetched; one more waits.
    static constexpr std::size_t kMost = 1000;
    /// Operations in graphs that have not gone. Each has an entry in the ring, beside those that are not captured.
    static constexpr std::size_t kMostCaptured = 2048;
    static_assert(kMost + kMostCaptured < stream::kRingEntries);

    /// Throws Error.
    StreamComm(MPI_Comm communicator, std::shared_ptr<ProgramStream> stream, gpu::Runtime& runtime,
               stream::StepKernel& kernel);
    ~StreamComm();
    StreamComm(const StreamComm&) = delete;
    StreamComm& operator=(const StreamComm&) = delete;

    [[nodiscard]] MPI_Comm communicator() const noexcept { return _communicator; }
    [[nodiscard]] const std::shared_ptr<ProgramStream>& stream() const noexcept { return _stream; }
    /// NCCL or RCCL, for collectives; may be null.
    [[nodiscard]] const std::shared_ptr<StreamCcl>& library() const noexcept { return _library; }
    /// Called before the communicator is used.
    void set_library(std::shared_ptr<StreamCcl> library) noexcept { _library = std::move(library); }

    /// The number of the capture by which the program collects the stream's work; 0 for none. Call before anything else
    /// that a call does: nothing may ask whether the device is idle meanwhile. Throws Error.
    [[nodiscard]] std::uint64_t capture() const;
    /// Queues operations. With `waits`, what comes after them in the stream waits until they are over. Throws Error;
    /// nothing is queued then.
    void enqueue(std::span<const std::shared_ptr<Enqueued>> operations, bool waits);
    /// The stream is to wait for the operations: refuses what was queued in another capture. Throws Error.
    void require_same_capture(std::span<const std::shared_ptr<Enqueued>> operations) const;
    /// The stream waits for operations that were queued before. Throws Error.
    void wait(std::span<const std::shared_ptr<Enqueued>> operations);
    /// The program has given the operation's request to the stream: the status goes to `status`, and the request goes
    /// when the operation is over.
    void take_back(Enqueued& operation, MPI_Status* status);
    /// Called before something is queued that waits for other processes.
    static void flush_plain() noexcept;
    /// What is captured next comes behind what was captured before. Throws Error.
    void release_held_back();
    /// Waits until the program's request is complete.
    void finish(const Enqueued& operation) noexcept;
    /// Lets the stream say how far it has come, where operations that began at once need that.
    void announce() noexcept;
    /// The operation is over, and the program completes it by itself: its data have to be there.
    void store_now(Enqueued& operation);
    /// A stage of pinned memory that `make` makes. Where the pool is full, waits for earlier operations, and takes more
    /// than the pool when that does not help. Throws Error.
    template <class Make>
    [[nodiscard]] std::optional<Stage> make_stage(Call& call, const Make& make) {
        for (bool beyond_limit = is_idle();;) {
            Stage stage(call);
            stage.pin(beyond_limit);
            make(stage);
            if (!stage.active()) {
                return std::nullopt;
            }
            if (stage.is_pinned()) {
                return stage;
            }
            if (beyond_limit) {
                refuse_memory();
            }
            beyond_limit = !wait_for_memory();
        }
    }

    // ---- the thread's side

    // ---- messages in places of device memory

    /// Finds out which members messages may reach in places, in several questions: see StreamComms::meet().
    void ask_for_places(bool is_first, bool is_last);
    /// The same members as the communicator has of which this one is a copy.
    void meet_as(const StreamComm& other) {
        _peers = other._peers;
        _any_places = other._any_places;
    }
    /// A message of so many bytes to the member in a place. Where none is free, waits a little for earlier messages
    /// to be fetched, if that has helped before. Nothing when there is none.
    [[nodiscard]] std::optional<transport::PlacedMessage> take_place(int rank, std::size_t bytes);
    /// Whether messages from places may come.
    [[nodiscard]] bool any_places() const noexcept { return _any_places; }
    /// Pinned memory. Where the pool is full, waits as make_stage() does. Throws Error.
    [[nodiscard]] transfer::StagingBlock make_block(std::int64_t bytes);

    /// Begins what the stream has come to, and looks whether something is over. True when something has changed.
    bool progress() noexcept;

    // ---- errors and ends; in the program's threads

    /// Waits until all is over, in the stream too.
    void finish() noexcept;
    [[nodiscard]] bool is_idle() const noexcept {
        return _open.load(std::memory_order_acquire) == 0 && !_passing.load(std::memory_order_acquire) &&
               !has_arrived(_taken.load(std::memory_order_acquire));
    }
    /// Graphs may begin operations at any time.
    [[nodiscard]] bool has_graphs() const noexcept { return _has_graphs.load(std::memory_order_acquire); }
    /// Sends that are over, while their receivers have not fetched the message. In the thread.
    [[nodiscard]] bool has_unfetched() const noexcept { return !_unfetched.empty(); }
    /// Leaves them to the transport.
    void leave_unfetched() { spend_unfetched(_unfetched.size()); }
    /// Throws the error of an operation that has failed since it was last asked.
    void throw_failure();

  private:
    using Operations = std::span<const std::shared_ptr<Enqueued>>;
    /// Marks an entry of the ring as the number of a Captured.
    static constexpr std::uint32_t kCaptured = 0x80000000;
    /// A captured operation has so many counters: of replays, for the waits before it, for it, and for its delivery;
    /// and of blocks.
    static constexpr std::size_t kCountersPerSlot = 4;
    static constexpr std::size_t kCounters = 1 + kCountersPerSlot * kMostCaptured;
    static constexpr std::size_t kChannelsAt =
        round_up((kCounters + 2 * stream::StepKernel::kMostSteps) * sizeof(std::uint32_t), alignof(stream::Channel));
    static constexpr std::size_t kBytesOnDevice = kChannelsAt + kMostCaptured * sizeof(stream::Channel);
    struct Words {
        /// Where the stream has come to: the last number of a call's operations, or a mark and the number of Captured.
        std::array<std::uint64_t, stream::kRingEntries> arrived;
        std::uint64_t passed;  ///< it has passed the copies back with this number
        /// What the words of one operation say: with its turn, or the number of its replay.
        struct Operation {
            std::uint32_t done;       ///< it is over, and `found` is written
            std::uint32_t delivered;  ///< its data are in memory of the host
            std::uint64_t fetched;    ///< by the stream: the step has copied what it found. Holds the number, or replay
            stream::Found found;
            stream::Channel channel;  ///< in a graph: see Enqueued::channel
        };
        std::array<Operation, kMost> operations;
        std::array<Operation, kMostCaptured> captured;  ///< by slots
    };
    static constexpr std::size_t kBytesOfWords = (sizeof(Words) + 4095) / 4096 * 4096;

    /// What the stream does behind an operation, and then `operation` needs no memory any more.
    struct Passing {
        const std::uint64_t* word;
        std::uint64_t number;
        std::shared_ptr<Enqueued> operation;
    };

    [[nodiscard]] Words::Operation& words_of(const Enqueued& operation) const noexcept;
    /// The value that a word of `operation` has when it is reached.
    [[nodiscard]] static std::uint32_t wanted(const Enqueued& operation) noexcept;
    [[nodiscard]] stream::Step wait_step(const Enqueued& operation) const noexcept;
    [[nodiscard]] stream::Step fetch_step(const Enqueued& operation) const noexcept;
    [[nodiscard]] stream::Step delivery_step(const Enqueued& operation) const noexcept;
    void deliver(Enqueued& operation) noexcept;
    void announce_now() noexcept;
    void give_back_place(const Enqueued& operation) const noexcept;
    [[nodiscard]] bool has_come_to(const Enqueued& operation) const noexcept;
    [[nodiscard]] bool has_data(const Enqueued& operation) const noexcept;
    void launch_early(Operations operations);
    void launch(std::span<const stream::Step> steps) { launch(_stream->stream, steps); }
    void launch(gpu::StreamHandle stream, std::span<const stream::Step> steps);
    [[nodiscard]] std::vector<stream::Step> take_held_back(std::vector<std::shared_ptr<Enqueued>>& operations);
    [[nodiscard]] bool hold_back(std::vector<std::shared_ptr<Enqueued>> operations, std::uint64_t capture,
                                 std::vector<stream::Step>& steps);
    [[nodiscard]] bool begin_replays();
    void let_others_go() const;
    void release();
    void destroy_handles() noexcept;
    [[nodiscard]] std::uint64_t entry(const std::uint64_t index) const noexcept {
        return __atomic_load_n(&_words->arrived[index % _words->arrived.size()], __ATOMIC_ACQUIRE);
    }
    /// Whether the ring has the entry with this index.
    [[nodiscard]] bool has_arrived(const std::uint64_t index) const noexcept {
        return entry(index) >> 32 == static_cast<std::uint32_t>(index + 1);
    }
    void queue_loads(Operations operations);
    void arrive(stream::Step& step, std::uint64_t number) const noexcept;
    void add_wait_for_replay_before(const Enqueued& operation, stream::Step& step) const noexcept;
    [[nodiscard]] stream::Step arrive_with(Operations operations, bool is_captured, std::uint64_t number);
    void enqueue_captured(Operations operations, bool waits, std::uint64_t capture);
    void take_slots(Operations operations, std::uint64_t capture);
    void give_slots_back(Operations operations) noexcept;
    void queue_waits(Operations operations, std::vector<stream::Step>& steps);
    [[nodiscard]] bool wait_for_memory();
    [[noreturn]] static void refuse_memory();
    void begin(const std::shared_ptr<Enqueued>& operation);
    void begin_arrived(std::uint32_t entry);
    void begin_next();
    void end(Enqueued& operation);
    [[nodiscard]] bool is_over(Enqueued& operation);
    void settle(Enqueued& operation);
    static void fill_status(Enqueued& operation) noexcept;
    void note_fetched(Enqueued& operation) noexcept;
    void spend_unfetched(std::size_t operations);
    void give_words_back(const Enqueued& operation) noexcept;
    [[nodiscard]] bool has_words_for(std::size_t operations);
    void forget_graphs();
    void clear_counters(Operations operations);
    void begin_again(const std::shared_ptr<Enqueued>& operation);
    void open_channel(Enqueued& operation, const stream::Channel& channel, transport::ChannelState* state);
    void leave_channel(Enqueued& operation) noexcept;
    [[nodiscard]] bool look_after_channels();
    void report_if_late(Enqueued& operation, std::uint32_t replay) const;
    void let_pass();
    void look_after_device(std::chrono::steady_clock::time_point& looked) noexcept;
    [[nodiscard]] bool device_works() noexcept;
    void give_up() noexcept;
    [[nodiscard]] NodePeers::Peer placed_peer(int rank) const noexcept;
    void clean_up() noexcept;

    const MPI_Comm _communicator;
    const std::shared_ptr<ProgramStream> _stream;
    gpu::Runtime& _runtime;
    stream::StepKernel& _kernel;
    std::shared_ptr<StreamCcl> _library;
    Words* _words = nullptr;
    std::mutex _calls;  ///< held while steps are queued: a full launch queue waits, and the thread goes on meanwhile
    std::uint64_t _last = 0;
    /// Operations that began at once, of which no step that was queued later says that the stream has come to them.
    std::atomic<std::uint64_t> _unannounced{0};
    std::uint64_t _announced_to = 0;            ///< the last operation of which a step says so
    std::atomic<std::uint64_t> _arrived_to{0};  ///< the same, when the step has run
    std::atomic<std::uint64_t> _open{0};        ///< operations that are not over
    mutable std::mutex _mutex;
    std::deque<std::shared_ptr<Enqueued>> _queued;
    std::atomic<bool> _any_queued{false};
    std::vector<std::shared_ptr<Enqueued>> _under_way;
    std::vector<std::shared_ptr<Enqueued>> _arrived;        ///< in a graph, and not begun
    std::vector<std::shared_ptr<Enqueued>> _with_channels;  ///< that have or had one
    std::vector<std::size_t> _free_words;                   ///< of operations that are not captured
    std::array<std::uint32_t, kMost> _turns{};              ///< of each slot's last operation
    std::deque<std::shared_ptr<Enqueued>> _unfetched;       ///< sends that are over; the place is in use
    std::atomic<std::uint64_t> _ended{0};                   ///< counts operations that are over
    std::uint64_t _pass = 0;                                ///< number of the last copies back
    /// What the stream still reads, in its order.
    std::deque<Passing> _to_pass;
    std::atomic<bool> _passing{false};              ///< there are some
    std::vector<std::shared_ptr<Enqueued>> _spent;  ///< that a call of the program frees
    std::atomic<bool> _any_spent{false};
    std::atomic<bool> _given_up{false};
    std::atomic<std::uint64_t> _taken{0};         ///< entries of the ring
    std::map<std::uint32_t, Captured> _captured;  ///< by number
    std::uint32_t _last_captured = 0;
    std::vector<std::size_t> _free_slots;
    std::atomic<bool> _has_graphs{false};
    /// Captured operations that go into one kernel with those of the next call, which is most often the wait for them.
    struct {
        std::vector<stream::Step> steps;
        std::vector<std::shared_ptr<Enqueued>> operations;
        std::uint64_t capture = 0, point = 0;
        gpu::EventHandle before;  ///< the place of the operations in the capture
    } _held;
    gpu::StreamHandle _beside;  ///< for those that go beside what the program has captured meanwhile
    gpu::EventHandle _past;     ///< they have gone
    /// Of the device: the counter of the ring's entries, and the counters of replays.
    std::uint32_t* _counters = nullptr;
    std::uint32_t *_of_steps = nullptr, *_of_own_steps = nullptr;  ///< for the launches of each stream
    stream::Channel* _channels = nullptr;                          ///< of the device, by slots
    std::vector<NodePeers::Peer> _peers;  ///< by rank; those that places reach have a transport
    bool _any_places = false;
    std::atomic<bool> _waits_for_places{true};
    gpu::StreamHandle _own;  ///< for copies back that are not in stream order, and for questions
    std::optional<std::pair<int, std::string>> _failure;  ///< class and text
    std::atomic<bool> _has_failed{false};                 ///< there is a failure
};

}  // namespace awaken::AWAKEN_ABI
