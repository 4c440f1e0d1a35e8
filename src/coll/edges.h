// The neighbourhood of a communicator with a topology, as messages: what a neighbourhood collective moves along an edge
// is a message like any other, which takes the direct paths that messages take.
//
// All members have to do so, since the MPI's own messages and these do not meet. They have a communicator of their own,
// so that no receive of the program's sees them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "call/call.h"
#include "call/requests.h"
#include "p2p/wire.h"

namespace awaken::AWAKEN_ABI {

/// Who exchanges with whom on a communicator.
class Edges {
  public:
    /// Whether each edge is known at both of its ends, without which the following would wait for ever. Collective over
    /// the communicator, and the same on all members; costs a message to each.
    [[nodiscard]] static bool are_consistent(const Native& native, MPI_Comm comm);

    /// Collective over the communicator. Not usable() when one of the members is not `willing`.
    Edges(const Native& native, MPI_Comm comm, bool willing);
    ~Edges();
    Edges(const Edges&) = delete;
    Edges& operator=(const Edges&) = delete;

    /// The same on all members.
    [[nodiscard]] bool usable() const noexcept { return _usable; }
    /// Where the messages travel.
    [[nodiscard]] MPI_Comm comm() const noexcept { return _comm; }

    struct Edge {
        int rank;  ///< MPI_PROC_NULL: the edge of a grid, where nothing is sent nor written
        int tag;
    };
    /// By place in the send buffer and in the receive buffer.
    [[nodiscard]] const std::vector<Edge>& destinations() const noexcept { return _destinations; }
    [[nodiscard]] const std::vector<Edge>& sources() const noexcept { return _sources; }

    /// Before MPI goes down: it frees what is left itself.
    void give_up() noexcept { _comm = MPI_COMM_NULL; }

  private:
    const Native& _native;
    MPI_Comm _comm = MPI_COMM_NULL;
    bool _usable = false;
    std::vector<Edge> _destinations, _sources;
};

/// How many neighbours a process has.
struct NeighbourCounts {
    int sources = 0;
    int destinations = 0;
};
[[nodiscard]] NeighbourCounts neighbours_of(const Native& native, MPI_Comm comm);

/// The messages of one neighbourhood collective. All receives are begun first, in the order of the places, then all
/// sends: several edges between two processes match in that order.
class EdgeMessages final : public Exchange {
  public:
    /// `program`: the communicator of the program's call.
    EdgeMessages(Call& call, const Edges& edges, MPI_Comm program);
    ~EdgeMessages() override;

    /// Both return what the MPI says. What was begun ends with the object, whatever follows.
    template <class Count>
    [[nodiscard]] int receive(const Edges::Edge& from, void* buffer, Count count, MPI_Datatype type);
    template <class Count>
    [[nodiscard]] int send(const Edges::Edge& to, const void* buffer, Count count, MPI_Datatype type);

    /// Goes on until everything has come and gone; returns what the program is to see.
    [[nodiscard]] int finish();

    [[nodiscard]] bool advance(const MPI_Status* arrived, bool asked) override {
        static_cast<void>(arrived);  // there is no native operation but those of the messages
        return advance(asked ? Shipment::Patience::long_ : Shipment::Patience::endless);
    }
    void settle(MPI_Status& status, int& error) override;
    void leave() override;
    [[nodiscard]] bool hand_over() override;
    [[nodiscard]] bool may_have_arrived() const override { return true; }

  private:
    struct Incoming {
        explicit Incoming(Call& call) : arrival(call) {}
        Arrival arrival;
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Status status{};
        int error = MPI_SUCCESS;
        bool arrived = false, over = false;
    };
    struct Outgoing {
        explicit Outgoing(Call& call) : departure(call) {}
        Departure departure;
        MPI_Request request = MPI_REQUEST_NULL;
        bool over = false;
    };
    [[nodiscard]] bool advance(Shipment::Patience patience);
    /// Whether `step` has come to its end, which a failure is: the other messages go on, since their peers may be at
    /// the program's buffers.
    template <class Step>
    [[nodiscard]] bool attempt(const Step& step);

    Call& _call;  ///< while the call is under way that begins the messages
    const MPI_Comm _comm, _program;
    std::optional<Neighbours::Unprepared> _unprepared;
    std::vector<Incoming> _incoming;
    std::vector<Outgoing> _outgoing;
    std::optional<Error> _failure;
    int _error = MPI_SUCCESS;
    bool _settled = false;
};

template <class Count>
int EdgeMessages::receive(const Edges::Edge& from, void* const buffer, const Count count, const MPI_Datatype type) {
    if (from.rank == MPI_PROC_NULL) {
        return MPI_SUCCESS;
    }
    const Native& native = layer().real;
    Incoming& in = _incoming.emplace_back(_call);
    const Posted posted = in.arrival.prepare(!_unprepared->allowed(), buffer, count, type, from.rank, _comm);
    const auto place = posted.as<Count>();
    if constexpr (sizeof(Count) > sizeof(int)) {
        return native.Irecv_c(place.address, place.count, place.type, from.rank, from.tag, _comm, &in.request);
    } else {
        return native.Irecv(place.address, place.count, place.type, from.rank, from.tag, _comm, &in.request);
    }
}

template <class Count>
int EdgeMessages::send(const Edges::Edge& to, const void* const buffer, const Count count, const MPI_Datatype type) {
    if (to.rank == MPI_PROC_NULL) {
        return MPI_SUCCESS;
    }
    const Native& native = layer().real;
    Outgoing& out = _outgoing.emplace_back(_call);
    const Posted posted = out.departure.prepare(Departure::Mode::offered, buffer, count, type, to.rank, _comm);
    const auto place = posted.as<Count>();
    int error = MPI_SUCCESS;
    if constexpr (sizeof(Count) > sizeof(int)) {
        error = native.Isend_c(place.address, place.count, place.type, to.rank, to.tag, _comm, &out.request);
    } else {
        error = native.Isend(place.address, place.count, place.type, to.rank, to.tag, _comm, &out.request);
    }
    out.departure.posted(error);
    return error;
}

}  // namespace awaken::AWAKEN_ABI
