// SPDX-License-Identifier: Apache-2.0
// Preloaded above an MPI: makes two ranks late by turns. Of barriers 1, 3, 5, ..., counted from 0, the first returns
// LATE_MS milliseconds late at rank 0, the next at rank 1, and so on. In xtx these are the ones before the timed runs:
// barrier 0 is that of the allocation, and each run has one before and one behind it.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int MPI_Barrier(MPI_Comm communicator) {
    static int calls = 0;
    const int result = PMPI_Barrier(communicator);
    int rank = 0;
    PMPI_Comm_rank(communicator, &rank);
    const int call = calls++;
    if (call % 2 == 0 || call / 2 % 2 != rank) {
        return result;
    }
    fprintf(stderr, "<late>\n");
    const long long nanoseconds = atoll(getenv("LATE_MS")) * 1000000;
    const struct timespec pause = {(time_t)(nanoseconds / 1000000000), (long)(nanoseconds % 1000000000)};
    nanosleep(&pause, NULL);
    return result;
}
