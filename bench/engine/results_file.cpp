#include "engine/results_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/error.h"
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
    const std::string written = _replaced ? _path + ".part" : _path;
    errno = 0;
    std::ofstream file(written, std::ios::binary | std::ios::trunc);
    file << text;
    file.close();
    if (file && (!_replaced || std::rename(written.c_str(), _path.c_str()) == 0)) {
        return;
    }
    const int reason = errno;
    if (_replaced) {
        std::remove(written.c_str());
    }
    throw cannot_write(_name, reason);
}

}  // namespace awaken::bench
