// SPDX-License-Identifier: Apache-2.0
#include "call/stage.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "call/call.h"
#include "report/totals.h"

namespace awaken::AWAKEN_ABI {

using transfer::Layout;
using transfer::StridedBlock;

namespace {

/// If the elements of a scattered type span less than this, the layer looks only at their ends: one such element never
/// has parts in two allocations of different kinds.
constexpr std::int64_t kSmallSpan = 64 << 10;
/// In types with more than kFewBlocks blocks, a block closer than this to one that was looked at has the same kind.
constexpr std::int64_t kNear = 64 << 10;
constexpr std::int64_t kFewBlocks = 64;

/// Tells two contents of a partition apart; never returns 0. FNV-1a over 8-byte words.
std::uint64_t checksum(const std::byte* const data, const std::size_t bytes) noexcept {
    std::uint64_t sum = 0xCBF29CE484222325ULL;
    for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, data + at, std::min(sizeof word, bytes - at));
        sum = (sum ^ word) * 0x100000001B3ULL;
        sum ^= sum >> 29;
    }
    return sum != 0 ? sum : 1;
}

bool readable(const void* address) noexcept {
    char byte = 0;
    iovec local{&byte, 1};
    iovec remote{const_cast<void*>(address), 1};
    // Asks the kernel instead of touching the memory. Where this call is forbidden, it assumes that the memory is
    // readable.
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 || errno != EFAULT;
}

}  // namespace

Stage::Stage(Call& call) : _layer(&layer()), _function(call.name()), _call(&call) {}

bool Stage::is_host_only() const {
    if (_asserted == Asserted::not_asked) [[unlikely]] {
        _asserted = _call->is_host_only() ? Asserted::host : Asserted::nothing;
    }
    return _asserted == Asserted::host;
}

bool Stage::may_need_service() const {
    return _layer->gpu().is_present();
}

std::int64_t Stage::extent_of(const MPI_Datatype type) {
    return layer().datatypes.find(type)->layout.extent();
}

Error Stage::too_far() {
    return ClassedError(MPI_ERR_COUNT, "the blocks of this call hold more elements than its displacements can count",
                        "use the large-count form of the function");
}

Stage::Located Stage::locate(const void* const address, const std::int64_t count, const MPI_Datatype type) const {
    if (count <= 0 || type == MPI_DATATYPE_NULL || !_layer->gpu().is_present()) {
        return {};
    }
    return locate(address, count, _layer->datatypes.find(type));
}

Stage::Located Stage::locate(const void* const address, const std::int64_t count,
                             std::shared_ptr<const Datatype> type) const {
    gpu::Runtime& runtime = _layer->gpu();
    Located located;
    located.type = std::move(type);
    const Layout& layout = located.type->layout;
    if (layout.size() == 0) {
        return located;
    }
    const bool is_asserted_host = is_host_only();
    if (is_asserted_host && !_layer->settings.check) {
        return located;
    }
    const auto* const bytes = static_cast<const std::byte*>(address);
    if (layout.is_contiguous(count)) {
        const void* const first = bytes + layout.true_begin();
        if (_layer->process_memory.holds(first) && !_layer->settings.check) {
            return located;
        }
        runtime.classify({&first, 1}, &located.info);
        located.served = !located.info.host_accessible();
        if (reaches_next(first, count * layout.size(), located.info)) {
            located.served = located.mixed = true;
        }
        if (located.info.kind == gpu::MemoryKind::host) {
            _layer->process_memory.learn(first);
        }
    } else {
        const Layout::Span span = layout.span(count);
        const std::array<const void*, 2> ends{bytes + span.begin, bytes + span.end - 1};
        std::array<gpu::PointerInfo, 2> infos;
        runtime.classify(ends, infos.data());
        located.info = infos[0];
        if (infos[0].host_accessible() && infos[1].host_accessible()) {
            const bool may_hide = located.type->scattered && layout.true_end() - layout.true_begin() > kSmallSpan;
            located.served = located.mixed = may_hide && any_block_served(bytes, count, *located.type);
        } else {
            located.served = true;
            located.mixed = infos[0].base == 0 || infos[0].base != infos[1].base;
        }
    }
    if (_layer->settings.check) {
        if (is_asserted_host) {
            check_assertion(address, located);
        }
        check(address, count, *located.type, located);
    }
    return located;
}

