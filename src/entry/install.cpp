// SPDX-License-Identifier: Apache-2.0
#include "entry/install.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "call/layer.h"
#include "call/services.h"
#include "coll/collective_comm.h"
#include "node/job.h"
#include "trace/announcement.h"

extern char** environ;

namespace awaken::AWAKEN_ABI {

Layer* current_layer = nullptr;

void fill_slots(const Services& services) {
    for (const loader::Service& service : services) {
        const bool extension = static_cast<int>(service.function) >= loader::kFunctions;
        // A null entry is not in this ABI. A function that this release of the MPI lacks stays "unsupported operation".
        if (service.entry != nullptr &&
            (extension || layer().binding.symbol(loader::name_of(service.function)) != nullptr)) {
            loader::set_slot(service.function, service.entry, service.entry);
        }
    }
}

void install(const loader::Binding& binding) {
    Settings settings = Settings::from_environment(environ);
    if (!settings.enabled) {
        return;
    }
    // Kept for the life of the process: see Layer.
    current_layer = new Layer(binding, std::move(settings));
    current_layer->communicators.set_family(Communicators::Family::collectives, &CollectiveComm::make);
    current_layer->memory_kinds.set_on_reproducible(&serve_reproducible);
    const bool tracing = current_layer->tracing;
    if (tracing) {
        trace::announce(node::find_job(current_layer->settings.job).key);
        trace::Session::start(current_layer->settings.trace_folder, current_layer->settings.trace_limit_bytes);
    }
    // The served functions come after those that the layer only observes, and so replace their slots.
    for (const Services& family :
         {tracing ? observed_services() : Services{}, memory_kind_services(), environment_services(), query_services(),
          point_to_point_services(), persistent_services(), completion_services(), collective_services(),
          edge_services(), neighbourhood_services(), pack_services(), one_sided_services(), file_services(),
          stream_services()}) {
        fill_slots(family);
    }
}

int unsupported_operation_code() noexcept {
    return MPI_ERR_UNSUPPORTED_OPERATION;
}

gpu::Runtime& gpu_in_use() {
    return current_layer != nullptr ? current_layer->gpu() : gpu::none();
}

}  // namespace awaken::AWAKEN_ABI
