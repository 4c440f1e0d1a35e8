// SPDX-License-Identifier: Apache-2.0
// What the messages of one process share.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "gpu/gpu.h"
#include "ipc/areas.h"
#include "ipc/background.h"
#include "ipc/mapping_account.h"
#include "ipc/notes.h"
#include "ipc/offers.h"
#include "ipc/order.h"
#include "ipc/reachability.h"
#include "ipc/readiness.h"
#include "ipc/send_list.h"
#include "ipc/shared_rings.h"
#include "node/segment.h"
#include "protocol/send_path.h"
#include "transfer/cpu_window.h"
#include "transfer/device_copies.h"
#include "transfer/exports.h"
#include "transfer/mappings.h"
#include "transfer/tuning.h"

namespace awaken::ipc {

struct Options {
    using Allowed = protocol::SendFacts::Allowed;
    Allowed path = Allowed::all;
    bool cpu_copy = true;
    bool order = false;        ///< messages in the order of the default stream, where both sides do that
    bool order_check = false;  ///< and received buffers hold a pattern until their data arrive
    transfer::Tuning tuning;
};

struct Resources {
    Resources(node::Segment& of, gpu::Runtime& gpus, transfer::DeviceCopies& device_copies, const Options& given,
              Notes::Note note);
    Resources(const Resources&) = delete;
    Resources& operator=(const Resources&) = delete;

    /// A device for what belongs to none.
    [[nodiscard]] int device_or_any(const int device) const noexcept {
        return device >= 0 ? device : runtime.device_to_use();
    }

    node::Segment& segment;
    gpu::Runtime& runtime;
    const Options options;
    const transfer::Tuning& tuning = options.tuning;
    const int own;        ///< index of this process in the segment
    const int processes;  ///< of the segment, as counted when the door was closed
    const Areas areas;
    Notes notes;
    Outbox outbox;
    /// What is sent for each slot: an RTS and nothing after it. It lies here and not in the rendezvous sends, which are
    /// made for each message: so they are small enough for the quick ways of the allocator. A slot is used again only
    /// when its receiver has the RTS, or will never have it.
    std::vector<std::array<std::byte, kLongestRts>> rts{kSlots};
    transfer::Exports exports;
    transfer::ExportedPool exported;
    MappingAccount mapping_account;
    transfer::Mappings mappings;
    transfer::DeviceCopies& copies;
    transfer::CpuWindow window;
    SharedRings rings;
    Reachability reachability;
    std::atomic<bool> ending{false};      ///< gives up what only another process could complete
    const std::shared_ptr<Order> queues;  ///< null where no GPU reads memory of others
    const std::shared_ptr<Order> order;   ///< the same; null where messages do not go in the default stream's order
    const std::shared_ptr<Readiness> readiness;
    SendList sends;
    Background background;
};

}  // namespace awaken::ipc
