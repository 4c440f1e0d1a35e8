// The output of the OSU micro-benchmarks, for the scripts that read it. The formats are those of version 7.4's source,
// and 7.5's as printed; 7.0 differs in its headers only.
//
// One label is not OMB's: bw_fan_in and bw_fan_out print "Bandwidth (MB/s)" over their bandwidths, where 7.4 prints
// "Avg Latency(us)" (and 7.0's header routine the former).
#include <cstdarg>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "engine/printer.h"

namespace awaken::bench {
namespace {

constexpr int kSizeWidth = 10;
constexpr int kWidth = 18;
constexpr int kIterationsWidth = 12;
constexpr int kUnsizedWidth = 17;         ///< of barrier's first column
constexpr int kUnsizedOverlapWidth = 13;  ///< of ibarrier's
constexpr int kProcessLatencyWidth = 10;  ///< of latency_mp's, without -c
constexpr const char* kDatatypeLine = "# Datatype: %s.\n";

[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...) {
    std::va_list arguments;
    std::va_list again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int length = std::vsnprintf(nullptr, 0, format, arguments);
    va_end(arguments);
    std::string text(static_cast<std::size_t>(length) + 1, '\0');
    std::vsnprintf(text.data(), text.size(), format, again);
    va_end(again);
    text.pop_back();
    return text;
}

std::string right(const std::string& text, int width = kWidth) {
    return formatted("%*s", width, text.c_str());
}
std::string number(double value, int width = kWidth) {
    return formatted("%*.2f", width, value);
}

bool is_bandwidth(Family family) {
    return family == Family::bandwidth || family == Family::bidirectional_bandwidth ||
           family == Family::multiple_bandwidth || family == Family::congestion ||
           family == Family::one_sided_bandwidth || family == Family::one_sided_bidirectional_bandwidth;
}

/// Tests whose title never names the accelerator.
bool has_plain_title(Family family) {
    return family == Family::multiple_bandwidth || family == Family::multiple_latency || family == Family::startup;
}

const char* title_suffix(Family family, Accelerator accelerator) {
    if (has_plain_title(family)) {
        return "";
    }
    switch (accelerator) {
        case Accelerator::cuda:
            return "-CUDA";
        case Accelerator::rocm:
            return "-ROCM";
        case Accelerator::openacc:
            return "-OPENACC";
        case Accelerator::managed:
            // Only OMB's nonblocking collectives say so.
            return family == Family::nonblocking_collective ? "-MANAGED" : "";
        case Accelerator::none:
            break;
    }
    return "";
}

const char* side_name(const BufferChoice& choice) {
    switch (choice.kind) {
        case BufferKind::device:
            return "DEVICE (D)";
        case BufferKind::managed:
            return choice.managed_on_device ? "MANAGED (MD)" : "MANAGED (MH)";
        case BufferKind::pinned:
            return "PINNED (P)";
        case BufferKind::registered:
            return "REGISTERED (R)";
        case BufferKind::pool:
            return "POOL (A)";
        case BufferKind::host:
            break;
    }
    return "HOST (H)";
}

class OsuPrinter final : public Printer {
  public:
    OsuPrinter(std::FILE* file, const Options& options, const TestInfo& test)
        : _file(file), _options(options), _test(test), _old(options.omb_version == "7.0") {}

    void header(const HeaderFacts& facts) override {
        _ranks = facts.ranks;
        // -d is printed as given, but managed buffers of point-to-point tests belong to the GPU that they move to.
        const bool by_option = _options.accelerator != Accelerator::none &&
                               (_options.accelerator != Accelerator::managed || _test.is_collective());
        _accelerator = by_option || facts.accelerator == Accelerator::none ? _options.accelerator : facts.accelerator;
        std::string text;
        // OMB's one-sided tests say all of it again for each type.
        if (facts.first || _test.is_one_sided()) {
            text += preamble(facts);
        }
        if (_test.is_one_sided()) {
            text += one_sided_lines(facts);
        } else if (has_types() && !_old) {
            text += formatted(kDatatypeLine, mpi_name(facts.type));
        }
        if (_test.family != Family::startup && !varies_window()) {
            text += columns();
        }
        put(text);
    }

    void row(const Measurement& measurement) override {
        if (measurement.errors != 0 && !_failed) {
            _failed = true;
            _failed_size = measurement.size;
        }
        put(_test.family == Family::startup ? startup_line(measurement) : line(measurement));
    }

    void varied_windows_head(const std::vector<int>& windows) override { put(heads_of(windows)); }

    void varied_windows_row(const std::vector<Measurement>& row) override {
        put(line_of(row, &Measurement::bandwidth));
    }

    void varied_windows_rates(const std::vector<int>& windows,
                              const std::vector<std::vector<Measurement>>& rows) override {
        if (!_options.print_rate) {
            return;
        }
        std::string text = "\n# Message Rate Profile\n" + heads_of(windows);
        for (const std::vector<Measurement>& row : rows) {
            text += line_of(row, &Measurement::message_rate);
        }
        put(text);
    }

