// Reads the figures, in the order of precedence: the built-in ones, the tuning file, the variable.
#include "transfer/tuning.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "base/printable.h"
#include "base/spelling.h"

namespace awaken::transfer {
namespace {

using Unit = TuningFigure::Unit;

constexpr std::uint64_t kKiB = std::uint64_t{1} << 10;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kMicrosecond = 1'000;
constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kAnySize = std::uint64_t{1} << 40;
constexpr std::uint64_t kLeastChunk = 4 * kKiB;
constexpr std::uint64_t kMostChunks = 4096;
/// A file with all figures of a hundred models takes a quarter of this.
constexpr std::size_t kLargestFile = std::size_t{1} << 20;

constexpr const char* kNotMeasured = "not measured";

/// Every figure, once. Defaults are those of the struct. The last column names what set them.
constexpr std::array kFigures = {
    TuningFigure{"small_bytes", Unit::bytes, 0, kGiB, &Tuning::small_bytes,
                 "messages up to this size are copied out when their receiver is not there soon", kNotMeasured},
    TuningFigure{"small_watch_us", Unit::microseconds, 0, kSecond, &Tuning::small_watch,
                 "how long the sender of a small message watches for its receiver before that", kNotMeasured},
    TuningFigure{"small_wait_us", Unit::microseconds, 0, kSecond, &Tuning::small_wait,
                 "the same, when a nonblocking send of one is completed", kNotMeasured},
    TuningFigure{"large_watch_us", Unit::microseconds, 0, 60 * kSecond, &Tuning::large_watch,
                 "how long the sender of a larger message does, once more for each 16 MiB", kNotMeasured},
    TuningFigure{
        "first_watch_us", Unit::microseconds, 0, 60 * kSecond, &Tuning::first_watch,
        "how long the first message from device memory to a process waits for it to find its GPU runtime, once "
        "more for each 16 MiB",
        kNotMeasured},
    TuningFigure{"send_burst_us", Unit::microseconds, 0, kSecond, &Tuning::send_burst,
                 "nonblocking sends within this time of each other share questions about the default stream",
                 "64 of 8 B to 128 KiB in a row: 3.1 to 5.5 us each instead of 4.3 to 7.0 (H100)"},
    TuningFigure{"bounce_chunk_bytes", Unit::bytes, kLeastChunk, kGiB, &Tuning::bounce_chunk_bytes,
                 "longest part of a copy to the host; the first part of any copy is a quarter", kNotMeasured},
    TuningFigure{"bounce_pool_bytes", Unit::bytes, kLeastChunk, kAnySize, &Tuning::bounce_pool_bytes,
                 "most exported device memory of a process", kNotMeasured},
    TuningFigure{"copy_first_bytes", Unit::bytes, 0, kGiB, &Tuning::copy_first_bytes,
                 "messages up to this size from an allocation of more than 64 MiB are copied until mapping it pays; 0: "
                 "none",
                 "opening 800 MB takes 5 ms, and 0.2 up to 64 MiB; a copy 10 us (H200)"},
    TuningFigure{"ring_chunk_bytes", Unit::bytes, kLeastChunk, kGiB, &Tuning::ring_chunk_bytes,
                 "chunks of a message in the shared pinned ring", kNotMeasured},
    TuningFigure{"ring_chunks", Unit::count, 1, kMostChunks, &Tuning::ring_chunks, "chunks of one ring", kNotMeasured},
    TuningFigure{"rings", Unit::count, 1, kMostChunks, &Tuning::rings, "most rings of a process", kNotMeasured},
    TuningFigure{"host_offer_bytes", Unit::bytes, 0, kAnySize, &Tuning::host_offer_bytes,
                 "messages from host memory to device memory are fetched by the receiver from this size on",
                 kNotMeasured},
    TuningFigure{"network_bytes", Unit::bytes, 0, kAnySize, &Tuning::network_bytes,
                 "messages between nodes are pipelined from this size on", kNotMeasured},
    TuningFigure{"network_fragment_bytes", Unit::bytes, kLeastChunk, kGiB, &Tuning::network_fragment_bytes,
                 "fragments of such a message", kNotMeasured},
    TuningFigure{"network_window", Unit::count, 1, kMostChunks, &Tuning::network_window,
                 "fragments of all such messages from one process to another that are under way at once", kNotMeasured},
    TuningFigure{"kernel_copy_bytes", Unit::bytes, 0, kAnySize, &Tuning::kernel_copy_bytes,
                 "copies between GPUs up to this size are done by a kernel; 0: none", kNotMeasured},
    TuningFigure{"kernel_batch_copies", Unit::count, 0, 64, &Tuning::kernel_batch_copies,
                 "this many copies of up to 64 KiB that start together are done by one kernel; 0: never",
                 "64 of 32 KiB: over after 17 us instead of 51; 8: 12 instead of 13; 4: 12.7 instead of 12.6 (H100)"},
    TuningFigure{"cpu_copy_bytes", Unit::bytes, 0, kAnySize, &Tuning::cpu_copy_bytes,
                 "messages up to this size are copied by the CPU where it reaches device memory", kNotMeasured},
    TuningFigure{"collective_blocks", Unit::count, 1, kMostChunks, &Tuning::collective_blocks,
                 "most blocks of a kernel that combines or moves what ranks of a node have", kNotMeasured},
    TuningFigure{"collective_overlap_blocks", Unit::count, 1, kMostChunks, &Tuning::collective_overlap_blocks,
                 "the same for nonblocking collectives, beside which the program computes", kNotMeasured},
    TuningFigure{"collective_block_bytes", Unit::bytes, 1, kGiB, &Tuning::collective_block_bytes,
                 "work of such a kernel that is worth a block",
                 "MPI_Allreduce, 32 to 128 KiB: 0.91 to 0.98 of the time with 16K; with 4K the same (H100)"},
    TuningFigure{"collective_chunk_bytes", Unit::bytes, kLeastChunk, kGiB, &Tuning::collective_chunk_bytes,
                 "chunks of large collectives that pass through host memory", kNotMeasured},
    TuningFigure{"pack_row_bytes", Unit::bytes, 1, kAnySize, &Tuning::pack_row_bytes,
                 "blocks of datatypes from this length on are copied by 2-D copies, shorter ones by a kernel",
                 kNotMeasured},
    TuningFigure{"pack_direct_bytes", Unit::bytes, 0, kAnySize, &Tuning::pack_direct_bytes,
                 "up to this size a kernel packs straight into pinned host memory", kNotMeasured},
    TuningFigure{"strided_pull_bytes", Unit::bytes, 0, kAnySize, &Tuning::strided_pull_bytes,
                 "strided memory up to this size is read by its receiver without being packed first", kNotMeasured},
};

constexpr std::array kMeasured = {
    MeasuredFigure{"NVIDIA H200", "NVLink", "small_watch_us", "8",
                   "copying 8 bytes and waiting takes 7.2 us: whoever watches as long as that is never off the best by "
                   "more than a factor of two"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "kernel_copy_bytes", "0",
                   "a kernel was slower at each size: 10.2 against 7.2 us at 8 B, 57.1 against 50.9 us at 16 MiB"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "bounce_chunk_bytes", "16M",
                   "pool memory in equal parts, 64 and 256 MiB: 304 and 332 GB/s; 8M 291 and 296, 64M 290 and 349"},
    MeasuredFigure{
        "NVIDIA H200", "NVLink", "ring_chunk_bytes", "1M",
        "1 and 256 MiB: 14.2 and 47.6 GB/s, of 55 that the link has; with 512K 13.8 and 42.5, with 2M 12.7 and 50.6"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "ring_chunks", "4",
                   "256 MiB: 47.3 to 47.7 GB/s with 4, 8 and 16, 36.8 with 2; 4 MiB: 30.6 GB/s, with 8 and 16 26.7"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "rings", "64",
                   "64 messages of 512 KiB and 4 MiB under way: 11.7 and 40.6 GB/s, with 32 2.8 and 2.3, with 8 1.7 "
                   "and 1.7; 8 of 16 MiB: 46 GB/s with 8 to 64, 2.5 with 4"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "host_offer_bytes", "128K",
                   "fetched in 0.87 and 0.72 of the plain time at 128 KiB from ordinary and pinned memory; at 64 KiB "
                   "0.89, but 1.17 with many under way"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "network_bytes", "256K",
                   "pretended nodes: in fragments 0.83 of the plain time at 256 KiB, 0.40 at 512 KiB, 0.28 at 4 MiB"},
    MeasuredFigure{
        "NVIDIA H200", "NVLink", "network_fragment_bytes", "2M",
        "pretended nodes, 1 and 256 MiB: 512K to 4M within 15 % of each other; with 8M 0.73 of the rate at 256 MiB"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "network_window", "4",
                   "pretended nodes, 256 MiB: 9.5 GB/s; with 2 9.0, with 8 9.2, with 16 7.2"},
    MeasuredFigure{
        "NVIDIA H200", "NVLink", "collective_blocks", "64",
        "MPI_Allreduce, 1, 8 and 64 MiB: 54, 202 and 307 GB/s; with 32 51, 207 and 299, with 128 59, 195 and 307"},
    MeasuredFigure{
        "NVIDIA H200", "NVLink", "collective_overlap_blocks", "40",
        "X^T X, reductions of 25 and 47 % of the products: products 1.06 and 1.09 times as long beside them, "
        "with 64 1.10 and 1.17; both together 1.055 and 1.012 of the ideal, with 64 1.056 and 1.034, with "
        "24 1.076 and 1.060"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "collective_block_bytes", "4K",
                   "MPI_Allreduce, 32 KiB to 2 MiB: 0.83 to 0.96 of the time with 16K, 0.90 to 0.99 of that with 64K "
                   "but at 8 KiB"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "collective_chunk_bytes", "2M",
                   "pretended nodes, MPI_Allreduce, 8 and 64 MiB: 512K to 4M equal within the spread"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "pack_row_bytes", "32K",
                   "blocks of 32 KiB: a kernel and 2-D copies equal within 2 % from 64 KiB to 16 MiB"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "pack_direct_bytes", "4M",
                   "straight to pinned memory in 0.68 to 0.86 of the time through device memory from 256 KiB to 4 MiB "
                   "with blocks of 8 bytes, 0.79 to 0.98 with 512"},
    MeasuredFigure{"NVIDIA H200", "NVLink", "strided_pull_bytes", "4M",
                   "blocks of 8 bytes, read where they are in 0.55 to 0.69 of the time of packing first up to 1 MiB, "
                   "0.69 to 0.97 at 4 MiB, 1.63 at 16 MiB"},
};

bool is_space(const char letter) {
    return letter == ' ' || letter == '\t' || letter == '\r';
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_space(text.front())) {
        text.remove_prefix(1);
    }
    while (!text.empty() && is_space(text.back())) {
        text.remove_suffix(1);
    }
    return text;
}

/// The figure's number in the unit of its bounds. Checks the form only.
std::uint64_t parse_number(const Unit unit, const std::string& value, const std::string& what) {
    if (unit == Unit::bytes) {
        return parse_bytes(value, what);
    }
    const char* const end = value.data() + value.size();
    std::uint64_t whole = 0;
    const auto [stop, problem] = std::from_chars(value.data(), end, whole);
    if (unit == Unit::count) {
        if (problem != std::errc{} || stop != end) {
            throw Error(what + "=" + excerpt(value) + " is not a whole number", "use a number such as 4");
        }
        return whole;
    }
    const auto refuse = [&] {
        return Error(what + "=" + excerpt(value) + " is not a number of microseconds",
                     "use a number with at most three decimals, such as 2.5");
    };
    if (problem != std::errc{} || whole > std::numeric_limits<std::uint64_t>::max() / kMicrosecond - 1) {
        throw refuse();
    }
    std::uint64_t nanoseconds = whole * kMicrosecond;
    if (stop == end) {
        return nanoseconds;
    }
    const std::string_view decimals(stop + 1, static_cast<std::size_t>(end - stop) - 1);
    if (*stop != '.' || decimals.empty() || decimals.size() > 3) {
        throw refuse();
    }
    std::uint64_t weight = kMicrosecond / 10;
    for (const char digit : decimals) {
        if (digit < '0' || digit > '9') {
            throw refuse();
        }
        nanoseconds += static_cast<std::uint64_t>(digit - '0') * weight;
        weight /= 10;
    }
    return nanoseconds;
}

std::string number_text(const Unit unit, const std::uint64_t value) {
    if (unit == Unit::bytes && value != 0) {
        for (const auto& [size, suffix] : {std::pair{kGiB, 'G'}, std::pair{kMiB, 'M'}, std::pair{kKiB, 'K'}}) {
            if (value % size == 0) {
                return std::to_string(value / size) + suffix;
            }
        }
    }
    if (unit == Unit::microseconds) {
        std::string text = std::to_string(value / kMicrosecond);
        if (const std::uint64_t rest = value % kMicrosecond; rest != 0) {
            std::string decimals = std::to_string(rest);
            decimals.insert(0, 3 - decimals.size(), '0');
            text += "." + decimals.substr(0, decimals.find_last_not_of('0') + 1);
        }
        return text;
    }
    return std::to_string(value);
}

std::uint64_t value_of(const TuningFigure& figure, const Tuning& tuning) {
    if (const auto* const size = std::get_if<std::size_t Tuning::*>(&figure.member)) {
        return tuning.**size;
    }
    return static_cast<std::uint64_t>((tuning.*std::get<std::chrono::nanoseconds Tuning::*>(figure.member)).count());
}

/// The known figure nearest to `name`, as the second half of a remedy; empty when none is near.
std::string did_you_mean(const std::string_view name) {
    constexpr std::size_t kFarthest = 4;
    std::size_t distance = kFarthest + 1;
    std::string text;
    for (const TuningFigure& figure : kFigures) {
        if (const std::size_t candidate = edit_distance(name, figure.name); candidate < distance) {
            distance = candidate;
            text = std::string("did you mean ") + figure.name + "? ";
        }
    }
    return text;
}

Error unknown_figure(const std::string& cause, const std::string_view name) {
    return {cause, did_you_mean(name) + "`awaken settings` lists all figures"};
}

std::string_view variable_in(char** const environment, const std::string_view name) {
    for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        if (text.size() > name.size() && text.starts_with(name) && text[name.size()] == '=') {
            return text.substr(name.size() + 1);
        }
    }
    return {};
}

