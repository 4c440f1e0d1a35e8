// SPDX-License-Identifier: Apache-2.0
// The two halves of a message, as the MPI sees them.
//
// A SendOperation decides what the MPI sends for a buffer: the buffer itself, a staging buffer in host memory, or an
// RTS after which the receiver fetches the bytes. A RecvOperation decides what the native receive gets, finds out what
// has arrived, and fetches it. Blocking, nonblocking, persistent and combined functions all consist of these two.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/recycled.h"
#include "call/call.h"
#include "call/node_peers.h"
#include "call/requests.h"
#include "call/stage.h"
#include "mpi/bytes_type.h"
#include "transfer/bounce_buffer.h"
#include "transport/transport.h"

namespace awaken::AWAKEN_ABI {

/// What the native function gets.
struct Posted {
    void* address;
    std::int64_t count;
    MPI_Datatype type;

    template <class Count>
    [[nodiscard]] Argument<Count> as() const noexcept {
        return {address, static_cast<Count>(count), type};
    }
};

/// Starts the native operation of a message, by layer().below where it stands for one of the program's, so that tools
/// see it, and else by layer().real. MPI_ERR_COUNT when the count is too large for the MPI's functions.
[[nodiscard]] int start_send(const Native& functions, const Posted& posted, int destination, int tag, MPI_Comm comm,
                             MPI_Request* request);
[[nodiscard]] int start_receive(const Native& functions, const Posted& posted, int source, int tag, MPI_Comm comm,
                                MPI_Request* request);

class SendOperation {
  public:
    explicit SendOperation(Call& call) : _call(&call), _stage(call) {}
    SendOperation(SendOperation&&) = default;
    SendOperation& operator=(SendOperation&&) = default;
    ~SendOperation() { end(); }

    using Mode = protocol::SendFacts::Mode;
    /// Looks at the buffer and decides what to send. `destination` is a rank in `communicator`, and may be
    /// MPI_PROC_NULL. When the GPU refuses to give the data, the receiver waits all the same: what is to be sent then
    /// tells it of the failure, as far as possible, and advance() throws the error.
    [[nodiscard]] Posted prepare(Mode mode, const void* buffer, std::int64_t count, MPI_Datatype type, int destination,
                                 MPI_Comm communicator);
    /// The native function has returned. advance() reports failures, since the message is already on its way. `waits`:
    /// the program's call lasts until the buffer is free.
    void posted(int error, bool waits = true);
    /// True when the operation must keep something until it completes.
    [[nodiscard]] bool active() const noexcept { return progressing() || _stage.active() || !_copy.empty(); }
    [[nodiscard]] bool progressing() const noexcept { return sends_rts() || _stage.failure(); }
    [[nodiscard]] bool sends_rts() const noexcept { return _message != nullptr; }
    /// The native send has a request of its own. advance() completes it.
    void carry(const MPI_Request request) noexcept { _native_request = request; }
    /// Returns true when the other process no longer needs the buffer.
    [[nodiscard]] bool advance(transport::Patience patience);
    /// See OutgoingMessage::needs_calls().
    [[nodiscard]] bool needs_calls() const noexcept { return _message != nullptr && _message->needs_calls(); }
    /// Waits until that is false. advance() reports failures.
    void hand_over();
    /// Waits until advance() returns true, and keeps other operations going.
    void finish();
    void leave();
    /// The operation is complete.
    void end();
    [[nodiscard]] Stage take_stage() { return std::move(_stage); }

  private:
    /// What is sent, and what is known of it.
    struct Message {
        const void* buffer;
        std::int64_t count;
        MPI_Datatype type;
        int destination;
        MPI_Comm communicator;
        protocol::SendFacts facts{};
        Stage::Located located{};
        std::shared_ptr<const transfer::TypedMemory> typed{};
        NodePeers::Peer peer{};

        [[nodiscard]] Posted unchanged() const noexcept { return {const_cast<void*>(buffer), count, type}; }
        [[nodiscard]] std::int64_t bytes() const noexcept { return static_cast<std::int64_t>(facts.bytes); }
    };
    void look_at(Message& message);
    void find_receiver(Message& message);
    /// Takes this path through the MPI. Empty when that is not possible now.
    [[nodiscard]] std::optional<Posted> take(protocol::SendPath path, Message& message);
    [[nodiscard]] bool offer(const Message& message, const protocol::SendPaths& paths);
    [[nodiscard]] std::optional<Posted> wrap(Message& message);
    [[nodiscard]] Posted stage(Message& message);
    [[nodiscard]] Posted rts() const noexcept;
    /// Takes back the message whose RTS was not sent.
    void withdraw();

