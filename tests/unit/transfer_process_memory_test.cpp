// SPDX-License-Identifier: Apache-2.0
#include "transfer/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

namespace awaken::transfer {
namespace {

/// A process whose malloc never uses brk (a sanitizer's, say) has no heap of that kind until somebody makes one.
void make_heap() {
    ASSERT_NE(sbrk(1 << 16), reinterpret_cast<void*>(-1));
}

TEST(ProcessMemory, RecognisesTheHeapAndTheStack) {
    make_heap();
    ProcessMemory memory;
    int on_stack = 0;
    EXPECT_TRUE(memory.holds(&on_stack));
    // The heap as it is now: whatever malloc does with it, its last byte is host memory.
    EXPECT_TRUE(memory.holds(static_cast<char*>(sbrk(0)) - 1));
    EXPECT_FALSE(memory.holds(sbrk(0)));
}

TEST(ProcessMemory, LearnsThatTheHeapHasGrown) {
    make_heap();
    ProcessMemory memory;
    void* const grown = sbrk(1 << 16);
    ASSERT_NE(grown, reinterpret_cast<void*>(-1));
    EXPECT_FALSE(memory.holds(static_cast<char*>(grown) + 100));
    memory.learn(static_cast<char*>(grown) + 100);
    EXPECT_TRUE(memory.holds(static_cast<char*>(grown) + 100));
}

TEST(ProcessMemory, DoesNotClaimMappedMemory) {
    ProcessMemory memory;
    void* const mapped = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    EXPECT_FALSE(memory.holds(mapped));
    memory.learn(mapped);
    EXPECT_FALSE(memory.holds(mapped));
    EXPECT_FALSE(memory.holds(nullptr));
    munmap(mapped, 4096);
}

TEST(ProcessMemory, AnotherThreadsStackIsNotTheMainOne) {
    ProcessMemory memory;
    bool main_stack_from_thread = true;
    int on_main_stack = 0;
    std::thread([&] { main_stack_from_thread = memory.holds(&on_main_stack); }).join();
    EXPECT_FALSE(main_stack_from_thread);  // not recognised: the driver is asked instead
}

}  // namespace
}  // namespace awaken::transfer
