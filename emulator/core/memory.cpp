// SPDX-License-Identifier: Apache-2.0
#include "core/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/context.h"
#include "kernels/portable.h"

namespace awaken::emulator {
namespace {

constexpr std::size_t kBlockSize = std::size_t{2} << 20;
constexpr std::size_t kLargestSmall = kBlockSize / 2;
constexpr std::size_t kSmallestGranule = 512;
constexpr std::uint32_t kMagic = 0x4b574131;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
    return (value + multiple - 1) / multiple * multiple;
}

/// Where in a block's file the identity of the allocation at `offset` stands.
constexpr std::size_t ledger_position(std::size_t block_size, std::size_t offset) noexcept {
    return block_size + offset / kSmallestGranule * sizeof(std::uint64_t);
}

void* pointer_to(std::uintptr_t address) noexcept {
    return reinterpret_cast<void*>(address);
}

std::uint64_t checksum(const IpcHandle& handle) noexcept {
    unsigned char bytes[offsetof(IpcHandle, check)];
    std::memcpy(bytes, &handle, sizeof bytes);
    std::uint64_t hash = 14695981039346656037U;  // FNV-1a
    for (const unsigned char byte : bytes) {
        hash = (hash ^ byte) * 1099511628211U;
    }
    return hash;
}

}  // namespace

// Programs that keep many allocations need more descriptors than the usual soft limit.
Descriptor create_file(std::size_t bytes) {
    Descriptor file(memfd_create("gpu-block", MFD_CLOEXEC));
    rlimit limit{};
    if (!file.open() && errno == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        file = Descriptor(memfd_create("gpu-block", MFD_CLOEXEC));
    }
    const bool sized = file.open() && ftruncate(file.number(), static_cast<off_t>(bytes)) == 0;
    return sized ? std::move(file) : Descriptor();
}

std::uintptr_t AddressSpace::take(std::size_t size) {
    for (auto at = _free.begin(); at != _free.end(); ++at) {
        if (at->second < size) {
            continue;
        }
        const auto [base, length] = *at;
        _free.erase(at);
        if (length > size) {
            _free.emplace(base + size, length - size);
        }
        return base;
    }
    return 0;
}

void AddressSpace::give(std::uintptr_t base, std::size_t size) {
    auto next = _free.lower_bound(base);
    if (next != _free.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == base) {
            base = previous->first;
            size += previous->second;
            _free.erase(previous);
        }
    }
    if (next != _free.end() && base + size == next->first) {
        size += next->second;
        _free.erase(next);
    }
    _free.emplace(base, size);
}

void Allocation::add_pending(Ticket ticket) {
    const std::scoped_lock lock(_pending_lock);
    std::erase_if(_pending, [](const Ticket& old) { return old.done(); });
    _pending.push_back(std::move(ticket));
}

void Allocation::wait_for_pending() {
    std::vector<Ticket> pending;
    {
        const std::scoped_lock lock(_pending_lock);
        pending.swap(_pending);
    }
    for (const Ticket& ticket : pending) {
        ticket.wait();
    }
}

Memory::Memory(const Configuration& configuration)
    : _configuration(configuration),
      _granule(configuration.vendor == Vendor::hip ? 4096 : kSmallestGranule),
      _used(std::max<std::size_t>(configuration.visible.size(), 1)) {
    // Room for all devices' memory, as much again that other processes share with this one, and for fragmentation.
    constexpr std::size_t kLeast = std::size_t{64} << 30;
    const std::size_t half =
        std::max(kLeast, round_up(2 * configuration.memory_bytes * configuration.visible.size(), kBlockSize)) +
        kBlockSize;
    void* const range = mmap(nullptr, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
        return;
    }
    _range = reinterpret_cast<std::uintptr_t>(range);
    _half = half;
    // Blocks start at multiples of their size unit; address 0 of the AddressSpace stays "no room".
    const std::uintptr_t first = round_up(_range, kBlockSize);
    _addresses = AddressSpace(first, (_range + _half - first) / kBlockSize * kBlockSize);
    kernels::host::device_range = {_range, _half, static_cast<std::ptrdiff_t>(_half)};
}

