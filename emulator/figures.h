// SPDX-License-Identifier: Apache-2.0
// Figures of a device, as a vendor's queries of attributes and its structure of properties give them.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "front_end.h"

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

/// A structure of properties: which of the figures' layouts it has, its length, and where the rest lies. 0 for what it
/// has not.
struct PropertyLayout {
    std::size_t figures, size, uuid, memory, pci_bus, architecture;
};

template <std::size_t Count>
[[nodiscard]] Error put_properties(const Device& device, const std::array<Figure, Count>& figures,
                                   const PropertyLayout& layout, void* properties) noexcept {
    if (!properties) {
        return Error::invalid_value;
    }
    std::memset(properties, 0, layout.size);
    put_text(static_cast<char*>(properties), 256, device.name);
    if (layout.uuid != 0) {
        put_field(properties, layout.uuid, device.uuid);
    }
    put_field(properties, layout.memory, device.memory_bytes);
    put_field(properties, layout.pci_bus, device.pci_bus);
    if (layout.architecture != 0) {
        put_text(static_cast<char*>(properties) + layout.architecture, 256,
                 core().configuration().xnack ? "gfx90a:sramecc+:xnack+" : "gfx90a:sramecc+:xnack-");
    }
    for (const Figure& figure : figures) {
        const std::size_t offset = figure.offsets[layout.figures];
        if (offset != 0 && figure.bytes == 8) {
            put_field(properties, offset, figure.value);
        } else if (offset != 0) {
            put_field(properties, offset, static_cast<int>(figure.value));
        }
    }
    return Error::success;
}

}  // namespace awaken::emulator
