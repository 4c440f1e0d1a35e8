// One table holds every option: how it is spelt, what it means, what it does. Parsing (getopt_long, as OMB parses), the
// help text and the documentation's list come from it; which test takes which option of OMB is in the catalogue.
#include "engine/options.h"

#include <getopt.h>
#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "base/printable.h"
#include "base/settings.h"
#include "engine/printer.h"

namespace awaken::bench {
namespace {

constexpr std::size_t kSmallestMemoryLimit = std::size_t{1} << 20;
constexpr int kMostValidationWarmup = 10;
constexpr int kMostPercentiles = 5;
constexpr int kMostThreads = 128;
/// Of a window. What the MPI holds for each has to fit into memory, which would not be found out before it is full.
constexpr int kMostMessages = 1 << 20;
/// What OMB's int and a count of MPI's hold: each iteration leaves a sample, and ranks reduce all samples of a size at
/// once.
constexpr std::size_t kMostIterations = std::numeric_limits<int>::max();

// Options of ours have no letter.
enum OwnOption : int {
    kOmbVersion = 256,
    kNoCheck,
    kAssumeGpuAware,
    kStartLimit,
    kSelfTest,
    kJson,
    kCompare,
    kLauncher,
    kMpiexec,
    kRanks,
    kListen,
    kTurns,
    kMode,
    kPrecision,
    kMaxTime,
    kAdaptive,
    kGpuMap,
    kBuffers,
    kUnaligned,
    kPartitions,
    kStepFactor,
    kNoProgress,
    kQuiet,
    kNative,
    kEmulate,
    kList,
};

/// A command line being read.
struct Parser {
    const TestInfo& test;
    CommandLine line;
    std::set<int> given;  ///< codes of the options that occurred

    [[nodiscard]] Options& options() { return line.options; }
    [[nodiscard]] bool has(int code) const { return given.count(code) != 0; }
    void note(const std::string& text) { line.options.notes.push_back(text); }
};

struct Row {
    int code;  ///< OMB's letter, or an OwnOption
    const char* name;
    int argument;  ///< of getopt_long
    const char* placeholder;
    const char* meaning;
    void (*apply)(Parser& parser, const std::string& value);  ///< null: handled by the caller (help, version, list)
};

/// "-m, --message-size [MIN:]MAX", "-z[P,P,..], --tail-lat[=P,P,..]": an argument that may be missing is attached.
std::string spelling(const Row& row) {
    const bool attached = row.argument == optional_argument && row.placeholder[0] != '\0';
    std::string text = "    ";
    if (row.code < kOmbVersion) {
        text = std::string("-") + static_cast<char>(row.code) +
               (attached ? std::string("[") + row.placeholder + "]" : "") + ", ";
    }
    text += std::string("--") + row.name;
    if (attached) {
        return text + "[=" + row.placeholder + "]";
    }
    return text + (row.placeholder[0] == '\0' ? "" : " ") + row.placeholder;
}

/// "-f" or "--json", for messages.
std::string short_spelling(const Row& row) {
    if (row.code < kOmbVersion) {
        return std::string("-") + static_cast<char>(row.code);
    }
    return std::string("--") + row.name;
}

std::string quoted(const std::string& option, const std::string& value) {
    return option + " '" + excerpt(value) + "'";
}

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::size_t begin = 0;
    for (;;) {
        const std::size_t end = text.find(separator, begin);
        parts.push_back(text.substr(begin, end - begin));
        if (end == std::string::npos) {
            return parts;
        }
        begin = end + 1;
    }
}

bool equals_ignoring_case(const std::string& a, const char* b) {
    return strcasecmp(a.c_str(), b) == 0;
}

/// A whole number in [least, most]; an Error that names the option and the range otherwise.
template <typename Number>
Number parse_number(const std::string& option, const std::string& text, Number least,
                    Number most = std::numeric_limits<Number>::max()) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) {
        return value;
    }
    std::string remedy = "use a whole number, at least " + std::to_string(least);
    if (most != std::numeric_limits<Number>::max()) {
        remedy += " and at most " + std::to_string(most);
    }
    const bool begins = error != std::errc::invalid_argument;
    const bool whole = begins && end == text.data() + text.size();  // not so 1e3, 2.5, 5x
    throw Error(quoted(option, text) + (whole    ? " is out of range"
                                        : begins ? " is not a whole number"
                                                 : " is not a number"),
                remedy);
}

/// A positive fraction, also as a percentage.
double parse_fraction(const std::string& option, const std::string& text) {
    const bool percent = !text.empty() && text.back() == '%';
    const std::string number = percent ? text.substr(0, text.size() - 1) : text;
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc() && end == number.data() + number.size() && std::isfinite(value)) {
        if (percent) {
            value /= 100;
        }
        if (value > 0 && value < 1) {
            return value;
        }
    }
    throw Error(quoted(option, text) + " is not a fraction between 0 and 1", "use 0.01 or 1%, for example");
}

BufferChoice parse_buffer(const std::string& option, const std::string& text) {
    if (text == "H") {
        return {BufferKind::host, false};
    }
    if (text == "D") {
        return {BufferKind::device, false};
    }
    if (text == "MD") {
        return {BufferKind::managed, true};
    }
    if (text == "MH" || text == "M") {
        return {BufferKind::managed, false};
    }
    if (text == "P") {
        return {BufferKind::pinned, false};
    }
    if (text == "R") {
        return {BufferKind::registered, false};
    }
    if (text == "A") {
        return {BufferKind::pool, false};
    }
    throw Error(option + (option.empty() ? "" : " ") + "'" + text + "' is not a kind of buffer",
                "use H (host), D (device), MD or MH (managed), P (pinned), R (registered) or A (pool)");
}

void set_message_size(Parser& parser, const std::string& value) {
    const std::size_t colon = value.find(':');
    if (value.empty() || value == ":" ||
        value.find(':', colon == std::string::npos ? colon : colon + 1) != std::string::npos) {
        throw Error(quoted("-m", value) + " is not a range of sizes",
                    "use MAX, MIN:MAX, MIN: or :MAX, such as -m 1:4M");
    }
    const auto size = [&](const std::string& text) {
        const std::size_t bytes = parse_bytes(text, "-m");
        if (bytes == 0) {
            throw Error(quoted("-m", value) + " has a size of 0", "sizes begin at 1 byte");
        }
        return bytes;
    };
    Options& options = parser.options();
    if (colon == std::string::npos) {
        options.maximum_size = size(value);
        return;
    }
    const std::string minimum = value.substr(0, colon);
    const std::string maximum = value.substr(colon + 1);
    if (!minimum.empty()) {
        options.minimum_size = size(minimum);
    }
    if (!maximum.empty()) {
        options.maximum_size = size(maximum);
    }
}

void set_validation(Parser& parser, const std::string& value) {
    Options& options = parser.options();
    options.validation_column = true;
    if (value.empty()) {
        return;
    }
    const std::vector<std::string> parts = split(value, ':');
    if (parts[0] != "log" || parts.size() > 2 || (parts.size() == 2 && parts[1].empty())) {
        throw Error(quoted("-c", value) + " is not understood", "use -c alone, or -clog:DIRECTORY to log mismatches");
    }
    options.validation_log = parts.size() == 2 ? parts[1] : "validation_output";
    struct stat existing{};
    if (stat(options.validation_log.c_str(), &existing) == 0) {
        throw Error("the log directory '" + options.validation_log + "' exists already",
                    "name another with -clog:DIRECTORY, or remove it");
    }
}

