// SPDX-License-Identifier: Apache-2.0
// Clocks and links for the manifest: a stand-in for NVML, and the amdgpu driver's files.
#include "engine/device_facts.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace awaken::bench {
namespace {

namespace fs = std::filesystem;

TEST(DeviceFacts, AsksNvmlForTheDeviceOfThatBusId) {
    // Loaded by its path first: the loader then knows it by its name.
    void* const nvml = dlopen(AWAKEN_FAKE_NVML "/libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(nvml, nullptr) << dlerror();
    const DeviceFacts facts = device_facts(gpu::Vendor::cuda, "0000:1b:00.0");
    EXPECT_EQ(facts.clocks, "SM 1755 of 1980 MHz, memory 3201 of 3201 MHz");
    EXPECT_EQ(facts.links, "17 NVLinks");  // one of 18 is down
    const DeviceFacts unknown = device_facts(gpu::Vendor::cuda, "0000:ff:00.0");
    EXPECT_EQ(unknown.clocks + unknown.links, "");
    dlclose(nvml);
}

TEST(DeviceFacts, ReadsTheFilesOfAmdgpu) {
    char name[] = "/tmp/device-facts-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    const fs::path device = fs::path(name) / "bus/pci/devices/0000:c1:00.0";
    fs::create_directories(device);
    std::ofstream(device / "pp_dpm_sclk") << "0: 500Mhz\n1: 800Mhz *\n2: 1700Mhz\n";
    std::ofstream(device / "pp_dpm_mclk") << "0: 400Mhz\n1: 1600Mhz *\n";
    EXPECT_EQ(device_facts(gpu::Vendor::hip, "0000:c1:00.0", name).clocks,
              "shader 800 of 1700 MHz, memory 1600 of 1600 MHz");
    // What is not there, or is no list of clocks, tells nothing.
    EXPECT_EQ(device_facts(gpu::Vendor::hip, "0000:c2:00.0", name).clocks, "");
    std::ofstream(device / "pp_dpm_sclk") << "nonsense\n0: fast *\n";
    EXPECT_EQ(device_facts(gpu::Vendor::hip, "0000:c1:00.0", name).clocks, "memory 1600 of 1600 MHz");
    fs::remove_all(name);
}

TEST(DeviceFacts, WithoutAGpuThereIsNothing) {
    const DeviceFacts facts = device_facts(gpu::Vendor::none, "0000:1b:00.0");
    EXPECT_EQ(facts.clocks + facts.links, "");
}

}  // namespace
}  // namespace awaken::bench
