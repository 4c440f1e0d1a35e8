// Which algorithm does a collective: a table that people can read and override.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coll/plan.h"

namespace awaken::coll {

/// One row. It applies to the collectives and to the ranges that it names.
struct SelectionRow {
    std::optional<Kind> kind;  ///< nothing: every collective
    int least_ranks = 1;
    int most_ranks = kAnyRanks;
    std::uint64_t least_bytes = 0;
    std::uint64_t most_bytes = kAnyBytes;
    Algorithm algorithm = Algorithm::staged;

    static constexpr int kAnyRanks = 1 << 30;
    static constexpr std::uint64_t kAnyBytes = ~std::uint64_t{0};

    bool operator==(const SelectionRow&) const = default;
};

class Selection {
  public:
    /// The built-in table.
    Selection();
    /// Rows of `text` come before the built-in ones: the first that applies counts. Rows are separated by semicolons or
    /// line ends; "#" begins a comment. A row:
    ///
    ///     allreduce ranks=4-8 bytes=64M- : ccl
    ///
    /// The collective is one of Kind's names or "*"; a range is "from-to", "from-", "-to" or one number, and may be
    /// left out; bytes take K, M and G. Throws Error that begins with `name` for what is not understood.
    Selection(std::string_view text, const std::string& name);

    /// `bytes`: of a reduction or broadcast the whole, of gather, scatter, allgather, reduce_scatter and alltoall one
    /// member's part (the largest, where they differ).
    [[nodiscard]] Algorithm choose(Kind kind, int ranks, std::uint64_t bytes) const noexcept;

    [[nodiscard]] std::span<const SelectionRow> rows() const noexcept { return _rows; }
    /// In the form in which rows are read, one a line.
    [[nodiscard]] std::string text() const;
    /// Equal for equal tables: all members of a communicator must choose alike.
    [[nodiscard]] std::uint64_t hash() const noexcept;

  private:
    std::vector<SelectionRow> _rows;
};

}  // namespace awaken::coll
