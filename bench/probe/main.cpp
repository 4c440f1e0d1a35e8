// SPDX-License-Identifier: Apache-2.0
// The program behind the child jobs of `awaken doctor` and `awaken topo`: finds the MPI, and gives the words to the
// module that was compiled for its ABI.
#include <cstdio>
#include <exception>

#include "base/printable.h"
#include "runner/find_mpi.h"
#include "runner/open_module.h"

int main(const int count, char** const arguments) {
    namespace bench = awaken::bench;
    constexpr int kUsageError = 2;
    try {
        const auto folder = bench::own_folder();
        const auto prefix = folder.parent_path().parent_path().parent_path();
        const bench::FoundMpi mpi = bench::find_mpi(prefix.native());
        const bench::ModuleMain entry = bench::open_module(folder, "probe", mpi);
        const bench::MpiLibrary library = mpi.view();
        return entry(count > 0 ? count - 1 : 0, arguments + 1, &library);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "awaken: %s\n", awaken::printable(error.what()).c_str());
        return kUsageError;
    }
}
