// SPDX-License-Identifier: Apache-2.0
// Collectives: each one in its blocking, nonblocking and persistent form, on every mix of buffer kinds.
//
// A collective is written once, as a function that fills in one call; the three forms share it.
#include <array>
#include <optional>

#include "support.h"

using namespace ranks;

namespace {

/// How a collective is called.
enum class Form { blocking, nonblocking, persistent };

/// The three forms of one collective for one set of arguments. `start` receives a null pointer for the blocking form.
struct Forms {
    std::function<int()> blocking;
    std::function<int(MPI_Request*)> nonblocking;
    std::function<int(MPI_Request*)> persistent;
};

/// Carries one call out. `refresh` gives the buffers new content between two starts of a persistent operation.
void carry_out(Run& run, Form form, const Forms& forms, const std::function<void(int)>& refresh = nullptr) {
    MPI_Request request = MPI_REQUEST_NULL;
    switch (form) {
        case Form::blocking:
            OK(forms.blocking());
            break;
        case Form::nonblocking:
            OK(forms.nonblocking(&request));
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            break;
        case Form::persistent:
            OK(forms.persistent(&request));
            for (int round = 0; round < 2; ++round) {
                if (round > 0 && refresh) {
                    refresh(round);
                }
                OK(MPI_Start(&request));
                if (round == 0) {
                    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
                } else {
                    for (int flag = 0; flag == 0;) {
                        OK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
                    }
                }
            }
            OK(MPI_Request_free(&request));
            break;
    }
}

#if RANKS_HAVE_MPI4
#define PERSISTENT(name, ...) \
    [&](MPI_Request* request) { return MPI_##name##_init(__VA_ARGS__, MPI_INFO_NULL, request); }
#else
#define PERSISTENT(name, ...) [&](MPI_Request*) { return MPI_ERR_UNSUPPORTED_OPERATION; }
#endif
/// The three forms of MPI_<name> with these arguments.
#define FORMS(name, ...)                                                                                           \
    Forms {                                                                                                        \
        [&] { return MPI_##name(__VA_ARGS__); },                                                                   \
            [&](MPI_Request* request) { return MPI_I##name(__VA_ARGS__, request); }, PERSISTENT(name, __VA_ARGS__) \
    }

// MPI_Ibcast and so on: the nonblocking names start with a small letter after the I.
#define MPI_IBcast MPI_Ibcast
#define MPI_IReduce MPI_Ireduce
#define MPI_IAllreduce MPI_Iallreduce
#define MPI_IGather MPI_Igather
#define MPI_IGatherv MPI_Igatherv
#define MPI_IScatter MPI_Iscatter
#define MPI_IScatterv MPI_Iscatterv
#define MPI_IAllgather MPI_Iallgather
#define MPI_IAllgatherv MPI_Iallgatherv
#define MPI_IAlltoall MPI_Ialltoall
#define MPI_IAlltoallv MPI_Ialltoallv
#define MPI_IAlltoallw MPI_Ialltoallw
#define MPI_IReduce_scatter MPI_Ireduce_scatter
#define MPI_IReduce_scatter_block MPI_Ireduce_scatter_block
#define MPI_IScan MPI_Iscan
#define MPI_IExscan MPI_Iexscan
#define MPI_INeighbor_allgather MPI_Ineighbor_allgather
#define MPI_INeighbor_allgatherv MPI_Ineighbor_allgatherv
#define MPI_INeighbor_alltoall MPI_Ineighbor_alltoall
#define MPI_INeighbor_alltoallv MPI_Ineighbor_alltoallv
#define MPI_INeighbor_alltoallw MPI_Ineighbor_alltoallw

const std::vector<int> kCounts = {0, 1, 17, 3000, 60000};

int sum_of(const std::vector<int>& values) {
    int sum = 0;
    for (const int value : values) {
        sum += value;
    }
    return sum;
}

/// Counts that differ by rank, zero among them, with displacements that leave gaps and are not in order.
struct Blocks {
    Blocks(int size, int base, int shift = 0) {
        int at = 0;
        counts.resize(static_cast<std::size_t>(size));
        displacements.resize(static_cast<std::size_t>(size));
        for (int step = 0; step < size; ++step) {
            const auto rank = static_cast<std::size_t>((step + 1) % size);
            counts[rank] = static_cast<int>((rank + static_cast<std::size_t>(shift)) % 3) * base;
            displacements[rank] = at;
            at += counts[rank] + 2;
        }
        total = static_cast<std::size_t>(at) + 3;
    }
    std::vector<int> counts, displacements;
    std::size_t total = 0;
};

void broadcast(Run& run, Form form) {
    for (int root = 0; root < run.size; ++root) {
        for (const int count : kCounts) {
            int* data = run.output<int>(static_cast<std::size_t>(count));
            carry_out(run, form, FORMS(Bcast, data, count, MPI_INT, root, run.comm), [&](int round) {
                if (count > 0) {
                    run.refill(data, static_cast<std::size_t>(count) * sizeof(int), static_cast<std::uint64_t>(round));
                }
            });
        }
    }
}

void gather(Run& run, Form form) {
    for (int root = 0; root < run.size; ++root) {
        for (const int count : {0, 1, 17, 20000}) {
            const auto all = static_cast<std::size_t>(count) * static_cast<std::size_t>(run.size);
            int* out = run.values<int>(static_cast<std::size_t>(count));
            int* in = run.output<int>(all);
            const void* receive = run.rank == root ? in : nullptr;
            auto* target = const_cast<void*>(receive);
            carry_out(run, form, FORMS(Gather, out, count, MPI_INT, target, count, MPI_INT, root, run.comm));
            // In place: the root's own part is there already.
            int* both = run.output<int>(all);
            const void* source = run.rank == root ? MPI_IN_PLACE : static_cast<const void*>(out);
            carry_out(run, form, FORMS(Gather, source, count, MPI_INT, both, count, MPI_INT, root, run.comm));

            int* scattered = run.output<int>(static_cast<std::size_t>(count));
            const void* from = run.rank == root ? in : nullptr;
            carry_out(run, form, FORMS(Scatter, from, count, MPI_INT, scattered, count, MPI_INT, root, run.comm));
            int* kept = run.output<int>(static_cast<std::size_t>(count));
            void* place = run.rank == root ? MPI_IN_PLACE : static_cast<void*>(kept);
            carry_out(run, form, FORMS(Scatter, from, count, MPI_INT, place, count, MPI_INT, root, run.comm));
        }
    }
}

void gather_varying(Run& run, Form form) {
    for (int root = 0; root < run.size; ++root) {
        for (const int base : {1, 500}) {
            const Blocks blocks(run.size, base);
            const int mine = blocks.counts[static_cast<std::size_t>(run.rank)];
            int* out = run.values<int>(static_cast<std::size_t>(mine));
            int* in = run.output<int>(blocks.total);
            const int* counts = blocks.counts.data();
            const int* displacements = blocks.displacements.data();
            carry_out(run, form,
                      FORMS(Gatherv, out, mine, MPI_INT, in, counts, displacements, MPI_INT, root, run.comm));
            const void* source = run.rank == root ? MPI_IN_PLACE : static_cast<const void*>(out);
            int* both = run.output<int>(blocks.total);
            carry_out(run, form,
                      FORMS(Gatherv, source, mine, MPI_INT, both, counts, displacements, MPI_INT, root, run.comm));
            int* scattered = run.output<int>(static_cast<std::size_t>(mine) + 2);
            carry_out(run, form,
                      FORMS(Scatterv, in, counts, displacements, MPI_INT, scattered, mine, MPI_INT, root, run.comm));
            void* place = run.rank == root ? MPI_IN_PLACE : static_cast<void*>(scattered);
            carry_out(run, form,
                      FORMS(Scatterv, both, counts, displacements, MPI_INT, place, mine, MPI_INT, root, run.comm));
        }
    }
}

void allgather(Run& run, Form form) {
    for (const int count : kCounts) {
        const auto all = static_cast<std::size_t>(count) * static_cast<std::size_t>(run.size);
        int* out = run.values<int>(static_cast<std::size_t>(count));
        int* in = run.output<int>(all);
        carry_out(run, form, FORMS(Allgather, out, count, MPI_INT, in, count, MPI_INT, run.comm), [&](int round) {
            if (count > 0) {
                run.refill(out, static_cast<std::size_t>(count) * sizeof(int), static_cast<std::uint64_t>(round));
            }
        });
        int* both = run.output<int>(all);
        carry_out(run, form, FORMS(Allgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, both, count, MPI_INT, run.comm));
    }
    for (const int base : {1, 700}) {
        const Blocks blocks(run.size, base);
        const int mine = blocks.counts[static_cast<std::size_t>(run.rank)];
        const int* counts = blocks.counts.data();
        const int* displacements = blocks.displacements.data();
        int* out = run.values<int>(static_cast<std::size_t>(mine));
        int* in = run.output<int>(blocks.total);
        carry_out(run, form, FORMS(Allgatherv, out, mine, MPI_INT, in, counts, displacements, MPI_INT, run.comm));
        int* both = run.output<int>(blocks.total);
        carry_out(
            run, form,
            FORMS(Allgatherv, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, both, counts, displacements, MPI_INT, run.comm));
    }
}

void alltoall(Run& run, Form form) {
    for (const int count : {0, 1, 17, 9000}) {
        const auto all = static_cast<std::size_t>(count) * static_cast<std::size_t>(run.size);
        int* out = run.values<int>(all);
        int* in = run.output<int>(all);
        carry_out(run, form, FORMS(Alltoall, out, count, MPI_INT, in, count, MPI_INT, run.comm));
#ifdef OPEN_MPI  // Open MPI 5.0.11 has no nonblocking or persistent in-place form
        if (form != Form::blocking) {
            continue;
        }
#endif
        int* both = run.output<int>(all);
        carry_out(run, form, FORMS(Alltoall, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, both, count, MPI_INT, run.comm));
    }
}

/// counts[i][j] from rank i to rank j, known to all.
int pair_count(int from, int to, int base) {
    return (from * 2 + to) % 3 * base;
}
int symmetric_count(int one, int other, int base) {
    return (one + other) % 3 * base;
}

struct Exchange {
    Exchange(const Run& run, int base, bool symmetric) {
        int out_at = 0, in_at = 0;
        for (int peer = 0; peer < run.size; ++peer) {
            const int out = symmetric ? symmetric_count(run.rank, peer, base) : pair_count(run.rank, peer, base);
            const int in = symmetric ? out : pair_count(peer, run.rank, base);
            out_counts.push_back(out);
            in_counts.push_back(in);
            out_displacements.push_back(out_at);
            in_displacements.push_back(in_at);
            out_at += out + 1;
            in_at += in + 2;
        }
        out_total = static_cast<std::size_t>(out_at);
        in_total = static_cast<std::size_t>(in_at);
    }
    std::vector<int> out_counts, out_displacements, in_counts, in_displacements;
    std::size_t out_total = 0, in_total = 0;
};

void alltoall_varying(Run& run, Form form) {
    for (const int base : {1, 600}) {
        const Exchange exchange(run, base, false);
        int* out = run.values<int>(exchange.out_total);
        int* in = run.output<int>(exchange.in_total);
        const int* out_counts = exchange.out_counts.data();
        const int* out_at = exchange.out_displacements.data();
        const int* in_counts = exchange.in_counts.data();
        const int* in_at = exchange.in_displacements.data();
        carry_out(run, form,
                  FORMS(Alltoallv, out, out_counts, out_at, MPI_INT, in, in_counts, in_at, MPI_INT, run.comm));
#ifdef OPEN_MPI
        if (form != Form::blocking) {
            continue;
        }
#endif
        const Exchange same(run, base, true);
        int* both = run.output<int>(same.in_total);
        const int* counts = same.in_counts.data();
        const int* at = same.in_displacements.data();
        carry_out(
            run, form,
            FORMS(Alltoallv, MPI_IN_PLACE, nullptr, nullptr, MPI_DATATYPE_NULL, both, counts, at, MPI_INT, run.comm));
    }
}

#if RANKS_HAVE_MPI4 && !defined(OPEN_MPI)  // Open MPI 5 has no functions that count in MPI_Count here
/// Parts that lie in as many allocations, of several kinds of memory, maybe. (From MPI_BOTTOM on MPICH refuses them.)
void alltoall_of_allocations(Run& run) {
    for (const int bytes : {24, 70000}) {
        const auto size = static_cast<std::size_t>(run.size);
        const std::vector<MPI_Count> counts(size, bytes);
        std::vector<std::byte*> out(size), in(size);
        std::vector<MPI_Aint> out_at(size), in_at(size);
        for (std::size_t peer = 0; peer < size; ++peer) {
            out[peer] = run.input(static_cast<std::size_t>(bytes));
            in[peer] = run.input(static_cast<std::size_t>(bytes));
            MPI_Aint address = 0, first = 0;
            OK(MPI_Get_address(out[0], &first));
            OK(MPI_Get_address(out[peer], &address));
            out_at[peer] = MPI_Aint_diff(address, first);
            OK(MPI_Get_address(in[0], &first));
            OK(MPI_Get_address(in[peer], &address));
            in_at[peer] = MPI_Aint_diff(address, first);
        }
        OK(MPI_Alltoallv_c(out[0], counts.data(), out_at.data(), MPI_BYTE, in[0], counts.data(), in_at.data(), MPI_BYTE,
                           run.comm));
    }
}
#endif

/// The first rank's receive buffer means nothing to MPI_Exscan, and may be too short.
void exscan_of_nothing(Run& run) {
    constexpr int kCount = 300;
    const bool first = run.rank == 0;
    for (const int count : {kCount, 100 * kCount}) {
        int* out = run.values<int>(static_cast<std::size_t>(count));
        int* in = run.output<int>(first ? 2 : static_cast<std::size_t>(count));
        OK(MPI_Exscan(out, in, count, MPI_INT, MPI_SUM, run.comm));
    }
}

/// Types freed at the end of a scope.
struct Types {
    std::vector<MPI_Datatype> list;
    ~Types() {
        for (MPI_Datatype& type : list) {
            if (type != MPI_INT && type != MPI_DOUBLE && type != MPI_SHORT) {
                MPI_Type_free(&type);
            }
        }
    }
};

MPI_Datatype strided(int blocks, MPI_Datatype basic) {
    MPI_Datatype type;
    MPI_Type_vector(blocks, 1, 2, basic, &type);
    MPI_Type_commit(&type);
    return type;
}

/// Different types for different peers, displacements in bytes.
void alltoall_typed(Run& run, Form form) {
    const auto size = static_cast<std::size_t>(run.size);
    Types out_types, in_types;
    std::vector<int> out_counts(size), in_counts(size), out_at(size), in_at(size);
    constexpr int kBlocks = 40, kSpace = 1000;
    for (int peer = 0; peer < run.size; ++peer) {
        const auto index = static_cast<std::size_t>(peer);
        const bool spread = (run.rank + peer) % 2 == 0;
        out_types.list.push_back(spread ? strided(kBlocks, MPI_INT) : MPI_INT);
        out_counts[index] = spread ? 1 : kBlocks;
        in_types.list.push_back(spread ? MPI_INT : strided(kBlocks, MPI_INT));
        in_counts[index] = spread ? kBlocks : 1;
        if ((run.rank + peer) % 5 == 4) {
            out_counts[index] = in_counts[index] = 0;
        }
        out_at[index] = peer * kSpace;
        in_at[index] = (run.size - 1 - peer) * kSpace;
    }
    std::byte* out = run.input(size * kSpace);
    std::byte* in = run.input(size * kSpace);
    const MPI_Datatype* from = out_types.list.data();
    const MPI_Datatype* to = in_types.list.data();
    carry_out(run, form,
              FORMS(Alltoallw, out, out_counts.data(), out_at.data(), from, in, in_counts.data(), in_at.data(), to,
                    run.comm));
#ifdef OPEN_MPI
    if (form != Form::blocking) {
        return;
    }
#endif
    Types same;
    std::vector<int> counts(size), at(size);
    for (int peer = 0; peer < run.size; ++peer) {
        same.list.push_back(strided(1 + (run.rank + peer) % 4, MPI_INT));
        counts[static_cast<std::size_t>(peer)] = 2;
        at[static_cast<std::size_t>(peer)] = peer * 100;
    }
    std::byte* both = run.input(size * 100);
    const MPI_Datatype* types = same.list.data();
    carry_out(
        run, form,
        FORMS(Alltoallw, MPI_IN_PLACE, nullptr, nullptr, nullptr, both, counts.data(), at.data(), types, run.comm));
}

/// Types whose elements have one signature, kUnit integers, and another layout each: none has gaps in common.
class Layouts {
  public:
    static constexpr int kUnit = 24;
    Layouts() {
        const std::array<int, 3> sizes = {4, 5, 6}, parts = {2, 3, 4}, starts = {1, 1, 1};
        const std::array<int, 5> lengths = {1, 5, 2, 9, 7}, places = {3, 5, 12, 20, 33};
        const std::array<int, 3> eights = {8, 8, 8}, backwards = {40, 20, 0};
        _list.push_back({MPI_INT, kUnit, 1});
        add(48, [](MPI_Datatype* type) { return MPI_Type_vector(kUnit, 1, 2, MPI_INT, type); });
        add(40, [](MPI_Datatype* type) { return MPI_Type_vector(4, 6, 10, MPI_INT, type); });
        add(44, [&](MPI_Datatype* type) { return MPI_Type_indexed(5, lengths.data(), places.data(), MPI_INT, type); });
        add(120, [&](MPI_Datatype* type) {
            return MPI_Type_create_subarray(3, sizes.data(), parts.data(), starts.data(), MPI_ORDER_C, MPI_INT, type);
        });
        add(50,
            [&](MPI_Datatype* type) { return MPI_Type_indexed(3, eights.data(), backwards.data(), MPI_INT, type); });
    }
    ~Layouts() {
        for (std::size_t at = 1; at < _list.size(); ++at) {
            MPI_Type_free(&_list[at].type);
        }
    }
    Layouts(const Layouts&) = delete;
    Layouts& operator=(const Layouts&) = delete;

    /// How a rank sees some units: `count(units)` elements of `type`, `room(units)` integers of memory.
    struct Layout {
        MPI_Datatype type;
        int per_unit, extent;
        [[nodiscard]] int count(int units) const { return units * per_unit; }
        [[nodiscard]] std::size_t room(int units) const {
            return static_cast<std::size_t>(units) * static_cast<std::size_t>(per_unit * extent);
        }
    };
    [[nodiscard]] const Layout& pick(int number) const {
        return _list[static_cast<std::size_t>(number) % _list.size()];
    }
    [[nodiscard]] int size() const { return static_cast<int>(_list.size()); }

  private:
    void add(int extent, const std::function<int(MPI_Datatype*)>& make) {
        MPI_Datatype bare = MPI_DATATYPE_NULL, type = MPI_DATATYPE_NULL;
        make(&bare);
        MPI_Type_create_resized(bare, 0, extent * static_cast<MPI_Aint>(sizeof(int)), &type);
        MPI_Type_commit(&type);
        MPI_Type_free(&bare);
        _list.push_back({type, 1, extent});
    }
    std::vector<Layout> _list;
};

/// Every rank sees what it sends, and what it receives, through a type of its own.
void gaps(Run& run, Form form) {
    const Layouts layouts;
    constexpr int kUnits[] = {1, 4, 130};
    for (int round = 0; round < layouts.size(); round += 2) {
#ifdef OPEN_MPI
        // From five ranks on, Open MPI 5's own MPI_Allgatherv waits for ever where they differ: each chooses an
        // algorithm.
        const int own_layout = run.size > 4 ? 0 : run.rank;
#else
        const int own_layout = run.rank;
#endif
        const Layouts::Layout from = layouts.pick(round + own_layout),
                              to = layouts.pick(round * 2 + 3 + 2 * own_layout);
        const int units = kUnits[round / 2];
        OK(MPI_Barrier(run.comm));  // from here on nonblocking collectives that were called may be the GPUs' own
        const int root = round % run.size;
        const bool is_root = run.rank == root;
        const int size = run.size, sent = from.count(units), taken = to.count(units);

        const Layouts::Layout mine = is_root ? from : to;
        int* data = run.output<int>(mine.room(units));
        const int length = mine.count(units);
        carry_out(run, form, FORMS(Bcast, data, length, mine.type, root, run.comm));

        int* out = run.output<int>(from.room(units));
        int* outs = run.output<int>(from.room(units * size));
        const auto next = [&] { return run.output<int>(to.room(units * size)); };
        int* in = next();
        carry_out(run, form, FORMS(Allgather, out, sent, from.type, in, taken, to.type, run.comm));
        carry_out(run, form, FORMS(Allgather, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, taken, to.type, run.comm));
        in = next();
        carry_out(run, form, FORMS(Alltoall, outs, sent, from.type, in, taken, to.type, run.comm));
        in = next();
        void* source = is_root ? MPI_IN_PLACE : static_cast<void*>(out);
        carry_out(run, form, FORMS(Gather, out, sent, from.type, in, taken, to.type, root, run.comm));
        carry_out(run, form, FORMS(Gather, source, sent, from.type, in, taken, to.type, root, run.comm));
        in = next();
        void* target = is_root ? MPI_IN_PLACE : static_cast<void*>(in);
        carry_out(run, form, FORMS(Scatter, outs, sent, from.type, in, taken, to.type, root, run.comm));
        carry_out(run, form, FORMS(Scatter, outs, sent, from.type, target, taken, to.type, root, run.comm));

        // Parts of different lengths, one of them empty, in the opposite order and with elements between them.
        std::vector<int> out_counts, out_at, in_counts, in_at, all_counts;
        for (int rank = 0; rank < size; ++rank) {
            const int number = (rank + run.rank) % 3 * units;
            out_counts.push_back(from.count(number));
            in_counts.push_back(to.count(number));
            all_counts.push_back(to.count(rank % 3 * units));
            out_at.push_back(from.count((size - 1 - rank) * (2 * units + 1)));
            in_at.push_back(to.count((size - 1 - rank) * (2 * units + 1)));
        }
        const int own = from.count(run.rank % 3 * units), own_taken = to.count(run.rank % 3 * units);
        const int whole = size * (2 * units + 1);
        int* spread = run.output<int>(from.room(whole));
        const auto wide = [&] { return run.output<int>(to.room(whole)); };
        in = wide();
        carry_out(run, form,
                  FORMS(Alltoallv, spread, out_counts.data(), out_at.data(), from.type, in, in_counts.data(),
                        in_at.data(), to.type, run.comm));
        in = wide();
        carry_out(run, form,
                  FORMS(Allgatherv, spread, own, from.type, in, all_counts.data(), in_at.data(), to.type, run.comm));
        carry_out(run, form,
                  FORMS(Allgatherv, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, all_counts.data(), in_at.data(), to.type,
                        run.comm));
        in = wide();
        source = is_root ? MPI_IN_PLACE : static_cast<void*>(spread);
        carry_out(run, form,
                  FORMS(Gatherv, spread, own, from.type, in, all_counts.data(), in_at.data(), to.type, root, run.comm));
        carry_out(run, form,
                  FORMS(Gatherv, source, own, from.type, in, all_counts.data(), in_at.data(), to.type, root, run.comm));
        in = wide();
        // The root's parts, as it sends them; `out_counts` are its own row, so they are taken by rank.
        std::vector<int> parts;
        for (int rank = 0; rank < size; ++rank) {
            parts.push_back(from.count(rank % 3 * units));
        }
        carry_out(
            run, form,
            FORMS(Scatterv, spread, parts.data(), out_at.data(), from.type, in, own_taken, to.type, root, run.comm));

        // A layout for each peer; the first time all are without gaps.
        std::vector<MPI_Datatype> out_types, in_types;
        std::vector<int> typed_out_counts, typed_in_counts, out_bytes, in_bytes;
        const int slot = 130 * 120 * static_cast<int>(sizeof(int));  // the widest
        for (int rank = 0; rank < size; ++rank) {
            const int number = (rank + run.rank) % 4 == 3 ? 0 : units;
            const Layouts::Layout& there = layouts.pick(round == 0 ? 0 : round + rank + run.rank);
            const Layouts::Layout& here = layouts.pick(round == 0 ? 0 : 1 + 3 * rank + 2 * run.rank);
            out_types.push_back(there.type);
            in_types.push_back(here.type);
            typed_out_counts.push_back(there.count(number));
            typed_in_counts.push_back(here.count(number));
            out_bytes.push_back((size - 1 - rank) * slot);
            in_bytes.push_back(rank * slot);
        }
        const auto all_slots = static_cast<std::size_t>(size * slot);
        std::byte* typed_out = run.input(all_slots);
        std::byte* typed_in = run.input(all_slots);
        carry_out(run, form,
                  FORMS(Alltoallw, typed_out, typed_out_counts.data(), out_bytes.data(), out_types.data(), typed_in,
                        typed_in_counts.data(), in_bytes.data(), in_types.data(), run.comm));
#ifdef OPEN_MPI  // Open MPI 5.0.11 has no nonblocking or persistent in-place form
        if (form != Form::blocking) {
            continue;
        }
#endif
        carry_out(run, form,
                  FORMS(Alltoallw, MPI_IN_PLACE, nullptr, nullptr, nullptr, typed_in, typed_in_counts.data(),
                        in_bytes.data(), in_types.data(), run.comm));
        in = next();
        carry_out(run, form, FORMS(Alltoall, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, taken, to.type, run.comm));
        in = wide();
        carry_out(run, form,
                  FORMS(Alltoallv, MPI_IN_PLACE, nullptr, nullptr, MPI_DATATYPE_NULL, in, in_counts.data(),
                        in_at.data(), to.type, run.comm));
    }
}

/// sum over pairs (a, b): associative, not commutative (composition of x -> a x + b, modulo 2^32).
struct Affine {
    unsigned a, b;
};
void compose(void* in, void* inout, int* length, MPI_Datatype*) {
    const auto* left = static_cast<const Affine*>(in);
    auto* right = static_cast<Affine*>(inout);
    for (int at = 0; at < *length; ++at) {
        right[at] = Affine{left[at].a * right[at].a, left[at].a * right[at].b + left[at].b};
    }
}
/// A commutative operation of the user's own.
void larger_magnitude(void* in, void* inout, int* length, MPI_Datatype*) {
    const auto* left = static_cast<const int*>(in);
    auto* right = static_cast<int*>(inout);
    for (int at = 0; at < *length; ++at) {
        right[at] = std::max(std::abs(left[at]), std::abs(right[at]));
    }
}
/// On a type with gaps: adds the two doubles that lie 24 bytes apart, touches nothing else.
struct Gapped {
    double first;
    double untouched[2];
    double second;
};
void add_gapped(void* in, void* inout, int* length, MPI_Datatype*) {
    const auto* left = static_cast<const Gapped*>(in);
    auto* right = static_cast<Gapped*>(inout);
    for (int at = 0; at < *length; ++at) {
        right[at].first += left[at].first;
        right[at].second += left[at].second;
    }
}

/// A reduction to try: the operation, its type, and how to make a buffer of `count` elements.
struct Reduction {
    std::string name;
    MPI_Op op;
    MPI_Datatype type;
    std::size_t bytes;
    std::function<void*(Run&, std::size_t)> make;
};

template <class T>
Reduction reduction(const std::string& name, MPI_Op op, MPI_Datatype type) {
    return {name, op, type, sizeof(T), [](Run& run, std::size_t count) -> void* { return run.values<T>(count); }};
}

struct DoubleInt {
    double value = 0;
    int index = 0;
    explicit DoubleInt(std::uint64_t bits) : value(static_cast<double>(bits % 5)), index(static_cast<int>(bits % 7)) {}
    DoubleInt() = default;
    static constexpr bool padding(std::size_t byte) { return byte >= 12; }
};
struct ShortInt {
    short value = 0;
    int index = 0;
    explicit ShortInt(std::uint64_t bits) : value(static_cast<short>(bits % 5)), index(static_cast<int>(bits % 7)) {}
    ShortInt() = default;
    static constexpr bool padding(std::size_t byte) { return byte == 2 || byte == 3; }
};
/// Gaussian primes: no product of them has a part that is zero, whose sign would tell the order of the factors.
struct FloatComplex {
    float re = 0, im = 0;
    explicit FloatComplex(std::uint64_t bits) : re(bits % 2 == 0 ? 1 : 2), im(re + 1) {}
    FloatComplex() = default;
};

/// The predefined operations on the types that accelerated libraries lack, and on those they have.
std::vector<Reduction> predefined() {
    return {
        reduction<int>("sum_int", MPI_SUM, MPI_INT),
        reduction<double>("sum_double", MPI_SUM, MPI_DOUBLE),
        reduction<float>("prod_float", MPI_PROD, MPI_FLOAT),
        reduction<double>("max_double", MPI_MAX, MPI_DOUBLE),
        reduction<std::int64_t>("min_int64", MPI_MIN, MPI_INT64_T),
        reduction<short>("sum_short", MPI_SUM, MPI_SHORT),
        reduction<unsigned char>("max_uint8", MPI_MAX, MPI_UINT8_T),
        reduction<unsigned>("bxor_unsigned", MPI_BXOR, MPI_UNSIGNED),
        reduction<unsigned char>("band_byte", MPI_BAND, MPI_BYTE),
        reduction<int>("bor_int", MPI_BOR, MPI_INT),
        reduction<int>("land_int", MPI_LAND, MPI_INT),
        reduction<int>("lxor_int", MPI_LXOR, MPI_INT),
        reduction<bool>("lor_bool", MPI_LOR, MPI_C_BOOL),
        reduction<long double>("sum_long_double", MPI_SUM, MPI_LONG_DOUBLE),
        reduction<FloatComplex>("sum_complex", MPI_SUM, MPI_C_FLOAT_COMPLEX),
        reduction<FloatComplex>("prod_complex", MPI_PROD, MPI_C_FLOAT_COMPLEX),
        reduction<DoubleInt>("minloc_double_int", MPI_MINLOC, MPI_DOUBLE_INT),
        reduction<DoubleInt>("maxloc_double_int", MPI_MAXLOC, MPI_DOUBLE_INT),
        reduction<ShortInt>("maxloc_short_int", MPI_MAXLOC, MPI_SHORT_INT),
    };
}

/// The user's operations live while the program's cases run.
struct UserOperations {
    UserOperations() {
        MPI_Op_create(compose, 0, &ordered);
        MPI_Op_create(larger_magnitude, 1, &commutative);
        MPI_Op_create(add_gapped, 1, &gapped);
        MPI_Type_contiguous(2, MPI_UNSIGNED, &affine);
        MPI_Type_commit(&affine);
        const int lengths[] = {1, 1};
        const MPI_Aint displacements[] = {offsetof(Gapped, first), offsetof(Gapped, second)};
        const MPI_Datatype members[] = {MPI_DOUBLE, MPI_DOUBLE};
        MPI_Type_create_struct(2, lengths, displacements, members, &with_gaps);
        MPI_Type_commit(&with_gaps);
    }
    ~UserOperations() {
        MPI_Op_free(&ordered);
        MPI_Op_free(&commutative);
        MPI_Op_free(&gapped);
        MPI_Type_free(&affine);
        MPI_Type_free(&with_gaps);
    }
    UserOperations(const UserOperations&) = delete;
    UserOperations& operator=(const UserOperations&) = delete;

    [[nodiscard]] std::vector<Reduction> list() const {
        Reduction in_order = reduction<unsigned>("user_ordered", ordered, affine);
        in_order.bytes = sizeof(Affine);
        in_order.make = [](Run& run, std::size_t count) -> void* { return run.values<unsigned>(2 * count); };
        Reduction gaps = reduction<double>("user_type_with_gaps", gapped, with_gaps);
        gaps.bytes = sizeof(Gapped);
        gaps.make = [](Run& run, std::size_t count) -> void* { return run.values<double>(4 * count); };
        return {in_order, reduction<int>("user_commutative", commutative, MPI_INT), gaps};
    }

    MPI_Op ordered = MPI_OP_NULL, commutative = MPI_OP_NULL, gapped = MPI_OP_NULL;
    MPI_Datatype affine = MPI_DATATYPE_NULL, with_gaps = MPI_DATATYPE_NULL;
};

void reduce(Run& run, Form form, const Reduction& test, const std::vector<int>& counts) {
    const MPI_Op op = test.op;
    const MPI_Datatype type = test.type;
    for (const int count : counts) {
        const auto length = static_cast<std::size_t>(count);
        for (int root = 0; root < run.size; root += std::max(1, run.size - 1)) {
            void* out = test.make(run, length);
            void* in = test.make(run, length);
            void* target = run.rank == root ? in : nullptr;
            carry_out(run, form, FORMS(Reduce, out, target, count, type, op, root, run.comm));
            const void* source = run.rank == root ? MPI_IN_PLACE : out;
            void* both = test.make(run, length);
            carry_out(run, form, FORMS(Reduce, source, both, count, type, op, root, run.comm));
        }
        void* out = test.make(run, length);
        void* in = test.make(run, length);
        carry_out(run, form, FORMS(Allreduce, out, in, count, type, op, run.comm), [&](int) {
            const std::vector<std::byte> first = run.load(out, length == 0 ? 0 : test.bytes);
            if (length > 1) {
                run.store(static_cast<std::byte*>(out) + test.bytes, first.data(), test.bytes);
            }
        });
        void* both = test.make(run, length);
        carry_out(run, form, FORMS(Allreduce, MPI_IN_PLACE, both, count, type, op, run.comm));
    }
}

void scans(Run& run, Form form, const Reduction& test) {
    const MPI_Op op = test.op;
    const MPI_Datatype type = test.type;
    for (const int count : {0, 1, 17, 5000}) {
        const auto length = static_cast<std::size_t>(count);
        void* out = test.make(run, length);
        void* in = test.make(run, length);
        carry_out(run, form, FORMS(Scan, out, in, count, type, op, run.comm));
        void* both = test.make(run, length);
        carry_out(run, form, FORMS(Scan, MPI_IN_PLACE, both, count, type, op, run.comm));
        // Rank 0's result of Exscan is undefined; MPIs leave it alone or not.
        void* before = run.rank == 0 ? run.transient(length * test.bytes) : test.make(run, length);
        carry_out(run, form, FORMS(Exscan, out, before, count, type, op, run.comm));
        void* place = test.make(run, length);
        carry_out(run, form, FORMS(Exscan, MPI_IN_PLACE, place, count, type, op, run.comm));
    }
}

void reduce_scatter(Run& run, Form form, const Reduction& test) {
    const MPI_Op op = test.op;
    const MPI_Datatype type = test.type;
    const auto size = static_cast<std::size_t>(run.size);
    for (const int count : {0, 1, 17, 3000}) {
        const auto length = static_cast<std::size_t>(count);
        void* out = test.make(run, length * size);
        void* in = test.make(run, length);
        carry_out(run, form, FORMS(Reduce_scatter_block, out, in, count, type, op, run.comm));
        // In place: what is behind the own block afterwards is not defined by MPI, so only the block is noted.
        void* both = run.transient(0);
        both = nullptr;
        {
            const std::vector<std::byte> image = run.load(out, length * size * test.bytes);
            std::byte* place = run.transient(length * size * test.bytes);
            if (!image.empty()) {
                run.store(place, image.data(), image.size());
            }
            both = place;
        }
        if (form != Form::persistent) {  // the second start would reduce what the first left undefined
            carry_out(run, form, FORMS(Reduce_scatter_block, MPI_IN_PLACE, both, count, type, op, run.comm));
            if (count > 0) {
                run.note_bytes(format("own block of %d", count), both, length * test.bytes);
            }
        }
        std::vector<int> counts(size);
        for (std::size_t rank = 0; rank < size; ++rank) {
            counts[rank] = static_cast<int>(rank % 3) * count;
        }
        const auto total = static_cast<std::size_t>(sum_of(counts));
        const auto mine = static_cast<std::size_t>(counts[static_cast<std::size_t>(run.rank)]);
        void* varying_out = test.make(run, total);
        void* varying_in = test.make(run, mine);
        carry_out(run, form, FORMS(Reduce_scatter, varying_out, varying_in, counts.data(), type, op, run.comm));
    }
}

int count_copies(MPI_Comm, int, void* count, void*, void*, int* flag) {
    ++*static_cast<int*>(count);
    *flag = 0;
    return MPI_SUCCESS;
}

/// As often as it takes until NCCL or RCCL is made for a communicator, and then some.
void again_and_again(Run& run) {
    constexpr int kRounds = 5, kCount = 3001;
    // What the layer makes of the communicator for itself is none of its attributes' business.
    int copies = 0, key = MPI_KEYVAL_INVALID;
    OK(MPI_Comm_create_keyval(count_copies, MPI_COMM_NULL_DELETE_FN, &key, &copies));
    OK(MPI_Comm_set_attr(run.comm, key, nullptr));
    const auto size = static_cast<std::size_t>(run.size);
    for (int round = 0; round < kRounds; ++round) {
        const int root = round % run.size;
        auto* values = run.values<double>(kCount * size);
        auto* result = run.output<double>(kCount * size);
        auto* both = run.values<double>(kCount * size);
        OK(MPI_Allreduce(values, result, kCount, MPI_DOUBLE, MPI_SUM, run.comm));
        OK(MPI_Allreduce(MPI_IN_PLACE, both, kCount, MPI_DOUBLE, MPI_MAX, run.comm));
        OK(MPI_Reduce(values, run.output<double>(kCount), kCount, MPI_DOUBLE, MPI_SUM, root, run.comm));
        auto* input = run.values<int>(kCount);
        if (run.rank == root) {
            OK(MPI_Reduce(MPI_IN_PLACE, input, kCount, MPI_INT, MPI_PROD, root, run.comm));
        } else {
            OK(MPI_Reduce(input, nullptr, kCount, MPI_INT, MPI_PROD, root, run.comm));
        }
        OK(MPI_Bcast(run.output<double>(kCount), kCount, MPI_DOUBLE, root, run.comm));
        auto* all = run.output<double>(kCount * size);
        OK(MPI_Allgather(values, kCount, MPI_DOUBLE, all, kCount, MPI_DOUBLE, run.comm));
        OK(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, both, kCount, MPI_DOUBLE, run.comm));
        OK(MPI_Alltoall(values, kCount, MPI_DOUBLE, all, kCount, MPI_DOUBLE, run.comm));
        OK(MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, both, kCount, MPI_DOUBLE, run.comm));
        OK(MPI_Reduce_scatter_block(all, run.output<double>(kCount), kCount, MPI_DOUBLE, MPI_SUM, run.comm));
    }
    OK(MPI_Comm_delete_attr(run.comm, key));
    OK(MPI_Comm_free_keyval(&key));
    run.note("copies of the attribute", copies);
}

/// Parts that vary, often and large enough that between nodes the ranks propose how to do them.
void varying_again_and_again(Run& run) {
    Types kept;
    kept.list.push_back(strided(3, MPI_INT));
    const MPI_Datatype spread = kept.list.front();
    constexpr int kSpread = 6;  // integers that an element of it reaches over, with what follows
    for (int round = 0; round < 6; ++round) {
        const int root = round % run.size, base = round == 3 ? 1 : 700 + 300 * round;
        const bool is_root = run.rank == root;
        const Blocks blocks(run.size, base, round);
        const int mine = blocks.counts[static_cast<std::size_t>(run.rank)];
        const int* counts = blocks.counts.data();
        const int* at = blocks.displacements.data();
        int* out = run.values<int>(static_cast<std::size_t>(mine));
        int* parts = run.values<int>(blocks.total);
        int* in = run.output<int>(blocks.total);
        OK(MPI_Gatherv(is_root ? MPI_IN_PLACE : static_cast<void*>(out), mine, MPI_INT, in, counts, at, MPI_INT, root,
                       run.comm));
        in = run.output<int>(blocks.total);
        OK(MPI_Gatherv(out, mine, MPI_INT, in, counts, at, MPI_INT, root, run.comm));
        int* taken = run.output<int>(static_cast<std::size_t>(mine) + 2);
        OK(MPI_Scatterv(parts, counts, at, MPI_INT, taken, mine, MPI_INT, root, run.comm));
        OK(MPI_Scatterv(parts, counts, at, MPI_INT, is_root ? MPI_IN_PLACE : static_cast<void*>(taken), mine, MPI_INT,
                        root, run.comm));
        in = run.output<int>(blocks.total);
        OK(MPI_Allgatherv(out, mine, MPI_INT, in, counts, at, MPI_INT, run.comm));
        in = run.output<int>(blocks.total);
        OK(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, counts, at, MPI_INT, run.comm));

        const Exchange exchange(run, base, false);
        OK(MPI_Alltoallv(run.values<int>(exchange.out_total), exchange.out_counts.data(),
                         exchange.out_displacements.data(), MPI_INT, run.output<int>(exchange.in_total),
                         exchange.in_counts.data(), exchange.in_displacements.data(), MPI_INT, run.comm));
        const Exchange same(run, base, true);
        OK(MPI_Alltoallv(MPI_IN_PLACE, nullptr, nullptr, MPI_DATATYPE_NULL, run.output<int>(same.in_total),
                         same.in_counts.data(), same.in_displacements.data(), MPI_INT, run.comm));

        // One side's parts have gaps, and the other's have none.
        std::vector<int> sent, taken_counts, sent_at, taken_at;
        std::vector<MPI_Datatype> sent_types, taken_types;
        int out_end = 0, in_end = 0;
        for (int peer = 0; peer < run.size; ++peer) {
            const bool from_gaps = (run.rank + peer + round) % 2 == 0;
            const int going = pair_count(run.rank, peer, base), coming = pair_count(peer, run.rank, base);
            sent.push_back(from_gaps ? going : 3 * going);
            sent_types.push_back(from_gaps ? spread : MPI_INT);
            sent_at.push_back(out_end * static_cast<int>(sizeof(int)));
            taken_counts.push_back(from_gaps ? 3 * coming : coming);
            taken_types.push_back(from_gaps ? MPI_INT : spread);
            taken_at.push_back(in_end * static_cast<int>(sizeof(int)));
            out_end += kSpread * going + 1;
            in_end += kSpread * coming + 1;
        }
        OK(MPI_Alltoallw(run.values<int>(static_cast<std::size_t>(out_end)), sent.data(), sent_at.data(),
                         sent_types.data(), run.output<int>(static_cast<std::size_t>(in_end)), taken_counts.data(),
                         taken_at.data(), taken_types.data(), run.comm));
    }
}

/// Nonblocking exchanges, several at a time, with barriers in which the ranks agree on how such are done; then, as
/// agreed on, persistent ones that are started in another order on each rank.
void exchanges_under_way(Run& run, MPI_Comm comm, int partners) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    const auto many = static_cast<std::size_t>(partners);
    for (int round = 0; round < 5; ++round) {
        const int count = round == 3 ? 1 : 500 + 200 * round;
        const auto length = static_cast<std::size_t>(count);
        const Blocks blocks(partners, count, 0);
        const int* counts = blocks.counts.data();
        const int* at = blocks.displacements.data();
        // All ranks send parts of one size, so that each gets from all the same.
        const std::vector<int> alike(many, count);
        std::vector<int> places(many);
        for (std::size_t partner = 0; partner < many; ++partner) {
            places[partner] = static_cast<int>(partner) * (count + 2);
        }
        OK(MPI_Barrier(comm));
        std::array<MPI_Request, 6> requests{};
        int* out = run.values<int>((length + 2) * many);
        OK(MPI_Ialltoall(out, count, MPI_INT, run.output<int>(length * many), count, MPI_INT, comm, &requests[0]));
        OK(MPI_Iallgather(out, count, MPI_INT, run.output<int>(length * many), count, MPI_INT, comm, &requests[1]));
        OK(MPI_Ialltoallv(out, alike.data(), places.data(), MPI_INT, run.output<int>((length + 2) * many), alike.data(),
                          places.data(), MPI_INT, comm, &requests[2]));
        OK(MPI_Iallgatherv(out, count, MPI_INT, run.output<int>((length + 2) * many), alike.data(), places.data(),
                           MPI_INT, comm, &requests[3]));
        requests[4] = requests[5] = MPI_REQUEST_NULL;
        if (comm == run.comm) {
            const int root = round % partners;
            const bool is_root = rank == root;
            const int mine = counts[rank];
            OK(MPI_Igatherv(is_root ? MPI_IN_PLACE : static_cast<void*>(out), mine, MPI_INT,
                            run.output<int>(blocks.total), counts, at, MPI_INT, root, comm, &requests[4]));
            OK(MPI_Iscatter(out, count, MPI_INT, is_root ? MPI_IN_PLACE : static_cast<void*>(run.output<int>(length)),
                            count, MPI_INT, root, comm, &requests[5]));
        }
        OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
    }
#if RANKS_HAVE_MPI4
    if (comm != run.comm) {
        return;  // Open MPI has no persistent collectives on intercommunicators
    }
    constexpr int kCount = 900, kStarts = 3;
    int* out = run.values<int>(kCount * many);
    std::array<MPI_Request, 4> requests{};
    OK(MPI_Alltoall_init(out, kCount, MPI_INT, run.output<int>(kCount * many), kCount, MPI_INT, comm, MPI_INFO_NULL,
                         &requests[0]));
    OK(MPI_Allgather_init(out, kCount, MPI_INT, run.output<int>(kCount * many), kCount, MPI_INT, comm, MPI_INFO_NULL,
                          &requests[1]));
    OK(MPI_Gather_init(out, kCount, MPI_INT, run.output<int>(kCount * many), kCount, MPI_INT, 0, comm, MPI_INFO_NULL,
                       &requests[2]));
    OK(MPI_Alltoall_init(out, kCount, MPI_INT, run.output<int>(kCount * many), kCount, MPI_INT, comm, MPI_INFO_NULL,
                         &requests[3]));
    for (int start = 0; start < kStarts; ++start) {
        for (std::size_t each = 0; each < requests.size(); ++each) {
            const auto turn = each + static_cast<std::size_t>(rank + start);
            OK(MPI_Start(&requests[turn % requests.size()]));
        }
        OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
    }
    for (MPI_Request& request : requests) {
        OK(MPI_Request_free(&request));
    }
#endif
}

