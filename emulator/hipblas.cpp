// libhipblas.so.1, .2 and .3: what programs call of hipBLAS, as ROCm 5, 6 and 7 have it. The forms with 64-bit sizes
// are there since hipBLAS 2.3 (ROCm 6.3).
#include "blas/library.h"

namespace {

using namespace awaken::emulator;
using blas::Complex;
using blas::Status;
using blas::Transpose;

using hipblasHandle_t = void*;
using hipblasStatus_t = int;
using hipStream_t = void*;

enum : hipblasStatus_t { kHandleIsNullptr = 9 };

hipblasStatus_t number_of(Status status) noexcept {
    switch (status) {
        case Status::success:
            return 0;
        case Status::not_initialized:
            return 1;
        case Status::alloc_failed:
            return 2;
        case Status::invalid_value:
            return 3;
        case Status::execution_failed:
            return 5;
        case Status::internal_error:
            return 6;
        case Status::invalid_enum:
            return 10;
    }
    return 6;
}

/// hipblasOperation_t: the numbers of CBLAS.
bool decode(int operation, Transpose& form) noexcept {
    if (operation < 111 || operation > 113) {
        return false;
    }
    form = static_cast<Transpose>(operation - 111);
    return true;
}

template <typename Value>
hipblasStatus_t gemm(hipblasHandle_t handle, int a_operation, int b_operation, std::int64_t m, std::int64_t n,
                     std::int64_t k, const Value* alpha, const Value* a, std::int64_t leading_a, const Value* b,
                     std::int64_t leading_b, const Value* beta, Value* c, std::int64_t leading_c) noexcept {
    blas::Arguments<Value> arguments = {{}, {}, m, n, k, alpha, a, leading_a, b, leading_b, beta, c, leading_c};
    // hipBLAS translates the operations for rocBLAS before that looks at the handle.
    if (!decode(a_operation, arguments.a_form) || !decode(b_operation, arguments.b_form)) {
        return number_of(Status::invalid_enum);
    }
    return number_of(blas::gemm(handle, arguments));
}

}  // namespace

AWAKEN_EXPORT hipblasStatus_t hipblasCreate(hipblasHandle_t* handle) {
    if (handle == nullptr) {
        return kHandleIsNullptr;
    }
    return number_of(blas::create(Vendor::hip, handle));
}

AWAKEN_EXPORT hipblasStatus_t hipblasDestroy(hipblasHandle_t handle) {
    return number_of(blas::destroy(handle));
}

AWAKEN_EXPORT const char* hipblasStatusToString(hipblasStatus_t status) {
    switch (status) {
        case 0:
            return "HIPBLAS_STATUS_SUCCESS";
        case 1:
            return "HIPBLAS_STATUS_NOT_INITIALIZED";
        case 2:
            return "HIPBLAS_STATUS_ALLOC_FAILED";
        case 3:
            return "HIPBLAS_STATUS_INVALID_VALUE";
        case 5:
            return "HIPBLAS_STATUS_EXECUTION_FAILED";
        case 6:
            return "HIPBLAS_STATUS_INTERNAL_ERROR";
        case kHandleIsNullptr:
            return "HIPBLAS_STATUS_HANDLE_IS_NULLPTR";
        case 10:
            return "HIPBLAS_STATUS_INVALID_ENUM";
        default:
            return "HIPBLAS_STATUS_UNKNOWN";
    }
}

AWAKEN_EXPORT hipblasStatus_t hipblasSetStream(hipblasHandle_t handle, hipStream_t stream) {
    return number_of(blas::set_stream(handle, stream));
}
AWAKEN_EXPORT hipblasStatus_t hipblasGetStream(hipblasHandle_t handle, hipStream_t* stream) {
    return number_of(blas::get_stream(handle, stream));
}

// The arguments that all forms share, and their names in the same order.
#define GEMM_PARAMETERS(Size, Value)                                                                            \
    hipblasHandle_t handle, int transa, int transb, Size m, Size n, Size k, const Value *alpha, const Value *a, \
        Size lda, const Value *b, Size ldb, const Value *beta, Value *c, Size ldc
#define GEMM_ARGUMENTS handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc

AWAKEN_EXPORT hipblasStatus_t hipblasSgemm(GEMM_PARAMETERS(int, float)) {
    return gemm<float>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT hipblasStatus_t hipblasDgemm(GEMM_PARAMETERS(int, double)) {
    return gemm<double>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT hipblasStatus_t hipblasCgemm(GEMM_PARAMETERS(int, Complex<float>)) {
    return gemm<Complex<float>>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT hipblasStatus_t hipblasZgemm(GEMM_PARAMETERS(int, Complex<double>)) {
    return gemm<Complex<double>>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT hipblasStatus_t hipblasSgemm_64(GEMM_PARAMETERS(std::int64_t, float)) {
    return gemm<float>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT hipblasStatus_t hipblasDgemm_64(GEMM_PARAMETERS(std::int64_t, double)) {
    return gemm<double>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT hipblasStatus_t hipblasCgemm_64(GEMM_PARAMETERS(std::int64_t, Complex<float>)) {
    return gemm<Complex<float>>(GEMM_ARGUMENTS);
}
AWAKEN_EXPORT hipblasStatus_t hipblasZgemm_64(GEMM_PARAMETERS(std::int64_t, Complex<double>)) {
    return gemm<Complex<double>>(GEMM_ARGUMENTS);
}
