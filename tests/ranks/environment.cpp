// SPDX-License-Identifier: Apache-2.0
// What surrounds the transfers: errors and their handlers, spawned processes, sessions, the order
// after the program's own GPU work, and the program's current device.
#include <array>

#include "support.h"

using namespace ranks;

namespace {

constexpr int kTag = 17;

/// What a user's error handler saw.
struct Seen {
    int calls = 0;
    int last_class = MPI_SUCCESS;
};
Seen seen;

void remember(MPI_Comm*, int* code, ...) {
    ++seen.calls;
    seen.last_class = error_class(*code);
}

/// Wrong arguments with buffers of every kind: the class must be the MPI's own.
void wrong_arguments(Run& run, MPI_Comm comm, const std::function<void(const std::string&, int)>& record) {
    std::byte* buffer = run.input(1000);
    auto* numbers = run.values<int>(100);
    auto* results = run.transient(400);  // MPI leaves open what a failed call has written
    MPI_Request request = MPI_REQUEST_NULL;
    record("send to a rank that is not there", MPI_Send(buffer, 10, MPI_BYTE, run.size + 5, kTag, comm));
    record("negative count", MPI_Send(buffer, -1, MPI_BYTE, 0, kTag, comm));
    record("negative tag", MPI_Send(buffer, 10, MPI_BYTE, 0, -77, comm));
    record("null datatype", MPI_Send(buffer, 10, MPI_DATATYPE_NULL, 0, kTag, comm));
    record("receive from a rank that is not there",
           MPI_Recv(buffer, 10, MPI_BYTE, run.size + 5, kTag, comm, MPI_STATUS_IGNORE));
    record("isend to a rank that is not there", MPI_Isend(buffer, 10, MPI_BYTE, run.size, kTag, comm, &request));
    record("irecv, negative count", MPI_Irecv(buffer, -4, MPI_BYTE, 0, kTag, comm, &request));
    record("persistent, bad rank", MPI_Send_init(buffer, 10, MPI_BYTE, run.size, kTag, comm, &request));
    record("bcast, bad root", MPI_Bcast(buffer, 10, MPI_BYTE, run.size + 3, comm));
    record("reduce, null operation", MPI_Allreduce(numbers, results, 10, MPI_INT, MPI_OP_NULL, comm));
    record("reduce, bad root", MPI_Reduce(numbers, results, 10, MPI_INT, MPI_SUM, -9, comm));
}

void errors_return(Run& run) {
    wrong_arguments(run, run.comm, [&](const std::string& what, int code) {
        run.note(what, error_class(code));
        run.expect(code != MPI_SUCCESS, what + " succeeded");
    });
}

void errors_to_a_handler(Run& run) {
    MPI_Errhandler handler;
    OK(MPI_Comm_create_errhandler(remember, &handler));
    OK(MPI_Comm_set_errhandler(run.comm, handler));
    wrong_arguments(run, run.comm, [&](const std::string& what, int code) {
        run.note(what, error_class(code));
        run.note(what + " calls", seen.calls);
        run.note(what + " class", seen.last_class);
        run.expect(seen.calls > 0, what + " did not call the handler");
        seen = Seen{};
    });
    // An error of a receive that completes later.
    const Pair pair(run);
    std::byte* buffer = run.input(3000);
    if (pair.sender) {
        OK(MPI_Send(buffer, 3000, MPI_BYTE, pair.peer, kTag, run.comm));
    }
    if (pair.receiver) {
        MPI_Request request;
        OK(MPI_Irecv(buffer, 100, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        run.note("truncated", error_class(MPI_Wait(&request, MPI_STATUS_IGNORE)));
        // Some MPIs call it twice for one error.
        run.expect(seen.calls > 0, "a truncated message did not call the handler");
        run.note("truncated class", seen.last_class);
        seen = Seen{};
    }
    OK(MPI_Comm_set_errhandler(run.comm, MPI_ERRORS_RETURN));
    OK(MPI_Errhandler_free(&handler));
}

/// Programs ask this before they hand over device pointers.
void support_queries(Run& run) {
    const auto query = [](const char* name) {
        const auto function = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, name));
        return function == nullptr ? -1 : function();
    };
    if (run.reference() || !run.gpu().present()) {
        return;
    }
    const bool cuda = dynamic_cast<CudaGpu*>(&run.gpu()) != nullptr;
    const int answer = query(cuda ? "MPIX_Query_cuda_support" : "MPIX_Query_rocm_support");
    run.expect(answer == 1, format("MPIX_Query_%s_support gives %d", cuda ? "cuda" : "rocm", answer));
}

// ---- the program's own GPU work -------------------------------------------------------------------------------------

void set_bytes(Run& run, std::byte* pointer, int value, std::size_t bytes) {
    if (host_accessible(run.kind_of(pointer))) {
        std::memset(pointer, value, bytes);
    } else {
        run.gpu().memset(pointer, value, bytes);  // returns before it is done
    }
}
void copy_bytes(Run& run, std::byte* to, const std::byte* from, std::size_t bytes) {
    if (host_accessible(run.kind_of(to)) && host_accessible(run.kind_of(from))) {
        std::memcpy(to, from, bytes);
    } else if (host_accessible(run.kind_of(to)) || host_accessible(run.kind_of(from))) {
        const std::vector<std::byte> image = run.load(from, bytes);
        run.store(to, image.data(), bytes);
    } else {
        run.gpu().copy_on_device(to, from, bytes);
    }
}

void set_then_send(Run& run) {
    const Ring ring(run);
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{4096}, std::size_t{1} << 20, std::size_t{6} << 20}) {
        const int count = static_cast<int>(bytes);
        std::byte* out = run.input(bytes);
        std::byte* in = run.input(bytes);
        std::byte* copy = run.input(bytes);
        for (int round = 0; round < 2; ++round) {
            set_bytes(run, out, 0x30 + round, bytes / 2);
            OK(MPI_Sendrecv(out, count, MPI_BYTE, ring.next, kTag, in, count, MPI_BYTE, ring.previous, kTag, run.comm,
                            MPI_STATUS_IGNORE));
            // Set again at once: the send has taken its data.
            set_bytes(run, out, 0x50 + round, bytes);
            copy_bytes(run, copy, in, bytes);
            OK(MPI_Sendrecv(copy, count, MPI_BYTE, ring.next, kTag, in, count, MPI_BYTE, ring.previous, kTag, run.comm,
                            MPI_STATUS_IGNORE));
            run.note_bytes("twice around", in, bytes);
        }
    }
}

