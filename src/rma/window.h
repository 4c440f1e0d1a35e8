// Windows that the layer has something to do with, and what it still has to do for each.
//
// The program always holds a window of the MPI's. This table knows which of them have device memory somewhere, and
// which have operations under way whose buffers are device memory here. What is a target's host memory is reached by
// the MPI, what is its device memory by copies and kernels of this process, over IPC; the target has no part in that.
// Fence, post, start, complete and wait are the MPI's, with the layer's own work finished before; locks are the
// layer's, and are taken from the MPI in addition when the first operation goes through it.
//
// Where members cannot reach each other's device memory, the window is the MPI's altogether, over a host mirror in host
// memory (see device/host_mirror.h); what is left to be done here is to reconcile the two when the program
// synchronises.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "call/call.h"
#include "call/services.h"
#include "call/stage.h"
#include "rma/device/exposure.h"
#include "rma/device/host_mirror.h"
#include "transfer/device_copies.h"
#include "transfer/mappings.h"

namespace awaken::AWAKEN_ABI {

/// A copy under way between this process's memory and a target's. Thread-safe: the program may wait for its request in
/// one thread and flush the window in another.
class Transfer {
  public:
    explicit Transfer(transfer::DeviceCopies::Copy copy) : _copy(std::move(copy)) {}
    /// True when it is over. Throws Error, each time, when it failed.
    [[nodiscard]] bool poll();
    /// Waits for the end.
    void finish();

  private:
    std::mutex _mutex;
    transfer::DeviceCopies::Copy _copy;
    std::optional<Error> _error;
};

/// What remains to be done of an operation when an epoch ends, or at a flush.
struct Pending {
    std::shared_ptr<Transfer> transfer;      ///< to be finished, by the layer
    std::shared_ptr<Stage> staging_buffers;  ///< to be stored, once the MPI has completed the operation
    std::weak_ptr<Operation> request;        ///< whose staging buffers are to be stored then
};

/// Device memory of a target, as this process reaches it.
struct MappedRegion {
    std::byte* address = nullptr;
    gpu::PointerInfo info;
    bool is_own = false;  ///< memory of this process: what its program gave to the default stream has to be over
};

/// How a window of ours was made.
struct WindowSpec {
    int flavor = MPI_WIN_FLAVOR_CREATE;
    void* base = nullptr;  ///< what the program sees
    MPI_Aint bytes = 0;
    int unit = 1;
    int device = -1;  ///< that copies use whose origin is in no device's memory
    bool is_device_memory = false;
    bool passive = true;           ///< others may lock it: the info does not say no_locks
    std::shared_ptr<void> memory;  ///< what the layer has allocated for the window; null: the program's
};

class Window {
  public:
    /// A window of the MPI's, to which operations have device buffers here.
    explicit Window(MPI_Win handle);
    /// A window with device memory somewhere. `units` are the members' displacement units.
    Window(MPI_Win handle, WindowSpec spec, std::unique_ptr<rma::Exposure> exposure, std::vector<std::int64_t> units);
    /// What the members' memory is, as far as that is known.
    struct Extent {
        std::int64_t bytes = -1;  ///< -1: not known
        std::int64_t unit = 1;
    };
    /// A window of the MPI's, in the place of one with device memory that others cannot reach. `mirror`: of this
    /// process's device memory; null where it has none. `extents`: by member.
    Window(MPI_Win handle, WindowSpec spec, std::unique_ptr<rma::HostMirror> mirror, std::vector<Extent> extents);
    ~Window();
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

    [[nodiscard]] MPI_Win handle() const noexcept { return _handle; }
    /// False: a window of the MPI's.
    [[nodiscard]] bool is_ours() const noexcept { return _exposure != nullptr; }
    /// A window of the MPI's over host mirrors.
    [[nodiscard]] bool is_mirrored() const noexcept { return _mirrored; }
    [[nodiscard]] bool has(const int target) const noexcept {
        return target >= 0 && target < static_cast<int>(_targets.size());
    }
    [[nodiscard]] int members() const noexcept { return static_cast<int>(_targets.size()); }

