// SPDX-License-Identifier: Apache-2.0
// What a program does by hand when its MPI takes no device memory, done well: images of the device buffers in pinned
// host memory, allocated once; copies on one stream; the MPI's own functions on the images. A program that communicates
// once does not page-lock memory for it: in `first` the images are pageable.
#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

#include "mpi/benchmark.h"
#include "mpi/host_images.h"
#include "mpi/mpi_communication.h"
#include "mpi/mpi_functions.h"
#include "mpi/staged_window.h"

namespace awaken::bench {
namespace {

/// A stretch of memory that a call reads or writes.
struct Span {
    const void* data = nullptr;
    std::size_t bytes = 0;
};

/// What one collective call reads from and writes to at this rank; nothing where the arguments do not count.
struct CallSpans {
    Span read;
    Span written;
    bool reads_written = false;  ///< part of what is written is an input (in place, broadcast), or stays as it is
};

/// The copies around an operation.
struct PendingCopies final : OperationState {
    ImageCopy result;  ///< when it is complete
    bool due = false;
    std::array<ImageCopy, 2> inputs;  ///< at each start of a persistent one
    // Collectives: what the MPI may look at until the operation is complete.
    CollectiveCall call;
    std::unique_ptr<OperationState> inner;
};

class Staged final : public Communication {
  public:
    explicit Staged(const Environment& environment)
        : _images(environment.gpu, environment.device,
                  environment.test.family == Family::first ? HostImages::Memory::pageable : HostImages::Memory::pinned),
          _mpi(library_functions()) {}

    [[nodiscard]] std::string description() const override { return short_version() + " with copies by hand"; }

    void prepare(MPI_Comm /* communicator */, const std::span<const Buffer* const> buffers) override {
        _images.prepare(buffers);
    }

    /// Its stream is one that waits for the default stream.
    [[nodiscard]] bool follows_stream() const override { return true; }

    // ---- messages --------------------------------------------------------------------------------------------------

    void run(const MessageCall& call) override {
        const std::size_t bytes = span_of(call.count, call.type);
        const MessageCall moved = with_image(call, bytes);
        _mpi.run(moved);
        if (call.direction == Direction::receive) {
            _images.deliver(call.data, moved.data, bytes);
        }
    }

    void start(Operations& operations, const std::size_t index, const MessageCall& call) override {
        const std::size_t bytes = span_of(call.count, call.type);
        const MessageCall moved = with_image(call, bytes);
        _mpi.start(operations, index, moved);
        if (call.direction == Direction::receive && moved.data != call.data) {
            PendingCopies& copies = state_of(operations, index);
            copies.result = {call.data, moved.data, bytes};
            copies.due = true;
        }
    }

    void initialize(Operations& operations, const std::size_t index, const MessageCall& call) override {
        initialize_inner(operations, index, call, 1,
                         [&](const MessageCall& moved) { _mpi.initialize(operations, index, moved); });
    }

    void initialize_partitioned(Operations& operations, const std::size_t index, const MessageCall& call,
                                const int partitions) override {
        initialize_inner(operations, index, call, partitions, [&](const MessageCall& moved) {
            _mpi.initialize_partitioned(operations, index, moved, partitions);
        });
    }

    void make_ready(Operations& operations, const std::size_t index, const int partitions) override {
        _mpi.make_ready(operations, index, partitions);
    }

    // ---- collectives -----------------------------------------------------------------------------------------------

    void run(const CollectiveCall& call) override {
        const CallSpans spans = spans_of(call);
        fetch_inputs(spans);
        _moved = call;
        move_to_images(_moved);
        _mpi.run(_moved);
        _images.deliver(const_cast<void*>(spans.written.data), _images.image_of(spans.written.data),
                        spans.written.bytes);
    }

    void start(Operations& operations, const std::size_t index, const CollectiveCall& call) override {
        const CallSpans spans = spans_of(call);
        fetch_inputs(spans);
        start_inner(operations, index, call, spans, false);
    }

    void initialize(Operations& operations, const std::size_t index, const CollectiveCall& call) override {
        start_inner(operations, index, call, spans_of(call), true);
    }

    // ---- one-sided -------------------------------------------------------------------------------------------------

    [[nodiscard]] std::unique_ptr<Window> open_window(const WindowRequest& request) override {
        return open_staged_window(library_functions(), _images, request);
    }

