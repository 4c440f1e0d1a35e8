// libcudart.so.12 and .13: the part of the CUDA runtime that host programs use. The calls are listed in
// docs/emulator.md.
//
// Compiled once per major version (AWAKEN_CUDART_VERSION), since structures and some parameters differ.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "calls/runtime.h"
#include "cuda_attributes.h"

#ifndef AWAKEN_CUDART_VERSION
#error "AWAKEN_CUDART_VERSION must be 12 or 13"
#endif

namespace {

using namespace awaken::emulator;
using namespace awaken::emulator::calls;

using cudaError_t = int;
using cudaStream_t = void*;
using cudaEvent_t = void*;
using cudaMemPool_t = void*;

constexpr bool kVersion13 = AWAKEN_CUDART_VERSION >= 13;
constexpr int kRuntimeVersion = kVersion13 ? 13000 : 12090;
constexpr int kDriverVersion = 13000;

enum MemoryType : int { kUnregistered = 0, kHost = 1, kDevice = 2, kManaged = 3 };
enum CopyKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefault = 4 };

struct cudaPointerAttributes {
    int type;
    int device;
    Address devicePointer;
    Address hostPointer;
#if AWAKEN_CUDART_VERSION >= 13
    long reserved[8];
#endif
};
static_assert(sizeof(cudaPointerAttributes) == (kVersion13 ? 88 : 24));

/// Where the fields of cudaDeviceProp lie that are filled in; all others are zero.
struct PropertyLayout {
    std::size_t size, multiprocessors, integrated, can_map_host, concurrent_kernels, pci_bus, pci_device, pci_domain,
        copy_engines, unified_addressing, bus_width, l2, threads_per_multiprocessor, stream_priorities,
        shared_per_multiprocessor, registers_per_multiprocessor, managed, concurrent_managed, host_pointer_registered,
        cooperative, shared_optin, blocks_per_multiprocessor, host_register, pools, ipc_events;
};
constexpr PropertyLayout kLayout =
    kVersion13 ? PropertyLayout{1008, 384, 388, 392, 560, 568, 572, 576, 584, 588, 592, 596, 604,
                                608,  624, 632, 636, 656, 664, 668, 672, 688, 704, 720, 744}
               : PropertyLayout{1032, 388, 396, 400, 576, 584, 588, 592, 600, 604, 612, 616, 624,
                                628,  640, 648, 652, 676, 684, 688, 696, 712, 728, 744, 768};

/// As the real runtime library does at its first call: loads the driver's library and initialises it, so that both, and
/// whoever looks for the driver among the loaded libraries, see an initialised driver.
void initialise_driver() noexcept {
    static const bool once = [] {
        using Init = int (*)(unsigned);
        void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
        if (driver != nullptr) {
            if (const auto init = reinterpret_cast<Init>(dlsym(driver, "cuInit"))) {
                init(0);
            }
        }
        return true;  // its outcome is availability()'s, which every call asks
    }();
    static_cast<void>(once);
}

struct Cudart {
    static Error ready() {
        initialise_driver();
        const Error error = core().availability(Vendor::cuda);
        // A wrong environment means that the runtime cannot start.
        if (error == Error::invalid_value) {
            return Error::not_initialized;
        }
        return called_from_host_function() ? Error::not_permitted : error;
    }
    static Error find_context(Context*& current) {
        current = &runtime_context();
        return Error::success;
    }
    static bool usable(const Context& context) { return context.alive; }
    /// Failures stay the last error until the program asks for it.
    static int result(Error error) {
        if (error != Error::success && error != Error::not_ready) {
            thread_state().last_error = error;
        }
        return static_cast<int>(error);
    }
    static Error ipc_error(Error error) { return error; }
    static int attribute(const Device& device, int attribute) { return cuda_attribute_value(device, attribute); }
    static int host_type() { return kHost; }
    static int memory_type(const Allocation& allocation) {
        return allocation.kind == MemoryKind::managed ? kManaged : (allocation.on_device() ? kDevice : kHost);
    }
    static Address address_for_kernels(const Allocation&, Address address) { return address; }
    static bool valid_kind(int kind) { return kind >= kHostToHost && kind <= kDefault; }
    static constexpr std::size_t pitch_alignment = Model::pitch_alignment;
    static constexpr bool has_empty_memory = true;
    static constexpr bool clears_address = false;
    static constexpr bool needs_room_for_text = false;
    static constexpr int least_priority = 0;
    static constexpr int greatest_priority = -5;
};

