// SPDX-License-Identifier: Apache-2.0
// One member's end of a communicator of NCCL or RCCL. The class does not depend on who the members are and how they
// agree.
//
// Joining blocks for ever if another member never joins. So a thread of its own does it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ccl/ccl.h"
#include "coll/device/plan.h"
#include "gpu/gpu.h"

namespace awaken::coll {

class CclCommunicator {
  public:
    /// The members make a communicator after they could have used it so many times, since it costs up to seconds and
    /// hundreds of megabytes.
    static constexpr int kUsesBefore = 2;

    CclCommunicator() = default;
    ~CclCommunicator();
    CclCommunicator(const CclCommunicator&) = delete;
    CclCommunicator& operator=(const CclCommunicator&) = delete;

    /// A collective in the form that the library takes.
    struct Operation {
        Kind kind = Kind::allreduce;
        std::uint32_t code = 0;  ///< of a reduction: see kernels::code_of
        int root = 0;
        int members = 1;
        int own = 0;
        std::uint64_t elements = 0;     ///< as in Shape
        std::uint64_t block_bytes = 0;  ///< as in Shape
        std::byte* send = nullptr;
        std::byte* receive = nullptr;
        /// What one member sends to or receives from another one, or itself.
        struct Block {
            int member = 0;
            std::byte* address = nullptr;
            std::uint64_t bytes = 0;
        };
        /// Gather, scatter, allgather and alltoall in parts of any size, in place of `send` and `receive`. An allgather
        /// has `from` for all members, even if its own part is there already, and `to` for none.
        bool in_parts = false;
        std::vector<Block> to = {}, from = {};
    };
    /// Whether the library can do this collective with equal parts.
    [[nodiscard]] static bool supports(const ccl::Library& library, Kind kind, std::uint32_t code) noexcept;

    /// Begins to join as member `own` of `members`, with `device`. Called once only.
    void join(const ccl::Library& library, gpu::Runtime& runtime, int device, const ccl::UniqueId& identifier,
              int members, int own);
    enum class Joining : std::uint8_t { under_way, joined, failed };
    /// How far this member's joining is.
    [[nodiscard]] Joining joining();
    /// Why joining failed; empty when it did not.
    [[nodiscard]] const std::string& reason() const noexcept { return _reason; }

    /// Puts collectives into a stream. An Issuer does not refer to the CclCommunicator, so threads may use it that the
    /// library holds up for longer than the object lives. Their calls fail once the communicator was aborted.
    class Issuer {
      public:
        Issuer(const ccl::Library* library, ccl::Communicator communicator)
            : _library(library), _communicator(communicator) {}
        /// Throws Error.
        void issue(const Operation& operation, gpu::StreamHandle stream) const;

      private:
        void require(const ccl::Status& status) const;
        void issue_parts(const Operation& operation, gpu::StreamHandle stream) const;

        const ccl::Library* _library;
        ccl::Communicator _communicator;
    };
    [[nodiscard]] Issuer issuer() const { return {_library, _communicator}; }
    /// Puts the collective into the stream. Throws Error.
    void issue(const Operation& operation, const gpu::StreamHandle stream) const { issuer().issue(operation, stream); }
    /// Throws Error when something has gone wrong meanwhile.
    void check() const;
    /// Ends operations under way, which would otherwise wait for a member that is gone. The object is not used again.
    void abort() noexcept;
    /// Leaves the communicator, in a thread of its own, since members on one node wait for each other there. The object
    /// is not used again.
    void begin_to_leave() noexcept;
    [[nodiscard]] bool has_left() const noexcept { return _left->load(std::memory_order_acquire); }
    /// Gives up waiting for that thread.
    void leave_alone() noexcept;

  private:
    struct Attempt;
    void give_up() noexcept;

    const ccl::Library* _library = nullptr;
    gpu::Runtime* _runtime = nullptr;
    int _device = -1;
    std::shared_ptr<Attempt> _attempt;
    ccl::Communicator _communicator;
    std::shared_ptr<std::atomic<bool>> _left = std::make_shared<std::atomic<bool>>(true);
    std::thread _leaving;
    std::string _reason;
};

}  // namespace awaken::coll
