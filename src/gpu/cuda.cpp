// SPDX-License-Identifier: Apache-2.0
// The CUDA driver (libcuda). This file uses only the driver's own calls, never the CUDA runtime library. Programs carry
// that library statically, in any version, while there is one driver per process.
//
// Contexts. Resources that we make (streams, events, memory, mappings, modules) live in the primary contexts of their
// devices. The CUDA runtime, and so nearly every program, uses these contexts too. For somebody else's allocation we
// work in that allocation's context. Each call pushes the context that it needs and pops it again, unless that context
// is current already.
//
// Nothing here touches the sticky error of the CUDA runtime library, which is kept above the driver.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/own_thread.h"
#include "base/step_probe.h"
#include "gpu/cuda_abi.h"
#include "gpu/cuda_runs.h"
#include "gpu/driver_runtime.h"
#include "gpu/identity_table.h"

namespace awaken::gpu {

using namespace cuda_abi;

Status cuda_abi::Functions::outcome(const Result code, const char* const call) const noexcept {
    if (code == kSuccess) {
        return {};
    }
    const char* text = nullptr;
    if (code == kErrorNotPermitted) {
        text =
            "operation not permitted: in a host function of a stream (cudaLaunchHostFunc) MPI takes host memory only";
    } else if (error_string(code, &text) != kSuccess || text == nullptr) {
        text = "unknown CUDA error";
    }
    const bool shut_down = code == kErrorDeinitialized || code == kErrorContextIsDestroyed;
    return {shut_down ? kShutDown : code, call, text};
}

namespace {

/// Errors of kernels and copies that stay with the context: CUDA_ERROR_ILLEGAL_ADDRESS to CUDA_ERROR_LAUNCH_FAILED.
constexpr bool is_failed_kernel(const Result code) noexcept {
    return code == 700 || code == 702 || (code >= 714 && code <= 719);
}

/// The GPU rounds as the CPU does. Otherwise it may fuse a product into the sum behind it, which differs in the last
/// digit.
constexpr std::string_view kOptions[] = {"--std=c++17", "--fmad=false"};

class Cuda final : public DriverRuntime<Cuda, Functions> {
  public:
    Cuda(DynamicLibrary library, const Functions& driver)
        : DriverRuntime(std::move(library), driver,
                        {&make_nvrtc, kOptions, "nvrtcCreateProgram", "nvrtcCompileProgram"}) {}

    RuntimeState prepare(bool initialise, std::string* why_not) override {
        const auto explain = [why_not](const std::string& text) {
            if (why_not != nullptr) {
                *why_not = text;
            }
        };
        if (initialise) {
            if (const Status status = outcome(_driver.init(0), "cuInit"); !status.ok()) {
                explain(_library.path() + " cannot be initialised: " + status.message());
                return RuntimeState::no_device;
            }
        }
        int count = 0;
        const Result result = _driver.device_count(&count);
        if (result == kErrorNotInitialized) {
            explain(_library.path() + " is loaded, but the program has not initialised it");
            return RuntimeState::not_initialised;
        }
        if (result == kErrorNotPermitted) {
            // A host function of a stream is running: the driver answers only other threads.
            static thread_local bool asks_for_another = false;
            RuntimeState readiness = RuntimeState::not_initialised;
            explain(_library.path() + " answers nothing in a host function of a stream");
            if (!asks_for_another) {
                std::thread thread = start_own_thread([&] {
                    asks_for_another = true;
                    readiness = prepare(initialise, why_not);
                });
                if (thread.joinable()) {
                    thread.join();
                }
            }
            return readiness;
        }
        if (result != kSuccess || count == 0) {
            explain(_library.path() + " reports no device" +
                    (result != kSuccess ? ": " + outcome(result, "cuDeviceGetCount").message() : std::string()));
            return RuntimeState::no_device;
        }
        int version = 0;
        if (_driver.driver_version(&version) == kSuccess && version < kOldestDriver) {
            explain(_library.path() + " is the driver of CUDA " + dotted(version) + "; CUDA " + dotted(kOldestDriver) +
                    " or newer is needed: update the NVIDIA driver");
            return RuntimeState::no_device;
        }
        _primary = std::make_unique<std::atomic<Context>[]>(static_cast<std::size_t>(count));
        _primary_ids = std::make_unique<std::atomic<unsigned long long>[]>(static_cast<std::size_t>(count));
        _devices = count;
        _version = version;
        return RuntimeState::ready;
    }

