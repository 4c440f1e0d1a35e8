// SPDX-License-Identifier: Apache-2.0
// What the CUDA driver and the HIP runtime have in common: most calls differ in nothing but their names.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/step_probe.h"
#include "gpu/driver_abi.h"
#include "gpu/kernel_loader.h"
#include "gpu/relaxed_capture.h"
#include "gpu/vendor.h"

namespace awaken::gpu {

/// Where a call is made, besides on a device by its number. HIP's calls without a device need none to be current.
struct Anywhere {
    int device;  ///< that a runtime with contexts takes
};
/// In the context that owns this memory.
struct OwnerOf {
    const void* pointer;
};
/// For calls that no runtime needs a context for.
struct Nowhere {};

/// `Functions` is the vendor's table of functions, with equal names for what is called in the same way. `Self` has:
///   Scope            what surrounds a call, made of the runtime and one of the above. status() says why the call
///   cannot
///                    be made, end(code, name) gives the outcome, note_failure() says that an expected failure occurred
///   kLacking         what is said where a driver lacks a function
///   kMultiprocessors the number of that attribute of a device
///   kDefaultStream   the legacy default stream, as a number
///   uses(device), is_device_idle(device, patience), describe(device, info), architecture(device, text),
///   attempts(architecture), may_load(device), copy_pitched(copy, stream)
template <class Self, class Functions>
class DriverRuntime : public VendorRuntime {
  public:
    // ---- devices ----------------------------------------------------------------------------------------------------

    Status device_info(const int device, DeviceInfo& info) override {
        DeviceInfo result;
        std::array<char, 256> name{}, address{};
        constexpr int kRoom = 256;
        if (const Status status = call(Nowhere{}, _driver.device_name, name.data(), kRoom, device); !status.ok()) {
            return status;
        }
        if (const Status status = call(Nowhere{}, _driver.device_pci_bus_id, address.data(), kRoom, device);
            !status.ok()) {
            return status;
        }
        result.name = name.data();
        result.pci_bus_id = address.data();
        for (char& letter : result.pci_bus_id) {
            letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
        }
        if (const auto& function = self().uuid_function(); function) {
            driver_abi::Uuid uuid{};
            if (const Status status = call(Nowhere{}, function, &uuid, device); !status.ok()) {
                return status;
            }
            std::memcpy(result.uuid, uuid.bytes, sizeof result.uuid);
        }
        if (const Status status = call(Nowhere{}, _driver.device_memory, &result.memory_bytes, device); !status.ok()) {
            return status;
        }
        if (const Status status = attribute(device, Self::kMultiprocessors, result.multiprocessors); !status.ok()) {
            return status;
        }
        const Status status = self().describe(device, result);
        if (status.ok()) {
            info = std::move(result);
        }
        return status;
    }

    Status run_on(const int device, const std::function<void()>& work) override {
        const typename Self::Scope scope(self(), device);
        if (scope.status().ok()) {
            work();
        }
        return scope.status();
    }

    Status can_access_peer(const int device, const int peer, bool& can) noexcept override {
        int answer = 0;
        const Status status = call(Nowhere{}, _driver.device_can_access_peer, &answer, device, peer);
        if (status.ok()) {
            can = answer != 0;
        }
        return status;
    }

    [[nodiscard]] bool is_idle(const int device, const std::chrono::microseconds patience) noexcept override {
        if (is_captured()) {
            return false;
        }
        if (device >= 0) {
            return self().is_device_idle(device, patience);
        }
        for (int each = 0; each < _devices; ++each) {
            if (self().uses(each) && !is_idle(each, patience)) {
                return false;
            }
        }
        return true;
    }

    // ---- memory -----------------------------------------------------------------------------------------------------

