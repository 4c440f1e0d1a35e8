// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory_kinds.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace awaken::gpu {

namespace {

constexpr const char* kMpi = "mpi";
constexpr const char* kSystem = "system";
constexpr std::array<const char*, 3> kMpiRestrictors{"alloc_mem", "win_allocate", "win_allocate_shared"};
constexpr std::array<const char*, 3> kGpuRestrictors{"device", "host", "managed"};

const char* kind_of(const Vendor vendor) noexcept {
    switch (vendor) {
        case Vendor::cuda:
            return "cuda";
        case Vendor::hip:
            return "rocm";
        case Vendor::none:
            break;
    }
    return "";
}

bool is_gpu_kind(const std::string& kind) noexcept {
    return kind == kind_of(Vendor::cuda) || kind == kind_of(Vendor::hip);
}

std::span<const char* const> restrictors_of(const std::string& kind) noexcept {
    if (kind == kMpi) {
        return kMpiRestrictors;
    }
    return is_gpu_kind(kind) ? std::span<const char* const>(kGpuRestrictors) : std::span<const char* const>();
}

bool are_known_restrictors(const NamedKind& named) {
    const std::span<const char* const> known = restrictors_of(named.kind);
    return std::all_of(named.restrictors.begin(), named.restrictors.end(), [&](const std::string& restrictor) {
        return std::find(known.begin(), known.end(), restrictor) != known.end();
    });
}

/// The trimmed parts of a text between separators, in lower case.
std::vector<std::string> split(const std::string_view text, const char separator) {
    std::vector<std::string> parts(1);
    for (const char letter : text) {
        if (letter == separator) {
            parts.emplace_back();
        } else if (std::isspace(static_cast<unsigned char>(letter)) == 0) {
            parts.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
        }
    }
    return parts;
}

std::string text_of(const std::vector<NamedKind>& kinds) {
    std::string text;
    for (const NamedKind& named : kinds) {
        text += (text.empty() ? "" : ",") + named.text();
    }
    return text;
}

void add(std::vector<NamedKind>& kinds, const NamedKind& named) {
    if (std::find(kinds.begin(), kinds.end(), named) == kinds.end()) {
        kinds.push_back(named);
    }
}

void add_all_of(std::vector<NamedKind>& kinds, const std::string& kind) {
    add(kinds, {kind, {}});
    for (const char* const restrictor : kGpuRestrictors) {
        add(kinds, {kind, {restrictor}});
    }
}

bool is_covered(const NamedKind& asserted, const std::vector<NamedKind>& provided) {
    if (!are_known_restrictors(asserted)) {
        return false;
    }
    // Each restrictor makes a kind narrower.
    const auto covers = [&](const NamedKind& wider) {
        return wider.kind == asserted.kind && std::includes(asserted.restrictors.begin(), asserted.restrictors.end(),
                                                            wider.restrictors.begin(), wider.restrictors.end());
    };
    if (std::any_of(provided.begin(), provided.end(), covers)) {
        return true;
    }
    const std::span<const char* const> all = restrictors_of(asserted.kind);
    return !all.empty() && asserted.restrictors.empty() &&
           std::all_of(all.begin(), all.end(), [&](const char* const restrictor) {
               return std::find(provided.begin(), provided.end(), NamedKind{asserted.kind, {restrictor}}) !=
                      provided.end();
           });
}

}  // namespace

std::string NamedKind::text() const {
    std::string text = kind;
    for (const std::string& restrictor : restrictors) {
        text += ":" + restrictor;
    }
    return text;
}

std::vector<NamedKind> parse_kinds(const std::string_view list) {
    std::vector<NamedKind> kinds;
    for (const std::string& entry : split(list, ',')) {
        std::vector<std::string> words = split(entry, ':');
        if (words.front().empty()) {
            continue;
        }
        NamedKind named{words.front(), {words.begin() + 1, words.end()}};
        std::sort(named.restrictors.begin(), named.restrictors.end());
        named.restrictors.erase(std::unique(named.restrictors.begin(), named.restrictors.end()),
                                named.restrictors.end());
        add(kinds, named);
    }
    return kinds;
}

std::string provided_kinds(const std::span<const Vendor> vendors, const std::optional<std::string>& requested) {
    std::vector<NamedKind> provided{{kSystem, {}}, {kMpi, {}}};
    const auto serves = [&](const std::string& kind) {
        return std::any_of(vendors.begin(), vendors.end(),
                           [&](const Vendor vendor) { return vendor != Vendor::none && kind == kind_of(vendor); });
    };
    if (!requested) {
        for (const Vendor vendor : vendors) {
            if (vendor != Vendor::none) {
                add_all_of(provided, kind_of(vendor));
            }
        }
        return text_of(provided);
    }
    for (const NamedKind& named : parse_kinds(*requested)) {
        if (serves(named.kind) && named.restrictors.empty()) {
            add_all_of(provided, named.kind);
        } else if ((named.kind == kMpi || serves(named.kind)) && are_known_restrictors(named)) {
            add(provided, named);
        }
    }
    return text_of(provided);
}

std::string joined_kinds(const std::string& list, const std::string& more) {
    std::vector<NamedKind> kinds = parse_kinds(list);
    for (const NamedKind& named : parse_kinds(more)) {
        add(kinds, named);
    }
    return text_of(kinds);
}

bool are_provided(const std::string_view asserted, const std::string_view provided) {
    const std::vector<NamedKind> known = parse_kinds(provided);
    const std::vector<NamedKind> kinds = parse_kinds(asserted);
    return std::all_of(kinds.begin(), kinds.end(), [&](const NamedKind& named) { return is_covered(named, known); });
}

bool are_host_kinds(const std::string_view list) {
    const std::vector<NamedKind> kinds = parse_kinds(list);
    return std::all_of(kinds.begin(), kinds.end(), [](const NamedKind& named) {
        return named.kind == kSystem || named.kind == kMpi ||
               (is_gpu_kind(named.kind) && named.restrictors == std::vector<std::string>{"host"});
    });
}

MemoryKind kind_to_allocate(const std::string_view list, const Vendor vendor) {
    std::optional<MemoryKind> chosen;
    for (const NamedKind& named : parse_kinds(list)) {
        if (named.kind == kSystem) {
            return MemoryKind::host;
        }
        if (chosen || vendor == Vendor::none || named.kind != kind_of(vendor) || named.restrictors.size() > 1 ||
            !are_known_restrictors(named)) {
            continue;
        }
        const std::string restrictor = named.restrictors.empty() ? "device" : named.restrictors.front();
        chosen = restrictor == "host"      ? MemoryKind::pinned
                 : restrictor == "managed" ? MemoryKind::managed
                                           : MemoryKind::device;
    }
    return chosen.value_or(MemoryKind::host);
}

}  // namespace awaken::gpu