    // ---- only of windows over host mirrors --------------------------------------------------------------------------
    /// Makes this process's host mirror and its device memory the same.
    void reconcile(Call& call);
    [[nodiscard]] bool has_mirror() const noexcept { return _mirror != nullptr; }
    [[nodiscard]] int own() const noexcept { return _own; }
    /// Before each operation. Throws ClassedError when it leaves the target's memory.
    void enter_mirrored(const Call& call, int target, MPI_Aint displacement, std::int64_t count, MPI_Datatype type);
    /// The host mirror of a result buffer that lies in this process's own window memory: others may read there as soon
    /// as the operation is complete. Null for any other buffer.
    [[nodiscard]] void* mirror_of_result(Call& call, int target, const void* address, std::int64_t count,
                                         MPI_Datatype type);
    /// Whether operations of this process on this target (-1: on any) may have changed its own host mirror since this
    /// was last asked. To be asked when they are complete.
    [[nodiscard]] bool take_own_changes(int target) noexcept;

    /// Of windows of ours, and of those over host mirrors.
    [[nodiscard]] const WindowSpec& spec() const noexcept { return _spec; }

    // ---- only of windows of ours ------------------------------------------------------------------------------------
    [[nodiscard]] rma::Exposure& exposure() const noexcept { return *_exposure; }
    /// Maps what all members show, for this process's own device. Throws Error when some of it cannot be mapped.
    void map_all();
    /// Finds device memory for the bytes [begin, end) from `displacement` on. Nothing when it is not device memory: the
    /// MPI has to do it. Throws ClassedError when they leave the window. An empty range is in any memory.
    [[nodiscard]] std::optional<MappedRegion> reach(const Call& call, int target, MPI_Aint displacement,
                                                    std::int64_t begin, std::int64_t end, int device);
    /// Before each operation: the program may access the target now. Takes the lock of an MPI_Win_lock_all, if it was
    /// not yet. Throws ClassedError outside an epoch.
    void enter(const Call& call, int target);
    /// The same before the MPI is given the operation.
    [[nodiscard]] int enter_natively(const Call& call, int target);

    /// A member's part of a shared window, where this process has it; MPI_PROC_NULL: the first that is not empty.
    struct Slice {
        void* base = nullptr;
        std::int64_t bytes = 0, unit = 1;
    };
    [[nodiscard]] Slice slice_of(int target);
    void attach(const Call& call, void* base, MPI_Aint bytes, const gpu::PointerInfo& info);
    /// False when the memory is not one of the attached device regions.
    [[nodiscard]] bool detach(const void* base);
    /// Waits for what the program gave to the default stream of its window memory's device: others are about to access
    /// that.
    void make_own_memory_ready() const;
    /// The same where something else has to be done whatever fails.
    [[nodiscard]] std::optional<Error> try_to_make_own_memory_ready() const;

    // ---- epochs -----------------------------------------------------------------------------------------------------
    void lock(const Call& call, int target, rma::Hold how, int assertion);
    [[nodiscard]] int unlock(const Call& call, int target);
    void lock_all(const Call& call, int assertion);
    [[nodiscard]] int unlock_all(const Call& call);
    /// Before and after a fence of the MPI's.
    void begin_fence();
    void end_fence(bool open);
    void start(MPI_Group group);
    void post(MPI_Group group);
    /// The other ends of these.
    void complete();
    [[nodiscard]] bool may_wait() const noexcept { return !_origins.empty(); }
    void wait();
    /// Whether the MPI has a part in the passive epoch with this target.
    [[nodiscard]] bool is_locked_natively(int target);
    void expect_passive(const Call& call, int target);

    // ---- what is under way ------------------------------------------------------------------------------------------
    void add(int target, Pending pending);
    /// Finishes what the layer does of the operations to a target (-1: to all) that were started so far, lets `native`
    /// do the MPI's part, and stores what has arrived through the MPI. The MPI's part is done whatever fails before.
    template <class Native>
    int complete_and(const int target, const Native& native) {
        const std::vector<std::unique_lock<std::mutex>> alone = complete_alone(target);
        std::vector<Pending> pending = take(target);
        std::optional<Error> failure = finish(pending);
        const int error = native();
        if (error == MPI_SUCCESS) {
            store(pending, failure);
        }
        if (failure) {
            throw Error(*failure);
        }
        return error;
    }

