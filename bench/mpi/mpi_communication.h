// SPDX-License-Identifier: Apache-2.0
// The MPI as a contender: its own functions, or those of the layer above it. Other contenders build on it.
#pragma once

#include <mpi.h>

#include "mpi/communication.h"
#include "mpi/mpi_functions.h"

namespace awaken::bench {

/// Calls the functions of a table. Counts beyond INT_MAX go through the _c functions, and through derived datatypes
/// where the MPI has none.
class MpiCommunication : public Communication {
  public:
    explicit MpiCommunication(const MpiFunctions& functions) : _mpi(functions) {}

    [[nodiscard]] std::string description() const override;
    void prepare(MPI_Comm communicator, std::span<const Buffer* const> buffers) override;

    void run(const MessageCall& call) override;
    void run(const CollectiveCall& call) override;
    void start(Operations& operations, std::size_t index, const MessageCall& call) override;
    void start(Operations& operations, std::size_t index, const CollectiveCall& call) override;
    void initialize(Operations& operations, std::size_t index, const MessageCall& call) override;
    void initialize(Operations& operations, std::size_t index, const CollectiveCall& call) override;
    void initialize_partitioned(Operations& operations, std::size_t index, const MessageCall& call,
                                int partitions) override;
    void make_ready(Operations& operations, std::size_t index, int partitions) override;
    void restart(Operations& operations, std::size_t first, std::size_t count) override;
    void release(Operations& operations) override;
    [[nodiscard]] std::unique_ptr<Window> open_window(const WindowRequest& request) override;
    void wait(Operations& operations, std::size_t first, std::size_t count) override;
    void wait_one_by_one(Operations& operations, std::size_t first, std::size_t count) override;
    /// Returns the index of an operation that has completed. There must be one that is not complete yet.
    [[nodiscard]] std::size_t wait_any(Operations& operations, std::size_t first, std::size_t count);
    bool test(Operations& operations, std::size_t index) override;

  private:
    enum class Form : std::uint8_t { blocking, nonblocking, persistent };

    template <typename Function, typename LargeFunction, typename... Last>
    void transfer(const char* name, Function function, LargeFunction large_function, const MessageCall& call,
                  Last... last);
    void issue(Form form, const CollectiveCall& call, MPI_Request* request, std::unique_ptr<OperationState>* state);
    template <typename Integer, typename Displacement, typename Arrays>
    void issue_as(Form form, const CollectiveCall& call, const Arrays& arrays, MPI_Request* request);
    void issue_in_large_types(Form form, const CollectiveCall& call, MPI_Request* request);
    void run_in_parts(const CollectiveCall& call);

    const MpiFunctions& _mpi;
};

/// The count and the type of collectives that have one pair only (reductions, broadcast), whichever side names them.
struct CommonArguments {
    Count count;
    MPI_Datatype type;
};
[[nodiscard]] CommonArguments common_arguments(const CollectiveCall& call) noexcept;
/// The buffer of a broadcast, whichever side names it.
[[nodiscard]] void* broadcast_buffer(const CollectiveCall& call) noexcept;

}  // namespace awaken::bench
