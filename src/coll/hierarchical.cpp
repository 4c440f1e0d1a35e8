// SPDX-License-Identifier: Apache-2.0
#include "coll/hierarchical.h"

#include <array>

namespace awaken::AWAKEN_ABI {

Hierarchy::Hierarchy(const Native& native, const MPI_Comm comm, const int node) : _native(native), _own_node(node) {
    int rank = 0, size = 0;
    native.Comm_rank(comm, &rank);
    native.Comm_size(comm, &size);
    const auto make = [&](const int color, MPI_Comm& made) {
        if (native.Comm_split(comm, color, rank, &made) != MPI_SUCCESS) {
            made = MPI_COMM_NULL;
        }
        // The layer reports errors on them on the program's communicator.
        if (made != MPI_COMM_NULL) {
            native.Comm_set_errhandler(made, MPI_ERRORS_RETURN);
        }
    };
    make(node, _node);
    if (_node != MPI_COMM_NULL) {
        native.Comm_rank(_node, &_rank_on_node);
        native.Comm_size(_node, &_size_of_node);
    }
    // The sizes of the smallest and, as a negative number, of the largest node. A rank without a node passes 0.
    const std::array<int, 2> own{_size_of_node, -_size_of_node};
    std::array<int, 2> least{};
    native.Allreduce(own.data(), least.data(), 2, MPI_INT, MPI_MIN, comm);
    if (least[0] <= 0 || least[1] >= -1) {
        return;
    }
    make(_rank_on_node < least[0] ? _rank_on_node : MPI_UNDEFINED, _inter_node);
    Position mine{_rank_on_node, -1, node};
    if (_inter_node != MPI_COMM_NULL) {
        native.Comm_rank(_inter_node, &mine.in_inter_node);
    }
    _positions.resize(static_cast<std::size_t>(size));
    constexpr int kNumbers = sizeof(Position) / sizeof(int);
    native.Allgather(&mine, kNumbers, MPI_INT, _positions.data(), kNumbers, MPI_INT, comm);
    for (const Position& each : _positions) {
        if (each.on_node < least[0] && each.in_inter_node < 0) {
            return;
        }
    }
    _inter_node_comms = least[0];
}

int Hierarchy::in_inter_node_from(const int node) const noexcept {
    for (const Position& each : _positions) {
        if (each.node == node && each.on_node == _rank_on_node) {
            return each.in_inter_node;
        }
    }
    return -1;
}

Hierarchy::~Hierarchy() {
    for (MPI_Comm* const each : {&_node, &_inter_node}) {
        if (*each != MPI_COMM_NULL) {
            _native.Comm_free(each);
        }
    }
}

void Hierarchy::give_up() noexcept {
    _node = _inter_node = MPI_COMM_NULL;
    _inter_node_comms = 0;
}

}  // namespace awaken::AWAKEN_ABI
