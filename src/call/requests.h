// Requests whose completion needs more than the MPI's own: data to copy back, images to give back.
//
// The program always holds a real request of the MPI's. For a nonblocking operation it is the native request on the
// image, for a persistent one the native persistent request; this table knows which of them are ours and what is to be
// done when they complete. Everything else (mixing with native requests in one Waitall, handle conversions, storing
// handles anywhere) is then the MPI's own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "call/stage.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

class Call;

/// One tracked operation. A program may not use one request in two threads at a time, so an operation is touched by one
/// thread at a time, except for the partitions of a partitioned one.
class Operation {
  public:
    enum class Kind : std::uint8_t {
        once,        ///< nonblocking: done when it completes
        rebinding,   ///< persistent point-to-point: each start looks the buffer up and is carried by a native
                     ///< nonblocking operation when it is device memory, or by the native persistent request itself
        bound,       ///< persistent collective: the native request was initialised on the images
        partitioned  ///< as bound, and copied partition by partition
    };

    Operation(Kind what, Stage buffers) : kind(what), stage(std::move(buffers)) {}

    const Kind kind;
    MPI_Request handle = MPI_REQUEST_NULL;   ///< what the program holds
    MPI_Request carrier = MPI_REQUEST_NULL;  ///< the native request under way; equal to handle unless rebinding
    Stage stage;
    bool receives = false;  ///< the status says how many bytes to store
    bool active = true;     ///< started and not yet completed
    bool stored = false;    ///< data already copied back, by MPI_Request_get_status
    /// Rebinding: starts a native nonblocking operation on a fresh stage, or returns false when the buffer is host
    /// memory and the native persistent request is to be started.
    std::function<bool(Call&, Operation&, int& error)> launch;
    std::mutex mutex;  ///< of the partitions' bookkeeping

    /// What remains to be done once the native request has completed with this status; `error` is the native outcome.
    void complete(const MPI_Status& status, int error);
    /// The same without ending it: MPI_Request_get_status said "complete".
    void store(const MPI_Status& status, int error);
};

/// Bytes that a completed receive delivered.
[[nodiscard]] std::int64_t received_bytes(const MPI_Status& status);

class Requests {
  public:
    explicit Requests(const Native& native) : _native(native) {}

    /// False, at the cost of one load, as long as nothing is tracked.
    [[nodiscard]] bool any() const noexcept { return _tracked.load(std::memory_order_acquire) != 0; }
    [[nodiscard]] std::shared_ptr<Operation> find(MPI_Request request) const;
    /// Starts tracking `operation` under operation->handle.
    void track(std::shared_ptr<Operation> operation);
    /// Stops tracking, unless the handle's value was taken by a newer operation meanwhile.
    void forget(const Operation& operation);

    /// Takes over an active operation whose request the program has freed; it is completed in passing.
    void adopt(std::shared_ptr<Operation> operation);
    [[nodiscard]] bool any_adopted() const noexcept { return _adopted_count.load(std::memory_order_acquire) != 0; }
    /// Completes what can be completed of the adopted operations. Every served call ends with this while there are any.
    /// A copy that fails (the program gave the buffer back too early) has no caller left to tell: it is said on stderr.
    void progress_adopted() noexcept;
    /// Waits for all adopted operations.
    void finish_adopted();

  private:
    struct Hash {
        std::size_t operator()(MPI_Request request) const noexcept;
    };
    const Native& _native;
    mutable std::mutex _mutex;
    std::atomic<std::size_t> _tracked{0};
    std::unordered_map<MPI_Request, std::shared_ptr<Operation>, Hash> _operations;
    std::mutex _adopted_mutex;
    std::atomic<std::size_t> _adopted_count{0};
    std::vector<std::shared_ptr<Operation>> _adopted;
};

}  // namespace awaken::AWAKEN_ABI
