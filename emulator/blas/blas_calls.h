// SPDX-License-Identifier: Apache-2.0
// Calls that cuBLAS and hipBLAS name alike, from the vendor's beginning (AWAKEN_CALL) on. cuBLAS adds a version to
// them: cublas.cpp has a table. Included once by each of their .cpp files, after it has said what differs (Api).
#pragma once

#include "blas/calls.h"

AWAKEN_EXPORT int AWAKEN_CALL(Destroy)(void* handle) {
    return number_of<Api>(destroy(handle));
}
AWAKEN_EXPORT int AWAKEN_CALL(SetStream)(void* handle, void* stream) {
    return number_of<Api>(set_stream(handle, stream));
}
AWAKEN_EXPORT int AWAKEN_CALL(GetStream)(void* handle, void** stream) {
    return number_of<Api>(get_stream(handle, stream));
}

AWAKEN_EXPORT_GEMM(AWAKEN_CALL(Sgemm), int, float)
AWAKEN_EXPORT_GEMM(AWAKEN_CALL(Dgemm), int, double)
AWAKEN_EXPORT_GEMM(AWAKEN_CALL(Cgemm), int, Complex<float>)
AWAKEN_EXPORT_GEMM(AWAKEN_CALL(Zgemm), int, Complex<double>)
AWAKEN_EXPORT_GEMM(AWAKEN_CALL(Sgemm_64), std::int64_t, float)
AWAKEN_EXPORT_GEMM(AWAKEN_CALL(Dgemm_64), std::int64_t, double)
AWAKEN_EXPORT_GEMM(AWAKEN_CALL(Cgemm_64), std::int64_t, Complex<float>)
AWAKEN_EXPORT_GEMM(AWAKEN_CALL(Zgemm_64), std::int64_t, Complex<double>)
