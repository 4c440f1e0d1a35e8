// SPDX-License-Identifier: Apache-2.0
#include "loader/abi.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstring>

namespace awaken::loader {

const char* to_string(const Abi abi) noexcept {
    switch (abi) {
        case Abi::mpich:
            return "MPICH";
        case Abi::openmpi:
            return "Open MPI";
        case Abi::mpi5:
            return "MPI-5";
    }
    return "unknown";
}

std::string library_version(void* const handle) {
    using GetLibraryVersion = int (*)(char*, int*);
    const auto get = reinterpret_cast<GetLibraryVersion>(dlsym(handle, "PMPI_Get_library_version"));
    if (get == nullptr) {
        return "(no MPI_Get_library_version)";
    }
    // MPI_MAX_LIBRARY_VERSION_STRING is 8192 in MPICH and in the MPI-5 ABI, 256 in Open MPI.
    std::array<char, 16384> text{};
    int length = 0;
    get(text.data(), &length);
    // Some versions are one line. MPICH's is a page with lines such as "MPICH Version:      5.0.2".
    std::string line;
    for (const char* c = text.data(); *c != '\0' && *c != '\n'; ++c) {
        const char plain = *c == '\t' ? ' ' : *c;
        if (plain != ' ' || line.empty() || line.back() != ' ') {
            line += plain;
        }
    }
    return line;
}

std::optional<Abi> recognise_abi(void* const handle, const std::string& path, const std::string& version) {
    const auto has = [handle](const char* const symbol) { return dlsym(handle, symbol) != nullptr; };
    const std::string name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
    // Comes first: Open MPI 6 has a library for this ABI as well, and both of its libraries lead to the old symbols.
    if (name.starts_with("libmpi_abi")) {
        return Abi::mpi5;
    }
    if (has("ompi_mpi_comm_world")) {
        // The interface number 40 stands for Open MPI 3 to 5, which have kept their ABI.
        int major = 0;
        const bool is_older = std::sscanf(version.c_str(), "Open MPI v%d", &major) == 1 && major < 3;
        return is_older ? std::nullopt : std::optional(Abi::openmpi);
    }
    if (has("MPI_Abi_get_version") && !has("MPI_F_STATUS_IGNORE")) {
        return Abi::mpi5;
    }
    for (const char* const word : {"MPICH", "MVAPICH", "Intel(R) MPI", "CRAY", "ParaStation"}) {
        if (version.find(word) != std::string::npos) {
            return Abi::mpich;
        }
    }
    return std::nullopt;
}

bool is_mpi_library(void* const handle) noexcept {
    return dlsym(handle, "MPI_Init") != nullptr && dlsym(handle, "PMPI_Send") != nullptr;
}

}  // namespace awaken::loader
