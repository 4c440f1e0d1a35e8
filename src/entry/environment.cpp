// SPDX-License-Identifier: Apache-2.0
// Start and end of MPI, the life of datatypes, and the queries by which programs decide to use device pointers.

#include <optional>
#include <string>

#include "call/call.h"
#include "call/services.h"
#include "call/support_queries.h"
#include "entry/install.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// Serves only the functions that all ranks of a job of several nodes must take part in.
void serve_what_needs_all();

/// MPI is up: from now on the layer knows whether the job may use a GPU.
void started(const bool world_model) {
    Layer& owner = layer();
    owner.mpi_started(world_model);
    if (world_model) {
        owner.memory_kinds.world_started();
    }
    // A second time: mpi4py asks which MPI this is before it loads its extension module.
    loader::withdraw_absent_functions(owner.binding);
    const bool asked_for = owner.settings.gpu == gpu::Choice::cuda || owner.settings.gpu == gpu::Choice::hip;
    if (asked_for) {
        std::string why_not;
        if (!gpu::can_be_loaded(owner.settings.gpu, why_not)) {
            loader::die(
                Error(why_not, "install the driver or make it visible to this process, or unset AWAKEN_GPU").what());
        }
    } else if (!owner.observed && !owner.settings.reproducible &&
               (owner.settings.gpu == gpu::Choice::none || !gpu::driver_present())) {
        // No GPU can appear here: the program gets its MPI back, and each call costs one jump.
        loader::pass_everything_through(owner.binding);
        owner.tracks_operations = false;
        fill_slots(memory_kind_services());
        fill_slots(query_services());
        fill_slots(stream_services());
        if (owner.node_peers.has_network()) {
            serve_what_needs_all();
        }
    }
}

struct Init {
    template <Function function, class... Arguments>
    static int run(Call& call, Arguments... arguments) {
        layer().node_peers.before_init();
        const int error = init(NativeMember<function>::of(layer().below), arguments...);
        call.end_in_trace();
        if (error == MPI_SUCCESS) {
            started(true);
        }
        return error;
    }

  private:
    /// A thread of the layer makes the MPI calls for streams, so a program with such calls gets what that takes.
    static bool needs_threads() noexcept {
        static const bool needs = loader::is_program_linked_to("MPIX_Stream_comm_create");
        return needs;
    }
    static int init(int (*const native)(int*, char***), int* const count, char*** const words) {
        int provided = 0;
        return needs_threads() ? below<Function::Init_thread>()(count, words, MPI_THREAD_MULTIPLE, &provided)
                               : native(count, words);
    }
    static int init(int (*const native)(int*, char***, int, int*), int* const count, char*** const words,
                    const int level, int* const provided) {
        return native(count, words, needs_threads() ? MPI_THREAD_MULTIPLE : level, provided);
    }
};

struct SessionInit {
    template <Function function, class Handler, class Session>  // an MPI-3 header has no MPI_Session
    static int run(Call&, MPI_Info info, Handler handler, Session* session) {
        const int error = below<function>()(info, handler, session);
        if (error == MPI_SUCCESS) {
            started(false);
            session_requests_kinds(NamedObject::of(NamedObject::Type::session, *session), info);
        }
        return error;
    }
};

struct Finalize {
    template <Function function>
    static int run(Call& call) {
        // The trace is written while the MPI is still up, and shows this call as far as it got.
        call.end_in_trace();
        layer().mpi_stopping(true);
        const int error = below<function>()();
        layer().mpi_stopped();
        return error;
    }
};

struct TypeFree {
    template <Function function>
    static int run(Call&, MPI_Datatype* type) {
        if (type != nullptr) {
            layer().datatypes.forget(*type);
        }
        return below<function>()(type);
    }
};

struct SetErrorHandler {
    template <Function function>
    static int run(Call& call, MPI_Comm comm, MPI_Errhandler handler) {
        call.on(comm);
        if (comm != MPI_COMM_WORLD && comm != MPI_COMM_SELF) {
            return below<function>()(comm, handler);
        }
        return layer().default_handlers.set(below<function>(), comm, handler);
    }
};

/// The ranks of a job of several nodes end together what they began together, those without a GPU too. They also answer
/// ranks with a GPU that ask whether any rank passes device memory.
void serve_what_needs_all() {
    void* const entry = Entry<Function::Finalize, Finalize>::address();
    loader::set_slot(Function::Finalize, entry, entry);
    // The layer's record of a datatype must not outlive the datatype: the MPI uses the handle again.
    void* const free = Entry<Function::Type_free, TypeFree>::address();
    loader::set_slot(Function::Type_free, free, free);
    for (const Services& services : {window_agreement_services(), proposing_services(), edge_services()}) {
        fill_slots(services);
    }
}

struct SessionFinalize {
    template <Function function, class Session>  // an MPI-3 header has no MPI_Session
    static int run(Call&, Session* session) {
        layer().memory_kinds.forget(NamedObject::of(NamedObject::Type::session, *session));
        layer().mpi_stopping(false);
        const int error = below<function>()(session);
        layer().mpi_stopped();
        return error;
    }
};

/// Programs ask before MPI_Init and after MPI_Finalize, too, where an MPI's own query may end the process.
bool mpi_is_up() {
    const Native& native = layer().real;
    int begun = 0, over = 0;
    native.Initialized(&begun);
    native.Finalized(&over);
    return begun != 0 ? over == 0 : layer().any_model_is_open();
}

int answer(const SupportQuery& query) {
    if (serves(query.vendor)) {
        return 1;
    }
    if (!mpi_is_up()) {
        return 0;
    }
    using Query = int (*)();
    const auto ask = reinterpret_cast<Query>(layer().binding.symbol(query.name));
    return ask != nullptr ? ask() : 0;
}

int query_cuda_support() {
    return answer(kCudaQuery);
}
int query_rocm_support() {
    return answer(kRocmQuery);
}
int query_hip_support() {
    return answer(kHipQuery);
}

/// MPICH's form, with its numbers for the kinds of GPU.
int gpu_query_support(const int kind, int* const is_supported) {
    const std::optional<gpu::Vendor> vendor = vendor_of(kind);
    if (is_supported != nullptr && vendor && serves(*vendor)) {
        *is_supported = 1;
        return MPI_SUCCESS;
    }
    using Query = int (*)(int, int*);
    const auto ask = reinterpret_cast<Query>(layer().binding.symbol(kQueryByKind));
    if (ask != nullptr && mpi_is_up()) {
        return ask(kind, is_supported);
    }
    if (is_supported != nullptr) {
        *is_supported = 0;
    }
    return MPI_SUCCESS;
}

}  // namespace

Services environment_services() {
    return {
        AWAKEN_SERVE(Init, Init),
        AWAKEN_SERVE(Init_thread, Init),
        AWAKEN_SERVE(Session_init, SessionInit),
        AWAKEN_SERVE(Finalize, Finalize),
        AWAKEN_SERVE(Session_finalize, SessionFinalize),
        AWAKEN_SERVE(Type_free, TypeFree),
        AWAKEN_SERVE(Comm_set_errhandler, SetErrorHandler),
    };
}

Services query_services() {
    return {
        {Function::MPIX_Query_cuda_support, reinterpret_cast<void*>(&query_cuda_support)},
        {Function::MPIX_Query_rocm_support, reinterpret_cast<void*>(&query_rocm_support)},
        {Function::MPIX_Query_hip_support, reinterpret_cast<void*>(&query_hip_support)},
        {Function::MPIX_GPU_query_support, reinterpret_cast<void*>(&gpu_query_support)},
    };
}

}  // namespace awaken::AWAKEN_ABI
