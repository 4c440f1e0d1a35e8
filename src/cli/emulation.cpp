// SPDX-License-Identifier: Apache-2.0
#include "emulation.h"

#if AWAKEN_HAVE_EMULATOR
#include <string>

#include "base/error.h"
#include "core/configuration.h"
#endif

namespace awaken::cli {

#if AWAKEN_HAVE_EMULATOR

void check_emulation_settings() {
    const std::string problem = emulator::read_configuration().problem;
    if (problem.empty()) {
        return;
    }
    // The text has the form "what is wrong; what to write".
    const std::size_t semicolon = problem.find("; ");
    if (semicolon == std::string::npos) {
        throw Error(problem, "see `awaken exec --settings`");
    }
    throw Error(problem.substr(0, semicolon), problem.substr(semicolon + 2));
}

#else

void check_emulation_settings() {}  // emulator_folder() refuses

#endif

}  // namespace awaken::cli