/// A file's figures by section. Figures for all models together are under the empty name.
using Sections = std::map<std::string, std::map<std::string_view, std::string, std::less<>>, std::less<>>;

Sections read_sections(std::string_view text, const std::string& name) {
    Sections sections;
    std::string section;
    for (std::size_t number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        const std::string where = name + ":" + std::to_string(number);
        const TuningLine parsed = parse_tuning_line(line, where);
        if (parsed.kind == TuningLine::Kind::section) {
            section = parsed.name;
        } else if (parsed.kind == TuningLine::Kind::assignment) {
            const TuningFigure* const figure = find_figure(parsed.name);
            if (figure == nullptr) {
                throw unknown_figure(where + ": there is no figure " + excerpt(parsed.name), parsed.name);
            }
            Tuning scratch;
            figure->set(scratch, std::string(parsed.value), where + ": " + figure->name);
            if (!sections[section].emplace(figure->name, parsed.value).second) {
                throw Error(where + ": " + figure->name + " is set twice for the same GPU", "remove one of the lines");
            }
        }
    }
    return sections;
}

void apply_text(Tuning& tuning, const std::string& model, const std::string_view text, const std::string& name) {
    const Sections sections = read_sections(text, name);
    const auto apply = [&](const std::string& section) {
        if (const auto found = sections.find(section); found != sections.end()) {
            for (const auto& [figure, value] : found->second) {
                find_figure(figure)->set(tuning, value, name + ": " + std::string(figure));
            }
        }
    };
    apply("");
    if (!model.empty()) {
        apply(model);
    }
}

