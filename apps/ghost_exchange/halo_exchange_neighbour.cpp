// SPDX-License-Identifier: Apache-2.0
// A neighbourhood collective on a Cartesian communicator: one call for the columns, one for the rows.
//
// The communicator knows the neighbours, so the program names neither ranks nor tags. One call for all four sides would
// leave the corners as they were.
#include <array>

#include "halo_exchange.h"
#include "halo_types.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

class NeighbourExchange final : public HaloExchange {
  public:
    explicit NeighbourExchange(const Block& block) : _types(block) {
        // Not reordered: rank = xcoord + ycoord * x, the last dimension varying fastest, is how the blocks are
        // numbered.
        const std::array<int, 2> dimensions = {block.grid.y, block.grid.x};
        const std::array<int, 2> periods = {0, 0};
        MPI_Cart_create(MPI_COMM_WORLD, 2, dimensions.data(), periods.data(), 0, &_communicator);
        const auto bytes = [](Index cells) {
            return static_cast<MPI_Aint>(cells) * static_cast<MPI_Aint>(sizeof(double));
        };
        _sent = {bytes(block.bottom_sent(0)), bytes(block.top_sent(0)), bytes(_types.left_sent()),
                 bytes(_types.right_sent())};
        _received = {bytes(block.bottom_received(0)), bytes(block.top_received(0)), bytes(_types.left_received()),
                     bytes(_types.right_received())};
    }
    ~NeighbourExchange() override { MPI_Comm_free(&_communicator); }

    void update(double* x) override {
        const apps::Range range("exchange");
        exchange(x, {0, 0, 1, 1});
        exchange(x, {1, 1, 0, 0});
    }

  private:
    /// One value for each neighbour, in the order that MPI gives them: bottom, top, left, right.
    template <class Value>
    using Sides = std::array<Value, 4>;

    void exchange(double* x, const Sides<int>& counts) const {
        const Sides<MPI_Datatype> types = {_types.rows(), _types.rows(), _types.columns(), _types.columns()};
        MPI_Neighbor_alltoallw(x, counts.data(), _sent.data(), types.data(), x, counts.data(), _received.data(),
                               types.data(), _communicator);
    }

    const HaloTypes _types;
    MPI_Comm _communicator = MPI_COMM_NULL;
    Sides<MPI_Aint> _sent = {};
    Sides<MPI_Aint> _received = {};
};

}  // namespace

std::unique_ptr<HaloExchange> exchange_neighbour(const Block& block) {
    return std::make_unique<NeighbourExchange>(block);
}

}  // namespace ghost_exchange
