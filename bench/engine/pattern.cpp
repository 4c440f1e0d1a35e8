// SPDX-License-Identifier: Apache-2.0
// Two kinds of data. What is only moved must not agree with itself when shifted, swapped between peers or left over
// from an earlier iteration. What is summed must in addition have a sum that no order of additions can round or
// overflow, and that one rank can compute without adding up all the others' buffers.
#include "engine/pattern.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace awaken::bench {
namespace {

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15U;

/// Bijective mixing of 64 bits (SplitMix64).
constexpr std::uint64_t mix(std::uint64_t value) noexcept {
    value += kStep;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31);
}

/// What of a number survives in an element: whole numbers below this are exact in it, and it is even.
template <typename T>
constexpr std::uint64_t kModulus =
    std::uint64_t{1} << (std::numeric_limits<T>::digits - (std::is_floating_point_v<T> ? 1 : 0));

constexpr std::size_t kBlock = 256;

/// Calls `with` with a value of the C++ type that stands for `type`. Integers are unsigned here, for their wrap-around.
template <typename Function>
void dispatch(ElementType type, const Function& with) {
    switch (type) {
        case ElementType::char_:
            return with(std::uint8_t{});
        case ElementType::int_:
            return with(std::uint32_t{});
        case ElementType::float_:
            return with(float{});
        case ElementType::double_:
            return with(double{});
    }
}

/// Buffers have no alignment to rely on (--unaligned), so elements go through a block on the stack.
template <typename T>
void store(std::span<std::byte> bytes, std::size_t element, const T* values, std::size_t count) {
    std::memcpy(bytes.data() + element * sizeof(T), values, count * sizeof(T));
}

/// Bytes behind the last whole element.
template <typename T>
void clear_tail(std::span<std::byte> bytes) {
    const std::span<std::byte> tail = bytes.last(bytes.size() % sizeof(T));
    std::fill(tail.begin(), tail.end(), std::byte{0});
}

// Within a block the values count up by one. A block begins at stream + iteration + an even number that depends on all
// three: neighbours then differ by something odd, also across blocks, and blocks do not repeat.
template <typename T>
void fill_moved(std::span<std::byte> bytes, std::uint64_t stream, std::uint64_t iteration, std::size_t first_element) {
    const std::size_t count = bytes.size() / sizeof(T);
    const std::uint64_t seed = mix(stream ^ mix(iteration));
    std::array<T, kBlock> values;
    std::size_t done = 0;
    while (done < count) {
        const std::size_t index = first_element + done;
        const std::size_t within = index % kBlock;
        const std::size_t here = std::min(kBlock - within, count - done);
        const std::uint64_t start = (stream + iteration + 2 * mix(seed ^ (index / kBlock)) + within) % kModulus<T>;
        for (std::size_t i = 0; i < here; ++i) {
            values[i] = static_cast<T>(start + i);
        }
        store(bytes, done, values.data(), here);
        done += here;
    }
    clear_tail<T>(bytes);
}

// Summands repeat with this period, a prime, so that no power of two of elements falls onto itself.
constexpr std::size_t kPeriod = 4093;

/// The largest sum that is exact, or does not overflow, in the signed type of the MPI.
template <typename T>
constexpr std::uint64_t kLargestSum =
    std::is_floating_point_v<T> ? std::uint64_t{1} << std::numeric_limits<T>::digits
                                : (std::uint64_t{1} << (std::numeric_limits<T>::digits - 1)) - 1;

template <typename T>
std::uint64_t summand(int rank, int ranks, std::uint64_t iteration, std::size_t phase) noexcept {
    const std::uint64_t of_rank = static_cast<std::uint64_t>(rank);
    const std::uint64_t of_ranks = static_cast<std::uint64_t>(ranks);
    const std::uint64_t largest = kLargestSum<T> / of_ranks;
    const std::uint64_t random = mix(phase ^ mix(iteration));
    if (largest > 0) {
        return mix(random ^ of_rank) % (largest + 1);
    }
    // More ranks than the type can count: a changing choice of them adds one.
    const std::uint64_t chosen = 1 + random % kLargestSum<T>;
    return (of_rank + (random >> 16)) % of_ranks < chosen ? 1 : 0;
}

/// Fills with a table of kPeriod values, over and over.
template <typename T>
void tile(std::span<std::byte> bytes, const std::vector<T>& table, std::size_t first_element) {
    const std::size_t count = bytes.size() / sizeof(T);
    std::size_t done = 0;
    while (done < count) {
        const std::size_t phase = (first_element + done) % kPeriod;
        const std::size_t here = std::min(kPeriod - phase, count - done);
        store(bytes, done, table.data() + phase, here);
        done += here;
    }
    clear_tail<T>(bytes);
}

