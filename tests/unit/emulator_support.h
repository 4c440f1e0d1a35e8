// SPDX-License-Identifier: Apache-2.0
// What the tests of the emulated driver share: opening its libraries as a program does, and running a scenario in a
// process of its own, with its own environment.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace awaken::emulator_test {

/// One of the emulated libraries.
class Library {
  public:
    explicit Library(const char* file) {
        const std::string path = std::string(AWAKEN_EMULATOR_DIRECTORY) + "/" + file;
        _handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!_handle) {
            std::fprintf(stderr, "%s\n", dlerror());
            std::abort();
        }
    }
    /// The function of that name; the test program ends when there is none.
    template <typename Function>
    void bind(Function*& function, const char* name) const {
        function = reinterpret_cast<Function*>(dlsym(_handle, name));
        if (!function) {
            std::fprintf(stderr, "%s\n", dlerror());
            std::abort();
        }
    }
    [[nodiscard]] bool has(const char* name) const { return dlsym(_handle, name) != nullptr; }

  private:
    void* _handle = nullptr;
};

/// A place for a stream to stop until the test lets it go on.
struct Gate {
    std::atomic<bool> open{false};
    static void wait(void* gate) {
        while (!static_cast<Gate*>(gate)->open.load()) {
            std::this_thread::yield();
        }
    }
};

/// Threads of this process in a call that waits for all work of a context or device, or that opens memory of another
/// process, and threads that such a call holds up.
struct Waiting {
    unsigned inside = 0, held_up = 0;
};
[[nodiscard]] inline Waiting waiting_threads() {
    static void (*const read)(unsigned*, unsigned*) = [] {
        void (*found)(unsigned*, unsigned*) = nullptr;
        Library("libawaken-emulator.so").bind(found, "awaken_emulator_waiting");
        return found;
    }();
    Waiting now;
    read(&now.inside, &now.held_up);
    return now;
}

/// A call on a thread of its own.
class BackgroundCall {
  public:
    explicit BackgroundCall(const std::function<int()>& call)
        : _thread([this, call] {
              _result = call();
              _returned = true;
          }) {}
    ~BackgroundCall() { _thread.join(); }
    BackgroundCall(const BackgroundCall&) = delete;
    BackgroundCall& operator=(const BackgroundCall&) = delete;
    [[nodiscard]] bool returned() const { return _returned; }
    /// What it returned, once it has.
    [[nodiscard]] int result() const {
        while (!_returned) {
            std::this_thread::yield();
        }
        return _result;
    }

  private:
    std::atomic<bool> _returned{false};
    std::atomic<int> _result{0};
    std::thread _thread;
};

/// Whether the call, which runs while a stream is behind a gate, comes to wait for all work rather than to return.
[[nodiscard]] inline bool waits_for_all_work(const BackgroundCall& call) {
    while (waiting_threads().inside == 0 && !call.returned()) {
        std::this_thread::yield();
    }
    return !call.returned();
}

/// How often this process has mapped memory of another one, and unmapped it.
struct Mappings {
    std::uint64_t opened = 0, closed = 0;
};
[[nodiscard]] inline Mappings mappings() {
    void (*read)(std::uint64_t*, std::uint64_t*) = nullptr;
    Library("libawaken-emulator.so").bind(read, "awaken_emulator_mappings");
    Mappings now;
    read(&now.opened, &now.closed);
    return now;
}

/// Whether `other` succeeds, but not while `open` is under way. Opens and closes until that was seen to be under way.
[[nodiscard]] inline bool waits_for_opening(const std::function<int()>& other, const std::function<int()>& open,
                                            const std::function<int()>& close) {
    for (bool seen = false; !seen;) {
        const BackgroundCall opening(open);
        while (waiting_threads().inside == 0 && !opening.returned()) {
            std::this_thread::yield();
        }
        seen = !opening.returned();
        const bool succeeded = other() == 0;
        const bool over = waiting_threads().inside == 0;
        if (opening.result() != 0 || close() != 0 || !succeeded || !over) {
            return false;
        }
    }
    return true;
}

/// Values of AWAKEN_TEST_IPC_OPEN_US that let the opening of 1 MiB take long enough to be seen: by either part of it.
constexpr const char* kSlowOpenings[] = {"50000", "0+51200000"};

using Environment = std::vector<std::pair<std::string, std::string>>;

/// What became of a scenario's process.
struct Outcome {
    int status = 0;      ///< as waitpid reports it
    std::string output;  ///< stdout and stderr
    [[nodiscard]] bool succeeded() const;
    [[nodiscard]] bool ended_by(int signal) const;
};

/// Runs this program again, as a process that executes the scenario only.
[[nodiscard]] Outcome run_scenario(const std::string& name, const Environment& environment,
                                   const std::vector<std::string>& arguments = {});

/// A scenario's function: its arguments in, its exit status out.
using Scenario = int (*)(const std::vector<std::string>& arguments);

struct ScenarioRegistration {
    ScenarioRegistration(const char* name, Scenario scenario);
};

/// Bytes as hexadecimal text, to hand a handle to a scenario.
[[nodiscard]] std::string to_text(const void* bytes, std::size_t count);
void from_text(const std::string& text, void* bytes, std::size_t count);

}  // namespace awaken::emulator_test

/// SCENARIO(name) { ... return 0; }
#define SCENARIO(name)                                                                               \
    static int name(const std::vector<std::string>& arguments);                                      \
    static const ::awaken::emulator_test::ScenarioRegistration registration_of_##name(#name, &name); \
    static int name([[maybe_unused]] const std::vector<std::string>& arguments)

/// In a scenario: ends it with status 1 and a message unless the two are equal.
#define REQUIRE_EQUAL(actual, expected)                                                                            \
    do {                                                                                                           \
        const auto actual_value = (actual);                                                                        \
        const decltype(actual_value) expected_value = (expected);                                                  \
        if (actual_value != expected_value) {                                                                      \
            std::fprintf(stderr, "line %d: %s is %lld, not %s (%lld)\n", __LINE__, #actual,                        \
                         static_cast<long long>(actual_value), #expected, static_cast<long long>(expected_value)); \
            return 1;                                                                                              \
        }                                                                                                          \
    } while (false)
