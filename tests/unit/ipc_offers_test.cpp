// SPDX-License-Identifier: Apache-2.0
// Offers: every transition of a slot, copies that grow while they are taken, races between the two sides, and RTS
// messages that nobody sent.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/offers.h"

namespace awaken::ipc {
namespace {

constexpr std::int32_t kReceiver = 3;

Location device_location(std::uint64_t offset = 16, std::uint64_t size = 4096) {
    Location location{};
    location.kind = Location::Kind::device;
    location.allocation_id = 77;
    location.allocation_bytes = size;
    location.offset = offset;
    location.handle[0] = 42;
    return location;
}

Location shared_location(std::uint64_t offset = 36864, std::uint64_t size = 1000) {
    Location location{};
    location.kind = Location::Kind::shared;
    location.allocation_bytes = size;
    location.offset = offset;
    return location;
}

Location ring_location(std::uint64_t chunk, std::uint64_t size) {
    Location location{};
    location.kind = Location::Kind::ring;
    location.allocation_bytes = size;
    location.chunk_bytes = chunk;
    return location;
}

Location own_location(std::uint64_t address) {
    Location location{};
    location.kind = Location::Kind::own;
    location.address = address;
    return location;
}

class OffersTest : public ::testing::Test {
  protected:
    std::unique_ptr<OfferTable> table = std::make_unique<OfferTable>();
    Outbox out{*table};
    Inbox in{*table, kReceiver};

