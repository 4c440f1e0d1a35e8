// SPDX-License-Identifier: Apache-2.0
// Messages through a ring of shared chunks, on the emulated driver: step by step, where each state can be looked at;
// then as CUDA and as HIP between threads and between processes.
#include "transfer/ring.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "random_layout.h"
#include "transfer_device_copies_checks.h"
#include "watched_gpu.h"

namespace awaken::transfer {
namespace {

using checks::Buffer;
using checks::Place;
using emulator_test::view;
using emulator_test::WatchedGpu;
using test::Random;

constexpr std::size_t KiB = 1024;

std::byte byte_at(const std::size_t position, const unsigned seed) {
    return static_cast<std::byte>((position * 2654435761u + seed * 97u) >> 7);
}

std::vector<std::byte> content_of(const std::size_t bytes, const unsigned seed) {
    std::vector<std::byte> content(bytes);
    for (std::size_t position = 0; position < bytes; ++position) {
        content[position] = byte_at(position, seed);
    }
    return content;
}

// ---- step by step ---------------------------------------------------------------------------------------------------

class RingTest : public ::testing::Test {
  protected:
    /// A ring in memory that the GPU knows, full of what no message has.
    RingMemory make_ring(const std::size_t chunk_bytes, const std::size_t chunks) {
        void* memory = nullptr;
        EXPECT_TRUE(gpu.allocate_pinned(chunk_bytes * chunks, memory).ok());
        std::memset(memory, 0xCC, chunk_bytes * chunks);
        return {static_cast<std::byte*>(memory), chunk_bytes, chunks, true};
    }
    /// Device memory with these bytes.
    std::byte* on_device(const std::vector<std::byte>& content) {
        void* memory = nullptr;
        EXPECT_TRUE(gpu.allocate(0, std::max<std::size_t>(content.size(), 1), memory).ok());
        if (!content.empty()) {
            std::memcpy(view(memory), content.data(), content.size());
        }
        return static_cast<std::byte*>(memory);
    }
    gpu::PointerInfo info_of(const void* pointer) { return emulator_test::info_of(gpu, pointer); }
    std::vector<std::byte> bytes_at(const std::byte* pointer, const std::size_t bytes) {
        return {view(pointer), view(pointer) + bytes};
    }
    std::unique_ptr<RingWriter> write(const RingMemory& ring, const std::vector<std::byte>& content) {
        std::byte* const source = on_device(content);
        const gpu::PointerInfo info = info_of(source);  // of no interest any more once the writer was made
        return std::make_unique<RingWriter>(copies, control, ring, 0, DeviceCopies::End{source, &info}, content.size());
    }
    std::unique_ptr<RingReader> read(const RingMemory& ring, std::byte* const destination, const std::size_t wanted,
                                     const std::size_t bytes) {
        const gpu::PointerInfo info = info_of(destination);
        return std::make_unique<RingReader>(copies, control, ring, 0, DeviceCopies::End{destination, &info}, wanted,
                                            bytes);
    }
    /// Until nothing happens any more.
    template <typename Side>
    void exhaust(Side& side) {
        for (int idle = 0; idle < 10;) {
            wait_for_gpu();
            idle = side.advance() ? 0 : idle + 1;
        }
    }

    void wait_for_gpu() { EXPECT_TRUE(gpu.is_idle(-1, std::chrono::minutes(1))); }
    /// Every second answer is no, and so each look finds one copy over and not more.
    void let_copies_end_one_by_one() {
        wait_for_gpu();
        gpu.held = [no = false]() mutable { return no = !no; };
    }

