// SPDX-License-Identifier: Apache-2.0
// Runs as JSON, schema "awaken-bench" version 1 (docs/benchmarks-output.md), and back. Units are part of the names.
// What is written and read is the same, so that lists of names and members do both.
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/printer.h"

namespace awaken::bench {
namespace {

// Keys stay in the order in which a reader looks for them.
using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "awaken-bench";
constexpr int kVersion = 1;
constexpr const char* kRemedy = "give a file that `awaken bench --json` of this version has written";

template <typename Struct, typename Member>
struct Entry {
    const char* name;
    Member Struct::* member;
};

/// The entries of the object that stands for a struct, in their order.
template <typename Struct>
constexpr std::tuple<> kEntries{};
template <>
constexpr std::tuple kEntries<Summary>{
    Entry{"count", &Summary::count},        Entry{"mean_us", &Summary::mean},
    Entry{"minimum_us", &Summary::minimum}, Entry{"maximum_us", &Summary::maximum},
    Entry{"median_us", &Summary::median},   Entry{"median_95_us", &Summary::median_95},
    Entry{"p50_us", &Summary::p50},         Entry{"p90_us", &Summary::p90},
    Entry{"p99_us", &Summary::p99}};
template <>
constexpr std::tuple kEntries<OverlapTimes>{Entry{"overall_us", &OverlapTimes::overall},
                                            Entry{"compute_us", &OverlapTimes::compute},
                                            Entry{"initiate_us", &OverlapTimes::initiate},
                                            Entry{"test_us", &OverlapTimes::test},
                                            Entry{"wait_us", &OverlapTimes::wait},
                                            Entry{"pure_us", &OverlapTimes::pure},
                                            Entry{"pure_minimum_us", &OverlapTimes::pure_minimum},
                                            Entry{"pure_maximum_us", &OverlapTimes::pure_maximum},
                                            Entry{"overlap_percent", &OverlapTimes::overlap_percent}};
template <>
constexpr std::tuple kEntries<Measurement>{Entry{"size", &Measurement::size},
                                           Entry{"transmit_size", &Measurement::transmit_size},
                                           Entry{"iterations", &Measurement::iterations},
                                           Entry{"average_us", &Measurement::average},
                                           Entry{"minimum_us", &Measurement::minimum},
                                           Entry{"maximum_us", &Measurement::maximum},
                                           Entry{"bandwidth_MBps", &Measurement::bandwidth},
                                           Entry{"message_rate_per_s", &Measurement::message_rate},
                                           Entry{"overlap", &Measurement::overlap},
                                           Entry{"percentiles", &Measurement::percentiles},
                                           Entry{"cold_first_us", &Measurement::cold_first},
                                           Entry{"summary", &Measurement::summary},
                                           Entry{"stopped", &Measurement::stopped},
                                           Entry{"validated", &Measurement::validated},
                                           Entry{"errors", &Measurement::errors},
                                           Entry{"first_error", &Measurement::first_error},
                                           Entry{"iterations_per_sample", &Measurement::iterations_per_sample},
                                           Entry{"samples_us", &Measurement::samples}};
template <>
constexpr std::tuple kEntries<ContenderResult>{
    Entry{"name", &ContenderResult::name}, Entry{"mode", &ContenderResult::mode},
    Entry{"unavailable", &ContenderResult::unavailable}, Entry{"description", &ContenderResult::description},
    Entry{"measurements", &ContenderResult::measurements}};
/// Without its test and what only some families have.
template <>
constexpr std::tuple kEntries<RunResult>{Entry{"type", &RunResult::type}, Entry{"ranks", &RunResult::ranks},
                                         Entry{"window_size", &RunResult::window_size},
                                         Entry{"pairs", &RunResult::pairs}};
constexpr std::tuple kWindowEntries{Entry{"window_creation", &RunResult::window_creation},
                                    Entry{"synchronization", &RunResult::synchronisation}};
constexpr std::tuple kFirstEntries{Entry{"operation", &RunResult::operation},
                                   Entry{"allocation", &RunResult::allocation}};
constexpr std::tuple kHaloEntries{Entry{"kernels", &RunResult::kernels}};
constexpr std::tuple kContenderEntries{Entry{"contenders", &RunResult::contenders}};
// These are written only. Of -T's types there may be several, so that bytes of a derived type would be of one of them.
template <>
constexpr std::tuple kEntries<DerivedType>{
    Entry{"form", &DerivedType::form}, Entry{"stride_elements", &DerivedType::stride},
    Entry{"block_length_elements", &DerivedType::block_length}, Entry{"blocks", &DerivedType::blocks}};
template <>
constexpr std::tuple kEntries<Neighborhood>{
    Entry{"cartesian", &Neighborhood::cartesian}, Entry{"dimensions", &Neighborhood::dimensions},
    Entry{"radius", &Neighborhood::radius}, Entry{"graph_file", &Neighborhood::graph_file}};
template <>
constexpr std::tuple kEntries<ContenderChoice>{
    Entry{"name", &ContenderChoice::name}, Entry{"kind", &ContenderChoice::kind},
    Entry{"environment", &ContenderChoice::environment}, Entry{"launcher", &ContenderChoice::launcher}};
/// What decides a result; null where the test's default holds.
template <>
constexpr std::tuple kEntries<Options>{Entry{"minimum_size", &Options::minimum_size},
                                       Entry{"maximum_size", &Options::maximum_size},
                                       Entry{"step_factor", &Options::step_factor},
                                       Entry{"iterations", &Options::iterations},
                                       Entry{"warmup", &Options::warmup},
                                       Entry{"window_size", &Options::window_size},
                                       Entry{"vary_window", &Options::vary_window},
                                       Entry{"pairs", &Options::pairs},
                                       Entry{"test_calls", &Options::test_calls},
                                       Entry{"memory_limit_bytes", &Options::memory_limit},
                                       Entry{"accelerator", &Options::accelerator},
                                       Entry{"sides", &Options::sides},
                                       Entry{"rank_buffers", &Options::rank_buffers},
                                       Entry{"gpu_map", &Options::gpu_map},
                                       Entry{"unaligned", &Options::unaligned},
                                       Entry{"kernels", &Options::kernels},
                                       Entry{"one_by_one", &Options::one_by_one},
                                       Entry{"multiple_buffers", &Options::multiple_buffers},
                                       Entry{"compute_on_cpu", &Options::compute_on_cpu},
                                       Entry{"compute_on_gpu", &Options::compute_on_gpu},
                                       Entry{"derived_type", &Options::derived_type},
                                       Entry{"neighborhood", &Options::neighborhood},
                                       Entry{"session", &Options::session},
                                       Entry{"in_place", &Options::in_place},
                                       Entry{"root", &Options::root},
                                       Entry{"rotate_root", &Options::rotate_root},
                                       Entry{"percentiles", &Options::percentiles},
                                       Entry{"validate", &Options::validate},
                                       Entry{"adaptive", &Options::adaptive},
                                       Entry{"precision", &Options::precision},
                                       Entry{"time_limit_s", &Options::time_limit_s},
                                       Entry{"omb_version", &Options::omb_version},
                                       Entry{"contenders", &Options::contenders},
                                       Entry{"launchers", &Options::launchers},
                                       Entry{"modes", &Options::modes}};

template <typename Enum>
const char* name_of(const Enum value) {
    return to_string(value);
}
const char* name_of(const ElementType type) {
    return mpi_name(type);
}
const char* name_of(const DerivedType::Form form) {
    constexpr const char* kNames[] = {"cont", "vect", "indx"};
    return kNames[static_cast<std::size_t>(form)];
}

// ---- writing --------------------------------------------------------------------------------------------------------

template <typename Entries, typename Struct>
void write(const Entries& entries, const Struct& value, Json& json);

template <typename Value>
Json json_of(const Value& value) {
    if constexpr (std::is_enum_v<Value>) {
        return name_of(value);
    } else if constexpr (std::tuple_size_v<decltype(kEntries<Value>)> != 0) {
        Json json;
        write(kEntries<Value>, value, json);
        return json;
    } else {
        return value;
    }
}
Json json_of(const Interval& interval) {
    return Json::array({interval.low, interval.high});
}
Json json_of(const BufferChoice& choice) {
    return letters_of(choice);
}
Json json_of(const DerivedType::Block& block) {
    return Json::array({block.displacement, block.length});
}
Json json_of(const RunResult& run) {
    Json json = {{"test", run.test->name}};
    write(kEntries<RunResult>, run, json);
    if (run.test->is_one_sided()) {
        write(kWindowEntries, run, json);
    }
    if (run.test->family == Family::first) {
        write(kFirstEntries, run, json);
    }
    if (run.test->family == Family::halo) {
        write(kHaloEntries, run, json);
    }
    write(kContenderEntries, run, json);
    return json;
}
template <typename Value>
Json json_of(const std::optional<Value>& value) {
    return value ? json_of(*value) : Json(nullptr);
}
template <typename Value>
Json json_of(const std::vector<Value>& values) {
    Json list = Json::array();
    for (const Value& value : values) {
        list.push_back(json_of(value));
    }
    return list;
}

template <typename Entries, typename Struct>
void write(const Entries& entries, const Struct& value, Json& json) {
    std::apply([&](const auto&... entry) { ((json[entry.name] = json_of(value.*entry.member)), ...); }, entries);
}

// ---- reading --------------------------------------------------------------------------------------------------------

/// A value and where it stands, for messages such as "runs[0].contenders[1].mode: ...".
class Reader {
  public:
    Reader(const Json& json, std::string path) : _json(json), _path(std::move(path)) {}

