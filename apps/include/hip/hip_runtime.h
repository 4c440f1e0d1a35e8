// Host part of the HIP runtime, for programs without kernels of their own. See hip_runtime_api.h.
#ifndef AWAKEN_APPS_HIP_RUNTIME_H
#define AWAKEN_APPS_HIP_RUNTIME_H

#include "hip/hip_runtime_api.h"

#endif
