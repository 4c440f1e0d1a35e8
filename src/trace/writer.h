// A rank's events as a file in Chrome's trace format, which Perfetto and chrome://tracing show, and the files of all
// ranks as one.
//
// The files are JSON, with one event to a line, so that they can be read and joined line by line; docs/trace.md says
// what is in them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "trace/clocks.h"
#include "trace/recorder.h"

namespace awaken::trace {

/// Whose events they are.
struct Rank {
    int rank = -1;  ///< -1: a process without MPI_COMM_WORLD
    int ranks = 0;
    int process = 0;
    std::string host;
    std::string mpi;  ///< first line of MPI_Get_library_version
    Alignment alignment;
    std::int64_t origin_ns = 0;  ///< of rank 0's clock: times are counted from it
    bool complete = false;       ///< MPI_Finalize was reached
};

/// Writes what the recorder holds. What is not over by `now_ns` ends there, and says so.
void write_events(std::FILE* stream, const Rank& rank, const Recorder& recorder, std::uint64_t now_ns);

/// The file's name in its folder.
[[nodiscard]] std::string file_name(const Rank& rank);

/// Writes rank-0.json to rank-<ranks - 1>.json of the folder to `stream` as one trace. Throws awaken::Error when one is
/// missing or is not a whole trace of a rank.
void merge(std::FILE* stream, const std::string& folder, int ranks);

}  // namespace awaken::trace
