// SPDX-License-Identifier: Apache-2.0
// fill() and wrong() of ping_pong.h for an array in device memory, in slices of 8 MiB: checking a gigabyte needs no
// second gigabyte on the host.
#pragma once

#include <vector>

#include "device.h"
#include "ping_pong.h"

namespace ping_pong {

constexpr long slice_elements = 1L << 20;

inline void fill_device(double* d_A, long N, Values values) {
    std::vector<double> slice(static_cast<std::size_t>(std::min(N, slice_elements)));
    for (long first = 0; first < N; first += slice_elements) {
        const long count = std::min(slice_elements, N - first);
        fill(slice.data(), first, count, N, values);
        HIP_CHECK(hipMemcpy(d_A + first, slice.data(), count * sizeof(double), hipMemcpyHostToDevice));
    }
}

[[nodiscard]] inline long wrong_device(const double* d_A, long N, Values values) {
    std::vector<double> slice(static_cast<std::size_t>(std::min(N, slice_elements)));
    long wrong_elements = 0;
    for (long first = 0; first < N; first += slice_elements) {
        const long count = std::min(slice_elements, N - first);
        HIP_CHECK(hipMemcpy(slice.data(), d_A + first, count * sizeof(double), hipMemcpyDeviceToHost));
        wrong_elements += wrong(slice.data(), first, count, N, values);
    }
    return wrong_elements;
}

}  // namespace ping_pong
