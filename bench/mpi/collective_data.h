// SPDX-License-Identifier: Apache-2.0
// The data of a check: written before the call, and compared with what must be there after it, piece by piece, so that
// buffers may be larger than what is to spare of host memory.
//
// Compiled once per MPI ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/memory.h"
#include "engine/pattern.h"
#include "mpi/collective_plan.h"
#include "mpi/collective_type.h"

namespace awaken::bench {

/// What contents of regions depend on.
struct DataFacts {
    ElementType type;
    int ranks;
    std::uint64_t iteration;
};

/// Sets the whole buffer: regions as they say, everything else to a background value. Guards are set anew.
void write_data(Buffer& buffer, const std::vector<Region>& regions, const DataFacts& facts);

/// Compares the first `elements` elements with what was written as `before` and then overwritten by `after`, of which a
/// derived type transmits a part of each message only. `name`: of the buffer, for the report. Damaged guards count too.
[[nodiscard]] Mismatch compare_data(const Buffer& buffer, std::size_t elements, const std::vector<Region>& before,
                                    const std::vector<Region>& after, const MessageType& message,
                                    const DataFacts& facts, const std::string& name);

}  // namespace awaken::bench
