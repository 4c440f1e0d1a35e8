// SPDX-License-Identifier: Apache-2.0
// Calls of NVRTC and HIPRTC, which have the same names after a beginning of their own.
//
// Included once by each of their .cpp files, which says how names begin (AWAKEN_CALL).
#pragma once

#include "rtc_program.h"

AWAKEN_EXPORT int AWAKEN_CALL(CreateProgram)(void** program, const char* source, const char* name, int headers,
                                             const char* const* header_texts, const char* const*) {
    if (!program || !source || headers < 0 || (headers > 0 && !header_texts)) {
        return static_cast<int>(RtcResult::invalid_input);
    }
    try {
        *program = rtc_programs().add(std::make_shared<RtcProgram>(source, name, headers, header_texts));
        return static_cast<int>(RtcResult::success);
    } catch (...) {
        return static_cast<int>(RtcResult::out_of_memory);
    }
}

AWAKEN_EXPORT int AWAKEN_CALL(DestroyProgram)(void** program) {
    if (!program || !rtc_programs().remove(*program)) {
        return static_cast<int>(RtcResult::invalid_program);
    }
    *program = nullptr;
    return static_cast<int>(RtcResult::success);
}

AWAKEN_EXPORT int AWAKEN_CALL(CompileProgram)(void* program, int, const char* const*) {
    return with_program(program, [](RtcProgram& found) { return found.compile(); });
}

AWAKEN_EXPORT int AWAKEN_CALL(GetProgramLogSize)(void* program, std::size_t* size) {
    return put_size(program, size, &RtcProgram::log);
}
AWAKEN_EXPORT int AWAKEN_CALL(GetProgramLog)(void* program, char* log) {
    return put_content(program, log, &RtcProgram::log);
}

AWAKEN_EXPORT int AWAKEN_CALL(AddNameExpression)(void* program, const char* expression) {
    return with_program(program, [&](RtcProgram& found) { return found.add_name(expression); });
}
AWAKEN_EXPORT int AWAKEN_CALL(GetLoweredName)(void* program, const char* expression, const char** lowered) {
    return with_program(program, [&](const RtcProgram& found) { return found.lowered_name(expression, lowered); });
}
