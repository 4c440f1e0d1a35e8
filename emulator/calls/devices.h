// SPDX-License-Identifier: Apache-2.0
// Names of errors, and what is told of devices.
#pragma once

#include <cstring>
#include <string>
#include <unordered_map>

#include "calls/entry.h"

namespace awaken::emulator::calls {

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

inline Error put_device_text(char* buffer, int length, const std::string& text) {
    if (!buffer || (Api::needs_room_for_text && length <= 0)) {
        return Error::invalid_value;
    }
    put_text(buffer, length, text);
    return Error::success;
}

inline int device_at_bus_id(int* device, const char* text) {
    return call([&] {
        if (!device || !text) {
            return Error::invalid_value;
        }
        const int found = find_device_by_bus_id(text);
        return found < 0 ? Error::invalid_device : put(device, found);
    });
}

}  // namespace awaken::emulator::calls
