#include "coll/selection.h"

#include <array>
#include <charconv>

#include "base/error.h"
#include "base/settings.h"

namespace awaken::coll {

namespace {

constexpr std::uint64_t kKi = 1024;
constexpr std::uint64_t kMi = 1024 * kKi;

/// Allreduce on two and four GPUs was measured (docs/performance.md): where every rank reducing everything stops being
/// faster than each reducing a part, and where NCCL begins to be. The rows for more ranks, and those of reduce and
/// broadcast, continue those figures and were not measured.
constexpr std::array kBuiltIn = {
    SelectionRow{Kind::allreduce, 1, 2, 0, kMi, Algorithm::each},
    SelectionRow{Kind::allreduce, 3, 4, 0, 128 * kKi, Algorithm::each},
    SelectionRow{Kind::allreduce, 5, SelectionRow::kAnyRanks, 0, 32 * kKi, Algorithm::each},
    SelectionRow{Kind::allreduce, 4, SelectionRow::kAnyRanks, 64 * kMi, SelectionRow::kAnyBytes, Algorithm::ccl},
    SelectionRow{Kind::reduce, 1, SelectionRow::kAnyRanks, 0, 32 * kKi, Algorithm::one},
    SelectionRow{Kind::broadcast, 1, SelectionRow::kAnyRanks, 0, 32 * kKi, Algorithm::one},
    SelectionRow{{}, 1, SelectionRow::kAnyRanks, 0, SelectionRow::kAnyBytes, Algorithm::all},
};

constexpr std::array kAlgorithms = {Algorithm::one, Algorithm::each, Algorithm::all, Algorithm::ccl, Algorithm::staged};

std::string_view trim(std::string_view text) {
    constexpr std::string_view kSpace = " \t\r";
    const std::size_t begin = text.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) {
        return {};
    }
    return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

class Reader {
  public:
    Reader(const std::string_view row, const std::string& name) : _row(row), _name(name) {}

    SelectionRow read() const {
        SelectionRow row;
        const std::size_t colon = _row.find(':');
        if (colon == std::string_view::npos) {
            refuse("has no colon", "write it as \"allreduce bytes=64M- : ccl\"");
        }
        row.algorithm = algorithm(trim(_row.substr(colon + 1)));
        std::string_view rest = trim(_row.substr(0, colon));
        bool first = true;
        while (!rest.empty()) {
            const std::size_t end = rest.find_first_of(" \t");
            const std::string_view word = rest.substr(0, end);
            rest = end == std::string_view::npos ? std::string_view{} : trim(rest.substr(end));
            if (first) {
                row.kind = kind(word);
                first = false;
            } else if (word.starts_with("ranks=")) {
                std::uint64_t least = 1, most = SelectionRow::kAnyRanks;
                range(word.substr(6), least, most);
                if (most > SelectionRow::kAnyRanks || least > most) {
                    refuse("has an empty or too large range of ranks", "write ranks=from-to, e.g. ranks=2-8");
                }
                row.least_ranks = static_cast<int>(least);
                row.most_ranks = static_cast<int>(most);
            } else if (word.starts_with("bytes=")) {
                range(word.substr(6), row.least_bytes, row.most_bytes);
            } else {
                refuse("has \"" + std::string(word) + "\" in it", "only ranks= and bytes= may follow the collective");
            }
        }
        if (first) {
            refuse("names no collective", "begin it with allreduce, broadcast, ... or *");
        }
        return row;
    }