/// What everybody passes wrongly is an error of the MPI's, and nothing is left over from it.
void no_such_root(Run& run) {
    constexpr int kCount = 3000;
    const auto size = static_cast<std::size_t>(run.size);
    std::vector<int> counts(size, kCount), at(size);
    for (std::size_t rank = 0; rank < size; ++rank) {
        at[rank] = static_cast<int>(rank) * kCount;
    }
    int* out = run.values<int>(kCount);
    int* all = run.values<int>(kCount * size);
    int* in = run.output<int>(kCount * size);
    for (const int root : {run.size, -5}) {
        for (int round = 0; round < 3; ++round) {
            const bool refused = MPI_Gatherv(out, kCount, MPI_INT, in, counts.data(), at.data(), MPI_INT, root,
                                             run.comm) != MPI_SUCCESS &&
                                 MPI_Scatterv(all, counts.data(), at.data(), MPI_INT, out, kCount, MPI_INT, root,
                                              run.comm) != MPI_SUCCESS &&
                                 MPI_Gather(out, kCount, MPI_INT, in, kCount, MPI_INT, root, run.comm) != MPI_SUCCESS;
            if (!refused) {
                run.problem(format("root %d is taken for one", root));
            }
        }
    }
    OK(MPI_Gatherv(out, kCount, MPI_INT, in, counts.data(), at.data(), MPI_INT, 0, run.comm));
    OK(MPI_Gather(out, kCount, MPI_INT, in, kCount, MPI_INT, 0, run.comm));
}

