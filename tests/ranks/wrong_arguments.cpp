// SPDX-License-Identifier: Apache-2.0
// Wrong arguments of messages, one-sided operations, file accesses, packing and MPI_Reduce_local: each function gets
// each wrong argument once, first with host buffers, where the MPI refuses it, and then with the mix's. The class of
// the error must be the one that the MPIs give. Those of collectives are in collectives.cpp.
#include <array>

#include "support.h"

using namespace ranks;

namespace {

constexpr int kCount = 100, kTag = 19;

/// Datatypes that the program has yet to commit: without gaps, and with.
class Uncommitted {
  public:
    Uncommitted() {
        MPI_Type_contiguous(1, MPI_INT, &dense);
        MPI_Type_vector(2, 1, 2, MPI_INT, &gaps);
    }
    ~Uncommitted() {
        MPI_Type_free(&dense);
        MPI_Type_free(&gaps);
    }
    Uncommitted(const Uncommitted&) = delete;
    Uncommitted& operator=(const Uncommitted&) = delete;
    MPI_Datatype dense = MPI_DATATYPE_NULL, gaps = MPI_DATATYPE_NULL;
};

/// What is wrong with the elements of a buffer, which all functions have.
template <class Arguments>
struct Wrong {
    const char* name;
    int error_class;
    std::function<void(Arguments&)> change;
};
template <class Arguments>
std::vector<Wrong<Arguments>> wrong_elements(const Uncommitted& types) {
    return {
        {"a negative count", MPI_ERR_COUNT, [](Arguments& a) { a.count = -1; }},
        {"no type", MPI_ERR_TYPE, [](Arguments& a) { a.type = MPI_DATATYPE_NULL; }},
        {"an uncommitted type", MPI_ERR_TYPE, [&types](Arguments& a) { a.type = types.dense; }},
        {"an uncommitted type with gaps", MPI_ERR_TYPE, [&types](Arguments& a) { a.type = types.gaps; }},
    };
}

template <class Arguments>
struct Called {
    const char* name;
    std::function<int(const Arguments&)> call;
};

/// Calls each function with each wrong argument, and notes the error's class.
template <class Arguments>
void try_all(Run& run, const std::vector<Called<Arguments>>& functions, const Arguments& right,
             const std::vector<Wrong<Arguments>>& wrongs) {
    for (const Called<Arguments>& function : functions) {
        for (const Wrong<Arguments>& wrong : wrongs) {
            Arguments arguments = right;
            wrong.change(arguments);
            const std::string what = format("%s with %s", function.name, wrong.name);
            const int error = error_class(function.call(arguments));
            run.note(what, error);
            run.expect(error == wrong.error_class, format("%s gives class %d", what.c_str(), error));
        }
    }
}

// ---- messages -------------------------------------------------------------------------------------------------------

struct Message {
    int* buffer;
    int* other;  ///< of the other half of a combined operation
    int count, peer, tag;
    MPI_Datatype type;
    MPI_Comm comm;
};

#define ELEMENTS a.buffer, a.count, a.type
#define RIGHT_HALF a.other, kCount, MPI_INT
#define MESSAGE(name, ...)                                              \
    Called<Message> {                                                   \
        #name, [](const Message& a) { return MPI_##name(__VA_ARGS__); } \
    }
#define STARTED(name, ...)                            \
    Called<Message> {                                 \
        #name, [](const Message& a) {                 \
            MPI_Request request = MPI_REQUEST_NULL;   \
            return MPI_##name(__VA_ARGS__, &request); \
        }                                             \
    }

