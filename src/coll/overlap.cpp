// SPDX-License-Identifier: Apache-2.0
#include "coll/overlap.h"

#include <algorithm>

namespace awaken::AWAKEN_ABI {

namespace {

struct ByteRange {
    const std::byte *begin, *end;
};

/// In the order of their addresses.
std::vector<ByteRange> byte_ranges_of(const std::vector<BufferView>& parts) {
    std::vector<ByteRange> ranges;
    for (const BufferView& part : parts) {
        if (part.count <= 0 || part.type == MPI_DATATYPE_NULL) {
            continue;
        }
        const std::shared_ptr<const Datatype> type = layer().datatypes.find(part.type);
        const transfer::Layout& layout = type->layout;
        layout.for_each_block(part.count, part.count * layout.size(), [&](const transfer::StridedBlock& block) {
            for (std::int64_t row = 0; row < block.rows; ++row) {
                const std::byte* const begin = part.address + block.offset + row * block.pitch;
                ranges.push_back({begin, begin + block.width});
            }
        });
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const ByteRange& left, const ByteRange& right) { return left.begin < right.begin; });
    return ranges;
}

}  // namespace

void check_overlap(const Call& call, const std::vector<BufferView>& sent, const std::vector<BufferView>& received) {
    const std::vector<ByteRange> from = byte_ranges_of(sent), to = byte_ranges_of(received);
    auto source = from.begin();
    auto target = to.begin();
    while (source != from.end() && target != to.end()) {
        const std::byte* const begin = std::max(source->begin, target->begin);
        const std::byte* const end = std::min(source->end, target->end);
        if (begin < end) {
            char text[256];
            snprintf(text, sizeof text, "%s: the buffers overlap: the %lld bytes at %p are sent and received into",
                     call.name(), static_cast<long long>(end - begin), static_cast<const void*>(begin));
            throw ClassedError(MPI_ERR_BUFFER, text, "pass buffers that share no byte, or MPI_IN_PLACE");
        }
        source->end < target->end ? ++source : ++target;
    }
}

}  // namespace awaken::AWAKEN_ABI
