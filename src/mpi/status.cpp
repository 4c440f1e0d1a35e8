#include "mpi/status.h"

namespace awaken::AWAKEN_ABI {

// Of a truncated message the status says what was delivered: MPICH 5 as much as fits, MPICH 4 nothing; Open MPI gives
// the length of the message, of which what fits was delivered (Stage::store stops at the buffer's end). An MPI may also
// leave the status alone on an error, so ours are zero to begin with.
std::int64_t received_bytes(const Native& native, const MPI_Status& status) {
    int cancelled = 0;
    native.Test_cancelled(&status, &cancelled);
    return cancelled != 0 ? 0 : transferred_bytes(native, status);
}

std::int64_t transferred_bytes(const Native& native, const MPI_Status& status) {
    // Counted in MPI_BYTE the number of elements is the number of bytes, also past the 2^31 of MPI_Get_count.
    MPI_Count bytes = 0;
    native.Get_elements_x(&status, MPI_BYTE, &bytes);
    return bytes == MPI_UNDEFINED ? 0 : static_cast<std::int64_t>(bytes);
}

}  // namespace awaken::AWAKEN_ABI
