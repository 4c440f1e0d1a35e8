// SPDX-License-Identifier: Apache-2.0
// What goes wrong between two processes of a node: RTS messages and slots that nobody wrote so, memory that comes and
// goes, receivers that never come, processes that are killed, and ends with something unfinished.
#include <sys/resource.h>
#include <sys/stat.h>

#include "ipc_link_support.h"

namespace awaken::ipc {
namespace {

using namespace link_test;

// ---- slots ----------------------------------------------------------------------------------------------------------

SCENARIO(more_than_there_are_slots) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
        [](Node& node) {
            Memory source(node, Kind::device, kSlots);
            source.write(content_of(kSlots, 4));
            std::vector<std::shared_ptr<RendezvousSend>> sends;
            for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
                sends.push_back(start_send(node, source, 1, slot));
                require(sends.back()->rts_length() == rts_length(slot), "a header of another length");
            }
            for (int round = 0; round < 2; ++round) {
                require(offer(*node.link, node.peer, source.data, source.info, 1) == nullptr, "there is no slot left");
                require(wrap(node, "a", 1) == nullptr, "there is no slot left for host memory either");
            }
            require(node.noted("256 messages in flight"), "nothing was said: " + node.notes());
            for (const auto& send : sends) {
                node.send_header(*send);
            }
            for (const auto& send : sends) {
                wait_until_free(*send, "one of many");
            }
            // They are over, but nobody has said so: still in use.
            require(offer(*node.link, node.peer, source.data, source.info, 1) == nullptr,
                    "slots were given back early");
            for (auto& send : sends) {
                node.link->sends().retire(std::move(send));
            }
            sends.clear();
            // RTS messages that are never sent: the slots are there again at once, as often as one likes.
            for (std::uint32_t i = 0; i < 3 * kSlots; ++i) {
                start_send(node, source, 1)->withdraw();
            }
            // Retired while they are under way: what is over makes room when it is needed.
            for (std::uint32_t i = 0; i < kSlots; ++i) {
                auto send = start_send(node, source, 1, i);
                node.send_header(*send);
                node.link->sends().retire(std::move(send));
            }
            node.wire->hear();
            const auto again = start_send(node, source, 1);
            again->withdraw();
            again->withdraw();
            require(again->advance(transport::Patience::short_), "what was withdrawn is not under way");
            node.link->sends().retire(again);
            node.link->sends().release_finished();
        },
        [](Node& node) {
            const Bytes content = content_of(kSlots, 4);
            for (std::uint32_t i = 0; i < 2 * kSlots; ++i) {
                Memory destination(node, Kind::host, 1);
                finish(get(node, node.wire->receive(), destination, 1), "one of many");
                require(destination.read()[0] == content[i % kSlots], "one of many is another one");
            }
            node.wire->tell();
        });
}

SCENARIO(withdrawn) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
        [](Node& node) {
            for (const Kind kind : {Kind::device, Kind::pool}) {
                Memory source(node, kind, 700 * KiB);
                for (const std::size_t bytes : {std::size_t{100}, 700 * KiB}) {
                    const auto send = start_send(node, source, bytes);
                    send->withdraw();
                    source.fill(0xDD);
                    require(send->is_over(), "what was withdrawn is over");
                    node.send_header(*send);  // against the rules
                    node.link->sends().retire(send);
                    node.wire->hear();
                }
            }
        },
        [](Node& node) {
            Memory destination(node, Kind::device, 700 * KiB);
            for (int i = 0; i < 4; ++i) {
                const Bytes rts = node.wire->receive();
                require(!node.link->size_of(node.peer, rts.size()).bytes, "a probe sees what was withdrawn");
                require(get(node, rts, destination, 700 * KiB) == nullptr, "what was withdrawn can be fetched");
                node.wire->tell();
            }
        });
}

/// The slots of a process, as others see them: the last part of its area but for a word for each process.
OfferTable& slots_of(Node& node, const int process) {
    const std::size_t end = Areas::bytes(0);
    return *reinterpret_cast<OfferTable*>(node.segment->area(process) + end - sizeof(OfferTable));
}

