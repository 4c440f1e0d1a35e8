// SPDX-License-Identifier: Apache-2.0
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

/// Notices travel on tag 0, the fragments of message `id` on tag 1 + id.
constexpr int kNoticeTag = 0;
constexpr int fragment_tag(const std::uint32_t id) noexcept {
    return static_cast<int>(id) + 1;
}

constexpr std::uint64_t kMagic = 0x6177616b656e4e31;

/// The duplicate of MPI_COMM_WORLD is there as soon as all ranks have left MPI_Init. The layer waits for it a moment,
/// because some MPIs may mix up the steps of a duplication that is under way with those of the program's own. A rank
/// without the layer never takes part, so the layer waits no longer than a program can spare in vain.
constexpr std::chrono::seconds kAtStart{1};
constexpr std::chrono::seconds kAtEnd{30};

/// Bytes that the MPI may have before their receivers come for them. Beyond that, messages are staged whole, and a
/// sender waits as long as the MPI makes it wait.
constexpr std::size_t kMostSent = std::size_t{1} << 30;

/// Ids that are kept for wrapped messages, since these have no other way.
constexpr std::uint32_t kKeptBack = 32;

/// Programs that send messages of every length (serialised objects) would use up one id after another. When only this
/// many unused ids are left, such messages are wrapped, which costs them more. A flood of them, which would use up the
/// rest of the ids, is not wrapped.
constexpr int kUnusedLengths = 96;

constexpr std::size_t kMostFragmentBytes = std::size_t{1} << 30;  // an int counts its bytes

/// Fragments of all messages from one process to another that are under way at once. Between two pretended nodes of
/// H200s 256 MiB pass at 9.5 GB/s, with 2 at 9.0, with 8 at 9.2, with 16 at 7.2.
constexpr std::size_t kWindow = 4;

const gpu::PointerInfo kHost{};

Error failed(const std::string& cause) {
    return {cause, "look at the MPI's own messages; AWAKEN_NODES=0 sends each message as a whole"};
}
Error out_of_memory(const char* const when) {
    return {std::string("out of host memory while a message was ") + when, "free memory, or send smaller messages"};
}

}  // namespace

// ---- fragments under way -------------------------------------------------------------------------------------------

Flow::Share Flow::begin() noexcept {
    if (_count.fetch_add(1) == 0) {
        _progress.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
    }
    return Share(this);
}

void Flow::Ended::operator()(Flow* const flow) const noexcept {
    flow->_progress.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
    flow->_count.fetch_sub(1);
}

Flow::Clock::duration Flow::stands_still() const noexcept {
    const Clock::time_point progress{Clock::duration(_progress.load(std::memory_order_acquire))};
    return count() != 0 ? Clock::now() - progress : Clock::duration::zero();
}

// ---- sending a message ----------------------------------------------------------------------------------------------

PipelinedSend::PipelinedSend(Network& network, Flow& flow, const int peer, const std::uint32_t id,
                             const transport::Buffer& from, const std::size_t fragment_bytes)
    : _network(network), _flow(flow), _peer(peer), _id(id), _from(from), _fragment_bytes(fragment_bytes) {}

PipelinedSend::~PipelinedSend() {
    lose();  // the destructors of the fragments wait for their copies
}

void PipelinedSend::copy_fragment(const bool pinned) {
    transfer::PinnedPool& pool = _network._pool;
    Fragment fragment;
    fragment.share = _flow.begin();
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
}

/// Starts to copy the next fragment if it may be under way now. A network that carries bytes is kept busy by a few. A
/// receiver that takes none is late, and gets what the pool can spare: a quarter is left, since bytes on their way to
/// ordinary memory pass through pinned blocks as well.
bool PipelinedSend::start_fragment() {
    constexpr std::chrono::microseconds kLate{100};
    const transfer::PinnedPool& pool = _network._pool;
    const std::size_t under_way = _flow.count();
    if (under_way < kWindow) {
        copy_fragment(true);
        return true;
    }
    const Flow::Clock::duration still = _flow.stands_still();
    const bool spare = still > kLate && under_way * _fragment_bytes < pool.limit_bytes() / 2 &&
                       pool.spare_bytes() >= pool.limit_bytes() / 4 + _fragment_bytes;
    if (spare || still > _network._tuning.large_watch) {
        copy_fragment(spare);
        return true;
    }
    return false;
}

