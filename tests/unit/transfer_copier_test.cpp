// SPDX-License-Identifier: Apache-2.0
#include "transfer/copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "base/error.h"
#include "random_layout.h"
#include "watched_gpu.h"

namespace awaken::transfer {
namespace {

using emulator_test::info_of;
using emulator_test::view;
using emulator_test::WatchedGpu;
using test::pick;
using test::Random;

std::vector<std::byte> random_bytes(Random& random, const std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(random());
    }
    return bytes;
}

/// Device memory filled with random bytes, and a host copy of what it holds.
struct DeviceBuffer {
    DeviceBuffer(WatchedGpu& gpu, Random& random, const std::size_t size, const int device = 0)
        : content(random_bytes(random, size)) {
        void* memory = nullptr;
        EXPECT_TRUE(gpu.allocate(device, size, memory).ok());
        pointer = static_cast<std::byte*>(memory);
        std::memcpy(view(pointer), content.data(), size);
        info = info_of(gpu, pointer);
    }
    [[nodiscard]] bool holds(const std::vector<std::byte>& expected) const {
        return std::memcmp(view(pointer), expected.data(), expected.size()) == 0;
    }
    std::vector<std::byte> content;
    std::byte* pointer = nullptr;
    gpu::PointerInfo info;
};

/// A copier with what it needs.
struct Copying {
    explicit Copying(WatchedGpu& watched) : gpu(watched) {}
    WatchedGpu& gpu;
    PinnedPool pool{std::size_t{64} << 20};
    DeviceCopies copies{gpu, pool, Tuning{}, CopyEngine::automatic};
    Copier copier{gpu, copies, pool};
};

Layout strided(const std::int64_t width, const std::int64_t rows, const std::int64_t pitch) {
    return Layout({{0, width, rows, pitch, {}}}, 0, rows * pitch);
}

/// Gathers, scatters and mirrors, and compares with pack and unpack on a host copy.
void check_all(Copier& copier, DeviceBuffer& device, const Layout& layout, const std::int64_t origin,
               const std::int64_t count, const std::int64_t limit, const gpu::PointerInfo* info, Random& random) {
    std::byte* const buffer = device.pointer + origin;
    const auto moved = static_cast<std::size_t>(std::min(limit, layout.size() * std::max<std::int64_t>(count, 0)));

    std::vector<std::byte> packed(moved + 4, std::byte{0xEE}), expected = packed;
    pack(layout, device.content.data() + origin, count, expected.data(), limit);
    copier.gather(layout, buffer, count, limit, packed.data(), info);
    ASSERT_EQ(packed, expected);
    ASSERT_TRUE(device.holds(device.content)) << "gathering wrote to the user's memory";

    std::vector<std::byte> mirror = random_bytes(random, device.content.size()), expected_mirror = mirror;
    std::vector<std::byte> everything(static_cast<std::size_t>(layout.size() * std::max<std::int64_t>(count, 0)));
    pack(layout, device.content.data() + origin, count, everything.data(), INT64_MAX);
    unpack(layout, expected_mirror.data() + origin, count, everything.data(), INT64_MAX);
    copier.gather_mirror(layout, buffer, count, mirror.data() + origin, info);
    ASSERT_EQ(mirror, expected_mirror);

    const std::vector<std::byte> news = random_bytes(random, moved);
    unpack(layout, device.content.data() + origin, count, news.data(), limit);
    copier.scatter(layout, buffer, count, limit, news.data(), info);
    ASSERT_TRUE(device.holds(device.content)) << "scatter wrote wrong bytes, or gaps";

    const std::vector<std::byte> source = random_bytes(random, device.content.size());
    pack(layout, source.data() + origin, count, everything.data(), INT64_MAX);
    unpack(layout, device.content.data() + origin, count, everything.data(), INT64_MAX);
    copier.scatter_mirror(layout, buffer, count, source.data() + origin, info);
    ASSERT_TRUE(device.holds(device.content)) << "scatter_mirror wrote wrong bytes, or gaps";
}

TEST(Copier, OneRunIsOneCopyAfterTheProgramsEarlierWork) {
    WatchedGpu gpu;
    Random random(1);
    DeviceBuffer device(gpu, random, 5000);
    Copying copying(gpu);
    Copier& copier = copying.copier;
    int (*late_memset)(std::uintptr_t, unsigned char, std::size_t) = nullptr;
    emulator_test::Library("libcuda.so.1").bind(late_memset, "cuMemsetD8_v2");
    const auto fill = [&] { EXPECT_EQ(late_memset(reinterpret_cast<std::uintptr_t>(device.pointer), 7, 5000), 0); };
    ASSERT_TRUE(gpu.run_on(0, fill).ok());
    std::vector<std::byte> packed(5000);
    copier.gather(Layout::contiguous(50), device.pointer, 100, INT64_MAX, packed.data(), &device.info);
    EXPECT_EQ(packed, std::vector<std::byte>(5000, std::byte{7})) << "a memset without a synchronise was overtaken";
    EXPECT_EQ(gpu.calls("copy"), 1);
    EXPECT_EQ(gpu.calls("synchronize_stream"), 0);
    copier.scatter(Layout::contiguous(50), device.pointer, 100, INT64_MAX, packed.data(), &device.info);
    EXPECT_EQ(gpu.calls("create_stream"), 1) << "lanes are kept";
}

TEST(Copier, RowsAreOneCopyWhereAPitchAllowsIt) {
    WatchedGpu gpu;
    Random random(2);
    DeviceBuffer device(gpu, random, 1 << 20);
    Copying copying(gpu);
    Copier& copier = copying.copier;
    std::vector<std::byte> packed(64 * 100);
    copier.scatter(strided(64, 100, 4096), device.pointer, 1, INT64_MAX, packed.data(), &device.info);
    EXPECT_EQ(gpu.calls("copy_2d"), 1);
    EXPECT_EQ(gpu.calls("copy"), 0);
    gpu.reset_calls();
    const Layout backwards({{4096 * 99, 64, 100, -4096, {}}}, 0, 4096 * 100);
    copier.scatter(backwards, device.pointer, 1, INT64_MAX, packed.data(), &device.info);
    EXPECT_EQ(gpu.calls("copy_2d"), 0) << "a negative pitch has no 2-D copy";
    EXPECT_EQ(gpu.calls("copy"), 100);
    EXPECT_EQ(gpu.calls("record_event"), 1) << "many copies, one wait";
}

TEST(Copier, ManySmallPiecesAreGatheredThroughOneCopy) {
    WatchedGpu gpu;
    Random random(3);
    DeviceBuffer device(gpu, random, 200000);
    Copying copying(gpu);
    Copier& copier = copying.copier;
    std::vector<LayoutNode> nodes;
    std::int64_t at = 0;
    while (at < 190000) {
        nodes.push_back({at, pick(random, 1, 20), 1, 0, {}});
        at += pick(random, 21, 60);
    }
    const Layout layout(std::move(nodes), 0, 200000);
    ASSERT_GT(layout.block_count(), 1000);
    std::vector<std::byte> packed(static_cast<std::size_t>(layout.size())), expected = packed;
    pack(layout, device.content.data(), 1, expected.data(), INT64_MAX);
    copier.gather(layout, device.pointer, 1, INT64_MAX, packed.data(), &device.info);
    EXPECT_EQ(packed, expected);
    EXPECT_EQ(gpu.calls("copy") + gpu.calls("copy_2d"), 1);
    gpu.reset_calls();
    check_all(copier, device, layout, 0, 1, INT64_MAX, &device.info, random);
    EXPECT_GT(gpu.calls("copy"), 1000) << "scattering must not write the gaps";
}

TEST(Copier, GapsOutsideTheAllocationAreNotRead) {
    WatchedGpu gpu;
    Random random(4);
    DeviceBuffer device(gpu, random, 8192);
    Copying copying(gpu);
    Copier& copier = copying.copier;
    // Pieces as of a size-unknown allocation: the runtime gave no base, so only the pieces themselves may be read.
    gpu::PointerInfo unknown = device.info;
    unknown.base = 0;
    unknown.size = 0;
    const Layout layout({{0, 8, 100, -3, {}}}, 0, 0);
    std::vector<std::byte> packed(800);
    copier.gather(layout, device.pointer + 4096, 1, INT64_MAX, packed.data(), &unknown);
    EXPECT_EQ(gpu.calls("copy"), 100) << "piece by piece";
    std::vector<std::byte> expected(800);
    pack(layout, device.content.data() + 4096, 1, expected.data(), INT64_MAX);
    EXPECT_EQ(packed, expected);
}

TEST(Copier, WideTypesGoStretchByStretch) {
    WatchedGpu gpu;
    Random random(5);
    constexpr std::size_t kSize = 3 << 20;
    DeviceBuffer device(gpu, random, kSize);
    Copying copying(gpu);
    Copier& copier = copying.copier;
    // A column of 4-byte values: 2-D copies of 786432/2 rows are slower than reading everything.
    check_all(copier, device, strided(4, kSize / 8, 8), 0, 1, INT64_MAX, &device.info, random);
    check_all(copier, device, strided(4, kSize / 8, 8), 0, 1, 777777, &device.info, random);
    const Layout backwards({{kSize - 8, 4, kSize / 8, -8, {}}}, 0, 0);
    std::vector<std::byte> packed(kSize / 2), expected = packed;
    pack(backwards, device.content.data(), 1, expected.data(), INT64_MAX);
    gpu.reset_calls();
    copier.gather(backwards, device.pointer, 1, INT64_MAX, packed.data(), &device.info);
    EXPECT_EQ(packed, expected);
    EXPECT_LT(gpu.calls("copy"), 20);
}

TEST(Copier, RefusedScratchMemoryIsReplacedByOrdinary) {
    WatchedGpu gpu;
    Random random(6);
    DeviceBuffer device(gpu, random, 100000);
    gpu.fail("allocate_pinned", 0, 1000000);
    Copying copying(gpu);
    Copier& copier = copying.copier;
    check_all(copier, device, strided(4, 10000, 10), 0, 1, INT64_MAX, &device.info, random);
    EXPECT_GT(gpu.calls("allocate_pinned"), 0);
}

class RandomCopies : public ::testing::TestWithParam<int> {};

TEST_P(RandomCopies, EqualPackAndUnpackOnTheHost) {
    Random random(static_cast<std::uint64_t>(GetParam()) + 1000);
    WatchedGpu gpu;
    Copying copying(gpu);
    Copier& copier = copying.copier;
    DeviceBuffer device(gpu, random, 40000, static_cast<int>(pick(random, 0, 1)));
    for (int round = 0; round < 40; ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        const Layout layout(test::random_nodes(random, static_cast<int>(pick(random, 0, 3))), 0,
                            pick(random, -300, 300));
        const std::int64_t count = pick(random, 0, 8);
        const Layout::Span span = layout.span(count);
        if (span.end - span.begin > 40000) {
            continue;
        }
        const std::int64_t origin = -span.begin + pick(random, 0, 40000 - (span.end - span.begin));
        const std::int64_t limit = pick(random, 0, 1) == 0 ? INT64_MAX : pick(random, 0, layout.size() * count + 2);
        const gpu::PointerInfo* const info = pick(random, 0, 1) == 0 ? &device.info : nullptr;
        ASSERT_NO_FATAL_FAILURE(check_all(copier, device, layout, origin, count, limit, info, random));
    }
    EXPECT_EQ(gpu.calls("synchronize_stream"), 0);
    copying.copies.shut_down();
    EXPECT_EQ(gpu.abandoned_streams(), 0);
    EXPECT_EQ(gpu.live_streams(), 0);
    EXPECT_EQ(gpu.live_events(), 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomCopies, ::testing::Range(0, 12));

TEST(Copier, BlocksOfDifferentKindsOfMemory) {
    Random random(8);
    WatchedGpu gpu;
    Copying copying(gpu);
    Copier& copier = copying.copier;
    DeviceBuffer first(gpu, random, 4096, 0), second(gpu, random, 4096, 1);
    void *managed_memory = nullptr, *pinned_memory = nullptr;
    ASSERT_TRUE(gpu.allocate_managed(0, 4096, managed_memory).ok());
    ASSERT_TRUE(gpu.allocate_pinned(4096, pinned_memory).ok());
    auto* const managed = static_cast<std::byte*>(managed_memory);
    auto* const pinned = static_cast<std::byte*>(pinned_memory);
    std::vector<std::byte> host = random_bytes(random, 4096);
    std::memcpy(managed, host.data(), 4096);
    std::memcpy(pinned, host.data(), 4096);

    // Absolute addresses; equal lengths, so that blocks of different memory look like rows of one pattern.
    std::vector<LayoutNode> nodes;
    for (std::byte* const base : {first.pointer, host.data(), second.pointer, managed, pinned}) {
        for (const std::int64_t offset : {100, 300, 500}) {
            nodes.push_back({static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(base)) + offset, 40, 1, 0, {}});
        }
    }
    const Layout layout(std::move(nodes), 0, 0);
    ASSERT_EQ(layout.size(), 600);
    std::vector<std::byte> packed(600), expected;
    for (const std::byte* const base : std::vector<const std::byte*>{first.content.data(), host.data(),
                                                                     second.content.data(), host.data(), host.data()}) {
        for (const int offset : {100, 300, 500}) {
            expected.insert(expected.end(), base + offset, base + offset + 40);
        }
    }
    copier.gather(layout, nullptr, 1, INT64_MAX, packed.data(), nullptr);
    EXPECT_EQ(packed, expected);
    EXPECT_EQ(gpu.calls("create_stream"), 2) << "one lane a device";

    const std::vector<std::byte> news = random_bytes(random, 600);
    copier.scatter(layout, nullptr, 1, INT64_MAX, news.data(), nullptr);
    std::vector<std::byte> back(600);
    copier.gather(layout, nullptr, 1, INT64_MAX, back.data(), nullptr);
    EXPECT_EQ(back, news);
    EXPECT_TRUE(std::equal(host.begin() + 300, host.begin() + 340, news.begin() + 160));
    EXPECT_EQ(view(first.pointer)[99], first.content[99]);
    EXPECT_EQ(view(first.pointer)[140], first.content[140]);
}

TEST(Copier, RunsThatCrossFromOneAllocationIntoTheNext) {
    WatchedGpu gpu;
    Random random(9);
    Copying copying(gpu);
    Copier& copier = copying.copier;
    constexpr std::size_t kPage = 65536;  // a multiple of the page size everywhere
    // More than a block of the driver's has room for: in one of the blocks five of them touch each other.
    std::set<std::byte*> parts;
    while (parts.size() < 40) {
        void* memory = nullptr;
        ASSERT_TRUE(gpu.allocate(0, kPage, memory).ok());
        parts.insert(static_cast<std::byte*>(memory));
    }
    const auto touching = std::find_if(parts.begin(), parts.end(), [&](std::byte* const first) {
        return parts.contains(first + kPage) && parts.contains(first + 2 * kPage) &&
               parts.contains(first + 3 * kPage) && parts.contains(first + 4 * kPage);
    });
    ASSERT_NE(touching, parts.end());
    // And host memory, some of which is registered.
    alignas(kPage) static std::byte host[5 * kPage];
    ASSERT_TRUE(gpu.register_host(host + 2 * kPage, kPage).ok());

    const std::vector<std::byte> content = random_bytes(random, 5 * kPage);
    for (std::byte* const first : {*touching, host}) {
        std::memcpy(view(first), content.data(), 5 * kPage);
        for (const Layout& layout : {Layout({{100, 5 * kPage - 200, 1, 0, {}}}, 0, 0), strided(1000, 250, 1300),
                                     Layout({{4 * kPage + 10, 3000, 100, -2600, {}}}, 0, 0)}) {
            std::vector<std::byte> packed(static_cast<std::size_t>(layout.size())), expected = packed;
            pack(layout, content.data(), 1, expected.data(), INT64_MAX);
            copier.gather(layout, first, 1, INT64_MAX, packed.data(), nullptr);
            ASSERT_EQ(packed, expected);
            // Overlapping rows are an error in a receive, so these write what they read.
            copier.scatter(layout, first, 1, INT64_MAX, packed.data(), nullptr);
            ASSERT_EQ(std::memcmp(view(first), content.data(), 5 * kPage), 0);
        }
    }
    EXPECT_TRUE(gpu.unregister_host(host + 2 * kPage).ok());
}

TEST(Copier, HostMemoryNeedsNoGpu) {
    Random random(10);
    WatchedGpu gpu;
    Copying copying(gpu);
    Copier& copier = copying.copier;
    std::vector<std::byte> host = random_bytes(random, 4096), packed(1000), expected(1000);
    const Layout layout = strided(10, 100, 40);
    pack(layout, host.data(), 1, expected.data(), INT64_MAX);
    const gpu::PointerInfo info;
    copier.gather(layout, host.data(), 1, INT64_MAX, packed.data(), &info);
    EXPECT_EQ(packed, expected);
    copier.gather(layout, host.data(), 1, INT64_MAX, packed.data(), nullptr);
    EXPECT_EQ(packed, expected);
    copier.copy(packed.data(), host.data(), 1000, host.data(), info);
    EXPECT_EQ(std::memcmp(packed.data(), host.data(), 1000), 0);
    EXPECT_EQ(gpu.calls("create_stream"), 0);
}

TEST(Copier, PlainCopyBothWays) {
    Random random(11);
    WatchedGpu gpu;
    Copying copying(gpu);
    Copier& copier = copying.copier;
    DeviceBuffer device(gpu, random, 1000);
    std::vector<std::byte> host(1000);
    copier.copy(host.data(), device.pointer, 1000, device.pointer, device.info);
    EXPECT_EQ(host, device.content);
    const std::vector<std::byte> news = random_bytes(random, 1000);
    copier.copy(device.pointer, news.data(), 1000, device.pointer, device.info);
    EXPECT_TRUE(device.holds(news));
    copier.copy(nullptr, nullptr, 0, device.pointer, device.info);
}

/// Every call that can fail, failing at its first, second, ... use: an awaken::Error or success, never unfinished work.
class FailingCalls : public ::testing::TestWithParam<const char*> {};

TEST_P(FailingCalls, EndInAnErrorAfterTheStreamHasDrained) {
    int errors = 0;
    for (int after = 0; after < 6; ++after) {
        SCOPED_TRACE("after " + std::to_string(after));
        Random random(12);
        WatchedGpu gpu;
        DeviceBuffer device(gpu, random, 100000);
        Copying copying(gpu);
        Copier& copier = copying.copier;
        gpu.fail(GetParam(), after);
        // Irregular pieces in two distant groups and a large run: single copies, 2-D copies and stretches.
        std::vector<LayoutNode> nodes;
        for (std::int64_t i = 0; i < 200; ++i) {
            nodes.push_back({i * i % 97 + 100 * i, 3 + i % 7, 1, 0, {}});
        }
        nodes.push_back({50000, 40000, 1, 0, {}});
        nodes.push_back({92000, 8, 20, 300, {}});
        const Layout layout(std::move(nodes), 0, 0);
        for (const bool gather : {true, false}) {
            {
                // Freed right after the call, as callers do: work still queued would write into freed memory later.
                std::vector<std::byte> packed(static_cast<std::size_t>(layout.size()));
                try {
                    if (gather) {
                        copier.gather(layout, device.pointer, 1, INT64_MAX, packed.data(), &device.info);
                    } else {
                        copier.scatter(layout, device.pointer, 1, INT64_MAX, packed.data(), &device.info);
                    }
                } catch (const Error& error) {
                    ++errors;
                    EXPECT_NE(error.cause().find("injected fault"), std::string::npos) << error.what();
                    EXPECT_FALSE(error.remedy().empty());
                }
            }
            EXPECT_EQ(gpu.abandoned_streams(), 0);
        }
        copying.copies.shut_down();
        copying.pool.trim();
        EXPECT_EQ(gpu.abandoned_streams(), 0);
        EXPECT_EQ(gpu.live_streams(), 0);
        EXPECT_EQ(gpu.live_events(), 0);
        EXPECT_EQ(gpu.live_bytes(gpu::MemoryKind::pinned), 0U);
    }
    EXPECT_GT(errors, 0) << "the fault never hit";
}

INSTANTIATE_TEST_SUITE_P(Calls, FailingCalls,
                         ::testing::Values("create_stream", "create_event", "order_after_default_stream", "copy",
                                           "copy_2d", "record_event", "query_event"));

TEST(Copier, SeveralThreadsCopyAtTheSameTime) {
    WatchedGpu gpu;
    Copying copying(gpu);
    Copier& copier = copying.copier;
    std::atomic<int> wrong{0};
    const auto work = [&](const int id) {
        Random random(static_cast<std::uint64_t>(id));
        DeviceBuffer device(gpu, random, 30000, id % 2);
        const Layout layout = strided(8, 1000, 24);
        std::vector<std::byte> packed(8000), expected(8000);
        for (int round = 0; round < 20; ++round) {
            pack(layout, device.content.data(), 1, expected.data(), INT64_MAX);
            copier.gather(layout, device.pointer, 1, INT64_MAX, packed.data(), &device.info);
            if (packed != expected) {
                ++wrong;
            }
            packed = random_bytes(random, 8000);
            unpack(layout, device.content.data(), 1, packed.data(), INT64_MAX);
            copier.scatter(layout, device.pointer, 1, INT64_MAX, packed.data(), &device.info);
            if (!device.holds(device.content)) {
                ++wrong;
            }
        }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back(work, i);
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(gpu.live_streams(), 4);
}

}  // namespace
}  // namespace awaken::transfer
