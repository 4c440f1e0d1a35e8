// SPDX-License-Identifier: Apache-2.0
#include "report/report.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fnv1a.h"
#include "base/json_text.h"
#include "base/printable.h"

namespace awaken::report {
namespace {

constexpr std::array<Path, kPathCount> kPaths = {Path::native, Path::direct,       Path::ccl,
                                                 Path::copied, Path::ring,         Path::pipelined,
                                                 Path::staged, Path::staged_large, Path::refused};
constexpr int kSmallestClass = -1, kLargestClass = 64;
constexpr std::size_t kClasses = std::size_t{kLargestClass} + 2;  // the first is kSmallestClass
static_assert(kSmallestClass == -1);
constexpr std::string_view kLedgerHead = "awaken-ledger 1\n";

constexpr std::array<const char*, kMoverCount> kMovers = {"engine", "kernel", "cpu"};
constexpr std::array<const char*, kMoverCount> kMoverMeanings = {
    "copies of the GPU runtime, by its copy engines", "kernels of Awaken", "the CPU, which reaches device memory"};

/// Counters of other ranks come from outside and may be anything. A sum that wrapped would be a lie.
std::uint64_t saturating_sum(const std::uint64_t a, const std::uint64_t b) noexcept {
    return a > std::numeric_limits<std::uint64_t>::max() - b ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

void add_to(Entry& sum, const Entry& entry) noexcept {
    sum.calls = saturating_sum(sum.calls, entry.calls);
    sum.bytes = saturating_sum(sum.bytes, entry.bytes);
    sum.nanoseconds = saturating_sum(sum.nanoseconds, entry.nanoseconds);
}

// ---- text forms of numbers ------------------------------------------------------------------------------------------

/// snprintf into a string; for short results (numbers and units).
[[gnu::format(printf, 1, 2)]] std::string format(const char* const pattern, ...) {
    std::array<char, 64> text{};
    va_list arguments;
    va_start(arguments, pattern);
    const int length = std::vsnprintf(text.data(), text.size(), pattern, arguments);
    va_end(arguments);
    return std::string(text.data(), static_cast<std::size_t>(std::clamp(length, 0, static_cast<int>(text.size()) - 1)));
}

/// "512 B", "64 KiB", "1.5 MiB": at most four significant digits.
std::string bytes_text(const std::uint64_t bytes) {
    static constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    std::size_t unit = 0;
    auto value = static_cast<double>(bytes);
    // 1023.95 would be printed as 1024.0.
    while (unit + 1 < kUnits.size() && value >= 1023.95) {
        value /= 1024;
        ++unit;
    }
    if (value == static_cast<double>(static_cast<std::uint64_t>(value))) {
        return format("%.0f %s", value, kUnits[unit]);
    }
    return format("%.1f %s", value, kUnits[unit]);
}

std::string class_text(const int size_class) {
    if (size_class < 0) {
        return "0 B";
    }
    // 2^64 is one more than 64 bits hold.
    if (size_class == 64) {
        return "<= 16 EiB";
    }
    return "<= " + bytes_text(std::uint64_t{1} << size_class);
}

/// Upper end of a size class in bytes, in decimal digits.
std::string class_bytes(const int size_class) {
    if (size_class < 0) {
        return "0";
    }
    if (size_class == 64) {
        return "18446744073709551616";
    }
    return std::to_string(std::uint64_t{1} << size_class);
}

std::string time_text(const double nanoseconds) {
    if (nanoseconds < 1e6) {
        return format("%.2f us", nanoseconds / 1e3);
    }
    return format("%.2f ms", nanoseconds / 1e6);
}

// ---- foreign text ---------------------------------------------------------------------------------------------------

/// Makes text fit for one field of a ledger's line: no white space, no control characters, never empty.
std::string field(const std::string_view text) {
    std::string result = "=";
    for (const char character : text) {
        const auto byte = static_cast<unsigned char>(character);
        if (byte <= 0x20 || byte == '%' || byte >= 0x7F) {
            result += format("%%%02X", static_cast<unsigned>(byte));
        } else {
            result += character;
        }
    }
    return result;
}

// ---- reading a ledger -----------------------------------------------------------------------------------------------

[[noreturn]] void damaged(const std::string& what) {
    throw Error("a rank sent a damaged report (" + what + ")",
                "make sure that all ranks run the same version of Awaken; report it if they do");
}

/// Detects a text that was cut or changed on its way.
std::uint64_t checksum(const std::string_view text) noexcept {
    return Fnv1a().add(text).value();
}

/// Takes fields, separated by single blanks, off a line.
class Fields {
  public:
    explicit Fields(const std::string_view line) : _rest(line) {}

    std::string_view next() {
        if (_at_end) {
            damaged("a field is missing");
        }
        const std::size_t blank = _rest.find(' ');
        const std::string_view result = _rest.substr(0, blank);
        _at_end = blank == std::string_view::npos;
        if (!_at_end) {
            _rest.remove_prefix(blank + 1);
        }
        return result;
    }

    template <typename Number>
    Number number(const Number low, const Number high) {
        const std::string_view text = next();
        Number value{};
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
            damaged("a bad number");
        }
        return value;
    }
    std::uint64_t count() { return number<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max()); }

