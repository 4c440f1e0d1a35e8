// SPDX-License-Identifier: Apache-2.0
// Addresses and physical memory apart: what cuMemAddressReserve, cuMemCreate, cuMemMap and their like do.
//
// Physical memory is a file. A mapping is an allocation of the kind `mapped` at an address of a reservation; the file
// is mapped there while a device has access. A trailer behind the data lets another process know the file by its
// descriptor.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "core/memory.h"

namespace awaken::emulator {
namespace {

constexpr std::uint64_t kTrailerMagic = 0x796d656d41574b41;

/// Behind the data of physical memory.
struct Trailer {
    std::uint64_t magic;
    std::uint64_t size;
    std::int64_t device;  ///< of the machine
};

}  // namespace

Physical::~Physical() {
    if (used) {
        *used -= size;
    }
}

Error Memory::reserve_addresses(const std::size_t bytes, const std::size_t alignment, std::uintptr_t& address) {
    const bool sound_alignment = (alignment & (alignment - 1)) == 0;
    if (bytes == 0 || bytes % kPhysicalGranularity != 0 || !sound_alignment) {
        return Error::invalid_value;
    }
    const std::size_t spare = alignment > kPhysicalGranularity ? alignment - kPhysicalGranularity : 0;
    if (bytes > _half || spare > _half - bytes) {
        return Error::out_of_memory;
    }
    const std::unique_lock lock(_lock);
    const std::uintptr_t base = _addresses.take(bytes + spare);
    if (base == 0) {
        return Error::out_of_memory;
    }
    const std::uintptr_t first = spare == 0 ? base : (base + alignment - 1) / alignment * alignment;
    if (first > base) {
        _addresses.give(base, first - base);
    }
    if (first - base < spare) {
        _addresses.give(first + bytes, spare - (first - base));
    }
    _reservations[first] = bytes;
    address = first;
    return Error::success;
}

Error Memory::free_addresses(const std::uintptr_t address, const std::size_t bytes) {
    const std::unique_lock lock(_lock);
    const auto reservation = _reservations.find(address);
    if (reservation == _reservations.end() || reservation->second != bytes) {
        return Error::invalid_value;
    }
    const auto mapping = _allocations.lower_bound(address);
    if (mapping != _allocations.end() && mapping->first < address + bytes) {
        return Error::invalid_value;
    }
    _reservations.erase(reservation);
    _addresses.give(address, bytes);
    return Error::success;
}

Error Memory::create_physical(const int device, const std::size_t bytes, const unsigned long long handle_types,
                              std::shared_ptr<Physical>& physical) {
    if (bytes == 0 || bytes % kPhysicalGranularity != 0) {
        return Error::invalid_value;
    }
    if (bytes > _configuration.memory_bytes || !reserve(device, bytes)) {
        return Error::out_of_memory;
    }
    auto made = std::make_shared<Physical>();
    made->device = device;
    made->size = bytes;
    made->handle_types = handle_types;
    made->used = &_used[static_cast<std::size_t>(device)];
    made->id = _next_id++;
    made->file = create_file(bytes + sizeof(Trailer));
    const Trailer trailer{kTrailerMagic, bytes, _configuration.visible[static_cast<std::size_t>(device)]};
    if (!made->file.open() || pwrite(made->file.number(), &trailer, sizeof trailer, static_cast<off_t>(bytes)) !=
                                  static_cast<ssize_t>(sizeof trailer)) {
        return Error::out_of_memory;
    }
    physical = std::move(made);
    return Error::success;
}

Error Memory::export_physical(const Physical& physical, int& file) {
    if (physical.handle_types == 0) {
        return Error::invalid_value;
    }
    const int made = fcntl(physical.file.number(), F_DUPFD_CLOEXEC, 0);
    if (made < 0) {
        return Error::operating_system;
    }
    file = made;
    return Error::success;
}

Error Memory::import_physical(const int file, std::shared_ptr<Physical>& physical) {
    if (_configuration.faults.descriptor_import) {
        return Error::operating_system;
    }
    struct stat status{};
    Trailer trailer{};
    if (fstat(file, &status) != 0 || status.st_size <= static_cast<off_t>(sizeof trailer)) {
        return Error::invalid_value;
    }
    const off_t at = status.st_size - static_cast<off_t>(sizeof trailer);
    if (pread(file, &trailer, sizeof trailer, at) != static_cast<ssize_t>(sizeof trailer) ||
        trailer.magic != kTrailerMagic || trailer.size != static_cast<std::uint64_t>(at)) {
        return Error::invalid_value;
    }
    const auto& visible = _configuration.visible;
    const auto device = std::find(visible.begin(), visible.end(), static_cast<int>(trailer.device));
    if (device == visible.end()) {
        return Error::invalid_device;
    }
    auto made = std::make_shared<Physical>();
    made->device = static_cast<int>(device - visible.begin());
    made->size = trailer.size;
    made->id = _next_id++;
    made->file = Descriptor(fcntl(file, F_DUPFD_CLOEXEC, 0));
    if (!made->file.open()) {
        return Error::operating_system;
    }
    physical = std::move(made);
    return Error::success;
}

Error Memory::map(const std::uintptr_t address, const std::size_t bytes, std::shared_ptr<Physical> physical) {
    // The driver maps whole handles only.
    if (bytes != physical->size) {
        return Error::not_supported;
    }
    if (address % kPhysicalGranularity != 0) {
        return Error::invalid_value;
    }
    const std::unique_lock lock(_lock);
    auto reservation = _reservations.upper_bound(address);
    if (reservation == _reservations.begin()) {
        return Error::invalid_value;
    }
    --reservation;
    const auto [start, length] = *reservation;
    if (address - start >= length || bytes > length - (address - start)) {
        return Error::invalid_value;
    }
    if (taken_locked(address, bytes)) {
        return Error::invalid_value;
    }
    Allocation& allocation = add_locked(MemoryKind::mapped, address, bytes, physical->device, nullptr);
    allocation.physical = std::move(physical);
    allocation.reservation_base = start;
    allocation.reservation_size = length;
    allocation.synchronous = true;  // as the driver has it
    return Error::success;
}

Error Memory::mappings_locked(const std::uintptr_t address, const std::size_t bytes,
                              std::vector<std::shared_ptr<Allocation>>& found) const {
    std::uintptr_t expected = address;
    for (auto at = _allocations.find(address); at != _allocations.end() && expected - address < bytes; ++at) {
        if (at->first != expected || at->second->kind != MemoryKind::mapped) {
            return Error::invalid_value;
        }
        expected += at->second->size;
        found.push_back(at->second);
    }
    return bytes != 0 && expected - address == bytes ? Error::success : Error::invalid_value;
}

Error Memory::unmap(const std::uintptr_t address, const std::size_t bytes) {
    const std::unique_lock lock(_lock);
    std::vector<std::shared_ptr<Allocation>> mappings;
    if (const Error error = mappings_locked(address, bytes, mappings); error != Error::success) {
        return error;
    }
    for (const auto& mapping : mappings) {
        _allocations.erase(mapping->base);
        release_locked(*mapping);
    }
    return Error::success;
}

Error Memory::set_access(const std::uintptr_t address, const std::size_t bytes, const int device, const bool on) {
    const std::unique_lock lock(_lock);
    std::vector<std::shared_ptr<Allocation>> mappings;
    if (const Error error = mappings_locked(address, bytes, mappings); error != Error::success) {
        return error;
    }
    for (const auto& mapping : mappings) {
        const std::uint32_t before = mapping->access;
        const std::uint32_t bit = std::uint32_t{1} << device;
        const std::uint32_t after = on ? before | bit : before & ~bit;
        if (before == 0 && after != 0 && !map_block(mapping->base, mapping->size, mapping->physical->file.number())) {
            return Error::map_failed;
        }
        if (before != 0 && after == 0) {
            unmap_block(mapping->base, mapping->size);
        }
        mapping->access = after;
    }
    return Error::success;
}

bool Memory::reachable(const Allocation& first, const std::uintptr_t address, const std::size_t bytes,
                       const int device) const {
    if (first.kind != MemoryKind::mapped) {
        return first.contains(address, bytes) && first.accessible_by(device);
    }
    const std::shared_lock lock(_lock);
    std::uintptr_t expected = first.base;
    for (auto at = _allocations.find(first.base); at != _allocations.end() && at->first == expected; ++at) {
        if (!at->second->accessible_by(device)) {
            return false;
        }
        expected += at->second->size;
        if (expected - address >= bytes) {
            return true;
        }
    }
    return false;
}

}  // namespace awaken::emulator
