// SPDX-License-Identifier: Apache-2.0
// The public C interface of include/awaken/awaken.h.

#include "awaken/awaken.h"

#include "base/error.h"
#include "base/settings.h"
#include "gpu/gpu.h"
#include "loader/core.h"
#include "report/totals.h"
#include "trace/session.h"

#define AWAKEN_EXPORT extern "C" __attribute__((visibility("default")))
#define AWAKEN_TEXT(value) AWAKEN_TEXT_(value)
#define AWAKEN_TEXT_(value) #value

using namespace awaken;

extern char** environ;

static_assert(static_cast<int>(report::Path::refused) == AWAKEN_PATH_REFUSED);
static_assert(static_cast<int>(gpu::MemoryKind::managed) == AWAKEN_MEMORY_MANAGED);

AWAKEN_EXPORT const char* awaken_version(void) {
    return AWAKEN_TEXT(AWAKEN_VERSION_MAJOR) "." AWAKEN_TEXT(AWAKEN_VERSION_MINOR) "." AWAKEN_TEXT(
        AWAKEN_VERSION_PATCH);
}

AWAKEN_EXPORT int awaken_is_active(void) {
    return core::is_installed() ? 1 : 0;
}

AWAKEN_EXPORT enum awaken_memory awaken_memory_of(const void* const pointer) {
    gpu::PointerInfo info;
    core::gpu_in_use().classify({&pointer, 1}, &info);
    return static_cast<enum awaken_memory>(info.kind);
}

AWAKEN_EXPORT enum awaken_path awaken_last_path(void) {
    return static_cast<enum awaken_path>(report::last_path);
}

AWAKEN_EXPORT int awaken_get_statistics(const enum awaken_path path, struct awaken_statistics* const statistics) {
    const auto index = static_cast<std::size_t>(path);
    if (index >= report::totals.paths.size() || statistics == nullptr) {
        return -1;
    }
    statistics->calls = report::totals.paths[index].calls.load(std::memory_order_relaxed);
    statistics->bytes = report::totals.paths[index].bytes.load(std::memory_order_relaxed);
    return 0;
}

namespace {

/// A program may name ranges before its first MPI call, at which everything else begins.
trace::Session* session() {
    static const bool begun = [] {
        try {
            const Settings settings = Settings::from_environment(environ);
            if (settings.enabled && !settings.trace_folder.empty()) {
                trace::Session::start(settings.trace_folder, settings.trace_limit_bytes);
            }
        } catch (const Error&) {
            // The first MPI call reports the error.
        }
        return true;
    }();
    static_cast<void>(begun);
    return trace::Session::current();
}

}  // namespace

AWAKEN_EXPORT void awaken_range_push(const char* const name) {
    if (trace::Session* const tracing = session()) {
        tracing->recorder().push_range(name != nullptr ? name : "");
    }
}

AWAKEN_EXPORT void awaken_range_pop(void) {
    if (trace::Session* const tracing = session()) {
        tracing->recorder().pop_range();
    }
}
