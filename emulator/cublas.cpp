// SPDX-License-Identifier: Apache-2.0
// libcublas.so.12 and .13: what programs call of cuBLAS. The forms with 64-bit sizes are there since version 12.
#include "blas/calls.h"

namespace {

using namespace awaken::emulator;
using namespace awaken::emulator::blas;

using cublasHandle_t = void*;
using cublasStatus_t = int;

/// CUBLAS_VERSION of the release that is emulated: major * 10000 + minor * 100 + patch.
constexpr int kVersion = AWAKEN_CUBLAS_VERSION >= 13 ? 130000 : 120901;

struct Api {
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

#define cublasDestroy cublasDestroy_v2
#define cublasSetStream cublasSetStream_v2
#define cublasGetStream cublasGetStream_v2
#define cublasSgemm cublasSgemm_v2
#define cublasDgemm cublasDgemm_v2
#define cublasCgemm cublasCgemm_v2
#define cublasZgemm cublasZgemm_v2
#define cublasSgemm_64 cublasSgemm_v2_64
#define cublasDgemm_64 cublasDgemm_v2_64
#define cublasCgemm_64 cublasCgemm_v2_64
#define cublasZgemm_64 cublasZgemm_v2_64

#define AWAKEN_CALL(name) cublas##name
#include "blas/blas_calls.h"
#undef AWAKEN_CALL

AWAKEN_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    return number_of<Api>(create(Vendor::cuda, handle));
}
AWAKEN_EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
    if (version == nullptr) {
        return number_of<Api>(Status::invalid_value);
    }
    *version = kVersion;
    return number_of<Api>(Status::success);
}

AWAKEN_EXPORT const char* cublasGetStatusString(cublasStatus_t status) {
    return text_of<Api>(status, "unknown cublasStatus_t");
}

/// Kept, and without effect: there is one way to multiply here.
AWAKEN_EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, int mode) {
    return number_of<Api>(set_math_mode(handle, mode));
}

AWAKEN_EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, int* mode) {
    return number_of<Api>(get_math_mode(handle, mode));
}