void set_derived_type(Parser& parser, const std::string& value) {
    const std::vector<std::string> parts = split(value, ':');
    DerivedType type;
    if (equals_ignoring_case(parts[0], "cont") && parts.size() == 1) {
        type.form = DerivedType::Form::contiguous;
    } else if (equals_ignoring_case(parts[0], "vect") && parts.size() == 3) {
        type.form = DerivedType::Form::vector;
        type.stride = parse_bytes(parts[1], "-D vect:STRIDE");
        type.block_length = parse_bytes(parts[2], "-D vect::BLOCK");
        if (type.block_length == 0 || type.stride < type.block_length) {
            throw Error(quoted("-D", value) + " has blocks that are empty or overlap",
                        "use a BLOCK of at least 1 element and a STRIDE that is no smaller");
        }
    } else if (equals_ignoring_case(parts[0], "indx") && parts.size() >= 2 && value.size() > 5) {
        type.form = DerivedType::Form::indexed;
        const std::string path = value.substr(5);
        const InputFile file = read_input_file(path, kLargestListFile);
        if (!file.why_not.empty()) {
            throw Error("cannot read '" + path + "' of -D (" + file.why_not + ")",
                        "name a file of lines 'displacement, block length'");
        }
        std::istringstream lines(file.text);
        std::string line;
        for (std::size_t number = 1; std::getline(lines, line); ++number) {
            const std::size_t first = line.find_first_not_of(" \t\r");
            if (first == std::string::npos || line[first] == '#') {
                continue;
            }
            DerivedType::Block block{};
            long long displacement = 0;
            long long length = 0;
            char rest = 0;
            if (std::sscanf(line.c_str(), " %lld , %lld %c", &displacement, &length, &rest) != 2 || displacement < 0 ||
                length <= 0) {
                throw Error(path + ", line " + std::to_string(number) + ": '" + excerpt(line) + "' is not a block",
                            "write 'displacement, block length' in elements of -T, such as '2, 10'");
            }
            block.displacement = static_cast<std::ptrdiff_t>(displacement);
            block.length = static_cast<std::size_t>(length);
            type.blocks.push_back(block);
        }
        if (type.blocks.empty()) {
            throw Error("'" + path + "' of -D has no blocks", "write 'displacement, block length' a line");
        }
    } else {
        throw Error(quoted("-D", value) + " is not a derived type", "use cont, vect:STRIDE:BLOCK or indx:FILE");
    }
    parser.options().derived_type = std::move(type);
}

void set_neighborhood(Parser& parser, const std::string& value) {
    const std::vector<std::string> parts = split(value, ':');
    Neighborhood neighborhood;
    if (equals_ignoring_case(parts[0], "cart") && parts.size() == 3) {
        neighborhood.dimensions = parse_number<int>("-N cart:DIMENSIONS", parts[1], 1, 16);
        neighborhood.radius = parse_number<int>("-N cart::RADIUS", parts[2], 1);
    } else if (equals_ignoring_case(parts[0], "graph") && value.size() > 6) {
        neighborhood.cartesian = false;
        neighborhood.graph_file = value.substr(6);
        if (const InputFile file = read_input_file(neighborhood.graph_file, kLargestListFile); !file.why_not.empty()) {
            throw Error("cannot read '" + neighborhood.graph_file + "' of -N (" + file.why_not + ")",
                        "name a file of lines 'source, destination'");
        }
    } else {
        throw Error(quoted("-N", value) + " is not a topology", "use cart:DIMENSIONS:RADIUS or graph:FILE");
    }
    parser.options().neighborhood = std::move(neighborhood);
}

void add_types(Parser& parser, const std::string& value) {
    using enum ElementType;
    std::vector<ElementType>& types = parser.options().types;
    const auto add = [&](ElementType type) {
        if (std::find(types.begin(), types.end(), type) == types.end()) {
            types.push_back(type);
        }
    };
    for (const std::string& name : split(value, ',')) {
        if (equals_ignoring_case(name, "mpi_char")) {
            add(char_);
        } else if (equals_ignoring_case(name, "mpi_int")) {
            add(int_);
        } else if (equals_ignoring_case(name, "mpi_float")) {
            add(float_);
        } else if (equals_ignoring_case(name, "mpi_double")) {
            add(double_);
        } else if (equals_ignoring_case(name, "all")) {
            for (const ElementType type : {char_, int_, float_}) {
                add(type);
            }
        } else {
            throw Error(quoted("-T", name) + " is not a datatype",
                        "use mpi_char, mpi_int, mpi_float, mpi_double, or all for the first three");
        }
    }
}

void set_percentiles(Parser& parser, const std::string& value) {
    std::vector<int>& percentiles = parser.options().percentiles;
    if (value.empty()) {
        percentiles = {50, 90, 99};
        return;
    }
    percentiles.clear();
    for (const std::string& text : split(value, ',')) {
        percentiles.push_back(parse_number<int>("-z", text, 1, 100));
    }
    if (percentiles.size() > kMostPercentiles) {
        throw Error(quoted("-z", value) + " has too many percentiles",
                    "use at most " + std::to_string(kMostPercentiles));
    }
}

void set_root(Parser& parser, const std::string& value) {
    Options& options = parser.options();
    if (equals_ignoring_case(value, "rotate")) {
        options.rotate_root = true;
    } else if (strncasecmp(value.c_str(), "fixed:", 6) == 0) {
        options.rotate_root = false;
        options.root = parse_number<int>("-k fixed:", value.substr(6), 0);
    } else {
        throw Error(quoted("-k", value) + " is not understood", "use fixed:RANK or rotate");
    }
}

void set_accelerator(Parser& parser, const std::string& value) {
    Accelerator& accelerator = parser.options().accelerator;
    if (equals_ignoring_case(value, "cuda")) {
        accelerator = Accelerator::cuda;
    } else if (equals_ignoring_case(value, "rocm")) {
        accelerator = Accelerator::rocm;
    } else if (equals_ignoring_case(value, "managed")) {
        accelerator = Accelerator::managed;
    } else if (equals_ignoring_case(value, "openacc")) {
        accelerator = Accelerator::openacc;
        parser.note(
            "-d openacc: buffers come from the GPU runtime itself, as with -d cuda or -d rocm; no OpenACC is used");
    } else {
        throw Error(quoted("-d", value) + " is not an accelerator", "use cuda, rocm, managed or openacc");
    }
}

void set_compute_target(Parser& parser, const std::string& value) {
    Options& options = parser.options();
    if (equals_ignoring_case(value, "cpu")) {
        options.compute_on_cpu = true;
        options.compute_on_gpu = false;
    } else if (equals_ignoring_case(value, "gpu")) {
        options.compute_on_cpu = false;
        options.compute_on_gpu = true;
    } else if (equals_ignoring_case(value, "both")) {
        options.compute_on_cpu = options.compute_on_gpu = true;
    } else {
        throw Error(quoted("-r", value) + " is not a compute target", "use cpu, gpu or both");
    }
}

void set_test_calls(Parser& parser, const std::string& value) {
    const Family family = parser.test.family;
    if (family == Family::threaded_latency || family == Family::process_latency) {
        const std::vector<std::string> parts = split(value, ':');
        if (parts.size() > 2) {
            throw Error(quoted("-t", value) + " is not understood", "use RECEIVERS or SENDERS:RECEIVERS");
        }
        for (const std::string& part : parts) {
            (void)parse_number<int>("-t", part, 1, kMostThreads);
        }
    } else {
        (void)parse_number<int>("-t", value, 0);
    }
    parser.options().test_calls = value;
}

void set_memory_limit(Parser& parser, const std::string& value) {
    std::size_t& limit = parser.options().memory_limit;
    limit = parse_bytes(value, "-M");
    if (limit < kSmallestMemoryLimit) {
        limit = kSmallestMemoryLimit;
        parser.note("-M " + value + " is too little: 1048576 bytes are used instead");
    }
}

