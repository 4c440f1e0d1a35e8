// SPDX-License-Identifier: Apache-2.0
// The names by which programs and MPIs tell each other what memory buffers may lie in: "system", "mpi", "cuda:device".
//
// MPI-4.1, 11.4.3 defines the lists and the kinds `system` and `mpi`; the MPI Forum's side document "Memory Allocation
// Kinds" defines `cuda` and `rocm`. A list is text: entries with commas between them, each a kind with its restrictors
// behind colons. Upper and lower case are the same here. A kind without a restrictor stands for all memory of the kind.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::gpu {

/// One entry of a list.
struct NamedKind {
    std::string kind;
    std::vector<std::string> restrictors;  ///< sorted, each once

    [[nodiscard]] std::string text() const;
    bool operator==(const NamedKind&) const = default;
};

/// The entries of a list in its order, each once. Leaves empty entries out.
[[nodiscard]] std::vector<NamedKind> parse_kinds(std::string_view list);

/// The kinds that a program may use with these vendors' runtimes, as a list: all of them, or those among the
/// `requested` ones. `system` and `mpi` are always there. A request for a vendor's kind without restrictor gives all
/// its restrictors too, since programs look for a name.
[[nodiscard]] std::string provided_kinds(std::span<const Vendor> vendors, const std::optional<std::string>& requested);

/// The list with those entries of `more` that it lacks.
[[nodiscard]] std::string joined_kinds(const std::string& list, const std::string& more);

/// Whether each asserted kind is among the provided ones, or a restriction of one.
[[nodiscard]] bool are_provided(std::string_view asserted, std::string_view provided);

/// Whether the CPU reaches all memory of the listed kinds, so that the GPU runtime has nothing to copy.
[[nodiscard]] bool are_host_kinds(std::string_view list);

/// The memory to allocate where the program wants some of the listed kinds: a GPU runtime's if the list names kinds of
/// `vendor` and not `system`. The first of them decides; a kind without restrictor is device memory. `host` stands for
/// ordinary memory of the MPI.
[[nodiscard]] MemoryKind kind_to_allocate(std::string_view list, Vendor vendor);

}  // namespace awaken::gpu
