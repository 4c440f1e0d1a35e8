// SPDX-License-Identifier: Apache-2.0
// How windows are made and freed, and what they say of themselves.
//
// Making a window is collective, and all members decide alike what becomes of it. If all members are known to run the
// layer, they tell each other by one small reduction whether some member passes device memory. If none does, the window
// is the MPI's alone. Else, if all members reach all of the memory, it is the layer's in all of them. Otherwise it is
// the MPI's over host mirrors.

#include <cstring>
#include <span>

#include "call/object_life.h"
#include "call/progress.h"
#include "gpu/memory_kinds.h"
#include "rma/window.h"

namespace awaken::AWAKEN_ABI {

using rma::Exposure;
using rma::HostMirror;
using rma::Region;

void keep_going() {
    progress_mpi();
    layer().requests.advance_progress_ops();
}

namespace {

/// What members tell each other, as bits: that a member has device memory, and all that keeps a window from having it.
enum Said : std::uint32_t {
    has_device_memory = 1,
    has_no_link = 2,
    must_not_read = 4,
    cannot_export = 8,
    cannot_allocate = 16
};

/// Why members cannot reach each other's memory.
std::string reason_of(const std::uint32_t said, const bool same_node) {
    if (!same_node) {
        return "its ranks are not all on one node";
    }
    if ((said & must_not_read) != 0) {
        return "AWAKEN_PATH=ring keeps ranks from reaching each other's memory";
    }
    if ((said & has_no_link) != 0) {
        return "a rank uses no GPU or has no direct paths";
    }
    return "IPC cannot export its memory (of a memory pool, or the runtime refuses)";
}

[[noreturn]] void refuse(const Call& call, const std::string& why) {
    throw ClassedError(MPI_ERR_UNSUPPORTED_OPERATION, std::string(call.name()) + ": " + why,
                       "use host memory for the window, or cudaMalloc or hipMalloc on GPUs of one node that reach "
                       "each other");
}

[[noreturn]] void refuse_for_memory(const Call& call, const std::string& why) {
    throw ClassedError(MPI_ERR_NO_MEM, std::string(call.name()) + ": " + why, "free some, or make a smaller window");
}

std::uint32_t obstacles() {
    Layer& owner = layer();
    static_cast<void>(owner.gpu());  // a GPU that was not used yet brings the link up
    std::uint32_t said = 0;
    if (owner.node_peers.link() == nullptr || owner.node_peers.engine() == nullptr) {
        said |= has_no_link;
    }
    if (owner.settings.path == NodePath::ring) {
        said |= must_not_read;
    }
    return said;
}

/// Refuses wrong arguments before this member says anything to others. A member that goes on after the MPI's error
/// would be out of step with them.
void check_measures(const Call& call, const MPI_Aint bytes, const std::int64_t unit) {
    if (bytes < 0) {
        throw ClassedError(MPI_ERR_SIZE, std::string(call.name()) + ": the size is " + std::to_string(bytes),
                           "check how it is computed");
    }
    if (unit <= 0) {
        throw ClassedError(MPI_ERR_DISP,
                           std::string(call.name()) + ": the displacement unit is " + std::to_string(unit),
                           "pass 1, or the size of an element");
    }
}

/// What this member brings to the window.
struct WindowProposal {
    WindowSpec spec;
    std::uint32_t said = obstacles();
    Region region;  ///< of no bytes: the memory is host memory

