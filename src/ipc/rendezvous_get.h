// SPDX-License-Identifier: Apache-2.0
// A message from another process of the node: the receiver's half of a rendezvous. It gets the bytes from where the
// slot says.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "gpu/gpu.h"
#include "ipc/background.h"
#include "ipc/offers.h"
#include "report/report.h"
#include "stream/steps.h"
#include "trace/trace.h"
#include "transfer/device_copies.h"
#include "transfer/flat_type.h"
#include "transfer/mappings.h"
#include "transfer/ring.h"
#include "transport/transport.h"

namespace awaken::ipc {

struct Resources;

class RendezvousGet final : public transport::IncomingMessage,
                            public Task,
                            public std::enable_shared_from_this<RendezvousGet> {
  public:
    /// For the message of `peer` that has been claimed: as much as fits into the buffer.
    RendezvousGet(Resources& resources, int peer, const Claim& claim, const transport::Buffer& into);
    ~RendezvousGet() override;
    /// Call once, first. error() reports failures.
    void start() noexcept;

    [[nodiscard]] bool advance() noexcept override;
    void join_others() noexcept override { _start = transfer::DeviceCopies::Start::together; }
    void leave() override;
    void went_to_host() noexcept override;
    bool pump() noexcept override;
    [[nodiscard]] report::Path path() const noexcept override { return _path; }
    [[nodiscard]] bool is_in_order() const noexcept override { return _in_order.load(std::memory_order_acquire); }
    [[nodiscard]] std::size_t size() const noexcept override { return _size; }
    [[nodiscard]] const std::optional<Error>& error() const noexcept override { return _error; }

  private:
    using Clock = std::chrono::steady_clock;
    template <class Work>
    void attempt(const Work& work) noexcept;
    void begin();
    [[nodiscard]] bool fetch_in_order();
    [[nodiscard]] bool is_queued() noexcept;
    [[nodiscard]] bool step();
    [[nodiscard]] Inbox inbox() const noexcept;
    void refuse(const std::string& reason);
    void check_alive();
    void finish() noexcept;

    Resources& _resources;
    std::mutex _mutex;
    const int _peer;
    Claim _claim;
    std::byte* const _buffer;
    const gpu::PointerInfo _info;
    const std::shared_ptr<const transfer::TypedMemory> _typed;
    const std::size_t _size, _wanted;
    trace::Stretch _traced;
    report::Path _path = report::Path::direct;
    std::atomic<bool> _over{false};
    bool _refused = false;
    std::atomic<bool> _in_order{false};  ///< the default stream fetches the message
    stream::Receipt _receipt{stream::Outcome::added};
    bool _left = false;  ///< the background has it, too
    std::optional<Error> _error;
    Clock::time_point _looked{};

    [[nodiscard]] transfer::DeviceCopies::End target() const { return {_buffer, &_info, _typed}; }

    transfer::Mappings::Use _use;
    transfer::DeviceCopies::End _from;  ///< first byte of the source
    gpu::PointerInfo _host;             ///< describes shared memory that the GPU runtime does not know
    gpu::PointerInfo _own_info;         ///< for a message from this process to itself
    int _device = -1;
    std::size_t _asked_for = 0;  ///< bytes whose copy was started
    transfer::DeviceCopies::Start _start = transfer::DeviceCopies::Start::now;
    transfer::DeviceCopies::Copy _copy, _next;
    bool _has_next = false;       ///< the GPU has the part after the one that `_copy` copies, too
    std::shared_ptr<void> _held;  ///< shared memory that stays mapped
    std::byte* _mapped = nullptr;
    std::size_t _mapped_bytes = 0;
    std::unique_ptr<transfer::RingReader> _ring;
};

}  // namespace awaken::ipc
