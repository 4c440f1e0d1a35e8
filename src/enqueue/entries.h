// The layer's own functions, as the program would call them.
#pragma once

#include <limits>
#include <string>
#include <type_traits>

#include "call/call.h"

namespace awaken::AWAKEN_ABI {

template <Function function>
[[nodiscard]] auto entry() noexcept {
    return reinterpret_cast<typename NativeMember<function>::Type>(loader::slot_of(function));
}

namespace detail {

template <class Argument>
auto narrow(const Argument argument) {
    if constexpr (std::is_same_v<Argument, MPI_Count>) {
        if (argument > std::numeric_limits<int>::max()) {
            throw ClassedError(MPI_ERR_COUNT, "this MPI has no functions for counts above 2^31 - 1",
                               "use an MPI of MPI-4.0 or later, or a larger datatype");
        }
        return static_cast<int>(argument);
    } else {
        return argument;
    }
}

}  // namespace detail

/// Calls `plain`, or `large` where counts are MPI_Count and the MPI has it.
template <class Count, Function plain, Function large, class... Arguments>
int call_entry(const Arguments... arguments) {
    if constexpr (std::is_same_v<Count, int>) {
        return entry<plain>()(arguments...);
    } else {
        if constexpr (!std::is_same_v<typename NativeMember<large>::Type, Absent>) {
            if (NativeMember<large>::of(layer().real) != nullptr) {
                return entry<large>()(arguments...);
            }
        }
        return entry<plain>()(detail::narrow(arguments)...);
    }
}

}  // namespace awaken::AWAKEN_ABI
