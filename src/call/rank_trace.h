// What the trace (src/trace) needs of the MPI: the rank, the clocks of the others, and which requests stand for which
// operations.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "mpi/native.h"
#include "report/report.h"
#include "trace/clocks.h"
#include "trace/session.h"

namespace awaken::AWAKEN_ABI {

class Layer;

/// Nonblocking operations under way, by the program's requests. Thread-safe.
///
/// MPIs hand out one and the same request for operations that were complete at once: then there are several operations
/// behind a handle, of which the oldest ends first.
class TracedOperations {
  public:
    /// An operation has been started, by a call that `event` describes.
    void began(MPI_Request request, const trace::Event& event);
    /// A persistent operation was made; it begins when it is started.
    void described(MPI_Request request, const trace::Event& event);
    /// MPI_Start.
    void started(MPI_Request request, std::uint64_t begin_ns);
    /// How the bytes went is known when the operation completes.
    void learned(MPI_Request request, report::Path path, std::uint64_t bytes);
    void ended(MPI_Request request, std::uint64_t end_ns);
    /// MPI_Request_free: for the program the operation is over.
    void freed(MPI_Request request, std::uint64_t end_ns);

  private:
    struct Hash {
        std::size_t operator()(MPI_Request request) const noexcept;
    };
    [[nodiscard]] trace::Event* oldest(MPI_Request request);

    std::mutex _mutex;
    std::unordered_map<MPI_Request, std::deque<trace::Event*>, Hash> _under_way;
    std::unordered_map<MPI_Request, trace::Event, Hash> _persistent;
};

/// Begin and end of the trace of a rank.
class RankTrace {
  public:
    explicit RankTrace(Layer& owner) : _owner(owner) {}

    /// After MPI_Init: agrees with all ranks of MPI_COMM_WORLD where the trace goes, and compares clocks. Ends the
    /// process when some rank does not trace.
    void begin();
    /// Before MPI_Finalize: compares clocks again and writes the file; rank 0 joins the files of all.
    void end();

    TracedOperations operations;

  private:
    /// What rank 0 tells each rank.
    struct Go;
    using Clock = std::uint64_t;  ///< deadlines, in nanoseconds of CLOCK_MONOTONIC
    [[nodiscard]] bool wait(MPI_Request& request, Clock deadline) const;
    [[nodiscard]] bool all_are_here(Clock deadline) const;
    [[nodiscard]] bool compare_clocks(Clock deadline, bool first);
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
    std::int64_t _earliest_ns = 0;  ///< rank 0: when the first rank began, of its own clock
    int _number = 0;                ///< of the run's folder
    std::int64_t _spawned = 0;      ///< process number of rank 0 in a job that another one has spawned; 0 in any other
};

}  // namespace awaken::AWAKEN_ABI
