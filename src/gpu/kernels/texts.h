// SPDX-License-Identifier: Apache-2.0
// The kernels' texts, embedded in the library, for Runtime::load_kernels.
#pragma once

namespace awaken::gpu::kernels {

extern const char* const pack_source;     ///< pack.h
extern const char* const fill_source;     ///< fill.h
extern const char* const compute_source;  ///< compute.h
extern const char* const copy_source;     ///< copy.h
extern const char* const combine_source;  ///< combine.h
extern const char* const steps_source;    ///< steps.h

}  // namespace awaken::gpu::kernels