void Stage::check_assertion(const void* const address, const Located& located) const {
    if (!located.served) {
        return;
    }
    const NamedObject::Type type = _call->object().type;
    const char* const object = type == NamedObject::Type::window ? "window"
                               : type == NamedObject::Type::file ? "file"
                                                                 : "communicator";
    char text[256];
    snprintf(text, sizeof text, "%s: the buffer at %p is %s memory, but the %s's %s allows host memory only", _function,
             address, gpu::to_string(located.info.kind), object, kAssertedKinds);
    throw ClassedError(MPI_ERR_BUFFER, text,
                       std::string("name the buffer's kind in the assertion, or use another ") + object);
}

bool Stage::reaches_next(const void* const first, const std::int64_t bytes, const gpu::PointerInfo& info) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(first);
    if (info.base == 0 || begin < info.base || begin - info.base + static_cast<std::uintptr_t>(bytes) <= info.size) {
        return false;
    }
    const void* const last = static_cast<const std::byte*>(first) + bytes - 1;
    gpu::PointerInfo end;
    _layer->gpu().classify({&last, 1}, &end);
    return end.base != 0 && end.base != info.base && !(info.host_accessible() && end.host_accessible());
}

bool Stage::any_block_served(const std::byte* const address, const std::int64_t count, const Datatype& type) const {
    const bool thin_out = type.layout.block_count() > kFewBlocks;
    // The first and the last element stand for the others: with absolute addresses only one element makes sense.
    for (const std::int64_t element : {std::int64_t{0}, count - 1}) {
        const std::byte* const origin = address + element * type.layout.extent();
        std::vector<const void*> pointers;
        std::int64_t previous = INT64_MIN / 2;
        type.layout.for_each_block(1, type.layout.size(), [&](const StridedBlock& block) {
            for (std::int64_t row = 0; row < block.rows; ++row) {
                const std::int64_t offset = block.offset + row * block.pitch;
                if (!thin_out || std::abs(offset - previous) >= kNear) {
                    pointers.push_back(origin + offset);
                    previous = offset;
                }
            }
        });
        std::vector<gpu::PointerInfo> infos(pointers.size());
        _layer->gpu().classify(pointers, infos.data());
        if (std::any_of(infos.begin(), infos.end(), [](const auto& info) { return !info.host_accessible(); })) {
            return true;
        }
        if (count == 1) {
            break;
        }
    }
    return false;
}

void Stage::check(const void* const address, const std::int64_t count, const Datatype& type,
                  const Located& located) const {
    const Layout& layout = type.layout;
    if (!located.mixed) {
        const Layout::Span span = layout.span(count);
        check_range(address, span.begin, span.end - span.begin, located.info);
        return;
    }
    // The parts lie in different allocations, or some in none: checks each by itself.
    layout.for_each_block(count, count * layout.size(), [&](const StridedBlock& block) {
        for (std::int64_t row = 0; row < block.rows; ++row) {
            const std::int64_t offset = block.offset + row * block.pitch;
            const void* const first = static_cast<const std::byte*>(address) + offset;
            gpu::PointerInfo info;
            _layer->gpu().classify({&first, 1}, &info);
            check_range(address, offset, block.width, info);
        }
    });
}

