// SPDX-License-Identifier: Apache-2.0
// libhsa-runtime64.so.1: the runtime beneath HIP, which HIP initialises with its first call. Only so much of it as
// tells whether that has happened.
#include <cstdint>

#include "front_end.h"

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 0x1001, kNotInitialised = 0x100B;
constexpr int kVersionMajor = 0, kVersionMinor = 1;

}  // namespace

AWAKEN_EXPORT int hsa_system_get_info(int attribute, void* value) {
    if (!awaken::emulator::is_core_up()) {
        return kNotInitialised;
    }
    if (value == nullptr || (attribute != kVersionMajor && attribute != kVersionMinor)) {
        return kInvalidArgument;
    }
    *static_cast<std::uint16_t*>(value) = 1;  // HSA 1.1
    return kSuccess;
}
