// Memory that all processes of a job on one node share.
//
// One segment a node and job, in POSIX shared memory: a table of its processes, and for each an area whose use is
// nobody's business here. It has a name only while processes are joining, which is over when the last rank of the node
// has come or MPI is up; after that nothing in /dev/shm can be left behind, however the job ends. What a job leaves
// that ends before that is removed by the next one. (Without a name, as a memfd, it could not be found: ranks have
// nothing in common but the file system, and no process of the job's lives for sure that could pass descriptors on.)
// The name is guessable, so whoever opens it looks at the owner and the permissions of what was found: somebody else's
// file is refused, and the job then has no segment. Every message between processes that relies on the segment carries
// its secret.
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

/// What each process says of itself. Written by its owner before `state` says so, never changed afterwards.
struct ProcessEntry {
    enum State : std::uint32_t {
        absent,   ///< not yet written
        present,  ///< may be talked to
        gone      ///< has left
    };
    std::atomic<std::uint32_t> state;
    std::int32_t pid;
    std::uint64_t start_time;     ///< see start_time_of()
    std::uint64_t pid_namespace;  ///< inode: pids mean something only within one
    /// As the launcher says, and from agree_on_ranks() on as the MPI does.
    std::atomic<std::int32_t> world_rank;
    std::atomic<std::uint64_t> said;  ///< what the MPI says: ranks << 32 | (rank + 1); 0: nothing yet
};

class Segment {
  public:
    /// Joins the job's segment, making it if this process is the first. Null with the reason in `why_not` when that is
    /// impossible; the process is then alone on its node as far as direct paths go.
    /// @param area_bytes of each process; the same in all, or they do not join.
    /// @param folder     where POSIX shared memory lives; tests use others.
    [[nodiscard]] static std::unique_ptr<Segment> join(const Job& job, std::size_t area_bytes, std::string& why_not,
                                                       const std::string& folder = "/dev/shm");
    /// Leaves. Mapped memory goes with the last reference to it in any process.
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    /// Nobody joins any more: takes the name away, and has all processes see the same ones from now on. Who was on the
    /// way in at that moment is not among them, and must not use the segment: its index is not below processes().
    /// Idempotent.
    void close_door() noexcept;

    /// Tells the others what the MPI says, and waits until all have; after close_door(), by a process that is among
    /// them. Launchers may number ranks in another way than the MPI. The same answer in all of them, whoever is asked
    /// first: false when the numbers do not make sense together, as where the processes of two jobs have come together,
    /// or when somebody has ended or is not to be heard of for `patience`; then nobody may use the segment.
    /// @param meanwhile called again and again while others are waited for.
    [[nodiscard]] bool agree_on_ranks(int rank, int ranks, std::chrono::milliseconds patience,
                                      const std::function<void()>& meanwhile);

    /// Number of processes that have joined so far, or had when the door was closed; <= local ranks of the job.
    [[nodiscard]] int processes() const noexcept;
    [[nodiscard]] int own_index() const noexcept { return _index; }
    [[nodiscard]] const ProcessEntry& process(int index) const noexcept;
    /// Index of the process with that rank in MPI_COMM_WORLD; -1 when it has not joined or has left.
    [[nodiscard]] int find(int world_rank) const noexcept;
    /// Whether a process still runs. True when that cannot be told from here.
    [[nodiscard]] bool alive(int index) const;

    /// Zero-filled memory of process `index`, aligned to a page.
    [[nodiscard]] std::byte* area(int index) const noexcept;
    [[nodiscard]] std::size_t area_bytes() const noexcept { return _area_bytes; }

    /// Memory beside the areas, of any size: whoever needs some takes it, any process of the segment may map it. It is
    /// backed when the call returns, so that a full file system is an answer here and not a signal later. Nothing when
    /// there is no room, or when the job would have more than a quarter of what others leave of the file system. Full
    /// of zeros, aligned to a page, and at an offset that no other memory ever had, so that an old offset never means
    /// new memory. Thread-safe, as are the next three.
    [[nodiscard]] std::optional<std::uint64_t> allocate(std::size_t bytes) noexcept;
    /// Gives the memory back to the system, if the file system can do that (tmpfs can): mappings of it show zeros from
    /// then on. What lies outside the allocated memory is left alone.
    void release(std::uint64_t offset, std::size_t bytes) noexcept;
    /// Memory that some process of the segment has allocated, mapped here. Null when it lies outside the segment or
    /// cannot be mapped. Not checked: whether it is still allocated.
    [[nodiscard]] std::byte* map(std::uint64_t offset, std::size_t bytes) noexcept;
    static void unmap(std::byte* address, std::size_t bytes) noexcept;

    /// For what only one of the node's processes may do at a time: 0, or a number that says who does it. Whoever
    /// changes it from 0 to its own sets it back.
    [[nodiscard]] std::atomic<std::uint64_t>& token() const noexcept;

    /// 128 random bits that only processes of the segment know.
    [[nodiscard]] const std::array<std::uint64_t, 2>& secret() const noexcept { return _secret; }

  private:
    struct Header;
    Segment(std::string path, int file, void* base, std::size_t bytes) noexcept;
    bool enter(const Job& job, std::string& why_not);
    [[nodiscard]] static bool is_deserted(const void* base);
    static void remove_left_overs(const std::string& folder);
    void remember() noexcept;
    /// Counts memory beside the areas as nobody's.
    void give_up(std::uint64_t bytes) noexcept;
    /// Size of the file; nothing when the descriptor is not ours any more.
    [[nodiscard]] std::optional<std::uint64_t> file_bytes() const noexcept;
    /// Whether a range lies in the file and beside the areas.
    [[nodiscard]] bool may_be_allocated(std::uint64_t offset, std::size_t bytes) const noexcept;

    std::string _path;
    int _file = -1;  ///< kept open, to take and map memory beside the areas
    std::uint64_t _file_system = 0, _file_number = 0;
    std::byte* _base = nullptr;  ///< header, processes and areas
    std::size_t _bytes = 0;      ///< of these
    int _index = -1;
    // What the header says, as it was at the beginning: whatever becomes of it does not lead out of the segment.
    std::uint64_t _capacity = 0;
    std::size_t _area_bytes = 0, _areas_offset = 0;
    std::array<std::uint64_t, 2> _secret{};
};

}  // namespace awaken::node
