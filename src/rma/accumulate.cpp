// SPDX-License-Identifier: Apache-2.0
// A process that updates a target's memory holds a word of shared memory meanwhile. So all updates of one target follow
// each other, whole operations at a time. MPI asks for less: atomicity by element, and order by origin. A kernel
// combines large contiguous data in place. Anything else is copied to the host, combined by the MPI, and copied back.

#include "rma/accumulate.h"

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <tuple>

#include "gpu/kernels/codes.h"
#include "gpu/wait.h"
#include "mpi/kernel_code.h"
#include "mpi/status.h"

namespace awaken::AWAKEN_ABI {

using coll::Engine;
using transfer::DeviceCopies;
using transfer::Layout;

namespace {

/// Below this size, two copies and the host's own work take no longer than a kernel.
constexpr std::int64_t kLeastForKernel = 4096;

bool is_predefined(const MPI_Op op) {
    const std::array<MPI_Op, 14> known{MPI_SUM,  MPI_PROD, MPI_MIN,  MPI_MAX,    MPI_LAND,   MPI_LOR,     MPI_LXOR,
                                       MPI_BAND, MPI_BOR,  MPI_BXOR, MPI_MINLOC, MPI_MAXLOC, MPI_REPLACE, MPI_NO_OP};
    return std::find(known.begin(), known.end(), op) != known.end();
}

/// A local buffer, and its packed bytes in host memory.
class Local {
  public:
    Local(const Stage& stage, const LocalBuffer& buffer)
        : _buffer(buffer), _located(stage.locate(buffer.address, buffer.count, buffer.type)) {}

    [[nodiscard]] std::int64_t bytes() const noexcept {
        return _located.type != nullptr ? _buffer.count * _located.type->layout.size() : 0;
    }
    [[nodiscard]] int device() const noexcept { return _located.info.device; }
    [[nodiscard]] const gpu::PointerInfo& info() const noexcept { return _located.info; }
    /// Whether the data is one run of bytes.
    [[nodiscard]] bool is_contiguous() const noexcept {
        return _located.type != nullptr && !_located.mixed && _located.type->layout.is_contiguous(_buffer.count);
    }
    [[nodiscard]] std::byte* first() const noexcept {
        return static_cast<std::byte*>(_buffer.address) + _located.type->layout.true_begin();
    }
    void pack(std::byte* const packed) const {
        layer().copier().gather(_located.type->layout, _buffer.address, _buffer.count, bytes(), packed, kind());
    }
    void unpack(const std::byte* const packed) const {
        layer().copier().scatter(_located.type->layout, _buffer.address, _buffer.count, bytes(), packed, kind());
    }

