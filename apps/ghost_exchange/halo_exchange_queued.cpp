// SPDX-License-Identifier: Apache-2.0
// The packed exchange by MPI's stream API: the kernels' stream orders the messages, and the CPU waits for none.
//
// Packing, messages and unpacking are queued one after the other, as with NCCL (halo_exchange_ccl.cpp), but as ordinary
// messages of MPI. The boundary conditions are queued with them, so that all of the halo is one piece of the stream.
// --exchange graph captures that piece once and launches it in every step. A graph belongs to its memory, and the field
// is in one of two arrays after each step: each has a graph of its own.
#include <map>
#include <utility>

#include "device.h"
#include "halo_exchange.h"
#include "program.h"
#include "ranges.h"
#include "stream_communicator.h"

namespace ghost_exchange {

namespace {

class QueuedExchange : public HaloExchange {
  public:
    QueuedExchange(const Options& options, const Block& block, Compute& compute)
        : _block(block), _compute(compute), _buffers(options, block), _communicator(stream_of(compute)) {
        apps::leave_if("ghost_exchange", _communicator.problem().empty() ? ""
                                                                         : "--exchange " + name_of(options.exchange) +
                                                                               ": " + _communicator.problem());
    }

    void update(double* x) final {
        queue_halo(x);
        _compute.wait();
    }

    void queue_halo(double* x) override {
        const apps::Range range("exchange");
        _compute.start_boundary(x);
        _compute.pack(_buffers->left_sent(), _buffers->right_sent(), x);
        start(column_messages(_block, *_buffers));
        _communicator.wait_for(_requests);
        _compute.unpack(x, _buffers->left_received(), _buffers->right_received());
        for (int message = 0; message < _block.row_messages(); ++message) {
            start(row_messages(_block, x, message));
        }
        _communicator.wait_for(_requests);
    }

    [[nodiscard]] AllocationCosts allocation_costs() const final { return _buffers.costs(); }

  protected:
    [[nodiscard]] hipStream_t stream() const { return stream_of(_compute); }

  private:
    void start(const MessagePair& m) {
        const auto request = [&] { return &_requests.emplace_back(MPI_REQUEST_NULL); };
        if (m.first != MPI_PROC_NULL) {
            _communicator.receive(m.first_received, m.count, m.type, m.first, m.tag_to_second(), request());
            _communicator.send(m.first_sent, m.count, m.type, m.first, m.tag_to_first(), request());
        }
        if (m.second != MPI_PROC_NULL) {
            _communicator.receive(m.second_received, m.count, m.type, m.second, m.tag_to_first(), request());
            _communicator.send(m.second_sent, m.count, m.type, m.second, m.tag_to_second(), request());
        }
    }

    const Block _block;
    Compute& _compute;
    const AllocatedBuffers<ColumnBuffers> _buffers;
    const apps::StreamCommunicator _communicator;
    std::vector<MPI_Request> _requests;
};

class GraphExchange final : public QueuedExchange {
  public:
    using QueuedExchange::QueuedExchange;
    ~GraphExchange() override {
        for (const auto& [x, graph] : _graphs) {
            HIP_CHECK(hipGraphExecDestroy(graph));
        }
    }

    void queue_halo(double* x) override {
        // The first one is only queued: it may load kernels and make room, which no capture can hold.
        if (!std::exchange(_has_begun, true)) {
            return QueuedExchange::queue_halo(x);
        }
        hipGraphExec_t& graph = _graphs[x];
        if (graph == nullptr) {
            graph = capture(x);
        }
        HIP_CHECK(hipGraphLaunch(graph, stream()));
    }

  private:
    [[nodiscard]] hipGraphExec_t capture(double* x) {
        hipGraph_t captured = nullptr;
        hipGraphExec_t graph = nullptr;
        HIP_CHECK(hipStreamBeginCapture(stream(), hipStreamCaptureModeGlobal));
        QueuedExchange::queue_halo(x);
        HIP_CHECK(hipStreamEndCapture(stream(), &captured));
        HIP_CHECK(hipGraphInstantiateWithFlags(&graph, captured, 0));
        HIP_CHECK(hipGraphDestroy(captured));
        return graph;
    }

    bool _has_begun = false;
    std::map<const double*, hipGraphExec_t> _graphs;
};

}  // namespace

std::unique_ptr<HaloExchange> exchange_enqueue(const Options& options, const Block& block, Compute& compute) {
    return std::make_unique<QueuedExchange>(options, block, compute);
}

std::unique_ptr<HaloExchange> exchange_graph(const Options& options, const Block& block, Compute& compute) {
    return std::make_unique<GraphExchange>(options, block, compute);
}

}  // namespace ghost_exchange
