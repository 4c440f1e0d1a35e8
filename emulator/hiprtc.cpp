// HIP's run-time compiler: part of libamdhip64.so.5, a library of its own (libhiprtc.so) since ROCm 6. See
// rtc_program.h.
#include "rtc_program.h"

using namespace awaken::emulator;

using hiprtcResult = int;
using hiprtcProgram = void*;

AWAKEN_EXPORT const char* hiprtcGetErrorString(hiprtcResult result) {
    static const std::vector<std::string>* const names = names_of_results("HIPRTC_");
    return name_in(*names, result, "Invalid HIPRTC error code");
}

AWAKEN_EXPORT hiprtcResult hiprtcVersion(int* major, int* minor) {
    return put_version(9, 0, major, minor);
}

AWAKEN_EXPORT hiprtcResult hiprtcCreateProgram(hiprtcProgram* program, const char* source, const char* name,
                                               int headers, const char* const* header_texts, const char* const*) {
    return create_program(program, source, name, headers, header_texts);
}
AWAKEN_EXPORT hiprtcResult hiprtcDestroyProgram(hiprtcProgram* program) {
    return destroy_program(program);
}
AWAKEN_EXPORT hiprtcResult hiprtcCompileProgram(hiprtcProgram program, int, const char* const*) {
    return compile_program(program);
}
AWAKEN_EXPORT hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram program, std::size_t* size) {
    return put_size(program, size, &RtcProgram::log);
}
AWAKEN_EXPORT hiprtcResult hiprtcGetProgramLog(hiprtcProgram program, char* log) {
    return put_content(program, log, &RtcProgram::log);
}
AWAKEN_EXPORT hiprtcResult hiprtcGetCodeSize(hiprtcProgram program, std::size_t* size) {
    return put_size(program, size, &RtcProgram::image);
}
AWAKEN_EXPORT hiprtcResult hiprtcGetCode(hiprtcProgram program, char* image) {
    return put_content(program, image, &RtcProgram::image);
}

AWAKEN_EXPORT hiprtcResult hiprtcAddNameExpression(hiprtcProgram program, const char* expression) {
    return with_program(program, [&](RtcProgram& found) { return found.add_name(expression); });
}
AWAKEN_EXPORT hiprtcResult hiprtcGetLoweredName(hiprtcProgram program, const char* expression, const char** lowered) {
    return with_program(program, [&](const RtcProgram& found) { return found.lowered_name(expression, lowered); });
}
