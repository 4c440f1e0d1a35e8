// SPDX-License-Identifier: Apache-2.0
// Many collectives in a row, as programs make them: of changing kinds, sizes and communicators, with nothing between
// them that would synchronise ranks or devices. Memory is overwritten, or freed, as soon as MPI gives it back;
// nonblocking operations are outstanding by the dozen, and are completed in another order on each rank.
//
// Results are carried away by copies on the device, which are no sooner begun than the next call is made, and compared
// at the end. So a collective that returns before its result is there, that reads its operand late, or that takes one
// call's data for another's, is found.
//
//     --draw=N    other sequences (default 1)
//     --single    MPI_Init in place of MPI_THREAD_MULTIPLE; the case of several threads does nothing then
#include <array>
#include <atomic>
#include <thread>

#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 61;

std::uint64_t drawn_sequences = 1;

std::size_t to_size(int value) {
    return static_cast<std::size_t>(value);
}

/// Draws from a seed, reproducibly on every platform. Ranks with the same seed draw the same.
class Random {
  public:
    explicit Random(std::uint64_t seed) : _state(seed) {}
    /// 0 .. limit - 1
    int below(int limit) {
        return static_cast<int>(mix_bits(_state += 0x9e3779b97f4a7c15u) % static_cast<std::uint64_t>(limit));
    }
    bool chance(int percent) { return below(100) < percent; }
    template <class T>
    void shuffle(std::vector<T>& list) {
        for (std::size_t left = list.size(); left > 1; --left) {
            std::swap(list[left - 1], list[to_size(below(static_cast<int>(left)))]);
        }
    }

  private:
    std::uint64_t _state;
};

// ---- memory ---------------------------------------------------------------------------------------------------------

/// Copies from memory to memory of the same kind. On devices the copy is only begun.
void copy(Run& run, Kind kind, void* destination, const void* source, std::size_t bytes) {
    if (bytes == 0) {
        return;
    }
    if (host_accessible(kind)) {
        std::memcpy(destination, source, bytes);
    } else {
        run.gpu().copy_on_device(destination, source, bytes);
    }
}

/// Overwrites what a call has just given back. On devices this is only begun.
void overwrite(Run& run, Kind kind, void* destination, int value, std::size_t bytes) {
    if (bytes == 0) {
        return;
    }
    if (host_accessible(kind)) {
        std::memset(destination, value, bytes);
    } else {
        run.gpu().memset(destination, value, bytes);
    }
}

/// Whole numbers below 2^49: sums of them over eight ranks are exact as doubles, and as words they wrap around.
void write_pattern(Run& run, std::byte* buffer, std::size_t doubles, std::uint64_t seed) {
    std::vector<double> values(doubles);
    const std::uint64_t stream = combine(seed, to_size(run.rank));
    for (std::size_t at = 0; at < doubles; ++at) {
        values[at] = static_cast<double>(mix_bits(stream + at) >> 15);
    }
    run.store(buffer, values.data(), doubles * sizeof(double));
}

// ---- communicators --------------------------------------------------------------------------------------------------

/// A communicator: of one group, or between the even ranks, among which roots are, and the odd ones.
struct Place {
    MPI_Comm comm = MPI_COMM_NULL;
    bool owned = false;
    int rank = 0, size = 0;  ///< of the local group
    int remote_size = 0;     ///< 0 within one group
    bool has_root = true;    ///< the local group has the root

    [[nodiscard]] bool between() const { return remote_size > 0; }
    /// Ranks that data comes from and goes to.
    [[nodiscard]] int partners() const { return between() ? remote_size : size; }
    [[nodiscard]] int largest() const { return std::max(size, remote_size); }
    [[nodiscard]] bool is_root(int root) const { return has_root && rank == root; }
    [[nodiscard]] int root_argument(int root) const {
        if (!between() || !has_root) {
            return root;
        }
        return rank == root ? MPI_ROOT : MPI_PROC_NULL;
    }
};

/// Communicators of every sort. Each rank is in one of each sort.
class Places {
  public:
    enum class Sizes {
        all,
        several,  ///< no rank is alone in one
        one       ///< every rank is alone in each
    };
    explicit Places(const Run& run, Sizes sizes = Sizes::all) {
        MPI_Comm comm = MPI_COMM_NULL;
        if (sizes != Sizes::several) {
            add(MPI_COMM_SELF, false);
        }
        if (sizes == Sizes::one) {
            MPI_Comm_split(run.comm, run.rank, 0, &comm);
            add(comm, true);
            return;
        }
        add(run.comm, false);
        MPI_Comm_dup(run.comm, &comm);
        add(comm, true);
        MPI_Comm_split(run.comm, 0, run.size - run.rank, &comm);
        add(comm, true);
        if (run.size < 2) {
            return;
        }
        const bool even = run.rank % 2 == 0;
        MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
        MPI_Comm_split(run.comm, even ? 0 : 1, run.rank, &half);
        MPI_Intercomm_create(half, 0, run.comm, even ? 1 : 0, kTag, &between);
        add(between, true);
        MPI_Comm_remote_size(between, &list.back().remote_size);
        list.back().has_root = even;
        if (sizes == Sizes::all || run.size >= 4) {
            add(half, true);
        } else {
            MPI_Comm_free(&half);
        }
    }
    ~Places() {
        for (Place& place : list) {
            if (place.owned) {
                MPI_Comm_free(&place.comm);
            }
        }
    }
    Places(const Places&) = delete;
    Places& operator=(const Places&) = delete;

