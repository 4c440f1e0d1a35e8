// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <getopt.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "program.h"
#include "stream_communicator.h"

namespace ghost_exchange {

namespace {

template <class Value, std::size_t count>
using Names = std::array<std::pair<Value, const char*>, count>;

constexpr Names<Memory, 6> memory_names = {{{Memory::host, "host"},
                                            {Memory::staged, "staged"},
                                            {Memory::managed, "managed"},
                                            {Memory::pinned, "pinned"},
                                            {Memory::system, "system"},
                                            {Memory::device, "device"}}};
constexpr Names<Exchange, 9> exchange_names = {{{Exchange::packed, "packed"},
                                                {Exchange::datatype, "datatype"},
                                                {Exchange::neighbour, "neighbour"},
                                                {Exchange::persistent, "persistent"},
                                                {Exchange::overlap, "overlap"},
                                                {Exchange::staged, "staged"},
                                                {Exchange::ccl, "ccl"},
                                                {Exchange::enqueue, "enqueue"},
                                                {Exchange::graph, "graph"}}};
constexpr Names<Processor, 2> processor_names = {{{Processor::cpu, "cpu"}, {Processor::gpu, "gpu"}}};
constexpr Names<bool, 2> buffers_names = {{{false, "once"}, {true, "per-call"}}};

template <class Value, std::size_t count>
std::string name_in(const Names<Value, count>& names, Value wanted) {
    for (const auto& [value, name] : names) {
        if (value == wanted) {
            return name;
        }
    }
    return {};
}

/// Sets `result` to the value of that name; otherwise returns what is wrong.
template <class Value, std::size_t count>
std::string read_name(const char* option, const char* text, const Names<Value, count>& names, Value& result) {
    std::string known;
    for (const auto& [value, name] : names) {
        if (std::string(text) == name) {
            result = value;
            return {};
        }
        known += (known.empty() ? "" : ", ") + std::string(name);
    }
    return std::string(option) + " " + text + " is not known; it is one of " + known;
}

std::string read_number(const char* option, const char* text, long long minimum, long long maximum, long long& result) {
    return apps::read_value({option, "", &result, minimum, maximum}, text);
}

std::string read_link(const char* text, double& result) {
    char* end = nullptr;
    result = std::strtod(text, &end);
    const bool good = end != text && *end == '\0' && std::isfinite(result) && result > 0;
    return good ? "" : "--link " + std::string(text) + ": not a positive number of GB/s";
}

/// What the options ask for that does not go together; empty where all does.
std::string contradiction(const Options& options) {
    const std::string memory = "--memory " + name_of(options.memory);
    const std::string exchange = "--exchange " + name_of(options.exchange);
    const bool has_buffers = options.exchange != Exchange::datatype && options.exchange != Exchange::neighbour;
    if (!kernels_reach(options.memory)) {
        if (options.exchange == Exchange::ccl) {
            return exchange + ": NCCL and RCCL send what the GPU can read, which " + memory +
                   " is not; use --memory device, managed, pinned or system";
        }
        if (is_queued(options.exchange)) {
            return exchange + ": the stream of kernels orders the messages, and no kernel reaches " + memory +
                   "; use --memory device, managed, pinned or system";
        }
        if (options.first_touch == Processor::gpu) {
            return "--first-touch gpu: no kernel reaches " + memory;
        }
    }
    if (options.memory == Memory::device && options.first_touch == Processor::cpu) {
        return "--first-touch cpu: the CPU does not reach " + memory;
    }
    if (options.buffers_per_call && !has_buffers) {
        return "--buffers per-call: " + exchange + " has no buffers";
    }
    if (options.buffers_per_call && options.exchange == Exchange::persistent) {
        return "--buffers per-call: the requests of " + exchange + " belong to buffers that stay";
    }
    if (options.buffers_per_call && is_queued(options.exchange)) {
        return "--buffers per-call: what " + exchange + " has queued uses its buffers later";
    }
    return {};
}

void print_help(const std::string& program) {
    const Options defaults;
    std::printf(
        "%s: a five-point average of a field that is spread over the ranks, and the exchange of its halos.\n\n"
        "Usage: mpiexec -n RANKS %s [OPTION...]\n\n"
        "  -i, --imax N             cells in a row (default %lld)\n"
        "  -j, --jmax N             rows (default %lld)\n"
        "  -x, --nprocx N           ranks along a row (default: chosen for square blocks)\n"
        "  -y, --nprocy N           ranks along a column (default: the same)\n"
        "  -h, --nhalo N            width of the halo (default %lld)\n"
        "  -I, --iterations N       (default %lld)\n"
        "  -c, --corners            exchange the corners of the halo too\n"
        "  -t, --timing             accepted for old command lines; times are always taken\n"
        "  -p, --print              print the field at the end, if a row has 100 cells or fewer\n"
        "  --memory KIND            host, staged, managed, pinned, system or device (default %s)\n"
        "  --buffers WHEN           allocate them once or per-call (default once)\n"
        "  --exchange WAY           packed, datatype, neighbour, persistent, overlap, staged, ccl, enqueue or graph\n"
        "                           (default %s)\n"
        "  --first-touch PROCESSOR  who writes the initial values, cpu or gpu (default: cpu where it can)\n"
        "  --check                  check the result and the exchange; exit status 1 where something is wrong\n"
        "  --ranges                 print a table of wall-clock times, range by range\n"
        "  --checksum               print a checksum of the field, the same for every decomposition and exchange\n"
        "  --write FILE             write the field at the end: doubles, row after row\n"
        "  --link GB/S              bandwidth between neighbours, for the last line (default: that of the GPU's "
        "links)\n"
        "  --help                   print this and exit\n"
        "  -V, --version            print the version and exit\n\n"
        "All memories go with all exchanges, but ccl, enqueue and graph need memory that the GPU can read, which host "
        "and\nstaged are not.\n"
        "With these two, overlap computes and looks after messages by turns, and staged copies within host memory.\n\n"
        "K, M and G after a number multiply it by 1024, 1024^2 and 1024^3.\n",
        program.c_str(), program.c_str(), defaults.imax, defaults.jmax, defaults.nhalo, defaults.iterations,
        name_of(defaults.memory).c_str(), name_of(defaults.exchange).c_str());
    std::fflush(stdout);
}

}  // namespace

std::string name_of(Memory memory) {
    return name_in(memory_names, memory);
}
std::string name_of(Exchange exchange) {
    return name_in(exchange_names, exchange);
}
std::string name_of(Processor processor) {
    return name_in(processor_names, processor);
}

int thread_level(int argc, char** argv) {
    return apps::StreamCommunicator::thread_level(argc, argv, {name_of(Exchange::enqueue), name_of(Exchange::graph)},
                                                  MPI_THREAD_SINGLE);
}

Options read_options(int argc, char** argv, const std::string& program) {
    apps::end_job_when_out_of_memory();
    enum Long { memory = 256, buffers, exchange, first_touch, check, checksum, ranges, write, link, help, version };
    constexpr std::array<option, 21> known = {{{"imax", required_argument, nullptr, 'i'},
                                               {"jmax", required_argument, nullptr, 'j'},
                                               {"nprocx", required_argument, nullptr, 'x'},
                                               {"nprocy", required_argument, nullptr, 'y'},
                                               {"nhalo", required_argument, nullptr, 'h'},
                                               {"iterations", required_argument, nullptr, 'I'},
                                               {"corners", no_argument, nullptr, 'c'},
                                               {"timing", no_argument, nullptr, 't'},
                                               {"print", no_argument, nullptr, 'p'},
                                               {"memory", required_argument, nullptr, Long::memory},
                                               {"buffers", required_argument, nullptr, Long::buffers},
                                               {"exchange", required_argument, nullptr, Long::exchange},
                                               {"first-touch", required_argument, nullptr, Long::first_touch},
                                               {"check", no_argument, nullptr, Long::check},
                                               {"checksum", no_argument, nullptr, Long::checksum},
                                               {"ranges", no_argument, nullptr, Long::ranges},
                                               {"write", required_argument, nullptr, Long::write},
                                               {"link", required_argument, nullptr, Long::link},
                                               {"help", no_argument, nullptr, Long::help},
                                               {"version", no_argument, nullptr, Long::version},
                                               {nullptr, 0, nullptr, 0}}};
    // A row and its halo are counted in MPI's int.
    constexpr long long most_cells = INT_MAX / 2;
    Options options;
    std::optional<Processor> first_touch_given;
    std::string problem;
    bool wants_help = false;
    bool wants_version = false;
    opterr = 0;
    for (int found = 0; problem.empty() && found != -1;) {
        const int word = optind;
        long long number = 0;
        found = getopt_long(argc, argv, ":cph:I:i:j:tVx:y:", known.data(), nullptr);
        switch (found) {
            case -1:
                break;
            case 'i':
                problem = read_number("imax", optarg, 1, most_cells, options.imax);
                break;
            case 'j':
                problem = read_number("jmax", optarg, 1, most_cells, options.jmax);
                break;
            case 'x':
                problem = read_number("nprocx", optarg, 1, INT_MAX, number);
                options.grid.x = static_cast<int>(number);
                break;
            case 'y':
                problem = read_number("nprocy", optarg, 1, INT_MAX, number);
                options.grid.y = static_cast<int>(number);
                break;
            case 'h':
                problem = read_number("nhalo", optarg, 1, most_cells / 2, options.nhalo);
                break;
            case 'I':
                problem = read_number("iterations", optarg, 0, 1'000'000'000, options.iterations);
                break;
            case 'c':
                options.corners = true;
                break;
            case 't':
                options.timing = true;
                break;
            case 'p':
                options.print = true;
                break;
            case Long::memory:
                problem = read_name("--memory", optarg, memory_names, options.memory);
                break;
            case Long::buffers:
                problem = read_name("--buffers", optarg, buffers_names, options.buffers_per_call);
                break;
            case Long::exchange:
                problem = read_name("--exchange", optarg, exchange_names, options.exchange);
                break;
            case Long::first_touch: {
                Processor processor = Processor::cpu;
                problem = read_name("--first-touch", optarg, processor_names, processor);
                first_touch_given = processor;
                break;
            }
            case Long::check:
                options.check = true;
                break;
            case Long::ranges:
                options.ranges = true;
                break;
            case Long::checksum:
                options.checksum = true;
                break;
            case Long::write:
                options.write = optarg;
                if (options.write.empty()) {
                    problem = "--write needs the name of a file";
                }
                break;
            case Long::link:
                problem = read_link(optarg, options.link_gb_s);
                break;
            case Long::help:
                wants_help = true;
                break;
            case 'V':
            case Long::version:
                wants_version = true;
                break;
            case ':':
                problem = std::string(argv[word]) + " needs a value; --help lists the options";
                break;
            default:
                problem = "unknown option " + std::string(argv[word]) + "; --help lists the options";
                break;
        }
    }
    if (problem.empty() && optind < argc) {
        problem = "unknown option " + std::string(argv[optind]) + "; --help lists the options";
    }
    if (wants_help || wants_version) {
        if (apps::rank_of_world() == 0 && wants_help) {
            print_help(program);
        } else if (apps::rank_of_world() == 0) {
            apps::print_version(program);
        }
        MPI_Finalize();
        std::exit(EXIT_SUCCESS);
    }
    const Processor usual = options.memory == Memory::device ? Processor::gpu : Processor::cpu;
    options.first_touch = first_touch_given.value_or(usual);
    if (problem.empty()) {
        problem = contradiction(options);
    }
    apps::leave_if(program, problem);
    return options;
}

}  // namespace ghost_exchange
