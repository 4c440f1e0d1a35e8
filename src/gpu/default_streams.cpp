#include "gpu/default_streams.h"

#include <new>
#include <utility>

#include "gpu/wait.h"

namespace awaken::gpu {

Status DefaultStreams::acquire(const int device, StreamHandle& stream, EventHandle& event) {
    {
        const std::scoped_lock lock(_mutex);
        Device& here = _devices[device];
        if (here.stream.value == nullptr) {
            if (const Status status = _runtime.create_stream(device, true, here.stream); !status.ok()) return status;
        }
        stream = here.stream;
        if (!here.spare.empty()) {
            event = here.spare.back();
            here.spare.pop_back();
            return {};
        }
    }
    return _runtime.create_event(device, event);
}

Status DefaultStreams::mark(const int device, EventHandle& mark) noexcept {
    try {
        drop(mark);
        StreamHandle stream;
        if (const Status status = acquire(device, stream, mark); !status.ok()) return status;
        const Status status = _runtime.record_event(mark, stream);
        if (!status.ok()) drop(mark);
        return status;
    } catch (const std::bad_alloc&) {
        return {kUnsupported, "marking the default stream", "out of host memory"};
    }
}

Status DefaultStreams::query(EventHandle& mark, bool& over) noexcept {
    over = true;
    if (mark.value == nullptr) return {};
    const Status status = _runtime.query_event(mark, over);
    if (!status.ok() || over) drop(mark);
    return status;
}

void DefaultStreams::drop(EventHandle& mark) noexcept {
    const EventHandle event = std::exchange(mark, {});
    if (event.value == nullptr) return;
    try {
        const std::scoped_lock lock(_mutex);
        _devices[event.device].spare.push_back(event);
    } catch (const std::bad_alloc&) {
        static_cast<void>(_runtime.destroy_event(event));
    }
}

Status DefaultStreams::finish(const int device) noexcept {
    EventHandle event;
    if (const Status status = mark(device, event); !status.ok()) return status;
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
