// SPDX-License-Identifier: Apache-2.0
// The part of the trace (src/trace) that uses the MPI: the rank, the clocks of the other ranks, and the operation
// behind each request.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "call/request_hash.h"
#include "mpi/native.h"
#include "report/report.h"
#include "trace/clocks.h"
#include "trace/session.h"

namespace awaken::AWAKEN_ABI {

class Layer;

/// The nonblocking operations under way, by the program's requests. Thread-safe.
///
/// MPIs use one shared request for operations that complete at once. Then several operations stand behind one handle,
/// and the oldest ends first.
class TracedOperations {
  public:
    /// The call that `event` describes has started an operation.
    void began(MPI_Request request, const trace::Event& event);
    /// A call has made a persistent operation; the operation begins when the program starts it.
    void described(MPI_Request request, const trace::Event& event);
    /// MPI_Start.
    void started(MPI_Request request, std::uint64_t begin_ns);
    /// Records the path and the bytes, which are known only when the operation completes.
    void learned(MPI_Request request, report::Path path, std::uint64_t bytes);
    void ended(MPI_Request request, std::uint64_t end_ns);
    /// MPI_Request_free: for the program, the operation is over.
    void freed(MPI_Request request, std::uint64_t end_ns);

  private:
    [[nodiscard]] trace::Event* oldest(MPI_Request request);

    std::mutex _mutex;
    std::unordered_map<MPI_Request, std::deque<trace::Event*>, RequestHash> _under_way;
    std::unordered_map<MPI_Request, trace::Event, RequestHash> _persistent;
};

/// Begins and ends the trace of a rank.
class RankTrace {
  public:
    explicit RankTrace(Layer& owner) : _owner(owner) {}

    /// Called after MPI_Init. All ranks of MPI_COMM_WORLD agree on the folder of the trace and compare clocks. Ends the
    /// process when some rank does not trace.
    void begin();
    /// Called before MPI_Finalize. Compares the clocks again and writes the file; rank 0 joins the files of all ranks.
    void end();

    TracedOperations operations;

  private:
    /// What rank 0 tells each rank.
    struct Go;
    using Clock = std::uint64_t;  ///< deadlines, in nanoseconds of CLOCK_MONOTONIC
    [[nodiscard]] bool wait(MPI_Request& request, Clock deadline) const;
    [[nodiscard]] bool all_are_here(Clock deadline) const;
    [[nodiscard]] bool compare_clocks(Clock deadline, bool first);
    using Words = std::span<const std::int64_t>;
    [[nodiscard]] bool send(int rank, Words words, Clock deadline) const;
    [[nodiscard]] bool receive(int rank, std::span<std::int64_t> words, Clock deadline) const;
    [[nodiscard]] bool answer(int rank, Clock deadline, const Go& go);
    [[nodiscard]] bool ask(Clock deadline, bool first);
    void join_files(bool written) const;
    [[nodiscard]] std::string folder() const;
    [[nodiscard]] trace::Rank who() const;

    Layer& _owner;
    int _rank = -1, _size = 0;
    bool _begun = false;
    trace::Alignment _alignment;
    std::int64_t _origin_ns = 0;    ///< of rank 0's clock
    std::int64_t _earliest_ns = 0;  ///< rank 0: when the first rank began, by rank 0's clock
    int _number = 0;                ///< number of the run's folder
    std::int64_t _spawned = 0;      ///< process number of rank 0, in a job that another job has spawned; else 0
};

}  // namespace awaken::AWAKEN_ABI