    Call* _call;
    Stage _stage;
    std::vector<std::byte> _copy;  ///< a copy of a host buffer
    MPI_Request _native_request = MPI_REQUEST_NULL;
    bool _posted = false;                                  ///< the native function has been called with the RTS
    std::shared_ptr<transport::OutgoingMessage> _message;  ///< null: the MPI carries the bytes
};

class RecvOperation {
  public:
    explicit RecvOperation(Call& call) : _call(&call), _stage(call) {}
    RecvOperation(RecvOperation&&) = default;
    RecvOperation& operator=(RecvOperation&&) = default;
    ~RecvOperation() = default;

    /// Looks at the buffer and decides what the MPI receives into. `rts`: an RTS may arrive
    /// (ReceiveReadiness::takes_rts()). `source` is a rank in `communicator`, or MPI_ANY_SOURCE if it is unknown.
    [[nodiscard]] Posted prepare(bool rts, void* buffer, std::int64_t count, MPI_Datatype type, int source,
                                 MPI_Comm communicator);
    /// True when the native receive differs from the program's.
    [[nodiscard]] bool active() const noexcept { return _receiving != Receiving::native; }
    /// True when the receive may need more than a copy out of a staging buffer.
    [[nodiscard]] bool progressing() const noexcept {
        return _receiving != Receiving::native && _receiving != Receiving::staged;
    }

    /// False while no RTS is in the memory where the MPI would write one: nothing has arrived, or a message of another
    /// kind.
    [[nodiscard]] bool sees_rts() const noexcept;
    /// The native receive is complete with this status. If an RTS arrived, this starts to fetch the message. `others`:
    /// the program may fetch several messages at the same time.
    void arrived(const MPI_Status& status, bool others = false);
    /// Called after arrived(). Returns true when nothing remains to be fetched or copied. Throws Error.
    [[nodiscard]] bool advance() {
        return (_message == nullptr || _message->advance()) &&
               (_early == 0 || (!std::exchange(_held, false) && _delivery.poll()));
    }
    void leave();
    /// Delivers the message and sets the status and the error that the program sees. `error` is the native outcome.
    /// Raises errors of the layer on the communicator.
    void conclude(MPI_Status& status, int& error);
    [[nodiscard]] Stage take_stage() { return std::move(_stage); }

  private:
    enum class Receiving : std::uint8_t {
        native,        ///< the program's own buffer and type: no RTS can arrive
        staged,        ///< a staging buffer with an equivalent type: no RTS can arrive
        in_place,      ///< the program's buffer as bytes; its first bytes are saved, since an RTS may overwrite them
        small,         ///< a buffer too small for an RTS: receives into `_head`
        bounce_buffer  ///< packed bytes in memory of the layer
    };
    void deliver(std::int64_t bytes);
    /// Starts to deliver `bytes` bytes of a plain message together with those of other messages.
    void deliver_together(std::int64_t bytes);
    /// Delivers what came, and returns what the program sees of it.
    void conclude_fetched();
    void conclude_plain(const MPI_Status& status, int error, int error_class);
    [[nodiscard]] bool fetching() const noexcept { return _message != nullptr; }
    /// Where the MPI has put what came.
    [[nodiscard]] std::byte* received() const noexcept;
    /// The MPI says that so many bytes came. Calls after the first do nothing.
    void put_right(std::int64_t bytes) noexcept;
    /// Copies the `length` bytes of the RTS that has arrived. A function of its own, so that tests/tsan.supp can name
    /// it.
    [[nodiscard]] std::array<std::byte, transport::kLongestRts> received_rts(std::size_t length) const noexcept;
    [[nodiscard]] Posted as_bytes(void* address, std::int64_t bytes);
    [[nodiscard]] int raise(int error_class, const Error& error) const;
    [[nodiscard]] int truncated() const;

