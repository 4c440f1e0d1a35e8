// One message on its way through chunks of host memory that two processes share: the writer's GPU fills them, the
// reader's empties them, both at the same time. For GPUs that cannot reach each other's memory.
//
// Knows no MPI, no slots and no segment: memory and control words are given.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transfer/device_copies.h"

namespace awaken::transfer {

/// Shared between the two; lies in shared memory, zero before the message.
struct RingControl {
    std::atomic<std::uint64_t> produced{0};  ///< bytes that lie ready, from the message's first byte on
    std::atomic<std::uint64_t> consumed{0};  ///< bytes that were taken out
    /// Either side gave up: the other ends with an error.
    std::atomic<std::uint32_t> failed{0};
};

/// Memory that the chunks lie in; `chunks` * `chunk_bytes` bytes.
struct RingMemory {
    std::byte* base = nullptr;
    std::size_t chunk_bytes = 0;
    std::size_t chunks = 0;
    bool registered = false;  ///< with this process's GPU runtime: else copies pass through pinned memory once more
};

class RingWriter {
  public:
    /// `source` must stay until done(). `device`: whose streams do the copies.
    RingWriter(DeviceCopies& copies, RingControl& control, const RingMemory& memory, int device,
               const DeviceCopies::End& source, std::size_t bytes);
    ~RingWriter();  ///< waits for copies under way
    RingWriter(const RingWriter&) = delete;
    RingWriter& operator=(const RingWriter&) = delete;

    /// Does what can be done now. Never waits. True when something was done.
    bool advance();
    /// All bytes were put into the ring: the source is free.
    [[nodiscard]] bool done() const noexcept;
    /// From now on the message is read from a copy of all its bytes, and the source is free. Waits for copies under
    /// way.
    void continue_from(const DeviceCopies::End& copy);
    /// Bytes given to the ring so far.
    [[nodiscard]] std::size_t produced() const noexcept;

  private:
    struct State;
    std::unique_ptr<State> _state;
};

class RingReader {
  public:
    /// Takes the first `wanted` <= `bytes` bytes of the message to `destination`; the rest is taken out and dropped.
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
