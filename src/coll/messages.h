// Messages that together make a collective. Each takes the direct paths that messages take.
//
// All members have to do the collective in this way, since the MPI's own messages and these do not meet. The messages
// have a communicator of their own, so that no receive of the program's sees them.
#pragma once

#include <optional>
#include <vector>

#include "call/call.h"
#include "call/requests.h"
#include "coll/own_communicator.h"
#include "p2p/operations.h"

namespace awaken::AWAKEN_ABI {

/// The other end of a message.
struct MessageEnd {
    int rank;  ///< MPI_PROC_NULL: the edge of a grid, where nothing is sent or written
    int tag;
};

/// Begins all receives first, then all sends.
class Messages final : public ProgressOp {
  public:
    enum class Errors : std::uint8_t { raised, returned };
    /// Takes at most so many receives and sends. `comm`: the communicator for the messages. `program`: the program's
    /// communicator, on which errors are raised or not, and which may be revoked.
    Messages(Call& call, MPI_Comm comm, MPI_Comm program, Errors errors, std::size_t receives, std::size_t sends);
    ~Messages() override;

    /// Both return the MPI's error code. On an error there is no such message. Messages that have begun end with the
    /// object.
    template <class Count>
    [[nodiscard]] int receive(const MessageEnd& from, void* buffer, Count count, MPI_Datatype type);
    template <class Count>
    [[nodiscard]] int send(const MessageEnd& to, const void* buffer, Count count, MPI_Datatype type);

    /// Goes on until all messages have come and gone. Returns the error code for the program.
    [[nodiscard]] int finish();

    /// The messages' native operations are the only ones.
    [[nodiscard]] bool advance(const MPI_Status* /*arrived*/, ipc::Patience patience) override;
    void conclude(MPI_Status& status, int& error) override;
    void leave() override;
    [[nodiscard]] bool flush_to_native() override;
    [[nodiscard]] bool may_have_arrived() const override { return true; }

  private:
    struct Incoming {
        explicit Incoming(Call& call) : recv_operation(call) {}
        RecvOperation recv_operation;
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Status status{};
        int error = MPI_SUCCESS;
        bool arrived = false, over = false;
    };
    struct Outgoing {
        explicit Outgoing(Call& call) : send_operation(call) {}
        SendOperation send_operation;
        MPI_Request request = MPI_REQUEST_NULL;
        bool over = false;
    };
    /// Whether `step` has come to its end. A failure is an end, too. The other messages go on then, since their peers
    /// may be using the program's buffers.
    template <class Step>
    [[nodiscard]] bool attempt(const Step& step);

    /// When the program's communicator is revoked, revokes the messages' communicator too, so that the MPI ends them.
    void follow_revocation();

    Call& _call;  ///< valid during the call that begins the messages
    const MPI_Comm _comm, _program;
    const Errors _errors;
    bool _revoked = false;
    std::optional<ReceiveReadiness::Unprepared> _unprepared;
    std::vector<Incoming> _incoming;
    std::vector<Outgoing> _outgoing;
    std::optional<Error> _failure;
    int _error = MPI_SUCCESS;
    bool _concluded = false;
};

template <class Count>
int Messages::receive(const MessageEnd& from, void* const buffer, const Count count, const MPI_Datatype type) {
    if (from.rank == MPI_PROC_NULL) {
        return MPI_SUCCESS;
    }
    const Native& native = layer().real;
    Incoming& in = _incoming.emplace_back(_call);
    const Posted posted = in.recv_operation.prepare(!_unprepared->allowed(), buffer, count, type, from.rank, _comm);
    const auto place = posted.as<Count>();
    int error = MPI_SUCCESS;
    if constexpr (sizeof(Count) > sizeof(int)) {
        error = native.Irecv_c(place.address, place.count, place.type, from.rank, from.tag, _comm, &in.request);
    } else {
        error = native.Irecv(place.address, place.count, place.type, from.rank, from.tag, _comm, &in.request);
    }
    if (error != MPI_SUCCESS) {
        _incoming.pop_back();
    }
    return error;
}

template <class Count>
int Messages::send(const MessageEnd& to, const void* const buffer, const Count count, const MPI_Datatype type) {
    if (to.rank == MPI_PROC_NULL) {
        return MPI_SUCCESS;
    }
    const Native& native = layer().real;
    Outgoing& out = _outgoing.emplace_back(_call);
    const Posted posted = out.send_operation.prepare(SendOperation::Mode::offered, buffer, count, type, to.rank, _comm);
    const auto place = posted.as<Count>();
    int error = MPI_SUCCESS;
    if constexpr (sizeof(Count) > sizeof(int)) {
        error = native.Isend_c(place.address, place.count, place.type, to.rank, to.tag, _comm, &out.request);
    } else {
        error = native.Isend(place.address, place.count, place.type, to.rank, to.tag, _comm, &out.request);
    }
    out.send_operation.posted(error);
    if (error != MPI_SUCCESS) {
        _outgoing.pop_back();
    }
    return error;
}

}  // namespace awaken::AWAKEN_ABI