void messages(Run& run) {
    const Uncommitted types;
    const Message right{
        run.values<int>(4 * kCount), run.output<int>(4 * kCount), kCount, run.rank, kTag, MPI_INT, run.comm};
    std::vector<std::byte> attached(1 << 16);
    OK(MPI_Buffer_attach(attached.data(), static_cast<int>(attached.size())));
    const std::vector<Called<Message>> functions{
        MESSAGE(Send, ELEMENTS, a.peer, a.tag, a.comm),
        MESSAGE(Ssend, ELEMENTS, a.peer, a.tag, a.comm),
        MESSAGE(Rsend, ELEMENTS, a.peer, a.tag, a.comm),
        MESSAGE(Bsend, ELEMENTS, a.peer, a.tag, a.comm),
        MESSAGE(Recv, ELEMENTS, a.peer, a.tag, a.comm, MPI_STATUS_IGNORE),
        STARTED(Isend, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Issend, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Irsend, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Ibsend, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Irecv, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Send_init, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Recv_init, ELEMENTS, a.peer, a.tag, a.comm),
#ifndef OPEN_MPI  // Open MPI does not look at the type in these
        STARTED(Ssend_init, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Rsend_init, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Bsend_init, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Psend_init, a.buffer, 2, a.count, a.type, a.peer, a.tag, a.comm, MPI_INFO_NULL),
        STARTED(Precv_init, a.buffer, 2, a.count, a.type, a.peer, a.tag, a.comm, MPI_INFO_NULL),
#endif
        {"the send of Sendrecv",
         [](const Message& a) {
             return MPI_Sendrecv(ELEMENTS, a.peer, a.tag, RIGHT_HALF, MPI_PROC_NULL, kTag, a.comm, MPI_STATUS_IGNORE);
         }},
        {"the receive of Sendrecv",
         [](const Message& a) {
             return MPI_Sendrecv(RIGHT_HALF, MPI_PROC_NULL, kTag, ELEMENTS, a.peer, a.tag, a.comm, MPI_STATUS_IGNORE);
         }},
        {"Sendrecv_replace",
         [](const Message& a) {
             return MPI_Sendrecv_replace(ELEMENTS, a.peer, a.tag, a.peer, a.tag, a.comm, MPI_STATUS_IGNORE);
         }},
#if RANKS_HAVE_MPI4
        STARTED(Isendrecv, ELEMENTS, a.peer, a.tag, RIGHT_HALF, MPI_PROC_NULL, kTag, a.comm),
        STARTED(Isendrecv_replace, ELEMENTS, a.peer, a.tag, a.peer, a.tag, a.comm),
#endif
#if RANKS_HAVE_LARGE_COUNT
        MESSAGE(Send_c, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Isend_c, ELEMENTS, a.peer, a.tag, a.comm),
        STARTED(Irecv_c, ELEMENTS, a.peer, a.tag, a.comm),
#endif
    };
    std::vector<Wrong<Message>> wrongs = wrong_elements<Message>(types);
    wrongs.push_back({"no such rank", MPI_ERR_RANK, [&run](Message& a) { a.peer = run.size; }});
    wrongs.push_back({"a negative tag", MPI_ERR_TAG, [](Message& a) { a.tag = -77; }});
    try_all(run, functions, right, wrongs);
    void* detached = nullptr;
    int bytes = 0;
    OK(MPI_Buffer_detach(static_cast<void*>(&detached), &bytes));
}

// ---- one-sided operations -------------------------------------------------------------------------------------------

struct Access {
    int *buffer, *result;
    int count, target_count, target;
    MPI_Datatype type, target_type;
    MPI_Aint displacement;
    MPI_Op op;
    MPI_Win window;
};

#define TARGET a.target, a.displacement, a.target_count, a.target_type
#define ACCESS(name, ...)                                                        \
    Called<Access> {                                                             \
        #name, [](const Access& a) { return MPI_##name(__VA_ARGS__, a.window); } \
    }
#define REQUESTED(name, ...)                                    \
    Called<Access> {                                            \
        #name, [](const Access& a) {                            \
            MPI_Request request = MPI_REQUEST_NULL;             \
            return MPI_##name(__VA_ARGS__, a.window, &request); \
        }                                                       \
    }

