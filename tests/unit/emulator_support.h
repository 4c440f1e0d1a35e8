// What the tests of the emulated driver share: opening its libraries as a program does, and running a scenario in a
// process of its own, with its own environment.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
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
