// SPDX-License-Identifier: Apache-2.0
// One-sided communication: every operation, with every way to synchronise, on windows and origin buffers of every kind
// of memory, against the same calls on host memory.
//
//     --epochs=N   of each random case (default 12)
//     --draw=N     only this one of the random cases
//     --mirrored   windows with device memory are the MPI's, over host memory: ranks cannot reach each other's
//     --unknown    the same, and ranks do not know of each other that all run the layer
#include <array>
#include <atomic>
#include <complex>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "shared_words.h"
#include "steps.h"
#include "support.h"
#include "types.h"

using namespace ranks;

namespace {

int epochs_at_random = 12;
bool threads_allowed = false;
bool mirrored = false;
bool unknown_peers = false;

/// Memory for a window, of the kind that the mix has.
std::byte* window_memory(Run& run, std::size_t bytes) {
    return run.input(bytes);
}

/// Memory that IPC exports.
std::byte* exported_memory(Run& run, std::size_t bytes) {
    const Kind kind = run.draw_kind();
    return run.input_of(is_shadowed(kind) ? Kind::device : kind, bytes);
}

/// A window that is freed at the end of its scope.
class Win {
  public:
    Win(Run& run, void* memory, MPI_Aint bytes, int unit) : _run(&run) {
        check(MPI_Win_create(memory, bytes, unit, MPI_INFO_NULL, run.comm, &_handle));
    }
    Win(Run& run, MPI_Win handle) : _run(&run), _handle(handle) { check(MPI_SUCCESS); }
    Win(const Win&) = delete;
    Win& operator=(const Win&) = delete;
    ~Win() {
        if (_handle != MPI_WIN_NULL) {
            MPI_Win_free(&_handle);
        }
    }
    operator MPI_Win() const { return _handle; }  // NOLINT: stands for the handle

  private:
    void check(int code) {
        _run->ok(code, "making a window", __LINE__);
        if (_handle == MPI_WIN_NULL) {
            throw std::runtime_error("no window: " + error_text(code));
        }
        MPI_Win_set_errhandler(_handle, MPI_ERRORS_RETURN);
    }
    Run* _run;
    MPI_Win _handle = MPI_WIN_NULL;
};

/// Ways to open and close an epoch in which this rank accesses the next one's memory (and the previous one's, with
/// `both`), and others do the same.
enum class Sync { fence, pscw, lock_shared, lock_exclusive, lock_all, flush, flush_all };
constexpr std::array kSyncs{Sync::fence,    Sync::pscw,  Sync::lock_shared, Sync::lock_exclusive,
                            Sync::lock_all, Sync::flush, Sync::flush_all};
const char* to_string(Sync sync) {
    constexpr std::array names{"fence", "pscw", "lock_shared", "lock_exclusive", "lock_all", "flush", "flush_all"};
    return names[static_cast<std::size_t>(sync)];
}

class Epoch {
  public:
    Epoch(Run& run, MPI_Win window, Sync sync, int target) : _run(run), _window(window), _sync(sync), _target(target) {
        const Ring ring(run);
        switch (sync) {
            case Sync::fence:
                OK(MPI_Win_fence(MPI_MODE_NOPRECEDE, window));
                break;
            case Sync::pscw: {
                // Whoever has this rank as its target.
                const int origin = target == ring.next ? ring.previous : ring.next;
                MPI_Group all, targets, origins;
                OK(MPI_Comm_group(run.comm, &all));
                OK(MPI_Group_incl(all, 1, &target, &targets));
                OK(MPI_Group_incl(all, 1, &origin, &origins));
                OK(MPI_Win_post(origins, 0, window));
                OK(MPI_Win_start(targets, 0, window));
                MPI_Group_free(&all);
                MPI_Group_free(&targets);
                MPI_Group_free(&origins);
                break;
            }
            case Sync::lock_shared:
            case Sync::flush:
                OK(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window));
                break;
            case Sync::lock_exclusive:
                OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window));
                break;
            case Sync::lock_all:
            case Sync::flush_all:
                OK(MPI_Win_lock_all(0, window));
                break;
        }
    }
    Epoch(const Epoch&) = delete;
    Epoch& operator=(const Epoch&) = delete;
    ~Epoch() {
        Run& run = _run;
        switch (_sync) {
            case Sync::fence:
                OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, _window));
                break;
            case Sync::pscw:
                OK(MPI_Win_complete(_window));
                OK(MPI_Win_wait(_window));
                break;
            case Sync::flush:
                OK(MPI_Win_flush_local(_target, _window));
                OK(MPI_Win_flush(_target, _window));
                OK(MPI_Win_unlock(_target, _window));
                break;
            case Sync::flush_all:
                OK(MPI_Win_flush_local_all(_window));
                OK(MPI_Win_flush_all(_window));
                OK(MPI_Win_unlock_all(_window));
                break;
            case Sync::lock_shared:
            case Sync::lock_exclusive:
                OK(MPI_Win_unlock(_target, _window));
                break;
            case Sync::lock_all:
                OK(MPI_Win_unlock_all(_window));
                break;
        }
        OK(MPI_Barrier(run.comm));
    }

  private:
    Run& _run;
    MPI_Win _window;
    Sync _sync;
    int _target;
};

// ---- put and get ----------------------------------------------------------------------------------------------------

void put_and_get(Run& run, Sync sync) {
    const Ring ring(run);
    constexpr int kBytes = 200000;
    std::byte* memory = window_memory(run, 2 * kBytes);
    const Win window(run, memory, 2 * kBytes, run.rank + 1);
    const int unit = ring.next + 1;  // of the target
    int at = 0;
    for (const int bytes : {0, 1, 7, 64, 5000, 70000}) {
        std::byte* source = run.input(static_cast<std::size_t>(bytes));
        std::byte* target = run.output<std::byte>(static_cast<std::size_t>(bytes));
        {
            const Epoch epoch(run, window, sync, ring.next);
            OK(MPI_Put(source, bytes, MPI_BYTE, ring.next, (at + unit - 1) / unit, bytes, MPI_BYTE, window));
            OK(MPI_Get(target, bytes, MPI_BYTE, ring.next, (kBytes + unit - 1) / unit, bytes, MPI_BYTE, window));
        }
        at += bytes + 16;
        run.note_bytes("window", memory, 2 * kBytes);
        run.note_bytes("got", target, static_cast<std::size_t>(bytes));
        OK(MPI_Barrier(run.comm));  // all have looked
    }
}

void put_and_get_self(Run& run) {
    std::byte* memory = window_memory(run, 5000);
    std::byte* source = run.input(1000);
    std::byte* target = run.output<std::byte>(1000);
    const Win window(run, memory, 5000, 1);
    OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, run.rank, 0, window));
    OK(MPI_Put(source, 1000, MPI_BYTE, run.rank, 77, 1000, MPI_BYTE, window));
    OK(MPI_Win_flush(run.rank, window));
    OK(MPI_Get(target, 1000, MPI_BYTE, run.rank, 77, 1000, MPI_BYTE, window));
    OK(MPI_Put(source, 10, MPI_BYTE, MPI_PROC_NULL, 0, 10, MPI_BYTE, window));
    OK(MPI_Win_unlock(run.rank, window));
}

void derived_types(Run& run) {
    const Ring ring(run);
    const Type columns = make([](MPI_Datatype* type) { MPI_Type_vector(50, 3, 7, MPI_INT, type); });
    std::array lengths{1, 4, 2, 1};
    std::array offsets{30, 3, 11, 20};
    const Type scattered =
        make([&](MPI_Datatype* type) { MPI_Type_indexed(4, lengths.data(), offsets.data(), MPI_INT, type); });
    const Type backwards = make([](MPI_Datatype* type) { MPI_Type_create_hvector(6, 1, -24, MPI_INT, type); });
    std::array rows{20, 30}, part{5, 30}, from{3, 0};
    const Type face = make([&](MPI_Datatype* type) {
        MPI_Type_create_subarray(2, rows.data(), part.data(), from.data(), MPI_ORDER_C, MPI_INT, type);
    });
    struct Case {
        MPI_Datatype own;
        int own_count;
        MPI_Datatype there;
        int there_count;
        int at;  // in ints
    };
    const std::array cases{Case{columns, 1, MPI_INT, 150, 10},  Case{MPI_INT, 150, columns, 1, 20},
                           Case{columns, 4, scattered, 75, 40}, Case{scattered, 3, backwards, 4, 90},
                           Case{face, 1, columns, 1, 64},       Case{backwards, 2, face, 0, 64}};
    std::byte* memory = window_memory(run, 40000);
    const Win window(run, memory, 40000, 4);
    for (const Case& one : cases) {
        const int there_count = one.there_count;
        const int own_count = there_count == 0 ? 0 : one.own_count;
        const Room room(one.own, std::max(one.own_count, 1));
        std::byte* source = run.input(room.bytes) + room.origin;
        std::byte* target = run.input(room.bytes) + room.origin;
        {
            const Epoch epoch(run, window, Sync::fence, ring.next);
            OK(MPI_Put(source, own_count, one.own, ring.next, one.at, there_count, one.there, window));
        }
        {
            const Epoch epoch(run, window, Sync::flush, ring.next);
            OK(MPI_Get(target, own_count, one.own, ring.next, one.at + 4, there_count, one.there, window));
        }
        run.note_bytes("window", memory, 40000);
        OK(MPI_Barrier(run.comm));  // all have looked
    }
}

