// Forwards the HIP calls of hip/hip_runtime_api.h to the GPU runtime that the machine has, found when the program runs.
//
// The runtime is opened once, at the first call: the first library, AMD's before NVIDIA's and newest first, that can be
// opened and reports at least one device. Each function is looked up when it is first called, so a runtime that lacks
// one serves all programs that do not use it.
//
// The two vendors' calls have the same arguments, and the enumerators in our header have the same numbers in both, so
// forwarding is a matter of names.

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "gpu_runtime.h"
#include "hip/hip_runtime_api.h"

namespace {

struct Vendor {
    const char* prefix;  ///< of the function names
    std::vector<const char*> sonames;
    std::vector<const char*> home_variables;  ///< environment variables that name an installation
    std::vector<const char*> homes;           ///< usual installations, searched after the loader's own path
    std::vector<const char*> library_folders;
};

const std::array<Vendor, 2>& vendors() {
    static const std::array<Vendor, 2> all = {
        Vendor{
            "hip", {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}, {"ROCM_PATH"}, {"/opt/rocm"}, {"lib"}},
        Vendor{"cuda",
               {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"},
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
        if (value != nullptr && value[0] == '/') homes.emplace_back(value);
    }
    homes.insert(homes.end(), vendor.homes.begin(), vendor.homes.end());
    for (const std::string& home : homes) {
        for (const char* folder : vendor.library_folders)
            names.push_back(home + "/" + folder + "/" + soname);
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
    /// One line that names each library and why it does not serve; empty where one was found.
    [[nodiscard]] const std::string& problem() const { return _problem; }

    /// Null where no runtime was found or it has no such function.
    [[nodiscard]] void* symbol(const char* hip_name, const char* cuda_name) const {
        return found() ? dlsym(_library, _is_hip ? hip_name : cuda_name) : nullptr;
    }

  private:
    Runtime() {
        std::string tried;
        for (const Vendor& vendor : vendors()) {
            for (const char* soname : vendor.sonames) {
                const std::string reason = open(vendor, soname);
                if (reason.empty()) return;
                tried += (tried.empty() ? "" : ", ") + std::string(soname) + " (" + reason + ")";
            }
        }
        _problem = "no GPU, or no GPU runtime: looked for " + tried +
                   "; put the folder of ROCm's libamdhip64 or of CUDA's libcudart into LD_LIBRARY_PATH";
    }

    /// Returns why the library cannot be used; empty when it has been chosen. A library without devices stays loaded:
    /// GPU runtimes start threads and exit handlers, and do not survive being unloaded.
    std::string open(const Vendor& vendor, const char* soname) {
        std::string first_error;
        for (const std::string& name : candidates(vendor, soname)) {
            void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (library == nullptr) {
                const char* const text = dlerror();
                if (first_error.empty() && text != nullptr) first_error = text;
                continue;
            }
            const std::string prefix = vendor.prefix;
            using GetDeviceCount = int (*)(int*);
            const auto get_device_count =
                reinterpret_cast<GetDeviceCount>(dlsym(library, (prefix + "GetDeviceCount").c_str()));
            if (get_device_count == nullptr) return "has no " + prefix + "GetDeviceCount";
            int count = 0;
            const int error = get_device_count(&count);
            if (error == 0 && count > 0) {
                _library = library;
                _is_hip = prefix == "hip";
                return {};
            }
            if (error == 0) return "has no device";
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
    bool _is_hip = false;
    std::string _problem;
};

/// Calls the function, or returns the reason why there is none.
template <class... Arguments>
hipError_t forward(void* function, Arguments... arguments) {
    if (function == nullptr) {
        return Runtime::instance().found() ? hipErrorSharedObjectSymbolNotFound : hipErrorNoDevice;
    }
    return reinterpret_cast<hipError_t (*)(Arguments...)>(function)(arguments...);
}

}  // namespace

// Looks the function up once, thread-safely, under its name in the runtime that was found.
#define FORWARD(hip_name, cuda_name, ...)                                                \
    do {                                                                                 \
        static void* const function = Runtime::instance().symbol(#hip_name, #cuda_name); \
        return forward(function __VA_OPT__(, ) __VA_ARGS__);                             \
    } while (false)

extern "C" {

int gpu_runtime_is_amd() {
    return Runtime::instance().is_hip() ? 1 : 0;
}

const char* hipGetErrorString(hipError_t error) {
    const Runtime& runtime = Runtime::instance();
    if (!runtime.found()) return error == hipSuccess ? "no error" : runtime.problem().c_str();
    static void* const function = runtime.symbol("hipGetErrorString", "cudaGetErrorString");
    if (function == nullptr) return "unknown error (the GPU runtime has no texts)";
    return reinterpret_cast<const char* (*)(hipError_t)>(function)(error);
}

hipError_t hipGetLastError() {
    FORWARD(hipGetLastError, cudaGetLastError);
}

hipError_t hipGetDeviceCount(int* count) {
    if (count == nullptr) return hipErrorInvalidValue;
    *count = 0;
    FORWARD(hipGetDeviceCount, cudaGetDeviceCount, count);
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
hipError_t hipStreamDestroy(hipStream_t stream) {
    FORWARD(hipStreamDestroy, cudaStreamDestroy, stream);
}
hipError_t hipStreamSynchronize(hipStream_t stream) {
    FORWARD(hipStreamSynchronize, cudaStreamSynchronize, stream);
}
hipError_t hipStreamQuery(hipStream_t stream) {
    FORWARD(hipStreamQuery, cudaStreamQuery, stream);
}

}  // extern "C"
