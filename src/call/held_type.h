// A datatype that outlives the program's handle.
#pragma once

#include "call/layer.h"

namespace awaken::AWAKEN_ABI {

/// The datatype of a persistent operation. It must outlive the program's handle: MPI allows the program to free that
/// before the start.
class HeldType {
  public:
    explicit HeldType(const MPI_Datatype type) : _type(type) {
        const Native& native = layer().real;
        int integers = 0, addresses = 0, types = 0, combiner = MPI_COMBINER_NAMED;
        native.Type_get_envelope(type, &integers, &addresses, &types, &combiner);
        _owned = combiner != MPI_COMBINER_NAMED && native.Type_dup(type, &_type) == MPI_SUCCESS;
    }
    HeldType(const HeldType&) = delete;
    HeldType& operator=(const HeldType&) = delete;
    ~HeldType() {
        if (_owned) {
            layer().datatypes.forget(_type);
            layer().real.Type_free(&_type);
        }
    }
    [[nodiscard]] MPI_Datatype get() const noexcept { return _type; }

  private:
    MPI_Datatype _type;
    bool _owned = false;
};

}  // namespace awaken::AWAKEN_ABI