/// Calls of which rank `which` is refused one, and then calls rightly, as the others did all along: nothing of the
/// first call may have reached them. The communicator's error handler is told and no other, which would end the program
/// here.
auto refusals_of(Run& run, Form form, int which) {
    return [&run, form, which](int wanted, const char* name, const Forms& wrong, const Forms& right) {
        // Without a GPU the call is the MPI's own, and MPIs crash or hang here.
        if (run.rank == which && run.gpu().present()) {
            const std::array others{MPI_COMM_WORLD, MPI_COMM_SELF};
            for (MPI_Comm other : others) {
                OK(MPI_Comm_set_errhandler(other, MPI_ERRORS_ARE_FATAL));
            }
            MPI_Request request = MPI_REQUEST_NULL;
            const int code = form == Form::blocking      ? wrong.blocking()
                             : form == Form::nonblocking ? wrong.nonblocking(&request)
                                                         : wrong.persistent(&request);
            for (MPI_Comm other : others) {
                OK(MPI_Comm_set_errhandler(other, MPI_ERRORS_RETURN));
            }
            run.expect(error_class(code) == wanted, format("%s gives %s", name, error_text(code).c_str()));
        }
        carry_out(run, form, right);
    };
}

/// A buffer of a collective, with all that the functions may ask of one.
struct Side {
    void* buffer = nullptr;
    int count = 0;
    MPI_Datatype type = MPI_INT;
    const int *counts = nullptr, *at = nullptr;  ///< in elements
    const int* bytes = nullptr;                  ///< where the parts are, in bytes
    const MPI_Aint* addresses = nullptr;         ///< the same
    const MPI_Datatype* types = nullptr;
};
struct Given {
    Side send, receive;
    MPI_Op op = MPI_SUM;
    int root = 0;
    MPI_Comm comm = MPI_COMM_NULL;
};

