// SPDX-License-Identifier: Apache-2.0
// Whole messages between two processes of a node, as CUDA and as HIP: every way that a message can go, with receivers
// that come in time, late, or have too little room.
#include <dlfcn.h>

#include "ipc_link_support.h"

namespace awaken::ipc {
namespace {

using namespace link_test;

int exchange(const std::string& vendor, const Parts& parts, const std::vector<Message>& messages) {
    return between_two(
        vendor, parts,
        [&](Node& node) {
            for (unsigned number = 0; number < messages.size(); ++number) {
                send_message(node, messages[number], number);
            }
            node.wire->hear();  // everything was fetched
            node.link->finish_sends();
        },
        [&](Node& node) {
            for (unsigned number = 0; number < messages.size(); ++number) {
                receive_message(node, messages[number], number);
            }
            node.wire->tell();
        });
}

/// The same message with all sizes, at several places and to all kinds of memory. Up to `small` by another route.
std::vector<Message> all_sizes(const Message& like, const std::optional<Path> small_route) {
    constexpr std::size_t kSmall = 4 * KiB;
    std::vector<Message> messages;
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{65}, kSmall - 1, kSmall, kSmall + 1, 300 * KiB, 3 * MiB + 5}) {
        for (const std::size_t offset : {std::size_t{0}, std::size_t{513}}) {
            Message message = like;
            message.bytes = bytes;
            message.offset = offset;
            message.path = bytes <= kSmall ? small_route : like.path;
            messages.push_back(message);
        }
    }
    for (const std::size_t bytes : {kSmall / 2, 700 * KiB + 1}) {
        for (const Kind to : {Kind::device, Kind::host, Kind::pinned, Kind::managed, Kind::pool}) {
            Message message = like;
            message.bytes = bytes;
            message.to = to;
            message.path = bytes <= kSmall ? small_route : like.path;
            messages.push_back(message);
        }
        // What does not fit is left out, and the sender is let go all the same.
        for (const std::size_t capacity : {std::size_t{0}, std::size_t{1}, bytes / 2, bytes - 1}) {
            for (const Kind to : {Kind::device, Kind::host}) {
                Message message = like;
                message.bytes = bytes;
                message.to = to;
                message.capacity = capacity;
                message.path = bytes <= kSmall ? small_route : like.path;
                messages.push_back(message);
            }
        }
    }
    return messages;
}

// ---- every route ----------------------------------------------------------------------------------------------------

SCENARIO(pulled) {
    Message like;
    like.path = Path::direct;
    return exchange(arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
                    all_sizes(like, Path::direct));
}

SCENARIO(receiver_is_late) {
    Message like;
    like.path = Path::copied;
    like.late = true;
    return exchange(arguments.at(0), {.options = options_of(Link::Allowed::all, 0ns)}, all_sizes(like, Path::copied));
}

/// Of two messages that nobody receives, the large one is copied out much later.
SCENARIO(large_is_waited_for) {
    const Folder folder;
    return run_part("process", folder.path, [&] {
        constexpr std::size_t kLarge = std::size_t{256} << 20;
        Node node(arguments.at(0), folder.path, 0, nullptr, options_of(Link::Allowed::all, 1s));
        const Memory large_source(node, Kind::device, kLarge), small_source(node, Kind::device, 700 * KiB);
        const auto large = start_send(node, large_source, kLarge);
        const auto small = start_send(node, small_source, 700 * KiB);
        large->wait_until_ready();
        small->wait_until_ready();
        require(!large->advance(transport::Patience::short_), "the large message is copied at once");
        wait_until_free(*small, "the small message");
        require(!large->advance(transport::Patience::short_), "the large message is copied as soon as the small one");
        large->withdraw();
        node.link->sends().retire(large);
        node.link->sends().retire(small);
    });
}

