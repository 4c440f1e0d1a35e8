// SPDX-License-Identifier: Apache-2.0
// The emulated cuBLAS and hipBLAS, through their own symbols, against products made one element after the other on the
// host. Built once for each library (AWAKEN_BLAS_FILE).
#include <gtest/gtest.h>

#include <atomic>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "emulator_support.h"

namespace awaken::emulator_test {
namespace {

using Complex32 = std::complex<float>;
using Complex64 = std::complex<double>;

#if AWAKEN_BLAS_HIP
constexpr const char* kRuntime = "libamdhip64.so.6";
constexpr const char* kPrefix = "hip";
constexpr int kOperations[] = {111, 112, 113};
constexpr int kNoOperation = 0;
constexpr int kInvalidValue = 3;
constexpr int kExecutionFailed = 5;
constexpr int kInvalidOperation = 10;
constexpr int kNullHandleResult = 9;
#else
constexpr const char* kRuntime = "libcudart.so.12";
constexpr const char* kPrefix = "cuda";
constexpr int kOperations[] = {0, 1, 2};
constexpr int kNoOperation = 111;
constexpr int kInvalidValue = 7;
constexpr int kExecutionFailed = 13;
constexpr int kInvalidOperation = 7;
constexpr int kNullHandleResult = 7;
#endif
constexpr int kNotInitialized = 1;
constexpr int kLaunchFailed = 719;

/// The name of a function of the library: cublasCreate_v2, hipblasCreate.
std::string blas_name(const std::string& name, bool with_version = true) {
    return AWAKEN_BLAS_HIP ? "hipblas" + name : "cublas" + name + (with_version ? "_v2" : "");
}

template <typename Value, typename Size>
using Gemm = int(void*, int, int, Size, Size, Size, const Value*, const Value*, Size, const Value*, Size, const Value*,
                 Value*, Size);

template <typename Value>
constexpr const char* kLetter = nullptr;
template <>
constexpr const char* kLetter<float> = "S";
template <>
constexpr const char* kLetter<double> = "D";
template <>
constexpr const char* kLetter<Complex32> = "C";
template <>
constexpr const char* kLetter<Complex64> = "Z";

struct Machine {
    Machine() {
        const std::string prefix = kPrefix;
        runtime.bind(allocate, (prefix + "Malloc").c_str());
        runtime.bind(free, (prefix + "Free").c_str());
        runtime.bind(copy, (prefix + "Memcpy").c_str());
        runtime.bind(queue_copy, (prefix + "MemcpyAsync").c_str());
        runtime.bind(set_device, (prefix + "SetDevice").c_str());
        runtime.bind(synchronize, (prefix + "DeviceSynchronize").c_str());
        runtime.bind(create_stream, (prefix + "StreamCreateWithFlags").c_str());
        runtime.bind(synchronize_stream, (prefix + "StreamSynchronize").c_str());
        runtime.bind(destroy_stream, (prefix + "StreamDestroy").c_str());
        runtime.bind(call_on_host, (prefix + "LaunchHostFunc").c_str());
        blas.bind(create, blas_name("Create").c_str());
        blas.bind(destroy, blas_name("Destroy").c_str());
        blas.bind(set_stream, blas_name("SetStream").c_str());
        blas.bind(get_stream, blas_name("GetStream").c_str());
    }
    template <typename Value>
    Gemm<Value, int>* gemm() const {
        Gemm<Value, int>* function = nullptr;
        blas.bind(function, blas_name(kLetter<Value> + std::string("gemm")).c_str());
        return function;
    }
    template <typename Value>
    Gemm<Value, std::int64_t>* gemm_64() const {
        Gemm<Value, std::int64_t>* function = nullptr;
        blas.bind(function, (blas_name(kLetter<Value> + std::string("gemm")) + "_64").c_str());
        return function;
    }