    std::vector<Place> list;

  private:
    void add(MPI_Comm comm, bool owned) {
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        Place place;
        place.comm = comm;
        place.owned = owned;
        MPI_Comm_rank(comm, &place.rank);
        MPI_Comm_size(comm, &place.size);
        list.push_back(place);
    }
};

// ---- layouts --------------------------------------------------------------------------------------------------------

/// The program's vector types, each as the doubles or the words of a row with gaps.
class StridedTypes {
  public:
    StridedTypes() {
        MPI_Datatype bare = MPI_DATATYPE_NULL;
        MPI_Type_vector(2, 1, 3, MPI_DOUBLE, &bare);
        MPI_Type_create_resized(bare, 0, 4 * sizeof(double), &doubles);
        MPI_Type_commit(&doubles);
        MPI_Type_free(&bare);
        MPI_Type_vector(3, 4, 7, MPI_UNSIGNED, &bare);
        MPI_Type_create_resized(bare, 0, 10 * sizeof(double), &words);
        MPI_Type_commit(&words);
        MPI_Type_free(&bare);
    }
    ~StridedTypes() {
        MPI_Type_free(&doubles);
        MPI_Type_free(&words);
    }
    StridedTypes(const StridedTypes&) = delete;
    StridedTypes& operator=(const StridedTypes&) = delete;

    MPI_Datatype doubles = MPI_DATATYPE_NULL;  ///< 2 in the room of 4
    MPI_Datatype words = MPI_DATATYPE_NULL;    ///< 12, which is 6 doubles, in the room of 10 doubles
};

/// How one side of a call sees a number of doubles. They take at most twice their room.
struct Layout {
    Layout(const StridedTypes& types, bool words, bool strided)
        : type(words ? (strided ? types.words : MPI_UNSIGNED) : (strided ? types.doubles : MPI_DOUBLE)),
          _multiply(words && !strided ? 2 : 1),
          _divide(!strided ? 1
                  : words  ? 6
                           : 2) {}
    [[nodiscard]] int count(int doubles) const { return doubles * _multiply / _divide; }

    MPI_Datatype type;

  private:
    int _multiply, _divide;
};

// ---- calls ----------------------------------------------------------------------------------------------------------

enum class Operation {
    allreduce,
    allreduce_in_place,
    bcast,
    reduce,
    reduce_in_place,
    gather,
    gatherv,
    scatter,
    allgather,
    allgather_in_place,
    alltoall,
    alltoallv,
    reduce_scatter_block,
    reduce_scatter,
    scan,
    barrier,
    count
};

/// Between two groups nothing is in place, there are no prefix reductions, and what is scattered must fit both groups.
bool exists_between_groups(Operation operation) {
    switch (operation) {
        case Operation::allreduce_in_place:
        case Operation::reduce_in_place:
        case Operation::allgather_in_place:
        case Operation::reduce_scatter_block:
        case Operation::reduce_scatter:
        case Operation::scan:
            return false;
        default:
            return true;
    }
}

/// One call; all ranks of its communicator draw the same.
struct Call {
    Call(Random& random, const Place& place, int room) : place(place) {
        constexpr std::array<int, 12> kCounts = {0, 1, 2, 3, 17, 100, 255, 1000, 1537, 5000, 16385, 40000};
        do {
            operation = static_cast<Operation>(random.below(static_cast<int>(Operation::count)));
        } while (place.between() && !exists_between_groups(operation));
        words = random.chance(50);
        // Between groups MPICH 5.0.2 never completes MPI_Igather of a strided type, and delivers nothing in MPI_Ibcast
        // from another root than 0.
        strided_out = random.chance(25) && !place.between();
        strided_in = random.chance(25) && !place.between();
        const int drawn_root = random.below(64);
        root = place.between() ? 0 : drawn_root % place.size;
        const int drawn = kCounts[to_size(random.below(static_cast<int>(kCounts.size())))];
        doubles = std::min(drawn, room / (2 * place.largest()));
        // A whole number of rows on the side that has any.
        if (strided_out || strided_in) {
            doubles -= doubles % 6;
        }
    }

    /// Doubles that either buffer must have room for.
    [[nodiscard]] int room() const { return 2 * place.largest() * doubles; }

