// SPDX-License-Identifier: Apache-2.0
// The table of a comparison. Three blocks, each with a line a size and a column a contender: times, ratios, bandwidths.
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/printer.h"

namespace awaken::bench {
namespace {

/// Four to five digits, which is what a 1 % interval leaves meaningful.
std::string digits(double value) {
    if (value < 100) {
        return formatted("%.2f", value);
    }
    if (value < 10000) {
        return formatted("%.1f", value);
    }
    return formatted("%.0f", value);
}

std::string with_interval(const std::string& value, const std::string& low, const std::string& high) {
    return value + " [" + low + ", " + high + "]";
}

constexpr const char* kMissing = "-";

/// A table whose columns are as wide as they must be: the first to the left, the others to the right.
class Table {
  public:
    void add(std::vector<std::string> cells) { _rows.push_back(std::move(cells)); }

    [[nodiscard]] std::string text() const {
        std::vector<std::size_t> widths;
        for (const std::vector<std::string>& cells : _rows) {
            widths.resize(std::max(widths.size(), cells.size()));
            for (std::size_t i = 0; i < cells.size(); ++i) {
                widths[i] = std::max(widths[i], cells[i].size());
            }
        }
        std::string text;
        for (const std::vector<std::string>& cells : _rows) {
            for (std::size_t i = 0; i < cells.size(); ++i) {
                const std::string padding(widths[i] - cells[i].size(), ' ');
                if (i == 0) {
                    // No blanks at the end of a line that has a single cell.
                    text += cells[i] + (cells.size() > 1 ? padding : "");
                } else {
                    text += "   " + padding + cells[i];
                }
            }
            text += "\n";
        }
        return text;
    }

  private:
    std::vector<std::vector<std::string>> _rows;
};

/// Null where the contender has none.
const Measurement* at(const ContenderResult& contender, const std::size_t size) {
    const auto found = std::find_if(contender.measurements.begin(), contender.measurements.end(),
                                    [&](const Measurement& measurement) { return measurement.size == size; });
    return found == contender.measurements.end() ? nullptr : &*found;
}

class Comparison {
  public:
    Comparison(const RunResult& result, const Options& options) : _result(result) {
        std::set<Mode> modes;
        for (const ContenderResult& contender : result.contenders) {
            modes.insert(contender.mode);
            if (contender.measurements.empty()) {
                continue;
            }
            _ran.push_back(&contender);
            for (const Measurement& measurement : contender.measurements) {
                _sizes.insert(measurement.size);
            }
        }
        _name_modes = modes.size() > 1 || options.modes.size() > 1;
    }

    [[nodiscard]] std::string text() const {
        std::string text = title() + contenders();
        if (!_ran.empty()) {
            text += "\n# Median time of an operation" + alone_note() + ", us [95 % interval]\n" + times();
            if (_ran.size() > 1) {
                text += "\n# Ratio of times to " + references() + " [95 % interval]; below 1 is faster\n" + ratios();
            }
            if (moves_data()) {
                text += "\n# Bandwidth, GB/s (10^9 bytes)" + bus_note() + "\n" + bandwidths();
            }
            if (overlaps()) {
                text += "\n# Overlap with computation, % of the time alone\n" + overlap();
            }
        }
        return text + "\n" + remarks();
    }

  private:
    [[nodiscard]] std::string label(const ContenderResult& contender) const {
        return contender.name + (_name_modes ? std::string(" ") + to_string(contender.mode) : "");
    }

    [[nodiscard]] std::string title() const {
        const TestInfo& test = *_result.test;
        std::string text = std::string("# ") + test.title + ": " + std::to_string(_result.ranks) + " ranks";
        if (test.sized) {
            text += std::string(", ") + mpi_name(_result.type);
        }
        if (_result.pairs > 0) {
            text += ", " + std::to_string(_result.pairs) + (_result.pairs == 1 ? " pair" : " pairs");
        }
        if (_result.window_size > 1) {
            text += ", window of " + std::to_string(_result.window_size);
        }
        if (_result.kernels > 0) {
            text += ", " + std::to_string(_result.kernels) + (_result.kernels == 1 ? " kernel" : " kernels");
        }
        if (test.is_one_sided()) {
            text += ", " + _result.window_creation + ", " + _result.synchronisation;
        }
        return text + "\n";
    }

    [[nodiscard]] std::string contenders() const {
        std::map<std::string, std::string> seen;
        std::string text;
        for (const ContenderResult* contender : _ran) {
            if (contender->description.empty() || !seen.emplace(contender->name, contender->description).second) {
                continue;
            }
            text += "# " + contender->name + ": " + contender->description + "\n";
        }
        return text;
    }

