// SPDX-License-Identifier: Apache-2.0
#include "coll/reduce_local.h"

#include "call/stage.h"
#include "coll/on_node.h"
#include "gpu/kernels/codes.h"
#include "mpi/kernel_code.h"

namespace awaken::AWAKEN_ABI {

using coll::Engine;

namespace {

/// Elements in one run of bytes.
struct Operand {
    Operand(const Stage& stage, const void* const buffer, const std::int64_t count, const MPI_Datatype type)
        : located(stage.locate(buffer, count, type)) {
        if (located.type != nullptr && !located.mixed && located.type->layout.is_contiguous(count)) {
            address = static_cast<std::byte*>(const_cast<void*>(buffer)) + located.type->layout.true_begin();
            bytes = static_cast<std::size_t>(count * located.type->layout.size());
        }
    }
    [[nodiscard]] bool is_aligned(const std::uint64_t alignment) const noexcept {
        return reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
    }
    /// The layer's kernels do not wait for the program's stream.
    void order() const {
        if (!layer().gpu().order_after_default_stream(address, located.info).ok()) {
            throw Error("waiting for earlier work on a GPU buffer failed",
                        "an error of an earlier kernel of the program is also reported here");
        }
    }

    const Stage::Located located;
    std::byte* address = nullptr;  ///< null: the data has gaps, or there is nothing to do
    std::size_t bytes = 0;
};

}  // namespace

bool reduce_on_gpu(Call& call, const void* const input, void* const inout, const std::int64_t count,
                   const MPI_Datatype type, const MPI_Op op) {
    Layer& owner = layer();
    Engine* const engine = owner.node_peers.engine();
    if (engine == nullptr || count <= 0 || type == MPI_DATATYPE_NULL) {
        return false;
    }
    const std::uint32_t code = kernel_code(layer().real, op, type);
    if (code == 0) {
        return false;
    }
    const Stage stage(call);
    const Operand to(stage, inout, count, type);
    const std::uint64_t alignment = kernels::element_alignment(kernels::type_of(code));
    if (!to.located.served || to.address == nullptr || to.bytes == 0 || !to.is_aligned(alignment)) {
        return false;
    }
    const Operand from(stage, input, count, type);
    if (from.address == nullptr) {
        return false;
    }
    int device = to.located.info.device;
    if (device < 0) {
        device = owner.gpu().device_to_use();
    }
    if (engine->prepare(device, code) != Engine::Kernels::usable) {
        return false;
    }
    const std::byte* source = from.address;
    transfer::ExportedPool::Block block;
    if (!from.located.served || from.located.info.device != to.located.info.device || !from.is_aligned(alignment)) {
        block = engine->exported().acquire(device, from.bytes);
        if (!block) {
            return false;
        }
        engine->copies()
            .start(device, 0, {block.data(), nullptr}, {from.address, &from.located.info}, from.bytes)
            .wait();
        source = block.data();
    } else {
        from.order();
    }
    to.order();
    if (!owner.gpu().finish_default_stream(device).ok()) {
        throw Error("waiting for the default stream failed",
                    "an error of an earlier kernel of the program is also reported here");
    }
    Engine::Fold fold;
    fold.code = code;
    fold.sources = {reinterpret_cast<std::uint64_t>(source), reinterpret_cast<std::uint64_t>(to.address)};
    fold.targets = {reinterpret_cast<std::uint64_t>(to.address)};
    fold.elements = static_cast<std::uint64_t>(count);
    engine->run(device, fold);
    call.account(block ? report::Path::copied : report::Path::direct, static_cast<std::int64_t>(to.bytes));
    return true;
}

}  // namespace awaken::AWAKEN_ABI
