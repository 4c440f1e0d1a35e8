// SPDX-License-Identifier: Apache-2.0
#include "call/held_op.h"

#include <map>
#include <mutex>

namespace awaken::AWAKEN_ABI {

namespace {

struct Holders {
    int count = 0;
    bool is_freed = false;  ///< by the program
};

/// Those that are held. Never destroyed: requests may outlive what a process ends with.
struct Held {
    std::mutex mutex;
    std::map<MPI_Op, Holders> ops;
};

Held& held() {
    static Held& all = *new Held;
    return all;
}

}  // namespace

HeldOp::HeldOp(const MPI_Op op) : _op(op) {
    const std::scoped_lock lock(held().mutex);
    ++held().ops[op].count;
}

HeldOp::~HeldOp() {
    {
        const std::scoped_lock lock(held().mutex);
        const auto found = held().ops.find(_op);
        if (--found->second.count > 0) {
            return;
        }
        const bool is_freed = found->second.is_freed;
        held().ops.erase(found);
        if (!is_freed) {
            return;
        }
    }
    if (layer().any_model_is_open()) {
        MPI_Op op = _op;
        layer().real.Op_free(&op);
    }
}

bool FreeOp::is_left(const MPI_Op op) {
    const std::scoped_lock lock(held().mutex);
    const auto found = held().ops.find(op);
    if (found == held().ops.end()) {
        return false;
    }
    found->second.is_freed = true;
    return true;
}

}  // namespace awaken::AWAKEN_ABI
