// SPDX-License-Identifier: Apache-2.0
// Typed memory on the emulated driver: kernels, 2-D copies where there is no compiler, every kind of memory on the
// other side, any part of a message; and how many operations it takes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <set>

#include "base/error.h"
#include "random_layout.h"
#include "transfer/copier.h"
#include "transfer/device_copies.h"
#include "transfer/packer.h"
#include "transfer_device_copies_checks.h"
#include "watched_gpu.h"

namespace awaken::emulator_test {
namespace {

using test::pick;
using transfer::Copier;
using transfer::CopyEngine;
using transfer::DeviceCopies;
using transfer::FlatType;
using transfer::Layout;
using transfer::LayoutNode;
using transfer::Packer;
using transfer::PinnedPool;
using transfer::Tuning;
using transfer::TypedMemory;
using transfer::checks::Buffer;
using transfer::checks::Bytes;
using transfer::checks::Place;
using transfer::checks::Random;
using transfer::checks::random_bytes;

LayoutNode leaf(const std::int64_t offset, const std::int64_t length, const std::int64_t count = 1,
                const std::int64_t stride = 0) {
    LayoutNode node;
    node.offset = offset;
    node.length = length;
    node.count = count;
    node.stride = stride;
    return node;
}

LayoutNode loop(std::vector<LayoutNode> children, const std::int64_t offset, const std::int64_t count,
                const std::int64_t stride) {
    LayoutNode node = leaf(offset, 0, count, stride);
    node.children = std::move(children);
    return node;
}

/// A datatype as the program's: layout and flattened form with one life.
struct Type {
    explicit Type(std::vector<LayoutNode> list, const std::int64_t type_extent)
        : nodes(std::move(list)), extent(type_extent), layout(nodes, 0, extent), flat(layout) {}
    const std::vector<LayoutNode> nodes;
    const std::int64_t extent;
    const Layout layout;
    const FlatType flat;

    [[nodiscard]] std::vector<std::int64_t> offsets(const std::int64_t count) const {
        return test::expand(nodes, count, extent);
    }
};

std::shared_ptr<const FlatType> flat_of(const std::shared_ptr<const Type>& type) {
    return {type, &type->flat};
}

bool distinct(const std::vector<std::int64_t>& offsets) {
    return std::set<std::int64_t>(offsets.begin(), offsets.end()).size() == offsets.size();
}

/// A buffer of elements around `origin`, whose content the test knows.
struct Elements {
    Elements(gpu::Runtime& gpu, const Place place, std::shared_ptr<const Type> its_type, const std::int64_t elements,
             Random& random)
        : type(std::move(its_type)),
          count(elements),
          offsets(type->offsets(count)),
          shift(64 - std::min<std::int64_t>(0, *std::min_element(offsets.begin(), offsets.end()))),
          content(random_bytes(
              random, static_cast<std::size_t>(shift + *std::max_element(offsets.begin(), offsets.end()) + 65))),
          buffer(gpu, place, content.size()) {
        buffer.write(content);
        memory = std::make_shared<const TypedMemory>(flat_of(type), buffer.data() + shift, count);
    }
    [[nodiscard]] DeviceCopies::End end(const std::int64_t at = 0) const {
        DeviceCopies::End result = buffer.end(static_cast<std::size_t>(shift));
        result.typed = memory;
        result.at = at;
        return result;
    }
    [[nodiscard]] Bytes packed(const std::int64_t begin, const std::int64_t end) const {
        Bytes bytes;
        for (std::int64_t at = begin; at < end; ++at) {
            bytes.push_back(content[static_cast<std::size_t>(shift + offsets[static_cast<std::size_t>(at)])]);
        }
        return bytes;
    }
    /// What the buffer holds when positions from `begin` on have become `bytes`.
    void expect_unpacked(const std::int64_t begin, const Bytes& bytes) {
        Bytes expected = content;
        for (std::size_t at = 0; at < bytes.size(); ++at) {
            expected[static_cast<std::size_t>(shift + offsets[static_cast<std::size_t>(begin) + at])] = bytes[at];
        }
        const Bytes found = buffer.read();
        ASSERT_EQ(found.size(), expected.size());
        EXPECT_TRUE(found == expected);
    }