/// AWAKEN_TUNE="name=value,name=value".
void apply_variable(Tuning& tuning, char** const environment) {
    constexpr std::string_view kVariable = "AWAKEN_TUNE";
    std::map<std::string_view, std::string> seen;
    for (const auto& [name, value] : figures_in(variable_in(environment, kVariable), std::string(kVariable))) {
        const TuningFigure* const figure = find_figure(name);
        if (figure == nullptr) {
            throw unknown_figure(std::string(kVariable) + ": there is no figure " + excerpt(name), name);
        }
        if (!seen.emplace(figure->name, value).second) {
            throw Error(std::string(kVariable) + ": " + figure->name + " is set twice", "remove one of the two");
        }
        figure->set(tuning, std::string(value), std::string(kVariable) + ": " + figure->name);
    }
}

Tuning checked(const Tuning& tuning) {
    if (tuning.bounce_pool_bytes < tuning.bounce_chunk_bytes) {
        throw Error("bounce_pool_bytes (" + number_text(Unit::bytes, tuning.bounce_pool_bytes) +
                        ") is less than one chunk of it (bounce_chunk_bytes, " +
                        number_text(Unit::bytes, tuning.bounce_chunk_bytes) + ")",
                    "make the pool larger or the chunks smaller");
    }
    return tuning;
}

