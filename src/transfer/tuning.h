// SPDX-License-Identifier: Apache-2.0
// The figures by which the layer chooses paths and that differ from machine to machine. docs/tuning.md says what each
// default rests on.
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
    /// Messages up to this size from an allocation that takes longer to map than to copy them are copied first, at
    /// most 16 MiB at a time, until mapping pays (ipc/mapping_account.h). 0: never.
    std::size_t copy_first_bytes = std::size_t{4} << 20;
    /// From this size on, a sender in host memory offers its messages to receivers in device memory.
    std::size_t host_offer_bytes = std::size_t{128} << 10;
    /// Between nodes, messages from `network_bytes` on travel in fragments. Collectives that pass through host memory
    /// use chunks of the same size; the smallest of all ranks counts.
    std::size_t network_bytes = std::size_t{256} << 10;
    std::size_t network_fragment_bytes = std::size_t{2} << 20;
    /// The most blocks of a kernel of a nonblocking collective. It runs beside the program's own kernels, from which
    /// blocks take multiprocessors.
    std::size_t collective_overlap_blocks = 64;
    /// Work of a collective's kernel that is worth a block.
    std::size_t collective_block_bytes = std::size_t{4} << 10;
    /// Up to this size a kernel packs straight into pinned host memory, or unpacks from there. Larger data passes
    /// through device memory, and the copy engine works between that and the host.
    std::size_t pack_direct_bytes = std::size_t{4} << 20;
    /// A receiver reads strided memory of another process directly up to this size, and always when the blocks are at
    /// least as long as a link's transfer. The owner packs larger data first.
    std::size_t strided_pull_bytes = std::size_t{256} << 10;

    // What follows has one value on every machine. Only tests change it, to get on ways that are rare otherwise.

    /// A message up to this size is small. Its sender watches for the receiver for at most `small_watch`. Then it
    /// copies the message to shared memory and goes on. The copy takes as long (7.2 us on an H200): who watches as long
    /// as the alternative takes is never off the best by more than a factor of two.
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
    /// answers to the question whether the default stream is idle (ipc/readiness.h). With 0 each message asks. 64 of
    /// 8 B to 128 KiB in a row take 3.1 to 5.5 us each in a burst, and 4.3 to 7.0 without (H100).
    std::chrono::nanoseconds send_burst{10'000};
    /// The shared pinned ring: the size of a message's chunks, and their number. On H200s 256 MiB pass at 47.6 GB/s, of
    /// 55 that the link has. Chunks of 512 KiB are slower at 256 MiB (42.5), of 2 MiB at 1 MiB (12.7 instead of 14.2).
    /// Two chunks give 36.8 GB/s, 8 or 16 no more than 4, and less at 4 MiB.
    std::size_t ring_chunk_bytes = std::size_t{1} << 20;
    std::size_t ring_chunks = 4;
    /// The most rings of a process. 64 messages of 4 MiB under way pass at 40.6 GB/s, with 32 rings at 2.3 (H200).
    std::size_t rings = 64;
    /// Parts up to this size pass through exported device memory. Messages from device memory that IPC cannot export go
    /// that way, and large messages that the sender copies out. The first part is a quarter. On H200s 64 and 256 MiB
    /// pass at 304 and 332 GB/s in parts of 16 MiB, at 291 and 296 in parts of 8, at 290 and 349 in parts of 64.
    std::size_t bounce_chunk_bytes = std::size_t{16} << 20;
    /// A process has at most this much exported device memory for that, which its program cannot use: 64 parts.
    std::size_t bounce_pool_bytes = std::size_t{1} << 30;

    bool operator==(const Tuning&) const = default;

    /// How long a sender watches for the receiver of so many bytes before it copies or stages them: as long again for
    /// each 16 MiB, since that is about what copying them costs. `least` is one of the times above.
    [[nodiscard]] static std::chrono::nanoseconds watch(const std::chrono::nanoseconds least,
                                                        const std::size_t bytes) noexcept {
        constexpr std::size_t kOneMore = std::size_t{16} << 20;
        return least * static_cast<std::int64_t>(1 + bytes / kOneMore);
    }

    /// The defaults, with what AWAKEN_TUNE says instead, and AWAKEN_TEST_TUNE. Throws Error for what it does not
    /// understand and for what is out of bounds. The error names the variable and the figure.
    [[nodiscard]] static Tuning from_environment(char** environment);

    /// The figures of AWAKEN_TUNE in the form of the settings.
    static const std::vector<SettingDescription>& descriptions();
    static std::span<const TuningFigure> figures() noexcept;
    /// Those of AWAKEN_TEST_TUNE.
    static std::span<const TuningFigure> test_figures() noexcept;
};

/// One figure of Tuning that a variable sets: its name, and the values that it may have.
struct TuningFigure {
    enum class Unit : std::uint8_t {
        bytes,        ///< written with an optional K, M or G
        count,        ///< a whole number
        microseconds  ///< a whole number
    };
    using Member = std::variant<std::size_t Tuning::*, std::chrono::nanoseconds Tuning::*>;

    const char* name;  ///< "network_bytes"
    Unit unit;
    std::uint64_t least;  ///< allowed, in its unit
    std::uint64_t most;
    Member member;
    const char* meaning;

    /// The figure's value in `tuning`, in the form in which it is read: "64K", "8".
    [[nodiscard]] std::string text(const Tuning& tuning) const;
    /// Sets it. Throws Error that begins with `what` ("AWAKEN_TUNE: network_bytes").
    void set(Tuning& tuning, const std::string& value, const std::string& what) const;
};

/// Takes the text of AWAKEN_TUNE apart into names and values. Throws Error that begins with `where`.
[[nodiscard]] std::vector<std::pair<std::string_view, std::string_view>> figures_in(std::string_view text,
                                                                                    const std::string& where);

}  // namespace awaken::transfer
