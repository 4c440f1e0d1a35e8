// SPDX-License-Identifier: Apache-2.0
// Measures contenders side by side. At each size all contenders first show that they deliver the right data, then take
// turns in short blocks, in an order that rotates from round to round: what disturbs the machine meanwhile (other
// programs, clocks, temperature) meets all of them alike.
#include "mpi/engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/input_file.h"
#include "engine/printer.h"
#include "engine/progress.h"
#include "engine/results_file.h"
#include "engine/statistics.h"
#include "engine/turns.h"
#include "mpi/clock.h"
#include "mpi/mpi_functions.h"
#include "mpi/sampling.h"

namespace awaken::bench {
namespace {

/// A block of one contender in a round: long against what surrounds it, short against what it is to be shielded from.
constexpr double kBlockSeconds = 0.01;
constexpr std::size_t kMinimumSamples = 20;
/// A fixed number of iterations is spread over this many rounds when several contenders share it, or when data are
/// checked in between (-c).
constexpr std::size_t kFixedRounds = 20;
constexpr std::array<int, 8> kVariedWindows{1, 2, 4, 8, 16, 32, 64, 128};

/// Runs what any rank may fail at alone, and ends it on all of them together. Unavailable is the same on all ranks by
/// contract, and goes through. `peers`: may_wait where the work itself communicates.
template <typename Work>
void together(MPI_Comm communicator, const Work& work, const Peers peers = Peers::come) {
    std::optional<Error> problem;
    try {
        work();
    } catch (const Unavailable&) {
        throw;
    } catch (const AgreedError&) {
        throw;
    } catch (const Error& error) {
        problem = error;
    } catch (const std::bad_alloc&) {
        problem.emplace("not enough host memory", "use smaller sizes (-m) or fewer ranks on this node");
    }
    agree(communicator, problem, peers);
}

/// The beginning of a line of progress.
std::string in_bytes(const std::size_t size) {
    return std::to_string(size) + " bytes, ";
}

/// Writes the results so far, so that what was measured is not lost, whatever becomes of the run.
class JsonFile {
  public:
    JsonFile(const Environment& environment, const Manifest& manifest)
        : _options(environment.options),
          _manifest(manifest),
          _on(environment.rank == 0 && !environment.options.json_file.empty()) {}

    /// Before anything is measured, so that a file which cannot be written costs no time.
    void begin() {
        if (_on && _options.json_file != "-") {
            _file.emplace(_options.json_file);
            write({}, false);
        }
    }

    void write(const std::vector<RunResult>& results, const bool final) {
        const bool whole_only = !_file || !_file->is_replaced();
        const bool not_yet = whole_only || (_bytes > kManyBytes && now() - _written_at < 1);
        if (!_on || (!final && not_yet)) {
            return;
        }
        const std::string text = to_json(results, _options, _manifest);
        if (_options.json_file == "-") {
            std::fputs(text.c_str(), stdout);
            std::fflush(stdout);
            return;
        }
        _file->write(text);
        _written_at = now();
        _bytes = text.size();
    }

  private:
    /// Larger ones are written once a second at most.
    static constexpr std::size_t kManyBytes = std::size_t{1} << 20;

    const Options& _options;
    const Manifest& _manifest;
    const bool _on;
    std::optional<ResultsFile> _file;  ///< nothing for stdout
    double _written_at = 0;            ///< seconds
    std::size_t _bytes = 0;            ///< of what was written last
};

/// A contender in one mode, with all that is gathered about it.
struct Entry {
    ContenderResult result;
    std::shared_ptr<Communication> with;
    std::shared_ptr<RawCopy> raw;  ///< instead of `with`
    // Of the present size.
    Samples samples;
    Measurement measurement;
    double elapsed_s = 0;  ///< at the rank where it took longest, as of the last round
    bool done = false;
    std::size_t looked_at = 0;    ///< number of samples when the criterion was last asked
    std::vector<double> slowest;  ///< of all ranks, the samples looked at, microseconds; at rank 0

