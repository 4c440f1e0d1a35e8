// SPDX-License-Identifier: Apache-2.0
// The MPI's own functions, for operations that a stream orders.
#pragma once

#include <limits>
#include <type_traits>

#include "call/layer.h"

namespace awaken::AWAKEN_ABI {

/// Whether the MPI has the form of a function with large counts.
template <Function large>
[[nodiscard]] bool has_large() noexcept {
    if constexpr (std::is_same_v<typename NativeMember<large>::Type, Absent>) {
        return false;
    } else {
        return NativeMember<large>::of(layer().real) != nullptr;
    }
}

namespace detail {

template <class Argument>
auto narrow(const Argument argument) noexcept {
    if constexpr (std::is_same_v<Argument, MPI_Count>) {
        return static_cast<int>(argument);
    } else {
        return argument;
    }
}

}  // namespace detail

/// Calls `plain`, or `large` where counts are MPI_Count and the MPI has it. Counts that `plain` does not hold were
/// refused before.
template <class Count, Function plain, Function large, class... Arguments>
int call_native(const Arguments... arguments) {
    if constexpr (std::is_same_v<Count, int>) {
        return NativeMember<plain>::of(layer().real)(arguments...);
    } else {
        if constexpr (!std::is_same_v<typename NativeMember<large>::Type, Absent>) {
            if (has_large<large>()) {
                return NativeMember<large>::of(layer().real)(arguments...);
            }
        }
        return NativeMember<plain>::of(layer().real)(detail::narrow(arguments)...);
    }
}

}  // namespace awaken::AWAKEN_ABI
