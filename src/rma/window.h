// SPDX-License-Identifier: Apache-2.0
// The windows in which the layer has a part, and what it still has to do for each.
//
// The program always holds a window of the MPI's. This table knows which windows have device memory somewhere, and
// which have operations under way whose buffers are device memory here. The MPI reaches a target's host memory. This
// process reaches a target's device memory by copies and kernels of its own, over IPC; the target has no part in that.
// The MPI does fence, post, start, complete and wait, after the layer has finished its own work. Locks are the layer's.
// The layer takes a lock from the MPI in addition when the first operation goes through the MPI.
//
// If members cannot reach each other's device memory, the window is the MPI's altogether, over a host mirror in host
// memory (see device/host_mirror.h). The layer then only reconciles the two when the program synchronises.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
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
    /// True when the copy is over. Throws Error, each time, when it failed.
    [[nodiscard]] bool poll();
    /// Waits for the end.
    void finish();

  private:
    template <class Step>
    [[nodiscard]] bool attempt(const Step& step);

    std::mutex _mutex;
    transfer::DeviceCopies::Copy _copy;
    std::optional<Error> _error;
};

/// What remains to be done for an operation when an epoch ends, or at a flush.
struct Pending {
    std::shared_ptr<Transfer> transfer;      ///< the layer has to finish it
    std::shared_ptr<Stage> staging_buffers;  ///< the layer stores them once the MPI has completed the operation
    std::weak_ptr<Operation> request;        ///< its staging buffers are stored then
};

/// Device memory of a target, as this process reaches it.
struct MappedRegion {
    std::byte* address = nullptr;
    gpu::PointerInfo info;
    /// Memory of this process: the work that its program gave to the default stream has to be over.
    bool is_own = false;
};

/// How a window of ours was made.
struct WindowSpec {
    int flavor = MPI_WIN_FLAVOR_CREATE;
    void* base = nullptr;  ///< the address that the program sees
    MPI_Aint bytes = 0;
    int unit = 1;
    int device = -1;  ///< the device for copies whose origin is in no device's memory
    bool is_device_memory = false;
    bool passive = true;  ///< others may lock it: the info does not say no_locks
    /// Memory that the layer has allocated for the window. Null: the memory is the program's.
    std::shared_ptr<void> memory;
};

class Window {
  public:
    /// A window of the MPI's, used by operations whose buffers are device memory here.
    explicit Window(MPI_Win handle);
    /// A member's memory, as far as it is known.
    struct Extent {
        std::int64_t bytes = -1;  ///< for a window over host mirrors; -1: not known
        std::int64_t unit = 1;
    };
    /// A window with device memory somewhere. Without `exposure` it is the MPI's over host mirrors, in the place of one
    /// with device memory that others cannot reach. `mirror`: that of this process's device memory, if it has some.
    Window(MPI_Win handle, WindowSpec spec, std::unique_ptr<rma::Exposure> exposure,
           std::unique_ptr<rma::HostMirror> mirror, const std::vector<Extent>& extents);
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
    /// False: the MPI refuses the displacement, whatever it is applied to. In a dynamic window it is an address.
    [[nodiscard]] bool may_start_at(const MPI_Aint displacement) const noexcept {
        return displacement >= 0 || _spec.flavor == MPI_WIN_FLAVOR_DYNAMIC;
    }

    // ---- only of windows over host mirrors --------------------------------------------------------------------------
    /// Makes this process's host mirror and its device memory the same.
    void reconcile(Call& call);
    [[nodiscard]] bool has_mirror() const noexcept { return _mirror != nullptr; }
    [[nodiscard]] int own() const noexcept { return _own; }
    /// Called before each operation. Throws ClassedError when the operation leaves the target's memory.
    void enter_mirrored(const Call& call, int target, MPI_Aint displacement, std::int64_t count, MPI_Datatype type);
    /// The host mirror of a result buffer that lies in this process's own window memory: others may read there as soon
    /// as the operation is complete. Null for any other buffer.
    [[nodiscard]] void* mirror_of_result(Call& call, int target, const void* address, std::int64_t count,
                                         MPI_Datatype type);
    /// Whether operations of this process on this target (-1: on any) may have changed its own host mirror since the
    /// last such call. To be called when the operations are complete.
    [[nodiscard]] bool take_own_changes(int target) noexcept;

    /// For windows of ours, and for those over host mirrors.
    [[nodiscard]] const WindowSpec& spec() const noexcept { return _spec; }

    // ---- only of windows of ours ------------------------------------------------------------------------------------
    [[nodiscard]] rma::Exposure& exposure() const noexcept { return *_exposure; }
    /// Maps what all members show, for this process's own device. Throws Error when some of it cannot be mapped.
    void map_all();
    /// Finds device memory for the bytes [begin, end) from `displacement` on. Nothing when it is not device memory: the
    /// MPI has to do the operation. Throws ClassedError when the bytes leave the window. An empty range counts as being
    /// in any memory.
    [[nodiscard]] std::optional<MappedRegion> reach(const Call& call, int target, MPI_Aint displacement,
                                                    std::int64_t begin, std::int64_t end, int device);
    /// Called before each operation: checks that the program may access the target now. Takes the lock of an
    /// MPI_Win_lock_all, unless it is taken already. Throws ClassedError outside an epoch.
    void enter(const Call& call, int target);
    /// The same for an operation that is then given to the MPI.
    [[nodiscard]] int enter_natively(const Call& call, int target);