    WatchedGpu gpu;
    PinnedPool pool{std::size_t{64} << 20};
    DeviceCopies copies{gpu, pool, Tuning{}, CopyEngine::automatic};
    RingControl control;
};

TEST_F(RingTest, BytesArriveWhateverTheSizesAndTheOrderOfSteps) {
    Random random(7);
    // Chunks as large as pieces, larger, of odd sizes; rings of one chunk up to more than a message has.
    const std::vector<std::pair<std::size_t, std::size_t>> geometries = {{16 * KiB, 4}, {16 * KiB, 1},  {5000, 3},
                                                                         {4096, 8},     {256 * KiB, 2}, {1, 7}};
    for (const auto& [chunk, chunks] : geometries) {
        const RingMemory ring = make_ring(chunk, chunks);
        for (const std::size_t bytes :
             {std::size_t{1}, chunk - chunk / 2, chunk, chunk + 1, 2 * chunk, 5 * chunk + 3, 3 * chunk * chunks - 1}) {
            for (const std::size_t wanted : {bytes, bytes - 1, bytes / 2, std::size_t{0}}) {
                new (&control) RingControl;
                const auto content = content_of(bytes, 1);
                std::byte* const destination = on_device(std::vector<std::byte>(bytes + 16, std::byte{0xEE}));
                const auto writer = write(ring, content);
                const auto reader = read(ring, destination, wanted, bytes);
                for (int step = 0; !reader->done(); ++step) {
                    ASSERT_LT(step, 100'000'000) << chunk << ' ' << chunks << ' ' << bytes << ' ' << wanted;
                    random() % 2 == 0 ? writer->advance() : reader->advance();
                    ASSERT_LE(control.consumed, control.produced);
                    ASSERT_LE(control.produced, control.consumed + chunk * chunks);
                }
                EXPECT_TRUE(writer->done());
                EXPECT_EQ(writer->produced(), bytes);
                EXPECT_EQ(control.failed, 0u);
                std::vector<std::byte> expected(bytes + 16, std::byte{0xEE});
                std::copy_n(content.begin(), wanted, expected.begin());
                ASSERT_EQ(bytes_at(destination, bytes + 16), expected)
                    << chunk << ' ' << chunks << ' ' << bytes << ' ' << wanted;
            }
        }
    }
}

TEST_F(RingTest, AnEmptyMessageIsOverAtOnce) {
    const RingMemory ring = make_ring(4096, 2);
    const auto writer = write(ring, {});
    const auto reader = read(ring, nullptr, 0, 0);
    EXPECT_TRUE(writer->done());
    EXPECT_TRUE(reader->done());
    EXPECT_FALSE(writer->advance());
    EXPECT_FALSE(reader->advance());
}

TEST_F(RingTest, CopiesOverlapAndAreToldOfOneByOne) {
    const RingMemory ring = make_ring(64 * KiB, 4);
    const auto content = content_of(6 * 64 * KiB, 2);
    const auto writer = write(ring, content);
    gpu.held = WatchedGpu::always;
    exhaust(*writer);
    EXPECT_EQ(gpu.calls("copy"), 4) << "one for each chunk";
    EXPECT_EQ(gpu.calls("record_event"), 4) << "an end of its own for each";
    EXPECT_EQ(control.produced, 0u);
    let_copies_end_one_by_one();
    std::vector<std::uint64_t> told;
    for (int step = 0; step < 100; ++step) {
        writer->advance();
        if (told.empty() || control.produced != told.back()) {
            told.push_back(control.produced);
        }
        // What was promised is there.
        ASSERT_EQ(std::memcmp(ring.base, content.data(), control.produced), 0);
    }
    EXPECT_EQ(told, (std::vector<std::uint64_t>{0, 64 * KiB, 2 * 64 * KiB, 3 * 64 * KiB, 4 * 64 * KiB}));

    std::byte* const destination = on_device(std::vector<std::byte>(content.size()));
    const auto reader = read(ring, destination, content.size(), content.size());
    gpu.reset_calls();
    gpu.held = WatchedGpu::always;
    exhaust(*reader);
    EXPECT_EQ(gpu.calls("copy"), 4);
    EXPECT_EQ(control.consumed, 0u);
    let_copies_end_one_by_one();
    for (int step = 0; step < 100 && control.consumed == 0; ++step) {
        reader->advance();
    }
    EXPECT_EQ(control.consumed, 64 * KiB);
}

TEST_F(RingTest, AChunkThatWasNotEmptiedIsNotFilledAgain) {
    const RingMemory ring = make_ring(16 * KiB, 3);
    const auto content = content_of(8 * 16 * KiB + 5, 3);
    const auto writer = write(ring, content);
    exhaust(*writer);
    EXPECT_EQ(control.produced, 3 * 16 * KiB);
    EXPECT_FALSE(writer->done());
    EXPECT_EQ(std::memcmp(ring.base, content.data(), 3 * 16 * KiB), 0);
    // One chunk becomes free: that one is filled, and no other.
    std::memset(ring.base, 0, 16 * KiB);
    control.consumed = 16 * KiB;
    exhaust(*writer);
    EXPECT_EQ(control.produced, 4 * 16 * KiB);
    EXPECT_EQ(std::memcmp(ring.base, content.data() + 3 * 16 * KiB, 16 * KiB), 0);
    EXPECT_EQ(std::memcmp(ring.base + 16 * KiB, content.data() + 16 * KiB, 2 * 16 * KiB), 0);
}

TEST_F(RingTest, WhatIsNotThereIsNotRead) {
    const RingMemory ring = make_ring(16 * KiB, 3);
    std::byte* const destination = on_device(std::vector<std::byte>(64 * KiB, std::byte{0xEE}));
    const auto reader = read(ring, destination, 64 * KiB, 64 * KiB);
    exhaust(*reader);
    EXPECT_EQ(gpu.calls("copy"), 0);
    control.produced = 16 * KiB;
    exhaust(*reader);
    EXPECT_EQ(control.consumed, 16 * KiB);
    EXPECT_EQ(bytes_at(destination, 16 * KiB), std::vector<std::byte>(16 * KiB, std::byte{0xCC}));
    EXPECT_EQ(bytes_at(destination + 16 * KiB, 1), std::vector<std::byte>(1, std::byte{0xEE}));
    EXPECT_FALSE(reader->done());
}

TEST_F(RingTest, AMessageThatFitsIntoAChunkComesInPieces) {
    const RingMemory ring = make_ring(1024 * KiB, 8);
    const auto writer = write(ring, content_of(800 * KiB, 4));
    exhaust(*writer);
    EXPECT_TRUE(writer->done());
    EXPECT_EQ(gpu.calls("copy"), 8);
    // A short one is not worth it.
    new (&control) RingControl;
    gpu.reset_calls();
    exhaust(*write(ring, content_of(20 * KiB, 4)));
    EXPECT_EQ(gpu.calls("copy"), 1);
}

TEST_F(RingTest, HostMemoryAtOneSideNeedsNoGpu) {
    const RingMemory ring = make_ring(64 * KiB, 4);
    const auto content = content_of(9 * 64 * KiB + 1, 6);
    std::vector<std::byte> source = content, destination(content.size());
    const gpu::PointerInfo host;
    RingWriter writer(copies, control, ring, 0, {source.data(), &host}, content.size());
    RingReader reader(copies, control, ring, 0, {destination.data(), &host}, content.size(), content.size());
    for (int step = 0; step < 100'000'000 && !reader.done(); ++step) {
        writer.advance();
        reader.advance();
    }
    EXPECT_TRUE(reader.done());
    EXPECT_EQ(destination, content);
    EXPECT_EQ(gpu.calls("copy"), 0);
}

TEST_F(RingTest, CountsThatCannotBeTrueEndTheMessage) {
    const RingMemory ring = make_ring(16 * KiB, 4);
    constexpr std::size_t kBytes = 10 * 16 * KiB + 5;
    struct Case {
        const char* what;
        bool writer;
        std::uint64_t before, count;
    };
    const std::uint64_t chunk = 16 * KiB;
    const std::vector<Case> cases = {
        {"more taken out than put in", true, 0, 5 * chunk},
        {"more than the whole message taken out", true, 0, UINT64_MAX},
        {"part of a piece taken out", true, 0, 1},
        {"something put back", true, 2 * chunk, chunk},
        {"everything put back", true, 2 * chunk, 0},
        {"more put in than there is", false, 0, kBytes + 1},
        {"far more put in than there is", false, 0, UINT64_MAX},
        {"more put in than fits", false, 0, 5 * chunk},
        {"all put in at once", false, 0, kBytes},
        {"part of a piece put in", false, 0, chunk + 1},
        {"something taken back", false, 2 * chunk, chunk},
    };
    for (const Case& wrong : cases) {
        new (&control) RingControl;
        std::byte* const destination = on_device(std::vector<std::byte>(kBytes));
        const auto writer = write(ring, content_of(kBytes, 7));
        const auto reader = read(ring, destination, kBytes, kBytes);
        const auto advance = [&] { return wrong.writer ? writer->advance() : reader->advance(); };
        std::atomic<std::uint64_t>& theirs = wrong.writer ? control.consumed : control.produced;
        if (wrong.writer) {
            exhaust(*writer);
        }
        theirs = wrong.before;
        ASSERT_NO_THROW(advance()) << wrong.what;
        const int copied = gpu.calls("copy");
        theirs = wrong.count;
        EXPECT_THROW(advance(), Error) << wrong.what;
        EXPECT_EQ(control.failed, 1u) << wrong.what;
        EXPECT_EQ(gpu.calls("copy"), copied) << wrong.what;
        // It stays so, whatever the count is then.
        theirs = wrong.before;
        control.failed = 0;
        EXPECT_THROW(advance(), Error) << wrong.what;
    }
}

TEST_F(RingTest, WhoGivesUpEndsTheOtherSideToo) {
    const RingMemory ring = make_ring(64 * KiB, 4);
    constexpr std::size_t kBytes = 10 * 64 * KiB;
    std::byte* const destination = on_device(std::vector<std::byte>(kBytes));
    for (const bool writer_fails : {true, false}) {
        for (const char* const call : {"copy", "record_event", "query_event", "create_stream"}) {
            new (&control) RingControl;
            DeviceCopies fresh(gpu, pool, Tuning{}, CopyEngine::automatic);  // the streams of another one may be broken
            const auto content = content_of(kBytes, 8);
            std::byte* const source = on_device(content);
            const gpu::PointerInfo from = info_of(source), to = info_of(destination);
            RingWriter writer(fresh, control, ring, 0, {source, &from}, kBytes);
            RingReader reader(fresh, control, ring, 0, {destination, &to}, kBytes, kBytes);
            if (writer_fails) {
                gpu.fail(call);
                EXPECT_THROW(exhaust(writer), Error) << call;
                EXPECT_EQ(control.failed, 1u) << call;
                EXPECT_THROW(reader.advance(), Error) << call;
            } else {
                exhaust(writer);
                gpu.fail(call);
                EXPECT_THROW(exhaust(reader), Error) << call;
                EXPECT_EQ(control.failed, 1u) << call;
                EXPECT_THROW(writer.advance(), Error) << call;
            }
            EXPECT_THROW(writer.advance(), Error) << call;
            EXPECT_THROW(reader.advance(), Error) << call;
        }
    }
}

TEST_F(RingTest, AFailureIsToldOnlyWhenTheGpuHasLetGoOfTheRing) {
    const RingMemory ring = make_ring(16 * KiB, 4);
    const auto content = content_of(10 * 16 * KiB, 9);
    const auto writer = write(ring, content);
    gpu.fail("copy", 3);  // the fourth one, while three are under way
    gpu.held = [left = 20]() mutable { return left-- > 0; };
    EXPECT_THROW(writer->advance(), Error);
    EXPECT_EQ(control.failed, 1u);
    EXPECT_EQ(std::memcmp(ring.base, content.data(), 3 * 16 * KiB), 0);
}

TEST_F(RingTest, TheEndWaitsForCopiesAndLeavesTheControlWordsAlone) {
    const RingMemory ring = make_ring(16 * KiB, 4);
    const auto content = content_of(10 * 16 * KiB, 10);
    std::byte* const destination = on_device(std::vector<std::byte>(content.size()));
    auto writer = write(ring, content);
    gpu.held = WatchedGpu::always;
    writer->advance();
    gpu.held = nullptr;
    writer.reset();
    EXPECT_EQ(std::memcmp(ring.base, content.data(), 4 * 16 * KiB), 0);
    EXPECT_EQ(control.produced, 0u);
    EXPECT_EQ(control.failed, 0u);
    control.produced = 4 * 16 * KiB;
    auto reader = read(ring, destination, content.size(), content.size());
    gpu.held = WatchedGpu::always;
    reader->advance();
    gpu.held = nullptr;
    reader.reset();
    EXPECT_EQ(bytes_at(destination, 4 * 16 * KiB),
              std::vector<std::byte>(content.begin(), content.begin() + 4 * 16 * KiB));
    EXPECT_EQ(control.consumed, 0u);
    EXPECT_EQ(control.failed, 0u);
}

TEST_F(RingTest, ControlWordsBelongToTheNextMessageOnceOneIsOver) {
    const RingMemory ring = make_ring(16 * KiB, 4);
    const auto content = content_of(16 * KiB, 11);
    std::byte* const destination = on_device(std::vector<std::byte>(content.size()));
    const auto writer = write(ring, content);
    const auto reader = read(ring, destination, content.size(), content.size());
    exhaust(*writer);
    exhaust(*reader);
    ASSERT_TRUE(writer->done() && reader->done());
    control.produced = 12345;
    control.consumed = 54321;
    control.failed = 1;
    EXPECT_FALSE(writer->advance());
    EXPECT_FALSE(reader->advance());
    EXPECT_EQ(control.produced, 12345u);
    EXPECT_EQ(control.consumed, 54321u);
}

TEST_F(RingTest, ARingWithoutChunksIsRefused) {
    const RingMemory none{nullptr, 4096, 0, true}, empty{nullptr, 0, 4, true};
    EXPECT_THROW(write(none, content_of(1, 1)), Error);
    EXPECT_THROW(write(empty, content_of(1, 1)), Error);
    EXPECT_THROW(read(empty, nullptr, 1, 1), Error);
}

// ---- on the emulated driver -----------------------------------------------------------------------------------------

/// One message.
struct Message {
    std::size_t bytes, wanted, chunk_bytes, chunks;
    Place from = Place::device, to = Place::other_device;
    bool writer_registered = true, reader_registered = true;
    bool slow_reader = false;
};

std::vector<Message> all_messages() {
    constexpr std::size_t kChunk = 64 * KiB;
    std::vector<Message> messages;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, kChunk - 1, kChunk, kChunk + 1, 3 * kChunk,
                                    5 * kChunk + 3, 19 * kChunk + 7}) {
        messages.push_back({bytes, bytes, kChunk, 4});
    }
    for (const std::size_t wanted : {std::size_t{0}, std::size_t{1}, kChunk, 2 * kChunk + 77, 5 * kChunk + 2}) {
        messages.push_back({5 * kChunk + 3, wanted, kChunk, 4});
    }
    messages.push_back({500'000, 500'000, 5000, 7});
    messages.push_back({5 * kChunk + 3, 5 * kChunk + 3, kChunk, 1});
    for (const Place from : {Place::device, Place::ordinary, Place::pinned, Place::managed}) {
        for (const Place to : {Place::other_device, Place::ordinary, Place::pinned, Place::managed}) {
            messages.push_back({9 * kChunk + 3, 9 * kChunk + 1, kChunk, 4, from, to});
        }
    }
    for (const auto& [from, to] : {std::pair{Place::device, Place::other_device},
                                   {Place::ordinary, Place::ordinary},
                                   {Place::pinned, Place::pinned}}) {
        for (const bool writer : {false, true}) {
            messages.push_back({9 * kChunk + 3, 9 * kChunk + 3, kChunk, 4, from, to, writer, !writer});
            messages.push_back({9 * kChunk + 3, 9 * kChunk + 3, kChunk, 4, from, to, false, false});
        }
    }
    messages.push_back({11 * kChunk, 11 * kChunk, kChunk, 4});
    messages.back().slow_reader = true;
    return messages;
}

