// SPDX-License-Identifier: Apache-2.0
// The interface to a collective communication library: NCCL on NVIDIA's GPUs, RCCL on AMD's. Both have one interface.
//
// We find the library at run time, and it may be missing. The build needs nothing of it. Nothing here knows of MPI.
//
// Rules that hold for each call:
// - Nothing throws. A call returns a Status, and writes results through references only when the Status is ok.
// - A call yields kUnsupported and has no other effect where the loaded library is too old to have the function, or
//   does not know the type or operation.
// - Calls work on the calling thread's current device, as the library's own calls do: see gpu::Runtime::make_current().
// - Communication calls only queue work in a stream. The work is over when the stream has executed it. async_error()
//   tells of a failure that comes up later.
// - Counts are of elements. Buffers are memory that the communicator's device can reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::ccl {

/// Outcome of a call. `code` is the library's own number; 0 is success.
struct [[nodiscard]] Status {
    int code = 0;
    const char* call = nullptr;         ///< static string; null on success
    const char* description = nullptr;  ///< the library's words, static; null on success

    [[nodiscard]] bool ok() const noexcept { return code == 0; }
    /// "ncclCommInitRank: invalid usage (5)". Empty on success.
    [[nodiscard]] std::string message() const;
};

/// Status for "the loaded library cannot do that".
inline constexpr int kUnsupported = -1;
/// ncclInProgress: a nonblocking communicator has not finished the call. No failure.
inline constexpr int kInProgress = 7;

/// Element types; the values are the library's.
enum class Type : std::uint8_t {
    int8 = 0,
    uint8 = 1,
    int32 = 2,
    uint32 = 3,
    int64 = 4,
    uint64 = 5,
    float16 = 6,
    float32 = 7,
    float64 = 8,
    bfloat16 = 9,
    float8_e4m3 = 10,
    float8_e5m2 = 11
};

/// Bytes of one element.
[[nodiscard]] std::size_t size_of(Type type) noexcept;
/// "bfloat16".
[[nodiscard]] const char* to_string(Type type) noexcept;

/// Reductions; the values are the library's.
enum class Operation : std::uint8_t { sum = 0, product = 1, maximum = 2, minimum = 3, average = 4 };

/// "sum".
[[nodiscard]] const char* to_string(Operation operation) noexcept;

/// Identifies a new communicator to the ranks that join it. Send it to the other ranks as plain bytes.
struct UniqueId {
    unsigned char bytes[128] = {};
};

/// Opaque. It belongs to the Library that made it.
struct Communicator {
    void* value = nullptr;
};

/// The functions of the library, by the names that its documentation gives them.
struct Functions;
/// What differs between the vendors.
struct Product;

/// A loaded library. Objects live as long as the process. Any thread may make any call, but no two threads may use one
/// communicator at the same time (the library's own rule).
class Library {
  public:
    explicit Library(const Product& product, std::string path, const Functions& functions, int version);
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    /// "NCCL" or "RCCL".
    [[nodiscard]] const char* name() const noexcept;
    /// The library's number: 22703 for 2.27.3.
    [[nodiscard]] int version() const noexcept { return _version; }
    /// "NCCL 2.27.3".
    [[nodiscard]] std::string title() const;
    /// The path that the library was loaded from.
    [[nodiscard]] const std::string& path() const noexcept { return _path; }

    /// Whether this version knows the type or the operation.
    [[nodiscard]] bool supports(Type type) const noexcept;
    [[nodiscard]] bool supports(Operation operation) const noexcept;

    /// Explains a failure in full: the status's message and what the library noted about it (its last error). The note
    /// names the cause where the status only names its kind. Ask on the thread that got the status, before its next
    /// call.
    [[nodiscard]] std::string explain(const Status& status, Communicator communicator = {}) const;

    // ---- communicators ----------------------------------------------------------------------------------------------
    /// One rank calls this; all ranks pass the same id to init_rank().
    Status unique_id(UniqueId& id) const noexcept;
    /// Joins the communicator as `rank` of `ranks` with the thread's current device. Returns when all ranks have
    /// joined, and blocks for ever when one never does.
    Status init_rank(Communicator& communicator, int ranks, const UniqueId& id, int rank) const noexcept;
    /// Waits for queued work, and frees. A null communicator is fine.
    Status destroy(Communicator communicator) const noexcept;
    /// Ends queued work without waiting for other ranks, and frees. A null communicator is fine.
    Status abort(Communicator communicator) const noexcept;
    /// `error` becomes the failure since the communicator was made, or success, or kInProgress.
    Status async_error(Communicator communicator, Status& error) const noexcept;
    Status count(Communicator communicator, int& ranks) const noexcept;
    Status user_rank(Communicator communicator, int& rank) const noexcept;

    // ---- groups -----------------------------------------------------------------------------------------------------
    /// Calls between start and end make progress together, so that sends and receives cannot wait for each other.
    /// Groups nest.
    Status group_start() const noexcept;
    Status group_end() const noexcept;

    // ---- communication ----------------------------------------------------------------------------------------------
    Status send(const void* data, std::size_t count, Type type, int peer, Communicator communicator,
                gpu::StreamHandle stream) const noexcept;
    Status receive(void* data, std::size_t count, Type type, int peer, Communicator communicator,
                   gpu::StreamHandle stream) const noexcept;
    /// `send` == `receive` works in place.
    Status all_reduce(const void* send, void* receive, std::size_t count, Type type, Operation operation,
                      Communicator communicator, gpu::StreamHandle stream) const noexcept;
    /// `receive` counts at the root only.
    Status reduce(const void* send, void* receive, std::size_t count, Type type, Operation operation, int root,
                  Communicator communicator, gpu::StreamHandle stream) const noexcept;
    /// `send` counts at the root only.
    Status broadcast(const void* send, void* receive, std::size_t count, Type type, int root, Communicator communicator,
                     gpu::StreamHandle stream) const noexcept;
    /// Gathers `count` elements of each rank. In place when `send` is this rank's part of `receive`.
    Status all_gather(const void* send, void* receive, std::size_t count, Type type, Communicator communicator,
                      gpu::StreamHandle stream) const noexcept;
    /// Leaves `count` elements at each rank. In place when `receive` is this rank's part of `send`.
    Status reduce_scatter(const void* send, void* receive, std::size_t count, Type type, Operation operation,
                          Communicator communicator, gpu::StreamHandle stream) const noexcept;

  private:
    [[nodiscard]] Status outcome(int code, const char* call) const noexcept;
    [[nodiscard]] Status check(Type type, const char* call) const noexcept;
    [[nodiscard]] Status check(Type type, Operation operation, const char* call) const noexcept;

    const Product& _product;  ///< never freed
    const std::string _path;
    const Functions& _functions;  ///< never freed
    const int _version;
};

/// The library that goes with a vendor's GPUs. Loads it if need be. Null when there is none; then `why_not` gives the
/// reason and the remedy. A library that was found stays; otherwise the next call looks again.
///
/// When AWAKEN_CCL is set, it is the path of the library and the only candidate. Otherwise the order is: a library that
/// the process has loaded already; the library's name, as the loader knows it; the packages of the Python in use; the
/// folder beside the ROCm that is loaded or installed.
[[nodiscard]] const Library* find(gpu::Vendor vendor, std::string* why_not = nullptr);

/// The paths and names that find() tries, best first. Empty for the none runtime.
[[nodiscard]] std::vector<std::string> candidates(gpu::Vendor vendor);

}  // namespace awaken::ccl