    Vendor vendor() const noexcept override { return Vendor::cuda; }
    const char* stream_type() const noexcept override { return "cudaStream_t"; }
    bool works_with_gdrcopy() const noexcept override { return true; }
    Versions versions() const override { return describe_versions("CUDA driver " + dotted(_version)); }

    // ---- devices ----------------------------------------------------------------------------------------------------

    int device_count() noexcept override {
        int count = 0;
        return _driver.device_count(&count) == kSuccess ? count : 0;
    }

    Status current_device(int& device) noexcept override {
        // Tools that watch the driver's calls report an error when a thread without a context asks for its device.
        Context context = nullptr;
        if (const Result code = _driver.context_current(&context); code != kSuccess) {
            return outcome(code, "cuCtxGetCurrent");
        }
        if (context == nullptr) {
            return outcome(kErrorInvalidContext, "cuCtxGetDevice");
        }
        // Device handles of the driver are the ordinals of the visible devices.
        int handle = 0;
        const Result code = _driver.context_device(&handle);
        if (code == kSuccess) {
            device = handle;
        }
        return outcome(code, "cuCtxGetDevice");
    }

    int device_to_use() noexcept override {
        int device = -1;
        return current_device(device).ok() && device >= 0 ? device : device_in_use();
    }

    Status make_current(int device) noexcept override {
        Context context = nullptr;
        if (const Status status = primary_context(device, context); !status.ok()) {
            return status;
        }
        return outcome(_driver.context_set(context), "cuCtxSetCurrent");
    }

    Status enable_peer_access(int device, int peer) noexcept override {
        Context peer_context = nullptr;
        if (const Status status = primary_context(peer, peer_context); !status.ok()) {
            return status;
        }
        const Status status = call(device, _driver.context_enable_peer, peer_context, 0U);
        return status.code == kErrorPeerAccessAlreadyEnabled ? Status{} : status;
    }

    // ---- pointers ---------------------------------------------------------------------------------------------------

    void classify(std::span<const void* const> pointers, PointerInfo* infos) noexcept override {
        AWAKEN_STEP("gpu: classify");
        bool ours = false;
        for (std::size_t i = 0; i < pointers.size(); ++i) {
            infos[i] = classify_one(pointers[i]);
            ours = ours || infos[i].kind != MemoryKind::host;
        }
        if (ours) {
            look_for_reset();
        }
    }

    Status order_after_default_stream(const void* pointer, const PointerInfo& info) noexcept override {
        // Synchronous calls that target host memory, pinned or not, do not return early.
        if (info.host_accessible()) {
            return {};
        }

        const IdentityTable::Mark known = _ordered.find(info.id);
        if (known == IdentityTable::Mark::set) {
            return {};
        }
        if (known == IdentityTable::Mark::refused && trusts_default_stream()) {
            return {};
        }
        return in_context(Scope(*this, OwnerOf{pointer}, info.device), [&]() -> Status {
            if (known == IdentityTable::Mark::absent) {
                const int yes = 1;
                const Result code = _driver.set_pointer_attribute(&yes, kSyncMemopsAttribute, pointer);
                if (code == kSuccess) {
                    _ordered.insert(info.id, IdentityTable::Mark::set);
                    return {};
                }
                if (code == kErrorDeinitialized || code == kErrorContextIsDestroyed) {
                    return outcome(code, "cuPointerSetAttribute");
                }
                // Managed and pool memory refuse the attribute, and will do so again.
                _ordered.insert(info.id, IdentityTable::Mark::refused);
            }
            return finish_default_stream(info.device >= 0 ? info.device : device_to_use());
        });
    }