SCENARIO(forged_headers) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
        [](Node& node) {
            Memory source(node, Kind::device, 700 * KiB);
            source.write(content_of(700 * KiB, 5));
            const auto send = start_send(node, source, 700 * KiB);
            node.send_header(*send);
            wait_until_free(*send, "a message of which there are forgeries");
            node.wire->hear();
            require(send->is_over(), "it was fetched");
            node.link->sends().retire(send);
            // The slot is another message's now.
            const auto next = start_send(node, source, 1000);
            require(next->rts_length() == rts_length(0), "it is the same slot");
            node.wire->tell();
            node.wire->hear();
            node.send_header(*next);
            wait_until_free(*next, "the message after that");
            node.link->sends().retire(next);
            node.wire->hear();
        },
        [](Node& node) {
            Memory destination(node, Kind::device, 700 * KiB);
            destination.fill(0xEE);
            const Bytes genuine = node.wire->receive();
            const auto forged = [&](const auto& change) {
                Rts rts;
                std::memcpy(&rts, genuine.data(), sizeof rts);
                change(rts);
                Bytes message = genuine;
                std::memcpy(message.data(), &rts, sizeof rts);
                return message;
            };
            const auto must_be_nothing = [&](const Bytes& message, const char* const what, const bool looks_right) {
                require(node.link->is_rts(message.data(), message.size()) == looks_right, what);
                require(get(node, message, destination, 700 * KiB) == nullptr, what);
            };
            must_be_nothing(forged([](Rts& rts) { rts.secret[0] ^= 1; }), "wrong secret", false);
            must_be_nothing(forged([](Rts& rts) { rts.secret[1] ^= 1; }), "wrong end of the secret", false);
            must_be_nothing(forged([](Rts& rts) { rts.sender = 2; }), "no such sender", true);
            must_be_nothing(forged([](Rts& rts) { rts.sender = ~0u; }), "far from a sender", true);
            must_be_nothing(forged([](Rts& rts) { rts.slot = kSlots; }), "no such slot", true);
            must_be_nothing(forged([](Rts& rts) { rts.slot = 1; }), "another slot's length", true);
            must_be_nothing(forged([](Rts& rts) { rts.generation += 1; }), "the next generation", true);
            must_be_nothing(forged([](Rts& rts) { rts.generation = 0; }), "the first generation", true);
            must_be_nothing(forged([](Rts& rts) { rts.generation |= std::uint64_t{1} << 56; }),
                            "a generation that is cut off", true);
            must_be_nothing(forged([&](Rts& rts) { rts.sender = static_cast<unsigned>(node.link->own()); }),
                            "an offer of one's own that there is not", true);
            Bytes longer = genuine;
            longer.resize(rts_length(1));
            must_be_nothing(longer, "too long", true);
            longer.resize(kLongestRts + 1);
            must_be_nothing(longer, "longer than any header", false);
            for (std::size_t length = 0; length < kShortestRts; ++length) {
                Bytes shorter = genuine;
                shorter.resize(length);
                must_be_nothing(shorter, "too short", length >= sizeof(Rts));
            }
            require(destination.read() == Bytes(700 * KiB, std::byte{0xEE}), "a forgery has written something");
            finish(get(node, genuine, destination, 700 * KiB), "the genuine one");
            require(same(destination.read(), content_of(700 * KiB, 5)), "the genuine one is wrong");
            must_be_nothing(genuine, "the same one again", true);
            node.wire->tell();
            node.wire->hear();
            must_be_nothing(genuine, "the same one again, when its slot is another message's", true);
            node.wire->tell();
            finish(get(node, node.wire->receive(), destination, 1000), "the message after that");
            node.wire->tell();
        });
}

/// A slot in which something impossible stands: the receiver gets an error or nothing, and the sender is let go.
SCENARIO(corrupted_slots) {
    struct Case {
        const char* what;
        std::function<void(Slot&, Node&)> change;
    };
    using LocationKind = Location::Kind;
    const std::vector<Case> cases = {
        {"for somebody else", [](Slot& slot, Node&) { slot.receiver = 7; }},
        {"more bytes than the allocation has",
         [](Slot& slot, Node&) { slot.bytes = slot.source.allocation_bytes + 1; }},
        {"begins beyond its allocation", [](Slot& slot, Node&) { slot.offset = slot.source.allocation_bytes + 1; }},
        {"begins before its allocation", [](Slot& slot, Node&) { slot.offset = ~std::uint64_t{0}; }},
        {"of no kind", [](Slot& slot, Node&) { slot.source.kind = LocationKind::none; }},
        {"of an unknown kind", [](Slot& slot, Node&) { slot.source.kind = static_cast<LocationKind>(99); }},
        {"memory of the receiver's own",
         [](Slot& slot, Node&) {
             slot.source.kind = LocationKind::own;
             slot.source.address = 4096;
         }},
        {"in shared memory that is not there",
         [](Slot& slot, Node&) {
             slot.source.kind = LocationKind::shared;
             slot.offset = std::uint64_t{1} << 40;
             slot.source.allocation_bytes = 1 << 20;
         }},
        {"in the areas themselves",
         [](Slot& slot, Node&) {
             slot.source.kind = LocationKind::shared;
             slot.offset = 0;
             slot.source.allocation_bytes = 1 << 20;
         }},
        {"a ring that is not there",
         [](Slot& slot, Node&) {
             slot.source.kind = LocationKind::ring;
             slot.offset = std::uint64_t{1} << 40;
             slot.source.allocation_bytes = 1 << 20;
             slot.source.chunk_bytes = 4096;
         }},
        {"a ring without chunks",
         [](Slot& slot, Node&) {
             slot.source.kind = LocationKind::ring;
             slot.source.chunk_bytes = 0;
         }},
    };
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::direct, kForEver)},
        [&](Node& node) {
            Memory source(node, Kind::device, 50 * KiB);
            source.write(content_of(50 * KiB, 6));
            for (const Case& wrong : cases) {
                const auto send = start_send(node, source, 50 * KiB);
                Slot& slot = slots_of(node, node.link->own()).slots[0];
                wrong.change(slot, node);
                node.send_header(*send);
                node.wire->hear();
                if (wrong.what != cases.front().what) {
                    wait_until_free(*send, wrong.what);
                    node.link->sends().retire(send);
                } else {
                    send->withdraw();
                }
            }
            send_message(node, {.bytes = 50 * KiB}, 1);
        },
        [&](Node& node) {
            Memory destination(node, Kind::device, 50 * KiB);
            destination.fill(0xEE);
            for (const Case& wrong : cases) {
                const auto fetched = get(node, node.wire->receive(), destination, 50 * KiB);
                if (fetched != nullptr) {
                    wait_until([&] { return fetched->advance(); }, wrong.what);
                    require(fetched->error().has_value(), std::string(wrong.what) + ": no error");
                }
                node.wire->tell();
            }
            require(destination.read() == Bytes(50 * KiB, std::byte{0xEE}), "something was written");
            receive_message(node, {.bytes = 50 * KiB}, 1);
        });
}

