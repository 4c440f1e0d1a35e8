// SPDX-License-Identifier: Apache-2.0
// Random programs of operations that streams order. From a seed every rank derives the same program; it is carried out
// by MPI's stream API on memory of drawn kinds, or, with --host, by plain functions on host memory. Output and options
// are those of random_program.cpp: the run with --host is the reference.
//
// A program is drawn first, with all its memory, and then carried out: an allocation may wait for the GPU.
//
// Why a program cannot deadlock: it is a list of events, and every rank makes its calls in that order. A call or a
// stream waits for operations of earlier events only, so the earliest event that is not over can proceed.
// - A stream may be held up. A rank lets all its streams go before each call that may wait. A call that queues waits
//   where the driver holds no more work of the stream: a type with gaps takes a copy for each block, and the copies
//   back come with the wait.
// - A plain call on a communicator waits for the communicator's stream. So where one event has several operations of a
//   rank on a communicator, its plain calls come before the queued ones.
// - Collectives are queued by all ranks or by none, and only where all ranks have a stream.
//
// Why the result is determined: operations of a communicator match in the order of the calls. Tags are unique, but for
// those that a receive leaves open, and a receive never leaves source and tag open at once. An operation uses memory
// that no open operation uses, and whose last use the stream or the call is known to come after.
#define AWAKEN_WEAK_MPIX
#include "awaken/mpix_stream.h"

#include <deque>

#include "random.h"
#include "types.h"

using namespace ranks;

namespace {

constexpr int kMostStreams = 3;
constexpr int kNoStream = -1;
constexpr int kAnyStream = -2;

enum class SendMode { queued, queued_nonblocking, standard, synchronous, nonblocking };
enum class ReceiveMode { queued, queued_nonblocking, standard, nonblocking, probe, probe_and_queued, mprobe };
enum class Operation { barrier, bcast, allreduce, allgather, alltoall, reduce_scatter_block, neighbours, count };
enum class WaitMode { queued_each, queued_all, all, each, any, some, test_all, count };

/// A communicator. All ranks know who belongs to it and who has a stream there.
struct Queue {
    MPI_Comm comm = MPI_COMM_NULL;
    std::vector<int> members;              ///< world ranks in the communicator's order
    std::vector<int> streams;              ///< of each world rank; kNoStream: it makes plain calls alone
    std::vector<std::vector<bool>> edges;  ///< of the graph, from and to ranks of the communicator; empty: no topology
    bool is_freed_early = false;
    [[nodiscard]] int size() const { return static_cast<int>(members.size()); }
    [[nodiscard]] int rank_of(int world_rank) const {
        const auto found = std::find(members.begin(), members.end(), world_rank);
        return found == members.end() ? -1 : static_cast<int>(found - members.begin());
    }
    [[nodiscard]] bool all_have_streams() const {
        return std::all_of(members.begin(), members.end(),
                           [this](int member) { return streams[static_cast<std::size_t>(member)] != kNoStream; });
    }
};

/// All arithmetic is of unsigned numbers, which have no overflow. Neither order nor grouping changes the result.
template <int stride>
void add_and_count(void* in, void* inout, int* count, MPI_Datatype*) {
    for (int i = 0; i < *count; ++i) {
        unsigned a = 0, b = 0;
        std::memcpy(&a, static_cast<int*>(in) + stride * i, sizeof a);
        std::memcpy(&b, static_cast<int*>(inout) + stride * i, sizeof b);
        b += a + 1;
        std::memcpy(static_cast<int*>(inout) + stride * i, &b, sizeof b);
    }
}

/// One program on one rank.
class Program {
  public:
    Program(Gpu& gpu, std::uint64_t seed, const Options& options)
        : _gpu(gpu),
          _options(options),
          _is_plain(options.host || !gpu.present()),
          _seed(seed),
          _random(combine(seed, 2)) {
        MPI_Comm_rank(MPI_COMM_WORLD, &_rank);
        MPI_Comm_size(MPI_COMM_WORLD, &_size);
        make_streams();
        make_communicators();
    }
    ~Program() {
        for (Queue& queue : _queues) {
            if (queue.comm != MPI_COMM_NULL) {
                MPI_Comm_free(&queue.comm);
            }
        }
        for (Stream& stream : _streams) {
            if (stream.handle != nullptr) {
                _gpu.destroy_stream(stream.handle);
            }
        }
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    /// Carries it out and returns the hash of this rank's memory and notes.
    std::uint64_t run() {
        const int events = 10 + _random.below(25);
        for (_event = 0; _event < std::min(events, _options.events); ++_event) {
            draw_event();
        }
        draw_end();
        for (const Action& action : _actions) {
            if (_options.verbose) {
                std::fprintf(stderr, "[%d] event %d: %s\n", _rank, action.event, action.text.c_str());
            }
            action.call();
        }
        MPI_Barrier(MPI_COMM_WORLD);
        std::uint64_t hash = _notes;
        for (const Memory& memory : _memory) {
            const std::vector<std::byte> image = memory.buffer->read(0, memory.compared);
            hash = combine(hash, hash_bytes(image.data(), image.size()));
            const std::string damage = memory.buffer->guard_damage();
            if (!damage.empty()) {
                std::printf("FAIL program %llu rank %d: guard of %s memory: %s\n",
                            static_cast<unsigned long long>(_seed), _rank, to_string(memory.buffer->kind()),
                            damage.c_str());
            }
        }
        return hash;
    }

  private:
    struct Stream {
        void* handle = nullptr;
        bool is_blocking = false;  ///< copies of the default stream wait for it, so it is never held up
        bool will_be_held = false;
        std::shared_ptr<void> held;
        /// About so many copies and kernels, since the program has last waited for it, and of open operations.
        int queued = 0;
    };
    /// A call of the program. What it uses is settled when it is drawn.
    struct Action {
        int event;
        std::string text;
        std::function<void()> call;
    };
    struct Memory {
        std::unique_ptr<Buffer> buffer;
        Kind kind;                  ///< as drawn; host memory has it, too, so that both runs draw the same
        std::size_t compared;       ///< its first bytes
        bool is_busy = false;       ///< an operation that is not over has it
        int stream = kNoStream;     ///< in whose order it is free; kNoStream: for all
        std::size_t queue = 0;      ///< whose operation used it last
        int copies = 1;             ///< of the operation that used it last
        int kept_for = kAnyStream;  ///< a persistent request has it, and copies in this stream
        bool is_copied = false;     ///< a copy in the stream has used it since: a plain call does not wait for that
    };
    struct Pending {
        MPI_Request* request;
        std::size_t memory;
        std::size_t queue;
        bool is_queued;
        bool is_persistent;
        MPI_Datatype type;  ///< of a receive whose status is noted; else null
        int number;         ///< of the note
    };
    /// Memory of a random layout for some elements of a basic type.
    struct Side {
        std::byte* address;
        int count;
        MPI_Datatype type;
        std::size_t memory;
    };
    /// A persistent send and its receive.
    struct Channel {
        std::size_t queue;
        int from, to, tag;
        MPI_Request* request[2] = {};  ///< of this rank: the send, the receive
        std::size_t memory[2] = {};
        bool is_queued[2] = {};
    };

    // ---- before the first event -------------------------------------------------------------------------------------
    void make_streams() {
        const int count = 1 + _random.below(kMostStreams);
        _streams.resize(static_cast<std::size_t>(count));
        for (Stream& stream : _streams) {
            stream.is_blocking = _random.chance(25);
            if (!_is_plain) {
                stream.handle = _gpu.make_stream(stream.is_blocking);
            }
        }
    }

    void make_communicators() {
        Queue plain;
        plain.members.resize(static_cast<std::size_t>(_size));
        for (int rank = 0; rank < _size; ++rank) {
            plain.members[static_cast<std::size_t>(rank)] = rank;
        }
        plain.streams.assign(static_cast<std::size_t>(_size), kNoStream);
        MPI_Comm_dup(MPI_COMM_WORLD, &plain.comm);
        _queues.push_back(plain);
        const int count = 1 + _random.below(4);
        for (int at = 0; at < count; ++at) {
            make_queue(at);
        }
    }

    void make_queue(int at) {
        const int draw = _random.below(100);
        Queue queue;
        queue.is_freed_early = _random.chance(30);
        const bool all_have_streams = _random.chance(70);
        for (int rank = 0; rank < _size; ++rank) {
            const int stream = _random.below(static_cast<int>(_streams.size()));
            queue.streams.push_back(!all_have_streams && _random.chance(30) ? kNoStream : stream);
        }
        if (draw < 15 && at > 0) {  // a copy has its original's streams
            const Queue& original = _queues.back();
            queue.members = original.members;
            queue.streams = original.streams;
            queue.edges = original.edges;
            if (original.comm != MPI_COMM_NULL) {
                MPI_Comm_dup(original.comm, &queue.comm);
            }
            _queues.push_back(queue);
            return;
        }
        MPI_Comm parent = MPI_COMM_NULL;
        if (draw < 55) {
            queue.members = _queues[0].members;
            MPI_Comm_dup(MPI_COMM_WORLD, &parent);
        } else if (draw < 75) {
            // Some ranks, in another order.
            const int colours = 1 + _random.below(2);
            for (int rank = _size - 1; rank >= 0; --rank) {
                if (rank % colours == 0) {
                    queue.members.push_back(rank);
                }
            }
            MPI_Comm_split(MPI_COMM_WORLD, _rank % colours == 0 ? 0 : MPI_UNDEFINED, -_rank, &parent);
        } else {
            queue.members = _queues[0].members;
            std::vector<int> sources, targets;
            for (int from = 0; from < _size; ++from) {
                queue.edges.emplace_back();
                for (int to = 0; to < _size; ++to) {
                    queue.edges.back().push_back(_random.chance(60));
                    if (queue.edges.back().back() && to == _rank) {
                        sources.push_back(from);
                    }
                    if (queue.edges.back().back() && from == _rank) {
                        targets.push_back(to);
                    }
                }
            }
            MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, static_cast<int>(sources.size()), sources.data(),
                                           MPI_UNWEIGHTED, static_cast<int>(targets.size()), targets.data(),
                                           MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &parent);
        }
        if (parent != MPI_COMM_NULL) {
            give_stream(parent, queue);
            MPI_Comm_free(&parent);
        }
        _queues.push_back(queue);
    }

