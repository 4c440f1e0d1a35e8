// SPDX-License-Identifier: Apache-2.0
// The emulated collective communication library (libnccl, librccl), through src/ccl and src/gpu as Awaken uses it, and
// through its own symbols for the rest. Ranks are processes of this program, or devices of one process.
#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>

#include "ccl/arithmetic.h"
#include "ccl/ccl.h"
#include "emulator_support.h"
#include "gpu/gpu.h"

namespace awaken::emulator_test {
namespace {

#if AWAKEN_CCL_HIP
constexpr gpu::Choice kChoice = gpu::Choice::hip;
constexpr const char* kDriver = "libamdhip64.so.6";
constexpr const char* kCcl = "librccl.so.1";
constexpr const char* kEmulate3 = "hip:3";
#else
constexpr gpu::Choice kChoice = gpu::Choice::cuda;
constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kCcl = "libnccl.so.2";
constexpr const char* kEmulate3 = "cuda:3";
#endif

constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
constexpr int kRemoteError = 6;
constexpr int kSystemError = 2;

/// The runtime and the library on it, loaded as by a program.
struct Machine {
    Machine() {
        static const Library driver(kDriver);
        static const Library library(kCcl);
        std::string why_not;
        gpu = &gpu::find(kChoice, &why_not);
        ccl = ccl::find(gpu->vendor(), &why_not);
        if (ccl == nullptr) {
            std::fprintf(stderr, "%s\n", why_not.c_str());
            std::abort();
        }
        library.bind(init_all, "ncclCommInitAll");
        library.bind(init_config, "ncclCommInitRankConfig");
        library.bind(finalize, "ncclCommFinalize");
        library.bind(device_of, "ncclCommCuDevice");
        library.bind(bcast, "ncclBcast");
        library.bind(init_rank, "ncclCommInitRank");
    }
    gpu::Runtime* gpu;
    const ccl::Library* ccl;
    int (*init_all)(void** communicators, int ranks, const int* devices);
    int (*init_config)(void** communicator, int ranks, ccl::UniqueId identifier, int rank, void* config);
    int (*finalize)(void* communicator);
    int (*device_of)(void* communicator, int* device);
    int (*bcast)(void* data, std::size_t count, int type, int root, void* communicator, void* stream);
    int (*init_rank)(void** communicator, int ranks, ccl::UniqueId identifier, int rank);
};

const Machine& machine() {
    static const Machine made;
    return made;
}

#define MUST(status)                                                                        \
    do {                                                                                    \
        const auto must_status = (status);                                                  \
        if (!must_status.ok()) {                                                            \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, must_status.message().c_str()); \
            std::abort();                                                                   \
        }                                                                                   \
    } while (false)

/// Device memory of a device, written and read through a stream.
class DeviceMemory {
  public:
    DeviceMemory(int device, std::size_t bytes) : _bytes(bytes) {
        MUST(machine().gpu->create_stream(device, false, _stream));
        MUST(machine().gpu->allocate(device, std::max<std::size_t>(bytes, 1), _pointer));
    }
    ~DeviceMemory() {
        static_cast<void>(machine().gpu->free(_pointer));
        static_cast<void>(machine().gpu->destroy_stream(_stream));
    }
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    [[nodiscard]] char* data() const { return static_cast<char*>(_pointer); }
    void write(const void* from) {
        MUST(machine().gpu->copy(_pointer, from, _bytes, _stream));
        MUST(machine().gpu->synchronize_stream(_stream));
    }
    void read(void* to) const {
        MUST(machine().gpu->copy(to, _pointer, _bytes, _stream));
        MUST(machine().gpu->synchronize_stream(_stream));
    }

  private:
    std::size_t _bytes;
    void* _pointer = nullptr;
    gpu::StreamHandle _stream;
};

template <typename T>
class Vector {
  public:
    Vector(int device, std::vector<T> values) : _size(values.size()), _memory(device, values.size() * sizeof(T)) {
        _memory.write(values.data());
    }
    [[nodiscard]] T* data() const { return reinterpret_cast<T*>(_memory.data()); }
    [[nodiscard]] std::vector<T> values() const {
        std::vector<T> result(_size);
        _memory.read(result.data());
        return result;
    }

