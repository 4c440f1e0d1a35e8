// SPDX-License-Identifier: Apache-2.0
// Parts of the emulator below its libraries: its configuration, its addresses, and the scheduler of kernels.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <thread>
#include <vector>

#include "core/configuration.h"
#include "core/kernel.h"
#include "core/memory.h"
#include "core/stream.h"
#include "emulator_support.h"

namespace awaken::kernels {

/// Each block reverses its part by way of shared memory.
AWAKEN_KERNEL(awaken_test_reverse, device_pointer<u32> data) {
    AWAKEN_SHARED(u32, part, 64);
    const unsigned size = block_size().x;
    data = data + block_index().x * size;
    part[thread_index().x] = data[thread_index().x];
    block_barrier();
    data[thread_index().x] = part[size - 1 - thread_index().x];
}

/// A barrier that some threads never reach because they have returned, and one in a loop.
AWAKEN_KERNEL(awaken_test_rounds, device_pointer<u32> sum, u32 rounds) {
    AWAKEN_DYNAMIC_SHARED(u32, slots);
    if (thread_index().x >= 10) {
        return;
    }
    for (u32 round = 0; round < rounds; ++round) {
        slots[thread_index().x] = round;
        block_barrier();
        if (thread_index().x == 0) {
            for (u32 slot = 0; slot < 10; ++slot) {
                sum[block_index().y] += slots[slot];
            }
        }
        block_barrier();
    }
}

/// All blocks wait for all blocks.
AWAKEN_KERNEL(awaken_test_grid_barrier, device_pointer<u32> arrived, device_pointer<u32> seen) {
    if (thread_index().x == 0) {
        atomic_add(arrived, 1);
        while (load_acquire(arrived) < grid_size().x) {
            spin_pause();
        }
    }
    block_barrier();
    if (thread_index().x == block_size().x - 1) {
        seen[block_index().x] = load_acquire(arrived);
    }
}

/// Two kernels on two host threads that wait for each other, as those of two GPUs do.
AWAKEN_KERNEL(awaken_test_ping, device_pointer<u32> mine, device_pointer<u32> theirs, u32 rounds) {
    for (u32 round = 1; round <= rounds; ++round) {
        store_release(mine, round);
        while (load_acquire(theirs) < round) {
            spin_pause();
        }
    }
}

AWAKEN_KERNEL(awaken_test_compare_exchange, device_pointer<u64> word, u64 one) {
    u64 seen = load_acquire(word);
    while (true) {
        const u64 before = compare_exchange(word, seen, seen + one);
        if (before == seen) {
            return;
        }
        seen = before;
        spin_pause();
    }
}

}  // namespace awaken::kernels

namespace {

using namespace awaken::emulator;
using awaken::emulator_test::Library;
using awaken::kernels::device_pointer;
using awaken::kernels::u32;
using awaken::kernels::u64;

template <typename... Arguments>
void run(const char* name, const Launch& launch, Arguments... arguments) {
    const auto* const kernel = find_kernel(name);
    ASSERT_NE(kernel, nullptr) << name;
    ASSERT_EQ(kernel->parameter_count, sizeof...(Arguments));
    void* pointers[] = {&arguments...};
    run_kernel(*kernel, launch, pointers);
}

template <typename T>
device_pointer<T> device(T* pointer) {
    return device_pointer<T>(reinterpret_cast<u64>(pointer));
}

class Variables : public testing::Test {
  protected:
    void set(const char* name, const char* value) {
        setenv(name, value, 1);
        _names.emplace_back(name);
    }
    void TearDown() override {
        for (const std::string& name : _names) {
            unsetenv(name.c_str());
        }
    }

  private:
    std::vector<std::string> _names;
};

}  // namespace

TEST(EmulatorKernels, ShareMemoryAndMeetAtBarriers) {
    constexpr unsigned kBlocks = 5;
    constexpr unsigned kThreads = 64;
    std::vector<u32> data(kBlocks * kThreads);
    for (unsigned position = 0; position < data.size(); ++position) {
        data[position] = position;
    }
    run("awaken_test_reverse", {{kBlocks, 1, 1}, {kThreads, 1, 1}, 0}, device(data.data()));
    for (unsigned block = 0; block < kBlocks; ++block) {
        for (unsigned thread = 0; thread < kThreads; ++thread) {
            ASSERT_EQ(data[block * kThreads + thread], block * kThreads + kThreads - 1 - thread);
        }
    }
}

