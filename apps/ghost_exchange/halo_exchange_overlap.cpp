// SPDX-License-Identifier: Apache-2.0
// The packed exchange in parts, so that the CPU can compute between them: messages are started, looked after, and
// waited for in the end.
//
// The rows cannot go before the columns have arrived, as they take the corners along. So there are two rounds, and
// somebody has to notice that the first is over: progress() does, which is also when an MPI without a thread of its own
// moves large messages on. The order of the steps around this is in simulation.cpp.
#include "halo_exchange.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

class OverlapExchange final : public HaloExchange {
  public:
    OverlapExchange(const Options& options, const Block& block, Compute& compute)
        : _block(block), _compute(compute), _buffers(options, block) {}

    void update(double* x) override {
        begin(x);
        finish();
    }

    void begin(double* x) override {
        _buffers.begin();
        _x = x;
        {
            const apps::Range range("pack");
            _compute.pack(_buffers->left_sent(), _buffers->right_sent(), _x);
            _compute.wait();
        }
        const apps::Range range("exchange");
        start(column_messages(_block, *_buffers), _requests);
        _columns_travel = true;
    }

    void progress() override {
        int over = 0;
        {
            const apps::Range range("exchange");
            MPI_Testall(static_cast<int>(_requests.size()), _requests.data(), &over, MPI_STATUSES_IGNORE);
        }
        if (over != 0 && _columns_travel) {
            start_rows();
        }
    }

    void finish() override {
        if (_columns_travel) {
            wait();
            start_rows();
        }
        wait();
        _buffers.end();
    }

    [[nodiscard]] AllocationCosts allocation_costs() const override { return _buffers.costs(); }

  private:
    /// The columns are here.
    void start_rows() {
        _columns_travel = false;
        {
            const apps::Range range("unpack");
            _compute.unpack(_x, _buffers->left_received(), _buffers->right_received());
            _compute.wait();
        }
        const apps::Range range("exchange");
        _requests.clear();
        for (int message = 0; message < _block.row_messages(); ++message) {
            start(row_messages(_block, _x, message), _requests);
        }
    }

    void wait() {
        const apps::Range range("exchange");
        wait_for(_requests);
    }

    const Block _block;
    Compute& _compute;
    AllocatedBuffers<ColumnBuffers> _buffers;
    std::vector<MPI_Request> _requests;
    double* _x = nullptr;
    bool _columns_travel = false;
};

}  // namespace

std::unique_ptr<HaloExchange> exchange_overlap(const Options& options, const Block& block, Compute& compute) {
    return std::make_unique<OverlapExchange>(options, block, compute);
}

}  // namespace ghost_exchange