    void give_stream(MPI_Comm parent, Queue& queue) {
        if (_is_plain) {
            MPI_Comm_dup(parent, &queue.comm);
            return;
        }
        MPIX_Stream number = MPIX_STREAM_NULL;
        if (const int own = queue.streams[static_cast<std::size_t>(_rank)]; own != kNoStream) {
            const Stream& stream = _streams[static_cast<std::size_t>(own)];
            MPI_Info info;
            MPI_Info_create(&info);
            MPI_Info_set(info, "type", _gpu.is_hip() ? "hipStream_t" : "cudaStream_t");
            MPIX_Info_set_hex(info, "value", &stream.handle, sizeof stream.handle);
            MPIX_Stream_create(info, &number);
            MPI_Info_free(&info);
        }
        MPIX_Stream_comm_create(parent, number, &queue.comm);
        if (number != MPIX_STREAM_NULL) {
            MPIX_Stream_free(&number);
        }
    }

    // ---- what is drawn ----------------------------------------------------------------------------------------------
    void draw_event() {
        const auto q = static_cast<std::size_t>(_random.below(static_cast<int>(_queues.size())));
        const int draw = _random.below(100);
        if (draw < 42) {
            message(q);
        } else if (draw < 52) {
            exchange(q);
        } else if (draw < 58) {
            cross();
        } else if (draw < 76) {
            collective(q);
        } else if (draw < 86) {
            start_round(q);
        } else if (draw < 96) {
            Random random = own_random(50 + _rank);
            const int share = 1 + random.below(4);
            wait_for(static_cast<int>(_pending.size()) / share, random);
        } else {
            Random random = own_random(60 + _rank);
            finish_stream(random.below(static_cast<int>(_streams.size())));
        }
        Random random = own_random(70 + _rank);
        if (random.chance(20)) {
            release(random.below(static_cast<int>(_streams.size())));
        }
    }

    void draw_end() {
        Random random = own_random(80 + _rank);
        wait_for(static_cast<int>(_pending.size()), random);
        let_go();
        const bool frees_requests = !_channels.empty();
        for (std::size_t q = 1; q < _queues.size(); ++q) {
            // Requests go before their communicator, when their rounds are over.
            if (_queues[q].is_freed_early && !frees_requests && _queues[q].comm != MPI_COMM_NULL) {
                act("free a communicator", [this, q] { MPI_Comm_free(&_queues[q].comm); });
            }
        }
        for (int stream = 0; stream < static_cast<int>(_streams.size()); ++stream) {
            finish_stream(stream);
        }
        for (Channel& channel : _channels) {
            for (MPI_Request* const request : channel.request) {
                if (request != nullptr) {
                    act("free a request", [request] { MPI_Request_free(request); });
                }
            }
        }
        for (std::function<void()>& note : _notes_at_end) {
            act("note a status", note);
        }
    }

    /// Draws that only one rank needs come from a source of their own, so that all ranks stay in step.
    [[nodiscard]] Random own_random(int role) const {
        return Random(combine(combine(_seed, static_cast<std::uint64_t>(_event)), static_cast<std::uint64_t>(role)));
    }

    void act(std::string text, std::function<void()> call) {
        _actions.push_back({_event, std::move(text), std::move(call)});
    }

    [[nodiscard]] int own_stream(std::size_t q) const { return _queues[q].streams[static_cast<std::size_t>(_rank)]; }
    [[nodiscard]] MPI_Comm comm_of(std::size_t q) const { return _queues[q].comm; }