/// What the two sides share: control words of each message, and memory for the largest ring.
struct Shared {
    static constexpr std::size_t kRingBytes = std::size_t{1} << 20;
    std::array<RingControl, 128> controls;
    alignas(4096) std::array<std::byte, kRingBytes> known;    ///< registered with the GPU runtime of each side
    alignas(4096) std::array<std::byte, kRingBytes> unknown;  ///< the same chunks are never in both
};

Shared& make_shared_memory() {
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        std::abort();
    }
    return *new (memory) Shared;
}

void require(const gpu::Status& status, const char* what) {
    if (!status.ok()) {
        throw Error(std::string(what) + ": " + status.message(), "this test cannot go on");
    }
}

/// A process's GPU runtime and what stands on it.
class Machine {
  public:
    Machine(const std::string& vendor, Shared& shared)
        : _library(vendor == "cuda" ? "libcuda.so.1" : "libamdhip64.so.6"),
          gpu(gpu::find(vendor == "cuda" ? gpu::Choice::cuda : gpu::Choice::hip)),
          copies(gpu, pool, Tuning{}, CopyEngine::automatic),
          _shared(shared) {
        require(gpu.register_host(shared.known.data(), Shared::kRingBytes), "registering the ring");
    }
    ~Machine() {
        copies.shut_down();
        pool.trim();
        static_cast<void>(gpu.unregister_host(_shared.known.data()));
    }

