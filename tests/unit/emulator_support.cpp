// SPDX-License-Identifier: Apache-2.0
#include "emulator_support.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

namespace awaken::emulator_test {
namespace {

std::map<std::string, Scenario>& scenarios() {
    static std::map<std::string, Scenario> all;
    return all;
}

}  // namespace

ScenarioRegistration::ScenarioRegistration(const char* name, Scenario scenario) {
    scenarios()[name] = scenario;
}

bool Outcome::succeeded() const {
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool Outcome::ended_by(int signal) const {
    // A sanitizer catches the signal and exits with a message.
    return (WIFSIGNALED(status) && WTERMSIG(status) == signal) ||
           (WIFEXITED(status) && WEXITSTATUS(status) != 0 && output.find("SEGV") != std::string::npos);
}

Outcome run_scenario(const std::string& name, const Environment& environment,
                     const std::vector<std::string>& arguments) {
    int channel[2];
    if (pipe(channel) != 0) {
        throw std::runtime_error("pipe");
    }
    std::vector<std::string> words{"/proc/self/exe", "--scenario", name};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) {
        pointers.push_back(word.data());
    }
    pointers.push_back(nullptr);
    // The environment is put together before the fork: the child of a process with threads may do little.
    std::map<std::string, std::string> variables;
    for (char** variable = environ; *variable; ++variable) {
        const std::string text = *variable;
        variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
    for (const auto& [variable, value] : environment) {
        variables[variable] = value;
    }
    std::vector<std::string> settings;
    for (const auto& [variable, value] : variables) {
        settings.push_back(variable + "=" + value);
    }
    std::vector<char*> setting_pointers;
    for (std::string& setting : settings) {
        setting_pointers.push_back(setting.data());
    }
    setting_pointers.push_back(nullptr);

    const pid_t child = fork();
    if (child < 0) {
        throw std::runtime_error("fork");
    }
    if (child == 0) {
        dup2(channel[1], 1);
        dup2(channel[1], 2);
        close(channel[0]);
        close(channel[1]);
        execve("/proc/self/exe", pointers.data(), setting_pointers.data());
        _exit(127);
    }
    close(channel[1]);
    Outcome outcome;
    char buffer[4096];
    ssize_t length = 0;
    while ((length = ::read(channel[0], buffer, sizeof buffer)) > 0) {
        outcome.output.append(buffer, static_cast<std::size_t>(length));
    }
    close(channel[0]);
    waitpid(child, &outcome.status, 0);
    return outcome;
}

std::string to_text(const void* bytes, std::size_t count) {
    std::string text;
    char digits[3];
    for (std::size_t position = 0; position < count; ++position) {
        std::snprintf(digits, sizeof digits, "%02x", static_cast<const unsigned char*>(bytes)[position]);
        text += digits;
    }
    return text;
}

void from_text(const std::string& text, void* bytes, std::size_t count) {
    for (std::size_t position = 0; position < count; ++position) {
        static_cast<unsigned char*>(bytes)[position] =
            static_cast<unsigned char>(std::stoul(text.substr(2 * position, 2), nullptr, 16));
    }
}

}  // namespace awaken::emulator_test

int main(int count, char** words) {
    using namespace awaken::emulator_test;
    if (count >= 3 && std::strcmp(words[1], "--scenario") == 0) {
        alarm(100);  // a scenario that hangs ends, and fails; later than whatever waits in it gives up
        const auto at = scenarios().find(words[2]);
        if (at == scenarios().end()) {
            std::fprintf(stderr, "no scenario %s\n", words[2]);
            return 2;
        }
        return at->second(std::vector<std::string>(words + 3, words + count));
    }
    // The tests in this process itself; the driver reads its environment once. What is late is so by a time that makes
    // a call seen which waits for it; tests that depend on what is not over yet have gates.
    setenv("AWAKEN_EMULATE", AWAKEN_TEST_EMULATE, 1);
    setenv("AWAKEN_TEST_DELAY_US", "30000", 1);
    for (const char* name : {"AWAKEN_TEST_BUSY", "AWAKEN_TEST_DELAYS", "AWAKEN_TEST_FAULTS", "AWAKEN_TEST_IPC_OPEN_US",
                             "AWAKEN_TEST_QUEUE", "AWAKEN_EMULATE_CONNECTIONS", "AWAKEN_EMULATE_MEMORY",
                             "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}) {
        unsetenv(name);
    }
    testing::InitGoogleTest(&count, words);
    return RUN_ALL_TESTS();
}