    /// The first contender that ran in the same mode.
    [[nodiscard]] const ContenderResult& reference_of(const ContenderResult& contender) const {
        return **std::find_if(_ran.begin(), _ran.end(),
                              [&](const ContenderResult* other) { return other->mode == contender.mode; });
    }

    [[nodiscard]] std::string references() const {
        std::set<std::string> names;
        for (const ContenderResult* contender : _ran) {
            names.insert(reference_of(*contender).name);
        }
        std::string text;
        for (const std::string& name : names) {
            text += (text.empty() ? "" : " and ") + name + "'s";
        }
        return text + (_name_modes ? " in the same mode" : "");
    }

    template <typename Cell>
    [[nodiscard]] std::string block(const Cell& cell) const {
        Table table;
        std::vector<std::string> head = {_result.test->sized ? "# Size" : "#"};
        for (const ContenderResult* contender : _ran) {
            head.push_back(label(*contender));
        }
        table.add(std::move(head));
        for (const std::size_t size : _sizes) {
            std::vector<std::string> line = {_result.test->sized ? std::to_string(size) : ""};
            for (const ContenderResult* contender : _ran) {
                const Measurement* measurement = at(*contender, size);
                line.push_back(measurement == nullptr ? kMissing : cell(*contender, *measurement));
            }
            table.add(std::move(line));
        }
        return table.text();
    }

    [[nodiscard]] std::string times() const {
        return block([](const ContenderResult&, const Measurement& measurement) -> std::string {
            const Summary& summary = measurement.summary;
            if (summary.count == 0) {
                return kMissing;
            }
            return with_interval(digits(summary.median), digits(summary.median_95.low), digits(summary.median_95.high));
        });
    }

    [[nodiscard]] std::string ratios() const {
        return block([this](const ContenderResult& contender, const Measurement& measurement) -> std::string {
            const ContenderResult& reference = reference_of(contender);
            if (&reference == &contender) {
                return "1";
            }
            const Measurement* base = at(reference, measurement.size);
            if (base == nullptr) {
                return kMissing;
            }
            const Ratio ratio = ratio_of_medians(measurement.samples, base->samples);
            if (ratio.value <= 0) {
                return kMissing;
            }
            return with_interval(formatted("%.3f", ratio.value), formatted("%.3f", ratio.interval.low),
                                 formatted("%.3f", ratio.interval.high));
        });
    }

    [[nodiscard]] bool overlaps() const { return _result.test->family == Family::nonblocking_collective; }
    [[nodiscard]] std::string alone_note() const { return overlaps() ? " without computation" : ""; }

    [[nodiscard]] std::string overlap() const {
        return block([](const ContenderResult&, const Measurement& measurement) -> std::string {
            return measurement.overlap ? formatted("%.1f", measurement.overlap->overlap_percent) : kMissing;
        });
    }

    [[nodiscard]] bool moves_data() const { return _result.test->sized; }
    [[nodiscard]] double factor() const { return bus_factor(_result.test->collective, _result.ranks); }
    [[nodiscard]] std::string bus_note() const { return factor() > 0 ? "; bus bandwidth in parentheses" : ""; }

    [[nodiscard]] std::string bandwidths() const {
        return block([this](const ContenderResult&, const Measurement& measurement) -> std::string {
            if (measurement.summary.median <= 0) {
                return kMissing;
            }
            const std::size_t size = measurement.transmit_size > 0 ? measurement.transmit_size : measurement.size;
            // Bandwidth tests know how many messages went side by side: bytes x streams are their mean's bandwidth x
            // time.
            const double bytes =
                measurement.bandwidth > 0 ? measurement.bandwidth * measurement.average : static_cast<double>(size);
            const double gigabytes = bytes / measurement.summary.median / 1e3;
            // Small messages move kilobytes a second; they too keep some digits.
            const char* const format = gigabytes < 0.1 ? "%.5f" : "%.3f";
            std::string cell = formatted(format, gigabytes);
            if (factor() > 0) {
                cell += " (" + formatted(format, gigabytes * factor()) + ")";
            }
            return cell;
        });
    }

    [[nodiscard]] std::string remarks() const {
        std::string text;
        for (const ContenderResult& contender : _result.contenders) {
            if (!contender.unavailable.empty()) {
                text += "# " + label(contender) + " could not run: " + contender.unavailable + "\n";
            }
            if (const std::string how = stops(contender); !how.empty()) {
                text += "# " + label(contender) + " " + how + "\n";
            }
        }
        for (const ContenderResult* contender : _ran) {
            for (const Measurement& measurement : contender->measurements) {
                if (measurement.errors == 0) {
                    continue;
                }
                text += "# " + label(*contender) + " WRONG DATA at " + std::to_string(measurement.size) +
                        " bytes: " + std::to_string(measurement.errors) + " elements; " + measurement.first_error +
                        "\n";
            }
            const auto unchecked = std::count_if(contender->measurements.begin(), contender->measurements.end(),
                                                 [](const Measurement& m) { return !m.validated && m.errors == 0; });
            if (unchecked > 0) {
                text += "# " + label(*contender) + ": data not checked at " + std::to_string(unchecked) + " of " +
                        std::to_string(contender->measurements.size()) + " sizes\n";
            }
        }
        return text;
    }