bool Memory::reserve(int device, std::size_t bytes) {
    std::atomic<std::size_t>& used = _used[static_cast<std::size_t>(device)];
    const std::size_t limit =
        std::min(_configuration.memory_bytes, _configuration.faults.memory_limit.value_or(_configuration.memory_bytes));
    std::size_t before = used.load();
    do {
        if (bytes > limit || before > limit - bytes) {
            return false;
        }
    } while (!used.compare_exchange_weak(before, before + bytes));
    return true;
}

std::size_t Memory::used(int device) const noexcept {
    return _used[static_cast<std::size_t>(device)].load();
}

bool Memory::map_block(const std::uintptr_t base, const std::size_t size, const int file) const {
    const auto map_at = [&](const std::uintptr_t address) {
        return mmap(pointer_to(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    };
    return map_at(base + _half) && (!_configuration.faults.host_access || map_at(base));
}

void Memory::unmap_block(const std::uintptr_t base, const std::size_t size) const {
    // The reservation comes back in the same step, so that nothing else can settle there.
    const auto reserve_at = [&](const std::uintptr_t address) {
        // Cannot fail where the addresses are reserved already.
        static_cast<void>(
            mmap(pointer_to(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
    };
    reserve_at(base + _half);
    if (_configuration.faults.host_access) {
        reserve_at(base);
    }
}

std::shared_ptr<Block> Memory::make_block(std::size_t size, bool shared) {
    const std::uintptr_t base = _addresses.take(size);
    if (base == 0) {
        return nullptr;
    }
    Descriptor file =
        create_file(shared ? ledger_position(size, size) : ledger_position(size, 0) + sizeof(std::uint64_t));
    if (!file.open() || !map_block(base, size, file.number())) {
        _addresses.give(base, size);
        return nullptr;
    }
    auto block = std::make_shared<Block>();
    block->base = base;
    block->size = size;
    block->file = std::move(file);
    block->shared = shared;
    if (shared) {
        block->room = AddressSpace(base, size);
    }
    return block;
}

void Memory::release_block(Block& block) {
    unmap_block(block.base, block.size);
    block.file = Descriptor();
    _addresses.give(block.base, block.size);
}

void Memory::write_ledger(const Allocation& allocation, std::uint64_t id) {
    const Block& block = *allocation.block;
    const std::size_t at = ledger_position(block.size, allocation.base - block.base);
    // A ledger that cannot be written (no memory left) leaves 0, which refuses the handle: the safe side.
    [[maybe_unused]] const ssize_t written = pwrite(block.file.number(), &id, sizeof id, static_cast<off_t>(at));
}

Allocation& Memory::add_locked(MemoryKind kind, std::uintptr_t base, std::size_t size, int device, Context* context,
                               unsigned flags) {
    const std::shared_ptr<Allocation>& allocation = _allocations[base] = std::make_shared<Allocation>();
    allocation->base = base;
    allocation->size = size;
    allocation->kind = kind;
    allocation->device = device;
    allocation->context = context;
    allocation->id = _next_id++;
    allocation->flags = flags;
    return *allocation;
}

bool Memory::taken_locked(std::uintptr_t address, std::size_t bytes) const {
    const auto next = _allocations.lower_bound(address);
    return (next != _allocations.end() && next->first < address + bytes) || find_locked(address) != nullptr;
}

Error Memory::allocate_device(Context* context, int device, std::size_t bytes, std::shared_ptr<Pool> pool,
                              std::uintptr_t& address) {
    if (bytes == 0) {
        return Error::invalid_value;
    }
    if (bytes > _configuration.memory_bytes) {
        return Error::out_of_memory;
    }
    const bool small = bytes <= kLargestSmall;
    const std::size_t occupied = round_up(bytes, small ? _granule : kBlockSize);
    if (!reserve(device, occupied)) {
        return Error::out_of_memory;
    }
    const bool in_pool = pool != nullptr;

    const std::unique_lock lock(_lock);
    std::shared_ptr<Block> block;
    std::uintptr_t base = 0;
    if (small) {
        auto& candidates = _shared_blocks[{device, in_pool}];
        for (const auto& candidate : candidates) {
            base = candidate->room.take(occupied);
            if (base != 0) {
                block = candidate;
                break;
            }
        }
        if (!block) {
            block = make_block(kBlockSize, true);
            if (block) {
                base = block->room.take(occupied);
                candidates.push_back(block);
            }
        }
    } else {
        block = make_block(occupied, false);
        if (block) {
            base = block->base;
        }
    }
    if (!block) {
        _used[static_cast<std::size_t>(device)] -= occupied;
        return Error::out_of_memory;
    }
    ++block->occupants;
    Allocation& allocation = add_locked(in_pool ? MemoryKind::pool : MemoryKind::device, base, bytes, device, context);
    allocation.block = block;
    allocation.occupied = occupied;
    if (in_pool) {
        const std::uint64_t now = pool->used += occupied;
        if (now > pool->used_high) {
            pool->used_high = now;
        }
        allocation.pool = std::move(pool);
    }
    write_ledger(allocation, allocation.id);
    address = base;
    return Error::success;
}

Error Memory::allocate_host(Context& context, MemoryKind kind, std::size_t bytes, unsigned flags,
                            std::uintptr_t& address) {
    if (bytes == 0) {
        return Error::invalid_value;
    }
    if (kind == MemoryKind::pinned && _configuration.faults.pinned_memory) {
        return Error::out_of_memory;
    }
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (bytes > (std::size_t{1} << 46)) {
        return Error::out_of_memory;
    }
    const std::size_t length = round_up(bytes, page);
    if (kind == MemoryKind::managed && !reserve(context.device, length)) {
        return Error::out_of_memory;
    }
    void* const memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        if (kind == MemoryKind::managed) {
            _used[static_cast<std::size_t>(context.device)] -= length;
        }
        return Error::out_of_memory;
    }
    address = reinterpret_cast<std::uintptr_t>(memory);
    const std::unique_lock lock(_lock);
    add_locked(kind, address, bytes, context.device, &context, flags).occupied = length;
    return Error::success;
}

Error Memory::register_host(Context& context, std::uintptr_t address, std::size_t bytes, unsigned flags) {
    if (address == 0 || bytes == 0 || address + bytes < address || in_device_range(address)) {
        return Error::invalid_value;
    }
    if (_configuration.faults.registering) {
        return Error::out_of_memory;
    }
    // A real driver pins the pages, which fails where none are mapped.
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::uintptr_t first = address / page * page;
    std::vector<unsigned char> resident(round_up(address + bytes - first, page) / page);
    if (mincore(pointer_to(first), address + bytes - first, resident.data()) != 0) {
        return Error::invalid_value;
    }
    const std::unique_lock lock(_lock);
    if (taken_locked(address, bytes)) {
        return Error::host_memory_already_registered;
    }
    add_locked(MemoryKind::registered, address, bytes, context.device, &context, flags);
    return Error::success;
}

void Memory::release_locked(Allocation& allocation) {
    switch (allocation.kind) {
        case MemoryKind::device:
        case MemoryKind::pool: {
            Block& block = *allocation.block;
            write_ledger(allocation, 0);
            _used[static_cast<std::size_t>(allocation.device)] -= allocation.occupied;
            if (allocation.pool) {
                allocation.pool->used -= allocation.occupied;
            }
            if (block.shared) {
                block.room.give(allocation.base, allocation.occupied);
            }
            if (--block.occupants == 0) {
                if (block.shared) {
                    std::erase(_shared_blocks[{allocation.device, allocation.kind == MemoryKind::pool}],
                               allocation.block);
                }
                release_block(block);
            }
            break;
        }
        case MemoryKind::managed:
            _used[static_cast<std::size_t>(allocation.device)] -= allocation.occupied;
            munmap(pointer_to(allocation.base), allocation.occupied);
            break;
        case MemoryKind::pinned:
            munmap(pointer_to(allocation.base), allocation.occupied);
            break;
        case MemoryKind::imported:
            ++_mappings_closed;
            release_block(*allocation.block);
            break;
        case MemoryKind::mapped:
            if (allocation.access != 0) {
                unmap_block(allocation.base, allocation.size);
            }
            break;
        case MemoryKind::registered:
            break;
    }
}

Error Memory::free(std::uintptr_t address, std::initializer_list<MemoryKind> kinds, Error otherwise) {
    const std::unique_lock lock(_lock);
    const auto at = _allocations.find(address);
    if (at == _allocations.end() || std::find(kinds.begin(), kinds.end(), at->second->kind) == kinds.end()) {
        return otherwise;
    }
    const std::shared_ptr<Allocation> allocation = at->second;
    if (allocation->kind == MemoryKind::imported && --allocation->opens > 0) {
        return Error::success;
    }
    _allocations.erase(at);
    release_locked(*allocation);
    return Error::success;
}

void Memory::free_all(const Context& context) {
    const std::unique_lock lock(_lock);
    for (auto at = _allocations.begin(); at != _allocations.end();) {
        if (at->second->context == &context) {
            release_locked(*at->second);
            at = _allocations.erase(at);
        } else {
            ++at;
        }
    }
}

std::shared_ptr<Allocation> Memory::find_locked(std::uintptr_t address) const {
    auto next = _allocations.upper_bound(address);
    if (next == _allocations.begin()) {
        return nullptr;
    }
    const std::shared_ptr<Allocation>& candidate = std::prev(next)->second;
    return address - candidate->base < candidate->size ? candidate : nullptr;
}

std::shared_ptr<Allocation> Memory::find(std::uintptr_t address) const {
    const std::shared_lock lock(_lock);
    return find_locked(address);
}

Error Memory::export_handle(std::uintptr_t address, IpcHandle& handle) {
    if (_configuration.faults.ipc_export) {
        return Error::not_supported;
    }
    const std::shared_ptr<Allocation> allocation = find(address);
    if (!allocation || allocation->kind != MemoryKind::device) {
        return Error::invalid_value;
    }
    struct stat status{};
    if (fstat(allocation->block->file.number(), &status) != 0) {
        return Error::operating_system;
    }
    handle = {};
    handle.magic = kMagic;
    handle.process = getpid();
    handle.file = allocation->block->file.number();
    handle.device = _configuration.visible[static_cast<std::size_t>(allocation->device)];
    handle.inode = status.st_ino;
    handle.block_size = allocation->block->size;
    handle.offset = allocation->base - allocation->block->base;
    handle.size = allocation->size;
    handle.id = allocation->id;
    handle.check = checksum(handle);
    return Error::success;
}

Error Memory::import_handle(Context& context, const IpcHandle& handle, std::uintptr_t& address) {
    if (_configuration.faults.isolated) {
        return Error::invalid_value;
    }
    if (_configuration.faults.ipc_open) {
        return Error::map_failed;
    }
    if (handle.magic != kMagic || handle.check != checksum(handle) || handle.block_size % kBlockSize != 0 ||
        handle.block_size == 0 || handle.size > handle.block_size || handle.offset > handle.block_size - handle.size) {
        return Error::invalid_value;
    }
    if (handle.process == getpid()) {
        return Error::invalid_context;
    }
    const auto& visible = _configuration.visible;
    if (_configuration.faults.hidden_device &&
        std::find(visible.begin(), visible.end(), handle.device) == visible.end()) {
        return Error::invalid_device;
    }
    if (_configuration.faults.no_peer &&
        handle.device != _configuration.visible[static_cast<std::size_t>(context.device)]) {
        return Error::peer_access_unsupported;
    }

    const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
    const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct stat status{};
    std::uint64_t id = 0;
    const auto slot = static_cast<off_t>(ledger_position(handle.block_size, handle.offset));
    // The exporter may have given the descriptor to another file, or the memory to another allocation.
    if (!file.open() || fstat(file.number(), &status) != 0 || status.st_ino != handle.inode ||
        pread(file.number(), &id, sizeof id, slot) != static_cast<ssize_t>(sizeof id) || id != handle.id) {
        return Error::invalid_value;
    }
    const std::string key = std::to_string(handle.process) + ":" + std::to_string(handle.inode) + ":" +
                            std::to_string(handle.id) + ":" +
                            std::to_string(reinterpret_cast<std::uintptr_t>(&context));
    const std::unique_lock lock(_lock);
    for (const auto& [base, allocation] : _allocations) {
        if (allocation->kind == MemoryKind::imported && allocation->import_key == key) {
            ++allocation->opens;
            address = base;
            return Error::success;
        }
    }
    const std::uintptr_t base = _addresses.take(handle.block_size);
    if (base == 0 || !map_block(base, handle.block_size, file.number())) {
        if (base != 0) {
            _addresses.give(base, handle.block_size);
        }
        return Error::map_failed;
    }
    auto block = std::make_shared<Block>();
    block->base = base;
    block->size = handle.block_size;
    address = base + handle.offset;
    Allocation& allocation = add_locked(MemoryKind::imported, address, handle.size, context.device, &context);
    allocation.block = std::move(block);
    allocation.import_key = key;
    allocation.opens = 1;
    ++_mappings_opened;
    return Error::success;
}

}  // namespace awaken::emulator