    // ---- completion ------------------------------------------------------------------------------------------------

    void restart(Operations& operations, const std::size_t first, const std::size_t count) override {
        bool copied = false;
        for (std::size_t i = first; i < first + count; ++i) {
            if (auto* const copies = copies_of(operations, i); copies != nullptr) {
                for (const ImageCopy& input : copies->inputs) {
                    copied = _images.queue(input) || copied;
                }
                copies->due = true;
            }
        }
        if (copied) {
            _images.synchronize();
        }
        _mpi.restart(operations, first, count);
    }

    void release(Operations& operations) override { _mpi.release(operations); }

    void wait(Operations& operations, const std::size_t first, const std::size_t count) override {
        _mpi.wait(operations, first, count);
        bool copied = false;
        for (std::size_t i = first; i < first + count; ++i) {
            copied = queue_due(operations, i) || copied;
        }
        if (copied) {
            _images.synchronize();
        }
    }

    void wait_one_by_one(Operations& operations, const std::size_t first, const std::size_t count) override {
        for (std::size_t left = count; left != 0; --left) {
            if (queue_due(operations, _mpi.wait_any(operations, first, count))) {
                _images.synchronize();
            }
        }
    }

    bool test(Operations& operations, const std::size_t index) override {
        if (operations.requests[index] == MPI_REQUEST_NULL) {
            return true;
        }
        if (!_mpi.test(operations, index)) {
            return false;
        }
        if (queue_due(operations, index)) {
            _images.synchronize();
        }
        return true;
    }

  private:
    /// The bytes that `count` elements lie in.
    [[nodiscard]] static std::size_t span_of(const Count count, MPI_Datatype type) {
        if (count == 0 || type == MPI_DATATYPE_NULL) {
            return 0;
        }
        MPI_Aint lower = 0;
        MPI_Aint extent = 0;
        check_mpi(library_functions().Type_get_extent(type, &lower, &extent), "MPI_Type_get_extent");
        MPI_Aint true_lower = 0;
        MPI_Aint true_extent = 0;
        check_mpi(library_functions().Type_get_true_extent(type, &true_lower, &true_extent),
                  "MPI_Type_get_true_extent");
        return static_cast<std::size_t>((count - 1) * extent + true_lower + true_extent);
    }

    [[nodiscard]] static bool has_gaps(MPI_Datatype type) {
        int size = 0;
        MPI_Aint lower = 0;
        MPI_Aint extent = 0;
        check_mpi(library_functions().Type_size(type, &size), "MPI_Type_size");
        check_mpi(library_functions().Type_get_extent(type, &lower, &extent), "MPI_Type_get_extent");
        return size != extent;
    }

    /// The call on the image, which has what is sent. The gaps of a received type must come back as they were.
    [[nodiscard]] MessageCall with_image(MessageCall call, const std::size_t bytes) {
        void* const data = call.data;
        call.data = _images.image_of(data);
        if (call.data != data && (call.direction == Direction::send || has_gaps(call.type))) {
            call.data = _images.fetch(data, bytes);
        }
        return call;
    }

    // ---- operations under way --------------------------------------------------------------------------------------

    [[nodiscard]] static PendingCopies* copies_of(Operations& operations, const std::size_t index) noexcept {
        return dynamic_cast<PendingCopies*>(operations.states[index].get());
    }

    /// Each start of the operation copies the device's data into the image, or its end the image to the device.
    void initialize_inner(Operations& operations, const std::size_t index, const MessageCall& call, const int times,
                          const auto& initialize) {
        const std::size_t bytes = span_of(call.count * times, call.type);
        const MessageCall moved = with_image(call, bytes);
        initialize(moved);
        if (moved.data == call.data) {
            return;
        }
        PendingCopies& copies = state_of(operations, index);
        if (call.direction == Direction::receive) {
            copies.result = {call.data, moved.data, bytes};
        } else {
            copies.inputs.front() = {moved.data, call.data, bytes};
        }
    }

    [[nodiscard]] static PendingCopies& state_of(Operations& operations, const std::size_t index) {
        if (copies_of(operations, index) == nullptr) {
            operations.states[index] = std::make_unique<PendingCopies>();
        }
        return *copies_of(operations, index);
    }

