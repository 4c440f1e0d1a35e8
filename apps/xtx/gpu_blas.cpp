// SPDX-License-Identifier: Apache-2.0
#include "gpu_blas.h"

#include <dlfcn.h>

#include <array>
#include <climits>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "device.h"
#include "libraries.h"

namespace xtx {

namespace {

using Handle = void*;
template <class Value, class Size>
using Gemm = int (*)(Handle, int, int, Size, Size, Size, const Value*, const Value*, Size, const Value*, Size,
                     const Value*, Value*, Size);

/// The names of the library's releases that go with the runtime in use.
std::vector<std::string> sonames(bool amd) {
    int version = 0;
    HIP_CHECK(hipRuntimeGetVersion(&version));
    if (!amd) {
        return {"libcublas.so." + std::to_string(version / 1000)};
    }
    // hipBLAS counts otherwise than ROCm: 3 goes with ROCm 7, 2 with ROCm 6, 1 and 0 with ROCm 5.
    const int rocm = version / 10'000'000;
    if (rocm <= 5) {
        return {"libhipblas.so.1", "libhipblas.so.0"};
    }
    return {"libhipblas.so." + std::to_string(rocm - 4)};
}

}  // namespace

struct GpuBlasFunctions {
    // GCC 13 fails on a member here whose type is in the unnamed namespace, where several files are compiled as one.
    template <class Real>
    struct Complex {
        Real re;
        Real im;
    };
    /// All forms for one size of integers; null where the library does not have them.
    template <class Size>
    struct Gemms {
        Gemm<float, Size> s = nullptr;
        Gemm<double, Size> d = nullptr;
        Gemm<Complex<float>, Size> c = nullptr;
        Gemm<Complex<double>, Size> z = nullptr;
    };

    int (*create)(Handle*) = nullptr;
    int (*destroy)(Handle) = nullptr;
    int (*set_stream)(Handle, hipStream_t) = nullptr;
    int (*get_version)(Handle, int*) = nullptr;  ///< cuBLAS only
    Gemms<int> gemm;
    Gemms<std::int64_t> gemm_64;
    bool has_gemm_64 = false;
    // Enumerators of the operations.
    int none = 0;
    int transposed = 0;
    int conjugated = 0;

    /// Returns the name of the first function that the library lacks; empty where it has all.
    std::string load(void* library, bool amd) {
        std::string missing;
        const auto find = [&](auto& function, const std::string& name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name.c_str()));
            return function != nullptr;
        };
        const auto need = [&](auto& function, const std::string& name) {
            if (!find(function, name) && missing.empty()) {
                missing = name;
            }
        };
        const std::string prefix = amd ? "hipblas" : "cublas";
        const std::string suffix = amd ? "" : "_v2";
        need(create, prefix + "Create" + suffix);
        need(destroy, prefix + "Destroy" + suffix);
        need(set_stream, prefix + "SetStream" + suffix);
        need(gemm.s, prefix + "Sgemm" + suffix);
        need(gemm.d, prefix + "Dgemm" + suffix);
        need(gemm.c, prefix + "Cgemm" + suffix);
        need(gemm.z, prefix + "Zgemm" + suffix);
        if (!amd) {
            find(get_version, "cublasGetVersion_v2");
        }
        has_gemm_64 =
            find(gemm_64.s, prefix + "Sgemm" + suffix + "_64") && find(gemm_64.d, prefix + "Dgemm" + suffix + "_64") &&
            find(gemm_64.c, prefix + "Cgemm" + suffix + "_64") && find(gemm_64.z, prefix + "Zgemm" + suffix + "_64");
        // hipBLAS has the numbers of CBLAS.
        none = amd ? 111 : 0;
        transposed = none + 1;
        conjugated = none + 2;
        return missing;
    }
};

GpuBlas::GpuBlas() : _name(apps::runtime_is_amd() ? "hipBLAS" : "cuBLAS") {
    const bool amd = apps::runtime_is_amd();
    const std::vector<std::string> names = sonames(amd);
    std::string reason;
    for (const std::string& soname : names) {
        for (const std::string& name : apps::library_names(soname, "cublas")) {
            // Never closed: GPU libraries do not survive being unloaded.
            void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (library == nullptr) {
                const char* const text = dlerror();
                if (reason.empty() && text != nullptr) {
                    reason = text;
                }
                continue;
            }
            static GpuBlasFunctions functions;
            const std::string missing = functions.load(library, amd);
            if (!missing.empty()) {
                _problem = name + " has no " + missing;
                return;
            }
            _functions = &functions;
            int version = 0;
            if (functions.get_version != nullptr && functions.get_version(nullptr, &version) == 0 && version > 0) {
                // major * 10000 + minor * 100 + patch since CUDA 11.
                _name += " " + std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
                         std::to_string(version % 100);
            }
            _name += " (" + soname + ")";
            return;
        }
    }
    _problem = reason + "; put the folder of " + names.front() + " into LD_LIBRARY_PATH";
}

GpuBlas::~GpuBlas() {
    if (_handle != nullptr) {
        _functions->destroy(_handle);
    }
}

bool GpuBlas::takes_large_sizes() const {
    return _functions->has_gemm_64;
}

void GpuBlas::require(int status, const char* call) const {
    if (status == 0) {
        return;
    }
    std::fprintf(stderr, "rank %d: %s: %s: status %d\n", apps::rank_of_world(), _name.c_str(), call, status);
    apps::end_job();
}

void GpuBlas::connect(hipStream_t stream) {
    require(_functions->create(&_handle), "create");
    require(_functions->set_stream(_handle, stream), "set stream");
}

namespace {

/// One product, with the form of GEMM for its type and size.
template <class Value, class Size>
int run(Gemm<Value, Size> gemm, Handle handle, int none, int adjoint, const Product& product, Value one) {
    const Value zero = {};
    return gemm(handle, none, adjoint, static_cast<Size>(product.m), static_cast<Size>(product.n),
                static_cast<Size>(product.k), &one, static_cast<const Value*>(product.a),
                static_cast<Size>(product.leading), static_cast<const Value*>(product.b),
                static_cast<Size>(product.leading), &zero, static_cast<Value*>(product.c),
                static_cast<Size>(product.leading_c));
}

template <class Gemms>
int run(const Gemms& gemm, Handle handle, const GpuBlasFunctions& functions, const Product& product) {
    const int none = functions.none;
    if (product.is_complex && product.single) {
        return run(gemm.c, handle, none, functions.conjugated, product, {1, 0});
    }
    if (product.is_complex) {
        return run(gemm.z, handle, none, functions.conjugated, product, {1, 0});
    }
    if (product.single) {
        return run(gemm.s, handle, none, functions.transposed, product, 1.0F);
    }
    return run(gemm.d, handle, none, functions.transposed, product, 1.0);
}

}  // namespace

void GpuBlas::multiply(const Product& product) const {
    const int status = _functions->has_gemm_64 ? run(_functions->gemm_64, _handle, *_functions, product)
                                               : run(_functions->gemm, _handle, *_functions, product);
    require(status, "GEMM");
}

}  // namespace xtx
