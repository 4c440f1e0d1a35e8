// The packed exchange on an MPI without GPU support: everything that travels is copied to pinned host memory first and
// back afterwards, by the program.
//
// This is what GPU-aware MPI saves a program from writing, and what it has to be faster than.
#include "device.h"
#include "halo_exchange.h"
#include "ranges.h"

namespace ghost_exchange {

namespace {

/// Rows of one side in host memory, one after another.
struct RowBuffers {
    RowBuffers(const Block& block, int neighbour) {
        if (neighbour == MPI_PROC_NULL) return;
        const Index cells = static_cast<Index>(block.row_messages()) * block.cells_of_row_message();
        sent = require_array(Memory::pinned, cells, "a buffer");
        received = require_array(Memory::pinned, cells, "a buffer");
    }
    Array sent;
    Array received;
};

/// What one update needs.
struct Buffers {
    Buffers(Memory memory, const Block& block)
        : columns(memory, block),
          h_columns(Memory::pinned, block),
          bottom(block, block.bottom),
          top(block, block.top) {}

    ColumnBuffers columns;    ///< where kernels pack and unpack
    ColumnBuffers h_columns;  ///< where MPI sends from and receives to
    RowBuffers bottom;
    RowBuffers top;
};

class StagedExchange final : public HaloExchange {
  public:
    StagedExchange(const Options& options, const Block& block, Compute& compute)
        : _block(block), _compute(compute), _buffers(options, block) {}

    void update(double* x) override {
        _buffers.begin();
        exchange_columns(x);
        exchange_rows(x);
        _buffers.end();
    }

    [[nodiscard]] AllocationCosts allocation_costs() const override { return _buffers.costs(); }

  private:
    void exchange_columns(double* x) {
        const ColumnBuffers& device = _buffers->columns;
        const ColumnBuffers& host = _buffers->h_columns;
        {
            const apps::Range range("pack");
            _compute.pack(device.left_sent(), device.right_sent(), x);
            _compute.wait();
            copy(host.left_sent(), device.left_sent());
            copy(host.right_sent(), device.right_sent());
        }
        {
            const apps::Range range("exchange");
            start(column_messages(_block, host), _requests);
            wait_for(_requests);
        }
        {
            const apps::Range range("unpack");
            copy(device.left_received(), host.left_received());
            copy(device.right_received(), host.right_received());
            _compute.unpack(x, device.left_received(), device.right_received());
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
            HIP_CHECK(hipDeviceSynchronize());
        }
    }

    void copy(double* target, const double* source) const {
        if (target == nullptr) return;
        const std::size_t bytes = static_cast<std::size_t>(_block.column_cells()) * sizeof(double);
        HIP_CHECK(hipMemcpy(target, source, bytes, hipMemcpyDefault));
    }
    /// Rows that lie `stride` cells apart in the field become consecutive, and the reverse.
    void gather(const Array& rows, const double* x) const {
        if (rows.data() != nullptr) copy_rows(rows.data(), row_bytes(), x, stride_bytes());
    }
    void scatter(double* x, const Array& rows) const {
        if (rows.data() != nullptr) copy_rows(x, stride_bytes(), rows.data(), row_bytes());
    }
    void copy_rows(double* target, std::size_t target_pitch, const double* source, std::size_t source_pitch) const {
        const auto rows = static_cast<std::size_t>(_block.row_messages());
        // With corners all rows are one, longer than the distance between two.
        HIP_CHECK(rows == 1
                      ? hipMemcpy(target, source, row_bytes(), hipMemcpyDefault)
                      : hipMemcpy2D(target, target_pitch, source, source_pitch, row_bytes(), rows, hipMemcpyDefault));
    }
    [[nodiscard]] std::size_t row_bytes() const {
        return static_cast<std::size_t>(_block.cells_of_row_message()) * sizeof(double);
    }
    [[nodiscard]] std::size_t stride_bytes() const {
        return static_cast<std::size_t>(_block.stride()) * sizeof(double);
    }

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
