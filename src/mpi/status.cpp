// SPDX-License-Identifier: Apache-2.0
#include "mpi/status.h"

namespace awaken::AWAKEN_ABI {

// What the status of a truncated message says depends on the MPI. MPICH 5 gives the bytes that fit, MPICH 4 gives 0.
// Open MPI gives the length of the message, of which it has delivered the bytes that fit (Stage::store stops at the
// buffer's end). An MPI may also not set the status on an error, so the layer sets its own statuses to zero before the
// call.
std::int64_t received_bytes(const Native& native, const MPI_Status& status) {
    int cancelled = 0;
    native.Test_cancelled(&status, &cancelled);
    return cancelled != 0 ? 0 : transferred_bytes(native, status);
}

std::int64_t transferred_bytes(const Native& native, const MPI_Status& status) {
    // In MPI_BYTE, the number of elements is the number of bytes, also beyond the 2^31 of MPI_Get_count.
    MPI_Count bytes = 0;
    native.Get_elements_x(&status, MPI_BYTE, &bytes);
    return bytes == MPI_UNDEFINED ? 0 : static_cast<std::int64_t>(bytes);
}

int class_of(const Native& native, const int error) {
    int error_class = error;
    if (error != MPI_SUCCESS) {
        native.Error_class(error, &error_class);
    }
    return error_class;
}

}  // namespace awaken::AWAKEN_ABI
