// The other processes of the job on this node, and when they may send headers to this one.
//
// A header takes a message's place (see p2p/link.h), so any receive that is outstanding when the first one may come
// must be ready for it. Receives that were started before this process found its GPU runtime are the MPI's own and are
// not; they are counted here, and only when none is left does the process say that it takes headers. From then on every
// receive of its is prepared for one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coll/team.h"
#include "mpi/native.h"
#include "node/segment.h"
#include "p2p/link.h"

namespace awaken::AWAKEN_ABI {

class Layer;
class CclAcross;
class Edges;
class Levels;
class Network;
class OwnCommunicator;

class Neighbours {
  public:
    explicit Neighbours(Layer& owner);
    ~Neighbours();
    Neighbours(const Neighbours&) = delete;
    Neighbours& operator=(const Neighbours&) = delete;

    /// Before and after the MPI's own initialisation of the world model: joins the node's shared memory, so that
    /// everybody is there when MPI is up.
    void before_init();
    void after_init();
    /// The GPU runtime was found.
    void use(gpu::Runtime& runtime);
    /// Before the MPI's own finalisation.
    void before_finalize();
    /// After the MPI's own finalisation, when all messages have been received.
    void after_finalize();

    /// The direct paths; null where there are none (no driver, no shared memory, switched off).
    [[nodiscard]] p2p::Link* link() const noexcept { return _link.load(std::memory_order_acquire); }
    /// Before a call waits or looks: see p2p::Link.
    void settle_sources() const noexcept {
        if (p2p::Link* const to = link(); to != nullptr) {
            to->settle_sources();
            to->reclaim();
        }
    }
    /// Index in the node's segment of the process with this rank in the communicator (in its remote group, if it has
    /// one); -1 when it is on another node, of another world, or without the layer.
    [[nodiscard]] int index_of(MPI_Comm communicator, int rank);
    /// Whether there is such a rank to send to.
    [[nodiscard]] bool has_rank(MPI_Comm communicator, int rank);

