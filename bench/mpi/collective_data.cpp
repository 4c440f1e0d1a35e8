// SPDX-License-Identifier: Apache-2.0
#include "mpi/collective_data.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace awaken::bench {
namespace {

/// Unlike what a wrong result would be: neither zero nor a small number in any type.
constexpr std::byte kBackground{0x5a};

/// A stretch of a buffer on the host: elements [first, first + count).
class Piece {
  public:
    Piece(std::size_t first, std::size_t count, const DataFacts& facts)
        : _facts(facts), _width(size_of(facts.type)), _first(first), _bytes(count * _width, kBackground) {}

    [[nodiscard]] std::span<std::byte> bytes() noexcept { return _bytes; }

    void overlay(const std::vector<Region>& regions) {
        for_each_overlap(regions, [&](const Region& region, std::size_t first, std::span<std::byte> part) {
            fill(part, region, first);
        });
    }

    void overlay_transmitted(const std::vector<Region>& regions, const MessageType& message) {
        if (!message.derived()) {
            return overlay(regions);
        }
        std::vector<std::byte> content;
        for_each_overlap(regions, [&](const Region& region, std::size_t first, std::span<std::byte> part) {
            content.resize(part.size());
            fill(content, region, first);
            message.copy_transmitted(content, part, first, _width);
        });
    }

    /// What MPI leaves open is right whatever it is.
    void accept_unspecified(const std::vector<Region>& regions, std::span<const std::byte> actual) {
        for_each_overlap(regions, [&](const Region& region, std::size_t, std::span<std::byte> part) {
            if (region.content != Region::Content::unspecified) {
                return;
            }
            std::memcpy(part.data(), actual.data() + (part.data() - _bytes.data()), part.size());
        });
    }

  private:
    /// Calls action(region, first element within the region, bytes of this piece) where the two meet.
    template <typename Action>
    void for_each_overlap(const std::vector<Region>& regions, const Action& action) {
        const std::size_t end = _first + _bytes.size() / _width;
        // Regions lie in ascending order.
        auto region = std::partition_point(regions.begin(), regions.end(),
                                           [&](const Region& r) { return r.first + r.count <= _first; });
        for (; region != regions.end() && region->first < end; ++region) {
            const std::size_t low = std::max(region->first, _first);
            const std::size_t high = std::min(region->first + region->count, end);
            if (low >= high) {
                continue;
            }
            action(*region, low - region->first,
                   std::span(_bytes).subspan((low - _first) * _width, (high - low) * _width));
        }
    }

    void fill(std::span<std::byte> part, const Region& region, std::size_t first) const {
        const std::size_t at = region.content_first + first;
        switch (region.content) {
            case Region::Content::pattern:
                fill_pattern(part, _facts.type, region.key, _facts.iteration, at);
                break;
            case Region::Content::summand:
                fill_summand(part, _facts.type, static_cast<int>(region.key), _facts.ranks, _facts.iteration, at);
                break;
            case Region::Content::sum:
                fill_sum(part, _facts.type, static_cast<int>(region.key), _facts.ranks, _facts.iteration, at);
                break;
            case Region::Content::unspecified:
                break;
        }
    }

    const DataFacts& _facts;
    std::size_t _width;
    std::size_t _first;
    std::vector<std::byte> _bytes;
};

}  // namespace

void write_data(Buffer& buffer, const std::vector<Region>& regions, const DataFacts& facts) {
    buffer.fill(kBackground);
    const std::size_t width = size_of(facts.type);
    const std::size_t end = regions.empty() ? 0 : regions.back().first + regions.back().count;
    for (std::size_t first = 0; first < end; first += kPieceBytes / width) {
        Piece piece(first, std::min(kPieceBytes / width, end - first), facts);
        piece.overlay(regions);
        buffer.write(piece.bytes(), first * width);
    }
}

Mismatch compare_data(const Buffer& buffer, std::size_t elements, const std::vector<Region>& before,
                      const std::vector<Region>& after, const MessageType& message, const DataFacts& facts,
                      const std::string& name) {
    const std::size_t width = size_of(facts.type);
    Mismatch all;
    std::vector<std::byte> actual;
    for (std::size_t first = 0; first < elements; first += kPieceBytes / width) {
        const std::size_t count = std::min(kPieceBytes / width, elements - first);
        actual.resize(count * width);
        buffer.read(actual, first * width);
        Piece expected(first, count, facts);
        expected.overlay(before);
        expected.overlay_transmitted(after, message);
        expected.accept_unspecified(after, actual);
        Mismatch found = compare(actual, expected.bytes(), facts.type);
        if (found.wrong_elements != 0) {
            const std::string start = first == 0 ? "" : " from element " + std::to_string(first) + " on";
            found.first = name + start + ", " + found.first;
        }
        all.add(found);
    }
    if (const std::size_t damaged = buffer.damaged_guard_bytes(); damaged != 0) {
        all.add({damaged, std::to_string(damaged) + " guard bytes around the " + name + " were overwritten"});
    }
    return all;
}

}  // namespace awaken::bench
