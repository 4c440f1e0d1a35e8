// SPDX-License-Identifier: Apache-2.0
// MPI-IO from and to memory of every kind: all access functions, types with gaps, and reads past a file's end.
#include "support.h"

using namespace ranks;

namespace {

/// A file of all ranks, or of this one, that is gone when it is closed. The name of a common one is drawn by rank 0.
class TemporaryFile {
  public:
    explicit TemporaryFile(Run& run, bool own = false) {
        const char* const folder = std::getenv("TMPDIR");
        static int made = 0;
        std::string name =
            format("%s/files-%d-%d", folder != nullptr ? folder : "/tmp", static_cast<int>(getpid()), ++made);
        name.resize(4096);
        if (!own) {
            MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, run.comm);
        }
        OK(MPI_File_open(own ? MPI_COMM_SELF : run.comm, name.c_str(),
                         MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &_file));
    }
    ~TemporaryFile() { MPI_File_close(&_file); }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    operator MPI_File() const { return _file; }  // NOLINT(google-explicit-constructor)

  private:
    MPI_File _file = MPI_FILE_NULL;
};

/// Every second integer.
class Gaps {
  public:
    Gaps() {
        MPI_Type_vector(kIntegers, 1, 2, MPI_INT, &_type);
        MPI_Type_commit(&_type);
    }
    ~Gaps() { MPI_Type_free(&_type); }
    Gaps(const Gaps&) = delete;
    Gaps& operator=(const Gaps&) = delete;
    operator MPI_Datatype() const { return _type; }  // NOLINT(google-explicit-constructor)
    static constexpr int kIntegers = 500;
    static constexpr int kBytes = kIntegers * static_cast<int>(sizeof(int));       // in a file
    static constexpr int kExtent = 2 * kIntegers * static_cast<int>(sizeof(int));  // in memory

  private:
    MPI_Datatype _type = MPI_DATATYPE_NULL;
};

/// Before somebody reads what another rank has written (MPI-4.1, 14.6.1).
void synchronise(Run& run, MPI_File file) {
    OK(MPI_File_sync(file));
    OK(MPI_Barrier(run.comm));
    OK(MPI_File_sync(file));
}

void note(Run& run, const char* name, const MPI_Status& status) {
    int count = 0;
    OK(MPI_Get_count(&status, MPI_BYTE, &count));
    run.note(name, count);
}

/// Independent accesses with offsets: each rank writes its part, and reads its neighbour's.
void at_offsets(Run& run) {
    const TemporaryFile file(run);
    const Gaps gaps;
    std::byte* out = run.input(Gaps::kExtent);
    std::byte* in = run.input(Gaps::kExtent);
    std::byte* dense = run.input(Gaps::kBytes);
    const MPI_Offset mine = static_cast<MPI_Offset>(run.rank) * Gaps::kBytes;
    const MPI_Offset next = static_cast<MPI_Offset>((run.rank + 1) % run.size) * Gaps::kBytes;
    MPI_Status status{};
    OK(MPI_File_write_at(file, mine, out, 1, gaps, &status));
    note(run, "written", status);
    synchronise(run, file);
    OK(MPI_File_read_at(file, next, in, 1, gaps, &status));
    note(run, "read", status);
    OK(MPI_File_read_at(file, mine, dense, Gaps::kIntegers, MPI_INT, MPI_STATUS_IGNORE));
}

/// The file pointer of each rank, through a view.
void with_file_pointer(Run& run) {
    const TemporaryFile file(run);
    const Gaps gaps;
    std::byte* out = run.input(2 * Gaps::kExtent);
    std::byte* in = run.input(2 * Gaps::kExtent);
    OK(MPI_File_set_view(file, static_cast<MPI_Offset>(run.rank) * 2 * Gaps::kBytes, MPI_INT, MPI_INT, "native",
                         MPI_INFO_NULL));
    OK(MPI_File_write(file, out, 2, gaps, MPI_STATUS_IGNORE));
    OK(MPI_File_seek(file, 0, MPI_SEEK_SET));
    MPI_Status status{};
    OK(MPI_File_read(file, in, 2, gaps, &status));
    note(run, "read", status);
}