/// The side that receives may have room for more than is sent, as in a send and a receive.
void more_room_than_data(Run& run) {
#ifdef OPEN_MPI
    constexpr bool whole = false;  // it crashes where the types differ, and gets as much as there is room for
#else
    constexpr bool whole = true;
#endif
    const Ring ring(run);
    const Type columns = make([](MPI_Datatype* type) { MPI_Type_vector(50, 3, 7, MPI_INT, type); });
    constexpr int kInts = 1000;
    std::byte* memory = window_memory(run, kInts * sizeof(int));
    auto* source = run.values<int>(kInts);
    auto* target = run.values<int>(3 * kInts);
    const Win window(run, memory, kInts * sizeof(int), sizeof(int));
    {
        const Epoch epoch(run, window, Sync::fence, ring.next);
        OK(MPI_Put(source, 3, MPI_INT, ring.next, 0, 5, MPI_INT, window));
        OK(MPI_Put(source, 0, MPI_INT, ring.next, 400, 5, MPI_INT, window));
        if (whole) {
            OK(MPI_Put(source, 100, MPI_INT, ring.next, 10, 1, columns, window));
        }
    }
    if (whole) {
        const Epoch epoch(run, window, Sync::flush, ring.next);
        OK(MPI_Get(target, 5, MPI_INT, ring.next, 0, 3, MPI_INT, window));
        OK(MPI_Get(target + 10, 1, columns, ring.next, 500, 100, MPI_INT, window));
        MPI_Request request = MPI_REQUEST_NULL;
        OK(MPI_Rget(target + kInts, 500, MPI_INT, ring.next, 500, 499, MPI_INT, window, &request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    run.note_bytes("window", memory, kInts * sizeof(int));
    OK(MPI_Barrier(run.comm));  // all have looked
}

void requests(Run& run) {
    const Ring ring(run);
    constexpr int kCount = 3000;
    std::byte* memory = window_memory(run, 8 * kCount * sizeof(double));
    const Win window(run, memory, 8 * kCount * sizeof(double), sizeof(double));
    // Numbers, for the accumulates.
    auto* numbers = run.values<double>(kCount);
    auto* more = run.values<double>(kCount);
    auto* got = run.output<double>(kCount);
    auto* before = run.output<double>(kCount);
    OK(MPI_Barrier(run.comm));
    OK(MPI_Win_lock_all(0, window));
    std::array<MPI_Request, 2> both{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    OK(MPI_Rput(numbers, kCount, MPI_DOUBLE, ring.next, 0, kCount, MPI_DOUBLE, window, &both[0]));
    OK(MPI_Rget(got, kCount, MPI_DOUBLE, ring.next, 4 * kCount, kCount, MPI_DOUBLE, window, &both[1]));
    OK(MPI_Waitall(2, both.data(), MPI_STATUSES_IGNORE));
    run.note_bytes("got", got, kCount * sizeof(double));
    OK(MPI_Win_flush(ring.next, window));
    MPI_Request request = MPI_REQUEST_NULL;
    OK(MPI_Raccumulate(more, kCount, MPI_DOUBLE, ring.next, 0, kCount, MPI_DOUBLE, MPI_SUM, window, &request));
    for (int done = 0; done == 0;) {
        OK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    }
    OK(MPI_Rget_accumulate(more, kCount, MPI_DOUBLE, before, kCount, MPI_DOUBLE, ring.next, 0, kCount, MPI_DOUBLE,
                           MPI_MAX, window, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    // A flush completes what has a request as well.
    OK(MPI_Rget(got, kCount, MPI_DOUBLE, ring.next, 0, kCount, MPI_DOUBLE, window, &request));
    OK(MPI_Win_flush_all(window));
    run.note_bytes("got after a flush", got, kCount * sizeof(double));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Win_unlock_all(window));
}

// ---- accumulate -----------------------------------------------------------------------------------------------------

struct DoubleAndInt {
    double value;
    int index;
    static constexpr bool padding(std::size_t byte) { return byte >= 12; }
    DoubleAndInt() = default;
    explicit DoubleAndInt(std::uint64_t from) : value(static_cast<double>(from)), index(static_cast<int>(from)) {}
};
struct TwoInts {
    int value, index;
    TwoInts() = default;
    explicit TwoInts(std::uint64_t from) : value(static_cast<int>(from)), index(static_cast<int>(from * 2)) {}
};

/// `many`: enough for a kernel, where there is one.
template <class T>
void accumulate_type(Run& run, MPI_Datatype type, std::vector<MPI_Op> ops, int many_count = 3000) {
    const Ring ring(run);
    constexpr int kFew = 9;
#ifdef OPEN_MPI
    // Open MPI takes one of these for another where it uses the processor's atomics.
    if (sizeof(T) >= 4) {
        std::erase_if(ops, [](MPI_Op op) {
            return op == MPI_LAND || op == MPI_LOR || op == MPI_LXOR || op == MPI_BAND || op == MPI_BOR ||
                   op == MPI_BXOR;
        });
    }
#endif
    const std::size_t room = ops.size() * kFew + 2 * static_cast<std::size_t>(many_count);
    const Kind kind = run.draw_kind();
    T* memory = nullptr;
    // Values are drawn like an input's: the same in each execution.
    {
        std::vector<std::byte> image(room * sizeof(T));
        for (std::size_t at = 0; at < room; ++at) {
            const T value = static_cast<T>(combine(static_cast<std::uint64_t>(run.rank), at) % 3 + 1);
            std::memcpy(&image[at * sizeof(T)], &value, sizeof(T));
        }
        memory = reinterpret_cast<T*>(run.input_of(kind, room * sizeof(T)));
        run.store(memory, image.data(), room * sizeof(T));
    }
    const Win window(run, memory, static_cast<MPI_Aint>(room * sizeof(T)), sizeof(T));
    T* few = run.values<T>(kFew);
    T* many = run.values<T>(static_cast<std::size_t>(many_count));
    T* before = run.values<T>(ops.size() * kFew);
    T* before_many = run.values<T>(static_cast<std::size_t>(many_count));
    const auto check = [&](Sync sync, bool gets) {
        const Epoch epoch(run, window, sync, ring.next);
        MPI_Aint at = 0;
        for (std::size_t i = 0; i < ops.size(); ++i, at += kFew) {
            if (gets) {
                OK(MPI_Get_accumulate(few, kFew, type, before + i * kFew, kFew, type, ring.next, at, kFew, type, ops[i],
                                      window));
            } else if (ops[i] != MPI_NO_OP) {
                OK(MPI_Accumulate(few, kFew, type, ring.next, at, kFew, type, ops[i], window));
            }
        }
        for (int twice = 0; twice < 2; ++twice, at += many_count) {
            if (gets && twice == 1) {
                OK(MPI_Get_accumulate(many, many_count, type, before_many, many_count, type, ring.next, at, many_count,
                                      type, ops[0], window));
            } else {
                OK(MPI_Accumulate(many, many_count, type, ring.next, at, many_count, type, ops[0], window));
            }
        }
    };
    check(Sync::fence, false);
    check(Sync::flush, true);
    // Padding of pairs may be copied or not; it is made the same before it is compared.
    if (has_padding<T>()) {
        std::vector<std::byte> image = run.load(memory, room * sizeof(T));
        for (std::size_t byte = 0; byte < image.size(); ++byte) {
            if (is_padding<T>(byte % sizeof(T))) {
                image[byte] = std::byte{0};
            }
        }
        run.store(memory, image.data(), image.size());
    }
}

void accumulate_integers(Run& run) {
    const std::vector<MPI_Op> ops{MPI_SUM,  MPI_PROD, MPI_MIN, MPI_MAX,  MPI_LAND,    MPI_LOR,
                                  MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_REPLACE, MPI_NO_OP};
    accumulate_type<char>(run, MPI_CHAR, ops);
    accumulate_type<signed char>(run, MPI_SIGNED_CHAR, ops);
    accumulate_type<unsigned short>(run, MPI_UNSIGNED_SHORT, ops);
    accumulate_type<int>(run, MPI_INT, ops);
    accumulate_type<long long>(run, MPI_LONG_LONG, ops);
    accumulate_type<std::uint64_t>(run, MPI_UINT64_T, ops);
}

void accumulate_floating(Run& run) {
    const std::vector<MPI_Op> ops{MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_REPLACE, MPI_NO_OP};
    accumulate_type<float>(run, MPI_FLOAT, ops);
    accumulate_type<double>(run, MPI_DOUBLE, ops);
    accumulate_type<long double>(run, MPI_LONG_DOUBLE, ops);
}

void accumulate_complex(Run& run) {
    accumulate_type<std::complex<double>>(run, MPI_C_DOUBLE_COMPLEX, {MPI_SUM, MPI_PROD, MPI_REPLACE});
}

void accumulate_bytes(Run& run) {
    accumulate_type<bool>(run, MPI_C_BOOL, {MPI_LAND, MPI_LOR, MPI_LXOR, MPI_REPLACE, MPI_NO_OP});
    accumulate_type<unsigned char>(run, MPI_BYTE, {MPI_BAND, MPI_BOR, MPI_BXOR, MPI_REPLACE});
}

void accumulate_pairs(Run& run) {
    accumulate_type<TwoInts>(run, MPI_2INT, {MPI_MINLOC, MPI_MAXLOC, MPI_REPLACE});
    // Not more: MPICH fetches wrong values of pairs with gaps past 16 KiB.
    accumulate_type<DoubleAndInt>(run, MPI_DOUBLE_INT, {MPI_MAXLOC, MPI_MINLOC, MPI_REPLACE}, 600);
}

void accumulate_derived(Run& run) {
    const Ring ring(run);
    const Type columns = make([](MPI_Datatype* type) { MPI_Type_vector(40, 2, 5, MPI_INT, type); });
    std::byte* memory = window_memory(run, 4000);
    auto* numbers = run.values<int>(400);
    auto* before = run.values<int>(400);
    const Win window(run, memory, 4000, 4);
    for (const bool gets : {false, true}) {
        const Epoch epoch(run, window, gets ? Sync::lock_exclusive : Sync::pscw, ring.next);
        if (gets) {
            OK(MPI_Get_accumulate(numbers, 80, MPI_INT, before, 1, columns, ring.next, 7, 1, columns, MPI_SUM, window));
        } else {
            OK(MPI_Accumulate(numbers, 1, columns, ring.next, 3, 1, columns, MPI_SUM, window));
            OK(MPI_Accumulate(numbers, 80, MPI_INT, ring.next, 300, 80, MPI_INT, MPI_REPLACE, window));
        }
    }
}

/// What a structure is made of is not told by a block that has no elements.
void accumulate_after_an_empty_block(Run& run) {
    const Ring ring(run);
    const Type after_nothing = make([](MPI_Datatype* type) {
        const std::array lengths{0, 3};
        const std::array<MPI_Aint, 2> offsets{};
        const std::array types{MPI_INT, MPI_DOUBLE};
        MPI_Type_create_struct(2, lengths.data(), offsets.data(), types.data(), type);
    });
    auto* memory = reinterpret_cast<double*>(run.input_of(Kind::device, 3 * sizeof(double)));
    auto* numbers = reinterpret_cast<double*>(run.input(3 * sizeof(double)));
    const std::array<double, 3> halves{0.5, 1.5, 2.5};
    run.store(memory, halves.data(), sizeof halves);
    run.store(numbers, halves.data(), sizeof halves);
    const Win window(run, memory, 3 * sizeof(double), sizeof(double));
#ifdef OPEN_MPI
    const bool ours = !run.reference() && run.gpu().present() && !mirrored;  // Open MPI takes no such type itself
#else
    const bool ours = true;
#endif
    const MPI_Datatype there = ours ? static_cast<MPI_Datatype>(after_nothing) : MPI_DOUBLE;
    {
        const Epoch epoch(run, window, Sync::fence, ring.next);
        OK(MPI_Accumulate(numbers, 3, MPI_DOUBLE, ring.next, 0, ours ? 1 : 3, there, MPI_SUM, window));
    }
    for (std::size_t i = 0; i < halves.size(); ++i) {
        double sum = 0;
        std::memcpy(&sum, run.load(memory + i, sizeof sum).data(), sizeof sum);
        run.expect(sum == 2 * halves[i], format("%g and %g are %g", halves[i], halves[i], sum));
    }
}

/// Operands on another GPU of the process, while one of its own has not yet done what it was given.
void accumulate_from_another_gpu(Run& run) {
    if (mirrored || unknown_peers) {
        return;  // what is stored in an epoch is not there yet for what goes through the MPI
    }
    constexpr int kCount = 4096;
    const bool several = !run.reference() && run.gpu().device_count() > 1;
    const std::size_t bytes = kCount * sizeof(double);
    auto* memory = reinterpret_cast<double*>(run.input_of(Kind::device, bytes));
    const Win window(run, memory, bytes, sizeof(double));
    const int own = several ? run.rank % run.gpu().device_count() : 0;
    if (several) {
        run.watch_current(false);
        run.gpu().use_device((own + 1) % run.gpu().device_count());
    }
    auto* numbers = reinterpret_cast<double*>(run.input_of(Kind::device, bytes));
    auto* before = reinterpret_cast<double*>(run.input_of(Kind::device, bytes));
    const std::vector<double> ones(kCount, 1.0);
    for (int round = 0; round < 4; ++round) {
        run.store(numbers, ones.data(), bytes);
        OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, run.rank, 0, window));
        if (run.reference()) {
            std::memset(static_cast<void*>(memory), 0, bytes);
        } else {
            if (several) {
                run.gpu().use_device(own);
            }
            run.gpu().memset(memory, 0, bytes);  // may go on
            if (several) {
                run.gpu().use_device((own + 1) % run.gpu().device_count());
            }
        }
        if (round % 2 == 0) {
            OK(MPI_Accumulate(numbers, kCount, MPI_DOUBLE, run.rank, 0, kCount, MPI_DOUBLE, MPI_SUM, window));
        } else {
            OK(MPI_Get_accumulate(numbers, kCount, MPI_DOUBLE, before, kCount, MPI_DOUBLE, run.rank, 0, kCount,
                                  MPI_DOUBLE, MPI_SUM, window));
        }
        OK(MPI_Win_unlock(run.rank, window));
        run.note_bytes("sum", memory, bytes);
        if (round % 2 == 1) {
            run.note_bytes("before", before, bytes);
        }
    }
    if (several) {
        run.gpu().use_device(own);
        run.watch_current(true);
    }
}

void single_elements(Run& run) {
    const Ring ring(run);
    std::byte* memory = window_memory(run, 64);
    const Win window(run, memory, 64, 8);
    auto* given = run.values<long long>(2);
    auto* there = run.output<long long>(4);
    auto* expected = run.output<long long>(1);
    OK(MPI_Barrier(run.comm));
    OK(MPI_Win_lock(MPI_LOCK_SHARED, ring.next, 0, window));
    OK(MPI_Fetch_and_op(given, there, MPI_LONG_LONG, ring.next, 1, MPI_SUM, window));
    OK(MPI_Fetch_and_op(given, there + 1, MPI_LONG_LONG, ring.next, 1, MPI_REPLACE, window));
    OK(MPI_Fetch_and_op(nullptr, there + 2, MPI_LONG_LONG, ring.next, 1, MPI_NO_OP, window));
    OK(MPI_Get(expected, 1, MPI_LONG_LONG, ring.next, 2, 1, MPI_LONG_LONG, window));
    OK(MPI_Win_flush(ring.next, window));
    // One that finds what it expects, and one that does not.
    OK(MPI_Compare_and_swap(given + 1, expected, there + 3, MPI_LONG_LONG, ring.next, 2, window));
    OK(MPI_Win_flush(ring.next, window));
    OK(MPI_Compare_and_swap(given, expected, there, MPI_LONG_LONG, ring.next, 3, window));
    OK(MPI_Win_unlock(ring.next, window));
    OK(MPI_Barrier(run.comm));
}

// ---- many at once ---------------------------------------------------------------------------------------------------

/// All ranks at one element: nothing may be lost, and nobody sees the same value twice.
void atomicity(Run& run) {
    constexpr int kTimes = 40;
    auto* memory = reinterpret_cast<long long*>(window_memory(run, 64));
    const std::array<long long, 8> zeros{};
    run.store(memory, zeros.data(), 64);
    const Win window(run, memory, 64, 8);
    auto* one = reinterpret_cast<long long*>(run.input(8));
    const long long value = 1;
    run.store(one, &value, 8);
    auto* seen = reinterpret_cast<long long*>(run.transient(8));
    auto* wanted = reinterpret_cast<long long*>(run.transient(8));
    auto* expected = reinterpret_cast<long long*>(run.transient(8));
    const auto read = [&](const long long* pointer) {
        long long number = 0;
        std::memcpy(&number, run.load(pointer, 8).data(), 8);
        return number;
    };
    std::vector<char> mine(static_cast<std::size_t>(kTimes * run.size)), all(mine.size());
    OK(MPI_Barrier(run.comm));
    OK(MPI_Win_lock_all(0, window));
    for (int time = 0; time < kTimes; ++time) {
        OK(MPI_Fetch_and_op(one, seen, MPI_LONG_LONG, 0, 0, MPI_SUM, window));
        OK(MPI_Accumulate(one, 1, MPI_LONG_LONG, 0, 1, 1, MPI_LONG_LONG, MPI_SUM, window));
        OK(MPI_Win_flush(0, window));
        const long long number = read(seen);
        if (number < 0 || number >= kTimes * run.size) {
            run.problem(format("a counter gives %lld", number));
        } else {
            ++mine[static_cast<std::size_t>(number)];
        }
    }
    // A counter by compare and swap, which has to be tried again when another rank was faster.
    long long guess = 0;
    for (int time = 0; time < 10;) {
        const long long next = guess + 1;
        run.store(wanted, &next, 8);
        run.store(expected, &guess, 8);
        OK(MPI_Compare_and_swap(wanted, expected, seen, MPI_LONG_LONG, 0, 2, window));
        OK(MPI_Win_flush(0, window));
        const long long found = read(seen);
        if (found == guess) {
            ++time;
        }
        guess = found == guess ? next : found;
    }
    OK(MPI_Win_unlock_all(window));
    OK(MPI_Allreduce(mine.data(), all.data(), static_cast<int>(mine.size()), MPI_CHAR, MPI_SUM, run.comm));
    for (std::size_t number = 0; number < all.size(); ++number) {
        run.expect(all[number] == 1, format("%d ranks have seen %zu", all[number], number));
    }
    // An exclusive lock: what is read stays so until it is written.
    for (int time = 0; time < 10; ++time) {
        OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window));
        OK(MPI_Get(seen, 1, MPI_LONG_LONG, 0, 3, 1, MPI_LONG_LONG, window));
        OK(MPI_Win_flush(0, window));
        const long long next = read(seen) + 1;
        run.store(wanted, &next, 8);
        OK(MPI_Put(wanted, 1, MPI_LONG_LONG, 0, 3, 1, MPI_LONG_LONG, window));
        OK(MPI_Win_unlock(0, window));
    }
    OK(MPI_Barrier(run.comm));
    if (run.rank == 0) {
        OK(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window));
        OK(MPI_Win_unlock(0, window));
        for (int counter = 0; counter < 4; ++counter) {
            const long long times = counter < 2 ? kTimes : 10;
            run.expect(read(memory + counter) == times * run.size,
                       format("counter %d is %lld", counter, read(memory + counter)));
        }
    }
}