    [[nodiscard]] bool available() const noexcept { return result.unavailable.empty(); }
};

class Measurements {
  public:
    Measurements(const Environment& environment, const Manifest& manifest)
        : _environment(environment),
          _options(environment.options),
          _comparison(!environment.options.contenders.empty()),
          _json(environment, manifest),
          _progress(environment.rank == 0 && environment.options.progress, environment.test.name) {
        if (!_options.turns.empty()) {
            _turns = TurnClient(turn_address(), environment.rank, environment.ranks);
        }
        if (environment.rank == 0 && !_comparison && _options.json_file != "-") {
            _printer = make_osu_printer(stdout, _options, environment.test);
        }
    }

    int run() {
        together(communicator(), [&] { _json.begin(); });
        do_and_tell([&] { measure_types(); }, [&] { finish(); });
        return _failed ? 1 : 0;
    }

  private:
    /// Rank 0 alone reads it: ranks on other nodes need not share the folder. Collective.
    [[nodiscard]] std::string turn_address() const {
        std::array<char, 512> address{};
        together(communicator(), [&] {
            if (_environment.rank != 0) {
                return;
            }
            const InputFile file = read_input_file(_options.turns, address.size() - 1);
            if (!file.why_not.empty()) {
                throw Error("--turns " + _options.turns + " cannot be read (" + file.why_not + ")",
                            "leave it to `awaken bench --launcher`, started in a folder that all nodes share");
            }
            file.text.copy(address.data(), file.text.size());
        });
        check_mpi(MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_CHAR, 0, communicator()),
                  "MPI_Bcast");
        return address.data();
    }

    /// Tells also after an error that all ranks know of: what was measured until then is not lost.
    static void do_and_tell(const auto& work, const auto& tell) {
        try {
            work();
        } catch (const AgreedError&) {
            tell();
            throw;
        }
        tell();
    }

    void measure_types() {
        for (const ElementType type : types_to_measure(_options, _environment.test)) {
            if (_options.vary_window) {
                run_varied_windows(type);
            } else {
                run_type(type);
            }
            if (ends_early()) {
                break;
            }
        }
    }

    void finish() {
        _turns.end();
        _progress.clear();
        if (_printer != nullptr) {
            _printer->end();
        }
        together(communicator(), [&] { _json.write(_results, true); });
    }

    /// Wrong data end a run, and of a comparison the contender that delivered them.
    [[nodiscard]] bool ends_early() const noexcept { return _failed && !_comparison; }

    [[nodiscard]] MPI_Comm communicator() const noexcept { return _environment.communicator; }
    [[nodiscard]] bool speaks() const noexcept { return _environment.rank == 0; }

    [[nodiscard]] std::unique_ptr<Benchmark> make_benchmark(const Environment& environment) const {
        std::unique_ptr<Benchmark> benchmark;
        const auto make = [&] {
            benchmark = environment.test.is_collective()           ? make_collective(environment)
                        : environment.test.is_one_sided()          ? make_one_sided(environment)
                        : environment.test.family == Family::first ? make_first(environment)
                        : environment.test.family == Family::halo  ? make_halo(environment)
                                                                   : make_point_to_point(environment);
        };
        together(communicator(), make, Peers::may_wait);
        return benchmark;
    }

    // ---- contenders ------------------------------------------------------------------------------------------------

    [[nodiscard]] std::vector<Entry> make_entries() {
        std::vector<ContenderChoice> choices = _options.contenders;
        if (!_comparison) {
            ContenderChoice choice;
            choice.kind = layer_is_loaded() ? ContenderChoice::Kind::awaken : ContenderChoice::Kind::native;
            choice.name = choice.kind == ContenderChoice::Kind::awaken ? "awaken" : "native";
            choices = {choice};
        }
        std::vector<Entry> entries;
        for (const ContenderChoice& choice : choices) {
            std::shared_ptr<Communication> with;
            std::shared_ptr<RawCopy> raw;
            std::string description;
            std::string unavailable;
            try {
                const auto make = [&] {
                    if (choice.kind == ContenderChoice::Kind::raw) {
                        raw = make_raw(_environment);
                    } else {
                        with = make_contender(choice.kind);
                        if (_environment.test.family != Family::first) {
                            with->connect();
                        }
                    }
                };
                together(communicator(), make, Peers::may_wait);
                description = raw != nullptr ? raw->description() : with->description();
            } catch (const Unavailable& reason) {
                unavailable = reason.what();
            }
            for (const Mode mode : _comparison ? _options.modes : std::vector<Mode>{Mode::waited}) {
                Entry entry;
                entry.result.name = choice.name;
                entry.result.mode = mode;
                entry.result.description = description;
                entry.result.unavailable = unavailable;
                entry.with = with;
                entry.raw = raw;
                entries.push_back(std::move(entry));
            }
        }
        return entries;
    }

