// SPDX-License-Identifier: Apache-2.0
// Hashing of native requests, which are integers in one ABI and pointers in others.
#pragma once

#include <cstddef>

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

struct RequestHash {
    std::size_t operator()(const MPI_Request request) const noexcept {
        std::size_t value = 0;
        static_assert(sizeof(MPI_Request) <= sizeof(value));
        __builtin_memcpy(&value, &request, sizeof(MPI_Request));
        return value * 0x9E3779B97F4A7C15ULL;
    }
};

}  // namespace awaken::AWAKEN_ABI
