// SPDX-License-Identifier: Apache-2.0
// One table holds every option: how it is spelt, what it means, what it does. Parsing (getopt_long, as OMB parses), the
// help text and the documentation's list come from it; which test takes which option of OMB is in the catalogue.
#include "engine/options.h"

#include <getopt.h>
#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>
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

/// In the place of a letter, which only options of OMB have.
constexpr char kOurs = '\0';
/// Options of ours are numbers from here on to getopt_long.
constexpr int kBehindLetters = 256;

/// A command line being read.
struct Parser {
    const TestInfo& test;
    CommandLine line;
    std::set<std::string> given;  ///< the options that occurred: "-m", "--json"

    [[nodiscard]] Options& options() { return line.options; }
    [[nodiscard]] bool has(const std::string& option) const { return given.count(option) != 0; }
    void note(const std::string& text) { line.options.notes.push_back(text); }
};

struct Row {
    char letter;  ///< of OMB, or kOurs
    const char* name;
    const char* placeholder;  ///< of the argument; empty: there is none
    const char* meaning;
    /// `option` is "-m" or "--json"; null: handled by the caller (help, version, list).
    void (*apply)(Parser& parser, const std::string& option, const std::string& value);
    std::string standard = "";       ///< the value without this option, where the test does not decide it
    bool may_lack_argument = false;  ///< the argument is then attached: "-z[P,P,..]"

    [[nodiscard]] bool of_omb() const noexcept { return letter != kOurs; }
    /// Of getopt_long.
    [[nodiscard]] int argument() const noexcept {
        return may_lack_argument ? optional_argument : placeholder[0] != '\0' ? required_argument : no_argument;
    }
};

/// "-f" or "--json", for messages.
std::string short_spelling(const Row& row) {
    return row.of_omb() ? std::string("-") + row.letter : std::string("--") + row.name;
}

/// "-m, --message-size [MIN:]MAX", "-z[P,P,..], --tail-lat[=P,P,..]", "--json FILE".
std::string spelling(const Row& row) {
    const std::string argument = row.placeholder;
    const bool attached = row.may_lack_argument && !argument.empty();
    std::string text;
    if (row.of_omb()) {
        text = short_spelling(row) + (attached ? "[" + argument + "]" : "") + ", ";
    }
    text += std::string("--") + row.name;
    if (attached) {
        return text + "[=" + argument + "]";
    }
    return text + (argument.empty() ? "" : " ") + argument;
}

/// "-m '4:2'"; without the option for other words.
std::string quoted(const std::string& option, const std::string& value) {
    return option + (option.empty() ? "" : " ") + "'" + excerpt(value) + "'";
}

/// The parts between separators. An `escape` takes the meaning from the character after it and stays in the part.
std::vector<std::string> split(const std::string& text, const char separator, const char escape = '\0') {
    std::vector<std::string> parts(1);
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == separator) {
            parts.emplace_back();
            continue;
        }
        parts.back() += text[i];
        if (text[i] == escape && i + 1 < text.size()) {
            parts.back() += text[++i];
        }
    }
    return parts;
}

/// What `parse` makes of each part of a list with commas.
template <typename Parse>
auto parse_list(const std::string& text, const Parse& parse) {
    std::vector<decltype(parse(text))> values;
    for (const std::string& part : split(text, ',')) {
        values.push_back(parse(part));
    }
    return values;
}

template <typename Value>
void add_if_new(std::vector<Value>& values, const Value& value) {
    if (std::find(values.begin(), values.end(), value) == values.end()) {
        values.push_back(value);
    }
}

bool equals_ignoring_case(const std::string& a, const char* b) {
    return strcasecmp(a.c_str(), b) == 0;
}

/// A value of an option: the word that a user writes, and what output shows for it.
template <typename Value>
struct Named {
    const char* word;
    Value value;
    const char* shown = "unknown";
};

template <typename Value, std::size_t count>
struct Choices {
    Named<Value> values[count];
    const char* wrong;  ///< "is not a datatype"
    const char* remedy;
    int (*compare)(const char*, const char*) noexcept = strcasecmp;

    [[nodiscard]] const Value& parse(const std::string& option, const std::string& word) const {
        for (const Named<Value>& one : values) {
            if (compare(word.c_str(), one.word) == 0) {
                return one.value;
            }
        }
        throw Error(quoted(option, word) + " " + wrong, remedy);
    }

    /// Of several words for a value the first.
    [[nodiscard]] constexpr Named<Value> named(const Value& value) const noexcept {
        for (const Named<Value>& one : values) {
            if (one.value == value) {
                return one;
            }
        }
        return {"unknown", value};
    }
};

constexpr Choices<BufferChoice, 8> kBufferKinds{
    {{"H", {BufferKind::host}, "host"},
     {"D", {BufferKind::device}, "device"},
     {"MD", {BufferKind::managed, true}, "managed"},
     {"MH", {BufferKind::managed}, "managed"},
     {"M", {BufferKind::managed}, "managed"},
     {"P", {BufferKind::pinned}, "pinned"},
     {"R", {BufferKind::registered}, "registered"},
     {"A", {BufferKind::pool}, "pool"}},
    "is not a kind of buffer",
    "use H (host), D (device), MD or MH (managed), P (pinned), R (registered) or A (pool)",
    std::strcmp};
constexpr Choices<ElementType, 4> kTypes{{{"MPI_CHAR", ElementType::char_},
                                          {"MPI_INT", ElementType::int_},
                                          {"MPI_FLOAT", ElementType::float_},
                                          {"MPI_DOUBLE", ElementType::double_}},
                                         "is not a datatype",
                                         "use mpi_char, mpi_int, mpi_float, mpi_double, or all for the first three"};
constexpr Choices<Accelerator, 4> kAccelerators{{{"cuda", Accelerator::cuda},
                                                 {"rocm", Accelerator::rocm},
                                                 {"managed", Accelerator::managed},
                                                 {"openacc", Accelerator::openacc}},
                                                "is not an accelerator",
                                                "use cuda, rocm, managed or openacc"};
/// On the CPU, on the GPU.
constexpr Choices<std::pair<bool, bool>, 3> kComputeTargets{
    {{"cpu", {true, false}}, {"gpu", {false, true}}, {"both", {true, true}}},
    "is not a compute target",
    "use cpu, gpu or both"};
constexpr Choices<bool, 2> kBufferNumbers{
    {{"single", false}, {"multiple", true}}, "is not understood", "use single or multiple"};
