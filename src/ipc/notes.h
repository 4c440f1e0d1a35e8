// SPDX-License-Identifier: Apache-2.0
// Reasons why messages did not go the fastest way. Each is told once.
#pragma once

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace awaken::ipc {

/// Thread-safe.
class Notes {
  public:
    using Note = std::function<void(const std::string& reason)>;
    explicit Notes(Note note) : _note(std::move(note)) {}

    void once(const std::string& reason) {
        {
            const std::scoped_lock lock(_mutex);
            if (std::find(_noted.begin(), _noted.end(), reason) != _noted.end()) {
                return;
            }
            _noted.push_back(reason);
        }
        _note(reason);
    }

  private:
    const Note _note;
    std::mutex _mutex;
    std::vector<std::string> _noted;
};

}  // namespace awaken::ipc
