// SPDX-License-Identifier: Apache-2.0
#include "runner/launches.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/output_file.h"
#include "engine/printer.h"
#include "engine/progress.h"
#include "engine/results_file.h"
#include "engine/turns.h"
#include "runner/find_mpi.h"

namespace awaken::bench {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollMs = 50;
/// How long a launch that has lost a rank, or is told to end, may take to do so.
constexpr std::chrono::seconds kGrace{10};

volatile std::sig_atomic_t signal_received = 0;

void note_signal(const int number) {
    signal_received = number;
}

/// One launch command and the contenders that it measures.
struct Launch {
    std::vector<const ContenderChoice*> contenders;
    std::vector<std::string> command;
    fs::path json, output, errors;
    pid_t pid = -1;
    bool running = false;
    int status = 0;
    bool ended_early = false;  ///< after it had measured something
    std::string failure;       ///< why it measured nothing
    Clock::time_point broken_since = Clock::time_point::max();
    Clock::time_point told_to_end;

    [[nodiscard]] std::string names() const {
        std::string text;
        for (const ContenderChoice* const contender : contenders) {
            text += (text.empty() ? "" : "+") + contender->name;
        }
        return text;
    }
};

/// A folder for the launches' files that is gone afterwards. The ranks that write into it may run on other nodes, which
/// share the user's folders and not the temporary ones: those come last.
class TemporaryFolder {
  public:
    explicit TemporaryFolder(const std::string& json_file) {
        std::error_code ignored;
        std::vector<fs::path> places = {fs::current_path(ignored), fs::temp_directory_path(ignored)};
        if (!json_file.empty() && json_file != "-") {
            places.insert(places.begin(), fs::absolute(json_file, ignored).parent_path());
        }
        for (const fs::path& place : places) {
            std::string name = (place / ".awaken-bench-XXXXXX").native();
            if (mkdtemp(name.data()) != nullptr) {
                _path = name;
                return;
            }
        }
        throw Error("cannot make a folder in " + places.front().native() + " (" + std::strerror(errno) + ")",
                    "start this in a folder that can be written to");
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        fs::remove_all(_path, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    [[nodiscard]] const fs::path& path() const noexcept { return _path; }

  private:
    fs::path _path;
};

/// Words as a shell would split them, without running anything.
std::vector<std::string> split_words(const std::string& text) {
    wordexp_t expansion{};
    const int code = wordexp(text.c_str(), &expansion, WRDE_NOCMD | WRDE_UNDEF);
    if (code != 0) {
        if (code == WRDE_NOSPACE) {
            wordfree(&expansion);
        }
        throw Error("--launcher '" + text + "' is not a command (" +
                        (code == WRDE_BADVAL    ? "an undefined variable"
                         : code == WRDE_CMDSUB  ? "command substitution"
                         : code == WRDE_BADCHAR ? "one of | & ; < > ( ) { } outside quotes"
                                                : "unbalanced quotes") +
                        ")",
                    "write it as for a shell, e.g. --launcher 'mpiexec -n 2'");
    }
    std::vector<std::string> words(expansion.we_wordv, expansion.we_wordv + expansion.we_wordc);
    wordfree(&expansion);
    if (words.empty()) {
        throw Error("--launcher is empty", "write e.g. --launcher 'mpiexec -n 2'");
    }
    return words;
}

/// Whether a launch command says how many ranks it starts.
bool tells_ranks(const std::vector<std::string>& words) {
    constexpr std::string_view kSpellings[] = {"-n", "-np", "--np", "--ntasks"};
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
        return std::find(std::begin(kSpellings), std::end(kSpellings), word) != std::end(kSpellings) ||
               word.starts_with("--ntasks=");
    });
}

/// The words of a launch command, with the ranks of --ranks.
std::vector<std::string> launch_words(std::string text, const int ranks) {
    constexpr std::string_view kPlace = "{ranks}";
    bool has_place = false;
    for (std::size_t at = text.find(kPlace); at != std::string::npos; at = text.find(kPlace)) {
        if (ranks == 0) {
            throw Error("--launcher '" + text + "' does not say how many ranks to start", "add --ranks N");
        }
        text.replace(at, kPlace.size(), std::to_string(ranks));
        has_place = true;
    }
    std::vector<std::string> words = split_words(text);
    if (ranks != 0 && !has_place) {
        if (tells_ranks(words)) {
            throw Error("--launcher '" + text + "' says how many ranks, and so does --ranks " + std::to_string(ranks),
                        "leave out one");
        }
        words.insert(words.end(), {"-n", std::to_string(ranks)});
    }
    return words;
}

bool is_program(const fs::path& path) {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

/// The launcher that nobody names, found as `awaken doctor` finds it (jobs.py): of the installation whose library
/// AWAKEN_MPI names, else beside `awaken`, else of PATH, where srun counts in an allocation of Slurm. Empty where there
/// is none.
fs::path default_launcher(const fs::path& awaken) {
    constexpr const char* kNames[] = {"mpiexec", "mpirun"};
    std::vector<fs::path> folders;
    if (const char* const mpi = std::getenv("AWAKEN_MPI"); mpi != nullptr && fs::path(mpi).is_absolute()) {
        // <prefix>/lib/libmpi.so, and deeper where a system keeps several MPIs or kinds of machine.
        for (fs::path folder = fs::path(mpi).parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
            if (folder.filename() == "lib" || folder.filename() == "lib64") {
                folders.push_back(folder.parent_path() / "bin");
            }
        }
    }
    folders.push_back(awaken.parent_path());
    for (const fs::path& folder : folders) {
        for (const char* const name : kNames) {
            if (is_program(folder / name)) {
                return folder / name;
            }
        }
    }
    const char* const path = std::getenv("PATH");
    std::vector<const char*> names(std::begin(kNames), std::end(kNames));
    if (std::getenv("SLURM_JOB_ID") != nullptr) {
        names.push_back("srun");
    }
    for (const char* const name : names) {
        std::istringstream entries(path != nullptr ? path : "");
        for (std::string folder; std::getline(entries, folder, ':');) {
            if (is_program(fs::path(folder) / name)) {
                return fs::path(folder) / name;
            }
        }
    }
    return {};
}

/// The launch command that nobody names. Throws Error with `remedy` where there is no launcher.
std::vector<std::string> default_command(const TestInfo& test, const Options& options, const fs::path& awaken,
                                         const std::string& what, const char* const remedy) {
    const fs::path found = default_launcher(awaken);
    if (found.empty()) {
        throw Error("no launcher is found to start " + what + " with: there is no mpiexec beside awaken or in PATH",
                    remedy);
    }
    const int ranks = options.launched_ranks != 0 ? options.launched_ranks
                      : test.exact_ranks != 0     ? test.exact_ranks
                                                  : test.minimum_ranks;
    std::vector<std::string> command = {found.native(), "-n", std::to_string(ranks)};
    if (!options.quiet_notes) {
        // On stderr: what reads the output of OMB finds nothing new there.
        std::fprintf(stderr, "awaken: no launcher is named, so %s runs under %s -n %d\n", what.c_str(), found.c_str(),
                     ranks);
    }
    return command;
}

/// The launch command that --launcher gives a contender; nothing where it names none.
std::optional<std::vector<std::string>> named_command(const ContenderChoice& contender, const Options& options) {
    const std::string* common = nullptr;
    for (const std::string& launcher : options.launchers) {
        const std::size_t equals = launcher.find('=');
        const std::string_view name = std::string_view(launcher).substr(0, equals);
        const bool named = equals != std::string::npos &&
                           std::any_of(options.contenders.begin(), options.contenders.end(),
                                       [&](const ContenderChoice& other) { return other.name == name; });
        if (!named && equals != std::string::npos && name.find_first_of(" \t/") == std::string_view::npos) {
            throw Error("--launcher names the contender " + std::string(name) + ", which --compare does not",
                        "add it there, e.g. --compare awaken," + std::string(name) + "=native");
        }
        if (named && name == contender.name) {
            return launch_words(launcher.substr(equals + 1), options.launched_ranks);
        }
        if (!named) {
            common = &launcher;
        }
    }
    return common != nullptr ? std::optional(launch_words(*common, options.launched_ranks)) : std::nullopt;
}

/// Contenders with the same command share a launch, except in `first`: what one of them does there would no longer be
/// the first of its processes.
std::vector<Launch> make_launches(const CommandLine& command_line, const fs::path& awaken) {
    const bool apart = command_line.test->family == Family::first;
    const Options& options = command_line.options;
    std::vector<std::string> common;
    std::vector<Launch> launches;
    for (const ContenderChoice& contender : options.contenders) {
        const std::optional<std::vector<std::string>> named = named_command(contender, options);
        if (!named && common.empty()) {
            common = default_command(*command_line.test, options, awaken, contender.name,
                                     "load the module of your MPI, or give --launcher 'mpiexec -n 2'");
        }
        std::vector<std::string> command = named ? *named : common;
        if (!contender.environment.empty()) {
            // By env(1) and not by the launcher's own options, which every launcher spells in its own way.
            command.emplace_back("env");
            command.insert(command.end(), contender.environment.begin(), contender.environment.end());
        }
        auto known = std::find_if(launches.begin(), launches.end(),
                                  [&](const Launch& launch) { return !apart && launch.command == command; });
        if (known == launches.end()) {
            known = launches.emplace(known);
            known->command = std::move(command);
        }
        known->contenders.push_back(&contender);
    }
    return launches;
}

/// Names the launch's files, and adds to its command what it is to do. `more`: options beyond those of `words`.
void complete(Launch& launch, const std::span<char* const> words, const fs::path& awaken, const fs::path& stem,
              const std::string& address, const std::vector<std::string>& more = {}) {
    launch.json = stem.native() + ".json";
    launch.output = stem.native() + ".out";
    launch.errors = stem.native() + ".err";
    const std::string turns = stem.native() + ".turns";
    // In the folder that only this user may enter. Command lines are for all users to read.
    if (const int reason = replace_file(turns, address); reason != 0) {
        throw Error("cannot write " + turns + " (" + std::strerror(reason) + ")", "make room on its file system");
    }
    std::string contenders;
    bool layer = false;
    for (const ContenderChoice* const contender : launch.contenders) {
        // Without its environment: the launched group runs it in its own processes.
        contenders += (contenders.empty() ? "" : ",") + contender->name + "=" + to_string(contender->kind);
        layer = layer || needs_layer(contender->kind);
    }
    std::vector<std::string>& command = launch.command;
    command.push_back(awaken.native());
    command.emplace_back("bench");
    // What is said twice counts as said last; behind "--" there are no options any more.
    const auto options_end =
        std::find_if(words.begin(), words.end(), [](const char* word) { return std::strcmp(word, "--") == 0; });
    command.insert(command.end(), words.begin(), options_end);
    if (!layer) {
        command.emplace_back("--native");
    }
    for (const std::string& word : {std::string("--compare"), contenders, std::string("--turns"), turns,
                                    std::string("--json"), launch.json.native(), std::string("--no-progress")}) {
        command.push_back(word);
    }
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), options_end, words.end());
}

