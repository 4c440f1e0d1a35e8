// SPDX-License-Identifier: Apache-2.0
// What NVRTC and HIPRTC have in common here: they "compile" texts whose kernels the emulator was built with.
//
// The image they yield names the kernels; loading it finds them in the registry (core/kernel.h). Any other text is
// refused, with a log that says why.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "front_end.h"

namespace awaken::emulator {

/// The numbers of nvrtcResult and hiprtcResult.
enum class RtcResult : int {
    success = 0,
    out_of_memory = 1,
    program_creation_failure = 2,
    invalid_input = 3,
    invalid_program = 4,
    invalid_option = 5,
    compilation = 6,
    builtin_operation_failure = 7,
    no_name_expressions_after_compilation = 8,
    no_lowered_names_before_compilation = 9,
    name_expression_not_valid = 10,
    internal_error = 11
};

/// Their names after a vendor's prefix, in the order of the numbers. They live as long as the process.
[[nodiscard]] inline const std::vector<std::string>* names_of_results(const std::string& prefix) {
    auto* const names = new std::vector<std::string>;
    for (const char* const name :
         {"SUCCESS", "ERROR_OUT_OF_MEMORY", "ERROR_PROGRAM_CREATION_FAILURE", "ERROR_INVALID_INPUT",
          "ERROR_INVALID_PROGRAM", "ERROR_INVALID_OPTION", "ERROR_COMPILATION", "ERROR_BUILTIN_OPERATION_FAILURE",
          "ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION", "ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
          "ERROR_NAME_EXPRESSION_NOT_VALID", "ERROR_INTERNAL_ERROR"}) {
        names->push_back(prefix + name);
    }
    return names;
}

[[nodiscard]] inline const char* name_in(const std::vector<std::string>& names, int result, const char* otherwise) {
    const bool known = result >= 0 && static_cast<std::size_t>(result) < names.size();
    return known ? names[static_cast<std::size_t>(result)].c_str() : otherwise;
}

class RtcProgram {
  public:
    RtcProgram(const char* source, const char* name, int headers, const char* const* header_texts)
        : _source(source), _name(name && *name ? name : "default_program") {
        // A kernel may come with a header that the program hands over.
        for (int header = 0; header < headers; ++header) {
            _source.append("\n").append(header_texts[header]);
        }
    }

    RtcResult compile() {
        _compiled = true;
        std::vector<std::string> missing;
        std::vector<std::string> kernels = kernels_defined_in(_source);
        for (const std::string& kernel : kernels) {
            if (!find_kernel(kernel)) {
                missing.push_back(kernel);
            }
        }
        if (kernels.empty() || !missing.empty()) {
            _log = _name +
                   ": error: the emulated driver runs only kernels that it was built with (the headers in "
                   "src/gpu/kernels); ";
            if (kernels.empty()) {
                _log += "this text defines none";
            } else {
                _log += "unknown here:";
                for (const std::string& kernel : missing) {
                    _log += " " + kernel;
                }
            }
            _log += "\n";
            return RtcResult::compilation;
        }
        _image = make_image(kernels);
        _log.clear();
        return RtcResult::success;
    }

    RtcResult add_name(const char* expression) {
        if (!expression) {
            return RtcResult::invalid_input;
        }
        if (_compiled) {
            return RtcResult::no_name_expressions_after_compilation;
        }
        // extern "C" kernels: the name is the name.
        const char* bare = std::strrchr(expression, ':');
        bare = bare ? bare + 1 : expression;
        _lowered.insert_or_assign(expression, *bare == '&' ? bare + 1 : bare);
        return RtcResult::success;
    }

    RtcResult lowered_name(const char* expression, const char** lowered) const {
        if (!expression || !lowered) {
            return RtcResult::invalid_input;
        }
        if (!_compiled) {
            return RtcResult::no_lowered_names_before_compilation;
        }
        const auto at = _lowered.find(expression);
        if (at == _lowered.end()) {
            return RtcResult::name_expression_not_valid;
        }
        *lowered = at->second.c_str();
        return RtcResult::success;
    }

    /// With the ending zero, as the compilers count.
    [[nodiscard]] const std::string& log() const noexcept { return _log; }
    [[nodiscard]] const std::string& image() const noexcept { return _image; }

  private:
    std::string _source;
    std::string _name;
    std::string _log;
    std::string _image;
    std::map<std::string, std::string> _lowered;
    bool _compiled = false;
};

[[nodiscard]] inline Registry<RtcProgram>& rtc_programs() {
    static auto* const programs = new Registry<RtcProgram>;
    return *programs;
}

/// Runs `body` on the program behind `handle`, and lets no exception out.
template <typename Body>
[[nodiscard]] int with_program(const void* handle, Body&& body) noexcept {
    try {
        const std::shared_ptr<RtcProgram> program = rtc_programs().find(handle);
        return static_cast<int>(program ? body(*program) : RtcResult::invalid_program);
    } catch (const std::bad_alloc&) {
        return static_cast<int>(RtcResult::out_of_memory);
    } catch (...) {
        return static_cast<int>(RtcResult::internal_error);
    }
}

[[nodiscard]] inline int put_version(int major, int minor, int* major_place, int* minor_place) noexcept {
    if (!major_place || !minor_place) {
        return static_cast<int>(RtcResult::invalid_input);
    }
    *major_place = major;
    *minor_place = minor;
    return 0;
}

/// Size of the log or image, with the ending zero.
[[nodiscard]] inline int put_size(const void* handle, std::size_t* size,
                                  const std::string& (RtcProgram::*part)() const noexcept) noexcept {
    return with_program(handle, [&](const RtcProgram& program) {
        if (!size) {
            return RtcResult::invalid_input;
        }
        *size = (program.*part)().size() + 1;
        return RtcResult::success;
    });
}

[[nodiscard]] inline int put_content(const void* handle, char* buffer,
                                     const std::string& (RtcProgram::*part)() const noexcept) noexcept {
    return with_program(handle, [&](const RtcProgram& program) {
        if (!buffer) {
            return RtcResult::invalid_input;
        }
        const std::string& content = (program.*part)();
        std::memcpy(buffer, content.c_str(), content.size() + 1);
        return RtcResult::success;
    });
}

}  // namespace awaken::emulator
