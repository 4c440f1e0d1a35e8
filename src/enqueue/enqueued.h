// SPDX-License-Identifier: Apache-2.0
// An operation that is queued in a stream, and what stands for it in the program.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "call/stage.h"
#include "enqueue/landing.h"
#include "gpu/gpu.h"
#include "transfer/pinned_pool.h"
#include "transport/transport.h"

namespace awaken::AWAKEN_ABI {

class StreamComm;
struct BehindRequest;

/// A stream of the program as MPIX_Stream_create was told of it.
struct ProgramStream {
    int handle = 0;  ///< the program's MPIX_Stream
    gpu::StreamHandle stream;
    std::atomic<int> communicators{0};             ///< that have it
    std::atomic<StreamComm*> holds_back{nullptr};  ///< one that has captured operations for its next call
};

/// As MPI has it for a request that is null.
void set_empty(MPI_Status& status) noexcept;

/// One operation in a stream. StreamComm::_mutex guards what the thread changes.
struct Enqueued : std::enable_shared_from_this<Enqueued> {
    Enqueued() = default;
    ~Enqueued() {
        if (message != nullptr) {
            message->end();
        }
    }
    Enqueued(const Enqueued&) = delete;
    Enqueued& operator=(const Enqueued&) = delete;

    /// Begins the operation by the MPI's own function, on memory of the host.
    using Start = std::function<int(MPI_Request*)>;

    std::uint64_t number = 0;  ///< counts a communicator's operations from 1
    std::uint32_t turn = 0;    ///< counts the operations that have had its words
    Start start;
    std::function<void()> finish;  ///< done by the CPU when the MPI is through with it; may be null
    std::optional<Stage> stage;    ///< none: the MPI gets the program's memory
    bool waits = true;             ///< the stream has to wait where the program wants the operation to be over
    bool stores = false;           ///< the stage is copied back
    bool persistent = false;       ///< the request stays
    bool receives = false;
    int peer = MPI_ANY_SOURCE;  ///< the destination or source of a message
    /// A step copies what is sent; else the stage does, if there is one. Null target: nothing is copied so.
    struct {
        std::byte* target = nullptr;
        const void* source = nullptr;
        std::size_t bytes = 0;
    } copy;
    transfer::StagingBlock block;                         ///< pinned, for the copy
    std::shared_ptr<transport::OutgoingMessage> message;  ///< where the copy goes to a place in device memory
    std::optional<Landing> landing;                       ///< of a receive whose data a step moves on
    bool at_once = false;  ///< begins when all that was queued before has begun: it needs no memory of the program
    /// Of a receive: says that its data have come. Null: they are there.
    const std::atomic<std::uint64_t>* ready = nullptr;
    std::uint64_t ready_value = 0;
    MPI_Request request = MPI_REQUEST_NULL;  ///< of the MPI, while the operation is under way
    MPI_Request program = MPI_REQUEST_NULL;  ///< what the program holds; null once it has given it back
    BehindRequest* behind = nullptr;         ///< the state of `program`
    MPI_Status* told = MPI_STATUS_IGNORE;    ///< where the program wants the status
    bool released = false;                   ///< the program's request goes when the operation is over
    bool over = false;
    bool is_known = false;                 ///< the status
    std::atomic<bool> is_complete{false};  ///< the program's request
    bool stored = false;                   ///< the copies back are queued, or done
    bool keeps_words = false;              ///< what was received has not been fetched
    std::size_t slot = 0;                  ///< of its words, among those of captured operations or the others
    bool forgotten = false;                ///< the program's request is gone
    MPI_Status status{};
    int error = MPI_SUCCESS;

    // ---- in a graph

    bool wild = false;          ///< receives from any rank, or with any tag
    std::uint64_t capture = 0;  ///< the number of the capture; 0: not captured
    std::uint32_t replay = 0;   ///< that is under way, or was last
    std::chrono::steady_clock::time_point begun{};
    bool is_reported = false;  ///< that this replay takes long
    bool is_through = false;   ///< the MPI is through with this replay
    /// With a partner in another graph: what follows goes by it without the thread. Null: nothing does.
    transport::ChannelState* channel = nullptr;
    std::uint32_t channel_number = 0;          ///< to which the count of replays is added, for the channel's words
    bool had_channel = false;                  ///< so the steps may tell of a replay that the thread has to see to
    std::uint32_t seen = 0;                    ///< the last replay that went by the channel, when the thread looked
    bool is_last = false;                      ///< the graph has gone
    std::weak_ptr<Enqueued> behind_in_kernel;  ///< begins with each replay before this one
};

/// What a request of the program stands for.
struct BehindRequest {
    std::shared_ptr<StreamComm> of;
    std::shared_ptr<Enqueued> operation;
};

/// An operation that was captured.
struct Captured {
    std::shared_ptr<Enqueued> operation;
    /// The graph has gone, and all that was made of it. The runtime says so in a thread of its own.
    std::shared_ptr<std::atomic<bool>> is_gone;
};

}  // namespace awaken::AWAKEN_ABI
