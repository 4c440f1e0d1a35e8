// SPDX-License-Identifier: Apache-2.0
// For AWAKEN_CHECK: bytes that a collective both sends and receives into. MPIs compare addresses at most.
#pragma once

#include <vector>

#include "coll/buffer_views.h"

namespace awaken::AWAKEN_ABI {

/// Throws ClassedError when what this member sends and what it receives share a byte. Gaps of datatypes may overlap.
void check_overlap(const Call& call, const std::vector<BufferView>& sent, const std::vector<BufferView>& received);

}  // namespace awaken::AWAKEN_ABI
