// SPDX-License-Identifier: Apache-2.0
#include "core/context.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>

namespace awaken::emulator {

std::uint64_t next_context_identity() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1) + 1;
}

Context::Context(int device_, bool primary_) : device(device_), primary(primary_) {
    legacy = create_stream(Stream::Role::legacy_default, true, 0, 0);
}

std::shared_ptr<Stream> Context::create_stream(Stream::Role role, bool blocking, unsigned flags_, int priority) {
    const std::scoped_lock lock(order);
    auto stream = std::make_shared<Stream>(*this, streams_made++, role, blocking, flags_, priority);
    std::erase_if(streams, [](const std::weak_ptr<Stream>& weak) { return weak.expired(); });
    streams.push_back(stream);
    return stream;
}

std::shared_ptr<Stream> Context::per_thread_stream() {
    std::shared_ptr<Stream>& stream = thread_state().own_streams[this];
    if (!stream) {
        stream = create_stream(Stream::Role::per_thread_default, true, 0, 0);
    }
    return stream;
}

std::vector<std::shared_ptr<Stream>> Context::all_streams() {
    std::vector<std::shared_ptr<Stream>> found;
    const std::scoped_lock lock(order);
    for (const auto& weak : streams) {
        if (auto stream = weak.lock()) {
            found.push_back(std::move(stream));
        }
    }
    return found;
}

std::vector<Ticket> Context::unfinished() {
    std::vector<Ticket> found;
    for (const auto& stream : all_streams()) {
        if (Ticket ticket = stream->last(); !ticket.done()) {
            found.push_back(std::move(ticket));
        }
    }
    return found;
}

void Context::synchronize() {
    for (const Ticket& ticket : unfinished()) {
        ticket.wait();
    }
}

namespace {
std::atomic<unsigned> held_up{0};
}

unsigned calls_held_up() noexcept {
    return held_up.load();
}

void await_release(std::shared_mutex& exclusive) {
    if (!exclusive.try_lock_shared()) {
        ++held_up;
        exclusive.lock_shared();
        --held_up;
    }
    exclusive.unlock_shared();
}

void ThreadState::set_current(Context* context) {
    if (!contexts.empty()) {
        contexts.pop_back();
    }
    if (context) {
        contexts.push_back(context);
    }
}

ThreadState::~ThreadState() {
    for (const auto& [context, stream] : own_streams) {
        stream->close();
    }
}

ThreadState& thread_state() {
    // Not a thread_local object: those of the main thread are destroyed before the process's exit handlers run, and
    // programs call a driver from exit handlers. A key's destructor runs when a thread ends, but not when the process
    // does.
    static const pthread_key_t key = [] {
        pthread_key_t made{};
        if (pthread_key_create(&made, [](void* state) { delete static_cast<ThreadState*>(state); }) != 0) {
            std::abort();
        }
        return made;
    }();
    auto* state = static_cast<ThreadState*>(pthread_getspecific(key));
    if (!state) {
        state = new ThreadState;
        if (pthread_setspecific(key, state) != 0) {
            std::abort();
        }
    }
    return *state;
}

}  // namespace awaken::emulator
