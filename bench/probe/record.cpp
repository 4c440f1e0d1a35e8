// SPDX-License-Identifier: Apache-2.0
#include "probe/record.h"

#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace awaken::probe {
namespace {

struct CrashSignal {
    int number;
    const char* name;
};
constexpr std::array kCrashSignals = {CrashSignal{SIGSEGV, "SIGSEGV"}, CrashSignal{SIGBUS, "SIGBUS"},
                                      CrashSignal{SIGABRT, "SIGABRT"}, CrashSignal{SIGFPE, "SIGFPE"},
                                      CrashSignal{SIGILL, "SIGILL"}};

/// The lines of report_crashes(), made beforehand: a signal handler may not make them. In the order of kCrashSignals.
std::array<std::array<char, 96>, kCrashSignals.size()> crash_lines;

void write_all(const char* text, std::size_t length) {
    while (length > 0) {
        const ssize_t written = write(STDOUT_FILENO, text, length);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return;  // nobody listens any more
        }
        text += written;
        length -= static_cast<std::size_t>(written);
    }
}

void on_crash(const int number) {
    for (std::size_t i = 0; i < kCrashSignals.size(); ++i) {
        if (kCrashSignals[i].number == number) {
            write_all(crash_lines[i].data(), std::strlen(crash_lines[i].data()));
        }
    }
    // SA_RESETHAND has put the default back.
    raise(number);
}

}  // namespace

void write_record_text(const std::string& text) {
    const std::string line = "@awaken " + text + "\n";
    write_all(line.data(), line.size());
}

void write_record(const Json& record) {
    write_record_text(record.text());
}

void let_records_be_read() {
    // In a file or a terminal nothing waits to be read.
    const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    int unread = 0;
    while (ioctl(STDOUT_FILENO, FIONREAD, &unread) == 0 && unread > 0 && std::chrono::steady_clock::now() < enough) {
        sched_yield();
    }
}

void report_crashes(const int rank) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    struct sigaction action = {};
    action.sa_handler = on_crash;
    // Without SA_NODEFER the signal raised in the handler would wait until the handler is over.
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    for (std::size_t i = 0; i < kCrashSignals.size(); ++i) {
        std::snprintf(crash_lines[i].data(), crash_lines[i].size(),
                      "\n@awaken {\"record\":\"crash\",\"signal\":\"%s\",\"rank\":%d}\n", kCrashSignals[i].name, rank);
        sigaction(kCrashSignals[i].number, &action, nullptr);
    }
}

}  // namespace awaken::probe
