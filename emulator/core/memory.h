// SPDX-License-Identifier: Apache-2.0
// Memory of the emulated machine.
//
// Device memory lies in memfd files, one a block. One range of addresses is reserved for it, twice as long as needed:
// in the first half lie the addresses that the program sees, without access rights, so that touching them on the host
// faults (but with the licence host-access); in the second half, at a constant distance, the same blocks are mapped
// readable and writable for copies and kernels. Small allocations share a block of 2 MiB, as on real hardware; a block
// that becomes empty is given back to the system, and its addresses are the first to be handed out again.
//
// A block's file has a ledger behind the data: for each allocation slot the identity of the allocation that lies there.
// The other process of an IPC pair reads it before it maps, so that a handle to freed memory is refused.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "core/configuration.h"
#include "core/error.h"
#include "core/stream.h"
#include "descriptor.h"

namespace awaken::emulator {

enum class MemoryKind : std::uint8_t {
    device,      ///< cuMemAlloc: IPC may export it
    pool,        ///< stream-ordered allocator: legacy IPC refuses it
    managed,     ///< host and device use the same address
    pinned,      ///< page-locked host memory from the runtime
    registered,  ///< the program's host memory, page-locked later
    imported,    ///< another process's device memory, opened by IPC
    mapped       ///< physical memory at an address of a reservation: cuMemMap
};

/// First-fit addresses of a range; freed ones are merged with their neighbours.
class AddressSpace {
  public:
    AddressSpace() = default;
    AddressSpace(std::uintptr_t base, std::size_t size) { _free.emplace(base, size); }

    /// Address of `size` bytes, which should be a multiple of the alignment in use; 0 when there is no room.
    [[nodiscard]] std::uintptr_t take(std::size_t size);
    void give(std::uintptr_t base, std::size_t size);

  private:
    std::map<std::uintptr_t, std::size_t> _free;
};

/// A memory pool: its identity, what programs set and read, and which devices reach its memory.
struct Pool {
    int device = 0;
    std::atomic<std::uint32_t> access{0};  ///< a bit for each other device that the program has let use it
    std::atomic<std::uint64_t> release_threshold{0};
    std::atomic<std::uint64_t> used{0};
    std::atomic<std::uint64_t> used_high{0};

    [[nodiscard]] bool accessible_by(int other) const noexcept {
        return other == device || (access & (std::uint32_t{1} << other)) != 0;
    }
};

struct Block {
    std::uintptr_t base = 0;
    std::size_t size = 0;
    Descriptor file;
    bool shared = false;  ///< holds small allocations
    AddressSpace room;    ///< of a shared block
    std::size_t occupants = 0;
};

/// Physical memory by itself, cuMemCreate's; lives as long as a handle or a mapping of it.
struct Physical {
    Physical() = default;
    Physical(const Physical&) = delete;
    Physical& operator=(const Physical&) = delete;
    ~Physical();

    int device = 0;  ///< as the program counts
    std::size_t size = 0;
    Descriptor file;
    unsigned long long handle_types = 0;  ///< in which it may be exported
    std::uint64_t id = 0;
    std::atomic<std::size_t>* used = nullptr;  ///< the count of the device's memory; null for what was imported
    std::atomic<unsigned> references{1};       ///< that the program holds
};

/// Physical memory comes in multiples of this, and so do reservations of addresses.
constexpr std::size_t kPhysicalGranularity = std::size_t{2} << 20;

/// An unnamed file for device memory; not open when there is none to be had.
[[nodiscard]] Descriptor create_file(std::size_t bytes);

struct Allocation {
    std::uintptr_t base = 0;
    std::size_t size = 0;
    MemoryKind kind = MemoryKind::device;
    int device = -1;             ///< as the program counts; the current one of the call for host memory
    Context* context = nullptr;  ///< null for pool memory and mappings
    std::uint64_t id = 0;        ///< never used again in this process
    unsigned flags = 0;          ///< as the program passed them
    std::shared_ptr<Block> block;
    std::size_t occupied = 0;  ///< bytes taken of the block, or the length of the mapping
    std::shared_ptr<Pool> pool;
    std::atomic<bool> synchronous{false};  ///< SYNC_MEMOPS is set

    std::string import_key;  ///< identity of what was opened
    std::size_t opens = 0;   ///< how often; guarded by the memory's lock

    std::shared_ptr<Physical> physical;   ///< of a mapping, like what follows
    std::uintptr_t reservation_base = 0;  ///< of the addresses that it lies in
    std::size_t reservation_size = 0;
    std::atomic<std::uint32_t> access{0};  ///< a bit for each device that may touch it

    /// Of a device, in the sense that the host must not touch it.
    [[nodiscard]] bool on_device() const noexcept {
        return kind == MemoryKind::device || kind == MemoryKind::pool || kind == MemoryKind::imported ||
               kind == MemoryKind::mapped;
    }
    [[nodiscard]] bool contains(std::uintptr_t address, std::size_t bytes) const noexcept {
        return address >= base && address - base <= size && bytes <= size - (address - base);
    }

    /// Whether the program has given the device access, where it has to.
    [[nodiscard]] bool accessible_by(int other) const noexcept {
        if (kind == MemoryKind::mapped) {
            return (access & (std::uint32_t{1} << other)) != 0;
        }
        return kind != MemoryKind::pool || pool->accessible_by(other);
    }

    /// Operations on this memory that synchronous-looking calls have left behind.
    void add_pending(Ticket ticket);
    void wait_for_pending();

