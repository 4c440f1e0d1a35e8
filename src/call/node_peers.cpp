// SPDX-License-Identifier: Apache-2.0
#include "call/node_peers.h"

#include <algorithm>
#include <chrono>

#include "base/descriptor_table.h"
#include "call/layer.h"
#include "call/progress.h"
#include "node/job.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// How long a rank waits for what the others say of themselves when MPI is up. MPI comes up for all at about the same
/// time.
constexpr std::chrono::seconds kPatience{10};

/// A rank that folds otherwise than the others would wait for them for ever.
void refuse_unlike_settings(const node::Segment& segment, const bool reproducible) {
    for (int index = 0; index < segment.processes(); ++index) {
        if (segment.process(index).reproducible.load(std::memory_order_relaxed) != reproducible) {
            loader::die(Error("AWAKEN_REPRODUCIBLE is not the same on all ranks",
                              "pass it on to all of them, as with mpiexec -x AWAKEN_REPRODUCIBLE (Open MPI)")
                            .what());
        }
    }
}

}  // namespace

NodePeers::NodePeers(Layer& owner) : _owner(owner) {}

NodePeers::~NodePeers() {
    if (_growing_table.joinable()) {
        _growing_table.join();
    }
}

void NodePeers::before_init() {
    const Settings& settings = _owner.settings;
    // Each process looks for the job, even if it has no use for it here: the network decides by it, alike in all
    // processes.
    const node::Job job = node::find_job(settings.job, settings.pretended_nodes);
    _local_ranks = job.known() ? job.local_ranks : 0;
    if (settings.path == NodePath::staged) {
        _why_not = "AWAKEN_PATH=staged was chosen";
        return;
    }
    if (settings.gpu == gpu::Choice::none || !gpu::driver_present()) {
        _why_not = "no GPU driver";
        return;
    }
    _may_have_gpu = true;
    _growing_table = grow_descriptor_table();
    transfer::request_copy_engine(settings.copy);
    _segment = node::Segment::join(job, ipc::Areas::bytes(job.local_ranks), _why_not);
}

void NodePeers::after_init() {
    if (_growing_table.joinable()) {
        _growing_table.join();
    }
    const Native& native = _owner.real;
    int rank = -1, size = 0;
    native.Comm_rank(MPI_COMM_WORLD, &rank);
    native.Comm_size(MPI_COMM_WORLD, &size);
    if (_segment != nullptr) {
        // By now the MPI has synchronised its processes, or some run without the layer and will never join.
        _segment->close_door();
        if (_segment->own_index() >= _segment->processes()) {
            _why_not = "the others went on before this rank had joined the node's shared memory";
            _segment.reset();
        } else if (!_segment->agree_on_ranks(rank, size, _owner.settings.reproducible, kPatience, [] {
                       // Ranks that are still in their initialisation may need the MPI to go on here.
                       progress_mpi();
                   })) {
            _why_not =
                "the processes that share memory here do not agree on their ranks: some belong to another job (see "
                "AWAKEN_JOB), or have ended";
            _segment.reset();
        } else {
            refuse_unlike_settings(*_segment, _owner.settings.reproducible);
            _sent_plain = std::vector<transport::SlotSet>(static_cast<std::size_t>(_segment->processes()));
        }
    }
    // Uses what the launcher says of the node, so that all ranks decide alike, whatever each finds on its own.
    if (_owner.settings.nodes && _local_ranks > 0 && _local_ranks < size) {
        _owned_network = std::make_unique<Network>(native, _owner.pool);
        _owned_network->start();
    }
    if (_segment == nullptr && _owned_network == nullptr) {
        return;
    }
    if (!_owner.communicators.begin(_segment.get())) {
        _why_not = "the MPI gives no attribute key";
        _segment.reset();
        return;
    }
    _knows_members = true;
    if (_segment == nullptr && !_may_have_gpu) {
        return;
    }
    _network.store(_owned_network.get(), std::memory_order_release);
    _world_up = true;
    _owner.receive_readiness.begin();
}

void NodePeers::use(gpu::Runtime& runtime) {
    const std::scoped_lock lock(_mutex);
    if (!_world_up || _used) {
        return;
    }
    _used = true;
    _tuning = Layer::tuning();
    if (_owned_network != nullptr) {
        _owned_network->use(runtime, _tuning, _owner.copies(), _owner.native_gpu.works());
    }
    if (_segment != nullptr) {
        if (_segment->processes() < _local_ranks) {
            _owner.ledger.add_fallback(
                "point-to-point", std::to_string(_segment->processes()) + " of " + std::to_string(_local_ranks) +
                                      " ranks of this node share memory here: the others run without Awaken, may use "
                                      "no GPU, or have a /dev/shm of their own");
        }
        const Settings& settings = _owner.settings;
        ipc::Options options;
        using Allowed = ipc::Link::Allowed;
        options.path = settings.path == NodePath::direct ? Allowed::direct
                       : settings.path == NodePath::ring ? Allowed::ring
                                                         : Allowed::all;
        options.cpu_copy = settings.cpu_copy;
        options.order = is_order(settings.default_stream);
        options.order_check = settings.default_stream == DefaultStream::order_check;
        options.tuning = _tuning;
        Layer& owner = _owner;
        _owned_link = std::make_unique<ipc::Link>(
            *_segment, runtime, _owner.copies(), options,
            [&owner](const std::string& reason) { owner.ledger.add_fallback("point-to-point", reason); }, &_sent_plain);
        _link.store(_owned_link.get(), std::memory_order_release);
        _owned_engine = std::make_unique<coll::Engine>(
            runtime, _owned_link->exports(), _owned_link->exported(), _owned_link->mappings(), _owned_link->copies(),
            options.tuning, [&owner](const std::string& reason) { owner.ledger.add_fallback("collectives", reason); });
        _owned_engine->order_by(_owned_link->ordering());
        _engine.store(_owned_engine.get(), std::memory_order_release);
    }
    _owner.receive_readiness.want([this] {
        if (_owned_link != nullptr) {
            _owned_link->reachability().take_rts(true);
        }
        if (_owned_network != nullptr) {
            _owned_network->open();
        }
    });
}

