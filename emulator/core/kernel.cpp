#include "core/kernel.h"

#include <cctype>
#include <cstring>
#include <map>
#include <mutex>

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
    const std::lock_guard lock(all.lock);
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

}  // namespace

const kernels::host::Kernel* find_kernel(std::string_view name) {
    kernels::host::Registered& all = kernels::host::registered();
    const std::lock_guard lock(all.lock);
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
    if (!text || std::strncmp(text, kImageMagic.data(), kImageMagic.size()) != 0) {
        return false;
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
