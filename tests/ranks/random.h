// SPDX-License-Identifier: Apache-2.0
// What the random programs share: draws from a seed, datatypes, their options and their output. random_program.cpp
// tells both.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "support.h"

namespace ranks {

/// Draws from a seed, reproducibly on every platform.
class Random {
  public:
    explicit Random(std::uint64_t seed) : _state(seed) {}
    std::uint64_t bits() { return mix_bits(_state += 0x9e3779b97f4a7c15u); }
    /// 0 .. limit - 1
    int below(int limit) { return static_cast<int>(bits() % static_cast<std::uint64_t>(limit)); }
    bool chance(int percent) { return below(100) < percent; }

  private:
    std::uint64_t _state;
};

struct Options {
    bool host = false;
    bool verbose = false;
    int events = 1 << 30;
};

inline MPI_Datatype basic_type(int draw) {
    constexpr int kBasics = 4;
    const MPI_Datatype basics[kBasics] = {MPI_INT, MPI_DOUBLE, MPI_CHAR, MPI_SHORT};
    return basics[draw % kBasics];
}

/// A committed type of `elements` basic elements, nested at random. `backwards`: strides in bytes are negative.
inline MPI_Datatype random_type(Random& random, MPI_Datatype basic, int elements, bool backwards, int depth = 0) {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    int factor = 1;
    for (const int candidate : {2, 3, 5, 7}) {
        if (elements % candidate == 0 && random.chance(60)) {
            factor = candidate;
        }
    }
    const bool inner_derived = depth < 3 && elements / factor > 1 && random.chance(50);
    const MPI_Datatype inner =
        inner_derived ? random_type(random, basic, elements / factor, backwards, depth + 1) : MPI_DATATYPE_NULL;
    const MPI_Datatype member = inner_derived ? inner : basic;
    const int members = inner_derived ? factor : elements;  // so many members make the type
    MPI_Aint lower = 0, extent = 0;
    MPI_Type_get_extent(member, &lower, &extent);
    switch (random.below(7)) {
        case 0:
            MPI_Type_contiguous(members, member, &type);
            break;
        case 1: {
            const int blocks = members % 2 == 0 ? members / 2 : members;
            MPI_Type_vector(blocks, members / blocks, members / blocks + random.below(3), member, &type);
            break;
        }
        case 2: {
            const MPI_Aint stride = extent * (1 + random.below(3)) + 8 * random.below(2);
            // Not by the member's extent alone: Open MPI 5.0.11 takes a stride of -1 byte for one of 1.
            MPI_Type_create_hvector(members, 1, backwards ? -stride - extent : stride, member, &type);
            break;
        }
        case 3: {
            std::vector<int> lengths, displacements;
            int left = members, at = random.below(3);
            while (left > 0) {
                const int length = std::min(left, random.below(5));
                lengths.push_back(length);
                displacements.push_back(at);
                at += length + random.below(3);
                left -= length;
            }
            if (random.chance(30)) {
                std::reverse(lengths.begin(), lengths.end());
                std::reverse(displacements.begin(), displacements.end());
            }
            MPI_Type_indexed(static_cast<int>(lengths.size()), lengths.data(), displacements.data(), member, &type);
            break;
        }
        case 4: {
            const int sizes[] = {3, members + 2}, subsizes[] = {1, members},
                      starts[] = {random.below(3), random.below(3)};
            MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, member, &type);
            break;
        }
        case 5: {
            const int first = random.below(members + 1);
            const int lengths[] = {first, members - first};
            const MPI_Aint displacements[] = {8 * random.below(3), extent * (first + 1) + 24};
            const MPI_Datatype types[] = {member, member};
            MPI_Type_create_struct(2, lengths, displacements, types, &type);
            break;
        }
        default: {
            MPI_Datatype bare = MPI_DATATYPE_NULL;
            MPI_Type_contiguous(members, member, &bare);
            MPI_Type_create_resized(bare, -8 * random.below(2), extent * members + 8 * random.below(4), &type);
            MPI_Type_free(&bare);
        }
    }
    if (inner_derived) {
        MPI_Datatype done = inner;
        MPI_Type_free(&done);
    }
    MPI_Type_commit(&type);
    return type;
}

inline int random_elements(Random& random) {
    switch (random.below(10)) {
        case 0:
            return 0;
        case 1:
            return 1 + random.below(3);
        case 2:
            return 60000 + random.below(60000);
        case 3:
            return 2520;
        default:
            return 12 * (1 + random.below(100));
    }
}

/// Carries out the programs that the arguments name: `Program` is made of a GPU, a seed and options, and its run()
/// returns a rank's hash.
template <class Program>
int run_random_programs(int argc, char** argv) {
    Options options;
    std::string gpu_name = "auto";
    std::uint64_t first = 1, count = 1;
    std::vector<std::uint64_t> seeds;
    unsigned watchdog_seconds = 60;
    for (int at = 1; at < argc; ++at) {
        const std::string argument = argv[at];
        const std::size_t equals = argument.find('=');
        const std::string key = argument.substr(0, equals);
        std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
        if (key == "--host") {
            options.host = true;
        } else if (key == "--verbose") {
            options.verbose = true;
        } else if (key == "--gpu") {
            gpu_name = value;
        } else if (key == "--first") {
            first = std::stoull(value);
        } else if (key == "--count") {
            count = std::stoull(value);
        } else if (key == "--events") {
            options.events = std::stoi(value);
        } else if (key == "--watchdog") {
            watchdog_seconds = static_cast<unsigned>(std::stoul(value));
        } else if (key == "--seeds") {
            for (std::size_t at_text = 0; at_text < value.size();) {
                std::size_t used = 0;
                seeds.push_back(std::stoull(value.substr(at_text), &used));
                at_text += used + 1;
            }
        } else {
            std::fprintf(stderr, "unknown argument %s\n", argument.c_str());
            return 125;
        }
    }
    if (seeds.empty()) {
        for (std::uint64_t at = 0; at < count; ++at) {
            seeds.push_back(first + at);
        }
    }
    MPI_Init(&argc, &argv);
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    detail::running_rank = rank;
    signal(SIGALRM, detail::say_what_hangs);
    try {
        const std::unique_ptr<Gpu> gpu = Gpu::open(options.host ? "none" : gpu_name);
        if (gpu->device_count() > 0) {
            gpu->use_device(rank % gpu->device_count());
        }
        for (const std::uint64_t seed : seeds) {
            std::snprintf(detail::running_case, sizeof detail::running_case, "program %llu",
                          static_cast<unsigned long long>(seed));
            detail::set_watchdog(kSlowness * watchdog_seconds);
            unsigned long long hash = 0;
            {
                Program program(*gpu, seed, options);
                hash = program.run();
            }
            std::vector<unsigned long long> hashes(static_cast<std::size_t>(size));
            MPI_Gather(&hash, 1, MPI_UNSIGNED_LONG_LONG, hashes.data(), 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
            if (rank == 0) {
                std::string line = format("%llu", static_cast<unsigned long long>(seed));
                for (const unsigned long long value : hashes) {
                    line += format(" %016llx", value);
                }
                std::printf("%s\n", line.c_str());
                std::fflush(stdout);
            }
        }
        detail::set_watchdog(0);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "FAIL rank %d, %s: %s\n", rank, detail::running_case, error.what());
        MPI_Abort(MPI_COMM_WORLD, 101);
    }
    MPI_Finalize();
    return 0;
}

}  // namespace ranks
