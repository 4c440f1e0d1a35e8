// SPDX-License-Identifier: Apache-2.0
// libhipblas.so.1, .2 and .3: what programs call of hipBLAS, as ROCm 5, 6 and 7 have it. The forms with 64-bit sizes
// are there since hipBLAS 2.3 (ROCm 6.3).
#include "blas/calls.h"

namespace {

using namespace awaken::emulator;
using namespace awaken::emulator::blas;

using hipblasHandle_t = void*;
using hipblasStatus_t = int;

enum : hipblasStatus_t { kHandleIsNullptr = 9 };

struct Api {
    static constexpr std::array statuses{
        StatusName{Status::success, 0, "HIPBLAS_STATUS_SUCCESS"},
        StatusName{Status::not_initialized, 1, "HIPBLAS_STATUS_NOT_INITIALIZED"},
        StatusName{Status::alloc_failed, 2, "HIPBLAS_STATUS_ALLOC_FAILED"},
        StatusName{Status::invalid_value, 3, "HIPBLAS_STATUS_INVALID_VALUE"},
        StatusName{Status::execution_failed, 5, "HIPBLAS_STATUS_EXECUTION_FAILED"},
        StatusName{Status::internal_error, 6, "HIPBLAS_STATUS_INTERNAL_ERROR"},
        StatusName{Status::invalid_enum, 10, "HIPBLAS_STATUS_INVALID_ENUM"},
    };
    static constexpr int first_operation = 111;  // hipblasOperation_t: the numbers of CBLAS
    // hipBLAS translates the operations for rocBLAS before that looks at the handle.
    static constexpr bool asks_for_handle_first = false;
};

}  // namespace

#define AWAKEN_CALL(name) hipblas##name
#include "blas/blas_calls.h"
#undef AWAKEN_CALL

AWAKEN_EXPORT hipblasStatus_t hipblasCreate(hipblasHandle_t* handle) {
    if (handle == nullptr) {
        return kHandleIsNullptr;
    }
    return number_of<Api>(create(Vendor::hip, handle));
}

AWAKEN_EXPORT const char* hipblasStatusToString(hipblasStatus_t status) {
    return status == kHandleIsNullptr ? "HIPBLAS_STATUS_HANDLE_IS_NULLPTR"
                                      : text_of<Api>(status, "HIPBLAS_STATUS_UNKNOWN");
}