SCENARIO(not_exportable) {
    // Copies wait in device memory only for receivers that are known to be able to read it.
    std::vector<Message> messages{{.bytes = 700 * KiB, .path = Path::ring, .from = Kind::managed}};
    for (const Kind from : {Kind::managed, Kind::pool}) {
        Message like;
        like.from = from;
        like.path = Path::copied;
        const auto more = all_sizes(like, Path::copied);
        messages.insert(messages.end(), more.begin(), more.end());
    }
    return exchange(arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)}, messages);
}

SCENARIO(ringed) {
    std::vector<Message> messages;
    for (const Kind from : {Kind::device, Kind::managed, Kind::pool}) {
        Message like;
        like.from = from;
        like.path = Path::ring;
        const auto more = all_sizes(like, Path::copied);
        messages.insert(messages.end(), more.begin(), more.end());
    }
    return exchange(arguments.at(0), {.options = options_of(Link::Allowed::ring, kForEver)}, messages);
}

/// Shared memory that a GPU runtime does not take into account is reached through pinned memory.
SCENARIO(ringed_unregistered) {
    Message like;
    like.path = Path::ring;
    return exchange(arguments.at(0),
                    {.options = options_of(Link::Allowed::ring, kForEver),
                     .sender_faults = arguments.at(1) == "receiver" ? "" : "register",
                     .receiver_faults = arguments.at(1) == "sender" ? "" : "register"},
                    all_sizes(like, Path::copied));
}

SCENARIO(ringed_receiver_is_late) {
    Message like;
    like.path = Path::copied;
    like.late = true;
    std::vector<Message> messages = all_sizes(like, Path::copied);
    // What fits into the ring as a whole may have left its buffer without anybody's help.
    for (Message& message : messages) {
        if (message.bytes > 4 * KiB && message.bytes <= 256 * KiB) {
            message.path = std::nullopt;
        }
    }
    return exchange(arguments.at(0), {.options = options_of(Link::Allowed::ring, 0ns)}, messages);
}

/// The receiver cannot open what the sender exports: the first message is offered once more through shared memory, the
/// later ones go there by themselves.
int refused(const std::string& vendor, const std::string& fault, const std::size_t first_bytes,
            const Path first_route) {
    std::vector<Message> messages{{.bytes = first_bytes, .path = first_route}};
    Message like;
    like.path = Path::ring;
    const auto more = all_sizes(like, Path::copied);
    messages.insert(messages.end(), more.begin(), more.end());
    return exchange(vendor, {.options = options_of(Link::Allowed::all, kForEver), .receiver_faults = fault}, messages);
}

/// Offers from host memory, `expected` for those that are not small.
std::vector<Message> from_host(const Kind from, const Path expected) {
    // The first message makes the receiver find out what it can read.
    std::vector<Message> messages{{.bytes = 700 * KiB, .path = Path::ring, .from = from}};
    Message like;
    like.from = from;
    like.path = expected;
    const auto more = all_sizes(like, Path::copied);
    messages.insert(messages.end(), more.begin(), more.end());
    return messages;
}

int exchange_from_host(const std::string& vendor, const Parts& parts, const std::vector<Message>& messages) {
    return between_two(
        vendor, parts,
        [&](Node& node) {
            require(node.gpu.make_current(node.device), "the sender's GPU");
            for (unsigned number = 0; number < messages.size(); ++number) {
                send_message(node, messages[number], number);
            }
            node.wire->hear();
            node.link->finish_sends();
        },
        [&](Node& node) {
            for (unsigned number = 0; number < messages.size(); ++number) {
                receive_message(node, messages[number], number);
            }
            node.wire->tell();
        });
}

SCENARIO(from_ordinary_memory) {
    Options options = options_of(Link::Allowed::all, kForEver);
    options.tuning.rings = 64;  // one is always free: else the GPU copies
    return exchange_from_host(arguments.at(0), {.options = options}, from_host(Kind::host, Path::ring));
}

SCENARIO(from_pinned_memory) {
    return exchange_from_host(arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
                              from_host(Kind::pinned, Path::copied));
}