/// The text of a file. If the file may be absent, the text is empty where the file does not exist or cannot be opened
/// (HOME may be somebody else's).
std::string read_file(const std::string& file, const bool may_be_absent) {
    const InputFile read = read_input_file(file, kLargestFile);
    if (!read.why_not.empty() && !(may_be_absent && read.unopened)) {
        throw Error("the tuning file " + file + " cannot be read (" + read.why_not + ")",
                    "correct AWAKEN_TUNING or the file's rights, or write one with `awaken tune`");
    }
    return read.text;
}

}  // namespace

std::vector<std::pair<std::string_view, std::string_view>> figures_in(std::string_view text, const std::string& where) {
    std::vector<std::pair<std::string_view, std::string_view>> figures;
    for (bool more = !trimmed(text).empty(); more;) {
        const std::size_t comma = text.find(',');
        const std::string_view word = trimmed(text.substr(0, comma));
        const std::size_t equals = word.find('=');
        const std::string_view name = trimmed(word.substr(0, equals));
        const std::string_view value = equals == std::string_view::npos ? "" : trimmed(word.substr(equals + 1));
        if (name.empty() || value.empty()) {
            throw Error(where + ": " + excerpt(word) + " is not understood",
                        "write NAME=VALUE, separated by commas, such as ring_chunks=16,rings=8");
        }
        figures.emplace_back(name, value);
        more = comma != std::string_view::npos;
        text.remove_prefix(more ? comma + 1 : text.size());
    }
    return figures;
}

