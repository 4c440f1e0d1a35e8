// SPDX-License-Identifier: Apache-2.0
// What the layer did and how: calls, bytes and time per MPI function, path and size class, and each fallback with its
// reason.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace awaken::report {

/// How the bytes of a call travelled, better ways first. When a call takes several ways, the report names the last of
/// them in this order.
enum class Path : std::uint8_t {
    native,        ///< nothing to do: all buffers were host memory
    direct,        ///< read from the other process's own memory
    ccl,           ///< by NCCL or RCCL
    copied,        ///< through a copy that waited for its receiver, in exported device memory or shared host memory
    ring,          ///< through chunks of host memory that both processes share
    pipelined,     ///< through the MPI in fragments, which both sides copy meanwhile
    staged,        ///< copied through pinned host memory
    staged_large,  ///< copied through ordinary host memory because the pinned pool was full
    refused        ///< ended with an error of ours
};
inline constexpr int kPathCount = 9;
[[nodiscard]] const char* to_string(Path path) noexcept;

/// What copied device memory.
enum class Mover : std::uint8_t {
    engine,  ///< copies of the GPU runtime (cuMemcpyAsync, hipMemcpyAsync and their relatives)
    kernel,  ///< kernels of the layer
    cpu      ///< the CPU, where it reaches device memory
};
inline constexpr int kMoverCount = 3;
[[nodiscard]] const char* to_string(Mover mover) noexcept;

/// Facts about the process for the head of the report.
struct Identity {
    int rank = -1;  ///< -1: the ledger holds all ranks of the job
    int size = 0;   ///< ranks of the job; 0: not known
    std::string host;
    std::string mpi_library;      ///< path
    bool mpi_was_chosen = false;  ///< we chose it, since the program had loaded none
    std::string mpi_version;      ///< first line of MPI_Get_library_version
    std::string abi;              ///< "MPICH", "Open MPI", "MPI-5"
    std::string gpu;              ///< Versions::description, or why there is none
    std::string native_gpu;       ///< whether the MPI takes device memory by itself, and the source of that answer;
                                  ///< empty: not asked
    std::vector<std::string> devices;
    std::vector<std::string> notes;        ///< settings that had no effect, and why
    std::vector<std::string> collectives;  ///< rows of the table that chooses the algorithms of collectives; empty: not
                                           ///< used
};

/// Size classes are powers of two: the class of n bytes is the k (0 to 64) of the smallest 2^k >= n; 0 bytes has its
/// own, -1.
[[nodiscard]] int size_class(std::uint64_t bytes) noexcept;

struct Entry {
    std::uint64_t calls = 0;
    std::uint64_t bytes = 0;
    std::uint64_t nanoseconds = 0;
};

/// One per process. Thread-safe. Each call may add to it: adding costs a look-up without a lock and three relaxed
/// atomic additions.
class Ledger {
  public:
    Ledger();
    ~Ledger();
    Ledger(const Ledger&) = delete;
    Ledger& operator=(const Ledger&) = delete;

    /// `function` is a string literal ("MPI_Send"). Its address is the key of the look-up. The report joins calls with
    /// the same text at different addresses.
    void add(const char* function, Path path, std::uint64_t bytes, std::uint64_t nanoseconds);
    /// `reason`: one line, e.g. "pinned pool of 64 MiB full".
    void add_fallback(const char* function, const std::string& reason);
    /// `copies`: calls and bytes.
    void add_copies(Mover mover, const Entry& copies);

    using Key = std::tuple<std::string, Path, int>;  ///< function, path, size class
    [[nodiscard]] std::map<Key, Entry> entries() const;
    [[nodiscard]] std::map<std::pair<std::string, std::string>, std::uint64_t> fallbacks() const;
    using Copies = std::array<Entry, kMoverCount>;
    [[nodiscard]] Copies copies() const;

    /// The ledger as text, in which rank 0 collects the ledgers of all ranks.
    [[nodiscard]] std::string serialise() const;
    /// Adds another rank's ledger to this one. Throws awaken::Error on a damaged text, and then adds nothing.
    void merge(const std::string& serialised);

  private:
    struct Function;  ///< the counters of one function
    struct Table;     ///< address of the function's name -> counters
    Function& function(const char* name);

    std::atomic<Table*> _table;
    mutable std::mutex _mutex;  ///< for everything below and for adding to the table
    std::vector<std::unique_ptr<Table>>
        _tables;  ///< the one in use and its smaller predecessors, which may still have readers
    std::vector<std::unique_ptr<Function>> _functions;
    std::map<Key, Entry> _merged;  ///< of other ranks
    std::map<std::pair<std::string, std::string>, std::uint64_t> _fallbacks;
    Copies _copies{};
};

/// The report of one job (or of one rank where ranks cannot be gathered) as text for people.
[[nodiscard]] std::string to_text(const Identity& identity, const Ledger& ledger);
/// The same as JSON; schema "awaken-report", version 1, described in docs/path-report.md.
[[nodiscard]] std::string to_json(const Identity& identity, const Ledger& ledger);

}  // namespace awaken::report
