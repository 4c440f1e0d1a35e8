// SPDX-License-Identifier: Apache-2.0
// The output of the OSU micro-benchmarks, for the scripts that read it. The formats are those of version 7.4's source,
// and 7.5's as printed; 7.0 differs in its headers only.
//
// One label is not OMB's: bw_fan_in and bw_fan_out print "Bandwidth (MB/s)" over their bandwidths, where 7.4 prints
// "Avg Latency(us)" (and 7.0's header routine the former).
#include <algorithm>
#include <cctype>
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

std::string right(const std::string& text, int width = kWidth) {
    return formatted("%*s", width, text.c_str());
}
std::string number(double value, int width = kWidth) {
    return formatted("%*.2f", width, value);
}

/// The families that send windows of messages, and tell bandwidths.
bool is_bandwidth(const TestInfo& test) {
    return defaults_of(test).window_size > 1;
}

std::string upper_case(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](const char letter) {
        return static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    });
    return text;
}

/// "-CUDA".
std::string title_suffix(Family family, Accelerator accelerator) {
    const bool plain =
        family == Family::multiple_bandwidth || family == Family::multiple_latency || family == Family::startup;
    // Of managed memory only OMB's nonblocking collectives speak.
    const bool unnamed = accelerator == Accelerator::none ||
                         (accelerator == Accelerator::managed && family != Family::nonblocking_collective);
    return plain || unnamed ? "" : "-" + upper_case(to_string(accelerator));
}

/// "DEVICE (D)", "MANAGED (MH)".
std::string side_name(const BufferChoice& choice) {
    return upper_case(to_string(choice.kind)) + " (" + letters_of(choice) + ")";
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
        } else if (_test.sized && !_old) {
            text += formatted(kDatatypeLine, mpi_name(facts.type));
        }
        if (_test.family != Family::startup && !varies_window()) {
            text += line(nullptr);
        }
        put(text);
    }

    void row(const Measurement& measurement) override {
        if (measurement.errors != 0 && !_failed) {
            _failed = true;
            _failed_size = measurement.size;
        }
        put(_test.family == Family::startup ? startup_line(measurement) : line(&measurement));
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

    [[nodiscard]] std::string preamble(const HeaderFacts& facts) const {
        const std::string title = title_line(_test, _options, _accelerator) + "\n";
        switch (_test.family) {
            case Family::startup:
                return title;
            case Family::multiple_bandwidth:
                if (varies_window()) {
                    return title + formatted("# [ pairs: %d ] [ window size: varied ]\n", facts.pairs) +
                           "\n# Uni-directional Bandwidth (MB/sec)\n";
                }
                return title + formatted("# [ pairs: %d ] [ window size: %d ]\n", facts.pairs, facts.window_size);
            case Family::halo:
                return point_to_point(title) + formatted("# [ kernels: %d ]\n", facts.kernels);
            case Family::threaded_latency:
            case Family::process_latency: {
                const Parallelism sides = parallelism_of(_options, _test);
                return formatted(_test.family == Family::threaded_latency
                                     ? "# Number of Sender threads: %d \n# Number of Receiver threads: %d\n"
                                     : "# Number of forked processes in sender: %d\n"
                                       "# Number of forked processes in receiver: %d\n",
                                 sides.senders, sides.receivers) +
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
            default:
                return point_to_point(title);
        }
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
                                 side_name(buffers_of_rank(_options, _test, 0).send).c_str(),
                                 side_name(buffers_of_rank(_options, _test, 1).receive).c_str());
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
            return choice.kind == BufferKind::managed ? std::string("MANAGED (M)") : side_name(choice);
        };
        return text + formatted("# Rank 0 Memory on %s and Rank 1 Memory on %s\n", side(0).c_str(), side(1).c_str());
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

    /// The line of a measurement, or of the heads above all of them where `measured` is null.
    [[nodiscard]] std::string line(const Measurement* measured) const {
        static const Measurement kNone;
        const Measurement& measurement = measured != nullptr ? *measured : kNone;
        std::string text = measured == nullptr ? "# " : "";
        if (_test.sized) {
            text = formatted("%-*s", kSizeWidth,
                             measured == nullptr ? "# Size" : std::to_string(measurement.size).c_str());
        }
        const auto column = [&](const std::string& head, const std::string& cell) {
            text += measured == nullptr ? head : cell;
        };
        const auto figure = [&](const char* head, double value) { column(right(head), number(value)); };
        const auto first_figure = [&](const char* head, double value, int unsized_width) {
            column(_test.sized ? right(head) : head, number(value, _test.sized ? kWidth : unsized_width));
        };
        if (_test.family == Family::nonblocking_collective) {
            const OverlapTimes times = measurement.overlap.value_or(OverlapTimes{});
            first_figure("Overall(us)", times.overall, kUnsizedOverlapWidth);
            figure("Compute(us)", times.compute);
            if (_options.full) {
                figure("Coll. Init(us)", times.initiate);
                figure("MPI_Test(us)", times.test);
                figure("MPI_Wait(us)", times.wait);
            }
            figure("Pure Comm.(us)", times.pure);
            if (_options.full) {
                figure("Min Comm.(us)", times.pure_minimum);
                figure("Max Comm.(us)", times.pure_maximum);
            }
            figure("Overlap(%)", times.overlap_percent);
        } else if (is_bandwidth(_test)) {
            const bool pairs = _test.family == Family::multiple_bandwidth;
            figure(pairs ? "MB/s" : "Bandwidth (MB/s)", measurement.bandwidth);
            if (pairs && _options.print_rate) {
                figure("Messages/s", measurement.message_rate);
            }
        } else {
            const bool plain = _test.is_one_sided() || (_old && !_test.is_collective());
            const char* const head = plain ? "Latency (us)" : "Avg Latency(us)";
            if (_test.family == Family::process_latency && !_options.validation_column) {
                column(right(head), number(measurement.average, kProcessLatencyWidth));
            } else {
                first_figure(head, measurement.average, kUnsizedWidth);
            }
            if (_options.full) {
                figure("Min Latency(us)", measurement.minimum);
                figure("Max Latency(us)", measurement.maximum);
                column(right("Iterations", kIterationsWidth),
                       right(std::to_string(measurement.iterations), kIterationsWidth));
            }
        }
        if (_options.validation_column) {
            const bool one_sided = _test.is_one_sided();
            column(right("Validation"), right(measurement.errors != 0  ? one_sided ? "failed" : "Fail"
                                              : !measurement.validated ? one_sided ? "skipped" : "Unchecked"
                                              : one_sided              ? "passed"
                                                                       : "Pass"));
        }
        for (std::size_t i = 0; i < _options.percentiles.size(); ++i) {
            const char* const head = is_bandwidth(_test) ? "P%d Tail BW(MB/s)" : "P%d Tail Lat(us)";
            figure(formatted(head, _options.percentiles[i]).c_str(),
                   i < measurement.percentiles.size() ? measurement.percentiles[i] : 0);
        }
        if (_options.derived_type) {
            column(right("Transmit Size"), right(std::to_string(measurement.transmit_size)));
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

std::string formatted(const char* format, ...) {
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

std::string title_line(const TestInfo& test, const Options& options, Accelerator accelerator) {
    const std::string suffix = title_suffix(test.family, accelerator);
    const std::string version = " v" + options.omb_version;
    const std::string title = test.title;
    if (test.family == Family::first || test.family == Family::halo) {
        return "# " + title;  // OMB has no such program
    }
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