/// A refused message whose copy is said to lie in the receiver's own memory.
SCENARIO(corrupted_spill) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver), .receiver_faults = "ipc-open"},
        [](Node& node) {
            Memory source(node, Kind::device, 50 * KiB);
            const auto send = start_send(node, source, 50 * KiB);
            node.send_header(*send);
            node.wire->hear();
            Slot& slot = slots_of(node, node.link->own()).slots[0];
            require((slot.word & 0xff) == static_cast<std::uint64_t>(OfferState::refused), "it was refused");
            slot.spill = {};
            slot.spill.kind = Location::Kind::own;
            slot.spill.address = 4096;
            slot.available = 50 * KiB;
            slot.word = (slot.word & ~std::uint64_t{0xff}) | static_cast<std::uint64_t>(OfferState::spilled);
            wait_until_free(*send, "a message that could not be received");
            node.link->sends().retire(send);
            node.wire->hear();
        },
        [](Node& node) {
            Memory destination(node, Kind::host, 50 * KiB);
            const auto fetched = get(node, node.wire->receive(), destination, 50 * KiB);
            require(fetched != nullptr && !fetched->advance(), "it waits for a copy");
            node.wire->tell();
            wait_until([&] { return fetched->advance(); }, "a copy that cannot be");
            require(fetched->error().has_value(), "an address of the sender's choice was read");
            node.wire->tell();
        });
}

/// A copy of which the sender says that it will never be there.
SCENARIO(lost_copy) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::ring, kForEver)},
        [](Node& node) {
            Memory source(node, Kind::device, 100);
            const auto send = start_send(node, source, 100);
            wait_until_free(*send, "a small message");
            Slot& slot = slots_of(node, node.link->own()).slots[0];
            slot.available = 50;
            slot.lost = 1;
            node.send_header(*send);
            node.link->sends().retire(send);
            node.wire->hear();
            node.link->sends().release_finished();
            const auto next = start_send(node, source, 100);
            require(next->rts_length() == rts_length(0), "the slot was not given back");
            next->withdraw();
        },
        [](Node& node) {
            Memory destination(node, Kind::device, 100);
            const auto fetched = get(node, node.wire->receive(), destination, 100);
            require(fetched != nullptr, "no such message");
            wait_until([&] { return fetched->advance(); }, "a copy that was lost");
            require(
                fetched->error() && fetched->error()->cause().find("could not finish its copy") != std::string::npos,
                "nothing was said");
            node.wire->tell();
        });
}

/// One process's GPU fails in the middle of a message: nobody hangs, and whoever lacks bytes is told.
SCENARIO(failing_copies) {
    const std::string& where = arguments.at(1);
    const bool through_ring = where != "pull";
    constexpr std::size_t kBytes = 1 * MiB;
    // The copies before: what the test itself copies, the check at first use, one round of the ring.
    Parts parts{.options = options_of(through_ring ? Link::Allowed::ring : Link::Allowed::all, kForEver)};
    (where == "sender" ? parts.sender_faults : parts.receiver_faults) =
        where == "sender" ? "copy-error=7" : "copy-error=2";
    return between_two(
        arguments.at(0), parts,
        [&](Node& node) {
            Memory source(node, Kind::device, kBytes);
            source.write(content_of(kBytes, 12));
            const auto send = start_send(node, source, kBytes);
            node.send_header(*send);
            bool told = false;
            try {
                wait_until([&] { return send->advance(transport::Patience::short_); }, "a message that fails");
            } catch (const Error& error) {
                told = std::string(error.what()).find("waited too long") == std::string::npos;
                require(told, error.what());
            }
            require(told == through_ring, "a sender is told when bytes are missing, and only then");
            node.wire->hear();
            node.link->sends().retire(send);
            node.link->finish_sends();
        },
        [&](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            const auto fetched = get(node, node.wire->receive(), destination, kBytes);
            require(fetched != nullptr, "no such message");
            wait_until([&] { return fetched->advance(); }, "a message that fails");
            require(fetched->error().has_value(), "nothing was said");
            node.wire->tell();
        });
}

/// A sender that names more than it has allocated is told so, and nothing reaches the receiver.
SCENARIO(beyond_its_allocation) {
    constexpr std::size_t kBytes = 300 * KiB;
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
        [](Node& node) {
            Memory source(node, Kind::device, kBytes);
            source.write(content_of(kBytes, 3));
            for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, 100 * KiB}) {
                try {
                    const auto send =
                        offer(*node.link, node.peer, source.data + offset, source.info, kBytes - offset + 1);
                    require(false, "it was shipped");
                } catch (const transport::BeyondAllocation& error) {
                    require(error.cause().find("leaves the allocation of 307200 bytes") != std::string::npos &&
                                error.cause().find("at byte " + std::to_string(offset)) != std::string::npos,
                            error.what());
                }
                const auto send = start_send(node, source, kBytes - offset, offset);
                require(send->rts_length() == rts_length(0), "the slot was not given back");
                send->withdraw();
            }
            send_message(node, {.bytes = kBytes}, 1);
        },
        [](Node& node) { receive_message(node, {.bytes = kBytes}, 1); });
}

// ---- memory that comes and goes -------------------------------------------------------------------------------------

/// Buffers that are freed and allocated again, at the same address more often than not, never show old bytes.
SCENARIO(freed_and_allocated_again) {
    constexpr unsigned kRounds = 60;
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
        [](Node& node) {
            std::vector<std::byte*> addresses;
            for (unsigned round = 0; round < kRounds; ++round) {
                const std::size_t bytes = (round % 3 + 1) * 100 * KiB;
                Memory source(node, Kind::device, bytes);
                source.write(content_of(bytes, round));
                addresses.push_back(source.data);
                const auto send = start_send(node, source, bytes);
                node.send_header(*send);
                wait_until_free(*send, "a message of memory that is freed");
                node.link->sends().retire(send);
            }
            std::sort(addresses.begin(), addresses.end());
            require(std::adjacent_find(addresses.begin(), addresses.end()) != addresses.end(),
                    "no address came twice: this test tests nothing");
        },
        [](Node& node) {
            Memory destination(node, Kind::device, 300 * KiB);
            for (unsigned round = 0; round < kRounds; ++round) {
                const std::size_t bytes = (round % 3 + 1) * 100 * KiB;
                finish(get(node, node.wire->receive(), destination, bytes), "memory that is freed");
                Bytes arrived = destination.read();
                arrived.resize(bytes);
                require(same(arrived, content_of(bytes, round)), "old bytes in round " + std::to_string(round));
            }
        });
}

