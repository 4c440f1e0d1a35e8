// SPDX-License-Identifier: Apache-2.0
#include "coll/device/collective_op.h"

#include <algorithm>
#include <utility>

#include "base/fnv1a.h"
#include "coll/device/node_comm.h"
#include "gpu/kernels/codes.h"

namespace awaken::coll {

using transfer::DeviceCopies;
using transfer::Location;

namespace {

/// Flags of a member's proposal.
enum Flag : std::uint32_t {
    takes = 1,     ///< every buffer that counts is device memory, and this member can do its partition by kernels
    device = 2,    ///< some buffer that counts is device memory
    host = 4,      ///< some buffer that counts is host memory
    failed = 8,    ///< this member ends with an error, and so all must
    reused = 16,   ///< what this member sends lies in its receive buffer
    library = 32,  ///< this member could do this with NCCL or RCCL
    revoked = 64,  ///< together with `failed`: the communicator was revoked
    early = 128,   ///< the member's default stream says by a mark when it has come to the collective
    alone = 256    ///< together with `early`: see Arguments::alone
};

/// How often a member looks whether the others are alive, and at the state of kernels that should be over. Each look
/// costs a microsecond.
constexpr std::chrono::milliseconds kBetweenLooks{10};
constexpr std::chrono::microseconds kBetweenQueries{200};

std::uint64_t signature_of(const Arguments& arguments) {
    return Fnv1a()
        .add_word(static_cast<std::uint64_t>(arguments.kind))
        .add_word(static_cast<std::uint64_t>(arguments.root))
        .add_word(arguments.code)
        .add_word(arguments.varying ? 1 : arguments.bytes)
        .value();
}

/// The width of the widest elements of which all these addresses and the length are multiples.
std::uint64_t width_of(std::uint64_t bits) noexcept {
    bits |= 16;
    return bits & (~bits + 1);
}

std::uint32_t copy_code(const std::uint64_t width) noexcept {
    using kernels::ElementType;
    const ElementType type = width == 16  ? ElementType::bytes16
                             : width == 8 ? ElementType::bytes8
                             : width == 4 ? ElementType::bytes4
                             : width == 2 ? ElementType::bytes2
                                          : ElementType::bytes1;
    return kernels::code_of(type, kernels::ReductionOperation::copy);
}

Error overwritten() {
    return {"the shared memory of a collective was overwritten",
            "look for a process of this job that writes where it must not, or set AWAKEN_COLLECTIVES=\"* : staged\""};
}

Error revocation() {
    return {"another rank has found the communicator revoked",
            "continue with the communicator that MPIX_Comm_shrink makes of it", Error::Kind::revoked};
}

}  // namespace

CollectiveOp::CollectiveOp(std::shared_ptr<NodeComm> owner, const std::uint64_t number, const Arguments& arguments)
    : _owner(std::move(owner)), _node_comm(*_owner), _number(number), _arguments(arguments) {
    const auto keep = [](std::span<const std::uint64_t>& given, std::vector<std::uint64_t>& kept) {
        kept.assign(given.begin(), given.end());
        given = kept;
    };
    keep(_arguments.bytes_from, _bytes_from);
    keep(_arguments.send_offsets, _send_offsets);
    keep(_arguments.receive_offsets, _receive_offsets);
    mark_default_stream();
    _traced.begin(trace::Kind::background, to_string(_arguments.kind), _arguments.bytes, -1);
}

CollectiveOp::~CollectiveOp() {
    if (_state != State::over) {
        give_up();
    }
    if (_default_mark.value != nullptr) {
        _engine->runtime().drop_default_stream(_default_mark);
    }
}

bool CollectiveOp::advance() {
    const auto is_settled = [this] { return _state == State::over || _state == State::in_order; };
    if (_engine != nullptr) {
        _engine->sweep();  // another member may wait for a slot that one of these has
    }
    try {
        while (!is_settled() && step()) {
        }
    } catch (...) {
        give_up();
        throw;
    }
    return is_settled();
}

void CollectiveOp::keep(std::unique_ptr<CollectiveOp> op) {
    Engine& engine = *op->_engine;
    engine.keep(std::move(op));
}

bool CollectiveOp::look() noexcept {
    try {
        if (work_is_done()) {
            finish();
        }
    } catch (const Error& error) {
        _engine->note_once(std::string("a collective in the default stream was given up: ") + error.what());
        give_up();
    } catch (const std::bad_alloc&) {
        give_up();
    }
    return _state == State::over;
}

void CollectiveOp::let_go() noexcept {
    if (_early) {
        _node_comm._control_block->let_go(_node_comm.own(), _number)
            .value.store(mark_of(_number, Outcome::done), std::memory_order_release);
    }
}

void CollectiveOp::revoke() noexcept {
    if (_state != State::over) {
        _revoked = true;
        give_up();
    }
}

/// Ends the operation here, and tells the other members.
void CollectiveOp::give_up() noexcept {
    let_go();
    _copies.clear();  // waits, as _work does
    const bool started = static_cast<bool>(_work) || _state == State::taking_turn || _state == State::working;
    if (_algorithm == Algorithm::ccl && started) {
        _node_comm._ccl.abort();  // else it might wait for a member that is gone
    }
    _work = {};
    give_turn_back();
    if (!_proposed && _state != State::queued) {
        Proposal& proposal = _node_comm._control_block->proposal(_node_comm.own(), _number);
        proposal.flags = _revoked ? failed | revoked : failed;
        proposal.number.store(_number, std::memory_order_release);
        _proposed = true;
    }
    if (_ordered) {
        for (const MarkOf mark : {MarkOf{&ControlBlock::queued}, MarkOf{&ControlBlock::ready}}) {
            (_node_comm._control_block.get()->*mark)(_node_comm.own(), _number)
                .value.store(mark_of(_number, Outcome::failed), std::memory_order_release);
        }
    }
    if (_proposed) {
        if (_marked &&
            _node_comm._control_block->done(_node_comm.own(), _number).value.load(std::memory_order_acquire) / 4 !=
                _number) {
            _marked = false;  // the kernel that was to mark it has failed
        }
        mark_done(_revoked ? Outcome::revoked : Outcome::failed);
    }
    finish();
}

/// Does one step. False when the operation can only wait.
bool CollectiveOp::step() {
    NodeComm& node_comm = _node_comm;
    switch (_state) {
        case State::queued:
            // The slots of the control block are used in turn. A member that may still be looking at the last use must
            // be done with it.
            if (_number > kSlots && node_comm._finished_by_all.load(std::memory_order_acquire) < _number - kSlots) {
                std::uint64_t all = ~std::uint64_t{0};
                for (int member = 0; member < node_comm.members(); ++member) {
                    all = std::min(all, node_comm._control_block->finished(member).load(std::memory_order_acquire));
                }
                node_comm._finished_by_all.store(all, std::memory_order_release);
                if (all < _number - kSlots) {
                    check_members("before the next collective could begin");
                    return false;
                }
            }
            // From now on this member can tell the others of a failure.
            _state = State::copying_in;
            if (!prepare()) {
                _state = State::queued;
                return false;
            }
            return true;
        case State::copying_in:
            for (DeviceCopies::Copy& copy : _copies) {
                if (!copy.poll()) {
                    return false;
                }
            }
            _copies.clear();
            if (_early && !_arguments.alone) {
                queue(true, false, nullptr);
            }
            if (!_early && !default_stream_is_over()) {
                return false;
            }
            proposal();
            _state = State::proposing;
            return true;
        case State::proposing:
            if (node_comm._decided.load(std::memory_order_acquire) + 1 != _number) {
                return false;  // operations go in their order
            }
            if (!all_have_proposed()) {
                return false;
            }
            decide();
            return true;
        case State::awaiting:
            if (!all_are_ready()) {
                return false;
            }
            go_on();
            return true;
        case State::joining:
            switch (node_comm._ccl.join(*_engine, *node_comm._control_block, _number, _device)) {
                case CclGroup::Joining::under_way:
                    check_members("while it joined a communicator of NCCL or RCCL");
                    return false;
                case CclGroup::Joining::done:
                    take_part();
                    _state = State::taking_turn;
                    return true;
                case CclGroup::Joining::failed:
                    _engine->note_once((node_comm._ccl.reason().empty()
                                            ? std::string("another rank could not join a communicator of NCCL or RCCL")
                                            : node_comm._ccl.reason()));
                    _algorithm = Algorithm::two_shot;
                    go_on_with_kernels();
                    return true;
            }
            return false;
        case State::taking_turn:
            if (!has_turn()) {
                return false;
            }
            start_ccl();
            return true;
        case State::reaching:
            if (!asks_again()) {
                return false;
            }
            go_on_with_kernels();
            return _state != State::reaching;
        case State::mapping:
            if (!all_have_mapped()) {
                return false;
            }
            return true;
        case State::working:
            if (!work_is_done()) {
                return false;
            }
            if (_receive.block) {
                copy_out(_arguments.receive, _receive);
            }
            _state = State::copying_out;
            return true;
        case State::copying_out:
            for (DeviceCopies::Copy& copy : _copies) {
                if (!copy.poll()) {
                    return false;
                }
            }
            _copies.clear();
            finish();
            return false;
        case State::queueing:
            if (!all_have_queued()) {
                return false;
            }
            queue(false, true, &ControlBlock::done);
            _state = State::in_order;
            return true;
        case State::in_order:
        case State::over:
            return false;
    }
    return false;
}

bool CollectiveOp::check_members(const char* const doing) {
    const Clock::time_point now = Clock::now();
    if (_looked == Clock::time_point{}) {
        _looked = now;
        return false;
    }
    if (now - _looked < kBetweenLooks) {
        return false;
    }
    _looked = now;
    look_for_dead_members(doing);
    look_for_failed_members();
    return true;
}

/// Operations share the word of their slot. It holds a later operation's number only when this one is over.
void CollectiveOp::check_members(const char* const doing, const std::uint64_t number) {
    if (check_members(doing) && number != _number &&
        (number > _number || (number != 0 && number % kSlots != _number % kSlots))) {
        throw overwritten();
    }
}

void CollectiveOp::look_for_dead_members(const char* const doing) const {
    for (int member = 0; member < _node_comm.members(); ++member) {
        const int process = _node_comm._processes[static_cast<std::size_t>(member)];
        if (member != _node_comm.own() && !_node_comm._segment.alive(process)) {
            throw Error("rank " + std::to_string(_node_comm._segment.process(process).world_rank) +
                            " of MPI_COMM_WORLD ended " + doing,
                        "look at that rank's own output for the reason", Error::Kind::failed_process);
        }
    }
}

/// Whether this member's GPU can pack and unpack all of it.
bool CollectiveOp::can_move(const Buffer& buffer) const {
    return std::all_of(buffer.pieces.begin(), buffer.pieces.end(), [this](const Buffer::Segment& piece) {
        return piece.typed == nullptr || _engine->copies().can_move(_device, *piece.typed);
    });
}

/// Starts filling the copy that this member shows in the place of the buffer.
void CollectiveOp::copy_in(const Buffer& buffer, const Shown& shown) {
    DeviceCopies& copies = _engine->copies();
    if (buffer.pieces.empty()) {
        _copies.push_back(
            copies.start(_device, 0, {shown.block.data(), nullptr}, {buffer.address, &buffer.info}, buffer.bytes));
    }
    for (const Buffer::Segment& piece : buffer.pieces) {
        _copies.push_back(copies.start(_device, 0, {shown.block.data() + piece.at, nullptr},
                                       {piece.address, &piece.info, piece.typed}, piece.bytes));
    }
}

/// Starts bringing the copy's data to its place in the program's memory. Bytes between the data belong to the program,
/// and are not touched.
void CollectiveOp::copy_out(const Buffer& buffer, const Shown& shown) {
    DeviceCopies& copies = _engine->copies();
    if (buffer.pieces.empty()) {
        _copies.push_back(
            copies.start(_device, 0, {buffer.address, &buffer.info}, {shown.block.data(), nullptr}, buffer.bytes));
    }
    for (const Buffer::Segment& piece : buffer.pieces) {
        _copies.push_back(copies.start(_device, 0, {piece.address, &piece.info, piece.typed},
                                       {shown.block.data() + piece.at, nullptr}, piece.bytes));
    }
}

bool CollectiveOp::show(const Buffer& buffer, Shown& shown, const bool as_copy) {
    Engine& engine = *_engine;
    shown.needed = true;
    // Kernels need aligned elements.
    const std::uint64_t alignment =
        _arguments.code != 0 ? kernels::element_alignment(kernels::type_of(_arguments.code)) : 1;
    const bool aligned = reinterpret_cast<std::uintptr_t>(buffer.address) % alignment == 0;
    if (!as_copy && !buffer.gathered && aligned && buffer.state == Buffer::State::device && buffer.info.ipc_capable &&
        engine.exports().describe(buffer.address, buffer.info, shown.location).ok()) {
        return true;
    }
    shown.block = engine.exported().acquire(_device, buffer.bytes);
    if (!shown.block) {
        engine.note_once("no exported device memory left for a copy of " + std::to_string(buffer.bytes) + " bytes");
        return false;
    }
    shown.location = shown.block.location();
    return true;
}

/// The GPU was busy when it was last asked to do something that would wait for its work. Whether it is time to ask
/// again.
bool CollectiveOp::asks_again() noexcept {
    constexpr std::chrono::milliseconds kBetween{1};
    const Clock::time_point now = Clock::now();
    if (_asked != Clock::time_point{} && now - _asked < kBetween) {
        return false;
    }
    _asked = now;
    return true;
}

/// Looks at what this member passes, and starts the copies that others will read. False when it has to be called again:
/// all have agreed to do the operation with kernels, and some of them cannot be loaded now.
bool CollectiveOp::prepare() {
    Arguments& given = _arguments;
    _engine = _node_comm._engine.load(std::memory_order_acquire);
    Engine* const engine = _engine;
    const auto is_device = [](const Buffer& buffer) { return buffer.state == Buffer::State::device; };
    const auto is_used = [](const Buffer& buffer) { return buffer.state != Buffer::State::unused; };
    if (given.obstacle != nullptr || engine == nullptr || _node_comm.members() > kMostMembers) {
        return true;
    }
    for (const Buffer* const buffer : {&given.send, &given.receive}) {
        if (is_used(*buffer) && !is_device(*buffer) && !given.compulsory) {
            return true;
        }
        if (is_device(*buffer)) {
            // Managed memory may have no device of its own. The operation then uses the device of the buffer beside it,
            // or the first one.
            const int device = buffer->info.device;
            if (_device >= 0 && device >= 0 && device != _device) {
                given.obstacle = "a rank's buffers are on different GPUs";
                return true;
            }
            _device = std::max(_device, device);
        }
    }
    if (!is_used(given.send) && !is_used(given.receive)) {
        _takes_part = true;
        return true;
    }
    if (_device < 0) {
        _device = engine->runtime().device_to_use();
    }
    const std::uint32_t code = given.code != 0 ? given.code : copy_code(16);
    if (_busy && !asks_again()) {
        return false;
    }
    Engine::Kernels kernels = engine->prepare(_device, code);
    if (kernels == Engine::Kernels::usable && given.code == 0) {
        kernels = engine->prepare(_device, copy_code(1));
    }
    if (kernels == Engine::Kernels::not_yet && given.compulsory) {
        _busy = true;
        return false;
    }
    if (kernels != Engine::Kernels::usable) {
        given.obstacle = kernels == Engine::Kernels::not_yet
                             ? "a rank's GPU is busy, so that it cannot load kernels now"
                             : "a rank has no kernels for it";
        return true;
    }
    if (!can_move(given.send) || !can_move(given.receive)) {
        given.obstacle = "a rank's GPU cannot pack its datatype";
        return true;
    }
    if (given.asks) {
        _takes_part = true;
        return true;
    }
    _why_not_in_order = why_not_early();
    _early = _why_not_in_order == nullptr;
    if (!_early) {
        finish_synchronous_calls();
    }
    // A copy is made once the default stream is over.
    const auto is_late_for = [this](const Shown& shown) {
        if (_early && shown.block) {
            _early = false;
            _why_not_in_order = "a copy of its memory";
            finish_synchronous_calls();
        }
    };
    if (is_used(given.receive) && !show(given.receive, _receive, false)) {
        given.obstacle = "a rank has no memory left for copies";
        return true;
    }
    is_late_for(_receive);
    // In most collectives in place, what a member sends is overwritten only after others have read it. In these, others
    // may read it later.
    const bool overwritten = given.kind == Kind::reduce_scatter || given.kind == Kind::alltoall ||
                             given.kind == Kind::scan || given.kind == Kind::exscan;
    const bool sends_received = given.in_place && !is_used(given.send) && is_used(given.receive);
    if (sends_received && overwritten) {
        given.send = given.receive;
    }
    if (is_used(given.send)) {
        if (!show(given.send, _send, sends_received)) {
            given.obstacle = "a rank has no memory left for copies";
            return true;
        }
        is_late_for(_send);
        if (_send.block) {
            copy_in(given.send, _send);
        }
    }
    if (_receive.block && given.in_place) {
        copy_in(given.receive, _receive);  // parts that are sent from there, or stay there, must be in the copy, too
    }
    if (sends_received && !overwritten) {
        _send.needed = true;
        _send.location = _receive.location;
        _send.location.offset += given.in_place_offset;
        _reused = true;
    }
    _takes_part = true;
    return true;
}

/// What seemingly synchronous calls of the program left behind is over when this returns, or comes before the copies.
void CollectiveOp::finish_synchronous_calls() {
    for (const Buffer* const buffer : {&_arguments.send, &_arguments.receive}) {
        if (buffer->state == Buffer::State::device) {
            if (const gpu::Status status = _engine->runtime().order_after_default_stream(buffer->address, buffer->info);
                !status.ok()) {
                throw Error("preparing a buffer failed (" + status.message() + ")",
                            "an error of an earlier kernel of the program is also reported here");
            }
        }
    }
}

/// Why the operation cannot be a part of the default stream, as far as this member knows. Null: it can.
const char* CollectiveOp::why_not_early() {
    stream::Ordering* const ordering = _engine->ordering();
    if (ordering == nullptr || !_arguments.may_be_in_order) {
        return "it was not asked";
    }
    for (const Buffer* const buffer : {&_arguments.send, &_arguments.receive}) {
        if (buffer->state == Buffer::State::device && buffer->info.kind != gpu::MemoryKind::device) {
            return "memory that is not a device's alone";
        }
    }
    for (int member = 0; member < _node_comm.members(); ++member) {
        if (member != _node_comm.own() &&
            !ordering->goes(_node_comm._processes[static_cast<std::size_t>(member)], _device)) {
            return "its ranks do not use stream order, or not yet";
        }
    }
    return _node_comm.all_registered(*_engine) ? nullptr
                                               : "its shared memory cannot be registered with the GPU runtime";
}

/// A mark as kernels wait for it. Its lower half counts as well as the whole, and an outcome adds to it.
const std::uint32_t* CollectiveOp::word_of(const MarkOf mark, const int member) const noexcept {
    return reinterpret_cast<const std::uint32_t*>(&(_node_comm._control_block.get()->*mark)(member, _number).value);
}

/// Queues in the default stream: to say that it has come to the collective, and to wait for the marks of all other
/// members. It has been settled that these come.
void CollectiveOp::queue(const bool tells, const bool awaits, const MarkOf mark) {
    std::array<stream::Step, kMostMembers> steps;
    std::size_t count = 0;
    if (tells) {
        stream::Step& step = steps[count++];
        step.told_host =
            reinterpret_cast<std::uint64_t*>(&_node_comm._control_block->ready(_node_comm.own(), _number).value);
        step.told_host_number = mark_of(_number, Outcome::done);
        _told = true;
    }
    for (int member = 0; member < _node_comm.members() && awaits; ++member) {
        if (member != _node_comm.own()) {
            stream::Step& step = steps[count++];
            step.awaited = word_of(mark, member);
            step.released = word_of(&ControlBlock::let_go, _node_comm.own());
            step.number = static_cast<std::uint32_t>(mark_of(_number, Outcome::done));
        }
    }
    if (const gpu::Status status = _engine->ordering()->take({steps.data(), count}); !status.ok()) {
        throw Error("a collective could not be queued in the default stream (" + status.message() + ")",
                    "an error of an earlier kernel of the program is reported here");
    }
}

bool CollectiveOp::all_are_ready() {
    const ControlBlock& control_block = *_node_comm._control_block;
    for (; _seen < control_block.members(); ++_seen) {
        if ((control_block.proposal(_seen, _number).flags & early) == 0) {
            continue;
        }
        const std::uint64_t number = control_block.ready(_seen, _number).value.load(std::memory_order_acquire) / 4;
        if (number != _number) {
            check_members("in a collective", number);
            return false;
        }
    }
    _seen = 0;
    return true;
}

bool CollectiveOp::all_have_queued() {
    const ControlBlock& control_block = *_node_comm._control_block;
    for (; _seen < control_block.members(); ++_seen) {
        const std::uint64_t number = control_block.queued(_seen, _number).value.load(std::memory_order_acquire) / 4;
        if (number != _number) {
            check_members("in a collective", number);
            return false;
        }
    }
    _seen = 0;
    return true;
}

/// Marks the default stream, in the program's call if possible, since the operation must not wait for work that the
/// program gives to the stream afterwards.
void CollectiveOp::mark_default_stream() {
    Engine* const engine = _node_comm._engine.load(std::memory_order_acquire);
    _engine = engine;
    if (engine == nullptr || _arguments.asks || _arguments.obstacle != nullptr ||
        (_arguments.may_be_in_order && engine->ordering() != nullptr)) {
        return;
    }
    for (const Buffer* const buffer : {&_arguments.send, &_arguments.receive}) {
        if (buffer->state == Buffer::State::device && buffer->info.device >= 0) {
            _default_marked = engine->runtime().mark_default_stream(buffer->info.device, _default_mark).ok();
            return;
        }
    }
}

/// Others will read this memory and write to it, in streams that do not follow this process's own. Asks only once per
/// call, since all background work may depend on the thread that asks.
bool CollectiveOp::default_stream_is_over() {
    if (!_takes_part || _device < 0 || _arguments.asks) {
        return true;
    }
    gpu::Runtime& runtime = _engine->runtime();
    gpu::Status status;
    if (!_default_marked) {
        status = runtime.mark_default_stream(_device, _default_mark);
        _default_marked = status.ok();
    }
    bool over = false;
    if (status.ok()) {
        status = runtime.query_default_stream(_default_mark, over);
    }
    if (!status.ok()) {
        throw Error("waiting for the default stream failed (" + status.message() + ")",
                    "an error of an earlier kernel of the program is also reported here");
    }
    return over;
}

void CollectiveOp::proposal() {
    NodeComm& node_comm = _node_comm;
    const Arguments& given = _arguments;
    ControlBlock& control_block = *node_comm._control_block;
    const int own = node_comm.own();
    Proposal& proposal = control_block.proposal(own, _number);
    proposal.flags = _takes_part ? std::uint32_t{takes} : 0;
    if (_reused) {
        proposal.flags |= reused;
    }
    if (_early) {
        proposal.flags |=
            given.alone && node_comm.members() <= static_cast<int>(kernels::kMostAwaited) ? early | alone : early;
    }
    proposal.device = 0;
    if (may_use_ccl() && _engine->use_library(Engine::LibraryUse::by_turns)) {
        _uses_library = true;
        proposal.flags |= library;
        proposal.device = _engine->identity_of(_device);
    }
    for (const Buffer* const buffer : {&given.send, &given.receive}) {
        if (buffer->state == Buffer::State::host) {
            proposal.flags |= host;
        } else if (buffer->state != Buffer::State::unused) {
            proposal.flags |= device;
        }
    }
    proposal.kinds = node_comm._seen.load(std::memory_order_relaxed);
    proposal.code = given.code;
    proposal.signature = signature_of(given);
    proposal.bytes = given.bytes;
    const auto describe = [](const Shown& shown, Side& side, Location& location) {
        side = {};
        if (shown.needed) {
            location = shown.location;
            side = {location.allocation_id, location.address, location.offset};
        }
    };
    describe(_send, proposal.send, control_block.send(own, _number));
    describe(_receive, proposal.receive, control_block.receive(own, _number));
    if (given.varying) {
        const std::span<std::uint64_t> offsets = control_block.offsets(own, _number);
        std::copy(_send_offsets.begin(), _send_offsets.end(), offsets.begin());
        std::copy(_receive_offsets.begin(), _receive_offsets.end(),
                  offsets.begin() + static_cast<std::ptrdiff_t>(offsets.size() / 2));
    }
    proposal.number.store(_number, std::memory_order_release);
    _proposed = true;
}

bool CollectiveOp::all_have_proposed() {
    ControlBlock& control_block = *_node_comm._control_block;
    for (; _seen < control_block.members(); ++_seen) {
        const std::uint64_t number = control_block.proposal(_seen, _number).number.load(std::memory_order_acquire);
        if (number != _number) {
            check_members("before it came to a collective", number);
            return false;
        }
    }
    _seen = 0;
    return true;
}

/// Draws the decision from the proposals. Every member draws the same one.
void CollectiveOp::decide() {
    NodeComm& node_comm = _node_comm;
    ControlBlock& control_block = *node_comm._control_block;
    std::uint32_t any = 0, all = ~std::uint32_t{0};
    int refuses = -1;
    std::uint64_t bytes = 0;
    bool alike = true;
    std::uint32_t kinds = ~std::uint32_t{0};
    const std::uint64_t signature = control_block.proposal(0, _number).signature;
    for (int member = 0; member < control_block.members(); ++member) {
        const Proposal& proposal = control_block.proposal(member, _number);
        any |= proposal.flags;
        all &= proposal.flags;
        alike = alike && proposal.signature == signature;
        bytes = std::max(bytes, proposal.bytes);
        kinds &= proposal.kinds;
        if ((proposal.flags & takes) == 0 && refuses < 0) {
            refuses = member;
        }
    }
    if ((any & failed) != 0) {
        look_for_dead_members("before it came to a collective");  // which then is the reason
        if ((any & revoked) != 0) {
            throw revocation();
        }
        throw Error("another rank failed before it could take part in a collective",
                    "look at that rank's own output for the reason");
    }
    if (!_arguments.compulsory) {
        node_comm._agreed.store(node_comm._reachable ? kinds : 0, std::memory_order_relaxed);
        if (kinds != 0 && !node_comm._reachable && !node_comm._tried) {
            node_comm._must_try = node_comm._tried = true;
        }
    } else if (refuses >= 0 || !alike) {
        throw Error(!alike ? "the ranks pass different arguments to a nonblocking collective"
                           : "a rank cannot take part in a nonblocking collective on device memory" +
                                 (_arguments.obstacle != nullptr ? ": " + std::string(_arguments.obstacle) : ""),
                    "AWAKEN_COLLECTIVES=\"* : staged\" does without the GPUs");
    }
    if (refuses >= 0 || !alike) {
        _decision = (any & device) != 0 ? Decision::staged : Decision::host;
        if (_decision == Decision::staged) {
            const bool is_host = refuses >= 0 && (control_block.proposal(refuses, _number).flags & host) != 0;
            _reason = _arguments.obstacle != nullptr ? _arguments.obstacle
                      : !alike                       ? "the ranks pass different arguments"
                      : is_host                      ? "some rank passes host memory"
                                                     : "another rank cannot take part";
        }
        finish();
        return;
    }
    if ((any & (device | host)) == 0) {
        _decision = Decision::host;  // no member passes anything
        finish();
        return;
    }
    _algorithm = choose(bytes);
    if (_algorithm == Algorithm::staged && _arguments.compulsory) {
        _algorithm = Algorithm::two_shot;
    }
    if (_algorithm == Algorithm::staged) {
        _decision = Decision::staged;
        _reason = "the table of algorithms says so";
        finish();
        return;
    }
    if (_arguments.asks) {
        if (!node_comm._reachable && !node_comm._tried) {
            node_comm._must_try = node_comm._tried = true;
        }
        _decision = Decision::ours;
        finish();
        return;
    }
    if (_algorithm == Algorithm::one_shot && (any & reused) != 0) {
        _algorithm = Algorithm::root_only;  // else a member would write over bytes that another has yet to read
    }
    _ordered = (all & early) != 0 && _algorithm != Algorithm::ccl;
    if (_early && !_ordered) {
        _why_not_in_order =
            _algorithm == Algorithm::ccl ? "NCCL or RCCL does it" : "another rank does not use stream order";
    }
    _together = _ordered && (all & alone) != 0;
    if (_early && !_told && !_together) {
        queue(true, false, nullptr);
    }
    if (!_ordered && (any & early) != 0) {
        _state = State::awaiting;
        return;
    }
    go_on();
}

void CollectiveOp::go_on() {
    NodeComm& node_comm = _node_comm;
    if (_algorithm == Algorithm::ccl) {
        if (wants_ccl()) {
            if (node_comm._ccl.ready()) {
                take_part();
                _state = State::taking_turn;
            } else {
                _state = State::joining;
            }
            return;
        }
        _algorithm = Algorithm::two_shot;
    }
    go_on_with_kernels();
}

/// What the table chooses for so many bytes.
Algorithm CollectiveOp::choose(const std::uint64_t bytes) const noexcept {
    const Occasion occasion{_arguments.kind, type_class_of(_arguments.kind, _arguments.code), _node_comm.members(), 1,
                            bytes};
    return _node_comm._selection.choose(occasion,
                                        _arguments.in_rank_order ? std::optional(Algorithm::ccl) : std::nullopt);
}

/// Whether the table gives this collective to a library, and this member could use it.
bool CollectiveOp::may_use_ccl() const {
    const Arguments& given = _arguments;
    if (!_takes_part || !_node_comm._may_use_library || _device < 0 || given.varying || !given.even ||
        choose(given.bytes) != Algorithm::ccl) {
        return false;
    }
    const ccl::Library* const found = _engine->ccl();
    return found != nullptr && CclCommunicator::supports(*found, given.kind, given.code);
}

/// Whether all members can use the library, and it is worth its price by now. The same in all members.
bool CollectiveOp::wants_ccl() {
    const ControlBlock& control_block = *_node_comm._control_block;
    std::vector<std::uint64_t> devices;
    for (int member = 0; member < control_block.members(); ++member) {
        const Proposal& proposal = control_block.proposal(member, _number);
        if ((proposal.flags & library) == 0 ||
            std::find(devices.begin(), devices.end(), proposal.device) != devices.end()) {
            return false;  // not all have the library, or two share a GPU, which it refuses
        }
        devices.push_back(proposal.device);
    }
    return _node_comm._ccl.wanted(devices);
}

/// The operation is certainly ours.
void CollectiveOp::take_part() {
    _decision = Decision::ours;
    {
        const std::scoped_lock lock(_node_comm._mutex);
        _node_comm.no_more_to_decide(_number);
    }
    _copied = (_send.block && !_arguments.send.gathered) || (_receive.block && !_arguments.receive.gathered);
}

/// Two collectives of different communicators that wait for each other's GPUs would wait for ever. So the members of
/// one go together, while no others do.
bool CollectiveOp::has_turn() {
    ControlBlock& control_block = *_node_comm._control_block;
    Mark& go = control_block.mapped(0, _number);
    if (control_block.own() == 0 && !_has_turn) {
        std::atomic<std::uint64_t>& token = _node_comm._segment.token();
        std::uint64_t holder = 0;
        const auto own = static_cast<std::uint64_t>(_node_comm._segment.own_index()) + 1;
        if (!token.compare_exchange_strong(holder, own, std::memory_order_acq_rel)) {
            if (!check_members("in a collective")) {
                return false;
            }
            // The holder may belong to another communicator. A holder that is dead, or never lived, does not give the
            // turn back.
            const bool lives = holder <= static_cast<std::uint64_t>(_node_comm._segment.processes()) &&
                               _node_comm._segment.alive(static_cast<int>(holder) - 1);
            if (lives || !token.compare_exchange_strong(holder, own, std::memory_order_acq_rel)) {
                return false;
            }
        }
        _has_turn = true;
        go.value.store(mark_of(_number, Outcome::done), std::memory_order_release);
    }
    const std::uint64_t number = go.value.load(std::memory_order_acquire) / 4;
    if (number != _number) {
        check_members("in a collective", number);
        return false;
    }
    return true;
}

void CollectiveOp::give_turn_back() noexcept {
    if (std::exchange(_has_turn, false)) {
        auto own = static_cast<std::uint64_t>(_node_comm._segment.own_index()) + 1;
        _node_comm._segment.token().compare_exchange_strong(own, 0, std::memory_order_acq_rel);
    }
}

void CollectiveOp::start_ccl() {
    const Arguments& given = _arguments;
    CclCommunicator::Operation operation;
    operation.kind = given.kind;
    operation.code = given.code;
    operation.root = given.root;
    operation.members = _node_comm.members();
    operation.own = _node_comm.own();
    operation.elements = given.elements;
    operation.block_bytes = given.block_bytes;
    _reached.resize(static_cast<std::size_t>(_node_comm.members()));
    // Reaches its own buffers only, which need no mapping.
    static_cast<void>(reach(_node_comm.own(), false) && reach(_node_comm.own(), true));
    const MappedPeer& own = _reached[static_cast<std::size_t>(_node_comm.own())];
    operation.send = own.send_address;
    operation.receive = own.receive_address;
    start([&](std::atomic<std::uint64_t>& word, const std::uint64_t value) {
        return _engine->start(
            _device, [&](const gpu::StreamHandle stream) { _node_comm._ccl.communicator().issue(operation, stream); },
            word, value);
    });
    _state = State::working;
}

void CollectiveOp::go_on_with_kernels() {
    NodeComm& node_comm = _node_comm;
    ControlBlock& control_block = *node_comm._control_block;
    _reached.resize(static_cast<std::size_t>(control_block.members()));
    if (must_map_all()) {
        bool ok = true;
        _busy = false;
        for (int member = 0; member < control_block.members() && ok; ++member) {
            ok = reach(member, false) && reach(member, true);
        }
        if (!ok && _busy && _arguments.compulsory) {
            _state = State::reaching;  // all have agreed to do it this way
            return;
        }
        control_block.mapped(node_comm.own(), _number)
            .value.store(mark_of(_number, ok ? Outcome::done : Outcome::failed), std::memory_order_release);
        _state = State::mapping;
        return;
    }
    start_work();
}

bool CollectiveOp::must_map_all() const {
    const ControlBlock& control_block = *_node_comm._control_block;
    for (int member = 0; member < control_block.members(); ++member) {
        const Proposal& proposal = control_block.proposal(member, _number);
        if (!_node_comm.is_known(member, proposal.send) || !_node_comm.is_known(member, proposal.receive)) {
            return true;
        }
    }
    return false;
}

/// Maps a member's buffer, if the member has one.
bool CollectiveOp::reach(const int member, const bool receives) {
    MappedPeer& reached = _reached[static_cast<std::size_t>(member)];
    std::byte*& address = receives ? reached.receive_address : reached.send_address;
    if (address != nullptr) {
        return true;
    }
    ControlBlock& control_block = *_node_comm._control_block;
    const Proposal& proposal = control_block.proposal(member, _number);
    const Side& side = receives ? proposal.receive : proposal.send;
    if (side.allocation == 0 || _device < 0) {
        return true;  // there is none, or this member has nothing to do with it
    }
    if (member == _node_comm.own()) {
        const Shown& shown = receives ? _receive : _send;
        const Buffer& buffer = receives ? _arguments.receive : _arguments.send;
        address = shown.block ? shown.block.data() : buffer.address;
        if (!receives && buffer.state == Buffer::State::unused) {
            address =
                (_receive.block ? _receive.block.data() : _arguments.receive.address) + _arguments.in_place_offset;
        }
        return true;
    }
    const Location& location = receives ? control_block.receive(member, _number) : control_block.send(member, _number);
    gpu::Status status;
    transfer::Mappings::Use& use = receives ? reached.receive : reached.send;
    use = _engine->mappings().open(_node_comm._processes[static_cast<std::size_t>(member)], location, _device, status);
    if (!use) {
        _busy = status.code == gpu::kBusy;
        _engine->note_once("memory of another rank cannot be mapped: " + status.message());
        return false;
    }
    address = use.data();
    return true;
}

bool CollectiveOp::all_have_mapped() {
    NodeComm& node_comm = _node_comm;
    ControlBlock& control_block = *node_comm._control_block;
    bool ok = true;
    for (; _seen < control_block.members(); ++_seen) {
        const std::uint64_t number = control_block.mapped(_seen, _number).value.load(std::memory_order_acquire) / 4;
        if (number != _number) {
            check_members("in a collective", number);
            return false;
        }
    }
    _seen = 0;
    // Relaxed: the loads above have acquired all of them.
    for (int member = 0; member < control_block.members(); ++member) {
        ok = ok && control_block.mapped(member, _number).value.load(std::memory_order_relaxed) ==
                       mark_of(_number, Outcome::done);
    }
    if (!ok && _arguments.compulsory) {
        throw Error("memory of some rank cannot be mapped by another",
                    "AWAKEN_COLLECTIVES=\"* : staged\" does without");
    }
    if (!ok) {
        _decision = Decision::staged;
        _reason = "memory of some rank cannot be mapped by another";
        finish();
        return true;
    }
    node_comm._reachable = true;
    for (int member = 0; member < control_block.members(); ++member) {
        const Proposal& proposal = control_block.proposal(member, _number);
        node_comm.learn(member, proposal.send);
        node_comm.learn(member, proposal.receive);
    }
    start_work();
    return true;
}

/// Bytes from the start of a member's buffer to the end of its allocation, as the member's proposal says.
std::uint64_t CollectiveOp::room_of(const Operand& operand) const noexcept {
    const ControlBlock& control_block = *_node_comm._control_block;
    const auto rest = [](const Location& location, const std::uint64_t offset) {
        const std::uint64_t begin = location.offset + offset;
        return begin < offset || begin > location.allocation_bytes ? 0 : location.allocation_bytes - begin;
    };
    if (operand.member != _node_comm.own()) {
        return rest(operand.receives ? control_block.receive(operand.member, _number)
                                     : control_block.send(operand.member, _number),
                    0);
    }
    if (operand.receives) {
        return rest(_receive.location, 0);
    }
    return _send.needed ? rest(_send.location, 0) : rest(_receive.location, _arguments.in_place_offset);
}

/// The address of an operand. Others' offsets come out of shared memory, so they are checked: no kernel must get an
/// address outside of the buffer.
std::byte* CollectiveOp::address_of(const Operand& operand, const std::uint64_t bytes) {
    const std::uint64_t room = room_of(operand);
    if (operand.offset > room || bytes > room - operand.offset) {
        throw overwritten();
    }
    if (!reach(operand.member, operand.receives)) {
        throw Error("memory of rank " +
                        std::to_string(
                            _node_comm._segment.process(_node_comm._processes[static_cast<std::size_t>(operand.member)])
                                .world_rank) +
                        " of MPI_COMM_WORLD can no longer be mapped",
                    "the GPU runtime is out of resources; AWAKEN_COLLECTIVES=\"* : staged\" does without");
    }
    const MappedPeer& reached = _reached[static_cast<std::size_t>(operand.member)];
    return (operand.receives ? reached.receive_address : reached.send_address) + operand.offset;
}

void CollectiveOp::start_work() {
    NodeComm& node_comm = _node_comm;
    ControlBlock& control_block = *node_comm._control_block;
    take_part();
    _state = State::working;
    const Arguments& given = _arguments;
    Shape shape{given, control_block.members(), control_block.own()};
    shape.element_bytes = given.code != 0 ? kernels::element_bytes(kernels::type_of(given.code)) : 1;
    shape.bytes_from = given.varying && !_bytes_from.empty() ? _bytes_from.data() : nullptr;
    if (given.varying) {
        for (int member = 0; member < control_block.members(); ++member) {
            shape.offsets[static_cast<std::size_t>(member)] = control_block.offsets(member, _number).data();
        }
    }
    _plan = make_plan(shape, _algorithm);
    if (_plan.empty()) {
        mark_done(Outcome::done);
        if (_together) {
            queue(true, true, &ControlBlock::done);
        }
        say_queued();
        return;
    }
    if (_ordered) {
        queue(!_told, true, &ControlBlock::ready);
    }
    std::vector<Engine::Fold> folds;
    const auto number_of = [this](const Operand& operand, const std::uint64_t bytes) {
        return reinterpret_cast<std::uint64_t>(address_of(operand, bytes));
    };
    for (const Combination& combination : _plan.combinations) {
        Engine::Fold fold;
        std::uint64_t bits = 0;
        const std::uint64_t bytes = combination.elements * shape.element_bytes;
        for (unsigned i = 0; i < combination.source_count; ++i) {
            fold.sources.push_back(number_of(combination.sources[i], bytes));
            bits |= fold.sources.back();
        }
        for (unsigned i = 0; i < combination.target_count; ++i) {
            fold.targets.push_back(number_of(combination.targets[i], bytes));
            bits |= fold.targets.back();
        }
        fold.elements = combination.elements;
        fold.code = given.code;
        if (!is_reduction(given.kind)) {
            // Vectors if everything is aligned alike; else the widest elements that fit.
            const std::uint64_t differing = [&] {
                std::uint64_t different = 0;
                for (const std::vector<std::uint64_t>* const list : {&fold.sources, &fold.targets}) {
                    for (const std::uint64_t address : *list) {
                        different |= address ^ fold.sources.front();
                    }
                }
                return different;
            }();
            const std::uint64_t width = differing % 16 == 0 ? 1 : width_of(bits | combination.elements);
            fold.code = copy_code(width == 16 ? 16 : width);
            fold.elements = combination.elements / width;
            if (_engine->prepare(_device, fold.code) != Engine::Kernels::usable) {
                fold.code = copy_code(1);
                fold.elements = combination.elements;
            }
        }
        folds.push_back(std::move(fold));
    }
    std::vector<Engine::Copy> copies;
    copies.reserve(_plan.moves.size());
    for (const Move& move : _plan.moves) {
        copies.push_back({number_of(move.target, move.bytes), number_of(move.source, move.bytes), move.bytes});
    }
    std::vector<std::uint64_t> others;
    Engine::InOrder in_order;
    for (int member = 0; member < _node_comm.members() && _together; ++member) {
        if (member != _node_comm.own()) {
            others.push_back(reinterpret_cast<std::uint64_t>(word_of(&ControlBlock::done, member)));
        }
    }
    in_order.words = others;
    in_order.released = reinterpret_cast<std::uint64_t>(word_of(&ControlBlock::let_go, node_comm.own()));
    in_order.number = static_cast<std::uint32_t>(mark_of(_number, Outcome::done));
    start([&](std::atomic<std::uint64_t>& word, const std::uint64_t value) {
        const bool overlaps = _arguments.compulsory;  // the call has returned
        return _engine->start(_device, folds, copies, word, value,
                              overlaps ? Engine::Beside::kernels : Engine::Beside::nothing,
                              _ordered ? &in_order : nullptr);
    });
    say_queued();
}

/// In order: others' default streams may wait for this member's partition.
void CollectiveOp::say_queued() noexcept {
    if (_ordered) {
        _node_comm._control_block->queued(_node_comm.own(), _number)
            .value.store(mark_of(_number, Outcome::done), std::memory_order_release);
        _state = _together ? State::in_order : State::queueing;
    }
}

void CollectiveOp::start(
    const std::function<Engine::Work(std::atomic<std::uint64_t>& word, std::uint64_t value)>& start) {
    ControlBlock& control_block = *_node_comm._control_block;
    std::atomic<std::uint64_t>* word = &control_block.done(control_block.own(), _number).value;
    const bool registered = _node_comm.registered(*_engine);
    if (!registered) {
        _word = _engine->take_word();
        if (_word == nullptr) {
            throw Error("no page-locked memory for a collective",
                        "free host memory, or raise the limit of locked memory");
        }
        _word->store(0, std::memory_order_relaxed);
        word = _word;
    }
    _work = start(*word, mark_of(_number, Outcome::done));
    _marked = registered;
}

bool CollectiveOp::work_is_done() {
    NodeComm& node_comm = _node_comm;
    ControlBlock& control_block = *node_comm._control_block;
    if (_word != nullptr && _word->load(std::memory_order_acquire) == mark_of(_number, Outcome::done)) {
        _engine->give_back_word(std::exchange(_word, nullptr));
        mark_done(Outcome::done);
    }
    for (; _seen < control_block.members(); ++_seen) {
        const std::uint64_t number = control_block.done(_seen, _number).value.load(std::memory_order_acquire) / 4;
        if (number != _number) {
            check_members("in a collective", number);
            if (_work) {
                const Clock::time_point now = Clock::now();
                if (_queried == Clock::time_point{}) {
                    _queried = now;
                } else if (now - _queried > kBetweenQueries) {
                    _queried = now;
                    static_cast<void>(_work.query());  // throws if the kernel failed
                    if (_algorithm == Algorithm::ccl) {
                        node_comm._ccl.communicator().check();
                        look_for_failed_members();
                    }
                }
            }
            return false;
        }
    }
    _seen = 0;
    give_turn_back();
    _work.finished();
    look_for_failed_members();
    return true;
}

/// Throws Error when a member has failed. The library waits for all members, and does not know of one whose call was
/// refused.
void CollectiveOp::look_for_failed_members() const {
    const ControlBlock& control_block = *_node_comm._control_block;
    for (int member = 0; member < control_block.members(); ++member) {
        const std::uint64_t mark = control_block.done(member, _number).value.load(std::memory_order_acquire);
        if (mark == mark_of(_number, Outcome::revoked)) {
            throw revocation();
        }
        if (mark / 4 == _number && mark > mark_of(_number, Outcome::revoked)) {
            throw overwritten();
        }
        if (mark == mark_of(_number, Outcome::failed)) {
            look_for_dead_members("in a collective");  // which then is the reason
            const int process = _node_comm._processes[static_cast<std::size_t>(member)];
            throw Error("rank " + std::to_string(_node_comm._segment.process(process).world_rank) +
                            " of MPI_COMM_WORLD could not do its part of a collective",
                        "look at that rank's own output for the reason");
        }
    }
}

void CollectiveOp::mark_done(const Outcome outcome) noexcept {
    if (std::exchange(_marked, true)) {
        return;  // the GPU marks it, or has done so
    }
    _node_comm._control_block->done(_node_comm.own(), _number)
        .value.store(mark_of(_number, outcome), std::memory_order_release);
}

/// From now on this member does not look at any other member's memory.
void CollectiveOp::finish() noexcept {
    NodeComm& node_comm = _node_comm;
    _state = State::over;
    if (std::exchange(_uses_library, false)) {
        _engine->end_use_of_library(Engine::LibraryUse::by_turns);
    }
    _traced.end();
    _reached.clear();
    _send.block.release();
    _receive.block.release();
    if (_word != nullptr) {
        _engine->give_back_word(std::exchange(_word, nullptr));
    }
    const std::scoped_lock lock(node_comm._mutex);
    node_comm.no_more_to_decide(_number);
    if (node_comm._finished_here + 1 != _number) {
        node_comm._finished_early.insert(_number);
        return;
    }
    std::uint64_t finished = _number;
    while (!node_comm._finished_early.empty() && *node_comm._finished_early.begin() == finished + 1) {
        node_comm._finished_early.erase(node_comm._finished_early.begin());
        ++finished;
    }
    node_comm._finished_here = finished;
    node_comm._control_block->finished(node_comm.own()).store(finished, std::memory_order_release);
}

}  // namespace awaken::coll
