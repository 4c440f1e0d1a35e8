// Everything that the user may set through the environment, read and checked once.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gpu/gpu.h"

namespace awaken {

/// One documented variable: the table behind docs/settings.md and `awaken exec --settings`.
struct SettingDescription {
    const char* name;           ///< "AWAKEN_GPU"
    const char* values;         ///< "auto | cuda | hip | none"
    const char* default_value;  ///< as text
    const char* meaning;
};

struct Settings {
    bool enabled = true;                                    ///< AWAKEN: off makes the layer pass everything through
    gpu::Choice gpu = gpu::Choice::automatic;               ///< AWAKEN_GPU
    std::size_t pinned_pool_bytes = std::size_t{64} << 20;  ///< AWAKEN_PINNED_POOL, per rank; K, M, G suffixes (2^10..)
    bool report = false;                                    ///< AWAKEN_REPORT is set and not 0
    std::string report_file;                                ///< empty: the text goes to stderr; *.json chooses JSON
    bool check = false;                                     ///< AWAKEN_CHECK
    std::string mpi_library;  ///< AWAKEN_MPI: the libmpi to use when the program opened none

    /// Reads AWAKEN_* from the environment. Throws Error naming the variable, its value and what is allowed; an unknown
    /// AWAKEN_ variable is an error too (it is most often a misspelling), with the nearest known name in the remedy.
    static Settings from_environment(char** environment);
    /// All known variables, in the order of the documentation.
    static const std::vector<SettingDescription>& descriptions();
};

/// "64M" -> 67108864. Throws Error (naming `what`) on anything else than digits with an optional K, M or G.
[[nodiscard]] std::size_t parse_bytes(const std::string& text, const std::string& what);

}  // namespace awaken
