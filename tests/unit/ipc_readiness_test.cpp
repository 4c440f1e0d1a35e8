// SPDX-License-Identifier: Apache-2.0
// When what is sent may be read: how often the GPU is asked about its default stream, and that nothing is forgotten.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "forwarding_gpu.h"
#include "ipc/readiness.h"

namespace awaken::ipc {
namespace {

using namespace std::chrono_literals;

/// Default streams that get as far as the test says.
class Streams final : public test::ForwardingGpu {
  public:
    Streams() : ForwardingGpu(gpu::none()) {}

    /// All that was marked up to the given number (the first is 1) is over.
    void pass(const int device, const std::uintptr_t mark) {
        const std::scoped_lock lock(_mutex);
        _passed[device] = mark;
    }
    void pass_all() {
        const std::scoped_lock lock(_mutex);
        _all = true;
    }
    void break_mark(const std::uintptr_t mark) {
        const std::scoped_lock lock(_mutex);
        _broken = mark;
    }
    void gone() {
        const std::scoped_lock lock(_mutex);
        _gone = true;
    }
    [[nodiscard]] int answered() const { return get(_answered); }
    [[nodiscard]] int refused() const { return get(_refused); }
    [[nodiscard]] int waited() const { return get(_waited); }
    [[nodiscard]] int live_marks() const { return get(_live); }

    gpu::Status finish_default_stream(int) noexcept override {
        const std::scoped_lock lock(_mutex);
        ++_waited;
        return _gone ? gpu::Status{gpu::kShutDown, "finish", "gone"} : gpu::Status{};
    }
    gpu::Status mark_default_stream(const int device, gpu::EventHandle& mark) noexcept override {
        const std::scoped_lock lock(_mutex);
        if (_gone) {
            return {gpu::kShutDown, "mark", "gone"};
        }
        mark = {reinterpret_cast<void*>(++_marks[device]), device};
        ++_live;
        return {};
    }
    gpu::Status query_default_stream(gpu::EventHandle& mark, bool& over) noexcept override {
        const std::scoped_lock lock(_mutex);
        const auto number = reinterpret_cast<std::uintptr_t>(mark.value);
        const bool fails = _gone || number == _broken;
        over = fails || _all || number <= _passed[mark.device];
        ++(over ? _answered : _refused);
        if (over) {
            mark = {};
            --_live;
        }
        return fails ? gpu::Status{gpu::kShutDown, "query", "broken"} : gpu::Status{};
    }
    void drop_default_stream(gpu::EventHandle& mark) noexcept override {
        const std::scoped_lock lock(_mutex);
        if (mark.value != nullptr) {
            --_live;
        }
        mark = {};
    }

  private:
    [[nodiscard]] int get(const int& value) const {
        const std::scoped_lock lock(_mutex);
        return value;
    }
    mutable std::mutex _mutex;
    std::map<int, std::uintptr_t> _marks, _passed;
    std::uintptr_t _broken = 0;
    int _answered = 0, _refused = 0, _waited = 0, _live = 0;
    bool _all = false, _gone = false;
};

class Sent final : public Readiness::Source {
  public:
    [[nodiscard]] bool is_settled() const {
        const std::scoped_lock lock(_mutex);
        return _outcome.has_value();
    }
    [[nodiscard]] bool failed() const {
        const std::scoped_lock lock(_mutex);
        return _outcome && !_outcome->ok();
    }
    void became_ready(const gpu::Status& status) noexcept override {
        const std::scoped_lock lock(_mutex);
        EXPECT_FALSE(_outcome) << "settled twice";
        _outcome = status;
    }

