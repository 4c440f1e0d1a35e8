// SPDX-License-Identifier: Apache-2.0
// The file of --json. It is replaced as a whole, so that it is valid whenever somebody looks and whatever becomes of
// the run; a pipe or a device is written into instead, for in its place there must be no file.
#pragma once

#include <string>

namespace awaken::bench {

class ResultsFile {
  public:
    /// Throws Error when `path` is a folder.
    explicit ResultsFile(const std::string& path);

    /// False for what takes one text only: a pipe, a device.
    [[nodiscard]] bool is_replaced() const noexcept { return _replaced; }

    /// Throws Error when it cannot be written; nothing is left behind then.
    void write(const std::string& text) const;

  private:
    std::string _name;  ///< as it was given
    std::string _path;  ///< where its symbolic link leads
    bool _replaced = true;
};

}  // namespace awaken::bench
