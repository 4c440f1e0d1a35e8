// SPDX-License-Identifier: Apache-2.0
#include "p2p/operations.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/step_probe.h"
#include "call/progress.h"
#include "gpu/relaxed_capture.h"
#include "mpi/status.h"

namespace awaken::AWAKEN_ABI {

using protocol::SendPath;
using transport::Patience;

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

/// Counts the bytes for the call under way, which delivers them.
void account(const report::Path path, const std::int64_t bytes) noexcept {
    if (Call::current != nullptr) {
        Call::current->account(path, bytes);
    }
}

/// Why a message is not sent in the order of the default stream, as far as its sender knows.
const char* why_not_in_order(const protocol::SendFacts& facts) {
    using Receiver = protocol::SendFacts::Receiver;
    return facts.gaps || facts.mixed                 ? "a datatype with gaps"
           : facts.memory != gpu::MemoryKind::device ? "memory that is not a device's alone"
           : facts.receiver == Receiver::itself      ? "a message to its sender"
           : facts.receiver == Receiver::on_node     ? "its receiver does not use stream order, or not yet"
                                                     : "its receiver cannot be reached by GPU";
}

/// Waits for all work that the program's seemingly synchronous calls left behind: the MPI, and even more the network
/// card, reads and writes device memory at once.
bool finish_earlier_work(const void* const buffer, const gpu::PointerInfo& info) {
    Layer& owner = layer();
    return owner.gpu().order_after_default_stream(buffer, info).ok() &&
           owner.gpu().finish_default_stream(info.device).ok();
}

/// Whether this thread may call the driver. In a function that a stream calls it may not: to pass device memory to MPI
/// there is a mistake of the program, of which no other rank hears.
bool may_call_driver() {
    gpu::DeviceInfo info;
    return layer().gpu().device_info(0, info).ok();
}

/// True when the MPI may receive into this device memory: see choose_send_paths() for what it is given.
bool is_for_the_mpi(const Stage::Located& located, const void* const buffer, const std::int64_t count) {
    return located.served && !located.mixed && located.info.kind == gpu::MemoryKind::device &&
           located.info.ipc_capable && located.type->layout.is_contiguous(count) && layer().native_gpu.works() &&
           finish_earlier_work(buffer, located.info);
}

}  // namespace

namespace {

/// An MPI without large counts lacks the second function: its header, or only the library at hand.
template <class Ints, class Large>
int start(const Ints& with_ints, const Large& with_large_counts, const Posted& posted, const int rank, const int tag,
          const MPI_Comm comm, MPI_Request* const request) {
    if (posted.count <= std::numeric_limits<int>::max()) {
        const auto argument = posted.as<int>();
        return with_ints(argument.address, argument.count, argument.type, rank, tag, comm, request);
    }
    if constexpr (std::is_same_v<Large, Absent>) {
        return MPI_ERR_COUNT;
    } else {
        if (with_large_counts == nullptr) {
            return MPI_ERR_COUNT;
        }
        const auto argument = posted.as<MPI_Count>();
        return with_large_counts(argument.address, argument.count, argument.type, rank, tag, comm, request);
    }
}

}  // namespace

int start_send(const Native& functions, const Posted& posted, const int destination, const int tag, const MPI_Comm comm,
               MPI_Request* const request) {
    return start(functions.Isend, functions.Isend_c, posted, destination, tag, comm, request);
}

int start_receive(const Native& functions, const Posted& posted, const int source, const int tag, const MPI_Comm comm,
                  MPI_Request* const request) {
    return start(functions.Irecv, functions.Irecv_c, posted, source, tag, comm, request);
}

// ---- sending --------------------------------------------------------------------------------------------------------

Posted SendOperation::rts() const noexcept {
    return {const_cast<std::byte*>(_message->rts()), static_cast<std::int64_t>(_message->rts_length()), MPI_BYTE};
}

