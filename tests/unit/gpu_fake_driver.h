// SPDX-License-Identifier: Apache-2.0
// The state of the driver in gpu_fake_driver.cpp.
#pragma once

#include <atomic>

struct FakeDriver {
    std::atomic<bool> initialised = false;
    int init_result = 0;  ///< of cuInit
    int devices = 1;
    int version = 13000;
    int attributes_result = 0;  ///< of cuPointerGetAttributes, which writes nothing
    std::atomic<int> init_calls = 0;
    std::atomic<int> count_calls = 0;
    std::atomic<int> attribute_calls = 0;
    std::atomic<void (*)()> while_counting = nullptr;  ///< called in the middle of cuDeviceGetCount, if any
};
