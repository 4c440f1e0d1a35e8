// Steps of messages that a GPU takes by itself, in the order of a stream: wait for a word, copy, write words.
//
// A word counts messages. The words that a kernel waits for lie in memory of its own GPU, or of the host; the GPU of
// another process writes them.
//
// A step in a graph counts its replays, and adds the count to all its numbers: so a replay needs no new arguments.
#pragma once

#include "copy_bytes.h"
#include "portable.h"
#include "wait_for_word.h"

namespace awaken::kernels {

/// What the CPU says of a step when its message has come: written to host memory before the step's word. Addresses are
/// numbers.
struct Found {
    u64 source;
    u64 bytes;      ///< as many as there are, which may be fewer than the step has room for
    u64 told_host;  ///< 0: nobody
    u64 told_host_number;
};

struct Step {
    device_pointer<const u32> awaited;   ///< null: nothing is waited for
    device_pointer<const u32> released;  ///< host memory: the CPU gives the step up by writing this word
    device_pointer<u8> target;
    device_pointer<const u8> source;
    u64 bytes;
    device_pointer<u32> told;       ///< null: nobody is told
    device_pointer<u64> told_host;  ///< in host memory; null: nobody
    u64 told_host_number;
    device_pointer<u32> counter;  ///< a word of this GPU's memory, zero before and after, of this step alone
    device_pointer<u32> replays;  ///< a word of this GPU's memory, of this step alone; null: not in a graph
    /// A word of this GPU's memory that counts entries. `told_host` is a ring then, which gets an entry: its number,
    /// from 1, in the upper half, and `told_host_number`, which stays as it is, in the lower. Null: no ring.
    device_pointer<u32> entries;
    device_pointer<const Found> found;  ///< in host memory, valid once `awaited` is reached; null: all is said here
    u32 number;                         ///< wanted of `awaited` and `released`
    u32 told_number;
    u32 blocks;  ///< at least 1
    u32 delay;   ///< looks at `released` before the copy
};
/// All steps travel in the arguments, which cost the launch some time. So there are two sizes.
struct FewSteps {
    Step list[4];
};
struct ManySteps {
    Step list[32];
};

/// Entries of a ring; see stream/steps.h.
constexpr u32 kRingEntries = 4096;

/// True when the word is reached, false when the CPU gives the step up.
AWAKEN_DEVICE bool wait_for_step(const Step& step, u32 number) {
    if (!wait_for_word(step.awaited, step.released, number)) {
        return false;
    }
    for (unsigned looks = 0; looks < step.delay; ++looks) {
        if (is_reached(load_acquire(step.released), number)) {
            return false;
        }
    }
    return true;
}

/// Waits for all that a step waits for, and says what to copy and whom to tell. No bytes: the CPU gives the step up.
AWAKEN_DEVICE Found wait_for_all(const Step& step, u32 number) {
    Found found = {address(step.source), step.bytes, 0, 0};
    if (address(step.awaited) != 0 && !wait_for_step(step, number)) {
        found.bytes = 0;
    } else if (address(step.found) != 0) {
        found = step.found[0];
        found.bytes = found.bytes < step.bytes ? found.bytes : step.bytes;
    }
    return found;
}

/// What is told of a step when all its blocks are through.
AWAKEN_DEVICE void tell(const Step& step, const Found& found, u32 replay) {
    if (found.told_host != 0) {
        store_release(device_pointer<u64>(found.told_host), found.told_host_number);
    }
    if (address(step.told) != 0) {
        store_release(step.told, step.told_number + replay);
    }
    if (address(step.told_host) == 0) {
        return;
    }
    if (address(step.entries) == 0) {
        store_release(step.told_host, step.told_host_number + replay);
    } else {
        const u32 entry = atomic_add(step.entries, 1U);
        store_release(step.told_host + entry % kRingEntries, ((u64)(entry + 1) << 32) + step.told_host_number);
    }
}

/// What the threads of a block do for a step that has `blocks` blocks. `found` lies in shared memory.
AWAKEN_DEVICE void take_step(const Step& step, Found* found, u32 block, u32 blocks) {
    u32 replay = 0;
    if (thread_index().x == 0) {
        replay = address(step.replays) != 0 ? step.replays[0] + 1 : 0;
        found[0] = wait_for_all(step, step.number + replay);
    }
    block_barrier();
    copy_bytes(step.target, device_pointer<const u8>(found[0].source), found[0].bytes,
               (u64)block * block_size().x + thread_index().x, (u64)blocks * block_size().x);
    block_barrier_before_fence();
    if (thread_index().x != 0) {
        return;
    }
    if (blocks > 1) {
        device_fence();
        if (atomic_add(step.counter, 1U) != blocks - 1) {
            return;
        }
        step.counter[0] = 0;
    }
    if (replay != 0) {
        step.replays[0] = replay;
    }
    tell(step, found[0], replay);
}

/// Take several steps. Launch with as many blocks in x as all steps have together. Blocks start in their order, so
/// steps that wait come after those that wait for nothing: then none keeps another process from what it waits for.
template <typename Steps>
AWAKEN_DEVICE void take_steps(const Steps& steps, Found* found) {
    u32 block = block_index().x;
    u32 at = 0;
    for (; block >= steps.list[at].blocks; ++at) {
        block -= steps.list[at].blocks;
    }
    take_step(steps.list[at], found, block, steps.list[at].blocks);
}
AWAKEN_KERNEL(awaken_few_steps, FewSteps steps) {
    AWAKEN_SHARED(Found, found, 1);
    take_steps(steps, found);
}
AWAKEN_KERNEL(awaken_steps, ManySteps steps) {
    AWAKEN_SHARED(Found, found, 1);
    take_steps(steps, found);
}

}  // namespace awaken::kernels
