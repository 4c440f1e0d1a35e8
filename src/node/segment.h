// SPDX-License-Identifier: Apache-2.0
// Memory that all processes of a job on one node share.
//
// Each job has one segment on each node, in POSIX shared memory: a table of its processes, and an area for each. This
// file does not say what the areas are used for. The segment has a name only while processes are joining. That is over
// when the last rank of the node has come or MPI is up. After that nothing stays behind in /dev/shm, however the job
// ends. If a job ends before that, the next job removes its segment. (A memfd, which has no name, could not be found:
// ranks have nothing in common but the file system, and no process of the job is sure to live that could pass
// descriptors on.) The name is guessable, so each process that opens the segment checks the file's owner and
// permissions. It refuses a file of another user, and the job then has no segment. Every message between processes that
// relies on the segment carries its secret.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "node/job.h"

namespace awaken::node {

/// What each process says about itself. The process writes its entry before it sets `state`, and never changes it
/// afterwards.
struct ProcessEntry {
    enum State : std::uint32_t {
        absent,   ///< not yet written
        present,  ///< others may use this entry
        gone      ///< the process has left
    };
    std::atomic<std::uint32_t> state;
    std::int32_t pid;
    std::uint64_t start_time;     ///< see start_time_of()
    std::uint64_t pid_namespace;  ///< inode; pids have a meaning only within one namespace
    /// From the launcher at first, and from agree_on_ranks() on from the MPI.
    std::atomic<std::int32_t> world_rank;
    std::atomic<std::uint64_t> said;  ///< from the MPI: ranks << 32 | (rank + 1); 0: nothing yet
    std::atomic<bool> reproducible;   ///< AWAKEN_REPRODUCIBLE, which all ranks must set alike; before `said`
};

class KeptBlocks;

class Segment {
  public:
    /// Joins the job's segment. The first process makes it. Null, with the reason in `why_not`, when that is
    /// impossible; the process then has no direct paths to others on its node.
    /// @param area_bytes size of each process's area; processes with different sizes do not join.
    /// @param folder     where POSIX shared memory lives; tests use other folders.
    [[nodiscard]] static std::unique_ptr<Segment> join(const Job& job, std::size_t area_bytes, std::string& why_not,
                                                       const std::string& folder = "/dev/shm");
    /// Leaves the segment. The system frees mapped memory with the last reference to it in any process.
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    /// Ends the joining: removes the segment's name, and from now on all processes see the same members. A process that
    /// was just joining is not among them, and must not use the segment: its index is not below processes().
    /// Idempotent.
    void close_door() noexcept;

    /// Tells the other processes this process's rank as the MPI says it, and waits until all have done so. Launchers
    /// may number ranks in another way than the MPI. Call after close_door(), in a process that is a member. All
    /// members get the same answer. False when the numbers do not fit together, as where the processes of two jobs have
    /// come together, or when a process has ended or has said nothing for `patience`; then no process may use the
    /// segment.
    /// @param meanwhile called again and again while this process waits for the others.
    [[nodiscard]] bool agree_on_ranks(int rank, int ranks, bool reproducible, std::chrono::milliseconds patience,
                                      const std::function<void()>& meanwhile);

    /// Number of processes that have joined so far, or had when the door was closed; <= local ranks of the job.
    [[nodiscard]] int processes() const noexcept;
    [[nodiscard]] int own_index() const noexcept { return _index; }
    [[nodiscard]] const ProcessEntry& process(int index) const noexcept;
    /// Index of the process with rank `world_rank` in MPI_COMM_WORLD; -1 when it has not joined or has left.
    [[nodiscard]] int find(int world_rank) const noexcept;
    /// Whether a process still runs. True when this process cannot tell.
    [[nodiscard]] bool alive(int index) const;

    /// Zero-filled memory of process `index`, aligned to a page.
    [[nodiscard]] std::byte* area(int index) const noexcept;
    [[nodiscard]] std::size_t area_bytes() const noexcept { return _area_bytes; }

    /// Takes memory of any size beside the areas. Any process of the segment may take some, and any may map it. The
    /// memory is backed when the call returns, so that a full file system is an answer here and not a signal later.
    /// Nothing when there is no room, or when the job would have more than a quarter of what others leave of the file
    /// system. The memory is full of zeros, aligned to a page, and at an offset that no other memory ever had, so that
    /// an old offset never means new memory. Thread-safe, as are the next three functions.
    [[nodiscard]] std::optional<std::uint64_t> allocate(std::size_t bytes) noexcept;
    /// Gives the memory back to the system, if the file system can do that (tmpfs can). Mappings of it show zeros from
    /// then on. A range outside the allocated memory is left alone.
    void release(std::uint64_t offset, std::size_t bytes) noexcept;
    /// Maps memory that a process of the segment has allocated. Null when it lies outside the segment or cannot be
    /// mapped. The call does not check whether the memory is still allocated.
    [[nodiscard]] std::byte* map(std::uint64_t offset, std::size_t bytes) noexcept;
    static void unmap(std::byte* address, std::size_t bytes) noexcept;

    /// For work that only one of the node's processes may do at a time: 0, or a number that names the process that does
    /// it. The process that changes it from 0 to its own number sets it back.
    [[nodiscard]] std::atomic<std::uint64_t>& token() const noexcept;

    /// Memory of groups that are gone (member_blocks.h).
    [[nodiscard]] KeptBlocks& kept_blocks() noexcept { return *_kept_blocks; }

    /// 128 random bits that only processes of the segment know.
    [[nodiscard]] const std::array<std::uint64_t, 2>& secret() const noexcept { return _secret; }

  private:
    struct Header;
    Segment(std::string path, int file, void* base, std::size_t bytes);
    bool enter(const Job& job, std::string& why_not);
    [[nodiscard]] static bool is_deserted(const void* base);
    static void remove_left_overs(const std::string& folder);
    void remember() noexcept;
    /// Subtracts memory beside the areas from what the job has.
    void give_up(std::uint64_t bytes) noexcept;
    /// Size of the file; nothing when the descriptor no longer belongs to this segment.
    [[nodiscard]] std::optional<std::uint64_t> file_bytes() const noexcept;
    /// Whether a range lies in the file and beside the areas.
    [[nodiscard]] bool may_be_allocated(std::uint64_t offset, std::size_t bytes) const noexcept;

    std::string _path;
    int _file = -1;  ///< stays open, to take and map memory beside the areas
    std::uint64_t _file_system = 0, _file_number = 0;
    std::byte* _base = nullptr;  ///< header, processes and areas
    std::size_t _bytes = 0;      ///< bytes at `_base`
    int _index = -1;
    const std::unique_ptr<KeptBlocks> _kept_blocks;
    // Values of the header at the beginning. If another process overwrites the header, these still do not lead out of
    // the segment.
    std::uint64_t _capacity = 0;
    std::size_t _area_bytes = 0, _areas_offset = 0;
    std::array<std::uint64_t, 2> _secret{};
};

}  // namespace awaken::node