/// Without a ring, the GPU copies ordinary memory, too, and tells how far it is.
SCENARIO(from_host_without_ring) {
    auto messages = from_host(Kind::host, Path::copied);
    messages.front() = {.bytes = 700 * KiB};  // of the GPU's, which goes directly
    return exchange_from_host(arguments.at(0), {.options = options_of(Link::Allowed::direct, kForEver)}, messages);
}

SCENARIO(from_host_without_ipc) {
    return exchange_from_host(arguments.at(0),
                              {.options = options_of(Link::Allowed::all, kForEver), .receiver_faults = "ipc-open"},
                              from_host(Kind::pinned, Path::ring));
}

SCENARIO(from_host_receiver_is_late) {
    std::vector<Message> messages;
    for (const Kind from : {Kind::host, Kind::pinned}) {
        for (Message message : from_host(from, Path::copied)) {
            message.late = true;
            message.path =
                message.bytes > 256 * KiB || message.bytes <= 4 * KiB ? std::optional(Path::copied) : std::nullopt;
            messages.push_back(message);
        }
    }
    return exchange_from_host(arguments.at(0), {.options = options_of(Link::Allowed::all, 0ns)}, messages);
}

/// The receiver says what it does with large messages, and a thread without a GPU is not given one.
SCENARIO(host_offers_are_wanted) {
    Options options = options_of(Link::Allowed::all, kForEver);
    options.tuning.host_offer_bytes = 64 * KiB;
    const bool cuda = arguments.at(0) == "cuda";
    return between_two(
        arguments.at(0), {.options = options},
        [&](Node& node) {
            const auto wants = [&](const std::int64_t bytes) {
                return node.link->reachability().wants_from_host(node.peer, bytes);
            };
            require(!wants(64 * KiB), "it was not asked for");
            meet(*node.wire);
            meet(*node.wire);  // a short one came
            require(!wants(64 * KiB), "short messages are no matter");
            meet(*node.wire);
            meet(*node.wire);  // a long one came
            require(wants(64 * KiB) && !wants(64 * KiB - 1), "it is wanted");
            Memory source(node, Kind::host, 100 * KiB);
            const auto without = offer(*node.link, node.peer, source.data, source.info, 100 * KiB);
            require((without == nullptr) == cuda, "a thread without a context");
            if (without != nullptr) {
                without->withdraw();
            }
            meet(*node.wire);
            meet(*node.wire);  // one came into host memory
            require(!wants(64 * KiB), "it is not wanted any more");
        },
        [&](Node& node) {
            const auto came = [&](const std::int64_t bytes, const bool to_device) {
                meet(*node.wire);
                node.link->reachability().received_from_host(node.peer, bytes, to_device);
                meet(*node.wire);
            };
            came(64 * KiB - 1, true);
            came(64 * KiB, true);
            came(64 * KiB, false);
        });
}

SCENARIO(refused_small) {
    return refused(arguments.at(0), arguments.at(1), 3000, Path::copied);
}

SCENARIO(refused_large) {
    return refused(arguments.at(0), arguments.at(1), 700 * KiB, Path::ring);
}

/// The sender cannot export anything.
SCENARIO(not_exporting) {
    Message like;
    like.path = Path::ring;
    return exchange(arguments.at(0),
                    {.options = options_of(Link::Allowed::all, kForEver), .sender_faults = "ipc-export"},
                    all_sizes(like, Path::copied));
}

