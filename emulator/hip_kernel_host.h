// SPDX-License-Identifier: Apache-2.0
// What the words of a HIP kernel mean when the emulated driver runs it on the host: included before each file of
// kernels
// (*.hip) that is compiled into the emulator.
//
// Such a file is an ordinary text for HIPRTC or NVRTC; it need not know of the emulator. The pointers among a kernel's
// parameters are translated before it runs (Caller in kernel_host.h). Pointers that it reads from memory are not, nor
// are pointers in structures. There is no __shared__ and there are no warp intrinsics. Kernels of all files share one
// name space.
#pragma once

#include <math.h>  // the functions of GPU programs are without a name space

#include "kernels/portable.h"

#define __global__ inline
#define __device__ inline
#define __launch_bounds__(...)
#define threadIdx (::awaken::kernels::host::current_thread_index())
#define blockIdx (::awaken::kernels::host::current_block_index())
#define blockDim (::awaken::kernels::host::current_block_size())
#define gridDim (::awaken::kernels::host::current_grid_size())
#define __syncthreads() ::awaken::kernels::host::barrier()
