// DeviceCopies on the emulated driver: streams that run by themselves, kernels, memory of another process, faults.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "emulator_support.h"
#include "forwarding_gpu.h"
#include "transfer/device_copies.h"
#include "transfer_device_copies_checks.h"

namespace awaken::emulator_test {
namespace {

using transfer::CopyEngine;
using transfer::DeviceCopies;
using transfer::PinnedPool;
using transfer::Tuning;
using transfer::checks::Buffer;
using transfer::checks::Bytes;
using transfer::checks::Place;
using transfer::checks::Random;
using transfer::checks::random_bytes;
using transfer::checks::same;

#if AWAKEN_TEST_HIP
constexpr gpu::Choice kChoice = gpu::Choice::hip;
constexpr const char* kDriver = "libamdhip64.so.6";
constexpr const char* kCompiler = "libhiprtc.so.6";
#else
constexpr gpu::Choice kChoice = gpu::Choice::cuda;
constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kCompiler = "libnvrtc.so.12";
#endif

constexpr std::size_t kPool = std::size_t{64} << 20;

/// The emulated runtime, which also counts who copies.
class CountingGpu final : public test::ForwardingGpu {
  public:
    using ForwardingGpu::ForwardingGpu;
    gpu::Status copy(void* destination, const void* source, std::size_t bytes,
                     gpu::StreamHandle stream) noexcept override {
        ++copies;
        return ForwardingGpu::copy(destination, source, bytes, stream);
    }
    gpu::Status launch(gpu::KernelHandle kernel, gpu::Dim3 grid, gpu::Dim3 block, unsigned shared_bytes,
                       gpu::StreamHandle stream, void** arguments) noexcept override {
        ++launches;
        threads += grid.x * block.x;
        if (refuse_launches) {
            return {1, "launch", "refused by the test"};
        }
        return ForwardingGpu::launch(kernel, grid, block, shared_bytes, stream, arguments);
    }
    std::atomic<int> copies{0};
    std::atomic<int> launches{0};
    std::atomic<unsigned> threads{0};  ///< of all launches
    bool refuse_launches = false;
};

gpu::Runtime& emulated() {
    static const Library driver(kDriver);
    static const Library compiler(kCompiler);
    std::string why_not;
    gpu::Runtime& runtime = gpu::find(kChoice, &why_not);
    if (runtime.vendor() == gpu::Vendor::none) {
        std::fprintf(stderr, "%s\n", why_not.c_str());
        std::abort();
    }
    return runtime;
}

struct EmulatedCopies : ::testing::Test {
    CountingGpu gpu{emulated()};
    PinnedPool pool{kPool};
    Random random{7};
};

TEST_F(EmulatedCopies, AllPairsOfPlaces) {
    transfer::checks::check_all_pairs(gpu, CopyEngine::automatic, kPool);
    EXPECT_EQ(gpu.launches, 0) << "a kernel only where it was measured to be faster";
}

TEST_F(EmulatedCopies, AllPairsOfPlacesByKernels) {
    // Emulated threads are slow. This is enough for all parts of the kernel.
    transfer::checks::check_all_pairs(gpu, CopyEngine::kernel, kPool, 65537);
    EXPECT_GT(gpu.launches, 0);
}

TEST_F(EmulatedCopies, AllPairsOfPlacesWithoutPinnedMemory) {
    transfer::checks::check_all_pairs(gpu, CopyEngine::engine, 0);
    EXPECT_EQ(gpu.launches, 0);
}

TEST_F(EmulatedCopies, ManyAtOnceInAnyOrder) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        transfer::checks::check_many_at_once(gpu, seed);
    }
}

TEST_F(EmulatedCopies, Threads) {
    transfer::checks::check_threads(gpu, 20);
}

TEST_F(EmulatedCopies, KernelAndEngineWriteTheSameBytes) {
    constexpr std::size_t kRoom = 4096;
    Buffer source(gpu, Place::device, kRoom), by_kernel(gpu, Place::device, kRoom),
        by_engine(gpu, Place::device, kRoom);
    source.write(random_bytes(random, kRoom));
    by_kernel.write(Bytes(kRoom));
    by_engine.write(Bytes(kRoom));
    DeviceCopies kernel(gpu, pool, Tuning{}, CopyEngine::kernel), engine(gpu, pool, Tuning{}, CopyEngine::engine);
    for (const std::size_t to : {0, 1, 8, 15}) {
        for (std::size_t from = 0; from < 17; ++from) {
            for (const std::size_t size : {random() % 48 + 1, 1000 + random() % 1000}) {
                const int launches = gpu.launches;
                kernel.start(0, 0, by_kernel.end(to), source.end(from), size).wait();
                EXPECT_EQ(gpu.launches, launches + 1);
                engine.start(0, 0, by_engine.end(to), source.end(from), size).wait();
                EXPECT_EQ(gpu.launches, launches + 1);
                ASSERT_TRUE(same(by_kernel.read(), by_engine.read().data()))
                    << size << " bytes from +" << from << " to +" << to;
            }
        }
    }
    EXPECT_EQ(kernel.kernel_refusal(), "");
}

