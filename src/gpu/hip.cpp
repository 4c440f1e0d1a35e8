// SPDX-License-Identifier: Apache-2.0
// The HIP runtime (libamdhip64), versions 5, 6 and 7. This file finds out the version at run time.
//
// Devices. HIP hardly has contexts. A thread has a current device, and a resource belongs to the device that was
// current when it was made. Each call makes the device that it needs current and gives the caller's back.
//
// Errors. Up to HIP 6 hipGetLastError() returns the outcome of the thread's last call of whatever kind, and from HIP 7
// on its last failure. So we clear a failure of ours before we return. If the program had a failure pending already,
// one stays pending. Up to HIP 6 any call ends the pending failure of an earlier one, and so does any call of ours. A
// program that wants that failure must ask before it calls MPI.
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string_view>

#include "gpu/driver_runtime.h"
#include "gpu/hip_abi.h"

namespace awaken::gpu {
namespace {

using namespace hip_abi;

// X(member, symbol, required, result, parameters...)
#define AWAKEN_HIP_FUNCTIONS(X)                                                                                     \
    X(init, "hipInit", true, Result, unsigned)                                                                      \
    X(runtime_version, "hipRuntimeGetVersion", true, Result, int*)                                                  \
    X(error_string, "hipGetErrorString", true, const char*, Result)                                                 \
    X(last_error, "hipGetLastError", true, Result)                                                                  \
    X(peek_error, "hipPeekAtLastError", true, Result)                                                               \
    X(device_count, "hipGetDeviceCount", true, Result, int*)                                                        \
    X(current_device, "hipGetDevice", true, Result, int*)                                                           \
    X(set_device, "hipSetDevice", true, Result, int)                                                                \
    X(device_synchronize, "hipDeviceSynchronize", true, Result)                                                     \
    X(stream_is_capturing, "hipStreamIsCapturing", false, Result, Stream, int*)                                     \
    X(exchange_capture_mode, "hipThreadExchangeStreamCaptureMode", false, Result, int*)                             \
    X(capture_info, "hipStreamGetCaptureInfo_v2", false, Result, Stream, int*, unsigned long long*, void**,         \
      const void***, std::size_t*)                                                                                  \
    X(user_object_create, "hipUserObjectCreate", false, Result, void**, void*, void (*)(void*), unsigned, unsigned) \
    X(user_object_release, "hipUserObjectRelease", false, Result, void*, unsigned)                                  \
    X(begin_capture, "hipStreamBeginCapture", false, Result, Stream, int)                                           \
    X(end_capture, "hipStreamEndCapture", false, Result, Stream, void**)                                            \
    X(graph_instantiate, "hipGraphInstantiateWithFlags", false, Result, void**, void*, unsigned long long)          \
    X(graph_launch, "hipGraphLaunch", false, Result, void*, Stream)                                                 \
    X(graph_destroy, "hipGraphDestroy", false, Result, void*)                                                       \
    X(graph_exec_destroy, "hipGraphExecDestroy", false, Result, void*)                                              \
    X(graph_retain, "hipGraphRetainUserObject", false, Result, void*, void*, unsigned, unsigned)                    \
    X(device_name, "hipDeviceGetName", true, Result, char*, int, int)                                               \
    X(device_uuid, "hipDeviceGetUuid", false, Result, Uuid*, int)                                                   \
    X(device_memory, "hipDeviceTotalMem", true, Result, std::size_t*, int)                                          \
    X(device_attribute, "hipDeviceGetAttribute", true, Result, int*, int, int)                                      \
    X(device_pci_bus_id, "hipDeviceGetPCIBusId", true, Result, char*, int, int)                                     \
    X(device_properties, "hipGetDeviceProperties", true, Result, void*, int)                                        \
    X(device_properties_r0600, "hipGetDevicePropertiesR0600", false, Result, void*, int)                            \
    X(device_can_access_peer, "hipDeviceCanAccessPeer", true, Result, int*, int, int)                               \
    X(device_enable_peer, "hipDeviceEnablePeerAccess", true, Result, int, unsigned)                                 \
    X(pointer_attributes, "hipPointerGetAttributes", true, Result, PointerAttributes*, const void*)                 \
    X(pointer_attribute, "hipPointerGetAttribute", false, Result, void*, int, const void*)                          \
    X(memory_range, "hipMemGetAddressRange", true, Result, void**, std::size_t*, const void*)                       \
    X(memory_allocate, "hipMalloc", true, Result, void**, std::size_t)                                              \
    X(memory_free, "hipFree", true, Result, void*)                                                                  \
    X(memory_allocate_managed, "hipMallocManaged", false, Result, void**, std::size_t, unsigned)                    \
    X(memory_allocate_async, "hipMallocAsync", false, Result, void**, std::size_t, Stream)                          \
    X(memory_prefetch, "hipMemPrefetchAsync", false, Result, const void*, std::size_t, int, Stream)                 \
    X(host_allocate, "hipHostMalloc", true, Result, void**, std::size_t, unsigned)                                  \
    X(host_free, "hipHostFree", true, Result, void*)                                                                \
    X(host_register, "hipHostRegister", true, Result, void*, std::size_t, unsigned)                                 \
    X(host_device_pointer, "hipHostGetDevicePointer", true, Result, void**, void*, unsigned)                        \
    X(host_unregister, "hipHostUnregister", true, Result, void*)                                                    \
    X(copy_async, "hipMemcpyAsync", true, Result, void*, const void*, std::size_t, int, Stream)                     \
    X(copy_2d_async, "hipMemcpy2DAsync", true, Result, void*, std::size_t, const void*, std::size_t, std::size_t,   \
      std::size_t, int, Stream)                                                                                     \
    X(fill_async, "hipMemsetAsync", true, Result, void*, int, std::size_t, Stream)                                  \
    X(stream_priorities, "hipDeviceGetStreamPriorityRange", true, Result, int*, int*)                               \
    X(stream_create, "hipStreamCreateWithPriority", true, Result, Stream*, unsigned, int)                           \
    X(stream_destroy, "hipStreamDestroy", true, Result, Stream)                                                     \
    X(stream_query, "hipStreamQuery", true, Result, Stream)                                                         \
    X(stream_synchronize, "hipStreamSynchronize", true, Result, Stream)                                             \
    X(stream_wait_event, "hipStreamWaitEvent", true, Result, Stream, Event, unsigned)                               \
    X(event_create, "hipEventCreateWithFlags", true, Result, Event*, unsigned)                                      \
    X(event_destroy, "hipEventDestroy", true, Result, Event)                                                        \
    X(event_record, "hipEventRecord", true, Result, Event, Stream)                                                  \
    X(event_query, "hipEventQuery", true, Result, Event)                                                            \
    X(ipc_get, "hipIpcGetMemHandle", true, Result, IpcMemHandle*, void*)                                            \
    X(ipc_open, "hipIpcOpenMemHandle", true, Result, void**, IpcMemHandle, unsigned)                                \
    X(ipc_close, "hipIpcCloseMemHandle", true, Result, void*)                                                       \
    X(module_load, "hipModuleLoadData", true, Result, Module*, const void*)                                         \
    X(module_unload, "hipModuleUnload", true, Result, Module)                                                       \
    X(module_function, "hipModuleGetFunction", true, Result, Function*, Module, const char*)                        \
    X(launch_kernel, "hipModuleLaunchKernel", true, Result, Function, unsigned, unsigned, unsigned, unsigned,       \
      unsigned, unsigned, unsigned, Stream, void**, void**)                                                         \
    /* Of libhsa-runtime64, which HIP depends on: found by way of its handle. */                                    \
    X(hsa_information, "hsa_system_get_info", false, int, int, void*)

struct Functions {
    AWAKEN_HIP_FUNCTIONS(AWAKEN_DECLARE_NAMED_FUNCTION)
};

/// The GPU rounds as the CPU does. Otherwise it may fuse a product into the sum behind it, which differs in the last
/// digit.
constexpr std::string_view kOptions[] = {"-std=c++17", "-O3", "-ffp-contract=off"};

class Hip final : public DriverRuntime<Hip, Functions> {
  public:
    Hip(DynamicLibrary library, const Functions& functions)
        : DriverRuntime(std::move(library), functions,
                        {&make_hiprtc, kOptions, "hiprtcCreateProgram", "hiprtcCompileProgram"}) {}