    [[nodiscard]] std::unique_ptr<Communication> make_contender(const ContenderChoice::Kind kind) const {
        switch (kind) {
            case ContenderChoice::Kind::native:
                return make_native(_environment);
            case ContenderChoice::Kind::awaken:
                return make_awaken(_environment);
            case ContenderChoice::Kind::staged:
                return make_staged(_environment);
            case ContenderChoice::Kind::enqueue:
                return make_enqueue(_environment, false);
            case ContenderChoice::Kind::graph:
                return make_enqueue(_environment, true);
            case ContenderChoice::Kind::xccl:
                return make_xccl(_environment, false);
            case ContenderChoice::Kind::xccl_graph:
                return make_xccl(_environment, true);
            case ContenderChoice::Kind::raw:
                break;
        }
        throw Unavailable("it needs processes of its own",
                          "start `awaken bench` itself, without mpiexec, and give the launch command with --launcher");
    }

    /// Runs a step of one contender; what it cannot do leaves it out from here on.
    template <typename Work>
    void attempt(Entry& entry, const Work& work) {
        try {
            together(communicator(), work, Peers::may_wait);
        } catch (const Unavailable& reason) {
            entry.result.unavailable = reason.what();
        }
    }

    void run_entry(Benchmark& benchmark, const Entry& entry, const std::size_t iterations, Samples& samples) const {
        if (entry.raw != nullptr) {
            benchmark.run_raw(*entry.raw, iterations, samples);
        } else {
            benchmark.run(*entry.with, entry.result.mode, iterations, samples);
        }
    }

    // ---- sizes -----------------------------------------------------------------------------------------------------

    RunResult& begin_result(const ElementType type, const HeaderFacts& facts, const std::vector<Entry>& entries) {
        RunResult result;
        result.test = &_environment.test;
        result.type = type;
        result.ranks = _environment.ranks;
        result.window_size = facts.window_size;
        result.pairs = facts.pairs;
        result.kernels = facts.kernels;
        if (_environment.test.is_one_sided()) {
            result.window_creation = mpi_name(window_form_of(_options, _environment.test));
            result.synchronisation = mpi_name(synchronisation_of(_options, _environment.test));
        }
        if (_environment.test.family == Family::first) {
            const FirstFigure figure = first_figures(_options, _environment.test).front();
            result.operation = to_string(figure.operation);
            result.allocation = figure.allocation;
        }
        for (const Entry& entry : entries) {
            result.contenders.push_back(entry.result);
        }
        return _results.emplace_back(std::move(result));
    }

    [[nodiscard]] HeaderFacts header_facts(Benchmark& benchmark, const ElementType type) {
        HeaderFacts facts;
        facts.type = type;
        facts.first = _first_type;
        facts.ranks = _environment.ranks;
        if (needs_gpu(_options)) {
            // Rank 0, which prints, may be one without a GPU.
            const int here = _environment.gpu.vendor() == gpu::Vendor::hip ? 1 : 0;
            facts.accelerator = over_ranks(here, MPI_MAX, communicator()) != 0 ? Accelerator::rocm : Accelerator::cuda;
        }
        benchmark.describe(facts);
        _first_type = false;
        return facts;
    }

    void run_type(const ElementType type) {
        const std::unique_ptr<Benchmark> benchmark = make_benchmark(_environment);
        std::vector<Entry> entries = make_entries();
        benchmark->set_type(type);
        const HeaderFacts facts = header_facts(*benchmark, type);
        RunResult& result = begin_result(type, facts, entries);
        do_and_tell([&] { measure_sizes(*benchmark, facts, entries, result); }, [&] { print_comparison(result); });
        refuse_when_nothing_ran(entries);
    }

