// SPDX-License-Identifier: Apache-2.0
// The overlap matrix S = X^T X of vectors that are spread over all ranks, with products and reductions overlapping.
//
// Electronic-structure codes make this matrix in each step: X has as many rows as the mesh has points, and a column for
// each wavefunction. Each rank multiplies the rows that it owns, block of columns by block of columns, and the blocks
// are summed up over the ranks (MPI_Allreduce). As the sum of one block needs no product of the next, the two overlap.
//
//   plan.h        the sizes         pipeline.h   products and reductions of all blocks
//   input.h       what X holds      machine.h    who multiplies: a GPU, or the CPU
//   check.h       is S right?       reduction.h  who sums up: MPI, NCCL or RCCL, MPI on host copies, MPI in a stream
//   model.h       how fast could it be?
//
// The first lines of the result are those of the benchmark by which such codes have been judged; what follows, marked
// #, says what was done in that time, and how much of what overlap can save was saved.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "check.h"
#include "device.h"
#include "machine.h"
#include "model.h"
#include "pipeline.h"
#include "plan.h"
#include "program.h"
#include "ranges.h"
#include "reduction.h"
#include "stream_communicator.h"

namespace {

constexpr auto program = "xtx";

constexpr const char* ways[] = {"mpi", "mpi-nonblocking", "ccl", "staged", "enqueue"};  ///< xtx::Way
enum class Overlap : int { off, on, both };
enum class Where : int { any, gpu, cpu };

struct Options {
    xtx::Problem problem;
    long long way = 0;
    long long overlap = static_cast<long long>(Overlap::both);
    long long precision = 0;
    long long is_complex = 0;
    long long input = 0;
    long long check = 0;
    long long where = 0;
    long long repeats = 5;
    long long warm_up = 1;
    long long part = 1LL << 30;
    long long product_ranges = 0;
    long long ranges = 0;
    long long bare_products = 0;
    long long fills_blocks = 0;
    long long vectors_wanted = 0;  ///< --vectors, before blocks were filled up
};

void print(const char* format, auto... values) {
    if (apps::rank_of_world() != 0) {
        return;
    }
    std::printf(format, values...);
    std::fflush(stdout);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The seconds that one rank took for each block, in several runs; which of a step's seconds, `member` says. For each
/// block the median over the runs.
std::vector<double> medians_of_blocks(const std::vector<std::vector<xtx::Step>>& runs, double xtx::Step::* member) {
    std::vector<double> medians(runs.front().size());
    for (std::size_t k = 0; k < medians.size(); ++k) {
        std::vector<double> values;
        for (const std::vector<xtx::Step>& steps : runs) {
            values.push_back(steps[k].*member);
        }
        medians[k] = median(values);
    }
    return medians;
}

/// The same over all ranks: in each run the largest or smallest of them, then the median over the runs. In this order:
/// the rank that came last to a sum is another one from run to run. Collective.
std::vector<double> of_blocks(std::vector<std::vector<xtx::Step>> runs, double xtx::Step::* member, MPI_Op over) {
    for (std::vector<xtx::Step>& steps : runs) {
        std::vector<double> values;
        for (const xtx::Step& step : steps) {
            values.push_back(step.*member);
        }
        MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, over, MPI_COMM_WORLD);
        for (std::size_t k = 0; k < steps.size(); ++k) {
            steps[k].*member = values[k];
        }
    }
    return medians_of_blocks(runs, member);
}

double sum(const std::vector<double>& values, std::size_t first = 0) {
    double total = 0;
    for (std::size_t k = first; k < values.size(); ++k) {
        total += values[k];
    }
    return total;
}

/// What was measured with or without overlap.
struct Measured {
    std::vector<double> seconds;               ///< of each timed run
    std::vector<std::vector<xtx::Step>> runs;  ///< the blocks of each
    std::uint64_t digest = 0;                  ///< of all ranks' results
};

class Benchmark {
  public:
    Benchmark(const Options& options, xtx::Machine& machine, xtx::Reduction& reduction, xtx::Pipeline& pipeline,
              xtx::Check& check)
        : _options(options), _machine(machine), _reduction(reduction), _pipeline(pipeline), _check(check) {}