void start(Launch& launch) {
    std::vector<char*> arguments;
    for (std::string& word : launch.command) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, launch.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, launch.errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    // A group of its own: what ends the launch ends all that it started.
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    const int code = posix_spawnp(&launch.pid, arguments.front(), &actions, &attributes, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (code != 0) {
        launch.failure = launch.command.front() + " cannot be started (" + std::strerror(code) + ")";
        return;
    }
    launch.running = true;
}

/// True when the launch has ended by now.
bool reap(Launch& launch) {
    if (!launch.running) {
        return true;
    }
    const pid_t done = waitpid(launch.pid, &launch.status, WNOHANG);
    if (done == 0 || (done < 0 && errno == EINTR)) {
        return false;
    }
    launch.running = false;
    return true;
}

std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// The last line of what a launch said on stderr, or how it ended.
std::string reason_of(const Launch& launch) {
    std::string reason;
    std::string signal;  // MPIs print a stack of many lines, of which one says what happened
    const std::string errors = read_file(launch.errors);
    for (std::size_t begin = 0; begin < errors.size();) {
        const std::size_t end = std::min(errors.find('\n', begin), errors.size());
        const std::string_view line = std::string_view(errors).substr(begin, end - begin);
        // Launchers add lines of their own after the one that says why.
        if (line.starts_with("awaken: ") || (reason.empty() && line.find_first_not_of(" \t") != std::string::npos)) {
            reason = line.starts_with("awaken: ") ? line.substr(8) : line;
        }
        if (const std::size_t at = line.find("Signal: "); at != std::string_view::npos && signal.empty()) {
            signal = "it was ended by " + std::string(line.substr(at + 8));
        }
        begin = end + 1;
    }
    if (!signal.empty()) {
        return signal;
    }
    if (!reason.empty()) {
        return reason;
    }
    if (launch.running) {
        return "it says nothing";
    }
    if (WIFSIGNALED(launch.status)) {
        return std::string("it was ended by ") + strsignal(WTERMSIG(launch.status));
    }
    return "it ended with status " + std::to_string(WEXITSTATUS(launch.status)) + " and said nothing";
}

void end_all(std::vector<Launch>& launches, TurnServer& server) {
    for (const int signal : {SIGTERM, SIGKILL}) {
        const auto deadline = Clock::now() + kGrace;
        bool any = false;
        for (Launch& launch : launches) {
            if (launch.running) {
                kill(-launch.pid, signal);
            }
        }
        do {
            server.serve(kPollMs);
            any = false;
            for (Launch& launch : launches) {
                any = !reap(launch) || any;
            }
        } while (any && Clock::now() < deadline);
        if (!any) {
            return;
        }
    }
}

void tell_to_end(Launch& launch, const std::string& why) {
    launch.failure = why;
    launch.told_to_end = Clock::now();
    kill(-launch.pid, SIGTERM);
}

/// Ends launches with another number of ranks than the first, as soon as all have come and before anything is measured.
void refuse_other_numbers(std::vector<Launch>& launches, const TurnServer& server) {
    const Launch* first = nullptr;
    std::size_t ranks_of_first = 0;
    for (std::size_t index = 0; index < launches.size(); ++index) {
        Launch& launch = launches[index];
        if (!launch.running || !launch.failure.empty()) {
            continue;
        }
        if (!server.complete(index)) {
            return;
        }
        if (first == nullptr) {
            first = &launch;
            ranks_of_first = server.ranks(index);
        } else if (server.ranks(index) != ranks_of_first) {
            tell_to_end(launch, "it runs on " + std::to_string(server.ranks(index)) + " ranks, and " + first->names() +
                                    " on " + std::to_string(ranks_of_first));
        }
    }
}

/// Runs all launches to their end, one measuring at a time. `tell` is called at each turn.
void run_all(std::vector<Launch>& launches, TurnServer& server, const double start_limit_s,
             const std::function<void(const TurnServer::Turn&)>& tell = {}) {
    const auto start_limit =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(start_limit_s));
    for (Launch& launch : launches) {
        start(launch);
    }
    for (bool any = true; any;) {
        if (signal_received != 0) {
            for (Launch& launch : launches) {
                if (launch.running && launch.failure.empty()) {
                    launch.failure = std::string("the comparison was ended by ") + strsignal(signal_received);
                }
            }
            end_all(launches, server);
            return;
        }
        const std::size_t turns = server.turn().number;
        server.serve(kPollMs);
        if (tell && server.turn().number != turns) {
            tell(server.turn());
        }
        refuse_other_numbers(launches, server);
        any = false;
        for (std::size_t index = 0; index < launches.size(); ++index) {
            Launch& launch = launches[index];
            if (reap(launch)) {
                server.end_group(index);
                continue;
            }
            any = true;
            if (!launch.failure.empty()) {
                if (Clock::now() - launch.told_to_end > kGrace) {
                    kill(-launch.pid, SIGKILL);
                }
                continue;
            }
            if (!server.complete(index) && Clock::now() > start_limit) {
                tell_to_end(launch, "not all of its ranks came within " +
                                        std::to_string(static_cast<int>(start_limit_s)) + " s: " + reason_of(launch));
                continue;
            }
            // A rank that died while its launcher lives on would keep everybody waiting.
            if (!server.broken(index)) {
                continue;
            }
            if (launch.broken_since == Clock::time_point::max()) {
                launch.broken_since = Clock::now();
            }
            if (Clock::now() - launch.broken_since > kGrace) {
                tell_to_end(launch, "a rank ended early: " + reason_of(launch));
            }
        }
    }
}

