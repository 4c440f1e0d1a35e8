// What the layer knows of MPI functions: the table that generate_functions.py makes of functions.txt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "loader/loader.h"

namespace awaken::loader {

enum class Waits : std::uint8_t {
    nowhere,       ///< the function is local
    polls,         ///< so it is, but programs call it until something has happened
    in_the_layer,  ///< as long as the layer has pending fragments, for which the function has to ask; else in the MPI
    in_the_mpi
};

/// What a function does to the requests among its arguments.
enum class RequestRole : std::uint8_t {
    none,
    starts,  ///< its last argument becomes an active request
    makes,   ///< its last argument becomes a persistent request
    takes    ///< it is given requests
};

struct FunctionTraits {
    Waits waits = Waits::in_the_mpi;
    RequestRole requests = RequestRole::none;
    bool is_inquiry = false;  ///< it only looks something up
    /// MPI_Isend of MPI_Send and MPI_Send_init, MPI_Isend_c of MPI_Send_c; the function itself where there is none.
    Function nonblocking{};
};

namespace detail {

inline constexpr std::array<FunctionTraits, kFunctions> kFunctionTraits{{
#define AWAKEN_TRAITS(waits, requests, is_inquiry, nonblocking) \
    {Waits::waits, RequestRole::requests, is_inquiry, Function::nonblocking},
#include "function_traits.inc"
#undef AWAKEN_TRAITS
}};

}  // namespace detail

/// Extensions of the MPI have the most careful answers.
[[nodiscard]] constexpr FunctionTraits traits_of(const Function function) noexcept {
    const auto index = static_cast<std::size_t>(function);
    return index < detail::kFunctionTraits.size() ? detail::kFunctionTraits[index]
                                                  : FunctionTraits{.nonblocking = function};
}

}  // namespace awaken::loader