/// Small messages that the CPU copies itself, with a stand-in for GDRCopy's library.
SCENARIO(by_cpu) {
    if (dlopen(AWAKEN_FAKE_GDRAPI, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    Options options = options_of(Link::Allowed::all, kForEver);
    options.cpu_copy = true;
    options.tuning.small_bytes = 8 * KiB;
    return between_two(
        arguments.at(0), {.options = options},
        [](Node& node) {
            require(node.link->cpu_window().usable(), node.link->cpu_window().description());
            unsigned number = 0;
            for (const std::size_t bytes : {std::size_t{1}, 4 * KiB - 1, 4 * KiB}) {
                Memory source(node, Kind::device, 2 * bytes);
                for (const std::size_t offset : {std::size_t{0}, bytes}) {
                    source.write(content_of(2 * bytes, ++number));
                    const auto send = start_send(node, source, bytes, offset);
                    require_path(send->path(), Path::copied, "a small message");
                    require(send->advance(transport::Patience::endless), "its buffer is not free at once");
                    source.fill(0xDD);
                    node.send_header(*send);
                    node.link->sends().retire(send);
                }
            }
            // Not for longer ones, and not for memory that the CPU does not reach.
            send_message(node, {.bytes = 4 * KiB + 1}, 1);
            send_message(node, {.bytes = 100, .path = Path::copied, .from = Kind::managed}, 2);
            node.wire->hear();
        },
        [](Node& node) {
            unsigned number = 0;
            for (const std::size_t bytes : {std::size_t{1}, 4 * KiB - 1, 4 * KiB}) {
                for (const std::size_t offset : {std::size_t{0}, bytes}) {
                    Memory destination(node, Kind::device, bytes + 8);
                    destination.fill(0xEE);
                    const auto fetched = get(node, node.wire->receive(), destination, bytes);
                    finish(fetched, "a small message");
                    require_path(fetched->path(), Path::copied, "the fetch of a small message");
                    const Bytes sent = content_of(2 * bytes, ++number);
                    Bytes expected(bytes + 8, std::byte{0xEE});
                    std::copy_n(sent.begin() + static_cast<std::ptrdiff_t>(offset), bytes, expected.begin());
                    require(same(destination.read(), expected), "a small message is wrong");
                }
            }
            receive_message(node, {.bytes = 4 * KiB + 1}, 1);
            receive_message(node, {.bytes = 100, .path = std::nullopt, .from = Kind::managed}, 2);
            node.wire->tell();
        });
}

/// Host messages whose length is an RTS's travel as RTS messages themselves.
SCENARIO(wrapped) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
        [](Node& node) {
            for (std::size_t bytes = kShortestRts; bytes <= kLongestRts; bytes += 2) {
                Bytes content = content_of(bytes, static_cast<unsigned>(bytes));
                const auto send = wrap(node, content.data(), bytes);
                require(send != nullptr, "nothing was wrapped");
                std::fill(content.begin(), content.end(), std::byte{0xDD});
                require(send->advance(transport::Patience::endless), "the buffer is not free at once");
                require_path(send->path(), Path::copied, "a wrapped message");
                node.send_header(*send);
                node.link->sends().retire(send);
            }
            const Bytes too_long(4 * KiB + 1);
            require(wrap(node, too_long.data(), too_long.size()) == nullptr, "it has no room for that");
            node.wire->hear();
            node.link->finish_sends();
        },
        [](Node& node) {
            Memory host(node, Kind::host, kLongestRts), device(node, Kind::device, kLongestRts);
            for (std::size_t bytes = kShortestRts; bytes <= kLongestRts; bytes += 2) {
                const Bytes rts = node.wire->receive();
                require(node.link->size_of(node.peer, rts.size()).bytes == bytes, "a probe sees another size");
                Memory& destination = bytes % 4 == 1 ? host : device;
                finish(get(node, rts, destination, bytes), "a wrapped message");
                Bytes arrived = destination.read();
                arrived.resize(bytes);
                require(same(arrived, content_of(bytes, static_cast<unsigned>(bytes))), "a wrapped message is wrong");
            }
            node.wire->tell();
        });
}

