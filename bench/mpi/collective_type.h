// SPDX-License-Identifier: Apache-2.0
// The datatype of one message of a collective: so many elements, or -D's derived type with its gaps.
//
// Compiled once per MPI ABI.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/options.h"
#include "mpi/communication.h"

namespace awaken::bench {

/// The predefined datatype.
[[nodiscard]] MPI_Datatype mpi_type(ElementType type);

/// A message of `elements` elements as a program describes it to MPI. Lengths and positions are counted in elements.
class MessageType {
  public:
    /// As the OSU micro-benchmarks do: a derived type covers the whole message, one of it is sent, and the figures of
    /// -D are elements. Throws Error when its blocks overlap or are too many for MPI's int.
    MessageType(ElementType element, const std::optional<DerivedType>& derived, std::size_t elements);
    ~MessageType();
    MessageType(const MessageType&) = delete;
    MessageType& operator=(const MessageType&) = delete;

    [[nodiscard]] MPI_Datatype handle() const noexcept { return _handle; }
    [[nodiscard]] bool derived() const noexcept { return _derived; }
    /// Memory from one message to the next.
    [[nodiscard]] std::size_t span() const noexcept { return _span; }
    /// What really travels.
    [[nodiscard]] std::size_t transmitted() const noexcept { return _transmitted; }

    /// Copies those bytes of a stretch of one message that travel, and leaves the gaps of `to` alone. Both are elements
    /// [first, first + n) of the message, of `element_bytes` bytes each.
    void copy_transmitted(std::span<const std::byte> from, std::span<std::byte> to, std::size_t first,
                          std::size_t element_bytes) const;

  private:
    struct Run {
        std::size_t first;
        std::size_t length;
    };

    void build_contiguous(MPI_Datatype element, std::size_t elements);
    void build_vector(MPI_Datatype element, const DerivedType& derived, std::size_t elements);
    void build_indexed(MPI_Datatype element, const DerivedType& derived);

    MPI_Datatype _handle;
    bool _derived = false;
    std::size_t _span = 0;
    std::size_t _transmitted = 0;
    // The runs that travel, in ascending order, again every `_period` elements.
    std::vector<Run> _runs;
    std::size_t _period = 0;
};

}  // namespace awaken::bench
