// The other processes of the job, as far as messages of ours reach them: those of this node through shared memory and
// IPC, those of other nodes through the MPI.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coll/device/engine.h"
#include "internode/network.h"
#include "ipc/link.h"
#include "mpi/native.h"
#include "node/segment.h"

namespace awaken::AWAKEN_ABI {

class Layer;

class NodePeers {
  public:
    explicit NodePeers(Layer& owner);
    ~NodePeers();
    NodePeers(const NodePeers&) = delete;
    NodePeers& operator=(const NodePeers&) = delete;

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
    [[nodiscard]] ipc::Link* link() const noexcept { return _link.load(std::memory_order_acquire); }
    /// Why there is no link, for the report.
    [[nodiscard]] const std::string& why_no_link() const noexcept { return _why_not; }
    /// Before a call waits or looks: see ipc::Link.
    void ask_readiness() const noexcept {
        if (ipc::Link* const to = link(); to != nullptr) {
            to->ask_readiness();
            to->reclaim();
        }
    }
    /// Kernels that combine; null as long as this process uses no GPU, and again when the runtime is about to go.
    [[nodiscard]] coll::Engine* engine() const noexcept { return _engine.load(std::memory_order_acquire); }
    [[nodiscard]] const std::atomic<coll::Engine*>& engine_word() const noexcept { return _engine; }
    /// Copies between host memory and GPUs that go on by themselves; null where nothing was set up for them.
    [[nodiscard]] transfer::DeviceCopies* copies() const noexcept;

    /// Null where this process shares no memory with others.
    [[nodiscard]] node::Segment* segment() const noexcept { return _segment.get(); }
    /// Whether there are processes on this node that may come to send RTS messages.
    [[nodiscard]] bool joined() const noexcept { return _world_up && _segment != nullptr; }
    /// Whether communicators have records: see Communicators. Also in a rank without a GPU, in a job of several nodes.
    [[nodiscard]] bool knows_members() const noexcept { return _knows_members; }
    /// Index in the node's segment of the process with this rank in the communicator (in its remote group, if it has
    /// one); -1 when it is on another node, of another world, or without the layer.
    [[nodiscard]] int index_of(MPI_Comm communicator, int rank);
    /// The same of all members, by rank.
    [[nodiscard]] std::vector<int> indices_of(MPI_Comm communicator);
    /// Whether there is such a rank to send to.
    [[nodiscard]] bool has_rank(MPI_Comm communicator, int rank);
    /// What the members of a communicator know alike of each other, whatever each finds on its own: whether one may
    /// call a collective of the layer's own on it.
    enum class Membership : std::uint8_t {
        unknown,    ///< some may run without the layer
        all_serve,  ///< all run the layer
        one_node    ///< and all are on this node, with shared memory
    };
    [[nodiscard]] Membership membership_of(MPI_Comm communicator);
    /// Names this node among those of MPI_COMM_WORLD, by a rank in that.
    [[nodiscard]] int own_node() const;
    /// A message of an RTS message's length was sent plain: no RTS of that length goes to that process any more.
    void sent_plain(MPI_Comm communicator, int rank, std::size_t bytes);

    /// The way to other nodes; null in a job of one node.
    [[nodiscard]] Network* network() const noexcept { return _network.load(std::memory_order_acquire); }
    /// Whether this process has a part in that, if only when it begins and ends.
    [[nodiscard]] bool has_network() const noexcept { return static_cast<bool>(_owned_network); }
    /// Rank in MPI_COMM_WORLD of the process with this rank in the communicator, if that is one for network(); else -1.
    [[nodiscard]] int remote_of(MPI_Comm communicator, int rank);
    /// What other nodes have told is taken in, now and then.
    void look_at_network() {
        if (_network.load(std::memory_order_relaxed) != nullptr) {
            _owned_network->tick();
        }
    }

  private:
    Layer& _owner;
    std::unique_ptr<node::Segment> _segment;
    std::vector<ipc::SlotSet> _sent_plain;  ///< by process of the segment
    std::unique_ptr<ipc::Link> _owned_link;
    std::unique_ptr<coll::Engine> _owned_engine;
    std::atomic<coll::Engine*> _engine{nullptr};
    std::unique_ptr<Network> _owned_network;
    std::atomic<Network*> _network{nullptr};
    std::atomic<ipc::Link*> _link{nullptr};
    std::string _why_not = "MPI_Init was not called yet";
    int _local_ranks = 0;  ///< of the job on this node, as the launcher says; 0: it does not
    bool _may_have_gpu = false;
    bool _used = false;
    bool _world_up = false;
    bool _knows_members = false;
    std::mutex _mutex;
};

}  // namespace awaken::AWAKEN_ABI
