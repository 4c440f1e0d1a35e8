// SPDX-License-Identifier: Apache-2.0
// Memory that comes and goes: freed and allocated again at the same address, in pieces, to the card's brim. What a
// layer over MPI has found out about an allocation, or has mapped of it, must never outlive it: not one stale byte, and
// no memory that stays away. On the emulated driver each rank tells how much it has mapped of others' memory, all of
// which must be unmapped in the end.
//
//     --rounds=N     allocations per case (default 40)
//     --card-mib=N   size of each device; without it nothing is filled to the brim
#include <array>

#include "emulated.h"
#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 41;
constexpr int kReadyTag = 42;

int rounds = 40;
std::size_t card_bytes = 0;

std::size_t to_size(int value) {
    return static_cast<std::size_t>(value);
}

/// What message `round` of channel `channel` holds.
std::vector<std::byte> content(std::size_t bytes, int round, int channel = 0) {
    std::vector<std::byte> image(bytes);
    fill_random(image.data(), bytes,
                combine(static_cast<std::uint64_t>(round), 7000 + static_cast<std::uint64_t>(channel)));
    return image;
}

/// The kind that the mix gives to the next buffer. Cases here allocate by themselves, many times.
Kind next_kind(Run& run) {
    return run.kind_of(run.transient(8));
}

std::unique_ptr<Buffer> allocate(Run& run, Kind kind, std::size_t bytes) {
    return std::make_unique<Buffer>(run.gpu(), kind, bytes);
}

void expect_content(Run& run, const Buffer& buffer, const std::vector<std::byte>& expected, const std::string& name,
                    std::size_t offset = 0) {
    const std::vector<std::byte> actual = buffer.read(offset, expected.size());
    if (actual != expected) {
        const auto first = std::mismatch(actual.begin(), actual.end(), expected.begin()).first - actual.begin();
        run.problem(format("%s: byte %ld of %zu (%s memory) is wrong", name.c_str(), static_cast<long>(first),
                           expected.size(), to_string(buffer.kind())));
    }
    const std::string damage = buffer.guard_damage();
    if (!damage.empty()) {
        run.problem(name + ": guard: " + damage);
    }
}

/// Counts allocations that lie where the one before lay.
class Addresses {
  public:
    void add(const Buffer& buffer) {
        if (buffer.data() == _last) {
            ++_repeated;
        }
        _last = buffer.data();
    }
    /// The emulated driver gives freed addresses out again at once; without that a case would test little.
    void expect_repeated(Run& run, Kind kind) const {
        if (host_accessible(kind) || std::getenv("AWAKEN_EMULATE") == nullptr) {
            return;
        }
        run.expect(_repeated > 0, "no allocation came back at its old address");
    }

  private:
    const std::byte* _last = nullptr;
    int _repeated = 0;
};

