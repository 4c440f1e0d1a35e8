// SPDX-License-Identifier: Apache-2.0
// Random MPI programs. From a seed every rank derives the same program; it is carried out on buffers of drawn kinds
// (or, with
// --host, on host memory), and a hash of everything that each rank then holds and was told is printed per program:
//
//     SEED HASH-OF-RANK-0 HASH-OF-RANK-1 ...
//
// Run by plain MPI with --host it gives the reference that a run with Awaken and device memory must reproduce.
//
//     --first=N --count=M   programs N .. N+M-1             --seeds=A,B,C   these programs instead
//     --host                all buffers in host memory      --gpu=...       as in the other rank programs
//     --events=N            only the first N events of each program, to narrow a failure down
//     --verbose             every event, as it is begun, on stderr
//
// Why a program cannot deadlock: it is a list of events, which every rank goes through in the same order. An event is a
// message or a collective; what an event leaves pending is waited for at a later place in the list. So the earliest
// event that is not over can always proceed. Why its result is determined: receives are posted, and sends started, in
// the order of the list; tags are unique but for those that a receive leaves open, and that is never source and tag at
// once.
#include "random.h"
#include "support.h"
#include "types.h"

using namespace ranks;

namespace {

/// What becomes of a message at its two ends.
enum class SendMode { standard, synchronous, buffered, nonblocking, nonblocking_synchronous, persistent };
enum class ReceiveMode { standard, nonblocking, probe, iprobe, mprobe, improbe, persistent };
enum class Operation {
    barrier,
    bcast,
    reduce,
    allreduce,
    allreduce_in_place,
    gather,
    gatherv,
    scatter,
    scatterv,
    allgather,
    allgatherv,
    alltoall,
    alltoallv,
    scan,
    reduce_scatter_block,
    count
};
enum class EventKind { message, exchange, exchange_replace, collective, wait, new_communicator };
enum class WaitMode { all, each, any, some, test_all, test_each, count };

/// A communicator and who belongs to it, which every rank of the world knows.
struct Group {
    MPI_Comm comm = MPI_COMM_NULL;
    std::vector<int> members;  ///< world ranks in the communicator's order
    [[nodiscard]] int size() const { return static_cast<int>(members.size()); }
    [[nodiscard]] int rank_of(int world_rank) const {
        const auto found = std::find(members.begin(), members.end(), world_rank);
        return found == members.end() ? -1 : static_cast<int>(found - members.begin());
    }
};

/// One program on one rank.
class Program {
  public:
    Program(Gpu& gpu, std::uint64_t seed, const Options& options)
        : _gpu(gpu), _options(options), _seed(seed), _random(combine(seed, 1)) {
        MPI_Comm_rank(MPI_COMM_WORLD, &_rank);
        Group world;
        MPI_Comm_dup(MPI_COMM_WORLD, &world.comm);
        int size = 0;
        MPI_Comm_size(world.comm, &size);
        for (int rank = 0; rank < size; ++rank) {
            world.members.push_back(rank);
        }
        _groups.push_back(world);
        _attached.resize(std::size_t{8} << 20);
        MPI_Buffer_attach(_attached.data(), static_cast<int>(_attached.size()));
    }
    ~Program() {
        for (Group& group : _groups) {
            if (group.comm != MPI_COMM_NULL) {
                MPI_Comm_free(&group.comm);
            }
        }
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    /// Carries it out and returns the hash of this rank's memory and notes.
    std::uint64_t run() {
        const int events = 10 + _random.below(25);
        for (_event = 0; _event < std::min(events, _options.events); ++_event) {
            step();
        }
        wait_for(static_cast<int>(_pending.size()), WaitMode::all);
        void* address = nullptr;
        int bytes = 0;
        MPI_Buffer_detach(&address, &bytes);  // returns when the buffered messages are on their way
        MPI_Barrier(MPI_COMM_WORLD);
        std::uint64_t hash = _notes;
        for (const Memory& memory : _memory) {
            const std::vector<std::byte> image = memory.buffer->read();
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
    struct Memory {
        std::unique_ptr<Buffer> buffer;
        bool settled = false;  ///< received into by a call that has returned: may be sent from
    };
    struct Pending {
        MPI_Request request;
        MPI_Datatype type;  ///< of a receive whose status is noted; else null
        bool persistent;
    };
    /// One side of a message: memory of a random layout for some elements of a basic type.
    struct Side {
        void* address;
        int count;
        MPI_Datatype type;
        std::size_t memory;
    };

    void step() {
        const int draw = _random.below(100);
        const Group& group = _groups[static_cast<std::size_t>(_random.below(static_cast<int>(_groups.size())))];
        if (draw < 55) {
            message(group);
        } else if (draw < 62) {
            exchange(group);
        } else if (draw < 84) {
            collective(group);
        } else if (draw < 96 || _groups.size() > 3) {
            const int share = 1 + _random.below(4);
            const auto mode = static_cast<WaitMode>(_random.below(static_cast<int>(WaitMode::count)));
            wait_for((static_cast<int>(_pending.size()) + share - 1) / share, mode);
        } else {
            new_communicator(group);
        }
    }

    /// Draws that only one rank needs come from a source of their own, so that all ranks stay in step.
    [[nodiscard]] Random own_random(int role) const {
        return Random(combine(combine(_seed, static_cast<std::uint64_t>(_event)), static_cast<std::uint64_t>(role)));
    }

    void say(const char* what, int from, int to) const {
        if (_options.verbose) {
            std::fprintf(stderr, "[%d] event %d: %s %d %d\n", _rank, _event, what, from, to);
        }
    }

    // ---- memory -----------------------------------------------------------------------------------------------------
    std::size_t allocate(std::size_t bytes) {
        const std::uint64_t draw =
            combine(combine(_seed, 77), combine(static_cast<std::uint64_t>(_rank), _memory.size()));
        // The kinds that a seed had before there was mapped memory stay, so that old seeds give the same programs.
        constexpr std::uint64_t kFormerKinds = kKinds - 1;
        Kind kind = _options.host || !_gpu.present() ? Kind::host : static_cast<Kind>(draw % kFormerKinds);
        if (kind == Kind::pool && draw / kFormerKinds % 2 == 0) {
            kind = Kind::mapped;
        }
        Memory memory{std::make_unique<Buffer>(_gpu, kind, bytes), false};
        std::vector<std::byte> image(bytes);
        fill_random(image.data(), bytes, draw);
        memory.buffer->write(image.data(), bytes);
        _memory.push_back(std::move(memory));
        return _memory.size() - 1;
    }
    [[nodiscard]] std::byte* data(std::size_t memory) const { return _memory[memory].buffer->data(); }

    /// Drawn by itself, so that what earlier seeds have found stays where it was.
    [[nodiscard]] bool strides_go_backwards() const {
        return combine(combine(_seed, 13), static_cast<std::uint64_t>(_event)) % 4 == 0;
    }

    /// Memory of its own and a random layout for `elements` basic elements.
    Side random_side(Random& random, MPI_Datatype basic, int elements) {
        Side side{nullptr, elements, basic, 0};
        if (elements > 0 && elements <= 4000 && random.chance(60)) {
            int count = 1;
            for (const int candidate : {2, 3, 4}) {
                if (elements % candidate == 0 && random.chance(40)) {
                    count = candidate;
                }
            }
            side.type = random_type(random, basic, elements / count, strides_go_backwards());
            side.count = count;
            _types.emplace_back(side.type);
        }
        const Room room(side.type, side.count);
        side.memory = allocate(room.bytes);
        side.address = data(side.memory) + room.origin;
        return side;
    }

    // ---- notes and completion ---------------------------------------------------------------------------------------
    void note_status(int event, const MPI_Status& status, MPI_Datatype type) {
        MPI_Count elements = 0;
        MPI_Get_elements_x(&status, type, &elements);
        const std::uint64_t parts[] = {static_cast<std::uint64_t>(event), static_cast<std::uint64_t>(status.MPI_SOURCE),
                                       static_cast<std::uint64_t>(status.MPI_TAG),
                                       static_cast<std::uint64_t>(elements)};
        std::uint64_t note = 0;
        for (const std::uint64_t part : parts) {
            note = combine(note, part);
        }
        _notes += note;  // a sum, because requests complete in any order
    }

    /// Completes `count` of the pending requests, drawn from all of them.
    void wait_for(int count, WaitMode mode) {
        Random random = own_random(1000 + _rank);
        std::vector<Pending> chosen;
        for (int at = 0; at < count; ++at) {
            const auto index = static_cast<std::size_t>(random.below(static_cast<int>(_pending.size())));
            chosen.push_back(_pending[index]);
            _pending.erase(_pending.begin() + static_cast<std::ptrdiff_t>(index));
        }
        if (chosen.empty()) {
            return;
        }
        say("wait", count, static_cast<int>(mode));
        const auto length = static_cast<int>(chosen.size());
        std::vector<MPI_Request> requests;
        for (const Pending& pending : chosen) {
            requests.push_back(pending.request);
        }
        std::vector<MPI_Status> statuses(chosen.size());
        std::vector<int> indices(chosen.size());
        const auto finish = [&](int index, const MPI_Status& status) {
            const Pending& pending = chosen[static_cast<std::size_t>(index)];
            MPI_Request& request = requests[static_cast<std::size_t>(index)];
            if (pending.type != MPI_DATATYPE_NULL) {
                note_status(0, status, pending.type);
            }
            if (pending.persistent) {
                MPI_Request_free(&request);
            }
        };
        switch (mode) {
            case WaitMode::all:
                MPI_Waitall(length, requests.data(), statuses.data());
                for (int at = 0; at < length; ++at) {
                    finish(at, statuses[static_cast<std::size_t>(at)]);
                }
                break;
            case WaitMode::test_all:
                for (int flag = 0; flag == 0;) {
                    MPI_Testall(length, requests.data(), &flag, statuses.data());
                }
                for (int at = 0; at < length; ++at) {
                    finish(at, statuses[static_cast<std::size_t>(at)]);
                }
                break;
            case WaitMode::any:
                for (int index = 0;;) {
                    MPI_Waitany(length, requests.data(), &index, statuses.data());
                    if (index == MPI_UNDEFINED) {
                        break;
                    }
                    finish(index, statuses[0]);
                }
                break;
            case WaitMode::some:
                for (int done = 0;;) {
                    MPI_Waitsome(length, requests.data(), &done, indices.data(), statuses.data());
                    if (done == MPI_UNDEFINED) {
                        break;
                    }
                    for (int at = 0; at < done; ++at) {
                        finish(indices[static_cast<std::size_t>(at)], statuses[static_cast<std::size_t>(at)]);
                    }
                }
                break;
            case WaitMode::test_each:
                for (int left = length, at = 0; left > 0; at = (at + 1) % length) {
                    auto& request = requests[static_cast<std::size_t>(at)];
                    if (indices[static_cast<std::size_t>(at)] != 0) {
                        continue;
                    }
                    int flag = 0;
                    MPI_Status status{};
                    MPI_Test(&request, &flag, &status);
                    if (flag == 0) {
                        continue;
                    }
                    indices[static_cast<std::size_t>(at)] = 1;
                    --left;
                    finish(at, status);
                }
                break;
            default:
                for (int at = 0; at < length; ++at) {
                    MPI_Status status{};
                    MPI_Wait(&requests[static_cast<std::size_t>(at)], &status);
                    finish(at, status);
                }
        }
    }

    // ---- events -----------------------------------------------------------------------------------------------------
    void message(const Group& group) {
        const int from = _random.below(group.size()), to = _random.below(group.size());
        auto send_mode = static_cast<SendMode>(_random.below(6));
        auto receive_mode = static_cast<ReceiveMode>(_random.below(7));
        const MPI_Datatype basic = basic_type(_random.below(100));
        const int elements = random_elements(_random);
        const bool open_source = _random.chance(20), open_tag = !open_source && _random.chance(20);
        const bool from_settled = _random.chance(20);
        if (from == to && send_mode != SendMode::persistent && send_mode != SendMode::buffered) {
            send_mode = SendMode::nonblocking;  // nobody else would receive it
        }
        if (send_mode == SendMode::buffered && elements > 4000) {
            send_mode = SendMode::standard;
        }
        if (from == to && send_mode == SendMode::standard) {
            send_mode = SendMode::nonblocking;
        }
        const int me = group.rank_of(_rank);
        if (me == from) {
            say("send to", to, static_cast<int>(send_mode));
            send(group, to, send_mode, basic, elements, from_settled);
        }
        if (me == to) {
            say("receive from", from, static_cast<int>(receive_mode));
            receive(group, from, receive_mode, basic, elements, open_source, open_tag);
        }
    }

    void send(const Group& group, int to, SendMode mode, MPI_Datatype basic, int elements, bool from_settled) {
        Random random = own_random(1);
        Side side{};
        int basic_size = 0;
        MPI_Type_size(basic, &basic_size);
        const auto settled = std::find_if(_memory.begin(), _memory.end(), [&](const Memory& memory) {
            return memory.settled &&
                   memory.buffer->size() >= static_cast<std::size_t>(elements) * static_cast<std::size_t>(basic_size);
        });
        if (from_settled && settled != _memory.end()) {
            side = Side{settled->buffer->data(), elements, basic, 0};
        } else {
            side = random_side(random, basic, elements);
        }
        Pending pending{MPI_REQUEST_NULL, MPI_DATATYPE_NULL, false};
        switch (mode) {
            case SendMode::standard:
                MPI_Send(side.address, side.count, side.type, to, _event, group.comm);
                break;
            case SendMode::synchronous:
                MPI_Ssend(side.address, side.count, side.type, to, _event, group.comm);
                break;
            case SendMode::buffered:
                MPI_Bsend(side.address, side.count, side.type, to, _event, group.comm);
                break;
            case SendMode::nonblocking:
                MPI_Isend(side.address, side.count, side.type, to, _event, group.comm, &pending.request);
                break;
            case SendMode::nonblocking_synchronous:
                MPI_Issend(side.address, side.count, side.type, to, _event, group.comm, &pending.request);
                break;
            case SendMode::persistent:
                MPI_Send_init(side.address, side.count, side.type, to, _event, group.comm, &pending.request);
                MPI_Start(&pending.request);
                pending.persistent = true;
                break;
        }
        if (pending.request != MPI_REQUEST_NULL) {
            _pending.push_back(pending);
        }
    }

    void receive(const Group& group, int from, ReceiveMode mode, MPI_Datatype basic, int elements, bool open_source,
                 bool open_tag) {
        Random random = own_random(2);
        // The room may be larger than the message, which may then end inside of an element of the type.
        const Side side = random_side(random, basic, elements + (random.chance(30) ? 1 + random.below(50) : 0));
        const int source = open_source ? MPI_ANY_SOURCE : from;
        const int tag = open_tag ? MPI_ANY_TAG : _event;
        Pending pending{MPI_REQUEST_NULL, side.type, false};
        MPI_Status status{};
        MPI_Message matched;
        int flag = 0;
        switch (mode) {
            case ReceiveMode::standard:
                MPI_Recv(side.address, side.count, side.type, source, tag, group.comm, &status);
                break;
            case ReceiveMode::nonblocking:
                MPI_Irecv(side.address, side.count, side.type, source, tag, group.comm, &pending.request);
                break;
            case ReceiveMode::probe:
                MPI_Probe(source, tag, group.comm, &status);
                note_status(_event, status, basic);
                MPI_Recv(side.address, side.count, side.type, status.MPI_SOURCE, status.MPI_TAG, group.comm, &status);
                break;
            case ReceiveMode::iprobe:
                while (flag == 0) {
                    MPI_Iprobe(source, tag, group.comm, &flag, &status);
                }
                note_status(_event, status, basic);
                MPI_Recv(side.address, side.count, side.type, source, tag, group.comm, &status);
                break;
            case ReceiveMode::mprobe:
                MPI_Mprobe(source, tag, group.comm, &matched, &status);
                note_status(_event, status, basic);
                MPI_Mrecv(side.address, side.count, side.type, &matched, &status);
                break;
            case ReceiveMode::improbe:
                while (flag == 0) {
                    MPI_Improbe(source, tag, group.comm, &flag, &matched, &status);
                }
                note_status(_event, status, basic);
                MPI_Imrecv(side.address, side.count, side.type, &matched, &pending.request);
                break;
            case ReceiveMode::persistent:
                MPI_Recv_init(side.address, side.count, side.type, source, tag, group.comm, &pending.request);
                MPI_Start(&pending.request);
                pending.persistent = true;
                break;
        }
        if (pending.request != MPI_REQUEST_NULL) {
            _pending.push_back(pending);
        } else {
            note_status(_event, status, side.type);
            _memory[side.memory].settled = true;
        }
    }

    void exchange(const Group& group) {
        const int step = _random.below(group.size());
        const bool replace = _random.chance(40);
        const MPI_Datatype basic = basic_type(_random.below(100));
        const int elements = random_elements(_random);
        const int me = group.rank_of(_rank);
        if (me < 0) {
            return;
        }
        const int to = (me + step) % group.size(), from = (me + group.size() - step) % group.size();
        say("exchange", to, from);
        Random random = own_random(10 + _rank);
        MPI_Status status{};
        const Side out = random_side(random, basic, elements);
        if (replace) {
            MPI_Sendrecv_replace(out.address, out.count, out.type, to, _event, from, _event, group.comm, &status);
            note_status(_event, status, out.type);
        } else {
            const Side in = random_side(random, basic, elements);
            MPI_Sendrecv(out.address, out.count, out.type, to, _event, in.address, in.count, in.type, from, _event,
                         group.comm, &status);
            note_status(_event, status, in.type);
            _memory[in.memory].settled = true;
        }
    }

    void collective(const Group& group) {
        const auto operation = static_cast<Operation>(_random.below(static_cast<int>(Operation::count)));
        const bool later = _random.chance(40);
        const int root = _random.below(group.size());
        const int count = _random.chance(10) ? 0 : _random.chance(15) ? 9000 : 6 * (1 + _random.below(40));
        const MPI_Op ops[] = {MPI_SUM, MPI_MAX, MPI_BXOR, MPI_MIN};
        const MPI_Op op = ops[_random.below(4)];
        const int me = group.rank_of(_rank);
        if (me < 0) {
            return;
        }
        say("collective", static_cast<int>(operation), root);
        const MPI_Comm comm = group.comm;
        const int size = group.size();
        const auto ints = [&](int elements) {
            return reinterpret_cast<int*>(data(allocate(static_cast<std::size_t>(elements) * sizeof(int))));
        };
        // A layout of its own on each rank wherever the operation has datatypes on both sides.
        Random random = own_random(100 + _rank);
        std::vector<int> counts, at;
        int total = 0;
        for (int rank = 0; rank < size; ++rank) {
            counts.push_back(rank % 3 == 2 ? 0 : count / (1 + rank % 2));
            at.push_back(total);
            total += counts.back() + 3;
        }
        const int mine = counts[static_cast<std::size_t>(me)];
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Request* const pending = later ? &request : nullptr;
        switch (operation) {
            case Operation::barrier:
                if (pending != nullptr) {
                    MPI_Ibarrier(comm, pending);
                } else {
                    MPI_Barrier(comm);
                }
                break;
            case Operation::bcast: {
                const Side side = random_side(random, MPI_INT, count);
                if (pending != nullptr) {
                    MPI_Ibcast(side.address, side.count, side.type, root, comm, pending);
                } else {
                    MPI_Bcast(side.address, side.count, side.type, root, comm);
                }
                break;
            }
            case Operation::reduce: {
                int *out = ints(count), *in = me == root ? ints(count) : nullptr;
                if (pending != nullptr) {
                    MPI_Ireduce(out, in, count, MPI_INT, op, root, comm, pending);
                } else {
                    MPI_Reduce(out, in, count, MPI_INT, op, root, comm);
                }
                break;
            }
            case Operation::allreduce: {
                int *out = ints(count), *in = ints(count);
                if (pending != nullptr) {
                    MPI_Iallreduce(out, in, count, MPI_INT, op, comm, pending);
                } else {
                    MPI_Allreduce(out, in, count, MPI_INT, op, comm);
                }
                break;
            }
            case Operation::allreduce_in_place: {
                int* both = ints(count);
                if (pending != nullptr) {
                    MPI_Iallreduce(MPI_IN_PLACE, both, count, MPI_INT, op, comm, pending);
                } else {
                    MPI_Allreduce(MPI_IN_PLACE, both, count, MPI_INT, op, comm);
                }
                break;
            }
            case Operation::gather: {
                const Side out = random_side(random, MPI_INT, count);
                int* in = me == root ? ints(count * size) : nullptr;
                if (pending != nullptr) {
                    MPI_Igather(out.address, out.count, out.type, in, count, MPI_INT, root, comm, pending);
                } else {
                    MPI_Gather(out.address, out.count, out.type, in, count, MPI_INT, root, comm);
                }
                break;
            }
            case Operation::gatherv: {
                const Side out = random_side(random, MPI_INT, mine);
                int* in = me == root ? ints(total) : nullptr;
                if (pending != nullptr) {
                    MPI_Igatherv(out.address, out.count, out.type, in, keep(counts), keep(at), MPI_INT, root, comm,
                                 pending);
                } else {
                    MPI_Gatherv(out.address, out.count, out.type, in, counts.data(), at.data(), MPI_INT, root, comm);
                }
                break;
            }
            case Operation::scatter: {
                int* out = me == root ? ints(count * size) : nullptr;
                const Side in = random_side(random, MPI_INT, count);
                if (pending != nullptr) {
                    MPI_Iscatter(out, count, MPI_INT, in.address, in.count, in.type, root, comm, pending);
                } else {
                    MPI_Scatter(out, count, MPI_INT, in.address, in.count, in.type, root, comm);
                }
                break;
            }
            case Operation::scatterv: {
                int* out = me == root ? ints(total) : nullptr;
                const Side in = random_side(random, MPI_INT, mine);
                if (pending != nullptr) {
                    MPI_Iscatterv(out, keep(counts), keep(at), MPI_INT, in.address, in.count, in.type, root, comm,
                                  pending);
                } else {
                    MPI_Scatterv(out, counts.data(), at.data(), MPI_INT, in.address, in.count, in.type, root, comm);
                }
                break;
            }
            case Operation::allgather: {
                const Side out = random_side(random, MPI_INT, count);
                int* in = ints(count * size);
                if (pending != nullptr) {
                    MPI_Iallgather(out.address, out.count, out.type, in, count, MPI_INT, comm, pending);
                } else {
                    MPI_Allgather(out.address, out.count, out.type, in, count, MPI_INT, comm);
                }
                break;
            }
            case Operation::allgatherv: {
                // The same type everywhere: Open MPI 5 chooses the algorithm by the size of the sender's type, and
                // hangs when ranks choose differently.
                int *out = ints(mine), *in = ints(total);
                if (pending != nullptr) {
                    MPI_Iallgatherv(out, mine, MPI_INT, in, keep(counts), keep(at), MPI_INT, comm, pending);
                } else {
                    MPI_Allgatherv(out, mine, MPI_INT, in, counts.data(), at.data(), MPI_INT, comm);
                }
                break;
            }
            case Operation::alltoall: {
                const Side out = random_side(random, MPI_INT, count * size);
                int* in = ints(count * size);
                // Only a contiguous side can be cut into equal parts.
                int* plain = out.type == MPI_INT ? static_cast<int*>(out.address) : ints(count * size);
                if (pending != nullptr) {
                    MPI_Ialltoall(plain, count, MPI_INT, in, count, MPI_INT, comm, pending);
                } else {
                    MPI_Alltoall(plain, count, MPI_INT, in, count, MPI_INT, comm);
                }
                break;
            }
            case Operation::alltoallv: {
                // From every rank to rank j go counts[j] elements, so rank j receives `mine` from each.
                int* out = ints(total);
                int* in = ints((mine + 2) * size);
                std::vector<int> in_counts(static_cast<std::size_t>(size), mine), in_at;
                for (int rank = 0; rank < size; ++rank) {
                    in_at.push_back((size - 1 - rank) * (mine + 2));
                }
                if (pending != nullptr) {
                    MPI_Ialltoallv(out, keep(counts), keep(at), MPI_INT, in, keep(in_counts), keep(in_at), MPI_INT,
                                   comm, pending);
                } else {
                    MPI_Alltoallv(out, counts.data(), at.data(), MPI_INT, in, in_counts.data(), in_at.data(), MPI_INT,
                                  comm);
                }
                break;
            }
            case Operation::scan: {
                int *out = ints(count), *in = ints(count);
                if (pending != nullptr) {
                    MPI_Iscan(out, in, count, MPI_INT, op, comm, pending);
                } else {
                    MPI_Scan(out, in, count, MPI_INT, op, comm);
                }
                break;
            }
            case Operation::reduce_scatter_block: {
                int *out = ints(count * size), *in = ints(count);
                if (pending != nullptr) {
                    MPI_Ireduce_scatter_block(out, in, count, MPI_INT, op, comm, pending);
                } else {
                    MPI_Reduce_scatter_block(out, in, count, MPI_INT, op, comm);
                }
                break;
            }
            case Operation::count:
                break;
        }
        if (request != MPI_REQUEST_NULL) {
            _pending.push_back({request, MPI_DATATYPE_NULL, false});
        }
    }

    /// The argument arrays of a nonblocking operation must stay until it completes.
    const int* keep(const std::vector<int>& values) {
        _kept.push_back(std::make_unique<std::vector<int>>(values));
        return _kept.back()->data();
    }

    void new_communicator(const Group& parent) {
        const bool duplicate = _random.chance(50);
        const int colours = 1 + _random.below(2);
        const bool reverse = _random.chance(30);
        Group group;
        if (duplicate) {
            group.members = parent.members;
            if (parent.rank_of(_rank) >= 0) {
                MPI_Comm_dup(parent.comm, &group.comm);
            }
        } else {
            // Colour 0 is kept by all, also by those who do not belong to it.
            for (int rank = 0; rank < parent.size(); ++rank) {
                if (rank % colours == 0) {
                    group.members.push_back(parent.members[static_cast<std::size_t>(rank)]);
                }
            }
            if (reverse) {
                std::reverse(group.members.begin(), group.members.end());
            }
            const int me = parent.rank_of(_rank);
            if (me >= 0) {
                MPI_Comm_split(parent.comm, me % colours == 0 ? 0 : MPI_UNDEFINED, reverse ? -me : me, &group.comm);
            }
        }
        say("communicator of", group.size(), duplicate ? 1 : 0);
        _groups.push_back(group);
    }

    Gpu& _gpu;
    const Options& _options;
    std::uint64_t _seed;
    Random _random;
    int _rank = 0;
    int _event = 0;
    std::uint64_t _notes = 0;
    std::vector<std::byte> _attached;
    std::vector<Group> _groups;
    std::vector<Type> _types;
    std::vector<Memory> _memory;
    std::vector<Pending> _pending;
    std::vector<std::unique_ptr<std::vector<int>>> _kept;
};

}  // namespace

int main(int argc, char** argv) {
    return run_random_programs<Program>(argc, argv);
}
