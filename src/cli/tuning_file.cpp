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
#include "transfer/tuning.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

/// How the lines begin that give the reason for a figure: they are ours, and go with it.
constexpr std::string_view kReason = "#: ";

std::string lines_of(const std::span<const TunedFigure> figures) {
    std::string text;
    for (const TunedFigure& figure : figures)
        text += std::string(kReason) + figure.reason + "\n" + figure.name + " = " + figure.value + "\n";
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
            // Kept back until the next line shows whose reason it is.
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
    if (status.type() == fs::file_type::not_found) {
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

void replace_file(const fs::path& file, const std::string& text) {
    std::error_code problem;
    if (file.has_parent_path()) {
        fs::create_directories(file.parent_path(), problem);
        if (problem) {
            throw cannot_write(file, problem.message());
        }
    }
    fs::path unfinished = file;
    unfinished += "." + std::to_string(getpid());
    std::ofstream stream(unfinished, std::ios::binary);
    stream << text;
    stream.close();
    if (!stream) {
        const std::string why = std::strerror(errno);
        fs::remove(unfinished, problem);
        throw cannot_write(file, why);
    }
    fs::rename(unfinished, file, problem);
    if (problem) {
        const std::string why = problem.message();
        fs::remove(unfinished, problem);
        throw cannot_write(file, why);
    }
}

}  // namespace awaken::cli
