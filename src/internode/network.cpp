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

/// Notices travel on tag 0, the fragments of message `id` on tag 1 + id, pings behind them.
constexpr int kNoticeTag = 0;
constexpr int fragment_tag(const std::uint32_t id) noexcept {
    return static_cast<int>(id) + 1;
}
constexpr int kPingTag = fragment_tag(ipc::kSlots);

constexpr std::uint64_t kMagic = 0x6177616b656e4e31;

/// The duplicate of MPI_COMM_WORLD is there as soon as all ranks have left MPI_Init. The layer waits for it a moment,
/// because some MPIs may mix up the steps of a duplication that is under way with those of the program's own. A rank
/// without the layer never takes part, so the layer waits no longer than a program can spare in vain.
constexpr std::chrono::seconds kAtStart{1};
constexpr std::chrono::seconds kAtEnd{30};

/// Bytes that may be left to the MPI by senders that went on without their receivers. Beyond that, messages are staged
/// whole, and a sender waits as long as the MPI makes it wait.
constexpr std::size_t kMostLeft = std::size_t{1} << 30;

/// Ids that are kept for wrapped messages, since these have no other way.
constexpr std::uint32_t kKeptBack = 32;

/// Programs that send messages of every length (serialised objects) would use up one id after another. When only this
/// many unused ids are left, such messages are wrapped, which costs them more. A flood of them, which would use up the
/// rest of the ids, is not wrapped.
constexpr int kUnusedLengths = 96;

constexpr std::size_t kMostFragmentBytes = std::size_t{1} << 30;  // an int counts its bytes

const gpu::PointerInfo kHost{};

}  // namespace

// ---- sending a message ----------------------------------------------------------------------------------------------

PipelinedSend::PipelinedSend(Network& network, protocol::FlowWindow& flow, const int peer, const std::uint32_t id,
                             const ipc::Buffer& from, const std::size_t fragment_bytes)
    : _network(network),
      _flow(flow),
      _peer(peer),
      _id(id),
      _from(from),
      _fragment_bytes(fragment_bytes),
      _progress(Clock::now()) {
    _flow.join(_id);
    _network._unfinished.fetch_add(1);
}

PipelinedSend::~PipelinedSend() {
    if (_posted && !_free && !all_sent()) {
        lose();
    }
    end();
    // The fragments that the MPI reads outlive this object. The destructors of the other fragments wait for their
    // copies.
    while (_fragments.size() > _sent) {
        _fragments.pop_back();
    }
    _network.keep(std::move(_fragments));
}

void PipelinedSend::start_fragment(protocol::FlowWindow::Credit credit, const bool pinned) {
    transfer::PinnedPool& pool = _network._pool;
    Fragment fragment;
    fragment.credit = std::move(credit);
    fragment.at = _started;
    fragment.bytes = std::min(_fragment_bytes, _from.bytes - _started);
    fragment.block = pinned ? pool.acquire(*_network._runtime, fragment.bytes) : pool.acquire_ordinary(fragment.bytes);
    fragment.place = fragment.block.data();
    if (_from.info.kind == gpu::MemoryKind::host) {
        std::memcpy(fragment.place, _from.first + fragment.at, fragment.bytes);
    } else {
        fragment.copy = _network._copies->start(
            _network.device_for(_from.info), static_cast<unsigned>(_peer), _network.end_of(fragment),
            DeviceCopies::End{_from.first, &_from.info, _from.typed}.from(fragment.at), fragment.bytes);
    }
    _started += fragment.bytes;
    _fragments.push_back(std::move(fragment));
    if (_started == _from.bytes) {
        _flow.leave(_id);
    }
}

