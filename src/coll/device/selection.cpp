// SPDX-License-Identifier: Apache-2.0
#include "coll/device/selection.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/fnv1a.h"
#include "base/settings.h"

namespace awaken::coll {

namespace {

constexpr std::uint64_t kKi = 1024;
constexpr std::uint64_t kMi = 1024 * kKi;

/// A range of a row.
struct Bytes {
    std::uint64_t least = 0, most = SelectionRow::kAnyBytes;
};
struct Ranks {
    int least = 1, most = SelectionRow::kAnyRanks;
};

SelectionRow on_a_node(const std::optional<Kind> kind, const Algorithm algorithm, const std::string_view measured,
                       const Bytes bytes = {}, const Ranks ranks = {}) {
    SelectionRow made;
    made.kind = kind;
    made.least_ranks = ranks.least;
    made.most_ranks = ranks.most;
    made.most_nodes = 1;
    made.least_bytes = bytes.least;
    made.most_bytes = bytes.most;
    made.algorithm = algorithm;
    made.measured = measured;
    return made;
}

SelectionRow across_nodes(const std::optional<Kind> kind, const Algorithm algorithm, const std::string_view measured,
                          const Bytes bytes = {}) {
    SelectionRow made = on_a_node(kind, algorithm, measured, bytes);
    made.least_nodes = 2;
    made.most_nodes = SelectionRow::kAnyRanks;
    return made;
}

/// Each row says what set it; docs/decisions (0029, 0031, 0036, 0047) have the figures. The nodes are pretended ones of
/// one host, since several real ones were not to be had. The library goes from GPU to network card, so it comes before
/// what passes through host memory. The rows for more than four ranks continue those for fewer.
std::vector<SelectionRow> built_in() {
    return {
        on_a_node(Kind::allreduce, Algorithm::one_shot, "2 H100, of the time of two-shot: 0.97 at 64K, 1.02 at 1M",
                  {0, kMi}, {1, 2}),
        on_a_node(Kind::allreduce, Algorithm::one_shot, "4 H200: faster than two-shot up to here, 0.8 to 0.9 of NCCL",
                  {0, 128 * kKi}, {3, 4}),
        on_a_node(Kind::allreduce, Algorithm::one_shot, "not measured", {0, 32 * kKi}, {5}),
        on_a_node(Kind::allreduce, Algorithm::ccl, "4 H200: as fast as two-shot at 64M, more ranks not measured",
                  {64 * kMi}, {4}),
        on_a_node(Kind::reduce, Algorithm::root_only, "2 H100, of the time of two-shot: 0.94 to 1.01 up to here",
                  {0, 128 * kKi}, {1, 2}),
        on_a_node(Kind::broadcast, Algorithm::root_only, "2 H100, of the time of two-shot: 0.85 to 1.00 up to here",
                  {0, 128 * kKi}, {1, 2}),
        on_a_node(Kind::reduce, Algorithm::root_only, "not measured", {0, 32 * kKi}, {3}),
        on_a_node(Kind::broadcast, Algorithm::root_only, "not measured", {0, 32 * kKi}, {3}),
        on_a_node({}, Algorithm::two_shot, "2 and 4 H200: 0.4 to 1.0 of NCCL"),
        across_nodes({}, Algorithm::ccl,
                     "2 H200 of one host as 2 nodes, allreduce: 1/200 of the time staged at 64M, no network measured"),
        across_nodes(Kind::allreduce, Algorithm::hierarchical,
                     "4 ranks on 2 H200 as 2 nodes, of the time staged: 0.65 at 1M, 0.29 at 64M"),
        across_nodes(Kind::reduce, Algorithm::hierarchical,
                     "4 ranks on 2 H200 as 2 nodes, of the time staged: 0.53 at 1M, 0.22 at 64M"),
        across_nodes(Kind::broadcast, Algorithm::hierarchical,
                     "4 ranks on 2 H200 as 2 nodes, of the time staged: 1.09 at 4M, 0.90 at 8M", {8 * kMi}),
        across_nodes(Kind::gather, Algorithm::point_to_point,
                     "4 ranks on 2 H200 as 2 nodes, of the time staged: 0.39 at 1M, 0.16 at 64M"),
        across_nodes(Kind::scatter, Algorithm::point_to_point,
                     "4 ranks on 2 H200 as 2 nodes, of the time staged: 0.38 at 1M, 0.05 at 64M"),
        across_nodes(Kind::allgather, Algorithm::point_to_point,
                     "4 ranks on 2 H200 as 2 nodes, of the time staged: 0.83 at 1M, 0.16 at 64M"),
        across_nodes(Kind::alltoall, Algorithm::point_to_point,
                     "4 ranks on 2 H200 as 2 nodes, of the time staged: 0.60 at 1M, 0.35 at 64M"),
        across_nodes({}, Algorithm::staged, "the rest, and in chunks large broadcasts and allreduces that block"),
    };
}

constexpr std::array<const char*, kTypeClasses> kTypeNames = {"integer", "floating", "complex", "pair",
                                                              "boolean", "other",    "nothing"};

std::string_view trim(std::string_view text) {
    constexpr std::string_view kSpace = " \t\r";
    const std::size_t begin = text.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) {
        return {};
    }
    return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string joined(const std::span<const char* const> names) {
    std::string all;
    for (const char* const name : names) {
        all += (all.empty() ? "" : ", ") + std::string(name);
    }
    return all;
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
            } else if (word.starts_with("nodes=")) {
                std::uint64_t least = 1, most = SelectionRow::kAnyRanks;
                range(word.substr(6), least, most);
                if (least < 1 || most > SelectionRow::kAnyRanks) {
                    refuse("has an empty or too large range of nodes", "write nodes=from-to, e.g. nodes=2-8");
                }
                row.least_nodes = static_cast<int>(least);
                row.most_nodes = static_cast<int>(most);
            } else if (word.starts_with("types=")) {
                row.types = types(word.substr(6));
            } else if (word.starts_with("bytes=")) {
                range(word.substr(6), row.least_bytes, row.most_bytes);
            } else {
                refuse("has \"" + std::string(word) + "\" in it",
                       "only types=, ranks=, nodes= and bytes= may follow the collective");
            }
        }
        if (first) {
            refuse("names no collective", "begin it with allreduce, broadcast, ... or *");
        }
        const bool for_several = needs_nodes(row.algorithm);
        if (!spans(row.algorithm, for_several ? row.most_nodes : row.least_nodes)) {
            refuse("can never apply", to_string(row.algorithm) +
                                          std::string(for_several ? " needs two nodes or more" : " is for one node") +
                                          "; leave out nodes=");
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
                if (candidate == Kind::barrier) {
                    refuse("chooses an algorithm for the barrier, which has only one",
                           "leave it out; AWAKEN_PATH=staged leaves barriers to the MPI");
                }
                return candidate;
            }
            names += candidate != Kind::barrier ? std::string(to_string(candidate)) + ", " : "";
        }
        refuse("begins with \"" + std::string(word) + "\", which is not a collective", "one of " + names + "or *");
    }

    Algorithm algorithm(const std::string_view word) const {
        const auto* const found = std::find(kAlgorithmNames.begin(), kAlgorithmNames.end(), word);
        if (found == kAlgorithmNames.end()) {
            refuse("asks for \"" + std::string(word) + "\", which is not an algorithm",
                   "one of " + joined(kAlgorithmNames));
        }
        return static_cast<Algorithm>(found - kAlgorithmNames.begin());
    }

    /// Names, separated by commas, as bits.
    std::uint32_t types(std::string_view text) const {
        std::uint32_t bits = 0;
        while (true) {
            const std::size_t comma = text.find(',');
            const std::string_view word = text.substr(0, comma);
            const auto found = std::find(kTypeNames.begin(), kTypeNames.end(), word);
            if (found == kTypeNames.end()) {
                refuse("has the types \"" + std::string(word) + "\", some of which do not exist",
                       "any of " + joined(kTypeNames));
            }
            bits |= 1U << (found - kTypeNames.begin());
            if (comma == std::string_view::npos) {
                return bits;
            }
            text = text.substr(comma + 1);
        }
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
    line += std::string(" ") + name + "=";
    if (least == most) {
        line += text(least);
        return;
    }
    line += (least == lowest ? "" : text(least)) + "-" + (most == highest ? "" : text(most));
}

}  // namespace