    bool was_reset() noexcept override {
        look_for_reset();
        return _was_reset.load(std::memory_order_acquire);
    }

    // ---- copies -----------------------------------------------------------------------------------------------------

    Status copy(void* destination, const void* source, std::size_t bytes, StreamHandle stream) noexcept override {
        AWAKEN_STEP("gpu: copy");
        return bytes == 0 ? Status{}
                          : call(stream.device, _driver.copy_async, destination, source, bytes, stream.value);
    }

    Status copy_batch(std::span<const Copy1D> copies, StreamHandle stream) noexcept override {
        AWAKEN_STEP("gpu: copy batch");
        const bool possible = _driver.copy_batch_v2 || _driver.copy_batch;
        if (!possible || copies.size() < 2 || _batches_refused.load(std::memory_order_relaxed)) {
            return Runtime::copy_batch(copies, stream);
        }
        return in_context(Scope(*this, stream.device), [&]() -> Status {
            constexpr std::size_t kMost = 64;
            std::array<void*, kMost> destinations;
            std::array<const void*, kMost> sources;
            std::array<std::size_t, kMost> sizes;
            for (std::size_t at = 0; at < copies.size();) {
                const std::span<const Copy1D> part = copies.subspan(at, std::min(kMost, copies.size() - at));
                for (std::size_t i = 0; i < part.size(); ++i) {
                    destinations[i] = part[i].destination;
                    sources[i] = part[i].source;
                    sizes[i] = part[i].bytes;
                }
                CopyAttributes attributes{kSourceInStreamOrder, {}, {}, 0};
                std::size_t first = 0, failed = 0;
                const Result code =
                    _driver.copy_batch_v2
                        ? _driver.copy_batch_v2(destinations.data(), sources.data(), sizes.data(), part.size(),
                                                &attributes, &first, 1, stream.value)
                        : _driver.copy_batch(destinations.data(), sources.data(), sizes.data(), part.size(),
                                             &attributes, &first, 1, &failed, stream.value);
                if (code != kSuccess) {
                    // It does no harm to do a copy twice. If the copies succeed one by one, batches are no use here. If
                    // one fails, that is the copy's own fault.
                    const Status status = Runtime::copy_batch(copies.subspan(at), stream);
                    if (status.ok()) {
                        _batches_refused.store(true, std::memory_order_relaxed);
                    }
                    return status;
                }
                at += part.size();
            }
            return {};
        });
    }

    // ---- sharing between processes ----------------------------------------------------------------------------------

    Status ipc_export(const void* pointer, IpcMemoryHandle& handle, std::size_t& offset) noexcept override {
        return export_allocation(OwnerOf{pointer}, pointer, handle, offset);
    }

    Status ipc_open(const IpcMemoryHandle& handle, int device, void*& base) noexcept override {
        return SharedDescriptors::made(handle)
                   ? in_context(Scope(*this, device), [&] { return _runs.open(handle, device, base); })
                   : open_allocation(handle, device, kIpcLazyEnablePeerAccess, base);
    }

    Status ipc_close(void* base) noexcept override {
        const std::optional<CudaRuns::Opened> run = _runs.take(base);
        if (!run) {
            return DriverRuntime::ipc_close(base);
        }
        static_cast<void>(in_context(Scope(*this, device_to_use()), [&]() -> Status {
            _runs.unmap(base, *run);
            return {};
        }));
        return {};
    }

    Status find_run(int device, const void* pointer, std::size_t bytes, MappedRun& run) noexcept override {
        return in_context(Scope(*this, device), [&] { return _runs.find(pointer, bytes, run); });
    }

