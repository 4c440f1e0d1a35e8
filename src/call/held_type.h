// SPDX-License-Identifier: Apache-2.0
// A datatype that outlives the program's handle.
#pragma once

#include <memory>
#include <utility>
#include <vector>

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

/// The datatypes of a persistent collective, each held once.
class HeldTypes {
  public:
    /// The type to use in the place of the program's. MPI_DATATYPE_NULL stays what it is.
    [[nodiscard]] MPI_Datatype hold(const MPI_Datatype type) {
        if (type == MPI_DATATYPE_NULL) {
            return type;
        }
        for (const auto& [given, held] : _held) {
            if (given == type) {
                return held->get();
            }
        }
        return _held.emplace_back(type, std::make_unique<const HeldType>(type)).second->get();
    }

  private:
    std::vector<std::pair<MPI_Datatype, std::unique_ptr<const HeldType>>> _held;
};

}  // namespace awaken::AWAKEN_ABI
