// SPDX-License-Identifier: Apache-2.0
// Epochs and flushes. First the layer finishes its work on a window's operations. Then the MPI does its part; in fence,
// post, start, complete and wait, the processes also meet there. Then the layer copies what came through the MPI to the
// program's buffers.

#include "rma/window.h"

namespace awaken::AWAKEN_ABI {

using rma::Hold;

namespace {

/// Ends what this process has under way, and lets others access its own memory. The MPI's part is done whatever fails,
/// since others wait for it.
template <class Native>
int close_epoch(Window& window, const Native& native) {
    const std::optional<Error> failure = window.is_ours() ? window.try_to_make_own_memory_ready() : std::nullopt;
    const int error = window.complete_and(-1, native);
    if (failure) {
        throw Error(*failure);
    }
    return error;
}

/// When to reconcile a host mirror. `before`: others may come after it, so what the program has stored has to be there.
/// `after`: others are known to be done, so what they have put is there. `if_changed` is `after`, if operations of this
/// process's own have changed its host mirror.
enum Reconciling : unsigned { if_changed = 0, before = 1, after = 2 };

/// As a target: the synchronisation completes the operations on all targets.
constexpr int kAllTargets = -1;
constexpr int kNoTarget = -2;

/// The MPI's part of a synchronisation of a window of the MPI's, which completes operations on `target`. The MPI's part
/// is done whatever fails.
template <class Native>
int natively(Call& call, Window& window, const unsigned when, const int target, const Native& native) {
    if (!window.has_mirror()) {
        return native();
    }
    std::optional<Error> failure;
    const auto reconcile = [&] {
        try {
            window.reconcile(call);
        } catch (const Error& error) {
            failure = error;
        }
    };
    if ((when & before) != 0) {
        reconcile();
    }
    int error = MPI_SUCCESS;
    try {
        error = native();
    } catch (const Error& settling) {
        failure = settling;
    }
    const bool changed = target != kNoTarget && window.take_own_changes(target);
    if (error == MPI_SUCCESS && ((when & after) != 0 || changed)) {
        reconcile();
    }
    if (failure) {
        throw Error(*failure);
    }
    return error;
}

/// The program may have stored to its window memory since it last synchronised.
unsigned before_unless_untouched(const int assertion) {
    return (assertion & MPI_MODE_NOSTORE) != 0 ? if_changed : before;
}

/// Lets the process's other messages go on. A program may look for what others put in a loop whose calls the layer does
/// without the MPI. Done only now and then, since it costs as much as a flush.
void keep_going_now_and_then() {
    constexpr unsigned kCalls = 16;
    static thread_local unsigned calls = 0;
    if (++calls % kCalls == 0) {
        keep_going();
    }
}

/// What `serve` does with the window; what `native` does where the window is the MPI's alone.
template <class Native, class Serve>
int on_window(Call& call, const MPI_Win handle, const Native& native, const Serve& serve) {
    call.on_window(handle);
    const std::shared_ptr<Window> window = windows().find(handle);
    return window == nullptr ? native() : serve(*window);
}

struct Fence {
    template <Function function>
    static int run(Call& call, int assertion, MPI_Win handle) {
        const auto native = [&] { return below<function>()(assertion, handle); };
        return on_window(call, handle, native, [&](Window& window) {
            if (!window.is_ours()) {
                return natively(call, window, before_unless_untouched(assertion) | after, kAllTargets,
                                [&] { return window.complete_and(-1, native); });
            }
            // With MPI_MODE_NOPRECEDE, the MPI need not wait for any process. But the layer accesses others' memory
            // without asking them, so this fence must wait.
            const bool open = (assertion & MPI_MODE_NOSUCCEED) == 0;
            window.begin_fence();
            int error = MPI_SUCCESS;
            try {
                error = close_epoch(window, [&] { return below<function>()(assertion & ~MPI_MODE_NOPRECEDE, handle); });
            } catch (const Error&) {
                window.end_fence(open);
                throw;
            }
            window.end_fence(open);
            return error;
        });
    }
};

struct Post {
    template <Function function>
    static int run(Call& call, MPI_Group group, int assertion, MPI_Win handle) {
        const auto native = [&] { return below<function>()(group, assertion, handle); };
        return on_window(call, handle, native, [&](Window& window) {
            if (!window.is_ours()) {
                return natively(call, window, before_unless_untouched(assertion), kNoTarget, native);
            }
            const std::optional<Error> failure = window.try_to_make_own_memory_ready();
            const int error = native();
            if (error == MPI_SUCCESS) {
                window.post(group);
            }
            if (failure) {
                throw Error(*failure);  // not before, since the origins wait for this process
            }
            return error;
        });
    }
};

struct StartAccess {
    template <Function function>
    static int run(Call& call, MPI_Group group, int assertion, MPI_Win handle) {
        const auto native = [&] { return below<function>()(group, assertion, handle); };
        return on_window(call, handle, native, [&](Window& window) {
            if (!window.is_ours()) {
                return native();
            }
            // Waits for the posts before the MPI does. It would wait for a dead target for ever, and may return before
            // the others have posted, to wait only when it gets an operation.
            std::vector<int> targets = window.await_posts(group);
            const int error = native();
            if (error == MPI_SUCCESS) {
                window.start(std::move(targets));
            }
            return error;
        });
    }
};

struct Complete {
    template <Function function>
    static int run(Call& call, MPI_Win handle) {
        const auto native = [&] { return below<function>()(handle); };
        return on_window(call, handle, native, [&](Window& window) {
            return natively(call, window, if_changed, kAllTargets, [&] {
                return window.complete_and(-1, [&] {
                    const int error = native();
                    if (window.is_ours()) {
                        window.complete();
                    }
                    return error;
                });
            });
        });
    }
};

struct WaitForOrigins {
    template <Function function>
    static int run(Call& call, MPI_Win handle) {
        const auto native = [&] { return below<function>()(handle); };
        return on_window(call, handle, native, [&](Window& window) {
            if (window.is_ours()) {
                window.wait();  // the MPI would wait for a dead origin for ever
            }
            return natively(call, window, after, kNoTarget, native);
        });
    }
};

struct TestOrigins {
    template <Function function>
    static int run(Call& call, MPI_Win handle, int* flag) {
        const auto native = [&] { return below<function>()(handle, flag); };
        return on_window(call, handle, native, [&](Window& window) {
            const int error = native();
            if (error == MPI_SUCCESS && *flag != 0 && window.is_ours()) {
                window.wait();  // the origins have told the MPI, and are about to say it here
            }
            if (error == MPI_SUCCESS && *flag != 0 && window.is_mirrored()) {
                window.reconcile(call);
            }
            return error;
        });
    }
};

struct Lock {
    template <Function function>
    static int run(Call& call, int type, int target, int assertion, MPI_Win handle) {
        const auto native = [&] { return below<function>()(type, target, assertion, handle); };
        return on_window(call, handle, native, [&](Window& window) -> int {
            const bool known_type = type == MPI_LOCK_EXCLUSIVE || type == MPI_LOCK_SHARED;
            if (!window.has(target) || !known_type) {
                return native();
            }
            if (!window.is_ours()) {
                return natively(call, window, after, kNoTarget, native);
            }
            window.lock(call, target, type == MPI_LOCK_EXCLUSIVE ? Hold::exclusive : Hold::shared, assertion);
            return MPI_SUCCESS;
        });
    }
};

struct Unlock {
    template <Function function>
    static int run(Call& call, int target, MPI_Win handle) {
        const auto native = [&] { return below<function>()(target, handle); };
        return on_window(call, handle, native, [&](Window& window) {
            if (!window.has(target)) {
                return native();
            }
            if (!window.is_ours()) {
                return natively(call, window, before, target, [&] { return window.complete_and(target, native); });
            }
            keep_going_now_and_then();
            return window.unlock(call, target);
        });
    }
};

struct LockAll {
    template <Function function>
    static int run(Call& call, int assertion, MPI_Win handle) {
        const auto native = [&] { return below<function>()(assertion, handle); };
        return on_window(call, handle, native, [&](Window& window) -> int {
            if (!window.is_ours()) {
                return natively(call, window, after, kNoTarget, native);
            }
            window.lock_all(call, assertion);
            return MPI_SUCCESS;
        });
    }
};

struct UnlockAll {
    template <Function function>
    static int run(Call& call, MPI_Win handle) {
        const auto native = [&] { return below<function>()(handle); };
        return on_window(call, handle, native, [&](Window& window) {
            if (!window.is_ours()) {
                return natively(call, window, before, kAllTargets, [&] { return window.complete_and(-1, native); });
            }
            return window.unlock_all(call);
        });
    }
};

/// MPI_Win_flush and MPI_Win_flush_local. The layer's own operations are complete on both sides at the same time.
struct Flush {
    template <Function function>
    static int run(Call& call, int target, MPI_Win handle) {
        const auto native = [&] { return below<function>()(target, handle); };
        return on_window(call, handle, native, [&](Window& window) {
            if (!window.has(target)) {
                return native();
            }
            const bool ours = window.is_ours();
            if (ours) {
                window.expect_passive(call, target);
                keep_going_now_and_then();
            }
            // A flush of this process itself: reconciles what others have put, and what this process has stored.
            const unsigned when = window.is_mirrored() && window.own() == target ? after : if_changed;
            return natively(call, window, when, target, [&] {
                return window.complete_and(
                    target, [&] { return !ours || window.is_locked_natively(target) ? native() : MPI_SUCCESS; });
            });
        });
    }
};

struct FlushAll {
    template <Function function>
    static int run(Call& call, MPI_Win handle) {
        const auto native = [&] { return below<function>()(handle); };
        return on_window(call, handle, native, [&](Window& window) {
            if (!window.is_ours()) {
                return natively(call, window, if_changed, kAllTargets, [&] { return window.complete_and(-1, native); });
            }
            keep_going_now_and_then();
            return window.complete_and(-1, [&] {
                // The MPI knows single targets only, see Window::enter_natively.
                constexpr bool kLocal = function == Function::Win_flush_local_all;
                const Native& mpi = layer().below;
                int error = MPI_SUCCESS;
                for (int target = 0; target < window.members() && error == MPI_SUCCESS; ++target) {
                    if (window.is_locked_natively(target)) {
                        error = kLocal ? mpi.Win_flush_local(target, handle) : mpi.Win_flush(target, handle);
                    }
                }
                return error;
            });
        });
    }
};

/// Others see what this process has done to its own memory, and this process sees what they have done.
struct Synchronise {
    template <Function function>
    static int run(Call& call, MPI_Win handle) {
        const auto native = [&] { return below<function>()(handle); };
        return on_window(call, handle, native, [&](Window& window) -> int {
            if (!window.is_ours()) {
                if (window.has_mirror()) {
                    keep_going();  // a program that waits for what others put may call nothing else
                }
                return natively(call, window, after, kNoTarget, native);
            }
            keep_going_now_and_then();
            window.make_own_memory_ready();
            // The MPI may know of no passive epoch, and would then report an error.
            std::atomic_thread_fence(std::memory_order_seq_cst);
            return MPI_SUCCESS;
        });
    }
};

}  // namespace

Services synchronisation_services() {
    return {
        AWAKEN_SERVE(Win_fence, Fence),         AWAKEN_SERVE(Win_post, Post),
        AWAKEN_SERVE(Win_start, StartAccess),   AWAKEN_SERVE(Win_complete, Complete),
        AWAKEN_SERVE(Win_wait, WaitForOrigins), AWAKEN_SERVE(Win_test, TestOrigins),
        AWAKEN_SERVE(Win_lock, Lock),           AWAKEN_SERVE(Win_unlock, Unlock),
        AWAKEN_SERVE(Win_lock_all, LockAll),    AWAKEN_SERVE(Win_unlock_all, UnlockAll),
        AWAKEN_SERVE(Win_flush, Flush),         AWAKEN_SERVE(Win_flush_local, Flush),
        AWAKEN_SERVE(Win_flush_all, FlushAll),  AWAKEN_SERVE(Win_flush_local_all, FlushAll),
        AWAKEN_SERVE(Win_sync, Synchronise),
    };
}

}  // namespace awaken::AWAKEN_ABI