/// New memory on both sides for each message, always of one size.
void new_memory_each_time(Run& run, std::size_t bytes, bool sender_changes, bool receiver_changes) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    const Kind kind = next_kind(run);
    const bool changes = pair.sender ? sender_changes : receiver_changes;
    std::unique_ptr<Buffer> buffer;
    Addresses addresses;
    for (int round = 0; round < rounds; ++round) {
        if (buffer == nullptr || changes) {
            buffer.reset();
            buffer = allocate(run, kind, bytes);
            addresses.add(*buffer);
        }
        const std::vector<std::byte> expected = content(bytes, round);
        const int count = static_cast<int>(bytes);
        if (pair.sender) {
            buffer->write(expected.data(), bytes);
            OK(MPI_Send(buffer->data(), count, MPI_BYTE, pair.peer, kTag, run.comm));
        } else {
            OK(MPI_Recv(buffer->data(), count, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
        expect_content(run, *buffer, expected, format("round %d", round));
    }
    if (changes) {
        addresses.expect_repeated(run, kind);
    }
}

/// Allocations of growing and shrinking sizes over the same addresses.
void changing_sizes(Run& run) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    const Kind kind = next_kind(run);
    const std::array<int, 9> sizes = {64 << 10, 3000, 2 << 20, 1 << 20, 40, 3 << 20, 100000, (1 << 20) + 4096, 700};
    for (int round = 0; round < rounds; ++round) {
        const int bytes = sizes[to_size(round) % sizes.size()];
        const auto buffer = allocate(run, kind, to_size(bytes));
        const std::vector<std::byte> expected = content(to_size(bytes), round);
        MPI_Request request;
        if (pair.sender) {
            buffer->write(expected.data(), expected.size());
            OK(MPI_Isend(buffer->data(), bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        } else {
            OK(MPI_Irecv(buffer->data(), bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        }
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        expect_content(run, *buffer, expected, format("round %d, %d bytes", round, bytes));
    }
}

/// The same size as another kind of memory each time.
void changing_kinds(Run& run) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    constexpr std::size_t kBytes = 260000;
    for (int round = 0; round < rounds; ++round) {
        const bool plain = run.reference() || !run.gpu().present();
        const int draw = static_cast<int>(combine(static_cast<std::uint64_t>(round), to_size(run.rank)) % kKinds);
        const auto buffer = allocate(run, plain ? Kind::host : static_cast<Kind>(draw), kBytes);
        const std::vector<std::byte> expected = content(kBytes, round);
        if (pair.sender) {
            buffer->write(expected.data(), kBytes);
            OK(MPI_Send(buffer->data(), kBytes, MPI_BYTE, pair.peer, kTag, run.comm));
        } else {
            OK(MPI_Recv(buffer->data(), kBytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
        expect_content(run, *buffer, expected, format("round %d", round));
    }
}

/// Several at a time in both directions, freed in another order than they were allocated in.
void several_at_a_time(Run& run) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    const Kind out_kind = next_kind(run), in_kind = next_kind(run);
    const std::array<int, 6> sizes = {40000, 200, 40000, 700000, 40000, 9};
    for (int round = 0; round < rounds / 4; ++round) {
        std::vector<std::unique_ptr<Buffer>> outs, ins;
        std::vector<MPI_Request> requests;
        for (std::size_t at = 0; at < sizes.size(); ++at) {
            ins.push_back(allocate(run, in_kind, to_size(sizes[at])));
            requests.emplace_back();
            OK(MPI_Irecv(ins.back()->data(), sizes[at], MPI_BYTE, pair.peer, kTag + static_cast<int>(at), run.comm,
                         &requests.back()));
        }
        for (std::size_t at = 0; at < sizes.size(); ++at) {
            outs.push_back(allocate(run, out_kind, to_size(sizes[at])));
            const int channel = static_cast<int>(at) + 10 * run.rank;
            outs.back()->write(content(to_size(sizes[at]), round, channel).data(), to_size(sizes[at]));
            requests.emplace_back();
            OK(MPI_Isend(outs.back()->data(), sizes[at], MPI_BYTE, pair.peer, kTag + static_cast<int>(at), run.comm,
                         &requests.back()));
        }
        OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
        // The senders' memory first, because it may be gone as soon as the sends are over.
        for (const std::size_t at : {2, 0, 5, 3, 1, 4}) {
            outs[at].reset();
        }
        for (std::size_t at = 0; at < sizes.size(); ++at) {
            expect_content(run, *ins[at], content(to_size(sizes[at]), round, static_cast<int>(at) + 10 * pair.peer),
                           format("round %d message %zu", round, at));
        }
        for (const std::size_t at : {1, 4, 0, 3, 5, 2}) {
            ins[at].reset();
        }
    }
}

/// The send is over long before its receive, and its memory is another message's by then.
void reused_before_the_receive(Run& run) {
    const Pair pair(run);
    const Kind kind = next_kind(run);
    for (const int bytes : {8, 500, 1024}) {
        const int messages = 12;
        if (pair.sender) {
            Addresses addresses;
            for (int message = 0; message < messages; ++message) {
                const auto buffer = allocate(run, kind, to_size(bytes));
                addresses.add(*buffer);
                buffer->write(content(to_size(bytes), message).data(), to_size(bytes));
                OK(MPI_Send(buffer->data(), bytes, MPI_BYTE, pair.peer, kTag, run.comm));
            }
            addresses.expect_repeated(run, kind);
        }
        OK(MPI_Barrier(run.comm));
        for (int message = 0; message < messages && pair.receiver; ++message) {
            const auto buffer = allocate(run, kind, to_size(bytes));
            OK(MPI_Recv(buffer->data(), bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            expect_content(run, *buffer, content(to_size(bytes), message), format("message %d", message));
        }
    }
}

/// Buffered and freed sends of large messages, whose memory goes as soon as MPI allows.
void gone_as_soon_as_allowed(Run& run) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    const Kind kind = next_kind(run);
    constexpr int kBytes = 900000;
    for (int round = 0; round < rounds / 4; ++round) {
        auto buffer = allocate(run, kind, kBytes);
        const std::vector<std::byte> expected = content(kBytes, round);
        if (pair.sender) {
            buffer->write(expected.data(), kBytes);
            if (round % 2 == 0) {
                const RoomForBufferedSends room(kBytes, 1);
                OK(MPI_Bsend(buffer->data(), kBytes, MPI_BYTE, pair.peer, kTag, run.comm));
                buffer = allocate(run, kind, kBytes);
                buffer->write(content(kBytes, round, 1).data(), kBytes);
            } else {
                MPI_Request request;
                OK(MPI_Isend(buffer->data(), kBytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
                OK(MPI_Request_free(&request));
                await_token(run, pair.peer, kReadyTag);
                buffer = allocate(run, kind, kBytes);
                buffer->write(content(kBytes, round, 2).data(), kBytes);
            }
        } else {
            OK(MPI_Recv(buffer->data(), kBytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            if (round % 2 == 1) {
                send_token(run, pair.peer, kReadyTag);
            }
            expect_content(run, *buffer, expected, format("round %d", round));
        }
    }
}

/// Pieces of one large allocation to pieces of another, at all sorts of offsets.
void slices(Run& run) {
    const Pair pair(run);
    constexpr int kBytes = 3 << 20;
    constexpr int kSlices = 150;
    std::byte* buffer = run.input(kBytes);
    struct Slice {
        int offset, bytes, other_offset;
    };
    std::vector<Slice> list;
    int offset = 0;
    for (int at = 0; at < kSlices; ++at) {
        const std::uint64_t bits = combine(311, to_size(at));
        const int limit = bits % 5 == 0 ? 60000 : bits % 5 == 1 ? 5000 : 300;
        const int bytes = 1 + static_cast<int>(bits / 8 % to_size(limit));
        if (offset + bytes > kBytes) {
            break;
        }
        list.push_back({offset, bytes, kBytes - offset - bytes});
        offset += bytes + static_cast<int>(bits / 4096 % 7);
    }
    std::vector<MPI_Request> requests(list.size(), MPI_REQUEST_NULL);
    for (std::size_t at = 0; at < list.size(); ++at) {
        if (pair.sender) {
            OK(MPI_Isend(buffer + list[at].offset, list[at].bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[at]));
        } else if (pair.receiver) {
            OK(MPI_Irecv(buffer + list[at].other_offset, list[at].bytes, MPI_BYTE, pair.peer, kTag, run.comm,
                         &requests[at]));
        }
    }
    OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

/// More live allocations than a cache of mappings would keep, used in drawn orders, some replaced in between.
void many_allocations(Run& run) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    const Kind kind = next_kind(run);
    constexpr int kCount = 160;
    const auto bytes_of = [](int index) { return index % 20 == 0 ? 1200000 : 2000 + 37 * index; };
    std::vector<std::unique_ptr<Buffer>> buffers;
    buffers.reserve(kCount);
    for (int index = 0; index < kCount; ++index) {
        buffers.push_back(allocate(run, kind, to_size(bytes_of(index))));
    }
    for (int round = 0; round < 3 * kCount / 2; ++round) {
        const int index = static_cast<int>(combine(17, to_size(round)) % kCount);
        const int bytes = bytes_of(index);
        auto& buffer = buffers[to_size(index)];
        if (round % 3 == 0) {
            buffer.reset();
            buffer = allocate(run, kind, to_size(bytes));
        }
        const std::vector<std::byte> expected = content(to_size(bytes), round);
        if (pair.sender) {
            buffer->write(expected.data(), expected.size());
            OK(MPI_Send(buffer->data(), bytes, MPI_BYTE, pair.peer, kTag, run.comm));
        } else {
            OK(MPI_Recv(buffer->data(), bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            expect_content(run, *buffer, expected, format("round %d", round));
        }
    }
}

/// An allocation for each message, both ways at a time: filled, sent from or received into once, and freed. Some
/// messages are a small part of theirs.
void used_once(Run& run) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    const Kind out_kind = next_kind(run), in_kind = next_kind(run);
    constexpr int kMessages = 100;
    constexpr std::array<int, 9> kSizes = {8, 1000, 160 << 10, 20000, 64 << 10, 500, 300000, 3000, 100000};
    // Two of them fit on the card. Where there is room they are larger than what is mapped in no time.
    const std::size_t surroundings = std::size_t{card_bytes != 0 ? 8U : 96U} << 20;
    const auto bytes_of = [&](int message, int sender) {
        return message % 25 == 12 ? 4 << 20 : kSizes[to_size(message + sender) % kSizes.size()];
    };
    const auto offset_of = [&](int message, int sender) {
        return (message + sender) % 4 == 0 ? surroundings / 4 + 24 : 0;
    };
    const auto make = [&](Kind kind, int message, int sender) {
        return allocate(run, kind, offset_of(message, sender) != 0 ? surroundings : to_size(bytes_of(message, sender)));
    };
    const Mappings before = mappings();
    for (int message = 0; message < kMessages; ++message) {
        const int out_bytes = bytes_of(message, run.rank), in_bytes = bytes_of(message, pair.peer);
        const std::size_t out_offset = offset_of(message, run.rank), in_offset = offset_of(message, pair.peer);
        const auto out = make(out_kind, message, run.rank), in = make(in_kind, message, pair.peer);
        const std::vector<std::byte> sent = content(to_size(out_bytes), message, run.rank);
        out->write(sent.data(), sent.size(), out_offset);
        OK(MPI_Sendrecv(out->data() + out_offset, out_bytes, MPI_BYTE, pair.peer, kTag, in->data() + in_offset,
                        in_bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        expect_content(run, *in, content(to_size(in_bytes), message, pair.peer), format("message %d", message),
                       in_offset);
    }
    // A mapping of freed memory goes when other memory is mapped that lies there.
    const Mappings after = mappings();
    run.expect(after.open() <= before.open() + kMessages / 10,
               format("%d mappings were open before, %d are open after freeing what they are of",
                      static_cast<int>(before.open()), static_cast<int>(after.open())));
}

/// Many messages under way in both directions and to oneself, each from memory of its own. Those of one source and tag
/// come in their order, small ones behind large ones too.
void used_once_in_order(Run& run) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    const Kind out_kind = next_kind(run), in_kind = next_kind(run);
    constexpr int kTags = 3;
    constexpr int kMessages = 12;
    constexpr std::array<int, 5> kSizes = {300000, 8, 600000, 5000, 160 << 10};
    constexpr int kLargest = 600000;
    const auto bytes_of = [&](int message, int sender) { return kSizes[to_size(message + sender) % kSizes.size()]; };
    const auto channel_of = [](int sender, int receiver) { return 2 * sender + (sender == receiver ? 1 : 0); };
    // One's own tags are other ones, so that receives from any source know whom they are for.
    const auto tag_of = [&](int message, int sender, int receiver) {
        return 100 * channel_of(sender, receiver) + message % kTags;
    };
    for (const bool late : {false, true}) {
        std::vector<std::unique_ptr<Buffer>> outs, ins;
        std::vector<MPI_Request> sends, receives;
        const auto send = [&](int to) {
            for (int message = 0; message < kMessages; ++message) {
                const std::vector<std::byte> sent =
                    content(to_size(bytes_of(message, run.rank)), message, channel_of(run.rank, to));
                outs.push_back(allocate(run, out_kind, sent.size()));
                outs.back()->write(sent.data(), sent.size());
                OK(MPI_Isend(outs.back()->data(), static_cast<int>(sent.size()), MPI_BYTE, to,
                             tag_of(message, run.rank, to), run.comm, &sends.emplace_back()));
            }
        };
        const auto receive = [&](int from) {
            for (int message = 0; message < kMessages; ++message) {
                ins.push_back(allocate(run, in_kind, kLargest));
                OK(MPI_Irecv(ins.back()->data(), kLargest, MPI_BYTE, message % 2 == 0 ? from : MPI_ANY_SOURCE,
                             tag_of(message, from, run.rank), run.comm, &receives.emplace_back()));
            }
        };
        if (!late) {
            receive(run.rank);
            receive(pair.peer);
        }
        send(pair.peer);
        send(run.rank);
        if (late) {
            OK(MPI_Sendrecv(nullptr, 0, MPI_BYTE, pair.peer, kReadyTag, nullptr, 0, MPI_BYTE, pair.peer, kReadyTag,
                            run.comm, MPI_STATUS_IGNORE));
            receive(pair.peer);
            receive(run.rank);
        }
        std::vector<MPI_Status> statuses(receives.size());
        OK(MPI_Waitall(static_cast<int>(receives.size()), receives.data(), statuses.data()));
        OK(MPI_Waitall(static_cast<int>(sends.size()), sends.data(), MPI_STATUSES_IGNORE));
        for (std::size_t at = 0; at < ins.size(); ++at) {
            const int from = (at < kMessages) == late ? pair.peer : run.rank;
            const int message = static_cast<int>(at) % kMessages;
            const std::string name = format("%s, message %d of rank %d", late ? "late" : "early", message, from);
            int count = -1;
            MPI_Get_count(&statuses[at], MPI_BYTE, &count);
            run.expect(count == bytes_of(message, from) && statuses[at].MPI_SOURCE == from,
                       format("%s: %d bytes of rank %d", name.c_str(), count, statuses[at].MPI_SOURCE));
            expect_content(run, *ins[at],
                           content(to_size(bytes_of(message, from)), message, channel_of(from, run.rank)), name);
        }
    }
}

/// Memory that was sent from and freed is there for the next allocation: 80 % of the card, twenty times.
void most_of_the_card(Run& run) {
    const Pair pair(run);
    if (!pair.active || card_bytes == 0) {
        return;
    }
    const bool plain = run.reference() || !run.gpu().present();
    if (plain) {
        return;  // nothing to learn from host memory
    }
    const std::size_t bytes = card_bytes / 10 * 8;
    constexpr int kPart = 900000;
    for (int round = 0; round < 20; ++round) {
        // Device memory on both sides, whatever the mix says, and by turns from the pool, where freed memory may
        // stay, or mapped at addresses that other memory had.
        const Kind kind = round % 4 == 3 ? Kind::pool : round % 4 == 1 ? Kind::mapped : Kind::device;
        auto* const buffer = static_cast<std::byte*>(run.gpu().allocate(kind, bytes));
        const std::vector<std::byte> expected = content(kPart, round);
        std::byte* const middle = buffer + bytes / 2;
        if (pair.sender) {
            run.gpu().write(middle, expected.data(), kPart);
            OK(MPI_Send(middle, kPart, MPI_BYTE, pair.peer, kTag, run.comm));
        } else {
            OK(MPI_Recv(middle, kPart, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            std::vector<std::byte> actual(kPart);
            run.gpu().read(actual.data(), middle, kPart);
            run.expect(actual == expected, format("round %d: other bytes than sent", round));
        }
        run.gpu().free(kind, buffer);
    }
}

/// Beyond what an int counts, in elements of 8 bytes: 2 GiB + 8 bytes.
void two_gibibytes(Run& run) {
    const Pair pair(run);
    constexpr std::size_t kChunk = std::size_t{64} << 20;
    constexpr std::size_t kBytes = (std::size_t{2} << 30) + 8;
    const auto memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(getpagesize());
    if (!pair.active || run.reference()) {
        return;
    }
    if (memory < 8 * kBytes) {
        std::printf("# two_gibibytes: %zu bytes of memory are not enough\n", memory);
        return;
    }
    const Kind kind = next_kind(run);
    void* const buffer = run.gpu().allocate(kind, kBytes);
    const auto each_chunk = [&](const auto& function) {
        for (std::size_t offset = 0; offset < kBytes; offset += kChunk) {
            const std::size_t bytes = std::min(kChunk, kBytes - offset);
            function(static_cast<std::byte*>(buffer) + offset, content(bytes, static_cast<int>(offset / kChunk)));
        }
    };
    MPI_Datatype eight = MPI_DATATYPE_NULL;
    OK(MPI_Type_contiguous(8, MPI_BYTE, &eight));
    OK(MPI_Type_commit(&eight));
    MPI_Status status{};
    int count = 0;
    if (pair.sender) {
        each_chunk([&](std::byte* at, const std::vector<std::byte>& image) {
            if (host_accessible(kind)) {
                std::memcpy(at, image.data(), image.size());
            } else {
                run.gpu().write(at, image.data(), image.size());
            }
        });
        OK(MPI_Send(buffer, static_cast<int>(kBytes / 8), eight, pair.peer, kTag, run.comm));
    } else {
        OK(MPI_Probe(pair.peer, kTag, run.comm, &status));
        OK(MPI_Get_count(&status, eight, &count));
        run.expect(count == static_cast<int>(kBytes / 8), format("the probe says %d times 8 bytes", count));
        OK(MPI_Recv(buffer, static_cast<int>(kBytes / 8), eight, pair.peer, kTag, run.comm, &status));
        OK(MPI_Get_count(&status, eight, &count));
        run.expect(count == static_cast<int>(kBytes / 8), format("the receive says %d times 8 bytes", count));
        each_chunk([&](std::byte* at, const std::vector<std::byte>& expected) {
            std::vector<std::byte> actual(expected.size());
            if (host_accessible(kind)) {
                std::memcpy(actual.data(), at, actual.size());
            } else {
                run.gpu().read(actual.data(), at, actual.size());
            }
            run.expect(actual == expected, "other bytes than sent");
        });
    }
    OK(MPI_Type_free(&eight));
    run.gpu().free(kind, buffer);
}

}  // namespace

int main(int argc, char** argv) {
    if (const auto text = take_option(argc, argv, "--rounds")) {
        rounds = std::stoi(*text);
    }
    if (const auto text = take_option(argc, argv, "--card-mib")) {
        card_bytes = std::stoull(*text) << 20;
    }
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    const std::vector<std::pair<std::string, std::size_t>> sizes = {
        {"small", 24}, {"medium", 5000}, {"large", 300000}, {"block", std::size_t{2} << 20}};
    for (const auto& [name, bytes] : sizes) {
        const Weight weight = bytes > 1000000 ? Weight::heavy : Weight::normal;
        const auto add = [&](const std::string& side, bool sender, bool receiver) {
            suite.add(
                "new_" + side + "_" + name,
                [bytes = bytes, sender, receiver](Run& run) { new_memory_each_time(run, bytes, sender, receiver); }, 2,
                weight);
        };
        add("both", true, true);
        add("sender", true, false);
        add("receiver", false, true);
    }
    suite.add("changing_sizes", changing_sizes);
    suite.add("changing_kinds", changing_kinds);
    suite.add("several_at_a_time", several_at_a_time);
    suite.add("reused_before_the_receive", reused_before_the_receive);
    suite.add("gone_as_soon_as_allowed", gone_as_soon_as_allowed);
    suite.add("slices", slices);
    suite.add("many_allocations", many_allocations, 2, Weight::heavy);
    suite.add("used_once", used_once, 2, Weight::heavy);
    suite.add("used_once_in_order", used_once_in_order, 2, Weight::heavy);
    suite.add("most_of_the_card", most_of_the_card, 2, Weight::heavy);
    suite.add("two_gibibytes", two_gibibytes, 2, Weight::longer);
    int status = suite.run();
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Finalize();
    const auto [opened, closed] = mappings();
    std::printf("# rank %d opened %d mappings, and closed %d\n", rank, static_cast<int>(opened),
                static_cast<int>(closed));
    if (closed != opened) {
        std::printf("FAIL rank %d leaves mappings open\n", rank);
        ++status;
    }
    return status;
}
