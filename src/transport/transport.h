// SPDX-License-Identifier: Apache-2.0
// What a message is to the functions that send and receive it, whichever way it travels.
//
// Transport stands for the processes that one way reaches: ipc::Link for those of the node, Network for those of other
// nodes. OutgoingMessage and IncomingMessage are the two ends of one message. The caller carries the RTS that connects
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/error.h"
#include "gpu/gpu.h"
#include "protocol/send_path.h"
#include "report/report.h"
#include "transfer/flat_type.h"
#include "transport/found.h"
#include "transport/rts_length.h"
#include "transport/true_size.h"

namespace awaken::transport {

/// The program's memory at one end of a message.
struct Buffer {
    std::byte* first = nullptr;  ///< the lowest byte
    gpu::PointerInfo info;       ///< kind host for ordinary memory
    std::size_t bytes = 0;       ///< of data
    /// The bytes of a datatype with gaps, which Transport::can_move() has accepted; null for one run of bytes.
    std::shared_ptr<const transfer::TypedMemory> typed;
};

/// How long a sender waits for its receiver before it copies the message out.
enum class Patience : std::uint8_t {
    endless,  ///< no call waits
    short_,   ///< a blocking send
    long_     ///< the completion of a nonblocking one
};

/// While one lives, messages that the calling thread advances may say that they are over before they have given their
/// part to a GPU, so that several go together. Whoever makes it calls Transport::flush() at its end.
class Gathering {
  public:
    Gathering() noexcept { ++_depth; }
    ~Gathering() { --_depth; }
    Gathering(const Gathering&) = delete;
    Gathering& operator=(const Gathering&) = delete;
    [[nodiscard]] static bool is_on() noexcept { return _depth != 0; }

  private:
    static inline thread_local int _depth = 0;
};

/// Longer messages go to no place: see Transport::start_placed().
inline constexpr std::size_t kLongestPlace = std::size_t{1} << 20;

/// A message that this process sends. One thread at a time uses it.
class OutgoingMessage {
  public:
    virtual ~OutgoingMessage() = default;

    /// The RTS, which the caller sends in the message's place.
    [[nodiscard]] virtual const std::byte* rts() const noexcept = 0;
    [[nodiscard]] virtual std::size_t rts_length() const noexcept = 0;
    [[nodiscard]] virtual report::Path path() const noexcept = 0;
    /// Whether no CPU waits for a GPU: the message is a part of the program's default stream.
    [[nodiscard]] virtual bool is_in_order() const noexcept { return false; }

    /// Copies all of the message. The buffer is free when this returns. Call before the RTS is sent. Throws Error.
    virtual void copy_out() = 0;
    /// The RTS was sent. `waits`: the program's call lasts until the buffer is free. advance() reports failures.
    virtual void posted(bool waits) = 0;
    /// The RTS could not be sent: takes the message back.
    virtual void withdraw() noexcept = 0;
    /// True when the program may use the buffer again. Throws Error when a copy failed, or the receiver died while the
    /// message was under way.
    [[nodiscard]] virtual bool advance(Patience patience) = 0;
    /// True while only calls of this process bring the message on. The call that starts it lasts as long. That does not
    /// depend on the receiver.
    [[nodiscard]] virtual bool needs_calls() const noexcept { return false; }
    /// The call ends, and the message goes on. May be called again.
    virtual void leave() = 0;
    /// The operation is complete: the caller is about to give its pointer up.
    virtual void end() noexcept {}
    /// A stream has copied the message to its place: from now on the RTS stands for it. Again when is_fetched(). Never
    /// calls the GPU runtime.
    /// @param repeats  a graph does so: a graph of the receiver's may accept a channel for what follows
    virtual void offer_place(bool /*repeats*/) noexcept {}
    /// The same before the stream has copied the message. The step that copies it has to write the words.
    [[nodiscard]] virtual ReadyWords offer_early() noexcept { return {}; }
    /// Whether the stream has copied what was offered early.
    [[nodiscard]] virtual bool is_placed() noexcept { return true; }
    /// The channel, if the receiver has accepted one with what was offered last.
    [[nodiscard]] virtual std::optional<Channel> channel() noexcept { return std::nullopt; }
    [[nodiscard]] virtual ChannelState* channel_state() noexcept { return nullptr; }
    /// Nothing goes by the channel any more. `messages` have gone by it.
    virtual void close_channel(std::uint32_t /*messages*/) noexcept {}
    /// Whether its receiver has what was offered last, so that the place may be used again.
    [[nodiscard]] virtual bool is_fetched() { return true; }

  protected:
    OutgoingMessage() = default;
    OutgoingMessage(const OutgoingMessage&) = default;
    OutgoingMessage& operator=(const OutgoingMessage&) = default;
};

/// A message that this process receives.
class IncomingMessage {
  public:
    virtual ~IncomingMessage() = default;

    /// True when the message is here, or has failed.
    [[nodiscard]] virtual bool advance() noexcept = 0;
    /// Bytes of the message, which may be more than the buffer holds.
    [[nodiscard]] virtual std::size_t size() const noexcept = 0;
    /// Why it failed. Call only when it is over.
    [[nodiscard]] virtual const std::optional<Error>& error() const noexcept = 0;
    [[nodiscard]] virtual report::Path path() const noexcept = 0;
    /// See OutgoingMessage.
    [[nodiscard]] virtual bool is_in_order() const noexcept { return false; }
    /// The caller is likely to advance other messages next; their copies go to the GPU along with this one's.
    virtual void join_others() noexcept {}
    /// The call ends, and the message goes on. May be called again.
    virtual void leave() {}
    /// The message went to host memory of the program.
    virtual void went_to_host() noexcept {}

