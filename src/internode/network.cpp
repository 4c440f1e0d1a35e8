#include "internode/network.h"

#include <sched.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "mpi/status.h"

namespace awaken::AWAKEN_ABI {

using transfer::DeviceCopies;

namespace {

/// Notices travel on tag 0, the chunks of message `id` on tag 1 + id, pings behind them.
constexpr int kNoticeTag = 0;
constexpr int chunk_tag(const std::uint32_t id) noexcept {
    return static_cast<int>(id) + 1;
}
constexpr int kPingTag = chunk_tag(p2p::kSlots);

constexpr std::uint64_t kMagic = 0x6177616b656e4e31;

/// The duplicate of MPI_COMM_WORLD is there as soon as all ranks have left MPI_Init. It is waited for a moment, because
/// some MPIs may mix up the steps of a duplication that is under way with those of the program's own. A rank without
/// the layer never takes part, so it cannot be waited for longer than can be borne for nothing.
constexpr std::chrono::seconds kAtStart{1};
constexpr std::chrono::seconds kAtEnd{30};

/// Bytes that may be left to the MPI by senders that went on without their receivers. Beyond it, messages are staged
/// whole, and a sender waits as long as the MPI lets it.
constexpr std::size_t kMostLeft = std::size_t{1} << 30;

/// Ids that only wrapped messages use, which have no other way.
constexpr std::uint32_t kKeptBack = 32;

/// Programs that send messages of every length (serialised objects) would spoil one id after the other. From where so
/// many are left, such messages are wrapped, which costs them more; but for a flood of them, which would leave none.
constexpr int kUnspoilt = 96;

constexpr std::size_t kMostChunkBytes = std::size_t{1} << 30;  // an int counts its bytes

const gpu::PointerInfo kHost{};

}  // namespace

// ---- the message on its way out -------------------------------------------------------------------------------------

RemoteShipment::RemoteShipment(Network& network, p2p::Lane& lane, const int peer, const std::uint32_t id,
                               const void* const buffer, const gpu::PointerInfo& info, const std::size_t bytes,
                               const std::size_t chunk_bytes, std::shared_ptr<const transfer::TypedMemory> typed)
    : _network(network),
      _lane(lane),
      _peer(peer),
      _id(id),
      _buffer(static_cast<std::byte*>(const_cast<void*>(buffer))),
      _info(info),
      _typed(std::move(typed)),
      _bytes(bytes),
      _chunk_bytes(chunk_bytes),
      _progress(Clock::now()) {
    _lane.join(_id);
    _network._unfinished.fetch_add(1);
}

RemoteShipment::~RemoteShipment() {
    if (_posted && !_free && !all_sent()) {
        lose();
    }
    end();
    // What the MPI reads outlives this object; copies that nobody wants are waited for by their own ends.
    while (_chunks.size() > _sent) {
        _chunks.pop_back();
    }
    _network.keep(std::move(_chunks));
}

void RemoteShipment::start_chunk(p2p::Lane::Share share, const bool pinned) {
    transfer::PinnedPool& pool = _network._pool;
    Chunk chunk;
    chunk.share = std::move(share);
    chunk.at = _started;
    chunk.bytes = std::min(_chunk_bytes, _bytes - _started);
    chunk.block = pinned ? pool.acquire(*_network._runtime, chunk.bytes) : pool.acquire_ordinary(chunk.bytes);
    chunk.place = chunk.block.data();
    if (_info.kind == gpu::MemoryKind::host) {
        std::memcpy(chunk.place, _buffer + chunk.at, chunk.bytes);
    } else {
        chunk.copy =
            _network._copies->start(_network.device_for(_info), static_cast<unsigned>(_peer), _network.end_of(chunk),
                                    DeviceCopies::End{_buffer, &_info, _typed}.from(chunk.at), chunk.bytes);
    }
    _started += chunk.bytes;
    _chunks.push_back(std::move(chunk));
    if (_started == _bytes) {
        _lane.leave(_id);
    }
}

/// Does what can be done now. `window`: chunks of all messages to the receiver that may be under way.
void RemoteShipment::step(const std::size_t window) {
    bool got_on = false;
    for (; _copied < _chunks.size() && _chunks[_copied].copy.poll(); ++_copied) {
        got_on = true;
    }
    for (; _posted && _sent < _copied; ++_sent) {
        _network.send_chunk(_peer, _id, _chunks[_sent]);
        got_on = true;
    }
    MPI_Status ignored{};
    while (_sent > 0 && _network.is_complete(_chunks.front(), ignored)) {
        _chunks.pop_front();
        --_sent;
        --_copied;
        got_on = true;
    }
    while (_started < _bytes) {
        p2p::Lane::Share share = _lane.take(_id, window);
        if (!share) {
            break;
        }
        start_chunk(std::move(share));
        got_on = true;
    }
    // Perhaps the receiver has said that it wants this message before others, or another process asks where this one
    // is.
    _network.tick();
    if (got_on) {
        _progress = Clock::now();
    }
}

/// Starts copying all that remains: to pinned memory as far as some can be spared, since whatever goes to ordinary
/// memory passes through pinned blocks as well.
void RemoteShipment::copy_rest_out() {
    const transfer::PinnedPool& pool = _network._pool;
    while (_started < _bytes) {
        start_chunk(_lane.force(), pool.spare_bytes() >= pool.limit_bytes() / 4 + _chunk_bytes);
    }
}

void RemoteShipment::copy_out() {
    copy_rest_out();
    while (!all_copied()) {
        step(0);
    }
}

void RemoteShipment::posted() noexcept {
    _posted = true;
    try_to_advance(false);
}

void RemoteShipment::try_to_advance(const bool asked) noexcept {
    try {
        static_cast<void>(advance(asked));
    } catch (const Error&) {
        // Remembered, for advance().
    }
}

void RemoteShipment::withdraw() noexcept {
    _free = true;
    end();
    _network.give_back(_peer, _id);
}

/// It needs no calls any more.
void RemoteShipment::end() noexcept {
    if (!std::exchange(_ended, true)) {
        if (_started < _bytes) {
            _lane.leave(_id);  // else it has left, and the id may be another message's by now
        }
        _network._unfinished.fetch_sub(1);
    }
}

/// The MPI has all of it.
void RemoteShipment::finish() noexcept {
    _free = true;
    end();
    _network.keep(std::exchange(_chunks, {}));
    _sent = _copied = 0;
}

void RemoteShipment::fail(Error error) noexcept {
    _error = std::move(error);
    lose();
}

bool RemoteShipment::advance(const bool asked) {
    if (_error) {
        throw *_error;
    }
    if (_free) {
        return true;
    }
    const std::size_t window = _network._tuning.network_window;
    const auto watch = _network._tuning.large_watch;
    try {
        step(window);
    } catch (const Error& error) {
        fail(error);
        throw;
    } catch (const std::bad_alloc&) {
        fail(Error("out of host memory while a message was sent", "free memory, or send smaller messages"));
        throw *_error;
    }
    if (all_sent()) {
        if (_chunks.empty() || may_be_left(watch)) {
            finish();
        }
    } else if (asked && _posted && _started < _bytes) {
        // The chunks that the MPI has are for the receiver to take. When it does not come, there will be no more.
        _lane.grow_if_still(watch, window);
    }
    return _free;
}

/// Whether the MPI is to see to the rest, which it has, since the receiver may be waiting for this process elsewhere.
bool RemoteShipment::may_be_left(const std::chrono::nanoseconds watch) {
    if (is_wrapped()) {
        return Clock::now() - _progress > watch;
    }
    return _lane.stands_still(watch) && _network.waits_in_mpi(_peer, _lane.last_progress(), watch);
}

/// Copies out what `copy` says, and gives the MPI what is there. Errors come out of advance().
template <class Copy>
void RemoteShipment::give_to_mpi(const Copy& copy) noexcept {
    try {
        copy();
        step(0);
        if (all_sent() && is_wrapped()) {
            finish();
        } else if (all_sent()) {
            end();
        }
    } catch (const Error& error) {
        fail(error);
    } catch (const std::bad_alloc&) {
        fail(Error("out of host memory while a message was copied out", "free memory, or send smaller messages"));
    }
}

void RemoteShipment::leave() noexcept {
    if (_ended || _error) {
        return;
    }
    give_to_mpi([this] {
        if (_network._others_wait()) {
            copy_out();
        } else if (!_left) {
            const transfer::PinnedPool& pool = _network._pool;
            const std::size_t half = pool.limit_bytes() / 2;
            const std::size_t window = _network._tuning.network_window;
            const bool spare = pool.spare_bytes() >= half + _chunk_bytes;
            step(spare ? std::max(window, half / _chunk_bytes) : window);
            while (_copied < _chunks.size()) {
                step(0);  // nothing more, or this call would last as long as the message does
            }
        }
        _left = true;
    });
}

bool RemoteShipment::hand_over() noexcept {
    if (_ended || _error) {
        return true;
    }
    give_to_mpi([this] {
        const transfer::PinnedPool& pool = _network._pool;
        while (_started < _bytes && pool.spare_bytes() >= pool.limit_bytes() / 4 + _chunk_bytes) {
            start_chunk(_lane.force());
        }
        if (_lane.stands_still(_network._tuning.large_watch)) {
            copy_rest_out();
        }
    });
    return _ended || _error;
}

/// The receiver waits for a chunk that will not come: one without content tells it so.
void RemoteShipment::lose() noexcept {
    end();
    if (!_posted || _free) {
        return;
    }
    _free = true;
    try {
        while (_chunks.size() > _sent) {
            _chunks.pop_back();
        }
        Chunk nothing;
        _network.send_chunk(_peer, _id, nothing);
        _chunks.push_back(std::move(nothing));
        ++_sent;
    } catch (const std::exception&) {
        // The MPI's own trouble, of which the receiver will hear from the MPI.
    }
}

// ---- the message on its way in --------------------------------------------------------------------------------------

RemoteFetch::RemoteFetch(Network& network, p2p::Lane& lane, const int peer, const std::uint32_t id,
                         const std::size_t size, const std::size_t chunk_bytes, void* const buffer,
                         const gpu::PointerInfo& info, const std::size_t capacity,
                         std::shared_ptr<const transfer::TypedMemory> typed, std::atomic<std::size_t>& fetching)
    : _network(network),
      _lane(lane),
      _peer(peer),
      _id(id),
      _size(size),
      _chunk_bytes(chunk_bytes),
      _buffer(static_cast<std::byte*>(buffer)),
      _info(info),
      _typed(std::move(typed)),
      _wanted(std::min(size, capacity)),
      _from_peer(fetching) {
    _from_peer.fetch_add(1);
    _network._fetching.fetch_add(1);
}

void RemoteFetch::end() noexcept {
    if (!std::exchange(_over, true)) {
        _lane.leave(_id);
        _from_peer.fetch_sub(1);
        _network._fetching.fetch_sub(1);
    }
}

RemoteFetch::~RemoteFetch() {
    end();
    // Receives that nobody wants any more are taken back. One that can no longer be completes at once instead.
    const Native& native = _network._native;
    for (Chunk& chunk : _receiving) {
        if (chunk.request != MPI_REQUEST_NULL) {
            native.Cancel(&chunk.request);
            native.Wait(&chunk.request, MPI_STATUS_IGNORE);
        }
    }
}

void RemoteFetch::receive_chunk(p2p::Lane::Share share) {
    Chunk chunk;
    chunk.share = std::move(share);
    chunk.at = _asked_for;
    chunk.bytes = std::min(_chunk_bytes, _size - _asked_for);
    if (_info.host_accessible() && chunk.at + chunk.bytes <= _wanted) {
        chunk.place = _buffer + chunk.at;
    } else if (!_error) {
        try {
            chunk.block = _network._pool.acquire(*_network._runtime, chunk.bytes);
            chunk.place = chunk.block.data();
        } catch (const std::exception&) {
            _error = Error("out of host memory while a message was received", "free memory, or send smaller messages");
        }
    }
    _network.receive_chunk(_peer, _id, chunk);
    _asked_for += chunk.bytes;
    _receiving.push_back(std::move(chunk));
    if (_asked_for == _size) {
        _lane.leave(_id);
    }
}

void RemoteFetch::arrived(Chunk chunk, const MPI_Status& status) {
    if (chunk.place == nullptr) {
        return;  // it was only taken from its sender
    }
    if (static_cast<std::size_t>(received_bytes(_network._native, status)) != chunk.bytes) {
        _refused = true;
        throw Error("the sender of a message could not finish its copy", "look at the sender's own error");
    }
    const std::size_t useful = chunk.at < _wanted ? std::min(chunk.bytes, _wanted - chunk.at) : 0;
    if (useful == 0 || chunk.place == _buffer + chunk.at || _error) {
        return;  // of what does not fit, or cannot be delivered, only the sender is to be rid
    }
    if (_info.host_accessible()) {
        std::memcpy(_buffer + chunk.at, chunk.place, useful);
        return;
    }
    chunk.copy = _network._copies->start(_network.device_for(_info), static_cast<unsigned>(_peer),
                                         DeviceCopies::End{_buffer, &_info, _typed}.from(chunk.at),
                                         _network.end_of(chunk), useful);
    _copying.push_back(std::move(chunk));
}

void RemoteFetch::step() {
    while (!_copying.empty() && _copying.front().copy.poll()) {
        _copying.pop_front();
    }
    _refused = true;  // unless the MPI does what it is asked for
    MPI_Status status{};
    while (!_receiving.empty() && _network.is_complete(_receiving.front(), status)) {
        _refused = false;
        Chunk chunk = std::move(_receiving.front());
        _receiving.pop_front();
        arrived(std::move(chunk), status);
        status = MPI_Status{};
        _refused = true;
    }
    // What is small was sent as a whole, and must not wait for its turn behind what its sender has yet to send.
    if (_asked_for == 0 && _size <= p2p::kLongestHeader) {
        receive_chunk(_lane.force());
    }
    while (_asked_for < _size) {
        p2p::Lane::Share share = _lane.take(_id, _network._tuning.network_window);
        if (!share) {
            break;
        }
        receive_chunk(std::move(share));
    }
    _refused = false;
}

bool RemoteFetch::advance() noexcept {
    if (_over) {
        return true;
    }
    _network.tick();
    try {
        step();
    } catch (const Error& error) {
        _error = error;
        _copying.clear();
    } catch (const std::bad_alloc&) {
        _error = Error("out of host memory while a message was received", "free memory, or send smaller messages");
        _refused = true;
    }
    if (_refused) {
        end();  // the id stays in use for ever, since nobody knows what still comes with it
    } else if (_asked_for == _size && _receiving.empty() && _copying.empty()) {
        end();
        _network.taken(_peer, _id);
    }
    return _over;
}

// ---- coming up and going down ---------------------------------------------------------------------------------------

Network::Network(const Native& native, transfer::PinnedPool& pool, std::function<bool()> others_wait)
    : _native(native), _pool(pool), _others_wait(std::move(others_wait)) {}

Network::~Network() = default;

bool Network::wait_for(MPI_Request& request, const std::chrono::nanoseconds limit) {
    const auto start = std::chrono::steady_clock::now();
    int done = 0;
    while (_native.Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0) {
        if (std::chrono::steady_clock::now() - start > limit) {
            return false;
        }
        sched_yield();
    }
    return done != 0;
}

void Network::start() {
    _native.Comm_rank(MPI_COMM_WORLD, &_rank);
    _native.Comm_size(MPI_COMM_WORLD, &_size);
    const bool secret = getrandom(_secret.data(), sizeof _secret, 0) == static_cast<ssize_t>(sizeof _secret);
    // Without one it never says that it takes headers; it takes part all the same, since the others count on it.
    _nameless = !secret;
    if (_native.Comm_idup == nullptr || _native.Comm_idup(MPI_COMM_WORLD, &_comm, &_duplicating) != MPI_SUCCESS) {
        _duplicating = MPI_REQUEST_NULL;
        return;
    }
    if (wait_for(_duplicating, kAtStart)) {
        _native.Comm_set_errhandler(_comm, MPI_ERRORS_RETURN);
        _usable.store(true, std::memory_order_release);
    }
}

bool Network::everybody_has_the_layer() {
    if (_usable.load(std::memory_order_acquire)) {
        return true;
    }
    const std::scoped_lock lock(_mutex);
    if (_alone || _usable.load(std::memory_order_acquire)) {
        return !_alone;
    }
    // Without a limit: whoever gave up here would do alone what the others, once they are answered, do together.
    _alone = _duplicating == MPI_REQUEST_NULL;
    for (bool said = false; !_alone && !wait_for(_duplicating, kAtEnd);) {
        if (!std::exchange(said, true)) {
            std::fprintf(stderr,
                         "awaken: rank %d waits for the other ranks to get as far as it has. If some of them run "
                         "without Awaken, set AWAKEN_NODES=0\n",
                         _rank);
        }
    }
    if (!_alone) {
        _native.Comm_set_errhandler(_comm, MPI_ERRORS_RETURN);
        _usable.store(true, std::memory_order_release);
    }
    return !_alone;
}

void Network::use(gpu::Runtime& runtime, const transfer::Tuning& tuning, transfer::Packer& packer,
                  const bool mpi_takes_device_memory) {
    const std::scoped_lock lock(_mutex);
    if (_runtime != nullptr) {
        return;
    }
    _runtime = &runtime;
    _tuning = tuning;
    _tuning.network_chunk_bytes = std::min(_tuning.network_chunk_bytes, kMostChunkBytes);
    _copies = std::make_unique<DeviceCopies>(runtime, _pool, _tuning, CopyEngine::engine, &packer);
    _passes_through.store(mpi_takes_device_memory, std::memory_order_release);
    _has_gpu.store(true, std::memory_order_release);
}

void Network::stop() {
    if (_comm == MPI_COMM_NULL && _duplicating == MPI_REQUEST_NULL) {
        return;
    }
    _has_gpu.store(false, std::memory_order_release);
    if (!_usable.load(std::memory_order_acquire)) {
        // All ranks are on their way here, or one has no layer; then the duplicate is left as it is.
        if (!wait_for(_duplicating, kAtEnd)) {
            return;
        }
        _native.Comm_set_errhandler(_comm, MPI_ERRORS_RETURN);
    }
    const std::scoped_lock lock(_mutex);
    _open.store(false, std::memory_order_release);
    _usable.store(false, std::memory_order_release);
    while (!_left.empty() || !_outgoing.empty() || _pings != 0) {
        look();
        sched_yield();
    }
    // Every rank has the layer, so every rank comes here: none may send a notice to one that is gone.
    MPI_Request request = MPI_REQUEST_NULL;
    if (_native.Ibarrier(_comm, &request) == MPI_SUCCESS) {
        int done = 0;
        while (_native.Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0) {
            look();
            sched_yield();
        }
    }
    look();
    for (std::size_t at = 0; at < _listening.size(); ++at) {
        std::vector<MPI_Request>& pings = _listening_next[at];
        pings.push_back(_listening[at]);
        for (MPI_Request& ping : pings) {
            if (ping != MPI_REQUEST_NULL && _native.Cancel(&ping) == MPI_SUCCESS) {
                _native.Wait(&ping, MPI_STATUS_IGNORE);
            }
        }
    }
    _listening.clear();
    _listening_next.clear();
    _heard.clear();
    _native.Comm_free(&_comm);
}

void Network::shut_down() noexcept {
    if (_copies != nullptr) {
        _copies->shut_down();
    }
}

// ---- notices --------------------------------------------------------------------------------------------------------

void Network::tell(const int peer, const Notice& notice) {
    Outgoing& outgoing = _outgoing.emplace_back(Outgoing{notice, MPI_REQUEST_NULL});
    if (_native.Isend(&outgoing.notice, static_cast<int>(sizeof(Notice)), MPI_BYTE, peer, kNoticeTag, _comm,
                      &outgoing.request) != MPI_SUCCESS) {
        _outgoing.pop_back();
    }
}

void Network::complete_outgoing() {
    for (auto each = _outgoing.begin(); each != _outgoing.end();) {
        int done = 0;
        const int error = _native.Test(&each->request, &done, MPI_STATUS_IGNORE);
        each = done != 0 || error != MPI_SUCCESS ? _outgoing.erase(each) : std::next(each);
        asks_mpi();
    }
}

void Network::complete_left() {
    MPI_Status ignored{};
    for (auto each = _left.begin(); each != _left.end();) {
        if (is_complete(*each, ignored)) {
            _left_bytes -= each->bytes;
            each = _left.erase(each);
        } else {
            ++each;
        }
        asks_mpi();
    }
}

void Network::hear(const int peer, const Notice& notice) {
    if (notice.id >= p2p::kSlots) {
        return;
    }
    switch (notice.kind) {
        case Notice::query:
            _receiving[peer].plain = notice.words;
            _unanswered.push_back(peer);
            break;
        case Notice::ready: {
            Sending& sending = _sending[peer];
            sending.ready = true;
            sending.receiver.listens(kPings);
            std::copy_n(notice.words.begin(), sending.secret.size(), sending.secret.begin());
            break;
        }
        case Notice::announce: {
            Receiving::Announced& announced = _receiving[peer].announced[notice.id];
            announced.generation = notice.generation;
            announced.bytes = notice.bytes;
            break;
        }
        case Notice::plain:
            set(_receiving[peer].plain, notice.id);
            break;
        case Notice::come:
            _sending[peer].lane.come_for(notice.id);
            break;
        case Notice::taken:
            clear(_sending[peer].under_way, notice.id);
            break;
        case Notice::listening:
            _sending[peer].receiver.looked(notice.bytes != 0);
            break;
        case Notice::deaf:
            _sending[peer].receiver.fell_silent();
            break;
        default:
            break;
    }
}

void Network::answer() {
    if (_unanswered.empty() || !_open.load(std::memory_order_acquire) || _nameless || passes_through()) {
        return;
    }
    for (const int peer : std::exchange(_unanswered, {})) {
        Receiving& receiving = _receiving[peer];
        if (!listen_to(peer)) {
            continue;  // its messages travel as without this
        }
        Notice notice{};
        notice.kind = Notice::ready;
        std::copy(_secret.begin(), _secret.end(), notice.words.begin());
        receiving.answered = true;
        tell(peer, notice);
    }
}

bool Network::listen_to(const int peer, MPI_Request& ping) {
    return _native.Irecv(nullptr, 0, MPI_BYTE, peer, kPingTag, _comm, &ping) == MPI_SUCCESS;
}

/// From now on that process may ask where this one is.
bool Network::listen_to(const int peer) {
    std::vector<MPI_Request> pings;
    bool all = true;
    for (std::size_t ping = 0; ping < kPings; ++ping) {
        MPI_Request& request = pings.emplace_back(MPI_REQUEST_NULL);
        all = all && listen_to(peer, request);
    }
    _heard.push_back(peer);
    _listening.push_back(pings.front());
    pings.erase(pings.begin());
    _listening_next.push_back(std::move(pings));
    return all;
}

/// Not while the network goes down: who is told might be gone, and no ping is sent any more. Two questions and no more:
/// a sender that is faster than this process may have sent the next ping by then, and so on, while its message waits.
void Network::listen_again() {
    _questions = 0;
    const int count = static_cast<int>(_listening.size());
    if (count == 0 || !_open.load(std::memory_order_acquire)) {
        return;
    }
    _answered.resize(_listening.size());
    int answered = 0;
    if (_native.Testsome(count, _listening.data(), &answered, _answered.data(), MPI_STATUSES_IGNORE) != MPI_SUCCESS ||
        answered == MPI_UNDEFINED) {
        return;
    }
    for (int at = 0; at < answered; ++at) {
        listen_again(static_cast<std::size_t>(_answered[static_cast<std::size_t>(at)]));
        // In one of so many looks the MPI has been asked about each receive, and a header that is here is seen.
        constexpr int kTurns = 64;
        _turns.store(kTurns, std::memory_order_relaxed);
    }
}

/// The oldest ping from a process was answered, and perhaps more: all are told of, since the sender takes those that
/// are not for answers without the layer.
void Network::listen_again(const std::size_t index) {
    const int peer = _heard[index];
    std::vector<MPI_Request>& next = _listening_next[index];
    std::array<int, kPings> ignored{};
    int more = 0;
    if (_native.Testsome(static_cast<int>(next.size()), next.data(), &more, ignored.data(), MPI_STATUSES_IGNORE) !=
            MPI_SUCCESS ||
        more == MPI_UNDEFINED) {
        more = 0;
    }
    std::erase(next, MPI_REQUEST_NULL);
    for (int ping = 0; ping <= more; ++ping) {
        Notice notice{};
        notice.kind = listen_to(peer, next.emplace_back(MPI_REQUEST_NULL)) ? Notice::listening : Notice::deaf;
        notice.bytes = _receiving[peer].fetching.load();
        tell(peer, notice);
    }
    _listening[index] = next.front();
    next.erase(next.begin());
}

/// Each question lets the MPI answer another ping. A process that is stopped after each of them, as one may be that has
/// to give the processor up whenever the MPI finds nothing to do, must not answer kPings of them before it says so.
void Network::asks_mpi() {
    constexpr unsigned kMost = 2;
    if (++_questions > kMost) {
        listen_again();
    }
}

void Network::complete_pings() {
    if (_pings == 0) {
        return;
    }
    for (auto& [peer, sending] : _sending) {
        int done = 0;
        if (sending.ping != MPI_REQUEST_NULL &&
            (_native.Test(&sending.ping, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0)) {
            sending.ping = MPI_REQUEST_NULL;
            sending.receiver.answered(p2p::Whereabouts::Clock::now());
            --_pings;
        }
    }
}

bool Network::waits_in_mpi(const int peer, const p2p::Lane::Clock::time_point since,
                           const std::chrono::nanoseconds time) {
    poll();  // that its layer has run may have been told already
    const std::scoped_lock lock(_mutex);
    Sending& sending = _sending[peer];
    const auto verdict = sending.receiver.judge(since, p2p::Whereabouts::Clock::now(), time);
    if (verdict == p2p::Whereabouts::Verdict::ping) {
        if (_native.Issend(nullptr, 0, MPI_BYTE, peer, kPingTag, _comm, &sending.ping) == MPI_SUCCESS) {
            ++_pings;
        } else {
            sending.receiver.not_sent();
        }
    }
    return verdict == p2p::Whereabouts::Verdict::waits;
}

void Network::look() {
    listen_again();
    // Before the notices: what a receiver has said before it answered is heard before its answer counts.
    complete_pings();
    for (int found = 1; found != 0;) {
        MPI_Status status{};
        if (_native.Iprobe(MPI_ANY_SOURCE, kNoticeTag, _comm, &found, &status) != MPI_SUCCESS || found == 0) {
            break;
        }
        Notice notice{};
        const int peer = status.MPI_SOURCE;
        // The lock is held, so that what was found is what is received. It is here: this does not wait.
        if (_native.Recv(&notice, static_cast<int>(sizeof notice), MPI_BYTE, peer, kNoticeTag, _comm,
                         MPI_STATUS_IGNORE) == MPI_SUCCESS) {
            hear(peer, notice);
        }
        asks_mpi();
    }
    answer();
    complete_outgoing();
    complete_left();
}

bool Network::poll() noexcept {
    const std::unique_lock lock(_mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
        return false;
    }
    try {
        if (!_usable.load(std::memory_order_relaxed)) {
            int done = 0;
            if (_duplicating == MPI_REQUEST_NULL ||
                _native.Test(&_duplicating, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0) {
                return true;
            }
            _native.Comm_set_errhandler(_comm, MPI_ERRORS_RETURN);
            _usable.store(true, std::memory_order_release);
        }
        look();
    } catch (const std::exception&) {
        // No memory: who was not heard gets no answer, and goes on as without one. Or the MPI could not carry a chunk
        // that its sender has done with, of which it tells the receiver.
    }
    return true;
}

// ---- messages -------------------------------------------------------------------------------------------------------

std::shared_ptr<RemoteShipment> Network::make(const int peer, const void* const buffer, const gpu::PointerInfo& info,
                                              const std::size_t bytes, const std::size_t chunk_bytes,
                                              std::shared_ptr<const transfer::TypedMemory> typed) {
    Sending& sending = _sending[peer];
    const bool wrapped = info.kind == gpu::MemoryKind::host;
    const std::uint32_t first = wrapped ? 0 : kKeptBack;
    std::optional<std::uint32_t> free;
    // In turn, so that an id comes again as late as possible.
    for (std::uint32_t tried = 0; tried < p2p::kSlots && !free; ++tried) {
        const std::uint32_t id = (sending.next + tried) % p2p::kSlots;
        if (id >= first && !has(sending.under_way, id) && !has(sending.plain, id)) {
            free = id;
        }
    }
    if (!free) {
        return nullptr;
    }
    auto shipment = std::make_shared<RemoteShipment>(*this, sending.lane, peer, *free, buffer, info, bytes, chunk_bytes,
                                                     std::move(typed));
    sending.next = *free + 1;
    set(sending.under_way, *free);
    ++sending.generation;
    Notice notice{};
    notice.kind = Notice::announce;
    notice.id = *free;
    notice.bytes = bytes;
    notice.generation = sending.generation;
    tell(peer, notice);
    const Header header{kMagic,      sending.secret,    static_cast<std::uint32_t>(_rank), *free, bytes,
                        chunk_bytes, sending.generation};
    std::memcpy(shipment->_message.data(), &header, sizeof header);
    return shipment;
}

std::shared_ptr<RemoteShipment> Network::ship(const int peer, const void* const buffer, const gpu::PointerInfo& info,
                                              const std::size_t bytes,
                                              std::shared_ptr<const transfer::TypedMemory> typed) {
    if (!_has_gpu.load(std::memory_order_acquire) || bytes < _tuning.network_bytes || passes_through() ||
        (typed != nullptr && !can_move(*typed, info))) {
        return nullptr;
    }
    poll();
    std::shared_ptr<RemoteShipment> shipment;
    {
        const std::scoped_lock lock(_mutex);
        if (!_usable.load(std::memory_order_acquire) || _left_bytes > kMostLeft) {
            return nullptr;
        }
        Sending& sending = _sending[peer];
        if (!sending.asked) {
            sending.asked = true;
            Notice notice{};
            notice.kind = Notice::query;
            notice.words = sending.plain;
            tell(peer, notice);
        }
        if (!sending.ready) {
            return nullptr;
        }
        shipment = make(peer, buffer, info, bytes, _tuning.network_chunk_bytes, std::move(typed));
    }
    if (shipment != nullptr) {
        try {
            shipment->step(_tuning.network_window);  // the first chunks are copied while the header leaves
        } catch (const Error&) {
            shipment->withdraw();
            throw;
        }
    }
    return shipment;
}

bool Network::may_go_plain(const int peer, const std::size_t length) {
    const std::uint32_t id = p2p::slot_of_length(length);
    const std::scoped_lock lock(_mutex);
    Sending& sending = _sending[peer];
    if (has(sending.plain, id)) {
        return true;
    }
    if (has(sending.under_way, id)) {
        return false;
    }
    if (sending.ready) {
        int spoilt = 0, unusable = 0;
        for (std::size_t word = 0; word < sending.plain.size(); ++word) {
            spoilt += std::popcount(sending.plain[word]);
            unusable += std::popcount(sending.plain[word] | sending.under_way[word]);
        }
        constexpr int kAll = static_cast<int>(p2p::kSlots);
        if (kAll - spoilt <= kUnspoilt && kAll - unusable > kUnspoilt / 2) {
            return false;
        }
    }
    spoil(peer, sending, id);
    return true;
}

void Network::spoil(const int peer, Sending& sending, const std::uint32_t id) {
    set(sending.plain, id);
    if (sending.asked) {
        Notice notice{};
        notice.kind = Notice::plain;
        notice.id = id;
        tell(peer, notice);
    }
}

std::shared_ptr<RemoteShipment> Network::wrap(const int peer, const void* const packed, const std::size_t bytes) {
    poll();
    std::shared_ptr<RemoteShipment> shipment;
    {
        const std::scoped_lock lock(_mutex);
        shipment = make(peer, packed, kHost, bytes, bytes);
        const std::uint32_t id = p2p::slot_of_length(bytes);
        if (Sending& sending = _sending[peer]; shipment == nullptr && !has(sending.under_way, id)) {
            spoil(peer, sending, id);
        }
        // With all ids in use, this one too, the message goes plain all the same: a probe that finds one of the two
        // takes it for the other, but each is received as what it is.
    }
    if (shipment != nullptr) {
        try {
            shipment->copy_out();
        } catch (const Error&) {
            shipment->withdraw();
            throw;
        }
    }
    return shipment;
}

bool Network::begins_like_header(const std::byte* const message) const noexcept {
    std::uint64_t first = 0;
    std::memcpy(&first, message, sizeof first);
    return first == kMagic;
}

bool Network::is_header(const std::byte* const message, const std::size_t length) const noexcept {
    if (length < sizeof(Header) || length > p2p::kLongestHeader) {
        return false;
    }
    Header header{};
    std::memcpy(&header, message, sizeof header);
    return header.magic == kMagic && header.secret == _secret;
}

std::shared_ptr<RemoteFetch> Network::fetch(const std::byte* const message, const std::size_t length,
                                            void* const buffer, const gpu::PointerInfo& info,
                                            const std::size_t capacity,
                                            std::shared_ptr<const transfer::TypedMemory> typed) {
    Header header{};
    std::memcpy(&header, message, sizeof header);
    if (!p2p::is_header_length(length) || header.id != p2p::slot_of_length(length) ||
        header.sender >= static_cast<std::uint32_t>(_size) || header.bytes == 0 || header.chunk_bytes == 0 ||
        header.chunk_bytes > kMostChunkBytes || !_has_gpu.load(std::memory_order_acquire)) {
        return nullptr;
    }
    const int peer = static_cast<int>(header.sender);
    const std::scoped_lock lock(_mutex);
    Receiving& receiving = _receiving[peer];
    Receiving::Announced& announced = receiving.announced[header.id];
    if (header.generation <= announced.taken) {
        return nullptr;
    }
    announced.taken = header.generation;
    auto fetch = std::make_shared<RemoteFetch>(*this, receiving.lane, peer, header.id, header.bytes, header.chunk_bytes,
                                               buffer, info, capacity, std::move(typed), receiving.fetching);
    // With the lock held, so that the sender hears of messages in the order in which they stand in line here.
    receiving.lane.join(header.id, true);
    Notice notice{};
    notice.kind = Notice::come;
    notice.id = header.id;
    tell(peer, notice);
    return fetch;
}

p2p::TrueSize Network::size_of(const int peer, const std::size_t length) const {
    const std::uint32_t id = p2p::slot_of_length(length);
    const std::scoped_lock lock(_mutex);
    p2p::TrueSize size;
    const auto found = _receiving.find(peer);
    if (!_usable.load(std::memory_order_acquire) || found == _receiving.end() || !found->second.answered ||
        has(found->second.plain, id)) {
        return size;
    }
    size.may_come = true;
    const auto announced = found->second.announced.find(id);
    if (announced != found->second.announced.end()) {
        const Receiving::Announced& newest = announced->second;
        size.version = newest.generation + newest.taken;  // neither ever falls
        if (newest.generation > newest.taken) {
            size.bytes = newest.bytes;
        }
    }
    return size;
}

// ---- for shipments and fetches --------------------------------------------------------------------------------------

void Network::send_chunk(const int peer, const std::uint32_t id, Chunk& chunk) {
    chunk.traced.begin(trace::Kind::background, "chunk sent", chunk.bytes, -1, peer);
    if (_native.Isend(chunk.place, static_cast<int>(chunk.bytes), MPI_BYTE, peer, chunk_tag(id), _comm,
                      &chunk.request) != MPI_SUCCESS) {
        throw Error("the MPI refused part of a message to rank " + std::to_string(peer) + " of MPI_COMM_WORLD",
                    "look at the MPI's own messages; AWAKEN_NODES=0 sends each message as a whole");
    }
}

void Network::receive_chunk(const int peer, const std::uint32_t id, Chunk& chunk) {
    chunk.traced.begin(trace::Kind::background, "chunk received", chunk.bytes, -1, peer);
    const int bytes = chunk.place != nullptr ? static_cast<int>(chunk.bytes) : 0;
    if (_native.Irecv(chunk.place, bytes, MPI_BYTE, peer, chunk_tag(id), _comm, &chunk.request) != MPI_SUCCESS) {
        throw Error("the MPI refused part of a message from rank " + std::to_string(peer) + " of MPI_COMM_WORLD",
                    "look at the MPI's own messages; AWAKEN_NODES=0 sends each message as a whole");
    }
}

bool Network::is_complete(Chunk& chunk, MPI_Status& status) const {
    int done = 0;
    if (_native.Test(&chunk.request, &done, &status) != MPI_SUCCESS) {
        if (chunk.place == nullptr) {
            return true;  // cut off, as it was to be
        }
        throw Error("the MPI could not carry part of a message between nodes",
                    "look at the MPI's own messages; AWAKEN_NODES=0 sends each message as a whole");
    }
    if (done != 0) {
        chunk.traced.end();
    }
    return done != 0;
}

void Network::keep(std::deque<Chunk> chunks) noexcept {
    if (chunks.empty()) {
        return;
    }
    const std::scoped_lock lock(_mutex);
    for (Chunk& chunk : chunks) {
        _left_bytes += chunk.bytes;
        _left.push_back(std::move(chunk));
    }
}

void Network::give_back(const int peer, const std::uint32_t id) noexcept {
    const std::scoped_lock lock(_mutex);
    clear(_sending[peer].under_way, id);
}

void Network::taken(const int peer, const std::uint32_t id) noexcept {
    const std::scoped_lock lock(_mutex);
    try {
        Notice notice{};
        notice.kind = Notice::taken;
        notice.id = id;
        tell(peer, notice);
    } catch (const std::bad_alloc&) {
        // The sender goes without this id.
    }
}

DeviceCopies::End Network::end_of(const Chunk& chunk) const noexcept {
    return {chunk.place, chunk.block.pinned() ? nullptr : &kHost};
}

int Network::device_for(const gpu::PointerInfo& info) const noexcept {
    int device = info.device;
    if (device < 0) {
        device = _runtime->device_to_use();
    }
    return device;
}

}  // namespace awaken::AWAKEN_ABI
