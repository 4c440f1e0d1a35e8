// SPDX-License-Identifier: Apache-2.0
#include "transfer/process_memory.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace awaken::transfer {

ProcessMemory::ProcessMemory() {
    FILE* const maps = fopen("/proc/self/maps", "re");
    if (maps == nullptr) {
        return;
    }
    char
        line[4352];  // a path of PATH_MAX and the fields before it; longer lines are read in parts, which match nothing
    while (fgets(line, sizeof line, maps) != nullptr) {
        std::uintptr_t begin = 0, end = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) {
            continue;
        }
        if (strstr(line, "[heap]") != nullptr && _heap_begin == 0) {
            _heap_begin = begin;
            _heap_size.store(end - begin, std::memory_order_relaxed);
        } else if (strstr(line, "[stack]") != nullptr) {
            _stack_begin = begin;
            _stack_end = end;
        }
    }
    fclose(maps);
}

void ProcessMemory::learn(const void* const pointer) noexcept {
    // Far from the heap there is nothing to learn: mapped memory lies in another part of the address space.
    constexpr std::uintptr_t kNear = std::uintptr_t{1} << 40;
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (_heap_begin != 0 && address - _heap_begin < kNear) {
        _heap_size.store(reinterpret_cast<std::uintptr_t>(sbrk(0)) - _heap_begin, std::memory_order_relaxed);
    }
}

}  // namespace awaken::transfer