/// Does what can be done now. `window`: how many fragments of all messages to the receiver may be under way.
void PipelinedSend::step(const std::size_t window) {
    bool got_on = false;
    for (; _copied < _fragments.size() && _fragments[_copied].copy.poll(); ++_copied) {
        got_on = true;
    }
    for (; _posted && _sent < _copied; ++_sent) {
        _network.send_fragment(_peer, _id, _fragments[_sent]);
        got_on = true;
    }
    MPI_Status ignored{};
    while (_sent > 0 && _network.is_complete(_fragments.front(), ignored)) {
        _fragments.pop_front();
        --_sent;
        --_copied;
        got_on = true;
    }
    while (_started < _from.bytes) {
        protocol::FlowWindow::Credit credit = _flow.take(_id, window);
        if (!credit) {
            break;
        }
        start_fragment(std::move(credit));
        got_on = true;
    }
    // Perhaps the receiver has said that it wants this message before others, or another process asks where this one
    // is.
    _network.tick();
    if (got_on) {
        _progress = Clock::now();
    }
}

/// Starts copying all that remains. It goes to pinned memory as far as the pool can spare some, since bytes on their
/// way to ordinary memory pass through pinned blocks as well.
void PipelinedSend::copy_rest_out() {
    const transfer::PinnedPool& pool = _network._pool;
    while (_started < _from.bytes) {
        start_fragment(_flow.force(), pool.spare_bytes() >= pool.limit_bytes() / 4 + _fragment_bytes);
    }
}

void PipelinedSend::copy_out() {
    copy_rest_out();
    while (!all_copied()) {
        step(0);
    }
}

void PipelinedSend::posted(const bool /*waits*/) noexcept {
    _posted = true;
    if (_error) {
        lose();
        return;
    }
    try {
        static_cast<void>(advance(ipc::Patience::endless));
    } catch (const Error&) {
        // advance() throws the error.
    }
}

void PipelinedSend::go_on() noexcept {
    try {
        static_cast<void>(advance(ipc::Patience::short_));
    } catch (const Error&) {
        // advance() throws the error.
    }
}

void PipelinedSend::withdraw() noexcept {
    _free = true;
    end();
    _network.give_back(_peer, _id);
}

/// The message needs no calls any more.
void PipelinedSend::end() noexcept {
    if (!std::exchange(_ended, true)) {
        if (_started < _from.bytes) {
            _flow.leave(_id);  // else it has left the line, and another message may have the id by now
        }
        _network._unfinished.fetch_sub(1);
    }
}

/// The MPI has all of the message.
void PipelinedSend::finish() noexcept {
    _free = true;
    end();
    _network.keep(std::exchange(_fragments, {}));
    _sent = _copied = 0;
}

void PipelinedSend::fail(Error error) noexcept {
    _error = std::move(error);
    lose();
}

bool PipelinedSend::advance(const ipc::Patience patience) {
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
        if (_fragments.empty() || may_be_left(watch)) {
            finish();
        }
    } else if (patience != ipc::Patience::endless && _posted && _started < _from.bytes) {
        // The receiver must take the fragments that the MPI has. While it does not come, no more start unless the
        // window grows.
        _flow.grow_if_still(watch, window);
    }
    return _free;
}

/// Whether the send may leave the rest to the MPI, which has all of it, since the receiver may be waiting for this
/// process elsewhere.
bool PipelinedSend::may_be_left(const std::chrono::nanoseconds watch) {
    if (is_wrapped()) {
        return Clock::now() - _progress > watch;
    }
    return _flow.stands_still(watch) && _network.waits_in_mpi(_peer, _flow.last_progress(), watch);
}

/// Calls `copy`, which copies fragments out, and gives the MPI those that are ready. advance() throws the errors.
template <class Copy>
void PipelinedSend::give_to_mpi(const Copy& copy) noexcept {
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

void PipelinedSend::leave() noexcept {
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
            const bool spare = pool.spare_bytes() >= half + _fragment_bytes;
            step(spare ? std::max(window, half / _fragment_bytes) : window);
            while (_copied < _fragments.size()) {
                step(0);  // starts no more fragments, or this call would last as long as the message does
            }
        }
        _left = true;
    });
}

