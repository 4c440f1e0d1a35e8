// Rewrites a tuning file without losing the lines that people wrote into it.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace awaken::cli {

/// A measured figure, and why it has that value.
struct TunedFigure {
    std::string name;    ///< "ring_chunk_bytes"
    std::string value;   ///< "1M"
    std::string reason;  ///< one line
};

/// `text` (a tuning file; may be empty) with these figures in the section of `model`. They replace the section's
/// earlier values of these figures. Everything else, comments too, stays as it is. `name` stands for the file in
/// errors.
///
/// Throws Error when the text is not a tuning file.
[[nodiscard]] std::string with_figures(const std::string& text, const std::string& name, const std::string& model,
                                       std::span<const TunedFigure> figures);

/// The file's text. Empty when there is no such file. Throws Error when it cannot be read.
[[nodiscard]] std::string read_if_there(const std::filesystem::path& file);

/// The real path to write to (behind a symbolic link). Makes missing folders above it. Throws Error when the file
/// cannot be replaced, as /dev/null cannot.
[[nodiscard]] std::filesystem::path place_to_write(const std::filesystem::path& file);

/// Writes the file that place_to_write() has named, so that a reader sees the old text or the new one. Throws Error.
void write_tuning_file(const std::filesystem::path& file, const std::string& text);

}  // namespace awaken::cli
