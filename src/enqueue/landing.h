// SPDX-License-Identifier: Apache-2.0
// Where a receive lands whose data a stream moves on.
//
// The MPI receives into pinned memory of the layer, which has room for an RTS: the message itself may lie in device
// memory of its sender. When the MPI is through, a step in the stream finds out from where it copies what.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "call/stage.h"
#include "mpi/bytes_type.h"
#include "transfer/pinned_pool.h"
#include "transport/found.h"
#include "transport/rts_length.h"

namespace awaken::AWAKEN_ABI {

struct Landing {
    enum class To : std::uint8_t {
        device,  ///< the program's buffer, one run of bytes, to which the step copies
        stage,   ///< a Stage's buffer, from where the stage copies on in the stream
        host     ///< memory of the host, to which the CPU copies behind the step
    };

    To to = To::host;
    transfer::StagingBlock block;  ///< none where the stage has one
    std::byte* landed = nullptr;   ///< where the MPI receives
    std::int64_t room = 0;         ///< bytes there
    std::byte* user = nullptr;     ///< the program's buffer
    std::int64_t count = 0;        ///< of its elements
    std::int64_t capacity = 0;     ///< bytes of data that fit into it
    std::shared_ptr<const Datatype> type;
    std::shared_ptr<const BytesType> bytes_type;  ///< null where MPI_BYTE serves

    /// Room for so many bytes, or for an RTS.
    [[nodiscard]] static std::int64_t room_for(std::int64_t bytes) noexcept;
    /// Where the step copies to, and how much at most.
    [[nodiscard]] std::byte* target() const noexcept { return to == To::device ? user : landed; }
    [[nodiscard]] std::size_t most() const noexcept { return static_cast<std::size_t>(capacity); }

    /// Gives the MPI the receive.
    [[nodiscard]] int post(int source, int tag, MPI_Comm communicator, MPI_Request* request);
    /// The MPI is through. Says what the step finds, and corrects what the program sees.
    /// @param repeats  a graph receives, and its step may go on without the CPU
    [[nodiscard]] transport::Placed settle(MPI_Status& status, int& error, bool repeats);
    /// Copies to host memory, once. The step has gone before.
    void deliver();

  private:
    std::int64_t _bytes = 0;                                   ///< to deliver
    std::array<std::byte, transport::kLongestRts> _covered{};  ///< what an RTS overwrites in a stage
};

}  // namespace awaken::AWAKEN_ABI
