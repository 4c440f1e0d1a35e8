// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gpu/kernels/codes.h"
#include "gpu/precompiled_kernels.h"
#include "gpu/runtime_compiler.h"

namespace awaken::gpu {
namespace {

namespace fs = std::filesystem;

/// The targets that suit a GPU, best first.
std::vector<std::string> order_for(const std::string& machine, std::vector<std::string> targets) {
    std::erase_if(targets, [&](const std::string& target) { return suitability(target, machine) <= 0; });
    std::sort(targets.begin(), targets.end(), [&](const std::string& one, const std::string& other) {
        return suitability(one, machine) > suitability(other, machine);
    });
    return targets;
}

TEST(SuitabilityTest, MachineCodeRunsOnItsMajorVersionFromItsMinorVersionOn) {
    using Targets = std::vector<std::string>;
    const Targets all = {"compute_70", "sm_70", "sm_80", "sm_86", "sm_90", "compute_80", "sm_100", "sm_120", "gfx90a"};
    EXPECT_EQ(order_for("sm_70", all), (Targets{"sm_70", "compute_70"}));
    EXPECT_EQ(order_for("sm_75", all), (Targets{"sm_70", "compute_70"}));
    EXPECT_EQ(order_for("sm_80", all), (Targets{"sm_80", "compute_80", "compute_70"}));
    EXPECT_EQ(order_for("sm_89", all), (Targets{"sm_86", "sm_80", "compute_80", "compute_70"}));
    EXPECT_EQ(order_for("sm_90", all), (Targets{"sm_90", "compute_80", "compute_70"}));
    EXPECT_EQ(order_for("sm_103", all), (Targets{"sm_100", "compute_80", "compute_70"}));
    EXPECT_EQ(order_for("sm_121", all), (Targets{"sm_120", "compute_80", "compute_70"}));
    // GPUs that come later, and those of before.
    EXPECT_EQ(order_for("sm_110", all), (Targets{"compute_80", "compute_70"}));
    EXPECT_EQ(order_for("sm_130", all), (Targets{"compute_80", "compute_70"}));
    EXPECT_EQ(order_for("sm_61", all), Targets{});
}

TEST(SuitabilityTest, CodeForAmdsGpusIsForOneArchitectureWithAnyFeatures) {
    EXPECT_GT(suitability("gfx90a", "gfx90a:sramecc+:xnack-"), 0);
    EXPECT_GT(suitability("gfx942", "gfx942"), 0);
    EXPECT_EQ(suitability("gfx90a", "gfx908:sramecc+:xnack-"), 0);
    EXPECT_EQ(suitability("gfx90", "gfx90a"), 0);
    EXPECT_EQ(suitability("compute_70", "gfx90a"), 0);
    EXPECT_EQ(suitability("sm_90a", "sm_90"), 0);
    EXPECT_EQ(suitability("", "gfx90a"), 0);
}

TEST(SameKernelTest, NamesAReductionOfElementsOfTheSameLength) {
    using namespace awaken::kernels;
    unsigned distinct = 0;
    for (unsigned type = 0; type < kElementTypes; ++type) {
        for (unsigned operation = 0; operation < kReductionOperations; ++operation) {
            const unsigned code = code_of(static_cast<ElementType>(type), static_cast<ReductionOperation>(operation));
            if (!is_defined(type_of(code), operation_of(code))) {
                continue;
            }
            const unsigned same = same_kernel(code);
            EXPECT_TRUE(is_defined(type_of(same), operation_of(same))) << code;
            EXPECT_EQ(operation_of(same), operation_of(code));
            EXPECT_EQ(element_bytes(type_of(same)), element_bytes(type_of(code))) << code;
            EXPECT_EQ(element_alignment(type_of(same)), element_alignment(type_of(code))) << code;
            EXPECT_EQ(same_kernel(same), same) << code;
            distinct += same == code ? 1 : 0;
        }
    }
    EXPECT_EQ(distinct, 87U) << "docs/decisions/0039";
}

class PrecompiledKernelsTest : public ::testing::Test {
  protected:
    void TearDown() override { fs::remove(_path); }
    void write(const std::string& content) { std::ofstream(_path, std::ios::binary) << content; }
    /// A line of the index.
    static std::string line(const std::string& target, const std::string& key, std::size_t offset, std::size_t size) {
        return target + "   " + key + "  " + std::to_string(offset) + " " + std::to_string(size) + "\n";
    }
    static std::string key_of(const std::string_view source) {
        const std::string_view parts[] = {source, kOptions[0]};
        return KernelCache::key(parts);
    }
    static constexpr std::string_view kOptions[] = {"-fast"};
    const std::string _path = ::testing::TempDir() + "kernels" + std::to_string(::getpid()) + ".bin";
};

TEST_F(PrecompiledKernelsTest, GivesTheCodeOfATextBestFirst) {
    const std::string code = std::string("port\0able", 9) + "machine" + "other";
    // The offsets have three digits, whatever they are.
    const auto index = [&](const std::size_t base) {
        return "AWAKEN KERNELS 1\n" + line("compute_70", key_of("text"), base, 9) +
               line("sm_90", key_of("text"), base + 9, 7) + line("sm_90", key_of("other text"), base + 16, 5) + "\n";
    };
    const std::size_t base = index(100).size();
    ASSERT_LT(base, 1000U);
    write(index(base) + code);
    const PrecompiledKernels kernels(_path);
    EXPECT_EQ(kernels.targets(), (std::vector<std::string_view>{"compute_70", "sm_90"}));
    EXPECT_EQ(kernels.code_for("text", kOptions, "sm_90"),
              (std::vector<std::string>{"machine", std::string("port\0able", 9)}));
    EXPECT_EQ(kernels.code_for("text", kOptions, "sm_100").size(), 1U);
    EXPECT_EQ(kernels.code_for("other text", kOptions, "sm_90"), std::vector<std::string>{"other"});
    EXPECT_EQ(kernels.code_for("unknown text", kOptions, "sm_90"), std::vector<std::string>{});
    EXPECT_EQ(kernels.code_for("text", {}, "sm_90"), std::vector<std::string>{}) << "compiled with other options";
    EXPECT_EQ(kernels.target_for("sm_90"), "sm_90");
    EXPECT_EQ(kernels.target_for("sm_100"), "compute_70");
    EXPECT_EQ(kernels.target_for("gfx90a"), "");
    // A file that was cut off.
    write(index(base) + code.substr(0, code.size() - 1));
    EXPECT_TRUE(PrecompiledKernels(_path).targets().empty());
}

TEST_F(PrecompiledKernelsTest, HoldsNothingOfAFileThatIsNone) {
    for (const std::string content : {"", "\n", "AWAKEN KERNELS 1\n", "AWAKEN KERNELS 1\n\n", "AWAKEN KERNELS 1\nsm_90",
                                      "AWAKEN KERNELS 1\nsm_90 key\n\n", "AWAKEN KERNELS 1\nsm_90 key x y\n\n",
                                      "AWAKEN KERNELS 1\nsm_90 key 18446744073709551615 2\n\n", "AWAKEN KERNELS 2\n"}) {
        write(content);
        EXPECT_TRUE(PrecompiledKernels(_path).targets().empty()) << content;
    }
    fs::remove(_path);
    EXPECT_TRUE(PrecompiledKernels(_path).targets().empty());
    EXPECT_TRUE(PrecompiledKernels(::testing::TempDir()).targets().empty()) << "a folder";
    EXPECT_TRUE(PrecompiledKernels("").targets().empty());
}

}  // namespace
}  // namespace awaken::gpu
