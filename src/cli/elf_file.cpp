// SPDX-License-Identifier: Apache-2.0
#include "elf_file.h"

#include <elf.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

namespace awaken::cli {
namespace {

#if defined(__x86_64__)
constexpr std::uint16_t kOwnMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t kOwnMachine = EM_AARCH64;
#else
#error "Awaken supports x86-64 and aarch64"
#endif
constexpr unsigned char kOwnByteOrder = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
/// The kernel accepts no longer interpreter. A header with a longer one is damaged.
constexpr std::uint64_t kLongestInterpreter = 4096;

/// A longer table of strings, or of what the dynamic loader is to know, is damaged.
constexpr std::uint64_t kLongestTable = 1U << 26;

/// Reads exactly `size` bytes at `offset`.
bool read_at(std::ifstream& file, std::uint64_t offset, void* into, std::size_t size) {
    file.clear();
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(static_cast<char*>(into), static_cast<std::streamsize>(size));
    return file.good();
}

/// The names in the dynamic section, whose table of strings is given by its address in memory.
std::vector<std::string> needed_libraries(std::ifstream& file, const std::vector<Elf64_Phdr>& segments) {
    const auto dynamic = std::find_if(segments.begin(), segments.end(),
                                      [](const Elf64_Phdr& segment) { return segment.p_type == PT_DYNAMIC; });
    if (dynamic == segments.end() || dynamic->p_filesz > kLongestTable) {
        return {};
    }
    std::vector<Elf64_Dyn> entries(dynamic->p_filesz / sizeof(Elf64_Dyn));
    if (!read_at(file, dynamic->p_offset, entries.data(), entries.size() * sizeof(Elf64_Dyn))) {
        return {};
    }
    const auto value_of = [&](const Elf64_Sxword tag) {
        const auto entry =
            std::find_if(entries.begin(), entries.end(), [=](const Elf64_Dyn& e) { return e.d_tag == tag; });
        return entry != entries.end() ? entry->d_un.d_val : 0;
    };
    const std::uint64_t address = value_of(DT_STRTAB), size = value_of(DT_STRSZ);
    const auto loaded = std::find_if(segments.begin(), segments.end(), [=](const Elf64_Phdr& segment) {
        return segment.p_type == PT_LOAD && address - segment.p_vaddr < segment.p_filesz;
    });
    if (loaded == segments.end() || size > kLongestTable) {
        return {};
    }
    std::string strings(size, '\0');
    if (!read_at(file, address - loaded->p_vaddr + loaded->p_offset, strings.data(), strings.size())) {
        return {};
    }
    std::vector<std::string> names;
    for (const Elf64_Dyn& entry : entries) {
        if (entry.d_tag == DT_NEEDED && entry.d_un.d_val < strings.size()) {
            names.emplace_back(strings.c_str() + entry.d_un.d_val);
        }
    }
    return names;
}

}  // namespace

ElfFile read_elf(const std::filesystem::path& path) {
    ElfFile result;
    std::ifstream file(path, std::ios::binary);
    Elf64_Ehdr header = {};
    if (!read_at(file, 0, header.e_ident, EI_NIDENT) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
        return result;
    }
    result.is_elf = true;
    result.is_32_bit = header.e_ident[EI_CLASS] == ELFCLASS32;
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != kOwnByteOrder ||
        !read_at(file, 0, &header, sizeof header) || header.e_machine != kOwnMachine) {
        return result;
    }
    result.has_own_machine = true;
    result.is_shared_object = header.e_type == ET_DYN;
    std::vector<Elf64_Phdr> segments;
    for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        if (!read_at(file, header.e_phoff + i * header.e_phentsize, &segment, sizeof segment)) {
            break;
        }
        segments.push_back(segment);
        if (segment.p_type == PT_INTERP && segment.p_filesz <= kLongestInterpreter) {
            std::string text(segment.p_filesz, '\0');
            if (read_at(file, segment.p_offset, text.data(), text.size())) {
                result.interpreter = text.c_str();  // up to the terminating zero
            }
        }
    }
    result.needed = needed_libraries(file, segments);
    return result;
}

bool file_contains(const std::filesystem::path& path, const std::string& text) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> window;
    std::vector<char> chunk(std::size_t{1} << 16);
    while (file.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || file.gcount() > 0) {
        window.insert(window.end(), chunk.begin(), chunk.begin() + file.gcount());
        if (std::search(window.begin(), window.end(), text.begin(), text.end()) != window.end()) {
            return true;
        }
        // Keeps the bytes that may begin an occurrence which the next chunk completes.
        const std::size_t kept = std::min(window.size(), text.size());
        window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>(kept));
    }
    return false;
}

}  // namespace awaken::cli
