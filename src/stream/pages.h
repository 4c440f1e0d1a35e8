// SPDX-License-Identifier: Apache-2.0
// Memory by which GPUs of several processes pass messages on: words that tell, and places for copies of short messages.
//
// Each process has a page in memory of its GPU, which the GPUs of the others read and write. It has two words for each
// slot: one for each message that another process sends (its bytes may be read), and one for each message that this
// process sends (its bytes have been read). Beside them, host memory has the words by which this process's CPU gives a
// wait up.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu/gpu.h"
#include "transfer/exports.h"
#include "transfer/location.h"
#include "transfer/mappings.h"

namespace awaken::stream {

/// Where a page is. Lies in shared memory, and is zero before the page is there.
struct PageLocation {
    std::atomic<std::uint32_t> there;
    std::array<unsigned char, 16> gpu;  ///< its UUID
    transfer::Location location;
    std::atomic<std::uint32_t> failed;  ///< the GPU does nothing any more: nobody should wait for it
};

/// Thread-safe.
class Pages {
  public:
    /// Each slot has a place of so many bytes, and longer messages share some places.
    static constexpr std::size_t kPlaceBytes = std::size_t{64} << 10;
    static constexpr std::size_t kLongPlaceBytes = std::size_t{1} << 20;
    static constexpr unsigned kLongPlaces = 32;

    /// For so many processes with so many slots each. References outlive the object.
    Pages(gpu::Runtime& runtime, transfer::Exports& exports, transfer::Mappings& mappings, int processes,
          std::uint32_t slots);
    ~Pages();
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    /// Makes this process's page in memory of `device`, when first asked, and publishes it. False when that is not
    /// possible, or when the page is another device's.
    [[nodiscard]] bool make(int device, PageLocation& own);
    /// Maps the page of process `peer`, when first asked. False while it has none, or when it cannot be mapped.
    [[nodiscard]] bool reach(int peer, const PageLocation& page);

    // ---- words in memory of a GPU. Those of a peer: reach() has said yes

    /// Of this process: that the message in the slot of `sender` may be read. The sender's GPU writes it.
    [[nodiscard]] std::uint32_t* ready(const int sender, const std::uint32_t slot) const noexcept {
        return words(_page) + ready_at(sender, slot);
    }
    /// Of this process: that the message in its own slot has been read. The receiver's GPU writes it.
    [[nodiscard]] std::uint32_t* done(const std::uint32_t slot) const noexcept { return words(_page) + done_at(slot); }
    /// The same of `peer`, where `own` is this process.
    [[nodiscard]] std::uint32_t* ready_of(const int peer, const int own, const std::uint32_t slot) const noexcept {
        return words(page_of(peer)) + ready_at(own, slot);
    }
    [[nodiscard]] std::uint32_t* done_of(const int peer, const std::uint32_t slot) const noexcept {
        return words(page_of(peer)) + done_at(slot);
    }

    // ---- words in host memory, by which the CPU gives up a wait

    [[nodiscard]] std::uint32_t* ready_released(const int sender, const std::uint32_t slot) const noexcept {
        return _host + ready_at(sender, slot);
    }
    [[nodiscard]] std::uint32_t* done_released(const std::uint32_t slot) const noexcept {
        return _host + done_at(slot);
    }
    /// Lets everything go that waits for messages of `sender`, now and later; and what waits until one is read.
    void release_from(int sender) noexcept;
    void release_done(std::uint32_t slot, std::uint32_t number) noexcept;
    /// Lets everything go. Never calls the runtime.
    void release_all() noexcept;

    // ---- places

    /// A place in this process's page.
    struct Place {
        std::byte* data = nullptr;
        transfer::Location location{};
        int number = -1;  ///< of a long one
    };
    /// For a message of so many bytes in the slot. Nothing when it is too long, or no long place is free.
    [[nodiscard]] std::optional<Place> take_place(std::uint32_t slot, std::size_t bytes) noexcept;
    void give_back(const Place& place) noexcept;
    /// Of this process's page.
    [[nodiscard]] gpu::PointerInfo info() const noexcept;
    /// The same place as `peer` sees it: reach() has said yes. Null when the location is not one in the peer's page.
    [[nodiscard]] const std::byte* place_of(int peer, const transfer::Location& location,
                                            std::size_t bytes) const noexcept;

    /// Nothing waits any more. Safe to call twice.
    void shut_down() noexcept;

  private:
    [[nodiscard]] static std::uint32_t* words(std::byte* const page) noexcept {
        return reinterpret_cast<std::uint32_t*>(page);
    }
    [[nodiscard]] std::size_t ready_at(const int sender, const std::uint32_t slot) const noexcept {
        return static_cast<std::size_t>(sender) * _slots + slot;
    }
    [[nodiscard]] std::size_t done_at(const std::uint32_t slot) const noexcept {
        return static_cast<std::size_t>(_processes) * _slots + slot;
    }
    [[nodiscard]] std::size_t words() const noexcept { return (static_cast<std::size_t>(_processes) + 1) * _slots; }
    [[nodiscard]] std::size_t places_at() const noexcept;
    [[nodiscard]] std::size_t bytes() const noexcept;
    [[nodiscard]] std::byte* page_of(const int peer) const noexcept {
        return _peers[static_cast<std::size_t>(peer)].page.load(std::memory_order_acquire);
    }
    [[nodiscard]] std::size_t host_bytes() const noexcept;
    [[nodiscard]] bool make_host_words() noexcept;
    void release(std::size_t first, std::size_t count, std::uint32_t number) noexcept;

    struct Peer {
        std::atomic<std::byte*> page{nullptr};
        transfer::Mappings::Use use;
        transfer::Location location{};  ///< when `page` is there
        bool refused = false;
    };

    gpu::Runtime& _runtime;
    transfer::Exports& _exports;
    transfer::Mappings& _mappings;
    const int _processes;
    const std::uint32_t _slots;
    std::mutex _mutex;
    bool _tried = false;
    std::atomic<int> _device{-1};
    transfer::Location _location{};
    std::byte* _page = nullptr;
    std::uint32_t* _host = nullptr;              ///< not of allocate_pinned(): a reset of the device would free it
    std::atomic<std::uint32_t> _long_places{0};  ///< one bit for each that is taken
    std::vector<Peer> _peers;
};

}  // namespace awaken::stream
