// The buffers of split collective file accesses (MPI_File_read_all_begin and its relatives) until they are ended.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "call/stage.h"

namespace awaken::AWAKEN_ABI {

/// What was given to the MPI in the place of a program's buffer.
struct SplitAccess {
    Stage stage;
    void* address;                             ///< of the image
    int (*end)(MPI_File, void*, MPI_Status*);  ///< the MPI's second half of the access
};

/// One for each file at most: MPI-4.1, 14.4.5 allows a file handle one split collective at a time.
class SplitAccesses {
  public:
    void keep(const MPI_File file, SplitAccess access) {
        const std::scoped_lock lock(_mutex);
        _accesses.insert_or_assign(file, std::move(access));
    }
    /// Nothing where the program's own buffer was handed on.
    [[nodiscard]] std::optional<SplitAccess> take(const MPI_File file) {
        const std::scoped_lock lock(_mutex);
        const auto found = _accesses.find(file);
        if (found == _accesses.end()) {
            return std::nullopt;
        }
        SplitAccess access = std::move(found->second);
        _accesses.erase(found);
        return access;
    }

  private:
    std::mutex _mutex;
    std::map<MPI_File, SplitAccess> _accesses;
};

}  // namespace awaken::AWAKEN_ABI