    [[nodiscard]] Ticket offered(std::uint64_t bytes = 100) {
        const auto ticket = out.reserve();
        EXPECT_TRUE(ticket);
        out.offer(*ticket, kReceiver, bytes, device_location());
        return *ticket;
    }
    [[nodiscard]] static Rts header_of(Ticket ticket) { return {{1, 2}, 0, ticket.slot, ticket.generation}; }
};

TEST_F(OffersTest, ClaimedFetchedAndReleased) {
    const Ticket ticket = offered(100);
    EXPECT_EQ(out.state(ticket), OfferState::offered);
    EXPECT_EQ(out.in_use(), 1u);
    const auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    EXPECT_EQ(out.state(ticket), OfferState::claimed);
    EXPECT_EQ(claim->bytes, 100u);
    EXPECT_EQ(claim->from.kind, Location::Kind::device);
    EXPECT_EQ(claim->from.offset, 16u);
    EXPECT_EQ(claim->from.handle[0], 42);
    EXPECT_FALSE(claim->spilled);
    in.finish(*claim);
    EXPECT_EQ(out.state(ticket), OfferState::done);
    out.release(ticket);
    EXPECT_EQ(out.in_use(), 0u);
}

TEST_F(OffersTest, SpilledAndTaken) {
    const Ticket ticket = offered(100);
    EXPECT_TRUE(out.spill(ticket, shared_location()));
    EXPECT_EQ(out.state(ticket), OfferState::spilled);
    const auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    EXPECT_EQ(out.state(ticket), OfferState::taken);
    EXPECT_TRUE(claim->spilled);
    EXPECT_EQ(claim->from.kind, Location::Kind::shared);
    in.finish(*claim);
    EXPECT_EQ(out.state(ticket), OfferState::done);
}

TEST_F(OffersTest, AClaimedOfferCannotBeSpilled) {
    const Ticket ticket = offered();
    const auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    EXPECT_FALSE(out.spill(ticket, shared_location()));
    EXPECT_EQ(out.state(ticket), OfferState::claimed);
    in.finish(*claim);
    EXPECT_FALSE(out.spill(ticket, shared_location()));
    EXPECT_EQ(out.state(ticket), OfferState::done);
}

TEST_F(OffersTest, ARefusedOfferIsSpilledAndTaken) {
    const Ticket ticket = offered();
    auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    in.refuse(*claim);
    EXPECT_EQ(out.state(ticket), OfferState::refused);
    EXPECT_FALSE(in.reclaim(*claim));
    EXPECT_TRUE(out.spill(ticket, shared_location()));
    EXPECT_TRUE(in.reclaim(*claim));
    EXPECT_TRUE(claim->spilled);
    EXPECT_EQ(claim->from.offset, 36864u);
    EXPECT_EQ(out.state(ticket), OfferState::taken);
    in.finish(*claim);
    EXPECT_EQ(out.state(ticket), OfferState::done);
}

TEST_F(OffersTest, AnOfferWhoseHeaderWasNotSentIsWithdrawn) {
    const Ticket ticket = offered();
    out.release(ticket);
    EXPECT_EQ(out.in_use(), 0u);
    EXPECT_FALSE(in.claim(header_of(ticket)));
}

TEST_F(OffersTest, AHeaderWorksOnce) {
    const Ticket ticket = offered();
    const auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    EXPECT_FALSE(in.claim(header_of(ticket)));
    in.finish(*claim);
    EXPECT_FALSE(in.claim(header_of(ticket)));
    out.release(ticket);
    EXPECT_FALSE(in.claim(header_of(ticket)));
    // The same slot again, for a later message: the old RTS is of another generation.
    for (std::uint32_t round = 0; round < 2 * kSlots; ++round) {
        const auto later = out.reserve();
        ASSERT_TRUE(later);
        out.offer(*later, kReceiver, 1, device_location());
        if (later->slot == ticket.slot) {
            EXPECT_NE(later->generation, ticket.generation);
            EXPECT_FALSE(in.claim(header_of(ticket)));
            EXPECT_EQ(out.state(*later), OfferState::offered);
            return;
        }
        out.release(*later);
    }
    FAIL() << "the slot was never used again";
}

TEST_F(OffersTest, ForgedHeadersAreRefusedAndChangeNothing) {
    const Ticket ticket = offered();
    Rts rts = header_of(ticket);
    rts.slot = kSlots;
    EXPECT_FALSE(in.claim(rts));
    rts = header_of(ticket);
    rts.slot = 0xffffffff;
    EXPECT_FALSE(in.claim(rts));
    rts = header_of(ticket);
    rts.generation += 1;
    EXPECT_FALSE(in.claim(rts));
    rts.generation = ~std::uint64_t{0};
    EXPECT_FALSE(in.claim(rts));
    rts = header_of(ticket);
    rts.slot = (ticket.slot + 1) % kSlots;
    EXPECT_FALSE(in.claim(rts));
    Inbox other(*table, kReceiver + 1);
    EXPECT_FALSE(other.claim(header_of(ticket)));
    EXPECT_EQ(out.state(ticket), OfferState::offered);
    EXPECT_TRUE(in.claim(header_of(ticket)));
}

TEST_F(OffersTest, BytesOutsideTheirAllocationAreNotFetchedAndTheSenderIsLetGo) {
    struct Case {
        std::uint64_t offset, size, bytes;
    };
    for (const auto& [offset, size, bytes] : {Case{0, 100, 101}, Case{100, 100, 1}, Case{101, 100, 0},
                                              Case{~std::uint64_t{0}, 100, 8}, Case{50, 100, ~std::uint64_t{0}}}) {
        const auto ticket = out.reserve();
        ASSERT_TRUE(ticket);
        out.offer(*ticket, kReceiver, bytes, device_location(offset, size));
        EXPECT_FALSE(in.claim(header_of(*ticket)));
        EXPECT_EQ(out.state(*ticket), OfferState::done);
        out.release(*ticket);
    }
    // The last byte is still inside.
    const auto ticket = out.reserve();
    out.offer(*ticket, kReceiver, 50, device_location(50, 100));
    EXPECT_TRUE(in.claim(header_of(*ticket)));
}

TEST_F(OffersTest, StridedBlocksAreOfferedWithTheirShape) {
    // 10 rows of 8 bytes, 400 apart, from the 16th byte of 4096 on: the last byte is 3624.
    const Strided shape{0, 8, {10, 1, 1, 1}, {400, 0, 0, 0}};
    const auto ticket = out.reserve();
    out.offer(*ticket, kReceiver, 80, device_location(), &shape);
    const auto claim = in.claim(header_of(*ticket));
    ASSERT_TRUE(claim);
    EXPECT_EQ(claim->shape, shape);
    in.finish(*claim);
    out.release(*ticket);
    // The next use of the slot has none.
    const auto plain = in.claim(header_of(offered()));
    ASSERT_TRUE(plain);
    EXPECT_FALSE(plain->shape);
}

TEST_F(OffersTest, AfterARefusalTheCopyHasNoShape) {
    const Strided shape{0, 8, {10, 1, 1, 1}, {400, 0, 0, 0}};
    const auto ticket = out.reserve();
    out.offer(*ticket, kReceiver, 80, device_location(), &shape);
    auto claim = in.claim(header_of(*ticket));
    ASSERT_TRUE(claim);
    in.refuse(*claim);
    EXPECT_TRUE(out.spill(*ticket, shared_location()));
    ASSERT_TRUE(in.reclaim(*claim));
    EXPECT_FALSE(claim->shape);
}

TEST_F(OffersTest, StridedBlocksThatCannotBeRightAreNotFetched) {
    constexpr std::int64_t kHuge = std::int64_t{1} << 62;
    const std::vector<std::pair<Strided, std::uint64_t>> wrong = {
        {{0, 8, {10, 1, 1, 1}, {500, 0, 0, 0}}, 80},           // ends behind the allocation
        {{0, 8, {10, 1, 1, 1}, {-8, 0, 0, 0}}, 80},            // begins before what is described
        {{-8, 8, {1, 1, 1, 1}, {}}, 8},                        // the same
        {{0, 8, {10, 1, 1, 1}, {8, 0, 0, 0}}, 81},             // another number of bytes
        {{0, 0, {10, 1, 1, 1}, {8, 0, 0, 0}}, 0},              // no width
        {{0, 8, {0, 1, 1, 1}, {8, 0, 0, 0}}, 0},               // no rows
        {{0, 8, {-1, -1, 1, 1}, {8, 8, 0, 0}}, 8},             // negative counts
        {{0, 8, {kHuge, 4, 1, 1}, {0, 0, 0, 0}}, 0},           // the number of bytes overflows
        {{0, 8, {3, 1, 1, 1}, {kHuge, 0, 0, 0}}, 24},          // an offset overflows
        {{0, 8, {2, 2, 2, 1}, {kHuge, kHuge, kHuge, 0}}, 64},  // their sum does
        {{kHuge, kHuge, {1, 1, 1, 1}, {}}, std::uint64_t(kHuge)},
    };
    for (std::size_t i = 0; i < wrong.size(); ++i) {
        SCOPED_TRACE(i);
        const auto ticket = out.reserve();
        ASSERT_TRUE(ticket);
        out.offer(*ticket, kReceiver, wrong[i].second, device_location(), &wrong[i].first);
        EXPECT_FALSE(in.claim(header_of(*ticket)));
        EXPECT_EQ(out.state(*ticket), OfferState::done) << "the sender is let go";
        out.release(*ticket);
    }
}

TEST_F(OffersTest, WhenAllSlotsAreInUseThereIsNone) {
    std::vector<Ticket> tickets;
    std::set<std::uint32_t> slots;
    for (std::uint32_t index = 0; index < kSlots; ++index) {
        const auto ticket = out.reserve();
        ASSERT_TRUE(ticket);
        tickets.push_back(*ticket);
        slots.insert(ticket->slot);
    }
    EXPECT_EQ(slots.size(), kSlots);
    EXPECT_FALSE(out.reserve());
    out.release(tickets[10]);
    const auto again = out.reserve();
    ASSERT_TRUE(again);
    EXPECT_EQ(again->slot, tickets[10].slot);
    EXPECT_FALSE(out.reserve());
}

TEST_F(OffersTest, ALengthNamesItsSlotAndNoOtherMessageHasOne) {
    std::set<std::size_t> lengths;
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        const std::size_t length = rts_length(slot);
        EXPECT_TRUE(is_rts_length(length));
        EXPECT_EQ(slot_of_length(length), slot);
        lengths.insert(length);
    }
    EXPECT_EQ(lengths.size(), kSlots);
    for (const std::size_t plain : {std::size_t{0}, std::size_t{8}, std::size_t{63}, std::size_t{64}, std::size_t{66},
                                    std::size_t{512}, kLongestRts + 2, std::size_t{1} << 32}) {
        EXPECT_FALSE(is_rts_length(plain)) << plain;
    }
}

TEST_F(OffersTest, AProbeLearnsTheTrueSize) {
    const Ticket ticket = offered(12345678901);
    const std::size_t length = rts_length(ticket.slot);
    EXPECT_EQ(in.size_of(length).bytes, 12345678901u);
    EXPECT_TRUE(out.spill(ticket, shared_location()));
    EXPECT_EQ(in.size_of(length).bytes, 12345678901u);
    EXPECT_FALSE(Inbox(*table, kReceiver + 1).size_of(length).bytes);
    EXPECT_FALSE(in.size_of(length + 1).bytes);
    EXPECT_FALSE(in.size_of(rts_length((ticket.slot + 1) % kSlots)).bytes);
    out.release(ticket);
    EXPECT_FALSE(in.size_of(length).bytes);
}

TEST_F(OffersTest, AProbeThatLooksTwiceSeesWhetherAMessageCameOrWentInBetween) {
    const Ticket first = offered(1000);
    const std::size_t length = rts_length(first.slot);
    const std::uint64_t version = in.size_of(length).version;
    EXPECT_EQ(in.size_of(length).version, version) << "nothing has happened";

    const auto claim = in.claim(header_of(first));
    ASSERT_TRUE(claim);
    in.finish(*claim);
    const transport::TrueSize gone = in.size_of(length);
    EXPECT_NE(gone.version, version) << "it was received";
    out.release(first);

    // The next message has an RTS of the same length, and is received as well: both looks see no message.
    const Ticket second = offered(2000);
    ASSERT_EQ(rts_length(second.slot), length);
    const transport::TrueSize next = in.size_of(length);
    EXPECT_NE(next.version, gone.version);
    EXPECT_NE(next.version, version);
    const auto claim_of_second = in.claim(header_of(second));
    ASSERT_TRUE(claim_of_second);
    in.finish(*claim_of_second);
    const transport::TrueSize gone_too = in.size_of(length);
    EXPECT_FALSE(gone_too.bytes);
    EXPECT_NE(gone_too.version, gone.version);
}

// ---- copies ---------------------------------------------------------------------------------------------------------

TEST_F(OffersTest, ACopyIsTakenWhileItIsBeingMade) {
    const auto ticket = out.reserve();
    ASSERT_TRUE(ticket);
    out.offer_copy(*ticket, kReceiver, 1000, shared_location(), 10);
    EXPECT_EQ(out.state(*ticket), OfferState::spilled);
    EXPECT_EQ(in.size_of(rts_length(ticket->slot)).bytes, 1000u);
    const auto claim = in.claim(header_of(*ticket));
    ASSERT_TRUE(claim);
    EXPECT_EQ(out.state(*ticket), OfferState::taken);
    EXPECT_TRUE(claim->spilled);
    EXPECT_EQ(claim->from.kind, Location::Kind::shared);
    EXPECT_EQ(claim->bytes, 1000u);
    EXPECT_EQ(*claim->available, 10u);
    EXPECT_EQ(*claim->lost, 0u);
    out.set_available(*ticket, 600);
    EXPECT_EQ(*claim->available, 600u);
    EXPECT_EQ(*claim->lost, 0u);
    out.set_available(*ticket, 1000);
    EXPECT_EQ(*claim->available, 1000u);
    in.finish(*claim);
    EXPECT_EQ(out.state(*ticket), OfferState::done);
    out.release(*ticket);
    EXPECT_EQ(out.in_use(), 0u);
}

TEST_F(OffersTest, AReceiverLearnsThatACopyWillNotBeFinished) {
    const auto ticket = out.reserve();
    ASSERT_TRUE(ticket);
    out.offer_copy(*ticket, kReceiver, 1000, shared_location(), 0);
    const auto claim = in.claim(header_of(*ticket));
    ASSERT_TRUE(claim);
    out.set_available(*ticket, 0, true);
    EXPECT_NE(*claim->lost, 0u);
    in.finish(*claim);
    EXPECT_EQ(out.state(*ticket), OfferState::done);
}

TEST_F(OffersTest, WhatIsSpilledIsThereAsAWhole) {
    const Ticket ticket = offered(100);
    EXPECT_TRUE(out.spill(ticket, shared_location()));
    const auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    EXPECT_EQ(*claim->available, 100u);
    EXPECT_EQ(*claim->lost, 0u);
}

TEST_F(OffersTest, NothingOfTheMessageBeforeIsLeftInASlot) {
    const auto first = out.reserve();
    ASSERT_TRUE(first);
    out.offer_copy(*first, kReceiver, 1000, shared_location(), 0);
    auto claim = in.claim(header_of(*first));
    ASSERT_TRUE(claim);
    out.set_available(*first, 500, true);
    out.ring(*first).produced = 7;
    out.ring(*first).consumed = 8;
    out.ring(*first).failed = 1;
    in.finish(*claim);
    out.release(*first);
    const auto second = out.reserve();
    ASSERT_TRUE(second);
    ASSERT_EQ(second->slot, first->slot);
    out.offer(*second, kReceiver, 10, ring_location(4096, 8192));
    claim = in.claim(header_of(*second));
    ASSERT_TRUE(claim);
    EXPECT_FALSE(claim->spilled);
    EXPECT_EQ(claim->from.chunk_bytes, 4096u);
    EXPECT_EQ(*claim->available, 0u);
    EXPECT_EQ(*claim->lost, 0u);
    EXPECT_EQ(claim->ring, &out.ring(*second));
    EXPECT_EQ(claim->ring->produced, 0u);
    EXPECT_EQ(claim->ring->consumed, 0u);
    EXPECT_EQ(claim->ring->failed, 0u);
}

// ---- what does not happen -------------------------------------------------------------------------------------------

TEST_F(OffersTest, ARefusedOfferIsNotSpilledToWhereItsReceiverCannotRead) {
    const Ticket ticket = offered();
    auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    in.refuse(*claim);
    // The receiver refused because it cannot read memory of the sender's GPU: a copy in such memory is no use.
    EXPECT_FALSE(out.spill(ticket, device_location()));
    EXPECT_EQ(out.state(ticket), OfferState::refused);
    EXPECT_FALSE(in.reclaim(*claim));
    EXPECT_TRUE(out.spill(ticket, shared_location()));
    EXPECT_TRUE(in.reclaim(*claim));
}

TEST_F(OffersTest, ARefusedOfferIsClaimedAgainOnlyByWhoRefusedItAndOnce) {
    const Ticket ticket = offered();
    auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    EXPECT_FALSE(in.reclaim(*claim)) << "nothing was refused";
    in.refuse(*claim);
    EXPECT_FALSE(in.claim(header_of(ticket))) << "refused, and nothing is there instead yet";
    EXPECT_FALSE(in.size_of(rts_length(ticket.slot)).bytes);
    EXPECT_TRUE(out.spill(ticket, shared_location()));
    Claim stale = *claim;
    stale.generation -= 1;
    EXPECT_FALSE(in.reclaim(stale));
    EXPECT_TRUE(in.reclaim(*claim));
    EXPECT_FALSE(in.reclaim(*claim));
    EXPECT_FALSE(in.claim(header_of(ticket)));
}

TEST_F(OffersTest, WhatIsSpilledOrTakenIsNotSpilledAgain) {
    const Ticket ticket = offered();
    EXPECT_TRUE(out.spill(ticket, shared_location()));
    EXPECT_FALSE(out.spill(ticket, shared_location()));
    const auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    EXPECT_FALSE(out.spill(ticket, shared_location()));
    EXPECT_EQ(out.state(ticket), OfferState::taken);
    EXPECT_FALSE(in.size_of(rts_length(ticket.slot)).bytes) << "a probe no longer sees what was received";
}

TEST_F(OffersTest, ATicketThatWasNeverOfferedIsWithdrawnAndHasNoHeader) {
    const auto ticket = out.reserve();
    ASSERT_TRUE(ticket);
    EXPECT_EQ(out.in_use(), 1u);
    EXPECT_FALSE(in.claim(header_of(*ticket)));
    EXPECT_FALSE(in.size_of(rts_length(ticket->slot)).bytes);
    out.release(*ticket);
    EXPECT_EQ(out.in_use(), 0u);
    const auto again = out.reserve();
    ASSERT_TRUE(again);
    EXPECT_EQ(again->slot, ticket->slot);
    EXPECT_NE(again->generation, ticket->generation);
}

TEST_F(OffersTest, ACopyIsWithdrawnLikeAnOffer) {
    const auto ticket = out.reserve();
    ASSERT_TRUE(ticket);
    out.offer_copy(*ticket, kReceiver, 8, shared_location(), 8);
    out.release(*ticket);
    EXPECT_FALSE(in.claim(header_of(*ticket)));
    EXPECT_FALSE(in.size_of(rts_length(ticket->slot)).bytes);
    EXPECT_EQ(out.in_use(), 0u);
}

TEST_F(OffersTest, LocationsThatCannotBeRightLetTheSenderGo) {
    struct Case {
        const char* what;
        Location location;
        bool copy;
        bool right;
    };
    constexpr std::uint64_t kBytes = 1000;
    for (const auto& [what, location, copy, right] : {
             Case{"nothing", Location{}, false, false},
             Case{"no copy", Location{}, true, false},
             Case{"shared, large enough", shared_location(4096, kBytes), true, true},
             Case{"shared, one byte short", shared_location(4096, kBytes - 1), true, false},
             Case{"a copy in device memory", device_location(24, 1024), true, true},
             Case{"a copy that leaves its block", device_location(25, 1024), true, false},
             Case{"a ring of one chunk", ring_location(64, 64), false, true},
             Case{"a ring without a whole chunk", ring_location(64, 63), false, false},
             Case{"a ring of chunks of nothing", ring_location(0, 64), false, false},
             Case{"own memory", own_location(4096), false, true},
             Case{"own memory nowhere", own_location(0), false, false},
         }) {
        const auto ticket = out.reserve();
        ASSERT_TRUE(ticket);
        if (copy) {
            out.offer_copy(*ticket, kReceiver, kBytes, location, 0);
        } else {
            out.offer(*ticket, kReceiver, kBytes, location);
        }
        EXPECT_EQ(in.claim(header_of(*ticket)).has_value(), right) << what;
        const OfferState claimed = copy ? OfferState::taken : OfferState::claimed;
        EXPECT_EQ(out.state(*ticket), right ? claimed : OfferState::done) << what;
        out.release(*ticket);
    }
    // A kind that there is none of, as only a broken sender writes it.
    Location unknown = shared_location();
    unknown.kind = static_cast<Location::Kind>(77);
    const auto ticket = out.reserve();
    ASSERT_TRUE(ticket);
    out.offer(*ticket, kReceiver, 1, unknown);
    EXPECT_FALSE(in.claim(header_of(*ticket)));
    EXPECT_EQ(out.state(*ticket), OfferState::done);
}

TEST_F(OffersTest, ASpillThatLeavesItsMemoryIsNotDescribedToTheReceiver) {
    const Ticket ticket = offered(100);
    auto claim = in.claim(header_of(ticket));
    ASSERT_TRUE(claim);
    in.refuse(*claim);
    EXPECT_TRUE(out.spill(ticket, shared_location(4096, 99)));
    // It is the receiver's to tell, since it has promised the message to its caller.
    EXPECT_TRUE(in.reclaim(*claim));
    EXPECT_EQ(claim->from.kind, Location::Kind::none);
    in.finish(*claim);
    EXPECT_EQ(out.state(ticket), OfferState::done);
}

TEST_F(OffersTest, EverySlotHasItsPlaceAndTheLowestIsTakenFirst) {
    std::vector<Ticket> tickets;
    for (std::uint32_t index = 0; index < kSlots; ++index) {
        const auto ticket = out.reserve();
        ASSERT_TRUE(ticket);
        EXPECT_EQ(ticket->slot, index);
        tickets.push_back(*ticket);
        out.offer(*ticket, kReceiver, index + 1, device_location());
    }
    for (const Ticket& ticket : tickets) {
        EXPECT_EQ(in.size_of(rts_length(ticket.slot)).bytes, ticket.slot + 1);
        const auto claim = in.claim(header_of(ticket));
        ASSERT_TRUE(claim);
        EXPECT_EQ(claim->bytes, ticket.slot + 1);
        in.finish(*claim);
    }
    for (const Ticket& ticket : tickets) {
        out.release(ticket);
    }
    EXPECT_EQ(out.in_use(), 0u);
}

TEST_F(OffersTest, SlotsThatAReceiverCouldTakeForPlainMessagesAreAvoided) {
    SlotSet avoided;
    for (const std::uint32_t slot : {0u, 1u, 3u, 63u, 64u, kSlots - 1}) {
        avoided.add(slot);
    }
    std::set<std::uint32_t> slots;
    for (auto ticket = out.reserve(avoided); ticket; ticket = out.reserve(avoided)) {
        slots.insert(ticket->slot);
    }
    EXPECT_EQ(slots.size(), kSlots - 6);
    for (const std::uint32_t slot : {0u, 1u, 3u, 63u, 64u, kSlots - 1}) {
        EXPECT_FALSE(slots.contains(slot)) << slot;
    }
    EXPECT_EQ(*slots.begin(), 2u);
    // Towards others they are as good as any.
    const auto ticket = out.reserve();
    ASSERT_TRUE(ticket);
    EXPECT_EQ(ticket->slot, 0u);
    SlotSet all;
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        all.add(slot);
    }
    out.release(*ticket);
    EXPECT_FALSE(out.reserve(all));
}