    RuntimeState prepare(bool initialise, std::string* why_not) override {
        const auto explain = [why_not](const std::string& text) {
            if (why_not != nullptr) {
                *why_not = text;
            }
        };
        if (initialise) {
            if (const Result code = _driver.init(0); code != kSuccess) {
                explain(_library.path() + " cannot be initialised: " + outcome(code, "hipInit").message());
                static_cast<void>(_driver.last_error());
                return RuntimeState::no_device;
            }
        }
        if (!initialise && !is_initialised()) {
            explain(_library.path() + " is loaded, but the program has not initialised it");
            return RuntimeState::not_initialised;
        }
        int count = 0;
        const Result result = _driver.device_count(&count);
        int version = 0;
        const Result versioned = _driver.runtime_version(&version);
        if (result != kSuccess || versioned != kSuccess) {
            static_cast<void>(_driver.last_error());
        }
        if (result != kSuccess || count == 0) {
            explain(_library.path() + " reports no device" +
                    (result != kSuccess ? ": " + outcome(result, "hipGetDeviceCount").message() : std::string()));
            return RuntimeState::no_device;
        }
        constexpr int kOldestMajor = 5;
        if (versioned != kSuccess || major_version(version) < kOldestMajor) {
            explain(_library.path() + " is HIP " + dotted(version) + "; HIP 5.0 or newer is needed: update ROCm");
            return RuntimeState::no_device;
        }
        _devices = count;
        _version = version;
        _major = major_version(version);
        return RuntimeState::ready;
    }

