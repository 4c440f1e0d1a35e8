// SPDX-License-Identifier: Apache-2.0
// Memory operations of streams: a stream writes a value to memory, or waits for one.
//
// The program, a kernel or another process may write what a stream waits for, and they tell nobody. So the stream looks
// at the memory again and again, as a kernel does that waits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/stream.h"

namespace awaken::emulator {

/// How a wait compares what is in memory with its value.
enum class Condition : std::uint8_t {
    cyclic_not_less,  ///< CUDA's "greater or equal", of counters that may wrap around
    not_less,         ///< HIP's, of unsigned numbers
    equal,
    common_one,  ///< a bit is set in both
    common_zero  ///< a bit is set in neither
};

/// By the vendors' numbers, which agree; nothing for others.
[[nodiscard]] std::optional<Condition> condition_of(unsigned number) noexcept;

struct MemoryOperation {
    std::uintptr_t address = 0;
    unsigned bytes = 4;  ///< 4 or 8
    std::uint64_t value = 0;
    std::optional<Condition> condition;      ///< of a wait; a write has none
    std::uint64_t mask = ~std::uint64_t{0};  ///< bits of memory that a wait looks at
};

/// Gives the stream one piece of work that does them all in order. A write comes after all earlier work of the stream
/// for whoever sees it. invalid_value, and no work, when a GPU could not reach an address, when one is not a multiple
/// of its length, and with CUDA for managed memory.
[[nodiscard]] Error operate_on_memory(Stream& stream, std::vector<MemoryOperation> operations);

}  // namespace awaken::emulator