/// The target makes no call until all others are through with its memory, where no MPI is in between.
void passive_target(Run& run) {
    const bool device = !run.reference() && run.gpu().present() && !mirrored;
    std::byte* memory = run.input_of(Kind::device, 8000);
    std::byte* source = run.input(1000);
    auto* numbers = run.values<int>(1000);
    std::byte* target = run.output<std::byte>(1000);
    const Win window(run, memory, 8000, 1);
    SharedWords words(run.comm);
    if (run.rank == 0 && device) {
        while (words[0] < run.size - 1) {
            usleep(100);
        }
    } else if (run.rank != 0) {
        OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window));
        OK(MPI_Get(target, 1000, MPI_BYTE, 0, 7000, 1000, MPI_BYTE, window));
        if (run.rank == 1) {
            OK(MPI_Put(source, 1000, MPI_BYTE, 0, 0, 1000, MPI_BYTE, window));
        }
        OK(MPI_Accumulate(numbers, 1000, MPI_INT, 0, 2000, 1000, MPI_INT, MPI_SUM, window));
        OK(MPI_Win_unlock(0, window));
        OK(MPI_Win_lock_all(0, window));
        OK(MPI_Accumulate(numbers, 1, MPI_INT, 0, 6000, 1, MPI_INT, MPI_SUM, window));
        OK(MPI_Win_flush_all(window));
        OK(MPI_Win_unlock_all(window));
        ++words[0];
    }
    OK(MPI_Barrier(run.comm));
}

