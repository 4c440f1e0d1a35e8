// SPDX-License-Identifier: Apache-2.0
// The device arrays that are summed: their input, their exact sum, and the comparison.
//
// Each call works in place, so its buffer holds the result afterwards and not the input. Summing that again would make
// the values grow with each call, to infinity on many ranks. So the calls take several buffers in turn, and all of them
// are given their input anew, outside the timing, before any is used again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "device.h"

namespace allreduce {

/// Element `index` of a rank's input. Small whole numbers that differ from index to index and from rank to rank: all
/// partial sums stay below 2^53 for a million ranks and more, so the sum is exact in whatever order it is made.
[[nodiscard]] inline double input(std::uint64_t index, int rank) {
    const std::uint64_t bits = (index + 1) * 0x9E3779B97F4A7C15U;
    return static_cast<double>((bits >> 40) + ((bits >> 32) % 256 + 1) * static_cast<std::uint64_t>(rank));
}

/// The sum of input(index, rank) over ranks 0 .. ranks - 1: the rank enters linearly.
[[nodiscard]] inline double exact_sum(std::uint64_t index, int ranks) {
    const std::uint64_t bits = (index + 1) * 0x9E3779B97F4A7C15U;
    const auto P = static_cast<std::uint64_t>(ranks);
    return static_cast<double>((bits >> 40) * P + ((bits >> 32) % 256 + 1) * (P * (P - 1) / 2));
}

class Buffers {
  public:
    /// Allocates up to `wanted` arrays of N doubles, fewer where memory is short, the same number on all ranks. Ends
    /// all ranks with exit_misuse where there is not even room for one. Collective.
    Buffers(const std::string& program, long long N, long long wanted) : _N(static_cast<std::size_t>(N)) {
        // NCCL, RCCL, the MPI and the other ranks of this device need memory too.
        std::size_t free_bytes = 0;
        std::size_t total_bytes = 0;
        HIP_CHECK(hipMemGetInfo(&free_bytes, &total_bytes));
        // The reductions over ranks come before any allocation: what is free is to be shared once, not by each rank of
        // a device anew.
        const auto affordable = static_cast<long long>(free_bytes / 2 / apps::ranks_of_device() / bytes());
        long long count = std::clamp(affordable, 1LL, wanted);
        MPI_Allreduce(MPI_IN_PLACE, &count, 1, MPI_LONG_LONG, MPI_MIN, MPI_COMM_WORLD);

        // Buffer b has the input from element b on, so that no two buffers are alike.
        const std::size_t all_values = _N + static_cast<std::size_t>(count) - 1;
        hipError_t error = hipMalloc(&_d_input, all_values * sizeof(double));
        for (long long b = 0; b < count && error == hipSuccess; ++b) {
            double* d_A = nullptr;
            error = hipMalloc(&d_A, bytes());
            if (error == hipSuccess) {
                _d_buffers.push_back(d_A);
            }
        }
        if (error == hipSuccess) {
            error = hipHostMalloc(&_h_slice, std::min(_N, slice_values) * sizeof(double));
        }
        // A failed allocation must not be taken for the error of a later call.
        if (error != hipSuccess) {
            (void)hipGetLastError();
        }
        apps::leave_if(program, error == hipSuccess
                                    ? ""
                                    : "no memory for " + std::to_string(N) + " doubles on rank " +
                                          std::to_string(apps::rank_of_world()) + " (" + hipGetErrorString(error) +
                                          "; " + std::to_string(free_bytes >> 20) +
                                          " MiB of its GPU are free, and two arrays are needed): use fewer --elements");

        std::vector<double> values(all_values);
        for (std::size_t i = 0; i < all_values; ++i) {
            values[i] = input(i, apps::rank_of_world());
        }
        HIP_CHECK(hipMemcpy(_d_input, values.data(), all_values * sizeof(double), hipMemcpyHostToDevice));
        for (std::size_t i = 0; i < all_values; ++i) {
            values[i] = exact_sum(i, apps::size_of_world());
        }
        _sum = std::move(values);
    }

    ~Buffers() {
        for (double* d_A : _d_buffers) {
            HIP_CHECK(hipFree(d_A));
        }
        HIP_CHECK(hipFree(_d_input));
        HIP_CHECK(hipHostFree(_h_slice));
    }
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;

    [[nodiscard]] long long count() const { return static_cast<long long>(_d_buffers.size()); }
    [[nodiscard]] std::size_t bytes() const { return _N * sizeof(double); }
    [[nodiscard]] double* operator[](long long b) const { return _d_buffers[static_cast<std::size_t>(b)]; }

    /// Gives the first `used` buffers their input.
    void reset(long long used) {
        for (long long b = 0; b < used; ++b) {
            HIP_CHECK(hipMemcpy((*this)[b], _d_input + b, bytes(), hipMemcpyDeviceToDevice));
        }
        HIP_CHECK(hipDeviceSynchronize());
    }

    /// Compares the first `used` buffers with the exact sums. Returns the first difference at this rank in words; empty
    /// where there is none.
    [[nodiscard]] std::string difference(long long used) {
        for (long long b = 0; b < used; ++b) {
            for (std::size_t first = 0; first < _N; first += slice_values) {
                const std::size_t count = std::min(slice_values, _N - first);
                HIP_CHECK(hipMemcpy(_h_slice, (*this)[b] + first, count * sizeof(double), hipMemcpyDeviceToHost));
                const double* const expected = _sum.data() + b + first;
                if (std::memcmp(_h_slice, expected, count * sizeof(double)) == 0) {
                    continue;
                }
                // The bits differ, so an element does, be it only in the sign of a zero.
                std::size_t i = 0;
                while (std::memcmp(_h_slice + i, expected + i, sizeof(double)) == 0) {
                    ++i;
                }
                return "rank " + std::to_string(apps::rank_of_world()) + ", element " + std::to_string(first + i) +
                       " of buffer " + std::to_string(b) + ": " + std::to_string(_h_slice[i]) + " instead of " +
                       std::to_string(expected[i]);
            }
        }
        return {};
    }

  private:
    static constexpr std::size_t slice_values = std::size_t{1} << 20;

    std::size_t _N;
    double* _d_input = nullptr;
    std::vector<double*> _d_buffers;
    double* _h_slice = nullptr;
    std::vector<double> _sum;
};

}  // namespace allreduce
