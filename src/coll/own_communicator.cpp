// SPDX-License-Identifier: Apache-2.0
#include "coll/own_communicator.h"

namespace awaken::AWAKEN_ABI {

OwnCommunicator::OwnCommunicator(const Native& native, const MPI_Comm like) : _native(native) {
    int rank = 0;
    native.Comm_rank(like, &rank);
    // Not a duplicate, so that the program's attributes and info are not copied.
    if (native.Comm_split(like, 0, rank, &_comm) != MPI_SUCCESS) {
        _comm = MPI_COMM_NULL;
    }
    if (_comm != MPI_COMM_NULL) {
        native.Comm_set_errhandler(_comm, MPI_ERRORS_RETURN);
    }
}

OwnCommunicator::~OwnCommunicator() {
    if (_comm != MPI_COMM_NULL) {
        _native.Comm_free(&_comm);
    }
}

}  // namespace awaken::AWAKEN_ABI
