// The functions that need no service of the layer's, while calls are traced: they go to the MPI, and the trace is told.
// Those that only look something up are left alone.
//
// Without a trace nothing of this is in the way: their slots lead to the MPI itself (loader::pass_everything_through).

#include <algorithm>
#include <iterator>
#include <string_view>

#include "call/call.h"
#include "call/services.h"

namespace awaken::AWAKEN_ABI {

namespace {

struct PassOn {
    template <Function function, class... Arguments>
    static int run(Call& call, Arguments... arguments) {
        if constexpr (function == Function::Abort) {
            // Does not return.
            call.end_in_trace();
            static_cast<void>(trace::Session::current()->write(false));
        }
        return below<function>()(arguments...);
    }
};

/// Functions that only look something up: programs call them by the thousand, and there is nothing to see in them.
constexpr bool is_inquiry(const std::string_view name) noexcept {
    constexpr std::string_view kInquiries[] = {
        "Comm_rank",         "Comm_size",         "Comm_remote_size",    "Comm_test_inter", "Comm_get_parent",
        "Comm_get_attr",     "Comm_compare",      "Group_rank",          "Group_size",      "Group_compare",
        "Get_count",         "Get_count_c",       "Get_elements",        "Get_elements_c",  "Get_elements_x",
        "Type_size",         "Type_size_c",       "Type_size_x",         "Type_get_extent", "Type_get_extent_c",
        "Type_get_extent_x", "Type_get_envelope", "Type_get_contents",   "Type_get_attr",   "Win_get_attr",
        "Get_address",       "Error_class",       "Error_string",        "Get_version",     "Get_library_version",
        "Initialized",       "Finalized",         "Query_thread",        "Is_thread_main",  "Get_processor_name",
        "Cart_rank",         "Cart_coords",       "Cart_shift",          "Cartdim_get",     "Cart_get",
        "Topo_test",         "Test_cancelled",    "Status_set_elements", "Comm_group",      "Group_translate_ranks",
    };
    return std::find(std::begin(kInquiries), std::end(kInquiries), name) != std::end(kInquiries);
}

/// Functions that return something else than an error code tell the time, and one takes whatever it is given.
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
#define AWAKEN_NATIVE(name) \
    loader::Service{Function::name, is_inquiry(#name) ? nullptr : Observed<Function::name>::address()},
#define AWAKEN_ABSENT(name)
#include AWAKEN_NATIVE_TABLE
#undef AWAKEN_NATIVE
#undef AWAKEN_ABSENT
    };
}

}  // namespace awaken::AWAKEN_ABI