    [[noreturn]] void refuse(const std::string& why) const {
        throw Error("the JSON is not a run of awaken bench: " + (_path.empty() ? "the top" : _path) + " " + why,
                    kRemedy);
    }

    [[nodiscard]] Reader at(const char* key) const {
        if (!_json.is_object()) {
            refuse("is not an object");
        }
        const auto found = _json.find(key);
        if (found == _json.end()) {
            refuse(std::string("has no '") + key + "'");
        }
        return {*found, _path.empty() ? key : _path + "." + key};
    }

    [[nodiscard]] std::vector<Reader> elements() const {
        if (!_json.is_array()) {
            refuse("is not a list");
        }
        std::vector<Reader> readers;
        for (std::size_t i = 0; i < _json.size(); ++i) {
            readers.emplace_back(_json[i], _path + "[" + std::to_string(i) + "]");
        }
        return readers;
    }

    /// `entries` of `value`.
    template <typename... Entries, typename Struct>
    void read(const std::tuple<Entries...>& entries, Struct& value) const {
        std::apply([&](const auto&... entry) { (at(entry.name).read(value.*entry.member), ...); }, entries);
    }

    template <typename Value>
    void read(Value& value) const {
        if constexpr (std::is_enum_v<Value>) {
            std::string text;
            read(text);
            // "unknown" is what there is behind the last.
            for (int i = 0; std::string_view(name_of(static_cast<Value>(i))) != "unknown"; ++i) {
                if (text == name_of(static_cast<Value>(i))) {
                    value = static_cast<Value>(i);
                    return;
                }
            }
            refuse("is '" + text + "', which is unknown");
        } else {
            read(kEntries<Value>, value);
        }
    }
    void read(std::string& value) const {
        if (!_json.is_string()) {
            refuse("is not a text");
        }
        value = _json.get<std::string>();
    }
    void read(bool& value) const {
        if (!_json.is_boolean()) {
            refuse("is not true or false");
        }
        value = _json.get<bool>();
    }
    void read(double& value) const {
        if (!_json.is_number()) {
            refuse("is not a number");
        }
        value = _json.get<double>();
    }
    void read(std::size_t& value) const {
        if (!_json.is_number_unsigned()) {
            refuse("is not a whole number of 0 or more");
        }
        value = _json.get<std::size_t>();
    }
    void read(int& value) const {
        std::size_t wide = 0;
        read(wide);
        if (wide > 0x7fffffffU) {
            refuse("is too large");
        }
        value = static_cast<int>(wide);
    }
    void read(std::vector<double>& values) const {
        for (const Reader& element : elements()) {
            if (!element._json.is_number()) {
                refuse("contains something other than numbers");
            }
            element.read(values.emplace_back());
        }
    }
    void read(Interval& interval) const {
        std::vector<double> ends;
        read(ends);
        if (ends.size() != 2) {
            refuse("is not a pair");
        }
        interval = {ends[0], ends[1]};
    }

