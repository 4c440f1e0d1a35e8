// SPDX-License-Identifier: Apache-2.0
// Files that are replaced as a whole, in folders in which others may write.
#include "base/output_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace awaken {
namespace {

namespace fs = std::filesystem;

class OutputFiles : public testing::Test {
  protected:
    OutputFiles() {
        std::string pattern = (fs::temp_directory_path() / "output-XXXXXX").string();
        _folder = mkdtemp(pattern.data());
    }
    ~OutputFiles() override { fs::remove_all(_folder); }

    [[nodiscard]] std::string file(const std::string& name) const { return (_folder / name).string(); }
    [[nodiscard]] std::string text_of(const std::string& name) const {
        std::ifstream stream(file(name));
        return {std::istreambuf_iterator<char>(stream), {}};
    }
    [[nodiscard]] auto count() const { return std::distance(fs::directory_iterator(_folder), {}); }

    fs::path _folder;
};

TEST_F(OutputFiles, AFileOfTheLongestNameIsReplaced) {
    const std::string longest(255, 'x');
    ASSERT_EQ(replace_file(file(longest), "old"), 0);
    ASSERT_EQ(replace_file(file(longest), "new"), 0);
    EXPECT_EQ(text_of(longest), "new");
    EXPECT_EQ(count(), 1);
    EXPECT_EQ(replace_file(file(longest + "x"), "text"), ENAMETOOLONG);
    EXPECT_EQ(count(), 1);
}

TEST_F(OutputFiles, WhatOthersHavePutInTheWayIsNotOpened) {
    std::ofstream(file("victim")) << "untouched";
    const UnfinishedFile first = open_beside(file("text"));
    ASSERT_GE(first.descriptor, 0);
    close(first.descriptor);
    // The names of the next ones.
    const std::string name = fs::path(first.path).filename().string();
    const std::size_t dash = name.rfind('-');
    const int number = std::stoi(name.substr(dash + 1));
    for (int next = number + 1; next < number + 10; ++next) {
        fs::create_symlink("victim", file(name.substr(0, dash + 1) + std::to_string(next) + ".part"));
    }
    ASSERT_EQ(replace_file(file("text"), "text"), 0);
    EXPECT_EQ(text_of("victim"), "untouched");
    EXPECT_FALSE(fs::is_symlink(file("text")));
    EXPECT_EQ(text_of("text"), "text");
}

TEST_F(OutputFiles, TheUsersMaskDecidesWhoMayRead) {
    const mode_t before = umask(0027);
    ASSERT_EQ(replace_file(file("text"), "text"), 0);
    umask(before);
    struct stat status{};
    ASSERT_EQ(stat(file("text").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0640U);
}

TEST_F(OutputFiles, WhatDoesNotFitLeavesTheOldFileAndNothingElse) {
    ASSERT_EQ(replace_file(file("text"), "old"), 0);
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit small{2, before.rlim_max};
    std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const int reason = replace_file(file("text"), "longer");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(reason, EFBIG);
    EXPECT_EQ(text_of("text"), "old");
    EXPECT_EQ(count(), 1);
    EXPECT_EQ(replace_file(file("missing/text"), "text"), ENOENT);
}

}  // namespace
}  // namespace awaken
