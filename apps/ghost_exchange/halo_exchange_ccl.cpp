// SPDX-License-Identifier: Apache-2.0
// The packed exchange by sends and receives of NCCL or RCCL, which know streams.
//
// Packing, sending, receiving and unpacking are queued one after the other in one stream, and the CPU waits once, at
// the end. With MPI it has to wait before and after each exchange.
#include "halo_exchange.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

class CclExchange final : public HaloExchange {
  public:
    CclExchange(const Options& options, const Block& block, Compute& compute, const apps::Ccl& ccl)
        : _block(block), _compute(compute), _ccl(ccl), _buffers(options, block) {}

    void update(double* x) override {
        _buffers.begin();
        {
            const apps::Range range("exchange");
            const hipStream_t stream = stream_of(_compute);
            _compute.pack(_buffers->left_sent(), _buffers->right_sent(), x);
            _ccl.start_group();
            queue(column_messages(_block, *_buffers), stream);
            _ccl.end_group();
            _compute.unpack(x, _buffers->left_received(), _buffers->right_received());
            _ccl.start_group();
            for (int message = 0; message < _block.row_messages(); ++message) {
                queue(row_messages(_block, x, message), stream);
            }
            _ccl.end_group();
            _ccl.wait(stream);
        }
        _buffers.end();
    }

    [[nodiscard]] AllocationCosts allocation_costs() const override { return _buffers.costs(); }

  private:
    void queue(const MessagePair& m, hipStream_t stream) const {
        const auto count = static_cast<std::size_t>(m.count);
        if (m.first != MPI_PROC_NULL) {
            _ccl.send(m.first_sent, count, m.first, stream);
            _ccl.receive(m.first_received, count, m.first, stream);
        }
        if (m.second != MPI_PROC_NULL) {
            _ccl.send(m.second_sent, count, m.second, stream);
            _ccl.receive(m.second_received, count, m.second, stream);
        }
    }

    const Block _block;
    Compute& _compute;
    const apps::Ccl& _ccl;
    AllocatedBuffers<ColumnBuffers> _buffers;
};

}  // namespace

std::unique_ptr<HaloExchange> exchange_ccl(const Options& options, const Block& block, Compute& compute,
                                           const apps::Ccl& ccl) {
    return std::make_unique<CclExchange>(options, block, compute, ccl);
}

}  // namespace ghost_exchange
