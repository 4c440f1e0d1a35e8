// SPDX-License-Identifier: Apache-2.0
// The choice of an algorithm for a collective: a table that people can read and override.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coll/device/plan.h"

namespace awaken::coll {

/// What kind of values a collective reduces.
enum class TypeClass : std::uint8_t {
    integer,
    floating,
    complex,
    pair,  ///< a value and its index, or two values
    boolean,
    other,   ///< no kernel reduces it
    nothing  ///< not a reduction
};
inline constexpr int kTypeClasses = 7;

[[nodiscard]] const char* to_string(TypeClass type) noexcept;
/// `code` as in kernels::code_of(), 0 if there is none.
[[nodiscard]] TypeClass type_class_of(Kind kind, std::uint32_t code) noexcept;

/// The collective that an algorithm is chosen for.
struct Occasion {
    Kind kind = Kind::allreduce;
    TypeClass type = TypeClass::nothing;
    int ranks = 1;
    int nodes = 1;  ///< the nodes that the ranks are on
    /// Of a reduction or broadcast the whole; of gather, scatter, allgather, reduce_scatter and alltoall one member's
    /// part (the largest, where they differ).
    std::uint64_t bytes = 0;
};

/// One row. It applies to the collectives and to the ranges that it names, if its algorithm can do them.
struct SelectionRow {
    std::optional<Kind> kind;        ///< nothing: every collective
    std::uint32_t types = kAnyType;  ///< a bit for each TypeClass
    int least_ranks = 1;
    int most_ranks = kAnyRanks;
    int least_nodes = 1;
    int most_nodes = kAnyRanks;
    std::uint64_t least_bytes = 0;
    std::uint64_t most_bytes = kAnyBytes;
    Algorithm algorithm = Algorithm::staged;
    /// The measurement that set a built-in row, in a few words.
    std::string_view measured;

    [[nodiscard]] bool applies_to(const Occasion& occasion) const noexcept;

    static constexpr std::uint32_t kAnyType = (1U << kTypeClasses) - 1;
    static constexpr int kAnyRanks = 1 << 30;
    static constexpr std::uint64_t kAnyBytes = ~std::uint64_t{0};

    /// Whether they choose alike.
    bool operator==(const SelectionRow& other) const noexcept;
};

class Selection {
  public:
    /// The built-in table.
    Selection();
    /// Rows of `text` come before the built-in ones: the first row that applies counts. Rows are separated by
    /// semicolons or line ends; "#" begins a comment. A row:
    ///
    ///     allreduce types=floating,integer ranks=4-8 nodes=1 bytes=64M- : ccl
    ///
    /// The collective is one of Kind's names or "*". A range is "from-to", "from-", "-to" or one number. Bytes take K,
    /// M and G. A range that is left out means any. Throws Error that begins with `name` when a row cannot be
    /// understood.
    Selection(std::string_view text, const std::string& name);

    /// `without`: an algorithm that turned out to be unavailable; its rows are passed over.
    [[nodiscard]] Algorithm choose(const Occasion& occasion, std::optional<Algorithm> without = {}) const noexcept;

    [[nodiscard]] std::span<const SelectionRow> rows() const noexcept { return _rows; }
    /// The table in the form in which rows are read, one a line.
    [[nodiscard]] std::string text() const;
    /// Equal for equal tables, since all members of a communicator must choose alike.
    [[nodiscard]] std::uint64_t hash() const noexcept;

  private:
    std::vector<SelectionRow> _rows;
};

}  // namespace awaken::coll
