// SPDX-License-Identifier: Apache-2.0
// Waits for, tests, cancels and frees requests.
//
// While no operation of the layer is under way, these functions cost one load more. Otherwise the layer replaces the
// program's handles by the native requests of its operations. The MPI completes them in one call together with all
// others, and the layer copies back what has arrived. The layer first finishes an operation with a progress operation:
// while bytes of it are under way beside the MPI, the layer hides its native request from the MPI's completion
// functions.

#include <algorithm>
#include <vector>

#include "base/recycled.h"
#include "base/step_probe.h"
#include "call/call.h"
#include "call/progress.h"
#include "call/services.h"
#include "gpu/relaxed_capture.h"
#include "mpi/status.h"
#include "p2p/operations.h"
#include "protocol/polling_order.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// An operation in a stream may be complete when the stream says that it has come to it.
void announce_streams() {
    if (StreamWork* const work = layer().stream_work.load(std::memory_order_acquire)) {
        work->announce();
    }
}

/// Notices which unprepared native receives a call has completed.
class UnpreparedWatch {
  public:
    UnpreparedWatch(const int count, const MPI_Request* const requests) : _requests(requests) {
        announce_streams();
        if (layer().receive_readiness.any_unprepared() && count > 0) {
            _before.assign(requests, requests + count);
        }
    }
    UnpreparedWatch(const UnpreparedWatch&) = delete;
    UnpreparedWatch& operator=(const UnpreparedWatch&) = delete;
    ~UnpreparedWatch() {
        for (std::size_t i = 0; i < _before.size(); ++i) {
            if (_before[i] != MPI_REQUEST_NULL && _requests[i] == MPI_REQUEST_NULL) {
                layer().receive_readiness.completed(_before[i]);
            }
        }
    }

  private:
    const MPI_Request* _requests;
    std::vector<MPI_Request> _before;
};

/// The program's requests. Native requests stand in place of those that the layer tracks. While bytes of an operation
/// are under way beside the MPI, its native request is hidden: MPI_REQUEST_NULL stands there.
class NativeRequests {
  public:
    NativeRequests(const int count, MPI_Request* const requests) : _requests(requests) {
        const auto n = static_cast<std::size_t>(count > 0 ? count : 0);
        _native_requests.assign(requests, requests + n);
        layer().requests.find(_native_requests, _operations);
        for (std::size_t i = 0; i < _operations.size(); ++i) {
            if (Operation* const operation = _operations[i].get(); operation != nullptr) {
                // A persistent operation is inactive between its completions, and so is its native handle.
                _native_requests[i] = operation->is_active() ? operation->native_request : operation->handle;
                if (operation->is_active()) {
                    operation->completing.store(operation->kind == Operation::Kind::once, std::memory_order_release);
                    _any = true;
                    _progresses = _progresses || operation->progresses();
                }
            }
        }
    }
    NativeRequests(const NativeRequests&) = delete;
    NativeRequests& operator=(const NativeRequests&) = delete;
    ~NativeRequests() {
        for (const std::shared_ptr<Operation>& operation : _operations) {
            if (operation != nullptr) {
                operation->completing.store(false, std::memory_order_release);
            }
        }
    }

    /// False when the program's own array serves as well.
    [[nodiscard]] bool any() const noexcept { return _any; }
    [[nodiscard]] MPI_Request* data() noexcept { return _native_requests.data(); }

    /// For MPI_Wait and MPI_Waitall: advances the operations until all are over.
    void finish() {
        AWAKEN_STEP("Waitall: finish");
        if (_progresses) {
            wait([this](const bool all) { return all; });
        }
    }
    /// For MPI_Waitany and MPI_Waitsome: until `ask` says so, which asks the MPI about the requests that are not
    /// hidden. It is not called while there is none.
    template <class Ask>
    void finish_some(const Ask& ask) {
        hide();
        wait([this, &ask](bool) { return _shown != 0 && ask(); });
        leave();
    }
    /// For MPI_Test and MPI_Testall: advances the operations as far as they can go. True when all are over.
    [[nodiscard]] bool try_to_finish() {
        const bool over = !_progresses || advance(false);
        if (!over) {
            leave();
        }
        return over;
    }
    /// For MPI_Testany and MPI_Testsome: calls `ask` once.
    template <class Ask>
    void try_to_finish_some(const Ask& ask) {
        hide();
        static_cast<void>(advance(true));
        if (_shown != 0) {
            static_cast<void>(ask());
        }
        leave();
    }
    /// Some operations have to be advanced before the MPI completes their native requests.
    [[nodiscard]] bool progresses() const noexcept { return _progresses; }

