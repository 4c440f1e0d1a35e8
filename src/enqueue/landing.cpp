// SPDX-License-Identifier: Apache-2.0
#include "enqueue/landing.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "call/layer.h"
#include "transfer/layout.h"
#include "transport/rts_length.h"

namespace awaken::AWAKEN_ABI {

std::int64_t Landing::room_for(const std::int64_t bytes) noexcept {
    return std::max(bytes, static_cast<std::int64_t>(transport::kLongestRts));
}

int Landing::post(const int source, const int tag, const MPI_Comm communicator, MPI_Request* const request) {
    if (to == To::stage) {
        std::copy_n(landed, _covered.size(), _covered.begin());
    }
    if (bytes_type == nullptr) {
        bytes_type = layer().receive_types.find(room);
        if (bytes_type == nullptr && room > std::numeric_limits<int>::max()) {
            bytes_type = std::make_shared<const BytesType>(layer().real, room, false);
        }
    }
    if (bytes_type == nullptr) {
        return layer().real.Irecv(landed, static_cast<int>(room), MPI_BYTE, source, tag, communicator, request);
    }
    if (to == To::stage) {
        bytes_type->put_right(landed, room);  // what nothing is received into is in its order again afterwards
    }
    return layer().real.Irecv(landed, 1, bytes_type->get(), source, tag, communicator, request);
}

transport::Placed Landing::settle(MPI_Status& status, int& error, const bool repeats) {
    Layer& owner = layer();
    transport::Placed placed;
    transport::Found& found = placed.found;
    _bytes = 0;
    int error_class = error;
    if (error != MPI_SUCCESS) {
        owner.real.Error_class(error, &error_class);
        if (error_class != MPI_ERR_TRUNCATE) {
            return placed;
        }
    }
    std::int64_t size = received_bytes(status);
    if (bytes_type != nullptr) {
        bytes_type->put_right(landed, to == To::stage ? room : size);
    }
    const auto length = static_cast<std::size_t>(size);
    transport::Transport* const transport =
        error == MPI_SUCCESS ? owner.node_peers.transport_of(landed, length) : nullptr;
    if (transport != nullptr) {
        if (const auto there = transport->find_placed(landed, length, repeats && to == To::device)) {
            placed = *there;
            if (to == To::stage && found.bytes < length) {  // the program's bytes behind a shorter message stay
                const auto bytes = static_cast<std::ptrdiff_t>(found.bytes);
                std::copy(_covered.begin() + bytes, _covered.begin() + static_cast<std::ptrdiff_t>(length),
                          landed + bytes);
            }
        } else {
            error = owner.error_code(MPI_ERR_OTHER, Error("an RTS arrived that belongs to no message",
                                                          "this is a bug in Awaken: please report it"));
            return placed;
        }
        size = static_cast<std::int64_t>(found.bytes);
    } else if (to == To::device) {
        found.source = reinterpret_cast<std::uintptr_t>(landed);
        found.bytes = static_cast<std::uint64_t>(std::min(size, room));
    }
    if (size > capacity && error == MPI_SUCCESS) {
        error = owner.error_code(MPI_ERR_TRUNCATE,
                                 Error("a message of " + std::to_string(size) + " bytes came for a buffer of " +
                                           std::to_string(capacity) + " bytes",
                                       "receive with a larger buffer"));
    }
    if (transport != nullptr || size > capacity) {
        owner.real.Status_set_elements_x(&status, MPI_BYTE, static_cast<MPI_Count>(std::min(size, capacity)));
    }
    _bytes = std::min(size, capacity);
    return placed;
}

void Landing::deliver() {
    if (const std::int64_t bytes = std::exchange(_bytes, 0); bytes > 0) {
        transfer::unpack(type->layout, user, count, landed, bytes);
    }
}

}  // namespace awaken::AWAKEN_ABI
