// SPDX-License-Identifier: Apache-2.0
// The members of a node communicator as a communicator of NCCL or RCCL.
//
// Member 0 makes the identifier; then all members join. When one of them fails, none uses the library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coll/device/ccl_communicator.h"
#include "coll/device/control_block.h"
#include "coll/device/engine.h"
#include "coll/device/plan.h"

namespace awaken::coll {

class CclGroup {
  public:
    /// Counts a collective for which all members may use the library on these GPUs (by member). True when they are to
    /// use it. All members call this in the same order.
    [[nodiscard]] bool wanted(const std::vector<std::uint64_t>& devices);
    [[nodiscard]] bool ready() const noexcept { return _state == State::ready; }

    enum class Joining : std::uint8_t { under_way, done, failed };
    /// Joins, in the course of operation `number`. To be called until joining is over. The outcome is the same in all
    /// members.
    [[nodiscard]] Joining join(Engine& engine, ControlBlock& control_block, std::uint64_t number, int device);
    /// Why joining failed here; empty when another member failed.
    [[nodiscard]] const std::string& reason() const noexcept {
        return _why_no_identifier.empty() ? _communicator.reason() : _why_no_identifier;
    }

    /// To be used once ready() is true.
    [[nodiscard]] const CclCommunicator& communicator() const noexcept { return _communicator; }
    /// Ends operations under way, which would otherwise wait for a member that is gone. The object is not used again.
    void abort() noexcept;

  private:
    enum class State : std::uint8_t { unused, joining, ready, broken };

    State _state = State::unused;
    int _uses = 0;
    bool _begun = false;  ///< joining has begun
    std::vector<std::uint64_t> _devices;
    CclCommunicator _communicator;
    std::string _why_no_identifier;
};

}  // namespace awaken::coll