void set_buffer_number(Parser& parser, const std::string& value) {
    if (equals_ignoring_case(value, "single")) {
        parser.options().multiple_buffers = false;
    } else if (equals_ignoring_case(value, "multiple")) {
        parser.options().multiple_buffers = true;
    } else {
        throw Error(quoted("-b", value) + " is not understood", "use single or multiple");
    }
}

void set_graph(Parser& parser, const std::string& value) {
    for (const std::string& form : split(value, ',')) {
        if (!equals_ignoring_case(form, "tty") && !equals_ignoring_case(form, "png") &&
            !equals_ignoring_case(form, "pdf")) {
            throw Error(quoted("-G", form) + " is not a form of graph", "use tty, png, pdf, or several with commas");
        }
    }
    parser.options().graph = value;
    parser.note("-G is accepted without effect: no graph is drawn; --json FILE holds every sample to draw from");
}

/// What a value of -s or -w stands for.
template <typename Value>
struct Named {
    const char* name;
    Value value;
};

constexpr std::array<Named<Synchronisation>, 6> kSynchronisations{{
    {"pscw", Synchronisation::pscw},
    {"fence", Synchronisation::fence},
    {"lock", Synchronisation::lock},
    {"flush", Synchronisation::flush},
    {"flush_local", Synchronisation::flush_local},
    {"lock_all", Synchronisation::lock_all},
}};
constexpr std::array<Named<WindowForm>, 3> kWindowForms{{
    {"create", WindowForm::create},
    {"allocate", WindowForm::allocate},
    {"dynamic", WindowForm::dynamic},
}};

template <typename Value, std::size_t count>
Value value_named(const std::string& option, const std::string& name, const std::array<Named<Value>, count>& values) {
    std::string list;
    for (const Named<Value>& one : values) {
        if (equals_ignoring_case(name, one.name)) {
            return one.value;
        }
        list += (list.empty() ? "" : ", ") + std::string(one.name);
    }
    throw Error(quoted(option, name) + " is not understood", "use one of " + list);
}

template <typename Value, std::size_t count>
const char* name_of(const std::array<Named<Value>, count>& values, Value value) {
    return std::find_if(values.begin(), values.end(), [&](const auto& one) { return one.value == value; })->name;
}

void set_synchronisation(Parser& parser, const std::string& value) {
    const Synchronisation synchronisation = value_named("-s", value, kSynchronisations);
    if (parser.test.family == Family::one_sided_bidirectional_bandwidth && !target_takes_part(synchronisation)) {
        throw Error(std::string(parser.test.name) + " takes no -s " + value,
                    "use pscw or fence, in which both ranks take part");
    }
    parser.options().synchronisation = synchronisation;
}

void set_window_form(Parser& parser, const std::string& value) {
    parser.options().window_form = value_named("-w", value, kWindowForms);
}

std::optional<ContenderChoice::Kind> contender_kind(const std::string& name) {
    using Kind = ContenderChoice::Kind;
    for (const Kind kind : {Kind::native, Kind::awaken, Kind::staged, Kind::xccl, Kind::raw}) {
        if (name == to_string(kind)) {
            return kind;
        }
    }
    return std::nullopt;
}

ContenderChoice::Kind required_kind(const std::string& option, const std::string& name) {
    if (const auto kind = contender_kind(name)) {
        return *kind;
    }
    throw Error(quoted(option, name) + " is not a contender", "use native, awaken, staged, xccl or raw");
}

/// As split, but a backslash takes the meaning from the character after it, for values that hold separators; it stays
/// in the parts, which unescaped() removes.
std::vector<std::string> split_unescaped(const std::string& text, const char separator) {
    std::vector<std::string> parts(1);
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 1 < text.size()) {
            parts.back() += text[i];
            parts.back() += text[++i];
        } else if (text[i] == separator) {
            parts.emplace_back();
        } else {
            parts.back() += text[i];
        }
    }
    return parts;
}

std::string unescaped(const std::string& text) {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 1 < text.size()) {
            ++i;
        }
        result += text[i];
    }
    return result;
}

void add_launcher(Parser& parser, const std::string& value) {
    if (value.empty() || value.back() == '=') {
        throw Error(quoted("--launcher", value) + " names no command", "write --launcher 'mpiexec -n 2', for example");
    }
    parser.options().launchers.push_back(value);
}

/// [LABEL=]KIND{+NAME=VALUE}, separated by commas. Said again, it replaces what was said before.
void set_contenders(Parser& parser, const std::string& value) {
    std::vector<ContenderChoice>& contenders = parser.options().contenders;
    contenders.clear();
    for (const std::string& item : split_unescaped(value, ',')) {
        const std::vector<std::string> parts = split_unescaped(item, '+');
        ContenderChoice contender;
        std::string kind = parts[0];
        const std::size_t equals = kind.find('=');
        if (equals != std::string::npos) {
            contender.name = kind.substr(0, equals);
            kind = kind.substr(equals + 1);
        } else {
            contender.name = kind;
        }
        contender.kind = required_kind("--compare", kind);
        if (contender.name.empty() || (parts.size() > 1 && equals == std::string::npos)) {
            throw Error(quoted("--compare", item) + " has no label to show in tables",
                        "write LABEL=" + item.substr(equals + 1));
        }
        for (std::size_t i = 1; i < parts.size(); ++i) {
            if (parts[i].find('=') == std::string::npos || parts[i].front() == '=') {
                throw Error(quoted("--compare", item) + ": '" + parts[i] + "' is not an environment variable",
                            "write LABEL=KIND+NAME=VALUE");
            }
            contender.environment.push_back(unescaped(parts[i]));
        }
        for (const ContenderChoice& other : contenders) {
            if (other.name == contender.name) {
                throw Error("two contenders are called '" + contender.name + "'", "label them: --compare LABEL=KIND");
            }
        }
        contenders.push_back(std::move(contender));
    }
}

void set_modes(Parser& parser, const std::string& value) {
    std::vector<Mode> modes;
    for (const std::string& name : split(value, ',')) {
        Mode mode{};
        if (name == "waited") {
            mode = Mode::waited;
        } else if (name == "queued") {
            mode = Mode::queued;
        } else {
            throw Error(quoted("--mode", name) + " is not a timing mode", "use waited, queued or waited,queued");
        }
        if (std::find(modes.begin(), modes.end(), mode) == modes.end()) {
            modes.push_back(mode);
        }
    }
    parser.options().modes = std::move(modes);
}

void set_max_time(Parser& parser, const std::string& value) {
    double seconds = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
    if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(seconds) || seconds <= 0) {
        throw Error(quoted("--max-time", value) + " is not a time", "use seconds, such as 2 or 0.5");
    }
    parser.options().time_limit_s = seconds;
}

