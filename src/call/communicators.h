// What the layer knows of each of the program's communicators.
//
// A record is attached to a communicator as an attribute, so it goes when the communicator goes. It holds the ranks of
// the members, and one object of each family of functions that wants to keep something of its own (see
// CommunicatorObject). This file knows no family: a family gives a function that makes its object, once, at start.
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

/// What one family of functions keeps of one communicator.
class CommunicatorObject {
  public:
    CommunicatorObject() = default;
    virtual ~CommunicatorObject() = default;
    CommunicatorObject(const CommunicatorObject&) = delete;
    CommunicatorObject& operator=(const CommunicatorObject&) = delete;

    /// Before MPI goes down, for all communicators first: others need not wait for this process from here on.
    virtual void begin_to_leave() noexcept {}
    /// Before MPI goes down, after that: gives back what MPI has given, since MPI is not there when the object goes.
    virtual void give_up() noexcept {}
};

/// One communicator's members, in the order of their ranks; of an intercommunicator, those of the remote group.
struct CommunicatorRecord {
    std::vector<int> indices;  ///< in the node's segment; -1: not there
    std::once_flag ranks_known;
    std::vector<int> world_ranks;  ///< in MPI_COMM_WORLD, -1: not there; looked up when they are first asked for
    bool between = false;          ///< an intercommunicator
    /// By family, in the order of Communicators::Family.
    std::vector<std::unique_ptr<CommunicatorObject>> objects;
};

class Communicators {
  public:
    /// Families that keep something of each communicator.
    enum class Family : std::uint8_t { collectives };
    static constexpr std::size_t kFamilies = 1;
    using Make = std::unique_ptr<CommunicatorObject> (*)(MPI_Comm communicator, CommunicatorRecord& record);

    explicit Communicators(const Native& native) : _native(native) {}
    ~Communicators();
    Communicators(const Communicators&) = delete;
    Communicators& operator=(const Communicators&) = delete;

    /// Before the first record is made.
    void set_family(const Family family, const Make make) noexcept { _make[static_cast<std::size_t>(family)] = make; }
    /// MPI is up. `segment`: null where this process shares no memory. False when the MPI gives no attribute key.
    [[nodiscard]] bool begin(const node::Segment* segment);
    /// Before MPI goes down: all objects give back what MPI has given. begin() must have succeeded, or nothing is done.
    void give_up() noexcept;

    /// Null when the MPI refuses to attach a record. Cheap for the communicator that this thread has asked for last.
    [[nodiscard]] CommunicatorRecord* record_of(MPI_Comm communicator);
    /// Rank in MPI_COMM_WORLD of a member; -1: it is not in there.
    [[nodiscard]] int world_rank_of(MPI_Comm communicator, int rank);
    /// Whether all members of an intracommunicator are in MPI_COMM_WORLD.
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
    std::mutex _mutex;  ///< of making a record
    /// Records that were attached to communicators; who finds one sees what those who attached have written before.
    std::atomic<std::uint64_t> _attached{0};
    std::atomic<std::uint64_t> _generation{1};  ///< another one whenever a communicator was freed
    std::mutex _records_mutex;                  ///< taken where the MPI calls, which may hold a lock of its own then
    std::unordered_set<CommunicatorRecord*> _records;
};

}  // namespace awaken::AWAKEN_ABI
