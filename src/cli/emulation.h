// SPDX-License-Identifier: Apache-2.0
// The settings of the emulated GPU driver, checked before the program starts.
#pragma once

namespace awaken::cli {

/// Throws Error when AWAKEN_EMULATE or a variable that belongs to it is wrong, by the emulated driver's own rules. The
/// driver itself could only fail in the middle of the program.
void check_emulation_settings();

}  // namespace awaken::cli
