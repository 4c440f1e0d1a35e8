// SPDX-License-Identifier: Apache-2.0
#include "call/layer.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "call/call.h"
#include "call/write_report.h"
#include "internode/network.h"
#include "node/job.h"
#include "trace/announcement.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// Asks a function that looks at the datatype alone, and needs no communicator.
void refuse_uncommitted(const MPI_Datatype type) {
    Layer& owner = layer();
    const MPI_Status nothing{};
    int elements = 0, error_class = MPI_SUCCESS;
    const ScopedErrorsReturn errors_return(owner.default_handlers);
    const int error = errors_return.holds() ? owner.real.Get_elements(&nothing, type, &elements) : MPI_SUCCESS;
    if (error != MPI_SUCCESS && owner.real.Error_class(error, &error_class) == MPI_SUCCESS &&
        error_class == MPI_ERR_TYPE) {
        const char* const name = Call::current != nullptr ? Call::current->name() : "MPI";
        throw ClassedError(MPI_ERR_TYPE, std::string(name) + ": the datatype is not committed",
                           "call MPI_Type_commit first");
    }
}

}  // namespace

Layer::Layer(const loader::Binding& mpi, Settings given)
    : binding(mpi),
      settings(std::move(given)),
      tracing(!settings.trace_folder.empty()),
      observed(settings.report || tracing),
      default_handlers(real, binding),
      datatypes(real, refuse_uncommitted),
      receive_types(real, binding.version),
      pool(settings.pinned_pool_bytes),
      requests(real),
      collectives(settings),
      communicators(real),
      node_peers(*this),
      native_gpu(*this),
      memory_kinds(*this),
      trace(*this) {
    real.load(binding);
    completion.load(binding);
    fault_tolerance.load(binding);
    below.load_below(binding);
}

void Layer::count_order(const char* const function, const bool is_in_order, const char* const why_not) {
    if (!is_order(settings.default_stream)) [[likely]] {
        return;
    }
    (is_in_order ? ordered : waited).fetch_add(1, std::memory_order_relaxed);
    if (!is_in_order && settings.report) {
        ledger.add_fallback(function, std::string("waited for the default stream: ") + why_not);
    }
}

gpu::Runtime& Layer::look_for_gpu() {
    gpu::Runtime& runtime = gpu::find_in_use(settings.gpu);
    if (runtime.is_present()) {
        if (settings.default_stream == DefaultStream::trust) {
            runtime.trust_default_stream();
        } else if (settings.report) {
            runtime.time_default_stream();
        }
        _gpu.store(&runtime, std::memory_order_release);
        node_peers.use(runtime);
    }
    return runtime;
}

int greatest_tag() {
    static const int greatest = [] {
        const int* value = nullptr;
        int known = 0;
        layer().real.Comm_get_attr(MPI_COMM_SELF, MPI_TAG_UB, static_cast<void*>(&value), &known);
        constexpr int kLeastAllowed = 32767;  // MPI-4.1, 9.1.2
        return known != 0 ? *value : kLeastAllowed;
    }();
    return greatest;
}

transfer::DeviceCopies& Layer::copies() {
    std::call_once(_copies_once, [this] {
        _copies = std::make_unique<transfer::DeviceCopies>(gpu(), pool, tuning(), settings.copy, &packer());
    });
    return *_copies;
}

transfer::Copier& Layer::copier() {
    std::call_once(_copier_once,
                   [this] { _copier = std::make_unique<transfer::Copier>(gpu(), copies(), pool, &packer()); });
    return *_copier;
}

transfer::Packer& Layer::packer() {
    std::call_once(_packer_once, [this] {
        gpu::Runtime& runtime = gpu();
        _packer = std::make_unique<transfer::Packer>(
            runtime, tuning(), [this](const std::string& reason) { ledger.add_fallback("datatypes", reason); });
    });
    return *_packer;
}

