// SPDX-License-Identifier: Apache-2.0
// Where the GPU vendor's libraries are, which the programs under apps/ open when they run.
#pragma once

#include <glob.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "device.h"

namespace apps {

/// Absolute paths of files that match a pattern of the shell.
[[nodiscard]] inline std::vector<std::string> files_like(const std::string& pattern) {
    glob_t found = {};
    std::vector<std::string> paths;
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
        paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    ::globfree(&found);
    return paths;
}

/// Under which names a library of the runtime's vendor is tried, best first: as the loader finds it, below `home`
/// (a variable of the environment, or empty), beside the runtime, in the usual installations, and among the packages of
/// the Python environment that is active, where NVIDIA's libraries lie in nvidia/<package>/lib.
[[nodiscard]] inline std::vector<std::string> library_names(const std::string& soname,
                                                            [[maybe_unused]] const std::string& package,
                                                            const std::string& home = {}) {
    const bool amd = runtime_is_amd();
    std::vector<std::string> names = {soname};
    const auto folder_in = [](const std::string& variable) {
        const char* const value = std::getenv(variable.c_str());
        return std::string(value != nullptr && value[0] == '/' ? value : "");
    };
    const auto add_below = [&](const std::string& folder) {
        if (folder.empty()) {
            return;
        }
        names.push_back(folder + "/lib/" + soname);
        names.push_back(folder + "/lib64/" + soname);
    };
    if (!home.empty()) {
        add_below(folder_in(home));
    }
#ifndef __HIP_PLATFORM_AMD__
    const std::string runtime = gpu_runtime_path();
    const std::string folder = runtime.substr(0, runtime.rfind('/') + 1);
    if (!folder.empty()) {
        names.push_back(folder + soname);
        // nvidia/cuda_runtime/lib/libcudart.so.12 is of a package too.
        if (!amd) {
            names.push_back(folder + "../../" + package + "/lib/" + soname);
        }
    }
#endif
    add_below(folder_in(amd ? "ROCM_PATH" : "CUDA_HOME"));
    add_below(amd ? "/opt/rocm" : "/usr/local/cuda");
    for (const char* environment : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
        const std::string prefix = folder_in(environment);
        if (prefix.empty() || amd) {
            continue;
        }
        for (const std::string& path : files_like(prefix + "/lib/python3*/site-packages/nvidia/*/lib/" + soname)) {
            names.push_back(path);
        }
    }
    return names;
}

}  // namespace apps
