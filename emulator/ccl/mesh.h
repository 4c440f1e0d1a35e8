// SPDX-License-Identifier: Apache-2.0
// How the ranks of an emulated communicator find each other and exchange bytes.
//
// The process that makes the unique identifier listens at an abstract socket, whose name is in the identifier, in a
// thread of its own. Each rank connects and says who it is. Once all are there, the listener judges whether they make a
// communicator, and hands each rank a connected pair of sockets for every other rank. So no rank can be left waiting
// for one that has died: whatever was to come from it ends with the connection. Nothing of this has a name in a file
// system, and the abstract one goes when the ranks have met.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "descriptor.h"

namespace awaken::emulator::ccl {

/// ncclResult_t.
enum class Result : int {
    success = 0,
    unhandled_gpu_error = 1,
    system_error = 2,
    internal_error = 3,
    invalid_argument = 4,
    invalid_usage = 5,
    remote_error = 6,
    in_progress = 7
};

/// What went wrong, in the words that ncclGetLastError repeats. Thrown.
struct Failure {
    Result result = Result::success;
    std::string text;
    [[nodiscard]] bool ok() const noexcept { return result == Result::success; }
};

/// ncclUniqueId.
struct UniqueId {
    unsigned char bytes[128];
};

/// Makes an identifier and starts to listen for the ranks that will come with it.
[[nodiscard]] UniqueId make_identifier();

using Socket = Descriptor;

/// What a rank says of itself.
struct Introduction {
    int ranks = 0;
    int rank = 0;
    std::uint64_t device = 0;  ///< of the machine: its PCI address as a number
    bool may_share = false;    ///< another rank may use the same device
    bool gives_up = false;     ///< an injected failure: this rank does not come
};

/// Connections to all other ranks. One thread at a time may exchange; interrupt() may be called by any.
class Mesh {
  public:
    /// One message: to or from a peer. `kind` has to agree on both sides.
    struct Part {
        int peer = 0;
        std::byte* data = nullptr;
        std::size_t bytes = 0;
        std::uint32_t kind = 0;
    };

    /// Returns when all ranks are there, or it is certain that they will not be.
    [[nodiscard]] static std::unique_ptr<Mesh> join(const UniqueId& identifier, const Introduction& introduction);
    ~Mesh() = default;
    Mesh(const Mesh&) = delete;
    Mesh& operator=(const Mesh&) = delete;

    [[nodiscard]] int ranks() const noexcept { return _ranks; }
    [[nodiscard]] int rank() const noexcept { return _rank; }

    /// Sends and receives all parts together; those between the same two ranks in their order. Blocks until the
    /// received bytes are here and the sent ones may be overwritten. After a failure the mesh is of no use any more.
    void exchange(std::span<const Part> sends, std::span<const Part> receives);

    /// Ends exchange(), here and, by and by, at all peers.
    void interrupt() noexcept;

  private:
    Mesh(int ranks, int rank, std::vector<Socket> sockets);

    const int _ranks;
    const int _rank;
    const std::vector<Socket> _sockets;  ///< by rank; none for this one
    std::atomic<bool> _interrupted{false};
};

}  // namespace awaken::emulator::ccl
