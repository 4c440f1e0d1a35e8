// SPDX-License-Identifier: Apache-2.0
#include "core/kernel.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <mutex>

#include "core/core.h"

namespace awaken::kernels::host {

DeviceRange device_range;

namespace {

struct Registered {
    std::mutex lock;
    std::map<std::string, Kernel, std::less<>> kernels;
};

/// Kernels register from static initialisers, in any order; never destroyed, as the core.
Registered& registered() {
    static Registered* const instance = new Registered;
    return *instance;
}

}  // namespace

void register_kernel(const Kernel& kernel) {
    Registered& all = registered();
    const std::scoped_lock lock(all.lock);
    all.kernels.insert_or_assign(kernel.name, kernel);
}

}  // namespace awaken::kernels::host

namespace awaken::emulator {
namespace {

constexpr std::string_view kImageMagic = "// awaken emulated kernel image\n";

bool part_of_name(char character) noexcept {
    return std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '_';
}

std::string_view name_at(std::string_view text, std::size_t at) noexcept {
    while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) {
        ++at;
    }
    std::size_t end = at;
    while (end < text.size() && part_of_name(text[end])) {
        ++end;
    }
    return text.substr(at, end - at);
}

void collect(std::string_view source, std::string_view opening, std::vector<std::string>& names) {
    for (std::size_t at = source.find(opening); at != std::string_view::npos; at = source.find(opening, at + 1)) {
        // The definition of the macro itself is no kernel, nor is what a comment mentions.
        const std::size_t newline = source.rfind('\n', at);
        const std::string_view line = source.substr(newline == std::string_view::npos ? 0 : newline + 1);
        const std::size_t first = line.find_first_not_of(" \t");
        if (line[first] == '#' || line.substr(first, 2) == "//") {
            continue;
        }
        const std::string_view name = name_at(source, at + opening.size());
        if (!name.empty()) {
            names.emplace_back(name);
        }
    }
}

/// The GPU that machine code is for, as a whole number that no other vendor's has: 90 for sm_90, 0x3f for gfx90a.
unsigned architecture_of(const Elf64_Ehdr& head) noexcept {
    constexpr unsigned char kLaterAbi = 8;  // of NVIDIA's code, which then has the number in another place
    if (head.e_machine == EM_CUDA) {
        return head.e_ident[EI_ABIVERSION] < kLaterAbi ? head.e_flags & 0xff : head.e_flags >> 8 & 0xffff;
    }
    return head.e_machine == EM_AMDGPU ? head.e_flags & 0xff : 0;
}

/// Finds the names of the kernels in machine code. False unless it is for the emulated GPU.
bool read_machine_code(const char* image, std::vector<std::string>& kernels) {
    constexpr unsigned kGfx90a = 0x3f;  // EF_AMDGPU_MACH_AMDGCN_GFX90A of LLVM's "User Guide for AMDGPU Backend"
    Elf64_Ehdr head;
    std::memcpy(&head, image, sizeof head);
    const unsigned architecture = architecture_of(head);
    if (architecture != 10 * Model::compute_major && architecture != kGfx90a) {
        return false;
    }
    const auto section = [&](const std::size_t number) {
        Elf64_Shdr found;
        std::memcpy(&found, image + head.e_shoff + number * head.e_shentsize, sizeof found);
        return found;
    };
    for (std::size_t number = 0; number < head.e_shnum; ++number) {
        const Elf64_Shdr symbols = section(number);
        if (symbols.sh_type != SHT_SYMTAB && symbols.sh_type != SHT_DYNSYM) {
            continue;
        }
        const char* const names = image + section(symbols.sh_link).sh_offset;
        for (std::size_t at = 0; at + sizeof(Elf64_Sym) <= symbols.sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            std::memcpy(&symbol, image + symbols.sh_offset + at, sizeof symbol);
            if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL) {
                kernels.emplace_back(names + symbol.st_name);
            }
        }
    }
    return true;
}

}  // namespace

const kernels::host::Kernel* find_kernel(std::string_view name) {
    kernels::host::Registered& all = kernels::host::registered();
    const std::scoped_lock lock(all.lock);
    const auto at = all.kernels.find(name);
    return at == all.kernels.end() ? nullptr : &at->second;
}

std::vector<std::string> kernels_defined_in(std::string_view source) {
    std::vector<std::string> names;
    collect(source, "AWAKEN_KERNEL(", names);
    collect(source, "__global__ void", names);
    return names;
}

std::string make_image(const std::vector<std::string>& kernels) {
    std::string image(kImageMagic);
    for (const std::string& kernel : kernels) {
        image += kernel + "\n";
    }
    return image;
}

bool read_image(const void* image, std::vector<std::string>& kernels) {
    // Compared byte by byte: a foreign image may end anywhere.
    const char* text = static_cast<const char*>(image);
    if (!text) {
        return false;
    }
    const auto are_known = [&] {
        return !kernels.empty() && std::all_of(kernels.begin(), kernels.end(),
                                               [](const std::string& name) { return find_kernel(name) != nullptr; });
    };
    if (std::strncmp(text, ELFMAG, SELFMAG) == 0) {
        return read_machine_code(text, kernels) && are_known();
    }
    if (std::strncmp(text, kImageMagic.data(), kImageMagic.size()) != 0) {
        if (std::strncmp(text, "//", 2) == 0) {
            collect(text, ".entry ", kernels);  // PTX
        }
        return are_known();
    }
    std::string_view rest(text + kImageMagic.size());
    while (!rest.empty()) {
        const std::size_t end = rest.find('\n');
        if (end == std::string_view::npos) {
            return false;
        }
        kernels.emplace_back(rest.substr(0, end));
        rest.remove_prefix(end + 1);
    }
    return true;
}

}  // namespace awaken::emulator