bool PipelinedSend::flush_to_native() noexcept {
    if (_ended || _error) {
        return true;
    }
    give_to_mpi([this] {
        const transfer::PinnedPool& pool = _network._pool;
        while (_started < _from.bytes && pool.spare_bytes() >= pool.limit_bytes() / 4 + _fragment_bytes) {
            start_fragment(_flow.force());
        }
        if (_flow.stands_still(_network._tuning.large_watch)) {
            copy_rest_out();
        }
    });
    return _ended || _error;
}

/// The receiver waits for a fragment that will not come. A fragment without content tells it so.
void PipelinedSend::lose() noexcept {
    end();
    if (!_posted || _free) {
        return;
    }
    _free = true;
    try {
        while (_fragments.size() > _sent) {
            _fragments.pop_back();
        }
        Fragment nothing;
        _network.send_fragment(_peer, _id, nothing);
        _fragments.push_back(std::move(nothing));
        ++_sent;
    } catch (const std::exception&) {
        // The MPI has failed, and tells the receiver so.
    }
}

// ---- receiving a message --------------------------------------------------------------------------------------------

PipelinedRecv::PipelinedRecv(Network& network, protocol::FlowWindow& flow, const int peer, const std::uint32_t id,
                             const std::size_t size, const std::size_t fragment_bytes, const ipc::Buffer& into,
                             std::atomic<std::size_t>& fetching)
    : _network(network),
      _flow(flow),
      _peer(peer),
      _id(id),
      _size(size),
      _fragment_bytes(fragment_bytes),
      _into(into),
      _wanted(std::min(size, into.bytes)),
      _from_peer(fetching) {
    _from_peer.fetch_add(1);
    _network._fetching.fetch_add(1);
}

void PipelinedRecv::end() noexcept {
    if (!std::exchange(_over, true)) {
        _flow.leave(_id);
        _from_peer.fetch_sub(1);
        _network._fetching.fetch_sub(1);
    }
}

PipelinedRecv::~PipelinedRecv() {
    end();
    // Cancels the receives that are not wanted any more. A receive that can no longer be cancelled completes at once
    // instead.
    const Native& native = _network._native;
    for (Fragment& fragment : _receiving) {
        if (fragment.request != MPI_REQUEST_NULL) {
            native.Cancel(&fragment.request);
            native.Wait(&fragment.request, MPI_STATUS_IGNORE);
        }
    }
}

void PipelinedRecv::receive_fragment(protocol::FlowWindow::Credit credit) {
    Fragment fragment;
    fragment.credit = std::move(credit);
    fragment.at = _asked_for;
    fragment.bytes = std::min(_fragment_bytes, _size - _asked_for);
    if (_into.info.host_accessible() && fragment.at + fragment.bytes <= _wanted) {
        fragment.place = _into.first + fragment.at;
    } else if (!_error) {
        try {
            fragment.block = _network._pool.acquire(*_network._runtime, fragment.bytes);
            fragment.place = fragment.block.data();
        } catch (const std::exception&) {
            _error = Error("out of host memory while a message was received", "free memory, or send smaller messages");
        }
    }
    _network.receive_fragment(_peer, _id, fragment);
    _asked_for += fragment.bytes;
    _receiving.push_back(std::move(fragment));
    if (_asked_for == _size) {
        _flow.leave(_id);
    }
}

void PipelinedRecv::arrived(Fragment fragment, const MPI_Status& status) {
    if (fragment.place == nullptr) {
        return;  // the bytes are not wanted; only the sender needed them to be taken
    }
    if (static_cast<std::size_t>(received_bytes(_network._native, status)) != fragment.bytes) {
        _refused = true;
        throw Error("the sender of a message could not finish its copy", "look at the sender's own error");
    }
    const std::size_t useful = fragment.at < _wanted ? std::min(fragment.bytes, _wanted - fragment.at) : 0;
    if (useful == 0 || fragment.place == _into.first + fragment.at || _error) {
        return;  // these bytes do not fit, or cannot be delivered; only the sender needed them to be taken
    }
    if (_into.info.host_accessible()) {
        std::memcpy(_into.first + fragment.at, fragment.place, useful);
        return;
    }
    fragment.copy = _network._copies->start(_network.device_for(_into.info), static_cast<unsigned>(_peer),
                                            DeviceCopies::End{_into.first, &_into.info, _into.typed}.from(fragment.at),
                                            _network.end_of(fragment), useful);
    _copying.push_back(std::move(fragment));
}