/// What may be wrong with a side, as bits.
enum Wrong : unsigned {
    nothing_wrong = 0,
    in_place = 1,
    no_type = 2,
    negative_count = 4,
    other_buffer = 8,  ///< it is the other side's
    own_part = 16      ///< it is where the other side has this rank's part
};
constexpr unsigned kNoData = no_type | negative_count, kAnything = in_place | kNoData;

/// What is wrong on a rank, depending on whether it is the root.
struct Wrongs {
    unsigned at_root, beside_root;
};
/// A function, and which arguments it refuses.
struct Refusing {
    const char* name;
    std::function<Forms(const Given&)> function;
    Wrongs of_send, of_receive;
    bool has_root = false, reduces = false;
};

#define CALL(name, ...) [](const Given& g) { return FORMS(name, __VA_ARGS__, g.comm); }
#define BLOCK(side) g.side.buffer, g.side.count, g.side.type
#define PARTS(side) g.side.buffer, g.side.counts, g.side.at, g.side.type
#define TYPED_PARTS(side, places) g.side.buffer, g.side.counts, g.side.places, g.side.types
// Reductions have one count and one type, here those of what is sent.
#define REDUCED(elements) g.send.buffer, g.receive.buffer, g.send.elements, g.send.type, g.op

/// The error of a rank that sends from where it receives. MPI_SUCCESS: the call does as if in place. Nothing: what
/// comes out is not defined.
std::optional<int> error_of_same_buffer(const Refusing& row, [[maybe_unused]] bool on_device) {
#ifdef OPEN_MPI  // Open MPI compares the buffers of two functions
    const std::string name = row.name;
    if (name == "reduce") {
        return MPI_ERR_ARG;
    }
    if (name == "allreduce") {
        return MPI_ERR_BUFFER;
    }
    if (name.rfind("alltoall", 0) == 0) {
        return on_device ? std::optional(MPI_ERR_BUFFER) : std::nullopt;
    }
    return name.rfind("reduce_scatter", 0) == 0 ? std::nullopt : std::optional(MPI_SUCCESS);
#else
    static_cast<void>(row);
    return MPI_ERR_BUFFER;
#endif
}