    Status allocate(const int device, const std::size_t bytes, void*& pointer) noexcept override {
        return make_memory(device, bytes, pointer, _driver.memory_allocate, bytes);
    }
    Status free(void* const pointer) noexcept override {
        return pointer == nullptr ? Status{} : call(OwnerOf{pointer}, _driver.memory_free, pointer);
    }
    Status allocate_managed(const int device, const std::size_t bytes, void*& pointer) noexcept override {
        return make_memory(device, bytes, pointer, _driver.memory_allocate_managed, bytes, driver_abi::kAttachGlobal);
    }
    Status allocate_from_pool(const int device, const std::size_t bytes, void*& pointer) noexcept override {
        void* made = nullptr;
        const driver_abi::Stream stream = reinterpret_cast<driver_abi::Stream>(Self::kDefaultStream);
        Status status = make_memory(device, bytes, made, _driver.memory_allocate_async, bytes, stream);
        if (!status.ok()) {
            return status;
        }
        // Other streams may use the memory only after the stream of the allocation has executed it.
        status = call(device, _driver.stream_synchronize, stream);
        if (status.ok()) {
            pointer = made;
        } else {
            static_cast<void>(free(made));
        }
        return status;
    }
    Status prefetch(const void* const pointer, const std::size_t bytes, const int device,
                    const StreamHandle stream) noexcept override {
        return bytes == 0 ? Status{}
                          : call(stream.device, _driver.memory_prefetch, pointer, bytes, device, stream.value);
    }
    Status allocate_pinned(const std::size_t bytes, void*& pointer) noexcept override {
        return make_memory(Anywhere{self().device_to_use()}, bytes, pointer, _driver.host_allocate, bytes,
                           driver_abi::kHostPortable | driver_abi::kHostMapped);
    }
    Status free_pinned(void* const pointer) noexcept override {
        return pointer == nullptr ? Status{} : call(OwnerOf{pointer}, _driver.host_free, pointer);
    }
    Status register_host(void* const pointer, const std::size_t bytes) noexcept override {
        return call(Anywhere{self().device_to_use()}, _driver.host_register, pointer, bytes,
                    driver_abi::kHostPortable | driver_abi::kHostMapped);
    }
    Status unregister_host(void* const pointer) noexcept override {
        return call(OwnerOf{pointer}, _driver.host_unregister, pointer);
    }

    // ---- streams and events -----------------------------------------------------------------------------------------

    Status create_stream(const int device, const bool ordered_after_default, StreamHandle& stream) noexcept override {
        int least = 0, greatest = 0;
        if (const Status status = call(device, _driver.stream_priorities, &least, &greatest); !status.ok()) {
            return status;
        }
        return make_handle(device, stream, _driver.stream_create,
                           ordered_after_default ? driver_abi::kStreamDefault : driver_abi::kStreamNonBlocking,
                           greatest);
    }
    Status destroy_stream(const StreamHandle stream) noexcept override {
        return stream.value == nullptr ? Status{} : call(stream.device, _driver.stream_destroy, stream.value);
    }
    Status query_stream(const StreamHandle stream, bool& done) noexcept override {
        return ask(Anywhere{stream.device}, done, _driver.stream_query, stream.value);
    }
    Status synchronize_stream(const StreamHandle stream) noexcept override {
        return call(Anywhere{stream.device}, _driver.stream_synchronize, stream.value);
    }

    Status create_event(const int device, EventHandle& event) noexcept override {
        return make_handle(device, event, _driver.event_create, driver_abi::kEventDisableTiming);
    }
    Status destroy_event(const EventHandle event) noexcept override {
        return event.value == nullptr ? Status{} : call(event.device, _driver.event_destroy, event.value);
    }
    Status record_event(const EventHandle event, const StreamHandle stream) noexcept override {
        AWAKEN_STEP("gpu: record event");
        return call(stream.device, _driver.event_record, event.value, stream.value);
    }
    Status query_event(const EventHandle event, bool& done) noexcept override {
        AWAKEN_STEP("gpu: query event");
        return ask(Anywhere{event.device}, done, _driver.event_query, event.value);
    }
    Status stream_wait_event(const StreamHandle stream, const EventHandle event) noexcept override {
        return call(stream.device, _driver.stream_wait_event, stream.value, event.value, 0U);
    }

    // ---- graphs -----------------------------------------------------------------------------------------------------

    Status capture_of(const StreamHandle stream, std::uint64_t& capture) noexcept override {
        capture = 0;
        if (!_driver.stream_is_capturing) {
            return {};
        }
        typename Self::Scope scope(self(), Anywhere{stream.device});
        if (!scope.status().ok()) {
            return scope.status();
        }
        int state = driver_abi::kNotCapturing;
        const int code = _driver.stream_is_capturing(stream.value, &state);
        if (code == driver_abi::kErrorInvalidHandle) {
            // The handle is the program's: it says nothing about the layer's own.
            scope.note_failure();
            return {code, _driver.stream_is_capturing.name, "no such stream"};
        }
        const Status status = scope.end(code, _driver.stream_is_capturing.name);
        unsigned long long identity = 1;
        if (status.ok() && state != driver_abi::kNotCapturing && _driver.capture_info) {
            static_cast<void>(_driver.capture_info(stream.value, &state, &identity, nullptr, nullptr, nullptr));
        }
        capture = status.ok() && state != driver_abi::kNotCapturing ? identity : 0;
        return status;
    }

    Status capture_point(const StreamHandle stream, std::uint64_t& point) noexcept override {
        Captured captured;
        const Status status = find_captured(stream, captured);
        point = status.ok() ? point_of(captured.nodes, captured.count) : 0;
        return status;
    }

