// SPDX-License-Identifier: Apache-2.0
#include "call/rank_trace.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <functional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "call/layer.h"
#include "trace/folder.h"

namespace awaken::AWAKEN_ABI {

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
/// How long ranks wait for each other at the begin. After that they assume that some ranks do not trace.
constexpr std::uint64_t kPatience_ns = 30 * kSecond;
/// At the end they wait without a limit, like MPI_Finalize.
constexpr std::uint64_t kForEver = ~std::uint64_t{0};
/// While a rank waits in here, no message of the program is under way to it, and each receive names its sender. So no
/// other part of the program needs to know the tag.
constexpr int kTraceTag = 32001;
/// One good round trip is enough, but the first ones between two processes are slow.
constexpr int kRoundTrips = 24;

std::int64_t as_number(const std::string_view text) noexcept {
    return text.empty() ? 0 : static_cast<std::int64_t>(std::hash<std::string_view>{}(text) | 1);
}

}  // namespace

// ---- requests -------------------------------------------------------------------------------------------------------

void TracedOperations::began(const MPI_Request request, const trace::Event& event) {
    trace::Sink* const to = trace::sink();
    if (to == nullptr || request == MPI_REQUEST_NULL) {
        return;
    }
    trace::Event operation = event;
    operation.kind = trace::Kind::nonblocking;
    operation.end_ns = 0;
    if (trace::Event* const opened = to->open(operation)) {
        const std::scoped_lock lock(_mutex);
        _under_way[request].push_back(opened);
    }
}

void TracedOperations::described(const MPI_Request request, const trace::Event& event) {
    const std::scoped_lock lock(_mutex);
    _persistent.insert_or_assign(request, event);
}

void TracedOperations::started(const MPI_Request request, const std::uint64_t begin_ns) {
    trace::Event event;
    {
        const std::scoped_lock lock(_mutex);
        const auto known = _persistent.find(request);
        if (known == _persistent.end()) {
            return;
        }
        event = known->second;
    }
    event.begin_ns = begin_ns;
    began(request, event);
}

trace::Event* TracedOperations::oldest(const MPI_Request request) {
    const auto found = _under_way.find(request);
    return found == _under_way.end() ? nullptr : found->second.front();
}

void TracedOperations::learned(const MPI_Request request, const report::Path path, const std::uint64_t bytes) {
    const std::scoped_lock lock(_mutex);
    if (trace::Event* const event = oldest(request)) {
        std::atomic_ref(event->path).store(static_cast<std::uint8_t>(path), std::memory_order_relaxed);
        std::atomic_ref(event->bytes).store(bytes, std::memory_order_relaxed);
    }
}

void TracedOperations::ended(const MPI_Request request, const std::uint64_t end_ns) {
    const std::scoped_lock lock(_mutex);
    const auto found = _under_way.find(request);
    if (found == _under_way.end()) {
        return;
    }
    trace::Sink::close(found->second.front(), end_ns);
    found->second.pop_front();
    if (found->second.empty()) {
        _under_way.erase(found);
    }
}

void TracedOperations::freed(const MPI_Request request, const std::uint64_t end_ns) {
    ended(request, end_ns);
    const std::scoped_lock lock(_mutex);
    _persistent.erase(request);
}

// ---- the job --------------------------------------------------------------------------------------------------------

struct RankTrace::Go {
    std::int64_t number = 0;     ///< of the run's folder
    std::int64_t spawned = 0;    ///< see RankTrace::_spawned
    std::int64_t origin_ns = 0;  ///< of rank 0's clock
    std::int64_t clock = 0;      ///< names rank 0's clock; 0: unknown
};

/// Polls the request until it is complete or the deadline has passed, and yields the processor meanwhile. With more
/// ranks than cores, the other rank needs it. Returns true when the request is complete.
bool RankTrace::wait(MPI_Request& request, const Clock deadline) const {
    constexpr unsigned kEager = 200;
    constexpr useconds_t kNap_us = 50;
    for (unsigned turn = 0;; ++turn) {
        int done = 0;
        if (_owner.real.Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            return false;
        }
        if (done != 0) {
            return true;
        }
        if (trace::now_ns() > deadline) {
            return false;
        }
        if (turn < kEager) {
            sched_yield();
        } else {
            usleep(kNap_us);
        }
    }
}

