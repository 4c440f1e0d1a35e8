// Where a trace's files go, without ever writing over those of another run.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

namespace awaken::trace {

/// Makes the folder and those above it. Throws awaken::Error.
void make_folder(const std::string& path);

/// True when the folder holds files of a trace: trace.json or rank-*.json.
[[nodiscard]] bool holds_trace(const std::string& folder);

/// Takes a folder for a run: `folder` itself (0), made if need be, or, where that holds a trace already or is another
/// run's that has not ended yet (nor been killed, as far as that can be told), the first folder/run-<number> (number
/// from 2) that does not exist yet, which is made. Throws awaken::Error.
[[nodiscard]] int take_folder(const std::string& folder);
/// The run in `folder` has written its files, by which others know that it is taken.
void leave_folder(const std::string& folder) noexcept;
/// The file by which a run holds the folder until it has written its trace. A run that was killed on another host
/// leaves it behind for good.
[[nodiscard]] std::string claim_file(const std::string& folder);
/// Who that is: "process 12 on node7"; empty where nothing tells.
[[nodiscard]] std::string claimed_by(const std::string& folder);
/// The path of the folder of that number.
[[nodiscard]] std::string numbered_folder(const std::string& folder, int number);

/// Writes a file whole or not at all: `write` fills a temporary one in the same folder, which then gets the name. Where
/// a file of that name exists already, the new one gets `-<process>` before its ".json" and the other stays. Returns
/// the path that it got. Throws awaken::Error; nothing is left behind then.
std::string write_file(const std::string& path, const std::function<void(std::FILE* stream)>& write);

}  // namespace awaken::trace
