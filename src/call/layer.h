// SPDX-License-Identifier: Apache-2.0
// The one object that owns everything: settings, the program's MPI, the GPU runtime's resources, requests, the report.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/settings.h"
#include "call/communicators.h"
#include "call/memory_kinds.h"
#include "call/native_gpu_support.h"
#include "call/node_peers.h"
#include "call/rank_trace.h"
#include "call/receive_readiness.h"
#include "call/requests.h"
#include "call/scoped_errors_return.h"
#include "call/split_accesses.h"
#include "call/stream_work.h"
#include "coll/device/choices.h"
#include "gpu/gpu.h"
#include "mpi/bytes_type.h"
#include "mpi/datatypes.h"
#include "mpi/fault_tolerance.h"
#include "mpi/native.h"
#include "report/report.h"
#include "transfer/attached_buffers.h"
#include "transfer/bounce_buffer.h"
#include "transfer/copier.h"
#include "transfer/device_copies.h"
#include "transfer/packer.h"
#include "transfer/pinned_pool.h"
#include "transfer/process_memory.h"

namespace awaken::AWAKEN_ABI {

/// Built at the program's first MPI call and emptied when MPI goes down, but never destroyed: a program may call
/// MPI_Finalized afterwards, and other threads may be inside the entry points.
class Layer {
  public:
    Layer(const loader::Binding& mpi, Settings given);
    Layer(const Layer&) = delete;
    Layer& operator=(const Layer&) = delete;

    const loader::Binding& binding;
    const Settings settings;
    const bool tracing;   ///< AWAKEN_TRACE is set
    const bool observed;  ///< calls are timed, for the report or the trace
    Native real;          ///< the MPI's own PMPI_ functions, for calls of the layer
    Native below;         ///< what the program would call without this library: a profiling tool below, or the MPI
    CompletionQuery completion;
    FaultTolerance fault_tolerance;
    DefaultHandlers default_handlers;
    Datatypes datatypes;
    ReceiveTypes receive_types;
    transfer::ProcessMemory process_memory;
    transfer::PinnedPool pool;
    transfer::BounceBufferPool bounce_buffers;
    Requests requests;
    MatchedMessages matched;
    AttachedBuffers attached_buffers;
    SplitAccesses split_accesses;
    coll::Choices collectives;
    Communicators communicators;
    ReceiveReadiness receive_readiness;
    NodePeers node_peers;
    NativeGpuSupport native_gpu;
    MemoryKinds memory_kinds;
    /// Whether the calls that complete operations come here. False in a process in which no GPU can appear.
    bool tracks_operations = true;
    report::Ledger ledger;
    /// Null as long as no communicator has a stream.
    std::atomic<StreamWork*> stream_work{nullptr};
    [[nodiscard]] bool carries_host_bytes(const MPI_Comm communicator) const {
        StreamWork* const work = stream_work.load(std::memory_order_acquire);
        return work != nullptr && work->covers(communicator);
    }
    /// Messages (both ends) and collectives of GPU memory with AWAKEN_DEFAULT_STREAM=order.
    std::atomic<std::uint64_t> ordered{0}, waited{0};
    /// Counts one for the report, and why it was not a part of the default stream.
    void count_order(const char* function, bool is_in_order, const char* why_not);
    RankTrace trace;

    /// Like gpu(), but does not look for a runtime; null until gpu() has found one.
    [[nodiscard]] gpu::Runtime* known_gpu() const noexcept { return _gpu.load(std::memory_order_acquire); }
    /// Rank of this process in MPI_COMM_WORLD, and its size; -1 and 0 where there is none.
    [[nodiscard]] int world_rank() const noexcept { return _rank; }
    [[nodiscard]] int world_size() const noexcept { return _size; }
    /// The GPU runtime that the program uses; the none runtime until the program has loaded one.
    [[nodiscard]] gpu::Runtime& gpu() {
        gpu::Runtime* const known = _gpu.load(std::memory_order_acquire);
        return known != nullptr ? *known : look_for_gpu();
    }
    /// Copies of that GPU runtime's.
    [[nodiscard]] transfer::DeviceCopies& copies();
    /// The same, for callers that wait.
    [[nodiscard]] transfer::Copier& copier();
    /// The packer of that GPU.
    [[nodiscard]] transfer::Packer& packer();

    /// True when messages between nodes come in, which they do only in calls of this process.
    [[nodiscard]] bool takes_fragments() const noexcept;
    /// True when several threads may be in the MPI at the same time.
    [[nodiscard]] bool several_threads() const noexcept { return _several_threads.load(std::memory_order_relaxed); }

    [[nodiscard]] static transfer::Tuning tuning();

    /// Whether the world model or a session is up.
    [[nodiscard]] bool any_model_is_open() {
        const std::scoped_lock lock(_mutex);
        return _open_models > 0;
    }
    /// Called after each successful MPI_Init*, MPI_Session_init and before each MPI_Finalize, MPI_Session_finalize.
    void mpi_started(bool world_model);
    void mpi_stopping(bool world_model);
    /// Called after each MPI_Finalize and MPI_Session_finalize.
    void mpi_stopped();

    /// Makes an MPI error code of the given class whose MPI_Error_string is the error's text. For MPI_ERR_OTHER it
    /// takes the class for the kind of error. Equal texts share a code. Prints each text on stderr once.
    [[nodiscard]] int error_code(int error_class, const Error& error);

  private:
    [[nodiscard]] gpu::Runtime& look_for_gpu();

    std::atomic<gpu::Runtime*> _gpu{nullptr};
    std::atomic<bool> _several_threads{false};
    std::once_flag _packer_once, _copies_once, _copier_once;
    std::unique_ptr<transfer::Packer> _packer;
    std::unique_ptr<transfer::DeviceCopies> _copies;
    std::unique_ptr<transfer::Copier> _copier;
    std::mutex _mutex;
    int _open_models = 0;  ///< how many of the world model and the sessions are up
    bool _world_up = false;
    int _rank = -1, _size = 0;
    std::map<std::string, int> _error_codes;
};

extern Layer* current_layer;

/// The greatest tag of a message (MPI_TAG_UB).
[[nodiscard]] int greatest_tag();

/// The layer of this core. Valid once the core is installed.
[[nodiscard]] inline Layer& layer() noexcept {
    return *current_layer;
}

}  // namespace awaken::AWAKEN_ABI
