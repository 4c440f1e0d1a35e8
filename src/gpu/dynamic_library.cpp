// SPDX-License-Identifier: Apache-2.0
#include "gpu/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cctype>
#include <cstddef>

namespace awaken::gpu {
namespace {

std::string path_of(void* handle, const std::string& fallback) {
    link_map* map = nullptr;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr &&
        *map->l_name != '\0') {
        return map->l_name;
    }
    return fallback;
}

}  // namespace

DynamicLibrary DynamicLibrary::open(std::span<const std::string> paths, std::string& why_not) {
    DynamicLibrary library;
    std::string reasons;
    for (const std::string& path : paths) {
        library._handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
        if (library._handle != nullptr) {
            library._path = path_of(library._handle, path);
            return library;
        }
        const char* const reason = dlerror();
        if (!reasons.empty()) {
            reasons += "; ";
        }
        reasons += reason != nullptr ? reason : path + ": cannot be opened";
    }
    why_not = std::move(reasons);
    return library;
}

DynamicLibrary DynamicLibrary::open_loaded(const std::string& path) {
    DynamicLibrary library;
    library._handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library._handle != nullptr) {
        library._path = path_of(library._handle, path);
    } else {
        // A program that looks at dlerror() after its own calls must not find our error.
        static_cast<void>(dlerror());
    }
    return library;
}

void* DynamicLibrary::find(const char* symbol) const noexcept {
    if (_handle == nullptr) {
        return nullptr;
    }
    void* const address = dlsym(_handle, symbol);
    if (address == nullptr) {
        static_cast<void>(dlerror());
    }
    return address;
}

bool DynamicLibrary::bind(std::span<const FunctionSlot> slots, std::string& why_not) const {
    std::string missing;
    for (const FunctionSlot& slot : slots) {
        *slot.address = find(slot.symbol);
        if (*slot.address == nullptr && slot.required) {
            if (!missing.empty()) {
                missing += ", ";
            }
            missing += slot.symbol;
        }
    }
    if (missing.empty()) {
        return true;
    }
    why_not = _path + " lacks " + missing + " (is it too old, or a stub for linking?)";
    return false;
}

unsigned long long loaded_object_counter() noexcept {
    unsigned long long counter = 0;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t size, void* result) {
            if (size >= offsetof(dl_phdr_info, dlpi_adds) + sizeof info->dlpi_adds) {
                *static_cast<unsigned long long*>(result) = info->dlpi_adds;
            }
            return 1;  // each object carries the same counter, so the first is enough
        },
        &counter);
    return counter;
}

std::vector<std::string> loaded_object_paths() {
    std::vector<std::string> paths;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* result) {
            if (info->dlpi_name != nullptr && *info->dlpi_name != '\0') {
                try {
                    static_cast<std::vector<std::string>*>(result)->emplace_back(info->dlpi_name);
                } catch (...) {
                    return 1;  // out of memory: no exception may cross the loader's frames
                }
            }
            return 0;
        },
        &paths);
    return paths;
}

bool is_library_named(const std::string& path, const std::string& stem) {
    const std::size_t slash = path.rfind('/');
    const std::size_t start = slash == std::string::npos ? 0 : slash + 1;
    if (path.compare(start, stem.size(), stem) != 0) {
        return false;
    }
    std::size_t at = start + stem.size();
    if (at < path.size() && path[at] == '-') {
        // Wheels add a hash of hexadecimal digits: "-1a2b3c4d". A longer word ("libcuda-gdb.so") is another library.
        const std::size_t hash = ++at;
        while (at < path.size() && std::isxdigit(static_cast<unsigned char>(path[at])) != 0) {
            ++at;
        }
        if (at == hash) {
            return false;
        }
    }
    if (path.compare(at, 3, ".so") != 0) {
        return false;
    }
    at += 3;
    return at == path.size() || path[at] == '.';
}

}  // namespace awaken::gpu