/// Finds out what decides the path of the message.
void SendOperation::look_at(Message& message) {
    Layer& owner = layer();
    protocol::SendFacts& facts = message.facts;
    message.located = _stage.locate(message.buffer, message.count, message.type);
    const Stage::Located& located = message.located;
    facts.packable = located.type != nullptr;
    if (located.type != nullptr) {
        facts.bytes = static_cast<std::size_t>(message.count * located.type->layout.size());
        facts.gaps = !located.type->layout.is_contiguous(message.count);
    } else if (owner.node_peers.network() != nullptr || (owner.node_peers.joined() && (message.count & 1) != 0 &&
                                                         message.count <= std::int64_t{transport::kLongestRts})) {
        // The length of an RTS is odd, so the count must be odd, too.
        facts.bytes = static_cast<std::size_t>(bytes_of(owner.real, message.count, message.type));
    }
    facts.as_long_as_rts = transport::is_rts_length(facts.bytes);
    facts.memory = located.info.kind;
    facts.served = located.served;
    facts.mixed = located.mixed;
    using Export = protocol::SendFacts::Export;
    facts.exported_by = located.info.ipc_capable          ? Export::ipc
                        : located.info.descriptor_capable ? Export::descriptors
                                                          : Export::no;
    facts.mpi_takes_memory = located.served && facts.mode == Mode::offered && owner.native_gpu.works();
    find_receiver(message);
    if (message.peer.transport == nullptr) {
        return;
    }
    if (facts.served && facts.gaps && !facts.mixed && facts.mode != Mode::plain) {
        message.typed = located.type->memory(message.buffer, message.count);
        facts.gaps_move = message.peer.transport->can_move(*message.typed, located.info);
        facts.block = message.typed->strided ? static_cast<std::size_t>(message.typed->strided->width) : 0;
        const transfer::Layout::Span span = located.type->layout.span(message.count);
        facts.span = static_cast<std::size_t>(span.end - span.begin);
    }
    message.peer.transport->describe(message.peer.number, located.info, facts);
}

/// Asks who receives the message, where that decides anything. A message in host memory matters in two cases: it is so
/// large that a receiver in device memory may fetch it, or it is as long as an RTS.
void SendOperation::find_receiver(Message& message) {
    Layer& owner = layer();
    if (owner.carries_host_bytes(message.communicator)) {
        return;
    }
    const protocol::SendFacts& facts = message.facts;
    const bool offers = facts.served && facts.mode != Mode::plain;
    const bool may_offer = !facts.served && facts.mode == Mode::offered && facts.packable && !facts.gaps &&
                           facts.bytes >= owner.node_peers.tuning().host_offer_bytes && !_stage.is_host_only();
    if (!facts.served && !may_offer && !facts.as_long_as_rts) {
        return;
    }
    const NodePeers::Peer peer = owner.node_peers.peer_of(message.communicator, message.destination);
    if (peer.transport != nullptr && !peer.transport->takes_rts(peer.number)) {
        // The receiver may be about to find its GPU runtime, as this process just has.
        owner.receive_readiness.say_when_ready();
        if (!offers || !peer.transport->wait_for_rts(peer.number, facts.bytes)) {
            return;
        }
    }
    message.peer = peer;
}

/// Starts the message as an RTS, by the first of these paths that is possible now.
bool SendOperation::offer(const Message& message, const protocol::SendPaths& paths) {
    if (message.peer.transport == nullptr) {
        return false;
    }
    const SendPath first = *paths.begin();
    if (!protocol::is_on_node(first) && first != SendPath::pipelined) {
        return false;
    }
    const transfer::Layout& layout = message.located.type->layout;
    const transport::Buffer from{
        static_cast<std::byte*>(const_cast<void*>(message.buffer)) + layout.span(message.count).begin,
        message.located.info, message.facts.bytes, message.typed};
    try {
        _message = message.peer.transport->start_send(message.peer.number, from, paths);
        if (_message != nullptr && message.facts.mode == Mode::detached) {
            _message->copy_out();
        }
    } catch (const transport::BeyondAllocation& error) {
        throw ClassedError(MPI_ERR_BUFFER, error.cause(), error.remedy());
    } catch (const Error&) {
        withdraw();  // the plain way may work, and says why when it does not
    }
    return _message != nullptr;
}