    /// The MPI has completed request i with this status and outcome. Both become what the program sees.
    void complete(const int i, MPI_Status& status, int& error) {
        const auto at = static_cast<std::size_t>(i);
        const std::shared_ptr<Operation>& operation = _operations[at];
        if (operation == nullptr || !operation->is_active()) {
            _requests[at] = _native_requests[at];
            return;
        }
        const MPI_Request handle = _requests[at];
        if (operation->kind == Operation::Kind::once) {
            layer().requests.forget(*operation);
            _requests[at] = MPI_REQUEST_NULL;
        }
        Call& call = *Call::current;
        if (!layer().tracing) [[likely]] {
            deliver(*operation, call, status, error);
            return;
        }
        static_cast<void>(call.take_accounted());
        deliver(*operation, call, status, error);
        if (const Call::Accounted part = call.take_accounted(); part.bytes > 0) {
            layer().trace.operations.learned(handle, part.path, static_cast<std::uint64_t>(part.bytes));
        }
    }

  private:
    /// While this call advances its operations, others do not, and none is handed to the background thread.
    class Attention {
      public:
        explicit Attention(const std::vector<std::shared_ptr<Operation>>& operations) : _operations(operations) {
            set(true);
        }
        Attention(const Attention&) = delete;
        Attention& operator=(const Attention&) = delete;
        ~Attention() { set(false); }

      private:
        void set(const bool attended) const noexcept {
            for (const std::shared_ptr<Operation>& operation : _operations) {
                if (operation != nullptr) {
                    operation->attended.store(attended, std::memory_order_relaxed);
                }
            }
        }
        const std::vector<std::shared_ptr<Operation>>& _operations;
    };

    /// Rounds in the order of protocol/polling_order.h, until `enough(all are over)`.
    template <class Enough>
    void wait(const Enough& enough) {
        constexpr unsigned kOthers = 16;
        protocol::PollingOrder looks(_operations.size());
        for (std::size_t i = 0; i < _operations.size(); ++i) {
            const std::shared_ptr<Operation>& operation = _operations[i];
            if (operation != nullptr && operation->progresses()) {
                looks.add(i, operation->has_arrived());
            }
        }
        const Attention attention(_operations);
        const Together together;
        for (WaitLoop waiting(kOthers);; waiting.turn()) {
            AWAKEN_STEP("Waitall: round");
            const gpu::CallsTogether calls_together;
            layer().node_peers.ask_readiness();
            const bool over = looks.round([this](const std::size_t i, const bool asks) {
                using Found = protocol::PollingOrder::Found;
                return look(i, asks ? Operation::Ask::mpi : Operation::Ask::memory) ? Found::over
                       : _operations[i]->has_arrived()                              ? Found::arrived
                                                                                    : Found::awaited;
            });
            if (enough(over)) {
                return;
            }
            together.look();
        }
    }
    /// Looks at each operation once, or at some of very many, others the next time. True when all are over. With `any`
    /// it asks the MPI about each: programs expect to hear at once of a message that has come. Else it asks about one
    /// after the other until one has not arrived, and about one more, as a call that waits does.
    [[nodiscard]] bool advance(const bool any) {
        constexpr std::size_t kMost = 128;
        static thread_local std::size_t turn = 0;
        const std::size_t count = _operations.size(), also = ++turn % count;
        const std::size_t first = count > kMost ? turn * kMost % count : 0;
        const Together together;
        const gpu::CallsTogether calls_together;
        layer().node_peers.ask_readiness();
        bool all = true, asks = true;
        std::size_t looks = 0;
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t i = (first + k) % count;
            const Operation* const operation = _operations[i].get();
            if (operation == nullptr || !operation->is_active()) {
                continue;
            }
            const bool may_look = operation->is_complete() || looks++ < kMost;
            if (!may_look || !look(i, any || asks || i == also ? Operation::Ask::mpi : Operation::Ask::memory)) {
                asks = asks && operation->has_arrived();
                all = false;
            }
        }
        return all;
    }
    /// Advances operation i. True when the MPI can complete its native request, which is shown then.
    [[nodiscard]] bool look(const std::size_t i, const Operation::Ask ask) {
        Operation& operation = *_operations[i];
        if (!operation.advance(true, ask)) {
            return false;
        }
        if (_hides && _native_requests[i] == MPI_REQUEST_NULL) {
            operation.need_native_request();
            _native_requests[i] = operation.native_request;
            _shown += _native_requests[i] != MPI_REQUEST_NULL ? 1 : 0;
        }
        return true;
    }
    void hide() {
        _hides = true;
        for (std::size_t i = 0; i < _operations.size(); ++i) {
            if (_operations[i] != nullptr && _operations[i]->progresses()) {
                _native_requests[i] = MPI_REQUEST_NULL;
            }
            _shown += _native_requests[i] != MPI_REQUEST_NULL ? 1 : 0;
        }
    }
    /// The call ends, and operations go on.
    void leave() {
        for (const std::shared_ptr<Operation>& operation : _operations) {
            if (operation != nullptr && operation->has_arrived()) {  // the others were left when they began
                operation->leave();
            }
        }
    }

    /// An error becomes the outcome of this operation: the MPI has completed those after it as well.
    static void deliver(Operation& operation, Call& call, MPI_Status& status, int& error) {
        try {
            operation.complete(status, error);
        } catch (const ClassedError& failure) {
            error = call.fail(failure.error_class, failure);
        } catch (const Error& failure) {
            error = call.fail(MPI_ERR_OTHER, failure);
        }
    }

    MPI_Request* const _requests;
    ScratchVector<MPI_Request> _scratch;
    ScratchVector<std::shared_ptr<Operation>> _more_scratch;
    std::vector<MPI_Request>& _native_requests = *_scratch;
    std::vector<std::shared_ptr<Operation>>& _operations = *_more_scratch;
    std::size_t _shown = 0;  ///< requests that are neither null nor hidden, once some are hidden
    bool _any = false;
    bool _progresses = false;
    bool _hides = false;
};

