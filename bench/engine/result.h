// SPDX-License-Identifier: Apache-2.0
// The results of a run, as the engine hands them to printers and to JSON.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/catalogue.h"
#include "engine/options.h"
#include "engine/statistics.h"

namespace awaken::bench {

/// Times of nonblocking collectives, microseconds, averages over iterations and ranks unless said otherwise.
struct OverlapTimes {
    double overall = 0, compute = 0, initiate = 0, test = 0, wait = 0;  ///< compute: without the MPI_Test calls in it
    double pure = 0, pure_minimum = 0, pure_maximum = 0;                ///< communication alone; extremes over ranks
    double overlap_percent = 0;                                         ///< 0..100
};

/// One contender at one size. Times in microseconds, bandwidth in MB/s (10^6).
struct Measurement {
    std::size_t size = 0;           ///< bytes, the first column
    std::size_t transmit_size = 0;  ///< bytes that the datatype of -D really moves; 0 without
    std::size_t iterations = 0;
    // What OMB prints.
    double average = 0, minimum = 0, maximum = 0;  ///< latency: of the ranks' means
    double bandwidth = 0;                          ///< MB/s; bandwidth families
    double message_rate = 0;                       ///< messages/s; mbw_mr
    std::optional<OverlapTimes> overlap;
    std::vector<double> percentiles;  ///< those of options.percentiles: us, or MB/s for bandwidth families
    // What we add.
    double cold_first = 0;        ///< us: the very first call at this size, before any warm-up
    std::vector<double> samples;  ///< us per operation: maximum over ranks, in the order they were taken
    std::size_t iterations_per_sample = 1;
    Summary summary;  ///< of samples
    StoppingCriterion::Reason stopped = StoppingCriterion::Reason::iterations_done;
    bool validated = false;
    std::size_t errors = 0;   ///< wrong elements, all ranks
    std::string first_error;  ///< "rank 1, element 17: 3 instead of 5"
};

struct ContenderResult {
    std::string name;
    Mode mode = Mode::waited;
    std::string unavailable;  ///< why it could not run; empty when it did
    std::string description;  ///< "MPICH 5.0.2 through Awaken", "NCCL 2.27.3"
    std::vector<Measurement> measurements;
};

/// What must be known to compare this run with another.
struct Manifest {
    std::vector<std::pair<std::string, std::string>> entries;  ///< key, value; printed in this order
};

struct RunResult {
    const TestInfo* test = nullptr;
    ElementType type = ElementType::char_;
    int ranks = 0;
    int window_size = 0;
    int pairs = 0;
    std::string window_creation;  ///< "MPI_Win_allocate"; one-sided tests
    std::string synchronisation;  ///< "MPI_Win_flush"; one-sided tests
    std::string operation;        ///< "message"; of `first` in the end "first message" and "second message"
    std::size_t allocation = 0;   ///< bytes; `first`
    int kernels = 0;              ///< of an iteration; `halo`
    std::vector<ContenderResult> contenders;
};

}  // namespace awaken::bench