  private:
    emulator_test::Library _library;

  public:
    gpu::Runtime& gpu;
    PinnedPool pool{std::size_t{64} << 20};
    DeviceCopies copies;

  private:
    Shared& _shared;
};

RingMemory ring_of(const Message& message, Shared& shared, const bool registered) {
    // One piece of memory for both sides, though only one of them may have made it known to its GPU.
    const bool known = message.writer_registered || message.reader_registered;
    return {known ? shared.known.data() : shared.unknown.data(), message.chunk_bytes, message.chunks, registered};
}

/// The writer's part of message number `number`.
void write_message(Machine& machine, Shared& shared, const Message& message, const unsigned number) {
    Buffer source(machine.gpu, message.from, message.bytes);
    source.write(content_of(message.bytes, number));
    RingControl& control = shared.controls[number];
    RingWriter writer(machine.copies, control, ring_of(message, shared, message.writer_registered), 0, source.end(),
                      message.bytes);
    while (!writer.done()) {
        if (!writer.advance()) {
            sched_yield();
        }
    }
    // The next message uses the same chunks.
    while (control.consumed.load(std::memory_order_acquire) != message.bytes) {
        if (control.failed.load(std::memory_order_acquire) != 0) {
            throw Error("the reader gave up", "look at its error");
        }
        sched_yield();
    }
}