const std::vector<Row>& rows() {
    static const std::vector<Row> table = {
        {'h', "help", no_argument, "", "prints this help", nullptr},
        {'v', "version", no_argument, "", "prints the name and the version of the output", nullptr},
        {'m', "message-size", required_argument, "[MIN:]MAX",
         "sizes in bytes, with an optional K, M or G (powers of two): MAX, MIN:MAX, MIN: or :MAX", set_message_size},
        {'i', "iterations", required_argument, "N", "timed iterations at every size",
         [](Parser& p, const std::string& v) {
             p.options().iterations = parse_number<std::size_t>("-i", v, 1, kMostIterations);
         }},
        {'x', "warmup", required_argument, "N", "iterations before the timed ones",
         [](Parser& p, const std::string& v) {
             p.options().warmup = parse_number<std::size_t>("-x", v, 0, kMostIterations);
         }},
        {'f', "full", no_argument, "", "prints more columns: extremes over ranks, iterations, parts of the time",
         [](Parser& p, const std::string&) { p.options().full = true; }},
        {'W', "window-size", required_argument, "N", "messages under way at once",
         [](Parser& p, const std::string& v) {
             p.options().window_size = parse_number<int>("-W", v, 1, kMostMessages);
         }},
        {'V', "vary-window", optional_argument, "", "windows of 1, 2, 4 to 128 messages instead of one size",
         [](Parser& p, const std::string&) { p.options().vary_window = true; }},
        {'R', "print-rate", required_argument, "0|1", "whether messages per second are printed",
         [](Parser& p, const std::string& v) { p.options().print_rate = parse_number<int>("-R", v, 0, 1) == 1; }},
        {'p', "num-pairs", required_argument, "N", "pairs that take part",
         [](Parser& p, const std::string& v) { p.options().pairs = parse_number<int>("-p", v, 1); }},
        {'t', "num-test-calls", required_argument, "N|[S:]R",
         "nonblocking collectives: MPI_Test calls during the computation; latency_mt and latency_mp: threads or "
         "processes "
         "of the sender and of the receiver",
         set_test_calls},
        {'M', "mem-limit", required_argument, "SIZE", "most memory for buffers, bytes a process", set_memory_limit},
        {'d', "accelerator", required_argument, "cuda|rocm|managed|openacc",
         "device (or managed) buffers on every rank, where SRC and DST do not say otherwise", set_accelerator},
        {'r', "cuda-target", required_argument, "cpu|gpu|both", "where nonblocking collectives compute meanwhile",
         set_compute_target},
        {'a', "array-size", required_argument, "N", "size of the arrays of the computation on the GPU",
         [](Parser& p, const std::string& v) { p.options().array_size = parse_number<int>("-a", v, 1); }},
        {'c', "validation", optional_argument, "log:DIR",
         "prints a Validation column, and logs mismatches of each rank into DIR; data are checked without it too",
         set_validation},
        {'u', "validation-warmup", required_argument, "N",
         "untimed calls after a check and before timed ones, at most 10",
         [](Parser& p, const std::string& v) {
             p.options().validation_warmup = parse_number<int>("-u", v, 0, kMostValidationWarmup);
         }},
        {'b', "buffer-num", required_argument, "single|multiple", "one buffer, or one for each message of a window",
         set_buffer_number},
        {'G', "graph", required_argument, "tty,png,pdf", "accepted without effect: --json holds every sample",
         set_graph},
        {'P', "papi", required_argument, "EVENTS:PATH", "accepted without effect: no hardware counters are read",
         [](Parser& p, const std::string& v) {
             p.options().papi = v;
             p.note("-P is accepted without effect: no hardware counters are read; run under a profiler such as perf");
         }},
        {'D', "ddt", required_argument, "cont|vect:STRIDE:BLOCK|indx:FILE",
         "a derived datatype; elements of -T, and lines 'displacement, block length' of them in FILE; not with -c",
         set_derived_type},
        {'N', "nhbr", required_argument, "cart:DIMENSIONS:RADIUS|graph:FILE",
         "the neighbourhood; lines 'source, destination' in FILE", set_neighborhood},
        {'T', "type", required_argument, "TYPE",
         "mpi_char, mpi_int, mpi_float, mpi_double, or all for the first three; again or with commas for several",
         add_types},
        {'I', "session", no_argument, "", "starts MPI through a session",
         [](Parser& p, const std::string&) { p.options().session = true; }},
        {'l', "in-place", no_argument, "", "MPI_IN_PLACE as the send buffer",
         [](Parser& p, const std::string&) { p.options().in_place = true; }},
        {'z', "tail-lat", optional_argument, "P,P,..",
         "columns of percentiles, at most 5; attached to the letter (-z50,99)", set_percentiles},
        {'k', "root-rank", required_argument, "fixed:R|rotate", "the root", set_root},
        {'s', "sync-option", required_argument, "pscw|fence|lock|flush|flush_local|lock_all",
         "synchronisation of one-sided tests", set_synchronisation},
        {'w', "win-options", required_argument, "create|allocate|dynamic", "window of one-sided tests",
         set_window_form},

        {kCompare, "compare", required_argument, "LIST",
         "runs contenders in turns and compares them: native, awaken, staged, xccl, raw; each "
         "[LABEL=]KIND[+NAME=VALUE..], "
         "where NAME=VALUE is set in the environment of a launch of its own (commas and plus signs in it after \\)",
         set_contenders},
        {kLauncher, "launcher", required_argument, "[CONTENDER=]COMMAND",
         "comparisons: starts contenders with a launch command of their own, such as another MPI's mpiexec -n 2",
         add_launcher},
        {kMpiexec, "mpiexec", required_argument, "[CONTENDER=]COMMAND", "another name of --launcher", add_launcher},
        {kRanks, "ranks", required_argument, "N",
         "comparisons that start their ranks: how many (2); in the place of {ranks} of --launcher, or as -n N",
         [](Parser& p, const std::string& v) { p.options().launched_ranks = parse_number<int>("--ranks", v, 1); }},
        {kListen, "listen", required_argument, "ADDRESS",
         "comparisons with launches on several nodes: the address of this one at which they ask for their turns",
         [](Parser& p, const std::string& v) { p.options().listen_address = v; }},
        {kStartLimit, "start-limit", required_argument, "SECONDS",
         "comparisons with launches: gives up one whose ranks have not started by then (120)",
         [](Parser& p, const std::string& v) { p.options().start_limit_s = parse_number<int>("--start-limit", v, 1); }},
        {kTurns, "turns", required_argument, "ADDRESS",
         "given to launches of a comparison by the process that starts them",
         [](Parser& p, const std::string& v) { p.options().turns = v; }},
        {kMode, "mode", required_argument, "waited,queued",
         "comparisons: each call waited for, or calls started back to back and waited for together", set_modes},
        {kAdaptive, "adaptive", no_argument, "", "iterations until --precision or --max-time is reached",
         [](Parser& p, const std::string&) { p.options().adaptive = true; }},
        {kPrecision, "precision", required_argument, "FRACTION",
         "stops when the 95 % interval of the median is within this part of it; implies --adaptive",
         [](Parser& p, const std::string& v) { p.options().precision = parse_fraction("--precision", v); }},
        {kMaxTime, "max-time", required_argument, "SECONDS", "most time a contender and size; implies --adaptive",
         set_max_time},
        {kJson, "json", required_argument, "FILE",
         "everything measured, with all samples; - for stdout instead of the table",
         [](Parser& p, const std::string& v) {
             if (v.empty()) {
                 throw Error("--json has an empty file name", "name a file, or - for stdout");
             }
             p.options().json_file = v;
         }},
        {kOmbVersion, "omb-version", required_argument, "7.5|7.0", "whose output is printed",
         [](Parser& p, const std::string& v) {
             if (v != "7.5" && v != "7.0") {
                 throw Error(quoted("--omb-version", v) + " is not a known output", "use 7.5 or 7.0");
             }
             p.options().omb_version = v;
         }},
        {kBuffers, "buffers", required_argument, "KIND,KIND,..",
         "kinds of buffers of ranks 0, 1, ..; repeated for the ranks after",
         [](Parser& p, const std::string& v) {
             std::vector<BufferChoice>& kinds = p.options().rank_buffers;
             kinds.clear();
             for (const std::string& kind : split(v, ',')) {
                 kinds.push_back(parse_buffer("--buffers", kind));
             }
         }},
        {kGpuMap, "gpu-map", required_argument, "N,N,..",
         "the GPU of each rank of a node, by its local rank; repeated for the ranks after",
         [](Parser& p, const std::string& v) {
             std::vector<int>& map = p.options().gpu_map;
             map.clear();
             for (const std::string& device : split(v, ',')) {
                 map.push_back(parse_number<int>("--gpu-map", device, 0));
             }
         }},
        {kUnaligned, "unaligned", no_argument, "", "buffers begin one element behind their allocation",
         [](Parser& p, const std::string&) { p.options().unaligned = true; }},
        {kPartitions, "partitions", required_argument, "N",
         "partitioned_latency: equal parts of a message; where N does not divide its elements, the most that do",
         [](Parser& p, const std::string& v) { p.options().partitions = parse_number<int>("--partitions", v, 1); }},
        {kStepFactor, "step-factor", required_argument, "N", "from one size to the next",
         [](Parser& p, const std::string& v) {
             p.options().step_factor = parse_number<std::size_t>("--step-factor", v, 2);
         }},
        {kNoCheck, "no-check", no_argument, "", "leaves out the check of the data",
         [](Parser& p, const std::string&) { p.options().validate = false; }},
        {kSelfTest, "self-test", no_argument, "", "damages data on purpose, which the check must find",
         [](Parser& p, const std::string&) { p.options().self_test = true; }},
        {kAssumeGpuAware, "assume-gpu-aware", no_argument, "",
         "native takes device memory although it says that it does not, such as Open MPI over a UCX that knows GPUs",
         [](Parser& p, const std::string&) { p.options().assume_gpu_aware = true; }},
        {kNative, "native", no_argument, "", "without the layer: the MPI as it is",
         [](Parser& p, const std::string&) { p.options().native = true; }},
        {kEmulate, "emulate", required_argument, "KIND:N",
         "on N emulated GPUs: cuda:N, hip:N, or hip5:N as under ROCm 5",
         [](Parser&, const std::string&) {}},  // obeyed by `awaken bench` before this process starts
        {kNoProgress, "no-progress", no_argument, "", "no progress on a terminal's stderr",
         [](Parser& p, const std::string&) { p.options().progress = false; }},
        {kQuiet, "quiet", no_argument, "", "no notes on stderr",
         [](Parser& p, const std::string&) { p.options().quiet_notes = true; }},
        {kList, "list", no_argument, "", "lists the tests", nullptr},
    };
    return table;
}