void one_sided(Run& run) {
    const Uncommitted types;
    int* memory = run.values<int>(4 * kCount);
    Access right{run.values<int>(4 * kCount),
                 run.output<int>(4 * kCount),
                 kCount,
                 kCount,
                 (run.rank + 1) % run.size,
                 MPI_INT,
                 MPI_INT,
                 0,
                 MPI_SUM,
                 MPI_WIN_NULL};
    OK(MPI_Win_create(memory, 4 * kCount * sizeof(int), sizeof(int), MPI_INFO_NULL, run.comm, &right.window));
    OK(MPI_Win_set_errhandler(right.window, MPI_ERRORS_RETURN));
    OK(MPI_Win_lock_all(0, right.window));
    const std::vector<Called<Access>> copies{
        ACCESS(Put, ELEMENTS, TARGET),
        ACCESS(Get, ELEMENTS, TARGET),
        REQUESTED(Rput, ELEMENTS, TARGET),
        REQUESTED(Rget, ELEMENTS, TARGET),
    };
    const std::vector<Called<Access>> sums{
        ACCESS(Accumulate, ELEMENTS, TARGET, a.op),
        ACCESS(Get_accumulate, ELEMENTS, a.result, kCount, MPI_INT, TARGET, a.op),
        REQUESTED(Raccumulate, ELEMENTS, TARGET, a.op),
        REQUESTED(Rget_accumulate, ELEMENTS, a.result, kCount, MPI_INT, TARGET, a.op),
    };
    const std::vector<Called<Access>> of_one_element{
        ACCESS(Fetch_and_op, a.buffer, a.result, a.type, a.target, a.displacement, a.op),
        ACCESS(Compare_and_swap, a.buffer, a.buffer + 1, a.result, a.type, a.target, a.displacement),
    };
    const std::vector<Wrong<Access>> of_target{
        {"a negative displacement", MPI_ERR_DISP, [](Access& a) { a.displacement = -1; }},
        {"no such rank", MPI_ERR_RANK, [&run](Access& a) { a.target = run.size; }},
    };
    const std::vector<Wrong<Access>> of_elements{
        {"a negative count at the target", MPI_ERR_COUNT, [](Access& a) { a.target_count = -1; }},
        {"no type at the target", MPI_ERR_TYPE, [](Access& a) { a.target_type = MPI_DATATYPE_NULL; }},
        {"an uncommitted type at the target", MPI_ERR_TYPE, [&types](Access& a) { a.target_type = types.dense; }},
        {"an uncommitted type with gaps at the target", MPI_ERR_TYPE,
         [&types](Access& a) { a.target_type = types.gaps; }},
    };
    const std::vector<Wrong<Access>> no_op{{"no operation", MPI_ERR_OP, [](Access& a) { a.op = MPI_OP_NULL; }}};
    for (const auto* const functions : {&copies, &sums}) {
        try_all(run, *functions, right, wrong_elements<Access>(types));
        try_all(run, *functions, right, of_elements);
        try_all(run, *functions, right, of_target);
    }
    try_all(run, of_one_element, right, of_target);
    try_all(run, sums, right, no_op);
    OK(MPI_Win_unlock_all(right.window));
    OK(MPI_Win_free(&right.window));
}

// ---- files ----------------------------------------------------------------------------------------------------------

#ifdef OPEN_MPI
constexpr int kOfOffset = MPI_ERR_OTHER;
#else
constexpr int kOfOffset = MPI_ERR_ARG;
#endif

struct FileAccess {
    MPI_File file;
    MPI_Offset offset;
    int* buffer;
    int count;
    MPI_Datatype type;
};

#define FILE_ACCESS(name, ...)                                                          \
    Called<FileAccess> {                                                                \
        #name, [](const FileAccess& a) { return MPI_File_##name(a.file, __VA_ARGS__); } \
    }
#define FILE_STARTED(name, ...)                                    \
    Called<FileAccess> {                                           \
        #name, [](const FileAccess& a) {                           \
            MPI_Request request = MPI_REQUEST_NULL;                \
            return MPI_File_##name(a.file, __VA_ARGS__, &request); \
        }                                                          \
    }