    /// "stopped: precise at all sizes, after 6 to 30 samples"; nothing where there are none.
    [[nodiscard]] static std::string stops(const ContenderResult& contender) {
        std::map<std::string, std::vector<std::size_t>> sizes;
        std::size_t fewest = std::numeric_limits<std::size_t>::max();
        std::size_t most = 0;
        for (const Measurement& measurement : contender.measurements) {
            if (measurement.summary.count == 0) {
                continue;
            }
            sizes[to_string(measurement.stopped)].push_back(measurement.size);
            fewest = std::min(fewest, measurement.summary.count);
            most = std::max(most, measurement.summary.count);
        }
        if (sizes.empty()) {
            return "";
        }
        std::string text;
        for (const auto& [reason, at_sizes] : sizes) {
            text += (text.empty() ? "stopped: " : "; ") + reason;
            if (sizes.size() == 1) {
                if (at_sizes.size() > 1) {
                    text += " at all sizes";
                }
                continue;
            }
            text += " at";
            for (std::size_t i = 0; i < at_sizes.size(); ++i) {
                text += (i == 0 ? " " : ", ") + std::to_string(at_sizes[i]);
            }
        }
        text += ", after " + std::to_string(fewest);
        if (most != fewest) {
            text += " to " + std::to_string(most);
        }
        return text + (most == 1 ? " sample" : " samples");
    }

    const RunResult& _result;
    std::vector<const ContenderResult*> _ran;
    std::set<std::size_t> _sizes;
    bool _name_modes = false;
};

}  // namespace

std::string first_table(const std::vector<RunResult>& results) {
    const RunResult& any = results.front();
    std::string head = std::string("# ") + any.test->title + ": " + std::to_string(any.ranks) + " ranks\n";
    std::string remarks;
    std::set<std::string> told;
    const auto tell_once = [&](std::string& text, const std::string& line) {
        if (told.insert(line).second) {
            text += line;
        }
    };
    Table table;
    table.add({"# Operation", "Size", "Allocation", "Contender", "First", "Second", "Ratio", "Launches"});
    const auto cell = [](const Summary& summary) {
        return summary.count == 0
                   ? kMissing
                   : with_interval(digits(summary.median), digits(summary.minimum), digits(summary.maximum));
    };
    for (std::size_t run = 0; run + 1 < results.size(); run += 2) {
        const RunResult& first = results[run];
        const std::string operation = first.operation.substr(first.operation.find(' ') + 1);
        std::set<std::size_t> sizes;
        for (const ContenderResult& contender : first.contenders) {
            for (const Measurement& measurement : contender.measurements) {
                sizes.insert(measurement.size);
            }
            if (!contender.description.empty()) {
                tell_once(head, "# " + contender.name + ": " + contender.description + "\n");
            }
            if (!contender.unavailable.empty()) {
                tell_once(remarks, "# " + contender.name + " could not run: " + contender.unavailable + "\n");
            }
        }
        for (const std::size_t size : sizes) {
            for (std::size_t i = 0; i < first.contenders.size(); ++i) {
                const ContenderResult& contender = first.contenders[i];
                const Measurement* const one = at(contender, size);
                const Measurement* const two = at(results[run + 1].contenders[i], size);
                if (one == nullptr || two == nullptr) {
                    continue;
                }
                const double ratio = two->summary.median > 0 ? one->summary.median / two->summary.median : 0;
                table.add({operation, std::to_string(size), std::to_string(first.allocation), contender.name,
                           cell(one->summary), cell(two->summary), ratio > 0 ? digits(ratio) : kMissing,
                           std::to_string(one->summary.count)});
                if (one->errors != 0) {
                    remarks += "# " + contender.name + " WRONG DATA: " + operation + " of " + std::to_string(size) +
                               " bytes: " + std::to_string(one->errors) + " elements; " + one->first_error + "\n";
                } else if (!one->validated) {
                    tell_once(remarks, "# " + contender.name + ": data not checked\n");
                }
            }
        }
    }
    return head + "\n# Median time over launches [least, greatest], us: the first of a process, and the same again\n" +
           table.text() + (remarks.empty() ? "" : "\n" + remarks);
}

std::string comparison_table(const RunResult& result, const Options& options) {
    return Comparison(result, options).text();
}

}  // namespace awaken::bench