/// Rings that nobody has needed for long go back to the system, and are made again.
SCENARIO(idle_rings) {
    constexpr std::size_t kRing = 4 * 64 * KiB;
    const auto backed_bytes = [](const Node& node) {
        struct stat status{};
        const auto files = descriptors_in(node.folder);
        require(!files.empty() && fstat(files.front(), &status) == 0, "no segment");
        return static_cast<std::size_t>(status.st_blocks) * 512;
    };
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::ring, kForEver)},
        [&](Node& node) {
            Memory source(node, Kind::device, 1 * MiB);
            for (unsigned number = 0; number < 3; ++number) {
                source.write(content_of(1 * MiB, number));
                const auto send = start_send(node, source, 1 * MiB);
                require_path(send->path(), Path::ring, "a message");
                const std::size_t before = backed_bytes(node);
                node.link->rings().trim_idle(Clock::now() + 1h);
                require(backed_bytes(node) == before, "a ring went that is in use");
                node.send_header(*send);
                wait_until_free(*send, "a message");
                node.wire->hear();
                node.link->sends().retire(send);
                node.link->sends().release_finished();
                // On a machine that is busy it may take a while until it is seen that the GPU is not.
                for (const auto limit = Clock::now() + 60s;
                     backed_bytes(node) != before - kRing && Clock::now() < limit;) {
                    node.link->rings().trim_idle(Clock::now() + 1h);
                }
                require(backed_bytes(node) == before - kRing, "the idle ring was kept");
                node.wire->tell();
            }
        },
        [](Node& node) {
            for (unsigned number = 0; number < 3; ++number) {
                receive_message(node, {.bytes = 1 * MiB, .path = Path::ring}, number);
                if (number == 1) {
                    node.link->rings().trim_idle(Clock::now() + 1h);
                }
                node.wire->tell();
                node.wire->hear();
            }
        });
}

// ---- who does not come ----------------------------------------------------------------------------------------------

/// A receiver that has begun and then stays away leaves the rest to its background thread.
SCENARIO(left_to_the_background) {
    const Link::Allowed path = arguments.at(1) == "ring" ? Link::Allowed::ring : Link::Allowed::all;
    const Message message{.bytes = 3 * MiB, .path = path == Link::Allowed::ring ? Path::ring : Path::direct};
    return between_two(
        arguments.at(0), {.options = options_of(path, kForEver)},
        [&](Node& node) {
            send_message(node, message, 1);
            node.wire->tell();
            // And the other way round: the sender is away once the RTS has left.
            Memory source(node, Kind::pool, message.bytes);
            source.write(content_of(message.bytes, 2));
            const auto send = start_send(node, source, message.bytes);
            node.send_header(*send);
            require(send->wants_background() || send->advance(transport::Patience::endless), "somebody has to go on");
            node.link->background().take(send);
            node.wire->hear();
            wait_until_free(*send, "a message that was sent in the background", transport::Patience::endless);
            node.link->sends().retire(send);
        },
        [&](Node& node) {
            Memory destination(node, Kind::device, message.bytes);
            const auto fetched = get(node, node.wire->receive(), destination, message.bytes);
            require(fetched != nullptr, "no such message");
            node.link->background().take(fetched);
            node.wire->hear();  // no call of ours until the sender says that it has its buffer back
            finish(fetched, "a message that was fetched in the background");
            require(same(destination.read(), content_of(message.bytes, 1)), "it is wrong");
            finish(get(node, node.wire->receive(), destination, message.bytes), "the other way round");
            require(same(destination.read(), content_of(message.bytes, 2)), "the other way round it is wrong");
            node.wire->tell();
        });
}

/// Rings whose receivers never come are emptied into shared memory, and are there for the next messages.
SCENARIO(ring_without_a_receiver) {
    constexpr std::size_t kBytes = 1 * MiB;
    constexpr unsigned kMessages = 6;  // more than there are rings
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::ring, 5ms)},
        [](Node& node) {
            Memory source(node, Kind::device, kBytes);
            std::vector<std::shared_ptr<RendezvousSend>> sends;
            for (unsigned number = 0; number < 2; ++number) {
                source.write(content_of(kBytes, number));
                sends.push_back(start_send(node, source, kBytes));
                require_path(sends.back()->path(), Path::ring, "a message through a ring");
                // The receiver does nothing before this side tells it to.
                wait_until_free(*sends.back(), "a ring without a receiver");
                require_path(sends.back()->path(), Path::copied, "a message that was copied out");
                source.fill(0xDD);
                node.send_header(*sends.back());
            }
            require(offer(*node.link, node.peer, source.data, source.info, kBytes) == nullptr,
                    "rings are in use until their messages are over");
            node.wire->tell();
            node.wire->hear();
            for (auto& send : sends) {
                node.link->sends().retire(std::move(send));
            }
            for (unsigned number = 2; number < kMessages; ++number) {
                source.write(content_of(kBytes, number));
                const auto send = start_send(node, source, kBytes);
                node.send_header(*send);
                wait_until_free(*send, "a ring that was used before");
                node.wire->hear();
                node.link->sends().retire(send);
            }
        },
        [](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            std::vector<Bytes> rts{node.wire->receive(), node.wire->receive()};
            node.wire->hear();
            for (unsigned number = 0; number < kMessages; ++number) {
                if (number == 2) {
                    node.wire->tell();
                }
                finish(get(node, number < 2 ? rts[number] : node.wire->receive(), destination, kBytes),
                       "a message through a ring");
                require(same(destination.read(), content_of(kBytes, number)), "it is wrong");
                if (number >= 2) {
                    node.wire->tell();
                }
            }
        });
}

