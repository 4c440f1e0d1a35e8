// SPDX-License-Identifier: Apache-2.0
// Columns are packed into buffers and travel as one message to each side; rows travel from where they are.
//
// With a GPU-aware MPI, buffers and rows are device memory: nothing passes through the host. The CPU has to wait for
// the packing before it may call MPI, and for the unpacking before the rows, which begin and end in the halo, may go.
#include "halo_exchange.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

class PackedExchange final : public HaloExchange {
  public:
    PackedExchange(const Options& options, const Block& block, Compute& compute)
        : _block(block), _compute(compute), _buffers(options, block) {}

    void update(double* x) override {
        _buffers.begin();
        {
            const apps::Range range("pack");
            _compute.pack(_buffers->left_sent(), _buffers->right_sent(), x);
            _compute.wait();
        }
        {
            const apps::Range range("exchange");
            start(column_messages(_block, *_buffers), _requests);
            wait_for(_requests);
        }
        {
            const apps::Range range("unpack");
            _compute.unpack(x, _buffers->left_received(), _buffers->right_received());
            _compute.wait();
        }
        {
            const apps::Range range("exchange");
            for (int message = 0; message < _block.row_messages(); ++message) {
                start(row_messages(_block, x, message), _requests);
            }
            wait_for(_requests);
        }
        _buffers.end();
    }

    [[nodiscard]] AllocationCosts allocation_costs() const override { return _buffers.costs(); }

  private:
    const Block _block;
    Compute& _compute;
    AllocatedBuffers<ColumnBuffers> _buffers;
    std::vector<MPI_Request> _requests;
};

}  // namespace

std::unique_ptr<HaloExchange> exchange_packed(const Options& options, const Block& block, Compute& compute) {
    return std::make_unique<PackedExchange>(options, block, compute);
}

}  // namespace ghost_exchange
