// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace awaken {
namespace {

Settings read(std::vector<std::string> entries) {
    std::vector<char*> environment;
    for (std::string& entry : entries) {
        environment.push_back(entry.data());
    }
    environment.push_back(nullptr);
    return Settings::from_environment(environment.data());
}

/// The text of the error that reading ends with; "" when it does not.
std::string refusal(const std::string& entry) {
    try {
        read({entry});
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(Settings, DefaultsWhenNothingIsSet) {
    for (const Settings& settings : {read({}), read({"PATH=/bin", "AWAKENING=1", "NOAWAKEN_GPU=3", "AWAKEN_GPU="})}) {
        EXPECT_TRUE(settings.enabled);
        EXPECT_EQ(settings.gpu, gpu::Choice::automatic);
        EXPECT_EQ(settings.pinned_pool_bytes, std::size_t{64} << 20);
        EXPECT_FALSE(settings.report);
        EXPECT_EQ(settings.report_file, "");
        EXPECT_FALSE(settings.check);
        EXPECT_EQ(settings.trace_folder, "");
        EXPECT_EQ(settings.trace_limit_bytes, std::size_t{64} << 20);
        EXPECT_EQ(settings.mpi_library, "");
        EXPECT_EQ(settings.job, "");
        EXPECT_EQ(settings.pretended_nodes, 1);
        EXPECT_EQ(settings.path, NodePath::automatic);
        EXPECT_EQ(settings.copy, CopyEngine::automatic);
        EXPECT_TRUE(settings.cpu_copy);
        EXPECT_EQ(settings.default_stream, DefaultStream::wait);
        EXPECT_TRUE(settings.nodes);
        EXPECT_EQ(settings.native_gpu, NativeGpu::automatic);
    }
    EXPECT_TRUE(Settings::from_environment(nullptr).enabled);
}

TEST(Settings, ReadsEachVariable) {
    const Settings settings =
        read({"AWAKEN=0", "AWAKEN_GPU=hip", "AWAKEN_PINNED_POOL=3M", "AWAKEN_REPORT=a=b.json", "AWAKEN_CHECK=1",
              "AWAKEN_MPI=/opt/mpi/lib/libmpi.so", "AWAKEN_JOB=run 7", "AWAKEN_TEST_NODES=2", "AWAKEN_PATH=ring",
              "AWAKEN_TEST_COPY=kernel", "AWAKEN_TEST_CPU_COPY=0", "AWAKEN_NODES=0", "AWAKEN_NATIVE_GPU=no",
              "AWAKEN_TRACE=run/1", "AWAKEN_TRACE_LIMIT=2G", "AWAKEN_DEFAULT_STREAM=trust"});
    EXPECT_EQ(settings.default_stream, DefaultStream::trust);
    EXPECT_EQ(settings.trace_folder, "run/1");
    EXPECT_EQ(settings.trace_limit_bytes, std::size_t{2} << 30);
    EXPECT_EQ(settings.job, "run 7");
    EXPECT_EQ(settings.pretended_nodes, 2);
    EXPECT_EQ(settings.path, NodePath::ring);
    EXPECT_EQ(settings.copy, CopyEngine::kernel);
    EXPECT_FALSE(settings.cpu_copy);
    EXPECT_FALSE(settings.nodes);
    EXPECT_EQ(settings.native_gpu, NativeGpu::no);
    EXPECT_FALSE(settings.enabled);
    EXPECT_EQ(settings.gpu, gpu::Choice::hip);
    EXPECT_EQ(settings.pinned_pool_bytes, std::size_t{3} << 20);
    EXPECT_TRUE(settings.report);
    EXPECT_EQ(settings.report_file, "a=b.json");
    EXPECT_TRUE(settings.check);
    EXPECT_EQ(settings.mpi_library, "/opt/mpi/lib/libmpi.so");
}

TEST(Settings, Gpu) {
    EXPECT_EQ(read({"AWAKEN_GPU=auto"}).gpu, gpu::Choice::automatic);
    EXPECT_EQ(read({"AWAKEN_GPU=CUDA"}).gpu, gpu::Choice::cuda);
    EXPECT_EQ(read({"AWAKEN_GPU=none"}).gpu, gpu::Choice::none);
    EXPECT_EQ(refusal("AWAKEN_GPU=cud"), "AWAKEN_GPU=cud is not a GPU runtime: use auto, cuda, hip or none");
}

TEST(Settings, WordsOfThePaths) {
    EXPECT_EQ(read({"AWAKEN_PATH=Auto"}).path, NodePath::automatic);
    EXPECT_EQ(read({"AWAKEN_PATH=direct"}).path, NodePath::direct);
    EXPECT_EQ(read({"AWAKEN_PATH=staged"}).path, NodePath::staged);
    EXPECT_EQ(refusal("AWAKEN_PATH=ipc"),
              "AWAKEN_PATH=ipc is not a path between GPUs: use auto, direct, ring or staged");
    EXPECT_EQ(read({"AWAKEN_TEST_COPY=auto"}).copy, CopyEngine::automatic);
    EXPECT_EQ(read({"AWAKEN_TEST_COPY=engine"}).copy, CopyEngine::engine);
    EXPECT_EQ(refusal("AWAKEN_TEST_COPY=dma"),
              "AWAKEN_TEST_COPY=dma is not a way to copy between GPUs: use auto, engine or kernel");
    EXPECT_EQ(read({"AWAKEN_NATIVE_GPU=yes"}).native_gpu, NativeGpu::yes);
    EXPECT_EQ(read({"AWAKEN_NATIVE_GPU=auto"}).native_gpu, NativeGpu::automatic);
    EXPECT_EQ(refusal("AWAKEN_NATIVE_GPU=1"),
              "AWAKEN_NATIVE_GPU=1 is not an answer to whether the MPI takes device memory: use auto, yes or no");
    EXPECT_EQ(read({"AWAKEN_DEFAULT_STREAM=wait"}).default_stream, DefaultStream::wait);
    EXPECT_EQ(
        refusal("AWAKEN_DEFAULT_STREAM=off"),
        "AWAKEN_DEFAULT_STREAM=off is not a way to treat the default stream: use wait, trust, order or order,check");
    EXPECT_EQ(refusal("AWAKEN_NODES=2"), "AWAKEN_NODES=2 is neither on nor off: use 1 or 0");
    EXPECT_EQ(refusal("AWAKEN_TEST_CPU_COPY=x"), "AWAKEN_TEST_CPU_COPY=x is neither on nor off: use 1 or 0");
}

TEST(Settings, PretendedNodes) {
    EXPECT_EQ(read({"AWAKEN_TEST_NODES=16"}).pretended_nodes, 16);
    for (const char* const wrong : {"0", "-1", "two", "2x", "1.5", " 2", "99999999999"}) {
        EXPECT_EQ(
            refusal(std::string("AWAKEN_TEST_NODES=") + wrong),
            std::string("AWAKEN_TEST_NODES=") + wrong + " is not a number of nodes: use a whole number from 1 on");
    }
}

TEST(Settings, FiguresOfTheTuningAreLeftToIt) {
    EXPECT_EQ(refusal("AWAKEN_TUNE=nonsense"), "");
    EXPECT_NE(refusal("AWAKEN_TUNING=x").find("did you mean AWAKEN_TUNE?"), std::string::npos);
}

TEST(Settings, Switches) {
    for (const char* const yes : {"1", "on", "ON", "yes", "true"}) {
        EXPECT_TRUE(read({std::string("AWAKEN_CHECK=") + yes}).check);
    }
    for (const char* const no : {"0", "off", "No", "false"}) {
        EXPECT_FALSE(read({std::string("AWAKEN=") + no}).enabled);
    }
    EXPECT_EQ(refusal("AWAKEN=maybe"), "AWAKEN=maybe is neither on nor off: use 1 or 0");
    EXPECT_EQ(refusal("AWAKEN_CHECK=2"), "AWAKEN_CHECK=2 is neither on nor off: use 1 or 0");
}

TEST(Settings, Report) {
    EXPECT_FALSE(read({"AWAKEN_REPORT=0"}).report);
    EXPECT_TRUE(read({"AWAKEN_REPORT=1"}).report);
    EXPECT_EQ(read({"AWAKEN_REPORT=1"}).report_file, "");
    EXPECT_EQ(read({"AWAKEN_REPORT=report.txt"}).report_file, "report.txt");
    for (const char* const no : {"AWAKEN_REPORT=off", "AWAKEN_REPORT=No", "AWAKEN_REPORT=false"}) {
        EXPECT_FALSE(read({no}).report) << no;
    }
    for (const char* const yes : {"AWAKEN_REPORT=on", "AWAKEN_REPORT=YES", "AWAKEN_REPORT=true"}) {
        EXPECT_TRUE(read({yes}).report) << yes;
        EXPECT_EQ(read({yes}).report_file, "") << yes;
    }
    EXPECT_EQ(read({"AWAKEN_REPORT=./true"}).report_file, "./true");
}

TEST(Settings, SwitchesAreNoFoldersOfTraces) {
    EXPECT_EQ(read({"AWAKEN_TRACE=0"}).trace_folder, "");
    EXPECT_EQ(read({"AWAKEN_TRACE=off"}).trace_folder, "");
    EXPECT_EQ(read({"AWAKEN_TRACE=./1"}).trace_folder, "./1");
    EXPECT_EQ(refusal("AWAKEN_TRACE=1"), "AWAKEN_TRACE=1 names no folder: give the folder, such as run1; ./1 is one");
}

TEST(Settings, BytesNameTheVariable) {
    EXPECT_EQ(
        refusal("AWAKEN_PINNED_POOL=64MB"),
        "AWAKEN_PINNED_POOL=64MB is not a number of bytes: use a number of bytes with an optional K, M or G, such as "
        "64M");
}

TEST(Settings, AMisspelledNameIsAnErrorWithTheNearestName) {
    EXPECT_EQ(
        refusal("AWAKEN_GUP=cuda"),
        "AWAKEN_GUP is not a setting of Awaken: did you mean AWAKEN_GPU? awaken exec --settings lists all settings");
    EXPECT_NE(refusal("AWAKEN_PINED_POOL=1").find("did you mean AWAKEN_PINNED_POOL?"), std::string::npos);
    EXPECT_NE(refusal("AWAKEN_TEST_FAULT=x").find("did you mean AWAKEN_TEST_FAULTS?"), std::string::npos);
    const std::string far = refusal("AWAKEN_COMPLETELY_DIFFERENT=1");
    EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
    EXPECT_NE(far.find("awaken exec --settings"), std::string::npos) << far;
    EXPECT_NE(refusal("AWAKEN_GUP="), "");  // misspelled is misspelled, set or empty
}

TEST(Settings, OthersVariablesAreAcceptedUnread) {
    for (const char* const entry : {"AWAKEN_EMULATE=nonsense", "AWAKEN_EMULATE_MEMORY=?", "AWAKEN_TEST_FAULTS=!",
                                    "AWAKEN_TEST_DELAY_US=x", "AWAKEN_LIBRARY=/somewhere"}) {
        EXPECT_EQ(refusal(entry), "") << entry;
    }
}

TEST(Settings, EveryVariableIsDescribedOnce) {
    std::set<std::string> names;
    std::vector<SettingDescription> all = Settings::descriptions();
    all.insert(all.end(), Settings::test_switches().begin(), Settings::test_switches().end());
    for (const SettingDescription& setting : all) {
        EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
        EXPECT_STRNE(setting.values, "") << setting.name;
        EXPECT_STRNE(setting.meaning, "") << setting.name;
        EXPECT_NE(setting.default_value, nullptr) << setting.name;
        // What is documented as the default is one.
        EXPECT_EQ(refusal(std::string(setting.name) + "=" + setting.default_value), "") << setting.name;
    }
    for (const char* const name : {"AWAKEN",
                                   "AWAKEN_GPU",
                                   "AWAKEN_PINNED_POOL",
                                   "AWAKEN_REPORT",
                                   "AWAKEN_CHECK",
                                   "AWAKEN_TRACE",
                                   "AWAKEN_TRACE_LIMIT",
                                   "AWAKEN_MPI",
                                   "AWAKEN_LIBRARY",
                                   "AWAKEN_JOB",
                                   "AWAKEN_TEST_NODES",
                                   "AWAKEN_PATH",
                                   "AWAKEN_TEST_COPY",
                                   "AWAKEN_TEST_CPU_COPY",
                                   "AWAKEN_TEST_KERNELS",
                                   "AWAKEN_DEFAULT_STREAM",
                                   "AWAKEN_NODES",
                                   "AWAKEN_COLLECTIVES",
                                   "AWAKEN_NATIVE_GPU",
                                   "AWAKEN_TEST_TUNE",
                                   "AWAKEN_TUNE",
                                   "AWAKEN_EMULATE",
                                   "AWAKEN_EMULATE_MEMORY",
                                   "AWAKEN_EMULATE_CONNECTIONS",
                                   "AWAKEN_TEST_FAULTS",
                                   "AWAKEN_TEST_DELAY_US",
                                   "AWAKEN_TEST_DELAYS",
                                   "AWAKEN_TEST_QUEUE",
                                   "AWAKEN_TEST_IPC_OPEN_US",
                                   "AWAKEN_TEST_BUSY"}) {
        EXPECT_EQ(names.count(name), 1U) << name;
    }
}

TEST(ParseBytes, NumbersAndSuffixes) {
    EXPECT_EQ(parse_bytes("0", "x"), 0U);
    EXPECT_EQ(parse_bytes("123", "x"), 123U);
    EXPECT_EQ(parse_bytes("1K", "x"), 1024U);
    EXPECT_EQ(parse_bytes("64M", "x"), 67108864U);
    EXPECT_EQ(parse_bytes("2g", "x"), std::size_t{2} << 30);
    EXPECT_EQ(parse_bytes("18446744073709551615", "x"), ~std::size_t{0});
}

TEST(ParseBytes, RefusesEverythingElse) {
    for (const char* const text : {"", "M", "-1", "+1", "1.5M", " 1", "1 ", "1MB", "1T", "0x10", "1M1"}) {
        EXPECT_THROW(static_cast<void>(parse_bytes(text, "x")), Error) << '"' << text << '"';
    }
    for (const char* const text : {"18446744073709551616", "99999999999999999999", "17179869184G"}) {
        try {
            static_cast<void>(parse_bytes(text, "x"));
            ADD_FAILURE() << text;
        } catch (const Error& error) {
            EXPECT_NE(error.cause().find("is too large"), std::string::npos) << error.what();
        }
    }
}

}  // namespace
}  // namespace awaken