    Vendor vendor() const noexcept override { return Vendor::hip; }
    const char* stream_type() const noexcept override { return "hipStream_t"; }
    // hipGetDevice() gives device 0 to a thread that has chosen none.
    bool threads_begin_with_a_device() const noexcept override { return true; }

    Versions versions() const override { return describe_versions("HIP " + dotted(_version) + " (ROCm)"); }

    // ---- devices ----------------------------------------------------------------------------------------------------

    int device_count() noexcept override {
        int count = 0;
        return call(Nowhere{}, _driver.device_count, &count).ok() ? count : 0;
    }

    Status current_device(int& device) noexcept override {
        int current = 0;
        const Status status = call(Nowhere{}, _driver.current_device, &current);
        if (status.ok()) {
            device = current;
        }
        return status;
    }

    int device_to_use() noexcept override {
        // Every thread has a current device. This is the first one until the thread chooses another.
        int current = 0;
        const int seen = _device_seen.load(std::memory_order_relaxed);
        return current_device(current).ok() && current > 0 ? current : seen >= 0 ? seen : 0;
    }

    Status make_current(int device) noexcept override { return call(Nowhere{}, _driver.set_device, device); }

    Status enable_peer_access(int device, int peer) noexcept override {
        const Status status = call(device, _driver.device_enable_peer, peer, 0U);
        return status.code == kErrorPeerAccessAlreadyEnabled ? Status{} : status;
    }

    // ---- pointers ---------------------------------------------------------------------------------------------------

    void classify(std::span<const void* const> pointers, PointerInfo* infos) noexcept override {
        Scope scope(*this);
        for (std::size_t i = 0; i < pointers.size(); ++i) {
            infos[i] = classify_one(pointers[i], scope);
        }
    }

    bool was_reset() noexcept override { return _was_reset.load(std::memory_order_acquire); }

    Status order_after_default_stream(const void*, const PointerInfo& info) noexcept override {
        // Synchronous calls that target host memory do not return early.
        return info.host_accessible() ? Status{} : finish_default_stream(info.device);
    }

    // ---- memory -----------------------------------------------------------------------------------------------------

    Status register_host(void* pointer, std::size_t bytes) noexcept override {
        if (const Status status = DriverRuntime::register_host(pointer, bytes); !status.ok()) {
            return status;
        }
        // Without shared virtual memory the GPU sees registered memory at an address of its own. Our kernels do not get
        // that address.
        void* for_kernels = nullptr;
        if (call(Nowhere{}, _driver.host_device_pointer, &for_kernels, pointer, 0U).ok() && for_kernels == pointer) {
            return {};
        }
        static_cast<void>(unregister_host(pointer));
        return {kUnsupported, "hipHostGetDevicePointer", "the GPU has registered memory at another address"};
    }

    // ---- copies -----------------------------------------------------------------------------------------------------

