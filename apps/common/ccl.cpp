// SPDX-License-Identifier: Apache-2.0
#include "ccl.h"

#include <dlfcn.h>
#include <mpi.h>

#include <array>
#include <cstdio>
#include <type_traits>
#include <vector>

#include "device.h"
#include "libraries.h"

namespace apps {

namespace {

// The library's ABI, from its documentation.
constexpr int ccl_success = 0;
constexpr int ccl_float32 = 7;
constexpr int ccl_float64 = 8;
constexpr int ccl_sum = 0;
using Communicator = void*;

/// Until 2.8 the version was major * 1000 + minor * 100 + patch, since then major * 10000 + minor * 100 + patch.
std::string version_text(int code) {
    const int major_factor = code < 10000 ? 1000 : 10000;
    return std::to_string(code / major_factor) + "." + std::to_string(code % major_factor / 100) + "." +
           std::to_string(code % 100);
}

}  // namespace

struct CclFunctions {
    // GCC 13 fails on a member here whose type is in the unnamed namespace, where several files are compiled as one.
    struct UniqueId {
        std::array<char, 128> bytes;
    };

    int (*get_version)(int*) = nullptr;
    int (*get_unique_id)(UniqueId*) = nullptr;
    int (*comm_init_rank)(Communicator*, int, UniqueId, int) = nullptr;
    int (*comm_get_async_error)(Communicator, int*) = nullptr;
    int (*comm_destroy)(Communicator) = nullptr;
    int (*all_reduce)(const void*, void*, std::size_t, int, int, Communicator, hipStream_t) = nullptr;
    int (*group_start)() = nullptr;
    int (*group_end)() = nullptr;
    int (*send)(const void*, std::size_t, int, int, Communicator, hipStream_t) = nullptr;
    int (*receive)(void*, std::size_t, int, int, Communicator, hipStream_t) = nullptr;
    const char* (*get_error_string)(int) = nullptr;

    /// Returns the name of the first function that the library lacks, or null.
    const char* load(void* library) {
        const char* missing = nullptr;
        const auto find = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
            if (function == nullptr && missing == nullptr) {
                missing = name;
            }
        };
        find(get_version, "ncclGetVersion");
        find(get_unique_id, "ncclGetUniqueId");
        find(comm_init_rank, "ncclCommInitRank");
        find(comm_get_async_error, "ncclCommGetAsyncError");
        find(comm_destroy, "ncclCommDestroy");
        find(all_reduce, "ncclAllReduce");
        find(group_start, "ncclGroupStart");
        find(group_end, "ncclGroupEnd");
        find(send, "ncclSend");
        find(receive, "ncclRecv");
        find(get_error_string, "ncclGetErrorString");
        return missing;
    }
};

Ccl::Ccl() : _name(runtime_is_amd() ? "RCCL" : "NCCL") {
    // Connecting is collective: no rank may begin where one has no library.
    _problem = first_problem(open());
    if (_problem.empty()) {
        _problem = first_problem(connect());
    }
}

Ccl::~Ccl() {
    if (_communicator != nullptr) {
        _functions->comm_destroy(_communicator);
    }
}

std::string Ccl::open() {
    const bool amd = runtime_is_amd();
    const std::vector<std::string> names =
        library_names(amd ? "librccl.so.1" : "libnccl.so.2", "nccl", amd ? "RCCL_HOME" : "NCCL_HOME");
    std::string reason;
    for (const std::string& name : names) {
        // Never closed: the library starts threads that would outlive its code.
        void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            const char* const text = dlerror();
            if (reason.empty() && text != nullptr) {
                reason = text;
            }
            continue;
        }
        static CclFunctions functions;
        const char* const missing = functions.load(library);
        if (missing != nullptr) {
            return name + " has no " + missing;
        }
        _functions = &functions;
        int version = 0;
        if (functions.get_version(&version) == ccl_success) {
            _name += " " + version_text(version);
        }
        return {};
    }
    return reason + "; put the folder of " + names.front() + " into LD_LIBRARY_PATH";
}

std::string Ccl::connect() {
    const auto failure = [&](const char* call, int result) {
        // No chain of "+": GCC 12 warns of a copy beyond the end in std::string's own move.
        std::string text = call;
        text += ": ";
        text += _functions->get_error_string(result);
        text += "; each rank needs a GPU of its own";
        return text;
    };
    CclFunctions::UniqueId id = {};
    int result = ccl_success;
    if (rank_of_world() == 0) {
        result = _functions->get_unique_id(&id);
    }
    MPI_Bcast(&result, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (result != ccl_success) {
        return failure("ncclGetUniqueId", result);
    }
    MPI_Bcast(id.bytes.data(), static_cast<int>(id.bytes.size()), MPI_CHAR, 0, MPI_COMM_WORLD);

    result = _functions->comm_init_rank(&_communicator, size_of_world(), id, rank_of_world());
    if (result == ccl_success) {
        return {};
    }
    _communicator = nullptr;
    return failure("ncclCommInitRank", result);
}

void Ccl::require(int result, const char* call) const {
    if (result == ccl_success) {
        return;
    }
    std::fprintf(stderr, "rank %d: %s: %s: %s\n", rank_of_world(), _name.c_str(), call,
                 _functions->get_error_string(result));
    end_job();
}

void Ccl::start_sum(double* d_A, std::size_t N, hipStream_t stream) const {
    require(_functions->all_reduce(d_A, d_A, N, ccl_float64, ccl_sum, _communicator, stream), "ncclAllReduce");
}
void Ccl::start_sum(float* d_A, std::size_t N, hipStream_t stream) const {
    require(_functions->all_reduce(d_A, d_A, N, ccl_float32, ccl_sum, _communicator, stream), "ncclAllReduce");
}

void Ccl::start_group() const {
    require(_functions->group_start(), "ncclGroupStart");
}
void Ccl::end_group() const {
    require(_functions->group_end(), "ncclGroupEnd");
}
void Ccl::send(const double* d_A, std::size_t N, int peer, hipStream_t stream) const {
    require(_functions->send(d_A, N, ccl_float64, peer, _communicator, stream), "ncclSend");
}
void Ccl::receive(double* d_A, std::size_t N, int peer, hipStream_t stream) const {
    require(_functions->receive(d_A, N, ccl_float64, peer, _communicator, stream), "ncclRecv");
}

void Ccl::wait(hipStream_t stream) const {
    const hipError_t error = hipStreamSynchronize(stream);
    // The library knows more of a failed connection than the stream does.
    int result = ccl_success;
    require(_functions->comm_get_async_error(_communicator, &result), "ncclCommGetAsyncError");
    require(result, "an operation that had been started");
    if (error != hipSuccess) {
        std::fprintf(stderr, "rank %d: %s: hipStreamSynchronize: %s\n", rank_of_world(), _name.c_str(),
                     hipGetErrorString(error));
        end_job();
    }
}

}  // namespace apps
