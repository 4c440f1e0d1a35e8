// SPDX-License-Identifier: Apache-2.0
// Where the code of kernels comes from: it was compiled with Awaken, or lies in the user's cache, or is compiled now.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "gpu/gpu.h"
#include "gpu/runtime_compiler.h"

namespace awaken::gpu {

/// Thread-safe.
class KernelLoader {
  public:
    /// How a vendor's kernels are compiled.
    struct Rules {
        std::unique_ptr<RuntimeCompiler> (*make_compiler)(std::string& why_not);
        std::span<const std::string_view> options;
        const char* create;  ///< the compiler's functions, for errors
        const char* compile;
    };
    /// One kind of code for a GPU.
    struct Attempt {
        RuntimeCompiler::Output output;
        std::string option;  ///< which names the architecture
    };
    /// Loads code into a device.
    using Load = std::function<Status(const std::string& code)>;

    explicit KernelLoader(const Rules& rules) : _rules(rules) {}

    /// Loads the kernels of a text: the best code that `load` takes. Gives up where that says kBusy. For the other
    /// parameters see Runtime::load_kernels().
    Status load(const char* name, const char* source, const std::string& machine, std::span<const Attempt> attempts,
                const Load& load, std::string& log);

  private:
    [[nodiscard]] const RuntimeCompiler* compiler(std::string& why_not);

    const Rules _rules;
    std::mutex _mutex;
    std::unique_ptr<RuntimeCompiler> _compiler;
    const KernelCache _cache;
};

}  // namespace awaken::gpu
