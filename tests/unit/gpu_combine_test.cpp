// SPDX-License-Identifier: Apache-2.0
// The kernels of collective operations (kernels/combine.h) on the emulated driver: every operation on every type
// against a reference of its own, the places and alignments, and the notice.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "coll/device/host_fold.h"
#include "emulator_support.h"
#include "gpu/gpu.h"
#include "gpu/kernels/codes.h"
#include "gpu/kernels/texts.h"

namespace awaken::emulator_test {
namespace {

using kernels::code_of;
using kernels::element_alignment;
using kernels::element_bytes;
using kernels::ElementType;
using kernels::is_defined;
using kernels::kElementTypes;
using kernels::kMostAwaited;
using kernels::kMostMoves;
using kernels::kMostPlaces;
using kernels::kReductionOperations;
using kernels::ReductionOperation;
using Random = std::mt19937_64;

#if AWAKEN_TEST_HIP
constexpr gpu::Choice kChoice = gpu::Choice::hip;
constexpr const char* kDriver = "libamdhip64.so.6";
constexpr const char* kCompiler = "libhiprtc.so.6";
#else
constexpr gpu::Choice kChoice = gpu::Choice::cuda;
constexpr const char* kDriver = "libcuda.so.1";
constexpr const char* kCompiler = "libnvrtc.so.12";
#endif

// A kernel's thread costs a millisecond under ThreadSanitizer.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadsAreExpensive = true;
#else
constexpr bool kThreadsAreExpensive = false;
#endif
constexpr unsigned kMostThreads = kThreadsAreExpensive ? 4 : 40;

// The parameters of the kernels; pointers are 8 bytes.
struct Places {
    std::uint64_t at[kMostPlaces] = {};
};
struct Move {
    std::uint64_t target = 0;
    std::uint64_t source = 0;
    std::uint64_t bytes = 0;
};
struct Moves {
    Move list[kMostMoves] = {};
};
struct Notice {
    std::uint64_t counter = 0;
    std::uint64_t word = 0;
    std::uint64_t value = 0;
    std::uint64_t awaited[kMostAwaited] = {};
    std::uint64_t released = 0;
    std::uint32_t awaited_count = 0;
    std::uint32_t awaited_number = 0;
};

gpu::Runtime& emulated() {
    static const Library driver(kDriver);
    static const Library compiler(kCompiler);
    std::string why_not;
    gpu::Runtime& runtime = gpu::find(kChoice, &why_not);
    if (!runtime.is_present()) {
        std::fprintf(stderr, "%s\n", why_not.c_str());
        std::abort();
    }
    return runtime;
}

/// Memory of the device, or pinned memory of the host, which device and host both reach.
class Memory {
  public:
    Memory(gpu::Runtime& runtime, const bool pinned, const std::size_t bytes) : _runtime(runtime), _pinned(pinned) {
        const gpu::Status status = pinned ? runtime.allocate_pinned(bytes, _data) : runtime.allocate(0, bytes, _data);
        EXPECT_TRUE(status.ok()) << status.message();
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { static_cast<void>(_pinned ? _runtime.free_pinned(_data) : _runtime.free(_data)); }

    [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(_data); }
    [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(_data); }

  private:
    gpu::Runtime& _runtime;
    const bool _pinned;
    void* _data = nullptr;
};

/// The kernels, and one stream with what it needs to hear of their end.
struct CombineTest : ::testing::Test {
    static constexpr std::size_t kRoom = std::size_t{4} << 20;

    CombineTest() {
        std::string log;
        EXPECT_TRUE(runtime.load_kernels(0, "combine.h", gpu::kernels::combine_source, module, log).ok()) << log;
        EXPECT_TRUE(runtime.find_kernel(module, "awaken_combine", combine_kernel).ok());
        EXPECT_TRUE(runtime.find_kernel(module, "awaken_move", move_kernel).ok());
        EXPECT_TRUE(runtime.create_stream(0, false, stream).ok());
        word() = 0;
        std::memset(before.data(), 0, sizeof(std::uint32_t));
        EXPECT_TRUE(runtime.copy(counter.data(), before.data(), sizeof(std::uint32_t), stream).ok());
        synchronize();
    }
    ~CombineTest() override {
        static_cast<void>(runtime.destroy_stream(stream));
        static_cast<void>(runtime.unload_kernels(module));
    }

    [[nodiscard]] std::uint64_t& word() const { return *reinterpret_cast<std::uint64_t*>(notice_word.data()); }
    void synchronize() { EXPECT_TRUE(runtime.synchronize_stream(stream).ok()); }
    [[nodiscard]] std::uint32_t counter_value() {
        EXPECT_TRUE(runtime.copy(after.data(), counter.data(), sizeof(std::uint32_t), stream).ok());
        synchronize();
        std::uint32_t value = 0;
        std::memcpy(&value, after.data(), sizeof value);
        return value;
    }
    /// Waits as the host does: by looking at the word. False when it does not come.
    [[nodiscard]] bool word_becomes(const std::uint64_t value) const {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (std::atomic_ref(word()).load(std::memory_order_acquire) != value) {
            if (std::chrono::steady_clock::now() > deadline) {
                return false;
            }
        }
        return true;
    }

