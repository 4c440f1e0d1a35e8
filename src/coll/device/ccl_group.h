// The members of a node communicator as a communicator of NCCL or RCCL.
//
// Member 0 makes the identifier; then all join. When one fails, none of them uses it.
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
    /// All members may use the library for a collective on these GPUs, by member. Counts; true when it is to be used.
    /// All members ask in the same order.
    [[nodiscard]] bool wanted(const std::vector<std::uint64_t>& devices);
    [[nodiscard]] bool ready() const noexcept { return _state == State::ready; }

    enum class Joining : std::uint8_t { under_way, done, failed };
    /// Joins, in the course of operation `number`. To be asked until it is over; the outcome is the same in all
    /// members.
    [[nodiscard]] Joining join(Engine& engine, ControlBlock& control_block, std::uint64_t number, int device);
    /// Why it failed here; empty when it did elsewhere.
    [[nodiscard]] const std::string& reason() const noexcept {
        return _why_no_identifier.empty() ? _communicator.reason() : _why_no_identifier;
    }

    /// Once it is ready().
    [[nodiscard]] const CclCommunicator& communicator() const noexcept { return _communicator; }
    /// Ends what is under way, which would otherwise wait for a member that is gone. Not used again.
    void abort() noexcept;

  private:
    enum class State : std::uint8_t { unused, joining, ready, broken };

    State _state = State::unused;
    int _uses = 0;
    bool _begun = false;  ///< to join
    std::vector<std::uint64_t> _devices;
    CclCommunicator _communicator;
    std::string _why_no_identifier;
};

}  // namespace awaken::coll
