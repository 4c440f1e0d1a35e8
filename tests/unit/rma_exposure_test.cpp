// SPDX-License-Identifier: Apache-2.0
// What the members of a window share, between processes: locks and their order, updates, regions, post and complete,
// and members that are killed.
#include "rma/device/exposure.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "base/error.h"

namespace awaken::rma {
namespace {

namespace fs = std::filesystem;

constexpr int kMembers = 3;

/// What the processes of a test see of each other beside the segment.
struct Common {
    std::array<std::atomic<std::uint64_t>, kMembers> offsets;
    std::atomic<int> connected;
    std::atomic<int> step;
    std::uint64_t number;  ///< guarded by what is tested
    std::array<std::atomic<pid_t>, kMembers> processes;
};

class ExposureTest : public ::testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/dev/shm/awaken-test-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        folder = name;
        common = static_cast<Common*>(
            mmap(nullptr, sizeof(Common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        ASSERT_NE(common, MAP_FAILED);
    }
    void TearDown() override {
        munmap(common, sizeof(Common));
        fs::remove_all(folder);
    }

    static void await(const std::function<bool()>& done) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!done()) {
            if (std::chrono::steady_clock::now() > limit) {
                _exit(99);
            }
            std::this_thread::yield();
        }
    }

    /// Runs `body` in each of the members; true when all came to a good end. A member that is killed is none of them.
    bool in_all(const std::function<bool(Exposure&)>& body, const int killed = -1) {
        std::vector<pid_t> children;
        for (int rank = 0; rank < kMembers; ++rank) {
            const pid_t child = fork();
            if (child == 0) {
                _exit(member(rank, body));
            }
            children.push_back(child);
        }
        bool good = true;
        for (int rank = 0; rank < kMembers; ++rank) {
            int status = 0;
            waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
            if (rank != killed && status != 0) {
                ADD_FAILURE() << "member " << rank << " ended with " << WEXITSTATUS(status);
                good = false;
            }
        }
        return good;
    }

    std::string folder;
    Common* common = nullptr;

