// The figures by which the layer chooses paths, in one place. docs/tuning.md says how each was measured.
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
    /// A message up to this size is small. Its sender watches for the receiver for at most `small_watch`. Then it
    /// copies the message to shared memory and goes on.
    std::size_t small_bytes = std::size_t{8} << 10;
    std::chrono::nanoseconds small_watch{8'000};
    /// A nonblocking send of a small message waits longer before it copies: its completion is less urgent.
    std::chrono::nanoseconds small_wait{100'000};
    /// The sender of a larger message gives its receiver this long before it copies the message out.
    std::chrono::nanoseconds large_watch{2'000'000};
    /// Ranks of one program find their GPU runtimes at about the same time, each in its first receive after that. The
    /// first message to a process that has not yet waits for it: staging takes longer, and a message that was staged
    /// looks as if nothing else were possible.
    std::chrono::nanoseconds first_watch{5'000'000};
    /// Nonblocking sends that begin within this time of each other are a burst. The messages of a burst share the
    /// answers to the question whether the default stream is idle (ipc/readiness.h). With 0 each message asks.
    std::chrono::nanoseconds send_burst{10'000};
    /// Parts of this size pass through exported device memory. Messages from device memory that IPC cannot export go
    /// that way, and large messages that the sender copies out.
    std::size_t bounce_chunk_bytes = std::size_t{16} << 20;
    /// A process has at most this much exported device memory for that.
    std::size_t bounce_pool_bytes = std::size_t{1} << 30;
    /// Messages up to this size from an allocation that takes longer to map than to copy them are copied first, at
    /// most 16 MiB at a time, until mapping pays (ipc/mapping_account.h). 0: never.
    std::size_t copy_first_bytes = std::size_t{4} << 20;
    /// The shared pinned ring: the size of a message's chunks, their number, and the rings that a process has at most.
    std::size_t ring_chunk_bytes = std::size_t{1} << 20;
    std::size_t ring_chunks = 4;
    std::size_t rings = 64;
    /// From this size on, a sender in host memory offers its messages to receivers in device memory.
    std::size_t host_offer_bytes = std::size_t{256} << 10;
    /// Between nodes, messages from `network_bytes` on travel in fragments. `network_window` of them are under way from
    /// one process to another.
    std::size_t network_bytes = std::size_t{256} << 10;
    std::size_t network_fragment_bytes = std::size_t{2} << 20;
    std::size_t network_window = 4;
    /// A kernel does device-to-device copies up to this size, where the choice is ours. 0: never.
    std::size_t kernel_copy_bytes = 0;
    /// From this number of small copies that start together on, one kernel does all of them. 0: never.
    std::size_t kernel_batch_copies = 8;
    /// The CPU copies messages up to this size where it can reach device memory.
    std::size_t cpu_copy_bytes = std::size_t{4} << 10;
    /// Collectives on one node: the most blocks of a kernel, and the work that is worth a block. More blocks are faster
    /// for large buffers as long as links are not full, but take processors from the program's own kernels.
    std::size_t collective_blocks = 64;
    /// The same for nonblocking collectives, which run beside those kernels.
    std::size_t collective_overlap_blocks = 64;
    std::size_t collective_block_bytes = std::size_t{8} << 10;
    /// Collectives that pass through host memory use chunks of this size. The smallest figure of all ranks counts.
    std::size_t collective_chunk_bytes = std::size_t{2} << 20;

    /// Datatypes with gaps: where a few 2-D copies suffice, they copy blocks from this length on. A kernel copies
    /// shorter blocks.
    std::size_t pack_row_bytes = std::size_t{32} << 10;
    /// Up to this size a kernel packs straight into pinned host memory, or unpacks from there. Larger data passes
    /// through device memory, and the copy engine works between that and the host.
    std::size_t pack_direct_bytes = std::size_t{256} << 10;
    /// A receiver reads strided memory of another process directly up to this size, and always when the blocks are at
    /// least as long as a link's transfer. The owner packs larger data first.
    std::size_t strided_pull_bytes = std::size_t{256} << 10;

    bool operator==(const Tuning&) const = default;

    /// How long a sender watches for the receiver of so many bytes before it copies or stages them: as long again for
    /// each 16 MiB, since that is about what copying them costs. `least` is one of the times above.
    [[nodiscard]] static std::chrono::nanoseconds watch(const std::chrono::nanoseconds least,
                                                        const std::size_t bytes) noexcept {
        constexpr std::size_t kOneMore = std::size_t{16} << 20;
        return least * static_cast<std::int64_t>(1 + bytes / kOneMore);
    }

    /// The figures for a GPU of that model ("NVIDIA H200") and for its link to its peers ("NVLink"; empty when the link
    /// is not known). Built-in figures come first, then those of the file, then those of AWAKEN_TUNE; later ones win.
    ///
    /// @param file  AWAKEN_TUNING, which must then exist. Empty: default_file(environment), if that exists and can be
    /// opened. Throws Error for everything that it does not understand or that is out of bounds. The error names the
    /// file and the line, or the variable. Checks the whole file, also the sections for other models.
    [[nodiscard]] static Tuning find(const std::string& gpu_model, const std::string& link, const std::string& file,
                                     char** environment);

    /// As find(), with a text instead of a file. `name` stands for the file in errors.
    [[nodiscard]] static Tuning from_text(const std::string& gpu_model, const std::string& link, std::string_view text,
                                          const std::string& name, char** environment);

    /// awaken/tuning.conf in $XDG_CONFIG_HOME (where that is an absolute path) or ~/.config; empty when neither is set.
    [[nodiscard]] static std::string default_file(char** environment);

    /// The figures in the form of the settings.
    static const std::vector<SettingDescription>& descriptions();
    static std::span<const TuningFigure> figures() noexcept;
};

/// One figure of Tuning: its name in files and variables, the values it may have, and the source of its value.
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

/// Takes the text of AWAKEN_TUNE apart into names and values. Throws Error that begins with `where`.
[[nodiscard]] std::vector<std::pair<std::string_view, std::string_view>> figures_in(std::string_view text,
                                                                                    const std::string& where);

/// The figure of that name ("rings"); null when there is none.
[[nodiscard]] const TuningFigure* find_figure(std::string_view name) noexcept;

/// A built-in figure that was measured on one model, instead of the default for all.
struct MeasuredFigure {
    const char* model;  ///< "NVIDIA H200"
    const char* link;   ///< "NVLink"; "*": any link
    const char* figure;
    const char* value;  ///< as in a file
    const char* measurement;
};

/// All of them, in order: a later row wins.
[[nodiscard]] std::span<const MeasuredFigure> measured_figures() noexcept;

/// Applies the rows for this model and link. Throws Error for a row that names no figure or has a wrong value.
void apply_measured(Tuning& tuning, std::span<const MeasuredFigure> rows, const std::string& model,
                    const std::string& link);

/// One line of a tuning file, as the reader takes it apart. For code that rewrites such a file.
struct TuningLine {
    enum class Kind : std::uint8_t { nothing, section, assignment };
    Kind kind = Kind::nothing;
    std::string_view name;   ///< of a section: the model; of an assignment: the figure
    std::string_view value;  ///< of an assignment
};

/// Takes one line apart. Throws Error (its cause begins with `where`) when the line is none of the three.
[[nodiscard]] TuningLine parse_tuning_line(std::string_view line, const std::string& where);

}  // namespace awaken::transfer