    void measure_sizes(Benchmark& benchmark, const HeaderFacts& facts, std::vector<Entry>& entries, RunResult& result) {
        bool header_is_out = false;
        for (const std::size_t size : sizes_to_measure(_options, _environment.test, facts.type)) {
            wait_for_turn(++_step);
            if (!measure_size(benchmark, size, entries, result)) {
                continue;
            }
            const Entry& first = entries.front();
            if (_printer != nullptr && first.available()) {
                if (!header_is_out) {
                    _printer->header(facts);
                    header_is_out = true;
                }
                // Figures of wrong data are worthless; with -c the line says what they are.
                if (first.measurement.errors == 0 || _options.validation_column) {
                    _printer->row(first.measurement);
                }
            }
            together(communicator(), [&] { _json.write(_results, false); });
            if (ends_early() ||
                std::none_of(entries.begin(), entries.end(), [](const Entry& e) { return e.available(); })) {
                break;
            }
        }
    }

    void print_comparison(const RunResult& result) {
        if (_comparison && speaks() && _options.json_file != "-") {
            _progress.clear();
            std::fputs(comparison_table(result, _options).c_str(), stdout);
            std::fflush(stdout);
        }
    }

    void refuse_when_nothing_ran(const std::vector<Entry>& entries) {
        std::string reasons;
        for (const Entry& entry : entries) {
            if (entry.available()) {
                return;
            }
            if (_failed) {
                return;  // it ran, and its wrong data have been told
            }
            reasons += (reasons.empty() ? "" : "; ") + (_comparison ? entry.result.name + ": " : std::string()) +
                       entry.result.unavailable;
        }
        if (_comparison) {
            throw AgreedError("no contender can run (" + reasons + ")", "choose others with --compare");
        }
        // "cause: remedy" already.
        const std::size_t colon = reasons.rfind(": ");
        throw AgreedError(reasons.substr(0, colon), colon == std::string::npos ? "" : reasons.substr(colon + 2));
    }

    /// -V: every size with every window; one benchmark object each, because the window is part of its buffers.
    void run_varied_windows(const ElementType type) {
        std::vector<std::vector<Measurement>> rows;
        do_and_tell([&] { measure_varied_windows(type, rows); }, [&] { print_rates(rows); });
    }

    void print_rates(const std::vector<std::vector<Measurement>>& rows) {
        if (_printer != nullptr) {
            _progress.clear();
            _printer->varied_windows_rates({kVariedWindows.begin(), kVariedWindows.end()}, rows);
        }
    }

    void measure_varied_windows(const ElementType type, std::vector<std::vector<Measurement>>& rows) {
        std::vector<Entry> entries = make_entries();
        const std::size_t first_result = _results.size();
        bool header_is_out = false;
        for (const std::size_t size : sizes_to_measure(_options, _environment.test, type)) {
            wait_for_turn(++_step);
            std::vector<Measurement> row;
            for (std::size_t i = 0; i < kVariedWindows.size() && !ends_early(); ++i) {
                Options options = _options;
                options.window_size = kVariedWindows[i];
                const Environment environment{options,
                                              _environment.test,
                                              _environment.communicator,
                                              _environment.rank,
                                              _environment.ranks,
                                              _environment.gpu,
                                              _environment.device};
                const std::unique_ptr<Benchmark> benchmark = make_benchmark(environment);
                benchmark->set_type(type);
                if (!header_is_out) {
                    HeaderFacts facts = header_facts(*benchmark, type);
                    for (const int window : kVariedWindows) {
                        facts.window_size = window;
                        begin_result(type, facts, entries);
                    }
                    if (_printer != nullptr) {
                        _printer->header(facts);
                        _printer->varied_windows_head({kVariedWindows.begin(), kVariedWindows.end()});
                    }
                    header_is_out = true;
                }
                if (!measure_size(*benchmark, size, entries, _results[first_result + i])) {
                    break;
                }
                together(communicator(), [&] { _json.write(_results, false); });
                refuse_when_nothing_ran(entries);
                row.push_back(entries.front().measurement);
            }
            if (ends_early()) {
                break;  // the last window's data may be the wrong ones: a whole row of figures proves nothing
            }
            if (row.size() == kVariedWindows.size()) {
                if (_printer != nullptr) {
                    _progress.clear();
                    _printer->varied_windows_row(row);
                }
                rows.push_back(std::move(row));
            }
        }
    }