    Library runtime{kRuntime};
    Library blas{AWAKEN_BLAS_FILE};
    int (*allocate)(void**, std::size_t);
    int (*free)(void*);
    int (*copy)(void*, const void*, std::size_t, int);
    int (*queue_copy)(void*, const void*, std::size_t, int, void*);
    int (*set_device)(int);
    int (*synchronize)();
    int (*create_stream)(void**, unsigned);
    int (*synchronize_stream)(void*);
    int (*destroy_stream)(void*);
    int (*call_on_host)(void*, void (*)(void*), void*);
    int (*create)(void**);
    int (*destroy)(void*);
    int (*set_stream)(void*, void*);
    int (*get_stream)(void*, void**);
};

const Machine& machine() {
    static const Machine made;
    return made;
}

/// The version of the library that is under test.
bool has_64_bit_sizes() {
    return std::string(AWAKEN_BLAS_FILE) != "libhipblas.so.1";
}

#define MUST(call)                                                                   \
    do {                                                                             \
        const int must_result = (call);                                              \
        if (must_result != 0) {                                                      \
            std::fprintf(stderr, "line %d: %s: %d\n", __LINE__, #call, must_result); \
            std::abort();                                                            \
        }                                                                            \
    } while (false)

/// An array in device memory.
template <typename Value>
class Array {
  public:
    explicit Array(const std::vector<Value>& values) : _size(values.size()) {
        void* pointer = nullptr;
        MUST(machine().allocate(&pointer, std::max<std::size_t>(_size, 1) * sizeof(Value)));
        _data = static_cast<Value*>(pointer);
        // Queued, not copied: a plain small copy returns early and is late on purpose.
        MUST(machine().queue_copy(_data, values.data(), _size * sizeof(Value), 4, nullptr));
        MUST(machine().synchronize());
    }
    ~Array() { static_cast<void>(machine().free(_data)); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    [[nodiscard]] Value* data() const { return _data; }
    [[nodiscard]] std::vector<Value> values() const {
        std::vector<Value> result(_size);
        MUST(machine().copy(result.data(), _data, _size * sizeof(Value), 4));
        return result;
    }

  private:
    std::size_t _size;
    Value* _data = nullptr;
};

/// A handle with a stream of its own.
struct Session {
    Session() {
        MUST(machine().create(&handle));
        MUST(machine().create_stream(&stream, 1));
        MUST(machine().set_stream(handle, stream));
    }
    ~Session() {
        static_cast<void>(machine().destroy(handle));
        static_cast<void>(machine().destroy_stream(stream));
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    void* handle = nullptr;
    void* stream = nullptr;
};

float conjugate(float value) {
    return value;
}
double conjugate(double value) {
    return value;
}
template <typename Real>
std::complex<Real> conjugate(std::complex<Real> value) {
    return std::conj(value);
}

void put(double& value, double re, double) {
    value = re;
}
void put(float& value, double re, double) {
    value = static_cast<float>(re);
}
template <typename Real>
void put(std::complex<Real>& value, double re, double im) {
    value = {static_cast<Real>(re), static_cast<Real>(im)};
}

/// Small whole numbers: their products and sums are exact, in whatever order they are added.
template <typename Value>
std::vector<Value> whole_numbers(std::size_t count, unsigned seed) {
    std::mt19937 engine(seed);
    std::vector<Value> values(count);
    for (Value& value : values) {
        const double re = static_cast<double>(engine() % 17) - 8;
        put(value, re, static_cast<double>(engine() % 17) - 8);
    }
    return values;
}

struct Shape {
    int m, n, k;
    int extra;  ///< leading dimensions are longer than the columns by so much
};

/// One product on the device and on the host. All of C is compared, with the gaps between its columns.
template <typename Value, typename Function, typename Size>
void check(Function* function, Size, const Shape& shape, int a_form, int b_form, Value alpha, Value beta) {
    const int rows_a = a_form == 0 ? shape.m : shape.k;
    const int rows_b = b_form == 0 ? shape.k : shape.n;
    const int columns_a = a_form == 0 ? shape.k : shape.m;
    const int columns_b = b_form == 0 ? shape.n : shape.k;
    const int leading_a = std::max(rows_a, 1) + shape.extra;
    const int leading_b = std::max(rows_b, 1) + shape.extra;
    const int leading_c = std::max(shape.m, 1) + shape.extra;
    const auto a = whole_numbers<Value>(static_cast<std::size_t>(leading_a * columns_a), 1);
    const auto b = whole_numbers<Value>(static_cast<std::size_t>(leading_b * columns_b), 2);
    auto c = whole_numbers<Value>(static_cast<std::size_t>(leading_c * shape.n), 3);
    if (beta == Value{}) {
        std::fill(c.begin(), c.end(), Value{std::numeric_limits<float>::quiet_NaN()});
    }

    const auto at = [](const std::vector<Value>& matrix, int leading, int form, int row, int column) {
        const Value value = form == 0 ? matrix[static_cast<std::size_t>(row + column * leading)]
                                      : matrix[static_cast<std::size_t>(column + row * leading)];
        return form == 2 ? conjugate(value) : value;
    };
    std::vector<Value> expected = c;
    for (int column = 0; column < shape.n; ++column) {
        for (int row = 0; row < shape.m; ++row) {
            Value sum{};
            for (int step = 0; step < shape.k; ++step) {
                sum += at(a, leading_a, a_form, row, step) * at(b, leading_b, b_form, step, column);
            }
            Value& element = expected[static_cast<std::size_t>(row + column * leading_c)];
            element = beta == Value{} ? alpha * sum : alpha * sum + beta * element;
        }
    }

    const Array<Value> device_a(a);
    const Array<Value> device_b(b);
    const Array<Value> device_c(c);
    const Session session;
    ASSERT_EQ(function(session.handle, kOperations[a_form], kOperations[b_form], Size{shape.m}, Size{shape.n},
                       Size{shape.k}, &alpha, device_a.data(), Size{leading_a}, device_b.data(), Size{leading_b}, &beta,
                       device_c.data(), Size{leading_c}),
              0);
    MUST(machine().synchronize_stream(session.stream));
    const std::vector<Value> actual = device_c.values();
    for (int column = 0; column < shape.n; ++column) {
        for (int row = 0; row < leading_c; ++row) {
            const auto index = static_cast<std::size_t>(row + column * leading_c);
            if (row >= shape.m && beta == Value{}) {
                continue;  // a gap with NaN, which equals nothing
            }
            ASSERT_EQ(actual[index], expected[index])
                << "row " << row << ", column " << column << " of " << shape.m << " x " << shape.n << ", k " << shape.k
                << ", forms " << a_form << b_form;
        }
    }
}

template <typename Value>
class EmulatorBlas : public testing::Test {};
using Values = testing::Types<float, double, Complex32, Complex64>;
TYPED_TEST_SUITE(EmulatorBlas, Values);

TYPED_TEST(EmulatorBlas, MultipliesAsTheHostDoes) {
    TypeParam alpha{};
    TypeParam beta{};
    put(alpha, 2, -1);
    put(beta, -3, 2);
    const auto gemm = machine().gemm<TypeParam>();
    for (const Shape shape : {Shape{1, 1, 1, 0}, Shape{7, 5, 11, 0}, Shape{5, 7, 3, 4}, Shape{300, 9, 140, 1}}) {
        for (int a_form = 0; a_form < 3; ++a_form) {
            for (int b_form = 0; b_form < 3; ++b_form) {
                check(gemm, int{}, shape, a_form, b_form, alpha, beta);
                check(gemm, int{}, shape, a_form, b_form, TypeParam{1}, TypeParam{});
            }
        }
    }
}

TYPED_TEST(EmulatorBlas, ScalesWhereNothingIsAdded) {
    const auto gemm = machine().gemm<TypeParam>();
    TypeParam beta{};
    put(beta, 3, 1);
    check(gemm, int{}, {6, 4, 0, 1}, 0, 1, TypeParam{2}, beta);
    check(gemm, int{}, {6, 4, 5, 1}, 1, 0, TypeParam{}, beta);
    check(gemm, int{}, {6, 4, 0, 0}, 0, 0, TypeParam{1}, TypeParam{});
    check(gemm, int{}, {0, 4, 5, 0}, 0, 0, TypeParam{1}, beta);
    check(gemm, int{}, {6, 0, 5, 0}, 0, 0, TypeParam{1}, beta);
}

TYPED_TEST(EmulatorBlas, TakesSizesOf64Bits) {
    const std::string name = blas_name(kLetter<TypeParam> + std::string("gemm")) + "_64";
    ASSERT_EQ(machine().blas.has(name.c_str()), has_64_bit_sizes());
    if (!has_64_bit_sizes()) {
        return;
    }
    check(machine().gemm_64<TypeParam>(), std::int64_t{}, {9, 6, 4, 2}, 0, 2, TypeParam{2}, TypeParam{1});
    // What does not fit into 32 bits must not be cut off: such a matrix is nowhere.
    const Array<TypeParam> small(std::vector<TypeParam>(4));
    const Session session;
    const TypeParam one{1};
    EXPECT_EQ(machine().gemm_64<TypeParam>()(
                  session.handle, kOperations[0], kOperations[0], (std::int64_t{1} << 32) + 1, 1, 1, &one, small.data(),
                  (std::int64_t{1} << 32) + 1, small.data(), 1, &one, small.data(), (std::int64_t{1} << 32) + 1),
              kExecutionFailed);
}

TEST(EmulatorBlasHandles, WorkInTheOrderOfTheirStream) {
    const Array<double> a({2});
    const Array<double> c({0});
    const Session session;
    void* stream = nullptr;
    EXPECT_EQ(machine().get_stream(session.handle, &stream), 0);
    EXPECT_EQ(stream, session.stream);

    // Whatever is in the stream before the product holds it up, and the call returns all the same.
    std::atomic<bool> open{false};
    MUST(machine().call_on_host(
        session.stream,
        [](void* gate) {
            while (!static_cast<std::atomic<bool>*>(gate)->load()) {
                std::this_thread::yield();
            }
        },
        &open));
    double alpha = 5;
    double beta = 0;
    ASSERT_EQ(machine().gemm<double>()(session.handle, kOperations[0], kOperations[0], 1, 1, 1, &alpha, a.data(), 1,
                                       a.data(), 1, &beta, c.data(), 1),
              0);
    alpha = 7;  // was taken at the call
    EXPECT_EQ(c.values(), std::vector<double>{0});
    open = true;
    MUST(machine().synchronize_stream(session.stream));
    EXPECT_EQ(c.values(), std::vector<double>{20});
}

TEST(EmulatorBlasHandles, WrongArgumentsAreToldApart) {
    const Array<double> array(std::vector<double>(16));
    const Session session;
    const double one = 1;
    const auto gemm = [&](void* handle, int a_operation, int m, int n, int k, int leading_a, int leading_b,
                          int leading_c, const double* alpha, const double* a, double* c) {
        return machine().gemm<double>()(handle, a_operation, kOperations[0], m, n, k, alpha, a, leading_a, array.data(),
                                        leading_b, &one, c, leading_c);
    };
    const int none = kOperations[0];
    double* const d = array.data();
    void* const handle = session.handle;
    EXPECT_EQ(gemm(handle, none, 4, 4, 4, 4, 4, 4, &one, d, d), 0);
    EXPECT_EQ(gemm(nullptr, none, 4, 4, 4, 4, 4, 4, &one, d, d), kNotInitialized);
    EXPECT_EQ(gemm(handle, kNoOperation, 4, 4, 4, 4, 4, 4, &one, d, d), kInvalidOperation);
    EXPECT_EQ(gemm(handle, none, -1, 4, 4, 4, 4, 4, &one, d, d), kInvalidValue);
    EXPECT_EQ(gemm(handle, none, 4, -1, 4, 4, 4, 4, &one, d, d), kInvalidValue);
    EXPECT_EQ(gemm(handle, none, 4, 4, -1, 4, 4, 4, &one, d, d), kInvalidValue);
    EXPECT_EQ(gemm(handle, none, 4, 4, 4, 3, 4, 4, &one, d, d), kInvalidValue);
    EXPECT_EQ(gemm(handle, none, 4, 4, 4, 4, 3, 4, &one, d, d), kInvalidValue);
    EXPECT_EQ(gemm(handle, none, 4, 4, 4, 4, 4, 3, &one, d, d), kInvalidValue);
    EXPECT_EQ(gemm(handle, none, 4, 4, 4, 4, 4, 4, nullptr, d, d), kInvalidValue);
    EXPECT_EQ(gemm(handle, none, 4, 4, 4, 4, 4, 4, &one, nullptr, d), kInvalidValue);
    EXPECT_EQ(gemm(handle, none, 4, 4, 4, 4, 4, 4, &one, d, nullptr), kInvalidValue);
    std::vector<double> host(16);
    EXPECT_EQ(gemm(handle, none, 4, 4, 4, 4, 4, 4, &one, d, host.data()), kExecutionFailed);
    EXPECT_EQ(gemm(handle, none, 4, 4, 4, 4, 4, 4, &one, d + 1, d), kExecutionFailed);
    EXPECT_EQ(gemm(handle, none, 0, 4, 4, 4, 4, 4, &one, d, d), 0);
    MUST(machine().synchronize_stream(session.stream));
}

TEST(EmulatorBlasHandles, AreKnownWhileTheyLive) {
    EXPECT_EQ(machine().create(nullptr), kNullHandleResult);
    void* handle = nullptr;
    ASSERT_EQ(machine().create(&handle), 0);
    void* stream = &stream;
    EXPECT_EQ(machine().get_stream(handle, &stream), 0);
    EXPECT_EQ(stream, nullptr) << "the default stream";
    EXPECT_EQ(machine().get_stream(handle, nullptr), kInvalidValue);
    EXPECT_EQ(machine().destroy(handle), 0);
    EXPECT_EQ(machine().destroy(handle), kNotInitialized);
    EXPECT_EQ(machine().set_stream(handle, nullptr), kNotInitialized);
}

TEST(EmulatorBlasHandles, BelongToADevice) {
    MUST(machine().set_device(1));
    const Array<double> there({1});
    MUST(machine().set_device(0));
    const Array<double> here({1});
    const Session session;
    const double one = 1;
    const auto square = [&](const Array<double>& array) {
        return machine().gemm<double>()(session.handle, kOperations[0], kOperations[0], 1, 1, 1, &one, array.data(), 1,
                                        array.data(), 1, &one, here.data(), 1);
    };
    EXPECT_EQ(square(there), kExecutionFailed);
    EXPECT_EQ(square(here), 0);
    MUST(machine().synchronize_stream(session.stream));
    EXPECT_EQ(here.values(), std::vector<double>{2});
}

#if !AWAKEN_BLAS_HIP
TEST(EmulatorBlasHandles, TellTheirVersionAndKeepTheMathMode) {
    int (*get_version)(void*, int*) = nullptr;
    int (*set_mode)(void*, int) = nullptr;
    int (*get_mode)(void*, int*) = nullptr;
    machine().blas.bind(get_version, "cublasGetVersion_v2");
    machine().blas.bind(set_mode, "cublasSetMathMode");
    machine().blas.bind(get_mode, "cublasGetMathMode");
    const Session session;
    int value = 0;
    EXPECT_EQ(get_version(session.handle, &value), 0);
    EXPECT_EQ(std::string("libcublas.so.") + std::to_string(value / 10000), AWAKEN_BLAS_FILE);
    EXPECT_EQ(set_mode(session.handle, 2), 0);
    EXPECT_EQ(get_mode(session.handle, &value), 0);
    EXPECT_EQ(value, 2);
    EXPECT_EQ(set_mode(nullptr, 2), kNotInitialized);
}
#endif

SCENARIO(a_kernel_that_fails) {
    const Array<double> array({3});
    const Session session;
    const double one = 1;
    const auto square = [&] {
        return machine().gemm<double>()(session.handle, kOperations[0], kOperations[0], 1, 1, 1, &one, array.data(), 1,
                                        array.data(), 1, &one, array.data(), 1);
    };
    REQUIRE_EQUAL(square(), 0);
    REQUIRE_EQUAL(square(), 0);
    REQUIRE_EQUAL(machine().synchronize_stream(session.stream), kLaunchFailed);
    REQUIRE_EQUAL(square(), kExecutionFailed);
    return 0;
}

TEST(EmulatorBlasFaults, AProductMayBeTheKernelThatFails) {
    const Outcome outcome = run_scenario(
        "a_kernel_that_fails", {{"AWAKEN_EMULATE", AWAKEN_TEST_EMULATE}, {"AWAKEN_TEST_FAULTS", "kernel-error=2"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

SCENARIO(no_device) {
    void* handle = nullptr;
    REQUIRE_EQUAL(machine().create(&handle), kNotInitialized);
    return 0;
}

TEST(EmulatorBlasFaults, WithoutADeviceOfItsVendorThereIsNoHandle) {
    const Outcome outcome = run_scenario("no_device", {{"AWAKEN_EMULATE", AWAKEN_BLAS_HIP ? "cuda:1" : "hip:1"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

}  // namespace
}  // namespace awaken::emulator_test
