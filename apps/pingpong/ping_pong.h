// SPDX-License-Identifier: Apache-2.0
// What the three ping-pong programs share: options, the values that are sent, and the line that is printed.
//
// The values. Each size and each purpose has its own, so a byte that arrives at the wrong place, is left over from
// another size, or was never delivered, differs from the one expected:
//   bounce      what rank 0 starts with. The timed loop sends it to and fro, so a wrong byte in any of its transfers is
//               still there at the end, on both ranks.
//   stale       what rank 1 starts with; none of it may be left.
//   ping, pong  one more round trip, not timed, in which each leg carries values of its own, so that a leg that
//               delivers nothing is noticed too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "program.h"

namespace ping_pong {

constexpr int ping_tag = 10;  ///< rank 0 to rank 1
constexpr int pong_tag = 20;  ///< rank 1 to rank 0

enum class Values : std::uint64_t { bounce, stale, ping, pong };

struct Options {
    long long max_bytes = 1LL << 30;  ///< largest transfer
    long long iterations = 50;        ///< timed round trips a size
    long long warm_up = 5;            ///< round trips before them
};

/// Reads the options; ends both ranks when they cannot be understood or there are not exactly two. Collective.
inline Options start(int argc, char** argv, const std::string& program, const std::string& summary) {
    Options options;
    apps::parse(argc, argv, program + ": " + summary,
                {{"max-bytes", "largest transfer in bytes", &options.max_bytes, 8, 1LL << 30},
                 {"iterations", "timed round trips for each size", &options.iterations, 1, 1'000'000'000},
                 {"warm-up", "round trips before the timed ones", &options.warm_up, 0, 1'000'000'000}});
    apps::require_ranks(program, 2, 2);
    return options;
}

/// Element `index` of an array of N doubles. Whole numbers below 2^53, so each is exact.
[[nodiscard]] inline double value(std::uint64_t index, long N, Values values) {
    const std::uint64_t key = 4 * static_cast<std::uint64_t>(N) + static_cast<std::uint64_t>(values);
    // A multiplication by an odd number maps distinct words to distinct words; the high bits vary with each index.
    return static_cast<double>(((index + 1) * 0x9E3779B97F4A7C15U + key * 0xD1B54A32D192ED03U) >> 12);
}

/// Writes elements first .. first + count - 1 of an array of N doubles to A[0 .. count - 1].
inline void fill(double* A, long first, long count, long N, Values values) {
    for (long i = 0; i < count; ++i) {
        A[i] = value(static_cast<std::uint64_t>(first + i), N, values);
    }
}

/// How many of A[0 .. count - 1] are not what fill() writes there.
[[nodiscard]] inline long wrong(const double* A, long first, long count, long N, Values values) {
    long wrong_elements = 0;
    for (long i = 0; i < count; ++i) {
        wrong_elements += A[i] != value(static_cast<std::uint64_t>(first + i), N, values) ? 1 : 0;
    }
    return wrong_elements;
}

/// Prints the result of one size on rank 0. `seconds` is the time of one transfer, half a round trip; GB are 2^30
/// bytes. Returns whether no rank found a wrong element, the same on both. Collective.
[[nodiscard]] inline bool report(long N, double seconds, long wrong_elements) {
    const long bytes = 8 * N;
    const long long all_wrong = apps::sum_over_ranks(wrong_elements);
    if (apps::rank_of_world() == 0) {
        std::printf("Transfer size (B): %10li, Transfer Time (s): %15.9f, Bandwidth (GB/s): %15.9f\n", bytes, seconds,
                    static_cast<double>(bytes) / (1L << 30) / seconds);
        std::fflush(stdout);
        if (all_wrong > 0) {
            std::fprintf(stderr, "wrong data: %lld elements of transfers of %li B\n", all_wrong, bytes);
        }
    }
    return all_wrong == 0;
}

}  // namespace ping_pong