    /// False when the size has no row.
    bool measure_size(Benchmark& benchmark, const std::size_t size, std::vector<Entry>& entries, RunResult& results) {
        bool has_row = false;
        const auto resize = [&] { together(communicator(), [&] { has_row = benchmark.resize(size); }); };
        resize();
        if (!has_row) {
            return false;
        }
        if (_options.self_test && benchmark.moves_data()) {
            self_test(benchmark, entries);
            resize();
        }
        const Repetitions repetitions = repetitions_at(_options, _environment.test, size);
        double seconds = 0;  // of an iteration, averaged over contenders
        std::size_t running = 0;
        for (Entry& entry : entries) {
            entry.samples = Samples();
            entry.measurement = Measurement();
            entry.measurement.size = size;
            entry.elapsed_s = 0;
            entry.looked_at = 0;
            entry.slowest.clear();
            entry.done = !entry.available();
            if (entry.available()) {
                _progress.show(in_bytes(size) + entry.result.name + " warming up");
                seconds += get_ready(benchmark, entry, repetitions);
                entry.done = !entry.available();
                running += entry.available() ? 1 : 0;
            }
        }
        seconds /= static_cast<double>(std::max<std::size_t>(running, 1));
        if (running != 0 && (!ends_early() || _options.validation_column)) {
            run_rounds(benchmark, entries, repetitions, seconds, size);
            // Once more, because data that arrived once need not do so after thousands of calls.
            for (Entry& entry : entries) {
                validate(benchmark, entry);
            }
        }
        let_go_of_peers(entries);
        check_guards(benchmark, entries);
        together(communicator(), [&] { benchmark.close(); }, Peers::may_wait);
        for (std::size_t i = 0; i < entries.size(); ++i) {
            Entry& entry = entries[i];
            ContenderResult& result = results.contenders[i];
            result.unavailable = entry.result.unavailable;
            if (!entry.available()) {
                if (speaks() && entry.measurement.errors != 0) {
                    result.measurements.push_back(entry.measurement);  // that they were wrong, and no times
                }
                continue;
            }
            if (entry.samples.iterations != 0) {
                benchmark.sum_up(entry.samples, entry.measurement);
            }
            Measurement& measurement = entry.measurement;
            measurement.summary = summarize(measurement.samples);
            if (measurement.percentiles.empty()) {
                for (const int p : _options.percentiles) {
                    measurement.percentiles.push_back(tail_percentile(measurement.samples, p));
                }
            }
            if (speaks()) {
                result.measurements.push_back(measurement);
            }
        }
        _progress.clear();
        return true;
    }

    /// A rank that sleeps in a socket does nothing for those of its messages that others are still taking: an MPI need
    /// not have got rid of all that is complete. So nobody sleeps before all have what they wait for.
    void wait_for_turn(const std::size_t step) {
        if (!_options.turns.empty()) {
            barrier(communicator());
        }
        _turns.wait(step);
    }

    /// Memory that a peer has mapped must not be freed: nobody goes on before all have let go. Collective.
    void let_go_of_peers(const std::vector<Entry>& entries) const {
        together(communicator(), [&] {
            for (const Entry& entry : entries) {
                if (entry.raw != nullptr) {
                    entry.raw->release();
                }
            }
        });
    }

    /// Prepares, shows that the data arrive, and warms up. The answer is the time of an iteration, seconds, as rank 0
    /// saw it.
    double get_ready(Benchmark& benchmark, Entry& entry, const Repetitions& repetitions) {
        double per_iteration = 0;
        attempt(entry, [&] {
            const std::vector<const Buffer*> buffers = benchmark.buffers();
            if (entry.with != nullptr) {
                entry.with->prepare(communicator(), buffers);
            }
        });
        if (entry.available()) {
            attempt(entry, [&] { per_iteration = measure_cold(benchmark, entry); });
        }
        validate(benchmark, entry);
        if (!entry.available()) {
            return 0;
        }
        settle(benchmark, entry);
        if (repetitions.warmup > 0) {
            Samples thrown_away;
            const double start = now();
            run_entry(benchmark, entry, repetitions.warmup, thrown_away);
            per_iteration = (now() - start) / static_cast<double>(repetitions.warmup);
        }
        check_mpi(MPI_Bcast(&per_iteration, 1, MPI_DOUBLE, 0, communicator()), "MPI_Bcast");
        return per_iteration;
    }

