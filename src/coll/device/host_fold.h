// SPDX-License-Identifier: Apache-2.0
// Reductions by the CPU, with the bits that the kernels of gpu/kernels/combine.h give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace awaken::coll {

/// target[i] = sources[0][i] op sources[1][i] op ..., from left to right, for all i < elements, in host memory. `code`
/// as in kernels::code_of(), of a reduction that is_defined(). The target may be one of the sources, but must not
/// overlap one partly.
void fold_on_host(std::uint32_t code, std::span<const std::byte* const> sources, std::byte* target,
                  std::uint64_t elements);

}  // namespace awaken::coll
