// SPDX-License-Identifier: Apache-2.0
// The file in which `awaken doctor` keeps what it found out about MPIs, as the library reads it.
#include "base/doctor_notes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using awaken::DoctorNote;
using Answer = awaken::DoctorNote::Answer;

constexpr const char* kKey = "build-id:6ad9b7e0c1f2";
constexpr const char* kLine = "build-id:6ad9b7e0c1f2 cuda yes 2026-01-31T12:00:00Z MPICH 5.0.2\n";

class DoctorNotes : public testing::Test {
  protected:
    DoctorNotes() {
        std::string folder = testing::TempDir() + "notesXXXXXX";
        _folder = mkdtemp(folder.data());
    }
    ~DoctorNotes() override { std::filesystem::remove_all(_folder); }

    [[nodiscard]] std::string path() const { return _folder + "/native-gpu"; }
    void write(const std::string& text, const mode_t mode = 0600) const {
        std::ofstream(path(), std::ios::binary) << text;
        ASSERT_EQ(chmod(path().c_str(), mode), 0);
    }
    [[nodiscard]] DoctorNote find(const std::string& switches = {}, const std::string& vendor = "cuda") const {
        return awaken::find_doctor_note(path(), kKey, vendor, switches);
    }
    void expect_unused(const std::string& reason) const {
        const DoctorNote note = find();
        EXPECT_EQ(note.answer, Answer::none);
        EXPECT_NE(note.text.find(reason), std::string::npos) << note.text;
        EXPECT_EQ(note.text.rfind(path(), 0), 0U) << note.text;
    }

    std::string _folder;
};

TEST_F(DoctorNotes, an_answer_is_found_by_library_and_vendor) {
    write(std::string("# a comment\n") + kLine + "build-id:6ad9b7e0c1f2 hip no 2026-02-01T00:00:00Z MPICH\n");
    EXPECT_EQ(find().answer, Answer::yes);
    EXPECT_EQ(find().text, "2026-01-31T12:00:00Z");
    EXPECT_EQ(find("", "hip").answer, Answer::no);
    EXPECT_EQ(find("", "cuda-emulated").answer, Answer::none);
    EXPECT_EQ(find("", "cuda-emulated").text, "");
    EXPECT_EQ(awaken::find_doctor_note(path(), "build-id:6ad9", "cuda", "").answer, Answer::none);
    EXPECT_EQ(awaken::find_doctor_note(path(), "", "cuda", "").answer, Answer::none);
}

TEST_F(DoctorNotes, of_several_lines_the_last_counts) {
    write(std::string(kLine) + "build-id:6ad9b7e0c1f2 cuda no 2026-02-01T00:00:00Z MPICH");  // no end of line
    EXPECT_EQ(find().answer, Answer::no);
}

TEST_F(DoctorNotes, an_answer_holds_under_the_settings_of_the_attempt_only) {
    write("build-id:6ad9b7e0c1f2 cuda yes 2026-01-31T12:00:00Z with:MPICH_GPU_SUPPORT_ENABLED=1 MPICH 8\n");
    EXPECT_EQ(find("with:MPICH_GPU_SUPPORT_ENABLED=1").answer, Answer::yes);
    expect_unused("other settings of the MPI");
    EXPECT_EQ(find("with:MPICH_GPU_SUPPORT_ENABLED=0").answer, Answer::none);
    write(kLine);
    EXPECT_EQ(find("with:UCX_TLS=tcp").answer, Answer::none);
}

TEST_F(DoctorNotes, no_file_is_no_answer_without_a_reason) {
    EXPECT_EQ(find().answer, Answer::none);
    EXPECT_EQ(find().text, "");
    EXPECT_EQ(awaken::find_doctor_note("", kKey, "cuda", "").text, "");
}

TEST_F(DoctorNotes, what_is_not_understood_is_told_and_ignored) {
    for (const char* const rest :
         {"", " maybe 2026-01-31T12:00:00Z x", " yes", " yes soon", " yes 2026-01-31 x", " yes 2026-01-31T12:00:00Zx",
          " yes \x1b[31m2026-01-3", " YES 2026-01-31T12:00:00Z"}) {
        write(std::string(kKey) + " cuda" + rest + "\n");
        expect_unused("not understood");
    }
    // Lines about others do not matter, whatever they are.
    write(std::string("\0\0\n\xff\xfe\n   \nyes\n", 14) + kLine + std::string(5000, 'x'));
    EXPECT_EQ(find().answer, Answer::yes);
}

