// Waiting for, testing, cancelling and freeing requests.
//
// Where none of our operations is under way, these cost one load. Otherwise the MPI completes the native requests that
// carry our operations in the place of the program's handles, in one call together with all others, and we copy back
// what has arrived.

#include <algorithm>
#include <vector>

#include "call/call.h"
#include "entry/services.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// The program's requests with ours replaced by the native ones that carry them.
class Carriers {
  public:
    Carriers(const int count, MPI_Request* const requests) : _requests(requests) {
        const auto n = static_cast<std::size_t>(count > 0 ? count : 0);
        _carriers.assign(requests, requests + n);
        _operations.resize(n);
        for (std::size_t i = 0; i < n; ++i) {
            if (auto operation = layer().requests.find(requests[i])) {
                // Between its completions a persistent operation is inactive, and so is its native handle.
                _carriers[i] = operation->active ? operation->carrier : operation->handle;
                if (operation->active) {
                    _any = true;
                }
                _operations[i] = std::move(operation);
            }
        }
    }

    /// False when the program's own array serves as well.
    [[nodiscard]] bool any() const noexcept { return _any; }
    [[nodiscard]] MPI_Request* data() noexcept { return _carriers.data(); }

    /// The MPI has completed request i with this status and outcome.
    void complete(const int i, const MPI_Status& status, const int error) {
        const auto at = static_cast<std::size_t>(i);
        const std::shared_ptr<Operation>& operation = _operations[at];
        if (operation == nullptr || !operation->active) {
            _requests[at] = _carriers[at];
            return;
        }
        if (operation->kind == Operation::Kind::once) {
            layer().requests.forget(*operation);
            _requests[at] = MPI_REQUEST_NULL;
        }
        operation->complete(status, error);
    }

  private:
    MPI_Request* const _requests;
    std::vector<MPI_Request> _carriers;
    std::vector<std::shared_ptr<Operation>> _operations;
    bool _any = false;
};

struct Wait {
    template <Function function>
    static int run(Call&, MPI_Request* request, MPI_Status* status) {
        if (layer().requests.any() && request != nullptr) {
            Carriers carriers(1, request);
            if (carriers.any()) {
                MPI_Status own{};
                const int error = below<function>()(carriers.data(), &own);
                carriers.complete(0, own, error);
                if (status != MPI_STATUS_IGNORE) {
                    *status = own;
                }
                return error;
            }
        }
        return below<function>()(request, status);
    }
};

struct Test {
    template <Function function>
    static int run(Call&, MPI_Request* request, int* flag, MPI_Status* status) {
        if (layer().requests.any() && request != nullptr) {
            Carriers carriers(1, request);
            if (carriers.any()) {
                MPI_Status own{};
                const int error = below<function>()(carriers.data(), flag, &own);
                if (error != MPI_SUCCESS || *flag != 0) {
                    carriers.complete(0, own, error);
                    if (status != MPI_STATUS_IGNORE) {
                        *status = own;
                    }
                }
                return error;
            }
        }
        return below<function>()(request, flag, status);
    }
};

/// A status in a type of this ABI's namespace. MPI_Status itself has one name and a size per ABI, so the linker would
/// take std::vector<MPI_Status> of two cores for the same class.
struct StatusSlot {
    MPI_Status value;
};
static_assert(sizeof(StatusSlot) == sizeof(MPI_Status), "an array of slots is an array of statuses");

/// Statuses of our own where the program ignores them.
class Statuses {
  public:
    Statuses(const int count, MPI_Status* const given) : _given(given) {
        const auto n = static_cast<std::size_t>(count > 0 ? count : 0);
        if (given == MPI_STATUSES_IGNORE) {
            _own.resize(n);
        } else {
            std::fill_n(given, n, MPI_Status{});  // what an MPI leaves alone on an error counts as nothing received
        }
    }
    [[nodiscard]] MPI_Status* data() noexcept { return _own.empty() ? _given : &_own.front().value; }

  private:
    MPI_Status* const _given;
    std::vector<StatusSlot> _own;
};

/// The outcome of one request of several: the statuses hold it only when the call said MPI_ERR_IN_STATUS.
int outcome(const int error, const MPI_Status& status) {
    int error_class = error;
    if (error != MPI_SUCCESS) {
        layer().real.Error_class(error, &error_class);
    }
    return error_class == MPI_ERR_IN_STATUS ? status.MPI_ERROR : error;
}

