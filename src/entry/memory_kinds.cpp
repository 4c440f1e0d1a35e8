// Kinds of memory: what programs are told that they may pass, what they assert, and memory of a kind (MPI-4.1, 11.4.3).

#include <cstring>
#include <tuple>

#include "call/call.h"
#include "call/memory_kinds.h"
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
    static int run(Call& call, Handle object, MPI_Info* info) {
        if constexpr (type == ObjectType::communicator) {
            call.on(object);
        }
        const int error = below<function>()(object, info);
        if (error == MPI_SUCCESS && *info != MPI_INFO_NULL) {
            layer().memory_kinds.answer(NamedObject::of(type, object), *info);
        }
        return error;
    }
};

struct SetCommunicatorInfo {
    template <Function function>
    static int run(Call& call, MPI_Comm communicator, MPI_Info info) {
        call.on(communicator);
        const int error = below<function>()(communicator, InfoForMpi(info).get());
        if (error == MPI_SUCCESS) {
            layer().memory_kinds.take_hints(NamedObject::of(ObjectType::communicator, communicator), info);
        }
        return error;
    }
};

/// A function that makes a communicator or a group, whose arguments have these positions: the object that it is made
/// of, the hints for it (kNone: it takes none), and the new object.
inline constexpr std::size_t kNone = ~std::size_t{0};
template <ObjectType origin_type, std::size_t origin, ObjectType made_type, std::size_t made, std::size_t hints = kNone>
struct Make {
    template <Function function, class... Arguments>
    static int run(Call& call, Arguments... arguments) {
        std::tuple<Arguments...> all(arguments...);
        if constexpr (origin_type == ObjectType::communicator) {
            call.on(std::get<origin>(all));
        }
        MPI_Info given = MPI_INFO_NULL;
        if constexpr (hints != kNone) {
            given = std::get<hints>(all);
        }
        const InfoForMpi for_mpi(given);
        if constexpr (hints != kNone) {
            std::get<hints>(all) = for_mpi.get();
        }
        const int error = std::apply(below<function>(), all);
        auto* const handle = std::get<made>(all);
        if (error != MPI_SUCCESS || handle == nullptr || is_null(*handle)) {
            return error;
        }
        MemoryKinds& kinds = layer().memory_kinds;
        const NamedObject object = NamedObject::of(made_type, *handle);
        kinds.inherit(NamedObject::of(origin_type, std::get<origin>(all)), object);
        kinds.take_hints(object, given);
        return error;
    }

  private:
    template <class Handle>
    static bool is_null(const Handle handle) noexcept {
        if constexpr (made_type == ObjectType::communicator) {
            return handle == MPI_COMM_NULL;
        } else {
            return handle == MPI_GROUP_NULL || handle == MPI_GROUP_EMPTY;
        }
    }
};

/// Of a communicator: the new one's position, and its hints'.
template <std::size_t made, std::size_t hints = kNone, std::size_t origin = 0>
using FromCommunicator = Make<ObjectType::communicator, origin, ObjectType::communicator, made, hints>;
template <std::size_t made, std::size_t hints>
using FromGroup = Make<ObjectType::group, 0, ObjectType::communicator, made, hints>;
template <std::size_t made>
using GroupOfGroup = Make<ObjectType::group, 0, ObjectType::group, made>;
using GroupOfCommunicator = Make<ObjectType::communicator, 0, ObjectType::group, 1>;
using GroupOfSession = Make<ObjectType::session, 0, ObjectType::group, 2>;
using CommDupWithInfo = FromCommunicator<2, 1>;
using CommIdupWithInfo = FromCommunicator<2, 1>;
using CommSplitType = FromCommunicator<4, 3>;
using DistGraphCreate = FromCommunicator<8, 6>;
using DistGraphCreateAdjacent = FromCommunicator<9, 7>;
using CommCreateFromGroup = FromGroup<4, 2>;
using IntercommCreateFromGroups = FromGroup<7, 5>;
using CommAccept = FromCommunicator<4, kNone, 3>;
using CommConnect = FromCommunicator<4, kNone, 3>;
using CommSpawn = FromCommunicator<6, kNone, 5>;
using CommSpawnMultiple = FromCommunicator<7, kNone, 6>;

