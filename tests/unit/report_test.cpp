// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/error.h"

namespace awaken::report {
namespace {

Identity identity() {
    Identity identity;
    identity.rank = 2;
    identity.size = 4;
    identity.host = "node17";
    identity.mpi_library = "/usr/lib/libmpi.so.12";
    identity.mpi_version = "MPICH Version: 5.0.2";
    identity.abi = "MPICH";
    identity.gpu = "CUDA driver 13.0";
    identity.devices = {"NVIDIA H200 (sm_90)"};
    return identity;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// A checker of JSON's grammar (RFC 8259): true when the text is one value.
class JsonGrammar {
  public:
    explicit JsonGrammar(const std::string& text) : _text(text) {}
    [[nodiscard]] bool valid() { return value() && (skip(), _at == _text.size()); }

  private:
    void skip() {
        while (_at < _text.size() && (_text[_at] == ' ' || _text[_at] == '\n')) {
            ++_at;
        }
    }
    bool take(const char character) {
        skip();
        if (_at >= _text.size() || _text[_at] != character) {
            return false;
        }
        ++_at;
        return true;
    }
    bool word(const std::string& expected) {
        if (_text.compare(_at, expected.size(), expected) != 0) {
            return false;
        }
        _at += expected.size();
        return true;
    }
    bool string() {
        if (!take('"')) {
            return false;
        }
        for (; _at < _text.size(); ++_at) {
            const auto byte = static_cast<unsigned char>(_text[_at]);
            if (byte == '"') {
                ++_at;
                return true;
            }
            if (byte < 0x20) {
                return false;
            }
            if (byte != '\\') {
                continue;
            }
            if (++_at >= _text.size()) {
                return false;
            }
            if (_text[_at] == 'u') {
                for (int i = 0; i < 4; ++i) {
                    ++_at;
                    if (_at >= _text.size() || std::isxdigit(static_cast<unsigned char>(_text[_at])) == 0) {
                        return false;
                    }
                }
            } else if (std::string("\"\\/bfnrt").find(_text[_at]) == std::string::npos) {
                return false;
            }
        }
        return false;
    }
    bool list(const char close, const bool named) {
        ++_at;
        if (take(close)) {
            return true;
        }
        do {
            if (named && (!string() || !take(':'))) {
                return false;
            }
            if (!value()) {
                return false;
            }
        } while (take(','));
        return take(close);
    }
    bool value() {
        skip();
        if (_at >= _text.size()) {
            return false;
        }
        switch (_text[_at]) {
            case '{':
                return list('}', true);
            case '[':
                return list(']', false);
            case '"':
                return string();
            case 'n':
                return word("null");
            default: {
                const std::size_t begin = _at;
                while (_at < _text.size() && std::isdigit(static_cast<unsigned char>(_text[_at])) != 0) {
                    ++_at;
                }
                return _at > begin && (_text[begin] != '0' || _at == begin + 1);
            }
        }
    }

    const std::string& _text;
    std::size_t _at = 0;
};

TEST(Report, SizeClasses) {
    EXPECT_EQ(size_class(0), -1);
    EXPECT_EQ(size_class(1), 0);
    EXPECT_EQ(size_class(2), 1);
    EXPECT_EQ(size_class(3), 2);
    EXPECT_EQ(size_class(4), 2);
    EXPECT_EQ(size_class(5), 3);
    EXPECT_EQ(size_class(std::uint64_t{1} << 63), 63);
    EXPECT_EQ(size_class((std::uint64_t{1} << 63) + 1), 64);
    EXPECT_EQ(size_class(UINT64_MAX), 64);
}

TEST(Ledger, AddsUpByFunctionPathAndClass) {
    Ledger ledger;
    ledger.add("MPI_Send", Path::staged, 1000, 10);
    ledger.add("MPI_Send", Path::staged, 1024, 20);
    ledger.add("MPI_Send", Path::staged, 1025, 40);
    ledger.add("MPI_Send", Path::native, 1000, 80);
    ledger.add("MPI_Recv", Path::staged, 0, 160);
    const auto entries = ledger.entries();
    ASSERT_EQ(entries.size(), 4U);
    const Entry& small = entries.at({"MPI_Send", Path::staged, 10});
    EXPECT_EQ(small.calls, 2U);
    EXPECT_EQ(small.bytes, 2024U);
    EXPECT_EQ(small.nanoseconds, 30U);
    EXPECT_EQ(entries.at({"MPI_Recv", Path::staged, -1}).calls, 1U);
}

TEST(Ledger, EqualNamesAtDifferentAddressesAreOne) {
    const std::string a = "MPI_Bcast", b = "MPI_Bcast";
    Ledger ledger;
    ledger.add(a.c_str(), Path::staged, 8, 1);
    ledger.add(b.c_str(), Path::staged, 8, 1);
    ASSERT_EQ(ledger.entries().size(), 1U);
    EXPECT_EQ(ledger.entries().begin()->second.calls, 2U);
}

TEST(Ledger, GrowsWithTheNumberOfFunctionsWhileThreadsAdd) {
    std::vector<std::string> names;
    for (int i = 0; i < 1000; ++i) {
        names.push_back("F" + std::to_string(i));
    }
    Ledger ledger;
    const auto work = [&] {
        for (int round = 0; round < 5; ++round) {
            for (const std::string& name : names) {
                ledger.add(name.c_str(), Path::staged, 64, 2);
            }
        }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back(work);
    }
    for (auto& thread : threads) {
        thread.join();
    }
    const auto entries = ledger.entries();
    ASSERT_EQ(entries.size(), 1000U);
    for (const auto& [key, entry] : entries) {
        ASSERT_EQ(entry.calls, 20U);
        ASSERT_EQ(entry.bytes, 1280U);
        ASSERT_EQ(entry.nanoseconds, 40U);
    }
}

TEST(Ledger, TravelsAndMerges) {
    Ledger here, there, copy;
    here.add("MPI_Send", Path::staged, 100, 1);
    there.add("MPI_Send", Path::staged, 100, 2);
    there.add("MPI_Recv", Path::refused, UINT64_MAX, 3);
    const std::string strange = "a b%c\nd\t\xff\"=\\";
    there.add_fallback("MPI_Recv", strange);
    there.add_fallback("MPI_Recv", strange);
    there.add_fallback("MPI_Recv", "");
    here.add_copies(Mover::kernel, {1, 8});
    there.add_copies(Mover::kernel, {2, 100});
    there.add_copies(Mover::cpu, {1, UINT64_MAX});
    here.merge(there.serialise());
    EXPECT_EQ(here.entries().at({"MPI_Send", Path::staged, 7}).calls, 2U);
    EXPECT_EQ(here.entries().at({"MPI_Send", Path::staged, 7}).nanoseconds, 3U);
    EXPECT_EQ(here.entries().at({"MPI_Recv", Path::refused, 64}).bytes, UINT64_MAX);
    EXPECT_EQ(here.fallbacks().at({"MPI_Recv", strange}), 2U);
    EXPECT_EQ(here.fallbacks().at({"MPI_Recv", ""}), 1U);
    EXPECT_EQ(here.copies()[static_cast<std::size_t>(Mover::engine)].calls, 0U);
    EXPECT_EQ(here.copies()[static_cast<std::size_t>(Mover::kernel)].calls, 3U);
    EXPECT_EQ(here.copies()[static_cast<std::size_t>(Mover::kernel)].bytes, 108U);
    copy.merge(here.serialise());
    EXPECT_EQ(copy.serialise(), here.serialise()) << "what was merged travels on";
    here.merge(there.serialise());
    EXPECT_EQ(here.entries().at({"MPI_Recv", Path::refused, 64}).bytes, UINT64_MAX) << "sums do not wrap";
}

TEST(Ledger, DamagedTextIsRefusedAndAddsNothing) {
    Ledger good;
    good.add("MPI_Send", Path::staged, 100, 1);
    good.add_fallback("MPI_Send", "pinned pool of 64 MiB full");
    good.add_copies(Mover::engine, {1, 100});
    const std::string text = good.serialise();
    Ledger ledger;
    for (std::size_t length = 0; length < text.size(); ++length) {
        EXPECT_THROW(ledger.merge(text.substr(0, length)), Error) << "cut at " << length;
    }
    for (std::size_t i = 0; i < text.size(); ++i) {
        for (const int change : {1, 0x20, 0x80}) {
            std::string changed = text;
            changed[i] = static_cast<char>(changed[i] ^ change);
            EXPECT_THROW(ledger.merge(changed), Error) << "byte " << i << " xor " << change;
        }
    }
    EXPECT_THROW(ledger.merge(text + "x"), Error);
    EXPECT_THROW(ledger.merge(text + text), Error);
    EXPECT_TRUE(ledger.entries().empty());
    EXPECT_TRUE(ledger.fallbacks().empty());
    EXPECT_EQ(ledger.copies()[0].calls, 0U);
    ledger.merge(text);
    EXPECT_EQ(ledger.serialise(), text);
}

TEST(Report, TextIsAnAlignedTable) {
    Ledger ledger;
    ledger.add("MPI_Send", Path::staged, 1 << 20, 1000000);
    ledger.add("MPI_Allreduce", Path::staged_large, 96 << 20, 20000000);
    ledger.add("MPI_Send", Path::native, 0, 0);
    ledger.add_fallback("MPI_Allreduce", "pinned pool of 64 MiB full");
    ledger.add_copies(Mover::engine, {3, 194 << 20});
    ledger.add_copies(Mover::cpu, {12, 96});
    EXPECT_EQ(to_text(identity(), ledger),
              "Awaken report: rank 2 of 4 on node17\n"
              "  MPI      MPICH Version: 5.0.2\n"
              "  ABI      MPICH (/usr/lib/libmpi.so.12)\n"
              "  GPU      CUDA driver 13.0\n"
              "  device   0: NVIDIA H200 (sm_90)\n"
              "\n"
              "  function       path          size        calls    data      time  per call   GB/s\n"
              "  MPI_Allreduce  staged-large  <= 128 MiB      1  96 MiB  20.00 ms  20.00 ms  5.033\n"
              "  MPI_Send       native        0 B             1     0 B         -         -      -\n"
              "  MPI_Send       staged        <= 1 MiB        1   1 MiB   1.00 ms   1.00 ms  1.049\n"
              "  all            native        all             1     0 B         -         -      -\n"
              "  all            staged        all             1   1 MiB   1.00 ms   1.00 ms  1.049\n"
              "  all            staged-large  all             1  96 MiB  20.00 ms  20.00 ms  5.033\n"
              "\n"
              "  path          how the bytes travelled\n"
              "  native        by the MPI alone: host memory, or memory that this MPI takes by itself\n"
              "  staged        copied through pinned host memory\n"
              "  staged-large  copied through ordinary host memory, as no more could be pinned\n"
              "\n"
              "  by      what copied device memory                       copies     data\n"
              "  engine  copies of the GPU runtime, by its copy engines       3  194 MiB\n"
              "  cpu     the CPU, which reaches device memory                12     96 B\n"
              "\n"
              "  Fallbacks: calls that did not take their normal path\n"
              "  function       reason                      times\n"
              "  MPI_Allreduce  pinned pool of 64 MiB full      1\n");
}

TEST(Report, ShowsTheTableThatChoseForCollectives) {
    Identity identity;
    Ledger ledger;
    ledger.add("MPI_Ireduce_scatter_block_c", Path::staged, 8, 1);
    EXPECT_EQ(to_text(identity, ledger).find("AWAKEN_COLLECTIVES"), std::string::npos);
    EXPECT_EQ(to_json(identity, Ledger()).find("collectives"), std::string::npos);
    identity.collectives = {"allreduce bytes=-1M : one-shot", "* : two-shot"};
    EXPECT_TRUE(
        to_text(identity, ledger)
            .ends_with(
                "(AWAKEN_COLLECTIVES puts rows before them)\n  allreduce bytes=-1M : one-shot\n  * : two-shot\n"));
    for (const char* const collective : {"MPI_Allreduce", "MPI_Bcast_init", "MPI_Ialltoallw", "MPI_Exscan"}) {
        Ledger one;
        one.add(collective, Path::direct, 8, 1);
        EXPECT_TRUE(contains(to_text(identity, one), "AWAKEN_COLLECTIVES")) << collective;
    }
    Ledger other;  // the table chose nothing
    other.add("MPI_Allreduce", Path::native, 8, 1);
    other.add("MPI_Send", Path::direct, 8, 1);
    other.add("MPI_Isend", Path::staged, 8, 1);
    EXPECT_FALSE(contains(to_text(identity, other), "AWAKEN_COLLECTIVES"));
    EXPECT_NE(
        to_json(identity, Ledger()).find("\"collectives\": [\"allreduce bytes=-1M : one-shot\", \"* : two-shot\"],\n"),
        std::string::npos);
}

TEST(Report, TellsOfSettingsThatHadNoPart) {
    Identity told = identity();
    EXPECT_FALSE(contains(to_text(told, Ledger()), "note")) << "nothing to tell";
    EXPECT_FALSE(contains(to_json(told, Ledger()), "notes"));
    told.notes = {"AWAKEN_MPI=/opt/\"x\".so had no effect", "another"};
    EXPECT_TRUE(
        contains(to_text(told, Ledger()), "\n  note     AWAKEN_MPI=/opt/\"x\".so had no effect\n  note     another\n"));
    const std::string json = to_json(told, Ledger());
    EXPECT_TRUE(contains(json, R"("notes": ["AWAKEN_MPI=/opt/\"x\".so had no effect", "another"],)")) << json;
    EXPECT_TRUE(JsonGrammar(json).valid()) << json;
}

TEST(Report, TextOfNothing) {
    EXPECT_EQ(to_text(Identity{}, Ledger{}),
              "Awaken report\n  MPI      unknown\n  ABI      unknown (no library)\n  GPU      none\n\n"
              "  No calls were recorded.\n");
}

TEST(Report, WholeJob) {
    Identity job = identity();
    job.rank = -1;
    EXPECT_EQ(to_text(job, Ledger{}).rfind("Awaken report: all ranks of 4 on node17\n", 0), 0U);
    EXPECT_TRUE(contains(to_json(job, Ledger{}), "\"rank\": null,\n  \"size\": 4,"));
}

TEST(Report, ForeignTextCannotBreakOut) {
    Identity foreign = identity();
    foreign.mpi_version = "evil\x1b[2J\"\\\nnext \xff \xc3\xa9 \xed\xa0\x80 \xc2\x9b";
    Ledger ledger;
    ledger.add_fallback("MPI_Send", "line\r\nbreak");
    const std::string text = to_text(foreign, ledger);
    EXPECT_TRUE(contains(text, "evil\\x1B[2J\"\\\\x0Anext \\xFF \xc3\xa9 \\xED\\xA0\\x80 \\xC2\\x9B\n"));
    EXPECT_TRUE(contains(text, "line\\x0D\\x0Abreak"));
    const std::string json = to_json(foreign, ledger);
    EXPECT_TRUE(contains(json, R"("evil\u001b[2J\"\\\u000anext \ufffd )"
                               "\xc3\xa9"
                               R"( \ufffd\ufffd\ufffd )"));
    EXPECT_TRUE(contains(json, R"("line\u000d\u000abreak")"));
    EXPECT_TRUE(JsonGrammar(json).valid()) << json;
}

TEST(Report, Json) {
    Ledger ledger;
    ledger.add("MPI_Send", Path::staged, 1000, 1500);
    ledger.add("MPI_Send", Path::staged, UINT64_MAX, 1);
    ledger.add_fallback("MPI_Send", "pinned pool of 64 MiB full");
    ledger.add_copies(Mover::kernel, {4, 4096});
    const std::string json = to_json(identity(), ledger);
    EXPECT_TRUE(JsonGrammar(json).valid()) << json;
    EXPECT_TRUE(contains(json, "\"schema\": \"awaken-report\",\n  \"version\": 1,\n  \"rank\": 2,\n  \"size\": 4,"));
    EXPECT_TRUE(contains(json,
                         "{\"function\": \"MPI_Send\", \"path\": \"staged\", \"size_class_bytes\": 1024, \"calls\": 1, "
                         "\"bytes\": 1000, \"time_ns\": 1500}"));
    EXPECT_TRUE(contains(json, "\"size_class_bytes\": 18446744073709551616"));
    EXPECT_TRUE(
        contains(json, "{\"function\": \"MPI_Send\", \"reason\": \"pinned pool of 64 MiB full\", \"count\": 1}"));
    EXPECT_TRUE(contains(json,
                         "\"copies\": {\"engine\": {\"copies\": 0, \"bytes\": 0}, "
                         "\"kernel\": {\"copies\": 4, \"bytes\": 4096}, \"cpu\": {\"copies\": 0, \"bytes\": 0}},"))
        << json;
    const std::string empty = to_json(Identity{}, Ledger{});
    EXPECT_TRUE(JsonGrammar(empty).valid()) << empty;
    EXPECT_TRUE(contains(empty, "\"rank\": null"));
}

}  // namespace
}  // namespace awaken::report