TEST_F(EmulatedCopies, AutomaticTakesTheKernelUpToTheMeasuredSize) {
    Buffer source(gpu, Place::device, 10000), destination(gpu, Place::mapped, 10000),
        other(gpu, Place::other_device, 10000), pinned(gpu, Place::own_pinned, 10000);
    const Bytes content = random_bytes(random, 10000);
    source.write(content);
    Tuning tuning;
    tuning.kernel_copy_bytes = 5000;
    DeviceCopies copies(gpu, pool, tuning, CopyEngine::automatic);
    copies.start(0, 0, destination.end(), source.end(), 5000).wait();
    EXPECT_EQ(gpu.launches, 1);
    copies.start(0, 0, destination.end(5000), source.end(5000), 5000).wait();
    EXPECT_EQ(gpu.launches, 2);
    EXPECT_TRUE(same(destination.read(), content.data()));
    copies.start(0, 0, destination.end(), source.end(), 5001).wait();
    copies.start(0, 0, pinned.end(), source.end(), 100).wait();
    copies.start(0, 0, other.end(), source.end(), 100).wait();
    EXPECT_EQ(gpu.launches, 2) << "too long, host memory, memory of a device that may be out of reach";
}

TEST_F(EmulatedCopies, OneKernelDoesManySmallCopiesThatStartTogether) {
    constexpr std::size_t kCopies = 30, kRoom = 8000;
    Buffer source(gpu, Place::mapped, kCopies * kRoom), destination(gpu, Place::device, kCopies * kRoom);
    const Bytes content = random_bytes(random, kCopies * kRoom);
    source.write(content);
    const auto check = [&](DeviceCopies& copies, const std::size_t count, const int launches) {
        Bytes expected = random_bytes(random, kCopies * kRoom);
        destination.write(expected);
        const int before = gpu.launches;
        std::vector<DeviceCopies::Copy> started;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t to = i * kRoom + random() % 17, from = i * kRoom + random() % 17;
            const std::size_t size = 1 + random() % (kRoom - 17);
            started.push_back(
                copies.start(0, 0, destination.end(to), source.end(from), size, DeviceCopies::Start::together));
            std::copy_n(content.data() + from, size, expected.data() + to);
        }
        for (DeviceCopies::Copy& copy : started) {
            copy.wait();
        }
        EXPECT_EQ(gpu.launches, before + launches) << count;
        EXPECT_TRUE(same(destination.read(), expected.data())) << count;
    };
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic), engine(gpu, pool, Tuning{}, CopyEngine::engine);
    check(copies, 7, 0);
    check(copies, 8, 1);
    check(copies, kCopies, 1);
    check(engine, kCopies, 0);
    Tuning never;
    never.kernel_batch_copies = 0;
    DeviceCopies without(gpu, pool, never, CopyEngine::automatic);
    check(without, kCopies, 0);
    gpu.refuse_launches = true;
    check(copies, kCopies, 1);
    check(copies, kCopies, 0);
}

TEST_F(EmulatedCopies, AKernelOfShortCopiesHasFewThreads) {
    constexpr std::size_t kCopies = 20, kRoom = 4096;
    Buffer source(gpu, Place::mapped, kCopies * kRoom), destination(gpu, Place::device, kCopies * kRoom);
    const Bytes content = random_bytes(random, kCopies * kRoom);
    source.write(content);
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic);
    struct Case {
        std::size_t bytes;
        unsigned threads;
    };
    for (const Case& each : {Case{1, 32}, Case{64, 32}, Case{512, 32}, Case{513, 64}, Case{kRoom, 256}}) {
        destination.write(Bytes(kCopies * kRoom));
        gpu.threads = 0;
        std::vector<DeviceCopies::Copy> started;
        for (std::size_t i = 0; i < kCopies; ++i) {
            started.push_back(copies.start(0, 0, destination.end(i * kRoom), source.end(i * kRoom), each.bytes,
                                           DeviceCopies::Start::together));
        }
        for (DeviceCopies::Copy& copy : started) {
            copy.wait();
        }
        EXPECT_EQ(gpu.threads, kCopies * each.threads) << each.bytes << " bytes";
        const Bytes copied = destination.read();
        for (std::size_t i = 0; i < kCopies; ++i) {
            EXPECT_TRUE(std::equal(copied.begin() + i * kRoom, copied.begin() + i * kRoom + each.bytes,
                                   content.begin() + i * kRoom))
                << each.bytes << " bytes";
        }
    }
}