    /// Makes it. `request`: null for the blocking form. The Call must live until the request is complete.
    int make(const StridedTypes& types, std::byte* out, std::byte* in, MPI_Request* request) {
        const Layout from(types, words, strided_out), to(types, words, strided_in);
        const int out_count = from.count(doubles), in_count = to.count(doubles);
        // Reductions take their operands without gaps.
        const MPI_Datatype type = words ? MPI_UNSIGNED : MPI_DOUBLE;
        const int count = words ? 2 * doubles : doubles;
        const std::array<MPI_Op, 3> ops = {MPI_SUM, MPI_MAX, words ? MPI_BXOR : MPI_MIN};
        const MPI_Op op = ops[to_size(doubles + root) % 3];
        const MPI_Comm comm = place.comm;
        const int root_argument = place.root_argument(root);
        const bool is_root = place.is_root(root);
#define MAKE(name, nonblocking_name, ...) \
    (request == nullptr ? MPI_##name(__VA_ARGS__) : nonblocking_name(__VA_ARGS__, request))
        switch (operation) {
            case Operation::allreduce:
                return MAKE(Allreduce, MPI_Iallreduce, out, in, count, type, op, comm);
            case Operation::allreduce_in_place:
                return MAKE(Allreduce, MPI_Iallreduce, MPI_IN_PLACE, in, count, type, op, comm);
            case Operation::bcast:
                return MAKE(Bcast, MPI_Ibcast, in, is_root ? out_count : in_count, is_root ? from.type : to.type,
                            root_argument, comm);
            case Operation::reduce:
                return MAKE(Reduce, MPI_Ireduce, out, is_root ? in : nullptr, count, type, op, root_argument, comm);
            case Operation::reduce_in_place:
                return MAKE(Reduce, MPI_Ireduce, is_root ? MPI_IN_PLACE : out, is_root ? in : nullptr, count, type, op,
                            root_argument, comm);
            case Operation::gather:
                return MAKE(Gather, MPI_Igather, out, out_count, from.type, is_root ? in : nullptr, in_count, to.type,
                            root_argument, comm);
            case Operation::gatherv:
                // Blocks in the opposite order, those that are short with gaps behind them.
                for (int rank = 0; rank < place.partners(); ++rank) {
                    _in_counts.push_back(rank % 3 == 2 ? 0 : in_count);
                    _in_at.push_back((place.partners() - 1 - rank) * in_count);
                }
                return MAKE(Gatherv, MPI_Igatherv, out, place.rank % 3 == 2 ? 0 : out_count, from.type,
                            is_root ? in : nullptr, _in_counts.data(), _in_at.data(), to.type, root_argument, comm);
            case Operation::scatter:
                return MAKE(Scatter, MPI_Iscatter, is_root ? out : nullptr, out_count, from.type, in, in_count, to.type,
                            root_argument, comm);
            case Operation::allgather:
                return MAKE(Allgather, MPI_Iallgather, out, out_count, from.type, in, in_count, to.type, comm);
            case Operation::allgather_in_place:
                return MAKE(Allgather, MPI_Iallgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, in_count, to.type, comm);
            case Operation::alltoall:
                return MAKE(Alltoall, MPI_Ialltoall, out, out_count, from.type, in, in_count, to.type, comm);
            case Operation::alltoallv:
                for (int rank = 0; rank < place.partners(); ++rank) {
                    const bool empty = (rank + place.rank) % 4 == 3;
                    _out_counts.push_back(empty ? 0 : out_count);
                    _out_at.push_back(rank * out_count);
                    _in_counts.push_back(empty ? 0 : in_count);
                    _in_at.push_back((place.partners() - 1 - rank) * in_count);
                }
                return MAKE(Alltoallv, MPI_Ialltoallv, out, _out_counts.data(), _out_at.data(), from.type, in,
                            _in_counts.data(), _in_at.data(), to.type, comm);
            case Operation::reduce_scatter_block:
                return MAKE(Reduce_scatter_block, MPI_Ireduce_scatter_block, out, in, count, type, op, comm);
            case Operation::reduce_scatter:
                for (int rank = 0; rank < place.size; ++rank) {
                    _in_counts.push_back(rank % 3 == 1 ? 0 : count);
                }
                return MAKE(Reduce_scatter, MPI_Ireduce_scatter, out, in, _in_counts.data(), type, op, comm);
            case Operation::scan:
                return MAKE(Scan, MPI_Iscan, out, in, count, type, op, comm);
            case Operation::barrier:
                return request == nullptr ? MPI_Barrier(comm) : MPI_Ibarrier(comm, request);
            case Operation::count:
                break;
        }
#undef MAKE
        return MPI_ERR_INTERN;
    }

    Place place;
    Operation operation = Operation::barrier;
    int doubles = 0;  ///< of a message, or of the part of one rank
    int root = 0;
    bool words = false;  ///< the elements are words of 4 bytes; else doubles
    bool strided_out = false, strided_in = false;

  private:
    std::vector<int> _out_counts, _out_at, _in_counts, _in_at;
};

std::vector<Call> draw_calls(Run& run, const Places& places, int number, int room, std::uint64_t seed) {
    Random random(combine(combine(drawn_sequences, seed), to_size(run.size)));
    std::vector<Call> calls;
    calls.reserve(to_size(number));
    for (int at = 0; at < number; ++at) {
        // The split's two halves draw alike; each communicator comes to its calls in one order.
        const int drawn = random.below(static_cast<int>(places.list.size()));
        calls.emplace_back(random, places.list[to_size(drawn)], room);
    }
    return calls;
}

// ---- cases ----------------------------------------------------------------------------------------------------------

/// Two buffers for all calls: each gets a fresh operand, is given to MPI, has its result carried away, and is
/// overwritten, all without a wait.
void in_a_row(Run& run, int number, int room) {
    const Places places(run);
    const StridedTypes types;
    std::vector<Call> calls = draw_calls(run, places, number, room, 100 + to_size(room));
    const auto bytes = to_size(room) * sizeof(double);
    std::byte* const out = run.input(bytes);
    std::byte* const in = run.input(bytes);
    const Kind out_kind = run.kind_of(out), in_kind = run.kind_of(in);
    // A call's operand begins a little further on than the one before.
    const std::size_t pattern_doubles = to_size(room + number);
    std::byte* const out_pattern = run.input_of(out_kind, pattern_doubles * sizeof(double));
    std::byte* const in_pattern = run.input_of(in_kind, pattern_doubles * sizeof(double));
    write_pattern(run, out_pattern, pattern_doubles, 1);
    write_pattern(run, in_pattern, pattern_doubles, 2);
    std::size_t archive_bytes = 0;
    for (const Call& call : calls) {
        archive_bytes += to_size(call.room()) * sizeof(double);
    }
    std::byte* archive = run.input_of(in_kind, archive_bytes);

    int step = 0;
    for (Call& call : calls) {
        const std::size_t used = to_size(call.room()) * sizeof(double);
        const std::size_t shift = to_size(step) * sizeof(double);
        copy(run, out_kind, out, out_pattern + shift, used);
        copy(run, in_kind, in, in_pattern + shift, used);
        OK(call.make(types, out, in, nullptr));
        copy(run, in_kind, archive, in, used);
        overwrite(run, out_kind, out, step, used);
        overwrite(run, in_kind, in, step + 1, used);
        archive += used;
        ++step;
    }
}

/// New memory for each call, freed as soon as the call returns: mappings and registrations of the old must not outlive
/// it, though the new often lies at the same address.
void freed_between_calls(Run& run) {
    constexpr int kCalls = 24, kRoom = 30000;
    const Places places(run);
    const StridedTypes types;
    std::vector<Call> calls = draw_calls(run, places, kCalls, kRoom, 200);
    int step = 0;
    for (Call& call : calls) {
        const std::size_t doubles = to_size(call.room());
        std::byte* const out = run.input(doubles * sizeof(double));
        std::byte* const in = run.input(doubles * sizeof(double));
        write_pattern(run, out, doubles, 10 + to_size(step));
        write_pattern(run, in, doubles, 1000 + to_size(step));
        OK(call.make(types, out, in, nullptr));
        // What is released is compared as it is then.
        run.release(out);
        run.release(in);
        ++step;
    }
}

/// Ways to complete many requests. Each rank takes its own.
enum class Completion { each, test_each, any, some, test_any, two_halves, count };

/// Completes all requests; says of each, once, that it is complete.
void complete(Run& run, std::vector<MPI_Request>& requests, Completion completion, Random& random,
              const std::function<void(std::size_t)>& completed) {
    const int number = static_cast<int>(requests.size());
    std::vector<std::size_t> order;
    for (std::size_t at = 0; at < requests.size(); ++at) {
        order.push_back(at);
    }
    random.shuffle(order);
    std::vector<int> indices(requests.size());
    switch (completion) {
        case Completion::each:
            for (const std::size_t at : order) {
                OK(MPI_Wait(&requests[at], MPI_STATUS_IGNORE));
                completed(at);
            }
            break;
        case Completion::test_each:
            while (!order.empty()) {
                for (std::size_t place = 0; place < order.size();) {
                    int flag = 0;
                    OK(MPI_Test(&requests[order[place]], &flag, MPI_STATUS_IGNORE));
                    if (flag == 0) {
                        ++place;
                        continue;
                    }
                    completed(order[place]);
                    order.erase(order.begin() + static_cast<std::ptrdiff_t>(place));
                }
            }
            break;
        case Completion::any:
            for (int done = 0; done < number; ++done) {
                int index = MPI_UNDEFINED;
                OK(MPI_Waitany(number, requests.data(), &index, MPI_STATUS_IGNORE));
                completed(to_size(index));
            }
            break;
        case Completion::test_any:
            for (int done = 0; done < number;) {
                int index = MPI_UNDEFINED, flag = 0;
                OK(MPI_Testany(number, requests.data(), &index, &flag, MPI_STATUS_IGNORE));
                if (flag == 0) {
                    continue;
                }
                completed(to_size(index));
                ++done;
            }
            break;
        case Completion::some:
            for (int left = number; left > 0;) {
                int done = 0;
                OK(MPI_Waitsome(number, requests.data(), &done, indices.data(), MPI_STATUSES_IGNORE));
                for (int at = 0; at < done; ++at) {
                    completed(to_size(indices[to_size(at)]));
                }
                left -= done;
            }
            break;
        default: {
            // The later half first.
            const int half = number / 2;
            OK(MPI_Waitall(number - half, requests.data() + half, MPI_STATUSES_IGNORE));
            for (int at = half; at < number; ++at) {
                completed(to_size(at));
            }
            OK(MPI_Waitall(half, requests.data(), MPI_STATUSES_IGNORE));
            for (int at = 0; at < half; ++at) {
                completed(to_size(at));
            }
        }
    }
}

Random own_random(const Run& run, std::uint64_t role) {
    return Random(combine(role, 7000 + to_size(run.rank)));
}

/// Two and a half dozen on all communicators at once.
void outstanding(Run& run, Completion first, Places::Sizes sizes) {
    constexpr int kCalls = 30, kRoom = 6000;
    const Places places(run, sizes);
    const StridedTypes types;
    const auto kind_of_completion = static_cast<std::uint64_t>(first);
    std::vector<Call> calls = draw_calls(run, places, kCalls, kRoom, 300 + kind_of_completion);
    std::vector<std::byte*> outs, ins;
    std::vector<MPI_Request> requests(calls.size(), MPI_REQUEST_NULL);
    for (std::size_t at = 0; at < calls.size(); ++at) {
        const std::size_t doubles = to_size(calls[at].room());
        outs.push_back(run.input(doubles * sizeof(double)));
        ins.push_back(run.input(doubles * sizeof(double)));
        write_pattern(run, outs.back(), doubles, 20 + at);
        write_pattern(run, ins.back(), doubles, 2000 + at);
    }
    for (std::size_t at = 0; at < calls.size(); ++at) {
        OK(calls[at].make(types, outs[at], ins[at], &requests[at]));
    }
    Random random = own_random(run, kind_of_completion);
    const int own = (static_cast<int>(first) + run.rank) % static_cast<int>(Completion::count);
    complete(run, requests, static_cast<Completion>(own), random, [&](std::size_t at) {
        overwrite(run, run.kind_of(outs[at]), outs[at], static_cast<int>(at),
                  to_size(calls[at].room()) * sizeof(double));
    });
}

/// One operand that many operations read at once, and that is overwritten when the last of them is complete.
void shared_operand(Run& run) {
    const int count = 3001;
    const auto size = to_size(run.size);
    const std::size_t bytes = to_size(count) * sizeof(double);
    std::byte* const out = run.input(bytes * size);
    write_pattern(run, out, to_size(count) * size, 3);
    std::vector<std::byte*> ins;
    for (int at = 0; at < 7; ++at) {
        ins.push_back(run.input(bytes * size));
    }
    std::vector<MPI_Request> requests(7, MPI_REQUEST_NULL);
    const int last = run.size - 1;
    OK(MPI_Iallreduce(out, ins[0], count, MPI_DOUBLE, MPI_SUM, run.comm, &requests[0]));
    OK(MPI_Ialltoall(out, count, MPI_DOUBLE, ins[1], count, MPI_DOUBLE, run.comm, &requests[1]));
    OK(MPI_Iallgather(out, count, MPI_DOUBLE, ins[2], count, MPI_DOUBLE, run.comm, &requests[2]));
    OK(MPI_Ireduce(out, ins[3], count, MPI_DOUBLE, MPI_MAX, last, run.comm, &requests[3]));
    OK(MPI_Igather(out, count, MPI_DOUBLE, ins[4], count, MPI_DOUBLE, 0, run.comm, &requests[4]));
    OK(MPI_Iscan(out, ins[5], count, MPI_DOUBLE, MPI_SUM, run.comm, &requests[5]));
    OK(MPI_Ireduce_scatter_block(out, ins[6], count, MPI_DOUBLE, MPI_MIN, run.comm, &requests[6]));
    Random random = own_random(run, 40);
    std::size_t done = 0;
    complete(run, requests, Completion::each, random, [&](std::size_t) {
        if (++done == requests.size()) {
            overwrite(run, run.kind_of(out), out, 9, bytes * size);
        }
    });
}

/// Everything that may happen between the start of an operation and its completion.
void between_start_and_completion(Run& run) {
    const Ring ring(run);
    const auto size = to_size(run.size);
    for (const int count : {5, 20011}) {
        const std::size_t doubles = to_size(count), bytes = doubles * sizeof(double);
        std::array<std::byte*, 12> buffers;
        for (std::size_t at = 0; at < buffers.size(); ++at) {
            buffers[at] = run.input(bytes * size);
            write_pattern(run, buffers[at], doubles * size, 50 + at);
        }
        std::vector<MPI_Request> requests(6, MPI_REQUEST_NULL);
        OK(MPI_Irecv(buffers[0], count, MPI_DOUBLE, ring.previous, kTag, run.comm, &requests[0]));
        OK(MPI_Iallreduce(buffers[1], buffers[2], count, MPI_DOUBLE, MPI_SUM, run.comm, &requests[1]));
        OK(MPI_Barrier(run.comm));
        OK(MPI_Ialltoall(buffers[3], count, MPI_DOUBLE, buffers[4], count, MPI_DOUBLE, run.comm, &requests[2]));
        MPI_Comm duplicate = MPI_COMM_NULL, reversed = MPI_COMM_NULL;
        OK(MPI_Comm_dup(run.comm, &duplicate));
        OK(MPI_Ibcast(buffers[5], count, MPI_DOUBLE, run.size - 1, duplicate, &requests[3]));
        OK(MPI_Isend(buffers[6], count, MPI_DOUBLE, ring.next, kTag, run.comm, &requests[4]));
        OK(MPI_Comm_split(run.comm, 0, run.size - run.rank, &reversed));
        // Blocking operations on communicators with others outstanding, older than they and younger.
        OK(MPI_Allreduce(MPI_IN_PLACE, buffers[7], count, MPI_DOUBLE, MPI_MAX, run.comm));
        OK(MPI_Bcast(buffers[8], count, MPI_DOUBLE, 0, duplicate));
        OK(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffers[9], count, MPI_DOUBLE, reversed, &requests[5]));
        OK(MPI_Sendrecv(buffers[10], count, MPI_DOUBLE, ring.next, kTag + 1, buffers[11], count, MPI_DOUBLE,
                        ring.previous, kTag + 1, run.comm, MPI_STATUS_IGNORE));
        int flag = 0;
        OK(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE));
        // Freed communicators live until what is outstanding on them is complete.
        OK(MPI_Comm_free(&duplicate));
        OK(MPI_Comm_free(&reversed));
        if (flag != 0) {
            continue;
        }
        Random random = own_random(run, 60);
        complete(run, requests, Completion::each, random, [](std::size_t) {});
    }
}