/// Messages of a process to itself.
SCENARIO(to_itself) {
    const Folder folder;
    return run_part("process", folder.path, [&] {
        Node node(arguments.at(0), folder.path, 0, nullptr, options_of(Link::Allowed::all, 0ns));
        for (const bool late : {false, true}) {
            for (const Kind from : {Kind::device, Kind::managed, Kind::pool}) {
                for (const Kind to : {Kind::device, Kind::host, Kind::managed}) {
                    for (const std::size_t bytes : {std::size_t{1}, 4 * KiB, 4 * KiB + 1, 700 * KiB}) {
                        const Message message{.bytes = bytes, .from = from, .to = to, .late = late};
                        const std::string name = name_of(message) + " to itself";
                        const Bytes content = content_of(bytes, 1);
                        Memory source(node, from, bytes), destination(node, to, bytes);
                        source.write(content);
                        const auto send = start_send(node, source, bytes);
                        const Bytes rts(send->rts(), send->rts() + send->rts_length());
                        require(node.link->size_of(node.peer, rts.size()).bytes == bytes, name + ": a probe's size");
                        send->wait_until_ready();
                        if (late) {
                            wait_until_free(*send, name);
                            source.fill(0xDD);
                        }
                        finish(get(node, rts, destination, bytes), name);
                        wait_until_free(*send, name, transport::Patience::endless);
                        require(same(destination.read(), content), name + ": wrong bytes");
                        node.link->sends().retire(send);
                    }
                }
            }
        }
        const Bytes content = content_of(77, 2);
        const auto send = wrap(node, content.data(), content.size());
        require(send != nullptr, "nothing was wrapped");
        Memory destination(node, Kind::host, content.size());
        finish(get(node, Bytes(send->rts(), send->rts() + send->rts_length()), destination, 77),
               "a wrapped message to itself");
        require(same(destination.read(), content), "a wrapped message to itself is wrong");
        node.link->sends().retire(send);
        require(node.notes().empty(), "something was not as it should be: " + node.notes());
        node.link->finish_sends();
    });
}

/// A send that may not rely on its buffer afterwards, nor on anybody's help.
SCENARIO(detached) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
        [](Node& node) {
            Memory any(node, Kind::device, 100);
            require(
                offer(*node.link, node.peer, any.data, any.info, 100, protocol::SendFacts::Mode::detached) == nullptr,
                "nobody knows yet whether the receiver could read it");
            send_message(node, {.bytes = 100}, 1);
            for (const std::size_t bytes : {std::size_t{100}, 700 * KiB}) {
                Memory source(node, Kind::device, bytes);
                source.write(content_of(bytes, 3));
                const auto send =
                    offer(*node.link, node.peer, source.data, source.info, bytes, protocol::SendFacts::Mode::detached);
                require(send != nullptr, "nothing was shipped");
                wait_until_free(*send, "a detached send", transport::Patience::endless);
                source.fill(0xDD);
                node.send_header(*send);
                node.link->sends().retire(send);
            }
            Memory own(node, Kind::device, 100);
            require(offer(*node.link, node.link->own(), own.data, own.info, 100, protocol::SendFacts::Mode::detached) ==
                        nullptr,
                    "there is no copy for oneself that would gain anything");
            node.wire->hear();
        },
        [](Node& node) {
            receive_message(node, {.bytes = 100}, 1);
            for (const std::size_t bytes : {std::size_t{100}, 700 * KiB}) {
                Memory destination(node, Kind::device, bytes);
                finish(get(node, node.wire->receive(), destination, bytes), "a detached send");
                require(same(destination.read(), content_of(bytes, 3)), "a detached send is wrong");
            }
            node.wire->tell();
        });
}