    /// How the members of the communicator do collectives themselves; null where they are not all on this node. The
    /// first call for a communicator is collective.
    [[nodiscard]] coll::Team* team_of(MPI_Comm communicator);
    /// A team of its own for one persistent collective, whose starts need not come in the same order on all members.
    /// Collective over the members, who all have a team already. Null in all of them when one cannot: it says
    /// `possible` = false, or has no shared memory left.
    [[nodiscard]] std::shared_ptr<coll::Team> make_persistent_team(MPI_Comm communicator, bool possible);
    /// As team_of(), for a call that must not wait for others: null as long as there was no collective that may.
    [[nodiscard]] coll::Team* known_team_of(MPI_Comm communicator);
    /// What the members of a communicator know alike of each other, whatever each finds on its own: whether one may
    /// call a collective of the layer's own on it.
    enum class Company : std::uint8_t {
        strangers,   ///< some may run without the layer
        colleagues,  ///< all run the layer
        neighbours   ///< and all are on this node, with shared memory
    };
    [[nodiscard]] Company company_of(MPI_Comm communicator);
    /// Of a communicator whose members are neighbours: their indices in the node's segment, by rank.
    [[nodiscard]] std::vector<int> indices_of(MPI_Comm communicator);
    [[nodiscard]] node::Segment* segment() const noexcept { return _segment.get(); }
    /// Kernels that combine; null as long as this process uses no GPU, and again when the runtime is about to go.
    [[nodiscard]] coll::Engine* engine() const noexcept { return _engine.load(std::memory_order_acquire); }
    /// What the members of a communicator know alike of their votes on large collectives (see coll/in_chunks.h).
    struct ChunkVotes {
        std::uint64_t chunk_bytes = 0;
        int nodes = 1;            ///< that the members are on
        std::uint64_t skip = 0;   ///< collectives that have no vote from now on
        std::uint64_t pause = 0;  ///< as many as were skipped before the last vote
        /// The same of collectives whose parts vary (see coll/as_messages.h).
        std::uint64_t varying_skip = 0, varying_pause = 0;
    };
    /// Null where members may run without the layer. The first call for a communicator is collective.
    [[nodiscard]] ChunkVotes* chunk_votes_of(MPI_Comm communicator);
    /// NCCL or RCCL for a communicator that has such votes and spans nodes; null for others.
    [[nodiscard]] CclAcross* ccl_across(MPI_Comm communicator);
    /// Where the messages travel that are collectives on this communicator; MPI_COMM_NULL, on all members, when one has
    /// none. The first call for a communicator is collective.
    [[nodiscard]] MPI_Comm messages_of(MPI_Comm communicator);
    /// Node and column of a communicator whose members all run the layer; null where there is nothing to be gained, the
    /// same on all of them. The first call for a communicator is collective.
    [[nodiscard]] Levels* levels_of(MPI_Comm communicator);
    /// The neighbourhood of a communicator with a topology whose members all run the layer; null where the MPI's own
    /// collectives serve it, the same on all of them. The calls when the communicator is made, and of the first
    /// blocking collective, are collective themselves; nonblocking ones get null before, and where members are on other
    /// nodes.
    enum class EdgeUse : std::uint8_t { making, blocking, nonblocking };
    [[nodiscard]] const Edges* edges_of(MPI_Comm communicator, EdgeUse use);
    /// How large collectives that span nodes, or pass through host memory, are done, in one line; empty where that did
    /// not come up.
    [[nodiscard]] std::string between_nodes() const;
    /// Copies between host memory and GPUs that go on by themselves; null where nothing was set up for them.
    [[nodiscard]] transfer::DeviceCopies* copies() const noexcept;
    /// Chunks that are under way at once.
    [[nodiscard]] std::size_t chunk_window() const noexcept { return _chunk_window.load(std::memory_order_relaxed); }
    [[nodiscard]] bool any_teams() const noexcept { return _any_teams.load(std::memory_order_relaxed); }
    [[nodiscard]] const coll::Selection& selection() const noexcept { return _selection; }

    /// Whether there are processes on this node that may come to send headers.
    [[nodiscard]] bool joined() const noexcept { return _world_up && _segment != nullptr; }
    /// A message of a header's length was sent plain: no header of that length goes to that process any more.
    void sent_plain(MPI_Comm communicator, int rank, std::size_t bytes);

    /// The way to other nodes; null in a job of one node.
    [[nodiscard]] Network* network() const noexcept { return _network.load(std::memory_order_acquire); }
    /// Whether this process has a part in that, if only when it begins and ends.
    [[nodiscard]] bool has_network() const noexcept { return static_cast<bool>(_owned_network); }
    /// Rank in MPI_COMM_WORLD of the process with this rank in the communicator, if that is one for network(); else -1.
    [[nodiscard]] int remote_of(MPI_Comm communicator, int rank);

    /// Whether receives may meet headers: each must be prepared for one.
    [[nodiscard]] bool takes_headers() const noexcept { return _takes.load(std::memory_order_seq_cst); }
    /// Says so if nothing hinders it any more. Cheap when there is nothing to say.
    void settle_readiness() {
        if (_wants.load(std::memory_order_relaxed)) {
            try_to_take_headers();
        }
        look_at_network();
    }
    /// What other nodes have told is taken in, now and then.
    void look_at_network() {
        if (_network.load(std::memory_order_relaxed) != nullptr) {
            tick_network();
        }
    }

    /// A native receive that knows nothing of headers, for as long as the object lives.
    class Unprepared {
      public:
        explicit Unprepared(Neighbours& neighbours) noexcept;
        ~Unprepared();
        Unprepared(const Unprepared&) = delete;
        Unprepared& operator=(const Unprepared&) = delete;
        /// False: too late, receives must be prepared.
        [[nodiscard]] bool allowed() const noexcept { return _allowed; }
        /// It goes on under this request when the object is gone.
        void continues(MPI_Request request);
        /// It goes on until ended_unprepared(), which is to be called if this returns true.
        [[nodiscard]] bool keep() noexcept { return std::exchange(_counted, false); }