    Status copy(void* destination, const void* source, std::size_t bytes, StreamHandle stream) noexcept override {
        AWAKEN_STEP("gpu: copy");
        return bytes == 0
                   ? Status{}
                   : call(stream.device, _driver.copy_async, destination, source, bytes, kCopyDefault, stream.value);
    }

    // ---- sharing between processes ----------------------------------------------------------------------------------

    Status ipc_export(const void* pointer, IpcMemoryHandle& handle, std::size_t& offset) noexcept override {
        PointerAttributes attributes = {};
        const Status status = call(Nowhere{}, _driver.pointer_attributes, &attributes, pointer);
        return status.ok() ? export_allocation(attributes.device, pointer, handle, offset) : status;
    }

    Status ipc_open(const IpcMemoryHandle& handle, int device, void*& base) noexcept override {
        const Status status = open_allocation(handle, device, kIpcLazyEnablePeerAccess, base);
        return status.code == kErrorInvalidValue && _major == 5
                   ? open_allocation(handle, device, kIpcLazyEnablePeerAccessEarly, base)
                   : status;
    }

  private:
    friend class DriverRuntime<Hip, Functions>;

    static constexpr const char* kLacking = "this HIP runtime has no such function; update ROCm";
    static constexpr int kMultiprocessors = kDeviceMultiprocessorCount;
    static constexpr std::uintptr_t kDefaultStream = 0;

    /// The surroundings of one call. When it ends, the caller has its current device and pending error back.
    class Scope {
      public:
        explicit Scope(Hip& hip) noexcept : _hip(hip) {
            // Up to HIP 6 a pending failure cannot outlive any call, so there is nothing to look at.
            if (hip._major >= kFirstMajorWithStickyErrors) {
                _pending = hip._driver.peek_error() != kSuccess;
            }
            _failed = !_capture.begin(hip._driver.exchange_capture_mode.address);
        }
        Scope(Hip& hip, int device) noexcept : Scope(hip) {
            if (device < 0 || device >= hip._devices) {
                _status = {kErrorInvalidDevice, "hipSetDevice", "no such device"};
                return;
            }
            hip._used.fetch_or(std::uint64_t{1} << (static_cast<unsigned>(device) % 64), std::memory_order_relaxed);
            if (hip._was_reset.load(std::memory_order_relaxed)) {
                _status = {kShutDown, "hipSetDevice", kReset};
                return;
            }
            int current = 0;
            if (const Result code = hip._driver.current_device(&current)) {
                _status = end(code, "hipGetDevice");
                return;
            }
            if (current == device) {
                return;
            }
            _status = end(hip._driver.set_device(device), "hipSetDevice");
            if (_status.ok()) {
                _caller_device = current;
            }
        }
        template <class Where>
        Scope(Hip& hip, const Where&) noexcept : Scope(hip) {}
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;
        ~Scope() {
            if (_caller_device >= 0 && _hip._driver.set_device(_caller_device) != kSuccess) {
                _failed = true;
            }
            if (_failed && !_pending) {
                static_cast<void>(_hip._driver.last_error());
            }
        }

        [[nodiscard]] const Status& status() const noexcept { return _status; }
        /// A call failed, as expected.
        void note_failure() noexcept { _failed = true; }
        Status end(Result code, const char* call) noexcept {
            if (code != kSuccess) {
                _failed = true;
            }
            return _hip.outcome(code, call);
        }

      private:
        static constexpr int kFirstMajorWithStickyErrors = 7;

        Hip& _hip;
        Status _status;
        int _caller_device = -1;
        RelaxedCapture<Result (*)(int*)> _capture;
        bool _pending = false;
        bool _failed = false;
    };

    /// HIP reports a reset only by no longer knowing the streams and events of before. All those that HIP gets here are
    /// ours.
    Status outcome(Result code, const char* call) noexcept {
        if (code == kSuccess) {
            return {};
        }
        const bool handle_of_ours = call != std::string_view("hipIpcOpenMemHandle");
        if (code == kErrorContextIsDestroyed || (code == kErrorInvalidHandle && handle_of_ours)) {
            _was_reset.store(true, std::memory_order_release);
            return {kShutDown, call, kReset};
        }
        const char* text = _driver.error_string(code);
        if (text == nullptr) {
            text = "unknown HIP error";
        }
        return {code == kErrorDeinitialized ? kShutDown : code, call, text};
    }

