// SPDX-License-Identifier: Apache-2.0
#include "trace/recorder.h"

#include <algorithm>
#include <new>
#include <string>
#include <unordered_set>

namespace awaken::trace {

namespace {

/// Events of a thread's first chunk, and of its largest. So a thread with few events takes little memory.
constexpr std::size_t kFirstChunk = 64, kLargestChunk = 4096;

struct Hash {
    using is_transparent = void;
    std::size_t operator()(const std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};

std::atomic<std::uint64_t> recorders{0};

}  // namespace

struct Recorder::Chunk {
    explicit Chunk(const std::size_t events) : capacity(events), slots(new Event[events]) {}

    const std::size_t capacity;
    const std::unique_ptr<Event[]> slots;
    std::atomic<std::size_t> used{0};  ///< slots up to here may be read by others
    std::atomic<Chunk*> next{nullptr};
};

struct Recorder::Track {
    ~Track() {
        for (Chunk* chunk = first.load(std::memory_order_relaxed); chunk != nullptr;) {
            Chunk* const next = chunk->next.load(std::memory_order_relaxed);
            delete chunk;
            chunk = next;
        }
    }

    std::atomic<Chunk*> first{nullptr};
    std::atomic<std::uint64_t> dropped{0};
    std::atomic<std::uint64_t> kept{0};
    // The rest belongs to the thread.
    Chunk* last = nullptr;
    bool full = false;      ///< no further chunk was to be had
    bool may_join = false;  ///< the last event is a poll, and nothing has happened since
    std::vector<Event*> ranges;
    std::uint64_t unkept_ranges = 0;  ///< pushed after those, when there was no room any more
    std::unordered_set<std::string, Hash, std::equal_to<>> names;
};

namespace {

/// The recorder in which the calling thread has a track.
struct OwnTrack {
    std::uint64_t recorder = 0;
    void* track = nullptr;
};
thread_local OwnTrack own;

}  // namespace

Recorder::Recorder(const std::size_t limit_bytes)
    : _number(recorders.fetch_add(1, std::memory_order_relaxed) + 1),
      _left_bytes(static_cast<std::int64_t>(std::min<std::size_t>(limit_bytes, INT64_MAX))) {}

Recorder::~Recorder() = default;

bool Recorder::take_budget(const std::size_t bytes) noexcept {
    const auto wanted = static_cast<std::int64_t>(bytes);
    if (_left_bytes.fetch_sub(wanted, std::memory_order_relaxed) >= wanted) {
        return true;
    }
    _left_bytes.fetch_add(wanted, std::memory_order_relaxed);
    return false;
}

Recorder::Track* Recorder::track() noexcept {
    return own.recorder == _number ? static_cast<Track*>(own.track) : add_track();
}

Recorder::Track* Recorder::add_track() noexcept {
    try {
        auto track = std::make_unique<Track>();
        Track* const result = track.get();
        const std::scoped_lock lock(_mutex);
        _tracks.push_back(std::move(track));
        own = {_number, result};
        return result;
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

bool Recorder::grow(Track& track) noexcept {
    if (track.full) {
        return false;
    }
    const std::size_t wanted = track.last == nullptr ? kFirstChunk : std::min(track.last->capacity * 2, kLargestChunk);
    std::size_t events = wanted;
    // The rest of the budget may suffice for a smaller chunk.
    while (events > 0 && !take_budget(events * sizeof(Event))) {
        events /= 2;
    }
    Chunk* chunk = nullptr;
    if (events > 0) {
        try {
            chunk = new Chunk(events);
        } catch (const std::bad_alloc&) {
            chunk = nullptr;
        }
    }
    if (chunk == nullptr) {
        track.full = true;
        return false;
    }
    (track.last == nullptr ? track.first : track.last->next).store(chunk, std::memory_order_release);
    track.last = chunk;
    return true;
}

Event* Recorder::place(Track& track, const Event& event) noexcept {
    track.may_join = false;
    if ((track.last == nullptr || track.last->used.load(std::memory_order_relaxed) == track.last->capacity) &&
        !grow(track)) {
        track.dropped.store(track.dropped.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return nullptr;
    }
    Chunk& chunk = *track.last;
    const std::size_t at = chunk.used.load(std::memory_order_relaxed);
    chunk.slots[at] = event;
    chunk.used.store(at + 1, std::memory_order_release);
    track.kept.store(track.kept.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    track.may_join = event.is_poll;
    return &chunk.slots[at];
}

/// Adds a poll to the one just before it. Only this thread writes to that event, but others may be reading it.
bool Recorder::joins_last(const Track& track, const Event& event) noexcept {
    if (!track.may_join) {
        return false;
    }
    Event& last = track.last->slots[track.last->used.load(std::memory_order_relaxed) - 1];
    if (last.name != event.name || event.begin_ns - last.end_ns > kPollGap_ns) {
        return false;
    }
    std::atomic_ref(last.bytes).store(last.bytes + event.bytes, std::memory_order_relaxed);
    std::atomic_ref(last.path).store(std::max(last.path, event.path), std::memory_order_relaxed);
    std::atomic_ref(last.repeats).store(last.repeats + 1, std::memory_order_relaxed);
    std::atomic_ref(last.end_ns).store(event.end_ns, std::memory_order_release);
    return true;
}

void Recorder::add(const Event& event) noexcept {
    Track* const mine = event.is_poll ? track() : nullptr;
    if (mine == nullptr || !joins_last(*mine, event)) {
        static_cast<void>(open(event));
    }
}

Event* Recorder::open(const Event& event) noexcept {
    Track* const mine = track();
    if (mine == nullptr) {
        _dropped_without_lane.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
    }
    return place(*mine, event);
}

void Recorder::push_range(const std::string_view name) noexcept {
    Track* const mine = track();
    if (mine == nullptr) {
        _dropped_without_lane.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    Event event;
    event.kind = Kind::range;
    event.begin_ns = now_ns();
    if (mine->unkept_ranges == 0) {
        try {
            auto known = mine->names.find(name);
            if (known == mine->names.end() && take_budget(name.size() + sizeof(std::string))) {
                known = mine->names.emplace(name).first;
            }
            if (known != mine->names.end()) {
                event.name = known->c_str();
                mine->ranges.reserve(mine->ranges.size() + 1);
                if (Event* const placed = place(*mine, event)) {
                    mine->ranges.push_back(placed);
                    return;
                }
                ++mine->unkept_ranges;  // counted as dropped by place()
                return;
            }
        } catch (const std::bad_alloc&) {
            // Counted below.
        }
    }
    ++mine->unkept_ranges;
    mine->dropped.store(mine->dropped.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Recorder::pop_range() noexcept {
    Track* const mine = track();
    if (mine == nullptr) {
        return;
    }
    mine->may_join = false;  // a poll after the range does not join one inside it
    if (mine->unkept_ranges > 0) {
        --mine->unkept_ranges;
    } else if (!mine->ranges.empty()) {
        close(mine->ranges.back(), now_ns());
        mine->ranges.pop_back();
    }
}

std::uint64_t Recorder::dropped() const {
    const std::scoped_lock lock(_mutex);
    std::uint64_t sum = _dropped_without_lane.load(std::memory_order_relaxed);
    for (const std::unique_ptr<Track>& track : _tracks) {
        sum += track->dropped.load(std::memory_order_relaxed);
    }
    return sum;
}

std::uint64_t Recorder::kept() const {
    const std::scoped_lock lock(_mutex);
    std::uint64_t sum = 0;
    for (const std::unique_ptr<Track>& track : _tracks) {
        sum += track->kept.load(std::memory_order_relaxed);
    }
    return sum;
}

void Recorder::for_each(const std::function<void(int thread, const Event& event)>& use) const {
    std::vector<const Track*> tracks;
    {
        const std::scoped_lock lock(_mutex);
        for (const std::unique_ptr<Track>& track : _tracks) {
            tracks.push_back(track.get());
        }
    }
    for (std::size_t thread = 0; thread < tracks.size(); ++thread) {
        Chunk* chunk = tracks[thread]->first.load(std::memory_order_acquire);
        while (chunk != nullptr) {
            const std::size_t used = chunk->used.load(std::memory_order_acquire);
            // Another chunk follows only a chunk that was full by then: the thread may have filled it meanwhile.
            Chunk* const next = used == chunk->capacity ? chunk->next.load(std::memory_order_acquire) : nullptr;
            for (std::size_t i = 0; i < used; ++i) {
                Event& slot = chunk->slots[i];
                // Another thread may close the event at this moment.
                Event copy;
                copy.end_ns = std::atomic_ref(slot.end_ns).load(std::memory_order_acquire);
                copy.begin_ns = slot.begin_ns;
                copy.name = slot.name;
                copy.kind = slot.kind;
                copy.bytes = std::atomic_ref(slot.bytes).load(std::memory_order_relaxed);
                copy.repeats = std::atomic_ref(slot.repeats).load(std::memory_order_relaxed);
                copy.path = std::atomic_ref(slot.path).load(std::memory_order_relaxed);
                copy.peer = slot.peer;
                copy.members = slot.members;
                copy.device = slot.device;
                use(static_cast<int>(thread), copy);
            }
            chunk = next;
        }
    }
}

}  // namespace awaken::trace
