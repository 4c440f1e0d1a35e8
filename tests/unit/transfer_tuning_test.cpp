#include "transfer/tuning.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace awaken::transfer {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

/// Variables in the form of environ.
class Environment {
  public:
    Environment(std::initializer_list<std::string> entries) : _entries(entries) {
        for (std::string& entry : _entries) {
            _pointers.push_back(entry.data());
        }
        _pointers.push_back(nullptr);
    }
    char** get() { return _pointers.data(); }

  private:
    std::vector<std::string> _entries;
    std::vector<char*> _pointers;
};

Tuning read(const std::string& text, const std::string& model = "", std::initializer_list<std::string> variables = {}) {
    return Tuning::from_text(model, "", text, "tuning.conf", Environment(variables).get());
}

/// The text of the error that reading ends with; "" when it does not.
std::string refusal(const std::string& text, std::initializer_list<std::string> variables = {}) {
    try {
        static_cast<void>(read(text, "", variables));
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

class TuningFile : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "tuning-test-XXXXXX").string();
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        _folder = pattern;
    }
    void TearDown() override { fs::remove_all(_folder); }

    std::string write(const fs::path& relative, const std::string& text) const {
        const fs::path file = _folder / relative;
        fs::create_directories(file.parent_path());
        std::ofstream(file) << text;
        return file.string();
    }

    fs::path _folder;
};

TEST(Tuning, DefaultsWhenNothingIsSaid) {
    EXPECT_EQ(read(""), Tuning{});
    EXPECT_EQ(read("# a comment\n\n   \t\n[NVIDIA H200]\n", "a GPU that nobody knows"), Tuning{});
    EXPECT_EQ(Tuning::from_text("", "", "", "", nullptr), Tuning{});
    EXPECT_EQ(Tuning::find("", "", "", nullptr), Tuning{});
}

TEST(Tuning, ReadsEachFigureFromAFileAndFromTheVariable) {
    for (const TuningFigure& figure : Tuning::figures()) {
        // A value unlike the default, within the bounds.
        const std::string value = figure.unit == TuningFigure::Unit::bytes   ? "32M"
                                  : figure.unit == TuningFigure::Unit::count ? "7"
                                                                             : "12.25";
        const Tuning from_file = read(std::string(figure.name) + " = " + value + "\n");
        EXPECT_EQ(figure.text(from_file), value) << figure.name;
        EXPECT_NE(from_file, Tuning{}) << figure.name;
        EXPECT_EQ(read("", "", {std::string("AWAKEN_TUNE=") + figure.name + "=" + value}), from_file) << figure.name;
        for (const TuningFigure& other : Tuning::figures()) {
            if (other.name != figure.name) {
                EXPECT_EQ(other.text(from_file), other.text(Tuning{})) << figure.name << " changes " << other.name;
            }
        }
    }
}

TEST(Tuning, TimesAreMicrosecondsWithDecimals) {
    EXPECT_EQ(read("small_watch_us = 3").small_watch, 3us);
    EXPECT_EQ(read("small_watch_us = 2.5").small_watch, 2500ns);
    EXPECT_EQ(read("small_watch_us = 0.007").small_watch, 7ns);
    EXPECT_EQ(read("large_watch_us = 1000000").large_watch, 1s);
    EXPECT_EQ(find_figure("small_watch_us")->text(read("small_watch_us = 10.050")), "10.05");
    for (const char* const wrong : {"2us", "2.", ".5", "2.5000", "-1", "1e3", "2,5", "99999999999999999999", "2.-1"}) {
        EXPECT_NE(refusal(std::string("small_watch_us = ") + wrong).find("is not a number of microseconds"),
                  std::string::npos)
            << wrong;
    }
}

TEST(Tuning, TheModelsSectionWinsOverLinesForAllAndTheVariableOverBoth) {
    const std::string text =
        "rings = 2\n"
        "ring_chunks = 3   # for all\n"
        "[ NVIDIA H200 ]\r\n"
        "rings=5\r\n"
        "[AMD Instinct MI210]\n"
        "rings = 6\n"
        "[NVIDIA H200]\n"
        "network_window = 9\n";
    EXPECT_EQ(read(text).rings, 2U);
    const Tuning h200 = read(text, "NVIDIA H200");
    EXPECT_EQ(h200.rings, 5U);
    EXPECT_EQ(h200.ring_chunks, 3U);
    EXPECT_EQ(h200.network_window, 9U);
    EXPECT_EQ(read(text, "AMD Instinct MI210").rings, 6U);
    EXPECT_EQ(read(text, "NVIDIA H2000").rings, 2U);
    EXPECT_EQ(read(text, "NVIDIA H200", {"AWAKEN_TUNE=network_window=4, rings = 8"}).rings, 8U);
    // Set but empty is not set.
    EXPECT_EQ(read(text, "NVIDIA H200", {"AWAKEN_TUNE="}).rings, 5U);
}