TEST_F(EmulatedCopies, AQuestionAboutAnOlderCopyLeavesHeldOnesHeld) {
    constexpr std::size_t kCopies = 5, kSize = 100;
    Buffer source(gpu, Place::mapped, kCopies * kSize), destination(gpu, Place::device, kCopies * kSize);
    const Bytes content = random_bytes(random, kCopies * kSize);
    source.write(content);
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic);
    DeviceCopies::Copy older = copies.start(0, 0, destination.end(), source.end(), kSize);
    gpu.copies = 0;
    std::vector<DeviceCopies::Copy> held;
    for (std::size_t i = 1; i < kCopies; ++i) {
        held.push_back(copies.start(0, 0, destination.end(i * kSize), source.end(i * kSize), kSize,
                                    DeviceCopies::Start::together));
    }
    older.wait();
    EXPECT_EQ(gpu.copies, 0);
    for (DeviceCopies::Copy& copy : held) {
        copy.wait();
    }
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, NoKernelCopiesBeyondAnAllocation) {
    constexpr std::size_t kSize = 4096;
    Buffer source(gpu, Place::mapped, 2 * kSize), destination(gpu, Place::device, kSize);
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic);
    std::vector<DeviceCopies::Copy> started;
    for (std::size_t i = 0; i < 9; ++i) {
        const std::size_t size = i == 8 ? 1 + kSize : 8;
        started.push_back(copies.start(0, 0, destination.end(i == 8 ? 0 : 8 * i), source.end(8 * i), size,
                                       DeviceCopies::Start::together));
    }
    for (DeviceCopies::Copy& copy : started) {
        try {
            copy.wait();
        } catch (const Error&) {
            EXPECT_EQ(&copy, &started.back()) << "the runtime refuses this one alone";
        }
    }
    EXPECT_EQ(gpu.launches, 0);
}

TEST_F(EmulatedCopies, KernelsAreLoadedAgainAfterShutDown) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::kernel);
    copies.start(0, 0, destination.end(), source.end(), 100).wait();
    copies.shut_down();
    copies.shut_down();
    const Bytes content = random_bytes(random, 100);
    source.write(content);
    copies.start(0, 0, destination.end(), source.end(), 100).wait();
    EXPECT_EQ(gpu.launches, 2);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, ALaunchThatIsRefusedLeavesTheCopyToTheRuntime) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    const Bytes content = random_bytes(random, 100);
    source.write(content);
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::kernel);
    gpu.refuse_launches = true;
    for (int i = 0; i < 3; ++i) {
        copies.start(0, 0, destination.end(), source.end(), 100).wait();
    }
    EXPECT_EQ(gpu.launches, 1) << "it is not tried again";
    EXPECT_TRUE(same(destination.read(), content.data()));
    EXPECT_NE(copies.kernel_refusal().find("refused by the test"), std::string::npos) << copies.kernel_refusal();
}

TEST_F(EmulatedCopies, DestroyedCopiesAreOver) {
    constexpr std::size_t kSize = std::size_t{4} << 20;
    DeviceCopies copies(gpu, pool, Tuning{}, CopyEngine::automatic);
    for (const Place from : {Place::device, Place::ordinary}) {
        for (const Place to : {Place::device, Place::ordinary}) {
            // Freed right after the copy: work that were still queued would touch memory that is gone.
            Buffer source(gpu, from, kSize), destination(gpu, to, kSize);
            DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), kSize);
            static_cast<void>(copy.poll());
        }
    }
}

