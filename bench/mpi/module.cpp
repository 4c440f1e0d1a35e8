// SPDX-License-Identifier: Apache-2.0
// The module of one MPI ABI: starts MPI, finds out what all ranks must know, runs, and ends MPI.
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "mpi/clock.h"
#include "mpi/engine.h"
#include "mpi/manifest.h"
#include "mpi/mpi_functions.h"
#include "mpi/placement.h"
#include "runner/mpi_library.h"

namespace awaken::bench {
namespace {

constexpr int kFailure = 1;
constexpr int kUsageError = 2;

#ifndef MPI_SESSION_NULL
using MPI_Session = void*;  // Open MPI 4 has no sessions
#endif

/// MPI from initialisation to the end, by MPI_Init or as a session of MPI-4.
class MpiRuntime {
  public:
    MpiRuntime(const bool session, const bool threads) {
        const double start = now();
        if (session) {
            start_session(threads);
        } else if (threads) {
            check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &_level), "MPI_Init_thread");
            _communicator = MPI_COMM_WORLD;
        } else {
            check_mpi(MPI_Init(nullptr, nullptr), "MPI_Init");
            _communicator = MPI_COMM_WORLD;
        }
        _init_seconds = now() - start;
        check_mpi(MPI_Comm_set_errhandler(_communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    MpiRuntime(const MpiRuntime&) = delete;
    MpiRuntime& operator=(const MpiRuntime&) = delete;

    /// Not done by a destructor: on the way out of an error that others do not share it would wait for them for ever.
    void finish() {
        if (_session) {
            MPI_Comm_free(&_communicator);
            _session->finalize();
        } else {
            MPI_Finalize();
        }
    }

    [[nodiscard]] MPI_Comm communicator() const noexcept { return _communicator; }
    [[nodiscard]] double init_seconds() const noexcept { return _init_seconds; }
    [[nodiscard]] int thread_level() const noexcept { return _level; }

  private:
    /// The session's functions, where this MPI has them.
    template <typename Functions>
    class SessionOf {
      public:
        explicit SessionOf(const Functions& mpi) : _mpi(mpi) {}

        [[nodiscard]] bool exist() const noexcept {
            if constexpr (kDeclared<decltype(_mpi.Session_init)>) {
                return _mpi.Session_init != nullptr;
            }
            return false;
        }

        MPI_Comm open(const bool threads) {
            MPI_Comm communicator = MPI_COMM_NULL;
            if constexpr (kDeclared<decltype(_mpi.Session_init)>) {
                MPI_Info info = MPI_INFO_NULL;
                if (threads) {
                    check_mpi(_mpi.Info_create(&info), "MPI_Info_create");
                    check_mpi(_mpi.Info_set(info, "thread_level", "MPI_THREAD_MULTIPLE"), "MPI_Info_set");
                }
                check_mpi(_mpi.Session_init(info, MPI_ERRORS_RETURN, &_session), "MPI_Session_init");
                if (info != MPI_INFO_NULL) {
                    check_mpi(_mpi.Info_free(&info), "MPI_Info_free");
                }
                MPI_Group all = MPI_GROUP_NULL;
                check_mpi(_mpi.Group_from_session_pset(_session, "mpi://WORLD", &all), "MPI_Group_from_session_pset");
                check_mpi(
                    _mpi.Comm_create_from_group(all, "awaken-bench", MPI_INFO_NULL, MPI_ERRORS_RETURN, &communicator),
                    "MPI_Comm_create_from_group");
                check_mpi(_mpi.Group_free(&all), "MPI_Group_free");
            }
            return communicator;
        }

        /// What the session was granted, which may be less than was asked for. MPI_Query_thread does not tell: Open
        /// MPI's answer is of MPI_Init alone.
        [[nodiscard]] int thread_level(const int asked) const {
            if constexpr (kDeclared<decltype(_mpi.Session_get_info)> && kDeclared<decltype(_mpi.Info_get)>) {
                if (_mpi.Session_get_info != nullptr && _mpi.Info_get != nullptr) {
                    return granted_level(asked);
                }
            }
            return asked;
        }

        void finalize() {
            if constexpr (kDeclared<decltype(_mpi.Session_init)>) {
                _mpi.Session_finalize(&_session);
            }
        }

      private:
        [[nodiscard]] int granted_level(const int asked) const {
            MPI_Info info = MPI_INFO_NULL;
            std::array<char, MPI_MAX_INFO_VAL + 1> level{};
            int found = 0;
            check_mpi(_mpi.Session_get_info(_session, &info), "MPI_Session_get_info");
            check_mpi(_mpi.Info_get(info, "thread_level", MPI_MAX_INFO_VAL, level.data(), &found), "MPI_Info_get");
            check_mpi(_mpi.Info_free(&info), "MPI_Info_free");
            if (found == 0) {
                return asked;
            }
            constexpr std::pair<const char*, int> kLevels[] = {{"MPI_THREAD_MULTIPLE", MPI_THREAD_MULTIPLE},
                                                               {"MPI_THREAD_SERIALIZED", MPI_THREAD_SERIALIZED},
                                                               {"MPI_THREAD_FUNNELED", MPI_THREAD_FUNNELED}};
            for (const auto& [name, value] : kLevels) {
                if (std::strcmp(level.data(), name) == 0) {
                    return value;
                }
            }
            return MPI_THREAD_SINGLE;
        }

        const Functions& _mpi;
        MPI_Session _session{};
    };

  public:
    /// Asked before the start, so that ranks can agree on who says it. Throws Error.
    static void require_sessions() {
        if (!SessionOf(reached_functions()).exist()) {
            throw Error(short_version() + " has no sessions (MPI-4)", "leave -I out, or use a newer release");
        }
    }

  private:
    void start_session(const bool threads) {
        _session.emplace(reached_functions());
        _communicator = _session->open(threads);
        _level = _session->thread_level(threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE);
    }

    std::optional<SessionOf<MpiFunctions>> _session;
    MPI_Comm _communicator = MPI_COMM_NULL;
    int _level = MPI_THREAD_SINGLE;
    double _init_seconds = 0;
};

void check_ranks(const TestInfo& test, const Options& options, const int ranks) {
    const std::string needs = std::string(test.name) + " needs ";
    if (test.exact_ranks != 0 && ranks != test.exact_ranks) {
        throw Error(
            needs + "exactly " + std::to_string(test.exact_ranks) + " ranks, and runs on " + std::to_string(ranks),
            "start it with mpiexec -n " + std::to_string(test.exact_ranks));
    }
    if (ranks < test.minimum_ranks) {
        throw Error(
            needs + "at least " + std::to_string(test.minimum_ranks) + " ranks, and runs on " + std::to_string(ranks),
            "start it with mpiexec -n " + std::to_string(test.minimum_ranks) + " or more");
    }
    if (options.pairs && (*options.pairs < 1 || 2 * *options.pairs > ranks)) {
        throw Error("-p " + std::to_string(*options.pairs) + " needs " + std::to_string(2 * *options.pairs) +
                        " ranks, and there are " + std::to_string(ranks),
                    "use at most " + std::to_string(ranks / 2) + " pairs");
    }
}

/// -clog:DIR, as OMB: the folder must be new, so that no earlier log is mixed up with this one's.
void make_log_folder(const std::string& folder, const int rank) {
    if (!folder.empty() && rank == 0 && mkdir(folder.c_str(), 0777) != 0) {
        throw Error("cannot make the folder " + folder + " for the log (" + std::strerror(errno) + ")",
                    "give -clog: a folder that does not exist yet");
    }
}

void print_notes(const Options& options, const int rank) {
    for (const std::string& note : options.notes) {
        if (rank == 0 && !options.quiet_notes) {
            std::fprintf(stderr, "awaken: %s\n", printable(note).c_str());
        }
    }
}

std::optional<Error> attempt_all(const auto& work) {
    try {
        work();
    } catch (const Error& error) {
        return error;
    } catch (const std::exception& error) {
        return Error(error.what(), "please report this with the command line");
    }
    return std::nullopt;
}

int run_all(const CommandLine& command_line, const Placement& placement, const MpiRuntime& mpi, const int rank,
            const int ranks, const std::vector<std::string>& words) {
    const Environment environment{command_line.options, *command_line.test, mpi.communicator(), rank, ranks,
                                  *placement.gpu,       placement.device,   mpi.thread_level()};
    const Manifest manifest = make_manifest(environment, placement, words);
    if (command_line.test->family == Family::startup) {
        return report_startup(environment, manifest, mpi.init_seconds());
    }
    return measure(environment, manifest);
}

int run(const int count, char** const words) {
    // What goes wrong before MPI is up is kept until the ranks can agree on who says it.
    CommandLine command_line;
    Placement placement;
    std::optional<Error> problem = attempt_all([&] {
        command_line = parse_command_line({words, static_cast<std::size_t>(count)});
        if (command_line.options.session) {
            MpiRuntime::require_sessions();
        }
    });
    // Up to here all ranks come to the same. A GPU that one of them cannot use must not make it start MPI another way.
    const bool session = command_line.options.session && !problem;
    std::optional<Error> no_gpu;  // which the rank may not need
    if (!problem) {
        no_gpu = attempt_all([&] { placement = place_before_init(command_line.options); });
    }
    // Who queues operations in streams leaves the MPI's calls to a thread of the layer.
    const auto queues = [](const ContenderChoice& choice) {
        return choice.kind == ContenderChoice::Kind::enqueue || choice.kind == ContenderChoice::Kind::graph;
    };
    const std::vector<ContenderChoice>& contenders = command_line.options.contenders;
    const bool threads = (command_line.test != nullptr && command_line.test->family == Family::threaded_latency) ||
                         std::any_of(contenders.begin(), contenders.end(), queues);
    MpiRuntime mpi(session, threads);
    int rank = 0;
    int ranks = 0;
    MPI_Comm_rank(mpi.communicator(), &rank);
    MPI_Comm_size(mpi.communicator(), &ranks);
    int status = kUsageError;
    try {
        try {
            agree(mpi.communicator(), problem);
            problem = attempt_all([&] {
                check_ranks(*command_line.test, command_line.options, ranks);
                if (no_gpu && rank_needs_gpu(command_line.options, *command_line.test, rank, ranks)) {
                    throw Error(*no_gpu);
                }
            });
            agree(mpi.communicator(), problem);
            problem = attempt_all([&] { make_log_folder(command_line.options.validation_log, rank); });
            agree(mpi.communicator(), problem);
            problem = attempt_all([&] { verify_placement(placement, command_line.options, mpi.communicator()); });
            agree(mpi.communicator(), problem);
            print_notes(command_line.options, rank);
            status = kFailure;  // NOLINT(clang-analyzer-deadcode.DeadStores): read when run_all() throws
            status = run_all(command_line, placement, mpi, rank, ranks, {words, words + count});
        } catch (const AgreedError& error) {
            if (rank == 0) {
                std::fprintf(stderr, "awaken: %s\n", printable_lines(error.what()).c_str());
            }
        }
    } catch (const std::bad_alloc&) {
        end_all(
            mpi.communicator(),
            "not enough host memory: use fewer iterations (-i), each of which leaves a sample, or smaller sizes (-m)");
    } catch (const std::exception& error) {
        end_all(mpi.communicator(), printable_lines(error.what()));
    }
    std::fflush(stdout);
    std::fflush(stderr);
    mpi.finish();
    return status;
}

}  // namespace
}  // namespace awaken::bench

extern "C" __attribute__((visibility("default"))) int awaken_bench_main(
    const int count, char** const words, const awaken::bench::MpiLibrary* const library) {
    try {
        awaken::bench::load_functions(*library);
        return awaken::bench::run(count, words);
    } catch (const std::exception& error) {
        // MPI itself cannot start: there is nobody to agree with.
        std::fprintf(stderr, "awaken: %s\n", awaken::printable_lines(error.what()).c_str());
        return awaken::bench::kFailure;
    }
}
