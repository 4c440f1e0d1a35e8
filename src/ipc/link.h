// SPDX-License-Identifier: Apache-2.0
// The direct paths from this process to the others of its job on this node.
//
// A message is a rendezvous: the sender offers it in a slot of shared memory (rendezvous_send.h), and the receiver gets
// the bytes from where the slot says (rendezvous_get.h). The caller carries the RTS messages that connect the two. Link
// makes both, and owns what they share (resources.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/rendezvous_get.h"
#include "ipc/rendezvous_send.h"
#include "ipc/resources.h"
#include "transport/transport.h"

namespace awaken::ipc {

class Link final : public transport::Transport {
  public:
    using Allowed = Options::Allowed;

    /// @param avoided for each process of the segment, slots that must not be used towards it; outlives the link.
    /// @param copies  and whatever else is a reference outlives the link.
    Link(node::Segment& segment, gpu::Runtime& runtime, transfer::DeviceCopies& copies, const Options& options,
         Notes::Note note, const std::vector<SlotSet>* avoided = nullptr);
    ~Link() override;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    [[nodiscard]] int own() const noexcept { return _resources.own; }
    [[nodiscard]] const transfer::Tuning& tuning() const noexcept { return _resources.tuning; }
    [[nodiscard]] int processes() const noexcept { return _resources.processes; }
    [[nodiscard]] Reachability& reachability() noexcept { return _resources.reachability; }

    // A peer is an index in the segment, and may be this process.
    [[nodiscard]] bool takes_rts(const int peer) const noexcept override {
        return _resources.reachability.takes_rts(peer);
    }
    [[nodiscard]] bool wait_for_rts(const int peer, const std::size_t bytes) noexcept override {
        return _resources.reachability.wait_for_rts(peer, transfer::Tuning::watch(tuning().first_watch, bytes));
    }
    void describe(int peer, const gpu::PointerInfo& memory, protocol::SendFacts& facts) noexcept override;
    [[nodiscard]] std::shared_ptr<transport::OutgoingMessage> start_send(int peer, const transport::Buffer& from,
                                                                         const protocol::SendPaths& paths) override;
    [[nodiscard]] bool makes_places(int peer, int device) noexcept override;
    [[nodiscard]] std::optional<transport::PlacedMessage> start_placed(int peer, std::size_t bytes) override;
    [[nodiscard]] std::optional<transport::Placed> find_placed(const std::byte* message, std::size_t length,
                                                               bool repeats) override;
    [[nodiscard]] std::shared_ptr<transport::OutgoingMessage> start_failed(int peer, std::size_t bytes,
                                                                           const Error& error) override;
    [[nodiscard]] bool may_go_plain(int /*peer*/, std::size_t /*length*/) override { return false; }
    [[nodiscard]] std::shared_ptr<transport::OutgoingMessage> wrap(int peer, const void* packed,
                                                                   std::size_t bytes) override;
    [[nodiscard]] bool begins_like_rts(const std::byte* const message) const noexcept override {
        std::uint64_t first = 0;
        std::memcpy(&first, message, sizeof first);
        return first == _resources.segment.secret()[0];
    }
    [[nodiscard]] bool is_rts(const std::byte* message, std::size_t length) const noexcept override;
    [[nodiscard]] std::shared_ptr<transport::IncomingMessage> start_receive(const std::byte* message,
                                                                            std::size_t length,
                                                                            const transport::Buffer& into) override;
    [[nodiscard]] bool can_move(const transfer::TypedMemory& memory, const gpu::PointerInfo& info) override {
        return _resources.copies.can_move(_resources.device_or_any(info.device), memory);
    }
    [[nodiscard]] transport::TrueSize size_of(int peer, std::size_t length) const noexcept override;
    void received_plain(const int peer, const std::int64_t bytes) noexcept override {
        _resources.reachability.received_from_host(peer, bytes, true);
    }
    void ask_readiness() noexcept override { _resources.readiness->ask(); }
    void flush() noexcept override {
        if (_resources.order != nullptr) {
            _resources.order->flush();
        }
    }
    void flush_late() noexcept override {
        if (_resources.order != nullptr) {
            _resources.order->flush_late();
        }
    }

    [[nodiscard]] SendList& sends() noexcept { return _resources.sends; }
    [[nodiscard]] SharedRings& rings() noexcept { return _resources.rings; }
    [[nodiscard]] Background& background() noexcept { return _resources.background; }
    /// Gives back to the driver what is not needed any more, where that waits for nothing. Only for calls of the
    /// program, see gpu.h. Where there is nothing to do, it costs a load or a look at a clock.
    void reclaim() noexcept;
    /// Waits until the receiver of every message has it or is gone. Call after MPI_Finalize.
    void finish_sends() noexcept;
    /// Ends everything. Call while the runtime is still there. Safe to call twice.
    void shut_down() noexcept;

    [[nodiscard]] const transfer::CpuWindow& cpu_window() const noexcept { return _resources.window; }
    // For other parts that reach memory of other processes: a runtime maps an allocation once, so a process has one
    // owner of mappings.
    [[nodiscard]] transfer::DeviceCopies& copies() noexcept { return _resources.copies; }
    [[nodiscard]] transfer::Exports& exports() noexcept { return _resources.exports; }
    [[nodiscard]] transfer::ExportedPool& exported() noexcept { return _resources.exported; }
    [[nodiscard]] transfer::Mappings& mappings() noexcept { return _resources.mappings; }
    /// Null where messages do not go in stream order.
    [[nodiscard]] stream::Ordering* ordering() noexcept { return _resources.order.get(); }

  private:
    /// A send in a slot of its own. Null when no slot is free.
    [[nodiscard]] std::shared_ptr<RendezvousSend> reserve(int peer, const transport::Buffer& from);

    Resources _resources;
    const std::vector<SlotSet>* const _avoided;
    std::atomic<bool> _shut_down{false};
    std::atomic<unsigned> _reclaims{0};
};

}  // namespace awaken::ipc
