// SPDX-License-Identifier: Apache-2.0
// Forwards the HIP calls of hip/hip_runtime_api.h to the GPU runtime that the machine has, found when the program runs.
//
// The runtime is opened once, at the first call: the first library, AMD's before NVIDIA's and newest first, that can be
// opened and reports at least one device. Each function is looked up when it is first called, so a runtime that lacks
// one serves all programs that do not use it.
//
// Most of the two vendors' calls have the same arguments, and most enumerators in our header the same numbers in both,
// so forwarding is a matter of names. What differs is at the end: device attributes have other numbers, and modules and
// kernels are the business of NVIDIA's driver, whose results have the numbers of the runtime's. The run-time compiler
// is a library of its own, of the same release as the runtime.

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu_runtime.h"
#include "hip/hip_runtime_api.h"
#include "hip/hiprtc.h"

namespace {

/// A release of the runtime, and the run-time compiler that belongs to it.
struct Release {
    const char* runtime;
    const char* compiler;
};

struct Vendor {
    const char* prefix;  ///< of the function names
    std::vector<Release> releases;
    std::vector<const char*> home_variables;  ///< environment variables that name an installation
    std::vector<const char*> homes;           ///< usual installations, searched after the loader's own path
    std::vector<const char*> library_folders;
};

const std::array<Vendor, 2>& vendors() {
    static const std::array<Vendor, 2> all = {
        Vendor{"hip",
               {{"libamdhip64.so.7", "libhiprtc.so.7"},
                {"libamdhip64.so.6", "libhiprtc.so.6"},
                {"libamdhip64.so.5", "libhiprtc.so.5"}},
               {"ROCM_PATH"},
               {"/opt/rocm"},
               {"lib"}},
        Vendor{"cuda",
               {{"libcudart.so.13", "libnvrtc.so.13"},
                {"libcudart.so.12", "libnvrtc.so.12"},
                {"libcudart.so.11.0", "libnvrtc.so.11.2"}},
               {"CUDA_HOME", "CUDA_PATH"},
               {"/usr/local/cuda"},
               {"lib64", "lib"}},
    };
    return all;
}

/// The names under which one library is tried: by soname, as the loader finds it, then in the usual places.
std::vector<std::string> candidates(const Vendor& vendor, const std::string& soname) {
    std::vector<std::string> names = {soname};
    std::vector<std::string> homes;
    for (const char* variable : vendor.home_variables) {
        const char* const value = std::getenv(variable);
        if (value != nullptr && value[0] == '/') {
            homes.emplace_back(value);
        }
    }
    homes.insert(homes.end(), vendor.homes.begin(), vendor.homes.end());
    for (const std::string& home : homes) {
        for (const char* folder : vendor.library_folders) {
            names.push_back(home + "/" + folder + "/" + soname);
        }
    }
    return names;
}

class Runtime {
  public:
    static const Runtime& instance() {
        static const Runtime runtime;
        return runtime;
    }

    [[nodiscard]] bool found() const { return _library != nullptr; }
    [[nodiscard]] bool is_hip() const { return _is_hip; }
    /// Of the library that was found, as the loader knows it.
    [[nodiscard]] const std::string& path() const { return _path; }
    /// One line that names each library and why it does not serve; empty where one was found.
    [[nodiscard]] const std::string& problem() const { return _problem; }

    /// Null where no runtime was found or it has no such function.
    [[nodiscard]] void* symbol(const char* hip_name, const char* cuda_name) const {
        return found() ? dlsym(_library, _is_hip ? hip_name : cuda_name) : nullptr;
    }