    /// A member's part of a shared window, where this process has mapped it. MPI_PROC_NULL: the first part that is not
    /// empty.
    struct Slice {
        void* base = nullptr;
        std::int64_t bytes = 0, unit = 1;
    };
    [[nodiscard]] Slice slice_of(int target);
    void attach(const Call& call, void* base, MPI_Aint bytes, const gpu::PointerInfo& info);
    /// False when the memory is not one of the attached device regions.
    [[nodiscard]] bool detach(const void* base);
    /// Waits for the work that the program gave to the default stream of its window memory's device, since others are
    /// about to access that memory.
    void make_own_memory_ready() const;
    /// The same for a caller that has something else to do even after a failure.
    [[nodiscard]] std::optional<Error> try_to_make_own_memory_ready() const;

    // ---- epochs -----------------------------------------------------------------------------------------------------
    void lock(const Call& call, int target, rma::Hold how, int assertion);
    [[nodiscard]] int unlock(const Call& call, int target);
    void lock_all(const Call& call, int assertion);
    [[nodiscard]] int unlock_all(const Call& call);
    /// Called before and after a fence of the MPI's.
    void begin_fence();
    void end_fence(bool open);
    /// Called before and after MPI_Win_start of the MPI's: waits for the posts of these targets, and begins the epoch.
    /// The first throws Error when one of them has died. A group that the MPI will refuse has no targets.
    [[nodiscard]] std::vector<int> await_posts(MPI_Group group);
    void start(std::vector<int> targets);
    void post(MPI_Group group);
    /// The other ends of start and post.
    void complete();
    [[nodiscard]] bool may_wait() const noexcept { return !_origins.empty(); }
    /// Waits until these origins have completed. Throws Error when one of them has died before.
    void wait();
    /// Whether the MPI has a part in the passive epoch with this target.
    [[nodiscard]] bool is_locked_natively(int target);
    void expect_passive(const Call& call, int target);

    // ---- what is under way ------------------------------------------------------------------------------------------
    void add(int target, Pending pending);
    /// Finishes the layer's own operations to a target (-1: to all) that were started so far, lets `native` do the
    /// MPI's part, and stores what has arrived through the MPI. The MPI's part is done whatever fails before.
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
        /// Held by one synchronisation with the target at a time. A thread that finds nothing to finish must not return
        /// while another thread is still finishing.
        std::mutex completing;
        std::mutex entering;                   ///< held by the one thread that waits for the target's lock
        std::atomic<bool> own_changes{false};  ///< see take_own_changes()
        std::mutex mutex;                      ///< guards everything below that changes
        Extent extent;
        std::uint64_t version = 0;  ///< of the regions
        std::vector<rma::Region> regions;
        std::vector<std::unique_ptr<Mapped>> mapped;
        rma::Hold held = rma::Hold::none;
        int assertion = 0;      ///< of the lock
        bool natively = false;  ///< the MPI has locked the target, too
        std::vector<Pending> pending;
    };

    [[nodiscard]] Target& at(const int target) noexcept { return *_targets[static_cast<std::size_t>(target)]; }
    /// One target, or all of them (-1).
    [[nodiscard]] std::span<const std::unique_ptr<Target>> some(const int target) const noexcept {
        const std::span<const std::unique_ptr<Target>> all(_targets);
        return target < 0 ? all : all.subspan(static_cast<std::size_t>(target), 1);
    }
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
    int _own = -1;  ///< this process's place among the members
    MPI_Group _group = MPI_GROUP_NULL;
    std::vector<std::unique_ptr<Target>> _targets;
    std::atomic<bool> _fence{false};
    std::uint64_t _fences = 0;
    std::atomic<bool> _all{false};  ///< within MPI_Win_lock_all
    std::atomic<int> _all_assertion{0};
    std::vector<int> _started;  ///< targets of the access epoch
    std::vector<int> _origins;  ///< origins of the exposure epoch
    std::mutex _attached_mutex;
    std::vector<rma::Region> _attached;
};

/// Thread-safe.
class Windows {
  public:
    /// Null for a window in which the layer has no part. Costs one load as long as the layer has a part in none.
    [[nodiscard]] std::shared_ptr<Window> find(MPI_Win handle) const;
    /// The same for a window in which the layer is about to have a part.
    [[nodiscard]] std::shared_ptr<Window> find_or_add(MPI_Win handle);
    void add(std::shared_ptr<Window> window);
    void remove(MPI_Win handle);
    /// Called before and after a barrier. Reconciles what others may reach by locks, since programs take it for granted
    /// that such a window and its memory are one. Costs one load if there is no such window. Returns what failed.
    [[nodiscard]] std::optional<Error> reconcile_all(Call& call);

  private:
    std::atomic<std::size_t> _count{0};
    std::atomic<std::size_t> _mirrors{0};  ///< mirrors of this process's memory that others may lock
    mutable std::shared_mutex _mutex;
    std::unordered_map<MPI_Win, std::shared_ptr<Window>> _windows;
};

[[nodiscard]] Windows& windows();

/// Called while a process waits for another one in a window. Lets this process's MPI go on, since the other process may
/// need that.
void keep_going();

// The parts of the family's table.
[[nodiscard]] Services window_services();           ///< create.cpp
[[nodiscard]] Services synchronisation_services();  ///< synchronise.cpp

}  // namespace awaken::AWAKEN_ABI