/// Lets `serve` complete native requests in place of the program's, or calls `pass_on` where the layer has none of
/// them.
template <class Serve, class PassOn>
int complete_natively(const int count, MPI_Request* const requests, const Serve& serve, const PassOn& pass_on) {
    const UnpreparedWatch watch(count, requests);
    if (layer().requests.any() && count > 0 && requests != nullptr) {
        NativeRequests native_requests(count, requests);
        if (native_requests.any()) {
            return serve(native_requests);
        }
    }
    return pass_on();
}

/// True when the MPI is to be asked: MPI_Wait and MPI_Waitall, which have no flag, wait until then.
template <class... Flag>
bool is_time_to_ask(NativeRequests& native_requests, Flag*... flag) {
    if constexpr (sizeof...(Flag) == 0) {
        native_requests.finish();
    } else if (!native_requests.try_to_finish()) {
        ((*flag = 0), ...);
        return false;
    }
    return true;
}

/// MPI_Wait and MPI_Test.
struct CompleteOne {
    template <Function function>
    static int run(Call&, MPI_Request* request, MPI_Status* status) {
        return complete<function>(request, status);
    }
    template <Function function>
    static int run(Call&, MPI_Request* request, int* flag, MPI_Status* status) {
        return complete<function>(request, status, flag);
    }

  private:
    template <Function function, class... Flag>
    static int complete(MPI_Request* const request, MPI_Status* const status, Flag*... flag) {
        const auto serve = [&](NativeRequests& native_requests) -> int {
            if (!is_time_to_ask(native_requests, flag...)) {
                return MPI_SUCCESS;
            }
            MPI_Status own{};
            int error = below<function>()(native_requests.data(), flag..., &own);
            if (error != MPI_SUCCESS || (true && ... && (*flag != 0))) {
                native_requests.complete(0, own, error);
                return_status(status, own);
            }
            return error;
        };
        return complete_natively(1, request, serve, [&] { return below<function>()(request, flag..., status); });
    }
};

/// A status in a type of this ABI's namespace. MPI_Status has one name in all ABIs, but a different size in each. The
/// linker would take std::vector<MPI_Status> of two cores for the same class.
struct StatusSlot {
    MPI_Status value;
};
static_assert(sizeof(StatusSlot) == sizeof(MPI_Status), "an array of slots is an array of statuses");

