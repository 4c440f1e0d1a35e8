// SPDX-License-Identifier: Apache-2.0
// The other processes of the job that messages of the layer can reach: those of this node through shared memory and
// IPC, those of other nodes through the MPI.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
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

    /// Called before and after the MPI initialises the world model. Joins the node's shared memory, so that all
    /// processes are there when MPI is up.
    void before_init();
    void after_init();
    /// The GPU runtime was found.
    void use(gpu::Runtime& runtime);
    /// Called before the MPI finalises.
    void before_finalize();
    /// Called after the MPI has finalised, when all messages have been received.
    void after_finalize();

    /// The direct paths. Null where there are none (no driver, no shared memory, or switched off).
    [[nodiscard]] ipc::Link* link() const noexcept { return _link.load(std::memory_order_acquire); }
    /// Why there is no link; the report prints it.
    [[nodiscard]] const std::string& why_no_link() const noexcept { return _why_not; }
    /// Called before a call waits or polls: see transport::Transport.
    void ask_readiness() const noexcept {
        if (ipc::Link* const to = link(); to != nullptr) {
            to->ask_readiness();
        }
    }
    /// Gives GPUs what messages have gathered: see transport::Transport.
    void flush() const noexcept {
        if (ipc::Link* const to = link(); to != nullptr) {
            to->flush();
        }
    }
    void flush_late() const noexcept {
        if (ipc::Link* const to = link(); to != nullptr) {
            to->flush_late();
        }
    }
    /// Called now and then: see ipc::Link.
    void reclaim() const noexcept {
        if (ipc::Link* const to = link(); to != nullptr) {
            to->reclaim();
        }
    }
    /// The kernels that combine. Null until this process uses a GPU, and again when the runtime is about to end.
    [[nodiscard]] coll::Engine* engine() const noexcept { return _engine.load(std::memory_order_acquire); }
    [[nodiscard]] const std::atomic<coll::Engine*>& engine_word() const noexcept { return _engine; }
    /// Copies between host memory and GPUs that go on by themselves. Null until this process uses a GPU, and where it
    /// has no peers.
    [[nodiscard]] transfer::DeviceCopies* copies() const noexcept;

    /// Null where this process shares no memory with others.
    [[nodiscard]] node::Segment* segment() const noexcept { return _segment.get(); }
    /// True when processes of this node may send RTS messages to this one.
    [[nodiscard]] bool joined() const noexcept { return _world_up && _segment != nullptr; }
    /// True when communicators have records (see Communicators). In a job of several nodes a rank without a GPU has
    /// them too.
    [[nodiscard]] bool knows_members() const noexcept { return _knows_members; }
    /// A process that messages of the layer can reach.
    struct Peer {
        transport::Transport* transport = nullptr;  ///< null: there is no such way to the process
        int number = -1;                            ///< as the transport counts
        bool near = false;                          ///< on this node
    };
    /// The process with this rank in the communicator (in its remote group, if it has one).
    [[nodiscard]] Peer peer_of(MPI_Comm communicator, int rank);
    /// The transport whose RTS this message is; null for another message.
    [[nodiscard]] transport::Transport* transport_of(const std::byte* message, std::size_t length) const noexcept;
    /// A first look at memory into which an RTS may be arriving.
    [[nodiscard]] bool begins_like_rts(const std::byte* const message) const noexcept {
        for (const transport::Transport* const each : transports()) {
            if (each != nullptr && each->begins_like_rts(message)) {
                return true;
            }
        }
        return false;
    }
    /// The figures that choose the path of a message.
    [[nodiscard]] const transfer::Tuning& tuning() const noexcept { return _tuning; }
    /// Index in the node's segment of the process with this rank in the communicator (in its remote group, if it has
    /// one). -1 when the process is on another node, in another world, or without the layer.
    [[nodiscard]] int index_of(MPI_Comm communicator, int rank);
    /// The same for all members, by rank.
    [[nodiscard]] std::vector<int> indices_of(MPI_Comm communicator);
    /// True when the communicator has this rank to send to.
    [[nodiscard]] bool has_rank(MPI_Comm communicator, int rank);
    /// What all members of a communicator know alike of each other, whatever each finds on its own. It decides whether
    /// the layer may call a collective of its own on the communicator.
    enum class Membership : std::uint8_t {
        unknown,    ///< some may run without the layer
        all_serve,  ///< all run the layer
        one_node    ///< and all are on this node, with shared memory
    };
    [[nodiscard]] Membership membership_of(MPI_Comm communicator);
    /// Whether all processes of MPI_COMM_WORLD run the layer. The same in all of them.
    [[nodiscard]] bool world_has_the_layer() const;
    /// Names this node among those of MPI_COMM_WORLD, by the rank of one process in MPI_COMM_WORLD.
    [[nodiscard]] int own_node() const;
    /// This process has sent a plain message of the length of an RTS message. It sends no RTS of that length to that
    /// process any more.
    void sent_plain(MPI_Comm communicator, int rank, std::size_t bytes);

    /// The way to other nodes. Null in a job of one node.
    [[nodiscard]] Network* network() const noexcept { return _network.load(std::memory_order_acquire); }
    /// True when this process takes part in that network, if only at its begin and end.
    [[nodiscard]] bool has_network() const noexcept { return static_cast<bool>(_owned_network); }
    /// Rank in MPI_COMM_WORLD of the process with this rank in the communicator; -1 unless network() reaches it.
    [[nodiscard]] int remote_of(MPI_Comm communicator, int rank);
    /// Takes in what other nodes have sent, from time to time.
    void look_at_network() {
        if (_network.load(std::memory_order_relaxed) != nullptr) {
            _owned_network->tick();
        }
    }

  private:
    /// Null where there is none.
    [[nodiscard]] std::array<transport::Transport*, 2> transports() const noexcept { return {link(), network()}; }

    Layer& _owner;
    std::unique_ptr<node::Segment> _segment;
    std::vector<transport::SlotSet> _sent_plain;  ///< by index of the process in the segment
    std::unique_ptr<ipc::Link> _owned_link;
    std::unique_ptr<coll::Engine> _owned_engine;
    std::atomic<coll::Engine*> _engine{nullptr};
    std::unique_ptr<Network> _owned_network;
    std::atomic<Network*> _network{nullptr};
    std::atomic<ipc::Link*> _link{nullptr};
    transfer::Tuning _tuning;
    std::string _why_not = "MPI_Init was not called yet";
    int _local_ranks = 0;        ///< of the job on this node, from the launcher; 0 if the launcher does not say
    std::thread _growing_table;  ///< of descriptors, while the MPI starts
    bool _may_have_gpu = false;
    bool _used = false;
    bool _world_up = false;
    bool _knows_members = false;
    std::mutex _mutex;
};

}  // namespace awaken::AWAKEN_ABI