Error put_properties(const Device& device, void* properties) {
    if (!properties) {
        return Error::invalid_value;
    }
    std::memset(properties, 0, kLayout.size);
    // The first 368 bytes have the same layout in both versions.
    put_text(static_cast<char*>(properties), 256, device.name);
    std::memcpy(static_cast<char*>(properties) + 256, device.uuid, sizeof device.uuid);
    put_field(properties, 288, device.memory_bytes);
    put_field(properties, 296, std::size_t{Model::shared_bytes_per_block});
    put_field(properties, 304, Model::registers);
    put_field(properties, 308, 32);  // warp size
    put_field(properties, 312, std::size_t{2147483647});
    put_field(properties, 320, Model::threads_per_block);
    const int block_extent[3] = {Model::threads_per_block, Model::threads_per_block, 64};
    const int grid_extent[3] = {Model::grid_x, Model::grid_yz, Model::grid_yz};
    put_field(properties, 324, block_extent);
    put_field(properties, 336, grid_extent);
    put_field(properties, 352, std::size_t{Model::constant_bytes});
    put_field(properties, 360, 9);  // compute capability
    put_field(properties, 364, 0);
    put_field(properties, 368, std::size_t{Model::pitch_alignment});
    put_field(properties, kLayout.multiprocessors, Model::multiprocessors);
    put_field(properties, kLayout.integrated, 0);
    put_field(properties, kLayout.pci_bus, device.pci_bus);
    put_field(properties, kLayout.pci_device, 0);
    put_field(properties, kLayout.pci_domain, 0);
    put_field(properties, kLayout.copy_engines, 2);
    put_field(properties, kLayout.bus_width, Model::bus_width);
    put_field(properties, kLayout.l2, Model::l2_bytes);
    put_field(properties, kLayout.threads_per_multiprocessor, Model::threads_per_multiprocessor);
    put_field(properties, kLayout.shared_per_multiprocessor, std::size_t{Model::shared_bytes_per_multiprocessor});
    put_field(properties, kLayout.registers_per_multiprocessor, Model::registers);
    put_field(properties, kLayout.shared_optin, std::size_t{Model::shared_bytes_per_block});
    put_field(properties, kLayout.blocks_per_multiprocessor, Model::blocks_per_multiprocessor);
    for (const std::size_t yes :
         {kLayout.can_map_host, kLayout.concurrent_kernels, kLayout.unified_addressing, kLayout.stream_priorities,
          kLayout.managed, kLayout.concurrent_managed, kLayout.host_pointer_registered, kLayout.cooperative,
          kLayout.host_register, kLayout.pools}) {
        put_field(properties, yes, 1);
    }
    return Error::success;
}

using Api = Cudart;

}  // namespace

#define AWAKEN_CALL(name) cuda##name
#include "calls/common_calls.h"
#include "calls/cuda_calls.h"
#include "calls/runtime_calls.h"

// ---- errors and versions ----

AWAKEN_EXPORT const char* cudaGetErrorName(cudaError_t error) {
    static const ErrorNames* const names = names_of_errors("cuda", camel_name);
    return name_in(*names, error, "unrecognized error code");
}

AWAKEN_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
    if (!version) {
        return Cudart::result(Error::invalid_value);
    }
    *version = kRuntimeVersion;
    return 0;
}

/// 0 is "no driver", as the real runtime says it.
AWAKEN_EXPORT cudaError_t cudaDriverGetVersion(int* version) {
    if (!version) {
        return Cudart::result(Error::invalid_value);
    }
    *version = core().configuration().vendor == Vendor::cuda ? kDriverVersion : 0;
    return 0;
}

// ---- devices ----

AWAKEN_EXPORT cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
    return on_device<Cudart>(device, [&](Device&) {
        if (!core().primary(device).alive) {
            core().retain_primary(device);
        }
        return Error::success;
    });
}

AWAKEN_EXPORT cudaError_t cudaGetDeviceProperties_v2(void* properties, int device) {
    return on_device<Cudart>(device, [&](Device& found) { return put_properties(found, properties); });
}
AWAKEN_EXPORT cudaError_t cudaGetDeviceProperties(void* properties, int device) {
    return cudaGetDeviceProperties_v2(properties, device);
}