void set_then_reduce(Run& run) {
    constexpr std::size_t kCount = 300000;
    for (int round = 0; round < 3; ++round) {
        auto* out = reinterpret_cast<int*>(run.input(kCount * sizeof(int)));
        auto* in = reinterpret_cast<int*>(run.input(kCount * sizeof(int)));
        set_bytes(run, reinterpret_cast<std::byte*>(in), 0, kCount * sizeof(int));
        set_bytes(run, reinterpret_cast<std::byte*>(out), run.rank + 1 + round, kCount * sizeof(int));
        OK(MPI_Reduce(out, in, kCount, MPI_INT, MPI_SUM, round % run.size, run.comm));
        set_bytes(run, reinterpret_cast<std::byte*>(out), 3, kCount * sizeof(int));
        OK(MPI_Allreduce(MPI_IN_PLACE, out, kCount, MPI_INT, MPI_SUM, run.comm));
    }
}

void set_then_start(Run& run) {
    const Ring ring(run);
    constexpr int kBytes = 2 << 20;
    std::byte* out = run.input(kBytes);
    std::byte* in = run.input(kBytes);
    MPI_Request requests[2];
    OK(MPI_Recv_init(in, kBytes, MPI_BYTE, ring.previous, kTag, run.comm, &requests[0]));
    OK(MPI_Send_init(out, kBytes, MPI_BYTE, ring.next, kTag, run.comm, &requests[1]));
    for (int round = 0; round < 3; ++round) {
        set_bytes(run, out, run.rank * 16 + round, kBytes);
        set_bytes(run, in, 0xee, kBytes);  // must be over before the message lands
        OK(MPI_Startall(2, requests));
        OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        run.note_bytes(format("round %d", round), in, kBytes);
    }
    OK(MPI_Request_free(&requests[0]));
    OK(MPI_Request_free(&requests[1]));
}

