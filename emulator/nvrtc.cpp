// SPDX-License-Identifier: Apache-2.0
// libnvrtc.so.12 and .13: CUDA's run-time compiler. See rtc_program.h.
#include "rtc_program.h"

#ifndef AWAKEN_NVRTC_VERSION
#error "AWAKEN_NVRTC_VERSION must be 12 or 13"
#endif

using namespace awaken::emulator;

using nvrtcResult = int;
using nvrtcProgram = void*;

#define AWAKEN_CALL(name) nvrtc##name
#include "calls/rtc_calls.h"
#undef AWAKEN_CALL

AWAKEN_EXPORT const char* nvrtcGetErrorString(nvrtcResult result) {
    static const std::vector<std::string>* const names = names_of_results("NVRTC_");
    return name_in(*names, result, "NVRTC_ERROR unknown");
}

AWAKEN_EXPORT nvrtcResult nvrtcVersion(int* major, int* minor) {
    return put_version(AWAKEN_NVRTC_VERSION, AWAKEN_NVRTC_VERSION == 12 ? 9 : 0, major, minor);
}

AWAKEN_EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    if (!count) {
        return static_cast<nvrtcResult>(RtcResult::invalid_input);
    }
    *count = 1;
    return 0;
}

AWAKEN_EXPORT nvrtcResult nvrtcGetSupportedArchs(int* architectures) {
    if (!architectures) {
        return static_cast<nvrtcResult>(RtcResult::invalid_input);
    }
    architectures[0] = 90;
    return 0;
}

/// PTX and machine code are the same image here.
AWAKEN_EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, std::size_t* size) {
    return put_size(program, size, &RtcProgram::image);
}
AWAKEN_EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* image) {
    return put_content(program, image, &RtcProgram::image);
}
AWAKEN_EXPORT_ALSO(nvrtcGetCUBINSize, nvrtcGetPTXSize);
AWAKEN_EXPORT_ALSO(nvrtcGetCUBIN, nvrtcGetPTX);
