// SPDX-License-Identifier: Apache-2.0
#include "rma/window.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace awaken::AWAKEN_ABI {

using rma::Hold;
using rma::Region;

namespace {

[[noreturn]] void no_epoch(const Call& call, const char* const what) {
    throw ClassedError(MPI_ERR_RMA_SYNC, std::string(call.name()) + ": " + what,
                       "open an epoch for the target first (fence, start, lock or lock_all)");
}

[[noreturn]] void out_of_range(const Call& call, const int target, const std::int64_t first, const std::int64_t length,
                               const std::int64_t bytes) {
    throw ClassedError(MPI_ERR_RMA_RANGE,
                       std::string(call.name()) + ": bytes " + std::to_string(first) + " to " +
                           std::to_string(first + length) + " of the " + std::to_string(bytes) + " of rank " +
                           std::to_string(target) + "'s window memory are accessed",
                       "check displacement, count and type of the target");
}

}  // namespace

// ---- Transfer -------------------------------------------------------------------------------------------------------

template <class Step>
bool Transfer::attempt(const Step& step) {
    const std::scoped_lock lock(_mutex);
    if (!_error) {
        try {
            return step();
        } catch (const Error& error) {
            _error = error;
        }
    }
    throw Error(*_error);
}

bool Transfer::poll() {
    return attempt([this] { return _copy.poll(); });
}

void Transfer::finish() {
    static_cast<void>(attempt([this] {
        _copy.wait();
        return true;
    }));
}

// ---- Window ---------------------------------------------------------------------------------------------------------

Window::Window(const MPI_Win handle) : _handle(handle) {
    const Native& native = layer().real;
    int size = 0;
    MPI_Group group = MPI_GROUP_NULL;
    native.Win_get_group(handle, &group);
    native.Group_size(group, &size);
    native.Group_free(&group);
    for (int i = 0; i < size; ++i) {
        _targets.push_back(std::make_unique<Target>());
    }
}

Window::Window(const MPI_Win handle, WindowSpec spec, std::unique_ptr<rma::Exposure> exposure,
               std::unique_ptr<rma::HostMirror> mirror, const std::vector<Extent>& extents)
    : _handle(handle),
      _spec(std::move(spec)),
      _exposure(std::move(exposure)),
      _mirror(std::move(mirror)),
      _mirrored(_exposure == nullptr) {
    const Native& native = layer().real;
    native.Win_get_group(handle, &_group);
    native.Group_rank(_group, &_own);
    for (const Extent& extent : extents) {
        _targets.push_back(std::make_unique<Target>());
        _targets.back()->extent = extent;
    }
}

Window::~Window() {
    if (_group != MPI_GROUP_NULL) {
        layer().real.Group_free(&_group);
    }
}

void Window::refresh(const int target) {
    Target& of = at(target);
    if (_exposure->version(target) == of.version) {
        return;
    }
    of.regions = _exposure->regions(target, of.version);
    // Regions that are no longer shown are unmapped. The others keep their mappings.
    std::erase_if(of.mapped, [&](const std::unique_ptr<Mapped>& mapped) {
        return std::none_of(of.regions.begin(), of.regions.end(), [&](const Region& region) {
            return region.begin == mapped->region.begin && region.bytes == mapped->region.bytes &&
                   region.location.allocation_id == mapped->region.location.allocation_id &&
                   region.location.address == mapped->region.location.address &&
                   region.location.handle == mapped->region.location.handle;
        });
    });
}