/// The start of a nonblocking operation must not wait for other ranks: each rank starts only when the one before it has
/// told it that it has.
void starts_wait_for_nobody(Run& run) {
    const Ring ring(run);
    for (const int count : {3, 30001}) {
        const std::size_t bytes = to_size(count) * sizeof(double);
        const auto size = to_size(run.size);
        std::array<std::byte*, 8> buffers;
        for (std::size_t at = 0; at < buffers.size(); ++at) {
            buffers[at] = run.input(bytes * size);
            write_pattern(run, buffers[at], to_size(count) * size, 70 + at);
        }
        const std::array<std::function<int(MPI_Request*)>, 5> starts = {
            [&](MPI_Request* request) {
                return MPI_Iallreduce(buffers[0], buffers[1], count, MPI_DOUBLE, MPI_SUM, run.comm, request);
            },
            [&](MPI_Request* request) { return MPI_Ibcast(buffers[2], count, MPI_DOUBLE, 0, run.comm, request); },
            [&](MPI_Request* request) {
                return MPI_Ialltoall(buffers[3], count, MPI_DOUBLE, buffers[4], count, MPI_DOUBLE, run.comm, request);
            },
            [&](MPI_Request* request) {
                return MPI_Iallgather(buffers[5], count, MPI_DOUBLE, buffers[6], count, MPI_DOUBLE, run.comm, request);
            },
            [&](MPI_Request* request) {
                return MPI_Ireduce(run.rank == 0 ? MPI_IN_PLACE : buffers[7], run.rank == 0 ? buffers[7] : nullptr,
                                   count, MPI_DOUBLE, MPI_SUM, 0, run.comm, request);
            },
        };
        std::vector<MPI_Request> requests(starts.size(), MPI_REQUEST_NULL);
        for (std::size_t at = 0; at < starts.size(); ++at) {
            if (run.rank > 0) {
                await_token(run, ring.previous, kTag);
            }
            OK(starts[at](&requests[at]));
            if (run.rank < run.size - 1) {
                send_token(run, ring.next, kTag);
            }
        }
        Random random = own_random(run, 80);
        complete(run, requests, Completion::test_each, random, [](std::size_t) {});
    }
}

