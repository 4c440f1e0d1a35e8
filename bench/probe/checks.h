// SPDX-License-Identifier: Apache-2.0
// The functions of the conformance matrix: all MPI functions that take a buffer for communication, each with a check
// that carries a call out and compares what arrives.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "probe/trial.h"

namespace awaken::probe {

/// One function. All ranks of a job call `check` alike.
struct Function {
    std::string name;    ///< "MPI_Send"
    const char* family;  ///< "point-to-point", "collective", "neighbourhood", "one-sided", "packing"
    /// Throws CallFailed or WrongData; empty when this MPI lacks the function.
    std::function<void(const Trial&)> check;
};

/// In the order of the table. `large_counts`: also those whose counts are MPI_Count (MPI_Send_c). MPI-IO is not
/// communication, and not among them.
[[nodiscard]] std::vector<Function> functions(bool large_counts);

}  // namespace awaken::probe
