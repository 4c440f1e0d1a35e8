// SPDX-License-Identifier: Apache-2.0
#include "mpi/mpi_functions.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <numeric>
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

std::string error_text(const int code) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    std::string line(text.data());
    // MPICH tells the whole stack, one call a line; the last is the cause.
    std::replace(line.begin(), line.end(), '\n', ' ');
    return line;
}

void check_mpi(const int code, const char* const function) {
    if (code != MPI_SUCCESS) {
        throw Error(std::string(function) + " failed: " + error_text(code),
                    "see the MPI's documentation of this error");
    }
}

double over_ranks_at_root(const double value, const MPI_Op operation, MPI_Comm communicator) {
    double result = 0;
    check_mpi(MPI_Reduce(&value, &result, 1, MPI_DOUBLE, operation, 0, communicator), "MPI_Reduce");
    return result;
}

std::string broadcast_text(std::string text, const int root, MPI_Comm communicator) {
    auto length = static_cast<unsigned long>(text.size());
    check_mpi(MPI_Bcast(&length, 1, MPI_UNSIGNED_LONG, root, communicator), "MPI_Bcast");
    text.resize(length);
    check_mpi(MPI_Bcast(text.data(), static_cast<int>(length), MPI_CHAR, root, communicator), "MPI_Bcast");
    return text;
}

std::vector<std::string> gather_texts(const std::string& text, MPI_Comm communicator) {
    int rank = 0;
    int ranks = 0;
    MPI_Comm_rank(communicator, &rank);
    MPI_Comm_size(communicator, &ranks);
    const int length = static_cast<int>(text.size());
    std::vector<int> lengths(static_cast<std::size_t>(ranks));
    check_mpi(MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, communicator), "MPI_Gather");
    std::vector<int> positions(lengths.size(), 0);
    std::partial_sum(lengths.begin(), lengths.end() - 1, positions.begin() + 1);
    std::string all(static_cast<std::size_t>(positions.back() + lengths.back()), ' ');
    check_mpi(MPI_Gatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), positions.data(), MPI_CHAR, 0,
                          communicator),
              "MPI_Gatherv");
    std::vector<std::string> texts;
    for (std::size_t r = 0; rank == 0 && r < lengths.size(); ++r) {
        texts.push_back(all.substr(static_cast<std::size_t>(positions[r]), static_cast<std::size_t>(lengths[r])));
    }
    return texts;
}

}  // namespace awaken::bench
