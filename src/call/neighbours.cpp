#include "call/neighbours.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "call/call.h"
#include "call/layer.h"
#include "call/progress.h"
#include "coll/ccl_across.h"
#include "coll/edges.h"
#include "coll/levels.h"
#include "node/job.h"
#include "p2p/network.h"

namespace awaken::AWAKEN_ABI {

struct Neighbours::Members {
    std::vector<int> indices;  ///< by rank in the communicator
    std::once_flag ranks_known;
    std::vector<int> ranks;  ///< in MPI_COMM_WORLD; looked up when a message to another node asks for the first one
    bool between = false;    ///< an intercommunicator: these are the others
    /// Set up by the first collective, which all members call.
    bool team_tried = false;
    std::shared_ptr<coll::Team> team;
    bool levels_tried = false;
    std::unique_ptr<Levels> levels;
    bool edges_tried = false, edges_on_node = false;
    std::unique_ptr<Edges> edges;
    bool messages_tried = false;
    std::unique_ptr<OwnCommunicator> messages;
    bool votes_tried = false;
    std::optional<Neighbours::ChunkVotes> votes;
    std::unique_ptr<CclAcross> across;
};

namespace {

/// For what ranks say of themselves when MPI has come up, which it does for all at about the same time.
constexpr std::chrono::seconds kPatience{10};

coll::Selection choices_of(const Settings& settings) {
    // Asked not to read each other's memory, collectives have no way but the MPI's.
    return settings.path == NodePath::ring ? coll::Selection("* : staged", "AWAKEN_PATH=ring")
                                           : coll::Selection(settings.collectives, "AWAKEN_COLLECTIVES");
}

}  // namespace

Neighbours::Neighbours(Layer& owner) : _owner(owner), _selection(choices_of(owner.settings)) {}

Neighbours::~Neighbours() = default;

void Neighbours::before_init() {
    const Settings& settings = _owner.settings;
    // Asked for in each process, also where nothing comes of it here: what the network makes of it is for all of them.
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
    transfer::request_copy_engine(settings.copy);
    _segment = node::Segment::join(job, p2p::Link::area_bytes(job.local_ranks), _why_not);
}

void Neighbours::after_init() {
    const Native& native = _owner.real;
    int rank = -1, size = 0;
    native.Comm_rank(MPI_COMM_WORLD, &rank);
    native.Comm_size(MPI_COMM_WORLD, &size);
    if (_segment != nullptr) {
        // The MPI has synchronised its processes, or some have no layer and will never come.
        _segment->close_door();
        if (_segment->own_index() >= _segment->processes()) {
            _why_not = "the others went on before this rank had joined the node's shared memory";
            _segment.reset();
        } else if (!_segment->agree_on_ranks(rank, size, kPatience, [&native] {
                       // Those who are still on their way may need the MPI to go on here.
                       progress_mpi();
                   })) {
            _why_not =
                "the processes that share memory here do not agree on their ranks: some belong to another job (see "
                "AWAKEN_JOB), or have ended";
            _segment.reset();
        } else {
            _sent_plain = std::vector<p2p::SlotSet>(static_cast<std::size_t>(_segment->processes()));
        }
    }
    // By what the launcher says of the node, so that all ranks come to the same answer, whatever each finds on its own.
    if (_owner.settings.nodes && _local_ranks > 0 && _local_ranks < size) {
        _owned_network = std::make_unique<Network>(_owner);
        _owned_network->start();
    }
    if (_segment == nullptr && _owned_network == nullptr) {
        return;
    }
    native.Comm_group(MPI_COMM_WORLD, &_world);
    if (native.Comm_create_keyval(&copy_nothing, &forget, &_key, this) != MPI_SUCCESS) {
        _why_not = "the MPI gives no attribute key";
        _key = MPI_KEYVAL_INVALID;
        _segment.reset();
        return;
    }
    _knows_members = true;
    if (_segment == nullptr && !_may_have_gpu) {
        return;
    }
    _network.store(_owned_network.get(), std::memory_order_release);
    _world_up = true;
}

void Neighbours::use(gpu::Runtime& runtime) {
    const std::scoped_lock lock(_mutex);
    if (!_world_up || _used) {
        return;
    }
    _used = true;
    if (_owned_network != nullptr) {
        _owned_network->use(runtime, _owner.tuning(runtime));
    }
    if (_segment == nullptr) {
        _wants.store(true, std::memory_order_release);
        return;
    }
    if (_segment->processes() < _local_ranks) {
        _owner.ledger.add_fallback(
            "point-to-point", std::to_string(_segment->processes()) + " of " + std::to_string(_local_ranks) +
                                  " ranks of this node share memory here: the others run without Awaken, may use no "
                                  "GPU, or have a /dev/shm of their own");
    }
    const Settings& settings = _owner.settings;
    p2p::Link::Options options;
    options.path = settings.path == NodePath::direct ? p2p::Link::Path::direct
                   : settings.path == NodePath::ring ? p2p::Link::Path::ring
                                                     : p2p::Link::Path::automatic;
    options.engine = settings.copy;
    options.cpu_copy = settings.cpu_copy;
    options.tuning = _owner.tuning(runtime);
    options.packer = &_owner.packer();
    Layer& owner = _owner;
    _owned_link = std::make_unique<p2p::Link>(
        *_segment, runtime, _owner.pool, options,
        [&owner](const std::string& reason) { owner.ledger.add_fallback("point-to-point", reason); }, &_sent_plain);
    _link.store(_owned_link.get(), std::memory_order_release);
    _owned_engine = std::make_unique<coll::Engine>(
        runtime, _owned_link->exports(), _owned_link->exported(), _owned_link->mappings(), _owned_link->copies(),
        options.tuning, [&owner](const std::string& reason) { owner.ledger.add_fallback("collectives", reason); });
    _engine.store(_owned_engine.get(), std::memory_order_release);
    _wants.store(true, std::memory_order_release);
}

void Neighbours::try_to_take_headers() {
    const std::scoped_lock lock(_mutex);
    if (!_wants.load(std::memory_order_relaxed)) {
        return;
    }
    // First said to this process's own threads, then looked: a receive that starts meanwhile has either been counted
    // or sees that it must be prepared.
    _takes.store(true, std::memory_order_seq_cst);
    if (_unprepared.load(std::memory_order_seq_cst) != 0) {
        _takes.store(false, std::memory_order_seq_cst);
        return;
    }
    _wants.store(false, std::memory_order_relaxed);
    if (_owned_link != nullptr) {
        _owned_link->take_headers();
    }
    if (_owned_network != nullptr) {
        _owned_network->open();
    }
}

void Neighbours::tick_network() {
    _owned_network->tick();
}

void Neighbours::before_finalize() {
    {
        const std::scoped_lock lock(_made_mutex);
        for (Levels* const each : _levels) {
            each->give_up();
        }
        _levels.clear();
        for (Edges* const each : _edges) {
            each->give_up();
        }
        _edges.clear();
        for (OwnCommunicator* const each : _messages) {
            each->give_up();
        }
        _messages.clear();
        for (CclAcross* const each : _across) {
            each->begin_to_leave();
        }
        for (CclAcross* const each : _across) {
            each->give_up();
        }
        _across.clear();
    }
    _network.store(nullptr, std::memory_order_release);
    if (_owned_network != nullptr) {
        _owned_network->stop();
    }
}

void Neighbours::after_finalize() {
    _wants.store(false, std::memory_order_relaxed);
    _engine.store(nullptr, std::memory_order_release);
    if (_owned_engine != nullptr) {
        _owned_engine->shut_down();
    }
    if (_owned_link != nullptr) {
        _owned_link->settle();
        _owned_link->shut_down();
    }
    if (_owned_network != nullptr) {
        _owned_network->shut_down();
    }
    _world_up = _knows_members = false;
}

Neighbours::Unprepared::Unprepared(Neighbours& neighbours) noexcept : _neighbours(neighbours) {
    if (!neighbours._world_up) {
        return;  // no header will ever come
    }
    if (!neighbours.takes_headers()) {
        neighbours._unprepared.fetch_add(1, std::memory_order_seq_cst);
        if (!neighbours.takes_headers()) {
            _counted = true;
            return;
        }
        neighbours._unprepared.fetch_sub(1, std::memory_order_seq_cst);
    }
    _allowed = false;
}

Neighbours::Unprepared::~Unprepared() {
    if (_counted) {
        _neighbours._unprepared.fetch_sub(1, std::memory_order_seq_cst);
    }
}

void Neighbours::Unprepared::continues(const MPI_Request request) {
    if (!_counted || request == MPI_REQUEST_NULL) {
        return;
    }
    const std::scoped_lock lock(_neighbours._requests_mutex);
    ++_neighbours._requests[request];
    _neighbours._unprepared_requests.fetch_add(1, std::memory_order_release);
    _counted = false;  // counted on until it completes
}

void Neighbours::completed(const MPI_Request request) {
    const std::scoped_lock lock(_requests_mutex);
    const auto found = _requests.find(request);
    if (found == _requests.end()) {
        return;
    }
    if (--found->second == 0) {
        _requests.erase(found);
    }
    _unprepared_requests.fetch_sub(1, std::memory_order_release);
    _unprepared.fetch_sub(1, std::memory_order_seq_cst);
}

int Neighbours::copy_nothing(MPI_Comm, int, void*, void*, void*, int* const flag) {
    *flag = 0;
    return MPI_SUCCESS;
}

int Neighbours::forget(MPI_Comm, int, void* const members, void* const self) {
    auto* const owner = static_cast<Neighbours*>(self);
    owner->_generation.fetch_add(1, std::memory_order_acq_rel);
    const std::unique_ptr<Members> gone(static_cast<Members*>(members));
    const std::scoped_lock lock(owner->_made_mutex);
    std::erase(owner->_levels, gone->levels.get());
    std::erase(owner->_edges, gone->edges.get());
    std::erase(owner->_messages, gone->messages.get());
    std::erase(owner->_across, gone->across.get());
    return MPI_SUCCESS;
}

Neighbours::Members* Neighbours::make_members(const MPI_Comm communicator) const {
    const Native& native = _owner.real;
    auto members = std::make_unique<Members>();
    int inter = 0, size = 0;
    MPI_Group group = MPI_GROUP_NULL;
    native.Comm_test_inter(communicator, &inter);
    members->between = inter != 0;
    if (members->between) {
        native.Comm_remote_group(communicator, &group);
    } else {
        native.Comm_group(communicator, &group);
    }
    native.Group_size(group, &size);
    members->indices.assign(static_cast<std::size_t>(size), -1);
    // The few processes of this node are looked up in the communicator, not its many members in the node.
    std::vector<int> world, there;
    for (int index = 0; _segment != nullptr && index < _segment->processes(); ++index) {
        world.push_back(_segment->process(index).world_rank);
    }
    there.assign(world.size(), MPI_UNDEFINED);
    native.Group_translate_ranks(_world, static_cast<int>(world.size()), world.data(), group, there.data());
    for (std::size_t index = 0; index < there.size(); ++index) {
        if (there[index] >= 0 && there[index] < size) {
            members->indices[static_cast<std::size_t>(there[index])] = static_cast<int>(index);
        }
    }
    native.Group_free(&group);
    return members.release();
}

Neighbours::Members* Neighbours::members_of(const MPI_Comm communicator) {
    const Native& native = _owner.real;
    void* known = nullptr;
    int found = 0;
    if (native.Comm_get_attr(communicator, _key, static_cast<void*>(&known), &found) != MPI_SUCCESS) {
        return nullptr;
    }
    if (found == 0) {
        const std::scoped_lock lock(_mutex);
        native.Comm_get_attr(communicator, _key, static_cast<void*>(&known), &found);
        if (found == 0) {
            Members* const made = make_members(communicator);
            _attached.fetch_add(1, std::memory_order_acq_rel);
            if (native.Comm_set_attr(communicator, _key, made) != MPI_SUCCESS) {
                delete made;
                return nullptr;
            }
            known = made;
        }
    }
    // Another thread may have attached them. An MPI need not look up attributes under a lock, so what orders that
    // thread's writing before this one's reading is ours: the later of two changes to one word sees the earlier.
    _attached.fetch_add(0, std::memory_order_acq_rel);
    return static_cast<Members*>(known);
}

Neighbours::Members* Neighbours::last_members(const MPI_Comm communicator) {
    // The communicator of the last call is that of this one, nearly always. A freed communicator's handle may come
    // again for another one, which the generation tells.
    struct Last {
        MPI_Comm communicator;
        std::uint64_t generation = 0;
        Members* members = nullptr;
    };
    static thread_local Last last{};
    const std::uint64_t generation = _generation.load(std::memory_order_acquire);
    if (last.generation != generation || last.communicator != communicator) {
        last = {communicator, generation, members_of(communicator)};
    }
    return last.members;
}

int Neighbours::index_of(const MPI_Comm communicator, const int rank) {
    if (!_world_up || rank < 0) {
        return -1;
    }
    const Members* const members = last_members(communicator);
    if (members == nullptr || static_cast<std::size_t>(rank) >= members->indices.size()) {
        return -1;
    }
    return members->indices[static_cast<std::size_t>(rank)];
}

bool Neighbours::has_rank(const MPI_Comm communicator, const int rank) {
    if (rank < 0) {
        return false;
    }
    if (const Members* const members = _world_up ? last_members(communicator) : nullptr; members != nullptr) {
        return static_cast<std::size_t>(rank) < members->indices.size();
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

Neighbours::Company Neighbours::company_of(const MPI_Comm communicator) {
    const Members* const members = _knows_members ? last_members(communicator) : nullptr;
    if (members == nullptr || members->between) {
        return Company::strangers;
    }
    // Who is not in the segment is so for all of those who are.
    if (_world_up && _segment != nullptr &&
        std::find(members->indices.begin(), members->indices.end(), -1) == members->indices.end()) {
        return Company::neighbours;
    }
    if (_owned_network == nullptr || !_owned_network->everybody_has_the_layer()) {
        return Company::strangers;
    }
    // That is known of this process's world only, which spawned or connected processes are not of.
    const Native& native = _owner.real;
    MPI_Group group = MPI_GROUP_NULL;
    native.Comm_group(communicator, &group);
    std::vector<int> own(members->indices.size()), ranks(own.size());
    std::iota(own.begin(), own.end(), 0);
    native.Group_translate_ranks(group, static_cast<int>(own.size()), own.data(), _world, ranks.data());
    native.Group_free(&group);
    const bool all_of_world = std::find(ranks.begin(), ranks.end(), MPI_UNDEFINED) == ranks.end();
    return all_of_world ? Company::colleagues : Company::strangers;
}

std::vector<int> Neighbours::indices_of(const MPI_Comm communicator) {
    const Members* const members = last_members(communicator);
    return members != nullptr ? members->indices : std::vector<int>();
}

coll::Team* Neighbours::team_of(const MPI_Comm communicator) {
    if (!_world_up || _segment == nullptr) {
        return nullptr;
    }
    Members* const members = last_members(communicator);
    if (members == nullptr) {
        return nullptr;
    }
    if (!members->team_tried) {
        members->team_tried = true;
        make_team(communicator, *members);
    }
    return members->team.get();
}

coll::Team* Neighbours::known_team_of(const MPI_Comm communicator) {
    const Members* const members = _world_up && _segment != nullptr ? last_members(communicator) : nullptr;
    return members != nullptr ? members->team.get() : nullptr;
}

Neighbours::ChunkVotes* Neighbours::chunk_votes_of(const MPI_Comm communicator) {
    Members* const members = _knows_members ? last_members(communicator) : nullptr;
    if (members == nullptr) {
        return nullptr;
    }
    if (!members->votes_tried) {
        members->votes_tried = true;
        if (company_of(communicator) != Company::strangers) {
            const transfer::Tuning tuning = _owner.tuning(_owner.gpu());
            _chunk_window.store(tuning.network_window, std::memory_order_relaxed);
            const auto own = static_cast<std::uint64_t>(tuning.collective_chunk_bytes);
            const int node = own_node();
            std::uint64_t least = 0;
            std::vector<int> nodes(members->indices.size());
            if (_owner.real.Allreduce(&own, &least, 1, MPI_UINT64_T, MPI_MIN, communicator) == MPI_SUCCESS &&
                _owner.real.Allgather(&node, 1, MPI_INT, nodes.data(), 1, MPI_INT, communicator) == MPI_SUCCESS) {
                std::sort(nodes.begin(), nodes.end());
                const auto different = std::unique(nodes.begin(), nodes.end()) - nodes.begin();
                members->votes.emplace(ChunkVotes{.chunk_bytes = least, .nodes = static_cast<int>(different)});
                _chunk_bytes.store(least, std::memory_order_relaxed);
            }
        }
    }
    return members->votes ? &*members->votes : nullptr;
}

/// Names this node among those of MPI_COMM_WORLD.
int Neighbours::own_node() const {
    int own = 0;
    _owner.real.Comm_rank(MPI_COMM_WORLD, &own);
    return _segment != nullptr ? _segment->process(0).world_rank.load() : own;
}

CclAcross* Neighbours::ccl_across(const MPI_Comm communicator) {
    Members* const members = _knows_members ? last_members(communicator) : nullptr;
    // Nothing ends what the library waits for, when the communicator is revoked meanwhile.
    if (members == nullptr || members->between || !members->votes || members->votes->nodes < 2 ||
        _owner.fault_tolerance.active()) {
        return nullptr;
    }
    if (members->across == nullptr) {
        members->across = std::make_unique<CclAcross>(communicator);
        const std::scoped_lock lock(_made_mutex);
        _across.push_back(members->across.get());
    }
    return members->across.get();
}

MPI_Comm Neighbours::messages_of(const MPI_Comm communicator) {
    Members* const members = _knows_members ? last_members(communicator) : nullptr;
    if (members == nullptr) {
        return MPI_COMM_NULL;
    }
    if (!members->messages_tried) {
        members->messages_tried = true;
        auto made = std::make_unique<OwnCommunicator>(_owner.real, communicator);
        const int usable = made->handle() != MPI_COMM_NULL ? 1 : 0;
        int all_usable = 0;
        _owner.real.Allreduce(&usable, &all_usable, 1, MPI_INT, MPI_MIN, communicator);
        if (all_usable != 0) {
            const std::scoped_lock lock(_made_mutex);
            _messages.push_back(made.get());
            members->messages = std::move(made);
        }
    }
    return members->messages != nullptr ? members->messages->handle() : MPI_COMM_NULL;
}

Levels* Neighbours::levels_of(const MPI_Comm communicator) {
    Members* const members = _knows_members ? last_members(communicator) : nullptr;
    // The communicators of nodes and columns would not be revoked with it.
    if (members == nullptr || members->between || !members->votes || members->team != nullptr ||
        _owner.fault_tolerance.active()) {
        return nullptr;
    }
    if (!members->levels_tried) {
        members->levels_tried = true;
        const Native& native = _owner.real;
        auto made = std::make_unique<Levels>(native, communicator, own_node());
        if (made->usable()) {
            // What a node cannot do on its GPUs would be staged twice.
            const int reach = made->size_of_node() == 1 || team_of(made->node()) != nullptr ? 1 : 0;
            int all_reach = 0;
            native.Allreduce(&reach, &all_reach, 1, MPI_INT, MPI_MIN, communicator);
            if (all_reach != 0) {
                const std::scoped_lock lock(_made_mutex);
                _levels.push_back(made.get());
                _columns.store(made->columns(), std::memory_order_relaxed);
                members->levels = std::move(made);
            }
        }
    }
    return members->levels.get();
}

const Edges* Neighbours::edges_of(const MPI_Comm communicator, const EdgeUse use) {
    Members* const members = _knows_members ? last_members(communicator) : nullptr;
    if (members == nullptr) {
        return nullptr;
    }
    const auto size = static_cast<int>(members->indices.size());
    // Of a graph of so many, it is looked at whether it makes sense before anybody has used it.
    constexpr int kMostAsked = 4096;
    if (!members->edges_tried && (use == EdgeUse::blocking || (use == EdgeUse::making && size <= kMostAsked))) {
        members->edges_tried = true;
        const Native& native = _owner.real;
        int topology = MPI_UNDEFINED;
        native.Topo_test(communicator, &topology);
        const Company company = company_of(communicator);
        if (topology == MPI_UNDEFINED) {
            return nullptr;
        }
        const auto staged = [this](const char* const why) {
            _owner.ledger.add_fallback("neighbourhood collectives", std::string("staged: ") + why);
            return nullptr;
        };
        if (company == Company::strangers) {
            return staged("some ranks of the communicator may run without Awaken");
        }
        if (use == EdgeUse::making && !Edges::are_consistent(native, communicator)) {
            return staged("some edges of a graph are known at one of their ends only");
        }
        members->edges_on_node = company == Company::neighbours;
        // Messages go between nodes as well as on one: the rows for one node count wherever the members are.
        const coll::Occasion occasion{.kind = coll::Kind::neighborhood, .ranks = size};
        const bool willing = _selection.choose(occasion) != coll::Algorithm::staged;
        auto made = std::make_unique<Edges>(native, communicator, willing);
        if (made->usable()) {
            const std::scoped_lock lock(_made_mutex);
            _edges.push_back(made.get());
            members->edges = std::move(made);
        } else {
            return staged(willing ? "a rank could not make a communicator for them"
                                  : "the table of algorithms says so");
        }
    }
    // A rank without a GPU is there for blocking calls only: its requests are the MPI's.
    return use != EdgeUse::nonblocking || members->edges_on_node ? members->edges.get() : nullptr;
}

std::string Neighbours::between_nodes() const {
    const std::uint64_t chunk_bytes = _chunk_bytes.load(std::memory_order_relaxed);
    if (chunk_bytes == 0) {
        return {};
    }
    const int columns = _columns.load(std::memory_order_relaxed);
    return "through host memory : chunks of " + std::to_string(chunk_bytes >> 10) + " KiB" +
           (columns > 0 ? ", " + std::to_string(columns) + " columns of nodes" : std::string());
}

transfer::DeviceCopies* Neighbours::copies() const noexcept {
    if (p2p::Link* const here = link()) {
        return &here->copies();
    }
    Network* const between = network();
    return between != nullptr ? between->copies() : nullptr;
}

void Neighbours::make_team(const MPI_Comm communicator, Members& members) {
    // Whether it is tried depends on what all members know alike.
    if (members.between || members.indices.size() > static_cast<std::size_t>(coll::kMostMembers) ||
        std::find(members.indices.begin(), members.indices.end(), -1) != members.indices.end()) {
        return;
    }
    members.team = new_team(communicator, members.indices, true);
}

std::shared_ptr<coll::Team> Neighbours::make_persistent_team(const MPI_Comm communicator, const bool possible) {
    std::shared_ptr<coll::Team> team = new_team(communicator, last_members(communicator)->indices, possible);
    if (team != nullptr) {
        team->do_without_library();
    }
    return team;
}

std::shared_ptr<coll::Team> Neighbours::new_team(const MPI_Comm communicator, const std::vector<int>& indices,
                                                 const bool possible) {
    const Native& native = _owner.real;
    int own = 0;
    native.Comm_rank(communicator, &own);
    const auto size = static_cast<int>(indices.size());
    constexpr std::uint64_t kNothing = ~std::uint64_t{0};
    std::unique_ptr<coll::Board> board = possible ? coll::Board::make(*_segment, size, own) : nullptr;
    struct Mine {
        std::uint64_t offset, choices;
    };
    const Mine mine{board != nullptr ? board->own_offset() : kNothing, _selection.hash()};
    std::vector<Mine> all(indices.size());
    if (const int error = native.Allgather(&mine, 2, MPI_UINT64_T, all.data(), 2, MPI_UINT64_T, communicator);
        error != MPI_SUCCESS) {
        throw RaisedError(error);
    }
    std::vector<std::uint64_t> offsets;
    std::string why_not;
    for (const Mine& each : all) {
        offsets.push_back(each.offset);
        if (each.offset == kNothing) {
            why_not = "a rank has no shared memory left";
        } else if (each.choices != mine.choices) {
            why_not = "AWAKEN_COLLECTIVES is not the same in all ranks";
        }
    }
    int connected = why_not.empty() && board->connect(offsets) ? 1 : 0;
    if (why_not.empty()) {
        int all_connected = 0;
        native.Allreduce(&connected, &all_connected, 1, MPI_INT, MPI_MIN, communicator);
        if (all_connected == 0) {
            why_not = "a rank cannot map the others' shared memory";
        }
    }
    if (!why_not.empty()) {
        _owner.ledger.add_fallback("collectives", "no direct paths: " + why_not);
        return nullptr;
    }
    _any_teams.store(true, std::memory_order_relaxed);
    return std::make_shared<coll::Team>(*_segment, std::move(board), indices, _selection, _engine);
}

int Neighbours::remote_of(const MPI_Comm communicator, const int rank) {
    if (network() == nullptr || index_of(communicator, rank) >= 0 || rank < 0) {
        return -1;
    }
    Members* const members = last_members(communicator);
    if (members == nullptr || static_cast<std::size_t>(rank) >= members->indices.size()) {
        return -1;
    }
    std::call_once(members->ranks_known, [&] {
        const Native& native = _owner.real;
        int inter = 0;
        MPI_Group group = MPI_GROUP_NULL;
        native.Comm_test_inter(communicator, &inter);
        if (inter != 0) {
            native.Comm_remote_group(communicator, &group);
        } else {
            native.Comm_group(communicator, &group);
        }
        std::vector<int> own(members->indices.size());
        std::iota(own.begin(), own.end(), 0);
        members->ranks.assign(own.size(), MPI_UNDEFINED);
        native.Group_translate_ranks(group, static_cast<int>(own.size()), own.data(), _world, members->ranks.data());
        native.Group_free(&group);
        for (int& each : members->ranks) {
            each = each == MPI_UNDEFINED ? -1 : each;
        }
    });
    return members->ranks[static_cast<std::size_t>(rank)];
}

void Neighbours::sent_plain(const MPI_Comm communicator, const int rank, const std::size_t bytes) {
    if (const int index = index_of(communicator, rank); index >= 0) {
        _sent_plain[static_cast<std::size_t>(index)].add(p2p::slot_of_length(bytes));
    }
}

}  // namespace awaken::AWAKEN_ABI