  private:
    std::size_t _size;
    DeviceMemory _memory;
};

/// Runs the scenario as all ranks at the same time: arguments are the identifier, the rank, the number of ranks, then
/// those given.
std::vector<Outcome> run_ranks(const std::string& scenario, int ranks, const Environment& environment,
                               const std::vector<std::string>& arguments = {}) {
    ccl::UniqueId identifier;
    MUST(machine().ccl->unique_id(identifier));
    std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            std::vector<std::string> words{to_text(identifier.bytes, sizeof identifier.bytes), std::to_string(rank),
                                           std::to_string(ranks)};
            words.insert(words.end(), arguments.begin(), arguments.end());
            outcomes[static_cast<std::size_t>(rank)] = run_scenario(scenario, environment, words);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    return outcomes;
}

void expect_success(const std::vector<Outcome>& outcomes) {
    for (const Outcome& outcome : outcomes) {
        EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    }
}

/// What a scenario of a rank starts with.
struct Rank {
    explicit Rank(const std::vector<std::string>& arguments, bool own_device = true)
        : rank(std::stoi(arguments.at(1))), ranks(std::stoi(arguments.at(2))), device(own_device ? rank : 0) {
        from_text(arguments.at(0), identifier.bytes, sizeof identifier.bytes);
        MUST(machine().gpu->make_current(device));
        MUST(machine().gpu->create_stream(device, false, stream));
    }
    [[nodiscard]] ccl::Status join() { return machine().ccl->init_rank(communicator, ranks, identifier, rank); }
    void finish() const { MUST(machine().gpu->synchronize_stream(stream)); }