void read_message(Machine& machine, Shared& shared, const Message& message, const unsigned number) {
    constexpr std::size_t kBeyond = 64;
    Buffer destination(machine.gpu, message.to, message.bytes + kBeyond);
    destination.write(std::vector<std::byte>(message.bytes + kBeyond, std::byte{0xEE}));
    RingControl& control = shared.controls[number];
    if (message.slow_reader) {
        while (control.produced.load(std::memory_order_acquire) != message.chunk_bytes * message.chunks) {
            sched_yield();
        }
    }
    RingReader reader(machine.copies, control, ring_of(message, shared, message.reader_registered), 1,
                      destination.end(), message.wanted, message.bytes);
    while (!reader.done()) {
        if (!reader.advance()) {
            sched_yield();
        }
    }
    std::vector<std::byte> expected = content_of(message.bytes, number);
    std::fill(expected.begin() + static_cast<std::ptrdiff_t>(message.wanted), expected.end(), std::byte{0xEE});
    expected.resize(message.bytes + kBeyond, std::byte{0xEE});
    const std::vector<std::byte> found = destination.read();
    if (found != expected) {
        const auto at = std::mismatch(expected.begin(), expected.end(), found.begin()).first;
        throw Error("message " + std::to_string(number) + " is wrong from byte " +
                        std::to_string(at - expected.begin()) + " on",
                    "look at the ring");
    }
}

