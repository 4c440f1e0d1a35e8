// SPDX-License-Identifier: Apache-2.0
#include "trace/session.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "trace/folder.h"

namespace awaken::trace {

namespace {

std::atomic<Session*> the_session{nullptr};
std::once_flag started;

/// The absolute path, since the program may go to another folder before the trace is written.
std::string absolute(const std::string& path) {
    if (path.starts_with('/')) {
        return path;
    }
    const std::unique_ptr<char, void (*)(void*)> here(getcwd(nullptr, 0), std::free);  // NOLINT: glibc allocates
    return here != nullptr ? here.get() + ("/" + path) : path;
}

}  // namespace

Session::Session(const std::string& folder, const std::size_t limit_bytes)
    : _folder(absolute(folder)),
      _started_ns(now_ns()),
      _process(getpid()),
      _recorder(limit_bytes),
      _run_folder(_folder) {
    _rank.process = _process;
    _rank.origin_ns = static_cast<std::int64_t>(_started_ns);
    char host[256] = {};
    _rank.host = gethostname(host, sizeof host - 1) == 0 ? host : "unknown";
}

void Session::start(const std::string& folder, const std::size_t limit_bytes) {
    std::call_once(started, [&] {
        auto* const session = new Session(folder, limit_bytes);
        the_session.store(session, std::memory_order_release);
        current_sink.store(&session->_recorder, std::memory_order_release);
        std::atexit([] { static_cast<void>(current()->write(false)); });
    });
}

Session* Session::current() noexcept {
    return the_session.load(std::memory_order_acquire);
}

void Session::set_rank(const Rank& rank, const std::string& folder) {
    const std::scoped_lock lock(_mutex);
    const std::string host = std::move(_rank.host);
    _rank = rank;
    _rank.host = host;
    _rank.process = _process;
    _run_folder = folder;
}

std::string Session::write(const bool complete) noexcept {
    // A child of fork() has the parent's events, but they are not its own.
    if (getpid() != _process) {
        return {};
    }
    try {
        const std::scoped_lock lock(_mutex);
        if (_written || (_rank.rank < 0 && _recorder.kept() == 0)) {
            return {};
        }
        _written = true;
        _rank.complete = complete;
        make_folder(_run_folder);
        const std::string wanted = _run_folder + "/" + file_name(_rank);
        const std::string given =
            write_file(wanted, [this](std::FILE* const stream) { write_events(stream, _rank, _recorder, now_ns()); });
        if (given != wanted) {
            fprintf(stderr, "awaken: %s exists already and is kept: this trace is %s\n", wanted.c_str(), given.c_str());
        }
        if (const std::uint64_t dropped = _recorder.dropped(); dropped > 0) {
            fprintf(stderr,
                    "awaken: the trace of %s lacks %llu events, the last ones: raise AWAKEN_TRACE_LIMIT to keep more\n",
                    file_name(_rank).c_str(), static_cast<unsigned long long>(dropped));
        }
        if (!complete) {
            fprintf(stderr, "awaken: MPI_Finalize was not reached: the trace up to here is %s\n", given.c_str());
        }
        return given;
    } catch (const std::exception& error) {
        fprintf(stderr, "awaken: %s\n", printable(error.what()).c_str());
        return {};
    }
}

}  // namespace awaken::trace