template <typename T>
void fill_summed(std::span<std::byte> bytes, int first_rank, int end_rank, int ranks, std::uint64_t iteration,
                 std::size_t first_element) {
    std::vector<T> table(kPeriod);
    for (std::size_t phase = 0; phase < kPeriod; ++phase) {
        std::uint64_t sum = 0;
        for (int rank = first_rank; rank < end_rank; ++rank) {
            sum += summand<T>(rank, ranks, iteration, phase);
        }
        table[phase] = static_cast<T>(sum);
    }
    tile(bytes, table, first_element);
}

template <typename T>
std::string text_of(T value) {
    std::array<char, 40> text{};
    if constexpr (std::is_same_v<T, std::uint8_t>) {
        std::snprintf(text.data(), text.size(), "%d", static_cast<int>(static_cast<std::int8_t>(value)));
    } else if constexpr (std::is_same_v<T, std::uint32_t>) {
        std::snprintf(text.data(), text.size(), "%d", static_cast<std::int32_t>(value));
    } else if constexpr (std::is_same_v<T, float>) {
        std::snprintf(text.data(), text.size(), "%.9g", static_cast<double>(value));
    } else {
        std::snprintf(text.data(), text.size(), "%.17g", value);
    }
    return text.data();
}

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t element) {
    T value;
    std::memcpy(&value, bytes.data() + element * sizeof(T), sizeof(T));
    return value;
}

// Bit by bit: a tolerance would let errors below it pass, and NaN would equal nothing.
template <typename T>
Mismatch compare_elements(std::span<const std::byte> actual, std::span<const std::byte> expected,
                          const std::size_t first_element) {
    Mismatch mismatch;
    const std::size_t count = expected.size() / sizeof(T);
    for (std::size_t block = 0; block < count; block += kBlock) {
        const std::size_t end = std::min(count, block + kBlock);
        if (std::memcmp(actual.data() + block * sizeof(T), expected.data() + block * sizeof(T),
                        (end - block) * sizeof(T)) == 0) {
            continue;
        }
        for (std::size_t i = block; i < end; ++i) {
            if (std::memcmp(actual.data() + i * sizeof(T), expected.data() + i * sizeof(T), sizeof(T)) == 0) {
                continue;
            }
            if (mismatch.wrong_elements++ == 0) {
                mismatch.first = "element " + std::to_string(first_element + i) + ": " + text_of(load<T>(actual, i)) +
                                 " instead of " + text_of(load<T>(expected, i));
            }
        }
    }
    const std::size_t tail = expected.size() % sizeof(T);
    if (tail != 0 && !std::equal(actual.end() - static_cast<std::ptrdiff_t>(tail), actual.end(),
                                 expected.end() - static_cast<std::ptrdiff_t>(tail))) {
        if (mismatch.wrong_elements++ == 0) {
            mismatch.first = "the bytes behind element " + std::to_string(first_element + count);
        }
    }
    return mismatch;
}

}  // namespace

void fill_pattern(std::span<std::byte> bytes, ElementType type, std::uint64_t stream, std::uint64_t iteration,
                  std::size_t first_element) {
    dispatch(type, [&](auto zero) { fill_moved<decltype(zero)>(bytes, stream, iteration, first_element); });
}

void fill_as_kernel(const std::span<std::byte> bytes, const std::uint64_t seed, const std::uint64_t first) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        const std::uint64_t position = first + i;
        bytes[i] = static_cast<std::byte>(mix(seed + position / 8 * kStep) >> (8 * (position % 8)));
    }
}

void fill_summand(std::span<std::byte> bytes, ElementType type, int rank, int ranks, std::uint64_t iteration,
                  std::size_t first_element) {
    dispatch(type,
             [&](auto zero) { fill_summed<decltype(zero)>(bytes, rank, rank + 1, ranks, iteration, first_element); });
}

void fill_sum(std::span<std::byte> bytes, ElementType type, int contributors, int ranks, std::uint64_t iteration,
              std::size_t first_element) {
    dispatch(type,
             [&](auto zero) { fill_summed<decltype(zero)>(bytes, 0, contributors, ranks, iteration, first_element); });
}

void Mismatch::add(const Mismatch& other) {
    if (wrong_elements == 0) {
        first = other.first;
    }
    wrong_elements += other.wrong_elements;
}

Mismatch compare(std::span<const std::byte> actual, std::span<const std::byte> expected, ElementType type,
                 const std::size_t first_element) {
    if (actual.size() != expected.size()) {
        const std::size_t larger = std::max(actual.size(), expected.size());
        return {std::max<std::size_t>(1, larger / size_of(type)),
                std::to_string(actual.size()) + " bytes instead of " + std::to_string(expected.size())};
    }
    if (expected.empty()) {
        return {};
    }
    Mismatch mismatch;
    dispatch(type, [&](auto zero) { mismatch = compare_elements<decltype(zero)>(actual, expected, first_element); });
    return mismatch;
}

}  // namespace awaken::bench
