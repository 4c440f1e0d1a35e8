// SPDX-License-Identifier: Apache-2.0
// Where a stream finds a message that has come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace awaken::transport {

/// Written by the CPU to host memory that the device reaches. The same as in gpu/kernels/steps.h.
struct Found {
    std::uint64_t source = 0;
    std::uint64_t bytes = 0;
    std::uint64_t told_host = 0;  ///< 0: nobody
    std::uint64_t told_host_number = 0;
    std::uint64_t awaited = 0;   ///< of a message that its sender's stream has not copied yet: the word that says so
    std::uint64_t released = 0;  ///< the CPU's word, for `awaited`
    std::uint32_t number = 0;    ///< wanted of both
};

/// What the step writes that copies a message to its place.
struct ReadyWords {
    std::uint32_t* told;
    std::uint32_t told_number;
    std::uint64_t* told_host;
    std::uint64_t told_host_number;
};

/// How two steps in graphs pass messages on without the CPU, from the view of one. The same as there.
struct Channel {
    std::uint32_t open = 0;
    std::uint32_t number = 0;
    std::uint64_t source = 0;
    std::uint64_t bytes = 0;
    std::uint64_t awaited = 0;
    std::uint64_t told = 0;
    std::uint64_t told_host = 0;
    std::uint64_t begun = 0;
};
static_assert(offsetof(Channel, begun) == 48, "the kernel writes it");

/// What two processes know of a channel, in memory that they share. Numbers of messages count from the channel's own.
struct ChannelState {
    /// The sender may use the slot for other messages when the receiver has seen that it has closed the channel, and
    /// has fetched the last message; or when the receiver has left.
    enum Phase : std::uint32_t { none, open, closed_by_sender, seen_by_receiver, left_by_receiver };
    std::atomic<std::uint32_t> phase;
    std::atomic<std::uint32_t> last;     ///< of the messages that went by it, when one end has gone
    std::atomic<std::uint64_t> fetched;  ///< the last message that the receiver's GPU has fetched
};

/// What a receive finds.
struct Placed {
    Found found;
    const std::atomic<std::uint64_t>* ready = nullptr;  ///< in host memory: holds `ready_value` when the data are there
    std::uint64_t ready_value = 0;
    Channel channel;                ///< of a receive that accepts one
    ChannelState* state = nullptr;  ///< null: there is no channel
};

}  // namespace awaken::transport
