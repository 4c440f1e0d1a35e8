// SPDX-License-Identifier: Apache-2.0
// Revoked communicators and dead ranks under an MPI with User Level Failure Mitigation (ULFM), one operation per run:
//
//     fault_tolerance revoked=OPERATION  rank 0 revokes a communicator in whose operation the others wait
//     fault_tolerance dies=OPERATION     the last rank ends when the others need it
//
// OPERATION: allreduce, barrier, iallreduce, allreduce_init, alltoallv (of large parts), neighbor and ineighbor
// (on a ring).
//
// The survivors' calls have to return the MPI's own error class, with the error handler called once, and the survivors
// go on with what MPIX_Comm_shrink makes of the communicator. Each prints `ok MODE` then, or `FAIL fault_tolerance:
// why`.
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <numeric>

#include "steps.h"

using namespace ranks;

namespace {

int failures = 0;

void check(bool condition, const std::string& what) {
    if (condition) {
        return;
    }
    ++failures;
    std::fprintf(stderr, "FAIL fault_tolerance: %s\n", what.c_str());
}
#define MPI(call)                                                                 \
    do {                                                                          \
        const int code = (call);                                                  \
        check(code == MPI_SUCCESS, #call + std::string(": ") + error_text(code)); \
    } while (false)

/// Of Open MPI 5, whose headers need not be those that this is compiled with.
constexpr int kProcessFailed = 75, kRevoked = 77;

/// A function of the extension.
template <class... Arguments>
int extension(const char* name, Arguments... arguments) {
    auto* const found = reinterpret_cast<int (*)(Arguments...)>(dlsym(RTLD_DEFAULT, name));
    if (found == nullptr) {
        throw std::runtime_error(std::string("the MPI has no ") + name);
    }
    return found(arguments...);
}

int errors_heard = 0;

void hear(MPI_Comm*, int*, ...) {
    ++errors_heard;
}

int class_of(int code) {
    int error_class = MPI_SUCCESS;
    MPI_Error_class(code, &error_class);
    return error_class;
}

/// What all ranks do on a communicator, as often as they like.
class Operation {
  public:
    Operation(const std::string& name, Gpu& gpu, MPI_Comm comm)
        : _name(name),
          _comm(comm),
          _size(size_of(comm)),
          _out(gpu, Kind::device, bytes()),
          _in(gpu, Kind::device, bytes()) {
        _counts.assign(static_cast<std::size_t>(_size), kCount);
        _places.resize(_counts.size());
        for (std::size_t at = 0; at < _places.size(); ++at) {
            _places[at] = static_cast<int>(at) * kCount;
        }
        std::vector<std::byte> zeros(bytes());
        _out.write(zeros.data(), zeros.size());
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
    ~Operation() {
        if (_persistent != MPI_REQUEST_NULL) {
            MPI_Request_free(&_persistent);
        }
    }

    /// Without waiting for others, where it can be.
    int begin() {
        if (_name == "iallreduce") {
            return MPI_Iallreduce(_out.data(), _in.data(), kCount, MPI_INT, MPI_SUM, _comm, &_request);
        }
        if (_name == "ineighbor") {
            return MPI_Ineighbor_alltoall(_out.data(), kCount, MPI_INT, _in.data(), kCount, MPI_INT, _comm, &_request);
        }
#if RANKS_HAVE_MPI4
        if (_name == "allreduce_init") {
            if (_persistent == MPI_REQUEST_NULL) {
                MPI(MPI_Allreduce_init(_out.data(), _in.data(), kCount, MPI_INT, MPI_SUM, _comm, MPI_INFO_NULL,
                                       &_persistent));
            }
            return MPI_Start(&_persistent);
        }
#endif
        return MPI_SUCCESS;
    }
    int end() {
        if (_name == "iallreduce" || _name == "ineighbor") {
            return MPI_Wait(&_request, MPI_STATUS_IGNORE);
        }
        if (_name == "allreduce_init") {
            return MPI_Wait(&_persistent, MPI_STATUS_IGNORE);
        }
        if (_name == "allreduce") {
            return MPI_Allreduce(_out.data(), _in.data(), kCount, MPI_INT, MPI_SUM, _comm);
        }
        if (_name == "neighbor") {
            return MPI_Neighbor_alltoall(_out.data(), kCount, MPI_INT, _in.data(), kCount, MPI_INT, _comm);
        }
        if (_name == "barrier") {
            return MPI_Barrier(_comm);
        }
        if (_name == "alltoallv") {
            return MPI_Alltoallv(_out.data(), _counts.data(), _places.data(), MPI_INT, _in.data(), _counts.data(),
                                 _places.data(), MPI_INT, _comm);
        }
        throw std::runtime_error("unknown operation " + _name);
    }

  private:
    static constexpr int kCount = 40000;
    static int size_of(MPI_Comm comm) {
        int size = 0;
        MPI_Comm_size(comm, &size);
        return size;
    }
    [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(_size) * kCount * sizeof(int); }

    const std::string _name;
    const MPI_Comm _comm;
    const int _size;
    Buffer _out, _in;
    std::vector<int> _counts, _places;
    MPI_Request _request = MPI_REQUEST_NULL, _persistent = MPI_REQUEST_NULL;
};

void reduce_and_check(Gpu& gpu, MPI_Comm comm) {
    int rank = 0, size = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    constexpr int kCount = 3000;
    Buffer data(gpu, Kind::device, kCount * sizeof(int));
    std::vector<int> values(kCount, rank + 1);
    data.write(values.data(), kCount * sizeof(int));
    MPI(MPI_Allreduce(MPI_IN_PLACE, data.data(), kCount, MPI_INT, MPI_SUM, comm));
    const std::vector<std::byte> image = data.read();
    std::memcpy(values.data(), image.data(), image.size());
    check(values.front() == size * (size + 1) / 2 && values.back() == values.front(), "wrong sum");
}

/// A ring, of which each rank knows its two neighbours.
MPI_Comm make_communicator(bool ring) {
    MPI_Comm comm = MPI_COMM_NULL;
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (ring) {
        const int periodic = 1;
        MPI(MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, &comm));
    } else {
        MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    }
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    MPI(MPI_Comm_create_errhandler(&hear, &handler));
    MPI(MPI_Comm_set_errhandler(comm, handler));
    MPI(MPI_Errhandler_free(&handler));
    return comm;
}

void expect_error(int code, int error_class, const std::string& what) {
    check(class_of(code) == error_class, format("%s: class %d instead of %d (%s)", what.c_str(), class_of(code),
                                                error_class, error_text(code).c_str()));
    check(errors_heard == 1, format("%s: the error handler was called %d times", what.c_str(), errors_heard));
    errors_heard = 0;
}

/// All that are left.
void go_on(Gpu& gpu, MPI_Comm comm, int left) {
    MPI_Comm rest = MPI_COMM_NULL;
    MPI(extension("MPIX_Comm_shrink", comm, &rest));
    int size = 0;
    MPI_Comm_size(rest, &size);
    check(size == left, format("%d ranks are left instead of %d", size, left));
    for (int round = 0; round < 3; ++round) {
        reduce_and_check(gpu, rest);
    }
    MPI(MPI_Comm_free(&rest));
}

void run(const std::string& operation_name, bool dies, Gpu& gpu, int rank, int size) {
    constexpr int kReadyTag = 7;
    const MPI_Comm comm = make_communicator(operation_name.find("neighbor") != std::string::npos);
    reduce_and_check(gpu, comm);  // with which it is found out who reaches whom
    {
        Operation operation(operation_name, gpu, comm);
        // First in peace, so that all that is set up lazily is there, and nonblocking ones are agreed on.
        for (int round = 0; round < 6; ++round) {
            reduce_and_check(gpu, comm);
            MPI(operation.begin());
            MPI(operation.end());
        }
        const int absent = dies ? size - 1 : 0;
        if (rank == absent) {
            for (int other = 0; other < size; ++other) {
                if (other != rank) {
                    MPI(MPI_Recv(nullptr, 0, MPI_BYTE, other, kReadyTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
                }
            }
            if (dies) {
                raise(SIGKILL);
            }
            MPI(extension("MPIX_Comm_revoke", comm));
        } else {
            int code = operation.begin();
            MPI(MPI_Send(nullptr, 0, MPI_BYTE, absent, kReadyTag, MPI_COMM_WORLD));
            if (code == MPI_SUCCESS) {
                code = operation.end();
            }
            if (dies && class_of(code) == kRevoked) {
                // Another survivor has found out before, and revoked it.
                expect_error(code, kRevoked, operation_name);
            } else {
                expect_error(code, dies ? kProcessFailed : kRevoked, operation_name);
            }
            if (dies) {
                MPI(extension("MPIX_Comm_revoke", comm));
            }
        }
        errors_heard = 0;
        expect_error(MPI_Barrier(comm), kRevoked, "a call on the revoked communicator");
        go_on(gpu, comm, dies ? size - 1 : size);
    }
    MPI_Comm revoked = comm;
    MPI(MPI_Comm_free(&revoked));
}

}  // namespace

int main(int argc, char** argv) {
    const std::string gpu_name = take_option(argc, argv, "--gpu").value_or("auto");
    const std::string mode = argc > 1 ? argv[1] : "";
    std::snprintf(detail::running_case, sizeof detail::running_case, "%s", mode.c_str());
    signal(SIGALRM, detail::say_what_hangs);
    detail::set_watchdog(kSlowness * kLimitSeconds);
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    detail::running_rank = rank;
    const bool dies = mode.rfind("dies=", 0) == 0;
    check(dies || mode.rfind("revoked=", 0) == 0, "unknown mode " + mode);
    try {
        const std::unique_ptr<Gpu> gpu = Gpu::open(gpu_name);
        if (gpu->device_count() > 0) {
            gpu->use_device(rank % gpu->device_count());
        }
        if (failures == 0) {
            run(mode.substr(mode.find('=') + 1), dies, *gpu, rank, size);
        }
    } catch (const std::exception& error) {
        check(false, error.what());
    }
    std::printf("%s %s\n", failures == 0 ? "ok" : "failed", mode.c_str());
    std::fflush(stdout);
    if (dies) {
        _exit(failures == 0 ? 0 : 1);  // MPI_Finalize would wait for the dead rank
    }
    MPI_Finalize();
    return failures == 0 ? 0 : 1;
}