  private:
    mutable std::mutex _mutex;
    std::optional<gpu::Status> _outcome;
};

/// Everything belongs to one burst, and nothing is asked about for its age.
Readiness::Pace endless_burst() {
    Readiness::Pace pace;
    pace.closely = 100000h;
    pace.before_burst = 0;
    pace.long_enough = pace.left = 1h;
    pace.linger = 0ns;
    return pace;
}

class ReadinessTest : public ::testing::Test {
  protected:
    ~ReadinessTest() override { end(); }
    void begin(const Readiness::Pace& pace) {
        background.emplace();
        readiness = std::make_shared<Readiness>(gpu, pace);
    }
    void end() {
        if (readiness == nullptr) {
            return;
        }
        readiness->end();
        background->stop();
        readiness.reset();
        EXPECT_EQ(gpu.live_marks(), 0) << "marks were left";
    }
    std::shared_ptr<Sent> send(const int device = 0, const Readiness::Clock::time_point now = Readiness::Clock::now(),
                               const bool large = false) {
        auto message = std::make_shared<Sent>();
        gpu::EventHandle mark;
        EXPECT_TRUE(gpu.mark_default_stream(device, mark).ok());
        const bool wants_background = readiness->add(message, mark, large, now);
        if (wants_background && has_background) {
            background->take(readiness);
        }
        return message;
    }
    std::vector<std::shared_ptr<Sent>> burst(const int messages) {
        std::vector<std::shared_ptr<Sent>> all;
        for (int i = 0; i < messages; ++i) {
            all.push_back(send());
        }
        return all;
    }
    template <typename Condition>
    static bool soon(const Condition& condition) {
        const auto limit = std::chrono::steady_clock::now() + 60s;
        while (!condition()) {
            if (std::chrono::steady_clock::now() > limit) {
                return false;
            }
            std::this_thread::yield();
        }
        return true;
    }