MappedRegion Window::map(const int target, const Region& region, const int device) {
    Layer& owner = layer();
    Target& of = at(target);
    const bool is_own = region.exporter == _exposure->own();
    for (const std::unique_ptr<Mapped>& mapped : of.mapped) {
        if (mapped->region.begin == region.begin && (is_own || mapped->device == device)) {
            return {mapped->base, mapped->info, is_own};
        }
    }
    auto made = std::make_unique<Mapped>();
    made->region = region;
    made->device = device;
    if (is_own) {
        // Own memory includes another member's part of a shared allocation that is in this process.
        made->base = target == _exposure->own()
                         ? reinterpret_cast<std::byte*>(region.begin)
                         : reinterpret_cast<std::byte*>(region.location.address + region.location.offset);
    } else {
        ipc::Link* const link = owner.node_peers.link();
        gpu::Status status;
        if (link != nullptr) {
            made->use = link->mappings().open(_exposure->process_of(region.exporter), region.location, device, status);
        }
        if (!made->use) {
            throw Error("the window memory of rank " + std::to_string(target) + " cannot be mapped for GPU " +
                            std::to_string(device) + " (" + status.message() + ")",
                        "see whether the GPUs reach each other (nvidia-smi topo, rocm-smi --showtopo), and whether the "
                        "processes see each other's GPUs");
        }
        made->base = made->use.data();
    }
    const void* const first = made->base;
    owner.gpu().classify({&first, 1}, &made->info);
    of.mapped.push_back(std::move(made));
    return {of.mapped.back()->base, of.mapped.back()->info, is_own};
}

void Window::map_all() {
    for (int target = 0; target < members(); ++target) {
        const std::scoped_lock lock(at(target).mutex);
        refresh(target);
        for (const Region& region : at(target).regions) {
            static_cast<void>(map(target, region, _spec.device));
        }
    }
}

std::optional<MappedRegion> Window::reach(const Call& call, const int target, const MPI_Aint displacement,
                                          const std::int64_t begin, const std::int64_t end, const int device) {
    Target& of = at(target);
    const std::scoped_lock lock(of.mutex);
    refresh(target);
    if (of.regions.empty()) {
        return std::nullopt;
    }
    const bool dynamic = _spec.flavor == MPI_WIN_FLAVOR_DYNAMIC;
    const int wanted = device >= 0 ? device : _spec.device;
    const auto length = static_cast<std::uint64_t>(end - begin);
    for (const Region& region : of.regions) {
        const std::uint64_t origin =
            dynamic
                ? static_cast<std::uint64_t>(displacement)
                : region.begin + static_cast<std::uint64_t>(static_cast<std::int64_t>(displacement) * of.extent.unit);
        const std::uint64_t first = origin + static_cast<std::uint64_t>(begin);
        if (length == 0 && !dynamic) {
            return MappedRegion{};
        }
        if (region.contains(first, length)) {
            MappedRegion reached = map(target, region, wanted);
            reached.address += static_cast<std::ptrdiff_t>(origin - region.begin);
            return reached;
        }
        if (!dynamic || region.touches(first, length)) {
            out_of_range(call, target, static_cast<std::int64_t>(first - region.begin), end - begin,
                         static_cast<std::int64_t>(region.bytes));
        }
    }
    return std::nullopt;
}

Window::Slice Window::slice_of(const int target) {
    const int first = target == MPI_PROC_NULL ? 0 : target;
    const int last = target == MPI_PROC_NULL ? members() - 1 : target;
    for (int each = first; each <= last; ++each) {
        Target& of = at(each);
        const std::scoped_lock lock(of.mutex);
        refresh(each);
        if (!of.regions.empty()) {
            const Region& region = of.regions.front();
            return {map(each, region, _spec.device).address, static_cast<std::int64_t>(region.bytes), of.extent.unit};
        }
    }
    return {nullptr, 0, at(first).extent.unit};
}

void Window::make_own_memory_ready() const {
    gpu::Runtime& runtime = layer().gpu();
    if (_spec.device >= 0) {
        if (const gpu::Status status = runtime.finish_default_stream(_spec.device); !status.ok()) {
            throw Error("waiting for earlier work on a window's memory failed (" + status.message() + ")",
                        "an error of an earlier kernel of the program is also reported here");
        }
    }
}