void Stage::check_range(const void* const address, const std::int64_t offset, const std::int64_t bytes,
                        const gpu::PointerInfo& info) const {
    const auto first = reinterpret_cast<std::uintptr_t>(address) + static_cast<std::uintptr_t>(offset);
    const auto length = static_cast<std::uint64_t>(bytes);
    char text[256];
    if (info.base != 0) {
        const std::uint64_t available = info.base + info.size - first;
        if (first < info.base || length > available) {
            snprintf(text, sizeof text,
                     "%s: the buffer at %p spans %llu bytes, but its %s allocation of %zu bytes ends %llu bytes after "
                     "its start",
                     _function, address, static_cast<unsigned long long>(length), gpu::to_string(info.kind), info.size,
                     static_cast<unsigned long long>(available));
            throw ClassedError(MPI_ERR_BUFFER, text, "pass a count that fits, or allocate more");
        }
        return;
    }
    for (const std::uintptr_t end : {first, first + length - 1}) {
        if (!readable(reinterpret_cast<const void*>(end))) {
            snprintf(text, sizeof text,
                     "%s: the buffer at %p (%llu bytes) is neither device memory nor readable host memory at %p",
                     _function, address, static_cast<unsigned long long>(length), reinterpret_cast<void*>(end));
            throw ClassedError(MPI_ERR_BUFFER, text,
                               "it was freed, or never allocated that far; check the pointer, the count and the type");
        }
    }
}

Stage::StagingBuffer& Stage::add_staging_buffer(const Access access, const Packing packing, const std::size_t bytes) {
    StagingBuffer staged{_layer->pool.acquire(_layer->gpu(), std::max(bytes, _least_room), _pins == Pins::beyond_limit),
                         {},
                         access,
                         packing};
    const bool pinned = staged.block.pinned();
    if (!pinned && _pins != Pins::no) {
        _staging_buffers.push_back(std::move(staged));
        return _staging_buffers.back();
    }
    if (!pinned) {
        _layer->ledger.add_fallback(
            _function,
            "no pinned memory (the pool of " + std::to_string(_layer->settings.pinned_pool_bytes >> 20) +
                " MiB is full, or the runtime refused to pin more): used ordinary host memory (AWAKEN_PINNED_POOL)");
    }
    _call->account(pinned ? report::Path::staged : report::Path::staged_large, static_cast<std::int64_t>(bytes));
    _staging_buffers.push_back(std::move(staged));
    return _staging_buffers.back();
}

void Stage::account_native(const std::int64_t count, const MPI_Datatype type) const {
    if (!_layer->observed || count <= 0 || type == MPI_DATATYPE_NULL) {
        return;
    }
    MPI_Count size = 0;
    _layer->real.Type_size_x(type, &size);
    _call->account(report::Path::native, count * static_cast<std::int64_t>(size));
}

void Stage::watch(const void* const address, const std::int64_t count, const MPI_Datatype type) {
    if (_watching && count > 0 && type != MPI_DATATYPE_NULL && !is_host_only()) {
        _watched.push_back({address, count, _layer->datatypes.find(type)});
    }
}

void Stage::pass_on(const std::vector<Block>& blocks) {
    for (const Block& block : blocks) {
        watch(block.user, block.count, block.type);
        account_native(block.count, block.type);
    }
}

Stage::Placed Stage::place(const Access access, const void* const address, const std::int64_t count,
                           const MPI_Datatype type, const Packing packing, const std::int64_t stored,
                           const Located& located) {
    if (!located.served) {
        watch(address, count, type);
        account_native(count, type);
        return {const_cast<void*>(address), type};
    }
    const Layout& layout = located.type->layout;
    auto* const user = static_cast<std::byte*>(const_cast<void*>(address));
    Segment segment{user, count, stored < 0 ? count : stored, located.type, 0, located.mixed, located.info};
    if (packing == Packing::mirror) {
        // The staging buffer has the buffer's alignment: compilers and operators may rely on it.
        constexpr std::uintptr_t kAlignment = 64;
        const Layout::Span span = layout.span(count);
        const std::uintptr_t slack =
            (reinterpret_cast<std::uintptr_t>(user) + static_cast<std::uintptr_t>(span.begin)) % kAlignment;
        StagingBuffer& staged =
            add_staging_buffer(access, packing, static_cast<std::size_t>(span.end - span.begin) + slack);
        segment.offset = static_cast<std::int64_t>(slack) - span.begin;
        staged.segments.push_back(std::move(segment));
        return {staged.block.data() + staged.segments.front().offset, type};
    }
    StagingBuffer& staged = add_staging_buffer(access, packing, static_cast<std::size_t>(count * layout.size()));
    const bool dense = located.type->dense();
    const Placed placed{staged.block.data() - (dense ? layout.true_begin() : 0), dense ? type : located.type->packed};
    staged.segments.push_back(std::move(segment));
    return placed;
}