    Status when_graph_is_gone(const StreamHandle stream, void (*const gone)(void*),
                              void* const argument) noexcept override {
        if (const Status status = need(_driver.user_object_create, _driver.user_object_release, _driver.graph_retain);
            !status.ok()) {
            return status;
        }
        Captured captured;
        if (const Status status = find_captured(stream, captured); !status.ok()) {
            return status;
        }
        if (captured.graph == nullptr) {
            return {kUnsupported, _driver.capture_info.name, "the stream is not captured"};
        }
        const Anywhere here{stream.device};
        void* object = nullptr;
        Status status =
            call(here, _driver.user_object_create, &object, argument, gone, 1U, driver_abi::kNoDestructorSync);
        if (!status.ok()) {
            return status;
        }
        if (!call(here, _driver.graph_retain, captured.graph, object, 1U, driver_abi::kUserObjectMove).ok()) {
            static_cast<void>(call(here, _driver.user_object_release, object, 1U));  // which calls `gone`
        }
        return {};
    }

    Status begin_capture(const StreamHandle stream) noexcept override {
        const Status status = need(_driver.begin_capture, _driver.end_capture, _driver.graph_instantiate,
                                   _driver.graph_launch, _driver.graph_destroy, _driver.graph_exec_destroy);
        return status.ok() ? call(stream.device, _driver.begin_capture, stream.value, driver_abi::kCaptureModeGlobal)
                           : status;
    }

    Status end_capture(const StreamHandle stream, GraphHandle& graph) noexcept override {
        void* made = nullptr;
        if (const Status status = call(stream.device, _driver.end_capture, stream.value, &made); !status.ok()) {
            return status;
        }
        const Status status = make_handle(stream.device, graph, _driver.graph_instantiate, made, 0ULL);
        static_cast<void>(call(stream.device, _driver.graph_destroy, made));
        return status;
    }

    Status launch_graph(const GraphHandle graph, const StreamHandle stream) noexcept override {
        return call(stream.device, _driver.graph_launch, graph.value, stream.value);
    }
    Status destroy_graph(const GraphHandle graph) noexcept override {
        return call(graph.device, _driver.graph_exec_destroy, graph.value);
    }

    // ---- copies -----------------------------------------------------------------------------------------------------

    Status copy_2d(const Copy2D& copy, const StreamHandle stream) noexcept override {
        if (copy.width == 0 || copy.rows == 0) {
            return {};
        }
        const bool dense = copy.source_pitch == copy.width && copy.destination_pitch == copy.width;
        return dense || copy.rows == 1 ? self().copy(copy.destination, copy.source, copy.width * copy.rows, stream)
                                       : self().copy_pitched(copy, stream);
    }
    Status fill(void* const destination, const unsigned char value, const std::size_t bytes,
                const StreamHandle stream) noexcept override {
        return bytes == 0 ? Status{} : call(stream.device, _driver.fill_async, destination, value, bytes, stream.value);
    }

    // ---- sharing between processes ----------------------------------------------------------------------------------

    Status ipc_close(void* const base) noexcept override {
        return base == nullptr ? Status{} : call(OwnerOf{base}, _driver.ipc_close, base);
    }

    // ---- kernels ----------------------------------------------------------------------------------------------------

    Status load_kernels(const int device, const char* const name, const char* const source, ModuleHandle& module,
                        std::string& log) override {
        try {
            std::string architecture;
            if (const Status status = self().architecture(device, architecture); !status.ok()) {
                return status;
            }
            const auto load = [&](const std::string& code) -> Status {
                if (!self().may_load(device)) {
                    return {kBusy, _driver.module_load.name, "the GPU is busy"};
                }
                return make_handle(device, module, _driver.module_load, static_cast<const void*>(code.data()));
            };
            return _loader.load(name, source, architecture, Self::attempts(architecture), load, log);
        } catch (const std::bad_alloc&) {
            return {kUnsupported, "load_kernels", "out of host memory"};
        }
    }
    Status unload_kernels(const ModuleHandle module) noexcept override {
        return module.value == nullptr ? Status{} : call(module.device, _driver.module_unload, module.value);
    }
    Status find_kernel(const ModuleHandle module, const char* const name, KernelHandle& kernel) noexcept override {
        return make_handle(module.device, kernel, _driver.module_function, module.value, name);
    }
    Status launch(const KernelHandle kernel, const Dim3 grid, const Dim3 block, const unsigned shared_bytes,
                  const StreamHandle stream, void** const arguments) noexcept override {
        AWAKEN_STEP("gpu: launch");
        return call(kernel.device, _driver.launch_kernel, kernel.value, grid.x, grid.y, grid.z, block.x, block.y,
                    block.z, shared_bytes, stream.value, arguments, nullptr);
    }

  protected:
    DriverRuntime(DynamicLibrary library, const Functions& driver, const KernelLoader::Rules& rules)
        : _driver(driver), _library(std::move(library)), _loader(rules) {}

    [[nodiscard]] Self& self() noexcept { return static_cast<Self&>(*this); }

