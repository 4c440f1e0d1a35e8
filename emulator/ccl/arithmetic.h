// SPDX-License-Identifier: Apache-2.0
// Element types and reductions of the emulated collective communication library.
#pragma once

#include <cstddef>
#include <span>

namespace awaken::emulator::ccl {

/// ncclDataType_t.
enum class Type : int {
    int8 = 0,
    uint8 = 1,
    int32 = 2,
    uint32 = 3,
    int64 = 4,
    uint64 = 5,
    float16 = 6,
    float32 = 7,
    float64 = 8,
    bfloat16 = 9,
    float8_e4m3 = 10,
    float8_e5m2 = 11
};
inline constexpr int kTypes = 12;

/// ncclRedOp_t.
enum class Operation : int { sum = 0, product = 1, maximum = 2, minimum = 3, average = 4 };
inline constexpr int kOperations = 5;

[[nodiscard]] std::size_t size_of(Type type) noexcept;

/// Reduces `inputs`, one for each rank and in the ranks' order, element by element into `output`, which may be one of
/// them. Types narrower than 32 bits are reduced as float and rounded once; integers wrap around, and their average is
/// rounded towards zero.
void reduce(Type type, Operation operation, std::span<const std::byte* const> inputs, std::byte* output,
            std::size_t count);

}  // namespace awaken::emulator::ccl
