// Arguments of collectives that are wrong by themselves, refused before anything is begun.
//
// The others may have begun already, in ways that this member's MPI knows nothing of. So a program that goes on after
// the error has to find the members where they were, and the error cannot be left to the MPI: releases differ in what
// they look at (Open MPI 5 takes negative counts in MPI_Ineighbor_allgatherv), and one that goes on would be alone.
#pragma once

#include <string>

#include "call/call.h"
#include "coll/run.h"

namespace awaken::AWAKEN_ABI {

/// All of these throw ClassedError, and the call raises it on its communicator.
template <class Count>
void check_elements(const Call& call, const Count count, const MPI_Datatype type) {
    if (count < 0) {
        throw ClassedError(MPI_ERR_COUNT, std::string(call.name()) + ": a count is " + std::to_string(count),
                           "look at how it is computed");
    }
    if (count > 0 && type == MPI_DATATYPE_NULL) {
        throw ClassedError(
            MPI_ERR_TYPE,
            std::string(call.name()) + ": the datatype of " + std::to_string(count) + " elements is MPI_DATATYPE_NULL",
            "pass the elements' datatype, and free it later");
    }
}

template <class Count>
void check_parts(const Call& call, const Count* const counts, const MPI_Datatype type, const int n) {
    for (int i = 0; i < n; ++i) {
        check_elements(call, counts[i], type);
    }
}

template <class Count>
void check_parts(const Call& call, const Count* const counts, const MPI_Datatype* const types, const int n) {
    for (int i = 0; i < n; ++i) {
        check_elements(call, counts[i], types[i]);
    }
}

inline void check_operation(const Call& call, const MPI_Op op) {
    if (op == MPI_OP_NULL) {
        throw ClassedError(MPI_ERR_OP, std::string(call.name()) + ": the operation is MPI_OP_NULL",
                           "pass an operation, and free it later");
    }
}

inline void check_root(const Call& call, const Group& group, const int root) {
    const bool is_communicator = group.size > 0;  // else the MPI says so
    if (is_communicator && !group.between && !group.has(root)) {
        throw ClassedError(MPI_ERR_ROOT,
                           std::string(call.name()) + ": the root is " + std::to_string(root) + ", of " +
                               std::to_string(group.size) + " ranks",
                           "pass a rank of the communicator");
    }
}

}  // namespace awaken::AWAKEN_ABI
