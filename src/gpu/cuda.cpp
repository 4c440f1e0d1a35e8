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
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "base/fnv1a.h"
#include "base/own_thread.h"
#include "base/step_probe.h"
#include "gpu/dynamic_library.h"
#include "gpu/gpu.h"
#include "gpu/identity_table.h"
#include "gpu/precompiled_kernels.h"
#include "gpu/relaxed_capture.h"
#include "gpu/runtime_compiler.h"
#include "gpu/shared_descriptors.h"
#include "gpu/vendor.h"

namespace awaken::gpu {
namespace {

// ---- the driver's binary interface: types and numbers of cuda.h that we rely on -------------------------------------

using CuResult = int;
using CuDevice = int;
using CuContext = void*;
using CuStream = void*;
using CuEvent = void*;
using CuModule = void*;
using CuFunction = void*;
using CuAddress = unsigned long long;
using CuMemHandle = unsigned long long;

constexpr CuResult kSuccess = 0;
constexpr CuResult kErrorNotInitialized = 3;
constexpr CuResult kErrorDeinitialized = 4;
constexpr CuResult kErrorInvalidDevice = 101;
constexpr CuResult kErrorInvalidContext = 201;
constexpr CuResult kErrorNotReady = 600;
constexpr CuResult kErrorPeerAccessAlreadyEnabled = 704;
constexpr CuResult kErrorContextIsDestroyed = 709;
constexpr CuResult kErrorNotPermitted = 800;
constexpr CuResult kErrorCaptureUnsupported = 900;
constexpr CuResult kErrorCaptureImplicit = 906;

constexpr int kNotCapturing = 0;

enum CuPointerAttribute : int {
    kContextAttribute = 1,
    kMemoryTypeAttribute = 2,
    kSyncMemopsAttribute = 6,
    kBufferIdAttribute = 7,
    kIsManagedAttribute = 8,
    kDeviceOrdinalAttribute = 9,
    kIsLegacyIpcCapableAttribute = 10,
    kRangeStartAttribute = 11,
    kRangeSizeAttribute = 12,
    kAllowedHandleTypesAttribute = 14
};

constexpr unsigned kPosixFileDescriptor = 1;
constexpr int kLocationIsDevice = 1;
constexpr int kReadAndWrite = 3;

constexpr unsigned kMemoryTypeHost = 1;
constexpr unsigned kMemoryTypeDevice = 2;
constexpr unsigned kMemoryTypeUnified = 4;

constexpr int kDeviceMaxPitch = 11;
constexpr int kDeviceMultiprocessorCount = 16;
constexpr int kDeviceComputeCapabilityMajor = 75;
constexpr int kDeviceComputeCapabilityMinor = 76;

constexpr unsigned kStreamDefault = 0;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kIpcLazyEnablePeerAccess = 1;
constexpr unsigned kAttachGlobal = 1;
constexpr unsigned kHostPortable = 1;
constexpr unsigned kHostDeviceMap = 2;

/// Errors of kernels and copies that stay with the context: CUDA_ERROR_ILLEGAL_ADDRESS to CUDA_ERROR_LAUNCH_FAILED.
constexpr bool is_failed_kernel(const CuResult code) noexcept {
    return code == 700 || code == 702 || (code >= 714 && code <= 719);
}

/// The legacy default stream, with any compiler option of the caller.
CuStream legacy_stream() noexcept {
    return reinterpret_cast<CuStream>(std::uintptr_t{1});
}

struct CuUuid {
    unsigned char bytes[16];
};

struct CuIpcMemHandle {
    unsigned char bytes[64];
};
static_assert(sizeof(CuIpcMemHandle) == sizeof(IpcMemoryHandle));

/// CUmemAccessDesc.
struct CuMemAccess {
    int location_type;
    int location_id;
    int flags;
};
static_assert(sizeof(CuMemAccess) == 12, "layout of CUmemAccessDesc");

/// CUmemcpyAttributes.
struct CuCopyAttributes {
    unsigned source_order;
    unsigned source_location[2];
    unsigned destination_location[2];
    unsigned flags;
};
static_assert(sizeof(CuCopyAttributes) == 24, "layout of CUmemcpyAttributes");
constexpr unsigned kSourceInStreamOrder = 1;

struct CuCopy2D {
    std::size_t source_x;
    std::size_t source_y;
    unsigned source_type;
    const void* source_host;
    CuAddress source_device;
    void* source_array;
    std::size_t source_pitch;
    std::size_t destination_x;
    std::size_t destination_y;
    unsigned destination_type;
    void* destination_host;
    CuAddress destination_device;
    void* destination_array;
    std::size_t destination_pitch;
    std::size_t width;
    std::size_t height;
};
static_assert(sizeof(CuCopy2D) == 16 * sizeof(void*), "layout of CUDA_MEMCPY2D");

// The attributes 10 to 12 above came with CUDA 11. Everything rests on them.
constexpr int kOldestDriver = 11000;

// X(member, symbol, required, result, parameters...)
#define AWAKEN_CUDA_FUNCTIONS(X)                                                                                     \
    X(init, "cuInit", true, CuResult, unsigned)                                                                      \
    X(driver_version, "cuDriverGetVersion", true, CuResult, int*)                                                    \
    X(error_string, "cuGetErrorString", true, CuResult, CuResult, const char**)                                      \
    X(device_get, "cuDeviceGet", true, CuResult, CuDevice*, int)                                                     \
    X(device_count, "cuDeviceGetCount", true, CuResult, int*)                                                        \
    X(device_name, "cuDeviceGetName", true, CuResult, char*, int, CuDevice)                                          \
    X(device_uuid_v2, "cuDeviceGetUuid_v2", false, CuResult, CuUuid*, CuDevice)                                      \
    X(device_uuid, "cuDeviceGetUuid", true, CuResult, CuUuid*, CuDevice)                                             \
    X(device_memory, "cuDeviceTotalMem_v2", true, CuResult, std::size_t*, CuDevice)                                  \
    X(device_attribute, "cuDeviceGetAttribute", true, CuResult, int*, int, CuDevice)                                 \
    X(device_pci_bus_id, "cuDeviceGetPCIBusId", true, CuResult, char*, int, CuDevice)                                \
    X(device_can_access_peer, "cuDeviceCanAccessPeer", true, CuResult, int*, CuDevice, CuDevice)                     \
    X(primary_retain, "cuDevicePrimaryCtxRetain", true, CuResult, CuContext*, CuDevice)                              \
    X(primary_state, "cuDevicePrimaryCtxGetState", true, CuResult, CuDevice, unsigned*, int*)                        \
    X(context_current, "cuCtxGetCurrent", true, CuResult, CuContext*)                                                \
    X(context_set, "cuCtxSetCurrent", true, CuResult, CuContext)                                                     \
    X(context_device, "cuCtxGetDevice", true, CuResult, CuDevice*)                                                   \
    X(context_push, "cuCtxPushCurrent_v2", true, CuResult, CuContext)                                                \
    X(context_pop, "cuCtxPopCurrent_v2", true, CuResult, CuContext*)                                                 \
    X(context_synchronize, "cuCtxSynchronize", true, CuResult)                                                       \
    X(context_record_event, "cuCtxRecordEvent", false, CuResult, CuContext, CuEvent)                                 \
    X(context_id, "cuCtxGetId", false, CuResult, CuContext, unsigned long long*)                                     \
    X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", false, CuResult, int*)                             \
    X(context_enable_peer, "cuCtxEnablePeerAccess", true, CuResult, CuContext, unsigned)                             \
    X(pointer_attributes, "cuPointerGetAttributes", true, CuResult, unsigned, const CuPointerAttribute*, void**,     \
      CuAddress)                                                                                                     \
    X(set_pointer_attribute, "cuPointerSetAttribute", true, CuResult, const void*, CuPointerAttribute, CuAddress)    \
    X(memory_allocate, "cuMemAlloc_v2", true, CuResult, CuAddress*, std::size_t)                                     \
    X(memory_free, "cuMemFree_v2", true, CuResult, CuAddress)                                                        \
    X(memory_allocate_managed, "cuMemAllocManaged", false, CuResult, CuAddress*, std::size_t, unsigned)              \
    X(memory_allocate_async, "cuMemAllocAsync", false, CuResult, CuAddress*, std::size_t, CuStream)                  \
    X(memory_prefetch, "cuMemPrefetchAsync", false, CuResult, CuAddress, std::size_t, CuDevice, CuStream)            \
    X(memory_range, "cuMemGetAddressRange_v2", true, CuResult, CuAddress*, std::size_t*, CuAddress)                  \
    X(host_allocate, "cuMemHostAlloc", true, CuResult, void**, std::size_t, unsigned)                                \
    X(host_free, "cuMemFreeHost", true, CuResult, void*)                                                             \
    X(host_register, "cuMemHostRegister_v2", true, CuResult, void*, std::size_t, unsigned)                           \
    X(host_unregister, "cuMemHostUnregister", true, CuResult, void*)                                                 \
    X(copy_async, "cuMemcpyAsync", true, CuResult, CuAddress, CuAddress, std::size_t, CuStream)                      \
    X(copy_2d_async, "cuMemcpy2DAsync_v2", true, CuResult, const CuCopy2D*, CuStream)                                \
    X(copy_batch_v2, "cuMemcpyBatchAsync_v2", false, CuResult, CuAddress*, CuAddress*, std::size_t*, std::size_t,    \
      CuCopyAttributes*, std::size_t*, std::size_t, CuStream)                                                        \
    X(copy_batch, "cuMemcpyBatchAsync", false, CuResult, CuAddress*, CuAddress*, std::size_t*, std::size_t,          \
      CuCopyAttributes*, std::size_t*, std::size_t, std::size_t*, CuStream)                                          \
    X(fill_async, "cuMemsetD8Async", true, CuResult, CuAddress, unsigned char, std::size_t, CuStream)                \
    X(stream_priorities, "cuCtxGetStreamPriorityRange", true, CuResult, int*, int*)                                  \
    X(stream_create, "cuStreamCreateWithPriority", true, CuResult, CuStream*, unsigned, int)                         \
    X(stream_destroy, "cuStreamDestroy_v2", true, CuResult, CuStream)                                                \
    X(stream_query, "cuStreamQuery", true, CuResult, CuStream)                                                       \
    X(stream_is_capturing, "cuStreamIsCapturing", true, CuResult, CuStream, int*)                                    \
    X(capture_info, "cuStreamGetCaptureInfo_v2", false, CuResult, CuStream, int*, unsigned long long*, void**,       \
      const void***, std::size_t*)                                                                                   \
    X(user_object_create, "cuUserObjectCreate", false, CuResult, void**, void*, void (*)(void*), unsigned, unsigned) \
    X(user_object_release, "cuUserObjectRelease", false, CuResult, void*, unsigned)                                  \
    X(begin_capture, "cuStreamBeginCapture_v2", false, CuResult, CuStream, int)                                      \
    X(end_capture, "cuStreamEndCapture", false, CuResult, CuStream, void**)                                          \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", false, CuResult, void**, void*, unsigned long long)          \
    X(graph_launch, "cuGraphLaunch", false, CuResult, void*, CuStream)                                               \
    X(graph_destroy, "cuGraphDestroy", false, CuResult, void*)                                                       \
    X(graph_exec_destroy, "cuGraphExecDestroy", false, CuResult, void*)                                              \
    X(graph_retain, "cuGraphRetainUserObject", false, CuResult, void*, void*, unsigned, unsigned)                    \
    X(stream_synchronize, "cuStreamSynchronize", true, CuResult, CuStream)                                           \
    X(stream_wait_event, "cuStreamWaitEvent", true, CuResult, CuStream, CuEvent, unsigned)                           \
    X(event_create, "cuEventCreate", true, CuResult, CuEvent*, unsigned)                                             \
    X(event_destroy, "cuEventDestroy_v2", true, CuResult, CuEvent)                                                   \
    X(event_record, "cuEventRecord", true, CuResult, CuEvent, CuStream)                                              \
    X(event_query, "cuEventQuery", true, CuResult, CuEvent)                                                          \
    X(ipc_get, "cuIpcGetMemHandle", true, CuResult, CuIpcMemHandle*, CuAddress)                                      \
    X(ipc_open, "cuIpcOpenMemHandle_v2", true, CuResult, CuAddress*, CuIpcMemHandle, unsigned)                       \
    X(ipc_close, "cuIpcCloseMemHandle", true, CuResult, CuAddress)                                                   \
    X(address_reserve, "cuMemAddressReserve", false, CuResult, CuAddress*, std::size_t, std::size_t, CuAddress,      \
      unsigned long long)                                                                                            \
    X(address_free, "cuMemAddressFree", false, CuResult, CuAddress, std::size_t)                                     \
    X(physical_retain, "cuMemRetainAllocationHandle", false, CuResult, CuMemHandle*, void*)                          \
    X(physical_release, "cuMemRelease", false, CuResult, CuMemHandle)                                                \
    X(physical_export, "cuMemExportToShareableHandle", false, CuResult, void*, CuMemHandle, int, unsigned long long) \
    X(physical_import, "cuMemImportFromShareableHandle", false, CuResult, CuMemHandle*, void*, int)                  \
    X(memory_map, "cuMemMap", false, CuResult, CuAddress, std::size_t, std::size_t, CuMemHandle, unsigned long long) \
    X(memory_unmap, "cuMemUnmap", false, CuResult, CuAddress, std::size_t)                                           \
    X(set_access, "cuMemSetAccess", false, CuResult, CuAddress, std::size_t, const CuMemAccess*, std::size_t)        \
    X(module_load, "cuModuleLoadData", true, CuResult, CuModule*, const void*)                                       \
    X(module_unload, "cuModuleUnload", true, CuResult, CuModule)                                                     \
    X(module_function, "cuModuleGetFunction", true, CuResult, CuFunction*, CuModule, const char*)                    \
    X(launch_kernel, "cuLaunchKernel", true, CuResult, CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, \
      unsigned, unsigned, CuStream, void**, void**)

struct Driver {
    AWAKEN_CUDA_FUNCTIONS(AWAKEN_DECLARE_FUNCTION)
};

bool bind_driver(const DynamicLibrary& library, Driver& table, std::string& why_not) {
    const FunctionSlot slots[] = {AWAKEN_CUDA_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
    return library.bind(slots, why_not);
}

CuAddress device_address(const void* pointer) noexcept {
    return reinterpret_cast<CuAddress>(pointer);
}
void* host_pointer(CuAddress address) noexcept {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

// ---- the run-time compiler ------------------------------------------------------------------------------------------

#define AWAKEN_NVRTC_FUNCTIONS(X)                                                                         \
    X(version, "nvrtcVersion", true, int, int*, int*)                                                     \
    X(error_string, "nvrtcGetErrorString", true, const char*, int)                                        \
    X(create, "nvrtcCreateProgram", true, int, void**, const char*, const char*, int, const char* const*, \
      const char* const*)                                                                                 \
    X(destroy, "nvrtcDestroyProgram", true, int, void**)                                                  \
    X(compile, "nvrtcCompileProgram", true, int, void*, int, const char* const*)                          \
    X(log_size, "nvrtcGetProgramLogSize", true, int, void*, std::size_t*)                                 \
    X(log, "nvrtcGetProgramLog", true, int, void*, char*)                                                 \
    X(code_size, "nvrtcGetCUBINSize", true, int, void*, std::size_t*)                                     \
    X(code, "nvrtcGetCUBIN", true, int, void*, char*)                                                     \
    X(portable_size, "nvrtcGetPTXSize", true, int, void*, std::size_t*)                                   \
    X(portable, "nvrtcGetPTX", true, int, void*, char*)

constexpr const char* kCompilerStem = "libnvrtc";
constexpr const char* kCompilerNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"};

/// Compilers in `directory`, newest version first.
void add_compilers_in(const std::string& directory, std::vector<std::string>& paths) {
    const std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(directory.c_str()), &::closedir);
    if (handle == nullptr) {
        return;
    }
    std::vector<std::string> found;
    while (const dirent* const entry = ::readdir(handle.get())) {
        if (is_library_named(entry->d_name, kCompilerStem)) {
            found.push_back(directory + "/" + entry->d_name);
        }
    }
    std::sort(found.rbegin(), found.rend());
    paths.insert(paths.end(), found.begin(), found.end());
}

/// The places where a compiler may lie. Those come first whose compiler most likely fits the CUDA that the program
/// uses: loaded already; beside the loaded CUDA libraries (a toolkit's folder, or the folders that NVIDIA's Python
/// packages share); known to the loader; in the toolkit that the environment names.
std::vector<std::string> compiler_paths() {
    std::vector<std::string> paths;
    std::vector<std::string> directories;
    const auto add_directory = [&directories](const std::string& directory) {
        if (std::find(directories.begin(), directories.end(), directory) == directories.end()) {
            directories.push_back(directory);
        }
    };
    for (const std::string& path : loaded_object_paths()) {
        if (is_library_named(path, kCompilerStem)) {
            paths.push_back(path);
        }
        if (path.front() != '/') {
            continue;
        }
        for (const char* const stem :
             {"libcudart", "libcublas", "libcublasLt", "libcufft", "libcusparse", "libcurand"}) {
            if (!is_library_named(path, stem)) {
                continue;
            }
            add_directory(path.substr(0, path.rfind('/')));
            // site-packages/nvidia/<package>/lib/libcudart.so.12: its siblings are site-packages/nvidia/*/lib.
            const std::size_t packages = path.rfind("/nvidia/");
            if (packages == std::string::npos) {
                continue;
            }
            const std::string root = path.substr(0, packages) + "/nvidia";
            const std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(root.c_str()), &::closedir);
            while (const dirent* const entry = handle != nullptr ? ::readdir(handle.get()) : nullptr) {
                if (entry->d_name[0] != '.') {
                    add_directory(root + "/" + entry->d_name + "/lib");
                }
            }
        }
    }
    for (const std::string& directory : directories) {
        add_compilers_in(directory, paths);
    }
    paths.insert(paths.end(), std::begin(kCompilerNames), std::end(kCompilerNames));
    for (const char* const variable : {"CUDA_HOME", "CUDA_PATH"}) {
        if (const char* const root = ::secure_getenv(variable); root != nullptr && *root == '/') {
            add_compilers_in(std::string(root) + "/lib64", paths);
            add_compilers_in(std::string(root) + "/lib", paths);
        }
    }
    add_compilers_in("/usr/local/cuda/lib64", paths);
    return paths;
}

std::unique_ptr<RuntimeCompiler> make_compiler(std::string& why_not) {
    const std::vector<std::string> paths = compiler_paths();
    const DynamicLibrary library = DynamicLibrary::open(paths, why_not);
    if (!library) {
        why_not =
            "no run-time compiler (libnvrtc) can be loaded; install the package nvidia-cuda-nvrtc or set CUDA_HOME: " +
            why_not;
        return nullptr;
    }
    CompilerFunctions table;
    const FunctionSlot slots[] = {AWAKEN_NVRTC_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
    if (!library.bind(slots, why_not)) {
        return nullptr;
    }
    return std::make_unique<RuntimeCompiler>("NVRTC", library.path(), table);
}

// ---- the runtime ----------------------------------------------------------------------------------------------------

class Cuda final : public VendorRuntime {
  public:
    Cuda(DynamicLibrary library, const Driver& driver) : _driver(driver), _library(std::move(library)) {}

    Readiness prepare(bool initialise, std::string* why_not) override {
        const auto explain = [why_not](const std::string& text) {
            if (why_not != nullptr) {
                *why_not = text;
            }
        };
        if (initialise) {
            if (const Status status = outcome(_driver.init(0), "cuInit"); !status.ok()) {
                explain(_library.path() + " cannot be initialised: " + status.message());
                return Readiness::no_device;
            }
        }
        int count = 0;
        const CuResult result = _driver.device_count(&count);
        if (result == kErrorNotInitialized) {
            explain(_library.path() + " is loaded, but the program has not initialised it");
            return Readiness::not_initialised;
        }
        if (result == kErrorNotPermitted) {
            // A host function of a stream is running: the driver answers only other threads.
            static thread_local bool asks_for_another = false;
            Readiness readiness = Readiness::not_initialised;
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
            return Readiness::no_device;
        }
        int version = 0;
        if (_driver.driver_version(&version) == kSuccess && version < kOldestDriver) {
            explain(_library.path() + " is the driver of CUDA " + dotted(version) + "; CUDA " + dotted(kOldestDriver) +
                    " or newer is needed: update the NVIDIA driver");
            return Readiness::no_device;
        }
        _primary = std::make_unique<std::atomic<CuContext>[]>(static_cast<std::size_t>(count));
        _primary_ids = std::make_unique<std::atomic<unsigned long long>[]>(static_cast<std::size_t>(count));
        _devices = count;
        _version = version;
        return Readiness::ready;
    }

    Vendor vendor() const noexcept override { return Vendor::cuda; }
    const char* stream_type() const noexcept override { return "cudaStream_t"; }
    bool works_with_gdrcopy() const noexcept override { return true; }

    Versions versions() const override {
        Versions versions;
        versions.driver = _version;
        versions.runtime = "CUDA driver " + dotted(_version);
        versions.library = _library.path();
        versions.description = versions.runtime + ", " + std::to_string(_devices) +
                               (_devices == 1 ? " device, " : " devices, ") + versions.library;
        return versions;
    }

    // ---- devices ----------------------------------------------------------------------------------------------------

    int device_count() noexcept override {
        int count = 0;
        return _driver.device_count(&count) == kSuccess ? count : 0;
    }

    Status device_info(int device, DeviceInfo& info) override {
        CuDevice handle = 0;
        if (const Status status = device_handle(device, handle); !status.ok()) {
            return status;
        }
        DeviceInfo result;
        std::array<char, 256> text = {};
        if (const CuResult code = _driver.device_name(text.data(), static_cast<int>(text.size()), handle)) {
            return outcome(code, "cuDeviceGetName");
        }
        result.name = text.data();
        text = {};
        if (const CuResult code = _driver.device_pci_bus_id(text.data(), static_cast<int>(text.size()), handle)) {
            return outcome(code, "cuDeviceGetPCIBusId");
        }
        result.pci_bus_id = text.data();
        for (char& letter : result.pci_bus_id) {
            letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
        }
        CuUuid uuid = {};
        // Version 2 tells the instances of a partitioned GPU (MIG) apart.
        if (const CuResult code =
                (_driver.device_uuid_v2 != nullptr ? _driver.device_uuid_v2 : _driver.device_uuid)(&uuid, handle)) {
            return outcome(code, "cuDeviceGetUuid");
        }
        std::memcpy(result.uuid, uuid.bytes, sizeof result.uuid);
        if (const CuResult code = _driver.device_memory(&result.memory_bytes, handle)) {
            return outcome(code, "cuDeviceTotalMem");
        }
        if (const Status status = attribute(handle, kDeviceMultiprocessorCount, result.multiprocessors); !status.ok()) {
            return status;
        }
        if (const Status status = architecture(handle, result.architecture); !status.ok()) {
            return status;
        }
        info = std::move(result);
        return {};
    }

    Status current_device(int& device) noexcept override {
        // Tools that watch the driver's calls report an error when a thread without a context asks for its device.
        CuContext context = nullptr;
        if (const CuResult code = _driver.context_current(&context); code != kSuccess) {
            return outcome(code, "cuCtxGetCurrent");
        }
        if (context == nullptr) {
            return outcome(kErrorInvalidContext, "cuCtxGetDevice");
        }
        // Device handles of the driver are the ordinals of the visible devices.
        CuDevice handle = 0;
        const CuResult code = _driver.context_device(&handle);
        if (code == kSuccess) {
            device = handle;
        }
        return outcome(code, "cuCtxGetDevice");
    }

    int device_to_use() noexcept override {
        int device = -1;
        return current_device(device).ok() && device >= 0 ? device : device_in_use();
    }

    Status run_on(int device, const std::function<void()>& work) override {
        const Current current(*this, device);
        if (current.status().ok()) {
            work();
        }
        return current.status();
    }

    Status make_current(int device) noexcept override {
        CuContext context = nullptr;
        if (const Status status = primary_context(device, context); !status.ok()) {
            return status;
        }
        return outcome(_driver.context_set(context), "cuCtxSetCurrent");
    }

    Status can_access_peer(int device, int peer, bool& can) noexcept override {
        CuDevice from = 0;
        CuDevice to = 0;
        if (const Status status = device_handle(device, from); !status.ok()) {
            return status;
        }
        if (const Status status = device_handle(peer, to); !status.ok()) {
            return status;
        }
        int answer = 0;
        const CuResult code = _driver.device_can_access_peer(&answer, from, to);
        if (code == kSuccess) {
            can = answer != 0;
        }
        return outcome(code, "cuDeviceCanAccessPeer");
    }

    Status enable_peer_access(int device, int peer) noexcept override {
        CuContext peer_context = nullptr;
        if (const Status status = primary_context(peer, peer_context); !status.ok()) {
            return status;
        }
        return in_context(Current(*this, device), [&]() -> Status {
            const CuResult code = _driver.context_enable_peer(peer_context, 0);
            return outcome(code == kErrorPeerAccessAlreadyEnabled ? kSuccess : code, "cuCtxEnablePeerAccess");
        });
    }

    // ---- pointers ---------------------------------------------------------------------------------------------------

    void classify(std::span<const void* const> pointers, PointerInfo* infos) noexcept override {
        AWAKEN_STEP("cuda: classify");
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
        return in_context(Current(*this, pointer, info.device), [&]() -> Status {
            if (known == IdentityTable::Mark::absent) {
                const int yes = 1;
                const CuResult code =
                    _driver.set_pointer_attribute(&yes, kSyncMemopsAttribute, device_address(pointer));
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

    // ---- calls that wait for all work of a device -------------------------------------------------------------------

    bool is_idle(int device, std::chrono::microseconds patience) noexcept override {
        if (is_captured()) {
            return false;
        }
        if (device < 0) {
            for (int each = 0; each < _devices; ++each) {
                const bool used = _primary[static_cast<std::size_t>(each)].load(std::memory_order_acquire) != nullptr;
                if (used && !is_idle(each, patience)) {
                    return false;
                }
            }
            return true;
        }
        const Current current(*this, device);
        CuContext context = nullptr;
        int capturing = 0;
        if (!current.status().ok() || !primary_context(device, context).ok() ||
            _driver.stream_is_capturing(legacy_stream(), &capturing) != kSuccess || capturing != kNotCapturing) {
            return false;
        }
        if (_driver.context_record_event == nullptr) {
            return _idle_probe.ask(device, [this, context] { wait_for_context(context); }, patience);
        }
        const std::scoped_lock lock(_idle_mutex);
        CuEvent& event = _idle_events[device];
        if ((event == nullptr && _driver.event_create(&event, kEventDisableTiming) != kSuccess) ||
            _driver.context_record_event(context, event) != kSuccess) {
            return false;
        }
        const auto start = std::chrono::steady_clock::now();
        CuResult answer = kErrorNotReady;
        while ((answer = _driver.event_query(event)) == kErrorNotReady) {
            if (std::chrono::steady_clock::now() - start >= patience) {
                return false;
            }
            ::sched_yield();
        }
        // After a kernel has failed, the context does no more work, and refuses each call at once.
        return answer == kSuccess || is_failed_kernel(answer);
    }

    // ---- memory -----------------------------------------------------------------------------------------------------

    Status allocate(int device, std::size_t bytes, void*& pointer) noexcept override {
        return in_context(Current(*this, device), [&]() -> Status {
            CuAddress address = 0;
            const CuResult code = _driver.memory_allocate(&address, bytes);
            if (code == kSuccess) {
                pointer = host_pointer(address);
            }
            return outcome(code, "cuMemAlloc");
        });
    }

    Status free(void* pointer) noexcept override {
        if (pointer == nullptr) {
            return {};
        }
        return in_context(Current(*this, pointer, -1), [&]() -> Status {
            return outcome(_driver.memory_free(device_address(pointer)), "cuMemFree");
        });
    }

    Status allocate_managed(int device, std::size_t bytes, void*& pointer) noexcept override {
        if (_driver.memory_allocate_managed == nullptr) {
            return lacking("cuMemAllocManaged");
        }
        return in_context(Current(*this, device), [&]() -> Status {
            CuAddress address = 0;
            const CuResult code = _driver.memory_allocate_managed(&address, bytes, kAttachGlobal);
            if (code == kSuccess) {
                pointer = host_pointer(address);
            }
            return outcome(code, "cuMemAllocManaged");
        });
    }

    Status allocate_from_pool(int device, std::size_t bytes, void*& pointer) noexcept override {
        if (_driver.memory_allocate_async == nullptr) {
            return lacking("cuMemAllocAsync");
        }
        return in_context(Current(*this, device), [&]() -> Status {
            CuAddress address = 0;
            if (const CuResult code = _driver.memory_allocate_async(&address, bytes, legacy_stream())) {
                return outcome(code, "cuMemAllocAsync");
            }
            // Other streams may use the memory only after the stream of the allocation has executed it.
            if (const CuResult code = _driver.stream_synchronize(legacy_stream())) {
                static_cast<void>(_driver.memory_free(address));
                return outcome(code, "cuStreamSynchronize");
            }
            pointer = host_pointer(address);
            return {};
        });
    }

    Status prefetch(const void* pointer, std::size_t bytes, int device, StreamHandle stream) noexcept override {
        if (bytes == 0) {
            return {};
        }
        if (_driver.memory_prefetch == nullptr) {
            return lacking("cuMemPrefetchAsync");
        }
        CuDevice handle = 0;
        if (const Status status = device_handle(device, handle); !status.ok()) {
            return status;
        }
        return in_context(Current(*this, stream.device), [&]() -> Status {
            return outcome(_driver.memory_prefetch(device_address(pointer), bytes, handle, stream.value),
                           "cuMemPrefetchAsync");
        });
    }

    Status allocate_pinned(std::size_t bytes, void*& pointer) noexcept override {
        return in_context(Current(*this, device_to_use()), [&]() -> Status {
            void* result = nullptr;
            const CuResult code = _driver.host_allocate(&result, bytes, kHostPortable | kHostDeviceMap);
            if (code == kSuccess) {
                pointer = result;
            }
            return outcome(code, "cuMemHostAlloc");
        });
    }

    Status free_pinned(void* pointer) noexcept override {
        if (pointer == nullptr) {
            return {};
        }
        return in_context(Current(*this, pointer, -1),
                          [&]() -> Status { return outcome(_driver.host_free(pointer), "cuMemFreeHost"); });
    }

    Status register_host(void* pointer, std::size_t bytes) noexcept override {
        return in_context(Current(*this, device_to_use()), [&]() -> Status {
            return outcome(_driver.host_register(pointer, bytes, kHostPortable | kHostDeviceMap), "cuMemHostRegister");
        });
    }

    Status unregister_host(void* pointer) noexcept override {
        return in_context(Current(*this, pointer, -1),
                          [&]() -> Status { return outcome(_driver.host_unregister(pointer), "cuMemHostUnregister"); });
    }

    // ---- streams and events -----------------------------------------------------------------------------------------

    Status create_stream(int device, bool ordered_after_default, StreamHandle& stream) noexcept override {
        return in_context(Current(*this, device), [&]() -> Status {
            int least = 0;
            int greatest = 0;
            if (const CuResult code = _driver.stream_priorities(&least, &greatest); code != kSuccess) {
                return outcome(code, "cuCtxGetStreamPriorityRange");
            }
            CuStream result = nullptr;
            const CuResult code =
                _driver.stream_create(&result, ordered_after_default ? kStreamDefault : kStreamNonBlocking, greatest);
            if (code == kSuccess) {
                stream = {result, device};
            }
            return outcome(code, "cuStreamCreateWithPriority");
        });
    }

    Status destroy_stream(StreamHandle stream) noexcept override {
        if (stream.value == nullptr) {
            return {};
        }
        return in_context(Current(*this, stream.device),
                          [&]() -> Status { return outcome(_driver.stream_destroy(stream.value), "cuStreamDestroy"); });
    }

    Status query_stream(StreamHandle stream, bool& done) noexcept override {
        return in_context(Current(*this, stream.device), [&]() -> Status {
            return answer(_driver.stream_query(stream.value), "cuStreamQuery", done);
        });
    }

    Status synchronize_stream(StreamHandle stream) noexcept override {
        return in_context(Current(*this, stream.device), [&]() -> Status {
            return outcome(_driver.stream_synchronize(stream.value), "cuStreamSynchronize");
        });
    }

    Status capture_of(StreamHandle stream, std::uint64_t& capture) noexcept override {
        capture = 0;
        return in_context(Current(*this, stream.device), [&]() -> Status {
            int state = kNotCapturing;
            const CuResult code = _driver.stream_is_capturing(stream.value, &state);
            unsigned long long identity = 1;
            if (code == kSuccess && state != kNotCapturing && _driver.capture_info != nullptr) {
                static_cast<void>(_driver.capture_info(stream.value, &state, &identity, nullptr, nullptr, nullptr));
            }
            capture = code == kSuccess && state != kNotCapturing ? identity : 0;
            return outcome(code, "cuStreamIsCapturing");
        });
    }

    Status capture_point(StreamHandle stream, std::uint64_t& point) noexcept override {
        if (_driver.capture_info == nullptr) {
            return lacking("cuStreamGetCaptureInfo");
        }
        return in_context(Current(*this, stream.device), [&]() -> Status {
            int state = kNotCapturing;
            void* graph = nullptr;
            const void** nodes = nullptr;
            std::size_t count = 0;
            const CuResult code = _driver.capture_info(stream.value, &state, nullptr, &graph, &nodes, &count);
            point = code == kSuccess ? point_of(nodes, count) : 0;
            return outcome(code, "cuStreamGetCaptureInfo");
        });
    }

    Status when_graph_is_gone(StreamHandle stream, void (*gone)(void*), void* argument) noexcept override {
        if (_driver.capture_info == nullptr || _driver.user_object_create == nullptr ||
            _driver.user_object_release == nullptr || _driver.graph_retain == nullptr) {
            return lacking("cuGraphRetainUserObject");
        }
        return in_context(Current(*this, stream.device), [&]() -> Status {
            constexpr unsigned kNoSynchronisation = 1, kMoveReference = 1;
            int state = kNotCapturing;
            void *graph = nullptr, *object = nullptr;
            if (const CuResult code = _driver.capture_info(stream.value, &state, nullptr, &graph, nullptr, nullptr)) {
                return outcome(code, "cuStreamGetCaptureInfo");
            }
            if (graph == nullptr) {
                return {kUnsupported, "cuStreamGetCaptureInfo", "the stream is not captured"};
            }
            if (const CuResult code = _driver.user_object_create(&object, argument, gone, 1, kNoSynchronisation)) {
                return outcome(code, "cuUserObjectCreate");
            }
            if (_driver.graph_retain(graph, object, 1, kMoveReference) != kSuccess) {
                static_cast<void>(_driver.user_object_release(object, 1));  // which calls `gone`
            }
            return {};
        });
    }

    Status begin_capture(StreamHandle stream) noexcept override {
        if (_driver.begin_capture == nullptr || _driver.end_capture == nullptr ||
            _driver.graph_instantiate == nullptr || _driver.graph_launch == nullptr ||
            _driver.graph_destroy == nullptr || _driver.graph_exec_destroy == nullptr) {
            return lacking("cuGraphInstantiateWithFlags");
        }
        return in_context(Current(*this, stream.device), [&]() -> Status {
            constexpr int kGlobal = 0;
            return outcome(_driver.begin_capture(stream.value, kGlobal), "cuStreamBeginCapture");
        });
    }

    Status end_capture(StreamHandle stream, GraphHandle& graph) noexcept override {
        return in_context(Current(*this, stream.device), [&]() -> Status {
            void* made = nullptr;
            if (const CuResult code = _driver.end_capture(stream.value, &made)) {
                return outcome(code, "cuStreamEndCapture");
            }
            graph = {nullptr, stream.device};
            const CuResult code = _driver.graph_instantiate(&graph.value, made, 0);
            static_cast<void>(_driver.graph_destroy(made));
            return outcome(code, "cuGraphInstantiate");
        });
    }

    Status launch_graph(GraphHandle graph, StreamHandle stream) noexcept override {
        return in_context(Current(*this, stream.device), [&]() -> Status {
            return outcome(_driver.graph_launch(graph.value, stream.value), "cuGraphLaunch");
        });
    }

    Status destroy_graph(GraphHandle graph) noexcept override {
        return in_context(Current(*this, graph.device), [&]() -> Status {
            return outcome(_driver.graph_exec_destroy(graph.value), "cuGraphExecDestroy");
        });
    }

    Status create_event(int device, EventHandle& event) noexcept override {
        return in_context(Current(*this, device), [&]() -> Status {
            CuEvent result = nullptr;
            const CuResult code = _driver.event_create(&result, kEventDisableTiming);
            if (code == kSuccess) {
                event = {result, device};
            }
            return outcome(code, "cuEventCreate");
        });
    }

    Status destroy_event(EventHandle event) noexcept override {
        if (event.value == nullptr) {
            return {};
        }
        return in_context(Current(*this, event.device),
                          [&]() -> Status { return outcome(_driver.event_destroy(event.value), "cuEventDestroy"); });
    }

    Status record_event(EventHandle event, StreamHandle stream) noexcept override {
        AWAKEN_STEP("cuda: record event");
        return in_context(Current(*this, stream.device), [&]() -> Status {
            return outcome(_driver.event_record(event.value, stream.value), "cuEventRecord");
        });
    }

    Status query_event(EventHandle event, bool& done) noexcept override {
        AWAKEN_STEP("cuda: query event");
        return in_context(Current(*this, event.device),
                          [&]() -> Status { return answer(_driver.event_query(event.value), "cuEventQuery", done); });
    }

    Status stream_wait_event(StreamHandle stream, EventHandle event) noexcept override {
        return in_context(Current(*this, stream.device), [&]() -> Status {
            return outcome(_driver.stream_wait_event(stream.value, event.value, 0), "cuStreamWaitEvent");
        });
    }

    // ---- copies -----------------------------------------------------------------------------------------------------

    Status copy(void* destination, const void* source, std::size_t bytes, StreamHandle stream) noexcept override {
        AWAKEN_STEP("cuda: copy");
        if (bytes == 0) {
            return {};
        }
        return in_context(Current(*this, stream.device), [&]() -> Status {
            return outcome(_driver.copy_async(device_address(destination), device_address(source), bytes, stream.value),
                           "cuMemcpyAsync");
        });
    }

    Status copy_batch(std::span<const Copy1D> copies, StreamHandle stream) noexcept override {
        AWAKEN_STEP("cuda: copy batch");
        const bool possible = _driver.copy_batch_v2 != nullptr || _driver.copy_batch != nullptr;
        if (!possible || copies.size() < 2 || _batches_refused.load(std::memory_order_relaxed)) {
            return Runtime::copy_batch(copies, stream);
        }
        return in_context(Current(*this, stream.device), [&]() -> Status {
            constexpr std::size_t kMost = 64;
            std::array<CuAddress, kMost> destinations, sources;
            std::array<std::size_t, kMost> sizes;
            for (std::size_t at = 0; at < copies.size();) {
                const std::span<const Copy1D> part = copies.subspan(at, std::min(kMost, copies.size() - at));
                for (std::size_t i = 0; i < part.size(); ++i) {
                    destinations[i] = device_address(part[i].destination);
                    sources[i] = device_address(part[i].source);
                    sizes[i] = part[i].bytes;
                }
                CuCopyAttributes attributes{kSourceInStreamOrder, {}, {}, 0};
                std::size_t first = 0, failed = 0;
                const CuResult code =
                    _driver.copy_batch_v2 != nullptr
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

    Status copy_2d(const Copy2D& copy, StreamHandle stream) noexcept override {
        if (copy.width == 0 || copy.rows == 0) {
            return {};
        }
        return in_context(Current(*this, stream.device), [&]() -> Status {
            const bool dense = copy.source_pitch == copy.width && copy.destination_pitch == copy.width;
            if (dense || copy.rows == 1) {
                return outcome(_driver.copy_async(device_address(copy.destination), device_address(copy.source),
                                                  copy.width * copy.rows, stream.value),
                               "cuMemcpyAsync");
            }
            const std::size_t pitch_limit = max_pitch(stream.device);
            if (copy.source_pitch > pitch_limit || copy.destination_pitch > pitch_limit) {
                return copy_rows(copy, stream);
            }
            CuCopy2D request = {};
            request.source_type = kMemoryTypeUnified;
            request.source_device = device_address(copy.source);
            request.source_pitch = copy.source_pitch;
            request.destination_type = kMemoryTypeUnified;
            request.destination_device = device_address(copy.destination);
            request.destination_pitch = copy.destination_pitch;
            request.width = copy.width;
            request.height = copy.rows;
            return outcome(_driver.copy_2d_async(&request, stream.value), "cuMemcpy2DAsync");
        });
    }

    Status fill(void* destination, unsigned char value, std::size_t bytes, StreamHandle stream) noexcept override {
        if (bytes == 0) {
            return {};
        }
        return in_context(Current(*this, stream.device), [&]() -> Status {
            return outcome(_driver.fill_async(device_address(destination), value, bytes, stream.value),
                           "cuMemsetD8Async");
        });
    }

    // ---- sharing between processes ----------------------------------------------------------------------------------

    Status ipc_export(const void* pointer, IpcMemoryHandle& handle, std::size_t& offset) noexcept override {
        return in_context(Current(*this, pointer, -1), [&]() -> Status {
            CuAddress base = 0;
            std::size_t size = 0;
            if (const CuResult code = _driver.memory_range(&base, &size, device_address(pointer))) {
                return outcome(code, "cuMemGetAddressRange");
            }
            CuIpcMemHandle result = {};
            if (const CuResult code = _driver.ipc_get(&result, base)) {
                return outcome(code, "cuIpcGetMemHandle");
            }
            std::memcpy(handle.bytes, result.bytes, sizeof handle.bytes);
            offset = static_cast<std::size_t>(device_address(pointer) - base);
            return {};
        });
    }

    Status ipc_open(const IpcMemoryHandle& handle, int device, void*& base) noexcept override {
        if (SharedDescriptors::made(handle)) {
            return open_run(handle, device, base);
        }
        return in_context(Current(*this, device), [&]() -> Status {
            CuIpcMemHandle request = {};
            std::memcpy(request.bytes, handle.bytes, sizeof request.bytes);
            CuAddress address = 0;
            const CuResult code = _driver.ipc_open(&address, request, kIpcLazyEnablePeerAccess);
            if (code == kSuccess) {
                base = host_pointer(address);
            }
            return outcome(code, "cuIpcOpenMemHandle");
        });
    }

    Status ipc_close(void* base) noexcept override {
        if (base == nullptr || close_run(base)) {
            return {};
        }
        return in_context(Current(*this, base, -1), [&]() -> Status {
            return outcome(_driver.ipc_close(device_address(base)), "cuIpcCloseMemHandle");
        });
    }

    Status find_run(int device, const void* pointer, std::size_t bytes, MappedRun& run) noexcept override {
        const CuAddress begin = device_address(pointer);
        return in_context(Current(*this, device), [&]() -> Status {
            MappedRun found;
            Fnv1a ids;
            for (CuAddress at = begin; at < begin + bytes || at == begin;) {
                CuAddress base = 0;
                std::size_t size = 0;
                unsigned long long id = 0;
                CuResult code = _driver.memory_range(&base, &size, at);
                if (code == kSuccess) {
                    code = query(host_pointer(at), {kBufferIdAttribute}, {&id});
                }
                if (code != kSuccess) {
                    return outcome(code, "cuMemGetAddressRange");
                }
                ids.add_word(id);
                if (found.mappings++ == 0) {
                    found.base = static_cast<std::uintptr_t>(base);
                }
                found.size += size;
                found.id = found.mappings == 1 ? id : ids.value();
                at = base + size;
            }
            run = found;
            return {};
        });
    }

    Status export_run(int device, const MappedRun& run, IpcMemoryHandle& handle) noexcept override {
        if (_driver.physical_export == nullptr || _driver.physical_retain == nullptr ||
            _driver.physical_release == nullptr) {
            return {kUnsupported, "cuMemExportToShareableHandle", "the driver has no such function"};
        }
        return in_context(Current(*this, device), [&]() -> Status {
            if (run.mappings > SharedDescriptors::most()) {
                return {kUnsupported, "export_run", "it needs more descriptors than a process may hand out"};
            }
            constexpr Status kNoneLeft{kBusy, "export_run", "all descriptors that a process may hand out are in use"};
            if (!_shared.make_room(run.mappings)) {
                return kNoneLeft;
            }
            std::vector<SharedPart> parts;
            for (std::uintptr_t at = run.base; at < run.base + run.size;) {
                SharedPart part;
                if (const Status status = export_mapping(at, part); !status.ok()) {
                    return status;
                }
                at += part.bytes;
                try {
                    parts.push_back(std::move(part));
                } catch (const std::bad_alloc&) {
                    return {kUnsupported, "export_run", "out of host memory"};
                }
            }
            return _shared.publish(std::move(parts), handle) ? Status{} : kNoneLeft;
        });
    }

    bool hold_export(const IpcMemoryHandle& handle) noexcept override { return _shared.hold(handle); }
    void release_export(const IpcMemoryHandle& handle, std::size_t idle_bytes) noexcept override {
        _shared.release(handle, idle_bytes);
    }
    void end_export(const IpcMemoryHandle& handle) noexcept override { _shared.end(handle); }
    void close_idle_exports() noexcept override { _shared.close_idle(); }

    // ---- kernels ----------------------------------------------------------------------------------------------------

    Status load_kernels(int device, const char* name, const char* source, ModuleHandle& module,
                        std::string& log) override {
        try {
            return compile_and_load(device, name, source, module, log);
        } catch (const std::bad_alloc&) {
            return {kUnsupported, "load_kernels", "out of host memory"};
        }
    }

    Status unload_kernels(ModuleHandle module) noexcept override {
        if (module.value == nullptr) {
            return {};
        }
        return in_context(Current(*this, module.device),
                          [&]() -> Status { return outcome(_driver.module_unload(module.value), "cuModuleUnload"); });
    }

    Status find_kernel(ModuleHandle module, const char* name, KernelHandle& kernel) noexcept override {
        return in_context(Current(*this, module.device), [&]() -> Status {
            CuFunction function = nullptr;
            const CuResult code = _driver.module_function(&function, module.value, name);
            if (code == kSuccess) {
                kernel = {function, module.device};
            }
            return outcome(code, "cuModuleGetFunction");
        });
    }

    Status launch(KernelHandle kernel, Dim3 grid, Dim3 block, unsigned shared_bytes, StreamHandle stream,
                  void** arguments) noexcept override {
        AWAKEN_STEP("cuda: launch");
        return in_context(Current(*this, kernel.device), [&]() -> Status {
            return outcome(_driver.launch_kernel(kernel.value, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                 shared_bytes, stream.value, arguments, nullptr),
                           "cuLaunchKernel");
        });
    }

  private:
    /// Makes the context that a call needs current for the calling thread, and gives the caller's context back.
    class Current {
      public:
        /// The primary context of a device.
        Current(Cuda& cuda, int device) noexcept : _driver(cuda._driver) {
            CuContext context = nullptr;
            _status = cuda.primary_context(device, context);
            if (_status.ok()) {
                make_current(cuda, context);
            }
        }
        /// The context that owns the allocation at `pointer`. Pool and virtual memory belong to none. For those this is
        /// the primary context of `device`, or of the allocation's device if `device` is -1.
        Current(Cuda& cuda, const void* pointer, int device) noexcept : _driver(cuda._driver) {
            CuContext context = nullptr;
            int ordinal = -1;
            const CuPointerAttribute attributes[] = {kContextAttribute, kDeviceOrdinalAttribute};
            void* values[] = {&context, &ordinal};
            const CuResult code = _driver.pointer_attributes(static_cast<unsigned>(std::size(attributes)), attributes,
                                                             values, device_address(pointer));
            if (code != kSuccess) {
                _status = cuda.outcome(code, "cuPointerGetAttributes");
                return;
            }
            if (context == nullptr) {
                const int owner = device >= 0 ? device : ordinal >= 0 ? ordinal : cuda.device_in_use();
                _status = cuda.primary_context(owner, context);
                if (!_status.ok()) {
                    return;
                }
            }
            make_current(cuda, context);
        }
        Current(const Current&) = delete;
        Current& operator=(const Current&) = delete;
        ~Current() {
            CuContext ours = nullptr;
            if (_pushed) {
                static_cast<void>(_driver.context_pop(&ours));
            }
        }
        [[nodiscard]] const Status& status() const noexcept { return _status; }

      private:
        void make_current(Cuda& cuda, CuContext context) noexcept {
            if (cuda._was_reset.load(std::memory_order_relaxed)) {
                _status = {kShutDown, "cuCtxPushCurrent", "the program has reset the device (cudaDeviceReset)"};
                return;
            }
            static_cast<void>(_capture.begin(_driver.exchange_capture_mode));
            CuContext current = nullptr;
            if (_driver.context_current(&current) == kSuccess && current == context) {
                return;
            }
            _status = cuda.outcome(_driver.context_push(context), "cuCtxPushCurrent");
            _pushed = _status.ok();
        }

        const Driver& _driver;
        Status _status;
        RelaxedCapture<decltype(Driver::exchange_capture_mode)> _capture;
        bool _pushed = false;
    };

    /// What `work` says while a context is current; what kept it from being so, where it could not be made that.
    template <class Work>
    [[nodiscard]] static Status in_context(const Current& current, const Work& work) noexcept {
        return current.status().ok() ? work() : current.status();
    }

    Status outcome(CuResult code, const char* call) const noexcept {
        if (code == kSuccess) {
            return {};
        }
        const char* text = nullptr;
        if (code == kErrorNotPermitted) {
            text =
                "operation not permitted: in a host function of a stream (cudaLaunchHostFunc) MPI takes host memory "
                "only";
        } else if (_driver.error_string(code, &text) != kSuccess || text == nullptr) {
            text = "unknown CUDA error";
        }
        const bool shut_down = code == kErrorDeinitialized || code == kErrorContextIsDestroyed;
        return {shut_down ? kShutDown : code, call, text};
    }

    static Status lacking(const char* call) noexcept {
        return {kUnsupported, call, "this driver has no such function; update the NVIDIA driver"};
    }

    /// For queries: "not ready" is an answer.
    Status answer(CuResult code, const char* call, bool& done) const noexcept {
        // A capture by the program keeps the driver from looking. That says nothing about our work.
        const bool unknown = code == kErrorCaptureUnsupported || code == kErrorCaptureImplicit;
        if (code != kSuccess && code != kErrorNotReady && !unknown) {
            return outcome(code, call);
        }
        done = code == kSuccess;
        return {};
    }

    static std::string dotted(int version) {
        return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    }

    Status device_handle(int device, CuDevice& handle) const noexcept {
        return outcome(_driver.device_get(&handle, device), "cuDeviceGet");
    }

    Status attribute(CuDevice device, int which, int& value) const noexcept {
        return outcome(_driver.device_attribute(&value, which, device), "cuDeviceGetAttribute");
    }

    Status architecture(CuDevice device, std::string& text) const {
        int major = 0;
        int minor = 0;
        if (const Status status = attribute(device, kDeviceComputeCapabilityMajor, major); !status.ok()) {
            return status;
        }
        if (const Status status = attribute(device, kDeviceComputeCapabilityMinor, minor); !status.ok()) {
            return status;
        }
        text = "sm_" + std::to_string(major) + std::to_string(minor);
        return {};
    }

    /// The primary context of a device. The first use retains it, and it stays.
    Status primary_context(int device, CuContext& context) noexcept {
        if (device < 0 || device >= _devices) {
            return {kErrorInvalidDevice, "primary context", "no such device"};
        }
        std::atomic<CuContext>& slot = _primary[static_cast<std::size_t>(device)];
        context = slot.load(std::memory_order_acquire);
        if (context != nullptr) {
            return {};
        }
        // Two threads may both come here. Retaining twice yields the same context, and costs one count that is never
        // given back. The first count is not given back either.
        CuDevice handle = 0;
        if (const Status status = device_handle(device, handle); !status.ok()) {
            return status;
        }
        if (const CuResult code = _driver.primary_retain(&context, handle)) {
            return outcome(code, "cuDevicePrimaryCtxRetain");
        }
        if (unsigned long long id = 0; _driver.context_id != nullptr && _driver.context_id(context, &id) == kSuccess) {
            _primary_ids[static_cast<std::size_t>(device)].store(id, std::memory_order_relaxed);
        }
        slot.store(context, std::memory_order_release);
        return {};
    }

    /// A primary context that was reset keeps its handle, but gets another identity when somebody uses it again.
    /// Handles of resources that were made in it before end the process when somebody uses them then.
    void look_for_reset() noexcept {
        if (_driver.context_id == nullptr) {
            return;
        }
        for (std::size_t device = 0; device < static_cast<std::size_t>(_devices); ++device) {
            const CuContext context = _primary[device].load(std::memory_order_acquire);
            const unsigned long long known = _primary_ids[device].load(std::memory_order_relaxed);
            if (context == nullptr || known == 0) {
                continue;
            }
            unsigned long long id = 0;
            const CuResult code = _driver.context_id(context, &id);
            if (code != kErrorNotPermitted && (code != kSuccess || id != known)) {
                _was_reset.store(true, std::memory_order_release);
            }
        }
    }

    /// A device whose primary context exists already, so that we make none where the program does not work (a context
    /// takes hundreds of MiB of its device). The first device if no context exists.
    int device_in_use() const noexcept {
        for (int device = 0; device < _devices; ++device) {
            CuDevice handle = 0;
            unsigned flags = 0;
            int active = 0;
            if (_driver.device_get(&handle, device) == kSuccess &&
                _driver.primary_state(handle, &flags, &active) == kSuccess && active != 0) {
                return device;
            }
        }
        return 0;
    }

    std::size_t max_pitch(int device) const noexcept {
        CuDevice handle = 0;
        int limit = 0;
        if (!device_handle(device, handle).ok() || !attribute(handle, kDeviceMaxPitch, limit).ok()) {
            return 0;
        }
        return static_cast<std::size_t>(limit);
    }

    /// A 2-D copy whose pitch is too large for the hardware's copy.
    Status copy_rows(const Copy2D& copy, StreamHandle stream) const noexcept {
        CuAddress source = device_address(copy.source);
        CuAddress destination = device_address(copy.destination);
        for (std::size_t row = 0; row < copy.rows; ++row) {
            if (const CuResult code = _driver.copy_async(destination, source, copy.width, stream.value)) {
                return outcome(code, "cuMemcpyAsync");
            }
            source += copy.source_pitch;
            destination += copy.destination_pitch;
        }
        return {};
    }

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
        CuAddress base = 0;
        std::size_t size = 0;
        // Looking for the range of an address that belongs to no allocation makes the query of a host pointer more
        // expensive by a third to a half. Asking about a device pointer twice costs as much again (165 + 182 ns instead
        // of 186, H100, driver 580). A pointer mostly has the same kind as the one before.
        const bool at_once = _expects_memory_of_ours.load(std::memory_order_relaxed);
        const CuResult answer =
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
        info.base = static_cast<std::uintptr_t>(base);
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

    /// What open_run() has mapped.
    struct OpenRun {
        std::size_t bytes = 0;
        std::vector<std::size_t> parts;  ///< bytes of each
    };

    /// The descriptor of one mapping, which begins at `address`.
    Status export_mapping(const std::uintptr_t address, SharedPart& part) const noexcept {
        CuAddress base = 0;
        std::size_t size = 0;
        if (const CuResult code = _driver.memory_range(&base, &size, address)) {
            return outcome(code, "cuMemGetAddressRange");
        }
        CuMemHandle physical = 0;
        if (const CuResult code = _driver.physical_retain(&physical, host_pointer(base))) {
            return outcome(code, "cuMemRetainAllocationHandle");
        }
        int file = -1;
        const CuResult code = _driver.physical_export(&file, physical, kPosixFileDescriptor, 0);
        static_cast<void>(_driver.physical_release(physical));
        if (code == kSuccess) {
            static_cast<void>(::fcntl(file, F_SETFD, FD_CLOEXEC));
            part = {Descriptor(file), size};
        }
        return outcome(code, "cuMemExportToShareableHandle");
    }

    /// Maps what another process has exported by export_run(): all parts at one range of addresses.
    Status open_run(const IpcMemoryHandle& handle, int device, void*& base) noexcept {
        if (_driver.address_reserve == nullptr || _driver.address_free == nullptr ||
            _driver.physical_import == nullptr || _driver.physical_release == nullptr ||
            _driver.memory_map == nullptr || _driver.memory_unmap == nullptr || _driver.set_access == nullptr) {
            return {kUnsupported, "cuMemMap", "the driver has no such function"};
        }
        std::vector<SharedPart> parts;
        if (const Status status = SharedDescriptors::take(handle, parts); !status.ok()) {
            return status;
        }
        std::size_t bytes = 0;
        for (const SharedPart& part : parts) {
            bytes += part.bytes;
        }
        return in_context(Current(*this, device), [&]() -> Status {
            CuAddress address = 0;
            if (const CuResult code = _driver.address_reserve(&address, bytes, 0, 0, 0)) {
                return outcome(code, "cuMemAddressReserve");
            }
            OpenRun run{bytes, {}};
            Status status = map_parts(address, parts, run);
            const CuMemAccess access{kLocationIsDevice, device, kReadAndWrite};
            if (status.ok()) {
                status = outcome(_driver.set_access(address, bytes, &access, 1), "cuMemSetAccess");
            }
            if (status.ok()) {
                try {
                    const std::scoped_lock lock(_runs_mutex);
                    _runs.emplace(address, run);
                    base = host_pointer(address);
                    return {};
                } catch (const std::bad_alloc&) {
                    status = {kUnsupported, "cuMemMap", "out of host memory"};
                }
            }
            unmap(address, run);
            return status;
        });
    }

    Status map_parts(const CuAddress address, const std::vector<SharedPart>& parts, OpenRun& run) const noexcept {
        CuAddress at = address;
        for (const SharedPart& part : parts) {
            CuMemHandle physical = 0;
            // The descriptor is passed as if it were the pointer.
            const auto file = reinterpret_cast<void*>(static_cast<std::uintptr_t>(part.file.get()));
            if (const CuResult code = _driver.physical_import(&physical, file, kPosixFileDescriptor)) {
                return outcome(code, "cuMemImportFromShareableHandle");
            }
            const CuResult code = _driver.memory_map(at, part.bytes, 0, physical, 0);
            static_cast<void>(_driver.physical_release(physical));  // the mapping keeps the memory
            if (code != kSuccess) {
                return outcome(code, "cuMemMap");
            }
            at += part.bytes;
            try {
                run.parts.push_back(part.bytes);
            } catch (const std::bad_alloc&) {
                static_cast<void>(_driver.memory_unmap(at - part.bytes, part.bytes));
                return {kUnsupported, "cuMemMap", "out of host memory"};
            }
        }
        return {};
    }

    void unmap(const CuAddress address, const OpenRun& run) const noexcept {
        CuAddress at = address;
        for (const std::size_t bytes : run.parts) {
            static_cast<void>(_driver.memory_unmap(at, bytes));
            at += bytes;
        }
        static_cast<void>(_driver.address_free(address, run.bytes));
    }

    /// False when `base` is not of open_run().
    bool close_run(const void* const base) noexcept {
        OpenRun run;
        {
            const std::scoped_lock lock(_runs_mutex);
            const auto found = _runs.find(device_address(base));
            if (found == _runs.end()) {
                return false;
            }
            run = std::move(found->second);
            _runs.erase(found);
        }
        static_cast<void>(in_context(Current(*this, device_to_use()), [&]() -> Status {
            unmap(device_address(base), run);
            return {};
        }));
        return true;
    }

    template <std::size_t Count>
    CuResult query(const void* pointer, const CuPointerAttribute (&attributes)[Count],
                   void* const (&values)[Count]) const noexcept {
        return _driver.pointer_attributes(Count, attributes, const_cast<void**>(values), device_address(pointer));
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

    void wait_for_context(CuContext context) noexcept {
        if (_driver.context_push(context) != kSuccess) {
            return;
        }
        static_cast<void>(_driver.context_synchronize());
        CuContext ours = nullptr;
        static_cast<void>(_driver.context_pop(&ours));
    }

    Status load_module(int device, const std::string& code, ModuleHandle& module) noexcept {
        if (!is_soon_idle(device)) {
            return {kBusy, "cuModuleLoadData", "the GPU is busy"};
        }
        return in_context(Current(*this, device), [&]() -> Status {
            CuModule handle = nullptr;
            const CuResult result = _driver.module_load(&handle, code.data());
            if (result == kSuccess) {
                module = {handle, device};
            }
            return outcome(result, "cuModuleLoadData");
        });
    }

    const RuntimeCompiler* compiler(std::string& why_not) {
        const std::scoped_lock lock(_compiler_mutex);
        if (_compiler == nullptr) {
            _compiler = make_compiler(why_not);
        }
        return _compiler.get();
    }

    Status compile_and_load(int device, const char* name, const char* source, ModuleHandle& module, std::string& log) {
        CuDevice handle = 0;
        if (const Status status = device_handle(device, handle); !status.ok()) {
            return status;
        }
        std::string machine;
        if (const Status status = architecture(handle, machine); !status.ok()) {
            return status;
        }
        // The GPU rounds as the CPU does. Otherwise it may fuse a product into the sum behind it, which differs in the
        // last digit.
        static constexpr std::string_view kOptions[] = {"--std=c++17", "--fmad=false"};
        for (const std::string& code : precompiled_kernels().code_for(source, kOptions, machine)) {
            if (const Status status = load_module(device, code, module); status.ok() || status.code == kBusy) {
                return status;
            }
        }
        std::string why_not;
        const RuntimeCompiler* const compiler_in_use = compiler(why_not);
        if (compiler_in_use == nullptr) {
            log += why_not;
            return {kUnsupported, "nvrtcCreateProgram", "there is no run-time compiler (libnvrtc)"};
        }

        // Machine code for this very GPU comes first. Portable code, which the driver translates, serves when the
        // compiler is older than the GPU or newer than the driver.
        const struct {
            RuntimeCompiler::Output output;
            std::string architecture;
        } attempts[] = {{RuntimeCompiler::Output::machine_code, machine},
                        {RuntimeCompiler::Output::portable_code, "compute_" + machine.substr(std::strlen("sm_"))}};
        Status status;
        for (const auto& attempt : attempts) {
            const std::string options[] = {"--gpu-architecture=" + attempt.architecture, std::string(kOptions[0]),
                                           std::string(kOptions[1])};
            const std::string_view parts[] = {source, options[0], options[1], options[2], compiler_in_use->identity()};
            const std::string key = KernelCache::key(parts);
            std::string code;
            if (_cache.load(key, code)) {
                status = load_module(device, code, module);
                if (status.ok() || status.code == kBusy) {
                    return status;
                }
            }
            const RuntimeCompiler::Result compiled =
                compiler_in_use->compile(name, source, options, attempt.output, code, log);
            if (!compiled.ok()) {
                status = {compiled.code, "nvrtcCompileProgram", compiled.description};
                continue;
            }
            status = load_module(device, code, module);
            if (status.ok() || status.code == kBusy) {
                _cache.store(key, code);
                return status;
            }
        }
        return status;
    }

    const Driver _driver;
    const DynamicLibrary _library;
    int _devices = 0;
    int _version = 0;
    std::unique_ptr<std::atomic<CuContext>[]> _primary;
    std::unique_ptr<std::atomic<unsigned long long>[]> _primary_ids;  ///< 0: not known
    std::atomic<bool> _was_reset{false};
    std::atomic<bool> _batches_refused{false};
    mutable std::atomic<bool> _expects_memory_of_ours{false};  ///< the pointer classified last was not ordinary memory
    IdentityTable _ordered;  ///< allocations whose synchronous operations are synchronous

    SharedDescriptors _shared;  ///< of memory of this process
    std::mutex _runs_mutex;
    std::map<CuAddress, OpenRun> _runs;  ///< memory of other processes

    std::mutex _idle_mutex;
    std::map<int, CuEvent> _idle_events;  ///< one for each device, kept

    std::mutex _compiler_mutex;
    std::unique_ptr<RuntimeCompiler> _compiler;
    const KernelCache _cache;
};

std::unique_ptr<VendorRuntime> make(DynamicLibrary library, std::string& why_not) {
    Driver driver;
    if (!bind_driver(library, driver, why_not)) {
        return nullptr;
    }
    return std::make_unique<Cuda>(std::move(library), driver);
}

constexpr const char* kNames[] = {"libcuda.so.1", "libcuda.so"};

}  // namespace

const VendorLibrary& cuda_library() noexcept {
    static const VendorLibrary library = {Vendor::cuda, "CUDA driver", "libcuda", kNames, &make, &make_compiler};
    return library;
}

}  // namespace awaken::gpu