const char* to_string(const TypeClass type) noexcept {
    return kTypeNames[static_cast<std::size_t>(type)];
}

TypeClass type_class_of(const Kind kind, const std::uint32_t code) noexcept {
    if (!is_reduction(kind)) {
        return TypeClass::nothing;
    }
    if (code == 0) {
        return TypeClass::other;
    }
    using kernels::ElementType;
    switch (kernels::type_of(code)) {
        case ElementType::int8:
        case ElementType::uint8:
        case ElementType::int16:
        case ElementType::uint16:
        case ElementType::int32:
        case ElementType::uint32:
        case ElementType::int64:
        case ElementType::uint64:
            return TypeClass::integer;
        case ElementType::float16:
        case ElementType::bfloat16:
        case ElementType::float32:
        case ElementType::float64:
            return TypeClass::floating;
        case ElementType::complex_float32:
        case ElementType::complex_float64:
            return TypeClass::complex;
        case ElementType::boolean:
            return TypeClass::boolean;
        default:
            return TypeClass::pair;
    }
}

bool SelectionRow::operator==(const SelectionRow& other) const noexcept {
    const auto choice = [](const SelectionRow& row) {
        return std::tie(row.kind, row.types, row.least_ranks, row.most_ranks, row.least_nodes, row.most_nodes,
                        row.least_bytes, row.most_bytes, row.algorithm);
    };
    return choice(*this) == choice(other);
}