/// The layer's own statuses if the program ignores them.
class Statuses {
  public:
    Statuses(const int count, MPI_Status* const given) : _given(given) {
        const auto n = static_cast<std::size_t>(count > 0 ? count : 0);
        if (given == MPI_STATUSES_IGNORE) {
            _own.resize(n);
        } else {
            std::fill_n(given, n, MPI_Status{});  // an MPI may not set them on an error
        }
    }
    [[nodiscard]] MPI_Status* data() noexcept { return _own.empty() ? _given : &_own.front().value; }

  private:
    MPI_Status* const _given;
    ScratchVector<StatusSlot> _scratch;
    std::vector<StatusSlot>& _own = *_scratch;
};

/// The outcome of one of several requests. The statuses hold it only when the call returned MPI_ERR_IN_STATUS.
int outcome(const int error, const MPI_Status& status) {
    return class_of(layer().real, error) == MPI_ERR_IN_STATUS ? status.MPI_ERROR : error;
}

/// Completes the operations of the requests that the MPI has completed: of all, or of those with these indices. Returns
/// the outcome of the call, which a progress operation may turn into an error.
int complete_all(NativeRequests& native_requests, const int count, const int error, MPI_Status* const statuses,
                 const int* const indices = nullptr) {
    AWAKEN_STEP("Waitall: complete all");
    const auto completed_error = [&](const int i) { return outcome(error, statuses[i]); };
    int result = error;
    for (int i = 0; i < count; ++i) {
        const int native = completed_error(i);
        int one = native;
        if (class_of(layer().real, one) != MPI_ERR_PENDING) {
            native_requests.complete(indices != nullptr ? indices[i] : i, statuses[i], one);
        }
        if (one != native && result != MPI_ERR_IN_STATUS) {
            // From here on the statuses tell the outcomes, also of those before.
            for (int before = 0; before < i; ++before) {
                statuses[before].MPI_ERROR = completed_error(before);
            }
            result = MPI_ERR_IN_STATUS;
        }
        if (result == MPI_ERR_IN_STATUS) {
            statuses[i].MPI_ERROR = one;
        }
    }
    return result;
}

/// MPI_Waitall and MPI_Testall.
struct CompleteAll {
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], MPI_Status* statuses) {
        AWAKEN_STEP("Waitall");
        // MPICH's ends the program when it meets a generalized request that is not complete, beside one that is null.
        if (StreamWork* const work = layer().stream_work.load(std::memory_order_acquire);
            work != nullptr && count > 0) {
            work->announce();
            work->finish({requests, static_cast<std::size_t>(count)});
        }
        return complete<function>(count, requests, statuses);
    }
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], int* flag, MPI_Status* statuses) {
        return complete<function>(count, requests, statuses, flag);
    }

  private:
    template <Function function, class... Flag>
    static int complete(const int count, MPI_Request* const requests, MPI_Status* const statuses, Flag*... flag) {
        const auto serve = [&](NativeRequests& native_requests) -> int {
            if (!is_time_to_ask(native_requests, flag...)) {
                return MPI_SUCCESS;
            }
            Statuses own(count, statuses);
            const int error = below<function>()(count, native_requests.data(), flag..., own.data());
            return error != MPI_SUCCESS || (true && ... && (*flag != 0))
                       ? complete_all(native_requests, count, error, own.data())
                       : error;
        };
        return complete_natively(count, requests, serve,
                                 [&] { return below<function>()(count, requests, flag..., statuses); });
    }
};

/// Completes the first request whose progress operation is over, without a look at the others. False if there is none.
bool complete_first(const int count, MPI_Request* const requests, int& index, MPI_Status* const status, int& error) {
    const int first = layer().requests.first_over(count, requests);
    if (first == count) {
        return false;
    }
    NativeRequests native_request(1, requests + first);
    MPI_Status own{};
    error = layer().below.Wait(native_request.data(), &own);
    native_request.complete(0, own, error);
    return_status(status, own);
    index = first;
    return true;
}

