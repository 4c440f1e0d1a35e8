// SPDX-License-Identifier: Apache-2.0
// Reductions whose result is x0 op x1 op ... op xn-1, folded from left to right in the order of the communicator's
// ranks (AWAKEN_REPRODUCIBLE, info key "awaken_reproducible"). The bits depend on the values and on the number of ranks
// alone.
//
// The kernels of a node fold so in any case. Everything else comes here: the members send each other the elements as
// they are, each folds its part by the CPU, and the parts are put together. The bits are those of the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "call/call.h"
#include "call/held_op.h"
#include "call/held_type.h"
#include "coll/device/plan.h"
#include "coll/run.h"
#include "mpi/datatypes.h"

namespace awaken::AWAKEN_ABI {

/// Whether reductions on the communicator are to fold in the order of the ranks: the same on all members. Where they
/// cannot, since its members are two groups, the report says so.
[[nodiscard]] bool folds_in_rank_order(const Call& call, MPI_Comm comm);

/// One member's part of a reduction.
class RankOrder {
  public:
    struct Arguments {
        coll::Kind kind;
        const void* input;  ///< this member's operand; may be the buffer of the result
        void* result;       ///< null on a member that gets none
        /// Elements; of a reduce_scatter by member.
        std::vector<std::int64_t> counts;
        MPI_Datatype type;
        MPI_Op op;
        int root;
        MPI_Comm comm;
    };
    /// Keeps the datatype and the operation, which the program may free while the reduction goes on.
    RankOrder(Call& call, Arguments arguments);

    /// The blocking form, with buffers in any memory. Returns the error code of the MPI, as the functions below. Throws
    /// Error, after this member has done what the others wait for.
    [[nodiscard]] int run();

    // ---- the other forms, with buffers in host memory: one exchange, and fold() each time it has completed

    /// Who sends what to whom. Throws ClassedError when there is too much for one exchange.
    void prepare();
    [[nodiscard]] int begin(MPI_Request* request);
    [[nodiscard]] int begin(MPI_Info info, MPI_Request* request);
    void fold();

  private:
    /// Memory for elements of the type.
    class Elements {
      public:
        /// Makes room for so many, whose bytes are indeterminate.
        void reserve(const transfer::Layout& layout, std::int64_t count);
        [[nodiscard]] std::byte* address() const noexcept { return _address; }

      private:
        std::unique_ptr<std::byte[]> _memory;
        std::size_t _bytes = 0;
        std::byte* _address = nullptr;  ///< of the first element
    };
    /// What one member sends to the others and receives from them, in elements.
    struct Exchange {
        std::vector<int> sent, send_offsets, received, receive_offsets;
    };

    class Round;
    [[nodiscard]] int run_at_once();
    [[nodiscard]] int run_in_rounds();
    [[nodiscard]] int run_scattered();
    [[nodiscard]] int put_together(const Exchange& parts, std::byte* result);
    /// Folds `parts` parts of `count` elements that came from the first ranks, into `target`.
    void fold(int parts, std::int64_t count, std::byte* target);
    /// Part p becomes the fold of the parts to p.
    void fold_each(std::int64_t count);
    void combine(std::byte* left, std::byte* inout, std::int64_t count) const;
    void copy(std::byte* to, const std::byte* from, std::int64_t count) const;
    [[nodiscard]] std::byte* at(const void* base, std::int64_t element) const noexcept;

    Call& _call;  ///< valid during the call
    const Arguments _given;
    HeldType _type;
    std::optional<HeldOp> _op;  ///< where there is no code
    const std::uint32_t _code;  ///< see kernels::code_of()
    std::shared_ptr<const Datatype> _datatype;
    int _size = 0, _rank = 0;
    std::int64_t _most = 0;  ///< elements of the largest part, or of all
    Exchange _single;        ///< by which all is exchanged at once
    int _sources = 0;        ///< the ranks from which this member gets elements then: the first ones
    Elements _raw, _packed;
    std::optional<Error> _failure;
};

/// Does the reduction in a form that goes on after the call, see run.h. The stage has the buffers.
template <class... Tail>
int carry_out_in_rank_order(Call& call, Stage& stage, RankOrder::Arguments arguments, Tail... tail) {
    const auto order = std::make_shared<RankOrder>(call, std::move(arguments));
    order->prepare();
    stage.finish_by([order] { order->fold(); });
    return carry_out(stage, [&] { return order->begin(tail...); }, tail...);
}

}  // namespace awaken::AWAKEN_ABI
