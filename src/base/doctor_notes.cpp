// SPDX-License-Identifier: Apache-2.0
#include "base/doctor_notes.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

namespace awaken {

namespace {

/// The doctor writes a line of a hundred bytes for each library. A longer file is not the doctor's.
constexpr off_t kLongest = off_t{1} << 20;

/// In this order; the same names are in python/awaken/native_cache.py.
constexpr std::array kSwitches = {
    "MPICH_GPU_SUPPORT_ENABLED",  // Cray MPICH
    "MPIR_CVAR_ENABLE_GPU",       // MPICH
    "MV2_USE_CUDA",               // MVAPICH2
    "MV2_USE_ROCM",
    "MVP_ENABLE_GPU",  // MVAPICH 3
    "I_MPI_OFFLOAD",   // Intel MPI
    "OMPI_MCA_pml",    // Open MPI: which components carry messages, and which knows GPUs
    "OMPI_MCA_btl",
    "OMPI_MCA_mtl",
    "OMPI_MCA_accelerator",
    "OMPI_MCA_opal_cuda_support",
    "UCX_TLS",
    "AWAKEN_UCX",          // another UCX than the MPI's own
    "AWAKEN_TEST_FAULTS",  // of the emulated driver, which can let the host touch device memory
};

/// Value of a variable; null when it is not set.
const char* value_in(char** environment, const std::string_view name) noexcept {
    for (; environment != nullptr && *environment != nullptr; ++environment) {
        const char* const entry = *environment;
        if (std::strncmp(entry, name.data(), name.size()) == 0 && entry[name.size()] == '=') {
            return entry + name.size() + 1;
        }
    }
    return nullptr;
}

/// Encoded as in a URL, but paths and lists stay readable.
std::string encoded(const std::string_view text) {
    std::string result;
    for (const char letter : text) {
        const bool plain = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                           (letter >= '0' && letter <= '9') || std::strchr("_.-~/:^", letter) != nullptr;
        if (plain && letter != '\0') {
            result += letter;
            continue;
        }
        std::array<char, 4> digits{};
        std::snprintf(digits.data(), digits.size(), "%%%02X", static_cast<unsigned char>(letter));
        result += digits.data();
    }
    return result;
}

/// Takes the next word off a line.
std::string_view next_word(std::string_view& line) noexcept {
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    const std::string_view word = line.substr(0, line.find(' '));
    line.remove_prefix(word.size());
    return word;
}

/// 2026-01-31T12:00:00Z. The word goes into reports, so nothing else may pass.
bool is_time(const std::string_view word) noexcept {
    constexpr std::string_view kForm = "0000-00-00T00:00:00Z";
    return word.size() == kForm.size() &&
           std::equal(word.begin(), word.end(), kForm.begin(), [](const char letter, const char form) {
               return form == '0' ? letter >= '0' && letter <= '9' : letter == form;
           });
}

std::string with_reason(const std::string& file, const int error) {
    return file + " is not used: " + std::strerror(error);
}

/// Reads a file that belongs to this user alone. Returns false with the reason, which is empty when there is no such
/// file.
bool read_own(const std::string& file, std::string& text, std::string& why_not) {
    // The flags make sure that we neither wait for the file, whatever it is, nor follow a link.
    const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) {
        if (errno != ENOENT && errno != ENOTDIR) {
            why_not = errno == ELOOP ? file + " is not used: it is a symbolic link" : with_reason(file, errno);
        }
        return false;
    }
    struct stat status{};
    if (fstat(descriptor, &status) != 0) {
        why_not = with_reason(file, errno);
    } else if (!S_ISREG(status.st_mode)) {
        why_not = file + " is not used: it is not a regular file";
    } else if (status.st_uid != geteuid()) {
        why_not = file + " is not used: it belongs to somebody else";
    } else if ((status.st_mode & 0022) != 0) {
        why_not = file + " is not used: others may write it (chmod go-w)";
    } else if (status.st_size > kLongest) {
        why_not = file + " is not used: it is too long for what `awaken doctor` writes";
    } else {
        text.resize(static_cast<std::size_t>(status.st_size));
        std::size_t done = 0;
        ssize_t part = 1;
        while (done < text.size() && part != 0) {
            part = read(descriptor, text.data() + done, text.size() - done);
            if (part < 0 && errno != EINTR) {
                why_not = with_reason(file, errno);
                break;
            }
            done += part > 0 ? static_cast<std::size_t>(part) : 0;
        }
        text.resize(done);
    }
    close(descriptor);
    return why_not.empty();
}

}  // namespace

