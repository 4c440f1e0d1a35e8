// The members of a team as a communicator of NCCL or RCCL.
//
// Made when it is needed for the third time: it costs up to seconds and hundreds of megabytes. Member 0 makes the
// identifier; then all join, each in a thread of its own, since joining blocks for ever where a member never comes.
// When one fails, none of them uses it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ccl/ccl.h"
#include "coll/board.h"
#include "coll/engine.h"
#include "coll/plan.h"

namespace awaken::coll {

class CclGroup {
  public:
    CclGroup() = default;
    ~CclGroup();
    CclGroup(const CclGroup&) = delete;
    CclGroup& operator=(const CclGroup&) = delete;

    /// A collective as the library takes it.
    struct Operation {
        Kind kind = Kind::allreduce;
        std::uint32_t code = 0;
        int root = 0;
        int members = 1;
        int own = 0;
        std::uint64_t elements = 0;     ///< as in Shape
        std::uint64_t block_bytes = 0;  ///< as in Shape
        std::byte* send = nullptr;
        std::byte* receive = nullptr;
    };
    /// Whether the library has it, for equal parts.
    [[nodiscard]] static bool supports(const ccl::Library& library, Kind kind, std::uint32_t code) noexcept;

    /// All members may use the library for a collective on these GPUs, by member. Counts; true when it is to be used.
    /// All members ask in the same order.
    [[nodiscard]] bool wanted(const std::vector<std::uint64_t>& devices);
    [[nodiscard]] bool ready() const noexcept { return _state == State::ready; }

    enum class Joining : std::uint8_t { under_way, done, failed };
    /// Joins, in the course of round `number`. To be asked until it is over; the outcome is the same in all members.
    [[nodiscard]] Joining join(Engine& engine, Board& board, std::uint64_t number, int device);
    /// Why it failed here; empty when it did elsewhere.
    [[nodiscard]] const std::string& reason() const noexcept { return _reason; }

    /// Puts the collective into the stream. Throws Error.
    void issue(const Operation& operation, gpu::StreamHandle stream) const;
    /// Throws Error when something went wrong since.
    void check() const;
    /// Ends what is under way, which would otherwise wait for a member that is gone. Not used again.
    void abort() noexcept;

  private:
    enum class State : std::uint8_t { unused, joining, ready, broken };
    struct Attempt;

    State _state = State::unused;
    int _uses = 0;
    std::vector<std::uint64_t> _devices;
    const ccl::Library* _library = nullptr;
    gpu::Runtime* _runtime = nullptr;
    int _device = -1;
    std::shared_ptr<Attempt> _attempt;
    ccl::Communicator _communicator;
    std::string _reason;
};

}  // namespace awaken::coll