TEST(EmulatorKernels, BarriersDoNotWaitForThreadsThatReturned) {
    std::vector<u32> sums(3);
    run("awaken_test_rounds", {{1, 3, 1}, {16, 1, 1}, 10 * sizeof(u32)}, device(sums.data()), u32{20});
    for (const u32 sum : sums) {
        EXPECT_EQ(sum, 10U * (19 * 20 / 2));
    }
}

TEST(EmulatorKernels, BlocksMayWaitForEachOther) {
    constexpr u32 kBlocks = 40;
    u32 arrived = 0;
    std::vector<u32> seen(kBlocks);
    run("awaken_test_grid_barrier", {{kBlocks, 1, 1}, {32, 1, 1}, 0}, device(&arrived), device(seen.data()));
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](u32 value) { return value == kBlocks; }));
}

TEST(EmulatorKernels, KernelsMayWaitForEachOther) {
    u32 first = 0;
    u32 second = 0;
    std::thread other([&] { run("awaken_test_ping", {}, device(&second), device(&first), u32{200}); });
    run("awaken_test_ping", {}, device(&first), device(&second), u32{200});
    other.join();
    EXPECT_EQ(first, 200U);
    EXPECT_EQ(second, 200U);
}

TEST(EmulatorKernels, ManyThreadsExchangeAWord) {
    // More threads than can be under way together, except where each costs a millisecond.
#if defined(__SANITIZE_THREAD__)
    constexpr unsigned kBlocks = 10;
#else
    constexpr unsigned kBlocks = 300;
#endif
    u64 word = 0;
    run("awaken_test_compare_exchange", {{kBlocks, 1, 1}, {128, 1, 1}, 0}, device(&word), u64{1});
    EXPECT_EQ(word, kBlocks * 128U);
}

TEST(EmulatorKernels, AndMemoryOperationsOfStreamsWaitForEachOther) {
    const Library library("libcuda.so.1");
    int (*initialise)(unsigned) = nullptr;
    int (*retain)(void**, int) = nullptr;
    int (*release)(int) = nullptr;
    int (*set_current)(void*) = nullptr;
    int (*allocate_host)(u64*, std::size_t, unsigned) = nullptr;
    int (*create)(void**, unsigned) = nullptr;
    int (*synchronize)(void*) = nullptr;
    int (*load_module)(void**, const void*) = nullptr;
    int (*get_function)(void**, void*, const char*) = nullptr;
    int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) =
        nullptr;
    int (*wait)(void*, u64, u32, unsigned) = nullptr;
    int (*write)(void*, u64, u32, unsigned) = nullptr;
    library.bind(initialise, "cuInit");
    library.bind(retain, "cuDevicePrimaryCtxRetain");
    library.bind(release, "cuDevicePrimaryCtxRelease");
    library.bind(set_current, "cuCtxSetCurrent");
    library.bind(allocate_host, "cuMemHostAlloc");
    library.bind(create, "cuStreamCreate");
    library.bind(synchronize, "cuStreamSynchronize");
    library.bind(load_module, "cuModuleLoadData");
    library.bind(get_function, "cuModuleGetFunction");
    library.bind(launch, "cuLaunchKernel");
    library.bind(wait, "cuStreamWaitValue32_v2");
    library.bind(write, "cuStreamWriteValue32_v2");
    void *context = nullptr, *kernels = nullptr, *operations = nullptr, *module = nullptr, *ping = nullptr;
    ASSERT_EQ(initialise(0), 0);
    ASSERT_EQ(retain(&context, 0), 0);
    ASSERT_EQ(set_current(context), 0);
    ASSERT_EQ(create(&kernels, 1), 0);
    ASSERT_EQ(create(&operations, 1), 0);
    ASSERT_EQ(load_module(&module, "//\n.entry awaken_test_ping\n"), 0);
    ASSERT_EQ(get_function(&ping, module, "awaken_test_ping"), 0);
    // Host memory: the kernels of this program do not know where the driver has device memory.
    u64 of_kernel = 0;
    ASSERT_EQ(allocate_host(&of_kernel, 128, 0), 0);
    u64 of_stream = of_kernel + 64;
    u32 rounds = 100;
    void* arguments[] = {&of_kernel, &of_stream, &rounds};
    ASSERT_EQ(launch(ping, 1, 1, 1, 1, 1, 1, 0, kernels, arguments, nullptr), 0);
    for (u32 round = 1; round <= rounds; ++round) {
        ASSERT_EQ(wait(operations, of_kernel, round, 0), 0);
        ASSERT_EQ(write(operations, of_stream, round, 0), 0);
    }
    EXPECT_EQ(synchronize(operations), 0);
    EXPECT_EQ(synchronize(kernels), 0);
    EXPECT_EQ(release(0), 0);
}

