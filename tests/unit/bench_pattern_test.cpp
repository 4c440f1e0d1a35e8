// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "engine/pattern.h"

namespace awaken::bench {
namespace {

constexpr ElementType kTypes[] = {ElementType::char_, ElementType::int_, ElementType::float_, ElementType::double_};
constexpr std::size_t kElements = 3000;

using Bytes = std::vector<std::byte>;

Bytes pattern(ElementType type, std::uint64_t stream, std::uint64_t iteration, std::size_t first = 0,
              std::size_t elements = kElements) {
    Bytes bytes(elements * size_of(type), std::byte{0xee});
    fill_pattern(bytes, type, stream, iteration, first);
    return bytes;
}

bool element_differs(const Bytes& a, std::size_t i, const Bytes& b, std::size_t j, ElementType type) {
    const std::size_t size = size_of(type);
    return std::memcmp(a.data() + i * size, b.data() + j * size, size) != 0;
}

TEST(Pattern, NeighboursDifferInEveryElement) {
    for (const ElementType type : kTypes) {
        const Bytes data = pattern(type, 3, 5);
        const Bytes other_stream = pattern(type, 4, 5);
        const Bytes next_iteration = pattern(type, 3, 6);
        for (std::size_t i = 0; i < kElements; ++i) {
            ASSERT_TRUE(i == 0 || element_differs(data, i, data, i - 1, type)) << mpi_name(type) << " element " << i;
            ASSERT_TRUE(element_differs(data, i, other_stream, i, type)) << mpi_name(type) << " element " << i;
            ASSERT_TRUE(element_differs(data, i, next_iteration, i, type)) << mpi_name(type) << " element " << i;
        }
    }
}

TEST(Pattern, ShiftedDataDoNotAgree) {
    for (const ElementType type : kTypes) {
        const Bytes data = pattern(type, 1, 2, 0, 64 * 1024);
        for (const std::size_t shift : {1U, 255U, 256U, 512U, 4096U, 32768U}) {
            const std::size_t bytes = shift * size_of(type);
            EXPECT_NE(std::memcmp(data.data(), data.data() + bytes, data.size() - bytes), 0) << mpi_name(type) << shift;
        }
    }
}

TEST(Pattern, PartsFitTogether) {
    for (const ElementType type : kTypes) {
        const Bytes whole = pattern(type, 9, 1);
        Bytes parts = pattern(type, 9, 1, 0, 700);
        const Bytes rest = pattern(type, 9, 1, 700, kElements - 700);
        parts.insert(parts.end(), rest.begin(), rest.end());
        EXPECT_EQ(parts, whole) << mpi_name(type);
    }
}

TEST(Pattern, UnalignedBuffersAndBytesBehindTheLastElement) {
    Bytes storage(1 + 10 * sizeof(double) + 3, std::byte{0xee});
    fill_pattern(std::span(storage).subspan(1), ElementType::double_, 0, 0);
    EXPECT_EQ(storage[0], std::byte{0xee});
    EXPECT_EQ(0, std::memcmp(storage.data() + 1, pattern(ElementType::double_, 0, 0).data(), 10 * sizeof(double)));
}

/// Adds in the type of the MPI; false when an addition overflows or rounds.
template <typename T, typename Wide>
bool add_exactly(Bytes& sum, const Bytes& summand) {
    for (std::size_t i = 0; i < sum.size() / sizeof(T); ++i) {
        T a;
        T b;
        std::memcpy(&a, sum.data() + i * sizeof(T), sizeof(T));
        std::memcpy(&b, summand.data() + i * sizeof(T), sizeof(T));
        const Wide exact = static_cast<Wide>(a) + static_cast<Wide>(b);
        const T result = static_cast<T>(exact);
        if (static_cast<Wide>(result) != exact) {
            return false;
        }
        std::memcpy(sum.data() + i * sizeof(T), &result, sizeof(T));
    }
    return true;
}

bool add_exactly(Bytes& sum, const Bytes& summand, ElementType type) {
    switch (type) {
        case ElementType::char_:
            return add_exactly<signed char, int>(sum, summand);
        case ElementType::int_:
            return add_exactly<int, long long>(sum, summand);
        case ElementType::float_:
            return add_exactly<float, double>(sum, summand);
        case ElementType::double_:
            return add_exactly<double, long double>(sum, summand);
    }
    return false;
}

TEST(Sum, IsExactInEveryTypeAndForManyRanks) {
    constexpr std::size_t kCount = 5000;  // more than the period
    for (const ElementType type : kTypes) {
        for (const int ranks : {1, 2, 3, 8, 127, 128, 300}) {
            Bytes sum(kCount * size_of(type));
            for (int rank = ranks - 1; rank >= 0; --rank) {
                Bytes summand(sum.size());
                fill_summand(summand, type, rank, ranks, 4);
                ASSERT_TRUE(add_exactly(sum, summand, type)) << mpi_name(type) << ", rank " << rank << " of " << ranks;
            }
            Bytes expected(sum.size());
            fill_sum(expected, type, ranks, ranks, 4);
            EXPECT_EQ(sum, expected) << mpi_name(type) << ", " << ranks << " ranks";
        }
    }
}

TEST(Sum, OfSomeRanksAndOfAPart) {
    Bytes sum(100 * sizeof(int));
    for (const int rank : {0, 1, 2}) {
        Bytes summand(sum.size());
        fill_summand(summand, ElementType::int_, rank, 5, 0, 4050);
        ASSERT_TRUE(add_exactly(sum, summand, ElementType::int_));
    }
    Bytes expected(sum.size());
    fill_sum(expected, ElementType::int_, 3, 5, 0, 4050);
    EXPECT_EQ(sum, expected);
}

TEST(Sum, NoRankCanBeMissedOrCountedTwice) {
    for (const ElementType type : kTypes) {
        for (const int ranks : {2, 8, 200}) {
            for (int rank = 0; rank < ranks; rank += 37) {
                Bytes summand(1000 * size_of(type));
                fill_summand(summand, type, rank, ranks, 1);
                EXPECT_TRUE(std::any_of(summand.begin(), summand.end(), [](std::byte b) { return b != std::byte{0}; }))
                    << mpi_name(type) << ", rank " << rank << " of " << ranks;
            }
            Bytes sum(1000 * size_of(type));
            Bytes later(sum.size());
            fill_sum(sum, type, ranks, ranks, 1);
            fill_sum(later, type, ranks, ranks, 2);
            EXPECT_NE(sum, later) << "what an earlier iteration left must not pass";
        }
    }
}

TEST(Compare, EqualDataHaveNoMismatch) {
    for (const ElementType type : kTypes) {
        const Mismatch mismatch = compare(pattern(type, 1, 1), pattern(type, 1, 1), type);
        EXPECT_EQ(mismatch.wrong_elements, 0U);
        EXPECT_EQ(mismatch.first, "");
    }
    EXPECT_EQ(compare({}, {}, ElementType::int_).wrong_elements, 0U);
}

TEST(Compare, NamesTheFirstAndCountsAll) {
    Bytes expected(600 * sizeof(int));
    Bytes actual(expected.size());
    const int five = 5;
    const int minus_three = -3;
    std::memcpy(expected.data() + 17 * sizeof(int), &five, sizeof five);
    std::memcpy(actual.data() + 17 * sizeof(int), &minus_three, sizeof minus_three);
    actual.back() = std::byte{1};
    const Mismatch mismatch = compare(actual, expected, ElementType::int_);
    EXPECT_EQ(mismatch.wrong_elements, 2U);
    EXPECT_EQ(mismatch.first, "element 17: -3 instead of 5");
}

// OMB's validation of floats has a tolerance that lets errors below 1.0 pass.
TEST(Compare, SeesTheLastBitOfAFloat) {
    const float right = 0.5F;
    const float wrong = std::nextafter(right, 1.0F);
    const Mismatch mismatch =
        compare(std::as_bytes(std::span(&wrong, 1)), std::as_bytes(std::span(&right, 1)), ElementType::float_);
    EXPECT_EQ(mismatch.wrong_elements, 1U);
    EXPECT_EQ(mismatch.first, "element 0: 0.50000006 instead of 0.5");
}

TEST(Compare, SeesBytesBehindTheLastElementAndMissingBytes) {
    Bytes expected(10);
    Bytes actual(10);
    actual[9] = std::byte{1};
    EXPECT_EQ(compare(actual, expected, ElementType::double_).first, "the bytes behind element 1");
    actual.resize(8);
    EXPECT_EQ(compare(actual, expected, ElementType::double_).first, "8 bytes instead of 10");
}

TEST(Compare, MismatchesAddUp) {
    Mismatch sum;
    sum.add({});
    sum.add({2, "first"});
    sum.add({3, "second"});
    EXPECT_EQ(sum.wrong_elements, 5U);
    EXPECT_EQ(sum.first, "first");
}

}  // namespace
}  // namespace awaken::bench