    /// The names under which the run-time compiler of the same release is tried, best first.
    [[nodiscard]] std::vector<std::string> compiler_candidates() const {
        std::vector<std::string> names;
        if (_path.empty()) {
            return names;
        }
        const std::string folder = _path.substr(0, _path.rfind('/') + 1);
        names.push_back(folder + _release->compiler);
        // NVIDIA's Python packages: nvidia/cuda_runtime/lib/libcudart.so.12, nvidia/cuda_nvrtc/lib/libnvrtc.so.12.
        if (!_is_hip) {
            names.push_back(folder + "../../cuda_nvrtc/lib/" + _release->compiler);
        }
        const std::vector<std::string> others = candidates(*_vendor, _release->compiler);
        names.insert(names.end(), others.begin(), others.end());
        // Early ROCm 5 had the compiler inside the runtime.
        if (_is_hip) {
            names.push_back(_path);
        }
        return names;
    }

  private:
    Runtime() {
        std::string tried;
        for (const Vendor& vendor : vendors()) {
            for (const Release& release : vendor.releases) {
                const std::string reason = open(vendor, release);
                if (reason.empty()) {
                    return;
                }
                tried += (tried.empty() ? "" : ", ") + std::string(release.runtime) + " (" + reason + ")";
            }
        }
        _problem = "no GPU, or no GPU runtime: looked for " + tried +
                   "; put the folder of ROCm's libamdhip64 or of CUDA's libcudart into LD_LIBRARY_PATH";
    }

    /// Returns why the library cannot be used; empty when it has been chosen. A library without devices stays loaded:
    /// GPU runtimes start threads and exit handlers, and do not survive being unloaded.
    std::string open(const Vendor& vendor, const Release& release) {
        std::string first_error;
        for (const std::string& name : candidates(vendor, release.runtime)) {
            void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (library == nullptr) {
                const char* const text = dlerror();
                if (first_error.empty() && text != nullptr) {
                    first_error = text;
                }
                continue;
            }
            const std::string prefix = vendor.prefix;
            using GetDeviceCount = int (*)(int*);
            const auto get_device_count =
                reinterpret_cast<GetDeviceCount>(dlsym(library, (prefix + "GetDeviceCount").c_str()));
            if (get_device_count == nullptr) {
                return "has no " + prefix + "GetDeviceCount";
            }
            int count = 0;
            const int error = get_device_count(&count);
            if (error == 0 && count > 0) {
                _library = library;
                _vendor = &vendor;
                _release = &release;
                _is_hip = prefix == "hip";
                link_map* map = nullptr;
                if (dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map != nullptr) {
                    _path = map->l_name;
                }
                return {};
            }
            if (error == 0) {
                return "has no device";
            }
            using GetErrorString = const char* (*)(int);
            const auto get_error_string =
                reinterpret_cast<GetErrorString>(dlsym(library, (prefix + "GetErrorString").c_str()));
            return get_error_string != nullptr ? get_error_string(error) : "error " + std::to_string(error);
        }
        // The loader's words for the plain case repeat the name and say no more than this.
        const bool absent = first_error.find("cannot open shared object file") != std::string::npos;
        return absent || first_error.empty() ? "not found" : first_error;
    }

    void* _library = nullptr;
    const Vendor* _vendor = nullptr;
    const Release* _release = nullptr;
    bool _is_hip = false;
    std::string _path;
    std::string _problem;
};

/// The run-time compiler that belongs to the runtime: HIPRTC or NVRTC.
class Compiler {
  public:
    static const Compiler& instance() {
        static const Compiler compiler;
        return compiler;
    }

    /// Why there is none; empty where it was found.
    [[nodiscard]] const std::string& problem() const { return _problem; }

    /// Null where there is no compiler or it has no such function.
    [[nodiscard]] void* symbol(const char* hip_name, const char* cuda_name) const {
        return _library != nullptr ? dlsym(_library, Runtime::instance().is_hip() ? hip_name : cuda_name) : nullptr;
    }