void PipelinedRecv::step() {
    while (!_copying.empty() && _copying.front().copy.poll()) {
        _copying.pop_front();
    }
    _refused = true;  // unless the MPI succeeds below
    MPI_Status status{};
    while (!_receiving.empty() && _network.is_complete(_receiving.front(), status)) {
        _refused = false;
        Fragment fragment = std::move(_receiving.front());
        _receiving.pop_front();
        arrived(std::move(fragment), status);
        status = MPI_Status{};
        _refused = true;
    }
    // A small message was sent whole. It must not wait for its turn behind messages that its sender has yet to send.
    if (_asked_for == 0 && _size <= ipc::kLongestRts) {
        receive_fragment(_flow.force());
    }
    while (_asked_for < _size) {
        protocol::FlowWindow::Credit credit = _flow.take(_id, _network._tuning.network_window);
        if (!credit) {
            break;
        }
        receive_fragment(std::move(credit));
    }
    _refused = false;
}

bool PipelinedRecv::advance() noexcept {
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
        end();  // the id stays in use for ever, since fragments may still come with it
    } else if (_asked_for == _size && _receiving.empty() && _copying.empty()) {
        end();
        _network.taken(_peer, _id);
    }
    return _over;
}

// ---- start and end --------------------------------------------------------------------------------------------------

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
    // Without a secret this process never says that it takes RTS messages. It takes part all the same, since the others
    // count on it.
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
    // The wait has no limit: a rank that gave up here would do alone what the others, once they are answered, do
    // together.
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

void Network::use(gpu::Runtime& runtime, const transfer::Tuning& tuning, transfer::DeviceCopies& copies,
                  const bool mpi_takes_device_memory) {
    const std::scoped_lock lock(_mutex);
    if (_runtime != nullptr) {
        return;
    }
    _runtime = &runtime;
    _tuning = tuning;
    _tuning.network_fragment_bytes = std::min(_tuning.network_fragment_bytes, kMostFragmentBytes);
    _copies = &copies;
    _passes_through.store(mpi_takes_device_memory, std::memory_order_release);
    _has_gpu.store(true, std::memory_order_release);
}

void Network::stop() {
    if (_comm == MPI_COMM_NULL && _duplicating == MPI_REQUEST_NULL) {
        return;
    }
    _has_gpu.store(false, std::memory_order_release);
    if (!_usable.load(std::memory_order_acquire)) {
        // All ranks are on their way here, or one has no layer; then the duplicate stays as it is.
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
    // Every rank has the layer, so every rank comes here. The barrier keeps each from sending a notice to a rank that
    // is gone.
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
    if (notice.id >= ipc::kSlots) {
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
            _sending[peer].flow.come_for(notice.id);
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
            continue;  // its messages travel as without this file
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

/// From now on the process `peer` may ask where this one is.
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

/// Looks for pings that were answered, but not while the network goes down: the peer might be gone, and no ping is sent
/// any more. Asks the MPI twice and no more: a sender that is faster than this process may have sent the next ping by
/// then, and so on, while its message waits.
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
        // Within so many looks the layer asks the MPI about each receive, and sees an RTS that is here.
        constexpr int kTurns = 64;
        _turns.store(kTurns, std::memory_order_relaxed);
    }
}

/// The MPI has answered the oldest ping from a process, and perhaps more. This process tells of all of them, since the
/// sender takes the others for answers without the layer.
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

/// Counts a question to the MPI. Each question lets the MPI answer another ping. A process may be stopped after each
/// question, for instance when it has to give up the processor whenever the MPI finds nothing to do. Even then it must
/// not answer kPings pings before it says so.
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
            sending.receiver.answered(protocol::Reachability::Clock::now());
            --_pings;
        }
    }
}