    void end() override {
        if (!_failed) {
            return;
        }
        put(formatted("DATA VALIDATION ERROR: osu_%s exited with status %d on message size %zu.\n", _test.name,
                      EXIT_FAILURE, _failed_size));
    }

  private:
    [[nodiscard]] static std::string heads_of(const std::vector<int>& windows) {
        std::string heads = "#      ";
        for (const int window : windows) {
            heads += formatted("  %10d", window);
        }
        return heads + "\n";
    }

    [[nodiscard]] static std::string line_of(const std::vector<Measurement>& row, double Measurement::* value) {
        if (row.empty()) {
            return "";
        }
        std::string text = formatted("%-7zu", row.front().size);
        for (const Measurement& measurement : row) {
            text += formatted("  %10.2f", measurement.*value);
        }
        return text + "\n";
    }

    void put(const std::string& text) {
        std::fwrite(text.data(), 1, text.size(), _file);
        std::fflush(_file);
    }

    [[nodiscard]] bool varies_window() const {
        return _options.vary_window && _test.family == Family::multiple_bandwidth;
    }
    [[nodiscard]] bool has_types() const { return _test.sized; }

    [[nodiscard]] std::string preamble(const HeaderFacts& facts) const {
        std::string title = title_line(_test, _options, _accelerator) + "\n";
        switch (_test.family) {
            case Family::startup:
                return title;
            case Family::multiple_bandwidth:
                if (varies_window()) {
                    return title + formatted("# [ pairs: %d ] [ window size: varied ]\n", facts.pairs) +
                           "\n# Uni-directional Bandwidth (MB/sec)\n";
                }
                return title + formatted("# [ pairs: %d ] [ window size: %d ]\n", facts.pairs, facts.window_size);
            case Family::threaded_latency: {
                const Parallelism threads = parallelism_of(_options, _test);
                return formatted("# Number of Sender threads: %d \n# Number of Receiver threads: %d\n", threads.senders,
                                 threads.receivers) +
                       point_to_point(title);
            }
            case Family::process_latency: {
                const Parallelism processes = parallelism_of(_options, _test);
                return formatted(
                           "# Number of forked processes in sender: %d\n"
                           "# Number of forked processes in receiver: %d\n",
                           processes.senders, processes.receivers) +
                       point_to_point(title);
            }
            case Family::nonblocking_collective:
                return topology(facts) + "\n" + title + "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n\n";
            case Family::collective:
            case Family::persistent_collective:
                return topology(facts) + "\n" + title;
            case Family::one_sided_latency:
            case Family::one_sided_bandwidth:
            case Family::one_sided_bidirectional_bandwidth:
                return title;
            case Family::latency:
            case Family::bandwidth:
            case Family::bidirectional_bandwidth:
            case Family::multiple_latency:
            case Family::partitioned_latency:
            case Family::congestion:
                break;
        }
        return point_to_point(title);
    }

    /// 7.0 begins without an empty line, and says where the buffers are.
    [[nodiscard]] std::string point_to_point(const std::string& title) const {
        if (!_old) {
            return "\n" + title;
        }
        if (_accelerator == Accelerator::none || _accelerator == Accelerator::managed) {
            return title;
        }
        return title + formatted("# Send Buffer on %s and Receive Buffer on %s\n",
                                 side_name(buffers_of_rank(_options, _test, 0).send),
                                 side_name(buffers_of_rank(_options, _test, 1).receive));
    }

    [[nodiscard]] std::string one_sided_lines(const HeaderFacts& facts) const {
        std::string text = formatted("# Window creation: %s\n", mpi_name(window_form_of(_options, _test))) +
                           formatted("# Synchronization: %s\n", mpi_name(synchronisation_of(_options, _test)));
        // OMB's get_acc_latency knows one type only, and does not say which.
        if (!_old && _test.one_sided != OneSided::get_accumulate) {
            text += formatted(kDatatypeLine, mpi_name(facts.type));
        }
        if (_accelerator == Accelerator::none || _accelerator == Accelerator::managed) {
            return text;
        }
        const auto side = [this](const int rank) {
            const BufferChoice choice = buffers_of_rank(_options, _test, rank).send;
            return choice.kind == BufferKind::managed ? "MANAGED (M)" : side_name(choice);
        };
        return text + formatted("# Rank 0 Memory on %s and Rank 1 Memory on %s\n", side(0), side(1));
    }

    [[nodiscard]] std::string topology(const HeaderFacts& facts) const {
        if (!_test.neighborhood) {
            return "";
        }
        std::string text;
        if (_options.neighborhood.cartesian) {
            text = "Dimensions size = ";
            for (const int size : facts.dimensions) {
                text += formatted("%d ", size);
            }
            text += "\n";
        }
        return text + formatted("Time took to create topology graph:%.2f us.\n", facts.topology_us);
    }