TEST(EmulatorStreams, AreLateByTheSeedTheDeviceAndTheStream) {
    using std::chrono_literals::operator""us;
    const auto drawn = [](std::uint32_t seed, int device, std::uint32_t stream) {
        RandomDelays delays({seed, 1000us}, device, stream);
        std::vector<std::chrono::microseconds> times(50);
        std::generate(times.begin(), times.end(), [&] { return delays.next(); });
        return times;
    };
    const auto times = drawn(1, 2, 3);
    EXPECT_EQ(drawn(1, 2, 3), times);
    EXPECT_NE(drawn(2, 2, 3), times);
    EXPECT_NE(drawn(1, 1, 3), times);
    EXPECT_NE(drawn(1, 2, 4), times);
    EXPECT_GE(*std::min_element(times.begin(), times.end()), 0us);
    EXPECT_LE(*std::max_element(times.begin(), times.end()), 1000us);
    EXPECT_GT(*std::max_element(times.begin(), times.end()), 500us);
}

TEST(EmulatorKernels, AreFoundInSourceTexts) {
    EXPECT_EQ(kernels_defined_in(
                  "// AWAKEN_KERNEL(no, int)\n#define AWAKEN_KERNEL(name, ...) extern \"C\" __global__ void name\n"
                  "AWAKEN_KERNEL(first, int a) {}\n  AWAKEN_KERNEL( second ) {}\n"
                  "extern \"C\" __global__ void third(int* p) {}\n"),
              (std::vector<std::string>{"first", "second", "third"}));
    std::vector<std::string> kernels;
    EXPECT_TRUE(read_image(make_image({"a", "b"}).c_str(), kernels));
    EXPECT_EQ(kernels, (std::vector<std::string>{"a", "b"}));
    EXPECT_FALSE(read_image("", kernels));
    EXPECT_FALSE(read_image(".version 8.0", kernels));
}