bool any_errors(const std::vector<RunResult>& results) {
    for (const RunResult& result : results) {
        for (const ContenderResult& contender : result.contenders) {
            for (const Measurement& measurement : contender.measurements) {
                if (measurement.errors != 0) {
                    return true;
                }
            }
        }
    }
    return false;
}

/// Puts what the launches have measured together, contenders in the order in which they were asked for.
std::vector<RunResult> merge(std::vector<Launch>& launches, const Options& options, Manifest& manifest) {
    std::vector<RunResult> merged;
    for (Launch& launch : launches) {
        const bool told_to_end = !launch.failure.empty();
        const std::string reason = told_to_end ? launch.failure : reason_of(launch);
        const std::string text = read_file(launch.json);
        if (text.empty()) {
            const bool ran = !told_to_end && launch.status == 0;
            launch.failure = ran ? "what it measured is not in " + launch.json.parent_path().native() +
                                       ": start this in a folder that all nodes share"
                                 : reason;
            continue;
        }
        Manifest own;
        std::vector<RunResult> measured = from_json(text, &own);
        // The file is kept valid from the start: one that ended before its first result has written one, too.
        if (measured.empty()) {
            launch.failure = reason;
            continue;
        }
        launch.failure.clear();
        // Wrong data, which have been told, and contenders that cannot run are other reasons for a status that is not
        // 0.
        const bool ended_early = told_to_end || (launch.status != 0 && !any_errors(measured));
        for (RunResult& result : measured) {
            for (ContenderResult& contender : result.contenders) {
                if (ended_early && contender.unavailable.empty()) {
                    contender.unavailable = "it ended early: " + reason;
                    launch.ended_early = true;
                }
            }
            const auto same = std::find_if(merged.begin(), merged.end(),
                                           [&](const RunResult& other) { return other.type == result.type; });
            if (same == merged.end()) {
                merged.push_back(std::move(result));
                continue;
            }
            std::move(result.contenders.begin(), result.contenders.end(), std::back_inserter(same->contenders));
        }
        for (auto& [key, value] : own.entries) {
            manifest.entries.emplace_back(launches.size() == 1 ? key : launch.names() + ": " + key, std::move(value));
        }
    }
    const auto position = [&](const std::string& name) {
        return std::find_if(options.contenders.begin(), options.contenders.end(),
                            [&](const ContenderChoice& contender) { return contender.name == name; }) -
               options.contenders.begin();
    };
    for (RunResult& result : merged) {
        for (const Launch& launch : launches) {
            if (launch.failure.empty()) {
                continue;
            }
            for (const ContenderChoice* const contender : launch.contenders) {
                ContenderResult missing;
                missing.name = contender->name;
                missing.unavailable = launch.failure;
                result.contenders.push_back(std::move(missing));
            }
        }
        std::stable_sort(
            result.contenders.begin(), result.contenders.end(),
            [&](const ContenderResult& a, const ContenderResult& b) { return position(a.name) < position(b.name); });
    }
    return merged;
}

