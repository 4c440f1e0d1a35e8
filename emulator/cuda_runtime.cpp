// SPDX-License-Identifier: Apache-2.0
// libcudart.so.12 and .13: the part of the CUDA runtime that host programs use. The calls are listed in
// docs/emulator.md.
//
// Compiled once per major version (AWAKEN_CUDART_VERSION), since structures and some parameters differ.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "cuda.h"
#include "runtime_state.h"

#ifndef AWAKEN_CUDART_VERSION
#error "AWAKEN_CUDART_VERSION must be 12 or 13"
#endif

namespace awaken::emulator::calls {
namespace {

constexpr bool kVersion13 = AWAKEN_CUDART_VERSION >= 13;
constexpr int kRuntimeVersion = kVersion13 ? 13000 : 12090;

enum MemoryType : int { kUnregistered = 0, kHost = 1, kDevice = 2, kManaged = 3 };
enum CopyKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefault = 4 };

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

struct Api : Cuda {
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
    /// Failures stay the last error until the program asks for it.
    static int result(Error error) {
        if (error != Error::success && error != Error::not_ready) {
            thread_state().last_error = error;
        }
        return static_cast<int>(error);
    }
    static int host_type() { return kHost; }
    static int memory_type(const Allocation& allocation) {
        return allocation.kind == MemoryKind::managed ? kManaged : (allocation.on_device() ? kDevice : kHost);
    }
    static bool valid_kind(int kind) { return kind >= kHostToHost && kind <= kDefault; }
    static constexpr std::size_t pitch_alignment = Model::pitch_alignment;
    static constexpr bool has_empty_memory = true;
};

}  // namespace
}  // namespace awaken::emulator::calls

using namespace awaken::emulator;
using namespace awaken::emulator::calls;

// Names that differ from what the headers below call them.
#define cudaHostFree cudaFreeHost
#define cudaMemcpy_spt cudaMemcpy_ptds
#define cudaMemcpyAsync_spt cudaMemcpyAsync_ptsz
#define cudaMemset_spt cudaMemset_ptds
#define cudaStreamQuery_spt cudaStreamQuery_ptsz
#define cudaStreamSynchronize_spt cudaStreamSynchronize_ptsz
#define cudaEventRecord_spt cudaEventRecord_ptsz
#if AWAKEN_CUDART_VERSION >= 13
#define cudaMemPrefetchAsync_v2 cudaMemPrefetchAsync
#define cudaMemAdvise_v2 cudaMemAdvise
#endif

#define AWAKEN_CALL(name) cuda##name
#include "calls/common_calls.h"
#include "calls/cuda_calls.h"
#include "calls/graphs.h"
#include "calls/runtime_calls.h"
#undef AWAKEN_CALL

namespace {

using cudaError_t = int;
using cudaStream_t = void*;

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

constexpr PropertyLayout kLayout =
    kVersion13 ? PropertyLayout{1, 1008, 256, 288, 568, 0} : PropertyLayout{0, 1032, 256, 288, 584, 0};

}  // namespace

// ---- errors and versions ----

AWAKEN_EXPORT const char* cudaGetErrorName(cudaError_t error) {
    static const ErrorNames* const names = names_of_errors("cuda", camel_name);
    return name_in(*names, error, "unrecognized error code");
}

AWAKEN_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
    if (!version) {
        return Api::result(Error::invalid_value);
    }
    *version = kRuntimeVersion;
    return 0;
}

/// 0 is "no driver", as the real runtime says it.
AWAKEN_EXPORT cudaError_t cudaDriverGetVersion(int* version) {
    if (!version) {
        return Api::result(Error::invalid_value);
    }
    *version = core().configuration().vendor == Vendor::cuda ? kCudaVersion : 0;
    return 0;
}

// ---- devices ----

AWAKEN_EXPORT cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
    return on_device(device, [&](Device&) {
        if (!core().primary(device).alive) {
            core().retain_primary(device);
        }
        return Error::success;
    });
}

AWAKEN_EXPORT cudaError_t cudaGetDeviceProperties_v2(void* properties, int device) {
    return on_device(device, [&](Device& found) { return put_properties(found, kCudaFigures, kLayout, properties); });
}
/// No text is an address that no device has.
AWAKEN_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
    return device_at_bus_id(device, text ? text : "");
}

AWAKEN_EXPORT_ALSO(cudaGetDeviceProperties, cudaGetDeviceProperties_v2);

// ---- memory ----

AWAKEN_EXPORT cudaError_t cudaFree(Address address) {
    return free_memory("cudaFree", address);
}
#if AWAKEN_CUDART_VERSION < 13
AWAKEN_EXPORT cudaError_t cudaMemPrefetchAsync(Address address, std::size_t, int, cudaStream_t stream) {
    return prefetch(address, stream);
}
AWAKEN_EXPORT cudaError_t cudaMemAdvise(Address address, std::size_t, int, int) {
    return advise(address);
}
#endif

AWAKEN_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, Address address) {
    return call([&] {
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
        attributes->type = Api::memory_type(*allocation);
        attributes->device = allocation->device;
        attributes->devicePointer = address;
        attributes->hostPointer = allocation->on_device() ? 0 : address;
        return Error::success;
    });
}

// ---- copies and fills ----

AWAKEN_EXPORT cudaError_t cudaMemsetAsync_ptsz(Address address, int value, std::size_t bytes, cudaStream_t stream) {
    return fill_bytes(address, 0, value, bytes, 1, or_per_thread(stream), Synchrony::stream);
}

// ---- graphs ----

/// Since CUDA 12 its parameters are those of the form with flags.
AWAKEN_EXPORT_ALSO(cudaGraphInstantiate, cudaGraphInstantiateWithFlags);