bool RankTrace::all_are_here(const Clock deadline) const {
    MPI_Request request = MPI_REQUEST_NULL;
    return _owner.real.Ibarrier(MPI_COMM_WORLD, &request) == MPI_SUCCESS && wait(request, deadline);
}

/// Rank 0 answers one rank after the other, so that no answer waits for the question of another rank.
bool RankTrace::compare_clocks(const Clock deadline, const bool first) {
    if (_rank != 0) {
        return ask(deadline, first);
    }
    const Go go{_number, _spawned, _origin_ns, as_number(trace::clock_name())};
    for (int rank = 1; rank < _size; ++rank) {
        if (!answer(rank, deadline, go)) {
            return false;
        }
    }
    return true;
}

bool RankTrace::send(const int rank, const Words words, const Clock deadline) const {
    MPI_Request request = MPI_REQUEST_NULL;
    return _owner.real.Isend(words.data(), static_cast<int>(words.size()), MPI_INT64_T, rank, kTraceTag, MPI_COMM_WORLD,
                             &request) == MPI_SUCCESS &&
           wait(request, deadline);
}

bool RankTrace::receive(const int rank, const std::span<std::int64_t> words, const Clock deadline) const {
    MPI_Request request = MPI_REQUEST_NULL;
    return _owner.real.Irecv(words.data(), static_cast<int>(words.size()), MPI_INT64_T, rank, kTraceTag, MPI_COMM_WORLD,
                             &request) == MPI_SUCCESS &&
           wait(request, deadline);
}

bool RankTrace::answer(const int rank, const Clock deadline, const Go& go) {
    bool well = send(rank, std::array{go.number, go.spawned, go.origin_ns, go.clock}, deadline);
    std::array<std::int64_t, 1> heard{};
    for (int trip = 0; well && trip < kRoundTrips; ++trip) {
        well = receive(rank, heard, deadline);
        const std::array now{static_cast<std::int64_t>(trace::now_ns())};
        well = well && send(rank, now, deadline);
    }
    well = well && receive(rank, heard, deadline);
    _earliest_ns = well ? std::min(_earliest_ns, heard[0]) : _earliest_ns;
    return well;
}

bool RankTrace::ask(const Clock deadline, const bool first) {
    std::array<std::int64_t, 4> words{};
    bool well = receive(0, words, deadline);
    std::vector<trace::RoundTrip> trips;
    for (int trip = 0; well && trip < kRoundTrips; ++trip) {
        trace::RoundTrip times;
        std::array<std::int64_t, 1> answer{};
        times.asked_ns = trace::now_ns();
        well = send(0, std::array{static_cast<std::int64_t>(times.asked_ns)}, deadline) && receive(0, answer, deadline);
        times.heard_ns = trace::now_ns();
        times.answer_ns = static_cast<std::uint64_t>(answer[0]);
        trips.push_back(times);
    }
    if (!well) {
        return false;
    }
    const trace::Offset offset = trace::estimate_offset(trips);
    if (first) {
        const std::int64_t own_clock = as_number(trace::clock_name());
        _alignment.first = offset;
        _alignment.shared = own_clock != 0 && own_clock == words[3];
    } else {
        _alignment.last = offset;
    }
    _number = static_cast<int>(words[0]);
    _spawned = words[1];
    _origin_ns = words[2];
    return send(0, std::array{_alignment.aligned(trace::Session::current()->started_ns())}, deadline);
}

std::string RankTrace::folder() const {
    const std::string run = trace::numbered_folder(trace::Session::current()->folder(), _number);
    return _spawned == 0 ? run : run + "/spawned-" + std::to_string(_spawned);
}

trace::Rank RankTrace::who() const {
    trace::Rank rank;
    rank.rank = _rank;
    rank.ranks = _size;
    rank.mpi = _owner.binding.version;
    rank.alignment = _alignment;
    rank.origin_ns = _origin_ns;
    return rank;
}

