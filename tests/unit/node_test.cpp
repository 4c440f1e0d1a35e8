// SPDX-License-Identifier: Apache-2.0
// Jobs and their shared memory: who finds whom, what is left behind, what is refused.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "node/job.h"
#include "node/member_blocks.h"
#include "node/segment.h"

namespace awaken::node {
namespace {

using namespace std::chrono_literals;

/// It ends a hang; far more than anything here takes, also on a busy machine.
constexpr auto kLimit = 60s;

namespace fs = std::filesystem;

/// Runs `body` in a child process; its exit status.
int in_child(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) {
        _exit(body());
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// ---- jobs -----------------------------------------------------------------------------------------------------------

/// The job that a process with exactly these variables finds.
Job job_with(const std::map<std::string, std::string>& variables, const std::string& chosen = {}, int nodes = 0) {
    clearenv();
    for (const auto& [name, value] : variables) {
        setenv(name.c_str(), value.c_str(), 1);
    }
    return find_job(chosen, nodes);
}

class JobTest : public ::testing::Test {
  protected:
    void SetUp() override {
        for (char** variable = environ; *variable != nullptr; ++variable) {
            _saved.emplace_back(*variable);
        }
    }
    void TearDown() override {
        clearenv();
        for (const std::string& variable : _saved) {
            const std::size_t equals = variable.find('=');
            setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
        }
    }

  private:
    std::vector<std::string> _saved;
};

TEST_F(JobTest, AloneWithoutALauncher) {
    const Job job = job_with({});
    EXPECT_FALSE(job.known());
    EXPECT_TRUE(job.key.empty());
}

TEST_F(JobTest, PmixNamesItsNamespace) {
    const std::map<std::string, std::string> rank = {
        {"PMIX_NAMESPACE", "prterun-7@1"}, {"PMIX_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
    const Job job = job_with(rank);
    EXPECT_TRUE(job.known());
    EXPECT_EQ(job.world_rank, 3);
    EXPECT_EQ(job.local_ranks, 4);
    auto spawned = rank;
    spawned["PMIX_NAMESPACE"] = "prterun-7@2";
    EXPECT_NE(job_with(spawned).key, job.key);
}

TEST_F(JobTest, SlurmListsItsTasksByNode) {
    const auto tasks = [](const std::string& list, const std::string& node) {
        return job_with({{"SLURM_JOB_ID", "7"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_STEP_TASKS_PER_NODE", list},
                         {"SLURM_NODEID", node}})
            .local_ranks;
    };
    EXPECT_EQ(tasks("4", "0"), 4);
    EXPECT_EQ(tasks("4(x2)", "1"), 4);
    EXPECT_EQ(tasks("4(x2),3", "2"), 3);
    EXPECT_EQ(tasks("2,8(x3),1", "3"), 8);
    for (const char* const wrong : {"4(x2", "4(x0)", "x", "4;3", "4(x2),3"}) {
        EXPECT_EQ(tasks(wrong, "5"), 0) << wrong;
    }
}

TEST_F(JobTest, PmiIsNamedByTheProcessAtTheOtherEnd) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const std::map<std::string, std::string> rank = {
        {"PMI_FD", std::to_string(ends[1])}, {"PMI_RANK", "0"}, {"MPI_LOCALNRANKS", "2"}};
    const Job job = job_with(rank);
    EXPECT_TRUE(job.known());
    EXPECT_NE(job.key.find(std::to_string(getpid())), std::string::npos) << job.key;
    auto spawned = rank;
    spawned["PMI_SPAWNED"] = "1";
    EXPECT_FALSE(job_with(spawned).known());
    // A descriptor that is no socket of this machine tells nothing.
    auto other = rank;
    other["PMI_FD"] = "0";
    EXPECT_FALSE(job_with(other).known());
    close(ends[0]);
    close(ends[1]);
}

TEST_F(JobTest, NumbersThatAreNoneAreUnknown) {
    for (const char* const text : {"", "x", "-1", "3x", "99999999999"}) {
        const Job job = job_with({{"PMIX_NAMESPACE", "a"}, {"PMIX_RANK", text}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
        EXPECT_FALSE(job.known()) << text;
    }
}

TEST_F(JobTest, PretendedNodesSplitTheRanksIntoBlocks) {
    std::map<std::string, std::vector<int>> nodes;
    for (int rank = 0; rank < 5; ++rank) {
        const Job job = job_with({{"PMIX_NAMESPACE", "a"},
                                  {"PMIX_RANK", std::to_string(rank)},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}},
                                 {}, 2);
        nodes[job.key].push_back(rank);
        EXPECT_EQ(job.local_ranks, rank < 3 ? 3 : 2);
    }
    ASSERT_EQ(nodes.size(), 2u);
    EXPECT_EQ(nodes.begin()->second, (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(nodes.rbegin()->second, (std::vector<int>{3, 4}));
}

TEST_F(JobTest, ANameByHandComesFirst) {
    const Job job = job_with({{"PMIX_NAMESPACE", "a"}, {"PMIX_RANK", "1"}, {"MPI_LOCALNRANKS", "2"}}, "mine");
    EXPECT_EQ(job.key, "job mine");
    EXPECT_TRUE(job.known());
}

TEST(StartTime, TellsAProcessFromALaterOneWithItsId) {
    EXPECT_NE(start_time_of(getpid()), 0u);
    const pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    const unsigned long long started = start_time_of(child);
    siginfo_t ended{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
    EXPECT_TRUE(has_ended(child, started)) << "it waits for this process only";
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(has_ended(child, started));
    EXPECT_EQ(start_time_of(child), 0u);
}

/// Whoever has not ended is alive, whatever this process can find out about it.
TEST(HasEnded, IsSaidOfNobodyWhoRuns) {
    const pid_t child = fork();
    if (child == 0) {
        // The process goes on without its first thread, which is all that /proc/PID/stat tells the state of.
        std::thread(pause).detach();
        syscall(SYS_exit, 0);
    }
    const auto first_thread_is_over = [&] {
        std::string line;
        std::getline(std::ifstream("/proc/" + std::to_string(child) + "/stat"), line);
        return line.find(") Z") != std::string::npos;
    };
    const auto limit = std::chrono::steady_clock::now() + kLimit;
    while (!first_thread_is_over() && std::chrono::steady_clock::now() < limit) {
        sched_yield();
    }
    ASSERT_TRUE(first_thread_is_over());
    const unsigned long long started = start_time_of(child);
    EXPECT_NE(started, 0u);
    EXPECT_FALSE(has_ended(child, started)) << "its first thread has ended";
    EXPECT_TRUE(has_ended(child, started + 1)) << "it is another process";
    EXPECT_FALSE(has_ended(child, 0)) << "it may be the same process";
    kill(child, SIGSTOP);
    siginfo_t stopped{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &stopped, WSTOPPED), 0);
    EXPECT_FALSE(has_ended(child, started)) << "it is stopped";
    const auto without_descriptors = [&] {
        const struct rlimit none{0, 0};
        return setrlimit(RLIMIT_NOFILE, &none) == 0 && start_time_of(child) == 0 && has_ended(child, started) ? 1 : 0;
    };
    EXPECT_EQ(in_child(without_descriptors), 0) << "there is no descriptor to look with";
    kill(child, SIGKILL);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_EQ(in_child(without_descriptors), 1) << "a look needs no descriptor";
}

// ---- segments -------------------------------------------------------------------------------------------------------

std::size_t page_bytes() {
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

class SegmentTest : public ::testing::Test {
  protected:
    void SetUp() override {
        char name[] = "/dev/shm/awaken-test-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        folder = name;
    }
    void TearDown() override { fs::remove_all(folder); }

    [[nodiscard]] Job job(int rank, int ranks, const std::string& key = "test") const {
        Job result;
        result.key = key;
        result.world_rank = rank;
        result.local_ranks = ranks;
        result.launcher = "a test";
        return result;
    }
    [[nodiscard]] std::unique_ptr<Segment> join(const Job& which, std::size_t bytes = 8192) {
        return Segment::join(which, bytes, why_not, folder);
    }
    [[nodiscard]] bool nothing_left() const { return fs::is_empty(folder); }
    /// Bytes that the segment's file takes, while it has a name.
    [[nodiscard]] std::uint64_t backed_bytes() const {
        struct stat status{};
        EXPECT_EQ(stat(fs::directory_iterator(folder)->path().c_str(), &status), 0);
        return static_cast<std::uint64_t>(status.st_blocks) * 512;
    }

    std::string folder;
    std::string why_not;
};

TEST_F(SegmentTest, ProcessesFindEachOtherAndShareTheirAreas) {
    const auto mine = join(job(5, 2));
    ASSERT_NE(mine, nullptr) << why_not;
    EXPECT_EQ(mine->processes(), 1);
    EXPECT_EQ(mine->find(5), mine->own_index());
    EXPECT_EQ(mine->find(6), -1);
    EXPECT_FALSE(nothing_left());
    const int status = in_child([&] {
        std::string why;
        const auto theirs = Segment::join(job(6, 2), 8192, why, folder);
        if (theirs == nullptr || theirs->find(5) < 0 || theirs->find(6) != theirs->own_index()) {
            return 1;
        }
        if (theirs->secret() != mine->secret()) {
            return 2;
        }
        if (!theirs->alive(theirs->find(5))) {
            return 3;
        }
        constexpr char kTheirs[] = "from rank 6", kMine[] = "my own";
        std::memcpy(theirs->area(theirs->find(5)), kTheirs, sizeof kTheirs);
        std::memcpy(theirs->area(theirs->own_index()) + 8000, kMine, sizeof kMine);
        return 0;
    });
    EXPECT_EQ(status, 0);
    EXPECT_STREQ(reinterpret_cast<char*>(mine->area(mine->own_index())), "from rank 6");
    EXPECT_STREQ(reinterpret_cast<char*>(mine->area(1)) + 8000, "my own");
    EXPECT_EQ(mine->find(6), -1);  // it has left
    EXPECT_FALSE(mine->alive(1));
    EXPECT_TRUE(nothing_left());  // the last one to come took the name away
}

/// Ranks as the MPI numbers them, of two processes that the launcher has numbered 5 and 6.
TEST_F(SegmentTest, ProcessesAgreeOnTheirRanks) {
    struct Case {
        int mine, theirs, ranks;
        bool sound;
    };
    for (const Case& each : {Case{6, 5, 8, true}, Case{0, 1, 2, true}, Case{3, 3, 8, false}}) {
        const auto mine = join(job(5, 2));
        ASSERT_NE(mine, nullptr) << why_not;
        const pid_t child = fork();
        if (child == 0) {
            std::string why;
            const auto theirs = Segment::join(job(6, 2), 8192, why, folder);
            const bool sound =
                theirs != nullptr && theirs->agree_on_ranks(each.theirs, each.ranks, false, kLimit, [] {});
            _exit(sound == each.sound ? 0 : 1);
        }
        while (mine->processes() < 2) {
            std::this_thread::yield();
        }
        EXPECT_EQ(mine->agree_on_ranks(each.mine, each.ranks, false, kLimit, [] {}), each.sound);
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        if (each.sound) {
            EXPECT_EQ(mine->process(0).world_rank, each.mine);
        }
    }
}

TEST_F(SegmentTest, NobodyIsWaitedForThatIsNotToBeHeardOf) {
    const auto mine = join(job(5, 2));
    ASSERT_NE(mine, nullptr) << why_not;
    // Joins and ends.
    EXPECT_EQ(in_child([&] {
                  std::string why;
                  const auto theirs = Segment::join(job(6, 2), 8192, why, folder).release();  // never leaves
                  return theirs != nullptr ? 0 : 1;
              }),
              0);
    ASSERT_EQ(mine->processes(), 2);
    EXPECT_FALSE(mine->agree_on_ranks(0, 2, false, kLimit, [] {}));
    EXPECT_FALSE(mine->agree_on_ranks(0, 2, false, kLimit, [] {})) << "the verdict stays";
}

TEST_F(SegmentTest, ManyAtOnceGetOneSegmentAndOneIndexEach) {
    constexpr int kRanks = 24;
    int go[2], results[2], stay[2];
    ASSERT_EQ(pipe(go), 0);
    ASSERT_EQ(pipe(results), 0);
    ASSERT_EQ(pipe(stay), 0);
    std::vector<pid_t> children;
    for (int rank = 0; rank < kRanks; ++rank) {
        const pid_t child = fork();
        if (child == 0) {
            close(go[1]);
            close(stay[1]);
            char byte = 0;
            (void)!read(go[0], &byte, 1);  // until the parent closes its end
            std::string why;
            const auto segment = Segment::join(job(rank, kRanks), 4096, why, folder);
            const int index = segment != nullptr ? segment->own_index() : -1;
            (void)!write(results[1], &index, sizeof index);
            (void)!read(stay[0], &byte, 1);
            bool complete = segment != nullptr && segment->processes() == kRanks;
            for (int other = 0; complete && other < kRanks; ++other) {
                complete = segment->find(other) >= 0;
            }
            _exit(complete ? 0 : 1);
        }
        children.push_back(child);
    }
    close(go[1]);
    std::vector<bool> seen(kRanks, false);
    for (int rank = 0; rank < kRanks; ++rank) {
        int index = -1;
        ASSERT_EQ(read(results[0], &index, sizeof index), static_cast<ssize_t>(sizeof index));
        ASSERT_GE(index, 0);
        ASSERT_LT(index, kRanks);
        EXPECT_FALSE(seen[static_cast<std::size_t>(index)]);
        seen[static_cast<std::size_t>(index)] = true;
    }
    EXPECT_TRUE(nothing_left());
    close(stay[1]);
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
    }
}

TEST_F(SegmentTest, OtherJobsAreOtherSegments) {
    const auto one = join(job(0, 2, "one"));
    const auto other = join(job(0, 2, "other"));
    ASSERT_NE(one, nullptr);
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(one->processes(), 1);
    EXPECT_EQ(other->processes(), 1);
    EXPECT_NE(one->secret(), other->secret());
}

TEST_F(SegmentTest, ALeftOverOfADeadJobIsNotJoined) {
    EXPECT_EQ(in_child([&] {
                  std::string why;
                  // Killed while others were still to come: the destructor never runs.
                  return Segment::join(job(0, 2), 4096, why, folder).release() != nullptr ? 0 : 1;
              }),
              0);
    EXPECT_FALSE(nothing_left());
    {
        const auto mine = join(job(1, 2), 4096);
        ASSERT_NE(mine, nullptr) << why_not;
        EXPECT_EQ(mine->processes(), 1);
        EXPECT_EQ(mine->find(0), -1);
    }
    EXPECT_TRUE(nothing_left());
}

TEST_F(SegmentTest, WhatDeadJobsHaveLeftIsRemovedByTheNextOne) {
    EXPECT_EQ(in_child([&] {
                  std::string why;
                  // Of different sizes, and one that has grown.
                  Segment* const grown = Segment::join(job(0, 2, "dead"), 4096, why, folder).release();
                  if (grown == nullptr || !grown->allocate(1 << 20)) {
                      return 1;
                  }
                  return Segment::join(job(0, 3, "dead too"), 8192, why, folder).release() != nullptr ? 0 : 2;
              }),
              0);
    const auto files = [&] { return std::distance(fs::directory_iterator(folder), fs::directory_iterator()); };
    EXPECT_EQ(files(), 2);
    const auto living = join(job(0, 2, "living"));
    ASSERT_NE(living, nullptr) << why_not;
    EXPECT_EQ(files(), 1);
    // Names that look like a segment's, of what is none.
    std::string name = fs::directory_iterator(folder)->path().native();
    for (const char digit : {'0', '1', '2'}) {
        name.back() = digit == name.back() ? '3' : digit;
        digit == '0'   ? std::ofstream(name) << std::string(1 << 16, '\0')
        : digit == '1' ? std::ofstream(name) << "x"
                       : std::ofstream(name + "x") << "x";
        fs::permissions(digit == '2' ? name + "x" : name, static_cast<fs::perms>(0600));
    }
    const auto next = join(job(0, 2, "next"));
    ASSERT_NE(next, nullptr) << why_not;
    EXPECT_EQ(files(), 5);
    EXPECT_NE(join(job(1, 2, "living")), nullptr) << why_not;
}

TEST_F(SegmentTest, AnOverwrittenHeaderLeadsNobodyOutOfTheSegment) {
    const auto mine = join(job(0, 2), 8192);
    const auto other = join(job(1, 2), 8192);
    ASSERT_NE(mine, nullptr) << why_not;
    ASSERT_NE(other, nullptr) << why_not;
    std::byte* const area = mine->area(1);
    const auto secret = mine->secret();
    // Up to the areas: header and processes.
    for (const int value : {0, 0xff}) {
        std::memset(area - mine->area_bytes() - page_bytes(), value, page_bytes());
        EXPECT_EQ(other->secret(), secret);
        EXPECT_EQ(mine->area(1), area);
        EXPECT_EQ(mine->area_bytes(), 8192u);
        EXPECT_LE(mine->processes(), 2);
        EXPECT_EQ(mine->find(1), -1);
        EXPECT_FALSE(mine->alive(1));
        EXPECT_FALSE(mine->allocate(1));
    }
}

TEST_F(SegmentTest, TheNameGoesWhenTheDoorIsClosed) {
    const auto mine = join(job(0, 2));
    ASSERT_NE(mine, nullptr);
    EXPECT_FALSE(nothing_left());
    mine->close_door();
    EXPECT_TRUE(nothing_left());
}

TEST_F(SegmentTest, OthersCannotReadIt) {
    const auto mine = join(job(0, 2));
    ASSERT_NE(mine, nullptr);
    struct stat status{};
    ASSERT_EQ(stat(fs::directory_iterator(folder)->path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(SegmentTest, AFileOfSomebodyElseIsRefused) {
    std::string name;
    {
        const auto mine = join(job(0, 2));
        ASSERT_NE(mine, nullptr);
        name = fs::directory_iterator(folder)->path().native();
    }
    // Readable by others: whoever made it was not us.
    std::ofstream(name) << std::string(1 << 16, 'x');
    fs::permissions(name, static_cast<fs::perms>(0644));
    EXPECT_EQ(join(job(0, 2)), nullptr);
    EXPECT_NE(why_not.find("belongs to somebody else"), std::string::npos) << why_not;
    EXPECT_TRUE(fs::exists(name));
    // Too short, a link, a folder.
    fs::remove(name);
    std::ofstream(name) << "x";
    fs::permissions(name, static_cast<fs::perms>(0600));
    EXPECT_EQ(join(job(0, 2)), nullptr);
    fs::remove(name);
    fs::create_symlink("/etc/passwd", name);
    EXPECT_EQ(join(job(0, 2)), nullptr);
    fs::remove(name);
    fs::create_directory(name);
    EXPECT_EQ(join(job(0, 2)), nullptr);
}

TEST_F(SegmentTest, AnotherLayoutIsRefusedAndLeftAlone) {
    const auto mine = join(job(0, 2), 4096);
    ASSERT_NE(mine, nullptr);
    EXPECT_EQ(join(job(1, 2), 8192), nullptr);
    EXPECT_NE(why_not.find("another version"), std::string::npos) << why_not;
    EXPECT_FALSE(nothing_left());
}

TEST_F(SegmentTest, NoMoreThanTheLauncherPromised) {
    const auto first = join(job(0, 2));
    const auto second = join(job(1, 2));
    ASSERT_NE(second, nullptr);
    // The door is closed: a third one is alone in a segment of its own, and harms nobody.
    const auto third = join(job(2, 2));
    ASSERT_NE(third, nullptr);
    EXPECT_EQ(third->find(0), -1);
    EXPECT_EQ(first->processes(), 2);
}

TEST_F(SegmentTest, SaysWhyThereIsNone) {
    EXPECT_EQ(join(Job{}), nullptr);
    EXPECT_NE(why_not.find("launcher"), std::string::npos);
    EXPECT_EQ(Segment::join(job(0, 2), 4096, why_not, folder + "/none"), nullptr);
    EXPECT_NE(why_not.find("no shared memory can be made"), std::string::npos) << why_not;
}

TEST_F(SegmentTest, AProcessThatIsKilledIsSeenAsDead) {
    const auto mine = join(job(0, 2));
    ASSERT_NE(mine, nullptr);
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        std::string why;
        const auto theirs = Segment::join(job(1, 2), 8192, why, folder);
        const char byte = theirs != nullptr ? 'y' : 'n';
        (void)!write(ready[1], &byte, 1);
        pause();
        _exit(1);
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    ASSERT_EQ(byte, 'y');
    ASSERT_EQ(mine->find(1), 1);
    EXPECT_TRUE(mine->alive(1));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_FALSE(mine->alive(1));
}

TEST_F(SegmentTest, AForkedChildThatEndsTakesNothingAlong) {
    auto mine = join(job(0, 2));
    ASSERT_NE(mine, nullptr);
    EXPECT_EQ(in_child([&] {
                  mine.reset();
                  return 0;
              }),
              0);
    EXPECT_EQ(mine->find(0), 0);
    EXPECT_FALSE(nothing_left());
}

TEST_F(SegmentTest, TakesNoStandardStreamsNumber) {
    EXPECT_EQ(in_child([&] {
                  close(STDIN_FILENO);
                  close(STDOUT_FILENO);
                  close(STDERR_FILENO);
                  std::string why;
                  const auto theirs = Segment::join(job(0, 2), 8192, why, folder);
                  if (theirs == nullptr) {
                      return 1;
                  }
                  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
                      if (fcntl(stream, F_GETFD) != -1) {
                          return 2;
                      }
                  }
                  return theirs->allocate(1) ? 0 : 3;
              }),
              0);
}

// ---- memory beside the areas ----------------------------------------------------------------------------------------

TEST_F(SegmentTest, AreasAreBackedFromTheStart) {
    const auto mine = join(job(0, 2), 100'000);
    ASSERT_NE(mine, nullptr) << why_not;
    EXPECT_GE(backed_bytes(), 2 * 100'000u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mine->area(1)) % page_bytes(), 0u);
}

TEST_F(SegmentTest, ProcessesExchangeDataThroughAllocatedMemory) {
    constexpr std::size_t kBytes = 3'000'001;
    const auto mine = join(job(0, 2));
    ASSERT_NE(mine, nullptr);
    const auto offset = mine->allocate(kBytes);
    ASSERT_TRUE(offset);
    std::byte* const memory = mine->map(*offset, kBytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_TRUE(std::all_of(memory, memory + kBytes, [](const std::byte byte) { return byte == std::byte{0}; }));
    std::fill_n(memory, kBytes, std::byte{1});
    std::memcpy(mine->area(0), &*offset, sizeof *offset);
    // The file has grown since: that must not keep anybody from joining.
    EXPECT_EQ(in_child([&] {
                  std::string why;
                  const auto theirs = Segment::join(job(1, 2), 8192, why, folder);
                  if (theirs == nullptr || theirs->find(0) != 0) {
                      return 1;
                  }
                  std::uint64_t where = 0;
                  std::memcpy(&where, theirs->area(0), sizeof where);
                  std::byte* const seen = theirs->map(where, kBytes);
                  if (seen == nullptr) {
                      return 2;
                  }
                  for (std::size_t position = 0; position < kBytes; ++position) {
                      if (seen[position] != std::byte{1}) {
                          return 3;
                      }
                      seen[position] = static_cast<std::byte>(position);
                  }
                  theirs->unmap(seen, kBytes);
                  // Memory of its own, whose offset is all that stays.
                  const auto own = theirs->allocate(10);
                  if (!own || *own < where + kBytes) {
                      return 4;
                  }
                  std::byte* const letter = theirs->map(*own, 10);
                  std::memcpy(letter, "from you", 9);
                  std::memcpy(theirs->area(1), &*own, sizeof *own);
                  return 0;
              }),
              0);
    bool equal = true;
    for (std::size_t position = 0; position < kBytes; ++position) {
        equal = equal && memory[position] == static_cast<std::byte>(position);
    }
    EXPECT_TRUE(equal);
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, mine->area(1), sizeof theirs);
    std::byte* const letter = mine->map(theirs, 10);
    ASSERT_NE(letter, nullptr);
    EXPECT_STREQ(reinterpret_cast<char*>(letter), "from you");
    mine->unmap(letter, 10);
    mine->unmap(memory, kBytes);
    mine->unmap(nullptr, 10);
}

TEST_F(SegmentTest, AllocatedMemoryIsBackedAndGoesBack) {
    constexpr std::size_t kBytes = std::size_t{5} << 20;
    const auto mine = join(job(0, 2));
    ASSERT_NE(mine, nullptr);
    const std::uint64_t before = backed_bytes();
    const auto offset = mine->allocate(kBytes);
    ASSERT_TRUE(offset);
    EXPECT_EQ(backed_bytes(), before + kBytes);
    std::byte* const memory = mine->map(*offset, kBytes);
    ASSERT_NE(memory, nullptr);
    std::fill_n(memory, kBytes, std::byte{1});
    mine->release(*offset, kBytes);
    EXPECT_EQ(backed_bytes(), before);
    EXPECT_EQ(memory[kBytes - 1], std::byte{0});
    mine->unmap(memory, kBytes);
}

TEST_F(SegmentTest, OffsetsAreNeverUsedAgain) {
    const auto mine = join(job(0, 2));
    ASSERT_NE(mine, nullptr);
    std::uint64_t end = 0;
    for (int round = 0; round < 100; ++round) {
        const std::size_t bytes = 1 + static_cast<std::size_t>(round) * 1000;
        const auto offset = mine->allocate(bytes);
        ASSERT_TRUE(offset);
        EXPECT_EQ(*offset % page_bytes(), 0u);
        EXPECT_GE(*offset, end);
        end = *offset + bytes;
        mine->release(*offset, bytes);
    }
}

/// Ends this process after a third of a second of computing: a request for all memory there is that is met by mistake
/// must not take the machine down with the test.
void limit_computing() {
    const itimerval limit{{0, 0}, {0, 300'000}};
    setitimer(ITIMER_PROF, &limit, nullptr);
}

TEST_F(SegmentTest, RequestsThatCannotBeMetDoNotUseTheOffsetsUp) {
    EXPECT_EQ(in_child([&] {
                  limit_computing();
                  std::string why;
                  const auto mine = Segment::join(job(0, 2), 8192, why, folder);
                  if (mine == nullptr) {
                      return 1;
                  }
                  const std::uint64_t before = backed_bytes();
                  if (mine->allocate(0)) {
                      return 2;
                  }
                  constexpr auto kLargest = std::numeric_limits<std::size_t>::max();
                  for (const std::size_t bytes :
                       {kLargest, kLargest / 2, kLargest / 2 - (1 << 20), kLargest / 4, kLargest / 8}) {
                      for (int round = 0; round < 20; ++round) {
                          if (mine->allocate(bytes)) {
                              return 3;
                          }
                      }
                  }
                  if (backed_bytes() != before) {
                      return 4;
                  }
                  return mine->allocate(1) ? 0 : 5;
              }),
              0);
}

TEST_F(SegmentTest, RangesThatAreNoneAreRefused) {
    const auto mine = join(job(0, 2));
    ASSERT_NE(mine, nullptr);
    const std::size_t page = page_bytes();
    std::memcpy(mine->area(1), "here", 5);
    const std::size_t bytes = 4 * page;
    const auto offset = mine->allocate(bytes);
    ASSERT_TRUE(offset);
    constexpr auto kLargest = std::numeric_limits<std::uint64_t>::max();
    const std::vector<std::pair<std::uint64_t, std::size_t>> ranges = {
        {0, page},                        // the header
        {*offset - page, page},           // an area
        {*offset, 0},                     // nothing
        {*offset, bytes + 1},             // longer than the file
        {*offset, kLargest},              // so long that its end is before its start
        {*offset + 1, 10},                // no page starts there
        {*offset + bytes, page},          // after the end
        {*offset + 100 * bytes, page},    // far after it
        {kLargest - page + 1, page},      // what no file can be
        {kLargest - page + 1, 2 * page},  // around the end of all numbers
        {std::uint64_t{1} << 63, page},   // a negative offset to the kernel
    };
    const std::uint64_t backed = backed_bytes();
    for (const auto& [start, length] : ranges) {
        EXPECT_EQ(mine->map(start, length), nullptr) << start << ' ' << length;
        mine->release(start, length);
    }
    EXPECT_EQ(backed_bytes(), backed);
    EXPECT_STREQ(reinterpret_cast<char*>(mine->area(1)), "here");
    EXPECT_EQ(mine->find(0), 0);
    // Parts are ranges too.
    std::byte* const part = mine->map(*offset + page, bytes - page);
    ASSERT_NE(part, nullptr);
    mine->unmap(part, bytes - page);
}

TEST_F(SegmentTest, PartsOfGroupsThatAreGoneServeLaterOnes) {
    constexpr std::size_t kBytes = 20'000;
    const auto mine = join(job(0, 3)), theirs = join(job(1, 3));
    ASSERT_TRUE(mine != nullptr && theirs != nullptr) << why_not;
    using Group = std::array<std::unique_ptr<MemberBlocks>, 2>;
    const auto make = [&] {
        Group group{std::make_unique<MemberBlocks>(*mine, 2, 0, kBytes),
                    std::make_unique<MemberBlocks>(*theirs, 2, 1, kBytes)};
        EXPECT_TRUE(group[0]->make_own() && group[1]->make_own());
        const std::array offsets{group[0]->own_offset(), group[1]->own_offset()};
        EXPECT_TRUE(group[0]->connect(offsets) && group[1]->connect(offsets));
        for (const int part : {0, 1}) {
            std::byte* const here = group[0]->at(part);
            EXPECT_TRUE(std::all_of(here, here + kBytes, [](const std::byte each) { return each == std::byte{0}; }));
            std::memset(here, 0x55, kBytes);
            EXPECT_EQ(group[1]->at(part)[kBytes - 1], std::byte{0x55});
        }
        return group;
    };
    const std::uint64_t before = backed_bytes();
    std::set<std::uint64_t> offsets;
    std::set<const std::byte*> addresses;
    for (int round = 0; round < 20; ++round) {
        const Group group = make();
        offsets.insert(group[0]->own_offset());
        addresses.insert(group[0]->at(1));
    }
    EXPECT_EQ(offsets.size(), 1u);
    EXPECT_EQ(addresses.size(), 1u);

    Group late = make();
    const std::uint64_t in_use = late[0]->own_offset();
    late[0].reset();
    EXPECT_NE(make()[0]->own_offset(), in_use) << "the other member has not left it";
    late[1].reset();

    std::vector<Group> many;
    std::generate_n(std::back_inserter(many), 30, make);
    many.clear();
    constexpr std::uint64_t kMostKept = 16;  // of both processes
    EXPECT_LE(backed_bytes(), before + kMostKept * (kBytes + 2 * page_bytes()));
}

TEST_F(SegmentTest, MemoryOfAProcessThatDiedCanBeReadAndReleased) {
    constexpr std::size_t kBytes = 50'000;
    const auto mine = join(job(0, 3));
    ASSERT_NE(mine, nullptr);
    const std::uint64_t before = backed_bytes();
    int results[2];
    ASSERT_EQ(pipe(results), 0);
    const pid_t child = fork();
    if (child == 0) {
        std::string why;
        const auto theirs = Segment::join(job(1, 3), 8192, why, folder);
        std::uint64_t offset = theirs != nullptr ? theirs->allocate(kBytes).value_or(0) : 0;
        std::byte* const memory = offset != 0 ? theirs->map(offset, kBytes) : nullptr;
        if (memory != nullptr) {
            std::fill_n(memory, kBytes, std::byte{7});
        }
        (void)!write(results[1], &offset, sizeof offset);
        raise(SIGKILL);
    }
    std::uint64_t offset = 0;
    ASSERT_EQ(read(results[0], &offset, sizeof offset), static_cast<ssize_t>(sizeof offset));
    waitpid(child, nullptr, 0);
    close(results[0]);
    close(results[1]);
    std::byte* const memory = mine->map(offset, kBytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(memory[kBytes - 1], std::byte{7});
    mine->unmap(memory, kBytes);
    mine->release(offset, kBytes);
    EXPECT_EQ(backed_bytes(), before);
    const auto next = mine->allocate(kBytes);
    ASSERT_TRUE(next);
    EXPECT_GE(*next, offset + kBytes);
}

TEST_F(SegmentTest, ThreadsAndProcessesAllocateAtOnce) {
    constexpr int kProcesses = 3, kThreads = 3, kRounds = 300;
    struct Piece {
        std::uint64_t offset, bytes, owner;
    };
    const auto mine = join(job(0, kProcesses + 1), 4096);
    ASSERT_NE(mine, nullptr);
    int go[2], results[2];
    ASSERT_EQ(pipe(go), 0);
    ASSERT_EQ(pipe(results), 0);
    std::vector<pid_t> children;
    for (int process = 0; process < kProcesses; ++process) {
        const pid_t child = fork();
        if (child == 0) {
            close(go[1]);
            std::string why;
            const auto theirs = Segment::join(job(process + 1, kProcesses + 1), 4096, why, folder);
            if (theirs == nullptr) {
                _exit(1);
            }
            char byte = 0;
            (void)!read(go[0], &byte, 1);  // until the parent closes its end
            std::atomic<bool> failed{false};
            std::vector<std::thread> threads;
            for (int thread = 0; thread < kThreads; ++thread) {
                threads.emplace_back([&, thread] {
                    const auto owner = static_cast<std::uint64_t>(1 + process * kThreads + thread);
                    for (int round = 0; round < kRounds; ++round) {
                        const std::size_t bytes = 1 + (owner * 977 + static_cast<std::size_t>(round) * 1531) % 10'000;
                        const auto offset = theirs->allocate(bytes);
                        std::byte* const memory = offset ? theirs->map(*offset, bytes) : nullptr;
                        if (memory == nullptr) {
                            failed = true;
                            return;
                        }
                        std::fill_n(memory, bytes, static_cast<std::byte>(owner));
                        theirs->unmap(memory, bytes);
                        // Every third one goes again, beside memory that others are taking.
                        if (round % 3 == 0) {
                            theirs->release(*offset, bytes);
                            continue;
                        }
                        const Piece piece{*offset, bytes, owner};
                        failed = write(results[1], &piece, sizeof piece) != sizeof piece || failed;
                    }
                });
            }
            for (std::thread& thread : threads) {
                thread.join();
            }
            _exit(failed ? 2 : 0);
        }
        children.push_back(child);
    }
    close(go[0]);
    close(go[1]);
    close(results[1]);
    std::vector<Piece> pieces;
    Piece piece{};
    while (read(results[0], &piece, sizeof piece) == sizeof piece) {
        pieces.push_back(piece);
    }
    close(results[0]);
    for (const pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
    }
    ASSERT_EQ(pieces.size(), static_cast<std::size_t>(kProcesses * kThreads * kRounds * 2 / 3));
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    std::uint64_t end = 0;
    for (const Piece& each : pieces) {
        EXPECT_GE(each.offset, end);
        end = each.offset + each.bytes;
        std::byte* const memory = mine->map(each.offset, each.bytes);
        ASSERT_NE(memory, nullptr);
        EXPECT_TRUE(std::all_of(memory, memory + each.bytes,
                                [&](const std::byte byte) { return byte == static_cast<std::byte>(each.owner); }));
        mine->unmap(memory, each.bytes);
    }
}

TEST_F(SegmentTest, SignalsDoNotKeepMemoryFromBeingTaken) {
    EXPECT_EQ(in_child([&] {
                  struct sigaction action{};
                  action.sa_handler = [](int) {};
                  sigaction(SIGALRM, &action, nullptr);
                  const itimerval often{{0, 200}, {0, 200}};
                  setitimer(ITIMER_REAL, &often, nullptr);
                  std::string why;
                  const auto theirs = Segment::join(job(0, 2), 4096, why, folder);
                  const std::size_t bytes = std::size_t{64} << 20;
                  const auto offset = theirs != nullptr ? theirs->allocate(bytes) : std::nullopt;
                  if (!offset) {
                      return 1;
                  }
                  theirs->release(*offset, bytes);
                  return 0;
              }),
              0);
}

TEST_F(SegmentTest, ALimitOfFileSizesIsAnAnswerAndNoSignal) {
    EXPECT_EQ(in_child([&] {
                  std::string why;
                  const auto before = Segment::join(job(0, 2), 4096, why, folder);
                  const rlimit limit{1 << 20, 1 << 20};
                  if (before == nullptr || setrlimit(RLIMIT_FSIZE, &limit) != 0) {
                      return 1;
                  }
                  if (before->allocate(2 << 20)) {
                      return 2;
                  }
                  if (!before->allocate(1 << 10)) {
                      return 3;
                  }
                  if (Segment::join(job(0, 2, "other"), 2 << 20, why, folder) != nullptr) {
                      return 4;
                  }
                  return why.find("no shared memory of") != std::string::npos ? 0 : 5;
              }),
              0);
}

TEST_F(SegmentTest, AnotherFileWithTheNumberOfOursIsLeftAlone) {
    const std::string name = folder + "/other";
    EXPECT_EQ(in_child([&] {
                  std::string why;
                  auto theirs = Segment::join(job(0, 1), 4096, why, folder);
                  const auto offset = theirs->allocate(page_bytes());
                  if (!offset) {
                      return 1;
                  }
                  // A program that closes whatever it finds, and opens files of its own.
                  const int last = open("/dev/null", O_RDONLY);
                  for (int number = 3; number <= last; ++number) {
                      close(number);
                  }
                  int other = -1;
                  while (other < last) {
                      other = open(name.c_str(), O_RDWR | O_CREAT, 0600);
                  }
                  const std::string text(1 << 20, 'x');
                  if (write(other, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
                      return 2;
                  }
                  if (theirs->allocate(1) || theirs->map(*offset, 1) != nullptr) {
                      return 3;
                  }
                  theirs->release(*offset, page_bytes());
                  struct stat status{};
                  if (fstat(other, &status) != 0 || status.st_size != 1 << 20 || status.st_blocks * 512 < 1 << 20) {
                      return 4;
                  }
                  theirs.reset();
                  for (int number = 3; number <= last; ++number) {
                      if (fcntl(number, F_GETFD) == -1) {
                          return 5;
                      }
                  }
                  return 0;
              }),
              0);
}

/// Runs `body` in a child process that has a file system of its own mounted at `folder`; its exit status.
int in_child_with(const char* kind, const char* options, const std::string& folder, const std::function<int()>& body) {
    constexpr int kCannotMount = 77;
    const int status = in_child([&] {
        // Nobody else sees the mount, and it goes with the process. Who is not root is root of a namespace.
        const std::string user = "0 " + std::to_string(geteuid()) + " 1";
        if (geteuid() != 0) {
            if (unshare(CLONE_NEWUSER) != 0) {
                return kCannotMount;
            }
            std::ofstream("/proc/self/uid_map") << user;
        }
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount("none", folder.c_str(), kind, 0, options) != 0) {
            return kCannotMount;
        }
        return body();
    });
    return status == kCannotMount ? -1 : status;
}

TEST_F(SegmentTest, AFullFileSystemIsAnAnswerAndNoSignal) {
    const int status = in_child_with("tmpfs", "size=1m", folder, [&] {
        std::string why;
        if (Segment::join(job(0, 2), 1 << 20, why, folder) != nullptr) {
            return 1;
        }
        if (why.find("no shared memory of") == std::string::npos) {
            return 2;
        }
        const auto room = [&] {
            struct statvfs now{};
            statvfs(folder.c_str(), &now);
            return now.f_bavail * now.f_frsize;
        };
        if (room() != 1 << 20) {
            return 3;  // what was refused is given back
        }
        const auto mine = Segment::join(job(0, 2), 100'000, why, folder);
        if (mine == nullptr) {
            return 4;
        }
        for (int index = 0; index < 2; ++index) {
            std::memset(mine->area(index), 1, mine->area_bytes());
        }
        // A quarter is the job's, whoever of its processes has it and in however many parts.
        const std::uint64_t left = room(), quarter = left / 4 / page_bytes() * page_bytes();
        if (mine->allocate(1 << 20) || mine->allocate(left + 1) || mine->allocate(quarter + 1)) {
            return 5;
        }
        if (room() != left) {
            return 6;
        }
        const auto page = mine->allocate(1);
        const auto rest = mine->allocate(quarter - page_bytes());
        if (!page || !rest || mine->allocate(1) || room() != left - quarter) {
            return 7;
        }
        std::byte* const memory = mine->map(*rest, quarter - page_bytes());
        std::fill_n(memory, quarter - page_bytes(), std::byte{1});
        mine->release(*rest, quarter - page_bytes());
        const auto again = mine->allocate(quarter - page_bytes());
        if (!again) {
            return 8;
        }
        mine->release(*again, quarter - page_bytes());
        mine->release(*page, 1);
        // What others have is not the job's to share.
        const int file = open((folder + "/others").c_str(), O_CREAT | O_RDWR, 0600);
        if (file < 0 || fallocate(file, 0, 0, static_cast<off_t>(left / 2)) != 0) {
            return 9;
        }
        close(file);
        if (mine->allocate(quarter) || !mine->allocate(quarter / 2 / page_bytes() * page_bytes())) {
            return 10;
        }
        return Segment::join(job(0, 2, "other"), 1 << 20, why, folder) == nullptr ? 0 : 11;
    });
    if (status == -1) {
        GTEST_SKIP() << "no file system can be mounted";
    }
    EXPECT_EQ(status, 0);
}

TEST_F(SegmentTest, RequestsThatOnlyOneOfCanBeMetLeaveNothingBehind) {
    const int status = in_child_with("tmpfs", "size=16m", folder, [&] {
        std::string why;
        const auto mine = Segment::join(job(0, 2), 4096, why, folder);
        if (mine == nullptr) {
            return 1;
        }
        const auto room = [&] {
            struct statvfs now{};
            statvfs(folder.c_str(), &now);
            return now.f_bavail * now.f_frsize;
        };
        const std::uint64_t before = room();
        constexpr std::size_t kBytes = std::size_t{3} << 20;
        for (int round = 0; round < 20; ++round) {
            std::optional<std::uint64_t> got, also_got;
            std::thread other([&] { also_got = mine->allocate(kBytes); });
            got = mine->allocate(kBytes);
            other.join();
            if (static_cast<bool>(got) == static_cast<bool>(also_got)) {
                return 2;
            }
            if (room() != before - kBytes) {
                return 3;
            }
            for (const auto& offset : {got, also_got}) {
                if (offset) {
                    mine->release(*offset, kBytes);
                }
            }
        }
        return 0;
    });
    if (status == -1) {
        GTEST_SKIP() << "no file system can be mounted";
    }
    EXPECT_EQ(status, 0);
}

TEST_F(SegmentTest, MemoryThatTheMachineDoesNotHaveIsRefusedAtOnce) {
    // A file system that promises more than any machine has.
    const int status = in_child_with("tmpfs", "size=1024t", folder, [&] {
        limit_computing();
        std::string why;
        const auto mine = Segment::join(job(0, 2), 4096, why, folder);
        if (mine == nullptr) {
            return 1;
        }
        if (mine->allocate(std::size_t{128} << 40)) {
            return 2;
        }
        const std::size_t bytes = std::size_t{17} << 20;
        const auto offset = mine->allocate(bytes);
        if (!offset) {
            return 3;
        }
        mine->release(*offset, bytes);
        return 0;
    });
    if (status == -1) {
        GTEST_SKIP() << "no file system can be mounted";
    }
    EXPECT_EQ(status, 0);
}

TEST_F(SegmentTest, WorksWhereTheFileSystemCannotSetMemoryAside) {
    const int status = in_child_with("ramfs", "mode=0700", folder, [&] {
        const int file = open((folder + "/probe").c_str(), O_CREAT | O_RDWR, 0600);
        if (file < 0 || fallocate(file, 0, 0, 1) == 0) {
            return 1;  // then this tests nothing
        }
        close(file);
        unlink((folder + "/probe").c_str());
        std::string why;
        const auto mine = Segment::join(job(0, 2), 100'000, why, folder);
        if (mine == nullptr) {
            return 2;
        }
        if (backed_bytes() < 200'000) {
            return 3;
        }
        const std::uint64_t before = backed_bytes();
        const auto offset = mine->allocate(300'000);
        if (!offset || backed_bytes() < before + 300'000) {
            return 4;
        }
        std::byte* const memory = mine->map(*offset, 300'000);
        if (memory == nullptr || memory[299'999] != std::byte{0}) {
            return 5;
        }
        mine->release(*offset, 300'000);
        const auto next = mine->allocate(1);
        return next && *next >= *offset + 300'000 ? 0 : 6;
    });
    if (status == -1) {
        GTEST_SKIP() << "no file system can be mounted";
    }
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace awaken::node