void several_threads(Run& run) {
    if (!threads_allowed) {
        return;
    }
    const Ring ring(run);
    constexpr int kThreads = 3, kBytes = 3000;
    run.watch_current(false);
    std::byte* memory = window_memory(run, kThreads * kBytes);
    const Win window(run, memory, kThreads * kBytes, 1);
    std::array<std::byte*, kThreads> sources{}, targets{};
    for (int i = 0; i < kThreads; ++i) {
        sources[static_cast<std::size_t>(i)] = run.input(kBytes);
        targets[static_cast<std::size_t>(i)] = run.input(kBytes);
    }
    OK(MPI_Win_lock_all(0, window));
    std::vector<std::thread> threads;
    std::array<int, kThreads> codes{};
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            const auto at = static_cast<std::size_t>(i);
            for (int part = 0; part < kBytes && codes[at] == MPI_SUCCESS; part += 500) {
                codes[at] =
                    MPI_Put(sources[at] + part, 500, MPI_BYTE, ring.next, i * kBytes + part, 500, MPI_BYTE, window);
                if (codes[at] == MPI_SUCCESS) {
                    codes[at] = MPI_Win_flush(ring.next, window);
                }
                if (codes[at] == MPI_SUCCESS) {
                    codes[at] =
                        MPI_Get(targets[at] + part, 500, MPI_BYTE, ring.next, i * kBytes + part, 500, MPI_BYTE, window);
                }
                if (codes[at] == MPI_SUCCESS) {
                    codes[at] = MPI_Win_flush(ring.next, window);
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const int code : codes) {
        OK(code);
    }
    OK(MPI_Win_unlock_all(window));
    OK(MPI_Barrier(run.comm));
}

// ---- other windows --------------------------------------------------------------------------------------------------

/// Each rank attaches device and host memory, and tells the others where.
void dynamic(Run& run) {
    const Ring ring(run);
    std::byte* first = mirrored ? run.host(4096) : exported_memory(run, 4096);
    std::byte* second = mirrored ? run.host(10000) : exported_memory(run, 10000);
    std::byte* plain = run.host(2000);
    std::byte* refused = run.input_of(mirrored ? Kind::device : Kind::pool, 1000);
    MPI_Win handle = MPI_WIN_NULL;
    OK(MPI_Win_create_dynamic(MPI_INFO_NULL, run.comm, &handle));
    const Win window(run, handle);
    if (!run.reference() && run.gpu().present()) {
        // Memory that others cannot map may be found out later: when it is used.
        const int code = MPI_Win_attach(window, refused, 1000);
        if (mirrored && code == MPI_SUCCESS) {
            OK(MPI_Win_detach(window, refused));
        } else {
            run.expect(error_class(code) == MPI_ERR_UNSUPPORTED_OPERATION,
                       "attaching memory that others cannot reach gives " + error_text(code));
        }
    }
    OK(MPI_Win_attach(window, first, 4096));
    OK(MPI_Win_attach(window, plain, 2000));
    std::array<MPI_Aint, 3> own{}, there{};
    MPI_Get_address(first, &own[0]);
    MPI_Get_address(second, &own[1]);
    MPI_Get_address(plain, &own[2]);
    const auto exchange = [&] {
        OK(MPI_Sendrecv(own.data(), 3, MPI_AINT, ring.previous, 1, there.data(), 3, MPI_AINT, ring.next, 1, run.comm,
                        MPI_STATUS_IGNORE));
    };
    exchange();
    std::byte* source = run.input(1000);
    std::byte* target = run.input(1000);
    auto* numbers = run.values<int>(100);
    {
        const Epoch epoch(run, window, Sync::lock_exclusive, ring.next);
        OK(MPI_Put(source, 1000, MPI_BYTE, ring.next, there[0] + 10, 1000, MPI_BYTE, window));
        OK(MPI_Put(source, 1000, MPI_BYTE, ring.next, there[2] + 10, 1000, MPI_BYTE, window));
        OK(MPI_Get(target, 500, MPI_BYTE, ring.next, there[0] + 2000, 500, MPI_BYTE, window));
        OK(MPI_Get(target + 500, 500, MPI_BYTE, ring.next, there[2] + 1400, 500, MPI_BYTE, window));
    }
    OK(MPI_Win_attach(window, second, 10000));
    OK(MPI_Barrier(run.comm));
    {
        const Epoch epoch(run, window, Sync::fence, ring.next);
        OK(MPI_Accumulate(numbers, 100, MPI_INT, ring.next, there[1] + 400, 100, MPI_INT, MPI_SUM, window));
        OK(MPI_Accumulate(numbers, 100, MPI_INT, ring.next, there[2] + 1200, 100, MPI_INT, MPI_REPLACE, window));
    }
    OK(MPI_Win_detach(window, first));
    {
        const Epoch epoch(run, window, Sync::lock_all, ring.next);
        OK(MPI_Put(source, 1000, MPI_BYTE, ring.next, there[1] + 5000, 1000, MPI_BYTE, window));
    }
    OK(MPI_Win_detach(window, second));
    OK(MPI_Win_detach(window, plain));
}

void allocated(Run& run) {
    const Ring ring(run);
    MPI_Info info;
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "awaken_memory", "device"));
    const bool device = !run.reference() && run.gpu().present();
    void* base = nullptr;
    MPI_Win handle = MPI_WIN_NULL;
    OK(MPI_Win_allocate(4000, 4, device ? info : MPI_INFO_NULL, run.comm, static_cast<void*>(&base), &handle));
    OK(MPI_Info_free(&info));
    const Win window(run, handle);
    std::vector<std::byte> image(4000);
    fill_random(image.data(), image.size(), static_cast<std::uint64_t>(run.rank));
    const auto move = [&](bool out) {
        if (!device) {
            out ? std::memcpy(base, image.data(), 4000) : std::memcpy(image.data(), base, 4000);
        } else {
            out ? run.gpu().write(base, image.data(), 4000) : run.gpu().read(image.data(), base, 4000);
        }
    };
    move(true);
    std::byte* source = run.input(1000);
    std::byte* target = run.input(1000);
    {
        const Epoch epoch(run, window, Sync::fence, ring.next);
        OK(MPI_Put(source, 1000, MPI_BYTE, ring.next, 10, 1000, MPI_BYTE, window));
        OK(MPI_Get(target, 1000, MPI_BYTE, ring.next, 500, 1000, MPI_BYTE, window));
    }
    move(false);
    run.note("memory", static_cast<long long>(hash_bytes(image.data(), image.size()) >> 1));
    void* attribute = nullptr;
    int found = 0;
    OK(MPI_Win_get_attr(window, MPI_WIN_BASE, static_cast<void*>(&attribute), &found));
    run.expect(found != 0 && attribute == base, "MPI_WIN_BASE is not the window's memory");
    OK(MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, static_cast<void*>(&attribute), &found));
    run.expect(found != 0 && *static_cast<int*>(attribute) == MPI_WIN_FLAVOR_ALLOCATE, "the window has another flavor");
}

