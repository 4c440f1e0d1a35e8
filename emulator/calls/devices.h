// Names of errors, devices, contexts, and access of devices to each other.
#pragma once

#include <cstring>
#include <string>
#include <unordered_map>

#include "calls/entry.h"

namespace awaken::emulator::calls {

// ---- names of errors ----

using ErrorNames = std::unordered_map<int, std::string>;

/// Names of errors with a vendor's prefix, for the life of the process.
[[nodiscard]] inline ErrorNames* names_of_errors(const std::string& prefix, const char* (*name_of)(Error) noexcept) {
    auto* const made = new ErrorNames;
    for (int number = 0; number < 1000; ++number) {
        if (const char* name = name_of(static_cast<Error>(number))) {
            made->emplace(number, prefix + name);
        }
    }
    return made;
}

[[nodiscard]] inline const char* name_in(const ErrorNames& names, int error, const char* otherwise) {
    const auto at = names.find(error);
    return at == names.end() ? otherwise : at->second.c_str();
}

// ---- devices ----

template <FrontEnd Api>
int device_count(int* count) {
    return call<Api>([&] { return put(count, core().device_count()); });
}

template <FrontEnd Api>
Error put_device_text(char* buffer, int length, const std::string& text) {
    if (!buffer || (Api::needs_room_for_text && length <= 0)) {
        return Error::invalid_value;
    }
    put_text(buffer, length, text);
    return Error::success;
}

template <FrontEnd Api>
int device_at_bus_id(int* device, const char* text) {
    return call<Api>([&] {
        if (!device || !text) {
            return Error::invalid_value;
        }
        const int found = find_device_by_bus_id(text);
        return found < 0 ? Error::invalid_device : put(device, found);
    });
}

template <FrontEnd Api>
int device_uuid(void* uuid, int device) {
    return on_device<Api>(device, [&](const Device& found) {
        if (!uuid) {
            return Error::invalid_value;
        }
        std::memcpy(uuid, found.uuid, sizeof found.uuid);
        return Error::success;
    });
}

template <FrontEnd Api>
int device_memory(std::size_t* bytes, int device) {
    return on_device<Api>(device, [&](const Device& found) { return put(bytes, found.memory_bytes); });
}

template <FrontEnd Api>
int stream_priorities(int* least, int* greatest) {
    return in_context<Api>([&](Context&) {
        if (least) {
            *least = Api::least_priority;
        }
        if (greatest) {
            *greatest = Api::greatest_priority;
        }
        return Error::success;
    });
}

// ---- contexts ----

template <FrontEnd Api>
int push_context(void* handle) {
    return call<Api>([&] {
        Context* const context = core().find_context(handle);
        if (!context || !Api::usable(*context)) {
            return Error::invalid_context;
        }
        thread_state().contexts.push_back(context);
        return Error::success;
    });
}

template <FrontEnd Api>
int pop_context(void** popped) {
    return call<Api>([&] {
        ThreadState& state = thread_state();
        if (state.contexts.empty()) {
            return Error::invalid_context;
        }
        if (popped) {
            *popped = state.current();
        }
        state.contexts.pop_back();
        return Error::success;
    });
}

template <FrontEnd Api>
int context_flags(unsigned* flags) {
    return in_context<Api>([&](const Context& context) { return put(flags, context.flags); });
}

template <FrontEnd Api>
int synchronize_context() {
    return in_entered_context<Api>([](Context& context) { return synchronize(context); });
}

// ---- access of devices to each other ----

}  // namespace awaken::emulator::calls
