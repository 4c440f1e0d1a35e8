// libcublas.so.12 and .13: what programs call of cuBLAS. The forms with 64-bit sizes are there since version 12.
#include "blas/calls.h"

namespace {

using namespace awaken::emulator;
using namespace awaken::emulator::blas;

using cublasHandle_t = void*;
using cublasStatus_t = int;
using cudaStream_t = void*;

/// CUBLAS_VERSION of the release that is emulated: major * 10000 + minor * 100 + patch.
constexpr int kVersion = AWAKEN_CUBLAS_VERSION >= 13 ? 130000 : 120901;

struct Cublas {
    static constexpr std::array statuses{
        StatusName{Status::success, 0, "the operation completed successfully"},
        StatusName{Status::not_initialized, 1, "the library was not initialized"},
        StatusName{Status::alloc_failed, 3, "the resource allocation failed"},
        StatusName{Status::invalid_value, 7, "an unsupported value or parameter was passed to the function"},
        StatusName{Status::invalid_enum, 7, "an unsupported value or parameter was passed to the function"},
        StatusName{Status::execution_failed, 13, "the function failed to launch on the GPU"},
        StatusName{Status::internal_error, 14, "an internal operation failed"},
    };
    static constexpr int first_operation = 0;  // cublasOperation_t
    static constexpr bool asks_for_handle_first = true;
};

}  // namespace

AWAKEN_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    return number_of<Cublas>(create(Vendor::cuda, handle));
}
AWAKEN_EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    return number_of<Cublas>(destroy(handle));
}

AWAKEN_EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
    if (version == nullptr) {
        return number_of<Cublas>(Status::invalid_value);
    }
    *version = kVersion;
    return number_of<Cublas>(Status::success);
}

AWAKEN_EXPORT const char* cublasGetStatusString(cublasStatus_t status) {
    return text_of<Cublas>(status, "unknown cublasStatus_t");
}

AWAKEN_EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    return number_of<Cublas>(set_stream(handle, stream));
}
AWAKEN_EXPORT cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
    return number_of<Cublas>(get_stream(handle, stream));
}

/// Kept, and without effect: there is one way to multiply here.
AWAKEN_EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode) {
    return number_of<Cublas>(set_math_mode(handle, mode));
}

AWAKEN_EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, int* mode) {
    return number_of<Cublas>(get_math_mode(handle, mode));
}

AWAKEN_EXPORT cublasStatus_t cublasSgemm_v2(GEMM_PARAMETERS(int, float)) {
    return gemm<Cublas, float>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasDgemm_v2(GEMM_PARAMETERS(int, double)) {
    return gemm<Cublas, double>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasCgemm_v2(GEMM_PARAMETERS(int, Complex<float>)) {
    return gemm<Cublas, Complex<float>>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasZgemm_v2(GEMM_PARAMETERS(int, Complex<double>)) {
    return gemm<Cublas, Complex<double>>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasSgemm_v2_64(GEMM_PARAMETERS(std::int64_t, float)) {
    return gemm<Cublas, float>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasDgemm_v2_64(GEMM_PARAMETERS(std::int64_t, double)) {
    return gemm<Cublas, double>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasCgemm_v2_64(GEMM_PARAMETERS(std::int64_t, Complex<float>)) {
    return gemm<Cublas, Complex<float>>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasZgemm_v2_64(GEMM_PARAMETERS(std::int64_t, Complex<double>)) {
    return gemm<Cublas, Complex<double>>(GEMM_ARGUMENTS);
}