    // ---- streams ----------------------------------------------------------------------------------------------------
    void maybe_hold(std::size_t q, Random& random) {
        const int own = own_stream(q);
        if (own == kNoStream || !random.chance(25) || holds_much()) {
            return;
        }
        Stream& stream = _streams[static_cast<std::size_t>(own)];
        if (stream.is_blocking || std::exchange(stream.will_be_held, true)) {
            return;
        }
        if (!_is_plain) {
            act(format("hold stream %d up", own), [this, &stream] { stream.held = _gpu.hold(stream.handle); });
        }
    }
    void release(int number) {
        Stream& stream = _streams[static_cast<std::size_t>(number)];
        if (std::exchange(stream.will_be_held, false) && !_is_plain) {
            act(format("let stream %d go", number), [&stream] { stream.held.reset(); });
        }
    }
    /// Comes before each call that may wait.
    void let_go() {
        for (int stream = 0; stream < static_cast<int>(_streams.size()); ++stream) {
            release(stream);
        }
    }
    /// Comes before a call that queues so many copies. A driver holds some thousand in a stream.
    void before_queued(std::size_t q, int copies) {
        _streams[static_cast<std::size_t>(own_stream(q))].queued += work_with(copies);
        if (holds_much()) {
            let_go();
        }
    }
    /// An operation's copies in, copies back, and steps.
    static int work_with(int copies) { return 6 + 2 * copies; }
    [[nodiscard]] bool holds_much() const {
        constexpr int kMuch = 300;
        return std::any_of(_streams.begin(), _streams.end(),
                           [](const Stream& stream) { return stream.queued > kMuch; });
    }
    /// How many copies bring elements of a type into a stream's operation, at most.
    static int copies_of(MPI_Datatype type, int elements) { return is_named(type) ? 1 : elements; }
    void before_plain(std::size_t q, bool waits) {
        if (waits || own_stream(q) != kNoStream) {
            let_go();
        }
    }
    void finish_stream(int number) {
        let_go();
        Stream& stream = _streams[static_cast<std::size_t>(number)];
        stream.queued = 0;
        // The waits for open operations bring their copies back later, maybe into a stream that is held up then.
        for (const Pending& open : _pending) {
            if (open.is_queued && own_stream(open.queue) == number) {
                stream.queued += work_with(_memory[open.memory].copies);
            }
        }
        if (!_is_plain) {
            act(format("finish stream %d", number), [this, &stream] { _gpu.finish_stream(stream.handle); });
        }
        for (Memory& memory : _memory) {
            if (memory.stream == number && !memory.is_busy) {
                memory.stream = kNoStream;
            }
        }
    }

    // ---- memory -----------------------------------------------------------------------------------------------------
    std::size_t allocate(std::size_t bytes) {
        const std::uint64_t draw =
            combine(combine(_seed, 78), combine(static_cast<std::uint64_t>(_rank), _memory.size()));
        // Half of it is ordinary device memory.
        const Kind kind = draw % 2 == 0 ? Kind::device : static_cast<Kind>(draw / 2 % kKinds);
        Memory memory{};
        memory.buffer = std::make_unique<Buffer>(_gpu, _is_plain ? Kind::host : kind, bytes);
        memory.kind = kind;
        memory.compared = bytes;
        memory.buffer->fill(draw);
        _memory.push_back(std::move(memory));
        return _memory.size() - 1;
    }
    [[nodiscard]] std::byte* data(std::size_t memory) const { return _memory[memory].buffer->data(); }

    [[nodiscard]] bool is_free(const Memory& memory, std::size_t q, bool is_queued) const {
        if (memory.is_busy || memory.compared != memory.buffer->size()) {
            return false;
        }
        if (memory.kept_for != kAnyStream && (memory.kept_for == kNoStream || memory.kept_for != own_stream(q))) {
            return false;
        }
        if (memory.stream == kNoStream) {
            return true;
        }
        return memory.stream == own_stream(q) && (is_queued || (memory.queue == q && !memory.is_copied));
    }
    /// An operation whose end the stream waits for, or the call, has used the memory.
    void used(std::size_t m, std::size_t q, bool is_queued) {
        Memory& memory = _memory[m];
        memory.is_busy = false;
        memory.stream = is_queued ? own_stream(q) : kNoStream;
        memory.queue = q;
        memory.is_copied = false;
    }

    /// Some bytes of other memory come into this, in the order of the stream.
    void maybe_copy(std::size_t target, std::size_t q, Random& random) {
        const auto copied_in_streams = [](Kind kind) {  // else the call may wait for the stream
            return kind == Kind::device || kind == Kind::interior || kind == Kind::managed || kind == Kind::pinned;
        };
        if (!random.chance(40) || !copied_in_streams(_memory[target].kind)) {
            return;
        }
        std::vector<std::size_t> sources;
        for (std::size_t m = 0; m < _memory.size(); ++m) {
            if (m != target && copied_in_streams(_memory[m].kind) && is_free(_memory[m], q, true)) {
                sources.push_back(m);
            }
        }
        if (sources.empty() || !is_free(_memory[target], q, true)) {
            return;
        }
        const std::size_t source = sources[static_cast<std::size_t>(random.below(static_cast<int>(sources.size())))];
        const std::size_t bytes = std::min(_memory[source].buffer->size(), _memory[target].buffer->size());
        std::byte *const to = data(target), *const from = data(source);
        const int number = own_stream(q);
        if (_is_plain) {
            act(format("copy %zu bytes", bytes), [=] { std::memcpy(to, from, bytes); });
        } else {
            void* const stream = _streams[static_cast<std::size_t>(number)].handle;
            act(format("copy %zu bytes in stream %d", bytes, number),
                [=, this] { _gpu.copy_in(stream, to, from, bytes); });
        }
        for (const std::size_t m : {source, target}) {
            used(m, q, true);
            _memory[m].is_copied = true;
        }
    }

    /// Memory and a random layout for `elements` basic elements.
    Side random_side(Random& random, MPI_Datatype basic, int elements, std::size_t q, bool is_queued,
                     bool may_be_used = true) {
        Side side{nullptr, elements, basic, 0};
        if (elements > 0 && elements <= 4000 && random.chance(50)) {
            int count = 1;
            for (const int candidate : {2, 3, 4}) {
                if (elements % candidate == 0 && random.chance(40)) {
                    count = candidate;
                }
            }
            side.type = random_type(random, basic, elements / count, random.chance(25));
            side.count = count;
        }
        const Room room(side.type, side.count);
        side.memory = _memory.size();
        if (may_be_used && random.chance(30)) {  // what an earlier operation has used
            for (std::size_t m = 0; m < _memory.size(); ++m) {
                if (_memory[m].kept_for == kAnyStream && is_free(_memory[m], q, is_queued) &&
                    _memory[m].buffer->size() >= room.bytes) {
                    side.memory = m;
                }
            }
        }
        if (side.memory == _memory.size()) {
            allocate(room.bytes);
        }
        side.address = data(side.memory) + room.origin;
        _memory[side.memory].copies = copies_of(side.type, elements);
        if (is_queued) {
            before_queued(q, _memory[side.memory].copies);
            maybe_copy(side.memory, q, random);
        }
        _memory[side.memory].is_busy = true;
        return side;
    }
    int* ints(int count, std::size_t q, bool is_queued, Random& random, std::size_t& memory) {
        memory = allocate(static_cast<std::size_t>(count) * sizeof(int));
        if (is_queued) {
            before_queued(q, 1);
            maybe_copy(memory, q, random);
        }
        _memory[memory].is_busy = true;
        return reinterpret_cast<int*>(data(memory));
    }

    static bool is_named(MPI_Datatype type) {
        int integers = 0, addresses = 0, types = 0, combiner = MPI_COMBINER_NAMED;
        MPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
        return combiner == MPI_COMBINER_NAMED;
    }
    /// The type goes, right after the call or at the end of the program.
    void give_up_type(MPI_Datatype type, bool at_once) {
        if (is_named(type)) {
            return;
        }
        if (at_once) {
            act("free a type", [type] {
                MPI_Datatype gone = type;
                MPI_Type_free(&gone);
            });
        } else {
            _types.emplace_back(type);
        }
    }
    /// A type whose elements do not overlap.
    static MPI_Datatype spaced(MPI_Datatype type) {
        MPI_Aint lower = 0, extent = 0;
        MPI_Type_get_true_extent(type, &lower, &extent);
        MPI_Datatype made = MPI_DATATYPE_NULL;
        MPI_Type_create_resized(type, lower, (extent + 7) / 8 * 8, &made);
        MPI_Type_commit(&made);
        MPI_Type_free(&type);
        return made;
    }

