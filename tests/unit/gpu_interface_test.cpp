// SPDX-License-Identifier: Apache-2.0
// tests/gpu_hardware/gpu_interface_check on the emulated driver in each of its forms.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace {

class InterfaceTest : public ::testing::TestWithParam<const char*> {};

TEST_P(InterfaceTest, EverythingThatTheLibraryReliesOnHolds) {
    const std::string form = GetParam();
    const std::string vendor = form.starts_with("cuda") ? "cuda" : "hip";
    const std::string command = "AWAKEN_EMULATE=" + form +
                                " LD_LIBRARY_PATH='" AWAKEN_EMULATOR_DIRECTORY "' XDG_CACHE_HOME='" +
                                ::testing::TempDir() + "' timeout 100 '" AWAKEN_INTERFACE_CHECK "' " + vendor + " 2>&1";
    FILE* const pipe = ::popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string output;
    char part[4096];
    for (std::size_t got = 0; (got = std::fread(part, 1, sizeof part, pipe)) > 0;) {
        output.append(part, got);
    }
    const int status = ::pclose(pipe);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << output;
    // A driver that were not found, or checks that were all skipped, must not pass for success.
    EXPECT_NE(output.find("PASS  another process opens it"), std::string::npos) << output;
    EXPECT_NE(output.find("PASS  unpack_list from pinned"), std::string::npos) << output;
}

INSTANTIATE_TEST_SUITE_P(Forms, InterfaceTest, ::testing::Values("cuda:2", "hip:2", "hip5:2", "hip6:2", "hip7:2"),
                         [](const auto& form) {
                             const std::string name = form.param;
                             return name.substr(0, name.find(':'));
                         });

}  // namespace
