// The GPU side of what the programs under apps/ have in common.
#pragma once

#include <hip/hip_runtime.h>

#include <string>

#include "program.h"

#ifndef __HIP_PLATFORM_AMD__
#include <gpu_runtime.h>
#endif

/// Ends the job with a message when a HIP call fails: one rank cannot go on without its GPU, and the others would wait
/// for it.
#define HIP_CHECK(call)                                                                                        \
    do {                                                                                                       \
        const hipError_t hip_check_error = (call);                                                             \
        if (hip_check_error != hipSuccess) {                                                                   \
            std::fprintf(stderr, "rank %d: %s:%d: %s: %s\n", apps::rank_of_world(), __FILE__, __LINE__, #call, \
                         hipGetErrorString(hip_check_error));                                                  \
            apps::end_job();                                                                                   \
        }                                                                                                      \
    } while (false)

namespace apps {

/// Whether the GPU runtime in use is AMD's, and so the libraries that go with it.
[[nodiscard]] inline bool runtime_is_amd() {
#ifdef __HIP_PLATFORM_AMD__
    return true;
#else
    return gpu_runtime_is_amd() != 0;
#endif
}

/// Makes device `rank % count` this rank's device and returns its number. Ends all ranks with exit_misuse where a rank
/// has no device. Collective.
inline int select_device(const std::string& program) {
    int count = 0;
    const hipError_t error = hipGetDeviceCount(&count);
    std::string problem;
    if (error != hipSuccess) {
        problem = hipGetErrorString(error);
    } else if (count == 0) {
        problem = "no GPU is visible to rank " + std::to_string(rank_of_world());
    }
    leave_if(program, problem);
    const int device = rank_of_world() % count;
    HIP_CHECK(hipSetDevice(device));
    return device;
}

}  // namespace apps
