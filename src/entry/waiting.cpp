// Functions that need no service of the layer's, but may wait in the MPI for other processes: what those may be waiting
// for in turn is handed over first (call/waiting.h). All that is collective, connects processes, or waits until
// messages are delivered. What else waits is an extension of the MPI's own (MPIX_), which does not pass through here.
//
// While calls are traced, observed.cpp has these functions with all others.

#include "call/call.h"
#include "call/services.h"

namespace awaken::AWAKEN_ABI {

namespace {

template <Function function, class Type = typename NativeMember<function>::Type>
struct WaitingEntry {
    static constexpr void* address() { return nullptr; }  // this ABI has no such function
};
template <Function function, class... Arguments>
struct WaitingEntry<function, int (*)(Arguments...)> {
    static int enter(Arguments... arguments) {
        if (passes_through(__builtin_return_address(0))) {
            return NativeMember<function>::of(layer().real)(arguments...);
        }
        const auto body = [&] { return below<function>()(arguments...); };
        return wait_in_the_mpi([](const void* const erased) { return (*static_cast<const decltype(body)*>(erased))(); },
                               &body);
    }
    static void* address() { return reinterpret_cast<void*>(&enter); }
};

}  // namespace

// generate_functions.py reads the names below.
#define AWAKEN_WAITS(function)                                          \
    loader::Service {                                                   \
        Function::function, WaitingEntry<Function::function>::address() \
    }

Services waiting_services() {
    return {
        AWAKEN_WAITS(Barrier_init),
        AWAKEN_WAITS(Buffer_flush),
        AWAKEN_WAITS(Comm_flush_buffer),
        AWAKEN_WAITS(Session_flush_buffer),
        AWAKEN_WAITS(Cart_create),
        AWAKEN_WAITS(Cart_map),
        AWAKEN_WAITS(Cart_sub),
        AWAKEN_WAITS(Comm_accept),
        AWAKEN_WAITS(Comm_connect),
        AWAKEN_WAITS(Comm_create),
        AWAKEN_WAITS(Comm_create_from_group),
        AWAKEN_WAITS(Comm_create_group),
        AWAKEN_WAITS(Comm_disconnect),
        AWAKEN_WAITS(Comm_dup),
        AWAKEN_WAITS(Comm_dup_with_info),
        AWAKEN_WAITS(Comm_free),
        AWAKEN_WAITS(Comm_join),
        AWAKEN_WAITS(Comm_set_info),
        AWAKEN_WAITS(Comm_spawn),
        AWAKEN_WAITS(Comm_spawn_multiple),
        AWAKEN_WAITS(Comm_split),
        AWAKEN_WAITS(Comm_split_type),
        AWAKEN_WAITS(Dist_graph_create),
        AWAKEN_WAITS(Dist_graph_create_adjacent),
        AWAKEN_WAITS(Graph_create),
        AWAKEN_WAITS(Graph_map),
        AWAKEN_WAITS(Intercomm_create),
        AWAKEN_WAITS(Intercomm_create_from_groups),
        AWAKEN_WAITS(Intercomm_merge),
        AWAKEN_WAITS(Lookup_name),
        AWAKEN_WAITS(Publish_name),
        AWAKEN_WAITS(Unpublish_name),
        AWAKEN_WAITS(Win_set_info),
        AWAKEN_WAITS(File_open),
        AWAKEN_WAITS(File_preallocate),
        AWAKEN_WAITS(File_seek_shared),
        AWAKEN_WAITS(File_set_atomicity),
        AWAKEN_WAITS(File_set_info),
        AWAKEN_WAITS(File_set_size),
        AWAKEN_WAITS(File_set_view),
        AWAKEN_WAITS(File_sync),
    };
}

#undef AWAKEN_WAITS

}  // namespace awaken::AWAKEN_ABI
