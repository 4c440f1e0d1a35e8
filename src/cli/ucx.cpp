// SPDX-License-Identifier: Apache-2.0
#include "ucx.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "elf_file.h"
#include "preload.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kUcp = "libucp.so.0";
/// Open MPI loads it at run time, where it is no part of libmpi.
constexpr const char* kComponent = "openmpi/mca_pml_ucx.so";

fs::path library_folder(const fs::path& folder) {
    for (const fs::path& candidate : {folder, folder / "lib", folder / "lib64"}) {
        std::error_code ignored;
        if (fs::exists(candidate / kUcp, ignored)) {
            return fs::absolute(candidate);
        }
    }
    throw Error("AWAKEN_UCX names " + folder.native() + ", and there is no " + kUcp + " in it or its lib",
                "name the folder of a UCX; pip install libucx-cu12 has one in site-packages/libucx");
}

bool knows_gpus(const fs::path& libraries) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(libraries / "ucx", ignored)) {
        const std::string name = entry.path().filename().native();
        if (name.starts_with("libuct_cuda.so") || name.starts_with("libuct_rocm.so")) {
            return true;
        }
    }
    return false;
}

std::string quoted_for_shell(const std::string& text) {
    std::string result = "'";
    for (const char letter : text) {
        result += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
    }
    return result + "'";
}

/// What the dynamic loader says of an object's libraries: "  name => path (address)" in each line. Empty where it says
/// nothing.
std::string libraries_of(const std::string& loader, const fs::path& object) {
    const std::string command =
        "LD_PRELOAD= " + quoted_for_shell(loader) + " --list " + quoted_for_shell(object.native()) + " 2>/dev/null";
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
    std::string text;
    std::array<char, 4096> block{};
    while (pipe != nullptr) {
        const std::size_t length = std::fread(block.data(), 1, block.size(), pipe.get());
        if (length == 0) {
            break;
        }
        text.append(block.data(), length);
    }
    return text;
}

/// The path at which the loader found a library whose name begins so; empty where it did not.
fs::path found_at(const std::string_view list, const std::string_view name) {
    for (std::size_t at = list.find(name); at != std::string_view::npos; at = list.find(name, at + 1)) {
        const std::size_t end = std::min(list.find('\n', at), list.size());
        const std::string_view line = list.substr(at, end - at);
        const std::size_t arrow = line.find(" => ");
        const std::size_t address = line.rfind(" (0x");
        const bool begins = at == 0 || list[at - 1] == '\t' || list[at - 1] == ' ';
        if (begins && arrow != std::string_view::npos && address != std::string_view::npos && arrow + 4 < address) {
            return line.substr(arrow + 4, address - arrow - 4);
        }
    }
    return {};
}

void check_mpi_uses(const fs::path& libraries, const fs::path& program) {
    const std::string loader = read_elf("/proc/self/exe").interpreter;
    const char* const named = std::getenv("AWAKEN_MPI");
    fs::path mpi = named != nullptr ? named : "";
    if (mpi.empty()) {
        const std::string list = libraries_of(loader, program);
        for (const char* const name : {"libmpi.so", "libmpi_abi.so", "libmpich.so"}) {
            mpi = mpi.empty() ? found_at(list, name) : mpi;
        }
    }
    if (mpi.empty() || loader.empty()) {
        return;
    }
    const fs::path component = mpi.parent_path() / kComponent;
    std::error_code ignored;
    fs::path ucp = found_at(libraries_of(loader, mpi), kUcp);
    if (ucp.empty() && fs::exists(component, ignored)) {
        ucp = found_at(libraries_of(loader, component), kUcp);
    }
    if (ucp.empty()) {
        throw Error(mpi.native() + " does not use UCX, so another one would have no effect",
                    "leave out AWAKEN_UCX, or use an MPI that is built with UCX (Open MPI: --with-ucx; MPICH: "
                    "--with-device=ch4:ucx)");
    }
    if (!fs::equivalent(ucp, libraries / kUcp, ignored)) {
        throw Error(
            mpi.native() + " takes " + ucp.native() + " whatever comes before it, as it names the folder (RPATH)",
            "use an MPI without RPATH, or change it (chrpath -c, patchelf --remove-rpath)");
    }
}

}  // namespace

void use_ucx_if_asked(const fs::path& program) {
    const char* const folder = std::getenv("AWAKEN_UCX");
    if (folder == nullptr || *folder == '\0') {
        return;
    }
    const fs::path libraries = library_folder(folder);
    if (!knows_gpus(libraries)) {
        throw Error(
            "the UCX in " + libraries.native() + " knows no GPUs: its folder ucx has no libuct_cuda or libuct_rocm",
            "name a UCX that was built with CUDA or ROCm");
    }
    put_first_in_search_path(libraries);
    check_mpi_uses(libraries, program);
}

}  // namespace awaken::cli
