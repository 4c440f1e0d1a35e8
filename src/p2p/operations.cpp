#include "p2p/operations.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "base/step_probe.h"
#include "call/progress.h"

namespace awaken::AWAKEN_ABI {

using ipc::Route;

namespace {

/// Receives up to this size get a bounce buffer in pinned memory, so that the CPU need not copy a plain message again.
constexpr std::int64_t kPinnedBounce = 64 << 10;
/// From another node larger messages come plain, too.
constexpr std::int64_t kPinnedBounceFromElsewhere = 256 << 10;
/// How long, and at least how many times, a probe looks for what a sender on another node has announced. The sender
/// announces a message before it sends it, so the probe usually finds the announcement at once. Two messages have none:
/// one that was sent past the layer (by a tool that calls the MPI itself), and one sent when all ids were in use. Time
/// alone does not count: the thread may not get a processor, or another thread may be reading the announcements.
constexpr std::chrono::milliseconds kTold{50};
constexpr int kLooks = 1000;
/// These first bytes are cleared, so that no part of an earlier RTS is left.
constexpr std::size_t kCleared = 64;

report::Path path_of(const Route route) noexcept {
    switch (route) {
        case Route::pull:
            return report::Path::direct;
        case Route::copy:
        case Route::by_cpu:
            return report::Path::copied;
        case Route::ring:
            break;
    }
    return report::Path::ring;
}

/// Counts the bytes for the call under way, which delivers them.
void account(const report::Path path, const std::int64_t bytes) noexcept {
    if (Call::current != nullptr) {
        Call::current->account(path, bytes);
    }
}

/// The buffer in the form for code that moves datatypes with gaps; null when it is one run of bytes.
std::shared_ptr<const transfer::TypedMemory> memory_with_gaps(const Stage::Located& located, const void* const buffer,
                                                              const std::int64_t count) {
    return located.type->layout.is_contiguous(count) ? nullptr : located.type->memory(buffer, count);
}

/// True when the MPI gets this device memory directly. This holds only for memory that `awaken doctor` tries: one run
/// of bytes, allocated in the ordinary way. Not every MPI knows other memory, and for datatypes with gaps our kernel
/// packs faster than an MPI that copies block by block. The MPI, and even more the network card, reads and writes at
/// once, so all work that the program's seemingly synchronous calls left behind must be over.
bool is_for_the_mpi(const Stage::Located& located, const void* const buffer, const std::int64_t count) {
    if (!located.served || located.mixed || located.info.kind != gpu::MemoryKind::device || !located.info.ipc_capable ||
        !located.type->layout.is_contiguous(count)) {
        return false;
    }
    Layer& owner = layer();
    return owner.native_gpu.works() && owner.gpu().order_after_default_stream(buffer, located.info).ok() &&
           owner.gpu().finish_default_stream(located.info.device).ok();
}

}  // namespace

BytesType::BytesType(const std::int64_t bytes) {
    const Native& native = layer().real;
    constexpr std::int64_t kChunk = std::int64_t{1} << 30;
    MPI_Datatype fragment = MPI_DATATYPE_NULL, fragments = MPI_DATATYPE_NULL;
    native.Type_contiguous(static_cast<int>(kChunk), MPI_BYTE, &fragment);
    native.Type_contiguous(static_cast<int>(bytes / kChunk), fragment, &fragments);
    int lengths[] = {1, static_cast<int>(bytes % kChunk)};
    MPI_Aint places[] = {0, static_cast<MPI_Aint>(bytes / kChunk * kChunk)};
    MPI_Datatype types[] = {fragments, MPI_BYTE};
    native.Type_create_struct(2, lengths, places, types, &_type);
    native.Type_commit(&_type);
    native.Type_free(&fragment);
    native.Type_free(&fragments);
}

BytesType::~BytesType() {
    layer().real.Type_free(&_type);
}

// ---- sending --------------------------------------------------------------------------------------------------------

Posted SendOperation::rts() const noexcept {
    const std::byte* const first = _rendezvous_send != nullptr ? _rendezvous_send->rts() : _remote->rts();
    const std::size_t length = _rendezvous_send != nullptr ? _rendezvous_send->rts_length() : _remote->rts_length();
    return {const_cast<std::byte*>(first), static_cast<std::int64_t>(length), MPI_BYTE};
}

bool SendOperation::offer(const Mode mode, const void* const buffer, const std::int64_t count,
                          const Stage::Located& located, const int peer) {
    const transfer::Layout& layout = located.type->layout;
    if (located.mixed) {
        return false;
    }
    auto* const first = static_cast<std::byte*>(const_cast<void*>(buffer)) + layout.span(count).begin;
    try {
        _rendezvous_send = layer().node_peers.link()->start_send(
            peer, first, located.info, static_cast<std::size_t>(count * layout.size()), mode == Mode::detached,
            memory_with_gaps(located, buffer, count));
    } catch (const ipc::BeyondAllocation& error) {
        throw ClassedError(MPI_ERR_BUFFER, error.cause(), error.remedy());
    }
    if (_rendezvous_send != nullptr && mode == Mode::detached) {
        try {
            while (!_rendezvous_send->advance(RendezvousSend::Patience::endless)) {
            }
        } catch (const Error&) {
            _rendezvous_send->withdraw();  // its RTS has not been sent yet
            _rendezvous_send.reset();
            throw;
        }
    }
    return _rendezvous_send != nullptr;
}

bool SendOperation::offer_remote(const Mode mode, const void* const buffer, const std::int64_t count,
                                 const Stage::Located& located, const int remote) {
    const transfer::Layout& layout = located.type->layout;
    if (located.mixed) {
        return false;
    }
    _remote = layer().node_peers.network()->start_send(
        remote, static_cast<const std::byte*>(buffer) + layout.span(count).begin, located.info,
        static_cast<std::size_t>(count * layout.size()), memory_with_gaps(located, buffer, count));
    if (_remote != nullptr && mode == Mode::detached) {
        _remote->copy_out();
    }
    return _remote != nullptr;
}

bool SendOperation::wrap(const int peer, const int remote, const void* const packed, const std::int64_t bytes) {
    if (peer >= 0) {
        _rendezvous_send = layer().node_peers.link()->wrap(peer, packed, static_cast<std::size_t>(bytes));
        return _rendezvous_send != nullptr;
    }
    _remote = layer().node_peers.network()->wrap(remote, packed, static_cast<std::size_t>(bytes));
    return _remote != nullptr;
}

Posted SendOperation::prepare(const Mode mode, const void* const buffer, const std::int64_t count,
                              const MPI_Datatype type, const int destination, const MPI_Comm communicator) {
    AWAKEN_STEP("Isend: prepare");
    const Posted unchanged{const_cast<void*>(buffer), count, type};
    if (destination == MPI_PROC_NULL) {
        return unchanged;
    }
    Layer& owner = layer();
    Stage::Located located = _stage.locate(buffer, count, type);
    ipc::Link* const link = owner.node_peers.link();
    Network* const network = owner.node_peers.network();
    int peer = -1, remote = -1;
    std::int64_t bytes = 0;
    if (located.type != nullptr) {
        bytes = count * located.type->layout.size();
    } else if (network != nullptr ||
               (owner.node_peers.joined() && (count & 1) != 0 && count <= std::int64_t{ipc::kLongestRts})) {
        bytes = bytes_of(owner.real, count, type);  // the length of an RTS is odd, so the count must be odd, too
    }
    // A host message matters in two cases: it is so large that a receiver in device memory may fetch it, or it has the
    // length of an RTS.
    bool offers = located.served && mode != Mode::plain;
    const bool may_offer = !offers && mode == Mode::offered && link != nullptr && located.type != nullptr &&
                           !located.served && bytes >= link->least_from_host() &&
                           located.type->layout.is_contiguous(count);
    if (link != nullptr && located.type != nullptr &&
        (located.served || may_offer || ipc::is_rts_length(static_cast<std::size_t>(bytes)))) {
        peer = owner.node_peers.index_of(communicator, destination);
        if (peer >= 0 && !link->takes_rts(peer)) {
            // The receiver may be about to find its GPU runtime, as this process just has.
            owner.receive_readiness.say_when_ready();
            if (!offers || !link->wait_for_rts(peer)) {
                peer = -1;
            }
        }
        offers = offers || (may_offer && peer >= 0 && link->wants_from_host(peer, bytes));
    }
    if (peer >= 0 && offers && offer(mode, buffer, count, located, peer)) {
        _call->account(path_of(_rendezvous_send->route()), bytes);
        return rts();
    }
    bool ambiguous = ipc::is_rts_length(static_cast<std::size_t>(bytes));
    if (network != nullptr && (located.served || ambiguous)) {
        remote = owner.node_peers.remote_of(communicator, destination);
    }
    if (remote >= 0 && located.served && mode != Mode::plain && offer_remote(mode, buffer, count, located, remote)) {
        _call->account(report::Path::pipelined, bytes);
        return rts();
    }
    // To another node, a message that the layer does not look at counts too: a probe may find it after RTS messages
    // have begun.
    ambiguous =
        ambiguous && (peer >= 0 || (remote >= 0 && !network->may_go_plain(remote, static_cast<std::size_t>(bytes))));
    // The MPI's CPU copies buffered sends, and the program is about to overwrite the buffer of a detached send.
    if (!ambiguous && mode == Mode::offered && is_for_the_mpi(located, buffer, count)) {
        if (ipc::is_rts_length(static_cast<std::size_t>(bytes))) {
            owner.node_peers.sent_plain(communicator, destination, static_cast<std::size_t>(bytes));
        }
        owner.ledger.add_fallback(_call->name(), "passed through: the MPI takes device memory itself");
        _call->account(report::Path::native, bytes);
        return unchanged;
    }
    if (!located.served) {
        if (ambiguous && located.type != nullptr) {
            std::array<std::byte, ipc::kLongestRts> packed;
            transfer::pack(located.type->layout, buffer, count, packed.data(), bytes);
            if (wrap(peer, remote, packed.data(), bytes)) {
                _call->account(report::Path::native, bytes);
                return rts();
            }
        }
        if (ipc::is_rts_length(static_cast<std::size_t>(bytes))) {
            owner.node_peers.sent_plain(communicator, destination, static_cast<std::size_t>(bytes));
        }
        _stage.account_native(count, type);
        if (mode == Mode::detached && located.type != nullptr) {
            _copy.resize(static_cast<std::size_t>(bytes));
            transfer::pack(located.type->layout, buffer, count, _copy.data(), bytes);
            return {_copy.data(), count, located.type->packed};
        }
        return unchanged;
    }
    if (link != nullptr && owner.settings.report && mode != Mode::plain && peer < 0) {
        const bool near = owner.node_peers.index_of(communicator, destination) >= 0;
        owner.ledger.add_fallback(_call->name(),
                                  near ? "staged: the receiver uses no GPU yet, or has receives of before its first use"
                                       : "staged: the receiver is on another node, of another job, or without Awaken");
    }
    const Argument<std::int64_t> staged = _stage.buffer(Access::in, buffer, count, type, std::move(located));
    _stage.load();
    if (ambiguous && wrap(peer, remote, _stage.packed(), bytes)) {
        _stage.release();
        return rts();
    }
    if (ipc::is_rts_length(static_cast<std::size_t>(bytes))) {
        owner.node_peers.sent_plain(communicator, destination, static_cast<std::size_t>(bytes));
    }
    return {staged.address, staged.count, staged.type};
}

void SendOperation::posted(const int error, const bool waits) {
    AWAKEN_STEP("Isend: posted");
    _posted = true;
    if (_remote != nullptr) {
        if (error != MPI_SUCCESS) {
            _remote->withdraw();
            _remote.reset();
        } else {
            _remote->posted();
        }
        return;
    }
    if (_rendezvous_send == nullptr) {
        return;
    }
    if (error != MPI_SUCCESS) {
        _rendezvous_send->withdraw();
        _rendezvous_send.reset();
        return;
    }
    if (waits) {
        _rendezvous_send->wait_until_ready();
    } else {
        layer().node_peers.link()->wait_in_turn(_rendezvous_send);
    }
    if (_rendezvous_send->wants_background()) {
        // A ring or a copy that has begun goes on after the native function of a blocking send has returned, or after
        // the program has left a nonblocking send to itself.
        static_cast<void>(_rendezvous_send->pump());
    }
}

bool SendOperation::advance(const RendezvousSend::Patience patience) {
    if (_native_request != MPI_REQUEST_NULL) {
        int done = 0;
        if (const int error = layer().real.Test(&_native_request, &done, MPI_STATUS_IGNORE); error != MPI_SUCCESS) {
            _native_request = MPI_REQUEST_NULL;
            throw Error("the send of a combined send and receive failed", "see the error of the MPI before this one");
        }
        if (done == 0) {
            return false;
        }
    }
    return (_rendezvous_send == nullptr || _rendezvous_send->advance(patience)) &&
           (_remote == nullptr || _remote->advance(patience != RendezvousSend::Patience::endless));
}

void SendOperation::send_fragments() noexcept {
    if (_remote != nullptr) {
        _remote->try_to_advance(true);
    }
}

void SendOperation::finish() {
    if (!progressing()) {
        return;
    }
    WaitLoop waiting;
    while (!advance(RendezvousSend::Patience::short_)) {
        waiting.turn();
    }
}

void SendOperation::leave() {
    if (_rendezvous_send != nullptr && !_left) {
        _left = true;
        layer().node_peers.link()->leave(_rendezvous_send);
    }
    if (_remote != nullptr) {
        _remote->leave();
    }
}

bool SendOperation::flush_to_native() {
    leave();
    return _remote == nullptr || _remote->flush_to_native();
}

void SendOperation::end() {
    if (!_posted) {
        posted(MPI_ERR_OTHER);  // something failed before the RTS was sent: no receiver will fetch the message
    }
    _remote.reset();
    if (_rendezvous_send != nullptr) {
        layer().node_peers.link()->retire(std::move(_rendezvous_send));
    }
    _stage.release();
}

// ---- receiving ------------------------------------------------------------------------------------------------------

/// More bytes than an int can count become one element of a type made for them.
Posted RecvOperation::as_bytes(void* const address, const std::int64_t bytes) {
    if (bytes <= std::numeric_limits<int>::max()) {
        return {address, bytes, MPI_BYTE};
    }
    _bytes_type = std::make_shared<BytesType>(bytes);
    return {address, 1, _bytes_type->get()};
}

Posted RecvOperation::prepare(const bool rts, void* const buffer, const std::int64_t count, const MPI_Datatype type,
                              const int source, const MPI_Comm communicator) {
    AWAKEN_STEP("Irecv: prepare");
    Layer& owner = layer();
    _communicator = communicator;
    _located = _stage.locate(buffer, count, type);
    const Posted unchanged{buffer, count, type};
    // RTS messages come from processes of this node. Processes of other nodes send them only to a process that has said
    // that it takes them. A process whose MPI takes device memory never says so (Network::answer). So if the sender is
    // on another node, the MPI may get the buffer. A receive from any source may meet an RTS.
    _near = _located.served ? owner.node_peers.index_of(communicator, source) : -1;
    const bool from_elsewhere = source >= 0 && _near < 0;
    if ((!rts || from_elsewhere) && is_for_the_mpi(_located, buffer, count)) {
        owner.ledger.add_fallback(_call->name(), "passed through: the MPI takes device memory itself");
        _stage.account_native(count, type);
        return unchanged;
    }
    if (!rts) {
        if (!_located.served) {
            _stage.account_native(count, type);
            return unchanged;
        }
        _receiving = Receiving::staged;
        const Argument<std::int64_t> staged = _stage.buffer(Access::out, buffer, count, type, std::move(_located));
        return {staged.address, staged.count, staged.type};
    }
    _user = static_cast<std::byte*>(buffer);
    _count = count;
    const auto make_head = [this] {
        _head = std::make_unique_for_overwrite<std::array<std::byte, ipc::kLongestRts>>();
    };
    if (_located.type == nullptr) {
        // Nothing fits into the buffer, or the arguments are wrong and the MPI reports that. No sender sends an RTS for
        // zero bytes. An RTS for more bytes may arrive, and is a truncated message.
        if (count != 0 || type == MPI_DATATYPE_NULL) {
            return unchanged;
        }
        _receiving = Receiving::small;
        make_head();
        std::memset(_head->data(), 0, kCleared);
        return as_bytes(_head->data(), ipc::kLongestRts);
    }
    const transfer::Layout& layout = _located.type->layout;
    _capacity = count * layout.size();
    const bool one_run = !_located.mixed && layout.is_contiguous(count);
    _first = one_run ? _user + layout.true_begin() : nullptr;
    constexpr auto kHeader = static_cast<std::int64_t>(ipc::kLongestRts);
    if (_located.info.host_accessible() && one_run) {
        make_head();
        if (_capacity < kHeader) {
            _receiving = Receiving::small;
            std::memset(_head->data(), 0, kCleared);
            return as_bytes(_head->data(), kHeader);
        }
        _receiving = Receiving::in_place;
        std::memcpy(_head->data(), _first, _head->size());
        return as_bytes(_first, _capacity);
    }
    _receiving = Receiving::bounce_buffer;
    const std::int64_t bytes = std::max(_capacity, kHeader);
    // Large buffers leave half of the pool to operations under way.
    const bool from_afar = from_elsewhere && bytes <= kPinnedBounceFromElsewhere &&
                           owner.pool.spare_bytes() > owner.pool.limit_bytes() / 2;
    if (bytes <= kPinnedBounce || from_afar) {
        _block = owner.pool.acquire(owner.gpu(), static_cast<std::size_t>(bytes));
        _landed = _block.data();
    } else {
        _bounce_buffer = owner.bounce_buffers.acquire(static_cast<std::size_t>(bytes));
        _landed = _bounce_buffer.data();
        if (Network* const network = owner.node_peers.network(); network != nullptr) {
            network->poll();  // the sender of such a message may be waiting for an answer
        }
    }
    std::memset(_landed, 0, kCleared);
    return as_bytes(_landed, bytes);
}

bool RecvOperation::sees_rts() const noexcept {
    if (!progressing()) {
        return true;  // only the MPI knows what has arrived
    }
    const ipc::Link* const link = layer().node_peers.link();
    const Network* const network = layer().node_peers.network();
    return (link != nullptr && link->begins_like_rts(received())) ||
           (network != nullptr && network->begins_like_rts(received()));
}

const std::byte* RecvOperation::received() const noexcept {
    switch (_receiving) {
        case Receiving::in_place:
            return _first;
        case Receiving::small:
            return _head->data();
        default:
            return _landed;
    }
}

std::array<std::byte, ipc::kLongestRts> RecvOperation::received_rts(const std::size_t length) const noexcept {
    std::array<std::byte, ipc::kLongestRts> message;
    std::memcpy(message.data(), received(), length);
    return message;
}

void RecvOperation::arrived(const MPI_Status& status, const bool others) {
    AWAKEN_STEP("wait: arrived");
    if (!progressing() || fetching() || _restored) {
        return;
    }
    const std::int64_t bytes = received_bytes(status);
    const auto length = static_cast<std::size_t>(bytes);
    ipc::Link* const link = layer().node_peers.link();
    Network* const network = layer().node_peers.network();
    const bool near = link != nullptr && link->is_rts(received(), length);
    if (!near && (network == nullptr || !network->is_rts(received(), length))) {
        if (others && status.MPI_ERROR == MPI_SUCCESS) {
            deliver_together(std::min(bytes, _capacity));
        }
        return;
    }
    const std::array<std::byte, ipc::kLongestRts> message = received_rts(length);
    if (_receiving == Receiving::in_place) {
        std::memcpy(_first, _head->data(), static_cast<std::size_t>(bytes));
    }
    _restored = true;
    static const gpu::PointerInfo kHost;
    // Memory that is neither one run of bytes nor memory that GPUs can unpack to gets the message in two steps: the
    // layer fetches it to the memory for a plain message, and scatters it from there.
    _in_place = _first != nullptr || _capacity == 0;
    std::byte* to = _first;
    std::shared_ptr<const transfer::TypedMemory> typed;
    if (!_in_place && !_located.mixed && !_located.info.host_accessible()) {
        typed = _located.type->memory(_user, _count);
        _in_place = near ? link->can_move(*typed, _located.info) : network->can_move(*typed, _located.info);
        to = _user + _located.type->layout.span(_count).begin;
    }
    if (!_in_place) {
        if (_landed == nullptr) {
            throw Error("a message came for a buffer that has no place for it",
                        "this is a mistake in Awaken: report it");
        }
        to = _landed;
        typed.reset();
    }
    const gpu::PointerInfo& info = _in_place ? _located.info : kHost;
    if (near) {
        _rendezvous_get =
            link->start_get(message.data(), length, to, info, static_cast<std::size_t>(_capacity), std::move(typed));
        if (_rendezvous_get != nullptr && others) {
            _rendezvous_get->join_others();
        }
    } else {
        _remote = network->start_recv(message.data(), length, to, info, static_cast<std::size_t>(_capacity),
                                      std::move(typed));
    }
    if (!fetching()) {
        throw Error("an RTS came that stands for no message",
                    "somebody sent a header again, or forged one: receive messages only once");
    }
}

void RecvOperation::leave() {
    if (_rendezvous_get != nullptr && !_left && !_rendezvous_get->advance()) {
        _left = true;
        layer().node_peers.link()->background().take(_rendezvous_get);
    }
}

int RecvOperation::raise(const int error_class, const Error& error) const {
    Layer& owner = layer();
    const int code = owner.error_code(error_class, error);
    owner.real.Comm_call_errhandler(_communicator, code);
    return code;
}

/// An error of the program, not of the layer: raises the MPI's own error without another message.
int RecvOperation::truncated() const {
    layer().real.Comm_call_errhandler(_communicator, MPI_ERR_TRUNCATE);
    return MPI_ERR_TRUNCATE;
}

/// Copies the first `bytes` received bytes to the program's buffer.
void RecvOperation::deliver(const std::int64_t bytes) {
    if (bytes <= 0) {
        return;
    }
    if (_receiving == Receiving::small) {
        std::memcpy(_first, _head->data(), static_cast<std::size_t>(bytes));
        return;
    }
    if (_receiving != Receiving::bounce_buffer) {
        return;
    }
    _bounce_buffer.used(static_cast<std::size_t>(bytes));
    const gpu::PointerInfo* const info = _located.mixed ? nullptr : &_located.info;
    layer().copier().scatter(_located.type->flat, _user, _count, bytes, _landed, info);
}

/// Each copy that the layer waits for alone costs the time of the GPU's answer. So the copies of messages found in the
/// same pass go to the GPU in one call.
void RecvOperation::deliver_together(const std::int64_t bytes) {
    transfer::DeviceCopies* const copies = layer().node_peers.copies();
    if (_early != 0 || bytes <= 0 || _receiving != Receiving::bounce_buffer || !_block.pinned() || _located.mixed ||
        _located.info.kind != gpu::MemoryKind::device || copies == nullptr) {
        return;
    }
    std::shared_ptr<const transfer::TypedMemory> typed;
    if (_first == nullptr) {
        typed = _located.type->memory(_user, _count);
        if (!copies->can_move(_located.info.device, *typed)) {
            return;
        }
    }
    std::byte* const to = _user + _located.type->layout.span(_count).begin;
    _delivery = copies->start(_located.info.device, 0, {to, &_located.info, std::move(typed)}, {_landed, nullptr},
                              static_cast<std::size_t>(bytes), transfer::DeviceCopies::Start::together);
    _early = bytes;
    _held = true;
}

/// A large message came plain into device memory, or the layer had to fetch it into host memory. The link guesses from
/// this where the next message of that sender will go. The communicator may be gone by now, so it cannot tell the
/// sender.
void RecvOperation::tell_link(const int peer, const std::int64_t bytes, const bool to_device) {
    if (ipc::Link* const link = layer().node_peers.link(); link != nullptr && peer >= 0) {
        link->received_from_host(peer, bytes, to_device);
    }
}

void RecvOperation::conclude(MPI_Status& status, int& error) {
    const Native& native = layer().real;
    int error_class = error;
    if (error != MPI_SUCCESS) {
        native.Error_class(error, &error_class);
    }
    if (_receiving == Receiving::staged) {
        if (!_concluded && (error == MPI_SUCCESS || error_class == MPI_ERR_TRUNCATE)) {
            _stage.store(received_bytes(status));
        }
        _concluded = true;
        return;
    }
    if (_receiving == Receiving::native) {
        return;
    }
    if (!_concluded) {
        _concluded = true;
        if (!fetching() && error == MPI_SUCCESS) {
            // MPICH's MPI_Request_get_status leaves out the size for combined operations: it is known only now.
            arrived(status);
            WaitLoop waiting;
            while (!advance()) {
                waiting.turn();
            }
        }
        if (fetching()) {
            const std::optional<Error>& failure =
                _rendezvous_get != nullptr ? _rendezvous_get->error() : _remote->error();
            const auto size =
                static_cast<std::int64_t>(_rendezvous_get != nullptr ? _rendezvous_get->size() : _remote->size());
            if (failure) {
                _error = raise(MPI_ERR_OTHER, *failure);
            } else {
                _delivered = std::min(size, _capacity);
                account(_rendezvous_get != nullptr ? path_of(_rendezvous_get->route()) : report::Path::pipelined,
                        _delivered);
                if (!_in_place) {
                    deliver(_delivered);
                }
                if (_rendezvous_get != nullptr && _rendezvous_get->route() != Route::pull && !_located.served) {
                    tell_link(_rendezvous_get->peer(), size, false);
                }
                if (size > _capacity) {
                    _error = truncated();
                }
            }
        } else if (error == MPI_SUCCESS || error_class == MPI_ERR_TRUNCATE) {
            const std::int64_t bytes = received_bytes(status);
            _delivered = std::min(bytes, _capacity);
            if (_delivered != _early) {
                deliver(_delivered);
            }
            if (_located.served) {
                account(report::Path::staged, _delivered);
                tell_link(_near, bytes, true);
            }
            // The memory was larger than the program's buffer, so the MPI saw no error.
            if (error == MPI_SUCCESS && bytes > _capacity) {
                _error = truncated();
            }
        } else {
            _delivered = -1;  // the MPI sets the status
        }
    }
    // Nor may the program see a size that only fits because of the room for an RTS.
    const bool beyond = error_class == MPI_ERR_TRUNCATE && received_bytes(status) == ipc::kLongestRts;
    if (_delivered >= 0 && (fetching() || _error != MPI_SUCCESS || beyond)) {
        native.Status_set_elements_x(&status, MPI_BYTE, static_cast<MPI_Count>(_delivered));
    }
    if (_error != MPI_SUCCESS) {
        error = _error;
    }
}

// ---- both -----------------------------------------------------------------------------------------------------------

bool MessageOp::advance(const MPI_Status* const arrived, const bool asked) {
    AWAKEN_STEP("wait: advance op");
    // When one half fails, the other still goes on to its end: its peer may be reading the program's buffer, or
    // waiting.
    bool fetched = true;
    if (_recv && !_recv_failed) {
        try {
            if (arrived != nullptr && !_recv_seen) {
                _recv_seen = true;
                _recv->arrived(*arrived, true);
            }
            fetched = _recv_seen && _recv->advance();
        } catch (const Error& error) {
            fail(error);
            _recv_failed = true;
        }
    }
    if (_send && !_sent) {
        try {
            _sent = _send->advance(asked ? RendezvousSend::Patience::long_ : RendezvousSend::Patience::endless);
        } catch (const Error& error) {
            _sent = true;
            fail(error);
        }
    }
    return fetched && (!_send || _sent);
}

void MessageOp::fail(const Error& error) {
    if (!_failure) {
        _failure = error;
    }
}

void MessageOp::conclude(MPI_Status& status, int& error) {
    AWAKEN_STEP("wait: conclude op");
    if (_recv && !_recv_failed) {
        try {
            _recv->conclude(status, error);
        } catch (const Error& failure) {
            fail(failure);
            _recv_failed = true;
        }
    }
    if (_recv_failed) {
        layer().real.Status_set_elements_x(&status, MPI_BYTE, 0);  // instead of the length of the RTS
    }
    if (_from_nobody) {
        status.MPI_SOURCE = MPI_PROC_NULL;
        status.MPI_TAG = MPI_ANY_TAG;
        layer().real.Status_set_elements_x(&status, MPI_BYTE, 0);
    }
    if (_failure && !std::exchange(_concluded, true)) {  // the error handler may throw
        Layer& owner = layer();
        _error = owner.error_code(MPI_ERR_OTHER, *_failure);
        owner.real.Comm_call_errhandler(_communicator, _error);
    }
    if (_error != MPI_SUCCESS) {
        error = _error;
    }
}

void MessageOp::leave() {
    if (_recv) {
        _recv->leave();
    }
    if (_send && !_sent) {
        _send->leave();
    }
}

bool MessageOp::flush_to_native() {
    leave();
    return !_send || _sent || _send->flush_to_native();
}

bool correct_probed(const MPI_Comm communicator, MPI_Status& status, const bool matched) {
    Layer& owner = layer();
    const bool others_receive = !matched && owner.several_threads();
    const bool rts_come = owner.receive_readiness.takes_rts();
    if (!others_receive && !rts_come) {
        return true;
    }
    MPI_Count found = 0;
    owner.real.Get_elements_x(&status, MPI_BYTE, &found);
    if (others_receive) {
        if (status.MPI_SOURCE == MPI_PROC_NULL) {
            return true;
        }
        // No message has these values, and a probe with them would be an error of the program: see below.
        if (found == MPI_UNDEFINED || status.MPI_TAG < 0 ||
            !owner.node_peers.has_rank(communicator, status.MPI_SOURCE)) {
            return false;
        }
    }
    const auto length = static_cast<std::size_t>(found);
    const bool may_be_rts = rts_come && ipc::is_rts_length(length);
    if (!may_be_rts && !others_receive) {
        return true;
    }
    ipc::Link* const link = owner.node_peers.link();
    Network* const network = owner.node_peers.network();
    const int peer = may_be_rts && link != nullptr ? owner.node_peers.index_of(communicator, status.MPI_SOURCE) : -1;
    const int remote = may_be_rts && peer < 0 ? owner.node_peers.remote_of(communicator, status.MPI_SOURCE) : -1;
    const auto look = [&] {
        return peer >= 0     ? link->size_of(peer, length)
               : remote >= 0 ? network->size_of(remote, length)
                             : ipc::TrueSize{};
    };
    const auto start = std::chrono::steady_clock::now();
    for (int looks = 0;;) {
        const ipc::TrueSize size = look();
        if (others_receive) {
            // If a message is there now, it was there at the first look, or another thread has received meanwhile. The
            // layer must ask this for every message: Open MPI 5 reads length and tag after it has let other threads
            // take the message and free its memory. That memory may hold another message by then, even one of this
            // process.
            int still_there = 0;
            MPI_Status now;
            const int error = owner.below.Iprobe(status.MPI_SOURCE, status.MPI_TAG, communicator, &still_there, &now);
            if (error == MPI_SUCCESS &&
                (still_there == 0 || received_bytes(now) != found || look().version != size.version)) {
                return false;
            }
        }
        if (size.bytes) {
            owner.real.Status_set_elements_x(&status, MPI_BYTE, static_cast<MPI_Count>(*size.bytes));
            return true;
        }
        if (!size.may_come || (looks >= kLooks && std::chrono::steady_clock::now() - start > kTold)) {
            return true;
        }
        looks += network->poll() ? 1 : 0;
    }
}

}  // namespace awaken::AWAKEN_ABI
