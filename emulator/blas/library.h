// SPDX-License-Identifier: Apache-2.0
// What the emulated cuBLAS and hipBLAS have in common: handles, and products that are queued in a stream.
#pragma once

#include <cstdint>

#include "blas/multiply.h"
#include "front_end.h"

namespace awaken::emulator::blas {

/// How a call ends, by the names that both vendors use; each has its own numbers.
enum class Status : std::uint8_t {
    success,
    not_initialized,   ///< no such handle, or no GPU
    alloc_failed,      ///< out of host memory
    invalid_value,     ///< a size, a leading dimension, a null pointer
    invalid_enum,      ///< an operation that there is not
    execution_failed,  ///< the work could not be given to the GPU
    internal_error
};

/// Makes a handle of the calling thread's device, with its default stream.
[[nodiscard]] Status create(Vendor vendor, void** handle) noexcept;
/// Waits for the device first, as the real libraries do.
[[nodiscard]] Status destroy(void* handle) noexcept;
[[nodiscard]] Status set_stream(void* handle, void* stream) noexcept;
[[nodiscard]] Status get_stream(void* handle, void** stream) noexcept;
[[nodiscard]] Status set_math_mode(void* handle, int mode) noexcept;
[[nodiscard]] Status get_math_mode(void* handle, int* mode) noexcept;
[[nodiscard]] bool is_handle(const void* handle) noexcept;

/// The arguments of a GEMM as a program passes them; alpha and beta lie in host memory and are read by the call.
template <typename Value>
struct Arguments {
    Transpose a_form, b_form;
    std::int64_t m, n, k;
    const Value* alpha;
    const Value* a;
    std::int64_t leading_a;
    const Value* b;
    std::int64_t leading_b;
    const Value* beta;
    Value* c;
    std::int64_t leading_c;
};

/// Queues the product in the handle's stream and returns. Memory that the device cannot reach is found out here
/// (execution_failed); on real hardware the kernel would fault, and take the context with it.
template <typename Value>
[[nodiscard]] Status gemm(void* handle, const Arguments<Value>& arguments) noexcept;

extern template Status gemm(void*, const Arguments<float>&) noexcept;
extern template Status gemm(void*, const Arguments<double>&) noexcept;
extern template Status gemm(void*, const Arguments<Complex<float>>&) noexcept;
extern template Status gemm(void*, const Arguments<Complex<double>>&) noexcept;

}  // namespace awaken::emulator::blas