/// Opens memory of the process that started this one, and copies from and to it with both engines.
SCENARIO(copy_mapped_memory) {
    gpu::Runtime& runtime = emulated();
    gpu::IpcMemoryHandle handle;
    from_text(arguments[0], handle.bytes, sizeof handle.bytes);
    const std::size_t size = std::stoul(arguments[1]);
    void* base = nullptr;
    REQUIRE_EQUAL(runtime.ipc_open(handle, 0, base).ok(), true);
    Bytes content(size);
    from_text(arguments[2], content.data(), size);
    PinnedPool pool(kPool);
    for (const CopyEngine engine : {CopyEngine::kernel, CopyEngine::engine}) {
        CountingGpu counting(runtime);
        DeviceCopies copies(counting, pool, Tuning{}, engine);
        Buffer own(runtime, Place::device, size);
        copies.start(0, 0, own.end(), {base, nullptr}, size).wait();
        REQUIRE_EQUAL(same(own.read(), content.data()), true);
        // The second half back, one byte further.
        copies.start(0, 0, {static_cast<std::byte*>(base) + size + 1, nullptr}, own.end(), size).wait();
        REQUIRE_EQUAL(counting.launches.load(), engine == CopyEngine::kernel ? 2 : 0);
    }
    REQUIRE_EQUAL(runtime.ipc_close(base).ok(), true);
    return 0;
}

TEST_F(EmulatedCopies, MemoryOfAnotherProcess) {
    constexpr std::size_t kSize = 1234;
    Buffer exported(gpu, Place::device, std::size_t{2} << 20);
    const Bytes content = random_bytes(random, kSize);
    exported.write(content);
    gpu::IpcMemoryHandle handle;
    std::size_t offset = 0;
    ASSERT_TRUE(gpu.ipc_export(exported.data(), handle, offset).ok());
    ASSERT_EQ(offset, 0U);
    const Outcome outcome = run_scenario(
        "copy_mapped_memory", {},
        {to_text(handle.bytes, sizeof handle.bytes), std::to_string(kSize), to_text(content.data(), kSize)});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    const Bytes now = exported.read();
    EXPECT_TRUE(std::equal(content.begin(), content.end(), now.begin() + kSize + 1));
}

/// The device fails in the middle of a long copy from or to ordinary memory, or between device buffers.
SCENARIO(device_fails) {
    gpu::Runtime& runtime = emulated();
    constexpr std::size_t kSize = std::size_t{4} << 20;
    const Place from = arguments[0] == "upload" ? Place::ordinary : Place::device;
    const Place to = arguments[0] == "download" ? Place::ordinary : Place::device;
    int caught = 0;
    {
        PinnedPool pool(kPool);
        Tuning tuning;
        tuning.ring_chunk_bytes = std::size_t{256} << 10;
        DeviceCopies copies(runtime, pool, tuning, CopyEngine::automatic);
        Buffer source(runtime, from, kSize), destination(runtime, to, kSize), other(runtime, to, 8);
        for (int i = 0; i < 12 && caught == 0; ++i) {
            try {
                DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), kSize);
                const DeviceCopies::Copy dropped = copies.start(0, 1, other.end(), source.end(), 8);
                copy.wait();
            } catch (const Error& error) {
                ++caught;
                if (error.cause().find("failed (") == std::string::npos) {
                    std::fprintf(stderr, "%s\n", error.what());
                    return 1;
                }
            }
        }
    }
    REQUIRE_EQUAL(caught, 1);
    return 0;
}

TEST_F(EmulatedCopies, AFailingDeviceEndsInAnError) {
    for (const char* const way : {"direct", "upload", "download"}) {
        const Outcome outcome = run_scenario("device_fails", {{"AWAKEN_TEST_FAULTS", "copy-error=7"}}, {way});
        EXPECT_TRUE(outcome.succeeded()) << way << ": " << outcome.output;
    }
}

/// As the layer in a process that ends without MPI_Finalize: the driver is gone before the copies are.
SCENARIO(driver_leaves_first) {
    gpu::Runtime& runtime = emulated();
    static PinnedPool pool(kPool);
    static Buffer source(runtime, Place::device, 1 << 20);
    static Bytes target(1 << 20);
    static const gpu::PointerInfo ordinary;
    // Destroyed by exit handlers, after those of the driver have run.
    struct AtExit {
        std::unique_ptr<DeviceCopies> copies;
        DeviceCopies::Copy copy;
        ~AtExit() {
            copy = {};
            copies.reset();
            std::fputs("through\n", stderr);
        }
    };
    static AtExit at_exit;
    at_exit.copies = std::make_unique<DeviceCopies>(runtime, pool, Tuning{}, CopyEngine::automatic);
    at_exit.copy = at_exit.copies->start(0, 0, {target.data(), &ordinary}, source.end(), target.size());
    std::exit(0);
}

TEST_F(EmulatedCopies, TheDriverMayLeaveFirst) {
    const Outcome outcome = run_scenario("driver_leaves_first", {{"AWAKEN_TEST_FAULTS", "shutdown"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    EXPECT_NE(outcome.output.find("through"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace awaken::emulator_test
