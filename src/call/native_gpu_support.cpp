// SPDX-License-Identifier: Apache-2.0
#include "call/native_gpu_support.h"

#include <unistd.h>

#include <cstdlib>

#include "base/doctor_notes.h"
#include "call/layer.h"
#include "call/support_queries.h"

namespace awaken::AWAKEN_ABI {

// Three may know whether the MPI takes device memory. The layer believes them in this order: the user; a real attempt
// that `awaken doctor` has made with this library under these settings; the MPI itself. The MPI comes last because it
// says how it was built, and not what works here.

bool NativeGpuSupport::look() {
    std::call_once(_once, [this] { _answer = find(); });
    _is_known.store(true, std::memory_order_release);
    return _answer.works;
}

NativeGpuSupport::Answer NativeGpuSupport::find() {
    const Settings& settings = _owner.settings;
    const loader::Binding& binding = _owner.binding;
    if (settings.path == NodePath::staged) {
        return {false, "not used: AWAKEN_PATH=staged was chosen"};
    }
    if (settings.native_gpu != NativeGpu::automatic) {
        const bool works = settings.native_gpu == NativeGpu::yes;
        return {works, works ? "yes: AWAKEN_NATIVE_GPU=yes" : "no: AWAKEN_NATIVE_GPU=no"};
    }
    const gpu::Vendor vendor = _owner.gpu().vendor();
    const char* const emulated = std::getenv("AWAKEN_EMULATE");
    const std::string kind =
        std::string(to_string(vendor)) + (emulated != nullptr && *emulated != '\0' ? "-emulated" : "");
    const DoctorNote note =
        find_doctor_note(doctor_notes_file(environ), library_key(binding.symbol("PMPI_Send"), binding.path), kind,
                         gpu_switches_of_mpis(environ));
    if (note.answer != DoctorNote::Answer::none) {
        const bool works = note.answer == DoctorNote::Answer::yes;
        return {works, (works ? "yes" : "no") + std::string(": `awaken doctor` tried it (") + note.text + ")"};
    }
    if (!note.text.empty()) {
        _owner.ledger.add_fallback("device memory", note.text);
    }

    // All query functions of the MPI must agree: MPICH's first one knows what was switched off when the job started.
    int said = 0, agreed = 0;
    std::string names;
    const auto hear = [&](const char* const name, const bool yes) {
        ++said;
        agreed += yes ? 1 : 0;
        names += (names.empty() ? "" : ", ") + std::string(name);
    };
    using QueryKind = int (*)(int, int*);
    if (const auto query = reinterpret_cast<QueryKind>(binding.symbol(kQueryByKind)); query != nullptr) {
        int supported = 0;
        hear(kQueryByKind, query(kind_of(vendor), &supported) == MPI_SUCCESS && supported != 0);
    }
    using Query = int (*)();
    for (const auto& [name, of] : kSupportQueries) {
        const auto query = of == vendor ? reinterpret_cast<Query>(binding.symbol(name)) : nullptr;
        if (query != nullptr) {
            hear(name, query() != 0);
        }
    }
    if (said == 0) {
        return {false, "not known: the MPI does not say, and `awaken doctor` has not tried it"};
    }
    const bool works = agreed == said;
    return {works, (works ? "yes" : "no") + std::string(": the MPI says so (") + names + ")"};
}

}  // namespace awaken::AWAKEN_ABI