/// From now on the process gets no more shared memory; what it has, it keeps. Files of the emulated driver's are
/// shorter than the limit, and the segment's offsets are beyond it.
struct rlimit take_shared_memory_away(Node& node) {
    constexpr std::size_t kLimit = 16 * MiB;
    const auto offset = node.segment->allocate(kLimit);
    require(offset.has_value(), "no shared memory");
    node.segment->release(*offset, kLimit);
    struct rlimit before{};
    require(getrlimit(RLIMIT_FSIZE, &before) == 0, "no limits");
    struct rlimit none = before;
    none.rlim_cur = kLimit;
    require(setrlimit(RLIMIT_FSIZE, &none) == 0, "no limits");
    return before;
}

/// No shared memory for a copy: the sender has its buffer back all the same, and the receiver finds the message.
SCENARIO(no_shared_memory_for_a_copy) {
    const Link::Allowed path = arguments.at(1) == "ring" ? Link::Allowed::ring : Link::Allowed::all;
    constexpr std::size_t kBytes = 1 * MiB + 5;
    Options options = options_of(path, 1ms);
    options.tuning.bounce_pool_bytes = 0;
    return between_two(
        arguments.at(0), {.options = options},
        [](Node& node) {
            Memory source(node, Kind::device, kBytes);
            source.write(content_of(kBytes, 7));
            auto send = start_send(node, source, kBytes);
            node.send_header(*send);
            const struct rlimit before = take_shared_memory_away(node);
            wait_until_free(*send, "a message whose receiver does not come");
            source.fill(0xDD);
            require(!send->is_over(), "nobody has fetched it");
            node.link->sends().leave(send);
            node.link->sends().retire(send);
            node.wire->tell();
            // No call of ours until the receiver has it.
            node.wire->hear();
            node.link->sends().release_finished();
            require(setrlimit(RLIMIT_FSIZE, &before) == 0, "no limits");
            source.write(content_of(kBytes, 8));
            send = start_send(node, source, kBytes);
            node.send_header(*send);
            wait_until_free(*send, "a message that memory is there for");
            require_path(send->path(), Path::copied, "a message that was copied out");
            source.fill(0xDD);
            node.link->sends().retire(send);
            node.wire->tell();
            node.wire->hear();
        },
        [](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            for (unsigned number = 7; number <= 8; ++number) {
                const Bytes rts = node.wire->receive();
                node.wire->hear();
                finish(get(node, rts, destination, kBytes), "a message that waited for its receiver");
                require(same(destination.read(), content_of(kBytes, number)), "it is wrong");
                node.wire->tell();
            }
        });
}

/// The receiver cannot read the message, and there is no more shared memory than what every offer has: all of it
/// passes through that.
SCENARIO(refused_without_shared_memory) {
    constexpr std::size_t kBytes = 1 * MiB + 5;
    const bool in_the_background = arguments.at(1) == "background";
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver), .receiver_faults = "ipc-open"},
        [&](Node& node) {
            Memory source(node, Kind::device, kBytes);
            source.write(content_of(kBytes, 9));
            const auto send = start_send(node, source, kBytes);
            static_cast<void>(take_shared_memory_away(node));
            node.send_header(*send);
            if (in_the_background) {
                node.link->sends().leave(send);
                node.wire->hear();
            }
            wait_until_free(*send, "a message that its receiver cannot read");
            require_path(send->path(), Path::ring, "a message that was refused");
            source.fill(0xDD);
            node.link->sends().retire(send);
            if (!in_the_background) {
                node.wire->hear();
            }
            node.link->finish_sends();
        },
        [](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            finish(get(node, node.wire->receive(), destination, kBytes), "a message that cannot be read");
            require(same(destination.read(), content_of(kBytes, 9)), "it is wrong");
            node.wire->tell();
        });
}

/// Without that little memory nothing is offered to a receiver that may refuse it: the message goes plain.
SCENARIO(nothing_is_offered_that_could_not_be_served) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
        [](Node& node) {
            Memory source(node, Kind::device, 100 * KiB);
            source.write(content_of(100 * KiB, 1));
            const struct rlimit before = take_shared_memory_away(node);
            require(offer(*node.link, node.peer, source.data, source.info, 100 * KiB) == nullptr, "it was offered");
            require(node.noted("no shared memory"), "nothing was said: " + node.notes());
            require(setrlimit(RLIMIT_FSIZE, &before) == 0, "no limits");
            send_message(node, {.bytes = 100 * KiB}, 1);  // memory is there again
        },
        [](Node& node) { receive_message(node, {.bytes = 100 * KiB}, 1); });
}

/// Who overwrites the slot of a message ends it with an error at both sides, whatever they were waiting for. Who
/// overwrites only the word by which the receiver may read ends it at the receiver, and the sender goes on.
SCENARIO(overwritten_slots) {
    const std::string& how = arguments.at(1);
    const bool refused = how.find("refused") != std::string::npos;
    const bool only_ready = how.find("ready") != std::string::npos;
    const int value = how.find("zeros") != std::string::npos ? 0 : 0xff;
    constexpr std::size_t kBytes = 300 * KiB;
    const auto must_fail = [](const auto& is_over, const std::string& who) {
        try {
            wait_until(is_over, who);
        } catch (const Error& error) {
            return std::string(error.what()).find("overwritten") != std::string::npos;
        }
        return false;
    };
    return between_two(
        arguments.at(0),
        {.options = options_of(Link::Allowed::all, kForEver), .receiver_faults = refused ? "ipc-open" : ""},
        [&](Node& node) {
            Memory source(node, Kind::device, kBytes);
            const auto send = start_send(node, source, kBytes);
            // Not ready: the receiver claims, or refuses, and waits.
            node.wire->send(send->rts(), send->rts_length());
            node.wire->hear();
            Slot& slot = slots_of(node, node.link->own()).slots[0];
            const auto advance = [&] { return send->advance(transport::Patience::short_); };
            if (only_ready) {
                std::memset(static_cast<void*>(&slot.ready), value, sizeof slot.ready);
                node.wire->tell();
                wait_until(advance, "the sender");
            } else {
                std::memset(static_cast<void*>(&slot.word), value, sizeof slot.word);
                require(must_fail(advance, "the sender"), "nothing was said at the sender");
                node.wire->tell();
            }
            node.wire->hear();
            node.link->sends().retire(send);
            node.link->finish_sends();
        },
        [&](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            const auto fetched = get(node, node.wire->receive(), destination, kBytes);
            require(fetched != nullptr && !fetched->advance(), "it waits for the sender");
            node.wire->tell();
            node.wire->hear();
            wait_until([&] { return fetched->advance(); }, "the receiver");
            require(fetched->error() && std::string(fetched->error()->what()).find("overwritten") != std::string::npos,
                    "nothing was said at the receiver");
            node.wire->tell();
        });
}

