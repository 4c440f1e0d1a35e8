// Buffers of buffered sends that the program has in device memory.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace awaken {

/// Host memory that the MPI has in the place of what the program attached, until that is detached.
class AttachedBuffers {
  public:
    /// Memory to be attached instead of `given`. Throws std::bad_alloc.
    [[nodiscard]] void* add(void* const given, const std::size_t bytes) {
        auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
        void* const substitute = memory.get();
        const std::scoped_lock lock(_mutex);
        _substitutes.emplace(substitute, Substitute{std::move(memory), given});
        return substitute;
    }
    /// Frees it again, and says what it was for; null when it is none of ours.
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
