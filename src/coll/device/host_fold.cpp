// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction of a product and a sum into one instruction, as the kernels are.
#include "coll/device/host_fold.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "gpu/kernels/numbers.h"

namespace awaken::coll {

namespace {

using Fold = void (*)(std::span<const std::byte* const> sources, std::byte* target, std::uint64_t elements);

template <class Stored>
Stored load(const std::byte* const at) noexcept {
    Stored stored;
    std::memcpy(&stored, at, sizeof stored);  // the program's buffer may have any alignment
    return stored;
}

template <unsigned code>
void fold(const std::span<const std::byte* const> sources, std::byte* const target, const std::uint64_t elements) {
    using Chosen = kernels::Reduction<kernels::type_of(code), kernels::operation_of(code)>;
    using Numbers = typename Chosen::Element;
    using Stored = typename Numbers::Stored;
    const std::uint64_t numbers = elements * (kernels::element_bytes(kernels::type_of(code)) / sizeof(Stored));
    constexpr std::size_t kBlock = 512;  // stays in the first cache
    std::array<typename Numbers::Value, kBlock> results;
    for (std::uint64_t first = 0; first < numbers; first += kBlock) {
        const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, numbers - first));
        const std::uint64_t offset = first * sizeof(Stored);
        for (std::size_t i = 0; i < count; ++i) {
            results[i] = Numbers::opened(load<Stored>(sources.front() + offset + i * sizeof(Stored)));
        }
        for (const std::byte* const source : sources.subspan(1)) {
            for (std::size_t i = 0; i < count; ++i) {
                results[i] = Chosen::Operation::template combined<Numbers>(
                    results[i], Numbers::opened(load<Stored>(source + offset + i * sizeof(Stored))));
            }
        }
        for (std::size_t i = 0; i < count; ++i) {
            const Stored stored = Numbers::closed(results[i]);
            std::memcpy(target + offset + i * sizeof(Stored), &stored, sizeof stored);
        }
    }
}

template <unsigned code>
constexpr Fold fold_of() noexcept {
    constexpr auto kOperation = kernels::operation_of(code);
    if constexpr (kOperation != kernels::ReductionOperation::copy &&
                  kernels::is_defined(kernels::type_of(code), kOperation)) {
        return &fold<code>;
    } else {
        return nullptr;
    }
}

template <unsigned... codes>
constexpr std::array<Fold, sizeof...(codes)> folds_of(std::integer_sequence<unsigned, codes...> /*all*/) noexcept {
    return {fold_of<codes>()...};
}

constexpr auto kFolds = folds_of(std::make_integer_sequence<unsigned, kernels::kElementTypes * 16>());

}  // namespace

void fold_on_host(const std::uint32_t code, const std::span<const std::byte* const> sources, std::byte* const target,
                  const std::uint64_t elements) {
    kFolds[code](sources, target, elements);
}

}  // namespace awaken::coll
