// SPDX-License-Identifier: Apache-2.0
#include "loader/objects.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace awaken::loader {

namespace {

#if defined(__x86_64__)
constexpr unsigned long kAddressRelocations[] = {R_X86_64_GLOB_DAT, R_X86_64_64};
constexpr unsigned long kCallRelocation = R_X86_64_JUMP_SLOT;
#else
constexpr unsigned long kAddressRelocations[] = {R_AARCH64_GLOB_DAT, R_AARCH64_ABS64};
constexpr unsigned long kCallRelocation = R_AARCH64_JUMP_SLOT;
#endif

LoadedObject object_of(const dl_phdr_info& info) {
    LoadedObject object;
    object.begin = UINTPTR_MAX;
    for (int i = 0; i < info.dlpi_phnum; ++i) {
        const auto& segment = info.dlpi_phdr[i];
        if (segment.p_type != PT_LOAD) {
            continue;
        }
        const std::uintptr_t from = info.dlpi_addr + segment.p_vaddr;
        object.begin = std::min(object.begin, from);
        object.end = std::max<std::uintptr_t>(object.end, from + segment.p_memsz);
    }
    return object;
}

std::uintptr_t page_of(const std::uintptr_t address) noexcept {
    return address & ~(static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
}

/// Writes one slot of an object's relocated data, which the dynamic loader may already have made read-only.
bool write_slot(void** const slot, void* const address) noexcept {
    auto* const page = reinterpret_cast<void*>(page_of(reinterpret_cast<std::uintptr_t>(slot)));
    if (mprotect(page, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), PROT_READ | PROT_WRITE) != 0) {
        return false;
    }
    __atomic_store_n(slot, address, __ATOMIC_RELEASE);  // another thread may be jumping through it
    return true;
}

/// The tables of one object that name its references.
struct Tables {
    struct Relocations {
        const ElfW(Rela) * first = nullptr;
        std::size_t bytes = 0;
    };
    const char* strings = nullptr;
    const ElfW(Sym) * symbols = nullptr;
    Relocations addresses, calls;

    explicit Tables(const ElfW(Dyn) * entry) noexcept {
        for (; entry->d_tag != DT_NULL; ++entry) {
            switch (entry->d_tag) {
                case DT_STRTAB:
                    strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
                    break;
                case DT_SYMTAB:
                    symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
                    break;
                case DT_RELA:
                    addresses.first = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
                    break;
                case DT_RELASZ:
                    addresses.bytes = entry->d_un.d_val;
                    break;
                case DT_JMPREL:
                    calls.first = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
                    break;
                case DT_PLTRELSZ:
                    calls.bytes = entry->d_un.d_val;
                    break;
                default:
                    break;
            }
        }
    }
};

using Choose = std::function<void*(const Reference&)>;

void rewrite_object(const dl_phdr_info& info, const ElfW(Dyn) * dynamic, const Choose& choose) noexcept {
    const Tables tables(dynamic);
    if (tables.strings == nullptr || tables.symbols == nullptr) {
        return;
    }
    const LoadedObject object = object_of(info);
    bool changed = false;
    for (const Tables::Relocations& relocations : {tables.addresses, tables.calls}) {
        for (std::size_t i = 0; relocations.first != nullptr && i < relocations.bytes / sizeof(ElfW(Rela)); ++i) {
            const ElfW(Rela) & relocation = relocations.first[i];
            const unsigned long type = ELF64_R_TYPE(relocation.r_info);
            const bool is_call = type == kCallRelocation;
            if (!is_call && type != kAddressRelocations[0] && type != kAddressRelocations[1]) {
                continue;
            }
            const ElfW(Sym) & symbol = tables.symbols[ELF64_R_SYM(relocation.r_info)];
            if (symbol.st_shndx != SHN_UNDEF) {
                continue;
            }
            auto** const slot = reinterpret_cast<void**>(info.dlpi_addr + relocation.r_offset);
            const Reference reference{info.dlpi_name != nullptr ? info.dlpi_name : "",
                                      tables.strings + symbol.st_name,
                                      *slot,
                                      ELF64_ST_BIND(symbol.st_info) == STB_WEAK,
                                      is_call,
                                      !is_call || !object.contains(*slot)};
            void* const chosen = choose(reference);
            changed |= chosen != *slot && write_slot(slot, chosen);
        }
    }
    if (!changed) {
        return;
    }
    // Memory that was read-only after relocation becomes read-only again.
    for (int i = 0; i < info.dlpi_phnum; ++i) {
        const auto& segment = info.dlpi_phdr[i];
        if (segment.p_type == PT_GNU_RELRO) {
            const std::uintptr_t begin = page_of(info.dlpi_addr + segment.p_vaddr);
            const std::uintptr_t end = page_of(info.dlpi_addr + segment.p_vaddr + segment.p_memsz);
            if (end > begin) {
                mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ);
            }
        }
    }
}

}  // namespace

std::vector<LoadedObject> loaded_objects() {
    std::vector<LoadedObject> objects;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* data) {
            LoadedObject object = object_of(*info);
            object.path = info->dlpi_name != nullptr ? info->dlpi_name : "";
            static_cast<std::vector<LoadedObject>*>(data)->push_back(std::move(object));
            return 0;
        },
        &objects);
    return objects;
}

ObjectCounts object_counts() noexcept {
    ObjectCounts counts;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* data) {
            *static_cast<ObjectCounts*>(data) = {info->dlpi_adds, info->dlpi_subs};
            return 1;  // each object gives the same numbers
        },
        &counts);
    return counts;
}

void rewrite_references(const std::function<void*(const Reference&)>& choose) noexcept {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* given) {
            const ElfW(Phdr)* dynamic = nullptr;
            for (int i = 0; i < info->dlpi_phnum; ++i) {
                if (info->dlpi_phdr[i].p_type == PT_DYNAMIC) {
                    dynamic = &info->dlpi_phdr[i];
                }
            }
            // The vdso is not mapped at the addresses that its tables give.
            if (dynamic != nullptr && strstr(info->dlpi_name, "linux-vdso") == nullptr) {
                rewrite_object(*info, reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + dynamic->p_vaddr),
                               *static_cast<const Choose*>(given));
            }
            return 0;
        },
        const_cast<Choose*>(&choose));
}

}  // namespace awaken::loader
