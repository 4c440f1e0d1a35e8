// SPDX-License-Identifier: Apache-2.0
// One-sided operations. This process reaches a target's device memory itself, see window.h. The MPI reaches the
// target's host memory, and gets staging buffers in place of buffers that are device memory here.

#include "call/call.h"
#include "call/services.h"
#include "call/stage.h"
#include "rma/accumulate.h"
#include "rma/window.h"

namespace awaken::AWAKEN_ABI {

using transfer::DeviceCopies;
using transfer::Layout;

namespace {

/// The request of an operation that the layer has done, or is doing.
class TransferProgress final : public ProgressOp {
  public:
    TransferProgress(std::shared_ptr<Transfer> transfer, const MPI_Win window)
        : _transfer(std::move(transfer)), _window(window) {}

    [[nodiscard]] bool advance(const MPI_Status*, transport::Patience) override {
        try {
            return _transfer == nullptr || _transfer->poll();
        } catch (const Error& error) {
            _failure = error;
            return true;
        }
    }
    void conclude(MPI_Status&, int& error) override {
        if (_failure && _error == MPI_SUCCESS) {
            Layer& owner = layer();
            _error = owner.error_code(MPI_ERR_OTHER, *_failure);
            owner.real.Win_call_errhandler(_window, _error);
        }
        if (_error != MPI_SUCCESS) {
            error = _error;
        }
    }
    void leave() override {}  // the GPU goes on by itself; the waiting caller asks again
    [[nodiscard]] bool may_have_arrived() const override { return true; }

