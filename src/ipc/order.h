// SPDX-License-Identifier: Apache-2.0
// Messages in the order of the default stream: who may send them, and what GPUs do for them.
//
// The sender's stream says when the bytes may be read, and copies short messages to a place of the layer. The
// receiver's stream waits for that, fetches them, and says so. No CPU waits for a GPU. docs/protocol.md says why no
// circle of waits can come about.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ipc/background.h"
#include "ipc/offers.h"
#include "stream/ordering.h"
#include "stream/pages.h"
#include "stream/steps.h"
#include "transport/transport.h"

namespace awaken::ipc {

struct Resources;

/// Thread-safe. The background asks it as long as the process runs.
class Order final : public Task, public stream::Ordering, public std::enable_shared_from_this<Order> {
  public:
    using Place = stream::Pages::Place;
    using Clock = std::chrono::steady_clock;
    /// Longer messages stay where they are.
    static constexpr std::size_t kLongestPlace = stream::Pages::kLongPlaceBytes;
    static_assert(kLongestPlace == transport::kLongestPlace);

    explicit Order(Resources& resources);

    /// Whether messages between this process's memory of `device` and `peer` go in stream order. Makes what that takes,
    /// when first asked; it is the same for both ends of a message.
    [[nodiscard]] bool goes(int peer, int device) noexcept override;
    /// Tries to be ready for goes() before there is work in any stream.
    void prepare() noexcept;

    // ---- the sender's half

    [[nodiscard]] std::optional<Place> take_place(const Ticket& ticket, const std::size_t bytes) noexcept {
        return _pages.take_place(ticket.slot, bytes);
    }
    void give_back(const Place& place) noexcept { _pages.give_back(place); }
    [[nodiscard]] gpu::PointerInfo info_of_places() const noexcept { return _pages.info(); }
    /// The sender's stream copies `from` to the place, where there is one, and lets the receiver read. Call when the
    /// RTS has been sent, or before.
    /// @param wake the caller does not flush, so the background has to.
    void tell(int peer, const Ticket& ticket, const std::byte* from, std::size_t bytes, const Place* place,
              std::shared_ptr<stream::Receipt> receipt, bool wake);
    /// The sender's stream waits until the receiver has read the buffer. The receiver has queued its fetch.
    void wait(int peer, const Ticket& ticket, std::shared_ptr<stream::Receipt> receipt);

    // ---- the receiver's half

    /// Where the receiver's GPU finds the copy of a short message. Null when it lies elsewhere.
    [[nodiscard]] const std::byte* place_of(const int peer, const Claim& claim) const noexcept {
        return _pages.place_of(peer, claim.from, claim.bytes);
    }
    /// Whether buffers show that a program has looked at them too early.
    [[nodiscard]] bool checks() const noexcept { return _checks; }
    /// The receiver's stream fills the buffer with a pattern, which stays until the message comes, and for a moment at
    /// least.
    void spoil(std::byte* to, std::size_t bytes) noexcept;
    /// The receiver's stream fetches the message.
    void fetch(int peer, const Claim& claim, std::byte* to, const std::byte* from, std::size_t bytes,
               std::shared_ptr<stream::Receipt> receipt);

    /// What a step of another stream of the receiver's finds: a message in a place that is there already. Nothing for
    /// other messages. Never calls the runtime.
    /// @param repeats  a graph receives: it accepts a channel, if the sender offers one
    [[nodiscard]] std::optional<transport::Placed> find(int peer, const Claim& claim, bool repeats) const noexcept;
    /// What a step writes that copies a message to `peer` to its place.
    [[nodiscard]] transport::ReadyWords ready_words(int peer, const Ticket& ticket) const noexcept;
    /// The sender's view of a channel for messages to `peer` in the slot.
    [[nodiscard]] stream::Channel channel_to(int peer, const Ticket& ticket) const noexcept;

    // ---- both

    /// Gives the GPU what was gathered: all of it, or what has waited for some time.
    void flush() noexcept { _steps.flush(); }
    void flush_late() noexcept;
    /// Why the stream took no more steps, for the message that hears of it first.
    [[nodiscard]] std::string failure() const { return _steps.failure().message(); }
    /// A process ended while its messages may have been awaited. Each of them is told once.
    [[nodiscard]] std::optional<std::string> take_lost();

    bool pump() noexcept override;
    [[nodiscard]] std::chrono::microseconds pause() const noexcept override;
    /// Waits until the default stream is over: what is queued there is a part of messages.
    void finish() noexcept override;
    [[nodiscard]] gpu::Status take(std::span<const stream::Step> steps) override;
    void watch(stream::Watched* watched) noexcept override;
    /// Lets all waits go, now and later. Never calls the runtime.
    void end() noexcept;
    /// Call while the runtime is still there. Safe to call twice.
    void shut_down() noexcept;

  private:
    void look_after_own_gpu() noexcept;
    void look_after_peers() noexcept;
    [[nodiscard]] bool shares_its_gpu() const noexcept;

    Resources& _resources;
    const bool _checks;
    stream::Steps _steps;
    stream::Pages _pages;
    struct Peer {
        std::atomic<bool> goes{false};
        std::atomic<bool> gone{false};
        Clock::time_point looked{};
    };
    std::vector<Peer> _peers;
    struct Wait {
        std::atomic<int> peer{-1};
        std::atomic<std::uint32_t> number{0};
    };
    std::array<Wait, kSlots> _waits;  ///< of each slot: the last one
    std::mutex _mutex;
    bool _registered = false, _register_tried = false;
    std::string _lost;
    std::atomic<bool> _started{false};
    gpu::StreamHandle _asked;  ///< without work; tells of errors of all streams, and no capture minds the question
    mutable std::atomic<bool> _sleeps{false};
    std::atomic<bool> _woken{false};
    unsigned _idle = 0;  ///< looks since there was something for the background to flush
    Clock::time_point _looked{};
    std::mutex _watch_mutex;
    stream::Watched* _watched = nullptr;
};

}  // namespace awaken::ipc
