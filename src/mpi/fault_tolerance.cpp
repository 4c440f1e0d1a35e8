// SPDX-License-Identifier: Apache-2.0
#include "mpi/fault_tolerance.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// Constants of an ABI. The attribute MPI_FT of MPI_COMM_WORLD says whether the job was started with fault tolerance.
struct Constants {
    int failed_process = MPI_ERR_OTHER, revoked = MPI_ERR_OTHER;
    int attribute = MPI_KEYVAL_INVALID;
};

Constants constants_of(const loader::Abi abi) noexcept {
    switch (abi) {
        case loader::Abi::mpich:
            // The values are those since MPICH 3.2. No attribute: MPICH 4 and 5 know the class, and abort in
            // MPIX_Comm_revoke.
            return {.failed_process = 101, .revoked = 103};
        case loader::Abi::openmpi:
            return {.failed_process = 75, .revoked = 77, .attribute = 12};
        case loader::Abi::mpi5:
            break;  // the standard has no such classes
    }
    return {};
}

}  // namespace

void FaultTolerance::load(const loader::Binding& binding) {
    _is_revoked = reinterpret_cast<decltype(_is_revoked)>(binding.symbol("PMPIX_Comm_is_revoked"));
    _revoke = reinterpret_cast<decltype(_revoke)>(binding.symbol("PMPIX_Comm_revoke"));
    if (_revoke != nullptr) {
        const Constants constants = constants_of(binding.abi);
        _failed_process_class = constants.failed_process;
        _revoked_class = constants.revoked;
        _attribute = constants.attribute;
    }
}

void FaultTolerance::mpi_started(const Native& native) {
    if (_is_revoked == nullptr || _attribute == MPI_KEYVAL_INVALID) {
        return;
    }
    const int* value = nullptr;
    int found = 0;
    native.Comm_get_attr(MPI_COMM_WORLD, _attribute, static_cast<void*>(&value), &found);
    _active.store(found != 0 && value != nullptr && *value != 0, std::memory_order_relaxed);
}

bool FaultTolerance::is_revoked(const MPI_Comm communicator) const {
    int revoked = 0;
    return active() && _is_revoked(communicator, &revoked) == MPI_SUCCESS && revoked != 0;
}

Error FaultTolerance::revocation() {
    return {"the communicator was revoked", "continue with the communicator that MPIX_Comm_shrink makes of it",
            Error::Kind::revoked};
}

void FaultTolerance::refuse_revoked(const MPI_Comm communicator) const {
    if (is_revoked(communicator)) {
        throw revocation();
    }
}

int FaultTolerance::class_of(const Error& error) const noexcept {
    switch (error.kind()) {
        case Error::Kind::failed_process:
            return _failed_process_class;
        case Error::Kind::revoked:
            return _revoked_class;
        case Error::Kind::other:
            break;
    }
    return MPI_ERR_OTHER;
}

void FaultTolerance::revoke(const MPI_Comm communicator) const {
    if (active()) {
        _revoke(communicator);
    }
}

}  // namespace awaken::AWAKEN_ABI