    void launch_combine(Places sources, std::uint32_t source_count, Places targets, std::uint32_t target_count,
                        std::uint64_t elements, std::uint32_t code, const gpu::Dim3 grid, const gpu::Dim3 block,
                        Notice notice) {
        void* arguments[] = {&sources, &source_count, &targets, &target_count, &elements, &code, &notice};
        const gpu::Status status = runtime.launch(combine_kernel, grid, block, 0, stream, arguments);
        EXPECT_TRUE(status.ok()) << status.message();
    }
    void launch_move(Moves moves, std::uint32_t count, const gpu::Dim3 grid, const gpu::Dim3 block, Notice notice) {
        void* arguments[] = {&moves, &count, &notice};
        const gpu::Status status = runtime.launch(move_kernel, grid, block, 0, stream, arguments);
        EXPECT_TRUE(status.ok()) << status.message();
    }
    [[nodiscard]] Notice next_notice() { return {counter.address(), notice_word.address(), ++last_value}; }

    /// Runs `launch` on the first `bytes` of the arena, which hold what `before` holds, and leaves what they hold then
    /// in `after`.
    template <typename Launch>
    void run(const std::size_t bytes, const Launch& launch) {
        ASSERT_LE(bytes, kRoom);
        ASSERT_TRUE(runtime.copy(arena.data(), before.data(), bytes, stream).ok());
        launch();
        ASSERT_TRUE(runtime.copy(after.data(), arena.data(), bytes, stream).ok());
        synchronize();
        ASSERT_EQ(word(), last_value);
    }

