// SPDX-License-Identifier: Apache-2.0
#include "gpu/precompiled_kernels.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "gpu/runtime_compiler.h"

namespace awaken::gpu {
namespace {

constexpr std::string_view kFirstLine = "AWAKEN KERNELS 1\n";
constexpr const char* kFileName = "/kernels.bin";

/// The number behind `prefix` where `text` is these two, else 0: 90 of "sm_90".
int number_after(const std::string_view prefix, const std::string_view text) noexcept {
    int number = 0;
    if (text.substr(0, prefix.size()) != prefix) {
        return 0;
    }
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + prefix.size(), end, number);
    return error == std::errc() && rest == end ? number : 0;
}

/// Takes the next word of a line, up to a blank or the line's end, and the blanks behind it.
std::string_view take_word(std::string_view& line) noexcept {
    const std::size_t end = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, end);
    line.remove_prefix(std::min(line.find_first_not_of(' ', end), line.size()));
    return word;
}

/// The whole file in memory for as long as the process lives, or nothing.
std::string_view mapped(const std::string& path) noexcept {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return {};
    }
    std::string_view content;
    struct stat status = {};
    if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
        const auto bytes = static_cast<std::size_t>(status.st_size);
        void* const base = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
        if (base != MAP_FAILED) {
            content = {static_cast<const char*>(base), bytes};
        }
    }
    ::close(file);
    return content;
}

/// The object that this code is part of: the library, a program or a module of the benchmarks.
std::string own_path() {
    Dl_info ignored = {};
    link_map* object = nullptr;
    const char* name = "/proc/self/exe";
    if (::dladdr1(reinterpret_cast<const void*>(&suitability), &ignored, reinterpret_cast<void**>(&object),
                  RTLD_DL_LINKMAP) != 0 &&
        object != nullptr && object->l_name != nullptr && *object->l_name != '\0') {
        name = object->l_name;
    }
    char* const resolved = ::realpath(name, nullptr);
    std::string path = resolved != nullptr ? resolved : "";
    std::free(resolved);
    return path;
}

/// The file beside the library lib/awaken/libawaken.so, as seen from there, from lib/awaken/bench and from bin.
std::string installed_file() {
    const std::string own = own_path();
    const std::string folder = own.substr(0, std::min(own.rfind('/'), own.size()));
    for (const char* const way : {"", "/..", "/../lib/awaken"}) {
        const std::string path = folder + way + kFileName;
        if (::access(path.c_str(), R_OK) == 0) {
            return path;
        }
    }
    return {};
}

}  // namespace

int suitability(const std::string_view target, const std::string_view machine) noexcept {
    constexpr int kBetterThanAnyPtx = 10000;
    if (const int present = number_after("sm_", machine); present > 0) {
        const int code = number_after("sm_", target);
        if (code / 10 == present / 10 && code <= present) {
            return kBetterThanAnyPtx + code;
        }
        const int portable = number_after("compute_", target);
        return portable <= present ? portable : 0;
    }
    return target == machine.substr(0, machine.find(':')) ? kBetterThanAnyPtx : 0;
}

PrecompiledKernels::PrecompiledKernels(const std::string& path) {
    const std::string_view file = mapped(path);
    if (file.substr(0, kFirstLine.size()) != kFirstLine) {
        return;
    }
    // Lines of target, key, offset and size, which an empty line ends.
    for (std::string_view rest = file.substr(kFirstLine.size());;) {
        const std::size_t end = rest.find('\n');
        if (end == std::string_view::npos || end == 0) {
            return;
        }
        std::string_view line = rest.substr(0, end);
        rest.remove_prefix(end + 1);
        Entry entry;
        entry.target = take_word(line);
        entry.key = take_word(line);
        std::size_t place[2] = {};
        for (std::size_t& number : place) {
            const std::string_view word = take_word(line);
            std::from_chars(word.data(), word.data() + word.size(), number);
        }
        const auto [offset, size] = place;
        if (size == 0 || offset > file.size() || size > file.size() - offset) {
            _entries.clear();
            return;
        }
        entry.code = file.substr(offset, size);
        _entries.push_back(entry);
    }
}

std::vector<std::string> PrecompiledKernels::code_for(const std::string_view source,
                                                      const std::span<const std::string_view> options,
                                                      const std::string_view machine) const {
    std::vector<const Entry*> found;
    if (_entries.empty()) {
        return {};
    }
    std::vector<std::string_view> parts = {source};
    parts.insert(parts.end(), options.begin(), options.end());
    const std::string key = KernelCache::key(parts);
    for (const Entry& entry : _entries) {
        if (entry.key == key && suitability(entry.target, machine) > 0) {
            found.push_back(&entry);
        }
    }
    std::sort(found.begin(), found.end(), [&](const Entry* const one, const Entry* const other) {
        return suitability(one->target, machine) > suitability(other->target, machine);
    });
    std::vector<std::string> code;
    for (const Entry* const entry : found) {
        code.emplace_back(entry->code);
    }
    return code;
}

std::vector<std::string_view> PrecompiledKernels::targets() const {
    std::vector<std::string_view> all;
    for (const Entry& entry : _entries) {
        if (std::find(all.begin(), all.end(), entry.target) == all.end()) {
            all.push_back(entry.target);
        }
    }
    return all;
}

std::string_view PrecompiledKernels::target_for(const std::string_view machine) const {
    std::string_view best;
    for (const std::string_view target : targets()) {
        if (suitability(target, machine) > (best.empty() ? 0 : suitability(best, machine))) {
            best = target;
        }
    }
    return best;
}

const PrecompiledKernels& precompiled_kernels() {
    // Leaked: a thread may still load kernels while static objects are destroyed.
    static const PrecompiledKernels* const kernels = [] {
        const char* const chosen = ::secure_getenv("AWAKEN_TEST_KERNELS");
        return new PrecompiledKernels(chosen != nullptr && *chosen != '\0' ? chosen : installed_file());
    }();
    return *kernels;
}

}  // namespace awaken::gpu
