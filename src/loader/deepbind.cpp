// SPDX-License-Identifier: Apache-2.0
// Modules that are opened with RTLD_DEEPBIND, as Julia does, and Python where sys.setdlopenflags() says so. Such a
// module searches itself and its own libraries before the global scope. So its MPI functions are the MPI's and not
// ours, and nothing that it does later passes through us. dlopen() is the one place where it can be noticed.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "loader/deepbind.h"
#include "loader/objects.h"

extern "C" {
using Dlopen = void* (*)(const char*, int);
__attribute__((visibility("hidden"))) Dlopen awaken_next_dlopen = nullptr;
__attribute__((visibility("hidden"))) void awaken_find_next_dlopen() noexcept;
__attribute__((visibility("hidden"))) void* awaken_open_deepbind(const char* file, int flags);
}

static_assert(RTLD_DEEPBIND == 8, "stubs.S tests this bit");

namespace awaken::loader {

namespace {

/// The folders in which the dynamic loader searches for the libraries of an object.
std::vector<std::string> search_path(link_map* const object) {
    Dl_serinfo size{};
    if (dlinfo(object, RTLD_DI_SERINFOSIZE, &size) != 0) {
        return {};
    }
    std::vector<std::max_align_t> memory(size.dls_size / sizeof(std::max_align_t) + 1);
    auto* const info = reinterpret_cast<Dl_serinfo*>(memory.data());
    std::vector<std::string> folders;
    if (dlinfo(object, RTLD_DI_SERINFOSIZE, info) == 0 && dlinfo(object, RTLD_DI_SERINFO, info) == 0) {
        for (unsigned i = 0; i < info->dls_cnt; ++i) {
            folders.emplace_back(info->dls_serpath[i].dls_name);
        }
    }
    return folders;
}

/// What a call from this library has to open, where the call came from `caller`: the dynamic loader searches for a
/// name, and reads $ORIGIN, for the object that calls.
std::string as_seen_from(const void* const caller, std::string file) {
    Dl_info ignored{};
    link_map* object = nullptr;
    if (dladdr1(caller, &ignored, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0 || object == nullptr) {
        return file;
    }
    char origin[4096];  // PATH_MAX
    for (const std::string token : {"$ORIGIN", "${ORIGIN}"}) {
        const std::size_t found = file.find(token);
        if (found != std::string::npos && dlinfo(object, RTLD_DI_ORIGIN, origin) == 0) {
            file.replace(found, token.size(), origin);
        }
    }
    if (file.find('/') != std::string::npos) {
        return file;
    }
    if (void* const loaded = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD); loaded != nullptr) {
        dlclose(loaded);
        return file;
    }
    for (const std::string& folder : search_path(object)) {
        const std::string path = folder + "/" + file;
        if (access(path.c_str(), R_OK) == 0) {
            return path;
        }
    }
    return file;
}

}  // namespace

}  // namespace awaken::loader

void awaken_find_next_dlopen() noexcept {
    __atomic_store_n(&awaken_next_dlopen, reinterpret_cast<Dlopen>(dlsym(RTLD_NEXT, "dlopen")), __ATOMIC_RELEASE);
}

void* awaken_open_deepbind(const char* const file, const int flags) {
    using namespace awaken::loader;
    awaken_find_next_dlopen();
    const unsigned long long before = object_counts().loaded;
    void* const module = file == nullptr
                             ? awaken_next_dlopen(file, flags)
                             : awaken_next_dlopen(as_seen_from(__builtin_return_address(0), file).c_str(), flags);
    if (module != nullptr && object_counts().loaded != before) {
        bind_to_global_scope(module);
    }
    return module;
}
