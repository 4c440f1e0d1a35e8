// SPDX-License-Identifier: Apache-2.0
// Kinds of memory: what programs are told that they may pass, what they assert, and memory of a kind (MPI-4.1, 11.4.3).

#include <cstring>
#include <tuple>

#include "call/call.h"
#include "call/memory_kinds.h"
#include "call/object_life.h"
#include "call/services.h"
#include "entry/install.h"
#include "gpu/memory_kinds.h"

namespace awaken::AWAKEN_ABI {

namespace {

using ObjectType = NamedObject::Type;

/// MPI_<object>_get_info(object, info).
template <ObjectType type>
struct GetInfo {
    template <Function function, class Handle>
    static int run(Call& call, Handle handle, MPI_Info* info) {
        const NamedObject object = NamedObject::of(type, handle);
        call.on(object);
        const int error = below<function>()(handle, info);
        if (error == MPI_SUCCESS && *info != MPI_INFO_NULL) {
            layer().memory_kinds.answer(object, *info);
        }
        return error;
    }
};

/// MPI_<object>_set_info(object, ..., info).
template <ObjectType type>
struct SetInfo {
    template <Function function, class Handle, class... Others>
    static int run(Call& call, Handle handle, Others... others) {
        std::tuple<Others...> all(others...);
        const NamedObject object = NamedObject::of(type, handle);
        call.on(object);
        MPI_Info& info = std::get<sizeof...(others) - 1>(all);
        const MPI_Info given = info;
        const InfoForMpi for_mpi(given);
        info = for_mpi.get();
        const int error = std::apply([handle](Others... passed) { return below<function>()(handle, passed...); }, all);
        if (error == MPI_SUCCESS) {
            layer().memory_kinds.take_hints(object, given, true);
        }
        return error;
    }
};

/// Of a communicator: the new one's position, its hints', and the first one's.
template <std::size_t made, std::size_t hints = kNoHints, std::size_t origin = 0>
using FromCommunicator = MakeObject<PassDown, ObjectType::communicator, origin, ObjectType::communicator, made, hints>;
template <std::size_t made, std::size_t hints>
using FromGroup = MakeObject<PassDown, ObjectType::group, 0, ObjectType::communicator, made, hints>;
template <ObjectType origin, std::size_t made>
using GroupOf = MakeObject<PassDown, origin, 0, ObjectType::group, made, kNoHints>;
using OpenFile = MakeObject<PassDown, ObjectType::communicator, 0, ObjectType::file, 4, 3>;
template <ObjectType type>
using Free = FreeObject<PassDown, type>;

/// While no GPU can appear: MPI_Session_init is otherwise served in environment.cpp.
struct RequestKinds {
    template <Function function, class Handler, class Session>  // an MPI-3 header has no MPI_Session
    static int run(Call&, MPI_Info info, Handler handler, Session* session) {
        const int error = below<function>()(info, handler, session);
        if (error == MPI_SUCCESS) {
            session_requests_kinds(NamedObject::of(ObjectType::session, *session), info);
        }
        return error;
    }
};

// ---- memory ---------------------------------------------------------------------------------------------------------

/// MPI_Alloc_mem(size, info, baseptr).
struct AllocateMemory {
    template <Function function>
    static int run(Call& call, MPI_Aint size, MPI_Info info, void* base) {
        const std::optional<std::string> wanted =
            size > 0 && base != nullptr ? info_value(info, kProvidedKinds) : std::nullopt;
        if (wanted) {
            gpu::Runtime& runtime = layer().memory_kinds.runtime_to_allocate_from(*wanted);
            const gpu::MemoryKind kind = gpu::kind_to_allocate(*wanted, runtime.vendor());
            if (kind != gpu::MemoryKind::host) {
                void* const memory = layer().memory_kinds.allocate(runtime, kind, static_cast<std::size_t>(size));
                if (memory == nullptr) {
                    throw ClassedError(MPI_ERR_NO_MEM,
                                       std::string(call.name()) + ": the GPU runtime has no " + std::to_string(size) +
                                           " bytes of " + gpu::to_string(kind) + " memory left",
                                       "free some, ask for less, or for another kind than " + *wanted);
                }
                std::memcpy(base, static_cast<const void*>(&memory), sizeof memory);
                return MPI_SUCCESS;
            }
        }
        return below<function>()(size, info, base);
    }
};

struct FreeMemory {
    template <Function function>
    static int run(Call&, void* base) {
        return layer().memory_kinds.free(base) ? MPI_SUCCESS : below<function>()(base);
    }
};

}  // namespace

void session_requests_kinds(const NamedObject& session, const MPI_Info info) {
    if (const std::optional<std::string> kinds = info_value(info, kProvidedKinds)) {
        layer().memory_kinds.request(session, *kinds);
        fill_slots(session_kind_services());
    }
}

void serve_reproducible() {
    Layer& owner = layer();
    fill_slots(session_kind_services());
    if (!owner.tracks_operations) {
        // No GPU can appear here, and the program had got its MPI back. Requests that it has begun stay the MPI's.
        for (const Services& family : {persistent_services(), completion_services(), collective_services()}) {
            fill_slots(family);
        }
        owner.tracks_operations = true;
    }
}

Services memory_kind_services() {
    using Type = ObjectType;
    return {
        AWAKEN_SERVE(Session_init, RequestKinds),
        AWAKEN_SERVE(Session_finalize, Free<Type::session>),
        AWAKEN_SERVE(Session_get_info, GetInfo<Type::session>),
        AWAKEN_SERVE(Comm_get_info, GetInfo<Type::communicator>),
        AWAKEN_SERVE(Comm_set_info, SetInfo<Type::communicator>),
        AWAKEN_SERVE(Comm_free, Free<Type::communicator>),
        AWAKEN_SERVE(Comm_disconnect, Free<Type::communicator>),
        AWAKEN_SERVE(Comm_dup_with_info, FromCommunicator<2, 1>),
        AWAKEN_SERVE(Comm_idup_with_info, FromCommunicator<2, 1>),
        AWAKEN_SERVE(Comm_split_type, FromCommunicator<4, 3>),
        AWAKEN_SERVE(Dist_graph_create, FromCommunicator<8, 6>),
        AWAKEN_SERVE(Dist_graph_create_adjacent, FromCommunicator<9, 7>),
        AWAKEN_SERVE(Comm_create_from_group, FromGroup<4, 2>),
        AWAKEN_SERVE(Intercomm_create_from_groups, FromGroup<7, 5>),
        // The families of windows and files serve these, too, where a GPU may appear.
        AWAKEN_SERVE_COUNTS(Win_create, MakeWindow<PassDown, 3>),
        AWAKEN_SERVE_COUNTS(Win_allocate, MakeWindow<PassDown, 2>),
        AWAKEN_SERVE_COUNTS(Win_allocate_shared, MakeWindow<PassDown, 2>),
        AWAKEN_SERVE(Win_create_dynamic, MakeWindow<PassDown, 0, 2>),
        AWAKEN_SERVE(Win_free, Free<Type::window>),
        AWAKEN_SERVE(Win_get_info, GetInfo<Type::window>),
        AWAKEN_SERVE(Win_set_info, SetInfo<Type::window>),
        AWAKEN_SERVE(File_open, OpenFile),
        AWAKEN_SERVE(File_close, Free<Type::file>),
        AWAKEN_SERVE(File_get_info, GetInfo<Type::file>),
        AWAKEN_SERVE(File_set_info, SetInfo<Type::file>),
        AWAKEN_SERVE(File_set_view, SetInfo<Type::file>),
        AWAKEN_SERVE(Alloc_mem, AllocateMemory),
        AWAKEN_SERVE(Free_mem, FreeMemory),
    };
}

Services session_kind_services() {
    using Type = ObjectType;
    return {
        AWAKEN_SERVE(Group_from_session_pset, GroupOf<Type::session, 2>),
        AWAKEN_SERVE(Comm_group, GroupOf<Type::communicator, 1>),
        AWAKEN_SERVE(Comm_remote_group, GroupOf<Type::communicator, 1>),
        AWAKEN_SERVE(Group_incl, GroupOf<Type::group, 3>),
        AWAKEN_SERVE(Group_excl, GroupOf<Type::group, 3>),
        AWAKEN_SERVE(Group_range_incl, GroupOf<Type::group, 3>),
        AWAKEN_SERVE(Group_range_excl, GroupOf<Type::group, 3>),
        AWAKEN_SERVE(Group_union, GroupOf<Type::group, 2>),
        AWAKEN_SERVE(Group_intersection, GroupOf<Type::group, 2>),
        AWAKEN_SERVE(Group_difference, GroupOf<Type::group, 2>),
        AWAKEN_SERVE(Group_free, Free<Type::group>),
        AWAKEN_SERVE(Comm_dup, FromCommunicator<1>),
        AWAKEN_SERVE(Comm_idup, FromCommunicator<1>),
        AWAKEN_SERVE(Comm_create, FromCommunicator<2>),
        AWAKEN_SERVE(Comm_create_group, FromCommunicator<3>),
        AWAKEN_SERVE(Comm_split, FromCommunicator<3>),
        AWAKEN_SERVE(Intercomm_create, FromCommunicator<5>),
        AWAKEN_SERVE(Intercomm_merge, FromCommunicator<2>),
        AWAKEN_SERVE(Comm_accept, FromCommunicator<4, kNoHints, 3>),
        AWAKEN_SERVE(Comm_connect, FromCommunicator<4, kNoHints, 3>),
        AWAKEN_SERVE(Comm_spawn, FromCommunicator<6, kNoHints, 5>),
        AWAKEN_SERVE(Comm_spawn_multiple, FromCommunicator<7, kNoHints, 6>),
    };
}

}  // namespace awaken::AWAKEN_ABI
