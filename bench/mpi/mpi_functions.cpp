#include "mpi/mpi_functions.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace awaken::bench {
namespace {

MpiFunctions of_library;
MpiFunctions reached;
MpiLibrary in_use{};

}  // namespace

const MpiFunctions& library_functions() {
    return of_library;
}

const MpiFunctions& reached_functions() {
    return reached;
}

const MpiLibrary& library_in_use() {
    return in_use;
}

void load_functions(const MpiLibrary& library) {
    in_use = library;
    // Filled by hand, one symbol after the other, because the table's members differ in type.
#define AWAKEN_NATIVE(name)                                                                             \
    of_library.name = reinterpret_cast<decltype(of_library.name)>(dlsym(library.handle, "MPI_" #name)); \
    reached.name = of_library.name == nullptr                                                           \
                       ? nullptr                                                                        \
                       : reinterpret_cast<decltype(reached.name)>(dlsym(RTLD_DEFAULT, "MPI_" #name));
#define AWAKEN_ABSENT(name)
#include AWAKEN_NATIVE_TABLE
#undef AWAKEN_NATIVE
#undef AWAKEN_ABSENT
}

bool layer_is_loaded() {
    // The layer's library exports this name, and no other does.
    return dlsym(RTLD_DEFAULT, "awaken_version") != nullptr;
}

std::string short_version() {
    std::string version = in_use.version;
    // "MPICH Version: 5.0.2", "Open MPI v5.0.11, package: ...", "Intel(R) MPI Library 2021.13 for ..."
    if (const std::string_view mpich = "MPICH Version:"; version.starts_with(mpich)) {
        const std::size_t number = version.find_first_not_of(' ', mpich.size());
        return "MPICH " + (number == std::string::npos ? std::string() : version.substr(number));
    }
    if (version.starts_with("Open MPI v")) {
        return "Open MPI " + version.substr(10, version.find_first_of(", ", 10) - 10);
    }
    return version;
}

void check_mpi(const int code, const char* const function) {
    if (code == MPI_SUCCESS) {
        return;
    }
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    std::string line(text.data());
    // MPICH tells the whole stack, one call a line; the last is the cause.
    for (char& c : line) {
        if (c == '\n') {
            c = ' ';
        }
    }
    throw Error(std::string(function) + " failed: " + line, "see the MPI's documentation of this error");
}

}  // namespace awaken::bench
