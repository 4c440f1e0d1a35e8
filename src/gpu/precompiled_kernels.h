// SPDX-License-Identifier: Apache-2.0
// Kernels that were compiled when Awaken was built (compile_kernels.py), so that no GPU waits for a compiler. They lie
// in a file beside the library, which this maps into memory when the first kernel is loaded.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace awaken::gpu {

/// How well code for `target` suits a GPU of the architecture `machine`: 0 not at all, else more is better.
///
/// Machine code for sm_80 runs on GPUs of the same major version from that minor version on, such as sm_86 (CUDA C++
/// Programming Guide, "Binary Compatibility"). The driver translates PTX for compute_70 for any GPU from sm_70 on.
/// AMD's code for gfx90a runs whatever features the GPU has switched on ("gfx90a:sramecc+:xnack-").
[[nodiscard]] int suitability(std::string_view target, std::string_view machine) noexcept;

class PrecompiledKernels {
  public:
    /// Reads the file's index. A file that is absent or damaged holds nothing.
    explicit PrecompiledKernels(const std::string& path);

    /// The code that the text of a kernel gives under the vendor's `options`, for each target that suits `machine`,
    /// best first. A driver may refuse one: it may be older than the compiler was, or the GPU a relative that is not
    /// quite the same (Tegra).
    [[nodiscard]] std::vector<std::string> code_for(std::string_view source, std::span<const std::string_view> options,
                                                    std::string_view machine) const;

    /// "sm_90", "compute_70", "gfx90a": what there is code for, each once.
    [[nodiscard]] std::vector<std::string_view> targets() const;
    /// Of these, what a GPU of this architecture gets first; empty when there is none.
    [[nodiscard]] std::string_view target_for(std::string_view machine) const;

  private:
    struct Entry {
        std::string_view target;
        std::string_view key;  ///< KernelCache::key() of the text and the options
        std::string_view code;
    };
    std::vector<Entry> _entries;
};

/// Those of this installation.
[[nodiscard]] const PrecompiledKernels& precompiled_kernels();

}  // namespace awaken::gpu