constexpr Choices<Synchronisation, 6> kSynchronisations{
    {{"pscw", Synchronisation::pscw, "MPI_Win_post/start/complete/wait"},
     {"fence", Synchronisation::fence, "MPI_Win_fence"},
     {"lock", Synchronisation::lock, "MPI_Win_lock/unlock"},
     {"flush", Synchronisation::flush, "MPI_Win_flush"},
     {"flush_local", Synchronisation::flush_local, "MPI_Win_flush_local"},
     {"lock_all", Synchronisation::lock_all, "MPI_Win_lock_all/unlock_all"}},
    "is not understood",
    "use one of pscw, fence, lock, flush, flush_local, lock_all"};
constexpr Choices<WindowForm, 3> kWindowForms{{{"create", WindowForm::create, "MPI_Win_create"},
                                               {"allocate", WindowForm::allocate, "MPI_Win_allocate"},
                                               {"dynamic", WindowForm::dynamic, "MPI_Win_create_dynamic"}},
                                              "is not understood",
                                              "use one of create, allocate, dynamic"};
constexpr Choices<ContenderChoice::Kind, 8> kContenders{
    {{"native", ContenderChoice::Kind::native},
     {"awaken", ContenderChoice::Kind::awaken},
     {"staged", ContenderChoice::Kind::staged},
     {"enqueue", ContenderChoice::Kind::enqueue},
     {"graph", ContenderChoice::Kind::graph},
     {"xccl", ContenderChoice::Kind::xccl},
     {"xccl_graph", ContenderChoice::Kind::xccl_graph},
     {"raw", ContenderChoice::Kind::raw}},
    "is not a contender",
    "use native, awaken, staged, enqueue, graph, xccl, xccl_graph or raw",
    std::strcmp};
constexpr Choices<Mode, 2> kModes{{{"waited", Mode::waited}, {"queued", Mode::queued}},
                                  "is not a timing mode",
                                  "use waited, queued or waited,queued",
                                  std::strcmp};
constexpr Choices<FirstOperation, 3> kFirstOperations{{{"message", FirstOperation::message},
                                                       {"exchange", FirstOperation::exchange},
                                                       {"allreduce", FirstOperation::allreduce}},
                                                      "is not an operation",
                                                      "use message, exchange or allreduce, or several with commas",
                                                      std::strcmp};
constexpr Choices<const char*, 2> kOmbVersions{
    {{"7.5", "7.5"}, {"7.0", "7.0"}}, "is not a known output", "use 7.5 or 7.0"};

/// The whole of `text` as a finite number.
std::optional<double> decimal(const std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    return whole ? std::optional(value) : std::nullopt;
}

/// A whole number in [least, most]; an Error that names the option and the range otherwise.
template <typename Number>
Number parse_number(const std::string& option, const std::string& text, Number least,
                    Number most = std::numeric_limits<Number>::max()) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool begins = error != std::errc::invalid_argument;
    const bool whole = begins && end == text.data() + text.size();  // not so 1e3, 2.5, 5x
    if (whole && error == std::errc() && value >= least && value <= most) {
        return value;
    }
    std::string remedy = "use a whole number, at least " + std::to_string(least);
    if (most != std::numeric_limits<Number>::max()) {
        remedy += " and at most " + std::to_string(most);
    }
    throw Error(quoted(option, text) + (whole    ? " is out of range"
                                        : begins ? " is not a whole number"
                                                 : " is not a number"),
                remedy);
}

// ---- what options do ------------------------------------------------------------------------------------------------

template <auto member, bool value = true>
void set_flag(Parser& parser, const std::string&, const std::string&) {
    parser.options().*member = value;
}

template <auto member>
void set_text(Parser& parser, const std::string&, const std::string& value) {
    parser.options().*member = value;
}

template <auto member, auto least, auto most = std::numeric_limits<decltype(least)>::max()>
void set_number(Parser& parser, const std::string& option, const std::string& value) {
    parser.options().*member = parse_number(option, value, least, most);
}

template <auto member, const auto& choices>
void set_choice(Parser& parser, const std::string& option, const std::string& value) {
    parser.options().*member = choices.parse(option, value);
}

void set_message_size(Parser& parser, const std::string& option, const std::string& value) {
    const std::vector<std::string> ends = split(value, ':');
    if (ends.size() > 2 || (ends.front().empty() && ends.back().empty())) {
        throw Error(quoted(option, value) + " is not a range of sizes",
                    "use MAX, MIN:MAX, MIN: or :MAX, such as -m 1:4M");
    }
    const auto set = [&](std::optional<std::size_t>& size, const std::string& text) {
        if (text.empty()) {
            return;
        }
        size = parse_bytes(text, option);
        if (size == 0) {
            throw Error(quoted(option, value) + " has a size of 0", "sizes begin at 1 byte");
        }
    };
    if (ends.size() == 2) {
        set(parser.options().minimum_size, ends.front());
    }
    set(parser.options().maximum_size, ends.back());
}

void set_validation(Parser& parser, const std::string& option, const std::string& value) {
    Options& options = parser.options();
    options.validation_column = true;
    if (value.empty()) {
        return;
    }
    const std::vector<std::string> parts = split(value, ':');
    if (parts[0] != "log" || parts.size() > 2 || (parts.size() == 2 && parts[1].empty())) {
        throw Error(quoted(option, value) + " is not understood", "use -c alone, or -clog:DIRECTORY to log mismatches");
    }
    options.validation_log = parts.size() == 2 ? parts[1] : "validation_output";
    struct stat existing{};
    if (stat(options.validation_log.c_str(), &existing) == 0) {
        throw Error("the log directory '" + options.validation_log + "' exists already",
                    "name another with -clog:DIRECTORY, or remove it");
    }
}

/// The text of a file that the value of `option` names; `lines`: what its lines hold.
std::string read_list_file(const std::string& option, const std::string& path, const std::string& lines) {
    InputFile file = read_input_file(path, kLargestListFile);
    if (!file.why_not.empty()) {
        throw Error("cannot read '" + path + "' of " + option + " (" + file.why_not + ")",
                    "name a file of lines '" + lines + "'");
    }
    return std::move(file.text);
}

std::vector<DerivedType::Block> read_blocks(const std::string& option, const std::string& path) {
    std::vector<DerivedType::Block> blocks;
    std::istringstream lines(read_list_file(option, path, "displacement, block length"));
    std::string line;
    for (std::size_t number = 1; std::getline(lines, line); ++number) {
        const std::size_t first = line.find_first_not_of(" \t\r");
        if (first == std::string::npos || line[first] == '#') {
            continue;
        }
        long long displacement = 0;
        long long length = 0;
        char rest = 0;
        if (std::sscanf(line.c_str(), " %lld , %lld %c", &displacement, &length, &rest) != 2 || displacement < 0 ||
            length <= 0) {
            throw Error(path + ", line " + std::to_string(number) + ": '" + excerpt(line) + "' is not a block",
                        "write 'displacement, block length' in elements of -T, such as '2, 10'");
        }
        blocks.push_back({static_cast<std::ptrdiff_t>(displacement), static_cast<std::size_t>(length)});
    }
    if (blocks.empty()) {
        throw Error("'" + path + "' of " + option + " has no blocks", "write 'displacement, block length' a line");
    }
    return blocks;
}