/// Each argument of each function is wrong on rank `which` once, and then right.
void try_each(Run& run, Form form, int which, const std::vector<Refusing>& table, const Given& right, std::size_t parts,
              const int* negative, const MPI_Datatype* missing) {
    const auto each = refusals_of(run, form, which);
    MPI_Datatype uncommitted = MPI_DATATYPE_NULL;
    OK(MPI_Type_contiguous(1, MPI_INT, &uncommitted));
    std::vector<MPI_Datatype> one_new(static_cast<std::size_t>(run.size) + 1, MPI_INT);
    one_new[parts - 1] = uncommitted;
    for (const Refusing& row : table) {
        const auto refuse = [&](int wanted, const std::string& what, const Given& wrong) {
            each(wanted, (std::string(row.name) + what).c_str(), row.function(wrong), row.function(right));
        };
        for (const bool of_send : {true, false}) {
            const Wrongs& wrongs = of_send ? row.of_send : row.of_receive;
            const unsigned bits = which == right.root ? wrongs.at_root : wrongs.beside_root;
            const std::string where = of_send ? " of what is sent" : " of what is received";
            const auto with = [&](const auto& change) {
                Given wrong = right;
                change(of_send ? wrong.send : wrong.receive);
                return wrong;
            };
            if ((bits & in_place) != 0) {
                refuse(MPI_ERR_BUFFER, ": no buffer" + where, with([](Side& side) { side.buffer = MPI_IN_PLACE; }));
            }
            if ((bits & no_type) != 0) {
                refuse(MPI_ERR_TYPE, ": no type" + where, with([&](Side& side) {
                           side.type = MPI_DATATYPE_NULL;
                           side.types = missing;
                       }));
                refuse(MPI_ERR_TYPE, ": a new type" + where, with([&](Side& side) {
                           side.type = uncommitted;
                           side.types = one_new.data();
                       }));
            }
            if ((bits & negative_count) != 0) {
                refuse(MPI_ERR_COUNT, ": less than nothing" + where, with([&](Side& side) {
                           side.count = -1;
                           side.counts = negative;
                       }));
            }
            if ((bits & (other_buffer | own_part)) != 0) {
                const Given wrong = with([&](Side& side) {
                    const Side& other = of_send ? right.receive : right.send;
                    const int first = (bits & own_part) != 0 ? which * other.count : 0;
                    side.buffer = static_cast<int*>(other.buffer) + first;
                });
                int on_device = host_accessible(run.kind_of(wrong.send.buffer)) ? 0 : 1;
                OK(MPI_Bcast(&on_device, 1, MPI_INT, which, run.comm));
                const auto wanted = error_of_same_buffer(row, on_device != 0);
                if (wanted == MPI_SUCCESS) {
                    carry_out(run, form, row.function(run.rank == which ? wrong : right));
                } else if (wanted) {
                    refuse(*wanted, ": one buffer" + where, wrong);
                }
            }
        }
        Given wrong = right;
        if (row.reduces) {
            wrong.op = MPI_OP_NULL;
            refuse(MPI_ERR_OP, ": no operation", wrong);
        }
        wrong = right;
        if (row.has_root) {
            wrong.root = run.size;
            refuse(MPI_ERR_ROOT, ": no such root", wrong);
        }
    }
    OK(MPI_Type_free(&uncommitted));
}