bool Network::waits_in_mpi(const int peer, const protocol::FlowWindow::Clock::time_point since,
                           const std::chrono::nanoseconds time) {
    poll();  // the peer may have told already that its layer has run
    const std::scoped_lock lock(_mutex);
    Sending& sending = _sending[peer];
    const auto verdict = sending.receiver.judge(since, protocol::Reachability::Clock::now(), time);
    if (verdict == protocol::Reachability::Answer::ping) {
        if (_native.Issend(nullptr, 0, MPI_BYTE, peer, kPingTag, _comm, &sending.ping) == MPI_SUCCESS) {
            ++_pings;
        } else {
            sending.receiver.not_sent();
        }
    }
    return verdict == protocol::Reachability::Answer::waits;
}

void Network::look() {
    listen_again();
    // Comes before the notices, so that this process hears what a receiver has said before an answer, and then counts
    // the answer.
    complete_pings();
    for (int found = 1; found != 0;) {
        MPI_Status status{};
        if (_native.Iprobe(MPI_ANY_SOURCE, kNoticeTag, _comm, &found, &status) != MPI_SUCCESS || found == 0) {
            break;
        }
        Notice notice{};
        const int peer = status.MPI_SOURCE;
        // This thread holds the lock, so it receives the notice that it has found. The notice is here: this does not
        // wait.
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
        // There is no memory: a process whose notice was lost gets no answer, and goes on as without one. Or the MPI
        // could not carry a fragment that its sender is done with; the MPI tells the receiver so.
    }
    return true;
}

// ---- messages -------------------------------------------------------------------------------------------------------

std::shared_ptr<PipelinedSend> Network::make(const int peer, const ipc::Buffer& from,
                                             const std::size_t fragment_bytes) {
    Sending& sending = _sending[peer];
    const bool wrapped = from.info.kind == gpu::MemoryKind::host;
    const std::uint32_t first = wrapped ? 0 : kKeptBack;
    std::optional<std::uint32_t> free;
    // Takes the ids in turn, so that an id is used again as late as possible.
    for (std::uint32_t tried = 0; tried < ipc::kSlots && !free; ++tried) {
        const std::uint32_t id = (sending.next + tried) % ipc::kSlots;
        if (id >= first && !has(sending.under_way, id) && !has(sending.plain, id)) {
            free = id;
        }
    }
    if (!free) {
        return nullptr;
    }
    auto send = std::make_shared<PipelinedSend>(*this, sending.flow, peer, *free, from, fragment_bytes);
    sending.next = *free + 1;
    set(sending.under_way, *free);
    ++sending.generation;
    Notice notice{};
    notice.kind = Notice::announce;
    notice.id = *free;
    notice.bytes = from.bytes;
    notice.generation = sending.generation;
    tell(peer, notice);
    const Rts rts{kMagic,         sending.secret,    static_cast<std::uint32_t>(_rank), *free, from.bytes,
                  fragment_bytes, sending.generation};
    std::memcpy(send->_message.data(), &rts, sizeof rts);
    return send;
}

void Network::describe(const int /*peer*/, const gpu::PointerInfo& /*memory*/,
                       protocol::SendFacts& facts) const noexcept {
    facts.receiver = protocol::SendFacts::Receiver::on_other_node;
}