    // ---- notes and completion ---------------------------------------------------------------------------------------
    void note_status(int number, const MPI_Status& status, MPI_Datatype type) {
        MPI_Count elements = 0, bytes = 0;
        MPI_Get_elements_x(&status, type, &elements);
        MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
        const std::uint64_t parts[] = {static_cast<std::uint64_t>(number),
                                       static_cast<std::uint64_t>(status.MPI_SOURCE),
                                       static_cast<std::uint64_t>(status.MPI_TAG), static_cast<std::uint64_t>(elements),
                                       static_cast<std::uint64_t>(bytes)};
        std::uint64_t note = 0;
        for (const std::uint64_t part : parts) {
            note = combine(note, part);
        }
        if (_options.verbose) {
            std::fprintf(stderr, "[%d] status %d: source %d tag %d elements %lld bytes %lld\n", _rank, number,
                         status.MPI_SOURCE, status.MPI_TAG, static_cast<long long>(elements),
                         static_cast<long long>(bytes));
        }
        _notes += note;  // a sum, because requests complete in any order
    }
    /// A status that is there when the streams are over. Null: nothing is to be told.
    MPI_Status* later_status(MPI_Datatype type, int number) {
        if (type == MPI_DATATYPE_NULL) {
            return MPI_STATUS_IGNORE;
        }
        MPI_Status* const status = &_statuses.emplace_back();
        _notes_at_end.emplace_back([=, this] { note_status(number, *status, type); });
        return status;
    }
    MPI_Request* new_request() { return &_requests.emplace_back(MPI_REQUEST_NULL); }
    void add_pending(MPI_Request* request, const Side& side, std::size_t q, bool is_queued, MPI_Datatype noted) {
        _pending.push_back({request, side.memory, q, is_queued, false, noted, _event});
    }

    void wait_for(int count, Random& random) {
        std::vector<Pending> chosen;
        for (int at = 0; at < count; ++at) {
            const auto index = static_cast<std::size_t>(random.below(static_cast<int>(_pending.size())));
            chosen.push_back(_pending[index]);
            _pending.erase(_pending.begin() + static_cast<std::ptrdiff_t>(index));
        }
        const auto mode = static_cast<WaitMode>(random.below(static_cast<int>(WaitMode::count)));
        const bool prefers_queued = mode == WaitMode::queued_each || mode == WaitMode::queued_all || random.chance(30);
        std::vector<Pending> queued, plain;
        for (const Pending& each : chosen) {
            const bool by_stream = each.is_queued && (each.is_persistent || prefers_queued);
            (by_stream ? queued : plain).push_back(each);
        }
        if (!queued.empty()) {
            wait_in_streams(queued, mode == WaitMode::queued_each || random.chance(30), random);
        }
        if (!plain.empty()) {
            wait_in_calls(plain, mode);
        }
    }

    void wait_in_streams(const std::vector<Pending>& all, bool is_each, Random& random) {
        const bool is_plain = _is_plain;
        if (is_each) {
            for (const Pending& each : all) {
                MPI_Status* const status = later_status(random.chance(70) ? each.type : MPI_DATATYPE_NULL, each.number);
                MPI_Request* const request = each.request;
                act("wait for one in its stream",
                    [=] { is_plain ? MPI_Wait(request, status) : MPIX_Wait_enqueue(request, status); });
            }
        } else {
            // With requests that are null in between.
            std::vector<MPI_Request*> requests;
            auto& statuses = _arrays.emplace_back();
            statuses.reserve(2 * all.size());  // addresses stay
            const bool are_told = random.chance(70);
            for (const Pending& each : all) {
                if (random.chance(20)) {
                    requests.push_back(nullptr);
                    statuses.emplace_back();
                    if (are_told) {
                        note_at_end(statuses.back(), MPI_BYTE, 1000 + each.number);
                    }
                }
                requests.push_back(each.request);
                statuses.emplace_back();
                if (are_told && each.type != MPI_DATATYPE_NULL) {
                    note_at_end(statuses.back(), each.type, each.number);
                }
            }
            MPI_Status* const told = are_told ? statuses.data() : MPI_STATUSES_IGNORE;
            act(format("wait for %zu in their streams", all.size()), [=] {
                std::vector<MPI_Request> array;
                for (const MPI_Request* const request : requests) {
                    array.push_back(request == nullptr ? MPI_REQUEST_NULL : *request);
                }
                const auto count = static_cast<int>(array.size());
                is_plain ? MPI_Waitall(count, array.data(), told) : MPIX_Waitall_enqueue(count, array.data(), told);
            });
        }
        for (const Pending& each : all) {
            used(each.memory, each.queue, true);
        }
    }
    void note_at_end(const MPI_Status& status, MPI_Datatype type, int number) {
        _notes_at_end.emplace_back([=, this, &status] { note_status(number, status, type); });
    }

    void wait_in_calls(const std::vector<Pending>& all, WaitMode mode) {
        let_go();
        act(format("wait for %zu, mode %d", all.size(), static_cast<int>(mode)), [=, this] {
            std::vector<MPI_Request> requests;
            for (const Pending& each : all) {
                requests.push_back(*each.request);
            }
            const auto count = static_cast<int>(requests.size());
            std::vector<MPI_Status> statuses(requests.size());
            std::vector<int> indices(requests.size());
            const auto finish = [&](int index, const MPI_Status& status) {
                const Pending& each = all[static_cast<std::size_t>(index)];
                if (each.type != MPI_DATATYPE_NULL) {
                    note_status(each.number, status, each.type);
                }
            };
            switch (mode) {
                case WaitMode::any:
                    for (int index = 0, left = count; left > 0; --left) {
                        MPI_Waitany(count, requests.data(), &index, statuses.data());
                        finish(index, statuses[0]);
                    }
                    break;
                case WaitMode::some:
                    for (int done = 0, left = count; left > 0; left -= done) {
                        MPI_Waitsome(count, requests.data(), &done, indices.data(), statuses.data());
                        for (int at = 0; at < done; ++at) {
                            finish(indices[static_cast<std::size_t>(at)], statuses[static_cast<std::size_t>(at)]);
                        }
                    }
                    break;
                case WaitMode::each:
                    for (int at = 0; at < count; ++at) {
                        MPI_Wait(&requests[static_cast<std::size_t>(at)], statuses.data());
                        finish(at, statuses[0]);
                    }
                    break;
                default:
                    if (mode == WaitMode::test_all) {
                        for (int flag = 0; flag == 0;) {
                            MPI_Testall(count, requests.data(), &flag, statuses.data());
                        }
                    } else {
                        MPI_Waitall(count, requests.data(), statuses.data());
                    }
                    for (int at = 0; at < count; ++at) {
                        finish(at, statuses[static_cast<std::size_t>(at)]);
                    }
            }
        });
        for (const Pending& each : all) {
            used(each.memory, each.queue, false);
        }
    }