/// Each rank reaches the next one's part by a pointer, and by operations.
void shared(Run& run, bool apart) {
    const Ring ring(run);
    const bool device = !run.reference() && run.gpu().present() && !mirrored;
    MPI_Info info;
    OK(MPI_Info_create(&info));
    if (device) {
        OK(MPI_Info_set(info, "awaken_memory", "device"));
    }
    if (apart) {
        OK(MPI_Info_set(info, "alloc_shared_noncontig", "true"));
    }
    void* base = nullptr;
    MPI_Win handle = MPI_WIN_NULL;
    const MPI_Aint bytes = 1000 + 8 * run.rank;
    OK(MPI_Win_allocate_shared(bytes, 1, info, run.comm, static_cast<void*>(&base), &handle));
    OK(MPI_Info_free(&info));
    const Win window(run, handle);
    void* there = nullptr;
    MPI_Aint size = 0;
    int unit = 0;
    OK(MPI_Win_shared_query(window, ring.next, &size, &unit, static_cast<void*>(&there)));
    // An MPI may say more than was asked for.
    run.expect(size >= 1000 + 8 * ring.next && unit == 1, "MPI_Win_shared_query is wrong");
    if (!apart && ring.next > run.rank) {
        run.expect(static_cast<std::byte*>(there) == static_cast<std::byte*>(base) + bytes,
                   "the parts are not in a row");
    }
    const auto copy = [&](void* target, const void* source, std::size_t length, bool to_device) {
        if (!device) {
            std::memcpy(target, source, length);
        } else if (to_device) {
            run.gpu().write(target, source, length);
        } else {
            run.gpu().read(target, source, length);
        }
    };
    std::array<std::byte, 300> text{};
    fill_random(text.data(), text.size(), static_cast<std::uint64_t>(run.rank));
    copy(there, text.data(), text.size(), true);
    std::byte* source = run.input(300);
    std::byte* target = run.input(300);
    OK(MPI_Win_fence(0, window));
    OK(MPI_Put(source, 300, MPI_BYTE, ring.previous, 400, 300, MPI_BYTE, window));
    OK(MPI_Get(target, 300, MPI_BYTE, ring.previous, 0, 300, MPI_BYTE, window));
    OK(MPI_Win_fence(0, window));
    std::array<std::byte, 300> own{};
    copy(own.data(), base, own.size(), false);
    run.note("stored by the one before", static_cast<long long>(hash_bytes(own.data(), own.size()) >> 1));
    copy(own.data(), static_cast<std::byte*>(base) + 400, own.size(), false);
    run.note("put by the next one", static_cast<long long>(hash_bytes(own.data(), own.size()) >> 1));
    OK(MPI_Barrier(run.comm));
}

void attributes(Run& run) {
    std::byte* memory = window_memory(run, 4096);
    const Win window(run, memory, 4096, 2 + run.rank);
    void* attribute = nullptr;
    int found = 0;
    OK(MPI_Win_get_attr(window, MPI_WIN_BASE, static_cast<void*>(&attribute), &found));
    run.expect(found != 0 && attribute == memory, "MPI_WIN_BASE is not the window's memory");
    OK(MPI_Win_get_attr(window, MPI_WIN_SIZE, static_cast<void*>(&attribute), &found));
    run.note("size", found != 0 ? static_cast<long long>(*static_cast<MPI_Aint*>(attribute)) : -1);
    OK(MPI_Win_get_attr(window, MPI_WIN_DISP_UNIT, static_cast<void*>(&attribute), &found));
    run.note("unit", found != 0 ? *static_cast<int*>(attribute) : -1);
    OK(MPI_Win_get_attr(window, MPI_WIN_CREATE_FLAVOR, static_cast<void*>(&attribute), &found));
    run.note("flavor", found != 0 ? *static_cast<int*>(attribute) : -1);
    OK(MPI_Win_get_attr(window, MPI_WIN_MODEL, static_cast<void*>(&attribute), &found));
    run.note("model", found != 0 ? 1 : -1);
    if (!run.reference() && run.gpu().present() && found != 0) {
        // Whether some member's memory is reached through a shadow.
        const Kind kind = run.kind_of(memory);
        const bool device = kind == Kind::device || kind == Kind::interior || is_shadowed(kind);
        int shadowed = is_shadowed(kind) || (mirrored && device) ? 1 : 0;
        if (!unknown_peers) {
            OK(MPI_Allreduce(MPI_IN_PLACE, &shadowed, 1, MPI_INT, MPI_MAX, run.comm));
        }
        run.expect((*static_cast<int*>(attribute) == MPI_WIN_SEPARATE) == (shadowed != 0), "the memory model is wrong");
    }
    OK(MPI_Win_set_name(window, "a window"));
    char name[MPI_MAX_OBJECT_NAME] = {};
    int length = 0;
    OK(MPI_Win_get_name(window, name, &length));
    run.note("name", std::string(name));
    MPI_Group group;
    OK(MPI_Win_get_group(window, &group));
    OK(MPI_Group_size(group, &length));
    run.note("members", length);
    OK(MPI_Group_free(&group));
}

// ---- what is wrong --------------------------------------------------------------------------------------------------

