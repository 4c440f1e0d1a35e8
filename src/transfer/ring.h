// SPDX-License-Identifier: Apache-2.0
// One message on its way through chunks of host memory that two processes share. The writer's GPU fills the chunks
// while the reader's GPU empties them. For GPUs that cannot reach each other's memory.
//
// Knows no MPI, no slots and no segment: the caller gives it memory and control words.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transfer/device_copies.h"

namespace awaken::transfer {

/// The two processes share this. It lies in shared memory and is zero before the message.
struct RingControl {
    std::atomic<std::uint64_t> produced{0};  ///< bytes that are ready to be read, counted from the message's first byte
    std::atomic<std::uint64_t> consumed{0};  ///< bytes that the reader has taken out
    /// One side gave up: the other ends with an error.
    std::atomic<std::uint32_t> failed{0};
};

/// Memory of the chunks: `chunks` * `chunk_bytes` bytes.
struct RingMemory {
    std::byte* base = nullptr;
    std::size_t chunk_bytes = 0;
    std::size_t chunks = 0;
    bool registered = false;  ///< with this process's GPU runtime; otherwise copies pass through pinned memory once
                              ///< more
};

class RingWriter {
  public:
    /// `source` must stay until done(). `device` is the GPU whose streams do the copies.
    RingWriter(DeviceCopies& copies, RingControl& control, const RingMemory& memory, int device,
               const DeviceCopies::End& source, std::size_t bytes);
    ~RingWriter();  ///< waits for copies under way
    RingWriter(const RingWriter&) = delete;
    RingWriter& operator=(const RingWriter&) = delete;

    /// Does the work that is possible now. Never waits. True when it did something.
    bool advance();
    /// True when all bytes are in the ring: the source is free.
    [[nodiscard]] bool done() const noexcept;
    /// From now on the writer reads the message from a copy of all its bytes, and the source is free. Waits for copies
    /// under way.
    void continue_from(const DeviceCopies::End& copy);
    /// Bytes given to the ring so far.
    [[nodiscard]] std::size_t produced() const noexcept;

  private:
    struct State;
    std::unique_ptr<State> _state;
};

class RingReader {
  public:
    /// Takes the first `wanted` <= `bytes` bytes of the message to `destination`, and drops the rest.
    RingReader(DeviceCopies& copies, RingControl& control, const RingMemory& memory, int device,
               const DeviceCopies::End& destination, std::size_t wanted, std::size_t bytes);
    ~RingReader();
    RingReader(const RingReader&) = delete;
    RingReader& operator=(const RingReader&) = delete;

    bool advance();
    [[nodiscard]] bool done() const noexcept;

  private:
    struct State;
    std::unique_ptr<State> _state;
};

}  // namespace awaken::transfer
