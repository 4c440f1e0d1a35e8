// Figures of a device, as a vendor's queries of attributes and its structure of properties give them.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "core/core.h"

namespace awaken::emulator {

/// A figure that all devices have alike.
struct Figure {
    int attribute;                         ///< its number; kNoAttribute for one that is a property only
    std::array<std::uint16_t, 2> offsets;  ///< in the structure's two layouts; 0 where it is not in it
    int bytes;                             ///< of the property: 4 or 8
    std::int64_t value;
};
constexpr int kNoAttribute = -1;

/// `otherwise` for a number that no figure has.
template <std::size_t Count>
[[nodiscard]] int attribute_of(const std::array<Figure, Count>& figures, int attribute, int otherwise) noexcept {
    for (const Figure& figure : figures) {
        if (figure.attribute == attribute && attribute != kNoAttribute) {
            return static_cast<int>(figure.value);
        }
    }
    return otherwise;
}

template <typename Value>
void put_field(void* properties, std::size_t offset, const Value& value) noexcept {
    std::memcpy(static_cast<std::byte*>(properties) + offset, &value, sizeof value);
}

/// Into a structure of zeros.
template <std::size_t Count>
void put_figures(const std::array<Figure, Count>& figures, std::size_t layout, void* properties) noexcept {
    for (const Figure& figure : figures) {
        const std::size_t offset = figure.offsets[layout];
        if (offset != 0 && figure.bytes == 8) {
            put_field(properties, offset, figure.value);
        } else if (offset != 0) {
            put_field(properties, offset, static_cast<int>(figure.value));
        }
    }
}

}  // namespace awaken::emulator