    std::string text() {
        const std::string_view coded = next();
        if (coded.empty() || coded.front() != '=') {
            damaged("a bad name");
        }
        std::string result;
        for (std::size_t i = 1; i < coded.size(); ++i) {
            if (coded[i] != '%') {
                result += coded[i];
                continue;
            }
            unsigned value = 0;
            if (i + 2 >= coded.size()) {
                damaged("a bad name");
            }
            const auto [end, error] = std::from_chars(coded.data() + i + 1, coded.data() + i + 3, value, 16);
            if (error != std::errc{} || end != coded.data() + i + 3) {
                damaged("a bad name");
            }
            result += static_cast<char>(static_cast<unsigned char>(value));
            i += 2;
        }
        return result;
    }

    void end() const {
        if (!_at_end) {
            damaged("a line is too long");
        }
    }

  private:
    std::string_view _rest;
    bool _at_end = false;
};

// ---- the table of the text form -------------------------------------------------------------------------------------

/// Columns of text; the first `left` ones are aligned to the left, the others to the right.
class TextTable {
  public:
    TextTable(std::vector<std::string> head, const std::size_t left) : _left(left) { _rows.push_back(std::move(head)); }

    void add(std::vector<std::string> row) { _rows.push_back(std::move(row)); }

    [[nodiscard]] std::string text() const {
        std::vector<std::size_t> widths(_rows.front().size(), 0);
        for (const auto& row : _rows) {
            for (std::size_t i = 0; i < row.size(); ++i) {
                widths[i] = std::max(widths[i], columns(row[i]));
            }
        }
        std::string result;
        for (const auto& row : _rows) {
            std::string line = " ";
            for (std::size_t i = 0; i < row.size(); ++i) {
                const std::string padding(widths[i] - columns(row[i]), ' ');
                line += i == 0 ? " " : "  ";
                line += i < _left ? row[i] + padding : padding + row[i];
            }
            line.erase(line.find_last_not_of(' ') + 1);
            result += line + '\n';
        }
        return result;
    }

  private:
    /// UTF-8 continuation bytes take no column.
    static std::size_t columns(const std::string& text) {
        return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](const char character) {
            return (static_cast<unsigned char>(character) & 0xC0) != 0x80;
        }));
    }

    std::size_t _left;
    std::vector<std::vector<std::string>> _rows;
};

/// The word for a path, and what it means for readers who see it for the first time. docs/path-report.md says more.
struct PathText {
    const char* word;
    const char* meaning;
};

PathText text_of(const Path path) noexcept {
    switch (path) {
        case Path::native:
            return {"native", "by the MPI alone: host memory, or memory that this MPI takes by itself"};
        case Path::direct:
            return {"direct", "by the GPU, between the two processes' own memory"};
        case Path::ccl:
            return {"ccl", "by NCCL or RCCL"};
        case Path::copied:
            return {"copied", "through a copy: the sender did not wait, or its memory cannot be shared"};
        case Path::ring:
            return {"ring", "through chunks of host memory that both processes share"};
        case Path::pipelined:
            return {"pipelined", "through the MPI in chunks, copied on both sides meanwhile"};
        case Path::staged:
            return {"staged", "copied through pinned host memory"};
        case Path::staged_large:
            return {"staged-large", "copied through ordinary host memory, as no more could be pinned"};
        case Path::refused:
            return {"refused", "ended with an error of Awaken's"};
    }
    return {"unknown", ""};
}