    template <typename Value>
    void read(std::optional<Value>& value) const {
        if (!_json.is_null()) {
            read(value.emplace());
        }
    }
    template <typename Value>
    void read(std::vector<Value>& values) const {
        for (const Reader& element : elements()) {
            element.read(values.emplace_back());
        }
    }
    void read(RunResult& run) const {
        std::string name;
        const Reader test = at("test");
        test.read(name);
        run.test = find_test(name);
        if (run.test == nullptr) {
            test.refuse("is '" + name + "', which is not a test");
        }
        read(kEntries<RunResult>, run);
        if (run.test->is_one_sided()) {
            read(kWindowEntries, run);
        }
        if (run.test->family == Family::first) {
            read(kFirstEntries, run);
        }
        if (run.test->family == Family::halo) {
            read(kHaloEntries, run);
        }
        read(kContenderEntries, run);
    }

    void read(Manifest& manifest) const {
        if (!_json.is_object()) {
            refuse("is not an object");
        }
        for (const auto& [key, value] : _json.items()) {
            Reader(value, _path + "." + key).read(manifest.entries.emplace_back(key, "").second);
        }
    }

  private:
    const Json& _json;
    std::string _path;
};

}  // namespace

std::string to_json(const std::vector<RunResult>& results, const Options& options, const Manifest& manifest) {
    Json json = {{"schema", kSchema}, {"version", kVersion}};
    Json& entries = json["manifest"] = Json::object();
    for (const auto& [key, value] : manifest.entries) {
        entries[key] = value;
    }
    json["options"] = json_of(options);
    json["runs"] = json_of(results);
    // Environment variables in the manifest may hold any bytes, of which JSON knows UTF-8 only.
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<RunResult> from_json(const std::string& text, Manifest* manifest) {
    Json json;
    try {
        json = Json::parse(text);
    } catch (const Json::parse_error& error) {
        throw Error("this is not JSON (" + std::string(error.what()) + ")", kRemedy);
    }
    const Reader top(json, "");
    std::string schema;
    top.at("schema").read(schema);
    if (schema != kSchema) {
        top.at("schema").refuse("is '" + schema + "' instead of '" + kSchema + "'");
    }
    int version = 0;
    top.at("version").read(version);
    if (version != kVersion) {
        top.at("version").refuse("is " + std::to_string(version) + "; only " + std::to_string(kVersion) +
                                 " is understood");
    }
    if (manifest != nullptr) {
        top.at("manifest").read(*manifest);
    }
    std::vector<RunResult> runs;
    top.at("runs").read(runs);
    return runs;
}

}  // namespace awaken::bench
