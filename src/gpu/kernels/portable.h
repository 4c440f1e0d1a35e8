// SPDX-License-Identifier: Apache-2.0
// The things that a kernel may use, so that one text runs on an NVIDIA GPU, on an AMD GPU and on the host.
//
// A kernel is a header in this folder. The library embeds its text, and NVRTC or HIPRTC compiles it at run time. The
// emulated driver (emulator/) contains the same header compiled for the host, and runs it when there is no GPU. This
// contract makes that possible:
//
//   AWAKEN_KERNEL(awaken_fill, device_pointer<u8> target, u64 bytes, u8 value) {
//       for (u64 i = global_thread(); i < bytes; i += total_threads()) target[i] = value;
//   }
//
//  1. A kernel is defined with AWAKEN_KERNEL(name, parameters...) at namespace scope, inside `namespace
//     awaken::kernels`, and found by its bare name. Names start with `awaken_` and are unique over the folder. A kernel
//     returns nothing.
//  2. Parameters are trivially copyable: numbers, device_pointer<T>, and structures of them (at most 4 KiB together).
//     A pointer to memory that the GPU reaches is always device_pointer<T>. On a GPU that is a plain T*, on the host a
//     type that translates on each dereference. A kernel may use `&p[i]` at once but never store it; keep `p + i`
//     instead. Reinterpret with pointer_cast<U>(p), make one from a number with device_pointer<T>(number) and back with
//     address(p).
//  3. Functions that kernels call are marked AWAKEN_DEVICE.
//  4. Thread and block numbers come from the functions below, not from threadIdx and its like. There are no warp
//     intrinsics: the host has no warps.
//  5. All threads of a block that have not returned reach block_barrier(). Otherwise the threads of a block run in any
//     order: between barriers one may run to the end before the next has started.
//  6. A loop that waits for memory to change calls spin_pause() in each iteration, and reads with load_acquire. It may
//     wait for another thread, block, kernel, device or process. Blocks that it waits for must be co-resident, as on a
//     GPU.
//  7. Shared memory: AWAKEN_SHARED(type, name, count), or AWAKEN_DYNAMIC_SHARED(type, name) for the memory that the
//     launch asked for.
//  8. Only headers of this folder are included; no standard header (run-time compilers have none).
//
// The run-time compilers get this text either through their table of headers or pasted before the kernel's own.
#ifndef AWAKEN_SRC_GPU_KERNELS_PORTABLE_H
#define AWAKEN_SRC_GPU_KERNELS_PORTABLE_H

#include "integers.h"

namespace awaken::kernels {

/// 16 bytes that move in one load or store when the address is a multiple of 16.
struct alignas(16) Vector16 {
    u64 low;
    u64 high;
};

/// A thread's or block's position, or the extent of a block or grid.
struct Index3 {
    unsigned x;
    unsigned y;
    unsigned z;
};

}  // namespace awaken::kernels

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__) || defined(__CUDACC__) || defined(__HIPCC__)

#define AWAKEN_KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define AWAKEN_DEVICE __device__ inline
#define AWAKEN_SHARED(type, name, count) __shared__ type name[count]
#define AWAKEN_DYNAMIC_SHARED(type, name)                                  \
    extern __shared__ __align__(16) unsigned char awaken_dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(awaken_dynamic_shared)

namespace awaken::kernels {

template <typename T>
using device_pointer = T*;

template <typename To, typename From>
AWAKEN_DEVICE To* pointer_cast(From* pointer) {
    return (To*)pointer;
}
template <typename T>
AWAKEN_DEVICE u64 address(T* pointer) {
    return (u64)pointer;
}

AWAKEN_DEVICE Index3 thread_index() {
    return {threadIdx.x, threadIdx.y, threadIdx.z};
}
AWAKEN_DEVICE Index3 block_index() {
    return {blockIdx.x, blockIdx.y, blockIdx.z};
}
AWAKEN_DEVICE Index3 block_size() {
    return {(unsigned)blockDim.x, (unsigned)blockDim.y, (unsigned)blockDim.z};
}
AWAKEN_DEVICE Index3 grid_size() {
    return {(unsigned)gridDim.x, (unsigned)gridDim.y, (unsigned)gridDim.z};
}

/// Waits for all threads of the block and orders their memory accesses.
AWAKEN_DEVICE void block_barrier() {
    __syncthreads();
}
/// The same. Afterwards one thread's fence also covers the earlier writes of all threads of the block.
/// NVIDIA's memory model gives that for nothing. On AMD's GPUs a thread's fence need not wait for writes of other waves
/// that are still under way.
AWAKEN_DEVICE void block_barrier_before_fence() {
#if defined(__HIPCC_RTC__) || defined(__HIPCC__)
    __threadfence_system();
#endif
    __syncthreads();
}
/// A waiting loop calls this in each iteration.
AWAKEN_DEVICE void spin_pause() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    __nanosleep(20);
#elif defined(__HIPCC_RTC__) || defined(__HIPCC__)
    __builtin_amdgcn_s_sleep(1);
#endif
}
/// Orders this thread's memory accesses as seen by the other threads of this GPU.
AWAKEN_DEVICE void device_fence() {
    __threadfence();
}
/// All earlier accesses of this thread come before its later ones, as seen by all GPUs and the host.
AWAKEN_DEVICE void system_fence() {
    __threadfence_system();
}

/// Reads a word that another GPU, process or the host writes; later accesses stay later. A load that acquires waits for
/// nothing else, as a fence does.
template <typename T>
AWAKEN_DEVICE T load_acquire(const T* pointer) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    if constexpr (sizeof(T) == 4) {
        u32 value;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
        return (T)value;
    } else if constexpr (sizeof(T) == 8) {
        u64 value;
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(pointer) : "memory");
        return (T)value;
    }
#endif
    const T value = *(const volatile T*)pointer;
    __threadfence_system();
    return value;
}
/// Writes a word that others read, after all earlier accesses of this thread.
template <typename T>
AWAKEN_DEVICE void store_release(T* pointer, T value) {
    __threadfence_system();
    *(volatile T*)pointer = value;
}
/// The same where the fence of an earlier store_release(), or system_fence(), of this thread serves.
template <typename T>
AWAKEN_DEVICE void store_as_well(T* pointer, T value) {
    *(volatile T*)pointer = value;
}
/// Adds atomically as seen by all GPUs and the host. Returns the value before.
template <typename T>
AWAKEN_DEVICE T atomic_add(T* pointer, T value) {
    return atomicAdd_system(pointer, value);
}
/// Writes `desired` if the word equals `expected`, atomically. Returns the value before.
template <typename T>
AWAKEN_DEVICE T compare_exchange(T* pointer, T expected, T desired) {
    return atomicCAS_system(pointer, expected, desired);
}

}  // namespace awaken::kernels

#else
#include "kernel_host.h"  // the emulator's: the same names on the host
#endif

namespace awaken::kernels {

/// This thread's number over the whole (one-dimensional) grid.
AWAKEN_DEVICE u64 global_thread() {
    return (u64)block_index().x * block_size().x + thread_index().x;
}
/// Number of threads in the whole (one-dimensional) grid: the step of a grid-stride loop.
AWAKEN_DEVICE u64 total_threads() {
    return (u64)grid_size().x * block_size().x;
}

}  // namespace awaken::kernels

#endif  // AWAKEN_SRC_GPU_KERNELS_PORTABLE_H
