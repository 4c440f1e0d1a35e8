// SPDX-License-Identifier: Apache-2.0
#include "stream_communicator.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>

#include "device.h"

namespace apps {

struct StreamFunctions {
    int (*info_set_hex)(MPI_Info, const char*, const void*, int) = nullptr;
    int (*stream_create)(MPI_Info, int*) = nullptr;
    int (*stream_free)(int*) = nullptr;
    int (*comm_create)(MPI_Comm, int, MPI_Comm*) = nullptr;
    int (*isend)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) = nullptr;
    int (*irecv)(void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) = nullptr;
    int (*waitall)(int, MPI_Request*, MPI_Status*) = nullptr;
    int (*allreduce)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm) = nullptr;
    int (*knows_gpu)() = nullptr;

    /// Returns the name of the first function that the MPI lacks, or null.
    const char* load() {
        const char* missing = nullptr;
        const auto find = [&](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
            if (function == nullptr && missing == nullptr) {
                missing = name;
            }
        };
        find(info_set_hex, "MPIX_Info_set_hex");
        find(stream_create, "MPIX_Stream_create");
        find(stream_free, "MPIX_Stream_free");
        find(comm_create, "MPIX_Stream_comm_create");
        find(isend, "MPIX_Isend_enqueue");
        find(irecv, "MPIX_Irecv_enqueue");
        find(waitall, "MPIX_Waitall_enqueue");
        find(allreduce, "MPIX_Allreduce_enqueue");
        find(knows_gpu, runtime_is_amd() ? "MPIX_Query_hip_support" : "MPIX_Query_cuda_support");
        return missing;
    }
};

namespace {

constexpr auto stream_remedy = "; put `awaken exec` before the program: it gives these functions to every MPI";

std::string failure(const char* call, int error) {
    std::array<char, MPI_MAX_ERROR_STRING> text = {};
    int length = 0;
    MPI_Error_string(error, text.data(), &length);
    return std::string(call) + ": " + text.data() + stream_remedy;
}

/// Errors are returned, and not the end of the job, as long as this is there. Those of calls without a communicator
/// belong to MPI_COMM_WORLD or, since MPI 4, to MPI_COMM_SELF.
class ErrorsReturn {
  public:
    ErrorsReturn() {
        for (std::size_t i = 0; i < communicators.size(); ++i) {
            MPI_Comm_get_errhandler(communicators[i], &_handlers[i]);
            MPI_Comm_set_errhandler(communicators[i], MPI_ERRORS_RETURN);
        }
    }
    ~ErrorsReturn() {
        for (std::size_t i = 0; i < communicators.size(); ++i) {
            MPI_Comm_set_errhandler(communicators[i], _handlers[i]);
            MPI_Errhandler_free(&_handlers[i]);
        }
    }
    ErrorsReturn(const ErrorsReturn&) = delete;
    ErrorsReturn& operator=(const ErrorsReturn&) = delete;

  private:
    const std::array<MPI_Comm, 2> communicators = {MPI_COMM_WORLD, MPI_COMM_SELF};
    std::array<MPI_Errhandler, 2> _handlers = {};
};

}  // namespace

int StreamCommunicator::thread_level(int argc, char** argv, const std::vector<std::string>& words, int otherwise) {
    for (int i = 1; i < argc; ++i) {
        const std::string_view argument = argv[i];
        const std::string_view value = argument.substr(argument.find('=') + 1);
        if (std::find(words.begin(), words.end(), value) != words.end()) {
            return MPI_THREAD_MULTIPLE;
        }
    }
    return otherwise;
}

StreamCommunicator::StreamCommunicator(hipStream_t stream) {
    const ErrorsReturn errors_return;
    // Making the communicator is collective: no rank may begin where one has no stream.
    int number = 0;
    const std::string own_problem = make_stream(stream, number);
    _problem = first_problem(own_problem);
    if (_problem.empty()) {
        const int error = _functions->comm_create(MPI_COMM_WORLD, number, &_communicator);
        _problem = first_problem(error == MPI_SUCCESS ? "" : failure("MPIX_Stream_comm_create", error));
    }
    // The communicator keeps it.
    if (own_problem.empty()) {
        _functions->stream_free(&number);
    }
    if (_problem.empty()) {
        MPI_Comm_set_errhandler(_communicator, MPI_ERRORS_ARE_FATAL);
    }
}

StreamCommunicator::~StreamCommunicator() {
    if (_communicator != MPI_COMM_NULL) {
        MPI_Comm_free(&_communicator);
    }
}

std::string StreamCommunicator::make_stream(hipStream_t stream, int& number) {
    if (stream == nullptr) {
        return "there is no GPU whose stream could order the operations";
    }
    static StreamFunctions functions;
    if (const char* const missing = functions.load(); missing != nullptr) {
        return "the MPI has no " + std::string(missing) + stream_remedy;
    }
    // An MPICH that was built without the vendor's runtime has the functions, and ends the job in them.
    if (functions.knows_gpu() == 0) {
        return "the MPI does not know this GPU's streams" + std::string(stream_remedy);
    }
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level != MPI_THREAD_MULTIPLE) {
        return "queued operations need MPI_THREAD_MULTIPLE, which this MPI does not give: use an MPI that was built "
               "with it";
    }
    _functions = &functions;
    MPI_Info info = MPI_INFO_NULL;
    MPI_Info_create(&info);
    MPI_Info_set(info, "type", runtime_is_amd() ? "hipStream_t" : "cudaStream_t");
    const char* call = "MPIX_Info_set_hex";
    int error = functions.info_set_hex(info, "value", &stream, sizeof stream);
    if (error == MPI_SUCCESS) {
        call = "MPIX_Stream_create";
        error = functions.stream_create(info, &number);
    }
    MPI_Info_free(&info);
    return error == MPI_SUCCESS ? "" : failure(call, error);
}

void StreamCommunicator::send(const void* buffer, int count, MPI_Datatype type, int to, int tag,
                              MPI_Request* request) const {
    _functions->isend(buffer, count, type, to, tag, _communicator, request);
}
void StreamCommunicator::receive(void* buffer, int count, MPI_Datatype type, int from, int tag,
                                 MPI_Request* request) const {
    _functions->irecv(buffer, count, type, from, tag, _communicator, request);
}
void StreamCommunicator::wait_for(std::vector<MPI_Request>& requests) const {
    if (!requests.empty()) {
        _functions->waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    }
    requests.clear();
}
void StreamCommunicator::sum(void* buffer, int count, MPI_Datatype type) const {
    _functions->allreduce(MPI_IN_PLACE, buffer, count, type, MPI_SUM, _communicator);
}

}  // namespace apps
