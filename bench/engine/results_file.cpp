// SPDX-License-Identifier: Apache-2.0
#include "engine/results_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/error.h"
#include "base/output_file.h"
#include "base/symbolic_link.h"

namespace awaken::bench {
namespace fs = std::filesystem;
namespace {

Error cannot_write(const std::string& name, const int reason) {
    return {"cannot write " + name + " (" + std::strerror(reason) + ")",
            "give --json a file in a folder that may be written to"};
}

}  // namespace

ResultsFile::ResultsFile(const std::string& path) : _name(path), _path(path) {
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    if (fs::is_directory(status)) {
        throw cannot_write(path, EISDIR);
    }
    _replaced = !fs::exists(status) || fs::is_regular_file(status);
    if (_replaced) {
        _path = behind_symbolic_links(path).native();
    }
}

void ResultsFile::write(const std::string& text) const {
    int reason = 0;
    if (_replaced) {
        reason = replace_file(_path, text);
    } else {
        errno = 0;
        std::ofstream file(_path, std::ios::binary | std::ios::trunc);
        file << text;
        file.close();
        reason = file ? 0 : errno;
    }
    if (reason != 0) {
        throw cannot_write(_name, reason);
    }
}

}  // namespace awaken::bench
