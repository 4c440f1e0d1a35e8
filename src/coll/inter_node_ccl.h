// SPDX-License-Identifier: Apache-2.0
// The members of a communicator that spans nodes as a communicator of NCCL or RCCL. The library goes from GPU to
// network card, past host memory.
//
// The members agree through the MPI. Each collective has a proposal anyway (see agreement.h). Joining ends with one, so
// that all have joined or none uses the library. A process has one such collective under way at a time, and says no in
// the proposal for any other: two that go in different orders on different GPUs could wait for each other for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "coll/device/ccl_communicator.h"
#include "coll/device/engine.h"
#include "coll/own_communicator.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

class InterNodeCcl {
  public:
    explicit InterNodeCcl(MPI_Comm communicator) : _communicator(communicator) {}
    ~InterNodeCcl();
    InterNodeCcl(const InterNodeCcl&) = delete;
    InterNodeCcl& operator=(const InterNodeCcl&) = delete;

    /// Makes this process ready for a collective on `device`, and keeps it ready until end(). False: it is not ready,
    /// and must say no to the others. `kind` of a collective in parts: alltoall, which needs the same of the library.
    [[nodiscard]] bool begin(coll::Engine& engine, coll::Kind kind, std::uint32_t code, int device);
    void end() noexcept;
    /// To be called when all members have begun. Joins if that is worth its price by now. True, on all members, when
    /// run() is to follow.
    [[nodiscard]] bool join();
    /// Does the collective and waits for it. When it fails, throws Error on all members that wait for it, and the
    /// object is not used again.
    void run(coll::CclCommunicator::Operation operation);

    /// Leaves the library's communicator. Members wait for each other there, so this is called first for all
    /// communicators that are to be left, and the rest of the clean-up follows.
    void begin_to_leave() noexcept;
    /// Called before MPI goes down, which frees the MPI's own objects itself.
    void give_up() noexcept;

  private:
    enum class State : std::uint8_t { unused, ready, broken };

    class Waiting;
    /// The first collective of a kind, which a thread of its own issues.
    struct First {
        std::optional<Error> error;
        std::atomic<bool> over{false};
    };
    [[nodiscard]] MPI_Comm channel() const noexcept { return _own ? _own->handle() : MPI_COMM_NULL; }
    void learn_members();
    [[nodiscard]] bool finish_default_stream(int device) const;
    [[nodiscard]] bool invite(ccl::UniqueId& identifier);
    [[nodiscard]] bool join_all();
    void issue(const coll::CclCommunicator::Operation& operation, Waiting& waiting);
    void send_word() const;
    [[nodiscard]] bool has_word() const;
    void break_up(const std::string& why);
    void free_gpu() noexcept;

    const MPI_Comm _communicator;
    std::optional<OwnCommunicator> _own;  ///< for the members' words while they join
    State _state = State::unused;
    int _uses = 0;
    int _rank = 0, _size = 0;
    bool _begun = false;
    std::uint32_t _issued = 0;  ///< a bit for each coll::Kind that was issued
    coll::Engine* _engine = nullptr;
    const ccl::Library* _library = nullptr;
    int _device = -1;
    gpu::StreamHandle _stream;
    gpu::EventHandle _event;
    coll::CclCommunicator _ccl;
    std::shared_ptr<const First> _left_alone;  ///< its thread may still be in the library
};

}  // namespace awaken::AWAKEN_ABI
