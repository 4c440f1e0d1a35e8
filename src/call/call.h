// SPDX-License-Identifier: Apache-2.0
// One MPI call on its way through the layer.
#pragma once

#include <utility>

#include "base/error.h"
#include "call/layer.h"
#include "call/traced_requests.h"
#include "loader/function_traits.h"

namespace awaken::AWAKEN_ABI {

/// What the layer knows of the call under way: the function, the object that its errors belong to, and what the layer
/// did for it.
class Call {
  public:
    explicit Call(const Function function) noexcept : _function(function) {
        ++depth;
        _outer = current;
        current = this;
        Layer& owner = layer();
        owner.receive_readiness.say_when_ready();
        owner.node_peers.look_at_network();
        if (owner.observed) {
            _started_ns = trace::now_ns();
        }
    }
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    [[nodiscard]] Function function() const noexcept { return _function; }
    [[nodiscard]] const char* name() const noexcept { return loader::name_of(_function); }

    /// Sets the communicator on which this call raises its errors; MPI_COMM_SELF without it.
    /// If that one has a stream, waits until the stream's operations are over, and throws their errors.
    void on(const MPI_Comm communicator) {
        _object = NamedObject::of(NamedObject::Type::communicator, communicator);
        if (StreamWork* const work = layer().stream_work.load(std::memory_order_acquire); work != nullptr)
            [[unlikely]] {
            work->settle(communicator);
        }
    }
    /// The same, with the rank of the other process of the message.
    void on(const MPI_Comm communicator, const int peer) {
        on(communicator);
        _peer = peer;
    }
    void on_window(const MPI_Win window) noexcept { _object = NamedObject::of(NamedObject::Type::window, window); }
    void on_file(const MPI_File file) noexcept { _object = NamedObject::of(NamedObject::Type::file, file); }
    void on(const NamedObject& object) noexcept { _object = object; }
    [[nodiscard]] const NamedObject& object() const noexcept { return _object; }
    /// Whether the program asserts that all its buffers on the call's object are host memory.
    [[nodiscard]] bool is_host_only() const {
        MemoryKinds& kinds = layer().memory_kinds;
        return kinds.any_asserted() && kinds.is_host_only(_object);
    }

    /// Records that `bytes` of the call's data took this path. The report shows the worst path of a call.
    void account(const report::Path path, const std::int64_t bytes) noexcept {
        _path = path > _path ? path : _path;
        _bytes += bytes;
        _accounted = {path > _accounted.path ? path : _accounted.path, _accounted.bytes + bytes};
    }
    [[nodiscard]] std::int64_t accounted_bytes() const noexcept { return _bytes; }
    /// Sets the own data of a call that consists of other calls, whatever these have counted.
    void account_bytes(const std::int64_t bytes) noexcept { _bytes = bytes; }
    /// Takes the error code of the operation, which the call returns.
    int returns(int error);
    /// Ends the call in the trace. What follows is work of the trace itself.
    void end_in_trace() noexcept;
    /// True when the trace records this call. It does not record calls that the MPI or a callback makes inside it.
    [[nodiscard]] bool traced() const noexcept { return _outer == nullptr && layer().tracing; }
    /// The call so far, for the trace.
    [[nodiscard]] trace::Event event() const noexcept;
    /// What the call has accounted since the last take_accounted().
    struct Accounted {
        report::Path path;
        std::int64_t bytes;
    };
    Accounted take_accounted() noexcept { return std::exchange(_accounted, Accounted{report::Path::native, 0}); }
    /// Raises an error of the layer on the call's object and returns the code. The program's error handler may throw.
    int fail(int error_class, const Error& error);

    /// Depth of layer calls on this thread: above 0 while one is under way. The layer so recognises calls that the MPI
    /// or a tool below makes through the exported names.
    static inline thread_local int depth = 0;
    /// The innermost call under way on this thread; null outside of calls.
    static inline thread_local Call* current = nullptr;

  private:
    void tell(std::uint64_t ended_ns) noexcept;