std::shared_ptr<ipc::OutgoingMessage> Network::start_send(const int peer, const ipc::Buffer& from,
                                                          const protocol::SendPaths& paths) {
    if (paths.begin() == paths.end() || *paths.begin() != protocol::SendPath::pipelined ||
        !_has_gpu.load(std::memory_order_acquire) || passes_through()) {
        return nullptr;
    }
    poll();
    std::shared_ptr<PipelinedSend> send;
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
        send = make(peer, from, _tuning.network_fragment_bytes);
    }
    if (send != nullptr) {
        try {
            send->step(_tuning.network_window);  // copies the first fragments while the RTS travels
        } catch (const Error&) {
            send->withdraw();
            throw;
        }
    }
    return send;
}

std::shared_ptr<ipc::OutgoingMessage> Network::start_failed(const int peer, const std::size_t bytes,
                                                            const Error& error) {
    const std::scoped_lock lock(_mutex);
    if (!_usable.load(std::memory_order_acquire) || !_sending[peer].ready) {
        return nullptr;
    }
    std::shared_ptr<PipelinedSend> send =
        make(peer, {nullptr, kHost, bytes, nullptr}, std::min(bytes, _tuning.network_fragment_bytes));
    if (send != nullptr) {
        send->_error = error;
    }
    return send;
}

bool Network::may_go_plain(const int peer, const std::size_t length) {
    const std::uint32_t id = ipc::slot_of_length(length);
    const std::scoped_lock lock(_mutex);
    Sending& sending = _sending[peer];
    if (has(sending.plain, id)) {
        return true;
    }
    if (has(sending.under_way, id)) {
        return false;
    }
    if (sending.ready) {
        int used_up = 0, unusable = 0;
        for (std::size_t word = 0; word < sending.plain.size(); ++word) {
            used_up += std::popcount(sending.plain[word]);
            unusable += std::popcount(sending.plain[word] | sending.under_way[word]);
        }
        constexpr int kAll = static_cast<int>(ipc::kSlots);
        if (kAll - used_up <= kUnusedLengths && kAll - unusable > kUnusedLengths / 2) {
            return false;
        }
    }
    mark_length_used(peer, sending, id);
    return true;
}

void Network::mark_length_used(const int peer, Sending& sending, const std::uint32_t id) {
    set(sending.plain, id);
    if (sending.asked) {
        Notice notice{};
        notice.kind = Notice::plain;
        notice.id = id;
        tell(peer, notice);
    }
}

std::shared_ptr<ipc::OutgoingMessage> Network::wrap(const int peer, const void* const packed, const std::size_t bytes) {
    poll();
    std::shared_ptr<PipelinedSend> send;
    {
        const std::scoped_lock lock(_mutex);
        send = make(peer, {static_cast<std::byte*>(const_cast<void*>(packed)), kHost, bytes, nullptr}, bytes);
        const std::uint32_t id = ipc::slot_of_length(bytes);
        if (Sending& sending = _sending[peer]; send == nullptr && !has(sending.under_way, id)) {
            mark_length_used(peer, sending, id);
        }
        // When all ids are in use, including this length's, the message goes plain all the same. A probe that finds one
        // of the two takes it for the other, but a receive takes each for what it is.
    }
    if (send != nullptr) {
        try {
            send->copy_out();
        } catch (const Error&) {
            send->withdraw();
            throw;
        }
    }
    return send;
}

bool Network::begins_like_rts(const std::byte* const message) const noexcept {
    std::uint64_t first = 0;
    std::memcpy(&first, message, sizeof first);
    return first == kMagic;
}

bool Network::is_rts(const std::byte* const message, const std::size_t length) const noexcept {
    if (length < sizeof(Rts) || length > ipc::kLongestRts) {
        return false;
    }
    Rts rts{};
    std::memcpy(&rts, message, sizeof rts);
    return rts.magic == kMagic && rts.secret == _secret;
}