std::string build_id_of(const void* const symbol) {
    struct Search {
        std::uintptr_t address;
        std::string id;
    } search{reinterpret_cast<std::uintptr_t>(symbol), {}};
    const auto look = [](dl_phdr_info* const info, std::size_t, void* const data) {
        auto& wanted = *static_cast<Search*>(data);
        bool holds = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
            const ElfW(Phdr) & segment = info->dlpi_phdr[i];
            const std::uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
            holds = holds || (segment.p_type == PT_LOAD && wanted.address - begin < segment.p_memsz);
        }
        if (!holds) {
            return 0;
        }
        for (int i = 0; i < info->dlpi_phnum && wanted.id.empty(); ++i) {
            const ElfW(Phdr) & segment = info->dlpi_phdr[i];
            if (segment.p_type != PT_NOTE) {
                continue;
            }
            const auto* at = reinterpret_cast<const unsigned char*>(info->dlpi_addr + segment.p_vaddr);
            const unsigned char* const end = at + segment.p_memsz;
            while (wanted.id.empty() && static_cast<std::size_t>(end - at) >= sizeof(ElfW(Nhdr))) {
                ElfW(Nhdr) note;
                std::memcpy(&note, at, sizeof note);
                const std::size_t name_bytes = (note.n_namesz + std::size_t{3}) & ~std::size_t{3};
                const std::size_t bytes =
                    sizeof note + name_bytes + ((note.n_descsz + std::size_t{3}) & ~std::size_t{3});
                if (bytes > static_cast<std::size_t>(end - at)) {
                    break;
                }
                const unsigned char* const name = at + sizeof note;
                if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
                    for (unsigned byte = 0; byte < note.n_descsz; ++byte) {
                        std::array<char, 3> digits{};
                        std::snprintf(digits.data(), digits.size(), "%02x", name[name_bytes + byte]);
                        wanted.id += digits.data();
                    }
                }
                at += bytes;
            }
        }
        return 1;
    };
    dl_iterate_phdr(look, &search);
    return search.id;
}

std::string doctor_notes_file(char** const environment) {
    for (const auto& [variable, below] : {std::pair{"XDG_CACHE_HOME", ""}, std::pair{"HOME", "/.cache"}}) {
        if (const char* const folder = value_in(environment, variable); folder != nullptr && *folder != '\0') {
            return std::string(folder) + below + "/awaken/native-gpu";
        }
    }
    return {};
}

std::string library_key(const void* const symbol, const std::string& path) {
    if (const std::string id = build_id_of(symbol); !id.empty()) {
        return "build-id:" + id;
    }
    // One library has many names: its own, those of links to it, and those through links to its folders.
    const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
    struct stat status{};
    if (real == nullptr || stat(real.get(), &status) != 0) {
        return {};
    }
    std::string key = "file:" + std::to_string(status.st_size) + ":" + std::to_string(status.st_mtime) + ":";
    for (const char letter : std::string_view(real.get())) {
        key += letter == ' ' ? std::string("%20") : std::string(1, letter);
    }
    return key;
}

std::string gpu_switches_of_mpis(char** const environment) {
    std::string text;
    for (const char* const name : kSwitches) {
        if (const char* const value = value_in(environment, name)) {
            text += (text.empty() ? "with:" : ",") + std::string(name) + "=" + encoded(value);
        }
    }
    return text;
}

DoctorNote find_doctor_note(const std::string& file, const std::string& key, const std::string& vendor,
                            const std::string& switches) {
    DoctorNote note;
    std::string text;
    if (file.empty() || key.empty() || !read_own(file, text, note.text)) {
        return note;
    }
    std::string_view rest = text;
    while (!rest.empty()) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        if (next_word(line) != key || next_word(line) != vendor) {
            continue;  // a comment, or a line about another library; of several lines the last counts
        }
        const std::string_view answer = next_word(line);
        const std::string_view time = next_word(line);
        const std::string_view word = next_word(line);
        const std::string_view with = word.starts_with("with:") ? word : std::string_view{};
        if ((answer != "yes" && answer != "no") || !is_time(time)) {
            note = {DoctorNote::Answer::none, file + " is not used: its line on this MPI is not understood"};
        } else if (with != switches) {
            note = {
                DoctorNote::Answer::none,
                file + " is not used: its answer was found with other settings of the MPI; run `awaken doctor` again"};
        } else {
            note = {answer == "yes" ? DoctorNote::Answer::yes : DoctorNote::Answer::no, std::string(time)};
        }
    }
    return note;
}

}  // namespace awaken