    const std::shared_ptr<const Type> type;
    const std::int64_t count;
    const std::vector<std::int64_t> offsets;
    const std::int64_t shift;
    const Bytes content;
    Buffer buffer;
    std::shared_ptr<const TypedMemory> memory;
};

std::shared_ptr<const Type> random_type(Random& random, const std::int64_t count, const bool for_writing) {
    for (;;) {
        auto type = std::make_shared<const Type>(test::random_nodes(random, static_cast<int>(pick(random, 0, 3))),
                                                 pick(random, -60, 120));
        const std::vector<std::int64_t> offsets = type->offsets(count);
        if (!offsets.empty() && (!for_writing || distinct(offsets))) {
            return type;
        }
    }
}

struct EmulatedPacker : ::testing::Test {
    WatchedGpu gpu;
    PinnedPool pool{std::size_t{64} << 20};
    Random random{11};
    Tuning tuning;
    std::vector<std::string> notes;

    std::unique_ptr<Packer> packer() {
        return std::make_unique<Packer>(gpu, tuning, [this](const std::string& note) { notes.push_back(note); });
    }
};

TEST_F(EmulatedPacker, RandomTypesToAndFromEveryPlace) {
    const auto packing = packer();
    for (const bool pinnable : {true, false}) {
        PinnedPool some(pinnable ? std::size_t{64} << 20 : 0);
        DeviceCopies copies(gpu, some, tuning, CopyEngine::automatic, packing.get());
        for (const Place place : transfer::checks::kPlaces) {
            for (int round = 0; round < 12; ++round) {
                SCOPED_TRACE(to_string(place) + ", round " + std::to_string(round));
                const std::int64_t count = pick(random, 1, 5);
                Elements user(gpu, round % 3 == 0 ? Place::managed : Place::device, random_type(random, count, true),
                              count, random);
                ASSERT_TRUE(copies.can_move(0, *user.memory));
                const auto size = static_cast<std::int64_t>(user.offsets.size());
                const std::int64_t begin = pick(random, 0, size - 1), end = pick(random, begin + 1, size);
                const auto bytes = static_cast<std::size_t>(end - begin);
                const auto skew = static_cast<std::size_t>(pick(random, 0, 9));
                Buffer other(gpu, place, bytes + 32);
                const Bytes before = random_bytes(random, bytes + 32);
                other.write(before);
                copies.start(0, 0, other.end(skew), user.end(begin), bytes).wait();
                Bytes expected = before;
                const Bytes packed = user.packed(begin, end);
                std::copy(packed.begin(), packed.end(), expected.begin() + static_cast<std::ptrdiff_t>(skew));
                ASSERT_TRUE(other.read() == expected);
                const Bytes fresh = random_bytes(random, bytes + 32);
                other.write(fresh);
                copies.start(0, 0, user.end(begin), other.end(skew), bytes).wait();
                user.expect_unpacked(begin, Bytes(fresh.begin() + static_cast<std::ptrdiff_t>(skew),
                                                  fresh.begin() + static_cast<std::ptrdiff_t>(skew + bytes)));
            }
        }
    }
    EXPECT_TRUE(notes.empty()) << notes.front();
}

TEST_F(EmulatedPacker, FromOneTypeToAnother) {
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, tuning, CopyEngine::automatic, packing.get());
    int both_strided = 0, to_list = 0;
    for (int round = 0; round < 300; ++round) {
        SCOPED_TRACE(round);
        const std::int64_t from_count = pick(random, 1, 4), to_count = pick(random, 1, 4);
        Elements from(gpu, Place::device, random_type(random, from_count, false), from_count, random);
        Elements to(gpu, Place::device, random_type(random, to_count, true), to_count, random);
        if (!from.memory->strided) {
            continue;  // a peer's memory is strided, or packed by the peer
        }
        ++(to.memory->strided ? both_strided : to_list);
        ASSERT_TRUE(copies.has_kernels(0));
        ASSERT_TRUE(copies.can_move(0, *from.memory) && copies.can_move(0, *to.memory));
        const auto most = static_cast<std::int64_t>(std::min(from.offsets.size(), to.offsets.size()));
        const std::int64_t bytes = pick(random, 1, most), begin = pick(random, 0, most - bytes);
        copies.start(0, 0, to.end(begin), from.end(begin), static_cast<std::size_t>(bytes)).wait();
        to.expect_unpacked(begin, from.packed(begin, begin + bytes));
    }
    EXPECT_GT(both_strided, 20);
    EXPECT_GT(to_list, 20);
}

TEST_F(EmulatedPacker, WideUnits) {
    // Aligned as programs' arrays are: doubles, pairs of doubles, rows of a cache line, and a last element cut short.
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, tuning, CopyEngine::automatic, packing.get());
    for (const std::int64_t width : {2, 4, 8, 16, 24, 64, 4096}) {
        auto type = std::make_shared<const Type>(std::vector{loop({leaf(0, width, 5, 3 * width)}, 0, 4, 20 * width)},
                                                 90 * width);
        Elements user(gpu, Place::device, type, 3, random);
        const std::int64_t size = 60 * width;
        for (const std::int64_t begin : {std::int64_t{0}, width, 7 * width + width / 2}) {
            SCOPED_TRACE(std::to_string(width) + " from " + std::to_string(begin));
            Buffer packed(gpu, Place::device, static_cast<std::size_t>(size));
            copies.start(0, 0, packed.end(), user.end(begin), static_cast<std::size_t>(size - begin)).wait();
            ASSERT_TRUE(packed.read(static_cast<std::size_t>(size - begin)) == user.packed(begin, size));
        }
    }
}