    bool queue_due(Operations& operations, const std::size_t index) {
        PendingCopies* const copies = copies_of(operations, index);
        return copies != nullptr && std::exchange(copies->due, false) && _images.queue(copies->result);
    }

    void start_inner(Operations& operations, const std::size_t index, const CollectiveCall& call,
                     const CallSpans& spans, const bool persistent) {
        // The MPI contender keeps its own state in the same place: it takes turns there with ours.
        static_cast<void>(state_of(operations, index));
        std::unique_ptr<OperationState> ours = std::move(operations.states[index]);
        auto& copies = static_cast<PendingCopies&>(*ours);
        copies.call = call;
        move_to_images(copies.call);
        operations.states[index] = std::move(copies.inner);
        if (persistent) {
            _mpi.initialize(operations, index, copies.call);
            copies.inputs = inputs_of(spans);
        } else {
            _mpi.start(operations, index, copies.call);
        }
        copies.inner = std::move(operations.states[index]);
        operations.states[index] = std::move(ours);

        const void* const image = _images.image_of(spans.written.data);
        copies.result = {const_cast<void*>(spans.written.data), image,
                         image != spans.written.data ? spans.written.bytes : 0};
        copies.due = !persistent;
    }

    // ---- what a collective touches ---------------------------------------------------------------------------------

    [[nodiscard]] static Span array_span(const void* const data, const std::vector<Count>& counts,
                                         const std::vector<MPI_Aint>& displacements, MPI_Datatype type,
                                         const std::vector<MPI_Datatype>& types) {
        std::size_t end = 0;
        for (std::size_t i = 0; i < counts.size(); ++i) {
            if (counts[i] == 0) {
                continue;
            }
            MPI_Aint lower = 0;
            MPI_Aint extent = 1;  // the w forms count bytes
            if (types.empty()) {
                check_mpi(library_functions().Type_get_extent(type, &lower, &extent), "MPI_Type_get_extent");
            }
            const MPI_Aint begin = i < displacements.size() ? displacements[i] * extent : 0;
            end = std::max(end, static_cast<std::size_t>(begin) + span_of(counts[i], types.empty() ? type : types[i]));
        }
        return {data, end};
    }

