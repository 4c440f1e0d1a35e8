// SPDX-License-Identifier: Apache-2.0
#include "runner/find_mpi.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "loader/abi.h"

namespace awaken::bench {
namespace fs = std::filesystem;
namespace {

/// The two families of launchers, whose processes must not meet the other's library: each would run alone.
enum class LibraryFamily : std::uint8_t { unknown, mpich, openmpi };

using Names = std::vector<const char*>;

Names library_names(const LibraryFamily family) {
    switch (family) {
        case LibraryFamily::mpich:
            return {"libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1"};
        case LibraryFamily::openmpi:
            return {"libmpi.so.40"};
        case LibraryFamily::unknown:
            break;
    }
    return {"libmpi.so.12", "libmpich.so.12", "libmpi.so.40", "libmpi_abi.so.1"};
}

std::string environment_or_empty(const char* const name) {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : "";
}

LibraryFamily family_by_environment() {
    if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
        return LibraryFamily::openmpi;
    }
    for (const char* const name : {"PMI_SIZE", "PMI_FD", "HYDI_CONTROL_FD", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE"}) {
        if (std::getenv(name) != nullptr) {
            return LibraryFamily::mpich;
        }
    }
    return LibraryFamily::unknown;
}

LibraryFamily family_of_launcher(const std::string_view program) {
    for (const char* const name : {"prterun", "prted", "prte", "orted", "orterun", "ompirun_wrapper"}) {
        if (program == name) {
            return LibraryFamily::openmpi;
        }
    }
    if (program.starts_with("hydra") || program.starts_with("mpiexec.hydra") || program == "mpispawn" ||
        program.starts_with("mpiexec.gforker")) {
        return LibraryFamily::mpich;
    }
    return LibraryFamily::unknown;
}

/// Parent of a process, 0 when there is none to be seen.
pid_t parent_of(const pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string line;
    std::getline(file, line);
    // "pid (name) state parent": the name may hold anything, so what counts is the last parenthesis.
    const std::size_t end = line.rfind(')');
    int parent = 0;
    if (end == std::string::npos || std::sscanf(line.c_str() + end + 1, " %*c %d", &parent) != 1) {
        return 0;
    }
    return parent;
}

struct Launcher {
    LibraryFamily family = LibraryFamily::unknown;
    fs::path prefix;      ///< empty when it is not known
    std::string program;  ///< "/opt/mpi/bin/hydra_pmi_proxy"; empty when it was not seen
};

/// The nearest ancestor that is a launcher. Between it and us there may be shells, wrappers (numactl) and scripts.
Launcher find_launcher() {
    Launcher launcher;
    launcher.family = family_by_environment();
    for (pid_t process = getppid(); process > 1; process = parent_of(process)) {
        std::error_code unreadable;
        const fs::path program = fs::read_symlink("/proc/" + std::to_string(process) + "/exe", unreadable);
        if (unreadable) {
            break;
        }
        const LibraryFamily family = family_of_launcher(program.filename().native());
        if (family != LibraryFamily::unknown) {
            launcher.family = family;
            launcher.prefix = program.parent_path().parent_path();
            launcher.program = program.native();
            break;
        }
    }
    return launcher;
}

std::string path_of(void* const handle) {
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr) {
        return "";
    }
    return map->l_name;
}

/// The name of the benchmarks' module for the library.
std::string module_of(void* const handle, const std::string& path, const std::string& version) {
    const std::optional<loader::Abi> abi = loader::recognise_abi(handle, path, version);
    if (!abi) {
        throw Error(
            "the MPI library " + path + " (" + version + ") has no known ABI (MPICH, Open MPI from 3 on, MPI-5)",
            "name another one with AWAKEN_MPI=/path/to/libmpi.so");
    }
    switch (*abi) {
        case loader::Abi::mpich:
            return "mpich";
        case loader::Abi::openmpi:
            return "openmpi";
        case loader::Abi::mpi5:
            break;
    }
    return "mpi5";
}

FoundMpi describe(void* const handle) {
    FoundMpi found;
    found.handle = handle;
    found.path = path_of(handle);
    if (!loader::is_mpi_library(handle)) {
        throw Error(found.path + " is not an MPI library: it defines no MPI_Init and PMPI_Send",
                    "give AWAKEN_MPI the path of a shared MPI library");
    }
    found.version = loader::library_version(handle);
    found.abi = module_of(handle, found.path, found.version);
    return found;
}

void* open_library(const std::string& name) {
    return dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
}

}  // namespace

FoundMpi find_mpi(const std::string& own_prefix) {
    if (const std::string named = environment_or_empty("AWAKEN_MPI"); !named.empty()) {
        void* const handle = open_library(named);
        if (handle == nullptr) {
            throw Error("AWAKEN_MPI=" + named + " cannot be opened: " + dlerror(),
                        "give the path of a shared MPI library");
        }
        return describe(handle);
    }

    const Launcher launcher = find_launcher();
    const Names names = library_names(launcher.family);
    std::vector<fs::path> folders;
    const auto add_prefix = [&folders](const fs::path& prefix) {
        if (!prefix.empty()) {
            // Intel MPI keeps its release library one folder further down.
            for (const char* const folder : {"lib", "lib64", "lib/release"}) {
                folders.push_back(prefix / folder);
            }
        }
    };
    if (launcher.family != LibraryFamily::mpich) {
        add_prefix(environment_or_empty("OPAL_PREFIX"));
    }
    if (launcher.family != LibraryFamily::openmpi) {
        add_prefix(environment_or_empty("I_MPI_ROOT"));
        add_prefix(environment_or_empty("CRAY_MPICH_DIR"));
    }
    add_prefix(launcher.prefix);
    add_prefix(own_prefix);

    std::string tried;
    std::string broken;
    for (const fs::path& folder : folders) {
        for (const char* const name : names) {
            const fs::path candidate = folder / name;
            std::error_code ignored;
            if (!fs::exists(candidate, ignored)) {
                continue;
            }
            if (void* const handle = open_library(candidate.native()); handle != nullptr) {
                return describe(handle);
            }
            broken += std::string(broken.empty() ? "" : "; ") + dlerror();
        }
        tried += (tried.empty() ? "" : ", ") + folder.native();
    }
    std::string all_names;
    for (const char* const name : names) {
        if (void* const handle = open_library(name); handle != nullptr) {
            return describe(handle);
        }
        all_names += (all_names.empty() ? "" : ", ") + std::string(name);
    }
    throw Error("no MPI library is found (" + all_names + " in " + tried + " and where the dynamic loader looks" +
                    (broken.empty() ? "" : "; " + broken) + ")",
                "start this with the mpiexec of your MPI, or name its library with AWAKEN_MPI=/path/to/libmpi.so");
}

int launched_ranks() noexcept {
    int ranks = 1;
    // Of Slurm what its srun sets: SLURM_NTASKS is there in batch scripts too, where nothing has been launched.
    for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
        if (const char* const value = std::getenv(name); value != nullptr) {
            ranks = std::max(ranks, std::atoi(value));
        }
    }
    // Hydra of MPICH 4 and later gives a file descriptor only.
    const bool by_descriptor = std::getenv("PMI_SIZE") == nullptr && std::getenv("PMI_FD") != nullptr;
    return by_descriptor ? std::max(ranks, 2) : ranks;
}

bool is_launched() noexcept {
    constexpr const char* kNames[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD", "MV2_COMM_WORLD_SIZE"};
    return launched_ranks() > 1 ||
           std::any_of(std::begin(kNames), std::end(kNames), [](const char* name) { return std::getenv(name); });
}

}  // namespace awaken::bench