void wrong_ranges(Run& run) {
    const Ring ring(run);
    std::byte* memory = run.input_of(Kind::device, 1000);
    std::byte* source = run.input(2000);
    if (run.reference() || !run.gpu().present()) {
        return;
    }
    const Win window(run, memory, 1000, 1);
    OK(MPI_Win_lock(MPI_LOCK_SHARED, ring.next, 0, window));
    const auto range = [&](const char* what, int code) {
        run.expect(error_class(code) == MPI_ERR_RMA_RANGE, std::string(what) + " gives " + error_text(code));
    };
    if (!unknown_peers) {  // they do not tell each other how large their windows are
        range("a put past the end", MPI_Put(source, 10, MPI_BYTE, ring.next, 991, 10, MPI_BYTE, window));
        range("a put that is too long", MPI_Put(source, 1001, MPI_BYTE, ring.next, 0, 1001, MPI_BYTE, window));
        range("an accumulate past the end",
              MPI_Accumulate(source, 1, MPI_INT, ring.next, 998, 1, MPI_INT, MPI_SUM, window));
    }
    const int before = MPI_Get(source, 10, MPI_BYTE, ring.next, -1, 10, MPI_BYTE, window);
    run.expect(error_class(before) == MPI_ERR_DISP, "a get before the begin gives " + error_text(before));
    if (!mirrored) {
        const int truncated = MPI_Put(source, 11, MPI_BYTE, ring.next, 0, 10, MPI_BYTE, window);
        run.expect(error_class(truncated) == MPI_ERR_TRUNCATE, "a put of too much gives " + error_text(truncated));
    }
    run.expect(error_class(MPI_Put(source, -1, MPI_BYTE, ring.next, 0, 1, MPI_BYTE, window)) == MPI_ERR_COUNT,
               "a negative count is not MPI_ERR_COUNT");
    OK(MPI_Win_unlock(ring.next, window));
    const int outside = MPI_Put(source, 10, MPI_BYTE, ring.next, 0, 10, MPI_BYTE, window);
    run.expect(error_class(outside) == MPI_ERR_RMA_SYNC, "a put outside an epoch gives " + error_text(outside));
    OK(MPI_Barrier(run.comm));
}

/// The last rank is refused, and then calls rightly, as the others did all along.
void wrong_measures(Run& run) {
    std::byte* memory = run.input_of(Kind::device, 1000);
    if (run.reference() || !run.gpu().present()) {
        return;
    }
    if (run.rank == run.size - 1) {
        const auto refused = [&](const char* what, int wanted, int code) {
            run.expect(error_class(code) == wanted, std::string(what) + " gives " + error_text(code));
        };
        MPI_Win none = MPI_WIN_NULL;
        void* base = nullptr;
        refused("no unit", MPI_ERR_DISP, MPI_Win_create(memory, 1000, 0, MPI_INFO_NULL, run.comm, &none));
        refused("less than no memory", MPI_ERR_SIZE, MPI_Win_create(memory, -1, 1, MPI_INFO_NULL, run.comm, &none));
        refused("a negative unit", MPI_ERR_DISP, MPI_Win_allocate(1000, -1, MPI_INFO_NULL, run.comm, &base, &none));
    }
    const Win window(run, memory, 1000, 1);
    OK(MPI_Win_fence(0, window));
    OK(MPI_Win_fence(0, window));
}

/// The window's error handler is told, and no other, which would end the program.
void undefined_operations(Run& run) {
    const Ring ring(run);
    std::byte* memory = run.input_of(Kind::device, 1024);
    std::byte* source = run.input(1024);
    std::byte* result = run.input(1024);
    const std::array others{MPI_COMM_WORLD, MPI_COMM_SELF};
    const Win window(run, memory, 1024, 1);
    OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, ring.next, 0, window));
    if (!run.reference() && run.gpu().present() && !mirrored) {
        for (MPI_Comm other : others) {
            OK(MPI_Comm_set_errhandler(other, MPI_ERRORS_ARE_FATAL));
        }
        const auto undefined = [&](const char* what, int code) {
            run.expect(error_class(code) == MPI_ERR_OP, std::string(what) + " gives " + error_text(code));
        };
        for (int twice = 0; twice < 2; ++twice) {
            undefined("MPI_BAND of MPI_DOUBLE",
                      MPI_Accumulate(source, 4, MPI_DOUBLE, ring.next, 0, 4, MPI_DOUBLE, MPI_BAND, window));
            undefined("MPI_MAXLOC of MPI_INT", MPI_Get_accumulate(source, 2, MPI_INT, result, 2, MPI_INT, ring.next, 0,
                                                                  2, MPI_INT, MPI_MAXLOC, window));
            undefined("MPI_MINLOC of MPI_DOUBLE",
                      MPI_Fetch_and_op(source, result, MPI_DOUBLE, ring.next, 0, MPI_MINLOC, window));
        }
        for (MPI_Comm other : others) {
            MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
            OK(MPI_Comm_get_errhandler(other, &handler));
            run.expect(handler == MPI_ERRORS_ARE_FATAL, "a communicator has another error handler");
            OK(MPI_Comm_set_errhandler(other, MPI_ERRORS_RETURN));
        }
    }
    OK(MPI_Accumulate(source, 4, MPI_INT, ring.next, 0, 4, MPI_INT, MPI_BXOR, window));
    OK(MPI_Win_unlock(ring.next, window));
    OK(MPI_Barrier(run.comm));
}

int told_of_windows = 0;
extern "C" void count_window_error(MPI_Win* window, int* code, ...) {
    int size = 0;
    MPI_Group group = MPI_GROUP_NULL;
    const bool is_window = *window != MPI_WIN_NULL && MPI_Win_get_group(*window, &group) == MPI_SUCCESS;
    if (is_window) {
        MPI_Group_size(group, &size);
        MPI_Group_free(&group);
    }
    told_of_windows += size > 0 && *code != MPI_SUCCESS ? 1 : 0;
}

/// What others have put cannot be brought into memory that is gone: the window's error handler is told, as long as the
/// window is known.
void memory_gone_before_the_window(Run& run) {
    std::byte* source = run.input(64);
    if (run.reference() || !run.gpu().present() || !mirrored) {
        return;
    }
    constexpr std::size_t kBytes = 4096;
    const Ring ring(run);
    void* const memory = run.gpu().allocate(Kind::device, kBytes);
    const std::array others{MPI_COMM_WORLD, MPI_COMM_SELF};
    MPI_Win window = MPI_WIN_NULL;
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    OK(MPI_Win_create(memory, kBytes, 1, MPI_INFO_NULL, run.comm, &window));
    OK(MPI_Win_create_errhandler(count_window_error, &handler));
    OK(MPI_Win_set_errhandler(window, handler));
    OK(MPI_Errhandler_free(&handler));
    OK(MPI_Win_fence(0, window));
    OK(MPI_Put(source, 64, MPI_BYTE, ring.next, 0, 64, MPI_BYTE, window));
    OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, window));
    run.gpu().free(Kind::device, memory);
    for (MPI_Comm other : others) {
        OK(MPI_Comm_set_errhandler(other, MPI_ERRORS_ARE_FATAL));
    }
    told_of_windows = 0;
    const int code = MPI_Win_free(&window);
    run.expect(code != MPI_SUCCESS, "a window whose memory is gone is freed without an error");
    run.expect(told_of_windows == 1, format("its error handler was called %d times", told_of_windows));
    run.expect(window == MPI_WIN_NULL, "it was not freed");
    for (MPI_Comm other : others) {
        OK(MPI_Comm_set_errhandler(other, MPI_ERRORS_RETURN));
    }
}

/// Handles of no window, and of one that is gone, are the MPI's to refuse.
void freed_twice(Run& run) {
    std::byte* memory = window_memory(run, 64);
    MPI_Win window = MPI_WIN_NULL;
    run.note("of no window", error_class(MPI_Win_free(&window)));
    OK(MPI_Win_create(memory, 64, 1, MPI_INFO_NULL, run.comm, &window));
    OK(MPI_Win_free(&window));
    run.note("of one that was freed", error_class(MPI_Win_free(&window)));
    run.expect(window == MPI_WIN_NULL, "the handle is not null");
}

/// One rank has no host memory for a shadow: all must hear so.
void no_memory(Run& run) {
    constexpr std::size_t kBytes = std::size_t{64} << 20, kLeft = std::size_t{32} << 20;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return;  // these end a process that gets no memory
#endif
    if (run.reference() || !run.gpu().present() || unknown_peers) {
        return;
    }
    void* memory = run.gpu().allocate(Kind::pool, kBytes);
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    if (run.rank == run.size - 1) {
        std::size_t pages = 0;
        if (std::FILE* file = std::fopen("/proc/self/statm", "r"); file != nullptr) {
            run.expect(std::fscanf(file, "%zu", &pages) == 1, "how much memory there is cannot be read");
            std::fclose(file);
        }
        const rlimit limit{pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + kLeft, before.rlim_max};
        setrlimit(RLIMIT_AS, &limit);
    }
    MPI_Win window = MPI_WIN_NULL;
    const int code = MPI_Win_create(memory, kBytes, 1, MPI_INFO_NULL, run.comm, &window);
    setrlimit(RLIMIT_AS, &before);
    run.expect(error_class(code) == MPI_ERR_NO_MEM, "a window for which there is no memory gives " + error_text(code));
    run.expect(window == MPI_WIN_NULL, "a window was made");
    OK(MPI_Barrier(run.comm));
    run.gpu().free(Kind::pool, memory);
}

// ---- what the program stores itself ---------------------------------------------------------------------------------

