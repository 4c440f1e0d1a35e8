// SPDX-License-Identifier: Apache-2.0
// Collectives in a stream that NCCL or RCCL does.
#pragma once

#include <cstdint>
#include <memory>

#include "call/call.h"
#include "coll/device/plan.h"
#include "enqueue/stream_comms.h"

namespace awaken::AWAKEN_ABI {

/// A collective as the program called it. `count` is the argument: of each part, where a buffer has one for each rank.
struct StreamCollective {
    struct Buffer {
        const void* address = nullptr;  ///< MPI_IN_PLACE in the place of what is sent
        std::int64_t count = 0;
        MPI_Datatype type = MPI_DATATYPE_NULL;
    };
    coll::Kind kind = coll::Kind::barrier;
    Buffer send, receive = {};
    MPI_Op op = MPI_OP_NULL;
    int root = 0;
};

/// Queues the collective. False, on all ranks: the library does not do it. Throws Error.
[[nodiscard]] bool queue_by_library(Call& call, StreamComm& of, const StreamCollective& collective);

}  // namespace awaken::AWAKEN_ABI