    [[nodiscard]] std::string columns() const {
        std::string text;
        if (_test.family == Family::nonblocking_collective) {
            text = _test.sized ? formatted("%-*s", kSizeWidth, "# Size") + right("Overall(us)") : "# Overall(us)";
            text += right("Compute(us)");
            if (_options.full) {
                text += right("Coll. Init(us)") + right("MPI_Test(us)") + right("MPI_Wait(us)");
            }
            text += right("Pure Comm.(us)");
            if (_options.full) {
                text += right("Min Comm.(us)") + right("Max Comm.(us)");
            }
            text += right("Overlap(%)");
        } else {
            text = _test.sized ? formatted("%-*s", kSizeWidth, "# Size") : "# ";
            if (_test.family == Family::multiple_bandwidth) {
                text += right("MB/s");
                if (_options.print_rate) {
                    text += right("Messages/s");
                }
            } else if (is_bandwidth(_test.family)) {
                text += right("Bandwidth (MB/s)");
            } else if (!_test.sized) {
                text += "Avg Latency(us)";
            } else {
                const bool plain = _test.is_one_sided() || (_old && !_test.is_collective());
                text += right(plain ? "Latency (us)" : "Avg Latency(us)");
            }
            if (_options.full) {
                text += right("Min Latency(us)") + right("Max Latency(us)") + right("Iterations", kIterationsWidth);
            }
        }
        if (_options.validation_column) {
            text += right("Validation");
        }
        for (const int p : _options.percentiles) {
            text += right(formatted(is_bandwidth(_test.family) ? "P%d Tail BW(MB/s)" : "P%d Tail Lat(us)", p));
        }
        if (_options.derived_type) {
            text += right("Transmit Size");
        }
        return text + "\n";
    }

    [[nodiscard]] std::string line(const Measurement& measurement) const {
        std::string text = _test.sized ? formatted("%-*zu", kSizeWidth, measurement.size) : "";
        if (_test.family == Family::nonblocking_collective) {
            const OverlapTimes times = measurement.overlap.value_or(OverlapTimes{});
            text += number(times.overall, _test.sized ? kWidth : kUnsizedOverlapWidth) + number(times.compute);
            if (_options.full) {
                text += number(times.initiate) + number(times.test) + number(times.wait);
            }
            text += number(times.pure);
            if (_options.full) {
                text += number(times.pure_minimum) + number(times.pure_maximum);
            }
            text += number(times.overlap_percent);
        } else if (is_bandwidth(_test.family)) {
            text += number(measurement.bandwidth);
            if (_test.family == Family::multiple_bandwidth && _options.print_rate) {
                text += number(measurement.message_rate);
            }
        } else {
            int width = _test.sized ? kWidth : kUnsizedWidth;
            if (_test.family == Family::process_latency && !_options.validation_column) {
                width = kProcessLatencyWidth;
            }
            text += number(measurement.average, width);
            if (_options.full) {
                text += number(measurement.minimum) + number(measurement.maximum) +
                        formatted("%*zu", kIterationsWidth, measurement.iterations);
            }
        }
        if (_options.validation_column) {
            const bool one_sided = _test.is_one_sided();
            text += right(measurement.errors != 0  ? one_sided ? "failed" : "Fail"
                          : !measurement.validated ? one_sided ? "skipped" : "Unchecked"
                          : one_sided              ? "passed"
                                                   : "Pass");
        }
        for (const double value : measurement.percentiles) {
            text += number(value);
        }
        if (_options.derived_type) {
            text += formatted("%*zu", kWidth, measurement.transmit_size);
        }
        return text + "\n";
    }

    [[nodiscard]] std::string startup_line(const Measurement& measurement) const {
        if (std::string_view(_test.name) == "hello") {
            return formatted("This is a test with %d processes\n", _ranks);
        }
        // Whole milliseconds, cut off, as OMB takes them.
        const auto milliseconds = [](double us) { return static_cast<long>(us / 1000); };
        return formatted("nprocs: %d, min: %ld ms, max: %ld ms, avg: %ld ms\n", _ranks,
                         milliseconds(measurement.minimum), milliseconds(measurement.maximum),
                         milliseconds(measurement.average));
    }

    std::FILE* _file;
    Options _options;
    const TestInfo& _test;
    const bool _old;
    Accelerator _accelerator = Accelerator::none;
    int _ranks = 0;
    bool _failed = false;
    std::size_t _failed_size = 0;
};

}  // namespace

std::string title_line(const TestInfo& test, const Options& options, Accelerator accelerator) {
    const std::string suffix = title_suffix(test.family, accelerator);
    const std::string version = " v" + options.omb_version;
    const std::string title = test.title;
    if (!test.is_one_sided()) {
        return "# OSU MPI" + suffix + " " + title + version;
    }
    const std::size_t function_end = title.find(' ');
    return "# OSU " + title.substr(0, function_end) + suffix + title.substr(function_end) + version;
}

std::unique_ptr<Printer> make_osu_printer(std::FILE* file, const Options& options, const TestInfo& test) {
    return std::make_unique<OsuPrinter>(file, options, test);
}

}  // namespace awaken::bench
