// SPDX-License-Identifier: Apache-2.0
#include "mpi/host_images.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>

#include "base/error.h"

namespace awaken::bench {
namespace {

void check(const gpu::Status& status, const char* const what) {
    if (!status.ok()) {
        throw Error(std::string(what) + " failed: " + status.message(),
                    "use smaller sizes, or leave `staged` out of --compare");
    }
}

}  // namespace

HostImages::HostImages(gpu::Runtime& gpu, const int device, const Memory memory)
    : _gpu(gpu), _device(device), _memory(memory) {
    if (device >= 0) {
        check(_gpu.create_stream(device, true, _stream), "creating a stream");
    }
}

HostImages::~HostImages() {
    release();
    if (_device >= 0) {
        static_cast<void>(_gpu.destroy_stream(_stream).ok());  // nothing to be done when the driver has gone
    }
}

void HostImages::release() noexcept {
    for (const Image& image : _images) {
        if (_memory == Memory::pinned) {
            static_cast<void>(_gpu.free_pinned(image.host).ok());
        } else {
            std::free(image.host);
        }
    }
    _images.clear();
}

void HostImages::prepare(const std::span<const Buffer* const> buffers) {
    release();
    for (const Buffer* const buffer : buffers) {
        if (buffer->kind() != BufferKind::device && buffer->kind() != BufferKind::pool &&
            buffer->kind() != BufferKind::managed) {
            continue;
        }
        const std::size_t bytes = std::max<std::size_t>(buffer->size(), 1);
        void* memory = nullptr;
        if (_memory == Memory::pinned) {
            check(_gpu.allocate_pinned(bytes, memory), "allocating pinned memory");
        } else if (memory = std::malloc(bytes); memory == nullptr) {
            throw std::bad_alloc();
        }
        _images.push_back({static_cast<std::byte*>(buffer->data()), buffer->size(), static_cast<std::byte*>(memory)});
    }
}

void* HostImages::image_of(const void* const data) const noexcept {
    const auto* const address = static_cast<const std::byte*>(data);
    for (const Image& image : _images) {
        if (address >= image.device && address < image.device + std::max<std::size_t>(image.bytes, 1)) {
            return image.host + (address - image.device);
        }
    }
    return const_cast<void*>(data);
}

bool HostImages::queue(const ImageCopy& copy) {
    if (copy.bytes != 0) {
        check(_gpu.copy(copy.destination, copy.source, copy.bytes, _stream), "copying between GPU and host");
    }
    return copy.bytes != 0;
}

void HostImages::synchronize() {
    check(_gpu.synchronize_stream(_stream), "copying between GPU and host");
}

void* HostImages::fetch(const void* const data, const std::size_t bytes) {
    void* const image = image_of(data);
    deliver(image, data, bytes);
    return image;
}

void HostImages::deliver(void* const data, const void* const image, const std::size_t bytes) {
    if (image != data && queue({data, image, bytes})) {
        synchronize();
    }
}

}  // namespace awaken::bench
