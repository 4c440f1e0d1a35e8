// SPDX-License-Identifier: Apache-2.0
// HIP's run-time compiler: part of libamdhip64.so.5, a library of its own (libhiprtc.so) since ROCm 6. See
// rtc_program.h.
#include "rtc_program.h"

using namespace awaken::emulator;

using hiprtcResult = int;
using hiprtcProgram = void*;

#define AWAKEN_CALL(name) hiprtc##name
#include "calls/rtc_calls.h"
#undef AWAKEN_CALL

AWAKEN_EXPORT const char* hiprtcGetErrorString(hiprtcResult result) {
    static const std::vector<std::string>* const names = names_of_results("HIPRTC_");
    return name_in(*names, result, "Invalid HIPRTC error code");
}

AWAKEN_EXPORT hiprtcResult hiprtcVersion(int* major, int* minor) {
    return put_version(9, 0, major, minor);
}

AWAKEN_EXPORT hiprtcResult hiprtcGetCodeSize(hiprtcProgram program, std::size_t* size) {
    return put_size(program, size, &RtcProgram::image);
}
AWAKEN_EXPORT hiprtcResult hiprtcGetCode(hiprtcProgram program, char* image) {
    return put_content(program, image, &RtcProgram::image);
}
