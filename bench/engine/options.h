// SPDX-License-Identifier: Apache-2.0
// The options of `awaken bench`: those of the OSU micro-benchmarks in their spelling, and ours. One table
// (options.cpp) gives parsing, the help text and the documentation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/catalogue.h"

namespace awaken::bench {

/// Where a buffer lives. The letters are what a user writes.
enum class BufferKind : std::uint8_t {
    host,        ///< H: malloc
    pinned,      ///< P: page-locked by the GPU runtime
    registered,  ///< R: malloc, page-locked afterwards
    device,      ///< D: cudaMalloc / hipMalloc
    managed,     ///< MD, MH, M: migrates; MD is touched on the device first, MH on the host
    pool,        ///< A: cudaMallocAsync / hipMallocAsync
};

/// "host", "pinned", ...
[[nodiscard]] const char* to_string(BufferKind kind) noexcept;

/// One side as the user wrote it.
struct BufferChoice {
    BufferKind kind = BufferKind::host;
    bool managed_on_device = false;  ///< MD: prefetched to the device before the measurement

    [[nodiscard]] bool operator==(const BufferChoice&) const = default;
};

/// "H", "MD", ...
[[nodiscard]] const char* letters_of(const BufferChoice& choice) noexcept;

enum class Accelerator : std::uint8_t { none, cuda, rocm, managed, openacc };

/// "none", "cuda", ...
[[nodiscard]] const char* to_string(Accelerator accelerator) noexcept;

/// MPI datatypes that a benchmark can use.
enum class ElementType : std::uint8_t { char_, int_, float_, double_ };

/// "MPI_CHAR", as OMB prints it.
[[nodiscard]] const char* mpi_name(ElementType type) noexcept;
[[nodiscard]] std::size_t size_of(ElementType type) noexcept;

/// Of the files that -D and -N name: a few million lines.
constexpr std::size_t kLargestListFile = std::size_t{64} << 20;

/// -D: a datatype with gaps.
struct DerivedType {
    enum class Form : std::uint8_t { contiguous, vector, indexed };
    Form form = Form::contiguous;
    std::size_t stride = 0;        ///< vector: elements from block to block
    std::size_t block_length = 0;  ///< vector: elements of a block
    struct Block {
        std::ptrdiff_t displacement;
        std::size_t length;
    };
    std::vector<Block> blocks;  ///< indexed: read from the file, in elements
};

/// -N: the topology of neighbourhood collectives.
struct Neighborhood {
    bool cartesian = true;
    int dimensions = 1;
    int radius = 1;
    std::string graph_file;  ///< of the edges: one "SOURCE, DESTINATION" a line, # begins a comment; empty: cartesian
};

/// -w: how the window of a one-sided test comes to be.
enum class WindowForm : std::uint8_t { create, allocate, dynamic };

/// "MPI_Win_create", as OMB prints it.
[[nodiscard]] const char* mpi_name(WindowForm form) noexcept;

/// -s: how the operations of a one-sided test are completed. With fence and pscw the target makes calls too.
enum class Synchronisation : std::uint8_t { lock, pscw, fence, flush, flush_local, lock_all };

/// "MPI_Win_lock/unlock", as OMB prints it.
[[nodiscard]] const char* mpi_name(Synchronisation synchronisation) noexcept;
[[nodiscard]] constexpr bool target_takes_part(Synchronisation synchronisation) noexcept {
    return synchronisation == Synchronisation::fence || synchronisation == Synchronisation::pscw;
}

/// --operation: what the processes of `first` do first.
enum class FirstOperation : std::uint8_t {
    message,   ///< rank 0 sends, rank 1 receives
    exchange,  ///< each rank sends to the next and receives from the one before, all at once
    allreduce
};

/// "message", ...
[[nodiscard]] const char* to_string(FirstOperation operation) noexcept;

/// Which contenders run, and how they differ. See docs/benchmarks.md.
struct ContenderChoice {
    enum class Kind : std::uint8_t {
        native,      ///< the MPI itself
        awaken,      ///< the MPI through the layer
        staged,      ///< copies by hand around the MPI's calls on pinned host memory
        enqueue,     ///< the MPI through the layer, queued in a stream
        graph,       ///< the same in a graph that is launched again and again
        xccl,        ///< NCCL or RCCL
        xccl_graph,  ///< the same in a graph
        raw          ///< the hardware: a copy between the buffers, no messages
    };
    Kind kind = Kind::native;
    std::string name;                      ///< what tables print
    std::vector<std::string> environment;  ///< NAME=VALUE; gives it a launch of its own
    std::vector<std::string> launcher;     ///< the words before `awaken bench`; empty: this run's own
};

/// Whether it takes Awaken's library in the process.
[[nodiscard]] bool needs_layer(ContenderChoice::Kind kind) noexcept;
/// "native", "awaken", ...
[[nodiscard]] const char* to_string(ContenderChoice::Kind kind) noexcept;

enum class Mode : std::uint8_t {
    waited,  ///< each call is waited for before the next
    queued   ///< calls are started back to back and waited for together
};

/// "waited", "queued".
[[nodiscard]] const char* to_string(Mode mode) noexcept;

/// What a run is to do. Sizes are bytes; an unset optional means the benchmark's own default.
struct Options {
    // ---- those of OMB -----------------------------------------------------------------------------------------------
    std::optional<std::size_t> minimum_size;         ///< -m MIN:
    std::optional<std::size_t> maximum_size;         ///< -m MAX
    std::optional<std::size_t> iterations;           ///< -i
    std::optional<std::size_t> warmup;               ///< -x
    bool full = false;                               ///< -f
    std::optional<int> window_size;                  ///< -W
    bool vary_window = false;                        ///< -V
    bool print_rate = true;                          ///< -R
    std::optional<int> pairs;                        ///< -p
    std::optional<std::string> test_calls;           ///< -t: N or S:R, read by the family
    std::size_t memory_limit = 536870912;            ///< -M, bytes a process
    Accelerator accelerator = Accelerator::none;     ///< -d
    bool compute_on_gpu = false;                     ///< -r gpu|both
    bool compute_on_cpu = true;                      ///< -r cpu|both
    int array_size = 32;                             ///< -a
    bool validation_column = false;                  ///< -c: prints the Validation column
    std::string validation_log;                      ///< -clog:DIR
    int validation_warmup = 5;                       ///< -u
    bool multiple_buffers = false;                   ///< -b multiple: one buffer per message of the window
    std::optional<DerivedType> derived_type;         ///< -D
    Neighborhood neighborhood;                       ///< -N
    std::vector<ElementType> types;                  ///< -T; empty: the benchmark's default
    bool session = false;                            ///< -I
    bool in_place = false;                           ///< -l
    std::vector<int> percentiles;                    ///< -z; empty: no such columns
    int root = 0;                                    ///< -k fixed:R
    bool rotate_root = false;                        ///< -k rotate
    std::optional<Synchronisation> synchronisation;  ///< -s
    std::optional<WindowForm> window_form;           ///< -w
    std::vector<BufferChoice> sides;                 ///< positional D D; empty: by -d

