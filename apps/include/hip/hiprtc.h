// SPDX-License-Identifier: Apache-2.0
// The run-time compiler of HIP, as far as the programs under apps/ use it. See hip_runtime_api.h.
//
// runtime/gpu_runtime.cpp forwards the calls to libhiprtc on AMD and to libnvrtc on NVIDIA. A kernel that uses the
// language which both share (__global__, threadIdx, ...) compiles with either. As with HIPRTC, the code is for the
// current device where no option names another.
#ifndef AWAKEN_APPS_HIPRTC_H
#define AWAKEN_APPS_HIPRTC_H

#include <stddef.h>

#pragma GCC visibility push(hidden)

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hiprtcResult {
    HIPRTC_SUCCESS = 0,
    HIPRTC_ERROR_OUT_OF_MEMORY = 1,
    HIPRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,  ///< also: no run-time compiler was found; hiprtcGetErrorString tells
    HIPRTC_ERROR_INVALID_INPUT = 3,
    HIPRTC_ERROR_INVALID_PROGRAM = 4,
    HIPRTC_ERROR_INVALID_OPTION = 5,
    HIPRTC_ERROR_COMPILATION = 6,  ///< hiprtcGetProgramLog tells why
    HIPRTC_ERROR_INTERNAL_ERROR = 11
} hiprtcResult;

typedef struct _hiprtcProgram* hiprtcProgram;

/// Text for people; valid as long as the process.
const char* hiprtcGetErrorString(hiprtcResult result);

/// `name` appears in the compiler's messages. The headers, `count` texts and the names by which the source includes
/// them, may be none.
hiprtcResult hiprtcCreateProgram(hiprtcProgram* program, const char* source, const char* name, int count,
                                 const char** headers, const char** include_names);
hiprtcResult hiprtcDestroyProgram(hiprtcProgram* program);
hiprtcResult hiprtcCompileProgram(hiprtcProgram program, int count, const char** options);

/// The sizes include the final zero of a text.
hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram program, size_t* bytes);
hiprtcResult hiprtcGetProgramLog(hiprtcProgram program, char* log);
hiprtcResult hiprtcGetCodeSize(hiprtcProgram program, size_t* bytes);
/// What hipModuleLoadData takes.
hiprtcResult hiprtcGetCode(hiprtcProgram program, char* code);

#ifdef __cplusplus
}  // extern "C"
#endif

#pragma GCC visibility pop

#endif
