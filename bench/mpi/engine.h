// SPDX-License-Identifier: Apache-2.0
// The engine: sizes, repetition, contenders, statistics and output around a benchmark.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/result.h"
#include "mpi/benchmark.h"

namespace awaken::bench {

/// An error that all ranks know of, so that all can end in order. Rank 0 is to print it.
class AgreedError : public Error {
  public:
    using Error::Error;
};

/// Runs environment.test as the options ask, and prints. The answer is the exit status of the process, the same on all
/// ranks: 1 when a validation failed. Throws AgreedError for what all ranks can come to know (no contender can run, no
/// memory on one of them); other exceptions are for end_all(). Collective.
[[nodiscard]] int measure(const Environment& environment, const Manifest& manifest);

/// init and hello: prints, as measure(). `init_seconds`: how long MPI_Init took at this rank. Collective.
[[nodiscard]] int report_startup(const Environment& environment, const Manifest& manifest, double init_seconds);

/// Whether the other ranks surely come to agree(), or may be waiting for a message of a rank that has a problem.
enum class Peers : std::uint8_t { come, may_wait };

/// Throws AgreedError on all ranks when any has a problem, with the text of the lowest rank that has one.
/// With Peers::may_wait, a rank with a problem to which the others do not come within seconds ends all. Collective.
void agree(MPI_Comm communicator, const std::optional<Error>& problem, Peers peers = Peers::come);

/// As agree(), for what only leaves out a contender: throws Unavailable instead. Collective.
void agree_to_run(MPI_Comm communicator, const std::optional<Error>& problem);

/// Prints the message with the rank that has it, and ends all ranks with a non-zero status. For errors that the other
/// ranks cannot know of, and would wait for for ever.
[[noreturn]] void end_all(MPI_Comm communicator, const std::string& message) noexcept;

}  // namespace awaken::bench
