// SPDX-License-Identifier: Apache-2.0
// Datatypes of plain bytes, for messages in memory of the layer.
//
// Open MPI (5.0.11, on most networks) writes all of a message that is too long for its receive, also what lies behind
// the receive's end: there its process fetches as many bytes as the sender has. Behind staging memory there are other
// messages. Open MPI fetches only into one run of bytes, and else receives in parts that stop at the end. So with such
// an MPI a receive's datatype is not one run: its last two bytes change places, and are put right when they have come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// A datatype of this many bytes, also of more than an int can count.
class BytesType {
  public:
    /// `swapped`: the last two change places; there must be two.
    BytesType(const Native& native, std::int64_t bytes, bool swapped);
    ~BytesType();
    BytesType(const BytesType&) = delete;
    BytesType& operator=(const BytesType&) = delete;

    [[nodiscard]] MPI_Datatype get() const noexcept { return _type; }
    /// Puts the bytes at `data` in order, of which the MPI has written or will read the first `length`.
    void put_right(std::byte* data, std::int64_t length) const noexcept;

  private:
    const Native& _native;
    const std::int64_t _bytes;
    const bool _swapped;
    MPI_Datatype _type = MPI_DATATYPE_NULL;
};

/// The datatypes of receives. Thread-safe.
class ReceiveTypes {
  public:
    /// `version`: the first line of MPI_Get_library_version.
    ReceiveTypes(const Native& native, std::string_view version) noexcept
        : _native(native), _stops_at_the_end(version.starts_with("MPICH Version")) {}

    /// Whether MPI_COMM_SELF exists.
    void set_world(const bool up) noexcept { _world_up.store(up, std::memory_order_release); }
    /// The datatype for a message of any length into `bytes` bytes of the layer's memory. Null when MPI_BYTE serves.
    [[nodiscard]] std::shared_ptr<const BytesType> find(std::int64_t bytes);
    /// Called before MPI goes down.
    void clear();

  private:
    /// Sends a message that is too long to this process.
    [[nodiscard]] bool writes_beyond_the_end() const;

    const Native& _native;
    /// Known of MPICH itself. Others are tried, which takes a millisecond of the first receive.
    const bool _stops_at_the_end;
    std::atomic<bool> _world_up{false};
    std::once_flag _once;
    bool _writes_beyond_the_end = true;
    std::mutex _mutex;
    std::unordered_map<std::int64_t, std::shared_ptr<const BytesType>> _known;
};

}  // namespace awaken::AWAKEN_ABI