// ---- first: one launch for each sample ------------------------------------------------------------------------------

/// What all launches of `first` have measured. Of each operation and allocation there are two runs, one of the first
/// times and one of those of the second call.
class FirstResults {
  public:
    explicit FirstResults(const Options& options) : _options(options) {}

    /// Adds what one launch has measured: the cold first call, and the one after it.
    void add(const RunResult& measured) {
        const ContenderResult& from = measured.contenders.front();
        for (const bool second : {false, true}) {
            ContenderResult& to = contender_of(measured, second, from.name);
            to.description = from.description;
            for (const Measurement& one : from.measurements) {
                add(to, one, second ? one.samples : std::vector{one.cold_first});
            }
        }
    }

    /// Whether there is a time of this contender.
    [[nodiscard]] bool hold(const std::string& name) const {
        return std::any_of(_runs.begin(), _runs.end(), [&](const RunResult& run) {
            return std::any_of(run.contenders.begin(), run.contenders.end(), [&](const ContenderResult& contender) {
                return contender.name == name && !contender.measurements.empty();
            });
        });
    }

    /// All contenders are in each, in the order in which they were asked for.
    [[nodiscard]] std::vector<RunResult>& runs() noexcept { return _runs; }

  private:
    ContenderResult& contender_of(const RunResult& measured, const bool second, const std::string& name) {
        const std::string operation = (second ? "second " : "first ") + measured.operation;
        auto run = std::find_if(_runs.begin(), _runs.end(), [&](const RunResult& other) {
            return other.operation == operation && other.allocation == measured.allocation;
        });
        if (run == _runs.end()) {
            run = _runs.insert(run, measured);
            run->operation = operation;
            run->contenders.clear();
            for (const ContenderChoice& choice : _options.contenders) {
                run->contenders.emplace_back().name = choice.name;
            }
        }
        return *std::find_if(run->contenders.begin(), run->contenders.end(),
                             [&](const ContenderResult& other) { return other.name == name; });
    }