const Row& row_of(int code) {
    const auto found = std::find_if(rows().begin(), rows().end(), [&](const Row& row) { return row.code == code; });
    return *found;
}

bool takes(const TestInfo& test, const Row& row) {
    if (row.code < kOmbVersion) {
        return std::strchr(test.options, row.code) != nullptr;
    }
    // What only says something of messages has no meaning for starting up.
    const bool starts_only = test.family == Family::startup;
    switch (row.code) {
        case kNative:
        case kEmulate:
        case kQuiet:
        case kNoProgress:
        case kTurns:
        case kOmbVersion:
        case kJson:
        case kList:
            return true;
        case kStepFactor:
            return test.sized && !test.is_of_one_element();
        case kUnaligned:
            return test.sized;
        case kBuffers:
            return !starts_only && test.collective != Collective::barrier;
        default:
            return !starts_only;
    }
}

bool takes_sides(const TestInfo& test) {
    return test.family != Family::startup && test.collective != Collective::barrier;
}

std::string help_hint(const TestInfo& test) {
    return std::string("`awaken bench ") + test.name + " --help`";
}

/// What OMB's families take without doing anything with it, here as there.
void note_options_without_effect(Parser& parser) {
    const TestInfo& test = parser.test;
    Options& options = parser.options();
    const auto without_effect = [&](int code, const std::string& why) {
        if (parser.has(code)) {
            parser.note(short_spelling(row_of(code)) + " is accepted without effect: " + why);
        }
    };
    const bool nonblocking = test.family == Family::nonblocking_collective;
    const bool concurrent = test.family == Family::threaded_latency || test.family == Family::process_latency;
    if (!nonblocking) {
        without_effect('r', "only nonblocking collectives compute");
        without_effect('a', "only nonblocking collectives compute");
    } else if (!parser.options().compute_on_gpu) {
        without_effect('a', "it is of the computation on the GPU (-r gpu or -r both)");
    }
    if (!nonblocking && !concurrent) {
        without_effect('t', "it is of nonblocking collectives, latency_mt and latency_mp");
    }
    if (test.family == Family::congestion) {
        without_effect('p', "there are no pairs in this test");
        without_effect('R', "this test prints no message rate");
        without_effect('V', "only mbw_mr varies its window");
    }
    if (test.collective == Collective::barrier) {
        without_effect('m', "a barrier has no size");
        without_effect('M', "a barrier has no buffers");
        without_effect('d', "a barrier has no buffers");
        without_effect('u', "a barrier has no data to check");
    }
    // Put, get, and get_accumulate, to which OMB gives no types.
    const bool of_characters = test.is_one_sided() && !test.reduction;
    if (test.family == Family::congestion || test.collective == Collective::barrier || of_characters) {
        without_effect('c', "this test has no Validation column, and is checked all the same");
        options.validation_column = false;
    }
    if (test.collective == Collective::barrier || of_characters) {
        without_effect('T', "this test has one type only");
        options.types.clear();
    }
    if (test.collective == Collective::barrier || test.collective == Collective::bcast || test.neighborhood) {
        without_effect('l', "MPI has no MPI_IN_PLACE here");
        options.in_place = false;
    }
    if (parser.options().vary_window && test.family == Family::multiple_bandwidth) {
        without_effect('W', "-V chooses the windows");
    }
    if (test.is_of_one_element()) {
        without_effect('m', "the operation is on one element");
    }
}

/// A type that no size holds an element of has no line of figures, which must not look like a measurement.
void refuse_sizes_below_an_element(Parser& parser) {
    const TestInfo& test = parser.test;
    const std::vector<ElementType> types = types_to_measure(parser.options(), test);
    std::vector<std::string> left_out;
    std::size_t width = 0;
    for (const ElementType type : types) {
        if (sizes_to_measure(parser.options(), test, type).back() >= size_of(type)) {
            continue;
        }
        left_out.push_back(std::string(mpi_name(type)) + " of " + std::to_string(size_of(type)) + " bytes");
        width = std::max(width, size_of(type));
    }
    if (left_out.empty()) {
        return;
    }
    if (left_out.size() == types.size()) {
        throw Error("-m leaves no size that holds an " + left_out.front(),
                    "give a larger one, such as -m " + std::to_string(width) + ":1M, or another type with -T");
    }
    for (const std::string& type : left_out) {
        parser.note("no size of -m holds an " + type + ": nothing is measured with it");
    }
}

