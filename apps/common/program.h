// SPDX-License-Identifier: Apache-2.0
// What the programs under apps/ do besides their lesson: options, and ending on all ranks at once when they are used
// wrongly. Host memory and MPI only; device.h has what concerns the GPU.
#pragma once

#include <mpi.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <new>
#include <string>
#include <vector>

namespace apps {

constexpr int exit_wrong_data = 1;  ///< the run completed and data was not what it had to be
constexpr int exit_misuse = 2;      ///< bad option, wrong number of ranks, no GPU

[[nodiscard]] inline int rank_of_world() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

[[nodiscard]] inline int size_of_world() {
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
}

/// Ends the whole job at once, with exit_misuse, after the caller has said why. Not collective.
[[noreturn]] inline void end_job() {
    std::fflush(nullptr);
    // A launcher that hears of the abort first may close our stderr unread, and nobody would learn why. It gets a
    // second to read it; in a file or a terminal nothing waits to be read.
    const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    int unread = 0;
    while (ioctl(STDERR_FILENO, FIONREAD, &unread) == 0 && unread > 0 && std::chrono::steady_clock::now() < enough) {
        sched_yield();
    }
    MPI_Abort(MPI_COMM_WORLD, exit_misuse);
    // Some MPIs only ask the launcher to end the job, and return.
    std::_Exit(exit_misuse);
}

/// Ends the program on all ranks, with exit_misuse, when `problem` is not empty on any of them; the lowest such rank
/// says it on stderr. Collective: no rank is left waiting for one that has gone.
inline void leave_if(const std::string& program, const std::string& problem) {
    const int rank = rank_of_world();
    int lowest = problem.empty() ? INT_MAX : rank;
    MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest == INT_MAX) {
        return;
    }
    if (rank == lowest) {
        std::fprintf(stderr, "%s: %s\n", program.c_str(), problem.c_str());
        std::fflush(stderr);
    }
    MPI_Finalize();
    std::exit(exit_misuse);
}

/// A whole-number option, `--name VALUE` or `--name=VALUE`. K, M and G after a value are powers of 1024.
struct Option {
    std::string name;
    std::string help;
    long long* value;  ///< holds the default before, the given value after parse()
    long long minimum = 0;
    long long maximum = 0;
    /// Where there are any, the option takes one of these words, and its value is the word's place among them.
    std::vector<std::string> words = {};
    /// A flag: it takes nothing, and makes the value 1.
    bool is_flag = false;
};

/// Reads one value; an empty text says that it is good, otherwise what is wrong with it.
[[nodiscard]] inline std::string read_value(const Option& option, const std::string& text) {
    if (!option.words.empty()) {
        std::string all;
        for (std::size_t i = 0; i < option.words.size(); ++i) {
            if (text == option.words[i]) {
                *option.value = static_cast<long long>(i);
                return {};
            }
            all += (i == 0 ? "" : i + 1 == option.words.size() ? " or " : ", ") + option.words[i];
        }
        return "--" + option.name + " " + text + ": not one of " + all;
    }
    const auto complaint = [&](const std::string& what) {
        return "--" + option.name + " " + text + ": " + what + " (a whole number from " +
               std::to_string(option.minimum) + " to " + std::to_string(option.maximum) + ")";
    };
    char* end = nullptr;
    errno = 0;
    long long value = std::strtoll(text.c_str(), &end, 10);
    if (end == text.c_str()) {
        return complaint("not a number");
    }
    if (errno == ERANGE) {
        return complaint("out of range");
    }
    int shift = 0;
    if (*end == 'K') {
        shift = 10;
    }
    if (*end == 'M') {
        shift = 20;
    }
    if (*end == 'G') {
        shift = 30;
    }
    if (shift > 0) {
        ++end;
    }
    if (*end != '\0') {
        return complaint("not a number");
    }
    if (value < 0 || value > (std::numeric_limits<long long>::max() >> shift)) {
        return complaint("out of range");
    }
    value <<= shift;
    if (value < option.minimum || value > option.maximum) {
        return complaint("out of range");
    }
    *option.value = value;
    return {};
}

/// The answer to --version.
inline void print_version(const std::string& program) {
#ifdef APPS_VERSION
    std::printf("%s of Awaken %s\n", program.c_str(), APPS_VERSION);
#else
    std::printf("%s, compiled by hand\n", program.c_str());
#endif
}

/// Makes a failed allocation of host memory end the job with a message.
inline void end_job_when_out_of_memory() {
    std::set_new_handler([] {
        std::fprintf(stderr, "rank %d: out of host memory; use a smaller size\n", rank_of_world());
        end_job();
    });
}