/// Does what can be done now.
void PipelinedSend::step() {
    while (!_fragments.empty() && _fragments.front().copy.poll() && _posted) {
        _network.send_fragment(_peer, _id, _fragments.front());
        _network.keep(std::move(_fragments.front()));
        _fragments.pop_front();
    }
    while (_started < _from.bytes && start_fragment()) {
    }
    _network.poll();
}

void PipelinedSend::copy_out() {
    const transfer::PinnedPool& pool = _network._pool;
    while (_started < _from.bytes) {
        copy_fragment(pool.spare_bytes() >= pool.limit_bytes() / 4 + _fragment_bytes);
    }
    for (Fragment& fragment : _fragments) {
        while (!fragment.copy.poll()) {
            _network.tick();
        }
    }
}

void PipelinedSend::posted(const bool /*waits*/) noexcept {
    _posted = true;
    if (_error) {
        lose();
        return;
    }
    try {
        static_cast<void>(advance(transport::Patience::endless));
    } catch (const Error&) {
        // advance() throws the error.
    }
}

void PipelinedSend::withdraw() noexcept {
    _free = true;
    _network.give_back(_peer, _id);
}

void PipelinedSend::fail(Error error) noexcept {
    _error = std::move(error);
    lose();
}

bool PipelinedSend::advance(const transport::Patience /*patience*/) {
    if (_error) {
        throw *_error;
    }
    if (_free) {
        return true;
    }
    try {
        step();
    } catch (const Error& error) {
        fail(error);
        throw;
    } catch (const std::bad_alloc&) {
        fail(out_of_memory("sent"));
        throw *_error;
    }
    _free = _posted && _started == _from.bytes && _fragments.empty();
    return _free;
}

/// The receiver waits for a fragment that will not come. A fragment without content tells it so.
void PipelinedSend::lose() noexcept {
    if (!_posted || std::exchange(_free, true)) {
        return;
    }
    _fragments.clear();
    try {
        Fragment nothing;
        _network.send_fragment(_peer, _id, nothing);
        _network.keep(std::move(nothing));
    } catch (const std::exception&) {
        // The MPI has failed, and tells the receiver so.
    }
}

// ---- receiving a message --------------------------------------------------------------------------------------------

PipelinedRecv::PipelinedRecv(Network& network, Flow& flow, const int peer, const std::uint32_t id,
                             const std::size_t size, const std::size_t fragment_bytes, const transport::Buffer& into)
    : _network(network),
      _flow(flow),
      _peer(peer),
      _id(id),
      _size(size),
      _fragment_bytes(fragment_bytes),
      _into(into),
      _wanted(std::min(size, into.bytes)) {
    _network._fetching.fetch_add(1);
}

void PipelinedRecv::end() noexcept {
    if (!std::exchange(_over, true)) {
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

void PipelinedRecv::receive_fragment() {
    Fragment fragment;
    fragment.share = _flow.begin();
    fragment.at = _asked_for;
    fragment.bytes = std::min(_fragment_bytes, _size - _asked_for);
    if (_into.info.host_accessible() && fragment.at + fragment.bytes <= _wanted) {
        fragment.place = _into.first + fragment.at;
    } else if (!_error) {
        try {
            fragment.block = _network._pool.acquire(*_network._runtime, fragment.bytes);
            fragment.place = fragment.block.data();
        } catch (const std::exception&) {
            _error = out_of_memory("received");
        }
    }
    _network.receive_fragment(_peer, _id, fragment);
    _asked_for += fragment.bytes;
    _receiving.push_back(std::move(fragment));
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
    // Each message may receive one fragment at any time, so that none waits for another.
    while (_asked_for < _size && (_receiving.empty() || _flow.count() < kWindow)) {
        receive_fragment();
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
        _error = out_of_memory("received");
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
        duplicated();
    }
}

void Network::duplicated() {
    _native.Comm_set_errhandler(_comm, MPI_ERRORS_RETURN);
    _usable.store(true, std::memory_order_release);
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
                         "awaken: rank %d waits for the other ranks to catch up. If some of them run "
                         "without Awaken, set AWAKEN_NODES=0\n",
                         _rank);
        }
    }
    if (!_alone) {
        duplicated();
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
    while (!_sent.empty() || !_outgoing.empty()) {
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
    }
}

