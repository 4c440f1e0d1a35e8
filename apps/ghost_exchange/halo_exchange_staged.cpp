// SPDX-License-Identifier: Apache-2.0
// The packed exchange on an MPI without GPU support: everything that travels is copied to buffers in host memory first
// and back afterwards, by the program.
//
// This is what GPU-aware MPI saves a program from writing, and what it has to be faster than. Where the field lies in
// host memory already, nobody needs the copies; they are made all the same, and show what they cost.
#include "device.h"
#include "halo_exchange.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

/// Host memory that the GPU copies to and from the fastest; without a GPU, any.
Memory staging_of(Memory memory) {
    return memory == Memory::host ? Memory::host : Memory::pinned;
}

/// Rows of one side in host memory, one after another.
struct RowBuffers {
    RowBuffers(Memory staging, const Block& block, int neighbour) {
        if (neighbour == MPI_PROC_NULL) {
            return;
        }
        const Index cells = static_cast<Index>(block.row_messages()) * block.cells_of_row_message();
        sent = require_array(staging, cells, "a buffer");
        received = require_array(staging, cells, "a buffer");
    }
    Array sent;
    Array received;
};

/// What one update needs.
struct Buffers {
    Buffers(Memory memory, const Block& block)
        : columns(memory, block),
          h_columns(staging_of(memory), block),
          bottom(staging_of(memory), block, block.bottom),
          top(staging_of(memory), block, block.top) {}

    ColumnBuffers columns;    ///< beside the field, for packing and unpacking
    ColumnBuffers h_columns;  ///< where MPI sends from and receives to
    RowBuffers bottom;
    RowBuffers top;
};

class StagedExchange final : public HaloExchange {
  public:
    StagedExchange(const Options& options, const Block& block, Compute& compute)
        : _memory(options.memory), _block(block), _compute(compute), _buffers(options, block) {}

    void update(double* x) override {
        _buffers.begin();
        exchange_columns(x);
        exchange_rows(x);
        _buffers.end();
    }

    [[nodiscard]] AllocationCosts allocation_costs() const override { return _buffers.costs(); }

  private:
    void exchange_columns(double* x) {
        const ColumnBuffers& packed = _buffers->columns;
        const ColumnBuffers& host = _buffers->h_columns;
        {
            const apps::Range range("pack");
            _compute.pack(packed.left_sent(), packed.right_sent(), x);
            _compute.wait();
            copy(host.left_sent(), packed.left_sent());
            copy(host.right_sent(), packed.right_sent());
        }
        {
            const apps::Range range("exchange");
            start(column_messages(_block, host), _requests);
            wait_for(_requests);
        }
        {
            const apps::Range range("unpack");
            copy(packed.left_received(), host.left_received());
            copy(packed.right_received(), host.right_received());
            wait_for_copies();
            _compute.unpack(x, packed.left_received(), packed.right_received());
            _compute.wait();
        }
    }

    void exchange_rows(double* x) {
        const RowBuffers& bottom = _buffers->bottom;
        const RowBuffers& top = _buffers->top;
        {
            const apps::Range range("pack");
            gather(bottom.sent, x + _block.bottom_sent(0));
            gather(top.sent, x + _block.top_sent(0));
        }
        {
            const apps::Range range("exchange");
            const int cells = _block.cells_of_row_message();
            const auto message = [&](const Array& rows, int number) {
                return rows.data() != nullptr ? rows.data() + static_cast<Index>(number) * cells : nullptr;
            };
            for (int number = 0; number < _block.row_messages(); ++number) {
                MessagePair messages;
                messages.first = _block.bottom;
                messages.second = _block.top;
                messages.first_sent = message(bottom.sent, number);
                messages.second_sent = message(top.sent, number);
                messages.first_received = message(bottom.received, number);
                messages.second_received = message(top.received, number);
                messages.count = cells;
                messages.number = number;
                start(messages, _requests);
            }
            wait_for(_requests);
        }
        {
            const apps::Range range("unpack");
            scatter(x + _block.bottom_received(0), bottom.received);
            scatter(x + _block.top_received(0), top.received);
            wait_for_copies();
        }
    }

    /// A copy to the GPU may still be on its way when the call returns, and no stream of kernels waits for it.
    void wait_for_copies() const {
        if (kernels_reach(_memory)) {
            HIP_CHECK(hipDeviceSynchronize());
        }
    }
    void copy(double* target, const double* source) const {
        const Index cells = _block.column_cells();
        if (target != nullptr) {
            copy_rows(_memory, target, cells, source, cells, cells, 1);
        }
    }
    /// Rows that lie `stride` cells apart in the field become consecutive, and the reverse. With corners all rows are
    /// one, longer than the distance between two.
    void gather(const Array& rows, const double* x) const {
        const Index cells = _block.cells_of_row_message();
        if (rows.data() != nullptr) {
            copy_rows(_memory, rows.data(), cells, x, _block.stride(), cells, _block.row_messages());
        }
    }
    void scatter(double* x, const Array& rows) const {
        const Index cells = _block.cells_of_row_message();
        if (rows.data() != nullptr) {
            copy_rows(_memory, x, _block.stride(), rows.data(), cells, cells, _block.row_messages());
        }
    }

    const Memory _memory;
    const Block _block;
    Compute& _compute;
    AllocatedBuffers<Buffers> _buffers;
    std::vector<MPI_Request> _requests;
};

}  // namespace

std::unique_ptr<HaloExchange> exchange_staged(const Options& options, const Block& block, Compute& compute) {
    return std::make_unique<StagedExchange>(options, block, compute);
}

}  // namespace ghost_exchange
