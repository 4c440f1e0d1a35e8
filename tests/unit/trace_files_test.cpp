// SPDX-License-Identifier: Apache-2.0
// The files of a trace: what is in them, where they go, and that nothing is overwritten. tests/test_trace.py reads them
// with a real JSON parser.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/json_text.h"
#include "report/report.h"
#include "trace/folder.h"
#include "trace/session.h"
#include "trace/writer.h"

namespace awaken::trace {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "awaken-trace-XXXXXX").string();
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        folder = pattern;
    }
    void TearDown() override { fs::remove_all(folder); }

    [[nodiscard]] std::string path(const std::string& name) const { return folder + "/" + name; }
    void put(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
    [[nodiscard]] std::string text_of(const std::string& name) const {
        std::ostringstream text;
        text << std::ifstream(path(name)).rdbuf();
        return text.str();
    }
    [[nodiscard]] std::size_t count() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
    }
    void write_rank(const Rank& rank, const Recorder& recorder, const std::uint64_t now_ns) const {
        write_file(path(file_name(rank)),
                   [&](std::FILE* const stream) { write_events(stream, rank, recorder, now_ns); });
    }

    std::string folder;
};

std::size_t occurrences(const std::string& text, const std::string& what) {
    std::size_t count = 0;
    for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
        ++count;
    }
    return count;
}

TEST(JsonText, IsAlwaysAString) {
    EXPECT_EQ(json_string("MPI_Send"), "\"MPI_Send\"");
    EXPECT_EQ(json_string("a\"b\\c\n\x01\x7f"), "\"a\\\"b\\\\c\\u000a\\u0001\\u007f\"");
    EXPECT_EQ(json_string("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"), "\"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\"");
    // Cut short, overlong, a surrogate, beyond the last character, a lone continuation.
    for (const char* const wrong : {"\xc3", "\xe2\x82", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                    "\xf8\x88\x80\x80", "\x80"}) {
        std::string expected = "\"";
        for (std::size_t i = 0; i < std::string(wrong).size(); ++i) {
            expected += "\\ufffd";
        }
        EXPECT_EQ(json_string(wrong), expected + "\"");
    }
}

