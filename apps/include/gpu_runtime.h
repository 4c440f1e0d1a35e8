// SPDX-License-Identifier: Apache-2.0
// What gpu_runtime.cpp tells beyond the HIP API.
#ifndef AWAKEN_APPS_GPU_RUNTIME_H
#define AWAKEN_APPS_GPU_RUNTIME_H

#pragma GCC visibility push(hidden)

#ifdef __cplusplus
extern "C" {
#endif

/// 1 where the HIP calls go to AMD's runtime, 0 where they go to NVIDIA's or no runtime was found. A program asks when
/// it opens another of the vendor's libraries, which must be of the same vendor.
int gpu_runtime_is_amd(void);
/// Path of the runtime's library; empty where none was found. Other libraries of the same release often lie beside it.
const char* gpu_runtime_path(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#pragma GCC visibility pop

#endif