std::string TuningFigure::text(const Tuning& tuning) const {
    return number_text(unit, value_of(*this, tuning));
}

void TuningFigure::set(Tuning& tuning, const std::string& value, const std::string& what) const {
    const std::uint64_t number = parse_number(unit, value, what);
    if (number < least || number > most) {
        throw Error(what + "=" + excerpt(value) + " is out of bounds",
                    "use " + number_text(unit, least) + " to " + number_text(unit, most));
    }
    if (const auto* const size = std::get_if<std::size_t Tuning::*>(&member)) {
        tuning.** size = number;
    } else {
        tuning.*std::get<std::chrono::nanoseconds Tuning::*>(member) =
            std::chrono::nanoseconds(static_cast<std::chrono::nanoseconds::rep>(number));
    }
}

const TuningFigure* find_figure(const std::string_view name) noexcept {
    const auto* const found = std::find_if(kFigures.begin(), kFigures.end(),
                                           [name](const TuningFigure& figure) { return name == figure.name; });
    return found != kFigures.end() ? found : nullptr;
}

std::span<const MeasuredFigure> measured_figures() noexcept {
    return kMeasured;
}

void apply_measured(Tuning& tuning, const std::span<const MeasuredFigure> rows, const std::string& model,
                    const std::string& link) {
    for (const MeasuredFigure& row : rows) {
        if (model != row.model || (std::string_view(row.link) != "*" && link != row.link)) {
            continue;
        }
        const std::string where = std::string("the built-in figures of ") + row.model + ": " + row.figure;
        const TuningFigure* const figure = find_figure(row.figure);
        if (figure == nullptr) {
            throw unknown_figure(where + " is no figure", row.figure);
        }
        figure->set(tuning, row.value, where);
    }
}