/// The receiver does not look at the sender's memory before the sender says that it may.
SCENARIO(read_when_settled) {
    return between_two(
        arguments.at(0), {.options = options_of(Link::Allowed::all, kForEver)},
        [](Node& node) {
            for (const std::size_t bytes : {std::size_t{100}, 700 * KiB}) {
                Memory source(node, Kind::device, bytes);
                source.fill(0xDD);
                const auto send = start_send(node, source, bytes);
                node.wire->send(send->rts(), send->rts_length());
                node.wire->hear();
                source.write(content_of(bytes, 13));
                send->wait_until_ready();
                wait_until_free(*send, "a message that was settled");
                node.link->sends().retire(send);
            }
        },
        [](Node& node) {
            for (const std::size_t bytes : {std::size_t{100}, 700 * KiB}) {
                Memory destination(node, Kind::device, bytes);
                const auto fetched = get(node, node.wire->receive(), destination, bytes);
                require(fetched != nullptr, "no such message");
                for (int i = 0; i < 1000; ++i) {
                    require(!fetched->advance(), "it was read too early");
                }
                node.wire->tell();
                finish(fetched, "a message that was settled");
                require(same(destination.read(), content_of(bytes, 13)), "it is wrong");
            }
        });
}

// ---- the tests ------------------------------------------------------------------------------------------------------

class LinkRoutesTest : public LinkTest {};

TEST_P(LinkRoutesTest, TheReceiverReadsTheSendersMemory) {
    run("pulled");
}
TEST_P(LinkRoutesTest, TheReceiverWaitsUntilItMayRead) {
    run("read_when_settled");
}
TEST_P(LinkRoutesTest, AMessageIsCopiedForAReceiverThatIsLate) {
    run("receiver_is_late");
}
TEST_P(LinkRoutesTest, ALargeMessageIsWaitedForLonger) {
    run("large_is_waited_for");
}
TEST_P(LinkRoutesTest, MemoryThatIpcCannotExportIsCopied) {
    run("not_exportable");
}
TEST_P(LinkRoutesTest, MessagesGoThroughARing) {
    run("ringed");
}
TEST_P(LinkRoutesTest, MessagesGoThroughARingThatIsNotRegistered) {
    for (const char* const where : {"both", "sender", "receiver"}) {
        run("ringed_unregistered", where);
    }
}
TEST_P(LinkRoutesTest, MessagesThroughARingAreCopiedForAReceiverThatIsLate) {
    run("ringed_receiver_is_late");
}
TEST_P(LinkRoutesTest, WhatTheReceiverCannotReadGoesThroughSharedMemory) {
    for (const char* const fault : {"ipc-open", "isolated"}) {
        run("refused_small", fault);
        run("refused_large", fault);
    }
}
TEST_P(LinkRoutesTest, WhatTheSenderCannotExportGoesThroughARing) {
    run("not_exporting");
}
TEST_P(LinkRoutesTest, HostMemoryGoesThroughTheRing) {
    run("from_ordinary_memory");
}
TEST_P(LinkRoutesTest, PinnedMemoryIsCopiedByTheGpu) {
    run("from_pinned_memory");
}
TEST_P(LinkRoutesTest, HostMemoryIsCopiedByTheGpuWhereThereIsNoRing) {
    run("from_host_without_ring");
}
TEST_P(LinkRoutesTest, PinnedMemoryGoesThroughTheRingWhereIpcIsRefused) {
    run("from_host_without_ipc");
}
TEST_P(LinkRoutesTest, HostMemoryIsCopiedForAReceiverThatIsLate) {
    run("from_host_receiver_is_late");
}
TEST_P(LinkRoutesTest, HostMemoryIsOfferedToThoseWhoWantIt) {
    run("host_offers_are_wanted");
}
TEST_P(LinkRoutesTest, HostMessagesAsLongAsHeadersAreWrapped) {
    run("wrapped");
}
TEST_P(LinkRoutesTest, AProcessSendsToItself) {
    run("to_itself");
}
TEST_P(LinkRoutesTest, ADetachedSendNeedsNobody) {
    run("detached");
}

TEST(LinkByCpuTest, SmallMessagesAreCopiedByTheCpu) {
    const auto outcome = emulator_test::run_scenario("by_cpu", {{"AWAKEN_EMULATE", "cuda:2"}}, {"cuda"});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(Forms, LinkRoutesTest, ::testing::Values("cuda", "hip"),
                         [](const auto& form) { return std::string(form.param); });

}  // namespace
}  // namespace awaken::ipc
