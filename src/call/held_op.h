// SPDX-License-Identifier: Apache-2.0
// Operations of reductions that outlive the program's handles: MPI lets a program free one while the reduction that
// uses it is under way.
#pragma once

#include "call/call.h"

namespace awaken::AWAKEN_ABI {

/// The operation stays as long as the object, also when the program frees it.
class HeldOp {
  public:
    explicit HeldOp(MPI_Op op);
    ~HeldOp();
    HeldOp(const HeldOp&) = delete;
    HeldOp& operator=(const HeldOp&) = delete;
    [[nodiscard]] MPI_Op get() const noexcept { return _op; }

  private:
    const MPI_Op _op;
};

/// MPI_Op_free.
struct FreeOp {
    template <Function function>
    static int run(Call& /*call*/, MPI_Op* op) {
        if (op != nullptr && is_left(*op)) {
            *op = MPI_OP_NULL;
            return MPI_SUCCESS;
        }
        return below<function>()(op);
    }

  private:
    /// True when the operation is held: the last one who holds it frees it.
    [[nodiscard]] static bool is_left(MPI_Op op);
};

}  // namespace awaken::AWAKEN_ABI