    /// Sets device memory of the program or of the layer, whose kind is known.
    void show(void* const base, const MPI_Aint bytes, const gpu::PointerInfo& info) {
        Layer& owner = layer();
        said |= has_device_memory;
        spec.is_device_memory = true;
        region.begin = reinterpret_cast<std::uint64_t>(base);
        region.bytes = static_cast<std::uint64_t>(bytes);
        spec.device = info.device;
        ipc::Link* const link = owner.node_peers.link();
        if (!info.ipc_capable || link == nullptr || !link->exports().describe(base, info, region.location).ok()) {
            said |= cannot_export;
            return;
        }
        static_cast<void>(owner.gpu().order_after_default_stream(base, info));
    }
};

gpu::PointerInfo classified(const void* const pointer) {
    gpu::PointerInfo info;
    layer().gpu().classify({&pointer, 1}, &info);
    return info;
}

std::uint32_t all_say(const std::uint32_t own, const MPI_Comm comm) {
    std::uint32_t all = 0;
    layer().real.Allreduce(&own, &all, 1, MPI_UINT32_T, MPI_BOR, comm);
    return all;
}

/// Makes a window of ours; `native` makes the MPI's window under it. All members come here alike, and leave alike: with
/// a window, or with the reason why there is none. Returns an error of the MPI's.
template <class MakeNative>
int make_ours(WindowProposal share, const MPI_Comm comm, MPI_Win* const window, std::string& why_not,
              const MakeNative& native) {
    Layer& owner = layer();
    int own = 0, size = 0;
    owner.real.Comm_rank(comm, &own);
    owner.real.Comm_size(comm, &size);
    if (share.spec.device < 0) {
        share.spec.device = layer().gpu().device_to_use();
    }
    std::unique_ptr<Exposure> exposure =
        Exposure::make(*owner.node_peers.segment(), owner.node_peers.indices_of(comm), own, keep_going);
    share.region.exporter = share.region.exporter < 0 ? own : share.region.exporter;
    const bool there = exposure != nullptr &&
                       (share.region.bytes == 0 || exposure->publish(std::span<const Region>(&share.region, 1)));
    constexpr std::uint64_t kNothing = ~std::uint64_t{0};
    struct Mine {
        std::uint64_t offset, unit;
    };
    const Mine mine{there ? exposure->own_offset() : kNothing, static_cast<std::uint64_t>(share.spec.unit)};
    std::vector<Mine> all(static_cast<std::size_t>(size));
    owner.real.Allgather(&mine, 2, MPI_UINT64_T, all.data(), 2, MPI_UINT64_T, comm);
    std::vector<std::uint64_t> offsets;
    std::vector<Window::Extent> extents;
    for (const Mine& each : all) {
        offsets.push_back(each.offset);
        extents.push_back({-1, static_cast<std::int64_t>(each.unit)});
        if (each.offset == kNothing) {
            why_not = "a rank has no shared memory left for the window";
        }
    }
    if (!why_not.empty()) {
        return MPI_SUCCESS;
    }
    const bool connected = exposure->connect(offsets);
    MPI_Win handle = MPI_WIN_NULL;
    const int error = native(&handle);
    std::shared_ptr<Window> made;
    std::string own_reason;
    if (error == MPI_SUCCESS && connected) {
        made = std::make_shared<Window>(handle, std::move(share.spec), std::move(exposure), nullptr, extents);
        try {
            made->map_all();
            made->make_own_memory_ready();
        } catch (const Error& failure) {
            own_reason = failure.cause();
            made.reset();
        }
    }
    const int mine_works = made != nullptr ? 1 : 0;
    int all_work = 0;
    owner.real.Allreduce(&mine_works, &all_work, 1, MPI_INT, MPI_MIN, comm);
    if (all_work == 0) {
        why_not = !own_reason.empty() ? own_reason : "a rank cannot map the window memory of others";
        if (handle != MPI_WIN_NULL) {
            owner.real.Win_free(&handle);
        }
        return error;
    }
    windows().add(std::move(made));
    *window = handle;
    return MPI_SUCCESS;
}

/// How to make the MPI's part of a window. Each is a call of the MPI's, the same function in all members.
template <class Plain, class WithoutDevice, class OverMirror>
struct Ways {
    Plain plain;                   ///< the program's own call
    WithoutDevice without_device;  ///< makes a window with host memory only, into the given handle
    OverMirror over_mirror;   ///< makes one with this host mirror in the place of device memory; null: as the program's
    bool memory_comes_later;  ///< over_mirror gives the host mirror its memory
};

/// Makes a window of the MPI's over host mirrors. `agreed`: all members come here.
template <class AllWays>
int make_mirrored(const Call& call, WindowProposal share, const MPI_Comm comm, MPI_Win* const window, const bool agreed,
                  const std::string& why, const AllWays& ways) {
    Layer& owner = layer();
    std::unique_ptr<HostMirror> mirror;
    std::optional<Error> failure;
    bool works = true;
    if (share.region.bytes != 0) {
        const HostMirror::Resources resources{owner.gpu(), owner.copier(), owner.pool};
        const gpu::PointerInfo info = classified(share.spec.base);
        try {
            mirror = (ways.memory_comes_later ? HostMirror::make_for_later : HostMirror::make)(
                resources, share.spec.base, static_cast<std::size_t>(share.region.bytes), info);
        } catch (const Error& error) {
            failure = error;
        }
        works = mirror != nullptr;
    }
    struct Mine {
        std::int64_t works, bytes, unit;
    };
    const Mine mine{works ? 1 : 0, static_cast<std::int64_t>(share.spec.bytes), share.spec.unit};
    int size = 0;
    owner.real.Comm_size(comm, &size);
    std::vector<Window::Extent> extents(static_cast<std::size_t>(size));
    if (agreed) {
        std::vector<Mine> all(static_cast<std::size_t>(size));
        owner.real.Allgather(&mine, 3, MPI_INT64_T, all.data(), 3, MPI_INT64_T, comm);
        for (std::size_t member = 0; member < all.size(); ++member) {
            works = works && all[member].works != 0;
            extents[member] = {all[member].bytes, all[member].unit};
        }
    } else if (!works) {
        // Ranks that run without the layer must not be left waiting.
        static_cast<void>(ways.without_device(window));
    }
    if (!works) {
        *window = MPI_WIN_NULL;
        if (failure) {
            throw Error(*failure);
        }
        refuse_for_memory(call, "a rank has no host memory left to keep a copy of its device memory in the window");
    }
    MPI_Win handle = MPI_WIN_NULL;
    if (const int error = ways.over_mirror(&handle, mirror.get()); error != MPI_SUCCESS) {
        return error;
    }
    owner.ledger.add_fallback(call.name(), "served by the MPI through host memory: " + why);
    windows().add(std::make_shared<Window>(handle, std::move(share.spec), nullptr, std::move(mirror), extents));
    *window = handle;
    return MPI_SUCCESS;
}

/// Makes a window of the memory that the members bring.
template <class AllWays>
int make(const Call& call, const WindowProposal& share, const MPI_Comm comm, MPI_Win* const window,
         const AllWays& ways) {
    using Membership = NodePeers::Membership;
    const Membership membership = layer().node_peers.membership_of(comm);
    if (membership == Membership::unknown) {
        if ((share.said & has_device_memory) == 0) {
            return ways.plain();
        }
        if ((share.said & cannot_allocate) != 0) {
            static_cast<void>(ways.without_device(window));
            *window = MPI_WIN_NULL;
            refuse_for_memory(call, "the device memory that was asked for could not be allocated");
        }
        // This rank cannot agree with ranks that run without the layer, and need not.
        return make_mirrored(
            call, share, comm, window, false,
            "not all of its ranks are known to run with Awaken (" + layer().node_peers.why_no_link() + ")", ways);
    }
    check_measures(call, share.spec.bytes, share.spec.unit);
    const std::uint32_t all = all_say(share.said, comm);
    if ((all & has_device_memory) == 0) {
        return ways.plain();
    }
    if ((all & cannot_allocate) != 0) {
        *window = MPI_WIN_NULL;
        refuse_for_memory(call, "a rank could not allocate the device memory that was asked for");
    }
    const bool same_node = membership == Membership::one_node;
    std::string why_not;
    if (all == has_device_memory && same_node) {
        const int error = make_ours(share, comm, window, why_not, ways.without_device);
        if (error != MPI_SUCCESS || why_not.empty()) {
            return error;
        }
    } else {
        why_not = reason_of(all, same_node);
    }
    return make_mirrored(call, share, comm, window, true, why_not, ways);
}

/// Whether others may lock the window.
bool allows_locks(const MPI_Info info) {
    return info_value(info, "no_locks") != "true";
}

/// MPI_Win_create(base, size, disp_unit, info, comm, win).
struct CreateWindow {
    template <Function function, class Unit>
    static int run(Call& call, void* base, MPI_Aint size, Unit unit, MPI_Info info, MPI_Comm comm, MPI_Win* window) {
        call.on(comm);
        const auto plain = [&] { return below<function>()(base, size, unit, info, comm, window); };
        if (comm == MPI_COMM_NULL) {
            return plain();
        }
        WindowProposal share;
        share.spec.base = base;
        share.spec.bytes = size;
        share.spec.unit = static_cast<int>(unit);
        if (size > 0) {
            if (const gpu::PointerInfo memory = classified(base); memory.kind == gpu::MemoryKind::device) {
                share.show(base, size, memory);
            }
        }
        share.spec.passive = allows_locks(info);
        const bool device = share.region.bytes != 0;
        const auto over = [&](void* const memory, const MPI_Aint bytes, MPI_Win* const handle) {
            return below<function>()(memory, bytes, unit, info, comm, handle);
        };
        return make(
            call, share, comm, window,
            Ways{plain, [&](MPI_Win* handle) { return over(device ? nullptr : base, device ? 0 : size, handle); },
                 [&](MPI_Win* handle, HostMirror* mirror) {
                     return over(mirror != nullptr ? mirror->data() : base, size, handle);
                 },
                 false});
    }
};

// ---- memory of the layer's ------------------------------------------------------------------------------------------

/// Whether the program wants GPU memory for the window.
bool asks_for_device_memory(const MPI_Info info) {
    if (info == MPI_INFO_NULL) {
        return false;
    }
    if (info_value(info, "awaken_memory") == "device") {
        return true;
    }
    const std::optional<std::string> kinds = info_value(info, kProvidedKinds);
    return kinds && gpu::kind_to_allocate(*kinds, layer().memory_kinds.runtime_to_allocate_from(*kinds).vendor()) ==
                        gpu::MemoryKind::device;
}

/// Device memory, or host memory, which is freed with the last copy of the pointer. Null when there is none.
std::shared_ptr<void> allocate(const bool device, const MPI_Aint bytes) {
    void* memory = nullptr;
    if (device) {
        gpu::Runtime& runtime = layer().gpu();
        const int on = runtime.device_to_use();
        if (!runtime.allocate(on, static_cast<std::size_t>(bytes), memory).ok()) {
            return nullptr;
        }
        layer().memory_kinds.gave_device_memory();
        return {memory, [&runtime, on](void* gone) { runtime.free_when_idle(gone, on); }};
    }
    if (layer().real.Alloc_mem(bytes, MPI_INFO_NULL, static_cast<void*>(&memory)) != MPI_SUCCESS) {
        return nullptr;
    }
    return {memory, [](void* gone) { layer().real.Free_mem(gone); }};
}

/// MPI_Win_allocate(size, disp_unit, info, comm, baseptr, win).
struct AllocateWindow {
    template <Function function, class Unit>
    static int run(Call& call, MPI_Aint size, Unit unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window) {
        call.on(comm);
        const auto plain = [&] { return below<function>()(size, unit, info, comm, base, window); };
        if (comm == MPI_COMM_NULL) {
            return plain();
        }
        WindowProposal share;
        share.spec.flavor = MPI_WIN_FLAVOR_ALLOCATE;
        share.spec.bytes = size;
        share.spec.unit = static_cast<int>(unit);
        const bool device = asks_for_device_memory(info);
        if (device) {
            share.said |= has_device_memory;
            if (size > 0) {
                share.spec.memory = allocate(true, size);
                if (share.spec.memory != nullptr) {
                    share.show(share.spec.memory.get(), size, classified(share.spec.memory.get()));
                } else {
                    share.said |= cannot_allocate;
                }
            }
            share.spec.base = share.spec.memory.get();
        }
        share.spec.passive = allows_locks(info);
        void* const seen = share.spec.base;
        const auto allocate_natively = [&](const MPI_Aint bytes, void*& memory, MPI_Win* const handle) {
            const int error = below<function>()(bytes, unit, info, comm, static_cast<void*>(&memory), handle);
            if (error == MPI_SUCCESS) {
                void* const shown = device ? seen : memory;
                std::memcpy(base, static_cast<const void*>(&shown), sizeof shown);
            }
            return error;
        };
        return make(call, share, comm, window,
                    Ways{plain,
                         [&](MPI_Win* handle) {
                             void* memory = nullptr;
                             return allocate_natively(device ? 0 : size, memory, handle);
                         },
                         [&](MPI_Win* handle, HostMirror* mirror) {
                             void* memory = nullptr;
                             const int error = allocate_natively(size, memory, handle);
                             if (error == MPI_SUCCESS && mirror != nullptr) {
                                 mirror->stand_in(static_cast<std::byte*>(memory));
                                 static_cast<void>(mirror->reconcile());  // others may have put already
                             }
                             return error;
                         },
                         true});
    }
};

/// Memory that others can load and store: one allocation of the first member's, or one of each member's if the members'
/// parts need not follow each other.
class SharedAllocation {
  public:
    SharedAllocation(const MPI_Comm comm, const MPI_Aint bytes, const bool apart) : _comm(comm) {
        const Native& native = layer().real;
        int size = 0;
        native.Comm_rank(comm, &_rank);
        native.Comm_size(comm, &size);
        std::vector<MPI_Aint> all(static_cast<std::size_t>(size));
        native.Allgather(&bytes, 1, MPI_AINT, all.data(), 1, MPI_AINT, comm);
        MPI_Aint total = 0;
        for (int rank = 0; rank < size; ++rank) {
            _before += rank < _rank ? all[static_cast<std::size_t>(rank)] : 0;
            total += all[static_cast<std::size_t>(rank)];
        }
        if (apart) {
            _before = 0;
            total = bytes;
        }
        // The member that allocates describes the memory. All members have a part of a single allocation.
        const bool allocates = apart || _rank == 0;
        struct Shown {
            std::uint64_t works = 0;
            transfer::Location location;
        } shown;
        if (allocates && total > 0) {
            _memory = allocate(true, total);
            ipc::Link* const link = layer().node_peers.link();
            shown.works =
                _memory != nullptr && link != nullptr &&
                        link->exports().describe(_memory.get(), classified(_memory.get()), shown.location).ok()
                    ? 1
                    : 0;
        } else {
            shown.works = 1;
        }
        if (!apart) {
            native.Bcast(&shown, static_cast<int>(sizeof shown), MPI_BYTE, 0, comm);
        }
        works = shown.works != 0;
        if (!works || bytes == 0) {
            return;
        }
        region.bytes = static_cast<std::uint64_t>(bytes);
        region.exporter = apart ? _rank : 0;
        region.location = shown.location;
        region.location.offset += static_cast<std::uint64_t>(_before);
        base = allocates ? static_cast<std::byte*>(_memory.get()) + _before : map();
        region.begin = reinterpret_cast<std::uint64_t>(base);
    }

