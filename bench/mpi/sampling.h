// SPDX-License-Identifier: Apache-2.0
// Samples of tests between two ranks: how they are taken, and what all ranks' samples come to.
//
// Compiled once per MPI ABI.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "engine/result.h"
#include "mpi/benchmark.h"
#include "mpi/clock.h"

namespace awaken::bench {

void barrier(MPI_Comm communicator);

/// Element by element the largest of all ranks that have samples, at rank 0, in microseconds. `samples` are seconds.
[[nodiscard]] std::vector<double> slowest_of_ranks(const std::vector<double>& samples, MPI_Comm communicator);

[[nodiscard]] std::size_t largest_of_ranks(std::size_t value, MPI_Comm communicator);

/// What a bandwidth test has moved.
struct Moved {
    double bytes;     ///< of a message
    double messages;  ///< in all, of all streams
    double streams;   ///< pairs of ranks that move messages side by side
    double seconds;   ///< as the ranks that time it saw it, on average
};

/// Bandwidth, message rate, time of a message, and percentiles of measurement.samples as bandwidths.
void sum_up_bandwidth(const Moved& moved, const std::vector<int>& percentiles, Measurement& measurement);

/// Reads the clock for each iteration, or for a batch of them where one is too short for the clock not to weigh.
class Batches {
  public:
    /// `each`: every iteration is a sample, for percentiles.
    explicit Batches(const bool each) : _each(each) {}

    /// At another size, iterations take another time.
    void forget() { _seconds.clear(); }

    /// Runs `iterate()` so many times, with `operations` of what is measured in each.
    template <typename Iterate>
    void run(const Communication& with, const std::size_t iterations, const double operations, Samples& samples,
             const Iterate& iterate) {
        const std::size_t batch = batch_for(with, samples, iterations);
        const double begin = now();
        double mark = begin;
        for (std::size_t done = 0; done < iterations;) {
            const std::size_t some = std::min(batch, iterations - done);
            for (std::size_t i = 0; i < some; ++i) {
                iterate();
            }
            done += some;
            const double end = now();
            samples.operation.push_back((end - mark) / (operations * static_cast<double>(some)));
            mark = end;
        }
        samples.total += mark - begin;
        _seconds[&with] = (mark - begin) / static_cast<double>(iterations);
    }

  private:
    /// How many iterations make up a sample; the same for all runs into `samples`.
    [[nodiscard]] std::size_t batch_for(const Communication& with, Samples& samples, std::size_t iterations) const;

    const bool _each;
    std::map<const Communication*, double> _seconds;  ///< of an iteration, as last seen
};

}  // namespace awaken::bench