void collectively(Run& run) {
    const TemporaryFile file(run);
    const Gaps gaps;
    std::byte* out = run.input(Gaps::kExtent);
    std::byte* in = run.input(Gaps::kExtent);
    std::byte* again = run.input(Gaps::kBytes);
    const MPI_Offset mine = static_cast<MPI_Offset>(run.rank) * Gaps::kBytes;
    OK(MPI_File_write_at_all(file, mine, out, 1, gaps, MPI_STATUS_IGNORE));
    synchronise(run, file);
    OK(MPI_File_read_at_all(file, mine, in, 1, gaps, MPI_STATUS_IGNORE));
    OK(MPI_File_seek(file, static_cast<MPI_Offset>((run.rank + 1) % run.size) * Gaps::kBytes, MPI_SEEK_SET));
    MPI_Status status{};
    OK(MPI_File_read_all(file, again, Gaps::kBytes, MPI_BYTE, &status));
    note(run, "read", status);
    synchronise(run, file);  // a collective access waits for nobody
    OK(MPI_File_seek(file, mine, MPI_SEEK_SET));
    OK(MPI_File_write_all(file, again, Gaps::kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
    synchronise(run, file);
    std::byte* last = run.input(Gaps::kBytes);
    OK(MPI_File_read_at(file, mine, last, Gaps::kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
}

/// In the order of the ranks, by the pointer that they share.
void in_order(Run& run) {
    const TemporaryFile file(run);
    std::byte* out = run.input(Gaps::kBytes);
    std::byte* in = run.input(Gaps::kBytes);
    OK(MPI_File_write_ordered(file, out, Gaps::kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
    synchronise(run, file);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    MPI_Status status{};
    OK(MPI_File_read_ordered(file, in, Gaps::kBytes, MPI_BYTE, &status));
    note(run, "read", status);
    // One rank after the other, since nothing says who comes first.
    for (int turn = 0; turn < run.size; ++turn) {
        if (turn == run.rank) {
            OK(MPI_File_write_shared(file, in, Gaps::kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
        }
        OK(MPI_Barrier(run.comm));
    }
    synchronise(run, file);
    OK(MPI_File_seek_shared(file, static_cast<MPI_Offset>(run.size) * Gaps::kBytes, MPI_SEEK_SET));
    std::byte* shared = run.input(Gaps::kBytes);
    for (int turn = 0; turn < run.size; ++turn) {
        if (turn == run.rank) {
            OK(MPI_File_read_shared(file, shared, Gaps::kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
        }
        OK(MPI_Barrier(run.comm));
    }
}

void nonblocking(Run& run) {
    const TemporaryFile file(run);
    const Gaps gaps;
    std::byte* out = run.input(2 * Gaps::kExtent);
    std::byte* in = run.input(2 * Gaps::kExtent);
    const MPI_Offset mine = static_cast<MPI_Offset>(run.rank) * 2 * Gaps::kBytes;
    MPI_Request requests[2];
    MPI_Status statuses[2] = {};
    OK(MPI_File_iwrite_at(file, mine, out, 1, gaps, &requests[0]));
    OK(MPI_File_iwrite_at(file, mine + Gaps::kBytes, out + Gaps::kExtent, 1, gaps, &requests[1]));
    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    synchronise(run, file);
    OK(MPI_File_iread_at(file, mine, in, 1, gaps, &requests[0]));
    OK(MPI_File_iread_at(file, mine + Gaps::kBytes, in + Gaps::kExtent, 1, gaps, &requests[1]));
    OK(MPI_Waitall(2, requests, statuses));
    note(run, "read", statuses[1]);
    std::byte* all = run.input(Gaps::kBytes);
    OK(MPI_File_iread_at_all(file, mine, all, Gaps::kBytes, MPI_BYTE, &requests[0]));
    OK(MPI_Wait(&requests[0], &statuses[0]));
    note(run, "read by all", statuses[0]);
}

/// Begun and ended, with a message between the two.
void split(Run& run) {
    const TemporaryFile file(run);
    const Gaps gaps;
    std::byte* out = run.input(Gaps::kExtent);
    std::byte* in = run.input(Gaps::kExtent);
    std::byte* message = run.input(1000);
    std::byte* received = run.input(1000);
    const MPI_Offset mine = static_cast<MPI_Offset>(run.rank) * Gaps::kBytes;
    const int next = (run.rank + 1) % run.size, previous = (run.rank + run.size - 1) % run.size;
    MPI_Status status{};
    OK(MPI_File_write_at_all_begin(file, mine, out, 1, gaps));
    OK(MPI_Sendrecv(message, 1000, MPI_BYTE, next, 1, received, 1000, MPI_BYTE, previous, 1, run.comm,
                    MPI_STATUS_IGNORE));
    OK(MPI_File_write_at_all_end(file, out, &status));
    synchronise(run, file);
    OK(MPI_File_seek(file, mine, MPI_SEEK_SET));
    OK(MPI_File_read_all_begin(file, in, 1, gaps));
    OK(MPI_File_read_all_end(file, in, &status));
    note(run, "read", status);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    std::byte* ordered = run.input(Gaps::kBytes);
    OK(MPI_File_read_ordered_begin(file, ordered, Gaps::kBytes, MPI_BYTE));
    OK(MPI_File_read_ordered_end(file, ordered, MPI_STATUS_IGNORE));
}

/// Ended first by the second half of another access, which an MPI may take or not.
void wrongly_ended(Run& run) {
    const TemporaryFile file(run);
    std::byte* out = run.input(Gaps::kBytes);
    std::byte* in = run.input(Gaps::kBytes);
    const MPI_Offset mine = static_cast<MPI_Offset>(run.rank) * Gaps::kBytes;
    OK(MPI_File_write_at_all(file, mine, out, Gaps::kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
    synchronise(run, file);
    OK(MPI_File_read_at_all_begin(file, mine, in, Gaps::kBytes, MPI_BYTE));
    const int code = MPI_File_write_at_all_end(file, in, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) {
        OK(MPI_File_read_at_all_end(file, in, MPI_STATUS_IGNORE));
    }
    run.note_bytes("read by an access that was ended wrongly", in, Gaps::kBytes);
}

#ifndef OPEN_MPI  // Open MPI synchronises no file any more after that
/// MPIs take it that a split access is never ended. The next file, whose handle may be the same, knows nothing of it.
void never_ended(Run& run) {
    std::byte* out = run.input(Gaps::kBytes);
    std::byte* in = run.input(Gaps::kBytes);
    const MPI_Offset mine = static_cast<MPI_Offset>(run.rank) * Gaps::kBytes;
    {
        const TemporaryFile file(run);
        OK(MPI_File_write_at_all(file, mine, out, Gaps::kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
        synchronise(run, file);
        OK(MPI_File_read_at_all_begin(file, mine, in, Gaps::kBytes, MPI_BYTE));
    }
    run.note_bytes("read by an access that was not ended", in, Gaps::kBytes);
    run.refill(in, Gaps::kBytes, 1);
    const TemporaryFile file(run);
    OK(MPI_File_write_at_all(file, mine, out, Gaps::kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
    synchronise(run, file);
    std::byte* other = run.input_of(Kind::host, Gaps::kBytes);
    MPI_Status status{};
    OK(MPI_File_read_at_all_begin(file, mine, other, Gaps::kBytes, MPI_BYTE));
    OK(MPI_File_read_at_all_end(file, other, &status));
    note(run, "read", status);
}
#endif

/// What is not in the file leaves the buffer as it was.
void past_the_end(Run& run) {
    const TemporaryFile file(run);
    if (run.rank == 0) {
        std::byte* out = run.input(1001);
        OK(MPI_File_write_at(file, 0, out, 1001, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    synchronise(run, file);
    std::byte* in = run.input(2000);
    std::byte* later = run.input(3000);
    std::byte* behind = run.input(100);
    MPI_Status status{};
    OK(MPI_File_read_at(file, 0, in, 500, MPI_INT, &status));
    note(run, "read", status);
#ifndef OPEN_MPI  // Open MPI 5 waits for the rest forever
    MPI_Request request;
    OK(MPI_File_iread_at(file, 500, later, 3000, MPI_BYTE, &request));
    OK(MPI_Wait(&request, &status));
    note(run, "read later", status);
#else
    static_cast<void>(later);
#endif
    OK(MPI_File_read_at(file, 5000, behind, 100, MPI_BYTE, &status));
    note(run, "read behind the end", status);
}

/// A function that completes requests, called until it has completed all.
struct Completion {
    std::string name;
    std::function<void(Run&, std::vector<MPI_Request>&, std::vector<MPI_Status>&)> complete;
    bool beside_messages = true;
};

template <class Function>
void complete_some(Run& run, Function function, std::vector<MPI_Request>& requests, std::vector<MPI_Status>& statuses) {
    const int count = static_cast<int>(requests.size());
    std::vector<int> indices(requests.size());
    std::vector<MPI_Status> found(requests.size());
    for (int completed = 0; completed != MPI_UNDEFINED;) {
        OK(function(count, requests.data(), &completed, indices.data(), found.data()));
        for (int at = 0; completed != MPI_UNDEFINED && at < completed; ++at) {
            const auto slot = static_cast<std::size_t>(at);
            statuses[static_cast<std::size_t>(indices[slot])] = found[slot];
        }
    }
}

std::vector<Completion> completions() {
    using Requests = std::vector<MPI_Request>;
    using Statuses = std::vector<MPI_Status>;
    const auto count_of = [](const Requests& requests) { return static_cast<int>(requests.size()); };
#ifdef OPEN_MPI
    constexpr bool kTestallMixes = true;
#else  // MPICH 5.0.2 completes a file access twice if another request is not over yet, on host memory too
    constexpr bool kTestallMixes = false;
#endif
    return {
        {"wait",
         [](Run& run, Requests& requests, Statuses& statuses) {
             for (std::size_t at = 0; at < requests.size(); ++at) {
                 OK(MPI_Wait(&requests[at], &statuses[at]));
             }
         }},
        {"test",
         [](Run& run, Requests& requests, Statuses& statuses) {
             for (std::size_t at = 0; at < requests.size(); ++at) {
                 for (int flag = 0; flag == 0;) {
                     OK(MPI_Test(&requests[at], &flag, &statuses[at]));
                 }
             }
         }},
        {"waitall", [=](Run& run, Requests& requests,
                        Statuses& statuses) { OK(MPI_Waitall(count_of(requests), requests.data(), statuses.data())); }},
        {"testall",
         [=](Run& run, Requests& requests, Statuses& statuses) {
             for (int flag = 0; flag == 0;) {
                 OK(MPI_Testall(count_of(requests), requests.data(), &flag, statuses.data()));
             }
         },
         kTestallMixes},
        {"waitany",
         [=](Run& run, Requests& requests, Statuses& statuses) {
             for (int index = 0; index != MPI_UNDEFINED;) {
                 MPI_Status status{};
                 OK(MPI_Waitany(count_of(requests), requests.data(), &index, &status));
                 if (index != MPI_UNDEFINED) {
                     statuses[static_cast<std::size_t>(index)] = status;
                 }
             }
         }},
        {"testany",
         [=](Run& run, Requests& requests, Statuses& statuses) {
             for (int index = 0, flag = 0; flag == 0 || index != MPI_UNDEFINED;) {
                 MPI_Status status{};
                 OK(MPI_Testany(count_of(requests), requests.data(), &index, &flag, &status));
                 if (flag != 0 && index != MPI_UNDEFINED) {
                     statuses[static_cast<std::size_t>(index)] = status;
                 }
             }
         }},
        {"waitsome", [](Run& run, Requests& requests,
                        Statuses& statuses) { complete_some(run, MPI_Waitsome, requests, statuses); }},
        {"testsome", [](Run& run, Requests& requests,
                        Statuses& statuses) { complete_some(run, MPI_Testsome, requests, statuses); }},
        // MPICH completes an access that is asked about by MPI_Test, but not by MPI_Wait, once more.
        {"get_status",
         [=](Run& run, Requests& requests, Statuses& statuses) {
             for (std::size_t at = 0; at < requests.size(); ++at) {
                 for (int flag = 0; flag == 0;) {
                     OK(MPI_Request_get_status(requests[at], &flag, &statuses[at]));
                 }
             }
             OK(MPI_Waitall(count_of(requests), requests.data(), MPI_STATUSES_IGNORE));
         }},
    };
}

using Access = std::function<int(MPI_File, MPI_Offset, void*, int, MPI_Datatype, MPI_Request*)>;

template <class Function>
Access at_pointer(Function function) {
    return
        [function](MPI_File file, MPI_Offset offset, void* buffer, int count, MPI_Datatype type, MPI_Request* request) {
            MPI_File_seek(file, offset, MPI_SEEK_SET);
            return function(file, buffer, count, type, request);
        };
}

template <class Function>
Access at_shared_pointer(Function function) {
    return [function](MPI_File file, MPI_Offset, void* buffer, int count, MPI_Datatype type, MPI_Request* request) {
        return function(file, buffer, count, type, request);
    };
}

/// Accesses of one kind, of all ranks or, by the pointer that they share, of a file of each rank.
struct Kinds {
    std::string name;
    Access write, read;
    bool shared = false;
};

std::vector<Kinds> kinds_of_access() {
    return {
        {"at", MPI_File_iwrite_at, MPI_File_iread_at},
        {"at all", MPI_File_iwrite_at_all, MPI_File_iread_at_all},
        {"pointer", at_pointer(MPI_File_iwrite), at_pointer(MPI_File_iread)},
        {"pointer all", at_pointer(MPI_File_iwrite_all), at_pointer(MPI_File_iread_all)},
        {"shared", at_shared_pointer(MPI_File_iwrite_shared), at_shared_pointer(MPI_File_iread_shared), true},
    };
}

/// Each kind of access, dense and with gaps, completed by itself and beside messages.
void completed(Run& run, const Completion& completion) {
    const Gaps gaps;
    const int next = (run.rank + 1) % run.size, previous = (run.rank + run.size - 1) % run.size;
    constexpr int kMessage = 9000;
    for (const Kinds& kinds : kinds_of_access()) {
        for (const bool beside_messages : {false, true}) {
            if (beside_messages && !completion.beside_messages) {
                continue;
            }
            for (const bool dense : {true, false}) {
                const int count = dense ? Gaps::kIntegers : 1;
                const MPI_Datatype type = dense ? MPI_INT : MPI_Datatype(gaps);
                const TemporaryFile file(run, kinds.shared);
                std::byte* out = run.input(Gaps::kExtent);
                std::byte* in = run.input(Gaps::kExtent);
                std::byte* message = run.input(kMessage);
                std::byte* received = run.input(kMessage);
                const MPI_Offset mine = static_cast<MPI_Offset>(run.rank) * Gaps::kBytes;
                const auto access = [&](const Access& begin, std::byte* buffer, const std::string& name) {
                    std::vector<MPI_Request> requests(1, MPI_REQUEST_NULL);
                    if (beside_messages) {
                        requests.resize(3, MPI_REQUEST_NULL);
                        OK(MPI_Irecv(received, kMessage, MPI_BYTE, previous, 1, run.comm, &requests[1]));
                        OK(MPI_Isend(message, kMessage, MPI_BYTE, next, 1, run.comm, &requests[2]));
                    }
                    std::vector<MPI_Status> statuses(requests.size());
                    OK(begin(file, mine, buffer, count, type, requests.data()));
                    completion.complete(run, requests, statuses);
                    note(run, (kinds.name + name).c_str(), statuses[0]);
                    run.expect(requests[0] == MPI_REQUEST_NULL, "a completed request is null");
                };
                access(kinds.write, out, " written");
                synchronise(run, file);
                if (kinds.shared) {
                    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
                }
                access(kinds.read, in, " read");
                synchronise(run, file);
            }
        }
    }
}

#if RANKS_HAVE_LARGE_COUNT
void large_counts(Run& run) {
    const TemporaryFile file(run);
    std::byte* out = run.input(Gaps::kBytes);
    std::byte* in = run.input(Gaps::kBytes);
    const MPI_Offset mine = static_cast<MPI_Offset>(run.rank) * Gaps::kBytes;
    OK(MPI_File_write_at_all_c(file, mine, out, MPI_Count{Gaps::kBytes}, MPI_BYTE, MPI_STATUS_IGNORE));
    synchronise(run, file);
    MPI_Request request;
    OK(MPI_File_iread_at_c(file, mine, in, MPI_Count{Gaps::kBytes}, MPI_BYTE, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
}
#endif

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    suite.add("at_offsets", at_offsets);
    suite.add("with_file_pointer", with_file_pointer);
    suite.add("collectively", collectively);
    suite.add("in_order", in_order);
    suite.add("nonblocking", nonblocking);
    suite.add("split", split);
    suite.add("wrongly_ended", wrongly_ended);
#ifndef OPEN_MPI
    suite.add("never_ended", never_ended);
#endif
    suite.add("past_the_end", past_the_end);
    for (const Completion& completion : completions()) {
        suite.add("completed_by_" + completion.name, [completion](Run& run) { completed(run, completion); });
    }
#if RANKS_HAVE_LARGE_COUNT
    suite.add("large_counts", large_counts);
#endif
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
