// SPDX-License-Identifier: Apache-2.0
// MPI datatypes describe the columns and rows where they are: the program packs nothing and has no buffers.
//
// Where x is device memory, it is the MPI that has to gather columns there. What that costs is a property of the MPI.
#include "halo_exchange.h"
#include "halo_types.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

class DatatypeExchange final : public HaloExchange {
  public:
    explicit DatatypeExchange(const Block& block) : _block(block), _types(block) {}

    void update(double* x) override {
        const apps::Range range("exchange");
        MessagePair columns;
        columns.first = _block.left;
        columns.second = _block.right;
        columns.first_sent = x + _types.left_sent();
        columns.second_sent = x + _types.right_sent();
        columns.first_received = x + _types.left_received();
        columns.second_received = x + _types.right_received();
        columns.count = 1;
        columns.type = _types.columns();
        start(columns, _requests);
        wait_for(_requests);

        MessagePair rows = row_messages(_block, x, 0);
        rows.count = 1;
        rows.type = _types.rows();
        start(rows, _requests);
        wait_for(_requests);
    }

  private:
    const Block _block;
    const HaloTypes _types;
    std::vector<MPI_Request> _requests;
};

}  // namespace

std::unique_ptr<HaloExchange> exchange_datatype(const Block& block) {
    return std::make_unique<DatatypeExchange>(block);
}

}  // namespace ghost_exchange