TEST_F(OffersTest, AReceiverLearnsWhenItMayReadTheSource) {
    for (int round = 0; round < 2; ++round) {
        const Ticket ticket = offered();
        const auto claim = in.claim(header_of(ticket));
        ASSERT_TRUE(claim);
        EXPECT_EQ(*claim->ready, kNotReady) << "also when the message before in this slot was settled";
        EXPECT_TRUE(in.holds(*claim));
        out.mark_ready(ticket);
        EXPECT_EQ(*claim->ready, ready_value(claim->generation));
        EXPECT_TRUE(in.holds(*claim));
        in.finish(*claim);
        out.release(ticket);
    }
}

// ---- both sides at once ---------------------------------------------------------------------------------------------

TEST_F(OffersTest, ClaimAndSpillAtTheSameTimeHaveOneWinner) {
    constexpr int kRounds = 20000;
    std::atomic<int> round{0};
    std::atomic<bool> claimed_spill{false};
    Rts rts{};
    int spills = 0;
    // The receiver takes part in every round; the sender waits for it by the slot's state alone.
    std::thread receiver([&] {
        for (int at = 1; at <= kRounds; ++at) {
            while (round.load(std::memory_order_acquire) < at) {
                std::this_thread::yield();
            }
            const auto claim = in.claim(rts);
            ASSERT_TRUE(claim);
            claimed_spill = claim->spilled;
            ASSERT_EQ(claim->from.kind, claim->spilled ? Location::Kind::shared : Location::Kind::device);
            in.finish(*claim);
        }
    });
    for (int at = 1; at <= kRounds; ++at) {
        const auto ticket = out.reserve();
        ASSERT_TRUE(ticket);
        out.offer(*ticket, kReceiver, 8, device_location());
        rts = header_of(*ticket);
        round.store(at, std::memory_order_release);
        const bool spilled = out.spill(*ticket, shared_location());
        while (out.state(*ticket) != OfferState::done) {
            std::this_thread::yield();
        }
        ASSERT_EQ(spilled, claimed_spill.load());
        spills += spilled ? 1 : 0;
        out.release(*ticket);
    }
    receiver.join();
    EXPECT_EQ(out.in_use(), 0u);
    RecordProperty("spills", spills);
}

