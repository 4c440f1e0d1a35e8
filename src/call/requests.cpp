// SPDX-License-Identifier: Apache-2.0
#include "call/requests.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <span>

#include "base/step_probe.h"
#include "call/layer.h"
#include "call/progress.h"
#include "gpu/relaxed_capture.h"
#include "mpi/status.h"

namespace awaken::AWAKEN_ABI {

// The request is not one of MPI_PROC_NULL: when such a request is freed, MPICH 4.0.2 hangs in a persistent collective
// that gets the request's place.
int make_persistent_handle(MPI_Request* const handle) {
    *handle = MPI_REQUEST_NULL;
    const int error = layer().real.Recv_init(nullptr, 0, MPI_BYTE, 0, 0, MPI_COMM_SELF, handle);
    return error == MPI_SUCCESS && *handle == MPI_REQUEST_NULL ? MPI_ERR_OTHER : error;
}

std::int64_t received_bytes(const MPI_Status& status) {
    return received_bytes(layer().real, status);
}

std::int64_t transferred_bytes(const MPI_Status& status) {
    return transferred_bytes(layer().real, status);
}

void return_status(MPI_Status* const status, const MPI_Status& own) noexcept {
    if (status != MPI_STATUS_IGNORE) {
        const int kept = status->MPI_ERROR;
        *status = own;
        status->MPI_ERROR = kept;
    }
}

namespace {

/// MPI_Request_get_status of a message, whose errors only the caller sees. The program must see each error once, when
/// it completes the request.
int ask(const MPI_Request request, int& flag, MPI_Status& status) {
    Layer& owner = layer();
    std::optional<ScopedErrorsReturn> quietly;
    if (owner.default_handlers.hear_of_requests()) {
        quietly.emplace(owner.default_handlers);
    }
    return owner.real.Request_get_status(request, &flag, &status);
}

}  // namespace

void Operation::look() {
    AWAKEN_STEP("wait: ask the MPI");
    const CompletionQuery& completion = layer().completion;
    if (completion.available() && progress_op->shows_rts() && !progress_op->may_have_arrived() &&
        !completion.of(native_request)) {
        return;
    }
    int flag = 0;
    MPI_Status status{};
    // A native receive of an RTS, and a send, are never truncated. Any other message may be, and then the MPI would
    // raise the error where the program does not expect it.
    const bool may_fail = progress_op->shows_rts() && !progress_op->may_have_arrived();
    const int error =
        may_fail ? ask(native_request, flag, status) : layer().real.Request_get_status(native_request, &flag, &status);
    if (flag != 0 || error != MPI_SUCCESS) {
        _status = status;
        _status.MPI_ERROR = error;
        _state.store(State::transferring, std::memory_order_release);
    }
}

bool Operation::advance(const bool asked, const Ask ask) {
    if (!progresses() || is_complete()) {
        return true;
    }
    const std::unique_lock lock(progress_mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
        return false;  // another thread advances it
    }
    if (progress_op == nullptr || is_complete()) {
        return true;
    }
    const bool awaited = !has_arrived();
    if (awaited && (ask == Ask::mpi || progress_op->may_have_arrived())) {
        look();
    }
    const transport::Patience patience = asked ? transport::Patience::long_ : transport::Patience::endless;
    if (progress_op->advance(has_arrived() ? &_status : nullptr, patience) && has_arrived()) {
        if (_own_handle && !_spare_handle) {
            layer().real.Grequest_complete(native_request);
        }
        layer().requests.remove_progress_op(*this);
        _state.store(State::complete, std::memory_order_release);
        return true;
    }
    if (awaited && has_arrived()) {
        layer().requests.arrived(*this);
    }
    if (_own_handle && ask == Ask::mpi && ++_looks % kLooksPerProgress == 0) {
        // The MPI has no part in this operation. The layer still calls it, since other ranks may need other operations
        // of the MPI to go on before they can do their part of this one.
        if (_spare_handle) {
            progress_mpi(_looks);
        } else {
            int flag = 0;
            layer().real.Request_get_status(native_request, &flag, MPI_STATUS_IGNORE);
        }
    }
    return false;
}

namespace {

int query_send(void*, MPI_Status* const status) {
    const Native& native = layer().real;
    native.Status_set_elements_x(status, MPI_BYTE, 0);
    native.Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}
int free_send(void*) {
    return MPI_SUCCESS;
}
int cancel_send(void*, int) {
    return MPI_SUCCESS;  // a sent message cannot be cancelled, and the status says so
}

}  // namespace

void Operation::take_own_handle(MPI_Request* const request) {
    const Native& native = layer().real;
    if (Requests::is_over_at_once(*request)) {
        native.Wait(request, MPI_STATUS_IGNORE);
        _own_handle = true;
        if (const MPI_Request spare = layer().requests.take_spare_handle(); spare != MPI_REQUEST_NULL) {
            _spare_handle = true;
            handle = *request = spare;
            native_request = MPI_REQUEST_NULL;
            return;
        }
        native.Grequest_start(&query_send, &free_send, &cancel_send, nullptr, request);
    }
    handle = native_request = *request;
}

void Operation::need_native_request() {
    if (_spare_handle && native_request == MPI_REQUEST_NULL && is_complete()) {
        const Native& native = layer().real;
        native.Grequest_start(&query_send, &free_send, &cancel_send, nullptr, &native_request);
        native.Grequest_complete(native_request);
    }
}

Operation::~Operation() {
    if (_spare_handle) {
        layer().requests.give_back(handle);
    }
}

int Operation::start_own_native_request() {
    const int error = layer().real.Grequest_start(&query_send, &free_send, &cancel_send, nullptr, &native_request);
    _own_handle = error == MPI_SUCCESS;
    return error;
}

int Operation::start_own_handle(MPI_Request* const request) {
    const int error = start_own_native_request();
    handle = *request = native_request;
    return error;
}

void Operation::begin(std::unique_ptr<ProgressOp> what) {
    const std::scoped_lock lock(progress_mutex);
    progress_op = std::move(what);
    _state.store(_own_handle ? State::transferring : State::posted, std::memory_order_release);
}

void Operation::started(const bool successfully) noexcept {
    if (!successfully) {
        _state.store(State::inactive, std::memory_order_release);
    } else if (!is_active()) {
        _state.store(State::native, std::memory_order_release);
    }
}

void Operation::leave() {
    if (progresses() && !is_complete()) {
        const std::scoped_lock lock(progress_mutex);
        if (progress_op != nullptr) {
            progress_op->leave();
        }
    }
}

void Operation::leave_if_arrived() {
    if (state() == State::transferring) {
        const std::unique_lock lock(progress_mutex, std::try_to_lock);  // or another thread advances it
        if (lock.owns_lock() && progress_op != nullptr) {
            progress_op->leave();
        }
    }
}

void Operation::store(MPI_Status& status, const int error) {
    if (progresses()) {
        const std::scoped_lock lock(progress_mutex);
        int outcome = error;
        progress_op->conclude(status, outcome);
        return;
    }
    const int error_class = class_of(layer().real, error);
    // A flush of a window stores for its requests too, in any thread.
    const std::scoped_lock lock(mutex);
    if (!stored && (error == MPI_SUCCESS || (receives && error_class == MPI_ERR_TRUNCATE)) && stage) {
        stage->store(receives ? received_bytes(status) : reads ? transferred_bytes(status) : -1);
    }
    stored = true;
}

void Operation::complete(MPI_Status& status, int& error) {
    if (progresses()) {
        if (!is_complete()) {
            layer().requests.remove_progress_op(*this);
        }
        std::unique_ptr<ProgressOp> over;
        {
            const std::scoped_lock lock(progress_mutex);
            over = std::move(progress_op);
            _state.store(State::inactive, std::memory_order_release);
        }
        over->conclude(status, error);  // may run the program's error handler, which may call MPI or throw
        return;
    }
    _state.store(State::inactive, std::memory_order_release);
    if (unprepared) {
        unprepared = false;
        layer().receive_readiness.ended_unprepared();
    }
    store(status, error);
    const std::scoped_lock lock(mutex);
    if (stage && (kind == Kind::once || kind == Kind::rebinding)) {
        stage->release();
    }
    stored = false;
}

void MatchedMessages::found(const MPI_Message message, const MPI_Comm communicator) {
    const std::scoped_lock lock(_mutex);
    _found.emplace_back(message, communicator);
}

MPI_Comm MatchedMessages::take(const MPI_Message message) {
    const std::scoped_lock lock(_mutex);
    // Searches from the end: if a handle was used twice, the newer message counts.
    const auto known =
        std::find_if(_found.rbegin(), _found.rend(), [&](const auto& each) { return each.first == message; });
    if (known == _found.rend()) {
        return MPI_COMM_SELF;
    }
    const MPI_Comm communicator = known->second;
    _found.erase(std::next(known).base());
    return communicator;
}

void Requests::add_progress_op(const std::shared_ptr<Operation>& operation, std::unique_ptr<ProgressOp> progress_op) {
    const ProgressOp& begun = *progress_op;
    const bool needs_calls = begun.needs_calls();
    operation->attended.store(needs_calls, std::memory_order_relaxed);
    operation->begin(std::move(progress_op));
    {
        const std::scoped_lock lock(_progress_mutex);
        UnderWay& list = operation->has_arrived() ? _arrived : _awaited;
        operation->_place = list.insert(list.end(), operation);
        operation->_list = &list;
        _progress_count.store(_awaited.size() + _arrived.size(), std::memory_order_release);
    }
    if (needs_calls) {
        for (WaitLoop waiting; begun.needs_calls(); waiting.turn()) {
            static_cast<void>(operation->advance(true));
        }
        operation->attended.store(false, std::memory_order_relaxed);
    }
}

void Requests::leave_list(const Operation& operation) {
    for (UnderWay::iterator* const next : {&_next_look, &_next_question, &_next_arrived}) {
        if (*next == operation._place) {
            ++*next;
        }
    }
}

void Requests::arrived(Operation& operation) {
    const std::scoped_lock lock(_progress_mutex);
    if (operation._list == &_awaited) {
        leave_list(operation);
        _arrived.splice(_arrived.end(), _awaited, operation._place);
        operation._list = &_arrived;
    }
}

void Requests::remove_progress_op(Operation& operation) {
    UnderWay removed;  // destroyed without the lock
    const std::scoped_lock lock(_progress_mutex);
    if (operation._list != nullptr) {
        leave_list(operation);
        removed.splice(removed.end(), *std::exchange(operation._list, nullptr), operation._place);
        _progress_count.store(_awaited.size() + _arrived.size(), std::memory_order_release);
    }
}

UnderWay::iterator Requests::in_turn(UnderWay& list, UnderWay::iterator& next) {
    const UnderWay::iterator at = next == list.end() ? list.begin() : next;
    next = std::next(at);
    return at;
}

void Requests::advance_progress_ops() {
    AWAKEN_STEP("advance progress ops");
    layer().node_peers.look_at_network();
    if (!any_progress_ops()) {
        return;
    }
    // When the layer asks about one operation, the MPI advances all. With very many operations, to ask about each would
    // take longer than the caller's own wait.
    constexpr std::size_t kLooks = 64;
    std::array<std::shared_ptr<Operation>, 2 * kLooks + 1> some;
    std::size_t count = 0;
    const Operation* asked = nullptr;
    {
        const std::scoped_lock lock(_progress_mutex);
        const auto take = [&](UnderWay& list, UnderWay::iterator& next) {
            const std::shared_ptr<Operation>& operation = *in_turn(list, next);
            if (!operation->attended.load(std::memory_order_relaxed)) {
                some[count++] = operation;
            }
            return operation.get();
        };
        const std::size_t all = _arrived.size() + _awaited.size();
        if (all == 0) {
            return;
        }
        for (std::size_t looks = std::min(kLooks, _arrived.size()); looks != 0; --looks) {
            take(_arrived, _next_arrived);
        }
        asked = some.front().get();
        for (std::size_t looks = std::min(kLooks, _awaited.size()); looks != 0; --looks) {
            take(_awaited, _next_look);
        }
        if (_turn++ % all >= _arrived.size()) {
            asked = take(_awaited, _next_question);
        }
    }
    const std::span<const std::shared_ptr<Operation>> taken(some.data(), count);
    const gpu::CallsTogether together;
    for (const std::shared_ptr<Operation>& operation : taken) {
        static_cast<void>(
            operation->advance(false, operation.get() == asked ? Operation::Ask::mpi : Operation::Ask::memory));
    }
    // The caller waits for something else, perhaps in the MPI, and these operations must go on without it. This comes
    // after all looks, so that copies of messages that have arrived at the same time start together.
    for (const std::shared_ptr<Operation>& operation : taken) {
        operation->leave_if_arrived();
    }
}

void Requests::leave_progress_ops() {
    if (!any_progress_ops()) {
        return;
    }
    std::vector<std::shared_ptr<Operation>> arrived;  // the others were left when they began
    {
        const std::scoped_lock lock(_progress_mutex);
        arrived.assign(_arrived.begin(), _arrived.end());
    }
    for (const std::shared_ptr<Operation>& operation : arrived) {
        operation->leave();
    }
}

bool Requests::is_over_at_once(const MPI_Request request) {
    int done = 0;
    return layer().real.Request_get_status(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
}

std::shared_ptr<Operation> Requests::find_locked(const MPI_Request request) const {
    const auto found = request != MPI_REQUEST_NULL ? _operations.find(request) : _operations.end();
    if (found == _operations.end() || found->second->completing.load(std::memory_order_acquire)) {
        return nullptr;
    }
    return found->second;
}

std::shared_ptr<Operation> Requests::find(const MPI_Request request) const {
    const std::scoped_lock lock(_mutex);
    return find_locked(request);
}

void Requests::find(const std::vector<MPI_Request>& requests,
                    std::vector<std::shared_ptr<Operation>>& operations) const {
    operations.reserve(requests.size());
    const std::scoped_lock lock(_mutex);
    for (const MPI_Request request : requests) {
        operations.push_back(find_locked(request));
    }
}

int Requests::first_over(const int count, const MPI_Request* const requests) const {
    const std::scoped_lock lock(_mutex);
    for (int i = 0; i < count; ++i) {
        const auto found = requests[i] != MPI_REQUEST_NULL ? _operations.find(requests[i]) : _operations.end();
        if (found != _operations.end() && found->second->is_complete() &&
            !found->second->completing.load(std::memory_order_acquire)) {
            return i;
        }
    }
    return count;
}

MPI_Request Requests::take_spare_handle() {
    const std::scoped_lock lock(_spare_mutex);
    if (!_has_world) {
        return MPI_REQUEST_NULL;
    }
    if (_spare_handles.empty()) {
        MPI_Request made = MPI_REQUEST_NULL;
        const int error = _native.Send_init(nullptr, 0, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_SELF, &made);
        return error == MPI_SUCCESS ? made : MPI_REQUEST_NULL;
    }
    const MPI_Request spare = _spare_handles.back();
    _spare_handles.pop_back();
    return spare;
}

void Requests::give_back(const MPI_Request spare_handle) noexcept {
    const std::scoped_lock lock(_spare_mutex);
    if (_has_world) {
        try {
            _spare_handles.push_back(spare_handle);
        } catch (const std::bad_alloc&) {
            // The MPI frees it at its end.
        }
    }
}

void Requests::world_started() noexcept {
    const std::scoped_lock lock(_spare_mutex);
    _has_world = true;
}

void Requests::world_stopping() noexcept {
    const std::scoped_lock lock(_spare_mutex);
    _has_world = false;
    for (MPI_Request& spare : _spare_handles) {
        _native.Request_free(&spare);
    }
    _spare_handles.clear();
}

void Requests::track(std::shared_ptr<Operation> operation) {
    AWAKEN_STEP("track");
    const std::scoped_lock lock(_mutex);
    const MPI_Request handle = operation->handle;
    _operations.insert_or_assign(handle, std::move(operation));
    _tracked.store(_operations.size(), std::memory_order_release);
}

void Requests::forget(const Operation& operation) {
    const std::scoped_lock lock(_mutex);
    const auto found = _operations.find(operation.handle);
    if (found != _operations.end() && found->second.get() == &operation) {
        _operations.erase(found);
        _tracked.store(_operations.size(), std::memory_order_release);
    }
}

void Requests::orphan(std::shared_ptr<Operation> operation) {
    const std::scoped_lock lock(_orphaned_mutex);
    _orphaned.push_back(std::move(operation));
    _orphaned_count.fetch_add(1, std::memory_order_release);
}

Requests::Taken::Taken(Requests& from) : _from(from) {
    const std::scoped_lock lock(_from._orphaned_mutex);
    _operations.swap(_from._orphaned);
}

Requests::Taken::~Taken() {
    const std::scoped_lock lock(_from._orphaned_mutex);
    // Puts them before those that were orphaned meanwhile.
    _from._orphaned.insert(_from._orphaned.begin(), std::make_move_iterator(_operations.begin()),
                           std::make_move_iterator(_operations.end()));
}

std::shared_ptr<Operation> Requests::Taken::remove(const std::size_t at) {
    std::shared_ptr<Operation> removed = std::move(_operations[at]);
    _operations.erase(_operations.begin() + static_cast<std::ptrdiff_t>(at));
    _from._orphaned_count.fetch_sub(1, std::memory_order_release);
    return removed;
}

void Requests::progress_orphaned() {
    // Runs without the lock, and with the operations out of the list: an error goes to the program's error handler,
    // which may call MPI and so enter this function again, or throw.
    Taken taken(*this);
    for (std::size_t at = 0; at < taken.size();) {
        if (!taken[at].advance(true)) {
            taken[at].leave();
            ++at;
            continue;
        }
        int flag = 0;
        MPI_Status status{};
        int error = MPI_SUCCESS;
        try {
            error = _native.Test(&taken[at].native_request, &flag, &status);
        } catch (...) {
            remove_progress_op(*taken.remove(at));  // the MPI has completed it
            throw;
        }
        if (flag == 0 && error == MPI_SUCCESS) {
            ++at;
            continue;
        }
        const std::shared_ptr<Operation> over = taken.remove(at);
        try {
            over->complete(status, error);
        } catch (const Error& failure) {
            fprintf(stderr, "awaken: a freed request could not be completed: %s\n", failure.what());
        }
        // A persistent request still exists after its completion.
        if (over->kind != Operation::Kind::once && over->native_request != MPI_REQUEST_NULL) {
            _native.Request_free(&over->native_request);
        }
    }
}

void Requests::finish_orphaned() {
    for (WaitLoop waiting; any_orphaned(); waiting.turn()) {
        progress_orphaned();
    }
}

}  // namespace awaken::AWAKEN_ABI