/// True for the families that the table of collectives knows, in all their forms.
bool is_collective(std::string_view function) noexcept {
    constexpr std::string_view kPrefix = "MPI_";
    constexpr std::array<std::string_view, 9> kFamilies = {"allreduce", "reduce",   "bcast", "gather", "scatter",
                                                           "allgather", "alltoall", "scan",  "exscan"};
    if (!function.starts_with(kPrefix)) {
        return false;
    }
    function.remove_prefix(kPrefix.size());
    if (function.starts_with('I')) {
        function.remove_prefix(1);  // a nonblocking form: a small letter follows the prefix
    }
    return std::any_of(kFamilies.begin(), kFamilies.end(), [function](const std::string_view family) {
        return !function.empty() && (function.front() | 0x20) == family.front() &&
               function.substr(1).starts_with(family.substr(1));
    });
}

std::string known_or(const std::string& text, const char* const otherwise) {
    return text.empty() ? otherwise : printable(text);
}

std::string json_list(const std::vector<std::string>& texts) {
    std::string list;
    for (const std::string& text : texts) {
        list += (list.empty() ? "" : ", ") + json_string(text);
    }
    return "[" + list + "]";
}

std::string entry_json(const Entry& entry) {
    return "\"calls\": " + std::to_string(entry.calls) + ", \"bytes\": " + std::to_string(entry.bytes) +
           ", \"time_ns\": " + std::to_string(entry.nanoseconds);
}

}  // namespace

const char* to_string(const Path path) noexcept {
    return text_of(path).word;
}

const char* to_string(const Mover mover) noexcept {
    return kMovers[static_cast<std::size_t>(mover)];
}

int size_class(const std::uint64_t bytes) noexcept {
    return bytes == 0 ? kSmallestClass : static_cast<int>(std::bit_width(bytes - 1));
}

// ---- Ledger ---------------------------------------------------------------------------------------------------------

struct Ledger::Function {
    struct Counters {
        std::atomic<std::uint64_t> calls{0}, bytes{0}, nanoseconds{0};
    };
    using Row = std::array<Counters, kClasses>;

    explicit Function(const char* const function) : key(function), name(function) {}
    ~Function() {
        for (const std::atomic<Row*>& row : rows) {
            delete row.load(std::memory_order_relaxed);
        }
    }

    /// A row is made when the function first takes the path: most functions only ever take one.
    Row& row(const Path path) {
        std::atomic<Row*>& slot = rows[static_cast<std::size_t>(path)];
        Row* found = slot.load(std::memory_order_acquire);
        if (found != nullptr) {
            return *found;
        }
        auto made = std::make_unique<Row>();
        if (slot.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
            return *made.release();
        }
        return *found;  // another thread was first
    }

    const char* const key;
    const std::string name;
    std::array<std::atomic<Row*>, kPaths.size()> rows{};
};

/// Open addressing with linear probing. Slots are only ever filled, so that readers need no lock.
struct Ledger::Table {
    explicit Table(const std::size_t size) : slots(size) {}

    [[nodiscard]] std::size_t start(const char* const key) const noexcept {
        // Names lie close together; the multiplication (2^64 / golden ratio) spreads them.
        const std::uint64_t hash =
            static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(key)) * 0x9E3779B97F4A7C15;
        return static_cast<std::size_t>(hash >> 32) & (slots.size() - 1);
    }
    [[nodiscard]] Function* find(const char* const key) const noexcept {
        for (std::size_t i = start(key);; i = (i + 1) & (slots.size() - 1)) {
            Function* const function = slots[i].load(std::memory_order_acquire);
            if (function == nullptr || function->key == key) {
                return function;
            }
        }
    }
    void insert(Function* const function) noexcept {
        std::size_t i = start(function->key);
        while (slots[i].load(std::memory_order_relaxed) != nullptr) {
            i = (i + 1) & (slots.size() - 1);
        }
        slots[i].store(function, std::memory_order_release);
    }

    std::vector<std::atomic<Function*>> slots;  ///< a power of two, at most half of them used
};

Ledger::Ledger() {
    _tables.push_back(std::make_unique<Table>(64));
    _table.store(_tables.back().get(), std::memory_order_release);
}

Ledger::~Ledger() = default;

Ledger::Function& Ledger::function(const char* const name) {
    if (Function* const known = _table.load(std::memory_order_acquire)->find(name)) {
        return *known;
    }
    const std::scoped_lock lock(_mutex);
    Table* table = _table.load(std::memory_order_relaxed);
    if (Function* const known = table->find(name)) {
        return *known;
    }
    auto made = std::make_unique<Function>(name);
    _functions.reserve(_functions.size() + 1);
    if (2 * (_functions.size() + 1) > table->slots.size()) {
        auto larger = std::make_unique<Table>(2 * table->slots.size());
        for (const auto& known : _functions) {
            larger->insert(known.get());
        }
        _tables.push_back(std::move(larger));
        table = _tables.back().get();
        _table.store(table, std::memory_order_release);
    }
    _functions.push_back(std::move(made));
    table->insert(_functions.back().get());
    return *_functions.back();
}