  protected:
    IncomingMessage() = default;
    IncomingMessage(const IncomingMessage&) = default;
    IncomingMessage& operator=(const IncomingMessage&) = default;
};

/// A message that a stream of the program copies to a place of the layer's in device memory.
struct PlacedMessage {
    std::shared_ptr<OutgoingMessage> message;
    std::byte* place = nullptr;
};

/// A way to some of the other processes. It knows each of them by a number, `peer`.
class Transport {
  public:
    virtual ~Transport() = default;

    /// Whether the peer takes RTS messages now. It may be about to.
    [[nodiscard]] virtual bool takes_rts(int /*peer*/) const noexcept { return true; }
    /// The same, for the first message from device memory, of so many bytes: waits a moment for a peer that may not
    /// have found its GPU runtime yet. Only the first call for each peer waits.
    [[nodiscard]] virtual bool wait_for_rts(int /*peer*/, std::size_t /*bytes*/) noexcept { return true; }
    /// Fills in what it knows of a message to `peer`.
    virtual void describe(int peer, const gpu::PointerInfo& memory, protocol::SendFacts& facts) noexcept = 0;
    /// Takes the first of these paths that it has and that can be gone now. Null when there is none: the message is to
    /// be sent plain. Throws BeyondAllocation where the receiver would read something else than the buffer.
    [[nodiscard]] virtual std::shared_ptr<OutgoingMessage> start_send(int peer, const Buffer& from,
                                                                      const protocol::SendPaths& paths) = 0;
    /// An RTS for a message that cannot be sent: its receiver gets an error, and advance() throws `error`. Null when
    /// the receiver takes no RTS now.
    [[nodiscard]] virtual std::shared_ptr<OutgoingMessage> start_failed(int peer, std::size_t bytes,
                                                                        const Error& error) = 0;
    /// Call before a message as long as an RTS is sent plain. False when it must not be: wrap() it.
    [[nodiscard]] virtual bool may_go_plain(int peer, std::size_t length) = 0;
    /// An RTS for a small message in host memory, which is copied at once. Null when there is no room.
    [[nodiscard]] virtual std::shared_ptr<OutgoingMessage> wrap(int peer, const void* packed, std::size_t bytes) = 0;

    /// A first look at memory into which a message may be arriving. is_rts() has to confirm a yes.
    [[nodiscard]] virtual bool begins_like_rts(const std::byte* message) const noexcept = 0;
    /// Whether a received message is an RTS to this process, or a forgery of one: it is as short, and begins with the
    /// secret, as nothing else does. start_receive() finds whatever else is wrong with it.
    [[nodiscard]] virtual bool is_rts(const std::byte* message, std::size_t length) const noexcept = 0;
    /// Whether such memory, which `info` describes, may be an end of a message.
    [[nodiscard]] virtual bool can_move(const transfer::TypedMemory& memory, const gpu::PointerInfo& info) = 0;
    /// Receives the message that the RTS announces: as much as fits into the buffer. is_rts() has accepted the RTS.
    /// Null when it names no message to this process: it is forged, or was received before.
    [[nodiscard]] virtual std::shared_ptr<IncomingMessage> start_receive(const std::byte* rts, std::size_t length,
                                                                         const Buffer& into) = 0;
    // ---- messages in a stream of the program's own

    /// Whether messages between this process's `device` and the peer may lie in places: see start_placed(). Makes what
    /// that takes: call while nothing waits in a stream. Both ends say yes after some questions.
    [[nodiscard]] virtual bool makes_places(int /*peer*/, int /*device*/) noexcept { return false; }
    /// A message of so many bytes in a place, which OutgoingMessage::offer_place() sends. Nothing when none is free:
    /// some stay for other messages.
    [[nodiscard]] virtual std::optional<PlacedMessage> start_placed(int /*peer*/, std::size_t /*bytes*/) {
        return std::nullopt;
    }
    /// Claims the message that the RTS announces for a stream: what a step finds. Never calls the GPU runtime. Nothing
    /// when the RTS stands for no message in a place.
    /// @param repeats  a graph receives: it accepts a channel
    [[nodiscard]] virtual std::optional<Placed> find_placed(const std::byte* /*rts*/, std::size_t /*length*/,
                                                            bool /*repeats*/) {
        return std::nullopt;
    }

    /// True size of the message from `peer` that a probe found with this length, as far as it is known.
    [[nodiscard]] virtual TrueSize size_of(int peer, std::size_t length) const noexcept = 0;
    /// Takes in what peers have announced. False when there is nothing to do, or another thread does it.
    virtual bool poll() noexcept { return false; }
    /// A plain message of so many bytes from the peer went to device memory.
    virtual void received_plain(int /*peer*/, std::int64_t /*bytes*/) noexcept {}
    /// Lets receivers read the messages that are ready meanwhile. A call that waits asks before it looks at anything
    /// else: until the answer is there, receivers can only wait. Costs a load where there is nothing.
    virtual void ask_readiness() noexcept {}
    /// Gives GPUs what messages have gathered: all of it, or only what must not wait for more.
    virtual void flush() noexcept {}
    virtual void flush_late() noexcept {}

  protected:
    Transport() = default;
    Transport(const Transport&) = default;
    Transport& operator=(const Transport&) = default;
};

/// The program sends more bytes than the allocation of its buffer has.
class BeyondAllocation final : public Error {
  public:
    using Error::Error;
};

}  // namespace awaken::transport