/// Missing types, negative counts and MPI_IN_PLACE where it means nothing, on one rank, in one place of several.
void wrong_arguments(Run& run, Form form) {
    const auto size = static_cast<std::size_t>(run.size);
    constexpr int kCount = 3000;
    std::vector<int> counts(size, kCount), at(size), bytes(size), short_of_none(size, kCount);
    for (std::size_t rank = 0; rank < size; ++rank) {
        at[rank] = static_cast<int>(rank) * kCount;
        bytes[rank] = at[rank] * static_cast<int>(sizeof(int));
    }
    short_of_none.back() = -1;
    const std::vector<MPI_Datatype> types(size, MPI_INT);
    std::vector<MPI_Datatype> one_missing = types;
    one_missing.back() = MPI_DATATYPE_NULL;
    Given right;
    right.comm = run.comm;
    for (Side* const side : {&right.send, &right.receive}) {
        side->count = kCount;
        side->counts = counts.data();
        side->at = at.data();
        side->bytes = bytes.data();
        side->types = types.data();
    }
    right.send.buffer = run.values<int>(kCount * size);
    right.receive.buffer = run.output<int>(kCount * size);

    constexpr Wrongs nothing{nothing_wrong, nothing_wrong}, anything{kAnything, kAnything};
    constexpr Wrongs data{kNoData | other_buffer, kNoData | other_buffer}, part{kNoData | own_part, kNoData | own_part};
    constexpr Wrongs only_at_root{kAnything, nothing_wrong}, own_data{kNoData | own_part, kAnything};
    constexpr Wrongs place{in_place, in_place}, result{in_place, nothing_wrong};
    constexpr Wrongs beside_first{nothing_wrong, in_place};  // the first rank receives nothing
    const std::vector<Refusing> table{
        {"bcast", CALL(Bcast, BLOCK(receive), g.root), nothing, anything, true},
        {"gather", CALL(Gather, BLOCK(send), BLOCK(receive), g.root), own_data, only_at_root, true},
        {"gatherv", CALL(Gatherv, BLOCK(send), PARTS(receive), g.root), own_data, only_at_root, true},
        {"scatter", CALL(Scatter, BLOCK(send), BLOCK(receive), g.root), only_at_root, own_data, true},
        {"scatterv", CALL(Scatterv, PARTS(send), BLOCK(receive), g.root), only_at_root, own_data, true},
        {"allgather", CALL(Allgather, BLOCK(send), BLOCK(receive)), part, anything},
        {"allgatherv", CALL(Allgatherv, BLOCK(send), PARTS(receive)), part, anything},
        {"alltoall", CALL(Alltoall, BLOCK(send), BLOCK(receive)), data, anything},
        {"alltoallv", CALL(Alltoallv, PARTS(send), PARTS(receive)), data, anything},
        {"alltoallw", CALL(Alltoallw, TYPED_PARTS(send, bytes), TYPED_PARTS(receive, bytes)), data, anything},
        {"reduce", CALL(Reduce, REDUCED(count), g.root), own_data, result, true, true},
        {"allreduce", CALL(Allreduce, REDUCED(count)), data, place, false, true},
        {"scan", CALL(Scan, REDUCED(count)), data, place, false, true},
        {"exscan", CALL(Exscan, REDUCED(count)), data, beside_first, false, true},
        {"reduce_scatter", CALL(Reduce_scatter, REDUCED(counts)), data, place, false, true},
        {"reduce_scatter_block", CALL(Reduce_scatter_block, REDUCED(count)), data, place, false, true},
    };
    for (int which = 0; which < run.size; which += std::max(1, run.size - 1)) {
        try_each(run, form, which, table, right, size, short_of_none.data(), one_missing.data());
    }
}

/// The same of neighbourhoods, where the second of two edges is the wrong one.
void wrong_edges(Run& run, Form form) {
    const std::array<int, 1> dimensions{run.size}, periodic{1};
    constexpr int kCount = 3000;
    const std::array<int, 2> counts{kCount, kCount}, short_of_none{kCount, -1}, at{0, kCount};
    const std::array<MPI_Aint, 2> bytes{0, kCount * MPI_Aint{sizeof(int)}};
    const std::array<MPI_Datatype, 2> types{MPI_INT, MPI_INT}, one_missing{MPI_INT, MPI_DATATYPE_NULL};
    Given right;
    OK(MPI_Cart_create(run.comm, 1, dimensions.data(), periodic.data(), 0, &right.comm));
    OK(MPI_Comm_set_errhandler(right.comm, MPI_ERRORS_RETURN));
    for (Side* const side : {&right.send, &right.receive}) {
        side->count = kCount;
        side->counts = counts.data();
        side->at = at.data();
        side->addresses = bytes.data();
        side->types = types.data();
    }
    right.send.buffer = run.values<int>(2 * kCount);
    right.receive.buffer = run.output<int>(2 * kCount);
    constexpr Wrongs anything{kAnything, kAnything};
    const std::vector<Refusing> table{
        {"neighbor_allgather", CALL(Neighbor_allgather, BLOCK(send), BLOCK(receive)), anything, anything},
        {"neighbor_allgatherv", CALL(Neighbor_allgatherv, BLOCK(send), PARTS(receive)), anything, anything},
        {"neighbor_alltoall", CALL(Neighbor_alltoall, BLOCK(send), BLOCK(receive)), anything, anything},
        {"neighbor_alltoallv", CALL(Neighbor_alltoallv, PARTS(send), PARTS(receive)), anything, anything},
        {"neighbor_alltoallw", CALL(Neighbor_alltoallw, TYPED_PARTS(send, addresses), TYPED_PARTS(receive, addresses)),
         anything, anything},
    };
    const int which = run.size - 1;
    try_each(run, form, which, table, right, counts.size(), short_of_none.data(), one_missing.data());
    OK(MPI_Comm_free(&right.comm));
}

/// That nothing goes from one rank to another may be said by no elements, or by elements of nothing.
void nothing_said_in_two_ways(Run& run) {
    Types types;
    MPI_Datatype nothing = MPI_DATATYPE_NULL;
    OK(MPI_Type_contiguous(0, MPI_INT, &nothing));
    OK(MPI_Type_commit(&nothing));
    types.list.push_back(nothing);
    constexpr int kCount = 2500;
    const auto size = static_cast<std::size_t>(run.size);
    for (int round = 0; round < 4; ++round) {
        std::vector<int> sent, taken, at;
        std::vector<MPI_Datatype> sent_types, taken_types;
        for (int peer = 0; peer < run.size; ++peer) {
            const bool empty = (run.rank + peer + round) % 2 == 0;
            sent.push_back(empty ? 0 : kCount);
            taken.push_back(empty ? 2 : kCount);
            sent_types.push_back(MPI_INT);
            taken_types.push_back(empty ? nothing : MPI_INT);
            at.push_back(peer * kCount * static_cast<int>(sizeof(int)));
        }
        int* out = run.values<int>(kCount * size);
        int* in = run.output<int>(kCount * size);
        OK(MPI_Alltoallw(out, sent.data(), at.data(), sent_types.data(), in, taken.data(), at.data(),
                         taken_types.data(), run.comm));
        in = run.output<int>(kCount * size);
        OK(MPI_Alltoallw(out, taken.data(), at.data(), taken_types.data(), in, sent.data(), at.data(),
                         sent_types.data(), run.comm));
    }
}

/// A rank that waits for a collective on GPUs goes on with what it has begun before: others come after that.
void waits_keep_all_going(Run& run) {
    constexpr std::size_t kCount = 4000;
    int* out = run.values<int>(kCount);
    int* in = run.output<int>(kCount);
    const auto begin = [&] {
        MPI_Request request = MPI_REQUEST_NULL;
        OK(MPI_Iallreduce(out, in, kCount, MPI_INT, MPI_SUM, run.comm, &request));
        return request;
    };
    for (int round = 0; round < 3; ++round) {  // after these, all know that all pass device memory, if they do
        MPI_Request request = begin();
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        OK(MPI_Allreduce(out, in, kCount, MPI_INT, MPI_SUM, run.comm));
    }
    // From three ranks on the MPI's barrier takes several steps, of which each rank has to take its own.
    for (int way = 0; way < 4; ++way) {
        const bool comes_later = run.rank == run.size - 1;
        MPI_Request meeting = MPI_REQUEST_NULL;
        OK(MPI_Ibarrier(run.comm, &meeting));
        if (comes_later) {
            OK(MPI_Wait(&meeting, MPI_STATUS_IGNORE));
        }
        MPI_Request request = begin();
        int done = 0, index = 0;
        switch (way) {
            case 0:
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
                break;
            case 1:
                while (done == 0) {
                    OK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
                }
                break;
            case 2:
                OK(MPI_Waitany(1, &request, &index, MPI_STATUS_IGNORE));
                break;
            default:
                OK(MPI_Waitall(1, &request, MPI_STATUSES_IGNORE));
        }
        OK(MPI_Wait(&meeting, MPI_STATUS_IGNORE));
    }
}

/// Two groups: even and odd ranks.
class Intercommunicator {
  public:
    explicit Intercommunicator(const Run& run) : left(run.rank % 2 == 0) {
        MPI_Comm_split(run.comm, run.rank % 2, run.rank, &_local);
        MPI_Intercomm_create(_local, 0, run.comm, left ? 1 : 0, 5, &comm);
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &local_size);
        MPI_Comm_remote_size(comm, &remote_size);
    }
    ~Intercommunicator() {
        MPI_Comm_free(&comm);
        MPI_Comm_free(&_local);
    }
    Intercommunicator(const Intercommunicator&) = delete;
    Intercommunicator& operator=(const Intercommunicator&) = delete;

    MPI_Comm comm = MPI_COMM_NULL;
    bool left;
    int rank = 0, local_size = 0, remote_size = 0;

  private:
    MPI_Comm _local = MPI_COMM_NULL;
};

void exchanges_under_way_between(Run& run) {
    const Intercommunicator inter(run);
    exchanges_under_way(run, inter.comm, inter.remote_size);
}

void intercommunicators(Run& run, Form form) {
    const Intercommunicator inter(run);
    const auto local = static_cast<std::size_t>(inter.local_size);
    const auto remote = static_cast<std::size_t>(inter.remote_size);
    // Point-to-point on it.
    std::byte* message = run.input(6000);
    if (form == Form::blocking && inter.rank == 0) {
        std::byte* answer = run.input(6000);
        MPI_Status status{};
        OK(MPI_Sendrecv(message, 6000, MPI_BYTE, 0, 3, answer, 6000, MPI_BYTE, 0, 3, inter.comm, &status));
        run.note_status("across", status, MPI_BYTE);
    }
    for (const int count : {1, 900}) {
        const auto length = static_cast<std::size_t>(count);
        int* data = run.values<int>(length);
        int root = inter.left ? (inter.rank == 0 ? MPI_ROOT : MPI_PROC_NULL) : 0;
        carry_out(run, form, FORMS(Bcast, data, count, MPI_INT, root, inter.comm));
        int* out = run.values<int>(length * std::max(local, remote));
        int* in = run.output<int>(length * remote);
        carry_out(run, form, FORMS(Allgather, out, count, MPI_INT, in, count, MPI_INT, inter.comm));
        int* reduced = run.output<int>(length);
        carry_out(run, form, FORMS(Allreduce, out, reduced, count, MPI_INT, MPI_SUM, inter.comm));
        int* exchanged = run.output<int>(length * remote);
        carry_out(run, form, FORMS(Alltoall, out, count, MPI_INT, exchanged, count, MPI_INT, inter.comm));
        int* gathered = run.output<int>(length * remote);
        carry_out(run, form, FORMS(Gather, out, count, MPI_INT, gathered, count, MPI_INT, root, inter.comm));
        int* one = run.output<int>(length);
        carry_out(run, form, FORMS(Reduce, out, one, count, MPI_INT, MPI_MAX, root, inter.comm));
        int* scattered = run.output<int>(length);
        carry_out(run, form, FORMS(Scatter, out, count, MPI_INT, scattered, count, MPI_INT, root, inter.comm));
    }
}