/// One column of a matrix of doubles.
std::shared_ptr<const Type> column(const std::int64_t rows, const std::int64_t columns) {
    return std::make_shared<const Type>(std::vector{leaf(0, 8, rows, 8 * columns)}, 8 * columns * rows);
}

TEST_F(EmulatedPacker, AColumnIsOneKernel) {
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic, packing.get());
    Copier copier(gpu, copies, pool, packing.get());
    Elements user(gpu, Place::device, column(16384, 4), 1, random);
    const transfer::StagingBlock image = pool.acquire(gpu, 131072);
    const void* const pointer = user.buffer.data();
    gpu::PointerInfo info;
    gpu.classify({&pointer, 1}, &info);
    ASSERT_TRUE(packing->can_move(0, *user.memory));
    gpu.reset_calls();
    copier.gather(flat_of(user.type), user.buffer.data() + user.shift, 1, 131072, image.data(), &info);
    EXPECT_EQ(gpu.calls("launch"), 1);
    EXPECT_EQ(gpu.calls("copy") + gpu.calls("copy_2d"), 0);
    EXPECT_TRUE(Bytes(image.data(), image.data() + 131072) == user.packed(0, 131072));
    gpu.reset_calls();
    const Bytes fresh = random_bytes(random, 131072);
    std::copy(fresh.begin(), fresh.end(), image.data());
    copier.scatter(flat_of(user.type), user.buffer.data() + user.shift, 1, 131072, image.data(), &info);
    EXPECT_EQ(gpu.calls("launch"), 1);
    EXPECT_EQ(gpu.calls("copy") + gpu.calls("copy_2d"), 0);
    user.expect_unpacked(0, fresh);
}

TEST_F(EmulatedPacker, LargerOnesAreOneKernelAndOneCopy) {
    tuning.pack_direct_bytes = 1024;
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic, packing.get());
    Copier copier(gpu, copies, pool, packing.get());
    Elements user(gpu, Place::device, column(16384, 4), 1, random);
    const transfer::StagingBlock image = pool.acquire(gpu, 131072);
    Bytes pageable(131072);
    const void* const pointer = user.buffer.data();
    gpu::PointerInfo info;
    gpu.classify({&pointer, 1}, &info);
    ASSERT_TRUE(packing->can_move(0, *user.memory));
    for (std::byte* const host : {image.data(), pageable.data()}) {
        // Ordinary memory gets the bytes through blocks of pinned memory, to which kernels pack.
        const bool is_pinned = host == image.data();
        gpu.reset_calls();
        copier.gather(flat_of(user.type), user.buffer.data() + user.shift, 1, 131072, host, &info);
        EXPECT_EQ(gpu.calls("launch"), is_pinned ? 1 : 2);
        EXPECT_EQ(gpu.calls("copy") + gpu.calls("copy_2d"), is_pinned ? 1 : 0);
        EXPECT_TRUE(Bytes(host, host + 131072) == user.packed(0, 131072));
        gpu.reset_calls();
        copier.scatter(flat_of(user.type), user.buffer.data() + user.shift, 1, 131072, host, &info);
        EXPECT_EQ(gpu.calls("launch"), is_pinned ? 1 : 2);
        EXPECT_EQ(gpu.calls("copy") + gpu.calls("copy_2d"), is_pinned ? 1 : 0);
        user.expect_unpacked(0, {});
    }
}

