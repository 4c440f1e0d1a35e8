// SPDX-License-Identifier: Apache-2.0
// The sizes of the problem: who owns which rows, how the columns are cut into blocks, what each block holds.
//
// S = X^T X, where X has M rows and N columns. Of the symmetric S only the block lower trapezoid is made: block k takes
// the columns first .. first + width - 1, and of those the rows first .. N - 1. With blocks of B columns that are
// N (N + B) / 2 elements where B divides N. A complex S is X^T conj(X): the conjugate of X^H X, which is its transpose.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace xtx {

/// FP64 everywhere; or the diagonal blocks in FP64 and the rest of each block in FP32, which is what electronic
/// structure codes do once their vectors are nearly orthogonal: only what travels, or the products too.
enum class Precision : int { double_precision, mixed_communication, mixed };

struct Problem {
    long long dofs = 70000;     ///< M, over all ranks
    long long vectors = 36600;  ///< N
    long long block = 732;      ///< B
    bool is_complex = false;
    Precision precision = Precision::double_precision;

    /// Floating-point numbers in one element.
    [[nodiscard]] int parts() const { return is_complex ? 2 : 1; }
    [[nodiscard]] bool is_mixed() const { return precision != Precision::double_precision; }
};

/// The smallest multiple of `unit` that is not below `count`.
[[nodiscard]] inline long long rounded_up(long long count, long long unit) {
    return (count + unit - 1) / unit * unit;
}

/// The block that DFT-FE chooses for N vectors on GPUs (initialisation in its src/dft/dft.cc): up to 100 vectors are
/// one block; for more there are four sizes to try, and the first that needs the fewest vectors to fill up its last
/// block is taken.
[[nodiscard]] inline long long chosen_block(long long vectors) {
    struct Choice {
        long long most_vectors;
        std::array<long long, 4> blocks;
    };
    constexpr std::array<Choice, 3> choices = {{
        {600, {90, 100, 110, 120}},
        {1000, {150, 160, 170, 180}},
        {2000, {200, 220, 240, 260}},
    }};
    if (vectors <= 100) {
        return vectors;
    }
    std::array<long long, 4> blocks = {360, 380, 400, 440};
    const auto choice =
        std::find_if(choices.begin(), choices.end(), [&](const Choice& c) { return vectors <= c.most_vectors; });
    if (choice != choices.end()) {
        blocks = choice->blocks;
    }
    return *std::min_element(blocks.begin(), blocks.end(),
                             [&](long long a, long long b) { return rounded_up(vectors, a) < rounded_up(vectors, b); });
}

/// Columns [first, first + width) of S and, of those, the `height` = N - first rows from `first` on.
struct Block {
    long long first = 0;
    long long width = 0;
    long long height = 0;

    /// Rows below the diagonal block.
    [[nodiscard]] long long rest() const { return height - width; }
};

/// Where the numbers of a block lie in its buffer: first doubles, column by column, then floats from `floats_offset`
/// bytes on. Without mixed precision, all are doubles; with it, the diagonal block's are, and the rest are floats.
struct Layout {
    std::size_t doubles = 0;
    std::size_t floats = 0;
    std::size_t floats_offset = 0;

    /// What a reduction of the block sums up.
    [[nodiscard]] std::size_t payload_bytes() const { return doubles * sizeof(double) + floats * sizeof(float); }
    [[nodiscard]] std::size_t buffer_bytes() const {
        return floats == 0 ? doubles * sizeof(double) : floats_offset + floats * sizeof(float);
    }
};

/// The last block is narrower where B does not divide N.
[[nodiscard]] inline std::vector<Block> blocks_of(const Problem& problem) {
    std::vector<Block> blocks;
    for (long long first = 0; first < problem.vectors; first += problem.block) {
        blocks.push_back({first, std::min(problem.block, problem.vectors - first), problem.vectors - first});
    }
    return blocks;
}

[[nodiscard]] inline Layout layout_of(const Problem& problem, const Block& block) {
    const auto parts = static_cast<std::size_t>(problem.parts());
    const auto width = static_cast<std::size_t>(block.width);
    if (!problem.is_mixed()) {
        return {parts * width * static_cast<std::size_t>(block.height), 0, 0};
    }
    Layout layout;
    layout.doubles = parts * width * width;
    layout.floats = parts * width * static_cast<std::size_t>(block.rest());
    constexpr std::size_t alignment = 256;  // as of an allocation: BLAS has faster kernels for aligned matrices
    layout.floats_offset = (layout.doubles * sizeof(double) + alignment - 1) / alignment * alignment;
    return layout;
}

/// The rows of one rank: M / P each, and one more for each of the first M mod P ranks. May be none.
struct Rows {
    long long first = 0;
    long long count = 0;
};
[[nodiscard]] inline Rows rows_of(const Problem& problem, int rank, int ranks) {
    const long long each = problem.dofs / ranks;
    const long long extra = problem.dofs % ranks;
    return {each * rank + std::min<long long>(rank, extra), each + (rank < extra ? 1 : 0)};
}

/// A rank's rows of the FP32 copy of X: rows of zeros fill it up to a multiple of 8, as in DFT-FE, because BLAS has its
/// fastest kernels for such sizes.
[[nodiscard]] inline long long rows_in_single(const Rows& rows) {
    return rounded_up(rows.count, 8);
}

/// Floating-point operations of one block's products over `rows` rows: a multiplication and an addition for each, four
/// times as many for complex numbers.
[[nodiscard]] inline double operations(const Problem& problem, const Block& block, long long rows) {
    return (problem.is_complex ? 8.0 : 2.0) * static_cast<double>(rows) * static_cast<double>(block.height) *
           static_cast<double>(block.width);
}

}  // namespace xtx