    Streams gpu;
    std::optional<Background> background;
    /// Elsewhere it would take the lock at the moment when the test asks, which then leaves asking to it.
    bool has_background = false;
    std::shared_ptr<Readiness> readiness;
};

TEST_F(ReadinessTest, ABurstBeginsWithTheFifthSendInARow) {
    Readiness::Pace pace = endless_burst();
    pace.before_burst = 4;
    pace.closely = 10us;
    begin(pace);
    const Readiness::Clock::time_point start = Readiness::Clock::now();
    for (int i = 0; i < 8; ++i) {
        EXPECT_EQ(readiness->in_burst(start + i * 3us), i >= 4) << i;
    }
    EXPECT_FALSE(readiness->in_burst(start + 1ms)) << "a pause ends it";
    EXPECT_FALSE(readiness->in_burst(start + 1ms + 3us));
}

TEST_F(ReadinessTest, OneQuestionAnswersForSeveral) {
    gpu.pass_all();
    begin(endless_burst());
    const auto all = burst(64);
    readiness->ask();
    for (const auto& message : all) {
        EXPECT_TRUE(message->is_settled());
    }
    EXPECT_EQ(gpu.answered(), 64 / 32);
    EXPECT_EQ(gpu.refused() + gpu.waited(), 0);
    EXPECT_FALSE(readiness->any());
}

TEST_F(ReadinessTest, ReceiversOfLargeMessagesBeginEarly) {
    gpu.pass_all();
    begin(endless_burst());
    std::vector<std::shared_ptr<Sent>> all;
    for (int i = 0; i < 8; ++i) {
        all.push_back(send(0, Readiness::Clock::now(), true));
        EXPECT_EQ(all.front()->is_settled(), i >= 3) << i;
    }
    EXPECT_TRUE(all.back()->is_settled());
    EXPECT_EQ(gpu.answered(), 2);
}

TEST_F(ReadinessTest, TheOldestIsAskedAboutWhenItHasWaitedLong) {
    gpu.pass_all();
    Readiness::Pace pace = endless_burst();
    pace.long_enough = 1ms;
    begin(pace);
    const Readiness::Clock::time_point start = Readiness::Clock::now();
    const auto message = send(0, start);
    EXPECT_FALSE(message->is_settled());
    const auto soon_after = send(0, start + 1ms - 1ns, true);
    const auto small = send(0, start + 1ms);
    EXPECT_FALSE(message->is_settled());
    EXPECT_FALSE(soon_after->is_settled());
    EXPECT_FALSE(small->is_settled());
    const auto next = send(0, start + 1ms, true);
    EXPECT_TRUE(message->is_settled());
    EXPECT_TRUE(next->is_settled());
}

TEST_F(ReadinessTest, LaterWorkHoldsNoEarlierMessageBack) {
    constexpr std::uintptr_t kMessages = 7;
    std::uintptr_t marked = 0;
    for (std::uintptr_t over = 0; over <= kMessages; ++over) {
        begin(endless_burst());
        const auto all = burst(kMessages);
        gpu.pass(0, marked + over);
        // Each time at least one that may go does.
        for (std::uintptr_t i = 0; i < kMessages; ++i) {
            readiness->ask();
        }
        for (std::uintptr_t i = 0; i < kMessages; ++i) {
            EXPECT_EQ(all[i]->is_settled(), i < over) << "message " << i << " with " << over << " over";
        }
        marked += kMessages;
        gpu.pass(0, marked);
        readiness->ask();
        for (const auto& message : all) {
            EXPECT_TRUE(message->is_settled());
        }
        end();
    }
}

/// However many are waiting for work that is not over, few answers are enough.
TEST_F(ReadinessTest, WorkThatIsNotOverIsFoundOutAboutSoon) {
    begin(endless_burst());
    burst(7);
    readiness->ask();
    EXPECT_EQ(gpu.refused(), 4) << "the youngest, and the first, third and sixth before it";
    EXPECT_EQ(gpu.answered(), 0);
}

TEST_F(ReadinessTest, DevicesAnswerForThemselves) {
    begin(endless_burst());
    const auto here = send(0), there = send(1);
    gpu.pass(1, 1000);
    readiness->ask();
    EXPECT_FALSE(here->is_settled());
    EXPECT_TRUE(there->is_settled());
    gpu.pass(0, 1000);
    readiness->ask();
    EXPECT_TRUE(here->is_settled());
}

TEST_F(ReadinessTest, AnErrorIsThatOfItsMessage) {
    begin(endless_burst());
    const auto all = burst(7);
    gpu.break_mark(7);
    gpu.pass_all();
    readiness->ask();
    for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(all[i]->is_settled());
        EXPECT_EQ(all[i]->failed(), i == 6);
    }
}

TEST_F(ReadinessTest, ADriverThatIsShutDownSettlesAllWithItsError) {
    begin(endless_burst());
    const auto all = burst(5);
    gpu.gone();
    readiness->ask();
    for (const auto& message : all) {
        EXPECT_TRUE(message->failed());
    }
    EXPECT_FALSE(readiness->any());
}

TEST_F(ReadinessTest, TheEndGivesUpWhatIsLeft) {
    begin(endless_burst());
    const auto left = burst(3);
    readiness->end();
    EXPECT_EQ(gpu.live_marks(), 0);
    EXPECT_FALSE(readiness->any());
    for (const auto& message : left) {
        EXPECT_FALSE(message->is_settled());
    }
}

TEST_F(ReadinessTest, TheBackgroundSettlesWhatNobodyAsksAbout) {
    has_background = true;
    Readiness::Pace pace = endless_burst();
    pace.left = 20us;
    begin(pace);
    for (int round = 0; round < 20; ++round) {
        auto all = burst(3);
        const std::vector<std::weak_ptr<Sent>> known(all.begin(), all.end());
        gpu.pass(0, static_cast<std::uintptr_t>(3 * (round + 1)));
        const auto last = all.back();
        all.clear();  // nobody else has them any more
        EXPECT_TRUE(soon([&] { return last->is_settled() && !readiness->any(); }));
        EXPECT_TRUE(soon([&] { return known.front().expired(); }));
        if (round % 10 == 9) {
            std::this_thread::sleep_for(10ms);  // it has gone to sleep, and is woken again
        }
    }
}

TEST_F(ReadinessTest, TheBackgroundLooksSeldomWhereSendersSettleEverythingThemselves) {
    Readiness::Pace pace = endless_burst();
    pace.left = 0ns;
    pace.linger = 1h;
    pace.between_looks = 50us;
    pace.most_between_looks = 300us;
    pace.looks_for_nothing = 3;
    begin(pace);
    gpu.pass_all();
    const auto by_its_sender = send();
    readiness->ask();
    EXPECT_TRUE(by_its_sender->is_settled());
    const std::vector<std::chrono::microseconds> growing{50us, 50us, 50us, 100us, 200us, 300us, 300us};
    for (const auto pause : growing) {
        EXPECT_FALSE(readiness->pump()) << "it lingers";
        EXPECT_EQ(readiness->pause(), pause);
    }

    // One that was left longer than between two looks: there may be more of that kind.
    const auto left = send();
    const Readiness::Clock::time_point sent = Readiness::Clock::now();
    ASSERT_TRUE(soon([&] { return Readiness::Clock::now() - sent >= 50us; }));
    EXPECT_FALSE(readiness->pump());
    EXPECT_TRUE(left->is_settled());
    EXPECT_EQ(readiness->pause(), 50us);
    for (const auto pause : growing) {
        EXPECT_FALSE(readiness->pump());
        EXPECT_EQ(readiness->pause(), pause);
    }
}

TEST_F(ReadinessTest, TheBackgroundLeavesASenderAloneThatGoesOnSending) {
    gpu.pass_all();
    Readiness::Pace pace = endless_burst();
    pace.left = 1h;
    begin(pace);
    const Readiness::Clock::time_point now = Readiness::Clock::now();
    const auto first = send(0, now - 3h);
    const auto last = send(0, now);
    EXPECT_FALSE(readiness->pump());
    EXPECT_FALSE(first->is_settled());
    readiness->ask();
    const auto left = send(0, now - 2h);
    EXPECT_TRUE(readiness->pump()) << "nothing is left, and it does not linger";
    EXPECT_TRUE(left->is_settled());
}

TEST_F(ReadinessTest, TheBackgroundBeginsAnewWithFrequentLooks) {
    Readiness::Pace pace = endless_burst();
    pace.between_looks = 1h;
    pace.most_between_looks = 3h;
    pace.looks_for_nothing = 0;
    begin(pace);
    send();
    EXPECT_FALSE(readiness->pump()) << "its mark is not reached";
    EXPECT_EQ(readiness->pause(), 2h);
    gpu.pass_all();
    readiness->ask();
    EXPECT_TRUE(readiness->pump()) << "nothing is left";
    EXPECT_EQ(readiness->pause(), 1h);
    gpu::EventHandle mark;
    ASSERT_TRUE(gpu.mark_default_stream(0, mark).ok());
    EXPECT_TRUE(readiness->add(std::make_shared<Sent>(), mark, false, Readiness::Clock::now()))
        << "it is to be handed over again";
}

TEST_F(ReadinessTest, WhatIsForgottenIsNotSettled) {
    begin(endless_burst());
    const auto before = send(), forgotten = send(), after = send();
    readiness->forget(*forgotten);
    readiness->forget(*forgotten);
    gpu.pass_all();
    readiness->ask();
    EXPECT_TRUE(before->is_settled());
    EXPECT_FALSE(forgotten->is_settled());
    EXPECT_TRUE(after->is_settled());
    readiness->forget(*after);
}

TEST_F(ReadinessTest, AnyThreadMayCall) {
    has_background = true;
    Readiness::Pace pace = endless_burst();
    pace.left = 0ns;
    begin(pace);
    gpu.pass_all();
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
        threads.emplace_back([&, thread] {
            for (int i = 0; i < 500; ++i) {
                const auto message = send(thread % 2);
                if (i % 7 == 0) {
                    readiness->forget(*message);
                }
                if (i % 7 == 0 || i % 3 != 0) {
                    continue;
                }
                EXPECT_TRUE(soon([&] {
                    readiness->ask();
                    return message->is_settled();
                }));
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_TRUE(soon([&] { return !readiness->any(); }));
}

}  // namespace
}  // namespace awaken::ipc
