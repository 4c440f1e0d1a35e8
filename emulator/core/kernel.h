// SPDX-License-Identifier: Apache-2.0
// Modules, functions and the run of a kernel on the host.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/stream.h"
#include "kernels/portable.h"

namespace awaken::emulator {

struct Context;

struct Module {
    Context* context = nullptr;
    std::vector<std::string> kernels;
};

struct Function {
    Context* context = nullptr;
    const void* module = nullptr;
    kernels::host::Kernel kernel;
};

struct Launch {
    kernels::Index3 grid{1, 1, 1};
    kernels::Index3 block{1, 1, 1};
    std::size_t shared_bytes = 0;
};

/// The registered kernel of that name; null when the emulator was not built with it.
[[nodiscard]] const kernels::host::Kernel* find_kernel(std::string_view name);

/// Runs all threads of a launch on the calling host thread. `arguments` point at the parameters' values.
void run_kernel(const kernels::host::Kernel& kernel, const Launch& launch, void** arguments);

/// The kernels that a source text defines, by AWAKEN_KERNEL(name or extern "C" __global__ void name(.
[[nodiscard]] std::vector<std::string> kernels_defined_in(std::string_view source);
/// What a run-time compiler hands out for these kernels, and the way back; false when it is no such image.
[[nodiscard]] std::string make_image(const std::vector<std::string>& kernels);
[[nodiscard]] bool read_image(const void* image, std::vector<std::string>& kernels);

}  // namespace awaken::emulator
