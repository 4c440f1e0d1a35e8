// SPDX-License-Identifier: Apache-2.0
// What AWAKEN_CHECK=1 says of wrong buffers, and what the public C interface says of right ones. One rank or more.
//
// Run under `awaken exec` with AWAKEN_CHECK=1; prints `ok NAME` or `FAIL NAME: why` for each case.
#include <dlfcn.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "awaken/awaken.h"
#include "gpu_memory.h"

namespace {

int failures = 0;

void expect(const std::string& name, bool good, const std::string& why) {
    std::printf(good ? "ok %s\n" : "FAIL %s: %s\n", name.c_str(), why.c_str());
    if (!good) {
        ++failures;
    }
}

/// A refused call: the class of its error, and its text.
void expect_refused(const std::string& name, int code, const char* words) {
    int error_class = MPI_SUCCESS, length = 0;
    char text[MPI_MAX_ERROR_STRING] = {};
    if (code != MPI_SUCCESS) {
        MPI_Error_class(code, &error_class);
        MPI_Error_string(code, text, &length);
    }
    expect(name, error_class == MPI_ERR_BUFFER && std::strstr(text, words) != nullptr,
           "class " + std::to_string(error_class) + ", text \"" + text + "\"");
}

/// Our own interface, found in the preloaded library as a program without its header's library would.
template <class Function>
Function interface(const char* name) {
    auto* const found = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    if (found == nullptr) {
        std::printf("FAIL %s: the symbol is not there\n", name);
        std::exit(1);
    }
    return found;
}

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    const auto gpu = ranks::Gpu::open("auto");
    gpu->use_device(0);
    constexpr std::size_t kBytes = 1 << 22;
    auto* const device = static_cast<char*>(gpu->allocate(ranks::Kind::device, kBytes));
    auto* const host = static_cast<char*>(std::malloc(kBytes));
    gpu->memset(device, 1, kBytes);

    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(device, kBytes, MPI_BYTE, 0, 1, MPI_COMM_SELF, &request);
    expect("a right buffer", code == MPI_SUCCESS, "refused");
    MPI_Recv(host, kBytes, MPI_BYTE, 0, 1, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);

    expect_refused("past the end", MPI_Send(device + 100, kBytes, MPI_BYTE, 0, 1, MPI_COMM_SELF), "ends");
    MPI_Datatype wide;
    MPI_Type_vector(3, 1, 1 << 20, MPI_DOUBLE, &wide);
    MPI_Type_commit(&wide);
    expect_refused("past the end with a type", MPI_Send(device, 1, wide, 0, 1, MPI_COMM_SELF), "allocated");
    MPI_Type_free(&wide);

    // Of a collective, also if the buffers do not begin at one address.
    auto* const ints = reinterpret_cast<int*>(device);
    expect_refused("overlap of a reduction", MPI_Allreduce(ints, ints + 99, 100, MPI_INT, MPI_SUM, MPI_COMM_SELF),
                   "overlap");
    expect_refused("overlap of an exchange", MPI_Alltoall(ints + 99, 100, MPI_INT, ints, 100, MPI_INT, MPI_COMM_SELF),
                   "overlap");
    expect("buffers that touch", MPI_Allreduce(ints, ints + 100, 100, MPI_INT, MPI_SUM, MPI_COMM_SELF) == MPI_SUCCESS,
           "refused");
    MPI_Datatype every_second;
    MPI_Type_vector(50, 1, 2, MPI_INT, &every_second);
    MPI_Type_commit(&every_second);
    expect("each in the other's gaps",
           MPI_Allgather(ints, 1, every_second, ints + 1, 1, every_second, MPI_COMM_SELF) == MPI_SUCCESS, "refused");
    expect_refused("overlap with gaps", MPI_Allgather(ints, 1, every_second, ints + 2, 1, every_second, MPI_COMM_SELF),
                   "overlap");
    MPI_Type_free(&every_second);

    const auto version = interface<const char* (*)()>("awaken_version");
    const auto active = interface<int (*)()>("awaken_is_active");
    const auto memory_of = interface<awaken_memory (*)(const void*)>("awaken_memory_of");
    const auto last_path = interface<awaken_path (*)()>("awaken_last_path");
    const auto statistics = interface<int (*)(awaken_path, awaken_statistics*)>("awaken_get_statistics");
    expect("awaken_version", std::string(version()).find('.') != std::string::npos, version());
    expect("awaken_is_active", active() == 1, "not active");
    expect("awaken_memory_of", memory_of(device) == AWAKEN_MEMORY_DEVICE && memory_of(host) == AWAKEN_MEMORY_HOST,
           "wrong kind");
    MPI_Send(device, 8, MPI_BYTE, MPI_PROC_NULL, 1, MPI_COMM_SELF);
    expect("awaken_last_path native", last_path() == AWAKEN_PATH_NATIVE, "another path");
    MPI_Sendrecv(device, 8, MPI_BYTE, 0, 1, device + 64, 8, MPI_BYTE, 0, 1, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    expect("awaken_last_path direct", last_path() == AWAKEN_PATH_DIRECT, "another path");
    awaken_statistics direct{};
    expect("awaken_get_statistics",
           statistics(AWAKEN_PATH_DIRECT, &direct) == 0 && direct.calls >= 1 && direct.bytes >= 16U,
           "too little counted");
    expect("awaken_get_statistics of no path", statistics(static_cast<awaken_path>(9), &direct) == -1, "accepted");

    gpu->free(ranks::Kind::device, device);
    expect_refused("freed", MPI_Send(device, 8, MPI_BYTE, 0, 1, MPI_COMM_SELF), "freed");
    std::free(host);
    MPI_Finalize();
    return failures == 0 ? 0 : 1;
}
