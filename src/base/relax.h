// SPDX-License-Identifier: Apache-2.0
// A waiting loop's hint to the processor.
#pragma once

namespace awaken {

/// A loop that looks at memory until it changes calls this in each iteration.
inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace awaken