    /// The answer is the time that the iteration took, seconds.
    double measure_cold(Benchmark& benchmark, Entry& entry) {
        Samples first;
        const double start = now();
        run_entry(benchmark, entry, 1, first);
        const double seconds = now() - start;
        Measurement cold;
        benchmark.sum_up(first, cold);
        entry.measurement.cold_first = cold.samples.empty() ? cold.average : cold.samples.front();
        return seconds;
    }

    /// Shows that the data arrive. A contender whose data do not is left out of a comparison from here on.
    void validate(Benchmark& benchmark, Entry& entry) {
        if (!_options.validate || entry.with == nullptr || !entry.available()) {
            return;
        }
        Mismatch mismatch;
        attempt(entry, [&] { mismatch = benchmark.check(*entry.with, entry.result.mode, ++_checks, false); });
        if (!entry.available()) {
            return;
        }
        entry.measurement.validated = true;
        record(entry, mismatch);
        if (_comparison && entry.measurement.errors != 0) {
            entry.result.unavailable = "wrong data at " + std::to_string(entry.measurement.size) + " bytes";
        }
    }

    /// -u: what is timed after a check is to find caches and connections as if there had been none.
    void settle(Benchmark& benchmark, const Entry& entry) const {
        if (_options.validation_column && _options.validation_warmup > 0) {
            Samples thrown_away;
            run_entry(benchmark, entry, static_cast<std::size_t>(_options.validation_warmup), thrown_away);
        }
    }

    /// Brings all ranks' findings together. Collective.
    void record(Entry& entry, const Mismatch& mismatch) {
        const auto all = over_ranks<unsigned long long>(mismatch.wrong_elements, MPI_SUM, communicator());
        if (all == 0) {
            return;
        }
        log_mismatch(entry, mismatch);
        const bool is_first = entry.measurement.errors == 0;
        entry.measurement.errors += all;
        const std::string first = first_text(mismatch);
        if (is_first) {
            entry.measurement.first_error = first;
        }
        _failed = true;
        if (speaks() && is_first) {
            _progress.clear();
            std::fprintf(stderr, "awaken: %s: wrong data at %zu bytes (%llu elements; the first: %s)\n",
                         entry.result.name.c_str(), entry.measurement.size, all, first.c_str());
        }
    }

    /// -clog: each rank's own findings, in a file of its own.
    void log_mismatch(const Entry& entry, const Mismatch& mismatch) const {
        if (_options.validation_log.empty() || mismatch.wrong_elements == 0) {
            return;
        }
        std::ofstream file(_options.validation_log + "/rank_" + std::to_string(_environment.rank) + ".log",
                           std::ios::app);
        file << entry.result.name << ", size " << entry.measurement.size << ": " << mismatch.wrong_elements
             << " wrong elements, the first: " << mismatch.first << '\n';
    }

    /// "rank 1, element 17: 3 instead of 5", of the lowest rank that has found something; at all ranks.
    [[nodiscard]] std::string first_text(const Mismatch& mismatch) const {
        const int lowest =
            over_ranks(mismatch.wrong_elements != 0 ? _environment.rank : INT_MAX, MPI_MIN, communicator());
        return broadcast_text("rank " + std::to_string(lowest) + ", " + mismatch.first, lowest, communicator());
    }

    /// After thousands of calls the guards must be as they were.
    void check_guards(const Benchmark& benchmark, std::vector<Entry>& entries) {
        if (!_options.validate) {
            return;
        }
        Mismatch mismatch;
        for (const Buffer* const buffer : benchmark.buffers()) {
            if (const std::size_t damaged = buffer->damaged_guard_bytes(); damaged != 0) {
                mismatch.add({damaged, std::to_string(damaged) + " bytes beside a buffer overwritten while measuring"});
            }
        }
        for (Entry& entry : entries) {
            if (entry.available()) {
                record(entry, mismatch);  // of which contender cannot be told afterwards
                break;
            }
        }
    }

