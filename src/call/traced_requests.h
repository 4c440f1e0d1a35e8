// SPDX-License-Identifier: Apache-2.0
// Finds the requests among a call's arguments that begin or end with the call, for the trace of nonblocking operations.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <vector>

#include "call/layer.h"
#include "trace/trace.h"

namespace awaken::AWAKEN_ABI {

class Call;

/// The last argument of a call that has returned is a request. Tells the trace, if there is one, that the call may have
/// started or made it.
void trace_new_request(const Call& call, int error, const MPI_Request* request);
/// The event of a traced call, for the operations that begin or end with it.
[[nodiscard]] trace::Event event_of(const Call& call) noexcept;

/// True when the last argument is a request: the call may start or make one.
template <class... Arguments>
[[nodiscard]] constexpr bool ends_with_request() noexcept {
    constexpr bool kRequests[] = {false, std::is_same_v<Arguments, MPI_Request*>...};
    return kRequests[sizeof...(Arguments)];
}
template <class Argument>
const MPI_Request* as_request(const Argument& argument) noexcept {
    if constexpr (std::is_same_v<Argument, MPI_Request*>) {
        return argument;
    } else {
        return nullptr;
    }
}

/// The requests that a completion function gets, or that end with the call. Looks at the arguments before and after the
/// call. Costs one comparison while calls are not traced.
template <Function function, class... Arguments>
class GivenRequests {
    static constexpr bool kWaitsForOne = function == Function::Wait || function == Function::Test;
    static constexpr bool kWaitsForAll = function == Function::Waitall || function == Function::Testall;
    static constexpr bool kWaitsForAny = function == Function::Waitany || function == Function::Testany;
    static constexpr bool kWaitsForSome = function == Function::Waitsome || function == Function::Testsome;
    static constexpr bool kCompletes = kWaitsForOne || kWaitsForAll || kWaitsForAny || kWaitsForSome;

  public:
    explicit GivenRequests(const bool tracing, const Arguments&... arguments) : _tracing(tracing) {
        if constexpr (kCompletes || function == Function::Request_free) {
            if (_tracing) [[unlikely]] {
                const auto all = std::tie(arguments...);
                if constexpr (kWaitsForOne || function == Function::Request_free) {
                    keep(1, std::get<0>(all));
                } else {
                    keep(std::get<0>(all), std::get<1>(all));
                }
            }
        }
    }

    /// The call has returned.
    void returned(const int error, const Call& call, const Arguments&... arguments) {
        if (!_tracing) [[likely]] {
            return;
        }
        TracedOperations& operations = layer().trace.operations;
        const auto all = std::tie(arguments...);
        if constexpr (kCompletes) {
            completed(operations, error, all);
        } else if constexpr (function == Function::Request_free) {
            if (error == MPI_SUCCESS && !_before.empty()) {
                operations.freed(_before.front(), trace::now_ns());
            }
        } else if constexpr (function == Function::Start) {
            if (error == MPI_SUCCESS) {
                operations.started(*std::get<0>(all), event_of(call).begin_ns);
            }
        } else if constexpr (function == Function::Startall) {
            for (int i = 0; error == MPI_SUCCESS && i < std::get<0>(all); ++i) {
                operations.started(std::get<1>(all)[i], event_of(call).begin_ns);
            }
        }
    }

  private:
    void keep(const int count, const MPI_Request* const requests) {
        if (count > 0 && requests != nullptr) {
            _before.assign(requests, requests + count);
        }
    }

    template <class All>
    void completed(TracedOperations& operations, const int error, const All& all) {
        const std::uint64_t now = trace::now_ns();
        const auto end = [&](const int i) {
            if (i >= 0 && static_cast<std::size_t>(i) < _before.size()) {
                operations.ended(_before[static_cast<std::size_t>(i)], now);
            }
        };
        if constexpr (function == Function::Wait) {
            end(0);  // the operation is over, even with an error
        } else if constexpr (function == Function::Test) {
            if (error != MPI_SUCCESS || *std::get<1>(all) != 0) {
                end(0);
            }
        } else if constexpr (kWaitsForAll) {
            bool flag = true;
            if constexpr (function == Function::Testall) {
                flag = *std::get<2>(all) != 0;
            }
            for (std::size_t i = 0; i < _before.size(); ++i) {
                if ((error == MPI_SUCCESS && flag) || std::get<1>(all)[i] == MPI_REQUEST_NULL) {
                    end(static_cast<int>(i));
                }
            }
        } else if constexpr (kWaitsForAny) {
            bool flag = true;
            if constexpr (function == Function::Testany) {
                flag = *std::get<3>(all) != 0 || error != MPI_SUCCESS;
            }
            if (flag) {
                end(*std::get<2>(all));
            }
        } else {
            const int count = *std::get<2>(all);
            for (int i = 0; count != MPI_UNDEFINED && i < count; ++i) {
                end(std::get<3>(all)[i]);
            }
        }
    }

    const bool _tracing;
    std::vector<MPI_Request> _before;
};

}  // namespace awaken::AWAKEN_ABI
