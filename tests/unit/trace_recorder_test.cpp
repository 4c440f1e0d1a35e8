// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "trace/recorder.h"

namespace awaken::trace {
namespace {

constexpr std::size_t kPlenty = std::size_t{1} << 30;

struct Seen {
    int thread;
    Event event;
};

std::vector<Seen> all_of(const Recorder& recorder) {
    std::vector<Seen> seen;
    recorder.for_each([&](const int thread, const Event& event) { seen.push_back({thread, event}); });
    return seen;
}

Event numbered(const std::uint64_t number) {
    Event event;
    event.begin_ns = number + 1;
    event.end_ns = number + 2;
    event.name = "MPI_Send";
    event.bytes = number;
    event.peer = 3;
    event.members = 8;
    event.path = 2;
    return event;
}

TEST(Recorder, KeepsEverythingInOrder) {
    Recorder recorder(kPlenty);
    constexpr std::uint64_t kEvents = 20'000;  // several chunks of the largest size
    for (std::uint64_t i = 0; i < kEvents; ++i) {
        recorder.add(numbered(i));
    }
    const std::vector<Seen> seen = all_of(recorder);
    ASSERT_EQ(seen.size(), kEvents);
    for (std::uint64_t i = 0; i < kEvents; ++i) {
        EXPECT_EQ(seen[i].thread, 0);
        EXPECT_EQ(seen[i].event.bytes, i);
        EXPECT_EQ(seen[i].event.begin_ns, i + 1);
        EXPECT_EQ(seen[i].event.end_ns, i + 2);
        EXPECT_EQ(seen[i].event.peer, 3);
        EXPECT_EQ(seen[i].event.members, 8);
        EXPECT_EQ(seen[i].event.path, 2);
    }
    EXPECT_EQ(recorder.kept(), kEvents);
    EXPECT_EQ(recorder.dropped(), 0U);
}

TEST(Recorder, CountsWhatDoesNotFit) {
    constexpr std::size_t kRoom = 1000;
    Recorder recorder(kRoom * sizeof(Event));
    for (std::uint64_t i = 0; i < 5 * kRoom; ++i) {
        recorder.add(numbered(i));
    }
    const std::vector<Seen> seen = all_of(recorder);
    // Chunks need not fill the budget to the last event.
    EXPECT_GT(seen.size(), kRoom * 9 / 10);
    EXPECT_LE(seen.size(), kRoom);
    EXPECT_EQ(recorder.kept(), seen.size());
    EXPECT_EQ(recorder.kept() + recorder.dropped(), 5 * kRoom);
    // The first ones are kept: what follows could not be understood without them.
    for (std::size_t i = 0; i < seen.size(); ++i) {
        ASSERT_EQ(seen[i].event.bytes, i);
    }

    Recorder nothing(0);
    nothing.add(numbered(1));
    nothing.push_range("range");
    nothing.pop_range();
    EXPECT_EQ(nothing.kept(), 0U);
    EXPECT_EQ(nothing.dropped(), 2U);
}

TEST(Recorder, PollsInARowAreOneEvent) {
    Recorder recorder(kPlenty);
    static const char* const test = "MPI_Test";
    const auto poll = [&](const char* const name, const std::uint64_t begin_ns) {
        Event event;
        event.name = name;
        event.begin_ns = begin_ns;
        event.end_ns = begin_ns + 10;
        event.bytes = 1;
        event.is_poll = true;
        recorder.add(event);
    };
    for (std::uint64_t i = 0; i < 1'000; ++i) {
        poll(test, 1'000 + 100 * i);
    }
    poll(test, 101'000 + 10 + kPollGap_ns);  // one by itself
    poll("MPI_Iprobe", 120'000);
    recorder.add(numbered(3));
    poll("MPI_Iprobe", 120'100);
    const std::vector<Seen> seen = all_of(recorder);
    ASSERT_EQ(seen.size(), 5U);
    EXPECT_EQ(seen[0].event.begin_ns, 1'000U);
    EXPECT_EQ(seen[0].event.end_ns, 100'910U);
    EXPECT_EQ(seen[0].event.repeats, 999U);
    EXPECT_EQ(seen[0].event.bytes, 1'000U);
    for (std::size_t i = 1; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i].event.repeats, 0U);
    }

    // An event may not reach out of the range that it began in.
    recorder.push_range("range");
    poll(test, 200'000);
    recorder.pop_range();
    poll(test, 200'100);
    EXPECT_EQ(all_of(recorder).size(), 8U);
}

TEST(Recorder, ThreadsDoNotLoseEachOthersEvents) {
    Recorder recorder(kPlenty);
    constexpr int kThreads = 8;
    constexpr std::uint64_t kEach = 20'000;
    std::barrier start(kThreads + 1);
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            start.arrive_and_wait();
            for (std::uint64_t i = 0; i < kEach; ++i) {
                Event event = numbered(i);
                event.peer = t;
                recorder.add(event);
            }
        });
    }
    // Whoever reads meanwhile sees whole events, in order, and never fewer than before.
    std::thread reader([&] {
        std::size_t before = 0;
        while (!over.load(std::memory_order_acquire)) {
            std::map<int, std::uint64_t> next;
            std::size_t count = 0;
            recorder.for_each([&](const int thread, const Event& event) {
                ASSERT_EQ(event.bytes, next[thread]++);
                ASSERT_EQ(event.end_ns, event.bytes + 2);
                ++count;
            });
            ASSERT_GE(count, before);
            before = count;
        }
    });
    start.arrive_and_wait();
    for (std::thread& thread : threads) {
        thread.join();
    }
    over.store(true, std::memory_order_release);
    reader.join();
    std::map<int, std::map<int, std::uint64_t>> counts;
    for (const Seen& seen : all_of(recorder)) {
        ++counts[seen.thread][seen.event.peer];
    }
    ASSERT_EQ(counts.size(), static_cast<std::size_t>(kThreads));
    for (const auto& [thread, of] : counts) {
        ASSERT_EQ(of.size(), 1U) << "a lane belongs to one thread";
        EXPECT_EQ(of.begin()->second, kEach);
    }
}

TEST(Recorder, ThreadsShareOneBudget) {
    constexpr std::size_t kRoom = 4096;
    Recorder recorder(kRoom * sizeof(Event));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (std::uint64_t i = 0; i < kRoom; ++i) {
                recorder.add(numbered(i));
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_LE(recorder.kept(), kRoom);
    EXPECT_EQ(recorder.kept() + recorder.dropped(), 4 * kRoom);
}

TEST(Recorder, AnEventMayEndOnAnotherThread) {
    Recorder recorder(kPlenty);
    Event begun = numbered(7);
    begun.end_ns = 0;
    Event* const event = recorder.open(begun);
    ASSERT_NE(event, nullptr);
    EXPECT_EQ(all_of(recorder).front().event.end_ns, 0U);
    std::thread([&] { Sink::close(event, 99); }).join();
    EXPECT_EQ(all_of(recorder).front().event.end_ns, 99U);
    Sink::close(nullptr, 1);  // one that did not fit
}

TEST(Recorder, RangesLieInOneAnotherOnEachThread) {
    Recorder recorder(kPlenty);
    recorder.pop_range();  // without a push: nothing
    std::string name = "outer";
    recorder.push_range(name);
    name = "inner";  // the name was copied
    recorder.push_range(name);
    std::thread([&] {
        recorder.pop_range();  // the other thread's ranges are not this one's
        recorder.push_range("other");
        recorder.pop_range();
    }).join();
    recorder.pop_range();
    recorder.push_range("open");
    const std::vector<Seen> seen = all_of(recorder);
    ASSERT_EQ(seen.size(), 4U);
    EXPECT_STREQ(seen[0].event.name, "outer");
    EXPECT_STREQ(seen[1].event.name, "inner");
    EXPECT_STREQ(seen[2].event.name, "open");
    EXPECT_STREQ(seen[3].event.name, "other");
    EXPECT_EQ(seen[0].event.end_ns, 0U);
    EXPECT_GE(seen[1].event.begin_ns, seen[0].event.begin_ns);
    EXPECT_GE(seen[1].event.end_ns, seen[1].event.begin_ns);
    EXPECT_EQ(seen[2].event.end_ns, 0U);
    EXPECT_NE(seen[3].thread, seen[0].thread);
    for (const Seen& one : seen) {
        EXPECT_EQ(one.event.kind, Kind::range);
    }
    recorder.pop_range();
    recorder.pop_range();
    recorder.pop_range();
    EXPECT_NE(all_of(recorder)[0].event.end_ns, 0U);
    EXPECT_EQ(all_of(recorder).size(), 4U);
}

TEST(Recorder, PopsMatchPushesThatDidNotFit) {
    Recorder recorder(16 * sizeof(Event) + 1024);
    for (int i = 0; i < 100; ++i) {
        recorder.push_range("range");
    }
    const std::uint64_t kept = recorder.kept();
    EXPECT_GT(kept, 0U);
    EXPECT_EQ(kept + recorder.dropped(), 100U);
    for (std::uint64_t i = 0; i < 100 - kept; ++i) {
        recorder.pop_range();
    }
    for (const Seen& seen : all_of(recorder)) {
        EXPECT_EQ(seen.event.end_ns, 0U) << "a pop of a range that did not fit has ended one that did";
    }
    recorder.pop_range();
    EXPECT_NE(all_of(recorder).back().event.end_ns, 0U);
    EXPECT_EQ(all_of(recorder).front().event.end_ns, 0U);
}

TEST(Recorder, NamesCountToTheBudget) {
    Recorder recorder(64 * sizeof(Event) + 100'000);
    const std::string long_name(10'000, 'x');
    for (int i = 0; i < 60; ++i) {
        recorder.push_range(long_name + std::to_string(i));
        recorder.pop_range();
    }
    EXPECT_LT(recorder.kept(), 11U);
    EXPECT_EQ(recorder.kept() + recorder.dropped(), 60U);
}

TEST(Recorder, ANewRecorderHasLanesOfItsOwn) {
    for (std::uint64_t i = 0; i < 10; ++i) {
        Recorder recorder(kPlenty);  // most often where the last one was
        recorder.add(numbered(i));
        const std::vector<Seen> seen = all_of(recorder);
        ASSERT_EQ(seen.size(), 1U);
        EXPECT_EQ(seen.front().event.bytes, i);
    }
}

TEST(Stretch, TellsTheSinkWhileThereIsOne) {
    Stretch untold;
    untold.begin(Kind::copy, "copy", 1, 0);
    untold.end();

    Recorder recorder(kPlenty);
    current_sink.store(&recorder);
    {
        Stretch first;
        first.begin(Kind::copy, "copy", 100, 1);
        Stretch moved(std::move(first));
        first.end();  // it has nothing to end
        EXPECT_EQ(all_of(recorder).front().event.end_ns, 0U);
        moved.end();
        const std::uint64_t end = all_of(recorder).front().event.end_ns;
        EXPECT_NE(end, 0U);
        moved.end();
        EXPECT_EQ(all_of(recorder).front().event.end_ns, end);
        moved.begin(Kind::kernel, "kernel", 200, 0, 5);
        Stretch other;
        other.begin(Kind::background, "round", 0, -1);
        other = std::move(moved);  // ends what it had
    }
    current_sink.store(nullptr);
    const std::vector<Seen> seen = all_of(recorder);
    ASSERT_EQ(seen.size(), 3U);
    EXPECT_EQ(seen[1].event.kind, Kind::kernel);
    EXPECT_EQ(seen[1].event.bytes, 200U);
    EXPECT_EQ(seen[1].event.peer, 5);
    for (const Seen& one : seen) {
        EXPECT_NE(one.event.end_ns, 0U);
    }
}

}  // namespace
}  // namespace awaken::trace