    bool works = false;
    Region region;
    void* base = nullptr;
    [[nodiscard]] const std::shared_ptr<void>& memory() const noexcept { return _memory; }

  private:
    /// Maps the other member's memory for as long as the window lives.
    void* map() {
        ipc::Link* const link = layer().node_peers.link();
        gpu::Status status;
        auto use = std::make_shared<transfer::Mappings::Use>(link->mappings().open(
            layer().node_peers.indices_of(_comm).front(), region.location, layer().gpu().device_to_use(), status));
        works = static_cast<bool>(*use);
        std::byte* const mapped = works ? use->data() : nullptr;
        _memory = std::move(use);
        return mapped;
    }

    MPI_Comm _comm;
    MPI_Aint _before = 0;
    int _rank = 0;
    std::shared_ptr<void> _memory;
};

/// MPI_Win_allocate_shared(size, disp_unit, info, comm, baseptr, win).
struct AllocateSharedWindow {
    template <Function function, class Unit>
    static int run(Call& call, MPI_Aint size, Unit unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window) {
        using Membership = NodePeers::Membership;
        call.on(comm);
        const auto plain = [&] { return below<function>()(size, unit, info, comm, base, window); };
        if (comm == MPI_COMM_NULL) {
            return plain();
        }
        const Membership membership = layer().node_peers.membership_of(comm);
        const bool asked = asks_for_device_memory(info);
        if (membership == Membership::unknown) {
            if (!asked) {
                return plain();
            }
            // The program only wishes for a kind of memory. Without the other ranks' consent it is the MPI's.
            layer().ledger.add_fallback(call.name(), "host memory: not all ranks are known to run with Awaken");
            return plain();
        }
        check_measures(call, size, unit);
        const std::uint32_t all = all_say(asked ? obstacles() | has_device_memory : 0, comm);
        if (all == 0) {
            return plain();
        }
        const bool same_node = membership == Membership::one_node;
        // All members have to ask for it, since shared memory is of one kind.
        const std::uint32_t without = all_say(asked ? 0 : 1, comm);
        *window = MPI_WIN_NULL;
        if (all != has_device_memory || !same_node) {
            refuse(call, "device memory cannot be shared: " + reason_of(all, same_node));
        }
        if (without != 0) {
            refuse(call, "not all ranks ask for device memory");
        }
        const bool apart = info_value(info, "alloc_shared_noncontig") == "true";
        const bool all_apart = all_say(apart ? 0 : 1, comm) == 0;
        SharedAllocation allocation(comm, size, all_apart);
        if (all_say(allocation.works ? 0 : 1, comm) != 0) {
            refuse(call, "a rank could not allocate the device memory that was asked for, or cannot reach it");
        }
        WindowProposal share;
        share.spec.flavor = MPI_WIN_FLAVOR_SHARED;
        share.spec.base = allocation.base;
        share.spec.bytes = size;
        share.spec.unit = static_cast<int>(unit);
        share.spec.memory = allocation.memory();
        share.spec.is_device_memory = true;
        share.region = allocation.region;
        std::string why_not;
        // Below the layer, a window over memory that the layer has allocated is one of MPI_Win_create.
        const int error = make_ours(std::move(share), comm, window, why_not, [&](MPI_Win* handle) {
            return layer().real.Win_create(nullptr, 0, static_cast<int>(unit), info, comm, handle);
        });
        if (error == MPI_SUCCESS && !why_not.empty()) {
            refuse(call, why_not);
        }
        if (error == MPI_SUCCESS) {
            std::memcpy(base, static_cast<const void*>(&allocation.base), sizeof allocation.base);
        }
        return error;
    }
};

/// MPI_Win_shared_query(win, rank, size, disp_unit, baseptr): where this process has another member's part.
struct QueryShared {
    template <Function function, class Size, class Unit>
    static int run(Call& call, MPI_Win handle, int rank, Size* size, Unit* unit, void* base) {
        call.on_window(handle);
        const std::shared_ptr<Window> window = windows().find(handle);
        if (window != nullptr && window->has_mirror()) {
            // Some MPIs answer for any window, but they know the host mirrors only. This process can load and store no
            // memory but its own.
            const bool own = rank == window->own();
            const WindowSpec& spec = window->spec();
            *size = own ? static_cast<Size>(spec.bytes) : Size{0};
            *unit = static_cast<Unit>(spec.unit);
            void* const there = own ? spec.base : nullptr;
            std::memcpy(base, static_cast<const void*>(&there), sizeof there);
            return MPI_SUCCESS;
        }
        if (window == nullptr || !window->is_ours() || window->spec().flavor != MPI_WIN_FLAVOR_SHARED ||
            (rank != MPI_PROC_NULL && !window->has(rank))) {
            return below<function>()(handle, rank, size, unit, base);
        }
        const Window::Slice slice = window->slice_of(rank);
        *size = static_cast<Size>(slice.bytes);
        *unit = static_cast<Unit>(slice.unit);
        std::memcpy(base, static_cast<const void*>(&slice.base), sizeof slice.base);
        return MPI_SUCCESS;
    }
};

// ---- dynamic windows ------------------------------------------------------------------------------------------------

/// MPI_Win_create_dynamic(info, comm, win). The layer does not know yet what will be attached, so the window is ours
/// wherever it can be.
struct CreateDynamicWindow {
    template <Function function>
    static int run(Call& call, MPI_Info info, MPI_Comm comm, MPI_Win* window) {
        call.on(comm);
        const auto plain = [&](MPI_Win* handle) { return below<function>()(info, comm, handle); };
        if (comm == MPI_COMM_NULL || layer().node_peers.membership_of(comm) != NodePeers::Membership::one_node) {
            return plain(window);
        }
        WindowProposal share;
        share.spec.flavor = MPI_WIN_FLAVOR_DYNAMIC;
        if (all_say(share.said, comm) != 0) {
            return plain(window);
        }
        std::string why_not;
        const int error = make_ours(std::move(share), comm, window, why_not, plain);
        if (why_not.empty()) {
            return error;
        }
        layer().ledger.add_fallback(call.name(), "host memory only: " + why_not);
        return plain(window);
    }
};

struct Attach {
    template <Function function>
    static int run(Call& call, MPI_Win handle, void* base, MPI_Aint size) {
        call.on_window(handle);
        if (size > 0) {
            const gpu::PointerInfo info = classified(base);
            if (info.kind == gpu::MemoryKind::device) {
                const std::shared_ptr<Window> window = windows().find(handle);
                if (window == nullptr || !window->is_ours()) {
                    throw ClassedError(
                        MPI_ERR_UNSUPPORTED_OPERATION,
                        std::string(call.name()) +
                            ": the attached memory is device memory, and the "
                            "window's ranks cannot reach each other's (another node, no GPU, or AWAKEN_PATH)",
                        "attach host memory");
                }
                window->attach(call, base, size, info);
                return MPI_SUCCESS;
            }
        }
        return below<function>()(handle, base, size);
    }
};

struct Detach {
    template <Function function>
    static int run(Call& call, MPI_Win handle, const void* base) {
        call.on_window(handle);
        const std::shared_ptr<Window> window = windows().find(handle);
        if (window != nullptr && window->is_ours() && window->detach(base)) {
            return MPI_SUCCESS;
        }
        return below<function>()(handle, base);
    }
};

// ---- the end, and questions -----------------------------------------------------------------------------------------

/// Keeps the error handler of a window that is about to be freed. Errors after that are still raised there.
class LastHandler {
  public:
    explicit LastHandler(const MPI_Win window) { layer().real.Win_get_errhandler(window, &_handler); }
    LastHandler(const LastHandler&) = delete;
    LastHandler& operator=(const LastHandler&) = delete;
    ~LastHandler() {
        if (_stand_in != MPI_WIN_NULL) {
            layer().real.Win_free(&_stand_in);
        }
        // Asking for the handler has made one more reference, predefined or not.
        layer().real.Errhandler_free(&_handler);
    }
    /// Raises the error. A window's handler is called with a window, so this makes one of this process alone, without
    /// memory.
    int fail(Call& call, const Error& error) {
        const Native& native = layer().real;
        call.on(MPI_COMM_SELF);
        if (native.Win_create(nullptr, 0, 1, MPI_INFO_NULL, MPI_COMM_SELF, &_stand_in) == MPI_SUCCESS) {
            native.Win_set_errhandler(_stand_in, _handler);
            call.on_window(_stand_in);
        }
        return call.fail(MPI_ERR_OTHER, error);
    }

