#include "coll/own_communicator.h"

namespace awaken::AWAKEN_ABI {

OwnCommunicator::OwnCommunicator(const Native& native, const MPI_Comm like) : _native(native) {
    int rank = 0;
    native.Comm_rank(like, &rank);
    // Not duplicated: the program's attributes and info stay its own.
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
