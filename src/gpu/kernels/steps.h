// SPDX-License-Identifier: Apache-2.0
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
    u64 awaited;  ///< the word of this GPU that says that the data are there; 0: they are
    u64 released;
    u32 number;  ///< wanted of `awaited` and `released`
};

/// How a step of a graph and its partner's in another process pass messages on without the CPU. The CPU writes it to
/// host memory when the two have met; from then on this GPU has it in memory of its own.
struct Channel {
    u32 open;
    u32 number;     ///< to which the count of replays is added, for the words
    u64 source;     ///< of a receive
    u64 bytes;      ///< of a receive
    u64 awaited;    ///< the word of this GPU that the partner writes
    u64 told;       ///< the word of the partner's GPU
    u64 told_host;  ///< 0: nobody
    u64 begun;      ///< in host memory alone: the replay that goes by the channel, or went last
};
constexpr u64 kBegunAt = 48;

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
    device_pointer<Channel> channel;    ///< in memory of this GPU; null: there is none
    device_pointer<Channel> opening;    ///< the same in host memory
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
    Step list[30];
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

/// How the blocks of a step take it.
struct Course {
    Found found;
    Channel channel;
    u32 goes_by_channel;
    u32 opens, closes;  ///< the channel, for the replays that follow
};

AWAKEN_DEVICE bool is_receive(const Step& step) {
    return address(step.found) != 0;
}

/// Waits for the partner's word. False when the CPU says that the partner has gone: then it sees to the message itself.
AWAKEN_DEVICE bool wait_in_channel(const Step& step, const Channel& channel, u32 replay) {
    if (!is_receive(step) && step.bytes == 0) {
        return true;  // the beginning of a receive
    }
    const u32 number = channel.number + replay - (is_receive(step) ? 0 : 1);
    const auto word = device_pointer<const u32>(channel.awaited);
    constexpr unsigned kLooksPerQuestion = 64;
    for (unsigned looks = 1; !is_reached(load_acquire(word), number); ++looks) {
        if (looks % kLooksPerQuestion == 0 && is_reached(load_acquire(step.released), step.number + replay)) {
            return is_reached(load_acquire(word), number);
        }
        spin_pause();
    }
    return true;
}

/// Waits for all that a step waits for. No bytes: the CPU gives the step up.
AWAKEN_DEVICE void begin_step(const Step& step, u32 replay, Course& course) {
    course.goes_by_channel = course.opens = course.closes = 0;
    course.found = {address(step.source), step.bytes, 0, 0, 0, 0, 0};
    const bool has_channel = address(step.channel) != 0;
    if (has_channel) {
        course.channel = step.channel[0];
        if (course.channel.open != 0) {
            if (wait_in_channel(step, course.channel, replay)) {
                course.goes_by_channel = 1;
                if (is_receive(step)) {
                    course.found.source = course.channel.source;
                    course.found.bytes = course.channel.bytes < step.bytes ? course.channel.bytes : step.bytes;
                }
                return;
            }
            course.closes = 1;
        }
    }
    if (address(step.awaited) != 0 && !wait_for_step(step, step.number + replay)) {
        course.found.bytes = 0;
        return;
    }
    if (is_receive(step)) {
        course.found = step.found[0];
        course.found.bytes = course.found.bytes < step.bytes ? course.found.bytes : step.bytes;
        const auto awaited = device_pointer<const u32>(course.found.awaited);
        const auto released = device_pointer<const u32>(course.found.released);
        if (course.found.awaited != 0 && !wait_for_word(awaited, released, course.found.number)) {
            course.found.bytes = 0;
        }
    }
    if (has_channel && (is_receive(step) || step.bytes != 0)) {
        course.channel = step.opening[0];
        course.opens = course.channel.open;
        // A sender learns of it before its message, and a receiver with its first.
        course.goes_by_channel = is_receive(step) ? 0 : course.opens;
    }
}

/// What is told of a step when all its blocks are through.
AWAKEN_DEVICE void tell(const Step& step, const Course& course, u32 replay) {
    if (course.opens != 0) {
        step.channel[0] = course.channel;
    } else if (course.closes != 0) {
        step.channel[0].open = 0;
    }
    if (course.goes_by_channel != 0) {
        const u32 number = course.channel.number + replay;
        if (!is_receive(step)) {
            if (step.bytes != 0) {
                store_release(device_pointer<u32>(course.channel.told), number);
            }
            store_as_well(device_pointer<u64>(address(step.opening) + kBegunAt), (u64)replay);
        } else {
            store_release(device_pointer<u32>(course.channel.told), number);
            store_as_well(device_pointer<u64>(course.channel.told_host), (u64)number);
            store_as_well(step.told_host, (u64)replay);
        }
        return;
    }
    if (course.found.told_host == 0 && address(step.told) == 0 && address(step.told_host) == 0) {
        return;
    }
    system_fence();  // once for all words: each costs about a microsecond
    if (course.found.told_host != 0) {
        store_as_well(device_pointer<u64>(course.found.told_host), course.found.told_host_number);
    }
    if (address(step.told) != 0) {
        store_as_well(step.told, step.told_number + replay);
    }
    if (address(step.told_host) == 0) {
        return;
    }
    if (address(step.entries) == 0) {
        store_as_well(step.told_host, step.told_host_number + replay);
    } else {
        const u32 entry = atomic_add(step.entries, 1U);
        store_as_well(step.told_host + entry % kRingEntries, ((u64)(entry + 1) << 32) + step.told_host_number);
    }
}

/// What the threads of a block do for a step that has `blocks` blocks. `course` lies in shared memory.
AWAKEN_DEVICE void take_step(const Step& step, Course* course, u32 block, u32 blocks) {
    u32 replay = 0;
    if (thread_index().x == 0) {
        replay = address(step.replays) != 0 ? step.replays[0] + 1 : 0;
        begin_step(step, replay, course[0]);
    }
    block_barrier();
    copy_bytes(step.target, device_pointer<const u8>(course[0].found.source), course[0].found.bytes,
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
    tell(step, course[0], replay);
}

/// Take several steps. Launch with as many blocks in x as all steps have together. Blocks start in their order, so
/// steps that wait come after those that wait for nothing: then none keeps another process from what it waits for.
template <typename Steps>
AWAKEN_DEVICE void take_steps(const Steps& steps, Course* course) {
    u32 block = block_index().x;
    u32 at = 0;
    for (; block >= steps.list[at].blocks; ++at) {
        block -= steps.list[at].blocks;
    }
    take_step(steps.list[at], course, block, steps.list[at].blocks);
}
AWAKEN_KERNEL(awaken_few_steps, FewSteps steps) {
    AWAKEN_SHARED(Course, course, 1);
    take_steps(steps, course);
}
AWAKEN_KERNEL(awaken_steps, ManySteps steps) {
    AWAKEN_SHARED(Course, course, 1);
    take_steps(steps, course);
}

}  // namespace awaken::kernels
