// SPDX-License-Identifier: Apache-2.0
// MPI_Pack and its relatives on device memory. The typed and the packed side may each be on a device.
//
// Where the MPI packs without padding, as every MPI does between equal machines, the GPU packs without the MPI. All
// else (external32, mixed memory, wrong arguments) goes through staging buffers, so that results and errors are the
// MPI's.

#include <array>
#include <cstring>

#include "call/call.h"
#include "call/services.h"
#include "call/stage.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// True when packed data is the bytes of the types one after another, without a header and without padding. The
/// function finds out by a trial.
bool packs_plainly(const MPI_Comm comm) {
    static const bool plainly = [comm] {
        const Native& native = layer().real;
        const std::array<int, 3> integers{0x01020304, 0x7fffffff, -2};
        const std::array<double, 2> numbers{1.5, -2.25};
        std::array<std::byte, sizeof integers + sizeof numbers> expected{};
        std::memcpy(expected.data(), integers.data(), sizeof integers);
        std::memcpy(expected.data() + sizeof integers, numbers.data(), sizeof numbers);
        std::array<std::byte, 256> packed{};
        int position = 0;
        return native.Pack(integers.data(), 3, MPI_INT, packed.data(), packed.size(), &position, comm) == MPI_SUCCESS &&
               native.Pack(numbers.data(), 2, MPI_DOUBLE, packed.data(), packed.size(), &position, comm) ==
                   MPI_SUCCESS &&
               position == static_cast<int>(expected.size()) &&
               std::memcmp(packed.data(), expected.data(), expected.size()) == 0;
    }();
    return plainly;
}

/// Both sides of an MPI_Pack or MPI_Unpack that the layer does itself.
struct Plain {
    Stage::Located typed;
    gpu::PointerInfo packed;
    std::int64_t bytes = 0;
};

/// Returns false when the MPI must do it: wrong arguments, no data, no device memory on either side, or blocks in
/// different kinds of memory.
template <class Size>
bool find_plain(const Stage& stage, const void* const user, const std::int64_t count, const MPI_Datatype type,
                const void* const packed, const Size packed_size, const Size* const position, const MPI_Comm comm,
                Plain& plain) {
    if (count <= 0 || packed == nullptr || position == nullptr || *position < 0 || *position >= packed_size ||
        comm == MPI_COMM_NULL) {
        return false;
    }
    plain.typed = stage.locate(user, count, type);
    if (plain.typed.type == nullptr || plain.typed.mixed) {
        return false;
    }
    plain.bytes = count * plain.typed.type->layout.size();
    if (plain.bytes == 0 ||
        plain.bytes > static_cast<std::int64_t>(packed_size) - static_cast<std::int64_t>(*position)) {
        return false;
    }
    const void* const first = static_cast<const std::byte*>(packed) + *position;
    layer().gpu().classify({&first, 1}, &plain.packed);
    return (plain.typed.served || !plain.packed.host_accessible()) && packs_plainly(comm);
}

/// `packed` is only read when the call unpacks.
template <bool packs, class Size>
bool move_plainly(Call& call, const Stage& stage, void* const user, const std::int64_t count, const MPI_Datatype type,
                  void* const packed, const Size packed_size, Size* const position, const MPI_Comm comm) {
    Plain plain;
    if (!find_plain(stage, user, count, type, packed, packed_size, position, comm, plain)) {
        return false;
    }
    Layer& owner = layer();
    transfer::Copier& copier = owner.copier();
    std::byte* const at = static_cast<std::byte*>(packed) + *position;
    const auto& flat = plain.typed.type->flat;
    if (plain.typed.served) {
        if (!(packs ? copier.pack(flat, user, count, plain.bytes, plain.typed.info, at, plain.packed)
                    : copier.unpack(flat, user, count, plain.bytes, plain.typed.info, at, plain.packed))) {
            return false;
        }
        call.account(report::Path::direct, plain.bytes);
    } else {
        const transfer::Layout& layout = plain.typed.type->layout;
        const auto bytes = static_cast<std::size_t>(plain.bytes);
        const transfer::StagingBlock block = owner.pool.acquire(owner.gpu(), bytes);
        if constexpr (packs) {
            transfer::pack(layout, user, count, block.data(), plain.bytes);
            copier.copy(at, block.data(), bytes, at, plain.packed);
        } else {
            copier.copy(block.data(), at, bytes, at, plain.packed);
            transfer::unpack(layout, user, count, block.data(), plain.bytes);
        }
        call.account(report::Path::staged, plain.bytes);
    }
    *position += static_cast<Size>(plain.bytes);
    return true;
}

