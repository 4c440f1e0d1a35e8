// SPDX-License-Identifier: Apache-2.0
// The kernels of a program, compiled when it runs.
//
// A program keeps its kernels in a file kernels.hip beside it, whose text the build embeds (embed_kernels.cmake), so
// that neither ROCm's nor CUDA's compiler is needed to build, and one executable serves both vendors. The language is
// what HIPRTC and NVRTC share: `extern "C" __global__ void name(...)`, threadIdx, blockIdx, blockDim, gridDim, no
// header. Floating-point operations are not contracted to fused multiply-adds, so results have the same bits
// everywhere.
#pragma once

#include <hip/hip_runtime.h>
#include <hip/hiprtc.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "device.h"

namespace apps {

class Kernels {
  public:
    /// Compiles `source` for this rank's device, which has been selected, and loads it. `name` is for messages. Ends
    /// the job, with the compiler's log, where that fails.
    Kernels(const std::string& name, const char* source) : _name(name) {
        hiprtcProgram program = nullptr;
        require(program, hiprtcCreateProgram(&program, source, (name + ".hip").c_str(), 0, nullptr, nullptr),
                "hiprtcCreateProgram");
        std::array<const char*, 2> options = {"-std=c++17", "-ffp-contract=off"};
        require(program, hiprtcCompileProgram(program, static_cast<int>(options.size()), options.data()),
                "hiprtcCompileProgram");
        std::size_t bytes = 0;
        require(program, hiprtcGetCodeSize(program, &bytes), "hiprtcGetCodeSize");
        std::vector<char> code(bytes);
        require(program, hiprtcGetCode(program, code.data()), "hiprtcGetCode");
        HIP_CHECK(hipModuleLoadData(&_module, code.data()));
        hiprtcDestroyProgram(&program);
    }
    ~Kernels() { (void)hipModuleUnload(_module); }
    Kernels(const Kernels&) = delete;
    Kernels& operator=(const Kernels&) = delete;

    /// Queues a kernel in the stream. The arguments must have exactly the types of the kernel's parameters: nothing can
    /// convert them.
    template <class... Arguments>
    void launch(const std::string& kernel, dim3 grid, dim3 block, hipStream_t stream, Arguments... arguments) {
        std::array<void*, sizeof...(arguments) + 1> parameters = {&arguments..., nullptr};
        HIP_CHECK(hipModuleLaunchKernel(function(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z, 0, stream,
                                        parameters.data(), nullptr));
    }

  private:
    hipFunction_t function(const std::string& kernel) {
        const auto [at, is_new] = _functions.try_emplace(kernel, nullptr);
        if (is_new) {
            const hipError_t error = hipModuleGetFunction(&at->second, _module, kernel.c_str());
            if (error != hipSuccess) {
                fail("there is no kernel " + kernel + ": " + hipGetErrorString(error));
            }
        }
        return at->second;
    }

    void require(hiprtcProgram program, hiprtcResult result, const char* call) const {
        if (result == HIPRTC_SUCCESS) {
            return;
        }
        std::string log;
        std::size_t bytes = 0;
        if (program != nullptr && hiprtcGetProgramLogSize(program, &bytes) == HIPRTC_SUCCESS && bytes > 1) {
            log.resize(bytes);
            if (hiprtcGetProgramLog(program, log.data()) != HIPRTC_SUCCESS) {
                log.clear();
            }
            log = "\n" + std::string(log.c_str());
        }
        fail(std::string(call) + ": " + hiprtcGetErrorString(result) + log);
    }

    [[noreturn]] void fail(const std::string& problem) const {
        std::fprintf(stderr, "rank %d: kernels of %s: %s\n", rank_of_world(), _name.c_str(), problem.c_str());
        end_job();
    }

    std::string _name;
    hipModule_t _module = nullptr;
    std::map<std::string, hipFunction_t> _functions;
};

}  // namespace apps