TEST(EmulatorDocumentation, ListsEachCallThatIsExportedAndNoOther) {
    const auto text_of = [](const char* path) {
        std::ifstream file(path);
        EXPECT_TRUE(file) << path;
        return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const auto matches = [](const std::string& text, const char* pattern) {
        std::set<std::string> found;
        const std::regex expression(pattern);
        for (std::sregex_iterator at(text.begin(), text.end(), expression); at != std::sregex_iterator(); ++at) {
            found.insert((*at)[1]);
        }
        return found;
    };
    std::set<std::string> exported;
    FILE* const symbols = popen(AWAKEN_NM " -D --defined-only " AWAKEN_EMULATOR_DIRECTORY "/*.so.*", "r");
    ASSERT_NE(symbols, nullptr);
    for (std::array<char, 512> line{}; std::fgets(line.data(), line.size(), symbols) != nullptr;) {
        exported.merge(matches(line.data(), " T ([a-zA-Z]+[A-Za-z0-9_]+)"));
    }
    ASSERT_EQ(pclose(symbols), 0);
    const std::string page = text_of(AWAKEN_EMULATOR_TABLE);
    const std::set<std::string> listed =
        matches(page.substr(page.find("## Calls")), "`((?:cu|nvrtc|hip|hsa|nccl|nvml|rsmi)[A-Za-z0-9_]+)`");
    EXPECT_GT(exported.size(), 300U);
    for (const std::string& name : exported) {
        EXPECT_TRUE(listed.count(name)) << name << " is not in docs/emulator.md";
    }
    for (const std::string& name : listed) {
        EXPECT_TRUE(exported.count(name)) << name << " is not exported";
    }
}

TEST(EmulatorLibraries, HaveTheirNewestVersionUnderThePlainName) {
    for (const auto& [plain, newest] : {std::pair{"libcuda.so", ".1"},
                                        {"libcudart.so", ".13"},
                                        {"libnvrtc.so", ".13"},
                                        {"libcublas.so", ".13"},
                                        {"libnccl.so", ".2"},
                                        {"libnvidia-ml.so", ".1"},
                                        {"libamdhip64.so", ".7"},
                                        {"libhiprtc.so", ".7"},
                                        {"libhipblas.so", ".3"},
                                        {"librccl.so", ".1"},
                                        {"librocm_smi64.so", ".1"},
                                        {"libhsa-runtime64.so", ".1"}}) {
        const std::string path = std::string(AWAKEN_EMULATOR_DIRECTORY "/") + plain;
        void* const by_plain_name = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        EXPECT_NE(by_plain_name, nullptr) << dlerror();
        EXPECT_EQ(by_plain_name, dlopen((path + newest).c_str(), RTLD_NOW | RTLD_LOCAL)) << plain;
    }
}

TEST(EmulatorAddresses, AreReusedLowestFirstAndMerged) {
    AddressSpace space(1000, 1000);
    const std::uintptr_t a = space.take(300);
    const std::uintptr_t b = space.take(300);
    const std::uintptr_t c = space.take(400);
    EXPECT_EQ(a, 1000U);
    EXPECT_EQ(b, 1300U);
    EXPECT_EQ(c, 1600U);
    EXPECT_EQ(space.take(1), 0U);
    space.give(a, 300);
    space.give(c, 400);
    EXPECT_EQ(space.take(400), c);
    space.give(c, 400);
    space.give(b, 300);
    EXPECT_EQ(space.take(1000), 1000U) << "neighbours are merged";
}

TEST_F(Variables, AreParsedAndWrongOnesNamed) {
    EXPECT_EQ(parse_bytes("64M"), std::size_t{64} << 20);
    EXPECT_EQ(parse_bytes("12"), 12U);
    EXPECT_FALSE(parse_bytes(""));
    EXPECT_FALSE(parse_bytes("M"));
    EXPECT_FALSE(parse_bytes("-1"));
    EXPECT_FALSE(parse_bytes("99999999999G"));

    set("AWAKEN_EMULATE", "hip6:3");
    set("AWAKEN_EMULATE_MEMORY", "512M");
    set("AWAKEN_TEST_DELAY_US", "0");
    set("AWAKEN_TEST_IPC_OPEN_US", "200+5900");
    set("AWAKEN_TEST_BUSY", "error");
    set("AWAKEN_TEST_DELAYS", "7:250");
    set("AWAKEN_TEST_QUEUE", "16");
    set("AWAKEN_EMULATE_CONNECTIONS", "1");
    set("AWAKEN_TEST_FAULTS",
        "oom-after=64K, "
        "ipc-open,copy-error=7,ccl-init=1,ccl-silent=2,ccl-connect=3,ccl-share-gpu,pageable-memory,host-access,"
        "memory-operations-v1");
    Configuration configuration = read_configuration();
    EXPECT_EQ(configuration.problem, "");
    EXPECT_EQ(configuration.vendor, Vendor::hip);
    EXPECT_EQ(configuration.hip_generation, 6);
    EXPECT_EQ(configuration.visible, (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(configuration.memory_bytes, std::size_t{512} << 20);
    EXPECT_EQ(configuration.delay.count(), 0);
    using std::chrono_literals::operator""us;
    EXPECT_EQ(configuration.ipc_open_time.of(0), 200us);
    EXPECT_EQ(configuration.ipc_open_time.of(std::size_t{1} << 30), 6100us);
    EXPECT_EQ(configuration.ipc_open_time.of(std::size_t{1} << 29), 3150us);
    EXPECT_EQ(configuration.busy_calls, BusyCalls::error);
    EXPECT_EQ(configuration.random_delays.seed, 7U);
    EXPECT_EQ(configuration.random_delays.longest, 250us);
    EXPECT_EQ(configuration.queue_length, 16U);
    EXPECT_EQ(configuration.connections, 1);
    EXPECT_EQ(configuration.faults.memory_limit, std::size_t{64} << 10);
    EXPECT_TRUE(configuration.faults.ipc_open);
    EXPECT_FALSE(configuration.faults.ipc_export);
    EXPECT_EQ(configuration.faults.failing_copy, 7U);
    EXPECT_EQ(configuration.faults.failing_ccl_rank, 1);
    EXPECT_EQ(configuration.faults.silent_ccl_rank, 2);
    EXPECT_EQ(configuration.faults.unconnected_ccl_rank, 3);
    EXPECT_TRUE(configuration.faults.ccl_shared_device);
    EXPECT_TRUE(configuration.faults.pageable_memory);
    EXPECT_TRUE(configuration.faults.host_access);
    EXPECT_TRUE(configuration.faults.first_memory_operations);

    EXPECT_FALSE(configuration.xnack);
    EXPECT_TRUE(configuration.pageable_memory);

    const std::vector<std::pair<const char*, const char*>> wrong{{"AWAKEN_TEST_FAULTS", "copy-error=0"},
                                                                 {"AWAKEN_TEST_FAULTS", "ccl-init=-1"},
                                                                 {"AWAKEN_TEST_FAULTS", "oom=3"},
                                                                 {"AWAKEN_EMULATE_MEMORY", "1M"},
                                                                 {"AWAKEN_TEST_DELAY_US", "soon"},
                                                                 {"AWAKEN_TEST_BUSY", "fail"},
                                                                 {"AWAKEN_TEST_IPC_OPEN_US", "200+"},
                                                                 {"AWAKEN_TEST_IPC_OPEN_US", "1+2+3"},
                                                                 {"AWAKEN_TEST_IPC_OPEN_US", "+5900"},
                                                                 {"AWAKEN_TEST_IPC_OPEN_US", "0+60000001"},
                                                                 {"AWAKEN_EMULATE_LINKS", "nvlink:2"},
                                                                 {"AWAKEN_EMULATE_LINKS", "summit"},
                                                                 {"AWAKEN_EMULATE_LINKS", "matrix:0,1/1,0"},
                                                                 {"AWAKEN_TEST_DELAYS", "7"},
                                                                 {"AWAKEN_TEST_DELAYS", "7:"},
                                                                 {"AWAKEN_TEST_DELAYS", ":9"},
                                                                 {"AWAKEN_TEST_QUEUE", "0"},
                                                                 {"AWAKEN_EMULATE_CONNECTIONS", "0"},
                                                                 {"AWAKEN_EMULATE_CONNECTIONS", "33"},
                                                                 {"AWAKEN_EMULATE", "rocm:2"},
                                                                 {"AWAKEN_EMULATE", "cuda:0"}};
    for (const auto& [name, value] : wrong) {
        const char* const given = getenv(name);
        const std::string before = given != nullptr ? given : "";
        set(name, value);
        EXPECT_NE(read_configuration().problem.find(std::string(name) + "=" + value), std::string::npos)
            << read_configuration().problem;
        set(name, before.c_str());
    }
    EXPECT_EQ(read_configuration().problem, "");
}

TEST_F(Variables, LinksOfAKnownMachine) {
    set("AWAKEN_EMULATE", "hip:8");
    set("AWAKEN_EMULATE_LINKS", "mi250x");
    const EmulatedLinks whole = read_configuration().links;
    // The first row: GCD 1 in the same package, 2 and 6 by links of their own, the others through these.
    std::vector<int> counts, hops;
    for (int peer = 0; peer < 8; ++peer) {
        counts.push_back(whole.between(0, peer));
        hops.push_back(whole.hops(0, peer));
    }
    EXPECT_EQ(counts, (std::vector<int>{0, 4, 1, 0, 0, 0, 2, 0}));
    EXPECT_EQ(hops, (std::vector<int>{0, 1, 1, 2, 2, 2, 1, 2}));
    for (int one = 0; one < 8; ++one) {
        for (int other = 0; other < 8; ++other) {
            EXPECT_EQ(whole.between(one, other), whole.between(other, one)) << one << " and " << other;
        }
    }
    // What lies between two GPUs must be emulated, too.
    set("AWAKEN_EMULATE", "hip:6");
    EXPECT_EQ(read_configuration().links.hops(0, 5), 2);
    EXPECT_EQ(read_configuration().links.hops(0, 4), 2);
    set("AWAKEN_EMULATE", "hip:9");
    EXPECT_NE(read_configuration().problem.find("AWAKEN_EMULATE_LINKS=mi250x: that machine has 8 GPUs"),
              std::string::npos);
}

TEST_F(Variables, XnackIsObeyedByHip) {
    set("AWAKEN_EMULATE", "hip:1");
    EXPECT_FALSE(read_configuration().pageable_memory);
    set("HSA_XNACK", "0");
    EXPECT_FALSE(read_configuration().pageable_memory);
    set("HSA_XNACK", "1");
    EXPECT_TRUE(read_configuration().xnack);
    EXPECT_TRUE(read_configuration().pageable_memory);
    set("AWAKEN_EMULATE", "cuda:1");
    EXPECT_FALSE(read_configuration().pageable_memory);
}