/// Asks about a few in turn: receivers that are late may have left hundreds.
void Network::complete_sent() {
    constexpr std::size_t kAtATime = 8;
    MPI_Status ignored{};
    for (std::size_t turn = std::min(kAtATime, _sent.size()); turn != 0; --turn) {
        Fragment fragment = std::move(_sent.front());
        _sent.pop_front();
        _sent_bytes -= fragment.bytes;  // also where the MPI has failed: nothing more is to be had from it
        if (!is_complete(fragment, ignored)) {
            _sent_bytes += fragment.bytes;
            _sent.push_back(std::move(fragment));
        }
    }
}

void Network::hear(const int peer, const Notice& notice) {
    if (notice.id >= transport::kSlots) {
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
        case Notice::taken:
            clear(_sending[peer].under_way, notice.id);
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
        Notice notice{.kind = Notice::ready};
        std::copy(_secret.begin(), _secret.end(), notice.words.begin());
        receiving.answered = true;
        tell(peer, notice);
    }
}

void Network::look() {
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
    }
    answer();
    complete_outgoing();
    complete_sent();
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
            duplicated();
        }
        look();
    } catch (const std::exception&) {
        // There is no memory: a process whose notice was lost gets no answer, and goes on as without one. Or the MPI
        // could not carry a fragment that its sender is done with; the MPI tells the receiver so.
    }
    return true;
}

// ---- messages -------------------------------------------------------------------------------------------------------

std::shared_ptr<PipelinedSend> Network::make(const int peer, const transport::Buffer& from,
                                             const std::size_t fragment_bytes) {
    Sending& sending = _sending[peer];
    const bool wrapped = from.info.kind == gpu::MemoryKind::host;
    const std::uint32_t first = wrapped ? 0 : kKeptBack;
    std::optional<std::uint32_t> free;
    // Takes the ids in turn, so that an id is used again as late as possible.
    for (std::uint32_t tried = 0; tried < transport::kSlots && !free; ++tried) {
        const std::uint32_t id = (sending.next + tried) % transport::kSlots;
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
    tell(peer, {.kind = Notice::announce, .id = *free, .bytes = from.bytes, .generation = sending.generation});
    const Rts rts{kMagic,         sending.secret,    static_cast<std::uint32_t>(_rank), *free, from.bytes,
                  fragment_bytes, sending.generation};
    std::memcpy(send->_message.data(), &rts, sizeof rts);
    return send;
}

void Network::describe(const int /*peer*/, const gpu::PointerInfo& /*memory*/, protocol::SendFacts& facts) noexcept {
    facts.receiver = protocol::SendFacts::Receiver::on_other_node;
}

std::shared_ptr<transport::OutgoingMessage> Network::start_send(const int peer, const transport::Buffer& from,
                                                                const protocol::SendPaths& paths) {
    if (paths.begin() == paths.end() || *paths.begin() != protocol::SendPath::pipelined ||
        !_has_gpu.load(std::memory_order_acquire) || passes_through()) {
        return nullptr;
    }
    poll();
    std::shared_ptr<PipelinedSend> send;
    {
        const std::scoped_lock lock(_mutex);
        if (!_usable.load(std::memory_order_acquire) || _sent_bytes > kMostSent) {
            return nullptr;
        }
        Sending& sending = _sending[peer];
        if (!sending.asked) {
            sending.asked = true;
            tell(peer, {.kind = Notice::query, .words = sending.plain});
        }
        if (!sending.ready) {
            return nullptr;
        }
        send = make(peer, from, _tuning.network_fragment_bytes);
    }
    // Copies the first fragments while the RTS travels.
    return begun(std::move(send), &PipelinedSend::step);
}

std::shared_ptr<PipelinedSend> Network::begun(std::shared_ptr<PipelinedSend> send, void (PipelinedSend::*begin)()) {
    if (send != nullptr) {
        try {
            (*send.*begin)();
        } catch (const Error&) {
            send->withdraw();
            throw;
        }
    }
    return send;
}

std::shared_ptr<transport::OutgoingMessage> Network::start_failed(const int peer, const std::size_t bytes,
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
    const std::uint32_t id = transport::slot_of_length(length);
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
        constexpr int kAll = static_cast<int>(transport::kSlots);
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
        tell(peer, {.kind = Notice::plain, .id = id});
    }
}