/// The receiver comes for the original, and cannot read it, while a copy is being made in memory that it cannot read
/// either.
SCENARIO(refused_while_it_is_copied) {
    constexpr std::size_t kBytes = 300 * KiB;
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, 0ns), .receiver_faults = "ipc-open"},
        [](Node& node) {
            Memory source(node, Kind::device, kBytes);
            source.write(content_of(kBytes, 9));
            const auto send = start_send(node, source, kBytes);
            // Copies within a device are late here, by far longer than what comes now takes.
            require(!send->advance(transport::Patience::short_), "there is no copy yet");
            node.send_header(*send);
            node.wire->hear();
            wait_until_free(*send, "a message that was refused while it was copied");
            source.fill(0xDD);
            node.link->sends().retire(send);
            node.wire->hear();
        },
        [](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            const auto fetched = get(node, node.wire->receive(), destination, kBytes);
            require(fetched != nullptr && !fetched->advance(), "it waits for a copy");
            node.wire->tell();
            finish(fetched, "a message that was refused while it was copied");
            require(same(destination.read(), content_of(kBytes, 9)), "it is wrong");
            node.wire->tell();
        });
}

/// A message that was fetched while it was being copied out, and given back, of which somebody (the background) still
/// holds the rendezvous send and looks at it once more: its slot is the next message's by then.
SCENARIO(looked_at_after_it_was_given_back) {
    constexpr std::size_t kFirst = 300 * KiB, kSecond = 1 * MiB;
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, 0ns)},
        [](Node& node) {
            Memory first_source(node, Kind::device, kFirst), second_source(node, Kind::device, kSecond);
            first_source.write(content_of(kFirst, 3));
            second_source.write(content_of(kSecond, 4));
            const auto first = start_send(node, first_source, kFirst);
            // Copies within a device are late here, by far longer than the receiver takes.
            require(!first->advance(transport::Patience::short_), "the copy is begun");
            node.send_header(*first);
            wait_until([&] { return first->is_over(); }, "the receiver of the first message");
            node.link->sends().retire(first);

            const auto second = start_send(node, second_source, kSecond);
            node.send_header(*second);
            require(first->rts_length() == second->rts_length(), "they have the same slot");
            wait_until_free(*second, "a message whose receiver does not come");
            require(first->advance(transport::Patience::endless), "there is nothing more to do for the first message");
            second_source.fill(0xDD);
            node.wire->tell();
            node.wire->hear();
            node.link->sends().retire(second);
        },
        [](Node& node) {
            Memory destination(node, Kind::device, kSecond);
            const auto first = get(node, node.wire->receive(), destination, kFirst);
            require(first != nullptr, "the first message cannot be fetched");
            finish(first, "the first message");
            const Bytes rts = node.wire->receive();
            node.wire->hear();
            const auto second = get(node, rts, destination, kSecond);
            require(second != nullptr, "the second message cannot be fetched");
            finish(second, "the second message");
            require(same(destination.read(), content_of(kSecond, 4)), "it is wrong");
            node.wire->tell();
        });
}

/// A receiver that lost the descriptor of the shared memory: it gets an error, and the sender does not wait for it.
SCENARIO(shared_memory_that_cannot_be_mapped) {
    const std::size_t bytes = arguments.at(1) == "ring" ? 1 * MiB : arguments.at(1) == "fitting" ? 100 * KiB : 100;
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::ring, kForEver)},
        [&](Node& node) {
            node.wire->hear();
            Memory source(node, Kind::device, bytes);
            const auto send = start_send(node, source, bytes);
            node.send_header(*send);
            try {
                wait_until_free(*send, "a message that cannot be received");
            } catch (const Error& error) {
                // Just as well: the other side's error is this one's too.
                require(std::string(error.what()).find("gave it up") != std::string::npos, error.what());
            }
            node.wire->hear();
            node.link->sends().retire(send);
        },
        [&](Node& node) {
            Memory destination(node, Kind::device, bytes);
            for (const int file : descriptors_in(node.folder)) {
                close(file);
            }
            node.wire->tell();
            const auto fetched = get(node, node.wire->receive(), destination, bytes);
            require(fetched != nullptr, "no such message");
            wait_until([&] { return fetched->advance(); }, "a message that cannot be received");
            require(fetched->error().has_value(), "it was received though it cannot be");
            node.wire->tell();
        });
}

// ---- who is killed --------------------------------------------------------------------------------------------------

/// Until the other process has ended: then nothing else comes over the wire.
void wait_for_its_end(Node& node) {
    try {
        static_cast<void>(node.wire->receive());
    } catch (const Error&) {
        return;
    }
    throw Error("the other process still speaks", "this test cannot go on");
}

template <typename Waiting>
void require_its_death_is_told(const Waiting& is_over, const std::string& what) {
    try {
        wait_until(is_over, what);
    } catch (const Error& error) {
        require(std::string(error.what()).find("ended while") != std::string::npos, error.what());
        return;
    }
    throw Error(what + ": nothing was said", "a receiver that is dead has fetched nothing");
}

