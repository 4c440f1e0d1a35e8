// SPDX-License-Identifier: Apache-2.0
// The update of a block's halo from the neighbours' cells, in nine ways that give the same halo.
//
// All exchange the columns first and then the rows, so that the corners arrive without messages to diagonal neighbours
// (decomposition.h). They differ in who packs the columns, who starts the messages, and what carries them.
#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <vector>

#include "array.h"
#include "ccl.h"
#include "compute.h"
#include "decomposition.h"
#include "ranges.h"

namespace ghost_exchange {

/// What allocating and freeing buffers has cost.
struct AllocationCosts {
    long long calls = 0;
    double seconds = 0;
};

class HaloExchange {
  public:
    HaloExchange() = default;
    virtual ~HaloExchange() = default;
    HaloExchange(const HaloExchange&) = delete;
    HaloExchange& operator=(const HaloExchange&) = delete;

    /// Fills the halo of x where there are neighbours. All work on x is over before and after. Collective.
    virtual void update(double* x) = 0;

    /// The same in parts, between which the CPU computes what reads no halo and writes nothing of x: begin() returns
    /// when messages are under way, progress() does what has become possible since, finish() waits for the rest. An
    /// exchange that has no parts is over when begin() returns. begin() and finish() are collective.
    virtual void begin(double* x) { update(x); }
    virtual void progress() {}
    virtual void finish() {}

    /// Of an exchange that is_queued() (options.h): queues the boundary conditions of x and the update in the stream of
    /// the kernels. Waits neither for what is in the stream before nor for the update. Collective.
    virtual void queue_halo(double* /* x */) {}

    /// What the buffers have cost so far.
    [[nodiscard]] virtual AllocationCosts allocation_costs() const { return {}; }
};

/// The exchange that the options ask for. Collective.
[[nodiscard]] std::unique_ptr<HaloExchange> make_exchange(const Options& options, const Block& block, Compute& compute,
                                                          const apps::Ccl* ccl);

// One for each way; halo_exchange_<way>.cpp, and the last two in halo_exchange_queued.cpp.
[[nodiscard]] std::unique_ptr<HaloExchange> exchange_packed(const Options& options, const Block& block,
                                                            Compute& compute);
[[nodiscard]] std::unique_ptr<HaloExchange> exchange_datatype(const Block& block);
[[nodiscard]] std::unique_ptr<HaloExchange> exchange_neighbour(const Block& block);
[[nodiscard]] std::unique_ptr<HaloExchange> exchange_persistent(const Options& options, const Block& block,
                                                                Compute& compute);
[[nodiscard]] std::unique_ptr<HaloExchange> exchange_overlap(const Options& options, const Block& block,
                                                             Compute& compute);
[[nodiscard]] std::unique_ptr<HaloExchange> exchange_staged(const Options& options, const Block& block,
                                                            Compute& compute);
[[nodiscard]] std::unique_ptr<HaloExchange> exchange_ccl(const Options& options, const Block& block, Compute& compute,
                                                         const apps::Ccl& ccl);
[[nodiscard]] std::unique_ptr<HaloExchange> exchange_enqueue(const Options& options, const Block& block,
                                                             Compute& compute);
[[nodiscard]] std::unique_ptr<HaloExchange> exchange_graph(const Options& options, const Block& block,
                                                           Compute& compute);

// ---- what several of them use

/// The four buffers of the exchange of columns; null on sides without a neighbour.
class ColumnBuffers {
  public:
    /// Ends the job with a message where there is no room.
    ColumnBuffers(Memory memory, const Block& block);

    [[nodiscard]] double* left_sent() const { return _left_sent.data(); }
    [[nodiscard]] double* right_sent() const { return _right_sent.data(); }
    [[nodiscard]] double* left_received() const { return _left_received.data(); }
    [[nodiscard]] double* right_received() const { return _right_received.data(); }

  private:
    Array _left_sent;
    Array _right_sent;
    Array _left_received;
    Array _right_received;
};

/// Buffers that are allocated once, or for each update anew.
template <class Buffers>
class AllocatedBuffers {
  public:
    AllocatedBuffers(const Options& options, const Block& block)
        : _memory(options.memory), _block(block), _per_call(options.buffers_per_call) {
        if (!_per_call) {
            allocate();
        }
    }

    /// Around each update.
    void begin() {
        if (_per_call) {
            allocate();
        }
    }
    void end() {
        if (_per_call) {
            free();
        }
    }

    [[nodiscard]] const Buffers& operator*() const { return *_buffers; }
    [[nodiscard]] const Buffers* operator->() const { return &*_buffers; }
    [[nodiscard]] const AllocationCosts& costs() const { return _costs; }

  private:
    void allocate() {
        const apps::Range range("allocation");
        const double start_time = MPI_Wtime();
        _buffers.emplace(_memory, _block);
        _costs.seconds += MPI_Wtime() - start_time;
        ++_costs.calls;
    }
    /// Belongs to the costs: giving device memory back waits for the device.
    void free() {
        const apps::Range range("allocation");
        const double start_time = MPI_Wtime();
        _buffers.reset();
        _costs.seconds += MPI_Wtime() - start_time;
    }

    const Memory _memory;
    const Block _block;
    const bool _per_call;
    std::optional<Buffers> _buffers;
    AllocationCosts _costs;
};

/// An array of that kind; ends the job with a message where there is no room.
[[nodiscard]] Array require_array(Memory memory, Index cells, const char* purpose);

/// One message to and one from each of two opposite neighbours, of which either may be MPI_PROC_NULL: left and right,
/// or bottom and top. Tags are 1001 towards the first and 1002 towards the second, and two more for each further
/// message.
struct MessagePair {
    int first = MPI_PROC_NULL;
    int second = MPI_PROC_NULL;
    const double* first_sent = nullptr;
    const double* second_sent = nullptr;
    double* first_received = nullptr;
    double* second_received = nullptr;
    int count = 0;
    MPI_Datatype type = MPI_DOUBLE;
    int number = 0;  ///< among the messages to the same neighbour

    [[nodiscard]] int tag_to_first() const { return 1001 + 2 * number; }
    [[nodiscard]] int tag_to_second() const { return 1002 + 2 * number; }
};

[[nodiscard]] MessagePair column_messages(const Block& block, const ColumnBuffers& buffers);
[[nodiscard]] MessagePair row_messages(const Block& block, double* x, int number);

/// Starts the messages, two for each neighbour that is there, and adds their requests.
void start(const MessagePair& messages, std::vector<MPI_Request>& requests);
/// Waits for all requests, which are no more afterwards.
void wait_for(std::vector<MPI_Request>& requests);

}  // namespace ghost_exchange
