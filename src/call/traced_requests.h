// Which of a call's arguments are requests that begin or end with it: for the trace of nonblocking operations.
#pragma once

#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "call/layer.h"
#include "trace/trace.h"

namespace awaken::AWAKEN_ABI {

/// What a function does to the request that is its last argument, as its name says.
enum class RequestRole : std::uint8_t { none, starts, makes };

[[nodiscard]] inline RequestRole role_of(const Function function) noexcept {
    std::string_view name = loader::name_of(function);
    name.remove_prefix(std::string_view("MPI_").size());
    if (name.ends_with("_c")) {
        name.remove_suffix(2);
    }
    if (name.ends_with("_init")) {
        return name == "Session_init" ? RequestRole::none : RequestRole::makes;
    }
    if (name == "Grequest_start" || name == "Rput" || name == "Rget" || name.starts_with("Raccumulate") ||
        name.starts_with("Rget_accumulate") || name.starts_with("Comm_idup") || name.starts_with("File_i") ||
        name.ends_with("_iflush") || name.find("_iflush_") != std::string_view::npos) {
        return RequestRole::starts;
    }
    // MPI_Isend, MPI_Iallreduce, ...: other names with a small letter after the I have no request.
    const bool other = name.starts_with("Info_") || name.starts_with("Init") || name.starts_with("Intercomm_") ||
                       name.starts_with("Is_") || name == "Iprobe" || name == "Improbe";
    return name.starts_with('I') && !other ? RequestRole::starts : RequestRole::none;
}

/// Looks at the arguments of one call before and after it. Does nothing where the function has no request, and nothing
/// but one comparison while calls are not traced.
template <Function function, class... Arguments>
class TracedRequests {
    static constexpr bool kWaitsForOne = function == Function::Wait || function == Function::Test;
    static constexpr bool kWaitsForAll = function == Function::Waitall || function == Function::Testall;
    static constexpr bool kWaitsForAny = function == Function::Waitany || function == Function::Testany;
    static constexpr bool kWaitsForSome = function == Function::Waitsome || function == Function::Testsome;
    static constexpr bool kCompletes = kWaitsForOne || kWaitsForAll || kWaitsForAny || kWaitsForSome;

    template <class... All>
    struct Last {
        using Type = void;
    };
    template <class First, class... Rest>
    struct Last<First, Rest...> {
        using Type = typename std::conditional_t<sizeof...(Rest) == 0, std::type_identity<First>, Last<Rest...>>::type;
    };
    template <std::size_t index>
    using Argument = std::tuple_element_t<index, std::tuple<Arguments...>>;

  public:
    explicit TracedRequests(const bool tracing, const Arguments&... arguments) : _tracing(tracing) {
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

    /// The call has returned. `event` describes it, once it is asked for.
    template <class Describe>
    void returned(const int error, const Describe& describe, const Arguments&... arguments) {
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
                operations.started(*std::get<0>(all), describe().begin_ns);
            }
        } else if constexpr (function == Function::Startall) {
            for (int i = 0; error == MPI_SUCCESS && i < std::get<0>(all); ++i) {
                operations.started(std::get<1>(all)[i], describe().begin_ns);
            }
        } else if constexpr (sizeof...(Arguments) > 0) {
            constexpr std::size_t kLast = sizeof...(Arguments) - 1;
            if constexpr (std::is_same_v<Argument<kLast>, MPI_Request*>) {
                static const RequestRole role = role_of(function);
                MPI_Request* const request = std::get<kLast>(all);
                if (error == MPI_SUCCESS && role == RequestRole::starts) {
                    operations.began(*request, describe());
                } else if (error == MPI_SUCCESS && role == RequestRole::makes) {
                    operations.described(*request, describe());
                }
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
            end(0);  // also with an error, the operation is over
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
