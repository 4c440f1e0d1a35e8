// SPDX-License-Identifier: Apache-2.0
// Lists of kinds of memory, as info values have them.
#include <gtest/gtest.h>

#include "gpu/memory_kinds.h"

namespace awaken::gpu {
namespace {

constexpr Vendor kCuda[] = {Vendor::cuda};
constexpr Vendor kHip[] = {Vendor::hip};

TEST(MemoryKinds, ListsAreReadInAnyForm) {
    const std::vector<NamedKind> kinds = parse_kinds(" System,,MPI:win_allocate:alloc_mem , cuda:Device,cuda:device,");
    ASSERT_EQ(kinds.size(), 3U);
    EXPECT_EQ(kinds[0].text(), "system");
    EXPECT_EQ(kinds[1].text(), "mpi:alloc_mem:win_allocate");
    EXPECT_EQ(kinds[2].text(), "cuda:device");
    EXPECT_TRUE(parse_kinds("").empty());
    EXPECT_TRUE(parse_kinds(":device").empty());
}

TEST(MemoryKinds, AllAreProvidedWithoutARequest) {
    EXPECT_EQ(provided_kinds({}, {}), "system,mpi");
    EXPECT_EQ(provided_kinds(kCuda, {}), "system,mpi,cuda,cuda:device,cuda:host,cuda:managed");
    EXPECT_EQ(provided_kinds(kHip, {}), "system,mpi,rocm,rocm:device,rocm:host,rocm:managed");
}

TEST(MemoryKinds, ARequestNarrowsTheAnswer) {
    EXPECT_EQ(provided_kinds(kCuda, "system"), "system,mpi");
    EXPECT_EQ(provided_kinds(kCuda, ""), "system,mpi");
    EXPECT_EQ(provided_kinds(kCuda, "cuda:device,rocm:device,cuda:texture,acme"), "system,mpi,cuda:device");
    EXPECT_EQ(provided_kinds(kCuda, "cuda"), "system,mpi,cuda,cuda:device,cuda:host,cuda:managed");
    EXPECT_EQ(provided_kinds(kHip, "mpi:alloc_mem,mpi:stack,ROCM:Managed"), "system,mpi,mpi:alloc_mem,rocm:managed");
    EXPECT_EQ(provided_kinds({}, "cuda,system:page"), "system,mpi");
}

TEST(MemoryKinds, WhatTheMpiAddsComesAtTheEnd) {
    EXPECT_EQ(joined_kinds("system,mpi,cuda", "mpi,system,level_zero:device"), "system,mpi,cuda,level_zero:device");
}

TEST(MemoryKinds, AssertionsAreOfProvidedKinds) {
    EXPECT_TRUE(are_provided("system", "system,mpi"));
    EXPECT_TRUE(are_provided("", "system,mpi"));
    EXPECT_TRUE(are_provided("mpi:alloc_mem", "system,mpi"));
    EXPECT_FALSE(are_provided("mpi:stack", "system,mpi"));
    EXPECT_FALSE(are_provided("system,cuda:device", "system,mpi"));
    EXPECT_TRUE(are_provided("CUDA:device,system", "system,mpi,cuda"));
    EXPECT_FALSE(are_provided("cuda", "system,mpi,cuda:device"));
    EXPECT_TRUE(are_provided("cuda", "system,mpi,cuda:device,cuda:host,cuda:managed"));
    EXPECT_FALSE(are_provided("acme", "system,mpi"));
    EXPECT_TRUE(are_provided("level_zero", "system,mpi,level_zero"));
}

TEST(MemoryKinds, WhatTheCpuReaches) {
    EXPECT_TRUE(are_host_kinds("system"));
    EXPECT_TRUE(are_host_kinds("system,mpi:alloc_mem,cuda:host,rocm:host"));
    EXPECT_FALSE(are_host_kinds("system,cuda"));
    EXPECT_FALSE(are_host_kinds("cuda:managed"));
    EXPECT_FALSE(are_host_kinds("system,rocm:device"));
    EXPECT_FALSE(are_host_kinds("level_zero:host"));
}

TEST(MemoryKinds, WhatToAllocate) {
    EXPECT_EQ(kind_to_allocate("cuda:device", Vendor::cuda), MemoryKind::device);
    EXPECT_EQ(kind_to_allocate("cuda", Vendor::cuda), MemoryKind::device);
    EXPECT_EQ(kind_to_allocate("cuda:host", Vendor::cuda), MemoryKind::pinned);
    EXPECT_EQ(kind_to_allocate("mpi:alloc_mem,rocm:managed", Vendor::hip), MemoryKind::managed);
    EXPECT_EQ(kind_to_allocate("rocm:device,cuda:device", Vendor::cuda), MemoryKind::device);
    EXPECT_EQ(kind_to_allocate("rocm:device", Vendor::cuda), MemoryKind::host);
    EXPECT_EQ(kind_to_allocate("cuda:device,system", Vendor::cuda), MemoryKind::host);
    EXPECT_EQ(kind_to_allocate("cuda:texture", Vendor::cuda), MemoryKind::host);
    EXPECT_EQ(kind_to_allocate("acme", Vendor::cuda), MemoryKind::host);
    EXPECT_EQ(kind_to_allocate("", Vendor::cuda), MemoryKind::host);
    EXPECT_EQ(kind_to_allocate("cuda:device", Vendor::none), MemoryKind::host);
}

}  // namespace
}  // namespace awaken::gpu
