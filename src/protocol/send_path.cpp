// SPDX-License-Identifier: Apache-2.0
#include "protocol/send_path.h"

#include <algorithm>

namespace awaken::protocol {

namespace {

using Mode = SendFacts::Mode;
using Receiver = SendFacts::Receiver;
using Reach = SendFacts::Reach;
using Allowed = SendFacts::Allowed;
using Export = SendFacts::Export;

/// A link between GPUs moves at least this many bytes at a time, so narrower blocks waste it.
constexpr std::size_t kLinkTransferBytes = 32;

/// A GPU translates addresses in pages of this size. While an application computes, its kernels drive the translations
/// of other GPUs' memory out, and the next fetch pays 0.7 us for each page that it touches: on two H200, a column of a
/// field of 1.6 GB (20,004 blocks of 16 bytes, 763 pages) took 550 us in an application, and 20 us in a benchmark that
/// does nothing else. Packing it first takes 8 us longer than that, in both.
constexpr std::size_t kPageBytes = std::size_t{2} << 20;
constexpr std::size_t kFarPages = 64;
/// Wider blocks keep the link busy meanwhile.
constexpr std::size_t kWideBlock = std::size_t{8} << 10;

/// Whether the receiver's GPU reads the blocks where they lie. A copy without gaps is faster where the blocks are
/// narrow and the message is long, or where they are spread over many pages.
bool pulls_gaps(const SendFacts& facts, const transfer::Tuning& tuning) noexcept {
    if (facts.block == 0) {
        return false;
    }
    const std::size_t pages = std::min(facts.span / kPageBytes, facts.bytes / facts.block);
    if (pages > kFarPages && facts.block < kWideBlock) {
        return false;
    }
    return facts.block >= kLinkTransferBytes || facts.bytes <= tuning.strided_pull_bytes;
}

/// A copy that waits in device memory is the only one, so it is made only where the receiver is known to read it, or
/// where the sender looks after the refusal: before_mapping. The original may be offered on trial.
void add_from_device(const SendFacts& facts, const transfer::Tuning& tuning, SendPaths& paths) noexcept {
    const bool is_detached = facts.mode == Mode::detached;
    if (facts.receiver == Receiver::itself && !is_detached) {
        paths.add(facts.gaps ? SendPath::exported : SendPath::own);
        return;
    }
    if (facts.cpu_reaches_memory && facts.memory == gpu::MemoryKind::device && !facts.gaps &&
        facts.bytes <= kCpuCopyBytes && facts.bytes <= tuning.small_bytes) {
        paths.add(SendPath::by_cpu);
    }
    if (facts.receiver == Receiver::itself) {
        return;
    }
    const bool is_mapped = facts.allowed != Allowed::ring && facts.reach != Reach::refused;
    if (is_mapped && !facts.mapping_pays) {
        paths.add(SendPath::before_mapping);
    }
    if (is_mapped && facts.exported_by != Export::no && !is_detached && (!facts.gaps || pulls_gaps(facts, tuning))) {
        paths.add(SendPath::pull);
    }
    if (facts.allowed != Allowed::ring && facts.reach == Reach::works) {
        paths.add(SendPath::exported);
    }
    if (facts.allowed != Allowed::direct && !is_detached) {
        paths.add(SendPath::ring);
    }
}

/// Of page-locked memory this process's GPU makes a copy in exported memory, and no CPU touches the bytes. Of ordinary
/// memory the CPU makes one copy in any case: into the ring, from where the bytes do not pass through this GPU.
void add_from_host(const SendFacts& facts, SendPaths& paths) noexcept {
    const auto add_exported = [&] {
        if (facts.allowed != Allowed::ring && facts.reach == Reach::works) {
            paths.add(SendPath::exported);
        }
    };
    const bool is_pinned = facts.memory == gpu::MemoryKind::pinned;
    if (is_pinned) {
        add_exported();
    }
    if (facts.allowed != Allowed::direct) {
        paths.add(SendPath::ring);
    }
    if (!is_pinned) {
        add_exported();
    }
}

}  // namespace

SendPaths choose_send_paths(const SendFacts& facts, const transfer::Tuning& tuning) noexcept {
    SendPaths paths;
    const bool on_node = facts.receiver == Receiver::itself || facts.receiver == Receiver::on_node;
    const bool is_offered = facts.mode != Mode::plain && facts.bytes != 0 && !facts.mixed && facts.packable;
    if (is_offered && facts.served && (!facts.gaps || facts.gaps_move)) {
        if (on_node) {
            add_from_device(facts, tuning, paths);
        } else if (facts.receiver == Receiver::on_other_node && facts.bytes >= tuning.network_bytes) {
            paths.add(SendPath::pipelined);
        }
    }
    if (is_offered && !facts.served && facts.mode == Mode::offered && facts.receiver == Receiver::on_node &&
        !facts.gaps && facts.wants_from_host) {
        add_from_host(facts, paths);
    }
    if (facts.as_long_as_rts && facts.receiver != Receiver::unknown) {
        paths.add(SendPath::wrapped);
    }
    if (!facts.served) {
        paths.add(facts.mode == Mode::detached && facts.packable ? SendPath::staged : SendPath::unchanged);
        return paths;
    }
    // The MPI gets only what `awaken doctor` tries: one run of bytes, allocated in the ordinary way. Not every MPI
    // knows other memory, and with gaps our kernel packs faster than an MPI that copies block by block. The MPI's CPU
    // copies buffered sends, and the program is about to overwrite the buffer of a detached one.
    if (facts.mpi_takes_memory && facts.mode == Mode::offered && !facts.mixed && !facts.gaps &&
        facts.memory == gpu::MemoryKind::device && facts.exported_by == Export::ipc) {
        paths.add(SendPath::native);
    }
    paths.add(SendPath::staged);
    return paths;
}

}  // namespace awaken::protocol