/// No text is an address that no device has.
AWAKEN_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
    return device_at_bus_id<Cudart>(device, text ? text : "");
}

// ---- memory ----

AWAKEN_EXPORT cudaError_t cudaFree(Address address) {
    return free_memory<Cudart>("cudaFree", address);
}
AWAKEN_EXPORT cudaError_t cudaFreeHost(Address address) {
    return free_pinned_memory<Cudart>("cudaFreeHost", address);
}

#if AWAKEN_CUDART_VERSION >= 13
AWAKEN_EXPORT cudaError_t cudaMemPrefetchAsync(Address address, std::size_t, MemoryLocation, unsigned,
                                               cudaStream_t stream) {
    return prefetch<Cudart>(address, stream);
}
AWAKEN_EXPORT cudaError_t cudaMemAdvise(Address address, std::size_t, int, MemoryLocation) {
    return advise<Cudart>(address);
}
#else
AWAKEN_EXPORT cudaError_t cudaMemPrefetchAsync(Address address, std::size_t, int, cudaStream_t stream) {
    return prefetch<Cudart>(address, stream);
}
AWAKEN_EXPORT cudaError_t cudaMemAdvise(Address address, std::size_t, int, int) {
    return advise<Cudart>(address);
}
AWAKEN_EXPORT cudaError_t cudaMemPrefetchAsync_v2(Address address, std::size_t, MemoryLocation, unsigned,
                                                  cudaStream_t stream) {
    return prefetch<Cudart>(address, stream);
}
AWAKEN_EXPORT cudaError_t cudaMemAdvise_v2(Address address, std::size_t, int, MemoryLocation) {
    return advise<Cudart>(address);
}
#endif

AWAKEN_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, Address address) {
    return call<Cudart>([&] {
        if (!attributes) {
            return Error::invalid_value;
        }
        *attributes = {};
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        if (!allocation) {
            attributes->type = kUnregistered;
            attributes->device = -2;
            attributes->hostPointer = address;
            return core().memory().in_device_range(address) ? Error::invalid_value : Error::success;
        }
        attributes->type = Cudart::memory_type(*allocation);
        attributes->device = allocation->device;
        attributes->devicePointer = address;
        attributes->hostPointer = allocation->on_device() ? 0 : address;
        return Error::success;
    });
}

// ---- copies and fills ----

AWAKEN_EXPORT cudaError_t cudaMemcpy_ptds(Address destination, Address source, std::size_t bytes, int kind) {
    return copy_bytes<Cudart>(destination, source, bytes, kind, kPerThread, Synchrony::host);
}
AWAKEN_EXPORT cudaError_t cudaMemcpyAsync_ptsz(Address destination, Address source, std::size_t bytes, int kind,
                                               cudaStream_t stream) {
    return copy_bytes<Cudart>(destination, source, bytes, kind, or_per_thread(stream), Synchrony::stream);
}
AWAKEN_EXPORT cudaError_t cudaMemset_ptds(Address address, int value, std::size_t bytes) {
    return fill_bytes<Cudart>(address, 0, value, bytes, 1, kPerThread, Synchrony::host);
}
AWAKEN_EXPORT cudaError_t cudaMemsetAsync_ptsz(Address address, int value, std::size_t bytes, cudaStream_t stream) {
    return fill_bytes<Cudart>(address, 0, value, bytes, 1, or_per_thread(stream), Synchrony::stream);
}

// ---- streams and events ----

AWAKEN_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t handle, int mode) {
    return begin_stream_capture<Cudart>(handle, mode);
}

/// Since CUDA 12 its parameters are those of the form with flags.
AWAKEN_EXPORT cudaError_t cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
    return instantiate<Cudart>(executable, graph);
}

AWAKEN_EXPORT cudaError_t cudaStreamQuery_ptsz(cudaStream_t stream) {
    return cudaStreamQuery(or_per_thread(stream));
}
AWAKEN_EXPORT cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream) {
    return cudaStreamSynchronize(or_per_thread(stream));
}
AWAKEN_EXPORT cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecord(event, or_per_thread(stream));
}
