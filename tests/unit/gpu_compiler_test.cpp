// SPDX-License-Identifier: Apache-2.0
// The kernels through the vendors' run-time compilers, which need no GPU. Skipped where a compiler is not installed.
#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "gpu/kernels/codes.h"
#include "gpu/kernels/texts.h"
#include "gpu/vendor.h"

namespace awaken::gpu {
namespace {

struct Target {
    const VendorLibrary& (*vendor)() noexcept;
    const char* architecture_option;
    const char* no_optimisation_option;
};

using awaken::kernels::ElementType;
using awaken::kernels::ReductionOperation;

/// As the library compiles combine.h: for one type and operation alone.
std::string only(const ElementType type, const ReductionOperation operation) {
    return "#define AWAKEN_ONLY_CODE " + std::to_string(code_of(type, operation)) + "\n" + kernels::combine_source;
}

/// Processor time of this process in seconds.
double processor_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Compiling takes as long as there is code to make, which a machine's load does not change: a loop that is unrolled,
/// or a kernel with the parts of all types, shows in it. The seconds are printed for a look by hand.
constexpr std::size_t kMostPackingBytes = 256 << 10;
constexpr std::size_t kMostReductionBytes = 128 << 10;

class RuntimeCompilerTest : public ::testing::TestWithParam<Target> {
  protected:
    void SetUp() override {
        std::string why_not;
        _compiler = GetParam().vendor().make_compiler(why_not);
        if (_compiler == nullptr) {
            GTEST_SKIP() << why_not;
        }
    }
    RuntimeCompiler::Result compile(const char* source, std::string& code, std::string& log,
                                    const char* more_options = nullptr) {
        std::vector<std::string> options = {GetParam().architecture_option, "-std=c++17"};
        if (more_options != nullptr) {
            options.emplace_back(more_options);
        }
        return _compiler->compile("kernel.h", source, options, RuntimeCompiler::Output::machine_code, code, log);
    }
    /// Bytes of the machine code.
    std::size_t expect_no_word(const char* source, const char* more_options = nullptr) {
        std::string code;
        std::string log;
        const RuntimeCompiler::Result result = compile(source, code, log, more_options);
        EXPECT_TRUE(result.ok()) << _compiler->identity() << ": " << result.description << "\n" << log;
        EXPECT_EQ(log, "");
        EXPECT_NE(code.find("ELF"), std::string::npos);
        return code.size();
    }
    std::unique_ptr<RuntimeCompiler> _compiler;
};

TEST_P(RuntimeCompilerTest, CompilesAllKernelsWithoutAWord) {
    for (const char* const source :
         {kernels::pack_source, kernels::fill_source, kernels::compute_source, kernels::copy_source}) {
        expect_no_word(source);
    }
}

TEST_P(RuntimeCompilerTest, CompilesThePartsOfPackingSoon) {
    for (const int part : {1, 2, 3}) {
        const double start = processor_seconds();
        const std::size_t bytes =
            expect_no_word(("#define AWAKEN_PACK_PART " + std::to_string(part) + "\n" + kernels::pack_source).c_str());
        std::printf("%s: part %d of packing, %zu bytes, in %.2f s\n", _compiler->identity().c_str(), part, bytes,
                    processor_seconds() - start);
        EXPECT_LT(bytes, kMostPackingBytes) << "the first message of such a type waits for this";
    }
}

TEST_P(RuntimeCompilerTest, CompilesOneReductionWithoutAWordAndSoon) {
    struct Case {
        ElementType type;
        ReductionOperation operation;
        const char* title;
    };
    const Case cases[] = {{ElementType::int8, ReductionOperation::sum, "sum of int8"},
                          {ElementType::uint64, ReductionOperation::product, "product of uint64"},
                          {ElementType::int16, ReductionOperation::maximum, "maximum of int16"},
                          {ElementType::uint16, ReductionOperation::bitwise_or, "bitwise or of uint16"},
                          {ElementType::float16, ReductionOperation::sum, "sum of float16"},
                          {ElementType::bfloat16, ReductionOperation::product, "product of bfloat16"},
                          {ElementType::float32, ReductionOperation::sum, "sum of float32"},
                          {ElementType::float64, ReductionOperation::minimum, "minimum of float64"},
                          {ElementType::complex_float32, ReductionOperation::sum, "sum of complex float32"},
                          {ElementType::complex_float64, ReductionOperation::product, "product of complex float64"},
                          {ElementType::boolean, ReductionOperation::logical_xor, "logical xor of booleans"},
                          {ElementType::pair_float32_int32, ReductionOperation::minimum_location, "minimum location"},
                          {ElementType::bytes16, ReductionOperation::copy, "copy of 16 bytes"}};
    for (const Case& one : cases) {
        SCOPED_TRACE(one.title);
        const double start = processor_seconds();
        const std::size_t bytes = expect_no_word(only(one.type, one.operation).c_str());
        std::printf("%s: %s, %zu bytes, in %.2f s\n", _compiler->identity().c_str(), one.title, bytes,
                    processor_seconds() - start);
        EXPECT_LT(bytes, kMostReductionBytes) << "the first call of a collective operation waits for this";
    }
}

TEST_P(RuntimeCompilerTest, MakesTheSameCodeOfReductionsThatShareOne) {
    using Reduction = std::pair<ElementType, ReductionOperation>;
    for (const auto& [type, operation] : {Reduction{ElementType::int16, ReductionOperation::sum},
                                          Reduction{ElementType::boolean, ReductionOperation::logical_or},
                                          Reduction{ElementType::float64, ReductionOperation::copy}}) {
        const unsigned other = awaken::kernels::same_kernel(code_of(type, operation));
        ASSERT_NE(other, code_of(type, operation));
        std::string code[2], log;
        EXPECT_TRUE(compile(only(type, operation).c_str(), code[0], log).ok()) << log;
        EXPECT_TRUE(
            compile(only(awaken::kernels::type_of(other), awaken::kernels::operation_of(other)).c_str(), code[1], log)
                .ok())
            << log;
        EXPECT_EQ(code[0].size(), code[1].size());
        EXPECT_TRUE(code[0] == code[1]) << code_of(type, operation) << " and " << other;
    }
}

TEST_P(RuntimeCompilerTest, CompilesAllReductionsWithoutAWord) {
    // Only the emulated driver has all of them in one kernel; optimising it takes minutes.
    expect_no_word(kernels::combine_source, GetParam().no_optimisation_option);
}

TEST_P(RuntimeCompilerTest, ShowsWhereAKernelIsWrong) {
    std::string code = "untouched";
    std::string log;
    const RuntimeCompiler::Result result =
        compile("extern \"C\" __global__ void broken() { undefined_name(); }", code, log);
    EXPECT_FALSE(result.ok());
    EXPECT_NE(result.description, nullptr);
    EXPECT_NE(log.find("undefined_name"), std::string::npos) << log;
    EXPECT_EQ(code, "untouched");
}

INSTANTIATE_TEST_SUITE_P(Vendors, RuntimeCompilerTest,
                         ::testing::Values(Target{&cuda_library, "--gpu-architecture=sm_90", "--device-debug"},
                                           Target{&hip_library, "--offload-arch=gfx90a", "-O0"}),
                         [](const auto& target) { return std::string(to_string(target.param.vendor().vendor)); });

}  // namespace
}  // namespace awaken::gpu
