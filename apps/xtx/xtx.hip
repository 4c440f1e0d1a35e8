// SPDX-License-Identifier: Apache-2.0
// The kernels of the X^T X program: filling X, and numbers of two precisions. All work with any number of threads.

/// Number `index` of a sequence of pseudo-random numbers in [-1, 1): the bits of SplitMix64 (Steele, Lea and Flood,
/// 2014), of which 53 are kept, so that the double is exact. input.h has the same function for the CPU.
__device__ double xtx_random(unsigned long long index) {
    unsigned long long bits = (index + 1) * 0x9E3779B97F4A7C15ull;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    bits = bits ^ (bits >> 31);
    return static_cast<double>(bits >> 11) * (1.0 / 4503599627370496.0) - 1.0;
}

/// X[i] = random number first + i
extern "C" __global__ void xtx_fill_random(double* X, unsigned long long count, unsigned long long first) {
    const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += step) {
        X[i] = xtx_random(first + i);
    }
}

/// X[i] = even or odd, by its index: real and imaginary parts take turns.
extern "C" __global__ void xtx_fill_constant(double* X, unsigned long long count, double even, double odd) {
    const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += step) {
        X[i] = i % 2 == 0 ? even : odd;
    }
}

/// target[i] = source[i], rounded, and 0 from `source_count` on
extern "C" __global__ void xtx_narrow(float* target, unsigned long long count, const double* source,
                                      unsigned long long source_count) {
    const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += step) {
        target[i] = i < source_count ? static_cast<float>(source[i]) : 0.0f;
    }
}

/// Takes a block of `columns` columns of `height` numbers apart: the first `top` numbers of each column go to
/// `diagonal` as they are, the others to `rest` as floats.
extern "C" __global__ void xtx_split(double* diagonal, float* rest, const double* block, unsigned long long height,
                                     unsigned long long top, unsigned long long columns) {
    const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < height * columns; i += step) {
        const unsigned long long row = i % height;
        const unsigned long long column = i / height;
        if (row < top) {
            diagonal[column * top + row] = block[i];
        } else {
            rest[column * (height - top) + row - top] = static_cast<float>(block[i]);
        }
    }
}
