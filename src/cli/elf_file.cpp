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

/// Reads exactly `size` bytes at `offset`.
bool read_at(std::ifstream& file, std::uint64_t offset, void* into, std::size_t size) {
    file.clear();
    file.seekg(static_cast<std::streamoff>(offset));
    file.read(static_cast<char*>(into), static_cast<std::streamsize>(size));
    return file.good();
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
    for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        if (!read_at(file, header.e_phoff + i * header.e_phentsize, &segment, sizeof segment)) {
            break;
        }
        if (segment.p_type == PT_INTERP && segment.p_filesz <= kLongestInterpreter) {
            std::string text(segment.p_filesz, '\0');
            if (read_at(file, segment.p_offset, text.data(), text.size())) {
                result.interpreter = text.c_str();  // up to the terminating zero
            }
        }
    }
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