    // ---- messages ---------------------------------------------------------------------------------------------------
    void message(std::size_t q) {
        const Queue& queue = _queues[q];
        const int from = _random.below(queue.size()), to = _random.below(queue.size());
        const MPI_Datatype basic = basic_type(_random.below(100));
        const int elements = random_elements(_random);
        const bool open_source = _random.chance(20), open_tag = !open_source && _random.chance(20);
        const int me = queue.rank_of(_rank);
        if (me != from && me != to) {
            return;
        }
        Random sending = own_random(1), receiving = own_random(2);
        const bool has_stream = own_stream(q) != kNoStream;
        auto send_mode =
            static_cast<SendMode>(has_stream && sending.chance(75) ? sending.below(2) : 2 + sending.below(3));
        auto receive_mode =
            static_cast<ReceiveMode>(has_stream && receiving.chance(75) ? receiving.below(2) : 2 + receiving.below(5));
        if (from == to) {  // nobody else would receive it, and a plain call does not come after a queued one
            const bool is_queued = send_mode <= SendMode::queued_nonblocking;
            send_mode = is_queued ? SendMode::queued_nonblocking : SendMode::nonblocking;
            if (is_queued && receive_mode > ReceiveMode::queued_nonblocking) {
                receive_mode = ReceiveMode::queued;
            }
        }
        if (receive_mode == ReceiveMode::probe_and_queued && !has_stream) {
            receive_mode = ReceiveMode::probe;
        }
        if (me == from) {
            send(q, to, send_mode, basic, elements, sending);
        }
        if (me == to) {
            receive(q, from, receive_mode, basic, elements, open_source, open_tag, receiving);
        }
    }

    void send(std::size_t q, int to, SendMode mode, MPI_Datatype basic, int elements, Random& random) {
        const bool is_queued = mode <= SendMode::queued_nonblocking;
        if (is_queued) {
            maybe_hold(q, random);
        } else {
            before_plain(q, mode != SendMode::nonblocking);
        }
        const Side side = random_side(random, basic, elements, q, is_queued);
        const bool is_large = random.chance(20), frees_type = random.chance(50);
        const MPI_Comm comm = comm_of(q);
        const int tag = _event;
        MPI_Request* const request = new_request();
        const bool is_plain = _is_plain;
        switch (mode) {
            case SendMode::queued:
                act(format("queue a send to %d, %d of communicator %zu", to, elements, q), [=] {
                    if (is_plain) {
                        MPI_Send(side.address, side.count, side.type, to, tag, comm);
                    } else if (is_large) {
                        MPIX_Send_enqueue_c(side.address, side.count, side.type, to, tag, comm);
                    } else {
                        MPIX_Send_enqueue(side.address, side.count, side.type, to, tag, comm);
                    }
                });
                used(side.memory, q, true);
                break;
            case SendMode::queued_nonblocking:
                act(format("queue an isend to %d, %d of communicator %zu", to, elements, q),
                    [=] { queue_isend(is_plain, is_large, side, to, tag, comm, request); });
                add_pending(request, side, q, true, MPI_DATATYPE_NULL);
                break;
            case SendMode::nonblocking:
                act(format("isend to %d, %d of communicator %zu", to, elements, q),
                    [=] { MPI_Isend(side.address, side.count, side.type, to, tag, comm, request); });
                add_pending(request, side, q, false, MPI_DATATYPE_NULL);
                break;
            case SendMode::standard:
            case SendMode::synchronous:
                act(format("send to %d, %d of communicator %zu", to, elements, q), [=] {
                    mode == SendMode::standard ? MPI_Send(side.address, side.count, side.type, to, tag, comm)
                                               : MPI_Ssend(side.address, side.count, side.type, to, tag, comm);
                });
                used(side.memory, q, false);
                break;
        }
        give_up_type(side.type, frees_type);
    }
    static void queue_isend(bool is_plain, bool is_large, const Side& side, int to, int tag, MPI_Comm comm,
                            MPI_Request* request) {
        if (is_plain) {
            MPI_Isend(side.address, side.count, side.type, to, tag, comm, request);
        } else if (is_large) {
            MPIX_Isend_enqueue_c(side.address, side.count, side.type, to, tag, comm, request);
        } else {
            MPIX_Isend_enqueue(side.address, side.count, side.type, to, tag, comm, request);
        }
    }
    static void queue_ireceive(bool is_plain, bool is_large, const Side& side, int from, int tag, MPI_Comm comm,
                               MPI_Request* request) {
        if (is_plain) {
            MPI_Irecv(side.address, side.count, side.type, from, tag, comm, request);
        } else if (is_large) {
            MPIX_Irecv_enqueue_c(side.address, side.count, side.type, from, tag, comm, request);
        } else {
            MPIX_Irecv_enqueue(side.address, side.count, side.type, from, tag, comm, request);
        }
    }
    static void queue_receive(bool is_plain, bool is_large, const Side& side, int from, int tag, MPI_Comm comm,
                              MPI_Status* status) {
        if (is_plain) {
            MPI_Recv(side.address, side.count, side.type, from, tag, comm, status);
        } else if (is_large) {
            MPIX_Recv_enqueue_c(side.address, side.count, side.type, from, tag, comm, status);
        } else {
            MPIX_Recv_enqueue(side.address, side.count, side.type, from, tag, comm, status);
        }
    }

    void receive(std::size_t q, int from, ReceiveMode mode, MPI_Datatype basic, int elements, bool open_source,
                 bool open_tag, Random& random) {
        const bool is_queued = mode <= ReceiveMode::queued_nonblocking || mode == ReceiveMode::probe_and_queued;
        if (mode <= ReceiveMode::queued_nonblocking) {
            maybe_hold(q, random);
        } else {
            before_plain(q, mode != ReceiveMode::nonblocking);
        }
        // The room may be larger than the message, which may then end inside of an element of the type.
        const int room = elements + (random.chance(30) ? 1 + random.below(50) : 0);
        const Side side = random_side(random, basic, room, q, is_queued);
        const bool is_large = random.chance(20), frees_type = random.chance(50);
        // A type that is gone cannot say how many of its elements came.
        const MPI_Datatype noted = frees_type ? basic : side.type;
        const MPI_Comm comm = comm_of(q);
        const int number = _event, tag = open_tag ? MPI_ANY_TAG : _event, source = open_source ? MPI_ANY_SOURCE : from;
        MPI_Request* const request = new_request();
        const bool is_plain = _is_plain;
        const std::string what = format(" from %d, room for %d of communicator %zu%s%s", from, room, q,
                                        open_source ? ", any source" : "", open_tag ? ", any tag" : "");
        switch (mode) {
            case ReceiveMode::queued:
            case ReceiveMode::probe_and_queued: {
                if (mode == ReceiveMode::probe_and_queued) {
                    act("probe" + what, [=, this] {
                        MPI_Status status{};
                        MPI_Probe(source, tag, comm, &status);
                        note_status(2000 + number, status, basic);
                    });
                }
                MPI_Status* const status = later_status(random.chance(70) ? noted : MPI_DATATYPE_NULL, number);
                act("queue a receive" + what,
                    [=] { queue_receive(is_plain, is_large, side, source, tag, comm, status); });
                used(side.memory, q, true);
                break;
            }
            case ReceiveMode::queued_nonblocking:
                act("queue an ireceive" + what,
                    [=] { queue_ireceive(is_plain, is_large, side, source, tag, comm, request); });
                add_pending(request, side, q, true, noted);
                break;
            case ReceiveMode::nonblocking:
                act("ireceive" + what,
                    [=] { MPI_Irecv(side.address, side.count, side.type, source, tag, comm, request); });
                add_pending(request, side, q, false, noted);
                break;
            case ReceiveMode::standard:
            case ReceiveMode::probe:
            case ReceiveMode::mprobe:
                act("receive" + what, [=, this] {
                    MPI_Status status{};
                    MPI_Message matched;
                    if (mode == ReceiveMode::mprobe) {
                        MPI_Mprobe(source, tag, comm, &matched, &status);
                        note_status(2000 + number, status, basic);
                        MPI_Mrecv(side.address, side.count, side.type, &matched, &status);
                    } else {
                        if (mode == ReceiveMode::probe) {
                            MPI_Probe(source, tag, comm, &status);
                            note_status(2000 + number, status, basic);
                        }
                        MPI_Recv(side.address, side.count, side.type, source, tag, comm, &status);
                    }
                    note_status(number, status, noted);
                });
                used(side.memory, q, false);
                break;
        }
        give_up_type(side.type, frees_type);
    }

