// SPDX-License-Identifier: Apache-2.0
// Collectives between two processes of a node, on the emulated driver: agreement, kernels over IPC, and what goes
// wrong: memory that cannot be mapped or exported, kernels that fail, a member that is killed, more operations than
// there is room.
#include "coll/device/node_comm.h"

#include "gpu/kernels/codes.h"
#include "ipc_link_support.h"

namespace awaken::coll {
namespace {

using namespace ipc::link_test;
using ipc::link_test::Kind;  // of memory; that of a collective is coll::Kind

constexpr std::uint32_t kSum = kernels::code_of(kernels::ElementType::uint32, kernels::ReductionOperation::sum);

/// A process's side of a communicator of two.
class Member {
  public:
    explicit Member(Node& node, const std::string& table = {})
        : rank(node.device),
          engine(node.gpu, node.link->exports(), node.link->exported(), node.link->mappings(), node.link->copies(),
                 small_figures(kForEver), [this](const std::string& reason) { notes += reason + "\n"; }),
          _selection(table, "test"),
          _node(node) {
        auto control_block = ControlBlock::make(*node.segment, 2, rank);
        require(control_block != nullptr, "no memory for a board");
        std::array<std::uint64_t, 2> offsets{};
        offsets[static_cast<std::size_t>(rank)] = control_block->own_offset();
        const std::uint64_t own = own_offset = control_block->own_offset();
        node.wire->send(&own, sizeof own);
        const Bytes other = node.wire->receive();
        std::memcpy(&offsets[static_cast<std::size_t>(1 - rank)], other.data(), sizeof own);
        require(control_block->connect(offsets), "the other board cannot be mapped");
        std::vector<int> processes(2);
        processes[static_cast<std::size_t>(rank)] = node.segment->own_index();
        processes[static_cast<std::size_t>(1 - rank)] = node.peer;
        node_comm = std::make_shared<NodeComm>(*node.segment, std::move(control_block), processes, _selection, _slot);
        _slot = &engine;
    }
    ~Member() {
        node_comm.reset();
        _slot = nullptr;
        engine.shut_down();
    }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    [[nodiscard]] Buffer buffer(const Memory& memory, const std::uint64_t bytes, const std::size_t offset = 0) const {
        Buffer made;
        made.state = memory.info.host_accessible() ? Buffer::State::host : Buffer::State::device;
        made.address = memory.data + offset;
        made.bytes = bytes;
        made.info = memory.info;
        return made;
    }
    [[nodiscard]] Arguments allreduce(const Memory& send, const Memory& receive, const std::uint64_t elements) const {
        Arguments arguments;
        arguments.kind = coll::Kind::allreduce;
        arguments.code = kSum;
        arguments.elements = elements;
        arguments.bytes = elements * 4;
        arguments.send = buffer(send, elements * 4);
        arguments.receive = buffer(receive, elements * 4);
        return arguments;
    }
    std::unique_ptr<CollectiveOp> run(const Arguments& arguments, const std::string& what) {
        auto collective = node_comm->begin(arguments);
        wait_until([&] { return collective->advance(); }, what);
        return collective;
    }
    /// How it failed.
    std::string failure(const Arguments& arguments) {
        auto collective = node_comm->begin(arguments);
        try {
            wait_until([&] { return collective->advance(); }, "a failure");
        } catch (const Error& error) {
            return error.what();
        }
        return "succeeded";
    }
    [[nodiscard]] Node& node() noexcept { return _node; }

    /// The words of this member's own part of the control block, as far as the first pages go.
    [[nodiscard]] std::span<std::uint64_t> own_words() const {
        constexpr std::size_t kBytes = 16384;
        std::byte* const part = _node.segment->map(own_offset, kBytes);
        require(part != nullptr, "the board cannot be mapped");
        return {reinterpret_cast<std::uint64_t*>(part), kBytes / sizeof(std::uint64_t)};
    }

    const int rank;
    std::string notes;
    std::uint64_t own_offset = 0;
    Engine engine;
    std::shared_ptr<NodeComm> node_comm;