/// A ring with its two neighbours, and a graph in which ranks have different numbers of neighbours.
void neighbours(Run& run, Form form, bool graph) {
    MPI_Comm comm;
    int in_degree = 2, out_degree = 2;
    if (graph) {
        std::vector<int> sources, destinations;
        for (int peer = 0; peer < run.size; ++peer) {
            if ((peer + run.rank) % 3 != 1) {
                destinations.push_back(peer);
            }
            if ((run.rank + peer) % 3 != 1) {
                sources.push_back(peer);
            }
        }
        in_degree = static_cast<int>(sources.size());
        out_degree = static_cast<int>(destinations.size());
        OK(MPI_Dist_graph_create_adjacent(run.comm, in_degree, sources.data(), MPI_UNWEIGHTED, out_degree,
                                          destinations.data(), MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &comm));
    } else {
        const int dimension = run.size, periodic = run.size > 2 ? 1 : 0;
        OK(MPI_Cart_create(run.comm, 1, &dimension, &periodic, 0, &comm));
    }
    const auto ins = static_cast<std::size_t>(in_degree), outs = static_cast<std::size_t>(out_degree);
    for (const int count : {0, 1, 4000}) {
        const auto length = static_cast<std::size_t>(count);
        int* out = run.values<int>(length);
        int* in = run.output<int>(length * ins);
        carry_out(run, form, FORMS(Neighbor_allgather, out, count, MPI_INT, in, count, MPI_INT, comm));
        int* each = run.values<int>(length * outs);
        int* received = run.output<int>(length * ins);
        carry_out(run, form, FORMS(Neighbor_alltoall, each, count, MPI_INT, received, count, MPI_INT, comm));

        std::vector<int> in_counts(ins, count), in_at(ins), out_counts(outs, count), out_at(outs);
        for (std::size_t at = 0; at < ins; ++at) {
            in_at[at] = static_cast<int>(at) * (count + 3) + 1;
        }
        for (std::size_t at = 0; at < outs; ++at) {
            out_at[at] = static_cast<int>(at) * (count + 1);
        }
        int* gapped = run.output<int>((length + 3) * ins + 4);
        carry_out(
            run, form,
            FORMS(Neighbor_allgatherv, out, count, MPI_INT, gapped, in_counts.data(), in_at.data(), MPI_INT, comm));
        int* spaced = run.values<int>((length + 1) * outs + 1);
        int* gapped2 = run.output<int>((length + 3) * ins + 4);
        carry_out(run, form,
                  FORMS(Neighbor_alltoallv, spaced, out_counts.data(), out_at.data(), MPI_INT, gapped2,
                        in_counts.data(), in_at.data(), MPI_INT, comm));

        std::vector<MPI_Aint> in_bytes(ins), out_bytes(outs);
        Types in_types, out_types;
        for (std::size_t at = 0; at < ins; ++at) {
            in_bytes[at] = static_cast<MPI_Aint>(in_at[at]) * 4;
            in_types.list.push_back(MPI_INT);
        }
        for (std::size_t at = 0; at < outs; ++at) {
            out_bytes[at] = static_cast<MPI_Aint>(at * (2 * length + 2)) * 4;
            MPI_Datatype type;
            MPI_Type_create_resized(MPI_INT, 0, 8, &type);
            MPI_Type_commit(&type);
            out_types.list.push_back(type);
        }
        int* wide = run.values<int>((2 * length + 2) * outs + 1);
        int* gapped3 = run.output<int>((length + 3) * ins + 4);
        const MPI_Datatype* from = out_types.list.data();
        const MPI_Datatype* to = in_types.list.data();
        carry_out(run, form,
                  FORMS(Neighbor_alltoallw, wide, out_counts.data(), out_bytes.data(), from, gapped3, in_counts.data(),
                        in_bytes.data(), to, comm));
    }
    OK(MPI_Comm_free(&comm));
}

/// Neighbourhoods in which two processes have several edges between them, in which one is its own neighbour, and which
/// end: what comes from where is the MPI's to say, whose host buffers are the reference.
void neighbourhoods(Run& run, Form form) {
    std::vector<MPI_Comm> comms;
    int dimensions[2] = {0, 0};
    OK(MPI_Dims_create(run.size, 2, dimensions));
    for (const int periodic : {0, 1}) {
        const int periods[2] = {periodic, 1};
        MPI_Comm grid;
        OK(MPI_Cart_create(run.comm, 2, dimensions, periods, 0, &grid));
        comms.push_back(grid);
        MPI_Comm copy, row;
        OK(MPI_Comm_dup(grid, &copy));
        comms.push_back(copy);
        const int remain[2] = {0, 1};
        OK(MPI_Cart_sub(grid, remain, &row));
        comms.push_back(row);
    }
    // Twice to the next rank, once to oneself and once to the one before.
    const int next = (run.rank + 1) % run.size, before = (run.rank + run.size - 1) % run.size;
    const std::vector<int> to = {next, run.rank, next, before}, from = {before, before, next, run.rank};
    // Some send only, some receive only, and some do nothing.
    const std::vector<int> ahead(run.rank % 3 == 0 && run.rank + 1 < run.size ? 1 : 0, run.rank + 1);
    const std::vector<int> behind(run.rank % 3 == 1 ? 1 : 0, run.rank - 1);
    MPI_Comm sparse;
    OK(MPI_Dist_graph_create_adjacent(run.comm, static_cast<int>(behind.size()), behind.data(), MPI_UNWEIGHTED,
                                      static_cast<int>(ahead.size()), ahead.data(), MPI_UNWEIGHTED, MPI_INFO_NULL, 0,
                                      &sparse));
    comms.push_back(sparse);
    // Nobody may communicate along edges that are known at one end only, but anybody may make them.
    MPI_Comm wrong;
    const int neighbour = (run.rank + 1) % run.size;
    const int own_edges = run.rank == 0 ? 1 : 0;
    OK(MPI_Dist_graph_create_adjacent(run.comm, own_edges, &neighbour, MPI_UNWEIGHTED, 0, &neighbour, MPI_UNWEIGHTED,
                                      MPI_INFO_NULL, 0, &wrong));
    OK(MPI_Comm_free(&wrong));
    MPI_Comm twice, list;
    OK(MPI_Dist_graph_create_adjacent(run.comm, 4, from.data(), MPI_UNWEIGHTED, 4, to.data(), MPI_UNWEIGHTED,
                                      MPI_INFO_NULL, 0, &twice));
    comms.push_back(twice);
    // A star, known to everybody.
    std::vector<int> ends, edges;
    for (int rank = 1; rank < run.size; ++rank) {
        edges.push_back(rank);
    }
    ends.push_back(run.size - 1);
    for (int rank = 1; rank < run.size; ++rank) {
        edges.push_back(0);
        ends.push_back(static_cast<int>(edges.size()));
    }
    OK(MPI_Graph_create(run.comm, run.size, ends.data(), edges.data(), 0, &list));
    comms.push_back(list);
    for (MPI_Comm& comm : comms) {
        int topology, sources = 0, destinations = 0, weighted;
        OK(MPI_Topo_test(comm, &topology));
        if (topology == MPI_CART) {
            OK(MPI_Cartdim_get(comm, &sources));
            destinations = sources *= 2;
        } else if (topology == MPI_GRAPH) {
            int rank;
            OK(MPI_Comm_rank(comm, &rank));
            OK(MPI_Graph_neighbors_count(comm, rank, &sources));
            destinations = sources;
        } else {
            OK(MPI_Dist_graph_neighbors_count(comm, &sources, &destinations, &weighted));
        }
        const auto ins = static_cast<std::size_t>(sources), outs = static_cast<std::size_t>(destinations);
        for (const int count : {3, 6000}) {
            const auto length = static_cast<std::size_t>(count);
            int* each = run.values<int>(length * outs);
            int* received = run.output<int>(length * ins);
            carry_out(run, form, FORMS(Neighbor_alltoall, each, count, MPI_INT, received, count, MPI_INT, comm));
            int* mine = run.values<int>(length);
            int* theirs = run.output<int>(length * ins);
            carry_out(run, form, FORMS(Neighbor_allgather, mine, count, MPI_INT, theirs, count, MPI_INT, comm));
        }
        OK(MPI_Comm_free(&comm));
    }
}

void reduce_local(Run& run, const Reduction& test) {
    for (const int count : {0, 1, 17, 20000}) {
        void* in = test.make(run, static_cast<std::size_t>(count));
        void* both = test.make(run, static_cast<std::size_t>(count));
        OK(MPI_Reduce_local(in, both, count, test.type, test.op));
    }
}

/// Host memory on some ranks and device memory on others, whatever the mix says: the agreement must not look at one
/// rank.
void one_rank_differs(Run& run) {
    for (int odd = 0; odd < run.size; ++odd) {
        const Kind kind = run.rank == odd ? Kind::device : Kind::host;
        const Kind other = run.rank == odd ? Kind::host : Kind::device;
        for (const Kind mine : {kind, other}) {
            auto* data = reinterpret_cast<int*>(run.input_of(mine, 4000));
            auto* result = reinterpret_cast<int*>(run.input_of(mine == Kind::host ? Kind::device : Kind::host, 4000));
            OK(MPI_Allreduce(data, result, 1000, MPI_INT, MPI_BXOR, run.comm));
            OK(MPI_Bcast(data, 1000, MPI_INT, odd, run.comm));
            OK(MPI_Alltoall(data, 1, MPI_INT, result, 1, MPI_INT, run.comm));
            OK(MPI_Barrier(run.comm));
        }
    }
}