/// A rank waits for its whole GPU between the start of an operation and the message that lets the others start it: what
/// waits for other ranks must not be on the GPU yet.
void synchronised_in_between(Run& run) {
    const Ring ring(run);
    for (const int count : {3, 30001}) {
        const std::size_t bytes = to_size(count) * sizeof(double);
        std::byte* const out = run.input(bytes);
        std::byte* const in = run.input(bytes);
        std::byte* const message = run.input(bytes);
        for (std::byte* const each : {out, in, message}) {
            write_pattern(run, each, to_size(count), 75);
        }
        // Agreed on beforehand: the nonblocking ones may then be the GPUs' own.
        for (int round = 0; round < 3; ++round) {
            OK(MPI_Allreduce(out, in, count, MPI_DOUBLE, MPI_SUM, run.comm));
        }
        for (int round = 0; round < 4; ++round) {
            MPI_Request request = MPI_REQUEST_NULL;
            const int first = round % run.size;
            if (run.rank != first) {
                OK(MPI_Recv(message, count, MPI_DOUBLE, ring.previous, kTag, run.comm, MPI_STATUS_IGNORE));
            }
            OK(MPI_Iallreduce(out, in, count, MPI_DOUBLE, MPI_SUM, run.comm, &request));
            run.gpu().synchronize();
            if (ring.next != first) {
                OK(MPI_Send(message, count, MPI_DOUBLE, ring.next, kTag, run.comm));
            }
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        }
    }
}