    static void add(ContenderResult& contender, const Measurement& one, const std::vector<double>& samples) {
        auto known = std::find_if(contender.measurements.begin(), contender.measurements.end(),
                                  [&](const Measurement& other) { return other.size == one.size; });
        if (known == contender.measurements.end()) {
            known = contender.measurements.emplace(known);
            known->size = one.size;
            known->validated = true;
        }
        known->validated = known->validated && one.validated;
        known->errors += one.errors;
        known->first_error = known->first_error.empty() ? one.first_error : known->first_error;
        if (one.errors == 0) {
            known->samples.insert(known->samples.end(), samples.begin(), samples.end());
        }
        known->iterations = known->samples.size();
        known->summary = summarize(known->samples);
        known->average = known->summary.mean;
        known->minimum = known->summary.minimum;
        known->maximum = known->summary.maximum;
    }

    const Options& _options;
    std::vector<RunResult> _runs;
};

/// Launches each contender for each figure, and all that again until there are enough samples: what disturbs the
/// machine meanwhile meets all of them. One that cannot run is not launched again; `contenders` then say why.
std::vector<RunResult> run_first(const CommandLine& command_line, const std::span<char* const> words,
                                 const fs::path& awaken, const fs::path& folder, std::vector<Launch>& contenders,
                                 Manifest& manifest) {
    const Options& options = command_line.options;
    const std::vector<FirstFigure> figures = first_figures(options, *command_line.test);
    const std::size_t samples = repetitions_at(options, *command_line.test, 0).iterations;
    Progress progress(options.progress, command_line.test->name);
    FirstResults results(options);
    std::size_t number = 0;
    for (std::size_t sample = 0; sample < samples; ++sample) {
        for (const auto& [operation, allocation, size] : figures) {
            for (Launch& contender : contenders) {
                if (!contender.failure.empty() || signal_received != 0) {
                    continue;
                }
                progress.show(std::string(to_string(operation)) + " of " + std::to_string(size) + " bytes, launch " +
                              std::to_string(sample + 1) + " of " + std::to_string(samples) + ", " + contender.names());
                std::vector<Launch> launch = {contender};
                TurnServer server(options.listen_address, 1);
                complete(launch.front(), words, awaken, folder / std::to_string(number++), server.address(0),
                         {"--operation", to_string(operation), "--allocation", std::to_string(allocation), "-m",
                          std::to_string(size) + ":" + std::to_string(size), "-i", "1"});
                run_all(launch, server, options.start_limit_s);
                Manifest own;
                const std::vector<RunResult> measured = merge(launch, options, own);
                contender.failure = launch.front().failure;
                contender.ended_early = launch.front().ended_early;
                if (!contender.failure.empty() && results.hold(contender.names())) {
                    contender.failure = "it ended early: " + contender.failure;
                    contender.ended_early = true;
                }
                for (const RunResult& result : measured) {
                    results.add(result);
                    contender.failure = result.contenders.front().unavailable;
                }
                for (auto& [key, value] : own.entries) {
                    const std::string name = contenders.size() == 1 ? key : contender.names() + ": " + key;
                    if (std::none_of(manifest.entries.begin(), manifest.entries.end(),
                                     [&](const auto& entry) { return entry.first == name; })) {
                        manifest.entries.emplace_back(name, std::move(value));
                    }
                }
            }
        }
    }
    progress.clear();
    if (std::none_of(contenders.begin(), contenders.end(),
                     [&](const Launch& contender) { return results.hold(contender.names()); })) {
        return {};
    }
    for (RunResult& run : results.runs()) {
        for (std::size_t i = 0; i < contenders.size(); ++i) {
            run.contenders[i].unavailable = contenders[i].failure;
        }
    }
    return std::move(results.runs());
}

}  // namespace