std::optional<Error> Window::try_to_make_own_memory_ready() const {
    try {
        make_own_memory_ready();
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

// ---- host mirrors ---------------------------------------------------------------------------------------------------

void Window::reconcile(Call& call) {
    if (_mirror != nullptr) {
        call.account(report::Path::staged, static_cast<std::int64_t>(_mirror->reconcile()));
    }
}

void Window::enter_mirrored(const Call& call, const int target, const MPI_Aint displacement, const std::int64_t count,
                            const MPI_Datatype type) {
    if (target == _own) {
        at(target).own_changes.store(true);
    }
    const auto& [bytes, unit] = at(target).extent;
    if (bytes < 0 || count <= 0 || type == MPI_DATATYPE_NULL) {
        return;  // the MPI reports what is wrong
    }
    const transfer::Layout& layout = layer().datatypes.find(type)->layout;
    if (layout.size() == 0) {
        return;
    }
    const transfer::Layout::Span span = layout.span(count);
    const std::int64_t first = static_cast<std::int64_t>(displacement) * unit + span.begin;
    if (first < 0 || first + (span.end - span.begin) > bytes) {
        out_of_range(call, target, first, span.end - span.begin, bytes);
    }
}

bool Window::take_own_changes(const int target) noexcept {
    bool any = false;
    for (const std::unique_ptr<Target>& each : some(target)) {
        any = each->own_changes.exchange(false) || any;
    }
    return any;
}

void* Window::mirror_of_result(Call& call, const int target, const void* const address, const std::int64_t count,
                               const MPI_Datatype type) {
    if (_mirror == nullptr || address == nullptr || count <= 0 || type == MPI_DATATYPE_NULL) {
        return nullptr;
    }
    const transfer::Layout& layout = layer().datatypes.find(type)->layout;
    const transfer::Layout::Span span = layout.span(count);
    const auto length = static_cast<std::size_t>(span.end - span.begin);
    std::byte* const first =
        length != 0 ? _mirror->of(static_cast<const std::byte*>(address) + span.begin, length) : nullptr;
    if (first == nullptr) {
        return nullptr;
    }
    // Otherwise bytes that the program has stored there before would pass for newer than the result.
    const auto begin = static_cast<std::size_t>(first - _mirror->data());
    call.account(report::Path::staged, static_cast<std::int64_t>(_mirror->reconcile(begin, begin + length)));
    at(target).own_changes.store(true);
    return first - span.begin;
}

// ---- attached memory ------------------------------------------------------------------------------------------------

void Window::attach(const Call& call, void* const base, const MPI_Aint bytes, const gpu::PointerInfo& info) {
    Layer& owner = layer();
    Region region;
    region.begin = reinterpret_cast<std::uint64_t>(base);
    region.bytes = static_cast<std::uint64_t>(bytes);
    region.exporter = _exposure->own();
    const auto refuse = [&](const std::string& why) {
        throw ClassedError(
            MPI_ERR_UNSUPPORTED_OPERATION,
            std::string(call.name()) + ": the attached memory cannot be shared with other ranks (" + why + ")",
            "attach host memory, or device memory of cudaMalloc or hipMalloc");
    };
    if (!info.ipc_capable) {
        refuse("IPC exports no memory of pools");
    }
    ipc::Link* const link = owner.node_peers.link();
    if (link == nullptr) {
        refuse(owner.node_peers.why_no_link());
    }
    if (const gpu::Status status = link->exports().describe(base, info, region.location); !status.ok()) {
        refuse(status.message());
    }
    static_cast<void>(owner.gpu().order_after_default_stream(base, info));
    const std::scoped_lock lock(_attached_mutex);
    std::vector<Region> regions = _attached;
    for (const Region& other : regions) {
        if (other.touches(region.begin, region.bytes)) {
            throw ClassedError(MPI_ERR_RMA_ATTACH, std::string(call.name()) + ": memory is attached twice",
                               "detach it first");
        }
    }
    regions.push_back(region);
    if (!_exposure->publish(regions)) {
        refuse("no shared memory left");
    }
    _attached = std::move(regions);
}

bool Window::detach(const void* const base) {
    const std::scoped_lock lock(_attached_mutex);
    std::vector<Region> regions = _attached;
    if (std::erase_if(regions, [&](const Region& region) {
            return region.begin == reinterpret_cast<std::uint64_t>(base);
        }) == 0) {
        return false;
    }
    if (!_exposure->publish(regions)) {
        throw Error("no shared memory left to say that memory was detached from a window", "free some of /dev/shm");
    }
    _attached = std::move(regions);
    return true;
}

// ---- epochs ---------------------------------------------------------------------------------------------------------

void Window::enter(const Call& call, const int target) {
    Target& of = at(target);
    if (_all.load(std::memory_order_relaxed)) {
        const auto is_held = [&] {
            const std::scoped_lock lock(of.mutex);
            return of.held != Hold::none;
        };
        if (is_held()) {
            return;
        }
        const std::scoped_lock entering(of.entering);
        if (!is_held()) {
            take_lock(target, Hold::shared, _all_assertion.load(std::memory_order_relaxed));
        }
        return;
    }
    if (_fence.load(std::memory_order_relaxed) ||
        std::find(_started.begin(), _started.end(), target) != _started.end()) {
        return;
    }
    const std::scoped_lock lock(of.mutex);
    if (of.held == Hold::none) {
        no_epoch(call, "the target's memory must not be accessed now");
    }
}

int Window::enter_natively(const Call& call, const int target) {
    if (!is_ours()) {
        return MPI_SUCCESS;
    }
    enter(call, target);
    Target& of = at(target);
    const std::scoped_lock lock(of.mutex);
    if (of.held == Hold::none || of.natively) {
        return MPI_SUCCESS;
    }
    const int type = of.held == Hold::exclusive ? MPI_LOCK_EXCLUSIVE : MPI_LOCK_SHARED;
    const int error = layer().real.Win_lock(type, target, of.assertion, _handle);
    of.natively = error == MPI_SUCCESS;
    return error;
}

void Window::lock(const Call& call, const int target, const Hold how, const int assertion) {
    Target& of = at(target);
    const std::scoped_lock entering(of.entering);
    {
        const std::scoped_lock lock(of.mutex);
        if (of.held != Hold::none || _all.load(std::memory_order_relaxed)) {
            throw ClassedError(MPI_ERR_RMA_SYNC, std::string(call.name()) + ": the target is locked already",
                               "unlock it first");
        }
    }
    take_lock(target, how, assertion);
}

/// Waits for the target's lock. Other threads may read the state of the target meanwhile: the process that holds the
/// lock may be waiting for them.
void Window::take_lock(const int target, const Hold how, const int assertion) {
    if ((assertion & MPI_MODE_NOCHECK) == 0) {
        _exposure->lock(target, how);
    }
    Target& of = at(target);
    const std::scoped_lock lock(of.mutex);
    of.held = how;
    of.assertion = assertion;
}

/// Ends a passive epoch with one target, with which nothing is under way any more.
int Window::leave(const int target) {
    Target& of = at(target);
    const std::scoped_lock lock(of.mutex);
    int error = MPI_SUCCESS;
    if (std::exchange(of.natively, false)) {
        error = layer().real.Win_unlock(target, _handle);
    }
    if (std::exchange(of.held, Hold::none) != Hold::none && (of.assertion & MPI_MODE_NOCHECK) == 0) {
        _exposure->unlock(target);
    }
    return error;
}

int Window::unlock(const Call& call, const int target) {
    {
        const std::scoped_lock lock(at(target).mutex);
        if (at(target).held == Hold::none || _all.load(std::memory_order_relaxed)) {
            no_epoch(call, "the target is not locked");
        }
    }
    // The lock is given up whatever fails, since others wait for it.
    const std::optional<Error> failure =
        target == _exposure->own() ? try_to_make_own_memory_ready() : std::optional<Error>();
    const int error = complete_and(target, [&] { return leave(target); });
    if (failure) {
        throw Error(*failure);
    }
    return error;
}

void Window::lock_all(const Call& call, const int assertion) {
    if (_all.exchange(true)) {
        throw ClassedError(MPI_ERR_RMA_SYNC, std::string(call.name()) + ": the window is locked already",
                           "unlock it first");
    }
    _all_assertion.store(assertion, std::memory_order_relaxed);
}

int Window::unlock_all(const Call& call) {
    if (!_all.load(std::memory_order_relaxed)) {
        no_epoch(call, "the window is not locked");
    }
    const std::optional<Error> failure = try_to_make_own_memory_ready();
    const int outcome = complete_and(-1, [&] {
        int error = MPI_SUCCESS;
        for (int target = 0; target < members(); ++target) {
            const int one = leave(target);
            error = error == MPI_SUCCESS ? one : error;
        }
        _all.store(false, std::memory_order_relaxed);
        return error;
    });
    if (failure) {
        throw Error(*failure);
    }
    return outcome;
}

void Window::begin_fence() {
    ++_fences;
    // Results that come through the MPI are in staging buffers until its fence is over. Others, whose fence is over
    // too, may look for them in this process's memory.
    bool any_staging_buffers = false;
    for (const std::unique_ptr<Target>& of : _targets) {
        const std::scoped_lock lock(of->mutex);
        any_staging_buffers =
            any_staging_buffers || std::any_of(of->pending.begin(), of->pending.end(),
                                               [](const Pending& one) { return one.staging_buffers != nullptr; });
    }
    if (any_staging_buffers) {
        _exposure->announce_results(_fences);
    }
}

void Window::end_fence(const bool open) {
    _fence.store(open, std::memory_order_relaxed);
    _exposure->results_are_there(_fences);
    _exposure->await_results(_fences);
}

std::vector<int> Window::ranks_of(const MPI_Group group) const {
    const Native& native = layer().real;
    int size = 0;
    native.Group_size(group, &size);
    std::vector<int> own(static_cast<std::size_t>(size)), ranks(own.size());
    std::iota(own.begin(), own.end(), 0);
    native.Group_translate_ranks(group, size, own.data(), _group, ranks.data());
    return ranks;
}

void Window::post(const MPI_Group group) {
    _origins = ranks_of(group);
    for (const int origin : _origins) {
        _exposure->post(origin);
    }
}

std::vector<int> Window::await_posts(const MPI_Group group) {
    if (group == MPI_GROUP_NULL || !_started.empty()) {
        return {};
    }
    std::vector<int> targets = ranks_of(group);
    if (std::find(targets.begin(), targets.end(), MPI_UNDEFINED) != targets.end()) {
        return {};
    }
    for (const int target : targets) {
        _exposure->await_post(target);
    }
    return targets;
}

void Window::start(std::vector<int> targets) {
    for (const int target : targets) {
        _exposure->use_post(target);
    }
    _started = std::move(targets);
}

void Window::complete() {
    for (const int target : std::exchange(_started, {})) {
        _exposure->complete(target);
    }
}

void Window::wait() {
    for (const int origin : std::exchange(_origins, {})) {
        _exposure->await_completion(origin);
    }
}

bool Window::is_locked_natively(const int target) {
    const std::scoped_lock lock(at(target).mutex);
    return at(target).natively;
}

void Window::expect_passive(const Call& call, const int target) {
    const std::scoped_lock lock(at(target).mutex);
    if (at(target).held == Hold::none && !_all.load(std::memory_order_relaxed)) {
        no_epoch(call, "the target is not locked");
    }
}

// ---- what is under way ----------------------------------------------------------------------------------------------

void Window::add(const int target, Pending pending) {
    // Forgets complete operations now and then: a program may go on for long without a flush.
    constexpr std::size_t kMany = 256;
    const auto is_over = [](const Pending& one) {
        try {
            return one.staging_buffers == nullptr && one.request.expired() &&
                   (one.transfer == nullptr || one.transfer->poll());
        } catch (const Error&) {
            return false;  // the error is raised when the epoch ends
        }
    };
    Target& of = at(target);
    const std::scoped_lock lock(of.mutex);
    if (of.pending.size() >= kMany && of.pending.size() % kMany == 0) {
        std::erase_if(of.pending, is_over);
    }
    of.pending.push_back(std::move(pending));
}

std::vector<std::unique_lock<std::mutex>> Window::complete_alone(const int target) {
    std::vector<std::unique_lock<std::mutex>> locks;
    if (layer().several_threads()) {
        for (const std::unique_ptr<Target>& each : some(target)) {
            locks.emplace_back(each->completing);
        }
    }
    return locks;
}

std::vector<Pending> Window::take(const int target) {
    std::vector<Pending> taken;
    for (const std::unique_ptr<Target>& each : some(target)) {
        const std::scoped_lock lock(each->mutex);
        std::move(each->pending.begin(), each->pending.end(), std::back_inserter(taken));
        each->pending.clear();
    }
    return taken;
}

std::optional<Error> Window::finish(std::vector<Pending>& pending) {
    std::optional<Error> failure;
    for (Pending& one : pending) {
        try {
            if (one.transfer != nullptr) {
                one.transfer->finish();
            }
        } catch (const Error& error) {
            failure = error;
        }
    }
    return failure;
}

void Window::store(std::vector<Pending>& pending, std::optional<Error>& failure) {
    for (Pending& one : pending) {
        try {
            if (one.staging_buffers != nullptr) {
                one.staging_buffers->store();
            }
            if (const std::shared_ptr<Operation> request = one.request.lock()) {
                MPI_Status status{};
                request->store(status, MPI_SUCCESS);
            }
        } catch (const Error& error) {
            failure = error;
        }
    }
}

// ---- Windows --------------------------------------------------------------------------------------------------------

std::shared_ptr<Window> Windows::find(const MPI_Win handle) const {
    if (_count.load(std::memory_order_acquire) == 0) {
        return nullptr;
    }
    const std::shared_lock lock(_mutex);
    const auto found = _windows.find(handle);
    return found != _windows.end() ? found->second : nullptr;
}

std::shared_ptr<Window> Windows::find_or_add(const MPI_Win handle) {
    if (std::shared_ptr<Window> known = find(handle)) {
        return known;
    }
    auto made = std::make_shared<Window>(handle);
    const std::unique_lock lock(_mutex);
    std::shared_ptr<Window> window = _windows.try_emplace(handle, std::move(made)).first->second;
    _count.store(_windows.size(), std::memory_order_release);
    return window;
}

void Windows::add(std::shared_ptr<Window> window) {
    const std::unique_lock lock(_mutex);
    const MPI_Win handle = window->handle();
    if (window->has_mirror() && window->spec().passive) {
        _mirrors.fetch_add(1, std::memory_order_relaxed);
    }
    _windows.insert_or_assign(handle, std::move(window));
    _count.store(_windows.size(), std::memory_order_release);
}

void Windows::remove(const MPI_Win handle) {
    std::shared_ptr<Window> gone;
    const std::unique_lock lock(_mutex);
    if (const auto found = _windows.find(handle); found != _windows.end()) {
        gone = std::move(found->second);
        if (gone->has_mirror() && gone->spec().passive) {
            _mirrors.fetch_sub(1, std::memory_order_relaxed);
        }
        _windows.erase(found);
        _count.store(_windows.size(), std::memory_order_release);
    }
}

std::optional<Error> Windows::reconcile_all(Call& call) {
    std::optional<Error> failure;
    if (_mirrors.load(std::memory_order_relaxed) == 0) {
        return failure;
    }
    std::vector<std::shared_ptr<Window>> found;
    {
        const std::shared_lock lock(_mutex);
        for (const auto& [handle, window] : _windows) {
            if (window->has_mirror() && window->spec().passive) {
                found.push_back(window);
            }
        }
    }
    for (const std::shared_ptr<Window>& window : found) {
        try {
            window->reconcile(call);
        } catch (const Error& error) {
            failure = error;
        }
    }
    return failure;
}

Windows& windows() {
    // Never destroyed, like the layer: a program may leave windows to the end of the process.
    static auto* const all = new Windows;
    return *all;
}

}  // namespace awaken::AWAKEN_ABI