    /// Shows that wrong data and overwritten guards are found.
    void self_test(Benchmark& benchmark, std::vector<Entry>& entries) {
        const auto entry = std::find_if(entries.begin(), entries.end(),
                                        [](const Entry& e) { return e.available() && e.with != nullptr; });
        if (entry == entries.end()) {
            return;
        }
        Mismatch mismatch;
        attempt(*entry, [&] {
            entry->with->prepare(communicator(), benchmark.buffers());
            mismatch = benchmark.check(*entry->with, entry->result.mode, ++_checks, true);
        });
        if (!entry->available()) {
            return;
        }
        const std::vector<const Buffer*> buffers = benchmark.buffers();
        unsigned long long damaged = 0;
        if (!buffers.empty()) {
            buffers.front()->damage_guard();
            damaged = buffers.front()->damaged_guard_bytes();
        }
        const auto sum = [&](const unsigned long long here) { return over_ranks(here, MPI_SUM, communicator()); };
        const bool found = sum(mismatch.wrong_elements) != 0;
        const unsigned long long expected = sum(buffers.empty() ? 0 : 1);
        if (sum(damaged) != expected || !found) {
            throw AgreedError(std::string("self-test: ") +
                                  (!found ? "a corrupted element" : "an overwritten guard byte") +
                                  " was not noticed, so validation proves nothing here",
                              "please report this with the command line");
        }
        const std::string first = first_text(mismatch);
        if (speaks() && !_self_tested && !_options.quiet_notes) {
            _progress.clear();
            std::fprintf(stderr,
                         "awaken: self-test: corrupted data was noticed (%s), and so was an overwritten guard\n",
                         first.c_str());
        }
        _self_tested = true;
    }

    // ---- rounds ----------------------------------------------------------------------------------------------------

    void run_rounds(Benchmark& benchmark, std::vector<Entry>& entries, const Repetitions& repetitions,
                    const double seconds, const std::size_t size) {
        const bool adaptive = _options.adaptive || (_comparison && !_options.iterations);
        const StoppingCriterion criterion =
            adaptive ? StoppingCriterion::adaptive(_options.precision, _options.time_limit_s, kMinimumSamples)
                     : StoppingCriterion::fixed(repetitions.iterations);
        std::size_t block = repetitions.iterations;
        if (adaptive) {
            block = static_cast<std::size_t>(std::clamp(kBlockSeconds / std::max(seconds, 1e-9), 1.0, 1e6));
        } else if (_comparison || _options.validation_column) {
            block = std::max<std::size_t>(repetitions.iterations / kFixedRounds, 1);
        }
        // All go on until all are done or out of time, so that their samples can be compared pair by pair.
        for (std::size_t round = 0;; ++round) {
            // Contenders in other processes get their round in between.
            wait_for_turn(_step);
            for (std::size_t i = 0; i < entries.size(); ++i) {
                Entry& entry = entries[(i + round) % entries.size()];
                const std::size_t left = adaptive ? block : left_of(entry, repetitions);
                const bool out_of_time =
                    adaptive && entry.samples.iterations != 0 && entry.elapsed_s >= _options.time_limit_s;
                if (!entry.available() || left == 0 || out_of_time) {
                    continue;
                }
                if (round > 0 && _options.validation_column && (!adaptive || std::has_single_bit(round))) {
                    validate(benchmark, entry);
                    if (!entry.available()) {
                        continue;
                    }
                    settle(benchmark, entry);
                }
                if (_comparison) {
                    _progress.show(in_bytes(size) + "round " + std::to_string(round + 1) + ", " + entry.result.name);
                }
                const double start = now();
                run_entry(benchmark, entry, std::min(block, left), entry.samples);
                entry.elapsed_s += now() - start;
            }
            if (all_done(entries, criterion, adaptive, repetitions)) {
                return;
            }
        }
    }

    /// Of a fixed number of iterations. Calls that are queued together may be more than were asked for.
    [[nodiscard]] static std::size_t left_of(const Entry& entry, const Repetitions& repetitions) {
        return repetitions.iterations - std::min(entry.samples.iterations, repetitions.iterations);
    }