    /// Each rank sends to one and receives from one, queued or not.
    void exchange(std::size_t q) {
        const Queue& queue = _queues[q];
        const int step = _random.below(queue.size());
        const MPI_Datatype basic = basic_type(_random.below(100));
        const int elements = random_elements(_random);
        const int me = queue.rank_of(_rank);
        if (me < 0) {
            return;
        }
        Random random = own_random(10 + _rank);
        const bool is_queued = own_stream(q) != kNoStream && random.chance(75);
        if (is_queued) {
            maybe_hold(q, random);
        } else {
            before_plain(q, true);
        }
        const Side out = random_side(random, basic, elements, q, is_queued);
        const Side in = random_side(random, basic, elements, q, is_queued);
        const int to = (me + step) % queue.size(), from = (me + queue.size() - step) % queue.size(), tag = _event;
        const MPI_Comm comm = comm_of(q);
        const bool is_plain = _is_plain, is_large = random.chance(20), sends_first = random.chance(50);
        if (is_queued) {
            MPI_Request *const sent = new_request(), *const received = new_request();
            act(format("queue an exchange with %d and %d, %d of communicator %zu", to, from, elements, q), [=] {
                if (sends_first) {
                    queue_isend(is_plain, is_large, out, to, tag, comm, sent);
                }
                queue_ireceive(is_plain, is_large, in, from, tag, comm, received);
                if (!sends_first) {
                    queue_isend(is_plain, is_large, out, to, tag, comm, sent);
                }
            });
            add_pending(sent, out, q, true, MPI_DATATYPE_NULL);
            add_pending(received, in, q, true, in.type);
            if (random.chance(60)) {
                const std::vector<Pending> both(_pending.end() - 2, _pending.end());
                _pending.resize(_pending.size() - 2);
                wait_in_streams(both, random.chance(20), random);
            }
        } else {
            act(format("exchange with %d and %d, %d of communicator %zu", to, from, elements, q), [=, this] {
                MPI_Status status{};
                MPI_Sendrecv(out.address, out.count, out.type, to, tag, in.address, in.count, in.type, from, tag, comm,
                             &status);
                note_status(tag, status, in.type);
            });
            used(out.memory, q, false);
            used(in.memory, q, false);
        }
        give_up_type(out.type, false);
        give_up_type(in.type, false);
    }

    /// Two messages in two streams, received and sent in an order that one stream could not have.
    void cross() {
        struct Candidate {
            std::size_t first, second;
            int a, b;  ///< world ranks
        };
        std::vector<Candidate> candidates;
        for (std::size_t first = 1; first < _queues.size(); ++first) {
            for (std::size_t second = 1; second < _queues.size(); ++second) {
                for (int a = 0; a < _size; ++a) {
                    for (int b = 0; b < _size; ++b) {
                        if (a != b && has_two_streams(first, second, a) && has_two_streams(first, second, b)) {
                            candidates.push_back({first, second, a, b});
                        }
                    }
                }
            }
        }
        const int elements = random_elements(_random);
        if (candidates.empty()) {
            return;
        }
        const auto [first, second, a, b] =
            candidates[static_cast<std::size_t>(_random.below(static_cast<int>(candidates.size())))];
        if (_rank != a && _rank != b) {
            return;
        }
        Random random = own_random(20 + _rank);
        // b receives by the first and then sends by the second; a receives by the second and then sends by the first.
        const std::size_t in_queue = _rank == a ? second : first, out_queue = _rank == a ? first : second;
        const int partner = _rank == a ? b : a, tag = _event;
        maybe_hold(in_queue, random);
        maybe_hold(out_queue, random);
        const Side in = random_side(random, MPI_DOUBLE, elements, in_queue, true);
        const Side out = random_side(random, MPI_DOUBLE, elements, out_queue, true);
        const MPI_Comm in_comm = comm_of(in_queue), out_comm = comm_of(out_queue);
        const int source = _queues[in_queue].rank_of(partner), target = _queues[out_queue].rank_of(partner);
        MPI_Status* const status = later_status(in.type, _event);
        const bool is_plain = _is_plain;
        act(format("cross with %d, %d elements, of communicator %zu to %zu", partner, elements, in_queue, out_queue),
            [=] {
                if (is_plain) {
                    exchange_in_two(out, target, out_comm, in, source, in_comm, tag, status);
                } else {
                    MPIX_Recv_enqueue(in.address, in.count, in.type, source, tag, in_comm, status);
                    MPIX_Send_enqueue(out.address, out.count, out.type, target, tag, out_comm);
                }
            });
        used(in.memory, in_queue, true);
        used(out.memory, out_queue, true);
        give_up_type(in.type, false);
        give_up_type(out.type, false);
    }
    [[nodiscard]] bool has_two_streams(std::size_t first, std::size_t second, int rank) const {
        const auto at = static_cast<std::size_t>(rank);
        return _queues[first].rank_of(rank) >= 0 && _queues[second].rank_of(rank) >= 0 &&
               _queues[first].streams[at] != kNoStream && _queues[second].streams[at] != kNoStream &&
               _queues[first].streams[at] != _queues[second].streams[at];
    }
    static void exchange_in_two(const Side& out, int to, MPI_Comm out_comm, const Side& in, int from, MPI_Comm in_comm,
                                int tag, MPI_Status* status) {
        MPI_Request requests[2];
        MPI_Status statuses[2];
        MPI_Irecv(in.address, in.count, in.type, from, tag, in_comm, &requests[0]);
        MPI_Isend(out.address, out.count, out.type, to, tag, out_comm, &requests[1]);
        MPI_Waitall(2, requests, statuses);
        *status = statuses[0];
    }

    // ---- persistent requests ----------------------------------------------------------------------------------------
    /// A new persistent message now and then; some of the communicator's are started.
    void start_round(std::size_t q) {
        const bool makes_one = _random.chance(50) || _channels.empty();
        if (makes_one) {
            make_channel(q);
        }
        const std::uint64_t draws = _random.bits();
        const Queue& queue = _queues[q];
        const int me = queue.rank_of(_rank);
        Random random = own_random(30 + _rank);
        std::vector<Pending> rounds;
        for (std::size_t c = 0; c < _channels.size(); ++c) {
            const Channel& channel = _channels[c];
            if (channel.queue != q || (combine(draws, c) % 4 == 0 && !makes_one)) {
                continue;
            }
            for (int side = 0; side < 2; ++side) {
                if (me >= 0 && me == (side == 0 ? channel.from : channel.to)) {
                    rounds.push_back({channel.request[side], channel.memory[side], q, channel.is_queued[side], true,
                                      side == 0 ? MPI_DATATYPE_NULL : MPI_BYTE, 3000 + _event});
                }
            }
        }
        end_rounds(rounds, random);
        // Plain calls come first.
        for (const bool is_queued : {false, true}) {
            std::vector<MPI_Request*> requests;
            for (const Pending& each : rounds) {
                if (each.is_queued == is_queued) {
                    requests.push_back(each.request);
                    if (is_queued) {
                        before_queued(q, _memory[each.memory].copies);
                        maybe_copy(each.memory, q, random);
                    }
                }
            }
            if (!requests.empty()) {
                start(requests, q, is_queued, random);
            }
        }
        for (const Pending& each : rounds) {
            _memory[each.memory].is_busy = true;
            _pending.push_back(each);
        }
    }
    void start(const std::vector<MPI_Request*>& requests, std::size_t q, bool is_queued, Random& random) {
        if (is_queued) {
            maybe_hold(q, random);
        } else {
            before_plain(q, false);
        }
        const bool starts_each = random.chance(30), in_stream = is_queued && !_is_plain;
        act(format("%s %zu persistent of communicator %zu", is_queued ? "queue the start of" : "start", requests.size(),
                   q),
            [=] {
                std::vector<MPI_Request> array;
                for (MPI_Request* const request : requests) {
                    array.push_back(*request);
                    if (starts_each) {
                        in_stream ? MPIX_Start_enqueue(request) : MPI_Start(request);
                    }
                }
                const auto count = static_cast<int>(array.size());
                if (!starts_each) {
                    in_stream ? MPIX_Startall_enqueue(count, array.data()) : MPI_Startall(count, array.data());
                }
            });
    }
    /// Ends the rounds before of what is to be started again.
    void end_rounds(const std::vector<Pending>& again, Random& random) {
        std::vector<Pending> queued, plain;
        for (const Pending& each : again) {
            const auto open = std::find_if(_pending.begin(), _pending.end(),
                                           [&](const Pending& pending) { return pending.request == each.request; });
            if (open != _pending.end()) {
                (open->is_queued ? queued : plain).push_back(*open);
                _pending.erase(open);
            }
        }
        if (!plain.empty()) {
            wait_in_calls(plain, WaitMode::all);
        }
        if (!queued.empty()) {
            wait_in_streams(queued, random.chance(30), random);
        }
    }