    Status export_run(int device, const MappedRun& run, IpcMemoryHandle& handle) noexcept override {
        return in_context(Scope(*this, device), [&] { return _runs.share(run, handle); });
    }

    bool hold_export(const IpcMemoryHandle& handle) noexcept override { return _runs.shared().hold(handle); }
    void release_export(const IpcMemoryHandle& handle, std::size_t idle_bytes) noexcept override {
        _runs.shared().release(handle, idle_bytes);
    }
    void end_export(const IpcMemoryHandle& handle) noexcept override { _runs.shared().end(handle); }
    void close_idle_exports() noexcept override { _runs.shared().close_idle(); }

  private:
    friend class DriverRuntime<Cuda, Functions>;

    static constexpr const char* kLacking = "this driver has no such function; update the NVIDIA driver";
    static constexpr int kMultiprocessors = kDeviceMultiprocessorCount;
    /// The legacy default stream, with any compiler option of the caller.
    static constexpr std::uintptr_t kDefaultStream = 1;

    /// Makes the context that a call needs current for the calling thread, and gives the caller's context back.
    class Scope {
      public:
        Scope(Cuda& cuda, Nowhere) noexcept : _driver(cuda._driver) {}
        /// The primary context of a device.
        Scope(Cuda& cuda, int device) noexcept : _driver(cuda._driver) {
            Context context = nullptr;
            _status = cuda.primary_context(device, context);
            if (_status.ok()) {
                make_current(cuda, context);
            }
        }
        Scope(Cuda& cuda, Anywhere where) noexcept : Scope(cuda, where.device) {}
        /// The context that owns the allocation. Pool and virtual memory belong to none. For those this is the primary
        /// context of `device`, or of the allocation's device if `device` is -1.
        Scope(Cuda& cuda, OwnerOf memory, int device = -1) noexcept : _driver(cuda._driver) {
            Context context = nullptr;
            int ordinal = -1;
            _status = cuda.outcome(
                cuda.query(memory.pointer, {kContextAttribute, kDeviceOrdinalAttribute}, {&context, &ordinal}),
                "cuPointerGetAttributes");
            if (_status.ok() && context == nullptr) {
                const int owner = device >= 0 ? device : ordinal >= 0 ? ordinal : cuda.device_in_use();
                _status = cuda.primary_context(owner, context);
            }
            if (_status.ok()) {
                make_current(cuda, context);
            }
        }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;
        ~Scope() {
            Context ours = nullptr;
            if (_pushed) {
                static_cast<void>(_driver.context_pop(&ours));
            }
        }
        [[nodiscard]] const Status& status() const noexcept { return _status; }
        [[nodiscard]] Status end(Result code, const char* call) const noexcept { return _driver.outcome(code, call); }
        void note_failure() const noexcept {}

      private:
        void make_current(Cuda& cuda, Context context) noexcept {
            if (cuda._was_reset.load(std::memory_order_relaxed)) {
                _status = {kShutDown, "cuCtxPushCurrent", "the program has reset the device (cudaDeviceReset)"};
                return;
            }
            static_cast<void>(_capture.begin(_driver.exchange_capture_mode.address));
            Context current = nullptr;
            if (_driver.context_current(&current) == kSuccess && current == context) {
                return;
            }
            _status = _driver.outcome(_driver.context_push(context), "cuCtxPushCurrent");
            _pushed = _status.ok();
        }

        const Functions& _driver;
        Status _status;
        RelaxedCapture<Result (*)(int*)> _capture;
        bool _pushed = false;
    };

    /// What `work` says while a context is current; what kept it from being so, where it could not be made that.
    template <class Work>
    [[nodiscard]] static Status in_context(const Scope& scope, const Work& work) noexcept {
        return scope.status().ok() ? work() : scope.status();
    }

    [[nodiscard]] Status outcome(Result code, const char* call) const noexcept { return _driver.outcome(code, call); }

    static std::string dotted(int version) {
        return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    }

