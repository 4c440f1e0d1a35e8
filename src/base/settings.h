// SPDX-License-Identifier: Apache-2.0
// Everything that the user may set through the environment, read and checked once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/gpu_choice.h"

namespace awaken {

/// One documented variable. These rows are the table behind docs/settings.md and `awaken exec --settings`.
struct SettingDescription {
    const char* name;           ///< "AWAKEN_GPU"
    const char* values;         ///< "auto | cuda | hip | none"
    const char* default_value;  ///< as text
    const char* meaning;
};

/// How messages between GPUs of one node travel.
enum class NodePath : std::uint8_t {
    automatic,  ///< the fastest way that is possible
    direct,     ///< from buffer to buffer where that is possible, else staged: never through the ring
    ring,       ///< through chunks of shared host memory: memory of other processes is never mapped
    staged      ///< through the MPI, in host memory
};

/// Which engine copies between two GPUs.
enum class CopyEngine : std::uint8_t {
    automatic,  ///< the copy engine, and a kernel for many small copies at a time
    engine,     ///< the runtime's copies (copy engines; SDMA on AMD)
    kernel      ///< a kernel: takes multiprocessors from the program's own kernels
};

/// Whether the MPI underneath takes device pointers by itself.
enum class NativeGpu : std::uint8_t {
    automatic,  ///< as the MPI says
    yes,
    no
};

/// What the layer does about work in the program's default stream.
enum class DefaultStream : std::uint8_t {
    wait,        ///< messages wait for it, as programs expect that launch kernels and call MPI without synchronising
    trust,       ///< the program synchronises before it calls MPI, and nothing is asked
    order,       ///< messages become part of the stream: calls return when their order is settled
    order_check  ///< the same, and buffers hold a pattern until their data arrive
};
[[nodiscard]] constexpr bool is_order(const DefaultStream word) noexcept {
    return word == DefaultStream::order || word == DefaultStream::order_check;
}

struct Settings {
    bool enabled = true;                                    ///< AWAKEN: off makes the layer pass everything through
    gpu::Choice gpu = gpu::Choice::automatic;               ///< AWAKEN_GPU
    std::size_t pinned_pool_bytes = std::size_t{64} << 20;  ///< AWAKEN_PINNED_POOL, per rank; K, M, G suffixes (2^10..)
    bool report = false;                                    ///< AWAKEN_REPORT is set and not 0
    std::string report_file;                                ///< empty: the text goes to stderr; *.json chooses JSON
    bool check = false;                                     ///< AWAKEN_CHECK
    bool reproducible = false;                              ///< AWAKEN_REPRODUCIBLE
    std::string trace_folder;                               ///< AWAKEN_TRACE; empty: nothing is traced
    std::size_t trace_limit_bytes = std::size_t{64} << 20;  ///< AWAKEN_TRACE_LIMIT, per rank; K, M, G suffixes
    std::string mpi_library;  ///< AWAKEN_MPI: the libmpi to use when the program opened none
    std::string job;          ///< AWAKEN_JOB: the job's name where no launcher gives one; empty: ask the launcher
    int pretended_nodes = 1;  ///< AWAKEN_TEST_NODES: the ranks of one node behave as if they were on this many
    NodePath path = NodePath::automatic;                 ///< AWAKEN_PATH
    CopyEngine copy = CopyEngine::automatic;             ///< AWAKEN_TEST_COPY
    DefaultStream default_stream = DefaultStream::wait;  ///< AWAKEN_DEFAULT_STREAM
    bool cpu_copy = true;                         ///< AWAKEN_TEST_CPU_COPY: the CPU may copy small messages by itself
    bool nodes = true;                            ///< AWAKEN_NODES: pipelined messages between nodes
    NativeGpu native_gpu = NativeGpu::automatic;  ///< AWAKEN_NATIVE_GPU
    std::string collectives;                      ///< AWAKEN_COLLECTIVES as the user wrote it: see coll::Selection

    /// Reads AWAKEN_* from the environment. Throws Error naming the variable, its value and the allowed values. An
    /// unknown AWAKEN_ variable is an error too (most often a misspelling), with the nearest known name in the remedy.
    /// What AWAKEN_TUNE says is left to transfer::Tuning, which knows its figures and refuses others.
    static Settings from_environment(char** environment);
    /// All known variables, in the order of the documentation.
    static const std::vector<SettingDescription>& descriptions();
    /// The same for the switches AWAKEN_TEST_..., which tests and comparisons need, and users do not.
    static const std::vector<SettingDescription>& test_switches();
};

/// "64M" -> 67108864. Throws Error (naming `what`) on anything else than digits with an optional K, M or G.
[[nodiscard]] std::size_t parse_bytes(const std::string& text, const std::string& what);

}  // namespace awaken