std::shared_ptr<ipc::IncomingMessage> Network::start_receive(const std::byte* const message, const std::size_t length,
                                                             const ipc::Buffer& into) {
    Rts rts{};
    std::memcpy(&rts, message, sizeof rts);
    if (!ipc::is_rts_length(length) || rts.id != ipc::slot_of_length(length) ||
        rts.sender >= static_cast<std::uint32_t>(_size) || rts.bytes == 0 || rts.fragment_bytes == 0 ||
        rts.fragment_bytes > kMostFragmentBytes || !_has_gpu.load(std::memory_order_acquire)) {
        return nullptr;
    }
    const int peer = static_cast<int>(rts.sender);
    const std::scoped_lock lock(_mutex);
    Receiving& receiving = _receiving[peer];
    Receiving::Announced& announced = receiving.announced[rts.id];
    if (rts.generation <= announced.taken) {
        return nullptr;
    }
    announced.taken = rts.generation;
    auto fetch = std::make_shared<PipelinedRecv>(*this, receiving.flow, peer, rts.id, rts.bytes, rts.fragment_bytes,
                                                 into, receiving.fetching);
    // Holds the lock, so that the sender hears of messages in the order in which they stand in line here.
    receiving.flow.join(rts.id, true);
    Notice notice{};
    notice.kind = Notice::come;
    notice.id = rts.id;
    tell(peer, notice);
    return fetch;
}

ipc::TrueSize Network::size_of(const int peer, const std::size_t length) const noexcept {
    const std::uint32_t id = ipc::slot_of_length(length);
    const std::scoped_lock lock(_mutex);
    ipc::TrueSize size;
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

// ---- for sends and receives -----------------------------------------------------------------------------------------

void Network::send_fragment(const int peer, const std::uint32_t id, Fragment& fragment) {
    fragment.traced.begin(trace::Kind::background, "fragment sent", fragment.bytes, -1, peer);
    if (_native.Isend(fragment.place, static_cast<int>(fragment.bytes), MPI_BYTE, peer, fragment_tag(id), _comm,
                      &fragment.request) != MPI_SUCCESS) {
        throw Error("the MPI refused part of a message to rank " + std::to_string(peer) + " of MPI_COMM_WORLD",
                    "look at the MPI's own messages; AWAKEN_NODES=0 sends each message as a whole");
    }
}

void Network::receive_fragment(const int peer, const std::uint32_t id, Fragment& fragment) {
    fragment.traced.begin(trace::Kind::background, "fragment received", fragment.bytes, -1, peer);
    const int bytes = fragment.place != nullptr ? static_cast<int>(fragment.bytes) : 0;
    if (_native.Irecv(fragment.place, bytes, MPI_BYTE, peer, fragment_tag(id), _comm, &fragment.request) !=
        MPI_SUCCESS) {
        throw Error("the MPI refused part of a message from rank " + std::to_string(peer) + " of MPI_COMM_WORLD",
                    "look at the MPI's own messages; AWAKEN_NODES=0 sends each message as a whole");
    }
}

bool Network::is_complete(Fragment& fragment, MPI_Status& status) const {
    int done = 0;
    if (_native.Test(&fragment.request, &done, &status) != MPI_SUCCESS) {
        if (fragment.place == nullptr) {
            return true;  // the message was longer than this receive, as intended
        }
        throw Error("the MPI could not carry part of a message between nodes",
                    "look at the MPI's own messages; AWAKEN_NODES=0 sends each message as a whole");
    }
    if (done != 0) {
        fragment.traced.end();
    }
    return done != 0;
}

void Network::keep(std::deque<Fragment> fragments) noexcept {
    if (fragments.empty()) {
        return;
    }
    const std::scoped_lock lock(_mutex);
    for (Fragment& fragment : fragments) {
        _left_bytes += fragment.bytes;
        _left.push_back(std::move(fragment));
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
        // The sender goes on without this id.
    }
}

DeviceCopies::End Network::end_of(const Fragment& fragment) const noexcept {
    return {fragment.place, fragment.block.pinned() ? nullptr : &kHost};
}

int Network::device_for(const gpu::PointerInfo& info) const noexcept {
    int device = info.device;
    if (device < 0) {
        device = _runtime->device_to_use();
    }
    return device;
}

}  // namespace awaken::AWAKEN_ABI
