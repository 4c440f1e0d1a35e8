// SPDX-License-Identifier: Apache-2.0
// What a run that takes long shows meanwhile.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

namespace awaken::bench {

/// One line on a terminal's stderr that is rewritten and at last removed. Elsewhere nothing.
class Progress {
  public:
    Progress(const bool wanted, std::string test) : _on(wanted && isatty(STDERR_FILENO) == 1), _test(std::move(test)) {}
    ~Progress() { clear(); }
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void show(const std::string& what) {
        if (_on) {
            std::fprintf(stderr, "\r\033[K%s: %s", _test.c_str(), what.c_str());
            std::fflush(stderr);
            _shown = true;
        }
    }
    void clear() {
        if (_shown) {
            std::fprintf(stderr, "\r\033[K");
            std::fflush(stderr);
            _shown = false;
        }
    }

  private:
    const bool _on;
    const std::string _test;
    bool _shown = false;
};

}  // namespace awaken::bench
