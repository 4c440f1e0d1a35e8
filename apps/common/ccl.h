// SPDX-License-Identifier: Apache-2.0
// The GPU vendor's own collective library, NCCL or RCCL, as far as the programs under apps/ use it.
//
// Both have the same API (https://docs.nvidia.com/deeplearning/nccl, https://rocm.docs.amd.com/projects/rccl). It is
// opened when the program runs, so that one executable serves both vendors and machines that have neither.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <string>

namespace apps {

/// The functions of the library; ccl.cpp.
struct CclFunctions;

/// A communicator of NCCL or RCCL over all ranks of MPI_COMM_WORLD.
class Ccl {
  public:
    /// Opens the library and connects the ranks, each with its present device. Where that fails on any rank, none is
    /// connected and problem() tells why. Collective.
    Ccl();
    /// Collective, and before MPI_Finalize, as with any communicator.
    ~Ccl();
    Ccl(const Ccl&) = delete;
    Ccl& operator=(const Ccl&) = delete;

    /// Why the library cannot be used, and what to do; empty where it can. The same on all ranks.
    [[nodiscard]] const std::string& problem() const { return _problem; }
    /// "NCCL 2.27.3"; without a library, "NCCL" or "RCCL".
    [[nodiscard]] const std::string& name() const { return _name; }

    /// Queues the sum over all ranks of d_A[0 .. N - 1], in place, and returns at once. Ends the job with a message
    /// where the library refuses it.
    void start_sum(double* d_A, std::size_t N, hipStream_t stream) const;
    void start_sum(float* d_A, std::size_t N, hipStream_t stream) const;
    /// What is queued between these two calls is one operation. Sends and receives of doubles progress together there:
    /// each rank queues all that it exchanges with others. The device buffers are in use until the stream has come so
    /// far.
    void start_group() const;
    void end_group() const;
    void send(const double* d_A, std::size_t N, int peer, hipStream_t stream) const;
    void receive(double* d_A, std::size_t N, int peer, hipStream_t stream) const;
    /// Waits for what has been queued. Ends the job with a message where it failed.
    void wait(hipStream_t stream) const;

  private:
    [[nodiscard]] std::string open();
    [[nodiscard]] std::string connect();
    void require(int result, const char* call) const;

    const CclFunctions* _functions = nullptr;
    void* _communicator = nullptr;
    std::string _name;
    std::string _problem;
};

}  // namespace apps
