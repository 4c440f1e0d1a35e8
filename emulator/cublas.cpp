// libcublas.so.12 and .13: what programs call of cuBLAS. The forms with 64-bit sizes are there since version 12.
#include "blas/library.h"

namespace {

using namespace awaken::emulator;
using blas::Complex;
using blas::Status;
using blas::Transpose;

using cublasHandle_t = void*;
using cublasStatus_t = int;
using cudaStream_t = void*;

/// CUBLAS_VERSION of the release that is emulated: major * 10000 + minor * 100 + patch.
constexpr int kVersion = AWAKEN_CUBLAS_VERSION >= 13 ? 130000 : 120901;

cublasStatus_t number_of(Status status) noexcept {
    switch (status) {
        case Status::success:
            return 0;
        case Status::not_initialized:
            return 1;
        case Status::alloc_failed:
            return 3;
        case Status::invalid_value:
        case Status::invalid_enum:
            return 7;
        case Status::execution_failed:
            return 13;
        case Status::internal_error:
            return 14;
    }
    return 14;
}

/// cublasOperation_t.
bool decode(int operation, Transpose& form) noexcept {
    if (operation < 0 || operation > 2) {
        return false;
    }
    form = static_cast<Transpose>(operation);
    return true;
}

template <typename Value>
cublasStatus_t gemm(cublasHandle_t handle, int a_operation, int b_operation, std::int64_t m, std::int64_t n,
                    std::int64_t k, const Value* alpha, const Value* a, std::int64_t leading_a, const Value* b,
                    std::int64_t leading_b, const Value* beta, Value* c, std::int64_t leading_c) noexcept {
    if (!blas::is_handle(handle)) {
        return number_of(Status::not_initialized);
    }
    blas::Arguments<Value> arguments = {{}, {}, m, n, k, alpha, a, leading_a, b, leading_b, beta, c, leading_c};
    if (!decode(a_operation, arguments.a_form) || !decode(b_operation, arguments.b_form)) {
        return number_of(Status::invalid_enum);
    }
    return number_of(blas::gemm(handle, arguments));
}

}  // namespace

AWAKEN_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    return number_of(blas::create(Vendor::cuda, handle));
}
AWAKEN_EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    return number_of(blas::destroy(handle));
}

AWAKEN_EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
    if (version == nullptr) {
        return number_of(Status::invalid_value);
    }
    *version = kVersion;
    return number_of(Status::success);
}

AWAKEN_EXPORT const char* cublasGetStatusString(cublasStatus_t status) {
    switch (status) {
        case 0:
            return "the operation completed successfully";
        case 1:
            return "the library was not initialized";
        case 3:
            return "the resource allocation failed";
        case 7:
            return "an unsupported value or parameter was passed to the function";
        case 13:
            return "the function failed to launch on the GPU";
        case 14:
            return "an internal operation failed";
        default:
            return "unknown cublasStatus_t";
    }
}

AWAKEN_EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    return number_of(blas::set_stream(handle, stream));
}
AWAKEN_EXPORT cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
    return number_of(blas::get_stream(handle, stream));
}

/// Kept, and without effect: there is one way to multiply here.
AWAKEN_EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode) {
    return number_of(blas::set_math_mode(handle, mode));
}

AWAKEN_EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, int* mode) {
    return number_of(blas::get_math_mode(handle, mode));
}

// The arguments that all forms share, and their names in the same order.
#define GEMM_PARAMETERS(Size, Value)                                                                           \
    cublasHandle_t handle, int transa, int transb, Size m, Size n, Size k, const Value *alpha, const Value *a, \
        Size lda, const Value *b, Size ldb, const Value *beta, Value *c, Size ldc
#define GEMM_ARGUMENTS handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc

AWAKEN_EXPORT cublasStatus_t cublasSgemm_v2(GEMM_PARAMETERS(int, float)) {
    return gemm<float>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasDgemm_v2(GEMM_PARAMETERS(int, double)) {
    return gemm<double>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasCgemm_v2(GEMM_PARAMETERS(int, Complex<float>)) {
    return gemm<Complex<float>>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasZgemm_v2(GEMM_PARAMETERS(int, Complex<double>)) {
    return gemm<Complex<double>>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasSgemm_v2_64(GEMM_PARAMETERS(std::int64_t, float)) {
    return gemm<float>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasDgemm_v2_64(GEMM_PARAMETERS(std::int64_t, double)) {
    return gemm<double>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasCgemm_v2_64(GEMM_PARAMETERS(std::int64_t, Complex<float>)) {
    return gemm<Complex<float>>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT cublasStatus_t cublasZgemm_v2_64(GEMM_PARAMETERS(std::int64_t, Complex<double>)) {
    return gemm<Complex<double>>(GEMM_ARGUMENTS);
}