  private:
    [[nodiscard]] const gpu::PointerInfo* kind() const noexcept { return _located.mixed ? nullptr : &_located.info; }
    const LocalBuffer _buffer;
    const Stage::Located _located;
};

/// Whether the MPI has the operation for a predefined type. Asks once, with zeros. If the MPI does not have it, it
/// calls another error handler than the window's, which mostly ends the program.
bool is_defined(const MPI_Op op, const MPI_Datatype element) {
    if (kernel_code(layer().real, op, element) != 0) {
        return true;
    }
    static std::mutex mutex;
    static std::vector<std::tuple<MPI_Op, MPI_Datatype, bool>> known;
    const std::scoped_lock lock(mutex);
    for (const auto& [known_op, known_element, answer] : known) {
        if (known_op == op && known_element == element) {
            return answer;
        }
    }
    Layer& owner = layer();
    const auto bytes = static_cast<std::size_t>(owner.datatypes.find(element)->layout.extent());
    std::vector<std::max_align_t> in(bytes / sizeof(std::max_align_t) + 1), inout(in.size());
    const ScopedErrorsReturn errors_return(owner.default_handlers);
    const bool answer = owner.real.Reduce_local(in.data(), inout.data(), 1, element, op) == MPI_SUCCESS;
    known.emplace_back(op, element, answer);
    return answer;
}

void must_match(const Call& call, const std::int64_t origin, const std::int64_t target) {
    if (origin != target) {
        throw ClassedError(MPI_ERR_TYPE,
                           std::string(call.name()) + ": " + std::to_string(origin) + " bytes at the origin, but " +
                               std::to_string(target) + " at the target",
                           "give both sides the same number of elements of the same type");
    }
}

/// inout = inout op in, for `bytes` packed bytes of elements.
void combine(const MPI_Op op, const MPI_Datatype element, const std::byte* const in, std::byte* const inout,
             const std::int64_t bytes) {
    Layer& owner = layer();
    const std::shared_ptr<const Datatype> type = owner.datatypes.find(element);
    const Layout& layout = type->layout;
    // Pairs may have gaps, which packed bytes have not.
    const bool dense = type->dense();
    const std::int64_t elements = bytes / layout.size();
    const std::int64_t most = dense ? INT_MAX : std::int64_t{1} << 16;
    std::vector<std::byte> from, to;
    for (std::int64_t done = 0; done < elements;) {
        const std::int64_t count = std::min(most, elements - done);
        const std::byte* source = in + done * layout.size();
        std::byte* target = inout + done * layout.size();
        if (!dense) {
            const auto room = static_cast<std::size_t>(count * layout.extent());
            from.resize(room);
            to.resize(room);
            transfer::unpack(layout, from.data(), count, source, count * layout.size());
            transfer::unpack(layout, to.data(), count, target, count * layout.size());
        }
        const int error = owner.real.Reduce_local(dense ? source : from.data(), dense ? target : to.data(),
                                                  static_cast<int>(count), element, op);
        if (error != MPI_SUCCESS) {
            throw ClassedError(class_of(owner.real, error), "the MPI cannot combine elements of the type",
                               "use another operation");
        }
        if (!dense) {
            transfer::pack(layout, to.data(), count, target, count * layout.size());
        }
        done += count;
    }
}

/// The origin's data, in memory that a kernel on `device` reaches.
class KernelSource {
  public:
    /// Starts the copy that may be necessary. False when there is no memory for it.
    [[nodiscard]] bool prepare(const Local& origin, const int device, const std::uint64_t alignment) {
        Layer& owner = layer();
        gpu::Runtime& runtime = owner.gpu();
        if (origin.is_contiguous() && origin.info().kind == gpu::MemoryKind::device && origin.device() == device &&
            reinterpret_cast<std::uintptr_t>(origin.first()) % alignment == 0) {
            // The layer's kernels do not wait for the program's stream.
            if (!runtime.order_after_default_stream(origin.first(), origin.info()).ok() ||
                !runtime.finish_default_stream(device).ok()) {
                throw Error("waiting for earlier work on a GPU buffer failed",
                            "an error of an earlier kernel of the program is also reported here");
            }
            _address = origin.first();
            return true;
        }
        ipc::Link& link = *owner.node_peers.link();
        const auto bytes = static_cast<std::size_t>(origin.bytes());
        _block = link.exported().acquire(device, bytes);
        if (!_block) {
            return false;
        }
        _address = _block.data();
        const gpu::PointerInfo host;
        DeviceCopies::End from{origin.is_contiguous() ? origin.first() : nullptr, &origin.info()};
        if (!origin.is_contiguous()) {
            _packed = owner.pool.acquire(runtime, bytes);
            origin.pack(_packed.data());
            from = {_packed.data(), _packed.pinned() ? nullptr : &host};
        }
        link.copies().start(device, 0, {_address, nullptr}, from, bytes).wait();
        return true;
    }
    [[nodiscard]] std::byte* address() const noexcept { return _address; }