void RankTrace::begin() {
    trace::Session* const session = trace::Session::current();
    if (session == nullptr || _begun) {
        return;
    }
    const Native& native = _owner.real;
    native.Comm_rank(MPI_COMM_WORLD, &_rank);
    native.Comm_size(MPI_COMM_WORLD, &_size);
    const Clock deadline = trace::now_ns() + kPatience_ns;
    // Ranks of this node that do not trace end by themselves (trace/announcement.h). Nothing tells those of others.
    if (_size > 1 && !all_are_here(deadline)) {
        loader::die("AWAKEN_TRACE is set for rank " + std::to_string(_rank) +
                    " of MPI_COMM_WORLD, but some other rank does not trace: set it for all ranks, or for none");
    }
    try {
        if (_rank == 0) {
            MPI_Comm parent = MPI_COMM_NULL;
            native.Comm_get_parent(&parent);
            if (parent != MPI_COMM_NULL) {
                _spawned = getpid();
            } else {
                _number = trace::take_folder(session->folder());
            }
            if (_number > 0) {
                std::string why = "already holds a trace, which is kept";
                std::string remedy;
                if (!trace::holds_trace(session->folder())) {
                    const std::string who = trace::claimed_by(session->folder());
                    why = "belongs to another run" + (who.empty() ? "" : " (" + who + ")") +
                          ", which seems to be still running";
                    remedy = "; if it was killed, remove " + trace::claim_file(session->folder());
                }
                fprintf(stderr, "awaken: %s %s: this one goes to %s%s\n", session->folder().c_str(), why.c_str(),
                        folder().c_str(), remedy.c_str());
            }
            _origin_ns = _earliest_ns = static_cast<std::int64_t>(session->started_ns());
            trace::make_folder(folder());
        }
        if (_size > 1 && !compare_clocks(deadline, true)) {
            loader::die(
                "the ranks of the job could not compare their clocks for the trace: some rank has ended, or does not "
                "trace. Set AWAKEN_TRACE for all ranks, or for none");
        }
        trace::make_folder(folder());
    } catch (const Error& error) {
        loader::die(error.what());
    }
    _begun = true;
    session->set_rank(who(), folder());
}

void RankTrace::end() {
    trace::Session* const session = trace::Session::current();
    if (session == nullptr) {
        return;
    }
    if (!_begun) {  // only sessions: nothing tells which ranks belong together
        static_cast<void>(session->write(true));
        return;
    }
    _begun = false;
    bool together = _size == 1 || all_are_here(kForEver);
    if (together && _size > 1) {
        // Keeps events before rank 0's begin from having a negative time.
        _origin_ns = _rank == 0 ? _earliest_ns : _origin_ns;
        together = compare_clocks(kForEver, false);
    }
    if (!together) {
        fprintf(stderr,
                "awaken: rank %d compared its clock at the start only, and the ranks' files are not joined: the MPI "
                "reports an error at MPI_Finalize; awaken trace %s joins them\n",
                _rank, folder().c_str());
    }
    session->set_rank(who(), folder());
    const bool written = !session->write(true).empty();
    if (together) {
        join_files(written);
    }
    if (_rank == 0 && _spawned == 0 && _number == 0) {
        trace::leave_folder(folder());
    }
}

void RankTrace::join_files(const bool written) const {
    int mine = written ? 1 : 0, all = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    if (_owner.real.Ireduce(&mine, &all, 1, MPI_INT, MPI_MIN, 0, MPI_COMM_WORLD, &request) != MPI_SUCCESS ||
        !wait(request, kForEver) || _rank != 0) {
        return;
    }
    const std::string where = folder();
    try {
        if (all == 0) {
            throw Error("some rank could not write its part of the trace", "see its message before this one");
        }
        const std::string file = trace::write_file(
            where + "/trace.json", [&](std::FILE* const stream) { trace::merge(stream, where, _size); });
        fprintf(stderr, "awaken: the trace of %d ranks is %s; awaken trace %s sums it up\n", _size, file.c_str(),
                where.c_str());
    } catch (const Error& error) {
        fprintf(stderr, "awaken: the parts of the trace are not joined: %s\n", printable(error.what()).c_str());
    }
}

}  // namespace awaken::AWAKEN_ABI