void set_derived_type(Parser& parser, const std::string& option, const std::string& value) {
    const std::vector<std::string> parts = split(value, ':');
    DerivedType type;
    if (equals_ignoring_case(parts[0], "cont") && parts.size() == 1) {
        type.form = DerivedType::Form::contiguous;
    } else if (equals_ignoring_case(parts[0], "vect") && parts.size() == 3) {
        type.form = DerivedType::Form::vector;
        type.stride = parse_bytes(parts[1], "-D vect:STRIDE");
        type.block_length = parse_bytes(parts[2], "-D vect::BLOCK");
        if (type.block_length == 0 || type.stride < type.block_length) {
            throw Error(quoted(option, value) + " has blocks that are empty or overlap",
                        "use a BLOCK of at least 1 element and a STRIDE of at least BLOCK");
        }
    } else if (equals_ignoring_case(parts[0], "indx") && value.size() > 5) {
        type.form = DerivedType::Form::indexed;
        type.blocks = read_blocks(option, value.substr(5));
    } else {
        throw Error(quoted(option, value) + " is not a derived type", "use cont, vect:STRIDE:BLOCK or indx:FILE");
    }
    parser.options().derived_type = std::move(type);
}

void set_neighborhood(Parser& parser, const std::string& option, const std::string& value) {
    const std::vector<std::string> parts = split(value, ':');
    Neighborhood neighborhood;
    if (equals_ignoring_case(parts[0], "cart") && parts.size() == 3) {
        neighborhood.dimensions = parse_number<int>("-N cart:DIMENSIONS", parts[1], 1, 16);
        neighborhood.radius = parse_number<int>("-N cart::RADIUS", parts[2], 1);
    } else if (equals_ignoring_case(parts[0], "graph") && value.size() > 6) {
        neighborhood.cartesian = false;
        neighborhood.graph_file = value.substr(6);
        static_cast<void>(read_list_file(option, neighborhood.graph_file, "source, destination"));
    } else {
        throw Error(quoted(option, value) + " is not a topology", "use cart:DIMENSIONS:RADIUS or graph:FILE");
    }
    parser.options().neighborhood = std::move(neighborhood);
}

void add_types(Parser& parser, const std::string& option, const std::string& value) {
    using enum ElementType;
    std::vector<ElementType>& types = parser.options().types;
    for (const std::string& name : split(value, ',')) {
        if (!equals_ignoring_case(name, "all")) {
            add_if_new(types, kTypes.parse(option, name));
            continue;
        }
        for (const ElementType type : {char_, int_, float_}) {
            add_if_new(types, type);
        }
    }
}

void set_percentiles(Parser& parser, const std::string& option, const std::string& value) {
    parser.options().percentiles = parse_list(value.empty() ? "50,90,99" : value, [&](const std::string& text) {
        return parse_number<int>(option, text, 1, 100);
    });
    if (parser.options().percentiles.size() > kMostPercentiles) {
        throw Error(quoted(option, value) + " has too many percentiles",
                    "use at most " + std::to_string(kMostPercentiles));
    }
}

void set_root(Parser& parser, const std::string& option, const std::string& value) {
    Options& options = parser.options();
    options.rotate_root = equals_ignoring_case(value, "rotate");
    if (strncasecmp(value.c_str(), "fixed:", 6) == 0) {
        options.root = parse_number<int>("-k fixed:", value.substr(6), 0);
    } else if (!options.rotate_root) {
        throw Error(quoted(option, value) + " is not understood", "use fixed:RANK or rotate");
    }
}

void set_accelerator(Parser& parser, const std::string& option, const std::string& value) {
    Accelerator& accelerator = parser.options().accelerator;
    accelerator = kAccelerators.parse(option, value);
    if (accelerator == Accelerator::openacc) {
        parser.note(
            "-d openacc: buffers come from the GPU runtime itself, as with -d cuda or -d rocm; no OpenACC is used");
    }
}

void set_compute_target(Parser& parser, const std::string& option, const std::string& value) {
    Options& options = parser.options();
    std::tie(options.compute_on_cpu, options.compute_on_gpu) = kComputeTargets.parse(option, value);
}

void set_test_calls(Parser& parser, const std::string& option, const std::string& value) {
    const Family family = parser.test.family;
    if (family == Family::threaded_latency || family == Family::process_latency) {
        const std::vector<std::string> parts = split(value, ':');
        if (parts.size() > 2) {
            throw Error(quoted(option, value) + " is not understood", "use RECEIVERS or SENDERS:RECEIVERS");
        }
        for (const std::string& part : parts) {
            (void)parse_number<int>(option, part, 1, kMostThreads);
        }
    } else {
        (void)parse_number<int>(option, value, 0);
    }
    parser.options().test_calls = value;
}

void set_memory_limit(Parser& parser, const std::string& option, const std::string& value) {
    std::size_t& limit = parser.options().memory_limit;
    limit = parse_bytes(value, option);
    if (limit < kSmallestMemoryLimit) {
        limit = kSmallestMemoryLimit;
        parser.note("-M " + value + " is too little: 1048576 bytes are used instead");
    }
}

void note_graph(Parser& parser, const std::string& option, const std::string& value) {
    for (const std::string& form : split(value, ',')) {
        if (!equals_ignoring_case(form, "tty") && !equals_ignoring_case(form, "png") &&
            !equals_ignoring_case(form, "pdf")) {
            throw Error(quoted(option, form) + " is not a form of graph", "use tty, png, pdf, or several with commas");
        }
    }
    parser.note("-G is accepted without effect: no graph is drawn; --json FILE holds every sample to draw from");
}

void note_papi(Parser& parser, const std::string&, const std::string&) {
    parser.note("-P is accepted without effect: no hardware counters are read; run under a profiler such as perf");
}