    // ---- what DriverRuntime asks ------------------------------------------------------------------------------------

    /// Version 2 tells the instances of a partitioned GPU (MIG) apart.
    [[nodiscard]] auto uuid_function() const noexcept {
        return _driver.device_uuid_v2 ? _driver.device_uuid_v2 : _driver.device_uuid;
    }

    Status describe(int device, DeviceInfo& info) { return architecture(device, info.architecture); }

    Status architecture(int device, std::string& text) {
        int major = 0, minor = 0;
        Status status = attribute(device, kDeviceComputeCapabilityMajor, major);
        if (status.ok()) {
            status = attribute(device, kDeviceComputeCapabilityMinor, minor);
        }
        if (status.ok()) {
            text = "sm_" + std::to_string(major) + std::to_string(minor);
        }
        return status;
    }

    /// Machine code for this very GPU comes first. Portable code, which the driver translates, serves when the compiler
    /// is older than the GPU or newer than the driver.
    static std::array<KernelLoader::Attempt, 2> attempts(const std::string& machine) {
        const std::string option = "--gpu-architecture=";
        return {{{RuntimeCompiler::Output::machine_code, option + machine},
                 {RuntimeCompiler::Output::portable_code, option + "compute_" + machine.substr(std::strlen("sm_"))}}};
    }

    bool may_load(int device) noexcept { return is_soon_idle(device); }

    bool uses(int device) const noexcept {
        return _primary[static_cast<std::size_t>(device)].load(std::memory_order_acquire) != nullptr;
    }

    bool is_device_idle(int device, std::chrono::microseconds patience) noexcept {
        const Scope current(*this, device);
        Context context = nullptr;
        int capturing = 0;
        if (!current.status().ok() || !primary_context(device, context).ok() ||
            _driver.stream_is_capturing(reinterpret_cast<Stream>(kDefaultStream), &capturing) != kSuccess ||
            capturing != kNotCapturing) {
            return false;
        }
        if (!_driver.context_record_event) {
            return _idle_probe.ask(device, [this, context] { wait_for_context(context); }, patience);
        }
        const std::scoped_lock lock(_idle_mutex);
        Event& event = _idle_events[device];
        if ((event == nullptr && _driver.event_create(&event, kEventDisableTiming) != kSuccess) ||
            _driver.context_record_event(context, event) != kSuccess) {
            return false;
        }
        const auto start = std::chrono::steady_clock::now();
        Result answer = kErrorNotReady;
        while ((answer = _driver.event_query(event)) == kErrorNotReady) {
            if (std::chrono::steady_clock::now() - start >= patience) {
                return false;
            }
            ::sched_yield();
        }
        // After a kernel has failed, the context does no more work, and refuses each call at once.
        return answer == kSuccess || is_failed_kernel(answer);
    }

    /// Where the pitch is too large for the hardware's copy, row by row.
    Status copy_pitched(const Copy2D& copy, StreamHandle stream) noexcept {
        int limit = 0;
        static_cast<void>(attribute(stream.device, kDeviceMaxPitch, limit));
        if (std::max(copy.source_pitch, copy.destination_pitch) > static_cast<std::size_t>(limit)) {
            Status status;
            for (std::size_t row = 0; row < copy.rows && status.ok(); ++row) {
                status =
                    this->copy(static_cast<char*>(copy.destination) + row * copy.destination_pitch,
                               static_cast<const char*>(copy.source) + row * copy.source_pitch, copy.width, stream);
            }
            return status;
        }
        Pitched request = {};
        request.source_type = kMemoryTypeUnified;
        request.source_device = copy.source;
        request.source_pitch = copy.source_pitch;
        request.destination_type = kMemoryTypeUnified;
        request.destination_device = copy.destination;
        request.destination_pitch = copy.destination_pitch;
        request.width = copy.width;
        request.height = copy.rows;
        return call(stream.device, _driver.copy_2d_async, &request, stream.value);
    }

