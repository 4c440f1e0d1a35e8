// Runs as JSON, schema "awaken-bench" version 1 (docs/benchmarks.md), and back. Units are part of the names.
#include <nlohmann/json.hpp>

#include <string>
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

// ---- writing
// -----------------------------------------------------------------------------------------------------------

template <typename Value>
Json or_null(const std::optional<Value>& value) {
    return value ? Json(*value) : Json(nullptr);
}

std::string letters(const BufferChoice& choice) {
    switch (choice.kind) {
        case BufferKind::host:
            return "H";
        case BufferKind::pinned:
            return "P";
        case BufferKind::registered:
            return "R";
        case BufferKind::device:
            return "D";
        case BufferKind::managed:
            return choice.managed_on_device ? "MD" : "MH";
        case BufferKind::pool:
            return "A";
    }
    return "?";
}

const char* name_of(Accelerator accelerator) {
    switch (accelerator) {
        case Accelerator::none:
            return "none";
        case Accelerator::cuda:
            return "cuda";
        case Accelerator::rocm:
            return "rocm";
        case Accelerator::managed:
            return "managed";
        case Accelerator::openacc:
            return "openacc";
    }
    return "unknown";
}

const char* name_of(DerivedType::Form form) {
    switch (form) {
        case DerivedType::Form::contiguous:
            return "cont";
        case DerivedType::Form::vector:
            return "vect";
        case DerivedType::Form::indexed:
            return "indx";
    }
    return "unknown";
}

Json json_of(const std::vector<BufferChoice>& choices) {
    Json list = Json::array();
    for (const BufferChoice& choice : choices) {
        list.push_back(letters(choice));
    }
    return list;
}

/// What decides a result; null where the test's default holds.
Json json_of(const Options& options) {
    Json json;
    json["minimum_size"] = or_null(options.minimum_size);
    json["maximum_size"] = or_null(options.maximum_size);
    json["step_factor"] = or_null(options.step_factor);
    json["iterations"] = or_null(options.iterations);
    json["warmup"] = or_null(options.warmup);
    json["window_size"] = or_null(options.window_size);
    json["vary_window"] = options.vary_window;
    json["pairs"] = or_null(options.pairs);
    json["test_calls"] = or_null(options.test_calls);
    json["memory_limit_bytes"] = options.memory_limit;
    json["accelerator"] = name_of(options.accelerator);
    json["sides"] = json_of(options.sides);
    json["rank_buffers"] = json_of(options.rank_buffers);
    json["gpu_map"] = options.gpu_map;
    json["unaligned"] = options.unaligned;
    json["multiple_buffers"] = options.multiple_buffers;
    json["compute_on_cpu"] = options.compute_on_cpu;
    json["compute_on_gpu"] = options.compute_on_gpu;
    if (options.derived_type) {
        const DerivedType& type = *options.derived_type;
        // Of -T's types there may be several, so that bytes would be of one of them only.
        json["derived_type"] = {{"form", name_of(type.form)},
                                {"stride_elements", type.stride},
                                {"block_length_elements", type.block_length}};
        Json& blocks = json["derived_type"]["blocks"] = Json::array();
        for (const DerivedType::Block& block : type.blocks) {
            blocks.push_back(Json::array({block.displacement, block.length}));
        }
    } else {
        json["derived_type"] = nullptr;
    }
    json["neighborhood"] = {{"cartesian", options.neighborhood.cartesian},
                            {"dimensions", options.neighborhood.dimensions},
                            {"radius", options.neighborhood.radius},
                            {"graph_file", options.neighborhood.graph_file}};
    json["session"] = options.session;
    json["in_place"] = options.in_place;
    json["root"] = options.root;
    json["rotate_root"] = options.rotate_root;
    json["percentiles"] = options.percentiles;
    json["validate"] = options.validate;
    json["adaptive"] = options.adaptive;
    json["precision"] = options.precision;
    json["time_limit_s"] = options.time_limit_s;
    json["omb_version"] = options.omb_version;
    Json& contenders = json["contenders"] = Json::array();
    for (const ContenderChoice& contender : options.contenders) {
        contenders.push_back({{"name", contender.name},
                              {"kind", to_string(contender.kind)},
                              {"environment", contender.environment},
                              {"launcher", contender.launcher}});
    }
    json["launchers"] = options.launchers;
    Json& modes = json["modes"] = Json::array();
    for (const Mode mode : options.modes) {
        modes.push_back(to_string(mode));
    }
    return json;
}

