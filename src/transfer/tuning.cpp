// SPDX-License-Identifier: Apache-2.0
#include "transfer/tuning.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "base/spelling.h"

namespace awaken::transfer {
namespace {

using Unit = TuningFigure::Unit;

constexpr std::uint64_t kKiB = std::uint64_t{1} << 10;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kSecond = 1'000'000;
constexpr std::uint64_t kAnySize = std::uint64_t{1} << 40;
constexpr std::uint64_t kLeastChunk = 4 * kKiB;
constexpr std::uint64_t kMostChunks = 4096;

/// Defaults are those of the struct.
constexpr std::array kFigures = {
    TuningFigure{"copy_first_bytes", Unit::bytes, 0, kGiB, &Tuning::copy_first_bytes,
                 "messages up to this size from an allocation of more than 64 MiB are copied until mapping it pays; 0: "
                 "none"},
    TuningFigure{"host_offer_bytes", Unit::bytes, 0, kAnySize, &Tuning::host_offer_bytes,
                 "messages from host memory to device memory are fetched by the receiver from this size on"},
    TuningFigure{"network_bytes", Unit::bytes, 0, kAnySize, &Tuning::network_bytes,
                 "messages between nodes are pipelined from this size on"},
    TuningFigure{"network_fragment_bytes", Unit::bytes, kLeastChunk, kGiB, &Tuning::network_fragment_bytes,
                 "fragments of such a message, and chunks of large collectives that pass through host memory"},
    TuningFigure{"collective_overlap_blocks", Unit::count, 1, 4096, &Tuning::collective_overlap_blocks,
                 "most blocks of a kernel of a nonblocking collective, beside which the program computes"},
    TuningFigure{"collective_block_bytes", Unit::bytes, 1, kGiB, &Tuning::collective_block_bytes,
                 "work of a collective's kernel that is worth a block"},
    TuningFigure{"pack_direct_bytes", Unit::bytes, 0, kAnySize, &Tuning::pack_direct_bytes,
                 "up to this size a kernel packs straight into pinned host memory"},
    TuningFigure{"strided_pull_bytes", Unit::bytes, 0, kAnySize, &Tuning::strided_pull_bytes,
                 "strided memory up to this size is read by its receiver without being packed first"},
};

constexpr std::array kTestFigures = {
    TuningFigure{"small_bytes", Unit::bytes, 0, kGiB, &Tuning::small_bytes, ""},
    TuningFigure{"small_watch_us", Unit::microseconds, 0, 60 * kSecond, &Tuning::small_watch, ""},
    TuningFigure{"small_wait_us", Unit::microseconds, 0, 60 * kSecond, &Tuning::small_wait, ""},
    TuningFigure{"large_watch_us", Unit::microseconds, 0, 60 * kSecond, &Tuning::large_watch, ""},
    TuningFigure{"first_watch_us", Unit::microseconds, 0, 60 * kSecond, &Tuning::first_watch, ""},
    TuningFigure{"send_burst_us", Unit::microseconds, 0, 60 * kSecond, &Tuning::send_burst, ""},
    TuningFigure{"ring_chunk_bytes", Unit::bytes, kLeastChunk, kGiB, &Tuning::ring_chunk_bytes, ""},
    TuningFigure{"ring_chunks", Unit::count, 1, kMostChunks, &Tuning::ring_chunks, ""},
};

std::string_view trimmed(const std::string_view text) {
    constexpr std::string_view kSpaces = " \t\r";
    const std::size_t first = text.find_first_not_of(kSpaces);
    return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

/// Checks the form only.
std::uint64_t parse_number(const Unit unit, const std::string& value, const std::string& what) {
    if (unit == Unit::bytes) {
        return parse_bytes(value, what);
    }
    const char* const end = value.data() + value.size();
    std::uint64_t number = 0;
    const auto [stop, problem] = std::from_chars(value.data(), end, number);
    if (problem != std::errc{} || stop != end) {
        throw Error(what + "=" + excerpt(value) + " is not a whole number", "use a number such as 4");
    }
    return number;
}

std::string number_text(const Unit unit, const std::uint64_t value) {
    if (unit == Unit::bytes && value != 0) {
        for (const auto& [size, suffix] : {std::pair{kGiB, 'G'}, std::pair{kMiB, 'M'}, std::pair{kKiB, 'K'}}) {
            if (value % size == 0) {
                return std::to_string(value / size) + suffix;
            }
        }
    }
    return std::to_string(value);
}

Error unknown_figure(const std::string& where, const std::string_view name,
                     const std::span<const TuningFigure> figures) {
    constexpr std::size_t kFarthest = 4;
    std::size_t distance = kFarthest + 1;
    std::string nearest;
    std::string all;
    for (const TuningFigure& figure : figures) {
        if (const std::size_t candidate = edit_distance(name, figure.name); candidate < distance) {
            distance = candidate;
            nearest = std::string("did you mean ") + figure.name + "? ";
        }
        all += std::string(all.empty() ? "" : ", ") + figure.name;
    }
    return {where + ": there is no figure " + excerpt(name), nearest + "the figures are " + all};
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

void apply(Tuning& tuning, const std::string& variable, char** const environment,
           const std::span<const TuningFigure> figures) {
    std::set<std::string_view> seen;
    for (const auto& [name, value] : figures_in(variable_in(environment, variable), variable)) {
        const auto figure = std::find_if(figures.begin(), figures.end(),
                                         [&name = name](const TuningFigure& one) { return name == one.name; });
        if (figure == figures.end()) {
            throw unknown_figure(variable, name, figures);
        }
        const std::string what = variable + ": " + figure->name;
        if (!seen.insert(name).second) {
            throw Error(what + " is set twice", "remove one of the two");
        }
        figure->set(tuning, std::string(value), what);
    }
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
                        "write NAME=VALUE, separated by commas, such as network_bytes=1M,copy_first_bytes=0");
        }
        figures.emplace_back(name, value);
        more = comma != std::string_view::npos;
        text.remove_prefix(more ? comma + 1 : text.size());
    }
    return figures;
}

std::string TuningFigure::text(const Tuning& tuning) const {
    if (const auto* const size = std::get_if<std::size_t Tuning::*>(&member)) {
        return number_text(unit, tuning.**size);
    }
    const auto time = tuning.*std::get<std::chrono::nanoseconds Tuning::*>(member);
    return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
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
            std::chrono::microseconds(static_cast<std::chrono::microseconds::rep>(number));
    }
}

Tuning Tuning::from_environment(char** const environment) {
    Tuning tuning;
    apply(tuning, "AWAKEN_TUNE", environment, kFigures);
    apply(tuning, "AWAKEN_TEST_TUNE", environment, kTestFigures);
    return tuning;
}

std::span<const TuningFigure> Tuning::figures() noexcept {
    return kFigures;
}

std::span<const TuningFigure> Tuning::test_figures() noexcept {
    return kTestFigures;
}

const std::vector<SettingDescription>& Tuning::descriptions() {
    // Leaked, so that other code can read it while static objects are destroyed.
    static const auto* const table = [] {
        auto* const texts = new std::vector<std::string>;
        for (const TuningFigure& figure : kFigures) {
            texts->push_back(figure.text(Tuning{}));
        }
        auto* const result = new std::vector<SettingDescription>;
        for (std::size_t i = 0; i < kFigures.size(); ++i) {
            const TuningFigure& figure = kFigures[i];
            result->push_back({figure.name, figure.unit == Unit::bytes ? "bytes, with K, M or G" : "number",
                               (*texts)[i].c_str(), figure.meaning});
        }
        return result;
    }();
    return *table;
}

}  // namespace awaken::transfer
