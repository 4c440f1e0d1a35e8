// SPDX-License-Identifier: Apache-2.0
// Descriptors that one process takes from another: the right files or none, whatever the owner closes meanwhile.
#include "gpu/shared_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace awaken::gpu {
namespace {

constexpr std::size_t kUnlimited = std::size_t{1} << 40;

/// A file with this number as its content.
SharedPart file_of(const std::uint64_t number, const std::size_t bytes = 100) {
    Descriptor file(memfd_create("awaken-test", MFD_CLOEXEC));
    EXPECT_EQ(pwrite(file.get(), &number, sizeof number, 0), static_cast<ssize_t>(sizeof number));
    return {std::move(file), bytes};
}

std::vector<SharedPart> files_of(const std::uint64_t first, const std::size_t count) {
    std::vector<SharedPart> parts;
    for (std::size_t i = 0; i < count; ++i) {
        parts.push_back(file_of(first + i, 100 + i));
    }
    return parts;
}

std::uint64_t content(const SharedPart& part) {
    std::uint64_t number = 0;
    return pread(part.file.get(), &number, sizeof number, 0) == static_cast<ssize_t>(sizeof number) ? number : 0;
}

/// Whether the handle is not over. Changes nothing but the time of its last use.
bool keeps(SharedDescriptors& shared, const IpcMemoryHandle& handle) {
    const bool held = shared.hold(handle);
    if (held) {
        shared.release(handle, kUnlimited);
    }
    return held;
}

/// What `work` returns in a process of its own.
int in_child(const std::function<int()>& work) {
    const pid_t child = fork();
    if (child == 0) {
        _exit(work());
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SharedDescriptors, AnotherProcessGetsTheSameFiles) {
    SharedDescriptors shared;
    IpcMemoryHandle handle;
    ASSERT_TRUE(shared.publish(files_of(1000, 5), handle));
    EXPECT_TRUE(SharedDescriptors::made(handle));
    EXPECT_TRUE(keeps(shared, handle));
    EXPECT_EQ(shared.open_files(), 5U);
    EXPECT_EQ(in_child([&] {
                  std::vector<SharedPart> parts;
                  if (const Status status = SharedDescriptors::take(handle, parts); !status.ok()) {
                      return 1;
                  }
                  for (std::size_t i = 0; i < parts.size(); ++i) {
                      if (content(parts[i]) != 1000 + i || parts[i].bytes != 100 + i) {
                          return 2;
                      }
                  }
                  return parts.size() == 5 ? 0 : 3;
              }),
              0);
}

TEST(SharedDescriptors, WhatItsOwnerHasEndedIsNotTaken) {
    SharedDescriptors shared;
    IpcMemoryHandle handle, other;
    ASSERT_TRUE(shared.publish(files_of(1, 2), handle));
    shared.end(handle);
    EXPECT_FALSE(shared.hold(handle)) << "nobody else will hold it";
    EXPECT_EQ(shared.open_files(), 2U) << "its message is under way";
    shared.release(handle, kUnlimited);
    EXPECT_EQ(shared.open_files(), 0U);
    // The other files get the numbers of the descriptors that were closed, and perhaps the memory of the record.
    ASSERT_TRUE(shared.publish(files_of(11, 2), other));
    EXPECT_FALSE(keeps(shared, handle));
    EXPECT_TRUE(keeps(shared, other));
    EXPECT_EQ(shared.open_files(), 2U);
    std::vector<SharedPart> parts;
    EXPECT_EQ(SharedDescriptors::take(handle, parts).code, kExpired);
    EXPECT_TRUE(SharedDescriptors::take(other, parts).ok());
    EXPECT_EQ(content(parts.at(0)), 11U);
}

TEST(SharedDescriptors, TakesTheRightFilesWhileTheOwnerClosesAndOpensOthers) {
    SharedDescriptors shared;
    std::atomic<bool> over{false};
    std::thread owner([&] {
        for (std::uint64_t number = 1; !over; ++number) {
            IpcMemoryHandle mine;
            ASSERT_TRUE(shared.publish(files_of(1000 * number, 3), mine));
            shared.release(mine, 0);
        }
    });
    int taken = 0;
    for (std::uint64_t number = 1; number < 300; ++number) {
        IpcMemoryHandle handle;
        ASSERT_TRUE(shared.publish(files_of(number, 3), handle));
        // The owner ends it while it is being taken.
        std::thread ending([&] { shared.release(handle, 0); });
        std::vector<SharedPart> parts;
        if (const Status status = SharedDescriptors::take(handle, parts); status.ok()) {
            ++taken;
            for (std::size_t i = 0; i < 3; ++i) {
                EXPECT_EQ(content(parts.at(i)), number + i);
            }
        } else {
            EXPECT_EQ(status.code, kExpired) << status.message();
        }
        ending.join();
    }
    over = true;
    owner.join();
    EXPECT_EQ(shared.open_files(), 0U);
    RecordProperty("taken", taken);
}

TEST(SharedDescriptors, WhatNobodyHoldsMakesRoomTheLongestIdleFirst) {
    SharedDescriptors shared;
    constexpr std::size_t kPart = SharedDescriptors::kMost / 4;
    std::vector<IpcMemoryHandle> handles(6);
    for (std::size_t i = 0; i < 4; ++i) {
        ASSERT_TRUE(shared.publish(files_of(1, kPart), handles[i]));
    }
    EXPECT_FALSE(shared.publish(files_of(1, 1), handles[4])) << "all are held";
    for (std::size_t i = 1; i < 4; ++i) {
        shared.release(handles[i], kUnlimited);
    }
    EXPECT_TRUE(keeps(shared, handles[1]));
    ASSERT_TRUE(shared.publish(files_of(1, 1), handles[4]));
    EXPECT_FALSE(keeps(shared, handles[2]));
    EXPECT_TRUE(keeps(shared, handles[0]));
    EXPECT_EQ(shared.open_files(), 3 * kPart + 1);
    EXPECT_FALSE(shared.publish(files_of(1, SharedDescriptors::kMost + 1), handles[5]));
    std::vector<SharedPart> parts;
    EXPECT_TRUE(SharedDescriptors::take(handles[0], parts).ok()) << "what is held stays";
    EXPECT_TRUE(SharedDescriptors::take(handles[4], parts).ok());
}

TEST(SharedDescriptors, TakeAnEighthOfWhatTheProcessMayOpenAndNothingOfTheLast) {
    const auto with_a_limit_of_64 = [] {
        constexpr rlimit kLimit{64, 64};
        SharedDescriptors shared;
        IpcMemoryHandle held, idle, more;
        if (setrlimit(RLIMIT_NOFILE, &kLimit) != 0 || SharedDescriptors::most() != 8) {
            return 1;
        }
        if (shared.publish(files_of(1, 9), more) || !shared.publish(files_of(1, 4), held) ||
            !shared.publish(files_of(5, 4), idle) || shared.publish(files_of(9, 1), more)) {
            return 2;
        }
        shared.release(idle, kUnlimited);
        if (!shared.make_room(4) || shared.open_files() != 4 || shared.make_room(5)) {
            return 3;
        }
        std::vector<Descriptor> own;
        while (own.empty() || own.back().get() < 64 - 8 - 1) {
            own.emplace_back(memfd_create("awaken-test", MFD_CLOEXEC));
        }
        if (shared.publish(files_of(9, 1), more)) {
            return 4;
        }
        // Without a free descriptor nothing is taken, but it may be later.
        std::vector<SharedPart> parts;
        while (own.back().get() >= 0) {
            own.emplace_back(memfd_create("awaken-test", MFD_CLOEXEC));
        }
        if (SharedDescriptors::take(held, parts).code != kBusy) {
            return 5;
        }
        own.clear();
        return SharedDescriptors::take(held, parts).ok() ? 0 : 6;
    };
    EXPECT_EQ(in_child(with_a_limit_of_64), 0);
}

TEST(SharedDescriptors, WhatNobodyHoldsStandsForSoMuchMemoryOnly) {
    SharedDescriptors shared;
    std::vector<IpcMemoryHandle> handles(3);
    for (IpcMemoryHandle& handle : handles) {
        ASSERT_TRUE(shared.publish(files_of(1, 1), handle));  // stands for 100 bytes
    }
    for (const IpcMemoryHandle& handle : handles) {
        shared.release(handle, 200);
    }
    EXPECT_FALSE(shared.hold(handles[0]));
    EXPECT_TRUE(keeps(shared, handles[1]));
    EXPECT_TRUE(shared.hold(handles[2]));
    shared.release(handles[2], 50);
    EXPECT_EQ(shared.open_files(), 0U);
}

TEST(SharedDescriptors, ClosesWhatWasNotHeldForLong) {
    SharedDescriptors shared;
    IpcMemoryHandle handle, held;
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(shared.publish(files_of(1, 3), handle));
    ASSERT_TRUE(shared.publish(files_of(1, 3), held));
    shared.release(handle, kUnlimited);
    shared.close_idle(begin + SharedDescriptors::kIdle / 2);
    EXPECT_TRUE(keeps(shared, handle));
    shared.close_idle(std::chrono::steady_clock::now() + SharedDescriptors::kIdle);
    EXPECT_FALSE(shared.hold(handle));
    EXPECT_EQ(shared.open_files(), 3U);
    shared.release(held, 0);
    EXPECT_EQ(shared.open_files(), 0U);
}

TEST(SharedDescriptors, HandlesOfOthersAndForgedOnesOpenNothing) {
    IpcMemoryHandle handle;
    EXPECT_FALSE(SharedDescriptors::made(handle));
    SharedDescriptors shared;
    ASSERT_TRUE(shared.publish(files_of(1, 1), handle));
    std::vector<SharedPart> parts;
    // Each bit of what stands for the record, its number and the process.
    for (std::size_t bit = 64; bit < 256; bit += 5) {
        IpcMemoryHandle forged = handle;
        forged.bytes[bit / 8] = static_cast<unsigned char>(forged.bytes[bit / 8] ^ (1U << bit % 8));
        EXPECT_FALSE(SharedDescriptors::take(forged, parts).ok()) << "bit " << bit;
    }
    EXPECT_TRUE(SharedDescriptors::take(handle, parts).ok());
}

}  // namespace
}  // namespace awaken::gpu
