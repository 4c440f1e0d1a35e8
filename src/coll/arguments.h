// SPDX-License-Identifier: Apache-2.0
// Finds arguments of collectives that are wrong by themselves. The layer refuses them before anything has begun.
//
// The other members may have begun already, in ways that this member's MPI does not know. A program that goes on after
// the error has to find the members where they were. So the layer cannot leave the error to the MPI: releases check
// different things (Open MPI 5 takes negative counts in MPI_Ineighbor_allgatherv), and a member that went on would be
// alone.
#pragma once

#include <string>

#include "call/call.h"
#include "coll/run.h"
#include "mpi/same_buffer.h"

namespace awaken::AWAKEN_ABI {

/// All of these throw ClassedError, which the call raises on its communicator.
template <class Count>
void check_elements(const Call& call, const void* const buffer, const Count count, const MPI_Datatype type) {
    if (buffer == MPI_IN_PLACE && count > 0) {
        throw ClassedError(MPI_ERR_BUFFER,
                           std::string(call.name()) + ": MPI_IN_PLACE is passed where a buffer is needed",
                           "see the MPI standard for the buffers that it may replace, and on which ranks");
    }
    if (count < 0) {
        throw ClassedError(MPI_ERR_COUNT, std::string(call.name()) + ": a count is " + std::to_string(count),
                           "check how it is computed");
    }
    if (count > 0 && type == MPI_DATATYPE_NULL) {
        throw ClassedError(
            MPI_ERR_TYPE,
            std::string(call.name()) + ": the datatype of " + std::to_string(count) + " elements is MPI_DATATYPE_NULL",
            "pass the elements' datatype, and free it later");
    }
    if (count > 0 && layer().gpu().is_present()) {
        layer().datatypes.check(type);
    }
}

/// The same for elements that begin at `buffer`.
template <class Count>
void check_buffer(const Call& call, const void* const buffer, const Count count, const MPI_Datatype type) {
    check_elements(call, buffer, count, type);
    // With absolute addresses, a null pointer is MPI_BOTTOM.
    if (buffer == nullptr && count > 0 && layer().gpu().is_present()) {
        const std::shared_ptr<const Datatype> datatype = layer().datatypes.find(type);
        if (datatype->layout.size() > 0 && datatype->layout.true_begin() == 0) {
            throw ClassedError(MPI_ERR_BUFFER, std::string(call.name()) + ": a buffer is a null pointer",
                               "allocate it, or pass a count of 0");
        }
    }
}

template <class Count>
void check_parts(const Call& call, const void* const buffer, const Count* const counts, const MPI_Datatype type,
                 const int n) {
    for (int i = 0; i < n; ++i) {
        check_elements(call, buffer, counts[i], type);
    }
}

template <class Count>
void check_parts(const Call& call, const void* const buffer, const Count* const counts, const MPI_Datatype* const types,
                 const int n) {
    for (int i = 0; i < n; ++i) {
        check_elements(call, buffer, counts[i], types[i]);
    }
}

/// Whether MPI_IN_PLACE says that this member's data is in its other buffer. It has no such meaning on an
/// intercommunicator, nor, in a rooted collective, on other ranks than the root.
[[nodiscard]] inline bool is_in_other_buffer(const void* const buffer, const Group& group) {
    return buffer == MPI_IN_PLACE && !group.between;
}
[[nodiscard]] inline bool is_in_other_buffer(const void* const buffer, const Group& group, const int root) {
    return is_in_other_buffer(buffer, group) && group.is_root(root);
}
[[nodiscard]] inline bool is_in_other_buffer(const void* const buffer, const LazyGroup& group) {
    return buffer == MPI_IN_PLACE && is_in_other_buffer(buffer, group.get());
}

inline void check_operation(const Call& call, const MPI_Op op) {
    if (op == MPI_OP_NULL) {
        throw ClassedError(MPI_ERR_OP, std::string(call.name()) + ": the operation is MPI_OP_NULL",
                           "pass an operation, and free it later");
    }
}

/// This member sends from the place that it receives into.
inline void refuse_same_buffer(const Call& call, const int error_class) {
    if (error_class != MPI_SUCCESS) {
        throw ClassedError(error_class,
                           std::string(call.name()) + ": the send buffer and the receive buffer are the same",
                           "pass MPI_IN_PLACE, or two buffers");
    }
}

inline void check_root(const Call& call, const Group& group, const int root) {
    const bool is_communicator = group.size > 0;  // else the MPI reports the error
    if (is_communicator && !group.between && !group.has(root)) {
        throw ClassedError(MPI_ERR_ROOT,
                           std::string(call.name()) + ": the root is " + std::to_string(root) + ", of " +
                               std::to_string(group.size) + " ranks",
                           "pass a rank of the communicator");
    }
}

}  // namespace awaken::AWAKEN_ABI
