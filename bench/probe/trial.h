// SPDX-License-Identifier: Apache-2.0
// One cell of the conformance matrix while it is tried: buffers of the cell's kind, known contents, and what is wrong.
//
// Compiled once per MPI ABI.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/memory.h"
#include "mpi/placement.h"

namespace awaken::probe {

using Values = std::vector<std::int32_t>;

/// The MPI answered with an error code; the text is the MPI's.
class CallFailed : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// The call succeeded, and a buffer does not hold what it must.
class WrongData : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// What a buffer holds where nothing was received; no value of numbers().
inline constexpr std::int32_t kBlank = -1;

/// `count` elements that tell the rank which sent them, and where each was: (who + 1) * 7919 + index. Sums over the
/// ranks of a job stay far below 2^31.
[[nodiscard]] Values numbers(int who, int count);
[[nodiscard]] inline Values blanks(const int count) {
    return Values(static_cast<std::size_t>(count), kBlank);
}

/// A buffer of 32-bit integers in memory of some kind.
class Integers {
  public:
    Integers(gpu::Runtime& gpu, int device, bench::BufferKind kind, const Values& values);

    [[nodiscard]] std::int32_t* data() const noexcept { return static_cast<std::int32_t*>(_buffer.data()); }
    [[nodiscard]] Values read() const;

  private:
    bench::Buffer _buffer;
    std::size_t _count;
};

/// What a check of a function works with. Counts are of MPI_INT.
class Trial {
  public:
    Trial(const bench::Placement& placement, MPI_Comm communicator, bench::BufferKind kind, int tag);

    [[nodiscard]] MPI_Comm communicator() const noexcept { return _communicator; }
    [[nodiscard]] int rank() const noexcept { return _rank; }
    [[nodiscard]] int ranks() const noexcept { return _ranks; }
    /// Of this cell alone, so that what a failed cell leaves behind is not taken for another's.
    [[nodiscard]] int tag() const noexcept { return _tag; }

    /// Each cell is tried with messages that MPIs send eagerly and with such that they do not.
    [[nodiscard]] static std::span<const int> counts();

    [[nodiscard]] Integers holding(const Values& values) const { return {*_placement.gpu, _device, _kind, values}; }
    [[nodiscard]] Integers blank(const int count) const { return holding(blanks(count)); }
    /// For the peer of a point-to-point function: host memory in the first round, the cell's kind in the second.
    [[nodiscard]] Integers for_peer(const bool same_kind, const Values& values) const {
        return {*_placement.gpu, _device, same_kind ? _kind : bench::BufferKind::host, values};
    }

    /// Throws CallFailed unless `code` is success.
    void require(int code) const;
    /// Throws WrongData where the buffer differs from `expected`; `what`: "the receive buffer".
    static void expect(const Integers& buffer, const Values& expected, const char* what = "the receive buffer");
    static void expect(const Values& found, const Values& expected, const char* what);

    /// Waits for `request`, and requires its success.
    void wait(MPI_Request& request) const;
    /// Starts a persistent operation, waits for it and frees it.
    void run_persistent(MPI_Request& request) const;
    void barrier() const { require(MPI_Barrier(_communicator)); }

  private:
    const bench::Placement& _placement;
    MPI_Comm _communicator;
    bench::BufferKind _kind;
    int _device;
    int _rank = 0;
    int _ranks = 0;
    int _tag;
};

}  // namespace awaken::probe
