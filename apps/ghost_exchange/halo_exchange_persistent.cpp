// SPDX-License-Identifier: Apache-2.0
// The packed exchange with persistent requests: each message is described once and started in every update.
//
// A request belongs to its buffer. The columns' buffers stay, but the rows lie in the field, which is in one of two
// arrays after each step: each array has requests of its own.
#include <map>

#include "halo_exchange.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

using Requests = std::vector<MPI_Request>;

void describe(const MessagePair& m, Requests& requests) {
    const auto request = [&] { return &requests.emplace_back(MPI_REQUEST_NULL); };
    if (m.first != MPI_PROC_NULL) {
        MPI_Recv_init(m.first_received, m.count, m.type, m.first, m.tag_to_second(), MPI_COMM_WORLD, request());
        MPI_Send_init(m.first_sent, m.count, m.type, m.first, m.tag_to_first(), MPI_COMM_WORLD, request());
    }
    if (m.second != MPI_PROC_NULL) {
        MPI_Recv_init(m.second_received, m.count, m.type, m.second, m.tag_to_first(), MPI_COMM_WORLD, request());
        MPI_Send_init(m.second_sent, m.count, m.type, m.second, m.tag_to_second(), MPI_COMM_WORLD, request());
    }
}

void carry_out(Requests& requests) {
    // A field of one block's height or width has no neighbours there; Open MPI does not start a list of none.
    if (requests.empty()) {
        return;
    }
    const apps::Range range("exchange");
    const auto count = static_cast<int>(requests.size());
    MPI_Startall(count, requests.data());
    MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE);
}

void free_all(Requests& requests) {
    for (MPI_Request& request : requests) {
        MPI_Request_free(&request);
    }
}

class PersistentExchange final : public HaloExchange {
  public:
    PersistentExchange(const Options& options, const Block& block, Compute& compute)
        : _block(block), _compute(compute), _buffers(options, block) {
        describe(column_messages(_block, *_buffers), _columns);
    }
    ~PersistentExchange() override {
        free_all(_columns);
        for (auto& [x, requests] : _rows) {
            free_all(requests);
        }
    }

    void update(double* x) override {
        {
            const apps::Range range("pack");
            _compute.pack(_buffers->left_sent(), _buffers->right_sent(), x);
            _compute.wait();
        }
        carry_out(_columns);
        {
            const apps::Range range("unpack");
            _compute.unpack(x, _buffers->left_received(), _buffers->right_received());
            _compute.wait();
        }
        const auto [at, is_new] = _rows.try_emplace(x);
        for (int message = 0; is_new && message < _block.row_messages(); ++message) {
            describe(row_messages(_block, x, message), at->second);
        }
        carry_out(at->second);
    }

    [[nodiscard]] AllocationCosts allocation_costs() const override { return _buffers.costs(); }

  private:
    const Block _block;
    Compute& _compute;
    const AllocatedBuffers<ColumnBuffers> _buffers;
    Requests _columns;
    std::map<const double*, Requests> _rows;
};

}  // namespace

std::unique_ptr<HaloExchange> exchange_persistent(const Options& options, const Block& block, Compute& compute) {
    return std::make_unique<PersistentExchange>(options, block, compute);
}

}  // namespace ghost_exchange