void NodePeers::before_finalize() {
    _network.store(nullptr, std::memory_order_release);
    if (_owned_network != nullptr) {
        _owned_network->stop();
    }
}

void NodePeers::after_finalize() {
    _owner.receive_readiness.end();
    _engine.store(nullptr, std::memory_order_release);
    if (_owned_engine != nullptr) {
        _owned_engine->shut_down();
    }
    if (_owned_link != nullptr) {
        _owned_link->finish_sends();
        _owned_link->shut_down();
    }
    _world_up = _knows_members = false;
}

transfer::DeviceCopies* NodePeers::copies() const noexcept {
    const Network* const between = network();
    return link() != nullptr || (between != nullptr && between->copies() != nullptr) ? &_owner.copies() : nullptr;
}

NodePeers::Peer NodePeers::peer_of(const MPI_Comm communicator, const int rank) {
    if (const int index = index_of(communicator, rank); index >= 0) {
        return {link(), index, true};
    }
    const int remote = remote_of(communicator, rank);
    return remote >= 0 ? Peer{network(), remote, false} : Peer{};
}

transport::Transport* NodePeers::transport_of(const std::byte* const message, const std::size_t length) const noexcept {
    for (transport::Transport* const each : transports()) {
        if (each != nullptr && each->is_rts(message, length)) {
            return each;
        }
    }
    return nullptr;
}

int NodePeers::index_of(const MPI_Comm communicator, const int rank) {
    if (!_world_up || rank < 0) {
        return -1;
    }
    const CommunicatorRecord* const record = _owner.communicators.record_of(communicator);
    if (record == nullptr || static_cast<std::size_t>(rank) >= record->indices.size()) {
        return -1;
    }
    return record->indices[static_cast<std::size_t>(rank)];
}

std::vector<int> NodePeers::indices_of(const MPI_Comm communicator) {
    const CommunicatorRecord* const record = _owner.communicators.record_of(communicator);
    return record != nullptr ? record->indices : std::vector<int>();
}

bool NodePeers::has_rank(const MPI_Comm communicator, const int rank) {
    if (rank < 0) {
        return false;
    }
    if (const CommunicatorRecord* const record = _world_up ? _owner.communicators.record_of(communicator) : nullptr;
        record != nullptr) {
        return static_cast<std::size_t>(rank) < record->indices.size();
    }
    const Native& native = _owner.real;
    int inter = 0, size = 0;
    native.Comm_test_inter(communicator, &inter);
    if (inter != 0) {
        native.Comm_remote_size(communicator, &size);
    } else {
        native.Comm_size(communicator, &size);
    }
    return rank < size;
}

NodePeers::Membership NodePeers::membership_of(const MPI_Comm communicator) {
    const CommunicatorRecord* const record = _knows_members ? _owner.communicators.record_of(communicator) : nullptr;
    if (record == nullptr || record->between) {
        return Membership::unknown;
    }
    // A process that is not in the segment is missing in it for all processes of the segment.
    if (_world_up && _segment != nullptr &&
        std::find(record->indices.begin(), record->indices.end(), -1) == record->indices.end()) {
        return Membership::one_node;
    }
    if (!world_has_the_layer()) {
        return Membership::unknown;
    }
    // The layer knows this only of this process's world. Spawned or connected processes belong to other worlds.
    return _owner.communicators.are_all_of_world(communicator) ? Membership::all_serve : Membership::unknown;
}

bool NodePeers::world_has_the_layer() const {
    return (_world_up && _segment != nullptr && _segment->processes() == _owner.world_size()) ||
           (_owned_network != nullptr && _owned_network->everybody_has_the_layer());
}

int NodePeers::own_node() const {
    int own = 0;
    _owner.real.Comm_rank(MPI_COMM_WORLD, &own);
    return _segment != nullptr ? _segment->process(0).world_rank.load() : own;
}

int NodePeers::remote_of(const MPI_Comm communicator, const int rank) {
    if (network() == nullptr || index_of(communicator, rank) >= 0) {
        return -1;
    }
    return _owner.communicators.world_rank_of(communicator, rank);
}

void NodePeers::sent_plain(const MPI_Comm communicator, const int rank, const std::size_t bytes) {
    if (const int index = index_of(communicator, rank); index >= 0) {
        _sent_plain[static_cast<std::size_t>(index)].add(transport::slot_of_length(bytes));
    }
}

}  // namespace awaken::AWAKEN_ABI