void set_synchronisation(Parser& parser, const std::string& option, const std::string& value) {
    const Synchronisation synchronisation = kSynchronisations.parse(option, value);
    if (parser.test.family == Family::one_sided_bidirectional_bandwidth && !target_takes_part(synchronisation)) {
        throw Error(std::string(parser.test.name) + " takes no -s " + value,
                    "use pscw or fence, in which both ranks take part");
    }
    parser.options().synchronisation = synchronisation;
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

void add_launcher(Parser& parser, const std::string&, const std::string& value) {
    if (value.empty() || value.back() == '=') {
        throw Error(quoted("--launcher", value) + " names no command", "write --launcher 'mpiexec -n 2', for example");
    }
    parser.options().launchers.push_back(value);
}

/// [LABEL=]KIND{+NAME=VALUE}, separated by commas. Said again, it replaces what was said before.
void set_contenders(Parser& parser, const std::string& option, const std::string& value) {
    std::vector<ContenderChoice>& contenders = parser.options().contenders;
    contenders.clear();
    for (const std::string& item : split(value, ',', '\\')) {
        const std::vector<std::string> parts = split(item, '+', '\\');
        const std::size_t equals = parts[0].find('=');
        const std::string kind = parts[0].substr(equals + 1);  // all of it where there is no label
        ContenderChoice contender;
        contender.name = parts[0].substr(0, equals);
        contender.kind = kContenders.parse(option, kind);
        if (contender.name.empty() || (parts.size() > 1 && equals == std::string::npos)) {
            throw Error(quoted(option, item) + " has no label to show in tables",
                        "write LABEL=" + item.substr(equals + 1));
        }
        for (std::size_t i = 1; i < parts.size(); ++i) {
            if (parts[i].find('=') == std::string::npos || parts[i].front() == '=') {
                throw Error(quoted(option, item) + ": '" + parts[i] + "' is not an environment variable",
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

/// Words with commas. Said again, it replaces what was said before.
template <auto member, const auto& choices>
void set_choices(Parser& parser, const std::string& option, const std::string& value) {
    auto& values = parser.options().*member;
    values.clear();
    for (const std::string& name : split(value, ',')) {
        add_if_new(values, choices.parse(option, name));
    }
}

void set_allocations(Parser& parser, const std::string& option, const std::string& value) {
    std::vector<std::size_t>& allocations = parser.options().allocations;
    allocations.clear();
    for (const std::string& size : split(value, ',')) {
        add_if_new(allocations, parse_bytes(size, option));
    }
}

/// A positive fraction, also as a percentage.
void set_precision(Parser& parser, const std::string& option, const std::string& value) {
    const bool percent = value.ends_with('%');
    const double fraction =
        decimal(value.substr(0, value.size() - (percent ? 1 : 0))).value_or(0) / (percent ? 100 : 1);
    if (fraction <= 0 || fraction >= 1) {
        throw Error(quoted(option, value) + " is not a fraction between 0 and 1", "use 0.01 or 1%, for example");
    }
    parser.options().precision = fraction;
}

void set_max_time(Parser& parser, const std::string& option, const std::string& value) {
    const double seconds = decimal(value).value_or(0);
    if (seconds <= 0) {
        throw Error(quoted(option, value) + " is not a time", "use seconds, such as 2 or 0.5");
    }
    parser.options().time_limit_s = seconds;
}

void set_json_file(Parser& parser, const std::string& option, const std::string& value) {
    if (value.empty()) {
        throw Error(option + " has an empty file name", "name a file, or - for stdout");
    }
    parser.options().json_file = value;
}

void set_rank_buffers(Parser& parser, const std::string& option, const std::string& value) {
    parser.options().rank_buffers =
        parse_list(value, [&](const std::string& kind) { return kBufferKinds.parse(option, kind); });
}

void set_gpu_map(Parser& parser, const std::string& option, const std::string& value) {
    parser.options().gpu_map =
        parse_list(value, [&](const std::string& device) { return parse_number<int>(option, device, 0); });
}

/// --emulate is obeyed by `awaken bench` before this process starts.
void obeyed_before(Parser&, const std::string&, const std::string&) {}

const std::vector<Row>& rows() {
    using std::to_string;
    static const Options defaults;
    static const std::vector<Row> table = {
        {'h', "help", "", "prints this help", nullptr},
        {'v', "version", "", "prints the name and the version of the output", nullptr},
        {'m', "message-size", "[MIN:]MAX",
         "sizes in bytes, with an optional K, M or G (powers of two): MAX, MIN:MAX, MIN: or :MAX", set_message_size},
        {'i', "iterations", "N", "timed iterations at every size",
         set_number<&Options::iterations, std::size_t{1}, kMostIterations>},
        {'x', "warmup", "N", "iterations before the timed ones",
         set_number<&Options::warmup, std::size_t{0}, kMostIterations>},
        {'f', "full", "", "prints more columns: extremes over ranks, iterations, parts of the time",
         set_flag<&Options::full>},
        {'W', "window-size", "N", "messages in flight at once", set_number<&Options::window_size, 1, kMostMessages>},
        {'V', "vary-window", "", "windows of 1, 2, 4 to 128 messages instead of one size",
         set_flag<&Options::vary_window>, "", true},
        {'R', "print-rate", "0|1", "whether messages per second are printed", set_number<&Options::print_rate, 0, 1>,
         "1"},
        {'p', "num-pairs", "N", "pairs that take part", set_number<&Options::pairs, 1>, "half of the ranks"},
        {'t', "num-test-calls", "N|[S:]R",
         "nonblocking collectives: MPI_Test calls during the computation; latency_mt and latency_mp: threads or "
         "processes of the sender and of the receiver",
         set_test_calls},
        {'M', "mem-limit", "SIZE", "most memory for buffers, bytes a process", set_memory_limit,
         to_string(defaults.memory_limit)},
        {'d', "accelerator", "cuda|rocm|managed|openacc",
         "device (or managed) buffers on every rank, where SRC and DST do not say otherwise", set_accelerator,
         "host buffers"},
        {'r', "cuda-target", "cpu|gpu|both", "where nonblocking collectives compute meanwhile", set_compute_target,
         "cpu"},
        {'a', "array-size", "N", "size of the arrays of the computation on the GPU",
         set_number<&Options::array_size, 1>, to_string(defaults.array_size)},
        {'c', "validation", "log:DIR",
         "prints a Validation column, and logs mismatches of each rank into DIR; data are checked without it too",
         set_validation, "", true},
        {'u', "validation-warmup", "N", "untimed calls after a check and before timed ones, at most 10",
         set_number<&Options::validation_warmup, 0, kMostValidationWarmup>, to_string(defaults.validation_warmup)},
        {'b', "buffer-num", "single|multiple", "one buffer, or one for each message of a window",
         set_choice<&Options::multiple_buffers, kBufferNumbers>, "single"},
        {'G', "graph", "tty,png,pdf", "accepted without effect: --json holds every sample", note_graph},
        {'P', "papi", "EVENTS:PATH", "accepted without effect: no hardware counters are read", note_papi},
        {'D', "ddt", "cont|vect:STRIDE:BLOCK|indx:FILE",
         "a derived datatype; elements of -T, and lines 'displacement, block length' of them in FILE; not with -c",
         set_derived_type},
        {'N', "nhbr", "cart:DIMENSIONS:RADIUS|graph:FILE", "the neighbourhood; lines 'source, destination' in FILE",
         set_neighborhood, "cart:1:1"},
        {'T', "type", "TYPE",
         "mpi_char, mpi_int, mpi_float, mpi_double, or all for the first three; again or with commas for several",
         add_types},
        {'I', "session", "", "starts MPI through a session", set_flag<&Options::session>},
        {'l', "in-place", "", "MPI_IN_PLACE as the send buffer", set_flag<&Options::in_place>},
        {'z', "tail-lat", "P,P,..", "columns of percentiles, at most 5; attached to the letter (-z50,99)",
         set_percentiles, "50,90,99", true},
        {'k', "root-rank", "fixed:R|rotate", "the root", set_root, "fixed:0"},
        {'s', "sync-option", "pscw|fence|lock|flush|flush_local|lock_all", "synchronisation of one-sided tests",
         set_synchronisation},
        {'w', "win-options", "create|allocate|dynamic", "window of one-sided tests",
         set_choice<&Options::window_form, kWindowForms>},

        {kOurs, "compare", "LIST",
         "runs contenders in turns and compares them: native, awaken, staged, enqueue, graph, xccl, xccl_graph, raw; "
         "each "
         "[LABEL=]KIND[+NAME=VALUE..], where NAME=VALUE is set in the environment of a launch of its own (commas and "
         "plus signs in it after \\)",
         set_contenders},
        {kOurs, "launcher", "[CONTENDER=]COMMAND",
         "comparisons: starts contenders with a launch command of their own, such as another MPI's mpiexec -n 2",
         add_launcher},
        {kOurs, "mpiexec", "[CONTENDER=]COMMAND", "another name of --launcher", add_launcher},
        {kOurs, "ranks", "N",
         "comparisons that start their ranks: how many (2); in the place of {ranks} of --launcher, or as -n N",
         set_number<&Options::launched_ranks, 1>},
        {kOurs, "listen", "ADDRESS",
         "comparisons with launches on several nodes: the address of this one at which they ask for their turns",
         set_text<&Options::listen_address>, defaults.listen_address},
        {kOurs, "start-limit", "SECONDS",
         "comparisons with launches: gives up one whose ranks have not started by then (120)",
         set_number<&Options::start_limit_s, 1>},
        {kOurs, "turns", "FILE", "given to launches of a comparison by the process that starts them",
         set_text<&Options::turns>},
        {kOurs, "mode", "waited,queued",
         "comparisons: each call waited for, or calls started back to back and waited for together",
         set_choices<&Options::modes, kModes>, "waited"},
        {kOurs, "adaptive", "", "iterations until --precision or --max-time is reached", set_flag<&Options::adaptive>},
        {kOurs, "precision", "FRACTION",
         "stops when the 95 % interval of the median is within this part of it; implies --adaptive", set_precision,
         "0.01"},
        {kOurs, "max-time", "SECONDS", "most time a contender and size; implies --adaptive", set_max_time, "2"},
        {kOurs, "json", "FILE", "everything measured, with all samples; - for stdout instead of the table",
         set_json_file},
        {kOurs, "omb-version", "7.5|7.0", "whose output is printed", set_choice<&Options::omb_version, kOmbVersions>,
         defaults.omb_version},
        {kOurs, "buffers", "KIND,KIND,..", "kinds of buffers of ranks 0, 1, ..; repeated for the ranks after",
         set_rank_buffers},
        {kOurs, "gpu-map", "N,N,..", "the GPU of each rank of a node, by its local rank; repeated for the ranks after",
         set_gpu_map},
        {kOurs, "unaligned", "", "buffers begin one element behind their allocation", set_flag<&Options::unaligned>},
        {kOurs, "one-by-one", "",
         "bw, bibw, mbw_mr: completes the messages of a window by MPI_Waitany, one after the other",
         set_flag<&Options::one_by_one>},
        {kOurs, "partitions", "N",
         "partitioned_latency: equal parts of a message; where N does not divide its elements, the most that do",
         set_number<&Options::partitions, 1>, to_string(defaults.partitions)},
        {kOurs, "step-factor", "N", "from one size to the next", set_number<&Options::step_factor, std::size_t{2}>,
         "2"},
        {kOurs, "operation", "LIST", "first: what processes do first, of message, exchange and allreduce",
         set_choices<&Options::operations, kFirstOperations>, "message,exchange,allreduce"},
        {kOurs, "allocation", "SIZE,SIZE,..",
         "first: sizes of the buffers that messages are the beginning of, with K, M or G as for -m", set_allocations,
         "the sizes of -m"},
        {kOurs, "kernels", "N", "halo: kernels that each iteration queues before its messages",
         set_number<&Options::kernels, 1>, to_string(defaults.kernels)},
        {kOurs, "no-check", "", "leaves out the check of the data", set_flag<&Options::validate, false>},
        {kOurs, "self-test", "", "damages data on purpose, which the check must find", set_flag<&Options::self_test>},
        {kOurs, "assume-gpu-aware", "",
         "native takes device memory although it says that it does not, such as Open MPI over a UCX that knows GPUs",
         set_flag<&Options::assume_gpu_aware>},
        {kOurs, "native", "", "without the layer: the MPI as it is", set_flag<&Options::native>},
        {kOurs, "emulate", "KIND:N", "on N emulated GPUs: cuda:N, hip:N, or hip5:N as under ROCm 5", obeyed_before},
        {kOurs, "no-progress", "", "no progress on a terminal's stderr", set_flag<&Options::progress, false>},
        {kOurs, "quiet", "", "no notes on stderr", set_flag<&Options::quiet_notes>},
        {kOurs, "list", "", "lists the tests", nullptr},
    };
    return table;
}

/// What stands for a row in getopt_long.
int code_of(const Row& row) {
    return row.of_omb() ? row.letter : kBehindLetters + static_cast<int>(&row - rows().data());
}

const Row& row_of(int code) {
    return *std::find_if(rows().begin(), rows().end(), [&](const Row& row) { return code_of(row) == code; });
}

bool takes_sides(const TestInfo& test) {
    return test.family != Family::startup && test.collective != Collective::barrier;
}

bool takes(const TestInfo& test, const Row& row) {
    if (row.of_omb()) {
        return std::strchr(test.options, row.letter) != nullptr;
    }
    const std::string_view name = row.name;
    if (name == "step-factor") {
        return test.sized && !test.is_of_one_element();
    }
    if (name == "unaligned") {
        return test.sized;
    }
    if (name == "buffers") {
        return takes_sides(test);
    }
    if (name == "one-by-one") {
        return test.family == Family::bandwidth || test.family == Family::bidirectional_bandwidth ||
               test.family == Family::multiple_bandwidth;
    }
    if (name == "kernels") {
        return test.family == Family::halo;
    }
    // Its iterations follow each other in the order of the stream, as far as the contender lets them.
    if (name == "mode" && test.family == Family::halo) {
        return false;
    }
    const bool first = test.family == Family::first;
    if (name == "operation" || name == "allocation") {
        return first;
    }
    // What happens once in a process cannot be repeated, queued or tried out before.
    static const std::set<std::string_view> kRepeated = {"adaptive", "precision", "max-time",
                                                         "mode",     "self-test", "omb-version"};
    if (first && kRepeated.count(name) != 0) {
        return false;
    }
    // What only says something of messages has no meaning for starting up.
    static const std::set<std::string_view> kForAll = {"native", "emulate",     "quiet", "no-progress",
                                                       "turns",  "omb-version", "json",  "list"};
    return test.family != Family::startup || kForAll.count(name) != 0;
}

std::string help_hint(const TestInfo& test) {
    return std::string("`awaken bench ") + test.name + " --help`";
}

/// What OMB's families take without doing anything with it, here as there.
void note_options_without_effect(Parser& parser) {
    const TestInfo& test = parser.test;
    Options& options = parser.options();
    const bool nonblocking = test.family == Family::nonblocking_collective;
    const bool concurrent = test.family == Family::threaded_latency || test.family == Family::process_latency;
    const bool congestion = test.family == Family::congestion;
    const bool barrier = test.collective == Collective::barrier;
    // Put, get, and get_accumulate, to which OMB gives no types.
    const bool one_type = barrier || (test.is_one_sided() && !test.reduction);
    const bool no_column = congestion || one_type;
    const bool never_in_place = barrier || test.collective == Collective::bcast || test.neighborhood;
    const struct {
        const char* letters;
        bool without_effect;
        const char* why;
    } reasons[] = {
        {"ra", !nonblocking, "only nonblocking collectives compute"},
        {"a", nonblocking && !options.compute_on_gpu, "it is of the computation on the GPU (-r gpu or -r both)"},
        {"t", !nonblocking && !concurrent, "it is of nonblocking collectives, latency_mt and latency_mp"},
        {"p", congestion, "there are no pairs in this test"},
        {"R", congestion, "this test prints no message rate"},
        {"V", congestion, "only mbw_mr varies its window"},
        {"m", barrier, "a barrier has no size"},
        {"Md", barrier, "a barrier has no buffers"},
        {"u", barrier, "a barrier has no data to check"},
        {"c", no_column, "this test has no Validation column, and is checked all the same"},
        {"T", one_type, "this test has one type only"},
        {"l", never_in_place, "MPI has no MPI_IN_PLACE here"},
        {"W", options.vary_window && test.family == Family::multiple_bandwidth, "-V chooses the windows"},
        {"m", test.is_of_one_element(), "the operation is on one element"},
    };
    for (const auto& [letters, without_effect, why] : reasons) {
        for (const char* letter = letters; without_effect && *letter != '\0'; ++letter) {
            const std::string option{'-', *letter};
            if (parser.has(option)) {
                parser.note(option + " is accepted without effect: " + why);
            }
        }
    }
    options.validation_column = options.validation_column && !no_column;
    options.in_place = options.in_place && !never_in_place;
    if (one_type) {
        options.types.clear();
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

/// Each size of `first` must fit into an allocation, and each allocation hold a size.
void refuse_figures_without_room(const Options& options, const TestInfo& test) {
    const std::vector<FirstFigure> figures = first_figures(options, test);
    const auto refuse_others = [&](const std::vector<std::size_t>& values, std::size_t FirstFigure::* member,
                                   const std::string& what) {
        for (const std::size_t value : values) {
            if (std::none_of(figures.begin(), figures.end(),
                             [&](const FirstFigure& figure) { return figure.*member == value; })) {
                throw Error(what + " of " + std::to_string(value) + " bytes",
                            "a message is the beginning of an allocation: give --allocation as much as -m, or more");
            }
        }
    };
    refuse_others(sizes_to_measure(options, test, ElementType::char_), &FirstFigure::size,
                  "no allocation holds a message");
    refuse_others(options.allocations, &FirstFigure::allocation, "no message of -m fits into an allocation");
}

/// Whether a rank has other buffers than the GPU's own.
bool any_outside_device(const Options& options, const TestInfo& test) {
    for (int rank = 0; rank < std::max(2, static_cast<int>(options.rank_buffers.size())); ++rank) {
        const BufferKind kind = buffers_of_rank(options, test, rank).send.kind;
        if (kind != BufferKind::device && kind != BufferKind::pool) {
            return true;
        }
    }
    return false;
}

void check_combinations(Parser& parser) {
    const TestInfo& test = parser.test;
    Options& options = parser.options();
    if (test.family == Family::first && options.contenders.empty()) {
        // A single contender is started from here, too.
        ContenderChoice& contender = options.contenders.emplace_back();
        contender.kind = options.native ? ContenderChoice::Kind::native : ContenderChoice::Kind::awaken;
        contender.name = to_string(contender.kind);
    }
    const bool compares = !options.contenders.empty();
    const bool limits = parser.has("--precision") || parser.has("--max-time");
    const auto layered = std::find_if(
        options.contenders.begin(), options.contenders.end(),
        [](const ContenderChoice& contender) { return needs_layer(contender.kind) && contender.environment.empty(); });
    const bool takes_layer = layered != options.contenders.end() && options.launchers.empty();
    const char* const compare = "add --compare, such as --compare native,awaken";
    const char* const launch = "add --compare, or write the launcher before it: mpiexec -n 4 awaken bench ...";
    const struct {
        bool wrong;
        std::string cause;
        const char* remedy;
    } rules[] = {
        {parser.has("-D") && parser.has("-c"), "-c and -D exclude each other",
         "leave out one: OMB has no Validation column for derived datatypes"},
        {!options.validate && options.self_test, "--no-check contradicts --self-test", "leave out one"},
        {!options.validate && options.validation_column, "--no-check contradicts -c", "leave out one"},
        {compares && options.vary_window && test.family == Family::multiple_bandwidth, "-V is not for comparisons",
         "compare at one window: -W N"},
        {!compares && !options.launchers.empty(), "--launcher is for comparisons", launch},
        {!compares && options.launched_ranks > 0, "--ranks is for comparisons", launch},
        {parser.has("--partitions") && test.family != Family::partitioned_latency,
         "--partitions is for partitioned_latency", "leave it out"},
        // The layer waits for kernels that write device memory; other memory is for the program to wait for.
        {test.family == Family::halo && any_outside_device(options, test),
         "the kernels of halo write device memory, and a buffer is in other memory",
         "write D D (or A A), -d cuda or -d rocm"},
        {!compares && parser.has("--mode"), "--mode is for comparisons", compare},
        {parser.has("--adaptive") && parser.has("-i"), "-i fixes the iterations that --adaptive is to choose",
         "leave out one"},
        {options.native && takes_layer,
         "--native leaves out the layer that '" + (takes_layer ? layered->name : "") + "' is to run through",
         "leave out --native: comparisons run `native` without the layer all the same"},
        {limits && parser.has("-i"), "-i fixes the iterations that --precision and --max-time are to choose",
         "leave out one"},
    };
    for (const auto& [wrong, cause, remedy] : rules) {
        if (wrong) {
            throw Error(cause, remedy);
        }
    }
    // A fixed number of iterations wins; precision and time alone say that they are to be chosen.
    if (!parser.has("-i") && test.family != Family::first) {
        options.adaptive = options.adaptive || limits || compares;
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
    if (test.family == Family::first) {
        refuse_figures_without_room(options, test);
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
        throw Error("'" + words.front() + "' is one argument too many",
                    std::string(parser.test.name) + " takes no SRC and DST");
    }
    for (const std::string& word : words) {
        // getopt takes an argument that may be missing only where it is attached, and leaves another among the words.
        const bool percentiles = parser.has("-z") && word.find_first_not_of("0123456789,") == std::string::npos;
        if (percentiles || (parser.has("-c") && word.starts_with("log"))) {
            const std::string option = percentiles ? "-z" : "-c";
            throw Error("'" + word + "' stands apart from " + option, "attach it: " + option + word);
        }
        parser.options().sides.push_back(kBufferKinds.parse("", word));
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

/// The value without the option; empty when there is none.
std::string default_text(const Row& row, const TestInfo& test) {
    const Defaults defaults = defaults_of(test);
    const auto small_and_large = [&](std::size_t small, std::size_t large) {
        return std::to_string(small) + (small == large ? "" : ", above 8192 bytes " + std::to_string(large));
    };
    switch (row.letter) {
        case 'm':
            return test.is_of_one_element() || !test.sized
                       ? ""
                       : std::to_string(defaults.minimum_size) + ":" + std::to_string(defaults.maximum_size);
        case 'i':
            return small_and_large(defaults.iterations_small, defaults.iterations_large);
        case 'x':
            return small_and_large(defaults.warmup_small, defaults.warmup_large);
        case 'W':
            return std::to_string(defaults.window_size);
        case 't':
            return test.family == Family::nonblocking_collective ? "0"
                   : test.family == Family::threaded_latency     ? "1:2"
                   : test.family == Family::process_latency      ? "2:2"
                                                                 : "";
        case 'T':
            return mpi_name(types_to_measure({}, test).front());
        case 's':
            return kSynchronisations.named(synchronisation_of({}, test)).word;
        case 'w':
            return kWindowForms.named(window_form_of({}, test)).word;
        default:
            return row.standard;
    }
}

std::string option_lines(const TestInfo* test, bool of_omb) {
    constexpr std::size_t kIndent = 30;
    constexpr std::size_t kWidth = 100;
    std::string text;
    for (const Row& row : rows()) {
        if (row.of_omb() != of_omb ||
            (test != nullptr && (!takes(*test, row) || std::string_view(row.name) == "list"))) {
            continue;
        }
        std::string head = (of_omb ? "  " : "      ") + spelling(row);
        head += head.size() + 2 > kIndent ? "\n" + std::string(kIndent, ' ') : std::string(kIndent - head.size(), ' ');
        const std::string value = test != nullptr ? default_text(row, *test) : "";
        text += head + wrapped(row.meaning + (value.empty() ? "" : " (default " + value + ")"), kIndent, kWidth) + "\n";
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

[[noreturn]] void refuse_without_argument(const Row& row, const std::string& detail = "") {
    throw Error(short_spelling(row) + " lacks its argument" + detail, "write " + spelling(row));
}

/// getopt takes the beginning of a name for the name; what `awaken` itself must know before it starts the benchmarks is
/// looked for under its whole name only.
void refuse_abbreviation(const Row& row, const std::string_view word) {
    const std::string name = std::string("--") + row.name;
    if ((name == "--native" || name == "--emulate") && word.substr(0, word.find('=')) != name) {
        throw Error(std::string(word) + " is short for " + name + ", which must be written in full", "write " + name);
    }
}

CommandLine parse_words(const TestInfo& test, std::span<char* const> words) {
    // The leading colon tells a missing argument from an unknown option. Without "+", which OMB's strings mostly begin
    // with, options may also follow SRC and DST.
    std::string letters = ":";
    std::vector<option> long_options;
    for (const Row& row : rows()) {
        if (row.of_omb()) {
            letters += row.letter;
            // -V has no argument; that its long form may have one is an accident of OMB's table.
            if (row.letter != 'V') {
                letters += std::string(static_cast<std::size_t>(row.argument()), ':');
            }
        }
        long_options.push_back({row.name, row.argument(), nullptr, code_of(row)});
    }
    long_options.push_back({nullptr, 0, nullptr, 0});

    std::vector<char*> arguments(words.begin(), words.end());
    const int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);

    // getopt keeps its state in globals.
    static std::mutex parsing;
    const std::scoped_lock lock(parsing);
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
            if (optopt > 0 && optopt < kBehindLetters && std::strncmp(word, "--", 2) != 0) {
                refuse_unknown_option(test, std::string("-") + static_cast<char>(optopt));
            }
            refuse_unknown_option(test, arguments[static_cast<std::size_t>(optind - 1)]);
        }
        if (code == ':') {
            refuse_without_argument(row_of(optopt));
        }
        const Row& row = row_of(code);
        if (!takes(test, row)) {
            const std::string remedy = code == 'f'                  ? "it is for collectives; "
                                       : code == 's' || code == 'w' ? "it is for one-sided tests; "
                                                                    : "leave it out; ";
            throw Error(std::string(test.name) + " takes no " + short_spelling(row) + " (--" + row.name + ")",
                        remedy + help_hint(test) + " lists what it takes");
        }
        if (code == 'h') {
            return {Request::help, &test, false, std::move(parser.line.options)};
        }
        if (code == 'v') {
            parser.line.request = Request::version;
            continue;
        }
        if (std::string_view(row.name) == "list") {
            return {Request::list, nullptr, false, {}};
        }
        // The word just read, or the one before its argument.
        const bool argument_apart = optarg != nullptr && optarg == arguments[static_cast<std::size_t>(optind - 1)];
        // getopt gives an option whose argument was forgotten the next option's name; `awaken` would still obey that.
        if (argument_apart && std::string_view(optarg).starts_with("--")) {
            refuse_without_argument(row, ": " + std::string(optarg) + " after it is an option");
        }
        refuse_abbreviation(row, arguments[static_cast<std::size_t>(optind - (argument_apart ? 2 : 1))]);
        parser.given.insert(short_spelling(row));
        row.apply(parser, short_spelling(row), optarg == nullptr ? "" : optarg);
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
    return kBufferKinds.named({kind}).shown;
}

const char* letters_of(const BufferChoice& choice) noexcept {
    return kBufferKinds.named(choice).word;
}

const char* to_string(Accelerator accelerator) noexcept {
    return accelerator == Accelerator::none ? "none" : kAccelerators.named(accelerator).word;
}

const char* to_string(Mode mode) noexcept {
    return kModes.named(mode).word;
}

const char* to_string(FirstOperation operation) noexcept {
    return kFirstOperations.named(operation).word;
}

bool needs_layer(const ContenderChoice::Kind kind) noexcept {
    using Kind = ContenderChoice::Kind;
    return kind == Kind::awaken || kind == Kind::enqueue || kind == Kind::graph;
}

const char* to_string(ContenderChoice::Kind kind) noexcept {
    return kContenders.named(kind).word;
}

const char* mpi_name(ElementType type) noexcept {
    return kTypes.named(type).word;
}

const char* mpi_name(WindowForm form) noexcept {
    return kWindowForms.named(form).shown;
}

const char* mpi_name(Synchronisation synchronisation) noexcept {
    return kSynchronisations.named(synchronisation).shown;
}

std::size_t size_of(ElementType type) noexcept {
    constexpr std::size_t kSizes[] = {sizeof(char), sizeof(int), sizeof(float), sizeof(double)};
    return kSizes[static_cast<std::size_t>(type)];
}

CommandLine parse_command_line(std::span<char* const> words) {
    if (words.empty()) {
        throw Error("no test is named", "write `awaken bench NAME`; `awaken bench --list` lists the names");
    }
    const std::string name = words.front();
    const bool as_json = words.size() == 2 && std::string_view(words[1]) == "--json";
    if (name == "-h" || name == "--help") {
        // `--help NAME` is what people type who know other programs.
        const TestInfo* test = words.size() > 1 ? find_test(words[1]) : nullptr;
        return {Request::help, test, as_json, {}};
    }
    // -V with a test is OMB's.
    if (name == "-v" || name == "-V" || name == "--version") {
        return {Request::version, nullptr, as_json, {}};
    }
    if (name == "--list") {
        return {Request::list, nullptr, as_json, {}};
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

std::string general_description() {
    return "Measures MPI with the options and the output of the OSU micro-benchmarks. NAME is a test of\n"
           "`awaken bench --list`, with or without osu_ before it. Run it under the MPI's launcher\n"
           "(mpiexec -n 4 awaken bench allreduce D D); without one it starts as few ranks as the test needs.\n";
}

std::string help_text(const TestInfo* test) {
    if (test == nullptr) {
        return "Usage: awaken bench NAME [options] [SRC DST]\n"
               "       awaken bench --list [--json]\n"
               "       awaken bench NAME --help\n\n" +
               general_description() + "\n" + kSidesHelp +
               "\nOptions of the OSU micro-benchmarks; each test takes those that its --help lists:\n" +
               option_lines(nullptr, true) + "\nFurther options:\n" + option_lines(nullptr, false);
    }
    std::string text = std::string("Usage: awaken bench ") + test->name + " [options]" +
                       (takes_sides(*test) ? " [SRC DST]" : "") + "\n\n" +
                       title_line(*test, {}, Accelerator::none).substr(2) + ": " + summary_of(*test) + ".\n";
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
        std::vector<std::string> names = {std::string("--") + row.name};
        if (row.of_omb()) {
            names.insert(names.begin(), short_spelling(row));
        }
        descriptions.push_back(
            {spelling(row), std::move(names), row.placeholder, row.may_lack_argument, row.meaning, row.of_omb()});
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
    const BufferChoice choice{options.accelerator == Accelerator::none      ? BufferKind::host
                              : options.accelerator == Accelerator::managed ? BufferKind::managed
                                                                            : BufferKind::device};
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
    if (test.family == Family::first) {
        const bool reduces = options.operations == std::vector{FirstOperation::allreduce};
        return {reduces ? ElementType::int_ : ElementType::char_};
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
    const std::size_t minimum = options.minimum_size.value_or(defaults.minimum_size);
    if (test.family == Family::first && !options.step_factor) {
        return minimum < maximum ? std::vector{minimum, maximum} : std::vector{minimum};
    }
    const std::size_t factor = options.step_factor.value_or(2);
    std::vector<std::size_t> sizes;
    for (std::size_t size = minimum; size <= maximum; size *= factor) {
        sizes.push_back(size);
        if (size > std::numeric_limits<std::size_t>::max() / factor) {
            break;
        }
    }
    return sizes;
}

std::vector<FirstFigure> first_figures(const Options& options, const TestInfo& test) {
    constexpr FirstOperation kAll[] = {FirstOperation::message, FirstOperation::exchange, FirstOperation::allreduce};
    const std::vector<std::size_t> sizes = sizes_to_measure(options, test, ElementType::char_);
    std::vector<FirstFigure> figures;
    for (const FirstOperation operation :
         options.operations.empty() ? std::vector(std::begin(kAll), std::end(kAll)) : options.operations) {
        const std::size_t element = operation == FirstOperation::allreduce ? size_of(ElementType::int_) : 1;
        for (const std::size_t allocation : options.allocations.empty() ? sizes : options.allocations) {
            for (const std::size_t size : sizes) {
                if (size >= element && size <= allocation) {
                    figures.push_back({operation, allocation, size});
                }
            }
        }
    }
    return figures;
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
    const auto number = [](const std::string& part) { return parse_number<int>("-t", part, 1, kMostThreads); };
    return {parts.size() == 1 ? 1 : number(parts.front()), number(parts.back())};
}

}  // namespace awaken::bench