void Ledger::add(const char* const name, const Path path, const std::uint64_t bytes, const std::uint64_t nanoseconds) {
    Function::Counters& counters =
        function(name).row(path)[static_cast<std::size_t>(size_class(bytes) - kSmallestClass)];
    counters.calls.fetch_add(1, std::memory_order_relaxed);
    counters.bytes.fetch_add(bytes, std::memory_order_relaxed);
    counters.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
}

void Ledger::add_fallback(const char* const name, const std::string& reason) {
    const std::scoped_lock lock(_mutex);
    ++_fallbacks[{name, reason}];
}

void Ledger::add_copies(const Mover mover, const Entry& copies) {
    const std::scoped_lock lock(_mutex);
    add_to(_copies[static_cast<std::size_t>(mover)], copies);
}

Ledger::Copies Ledger::copies() const {
    const std::scoped_lock lock(_mutex);
    return _copies;
}

std::map<Ledger::Key, Entry> Ledger::entries() const {
    const std::scoped_lock lock(_mutex);
    std::map<Key, Entry> result = _merged;
    for (const auto& function : _functions) {
        for (const Path path : kPaths) {
            const Function::Row* const row =
                function->rows[static_cast<std::size_t>(path)].load(std::memory_order_acquire);
            if (row == nullptr) {
                continue;
            }
            for (std::size_t i = 0; i < kClasses; ++i) {
                const Entry entry = {(*row)[i].calls.load(std::memory_order_relaxed),
                                     (*row)[i].bytes.load(std::memory_order_relaxed),
                                     (*row)[i].nanoseconds.load(std::memory_order_relaxed)};
                if (entry.calls != 0) {
                    add_to(result[{function->name, path, static_cast<int>(i) + kSmallestClass}], entry);
                }
            }
        }
    }
    return result;
}

std::map<std::pair<std::string, std::string>, std::uint64_t> Ledger::fallbacks() const {
    const std::scoped_lock lock(_mutex);
    return _fallbacks;
}

std::string Ledger::serialise() const {
    std::string text(kLedgerHead);
    for (const auto& [key, entry] : entries()) {
        const auto& [function, path, size_class] = key;
        text += "entry " + field(function) + ' ' + std::to_string(static_cast<int>(path)) + ' ' +
                std::to_string(size_class) + ' ' + std::to_string(entry.calls) + ' ' + std::to_string(entry.bytes) +
                ' ' + std::to_string(entry.nanoseconds) + '\n';
    }
    for (const auto& [key, count] : fallbacks()) {
        text += "fallback " + field(key.first) + ' ' + field(key.second) + ' ' + std::to_string(count) + '\n';
    }
    const Copies moved = copies();
    for (std::size_t i = 0; i < moved.size(); ++i) {
        text += "copies " + std::to_string(i) + ' ' + std::to_string(moved[i].calls) + ' ' +
                std::to_string(moved[i].bytes) + '\n';
    }
    const std::uint64_t sum = checksum(text);
    return text + "end " + std::to_string(sum) + '\n';
}

