// SPDX-License-Identifier: Apache-2.0
// Output. A printer gets each row as soon as it is measured.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/options.h"
#include "engine/result.h"

namespace awaken::bench {

/// What a header needs to know beyond options and test.
struct HeaderFacts {
    ElementType type = ElementType::char_;
    int pairs = 0;
    int window_size = 0;
    int kernels = 0;    ///< of an iteration; halo
    bool first = true;  ///< false for the second and later types of -T
    int ranks = 0;      ///< of init and hello, whose output names it
    /// Whose GPU holds the buffers; what the title names where -d does not say it. none: as -d says.
    Accelerator accelerator = Accelerator::none;
    /// Neighbourhood collectives: the grid of a cartesian topology, and the time that making the topology took,
    /// microseconds, averaged over ranks.
    std::vector<int> dimensions = {};
    double topology_us = 0;
};

class Printer {
  public:
    virtual ~Printer() = default;
    /// Before the rows of each type.
    virtual void header(const HeaderFacts& facts) = 0;
    /// One line; init and hello have one too (of hello, only the ranks of the header are printed).
    virtual void row(const Measurement& measurement) = 0;
    /// -V: bandwidths are printed size by size, as they come, and rates at the end, in a table of their own. An entry
    /// of a row is of one window, in the order of `windows`. For each type, after header(): the head, rows, and all
    /// rows.
    virtual void varied_windows_head(const std::vector<int>& windows) = 0;
    virtual void varied_windows_row(const std::vector<Measurement>& row) = 0;
    virtual void varied_windows_rates(const std::vector<int>& windows,
                                      const std::vector<std::vector<Measurement>>& rows) = 0;
    /// After the last row: ends with OMB's line on stdout when a row had errors.
    virtual void end() = 0;
};

/// Text as printf makes it.
[[nodiscard, gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);

/// The first line of a test's output, "# OSU MPI-CUDA Latency Test v7.5"; without the end of line.
[[nodiscard]] std::string title_line(const TestInfo& test, const Options& options, Accelerator accelerator);

/// The output of the OSU micro-benchmarks, byte for byte: version 7.5, or 7.0 (options.omb_version).
[[nodiscard]] std::unique_ptr<Printer> make_osu_printer(std::FILE* file, const Options& options, const TestInfo& test);

/// The table of a comparison: one line a size, per contender its median with interval, and its ratio to the first;
/// bandwidth, and bus bandwidth for collectives. Contenders that could not run are named with the reason.
[[nodiscard]] std::string comparison_table(const RunResult& result, const Options& options);

/// The table of `first`: one line for each operation, size, allocation and contender, with the first time of a process,
/// the second, and how many times the second the first is. Of each operation and allocation `results` hold the run of
/// the first times, and behind it that of the second.
[[nodiscard]] std::string first_table(const std::vector<RunResult>& results);

/// The whole run as JSON; schema in docs/benchmarks-output.md ("awaken-bench", version 1).
[[nodiscard]] std::string to_json(const std::vector<RunResult>& results, const Options& options,
                                  const Manifest& manifest);

/// The reverse, for merging the runs of external contenders; `manifest` receives that of the file. Throws Error when it
/// is not such a file.
[[nodiscard]] std::vector<RunResult> from_json(const std::string& text, Manifest* manifest = nullptr);

}  // namespace awaken::bench