bool Stage::place_blocks(const Access access, const std::vector<Block>& blocks, const bool one_type,
                         std::vector<std::int64_t>& offsets, std::vector<std::shared_ptr<const Datatype>>& types,
                         std::byte*& base) {
    if (one_type) {
        // A block without a gap to the one before is in the same memory. Beyond a gap, another allocation may begin.
        const Block* first = nullptr;
        const std::byte* end = nullptr;
        bool served = false;
        std::shared_ptr<const Datatype> type;
        for (const Block& block : blocks) {
            if (block.count <= 0) {
                continue;
            }
            if (first == nullptr) {
                first = &block;
                type = _layer->datatypes.find(block.type);
            }
            if (block.user != end && locate(block.user, block.count, type).served) {
                served = true;
                break;
            }
            end = block.user + block.count * type->layout.extent();
        }
        if (!served) {
            pass_on(blocks);
            return false;
        }
    }
    std::vector<Segment> segments;
    bool served = false;
    std::int64_t total = 0;
    for (const Block& block : blocks) {
        offsets.push_back(total);
        if (block.count <= 0 || block.type == MPI_DATATYPE_NULL) {
            types.push_back(one_type ? _layer->datatypes.find(block.type) : nullptr);
            continue;
        }
        Located located = locate(block.user, block.count, block.type);
        served = served || located.served;
        types.push_back(located.type);
        segments.push_back({block.user, block.count, block.count, located.type, total, located.mixed, located.info});
        total += block.count * located.type->layout.size();
    }
    if (!served) {
        pass_on(blocks);
        return false;
    }
    StagingBuffer& staged =
        add_staging_buffer(access, Packing::packed, static_cast<std::size_t>(std::max<std::int64_t>(total, 1)));
    staged.segments = std::move(segments);
    base = staged.block.data();
    return true;
}

bool Stage::partitions(const Access access, const void* const address, const std::int64_t partitions,
                       const std::int64_t count, const MPI_Datatype type, Argument<MPI_Count>& argument) {
    const Located located = locate(address, partitions * count, type);
    if (!located.served) {
        watch(address, partitions * count, type);
        return false;
    }
    const Layout& layout = located.type->layout;
    StagingBuffer& staged =
        add_staging_buffer(access, Packing::packed, static_cast<std::size_t>(partitions * count * layout.size()));
    staged.by_partition = true;
    auto* const user = static_cast<std::byte*>(const_cast<void*>(address));
    for (std::int64_t i = 0; i < partitions; ++i) {
        staged.segments.push_back({user + i * count * layout.extent(), count, count, located.type,
                                   i * count * layout.size(), located.mixed, located.info});
    }
    argument = {staged.block.data(), static_cast<MPI_Count>(count), located.type->packed};
    return true;
}

void Stage::load(const StagingBuffer& staged, const Segment& segment) {
    transfer::Copier& copier = _layer->copier();
    const auto& type = segment.type->flat;
    const gpu::PointerInfo* const info = segment.mixed ? nullptr : &segment.info;
    std::byte* const at = staged.block.data() + segment.offset;
    if (staged.packing == Packing::mirror) {
        copier.gather_mirror(type, segment.user, segment.count, at, info);
    } else {
        copier.gather(type, segment.user, segment.count, segment.bytes(), at, info);
    }
}