std::optional<Posted> SendOperation::wrap(Message& message) {
    transport::Transport& transport = *message.peer.transport;
    // To another node, a message that the layer does not look at counts too: a probe may find it after RTS messages
    // have begun.
    if (transport.may_go_plain(message.peer.number, message.facts.bytes) || !message.facts.packable) {
        return std::nullopt;
    }
    if (message.facts.served) {
        const Posted staged = stage(message);
        if (_message != nullptr) {
            return staged;
        }
        if (!_stage.failure()) {
            _message = transport.wrap(message.peer.number, _stage.packed(), message.facts.bytes);
        }
        if (_message == nullptr) {
            layer().node_peers.sent_plain(message.communicator, message.destination, message.facts.bytes);
            return staged;
        }
        _stage.release();
        return rts();
    }
    std::array<std::byte, transport::kLongestRts> packed;
    transfer::pack(message.located.type->layout, message.buffer, message.count, packed.data(), message.bytes());
    _message = transport.wrap(message.peer.number, packed.data(), message.facts.bytes);
    if (_message == nullptr) {
        return std::nullopt;
    }
    _call->account(report::Path::native, message.bytes());
    return rts();
}

/// Copies the message to host memory, from where the MPI sends it. Where that fails, an RTS for nothing gives the
/// receiver an error. A receiver that takes no RTS gets bytes of ones.
Posted SendOperation::stage(Message& message) {
    Layer& owner = layer();
    const protocol::SendFacts& facts = message.facts;
    if (owner.node_peers.link() != nullptr && owner.settings.report && facts.mode != Mode::plain &&
        (facts.receiver == protocol::SendFacts::Receiver::unknown ||
         facts.receiver == protocol::SendFacts::Receiver::on_other_node)) {
        const bool near = owner.node_peers.index_of(message.communicator, message.destination) >= 0;
        owner.ledger.add_fallback(
            _call->name(), near ? "staged: the receiver uses no GPU yet, or posted receives before it first used one"
                                : "staged: the receiver is on another node, of another job, or without Awaken");
    }
    const Argument<std::int64_t> staged =
        _stage.buffer(Access::in, message.buffer, message.count, message.type, std::move(message.located));
    _stage.load(Stage::Failure::kept);
    if (_stage.failure() && !may_call_driver()) {
        throw Error(*_stage.failure());
    }
    if (_stage.failure() && facts.mode != Mode::plain && message.peer.transport != nullptr) {
        _message = message.peer.transport->start_failed(message.peer.number, facts.bytes, *_stage.failure());
        if (_message != nullptr) {
            return rts();
        }
    }
    return {staged.address, staged.count, staged.type};
}

std::optional<Posted> SendOperation::take(const SendPath path, Message& message) {
    Layer& owner = layer();
    if (path == SendPath::wrapped) {
        return wrap(message);
    }
    if (message.facts.as_long_as_rts) {
        owner.node_peers.sent_plain(message.communicator, message.destination, message.facts.bytes);
    }
    switch (path) {
        case SendPath::native:
            if (!finish_earlier_work(message.buffer, message.located.info)) {
                return std::nullopt;
            }
            owner.ledger.add_fallback(_call->name(), "passed through: the MPI takes device memory itself");
            _call->account(report::Path::native, message.bytes());
            return message.unchanged();
        case SendPath::staged:
            if (message.facts.served) {
                return stage(message);
            }
            _stage.account_native(message.count, message.type);
            _copy.resize(message.facts.bytes);
            transfer::pack(message.located.type->layout, message.buffer, message.count, _copy.data(), message.bytes());
            return Posted{_copy.data(), message.count, message.located.type->packed};
        case SendPath::unchanged:
            _stage.account_native(message.count, message.type);
            return message.unchanged();
        default:
            return std::nullopt;
    }
}