/// What the MPI does: `native` gets the typed and the packed buffer.
template <bool packs, class Count, class Size, class Native>
int move_staged(Stage& stage, const void* const user, const Count count, const MPI_Datatype type,
                const void* const packed, const Size packed_size, const Native& native) {
    const Argument<Count> typed = stage.buffer(packs ? Access::in : Access::out, user, count, type);
    // The MPI writes only a part of the packed buffer; the rest must stay as it is.
    const Argument<Size> staged = stage.buffer(packs ? Access::inout : Access::in, packed, packed_size, MPI_PACKED);
    stage.load();
    const int error = native(typed, staged);
    if (error == MPI_SUCCESS) {
        stage.store();
    }
    return error;
}

/// MPI_Pack(in, count, type, out, out_size, position, comm).
struct Pack {
    template <Function function, class Count, class Size>
    static int run(Call& call, const void* input, Count count, MPI_Datatype type, void* output, Size output_size,
                   Size* position, MPI_Comm comm) {
        call.on(comm);
        Stage stage(call);
        if (move_plainly<true>(call, stage, const_cast<void*>(input), static_cast<std::int64_t>(count), type, output,
                               output_size, position, comm)) {
            return MPI_SUCCESS;
        }
        return move_staged<true>(stage, input, count, type, output, output_size,
                                 [&](const auto& typed, const auto& packed) {
                                     return below<function>()(typed.address, typed.count, typed.type, packed.address,
                                                              packed.count, position, comm);
                                 });
    }
};

/// MPI_Unpack(in, in_size, position, out, count, type, comm).
struct Unpack {
    template <Function function, class Count, class Size>
    static int run(Call& call, const void* input, Size input_size, Size* position, void* output, Count count,
                   MPI_Datatype type, MPI_Comm comm) {
        call.on(comm);
        Stage stage(call);
        if (move_plainly<false>(call, stage, output, static_cast<std::int64_t>(count), type, const_cast<void*>(input),
                                input_size, position, comm)) {
            return MPI_SUCCESS;
        }
        return move_staged<false>(stage, output, count, type, input, input_size,
                                  [&](const auto& typed, const auto& packed) {
                                      return below<function>()(packed.address, packed.count, position, typed.address,
                                                               typed.count, typed.type, comm);
                                  });
    }
};

/// MPI_Pack_external(datarep, in, count, type, out, out_size, position): sizes are MPI_Aint in the small form.
struct PackExternal {
    template <Function function, class Count, class Size>
    static int run(Call& call, const char* representation, const void* input, Count count, MPI_Datatype type,
                   void* output, Size output_size, Size* position) {
        Stage stage(call);
        return move_staged<true>(stage, input, count, type, output, output_size,
                                 [&](const auto& typed, const auto& packed) {
                                     return below<function>()(representation, typed.address, typed.count, typed.type,
                                                              packed.address, packed.count, position);
                                 });
    }
};

struct UnpackExternal {
    template <Function function, class Count, class Size>
    static int run(Call& call, const char* representation, const void* input, Size input_size, Size* position,
                   void* output, Count count, MPI_Datatype type) {
        Stage stage(call);
        return move_staged<false>(stage, output, count, type, input, input_size,
                                  [&](const auto& typed, const auto& packed) {
                                      return below<function>()(representation, packed.address, packed.count, position,
                                                               typed.address, typed.count, typed.type);
                                  });
    }
};

}  // namespace

Services pack_services() {
    return {
        AWAKEN_SERVE_COUNTS(Pack, Pack),
        AWAKEN_SERVE_COUNTS(Unpack, Unpack),
        AWAKEN_SERVE_COUNTS(Pack_external, PackExternal),
        AWAKEN_SERVE_COUNTS(Unpack_external, UnpackExternal),
    };
}

}  // namespace awaken::AWAKEN_ABI
