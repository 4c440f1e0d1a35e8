// SPDX-License-Identifier: Apache-2.0
// What DeviceCopies has to do on any GPU runtime, and memory of every kind for such tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/gpu.h"
#include "gpu/wait.h"
#include "transfer/device_copies.h"
#include "transfer/pinned_pool.h"

namespace awaken::transfer::checks {

using Random = std::mt19937_64;
using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(Random& random, const std::size_t size) {
    Bytes bytes(size);
    for (std::size_t at = 0; at < size; at += sizeof(Random::result_type)) {
        const Random::result_type word = random();
        std::memcpy(bytes.data() + at, &word, std::min(sizeof word, size - at));
    }
    return bytes;
}

/// Whether the bytes are those at `expected`. In one call, which sanitizers do not slow down.
inline bool same(const Bytes& bytes, const std::byte* const expected) {
    return bytes.empty() || std::memcmp(bytes.data(), expected, bytes.size()) == 0;
}

/// Where one side of a copy can be, and how it is described.
enum class Place { device, other_device, mapped, managed, pinned, own_pinned, ordinary };
inline constexpr Place kPlaces[] = {Place::device, Place::other_device, Place::mapped,  Place::managed,
                                    Place::pinned, Place::own_pinned,   Place::ordinary};

inline std::string to_string(const Place place) {
    static const char* const names[] = {"device",          "other device", "device without info", "managed", "pinned",
                                        "pinned, no info", "ordinary"};
    return names[static_cast<int>(place)];
}

/// Memory at some place, which the test reads and writes by the runtime's own means.
class Buffer {
  public:
    Buffer(gpu::Runtime& runtime, const Place place, const std::size_t size) : _runtime(runtime), _place(place) {
        const int device = place == Place::other_device ? 1 : 0;
        gpu::Status status;
        void* memory = nullptr;
        switch (place) {
            case Place::device:
            case Place::other_device:
            case Place::mapped:
                status = runtime.allocate(device, size, memory);
                break;
            case Place::managed:
                status = runtime.allocate_managed(device, size, memory);
                break;
            case Place::pinned:
            case Place::own_pinned:
                status = runtime.allocate_pinned(size, memory);
                break;
            case Place::ordinary:
                _ordinary.resize(size);
                memory = _ordinary.data();
                break;
        }
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(runtime.create_stream(device, false, _stream).ok());
        _data = static_cast<std::byte*>(memory);
        _size = size;
        const void* const pointer = _data;
        runtime.classify({&pointer, 1}, &_info);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
        static_cast<void>(_runtime.destroy_stream(_stream));
        if (_place == Place::pinned || _place == Place::own_pinned) {
            static_cast<void>(_runtime.free_pinned(_data));
        } else if (_place != Place::ordinary) {
            static_cast<void>(_runtime.free(_data));
        }
    }

    [[nodiscard]] std::byte* data() const { return _data; }
    [[nodiscard]] DeviceCopies::End end(const std::size_t offset = 0) const {
        const bool described = _place != Place::mapped && _place != Place::own_pinned;
        return {_data + offset, described ? &_info : nullptr};
    }
    void write(const Bytes& content) { move(_data, content.data(), content.size()); }
    [[nodiscard]] Bytes read() { return read(_size); }
    /// The first bytes of it.
    [[nodiscard]] Bytes read(const std::size_t size) {
        Bytes content(size);
        move(content.data(), _data, size);
        return content;
    }

  private:
    void move(void* const to, const void* const from, const std::size_t bytes) {
        if (bytes == 0) {
            return;
        }
        EXPECT_TRUE(_runtime.copy(to, from, bytes, _stream).ok());
        const auto query = [this] {
            bool done = false;
            return !_runtime.query_stream(_stream, done).ok() ? -1 : static_cast<int>(done);
        };
        EXPECT_EQ(gpu::poll_until_over(query, 0), 1);
    }

