// Reachability: what a sender concludes from the answers of a receiver that takes nothing, with times that are made up.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>

#include "protocol/reachability.h"

namespace awaken::protocol {
namespace {

using namespace std::chrono_literals;
using Answer = Reachability::Answer;

constexpr Reachability::Clock::duration kTime = 2ms;

/// A receiver that can be asked, and has last taken a fragment just now.
class Asked : public ::testing::Test {
  protected:
    Asked() { receiver.listens(Reachability::kPings); }

    [[nodiscard]] Answer judge() { return receiver.judge(since, now, kTime); }
    /// What is said after so long.
    [[nodiscard]] Answer judge_after(const Reachability::Clock::duration passed) {
        now += passed;
        return judge();
    }
    void took_a_chunk() { since = now; }
    void answers() { receiver.answered(now); }
    /// The next ping is sent when it may be, and answered at once.
    void is_asked_and_answers() {
        ASSERT_EQ(judge_after(kTime + 1us), Answer::ping);
        answers();
    }
    /// As often as a receiver can without its layer, but for so many times.
    void is_asked_and_answers_but(const std::size_t missing) {
        for (std::size_t ping = missing; ping < Reachability::kPings; ++ping) {
            is_asked_and_answers();
        }
    }

    Reachability receiver;
    Reachability::Clock::time_point now{std::chrono::hours{1}};
    Reachability::Clock::time_point since = now;
};

TEST_F(Asked, OneThatTakesChunksIsNotAsked) {
    for (int turn = 0; turn < 100; ++turn) {
        EXPECT_EQ(judge_after(kTime), Answer::unknown);
        took_a_chunk();
    }
}

TEST_F(Asked, OneThatAnswersAllPingsAndWhoseLayerDoesNotRunWaits) {
    for (std::size_t ping = 0; ping < Reachability::kPings; ++ping) {
        EXPECT_NE(judge(), Answer::waits) << "perhaps it was only passing by";
        is_asked_and_answers();
    }
    EXPECT_EQ(judge(), Answer::waits);
    EXPECT_EQ(judge_after(std::chrono::hours{1}), Answer::waits);
}

TEST_F(Asked, PingsThatFollowAnAnswerLeaveTimeForALookAndNotMore) {
    is_asked_and_answers();
    EXPECT_EQ(judge_after(Reachability::kBetweenPings), Answer::unknown);
    EXPECT_EQ(judge_after(1us), Answer::ping);
    answers();
    receiver.looked();
    receiver.looked();
    EXPECT_EQ(judge_after(kTime), Answer::unknown) << "of one whose layer runs, chunks are expected first";
    EXPECT_EQ(judge_after(1us), Answer::ping);
}

TEST_F(Asked, OneThatComputesIsWaitedForHoweverLong) {
    ASSERT_EQ(judge_after(kTime + 1us), Answer::ping);
    for (int turn = 0; turn < 10; ++turn) {
        EXPECT_EQ(judge_after(std::chrono::hours{1}), Answer::unknown);
    }
}

TEST_F(Asked, OneThatIsOnlyPassingByIsWaitedForHoweverLong) {
    is_asked_and_answers_but(1);
    ASSERT_EQ(judge_after(kTime + 1us), Answer::ping);
    for (int turn = 0; turn < 10; ++turn) {
        EXPECT_EQ(judge_after(std::chrono::hours{1}), Answer::unknown);
    }
}

/// A receiver in the loops of its layer, which is stopped after each question to its MPI, for as long as it takes. It
/// answers a ping with each, and the word for the first comes only with the last of those that a layer may ask before
/// it looks.
TEST_F(Asked, OneThatIsStoppedAfterEachQuestionToItsMpiIsNotTakenToWait) {
    for (const auto stopped : {Reachability::Clock::duration(kTime), Reachability::Clock::duration(10ms),
                               Reachability::Clock::duration(std::chrono::hours{1})}) {
        for (int turn = 0; turn < 10; ++turn) {
            for (std::size_t question = 1; question < Reachability::kPings; ++question) {
                ASSERT_EQ(judge_after(stopped + 1us), Answer::ping);
                answers();
                EXPECT_NE(judge(), Answer::waits) << "no pause is a proof";
            }
            took_a_chunk();
            for (std::size_t word = 1; word < Reachability::kPings; ++word) {
                receiver.looked();
            }
        }
    }
}

TEST_F(Asked, OneThatIsStoppedBetweenItsWordsIsNotTakenToWait) {
    is_asked_and_answers_but(1);
    receiver.looked();  // the first of the words that it owes
    is_asked_and_answers();
    EXPECT_EQ(judge_after(kTime + 1us), Answer::ping);
    EXPECT_EQ(judge_after(std::chrono::hours{1}), Answer::unknown) << "it does not answer before it goes on";
    receiver.looked();
    answers();
    EXPECT_NE(judge(), Answer::waits);
}

/// Its layer speaks of what it has answered, and then it waits in the MPI, where it has answered before the word came.
TEST_F(Asked, AnswersAfterAWordThatComesLaterCount) {
    is_asked_and_answers();
    is_asked_and_answers();
    receiver.looked();  // of the first one
    for (std::size_t ping = 1; ping < Reachability::kPings; ++ping) {
        EXPECT_NE(judge(), Answer::waits);
        is_asked_and_answers();
    }
    EXPECT_EQ(judge(), Answer::waits);
}

TEST_F(Asked, OneWhoseLayerRunsIsWaitedForLongAndNotForEver) {
    for (std::size_t answer = 0; answer < Reachability::kMany; ++answer) {
        EXPECT_NE(judge(), Answer::waits);
        is_asked_and_answers();
        receiver.looked();
    }
    EXPECT_EQ(judge(), Answer::waits);
}

TEST_F(Asked, OneThatIsTakingAMessageIsWaitedForHoweverSlowItIs) {
    for (std::size_t answer = 0; answer < 10 * Reachability::kMany; ++answer) {
        ASSERT_NE(judge(), Answer::waits);
        is_asked_and_answers();
        receiver.looked(true);
    }
}

TEST_F(Asked, APauseOfTheSenderIsNoAnswer) {
    is_asked_and_answers();
    receiver.looked();
    EXPECT_EQ(judge_after(std::chrono::hours{1}), Answer::ping);
    EXPECT_EQ(judge_after(std::chrono::hours{1}), Answer::unknown);
}

TEST_F(Asked, OneThatWasFoundToWaitDoesSoUntilItsLayerRuns) {
    is_asked_and_answers_but(0);
    ASSERT_EQ(judge(), Answer::waits);
    took_a_chunk();  // its MPI did
    EXPECT_EQ(judge_after(kTime), Answer::unknown);
    EXPECT_EQ(judge_after(1us), Answer::waits);
    receiver.looked();
    EXPECT_EQ(judge(), Answer::ping);
}

TEST_F(Asked, AChunkMakesAnswersOfALayerThatRunsWorthNothing) {
    for (std::size_t answer = 1; answer < Reachability::kMany; ++answer) {
        is_asked_and_answers();
        receiver.looked();
    }
    took_a_chunk();
    is_asked_and_answers();
    receiver.looked();
    EXPECT_EQ(judge_after(kTime + 1us), Answer::ping);
}

TEST_F(Asked, OneThatHasNotSaidThatItListensIsNotAskedAndNotTakenToWait) {
    receiver = Reachability{};
    EXPECT_EQ(judge_after(std::chrono::hours{1}), Answer::unknown);
}

TEST_F(Asked, OneWhoseMpiFailsItIsNotWaitedFor) {
    receiver.fell_silent();
    EXPECT_EQ(judge_after(kTime), Answer::unknown);
    EXPECT_EQ(judge_after(1us), Answer::waits);
}

TEST_F(Asked, APingThatCouldNotBeSentIsNotWaitedFor) {
    ASSERT_EQ(judge_after(kTime + 1us), Answer::ping);
    receiver.not_sent();
    EXPECT_EQ(judge(), Answer::ping);
}

}  // namespace
}  // namespace awaken::protocol
