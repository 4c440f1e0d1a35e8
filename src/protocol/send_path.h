// SPDX-License-Identifier: Apache-2.0
// How a message travels: the one place that decides it.
//
// The caller says what it knows of the message, of its receiver and of this process. The answer is a list of paths, the
// best one first. Nothing here asks a GPU, an MPI or another process, so each rule can be tested by itself. The caller
// takes the first path for which it finds what that path needs, such as a slot or memory. The last path needs nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpu/gpu.h"
#include "transfer/tuning.h"

namespace awaken::protocol {

enum class SendPath : std::uint8_t {
    // On the node, after an RTS.
    by_cpu,          ///< the CPU copies a small message out of device memory at once
    own,             ///< the receiver is this process: it copies from the buffer
    pull,            ///< the receiver reads the buffer
    exported,        ///< the receiver reads a copy: in shared memory a small one, else in exported device memory
    before_mapping,  ///< a copy in exported device memory, since mapping a large allocation does not pay yet
    ring,            ///< through chunks of shared memory
    // Between nodes, after an RTS.
    pipelined,  ///< in fragments through the MPI
    // Through the MPI.
    wrapped,    ///< a message as long as an RTS, which a probe could take for one: a copy of it is offered
    native,     ///< the MPI takes the device memory itself
    staged,     ///< the MPI gets a copy in host memory
    unchanged,  ///< the MPI gets the program's buffer, in host memory
};

/// Whether a path begins with an RTS to a process of the same node.
[[nodiscard]] constexpr bool is_on_node(const SendPath path) noexcept {
    return path <= SendPath::ring;
}

/// What decides the path of one message.
struct SendFacts {
    enum class Mode : std::uint8_t {
        plain,    ///< the message must be sent as it is: a buffered send
        offered,  ///< the receiver may fetch it
        detached  ///< like offered, but the buffer must be free before the MPI is called
    };
    enum class Receiver : std::uint8_t {
        unknown,  ///< it takes no RTS, as far as this process knows
        itself,
        on_node,
        on_other_node
    };
    /// Whether the receiver reads device memory of this process.
    enum class Reach : std::uint8_t { untried, works, refused };
    /// How other processes can map the memory.
    enum class Export : std::uint8_t { no, ipc, descriptors };
    /// What the user allows on the node.
    enum class Allowed : std::uint8_t { all, direct, ring };

    Mode mode = Mode::offered;
    std::size_t bytes = 0;  ///< of data

    gpu::MemoryKind memory = gpu::MemoryKind::host;
    bool served = false;  ///< memory that the MPI must not be given: device or managed memory, or a mixture
    bool mixed = false;   ///< blocks in different kinds of memory
    Export exported_by = Export::no;
    bool gaps = false;       ///< the data is not one run of bytes
    bool gaps_move = false;  ///< GPUs move a datatype with such gaps
    std::size_t block = 0;   ///< bytes of each of the equal blocks between the gaps; 0: no such form
    std::size_t span = 0;    ///< bytes from the first block to the end of the last, gaps included
    bool as_long_as_rts = false;
    bool packable = true;  ///< the layer knows the datatype

    Receiver receiver = Receiver::unknown;
    Reach reach = Reach::untried;
    bool mapping_pays = true;      ///< that the receiver maps the allocation pays for this message
    bool wants_from_host = false;  ///< it received the last such message from host memory into device memory

    Allowed allowed = Allowed::all;
    bool cpu_reaches_memory = false;  ///< the CPU can read device memory
    bool mpi_takes_memory = false;    ///< the MPI takes device memory
};

/// Paths in the order in which they are to be tried.
class SendPaths {
  public:
    void add(const SendPath path) noexcept { _paths[_size++] = path; }
    [[nodiscard]] const SendPath* begin() const noexcept { return _paths.data(); }
    [[nodiscard]] const SendPath* end() const noexcept { return _paths.data() + _size; }

  private:
    std::array<SendPath, 8> _paths{};
    std::size_t _size = 0;
};

/// The CPU copies messages up to this size where it reaches device memory. Its copy begins at once, but it reads such
/// memory slowly, so longer messages are the GPU's. No machine of ours showed where the limit is best.
inline constexpr std::size_t kCpuCopyBytes = std::size_t{4} << 10;

[[nodiscard]] SendPaths choose_send_paths(const SendFacts& facts, const transfer::Tuning& tuning) noexcept;

}  // namespace awaken::protocol
