// One-sided communication on device memory is not offered yet: it is refused with an MPI error instead of crashing in
// the MPI's own CPU accesses to the window.

#include "call/call.h"
#include "entry/services.h"

namespace awaken::AWAKEN_ABI {

namespace {

bool on_device(const void* const pointer) {
    if (pointer == nullptr || pointer == MPI_IN_PLACE) {
        return false;
    }
    gpu::PointerInfo info;
    layer().gpu().classify({&pointer, 1}, &info);
    return info.kind == gpu::MemoryKind::device;
}

[[noreturn]] void refuse(const Call& call, const char* const what) {
    throw ClassedError(
        MPI_ERR_UNSUPPORTED_OPERATION, std::string(call.name()) + ": " + what + " is device memory",
        "one-sided communication needs host memory; use point-to-point or collectives for device memory");
}

/// MPI_Win_create(base, size, disp_unit, info, comm, win) is collective: the other ranks must not wait for us, so this
/// rank takes part with an empty window before it reports its error.
struct CreateWindow {
    template <Function function, class Unit>
    static int run(Call& call, void* base, MPI_Aint size, Unit unit, MPI_Info info, MPI_Comm comm, MPI_Win* window) {
        call.on(comm);
        if (size > 0 && on_device(base)) {
            MPI_Win empty = MPI_WIN_NULL;
            const int error = below<function>()(nullptr, 0, unit, info, comm, &empty);
            *window = MPI_WIN_NULL;
            if (error != MPI_SUCCESS) {
                return error;
            }
            refuse(call, "the window");
        }
        return below<function>()(base, size, unit, info, comm, window);
    }
};

struct Attach {
    template <Function function>
    static int run(Call& call, MPI_Win window, void* base, MPI_Aint size) {
        call.on_window(window);
        if (size > 0 && on_device(base)) {
            refuse(call, "the attached memory");
        }
        return below<function>()(window, base, size);
    }
};

/// The window is found by its place in the argument list: the last argument, or the one before the request.
template <class First, class... Rest>
MPI_Win window_of(First first, Rest... rest) {
    if constexpr (sizeof...(Rest) == 0) {
        return first;
    } else if constexpr (sizeof...(Rest) == 1 && (std::is_same_v<Rest, MPI_Request*> && ...)) {
        return first;
    } else {
        return window_of(rest...);
    }
}

/// Functions whose first argument is the only local buffer: MPI_Put, MPI_Get, MPI_Accumulate and their request forms.
struct OneBuffer {
    template <Function function, class Buffer, class... Arguments>
    static int run(Call& call, Buffer origin, Arguments... arguments) {
        call.on_window(window_of(arguments...));
        if (on_device(origin)) {
            refuse(call, "the origin buffer");
        }
        return below<function>()(origin, arguments...);
    }
};

/// MPI_Get_accumulate(origin, count, type, result, ...).
struct GetAccumulate {
    template <Function function, class Count, class... Arguments>
    static int run(Call& call, const void* origin, Count count, MPI_Datatype type, void* result,
                   Arguments... arguments) {
        call.on_window(window_of(arguments...));
        if (on_device(origin) || on_device(result)) {
            refuse(call, on_device(origin) ? "the origin buffer" : "the result buffer");
        }
        return below<function>()(origin, count, type, result, arguments...);
    }
};

/// MPI_Fetch_and_op(origin, result, ...) and MPI_Compare_and_swap(origin, compare, result, ...).
struct FetchAndOp {
    template <Function function, class... Arguments>
    static int run(Call& call, const void* origin, void* result, Arguments... arguments) {
        call.on_window(window_of(arguments...));
        if (on_device(origin) || on_device(result)) {
            refuse(call, on_device(origin) ? "the origin buffer" : "the result buffer");
        }
        return below<function>()(origin, result, arguments...);
    }
};

struct CompareAndSwap {
    template <Function function, class... Arguments>
    static int run(Call& call, const void* origin, const void* compare, void* result, Arguments... arguments) {
        call.on_window(window_of(arguments...));
        if (on_device(origin) || on_device(compare) || on_device(result)) {
            refuse(call, "a local buffer");
        }
        return below<function>()(origin, compare, result, arguments...);
    }
};

}  // namespace

Services one_sided_services() {
    return {
        AWAKEN_SERVE(Win_create, CreateWindow),
        AWAKEN_SERVE(Win_create_c, CreateWindow),
        AWAKEN_SERVE(Win_attach, Attach),
        AWAKEN_SERVE(Put, OneBuffer),
        AWAKEN_SERVE(Put_c, OneBuffer),
        AWAKEN_SERVE(Rput, OneBuffer),
        AWAKEN_SERVE(Rput_c, OneBuffer),
        AWAKEN_SERVE(Get, OneBuffer),
        AWAKEN_SERVE(Get_c, OneBuffer),
        AWAKEN_SERVE(Rget, OneBuffer),
        AWAKEN_SERVE(Rget_c, OneBuffer),
        AWAKEN_SERVE(Accumulate, OneBuffer),
        AWAKEN_SERVE(Accumulate_c, OneBuffer),
        AWAKEN_SERVE(Raccumulate, OneBuffer),
        AWAKEN_SERVE(Raccumulate_c, OneBuffer),
        AWAKEN_SERVE(Get_accumulate, GetAccumulate),
        AWAKEN_SERVE(Get_accumulate_c, GetAccumulate),
        AWAKEN_SERVE(Rget_accumulate, GetAccumulate),
        AWAKEN_SERVE(Rget_accumulate_c, GetAccumulate),
        AWAKEN_SERVE(Fetch_and_op, FetchAndOp),
        AWAKEN_SERVE(Compare_and_swap, CompareAndSwap),
    };
}

}  // namespace awaken::AWAKEN_ABI
