// Functions that need no service of the layer, but may wait in the MPI for other processes. Those processes may in turn
// wait for messages of this one, so the layer first gives these messages to the MPI (call/waiting.h). The functions are
// those that are collective, connect processes, or wait until messages are delivered. Other functions that wait are
// extensions of the MPI (MPIX_), which do not pass through here.
//
// While calls are traced, observed.cpp serves these functions with all others.

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

Services waiting_services() {
    return {
#define AWAKEN_WAITS(name) loader::Service{Function::name, WaitingEntry<Function::name>::address()},
#include "waiting.inc"
#undef AWAKEN_WAITS
    };
}

}  // namespace awaken::AWAKEN_ABI
