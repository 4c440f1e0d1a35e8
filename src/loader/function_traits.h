// SPDX-License-Identifier: Apache-2.0
// What the layer knows of each MPI function. generate_functions.py makes the table from functions.txt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "loader/loader.h"

namespace awaken::loader {

enum class Waits : std::uint8_t {
    nowhere,  ///< the function begins an operation, and programs begin many in a row
    polls,    ///< the function is local, but programs call it until something has happened
    perhaps   ///< for other processes, as far as the layer knows
};

/// What a function does to the requests among its arguments.
enum class RequestRole : std::uint8_t {
    none,
    starts,  ///< its last argument becomes an active request
    makes,   ///< its last argument becomes a persistent request
    takes    ///< its arguments are requests
};

struct FunctionTraits {
    Waits waits = Waits::perhaps;
    RequestRole requests = RequestRole::none;
    bool is_inquiry = false;       ///< it only looks something up
    bool handles_objects = false;  ///< it makes, asks, changes or frees objects or memory, and carries no data
    /// MPI_Isend for MPI_Send and MPI_Send_init, MPI_Isend_c for MPI_Send_c. The function itself if there is no such
    /// form.
    Function nonblocking{};
};

namespace detail {

inline constexpr std::array<FunctionTraits, kFunctions> kFunctionTraits{{
#define AWAKEN_TRAITS(waits, requests, is_inquiry, handles_objects, nonblocking) \
    {Waits::waits, RequestRole::requests, is_inquiry, handles_objects, Function::nonblocking},
#include "function_traits.inc"
#undef AWAKEN_TRAITS
}};

}  // namespace detail

/// Extensions of the MPI get the most careful values.
[[nodiscard]] constexpr FunctionTraits traits_of(const Function function) noexcept {
    const auto index = static_cast<std::size_t>(function);
    return index < detail::kFunctionTraits.size() ? detail::kFunctionTraits[index]
                                                  : FunctionTraits{.nonblocking = function};
}

}  // namespace awaken::loader
