// SPDX-License-Identifier: Apache-2.0
// What the examples share: one option and one line of result.
#pragma once

#include <cstdio>
#include <string>

#include "device.h"

namespace example {

/// Reads the only option, --count: elements in each buffer. Collective.
inline int count_option(int argc, char** argv, const std::string& summary, int default_count = 1 << 20) {
    long long count = default_count;
    apps::parse(argc, argv, summary, {{"count", "elements in each buffer", &count, 1, 1LL << 27}});
    return static_cast<int>(count);
}

/// Prints PASS or FAIL with what was checked, on rank 0, and ends MPI. `wrong_elements` is this rank's number. Returns
/// the exit status, the same on all ranks. Collective.
[[nodiscard]] inline int finish(const std::string& program, const std::string& checked, long long wrong_elements) {
    const long long all_wrong = apps::sum_over_ranks(wrong_elements);
    if (apps::rank_of_world() == 0) {
        if (all_wrong == 0) {
            std::printf("PASS %s: %s\n", program.c_str(), checked.c_str());
        } else {
            std::printf("FAIL %s: %lld wrong elements: %s\n", program.c_str(), all_wrong, checked.c_str());
        }
        std::fflush(stdout);
    }
    MPI_Finalize();
    return all_wrong == 0 ? EXIT_SUCCESS : apps::exit_wrong_data;
}

}  // namespace example