    /// The outcome of one call. Absent functions are told of.
    template <class Where, class Function, class... Arguments>
    Status call(const Where& where, const Function& function, const Arguments... arguments) noexcept {
        if (!function) {
            return need(function);
        }
        typename Self::Scope scope(self(), where);
        return scope.status().ok() ? scope.end(function(arguments...), function.name) : scope.status();
    }

    /// The same for a question, to which "not ready" is an answer.
    template <class Where, class Function, class Argument>
    Status ask(const Where& where, bool& done, const Function& function, const Argument argument) noexcept {
        typename Self::Scope scope(self(), where);
        if (!scope.status().ok()) {
            return scope.status();
        }
        const int code = function(argument);
        // A capture by the program keeps the runtime from looking. That says nothing about our work.
        if (code == driver_abi::kErrorNotReady || code == driver_abi::kErrorCaptureUnsupported ||
            code == driver_abi::kErrorCaptureImplicit) {
            scope.note_failure();
            done = false;
            return {};
        }
        const Status status = scope.end(code, function.name);
        if (status.ok()) {
            done = true;
        }
        return status;
    }

    /// The same for a function whose first argument receives what it makes.
    template <class Handle, class Function, class... Arguments>
    Status make_handle(const int device, Handle& handle, const Function& function,
                       const Arguments... arguments) noexcept {
        void* made = nullptr;
        const Status status = call(device, function, &made, arguments...);
        if (status.ok()) {
            handle = {made, device};
        }
        return status;
    }
    template <class Where, class Function, class... Arguments>
    Status make_memory(const Where& where, const std::size_t bytes, void*& pointer, const Function& function,
                       const Arguments... arguments) noexcept {
        if (bytes == 0) {
            return {driver_abi::kErrorInvalidValue, function.name, "zero bytes"};  // HIP would "succeed" with null
        }
        void* made = nullptr;
        const Status status = call(where, function, &made, arguments...);
        if (status.ok()) {
            pointer = made;
        }
        return status;
    }

    /// Not ok when one of the functions is absent.
    template <class... Optional>
    [[nodiscard]] static Status need(const Optional&... functions) noexcept {
        const char* lacking = nullptr;
        ((lacking = functions ? lacking : functions.name), ...);
        return lacking == nullptr ? Status{} : Status{kUnsupported, lacking, Self::kLacking};
    }

    Status attribute(const int device, const int which, int& value) noexcept {
        return call(Nowhere{}, _driver.device_attribute, &value, which, device);
    }

    /// The handle of the whole allocation that holds `pointer`. HIP's versions drop the offset of an interior pointer,
    /// or apply it in the other process.
    template <class Where>
    Status export_allocation(const Where& where, const void* const pointer, IpcMemoryHandle& handle,
                             std::size_t& offset) noexcept {
        void* base = nullptr;
        std::size_t size = 0;
        if (const Status status = call(where, _driver.memory_range, &base, &size, pointer); !status.ok()) {
            return status;
        }
        driver_abi::IpcMemHandle result{};
        const Status status = call(where, _driver.ipc_get, &result, base);
        if (status.ok()) {
            std::memcpy(handle.bytes, result.bytes, sizeof handle.bytes);
            offset = static_cast<std::size_t>(static_cast<const char*>(pointer) - static_cast<const char*>(base));
        }
        return status;
    }
    Status open_allocation(const IpcMemoryHandle& handle, const int device, const unsigned flags,
                           void*& base) noexcept {
        driver_abi::IpcMemHandle request{};
        static_assert(sizeof request == sizeof handle);
        std::memcpy(request.bytes, handle.bytes, sizeof request.bytes);
        void* opened = nullptr;
        const Status status = call(device, _driver.ipc_open, &opened, request, flags);
        if (status.ok()) {
            base = opened;
        }
        return status;
    }

    [[nodiscard]] Versions describe_versions(const std::string& runtime) const {
        Versions versions;
        versions.driver = _version;
        versions.runtime = runtime;
        versions.library = _library.path();
        versions.description =
            runtime + ", " + std::to_string(_devices) + (_devices == 1 ? " device, " : " devices, ") + versions.library;
        return versions;
    }

    const Functions _driver;
    const DynamicLibrary _library;
    int _devices = 0;
    int _version = 0;
    std::atomic<bool> _was_reset{false};

  private:
    struct Captured {
        void* graph = nullptr;  ///< null: the stream is not captured
        const void** nodes = nullptr;
        std::size_t count = 0;
    };
    Status find_captured(const StreamHandle stream, Captured& captured) noexcept {
        int state = driver_abi::kNotCapturing;
        unsigned long long identity = 0;
        return call(Anywhere{stream.device}, _driver.capture_info, stream.value, &state, &identity, &captured.graph,
                    &captured.nodes, &captured.count);
    }

    KernelLoader _loader;
};

}  // namespace awaken::gpu
