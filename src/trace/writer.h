// SPDX-License-Identifier: Apache-2.0
// Writes a rank's events as a file in Chrome's trace format, which Perfetto and chrome://tracing show, and joins the
// files of all ranks into one.
//
// The files are JSON with one event a line, so that a reader can read and join them line by line. docs/trace.md
// describes their contents.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "trace/clocks.h"
#include "trace/recorder.h"

namespace awaken::trace {

/// The rank that the events belong to.
struct Rank {
    int rank = -1;  ///< -1: a process without MPI_COMM_WORLD
    int ranks = 0;
    int process = 0;
    std::string host;
    std::string mpi;  ///< first line of MPI_Get_library_version
    Alignment alignment;
    std::int64_t origin_ns = 0;  ///< of rank 0's clock: the file counts times from here
    bool complete = false;       ///< MPI_Finalize was reached
};

/// Writes the recorder's events. An event that is not over by `now_ns` ends there, and says so.
void write_events(std::FILE* stream, const Rank& rank, const Recorder& recorder, std::uint64_t now_ns);

/// The file's name in its folder.
[[nodiscard]] std::string file_name(const Rank& rank);

/// Writes rank-0.json to rank-<ranks - 1>.json of the folder to `stream` as one trace. Throws awaken::Error when one is
/// missing or is not a whole trace of a rank.
void merge(std::FILE* stream, const std::string& folder, int ranks);

}  // namespace awaken::trace
