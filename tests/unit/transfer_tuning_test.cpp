// SPDX-License-Identifier: Apache-2.0
#include "transfer/tuning.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace awaken::transfer {
namespace {

using namespace std::chrono_literals;

Tuning read(std::vector<std::string> variables) {
    std::vector<char*> environment;
    for (std::string& entry : variables) {
        environment.push_back(entry.data());
    }
    environment.push_back(nullptr);
    return Tuning::from_environment(environment.data());
}

/// The text of the error that reading ends with; "" when it does not.
std::string refusal(const std::string& variable) {
    try {
        static_cast<void>(read({variable}));
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(Tuning, DefaultsWhenNothingIsSaid) {
    EXPECT_EQ(Tuning::from_environment(nullptr), Tuning{});
    // Set but empty is not set.
    EXPECT_EQ(read({"AWAKEN=0", "TUNE=x", "AWAKEN_TUNE", "AWAKEN_TUNE= ", "AWAKEN_TEST_TUNE="}), Tuning{});
}

TEST(Tuning, ReadsEachFigureFromItsVariable) {
    for (const auto& [variable, figures] : {std::pair{std::string("AWAKEN_TUNE="), Tuning::figures()},
                                            std::pair{std::string("AWAKEN_TEST_TUNE="), Tuning::test_figures()}}) {
        for (const TuningFigure& figure : figures) {
            // A value unlike the default, within the bounds.
            const std::string value = figure.unit == TuningFigure::Unit::bytes ? "32M" : "7";
            const Tuning changed = read({variable + figure.name + "=" + value});
            EXPECT_EQ(figure.text(changed), value) << figure.name;
            EXPECT_NE(changed, Tuning{}) << figure.name;
            Tuning back = changed;
            figure.set(back, figure.text(Tuning{}), figure.name);
            EXPECT_EQ(back, Tuning{}) << figure.name << " changes another";
        }
    }
    const Tuning several =
        read({"AWAKEN_TUNE=network_bytes=1K, copy_first_bytes = 0", "AWAKEN_TEST_TUNE=ring_chunks=2"});
    EXPECT_EQ(several.network_bytes, 1024U);
    EXPECT_EQ(several.copy_first_bytes, 0U);
    EXPECT_EQ(several.ring_chunks, 2U);
    EXPECT_EQ(read({"AWAKEN_TEST_TUNE=large_watch_us=1000000"}).large_watch, 1s);
}

TEST(Tuning, AFigureThatDoesNotExistIsAnErrorThatNamesAll) {
    const std::string all =
        "the figures are copy_first_bytes, host_offer_bytes, network_bytes, network_fragment_bytes, "
        "collective_overlap_blocks, collective_block_bytes, pack_direct_bytes, strided_pull_bytes";
    EXPECT_EQ(refusal("AWAKEN_TUNE=ring_chunks=4"), "AWAKEN_TUNE: there is no figure ring_chunks: " + all);
    EXPECT_EQ(refusal("AWAKEN_TUNE=netwrok_bytes=4"),
              "AWAKEN_TUNE: there is no figure netwrok_bytes: did you mean network_bytes? " + all);
    EXPECT_NE(refusal("AWAKEN_TEST_TUNE=network_bytes=4").find("AWAKEN_TEST_TUNE: there is no figure network_bytes"),
              std::string::npos);
}

TEST(Tuning, WhatIsNotUnderstoodIsRefused) {
    EXPECT_EQ(refusal("AWAKEN_TUNE=network_bytes=4,copy_first_bytes=2,network_bytes=4"),
              "AWAKEN_TUNE: network_bytes is set twice: remove one of the two");
    for (const char* const wrong : {"network_bytes", "network_bytes=", "=4", "network_bytes=4,", ",network_bytes=4",
                                    "network_bytes=4,,copy_first_bytes=2"}) {
        EXPECT_NE(refusal(std::string("AWAKEN_TUNE=") + wrong).find("write NAME=VALUE, separated by commas"),
                  std::string::npos)
            << wrong;
    }
    for (const char* const wrong : {"four", "4.0", "-1", "4K", "99999999999999999999"}) {
        EXPECT_EQ(refusal(std::string("AWAKEN_TUNE=collective_overlap_blocks=") + wrong),
                  std::string("AWAKEN_TUNE: collective_overlap_blocks=") + wrong +
                      " is not a whole number: use a number such as 4");
    }
    EXPECT_NE(refusal("AWAKEN_TUNE=network_bytes=1MB").find("AWAKEN_TUNE: network_bytes=1MB is not a number of bytes"),
              std::string::npos);
}

TEST(Tuning, BoundsAreChecked) {
    EXPECT_EQ(refusal("AWAKEN_TUNE=network_fragment_bytes=4095"),
              "AWAKEN_TUNE: network_fragment_bytes=4095 is out of bounds: use 4K to 1G");
    EXPECT_EQ(refusal("AWAKEN_TUNE=network_fragment_bytes=4K"), "");
    EXPECT_NE(refusal("AWAKEN_TUNE=network_fragment_bytes=2G"), "");
    EXPECT_NE(refusal("AWAKEN_TUNE=collective_overlap_blocks=0"), "");
    EXPECT_EQ(refusal("AWAKEN_TUNE=copy_first_bytes=0"), "");
    EXPECT_EQ(refusal("AWAKEN_TEST_TUNE=large_watch_us=60000001"),
              "AWAKEN_TEST_TUNE: large_watch_us=60000001 is out of bounds: use 0 to 60000000");
}

TEST(Tuning, EveryFigureIsDescribedOnce) {
    std::set<std::string> names;
    const auto& descriptions = Tuning::descriptions();
    ASSERT_EQ(descriptions.size(), Tuning::figures().size());
    for (std::size_t i = 0; i < descriptions.size(); ++i) {
        const SettingDescription& setting = descriptions[i];
        EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
        EXPECT_STREQ(setting.name, Tuning::figures()[i].name);
        EXPECT_STRNE(setting.meaning, "");
        // What is documented as the default is one, and allowed.
        EXPECT_EQ(read({std::string("AWAKEN_TUNE=") + setting.name + "=" + setting.default_value}), Tuning{})
            << setting.name;
    }
}

}  // namespace
}  // namespace awaken::transfer