/// Reads the command line into the options' values. Collective. --help and --version are answered by rank 0 on stdout
/// and end all ranks with success; anything that is not understood ends all ranks with exit_misuse. Call it first after
/// MPI_Init: it also makes a failed host allocation end the job with a message.
inline void parse(int argc, char** argv, const std::string& summary, std::initializer_list<Option> options) {
    end_job_when_out_of_memory();
    const std::string path = argc > 0 ? argv[0] : "program";
    const std::string program = path.substr(path.rfind('/') + 1);
    const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);

    int asked = 0;
    constexpr int version = 1, help = 2;
    for (const std::string& word : words) {
        asked = std::max(asked, word == "--help" || word == "-h"      ? help
                                : word == "--version" || word == "-V" ? version
                                                                      : 0);
    }
    MPI_Allreduce(MPI_IN_PLACE, &asked, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (asked != 0) {
        if (rank_of_world() == 0 && asked == version) {
            print_version(program);
        } else if (rank_of_world() == 0) {
            std::printf("%s\n\nUsage: mpiexec -n RANKS %s [OPTION...]\n\n", summary.c_str(), program.c_str());
            for (const Option& option : options) {
                const bool has_words = !option.words.empty();
                const std::string name = "--" + option.name + (option.is_flag ? "" : (has_words ? " WORD" : " N"));
                const std::string value =
                    has_words ? option.words[static_cast<std::size_t>(*option.value)] : std::to_string(*option.value);
                const std::string preset = option.is_flag ? "" : " (default " + value + ")";
                std::printf("  %-18s %s%s\n", name.c_str(), option.help.c_str(), preset.c_str());
            }
            std::printf("  %-18s %s\n  %-18s %s\n\nK, M and G after a number multiply it by 1024, 1024^2 and 1024^3.\n",
                        "--help", "print this and exit", "--version", "print the version and exit");
            std::fflush(stdout);
        }
        MPI_Finalize();
        std::exit(EXIT_SUCCESS);
    }

    std::string problem;
    for (std::size_t i = 0; i < words.size() && problem.empty(); ++i) {
        const Option* match = nullptr;
        const std::size_t equals = words[i].find('=');
        const std::string name = words[i].substr(0, equals);
        for (const Option& option : options) {
            if (name == "--" + option.name) {
                match = &option;
            }
        }
        if (match == nullptr) {
            problem = "unknown option " + words[i] + "; --help lists the options";
        } else if (match->is_flag) {
            *match->value = 1;
            if (equals != std::string::npos) {
                problem = name + " takes no value";
            }
        } else if (equals != std::string::npos) {
            problem = read_value(*match, words[i].substr(equals + 1));
        } else if (i + 1 == words.size()) {
            problem = words[i] + " needs a value; --help lists the options";
        } else {
            problem = read_value(*match, words[++i]);
        }
    }
    leave_if(program, problem);
}

/// Ends all ranks with exit_misuse unless the job has from `least` to `most` ranks. Collective.
inline void require_ranks(const std::string& program, int least, int most = INT_MAX) {
    const int size = size_of_world();
    const std::string needed = least == most ? "exactly " + std::to_string(least) : "at least " + std::to_string(least);
    const bool right = size >= least && size <= most;
    leave_if(program, right ? ""
                            : "needs " + needed + " ranks, but was started with " + std::to_string(size) +
                                  ": run it with mpiexec -n " + std::to_string(least));
}

/// Says on all ranks what is wrong on any: the text of the lowest rank where it is not empty, or an empty one.
/// Collective.
[[nodiscard]] inline std::string first_problem(const std::string& problem) {
    int lowest = problem.empty() ? INT_MAX : rank_of_world();
    MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest == INT_MAX) {
        return {};
    }
    std::string text = problem;
    int length = static_cast<int>(text.size());
    MPI_Bcast(&length, 1, MPI_INT, lowest, MPI_COMM_WORLD);
    text.resize(static_cast<std::size_t>(length));
    MPI_Bcast(text.data(), length, MPI_CHAR, lowest, MPI_COMM_WORLD);
    return text;
}

/// A rank among those of its node.
struct PlaceOnNode {
    int rank = 0;
    int ranks = 1;
};

/// Collective.
[[nodiscard]] inline PlaceOnNode place_on_node() {
    MPI_Comm node = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_of_world(), MPI_INFO_NULL, &node);
    PlaceOnNode place;
    MPI_Comm_rank(node, &place.rank);
    MPI_Comm_size(node, &place.ranks);
    MPI_Comm_free(&node);
    return place;
}

/// The sum over all ranks, on all ranks. Collective.
[[nodiscard]] inline long long sum_over_ranks(long long value) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    return value;
}

}  // namespace apps
