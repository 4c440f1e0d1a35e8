// SPDX-License-Identifier: Apache-2.0
// The functions that need no service of the layer, while calls are traced. They go to the MPI, and the trace records
// them. It does not record functions that only look something up.
//
// Without a trace their slots lead to the MPI itself (loader::pass_everything_through).

#include "call/call.h"
#include "call/services.h"

namespace awaken::AWAKEN_ABI {

namespace {

struct PassOn {
    template <Function function, class... Arguments>
    static int run(Call& call, Arguments... arguments) {
        if constexpr (function == Function::Abort) {
            // MPI_Abort does not return.
            call.end_in_trace();
            static_cast<void>(trace::Session::current()->write(false));
        }
        return below<function>()(arguments...);
    }
};

/// Functions that return no error code tell the time; one of them takes any argument.
template <Function function, class Type = typename NativeMember<function>::Type>
struct Observed {
    static constexpr void* address() { return nullptr; }
};
template <Function function, class... Arguments>
struct Observed<function, int (*)(Arguments...)> {
    static void* address() { return Entry<function, PassOn>::address(); }
};

}  // namespace

Services observed_services() {
    return {
#define AWAKEN_NATIVE(name)         \
    loader::Service{Function::name, \
                    loader::traits_of(Function::name).is_inquiry ? nullptr : Observed<Function::name>::address()},
#define AWAKEN_ABSENT(name)
#include AWAKEN_NATIVE_TABLE
#undef AWAKEN_NATIVE
#undef AWAKEN_ABSENT
    };
}

}  // namespace awaken::AWAKEN_ABI
