// SPDX-License-Identifier: Apache-2.0
// The module of one MPI ABI: reads the words, starts MPI, carries one command out, and ends MPI.
#include <charconv>
#include <cstdio>
#include <functional>
#include <map>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"
#include "base/settings.h"
#include "mpi/mpi_functions.h"
#include "probe/commands.h"
#include "probe/record.h"
#include "runner/mpi_library.h"

namespace awaken::probe {
namespace {

constexpr int kFailure = 1;
constexpr int kUsageError = 2;

using Command = std::function<void(const Job&, const Arguments&)>;

const std::map<std::string_view, Command>& commands() {
    static const std::map<std::string_view, Command> table = {
        {"facts", [](const Job& job, const Arguments&) { tell_facts(job); }},
        {"cells", try_cells},
        {"hardware", try_hardware},
        {"pairs", measure_pairs},
        {"sums", try_sums},
    };
    return table;
}

std::vector<std::string> split(const std::string_view text) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        if (end > begin) {
            parts.emplace_back(text.substr(begin, end - begin));
        }
        begin = end + 1;
    }
    return parts;
}

template <typename Number>
Number number(const std::string& option, const std::string_view text) {
    Number value{};
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc{} || end != text.data() + text.size()) {
        throw Error(option + " " + std::string(text) + " is not a number", "write a whole number");
    }
    return value;
}

bench::BufferKind kind_named(const std::string& name) {
    for (const bench::BufferKind kind : {bench::BufferKind::host, bench::BufferKind::device, bench::BufferKind::managed,
                                         bench::BufferKind::pool, bench::BufferKind::pinned}) {
        if (name == bench::to_string(kind)) {
            return kind;
        }
    }
    throw Error("there is no kind of memory " + name, "use host, device, managed, pool or pinned");
}

Arguments parse(const std::span<char* const> words) {
    Arguments arguments;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string option = words[i];
        if (option == "--large-counts") {
            arguments.large_counts = true;
            continue;
        }
        if (i + 1 == words.size()) {
            throw Error(option + " is not an option, or lacks its value", "see the docs");
        }
        const std::string value = words[++i];
        if (option == "--functions") {
            arguments.functions = split(value);
        } else if (option == "--kinds") {
            arguments.kinds.clear();
            for (const std::string& name : split(value)) {
                arguments.kinds.push_back(kind_named(name));
            }
        } else if (option == "--from") {
            arguments.first = number<std::size_t>(option, value);
        } else if (option == "--to") {
            arguments.end = number<std::size_t>(option, value);
        } else if (option == "--bytes") {
            arguments.bytes = parse_bytes(value, option);
        } else if (option == "--samples") {
            arguments.samples = number<int>(option, value);
        } else if (option == "--gpu-map") {
            for (const std::string& device : split(value)) {
                arguments.gpu_map.push_back(number<int>(option, device));
            }
        } else {
            throw Error("there is no option " + option, "see docs/doctor.md");
        }
    }
    // Messages are counted in bytes by an int, and a measurement without samples has no median.
    if (arguments.bytes < 1 || arguments.bytes > (std::size_t{1} << 30) || arguments.samples < 1) {
        throw Error("--bytes and --samples are out of range", "use 1 to 1G bytes, and at least one sample");
    }
    return arguments;
}

bench::Options placement_options(const Arguments& arguments) {
    bench::Options options;
    options.accelerator = bench::Accelerator::managed;  // a GPU of any vendor
    options.gpu_map = arguments.gpu_map;
    options.quiet_notes = true;
    return options;
}

int run(const std::span<char* const> words) {
    const auto command = words.empty() ? commands().end() : commands().find(words.front());
    if (command == commands().end()) {
        throw Error("awaken-probe is given no command that it has", "use facts, cells, hardware or pairs");
    }
    const Arguments arguments = parse(words.subspan(1));
    const bench::Options options = placement_options(arguments);
    Job job;
    try {
        job.placement = bench::place_before_init(options);
    } catch (const Error& error) {
        job.no_gpu = error.cause();
    }
    bench::check_mpi(MPI_Init(nullptr, nullptr), "MPI_Init");
    job.communicator = MPI_COMM_WORLD;
    MPI_Comm_rank(job.communicator, &job.rank);
    MPI_Comm_size(job.communicator, &job.ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    report_crashes(job.rank);
    bench::verify_placement(job.placement, options, job.communicator);
    int status = 0;
    try {
        command->second(job, arguments);
    } catch (const std::exception& error) {
        write_record({{"record", "failed"}, {"rank", job.rank}, {"text", error.what()}});
        std::fprintf(stderr, "awaken: rank %d: %s\n", job.rank, printable_lines(error.what()).c_str());
        status = kFailure;
        // The others may be waiting for this rank.
        MPI_Abort(job.communicator, kFailure);
    }
    MPI_Finalize();
    return status;
}

}  // namespace
}  // namespace awaken::probe

extern "C" __attribute__((visibility("default"))) int awaken_probe_main(
    const int count, char** const words, const awaken::bench::MpiLibrary* const library) {
    try {
        awaken::bench::load_functions(*library);
        return awaken::probe::run({words, static_cast<std::size_t>(count)});
    } catch (const std::exception& error) {
        std::fprintf(stderr, "awaken: %s\n", awaken::printable_lines(error.what()).c_str());
        return awaken::probe::kUsageError;
    }
}
