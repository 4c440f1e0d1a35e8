// SPDX-License-Identifier: Apache-2.0
// The objects of the process, as the dynamic loader lists them: where they lie, and to which addresses it has bound the
// symbols that they use of each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace awaken::loader {

struct LoadedObject {
    std::string path;          ///< empty for the program itself
    std::uintptr_t begin = 0;  ///< address range of its mapped segments
    std::uintptr_t end = 0;

    [[nodiscard]] bool contains(const void* const address) const noexcept {
        const auto value = reinterpret_cast<std::uintptr_t>(address);
        return value >= begin && value < end;
    }
};

[[nodiscard]] std::vector<LoadedObject> loaded_objects();

/// How many objects the process has loaded and unloaded so far.
struct ObjectCounts {
    unsigned long long loaded = 0, unloaded = 0;
};
[[nodiscard]] ObjectCounts object_counts() noexcept;

/// One slot of an object's data in which the dynamic loader writes the address of another object's symbol.
struct Reference {
    const char* object;  ///< path of the file that uses the symbol; empty for the program itself
    const char* symbol;
    void* address;
    bool is_weak;
    bool is_call;   ///< a slot that only calls use
    bool is_bound;  ///< false: the symbol is looked up at the first call
};

/// Asks `choose` for each reference of each object, and writes the address that it returns. It runs under the lock of
/// the dynamic loader's list of objects. dlopen() takes that lock after another one that dlsym(), dladdr() and similar
/// functions take, too. So `choose` must call none of these.
void rewrite_references(const std::function<void*(const Reference&)>& choose) noexcept;

}  // namespace awaken::loader