void check_combinations(Parser& parser) {
    const TestInfo& test = parser.test;
    Options& options = parser.options();
    if (parser.has('D') && parser.has('c')) {
        throw Error("-c and -D exclude each other",
                    "leave out one: OMB has no Validation column for derived datatypes");
    }
    if (!options.validate && (options.validation_column || options.self_test)) {
        throw Error(std::string("--no-check contradicts ") + (options.self_test ? "--self-test" : "-c"),
                    "leave out one");
    }
    if (!options.contenders.empty() && options.vary_window && test.family == Family::multiple_bandwidth) {
        throw Error("-V is not for comparisons", "compare at one window: -W N");
    }
    if (!options.launchers.empty() && options.contenders.empty()) {
        throw Error("--launcher is for comparisons", "add --compare, such as --compare native,awaken");
    }
    if (options.launched_ranks > 0 && options.contenders.empty()) {
        throw Error("--ranks is for comparisons", "add --compare, such as --compare native,awaken");
    }
    if (parser.has(kPartitions) && test.family != Family::partitioned_latency) {
        throw Error("--partitions is for partitioned_latency", "leave it out");
    }
    if (parser.has(kMode) && options.contenders.empty()) {
        throw Error("--mode is for comparisons", "add --compare, such as --compare native,awaken");
    }
    if (parser.has(kAdaptive) && parser.has('i')) {
        throw Error("-i fixes the iterations that --adaptive is to choose", "leave out one");
    }
    if (options.native) {
        for (const ContenderChoice& contender : options.contenders) {
            if (contender.kind == ContenderChoice::Kind::awaken && contender.environment.empty() &&
                options.launchers.empty()) {
                throw Error("--native leaves out the layer that '" + contender.name + "' is to run through",
                            "leave out --native: comparisons run `native` without the layer all the same");
            }
        }
    }
    // A fixed number of iterations wins; precision and time alone say that they are to be chosen.
    if (!parser.has('i')) {
        options.adaptive =
            options.adaptive || parser.has(kPrecision) || parser.has(kMaxTime) || !options.contenders.empty();
    } else if (parser.has(kPrecision) || parser.has(kMaxTime)) {
        throw Error("-i fixes the iterations that --precision and --max-time are to choose", "leave out one");
    }
    if (test.one_sided == OneSided::compare_and_swap && !options.types.empty()) {
        // MPI-4.1, 12.3.4: whole numbers, logical values and bytes.
        const std::size_t left_out = std::erase_if(options.types, [](const ElementType type) {
            return type == ElementType::float_ || type == ElementType::double_;
        });
        const char* const why = "MPI_Compare_and_swap takes no floating-point numbers";
        if (options.types.empty()) {
            throw Error(why, "use -T mpi_char or -T mpi_int");
        }
        if (left_out != 0) {
            parser.note(std::string("floating-point types of -T are left out: ") + why);
        }
    }
    if (test.sized && !test.is_of_one_element()) {
        const Defaults defaults = defaults_of(test);
        const std::size_t minimum = options.minimum_size.value_or(defaults.minimum_size);
        const std::size_t maximum = options.maximum_size.value_or(defaults.maximum_size);
        if (minimum > maximum) {
            throw Error("-m leaves no size: " + std::to_string(minimum) + " bytes at least, " +
                            std::to_string(maximum) + " at most" + (options.maximum_size ? "" : " by default"),
                        "give both, the smaller first: -m MIN:MAX");
        }
        refuse_sizes_below_an_element(parser);
    }
    // As in OMB: one managed buffer would have migrated when the next message of the window is sent.
    const auto managed = [](const BufferChoice& choice) { return choice.kind == BufferKind::managed; };
    const bool windowed = defaults_of(test).window_size > 1 && !test.is_one_sided();
    if (windowed && (std::any_of(options.sides.begin(), options.sides.end(), managed) ||
                     std::any_of(options.rank_buffers.begin(), options.rank_buffers.end(), managed) ||
                     (options.sides.empty() && options.accelerator == Accelerator::managed))) {
        options.multiple_buffers = true;
    }
}

void set_sides(Parser& parser, const std::vector<std::string>& words) {
    if (words.empty()) {
        return;
    }
    if (!takes_sides(parser.test)) {
        throw Error("'" + words.front() + "' is one word too many",
                    std::string(parser.test.name) + " takes no SRC and DST");
    }
    for (const std::string& word : words) {
        // getopt takes an argument that may be missing only where it is attached, and leaves another among the words.
        const bool percentiles = parser.has('z') && word.find_first_not_of("0123456789,") == std::string::npos;
        if (percentiles || (parser.has('c') && word.starts_with("log"))) {
            const std::string option = percentiles ? "-z" : "-c";
            throw Error("'" + word + "' stands apart from " + option, "attach it: " + option + word);
        }
        parser.options().sides.push_back(parse_buffer("", word));
        if (word == "M" && !parser.test.is_one_sided()) {
            parser.note("M is deprecated and taken as MH: write MH (first touched on the host) or MD (on the device)");
        }
    }
    if (words.size() == 1) {
        throw Error("only one kind of buffer is given, " + words.front() + ", and there are two sides",
                    "write both: SRC DST, such as " + words.front() + " " + words.front());
    }
    if (words.size() != 2) {
        throw Error(std::to_string(words.size()) + " kinds of buffers are given, and there are two sides",
                    "write SRC DST, such as D D");
    }
}

/// `text`, broken at blanks into lines that begin at `indent` and end before `width`.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
    std::string result;
    std::size_t column = indent;
    for (const std::string& word : split(text, ' ')) {
        if (column > indent && column + 1 + word.size() > width) {
            result += "\n" + std::string(indent, ' ');
            column = indent;
        } else if (column > indent) {
            result += ' ';
            ++column;
        }
        result += word;
        column += word.size();
    }
    return result;
}

std::string default_text(const Row& row, const TestInfo& test) {
    const Defaults defaults = defaults_of(test);
    const auto small_and_large = [&](std::size_t small, std::size_t large) {
        if (small == large) {
            return std::to_string(small);
        }
        return std::to_string(small) + ", above 8192 bytes " + std::to_string(large);
    };
    switch (row.code) {
        case 'm':
            if (test.is_of_one_element()) {
                return "";
            }
            return test.sized ? std::to_string(defaults.minimum_size) + ":" + std::to_string(defaults.maximum_size)
                              : "";
        case 'i':
            return small_and_large(defaults.iterations_small, defaults.iterations_large);
        case 'x':
            return small_and_large(defaults.warmup_small, defaults.warmup_large);
        case 'W':
            return std::to_string(defaults.window_size);
        case 'R':
            return "1";
        case 'p':
            return "half of the ranks";
        case 't':
            if (test.family == Family::nonblocking_collective) {
                return "0";
            }
            if (test.family == Family::threaded_latency) {
                return "1:2";
            }
            if (test.family == Family::process_latency) {
                return "2:2";
            }
            return "";
        case 'M':
            return std::to_string(Options().memory_limit);
        case 'd':
            return "host buffers";
        case 'r':
            return "cpu";
        case 'a':
            return std::to_string(Options().array_size);
        case 'u':
            return std::to_string(Options().validation_warmup);
        case 'b':
            return "single";
        case 'N':
            return "cart:1:1";
        case 'T':
            return mpi_name(types_to_measure({}, test).front());
        case 'z':
            return "50,90,99";
        case 'k':
            return "fixed:0";
        case 's':
            return name_of(kSynchronisations, synchronisation_of({}, test));
        case 'w':
            return name_of(kWindowForms, window_form_of({}, test));
        case kMode:
            return "waited";
        case kListen:
            return Options().listen_address;
        case kPartitions:
            return std::to_string(Options().partitions);
        case kPrecision:
            return "0.01";
        case kMaxTime:
            return "2";
        case kOmbVersion:
            return Options().omb_version;
        case kStepFactor:
            return "2";
        default:
            return "";
    }
}

std::string option_lines(const TestInfo* test, bool of_omb) {
    constexpr std::size_t kIndent = 30;
    constexpr std::size_t kWidth = 100;
    std::string text;
    for (const Row& row : rows()) {
        if ((row.code < kOmbVersion) != of_omb || (test != nullptr && !takes(*test, row))) {
            continue;
        }
        if (test != nullptr && row.code == kList) {
            continue;
        }
        std::string head = "  " + spelling(row);
        head += head.size() + 2 > kIndent ? "\n" + std::string(kIndent, ' ') : std::string(kIndent - head.size(), ' ');
        std::string meaning = row.meaning;
        if (test != nullptr) {
            if (const std::string value = default_text(row, *test); !value.empty()) {
                meaning += " (default " + value + ")";
            }
        }
        text += head + wrapped(meaning, kIndent, kWidth) + "\n";
    }
    return text;
}