Json json_of(const Summary& summary) {
    return {
        {"count", summary.count},        {"mean_us", summary.mean},
        {"minimum_us", summary.minimum}, {"maximum_us", summary.maximum},
        {"median_us", summary.median},   {"median_95_us", Json::array({summary.median_95.low, summary.median_95.high})},
        {"p50_us", summary.p50},         {"p90_us", summary.p90},
        {"p99_us", summary.p99}};
}

Json json_of(const OverlapTimes& times) {
    return {{"overall_us", times.overall},
            {"compute_us", times.compute},
            {"initiate_us", times.initiate},
            {"test_us", times.test},
            {"wait_us", times.wait},
            {"pure_us", times.pure},
            {"pure_minimum_us", times.pure_minimum},
            {"pure_maximum_us", times.pure_maximum},
            {"overlap_percent", times.overlap_percent}};
}

Json json_of(const Measurement& measurement) {
    return {{"size", measurement.size},
            {"transmit_size", measurement.transmit_size},
            {"iterations", measurement.iterations},
            {"average_us", measurement.average},
            {"minimum_us", measurement.minimum},
            {"maximum_us", measurement.maximum},
            {"bandwidth_MBps", measurement.bandwidth},
            {"message_rate_per_s", measurement.message_rate},
            {"overlap", measurement.overlap ? json_of(*measurement.overlap) : Json(nullptr)},
            {"percentiles", measurement.percentiles},
            {"cold_first_us", measurement.cold_first},
            {"summary", json_of(measurement.summary)},
            {"stopped", to_string(measurement.stopped)},
            {"validated", measurement.validated},
            {"errors", measurement.errors},
            {"first_error", measurement.first_error},
            {"iterations_per_sample", measurement.iterations_per_sample},
            {"samples_us", measurement.samples}};
}

Json json_of(const RunResult& run) {
    Json json = {{"test", run.test->name},
                 {"type", mpi_name(run.type)},
                 {"ranks", run.ranks},
                 {"window_size", run.window_size},
                 {"pairs", run.pairs}};
    if (run.test->is_one_sided()) {
        json["window_creation"] = run.window_creation;
        json["synchronization"] = run.synchronisation;
    }
    Json& contenders = json["contenders"] = Json::array();
    for (const ContenderResult& contender : run.contenders) {
        Json entry = {{"name", contender.name},
                      {"mode", to_string(contender.mode)},
                      {"unavailable", contender.unavailable},
                      {"description", contender.description}};
        Json& measurements = entry["measurements"] = Json::array();
        for (const Measurement& measurement : contender.measurements) {
            measurements.push_back(json_of(measurement));
        }
        contenders.push_back(std::move(entry));
    }
    return json;
}

// ---- reading
// -----------------------------------------------------------------------------------------------------------

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

    [[nodiscard]] bool is_null() const { return _json.is_null(); }

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
        if (!_json.is_array()) {
            refuse("is not a list");
        }
        values.resize(_json.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (!_json[i].is_number()) {
                refuse("has something else than numbers in it");
            }
            values[i] = _json[i].get<double>();
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

    void read(Manifest& manifest) const {
        if (!_json.is_object()) {
            refuse("is not an object");
        }
        for (const auto& [key, value] : _json.items()) {
            Reader(value, _path + "." + key).read(manifest.entries.emplace_back(key, "").second);
        }
    }

    /// One of `values`, by its name.
    template <typename Value, typename Name>
    void read_one_of(Value& value, std::initializer_list<Value> values, const Name& name) const {
        std::string text;
        read(text);
        for (const Value candidate : values) {
            if (text == name(candidate)) {
                value = candidate;
                return;
            }
        }
        refuse("is '" + text + "', which is unknown");
    }

  private:
    const Json& _json;
    std::string _path;
};

