// SPDX-License-Identifier: Apache-2.0
// The engine's view of one benchmark. The engine owns sizes, repetition, contenders, statistics and output; a benchmark
// owns its buffers and knows how to run, check and sum up one size.
//
// Compiled once per MPI ABI.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/options.h"
#include "engine/pattern.h"
#include "engine/printer.h"
#include "engine/result.h"
#include "gpu/gpu.h"
#include "mpi/communication.h"

namespace awaken::bench {

/// What all parts of a run share at this rank.
struct Environment {
    const Options& options;
    const TestInfo& test;
    MPI_Comm communicator;  ///< of all ranks that take part
    int rank;
    int ranks;
    gpu::Runtime& gpu;
    int device;                            ///< -1 without GPU
    int thread_level = MPI_THREAD_SINGLE;  ///< what the MPI was initialised with
};

/// Times taken at this rank, seconds. One entry per sample; which series a benchmark uses is its own affair, except
/// that `operation` is what statistics are made of: the time of one operation (message, call), a sample averaging over
/// `iterations_per_sample` of them where one alone is too short to time.
struct Samples {
    std::vector<double> operation;
    std::size_t iterations_per_sample = 1;
    std::size_t iterations = 0;
    double total = 0;  ///< of the timed region, as OMB times it
    // Nonblocking collectives: sums over iterations. `operation` is the communication alone.
    double overall = 0, compute = 0, initiate = 0, test = 0, wait = 0, pure = 0;
    std::vector<double> overlapped;  ///< beside the computation, as OMB's percentiles have it

    /// A sample that averages over so many operations.
    void add(const double seconds, const double operations) {
        operation.push_back(seconds / operations);
        total += seconds;
    }
};

class RawCopy;

class Benchmark {
  public:
    virtual ~Benchmark() = default;

    /// Fills what the header says of this benchmark beyond type and ranks: pairs, window, topology. Collective.
    virtual void describe(HeaderFacts&) {}

    /// The types that -T may choose from and the default come from options and test; this is one of them.
    virtual void set_type(ElementType type) = 0;

    /// False when this size has no row (smaller than one element). Collective over the communicator.
    [[nodiscard]] virtual bool resize(std::size_t size) = 0;

    /// All buffers that calls use at this rank at the present size.
    [[nodiscard]] virtual std::vector<const Buffer*> buffers() const = 0;

    /// Runs `iterations` through `with`, timing them into `samples`. Collective.
    virtual void run(Communication& with, Mode mode, std::size_t iterations, Samples& samples) = 0;

    /// Runs once with patterned data, outside any timing, by the functions that run() times, and compares everything
    /// that this rank may know: received data, send buffers unchanged, guards intact. `corrupt`: damages one received
    /// byte on one rank before comparing (--self-test). Collective.
    [[nodiscard]] virtual Mismatch check(Communication& with, Mode mode, std::uint64_t iteration, bool corrupt) = 0;

    /// As run(), by copies between the buffers alone: the hardware's limit for what the benchmark moves. Throws
    /// Unavailable, on all ranks alike, where there is no such limit to be had. Collective.
    virtual void run_raw(RawCopy&, std::size_t /* iterations */, Samples&) {
        throw Unavailable("a raw copy moves one message between two ranks, and this test is more than that",
                          "compare raw in latency, bw and bibw");
    }

    /// False at sizes below one block of a derived type (-D), where messages are empty and nothing can be damaged. The
    /// same at all ranks.
    [[nodiscard]] virtual bool moves_data() const { return true; }

    /// Gives back what the ranks hold together at the present size (windows). Collective; not called after an error
    /// that the other ranks do not share.
    virtual void close() {}

    /// Turns all ranks' samples into what is printed; the answer counts at rank 0. Collective. Fills average, minimum,
    /// maximum, bandwidth, message_rate, overlap and samples (maximum over ranks per sample, us).
    virtual void sum_up(const Samples& samples, Measurement& measurement) = 0;
};

/// The benchmark for environment.test; families by file: point_to_point.cpp, one_sided.cpp, collective.cpp,
/// first.cpp, halo.cpp.
[[nodiscard]] std::unique_ptr<Benchmark> make_point_to_point(const Environment& environment);
[[nodiscard]] std::unique_ptr<Benchmark> make_one_sided(const Environment& environment);
[[nodiscard]] std::unique_ptr<Benchmark> make_collective(const Environment& environment);
[[nodiscard]] std::unique_ptr<Benchmark> make_first(const Environment& environment);
[[nodiscard]] std::unique_ptr<Benchmark> make_halo(const Environment& environment);

/// The contenders.
[[nodiscard]] std::unique_ptr<Communication> make_native(const Environment& environment);
[[nodiscard]] std::unique_ptr<Communication> make_awaken(const Environment& environment);
[[nodiscard]] std::unique_ptr<Communication> make_staged(const Environment& environment);
/// `is_replayed`: in a graph, which the benchmark launches.
[[nodiscard]] std::unique_ptr<Communication> make_enqueue(const Environment& environment, bool is_replayed);
[[nodiscard]] std::unique_ptr<Communication> make_xccl(const Environment& environment, bool is_replayed);

/// The hardware's own limit for a message: a copy between a buffer of this rank and one of another, with no protocol.
class RawCopy {
  public:
    virtual ~RawCopy() = default;
    /// Collective. Each rank lets the others reach the buffer that it offers, and will copy between theirs and its own.
    /// Throws Unavailable, on all ranks alike, when a peer's buffer cannot be reached.
    virtual void prepare(MPI_Comm communicator, const Buffer& offered, const Buffer& own) = 0;
    /// Copies `bytes` from what the peer offers `count` times, queued back to back, and waits.
    virtual void pull(int peer, std::size_t bytes, std::size_t count) = 0;
    /// As pull(), into what the peer offers.
    virtual void push(int peer, std::size_t bytes, std::size_t count) = 0;
    /// Lets go of the peers' buffers. All ranks should do so before any of them frees its own.
    virtual void release() noexcept {}
    [[nodiscard]] virtual std::string description() const = 0;
};
[[nodiscard]] std::unique_ptr<RawCopy> make_raw(const Environment& environment);

}  // namespace awaken::bench
