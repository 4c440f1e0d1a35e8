// SPDX-License-Identifier: Apache-2.0
// Buffers in device memory that the program attached for buffered sends.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace awaken {

/// Host memory that the MPI gets in the place of an attached buffer, until the program detaches that.
class AttachedBuffers {
  public:
    /// Host memory to attach instead of `given`. Throws std::bad_alloc.
    [[nodiscard]] void* add(void* const given, const std::size_t bytes) {
        auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
        void* const substitute = memory.get();
        const std::scoped_lock lock(_mutex);
        _substitutes.emplace(substitute, Substitute{std::move(memory), given});
        return substitute;
    }
    /// Frees the host memory, and returns the program's buffer for it. Null when the memory is not ours.
    [[nodiscard]] void* remove(const void* const substitute) {
        const std::scoped_lock lock(_mutex);
        const auto found = _substitutes.find(substitute);
        if (found == _substitutes.end()) {
            return nullptr;
        }
        void* const given = found->second.given;
        _substitutes.erase(found);
        return given;
    }

  private:
    struct Substitute {
        std::unique_ptr<std::byte[]> memory;
        void* given;
    };
    std::mutex _mutex;
    std::unordered_map<const void*, Substitute> _substitutes;
};

}  // namespace awaken