  private:
    Compiler() {
        const Runtime& runtime = Runtime::instance();
        if (!runtime.found()) {
            _problem = runtime.problem();
            return;
        }
        const char* const create = runtime.is_hip() ? "hiprtcCreateProgram" : "nvrtcCreateProgram";
        std::string tried;
        for (const std::string& name : runtime.compiler_candidates()) {
            void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (library != nullptr && dlsym(library, create) != nullptr) {
                _library = library;
                return;
            }
            tried += (tried.empty() ? "" : ", ") + name;
        }
        _problem = "no run-time compiler that fits the GPU runtime: looked for " + tried +
                   "; put its folder into LD_LIBRARY_PATH";
    }

    void* _library = nullptr;
    std::string _problem;
};

/// A function of NVIDIA's driver, which the runtime has loaded and initialised; null where it is not there.
void* driver_symbol(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != nullptr ? dlsym(library, name) : nullptr;
}

/// Calls the function, or returns the reason why there is none.
template <class... Arguments>
hipError_t forward(void* function, Arguments... arguments) {
    if (function == nullptr) {
        return Runtime::instance().found() ? hipErrorSharedObjectSymbolNotFound : hipErrorNoDevice;
    }
    return reinterpret_cast<hipError_t (*)(Arguments...)>(function)(arguments...);
}

/// The same for the run-time compiler.
template <class... Arguments>
hiprtcResult forward_to_compiler(void* function, Arguments... arguments) {
    if (function == nullptr) {
        return HIPRTC_ERROR_PROGRAM_CREATION_FAILURE;
    }
    return reinterpret_cast<hiprtcResult (*)(Arguments...)>(function)(arguments...);
}

/// CUDA's number of an attribute; 0, which is none, for one that is not in our header.
int cuda_attribute(hipDeviceAttribute_t attribute) {
    switch (attribute) {
        case hipDeviceAttributeConcurrentManagedAccess:
            return 89;
        case hipDeviceAttributeComputeCapabilityMajor:
            return 75;
        case hipDeviceAttributeManagedMemory:
            return 83;
        case hipDeviceAttributeMemoryBusWidth:
            return 37;
        case hipDeviceAttributeMemoryClockRate:
            return 36;
        case hipDeviceAttributeComputeCapabilityMinor:
            return 76;
        case hipDeviceAttributeMultiprocessorCount:
            return 16;
        case hipDeviceAttributePageableMemoryAccess:
            return 88;
        case hipDeviceAttributeWarpSize:
            return 10;
    }
    return 0;
}

/// Clang's options, which HIPRTC takes, in NVRTC's words, and the architecture that HIPRTC would choose by itself.
std::vector<std::string> nvidia_options(int count, const char* const* options) {
    std::vector<std::string> words;
    bool names_architecture = false;
    for (int i = 0; i < count; ++i) {
        const std::string_view word = options[i];
        words.emplace_back(word == "-ffp-contract=off" ? "--fmad=false" : word);
        if (word.find("-arch") != std::string_view::npos) {
            names_architecture = true;
        }
    }
    int device = 0;
    int major = 0;
    int minor = 0;
    if (!names_architecture && hipGetDevice(&device) == hipSuccess &&
        hipDeviceGetAttribute(&major, hipDeviceAttributeComputeCapabilityMajor, device) == hipSuccess &&
        hipDeviceGetAttribute(&minor, hipDeviceAttributeComputeCapabilityMinor, device) == hipSuccess) {
        words.push_back("--gpu-architecture=sm_" + std::to_string(major) + std::to_string(minor));
    }
    return words;
}

}  // namespace