TEST(Tuning, ErrorsNameTheLine) {
    EXPECT_EQ(refusal("\n# comment\nring_chunk = 4\n"),
              "tuning.conf:3: there is no figure ring_chunk: did you mean ring_chunks? `awaken settings` lists all "
              "figures");
    EXPECT_EQ(refusal("entirely_different_name = 4"),
              "tuning.conf:1: there is no figure entirely_different_name: `awaken settings` lists all figures");
    EXPECT_EQ(refusal("rings"), "tuning.conf:1: rings is not understood: write NAME = VALUE, [MODEL] or # COMMENT");
    EXPECT_EQ(refusal("rings ="), "tuning.conf:1: rings = is not understood: write NAME = VALUE, [MODEL] or # COMMENT");
    EXPECT_EQ(refusal("rings = # 4"),
              "tuning.conf:1: rings = is not understood: write NAME = VALUE, [MODEL] or # COMMENT");
    EXPECT_EQ(refusal("= 4"), "tuning.conf:1: = 4 is not understood: write NAME = VALUE, [MODEL] or # COMMENT");
    for (const char* const wrong : {"[", "[]", "[ ]", "[H200", "[H200] rings = 3"}) {
        EXPECT_NE(refusal(wrong).find("tuning.conf:1: "), std::string::npos) << wrong;
    }
    EXPECT_EQ(refusal("rings = four"), "tuning.conf:1: rings=four is not a whole number: use a number such as 4");
    EXPECT_EQ(refusal("rings = 4.0"), "tuning.conf:1: rings=4.0 is not a whole number: use a number such as 4");
    EXPECT_NE(refusal("ring_chunk_bytes = 1MB").find("tuning.conf:1: ring_chunk_bytes=1MB is not a number of bytes"),
              std::string::npos);
}

TEST(Tuning, ErrorsOfOtherModelsAreErrorsToo) {
    EXPECT_NE(
        refusal("[somebody else's]\nrigns = 4\n").find("tuning.conf:2: there is no figure rigns: did you mean rings?"),
        std::string::npos);
    EXPECT_NE(refusal("[somebody else's]\nrings = 0\n").find("tuning.conf:2: rings=0 is out of bounds"),
              std::string::npos);
}

TEST(Tuning, AFigureIsSetOnceForAGpu) {
    EXPECT_EQ(refusal("rings = 1\n[a]\nrings = 2\n[b]\nrings = 3\n"), "");
    EXPECT_EQ(refusal("[a]\nrings = 1\n[b]\n[a]\nrings = 2\n"),
              "tuning.conf:5: rings is set twice for the same GPU: remove one of the lines");
}

TEST(Tuning, BoundsAreChecked) {
    EXPECT_EQ(refusal("ring_chunk_bytes = 4095"),
              "tuning.conf:1: ring_chunk_bytes=4095 is out of bounds: use 4K to 1G");
    EXPECT_EQ(refusal("ring_chunk_bytes = 4K"), "");
    EXPECT_NE(refusal("network_fragment_bytes = 2G"), "");
    EXPECT_NE(refusal("ring_chunks = 0"), "");
    EXPECT_NE(refusal("network_window = 0"), "");
    EXPECT_EQ(refusal("", {"AWAKEN_TUNE=rings=0"}), "AWAKEN_TUNE: rings=0 is out of bounds: use 1 to 4096");
    EXPECT_EQ(refusal("", {"AWAKEN_TUNE=large_watch_us=60000001"}),
              "AWAKEN_TUNE: large_watch_us=60000001 is out of bounds: use 0 to 60000000");
    EXPECT_EQ(refusal("kernel_copy_bytes = 0"), "");
}

