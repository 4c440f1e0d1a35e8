// SPDX-License-Identifier: Apache-2.0
#include "engine/catalogue.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

#include "base/spelling.h"

namespace awaken::bench {
namespace {

// The OMB options of each family, by letter. OMB has one set per build (with and without a GPU); these are the unions,
// since which GPU there is shows only at run time here. `d` is ours where OMB has no accelerator (threads, processes,
// neighbourhoods), and so is `k` for the rooted tests to which OMB gives a fixed root.
constexpr const char* kLatency = "hvmixbcuGDPTIzd";
constexpr const char* kBandwidth = "hvmixtWbcuGDPTIzd";
constexpr const char* kPairs = "hvpWRximVbcuGDPTIzd";
constexpr const char* kConcurrent = "hvmixtcuGDPTIzd";
constexpr const char* kCongestion = "hvmixWpRVbcuGDPTIzd";
constexpr const char* kOneSidedLatency = "wshvmxicTGPIzd";
constexpr const char* kOneSidedBandwidth = "wshvmxiWcTGPIzd";

constexpr TestInfo between_ranks(const char* name, const char* title, Family family, const char* options,
                                 int exact_ranks, const char* summary, bool persistent = false) {
    return {name,  title,       family, Collective::none, persistent, false, false, true,
            false, exact_ranks, 2,      options,          summary};
}

/// What OMB has no program for, and therefore no script osu_NAME.
constexpr TestInfo of_ours(const char* name, const char* title, Family family, const char* options, const char* summary,
                           Collective collective = Collective::none) {
    return {name, title, family, collective, false, false, false, true, false, 0, 2, options, summary};
}

constexpr TestInfo through_a_window(const char* name, const char* title, Family family, OneSided operation,
                                    const char* summary, bool reduction = false) {
    return {name,    title,     family, Collective::none,
            false,   reduction, false,  true,
            false,   2,         2,      family == Family::one_sided_latency ? kOneSidedLatency : kOneSidedBandwidth,
            summary, operation};
}

// Its own namespace, for the short names of collectives in it.
namespace table {
using enum Collective;

constexpr TestInfo among_all(const char* name, const char* title, Family family, Collective collective) {
    const bool reduction = collective == allreduce || collective == reduce || collective == reduce_scatter ||
                           collective == reduce_scatter_block;
    const bool rooted = collective == bcast || collective == reduce || collective == gather || collective == gatherv ||
                        collective == scatter || collective == scatterv;
    const bool sized = collective != barrier;
    const bool neighborhood = collective >= neighbor_allgather;
    const bool nonblocking = family == Family::nonblocking_collective;
    const char* const options = neighborhood          ? nonblocking ? "hvfmixMtacuNGDPTIlzdr" : "hvfmixMacuNGDPTIlzdr"
                                : reduction && rooted ? nonblocking ? "hvfmixMtacuGPTIlzdrk" : "hvfmixMacuGPTIlzdrk"
                                : reduction || !sized ? nonblocking ? "hvfmixMtacuGPTIlzdr" : "hvfmixMacuGPTIlzdr"
                                : rooted              ? nonblocking ? "hvfmixMtacuGDPTIlzdrk" : "hvfmixMacuGDPTIlzdrk"
                                : nonblocking         ? "hvfmixMtacuGDPTIlzdr"
                                                      : "hvfmixMacuGDPTIlzdr";
    return {name,      title,   family, collective,   family == Family::persistent_collective,
            reduction, rooted,  sized,  neighborhood, 0,
            2,         options, nullptr};
}

constexpr Family kBlocking = Family::collective;
constexpr Family kNbc = Family::nonblocking_collective;
constexpr Family kPersistent = Family::persistent_collective;

// In the order of OMB's folders. The build reads the names here too (runner/osu_scripts.cmake).
constexpr std::array kCatalogue{
    between_ranks("latency", "Latency Test", Family::latency, kLatency, 2, "half a round trip between two ranks"),
    between_ranks("bw", "Bandwidth Test", Family::bandwidth, kBandwidth, 2, "bandwidth one way between two ranks"),
    between_ranks("bibw", "Bi-Directional Bandwidth Test", Family::bidirectional_bandwidth, kBandwidth, 2,
                  "bandwidth both ways at once between two ranks"),
    between_ranks("mbw_mr", "Multiple Bandwidth / Message Rate Test", Family::multiple_bandwidth, kPairs, 0,
                  "bandwidth and message rate of several pairs together"),
    between_ranks("multi_lat", "Multi Latency Test", Family::multiple_latency, kLatency, 0,
                  "half a round trip in several pairs at once"),
    between_ranks("latency_mt", "Multi-threaded Latency Test", Family::threaded_latency, kConcurrent, 2,
                  "half a round trip with several threads a rank"),
    between_ranks("latency_mp", "Multi-process Latency Test", Family::process_latency, kConcurrent, 2,
                  "half a round trip with forked processes beside the ranks"),
    between_ranks("latency_persistent", "Latency Persistent Test", Family::latency, kLatency, 2,
                  "latency with persistent requests", true),
    between_ranks("bw_persistent", "Bandwidth Persistent Test", Family::bandwidth, kBandwidth, 2,
                  "bw with persistent requests", true),
    between_ranks("bibw_persistent", "Bi-Directional Bandwidth Persistent Test", Family::bidirectional_bandwidth,
                  kBandwidth, 2, "bibw with persistent requests", true),
    between_ranks("partitioned_latency", "Partitioned Latency Test", Family::partitioned_latency, kLatency, 2,
                  "latency with partitioned messages, whose parts are made ready one by one"),
    between_ranks("bw_fan_in", "Bandwidth Test", Family::congestion, kCongestion, 0,
                  "bandwidth from many ranks to one"),
    between_ranks("bw_fan_out", "Bandwidth Test", Family::congestion, kCongestion, 0,
                  "bandwidth from one rank to many"),

    // Titles in OMB's own capitals.
    through_a_window("put_latency", "MPI_Put Latency Test", Family::one_sided_latency, OneSided::put,
                     "time of MPI_Put and its synchronisation"),
    through_a_window("put_bw", "MPI_Put Bandwidth Test", Family::one_sided_bandwidth, OneSided::put,
                     "bandwidth of MPI_Put, many to a synchronisation"),
    through_a_window("put_bibw", "MPI_Put Bi-directional Bandwidth Test", Family::one_sided_bidirectional_bandwidth,
                     OneSided::put, "bandwidth of MPI_Put both ways at once"),
    through_a_window("get_latency", "MPI_Get latency Test", Family::one_sided_latency, OneSided::get,
                     "time of MPI_Get and its synchronisation"),
    through_a_window("get_bw", "MPI_Get Bandwidth Test", Family::one_sided_bandwidth, OneSided::get,
                     "bandwidth of MPI_Get, many to a synchronisation"),
    through_a_window("acc_latency", "MPI_Accumulate latency Test", Family::one_sided_latency, OneSided::accumulate,
                     "time of MPI_Accumulate (sum) and its synchronisation", true),
    // OMB gives this one no types and no column of -c.
    through_a_window("get_acc_latency", "MPI_Get_accumulate latency Test", Family::one_sided_latency,
                     OneSided::get_accumulate, "time of MPI_Get_accumulate (sum) and its synchronisation"),
    through_a_window("fop_latency", "MPI_Fetch_and_op latency Test", Family::one_sided_latency, OneSided::fetch_and_op,
                     "time of MPI_Fetch_and_op (sum) and its synchronisation", true),
    through_a_window("cas_latency", "MPI_Compare_and_swap latency Test", Family::one_sided_latency,
                     OneSided::compare_and_swap, "time of MPI_Compare_and_swap and its synchronisation", true),

    among_all("allgather", "Allgather Latency Test", kBlocking, allgather),
    among_all("allgatherv", "Allgatherv Latency Test", kBlocking, allgatherv),
    among_all("allreduce", "Allreduce Latency Test", kBlocking, allreduce),
    among_all("alltoall", "All-to-All Personalized Exchange Latency Test", kBlocking, alltoall),
    among_all("alltoallv", "All-to-Allv Personalized Exchange Latency Test", kBlocking, alltoallv),
    among_all("alltoallw", "All-to-Allw Personalized Exchange Latency Test", kBlocking, alltoallw),
    among_all("barrier", "Barrier Latency Test", kBlocking, barrier),
    among_all("bcast", "Broadcast Latency Test", kBlocking, bcast),
    among_all("gather", "Gather Latency Test", kBlocking, gather),
    among_all("gatherv", "Gatherv Latency Test", kBlocking, gatherv),
    among_all("reduce", "Reduce Latency Test", kBlocking, reduce),
    among_all("reduce_scatter", "Reduce_scatter Latency Test", kBlocking, reduce_scatter),
    among_all("reduce_scatter_block", "Reduce_scatter_block Latency Test", kBlocking, reduce_scatter_block),
    among_all("scatter", "Scatter Latency Test", kBlocking, scatter),
    among_all("scatterv", "Scatterv Latency Test", kBlocking, scatterv),

    among_all("iallgather", "Non-blocking Allgather Latency Test", kNbc, allgather),
    among_all("iallgatherv", "Non-blocking Allgatherv Latency Test", kNbc, allgatherv),
    among_all("iallreduce", "Non-blocking Allreduce Latency Test", kNbc, allreduce),
    among_all("ialltoall", "Non-blocking All-to-All Latency Test", kNbc, alltoall),
    among_all("ialltoallv", "Non-blocking All-to-Allv Personalized Exchange Latency Test", kNbc, alltoallv),
    among_all("ialltoallw", "Non-blocking All-to-Allw Personalized Exchange Latency Test", kNbc, alltoallw),
    among_all("ibarrier", "Non-blocking Barrier Latency Test", kNbc, barrier),
    among_all("ibcast", "Non-Blocking Broadcast Latency Test", kNbc, bcast),
    among_all("igather", "Non-blocking Gather Latency Test", kNbc, gather),
    among_all("igatherv", "Non-blocking Gatherv Latency Test", kNbc, gatherv),
    among_all("ireduce", "Non-blocking Reduce Latency Test", kNbc, reduce),
    among_all("ireduce_scatter", "Non-blocking Reduce_scatter Latency Test", kNbc, reduce_scatter),
    among_all("ireduce_scatter_block", "Non-blocking Reduce_scatter_block Latency Test", kNbc, reduce_scatter_block),
    among_all("iscatter", "Non-blocking Scatter Latency Test", kNbc, scatter),
    among_all("iscatterv", "Non-blocking Scatterv Latency Test", kNbc, scatterv),

    among_all("allgather_persistent", "Allgather Persistent Latency Test", kPersistent, allgather),
    among_all("allgatherv_persistent", "Allgatherv Persistent Latency Test", kPersistent, allgatherv),
    among_all("allreduce_persistent", "Allreduce Persistent Latency Test", kPersistent, allreduce),
    among_all("alltoall_persistent", "All-to-All Personalized Exchange Persistent Latency Test", kPersistent, alltoall),
    among_all("alltoallv_persistent", "All-to-Allv Personalized Exchange Persistent Latency Test", kPersistent,
              alltoallv),
    among_all("alltoallw_persistent", "All-to-Allw Personalized Exchange Persistent Latency Test", kPersistent,
              alltoallw),
    among_all("barrier_persistent", "Barrier Persistent Latency Test", kPersistent, barrier),
    among_all("bcast_persistent", "Broadcast Persistent Latency Test", kPersistent, bcast),
    among_all("gather_persistent", "Gather Persistent Latency Test", kPersistent, gather),
    among_all("gatherv_persistent", "Gatherv Persistent Latency Test", kPersistent, gatherv),
    among_all("reduce_persistent", "Reduce Persistent Latency Test", kPersistent, reduce),
    among_all("reduce_scatter_persistent", "Reduce_scatter Persistent Latency Test", kPersistent, reduce_scatter),
    among_all("scatter_persistent", "Scatter Persistent Latency Test", kPersistent, scatter),
    among_all("scatterv_persistent", "Scatterv Persistent Latency Test", kPersistent, scatterv),

    among_all("neighbor_allgather", "Neighborhood Allgather Latency Test", kBlocking, neighbor_allgather),
    among_all("neighbor_allgatherv", "Neighborhood Allgatherv Latency Test", kBlocking, neighbor_allgatherv),
    among_all("neighbor_alltoall", "Neighborhood Alltoall Latency Test", kBlocking, neighbor_alltoall),
    among_all("neighbor_alltoallv", "Neighborhood All-to-Allv Latency Test", kBlocking, neighbor_alltoallv),
    // OMB's title of this one does not say that it is a neighbourhood's; output stays as readers know it.
    among_all("neighbor_alltoallw", "All-to-Allw Personalized Exchange Latency Test", kBlocking, neighbor_alltoallw),
    among_all("ineighbor_allgather", "Non-blocking Neighborhood Allgather Latency Test", kNbc, neighbor_allgather),
    among_all("ineighbor_allgatherv", "Non-blocking Neighborhood Allgatherv Latency Test", kNbc, neighbor_allgatherv),
    among_all("ineighbor_alltoall", "Non-blocking Neighborhood Alltoall Latency Test", kNbc, neighbor_alltoall),
    among_all("ineighbor_alltoallv", "Non-blocking Neighborhood Alltoallv Latency Test", kNbc, neighbor_alltoallv),
    among_all("ineighbor_alltoallw", "Non-blocking Neighborhood Alltoallw Latency Test", kNbc, neighbor_alltoallw),

    TestInfo{"init", "Init Test", Family::startup, Collective::none, false, false, false, false, false, 0, 1, "hvI",
             "time of MPI_Init"},
    TestInfo{"hello", "Hello World Test", Family::startup, Collective::none, false, false, false, false, false, 0, 1,
             "hv", "starts, says how many ranks there are, and ends"},

    of_ours("halo", "Halo Exchange Test", Family::halo, "hvmixcudI",
            "kernels in the default stream and messages of what they write, both ways around a ring"),
    of_ours("isendrecv", "Non-blocking Sendrecv Latency Test", kNbc, "hvfmixMtacuGDPTIzdr",
            "MPI_Isend and MPI_Irecv along a ring: time, and overlap with computation", ring_shift),
    of_ours("first", "First Communication Test", Family::first, "hvmidI",
            "what processes do first: a message, an exchange, MPI_Allreduce; each time of a launch of its own"),
};

}  // namespace table

using table::kCatalogue;

constexpr std::string_view kPrefix = "osu_";

std::string_view without_prefix(std::string_view name) noexcept {
    return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

}  // namespace

std::span<const TestInfo> catalogue() noexcept {
    return kCatalogue;
}

const TestInfo* find_test(std::string_view name) noexcept {
    const std::string_view wanted = without_prefix(name);
    const auto found =
        std::find_if(kCatalogue.begin(), kCatalogue.end(), [&](const TestInfo& test) { return wanted == test.name; });
    return found == kCatalogue.end() ? nullptr : &*found;
}

std::string nearest_test(std::string_view name) {
    const std::string_view wanted = without_prefix(name);
    // More than a third of a word wrong is another word.
    std::size_t distance = std::max<std::size_t>(wanted.size() / 3, 1) + 1;
    std::string nearest;
    for (const TestInfo& test : kCatalogue) {
        const std::size_t candidate = edit_distance(wanted, test.name);
        if (candidate < distance) {
            distance = candidate;
            nearest = test.name;
        }
    }
    return nearest;
}

std::string summary_of(const TestInfo& test) {
    if (test.summary != nullptr) {
        return test.summary;
    }
    constexpr std::string_view kEnd = "_persistent";
    std::string function = std::string("MPI_") + test.name;
    function[4] = static_cast<char>(std::toupper(function[4]));
    if (test.persistent) {
        function.replace(function.size() - kEnd.size(), kEnd.size(), "_init");
    }
    function += test.reduction ? " (sum)" : "";
    return test.persistent                                 ? "time of a started " + function
           : test.family == Family::nonblocking_collective ? function + ": time, and overlap with computation"
                                                           : "time of " + function;
}

Defaults defaults_of(const TestInfo& test) noexcept {
    constexpr std::size_t kMiB = std::size_t{1} << 20;
    constexpr int kWindow = 64;
    switch (test.family) {
        case Family::latency:
        case Family::multiple_latency:
        case Family::threaded_latency:
        case Family::process_latency:
        case Family::partitioned_latency:
        case Family::one_sided_latency:
            return {1, 4 * kMiB, 10000, 1000, 100, 10, 1};
        case Family::bandwidth:
        case Family::bidirectional_bandwidth:
        case Family::multiple_bandwidth:
        case Family::congestion:
        case Family::one_sided_bandwidth:
        case Family::one_sided_bidirectional_bandwidth:
            return {1, 4 * kMiB, 100, 20, 10, 2, kWindow};
        case Family::collective:
        case Family::nonblocking_collective:
        case Family::persistent_collective:
        case Family::halo:
            if (!test.sized) {
                return {0, 0, 1000, 1000, 100, 100, 1};
            }
            return {1, kMiB, 1000, 100, 100, 10, 1};
        case Family::first:
            return {160 * std::size_t{1024}, 800 * kMiB, 5, 5, 0, 0, 1};
        case Family::startup:
            break;
    }
    return {0, 0, 1, 1, 0, 0, 1};
}

double bus_factor(Collective collective, int ranks) noexcept {
    if (ranks < 1) {
        return 0;
    }
    const double others = ranks - 1;
    switch (collective) {
        case Collective::allreduce:
            return 2 * others / ranks;
        // Here the size column is the whole send buffer, of which the own part stays.
        case Collective::reduce_scatter:
        case Collective::reduce_scatter_block:
            return others / ranks;
        // nccl-tests counts all ranks' parts as the size and takes (n-1)/n of it; the size column is one rank's part.
        case Collective::allgather:
        case Collective::allgatherv:
        case Collective::alltoall:
        case Collective::alltoallv:
        case Collective::alltoallw:
        case Collective::gather:
        case Collective::gatherv:
        case Collective::scatter:
        case Collective::scatterv:
            return others;
        case Collective::bcast:
        case Collective::reduce:
        case Collective::ring_shift:
            return 1;
        // A barrier moves no data; nccl-tests defines no bus bandwidth for prefix sums and neighbourhoods.
        case Collective::none:
        case Collective::barrier:
        case Collective::scan:
        case Collective::exscan:
        case Collective::neighbor_allgather:
        case Collective::neighbor_allgatherv:
        case Collective::neighbor_alltoall:
        case Collective::neighbor_alltoallv:
        case Collective::neighbor_alltoallw:
            break;
    }
    return 0;
}

}  // namespace awaken::bench
