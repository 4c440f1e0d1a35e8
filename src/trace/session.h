// The trace of this process, from the first event to the file.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

#include "trace/recorder.h"
#include "trace/writer.h"

namespace awaken::trace {

/// There is one at most. It stays until the process is gone, since any thread may have an event to add. When the
/// process exits without MPI_Finalize, it writes what there is.
class Session {
  public:
    /// Begins to trace; nothing happens when that was done before. `folder`: AWAKEN_TRACE.
    static void start(const std::string& folder, std::size_t limit_bytes);
    /// Null while nothing is traced.
    [[nodiscard]] static Session* current() noexcept;

    [[nodiscard]] Recorder& recorder() noexcept { return _recorder; }
    [[nodiscard]] const std::string& folder() const noexcept { return _folder; }
    /// When it began.
    [[nodiscard]] std::uint64_t started_ns() const noexcept { return _started_ns; }

    /// Who this process is, and where its file goes, once it is known. May be said again, when more is known.
    void set_rank(const Rank& rank, const std::string& folder);

    /// Writes the file, once. Returns its path; empty when it was written before, when there is nothing to write (a
    /// process that has no rank and no event), or when it cannot be, which is said on stderr.
    std::string write(bool complete) noexcept;

  private:
    Session(const std::string& folder, std::size_t limit_bytes);

    const std::string _folder;
    const std::uint64_t _started_ns;
    const int _process;
    Recorder _recorder;
    std::mutex _mutex;
    Rank _rank;
    std::string _run_folder;
    bool _written = false;
};

}  // namespace awaken::trace
