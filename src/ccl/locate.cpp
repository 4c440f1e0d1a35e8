// SPDX-License-Identifier: Apache-2.0
// The vendors' collective communication libraries, and the places where they may lie.
#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <memory>

#include "ccl/ccl.h"
#include "ccl/product.h"
#include "gpu/dynamic_library.h"

namespace awaken::ccl {
namespace {

// RCCL counts as the NCCL that it corresponds to.
constexpr Product kNccl = {
    "NCCL", "libnccl",
    "install it (pip install nvidia-nccl-cu12, or the package libnccl2) or set AWAKEN_CCL to the "
    "path of libnccl.so.2",
    22400};
constexpr Product kRccl = {"RCCL", "librccl",
                           "install ROCm's package rccl or set AWAKEN_CCL to the path of librccl.so.1", 22005};

/// Paths in order of preference, each once.
class Candidates {
  public:
    void add(const std::string& path) {
        if (std::find(_paths.begin(), _paths.end(), path) == _paths.end()) {
            _paths.push_back(path);
        }
    }
    void add_if_there(const std::string& path) {
        if (::access(path.c_str(), R_OK) == 0) {
            add(path);
        }
    }
    [[nodiscard]] std::vector<std::string> take() { return std::move(_paths); }

  private:
    std::vector<std::string> _paths;
};

std::string directory_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

/// The value of an environment variable that holds an absolute path; empty otherwise.
std::string path_in(const char* variable) {
    const char* const value = ::secure_getenv(variable);
    return value != nullptr && *value == '/' ? value : "";
}

std::string running_program() {
    std::array<char, PATH_MAX> path = {};
    const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
    return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : std::string();
}

/// The folder of the first python3 in PATH. Links are kept: in a virtual environment the program is a link, and the
/// folder of the link counts.
std::string python_in_path() {
    const char* const value = ::secure_getenv("PATH");
    std::string rest = value != nullptr ? value : "";
    while (!rest.empty()) {
        const std::size_t colon = rest.find(':');
        const std::string directory = rest.substr(0, colon);
        if (!directory.empty() && directory.front() == '/' && ::access((directory + "/python3").c_str(), X_OK) == 0) {
            return directory;
        }
        rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
    }
    return "";
}

std::vector<std::string> entries_of(const std::string& directory, const std::string& prefix) {
    std::vector<std::string> found;
    const std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(directory.c_str()), &::closedir);
    while (const dirent* const entry = handle != nullptr ? ::readdir(handle.get()) : nullptr) {
        const std::string name = entry->d_name;
        if (name.compare(0, prefix.size(), prefix) == 0 && name != "." && name != "..") {
            found.push_back(name);
        }
    }
    std::sort(found.rbegin(), found.rend());
    return found;
}

/// Folders of Python packages that may belong to this process, best first: those from which the process has loaded
/// something, those of the active environment, of the running program, and of the python3 in PATH.
std::vector<std::string> package_folders() {
    std::vector<std::string> folders;
    const auto add = [&folders](const std::string& folder) {
        if (std::find(folders.begin(), folders.end(), folder) == folders.end()) {
            folders.push_back(folder);
        }
    };
    for (const std::string& path : gpu::loaded_object_paths()) {
        constexpr const char* kMark = "/site-packages/";
        const std::size_t at = path.rfind(kMark);
        if (at != std::string::npos) {
            add(path.substr(0, at) + "/site-packages");
        }
    }
    std::vector<std::string> prefixes = {path_in("VIRTUAL_ENV"), path_in("CONDA_PREFIX"),
                                         directory_of(directory_of(running_program())), directory_of(python_in_path())};
    Dl_info self = {};
    if (::dladdr(reinterpret_cast<const void*>(&candidates), &self) != 0 && self.dli_fname != nullptr) {
        // <prefix>/lib/awaken/libawaken.so, or below it.
        const std::string own = self.dli_fname;
        if (const std::size_t at = own.rfind("/lib/awaken/"); at != std::string::npos) {
            prefixes.push_back(own.substr(0, at));
        }
    }
    for (const std::string& prefix : prefixes) {
        if (prefix.empty()) {
            continue;
        }
        for (const char* const library : {"/lib", "/lib64"}) {
            for (const std::string& python : entries_of(prefix + library, "python3")) {
                add(prefix + library + "/" + python + "/site-packages");
            }
        }
    }
    return folders;
}

void add_nccl(Candidates& found) {
    for (const char* const name : {"libnccl.so.2", "libnccl.so"}) {
        found.add(name);
    }
    for (const std::string& folder : package_folders()) {
        found.add_if_there(folder + "/nvidia/nccl/lib/libnccl.so.2");
    }
}

void add_rccl(Candidates& found) {
    for (const char* const name : {"librccl.so.1", "librccl.so"}) {
        found.add(name);
    }
    std::vector<std::string> folders;
    for (const std::string& path : gpu::loaded_object_paths()) {
        if (gpu::is_library_named(path, "libamdhip64") && path.front() == '/') {
            folders.push_back(directory_of(path));
        }
    }
    // PyTorch's packages for ROCm bring a library along.
    for (const std::string& folder : package_folders()) {
        folders.push_back(folder + "/torch/lib");
    }
    if (const std::string root = path_in("ROCM_PATH"); !root.empty()) {
        folders.push_back(root + "/lib");
    }
    folders.emplace_back("/opt/rocm/lib");
    for (const std::string& folder : folders) {
        found.add_if_there(folder + "/librccl.so.1");
        found.add_if_there(folder + "/librccl.so");
    }
}

}  // namespace

const Product* product_of(const gpu::Vendor vendor) noexcept {
    switch (vendor) {
        case gpu::Vendor::cuda:
            return &kNccl;
        case gpu::Vendor::hip:
            return &kRccl;
        case gpu::Vendor::none:
            break;
    }
    return nullptr;
}

std::vector<std::string> candidates(gpu::Vendor vendor) {
    const Product* const product = product_of(vendor);
    if (product == nullptr) {
        return {};
    }
    if (const char* const chosen = ::secure_getenv("AWAKEN_CCL"); chosen != nullptr && *chosen != '\0') {
        return {chosen};
    }
    Candidates found;
    for (const std::string& path : gpu::loaded_object_paths()) {
        if (gpu::is_library_named(path, product->stem)) {
            found.add(path);
        }
    }
    if (product == &kNccl) {
        add_nccl(found);
    } else {
        add_rccl(found);
    }
    return found.take();
}

}  // namespace awaken::ccl