  private:
    const Selection _selection;
    std::atomic<Engine*> _slot{nullptr};
    Node& _node;
};

Bytes numbers(const std::uint64_t elements, const std::uint32_t factor) {
    Bytes content(elements * 4);
    for (std::uint64_t i = 0; i < elements; ++i) {
        const auto value = static_cast<std::uint32_t>(i) * factor + factor;
        std::memcpy(content.data() + i * 4, &value, 4);
    }
    return content;
}

int both(const std::vector<std::string>& arguments, const Body& body, const Parts& parts = {}) {
    Parts given = parts;
    given.options = options_of(ipc::Link::Allowed::all, kForEver);
    return between_two(arguments.at(0), given, body, body);
}

/// Reduces, and looks whether the sum is there.
void reduce(Member& side, const Kind from, const Kind to, const std::uint64_t elements,
            const CollectiveOp::Decision expected, const bool copied) {
    Memory send(side.node(), from, elements * 4), receive(side.node(), to, elements * 4);
    const auto own = static_cast<std::uint32_t>(side.rank) * 6 + 3;  // 3 and 9: 12 together
    send.write(numbers(elements, own));
    receive.fill(0xEE);
    const auto collective = side.run(side.allreduce(send, receive, elements), "a reduction");
    require(collective->decision() == expected, "decided otherwise: " + collective->reason() + side.notes);
    if (expected == CollectiveOp::Decision::ours) {
        require(collective->copied() == copied, copied ? "nothing was copied" : "something was copied");
        require(receive.read() == numbers(elements, 12), "a wrong sum");
        require(send.read() == numbers(elements, own), "the input was changed");
    } else {
        require(receive.read() == Bytes(elements * 4, std::byte{0xEE}), "the output was touched");
    }
}

SCENARIO(agreement) {
    return both(arguments, [&](Node& node) {
        for (const std::string table : {"", "* : root-only", "* : two-shot"}) {
            Member side(node, table);
            for (const std::uint64_t elements : {1, 1000, 300000}) {
                reduce(side, Kind::device, Kind::device, elements, CollectiveOp::Decision::ours, false);
                reduce(side, Kind::pool, Kind::device, elements, CollectiveOp::Decision::ours, true);
                reduce(side, Kind::device, Kind::managed, elements, CollectiveOp::Decision::ours, true);
                reduce(side, Kind::host, Kind::host, elements, CollectiveOp::Decision::host, false);
                reduce(side, Kind::host, Kind::device, elements, CollectiveOp::Decision::staged, false);
                // One rank alone passes host memory.
                const Kind mixed = side.rank == 0 ? Kind::host : Kind::device;
                reduce(side, mixed, Kind::device, elements, CollectiveOp::Decision::staged, false);
            }
            meet(*node.wire);
        }
    });
}

SCENARIO(nothing_but_meeting) {
    return both(arguments, [&](Node& node) {
        Member side(node);
        Arguments barrier;
        barrier.kind = coll::Kind::barrier;
        for (int i = 0; i < 100; ++i) {
            if (side.rank == 0) {
                const auto collective = side.node_comm->begin(barrier);
                require(!collective->advance(), "nobody else has come");
                meet(*node.wire);
                wait_until([&] { return collective->advance(); }, "the others");
            } else {
                meet(*node.wire);
                static_cast<void>(side.run(barrier, "the others"));
            }
        }
        meet(*node.wire);
    });
}

/// More operations than the control block has room for, begun before any is advanced, and advanced in another order by
/// each.
SCENARIO(many_under_way) {
    return both(arguments, [&](Node& node) {
        Member side(node);
        constexpr std::uint64_t kMany = 3 * kSlots + 5;
        constexpr std::uint64_t kElements = 500;
        std::vector<std::unique_ptr<Memory>> memory;
        std::vector<std::unique_ptr<CollectiveOp>> collectives;
        for (std::uint64_t i = 0; i < kMany; ++i) {
            for (int k = 0; k < 2; ++k) {
                memory.push_back(std::make_unique<Memory>(node, Kind::device, kElements * 4));
            }
            memory[2 * i]->write(numbers(kElements, static_cast<std::uint32_t>(i) + 1));
            collectives.push_back(side.node_comm->begin(side.allreduce(*memory[2 * i], *memory[2 * i + 1], kElements)));
        }
        std::vector<bool> over(kMany);
        wait_until(
            [&] {
                bool all = true;
                for (std::uint64_t i = 0; i < kMany; ++i) {
                    const std::uint64_t at = side.rank == 0 ? i : kMany - 1 - i;
                    over[at] = over[at] || collectives[at]->advance();
                    all = all && over[at];
                }
                return all;
            },
            "many rounds");
        for (std::uint64_t i = 0; i < kMany; ++i) {
            require(memory[2 * i + 1]->read() == numbers(kElements, 2 * (static_cast<std::uint32_t>(i) + 1)), "a sum");
        }
        meet(*node.wire);
    });
}

SCENARIO(different_arguments) {
    return both(arguments, [&](Node& node) {
        Member side(node);
        Memory send(node, Kind::device, 4000), receive(node, Kind::device, 4000);
        const auto collective = side.run(side.allreduce(send, receive, side.rank == 0 ? 1000 : 999), "a wrong call");
        require(collective->decision() == CollectiveOp::Decision::staged, "it is left to the MPI");
        Arguments nonblocking = side.allreduce(send, receive, side.rank == 0 ? 1000 : 999);
        nonblocking.compulsory = true;
        require(side.failure(nonblocking).find("different arguments") != std::string::npos, "an error");
        reduce(side, Kind::device, Kind::device, 1000, CollectiveOp::Decision::ours, false);  // goes on
        meet(*node.wire);
    });
}

/// A nonblocking one that was agreed on is done on the GPUs, whatever is passed.
SCENARIO(compulsory) {
    return both(arguments, [&](Node& node) {
        Member side(node);
        for (const Kind kind : {Kind::host, Kind::pinned, Kind::pool, Kind::device}) {
            Memory send(node, side.rank == 0 ? kind : Kind::device, 40000), receive(node, kind, 40000);
            send.write(numbers(10000, 5));
            Arguments call = side.allreduce(send, receive, 10000);
            call.compulsory = true;
            const auto collective = side.run(call, "an agreed collective");
            require(collective->decision() == CollectiveOp::Decision::ours, "it is ours");
            require(receive.read() == numbers(10000, 10), "a wrong sum");
        }
        meet(*node.wire);
    });
}

SCENARIO(kinds_are_agreed_on) {
    return both(arguments, [&](Node& node) {
        Member side(node);
        Arguments barrier;
        barrier.kind = coll::Kind::barrier;
        side.node_comm->saw(coll::Kind::broadcast, true);
        if (side.rank == 0) {
            side.node_comm->saw(coll::Kind::gather, true);
        }
        static_cast<void>(side.run(barrier, "a barrier"));
        require(side.node_comm->must_try_reach(), "all are to try");
        require(!side.node_comm->must_try_reach(), "once");
        require(!side.node_comm->agreed(coll::Kind::broadcast), "nobody has reached the other yet");
        reduce(side, Kind::device, Kind::device, 10, CollectiveOp::Decision::ours, false);
        static_cast<void>(side.run(barrier, "a barrier"));
        require(side.node_comm->agreed(coll::Kind::broadcast), "both have seen it");
        require(!side.node_comm->agreed(coll::Kind::gather), "one has not");
        side.node_comm->saw(coll::Kind::broadcast, side.rank == 0);
        require(side.node_comm->agreed(coll::Kind::broadcast), "until all know");
        static_cast<void>(side.run(barrier, "a barrier"));
        require(!side.node_comm->agreed(coll::Kind::broadcast), "no more");
        meet(*node.wire);
    });
}

SCENARIO(nothing_can_be_mapped) {
    return both(arguments,
                [&](Node& node) {
                    Member side(node);
                    for (int i = 0; i < 3; ++i) {
                        reduce(side, Kind::device, Kind::device, 1000, CollectiveOp::Decision::staged, false);
                    }
                    require(side.rank == 0 || side.notes.find("cannot be mapped") != std::string::npos,
                            "nothing was said");
                    meet(*node.wire);
                },
                {.options = {}, .receiver_faults = "ipc-open"});
}

SCENARIO(nothing_can_be_registered) {
    return both(arguments,
                [&](Node& node) {
                    Member side(node);
                    for (int i = 0; i < 3; ++i) {
                        reduce(side, Kind::device, Kind::device, 100000, CollectiveOp::Decision::ours, false);
                    }
                    meet(*node.wire);
                },
                {.options = {}, .sender_faults = "register", .receiver_faults = {}});
}

/// Both hear of it, whoever's kernel it was.
SCENARIO(a_kernel_fails) {
    return both(arguments,
                [&](Node& node) {
                    Member side(node, "* : two-shot");
                    Memory send(node, Kind::device, 400000), receive(node, Kind::device, 400000);
                    const std::string said = side.failure(side.allreduce(send, receive, 100000));
                    require(said != "succeeded", "the kernel of the sender has failed");
                    require(side.rank == 0 || said.find("could not do its part") != std::string::npos, said);
                    meet(*node.wire);
                },
                {.options = {}, .sender_faults = "kernel-error=1", .receiver_faults = {}});
}

/// The other one is killed before it proposes, or after.
SCENARIO(the_other_is_killed) {
    const bool proposals = arguments.at(1) == "voted";
    Parts parts;
    parts.any_dies = true;
    parts.receiver_dies = true;
    parts.options = options_of(ipc::Link::Allowed::all, kForEver);
    return between_two(
        arguments.at(0), parts,
        [&](Node& node) {
            Member side(node, "* : two-shot");
            reduce(side, Kind::device, Kind::device, 1000, CollectiveOp::Decision::ours, false);
            Memory send(node, Kind::device, 4000), receive(node, Kind::device, 4000);
            node.wire->hear();
            const std::string said = side.failure(side.allreduce(send, receive, 1000));
            require(said.find("rank 1 of MPI_COMM_WORLD ended") != std::string::npos, said);
        },
        [&](Node& node) {
            Member side(node, "* : two-shot");
            reduce(side, Kind::device, Kind::device, 1000, CollectiveOp::Decision::ours, false);
            Memory send(node, Kind::device, 4000), receive(node, Kind::device, 4000);
            const auto collective = side.node_comm->begin(side.allreduce(send, receive, 1000));
            if (proposals) {
                require(!collective->advance(), "nobody else has come");
            }
            node.wire->tell();
            raise(SIGKILL);
        });
}

/// The other one writes over its part of the control block, and does not come, or has come. Agreed collectives, since
/// those are done whether a GPU is busy or not.
SCENARIO(the_board_is_overwritten) {
    const bool proposals = arguments.at(1) == "voted";
    return both(arguments, [&](Node& node) {
        Member side(node, "* : two-shot");
        Memory send(node, Kind::device, 4000), receive(node, Kind::device, 4000);
        Arguments call = side.allreduce(send, receive, 1000);
        call.compulsory = true;
        static_cast<void>(side.run(call, "a collective in peace"));
        meet(*node.wire);
        const auto find_out = [](CollectiveOp& collective) {
            std::string said = "succeeded";
            try {
                wait_until([&] { return collective.advance(); }, "a failure");
            } catch (const Error& error) {
                said = error.what();
            }
            require(said.find("was overwritten") != std::string::npos, said);
        };
        const std::span<std::uint64_t> words = side.own_words();
        if (!proposals) {
            constexpr std::ptrdiff_t kHead = 16;  // who has left is counted there
            if (side.rank == 1) {
                std::fill(words.begin() + kHead, words.end(), 1000);
            }
            meet(*node.wire);
            if (side.rank == 0) {
                find_out(*side.node_comm->begin(call));
            }
            meet(*node.wire);
            return;
        }
        // Parts that lie where there is nothing.
        constexpr std::uint64_t kPart = 1504, kMark = 496;
        const std::array<std::uint64_t, 2> offsets{kMark, kMark + kPart}, bytes{kPart, kPart};
        call.kind = coll::Kind::alltoall;
        call.code = 0;
        call.varying = true;
        call.bytes = kPart;
        call.bytes_from = bytes;
        call.send_offsets = call.receive_offsets = offsets;
        const auto collective = side.node_comm->begin(call);
        if (side.rank == 1) {
            wait_until([&] { return collective->advance() || std::count(words.begin(), words.end(), kMark) == 2; },
                       "the own vote");
            std::replace(words.begin(), words.end(), kMark, ~std::uint64_t{0} - 100);
        }
        meet(*node.wire);
        find_out(*collective);
        meet(*node.wire);
    });
}

/// Members take turns with the library. Whoever has its turn is no more.
SCENARIO(the_turn_of_nobody) {
    const std::string file = arguments.at(0) == "cuda" ? "libnccl.so.2" : "librccl.so.1";
    setenv("AWAKEN_CCL", (std::string(AWAKEN_EMULATOR_DIRECTORY) + "/" + file).c_str(), 1);
    return both(arguments, [&](Node& node) {
        Member side(node, "allreduce : ccl");
        if (side.rank == 0) {
            node.segment->token().store(1000);
        }
        Memory send(node, Kind::device, 4000), receive(node, Kind::device, 4000);
        send.write(numbers(1000, 1));
        Arguments call = side.allreduce(send, receive, 1000);
        call.compulsory = true;
        for (int use = 1; use <= 3; ++use) {
            const auto collective = side.run(call, "a reduction");
            require(use < 3 || collective->algorithm() == Algorithm::ccl, "not done by the library");
            require(receive.read() == numbers(1000, 2), "a wrong sum");
        }
        meet(*node.wire);
        require(node.segment->token().load() == 0, "somebody has still its turn");
        meet(*node.wire);
    });
}

/// NCCL's double: made at the third use, by all or by none.
SCENARIO(library) {
    const bool fails = arguments.at(1) == "fails";
    const std::string file = arguments.at(0) == "cuda" ? "libnccl.so.2" : "librccl.so.1";
    setenv("AWAKEN_CCL", (std::string(AWAKEN_EMULATOR_DIRECTORY) + "/" + file).c_str(), 1);
    return both(
        arguments,
        [&](Node& node) {
            Member side(node, "allreduce : ccl");
            for (int use = 1; use <= 5; ++use) {
                Memory send(node, Kind::device, 4000), receive(node, Kind::device, 4000);
                send.write(numbers(1000, 1));
                const auto collective = side.run(side.allreduce(send, receive, 1000), "a reduction");
                require(receive.read() == numbers(1000, 2), "a wrong sum");
                const Algorithm expected = use > 2 && !fails ? Algorithm::ccl : Algorithm::two_shot;
                require(collective->algorithm() == expected,
                        std::string("done by ") + to_string(collective->algorithm()));
            }
            require(fails == !side.notes.empty(), "said: " + side.notes);
            meet(*node.wire);  // the other one may have been at its last
            require(node.segment->token().load() == 0, "somebody has still its turn");
            meet(*node.wire);
        },
        fails ? Parts{.options = {}, .sender_faults = "ccl-init=1", .receiver_faults = "ccl-init=1"} : Parts{});
}

class TeamTest : public LinkTest {};

TEST_P(TeamTest, AllDrawTheSameConclusion) {
    run("agreement");
}
TEST_P(TeamTest, ABarrierIsOverWhenAllHaveCome) {
    run("nothing_but_meeting");
}
TEST_P(TeamTest, MoreRoundsThanThereIsRoomFor) {
    run("many_under_way");
}
TEST_P(TeamTest, DifferentArgumentsAreFoundOut) {
    run("different_arguments");
}
TEST_P(TeamTest, HostMemoryTakesPartWhereThatWasAgreed) {
    run("compulsory");
}
TEST_P(TeamTest, KindsAreAgreedOnByAll) {
    run("kinds_are_agreed_on");
}
TEST_P(TeamTest, MemoryThatCannotBeMappedIsStagedByAll) {
    run("nothing_can_be_mapped");
}
TEST_P(TeamTest, WithoutRegisteredMemoryTheProcessorTellsTheOthers) {
    run("nothing_can_be_registered");
}
TEST_P(TeamTest, AFailedKernelIsEverybodysError) {
    run("a_kernel_fails");
}
TEST_P(TeamTest, ADeadMemberIsNoticed) {
    run("the_other_is_killed", "absent");
    run("the_other_is_killed", "voted");
}
TEST_P(TeamTest, AnOverwrittenBoardIsAnError) {
    run("the_board_is_overwritten", "absent");
    run("the_board_is_overwritten", "voted");
}
TEST_P(TeamTest, TheTurnOfNobodyIsTaken) {
    run("the_turn_of_nobody");
}
TEST_P(TeamTest, TheLibraryIsUsedByAllOrByNone) {
    run("library", "works");
    run("library", "fails");
}

INSTANTIATE_TEST_SUITE_P(Vendors, TeamTest, ::testing::Values("cuda", "hip"),
                         [](const auto& vendor) { return std::string(vendor.param); });

}  // namespace
}  // namespace awaken::coll
