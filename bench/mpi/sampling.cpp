// SPDX-License-Identifier: Apache-2.0
#include "mpi/sampling.h"

#include <cmath>

#include "engine/statistics.h"
#include "mpi/mpi_functions.h"

namespace awaken::bench {
namespace {

/// A sample must last a hundred readings of the clock.
constexpr double kShortestSample = 2.5e-6;

}  // namespace

void barrier(MPI_Comm communicator) {
    check_mpi(MPI_Barrier(communicator), "MPI_Barrier");
}

std::vector<double> slowest_of_ranks(const std::vector<double>& samples, MPI_Comm communicator) {
    const std::size_t most = largest_of_ranks(samples.size(), communicator);
    std::vector<double> mine(samples);
    mine.resize(most, 0);
    std::vector<double> slowest(most, 0);
    check_mpi(MPI_Reduce(mine.data(), slowest.data(), static_cast<int>(most), MPI_DOUBLE, MPI_MAX, 0, communicator),
              "MPI_Reduce");
    for (double& value : slowest) {
        value *= 1e6;
    }
    return slowest;
}

std::size_t largest_of_ranks(const std::size_t value, MPI_Comm communicator) {
    return over_ranks<unsigned long long>(value, MPI_MAX, communicator);
}

void sum_up_bandwidth(const Moved& moved, const std::vector<int>& percentiles, Measurement& measurement) {
    const auto [bytes, messages, streams, seconds] = moved;
    measurement.bandwidth = seconds > 0 ? bytes / 1e6 * messages / seconds : 0;
    measurement.message_rate = seconds > 0 ? messages / seconds : 0;
    measurement.average = messages > 0 ? seconds * 1e6 * streams / messages : 0;
    if (percentiles.empty() || measurement.samples.empty()) {
        return;
    }
    std::vector<double> bandwidths;
    bandwidths.reserve(measurement.samples.size());
    for (const double microseconds : measurement.samples) {
        bandwidths.push_back(bytes * streams / microseconds);  // bytes/us is MB/s
    }
    for (const int p : percentiles) {
        measurement.percentiles.push_back(tail_percentile(bandwidths, p));
    }
}

std::size_t Batches::batch_for(const Communication& with, Samples& samples, const std::size_t iterations) const {
    if (samples.operation.empty()) {
        const auto known = _seconds.find(&with);
        const bool each = _each || known == _seconds.end();
        samples.iterations_per_sample =
            each ? 1 : static_cast<std::size_t>(std::ceil(kShortestSample / std::max(known->second, 1e-9)));
    }
    return std::min(samples.iterations_per_sample, iterations);
}

}  // namespace awaken::bench
