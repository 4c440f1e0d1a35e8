// SPDX-License-Identifier: Apache-2.0
// A communicator whose operations a stream of the GPU orders, by MPI's stream API.
//
// MPICH has these functions, and the preloaded Awaken gives them to every MPI (docs/streams.md). They are looked up
// when the program runs, so that one executable also serves MPIs that lack them.
#pragma once

#include <hip/hip_runtime.h>
#include <mpi.h>

#include <string>
#include <vector>

namespace apps {

/// The functions of the API; stream_communicator.cpp.
struct StreamFunctions;

class StreamCommunicator {
  public:
    /// Of all ranks of MPI_COMM_WORLD, each with a stream of its present device. Where that fails on any rank, none has
    /// one and problem() tells why. Collective.
    explicit StreamCommunicator(hipStream_t stream);
    /// Waits for what is queued. The stream must still be there. Collective.
    ~StreamCommunicator();
    StreamCommunicator(const StreamCommunicator&) = delete;
    StreamCommunicator& operator=(const StreamCommunicator&) = delete;

    /// The level that MPI has to be initialised with where the command line has one of these words, also as the value
    /// of an option (`--reduce=enqueue`): what is queued takes MPI_THREAD_MULTIPLE. `otherwise` without one.
    [[nodiscard]] static int thread_level(int argc, char** argv, const std::vector<std::string>& words, int otherwise);

    /// Why nothing can be queued, and what to do; empty where it can. The same on all ranks.
    [[nodiscard]] const std::string& problem() const { return _problem; }

    /// These queue an operation in the stream and return at once. Buffers are in use until the stream has come so far.
    /// What is queued while the stream is captured belongs to the graph.
    void send(const void* buffer, int count, MPI_Datatype type, int to, int tag, MPI_Request* request) const;
    void receive(void* buffer, int count, MPI_Datatype type, int from, int tag, MPI_Request* request) const;
    /// The stream waits for them. They are no more afterwards.
    void wait_for(std::vector<MPI_Request>& requests) const;
    /// The sum over all ranks, in place.
    void sum(void* buffer, int count, MPI_Datatype type) const;

  private:
    [[nodiscard]] std::string make_stream(hipStream_t stream, int& number);

    const StreamFunctions* _functions = nullptr;
    MPI_Comm _communicator = MPI_COMM_NULL;
    std::string _problem;
};

}  // namespace apps
