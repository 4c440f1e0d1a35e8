// SPDX-License-Identifier: Apache-2.0
#include "rma/device/host_mirror.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

namespace awaken::rma {

namespace {

/// Bytes that are read from the device at a time.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
/// One comparison tells whether a page has any difference.
constexpr std::size_t kPageBytes = 4096;
/// The host mirror is aligned to this as the device memory is, since operations on elements expect aligned elements.
constexpr std::size_t kAlignment = 256;

using Word = std::uint64_t;

Word word_at(const std::byte* const bytes) noexcept {
    Word word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

/// All bits of the bytes that differ between two words.
Word differing_bytes(const Word a, const Word b) noexcept {
    Word bits = a ^ b;
    bits |= (bits >> 4) & 0x0f0f0f0f0f0f0f0fu;
    bits |= (bits >> 2) & 0x3333333333333333u;
    bits |= (bits >> 1) & 0x5555555555555555u;
    return (bits & 0x0101010101010101u) * 0xff;
}

}  // namespace

HostMirror::HostMirror(const Resources& resources, void* const device, const std::size_t bytes,
                       const gpu::PointerInfo& info)
    : _resources(resources), _device(static_cast<std::byte*>(device)), _bytes(bytes), _info(info) {}

std::unique_ptr<HostMirror> HostMirror::make(const Resources& resources, void* const device, const std::size_t bytes,
                                             const gpu::PointerInfo& info) {
    std::unique_ptr<HostMirror> mirror(new HostMirror(resources, device, bytes, info));
    mirror->_owned.reset(new (std::nothrow) std::byte[bytes + kAlignment]);
    if (mirror->_owned == nullptr || !mirror->allocate_baseline()) {
        return nullptr;
    }
    mirror->read_baseline();
    const auto wanted = reinterpret_cast<std::uintptr_t>(device) % kAlignment;
    const auto there = reinterpret_cast<std::uintptr_t>(mirror->_owned.get()) % kAlignment;
    mirror->_memory = mirror->_owned.get() + (wanted + kAlignment - there) % kAlignment;
    std::memcpy(mirror->_memory, mirror->_baseline.get(), bytes);
    return mirror;
}

std::unique_ptr<HostMirror> HostMirror::make_for_later(const Resources& resources, void* const device,
                                                       const std::size_t bytes, const gpu::PointerInfo& info) {
    std::unique_ptr<HostMirror> mirror(new HostMirror(resources, device, bytes, info));
    if (!mirror->allocate_baseline()) {
        return nullptr;
    }
    mirror->read_baseline();
    return mirror;
}

bool HostMirror::allocate_baseline() noexcept {
    _baseline.reset(new (std::nothrow) std::byte[_bytes]);
    return _baseline != nullptr;
}

void HostMirror::read_baseline() {
    const transfer::StagingBlock block = _resources.pool.acquire(_resources.runtime, std::min(kChunkBytes, _bytes));
    for (std::size_t at = 0; at < _bytes; at += kChunkBytes) {
        const std::size_t length = std::min(kChunkBytes, _bytes - at);
        _resources.copier.copy(block.data(), _device + at, length, _device + at, _info);
        std::memcpy(_baseline.get() + at, block.data(), length);
    }
}

std::byte* HostMirror::of(const void* const address, const std::size_t length) const noexcept {
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    const auto begin = reinterpret_cast<std::uintptr_t>(_device);
    const bool inside = first >= begin && first - begin <= _bytes && length <= _bytes - (first - begin);
    return inside ? _memory + (first - begin) : nullptr;
}

std::size_t HostMirror::reconcile(const std::size_t begin, const std::size_t end) {
    const std::scoped_lock lock(_mutex);
    const transfer::StagingBlock block =
        _resources.pool.acquire(_resources.runtime, std::min(kChunkBytes, end - begin));
    std::size_t copied = 0;
    for (std::size_t at = begin; at < end; at += kChunkBytes) {
        const std::size_t length = std::min(kChunkBytes, end - at);
        _resources.copier.copy(block.data(), _device + at, length, _device + at, _info);
        _puts.clear();
        merge(at, length, block.data());
        store_puts(at, block.data());
        copied += length;
        for (const Run& run : _puts) {
            copied += run.length;
        }
    }
    return copied;
}

/// Reconciles the bytes from `at` on. `device` is their staging buffer, which also receives what others have put.
void HostMirror::merge(const std::size_t at, const std::size_t length, std::byte* const device) {
    for (std::size_t page = 0; page < length; page += kPageBytes) {
        const std::size_t end = page + std::min(kPageBytes, length - page);
        const std::byte* const baseline = _baseline.get() + at + page;
        // Bytes that others put during this look are found the next time.
        if (std::memcmp(device + page, baseline, end - page) == 0 &&
            std::memcmp(_memory + at + page, baseline, end - page) == 0) {
            continue;
        }
        std::size_t position = page;
        const auto is_aligned = [&] {
            return reinterpret_cast<std::uintptr_t>(_memory + at + position) % sizeof(Word) == 0;
        };
        for (; position < end && !is_aligned(); ++position) {
            merge_byte(at, position, device);
        }
        for (; position + sizeof(Word) <= end; position += sizeof(Word)) {
            merge_word(at, position, device);
        }
        for (; position < end; ++position) {
            merge_byte(at, position, device);
        }
    }
}

// Others may store to the host mirror at any time. So each word is read once, and written by an exchange that keeps the
// bytes which the program has not stored to. Working by words lets others see whole numbers.

void HostMirror::merge_word(const std::size_t at, const std::size_t position, std::byte* const device) {
    std::byte* const baseline = _baseline.get() + at + position;
    const std::atomic_ref<Word> mirror(*reinterpret_cast<Word*>(_memory + at + position));
    const Word before = word_at(baseline), here = word_at(device + position);
    Word there = mirror.load(std::memory_order_relaxed);
    const Word stored = differing_bytes(here, before);
    if (stored == 0 && there == before) {
        return;
    }
    Word both = (there & ~stored) | (here & stored);
    while (stored != 0 && !mirror.compare_exchange_weak(there, both, std::memory_order_acq_rel)) {
        both = (there & ~stored) | (here & stored);
    }
    if (const Word put = differing_bytes(both, here); put != 0) {
        const auto was_put = std::bit_cast<std::array<std::uint8_t, sizeof(Word)>>(put);
        for (std::size_t byte = 0; byte < sizeof(Word); ++byte) {
            if (was_put[byte] != 0) {
                note_put(position + byte);
            }
        }
        std::memcpy(device + position, &both, sizeof both);
    }
    // The baseline takes over what others have put only when the device has it.
    const Word kept = (before & ~stored) | (here & stored);
    std::memcpy(baseline, &kept, sizeof kept);
}

void HostMirror::merge_byte(const std::size_t at, const std::size_t position, std::byte* const device) {
    std::byte& baseline = _baseline[at + position];
    std::byte& here = device[position];
    const std::atomic_ref<std::byte> mirror(_memory[at + position]);
    if (here != baseline) {
        mirror.store(here, std::memory_order_release);
        baseline = here;
    } else if (const std::byte there = mirror.load(std::memory_order_relaxed); there != baseline) {
        note_put(position);
        here = there;
    }
}

void HostMirror::note_put(const std::size_t position) {
    if (!_puts.empty() && _puts.back().begin + _puts.back().length == position) {
        ++_puts.back().length;
    } else {
        _puts.push_back({position, 1});
    }
}

/// Copies what others have put to the device, and no bytes in between, since the program's own kernels may be storing
/// there.
void HostMirror::store_puts(const std::size_t at, const std::byte* const device) {
    if (_puts.empty()) {
        return;
    }
    if (_puts.size() == 1) {
        const Run& run = _puts.front();
        _resources.copier.copy(_device + at + run.begin, device + run.begin, run.length, _device + at + run.begin,
                               _info);
    } else {
        std::vector<transfer::LayoutNode> nodes;
        nodes.reserve(_puts.size());
        std::size_t bytes = 0;
        for (const Run& run : _puts) {
            nodes.push_back({static_cast<std::int64_t>(run.begin), static_cast<std::int64_t>(run.length), 1, 0, {}});
            bytes += run.length;
        }
        const transfer::StagingBlock packed = _resources.pool.acquire(_resources.runtime, bytes);
        std::size_t filled = 0;
        for (const Run& run : _puts) {
            std::memcpy(packed.data() + filled, device + run.begin, run.length);
            filled += run.length;
        }
        const auto type = std::make_shared<const transfer::FlatType>(
            transfer::Layout(std::move(nodes), 0, static_cast<std::int64_t>(kChunkBytes)));
        _resources.copier.scatter(type, _device + at, 1, static_cast<std::int64_t>(bytes), packed.data(), &_info);
    }
    for (const Run& run : _puts) {
        std::memcpy(_baseline.get() + at + run.begin, device + run.begin, run.length);
    }
}

}  // namespace awaken::rma
