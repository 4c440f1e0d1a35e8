// SPDX-License-Identifier: Apache-2.0
// Functions that make and free objects for which kinds of memory are kept (memory_kinds.h), around whatever else is
// done in them.
#pragma once

#include <cstddef>
#include <tuple>

#include "call/call.h"
#include "call/memory_kinds.h"

namespace awaken::AWAKEN_ABI {

/// Nothing else is done: the program's own call.
struct PassDown {
    template <Function function, class... Arguments>
    static int run(Call&, Arguments... arguments) {
        return below<function>()(arguments...);
    }
};

/// `Operation` makes an object. The positions of arguments: the object that it is made of, the new object, and the
/// hints for it (kNoHints: it takes none).
inline constexpr std::size_t kNoHints = ~std::size_t{0};
template <class Operation, NamedObject::Type origin_type, std::size_t origin, NamedObject::Type made_type,
          std::size_t made, std::size_t hints>
struct MakeObject {
    template <Function function, class... Arguments>
    static int run(Call& call, Arguments... arguments) {
        std::tuple<Arguments...> all(arguments...);
        const NamedObject from = NamedObject::of(origin_type, std::get<origin>(all));
        call.on(from);
        MPI_Info given = MPI_INFO_NULL;
        if constexpr (hints != kNoHints) {
            given = std::get<hints>(all);
        }
        const InfoForMpi for_mpi(given);
        if constexpr (hints != kNoHints) {
            std::get<hints>(all) = for_mpi.get();
        }
        const int error = std::apply(
            [&call](Arguments... passed) { return Operation::template run<function>(call, passed...); }, all);
        const auto* const handle = std::get<made>(all);
        if (error == MPI_SUCCESS && handle != nullptr && !is_null(*handle)) {
            MemoryKinds& kinds = layer().memory_kinds;
            const NamedObject object = NamedObject::of(made_type, *handle);
            kinds.inherit(from, object);
            if constexpr (function == Function::Comm_dup || function == Function::Comm_idup) {
                kinds.duplicate(from.as<MPI_Comm>(), *handle);
            }
            kinds.take_hints(object, given, function == Function::Comm_dup_with_info);
        }
        return error;
    }

  private:
    template <class Handle>
    static bool is_null(const Handle handle) noexcept {
        using Type = NamedObject::Type;
        if constexpr (made_type == Type::communicator) {
            return handle == MPI_COMM_NULL;
        } else if constexpr (made_type == Type::group) {
            return handle == MPI_GROUP_NULL || handle == MPI_GROUP_EMPTY;
        } else if constexpr (made_type == Type::window) {
            return handle == MPI_WIN_NULL;
        } else {
            return handle == MPI_FILE_NULL;
        }
    }
};

/// `Operation` makes a window, as MPI_Win_create does. The hints' position; the communicator comes after them.
template <class Operation, std::size_t hints, std::size_t made = 5>
using MakeWindow =
    MakeObject<Operation, NamedObject::Type::communicator, hints + 1, NamedObject::Type::window, made, hints>;

/// `Operation` frees an object. What is kept goes before, since the handle may then become another object's.
template <class Operation, NamedObject::Type type>
struct FreeObject {
    template <Function function, class Handle>
    static int run(Call& call, Handle* object) {
        if (object != nullptr) {
            layer().memory_kinds.forget(NamedObject::of(type, *object));
        }
        return Operation::template run<function>(call, object);
    }
};

}  // namespace awaken::AWAKEN_ABI