TEST_F(EmulatedPacker, PartsBeyondTheScratchMemory) {
    tuning.pack_direct_bytes = 0;
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic, packing.get());
    Copier copier(gpu, copies, pool, packing.get());
    // Rows of 4000 bytes: enough for more than one part without too many emulated threads.
    const std::int64_t rows = static_cast<std::int64_t>(Packer::kScratchBytes) / 4000 + 300;
    const auto type = std::make_shared<const Type>(std::vector{leaf(0, 4000, rows, 4016)}, 4016 * rows);
    Elements user(gpu, Place::device, type, 1, random);
    PinnedPool large(std::size_t{64} << 20);
    const transfer::StagingBlock host = large.acquire(gpu, user.offsets.size());
    ASSERT_TRUE(host.pinned());
    const void* const pointer = user.buffer.data();
    gpu::PointerInfo info;
    gpu.classify({&pointer, 1}, &info);
    gpu.reset_calls();
    const auto bytes = static_cast<std::int64_t>(user.offsets.size());
    copier.gather(flat_of(type), user.buffer.data() + user.shift, 1, bytes, host.data(), &info);
    EXPECT_EQ(gpu.calls("launch"), 2);
    EXPECT_EQ(gpu.calls("copy"), 2);
    EXPECT_TRUE(Bytes(host.data(), host.data() + bytes) == user.packed(0, bytes));
    copier.scatter(flat_of(type), user.buffer.data() + user.shift, 1, bytes, host.data(), &info);
    user.expect_unpacked(0, {});
}

TEST_F(EmulatedPacker, LongRowsAreOne2dCopy) {
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic, packing.get());
    Copier copier(gpu, copies, pool, packing.get());
    const auto type = std::make_shared<const Type>(std::vector{leaf(0, 32768, 7, 40000)}, 280000);
    Elements user(gpu, Place::device, type, 1, random);
    const transfer::StagingBlock image = pool.acquire(gpu, 229376);
    const void* const pointer = user.buffer.data();
    gpu::PointerInfo info;
    gpu.classify({&pointer, 1}, &info);
    gpu.reset_calls();
    copier.gather(flat_of(type), user.buffer.data() + user.shift, 1, 229376, image.data(), &info);
    EXPECT_EQ(gpu.calls("copy_2d"), 1);
    EXPECT_EQ(gpu.calls("launch") + gpu.calls("copy"), 0);
    EXPECT_TRUE(Bytes(image.data(), image.data() + 229376) == user.packed(0, 229376));
}

TEST_F(EmulatedPacker, WithoutACompiler) {
    gpu.fail("load_kernels", 0, 1000, gpu::kUnsupported);
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, tuning, CopyEngine::automatic, packing.get());
    Elements vector(gpu, Place::device, column(300, 7), 1, random);
    ASSERT_TRUE(copies.can_move(0, *vector.memory)) << "a 2-D copy does it";
    EXPECT_FALSE(copies.has_kernels(0));
    for (const Place place : transfer::checks::kPlaces) {
        SCOPED_TRACE(to_string(place));
        // Both ends inside of a row.
        Buffer other(gpu, place, 2400);
        copies.start(0, 0, other.end(), vector.end(3), 2390).wait();
        EXPECT_TRUE(other.read(2390) == vector.packed(3, 2393));
    }
    EXPECT_EQ(gpu.calls("launch"), 0);
    std::shared_ptr<const Type> list;
    do {
        list = random_type(random, 2, true);
    } while (transfer::strided_form(list->layout, 2));
    Elements irregular(gpu, Place::device, list, 2, random);
    EXPECT_FALSE(copies.can_move(0, *irregular.memory));
    // What is left is the way of before.
    Copier copier(gpu, copies, pool, packing.get());
    Bytes host(irregular.offsets.size());
    const void* const pointer = irregular.buffer.data();
    gpu::PointerInfo info;
    gpu.classify({&pointer, 1}, &info);
    copier.gather(flat_of(irregular.type), irregular.buffer.data() + irregular.shift, 2,
                  static_cast<std::int64_t>(host.size()), host.data(), &info);
    EXPECT_TRUE(host == irregular.packed(0, static_cast<std::int64_t>(host.size())));
    ASSERT_FALSE(notes.empty());
    EXPECT_TRUE(
        std::all_of(notes.begin(), notes.end(), [&](const std::string& note) { return note == notes.front(); }));
    EXPECT_NE(notes.front().find("injected fault"), std::string::npos) << notes.front();
}

