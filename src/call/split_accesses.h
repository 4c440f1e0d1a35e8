// SPDX-License-Identifier: Apache-2.0
// The buffers of split collective file accesses (such as MPI_File_read_all_begin) until they end.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "call/stage.h"

namespace awaken::AWAKEN_ABI {

/// What the MPI got in place of a program's buffer.
struct SplitAccess {
    Stage stage;
    void* address;                             ///< of the staging buffer
    int (*end)(MPI_File, void*, MPI_Status*);  ///< the MPI's second half of the access
    bool refused = false;                      ///< the program asked to end the access, and the MPI did not
};

/// At most one for each file: MPI-4.1, 14.4.5 allows a file handle one split collective at a time.
class SplitAccesses {
  public:
    void keep(const MPI_File file, SplitAccess access) {
        const std::scoped_lock lock(_mutex);
        _accesses.insert_or_assign(file, std::make_shared<SplitAccess>(std::move(access)));
    }
    /// Null if the MPI got the program's own buffer.
    [[nodiscard]] std::shared_ptr<SplitAccess> find(const MPI_File file) const {
        const std::scoped_lock lock(_mutex);
        const auto found = _accesses.find(file);
        return found != _accesses.end() ? found->second : nullptr;
    }
    /// The MPI has ended the access.
    void drop(const MPI_File file) {
        const std::scoped_lock lock(_mutex);
        _accesses.erase(file);
    }

  private:
    mutable std::mutex _mutex;
    std::map<MPI_File, std::shared_ptr<SplitAccess>> _accesses;
};

}  // namespace awaken::AWAKEN_ABI
