/* SPDX-License-Identifier: Apache-2.0 */
/* What a program learns when it asks at compile time whether its MPI takes device memory, as it is with Awaken: yes.
 *
 *     mpicc -include awaken/gpu_aware.h app.c
 *
 * Open MPI answers in mpi-ext.h for the build of Open MPI alone, MPICH has no such macro, and a definition on the
 * command line would meet Open MPI's. So this comes before all else that a file includes, and after mpi-ext.h.
 */
#ifndef AWAKEN_GPU_AWARE_H
#define AWAKEN_GPU_AWARE_H

#ifdef __has_include
#if __has_include(<mpi-ext.h>)
#include <mpi.h>
/* It needs the types of the line above. */
#include <mpi-ext.h>
#endif
#endif

#undef MPIX_CUDA_AWARE_SUPPORT
#undef MPIX_ROCM_AWARE_SUPPORT
#define MPIX_CUDA_AWARE_SUPPORT 1
#define MPIX_ROCM_AWARE_SUPPORT 1

#endif