/// Each rank stores to every other byte of a part of its window while another one puts the bytes in between.
void neighbouring_bytes(Run& run, Sync sync) {
    const Ring ring(run);
#ifdef OPEN_MPI
    // Open MPI sends each piece by itself, and now and then crashes after very many (with host memory, too).
    constexpr int kBytes = 60;
#else
    constexpr int kBytes = 3000;
#endif
    constexpr int kStored = 40;
    std::byte* memory = window_memory(run, kBytes);
    std::byte* source = run.input(kBytes + 8);
    const Win window(run, memory, kBytes, 1);
    const Type every_other = make([](MPI_Datatype* type) { MPI_Type_vector(kBytes / 2, 1, 2, MPI_BYTE, type); });
    for (int round = 0; round < 3; ++round) {
        {
            const Epoch epoch(run, window, sync, ring.next);
            OK(MPI_Put(source + round, 1, every_other, ring.next, 1, 1, every_other, window));
            for (int at = 0; at < kStored; at += 2) {
                const auto value = static_cast<std::byte>(at + round + run.rank);
                run.store(memory + 100 * round % (kBytes - kStored) + at, &value, 1);
            }
        }
        run.note_bytes("window", memory, kBytes);
        OK(MPI_Barrier(run.comm));  // all have looked
    }
}

/// What a rank has stored is what others get, and what they have put is what it finds, at every synchronisation that
/// says so.
void stores_between_epochs(Run& run, Sync sync) {
    const Ring ring(run);
    constexpr int kBytes = 5001;
    std::byte* memory = window_memory(run, 2 * kBytes);
    std::byte* target = run.output<std::byte>(kBytes);
    std::byte* source = run.input(kBytes);
    const Win window(run, memory, 2 * kBytes, 1);
    const bool passive = sync != Sync::fence && sync != Sync::pscw;
    for (int round = 0; round < 4; ++round) {
        if (passive) {
            OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, run.rank, 0, window));
        }
        run.refill(memory + 7 * round, 100, static_cast<std::uint64_t>(round));
        if (passive) {
            OK(MPI_Win_unlock(run.rank, window));
        }
        if (passive) {
            OK(MPI_Barrier(run.comm));
        }
        {
            const Epoch epoch(run, window, sync, ring.next);
            OK(MPI_Get(target, kBytes, MPI_BYTE, ring.next, 0, kBytes, MPI_BYTE, window));
            OK(MPI_Put(source + round, 100, MPI_BYTE, ring.next, kBytes + 50 * round, 100, MPI_BYTE, window));
        }
        run.note_bytes("got", target, kBytes);
        if (passive) {
            OK(MPI_Win_lock(MPI_LOCK_SHARED, run.rank, 0, window));
        }
        run.note_bytes("put", memory + kBytes, kBytes);
        if (passive) {
            OK(MPI_Win_unlock(run.rank, window));
        }
    }
}

/// Within one passive epoch of all, in which MPI_Win_sync is all that the target calls.
void stores_and_sync(Run& run) {
    const Ring ring(run);
    auto* memory = reinterpret_cast<long long*>(window_memory(run, 4096));
    const Kind kind = run.kind_of(memory);
    const bool is_device = kind == Kind::device || kind == Kind::interior || is_shadowed(kind);
    auto* one = run.values<long long>(1);
    auto* result = reinterpret_cast<long long*>(run.transient(8));
    const std::array<long long, 2> zeros{};
    run.store(memory, zeros.data(), sizeof zeros);
    const Win window(run, memory, 4096, 8);
    const auto value_of = [&](const long long* pointer) {
        long long value = 0;
        std::memcpy(&value, run.load(pointer, 8).data(), 8);
        return value;
    };
    OK(MPI_Win_lock_all(0, window));
    for (long long round = 1; round <= 3; ++round) {
        run.store(one, &round, 8);
        OK(MPI_Accumulate(one, 1, MPI_LONG_LONG, ring.next, 0, 1, MPI_LONG_LONG, MPI_REPLACE, window));
        OK(MPI_Win_flush(ring.next, window));
        while (value_of(memory) < round) {
            int flag = 0;
            if (!is_device) {
                OK(MPI_Iprobe(MPI_ANY_SOURCE, 7, run.comm, &flag, MPI_STATUS_IGNORE));
            }
            OK(MPI_Win_sync(window));
        }
        // The answer is stored, and fetched by whoever has put.
        run.store(memory + 1, &round, 8);
        OK(MPI_Win_sync(window));
        for (long long found = 0; found < round;) {
            OK(MPI_Fetch_and_op(one, result, MPI_LONG_LONG, ring.next, 1, MPI_NO_OP, window));
            OK(MPI_Win_flush(ring.next, window));
            found = value_of(result);
        }
    }
    OK(MPI_Win_unlock_all(window));
    OK(MPI_Barrier(run.comm));
}

/// What has happened before a barrier is found by asking once after it.
void asked_once_after_a_barrier(Run& run) {
    const Win window(run, window_memory(run, 64), 64, 1);
    MPI_Group members = MPI_GROUP_NULL, peers = MPI_GROUP_NULL;
    OK(MPI_Win_get_group(window, &members));
    const int origin = 0;
    int flag = 1;
    if (run.rank == origin) {
        OK(MPI_Group_excl(members, 1, &origin, &peers));
        OK(MPI_Win_start(peers, 0, window));
        OK(MPI_Barrier(run.comm));
        OK(MPI_Win_complete(window));
        for (int peer = 1; peer < run.size; ++peer) {
            OK(MPI_Send(&peer, 1, MPI_INT, peer, 5, run.comm));
        }
        OK(MPI_Barrier(run.comm));
    } else {
        OK(MPI_Group_incl(members, 1, &origin, &peers));
        OK(MPI_Win_post(peers, 0, window));
        OK(MPI_Win_test(window, &flag));
        run.expect(flag == 0, "an exposure epoch was over before its origin had completed");
        OK(MPI_Barrier(run.comm));
        OK(MPI_Barrier(run.comm));
        OK(MPI_Win_test(window, &flag));
        run.expect(flag != 0, "MPI_Win_test did not find out what had happened before a barrier");
        if (flag == 0) {
            OK(MPI_Win_wait(window));
        }
        OK(MPI_Iprobe(origin, 5, run.comm, &flag, MPI_STATUS_IGNORE));
        run.expect(flag != 0, "MPI_Iprobe did not find what was sent before a barrier");
        int received = 0;
        OK(MPI_Recv(&received, 1, MPI_INT, origin, 5, run.comm, MPI_STATUS_IGNORE));
    }
    OK(MPI_Group_free(&peers));
    OK(MPI_Group_free(&members));
}

/// A result that lies in the own window is there after the flush of its target, whatever was synchronised between.
void results_beside_other_flushes(Run& run) {
    const Ring ring(run);
    constexpr int kBytes = 4096, kResult = 2048, kLength = 1000;
    std::byte* memory = window_memory(run, kBytes);
    const Win window(run, memory, kBytes, 1);
    OK(MPI_Win_lock_all(0, window));
    OK(MPI_Barrier(run.comm));
    OK(MPI_Get(memory + kResult, kLength, MPI_BYTE, ring.next, 0, kLength, MPI_BYTE, window));
    for (int other = 0; other < run.size; ++other) {
        if (other != ring.next) {
            OK(MPI_Win_flush(other, window));
        }
    }
    OK(MPI_Win_sync(window));
    OK(MPI_Win_flush(ring.next, window));
    run.note_bytes("the result", memory + kResult, kLength);
    OK(MPI_Barrier(run.comm));
    OK(MPI_Win_unlock_all(window));
}

/// Results that lie in the own window are there for others once the operation is complete, whatever was stored there.
void results_in_the_window(Run& run) {
    const Ring ring(run);
    constexpr int kBytes = 4000;
    // Managed memory is the MPI's to reach, but results come to it by a copy after the fence.
    const Kind kind = run.draw_kind();
    std::byte* memory = run.input_of(kind == Kind::managed ? Kind::device : kind, 3 * kBytes);
    std::byte* target = run.output<std::byte>(kBytes);
    const Win window(run, memory, 3 * kBytes, 1);
    OK(MPI_Win_fence(0, window));
    for (int round = 0; round < 2; ++round) {
        run.refill(memory + kBytes, 1000, static_cast<std::uint64_t>(round));
        OK(MPI_Get(memory + kBytes, kBytes - 8, MPI_BYTE, ring.next, round, kBytes - 8, MPI_BYTE, window));
        OK(MPI_Get_accumulate(nullptr, 0, MPI_INT, memory + 2 * kBytes, kBytes / 4, MPI_INT, ring.next, 0, kBytes / 4,
                              MPI_INT, MPI_NO_OP, window));
        OK(MPI_Win_fence(0, window));
        run.note_bytes("got into the window", memory + kBytes, 2 * kBytes);
        OK(MPI_Get(target, kBytes, MPI_BYTE, ring.previous, kBytes, kBytes, MPI_BYTE, window));
        OK(MPI_Win_fence(0, window));
        run.note_bytes("got out of the window", target, kBytes);
        OK(MPI_Barrier(run.comm));
    }
    OK(MPI_Win_lock(MPI_LOCK_SHARED, ring.next, 0, window));
    OK(MPI_Get(memory + kBytes, 100, MPI_BYTE, ring.next, 17, 100, MPI_BYTE, window));
    OK(MPI_Win_flush_local(ring.next, window));
    run.note_bytes("got by a flush", memory + kBytes, 100);
    OK(MPI_Win_unlock(ring.next, window));
    OK(MPI_Barrier(run.comm));
}

