// Rewriting a tuning file without losing what people wrote into it.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace awaken::cli {

/// A figure that was measured, and why it has that value.
struct TunedFigure {
    std::string name;    ///< "ring_chunk_bytes"
    std::string value;   ///< "1M"
    std::string reason;  ///< one line
};

/// `text` (a tuning file; may be empty) with these figures in the section of `model`: they replace what it said of them
/// before; everything else, comments too, stays as it is. `name` stands for the file in errors.
///
/// Throws Error when the text is not a tuning file.
[[nodiscard]] std::string with_figures(const std::string& text, const std::string& name, const std::string& model,
                                       std::span<const TunedFigure> figures);

/// The file's text; nothing when there is no such file. Throws Error when it cannot be read.
[[nodiscard]] std::string read_if_there(const std::filesystem::path& file);

/// Where the file is really to be written (behind a symbolic link), with the folders above it, which are made where
/// they are missing. Throws Error when it cannot be replaced, as /dev/null cannot.
[[nodiscard]] std::filesystem::path place_to_write(const std::filesystem::path& file);

/// Writes the file, which place_to_write() has named, so that a reader sees the old text or the new one. Throws Error.
void replace_file(const std::filesystem::path& file, const std::string& text);

}  // namespace awaken::cli
