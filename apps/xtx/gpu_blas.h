// SPDX-License-Identifier: Apache-2.0
// The matrix product of the GPU vendor's BLAS: cuBLAS on NVIDIA, hipBLAS on AMD.
//
// Both have the same calls (https://docs.nvidia.com/cuda/cublas, https://rocm.docs.amd.com/projects/hipBLAS) under
// other names and with other enumerators. The library is opened when the program runs, in the release that goes with
// the GPU runtime in use.
#pragma once

#include <string>

#include "machine.h"

namespace xtx {

/// The functions of the library; gpu_blas.cpp.
struct GpuBlasFunctions;

class GpuBlas {
  public:
    /// Opens the library. Where that fails, problem() tells why.
    GpuBlas();
    ~GpuBlas();
    GpuBlas(const GpuBlas&) = delete;
    GpuBlas& operator=(const GpuBlas&) = delete;

    [[nodiscard]] const std::string& problem() const { return _problem; }
    /// "cuBLAS 12.9.1 (libcublas.so.12)".
    [[nodiscard]] const std::string& name() const { return _name; }
    /// Whether sizes may exceed 2^31 - 1: since CUDA 12 and ROCm 6.3.
    [[nodiscard]] bool takes_large_sizes() const;

    /// Makes the handle of the present device, whose products go into the stream. Ends the job with a message where
    /// that fails.
    void connect(hipStream_t stream);
    /// Queues the product. Ends the job with a message where the library refuses it.
    void multiply(const Product& product) const;

  private:
    void require(int status, const char* call) const;

    const GpuBlasFunctions* _functions = nullptr;
    void* _handle = nullptr;
    std::string _name;
    std::string _problem;
};

}  // namespace xtx