TEST(Tuning, APoolHoldsAtLeastOneChunk) {
    EXPECT_EQ(refusal("bounce_pool_bytes = 1M\nbounce_chunk_bytes = 1M\n"), "");
    EXPECT_EQ(refusal("bounce_pool_bytes = 1M\n"),
              "bounce_pool_bytes (1M) is less than one chunk of it (bounce_chunk_bytes, 16M): make the pool larger or "
              "the chunks smaller");
    // Judged when everything is known, not line by line.
    EXPECT_EQ(refusal("bounce_pool_bytes = 1M\n", {"AWAKEN_TUNE=bounce_chunk_bytes=64K"}), "");
}

TEST(Tuning, AVariableThatIsNotUnderstoodIsRefused) {
    EXPECT_EQ(refusal("", {"AWAKEN_TUNE=rinsg=4"}),
              "AWAKEN_TUNE: there is no figure rinsg: did you mean rings? `awaken settings` lists all figures");
    EXPECT_EQ(refusal("", {"AWAKEN_TUNE=rings=4,ring_chunks=2,rings=4"}),
              "AWAKEN_TUNE: rings is set twice: remove one of the two");
    for (const char* const wrong : {"rings", "rings=", "=4", "rings=4,", ",rings=4", "rings=4,,ring_chunks=2"}) {
        EXPECT_NE(refusal("", {std::string("AWAKEN_TUNE=") + wrong}).find("write NAME=VALUE, separated by commas"),
                  std::string::npos)
            << wrong;
    }
    EXPECT_EQ(refusal("", {"AWAKEN_TUNE=rings=x"}),
              "AWAKEN_TUNE: rings=x is not a whole number: use a number such as 4");
    EXPECT_EQ(refusal("", {"AWAKEN_TUNING=x", "AWAKEN=0", "TUNE=x", "AWAKEN_TUNE", "AWAKEN_TUNE= "}), "");
}

TEST(Tuning, MeasuredFiguresHoldForTheirModelAndLink) {
    constexpr MeasuredFigure rows[] = {
        {"A", "*", "rings", "2", "because"},
        {"A", "NVLink", "rings", "3", "because"},
        {"A", "NVLink", "ring_chunks", "5", "because"},
        {"B", "NVLink", "rings", "7", "because"},
    };
    const auto rings = [&rows](const std::string& model, const std::string& link) {
        Tuning tuning;
        apply_measured(tuning, rows, model, link);
        return tuning.rings;
    };
    EXPECT_EQ(rings("A", ""), 2U);
    EXPECT_EQ(rings("A", "PCIe"), 2U);
    EXPECT_EQ(rings("A", "NVLink"), 3U);
    EXPECT_EQ(rings("B", "NVLink"), 7U);
    EXPECT_EQ(rings("B", "PCIe"), Tuning{}.rings);
    EXPECT_EQ(rings("", ""), Tuning{}.rings);
    Tuning tuning;
    constexpr MeasuredFigure unknown[] = {{"A", "*", "rigns", "2", "because"}};
    EXPECT_THROW(apply_measured(tuning, unknown, "A", ""), Error);
    constexpr MeasuredFigure wrong[] = {{"A", "*", "rings", "0", "because"}};
    EXPECT_THROW(apply_measured(tuning, wrong, "A", ""), Error);
}

TEST(Tuning, WhatIsBuiltInIsInForceAndHasItsMeasurement) {
    for (const MeasuredFigure& row : measured_figures()) {
        EXPECT_STRNE(row.measurement, "") << row.figure;
        const std::string link = std::string(row.link) == "*" ? "" : row.link;
        const TuningFigure* const figure = find_figure(row.figure);
        ASSERT_NE(figure, nullptr) << row.figure;
        Tuning expected;
        apply_measured(expected, measured_figures(), row.model, link);
        const Tuning found = Tuning::from_text(row.model, link, "", "", nullptr);
        EXPECT_EQ(figure->text(found), figure->text(expected)) << row.figure;
    }
}

TEST(Tuning, EveryFigureIsDescribedOnce) {
    std::set<std::string> names;
    const auto& descriptions = Tuning::descriptions();
    ASSERT_EQ(descriptions.size(), Tuning::figures().size());
    for (std::size_t i = 0; i < descriptions.size(); ++i) {
        const TuningFigure& figure = Tuning::figures()[i];
        const SettingDescription& setting = descriptions[i];
        EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
        EXPECT_STREQ(setting.name, figure.name);
        EXPECT_EQ(find_figure(figure.name), &figure);
        EXPECT_STRNE(setting.meaning, "");
        EXPECT_STRNE(figure.evidence, "");
        EXPECT_LE(figure.least, figure.most) << figure.name;
        // What is documented as the default is one, and allowed.
        EXPECT_EQ(read("", "", {std::string("AWAKEN_TUNE=") + setting.name + "=" + setting.default_value}), Tuning{})
            << setting.name;
    }
    EXPECT_EQ(find_figure("nothing"), nullptr);
}