Posted SendOperation::prepare(const Mode mode, const void* const buffer, const std::int64_t count,
                              const MPI_Datatype type, const int destination, const MPI_Comm communicator) {
    AWAKEN_STEP("Isend: prepare");
    const gpu::CallsTogether together;
    Message message{buffer, count, type, destination, communicator};
    if (destination == MPI_PROC_NULL) {
        return message.unchanged();
    }
    message.facts.mode = mode;
    look_at(message);
    const protocol::SendPaths paths = protocol::choose_send_paths(message.facts, layer().node_peers.tuning());
    const bool is_offered = offer(message, paths);
    if (message.facts.served) {
        layer().count_order(_call->name(), is_offered && _message->is_in_order(), why_not_in_order(message.facts));
    }
    if (is_offered) {
        _call->account(_message->path(), message.bytes());
        return rts();
    }
    for (const SendPath path : paths) {
        if (const std::optional<Posted> posted = take(path, message)) {
            return *posted;
        }
    }
    return message.unchanged();
}

void SendOperation::posted(const int error, const bool waits) {
    AWAKEN_STEP("Isend: posted");
    const gpu::CallsTogether together;
    _posted = true;
    if (_message == nullptr) {
        return;
    }
    if (error == MPI_SUCCESS) {
        _message->posted(waits);
    } else {
        withdraw();
    }
}

void SendOperation::withdraw() {
    if (_message != nullptr) {
        _message->withdraw();
        _message.reset();
    }
}

bool SendOperation::advance(const Patience patience) {
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
    if (_stage.failure()) {
        throw Error(*_stage.failure());
    }
    return _message == nullptr || _message->advance(patience);
}

void SendOperation::hand_over() {
    try {
        for (WaitLoop waiting; needs_calls(); waiting.turn()) {
            static_cast<void>(_message->advance(Patience::short_));
        }
    } catch (const Error&) {
        // advance() throws it again.
    }
}

void SendOperation::finish() {
    if (!progressing()) {
        return;
    }
    WaitLoop waiting;
    while (!advance(Patience::short_)) {
        waiting.turn();
    }
}

void SendOperation::leave() {
    if (_message != nullptr) {
        _message->leave();
    }
}

void SendOperation::end() {
    if (!_posted) {
        withdraw();  // something failed before the RTS was sent: no receiver will fetch the message
    }
    if (_message != nullptr) {
        _message->end();
        _message.reset();
    }
    _stage.release();
}

// ---- receiving ------------------------------------------------------------------------------------------------------

/// Memory of the layer gets a type that no message overruns, and more bytes than an int can count one made for them.
Posted RecvOperation::as_bytes(void* const address, const std::int64_t bytes) {
    _bytes_type = _receiving == Receiving::in_place ? nullptr : layer().receive_types.find(bytes);
    if (_bytes_type == nullptr) {
        if (bytes <= std::numeric_limits<int>::max()) {
            return {address, bytes, MPI_BYTE};
        }
        _bytes_type = std::make_shared<const BytesType>(layer().real, bytes, false);
    }
    return {address, 1, _bytes_type->get()};
}

