// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <cstdio>

namespace awaken::emulator {

const Configuration& configuration() {
    static const Configuration read = read_configuration();
    return read;
}

int device_at(const char* const address) noexcept {
    unsigned domain = 0;
    unsigned bus = 0;
    if (address == nullptr || std::sscanf(address, "%x:%x:", &domain, &bus) != 2 || domain != 0) {
        return -1;
    }
    const int device = static_cast<int>(bus) - static_cast<int>(bus_of(0));
    return device >= 0 && device < configuration().devices ? device : -1;
}

}  // namespace awaken::emulator