/// Each rank computes for a different time between calls, so that ranks are far apart when they come to them.
void ranks_far_apart(Run& run) {
    constexpr int kCalls = 10, kRoom = 8000;
    const Places places(run);
    const StridedTypes types;
    std::vector<Call> calls = draw_calls(run, places, kCalls, kRoom, 400);
    std::vector<std::byte*> outs, ins;
    for (std::size_t at = 0; at < calls.size(); ++at) {
        const std::size_t doubles = to_size(calls[at].room());
        outs.push_back(run.input(doubles * sizeof(double)));
        ins.push_back(run.input(doubles * sizeof(double)));
        write_pattern(run, outs.back(), doubles, 90 + at);
        write_pattern(run, ins.back(), doubles, 9000 + at);
    }
    for (std::size_t at = 0; at < calls.size(); ++at) {
        if ((at + to_size(run.rank)) % 3 == 0) {
            compute(3);
        }
        OK(calls[at].make(types, outs[at], ins[at], nullptr));
        overwrite(run, run.kind_of(outs[at]), outs[at], 5, to_size(calls[at].room()) * sizeof(double));
    }
}

/// Megabytes, in odd counts, all outstanding at once.
void large(Run& run) {
    const auto size = to_size(run.size);
    const int whole = 786433, part = 262147;  // doubles: 6 MiB and a little more, and 2 MiB
    const std::size_t whole_bytes = to_size(whole) * sizeof(double), part_bytes = to_size(part) * sizeof(double);
    std::byte* const reduced = run.input(whole_bytes);
    std::byte* const result = run.input(whole_bytes);
    std::byte* const shared = run.input(whole_bytes);
    std::byte* const gathered = run.input(part_bytes * size);
    std::byte* const received = run.input(part_bytes * size);
    std::byte* const scattered = run.input(part_bytes);
    write_pattern(run, reduced, to_size(whole), 5);
    write_pattern(run, gathered, to_size(part) * size, 6);
    std::vector<MPI_Request> requests(4, MPI_REQUEST_NULL);
    OK(MPI_Iallreduce(reduced, result, whole, MPI_DOUBLE, MPI_SUM, run.comm, &requests[0]));
    OK(MPI_Ibcast(shared, whole, MPI_DOUBLE, run.size / 2, run.comm, &requests[1]));
    OK(MPI_Ialltoall(gathered, part, MPI_DOUBLE, received, part, MPI_DOUBLE, run.comm, &requests[2]));
    OK(MPI_Ireduce_scatter_block(gathered, scattered, part, MPI_DOUBLE, MPI_SUM, run.comm, &requests[3]));
    Random random = own_random(run, 110);
    complete(run, requests, Completion::some, random, [](std::size_t) {});
    OK(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, gathered, part, MPI_DOUBLE, run.comm, &requests[0]));
    OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
}