std::shared_ptr<transport::OutgoingMessage> Network::wrap(const int peer, const void* const packed,
                                                          const std::size_t bytes) {
    poll();
    std::shared_ptr<PipelinedSend> send;
    {
        const std::scoped_lock lock(_mutex);
        send = make(peer, {static_cast<std::byte*>(const_cast<void*>(packed)), kHost, bytes, nullptr}, bytes);
        const std::uint32_t id = transport::slot_of_length(bytes);
        if (Sending& sending = _sending[peer]; send == nullptr && !has(sending.under_way, id)) {
            mark_length_used(peer, sending, id);
        }
        // When all ids are in use, including this length's, the message goes plain all the same. A probe that finds one
        // of the two takes it for the other, but a receive takes each for what it is.
    }
    return begun(std::move(send), &PipelinedSend::copy_out);
}

bool Network::begins_like_rts(const std::byte* const message) const noexcept {
    std::uint64_t first = 0;
    std::memcpy(&first, message, sizeof first);
    return first == kMagic;
}

bool Network::is_rts(const std::byte* const message, const std::size_t length) const noexcept {
    if (length < sizeof(Rts) || length > transport::kLongestRts) {
        return false;
    }
    Rts rts{};
    std::memcpy(&rts, message, sizeof rts);
    return rts.magic == kMagic && rts.secret == _secret;
}

std::shared_ptr<transport::IncomingMessage> Network::start_receive(const std::byte* const message,
                                                                   const std::size_t length,
                                                                   const transport::Buffer& into) {
    Rts rts{};
    std::memcpy(&rts, message, sizeof rts);
    if (!transport::is_rts_length(length) || rts.id != transport::slot_of_length(length) ||
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
    return std::make_shared<PipelinedRecv>(*this, receiving.flow, peer, rts.id, rts.bytes, rts.fragment_bytes, into);
}

transport::TrueSize Network::size_of(const int peer, const std::size_t length) const noexcept {
    const std::uint32_t id = transport::slot_of_length(length);
    const std::scoped_lock lock(_mutex);
    transport::TrueSize size;
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
        throw failed("the MPI refused part of a message to rank " + std::to_string(peer) + " of MPI_COMM_WORLD");
    }
}

void Network::receive_fragment(const int peer, const std::uint32_t id, Fragment& fragment) {
    fragment.traced.begin(trace::Kind::background, "fragment received", fragment.bytes, -1, peer);
    const int bytes = fragment.place != nullptr ? static_cast<int>(fragment.bytes) : 0;
    if (_native.Irecv(fragment.place, bytes, MPI_BYTE, peer, fragment_tag(id), _comm, &fragment.request) !=
        MPI_SUCCESS) {
        throw failed("the MPI refused part of a message from rank " + std::to_string(peer) + " of MPI_COMM_WORLD");
    }
}

bool Network::is_complete(Fragment& fragment, MPI_Status& status) const {
    int done = 0;
    if (_native.Test(&fragment.request, &done, &status) != MPI_SUCCESS) {
        if (fragment.place == nullptr) {
            return true;  // the message was longer than this receive, as intended
        }
        throw failed("the MPI could not carry part of a message between nodes");
    }
    if (done != 0) {
        fragment.traced.end();
    }
    return done != 0;
}

void Network::keep(Fragment fragment) noexcept {
    const std::scoped_lock lock(_mutex);
    _sent_bytes += fragment.bytes;
    _sent.push_back(std::move(fragment));
}

void Network::give_back(const int peer, const std::uint32_t id) noexcept {
    const std::scoped_lock lock(_mutex);
    clear(_sending[peer].under_way, id);
}

void Network::taken(const int peer, const std::uint32_t id) noexcept {
    const std::scoped_lock lock(_mutex);
    try {
        tell(peer, {.kind = Notice::taken, .id = id});
    } catch (const std::bad_alloc&) {
        // The sender goes on without this id.
    }
}

DeviceCopies::End Network::end_of(const Fragment& fragment) const noexcept {
    return {fragment.place, fragment.block.pinned() ? nullptr : &kHost};
}

int Network::device_for(const gpu::PointerInfo& info) const noexcept {
    return info.device >= 0 ? info.device : _runtime->device_to_use();
}

}  // namespace awaken::AWAKEN_ABI
