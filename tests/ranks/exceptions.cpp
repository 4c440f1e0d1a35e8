// SPDX-License-Identifier: Apache-2.0
// C++ exceptions and cancelled threads that leave MPI calls: thrown by error handlers and attribute callbacks of the
// program's, through the MPI and the layer. One rank.
//
// Run under `awaken exec` with AWAKEN_CHECK=1; prints `ok NAME` or `FAIL NAME: why` for each case. MPI does not say
// that a callback may throw; what is tested is that the layer adds no obstacle to those that the MPI lets pass.
#include <mpi.h>
#include <pthread.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpu_memory.h"

namespace {

int failures = 0;

void expect(const std::string& name, bool good, const std::string& why) {
    std::printf(good ? "ok %s\n" : "FAIL %s: %s\n", name.c_str(), why.c_str());
    std::fflush(stdout);
    if (!good) {
        ++failures;
    }
}

/// No part of the standard library's hierarchy, as some programs throw.
struct Thrown {
    int code;
};

void throwing_handler(MPI_Comm*, int* code, ...) {
    throw Thrown{*code};
}

void cancelling_handler(MPI_Comm*, int*, ...) {
    pthread_cancel(pthread_self());
    pthread_testcancel();
}

int throwing_copy(MPI_Comm, int, void*, void*, void*, int*) {
    throw std::runtime_error("not to be copied");
}

/// A duplicate of MPI_COMM_SELF with a handler.
MPI_Comm with_handler(MPI_Comm_errhandler_function* function) {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_SELF, &comm);
    MPI_Errhandler handler;
    MPI_Comm_create_errhandler(function, &handler);
    MPI_Comm_set_errhandler(comm, handler);
    MPI_Errhandler_free(&handler);
    return comm;
}

void expect_thrown(const std::string& name, const std::function<int()>& call, int wanted_class) {
    try {
        const int code = call();
        expect(name, false, "returned " + std::to_string(code));
    } catch (const Thrown& thrown) {
        int error_class = MPI_SUCCESS;
        MPI_Error_class(thrown.code, &error_class);
        expect(name, error_class == wanted_class, "class " + std::to_string(error_class));
    }
}

}  // namespace

int main(int argc, char** argv) {
    // What an exception leaves behind in an MPI is a lock, if there are any.
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    {
        const auto gpu = ranks::Gpu::open("auto");
        gpu->use_device(0);
        constexpr int kBytes = 1 << 16;
        auto* const device = static_cast<char*>(gpu->allocate(ranks::Kind::device, kBytes));
        std::vector<char> host(kBytes), received(kBytes);
        const MPI_Comm comm = with_handler(throwing_handler);

        expect_thrown(
            "error of the MPI", [&] { return MPI_Send(host.data(), -1, MPI_BYTE, 0, 0, comm); }, MPI_ERR_COUNT);
        expect_thrown(
            "error of the layer", [&] { return MPI_Send(device, 2 * kBytes, MPI_BYTE, 0, 0, comm); }, MPI_ERR_BUFFER);

        gpu->memset(device, 7, kBytes);
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Isend(device, kBytes, MPI_BYTE, 0, 1, comm, &request);
        expect_thrown(
            "truncated message",
            [&] { return MPI_Recv(received.data(), kBytes / 2, MPI_BYTE, 0, 1, comm, MPI_STATUS_IGNORE); },
            MPI_ERR_TRUNCATE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);

        MPI_Irecv(received.data(), kBytes / 2, MPI_BYTE, 0, 2, comm, &request);
        MPI_Request sent = MPI_REQUEST_NULL;
        MPI_Isend(device, kBytes, MPI_BYTE, 0, 2, comm, &sent);
        expect_thrown(
            "truncated nonblocking message", [&] { return MPI_Wait(&request, MPI_STATUS_IGNORE); }, MPI_ERR_TRUNCATE);
        MPI_Wait(&sent, MPI_STATUS_IGNORE);

        // The layer works on after all that.
        received.assign(received.size(), 0);
        MPI_Sendrecv(device, kBytes, MPI_BYTE, 0, 3, received.data(), kBytes, MPI_BYTE, 0, 3, comm, MPI_STATUS_IGNORE);
        expect("message after exceptions", received.front() == 7 && received.back() == 7, "wrong data");

        void* result = nullptr;
        const MPI_Comm cancelling = with_handler(cancelling_handler);
        pthread_t thread;
        pthread_create(
            &thread, nullptr,
            [](void* comm) -> void* {
                char byte = 0;
                MPI_Send(&byte, -1, MPI_BYTE, 0, 0, *static_cast<const MPI_Comm*>(comm));
                return nullptr;
            },
            const_cast<MPI_Comm*>(&cancelling));
        pthread_join(thread, &result);
        expect("cancelled thread", result == PTHREAD_CANCELED, "it went on");

        int key = MPI_KEYVAL_INVALID;
        MPI_Comm_create_keyval(throwing_copy, MPI_COMM_NULL_DELETE_FN, &key, nullptr);
        MPI_Comm_set_attr(comm, key, nullptr);
        bool caught = false;
        MPI_Comm never = MPI_COMM_NULL;
        try {
            MPI_Comm_dup(comm, &never);
        } catch (const std::runtime_error&) {
            caught = true;
        }
        expect("attribute callback", caught, "not thrown");
        MPI_Comm_delete_attr(comm, key);
        gpu->free(ranks::Kind::device, device);
    }
    MPI_Finalize();
    return failures == 0 ? 0 : 1;
}