    ccl::UniqueId identifier;
    int rank, ranks, device;
    gpu::StreamHandle stream;
    ccl::Communicator communicator;
};

#define REQUIRE(condition)                                                   \
    do {                                                                     \
        if (!(condition)) {                                                  \
            std::fprintf(stderr, "line %d: not %s\n", __LINE__, #condition); \
            return 1;                                                        \
        }                                                                    \
    } while (false)

// ---- types and reductions -------------------------------------------------------------------------------------------

/// The bits of a small value that the format holds exactly.
std::uint64_t bits_of(double value, int exponent_bits, int mantissa_bits) {
    if (value == 0) {
        return 0;
    }
    const int exponent = std::ilogb(value);
    const auto mantissa =
        static_cast<std::uint64_t>(std::ldexp(value, mantissa_bits - exponent)) - (1ULL << mantissa_bits);
    return (static_cast<std::uint64_t>(exponent + (1 << (exponent_bits - 1)) - 1) << mantissa_bits) | mantissa;
}

bool is_integer(ccl::Type type) {
    return type <= ccl::Type::uint64;
}

/// `values` in the representation of `type`.
std::vector<std::byte> encode(ccl::Type type, const std::vector<double>& values) {
    const std::size_t size = ccl::size_of(type);
    std::vector<std::byte> bytes(values.size() * size);
    for (std::size_t at = 0; at < values.size(); ++at) {
        std::uint64_t bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(values[at]));
        if (type == ccl::Type::float16) {
            bits = bits_of(values[at], 5, 10);
        }
        if (type == ccl::Type::float32) {
            bits = bits_of(values[at], 8, 23);
        }
        if (type == ccl::Type::float64) {
            bits = bits_of(values[at], 11, 52);
        }
        if (type == ccl::Type::bfloat16) {
            bits = bits_of(values[at], 8, 7);
        }
        if (type == ccl::Type::float8_e4m3) {
            bits = bits_of(values[at], 4, 3);
        }
        if (type == ccl::Type::float8_e5m2) {
            bits = bits_of(values[at], 5, 2);
        }
        std::memcpy(bytes.data() + at * size, &bits, size);
    }
    return bytes;
}

double combined(ccl::Type type, ccl::Operation operation, double first, double second) {
    switch (operation) {
        case ccl::Operation::sum:
            return first + second;
        case ccl::Operation::product:
            return first * second;
        case ccl::Operation::maximum:
            return std::max(first, second);
        case ccl::Operation::minimum:
            return std::min(first, second);
        default:
            return is_integer(type) ? std::trunc((first + second) / 2) : (first + second) / 2;
    }
}

/// Two ranks reduce small numbers, which every type holds exactly.
SCENARIO(each_type_and_operation) {
    Rank self(arguments);
    MUST(self.join());
    const ccl::Library& library = *machine().ccl;
    constexpr std::size_t kCount = 37;
    const auto values = [](int rank) {
        std::vector<double> result(kCount);
        for (std::size_t at = 0; at < kCount; ++at) {
            result[at] = static_cast<double>(at % 3) + rank;
        }
        return result;
    };
    for (int type_number = 0; type_number <= static_cast<int>(ccl::Type::float8_e5m2); ++type_number) {
        const auto type = static_cast<ccl::Type>(type_number);
        if (!library.supports(type)) {
            continue;
        }
        for (int operation_number = 0; operation_number <= 4; ++operation_number) {
            const auto operation = static_cast<ccl::Operation>(operation_number);
            std::vector<double> expected;
            for (std::size_t at = 0; at < kCount; ++at) {
                expected.push_back(combined(type, operation, values(0)[at], values(1)[at]));
            }
            const Vector<std::byte> send(self.device, encode(type, values(self.rank)));
            const Vector<std::byte> receive(self.device, std::vector<std::byte>(kCount * ccl::size_of(type)));
            MUST(library.all_reduce(send.data(), receive.data(), kCount, type, operation, self.communicator,
                                    self.stream));
            self.finish();
            if (receive.values() != encode(type, expected)) {
                std::fprintf(stderr, "%s of %s is wrong\n", to_string(operation), to_string(type));
                return 1;
            }
        }
    }
    MUST(library.destroy(self.communicator));
    return 0;
}

TEST(EmulatedCcl, ReducesEachTypeWithEachOperation) {
    expect_success(run_ranks("each_type_and_operation", 2, {}));
}

TEST(EmulatedCclArithmetic, RoundsToTheNearestEvenAndKeepsSpecialValues) {
    namespace emulated = awaken::emulator::ccl;
    const auto sum = [](emulated::Type type, auto left, decltype(left) right) {
        decltype(left) result{};
        const std::byte* const inputs[] = {reinterpret_cast<const std::byte*>(&left),
                                           reinterpret_cast<const std::byte*>(&right)};
        emulated::reduce(type, emulated::Operation::sum, inputs, reinterpret_cast<std::byte*>(&result), 1);
        return result;
    };
    const auto half = [&](unsigned left, unsigned right) {
        return sum(emulated::Type::float16, static_cast<std::uint16_t>(left), static_cast<std::uint16_t>(right));
    };
    const auto brain = [&](unsigned left, unsigned right) {
        return sum(emulated::Type::bfloat16, static_cast<std::uint16_t>(left), static_cast<std::uint16_t>(right));
    };
    const auto e4m3 = [&](unsigned left, unsigned right) {
        return sum(emulated::Type::float8_e4m3, static_cast<std::uint8_t>(left), static_cast<std::uint8_t>(right));
    };
    EXPECT_EQ(half(0x6800, 0x3c00), 0x6800);  // 2048 + 1: a tie, to even
    EXPECT_EQ(half(0x6801, 0x3c00), 0x6802);  // 2050 + 1: a tie, to even, upwards
    EXPECT_EQ(half(0x7bff, 0x7bff), 0x7c00);  // twice the largest: infinity
    EXPECT_EQ(half(0x7c00, 0xfc00) & 0x7c00, 0x7c00);
    EXPECT_NE(half(0x7c00, 0xfc00) & 0x03ff, 0);  // infinity - infinity is no number
    EXPECT_EQ(half(0x0001, 0x0001), 0x0002);      // subnormal numbers
    EXPECT_EQ(half(0x03ff, 0x0001), 0x0400);      // the largest of them and one more: normal
    EXPECT_EQ(half(0xbc00, 0x3800), 0xb800);      // -1 + 0.5
    EXPECT_EQ(brain(0x4380, 0x3f80), 0x4380);     // 256 + 1: a tie, to even
    EXPECT_EQ(brain(0x7f7f, 0x7f7f), 0x7f80);
    EXPECT_EQ(e4m3(0x7e, 0x7e), 0x7e);  // no infinity: the largest number stays
    EXPECT_EQ(e4m3(0x7f, 0x38), 0x7f);  // no number
    EXPECT_EQ(e4m3(0x38, 0x38), 0x40);  // 1 + 1
    EXPECT_EQ(sum(emulated::Type::int32, std::numeric_limits<std::int32_t>::max(), 1),
              std::numeric_limits<std::int32_t>::min());
    EXPECT_EQ(sum(emulated::Type::int8, static_cast<std::int8_t>(-100), static_cast<std::int8_t>(-100)), 56);
}

// ---- collectives ----------------------------------------------------------------------------------------------------

/// Three ranks, all collectives, sizes that do not divide evenly, in place and not.
SCENARIO(each_collective) {
    Rank self(arguments);
    MUST(self.join());
    const ccl::Library& library = *machine().ccl;
    const int rank = self.rank;
    const auto ranks = static_cast<std::size_t>(self.ranks);
    constexpr auto kType = ccl::Type::int64;
    constexpr auto kSum = ccl::Operation::sum;
    const auto value = [](std::size_t of_rank, std::size_t at) {
        return static_cast<std::int64_t>(of_rank * 1'000'000 + at);
    };
    const auto vector_of = [&](std::size_t of_rank, std::size_t count) {
        std::vector<std::int64_t> result(count);
        for (std::size_t at = 0; at < count; ++at) {
            result[at] = value(of_rank, at);
        }
        return result;
    };
    int number = -1;
    MUST(library.user_rank(self.communicator, number));
    REQUIRE(number == rank);
    MUST(library.count(self.communicator, number));
    REQUIRE(number == self.ranks);
    REQUIRE(machine().device_of(self.communicator.value, &number) == 0 && number == self.device);

    // The largest is more than sockets buffer.
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{1001}, std::size_t{300'001}}) {
        const std::vector<std::int64_t> mine = vector_of(static_cast<std::size_t>(rank), count);
        std::vector<std::int64_t> sums(count);
        for (std::size_t at = 0; at < count; ++at) {
            for (std::size_t other = 0; other < ranks; ++other) {
                sums[at] += value(other, at);
            }
        }
        for (const bool in_place : {false, true}) {
            const Vector<std::int64_t> send(self.device, mine);
            const Vector<std::int64_t> other(self.device, std::vector<std::int64_t>(count, -1));
            const Vector<std::int64_t>& receive = in_place ? send : other;
            MUST(library.all_reduce(send.data(), receive.data(), count, kType, kSum, self.communicator, self.stream));
            self.finish();
            REQUIRE(receive.values() == sums);
            if (!in_place) {
                REQUIRE(send.values() == mine);
            }
        }
        for (int root = 0; root < self.ranks; ++root) {
            const Vector<std::int64_t> send(self.device, mine);
            const Vector<std::int64_t> receive(self.device, std::vector<std::int64_t>(count, -1));
            MUST(library.reduce(send.data(), receive.data(), count, kType, kSum, root, self.communicator, self.stream));
            self.finish();
            REQUIRE(receive.values() == (rank == root ? sums : std::vector<std::int64_t>(count, -1)));
            MUST(library.broadcast(send.data(), receive.data(), count, kType, root, self.communicator, self.stream));
            self.finish();
            REQUIRE(receive.values() == vector_of(static_cast<std::size_t>(root), count));
            REQUIRE(machine().bcast(send.data(), count, static_cast<int>(kType), root, self.communicator.value,
                                    self.stream.value) == 0);
            self.finish();
            REQUIRE(send.values() == vector_of(static_cast<std::size_t>(root), count));
        }
        {
            std::vector<std::int64_t> all;
            for (std::size_t other = 0; other < ranks; ++other) {
                const std::vector<std::int64_t> theirs = vector_of(other, count);
                all.insert(all.end(), theirs.begin(), theirs.end());
            }
            const Vector<std::int64_t> send(self.device, mine);
            const Vector<std::int64_t> receive(self.device, std::vector<std::int64_t>(count * ranks, -1));
            MUST(library.all_gather(send.data(), receive.data(), count, kType, self.communicator, self.stream));
            self.finish();
            REQUIRE(receive.values() == all);
            // Again in place: the own part is where the result goes.
            std::vector<std::int64_t> part(count * ranks, -1);
            std::copy(mine.begin(), mine.end(), part.begin() + static_cast<std::ptrdiff_t>(count) * rank);
            const Vector<std::int64_t> both(self.device, part);
            MUST(library.all_gather(both.data() + count * static_cast<std::size_t>(rank), both.data(), count, kType,
                                    self.communicator, self.stream));
            self.finish();
            REQUIRE(both.values() == all);
        }
        {
            const std::vector<std::int64_t> long_mine = vector_of(static_cast<std::size_t>(rank), count * ranks);
            std::vector<std::int64_t> expected(count);
            for (std::size_t at = 0; at < count; ++at) {
                for (std::size_t other = 0; other < ranks; ++other) {
                    expected[at] += value(other, count * static_cast<std::size_t>(rank) + at);
                }
            }
            const Vector<std::int64_t> send(self.device, long_mine);
            const Vector<std::int64_t> receive(self.device, std::vector<std::int64_t>(count, -1));
            MUST(library.reduce_scatter(send.data(), receive.data(), count, kType, kSum, self.communicator,
                                        self.stream));
            self.finish();
            REQUIRE(receive.values() == expected);
        }
        {
            // An alltoall of sends and receives, the own part among them, as programs write it.
            std::vector<std::int64_t> blocks;
            for (std::size_t other = 0; other < ranks; ++other) {
                for (std::size_t at = 0; at < count; ++at) {
                    blocks.push_back(value(static_cast<std::size_t>(rank) * 10 + other, at));
                }
            }
            const Vector<std::int64_t> send(self.device, blocks);
            const Vector<std::int64_t> receive(self.device, std::vector<std::int64_t>(count * ranks, -1));
            MUST(library.group_start());
            for (int other = 0; other < self.ranks; ++other) {
                const std::size_t at = count * static_cast<std::size_t>(other);
                MUST(library.send(send.data() + at, count, kType, other, self.communicator, self.stream));
                MUST(library.receive(receive.data() + at, count, kType, other, self.communicator, self.stream));
            }
            MUST(library.group_end());
            self.finish();
            std::vector<std::int64_t> expected;
            for (std::size_t other = 0; other < ranks; ++other) {
                for (std::size_t at = 0; at < count; ++at) {
                    expected.push_back(value(other * 10 + static_cast<std::size_t>(rank), at));
                }
            }
            REQUIRE(receive.values() == expected);
        }
    }
    ccl::Status error{1, "", ""};
    MUST(library.async_error(self.communicator, error));
    REQUIRE(error.ok());
    REQUIRE(machine().finalize(self.communicator.value) == 0);
    MUST(library.destroy(self.communicator));
    return 0;
}

TEST(EmulatedCcl, CarriesOutEachCollectiveBetweenThreeProcesses) {
    expect_success(run_ranks("each_collective", 3, {{"AWAKEN_EMULATE", kEmulate3}}));
}

/// The number of this process's open files.
int open_files() {
    int count = 0;
    DIR* const directory = opendir("/proc/self/fd");
    if (directory == nullptr) {
        ADD_FAILURE() << "/proc/self/fd cannot be read";
        return -1;
    }
    while (readdir(directory) != nullptr) {
        ++count;
    }
    closedir(directory);
    return count;
}

/// Two devices of this process.
class EmulatedCclPair : public ::testing::Test {
  protected:
    void SetUp() override {
        machine();
        _files = open_files();
        void* made[2] = {};
        ASSERT_EQ(machine().init_all(made, 2, nullptr), 0);
        for (int device = 0; device < 2; ++device) {
            _communicators[device].value = made[device];
            MUST(machine().gpu->create_stream(device, false, _streams[device]));
        }
    }
    void TearDown() override {
        for (int device = 0; device < 2; ++device) {
            MUST(library().destroy(_communicators[device]));
            MUST(machine().gpu->destroy_stream(_streams[device]));
        }
        EXPECT_EQ(open_files(), _files) << "a destroyed communicator has left sockets";
    }
    static const ccl::Library& library() { return *machine().ccl; }
    ccl::Status all_reduce(int device, const Vector<float>& data, std::size_t count) {
        return library().all_reduce(data.data(), data.data(), count, ccl::Type::float32, ccl::Operation::sum,
                                    _communicators[device], _streams[device]);
    }
    bool done(int device) {
        bool answer = false;
        MUST(machine().gpu->query_stream(_streams[device], answer));
        return answer;
    }
    int async_error(int device) {
        ccl::Status error;
        MUST(library().async_error(_communicators[device], error));
        return error.code;
    }