bool SelectionRow::applies_to(const Occasion& occasion) const noexcept {
    return (!kind || *kind == occasion.kind) && (types >> static_cast<unsigned>(occasion.type) & 1U) != 0 &&
           occasion.ranks >= least_ranks && occasion.ranks <= most_ranks && occasion.nodes >= least_nodes &&
           occasion.nodes <= most_nodes && occasion.bytes >= least_bytes && occasion.bytes <= most_bytes &&
           spans(algorithm, occasion.nodes);
}

Selection::Selection() : _rows(built_in()) {}

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
    const std::vector<SelectionRow> behind = built_in();
    _rows.insert(_rows.end(), behind.begin(), behind.end());
}

Algorithm Selection::choose(const Occasion& occasion, const std::optional<Algorithm> without) const noexcept {
    for (const SelectionRow& row : _rows) {
        if (row.applies_to(occasion) && row.algorithm != without) {
            return row.algorithm;
        }
    }
    return Algorithm::staged;
}

std::string Selection::text() const {
    std::string all;
    for (const SelectionRow& row : _rows) {
        std::string line = row.kind ? to_string(*row.kind) : "*";
        if (row.types != SelectionRow::kAnyType) {
            const char* separator = " types=";
            for (int type = 0; type < kTypeClasses; ++type) {
                if ((row.types >> type & 1U) != 0) {
                    line += std::exchange(separator, ",") + std::string(to_string(static_cast<TypeClass>(type)));
                }
            }
        }
        const auto number = [](const std::uint64_t value) { return std::to_string(value); };
        for (const auto& [name, least, most] : {std::tuple{"ranks", row.least_ranks, row.most_ranks},
                                                std::tuple{"nodes", row.least_nodes, row.most_nodes}}) {
            append_range(line, name, static_cast<std::uint64_t>(least), static_cast<std::uint64_t>(most), 1,
                         SelectionRow::kAnyRanks, number);
        }
        append_range(line, "bytes", row.least_bytes, row.most_bytes, 0, SelectionRow::kAnyBytes, bytes_text);
        all += line + " : " + to_string(row.algorithm);
        all += row.measured.empty() ? "\n" : "  # " + std::string(row.measured) + "\n";
    }
    return all;
}

std::uint64_t Selection::hash() const noexcept {
    Fnv1a hash;
    for (const SelectionRow& row : _rows) {
        hash.add_word(row.kind ? static_cast<std::uint64_t>(*row.kind) : 99).add_word(row.types);
        for (const int bound : {row.least_ranks, row.most_ranks, row.least_nodes, row.most_nodes}) {
            hash.add_word(static_cast<std::uint64_t>(bound));
        }
        hash.add_word(row.least_bytes).add_word(row.most_bytes).add_word(static_cast<std::uint64_t>(row.algorithm));
    }
    return hash.value();
}

}  // namespace awaken::coll