void read(const Reader& reader, Summary& summary) {
    reader.at("count").read(summary.count);
    reader.at("mean_us").read(summary.mean);
    reader.at("minimum_us").read(summary.minimum);
    reader.at("maximum_us").read(summary.maximum);
    reader.at("median_us").read(summary.median);
    reader.at("median_95_us").read(summary.median_95);
    reader.at("p50_us").read(summary.p50);
    reader.at("p90_us").read(summary.p90);
    reader.at("p99_us").read(summary.p99);
}

void read(const Reader& reader, OverlapTimes& times) {
    reader.at("overall_us").read(times.overall);
    reader.at("compute_us").read(times.compute);
    reader.at("initiate_us").read(times.initiate);
    reader.at("test_us").read(times.test);
    reader.at("wait_us").read(times.wait);
    reader.at("pure_us").read(times.pure);
    reader.at("pure_minimum_us").read(times.pure_minimum);
    reader.at("pure_maximum_us").read(times.pure_maximum);
    reader.at("overlap_percent").read(times.overlap_percent);
}

void read(const Reader& reader, Measurement& measurement) {
    using Reason = StoppingCriterion::Reason;
    reader.at("size").read(measurement.size);
    reader.at("transmit_size").read(measurement.transmit_size);
    reader.at("iterations").read(measurement.iterations);
    reader.at("average_us").read(measurement.average);
    reader.at("minimum_us").read(measurement.minimum);
    reader.at("maximum_us").read(measurement.maximum);
    reader.at("bandwidth_MBps").read(measurement.bandwidth);
    reader.at("message_rate_per_s").read(measurement.message_rate);
    if (const Reader overlap = reader.at("overlap"); !overlap.is_null()) {
        read(overlap, measurement.overlap.emplace());
    }
    reader.at("percentiles").read(measurement.percentiles);
    reader.at("cold_first_us").read(measurement.cold_first);
    read(reader.at("summary"), measurement.summary);
    reader.at("stopped").read_one_of(measurement.stopped,
                                     {Reason::running, Reason::precise, Reason::out_of_time, Reason::iterations_done},
                                     [](Reason reason) { return to_string(reason); });
    reader.at("validated").read(measurement.validated);
    reader.at("errors").read(measurement.errors);
    reader.at("first_error").read(measurement.first_error);
    reader.at("iterations_per_sample").read(measurement.iterations_per_sample);
    reader.at("samples_us").read(measurement.samples);
}

void read(const Reader& reader, ContenderResult& contender) {
    reader.at("name").read(contender.name);
    reader.at("mode").read_one_of(contender.mode, {Mode::waited, Mode::queued},
                                  [](Mode mode) { return to_string(mode); });
    reader.at("unavailable").read(contender.unavailable);
    reader.at("description").read(contender.description);
    for (const Reader& element : reader.at("measurements").elements()) {
        read(element, contender.measurements.emplace_back());
    }
}

void read(const Reader& reader, RunResult& run) {
    std::string name;
    const Reader test = reader.at("test");
    test.read(name);
    run.test = find_test(name);
    if (run.test == nullptr) {
        test.refuse("is '" + name + "', which is no test");
    }
    reader.at("type").read_one_of(run.type,
                                  {ElementType::char_, ElementType::int_, ElementType::float_, ElementType::double_},
                                  [](ElementType type) { return mpi_name(type); });
    reader.at("ranks").read(run.ranks);
    reader.at("window_size").read(run.window_size);
    reader.at("pairs").read(run.pairs);
    if (run.test->is_one_sided()) {
        reader.at("window_creation").read(run.window_creation);
        reader.at("synchronization").read(run.synchronisation);
    }
    for (const Reader& element : reader.at("contenders").elements()) {
        read(element, run.contenders.emplace_back());
    }
}

}  // namespace

std::string to_json(const std::vector<RunResult>& results, const Options& options, const Manifest& manifest) {
    Json json = {{"schema", kSchema}, {"version", kVersion}};
    Json& entries = json["manifest"] = Json::object();
    for (const auto& [key, value] : manifest.entries) {
        entries[key] = value;
    }
    json["options"] = json_of(options);
    Json& runs = json["runs"] = Json::array();
    for (const RunResult& result : results) {
        runs.push_back(json_of(result));
    }
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
    for (const Reader& element : top.at("runs").elements()) {
        read(element, runs.emplace_back());
    }
    return runs;
}

}  // namespace awaken::bench