    gpu::Runtime& runtime = emulated();
    gpu::ModuleHandle module;
    gpu::KernelHandle combine_kernel, move_kernel;
    gpu::StreamHandle stream;
    Memory arena{runtime, false, kRoom}, counter{runtime, false, sizeof(std::uint32_t)};
    Memory before{runtime, true, kRoom}, after{runtime, true, kRoom}, notice_word{runtime, true, 64};
    std::uint64_t last_value = 0;
};

// ---- the reference --------------------------------------------------------------------------------------------------

template <typename T>
T read(const std::byte* const from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
template <typename T>
void write(std::byte* const to, const T value) {
    std::memcpy(to, &value, sizeof value);
}

/// A floating-point format of 16 bits by its definition in IEEE 754.
struct HalfFormat {
    int exponent_bits;
    int mantissa_bits;

    [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    [[nodiscard]] int last_field() const { return (1 << exponent_bits) - 1; }
    [[nodiscard]] double value_of(const std::uint16_t bits) const {
        const int field = (bits >> mantissa_bits) & last_field();
        const int mantissa = bits & ((1 << mantissa_bits) - 1);
        double magnitude = 0;
        if (field == last_field()) {
            magnitude =
                mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
        } else if (field == 0) {
            magnitude = std::ldexp(mantissa, 1 - bias() - mantissa_bits);
        } else {
            magnitude = std::ldexp((1 << mantissa_bits) + mantissa, field - bias() - mantissa_bits);
        }
        return (bits & 0x8000) != 0 ? -magnitude : magnitude;
    }
    /// The number nearest to `value`; of two, the one whose last bit is 0. Found by bisection: without their sign, bits
    /// are in the order of what they stand for.
    [[nodiscard]] std::uint16_t nearest_to(const double value) const {
        const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
        const int infinity = last_field() << mantissa_bits;
        if (std::isnan(value)) {
            return static_cast<std::uint16_t>(sign | infinity | 1);
        }
        const double magnitude = std::fabs(value);
        int low = 0;
        int high = infinity;
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (value_of(static_cast<std::uint16_t>(middle)) <= magnitude ? low : high) = middle;
        }
        // In the place of infinity stands what would follow the largest number.
        const double below = value_of(static_cast<std::uint16_t>(low));
        const double above =
            high == infinity ? std::ldexp(1.0, last_field() - bias()) : value_of(static_cast<std::uint16_t>(high));
        const double middle = below + (above - below) / 2;
        const bool up = magnitude > middle || (magnitude == middle && low % 2 != 0);
        return static_cast<std::uint16_t>(sign | (up ? high : low));
    }
};
constexpr HalfFormat kFloat16{5, 10};
constexpr HalfFormat kBfloat16{8, 7};

template <typename T>
T reference(const ReductionOperation operation, const T left, const T right) {
    // Integers wrap around, in a type that is not promoted to int.
    using Wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
    switch (operation) {
        case ReductionOperation::sum:
            return static_cast<T>(static_cast<Wide>(left) + static_cast<Wide>(right));
        case ReductionOperation::product:
            return static_cast<T>(static_cast<Wide>(left) * static_cast<Wide>(right));
        case ReductionOperation::minimum:
            return std::min(left, right);
        case ReductionOperation::maximum:
            return std::max(left, right);
        default:
            break;
    }
    if constexpr (std::is_integral_v<T>) {
        switch (operation) {
            case ReductionOperation::logical_and:
                return static_cast<T>(left != 0 && right != 0);
            case ReductionOperation::logical_or:
                return static_cast<T>(left != 0 || right != 0);
            case ReductionOperation::logical_xor:
                return static_cast<T>((left != 0) != (right != 0));
            case ReductionOperation::bitwise_and:
                return static_cast<T>(left & right);
            case ReductionOperation::bitwise_or:
                return static_cast<T>(left | right);
            case ReductionOperation::bitwise_xor:
                return static_cast<T>(left ^ right);
            default:
                break;
        }
    }
    ADD_FAILURE() << "no such operation";
    return left;
}

template <typename T>
void combine_plain(const ReductionOperation operation, std::byte* const result, const std::byte* const right) {
    write(result, reference(operation, read<T>(result), read<T>(right)));
}

std::uint16_t half_reference(const HalfFormat& format, const ReductionOperation operation, const std::uint16_t left,
                             const std::uint16_t right) {
    return format.nearest_to(
        reference(operation, static_cast<float>(format.value_of(left)), static_cast<float>(format.value_of(right))));
}
void combine_halves(const HalfFormat& format, const ReductionOperation operation, std::byte* const result,
                    const std::byte* const right) {
    write(result, half_reference(format, operation, read<std::uint16_t>(result), read<std::uint16_t>(right)));
}

template <typename T>
void combine_complex(const ReductionOperation operation, std::byte* const result, const std::byte* const right) {
    const T a = read<T>(result), b = read<T>(result + sizeof(T));
    const T c = read<T>(right), d = read<T>(right + sizeof(T));
    const bool sum = operation == ReductionOperation::sum;
    write(result, sum ? a + c : a * c - b * d);
    write(result + sizeof(T), sum ? b + d : a * d + b * c);
}

template <typename Value, typename Index>
void combine_pairs(const ReductionOperation operation, std::byte* const result, const std::byte* const right) {
    const auto left_value = read<Value>(result), right_value = read<Value>(right);
    const auto left_index = read<Index>(result + sizeof(Value)), right_index = read<Index>(right + sizeof(Value));
    const bool left_wins =
        operation == ReductionOperation::minimum_location ? left_value < right_value : left_value > right_value;
    if (left_value == right_value) {
        write(result + sizeof(Value), std::min(left_index, right_index));
    } else if (!left_wins) {
        std::memcpy(result, right, sizeof(Value) + sizeof(Index));
    }
}

/// Combines one element into `result`.
void combine_reference(const ElementType type, const ReductionOperation operation, std::byte* const result,
                       const std::byte* const right) {
    if (operation == ReductionOperation::copy) {
        return;
    }
    switch (type) {
        case ElementType::int8:
            return combine_plain<std::int8_t>(operation, result, right);
        case ElementType::uint8:
        case ElementType::boolean:
            return combine_plain<std::uint8_t>(operation, result, right);
        case ElementType::int16:
            return combine_plain<std::int16_t>(operation, result, right);
        case ElementType::uint16:
            return combine_plain<std::uint16_t>(operation, result, right);
        case ElementType::int32:
            return combine_plain<std::int32_t>(operation, result, right);
        case ElementType::uint32:
            return combine_plain<std::uint32_t>(operation, result, right);
        case ElementType::int64:
            return combine_plain<std::int64_t>(operation, result, right);
        case ElementType::uint64:
            return combine_plain<std::uint64_t>(operation, result, right);
        case ElementType::float16:
            return combine_halves(kFloat16, operation, result, right);
        case ElementType::bfloat16:
            return combine_halves(kBfloat16, operation, result, right);
        case ElementType::float32:
            return combine_plain<float>(operation, result, right);
        case ElementType::float64:
            return combine_plain<double>(operation, result, right);
        case ElementType::complex_float32:
            return combine_complex<float>(operation, result, right);
        case ElementType::complex_float64:
            return combine_complex<double>(operation, result, right);
        case ElementType::pair_int32_int32:
            return combine_pairs<std::int32_t, std::int32_t>(operation, result, right);
        case ElementType::pair_float32_int32:
            return combine_pairs<float, std::int32_t>(operation, result, right);
        case ElementType::pair_float32_float32:
            return combine_pairs<float, float>(operation, result, right);
        case ElementType::pair_float64_float64:
            return combine_pairs<double, double>(operation, result, right);
        default:
            ADD_FAILURE() << "cannot be combined";
    }
}

// ---- values ---------------------------------------------------------------------------------------------------------

/// Any bits, or few different values: bounds, neighbours of zero, and equal ones.
template <typename T>
T random_integer(Random& random) {
    constexpr T kEdges[] = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), T{0}, T{1}, T(-1), T{2}};
    return random() % 4 == 0 ? kEdges[random() % std::size(kEdges)] : static_cast<T>(random());
}

/// Of any size, but not such that a product of many is always zero or infinite; or edges. Infinities only where nothing
/// is computed with them.
template <typename T>
T random_real(Random& random, const ReductionOperation operation) {
    using Limits = std::numeric_limits<T>;
    const T edges[] = {T(0), -T(0), T(1), T(-1), Limits::denorm_min(), -Limits::min(), Limits::epsilon()};
    const T bounds[] = {Limits::max(), Limits::lowest(), Limits::infinity(), -Limits::infinity()};
    const std::uint64_t choice = random() % 8;
    const bool order = operation != ReductionOperation::sum && operation != ReductionOperation::product;
    if (choice == 0) {
        return edges[random() % std::size(edges)];
    }
    if (choice == 1 && order) {
        return bounds[random() % std::size(bounds)];
    }
    if (choice == 2) {
        return static_cast<T>(static_cast<int>(random() % 7) - 3);
    }
    const T fraction = static_cast<T>(random() >> 12) / static_cast<T>(std::uint64_t{1} << 52);
    const T value = std::ldexp(T(1) + fraction, static_cast<int>(random() % 9) - 4);
    return random() % 2 == 0 ? value : -value;
}

std::uint16_t random_half(Random& random, const HalfFormat& format, const ReductionOperation operation) {
    for (;;) {
        const auto any = static_cast<std::uint16_t>(random());
        if (random() % 8 != 0) {
            return format.nearest_to(random_real<float>(random, operation));
        }
        const double value = format.value_of(any);
        if (std::isfinite(value) || (std::isinf(value) && operation == ReductionOperation::maximum)) {
            return any;
        }
    }
}

template <typename First, typename Second>
void write_pair(std::byte* const to, const First first, const Second second) {
    write(to, first);
    write(to + sizeof first, second);
}

void write_random(Random& random, const ElementType type, const ReductionOperation operation, std::byte* const to) {
    const auto small = [&random] { return static_cast<int>(random() % 5) - 2; };
    const auto index = [&random] { return static_cast<int>(random() % 10); };
    switch (type) {
        case ElementType::int8:
            return write(to, random_integer<std::int8_t>(random));
        case ElementType::uint8:
        case ElementType::boolean:
            return write(to, random_integer<std::uint8_t>(random));
        case ElementType::int16:
            return write(to, random_integer<std::int16_t>(random));
        case ElementType::uint16:
            return write(to, random_integer<std::uint16_t>(random));
        case ElementType::int32:
            return write(to, random_integer<std::int32_t>(random));
        case ElementType::uint32:
            return write(to, random_integer<std::uint32_t>(random));
        case ElementType::int64:
            return write(to, random_integer<std::int64_t>(random));
        case ElementType::uint64:
            return write(to, random_integer<std::uint64_t>(random));
        case ElementType::float16:
            return write(to, random_half(random, kFloat16, operation));
        case ElementType::bfloat16:
            return write(to, random_half(random, kBfloat16, operation));
        case ElementType::float32:
            return write(to, random_real<float>(random, operation));
        case ElementType::float64:
            return write(to, random_real<double>(random, operation));
        // Products of these are exact, so that it does not matter whether a compiler rounds between multiplication and
        // addition.
        case ElementType::complex_float32:
            return write_pair(to, static_cast<float>(small()), static_cast<float>(small()));
        case ElementType::complex_float64:
            return write_pair(to, static_cast<double>(small()), static_cast<double>(small()));
        // Few values, so that indices decide often.
        case ElementType::pair_int32_int32:
            return write_pair(to, small(), index() - 5);
        case ElementType::pair_float32_int32:
            return write_pair(to, static_cast<float>(small()) / 2, index() - 5);
        case ElementType::pair_float32_float32:
            return write_pair(to, static_cast<float>(small()) / 2, static_cast<float>(index()));
        case ElementType::pair_float64_float64:
            return write_pair(to, static_cast<double>(small()) / 2, static_cast<double>(index()));
        default:
            for (unsigned i = 0; i < element_bytes(type); ++i) {
                to[i] = static_cast<std::byte>(random());
            }
    }
}

// ---- cases ----------------------------------------------------------------------------------------------------------

constexpr std::uint64_t kElementCounts[] = {0, 1, 15, 16, 17, 1000, 4099};

enum class Alignment : std::uint8_t {
    vector,    ///< all places at multiples of 16 bytes
    shifted,   ///< all places at the same distance from one
    different  ///< each somewhere
};

struct Case {
    ElementType type = ElementType::int32;
    ReductionOperation operation = ReductionOperation::sum;
    unsigned sources = 1;
    unsigned targets = 1;
    std::uint64_t elements = 0;
    Alignment alignment = Alignment::vector;
    unsigned in_place = 0;  ///< the number of targets, from the last one on, that are sources
    unsigned blocks = 1;
    unsigned threads = kMostThreads;