int Layer::error_code(int error_class, const Error& error) {
    if (error_class == MPI_ERR_OTHER) {
        error_class = fault_tolerance.class_of(error);
    }
    const std::scoped_lock lock(_mutex);
    const auto known = _error_codes.find(error.what());
    if (known != _error_codes.end()) {
        return known->second;
    }
    fprintf(stderr, "awaken: %s\n", printable_lines(error.what()).c_str());
    int code = error_class;
    if (_open_models > 0) {
        // MPI-4.1, 9.5 allows adding codes to a predefined class. If an MPI refuses, the layer uses the class alone.
        int added = 0;
        if (real.Add_error_code(error_class, &added) == MPI_SUCCESS) {
            const std::string text = std::string("awaken: ") + error.what();
            real.Add_error_string(added, text.substr(0, MPI_MAX_ERROR_STRING - 1).c_str());
            code = added;
        }
    }
    _error_codes.emplace(error.what(), code);
    return code;
}

bool Layer::takes_fragments() const noexcept {
    const Network* const network = node_peers.network();
    return network != nullptr && network->takes_fragments();
}

void Layer::mpi_started(const bool world_model) {
    // A session has its own thread level, and no function asks for the level of a session.
    int level = MPI_THREAD_MULTIPLE;
    if (world_model) {
        real.Query_thread(&level);
    }
    if (level == MPI_THREAD_MULTIPLE) {
        _several_threads.store(true, std::memory_order_relaxed);
    }
    const std::scoped_lock lock(_mutex);
    ++_open_models;
    if (world_model) {
        _world_up = true;
        real.Comm_rank(MPI_COMM_WORLD, &_rank);
        real.Comm_size(MPI_COMM_WORLD, &_size);
        fault_tolerance.mpi_started(real);
        requests.world_started();
        receive_types.set_world(true);
        node_peers.after_init();
        // A program may have begun to use its GPU before MPI: then others may send RTS messages from now on.
        if (gpu::Runtime& known = gpu(); known.is_present()) {
            node_peers.use(known);
        }
        if (tracing) {
            trace.begin();
        } else if (_size > 1 && trace::is_announced(node::find_job(settings.job).key)) {
            loader::die("AWAKEN_TRACE is set for some rank, but not for rank " + std::to_string(_rank) +
                        " of MPI_COMM_WORLD: set it for all ranks, or for none");
        }
    }
}

void Layer::mpi_stopping(const bool world_model) {
    if (StreamWork* const work = stream_work.load(std::memory_order_acquire); work != nullptr && world_model) {
        work->stop();
    }
    static_cast<void>(gpu().was_reset());  // after a reset the layer touches none of its GPU resources any more
    requests.finish_orphaned();
    bool last = false;
    {
        const std::scoped_lock lock(_mutex);
        last = --_open_models == 0;
        if (world_model) {
            _world_up = false;
        }
    }
    // The report of the world covers everything. Sessions report when there was no world.
    if (settings.report && (world_model || (last && _rank < 0))) {
        write_report(*this, world_model);
    }
    if (world_model) {
        communicators.give_up();
        node_peers.before_finalize();
        requests.world_stopping();
        receive_types.set_world(false);
    }
    if (tracing && (world_model || (last && _rank < 0))) {
        trace.end();
    }
    if (last) {
        datatypes.clear();
        receive_types.clear();
    }
}

void Layer::mpi_stopped() {
    {
        const std::scoped_lock lock(_mutex);
        if (!_world_up) {
            node_peers.after_finalize();
        }
        if (_open_models > 0) {
            return;
        }
    }
    if (_copies != nullptr) {
        _copies->shut_down();
    }
    if (_packer != nullptr) {
        _packer->shut_down();
    }
    memory_kinds.mpi_stopped();
    pool.trim();
    bounce_buffers.trim();
    gpu().do_deferred(gpu::kPatience);
}

transfer::Tuning Layer::tuning() {
    return transfer::Tuning::from_environment(environ);
}

}  // namespace awaken::AWAKEN_ABI
