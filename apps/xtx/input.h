// SPDX-License-Identifier: Apache-2.0
// What X holds: the same numbers whatever the ranks, so that S is the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan.h"

namespace xtx {

enum class Input : int { constant, random };

/// Number `index` of a sequence of pseudo-random numbers in [-1, 1): the bits of SplitMix64 (Steele, Lea and Flood,
/// 2014), of which 53 are kept, so that the double is exact. xtx.hip has the same function for the GPU.
[[nodiscard]] inline double random_number(std::uint64_t index) {
    std::uint64_t bits = (index + 1) * 0x9E3779B97F4A7C15U;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
    bits = bits ^ (bits >> 31);
    return static_cast<double>(bits >> 11) * 0x1p-52 - 1.0;
}

/// X of one rank as a row of numbers. Its elements lie with the vector's index fastest, as in finite-element codes:
/// element (row, vector) is number (row * N + vector) * parts, its imaginary part the next.
struct Filling {
    Input input = Input::constant;
    std::uint64_t first = 0;  ///< number of the rank's first number among all ranks'
    double even = 0;          ///< of the constant: the real part
    double odd = 0;           ///< the imaginary part; for a real X, what `even` is

    Filling(const Problem& problem, Input input_, const Rows& rows) : input(input_) {
        const auto N = static_cast<std::uint64_t>(problem.vectors);
        first = static_cast<std::uint64_t>(rows.first) * N * static_cast<std::uint64_t>(problem.parts());
        // Of absolute value 1/N, so that each element of S is M/N^2.
        const double constant = 1.0 / static_cast<double>(problem.vectors);
        even = problem.is_complex ? 0.6 * constant : constant;
        odd = problem.is_complex ? 0.8 * constant : constant;
    }

    [[nodiscard]] double operator()(std::uint64_t i) const {
        if (input == Input::random) {
            return random_number(first + i);
        }
        return i % 2 == 0 ? even : odd;
    }
};

}  // namespace xtx