SCENARIO(receiver_is_killed) {
    const bool through_ring = arguments.at(1) == "ring";
    const bool before_it_claims = arguments.at(1) == "early";
    constexpr std::size_t kBytes = 1 * MiB;
    return between_two(
        arguments.at(0),
        {.options = options_of(through_ring ? Link::Allowed::ring : Link::Allowed::all,
                               before_it_claims ? std::chrono::nanoseconds(5ms) : kForEver),
         .receiver_dies = true,
         .any_dies = true},
        [&](Node& node) {
            Memory source(node, Kind::device, kBytes);
            const auto send = start_send(node, source, kBytes);
            node.send_header(*send);
            wait_for_its_end(node);
            if (before_it_claims) {
                // A receiver that never comes, like any other: nobody can tell yet that it is not only late.
                wait_until_free(*send, "a message whose receiver is dead");
            } else {
                require_its_death_is_told([&] { return send->advance(transport::Patience::short_); },
                                          "a dead receiver");
                // Asked again it says the same.
                require_its_death_is_told([&] { return send->advance(transport::Patience::long_); }, "a dead receiver");
                require(send->pump(), "there is nothing left to be done for it");
            }
            node.link->sends().retire(send);
            node.link->finish_sends();
        },
        [&](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            const Bytes rts = node.wire->receive();
            if (!before_it_claims) {
                const auto fetched = get(node, rts, destination, kBytes);
                // Some of what the sender can put into the ring by itself.
                if (through_ring) {
                    static_cast<void>(fetched->advance());
                }
                raise(SIGKILL);
            }
            raise(SIGKILL);
        });
}

SCENARIO(sender_is_killed) {
    const std::string& when = arguments.at(1);
    constexpr std::size_t kBytes = 1 * MiB;
    return between_two(
        arguments.at(0),
        {.options = options_of(when == "ring" ? Link::Allowed::ring : Link::Allowed::all, kForEver),
         .receiver_faults = when == "refused" ? "ipc-open" : "",
         .any_dies = true},
        [&](Node& node) {
            Memory source(node, when == "copying" ? Kind::pool : Kind::device, kBytes);
            const auto send = start_send(node, source, kBytes);
            if (when == "unsettled") {
                node.wire->send(send->rts(), send->rts_length());
            } else {
                node.send_header(*send);
            }
            node.wire->hear();
            if (when == "ring") {
                static_cast<void>(send->advance(transport::Patience::endless));
            }
            raise(SIGKILL);
        },
        [&](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            const auto fetched = get(node, node.wire->receive(), destination, kBytes);
            require(fetched != nullptr, "no such message");
            static_cast<void>(fetched->advance());
            node.wire->tell();
            wait_for_its_end(node);
            wait_until([&] { return fetched->advance(); }, "a message whose sender is dead");
            require(fetched->error().has_value(), "it arrived though nobody can have sent it");
            require(std::string(fetched->error()->what()).find("ended while") != std::string::npos,
                    fetched->error()->what());
        });
}

// ---- the end --------------------------------------------------------------------------------------------------------

/// Both end while there is something unfinished of every kind, and neither waits for the other.
SCENARIO(shut_down_unfinished) {
    constexpr std::size_t kBytes = 1 * MiB;
    const auto end = [](Node& node) {
        node.link->shut_down();
        node.link->shut_down();
        meet(*node.wire);  // both live until both are through
    };
    return between_two(
        arguments.at(0),
        {.options = options_of(arguments.at(1) == "ring" ? Link::Allowed::ring : Link::Allowed::all, kForEver)},
        [&](Node& node) {
            Memory source(node, Kind::device, kBytes), pool(node, Kind::pool, kBytes);
            std::vector<std::shared_ptr<RendezvousSend>> sends;
            // One that was begun by the receiver, one that was not, one that nobody asks about any more.
            sends.push_back(start_send(node, source, kBytes));
            sends.push_back(start_send(node, pool, kBytes));
            sends.push_back(start_send(node, source, 100));
            sends.push_back(start_send(node, pool, 100));
            for (const auto& send : sends) {
                node.send_header(*send);
                node.link->background().take(send);
            }
            node.link->sends().retire(sends[3]);
            node.wire->hear();
            end(node);
            sends.clear();
        },
        [&](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            std::vector<Bytes> rts;
            while (rts.size() < 4) {
                rts.push_back(node.wire->receive());
            }
            const auto fetched = get(node, rts[0], destination, kBytes);
            const auto other = get(node, rts[2], destination, 100);
            require(fetched != nullptr && other != nullptr, "no such message");
            node.wire->tell();
            end(node);
        });
}

/// A copy in shared memory outlives its sender's link.
SCENARIO(fetched_after_the_senders_end) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::ring, 0ns)},
        [](Node& node) {
            std::vector<std::shared_ptr<RendezvousSend>> sends;
            for (const std::size_t bytes : {std::size_t{100}, 1 * MiB}) {
                Memory source(node, Kind::device, bytes);
                source.write(content_of(bytes, 11));
                sends.push_back(start_send(node, source, bytes));
                node.send_header(*sends.back());
                wait_until_free(*sends.back(), "a message whose receiver comes too late");
            }
            node.link->sends().retire(sends.back());
            sends.clear();
            node.end();
            node.wire->tell();
            node.wire->hear();
        },
        [](Node& node) {
            const std::vector<Bytes> both{node.wire->receive(), node.wire->receive()};
            node.wire->hear();
            std::size_t bytes = 100;
            for (const Bytes& rts : both) {
                Memory destination(node, Kind::device, bytes);
                finish(get(node, rts, destination, bytes), "a message of a sender that has ended");
                require(same(destination.read(), content_of(bytes, 11)), "it is wrong");
                bytes = 1 * MiB;
            }
            node.wire->tell();
        });
}

