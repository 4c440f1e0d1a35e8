// SPDX-License-Identifier: Apache-2.0
// Chooses the place of a trace's files, and never writes over those of another run.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

namespace awaken::trace {

/// Makes the folder and those above it. Throws awaken::Error.
void make_folder(const std::string& path);

/// True when the folder holds files of a trace: trace.json or rank-*.json.
[[nodiscard]] bool holds_trace(const std::string& folder);

/// Takes a folder for a run. This is `folder` itself (returns 0), which the call makes if need be. But `folder` may
/// already hold a trace, or belong to another run that has not ended yet (nor been killed, as far as the call can
/// tell). Then the call makes the first folder/run-<number> (number from 2) that does not exist yet. Throws
/// awaken::Error.
[[nodiscard]] int take_folder(const std::string& folder);
/// The run in `folder` has written its files. From now on these files show others that the folder is taken.
void leave_folder(const std::string& folder) noexcept;
/// The file by which a run holds the folder until it has written its trace. A run that was killed on another host
/// leaves this file behind for good.
[[nodiscard]] std::string claim_file(const std::string& folder);
/// The process that holds the folder: "process 12 on node7". Empty where nothing names it.
[[nodiscard]] std::string claimed_by(const std::string& folder);
/// The path of the folder of that number.
[[nodiscard]] std::string numbered_folder(const std::string& folder, int number);

/// Writes a file whole or not at all. `write` fills a temporary file in the same folder, which then gets the name. If a
/// file of that name exists already, it stays, and the new one gets `-<process>` before its ".json". Returns the path
/// of the new file. Throws awaken::Error, and then leaves nothing behind.
std::string write_file(const std::string& path, const std::function<void(std::FILE* stream)>& write);

}  // namespace awaken::trace
