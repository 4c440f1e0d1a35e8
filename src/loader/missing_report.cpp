// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/expected_report.h"
#include "loader/loader.h"
#include "node/job.h"
#include "report/totals.h"

namespace awaken {

namespace {

/// True when MPI_Initialized or MPI_Finalized says so; a program may call both at any time.
bool says(const loader::Binding& binding, const char* const question) {
    const auto ask = reinterpret_cast<int (*)(int*)>(binding.symbol(question));
    int answer = 0;
    return ask != nullptr && ask(&answer) == 0 && answer != 0;
}

/// Why there is no report, and what helps.
Error reason() {
    const loader::Binding* const binding = loader::binding_in_use();
    if (binding == nullptr) {
        const std::string library = loader::loaded_library();
        if (library.empty()) {
            return {"it loaded no MPI library",
                    "if it starts the MPI program, that program writes the report; otherwise give awaken exec the MPI "
                    "program itself"};
        }
        return {"it called no MPI function, though it loaded " + library,
                "where it looks functions up in that library's own handle, name libawaken.so as its MPI library"};
    }
    if (!says(*binding, "PMPI_Initialized")) {
        return {"it called neither MPI_Init nor MPI_Session_finalize", "see why it ended early"};
    }
    return {"it ended without MPI_Finalize, which writes the report", "see why it ended early"};
}

pid_t reporting = 0;

void tell() {
    // A forked child ends here too, and prints nothing.
    if (getpid() != reporting || report::given.load(std::memory_order_relaxed)) {
        return;
    }
    const loader::Binding* const binding = loader::binding_in_use();
    // A reason that lies in the program and not in the run is the same on all ranks: rank 0 prints it.
    if ((binding == nullptr || !says(*binding, "PMPI_Initialized")) && node::find_job().world_rank > 0) {
        return;
    }
    fprintf(stderr, "awaken: no report of %s: %s\n", program_invocation_short_name, reason().what());
}

/// The program registers its functions for the end of the process later, so they run before this one.
__attribute__((constructor)) void expect_report() {
    const char* const process = getenv(kReportExpected);
    if (process == nullptr || atoi(process) != getpid()) {
        return;
    }
    reporting = getpid();
    static_cast<void>(atexit(tell));
}

}  // namespace

}  // namespace awaken
