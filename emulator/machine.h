// SPDX-License-Identifier: Apache-2.0
// The machine that the emulated management libraries (NVML, ROCm SMI) report: as many GPUs as the driver has,
// connected as AWAKEN_EMULATE_LINKS says.
#pragma once

#include <cstdint>

#include "core/configuration.h"

namespace awaken::emulator {

/// The GPU's bus number, as the driver's core gives it.
[[nodiscard]] constexpr unsigned bus_of(const unsigned device) noexcept {
    return 0x10 + device;
}

/// The environment, read at the first question.
[[nodiscard]] const Configuration& configuration();

/// The device with an address in any of the usual spellings ("0000:10:00.0", "00000000:10:00.0"); -1 when there is
/// none.
[[nodiscard]] int device_at(const char* address) noexcept;

}  // namespace awaken::emulator