#if RANKS_HAVE_MPI4
/// A dozen persistent operations, started together or in parts, with operands that change between starts.
void persistent(Run& run) {
    constexpr int kRounds = 3;
    const auto size = to_size(run.size);
    std::vector<MPI_Request> requests;
    std::vector<std::byte*> outs, ins;
    std::vector<std::size_t> lengths;
    for (const int count : {2, 700, 9001}) {
        const std::size_t doubles = to_size(count) * size;
        for (int at = 0; at < 4; ++at) {
            outs.push_back(run.input(doubles * sizeof(double)));
            ins.push_back(run.input(doubles * sizeof(double)));
            lengths.push_back(doubles);
        }
        const std::size_t first = outs.size() - 4;
        MPI_Request request = MPI_REQUEST_NULL;
        OK(MPI_Allreduce_init(outs[first], ins[first], count, MPI_DOUBLE, MPI_SUM, run.comm, MPI_INFO_NULL, &request));
        requests.push_back(request);
        OK(MPI_Bcast_init(ins[first + 1], count, MPI_DOUBLE, run.size - 1, run.comm, MPI_INFO_NULL, &request));
        requests.push_back(request);
        OK(MPI_Alltoall_init(outs[first + 2], count, MPI_DOUBLE, ins[first + 2], count, MPI_DOUBLE, run.comm,
                             MPI_INFO_NULL, &request));
        requests.push_back(request);
        OK(MPI_Allgather_init(outs[first + 3], count, MPI_DOUBLE, ins[first + 3], count, MPI_DOUBLE, run.comm,
                              MPI_INFO_NULL, &request));
        requests.push_back(request);
    }
    const int number = static_cast<int>(requests.size());
    Random random = own_random(run, 120);
    for (int round = 0; round < kRounds; ++round) {
        for (std::size_t at = 0; at < outs.size(); ++at) {
            write_pattern(run, outs[at], lengths[at], combine(to_size(round), at));
            write_pattern(run, ins[at], lengths[at], combine(to_size(round), 100 + at));
        }
        if (round == 1) {
            for (MPI_Request& request : requests) {
                OK(MPI_Start(&request));
            }
        } else {
            OK(MPI_Startall(number, requests.data()));
        }
        const auto completion = static_cast<Completion>((2 * round + run.rank) % static_cast<int>(Completion::count));
        complete(run, requests, completion, random, [&](std::size_t at) {
            run.note_bytes(format("round %d, request %zu", round, at), ins[at], lengths[at] * sizeof(double));
        });
    }
    // A part of them once more, in an order that the requests were not made in.
    for (int at = number - 1; at >= 0; at -= 2) {
        OK(MPI_Start(&requests[to_size(at)]));
    }
    OK(MPI_Waitall(number, requests.data(), MPI_STATUSES_IGNORE));
    // Matched when they were made: each rank may start them in an order of its own.
    for (int at = 0; at < number; ++at) {
        OK(MPI_Start(&requests[to_size((at * 5 + 3 * run.rank) % number)]));
    }
    OK(MPI_Waitall(number, requests.data(), MPI_STATUSES_IGNORE));
    for (MPI_Request& request : requests) {
        OK(MPI_Request_free(&request));
    }
}
#endif