/// A buffer of one device while another is current, buffers of two devices in one call, and no current context at all.
void other_devices(Run& run) {
    const Ring ring(run);
    const int devices = run.gpu().device_count();
    const int mine = devices == 0 ? 0 : run.rank % devices;
    run.watch_current(false);
    std::byte* here = run.input(50000);
    if (devices > 1) {
        run.gpu().use_device((mine + 1) % devices);
    }
    std::byte* there = run.input(50000);
    run.watch_current(true);
    OK(MPI_Sendrecv(here, 50000, MPI_BYTE, ring.next, kTag, there, 50000, MPI_BYTE, ring.previous, kTag, run.comm,
                    MPI_STATUS_IGNORE));
    OK(MPI_Allreduce(there, here, 1000, MPI_INT, MPI_BXOR, run.comm));
    run.gpu().leave();
    run.watch_current(true);
    OK(MPI_Sendrecv(here, 50000, MPI_BYTE, ring.next, kTag, there, 50000, MPI_BYTE, ring.previous, kTag, run.comm,
                    MPI_STATUS_IGNORE));
    OK(MPI_Bcast(here, 50000, MPI_BYTE, 0, run.comm));
    MPI_Request request;
    OK(MPI_Ibcast(there, 50000, MPI_BYTE, 0, run.comm, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    if (devices > 0) {
        run.gpu().use_device(mine);
    }
    run.watch_current(true);
}

// ---- other processes ------------------------------------------------------------------------------------------------

constexpr int kSpawnBytes = 30000;

/// The child's part: a process that may run without the layer, with host memory only.
int child_main() {
    MPI_Comm parent;
    MPI_Comm_get_parent(&parent);
    std::vector<unsigned char> buffer(kSpawnBytes);
    MPI_Recv(buffer.data(), kSpawnBytes, MPI_BYTE, 0, kTag, parent, MPI_STATUS_IGNORE);
    for (unsigned char& byte : buffer) {
        byte = static_cast<unsigned char>(byte ^ 0x5a);
    }
    MPI_Send(buffer.data(), kSpawnBytes, MPI_BYTE, 0, kTag, parent);
    MPI_Bcast(buffer.data(), kSpawnBytes, MPI_BYTE, 0, parent);
    int value = 1;
    MPI_Allreduce(&value, buffer.data(), 1, MPI_INT, MPI_SUM, parent);
    MPI_Comm_disconnect(&parent);
    MPI_Finalize();
    return 0;
}

std::string own_path() {
    std::array<char, 4096> path{};
    const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
    return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : std::string();
}

void spawned(Run& run) {
    const std::string program = own_path();
    std::string argument = "--child";
    char* arguments[] = {argument.data(), nullptr};
    MPI_Comm children = MPI_COMM_NULL;
    int code = MPI_SUCCESS;
    std::byte* buffer = run.input(kSpawnBytes);
    auto* one = run.values<int>(1);
    auto* sum = run.output<int>(1);
    OK(MPI_Comm_spawn(program.c_str(), arguments, 1, MPI_INFO_NULL, 0, run.comm, &children, &code));
    if (children == MPI_COMM_NULL) {
        return;
    }
    OK(MPI_Comm_set_errhandler(children, MPI_ERRORS_RETURN));
    if (run.rank == 0) {
        OK(MPI_Send(buffer, kSpawnBytes, MPI_BYTE, 0, kTag, children));
        MPI_Status status{};
        OK(MPI_Recv(buffer, kSpawnBytes, MPI_BYTE, 0, kTag, children, &status));
        run.note_status("from the child", status, MPI_BYTE);
    }
    OK(MPI_Bcast(buffer, kSpawnBytes, MPI_BYTE, run.rank == 0 ? MPI_ROOT : MPI_PROC_NULL, children));
    OK(MPI_Allreduce(one, sum, 1, MPI_INT, MPI_SUM, children));
    OK(MPI_Comm_disconnect(&children));
}

#if RANKS_HAVE_MPI4
void session(Run& run) {
    MPI_Session session;
    MPI_Group group;
    MPI_Comm comm;
    OK(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
    OK(MPI_Group_from_session_pset(session, "mpi://WORLD", &group));
    OK(MPI_Comm_create_from_group(group, "awaken.test", MPI_INFO_NULL, MPI_ERRORS_RETURN, &comm));
    OK(MPI_Group_free(&group));
    int rank = 0, size = 0;
    OK(MPI_Comm_rank(comm, &rank));
    OK(MPI_Comm_size(comm, &size));
    std::byte* out = run.input(9000);
    std::byte* in = run.input(9000);
    OK(MPI_Sendrecv(out, 9000, MPI_BYTE, (rank + 1) % size, kTag, in, 9000, MPI_BYTE, (rank + size - 1) % size, kTag,
                    comm, MPI_STATUS_IGNORE));
    OK(MPI_Allreduce(MPI_IN_PLACE, in, 500, MPI_INT, MPI_BXOR, comm));
    OK(MPI_Comm_free(&comm));
    OK(MPI_Session_finalize(&session));
}
#endif

/// The layer must not show in what a program can list and count.
void attributes(Run& run) {
    int flag = 0;
    void* value = nullptr;
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &flag));
    run.note("tag upper bound", flag != 0 ? *static_cast<int*>(value) : -1);
    char name[MPI_MAX_OBJECT_NAME] = {};
    int length = 0;
    OK(MPI_Comm_get_name(MPI_COMM_WORLD, name, &length));
    run.note("name", name);
    int level = -1;
    OK(MPI_Query_thread(&level));
    run.note("thread level", level);
    // The largest tag belongs to the program.
    const Ring ring(run);
    std::byte* out = run.input(100);
    std::byte* in = run.input(100);
    const int largest = flag != 0 ? *static_cast<int*>(value) : 32767;
    OK(MPI_Sendrecv(out, 100, MPI_BYTE, ring.next, largest, in, 100, MPI_BYTE, ring.previous, largest, run.comm,
                    MPI_STATUS_IGNORE));
}

/// An operation outlives the program's handle of its communicator.
void communicator_freed_early(Run& run) {
    const Ring ring(run);
    MPI_Comm comm;
    OK(MPI_Comm_dup(run.comm, &comm));
    std::byte* out = run.input(20000);
    std::byte* in = run.input(20000);
    auto* numbers = run.values<int>(1000);
    auto* sums = run.output<int>(1000);
    MPI_Request requests[3];
    OK(MPI_Irecv(in, 20000, MPI_BYTE, ring.previous, kTag, comm, &requests[0]));
    OK(MPI_Isend(out, 20000, MPI_BYTE, ring.next, kTag, comm, &requests[1]));
    OK(MPI_Iallreduce(numbers, sums, 1000, MPI_INT, MPI_SUM, comm, &requests[2]));
    OK(MPI_Comm_free(&comm));
    OK(MPI_Waitall(3, requests, MPI_STATUSES_IGNORE));
}

}  // namespace

int main(int argc, char** argv) {
    const bool child = argc > 1 && std::strcmp(argv[1], "--child") == 0;
    if (child) {
        MPI_Init(&argc, &argv);
        return child_main();
    }
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    suite.add("errors_return", errors_return, 1);
    suite.add("errors_to_a_handler", errors_to_a_handler, 1);
    suite.add("support_queries", support_queries);
    suite.add("set_then_send", set_then_send);
    suite.add("set_then_reduce", set_then_reduce);
    suite.add("set_then_start", set_then_start);
    suite.add("other_devices", other_devices);
    suite.add("spawned", spawned, 1, Weight::heavy);
#if RANKS_HAVE_MPI4
    suite.add("session", session);
#endif
    suite.add("attributes", attributes);
    suite.add("communicator_freed_early", communicator_freed_early);
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