TuningLine parse_tuning_line(std::string_view line, const std::string& where) {
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) {
        return {};
    }
    if (line.front() == '[') {
        const std::string_view model = line.back() == ']' ? trimmed(line.substr(1, line.size() - 2)) : "";
        if (model.empty()) {
            throw Error(where + ": " + excerpt(line) + " names no GPU", "write [MODEL], such as [NVIDIA H200]");
        }
        return {TuningLine::Kind::section, model, {}};
    }
    const std::size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals));
    const std::string_view value = equals == std::string_view::npos ? "" : trimmed(line.substr(equals + 1));
    if (name.empty() || value.empty()) {
        throw Error(where + ": " + excerpt(line) + " is not understood", "write NAME = VALUE, [MODEL] or # COMMENT");
    }
    return {TuningLine::Kind::assignment, name, value};
}

Tuning Tuning::from_text(const std::string& gpu_model, const std::string& link, const std::string_view text,
                         const std::string& name, char** environment) {
    Tuning tuning;
    apply_measured(tuning, kMeasured, gpu_model, link);
    apply_text(tuning, gpu_model, text, name);
    apply_variable(tuning, environment);
    return checked(tuning);
}

Tuning Tuning::find(const std::string& gpu_model, const std::string& link, const std::string& file,
                    char** environment) {
    const std::string path = file.empty() ? default_file(environment) : file;
    const std::string text = path.empty() ? "" : read_file(path, file.empty());
    return from_text(gpu_model, link, text, path, environment);
}

std::string Tuning::default_file(char** environment) {
    constexpr std::string_view kName = "/awaken/tuning.conf";
    // The XDG specification tells programs to ignore relative paths.
    if (const std::string_view folder = variable_in(environment, "XDG_CONFIG_HOME"); folder.starts_with('/')) {
        return std::string(folder).append(kName);
    }
    if (const std::string_view home = variable_in(environment, "HOME"); home.starts_with('/')) {
        return std::string(home).append("/.config").append(kName);
    }
    return "";
}

std::span<const TuningFigure> Tuning::figures() noexcept {
    return kFigures;
}

const std::vector<SettingDescription>& Tuning::descriptions() {
    // Leaked, so that other code can read it while static objects are destroyed.
    static const auto* const table = [] {
        static const auto* const texts = [] {
            auto* const all = new std::vector<std::string>;
            for (const TuningFigure& figure : kFigures) {
                all->push_back(figure.text(Tuning{}));
            }
            return all;
        }();
        auto* const result = new std::vector<SettingDescription>;
        for (std::size_t i = 0; i < kFigures.size(); ++i) {
            const TuningFigure& figure = kFigures[i];
            const char* const values = figure.unit == Unit::bytes   ? "bytes, with K, M or G"
                                       : figure.unit == Unit::count ? "number"
                                                                    : "microseconds";
            result->push_back({figure.name, values, (*texts)[i].c_str(), figure.meaning});
        }
        return result;
    }();
    return *table;
}

}  // namespace awaken::transfer