/// More than is reconciled at a time, at an odd address.
void large_window(Run& run) {
    const Ring ring(run);
    constexpr int kMiB = 1 << 20, kBytes = 2 * kMiB + 4100;
    std::byte* memory = window_memory(run, kBytes + 3) + 3;
    std::byte* source = run.input(kMiB);
    const Win window(run, memory, kBytes, 1);
    {
        const Epoch epoch(run, window, Sync::fence, ring.next);
        OK(MPI_Put(source, kMiB, MPI_BYTE, ring.next, kMiB / 2 + 1, kMiB, MPI_BYTE, window));
        OK(MPI_Put(source + 5, 1, MPI_BYTE, ring.next, kBytes - 1, 1, MPI_BYTE, window));
        run.refill(memory + 2 * kMiB - 50, 100, 1);
    }
    run.note_bytes("window", memory, kBytes);
}

// ---- at random ------------------------------------------------------------------------------------------------------

/// Epochs of all kinds with operations of all kinds. Each rank has a part of every window for itself, and one is added
/// to by all.
void random_epochs(Run& run, std::uint64_t seed) {
    constexpr int kPart = 4096, kNumbers = 64;
    const Ring ring(run);
    const std::size_t bytes = static_cast<std::size_t>(run.size) * kPart + kNumbers * sizeof(int);
    std::byte* memory = window_memory(run, bytes);
    const Win window(run, memory, static_cast<MPI_Aint>(bytes), 1);
    const Type vector = make([](MPI_Datatype* type) { MPI_Type_vector(5, 2, 3, MPI_INT, type); });
    std::uint64_t state = combine(seed, static_cast<std::uint64_t>(run.rank));
    const auto draw = [&](std::uint64_t& from, int below) {
        from = mix_bits(from);
        return static_cast<int>(from % static_cast<std::uint64_t>(below));
    };
    std::uint64_t common = seed;
    for (int number = 0; number < epochs_at_random; ++number) {
        // The part of its own window that nobody else writes to.
        if (run.size > 1) {
            OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, run.rank, 0, window));
            run.refill(memory + static_cast<std::ptrdiff_t>(run.rank) * kPart + draw(state, kPart - 512),
                       1 + static_cast<std::size_t>(draw(state, 511)), state);
            OK(MPI_Win_unlock(run.rank, window));
            OK(MPI_Barrier(run.comm));
        }
        const Sync sync = kSyncs[static_cast<std::size_t>(draw(common, kSyncs.size()))];
        const int target = draw(common, 2) == 0 ? ring.next : ring.previous;
        const Epoch epoch(run, window, sync, target);
        int used = 0;
        const int operations = draw(state, 5);
        for (int i = 0; i < operations; ++i) {
            const MPI_Aint at = static_cast<MPI_Aint>(run.rank) * kPart + used;
            const int kind = draw(state, 7);
            const int length = (1 + draw(state, 100)) * 4;
            used += std::max(length, 64);
            std::byte* local = run.input(512);
            std::byte* result = run.input(512);
            switch (kind) {
                case 0:
                    OK(MPI_Put(local, length, MPI_BYTE, target, at, length, MPI_BYTE, window));
                    break;
                case 1:
                    OK(MPI_Get(result, length, MPI_BYTE, target, at, length, MPI_BYTE, window));
                    break;
                case 2:
                    OK(MPI_Put(local, 10, MPI_INT, target, at, 1, vector, window));
                    break;
                case 3:
                    OK(MPI_Get(result, 1, vector, target, at, 10, MPI_INT, window));
                    break;
                case 4:
                    OK(MPI_Get_accumulate(local, length / 4, MPI_INT, result, length / 4, MPI_INT, target, at,
                                          length / 4, MPI_INT, MPI_SUM, window));
                    break;
                case 5:
                    OK(MPI_Get(result, length, MPI_BYTE, target, static_cast<MPI_Aint>(target) * kPart + used % 2000,
                               length, MPI_BYTE, window));
                    break;
                default:
                    OK(MPI_Accumulate(local, kNumbers, MPI_INT, target, static_cast<MPI_Aint>(run.size) * kPart,
                                      kNumbers, MPI_INT, MPI_SUM, window));
                    break;
            }
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (const auto epochs = take_option(argc, argv, "--epochs")) {
        epochs_at_random = std::stoi(*epochs);
    }
    const auto only_seed = take_option(argc, argv, "--draw");
    unknown_peers = take_option(argc, argv, "--unknown").has_value();
    mirrored = take_option(argc, argv, "--mirrored").has_value() || unknown_peers;
    Suite suite(argc, argv);
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    threads_allowed = provided == MPI_THREAD_MULTIPLE;
    for (const Sync sync : kSyncs) {
        suite.add(std::string("put_and_get_") + to_string(sync), [sync](Run& run) { put_and_get(run, sync); }, 1);
    }
    suite.add("put_and_get_self", put_and_get_self, 1);
    suite.add("derived_types", derived_types, 1);
    suite.add("more_room_than_data", more_room_than_data, 1);
    suite.add("requests", requests, 1);
    suite.add("accumulate_integers", accumulate_integers, 1, Weight::heavy);
    suite.add("accumulate_floating", accumulate_floating, 1, Weight::heavy);
    suite.add("accumulate_complex", accumulate_complex, 1, Weight::heavy);
    suite.add("accumulate_bytes", accumulate_bytes, 1, Weight::heavy);
    suite.add("accumulate_pairs", accumulate_pairs, 1, Weight::heavy);
    suite.add("accumulate_derived", accumulate_derived, 1);
    suite.add("accumulate_after_an_empty_block", accumulate_after_an_empty_block, 1);
    suite.add("accumulate_from_another_gpu", accumulate_from_another_gpu, 1);
    suite.add("single_elements", single_elements, 1);
    suite.add("atomicity", atomicity, 1, Weight::heavy);
    suite.add("passive_target", passive_target, 2);
    suite.add("several_threads", several_threads, 1);
    suite.add("dynamic", dynamic, 1);
    suite.add("allocated", allocated, 1);
    suite.add("shared", [](Run& run) { shared(run, false); }, 1);
    suite.add("shared_apart", [](Run& run) { shared(run, true); }, 1);
    suite.add("attributes", attributes, 1);
    suite.add("wrong_ranges", wrong_ranges, 1);
    suite.add("wrong_measures", wrong_measures, 1);
    suite.add("undefined_operations", undefined_operations, 1);
    suite.add("memory_gone_before_the_window", memory_gone_before_the_window, 1);
    suite.add("freed_twice", freed_twice, 1);
    suite.add("no_memory", no_memory, 1);
    for (const Sync sync : {Sync::fence, Sync::pscw, Sync::lock_exclusive, Sync::flush_all}) {
        suite.add(
            std::string("neighbouring_bytes_") + to_string(sync), [sync](Run& run) { neighbouring_bytes(run, sync); },
            2);
        suite.add(
            std::string("stores_between_epochs_") + to_string(sync),
            [sync](Run& run) { stores_between_epochs(run, sync); }, 2);
    }
    suite.add("stores_and_sync", stores_and_sync, 1);
    suite.add("asked_once_after_a_barrier", asked_once_after_a_barrier, 2);
    suite.add("results_beside_other_flushes", results_beside_other_flushes, 1);
    suite.add("results_in_the_window", results_in_the_window, 2);
    suite.add("large_window", large_window, 1, Weight::heavy);
    const std::uint64_t first = only_seed ? std::stoull(*only_seed) : 1;
    const std::uint64_t last = only_seed ? first : suite.long_run() ? 60 : 4;
    for (std::uint64_t seed = first; seed <= last; ++seed) {
        suite.add(
            format("random_epochs_%llu", static_cast<unsigned long long>(seed)),
            [seed](Run& run) { random_epochs(run, seed); }, 1);
    }
    const int failed = suite.run();
    MPI_Finalize();
    return failed;
}
