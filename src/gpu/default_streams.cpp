// SPDX-License-Identifier: Apache-2.0
#include "gpu/default_streams.h"

#include <new>
#include <utility>

#include "gpu/wait.h"

namespace awaken::gpu {

DefaultStreams::~DefaultStreams() {
    for (Device* device = _devices.load(); device != nullptr;) {
        delete std::exchange(device, device->next);
    }
}

DefaultStreams::Device* DefaultStreams::known(const int device) const noexcept {
    Device* each = _devices.load(std::memory_order_acquire);
    while (each != nullptr && each->number != device) {
        each = each->next;
    }
    return each;
}

Status DefaultStreams::find(const int device, Device*& found) {
    found = known(device);
    if (found != nullptr) {
        return {};
    }
    const std::scoped_lock lock(_mutex);
    found = known(device);
    if (found != nullptr) {
        return {};
    }
    StreamHandle stream;
    if (const Status status = _runtime.create_stream(device, true, stream); !status.ok()) {
        return status;
    }
    found = new Device{device, stream, _devices.load(std::memory_order_relaxed), {}, {}, {}};
    _devices.store(found, std::memory_order_release);
    return {};
}

Status DefaultStreams::acquire(const int device, StreamHandle& stream, EventHandle& event) {
    Device* here = nullptr;
    if (const Status status = find(device, here); !status.ok()) {
        return status;
    }
    stream = here->stream;
    if (void* const at_hand = here->at_hand.exchange(nullptr, std::memory_order_acquire); at_hand != nullptr) {
        event = {at_hand, device};
        return {};
    }
    {
        const std::scoped_lock lock(here->mutex);
        if (!here->spare.empty()) {
            event = here->spare.back();
            here->spare.pop_back();
            return {};
        }
    }
    return _runtime.create_event(device, event);
}

Status DefaultStreams::mark(const int device, EventHandle& mark) noexcept {
    try {
        drop(mark);
        StreamHandle stream;
        if (const Status status = acquire(device, stream, mark); !status.ok()) {
            return status;
        }
        const Status status = _runtime.record_event(mark, stream);
        if (!status.ok()) {
            drop(mark);
        }
        return status;
    } catch (const std::bad_alloc&) {
        return {kUnsupported, "marking the default stream", "out of host memory"};
    }
}

Status DefaultStreams::query(EventHandle& mark, bool& over) noexcept {
    over = true;
    if (mark.value == nullptr) {
        return {};
    }
    const Status status = _runtime.query_event(mark, over);
    if (!status.ok() || over) {
        drop(mark);
    }
    return status;
}

void DefaultStreams::drop(EventHandle& mark) noexcept {
    const EventHandle event = std::exchange(mark, {});
    if (event.value == nullptr) {
        return;
    }
    Device* const here = known(event.device);  // the device that it was acquired on
    void* none = nullptr;
    if (here->at_hand.compare_exchange_strong(none, event.value, std::memory_order_release,
                                              std::memory_order_relaxed)) {
        return;
    }
    try {
        const std::scoped_lock lock(here->mutex);
        here->spare.push_back(event);
    } catch (const std::bad_alloc&) {
        static_cast<void>(_runtime.destroy_event(event));
    }
}

Status DefaultStreams::finish(const int device) noexcept {
    EventHandle event;
    if (const Status status = mark(device, event); !status.ok()) {
        return status;
    }
    Status status;
    static_cast<void>(poll_until_over(
        [&] {
            bool over = false;
            status = query(event, over);
            return !status.ok() || over ? 1 : 0;
        },
        0));
    return status;
}

}  // namespace awaken::gpu