    [[nodiscard]] std::string text() const {
        std::ostringstream out;
        out << "type " << static_cast<unsigned>(type) << " operation " << static_cast<unsigned>(operation)
            << " sources " << sources << " targets " << targets << " elements " << elements << " alignment "
            << static_cast<unsigned>(alignment) << " in place " << in_place << " grid " << blocks << " x " << threads;
        return out.str();
    }
};

bool is_nan(const ElementType type, const std::byte* const element) {
    switch (type) {
        case ElementType::float16:
            return std::isnan(kFloat16.value_of(read<std::uint16_t>(element)));
        case ElementType::bfloat16:
            return std::isnan(kBfloat16.value_of(read<std::uint16_t>(element)));
        case ElementType::float32:
            return std::isnan(read<float>(element));
        case ElementType::float64:
            return std::isnan(read<double>(element));
        default:
            return false;
    }
}

/// Whether two elements are equal, bit by bit but for the sign and payload of NaNs.
bool same_element(const ElementType type, const std::byte* const left, const std::byte* const right) {
    return std::memcmp(left, right, element_bytes(type)) == 0 || (is_nan(type, left) && is_nan(type, right));
}

/// Lays out the case's places in the arena, runs it, and compares all of the arena with what it should hold.
void check(CombineTest& test, Random& random, const Case& one) {
    const std::size_t bytes = one.elements * element_bytes(one.type);
    const std::size_t stride = (bytes + 15) / 16 * 16 + 64;
    const unsigned places = one.sources + one.targets - one.in_place;
    const unsigned units = 16 / element_alignment(one.type);
    const std::size_t shift = random() % units * element_alignment(one.type);
    std::vector<std::size_t> offsets;
    for (unsigned place = 0; place < places; ++place) {
        std::size_t within = 16;
        if (one.alignment == Alignment::shifted) {
            within += shift;
        }
        if (one.alignment == Alignment::different) {
            within += random() % units * element_alignment(one.type);
        }
        offsets.push_back(place * stride + within);
    }
    const std::size_t room = places * stride;
    std::byte* const data = test.before.data();
    for (std::size_t at = 0; at < room; at += sizeof(std::uint64_t)) {
        write(data + at, random());
    }
    Places sources, targets;
    for (unsigned source = 0; source < one.sources; ++source) {
        sources.at[source] = test.arena.address() + offsets[source];
        for (std::uint64_t i = 0; i < one.elements; ++i) {
            write_random(random, one.type, one.operation, data + offsets[source] + i * element_bytes(one.type));
        }
    }
    std::vector<std::size_t> target_offsets;
    for (unsigned target = 0; target < one.targets; ++target) {
        const unsigned separate = one.targets - one.in_place;
        target_offsets.push_back(target < separate ? offsets[one.sources + target]
                                                   : offsets[(random() + target) % one.sources]);
        targets.at[target] = test.arena.address() + target_offsets.back();
    }

    std::vector<std::byte> expected(data, data + room);
    std::vector<std::byte> result(data + offsets[0], data + offsets[0] + bytes);
    for (unsigned source = 1; source < one.sources; ++source) {
        for (std::uint64_t i = 0; i < one.elements; ++i) {
            const std::size_t at = i * element_bytes(one.type);
            combine_reference(one.type, one.operation, result.data() + at, data + offsets[source] + at);
        }
    }
    if (one.operation != ReductionOperation::copy) {  // the CPU computes the same where it folds
        std::vector<const std::byte*> operands;
        for (unsigned source = 0; source < one.sources; ++source) {
            operands.push_back(data + offsets[source]);
        }
        std::vector<std::byte> folded(bytes);
        coll::fold_on_host(code_of(one.type, one.operation), operands, folded.data(), one.elements);
        for (std::size_t at = 0; at < bytes; at += element_bytes(one.type)) {
            ASSERT_TRUE(same_element(one.type, folded.data() + at, result.data() + at))
                << one.text() << ": byte " << at << " by the CPU";
        }
    }
    for (const std::size_t offset : target_offsets) {
        std::copy(result.begin(), result.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
    }

    test.run(room, [&] {
        test.launch_combine(sources, one.sources, targets, one.targets, one.elements, code_of(one.type, one.operation),
                            {one.blocks, 1, 1}, {one.threads, 1, 1}, test.next_notice());
    });
    if (std::memcmp(test.after.data(), expected.data(), room) == 0) {
        return;
    }
    // What NaNs there are may have another payload; everything else is an error.
    for (const std::size_t offset : target_offsets) {
        for (std::uint64_t i = 0; i < one.elements; ++i) {
            const std::size_t at = offset + i * element_bytes(one.type);
            ASSERT_TRUE(same_element(one.type, test.after.data() + at, expected.data() + at))
                << one.text() << ": element " << i;
            std::memcpy(expected.data() + at, test.after.data() + at, element_bytes(one.type));
        }
    }
    ASSERT_EQ(std::memcmp(test.after.data(), expected.data(), room), 0) << one.text() << ": beside the targets";
}

TEST_F(CombineTest, CodesNameTypeAndOperation) {
    for (unsigned type = 0; type < kElementTypes; ++type) {
        for (unsigned operation = 0; operation < kReductionOperations; ++operation) {
            const std::uint32_t code =
                code_of(static_cast<ElementType>(type), static_cast<ReductionOperation>(operation));
            EXPECT_EQ(kernels::type_of(code), static_cast<ElementType>(type));
            EXPECT_EQ(kernels::operation_of(code), static_cast<ReductionOperation>(operation));
        }
    }
    EXPECT_EQ(element_bytes(ElementType::bytes16), 16U);
    EXPECT_EQ(element_bytes(ElementType::pair_float32_int32), 8U);
    EXPECT_EQ(element_alignment(ElementType::pair_float32_int32), 4U);
    EXPECT_FALSE(is_defined(ElementType::float32, ReductionOperation::bitwise_or));
    EXPECT_FALSE(is_defined(ElementType::complex_float32, ReductionOperation::maximum));
    EXPECT_FALSE(is_defined(ElementType::boolean, ReductionOperation::sum));
    EXPECT_FALSE(is_defined(ElementType::bytes4, ReductionOperation::bitwise_xor));
    EXPECT_FALSE(is_defined(ElementType::int32, ReductionOperation::minimum_location));
}

/// All that is defined, in groups of types so that no test is long.
struct CombineTypes : CombineTest, ::testing::WithParamInterface<unsigned> {};

TEST_P(CombineTypes, EqualTheReference) {
    const auto type = static_cast<ElementType>(GetParam());
    // Around the bounds of what is loaded together.
    constexpr unsigned kSources[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 32};
    Random random(1 + GetParam());
    unsigned number = 0;
    for (unsigned operation = 0; operation < kReductionOperations; ++operation) {
        Case one;
        one.type = type;
        one.operation = static_cast<ReductionOperation>(operation);
        if (!is_defined(one.type, one.operation)) {
            continue;
        }
        for (const std::uint64_t elements : kElementCounts) {
            for (const Alignment alignment : {Alignment::vector, Alignment::shifted, Alignment::different}) {
                for (int repetition = 0; repetition < (kThreadsAreExpensive ? 1 : 3); ++repetition) {
                    one.elements = elements;
                    one.alignment = alignment;
                    one.sources = operation == 0 ? 1 : kSources[number++ % std::size(kSources)];
                    one.targets = 1 + static_cast<unsigned>(random() % 8);
                    one.in_place = static_cast<unsigned>(random() % (one.targets + 1));
                    one.blocks = 1 + static_cast<unsigned>(random() % 3);
                    one.threads = 1 + static_cast<unsigned>(random() % kMostThreads);
                    check(*this, random, one);
                    if (HasFatalFailure()) {
                        return;
                    }
                }
            }
        }
    }
}
INSTANTIATE_TEST_SUITE_P(All, CombineTypes, ::testing::Range(0U, kElementTypes));

TEST_F(CombineTest, AnyNumberOfSourcesAndTargets) {
    Random random(5);
    for (const ElementType type : {ElementType::int32, ElementType::float16, ElementType::pair_float64_float64}) {
        Case one;
        one.type = type;
        one.operation =
            type == ElementType::pair_float64_float64 ? ReductionOperation::maximum_location : ReductionOperation::sum;
        for (one.sources = 1; one.sources <= kMostPlaces; ++one.sources) {
            one.targets = 1 + one.sources % 8;
            one.in_place = one.sources % 3 == 0 ? one.targets : 0;
            // Enough for several rounds of each thread, and not a multiple of what one round does.
            one.elements = 1000 + random() % 100;
            one.blocks = 2;
            one.threads = 7;
            check(*this, random, one);
            if (HasFatalFailure()) {
                return;
            }
        }
    }
    for (unsigned targets : {31U, 32U}) {
        Case one;
        one.sources = 2;
        one.targets = targets;
        one.elements = 100;
        check(*this, random, one);
    }
}

TEST_F(CombineTest, AtEachAlignment) {
    Random random(6);
    for (const ElementType type : {ElementType::uint8, ElementType::int16, ElementType::float32, ElementType::float64,
                                   ElementType::complex_float32, ElementType::complex_float64}) {
        Case one;
        one.type = type;
        one.sources = 3;
        one.targets = 2;
        for (const Alignment alignment : {Alignment::shifted, Alignment::different}) {
            one.alignment = alignment;
            for (one.elements = 0; one.elements < 40; ++one.elements) {
                check(*this, random, one);
                if (HasFatalFailure()) {
                    return;
                }
            }
        }
    }
}

/// Combines arrays of 16-bit numbers pairwise by the kernel.
struct HalvesTest : CombineTest {
    using Halves = std::vector<std::uint16_t>;

    void combine(const ElementType type, const ReductionOperation operation, const Halves& left, const Halves& right,
                 Halves& result) {
        const std::size_t bytes = left.size() * sizeof(std::uint16_t);
        const std::size_t stride = (bytes + 15) / 16 * 16;
        std::memcpy(before.data(), left.data(), bytes);
        std::memcpy(before.data() + stride, right.data(), bytes);
        const Places sources{{arena.address(), arena.address() + stride}};
        const Places targets{{arena.address() + 2 * stride}};
        run(3 * stride, [&] {
            launch_combine(sources, 2, targets, 1, left.size(), code_of(type, operation), {1, 1, 1}, {64, 1, 1},
                           next_notice());
        });
        result.resize(left.size());
        std::memcpy(result.data(), after.data() + 2 * stride, bytes);
    }

    void check_pairs(const ElementType type, const HalfFormat& format, const ReductionOperation operation,
                     const Halves& left, const Halves& right) {
        Halves result;
        combine(type, operation, left, right, result);
        for (std::size_t i = 0; i < left.size(); ++i) {
            const std::uint16_t expected = half_reference(format, operation, left[i], right[i]);
            const bool both_nan = std::isnan(format.value_of(expected)) && std::isnan(format.value_of(result[i]));
            ASSERT_TRUE(result[i] == expected || both_nan)
                << std::hex << left[i] << " and " << right[i] << " give " << result[i] << ", not " << expected;
        }
    }

    static constexpr std::pair<ElementType, HalfFormat> kFormats[] = {{ElementType::float16, kFloat16},
                                                                      {ElementType::bfloat16, kBfloat16}};
};

TEST_F(HalvesTest, AllValuesSurviveConversion) {
    Halves all(65536), negative_zeros(65536, 0x8000), one_sign;
    for (std::size_t i = 0; i < all.size(); ++i) {
        all[i] = static_cast<std::uint16_t>(i);
    }
    for (const auto& [type, format] : kFormats) {
        for (const ReductionOperation operation : {ReductionOperation::sum, ReductionOperation::maximum}) {
            // Minus zero is what changes no number that it is added to.
            const Halves& right = operation == ReductionOperation::sum ? negative_zeros : all;
            Halves result;
            combine(type, operation, all, right, result);
            for (std::size_t i = 0; i < all.size(); ++i) {
                if (std::isnan(format.value_of(all[i]))) {
                    ASSERT_TRUE(std::isnan(format.value_of(result[i]))) << std::hex << i << " gives " << result[i];
                } else {
                    ASSERT_EQ(result[i], all[i]);
                }
            }
        }
        // One source is copied without a look at what it is: NaNs stay as they are.
        const std::size_t bytes = all.size() * sizeof(std::uint16_t);
        std::memcpy(before.data(), all.data(), bytes);
        const Places source{{arena.address()}}, target{{arena.address() + bytes}};
        const auto code = code_of(type, ReductionOperation::sum);
        run(2 * bytes, [&, code] {
            launch_combine(source, 1, target, 1, all.size(), code, {1, 1, 1}, {64, 1, 1}, next_notice());
        });
        EXPECT_EQ(std::memcmp(after.data() + bytes, all.data(), bytes), 0);
    }
}

TEST_F(HalvesTest, ResultsAreRoundedToTheNearest) {
    Random random(9);
    constexpr std::size_t kPairs = 100'000;
    for (const auto& [type, format] : kFormats) {
        Halves left, right, near, ties;
        for (std::size_t i = 0; i < kPairs; ++i) {
            left.push_back(static_cast<std::uint16_t>(random()));
            right.push_back(static_cast<std::uint16_t>(random()));
            // A number about as small as the last bit of the other.
            const int field = (left.back() >> format.mantissa_bits) & format.last_field();
            const int lower = std::max(field - format.mantissa_bits - static_cast<int>(random() % 4) + 1, 0);
            const auto sign = static_cast<std::uint16_t>(random() & 0x8000);
            const auto mantissa = static_cast<int>(random() & ((1U << format.mantissa_bits) - 1));
            near.push_back(static_cast<std::uint16_t>(sign | lower << format.mantissa_bits | mantissa));
            // Half of it, exactly or but for one bit.
            const int half = std::max(field - format.mantissa_bits - 1, 0) << format.mantissa_bits;
            ties.push_back(static_cast<std::uint16_t>(sign | std::max(half + static_cast<int>(random() % 3) - 1, 0)));
        }
        for (const Halves* other : {&right, &near, &ties}) {
            check_pairs(type, format, ReductionOperation::sum, left, *other);
            if (HasFatalFailure()) {
                return;
            }
        }
        check_pairs(type, format, ReductionOperation::product, left, right);
        // Products that are subnormal: of numbers whose exponents add up to less than the smallest.
        for (std::size_t i = 0; i < kPairs; ++i) {
            const int field = (left[i] >> format.mantissa_bits) & format.last_field();
            const int other =
                std::clamp(format.bias() + 1 - static_cast<int>(random() % 12) - field, 0, format.last_field() - 1);
            right[i] = static_cast<std::uint16_t>((right[i] & ~(format.last_field() << format.mantissa_bits)) |
                                                  other << format.mantissa_bits);
        }
        check_pairs(type, format, ReductionOperation::product, left, right);
    }
}

TEST_F(HalvesTest, RoundingAtTheEdges) {
    struct Sum {
        std::uint16_t left, right, result;
    };
    const auto check_sums = [this](const ElementType type, const std::vector<Sum>& sums) {
        Halves left, right, result;
        for (const Sum& sum : sums) {
            left.push_back(sum.left);
            right.push_back(sum.right);
        }
        combine(type, ReductionOperation::sum, left, right, result);
        for (std::size_t i = 0; i < sums.size(); ++i) {
            EXPECT_EQ(result[i], sums[i].result) << std::hex << sums[i].left << " + " << sums[i].right;
        }
    };
    check_sums(ElementType::float16, {{0x7bff, 0x4bff, 0x7bff},     // 65504 + 15.99: the largest number stays
                                      {0x7bff, 0x4c00, 0x7c00},     // 65504 + 16: half-way, to infinity
                                      {0xfbff, 0xcc00, 0xfc00},     // the same below zero
                                      {0x7bff, 0x7bff, 0x7c00},     // far beyond
                                      {0x7c00, 0xfbff, 0x7c00},     // infinity stays
                                      {0x3c00, 0x1000, 0x3c00},     // 1 + half a last bit: to the even 1
                                      {0x3c01, 0x1000, 0x3c02},     // the same from an odd number
                                      {0x3c00, 0x1001, 0x3c01},     // a little more than half
                                      {0x03ff, 0x0001, 0x0400},     // subnormal to normal
                                      {0x0400, 0x8001, 0x03ff},     // and back
                                      {0x0001, 0x8001, 0x0000},     // x - x
                                      {0x8000, 0x8000, 0x8000}});   // -0 - 0
    check_sums(ElementType::bfloat16, {{0x7f7f, 0x7b00, 0x7f80},    // the largest + half a last bit: to infinity
                                       {0x7f7f, 0x7aff, 0x7f7f},    // a little less
                                       {0xff80, 0x7f7f, 0xff80},    // infinity stays
                                       {0x3f80, 0x3b80, 0x3f80},    // 1 + half a last bit: to the even 1
                                       {0x3f81, 0x3b80, 0x3f82},    // the same from an odd number
                                       {0x007f, 0x0001, 0x0080},    // subnormal to normal
                                       {0x8000, 0x8000, 0x8000}});  // -0 - 0
}

// ---- moves ----------------------------------------------------------------------------------------------------------

TEST_F(CombineTest, MovesOfAllAlignmentsAndSizes) {
    Random random(3);
    constexpr std::size_t kSizes[] = {0, 1, 7, 15, 16, 17, 31, 32, 33, 47, 64, 100, 255, 1000, 4099};
    constexpr std::size_t kStride = 4099 + 64;
    std::vector<std::pair<std::size_t, std::size_t>> alignments;
    for (std::size_t to = 0; to < 16; ++to) {
        for (std::size_t from = 0; from < 16; ++from) {
            alignments.emplace_back(to, from);
        }
    }
    constexpr std::size_t kMoves = 32;
    constexpr std::size_t kBytes = (2 * kMoves * kStride + 7) / 8 * 8;
    constexpr unsigned kRounds = kThreadsAreExpensive ? 3 : 2 * std::size(kSizes);
    for (unsigned round = 0; round < kRounds; ++round) {
        std::shuffle(alignments.begin(), alignments.end(), random);
        for (std::size_t first = 0; first < alignments.size(); first += kMoves) {
            for (std::size_t at = 0; at < kBytes; at += sizeof(std::uint64_t)) {
                write(before.data() + at, random());
            }
            std::vector<std::byte> expected(before.data(), before.data() + kBytes);
            Moves moves;
            for (std::size_t i = 0; i < kMoves; ++i) {
                const auto& [to, from] = alignments[first + i];
                const std::size_t size = kSizes[(round + i) % std::size(kSizes)];
                const std::size_t target = 2 * i * kStride / 16 * 16 + 16 + to;
                const std::size_t source = (2 * i + 1) * kStride / 16 * 16 + 16 + from;
                moves.list[i] = {arena.address() + target, arena.address() + source, size};
                std::copy_n(before.data() + source, size, expected.data() + target);
            }
            const gpu::Dim3 grid{1 + round % 3, kMoves, 1};
            run(kBytes, [&] { launch_move(moves, kMoves, grid, {5 + round % 7, 1, 1}, next_notice()); });
            ASSERT_EQ(std::memcmp(after.data(), expected.data(), kBytes), 0) << "round " << round;
        }
    }
}

TEST_F(CombineTest, AsManyMovesAsFit) {
    Moves moves;
    constexpr std::size_t kSize = 1000;
    for (std::size_t i = 0; i < kMostMoves; ++i) {
        std::memset(before.data() + i * kSize, static_cast<int>(i), kSize);
        moves.list[i] = {arena.address() + (2 * kMostMoves - 1 - i) * kSize, arena.address() + i * kSize, kSize};
    }
    run(2 * kMostMoves * kSize, [&] { launch_move(moves, kMostMoves, {2, kMostMoves, 1}, {8, 1, 1}, next_notice()); });
    for (std::size_t i = 0; i < kMostMoves; ++i) {
        EXPECT_EQ(std::memcmp(after.data() + (2 * kMostMoves - 1 - i) * kSize, before.data() + i * kSize, kSize), 0);
    }
}

// ---- the notice -----------------------------------------------------------------------------------------------------

TEST_F(CombineTest, TheWordComesAfterAllWrites) {
    Random random(4);
    constexpr std::size_t kRoomWords = 100'000;
    const std::uint32_t code = code_of(ElementType::uint64, ReductionOperation::sum);
    // In pinned memory, where the host sees at once what the kernel has written.
    const Memory data(runtime, true, 3 * kRoomWords * sizeof(std::uint64_t));
    auto* const words = reinterpret_cast<std::uint64_t*>(data.data());
    const auto place = [&data](const std::size_t word) { return data.address() + word * sizeof(std::uint64_t); };
    for (int launch = 0; launch < (kThreadsAreExpensive ? 60 : 300); ++launch) {
        // Now and then so many that the host would look while some threads still write, if the word came too early.
        const std::size_t count = launch % 10 < 2 ? kRoomWords : 500;
        for (std::size_t i = 0; i < 2 * count; ++i) {
            words[i] = random();
        }
        const unsigned blocks = launch % 3 == 0 ? 1 : 1 + static_cast<unsigned>(random() % 9);
        const gpu::Dim3 block{2 + static_cast<unsigned>(random() % 20), 1, 1};
        const bool combine = launch % 2 == 0;
        if (combine) {
            const Places sources{{place(0), place(count)}};
            const Places targets{{place(2 * count)}};
            launch_combine(sources, 2, targets, 1, count, code, {blocks, 1, 1}, block, next_notice());
        } else {
            // The first half of one source and that of the other.
            Moves moves;
            const std::size_t half_bytes = count / 2 * sizeof(std::uint64_t);
            moves.list[0] = {place(2 * count), place(count), half_bytes};
            moves.list[1] = {place(2 * count + count / 2), place(0), half_bytes};
            launch_move(moves, 2, {blocks, 2, 1}, block, next_notice());
        }
        ASSERT_TRUE(word_becomes(last_value)) << "launch " << launch;
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint64_t moved = i < count / 2 ? words[count + i] : words[i - count / 2];
            ASSERT_EQ(words[2 * count + i], combine ? words[i] + words[count + i] : moved)
                << "launch " << launch << ", element " << i;
        }
    }
    EXPECT_EQ(counter_value(), 0U);
}

TEST_F(CombineTest, TheWordComesAfterTheLastBlock) {
    // More threads than the emulated device runs at a time, so that the first blocks end before the last begin; but not
    // where they are expensive.
    constexpr gpu::Dim3 kGrid{40, 1, 1}, kBlock{kThreadsAreExpensive ? 4 : 512, 1, 1};
    constexpr std::size_t kCount = std::size_t{2} * kGrid.x * kBlock.x;
    const std::uint32_t code = code_of(ElementType::uint64, ReductionOperation::sum);
    const Memory data(runtime, true, 2 * kCount * sizeof(std::uint64_t));
    auto* const words = reinterpret_cast<std::uint64_t*>(data.data());
    const Places source{{data.address()}}, target{{data.address() + kCount * sizeof(std::uint64_t)}};
    for (std::uint64_t launch = 1; launch <= 3; ++launch) {
        std::fill_n(words, kCount, launch);
        launch_combine(source, 1, target, 1, kCount, code, kGrid, kBlock, next_notice());
        ASSERT_TRUE(word_becomes(last_value));
        ASSERT_EQ(words[2 * kCount - 1], launch);
        ASSERT_EQ(std::count(words + kCount, words + 2 * kCount, launch), kCount);
    }
    EXPECT_EQ(counter_value(), 0U);
}

TEST_F(CombineTest, TheLastOfSeveralKernelsSpeaksForAll) {
    constexpr std::size_t kWords = 100;
    constexpr std::size_t kBytes = kWords * sizeof(std::uint64_t);
    const std::uint32_t code = code_of(ElementType::uint64, ReductionOperation::sum);
    const Memory data(runtime, true, 2 * kBytes);
    auto* const words = reinterpret_cast<std::uint64_t*>(data.data());
    std::fill_n(words, 2 * kWords, 1);
    const Places sources{{data.address(), data.address() + kBytes}}, targets{{data.address() + kBytes}};
    constexpr int kLaunches = 50;
    for (int launch = 0; launch < kLaunches; ++launch) {
        // Without a word there is nothing to write, and the counter is nobody's.
        const Notice silent{0, 0, 77};
        const bool last = launch == kLaunches - 1;
        launch_combine(sources, 2, targets, 1, kWords, code, {3, 1, 1}, {8, 1, 1}, last ? next_notice() : silent);
    }
    ASSERT_TRUE(word_becomes(last_value));
    EXPECT_TRUE(std::all_of(words + kWords, words + 2 * kWords,
                            [](const std::uint64_t value) { return value == kLaunches + 1; }));
    EXPECT_EQ(counter_value(), 0U);
}

}  // namespace
}  // namespace awaken::emulator_test
