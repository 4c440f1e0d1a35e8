// SPDX-License-Identifier: Apache-2.0
// The list of all benchmarks: what each is called, how it is measured, and what its output looks like. It knows
// nothing of MPI: help, parsing, printing and tests read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace awaken::bench {

/// How a benchmark is measured, and with that which engine loop runs it and which columns it prints.
enum class Family : std::uint8_t {
    latency,                  ///< half a round trip between two ranks
    bandwidth,                ///< a window of messages one way, one answer
    bidirectional_bandwidth,  ///< windows both ways at once
    multiple_bandwidth,       ///< mbw_mr: pairs, MB/s and messages/s
    multiple_latency,         ///< multi_lat: pairs
    threaded_latency,         ///< latency_mt
    process_latency,          ///< latency_mp
    partitioned_latency,      ///< half a round trip of messages whose parts are made ready one by one
    congestion,               ///< bw_fan_in, bw_fan_out
    one_sided_latency,        ///< an operation on the other rank's window, and its synchronisation
    one_sided_bandwidth,      ///< a window of operations and one synchronisation
    one_sided_bidirectional_bandwidth,
    collective,              ///< time of each call, averaged over ranks
    nonblocking_collective,  ///< with overlap
    persistent_collective,
    startup,  ///< init, hello
    halo,     ///< time of an iteration of kernels and messages around a ring
    first     ///< what processes that have not communicated yet do first
};

enum class Collective : std::uint8_t {
    none,
    allgather,
    allgatherv,
    allreduce,
    alltoall,
    alltoallv,
    alltoallw,
    barrier,
    bcast,
    gather,
    gatherv,
    reduce,
    reduce_scatter,
    reduce_scatter_block,
    scatter,
    scatterv,
    scan,
    exscan,
    ring_shift,  ///< no function of MPI: a message to the rank after, and one from the rank before
    neighbor_allgather,
    neighbor_allgatherv,
    neighbor_alltoall,
    neighbor_alltoallv,
    neighbor_alltoallw
};

/// What a one-sided test does to the other rank's window; named after MPI's functions.
enum class OneSided : std::uint8_t { none, put, get, accumulate, get_accumulate, compare_and_swap, fetch_and_op };

struct TestInfo {
    const char* name;   ///< "allreduce"; OMB's program is "osu_" + name
    const char* title;  ///< "Allreduce Latency Test", after "OSU MPI-CUDA "; of one-sided tests "MPI_Put Latency Test"
    Family family;
    Collective collective;  ///< none for point-to-point
    bool persistent;        ///< persistent requests
    bool reduction;         ///< default type MPI_INT
    bool rooted;            ///< takes -k
    bool sized;             ///< false for barrier: one row, no sizes
    bool neighborhood;      ///< takes -N
    int exact_ranks;        ///< 2 for latency, bw, bibw; 0 when any number >= minimum_ranks
    int minimum_ranks;
    const char* options;  ///< letters of the OMB options that this family takes
    const char* summary;  ///< what summary_of() says; null for collectives, whose name says it
    OneSided one_sided = OneSided::none;

    [[nodiscard]] bool is_collective() const noexcept { return collective != Collective::none; }
    [[nodiscard]] bool is_one_sided() const noexcept { return one_sided != OneSided::none; }
    /// Always one element: a single row, whose size is that of the type.
    [[nodiscard]] bool is_of_one_element() const noexcept {
        return one_sided == OneSided::compare_and_swap || one_sided == OneSided::fetch_and_op;
    }
};

[[nodiscard]] std::span<const TestInfo> catalogue() noexcept;

/// By "allreduce" or "osu_allreduce"; null when there is none.
[[nodiscard]] const TestInfo* find_test(std::string_view name) noexcept;

/// The existing name that `name` was probably meant to be; empty when none is near.
[[nodiscard]] std::string nearest_test(std::string_view name);

/// One line for --list: "time of MPI_Allreduce (sum)".
[[nodiscard]] std::string summary_of(const TestInfo& test);

struct Defaults {
    std::size_t minimum_size;
    std::size_t maximum_size;
    std::size_t iterations_small;  ///< up to and including 8192 bytes
    std::size_t iterations_large;
    std::size_t warmup_small;
    std::size_t warmup_large;
    int window_size;
};

[[nodiscard]] Defaults defaults_of(const TestInfo& test) noexcept;

/// Bus bandwidth over bytes/time for a collective of `ranks` ranks, as nccl-tests defines it, `bytes` being the size
/// column (per-rank send count x type size). 0 when there is no such figure (barrier).
[[nodiscard]] double bus_factor(Collective collective, int ranks) noexcept;

}  // namespace awaken::bench