bool is_pending(const int error) {
    int error_class = error;
    layer().real.Error_class(error, &error_class);
    return error_class == MPI_ERR_PENDING;
}

void complete_all(Carriers& carriers, const int count, const int error, const MPI_Status* const statuses) {
    for (int i = 0; i < count; ++i) {
        const int one = outcome(error, statuses[i]);
        if (one == MPI_SUCCESS || !is_pending(one)) {
            carriers.complete(i, statuses[i], one);
        }
    }
}

struct WaitAll {
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], MPI_Status* statuses) {
        if (layer().requests.any() && count > 0) {
            Carriers carriers(count, requests);
            if (carriers.any()) {
                Statuses own(count, statuses);
                const int error = below<function>()(count, carriers.data(), own.data());
                complete_all(carriers, count, error, own.data());
                return error;
            }
        }
        return below<function>()(count, requests, statuses);
    }
};

struct TestAll {
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], int* flag, MPI_Status* statuses) {
        if (layer().requests.any() && count > 0) {
            Carriers carriers(count, requests);
            if (carriers.any()) {
                Statuses own(count, statuses);
                const int error = below<function>()(count, carriers.data(), flag, own.data());
                if (error != MPI_SUCCESS || *flag != 0) {
                    complete_all(carriers, count, error, own.data());
                }
                return error;
            }
        }
        return below<function>()(count, requests, flag, statuses);
    }
};

struct WaitAny {
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], int* index, MPI_Status* status) {
        if (layer().requests.any() && count > 0) {
            Carriers carriers(count, requests);
            if (carriers.any()) {
                MPI_Status own{};
                const int error = below<function>()(count, carriers.data(), index, &own);
                if (*index != MPI_UNDEFINED) {
                    carriers.complete(*index, own, error);
                }
                if (status != MPI_STATUS_IGNORE) {
                    *status = own;
                }
                return error;
            }
        }
        return below<function>()(count, requests, index, status);
    }
};

struct TestAny {
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], int* index, int* flag, MPI_Status* status) {
        if (layer().requests.any() && count > 0) {
            Carriers carriers(count, requests);
            if (carriers.any()) {
                MPI_Status own{};
                const int error = below<function>()(count, carriers.data(), index, flag, &own);
                if (*index != MPI_UNDEFINED && (*flag != 0 || error != MPI_SUCCESS)) {
                    carriers.complete(*index, own, error);
                }
                if ((*flag != 0 || error != MPI_SUCCESS) && status != MPI_STATUS_IGNORE) {
                    *status = own;
                }
                return error;
            }
        }
        return below<function>()(count, requests, index, flag, status);
    }
};

/// MPI_Waitsome and MPI_Testsome.
struct CompleteSome {
    template <Function function>
    static int run(Call&, int count, MPI_Request requests[], int* completed, int indices[], MPI_Status* statuses) {
        if (layer().requests.any() && count > 0) {
            Carriers carriers(count, requests);
            if (carriers.any()) {
                Statuses own(count, statuses);
                const int error = below<function>()(count, carriers.data(), completed, indices, own.data());
                if (*completed != MPI_UNDEFINED) {
                    for (int i = 0; i < *completed; ++i) {
                        carriers.complete(indices[i], own.data()[i], outcome(error, own.data()[i]));
                    }
                }
                return error;
            }
        }
        return below<function>()(count, requests, completed, indices, statuses);
    }
};

/// Stores what a complete but not yet completed operation delivered: the program may use its data from then on.
void store_early(const MPI_Request request, const MPI_Status& status) {
    if (const auto operation = layer().requests.find(request); operation != nullptr && operation->active) {
        operation->store(status, MPI_SUCCESS);
    }
}

[[nodiscard]] MPI_Request carrier_of(const MPI_Request request) {
    const auto operation = layer().requests.find(request);
    return operation != nullptr && operation->active ? operation->carrier : request;
}