constexpr const char* kSidesHelp =
    "  SRC DST                     kinds of buffers: H host, D device, MD and MH managed (first touched on\n"
    "                              the device or the host), P pinned, R registered, A from the device's\n"
    "                              memory pool\n";

[[noreturn]] void refuse_unknown_option(const TestInfo& test, const std::string& word) {
    throw Error(std::string(test.name) + " knows no option '" + word + "'", "see " + help_hint(test));
}

/// getopt takes the beginning of a name for the name; what `awaken` itself must know before it starts the benchmarks is
/// looked for under its whole name only.
void refuse_abbreviation(const Row& row, const std::string_view word) {
    if (row.code != kNative && row.code != kEmulate) {
        return;
    }
    if (word.substr(0, word.find('=')) != std::string("--") + row.name) {
        throw Error(std::string(word) + " is short for --" + row.name + ", which must be written in full",
                    std::string("write --") + row.name);
    }
}

/// getopt gives an option whose argument was forgotten the next option's name; `awaken` would still obey that option.
void refuse_option_as_argument(const Row& row, const std::string_view argument) {
    if (!argument.starts_with("--")) {
        return;
    }
    throw Error(short_spelling(row) + " lacks its argument: " + std::string(argument) + " behind it is an option",
                "write " + spelling(row).substr(row.code < kOmbVersion ? 0 : 4));
}

CommandLine parse_words(const TestInfo& test, std::span<char* const> words) {
    // The leading colon tells a missing argument from an unknown option. Without "+", which OMB's strings mostly begin
    // with, options may also follow SRC and DST.
    std::string letters = ":";
    std::vector<option> long_options;
    for (const Row& row : rows()) {
        if (row.code < kOmbVersion) {
            letters += static_cast<char>(row.code);
            // -V has no argument; that its long form may have one is an accident of OMB's table.
            if (row.code != 'V') {
                letters += std::string(static_cast<std::size_t>(row.argument), ':');
            }
        }
        long_options.push_back({row.name, row.argument, nullptr, row.code});
    }
    long_options.push_back({nullptr, 0, nullptr, 0});

    std::vector<char*> arguments(words.begin(), words.end());
    const int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);

    // getopt keeps its state in globals.
    static std::mutex parsing;
    const std::lock_guard<std::mutex> lock(parsing);
    Parser parser{test, {}, {}};
    parser.line.test = &test;
    opterr = 0;
    optind = 0;  // glibc: begin anew
    for (;;) {
        const int at = optind == 0 ? 1 : optind;
        const int code = getopt_long(count, arguments.data(), letters.c_str(), long_options.data(), nullptr);
        if (code == -1) {
            break;
        }
        const char* word = at < count ? arguments[static_cast<std::size_t>(at)] : "";
        if (code == '?') {
            // A letter that is known can only be refused as a long option's: one that takes no argument had one.
            if (optopt > 0 && optopt < kOmbVersion && std::strncmp(word, "--", 2) != 0) {
                refuse_unknown_option(test, std::string("-") + static_cast<char>(optopt));
            }
            refuse_unknown_option(test, arguments[static_cast<std::size_t>(optind - 1)]);
        }
        if (code == ':') {
            const Row& row = row_of(optopt);
            throw Error(short_spelling(row) + " lacks its argument",
                        "write " + spelling(row).substr(row.code < kOmbVersion ? 0 : 4));
        }
        const Row& row = row_of(code);
        if (!takes(test, row)) {
            std::string remedy = "leave it out; ";
            if (code == 'f') {
                remedy = "it is for collectives; ";
            }
            if (code == 's' || code == 'w') {
                remedy = "it is for one-sided tests; ";
            }
            throw Error(std::string(test.name) + " takes no " + short_spelling(row) + " (--" + row.name + ")",
                        remedy + help_hint(test) + " lists what it takes");
        }
        if (code == 'h') {
            return {Request::help, &test, std::move(parser.line.options)};
        }
        if (code == 'v') {
            parser.line.request = Request::version;
            continue;
        }
        if (code == kList) {
            return {Request::list, nullptr, {}};
        }
        // The word just read, or the one before its argument.
        const bool argument_apart = optarg != nullptr && optarg == arguments[static_cast<std::size_t>(optind - 1)];
        if (argument_apart) {
            refuse_option_as_argument(row, optarg);
        }
        refuse_abbreviation(row, arguments[static_cast<std::size_t>(optind - (argument_apart ? 2 : 1))]);
        parser.given.insert(code);
        row.apply(parser, optarg == nullptr ? "" : optarg);
    }
    set_sides(parser, {arguments.begin() + optind, arguments.begin() + count});
    if (parser.line.request == Request::version) {
        return std::move(parser.line);
    }
    note_options_without_effect(parser);
    check_combinations(parser);
    return std::move(parser.line);
}

}  // namespace

const char* to_string(BufferKind kind) noexcept {
    switch (kind) {
        case BufferKind::host:
            return "host";
        case BufferKind::pinned:
            return "pinned";
        case BufferKind::registered:
            return "registered";
        case BufferKind::device:
            return "device";
        case BufferKind::managed:
            return "managed";
        case BufferKind::pool:
            return "pool";
    }
    return "unknown";
}

const char* to_string(Mode mode) noexcept {
    return mode == Mode::waited ? "waited" : "queued";
}

const char* to_string(ContenderChoice::Kind kind) noexcept {
    switch (kind) {
        case ContenderChoice::Kind::native:
            return "native";
        case ContenderChoice::Kind::awaken:
            return "awaken";
        case ContenderChoice::Kind::staged:
            return "staged";
        case ContenderChoice::Kind::xccl:
            return "xccl";
        case ContenderChoice::Kind::raw:
            return "raw";
        case ContenderChoice::Kind::external:
            return "external";
    }
    return "unknown";
}

const char* mpi_name(ElementType type) noexcept {
    switch (type) {
        case ElementType::char_:
            return "MPI_CHAR";
        case ElementType::int_:
            return "MPI_INT";
        case ElementType::float_:
            return "MPI_FLOAT";
        case ElementType::double_:
            return "MPI_DOUBLE";
    }
    return "MPI_DATATYPE_NULL";
}

const char* mpi_name(WindowForm form) noexcept {
    switch (form) {
        case WindowForm::create:
            return "MPI_Win_create";
        case WindowForm::allocate:
            return "MPI_Win_allocate";
        case WindowForm::dynamic:
            return "MPI_Win_create_dynamic";
    }
    return "unknown";
}

const char* mpi_name(Synchronisation synchronisation) noexcept {
    switch (synchronisation) {
        case Synchronisation::lock:
            return "MPI_Win_lock/unlock";
        case Synchronisation::pscw:
            return "MPI_Win_post/start/complete/wait";
        case Synchronisation::fence:
            return "MPI_Win_fence";
        case Synchronisation::flush:
            return "MPI_Win_flush";
        case Synchronisation::flush_local:
            return "MPI_Win_flush_local";
        case Synchronisation::lock_all:
            return "MPI_Win_lock_all/unlock_all";
    }
    return "unknown";
}

std::size_t size_of(ElementType type) noexcept {
    switch (type) {
        case ElementType::char_:
            return sizeof(char);
        case ElementType::int_:
            return sizeof(int);
        case ElementType::float_:
            return sizeof(float);
        case ElementType::double_:
            return sizeof(double);
    }
    return 1;
}