/// Several threads, each with a communicator of its own, in calls that depend on each other's results.
void threads(Run& run) {
    constexpr int kThreads = 3, kRounds = 5;
    int provided = MPI_THREAD_SINGLE;
    MPI_Query_thread(&provided);
    if (provided != MPI_THREAD_MULTIPLE) {
        return;
    }
    // Threads do not touch the Run, which is not made for that.
    std::array<MPI_Comm, kThreads> comms;
    std::array<std::byte*, kThreads> outs, ins;
    std::array<int, kThreads> counts;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
        OK(MPI_Comm_dup(run.comm, &comms[thread]));
        counts[thread] = std::array<int, kThreads>{3, 501, 6007}[thread];
        const std::size_t words = to_size(counts[thread]) * to_size(run.size);
        outs[thread] = run.input(words * sizeof(unsigned));
        ins[thread] = run.input(words * sizeof(unsigned));
    }
    std::atomic<int> failures{0};
    const auto work = [&](std::size_t thread) {
        const MPI_Comm comm = comms[thread];
        std::byte* const out = outs[thread];
        std::byte* const in = ins[thread];
        const int count = counts[thread];
        const auto expect = [&](int code) { failures += code == MPI_SUCCESS ? 0 : 1; };
        for (int round = 0; round < kRounds; ++round) {
            MPI_Request request = MPI_REQUEST_NULL;
            expect(MPI_Allreduce(out, in, count, MPI_UNSIGNED, MPI_SUM, comm));
            expect(MPI_Ibcast(out, count, MPI_UNSIGNED, round % run.size, comm, &request));
            expect(MPI_Wait(&request, MPI_STATUS_IGNORE));
            expect(MPI_Alltoall(in, count, MPI_UNSIGNED, out, count, MPI_UNSIGNED, comm));
            expect(MPI_Iallgather(out, count, MPI_UNSIGNED, in, count, MPI_UNSIGNED, comm, &request));
            for (int flag = 0; flag == 0;) {
                expect(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
            }
            expect(MPI_Barrier(comm));
            expect(MPI_Scan(in, out, count, MPI_UNSIGNED, MPI_BXOR, comm));
        }
    };
    std::vector<std::thread> workers;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
        workers.emplace_back(work, thread);
    }
    for (std::thread& worker : workers) {
        worker.join();
    }
    run.expect(failures == 0, format("%d calls failed in threads", failures.load()));
    for (MPI_Comm& comm : comms) {
        OK(MPI_Comm_free(&comm));
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (const std::optional<std::string> text = take_option(argc, argv, "--draw")) {
        drawn_sequences = std::stoull(*text);
    }
    const bool single = take_option(argc, argv, "--single").has_value();
    Suite suite(argc, argv);
    int provided = MPI_THREAD_SINGLE;
    if (single) {
        MPI_Init(&argc, &argv);
    } else {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    }
    suite.add("in_a_row", [](Run& run) { in_a_row(run, 60, 12000); }, 1);
    suite.add("in_a_row_up_to_megabytes", [](Run& run) { in_a_row(run, 40, 400000); }, 1, Weight::heavy);
    suite.add("in_a_row_many", [](Run& run) { in_a_row(run, 2000, 60000); }, 1, Weight::longer);
    suite.add("freed_between_calls", freed_between_calls, 1);
    const char* const names[] = {"each", "test_each", "any", "some", "test_any", "two_halves"};
    for (int at = 0; at < static_cast<int>(Completion::count); ++at) {
        suite.add(
            std::string("outstanding_") + names[at],
            [at](Run& run) { outstanding(run, static_cast<Completion>(at), Places::Sizes::several); }, 2,
            Weight::heavy);
    }
    suite.add("alone", [](Run& run) { outstanding(run, Completion::test_each, Places::Sizes::one); }, 1, Weight::heavy);
    suite.add("shared_operand", shared_operand);
    suite.add("between_start_and_completion", between_start_and_completion);
    suite.add("starts_wait_for_nobody", starts_wait_for_nobody);
    suite.add("synchronised_in_between", synchronised_in_between);
    suite.add("ranks_far_apart", ranks_far_apart, 1, Weight::heavy);
    suite.add("large", large, 2, Weight::heavy);
#if RANKS_HAVE_MPI4
    suite.add("persistent", persistent, 1, Weight::heavy);
#endif
    suite.add("threads", threads, 1, Weight::heavy);
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