  private:
    struct Mapped {
        rma::Region region;
        int device;
        transfer::Mappings::Use use;
        std::byte* base;
        gpu::PointerInfo info;
    };
    struct Target {
        /// Of one synchronisation with the target at a time: who finds nothing to finish must not be told so while
        /// another thread is at it.
        std::mutex settling;
        std::mutex entering;                   ///< of one thread that waits for the target's lock
        std::atomic<bool> own_changes{false};  ///< see take_own_changes()
        std::mutex mutex;                      ///< of everything below that changes
        std::int64_t bytes = -1;               ///< of a window over host mirrors; -1: not known
        std::int64_t unit = 1;
        std::uint64_t version = 0;  ///< of the regions
        std::vector<rma::Region> regions;
        std::vector<std::unique_ptr<Mapped>> mapped;
        rma::Hold held = rma::Hold::none;
        int assertion = 0;      ///< of the lock
        bool natively = false;  ///< the MPI has locked it, too
        std::vector<Pending> pending;
    };

    [[nodiscard]] Target& at(const int target) noexcept { return *_targets[static_cast<std::size_t>(target)]; }
    void refresh(int target);
    [[nodiscard]] MappedRegion map(int target, const rma::Region& region, int device);
    void take_lock(int target, rma::Hold how, int assertion);
    [[nodiscard]] int leave(int target);
    [[nodiscard]] std::vector<int> ranks_of(MPI_Group group) const;
    [[nodiscard]] std::vector<std::unique_lock<std::mutex>> complete_alone(int target);
    [[nodiscard]] std::vector<Pending> take(int target);
    static std::optional<Error> finish(std::vector<Pending>& pending);
    static void store(std::vector<Pending>& pending, std::optional<Error>& failure);

    const MPI_Win _handle;
    const WindowSpec _spec;
    const std::unique_ptr<rma::Exposure> _exposure;
    const std::unique_ptr<rma::HostMirror> _mirror;
    const bool _mirrored = false;
    int _own = -1;  ///< this process among the members; only of windows over host mirrors
    MPI_Group _group = MPI_GROUP_NULL;
    std::vector<std::unique_ptr<Target>> _targets;
    std::atomic<bool> _fence{false};
    std::uint64_t _fences = 0;
    std::atomic<bool> _all{false};  ///< within MPI_Win_lock_all
    std::atomic<int> _all_assertion{0};
    std::vector<int> _started;  ///< targets of the access epoch
    std::vector<int> _origins;  ///< of the exposure epoch
    std::mutex _attached_mutex;
    std::vector<rma::Region> _attached;
};

/// Thread-safe.
class Windows {
  public:
    /// Null for a window that the layer has nothing to do with, at the cost of one load as long as it has with none.
    [[nodiscard]] std::shared_ptr<Window> find(MPI_Win handle) const;
    /// The same for a window that it will have.
    [[nodiscard]] std::shared_ptr<Window> find_or_add(MPI_Win handle);
    void add(std::shared_ptr<Window> window);
    void remove(MPI_Win handle);
    /// Before and after a barrier: reconciles what others may reach by locks, since programs take it that such a window
    /// and its memory are one. Costs one load where there is no such window. Tells what has failed.
    [[nodiscard]] std::optional<Error> reconcile_all(Call& call);

  private:
    std::atomic<std::size_t> _count{0};
    std::atomic<std::size_t> _mirrors{0};  ///< of this process's memory, which others may lock
    mutable std::shared_mutex _mutex;
    std::unordered_map<MPI_Win, std::shared_ptr<Window>> _windows;
};

[[nodiscard]] Windows& windows();

/// Called while a process waits for another one in a window: others may need this process's MPI before they get on.
void keep_going();

// The parts of the family's table.
[[nodiscard]] Services window_services();           ///< create.cpp
[[nodiscard]] Services synchronisation_services();  ///< synchronise.cpp

}  // namespace awaken::AWAKEN_ABI