TEST_F(DoctorNotes, a_file_that_others_may_have_written_is_not_believed) {
    write(kLine, 0602);
    expect_unused("others may write it");
    write(kLine, 0660);
    expect_unused("others may write it");
    write(kLine, 0644);
    EXPECT_EQ(find().answer, Answer::yes);
    if (geteuid() == 0) {
        ASSERT_EQ(chown(path().c_str(), 65534, 65534), 0);
        expect_unused("belongs to somebody else");
    }
}

TEST_F(DoctorNotes, what_is_no_file_is_neither_followed_nor_waited_for) {
    ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
    expect_unused("not a regular file");
    ASSERT_EQ(unlink(path().c_str()), 0);
    ASSERT_EQ(mkdir(path().c_str(), 0700), 0);
    expect_unused("not a regular file");
    ASSERT_EQ(rmdir(path().c_str()), 0);
    std::ofstream(path() + ".other") << kLine;
    ASSERT_EQ(symlink((path() + ".other").c_str(), path().c_str()), 0);
    expect_unused("symbolic link");
}

TEST_F(DoctorNotes, a_file_of_any_length_is_looked_at_only_as_far_as_the_doctors_could_be) {
    write(kLine);
    ASSERT_EQ(truncate(path().c_str(), off_t{1} << 40), 0);
    expect_unused("too long");
}

std::string file_in(std::vector<std::string> variables) {
    std::vector<char*> environment;
    for (std::string& variable : variables) {
        environment.push_back(variable.data());
    }
    environment.push_back(nullptr);
    return awaken::doctor_notes_file(environment.data());
}

TEST(DoctorNotesFile, is_where_the_doctor_writes_it) {
    EXPECT_EQ(file_in({"HOME=/home/me", "XDG_CACHE_HOME=/cache"}), "/cache/awaken/native-gpu");
    EXPECT_EQ(file_in({"HOME=/home/me", "XDG_CACHE_HOME="}), "/home/me/.cache/awaken/native-gpu");
    EXPECT_EQ(file_in({"HOMER=/x"}), "");
    EXPECT_EQ(awaken::doctor_notes_file(nullptr), "");
}

TEST(DoctorNotesFile, switches_are_told_in_one_order_and_without_blanks) {
    std::vector<std::string> variables{"UCX_TLS=tcp, cuda\xc3\xa9", "OMPI_MCA_pml=^ucx", "PATH=/bin", "UCX_TLSX=1"};
    std::vector<char*> environment;
    for (std::string& variable : variables) {
        environment.push_back(variable.data());
    }
    environment.push_back(nullptr);
    EXPECT_EQ(awaken::gpu_switches_of_mpis(environment.data()), "with:OMPI_MCA_pml=^ucx,UCX_TLS=tcp%2C%20cuda%C3%A9");
    EXPECT_EQ(awaken::gpu_switches_of_mpis(nullptr), "");
}

TEST(DoctorNotesFile, a_library_without_a_build_id_is_known_by_its_file) {
    // An address in no object has no build id either.
    const std::string path = testing::TempDir() + "lib mpi.so";
    std::ofstream(path) << "12345";
    struct stat status{};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    const std::string real = std::filesystem::canonical(testing::TempDir()).string() + "/lib%20mpi.so";
    const std::string key = "file:5:" + std::to_string(status.st_mtime) + ":" + real;
    EXPECT_EQ(awaken::library_key(nullptr, path), key);
    const std::string link = testing::TempDir() + "link.so";
    ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
    EXPECT_EQ(awaken::library_key(nullptr, link), key);
    EXPECT_EQ(unlink(link.c_str()) + unlink(path.c_str()), 0);
    EXPECT_EQ(awaken::library_key(nullptr, path), "");
}

TEST(DoctorNotesFile, a_build_id_is_read_from_the_loaded_library) {
    // The C library has one wherever it comes from a distribution.
    const std::string key = awaken::library_key(reinterpret_cast<const void*>(&::getpid), "");
    if (key.empty()) {
        GTEST_SKIP() << "the C library of this machine has no build id";
    }
    ASSERT_EQ(key.rfind("build-id:", 0), 0U) << key;
    EXPECT_GE(key.size(), 9U + 16U);
    EXPECT_EQ(key.find_first_not_of("0123456789abcdef", 9), std::string::npos) << key;
}

}  // namespace
