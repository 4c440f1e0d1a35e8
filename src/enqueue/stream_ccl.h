// SPDX-License-Identifier: Apache-2.0
// NCCL or RCCL for the collectives that are queued in a communicator's stream.
//
// All members must queue a collective in the same way, and no call may wait for another member's program. So when the
// communicator is made, which all members do together and while their GPUs have nothing to do, they make the library's,
// too. The library waits for the GPU then, and what a program's stream waits for may come later in the program. It
// costs up to seconds and hundreds of megabytes.
//
// A member that fails, or takes too long, tells the others, and none uses the library: all collectives go the way that
// they go without it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ccl/ccl.h"
#include "coll/device/ccl_communicator.h"
#include "gpu/gpu.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// One member's end. Calls of one communicator come one after another, as MPI demands.
class StreamCcl : public std::enable_shared_from_this<StreamCcl> {
  public:
    using Operation = coll::CclCommunicator::Operation;

    /// Collective over a communicator that has just got its streams. Null, on all members, if one of them cannot use
    /// the library, or its GPU has something to do. `stream` may be null: this member has none.
    [[nodiscard]] static std::shared_ptr<StreamCcl> agree(MPI_Comm communicator, const gpu::StreamHandle* stream);
    /// For agree().
    StreamCcl(MPI_Comm communicator, gpu::StreamHandle stream, int nodes);
    ~StreamCcl();
    StreamCcl(const StreamCcl&) = delete;
    StreamCcl& operator=(const StreamCcl&) = delete;

    /// Whether a collective is to be queued by the library: the same on all members. `code` and `bytes` as in
    /// coll::Occasion. Throws Error.
    [[nodiscard]] bool takes(coll::Kind kind, std::uint32_t code, std::uint64_t bytes) const;
    /// Queues what it takes, in the communicator's stream. `capture` as in gpu::Runtime::capture_of(). Throws Error.
    void queue(Operation operation, std::uint64_t capture);
    [[nodiscard]] int rank() const noexcept { return _rank; }
    [[nodiscard]] int size() const noexcept { return _size; }

    /// Whether the stream has something to do.
    [[nodiscard]] bool is_busy() const noexcept;
    /// Waits for what the stream has. Ends it if the library has failed, or if another member is gone.
    void finish() noexcept;
    /// Throws the error that made finish() end it.
    void throw_failure() const;
    /// The communicator ends, on all members, and its stream has nothing left.
    void leave() noexcept;
    /// The library has given up its communicator.
    [[nodiscard]] bool has_left() const noexcept { return _ccl.has_left(); }
    /// The library gives up no communicator of which there are graphs.
    [[nodiscard]] bool has_graphs() const noexcept { return _graphs->load(std::memory_order_acquire) != 0; }

  private:
    struct Connection;

    [[nodiscard]] std::string make(MPI_Comm communicator);
    [[nodiscard]] std::string invite(MPI_Comm communicator, MPI_Comm channel, ccl::UniqueId& identifier);
    [[nodiscard]] std::string join(MPI_Comm channel, const ccl::UniqueId& identifier);
    [[nodiscard]] std::shared_ptr<Connection> connect() const;
    void finish(Connection& connection);
    void check_members(std::optional<std::chrono::steady_clock::time_point>& missed) const;
    [[nodiscard]] bool is_chosen(coll::Kind kind, std::uint32_t code, std::uint64_t bytes) const noexcept;
    void count_graph();

    const gpu::StreamHandle _stream;
    const int _nodes;
    int _rank = 0, _size = 0;
    std::vector<int> _near;  ///< other members on this node, as the segment counts
    std::mutex _mutex;       ///< the library lets one thread at a time use its communicator
    const ccl::Library* _library = nullptr;
    coll::CclCommunicator _ccl;
    void* _memory = nullptr;  ///< of barriers
    std::atomic<bool> _has_failed{false};
    std::optional<Error> _failure;
    std::uint64_t _last_capture = 0;
    std::shared_ptr<std::atomic<int>> _graphs = std::make_shared<std::atomic<int>>(0);
};

/// Waits until the communicators of the library have gone that were left, but not for ever. MPI is about to go down.
void finish_leaving() noexcept;

}  // namespace awaken::AWAKEN_ABI
