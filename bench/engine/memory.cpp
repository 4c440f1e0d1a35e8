// SPDX-License-Identifier: Apache-2.0
#include "engine/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace awaken::bench {
namespace {

/// Before the data lies a whole page, so that data() is as aligned as the allocation: transfers by page (CMA, IPC) are
/// measured as programs would see them.
constexpr std::size_t kFrontGuard = 4096;
constexpr std::size_t kRearGuard = 256;

/// Differs from byte to byte, so that a shifted copy of the guard itself is found too.
std::byte guard_byte(const std::size_t index) noexcept {
    return static_cast<std::byte>(0xA5U + 7U * index);
}

void check(const gpu::Status& status, const std::string& what) {
    if (!status.ok()) {
        throw Error(what + " failed: " + status.message(),
                    "use smaller sizes or another kind of buffer, and see that the GPU driver works");
    }
}

gpu::MemoryKind expected_kind(const BufferKind kind) noexcept {
    return kind == BufferKind::host                                 ? gpu::MemoryKind::host
           : kind == BufferKind::managed                            ? gpu::MemoryKind::managed
           : kind == BufferKind::device || kind == BufferKind::pool ? gpu::MemoryKind::device
                                                                    : gpu::MemoryKind::pinned;
}

}  // namespace

struct Buffer::Implementation {
    gpu::Runtime& gpu;
    int device;
    BufferChoice choice;
    std::size_t bytes;
    std::size_t front;  ///< bytes before data()
    std::byte* base = nullptr;
    bool owned = true;
    bool registered = false;
    gpu::StreamHandle stream;
    bool has_stream = false;

    Implementation(gpu::Runtime& runtime, const int on_device, const BufferChoice chosen, const std::size_t size,
                   const std::size_t offset)
        : gpu(runtime), device(on_device), choice(chosen), bytes(size), front(kFrontGuard + offset) {}

    Implementation(const Implementation&) = delete;
    Implementation& operator=(const Implementation&) = delete;

    ~Implementation() {
        // Nothing can be done about a failure here; a driver that is gone has freed everything itself.
        if (has_stream) {
            static_cast<void>(gpu.destroy_stream(stream).ok());
        }
        if (registered) {
            static_cast<void>(gpu.unregister_host(base).ok());
        }
        if (!owned || base == nullptr) {
            return;
        }
        if (choice.kind == BufferKind::host || choice.kind == BufferKind::registered) {
            std::free(base);
        } else {
            static_cast<void>((choice.kind == BufferKind::pinned ? gpu.free_pinned(base) : gpu.free(base)).ok());
        }
    }

    [[nodiscard]] std::size_t total() const noexcept { return front + bytes + kRearGuard; }
    [[nodiscard]] std::byte* data() const noexcept { return base + front; }

    /// Whether the CPU is to do the copying. Managed memory that was asked for on the device stays there.
    [[nodiscard]] bool by_cpu() const noexcept {
        return choice.kind == BufferKind::host || choice.kind == BufferKind::pinned ||
               choice.kind == BufferKind::registered ||
               (choice.kind == BufferKind::managed && !choice.managed_on_device);
    }

    void allocate() {
        const std::string what =
            "allocating " + std::to_string(total()) + " bytes of " + to_string(choice.kind) + " memory";
        void* pointer = nullptr;
        switch (choice.kind) {
            case BufferKind::host:
            case BufferKind::registered:
                pointer = std::aligned_alloc(kFrontGuard, (total() + kFrontGuard - 1) / kFrontGuard * kFrontGuard);
                if (pointer == nullptr) {
                    throw Error(what + " failed", "use smaller sizes (-m) or fewer ranks on this node");
                }
                break;
            case BufferKind::pinned:
                check(gpu.allocate_pinned(total(), pointer), what);
                break;
            case BufferKind::device:
                check(gpu.allocate(device, total(), pointer), what);
                break;
            case BufferKind::managed:
                check(gpu.allocate_managed(device, total(), pointer), what);
                break;
            case BufferKind::pool:
                check(gpu.allocate_from_pool(device, total(), pointer), what);
                break;
        }
        base = static_cast<std::byte*>(pointer);
        if (choice.kind == BufferKind::registered) {
            check(gpu.register_host(base, total()), "page-locking " + std::to_string(total()) + " bytes");
            registered = true;
        }
    }

    void prepare_copies() {
        if (!by_cpu()) {
            check(gpu.create_stream(device, true, stream), "creating a stream");
            has_stream = true;
        }
    }

    void verify() const {
        if (!gpu.is_present()) {
            return;  // all memory is the host's
        }
        const void* const pointer = data();
        gpu::PointerInfo info;
        gpu.classify({&pointer, 1}, &info);
        const gpu::MemoryKind expected = expected_kind(choice.kind);
        const bool right_device = expected != gpu::MemoryKind::device || info.device == device;
        if (info.kind != expected || !right_device) {
            std::string found = gpu::to_string(info.kind);
            if (info.kind == gpu::MemoryKind::device) {
                found += " memory of GPU " + std::to_string(info.device);
            } else {
                found += " memory";
            }
            throw Error("a buffer requested as " + std::string(to_string(choice.kind)) + " memory" +
                            (expected == gpu::MemoryKind::device ? " of GPU " + std::to_string(device) : "") + " is " +
                            found + " to the GPU runtime",
                        "please report this: the benchmark would measure the wrong memory");
        }
    }