    // ---- ours -------------------------------------------------------------------------------------------------------
    std::string omb_version = "7.5";           ///< --omb-version: 7.5 or 7.0, the dialect of the output
    bool validate = true;                      ///< --no-check
    bool self_test = false;                    ///< --self-test: corrupt data on purpose; must be caught
    std::string json_file;                     ///< --json FILE; "-" is stdout instead of the table
    std::vector<ContenderChoice> contenders;   ///< --compare; empty: one, what the process runs on, OSU output
    std::vector<Mode> modes = {Mode::waited};  ///< --mode waited,queued (comparisons)
    double precision = 0.01;                   ///< --precision: stop when the median's interval is this narrow
    double time_limit_s = 2.0;                 ///< --max-time: per contender and size
    bool adaptive = false;                     ///< --adaptive, and all comparisons: iterations by the above two
    std::vector<int> gpu_map;                  ///< --gpu-map 0,0,1,1: device of each node-local rank
    std::vector<BufferChoice> rank_buffers;    ///< --buffers D,H,...: kind per rank of a collective, repeated
    bool one_by_one = false;                   ///< --one-by-one: a window is completed by MPI_Waitany
    bool unaligned = false;                    ///< --unaligned: buffers start one element past their allocation
    int partitions = 8;                        ///< --partitions: of partitioned_latency
    std::optional<std::size_t> step_factor;    ///< --step-factor, default 2
    std::vector<FirstOperation> operations;    ///< --operation; empty: all
    std::vector<std::size_t> allocations;      ///< --allocation, bytes; empty: the sizes of messages
    int kernels = 1;                           ///< --kernels, of an iteration of halo
    bool progress = true;                      ///< --no-progress
    bool quiet_notes = false;                  ///< --quiet: no notes on stderr
    bool native = false;                       ///< --native: the layer is not loaded; read by `awaken bench`