/// Before an object goes, and its handle may become another one's.
template <ObjectType type>
struct Free {
    template <Function function, class Handle>
    static int run(Call&, Handle* object) {
        if (object != nullptr) {
            layer().memory_kinds.forget(NamedObject::of(type, *object));
        }
        return below<function>()(object);
    }
};

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

Services memory_kind_services() {
    return {
        AWAKEN_SERVE(Session_init, RequestKinds),
        AWAKEN_SERVE(Session_finalize, Free<ObjectType::session>),
        AWAKEN_SERVE(Comm_get_info, GetInfo<ObjectType::communicator>),
        AWAKEN_SERVE(Win_get_info, GetInfo<ObjectType::other>),
        AWAKEN_SERVE(File_get_info, GetInfo<ObjectType::other>),
        AWAKEN_SERVE(Session_get_info, GetInfo<ObjectType::session>),
        AWAKEN_SERVE(Comm_set_info, SetCommunicatorInfo),
        AWAKEN_SERVE(Comm_free, Free<ObjectType::communicator>),
        AWAKEN_SERVE(Comm_disconnect, Free<ObjectType::communicator>),
        AWAKEN_SERVE(Comm_dup_with_info, CommDupWithInfo),
        AWAKEN_SERVE(Comm_idup_with_info, CommIdupWithInfo),
        AWAKEN_SERVE(Comm_split_type, CommSplitType),
        AWAKEN_SERVE(Dist_graph_create, DistGraphCreate),
        AWAKEN_SERVE(Dist_graph_create_adjacent, DistGraphCreateAdjacent),
        AWAKEN_SERVE(Comm_create_from_group, CommCreateFromGroup),
        AWAKEN_SERVE(Intercomm_create_from_groups, IntercommCreateFromGroups),
        AWAKEN_SERVE(Alloc_mem, AllocateMemory),
        AWAKEN_SERVE(Free_mem, FreeMemory),
    };
}

Services session_kind_services() {
    return {
        AWAKEN_SERVE(Group_from_session_pset, GroupOfSession),
        AWAKEN_SERVE(Comm_group, GroupOfCommunicator),
        AWAKEN_SERVE(Comm_remote_group, GroupOfCommunicator),
        AWAKEN_SERVE(Group_incl, GroupOfGroup<3>),
        AWAKEN_SERVE(Group_excl, GroupOfGroup<3>),
        AWAKEN_SERVE(Group_range_incl, GroupOfGroup<3>),
        AWAKEN_SERVE(Group_range_excl, GroupOfGroup<3>),
        AWAKEN_SERVE(Group_union, GroupOfGroup<2>),
        AWAKEN_SERVE(Group_intersection, GroupOfGroup<2>),
        AWAKEN_SERVE(Group_difference, GroupOfGroup<2>),
        AWAKEN_SERVE(Group_free, Free<ObjectType::group>),
        AWAKEN_SERVE(Comm_dup, FromCommunicator<1>),
        AWAKEN_SERVE(Comm_idup, FromCommunicator<1>),
        AWAKEN_SERVE(Comm_create, FromCommunicator<2>),
        AWAKEN_SERVE(Comm_create_group, FromCommunicator<3>),
        AWAKEN_SERVE(Comm_split, FromCommunicator<3>),
        AWAKEN_SERVE(Intercomm_create, FromCommunicator<5>),
        AWAKEN_SERVE(Intercomm_merge, FromCommunicator<2>),
        AWAKEN_SERVE(Comm_accept, CommAccept),
        AWAKEN_SERVE(Comm_connect, CommConnect),
        AWAKEN_SERVE(Comm_spawn, CommSpawn),
        AWAKEN_SERVE(Comm_spawn_multiple, CommSpawnMultiple),
    };
}

}  // namespace awaken::AWAKEN_ABI