    int _files = 0;
    ccl::Communicator _communicators[2];
    gpu::StreamHandle _streams[2];
};

TEST_F(EmulatedCclPair, QueuesOperationsThatWaitForTheirPeers) {
    const Vector<float> first(0, std::vector<float>(100, 1.0F));
    const Vector<float> second(1, std::vector<float>(100, 2.0F));
    gpu::EventHandle event;
    MUST(machine().gpu->create_event(0, event));
    MUST(all_reduce(0, first, 100));
    MUST(machine().gpu->record_event(event, _streams[0]));
    // Nobody else has called yet, so it cannot be over, whenever this is asked.
    bool over = true;
    MUST(machine().gpu->query_event(event, over));
    EXPECT_FALSE(over);
#ifndef __SANITIZE_THREAD__  // looking at what a stream may be writing is a race, and here it is meant
    EXPECT_EQ(first.values(), std::vector<float>(100, 1.0F)) << "nothing is changed early";
#endif
    EXPECT_FALSE(done(0));
    MUST(all_reduce(1, second, 100));
    MUST(machine().gpu->synchronize_stream(_streams[0]));
    MUST(machine().gpu->synchronize_stream(_streams[1]));
    MUST(machine().gpu->query_event(event, over));
    EXPECT_TRUE(over);
    EXPECT_EQ(first.values(), std::vector<float>(100, 3.0F));
    EXPECT_EQ(second.values(), std::vector<float>(100, 3.0F));
    MUST(machine().gpu->destroy_event(event));
}

TEST_F(EmulatedCclPair, KeepsTheOrderOfCallsAcrossStreams) {
    const Vector<float> first(0, std::vector<float>(1000, 1.0F));
    const Vector<float> second(1, std::vector<float>(1000, 1.0F));
    gpu::StreamHandle other;
    MUST(machine().gpu->create_stream(0, false, other));
    for (int round = 0; round < 10; ++round) {
        MUST(library().all_reduce(first.data(), first.data(), 1000, ccl::Type::float32, ccl::Operation::sum,
                                  _communicators[0], round % 2 == 0 ? _streams[0] : other));
        MUST(all_reduce(1, second, 1000));
    }
    MUST(machine().gpu->synchronize_stream(_streams[0]));
    MUST(machine().gpu->synchronize_stream(other));
    MUST(machine().gpu->synchronize_stream(_streams[1]));
    EXPECT_EQ(first.values(), std::vector<float>(1000, 1024.0F));
    EXPECT_EQ(second.values(), std::vector<float>(1000, 1024.0F));
    MUST(machine().gpu->destroy_stream(other));
}

TEST_F(EmulatedCclPair, OneThreadSpeaksForSeveralDevicesInAGroup) {
    const Vector<float> first(0, std::vector<float>(50, 1.0F));
    const Vector<float> second(1, std::vector<float>(50, 2.0F));
    MUST(library().group_start());
    MUST(library().send(first.data(), 50, ccl::Type::float32, 1, _communicators[0], _streams[0]));
    MUST(library().receive(second.data(), 50, ccl::Type::float32, 0, _communicators[1], _streams[1]));
    EXPECT_TRUE(done(0) && done(1)) << "nothing is queued before the group ends";
    MUST(library().group_end());
    MUST(machine().gpu->synchronize_stream(_streams[1]));
    EXPECT_EQ(second.values(), std::vector<float>(50, 1.0F));
    MUST(machine().gpu->synchronize_stream(_streams[0]));
    EXPECT_EQ(library().group_end().code, kInvalidUsage) << "there is no group to end";
}

TEST_F(EmulatedCclPair, AbortEndsTheWaitingAndThePeersToo) {
    const Vector<float> first(0, std::vector<float>(100, 1.0F));
    const Vector<float> second(1, std::vector<float>(100, 2.0F));
    MUST(all_reduce(0, first, 100));
    EXPECT_FALSE(done(0));
    MUST(library().abort(_communicators[0]));
    _communicators[0] = {};
    MUST(machine().gpu->synchronize_stream(_streams[0]));
    EXPECT_EQ(first.values(), std::vector<float>(100, 1.0F));
    MUST(all_reduce(1, second, 100));
    MUST(machine().gpu->synchronize_stream(_streams[1]));
    EXPECT_EQ(async_error(1), kRemoteError);
    const ccl::Status refused = all_reduce(1, second, 100);
    EXPECT_EQ(refused.code, kRemoteError);
    EXPECT_NE(library().explain(refused, _communicators[1]).find("rank 0 has ended"), std::string::npos)
        << library().explain(refused, _communicators[1]);
}

TEST_F(EmulatedCclPair, CallsThatDoNotAgreeFailInsteadOfHanging) {
    const Vector<float> first(0, std::vector<float>(100, 1.0F));
    const Vector<float> second(1, std::vector<float>(100, 2.0F));
    MUST(library().send(first.data(), 100, ccl::Type::float32, 1, _communicators[0], _streams[0]));
    MUST(library().receive(second.data(), 99, ccl::Type::float32, 0, _communicators[1], _streams[1]));
    MUST(machine().gpu->synchronize_stream(_streams[1]));
    EXPECT_EQ(async_error(1), kInvalidUsage);
    EXPECT_EQ(second.values(), std::vector<float>(100, 2.0F));
    MUST(machine().gpu->synchronize_stream(_streams[0]));
}

TEST_F(EmulatedCclPair, WrongArgumentsAreRefusedAndNamed) {
    const Vector<float> first(0, std::vector<float>(100, 1.0F));
    std::vector<float> pageable(100);
    const auto refused = [&](const ccl::Status& status, const char* reason) {
        EXPECT_EQ(status.code, kInvalidArgument) << status.message();
        EXPECT_NE(library().explain(status).find(reason), std::string::npos) << library().explain(status);
    };
    const auto reduce = [&](const void* send, void* receive, std::size_t count, int device) {
        return library().all_reduce(send, receive, count, ccl::Type::float32, ccl::Operation::sum,
                                    _communicators[device], _streams[device]);
    };
    refused(reduce(pageable.data(), first.data(), 100, 0), "sendbuff");
    refused(reduce(first.data(), pageable.data(), 100, 0), "recvbuff");
    refused(reduce(first.data(), first.data(), 101, 0), "ends before");
    refused(reduce(first.data(), first.data(), 100, 1), "another device");
    refused(library().send(first.data(), 100, ccl::Type::float32, 2, _communicators[0], _streams[0]), "rank 2 of 2");
    EXPECT_EQ(async_error(0), 0) << "a refused call does no harm";
    void* nothing = nullptr;
    ccl::UniqueId invented;
    EXPECT_EQ(machine().init_rank(&nothing, 2, invented, 0), kInvalidArgument);
    EXPECT_EQ(machine().init_rank(&nothing, 2, invented, 2), kInvalidArgument);
    ccl::UniqueId identifier;
    MUST(library().unique_id(identifier));
    ASSERT_EQ(machine().init_config(&nothing, 1, identifier, 0, nullptr), 0);
    EXPECT_EQ(machine().init_rank(&nothing, 1, identifier, 0), kSystemError) << "an identifier serves once";
}

// ---- what goes wrong between processes ------------------------------------------------------------------------------

SCENARIO(join_on_one_device) {
    Rank self(arguments, false);
    const ccl::Status status = self.join();
    if (status.ok()) {
        const Vector<float> data(self.device, std::vector<float>(10, 1.0F));
        MUST(machine().ccl->all_reduce(data.data(), data.data(), 10, ccl::Type::float32, ccl::Operation::sum,
                                       self.communicator, self.stream));
        self.finish();
        REQUIRE(data.values() == std::vector<float>(10, 2.0F));
        MUST(machine().ccl->destroy(self.communicator));
    }
    std::printf("%d %s\n", status.code, machine().ccl->explain(status).c_str());
    return 0;
}

TEST(EmulatedCclProcess, TwoRanksOnOneDeviceAreRefusedUnlessTheyMayShareIt) {
    for (const Outcome& outcome : run_ranks("join_on_one_device", 2, {})) {
        EXPECT_TRUE(outcome.succeeded()) << outcome.output;
        EXPECT_EQ(outcome.output.rfind("5 ncclCommInitRank: invalid usage", 0), 0U) << outcome.output;
        EXPECT_NE(outcome.output.find("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10000"),
                  std::string::npos)
            << outcome.output;
    }
    for (const Outcome& outcome : run_ranks("join_on_one_device", 2, {{"AWAKEN_TEST_FAULTS", "ccl-share-gpu"}})) {
        EXPECT_TRUE(outcome.succeeded()) << outcome.output;
        EXPECT_EQ(outcome.output, "0 \n");
    }
}

SCENARIO(join_with_failure) {
    Rank self(arguments);
    const ccl::Status status = self.join();
    std::printf("%d %s\n", status.code, machine().ccl->explain(status).c_str());
    return 0;
}

TEST(EmulatedCclProcess, AnInjectedFailureOfOneRankFailsAll) {
    const std::vector<Outcome> outcomes =
        run_ranks("join_with_failure", 3, {{"AWAKEN_EMULATE", kEmulate3}, {"AWAKEN_TEST_FAULTS", "ccl-init=1"}});
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
        EXPECT_TRUE(outcomes[rank].succeeded()) << outcomes[rank].output;
        // Late ranks find nobody any more, which is a system error too.
        const char first = outcomes[rank].output.empty() ? '?' : outcomes[rank].output.front();
        EXPECT_TRUE(rank == 1 ? first == '2' : first == '6' || first == '2') << outcomes[rank].output;
    }
    EXPECT_NE(outcomes[1].output.find("injected"), std::string::npos) << outcomes[1].output;
}

