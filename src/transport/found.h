// Where a stream finds a message that has come.
#pragma once

#include <cstdint>

namespace awaken::transport {

/// Written by the CPU to host memory that the device reaches. The same as in gpu/kernels/steps.h.
struct Found {
    std::uint64_t source = 0;
    std::uint64_t bytes = 0;
    std::uint64_t told_host = 0;  ///< 0: nobody
    std::uint64_t told_host_number = 0;
};

}  // namespace awaken::transport