/// MPI_Waitany and MPI_Testany.
struct CompleteAny {
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], int* index, MPI_Status* status) {
        return complete<function>(count, requests, index, status);
    }
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], int* index, int* flag, MPI_Status* status) {
        return complete<function>(count, requests, index, status, flag);
    }

  private:
    template <Function function, class... Flag>
    static int complete(const int count, MPI_Request* const requests, int* const index, MPI_Status* const status,
                        Flag*... flag) {
        const UnpreparedWatch watch(count, requests);
        if (layer().requests.any() && count > 0) {
            if (int error = MPI_SUCCESS; complete_first(count, requests, *index, status, error)) {
                ((*flag = 1), ...);
                return error;
            }
            NativeRequests native_requests(count, requests);
            if (native_requests.any()) {
                return complete_shown<function>(native_requests, count, index, status, flag...);
            }
        }
        return below<function>()(count, requests, index, flag..., status);
    }

    template <Function function, class... Flag>
    static int complete_shown(NativeRequests& native_requests, const int count, int* const index,
                              MPI_Status* const status, Flag*... flag) {
        MPI_Status own{};
        int error = MPI_SUCCESS;
        int found = 0;
        *index = MPI_UNDEFINED;
        if (!native_requests.progresses()) {
            error = below<function>()(count, native_requests.data(), index, flag..., &own);
            found = (1 & ... & *flag);
        } else {
            const auto ask = [&] {
                error = layer().below.Testany(count, native_requests.data(), index, &found, &own);
                found = *index != MPI_UNDEFINED ? found : 0;  // "all inactive" holds only for those that are shown
                return found != 0 || error != MPI_SUCCESS;
            };
            if constexpr (sizeof...(Flag) == 0) {
                native_requests.finish_some(ask);  // not all requests are inactive: one will complete
            } else {
                native_requests.try_to_finish_some(ask);
            }
            ((*flag = found), ...);
        }
        if (*index != MPI_UNDEFINED && (found != 0 || error != MPI_SUCCESS)) {
            native_requests.complete(*index, own, error);
        } else if (found == 0) {
            *index = MPI_UNDEFINED;
        }
        if (error != MPI_SUCCESS || (true && ... && (*flag != 0))) {
            return_status(status, own);
        }
        return error;
    }
};

/// MPI_Waitsome and MPI_Testsome.
struct CompleteSome {
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], int* completed, int indices[], MPI_Status* statuses) {
        const auto serve = [&](NativeRequests& native_requests) -> int {
            Statuses own(count, statuses);
            int error = MPI_SUCCESS;
            if (!native_requests.progresses()) {
                error = below<function>()(count, native_requests.data(), completed, indices, own.data());
            } else {
                *completed = 0;
                const auto ask = [&] {
                    error = layer().below.Testsome(count, native_requests.data(), completed, indices, own.data());
                    *completed = *completed == MPI_UNDEFINED ? 0 : *completed;
                    return *completed != 0 || error != MPI_SUCCESS;
                };
                if constexpr (function == Function::Waitsome) {
                    native_requests.finish_some(ask);
                } else {
                    native_requests.try_to_finish_some(ask);
                }
            }
            return *completed == MPI_UNDEFINED ? error
                                               : complete_all(native_requests, *completed, error, own.data(), indices);
        };
        return complete_natively(count, requests, serve,
                                 [&] { return below<function>()(count, requests, completed, indices, statuses); });
    }
};

/// True when the progress operation of the request is over. The MPI answers the rest.
[[nodiscard]] bool is_ready(const MPI_Request request) {
    announce_streams();
    const auto operation = layer().requests.find(request);
    if (operation == nullptr || !operation->is_active() || operation->advance(true)) {
        return true;
    }
    operation->leave();
    return false;
}

/// Stores the data of an operation that is over but not completed by the program: the program may use the data from now
/// on.
void store_early(const MPI_Request request, MPI_Status& status) {
    if (const auto operation = layer().requests.find(request); operation != nullptr && operation->is_active()) {
        operation->store(status, MPI_SUCCESS);
    }
}

[[nodiscard]] MPI_Request native_request_of(const MPI_Request request) {
    const auto operation = layer().requests.find(request);
    if (operation == nullptr || !operation->is_active()) {
        return request;
    }
    operation->need_native_request();
    return operation->native_request;
}

struct GetStatus {
    template <Function function>
    static int run(Call&, MPI_Request request, int* flag, MPI_Status* status) {
        if (!layer().requests.any()) {
            return below<function>()(request, flag, status);
        }
        if (!is_ready(request)) {
            *flag = 0;
            return MPI_SUCCESS;
        }
        MPI_Status own{};
        const int error = below<function>()(native_request_of(request), flag, &own);
        if (error == MPI_SUCCESS && *flag != 0) {
            store_early(request, own);
            return_status(status, own);
        }
        return error;
    }
};