    Call* _call;
    Stage _stage;
    Receiving _receiving = Receiving::native;
    MPI_Comm _communicator = MPI_COMM_SELF;
    std::byte* _user = nullptr;   ///< the address that the program gave
    std::byte* _first = nullptr;  ///< first byte of a buffer that is one run of bytes; otherwise null
    NodePeers::Peer _sender;      ///< of a message to device memory, where there is one that is known
    std::int64_t _count = 0;
    std::int64_t _capacity = 0;  ///< bytes of data that fit in
    Stage::Located _located;
    /// On the heap: the MPI writes to it while the object is moved.
    std::unique_ptr<std::array<std::byte, transport::kLongestRts>> _head;
    transfer::BounceBuffer _bounce_buffer;
    transfer::StagingBlock _block;
    std::byte* _landed = nullptr;
    std::int64_t _early = 0;                 ///< bytes that `_delivery` copies from the bounce buffer or staging block
    bool _held = false;                      ///< a poll of `_delivery` now would start its copy alone
    transfer::DeviceCopies::Copy _delivery;  ///< runs before conclude(); ends before `_block` does
    std::shared_ptr<const BytesType> _bytes_type;
    std::shared_ptr<transport::IncomingMessage> _message;  ///< null: the bytes came plain, or did not come yet
    bool _in_place = false;                                ///< the fetched bytes go to the program's own buffer
    bool _restored = false;
    bool _concluded = false;
    std::int64_t _delivered = 0;
    int _error = MPI_SUCCESS;
};

/// The halves of an operation as a progress operation of Requests. They are made where they stay: moving one takes as
/// long as sending an RTS.
class MessageOp final : public ProgressOp, public Recycled<MessageOp> {
  public:
    explicit MessageOp(MPI_Comm communicator) : _communicator(communicator) {}
    /// `from`: the call, or an operation that was made elsewhere.
    template <class From>
    SendOperation& make_send(From&& from) {
        return _send.emplace(std::forward<From>(from));
    }
    RecvOperation& make_recv(Call& call) { return _recv.emplace(call); }
    [[nodiscard]] SendOperation& send() noexcept { return *_send; }
    [[nodiscard]] RecvOperation& recv() noexcept { return *_recv; }
    /// The operation also receives from MPI_PROC_NULL, and its status says so.
    void receive_from_nobody() noexcept {
        _recv.reset();
        _from_nobody = true;
    }

    /// True when an operation must keep something until it completes: see SendOperation::active().
    [[nodiscard]] bool sends() const noexcept { return _send && _send->active(); }
    [[nodiscard]] bool receives() const noexcept { return _recv && _recv->active(); }
    /// True when more than a copy out of a staging buffer remains to be done.
    [[nodiscard]] bool progressing() const noexcept {
        return (sends() && _send->progressing()) || (receives() && _recv->progressing());
    }
    /// The staging buffers of the half that has some, where nothing else remains to be done.
    [[nodiscard]] Stage take_stage() { return receives() ? _recv->take_stage() : _send->take_stage(); }

    [[nodiscard]] bool advance(const MPI_Status* arrived, transport::Patience patience) override;
    void conclude(MPI_Status& status, int& error) override;
    void leave() override;
    [[nodiscard]] bool needs_calls() const noexcept override { return _send && !_sent && _send->needs_calls(); }
    [[nodiscard]] bool may_have_arrived() const override { return !_recv || _recv->sees_rts(); }
    [[nodiscard]] bool shows_rts() const override { return _recv && _recv->progressing(); }

  private:
    /// Keeps the first of several failures.
    void fail(const Error& error);

    std::optional<SendOperation> _send;
    std::optional<RecvOperation> _recv;
    MPI_Comm _communicator;
    bool _from_nobody = false;
    std::optional<Error> _failure;
    bool _recv_seen = false, _recv_failed = false, _sent = false, _concluded = false;
    int _error = MPI_SUCCESS;
};

/// Corrects the size that a probe found when the message is an RTS. Returns false if another thread has taken the
/// message since, which never happens to a `matched` one. The caller then probes again: the program must not see the
/// size of an RTS, nor the size of the message that stands there now.
[[nodiscard]] bool correct_probed(MPI_Comm communicator, MPI_Status& status, bool matched);

}  // namespace awaken::AWAKEN_ABI