  private:
    const std::shared_ptr<Transfer> _transfer;
    const MPI_Win _window;
    std::optional<Error> _failure;
    int _error = MPI_SUCCESS;
};

/// The layer has done the operation, or it goes on as `transfer`. The tail is the request of the forms that have one.
int done(Window& window, const int target, std::shared_ptr<Transfer> transfer) {
    if (transfer != nullptr) {
        window.add(target, {std::move(transfer), nullptr, {}});
    }
    return MPI_SUCCESS;
}

int done(Window& window, const int target, std::shared_ptr<Transfer> transfer, MPI_Request* const request) {
    Layer& owner = layer();
    auto operation = make_operation(Operation::Kind::once);
    if (operation->start_own_handle(request) != MPI_SUCCESS) {
        throw Error("the MPI gives no request", "complete some of the program's requests first");
    }
    owner.requests.add_progress_op(operation, std::make_unique<TransferProgress>(transfer, window.handle()));
    owner.requests.track(std::move(operation));
    return done(window, target, std::move(transfer));
}

/// Keeps the staging buffers that the MPI was given until it has done the operation.
void keep(Window& window, const int target, Stage stage) {
    window.add(target, {nullptr, std::make_shared<Stage>(std::move(stage)), {}});
}

void keep(Window& window, const int target, Stage stage, MPI_Request* const request) {
    if (Requests::is_over_at_once(*request)) {
        stage.store();
        return;
    }
    auto operation = make_operation(Operation::Kind::once, std::move(stage));
    operation->handle = operation->native_request = *request;
    window.add(target, {nullptr, nullptr, operation});
    layer().requests.track(std::move(operation));
}

/// Lets the MPI do the operation: `native` gets the stage's staging buffers, which were placed already.
template <class Native, class... Request>
int natively(const Call& call, Stage stage, const TargetBuffer& target, const MPI_Win handle, const Native& native,
             Request... request) {
    std::shared_ptr<Window> window = stage.active() ? windows().find_or_add(handle) : windows().find(handle);
    if (window != nullptr && window->has(target.rank) && window->may_start_at(target.displacement)) {
        if (window->is_mirrored()) {
            window->enter_mirrored(call, target.rank, target.displacement, target.count, target.type);
        }
        if (const int error = window->enter_natively(call, target.rank); error != MPI_SUCCESS) {
            return error;
        }
    }
    stage.load();
    const int error = native();
    if (error == MPI_SUCCESS && stage.active()) {
        keep(*window, target.rank, std::move(stage), request...);
    }
    return error;
}

/// Where the MPI has to put a result: the program's buffer, or its host mirror.
template <class... Request>
void* result_of(Call& call, const MPI_Win handle, const int target, void* const result, const std::int64_t count,
                const MPI_Datatype type, Request...) {
    // With a request, the program may look at the result before it synchronises.
    if constexpr (sizeof...(Request) == 0) {
        if (const std::shared_ptr<Window> window = windows().find(handle);
            window != nullptr && window->is_mirrored() && window->has(target)) {
            if (void* const mirror = window->mirror_of_result(call, target, result, count, type)) {
                return mirror;
            }
        }
    }
    return result;
}

/// Whether neither side has an argument that the MPI refuses.
template <class Side>
bool is_sound(const Side& side) {
    return side.count >= 0 && side.type != MPI_DATATYPE_NULL;
}

/// The window, if the layer may have to do an operation on this target; the operation has entered it. Else null; the
/// MPI then reports wrong arguments.
template <class... Local>
std::shared_ptr<Window> enter_ours(const Call& call, const MPI_Win handle, const TargetBuffer& target,
                                   const Local&... local) {
    std::shared_ptr<Window> window = windows().find(handle);
    if (window == nullptr || !window->has(target.rank) || !window->may_start_at(target.displacement) ||
        !window->is_ours() || !is_sound(target) || !(is_sound(local) && ...)) {
        return nullptr;
    }
    window->enter(call, target.rank);
    return window;
}

/// A copy between this process and a target's device memory. Null when it is complete. Nothing when the target is not
/// device memory.
std::optional<std::shared_ptr<Transfer>> copy(Call& call, Window& window, const bool gets, const LocalBuffer& local,
                                              const TargetBuffer& target) {
    Layer& owner = layer();
    const Stage stage(call);
    const Stage::Located here = stage.locate(local.address, local.count, local.type);
    std::optional<FoundTarget> found = find_target(call, window, target, here.info.device);
    if (!found) {
        return std::nullopt;
    }
    // As in a send and a receive, the receiving side may have room for more.
    const std::int64_t own_bytes = here.type != nullptr ? local.count * here.type->layout.size() : 0;
    const std::int64_t sent = gets ? found->bytes : own_bytes, room = gets ? own_bytes : found->bytes;
    if (sent > room) {
        throw ClassedError(MPI_ERR_TRUNCATE,
                           std::string(call.name()) + ": " + std::to_string(own_bytes) + " bytes at the origin, but " +
                               std::to_string(found->bytes) + " at the target",
                           "give the side that receives as many elements of the same type");
    }
    if (sent == 0) {
        return nullptr;
    }
    found->bytes = sent;
    const Layout& own_layout = here.type->layout;
    const Layout& layout = found->type->layout;
    const auto bytes = static_cast<std::size_t>(sent);
    if (!here.mixed && own_layout.is_contiguous(local.count) && layout.is_contiguous(target.count)) {
        const DeviceCopies::End own{static_cast<std::byte*>(local.address) + own_layout.true_begin(), &here.info};
        const DeviceCopies::End there{found->reached.address + layout.true_begin(),
                                      found->reached.is_own ? &found->reached.info : nullptr};
        const int device = here.info.device >= 0 ? here.info.device : window.spec().device;
        call.account(report::Path::direct, sent);
        return std::make_shared<Transfer>(owner.node_peers.link()->copies().start(
            device, static_cast<unsigned>(target.rank), gets ? own : there, gets ? there : own, bytes));
    }
    transfer::StagingBlock packed = owner.pool.acquire(owner.gpu(), bytes);
    const gpu::PointerInfo* const info = here.mixed ? nullptr : &here.info;
    if (gets) {
        read_target(*found, target.count, packed.data());
        owner.copier().scatter(own_layout, local.address, local.count, sent, packed.data(), info);
    } else {
        owner.copier().gather(own_layout, local.address, local.count, sent, packed.data(), info);
        write_target(*found, target.count, packed.data());
    }
    call.account(report::Path::staged, sent);
    return nullptr;
}

/// MPI_Put(origin, count, type, target, disp, count, type, win), MPI_Get and their request forms.
template <bool gets>
struct PutOrGet {
    template <Function function, class Buffer, class Count, class... Request>
    static int run(Call& call, Buffer origin, Count count, MPI_Datatype type, int target, MPI_Aint displacement,
                   Count target_count, MPI_Datatype target_type, MPI_Win handle, Request... request) {
        call.on_window(handle);
        const LocalBuffer here{const_cast<void*>(static_cast<const void*>(origin)), count, type};
        const TargetBuffer there{target, displacement, target_count, target_type};
        if (const std::shared_ptr<Window> window = enter_ours(call, handle, there, here)) {
            if (auto copied = copy(call, *window, gets, here, there)) {
                return done(*window, target, std::move(*copied), request...);
            }
        }
        Stage stage(call);
        const Count counted = target == MPI_PROC_NULL ? Count{0} : count;
        const void* buffer = origin;
        if constexpr (gets) {
            buffer = result_of(call, handle, target, origin, counted, type, request...);
        }
        // If the buffer has room for more than comes, the rest of it stays unchanged.
        const bool all_comes = (target_count == count && target_type == type) ||
                               bytes_of(layer().real, static_cast<std::int64_t>(target_count), target_type) ==
                                   bytes_of(layer().real, static_cast<std::int64_t>(count), type);
        const Access access = !gets ? Access::in : all_comes ? Access::out : Access::inout;
        Argument<Count> local = stage.buffer(access, buffer, counted, type);
        local.count = count;
        return natively(
            call, std::move(stage), there, handle,
            [&] {
                return below<function>()(local.address, local.count, local.type, target, displacement, target_count,
                                         target_type, handle, request...);
            },
            request...);
    }
};

/// MPI_Accumulate(origin, count, type, target, disp, count, type, op, win) and its request forms.
struct Accumulate {
    template <Function function, class Count, class... Request>
    static int run(Call& call, const void* origin, Count count, MPI_Datatype type, int target, MPI_Aint displacement,
                   Count target_count, MPI_Datatype target_type, MPI_Op op, MPI_Win handle, Request... request) {
        call.on_window(handle);
        const LocalBuffer here{const_cast<void*>(origin), count, type};
        const TargetBuffer there{target, displacement, target_count, target_type};
        if (op != MPI_OP_NULL && op != MPI_NO_OP) {
            if (const std::shared_ptr<Window> window = enter_ours(call, handle, there, here);
                window != nullptr && accumulate(call, *window, here, nullptr, there, op)) {
                return done(*window, target, nullptr, request...);
            }
        }
        Stage stage(call);
        const Count counted = target == MPI_PROC_NULL ? Count{0} : count;
        Argument<Count> local = stage.buffer(Access::in, origin, counted, type, -1, Packing::mirror);
        local.count = count;
        return natively(
            call, std::move(stage), there, handle,
            [&] {
                return below<function>()(local.address, local.count, local.type, target, displacement, target_count,
                                         target_type, op, handle, request...);
            },
            request...);
    }
};

/// MPI_Get_accumulate(origin, count, type, result, count, type, target, disp, count, type, op, win).
struct GetAccumulate {
    template <Function function, class Count, class... Request>
    static int run(Call& call, const void* origin, Count count, MPI_Datatype type, void* result, Count result_count,
                   MPI_Datatype result_type, int target, MPI_Aint displacement, Count target_count,
                   MPI_Datatype target_type, MPI_Op op, MPI_Win handle, Request... request) {
        call.on_window(handle);
        const bool has_origin = op != MPI_NO_OP;
        const LocalBuffer here{const_cast<void*>(origin), count, type}, results{result, result_count, result_type};
        const TargetBuffer there{target, displacement, target_count, target_type};
        if (op != MPI_OP_NULL && (!has_origin || is_sound(here))) {
            if (const std::shared_ptr<Window> window = enter_ours(call, handle, there, results);
                window != nullptr && accumulate(call, *window, here, &results, there, op)) {
                return done(*window, target, nullptr, request...);
            }
        }
        Stage stage(call);
        const bool nowhere = target == MPI_PROC_NULL;
        Argument<Count> from =
            stage.buffer(Access::in, origin, nowhere || !has_origin ? Count{0} : count, type, -1, Packing::mirror);
        const Count wanted = nowhere ? Count{0} : result_count;
        void* const place = result_of(call, handle, target, result, wanted, result_type, request...);
        Argument<Count> to = stage.buffer(Access::out, place, wanted, result_type, -1, Packing::mirror);
        from.count = count;
        to.count = result_count;
        return natively(
            call, std::move(stage), there, handle,
            [&] {
                return below<function>()(from.address, from.count, from.type, to.address, to.count, to.type, target,
                                         displacement, target_count, target_type, op, handle, request...);
            },
            request...);
    }
};

/// MPI_Fetch_and_op(origin, result, type, target, disp, op, win).
struct FetchAndOp {
    template <Function function>
    static int run(Call& call, const void* origin, void* result, MPI_Datatype type, int target, MPI_Aint displacement,
                   MPI_Op op, MPI_Win handle) {
        call.on_window(handle);
        const LocalBuffer results{result, 1, type};
        const TargetBuffer there{target, displacement, 1, type};
        if (op != MPI_OP_NULL) {
            if (const std::shared_ptr<Window> window = enter_ours(call, handle, there);
                window != nullptr &&
                accumulate(call, *window, {const_cast<void*>(origin), 1, type}, &results, there, op)) {
                return MPI_SUCCESS;
            }
        }
        Stage stage(call);
        const int one = target == MPI_PROC_NULL ? 0 : 1;
        const Argument<int> from =
            stage.buffer(Access::in, origin, op == MPI_NO_OP ? 0 : one, type, -1, Packing::mirror);
        void* const place = result_of(call, handle, target, result, one, type);
        const Argument<int> to = stage.buffer(Access::out, place, one, type, -1, Packing::mirror);
        return natively(call, std::move(stage), there, handle, [&] {
            return below<function>()(from.address, to.address, type, target, displacement, op, handle);
        });
    }
};

/// MPI_Compare_and_swap(origin, compare, result, type, target, disp, win).
struct CompareAndSwap {
    template <Function function>
    static int run(Call& call, const void* origin, const void* compare, void* result, MPI_Datatype type, int target,
                   MPI_Aint displacement, MPI_Win handle) {
        call.on_window(handle);
        const TargetBuffer there{target, displacement, 1, type};
        if (const std::shared_ptr<Window> window = enter_ours(call, handle, there);
            window != nullptr && compare_and_swap(call, *window, origin, compare, result, there)) {
            return MPI_SUCCESS;
        }
        Stage stage(call);
        const int one = target == MPI_PROC_NULL ? 0 : 1;
        const Argument<int> from = stage.buffer(Access::in, origin, one, type, -1, Packing::mirror);
        const Argument<int> expected = stage.buffer(Access::in, compare, one, type, -1, Packing::mirror);
        void* const place = result_of(call, handle, target, result, one, type);
        const Argument<int> to = stage.buffer(Access::out, place, one, type, -1, Packing::mirror);
        return natively(call, std::move(stage), there, handle, [&] {
            return below<function>()(from.address, expected.address, to.address, type, target, displacement, handle);
        });
    }
};

using Put = PutOrGet<false>;
using Get = PutOrGet<true>;

}  // namespace

Services one_sided_services() {
    Services all{
        AWAKEN_SERVE_COUNTS(Put, Put),
        AWAKEN_SERVE_COUNTS(Rput, Put),
        AWAKEN_SERVE_COUNTS(Get, Get),
        AWAKEN_SERVE_COUNTS(Rget, Get),
        AWAKEN_SERVE_COUNTS(Accumulate, Accumulate),
        AWAKEN_SERVE_COUNTS(Raccumulate, Accumulate),
        AWAKEN_SERVE_COUNTS(Get_accumulate, GetAccumulate),
        AWAKEN_SERVE_COUNTS(Rget_accumulate, GetAccumulate),
        AWAKEN_SERVE(Fetch_and_op, FetchAndOp),
        AWAKEN_SERVE(Compare_and_swap, CompareAndSwap),
    };
    for (const Services& part : {window_agreement_services(), window_services(), synchronisation_services()}) {
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

}  // namespace awaken::AWAKEN_ABI
