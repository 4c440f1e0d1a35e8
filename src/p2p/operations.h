// The two halves of a message, as the MPI underneath sees them.
//
// A SendOperation decides what is sent for a buffer: the buffer itself, a staging buffer of it in host memory, or an
// RTS whose receiver fetches the bytes. A RecvOperation decides what a receive is posted with, finds out what came, and
// fetches it. Blocking and nonblocking functions, persistent and combined ones all consist of these.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/recycled.h"
#include "call/call.h"
#include "call/requests.h"
#include "call/stage.h"
#include "internode/network.h"
#include "ipc/link.h"
#include "transfer/bounce_buffer.h"

namespace awaken::AWAKEN_ABI {

using ipc::RendezvousSend;

/// What is handed to the native function.
struct Posted {
    void* address;
    std::int64_t count;
    MPI_Datatype type;

    template <class Count>
    [[nodiscard]] Argument<Count> as() const noexcept {
        return {address, static_cast<Count>(count), type};
    }
};

class SendOperation {
  public:
    explicit SendOperation(Call& call) : _call(&call), _stage(call) {}
    SendOperation(SendOperation&&) = default;
    SendOperation& operator=(SendOperation&&) = default;
    ~SendOperation() { end(); }

    enum class Mode : std::uint8_t {
        plain,    ///< the message has to leave as it is: a buffered send, or one whose peer is not known
        offered,  ///< its receiver may fetch it
        detached  ///< offered or sent from a copy, which is complete when prepare() returns: the buffer is overwritten
    };
    /// Looks at the buffer and says what to send. `destination` in `communicator`, which may be MPI_PROC_NULL.
    [[nodiscard]] Posted prepare(Mode mode, const void* buffer, std::int64_t count, MPI_Datatype type, int destination,
                                 MPI_Comm communicator);
    /// The native function has returned. What fails comes out of advance(): the message is on its way. `waits`: the
    /// program's call goes on until the buffer is free.
    void posted(int error, bool waits = true);
    /// True when there is something to keep until the operation completes.
    [[nodiscard]] bool active() const noexcept { return progressing() || _stage.active() || !_copy.empty(); }
    [[nodiscard]] bool progressing() const noexcept { return _rendezvous_send != nullptr || _remote != nullptr; }
    /// The native send has a request of its own, which advance() completes.
    void carry(const MPI_Request request) noexcept { _native_request = request; }
    /// True when the buffer is free as far as the other process goes.
    [[nodiscard]] bool advance(RendezvousSend::Patience patience);
    /// Of a message to another node: sends what can be sent. What fails comes out of advance().
    void send_fragments() noexcept;
    /// Waits for that, keeping other operations going.
    void finish();
    void leave();
    /// See ProgressOp::flush_to_native().
    [[nodiscard]] bool flush_to_native();
    /// The operation is complete.
    void end();
    [[nodiscard]] Stage take_stage() { return std::move(_stage); }

  private:
    [[nodiscard]] bool offer(Mode mode, const void* buffer, std::int64_t count, const Stage::Located& located,
                             int peer);
    [[nodiscard]] bool offer_remote(Mode mode, const void* buffer, std::int64_t count, const Stage::Located& located,
                                    int remote);
    /// To a process of this node, or else to one of another.
    [[nodiscard]] bool wrap(int peer, int remote, const void* packed, std::int64_t bytes);
    [[nodiscard]] Posted rts() const noexcept;

    Call* _call;
    Stage _stage;
    std::vector<std::byte> _copy;  ///< of a host buffer
    MPI_Request _native_request = MPI_REQUEST_NULL;
    bool _posted = false;  ///< the native function has been called, for what is on offer
    std::shared_ptr<RendezvousSend> _rendezvous_send;
    bool _left = false;                      ///< the background has it, too
    std::shared_ptr<PipelinedSend> _remote;  ///< instead of it, to another node
};

/// A datatype of so many bytes, where an int cannot count them.
class BytesType {
  public:
    explicit BytesType(std::int64_t bytes);
    ~BytesType();
    BytesType(const BytesType&) = delete;
    BytesType& operator=(const BytesType&) = delete;
    [[nodiscard]] MPI_Datatype get() const noexcept { return _type; }

  private:
    MPI_Datatype _type = MPI_DATATYPE_NULL;
};

class RecvOperation {
  public:
    explicit RecvOperation(Call& call) : _call(&call), _stage(call) {}
    RecvOperation(RecvOperation&&) = default;
    RecvOperation& operator=(RecvOperation&&) = default;
    ~RecvOperation() = default;

    /// Looks at the buffer and says what to receive into. `rts`: one may come (ReceiveReadiness::takes_rts()).
    /// `source` in `communicator`; MPI_ANY_SOURCE where it is not known.
    [[nodiscard]] Posted prepare(bool rts, void* buffer, std::int64_t count, MPI_Datatype type, int source,
                                 MPI_Comm communicator);
    /// True when the native receive is not the program's own one.
    [[nodiscard]] bool active() const noexcept { return _receiving != Receiving::native; }
    /// True when more may have to happen than copying out of a staging buffer.
    [[nodiscard]] bool progressing() const noexcept {
        return _receiving != Receiving::native && _receiving != Receiving::staged;
    }

