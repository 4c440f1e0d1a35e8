// SPDX-License-Identifier: Apache-2.0
// NVRTC, which compiles kernels for NVIDIA's GPUs: where it may lie, and its functions.
#include <dirent.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gpu/dynamic_library.h"
#include "gpu/vendor.h"

namespace awaken::gpu {
namespace {

#define AWAKEN_NVRTC_FUNCTIONS(X)                                                                         \
    X(version, "nvrtcVersion", true, int, int*, int*)                                                     \
    X(error_string, "nvrtcGetErrorString", true, const char*, int)                                        \
    X(create, "nvrtcCreateProgram", true, int, void**, const char*, const char*, int, const char* const*, \
      const char* const*)                                                                                 \
    X(destroy, "nvrtcDestroyProgram", true, int, void**)                                                  \
    X(compile, "nvrtcCompileProgram", true, int, void*, int, const char* const*)                          \
    X(log_size, "nvrtcGetProgramLogSize", true, int, void*, std::size_t*)                                 \
    X(log, "nvrtcGetProgramLog", true, int, void*, char*)                                                 \
    X(code_size, "nvrtcGetCUBINSize", true, int, void*, std::size_t*)                                     \
    X(code, "nvrtcGetCUBIN", true, int, void*, char*)                                                     \
    X(portable_size, "nvrtcGetPTXSize", true, int, void*, std::size_t*)                                   \
    X(portable, "nvrtcGetPTX", true, int, void*, char*)

constexpr const char* kNvrtcStem = "libnvrtc";
constexpr const char* kNvrtcNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};

/// Compilers in `directory`, newest version first.
void add_compilers_in(const std::string& directory, std::vector<std::string>& paths) {
    const std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(directory.c_str()), &::closedir);
    if (handle == nullptr) {
        return;
    }
    std::vector<std::string> found;
    while (const dirent* const entry = ::readdir(handle.get())) {
        if (is_library_named(entry->d_name, kNvrtcStem)) {
            found.push_back(directory + "/" + entry->d_name);
        }
    }
    std::sort(found.rbegin(), found.rend());
    paths.insert(paths.end(), found.begin(), found.end());
}

/// The places where a compiler may lie. Those come first whose compiler most likely fits the CUDA that the program
/// uses: loaded already; beside the loaded CUDA libraries (a toolkit's folder, or the folders that NVIDIA's Python
/// packages share); known to the loader; in the toolkit that the environment names.
std::vector<std::string> nvrtc_paths() {
    std::vector<std::string> paths;
    std::vector<std::string> directories;
    const auto add_directory = [&directories](const std::string& directory) {
        if (std::find(directories.begin(), directories.end(), directory) == directories.end()) {
            directories.push_back(directory);
        }
    };
    for (const std::string& path : loaded_object_paths()) {
        if (is_library_named(path, kNvrtcStem)) {
            paths.push_back(path);
        }
        if (path.front() != '/') {
            continue;
        }
        for (const char* const stem :
             {"libcudart", "libcublas", "libcublasLt", "libcufft", "libcusparse", "libcurand"}) {
            if (!is_library_named(path, stem)) {
                continue;
            }
            add_directory(path.substr(0, path.rfind('/')));
            // site-packages/nvidia/<package>/lib/libcudart.so.12: its siblings are site-packages/nvidia/*/lib.
            const std::size_t packages = path.rfind("/nvidia/");
            if (packages == std::string::npos) {
                continue;
            }
            const std::string root = path.substr(0, packages) + "/nvidia";
            const std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(root.c_str()), &::closedir);
            while (const dirent* const entry = handle != nullptr ? ::readdir(handle.get()) : nullptr) {
                if (entry->d_name[0] != '.') {
                    add_directory(root + "/" + entry->d_name + "/lib");
                }
            }
        }
    }
    for (const std::string& directory : directories) {
        add_compilers_in(directory, paths);
    }
    paths.insert(paths.end(), std::begin(kNvrtcNames), std::end(kNvrtcNames));
    for (const char* const variable : {"CUDA_HOME", "CUDA_PATH"}) {
        if (const char* const root = ::secure_getenv(variable); root != nullptr && *root == '/') {
            add_compilers_in(std::string(root) + "/lib64", paths);
            add_compilers_in(std::string(root) + "/lib", paths);
        }
    }
    add_compilers_in("/usr/local/cuda/lib64", paths);
    return paths;
}

}  // namespace

std::unique_ptr<RuntimeCompiler> make_nvrtc(std::string& why_not) {
    const std::vector<std::string> paths = nvrtc_paths();
    const DynamicLibrary library = DynamicLibrary::open(paths, why_not);
    if (!library) {
        why_not =
            "no run-time compiler (libnvrtc) can be loaded; install the package nvidia-cuda-nvrtc or set CUDA_HOME: " +
            why_not;
        return nullptr;
    }
    CompilerFunctions table;
    const FunctionSlot slots[] = {AWAKEN_NVRTC_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
    if (!library.bind(slots, why_not)) {
        return nullptr;
    }
    return std::make_unique<RuntimeCompiler>("NVRTC", library.path(), table);
}

}  // namespace awaken::gpu
