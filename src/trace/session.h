// SPDX-License-Identifier: Apache-2.0
// The trace of this process, from the first event to the file.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

#include "trace/recorder.h"
#include "trace/writer.h"

namespace awaken::trace {

/// There is at most one. It stays until the process is gone, since any thread may have an event to add. When the
/// process exits without MPI_Finalize, the session writes the events that it has.
class Session {
  public:
    /// Begins to trace. A second call does nothing. `folder`: AWAKEN_TRACE.
    static void start(const std::string& folder, std::size_t limit_bytes);
    /// Null while nothing is traced.
    [[nodiscard]] static Session* current() noexcept;

    [[nodiscard]] Recorder& recorder() noexcept { return _recorder; }
    [[nodiscard]] const std::string& folder() const noexcept { return _folder; }
    /// The time at which the trace began.
    [[nodiscard]] std::uint64_t started_ns() const noexcept { return _started_ns; }

    /// Sets this process's rank and the folder of its file, once they are known. A later call may add what was unknown.
    void set_rank(const Rank& rank, const std::string& folder);

    /// Writes the file, once. Returns its path. The path is empty when the file was written before, when there is
    /// nothing to write (a process without a rank and without an event), or when writing fails, which the call reports
    /// on stderr.
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