/// A receive that its sender does nothing for any more does not keep the receiver from ending.
SCENARIO(shut_down_while_fetching) {
    constexpr std::size_t kBytes = 1 * MiB;
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::ring, kForEver)},
        [&](Node& node) {
            Memory source(node, Kind::device, kBytes);
            const auto send = start_send(node, source, kBytes);
            node.send_header(*send);
            node.wire->hear();  // and does nothing for it meanwhile
            // What the receiver has given up does not keep this one waiting either.
            try {
                wait_until_free(*send, "a message that was given up", transport::Patience::short_);
            } catch (const Error& error) {
                require(std::string(error.what()).find("gave it up") != std::string::npos, error.what());
            }
            node.wire->tell();
            node.link->sends().retire(send);
        },
        [&](Node& node) {
            Memory destination(node, Kind::device, kBytes);
            const auto fetched = get(node, node.wire->receive(), destination, kBytes);
            require(fetched != nullptr, "no such message");
            node.link->background().take(fetched);
            node.link->shut_down();  // the sender does nothing before it hears from this side
            require(fetched->advance() && fetched->error(), "the receive has not failed");
            node.wire->tell();
            node.wire->hear();
        });
}

// ---- the tests ------------------------------------------------------------------------------------------------------

class LinkFaultsTest : public LinkTest {};

TEST_P(LinkFaultsTest, MoreMessagesThanSlotsAreSentPlainUntilThereAreSlotsAgain) {
    run("more_than_there_are_slots");
}
TEST_P(LinkFaultsTest, WhatWasWithdrawnCannotBeFetched) {
    run("withdrawn");
}
TEST_P(LinkFaultsTest, ForgedHeadersStandForNothing) {
    run("forged_headers");
}
TEST_P(LinkFaultsTest, CorruptedSlotsAreRefusedAndLetTheSenderGo) {
    run("corrupted_slots");
}
TEST_P(LinkFaultsTest, ACopyIsNeverReadFromAnAddressThatTheSenderChose) {
    run("corrupted_spill");
}
TEST_P(LinkFaultsTest, ACopyThatTheSenderLostIsAnError) {
    run("lost_copy");
}
TEST_P(LinkFaultsTest, AGpuThatFailsEndsTheMessageOnBothSides) {
    for (const char* const where : {"sender", "receiver", "pull"}) {
        run("failing_copies", where);
    }
}
TEST_P(LinkFaultsTest, ABufferThatLeavesItsAllocationIsNamedAtTheSender) {
    run("beyond_its_allocation");
}
TEST_P(LinkFaultsTest, IdleRingsAreGivenBackAndMadeAgain) {
    run("idle_rings");
}
TEST_P(LinkFaultsTest, FreedMemoryNeverShowsOldBytes) {
    run("freed_and_allocated_again");
}
TEST_P(LinkFaultsTest, TheBackgroundGoesOnWhileTheProgramIsAway) {
    for (const char* const path : {"pull", "ring"}) {
        run("left_to_the_background", path);
    }
}
TEST_P(LinkFaultsTest, ARingWithoutAReceiverIsCopiedOut) {
    run("ring_without_a_receiver");
}
TEST_P(LinkFaultsTest, WithoutSharedMemoryForACopyTheSenderHasItsBufferBackAllTheSame) {
    for (const char* const path : {"pull", "ring"}) {
        run("no_shared_memory_for_a_copy", path);
    }
}
TEST_P(LinkFaultsTest, ARefusalIsAnsweredWithoutMoreSharedMemory) {
    for (const char* const where : {"call", "background"}) {
        run("refused_without_shared_memory", where);
    }
}
TEST_P(LinkFaultsTest, WhatCouldNotBeServedIsNotOffered) {
    run("nothing_is_offered_that_could_not_be_served");
}
TEST_P(LinkFaultsTest, AnOverwrittenSlotEndsTheMessageOnBothSides) {
    for (const char* const how : {"claimed, zeros", "claimed, ones", "refused, zeros", "refused, ones",
                                  "only ready, zeros", "only ready, ones"}) {
        run("overwritten_slots", how);
    }
}
TEST_P(LinkFaultsTest, ARefusalThatMeetsACopyOnItsWayLosesNothing) {
    run("refused_while_it_is_copied", {}, "300000");
}
TEST_P(LinkFaultsTest, ASlotThatWasGivenBackIsLetAlone) {
    run("looked_at_after_it_was_given_back", {}, "300000");
}
TEST_P(LinkFaultsTest, SharedMemoryThatCannotBeMappedIsAnErrorAndNoWait) {
    for (const char* const size : {"small", "fitting", "ring"}) {
        run("shared_memory_that_cannot_be_mapped", size);
    }
}
TEST_P(LinkFaultsTest, ADeadReceiverIsNoticed) {
    for (const char* const when : {"early", "pull", "ring"}) {
        run("receiver_is_killed", when);
    }
}
TEST_P(LinkFaultsTest, ADeadSenderIsNoticed) {
    for (const char* const when : {"refused", "ring", "unsettled"}) {
        run("sender_is_killed", when);
    }
    run("sender_is_killed", "copying", "300000");
}
TEST_P(LinkFaultsTest, TheEndDoesNotWaitForWhatIsUnfinished) {
    for (const char* const path : {"pull", "ring"}) {
        run("shut_down_unfinished", path);
    }
}
TEST_P(LinkFaultsTest, WhatWasCopiedOutOutlivesTheSendersLink) {
    run("fetched_after_the_senders_end");
}
TEST_P(LinkFaultsTest, TheEndDoesNotWaitForASender) {
    run("shut_down_while_fetching");
}

INSTANTIATE_TEST_SUITE_P(Forms, LinkFaultsTest, ::testing::Values("cuda", "hip"),
                         [](const auto& form) { return std::string(form.param); });

}  // namespace
}  // namespace awaken::ipc