  private:
    [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const {
        throw Error(_name + ": the row \"" + std::string(_row) + "\" " + what, remedy);
    }

    std::optional<Kind> kind(const std::string_view word) const {
        if (word == "*") {
            return std::nullopt;
        }
        std::string names;
        for (int each = 0; each < kKinds; ++each) {
            const auto candidate = static_cast<Kind>(each);
            if (word == to_string(candidate)) {
                return candidate;
            }
            names += std::string(to_string(candidate)) + ", ";
        }
        refuse("begins with \"" + std::string(word) + "\", which is no collective", "one of " + names + "or *");
    }

    Algorithm algorithm(const std::string_view word) const {
        std::string names;
        for (const Algorithm candidate : kAlgorithms) {
            if (word == to_string(candidate)) {
                return candidate;
            }
            names += (names.empty() ? "" : ", ") + std::string(to_string(candidate));
        }
        refuse("asks for \"" + std::string(word) + "\", which is no algorithm", "one of " + names);
    }

    std::uint64_t number(const std::string_view text) const {
        return parse_bytes(std::string(text), _name + ": the row \"" + std::string(_row) + "\"");
    }

    void range(const std::string_view text, std::uint64_t& least, std::uint64_t& most) const {
        const std::size_t dash = text.find('-');
        if (dash == std::string_view::npos) {
            least = most = number(text);
            return;
        }
        if (dash != 0) {
            least = number(text.substr(0, dash));
        }
        if (dash + 1 != text.size()) {
            most = number(text.substr(dash + 1));
        }
        if (least > most) {
            refuse("has a range that ends before it begins", "write from-to, e.g. bytes=1M-64M");
        }
    }

    const std::string_view _row;
    const std::string& _name;
};

std::string bytes_text(const std::uint64_t bytes) {
    for (const auto& [unit, letter] : {std::pair{kMi, 'M'}, std::pair{kKi, 'K'}}) {
        if (bytes != 0 && bytes % unit == 0) {
            return std::to_string(bytes / unit) + letter;
        }
    }
    return std::to_string(bytes);
}

template <class Text>
void append_range(std::string& line, const char* name, const std::uint64_t least, const std::uint64_t most,
                  const std::uint64_t lowest, const std::uint64_t highest, const Text& text) {
    if (least == lowest && most == highest) {
        return;
    }
    line += std::string(" ") + name + "=" + (least == lowest ? "" : text(least)) + "-" +
            (most == highest ? "" : text(most));
}

}  // namespace

Selection::Selection() : _rows(kBuiltIn.begin(), kBuiltIn.end()) {}

Selection::Selection(const std::string_view text, const std::string& name) {
    std::string_view rest = text;
    while (!rest.empty()) {
        const std::size_t end = rest.find_first_of(";\n");
        std::string_view row = rest.substr(0, end);
        rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
        row = trim(row.substr(0, row.find('#')));
        if (!row.empty()) {
            _rows.push_back(Reader(row, name).read());
        }
    }
    _rows.insert(_rows.end(), kBuiltIn.begin(), kBuiltIn.end());
}

Algorithm Selection::choose(const Kind kind, const int ranks, const std::uint64_t bytes) const noexcept {
    for (const SelectionRow& row : _rows) {
        if ((!row.kind || *row.kind == kind) && ranks >= row.least_ranks && ranks <= row.most_ranks &&
            bytes >= row.least_bytes && bytes <= row.most_bytes) {
            return row.algorithm;
        }
    }
    return Algorithm::staged;
}

std::string Selection::text() const {
    std::string all;
    for (const SelectionRow& row : _rows) {
        std::string line = row.kind ? to_string(*row.kind) : "*";
        append_range(line, "ranks", static_cast<std::uint64_t>(row.least_ranks),
                     static_cast<std::uint64_t>(row.most_ranks), 1, SelectionRow::kAnyRanks,
                     [](const std::uint64_t value) { return std::to_string(value); });
        append_range(line, "bytes", row.least_bytes, row.most_bytes, 0, SelectionRow::kAnyBytes, bytes_text);
        all += line + " : " + to_string(row.algorithm) + "\n";
    }
    return all;
}

std::uint64_t Selection::hash() const noexcept {
    std::uint64_t state = 0xcbf29ce484222325u;  // FNV-1a
    const auto add = [&](const std::uint64_t value) { state = (state ^ value) * 0x100000001b3u; };
    for (const SelectionRow& row : _rows) {
        add(row.kind ? static_cast<std::uint64_t>(*row.kind) : 99);
        add(static_cast<std::uint64_t>(row.least_ranks));
        add(static_cast<std::uint64_t>(row.most_ranks));
        add(row.least_bytes);
        add(row.most_bytes);
        add(static_cast<std::uint64_t>(row.algorithm));
    }
    return state;
}

}  // namespace awaken::coll
