// SPDX-License-Identifier: Apache-2.0
#include "runner/open_module.h"

#include <dlfcn.h>

#include <system_error>

#include "base/error.h"

namespace awaken::bench {
namespace fs = std::filesystem;

fs::path own_folder() {
    std::error_code failure;
    const fs::path self = fs::read_symlink("/proc/self/exe", failure);
    if (failure) {
        throw Error(
            "cannot find its own installation, because /proc/self/exe cannot be read (" + failure.message() + ")",
            "mount /proc");
    }
    return self.parent_path();
}

ModuleMain open_module(const fs::path& folder, const std::string& program, const FoundMpi& mpi) {
    const fs::path path = folder / ("libawaken_" + program + "_" + mpi.abi + ".so");
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
        throw Error("this installation has no module for the ABI of " + mpi.version + ": there is no " + path.native(),
                    "build Awaken with " + mpi.abi + " in AWAKEN_ABIS, or choose another MPI with AWAKEN_MPI");
    }
    void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
        throw Error(path.native() + " cannot be opened with " + mpi.path + " (" + mpi.version + "): " + dlerror(),
                    "use a newer release of this MPI, or name another with AWAKEN_MPI");
    }
    const auto entry = reinterpret_cast<ModuleMain>(dlsym(module, ("awaken_" + program + "_main").c_str()));
    if (entry == nullptr) {
        throw Error(path.native() + " is not a module of this program", "install Awaken again");
    }
    return entry;
}

}  // namespace awaken::bench
