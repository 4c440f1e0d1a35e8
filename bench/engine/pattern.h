// SPDX-License-Identifier: Apache-2.0
// Data whose correct result is known exactly, for every operation and element type.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/options.h"

namespace awaken::bench {

/// What memory holds before data arrives.
inline constexpr std::byte kUntouched{0x5A};

/// Data are written and compared in pieces of this size, a multiple of every element type: large messages need not fit
/// into host memory once more.
inline constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

/// Calls work(first byte, number of bytes) for one piece after the other.
template <typename Work>
void for_each_piece(const std::size_t bytes, const Work& work) {
    for (std::size_t first = 0; first < bytes; first += kPieceBytes) {
        work(first, std::min(kPieceBytes, bytes - first));
    }
}

/// Names what `source` gives to `destination`.
[[nodiscard]] constexpr std::uint64_t stream_of(const int source, const int destination) noexcept {
    return static_cast<std::uint64_t>(source) << 32U | static_cast<std::uint32_t>(destination);
}

/// Fills `bytes` with elements of `type` that depend on `stream` (who sends it to whom), `iteration` and the index of
/// the element, counted from `first_element`. No two neighbouring elements, streams or iterations agree.
void fill_pattern(std::span<std::byte> bytes, ElementType type, std::uint64_t stream, std::uint64_t iteration,
                  std::size_t first_element = 0);

/// As the kernel awaken_fill_pattern does: bytes [first, first + bytes.size()) of the pattern `seed`.
void fill_as_kernel(std::span<std::byte> bytes, std::uint64_t seed, std::uint64_t first);

/// Contribution of `rank` to a sum over `ranks` ranks: small whole numbers, so that sums are exact in `type` (also in
/// MPI_CHAR) in any order.
void fill_summand(std::span<std::byte> bytes, ElementType type, int rank, int ranks, std::uint64_t iteration,
                  std::size_t first_element = 0);
/// What the sum of fill_summand over ranks [0, contributors) must be.
void fill_sum(std::span<std::byte> bytes, ElementType type, int contributors, int ranks, std::uint64_t iteration,
              std::size_t first_element = 0);

/// Outcome of comparing what arrived with what was expected.
struct Mismatch {
    std::size_t wrong_elements = 0;
    std::string first;  ///< "element 17: 3 instead of 5"; empty when all is right

    void add(const Mismatch& other);
};

/// `first_element`: the number of the first of these elements in the whole, for the text.
[[nodiscard]] Mismatch compare(std::span<const std::byte> actual, std::span<const std::byte> expected, ElementType type,
                               std::size_t first_element = 0);

}  // namespace awaken::bench
