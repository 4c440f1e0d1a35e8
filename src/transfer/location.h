// SPDX-License-Identifier: Apache-2.0
// Describes memory of one process so that another process on the same node can reach it.
#pragma once

#include <array>
#include <cstdint>

namespace awaken::transfer {

/// The place of bytes that another process is to get.
struct Location {
    enum class Kind : std::uint32_t {
        none,
        device,  ///< GPU memory that the owner has exported
        shared,  ///< host memory at `offset` of the node's shared memory
        ring,    ///< passes through chunks of host memory at `offset` of the node's shared memory
        own      ///< at `address` in the process that gets it: a message to itself
    };
    Kind kind = Kind::none;
    std::int32_t device = -1;                ///< device: its number in the process that exported it, for messages
    std::uint32_t by_descriptors = 0;        ///< device: 1 when legacy IPC does not export the memory, and the handle
                                             ///< stands for file descriptors
    std::uint64_t allocation_id = 0;         ///< device: identity of the allocation
    std::uint64_t allocation_bytes = 0;      ///< of the allocation; shared, ring: of the memory from `offset` on
    std::uint64_t offset = 0;                ///< device: of the first byte in the allocation
    std::uint64_t address = 0;               ///< own: the address; device: of the allocation in its owner, to tell it
                                             ///< from others
    std::uint64_t chunk_bytes = 0;           ///< ring
    std::array<unsigned char, 64> handle{};  ///< device: see gpu::IpcMemoryHandle

    bool operator==(const Location&) const = default;
};

}  // namespace awaken::transfer