void RecvOperation::put_right(const std::int64_t bytes) noexcept {
    if (const auto type = std::exchange(_bytes_type, nullptr)) {
        type->put_right(received(), bytes);
    }
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
    _sender = _located.served ? owner.node_peers.peer_of(communicator, source) : NodePeers::Peer{};
    const bool from_elsewhere = source >= 0 && !_sender.near;
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
        const Argument<std::int64_t> staged =
            _stage.for_message(_stage.buffer(Access::out, buffer, count, type, std::move(_located)));
        return {staged.address, staged.count, staged.type};
    }
    _user = static_cast<std::byte*>(buffer);
    _count = count;
    const auto make_head = [this] {
        _head = std::make_unique_for_overwrite<std::array<std::byte, transport::kLongestRts>>();
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
        return as_bytes(_head->data(), transport::kLongestRts);
    }
    const transfer::Layout& layout = _located.type->layout;
    _capacity = count * layout.size();
    const bool one_run = !_located.mixed && layout.is_contiguous(count);
    _first = one_run ? _user + layout.true_begin() : nullptr;
    constexpr auto kHeader = static_cast<std::int64_t>(transport::kLongestRts);
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
    return layer().node_peers.begins_like_rts(received());
}

std::byte* RecvOperation::received() const noexcept {
    switch (_receiving) {
        case Receiving::in_place:
            return _first;
        case Receiving::small:
            return _head->data();
        default:
            return _landed;
    }
}

std::array<std::byte, transport::kLongestRts> RecvOperation::received_rts(const std::size_t length) const noexcept {
    std::array<std::byte, transport::kLongestRts> message;
    std::memcpy(message.data(), received(), length);
    return message;
}

void RecvOperation::arrived(const MPI_Status& status, const bool others) {
    AWAKEN_STEP("wait: arrived");
    const gpu::CallsTogether together;
    if (!progressing() || fetching() || _restored) {
        return;
    }
    const std::int64_t bytes = received_bytes(status);
    const auto length = static_cast<std::size_t>(bytes);
    put_right(bytes);
    transport::Transport* const transport = layer().node_peers.transport_of(received(), length);
    if (transport == nullptr) {
        if (others && status.MPI_ERROR == MPI_SUCCESS) {
            deliver_together(std::min(bytes, _capacity));
        }
        return;
    }
    const std::array<std::byte, transport::kLongestRts> message = received_rts(length);
    if (_receiving == Receiving::in_place) {
        std::memcpy(_first, _head->data(), static_cast<std::size_t>(bytes));
    }
    _restored = true;
    // Memory that is neither one run of bytes nor memory that GPUs can unpack to gets the message in two steps: the
    // layer fetches it to the memory for a plain message, and scatters it from there.
    _in_place = _first != nullptr || _capacity == 0;
    transport::Buffer into{_first, _located.info, static_cast<std::size_t>(_capacity), nullptr};
    if (!_in_place && !_located.mixed && !_located.info.host_accessible()) {
        into.typed = _located.type->memory(_user, _count);
        into.first = _user + _located.type->layout.span(_count).begin;
        _in_place = transport->can_move(*into.typed, _located.info);
    }
    if (!_in_place) {
        if (_landed == nullptr) {
            throw Error("a message arrived for a buffer that has no room for it",
                        "this is a bug in Awaken: please report it");
        }
        into.first = _landed;
        into.info = {};
        into.typed.reset();
    }
    _message = transport->start_receive(message.data(), length, into);
    if (_message == nullptr) {
        throw Error("an RTS arrived that belongs to no message",
                    "some process sent an RTS twice or forged one: receive each message only once");
    }
    if (others) {
        _message->join_others();
    }
}