    gpu::Runtime& _runtime;
    const Place _place;
    gpu::StreamHandle _stream;
    Bytes _ordinary;
    std::byte* _data = nullptr;
    std::size_t _size = 0;
    gpu::PointerInfo _info;
};

/// Copies between all places, of sizes around every bound, from and to odd addresses: what was to be copied is there,
/// and nothing else has changed. Copies of more than `longest` bytes are left out.
inline void check_all_pairs(gpu::Runtime& runtime, const CopyEngine engine, const std::size_t pinned_limit,
                            const std::size_t longest = std::numeric_limits<std::size_t>::max()) {
    constexpr std::size_t kRoom = (std::size_t{3} << 20) + 128;
    constexpr std::size_t kSizes[] = {0,     1,     7,      16,     8192,    65535,
                                      65536, 65537, 262144, 262145, 1000000, (std::size_t{3} << 20) + 5};
    PinnedPool pool(pinned_limit);
    Tuning tuning;
    // Long copies reuse their blocks.
    tuning.ring_chunk_bytes = std::size_t{128} << 10;
    DeviceCopies copies(runtime, pool, tuning, engine);
    Random random(42);
    const Bytes content = random_bytes(random, kRoom);
    unsigned number = 0;
    for (const Place to : kPlaces) {
        Buffer destination(runtime, to, kRoom);
        for (const Place from : kPlaces) {
            SCOPED_TRACE(to_string(from) + " to " + to_string(to));
            Buffer source(runtime, from, kRoom);
            source.write(content);
            Bytes expected(kRoom, std::byte{0xEE});
            destination.write(expected);
            for (const std::size_t size : kSizes) {
                if (size > longest) {
                    continue;
                }
                const std::size_t target_offset = random() % 32;
                const std::size_t source_offset = random() % 32;
                DeviceCopies::Copy copy =
                    copies.start(0, number++, destination.end(target_offset), source.end(source_offset), size);
                std::size_t arrived = 0;
                while (!copy.poll()) {
                    EXPECT_LE(arrived, copy.completed());
                    arrived = copy.completed();
                    EXPECT_LT(arrived, size);
                }
                EXPECT_EQ(copy.completed(), size);
                EXPECT_TRUE(copy.poll());
                std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(source_offset), size,
                            expected.begin() + static_cast<std::ptrdiff_t>(target_offset));
                // With what surrounds it.
                ASSERT_TRUE(same(destination.read(size + 64), expected.data())) << size << " bytes";
            }
        }
    }
}

/// Many copies of all sizes and places at the same time, which end in any order.
inline void check_many_at_once(gpu::Runtime& runtime, const std::uint64_t seed) {
    constexpr std::size_t kCopies = 60;
    Random random(seed);
    PinnedPool pool(std::size_t{64} << 20);
    DeviceCopies copies(runtime, pool, Tuning{}, CopyEngine::automatic);
    struct Transfer {
        Transfer(gpu::Runtime& runtime, const Place from, const Place to, const std::size_t size)
            : source(runtime, from, size), destination(runtime, to, size) {}
        Buffer source, destination;
        Bytes content;
        DeviceCopies::Copy copy;
    };
    std::vector<std::unique_ptr<Transfer>> transfers;
    for (std::size_t i = 0; i < kCopies; ++i) {
        const std::size_t size = i % 7 == 0 ? 300'000 + random() % 300'000 : 1 + random() % 3000;
        const Place from = kPlaces[random() % std::size(kPlaces)];
        const Place to = kPlaces[random() % std::size(kPlaces)];
        Transfer& transfer = *transfers.emplace_back(std::make_unique<Transfer>(runtime, from, to, size));
        transfer.content = random_bytes(random, size);
        transfer.source.write(transfer.content);
    }
    for (std::size_t i = 0; i < kCopies; ++i) {
        Transfer& transfer = *transfers[i];
        transfer.copy = copies.start(0, static_cast<unsigned>(i), transfer.destination.end(), transfer.source.end(),
                                     transfer.content.size());
    }
    std::vector<std::size_t> open(kCopies);
    std::iota(open.begin(), open.end(), std::size_t{0});
    while (!open.empty()) {
        const std::size_t at = random() % open.size();
        Transfer& transfer = *transfers[open[at]];
        if (!transfer.copy.poll()) {
            continue;
        }
        EXPECT_TRUE(same(transfer.destination.read(), transfer.content.data()));
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    }
}

/// Threads that copy at the same time, on the same lanes.
inline void check_threads(gpu::Runtime& runtime, const int rounds) {
    PinnedPool pool(std::size_t{64} << 20);
    DeviceCopies copies(runtime, pool, Tuning{}, CopyEngine::automatic);
    std::atomic<int> wrong{0};
    const auto work = [&](const unsigned id) {
        Random random(id);
        constexpr std::size_t kSize = 200'000;
        Buffer host(runtime, Place::ordinary, kSize), first(runtime, Place::device, kSize),
            second(runtime, Place::device, kSize), back(runtime, Place::ordinary, kSize);
        for (int round = 0; round < rounds; ++round) {
            const std::size_t size = round % 2 == 0 ? 1 + random() % 2000 : kSize;
            const Bytes content = random_bytes(random, size);
            host.write(content);
            copies.start(0, id, first.end(), host.end(), size).wait();
            DeviceCopies::Copy copy = copies.start(0, id, second.end(), first.end(), size);
            while (!copy.poll()) {
            }
            copies.start(0, id, back.end(), second.end(), size).wait();
            if (!same(back.read(size), content.data())) {
                ++wrong;
            }
        }
    };
    std::vector<std::thread> threads;
    for (unsigned id = 0; id < 3; ++id) {
        threads.emplace_back(work, id);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0);
}

}  // namespace awaken::transfer::checks