void files(Run& run) {
    const Uncommitted types;
    const char* const folder = std::getenv("TMPDIR");
    std::string name = format("%s/wrong-%d", folder != nullptr ? folder : "/tmp", static_cast<int>(getpid()));
    name.resize(4096);
    OK(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, run.comm));
    FileAccess right{MPI_FILE_NULL, 0, run.values<int>(4 * kCount), kCount, MPI_INT};
    OK(MPI_File_open(run.comm, name.c_str(), MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL,
                     &right.file));
    const std::vector<Called<FileAccess>> at_offset{
        FILE_ACCESS(write_at, a.offset, ELEMENTS, MPI_STATUS_IGNORE),
        FILE_ACCESS(read_at, a.offset, ELEMENTS, MPI_STATUS_IGNORE),
        FILE_ACCESS(write_at_all, a.offset, ELEMENTS, MPI_STATUS_IGNORE),
        FILE_ACCESS(read_at_all, a.offset, ELEMENTS, MPI_STATUS_IGNORE),
    };
    const std::vector<Called<FileAccess>> others{
        FILE_ACCESS(write, ELEMENTS, MPI_STATUS_IGNORE),
        FILE_ACCESS(read, ELEMENTS, MPI_STATUS_IGNORE),
        FILE_ACCESS(write_all, ELEMENTS, MPI_STATUS_IGNORE),
        FILE_ACCESS(read_all, ELEMENTS, MPI_STATUS_IGNORE),
        FILE_ACCESS(write_shared, ELEMENTS, MPI_STATUS_IGNORE),
        FILE_ACCESS(read_shared, ELEMENTS, MPI_STATUS_IGNORE),
        FILE_STARTED(iwrite, ELEMENTS),
        FILE_STARTED(iread, ELEMENTS),
        FILE_STARTED(iwrite_at, a.offset, ELEMENTS),
        FILE_STARTED(iread_at, a.offset, ELEMENTS),
    };
    for (const auto* const functions : {&at_offset, &others}) {
        try_all(run, *functions, right, wrong_elements<FileAccess>(types));
    }
    try_all(run, at_offset, right, {{"a negative offset", kOfOffset, [](FileAccess& a) { a.offset = -8; }}});
    OK(MPI_File_close(&right.file));
}

// ---- packing, and MPI_Reduce_local ----------------------------------------------------------------------------------

struct Packing {
    int* buffer;
    void* packed;
    int count, bytes, position;
    MPI_Datatype type;
    MPI_Comm comm;
};

void packing(Run& run) {
    const Uncommitted types;
    const Packing right{run.values<int>(4 * kCount), run.input(16 * kCount), kCount, 16 * kCount, 0, MPI_INT, run.comm};
    const std::vector<Called<Packing>> functions{
        {"Pack", [](Packing a) { return MPI_Pack(ELEMENTS, a.packed, a.bytes, &a.position, a.comm); }},
        {"Unpack", [](Packing a) { return MPI_Unpack(a.packed, a.bytes, &a.position, ELEMENTS, a.comm); }},
    };
    try_all(run, functions, right, wrong_elements<Packing>(types));
}

struct Operands {
    void *buffer, *inout;
    int count;
    MPI_Datatype type;
    MPI_Op op;
};

void reduce_local(Run& run) {
    const Uncommitted types;
    if (!run.gpu().present()) {
        return;  // MPIs crash in some of these
    }
    const Operands right{run.values<int>(4 * kCount), run.values<int>(4 * kCount), kCount, MPI_INT, MPI_SUM};
    const auto reduce = [](const Operands& a) { return MPI_Reduce_local(a.buffer, a.inout, a.count, a.type, a.op); };
    OK(reduce(right));  // from now on a GPU may do it
    std::vector<Wrong<Operands>> wrongs = wrong_elements<Operands>(types);
    wrongs.push_back({"no operation", MPI_ERR_OP, [](Operands& a) { a.op = MPI_OP_NULL; }});
    wrongs.push_back({"MPI_IN_PLACE as input", MPI_ERR_BUFFER, [](Operands& a) { a.buffer = MPI_IN_PLACE; }});
    wrongs.push_back({"MPI_IN_PLACE as result", MPI_ERR_BUFFER, [](Operands& a) { a.inout = MPI_IN_PLACE; }});
    wrongs.push_back({"no input", MPI_ERR_BUFFER, [](Operands& a) { a.buffer = nullptr; }});
    wrongs.push_back({"no result", MPI_ERR_BUFFER, [](Operands& a) { a.inout = nullptr; }});
#ifndef OPEN_MPI
    wrongs.push_back({"one buffer", MPI_ERR_BUFFER, [](Operands& a) { a.inout = a.buffer; }});
#endif
    try_all(run, {{"Reduce_local", reduce}}, right, wrongs);
#ifdef OPEN_MPI  // Open MPI takes one buffer for both
    OK(MPI_Reduce_local(right.buffer, right.buffer, kCount, MPI_INT, MPI_SUM));
#endif
}

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    suite.add("messages", messages);
    suite.add("one_sided", one_sided);
    suite.add("files", files);
    suite.add("packing", packing);
    suite.add("reduce_local", reduce_local);
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
