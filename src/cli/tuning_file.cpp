#include "tuning_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/output_file.h"
#include "base/symbolic_link.h"
#include "transfer/tuning.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

/// The lines that give the reason for a figure begin with this. They are ours, and are replaced with the figure.
constexpr std::string_view kReason = "#: ";

std::string lines_of(const std::span<const TunedFigure> figures) {
    std::string text;
    for (const TunedFigure& figure : figures) {
        text += std::string(kReason) + figure.reason + "\n" + figure.name + " = " + figure.value + "\n";
    }
    return text;
}

Error cannot_write(const fs::path& file, const std::string& why) {
    return {file.native() + " cannot be written (" + why + ")", "name another file with -o FILE"};
}

}  // namespace

std::string with_figures(const std::string& text, const std::string& name, const std::string& model,
                         const std::span<const TunedFigure> figures) {
    using Kind = transfer::TuningLine::Kind;
    // Refuses what is wrong before anything is rewritten.
    static_cast<void>(transfer::Tuning::from_text(model, "", text, name, nullptr));
    std::string result;
    std::string reasons;
    bool in_section = false;
    bool inserted = false;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const transfer::TuningLine parsed = transfer::parse_tuning_line(line, name);
        if (in_section && line.starts_with(kReason)) {
            // Keeps the line back until the next one shows which figure it belongs to.
            reasons += line + "\n";
            continue;
        }
        const bool replaced =
            in_section && parsed.kind == Kind::assignment &&
            std::any_of(figures.begin(), figures.end(), [&](const TunedFigure& f) { return f.name == parsed.name; });
        if (!replaced) {
            result += reasons + line + "\n";
        }
        reasons.clear();
        if (parsed.kind == Kind::section) {
            in_section = parsed.name == model;
            if (in_section && !inserted) {
                result += lines_of(figures);
                inserted = true;
            }
        }
    }
    result += reasons;
    if (!inserted) {
        result += (result.empty() ? "" : "\n") + ("[" + model + "]\n") + lines_of(figures);
    }
    return result;
}

std::string read_if_there(const fs::path& file) {
    std::error_code problem;
    const fs::file_status status = fs::status(file, problem);
    // A device or a pipe (AWAKEN_TUNING=/dev/null) has no lines that people wrote.
    const bool without_text = fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
    if (status.type() == fs::file_type::not_found || without_text) {
        return "";
    }
    std::ostringstream text;
    std::ifstream stream(file, std::ios::binary);
    if (fs::is_directory(status) || !stream) {
        const std::string why = fs::is_directory(status) ? "it is a folder" : std::strerror(errno);
        throw Error(file.native() + " cannot be read (" + why + ")", "name another file with -o FILE");
    }
    text << stream.rdbuf();
    return text.str();
}

fs::path place_to_write(const fs::path& file) {
    std::error_code problem;
    const fs::file_status status = fs::status(file, problem);
    if (fs::exists(status) && !fs::is_regular_file(status)) {
        throw cannot_write(file, "it is no ordinary file");
    }
    const fs::path place = behind_symbolic_links(file);
    if (place.has_parent_path()) {
        fs::create_directories(place.parent_path(), problem);
        if (problem) {
            throw cannot_write(file, problem.message());
        }
    }
    const fs::path folder = place.has_parent_path() ? place.parent_path() : fs::path(".");
    if (access(folder.c_str(), W_OK | X_OK) != 0) {
        throw cannot_write(file, std::strerror(errno));
    }
    return place;
}

void write_tuning_file(const fs::path& file, const std::string& text) {
    if (const int reason = replace_file(file.native(), text); reason != 0) {
        throw cannot_write(file, std::strerror(reason));
    }
}

}  // namespace awaken::cli