  private:
    std::byte* _address = nullptr;
    transfer::ExportedPool::Block _block;
    transfer::StagingBlock _packed;
};

/// Combines in the target's memory, if there is a kernel for it and the data is large enough.
bool accumulate_by_kernel(Window& window, const Local& origin, const Local* const result, const TargetBuffer& target,
                          const FoundTarget& found, const MPI_Op op, const MPI_Datatype element, const int device) {
    Layer& owner = layer();
    Engine* const engine = owner.node_peers.engine();
    const std::uint32_t code = kernel_code(layer().real, op, element);
    if (found.bytes < kLeastForKernel || code == 0 || engine == nullptr ||
        !found.type->layout.is_contiguous(target.count)) {
        return false;
    }
    const std::uint64_t alignment = kernels::element_alignment(kernels::type_of(code));
    std::byte* const place = found.reached.address + found.type->layout.true_begin();
    if (reinterpret_cast<std::uintptr_t>(place) % alignment != 0 ||
        engine->prepare(device, code) != Engine::Kernels::usable) {
        return false;
    }
    KernelSource source;
    if (!source.prepare(origin, device, alignment)) {
        return false;
    }
    if (found.reached.is_own && !owner.gpu().finish_default_stream(device).ok()) {
        throw Error("waiting for earlier work on a window's memory failed",
                    "an error of an earlier kernel of the program is also reported here");
    }
    Engine::Fold fold;
    fold.code = code;
    fold.sources = {reinterpret_cast<std::uint64_t>(place), reinterpret_cast<std::uint64_t>(source.address())};
    fold.targets = {reinterpret_cast<std::uint64_t>(place)};
    fold.elements = static_cast<std::uint64_t>(found.bytes) / kernels::element_bytes(kernels::type_of(code));
    const auto bytes = static_cast<std::size_t>(found.bytes);
    transfer::StagingBlock before;
    if (result != nullptr && !result->is_contiguous()) {
        before = owner.pool.acquire(owner.gpu(), bytes);
    }
    {
        const rma::Exposure::Update update(window.exposure(), target.rank);
        if (result != nullptr) {
            if (result->is_contiguous()) {
                owner.node_peers.link()
                    ->copies()
                    .start(device, static_cast<unsigned>(target.rank), {result->first(), &result->info()},
                           {place, nullptr}, bytes)
                    .wait();
            } else {
                read_target(found, target.count, before.data());
            }
        }
        engine->run(device, fold);
    }
    if (before.data() != nullptr) {
        result->unpack(before.data());
    }
    return true;
}

}  // namespace

std::optional<FoundTarget> find_target(const Call& call, Window& window, const TargetBuffer& target, const int device) {
    FoundTarget found;
    found.type = layer().datatypes.find(target.type);
    const Layout& layout = found.type->layout;
    found.bytes = target.count * layout.size();
    const Layout::Span span = found.bytes > 0 ? layout.span(target.count) : Layout::Span{};
    std::optional<MappedRegion> reached =
        window.reach(call, target.rank, target.displacement, span.begin, span.end, device);
    if (!reached) {
        return std::nullopt;
    }
    found.reached = *reached;
    return found;
}

// All copies between packed host memory and a target's memory are done here.

void read_target(const FoundTarget& found, const std::int64_t count, std::byte* const packed) {
    layer().copier().gather(found.type->layout, found.reached.address, count, found.bytes, packed, &found.reached.info);
}

void write_target(const FoundTarget& found, const std::int64_t count, const std::byte* const packed) {
    layer().copier().scatter(found.type->layout, found.reached.address, count, found.bytes, packed,
                             &found.reached.info);
}

bool accumulate(Call& call, Window& window, const LocalBuffer& origin, const LocalBuffer* const result,
                const TargetBuffer& target, const MPI_Op op) {
    const Stage stage(call);
    const Local from(stage, op == MPI_NO_OP ? LocalBuffer{} : origin);
    const Local to(stage, result != nullptr ? *result : LocalBuffer{});
    const int preferred = from.device() >= 0 ? from.device() : to.device();
    int device = preferred >= 0 ? preferred : window.spec().device;
    const std::optional<FoundTarget> found = find_target(call, window, target, device);
    if (!found) {
        return false;
    }
    if (found->reached.is_own) {
        // GPUs of one process reach memory that was mapped for them, but not each other's memory as such.
        device = found->reached.info.device;
    }
    if (!is_predefined(op)) {
        throw ClassedError(MPI_ERR_OP, std::string(call.name()) + ": the operation is not a predefined one",
                           "accumulate operations take no others");
    }
    if (op != MPI_NO_OP) {
        must_match(call, from.bytes(), found->bytes);
    }
    if (result != nullptr) {
        must_match(call, to.bytes(), found->bytes);
    }
    if (found->bytes == 0) {
        return true;
    }
    const MPI_Datatype element = element_of(layer().real, target.type);
    const bool combines = op != MPI_NO_OP && op != MPI_REPLACE;
    if (combines && !is_defined(op, element)) {
        throw ClassedError(MPI_ERR_OP, std::string(call.name()) + ": the operation is not defined for the type",
                           "use another operation, or another type");
    }
    if (combines &&
        accumulate_by_kernel(window, from, result != nullptr ? &to : nullptr, target, *found, op, element, device)) {
        call.account(report::Path::direct, found->bytes);
        return true;
    }
    const auto bytes = static_cast<std::size_t>(found->bytes);
    Layer& owner = layer();
    const auto host_memory = [&] { return owner.pool.acquire(owner.gpu(), bytes); };
    transfer::StagingBlock added, there, before;
    if (op != MPI_NO_OP) {
        added = host_memory();
        from.pack(added.data());
    }
    const bool reads = result != nullptr || combines, keeps_both = result != nullptr && combines;
    if (reads) {
        there = host_memory();
    }
    if (keeps_both) {
        before = host_memory();
    }
    {
        const rma::Exposure::Update update(window.exposure(), target.rank);
        if (reads) {
            read_target(*found, target.count, there.data());
        }
        if (keeps_both) {
            std::memcpy(before.data(), there.data(), bytes);
        }
        if (combines) {
            combine(op, element, added.data(), there.data(), found->bytes);
            write_target(*found, target.count, there.data());
        } else if (op == MPI_REPLACE) {
            write_target(*found, target.count, added.data());
        }
    }
    if (result != nullptr) {
        to.unpack((keeps_both ? before : there).data());
    }
    call.account(report::Path::copied, found->bytes);
    return true;
}

bool compare_and_swap(Call& call, Window& window, const void* const origin, const void* const compare,
                      void* const result, const TargetBuffer& target) {
    const Stage stage(call);
    const auto local = [&](const void* const address) {
        return LocalBuffer{const_cast<void*>(address), 1, target.type};
    };
    const Local swapped_in(stage, local(origin)), compared(stage, local(compare)), to(stage, local(result));
    const std::optional<FoundTarget> found =
        find_target(call, window, target, swapped_in.device() >= 0 ? swapped_in.device() : to.device());
    if (!found) {
        return false;
    }
    const auto bytes = static_cast<std::size_t>(found->bytes);
    // Page-locked, since others wait for these copies while the target is updated.
    const transfer::StagingBlock values = layer().pool.acquire(layer().gpu(), 3 * bytes);
    std::byte* const wanted = values.data();
    std::byte* const expected = wanted + bytes;
    std::byte* const there = expected + bytes;
    swapped_in.pack(wanted);
    compared.pack(expected);
    {
        const rma::Exposure::Update update(window.exposure(), target.rank);
        read_target(*found, 1, there);
        if (std::memcmp(there, expected, bytes) == 0) {
            write_target(*found, 1, wanted);
        }
    }
    to.unpack(there);
    call.account(report::Path::copied, found->bytes);
    return true;
}

}  // namespace awaken::AWAKEN_ABI