TEST_F(Files, AnEventIsALine) {
    Recorder recorder(1 << 20);
    Event call;
    call.begin_ns = 2'000'500;
    call.end_ns = 2'003'501;
    call.name = "MPI_Send";
    call.bytes = 1000;
    call.peer = 1;
    call.members = 4;
    call.path = static_cast<std::uint8_t>(report::Path::direct);
    recorder.add(call);
    Event operation = call;
    operation.kind = Kind::nonblocking;
    operation.name = "MPI_Irecv";
    operation.begin_ns = 2'004'000;
    operation.end_ns = 0;
    operation.peer = kAnyPeer;
    operation.path = 0;
    recorder.add(operation);
    Event copy;
    copy.kind = Kind::copy;
    copy.name = "copy to host";
    copy.begin_ns = 2'004'000;
    copy.end_ns = 2'005'000;
    copy.device = 0;
    copy.path = static_cast<std::uint8_t>(report::Mover::kernel);
    recorder.add(copy);
    copy.end_ns = 0;
    recorder.add(copy);
    Rank rank;
    rank.rank = 2;
    rank.ranks = 4;
    rank.host = "node \"1\"";
    rank.origin_ns = 1'000'000;
    rank.alignment.first = Offset{0, -500, 3};
    write_rank(rank, recorder, 2'010'000);
    const std::string text = text_of("rank-2.json");
    EXPECT_NE(
        text.find(
            "{\"name\":\"MPI_Send\",\"cat\":\"mpi\",\"ph\":\"X\",\"ts\":1000.000,\"dur\":3.001,\"pid\":2,\"tid\":0,"
            "\"args\":{\"path\":\"direct\",\"bytes\":1000,\"size_class_bytes\":1024,\"peer\":1,\"ranks\":4}},\n"),
        std::string::npos)
        << text;
    EXPECT_NE(text.find("\"ph\":\"b\",\"id\":\"2.1\",\"ts\":1003.500,"), std::string::npos) << text;
    EXPECT_NE(text.find("\"peer\":\"any\",\"ranks\":4,\"open\":true}},\n"), std::string::npos) << text;
    EXPECT_NE(text.find("\"args\":{\"by\":\"kernel\"}}"), std::string::npos) << text;
    EXPECT_EQ(occurrences(text, "\"by\""), 1U) << "of a copy under way it is not known";
    EXPECT_NE(text.find("\"ph\":\"e\",\"id\":\"2.1\",\"ts\":1009.500,"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 2 (node \\\"1\\\")"), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with("{\"awakenTrace\":{\"version\":1,\"rank\":2,\"ranks\":4,")) << text;
    EXPECT_TRUE(text.ends_with("}\n]}\n")) << text;
    EXPECT_EQ(count(), 1U) << "nothing else is left in the folder";
}

TEST_F(Files, WhatOverlapsOnAGpuHasRowsOfItsOwn) {
    Recorder recorder(1 << 20);
    const auto add = [&](const std::uint64_t begin, const std::uint64_t end, const Kind kind, const int device) {
        Event event;
        event.begin_ns = begin;
        event.end_ns = end;
        event.name = "work";
        event.kind = kind;
        event.device = device;
        recorder.add(event);
    };
    add(100, 200, Kind::copy, 0);
    add(150, 300, Kind::copy, 0);  // overlaps the first
    add(200, 250, Kind::copy, 0);  // follows it
    add(120, 180, Kind::copy, 1);  // another GPU
    add(120, 180, Kind::kernel, 0);
    Rank rank;
    rank.rank = 0;
    rank.ranks = 1;
    write_rank(rank, recorder, 1000);
    const std::string text = text_of("rank-0.json");
    EXPECT_EQ(occurrences(text, "\"name\":\"GPU 0: copies\""), 1U);
    EXPECT_EQ(occurrences(text, "\"name\":\"GPU 0: copies 2\""), 1U);
    EXPECT_EQ(occurrences(text, "\"name\":\"GPU 0: copies 3\""), 0U);
    EXPECT_EQ(occurrences(text, "\"name\":\"GPU 1: copies\""), 1U);
    EXPECT_EQ(occurrences(text, "\"name\":\"GPU 0: kernels\""), 1U);
    EXPECT_EQ(occurrences(text, "\"name\":\"thread 0\""), 0U) << "a thread that made no call has no row";
    // Each row by itself is in order.
    std::map<std::string, double> end_of_row;
    const std::regex form(R"("ts":([\d.]+),"dur":([\d.]+),"pid":0,"tid":(\d+))");
    for (std::sregex_iterator match(text.begin(), text.end(), form), none; match != none; ++match) {
        const double begin = std::stod((*match)[1]);
        EXPECT_GE(begin, end_of_row[(*match)[3]] - 1e-9);
        end_of_row[(*match)[3]] = begin + std::stod((*match)[2]);
    }
    EXPECT_EQ(end_of_row.size(), 4U);
}

TEST_F(Files, RanksAreJoined) {
    for (int number = 0; number < 3; ++number) {
        Recorder recorder(1 << 20);
        Event event;
        event.begin_ns = 10;
        event.end_ns = 20;
        event.name = "MPI_Barrier";
        recorder.add(event);
        Rank rank;
        rank.rank = number;
        rank.ranks = 3;
        write_rank(rank, recorder, 30);
    }
    write_file(path("trace.json"), [&](std::FILE* const stream) { merge(stream, folder, 3); });
    const std::string text = text_of("trace.json");
    EXPECT_EQ(occurrences(text, "MPI_Barrier"), 3U);
    for (int number = 0; number < 3; ++number) {
        EXPECT_EQ(occurrences(text, "\"rank\":" + std::to_string(number) + ","), 1U);
    }
    EXPECT_EQ(occurrences(text, "\"traceEvents\":["), 1U);
    EXPECT_TRUE(text.ends_with("}\n]}\n"));
    // A comma between any two events, and none after the last.
    EXPECT_EQ(occurrences(text, "},\n{"), occurrences(text, "\n{") - 1);
}

TEST_F(Files, WhatIsNotAWholeTraceIsNotJoined) {
    Recorder recorder(1 << 20);
    Rank rank;
    rank.ranks = 2;
    rank.rank = 0;
    write_rank(rank, recorder, 0);
    const auto refusal = [&] {
        try {
            write_file(path("trace.json"), [&](std::FILE* const stream) { merge(stream, folder, 2); });
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_NE(refusal().find("rank-1.json"), std::string::npos) << refusal();
    put("rank-1.json", "");
    EXPECT_NE(refusal().find("does not begin as one"), std::string::npos) << refusal();
    const std::string whole = text_of("rank-0.json");
    put("rank-1.json", whole.substr(0, whole.size() - 4));
    EXPECT_NE(refusal().find("ends too early"), std::string::npos) << refusal();
    EXPECT_FALSE(fs::exists(path("trace.json")));
    EXPECT_EQ(count(), 2U) << "no half of a file is left";
    put("rank-1.json", whole);
    EXPECT_EQ(refusal(), "");
}

TEST_F(Files, FoldersAreMade) {
    make_folder(path("a/b/c"));
    EXPECT_TRUE(fs::is_directory(path("a/b/c")));
    make_folder(path("a/b/c"));
    make_folder(path("a/b/"));
    put("file", "");
    EXPECT_THROW(make_folder(path("file/x")), Error);
    EXPECT_THROW(make_folder(path("file")), Error);
}

TEST_F(Files, AnotherRunsTraceStays) {
    const std::string run = path("trace");
    EXPECT_EQ(take_folder(run), 0);
    EXPECT_EQ(take_folder(run), 2) << "another run that begins before the first has written anything";
    leave_folder(run);
    EXPECT_EQ(take_folder(run), 0) << "an empty folder is taken as it is";
    leave_folder(run);
    put("trace/notes.txt", "");
    EXPECT_EQ(take_folder(run), 0);
    put("trace/rank-0.json", "old");
    leave_folder(run);
    EXPECT_EQ(take_folder(run), 3);
    EXPECT_EQ(take_folder(run), 4);
    EXPECT_TRUE(fs::is_directory(numbered_folder(run, 3)));
    EXPECT_EQ(numbered_folder(run, 0), run);

    const std::string given = write_file(path("trace/rank-0.json"), [](std::FILE* const s) { std::fputs("new", s); });
    EXPECT_EQ(text_of("trace/rank-0.json"), "old");
    EXPECT_EQ(given, path("trace/rank-0-" + std::to_string(getpid()) + ".json"));
    EXPECT_EQ(text_of(given.substr(folder.size() + 1)), "new");
}

TEST_F(Files, ARunThatWasKilledLeavesTheFolderToTheNext) {
    const std::string run = path("trace");
    const auto run_in_a_process = [&](const auto& end) {
        const pid_t process = fork();
        if (process == 0) {
            end(take_folder(run) == 0);
            _exit(2);
        }
        int status = 0;
        EXPECT_EQ(waitpid(process, &status, 0), process);
        return status;
    };
    const int killed = run_in_a_process([](const bool taken) {
        if (taken) {
            raise(SIGKILL);
        }
    });
    ASSERT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL);
    EXPECT_EQ(take_folder(run), 0);
    // This process is there still.
    const int second = run_in_a_process([](const bool taken) { _exit(taken ? 0 : 1); });
    EXPECT_TRUE(WIFEXITED(second) && WEXITSTATUS(second) == 1);
    leave_folder(run);
    // Nothing tells of processes of other hosts, nor who left a claim that says nothing.
    put("trace/.awaken-trace-of-a-run", "another-kernel:0,1 17 node7\n");
    EXPECT_EQ(take_folder(run), 3);
    EXPECT_EQ(claimed_by(run), "process 17 on node7");
    put("trace/.awaken-trace-of-a-run", "");
    EXPECT_EQ(take_folder(run), 4);
    // It is said which file to remove.
    ASSERT_TRUE(fs::remove(claim_file(run)));
    EXPECT_EQ(take_folder(run), 0);
}

TEST_F(Files, WhatIsNoFileInAClaimsPlaceIsAnError) {
    const std::string run = path("trace"), claim = claim_file(run);
    fs::create_directory(run);
    ASSERT_EQ(mkfifo(claim.c_str(), 0600), 0);
    for (const char* const kind : {"it is a pipe", "it is a folder"}) {
        for (const std::function<void()>& look : {std::function<void()>([&] { static_cast<void>(take_folder(run)); }),
                                                  std::function<void()>([&] { static_cast<void>(claimed_by(run)); })}) {
            try {
                look();
                ADD_FAILURE() << kind;
            } catch (const Error& error) {
                EXPECT_NE(std::string(error.what()).find("cannot use " + claim + " (" + kind), std::string::npos)
                    << error.what();
            }
        }
        ASSERT_TRUE(fs::remove(claim));
        fs::create_directory(claim);
    }
    fs::remove(claim);
    EXPECT_EQ(take_folder(run), 0);
}

TEST_F(Files, WhoHoldsAFolderIsTold) {
    const std::string run = path("trace");
    EXPECT_EQ(claimed_by(run), "");
    EXPECT_EQ(take_folder(run), 0);
    const std::string own = "process " + std::to_string(getpid()) + " on ";
    EXPECT_TRUE(claimed_by(run).starts_with(own) && claimed_by(run).size() > own.size()) << claimed_by(run);
    for (const char* const said : {"", "\n", "kernel,1 17\n", "kernel,1 x node7\n", "17\n", " "}) {
        put("trace/.awaken-trace-of-a-run", said);
        EXPECT_EQ(claimed_by(run), "") << said;
    }
    put("trace/.awaken-trace-of-a-run", "17 node7\n");
    EXPECT_EQ(claimed_by(run), "process 17 on node7") << "without what names the kernel";
}

TEST_F(Files, AFolderThatCannotBeWrittenToIsAnError) {
    const auto nothing = [](std::FILE*) {};
    EXPECT_THROW(write_file(path("missing/rank-0.json"), nothing), Error);
    // What the disk did not take does not count as written.
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit full{0, before.rlim_max};
    std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
    EXPECT_THROW(write_file(path("x.json"), [](std::FILE* const s) { std::fputs("text", s); }), Error);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(count(), 0U);
}

/// A session is one for each process, so each of these tests has a process of its own.
int in_a_process(const std::function<void()>& work) {
    const pid_t child = fork();
    if (child == 0) {
        work();
        std::exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

TEST_F(Files, AProcessThatExitsWithoutFinalizeLeavesItsTrace) {
    ASSERT_EQ(in_a_process([&] {
                  Session::start(path("out"), 1 << 20);
                  Session::start(path("elsewhere"), 1 << 20);
                  Session::current()->recorder().push_range("begun");
                  Rank rank;
                  rank.rank = 1;
                  rank.ranks = 2;
                  Session::current()->set_rank(rank, path("out/run-2"));
                  // A child of fork() is not the rank.
                  if (fork() == 0) {
                      std::exit(0);
                  }
                  wait(nullptr);
              }),
              0);
    const std::string text = text_of("out/run-2/rank-1.json");
    EXPECT_NE(text.find("\"complete\":false"), std::string::npos) << text;
    EXPECT_NE(text.find("\"begun\",\"cat\":\"range\""), std::string::npos) << text;
    EXPECT_EQ(occurrences(text, "\"open\":true"), 1U);
    EXPECT_FALSE(fs::exists(path("elsewhere")));
}

TEST_F(Files, ATraceIsWrittenOnce) {
    ASSERT_EQ(in_a_process([&] {
                  Session::start(folder, 1 << 20);
                  Rank rank;
                  rank.rank = 0;
                  rank.ranks = 1;
                  Session::current()->set_rank(rank, folder);
                  if (Session::current()->write(true) != path("rank-0.json")) {
                      std::_Exit(1);
                  }
                  if (!Session::current()->write(true).empty()) {
                      std::_Exit(2);
                  }
              }),
              0);
    EXPECT_NE(text_of("rank-0.json").find("\"complete\":true"), std::string::npos);
    EXPECT_EQ(count(), 1U);
}

TEST_F(Files, AProcessWithNothingToSayLeavesNothing) {
    ASSERT_EQ(in_a_process([&] { Session::start(path("out"), 1 << 20); }), 0);
    EXPECT_EQ(count(), 0U);
}

}  // namespace
}  // namespace awaken::trace
