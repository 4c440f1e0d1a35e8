// SPDX-License-Identifier: Apache-2.0
// The rendezvous sends that live longer than the calls that made them.
//
// A send outlives its call until its receiver has given the slot back. Meanwhile the receiver may refuse a copy, and
// then somebody has to serve it, although no call advances the send: the sender may have gone on, or wait for a message
// of that very receiver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace awaken::ipc {

class RendezvousSend;
struct Resources;

/// Thread-safe.
class SendList {
  public:
    explicit SendList(Resources& resources) noexcept : _resources(resources) {}
    SendList(const SendList&) = delete;
    SendList& operator=(const SendList&) = delete;

    /// Call when the RTS has been sent and the buffer is free, or will never be. Keeps the send until its receiver is
    /// done with it.
    void retire(std::shared_ptr<RendezvousSend> send);
    /// The call ends before the send does: the background does whatever the send still needs. Call once for each send.
    void leave(std::shared_ptr<RendezvousSend> send);
    /// The send has a copy in exported memory, which its receiver may refuse.
    void watch_copy(RendezvousSend& send);

    /// Gives back the memory of messages that their receivers are done with, and serves refused copies.
    void release_finished() noexcept;
    /// Advances the sends that calls have left. True when some of them are not over.
    bool pump_left() noexcept;
    /// Waits until the receiver of every send has the message or is gone.
    void finish() noexcept;
    /// Gives up all sends.
    void shut_down() noexcept;

  private:
    using Sends = std::vector<std::shared_ptr<RendezvousSend>>;
    static constexpr std::size_t kLeftEnough = 64;

    Resources& _resources;
    std::mutex _mutex;
    Sends _lingering;
    /// Sends that their calls have left. They wait only for their receivers, which may still refuse the copies.
    Sends _left;
    std::vector<std::weak_ptr<RendezvousSend>> _exported_copies;
    std::size_t _left_enough = kLeftEnough;  ///< so many in `_left` are worth a search for those that are over
    std::uint32_t _retired = 0;
};

}  // namespace awaken::ipc