  private:
    int member(const int rank, const std::function<bool(Exposure&)>& body) {
        node::Job job;
        job.key = "test";
        job.world_rank = rank;
        job.local_ranks = kMembers;
        job.launcher = "a test";
        std::string why;
        const auto segment = node::Segment::join(job, 4096, why, folder);
        if (segment == nullptr) {
            return 90;
        }
        await([&] { return segment->processes() == kMembers; });
        std::vector<int> processes;
        for (int other = 0; other < kMembers; ++other) {
            await([&] { return segment->find(other) >= 0; });
            processes.push_back(segment->find(other));
        }
        const auto exposure = Exposure::make(*segment, processes, rank, [] {});
        if (exposure == nullptr) {
            return 91;
        }
        common->processes[static_cast<std::size_t>(rank)] = getpid();
        common->offsets[static_cast<std::size_t>(rank)] = exposure->own_offset();
        std::vector<std::uint64_t> offsets;
        for (auto& offset : common->offsets) {
            await([&] { return offset != 0; });
            offsets.push_back(offset);
        }
        if (!exposure->connect(offsets)) {
            return 92;
        }
        ++common->connected;
        await([&] { return common->connected == kMembers; });
        try {
            return body(*exposure) ? 0 : 1;
        } catch (const Error&) {
            return 93;
        }
    }
};

TEST_F(ExposureTest, OneHasALockAloneAndNobodyStarves) {
    constexpr std::uint64_t kTimes = 300;
    EXPECT_TRUE(in_all([&](Exposure& exposure) {
        for (std::uint64_t time = 0; time < kTimes; ++time) {
            exposure.lock(1, Hold::exclusive);
            const std::uint64_t seen = common->number;
            std::this_thread::yield();
            common->number = seen + 1;
            exposure.unlock(1);
            // Sharing goes on beside it.
            exposure.lock(1, Hold::shared);
            const std::uint64_t before = common->number;
            std::this_thread::yield();
            const bool same = common->number == before;
            exposure.unlock(1);
            if (!same) {
                return false;
            }
        }
        return true;
    }));
    EXPECT_EQ(common->number, kTimes * kMembers);
}

TEST_F(ExposureTest, AllMayShare) {
    EXPECT_TRUE(in_all([&](Exposure& exposure) {
        exposure.lock(0, Hold::shared);
        ++common->step;
        await([&] { return common->step == kMembers; });  // comes only when all have it at the same time
        exposure.unlock(0);
        return true;
    }));
}

TEST_F(ExposureTest, UpdatesFollowEachOther) {
    constexpr std::uint64_t kTimes = 2000;
    EXPECT_TRUE(in_all([&](Exposure& exposure) {
        for (std::uint64_t time = 0; time < kTimes; ++time) {
            const Exposure::Update update(exposure, 2);
            common->number = common->number + 1;
        }
        return true;
    }));
    EXPECT_EQ(common->number, kTimes * kMembers);
}

TEST_F(ExposureTest, RegionsAreSeenWholeWhileTheyChange) {
    EXPECT_TRUE(in_all([&](Exposure& exposure) {
        if (exposure.own() == 0) {
            for (std::uint64_t count = 1; count <= 200; ++count) {
                std::vector<Region> regions(count);
                for (Region& region : regions) {
                    region.begin = count * 4096;
                    region.bytes = 100;
                    region.exporter = 0;
                }
                if (!exposure.publish(regions)) {
                    return false;
                }
            }
            common->step = 1;
            await([&] { return common->step == kMembers; });  // leaving takes the table away
            return true;
        }
        for (bool over = false; !over;) {
            over = common->step >= 1;
            std::uint64_t version = 0;
            const std::vector<Region> regions = exposure.regions(0, version);
            for (const Region& region : regions) {
                if (region.begin != regions.size() * 4096 || region.bytes != 100) {
                    return false;
                }
            }
            if (over && (regions.size() != 200 || version != exposure.version(0))) {
                return false;
            }
        }
        ++common->step;
        return true;
    }));
}

TEST_F(ExposureTest, PostStartCompleteAndWaitMeet) {
    EXPECT_TRUE(in_all([&](Exposure& exposure) {
        const int next = (exposure.own() + 1) % kMembers, previous = (exposure.own() + 2) % kMembers;
        for (int time = 0; time < 200; ++time) {
            exposure.post(previous);
            exposure.await_post(next);
            exposure.use_post(next);
            exposure.complete(next);
            exposure.await_completion(previous);
        }
        return !exposure.has_completed(previous);
    }));
}

TEST_F(ExposureTest, NobodyPassesAFenceBeforeAnnouncedResultsAreThere) {
    EXPECT_TRUE(in_all([&](Exposure& exposure) {
        int meetings = 0;
        const auto meet = [&] {
            ++common->step;
            await([&] { return common->step >= kMembers * (meetings + 1); });
            ++meetings;
        };
        for (std::uint64_t fence = 1; fence <= 200; ++fence) {
            const bool announces = (static_cast<std::uint64_t>(exposure.own()) + fence) % kMembers == 0;
            if (announces) {
                exposure.announce_results(fence);
            }
            meet();
            if (announces) {
                common->number = fence;
            }
            exposure.results_are_there(fence);
            exposure.await_results(fence);
            if (common->number != fence) {
                return false;
            }
            meet();
        }
        return true;
    }));
}

TEST_F(ExposureTest, ALockOfAKilledMemberIsAnError) {
    EXPECT_TRUE(in_all(
        [&](Exposure& exposure) {
            if (exposure.own() == 2) {
                exposure.lock(0, Hold::exclusive);
                common->step = 1;
                for (;;) {
                    pause();
                }
            }
            await([&] { return common->step >= 1; });
            if (exposure.own() == 0) {
                kill(common->processes[2], SIGKILL);
            }
            try {
                exposure.lock(0, exposure.own() == 0 ? Hold::exclusive : Hold::shared);
            } catch (const Error& error) {
                return std::string(error.what()).find("ended while it held a lock") != std::string::npos;
            }
            return false;
        },
        2));
}

TEST_F(ExposureTest, AnUpdateOfAKilledMemberIsAnError) {
    EXPECT_TRUE(in_all(
        [&](Exposure& exposure) {
            if (exposure.own() == 2) {
                const Exposure::Update update(exposure, 1);
                common->step = 1;
                for (;;) {
                    pause();
                }
            }
            await([&] { return common->step >= 1; });
            if (exposure.own() == 0) {
                kill(common->processes[2], SIGKILL);
            }
            try {
                const Exposure::Update update(exposure, 1);
            } catch (const Error& error) {
                return std::string(error.what()).find("ended while it updated") != std::string::npos;
            }
            return false;
        },
        2));
}

}  // namespace
}  // namespace awaken::rma
