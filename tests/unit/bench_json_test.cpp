// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/printer.h"

namespace awaken::bench {
namespace {

std::vector<RunResult> example() {
    Measurement measurement;
    measurement.size = std::size_t{5} << 30;
    measurement.transmit_size = 12;
    measurement.iterations = 1000;
    measurement.average = 1.1;
    measurement.minimum = 0.3;
    measurement.maximum = 1.0 / 3;
    measurement.bandwidth = 12345.678;
    measurement.message_rate = 1e7;
    measurement.overlap = OverlapTimes{1, 2, 3, 4, 5, 6, 7, 8, 9};
    measurement.percentiles = {1.5, 2.5};
    measurement.cold_first = 99.5;
    measurement.samples = {1.1, 0.1, 1.0 / 3, 7e-300};
    measurement.iterations_per_sample = 16;
    measurement.summary = summarize(measurement.samples);
    measurement.stopped = StoppingCriterion::Reason::out_of_time;
    measurement.validated = true;
    measurement.errors = 3;
    measurement.first_error = "rank 1, element 17: 3 instead of 5";
    Measurement plain;
    plain.size = 4;

    RunResult run;
    run.test = find_test("iallreduce");
    run.type = ElementType::double_;
    run.ranks = 4;
    run.window_size = 64;
    run.pairs = 2;
    run.contenders = {{"native", Mode::waited, "", "MPICH 5.0.2", {measurement, plain}},
                      {"xccl", Mode::queued, "there is no libnccl.so.2", "", {}}};
    RunResult other = run;
    other.type = ElementType::char_;
    other.test = find_test("bw");
    RunResult one_sided = other;
    one_sided.test = find_test("put_bw");
    one_sided.window_creation = "MPI_Win_allocate";
    one_sided.synchronisation = "MPI_Win_flush";
    RunResult first = other;
    first.test = find_test("first");
    first.operation = "second exchange";
    first.allocation = std::size_t{1} << 33;
    RunResult halo = other;
    halo.test = find_test("halo");
    halo.kernels = 5;
    return {run, other, one_sided, first, halo};
}

const Manifest kManifest = {{{"mpi", "MPICH 5.0.2"}, {"a key", "a \"value\"\nof two lines"}}};

void expect_equal(const Measurement& a, const Measurement& b) {
    EXPECT_EQ(a.size, b.size);
    EXPECT_EQ(a.transmit_size, b.transmit_size);
    EXPECT_EQ(a.iterations, b.iterations);
    EXPECT_EQ(a.average, b.average);
    EXPECT_EQ(a.minimum, b.minimum);
    EXPECT_EQ(a.maximum, b.maximum);
    EXPECT_EQ(a.bandwidth, b.bandwidth);
    EXPECT_EQ(a.message_rate, b.message_rate);
    ASSERT_EQ(a.overlap.has_value(), b.overlap.has_value());
    if (a.overlap) {
        EXPECT_EQ(a.overlap->overall, b.overlap->overall);
        EXPECT_EQ(a.overlap->compute, b.overlap->compute);
        EXPECT_EQ(a.overlap->initiate, b.overlap->initiate);
        EXPECT_EQ(a.overlap->test, b.overlap->test);
        EXPECT_EQ(a.overlap->wait, b.overlap->wait);
        EXPECT_EQ(a.overlap->pure, b.overlap->pure);
        EXPECT_EQ(a.overlap->pure_minimum, b.overlap->pure_minimum);
        EXPECT_EQ(a.overlap->pure_maximum, b.overlap->pure_maximum);
        EXPECT_EQ(a.overlap->overlap_percent, b.overlap->overlap_percent);
    }
    EXPECT_EQ(a.percentiles, b.percentiles);
    EXPECT_EQ(a.cold_first, b.cold_first);
    EXPECT_EQ(a.samples, b.samples);
    EXPECT_EQ(a.iterations_per_sample, b.iterations_per_sample);
    EXPECT_EQ(a.summary.count, b.summary.count);
    EXPECT_EQ(a.summary.mean, b.summary.mean);
    EXPECT_EQ(a.summary.minimum, b.summary.minimum);
    EXPECT_EQ(a.summary.maximum, b.summary.maximum);
    EXPECT_EQ(a.summary.median, b.summary.median);
    EXPECT_EQ(a.summary.median_95.low, b.summary.median_95.low);
    EXPECT_EQ(a.summary.median_95.high, b.summary.median_95.high);
    EXPECT_EQ(a.summary.p50, b.summary.p50);
    EXPECT_EQ(a.summary.p90, b.summary.p90);
    EXPECT_EQ(a.summary.p99, b.summary.p99);
    EXPECT_EQ(a.stopped, b.stopped);
    EXPECT_EQ(a.validated, b.validated);
    EXPECT_EQ(a.errors, b.errors);
    EXPECT_EQ(a.first_error, b.first_error);
}

TEST(Json, GivesBackWhatItWasGiven) {
    const std::vector<RunResult> before = example();
    Manifest manifest;
    const std::vector<RunResult> after = from_json(to_json(before, {}, kManifest), &manifest);
    EXPECT_EQ(manifest.entries, kManifest.entries);
    ASSERT_EQ(after.size(), before.size());
    for (std::size_t run = 0; run < before.size(); ++run) {
        EXPECT_EQ(after[run].test, before[run].test);
        EXPECT_EQ(after[run].type, before[run].type);
        EXPECT_EQ(after[run].ranks, before[run].ranks);
        EXPECT_EQ(after[run].window_size, before[run].window_size);
        EXPECT_EQ(after[run].pairs, before[run].pairs);
        EXPECT_EQ(after[run].window_creation, before[run].window_creation);
        EXPECT_EQ(after[run].synchronisation, before[run].synchronisation);
        EXPECT_EQ(after[run].operation, before[run].operation);
        EXPECT_EQ(after[run].allocation, before[run].allocation);
        EXPECT_EQ(after[run].kernels, before[run].kernels);
        ASSERT_EQ(after[run].contenders.size(), before[run].contenders.size());
        for (std::size_t i = 0; i < before[run].contenders.size(); ++i) {
            const ContenderResult& a = after[run].contenders[i];
            const ContenderResult& b = before[run].contenders[i];
            EXPECT_EQ(a.name, b.name);
            EXPECT_EQ(a.mode, b.mode);
            EXPECT_EQ(a.unavailable, b.unavailable);
            EXPECT_EQ(a.description, b.description);
            ASSERT_EQ(a.measurements.size(), b.measurements.size());
            for (std::size_t m = 0; m < a.measurements.size(); ++m) {
                expect_equal(a.measurements[m], b.measurements[m]);
            }
        }
    }
}

// The names that docs/benchmarks-output.md promises to those who read the file with something else.
TEST(Json, HasTheDocumentedShape) {
    Options options;
    options.contenders.push_back({});
    options.contenders[0].name = "native";
    options.sides = {{BufferKind::device, false}, {BufferKind::managed, true}};
    options.derived_type = {DerivedType::Form::vector, 4, 2, {}};
    const nlohmann::json json = nlohmann::json::parse(to_json(example(), options, kManifest));
    EXPECT_EQ(json.at("schema"), "awaken-bench");
    EXPECT_EQ(json.at("version"), 1);
    EXPECT_EQ(json.at("manifest").at("mpi"), "MPICH 5.0.2");
    EXPECT_EQ(json.at("options").at("sides"), nlohmann::json::array({"D", "MD"}));
    EXPECT_TRUE(json.at("options").at("iterations").is_null());
    EXPECT_EQ(json.at("options").at("derived_type").at("stride_elements"), 4);
    EXPECT_EQ(json.at("options").at("derived_type").at("block_length_elements"), 2);
    EXPECT_EQ(json.at("options").at("contenders").at(0).at("kind"), "native");
    const nlohmann::json& run = json.at("runs").at(0);
    EXPECT_EQ(run.at("test"), "iallreduce");
    EXPECT_EQ(run.at("type"), "MPI_DOUBLE");
    const nlohmann::json& measurement = run.at("contenders").at(0).at("measurements").at(0);
    EXPECT_EQ(measurement.at("size"), std::size_t{5} << 30);
    EXPECT_EQ(measurement.at("samples_us").size(), 4U);
    EXPECT_EQ(measurement.at("summary").at("median_95_us").size(), 2U);
    EXPECT_EQ(measurement.at("stopped"), "out of time");
    EXPECT_TRUE(run.at("contenders").at(0).at("measurements").at(1).at("overlap").is_null());
    EXPECT_EQ(run.at("contenders").at(1).at("unavailable"), "there is no libnccl.so.2");
    EXPECT_FALSE(run.contains("synchronization"));
    EXPECT_EQ(json.at("runs").at(2).at("window_creation"), "MPI_Win_allocate");
    EXPECT_EQ(json.at("runs").at(2).at("synchronization"), "MPI_Win_flush");
    EXPECT_FALSE(run.contains("allocation"));
    EXPECT_EQ(json.at("runs").at(3).at("operation"), "second exchange");
    EXPECT_EQ(json.at("runs").at(3).at("allocation"), std::size_t{1} << 33);
    EXPECT_FALSE(run.contains("kernels"));
    EXPECT_EQ(json.at("runs").at(4).at("kernels"), 5);
}

TEST(Json, BytesThatAreNoTextDoNotStopIt) {
    const std::string text = to_json(example(), {}, {{{"environment", "NAME=\xff\xfe"}}});
    EXPECT_EQ(from_json(text).size(), example().size());
}

/// The message with which a file is refused after `change`; "" when it is not.
template <typename Change>
std::string refusal(const Change& change) {
    nlohmann::json json = nlohmann::json::parse(to_json(example(), {}, kManifest));
    change(json);
    try {
        (void)from_json(json.dump());
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST(Json, RefusesWhatItDoesNotKnowAndSaysWhere) {
    using nlohmann::json;
    EXPECT_EQ(refusal([](json&) {}), "");
    EXPECT_EQ(refusal([](json& j) { j["runs"][0]["new"] = 1; }), "") << "fields may be added";
    EXPECT_TRUE(contains(refusal([](json& j) { j["schema"] = "other"; }), "'other' instead of 'awaken-bench'"));
    EXPECT_TRUE(contains(refusal([](json& j) { j["version"] = 2; }), "version is 2"));
    EXPECT_TRUE(contains(refusal([](json& j) { j.erase("runs"); }), "has no 'runs'"));
    EXPECT_TRUE(contains(refusal([](json& j) { j["runs"] = 1; }), "runs is not a list"));
    EXPECT_TRUE(contains(refusal([](json& j) { j["runs"][1]["test"] = "latncy"; }), "runs[1].test is 'latncy'"));
    EXPECT_TRUE(contains(refusal([](json& j) { j["runs"][0]["type"] = "MPI_BYTE"; }), "runs[0].type is 'MPI_BYTE'"));
    EXPECT_TRUE(contains(refusal([](json& j) { j["runs"][0]["ranks"] = -1; }), "runs[0].ranks"));
    EXPECT_TRUE(contains(refusal([](json& j) { j["runs"][0]["contenders"][1]["mode"] = "fast"; }),
                         "runs[0].contenders[1].mode is 'fast'"));
    const auto measurement = [](json& j) -> json& { return j["runs"][0]["contenders"][0]["measurements"][0]; };
    EXPECT_TRUE(contains(refusal([&](json& j) { measurement(j)["average_us"] = "1"; }), "average_us is not a number"));
    EXPECT_TRUE(contains(refusal([&](json& j) { measurement(j)["size"] = 1.5; }), "size is not a whole number"));
    EXPECT_TRUE(contains(refusal([&](json& j) { measurement(j)["samples_us"][2] = nullptr; }), "samples_us"));
    EXPECT_TRUE(contains(refusal([&](json& j) { measurement(j).erase("cold_first_us"); }), "has no 'cold_first_us'"));
    EXPECT_TRUE(contains(refusal([&](json& j) { measurement(j)["stopped"] = "tired"; }), "'tired'"));
    EXPECT_TRUE(contains(refusal([&](json& j) { measurement(j)["summary"]["median_95_us"] = {1}; }), "is not a pair"));
    EXPECT_TRUE(contains(refusal([&](json& j) { measurement(j)["validated"] = 1; }), "is not true or false"));
}

TEST(Json, RefusesWhatIsNoJson) {
    for (const char* text : {"", "{", "[1, 2]", "# OSU MPI Latency Test v7.5\n", "null"}) {
        EXPECT_THROW((void)from_json(text), Error) << text;
    }
}

}  // namespace
}  // namespace awaken::bench