    // ---- contenders that need processes of their own (engine/turns.h) -----------------------------------------------
    /// --launcher [NAME=]'WORDS': the launch command of the contender NAME, or of all that have none of their own.
    /// Given once or more; the words are split as a shell does.
    std::vector<std::string> launchers;
    int launched_ranks = 0;                    ///< --ranks: of launch commands that do not say how many; 0: all do
    std::string listen_address = "127.0.0.1";  ///< --listen: where ranks ask for their turn
    double start_limit_s = 120;     ///< --start-limit: a launch whose ranks have not come by then is given up
    bool assume_gpu_aware = false;  ///< --assume-gpu-aware: native is given device memory without asking whether it may
    std::string turns;              ///< --turns: a file with HOST:PORT:TOKEN:GROUP; set by the process that launches

    /// What is to be told on stderr: options accepted without effect, and why.
    std::vector<std::string> notes;
};

/// What a user asked for that is not a measurement.
enum class Request : std::uint8_t { measure, help, version, list };

struct CommandLine {
    Request request = Request::measure;
    const TestInfo* test = nullptr;  ///< null only with version, list and general help
    bool as_json = false;            ///< the list, or the general help
    Options options;
};

/// Parses the words after `awaken bench`: NAME (with or without "osu_") and options. Throws Error with what to do.
[[nodiscard]] CommandLine parse_command_line(std::span<char* const> words);

/// `awaken bench --help` and, with a test, `awaken bench NAME --help`.
[[nodiscard]] std::string help_text(const TestInfo* test);

/// What stands in the general help before the options.
[[nodiscard]] std::string general_description();

/// One row of the table of options, as help and documentation show it.
struct OptionDescription {
    std::string spelling;  ///< "-m, --message-size [MIN:]MAX"
    std::vector<std::string> names;
    std::string argument;  ///< empty: there is none
    bool may_lack_argument;
    std::string meaning;
    bool of_omb;  ///< false: ours
};
[[nodiscard]] std::vector<OptionDescription> option_descriptions();

/// The kinds of this rank's send and receive buffers, from -d, the positional sides and --buffers.
struct RankBuffers {
    BufferChoice send;
    BufferChoice receive;
};
/// SRC and DST are the send and the receive buffer of every rank in collectives. In point-to-point tests a rank has one
/// kind: SRC is that of rank 0 and of the first rank of each pair (the lower half of `ranks`, or -p), DST that of the
/// others.
[[nodiscard]] RankBuffers buffers_of_rank(const Options& options, const TestInfo& test, int rank, int ranks = 2);

/// Whether any rank's buffers need a GPU.
[[nodiscard]] bool needs_gpu(const Options& options);
/// Whether this rank's do: one with host buffers may run on a node without any.
[[nodiscard]] bool rank_needs_gpu(const Options& options, const TestInfo& test, int rank, int ranks);

/// -w, or OMB's default for the test.
[[nodiscard]] WindowForm window_form_of(const Options& options, const TestInfo& test) noexcept;
/// -s, or OMB's default for the test.
[[nodiscard]] Synchronisation synchronisation_of(const Options& options, const TestInfo& test) noexcept;

/// The types to measure, in order: those of -T, or the test's own. Reductions default to MPI_INT (7.5) or MPI_FLOAT
/// (7.0), all others to MPI_CHAR.
[[nodiscard]] std::vector<ElementType> types_to_measure(const Options& options, const TestInfo& test);

/// The sizes to measure, ascending, in bytes: -m and --step-factor over the test's own (of `first` without the latter
/// the two ends alone); a single 0 when it has none, and that of `type` when it is of one element. Those that the type
/// does not fit into are among them.
[[nodiscard]] std::vector<std::size_t> sizes_to_measure(const Options& options, const TestInfo& test, ElementType type);

/// One figure of `first`, whose every sample is a launch.
struct FirstFigure {
    FirstOperation operation;
    std::size_t allocation;  ///< bytes of the send buffer and of the receive buffer of a rank
    std::size_t size;        ///< bytes of the message, which is their beginning
};
/// Each operation of --operation out of each allocation, with each size that fits.
[[nodiscard]] std::vector<FirstFigure> first_figures(const Options& options, const TestInfo& test);

/// Iterations and warm-up calls at one size: -i and -x, or the test's own.
struct Repetitions {
    std::size_t iterations;
    std::size_t warmup;
};
[[nodiscard]] Repetitions repetitions_at(const Options& options, const TestInfo& test, std::size_t size);

/// -t of latency_mt and latency_mp: threads or processes on each side.
struct Parallelism {
    int senders;
    int receivers;
};
[[nodiscard]] Parallelism parallelism_of(const Options& options, const TestInfo& test);

}  // namespace awaken::bench
