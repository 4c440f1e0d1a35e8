// One MPI call on its way through the layer.
#pragma once

#include <utility>

#include "base/error.h"
#include "call/layer.h"
#include "call/traced_requests.h"
#include "call/waiting.h"

namespace awaken::AWAKEN_ABI {

/// What is known of the call under way: the function, where its errors belong, and what was done for it.
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

    /// Where an error of this call is raised; MPI_COMM_SELF when nothing is said.
    void on(const MPI_Comm communicator) noexcept {
        _communicator = communicator;
        _target = Target::communicator;
    }
    /// The same, with the rank that is sent to or received from.
    void on(const MPI_Comm communicator, const int peer) noexcept {
        on(communicator);
        _peer = peer;
    }
    void on_window(const MPI_Win window) noexcept {
        _window = window;
        _target = Target::window;
    }
    void on_file(const MPI_File file) noexcept {
        _file = file;
        _target = Target::file;
    }

    /// Remembers that `bytes` of the call's data took this path. The worst path of a call is the one that is reported.
    void account(const report::Path path, const std::int64_t bytes) noexcept {
        _path = path > _path ? path : _path;
        _bytes += bytes;
        _accounted = {path > _accounted.path ? path : _accounted.path, _accounted.bytes + bytes};
    }
    [[nodiscard]] std::int64_t accounted_bytes() const noexcept { return _bytes; }
    /// Of a call that consists of others: its own data, whatever these have counted.
    void account_bytes(const std::int64_t bytes) noexcept { _bytes = bytes; }
    /// What the operation returned, and the call will.
    int returns(int error);
    /// For the trace, the call is over: what follows is the trace's own doing.
    void end_in_trace() noexcept;
    /// The trace is told of this call, and not of those that the MPI or a callback makes in the course of it.
    [[nodiscard]] bool traced() const noexcept { return _outer == nullptr && layer().tracing; }
    /// The call as far as it has gone, for the trace.
    [[nodiscard]] trace::Event event() const noexcept;
    /// What has been accounted since this was last called.
    struct Accounted {
        report::Path path;
        std::int64_t bytes;
    };
    Accounted take_accounted() noexcept { return std::exchange(_accounted, Accounted{report::Path::native, 0}); }
    /// Raises an error of ours on the call's object and returns the code. The program's error handler may throw.
    int fail(int error_class, const Error& error);

    /// Nesting of layer calls on this thread: above 0 while one is under way, so that what the MPI (or a tool below us)
    /// calls back through our exported names is recognised.
    static inline thread_local int depth = 0;
    /// The innermost call under way on this thread; null outside.
    static inline thread_local Call* current = nullptr;

  private:
    enum class Target : std::uint8_t { self, communicator, window, file };
    void tell(std::uint64_t ended_ns) noexcept;

    const Function _function;
    Call* _outer = nullptr;
    Target _target = Target::self;
    report::Path _path = report::Path::native;
    union {
        MPI_Comm _communicator;
        MPI_Win _window;
        MPI_File _file;
    };
    std::int64_t _bytes = 0;
    std::uint64_t _started_ns = 0;  ///< 0: nobody wants to know
    std::uint64_t _ended_ns = 0;    ///< 0: as late as the destructor
    Accounted _accounted{report::Path::native, 0};
    int _peer = trace::kNoPeer;
    bool _succeeded = false;
    bool _told = false;  ///< the trace was told
};

/// Thrown where an error has a class of its own; a plain awaken::Error becomes MPI_ERR_OTHER.
class ClassedError : public Error {
  public:
    ClassedError(const int mpi_class, std::string cause, std::string remedy)
        : Error(std::move(cause), std::move(remedy)), error_class(mpi_class) {}
    const int error_class;
};

/// Thrown where the MPI has raised an error on the program's object already: the call only returns its code.
class RaisedError : public Error {
  public:
    explicit RaisedError(const int mpi_code) : Error("the MPI has raised an error", "see that one"), code(mpi_code) {}
    const int code;
};

/// Whether a call is none of the program's: from inside the MPI, or from a tool that forwards a call under way.
[[nodiscard]] bool passes_through(const void* return_address) noexcept;

/// A call of the program's as the frame sees it that all functions share, so that each function's own part is small:
/// there are some 700 functions, in each of three ABIs.
struct ServedCall {
    Function function;
    Waits where;
    int (*body)(const void* arguments, Call& call);
    const void* arguments;
};
/// Makes the Call, runs the body, and turns what it throws into an error of the MPI's.
int serve(const ServedCall& served);
/// Also for functions that need nothing but the care of call/waiting.h: no Call, `body` gets none.
int wait_in_the_mpi(int (*body)(const void* arguments), const void* arguments);

/// The function that an exported name leads to when `Operation` serves `function`:
/// calls from inside the MPI go straight to it, all others to Operation::run<function>(call, arguments...).
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
                    ((request = as_request(arguments)), ...);  // the last one's stays
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

/// The program's next function below us for `function`.
template <Function function>
[[nodiscard]] auto below() noexcept {
    return NativeMember<function>::of(layer().below);
}

/// One line of a family's table.
#define AWAKEN_SERVE(function, operation)                                   \
    loader::Service {                                                       \
        Function::function, Entry<Function::function, operation>::address() \
    }
/// The same for a function that has a large-count form (MPI-4.0, 2.5.8), which is served alike.
#define AWAKEN_SERVE_COUNTS(function, operation) \
    AWAKEN_SERVE(function, operation), AWAKEN_SERVE(function##_c, operation)

}  // namespace awaken::AWAKEN_ABI