void Stage::store(const StagingBuffer& staged, Segment& segment, const std::int64_t limit) {
    transfer::Copier& copier = _layer->copier();
    const auto& type = segment.type->flat;
    const gpu::PointerInfo* const info = segment.mixed ? nullptr : &segment.info;
    const std::byte* const at = staged.block.data() + segment.offset;
    if (staged.packing == Packing::mirror) {
        copier.scatter_mirror(type, segment.user, segment.stored, at, info);
    } else {
        const std::int64_t bytes = segment.stored * type->layout().size();
        copier.scatter(type, segment.user, segment.count, limit < 0 ? bytes : std::min(bytes, limit), at, info);
    }
}

void Stage::store_partition(const StagingBuffer& staged, Segment& segment) {
    const std::uint64_t sum = checksum(staged.block.data() + segment.offset, static_cast<std::size_t>(segment.bytes()));
    if (sum != segment.stored_checksum) {
        store(staged, segment, -1);
        segment.stored_checksum = sum;
    }
}

std::shared_ptr<const BytesType> Stage::receive_type() const {
    const StagingBuffer& staged = _staging_buffers.front();
    return _layer->receive_types.find(staged.segments.front().bytes());
}

void Stage::fill_with_ones(const StagingBuffer& staged, const Segment& segment) const {
    Layout::Span span{0, segment.bytes()};
    if (staged.packing == Packing::mirror) {
        span = segment.type->layout.span(segment.count);
    }
    std::memset(staged.block.data() + segment.offset + span.begin, 0xFF,
                static_cast<std::size_t>(span.end - span.begin));
}

void Stage::load(const Failure failure) {
    _failure.reset();
    for (const StagingBuffer& staged : _staging_buffers) {
        if (staged.access == Access::out || staged.by_partition) {
            continue;
        }
        for (const Segment& segment : staged.segments) {
            try {
                load(staged, segment);
            } catch (const Error& error) {
                if (failure == Failure::thrown) {
                    throw;
                }
                fill_with_ones(staged, segment);
                _failure = _failure ? _failure : error;
            }
        }
        if (_received != nullptr) {
            _received->put_right(staged.block.data(), staged.segments.front().bytes());
        }
    }
}

void Stage::store(const std::int64_t received) {
    if (const auto type = std::exchange(_received, nullptr)) {
        type->put_right(_staging_buffers.front().block.data(), received);
    }
    if (_failure) {
        throw Error(*_failure);
    }
    if (_finish != nullptr) {
        _finish();
    }
    for (StagingBuffer& staged : _staging_buffers) {
        if (staged.access == Access::in) {
            continue;
        }
        for (Segment& segment : staged.segments) {
            if (staged.by_partition) {
                store_partition(staged, segment);
            } else {
                store(staged, segment, received);
            }
        }
    }
}

bool Stage::is_pinned() const noexcept {
    return std::all_of(_staging_buffers.begin(), _staging_buffers.end(),
                       [](const StagingBuffer& staged) { return staged.block.pinned(); });
}

void Stage::queue_load(const gpu::StreamHandle stream) {
    for (const StagingBuffer& staged : _staging_buffers) {
        for (const Segment& segment : staged.segments) {
            queue(staged, segment, true, stream);
        }
    }
}

void Stage::queue_store(const gpu::StreamHandle stream) {
    for (const StagingBuffer& staged : _staging_buffers) {
        for (const Segment& segment : staged.segments) {
            if (staged.access != Access::in) {
                queue(staged, segment, false, stream);
            }
        }
    }
}

