// SPDX-License-Identifier: Apache-2.0
// Messages that together make a collective. Each takes the direct paths that messages take.
//
// All members have to do the collective in this way, since the MPI's own messages and these do not meet. The messages
// have a communicator of their own, so that no receive of the program's sees them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "call/call.h"
#include "call/requests.h"
#include "coll/buffer_views.h"
#include "p2p/operations.h"

namespace awaken::AWAKEN_ABI {

/// The other end of a message.
struct MessageEnd {
    int rank;  ///< MPI_PROC_NULL: the edge of a grid, where nothing is sent or written
    int tag;
};

/// One message.
struct Leg {
    MessageEnd end;
    BufferView data;
};

/// What one member sends and receives.
struct MessageList {
    std::vector<Leg> receives, sends;
};

/// Where a collective's messages go, and where its errors are raised.
struct MessageRoute {
    MPI_Comm messages;  ///< the communicator for the messages
    MPI_Comm program;   ///< the program's communicator, which may be revoked
};

/// Messages under way.
class Messages final : public ProgressOp {
  public:
    enum class Errors : std::uint8_t { raised, returned };
    Messages(Call& call, const MessageRoute& route, Errors errors);
    ~Messages() override;

    /// Begins all receives first, then all sends. To be called once. Returns the first error code of the MPI. Whatever
    /// fails, the other messages begin, since others wait for them; all end with the object.
    [[nodiscard]] int begin(const MessageList& list);
    /// Goes on until all messages have come and gone. Returns the error code for the program.
    [[nodiscard]] int finish();

    /// The messages' native operations are the only ones.
    [[nodiscard]] bool advance(const MPI_Status* /*arrived*/, transport::Patience patience) override;
    void conclude(MPI_Status& status, int& error) override;
    void leave() override;
    [[nodiscard]] bool needs_calls() const noexcept override;
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
    [[nodiscard]] int receive(const Leg& leg);
    [[nodiscard]] int send(const Leg& leg);
    /// Whether `step` has come to its end. A failure is an end, too. The other messages go on then, since their peers
    /// may be using the program's buffers.
    template <class Step>
    [[nodiscard]] bool attempt(const Step& step);

    /// When the program's communicator is revoked, revokes the messages' communicator too, so that the MPI ends them.
    void follow_revocation();

    Call& _call;  ///< valid during the call that begins the messages
    const MessageRoute _route;
    const Errors _errors;
    bool _revoked = false;
    std::optional<ReceiveReadiness::Unprepared> _unprepared;
    std::vector<Incoming> _incoming;
    std::vector<Outgoing> _outgoing;
    std::optional<Error> _failure;
    int _failure_class = MPI_ERR_OTHER;
    int _error = MPI_SUCCESS;
    bool _concluded = false;
};

/// The nonblocking form: begins the messages and makes a request that completes when all are over. Returns the error
/// code for the program.
[[nodiscard]] int start_messages(Call& call, const MessageRoute& route, const MessageList& list, MPI_Request* request);

/// The persistent form: makes a request of which each start begins the messages. Members may make the starts of two
/// requests in different orders, so the tags of the list are of no other request. Returns the error code for the
/// program.
[[nodiscard]] int make_persistent_messages(const MessageRoute& route, MessageList list, MPI_Request* request);

}  // namespace awaken::AWAKEN_ABI