  private:
    MPI_Errhandler _handler = MPI_ERRHANDLER_NULL;
    MPI_Win _stand_in = MPI_WIN_NULL;
};

struct FreeWindow {
    template <Function function>
    static int run(Call& call, MPI_Win* handle) {
        std::shared_ptr<Window> window = handle != nullptr ? windows().find(*handle) : nullptr;
        if (window == nullptr) {
            return below<function>()(handle);
        }
        call.on_window(*handle);
        LastHandler handler(*handle);
        bool freed = false;
        // Removed before the MPI frees the window: the handle's value may be another window's right after that.
        windows().remove(*handle);
        try {
            const int error = window->complete_and(-1, [&] {
                const int code = below<function>()(handle);
                freed = code == MPI_SUCCESS;
                return code;
            });
            if (error != MPI_SUCCESS) {
                windows().add(std::move(window));
                return error;
            }
            // The memory that the MPI allocated is gone, and so is the device memory that it stood for.
            if (window->is_mirrored() && window->spec().flavor != MPI_WIN_FLAVOR_ALLOCATE) {
                window->reconcile(call);
            }
        } catch (const Error& error) {
            if (!freed) {
                windows().add(std::move(window));
                throw;
            }
            return handler.fail(call, error);
        }
        return MPI_SUCCESS;
    }
};

/// The answer for an attribute, where the MPI's window differs from the program's: what the attribute points at, or its
/// value. Null: the MPI knows.
const void* answer_of(const Window& window, const int key) {
    const WindowSpec& spec = window.spec();
    if (window.is_mirrored()) {
        static const int separate = MPI_WIN_SEPARATE;
        if (key == MPI_WIN_MODEL) {
            return &separate;
        }
        return key == MPI_WIN_BASE && window.has_mirror() ? spec.base : nullptr;
    }
    if (!window.is_ours() || spec.flavor == MPI_WIN_FLAVOR_DYNAMIC || !spec.is_device_memory) {
        return nullptr;
    }
    switch (key) {
        case MPI_WIN_BASE:
            return spec.base;
        case MPI_WIN_SIZE:
            return &spec.bytes;
        case MPI_WIN_DISP_UNIT:
            return &spec.unit;
        case MPI_WIN_CREATE_FLAVOR:
            return &spec.flavor;
        default:
            return nullptr;
    }
}

struct GetAttribute {
    template <Function function>
    static int run(Call& call, MPI_Win handle, int key, void* value, int* found) {
        call.on_window(handle);
        const std::shared_ptr<Window> window = windows().find(handle);
        const void* const answer = window != nullptr ? answer_of(*window, key) : nullptr;
        if (answer == nullptr) {
            return below<function>()(handle, key, value, found);
        }
        std::memcpy(value, static_cast<const void*>(&answer), sizeof answer);
        *found = 1;
        return MPI_SUCCESS;
    }
};

}  // namespace

Services window_agreement_services() {
    return {
        AWAKEN_SERVE_COUNTS(Win_create, MakeWindow<CreateWindow, 3>),
        AWAKEN_SERVE_COUNTS(Win_allocate, MakeWindow<AllocateWindow, 2>),
        AWAKEN_SERVE_COUNTS(Win_allocate_shared, MakeWindow<AllocateSharedWindow, 2>),
    };
}

Services window_services() {
    return {
        AWAKEN_SERVE_COUNTS(Win_shared_query, QueryShared),
        AWAKEN_SERVE(Win_create_dynamic, MakeWindow<CreateDynamicWindow, 0, 2>),
        AWAKEN_SERVE(Win_attach, Attach),
        AWAKEN_SERVE(Win_detach, Detach),
        AWAKEN_SERVE(Win_free, FreeObject<FreeWindow, NamedObject::Type::window>),
        AWAKEN_SERVE(Win_get_attr, GetAttribute),
    };
}

}  // namespace awaken::AWAKEN_ABI
