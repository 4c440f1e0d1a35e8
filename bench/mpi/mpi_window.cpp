// SPDX-License-Identifier: Apache-2.0
#include "mpi/mpi_window.h"

#include <optional>
#include <vector>

#include "mpi/engine.h"
#include "mpi/large_counts.h"

namespace awaken::bench {
namespace {

std::optional<Error> attempt(const auto& work) {
    try {
        work();
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

class MpiWindow final : public Window {
  public:
    MpiWindow(const MpiFunctions& mpi, const WindowRequest& request) : _mpi(mpi), _base(request.base) {
        std::optional<Error> problem = attempt([&] { make(request); });
        agree_to_run(request.communicator, problem);
        check_mpi(_mpi.Win_set_errhandler(_window, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
        if (request.form == WindowForm::dynamic) {
            attach(request);
        }
        MPI_Group all = MPI_GROUP_NULL;
        check_mpi(_mpi.Comm_group(request.communicator, &all), "MPI_Comm_group");
        check_mpi(_mpi.Group_incl(all, 1, &request.peer, &_peer), "MPI_Group_incl");
        check_mpi(_mpi.Group_free(&all), "MPI_Group_free");
    }
    ~MpiWindow() override = default;
    MpiWindow(const MpiWindow&) = delete;
    MpiWindow& operator=(const MpiWindow&) = delete;

    [[nodiscard]] void* base() const noexcept override { return _base; }

    void close() override {
        check_mpi(_mpi.Group_free(&_peer), "MPI_Group_free");
        if (_attached) {
            check_mpi(_mpi.Win_detach(_window, _base), "MPI_Win_detach");
        }
        check_mpi(_mpi.Win_free(&_window), "MPI_Win_free");
    }

    void issue(const WindowCall& call) override {
        if (fits(call.count)) [[likely]] {
            issue_as(static_cast<int>(call.count), call.type, call);
        } else if (exists(_mpi.Put_c)) {
            issue_as(call.count, call.type, call);
        } else {
            const LargeType large(_mpi, call.count, call.type);
            issue_as(1, large.get(), call);
        }
    }

    void fence(Exposure /* exposure */) override { check_mpi(_mpi.Win_fence(0, _window), "MPI_Win_fence"); }
    void post() override { check_mpi(_mpi.Win_post(_peer, 0, _window), "MPI_Win_post"); }
    void start() override { check_mpi(_mpi.Win_start(_peer, 0, _window), "MPI_Win_start"); }
    void complete() override { check_mpi(_mpi.Win_complete(_window), "MPI_Win_complete"); }
    void wait() override { check_mpi(_mpi.Win_wait(_window), "MPI_Win_wait"); }
    void lock(const int target, const LockKind kind) override {
        const int type = kind == LockKind::shared ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE;
        check_mpi(_mpi.Win_lock(type, target, 0, _window), "MPI_Win_lock");
    }
    void unlock(const int target) override { check_mpi(_mpi.Win_unlock(target, _window), "MPI_Win_unlock"); }
    void lock_all() override { check_mpi(_mpi.Win_lock_all(0, _window), "MPI_Win_lock_all"); }
    void unlock_all() override { check_mpi(_mpi.Win_unlock_all(_window), "MPI_Win_unlock_all"); }
    void flush(const int target) override { check_mpi(_mpi.Win_flush(target, _window), "MPI_Win_flush"); }
    void flush_local(const int target) override {
        check_mpi(_mpi.Win_flush_local(target, _window), "MPI_Win_flush_local");
    }

  private:
    void make(const WindowRequest& request) {
        const auto bytes = static_cast<MPI_Aint>(request.bytes);
        switch (request.form) {
            case WindowForm::create:
                check_mpi(_mpi.Win_create(_base, bytes, 1, MPI_INFO_NULL, request.communicator, &_window),
                          "MPI_Win_create");
                break;
            case WindowForm::allocate: {
                MPI_Info info = MPI_INFO_NULL;
                if (request.memory_kinds != nullptr) {
                    check_mpi(_mpi.Info_create(&info), "MPI_Info_create");
                    check_mpi(_mpi.Info_set(info, "mpi_memory_alloc_kinds", request.memory_kinds), "MPI_Info_set");
                }
                const int code = _mpi.Win_allocate(bytes, 1, info, request.communicator, &_base, &_window);
                if (info != MPI_INFO_NULL) {
                    check_mpi(_mpi.Info_free(&info), "MPI_Info_free");
                }
                check_mpi(code, "MPI_Win_allocate");
                break;
            }
            case WindowForm::dynamic:
                check_mpi(_mpi.Win_create_dynamic(MPI_INFO_NULL, request.communicator, &_window),
                          "MPI_Win_create_dynamic");
                break;
        }
    }

    /// In a dynamic window displacements are addresses: each rank tells the others where its memory begins.
    void attach(const WindowRequest& request) {
        const std::optional<Error> problem = attempt([&] {
            check_mpi(_mpi.Win_attach(_window, _base, static_cast<MPI_Aint>(request.bytes)), "MPI_Win_attach");
            _attached = true;
        });
        try {
            agree_to_run(request.communicator, problem);
        } catch (const Unavailable&) {
            if (_attached) {
                _mpi.Win_detach(_window, _base);
            }
            _mpi.Win_free(&_window);
            throw;
        }
        MPI_Aint mine = 0;
        check_mpi(_mpi.Get_address(_base, &mine), "MPI_Get_address");
        int ranks = 0;
        MPI_Comm_size(request.communicator, &ranks);
        _begins.resize(static_cast<std::size_t>(ranks));
        check_mpi(MPI_Allgather(&mine, 1, MPI_AINT, _begins.data(), 1, MPI_AINT, request.communicator),
                  "MPI_Allgather");
    }

    [[nodiscard]] MPI_Aint displacement_of(const WindowCall& call) const {
        return call.displacement + (_attached ? _begins[static_cast<std::size_t>(call.target)] : 0);
    }

    template <typename Integer>
    void issue_as(const Integer count, MPI_Datatype type, const WindowCall& call) {
        const MPI_Aint at = displacement_of(call);
        const auto go = [&](const char* const name, const auto function, const auto large, const auto... arguments) {
            if constexpr (std::is_same_v<Integer, int>) {
                check_mpi(function(arguments..., _window), name);
            } else {
                call_or_refuse((std::string(name) + "_c").c_str(), large, arguments..., _window);
            }
        };
        switch (call.operation) {
            case OneSided::put:
                go("MPI_Put", _mpi.Put, _mpi.Put_c, call.origin, count, type, call.target, at, count, type);
                break;
            case OneSided::get:
                go("MPI_Get", _mpi.Get, _mpi.Get_c, call.result, count, type, call.target, at, count, type);
                break;
            case OneSided::accumulate:
                go("MPI_Accumulate", _mpi.Accumulate, _mpi.Accumulate_c, call.origin, count, type, call.target, at,
                   count, type, call.combine);
                break;
            case OneSided::get_accumulate:
                go("MPI_Get_accumulate", _mpi.Get_accumulate, _mpi.Get_accumulate_c, call.origin, count, type,
                   call.result, count, type, call.target, at, count, type, call.combine);
                break;
            case OneSided::fetch_and_op:
                check_mpi(_mpi.Fetch_and_op(call.origin, call.result, type, call.target, at, call.combine, _window),
                          "MPI_Fetch_and_op");
                break;
            case OneSided::compare_and_swap:
                check_mpi(_mpi.Compare_and_swap(call.origin, call.compare, call.result, type, call.target, at, _window),
                          "MPI_Compare_and_swap");
                break;
            case OneSided::none:
                break;
        }
    }

    const MpiFunctions& _mpi;
    MPI_Win _window = MPI_WIN_NULL;
    MPI_Group _peer = MPI_GROUP_NULL;
    void* _base;
    bool _attached = false;
    std::vector<MPI_Aint> _begins;  ///< of a dynamic window, by rank
};

}  // namespace

std::unique_ptr<Window> open_mpi_window(const MpiFunctions& mpi, const WindowRequest& request) {
    return std::make_unique<MpiWindow>(mpi, request);
}

}  // namespace awaken::bench
