// SPDX-License-Identifier: Apache-2.0
#include "base/step_probe.h"

#ifdef AWAKEN_STEP_PROBE

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace awaken {
namespace {

std::atomic<Step*> steps{nullptr};

}  // namespace

Step::Step(const char* const name) noexcept : _name(name), _next(steps.load()) {
    while (!steps.compare_exchange_weak(_next, this)) {
    }
    static const int at_end = std::atexit([] { print_all(); });
    static_cast<void>(at_end);
}

void Step::print_all() noexcept {
    for (const Step* step = steps.load(); step != nullptr; step = step->_next) {
        const std::uint64_t count = step->_count.load();
        if (count != 0) {
            std::fprintf(stderr, "awaken step: process %d, %-40s %10llu times, %8.0f ns each\n",
                         static_cast<int>(getpid()), step->_name, static_cast<unsigned long long>(count),
                         static_cast<double>(step->_sum.load()) / static_cast<double>(count));
        }
    }
}

}  // namespace awaken

#endif
