// SPDX-License-Identifier: Apache-2.0
// How a kernel waits for a word that the GPU of another process writes.
//
// A word counts: it is reached when it is at least the wanted number, counted around zero.
#pragma once

#include "portable.h"

namespace awaken::kernels {

AWAKEN_DEVICE bool is_reached(u32 word, u32 number) {
    return (i32)(word - number) >= 0;
}

/// True when the word is reached. False when the CPU gives the wait up by writing `released`, a word of host memory.
AWAKEN_DEVICE bool wait_for_word(device_pointer<const u32> awaited, device_pointer<const u32> released, u32 number) {
    constexpr unsigned kLooksPerQuestion = 64;  // the CPU's word is on the other side of the bus
    for (unsigned looks = 1; !is_reached(load_acquire(awaited), number); ++looks) {
        if (looks % kLooksPerQuestion == 0 && is_reached(load_acquire(released), number)) {
            return is_reached(load_acquire(awaited), number);  // both may be the same word
        }
        spin_pause();
    }
    return true;
}

}  // namespace awaken::kernels