SCENARIO(killed_peer) {
    Rank self(arguments);
    MUST(self.join());
    if (self.rank == 1) {
        raise(SIGKILL);
    }
    const Vector<float> data(self.device, std::vector<float>(100, 1.0F));
    MUST(machine().ccl->all_reduce(data.data(), data.data(), 100, ccl::Type::float32, ccl::Operation::sum,
                                   self.communicator, self.stream));
    self.finish();
    ccl::Status error;
    MUST(machine().ccl->async_error(self.communicator, error));
    REQUIRE_EQUAL(error.code, kRemoteError);
    MUST(machine().ccl->abort(self.communicator));
    return 0;
}

TEST(EmulatedCclProcess, AKilledPeerEndsTheWaiting) {
    const std::vector<Outcome> outcomes = run_ranks("killed_peer", 2, {});
    EXPECT_TRUE(outcomes[0].succeeded()) << outcomes[0].output;
    EXPECT_TRUE(outcomes[1].ended_by(SIGKILL)) << outcomes[1].output;
}

TEST(EmulatedCclProcess, NothingIsLeftBehind) {
    expect_success(run_ranks("each_type_and_operation", 2, {}));
    // Each test in this process may have identifiers that nobody has used; those of the ranks' processes are gone.
    std::ifstream sockets("/proc/net/unix");
    std::string line;
    const std::string own = "awaken-emulated-ccl-" + std::to_string(getpid()) + "-";
    while (std::getline(sockets, line)) {
        if (line.find(own) != std::string::npos) {
            ADD_FAILURE() << line;
        }
    }
}

}  // namespace
}  // namespace awaken::emulator_test