    void copy(void* const destination, const void* const source, const std::size_t count) const {
        if (count == 0) {
            return;
        }
        if (by_cpu()) {
            std::memcpy(destination, source, count);
            return;
        }
        check(gpu.copy(destination, source, count, stream), "copying to or from a buffer");
        check(gpu.synchronize_stream(stream), "copying to or from a buffer");
    }

    void settle() const {
        if (choice.kind != BufferKind::managed || !choice.managed_on_device || bytes == 0) {
            return;
        }
        // A device that cannot migrate pages keeps managed memory where it is used; there is nothing to be done then.
        if (gpu.prefetch(data(), bytes, device, stream).ok()) {
            check(gpu.synchronize_stream(stream), "moving managed memory to the GPU");
        }
    }

    void write_guards() const {
        std::vector<std::byte> guard(std::max(front, kRearGuard));
        for (std::size_t i = 0; i < guard.size(); ++i) {
            guard[i] = guard_byte(i);
        }
        copy(base, guard.data(), front);
        copy(data() + bytes, guard.data(), kRearGuard);
    }
};

Buffer::Buffer(gpu::Runtime& gpu, const int device, const BufferChoice choice, const std::size_t bytes,
               const std::size_t offset)
    : _implementation(std::make_unique<Implementation>(gpu, device, choice, bytes, offset)) {
    _implementation->allocate();
    _implementation->prepare_copies();
    _implementation->verify();
    fill(std::byte{0});
}

Buffer::Buffer(gpu::Runtime& gpu, const int device, const BufferChoice choice, const std::size_t bytes,
               const std::size_t offset, void* const memory)
    : _implementation(std::make_unique<Implementation>(gpu, device, choice, bytes, offset)) {
    _implementation->base = static_cast<std::byte*>(memory);
    _implementation->owned = false;
    _implementation->verify();
    _implementation->prepare_copies();
    fill(std::byte{0});
}

Buffer::~Buffer() = default;
Buffer::Buffer(Buffer&& other) noexcept = default;
Buffer& Buffer::operator=(Buffer&& other) noexcept = default;

std::size_t Buffer::capacity_for(const std::size_t bytes, const std::size_t offset) noexcept {
    return kFrontGuard + offset + bytes + kRearGuard;
}

void* Buffer::data() const noexcept {
    return _implementation->data();
}

std::size_t Buffer::size() const noexcept {
    return _implementation->bytes;
}

BufferKind Buffer::kind() const noexcept {
    return _implementation->choice.kind;
}

int Buffer::device() const noexcept {
    return _implementation->device;
}

void Buffer::write(const std::span<const std::byte> bytes, const std::size_t offset) {
    _implementation->copy(_implementation->data() + offset, bytes.data(), bytes.size());
    _implementation->settle();
}

void Buffer::read(const std::span<std::byte> bytes, const std::size_t offset) const {
    _implementation->copy(bytes.data(), _implementation->data() + offset, bytes.size());
}

void Buffer::fill(const std::byte value) {
    const Implementation& self = *_implementation;
    if (self.bytes != 0 && self.by_cpu()) {
        std::memset(self.data(), static_cast<int>(value), self.bytes);
    } else if (self.bytes != 0) {
        check(self.gpu.fill(self.data(), static_cast<unsigned char>(value), self.bytes, self.stream),
              "filling a buffer");
        check(self.gpu.synchronize_stream(self.stream), "filling a buffer");
    }
    self.write_guards();
    self.settle();
}

std::size_t Buffer::damaged_guard_bytes() const {
    const Implementation& self = *_implementation;
    std::vector<std::byte> front(self.front);
    std::vector<std::byte> rear(kRearGuard);
    self.copy(front.data(), self.base, front.size());
    self.copy(rear.data(), self.data() + self.bytes, rear.size());
    std::size_t damaged = 0;
    for (std::size_t i = 0; i < front.size(); ++i) {
        damaged += front[i] != guard_byte(i) ? 1 : 0;
    }
    for (std::size_t i = 0; i < rear.size(); ++i) {
        damaged += rear[i] != guard_byte(i) ? 1 : 0;
    }
    return damaged;
}

void Buffer::damage_data() {
    std::byte byte{};
    read({&byte, 1});
    byte = ~byte;
    write({&byte, 1});
}

void Buffer::damage_guard() const {
    const std::byte wrong = ~guard_byte(0);
    _implementation->copy(_implementation->data() + _implementation->bytes, &wrong, 1);
}

}  // namespace awaken::bench