bool starts_its_ranks(const CommandLine& command_line) {
    return command_line.test != nullptr && command_line.options.turns.empty() && command_line.test->minimum_ranks > 1 &&
           !is_launched();
}

bool needs_launches(const CommandLine& command_line) {
    const Options& options = command_line.options;
    if (!options.turns.empty() || options.contenders.empty()) {
        return false;
    }
    if (command_line.test->family == Family::first) {
        if (is_launched()) {
            throw Error("first starts a launch for each time that it takes, which it cannot inside an MPI job",
                        "run it without mpiexec; --launcher names another launch command than mpiexec");
        }
        return true;
    }
    const bool needed = !options.launchers.empty() || starts_its_ranks(command_line) ||
                        std::any_of(options.contenders.begin(), options.contenders.end(),
                                    [](const ContenderChoice& contender) { return !contender.environment.empty(); });
    if (!needed && options.launched_ranks > 0) {
        throw Error("--ranks is for comparisons that start their own ranks",
                    "leave it out under a launcher, or run `awaken bench` without one");
    }
    return needed;
}

void become_launcher(const CommandLine& command_line, const std::span<char* const> words, const fs::path& awaken) {
    const TestInfo& test = *command_line.test;
    std::vector<std::string> command =
        default_command(test, command_line.options, awaken, test.name,
                        "load the module of your MPI, or write its launcher before `awaken bench`");
    command.insert(command.end(), {awaken.native(), "bench"});
    command.insert(command.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& word : command) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    execv(arguments.front(), arguments.data());
    throw Error(command.front() + " cannot be started (" + std::strerror(errno) + ")",
                "write the launcher of your MPI before `awaken bench`");
}

