// The kernels through the vendors' run-time compilers, which need no GPU. Skipped where a compiler is not installed.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/kernels/texts.h"
#include "gpu/vendor.h"

namespace awaken::gpu {
namespace {

struct Target {
    const VendorLibrary& (*vendor)() noexcept;
    const char* architecture_option;
};

class RuntimeCompilerTest : public ::testing::TestWithParam<Target> {
  protected:
    void SetUp() override {
        std::string why_not;
        _compiler = GetParam().vendor().make_compiler(why_not);
        if (_compiler == nullptr) GTEST_SKIP() << why_not;
    }
    RuntimeCompiler::Result compile(const char* source, std::string& code, std::string& log) {
        const std::string options[] = {GetParam().architecture_option, "-std=c++17"};
        return _compiler->compile("kernel.h", source, options, RuntimeCompiler::Output::machine_code, code, log);
    }
    std::unique_ptr<RuntimeCompiler> _compiler;
};

TEST_P(RuntimeCompilerTest, CompilesAllKernelsWithoutAWord) {
    for (const char* const source : {kernels::pack_source, kernels::fill_source, kernels::compute_source}) {
        std::string code;
        std::string log;
        const RuntimeCompiler::Result result = compile(source, code, log);
        EXPECT_TRUE(result.ok()) << _compiler->identity() << ": " << result.description << "\n" << log;
        EXPECT_EQ(log, "");
        EXPECT_NE(code.find("ELF"), std::string::npos);
    }
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
                         ::testing::Values(Target{&cuda_library, "--gpu-architecture=sm_90"},
                                           Target{&hip_library, "--offload-arch=gfx90a"}),
                         [](const auto& target) { return std::string(to_string(target.param.vendor().vendor)); });

}  // namespace
}  // namespace awaken::gpu