    /// Returns whether all results were right. Collective.
    bool run() {
        print_head();
        const auto overlap = static_cast<Overlap>(_options.overlap);
        if (overlap != Overlap::on && !measure(false, _off)) {
            return false;
        }
        if (overlap != Overlap::off && !measure(true, _on)) {
            return false;
        }
        if (_options.bare_products != 0) {
            measure_bare_products();
        }
        print("Time in seconds: %.18e\n", median(overlap == Overlap::off ? _off.seconds : _on.seconds));
        print_figures();
        print_check();
        return true;
    }

  private:
    [[nodiscard]] const xtx::Problem& problem() const { return _options.problem; }

    /// One run that is checked thoroughly, the warm-up, and the timed runs, which are checked in a few places.
    bool measure(bool overlaps, Measured& measured) {
        const auto thorough = [this](std::size_t k, const void* block) { _check.compare_thoroughly(k, block); };
        const auto samples = [this](std::size_t k, const void* block) { _check.compare_samples(k, block); };
        _pipeline.run(overlaps, thorough);
        if (!right(overlaps)) {
            return false;
        }
        // Odd factors, so that equal digests of several ranks do not cancel out.
        measured.digest = _check.take_digest() * (2 * static_cast<std::uint64_t>(apps::rank_of_world()) + 1);
        MPI_Allreduce(MPI_IN_PLACE, &measured.digest, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (long long i = 0; i < _options.warm_up; ++i) {
            _pipeline.run(overlaps, samples);
        }
        for (long long i = 0; i < _options.repeats; ++i) {
            MPI_Barrier(MPI_COMM_WORLD);
            const double start_time = MPI_Wtime();
            measured.runs.push_back(_pipeline.run(overlaps, samples));
            MPI_Barrier(MPI_COMM_WORLD);
            measured.seconds.push_back(MPI_Wtime() - start_time);
        }
        return right(overlaps);
    }

    /// Each product outside of the pipeline, as often as there are timed runs. All ranks multiply at the same time, as
    /// in a run: they may share cores, power or a GPU.
    void measure_bare_products() {
        for (std::size_t k = 0; k < _off.runs.front().size(); ++k) {
            MPI_Barrier(MPI_COMM_WORLD);
            _bare_seconds.push_back(_pipeline.product_seconds(k, _options.repeats));
        }
    }

    /// Says what is wrong at any rank. Collective.
    bool right(bool overlaps) {
        const std::string wrong = apps::first_problem(_check.problem());
        if (!wrong.empty() && apps::rank_of_world() == 0) {
            std::fprintf(stderr, "wrong data: %s, overlap %s: %s\n", _reduction.name().c_str(), overlaps ? "on" : "off",
                         wrong.c_str());
        }
        return wrong.empty();
    }

    void print_head() {
        const char* const precisions[] = {"FP64",
                                          "FP64 products, diagonal blocks in FP64 and the rest in FP32 summed up",
                                          "diagonal blocks in FP64, the rest in FP32"};
        const xtx::Rows rows = xtx::rows_of(problem(), 0, apps::size_of_world());
        print("# S = %s, %s input, %s\n", problem().is_complex ? "X^T conj(X)" : "X^T X",
              _options.input == 0 ? "constant" : "random", precisions[_options.precision]);
        print("# products: %s\n", _machine.title().c_str());
        print("# reductions: %s\n", _reduction.name().c_str());
        print("# timed runs: %lld, after one that is checked and %lld for warm-up\n", _options.repeats,
              _options.warm_up);
        print("nprocs: %d\nlocalNumDofs: %lld\nnumberVectors: %lld\n", apps::size_of_world(), rows.count,
              problem().vectors);
    }

    void print_figures() {
        const std::vector<xtx::Block> blocks = xtx::blocks_of(problem());
        double flops = 0;
        double local_flops = 0;
        const xtx::Rows rows = xtx::rows_of(problem(), 0, apps::size_of_world());
        std::size_t doubles = 0;
        std::size_t floats = 0;
        for (const xtx::Block& block : blocks) {
            const xtx::Layout layout = xtx::layout_of(problem(), block);
            flops += xtx::operations(problem(), block, problem().dofs);
            local_flops += xtx::operations(problem(), block, rows.count);
            doubles += layout.doubles;
            floats += layout.floats;
        }
        const auto bytes = static_cast<double>(doubles * sizeof(double) + floats * sizeof(float));
        print("#\n# blocks: %zu of %lld vectors, the last of %lld\n", blocks.size(), blocks.front().width,
              blocks.back().width);
        if (problem().vectors != _options.vectors_wanted) {
            print("# vectors that fill up the last block: %lld, beside the %lld asked for\n",
                  problem().vectors - _options.vectors_wanted, _options.vectors_wanted);
        }
        if (problem().precision == xtx::Precision::mixed) {
            print("# rows at a rank in FP32: %lld, filled up with zeros\n", xtx::rows_in_single(rows));
        }
        print("# bytes reduced: %.0f (%zu doubles, %zu floats), the largest block %zu, the smallest %zu\n", bytes,
              doubles, floats, xtx::layout_of(problem(), blocks.front()).payload_bytes(),
              xtx::layout_of(problem(), blocks.back()).payload_bytes());
        print("# operations: %.6e (%.6e at a rank)\n", flops, local_flops);

        print("#\n# %-8s %14s %14s %14s %12s %18s\n", "overlap", "median (s)", "least (s)", "most (s)", "TFLOP/s",
              "TFLOP/s at a rank");
        print_row("off", _off, flops);
        print_row("on", _on, flops);
        print("#\n");
        if (!_off.runs.empty()) {
            print_parts(bytes, local_flops);
        }
        if (!_off.runs.empty() && !_on.runs.empty()) {
            print_overlap();
        }
    }

    static void print_row(const char* name, const Measured& measured, double flops) {
        if (measured.seconds.empty()) {
            return;
        }
        const double seconds = median(measured.seconds);
        const auto [least, most] = std::minmax_element(measured.seconds.begin(), measured.seconds.end());
        print("# %-8s %14.9f %14.9f %14.9f %12.6f %18.6f\n", name, seconds, *least, *most, flops / seconds * 1e-12,
              flops / seconds * 1e-12 / apps::size_of_world());
    }

    /// What products and reductions take by themselves. A product is as slow as the slowest rank; of the ranks in a
    /// reduction, the one that came last waited for nobody.
    void print_parts(double bytes, double local_flops) {
        const std::vector<double> products = of_blocks(_off.runs, &xtx::Step::product, MPI_MAX);
        const std::vector<double> reductions = of_blocks(_off.runs, &xtx::Step::reduction, MPI_MIN);
        const std::vector<double> communications = of_blocks(_off.runs, &xtx::Step::communication, MPI_MIN);
        for (std::size_t k = 0; k < products.size(); ++k) {
            _times.push_back({products[k], communications[k]});
        }
        const double P = apps::size_of_world();
        const double algbw = bytes / sum(reductions) * 1e-9;
        print("# products alone: %.9f s, %.6f TFLOP/s at a rank\n", sum(products), local_flops / sum(products) * 1e-12);
        print("# reductions alone: %.9f s, algbw %.3f GB/s, busbw %.3f GB/s\n", sum(reductions), algbw,
              algbw * 2 * (P - 1) / P);
        print("# copies to the host alone: %.9f s\n", std::max(0.0, sum(communications) - sum(reductions)));
        print_ratio(sum(reductions) / sum(products));
        if (!_bare_seconds.empty()) {
            print_bare_products();
        }
        print("# T_serial: %.9f s\n", xtx::serial_seconds(_times));
        print("# T_ideal: %.9f s\n", xtx::ideal_seconds(_times));
    }

    /// A product takes as long as there are rows, a sum as long whatever they are: so the ratio is chosen by the rows.
    void print_ratio(double ratio) {
        const auto dofs_for = [&](double wanted) {
            return std::max(1.0, std::round(static_cast<double>(problem().dofs) * ratio / wanted));
        };
        print("# reductions alone / products alone: %.4f, would be 0.8 to 0.2 with --dofs %.0f to %.0f\n", ratio,
              dofs_for(0.8), dofs_for(0.2));
    }

    /// How fast the products without overlap were, beside the same calls outside of the pipeline.
    void print_bare_products() {
        struct Least {
            double speed;
            int block;
        };
        const std::vector<double> alone = medians_of_blocks(_off.runs, &xtx::Step::product);
        Least least = {std::numeric_limits<double>::infinity(), 0};
        double mean = 0;
        for (std::size_t k = 0; k < alone.size(); ++k) {
            // A rank without rows has nothing to multiply.
            const double speed = alone[k] > 0 ? _bare_seconds[k] / alone[k] : 1;
            if (speed < least.speed) {
                least = {speed, static_cast<int>(k)};
            }
            mean += speed / static_cast<double>(alone.size()) / apps::size_of_world();
        }
        double slowest = sum(_bare_seconds);
        MPI_Allreduce(MPI_IN_PLACE, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
        print("# products outside of the pipeline: %.9f s\n", slowest);
        print("# speed of a product alone against that: %.4f on average, %.4f at least (block %d)\n", mean, least.speed,
              least.block + 1);
    }

    void print_overlap() {
        const double ideal = xtx::ideal_seconds(_times);
        const double overlapped = median(_on.seconds);
        print("# T_overlap: %.9f s, %.4f x T_ideal\n", overlapped, overlapped / ideal);
        const double efficiency = xtx::overlap_efficiency(xtx::serial_seconds(_times), ideal, overlapped);
        // All products but the first have a reduction beside them.
        const double alone = sum(of_blocks(_off.runs, &xtx::Step::product, MPI_MAX), 1);
        const double beside = sum(of_blocks(_on.runs, &xtx::Step::product, MPI_MAX), 1);
        if (std::isnan(efficiency) || alone <= 0) {
            print("# overlap efficiency: none, there is nothing to overlap\n");
            return;
        }
        print("# overlap efficiency: %.4f\n", efficiency);
        print("# slowdown of a product beside a reduction: %.4f\n", beside / alone);
    }

    void print_check() {
        const auto print_differences = [this](const char* what, const xtx::Difference& own) {
            double figures[] = {own.error, own.share_of_bound};
            MPI_Allreduce(MPI_IN_PLACE, figures, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            print("# largest error of the %s: %.3e, %.4f of what rounding may do\n", what, figures[0], figures[1]);
        };
        print_differences(problem().is_mixed() ? "diagonal blocks" : "elements", _check.doubles());
        // With one block, all of the matrix is its diagonal block.
        const bool has_rest = problem().is_mixed() && problem().vectors > problem().block;
        if (has_rest) {
            print_differences("rest", _check.floats());
        }
        if (!_off.runs.empty()) {
            print("# bits of the result, overlap off: %016llx\n", static_cast<unsigned long long>(_off.digest));
        }
        if (!_on.runs.empty()) {
            print("# bits of the result, overlap on: %016llx\n", static_cast<unsigned long long>(_on.digest));
        }
        print("# %s right at all ranks.\n", _options.check == 0 ? "All elements are" : "The samples of all blocks are");
    }

    const Options& _options;
    xtx::Machine& _machine;
    xtx::Reduction& _reduction;
    xtx::Pipeline& _pipeline;
    xtx::Check& _check;
    Measured _off;
    Measured _on;
    std::vector<xtx::BlockTime> _times;
    std::vector<double> _bare_seconds;  ///< of each block's product at this rank; empty: not measured
};

/// Who multiplies: the GPU unless it is not wanted, or there is none and it need not be. Collective.
std::unique_ptr<xtx::Machine> make_machine(Where where, bool shows_products) {
    std::string why_not;
    std::unique_ptr<xtx::Machine> machine;
    if (where != Where::cpu) {
        machine = xtx::make_gpu_machine(program, shows_products, why_not);
    }
    if (machine != nullptr) {
        return machine;
    }
    if (where == Where::gpu) {
        apps::leave_if(program, why_not);
    }
    if (!why_not.empty()) {
        print("# no GPU: %s\n", why_not.c_str());
    }
    return xtx::make_host_machine();
}

/// How many ranks take their memory from the same place as this one. Collective.
std::size_t ranks_of_memory(const xtx::Machine& machine) {
    return machine.is_host() ? static_cast<std::size_t>(apps::place_on_node().ranks) : apps::ranks_of_device();
}

/// What the options ask for that no machine does; empty where there is nothing of that.
std::string refusal(const Options& options) {
    const xtx::Problem& problem = options.problem;
    // Each has an event, a time in each run, and its place in a list.
    constexpr long long most_blocks = 1'000'000;
    const long long blocks = xtx::rounded_up(problem.vectors, problem.block) / problem.block;
    if (blocks > most_blocks) {
        return std::to_string(problem.vectors) + " vectors in blocks of " + std::to_string(problem.block) + " are " +
               std::to_string(blocks) + " blocks, and " + std::to_string(most_blocks) +
               " are the most: use a larger --block";
    }
    if (options.bare_products != 0 && static_cast<Overlap>(options.overlap) == Overlap::on) {
        return "--bare-products compares with products that nothing overlaps: use --overlap off or both";
    }
    const bool checks_all = options.check == 0;
    return checks_all ? xtx::Check::refusal(problem, static_cast<xtx::Input>(options.input)) : "";
}

/// Blocks of the width that was asked for, or of one that suits the vectors; and vectors that fill them, where they are
/// to be full. In DFT-FE the additional ones are as good as the others: more states than were asked for.
void fit_blocks(Options& options) {
    xtx::Problem& problem = options.problem;
    options.vectors_wanted = problem.vectors;
    const bool chooses = problem.block == 0;
    if (chooses) {
        problem.block = xtx::chosen_block(problem.vectors);
    }
    if (chooses || options.fills_blocks != 0) {
        problem.vectors = xtx::rounded_up(problem.vectors, problem.block);
    }
}

/// Returns whether all results were right. Collective.
bool benchmark(const Options& options) {
    const int rank = apps::rank_of_world();
    const int ranks = apps::size_of_world();
    const auto input = static_cast<xtx::Input>(options.input);
    const bool checks_all = options.check == 0;
    apps::leave_if(program, refusal(options));
    const std::unique_ptr<xtx::Machine> machine =
        make_machine(static_cast<Where>(options.where), options.product_ranges != 0 || options.ranges != 0);
    std::string why_not;
    const std::unique_ptr<xtx::Reduction> reduction =
        xtx::make_reduction(static_cast<xtx::Way>(options.way), options.part, machine->communication_stream(), why_not);
    apps::leave_if(program, why_not.empty() ? "" : "--reduce " + std::string(ways[options.way]) + ": " + why_not);
    const xtx::Rows rows = xtx::rows_of(options.problem, rank, ranks);
    apps::leave_if(program, machine->refusal(options.problem, rows.count));

    const std::size_t sharers = ranks_of_memory(*machine);
    xtx::Pipeline pipeline(options.problem, rows, input, sharers, *machine, *reduction);
    apps::leave_if(program, pipeline.problem());
    xtx::Check check(options.problem, input, rank, ranks, checks_all);
    return Benchmark(options, *machine, *reduction, pipeline, check).run();
}

}  // namespace

int main(int argc, char** argv) {
    // On the CPU a thread multiplies, which calls no MPI.
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, apps::StreamCommunicator::thread_level(argc, argv, {"enqueue"}, MPI_THREAD_FUNNELED),
                    &provided);
    Options options;
    constexpr long long most = 1LL << 40;
    apps::parse(
        argc, argv, "xtx: the matrix X^T X of vectors that are spread over all ranks, in blocks of columns.",
        {{"dofs", "rows of X, over all ranks", &options.problem.dofs, 1, most},
         {"vectors", "columns of X", &options.problem.vectors, 1, most},
         {"block", "columns of a block; 0: chosen, and filled up, as DFT-FE does", &options.problem.block, 0, most},
         {"fill-blocks", "more vectors, until the last block is full", &options.fills_blocks, 0, 1, {}, true},
         {"reduce", "sum up by", &options.way, 0, 0, {std::begin(ways), std::end(ways)}},
         {"overlap", "products with reductions", &options.overlap, 0, 0, {"off", "on", "both"}},
         {"precision", "of products and sums", &options.precision, 0, 0, {"double", "mixed-communication", "mixed"}},
         {"complex", "X^T conj(X) of complex vectors", &options.is_complex, 0, 1, {}, true},
         {"input", "what X holds", &options.input, 0, 0, {"constant", "random"}},
         {"check", "elements that one run is checked in", &options.check, 0, 0, {"all", "samples"}},
         {"device", "that multiplies", &options.where, 0, 0, {"any", "gpu", "cpu"}},
         {"repeats", "timed runs", &options.repeats, 1, 1'000'000},
         {"warm-up", "runs before them", &options.warm_up, 0, 1'000'000},
         {"part", "numbers that one call of the MPI sums up, at most", &options.part, 1, INT_MAX},
         {"bare-products", "time each product outside of the pipeline too", &options.bare_products, 0, 1, {}, true},
         {"ranges", "print a table of wall-clock times, range by range", &options.ranges, 0, 1, {}, true},
         {"product-ranges", "a thread shows tools when the GPU multiplies", &options.product_ranges, 0, 1, {}, true}});
    options.problem.precision = static_cast<xtx::Precision>(options.precision);
    options.problem.is_complex = options.is_complex != 0;
    fit_blocks(options);
    const bool right = benchmark(options);
    if (options.ranges != 0) {
        apps::print_ranges(program);
    }
    MPI_Finalize();
    return right ? EXIT_SUCCESS : apps::exit_wrong_data;
}
