// Whereabouts: what a sender concludes from the answers of a receiver that takes nothing, with times that are made up.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>

#include "p2p/whereabouts.h"

namespace awaken::p2p {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""us;
using Verdict = Whereabouts::Verdict;

constexpr Whereabouts::Clock::duration kTime = 2ms;

/// A receiver that can be asked, and has last taken a chunk just now.
class Asked : public ::testing::Test {
  protected:
    Asked() { receiver.listens(Whereabouts::kPings); }

    [[nodiscard]] Verdict judge() { return receiver.judge(since, now, kTime); }
    /// What is said after so long.
    [[nodiscard]] Verdict judge_after(const Whereabouts::Clock::duration passed) {
        now += passed;
        return judge();
    }
    void took_a_chunk() { since = now; }
    void answers() { receiver.answered(now); }
    /// The next ping is sent when it may be, and answered at once.
    void is_asked_and_answers() {
        ASSERT_EQ(judge_after(kTime + 1us), Verdict::ping);
        answers();
    }

    Whereabouts receiver;
    Whereabouts::Clock::time_point now{std::chrono::hours{1}};
    Whereabouts::Clock::time_point since = now;
};

TEST_F(Asked, OneThatTakesChunksIsNotAsked) {
    for (int turn = 0; turn < 100; ++turn) {
        EXPECT_EQ(judge_after(kTime), Verdict::unknown);
        took_a_chunk();
    }
}

TEST_F(Asked, OneThatAnswersTwiceAndWhoseLayerDoesNotRunWaits) {
    is_asked_and_answers();
    EXPECT_EQ(judge(), Verdict::unknown) << "perhaps it was only passing by";
    is_asked_and_answers();
    EXPECT_EQ(judge_after(kTime), Verdict::unknown) << "its layer may be about to tell that it has run";
    EXPECT_EQ(judge_after(1us), Verdict::waits);
    EXPECT_EQ(judge_after(std::chrono::hours{1}), Verdict::waits);
}

TEST_F(Asked, OneThatComputesIsWaitedForHoweverLong) {
    ASSERT_EQ(judge_after(kTime + 1us), Verdict::ping);
    for (int turn = 0; turn < 10; ++turn)
        EXPECT_EQ(judge_after(std::chrono::hours{1}), Verdict::unknown);
}

TEST_F(Asked, OneThatPassesByOnceIsWaitedFor) {
    is_asked_and_answers();
    ASSERT_EQ(judge_after(kTime + 1us), Verdict::ping);
    EXPECT_EQ(judge_after(std::chrono::hours{1}), Verdict::unknown);
}

TEST_F(Asked, OneThatIsKeptFromTheProcessorAfterEachAnswerIsNotTakenToWait) {
    for (int turn = 0; turn < 5; ++turn) {
        is_asked_and_answers();
        EXPECT_EQ(judge_after(kTime + 10ms), Verdict::ping) << "one pause is no proof";
        answers();
        receiver.looked();  // what it does next when it runs again, for each of them
        receiver.looked();
        EXPECT_NE(judge(), Verdict::waits);
    }
}

TEST_F(Asked, OneWhoseLayerRunsIsWaitedForLongAndNotForEver) {
    for (std::size_t answer = 0; answer < Whereabouts::kMany; ++answer) {
        is_asked_and_answers();
        EXPECT_EQ(judge(), Verdict::unknown);
        receiver.looked();
    }
    EXPECT_EQ(judge_after(kTime + 1us), Verdict::waits);
}

TEST_F(Asked, APauseOfTheSenderIsNoAnswer) {
    is_asked_and_answers();
    receiver.looked();
    EXPECT_EQ(judge_after(std::chrono::hours{1}), Verdict::ping);
    EXPECT_EQ(judge_after(std::chrono::hours{1}), Verdict::unknown);
}

TEST_F(Asked, OneThatWasFoundToWaitDoesSoUntilItsLayerRuns) {
    is_asked_and_answers();
    is_asked_and_answers();
    ASSERT_EQ(judge_after(kTime + 1us), Verdict::waits);
    took_a_chunk();  // its MPI did
    EXPECT_EQ(judge_after(kTime), Verdict::unknown);
    EXPECT_EQ(judge_after(1us), Verdict::waits);
    receiver.looked();
    EXPECT_EQ(judge(), Verdict::ping);
}

TEST_F(Asked, AChunkMakesAnswersOfALayerThatRunsWorthNothing) {
    for (std::size_t answer = 1; answer < Whereabouts::kMany; ++answer) {
        is_asked_and_answers();
        receiver.looked();
    }
    took_a_chunk();
    is_asked_and_answers();
    receiver.looked();
    EXPECT_EQ(judge_after(kTime + 1us), Verdict::ping);
}

TEST_F(Asked, OneThatCannotBeAskedIsGivenTime) {
    receiver = Whereabouts{};
    EXPECT_EQ(judge_after(Whereabouts::kPatience * kTime), Verdict::unknown);
    EXPECT_EQ(judge_after(1us), Verdict::waits);
}

TEST_F(Asked, APingThatCouldNotBeSentIsNotWaitedFor) {
    ASSERT_EQ(judge_after(kTime + 1us), Verdict::ping);
    receiver.not_sent();
    EXPECT_EQ(judge(), Verdict::ping);
}

}  // namespace
}  // namespace awaken::p2p
