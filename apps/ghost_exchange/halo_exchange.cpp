// SPDX-License-Identifier: Apache-2.0
#include "halo_exchange.h"

#include "program.h"

namespace ghost_exchange {

std::unique_ptr<HaloExchange> make_exchange(const Options& options, const Block& block, Compute& compute,
                                            const apps::Ccl* ccl) {
    switch (options.exchange) {
        case Exchange::packed:
            return exchange_packed(options, block, compute);
        case Exchange::datatype:
            return exchange_datatype(block);
        case Exchange::neighbour:
            return exchange_neighbour(block);
        case Exchange::persistent:
            return exchange_persistent(options, block, compute);
        case Exchange::overlap:
            return exchange_overlap(options, block, compute);
        case Exchange::staged:
            return exchange_staged(options, block, compute);
        case Exchange::ccl:
            return exchange_ccl(options, block, compute, *ccl);
        case Exchange::enqueue:
            return exchange_enqueue(options, block, compute);
        case Exchange::graph:
            return exchange_graph(options, block, compute);
    }
    return nullptr;
}

Array require_array(Memory memory, Index cells, const char* purpose) {
    Array array(memory, cells);
    if (array.data() == nullptr) {
        std::fprintf(stderr, "rank %d: no memory for %s: %zu bytes of %s memory: %s\n", apps::rank_of_world(), purpose,
                     array.bytes(), name_of(memory).c_str(), array.problem().c_str());
        apps::end_job();
    }
    return array;
}

ColumnBuffers::ColumnBuffers(Memory memory, const Block& block) {
    const auto allocate = [&](int neighbour, Array& sent, Array& received) {
        if (neighbour == MPI_PROC_NULL) {
            return;
        }
        sent = require_array(memory, block.column_cells(), "a buffer");
        received = require_array(memory, block.column_cells(), "a buffer");
    };
    allocate(block.left, _left_sent, _left_received);
    allocate(block.right, _right_sent, _right_received);
}

MessagePair column_messages(const Block& block, const ColumnBuffers& buffers) {
    MessagePair messages;
    messages.first = block.left;
    messages.second = block.right;
    messages.first_sent = buffers.left_sent();
    messages.second_sent = buffers.right_sent();
    messages.first_received = buffers.left_received();
    messages.second_received = buffers.right_received();
    messages.count = static_cast<int>(block.column_cells());
    return messages;
}

MessagePair row_messages(const Block& block, double* x, int number) {
    MessagePair messages;
    messages.first = block.bottom;
    messages.second = block.top;
    messages.first_sent = x + block.bottom_sent(number);
    messages.second_sent = x + block.top_sent(number);
    messages.first_received = x + block.bottom_received(number);
    messages.second_received = x + block.top_received(number);
    messages.count = block.cells_of_row_message();
    messages.number = number;
    return messages;
}

void start(const MessagePair& m, std::vector<MPI_Request>& requests) {
    const auto request = [&] { return &requests.emplace_back(MPI_REQUEST_NULL); };
    // What comes from the first neighbour was sent towards its second one.
    if (m.first != MPI_PROC_NULL) {
        MPI_Irecv(m.first_received, m.count, m.type, m.first, m.tag_to_second(), MPI_COMM_WORLD, request());
        MPI_Isend(m.first_sent, m.count, m.type, m.first, m.tag_to_first(), MPI_COMM_WORLD, request());
    }
    if (m.second != MPI_PROC_NULL) {
        MPI_Irecv(m.second_received, m.count, m.type, m.second, m.tag_to_first(), MPI_COMM_WORLD, request());
        MPI_Isend(m.second_sent, m.count, m.type, m.second, m.tag_to_second(), MPI_COMM_WORLD, request());
    }
}

void wait_for(std::vector<MPI_Request>& requests) {
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    requests.clear();
}

}  // namespace ghost_exchange