/// Nonblocking collectives of kinds that all ranks have come to do on the GPUs, when some pass host memory after all,
/// with gaps and without.
void host_after_all(Run& run) {
    const Layouts layouts;
    const auto size = static_cast<std::size_t>(run.size);
    const auto wait = [&](const std::function<int(MPI_Request*)>& start) {
        MPI_Request request = MPI_REQUEST_NULL;
        OK(start(&request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    };
    for (int round = 0; round < 2 * layouts.size(); ++round) {
        // The first time all pass device memory, and say so in the barrier.
        const Kind kind = round == 0 || (round + run.rank) % 3 == 0 ? Kind::device : Kind::host;
        const Layouts::Layout from = layouts.pick(round + run.rank), to = layouts.pick(3 * round + 2 * run.rank + 1);
        const auto memory = [&](std::size_t ints) {
            return reinterpret_cast<int*>(run.input_of(kind, ints * sizeof(int)));
        };
        constexpr int kUnits = 3;
        const int sent = from.count(kUnits), taken = to.count(kUnits), root = round % run.size;
        int* out = memory(from.room(kUnits * run.size));
        int* in = memory(to.room(kUnits * run.size));
        wait([&](MPI_Request* request) {
            return MPI_Iallgather(out, sent, from.type, in, taken, to.type, run.comm, request);
        });
        int* exchanged = memory(to.room(kUnits * run.size));
        wait([&](MPI_Request* request) {
            return MPI_Ialltoall(out, sent, from.type, exchanged, taken, to.type, run.comm, request);
        });
        wait([&](MPI_Request* request) {
            return MPI_Ibcast(run.rank == root ? out : in, run.rank == root ? sent : taken,
                              run.rank == root ? from.type : to.type, root, run.comm, request);
        });
        std::vector<int> counts(size, to.count(1)), at(size), bytes(size);
        std::vector<int> out_counts(size, from.count(1)), out_bytes(size);
        const std::vector<MPI_Datatype> out_types(size, from.type), in_types(size, to.type);
        for (std::size_t rank = 0; rank < size; ++rank) {
            at[rank] = to.count(static_cast<int>(kUnits * (size - 1 - rank)));
            bytes[rank] = static_cast<int>(to.room(static_cast<int>(kUnits * rank)) * sizeof(int));
            out_bytes[rank] = static_cast<int>(from.room(static_cast<int>(kUnits * rank)) * sizeof(int));
        }
        int* spread = memory(to.room(kUnits * run.size));
        wait([&](MPI_Request* request) {
            return MPI_Iallgatherv(out, from.count(1), from.type, spread, counts.data(), at.data(), to.type, run.comm,
                                   request);
        });
        int* typed = memory(to.room(kUnits * run.size));
        wait([&](MPI_Request* request) {
            return MPI_Ialltoallw(out, out_counts.data(), out_bytes.data(), out_types.data(), typed, counts.data(),
                                  bytes.data(), in_types.data(), run.comm, request);
        });
        OK(MPI_Barrier(run.comm));
    }
}

/// Several nonblocking collectives in flight with point-to-point among them, completed in another order.
void overlapped(Run& run) {
    const Ring ring(run);
    std::vector<MPI_Request> requests;
    int* a = run.values<int>(5000);
    int* b = run.output<int>(5000);
    int* c = run.values<int>(300);
    int* d = run.output<int>(300 * static_cast<std::size_t>(run.size));
    int* e = run.output<int>(70000);
    int* f = run.values<int>(1000);
    int* g = run.output<int>(1000);
    MPI_Request request;
    OK(MPI_Iallreduce(a, b, 5000, MPI_INT, MPI_SUM, run.comm, &request));
    requests.push_back(request);
    OK(MPI_Irecv(g, 1000, MPI_INT, ring.previous, 1, run.comm, &request));
    requests.push_back(request);
    OK(MPI_Iallgather(c, 300, MPI_INT, d, 300, MPI_INT, run.comm, &request));
    requests.push_back(request);
    OK(MPI_Isend(f, 1000, MPI_INT, ring.next, 1, run.comm, &request));
    requests.push_back(request);
    OK(MPI_Ibcast(e, 70000, MPI_INT, 0, run.comm, &request));
    requests.push_back(request);
    OK(MPI_Ibarrier(run.comm, &request));
    requests.push_back(request);
    std::rotate(requests.begin(), requests.begin() + run.rank % 3, requests.end());
    OK(MPI_Wait(&requests.back(), MPI_STATUS_IGNORE));
    requests.pop_back();
    OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

#if RANKS_HAVE_LARGE_COUNT
void large_count_forms(Run& run) {
    const auto size = static_cast<std::size_t>(run.size);
    const MPI_Count count = 2001;
    int* a = run.values<int>(2001);
    int* b = run.output<int>(2001);
    OK(MPI_Bcast_c(a, count, MPI_INT, 0, run.comm));
    OK(MPI_Allreduce_c(a, b, count, MPI_INT, MPI_SUM, run.comm));
    OK(MPI_Allreduce_c(MPI_IN_PLACE, b, count, MPI_INT, MPI_SUM, run.comm));
    OK(MPI_Reduce_c(a, b, count, MPI_INT, MPI_SUM, 0, run.comm));
    OK(MPI_Scan_c(a, b, count, MPI_INT, MPI_SUM, run.comm));
    int* all = run.output<int>(2001 * size);
    OK(MPI_Allgather_c(a, count, MPI_INT, all, count, MPI_INT, run.comm));
    OK(MPI_Gather_c(a, count, MPI_INT, all, count, MPI_INT, run.size - 1, run.comm));
    OK(MPI_Scatter_c(all, count, MPI_INT, b, count, MPI_INT, run.size - 1, run.comm));
    int* exchanged = run.output<int>(2001 * size);
    OK(MPI_Alltoall_c(all, count, MPI_INT, exchanged, count, MPI_INT, run.comm));
    std::vector<MPI_Count> counts(size, 500);
    std::vector<MPI_Aint> at(size);
    for (std::size_t rank = 0; rank < size; ++rank) {
        at[rank] = static_cast<MPI_Aint>(rank) * 600;
    }
    OK(MPI_Allgatherv_c(a, 500, MPI_INT, exchanged, counts.data(), at.data(), MPI_INT, run.comm));
    OK(MPI_Alltoallv_c(all, counts.data(), at.data(), MPI_INT, exchanged, counts.data(), at.data(), MPI_INT, run.comm));
    OK(MPI_Reduce_scatter_block_c(all, b, 2001, MPI_INT, MPI_SUM, run.comm));
    OK(MPI_Reduce_scatter_c(all, b, counts.data(), MPI_INT, MPI_SUM, run.comm));
    OK(MPI_Reduce_local_c(a, b, count, MPI_INT, MPI_SUM));
    MPI_Request request;
    OK(MPI_Iallreduce_c(a, b, count, MPI_INT, MPI_MAX, run.comm, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Allreduce_init_c(a, b, count, MPI_INT, MPI_MAX, run.comm, MPI_INFO_NULL, &request));
    OK(MPI_Start(&request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Request_free(&request));
}
#endif

/// Collective operations on a group that only some ranks belong to, and on several communicators in turn.
void sub_communicators(Run& run) {
    MPI_Comm half, reversed;
    OK(MPI_Comm_split(run.comm, run.rank % 2 == 0 ? 0 : MPI_UNDEFINED, run.rank, &half));
    OK(MPI_Comm_split(run.comm, 0, run.size - run.rank, &reversed));
    int* a = run.values<int>(700);
    int* b = run.output<int>(700);
    int* c = run.output<int>(700);
    for (int round = 0; round < 3; ++round) {
        if (half != MPI_COMM_NULL) {
            OK(MPI_Allreduce(a, b, 700, MPI_INT, MPI_SUM, half));
        }
        OK(MPI_Scan(a, c, 700, MPI_INT, MPI_SUM, reversed));
        OK(MPI_Bcast(a, 700, MPI_INT, round % run.size, reversed));
    }
    if (half != MPI_COMM_NULL) {
        OK(MPI_Comm_free(&half));
    }
    OK(MPI_Comm_free(&reversed));
}

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    int status = 0;
    {
        const UserOperations user;
        const std::vector<Reduction> users = user.list();
        std::vector<std::pair<std::string, Form>> forms = {{"", Form::blocking}, {"_nonblocking", Form::nonblocking}};
        if (RANKS_HAVE_MPI4) {
            forms.emplace_back("_persistent", Form::persistent);
        }
#if RANKS_HAVE_MPI4 && !defined(OPEN_MPI)
        suite.add("alltoallv_of_allocations", alltoall_of_allocations);
#endif
        suite.add("exscan_of_nothing", exscan_of_nothing);
        for (const auto& [ending, the_form] : forms) {
            const Form form = the_form;
            suite.add("bcast" + ending, [form](Run& run) { broadcast(run, form); });
            suite.add("gather_scatter" + ending, [form](Run& run) { gather(run, form); });
            suite.add("gatherv_scatterv" + ending, [form](Run& run) { gather_varying(run, form); });
            suite.add("allgather" + ending, [form](Run& run) { allgather(run, form); });
            suite.add("alltoall" + ending, [form](Run& run) { alltoall(run, form); });
            suite.add("alltoallv" + ending, [form](Run& run) { alltoall_varying(run, form); });
            suite.add("gaps" + ending, [form](Run& run) { gaps(run, form); }, 1);
            suite.add("alltoallw" + ending, [form](Run& run) { alltoall_typed(run, form); });
            suite.add("neighbours_ring" + ending, [form](Run& run) { neighbours(run, form, false); });
            suite.add("neighbourhoods" + ending, [form](Run& run) { neighbourhoods(run, form); });
            suite.add("neighbours_graph" + ending, [form](Run& run) { neighbours(run, form, true); });
            suite.add("wrong_arguments" + ending, [form](Run& run) { wrong_arguments(run, form); });
            suite.add("wrong_edges" + ending, [form](Run& run) { wrong_edges(run, form); });
            for (const Reduction& test : predefined()) {
                const bool common = test.name == "sum_int" || test.name == "sum_double";
                if (form != Form::blocking && !common && test.name != "maxloc_double_int") {
                    continue;
                }
                const std::vector<int> counts = common ? kCounts : std::vector<int>{1, 50};
                suite.add("reduce_" + test.name + ending,
                          [form, test, counts](Run& run) { reduce(run, form, test, counts); });
            }
            for (const Reduction& test : users) {
                suite.add("reduce_" + test.name + ending,
                          [form, test](Run& run) { reduce(run, form, test, {0, 1, 17, 4000}); });
            }
            const std::vector<Reduction> scanned = {predefined().front(), users[0], users[2]};
            for (const Reduction& test : scanned) {
                suite.add("scan_" + test.name + ending, [form, test](Run& run) { scans(run, form, test); });
                suite.add("reduce_scatter_" + test.name + ending,
                          [form, test](Run& run) { reduce_scatter(run, form, test); });
            }
#ifdef OPEN_MPI
            // Open MPI's nonblocking collectives on intercommunicators are not persistent (coll/libnbc has none).
            if (form == Form::persistent) {
                continue;
            }
#endif
            suite.add("intercommunicators" + ending, [form](Run& run) { intercommunicators(run, form); });
        }
        for (const Reduction& test : predefined()) {
            suite.add("reduce_local_" + test.name, [test](Run& run) { reduce_local(run, test); }, 1);
        }
        for (const Reduction& test : users) {
            suite.add("reduce_local_" + test.name, [test](Run& run) { reduce_local(run, test); }, 1);
        }
        suite.add("again_and_again", again_and_again);
        suite.add("varying_again_and_again", varying_again_and_again);
        suite.add("exchanges_under_way", [](Run& run) { exchanges_under_way(run, run.comm, run.size); });
        suite.add("exchanges_under_way_between", exchanges_under_way_between);
        suite.add("no_such_root", no_such_root);
        suite.add("nothing_said_in_two_ways", nothing_said_in_two_ways);
        suite.add("waits_keep_all_going", waits_keep_all_going, 3);
        suite.add("one_rank_differs", one_rank_differs);
        suite.add("host_after_all", host_after_all, 2, Weight::heavy);
        suite.add("overlapped", overlapped);
        suite.add("sub_communicators", sub_communicators);
#if RANKS_HAVE_LARGE_COUNT
        suite.add("large_count_forms", large_count_forms);
#endif
        status = suite.run();
    }
    MPI_Finalize();
    return status;
}
