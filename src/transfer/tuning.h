// The figures by which paths are chosen, in one place. docs/tuning.md says how each was measured.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/settings.h"

namespace awaken::transfer {

using awaken::CopyEngine;

struct TuningFigure;

struct Tuning {
    /// A message up to this size is small: its sender watches for the receiver no longer than `small_watch` before it
    /// copies the message to shared memory and goes on.
    std::size_t small_bytes = std::size_t{8} << 10;
    std::chrono::nanoseconds small_watch{8'000};
    /// The completion of a nonblocking send of one is in less of a hurry.
    std::chrono::nanoseconds small_wait{100'000};
    /// The sender of a larger one gives its receiver this long before it copies the message out.
    std::chrono::nanoseconds large_watch{2'000'000};
    /// Nonblocking sends that begin within this time of each other are a burst, whose messages share the answers to the
    /// question whether the default stream is idle (ipc/readiness.h). 0: each asks.
    std::chrono::nanoseconds send_burst{10'000};
    /// Device memory that IPC cannot export, and large messages that are copied out, go through exported device memory
    /// in parts of this size.
    std::size_t bounce_chunk_bytes = std::size_t{16} << 20;
    /// Most exported device memory of a process for that.
    std::size_t bounce_pool_bytes = std::size_t{1} << 30;
    /// The shared pinned ring: chunks of one message, and rings that a process has at most.
    std::size_t ring_chunk_bytes = std::size_t{1} << 20;
    std::size_t ring_chunks = 4;
    std::size_t rings = 64;
    /// Messages from host memory are offered from this size on to receivers in device memory.
    std::size_t host_offer_bytes = std::size_t{256} << 10;
    /// Between nodes: messages from `network_bytes` on travel in chunks, `network_window` of them under way from
    /// one process to another.
    std::size_t network_bytes = std::size_t{256} << 10;
    std::size_t network_chunk_bytes = std::size_t{2} << 20;
    std::size_t network_window = 4;
    /// Device-to-device copies up to this size are done by a kernel when the choice is ours. 0: none.
    std::size_t kernel_copy_bytes = 0;
    /// Messages up to this size are copied by the CPU where it can reach device memory.
    std::size_t cpu_copy_bytes = std::size_t{4} << 10;
    /// Collectives on one node: blocks of a kernel at most, and the work that is worth a block. More blocks are faster
    /// for large buffers as long as links are not full, and take processors from the program's own kernels.
    std::size_t collective_blocks = 64;
    /// The same for nonblocking ones, which are made to go on beside those kernels.
    std::size_t collective_overlap_blocks = 64;
    std::size_t collective_block_bytes = std::size_t{16} << 10;
    /// Those that pass through host memory do so in chunks of this size. The smallest figure of all ranks counts.
    std::size_t collective_chunk_bytes = std::size_t{2} << 20;

    /// Datatypes with gaps: blocks from this length on are copied by 2-D copies where a few of these do, shorter ones
    /// by a kernel.
    std::size_t pack_row_bytes = std::size_t{32} << 10;
    /// Up to this size a kernel packs straight into pinned host memory (or unpacks from there); what is larger passes
    /// through device memory, between which and the host the copy engine works.
    std::size_t pack_direct_bytes = std::size_t{256} << 10;
    /// Strided memory of another process is read where it is up to this size, and always when its blocks are at least
    /// as long as a link's transfer; what is larger is packed by its owner first.
    std::size_t strided_pull_bytes = std::size_t{256} << 10;

    bool operator==(const Tuning&) const = default;

    /// The figures for a GPU of that model ("NVIDIA H200") and for its link to its peers ("NVLink"; empty when it is
    /// not known): what is built in, then what the file says, then what AWAKEN_TUNE says.
    ///
    /// @param file  AWAKEN_TUNING; must then exist. Empty: default_file(environment), if there is one that can be
    /// opened. Throws Error naming the file and the line, or the variable, of whatever is not understood or out of
    /// bounds. All of a file is checked, also what it says of other models.
    [[nodiscard]] static Tuning find(const std::string& gpu_model, const std::string& link, const std::string& file,
                                     char** environment);

    /// As find(), of a text instead of a file. `name` stands for the file in errors.
    [[nodiscard]] static Tuning from_text(const std::string& gpu_model, const std::string& link, std::string_view text,
                                          const std::string& name, char** environment);

    /// awaken/tuning.conf in $XDG_CONFIG_HOME (where that is an absolute path) or ~/.config; empty when neither is set.
    [[nodiscard]] static std::string default_file(char** environment);

    /// The figures in the form of the settings.
    static const std::vector<SettingDescription>& descriptions();
    static std::span<const TuningFigure> figures() noexcept;
};

/// One figure of Tuning: its name in files and variables, what it may be, and where its value comes from.
struct TuningFigure {
    enum class Unit : std::uint8_t {
        bytes,        ///< written with an optional K, M or G
        count,        ///< a whole number
        microseconds  ///< with at most three decimals
    };
    using Member = std::variant<std::size_t Tuning::*, std::chrono::nanoseconds Tuning::*>;

    const char* name;  ///< "small_watch_us"
    Unit unit;
    std::uint64_t least;  ///< allowed, in bytes, as a count or in nanoseconds
    std::uint64_t most;
    Member member;
    const char* meaning;
    const char* evidence;  ///< what set the default; "not measured" where nothing did

    /// The figure's value in `tuning`, in the form in which it is read: "64K", "8", "2.5".
    [[nodiscard]] std::string text(const Tuning& tuning) const;
    /// Sets it. Throws Error that begins with `what` ("AWAKEN_TUNE: rings").
    void set(Tuning& tuning, const std::string& value, const std::string& what) const;
};

/// Takes apart what AWAKEN_TUNE says: names and values. Throws Error that begins with `where`.
[[nodiscard]] std::vector<std::pair<std::string_view, std::string_view>> figures_in(std::string_view text,
                                                                                    const std::string& where);

/// The figure of that name ("rings"); null when there is none.
[[nodiscard]] const TuningFigure* find_figure(std::string_view name) noexcept;

/// A built-in figure that was measured on one model, instead of the default for all.
struct MeasuredFigure {
    const char* model;  ///< "NVIDIA H200"
    const char* link;   ///< "NVLink"; "*": whatever it is
    const char* figure;
    const char* value;  ///< as in a file
    const char* measurement;
};

/// All of them, in order: a later row wins.
[[nodiscard]] std::span<const MeasuredFigure> measured_figures() noexcept;

/// Sets what the rows say of this model and link. Throws Error for a row that names no figure or a wrong value.
void apply_measured(Tuning& tuning, std::span<const MeasuredFigure> rows, const std::string& model,
                    const std::string& link);

/// One line of a tuning file, as the reader takes it apart: for whoever rewrites such a file.
struct TuningLine {
    enum class Kind : std::uint8_t { nothing, section, assignment };
    Kind kind = Kind::nothing;
    std::string_view name;   ///< of a section: the model; of an assignment: the figure
    std::string_view value;  ///< of an assignment
};

/// Takes one line apart. Throws Error (its cause begins with `where`) when it is none of the three.
[[nodiscard]] TuningLine parse_tuning_line(std::string_view line, const std::string& where);

}  // namespace awaken::transfer
