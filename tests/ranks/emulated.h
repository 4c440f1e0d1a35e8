// SPDX-License-Identifier: Apache-2.0
// What the emulated driver counts and does for tests (docs/emulator.md, functions for tests).
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace ranks {

/// A function of the emulated driver; null where this process does not use it.
template <typename Function>
[[nodiscard]] Function* emulator_function(const char* name) {
    void* const library = dlopen("libawaken-emulator.so", RTLD_NOW | RTLD_NOLOAD);
    return library != nullptr ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

/// The same for programs that show nothing without it.
template <typename Function>
[[nodiscard]] Function& required_emulator_function(const char* name) {
    auto* const found = emulator_function<Function>(name);
    if (found == nullptr) {
        std::printf("FAIL %s: the emulated driver is not there\n", name);
        std::exit(1);
    }
    return *found;
}

/// How often this process has mapped memory of another one, and unmapped it; zeros where nobody counts.
struct Mappings {
    std::uint64_t opened = 0, closed = 0;
    [[nodiscard]] std::uint64_t open() const { return opened - closed; }
};
[[nodiscard]] inline Mappings mappings() {
    Mappings now;
    if (auto* const count = emulator_function<void(std::uint64_t*, std::uint64_t*)>("awaken_emulator_mappings")) {
        count(&now.opened, &now.closed);
    }
    return now;
}

}  // namespace ranks