/// For MPI-4.1's forms for several requests: the native requests of those whose progress operations are over, for which
/// the MPI answers, and MPI_REQUEST_NULL for the others. `hidden` is the number of the others.
template <class Requests_>
[[nodiscard]] std::vector<MPI_Request> ready_native_requests(const int count, Requests_ requests, int& hidden) {
    std::vector<MPI_Request> native_requests;
    hidden = 0;
    for (int i = 0; i < count; ++i) {
        const bool ready = is_ready(requests[i]);
        native_requests.push_back(ready ? native_request_of(requests[i]) : MPI_REQUEST_NULL);
        hidden += ready ? 0 : 1;
    }
    return native_requests;
}

struct GetStatusAll {
    template <Function function, class Requests_>
    static int run(Call&, int count, Requests_ requests, int* flag, MPI_Status* statuses) {
        if (!layer().requests.any() || count <= 0) {
            return below<function>()(count, requests, flag, statuses);
        }
        int hidden = 0;
        const std::vector<MPI_Request> native_requests = ready_native_requests(count, requests, hidden);
        if (hidden != 0) {
            *flag = 0;
            return MPI_SUCCESS;
        }
        Statuses own(count, statuses);
        const int error = below<function>()(count, native_requests.data(), flag, own.data());
        for (int i = 0; error == MPI_SUCCESS && *flag != 0 && i < count; ++i) {
            store_early(requests[i], own.data()[i]);
        }
        return error;
    }
};

struct GetStatusAny {
    template <Function function, class Requests_>
    static int run(Call&, int count, Requests_ requests, int* index, int* flag, MPI_Status* status) {
        if (!layer().requests.any() || count <= 0) {
            return below<function>()(count, requests, index, flag, status);
        }
        int hidden = 0;
        const std::vector<MPI_Request> native_requests = ready_native_requests(count, requests, hidden);
        MPI_Status own{};
        const int error = below<function>()(count, native_requests.data(), index, flag, &own);
        if (error == MPI_SUCCESS && *flag != 0) {
            if (*index != MPI_UNDEFINED) {
                store_early(requests[*index], own);
            } else if (hidden != 0) {
                *flag = 0;  // holds only for the requests that the MPI saw
            }
            if (*flag != 0) {
                return_status(status, own);
            }
        }
        return error;
    }
};

struct GetStatusSome {
    template <Function function, class Requests_>
    static int run(Call&, int count, Requests_ requests, int* completed, int indices[], MPI_Status* statuses) {
        if (!layer().requests.any() || count <= 0) {
            return below<function>()(count, requests, completed, indices, statuses);
        }
        int hidden = 0;
        const std::vector<MPI_Request> native_requests = ready_native_requests(count, requests, hidden);
        Statuses own(count, statuses);
        const int error = below<function>()(count, native_requests.data(), completed, indices, own.data());
        if (error == MPI_SUCCESS) {
            if (*completed == MPI_UNDEFINED && hidden != 0) {
                *completed = 0;
            }
            for (int i = 0; *completed != MPI_UNDEFINED && i < *completed; ++i) {
                store_early(requests[indices[i]], own.data()[i]);
            }
        }
        return error;
    }
};

struct Cancel {
    template <Function function>
    static int run(Call&, MPI_Request* request) {
        if (layer().requests.any() && request != nullptr) {
            if (const auto operation = layer().requests.find(*request);
                operation != nullptr && operation->is_active()) {
                return operation->has_spare_handle() ? MPI_SUCCESS : below<function>()(&operation->native_request);
            }
        }
        return below<function>()(request);
    }
};

/// An active operation that the program frees completes by itself. The layer keeps its staging buffers and its native
/// request until then.
struct Free {
    template <Function function>
    static int run(Call&, MPI_Request* request) {
        Layer& owner = layer();
        if (!owner.requests.any() || request == nullptr) {
            return below<function>()(request);
        }
        const auto operation = owner.requests.find(*request);
        if (operation == nullptr) {
            return below<function>()(request);
        }
        owner.requests.forget(*operation);
        const bool own_native_request =
            operation->kind == Operation::Kind::rebinding && operation->native_request != operation->handle;
        const bool staging_buffers_in_use =
            operation->is_active() &&
            (operation->has_staging_buffers() || operation->progresses() || operation->unprepared);
        int error = MPI_SUCCESS;
        if (!staging_buffers_in_use || own_native_request) {
            error = below<function>()(request);  // the handle itself is native, or inactive
        } else {
            *request = MPI_REQUEST_NULL;
        }
        if (staging_buffers_in_use) {
            owner.requests.orphan(operation);
        }
        return error;
    }
};