TEST_F(TuningFile, TheNamedFileIsReadAndMustExist) {
    const std::string file = write("my.conf", "rings = 3\n");
    EXPECT_EQ(Tuning::find("", "", file, nullptr).rings, 3U);
    const std::string pipe = (_folder / "pipe").string();
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    const std::string sparse = write("sparse.conf", "");
    fs::resize_file(sparse, std::uintmax_t{1} << 30);
    for (const std::string& wrong :
         {(_folder / "absent.conf").string(), _folder.string(), pipe, sparse, std::string("/dev/zero")}) {
        try {
            static_cast<void>(Tuning::find("", "", wrong, nullptr));
            ADD_FAILURE() << wrong;
        } catch (const Error& error) {
            EXPECT_NE(error.cause().find("the tuning file " + wrong + " cannot be read ("), std::string::npos)
                << error.what();
            EXPECT_EQ(error.cause().find("Success"), std::string::npos) << error.what();
        }
    }
    EXPECT_EQ(Tuning::find("", "", "/dev/null", nullptr), Tuning{});
}

TEST_F(TuningFile, TheUsersOwnFileIsReadWhenNoneIsNamed) {
    const std::string folder = _folder.string();
    Environment by_home{"PATH=/bin", "HOME=" + folder};
    Environment by_xdg{"HOME=/nonexistent", "XDG_CONFIG_HOME=" + folder + "/xdg"};
    Environment relative{"XDG_CONFIG_HOME=xdg", "HOME=" + folder};
    EXPECT_EQ(Tuning::default_file(by_home.get()), folder + "/.config/awaken/tuning.conf");
    EXPECT_EQ(Tuning::default_file(by_xdg.get()), folder + "/xdg/awaken/tuning.conf");
    EXPECT_EQ(Tuning::default_file(relative.get()), folder + "/.config/awaken/tuning.conf");
    EXPECT_EQ(Tuning::default_file(nullptr), "");
    EXPECT_EQ(Tuning::default_file(Environment{"HOMER=/x", "XDG_CONFIG_HOME="}.get()), "");

    EXPECT_EQ(Tuning::find("", "", "", by_home.get()), Tuning{});  // absent is fine
    write(".config/awaken/tuning.conf", "rings = 3\n");
    write("xdg/awaken/tuning.conf", "rings = 5\n");
    const std::string named = write("named.conf", "ring_chunks = 2\n");
    EXPECT_EQ(Tuning::find("", "", "", by_home.get()).rings, 3U);
    EXPECT_EQ(Tuning::find("", "", "", by_xdg.get()).rings, 5U);
    // One that is named is read instead, not as well.
    EXPECT_EQ(Tuning::find("", "", named, by_home.get()).rings, Tuning{}.rings);
    EXPECT_EQ(Tuning::find("", "", named, by_home.get()).ring_chunks, 2U);
    write(".config/awaken/tuning.conf", "nonsense\n");
    EXPECT_THROW(static_cast<void>(Tuning::find("", "", "", by_home.get())), Error);
}

TEST_F(TuningFile, OneThatNobodyNamedAndThatCannotBeOpenedIsAbsent) {
    // Links in a circle cannot be opened by anybody; folders without rights only by the administrator.
    std::filesystem::create_directories(_folder / ".config/awaken");
    const std::string file = (_folder / ".config/awaken/tuning.conf").string();
    std::filesystem::create_symlink(file, file);
    Environment by_home{"HOME=" + _folder.string()};
    EXPECT_EQ(Tuning::find("", "", "", by_home.get()), Tuning{});
    EXPECT_THROW(static_cast<void>(Tuning::find("", "", file, by_home.get())), Error);
    std::filesystem::remove(file);
    write(".config/awaken/tuning.conf", "rings = 3\n");
    std::filesystem::permissions(_folder / ".config", std::filesystem::perms::none);
    EXPECT_EQ(Tuning::find("", "", "", by_home.get()).rings, ::geteuid() == 0 ? 3U : Tuning{}.rings);
    std::filesystem::permissions(_folder / ".config", std::filesystem::perms::owner_all);
}

}  // namespace
}  // namespace awaken::transfer