    static std::string dotted(int version) {
        return std::to_string(major_version(version)) + "." + std::to_string(minor_version(version));
    }

    // ---- what DriverRuntime asks ------------------------------------------------------------------------------------

    [[nodiscard]] const auto& uuid_function() const noexcept { return _driver.device_uuid; }

    Status describe(int device, DeviceInfo& info) {
        int large_bar = 0;
        // Unknown to some versions: keeps the cautious answer.
        info.host_visible_memory = attribute(device, kDeviceIsLargeBar, large_bar).ok() && large_bar != 0;
        const Status status = architecture(device, info.architecture);
        // "gfx90a:sramecc+:xnack-": only the compiler needs the features after the name.
        info.architecture = info.architecture.substr(0, info.architecture.find(':'));
        return status;
    }

    /// gcnArchName, with features: "gfx90a:sramecc+:xnack-".
    Status architecture(int device, std::string& text) {
        // The structure has grown before. Leave room for more.
        constexpr std::size_t kRoom = 4 * DevicePropertiesR0600::kSize;
        static_assert(kRoom > DeviceProperties::kSize);
        alignas(std::max_align_t) std::array<char, kRoom> properties = {};
        const bool newer = static_cast<bool>(_driver.device_properties_r0600);
        const Status status = call(Nowhere{}, newer ? _driver.device_properties_r0600 : _driver.device_properties,
                                   static_cast<void*>(properties.data()), device);
        const char* const name = properties.data() + (newer ? DevicePropertiesR0600::kArchitectureOffset
                                                            : DeviceProperties::kArchitectureOffset);
        text.assign(name, ::strnlen(name, kArchitectureLength));
        return status;
    }

    static std::array<KernelLoader::Attempt, 1> attempts(const std::string& machine) {
        return {{{RuntimeCompiler::Output::machine_code, "--offload-arch=" + machine}}};
    }

    static bool may_load(int /*device*/) noexcept { return true; }

    bool uses(int device) const noexcept { return (_used.load(std::memory_order_relaxed) >> (device % 64) & 1) != 0; }

    bool is_device_idle(int device, std::chrono::microseconds patience) noexcept {
        {
            Scope scope(*this, device);
            int capturing = 0;
            if (!scope.status().ok() ||
                (_driver.stream_is_capturing &&
                 (!scope.end(_driver.stream_is_capturing(nullptr, &capturing), "hipStreamIsCapturing").ok() ||
                  capturing != kNotCapturing))) {
                return false;
            }
        }
        return _idle_probe.ask(
            device,
            [this, device] {
                if (_driver.set_device(device) == kSuccess) {
                    static_cast<void>(_driver.device_synchronize());
                }
            },
            patience);
    }

    Status copy_pitched(const Copy2D& copy, StreamHandle stream) noexcept {
        return call(stream.device, _driver.copy_2d_async, copy.destination, copy.destination_pitch, copy.source,
                    copy.source_pitch, copy.width, copy.rows, kCopyDefault, stream.value);
    }

    // ---- pointers ---------------------------------------------------------------------------------------------------

    /// The kind of the pointer's memory, in this version's numbers. False for memory that the runtime does not know.
    bool decode(const PointerAttributes& attributes, MemoryKind& kind) const noexcept {
        if (attributes.is_managed != 0) {
            kind = MemoryKind::managed;
            return true;
        }
        if (_major >= 6) {
            using Type = MemoryType6;
            switch (attributes.type) {
                case Type::kHost:
                    kind = MemoryKind::pinned;
                    return true;
                case Type::kDevice:
                case Type::kArray:
                    kind = MemoryKind::device;
                    return true;
                case Type::kManaged:
                case Type::kUnified:
                    kind = MemoryKind::managed;
                    return true;
                default:
                    return false;
            }
        }
        using Type = MemoryType5;
        switch (attributes.type) {
            case Type::kHost:
                kind = MemoryKind::pinned;
                return true;
            case Type::kDevice:
            case Type::kArray:
                kind = MemoryKind::device;
                return true;
            case Type::kUnified:
                kind = MemoryKind::managed;
                return true;
            default:
                return false;
        }
    }

