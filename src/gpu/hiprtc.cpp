// SPDX-License-Identifier: Apache-2.0
// HIPRTC, which compiles kernels for AMD's GPUs: where it may lie, and its functions.
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/dynamic_library.h"
#include "gpu/vendor.h"

namespace awaken::gpu {
namespace {

#define AWAKEN_HIPRTC_FUNCTIONS(X)                                                                         \
    X(version, "hiprtcVersion", true, int, int*, int*)                                                     \
    X(error_string, "hiprtcGetErrorString", true, const char*, int)                                        \
    X(create, "hiprtcCreateProgram", true, int, void**, const char*, const char*, int, const char* const*, \
      const char* const*)                                                                                  \
    X(destroy, "hiprtcDestroyProgram", true, int, void**)                                                  \
    X(compile, "hiprtcCompileProgram", true, int, void*, int, const char* const*)                          \
    X(log_size, "hiprtcGetProgramLogSize", true, int, void*, std::size_t*)                                 \
    X(log, "hiprtcGetProgramLog", true, int, void*, char*)                                                 \
    X(code_size, "hiprtcGetCodeSize", true, int, void*, std::size_t*)                                      \
    X(code, "hiprtcGetCode", true, int, void*, char*)

constexpr const char* kHiprtcStem = "libhiprtc";
constexpr const char* kHiprtcNames[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"};

/// The places where a compiler may lie, best first: loaded already; in the folder of the loaded runtime; inside the
/// loaded runtime (HIP 5 up to 5.4); known to the loader.
std::vector<std::string> hiprtc_paths() {
    std::vector<std::string> loaded;
    std::vector<std::string> beside;
    std::vector<std::string> inside;
    for (const std::string& path : loaded_object_paths()) {
        if (is_library_named(path, kHiprtcStem)) {
            loaded.push_back(path);
        }
        if (!is_library_named(path, hip_library().stem)) {
            continue;
        }
        inside.push_back(path);
        if (path.front() != '/') {
            continue;
        }
        for (const char* const file : kHiprtcNames) {
            beside.push_back(path.substr(0, path.rfind('/') + 1) + file);
        }
    }
    std::vector<std::string> paths = std::move(loaded);
    paths.insert(paths.end(), beside.begin(), beside.end());
    paths.insert(paths.end(), inside.begin(), inside.end());
    paths.insert(paths.end(), std::begin(kHiprtcNames), std::end(kHiprtcNames));
    paths.insert(paths.end(), hip_library().names.begin(), hip_library().names.end());
    return paths;
}

}  // namespace

std::unique_ptr<RuntimeCompiler> make_hiprtc(std::string& why_not) {
    std::string reasons;
    for (const std::string& path : hiprtc_paths()) {
        std::string reason;
        const DynamicLibrary library = DynamicLibrary::open({&path, 1}, reason);
        CompilerFunctions table;
        const FunctionSlot slots[] = {AWAKEN_HIPRTC_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
        // A runtime without compiler functions is no error here: the next place may have them.
        if (library && library.bind(slots, reason)) {
            return std::make_unique<RuntimeCompiler>("HIPRTC", library.path(), table);
        }
        reasons += (reasons.empty() ? "" : "; ") + reason;
    }
    why_not = "no run-time compiler (libhiprtc) can be loaded; install ROCm's package hip-runtime-amd: " + reasons;
    return nullptr;
}

}  // namespace awaken::gpu
