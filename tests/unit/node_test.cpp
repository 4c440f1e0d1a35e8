// Jobs and their shared memory: who finds whom, what is left behind, what is refused.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "node/job.h"
#include "node/segment.h"

namespace awaken::node {
namespace {

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
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(start_time_of(child), 0u);
}

// ---- segments -------------------------------------------------------------------------------------------------------

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
        if (theirs == nullptr || theirs->find(5) < 0 || theirs->find(6) != theirs->own_index()) return 1;
        if (theirs->secret() != mine->secret()) return 2;
        if (!theirs->alive(theirs->find(5))) return 3;
        std::strcpy(reinterpret_cast<char*>(theirs->area(theirs->find(5))), "from rank 6");
        std::strcpy(reinterpret_cast<char*>(theirs->area(theirs->own_index())) + 8000, "my own");
        return 0;
    });
    EXPECT_EQ(status, 0);
    EXPECT_STREQ(reinterpret_cast<char*>(mine->area(mine->own_index())), "from rank 6");
    EXPECT_STREQ(reinterpret_cast<char*>(mine->area(1)) + 8000, "my own");
    EXPECT_EQ(mine->find(6), -1);  // it has left
    EXPECT_FALSE(mine->alive(1));
    EXPECT_TRUE(nothing_left());  // the last one to come took the name away
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

}  // namespace
}  // namespace awaken::node