void RecvOperation::leave() {
    if (_message != nullptr) {
        _message->leave();
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

/// The layer fetched the message.
void RecvOperation::conclude_fetched() {
    if (const std::optional<Error>& failure = _message->error()) {
        _error = raise(MPI_ERR_OTHER, *failure);
        return;
    }
    const auto size = static_cast<std::int64_t>(_message->size());
    _delivered = std::min(size, _capacity);
    account(_message->path(), _delivered);
    if (!_in_place) {
        deliver(_delivered);
    }
    if (!_located.served) {
        _message->went_to_host();
    } else {
        layer().count_order(Call::current != nullptr ? Call::current->name() : "MPI_Recv", _message->is_in_order(),
                            _first == nullptr ? "a datatype with gaps" : "it was not sent in stream order");
    }
    if (size > _capacity) {
        _error = truncated();
    }
}

/// The bytes themselves came in the message, which had this outcome.
void RecvOperation::conclude_plain(const MPI_Status& status, const int error, const int error_class) {
    if (error != MPI_SUCCESS && error_class != MPI_ERR_TRUNCATE) {
        _delivered = -1;  // the MPI sets the status
        return;
    }
    const std::int64_t bytes = received_bytes(status);
    put_right(bytes);
    _delivered = std::min(bytes, _capacity);
    if (_delivered != _early) {
        deliver(_delivered);
    }
    if (_located.served) {
        layer().count_order(Call::current != nullptr ? Call::current->name() : "MPI_Recv", false,
                            "it came through the MPI");
        account(report::Path::staged, _delivered);
        // The link guesses from this where the next message of that sender will go. The communicator may be gone by
        // now, so it cannot tell the sender.
        if (_sender.transport != nullptr) {
            _sender.transport->received_plain(_sender.number, bytes);
        }
    }
    // The memory was larger than the program's buffer, so the MPI saw no error.
    if (error == MPI_SUCCESS && bytes > _capacity) {
        _error = truncated();
    }
}

void RecvOperation::conclude(MPI_Status& status, int& error) {
    const Native& native = layer().real;
    const int error_class = class_of(native, error);
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
            conclude_fetched();
        } else {
            conclude_plain(status, error, error_class);
        }
    }
    // Nor may the program see a size that only fits because of the room for an RTS.
    const bool beyond = error_class == MPI_ERR_TRUNCATE && received_bytes(status) == transport::kLongestRts;
    if (_delivered >= 0 && (fetching() || _error != MPI_SUCCESS || beyond)) {
        native.Status_set_elements_x(&status, MPI_BYTE, static_cast<MPI_Count>(_delivered));
    }
    if (_error != MPI_SUCCESS) {
        error = _error;
    }
}

// ---- both -----------------------------------------------------------------------------------------------------------

bool MessageOp::advance(const MPI_Status* const arrived, const Patience patience) {
    AWAKEN_STEP("wait: advance op");
    // When one half fails, the other still goes on to its end: its peer may be reading the program's buffer, or
    // waiting.
    bool fetched = true;
    if (_recv && !_recv_failed) {
        try {
            if (arrived != nullptr && !_recv_seen) {
                _recv_seen = true;
                _recv->arrived(*arrived, patience != Patience::short_);  // a blocking call has one message
            }
            fetched = _recv_seen && _recv->advance();
        } catch (const Error& error) {
            fail(error);
            _recv_failed = true;
        }
    }
    if (_send && !_sent) {
        try {
            _sent = _send->advance(patience);
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
    const bool may_be_rts = rts_come && transport::is_rts_length(length);
    if (!may_be_rts && !others_receive) {
        return true;
    }
    const NodePeers::Peer sender =
        may_be_rts ? owner.node_peers.peer_of(communicator, status.MPI_SOURCE) : NodePeers::Peer{};
    const auto look = [&sender, length] {
        return sender.transport != nullptr ? sender.transport->size_of(sender.number, length) : transport::TrueSize{};
    };
    const auto start = std::chrono::steady_clock::now();
    for (int looks = 0;;) {
        const transport::TrueSize size = look();
        if (others_receive) {
            // If a message is there now, it was there at the first look, or another thread has received meanwhile. The
            // layer must ask this for every message: Open MPI 5 reads length and tag after it has let other threads
            // take the message and free its memory. That memory may hold another message by then, even one of this
            // process.
            int still_there = 0;
            MPI_Status now{};  // MPICH leaves the bit for a cancelled message as it was
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
        looks += sender.transport->poll() ? 1 : 0;
    }
}

}  // namespace awaken::AWAKEN_ABI