    // ---- contexts ---------------------------------------------------------------------------------------------------

    /// The primary context of a device. The first use retains it, and it stays.
    Status primary_context(int device, Context& context) noexcept {
        if (device < 0 || device >= _devices) {
            return {kErrorInvalidDevice, "primary context", "no such device"};
        }
        std::atomic<Context>& slot = _primary[static_cast<std::size_t>(device)];
        context = slot.load(std::memory_order_acquire);
        if (context != nullptr) {
            return {};
        }
        // Two threads may both come here. Retaining twice yields the same context, and costs one count that is never
        // given back. The first count is not given back either.
        if (const Result code = _driver.primary_retain(&context, device)) {
            return outcome(code, "cuDevicePrimaryCtxRetain");
        }
        if (unsigned long long id = 0; _driver.context_id && _driver.context_id(context, &id) == kSuccess) {
            _primary_ids[static_cast<std::size_t>(device)].store(id, std::memory_order_relaxed);
        }
        slot.store(context, std::memory_order_release);
        return {};
    }

    /// A primary context that was reset keeps its handle, but gets another identity when somebody uses it again.
    /// Handles of resources that were made in it before end the process when somebody uses them then.
    void look_for_reset() noexcept {
        if (!_driver.context_id) {
            return;
        }
        for (std::size_t device = 0; device < static_cast<std::size_t>(_devices); ++device) {
            const Context context = _primary[device].load(std::memory_order_acquire);
            const unsigned long long known = _primary_ids[device].load(std::memory_order_relaxed);
            if (context == nullptr || known == 0) {
                continue;
            }
            unsigned long long id = 0;
            const Result code = _driver.context_id(context, &id);
            if (code != kErrorNotPermitted && (code != kSuccess || id != known)) {
                _was_reset.store(true, std::memory_order_release);
            }
        }
    }

    /// A device whose primary context exists already, so that we make none where the program does not work (a context
    /// takes hundreds of MiB of its device). The first device if no context exists.
    int device_in_use() const noexcept {
        for (int device = 0; device < _devices; ++device) {
            unsigned flags = 0;
            int active = 0;
            if (_driver.primary_state(device, &flags, &active) == kSuccess && active != 0) {
                return device;
            }
        }
        return 0;
    }

    void wait_for_context(Context context) noexcept {
        if (_driver.context_push(context) != kSuccess) {
            return;
        }
        static_cast<void>(_driver.context_synchronize());
        Context ours = nullptr;
        static_cast<void>(_driver.context_pop(&ours));
    }

    // ---- pointers ---------------------------------------------------------------------------------------------------

