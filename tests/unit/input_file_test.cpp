// SPDX-License-Identifier: Apache-2.0
// Files that users name, and what is shown of their text.
#include "base/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/printable.h"

namespace awaken {
namespace {

namespace fs = std::filesystem;

class InputFiles : public testing::Test {
  protected:
    InputFiles() {
        std::string pattern = (fs::temp_directory_path() / "input-XXXXXX").string();
        _folder = mkdtemp(pattern.data());
    }
    ~InputFiles() override { fs::remove_all(_folder); }

    [[nodiscard]] std::string file(const std::string& name) const { return (_folder / name).string(); }

    fs::path _folder;
};

TEST_F(InputFiles, ARegularFileIsReadWhole) {
    const std::string text(200'000, 'x');
    std::ofstream(file("text")) << text;
    EXPECT_EQ(read_input_file(file("text"), text.size()).text, text);
    fs::create_symlink(file("text"), file("link"));
    const InputFile linked = read_input_file(file("link"), text.size());
    EXPECT_EQ(linked.text, text);
    EXPECT_EQ(linked.why_not, "");
    const InputFile longer = read_input_file(file("text"), text.size() - 1);
    EXPECT_EQ(longer.text, "");
    EXPECT_EQ(longer.why_not, "it has more than 199999 bytes");
}

TEST_F(InputFiles, WhatMayNeverEndIsNotRead) {
    ASSERT_EQ(mkfifo(file("pipe").c_str(), 0600), 0);
    EXPECT_EQ(read_input_file(file("pipe"), 100).why_not, "it is a pipe, not a regular file");
    EXPECT_EQ(read_input_file("/dev/zero", 100).why_not, "it is a device, not a regular file");
    EXPECT_EQ(read_input_file(_folder.string(), 100).why_not, "it is a folder");
    EXPECT_FALSE(read_input_file(_folder.string(), 100).unopened);
}

TEST_F(InputFiles, TheNullDeviceIsAnEmptyFile) {
    EXPECT_EQ(read_input_file("/dev/null", 100).why_not, "");
    EXPECT_EQ(read_input_file("/dev/null", 100).text, "");
}

TEST_F(InputFiles, AMissingFileIsTold) {
    for (const std::string& name : {file("absent"), file("absent/deeper")}) {
        const InputFile absent = read_input_file(name, 100);
        EXPECT_TRUE(absent.unopened) << name;
        EXPECT_NE(absent.why_not, "") << name;
    }
}

TEST(PrintableLines, KeepsLineBreaksOnly) {
    EXPECT_EQ(printable_lines("a\x1B\n\nb\r\n"), "a\\x1B\n\nb\\x0D\n");
    EXPECT_EQ(printable_lines(""), "");
}

TEST(Excerpt, HasNoControlCharactersAndFitsALine) {
    EXPECT_EQ(excerpt("plain \xC3\xA4"), "plain \xC3\xA4");
    EXPECT_EQ(excerpt("a\x1B[2J\n\xC2\x9B\xFF"), "a\\x1B[2J\\x0A\\xC2\\x9B\\xFF");
    EXPECT_EQ(excerpt(std::string(80, 'x')), std::string(80, 'x'));
    EXPECT_EQ(excerpt(std::string(81, 'x')), std::string(80, 'x') + "...");
    EXPECT_EQ(excerpt(std::string(79, 'x') + "\xC3\xA4y"), std::string(79, 'x') + "\xC3\xA4...");
}

}  // namespace
}  // namespace awaken
