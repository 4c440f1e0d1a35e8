// SPDX-License-Identifier: Apache-2.0
// Which paths a message may take, and in which order: each rule of choose_send_paths() has a row that breaks without
// it.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "protocol/send_path.h"

namespace awaken::protocol {
namespace {

using Facts = SendFacts;
using Mode = SendFacts::Mode;
using Receiver = SendFacts::Receiver;
using Reach = SendFacts::Reach;
using Allowed = SendFacts::Allowed;
using Export = SendFacts::Export;
using gpu::MemoryKind;
using Paths = std::vector<SendPath>;
using enum SendPath;

constexpr std::size_t kKiB = 1024, kMiB = kKiB * kKiB;

transfer::Tuning figures() {
    transfer::Tuning tuning;
    tuning.small_bytes = 8 * kKiB;
    tuning.strided_pull_bytes = 64 * kKiB;
    tuning.network_bytes = 128 * kKiB;
    return tuning;
}

/// Ordinary device memory, offered to another process of the node that reads it.
Facts device_memory() {
    Facts facts;
    facts.bytes = kMiB;
    facts.memory = MemoryKind::device;
    facts.served = true;
    facts.exported_by = Export::ipc;
    facts.receiver = Receiver::on_node;
    facts.reach = Reach::works;
    return facts;
}

/// Ordinary host memory for the same process, which received the last such message into device memory.
Facts host_memory() {
    Facts facts;
    facts.bytes = kMiB;
    facts.receiver = Receiver::on_node;
    facts.reach = Reach::works;
    facts.wants_from_host = true;
    return facts;
}

struct Row {
    const char* what;
    std::function<void(Facts&)> change;
    Paths expected;
};

void check(const Facts& from, const std::vector<Row>& rows) {
    for (const Row& row : rows) {
        Facts facts = from;
        row.change(facts);
        const SendPaths chosen = choose_send_paths(facts, figures());
        EXPECT_EQ(Paths(chosen.begin(), chosen.end()), row.expected) << row.what;
    }
}

TEST(SendPath, DeviceMemoryOnTheNode) {
    check(device_memory(),
          {
              {"the receiver reads it", [](Facts&) {}, {pull, exported, ring, staged}},
              {"nobody has tried yet: no copy that only this receiver could read",
               [](Facts& f) { f.reach = Reach::untried; },
               {pull, ring, staged}},
              {"it cannot be read", [](Facts& f) { f.reach = Reach::refused; }, {ring, staged}},
              {"it would have to map a large allocation for it",
               [](Facts& f) { f.mapping_pays = false; },
               {before_mapping, pull, exported, ring, staged}},
              {"the same, before anybody has tried",
               [](Facts& f) {
                   f.mapping_pays = false;
                   f.reach = Reach::untried;
               },
               {before_mapping, pull, ring, staged}},
              {"the same, of what it cannot read",
               [](Facts& f) {
                   f.mapping_pays = false;
                   f.reach = Reach::refused;
               },
               {ring, staged}},
              {"descriptors export it",
               [](Facts& f) { f.exported_by = Export::descriptors; },
               {pull, exported, ring, staged}},
              {"it cannot be exported", [](Facts& f) { f.exported_by = Export::no; }, {exported, ring, staged}},
              {"managed memory",
               [](Facts& f) {
                   f.memory = MemoryKind::managed;
                   f.exported_by = Export::no;
               },
               {exported, ring, staged}},
              {"only direct paths", [](Facts& f) { f.allowed = Allowed::direct; }, {pull, exported, staged}},
              {"only the ring", [](Facts& f) { f.allowed = Allowed::ring; }, {ring, staged}},
              {"the buffer must be free at once", [](Facts& f) { f.mode = Mode::detached; }, {exported, staged}},
              {"a buffered send", [](Facts& f) { f.mode = Mode::plain; }, {staged}},
              {"blocks in different kinds of memory", [](Facts& f) { f.mixed = true; }, {staged}},
              {"no bytes", [](Facts& f) { f.bytes = 0; }, {staged}},
              {"the receiver takes no RTS", [](Facts& f) { f.receiver = Receiver::unknown; }, {staged}},
          });
}

TEST(SendPath, SmallMessagesThatTheCpuCopies) {
    Facts small = device_memory();
    small.bytes = kCpuCopyBytes;
    small.cpu_reaches_memory = true;
    check(
        small,
        {
            {"small enough", [](Facts&) {}, {by_cpu, pull, exported, ring, staged}},
            {"a byte too long", [](Facts& f) { f.bytes = kCpuCopyBytes + 1; }, {pull, exported, ring, staged}},
            {"out of the CPU's reach", [](Facts& f) { f.cpu_reaches_memory = false; }, {pull, exported, ring, staged}},
            {"managed memory is not in that window",
             [](Facts& f) { f.memory = MemoryKind::managed; },
             {pull, exported, ring, staged}},
            {"also where the buffer must be free at once",
             [](Facts& f) { f.mode = Mode::detached; },
             {by_cpu, exported, staged}},
        });
}

TEST(SendPath, DatatypesWithGaps) {
    Facts gaps = device_memory();
    gaps.gaps = gaps.gaps_move = true;
    gaps.block = 8;
    gaps.bytes = 64 * kKiB;
    check(gaps, {
                    {"short: narrow blocks are read all the same", [](Facts&) {}, {pull, exported, ring, staged}},
                    {"long: narrow blocks waste the link", [](Facts& f) { f.bytes += 1; }, {exported, ring, staged}},
                    {"long, with wide blocks",
                     [](Facts& f) {
                         f.bytes = kMiB;
                         f.block = 32;
                     },
                     {pull, exported, ring, staged}},
                    {"on many pages",
                     [](Facts& f) {
                         f.block = 64;
                         f.span = 130 * kMiB;
                     },
                     {exported, ring, staged}},
                    {"on as many pages, in wide blocks",
                     [](Facts& f) {
                         f.block = 8 * kKiB;
                         f.bytes = 100 * f.block;
                         f.span = 1024 * kMiB;
                     },
                     {pull, exported, ring, staged}},
                    {"few blocks far apart",
                     [](Facts& f) {
                         f.block = 64;
                         f.bytes = 64 * f.block;
                         f.span = 1024 * kMiB;
                     },
                     {pull, exported, ring, staged}},
                    {"no equal blocks", [](Facts& f) { f.block = 0; }, {exported, ring, staged}},
                    {"GPUs do not move it", [](Facts& f) { f.gaps_move = false; }, {staged}},
                    {"the CPU copies only one run of bytes",
                     [](Facts& f) {
                         f.cpu_reaches_memory = true;
                         f.bytes = 512;
                     },
                     {pull, exported, ring, staged}},
                });
}

TEST(SendPath, ToOneself) {
    Facts itself = device_memory();
    itself.receiver = Receiver::itself;
    itself.reach = Reach::untried;
    check(itself, {
                      {"from the buffer", [](Facts&) {}, {own, staged}},
                      {"a copy without gaps", [](Facts& f) { f.gaps = f.gaps_move = true; }, {exported, staged}},
                      {"free at once", [](Facts& f) { f.mode = Mode::detached; }, {staged}},
                  });
}

TEST(SendPath, HostMemoryForAReceiverInDeviceMemory) {
    check(host_memory(),
          {
              {"ordinary memory: the CPU copies once in any case", [](Facts&) {}, {ring, exported, unchanged}},
              {"page-locked memory: no CPU copies",
               [](Facts& f) { f.memory = MemoryKind::pinned; },
               {exported, ring, unchanged}},
              {"the last one went to host memory", [](Facts& f) { f.wants_from_host = false; }, {unchanged}},
              {"with gaps", [](Facts& f) { f.gaps = f.gaps_move = true; }, {unchanged}},
              {"a buffered send", [](Facts& f) { f.mode = Mode::plain; }, {unchanged}},
              {"free at once", [](Facts& f) { f.mode = Mode::detached; }, {staged}},
              {"free at once, of a datatype that the layer does not know",
               [](Facts& f) {
                   f.mode = Mode::detached;
                   f.packable = false;
               },
               {unchanged}},
              {"only direct paths", [](Facts& f) { f.allowed = Allowed::direct; }, {exported, unchanged}},
              {"only the ring", [](Facts& f) { f.allowed = Allowed::ring; }, {ring, unchanged}},
              {"device memory of this process cannot be read",
               [](Facts& f) { f.reach = Reach::refused; },
               {ring, unchanged}},
              {"to oneself", [](Facts& f) { f.receiver = Receiver::itself; }, {unchanged}},
              {"to another node", [](Facts& f) { f.receiver = Receiver::on_other_node; }, {unchanged}},
          });
}

TEST(SendPath, BetweenNodes) {
    Facts far = device_memory();
    far.receiver = Receiver::on_other_node;
    far.bytes = 128 * kKiB;
    check(far, {
                   {"long enough", [](Facts&) {}, {pipelined, staged}},
                   {"a byte too short", [](Facts& f) { f.bytes -= 1; }, {staged}},
                   {"detached", [](Facts& f) { f.mode = Mode::detached; }, {pipelined, staged}},
                   {"buffered", [](Facts& f) { f.mode = Mode::plain; }, {staged}},
                   {"with gaps that GPUs move", [](Facts& f) { f.gaps = f.gaps_move = true; }, {pipelined, staged}},
                   {"with gaps that they do not move", [](Facts& f) { f.gaps = true; }, {staged}},
               });
}

TEST(SendPath, AnMpiThatTakesDeviceMemory) {
    Facts taken = device_memory();
    taken.receiver = Receiver::unknown;
    taken.mpi_takes_memory = true;
    check(taken, {
                     {"one run of bytes", [](Facts&) {}, {native, staged}},
                     {"with gaps", [](Facts& f) { f.gaps = true; }, {staged}},
                     {"managed", [](Facts& f) { f.memory = MemoryKind::managed; }, {staged}},
                     {"from a pool", [](Facts& f) { f.exported_by = Export::no; }, {staged}},
                     {"mapped at reserved addresses", [](Facts& f) { f.exported_by = Export::descriptors; }, {staged}},
                     {"mixed", [](Facts& f) { f.mixed = true; }, {staged}},
                     {"the MPI's CPU copies it", [](Facts& f) { f.mode = Mode::plain; }, {staged}},
                     {"the program overwrites it", [](Facts& f) { f.mode = Mode::detached; }, {staged}},
                     {"on the node our own path comes first",
                      [](Facts& f) { f.receiver = Receiver::on_node; },
                      {pull, exported, ring, native, staged}},
                 });
}

TEST(SendPath, MessagesAsLongAsAnRts) {
    Facts host;
    host.bytes = 65;
    host.as_long_as_rts = true;
    check(host, {
                    {"nobody takes it for an RTS", [](Facts&) {}, {unchanged}},
                    {"on the node", [](Facts& f) { f.receiver = Receiver::on_node; }, {wrapped, unchanged}},
                    {"to oneself", [](Facts& f) { f.receiver = Receiver::itself; }, {wrapped, unchanged}},
                    {"between nodes", [](Facts& f) { f.receiver = Receiver::on_other_node; }, {wrapped, unchanged}},
                    {"buffered",
                     [](Facts& f) {
                         f.receiver = Receiver::on_node;
                         f.mode = Mode::plain;
                     },
                     {wrapped, unchanged}},
                });
    Facts device = device_memory();
    device.bytes = 65;
    device.as_long_as_rts = true;
    check(device, {
                      {"offered first", [](Facts&) {}, {pull, exported, ring, wrapped, staged}},
                      {"buffered", [](Facts& f) { f.mode = Mode::plain; }, {wrapped, staged}},
                  });
}

TEST(SendPath, ThereIsAlwaysALastPathThatNeedsNothing) {
    // Every combination of what can be combined: a message is never left without a path, none is named twice, and paths
    // through the MPI come last.
    for (unsigned bits = 0; bits < 1U << 12; ++bits) {
        for (const Mode mode : {Mode::plain, Mode::offered, Mode::detached}) {
            for (const Receiver receiver :
                 {Receiver::unknown, Receiver::itself, Receiver::on_node, Receiver::on_other_node}) {
                for (const Reach reach : {Reach::untried, Reach::works, Reach::refused}) {
                    for (const MemoryKind memory :
                         {MemoryKind::host, MemoryKind::pinned, MemoryKind::device, MemoryKind::managed}) {
                        const auto bit = [bits](const unsigned number) { return (bits >> number & 1) != 0; };
                        Facts facts;
                        facts.mode = mode;
                        facts.receiver = receiver;
                        facts.reach = reach;
                        facts.memory = memory;
                        facts.served = memory == MemoryKind::device || memory == MemoryKind::managed;
                        facts.bytes = bit(0) ? 65 : kMiB;
                        facts.as_long_as_rts = bit(0);
                        facts.mixed = bit(1);
                        facts.exported_by = !bit(2) ? Export::no : bit(11) ? Export::ipc : Export::descriptors;
                        facts.gaps = bit(3);
                        facts.gaps_move = bit(4);
                        facts.block = bit(5) ? 64 : 0;
                        facts.packable = bit(6);
                        facts.wants_from_host = bit(7);
                        facts.cpu_reaches_memory = bit(8);
                        facts.mpi_takes_memory = bit(9);
                        facts.allowed = bit(10) ? Allowed::ring : Allowed::all;
                        const SendPaths chosen = choose_send_paths(facts, figures());
                        const Paths paths(chosen.begin(), chosen.end());
                        ASSERT_FALSE(paths.empty());
                        ASSERT_TRUE(facts.served ? paths.back() == staged
                                                 : paths.back() == unchanged || paths.back() == staged);
                        for (std::size_t at = 1; at < paths.size(); ++at) {
                            ASSERT_NE(paths[at - 1], paths[at]);
                            ASSERT_FALSE(!is_on_node(paths[at - 1]) && is_on_node(paths[at]));
                        }
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace awaken::protocol