    /// False while there is no RTS where one would land: nothing has come, or a message of another kind.
    [[nodiscard]] bool sees_rts() const noexcept;
    /// The native receive is complete with this status. Starts fetching when an RTS came. `others`: it is one of
    /// several, maybe, that are fetched at the same time.
    void arrived(const MPI_Status& status, bool others = false);
    /// True when nothing remains to be fetched or copied; after arrived(). Throws Error.
    [[nodiscard]] bool advance() {
        return (_rendezvous_get == nullptr || _rendezvous_get->advance()) &&
               (_remote == nullptr || _remote->advance()) &&
               (_early == 0 || (!std::exchange(_held, false) && _delivery.poll()));
    }
    void leave();
    /// Delivers what came and makes status and error what the program is to see. `error` is the native outcome; an
    /// error of ours is raised on the communicator.
    void conclude(MPI_Status& status, int& error);
    [[nodiscard]] Stage take_stage() { return std::move(_stage); }

  private:
    enum class Receiving : std::uint8_t {
        native,        ///< the program's own buffer and type: no RTS can come
        staged,        ///< a staging buffer with an equivalent type: no RTS can come
        in_place,      ///< the program's buffer as bytes; its head is saved, since an RTS may overwrite it
        small,         ///< too small for an RTS: `_head`
        bounce_buffer  ///< packed bytes in memory of ours
    };
    void deliver(std::int64_t bytes);
    /// Starts delivering `bytes` bytes of a plain message together with those of others.
    void deliver_together(std::int64_t bytes);
    static void tell_link(int peer, std::int64_t bytes, bool to_device);
    [[nodiscard]] bool fetching() const noexcept { return _rendezvous_get != nullptr || _remote != nullptr; }
    [[nodiscard]] const std::byte* received() const noexcept;
    /// A copy of the message that has come, `length` bytes of an RTS. By itself, so that tests/tsan.supp can name it.
    [[nodiscard]] std::array<std::byte, ipc::kLongestRts> received_rts(std::size_t length) const noexcept;
    [[nodiscard]] Posted as_bytes(void* address, std::int64_t bytes);
    [[nodiscard]] int raise(int error_class, const Error& error) const;
    [[nodiscard]] int truncated() const;

    Call* _call;
    Stage _stage;
    Receiving _receiving = Receiving::native;
    MPI_Comm _communicator = MPI_COMM_SELF;
    std::byte* _user = nullptr;   ///< as the program gave it
    std::byte* _first = nullptr;  ///< first byte of a buffer that is one run of bytes; null for any other
    int _near = -1;  ///< index in the node's segment of who is to send to device memory; -1: elsewhere, or anybody
    std::int64_t _count = 0;
    std::int64_t _capacity = 0;  ///< bytes of data that fit
    Stage::Located _located;
    /// Not a member of its own: the MPI writes there while the object is moved about.
    std::unique_ptr<std::array<std::byte, ipc::kLongestRts>> _head;
    transfer::BounceBuffer _bounce_buffer;
    transfer::StagingBlock _block;
    std::byte* _landed = nullptr;
    std::int64_t _early = 0;                 ///< bytes that `_delivery` copies from where they landed
    bool _held = false;                      ///< asking about it now would let it go alone
    transfer::DeviceCopies::Copy _delivery;  ///< before conclude(); ends before `_block` does
    std::shared_ptr<BytesType> _bytes_type;
    std::shared_ptr<ipc::RendezvousGet> _rendezvous_get;
    bool _left = false;                      ///< the background has it, too
    std::shared_ptr<PipelinedRecv> _remote;  ///< instead of it, from another node
    bool _in_place = false;                  ///< what is fetched goes to the program's own buffer
    bool _restored = false;
    bool _concluded = false;
    std::int64_t _delivered = 0;
    int _error = MPI_SUCCESS;
};

/// An operation's halves as a progress operation of Requests.
class MessageOp final : public ProgressOp, public Recycled<MessageOp> {
  public:
    /// `from_nobody`: the operation receives as well, from MPI_PROC_NULL, which is what its status tells.
    MessageOp(std::optional<SendOperation> send_operation, std::optional<RecvOperation> recv_operation,
              MPI_Comm communicator, bool from_nobody = false)
        : _send(std::move(send_operation)),
          _recv(std::move(recv_operation)),
          _communicator(communicator),
          _from_nobody(from_nobody) {}

    [[nodiscard]] bool advance(const MPI_Status* arrived, bool asked) override;
    void conclude(MPI_Status& status, int& error) override;
    void leave() override;
    [[nodiscard]] bool flush_to_native() override;
    [[nodiscard]] bool may_have_arrived() const override { return !_recv || _recv->sees_rts(); }
    [[nodiscard]] bool shows_rts() const override { return _recv && _recv->progressing(); }

  private:
    /// Of several failures the first is told.
    void fail(const Error& error);

    std::optional<SendOperation> _send;
    std::optional<RecvOperation> _recv;
    MPI_Comm _communicator;
    bool _from_nobody;
    std::optional<Error> _failure;
    bool _recv_seen = false, _recv_failed = false, _sent = false, _concluded = false;
    int _error = MPI_SUCCESS;
};

/// Corrects the size that a probe found, when what it found is an RTS. False if another thread has taken the message
/// since (never one that was `matched`): the program must not hear the size of an RTS, nor of what is in the
/// message's place, so probe again.
[[nodiscard]] bool correct_probed(MPI_Comm communicator, MPI_Status& status, bool matched);

}  // namespace awaken::AWAKEN_ABI