      private:
        Neighbours& _neighbours;
        bool _counted = false;
        bool _allowed = true;
    };
    /// Whether some unprepared receive goes on under a request.
    [[nodiscard]] bool any_unprepared() const noexcept {
        return _unprepared_requests.load(std::memory_order_acquire) != 0;
    }
    /// The MPI has completed (or freed) the request.
    void completed(MPI_Request request);
    void ended_unprepared() noexcept { _unprepared.fetch_sub(1, std::memory_order_seq_cst); }

    /// Why there is no link, for the report.
    [[nodiscard]] const std::string& why_no_link() const noexcept { return _why_not; }

  private:
    struct Members;  ///< of one communicator
    void try_to_take_headers();
    void tick_network();
    [[nodiscard]] Members* last_members(MPI_Comm communicator);
    [[nodiscard]] Members* members_of(MPI_Comm communicator);
    [[nodiscard]] int own_node() const;
    void make_team(MPI_Comm communicator, Members& members);
    [[nodiscard]] std::shared_ptr<coll::Team> new_team(MPI_Comm communicator, const std::vector<int>& indices,
                                                       bool possible);
    [[nodiscard]] Members* make_members(MPI_Comm communicator) const;
    static int forget(MPI_Comm communicator, int key, void* members, void* self);
    static int copy_nothing(MPI_Comm communicator, int key, void* self, void* in, void* out, int* flag);

    Layer& _owner;
    std::unique_ptr<node::Segment> _segment;
    std::vector<p2p::SlotSet> _sent_plain;  ///< by process of the segment
    std::unique_ptr<p2p::Link> _owned_link;
    const coll::Selection _selection;
    std::atomic<bool> _any_teams{false};
    std::unique_ptr<coll::Engine> _owned_engine;
    std::atomic<coll::Engine*> _engine{nullptr};
    std::unique_ptr<Network> _owned_network;
    std::atomic<Network*> _network{nullptr};
    std::atomic<p2p::Link*> _link{nullptr};
    std::string _why_not = "MPI_Init was not called yet";
    int _local_ranks = 0;  ///< of the job on this node, as the launcher says; 0: it does not
    bool _may_have_gpu = false;
    bool _used = false;
    bool _world_up = false;
    bool _knows_members = false;  ///< a rank without a GPU takes part in what spans nodes
    std::atomic<std::size_t> _chunk_window{4};
    std::atomic<std::uint64_t> _chunk_bytes{0};  ///< 0: nothing was cut yet
    std::atomic<int> _columns{0};                ///< of the last communicator in levels
    MPI_Group _world = MPI_GROUP_NULL;
    int _key = MPI_KEYVAL_INVALID;
    std::mutex _mutex;
    /// Members that were attached to communicators; who finds some sees what those who attached have written before.
    std::atomic<std::uint64_t> _attached{0};
    std::mutex _made_mutex;        ///< taken where the MPI calls, which may hold a lock of its own then
    std::vector<Levels*> _levels;  ///< of all communicators
    std::vector<Edges*> _edges;
    std::vector<OwnCommunicator*> _messages;
    std::vector<CclAcross*> _across;
    std::atomic<std::uint64_t> _generation{1};

    std::atomic<bool> _wants{false};
    std::atomic<bool> _takes{false};
    std::atomic<std::int64_t> _unprepared{0};
    std::atomic<std::size_t> _unprepared_requests{0};
    std::mutex _requests_mutex;
    std::unordered_map<MPI_Request, unsigned> _requests;  ///< and how many stand under it
};

}  // namespace awaken::AWAKEN_ABI