    void make_channel(std::size_t q) {
        const Queue& queue = _queues[q];
        Channel channel{};
        channel.queue = q;
        channel.from = _random.below(queue.size());
        channel.to = _random.below(queue.size());
        channel.tag = 1000 + static_cast<int>(_channels.size());
        const MPI_Datatype basic = basic_type(_random.below(100));
        const int elements = random_elements(_random);
        const bool open_source = _random.chance(30);
        const int me = queue.rank_of(_rank);
        for (int side = 0; side < 2; ++side) {
            const bool sends = side == 0;
            if (me < 0 || me != (sends ? channel.from : channel.to)) {
                continue;
            }
            Random random = own_random(40 + side);
            before_plain(q, false);
            const int room = elements + (!sends && random.chance(30) ? 1 + random.below(50) : 0);
            const Side made = random_side(random, basic, room, q, false, false);
            channel.request[side] = new_request();
            channel.memory[side] = made.memory;
            channel.is_queued[side] = own_stream(q) != kNoStream && random.chance(75);
            _memory[made.memory].is_busy = false;
            _memory[made.memory].kept_for = channel.is_queued[side] ? own_stream(q) : kNoStream;
            const bool frees_type = random.chance(50);
            const MPI_Comm comm = comm_of(q);
            const int tag = channel.tag, source = open_source ? MPI_ANY_SOURCE : channel.from, to = channel.to;
            MPI_Request* const request = channel.request[side];
            act(format("make a persistent %s, %d of communicator %zu", sends ? "send" : "receive", room, q), [=] {
                sends ? MPI_Send_init(made.address, made.count, made.type, to, tag, comm, request)
                      : MPI_Recv_init(made.address, made.count, made.type, source, tag, comm, request);
            });
            give_up_type(made.type, frees_type);
        }
        _channels.push_back(channel);
    }

    // ---- collectives ------------------------------------------------------------------------------------------------
    void collective(std::size_t q) {
        const Queue& queue = _queues[q];
        auto operation = static_cast<Operation>(_random.below(static_cast<int>(Operation::count)));
        if (operation == Operation::neighbours && queue.edges.empty()) {
            operation = Operation::allreduce;
        }
        const bool is_queued = _random.chance(80) && queue.all_have_streams();
        const bool in_place = _random.chance(30);
        const int root = _random.below(queue.size());
        const int count = _random.chance(10) ? 0 : _random.chance(15) ? 9000 : 6 * (1 + _random.below(40));
        const int op_draw = _random.below(6);
        if (queue.rank_of(_rank) < 0) {
            return;
        }
        Random random = own_random(100 + _rank);
        if (is_queued) {
            maybe_hold(q, random);
        } else {
            before_plain(q, true);
        }
        const std::size_t first_memory = _memory.size();
        const bool in_stream = is_queued && !_is_plain, is_large = random.chance(20);
        switch (operation) {
            case Operation::barrier: {
                const MPI_Comm comm = comm_of(q);
                collective_act("barrier", q, is_queued, 0,
                               [=] { in_stream ? MPIX_Barrier_enqueue(comm) : MPI_Barrier(comm); });
                break;
            }
            case Operation::bcast:
                bcast(q, is_queued, is_large, root, count, random);
                return;
            case Operation::allreduce:
            case Operation::reduce_scatter_block:
                reduce(q, operation == Operation::allreduce, is_queued, is_large, in_place, count, op_draw, random);
                break;
            case Operation::allgather:
            case Operation::alltoall:
                gather(q, operation == Operation::alltoall, is_queued, is_large, in_place, count, random);
                break;
            default:
                neighbours(q, is_queued, is_large, count, random);
        }
        for (std::size_t m = first_memory; m < _memory.size(); ++m) {
            used(m, q, is_queued);
        }
    }
    void collective_act(const char* name, std::size_t q, bool is_queued, int count, std::function<void()> call) {
        act(format("%s%s, %d of communicator %zu", is_queued ? "queue " : "", name, count, q), std::move(call));
    }

    void bcast(std::size_t q, bool is_queued, bool is_large, int root, int count, Random& random) {
        const Side side = random_side(random, MPI_INT, count, q, is_queued);
        const MPI_Comm comm = comm_of(q);
        const bool in_stream = is_queued && !_is_plain;
        collective_act("bcast", q, is_queued, count, [=] {
            if (!in_stream) {
                MPI_Bcast(side.address, side.count, side.type, root, comm);
            } else if (is_large) {
                MPIX_Bcast_enqueue_c(side.address, side.count, side.type, root, comm);
            } else {
                MPIX_Bcast_enqueue(side.address, side.count, side.type, root, comm);
            }
        });
        give_up_type(side.type, random.chance(50));
        used(side.memory, q, is_queued);
    }