void Ledger::merge(const std::string& serialised) {
    std::string_view rest = serialised;
    if (!rest.starts_with(kLedgerHead)) {
        damaged("it does not begin as a report");
    }
    rest.remove_prefix(kLedgerHead.size());
    std::map<Key, Entry> entries;
    std::map<std::pair<std::string, std::string>, std::uint64_t> fallbacks;
    Copies copies{};
    for (bool complete = false; !complete;) {
        const std::size_t end = rest.find('\n');
        if (end == std::string_view::npos) {
            damaged("its end is missing");
        }
        Fields fields(rest.substr(0, end));
        const std::string_view kind = fields.next();
        if (kind == "entry") {
            std::string function = fields.text();
            const auto path = static_cast<Path>(fields.number<int>(0, static_cast<int>(kPaths.size()) - 1));
            const int size_class = fields.number<int>(kSmallestClass, kLargestClass);
            Entry entry;
            entry.calls = fields.count();
            entry.bytes = fields.count();
            entry.nanoseconds = fields.count();
            add_to(entries[{std::move(function), path, size_class}], entry);
        } else if (kind == "fallback") {
            std::string function = fields.text();
            std::string reason = fields.text();
            std::uint64_t& count = fallbacks[{std::move(function), std::move(reason)}];
            count = saturating_sum(count, fields.count());
        } else if (kind == "copies") {
            const auto mover = fields.number<std::size_t>(0, copies.size() - 1);
            const std::uint64_t calls = fields.count();
            add_to(copies[mover], {calls, fields.count()});
        } else if (kind == "end") {
            const std::string_view covered(serialised.data(), serialised.size() - rest.size());
            if (fields.count() != checksum(covered)) {
                damaged("its check sum is wrong");
            }
            if (end + 1 != rest.size()) {
                damaged("something follows its end");
            }
            complete = true;
        } else {
            damaged("a line of an unknown kind");
        }
        fields.end();
        rest.remove_prefix(end + 1);
    }
    const std::scoped_lock lock(_mutex);
    for (const auto& [key, entry] : entries) {
        add_to(_merged[key], entry);
    }
    for (const auto& [key, count] : fallbacks) {
        std::uint64_t& sum = _fallbacks[key];
        sum = saturating_sum(sum, count);
    }
    for (std::size_t i = 0; i < copies.size(); ++i) {
        add_to(_copies[i], copies[i]);
    }
}

// ---- reports --------------------------------------------------------------------------------------------------------

std::string to_text(const Identity& identity, const Ledger& ledger) {
    std::string text = "Awaken report";
    if (identity.rank >= 0) {
        text += ": rank " + std::to_string(identity.rank) + " of " + std::to_string(identity.size);
    } else if (identity.size > 0) {
        text += ": all ranks of " + std::to_string(identity.size);
    }
    if (!identity.host.empty()) {
        text += " on " + printable(identity.host);
    }
    text += "\n  MPI      " + known_or(identity.mpi_version, "unknown") + '\n';
    text += "  ABI      " + known_or(identity.abi, "unknown") + " (" + known_or(identity.mpi_library, "no library") +
            (identity.mpi_was_chosen ? "; the program had loaded none: AWAKEN_MPI names another)\n" : ")\n");
    text += "  GPU      " + known_or(identity.gpu, "none") + '\n';
    for (std::size_t i = 0; i < identity.devices.size(); ++i) {
        text += "  device   " + std::to_string(i) + ": " + printable(identity.devices[i]) + '\n';
    }
    if (!identity.native_gpu.empty()) {
        text += "  MPI itself takes device memory   " + printable(identity.native_gpu) + '\n';
    }
    for (const std::string& note : identity.notes) {
        text += "  note     " + printable(note) + '\n';
    }

    const auto entries = ledger.entries();
    if (entries.empty()) {
        text += "\n  No calls were recorded.\n";
    } else {
        text += '\n';
        TextTable table({"function", "path", "size", "calls", "data", "time", "per call", "GB/s"}, 3);
        std::array<Entry, kPaths.size()> totals{};
        const auto row = [&table](const std::string& function, const Path path, const std::string& size,
                                  const Entry& entry) {
            const auto nanoseconds = static_cast<double>(entry.nanoseconds);
            const bool timed = entry.nanoseconds != 0;
            table.add(
                {function, to_string(path), size, std::to_string(entry.calls), bytes_text(entry.bytes),
                 timed ? time_text(nanoseconds) : "-",
                 timed && entry.calls != 0 ? time_text(nanoseconds / static_cast<double>(entry.calls)) : "-",
                 timed && entry.bytes != 0 ? format("%.3f", static_cast<double>(entry.bytes) / nanoseconds) : "-"});
        };
        for (const auto& [key, entry] : entries) {
            const auto& [function, path, size_class] = key;
            row(printable(function), path, class_text(size_class), entry);
            add_to(totals[static_cast<std::size_t>(path)], entry);
        }
        for (const Path path : kPaths) {
            const Entry& total = totals[static_cast<std::size_t>(path)];
            if (total.calls != 0) {
                row("all", path, "all", total);
            }
        }
        text += table.text();
        TextTable meanings({"path", "how the bytes travelled"}, 2);
        for (const Path path : kPaths) {
            if (totals[static_cast<std::size_t>(path)].calls != 0) {
                meanings.add({to_string(path), text_of(path).meaning});
            }
        }
        text += '\n' + meanings.text();
    }

    const Ledger::Copies copies = ledger.copies();
    TextTable movers({"by", "what copied device memory", "copies", "data"}, 2);
    bool any = false;
    for (std::size_t i = 0; i < copies.size(); ++i) {
        if (copies[i].calls != 0) {
            movers.add({kMovers[i], kMoverMeanings[i], std::to_string(copies[i].calls), bytes_text(copies[i].bytes)});
            any = true;
        }
    }
    text += any ? '\n' + movers.text() : "";

    const auto fallbacks = ledger.fallbacks();
    if (!fallbacks.empty()) {
        text += "\n  Fallbacks: calls that did not take their normal path\n";
        TextTable table({"function", "reason", "times"}, 2);
        for (const auto& [key, count] : fallbacks) {
            table.add({printable(key.first), printable(key.second), std::to_string(count)});
        }
        text += table.text();
    }

    // The table matters only where it has chosen something: the MPI does collectives on host memory alone.
    const bool chosen = std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
        return std::get<Path>(entry.first) != Path::native && is_collective(std::get<std::string>(entry.first));
    });
    if (chosen && !identity.collectives.empty()) {
        text +=
            "\n  Collectives: the first row that fits chose the algorithm (AWAKEN_COLLECTIVES puts rows before them)\n";
        for (const std::string& row : identity.collectives) {
            text += "  " + printable(row) + '\n';
        }
    }
    return text;
}