// Looks the function up once, thread-safely, under its name in the runtime that was found.
#define FORWARD(hip_name, cuda_name, ...)                                                \
    do {                                                                                 \
        static void* const function = Runtime::instance().symbol(#hip_name, #cuda_name); \
        return forward(function __VA_OPT__(, ) __VA_ARGS__);                             \
    } while (false)

#define FORWARD_TO_COMPILER(hip_name, cuda_name, ...)                                     \
    do {                                                                                  \
        static void* const function = Compiler::instance().symbol(#hip_name, #cuda_name); \
        return forward_to_compiler(function __VA_OPT__(, ) __VA_ARGS__);                  \
    } while (false)

// A call that is AMD's runtime's and NVIDIA's driver's.
#define FORWARD_TO_DRIVER(hip_name, driver_name, ...)                                                             \
    do {                                                                                                          \
        static void* const function = Runtime::instance().is_hip()                                                \
                                          ? Runtime::instance().symbol(#hip_name, nullptr)                        \
                                          : (Runtime::instance().found() ? driver_symbol(driver_name) : nullptr); \
        return forward(function __VA_OPT__(, ) __VA_ARGS__);                                                      \
    } while (false)

extern "C" {

int gpu_runtime_is_amd() {
    return Runtime::instance().is_hip() ? 1 : 0;
}

const char* gpu_runtime_path() {
    return Runtime::instance().path().c_str();
}

const char* hipGetErrorString(hipError_t error) {
    const Runtime& runtime = Runtime::instance();
    if (!runtime.found()) {
        return error == hipSuccess ? "no error" : runtime.problem().c_str();
    }
    static void* const function = runtime.symbol("hipGetErrorString", "cudaGetErrorString");
    if (function == nullptr) {
        return "unknown error (the GPU runtime has no texts)";
    }
    return reinterpret_cast<const char* (*)(hipError_t)>(function)(error);
}

hipError_t hipGetLastError() {
    FORWARD(hipGetLastError, cudaGetLastError);
}

hipError_t hipGetDeviceCount(int* count) {
    if (count == nullptr) {
        return hipErrorInvalidValue;
    }
    *count = 0;
    FORWARD(hipGetDeviceCount, cudaGetDeviceCount, count);
}

hipError_t hipRuntimeGetVersion(int* version) {
    FORWARD(hipRuntimeGetVersion, cudaRuntimeGetVersion, version);
}
hipError_t hipSetDevice(int device) {
    FORWARD(hipSetDevice, cudaSetDevice, device);
}
hipError_t hipGetDevice(int* device) {
    FORWARD(hipGetDevice, cudaGetDevice, device);
}
hipError_t hipDeviceSynchronize() {
    FORWARD(hipDeviceSynchronize, cudaDeviceSynchronize);
}
hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    FORWARD(hipMemGetInfo, cudaMemGetInfo, free_bytes, total_bytes);
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
    const Runtime& runtime = Runtime::instance();
    const int number = runtime.is_hip() ? static_cast<int>(attribute) : cuda_attribute(attribute);
    if (runtime.found() && !runtime.is_hip() && number == 0) {
        return hipErrorInvalidValue;
    }
    FORWARD(hipDeviceGetAttribute, cudaDeviceGetAttribute, value, number, device);
}
hipError_t hipDeviceGetName(char* name, int length, hipDevice_t device) {
    FORWARD_TO_DRIVER(hipDeviceGetName, "cuDeviceGetName", name, length, device);
}
hipError_t hipDeviceGetPCIBusId(char* name, int length, int device) {
    FORWARD(hipDeviceGetPCIBusId, cudaDeviceGetPCIBusId, name, length, device);
}
hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
    FORWARD(hipDeviceGetStreamPriorityRange, cudaDeviceGetStreamPriorityRange, least, greatest);
}

hipError_t hipMalloc(void** pointer, size_t bytes) {
    FORWARD(hipMalloc, cudaMalloc, pointer, bytes);
}
hipError_t hipFree(void* pointer) {
    FORWARD(hipFree, cudaFree, pointer);
}
hipError_t hipMallocManaged(void** pointer, size_t bytes, unsigned int flags) {
    FORWARD(hipMallocManaged, cudaMallocManaged, pointer, bytes, flags);
}
hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned int flags) {
    FORWARD(hipHostMalloc, cudaHostAlloc, pointer, bytes, flags);
}
hipError_t hipHostFree(void* pointer) {
    FORWARD(hipHostFree, cudaFreeHost, pointer);
}

hipError_t hipMemcpy(void* destination, const void* source, size_t bytes, hipMemcpyKind kind) {
    FORWARD(hipMemcpy, cudaMemcpy, destination, source, bytes, kind);
}
hipError_t hipMemcpyAsync(void* destination, const void* source, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
    FORWARD(hipMemcpyAsync, cudaMemcpyAsync, destination, source, bytes, kind, stream);
}
hipError_t hipMemcpy2D(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                       size_t width, size_t height, hipMemcpyKind kind) {
    FORWARD(hipMemcpy2D, cudaMemcpy2D, destination, destination_pitch, source, source_pitch, width, height, kind);
}
hipError_t hipMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                            size_t width, size_t height, hipMemcpyKind kind, hipStream_t stream) {
    FORWARD(hipMemcpy2DAsync, cudaMemcpy2DAsync, destination, destination_pitch, source, source_pitch, width, height,
            kind, stream);
}
hipError_t hipMemset(void* destination, int value, size_t bytes) {
    FORWARD(hipMemset, cudaMemset, destination, value, bytes);
}
hipError_t hipMemsetAsync(void* destination, int value, size_t bytes, hipStream_t stream) {
    FORWARD(hipMemsetAsync, cudaMemsetAsync, destination, value, bytes, stream);
}