struct GetStatus {
    template <Function function>
    static int run(Call&, MPI_Request request, int* flag, MPI_Status* status) {
        if (!layer().requests.any()) {
            return below<function>()(request, flag, status);
        }
        MPI_Status own{};
        const int error = below<function>()(carrier_of(request), flag, &own);
        if (error == MPI_SUCCESS && *flag != 0) {
            store_early(request, own);
            if (status != MPI_STATUS_IGNORE) {
                *status = own;
            }
        }
        return error;
    }
};

/// MPI-4.1's forms for several requests. The MPI answers for the carriers.
struct GetStatusAll {
    template <Function function, class Requests_>
    static int run(Call&, int count, Requests_ requests, int* flag, MPI_Status* statuses) {
        if (!layer().requests.any() || count <= 0) {
            return below<function>()(count, requests, flag, statuses);
        }
        std::vector<MPI_Request> carriers;
        for (int i = 0; i < count; ++i) {
            carriers.push_back(carrier_of(requests[i]));
        }
        Statuses own(count, statuses);
        const int error = below<function>()(count, carriers.data(), flag, own.data());
        if (error == MPI_SUCCESS && *flag != 0) {
            for (int i = 0; i < count; ++i) {
                store_early(requests[i], own.data()[i]);
            }
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
        std::vector<MPI_Request> carriers;
        for (int i = 0; i < count; ++i) {
            carriers.push_back(carrier_of(requests[i]));
        }
        MPI_Status own{};
        const int error = below<function>()(count, carriers.data(), index, flag, &own);
        if (error == MPI_SUCCESS && *flag != 0) {
            if (*index != MPI_UNDEFINED) {
                store_early(requests[*index], own);
            }
            if (status != MPI_STATUS_IGNORE) {
                *status = own;
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
        std::vector<MPI_Request> carriers;
        for (int i = 0; i < count; ++i) {
            carriers.push_back(carrier_of(requests[i]));
        }
        Statuses own(count, statuses);
        const int error = below<function>()(count, carriers.data(), completed, indices, own.data());
        if (error == MPI_SUCCESS && *completed != MPI_UNDEFINED) {
            for (int i = 0; i < *completed; ++i) {
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
            if (const auto operation = layer().requests.find(*request); operation != nullptr && operation->active) {
                return below<function>()(&operation->carrier);
            }
        }
        return below<function>()(request);
    }
};

/// Freeing an active operation lets it complete by itself: we keep its images and its native request until then.
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
        const bool own_carrier =
            operation->kind == Operation::Kind::rebinding && operation->carrier != operation->handle;
        const bool images_in_use = operation->active && operation->stage.active();
        int error = MPI_SUCCESS;
        if (!images_in_use || own_carrier) {
            error = below<function>()(request);  // the handle itself is native, or idle
        } else {
            *request = MPI_REQUEST_NULL;
        }
        if (images_in_use) {
            owner.requests.adopt(operation);
        }
        return error;
    }
};

/// Calls that carry no buffer of ours, but in which the program waits for others: chances to complete freed operations.
struct Progress {
    template <Function function, class... Arguments>
    static int run(Call&, Arguments... arguments) {
        return below<function>()(arguments...);
    }
};

}  // namespace

Services completion_services() {
    return {
        AWAKEN_SERVE(Wait, Wait),
        AWAKEN_SERVE(Test, Test),
        AWAKEN_SERVE(Waitall, WaitAll),
        AWAKEN_SERVE(Testall, TestAll),
        AWAKEN_SERVE(Waitany, WaitAny),
        AWAKEN_SERVE(Testany, TestAny),
        AWAKEN_SERVE(Waitsome, CompleteSome),
        AWAKEN_SERVE(Testsome, CompleteSome),
        AWAKEN_SERVE(Request_get_status, GetStatus),
        AWAKEN_SERVE(Request_get_status_all, GetStatusAll),
        AWAKEN_SERVE(Request_get_status_any, GetStatusAny),
        AWAKEN_SERVE(Request_get_status_some, GetStatusSome),
        AWAKEN_SERVE(Cancel, Cancel),
        AWAKEN_SERVE(Request_free, Free),
        AWAKEN_SERVE(Barrier, Progress),
        AWAKEN_SERVE(Probe, Progress),
        AWAKEN_SERVE(Iprobe, Progress),
        AWAKEN_SERVE(Mprobe, Progress),
        AWAKEN_SERVE(Improbe, Progress),
    };
}

}  // namespace awaken::AWAKEN_ABI