    /// Decided by rank 0, on the slowest rank's times, which are those that are reported. Collective.
    bool all_done(std::vector<Entry>& entries, const StoppingCriterion& criterion, const bool adaptive,
                  const Repetitions& repetitions) {
        if (!adaptive) {
            bool done = true;
            for (Entry& entry : entries) {
                done = done && (!entry.available() || left_of(entry, repetitions) == 0);
                entry.measurement.stopped = StoppingCriterion::Reason::iterations_done;
            }
            return done;
        }
        // Not every rank takes times, and no two agree on how long it took: all must know what to decide on.
        std::vector<double> facts;  // of each entry, samples and seconds
        for (const Entry& entry : entries) {
            facts.push_back(static_cast<double>(entry.samples.operation.size()));
            facts.push_back(entry.elapsed_s);
        }
        check_mpi(MPI_Allreduce(MPI_IN_PLACE, facts.data(), static_cast<int>(facts.size()), MPI_DOUBLE, MPI_MAX,
                                communicator()),
                  "MPI_Allreduce");
        std::vector<int> verdicts;
        for (std::size_t i = 0; i < entries.size(); ++i) {
            Entry& entry = entries[i];
            entry.elapsed_s = facts[2 * i + 1];
            const auto count = static_cast<std::size_t>(facts[2 * i]);
            // Sorting all samples after each round would cost more than taking them: look again when there are a tenth
            // more.
            const bool look =
                entry.elapsed_s >= _options.time_limit_s || count >= entry.looked_at + entry.looked_at / 10 + 1;
            auto verdict = entry.done ? entry.measurement.stopped : StoppingCriterion::Reason::running;
            if (entry.available() && !entry.done && look) {
                gather_slowest(entry, count);
                verdict = count == 0 ? StoppingCriterion::Reason::out_of_time
                                     : criterion.decide(entry.slowest, entry.elapsed_s);
            }
            verdicts.push_back(static_cast<int>(verdict));
        }
        check_mpi(MPI_Bcast(verdicts.data(), static_cast<int>(verdicts.size()), MPI_INT, 0, communicator()),
                  "MPI_Bcast");
        bool done = true;
        for (std::size_t i = 0; i < entries.size(); ++i) {
            Entry& entry = entries[i];
            entry.measurement.stopped = static_cast<StoppingCriterion::Reason>(verdicts[i]);
            entry.done = entry.measurement.stopped != StoppingCriterion::Reason::running;
            done = done && (entry.done || !entry.available());
        }
        return done;
    }

    /// Adds what was measured since the last look. Collective.
    void gather_slowest(Entry& entry, const std::size_t count) const {
        const std::vector<double>& own = entry.samples.operation;
        const auto fresh = own.begin() + static_cast<std::ptrdiff_t>(std::min(entry.looked_at, own.size()));
        const std::vector<double> slowest = slowest_of_ranks({fresh, own.end()}, communicator());
        entry.slowest.insert(entry.slowest.end(), slowest.begin(), slowest.end());
        entry.looked_at = count;
    }

    const Environment& _environment;
    const Options& _options;
    const bool _comparison;
    JsonFile _json;
    Progress _progress;
    TurnClient _turns;
    std::unique_ptr<Printer> _printer;
    std::vector<RunResult> _results;
    std::size_t _step = 0;
    std::uint64_t _checks = 0;
    bool _first_type = true;
    bool _failed = false;
    bool _self_tested = false;
};

}  // namespace

int measure(const Environment& environment, const Manifest& manifest) {
    return Measurements(environment, manifest).run();
}

int report_startup(const Environment& environment, const Manifest& manifest, const double init_seconds) {
    JsonFile json(environment, manifest);
    together(environment.communicator, [&] { json.begin(); });
    Measurement measurement;
    const double microseconds = init_seconds * 1e6;
    const auto reduce = [&](const MPI_Op operation) {
        return over_ranks_at_root(microseconds, operation, environment.communicator);
    };
    measurement.minimum = reduce(MPI_MIN);
    measurement.maximum = reduce(MPI_MAX);
    measurement.average = reduce(MPI_SUM) / environment.ranks;
    measurement.iterations = 1;
    measurement.samples = {measurement.maximum};
    measurement.summary = summarize(measurement.samples);
    if (environment.rank == 0 && environment.options.json_file != "-") {
        const std::unique_ptr<Printer> printer = make_osu_printer(stdout, environment.options, environment.test);
        HeaderFacts facts;
        facts.ranks = environment.ranks;
        printer->header(facts);
        printer->row(measurement);
        printer->end();
    }
    RunResult result;
    result.test = &environment.test;
    result.ranks = environment.ranks;
    ContenderResult contender;
    contender.name = layer_is_loaded() ? "awaken" : "native";
    contender.description = short_version();
    contender.measurements.push_back(measurement);
    result.contenders.push_back(contender);
    together(environment.communicator, [&] { json.write({result}, true); });
    return 0;
}

}  // namespace awaken::bench