    const Function _function;
    Call* _outer = nullptr;
    report::Path _path = report::Path::native;
    NamedObject _object;
    std::int64_t _bytes = 0;
    std::uint64_t _started_ns = 0;  ///< 0: not timed
    std::uint64_t _ended_ns = 0;    ///< 0: the call ends in the destructor
    Accounted _accounted{report::Path::native, 0};
    int _peer = trace::kNoPeer;
    bool _succeeded = false;
    bool _told = false;  ///< the trace has recorded the call
};

/// Thrown for an error that has a class of its own; a plain awaken::Error becomes MPI_ERR_OTHER.
class ClassedError : public Error {
  public:
    ClassedError(const int mpi_class, std::string cause, std::string remedy)
        : Error(std::move(cause), std::move(remedy)), error_class(mpi_class) {}
    const int error_class;
};

/// Thrown when the MPI has already raised an error on the program's object: the call only returns its code.
class RaisedError : public Error {
  public:
    explicit RaisedError(const int mpi_code) : Error("the MPI has raised an error", "see that one"), code(mpi_code) {}
    const int code;
};

/// True when the program did not make the call: it comes from inside the MPI, or from a tool that forwards a call under
/// way.
[[nodiscard]] bool passes_through(const void* return_address) noexcept;

/// A call of the program, in the form for the frame that all functions share. The frame keeps each function's own part
/// small: there are some 700 functions, in each of three ABIs.
struct ServedCall {
    Function function;
    loader::Waits where;
    int (*body)(const void* arguments, Call& call);
    const void* arguments;
};
/// Makes the Call, runs the body, and turns what it throws into an MPI error.
int serve(const ServedCall& served);

/// The function behind an exported name when `Operation` serves `function`. It passes calls from inside the MPI
/// straight on, and all others to Operation::run<function>(call, arguments...).
template <Function function, class Operation, class Type = typename NativeMember<function>::Type>
struct Entry;

template <Function function, class Operation>
struct Entry<function, Operation, Absent> {
    static constexpr void* address() { return nullptr; }  // this ABI has no such function
};

template <Function function, class Operation, class... Arguments>
struct Entry<function, Operation, int (*)(Arguments...)> {
    static int enter(Arguments... arguments) {
        if (passes_through(__builtin_return_address(0))) {
            return NativeMember<function>::of(layer().real)(arguments...);
        }
        const auto body = [&](Call& call) {
            if constexpr (loader::traits_of(function).requests == loader::RequestRole::takes) {
                GivenRequests<function, Arguments...> requests(call.traced(), arguments...);
                const int error = call.returns(Operation::template run<function>(call, arguments...));
                requests.returned(error, call, arguments...);
                return error;
            } else {
                const int error = call.returns(Operation::template run<function>(call, arguments...));
                if constexpr (ends_with_request<Arguments...>()) {
                    const MPI_Request* request = nullptr;
                    ((request = as_request(arguments)), ...);  // the last one remains
                    trace_new_request(call, error, request);
                }
                return error;
            }
        };
        return serve(
            {function, loader::traits_of(function).waits,
             [](const void* const erased, Call& call) { return (*static_cast<const decltype(body)*>(erased))(call); },
             &body});
    }
    static void* address() { return reinterpret_cast<void*>(&enter); }
};

/// The next function below this library for `function`: that of a tool, or of the MPI.
template <Function function>
[[nodiscard]] auto below() noexcept {
    return NativeMember<function>::of(layer().below);
}

/// One line of a family's table.
#define AWAKEN_SERVE(function, ...)                                           \
    loader::Service {                                                         \
        Function::function, Entry<Function::function, __VA_ARGS__>::address() \
    }
/// The same for a function that has a large-count form (MPI-4.0, 2.5.8); the layer serves both alike.
#define AWAKEN_SERVE_COUNTS(function, ...) AWAKEN_SERVE(function, __VA_ARGS__), AWAKEN_SERVE(function##_c, __VA_ARGS__)

}  // namespace awaken::AWAKEN_ABI