hipError_t hipStreamCreate(hipStream_t* stream) {
    FORWARD(hipStreamCreate, cudaStreamCreate, stream);
}
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags) {
    FORWARD(hipStreamCreateWithFlags, cudaStreamCreateWithFlags, stream, flags);
}
hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned int flags, int priority) {
    FORWARD(hipStreamCreateWithPriority, cudaStreamCreateWithPriority, stream, flags, priority);
}
hipError_t hipStreamDestroy(hipStream_t stream) {
    FORWARD(hipStreamDestroy, cudaStreamDestroy, stream);
}
hipError_t hipStreamSynchronize(hipStream_t stream) {
    FORWARD(hipStreamSynchronize, cudaStreamSynchronize, stream);
}
hipError_t hipStreamQuery(hipStream_t stream) {
    FORWARD(hipStreamQuery, cudaStreamQuery, stream);
}
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags) {
    FORWARD(hipStreamWaitEvent, cudaStreamWaitEvent, stream, event, flags);
}

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
    FORWARD(hipStreamBeginCapture, cudaStreamBeginCapture, stream, mode);
}
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
    FORWARD(hipStreamEndCapture, cudaStreamEndCapture, stream, graph);
}
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* executable, hipGraph_t graph, unsigned long long flags) {
    FORWARD(hipGraphInstantiateWithFlags, cudaGraphInstantiateWithFlags, executable, graph, flags);
}
hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream) {
    FORWARD(hipGraphLaunch, cudaGraphLaunch, executable, stream);
}
hipError_t hipGraphDestroy(hipGraph_t graph) {
    FORWARD(hipGraphDestroy, cudaGraphDestroy, graph);
}
hipError_t hipGraphExecDestroy(hipGraphExec_t executable) {
    FORWARD(hipGraphExecDestroy, cudaGraphExecDestroy, executable);
}

hipError_t hipEventCreate(hipEvent_t* event) {
    FORWARD(hipEventCreate, cudaEventCreate, event);
}
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags) {
    FORWARD(hipEventCreateWithFlags, cudaEventCreateWithFlags, event, flags);
}
hipError_t hipEventDestroy(hipEvent_t event) {
    FORWARD(hipEventDestroy, cudaEventDestroy, event);
}
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    FORWARD(hipEventRecord, cudaEventRecord, event, stream);
}
hipError_t hipEventQuery(hipEvent_t event) {
    FORWARD(hipEventQuery, cudaEventQuery, event);
}
hipError_t hipEventSynchronize(hipEvent_t event) {
    FORWARD(hipEventSynchronize, cudaEventSynchronize, event);
}
hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
    FORWARD(hipEventElapsedTime, cudaEventElapsedTime, milliseconds, start, stop);
}

hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
    // The driver wants a current context. The runtime's is made by its first call that needs the device: this one.
    if (Runtime::instance().found() && !Runtime::instance().is_hip()) {
        if (const hipError_t error = hipFree(nullptr); error != hipSuccess) {
            return error;
        }
    }
    FORWARD_TO_DRIVER(hipModuleLoadData, "cuModuleLoadData", module, image);
}
hipError_t hipModuleUnload(hipModule_t module) {
    FORWARD_TO_DRIVER(hipModuleUnload, "cuModuleUnload", module);
}
hipError_t hipModuleGetFunction(hipFunction_t* function_handle, hipModule_t module, const char* name) {
    FORWARD_TO_DRIVER(hipModuleGetFunction, "cuModuleGetFunction", function_handle, module, name);
}
hipError_t hipModuleLaunchKernel(hipFunction_t kernel, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                 unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                 unsigned int shared_bytes, hipStream_t stream, void** parameters, void** extra) {
    FORWARD_TO_DRIVER(hipModuleLaunchKernel, "cuLaunchKernel", kernel, grid_x, grid_y, grid_z, block_x, block_y,
                      block_z, shared_bytes, stream, parameters, extra);
}

const char* hiprtcGetErrorString(hiprtcResult result) {
    const Compiler& compiler = Compiler::instance();
    if (result == HIPRTC_SUCCESS) {
        return "no error";
    }
    if (!compiler.problem().empty()) {
        return compiler.problem().c_str();
    }
    static void* const function = compiler.symbol("hiprtcGetErrorString", "nvrtcGetErrorString");
    if (function == nullptr) {
        return "unknown error (the run-time compiler has no texts)";
    }
    return reinterpret_cast<const char* (*)(hiprtcResult)>(function)(result);
}
hiprtcResult hiprtcCreateProgram(hiprtcProgram* program, const char* source, const char* name, int count,
                                 const char** headers, const char** include_names) {
    FORWARD_TO_COMPILER(hiprtcCreateProgram, nvrtcCreateProgram, program, source, name, count, headers, include_names);
}
hiprtcResult hiprtcDestroyProgram(hiprtcProgram* program) {
    FORWARD_TO_COMPILER(hiprtcDestroyProgram, nvrtcDestroyProgram, program);
}
hiprtcResult hiprtcCompileProgram(hiprtcProgram program, int count, const char** options) {
    std::vector<std::string> words;
    std::vector<const char*> texts;
    if (Runtime::instance().found() && !Runtime::instance().is_hip()) {
        words = nvidia_options(count, options);
        for (const std::string& word : words) {
            texts.push_back(word.c_str());
        }
        count = static_cast<int>(texts.size());
        options = texts.data();
    }
    FORWARD_TO_COMPILER(hiprtcCompileProgram, nvrtcCompileProgram, program, count, options);
}
hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram program, size_t* bytes) {
    FORWARD_TO_COMPILER(hiprtcGetProgramLogSize, nvrtcGetProgramLogSize, program, bytes);
}
hiprtcResult hiprtcGetProgramLog(hiprtcProgram program, char* log) {
    FORWARD_TO_COMPILER(hiprtcGetProgramLog, nvrtcGetProgramLog, program, log);
}
hiprtcResult hiprtcGetCodeSize(hiprtcProgram program, size_t* bytes) {
    FORWARD_TO_COMPILER(hiprtcGetCodeSize, nvrtcGetCUBINSize, program, bytes);
}
hiprtcResult hiprtcGetCode(hiprtcProgram program, char* code) {
    FORWARD_TO_COMPILER(hiprtcGetCode, nvrtcGetCUBIN, program, code);
}

}  // extern "C"
