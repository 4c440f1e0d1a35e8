// SPDX-License-Identifier: Apache-2.0
// The sum of a large array of doubles over all GPUs, in place: MPI_Allreduce on device pointers beside ncclAllReduce.
//
// This is the reduction at the heart of electronic-structure codes, which add up a matrix that is spread over all
// ranks. Two ways to write it, each timed in two ways:
//   NCCL/RCCL      takes a stream and only queues its work, as kernels do;
//   standard MPI   knows no streams: a GPU-aware one takes the device pointer, and MPI_Allreduce returns when the sum
//                  is there. An MPI without GPU support crashes here; under `awaken exec` it runs;
//   waited         each call is complete before the next begins, which is what one reduction costs;
//   queued         the calls are started back to back and waited for together, which is what a pipeline of them costs.
//
// The first two lines of the result are those of the benchmark by which such codes have been judged, in its form:
// NCCL's calls queued, MPI's waited for, total seconds of all calls. What follows them, marked #, compares each library
// in both modes.
#include <cstdio>
#include <functional>
#include <vector>

#include "buffers.h"
#include "ccl.h"
#include "ranges.h"

namespace {

constexpr auto program = "allreduce";

struct Options {
    long long elements = 10'000'000;  ///< doubles in the array
    long long iterations = 50;        ///< timed calls
    long long warm_up = 5;            ///< calls before them
    long long buffers = 50;           ///< that the calls take in turn
};

/// One way to make the sum.
struct Way {
    std::string library;
    std::string mode;
    std::function<void(double* d_A)> call;
    std::function<void()> finish;  ///< completes what call() has left under way
};

struct Result {
    std::string library;
    std::string mode;
    double seconds = 0;  ///< of all timed calls
};

/// Runs `calls` calls. Returns their seconds, each set of buffers timed between two barriers, and adds to `wrong` the
/// first wrong element of any rank. A timeline shows each set as a range with the name of the phase. Collective.
double run(const char* phase, const Way& way, long long calls, allreduce::Buffers& buffers, std::string& wrong) {
    double seconds = 0;
    for (long long done = 0; done < calls && wrong.empty();) {
        const long long used = std::min(calls - done, buffers.count());
        buffers.reset(used);

        MPI_Barrier(MPI_COMM_WORLD);
        {
            const apps::Range range(phase);
            const double start_time = MPI_Wtime();
            for (long long b = 0; b < used; ++b) {
                way.call(buffers[b]);
            }
            way.finish();
            HIP_CHECK(hipDeviceSynchronize());
            MPI_Barrier(MPI_COMM_WORLD);
            seconds += MPI_Wtime() - start_time;
        }

        const apps::Range range("check");
        wrong = apps::first_problem(buffers.difference(used));
        done += used;
    }
    return seconds;
}

/// Warms up, measures, checks. Returns no seconds, and says it, where a sum was wrong. Collective.
bool measure(const Way& way, const Options& options, allreduce::Buffers& buffers, std::vector<Result>& results) {
    std::string wrong;
    // An MPI may have to register or map a buffer when it first sees it: each is used before the time counts.
    if (options.warm_up > 0) {
        run("warm-up", way, std::max(options.warm_up, buffers.count()), buffers, wrong);
    }
    const double seconds = run("sum", way, options.iterations, buffers, wrong);
    if (!wrong.empty()) {
        if (apps::rank_of_world() == 0) {
            std::fprintf(stderr, "wrong data: %s, %s: %s\n", way.library.c_str(), way.mode.c_str(), wrong.c_str());
        }
        return false;
    }
    results.push_back({way.library, way.mode, seconds});
    return true;
}

void print(const char* format, auto... values) {
    if (apps::rank_of_world() != 0) {
        return;
    }
    std::printf(format, values...);
    std::fflush(stdout);
}

/// The line that scripts read.
void print_seconds(const char* library, double seconds) {
    print("Time in seconds for GPU Direct MPI_Allreduce using %s: %.18e\n", library, seconds);
}

/// Time, algorithm bandwidth (bytes of the array / time) and bus bandwidth (2 (P - 1) / P times that: what each link
/// carries in an ideal ring, to be compared with the hardware whatever the number of ranks) of one call.
void print_table(const std::vector<Result>& results, const Options& options, std::size_t bytes) {
    const double P = apps::size_of_world();
    print("#\n# %-16s %-7s %14s %13s %13s\n", "library", "mode", "us/call", "algbw (GB/s)", "busbw (GB/s)");
    for (const Result& result : results) {
        const double seconds = result.seconds / static_cast<double>(options.iterations);
        const double algbw = static_cast<double>(bytes) / seconds / 1e9;
        print("# %-16s %-7s %14.2f %13.3f %13.3f\n", result.library.c_str(), result.mode.c_str(), seconds * 1e6, algbw,
              algbw * 2 * (P - 1) / P);
    }
}

/// How much longer MPI takes than NCCL or RCCL, mode by mode.
void print_ratios(const std::vector<Result>& results, const std::string& ccl_name) {
    for (const Result& ccl : results) {
        for (const Result& mpi : results) {
            if (ccl.library != ccl_name || mpi.library == ccl_name || ccl.mode != mpi.mode) {
                continue;
            }
            print("# %s / %s, %s: %.3f\n", mpi.library.c_str(), ccl.library.c_str(), ccl.mode.c_str(),
                  mpi.seconds / ccl.seconds);
        }
    }
}

/// Returns whether all sums were right. Collective.
bool benchmark(const Options& options) {
    apps::select_device(program);
    allreduce::Buffers buffers(program, options.elements, std::min(options.buffers, options.iterations));
    const apps::Ccl ccl;
    const int count = static_cast<int>(options.elements);

    const long long warm_up = options.warm_up > 0 ? std::max(options.warm_up, buffers.count()) : 0;
    print("# Sum of %d doubles (%zu bytes) over %d ranks, in place on the GPU\n", count, buffers.bytes(),
          apps::size_of_world());
    print("# %lld timed calls after %lld for warm-up, on %lld buffers in turn\n", options.iterations, warm_up,
          buffers.count());
    if (!ccl.problem().empty()) {
        print("# %s left out: %s\n", ccl.name().c_str(), ccl.problem().c_str());
    }

    hipStream_t stream = nullptr;
    HIP_CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    const auto queue_ccl = [&](double* d_A) { ccl.start_sum(d_A, buffers.bytes() / sizeof(double), stream); };
    const auto wait_for_ccl = [&] { ccl.wait(stream); };

    std::vector<MPI_Request> requests;
    const auto queue_mpi = [&](double* d_A) {
        MPI_Iallreduce(MPI_IN_PLACE, d_A, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &requests.emplace_back());
    };
    const auto wait_for_mpi = [&] {
        MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
        requests.clear();
    };

    const Way ccl_queued = {ccl.name(), "queued", queue_ccl, wait_for_ccl};
    const Way ccl_waited = {ccl.name(), "waited",
                            [&](double* d_A) {
                                queue_ccl(d_A);
                                wait_for_ccl();
                            },
                            [] {}};
    const Way mpi_waited = {
        "standard MPI", "waited",
        [&](double* d_A) { MPI_Allreduce(MPI_IN_PLACE, d_A, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); }, [] {}};
    const Way mpi_queued = {"standard MPI", "queued", queue_mpi, wait_for_mpi};

    // The two lines come as soon as each is known: an MPI without GPU support ends the job before the second.
    std::vector<Result> results;
    bool right = true;
    if (ccl.problem().empty()) {
        right = measure(ccl_queued, options, buffers, results);
        if (right) {
            print_seconds("NCCL/RCCL", results.back().seconds);
        }
    }
    if (right) {
        right = measure(mpi_waited, options, buffers, results);
        if (right) {
            print_seconds("standard MPI library", results.back().seconds);
        }
    }
    if (right && ccl.problem().empty()) {
        right = measure(ccl_waited, options, buffers, results);
    }
    if (right) {
        right = measure(mpi_queued, options, buffers, results);
    }
    if (right) {
        print_table(results, options, buffers.bytes());
        print_ratios(results, ccl.name());
        apps::print_ranges(program);
        print("# All sums are exact on all ranks.\n");
    }
    HIP_CHECK(hipStreamDestroy(stream));
    return right;
}

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    Options options;
    apps::parse(argc, argv, "allreduce: sum of device arrays over all ranks, by NCCL or RCCL and by MPI.",
                {{"elements", "doubles in the array", &options.elements, 1, INT_MAX},
                 {"iterations", "timed calls", &options.iterations, 1, 1'000'000'000},
                 {"warm-up", "calls before them, or one on each buffer", &options.warm_up, 0, 1'000'000'000},
                 {"buffers", "that the calls take in turn, at most", &options.buffers, 1, 1'000'000}});
    const bool right = benchmark(options);
    MPI_Finalize();
    return right ? EXIT_SUCCESS : apps::exit_wrong_data;
}