  private:
    std::mutex _pending_lock;
    std::vector<Ticket> _pending;
};

/// What travels between processes; 64 bytes, as for both vendors.
struct IpcHandle {
    std::uint32_t magic;
    std::int32_t process;
    std::int32_t file;
    std::int32_t device;  ///< of the machine
    std::uint64_t inode;
    std::uint64_t block_size;
    std::uint64_t offset;
    std::uint64_t size;
    std::uint64_t id;
    std::uint64_t check;
};
static_assert(sizeof(IpcHandle) == 64);

class Memory {
  public:
    explicit Memory(const Configuration& configuration);

    /// The reserved range could be had; when not, the driver cannot be used.
    [[nodiscard]] bool ready() const noexcept { return _range != 0; }
    [[nodiscard]] bool in_device_range(std::uintptr_t address) const noexcept { return address - _range < _half; }
    /// Where the host finds what the program calls `address`.
    [[nodiscard]] std::byte* accessible(std::uintptr_t address) const noexcept {
        return reinterpret_cast<std::byte*>(in_device_range(address) ? address + _half : address);
    }

    Error allocate_device(Context* context, int device, std::size_t bytes, std::shared_ptr<Pool> pool,
                          std::uintptr_t& address);
    Error allocate_host(Context& context, MemoryKind kind, std::size_t bytes, unsigned flags, std::uintptr_t& address);
    Error register_host(Context& context, std::uintptr_t address, std::size_t bytes, unsigned flags);
    /// Frees the allocation of one of `kinds` that starts at `address`; `otherwise` when there is none. An imported one
    /// goes when it was closed as often as it was opened.
    Error free(std::uintptr_t address, std::initializer_list<MemoryKind> kinds, Error otherwise = Error::invalid_value);
    void free_all(const Context& context);

    /// The live allocation that holds `address`; null when there is none.
    [[nodiscard]] std::shared_ptr<Allocation> find(std::uintptr_t address) const;
    /// Free and total bytes of a device.
    [[nodiscard]] std::size_t used(int device) const noexcept;

    Error export_handle(std::uintptr_t address, IpcHandle& handle);
    Error import_handle(Context& context, const IpcHandle& handle, std::uintptr_t& address);
    /// How many allocations of other processes have been mapped, and unmapped again.
    [[nodiscard]] std::uint64_t mappings_opened() const noexcept { return _mappings_opened; }
    [[nodiscard]] std::uint64_t mappings_closed() const noexcept { return _mappings_closed; }

    // Addresses and physical memory apart (virtual_memory.cpp). Ranges are those of whole mappings.
    Error reserve_addresses(std::size_t bytes, std::size_t alignment, std::uintptr_t& address);
    /// Of a whole reservation in which nothing is mapped.
    Error free_addresses(std::uintptr_t address, std::size_t bytes);
    Error create_physical(int device, std::size_t bytes, unsigned long long handle_types,
                          std::shared_ptr<Physical>& physical);
    /// `file` is a descriptor of its own, which is the caller's.
    static Error export_physical(const Physical& physical, int& file);
    /// The descriptor stays the caller's.
    Error import_physical(int file, std::shared_ptr<Physical>& physical);
    Error map(std::uintptr_t address, std::size_t bytes, std::shared_ptr<Physical> physical);
    Error unmap(std::uintptr_t address, std::size_t bytes);
    Error set_access(std::uintptr_t address, std::size_t bytes, int device, bool on);

    /// Whether `device` may touch `bytes` at `address`, which is in `first`: all in one allocation, or in mappings that
    /// follow each other.
    [[nodiscard]] bool reachable(const Allocation& first, std::uintptr_t address, std::size_t bytes, int device) const;

  private:
    /// Maps a block's file where the driver reaches it, and with the licence host-access where the program does.
    [[nodiscard]] bool map_block(std::uintptr_t base, std::size_t size, int file) const;
    void unmap_block(std::uintptr_t base, std::size_t size) const;
    std::shared_ptr<Block> make_block(std::size_t size, bool shared);
    void release_block(Block& block);
    bool reserve(int device, std::size_t bytes);
    /// With the lock held.
    Allocation& add_locked(MemoryKind kind, std::uintptr_t base, std::size_t size, int device, Context* context,
                           unsigned flags = 0);
    /// With the lock held: whether there is any allocation in the range.
    [[nodiscard]] bool taken_locked(std::uintptr_t address, std::size_t bytes) const;
    /// With the lock held.
    [[nodiscard]] std::shared_ptr<Allocation> find_locked(std::uintptr_t address) const;
    void release_locked(Allocation& allocation);
    /// With the lock held: the mappings that make up exactly this range.
    Error mappings_locked(std::uintptr_t address, std::size_t bytes,
                          std::vector<std::shared_ptr<Allocation>>& found) const;
    static void write_ledger(const Allocation& allocation, std::uint64_t id);

    const Configuration& _configuration;
    const std::size_t _granule;
    std::uintptr_t _range = 0;
    std::size_t _half = 0;
    mutable std::shared_mutex _lock;
    AddressSpace _addresses;
    std::map<std::uintptr_t, std::shared_ptr<Allocation>> _allocations;
    std::map<std::uintptr_t, std::size_t> _reservations;  ///< of addresses, with their lengths
    /// Shared blocks by device; pool memory never shares a block with other memory.
    std::map<std::pair<int, bool>, std::vector<std::shared_ptr<Block>>> _shared_blocks;
    std::vector<std::atomic<std::size_t>> _used;
    std::atomic<std::uint64_t> _next_id{1};
    std::atomic<std::uint64_t> _mappings_opened{0}, _mappings_closed{0};
};

}  // namespace awaken::emulator
