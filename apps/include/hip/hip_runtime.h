// SPDX-License-Identifier: Apache-2.0
// Host part of the HIP runtime. Kernels are compiled at run time: see hiprtc.h. For the rest, see hip_runtime_api.h.
#ifndef AWAKEN_APPS_HIP_RUNTIME_H
#define AWAKEN_APPS_HIP_RUNTIME_H

#include "hip/hip_runtime_api.h"

#endif