    PointerInfo classify_one(const void* pointer) const noexcept {
        PointerInfo info;
        if (pointer == nullptr) {
            return info;
        }
        // Where a driver leaves a value untouched or sets it to its default, that means "not mine". Flags come back as
        // int or as one byte, depending on the driver; on a little-endian machine a zeroed int reads both.
        unsigned type = 0;
        unsigned managed = 0;
        int device = -1;
        unsigned long long id = 0;
        unsigned ipc_capable = 0;
        std::uintptr_t base = 0;
        std::size_t size = 0;
        // Looking for the range of an address that belongs to no allocation makes the query of a host pointer more
        // expensive by a third to a half. Asking about a device pointer twice costs as much again (165 + 182 ns instead
        // of 186, H100, driver 580). A pointer mostly has the same kind as the one before.
        const bool at_once = _expects_memory_of_ours.load(std::memory_order_relaxed);
        const Result answer =
            at_once ? query(pointer,
                            {kMemoryTypeAttribute, kIsManagedAttribute, kDeviceOrdinalAttribute, kBufferIdAttribute,
                             kIsLegacyIpcCapableAttribute, kRangeStartAttribute, kRangeSizeAttribute},
                            {&type, &managed, &device, &id, &ipc_capable, &base, &size})
                    : query(pointer, {kMemoryTypeAttribute, kIsManagedAttribute}, {&type, &managed});
        if (answer == kErrorNotPermitted) {
            return classify_in_host_function(pointer);
        }
        const bool ours = answer == kSuccess && (managed != 0 || type == kMemoryTypeDevice || type == kMemoryTypeHost);
        if (ours != at_once) {
            _expects_memory_of_ours.store(ours, std::memory_order_relaxed);
        }
        if (!ours) {
            return info;
        }
        if (managed != 0) {
            info.kind = MemoryKind::managed;
        } else if (type == kMemoryTypeDevice) {
            info.kind = MemoryKind::device;
        } else {
            info.kind = MemoryKind::pinned;
        }
        if (!at_once && query(pointer,
                              {kDeviceOrdinalAttribute, kBufferIdAttribute, kIsLegacyIpcCapableAttribute,
                               kRangeStartAttribute, kRangeSizeAttribute},
                              {&device, &id, &ipc_capable, &base, &size}) != kSuccess) {
            return {};  // freed since the first query, or the driver was shut down
        }
        info.base = base;
        info.size = size;
        info.id = id;
        if (info.kind != MemoryKind::pinned) {
            info.device = device;
        }
        info.ipc_capable = info.kind == MemoryKind::device && ipc_capable != 0;
        if (info.kind == MemoryKind::device && ipc_capable == 0) {
            unsigned long long types = 0;
            info.descriptor_capable = query(pointer, {kAllowedHandleTypesAttribute}, {&types}) == kSuccess &&
                                      (types & kPosixFileDescriptor) != 0;
        }
        return info;
    }

    template <std::size_t Count>
    Result query(const void* pointer, const PointerAttribute (&attributes)[Count],
                 void* const (&values)[Count]) const noexcept {
        return _driver.pointer_attributes(Count, attributes, const_cast<void**>(values), pointer);
    }

    /// In a host function of a stream the driver answers nothing (H100, driver 580: CUDA_ERROR_NOT_PERMITTED to all but
    /// questions about streams and events). There, memory that the CPU reaches counts as host memory, since the MPI may
    /// use it. For any other memory the driver's refusal becomes the call's error.
    static PointerInfo classify_in_host_function(const void* pointer) noexcept {
        PointerInfo info;
        int ends[2] = {};
        if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
            return info;
        }
        if (::write(ends[1], pointer, 1) < 0 && errno == EFAULT) {
            info.kind = MemoryKind::device;
            info.device = 0;
        }
        ::close(ends[0]);
        ::close(ends[1]);
        return info;
    }

    std::unique_ptr<std::atomic<Context>[]> _primary;
    std::unique_ptr<std::atomic<unsigned long long>[]> _primary_ids;  ///< 0: not known
    std::atomic<bool> _batches_refused{false};
    mutable std::atomic<bool> _expects_memory_of_ours{false};  ///< the pointer classified last was not ordinary memory
    IdentityTable _ordered;  ///< allocations whose synchronous operations are synchronous
    CudaRuns _runs{_driver};

    std::mutex _idle_mutex;
    std::map<int, Event> _idle_events;  ///< one for each device, kept
};

std::unique_ptr<VendorRuntime> make(DynamicLibrary library, std::string& why_not) {
    Functions table;
    const FunctionSlot slots[] = {AWAKEN_CUDA_FUNCTIONS(AWAKEN_BIND_NAMED_FUNCTION)};
    return library.bind(slots, why_not) ? std::make_unique<Cuda>(std::move(library), table) : nullptr;
}

constexpr const char* kNames[] = {"libcuda.so.1", "libcuda.so"};

}  // namespace

const VendorLibrary& cuda_library() noexcept {
    static const VendorLibrary library = {Vendor::cuda, "CUDA driver", "libcuda", kNames, &make, &make_nvrtc};
    return library;
}

}  // namespace awaken::gpu