    [[nodiscard]] static CallSpans spans_of(const CollectiveCall& call) {
        int rank = 0;
        int ranks = 0;
        MPI_Comm_rank(call.communicator, &rank);
        MPI_Comm_size(call.communicator, &ranks);
        const bool root = rank == call.root;
        const bool in_place_send = call.send == MPI_IN_PLACE;
        const CommonArguments common = common_arguments(call);
        const auto sent = [&](const Count blocks) {
            return Span{call.send, span_of(blocks * call.send_count, call.send_type)};
        };
        const auto received = [&](const Count blocks) {
            return Span{call.receive, span_of(blocks * call.receive_count, call.receive_type)};
        };
        const auto sent_arrays = [&] {
            return array_span(call.send, call.send_counts, call.send_displacements, call.send_type, call.send_types);
        };
        const auto received_arrays = [&] {
            return array_span(call.receive, call.receive_counts, call.receive_displacements, call.receive_type,
                              call.receive_types);
        };
        // Of reductions.
        const auto operand = [&](const Count count) { return Span{call.send, span_of(count, common.type)}; };
        const auto result = [&](const Count count) { return Span{call.receive, span_of(count, common.type)}; };
        CallSpans spans;
        switch (call.collective) {
            case Collective::none:
            case Collective::ring_shift:
            case Collective::barrier:
                return {};
            case Collective::allgather:
                spans = {sent(1), received(ranks), in_place_send};
                break;
            case Collective::allgatherv:
                spans = {sent(1), received_arrays(), true};
                break;
            case Collective::allreduce:
            case Collective::scan:
                spans = {operand(common.count), result(common.count), in_place_send};
                break;
            case Collective::exscan:
                // The receive buffer of rank 0 stays as it is.
                spans = {operand(common.count), result(common.count), true};
                break;
            case Collective::alltoall:
                spans = {sent(ranks), received(ranks), in_place_send};
                break;
            case Collective::alltoallv:
            case Collective::alltoallw:
            case Collective::neighbor_alltoallv:
            case Collective::neighbor_alltoallw:
                spans = {sent_arrays(), received_arrays(), true};
                break;
            case Collective::bcast:
                (root ? spans.read : spans.written) = Span{broadcast_buffer(call), span_of(common.count, common.type)};
                break;
            case Collective::gather:
                spans = {sent(1), root ? received(ranks) : Span{}, in_place_send};
                break;
            case Collective::gatherv:
                spans = {sent(1), root ? received_arrays() : Span{}, true};
                break;
            case Collective::reduce:
                spans = {operand(common.count), root ? result(common.count) : Span{}, in_place_send};
                break;
            case Collective::reduce_scatter: {
                const Count total = std::accumulate(call.receive_counts.begin(), call.receive_counts.end(), Count{0});
                const Count own = call.receive_counts[static_cast<std::size_t>(rank)];
                spans = {operand(total), result(in_place_send ? total : own), in_place_send};
                break;
            }
            case Collective::reduce_scatter_block:
                spans = {operand(ranks * call.receive_count), result((in_place_send ? ranks : 1) * call.receive_count),
                         in_place_send};
                break;
            case Collective::scatter:
                spans = {root ? sent(ranks) : Span{}, received(1), false};
                break;
            case Collective::scatterv:
                spans = {root ? sent_arrays() : Span{}, received(1), false};
                break;
            // A neighbour beyond the edge of a grid leaves its block as it is.
            case Collective::neighbor_allgather:
                spans = {sent(1), received(neighbours_of(call.communicator).sources), true};
                break;
            case Collective::neighbor_allgatherv:
                spans = {sent(1), received_arrays(), true};
                break;
            case Collective::neighbor_alltoall: {
                const auto [sources, destinations] = neighbours_of(call.communicator);
                spans = {sent(destinations), received(sources), true};
                break;
            }
        }
        if (in_place_send) {
            spans.read = {};
        }
        if (call.receive == MPI_IN_PLACE) {
            spans.written = {};
        }
        if (call.receive_type != MPI_DATATYPE_NULL && spans.written.bytes != 0 && has_gaps(call.receive_type)) {
            spans.reads_written = true;
        }
        return spans;
    }

    struct Neighbours {
        int sources;
        int destinations;
    };
    [[nodiscard]] static Neighbours neighbours_of(MPI_Comm communicator) {
        int kind = MPI_UNDEFINED;
        check_mpi(library_functions().Topo_test(communicator, &kind), "MPI_Topo_test");
        if (kind == MPI_CART) {
            int dimensions = 0;
            check_mpi(library_functions().Cartdim_get(communicator, &dimensions), "MPI_Cartdim_get");
            return {2 * dimensions, 2 * dimensions};
        }
        int sources = 0;
        int destinations = 0;
        int weighted = 0;
        check_mpi(library_functions().Dist_graph_neighbors_count(communicator, &sources, &destinations, &weighted),
                  "MPI_Dist_graph_neighbors_count");
        return {sources, destinations};
    }

    /// What the call reads of the device's memory, and where the MPI finds it.
    [[nodiscard]] std::array<ImageCopy, 2> inputs_of(const CallSpans& spans) const {
        const auto copy = [&](const Span& span) {
            void* const image = _images.image_of(span.data);
            return ImageCopy{image, span.data, image != span.data ? span.bytes : 0};
        };
        return {copy(spans.read), spans.reads_written ? copy(spans.written) : ImageCopy{}};
    }

    void fetch_inputs(const CallSpans& spans) {
        bool copied = false;
        for (const ImageCopy& input : inputs_of(spans)) {
            copied = _images.queue(input) || copied;
        }
        if (copied) {
            _images.synchronize();
        }
    }

    void move_to_images(CollectiveCall& call) const {
        if (call.send != nullptr && call.send != MPI_IN_PLACE) {
            call.send = _images.image_of(call.send);
        }
        if (call.receive != nullptr && call.receive != MPI_IN_PLACE) {
            call.receive = _images.image_of(call.receive);
        }
    }

    HostImages _images;
    MpiCommunication _mpi;
    CollectiveCall _moved;  ///< of the blocking call under way; kept for its memory
};

}  // namespace

std::unique_ptr<Communication> make_staged(const Environment& environment) {
    return std::make_unique<Staged>(environment);
}

}  // namespace awaken::bench