TEST_F(EmulatedPacker, ARefusedKernelIsAnErrorAndNothingHangs) {
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, tuning, CopyEngine::automatic, packing.get());
    Elements user(gpu, Place::device, column(300, 7), 1, random);
    Buffer other(gpu, Place::device, 2400);
    gpu.fail("launch", 0, 1000);
    EXPECT_THROW(copies.start(0, 0, other.end(), user.end(), 2400).wait(), Error);
    Copier copier(gpu, copies, pool, packing.get());
    Bytes host(2400);
    const void* const pointer = user.buffer.data();
    gpu::PointerInfo info;
    gpu.classify({&pointer, 1}, &info);
    EXPECT_THROW(copier.gather(flat_of(user.type), user.buffer.data() + user.shift, 1, 2400, host.data(), &info),
                 Error);
    gpu.fail("launch", 0, 0);
    copies.start(0, 0, other.end(), user.end(), 2400).wait();
    EXPECT_TRUE(other.read() == user.packed(0, 2400));
}

TEST_F(EmulatedPacker, ListsAreUploadedOncePerTypeAndGoWithIt) {
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, tuning, CopyEngine::automatic, packing.get());
    Buffer other(gpu, Place::device, 100);
    for (int round = 0; round < 3; ++round) {
        Elements user(gpu, Place::device, std::make_shared<const Type>(std::vector{leaf(0, 5), leaf(9, 1 + round)}, 16),
                      4, random);
        gpu.reset_calls();
        for (int again = 0; again < 3; ++again) {
            ASSERT_TRUE(copies.can_move(0, *user.memory));
            copies.start(0, 0, other.end(), user.end(), user.offsets.size()).wait();
            EXPECT_TRUE(other.read(user.offsets.size()) ==
                        user.packed(0, static_cast<std::int64_t>(user.offsets.size())));
        }
        EXPECT_EQ(gpu.calls("launch"), 3);
        EXPECT_EQ(gpu.calls("copy"), 1 + 3) << "one of the list, and the test's own";
    }
}

TEST_F(EmulatedPacker, TypesMayOutliveIt) {
    auto packing = packer();
    const auto type = std::make_shared<const Type>(std::vector{leaf(0, 5), leaf(9, 3)}, 16);
    Elements user(gpu, Place::device, type, 4, random);
    ASSERT_TRUE(packing->can_move(0, *user.memory));
    packing->shut_down();
    EXPECT_FALSE(packing->can_move(0, *user.memory));
    packing.reset();
}

TEST_F(EmulatedPacker, MirrorsForReductions) {
    const auto packing = packer();
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic, packing.get());
    Copier copier(gpu, copies, pool, packing.get());
    for (int round = 0; round < 20; ++round) {
        SCOPED_TRACE(round);
        Elements user(gpu, Place::device, random_type(random, 2, true), 2, random);
        const void* const pointer = user.buffer.data();
        gpu::PointerInfo info;
        gpu.classify({&pointer, 1}, &info);
        Bytes mirror = random_bytes(random, user.content.size());
        Bytes expected = mirror;
        for (const std::int64_t offset : user.offsets) {
            expected[static_cast<std::size_t>(user.shift + offset)] =
                user.content[static_cast<std::size_t>(user.shift + offset)];
        }
        copier.gather_mirror(flat_of(user.type), user.buffer.data() + user.shift, 2, mirror.data() + user.shift, &info);
        ASSERT_TRUE(mirror == expected);
        mirror = random_bytes(random, user.content.size());
        copier.scatter_mirror(flat_of(user.type), user.buffer.data() + user.shift, 2, mirror.data() + user.shift,
                              &info);
        Bytes unpacked;
        for (const std::int64_t offset : user.offsets) {
            unpacked.push_back(mirror[static_cast<std::size_t>(user.shift + offset)]);
        }
        user.expect_unpacked(0, unpacked);
    }
}

}  // namespace
}  // namespace awaken::emulator_test