void Stage::queue(const StagingBuffer& staged, const Segment& segment, const bool loads,
                  const gpu::StreamHandle stream) {
    gpu::Runtime& runtime = _layer->gpu();
    const Layout& layout = segment.type->layout;
    const std::int64_t elements = loads ? segment.count : segment.stored;
    const std::int64_t bytes = elements * layout.size();
    std::byte* const host = staged.block.data() + segment.offset;
    const auto require = [](const gpu::Status& status) {
        if (!status.ok()) {
            throw Error("a copy in a stream failed (" + status.message() + ")",
                        "an error of an earlier kernel of the program is also reported here");
        }
    };
    const auto copy = [&](std::byte* const there, std::byte* const user, const std::int64_t count) {
        const auto length = static_cast<std::size_t>(count);
        require(report::counted(report::Mover::engine, length,
                                runtime.copy(loads ? there : user, loads ? user : there, length, stream)));
    };
    if (bytes == 0) {
        return;
    }
    if (segment.mixed) {
        throw ClassedError(MPI_ERR_TYPE, "a datatype spans host and device memory, and the call is queued in a stream",
                           "use memory of one kind");
    }
    const bool is_packed = staged.packing == Packing::packed;
    if (is_packed && layout.is_contiguous(elements)) {
        std::byte* const user = segment.user + layout.true_begin();
        copy(host, user, bytes);
        return;
    }
    if (is_packed && segment.info.kind == gpu::MemoryKind::device && segment.info.device == stream.device) {
        auto typed = std::make_shared<const transfer::TypedMemory>(segment.type->flat, segment.user, elements);
        transfer::Packer& packer = _layer->packer();
        if (packer.can_move(stream.device, *typed)) {
            const transfer::Packer::Side packed{host}, memory{nullptr, typed.get(), 0};
            _typed.push_back(typed);
            require(packer.move(loads ? packed : memory, loads ? memory : packed, bytes, stream));
            return;
        }
    }
    std::byte* next = host;
    layout.for_each_block(elements, bytes, [&](const StridedBlock& block) {
        std::byte* const user = segment.user + block.offset;
        std::byte* const there = is_packed ? std::exchange(next, next + block.rows * block.width) : host + block.offset;
        const std::int64_t pitch = is_packed ? block.width : block.pitch;
        for (std::int64_t row = 0; row < block.rows; ++row) {
            std::byte* const out = user + row * block.pitch;
            std::byte* const in = there + row * pitch;
            copy(in, out, block.width);
        }
    });
}

void Stage::load_partition(const std::int64_t partition) {
    for (const StagingBuffer& staged : _staging_buffers) {
        if (staged.by_partition && staged.access == Access::in && partition >= 0 &&
            partition < static_cast<std::int64_t>(staged.segments.size())) {
            load(staged, staged.segments[static_cast<std::size_t>(partition)]);
        }
    }
}

void Stage::lose_partition(const std::int64_t partition, const Error& failure) {
    const StagingBuffer& staged = _staging_buffers.front();
    fill_with_ones(staged, staged.segments[static_cast<std::size_t>(partition)]);
    _failure = _failure ? _failure : failure;
}

void Stage::store_partition(const std::int64_t partition) {
    for (StagingBuffer& staged : _staging_buffers) {
        if (staged.by_partition && staged.access == Access::out && partition >= 0 &&
            partition < static_cast<std::int64_t>(staged.segments.size())) {
            store_partition(staged, staged.segments[static_cast<std::size_t>(partition)]);
        }
    }
}

void Stage::restart() {
    for (const Watched& watched : _watched) {
        if (locate(watched.address, watched.count, watched.type).served) {
            throw ClassedError(MPI_ERR_BUFFER,
                               std::string(_function) +
                                   ": the buffer was host memory when this persistent operation was "
                                   "initialised and is device memory at its start",
                               "allocate the device buffer before the initialisation call");
        }
    }
    for (StagingBuffer& staged : _staging_buffers) {
        for (Segment& segment : staged.segments) {
            segment.stored_checksum = 0;
            // The description of the type is still valid; only the memory may have changed.
            gpu::PointerInfo info;
            const void* const first = segment.user + segment.type->layout.span(segment.count).begin;
            _layer->gpu().classify({&first, 1}, &info);
            segment.mixed = segment.mixed || info.host_accessible();
            segment.info = info;
        }
    }
}

}  // namespace awaken::AWAKEN_ABI