int run_launches(const CommandLine& command_line, const std::span<char* const> words, const fs::path& awaken) {
    const Options& options = command_line.options;
    if (launched_ranks() > 1) {
        throw Error(
            "contenders with an environment or a launch command of their own cannot be started inside an MPI job",
            "run `awaken bench` without mpiexec; --launcher names another launch command than mpiexec");
    }
    const TemporaryFolder folder(options.json_file);
    std::vector<Launch> launches = make_launches(command_line, awaken);
    if (launches.size() > 1 && !options.validation_log.empty()) {
        throw Error("-clog:" + options.validation_log + " names one folder for " + std::to_string(launches.size()) +
                        " launches, each of which makes its own",
                    "use -c, which prints what is wrong, or log one contender at a time");
    }
    std::optional<ResultsFile> file;
    if (!options.json_file.empty() && options.json_file != "-") {
        file.emplace(options.json_file);
        // Before anything is measured, so that a file which cannot be written costs no time.
        if (file->is_replaced()) {
            file->write(to_json({}, options, {}));
        }
    }
    struct sigaction action{};
    action.sa_handler = note_signal;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    // A terminal that closes does not reach the launches, which are no longer in its process group; under nohup it is
    // not to reach us either.
    struct sigaction hang_up{};
    if (sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN) {
        sigaction(SIGHUP, &action, nullptr);
    }
    Manifest manifest;
    std::vector<RunResult> results;
    const bool first = command_line.test->family == Family::first;
    if (first) {
        results = run_first(command_line, words, awaken, folder.path(), launches, manifest);
    } else {
        TurnServer server(options.listen_address, launches.size());
        for (std::size_t index = 0; index < launches.size(); ++index) {
            complete(launches[index], words, awaken, folder.path() / std::to_string(index), server.address(index));
        }
        Progress progress(options.progress, command_line.test->name);
        progress.show("waiting for the ranks to start");
        // What the ranks count as steps.
        std::vector<std::size_t> sizes;
        for (const ElementType type : types_to_measure(options, *command_line.test)) {
            const std::vector<std::size_t> of_type = sizes_to_measure(options, *command_line.test, type);
            sizes.insert(sizes.end(), of_type.begin(), of_type.end());
        }
        run_all(launches, server, options.start_limit_s, [&](const TurnServer::Turn& turn) {
            const std::size_t index = std::clamp<std::size_t>(turn.step, 1, sizes.size()) - 1;
            progress.show(std::to_string(sizes[index]) + " bytes (" + std::to_string(index + 1) + " of " +
                          std::to_string(sizes.size()) + "), " + launches[turn.group].names());
        });
        progress.clear();
        results = merge(launches, options, manifest);
    }
    if (results.empty() && signal_received == 0) {
        std::string reasons;
        for (const Launch& launch : launches) {
            reasons += (reasons.empty() ? "" : "; ") + launch.names() + ": " + launch.failure;
        }
        throw Error("no contender could run (" + reasons + ")", "see whether the launch commands work by themselves");
    }
    // What was measured until a signal came is not lost.
    if (!results.empty()) {
        if (first && options.json_file != "-") {
            std::fputs(first_table(results).c_str(), stdout);
        }
        for (const RunResult& result : results) {
            if (!first && options.json_file != "-") {
                std::fputs(comparison_table(result, options).c_str(), stdout);
            }
        }
        if (file) {
            file->write(to_json(results, options, manifest));
        }
        if (options.json_file == "-") {
            std::fputs(to_json(results, options, manifest).c_str(), stdout);
        }
        std::fflush(stdout);
    }
    if (signal_received != 0) {
        std::fprintf(stderr, "awaken: ended by %s\n", strsignal(signal_received));
        return 128 + signal_received;
    }
    const bool whole =
        std::none_of(launches.begin(), launches.end(), [](const Launch& launch) { return launch.ended_early; });
    return whole && !any_errors(results) ? 0 : 1;
}

}  // namespace awaken::bench