TEST_F(OffersTest, AProbeNeverLearnsTheSizeOfAnotherMessage) {
    constexpr int kLooks = 200000, kMessages = 50;
    std::atomic<bool> over{false};
    // Each message of the one slot has a size of its own, the generation that its word names.
    std::thread sender([&] {
        while (!over.load(std::memory_order_relaxed)) {
            const auto ticket = out.reserve();
            ASSERT_TRUE(ticket);
            out.offer(*ticket, kReceiver, ticket->generation, device_location());
            out.release(*ticket);
        }
    });
    int wrong = 0;
    std::uint64_t last = 0;
    for (int looks = 0, messages = 0; looks < kLooks || messages < kMessages;) {
        const transport::TrueSize size = in.size_of(rts_length(0));
        if (size.bytes && in.size_of(rts_length(0)).version == size.version) {
            ++looks;
            messages += std::exchange(last, size.version) != size.version ? 1 : 0;
            wrong += *size.bytes != size.version >> 8 ? 1 : 0;
        }
    }
    over.store(true, std::memory_order_relaxed);
    sender.join();
    EXPECT_EQ(wrong, 0);
}

TEST_F(OffersTest, ManyThreadsReserveDifferentSlots) {
    constexpr int kThreads = 8;
    std::vector<std::atomic<int>> holders(kSlots);
    std::atomic<bool> shared{false};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&] {
            for (int round = 0; round < 5000; ++round) {
                const auto ticket = out.reserve();
                if (!ticket) {
                    continue;
                }
                if (holders[ticket->slot].fetch_add(1) != 0) {
                    shared = true;
                }
                holders[ticket->slot].fetch_sub(1);
                out.release(*ticket);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_FALSE(shared);
    EXPECT_EQ(out.in_use(), 0u);
}

}  // namespace
}  // namespace awaken::ipc
