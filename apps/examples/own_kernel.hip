// SPDX-License-Identifier: Apache-2.0
// The kernels of own_kernel.cpp.

/// buffer[i] = first + i
extern "C" __global__ void own_kernel_count(int* buffer, int count, int first) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        buffer[i] = first + i;
    }
}

/// target[i] = 2 * source[i]
extern "C" __global__ void own_kernel_double(int* target, const int* source, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        target[i] = 2 * source[i];
    }
}