    /// By MPI's operations or one of the program's, on numbers without or with gaps between them.
    void reduce(std::size_t q, bool is_allreduce, bool is_queued, bool is_large, bool in_place, int count, int op_draw,
                Random& random) {
        const int parts = is_allreduce ? 1 : _queues[q].size();
        const bool has_gaps = op_draw == 5;
        const int stride = has_gaps ? 2 : 1;
        std::size_t from = 0, to = 0;
        const int* const out = in_place ? nullptr : ints(count * parts * stride, q, is_queued, random, from);
        int* const in = ints(count * (in_place ? parts : 1) * stride, q, is_queued, random, to);
        if (in_place && parts > 1) {  // what is behind the result is the MPI's to use
            _memory[to].compared = static_cast<std::size_t>(count) * static_cast<std::size_t>(stride) * sizeof(int);
        }
        if (has_gaps && is_queued) {
            before_queued(q, 2 * count * parts);
        }
        const MPI_Comm comm = comm_of(q);
        const bool in_stream = is_queued && !_is_plain;
        const MPI_Op ops[] = {MPI_SUM, MPI_MAX, MPI_BXOR, MPI_MIN};
        const MPI_Op named = op_draw < 4 ? ops[op_draw] : MPI_OP_NULL;
        collective_act(is_allreduce ? "allreduce" : "reduce_scatter_block", q, is_queued, count, [=] {
            MPI_Datatype type = MPI_INT;
            MPI_Op op = named;
            if (has_gaps) {
                MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &type);
                MPI_Type_commit(&type);
            }
            if (named == MPI_OP_NULL) {
                MPI_Op_create(has_gaps ? &add_and_count<2> : &add_and_count<1>, 1, &op);
            }
            const void* const sent = in_place ? MPI_IN_PLACE : out;
            if (is_allreduce) {
                if (!in_stream) {
                    MPI_Allreduce(sent, in, count, type, op, comm);
                } else if (is_large) {
                    MPIX_Allreduce_enqueue_c(sent, in, count, type, op, comm);
                } else {
                    MPIX_Allreduce_enqueue(sent, in, count, type, op, comm);
                }
            } else if (!in_stream) {
                MPI_Reduce_scatter_block(sent, in, count, type, op, comm);
            } else if (is_large) {
                MPIX_Reduce_scatter_block_enqueue_c(sent, in, count, type, op, comm);
            } else {
                MPIX_Reduce_scatter_block_enqueue(sent, in, count, type, op, comm);
            }
            // Both go right after the call.
            if (has_gaps) {
                MPI_Type_free(&type);
            }
            if (named == MPI_OP_NULL) {
                MPI_Op_free(&op);
            }
        });
    }

    /// Allgather and alltoall: each rank has a part of one element of its own type, or of numbers.
    void gather(std::size_t q, bool is_alltoall, bool is_queued, bool is_large, bool in_place, int count,
                Random& random) {
        const int size = _queues[q].size();
        const auto part = [&]() -> std::pair<MPI_Datatype, int> {
            if (count == 0 || count > 4000 || random.chance(50)) {
                return {MPI_INT, count};
            }
            return {spaced(random_type(random, MPI_INT, count, random.chance(25))), 1};
        };
        const auto side = [&](int parts) {
            const auto [type, each] = part();
            const Room room(type, each * parts);
            const std::size_t memory = allocate(room.bytes);
            if (is_queued) {
                before_queued(q, copies_of(type, count * parts));
                maybe_copy(memory, q, random);
            }
            _memory[memory].is_busy = true;
            return Side{data(memory) + room.origin, each, type, memory};
        };
        const Side in = side(size);
        const Side out = in_place ? Side{nullptr, 0, MPI_INT, in.memory} : side(is_alltoall ? size : 1);
        const MPI_Comm comm = comm_of(q);
        const bool in_stream = is_queued && !_is_plain;
        collective_act(is_alltoall ? "alltoall" : "allgather", q, is_queued, count, [=] {
            const void* const sent = in_place ? MPI_IN_PLACE : out.address;
            if (is_alltoall) {
                if (!in_stream) {
                    MPI_Alltoall(sent, out.count, out.type, in.address, in.count, in.type, comm);
                } else if (is_large) {
                    MPIX_Alltoall_enqueue_c(sent, out.count, out.type, in.address, in.count, in.type, comm);
                } else {
                    MPIX_Alltoall_enqueue(sent, out.count, out.type, in.address, in.count, in.type, comm);
                }
            } else if (!in_stream) {
                MPI_Allgather(sent, out.count, out.type, in.address, in.count, in.type, comm);
            } else if (is_large) {
                MPIX_Allgather_enqueue_c(sent, out.count, out.type, in.address, in.count, in.type, comm);
            } else {
                MPIX_Allgather_enqueue(sent, out.count, out.type, in.address, in.count, in.type, comm);
            }
        });
        give_up_type(in.type, random.chance(50));
        give_up_type(out.type, random.chance(50));
    }

    /// An element of its own type, or numbers, along each edge of the graph.
    void neighbours(std::size_t q, bool is_queued, bool is_large, int count, Random& random) {
        const Queue& queue = _queues[q];
        const int me = queue.rank_of(_rank), size = queue.size();
        struct Edges {
            std::vector<int> counts{};
            std::vector<MPI_Count> large_counts{};
            std::vector<MPI_Aint> offsets{};
            std::vector<MPI_Datatype> types{};
            std::byte* address = nullptr;
        };
        const auto edges = [&](bool sends) {
            Edges made;
            MPI_Aint bytes = 0;
            int copies = 0;
            for (int other = 0; other < size; ++other) {
                const int from = sends ? me : other, to = sends ? other : me;
                if (!queue.edges[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)]) {
                    continue;
                }
                const int elements = count / (1 + (from + 2 * to) % 3);
                const bool is_derived = elements > 0 && elements <= 4000 && random.chance(50);
                made.types.push_back(is_derived ? random_type(random, MPI_INT, elements, random.chance(25)) : MPI_INT);
                made.counts.push_back(is_derived ? 1 : elements);
                made.large_counts.push_back(made.counts.back());
                const Room room(made.types.back(), made.counts.back());
                made.offsets.push_back(bytes + room.origin);
                copies += is_derived ? elements : 1;
                bytes += static_cast<MPI_Aint>((room.bytes + 7) / 8 * 8);
            }
            // Never empty: the address of an empty array may be null.
            made.counts.push_back(0);
            made.large_counts.push_back(0);
            made.offsets.push_back(0);
            made.types.push_back(MPI_INT);
            const std::size_t memory = allocate(static_cast<std::size_t>(bytes));
            if (is_queued) {
                before_queued(q, copies);
                maybe_copy(memory, q, random);
            }
            _memory[memory].is_busy = true;
            made.address = data(memory);
            return made;
        };
        const Edges out = edges(true), in = edges(false);
        const MPI_Comm comm = comm_of(q);
        const bool in_stream = is_queued && !_is_plain;
        collective_act("neighbor_alltoallw", q, is_queued, count, [=] {
            if (!in_stream) {
                MPI_Neighbor_alltoallw(out.address, out.counts.data(), out.offsets.data(), out.types.data(), in.address,
                                       in.counts.data(), in.offsets.data(), in.types.data(), comm);
            } else if (is_large) {
                MPIX_Neighbor_alltoallw_enqueue_c(out.address, out.large_counts.data(), out.offsets.data(),
                                                  out.types.data(), in.address, in.large_counts.data(),
                                                  in.offsets.data(), in.types.data(), comm);
            } else {
                MPIX_Neighbor_alltoallw_enqueue(out.address, out.counts.data(), out.offsets.data(), out.types.data(),
                                                in.address, in.counts.data(), in.offsets.data(), in.types.data(), comm);
            }
        });
        for (const Edges* const each : {&out, &in}) {
            for (const MPI_Datatype type : each->types) {
                give_up_type(type, random.chance(50));
            }
        }
    }

    Gpu& _gpu;
    const Options& _options;
    const bool _is_plain;
    std::uint64_t _seed;
    Random _random;
    int _rank = 0;
    int _size = 0;
    int _event = 0;
    std::uint64_t _notes = 0;
    std::vector<Stream> _streams;
    std::vector<Queue> _queues;  ///< the first has no streams
    std::vector<Action> _actions;
    std::vector<Type> _types;
    std::vector<Memory> _memory;
    std::vector<Pending> _pending;
    std::vector<Channel> _channels;
    // Addresses stay.
    std::deque<MPI_Request> _requests;
    std::deque<MPI_Status> _statuses;
    std::deque<std::vector<MPI_Status>> _arrays;
    std::vector<std::function<void()>> _notes_at_end;
};

}  // namespace

int main(int argc, char** argv) {
    return run_random_programs<Program>(argc, argv);
}
