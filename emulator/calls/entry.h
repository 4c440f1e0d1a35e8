// SPDX-License-Identifier: Apache-2.0
// How a call enters the core, for all front ends. The other headers of this folder have the calls themselves.
//
// A front end is CUDA's driver, CUDA's runtime or HIP. Its .cpp file says in a struct `Api` what differs, and how its
// names begin (AWAKEN_CALL), and then includes these headers.
#pragma once

#include <concepts>

#include "core/capture.h"
#include "front_end.h"

namespace awaken::emulator::calls {

/// How the program knows a call that is named by AWAKEN_CALL, for words to the user.
#define AWAKEN_NAME(name) AWAKEN_TEXT(AWAKEN_CALL(name))

template <typename Api>
concept FrontEnd = requires(Context*& current, const Context& context, Error error, const Device& device,
                            const Allocation& allocation, Address address) {
    // Whether the library may be used now.
    { Api::ready() } -> std::same_as<Error>;
    // The context that calls of this thread work on, or why there is none.
    { Api::find_context(current) } -> std::same_as<Error>;
    // Whether a thread may make it current.
    { Api::usable(context) } -> std::same_as<bool>;
    // What a call returns; the runtimes keep it as the last error too.
    { Api::result(error) } -> std::same_as<int>;
    // What a call returns that makes or opens an IPC handle.
    { Api::ipc_error(error) } -> std::same_as<Error>;
    // A device attribute by the vendor's number; -1 for one that there is not.
    { Api::attribute(device, int{}) } -> std::same_as<int>;
    // The vendor's numbers for kinds of memory.
    { Api::host_type() } -> std::same_as<int>;
    { Api::memory_type(allocation) } -> std::same_as<int>;
    // Where kernels find host memory.
    { Api::address_for_kernels(allocation, address) } -> std::same_as<Address>;
    // There is memory of no bytes: address 0, which can be freed.
    { Api::has_empty_memory } -> std::convertible_to<bool>;
    // An allocation that fails leaves address 0.
    { Api::clears_address } -> std::convertible_to<bool>;
    // A buffer for a text must have room for something.
    { Api::needs_room_for_text } -> std::convertible_to<bool>;
    // What streams can ask for.
    { Api::least_priority } -> std::convertible_to<int>;
    { Api::greatest_priority } -> std::convertible_to<int>;
};

static_assert(FrontEnd<Api>);

/// For calls that need the library only.
template <typename Body>
int call(Body&& body) noexcept {
    return Api::result(guarded([&] {
        const Error error = Api::ready();
        return error == Error::success ? body() : error;
    }));
}

template <typename Body>
int on_device(int device, Body&& body) noexcept {
    return call([&] { return core().valid_device(device) ? body(core().device(device)) : Error::invalid_device; });
}

/// For calls that work on the current context.
template <typename Body>
int in_context(Body&& body) noexcept {
    return call([&] {
        Context* context = nullptr;
        const Error error = Api::find_context(context);
        return error == Error::success ? body(*context) : error;
    });
}

// With HIP nothing locks a context and nothing is captured, so that the next ones come down to the plain forms.

/// For calls that are held up while a call of another thread has locked the context.
template <typename Body>
int in_entered_context(Body&& body) noexcept {
    return in_context([&](Context& context) {
        context.enter();
        return body(context);
    });
}

/// For calls that could be unsafe while a stream is captured; held up like the above.
template <typename Body>
int unless_capturing(Body&& body) noexcept {
    return in_entered_context([&](Context& context) {
        const Error error = allowed_by_captures();
        return error == Error::success ? body(context) : error;
    });
}

/// For calls on a stream, whose context need not be current; 0 is the current context's default stream.
template <typename Body>
int on_stream(void* handle, Body&& body) noexcept {
    return in_context([&](Context& context) {
        const std::shared_ptr<Stream> stream = core().stream(context, handle);
        return stream ? body(stream) : Error::invalid_handle;
    });
}

/// For calls on a stream that are refused for the default stream while a stream that it waits for is captured.
template <typename Body>
int on_allowed_stream(void* handle, Body&& body) noexcept {
    return on_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        const Error error = default_stream_allowed(*stream);
        return error == Error::success ? body(stream) : error;
    });
}

/// For calls that give work to a stream: the same, held up as above.
template <typename Body>
int work_on_stream(void* handle, Body&& body) noexcept {
    return on_allowed_stream(handle, [&](const std::shared_ptr<Stream>& stream) {
        stream->context().enter();
        return body(stream);
    });
}

template <typename Body>
int on_event(void* handle, Body&& body) noexcept {
    return call([&] {
        const std::shared_ptr<Event> event = core().events.find(handle);
        return event ? body(*event) : Error::invalid_handle;
    });
}

}  // namespace awaken::emulator::calls
