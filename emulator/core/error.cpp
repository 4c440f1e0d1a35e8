// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

#include <algorithm>
#include <array>

namespace awaken::emulator {
namespace {

struct Entry {
    Error error;
    const char* capital;
    const char* camel;
    const char* words;
};

constexpr std::array kEntries{
#define AWAKEN_DESCRIBE_ERROR(name, number, ...) Entry{Error::name, __VA_ARGS__},
    AWAKEN_EMULATED_ERRORS(AWAKEN_DESCRIBE_ERROR)
#undef AWAKEN_DESCRIBE_ERROR
};

const Entry* find(Error error) noexcept {
    const auto at = std::find_if(kEntries.begin(), kEntries.end(), [&](const Entry& e) { return e.error == error; });
    return at == kEntries.end() ? nullptr : &*at;
}

}  // namespace

const char* description(Error error) noexcept {
    const Entry* entry = find(error);
    return entry ? entry->words : "unrecognized error code";
}

const char* capital_name(Error error) noexcept {
    const Entry* entry = find(error);
    return entry ? entry->capital : nullptr;
}

const char* camel_name(Error error) noexcept {
    const Entry* entry = find(error);
    return entry ? entry->camel : nullptr;
}

}  // namespace awaken::emulator
