// SPDX-License-Identifier: Apache-2.0
// What the layer knows of each communicator of the program.
//
// A record is attached to a communicator as an attribute, so it lives as long as the communicator. It holds the ranks
// of the members, and one object for each family of functions that keeps data of its own (see CommunicatorObject). This
// file knows no family: at the start, each family registers a function that makes its object.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "mpi/native.h"
#include "node/segment.h"

namespace awaken::AWAKEN_ABI {

/// What one family of functions keeps for one communicator.
class CommunicatorObject {
  public:
    CommunicatorObject() = default;
    virtual ~CommunicatorObject() = default;
    CommunicatorObject(const CommunicatorObject&) = delete;
    CommunicatorObject& operator=(const CommunicatorObject&) = delete;

    /// Called before MPI goes down, for all communicators first: from now on other ranks need not wait for this
    /// process.
    virtual void begin_to_leave() noexcept {}
    /// Called after that, still before MPI goes down. Gives back what the MPI has given, since the object outlives MPI.
    virtual void give_up() noexcept {}
};

/// The members of one communicator in the order of their ranks; for an intercommunicator, those of the remote group.
struct CommunicatorRecord {
    std::vector<int> indices;  ///< in the node's segment; -1: not in it
    std::once_flag ranks_known;
    std::vector<int> world_ranks;  ///< in MPI_COMM_WORLD; -1: not in it. Looked up at the first use.
    bool between = false;          ///< an intercommunicator
    /// By family, in the order of Communicators::Family.
    std::vector<std::unique_ptr<CommunicatorObject>> objects;
};

class Communicators {
  public:
    /// The families that keep data for each communicator.
    enum class Family : std::uint8_t { collectives };
    static constexpr std::size_t kFamilies = 1;
    using Make = std::unique_ptr<CommunicatorObject> (*)(MPI_Comm communicator, CommunicatorRecord& record);

    explicit Communicators(const Native& native) : _native(native) {}
    ~Communicators();
    Communicators(const Communicators&) = delete;
    Communicators& operator=(const Communicators&) = delete;

    /// Called before the first record is made.
    void set_family(const Family family, const Make make) noexcept { _make[static_cast<std::size_t>(family)] = make; }
    /// MPI is up. `segment` is null where this process shares no memory. Returns false when the MPI gives no attribute
    /// key.
    [[nodiscard]] bool begin(const node::Segment* segment);
    /// Called before MPI goes down: all objects give back what the MPI has given. Does nothing unless begin()
    /// succeeded.
    void give_up() noexcept;

    /// Returns null when the MPI refuses to attach a record. Cheap for the communicator that this thread asked for
    /// last.
    [[nodiscard]] CommunicatorRecord* record_of(MPI_Comm communicator);
    /// Rank of a member in MPI_COMM_WORLD; -1 if it is not in there.
    [[nodiscard]] int world_rank_of(MPI_Comm communicator, int rank);
    /// True when all members are in MPI_COMM_WORLD, those of both groups of an intercommunicator.
    [[nodiscard]] bool are_all_of_world(MPI_Comm communicator);

  private:
    [[nodiscard]] CommunicatorRecord* attached_record_of(MPI_Comm communicator);
    [[nodiscard]] std::unique_ptr<CommunicatorRecord> make_record(MPI_Comm communicator) const;
    [[nodiscard]] MPI_Group members_of(MPI_Comm communicator, bool between) const;
    static int forget(MPI_Comm communicator, int key, void* record, void* self);
    static int copy_nothing(MPI_Comm communicator, int key, void* self, void* in, void* out, int* flag);

    const Native& _native;
    std::array<Make, kFamilies> _make{};
    const node::Segment* _segment = nullptr;
    MPI_Group _world = MPI_GROUP_NULL;
    int _key = MPI_KEYVAL_INVALID;
    std::mutex _mutex;  ///< taken to make a record
    /// Number of records attached so far. A thread that finds a record sees what the thread that attached it wrote
    /// before.
    std::atomic<std::uint64_t> _attached{0};
    std::atomic<std::uint64_t> _generation{1};  ///< changes whenever a communicator is freed
    std::mutex _records_mutex;                  ///< taken in callbacks of the MPI, which may hold its own lock
    std::unordered_set<CommunicatorRecord*> _records;
};

}  // namespace awaken::AWAKEN_ABI