/// MPI_Probe and its relatives: an RTS gets the size of the message that it announces.
struct Probe {
    template <Function function>
    static int run(Call& call, int source, int tag, MPI_Comm comm, MPI_Status* status) {
        call.on(comm);
        return corrected(comm, status, [&](MPI_Status* own) { return below<function>()(source, tag, comm, own); });
    }

    /// Probes until the answer is right. Another thread may receive the message after the MPI has answered and before
    /// the layer looks up what the RTS announces; then the RTS tells nothing any more. No other thread can take a
    /// matched message.
    template <class Find>
    static int corrected(const MPI_Comm comm, MPI_Status* const status, const Find find, const int* flag = nullptr,
                         const bool matched = false) {
        layer().requests.advance_progress_ops();
        layer().requests.leave_progress_ops();
        while (true) {
            const int error = find(status);
            if (error != MPI_SUCCESS || status == MPI_STATUS_IGNORE || (flag != nullptr && *flag == 0) ||
                correct_probed(comm, *status, matched)) {
                return error;
            }
        }
    }
};

/// A message may be for a receive that the communicator's stream has: none is found before that is over.
bool stream_comes_first(const MPI_Comm comm, int* const flag) {
    StreamWork* const work = layer().stream_work.load(std::memory_order_acquire);
    if (work == nullptr || flag == nullptr || !work->is_busy(comm)) {
        return false;
    }
    *flag = 0;
    return true;
}

struct NonblockingProbe {
    template <Function function>
    static int run(Call&, int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
        if (stream_comes_first(comm, flag)) {
            return MPI_SUCCESS;
        }
        return Probe::corrected(
            comm, status, [&](MPI_Status* own) { return below<function>()(source, tag, comm, flag, own); }, flag);
    }
};

/// Remembers the communicator of the message for its receive. There may be no message.
void note_matched(const int error, const MPI_Message* const message, const MPI_Comm comm) {
    if (error == MPI_SUCCESS && *message != MPI_MESSAGE_NULL && *message != MPI_MESSAGE_NO_PROC) {
        layer().matched.found(*message, comm);
    }
}

struct MatchedProbe {
    template <Function function>
    static int run(Call& call, int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
        call.on(comm);
        const auto find = [&](MPI_Status* own) { return below<function>()(source, tag, comm, message, own); };
        const int outcome = Probe::corrected(comm, status, find, nullptr, true);
        note_matched(outcome, message, comm);
        return outcome;
    }
};

struct NonblockingMatchedProbe {
    template <Function function>
    static int run(Call&, int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
        if (stream_comes_first(comm, flag)) {
            return MPI_SUCCESS;
        }
        const int error = Probe::corrected(
            comm, status, [&](MPI_Status* own) { return below<function>()(source, tag, comm, flag, message, own); },
            flag, true);
        if (error == MPI_SUCCESS && *flag != 0) {
            note_matched(error, message, comm);
        }
        return error;
    }
};

}  // namespace

Services completion_services() {
    return {
        AWAKEN_SERVE(Wait, CompleteOne),
        AWAKEN_SERVE(Test, CompleteOne),
        AWAKEN_SERVE(Waitall, CompleteAll),
        AWAKEN_SERVE(Testall, CompleteAll),
        AWAKEN_SERVE(Waitany, CompleteAny),
        AWAKEN_SERVE(Testany, CompleteAny),
        AWAKEN_SERVE(Waitsome, CompleteSome),
        AWAKEN_SERVE(Testsome, CompleteSome),
        AWAKEN_SERVE(Request_get_status, GetStatus),
        AWAKEN_SERVE(Request_get_status_all, GetStatusAll),
        AWAKEN_SERVE(Request_get_status_any, GetStatusAny),
        AWAKEN_SERVE(Request_get_status_some, GetStatusSome),
        AWAKEN_SERVE(Cancel, Cancel),
        AWAKEN_SERVE(Request_free, Free),
        AWAKEN_SERVE(Probe, Probe),
        AWAKEN_SERVE(Iprobe, NonblockingProbe),
        AWAKEN_SERVE(Mprobe, MatchedProbe),
        AWAKEN_SERVE(Improbe, NonblockingMatchedProbe),
    };
}

}  // namespace awaken::AWAKEN_ABI