    PointerInfo classify_one(const void* pointer, Scope& scope) const noexcept {
        PointerInfo info;
        if (pointer == nullptr) {
            return info;
        }
        PointerAttributes attributes = {};
        attributes.device = -1;
        if (_driver.pointer_attributes(&attributes, pointer) != kSuccess) {
            scope.note_failure();  // HIP 5 reports memory that it does not know in this way
            return info;
        }
        MemoryKind kind = MemoryKind::host;
        if (!decode(attributes, kind)) {
            return info;
        }
        // Registered memory that kernels see at another address counts as ordinary memory, see register_host().
        if (kind == MemoryKind::pinned && attributes.device_pointer != nullptr &&
            attributes.device_pointer != pointer) {
            return info;
        }
        info.kind = kind;

        void* base = nullptr;
        std::size_t size = 0;
        if (_driver.memory_range(&base, &size, pointer) == kSuccess) {
            info.base = reinterpret_cast<std::uintptr_t>(base);
            info.size = size;
        } else {
            scope.note_failure();
        }
        if (kind == MemoryKind::pinned) {
            return info;
        }
        info.device = attributes.device;
        if (info.device >= 0 && _device_seen.load(std::memory_order_relaxed) < 0) {
            _device_seen.store(info.device, std::memory_order_relaxed);
        }
        // An identity has 32 or 64 bits, depending on the version. On a little-endian machine a zeroed word reads both.
        std::uint64_t id = 0;
        if (pointer_attribute(&id, kPointerBufferId, pointer, scope)) {
            info.id = id;
        }
        info.ipc_capable = kind == MemoryKind::device && ipc_capable(pointer, scope);
        return info;
    }

    /// Whether the program has used HIP. Any call of HIP initialises it, and then HIP reads the variables that say
    /// which devices are visible. A program may set these after it has asked MPI for its rank. HIP initialises HSA
    /// first. HSA tells whether it is initialised, and the question does not change that. (Whether /dev/kfd is open
    /// would tell as well, but takes a look through all open files at each MPI call.) A HIP without HSA of its own
    /// counts as initialised.
    [[nodiscard]] bool is_initialised() const noexcept {
        if (!_driver.hsa_information) {
            return true;
        }
        std::uint16_t major = 0;
        return _driver.hsa_information(kHsaSystemInfoVersionMajor, &major) != kHsaErrorNotInitialised;
    }

    bool pointer_attribute(void* value, int attribute, const void* pointer, Scope& scope) const noexcept {
        if (!_driver.pointer_attribute) {
            return false;
        }
        if (_driver.pointer_attribute(value, attribute, pointer) == kSuccess) {
            return true;
        }
        scope.note_failure();
        return false;
    }

    /// No version of HIP up to 7.0 answers this attribute, so device memory counts as capable until exporting it fails.
    bool ipc_capable(const void* pointer, Scope& scope) const noexcept {
        if (!_knows_ipc_capable.load(std::memory_order_relaxed)) {
            return true;
        }
        unsigned capable = 0;
        if (pointer_attribute(&capable, kPointerIsLegacyIpcCapable, pointer, scope)) {
            return capable != 0;
        }
        _knows_ipc_capable.store(false, std::memory_order_relaxed);
        return true;
    }

    static constexpr const char* kReset = "the program has reset the device (hipDeviceReset)";

    int _major = 0;
    mutable std::atomic<bool> _knows_ipc_capable{true};
    mutable std::atomic<std::uint64_t> _used{0};  ///< devices that the layer has worked on, as bits
    mutable std::atomic<int> _device_seen{-1};    ///< the device that memory of the program was first seen on
};

std::unique_ptr<VendorRuntime> make(DynamicLibrary library, std::string& why_not) {
    Functions table;
    const FunctionSlot slots[] = {AWAKEN_HIP_FUNCTIONS(AWAKEN_BIND_NAMED_FUNCTION)};
    return library.bind(slots, why_not) ? std::make_unique<Hip>(std::move(library), table) : nullptr;
}

constexpr const char* kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};

}  // namespace

const VendorLibrary& hip_library() noexcept {
    static const VendorLibrary library = {Vendor::hip, "HIP runtime", "libamdhip64", kNames, &make, &make_hiprtc};
    return library;
}

}  // namespace awaken::gpu