/// Runs a side; 0 when it was as it should be.
template <typename Body>
int run_side(const char* name, const Body& body) {
    try {
        body();
        return 0;
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", name, error.what());
        return 1;
    }
}

int wait_for(const pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

SCENARIO(ring_between_threads) {
    Shared& shared = make_shared_memory();
    const std::vector<Message> messages = all_messages();
    Machine machine(arguments.at(0), shared);
    int written = -1;
    std::thread writer([&] {
        written = run_side("writer", [&] {
            for (unsigned number = 0; number < messages.size(); ++number) {
                write_message(machine, shared, messages[number], number);
            }
        });
    });
    const int was_read = run_side("reader", [&] {
        for (unsigned number = 0; number < messages.size(); ++number) {
            read_message(machine, shared, messages[number], number);
        }
    });
    if (was_read != 0) {
        for (RingControl& control : shared.controls) {
            control.failed = 1;
        }
    }
    writer.join();
    return written + was_read;
}

SCENARIO(ring_between_processes) {
    Shared& shared = make_shared_memory();
    const std::vector<Message> messages = all_messages();
    // The runtime starts after the fork: it does not survive one.
    const pid_t child = fork();
    if (child == 0) {
        const int status = run_side("writer", [&] {
            Machine machine(arguments.at(0), shared);
            for (unsigned number = 0; number < messages.size(); ++number) {
                write_message(machine, shared, messages[number], number);
            }
        });
        for (RingControl& control : shared.controls) {
            control.failed = static_cast<std::uint32_t>(status);
        }
        _exit(status);
    }
    const int was_read = run_side("reader", [&] {
        Machine machine(arguments.at(0), shared);
        for (unsigned number = 0; number < messages.size(); ++number) {
            read_message(machine, shared, messages[number], number);
        }
    });
    if (was_read != 0) {
        for (RingControl& control : shared.controls) {
            control.failed = 1;
        }
    }
    return was_read + wait_for(child);
}

/// A copy of one process fails: both sides end with an error, and neither hangs.
SCENARIO(ring_with_a_failing_side) {
    Shared& shared = make_shared_memory();
    const bool writer_fails = arguments.at(1) == "writer";
    const Message message{40 * 64 * KiB, 40 * 64 * KiB, 64 * KiB, 4};
    const auto side = [&](const bool is_writer) {
        if (is_writer == writer_fails) {
            setenv("AWAKEN_TEST_FAULTS", "copy-error=9", 1);
        }
        return run_side(is_writer ? "writer" : "reader", [&] {
            Machine machine(arguments.at(0), shared);
            is_writer ? write_message(machine, shared, message, 0) : read_message(machine, shared, message, 0);
        });
    };
    const pid_t child = fork();
    if (child == 0) {
        _exit(side(true));
    }
    const int was_read = side(false);
    REQUIRE_EQUAL(wait_for(child), 1);
    REQUIRE_EQUAL(was_read, 1);
    REQUIRE_EQUAL(shared.controls[0].failed.load(), 1u);
    return 0;
}

class RingEmulatedTest : public ::testing::TestWithParam<const char*> {
  protected:
    static emulator_test::Outcome run(const std::string& scenario, const std::string& more = {}) {
        const std::string vendor = GetParam();
        return emulator_test::run_scenario(
            scenario, {{"AWAKEN_EMULATE", vendor + ":2"}, {"AWAKEN_TEST_DELAY_US", "200"}}, {vendor, more});
    }
};

TEST_P(RingEmulatedTest, BytesArriveBetweenThreads) {
    const auto outcome = run("ring_between_threads");
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

TEST_P(RingEmulatedTest, BytesArriveBetweenProcesses) {
    const auto outcome = run("ring_between_processes");
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

TEST_P(RingEmulatedTest, AFailureAtOneSideEndsBoth) {
    for (const std::string failing : {"writer", "reader"}) {
        const auto outcome = run("ring_with_a_failing_side", failing);
        EXPECT_TRUE(outcome.succeeded()) << outcome.output;
        // The fault comes out at the copy itself or at the next question to the runtime.
        EXPECT_NE(outcome.output.find("(719)"), std::string::npos) << outcome.output;
        const std::string other = failing == "writer" ? "reader" : "writer";
        EXPECT_NE(outcome.output.find(other + ": the other side of a message through shared memory gave it up"),
                  std::string::npos)
            << outcome.output;
    }
}

INSTANTIATE_TEST_SUITE_P(Forms, RingEmulatedTest, ::testing::Values("cuda", "hip"),
                         [](const auto& form) { return std::string(form.param); });

}  // namespace
}  // namespace awaken::transfer
