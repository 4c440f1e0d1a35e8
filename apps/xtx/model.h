// SPDX-License-Identifier: Apache-2.0
// How long a pipeline of products and reductions has to take: the model against which overlap is judged.
//
// Block k is communicated (reduced and copied to the host) while block k + 1 is multiplied. So the first product and
// the last communication are exposed, and in between the longer of the two counts:
//   T_serial = sum of product(k) + sum of communication(k)
//   T_ideal  = product(1) + sum over k >= 2 of max(product(k), communication(k - 1)) + communication(last)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace xtx {

/// Seconds of one block, each of the two by itself.
struct BlockTime {
    double product = 0;
    double communication = 0;
};

[[nodiscard]] inline double serial_seconds(const std::vector<BlockTime>& times) {
    double seconds = 0;
    for (const BlockTime& time : times) {
        seconds += time.product + time.communication;
    }
    return seconds;
}

[[nodiscard]] inline double ideal_seconds(const std::vector<BlockTime>& times) {
    if (times.empty()) {
        return 0;
    }
    double seconds = times.front().product + times.back().communication;
    for (std::size_t k = 1; k < times.size(); ++k) {
        seconds += std::max(times[k].product, times[k - 1].communication);
    }
    return seconds;
}

/// The share of the time that could be saved that was: 1 is ideal, 0 no gain, negative a loss. NaN where there was
/// nothing to save, as with one block.
[[nodiscard]] inline double overlap_efficiency(double serial, double ideal, double overlapped) {
    const double savable = serial - ideal;
    return savable > 0 ? (serial - overlapped) / savable : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace xtx