CommandLine parse_command_line(std::span<char* const> words) {
    if (words.empty()) {
        throw Error("no test is named", "write `awaken bench NAME`; `awaken bench --list` lists the names");
    }
    const std::string name = words.front();
    if (name == "-h" || name == "--help") {
        // `--help NAME` is what people type who know other programs.
        const TestInfo* test = words.size() > 1 ? find_test(words[1]) : nullptr;
        return {Request::help, test, {}};
    }
    if (name == "-v" || name == "--version") {
        return {Request::version, nullptr, {}};
    }
    if (name == "--list") {
        return {Request::list, nullptr, {}};
    }
    if (name.starts_with('-')) {
        throw Error("the first word is '" + name + "', not a test",
                    "write the test's name first: awaken bench NAME " + name);
    }
    const TestInfo* test = find_test(name);
    if (test == nullptr) {
        const std::string nearest = nearest_test(name);
        throw Error("there is no test '" + name + "'", (nearest.empty() ? "" : "did you mean " + nearest + "? ") +
                                                           std::string("`awaken bench --list` lists all"));
    }
    return parse_words(*test, words);
}

std::string help_text(const TestInfo* test) {
    if (test == nullptr) {
        return "Usage: awaken bench NAME [options] [SRC DST]\n"
               "       awaken bench --list\n"
               "       awaken bench NAME --help\n\n"
               "Measures MPI with the options and the output of the OSU micro-benchmarks. NAME is a test of\n"
               "`awaken bench --list`, with or without osu_ before it. Run it under the MPI's launcher:\n"
               "mpiexec -n 2 awaken bench latency D D\n\n" +
               std::string(kSidesHelp) +
               "\nOptions of the OSU micro-benchmarks; each test takes those that its --help lists:\n" +
               option_lines(nullptr, true) + "\nFurther options:\n" + option_lines(nullptr, false);
    }
    std::string text = std::string("Usage: awaken bench ") + test->name + " [options]" +
                       (takes_sides(*test) ? " [SRC DST]" : "") + "\n\n" +
                       title_line(*test, {}, Accelerator::none).substr(2) + ": " + test->summary + ".\n";
    if (test->exact_ranks > 0) {
        text += "Runs on exactly " + std::to_string(test->exact_ranks) + " ranks.\n";
    } else if (test->minimum_ranks > 1) {
        text += "Runs on " + std::to_string(test->minimum_ranks) + " ranks or more.\n";
    }
    text += "\n";
    if (takes_sides(*test)) {
        text += kSidesHelp + std::string("\n");
    }
    return text + "Options of the OSU micro-benchmarks:\n" + option_lines(test, true) + "\nFurther options:\n" +
           option_lines(test, false);
}

std::vector<OptionDescription> option_descriptions() {
    std::vector<OptionDescription> descriptions;
    for (const Row& row : rows()) {
        const bool of_omb = row.code < kOmbVersion;
        descriptions.push_back({of_omb ? spelling(row) : spelling(row).substr(4), row.meaning, of_omb});
    }
    return descriptions;
}

RankBuffers buffers_of_rank(const Options& options, const TestInfo& test, int rank, int ranks) {
    if (!options.rank_buffers.empty()) {
        const BufferChoice choice = options.rank_buffers[static_cast<std::size_t>(rank) % options.rank_buffers.size()];
        return {choice, choice};
    }
    if (options.sides.size() == 2) {
        if (test.is_collective()) {
            return {options.sides[0], options.sides[1]};
        }
        int of_first_side = 1;
        if (test.family == Family::multiple_bandwidth || test.family == Family::multiple_latency) {
            of_first_side = options.pairs.value_or(std::max(ranks / 2, 1));
        }
        const BufferChoice choice = options.sides[rank < of_first_side ? 0 : 1];
        return {choice, choice};
    }
    BufferChoice choice;
    switch (options.accelerator) {
        case Accelerator::none:
            break;
        case Accelerator::cuda:
        case Accelerator::rocm:
        case Accelerator::openacc:
            choice.kind = BufferKind::device;
            break;
        case Accelerator::managed:
            choice.kind = BufferKind::managed;
            break;
    }
    return {choice, choice};
}

bool needs_gpu(const Options& options) {
    const auto not_host = [](const BufferChoice& choice) { return choice.kind != BufferKind::host; };
    const auto any = [&](const std::vector<BufferChoice>& choices) {
        return std::any_of(choices.begin(), choices.end(), not_host);
    };
    if (options.compute_on_gpu) {
        return true;
    }
    if (!options.rank_buffers.empty()) {
        return any(options.rank_buffers);
    }
    if (!options.sides.empty()) {
        return any(options.sides);
    }
    return options.accelerator != Accelerator::none;
}

bool rank_needs_gpu(const Options& options, const TestInfo& test, int rank, int ranks) {
    const RankBuffers buffers = buffers_of_rank(options, test, rank, ranks);
    return options.compute_on_gpu || buffers.send.kind != BufferKind::host || buffers.receive.kind != BufferKind::host;
}

WindowForm window_form_of(const Options& options, const TestInfo& test) noexcept {
    return options.window_form.value_or(test.one_sided == OneSided::get_accumulate ? WindowForm::create
                                                                                   : WindowForm::allocate);
}

Synchronisation synchronisation_of(const Options& options, const TestInfo& test) noexcept {
    if (options.synchronisation) {
        return *options.synchronisation;
    }
    if (test.family == Family::one_sided_bidirectional_bandwidth) {
        return Synchronisation::pscw;
    }
    return test.one_sided == OneSided::get_accumulate ? Synchronisation::lock : Synchronisation::flush;
}

std::vector<ElementType> types_to_measure(const Options& options, const TestInfo& test) {
    if (!options.types.empty()) {
        return options.types;
    }
    if (!test.reduction) {
        return {ElementType::char_};
    }
    if (options.omb_version != "7.0" || test.is_of_one_element()) {
        return {ElementType::int_};
    }
    return {test.is_one_sided() ? ElementType::char_ : ElementType::float_};
}

std::vector<std::size_t> sizes_to_measure(const Options& options, const TestInfo& test, ElementType type) {
    if (!test.sized) {
        return {0};
    }
    if (test.is_of_one_element()) {
        return {size_of(type)};
    }
    const Defaults defaults = defaults_of(test);
    const std::size_t maximum = options.maximum_size.value_or(defaults.maximum_size);
    const std::size_t factor = options.step_factor.value_or(2);
    std::vector<std::size_t> sizes;
    for (std::size_t size = options.minimum_size.value_or(defaults.minimum_size); size <= maximum; size *= factor) {
        sizes.push_back(size);
        if (size > std::numeric_limits<std::size_t>::max() / factor) {
            break;
        }
    }
    return sizes;
}

Repetitions repetitions_at(const Options& options, const TestInfo& test, std::size_t size) {
    constexpr std::size_t kLargestSmall = 8192;
    const Defaults defaults = defaults_of(test);
    const bool small = size <= kLargestSmall;
    return {options.iterations.value_or(small ? defaults.iterations_small : defaults.iterations_large),
            options.warmup.value_or(small ? defaults.warmup_small : defaults.warmup_large)};
}

Parallelism parallelism_of(const Options& options, const TestInfo& test) {
    constexpr int kReceivers = 2;
    if (!options.test_calls) {
        return {test.family == Family::process_latency ? 2 : 1, kReceivers};
    }
    const std::vector<std::string> parts = split(*options.test_calls, ':');
    if (parts.size() == 1) {
        return {1, parse_number<int>("-t", parts[0], 1, kMostThreads)};
    }
    return {parse_number<int>("-t", parts[0], 1, kMostThreads), parse_number<int>("-t", parts[1], 1, kMostThreads)};
}

}  // namespace awaken::bench
