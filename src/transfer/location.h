// Memory of one process, described so that another on the same node can reach it.
#pragma once

#include <array>
#include <cstdint>

namespace awaken::transfer {

/// Where bytes lie that another process is to fetch.
struct Location {
    enum class Kind : std::uint32_t {
        none,
        device,  ///< GPU memory exported by IPC
        area,    ///< at `offset` of the sender's area
        file     ///< memory file, descriptor `descriptor` of process `pid`
    };
    Kind kind;
    std::int32_t pid;
    std::int32_t descriptor;
    std::uint32_t reserved;
    std::uint64_t allocation_id;           ///< device: identity of the allocation
    std::uint64_t allocation_bytes;        ///< of the allocation or the file
    std::uint64_t offset;                  ///< of the first byte
    std::array<unsigned char, 64> handle;  ///< device: the IPC handle
};

}  // namespace awaken::transfer