std::string to_json(const Identity& identity, const Ledger& ledger) {
    std::string json = "{\n  \"schema\": \"awaken-report\",\n  \"version\": 1,\n";
    json += "  \"rank\": " + (identity.rank >= 0 ? std::to_string(identity.rank) : "null") + ",\n";
    json += "  \"size\": " + (identity.size > 0 ? std::to_string(identity.size) : "null") + ",\n";
    json += "  \"host\": " + json_string(identity.host) + ",\n";
    json += "  \"mpi\": {\"version\": " + json_string(identity.mpi_version) +
            ", \"library\": " + json_string(identity.mpi_library) + ", \"abi\": " + json_string(identity.abi) +
            (identity.mpi_was_chosen ? ", \"chosen_by_awaken\": true" : "") +
            (identity.native_gpu.empty() ? "" : ", \"takes_device_memory\": " + json_string(identity.native_gpu)) +
            "},\n";
    json += "  \"gpu\": {\"runtime\": " + json_string(identity.gpu) + ", \"devices\": " + json_list(identity.devices) +
            "},\n";
    if (!identity.notes.empty()) {
        json += "  \"notes\": " + json_list(identity.notes) + ",\n";
    }
    if (!identity.collectives.empty()) {
        json += "  \"collectives\": " + json_list(identity.collectives) + ",\n";
    }
    json += "  \"calls\": [";

    std::array<Entry, kPaths.size()> totals{};
    const char* separator = "\n";
    for (const auto& [key, entry] : ledger.entries()) {
        const auto& [function, path, size_class] = key;
        json += separator;
        json += "    {\"function\": " + json_string(function) + ", \"path\": " + json_string(to_string(path)) +
                ", \"size_class_bytes\": " + class_bytes(size_class) + ", " + entry_json(entry) + '}';
        separator = ",\n";
        add_to(totals[static_cast<std::size_t>(path)], entry);
    }
    json += "\n  ],\n  \"totals\": {";
    separator = "\n";
    for (const Path path : kPaths) {
        json += separator;
        json +=
            "    " + json_string(to_string(path)) + ": {" + entry_json(totals[static_cast<std::size_t>(path)]) + '}';
        separator = ",\n";
    }
    json += "\n  },\n  \"copies\": {";
    const Ledger::Copies copies = ledger.copies();
    for (std::size_t i = 0; i < copies.size(); ++i) {
        json += (i == 0 ? "" : ", ") + json_string(kMovers[i]) + ": {\"copies\": " + std::to_string(copies[i].calls) +
                ", \"bytes\": " + std::to_string(copies[i].bytes) + '}';
    }
    json += "},\n  \"fallbacks\": [";
    separator = "\n";
    for (const auto& [key, count] : ledger.fallbacks()) {
        json += separator;
        json += "    {\"function\": " + json_string(key.first) + ", \"reason\": " + json_string(key.second) +
                ", \"count\": " + std::to_string(count) + '}';
        separator = ",\n";
    }
    return json + "\n  ]\n}\n";
}

}  // namespace awaken::report
