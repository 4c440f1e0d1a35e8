// SPDX-License-Identifier: Apache-2.0
// Kinds of memory (MPI-4.1, 11.4.3): what programs are told, what they assert, and memory of a kind. Two ranks.
//
//     memory_kinds --gpu=cuda|hip|none [--kinds=LIST] [--check]
//
// --kinds: what MPI_COMM_WORLD must tell; without it all kinds of the GPU. --check: a wrong assertion is refused
// (AWAKEN_CHECK=1). Prints `ok NAME` on rank 0 or `FAIL NAME: why` for each case.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstring>
#include <set>
#include <thread>

#include "awaken/awaken.h"
#include "emulated.h"
#include "support.h"

using namespace ranks;

namespace {

constexpr const char* kProvided = "mpi_memory_alloc_kinds";
constexpr const char* kAsserted = "mpi_assert_memory_alloc_kinds";
constexpr int kTag = 7;

std::string vendor;  // "cuda", "rocm", or nothing
std::string expected;
int world_rank = 0;
int failures = 0;

void expect(const std::string& name, const bool good, const std::string& why) {
    if (!good) {
        ++failures;
        std::printf("FAIL %s: rank %d: %s\n", name.c_str(), world_rank, why.c_str());
        std::fflush(stdout);
    } else if (world_rank == 0) {
        std::printf("ok %s\n", name.c_str());
        std::fflush(stdout);
    }
}

void expect_text(const std::string& name, const std::string& got, const std::string& wanted) {
    expect(name, got == wanted, "\"" + got + "\" instead of \"" + wanted + "\"");
}

std::string take_value(MPI_Info info, const char* key) {
    char value[MPI_MAX_INFO_VAL + 1] = {};
    int found = 0;
    MPI_Info_get(info, key, MPI_MAX_INFO_VAL - 1, value, &found);
    MPI_Info_free(&info);
    return found != 0 ? value : "(none)";
}
std::string told(MPI_Comm comm, const char* key = kProvided) {
    MPI_Info info;
    MPI_Comm_get_info(comm, &info);
    return take_value(info, key);
}

std::string told_by_window(MPI_Win window, const char* key = kProvided) {
    MPI_Info info;
    MPI_Win_get_info(window, &info);
    return take_value(info, key);
}
std::string told_by_file(MPI_File file, const char* key = kProvided) {
    MPI_Info info;
    MPI_File_get_info(file, &info);
    return take_value(info, key);
}

/// A file of this process alone, as `comm` is, which is gone once it is closed.
MPI_File open_file(MPI_Info info, MPI_Comm comm = MPI_COMM_SELF) {
    const char* const folder = std::getenv("TMPDIR");
    static int number = 0;
    const std::string path = format("%s/kinds.%d.%d", folder != nullptr ? folder : "/tmp", getpid(), number++);
    MPI_File file;
    const int mode = MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE;
    const int code = MPI_File_open(comm, path.c_str(), mode, info, &file);
    expect("a file", code == MPI_SUCCESS, path + ": " + error_text(code));
    return file;
}

class Hint {
  public:
    Hint(const char* key, const std::string& value) {
        MPI_Info_create(&_info);
        MPI_Info_set(_info, key, value.c_str());
    }
    ~Hint() { MPI_Info_free(&_info); }
    Hint(const Hint&) = delete;
    Hint& operator=(const Hint&) = delete;
    operator MPI_Info() const { return _info; }  // NOLINT(google-explicit-constructor)

  private:
    MPI_Info _info;
};

MPI_Comm dup_with(const std::string& asserted, MPI_Comm comm = MPI_COMM_WORLD) {
    MPI_Comm made;
    MPI_Comm_dup_with_info(comm, Hint(kAsserted, asserted), &made);
    return made;
}

std::string all_kinds() {
    std::string list = "system,mpi";
    if (!vendor.empty()) {
        list += "," + vendor;
        for (const char* const restrictor : {"device", "host", "managed"}) {
            list += "," + vendor + ":" + restrictor;
        }
    }
    return list;
}

// ---- before MPI -----------------------------------------------------------------------------------------------------

int query(const char* name) {
    const auto function = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, name));
    return function == nullptr ? -1 : function();
}
int query_gpu(const int type) {
    const auto function = reinterpret_cast<int (*)(int, int*)>(dlsym(RTLD_DEFAULT, "MPIX_GPU_query_support"));
    int supported = -1;
    return function != nullptr && function(type, &supported) == MPI_SUCCESS ? supported : -1;
}

void queries(const std::string& when) {
    const int cuda = vendor == "cuda" ? 1 : 0, rocm = vendor == "rocm" ? 1 : 0;
    expect(when + ": MPIX_Query_cuda_support", query("MPIX_Query_cuda_support") == cuda, "wrong answer");
    expect(when + ": MPIX_Query_rocm_support", query("MPIX_Query_rocm_support") == rocm, "wrong answer");
    expect(when + ": MPIX_Query_hip_support", query("MPIX_Query_hip_support") == rocm, "wrong answer");
    expect(when + ": MPIX_GPU_query_support", query_gpu(0) == cuda && query_gpu(1) == 0 && query_gpu(2) == rocm,
           "wrong answer");
}

/// The first MPI calls of the process, by several threads at once.
void first_calls() {
    constexpr int kThreads = 8;
    std::atomic<int> waiting{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int index = 0; index < kThreads; ++index) {
        threads.emplace_back([&, index] {
            ++waiting;
            while (waiting < kThreads) {
                std::this_thread::yield();
            }
            int initialised = 1;
            if (index % 2 == 0) {
                wrong += query("MPIX_Query_cuda_support") == (vendor == "cuda" ? 1 : 0) ? 0 : 1;
            } else if (MPI_Initialized(&initialised) != MPI_SUCCESS || initialised != 0) {
                ++wrong;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    expect("first calls by threads", wrong == 0, format("%d wrong answers", wrong.load()));
}

// ---- what is provided -----------------------------------------------------------------------------------------------

void provided() {
    expect_text("provided on the world", told(MPI_COMM_WORLD), expected);
    std::map<std::string, MPI_Comm> made;
    MPI_Request request;
    MPI_Comm_dup(MPI_COMM_WORLD, &made["dup"]);
    MPI_Comm_idup(MPI_COMM_WORLD, &made["idup"], &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_split(MPI_COMM_WORLD, 0, world_rank, &made["split"]);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank, MPI_INFO_NULL, &made["split_type"]);
    MPI_Group group;
    MPI_Comm_group(MPI_COMM_WORLD, &group);
    MPI_Comm_create(MPI_COMM_WORLD, group, &made["create"]);
    MPI_Comm_create_group(MPI_COMM_WORLD, group, kTag, &made["create_group"]);
    MPI_Group_free(&group);
    const int two = 2, periodic = 0, indices[] = {1, 2}, edges[] = {1, 0}, peer = 1 - world_rank, one = 1;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &two, &periodic, 0, &made["cart_create"]);
    MPI_Graph_create(MPI_COMM_WORLD, 2, indices, edges, 0, &made["graph_create"]);
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &peer, &one, 1, &peer, &one, MPI_INFO_NULL, 0,
                                   &made["dist_graph_create_adjacent"]);
    MPI_Intercomm_create(MPI_COMM_SELF, 0, MPI_COMM_WORLD, peer, kTag, &made["intercomm_create"]);
    MPI_Intercomm_merge(made["intercomm_create"], world_rank, &made["intercomm_merge"]);
    for (auto& [name, comm] : made) {
        expect_text("provided by " + name, told(comm), expected);
        MPI_Comm_free(&comm);
    }
    int word = 0;
    MPI_Win window;
    MPI_Win_create(&word, sizeof word, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    expect_text("provided by a window", told_by_window(window), expected);
    MPI_Win_free(&window);
    MPI_File file = open_file(MPI_INFO_NULL);
    expect_text("provided by a file", told_by_file(file), expected);
    MPI_File_close(&file);
}

#if RANKS_HAVE_MPI4
/// A session that asks for some kinds, and what comes from it.
void sessions() {
    const std::string asked = vendor.empty() ? "cuda:device,mpi:alloc_mem" : vendor + ":device,acme,mpi:alloc_mem";
    const std::string narrow =
        vendor.empty() ? "system,mpi,mpi:alloc_mem" : "system,mpi," + vendor + ":device,mpi:alloc_mem";
    MPI_Session narrowed, plain;
    MPI_Session_init(Hint(kProvided, asked), MPI_ERRORS_RETURN, &narrowed);
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &plain);
    for (const auto& [name, session, list] :
         {std::tuple{"narrowed", narrowed, narrow}, std::tuple{"plain", plain, expected}}) {
        const std::string of = std::string(" of a ") + name + " session";
        MPI_Info info;
        MPI_Session_get_info(session, &info);
        expect_text("provided" + of, take_value(info, kProvided), list);
        MPI_Group group, part;
        MPI_Comm comm, dup, half, host, alone;
        MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
        const int members[] = {0, 1};
        MPI_Group_incl(group, 2, members, &part);
        MPI_Group_free(&group);
        MPI_Comm_create_from_group(part, (std::string("kinds.") + name).c_str(), MPI_INFO_NULL, MPI_ERRORS_RETURN,
                                   &comm);
        MPI_Comm_create_from_group(part, (std::string("host.") + name).c_str(), Hint(kAsserted, "system"),
                                   MPI_ERRORS_RETURN, &host);
        MPI_Group_free(&part);
        expect_text("provided by a communicator" + of, told(comm), list);
        MPI_Comm_dup(comm, &dup);
        MPI_Comm_split(dup, 0, world_rank, &half);
        MPI_Comm_split(dup, world_rank, 0, &alone);
        expect_text("provided by a dup" + of, told(dup), list);
        expect_text("provided by a split of a dup" + of, told(half), list);
        expect_text("asserted by create_from_group" + of, told(host, kAsserted), "system");
        expect_text("not asserted" + of, told(comm, kAsserted), "(none)");
        if (!vendor.empty()) {
            MPI_Comm_set_info(comm, Hint(kAsserted, vendor + ":host"));
            expect_text("asserted of what was not asked for" + of, told(comm, kAsserted),
                        list == narrow ? "(none)" : vendor + ":host");
        }
        MPI_Win window;
        MPI_Win_create_dynamic(MPI_INFO_NULL, comm, &window);
        MPI_File file = open_file(MPI_INFO_NULL, alone);
        expect_text("provided by a window" + of, told_by_window(window), list);
        expect_text("provided by a file" + of, told_by_file(file), list);
        MPI_File_close(&file);
        MPI_Win_free(&window);
        for (MPI_Comm* const each : {&comm, &dup, &half, &host, &alone}) {
            MPI_Comm_free(each);
        }
    }
    MPI_Session_finalize(&narrowed);
    MPI_Session_finalize(&plain);
    expect_text("provided on the world after sessions", told(MPI_COMM_WORLD), expected);
}
#endif

// ---- what is asserted -----------------------------------------------------------------------------------------------

void asserted() {
    MPI_Comm comm = dup_with("System, mpi:alloc_mem");
    expect_text("asserted by dup_with_info", told(comm, kAsserted), "System, mpi:alloc_mem");
    expect_text("provided beside it", told(comm), expected);
    MPI_Comm_set_info(comm, Hint(kAsserted, "acme"));
    expect_text("an unknown kind is ignored", told(comm, kAsserted), "System, mpi:alloc_mem");
    MPI_Comm_set_info(comm, Hint(kAsserted, "system:page"));
    expect_text("an unknown restrictor is ignored", told(comm, kAsserted), "System, mpi:alloc_mem");
    MPI_Comm_set_info(comm, Hint(kAsserted, vendor == "cuda" ? "rocm:device" : "cuda:texture"));
    expect_text("a kind that is not provided is ignored", told(comm, kAsserted), "System, mpi:alloc_mem");
    MPI_Comm_set_info(comm, Hint("another_hint", "true"));
    expect_text("other hints change nothing", told(comm, kAsserted), "System, mpi:alloc_mem");
    MPI_Comm_set_info(comm, Hint(kAsserted, "mpi"));
    expect_text("asserted again", told(comm, kAsserted), "mpi");
    MPI_Comm dup, split, dist, other;
    MPI_Comm_dup(comm, &dup);
    expect_text("not inherited by dup", told(dup, kAsserted), "(none)");
    MPI_Comm_dup_with_info(comm, MPI_INFO_NULL, &other);
    expect_text("not inherited by dup_with_info", told(other, kAsserted), "(none)");
    MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, Hint(kAsserted, "system"), &split);
    expect_text("asserted by split_type", told(split, kAsserted), "system");
    const int peer = 1 - world_rank, one = 1;
    MPI_Dist_graph_create_adjacent(comm, 1, &peer, &one, 1, &peer, &one, Hint(kAsserted, "system"), 0, &dist);
    expect_text("asserted by dist_graph_create_adjacent", told(dist, kAsserted), "system");
    for (MPI_Comm* const each : {&comm, &dup, &other, &split, &dist}) {
        MPI_Comm_free(each);
    }
    // Handles of freed communicators come back.
    for (int round = 0; round < 20; ++round) {
        MPI_Comm_dup(MPI_COMM_WORLD, &dup);
        if (told(dup, kAsserted) != "(none)") {
            expect("a new communicator asserts nothing", false, told(dup, kAsserted));
        }
        MPI_Comm_free(&dup);
    }
#if RANKS_HAVE_MPI4
    MPI_Request request;
    MPI_Comm_idup_with_info(MPI_COMM_WORLD, Hint(kAsserted, "system"), &dup, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect_text("asserted by idup_with_info", told(dup, kAsserted), "system");
    MPI_Comm_free(&dup);
#endif
}

/// What an object asserts when hints are given to it, as `told` answers. It asserted "system" before.
void changed_hints(const std::string& object, const std::function<std::string()>& told_now,
                   const std::function<void(MPI_Info)>& set) {
    const std::string other_vendor = vendor == "cuda" ? "rocm:device" : "cuda:texture";
    expect_text("asserted by " + object, told_now(), "system");
    for (const std::string& ignored : {std::string("acme"), std::string("system:page"), other_vendor}) {
        set(Hint(kAsserted, ignored));
        expect_text(object + " ignores " + ignored, told_now(), "system");
    }
    set(Hint("another_hint", "true"));
    expect_text("other hints change nothing for " + object, told_now(), "system");
    const std::string more = vendor.empty() ? "mpi" : "mpi," + vendor + ":device";
    set(Hint(kAsserted, more));
    expect_text(object + " asserts again", told_now(), more);
}

void asserted_by_windows() {
    int word = 0;
    void* memory = nullptr;
    const Hint system(kAsserted, "system"), unknown(kAsserted, "acme");
    const MPI_Comm comm = MPI_COMM_WORLD;
    using Make = std::function<void(MPI_Info, MPI_Win*)>;
    const std::vector<std::pair<std::string, Make>> ways = {
        {"Win_create", [&](MPI_Info info, MPI_Win* made) { MPI_Win_create(&word, sizeof word, 1, info, comm, made); }},
        {"Win_allocate",
         [&](MPI_Info info, MPI_Win* made) { MPI_Win_allocate(64, 1, info, comm, static_cast<void*>(&memory), made); }},
        {"Win_allocate_shared",
         [&](MPI_Info info, MPI_Win* made) {
             MPI_Win_allocate_shared(64, 1, info, comm, static_cast<void*>(&memory), made);
         }},
        {"Win_create_dynamic", [&](MPI_Info info, MPI_Win* made) { MPI_Win_create_dynamic(info, comm, made); }},
    };
    for (const auto& [name, make] : ways) {
        MPI_Win window;
        make(system, &window);
        expect_text("provided beside it by " + name, told_by_window(window), expected);
        changed_hints(
            name, [&] { return told_by_window(window, kAsserted); },
            [&](MPI_Info info) { MPI_Win_set_info(window, info); });
        MPI_Win_free(&window);
        // Handles of freed windows come back.
        for (MPI_Info info : {MPI_INFO_NULL, static_cast<MPI_Info>(unknown)}) {
            make(info, &window);
            expect_text("nothing is asserted by a new window of " + name, told_by_window(window, kAsserted), "(none)");
            MPI_Win_free(&window);
        }
    }
}

void asserted_by_files() {
    const Hint system(kAsserted, "system");
    const auto set_view = [](MPI_File file, MPI_Info info) {
        MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", info);
    };
    MPI_File file = open_file(system);
    const auto told_now = [&] { return told_by_file(file, kAsserted); };
    expect_text("provided beside it by a file", told_by_file(file), expected);
    changed_hints("File_open", told_now, [&](MPI_Info info) { MPI_File_set_info(file, info); });
    MPI_File_close(&file);
    file = open_file(Hint(kAsserted, "acme"));
    expect_text("nothing is asserted by a new file", told_now(), "(none)");
    set_view(file, system);
    changed_hints("File_set_view", told_now, [&](MPI_Info info) { set_view(file, info); });
    const std::string before = told_now();
    set_view(file, MPI_INFO_NULL);
    expect_text("a view without hints changes nothing", told_now(), before);
    MPI_File_close(&file);
    file = open_file(MPI_INFO_NULL);
    expect_text("nothing is asserted by another new file", told_now(), "(none)");
    MPI_File_close(&file);
}

std::uint64_t pointer_queries() {
    static auto& count = ranks::required_emulator_function<std::uint64_t()>("awaken_emulator_pointer_queries");
    return count();
}

/// Host memory that the layer does not know from elsewhere: neither heap nor stack.
class Mapped {
  public:
    Mapped() : _data(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        std::memset(_data, 1 + world_rank, kBytes);
    }
    ~Mapped() { munmap(_data, kBytes); }
    Mapped(const Mapped&) = delete;
    Mapped& operator=(const Mapped&) = delete;
    [[nodiscard]] int* at(const std::size_t block) const { return static_cast<int*>(_data) + block * kBlock; }

    static constexpr std::size_t kBlock = std::size_t{1} << 19;  // integers
    static constexpr std::size_t kBytes = 4 * kBlock * sizeof(int);

  private:
    void* _data;
};

using Traffic = std::function<void(MPI_Comm, const Mapped&, int count)>;

/// Functions of every family. Two ranks.
std::vector<std::pair<std::string, Traffic>> families() {
    const auto wait = [](MPI_Request& request) { MPI_Wait(&request, MPI_STATUS_IGNORE); };
    return {
        {"Send and Recv",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             if (world_rank == 0) {
                 MPI_Send(memory.at(0), count, MPI_INT, 1, kTag, comm);
             } else {
                 MPI_Recv(memory.at(1), count, MPI_INT, 0, kTag, comm, MPI_STATUS_IGNORE);
             }
         }},
        {"Isend and Irecv",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Request requests[2];
             MPI_Irecv(memory.at(1), count, MPI_INT, 1 - world_rank, kTag, comm, &requests[0]);
             MPI_Isend(memory.at(0), count, MPI_INT, 1 - world_rank, kTag, comm, &requests[1]);
             MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
         }},
        {"Sendrecv",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Sendrecv(memory.at(0), count, MPI_INT, 1 - world_rank, kTag, memory.at(1), count, MPI_INT,
                          MPI_ANY_SOURCE, kTag, comm, MPI_STATUS_IGNORE);
         }},
        {"persistent messages",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Request requests[2];
             MPI_Recv_init(memory.at(1), count, MPI_INT, 1 - world_rank, kTag, comm, &requests[0]);
             MPI_Send_init(memory.at(0), count, MPI_INT, 1 - world_rank, kTag, comm, &requests[1]);
             for (int round = 0; round < 2; ++round) {
                 MPI_Startall(2, requests);
                 MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
             }
             MPI_Request_free(&requests[0]);
             MPI_Request_free(&requests[1]);
         }},
        {"a type with gaps",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Datatype type;
             MPI_Type_vector(count / 2, 1, 2, MPI_INT, &type);
             MPI_Type_commit(&type);
             MPI_Sendrecv(memory.at(0), 1, type, 1 - world_rank, kTag, memory.at(1), 1, type, 1 - world_rank, kTag,
                          comm, MPI_STATUS_IGNORE);
             MPI_Type_free(&type);
         }},
        {"Bcast",
         [](MPI_Comm comm, const Mapped& memory, int count) { MPI_Bcast(memory.at(0), count, MPI_INT, 1, comm); }},
        {"Allreduce", [](MPI_Comm comm, const Mapped& memory,
                         int count) { MPI_Allreduce(memory.at(0), memory.at(1), count, MPI_INT, MPI_SUM, comm); }},
        {"Iallreduce",
         [wait](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Request request;
             MPI_Iallreduce(MPI_IN_PLACE, memory.at(1), count, MPI_INT, MPI_MAX, comm, &request);
             wait(request);
         }},
        {"Reduce", [](MPI_Comm comm, const Mapped& memory,
                      int count) { MPI_Reduce(memory.at(0), memory.at(1), count, MPI_INT, MPI_SUM, 0, comm); }},
        {"Allgather",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Allgather(memory.at(0), count, MPI_INT, memory.at(1), count, MPI_INT, comm);
         }},
        {"Alltoall",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Alltoall(memory.at(0), count / 2, MPI_INT, memory.at(1), count / 2, MPI_INT, comm);
         }},
        {"Alltoallv",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             const int counts[] = {count / 4, count / 4}, places[] = {0, count / 2};
             MPI_Alltoallv(memory.at(0), counts, places, MPI_INT, memory.at(1), counts, places, MPI_INT, comm);
         }},
        {"Gather and Scatter",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Gather(memory.at(0), count, MPI_INT, memory.at(1), count, MPI_INT, 0, comm);
             MPI_Scatter(memory.at(1), count, MPI_INT, memory.at(0), count, MPI_INT, 0, comm);
         }},
        {"Igatherv",
         [wait](MPI_Comm comm, const Mapped& memory, int count) {
             const int counts[] = {count, count}, places[] = {0, count};
             MPI_Request request;
             MPI_Igatherv(memory.at(0), count, MPI_INT, memory.at(1), counts, places, MPI_INT, 1, comm, &request);
             wait(request);
         }},
        {"Barrier and Scan",
         [](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Barrier(comm);
             MPI_Scan(memory.at(0), memory.at(1), count, MPI_INT, MPI_SUM, comm);
         }},
#if MPI_VERSION >= 4
        {"Allreduce_init",
         [wait](MPI_Comm comm, const Mapped& memory, int count) {
             MPI_Request request;
             MPI_Allreduce_init(memory.at(0), memory.at(1), count, MPI_INT, MPI_SUM, comm, MPI_INFO_NULL, &request);
             for (int round = 0; round < 2; ++round) {
                 MPI_Start(&request);
                 wait(request);
             }
             MPI_Request_free(&request);
         }},
#endif
    };
}

using WindowTraffic = std::function<void(MPI_Win, const Mapped&, int count)>;

/// One-sided functions, within an MPI_Win_lock_all.
std::vector<std::pair<std::string, WindowTraffic>> window_families() {
    const auto peer = [] { return 1 - world_rank; };
    const auto wait = [](MPI_Request& request) { MPI_Wait(&request, MPI_STATUS_IGNORE); };
    return {
        {"Put", [=](MPI_Win window, const Mapped& memory,
                    int count) { MPI_Put(memory.at(0), count, MPI_INT, peer(), 0, count, MPI_INT, window); }},
        {"Get", [=](MPI_Win window, const Mapped& memory,
                    int count) { MPI_Get(memory.at(1), count, MPI_INT, peer(), 0, count, MPI_INT, window); }},
        {"Accumulate",
         [=](MPI_Win window, const Mapped& memory, int count) {
             MPI_Accumulate(memory.at(0), count, MPI_INT, peer(), 0, count, MPI_INT, MPI_SUM, window);
         }},
        {"Get_accumulate",
         [=](MPI_Win window, const Mapped& memory, int count) {
             MPI_Get_accumulate(memory.at(0), count, MPI_INT, memory.at(1), count, MPI_INT, peer(), 0, count, MPI_INT,
                                MPI_SUM, window);
         }},
        {"Fetch_and_op",
         [=](MPI_Win window, const Mapped& memory, int) {
             MPI_Fetch_and_op(memory.at(0), memory.at(1), MPI_INT, peer(), 0, MPI_SUM, window);
         }},
        {"Compare_and_swap",
         [=](MPI_Win window, const Mapped& memory, int) {
             MPI_Compare_and_swap(memory.at(0), memory.at(0), memory.at(1), MPI_INT, peer(), 0, window);
         }},
        {"Rput",
         [=](MPI_Win window, const Mapped& memory, int count) {
             MPI_Request request;
             MPI_Rput(memory.at(0), count, MPI_INT, peer(), 0, count, MPI_INT, window, &request);
             wait(request);
         }},
        {"Rget",
         [=](MPI_Win window, const Mapped& memory, int count) {
             MPI_Request request;
             MPI_Rget(memory.at(1), count, MPI_INT, peer(), 0, count, MPI_INT, window, &request);
             wait(request);
         }},
    };
}

using FileTraffic = std::function<void(MPI_File, const Mapped&, int count)>;

std::vector<std::pair<std::string, FileTraffic>> file_families() {
    const auto wait = [](MPI_Request& request) { MPI_Wait(&request, MPI_STATUS_IGNORE); };
    return {
        {"File_write_at and File_read_at",
         [](MPI_File file, const Mapped& memory, int count) {
             MPI_File_write_at(file, 0, memory.at(0), count, MPI_INT, MPI_STATUS_IGNORE);
             MPI_File_read_at(file, 0, memory.at(1), count, MPI_INT, MPI_STATUS_IGNORE);
         }},
        {"File_iwrite and File_iread_at",
         [wait](MPI_File file, const Mapped& memory, int count) {
             MPI_Request request;
             MPI_File_iwrite(file, memory.at(0), count, MPI_INT, &request);
             wait(request);
             MPI_File_iread_at(file, 0, memory.at(1), count, MPI_INT, &request);
             wait(request);
         }},
        {"File_write_all and split File_read_at_all",
         [](MPI_File file, const Mapped& memory, int count) {
             MPI_File_write_all(file, memory.at(0), count, MPI_INT, MPI_STATUS_IGNORE);
             MPI_File_read_at_all_begin(file, 0, memory.at(1), count, MPI_INT);
             MPI_File_read_at_all_end(file, memory.at(1), MPI_STATUS_IGNORE);
         }},
    };
}

/// The least number of questions to the driver. The layer asks about memory of its own, too, when it begins to use
/// something: not every time.
template <class Traffic>
std::uint64_t queries_of(const Traffic& traffic) {
    std::uint64_t least = ~std::uint64_t{0};
    for (int round = 0; round < 3; ++round) {
        MPI_Barrier(MPI_COMM_WORLD);
        const std::uint64_t before = pointer_queries();
        traffic();
        least = std::min(least, pointer_queries() - before);
    }
    return least;
}

/// Objects of one type: all buffers are host memory, nothing is asserted, device memory is named.
template <class Object>
struct Three {
    Object asserting, plain, mixed;
};

template <class Object, class Families>
void compare(const Three<Object>& objects, const Families& families, const Mapped& memory) {
    for (const auto& [name, traffic] : families) {
        for (const int count : {8, 1000, 400'000}) {
            const std::string what = format("%s of %d integers", name.c_str(), count);
            const auto queries_on = [&, &run = traffic](Object on) {
                return queries_of([&] { run(on, memory, count); });
            };
            const std::uint64_t asserting = queries_on(objects.asserting), other = queries_on(objects.plain),
                                device_too = queries_on(objects.mixed);
            const bool has_buffer = name != "Reduce" || world_rank == 0;
            expect("no question: " + what, asserting == 0, format("the driver was asked %d times", int(asserting)));
            expect("a question without an assertion: " + what, other > 0 || !has_buffer, "the driver was not asked");
            expect("a question with device memory: " + what, device_too > 0 || !has_buffer, "the driver was not asked");
        }
    }
}

void nothing_is_asked_for_windows(const std::string& host, const std::string& device, const Mapped& memory) {
    const auto make = [&](MPI_Info info) {
        MPI_Win window;
        MPI_Win_create(memory.at(3), Mapped::kBlock * sizeof(int), sizeof(int), info, MPI_COMM_WORLD, &window);
        MPI_Win_lock_all(0, window);
        return window;
    };
    Three<MPI_Win> windows{make(Hint(kAsserted, host)), make(MPI_INFO_NULL), make(Hint(kAsserted, device))};
    compare(windows, window_families(), memory);
    // Assertions may come and go.
    const auto put = [&](MPI_Win window) {
        return queries_of([&] { MPI_Put(memory.at(0), 8, MPI_INT, 1 - world_rank, 0, 8, MPI_INT, window); });
    };
    MPI_Win_set_info(windows.plain, Hint(kAsserted, host));
    MPI_Win_set_info(windows.asserting, Hint(kAsserted, device));
    const std::uint64_t asserting = put(windows.plain), device_too = put(windows.asserting);
    expect("no question after Win_set_info", asserting == 0, format("the driver was asked %d times", int(asserting)));
    expect("a question after Win_set_info", device_too > 0, "the driver was not asked");
    for (MPI_Win* const each : {&windows.asserting, &windows.plain, &windows.mixed}) {
        MPI_Win_unlock_all(*each);
        MPI_Win_free(each);
    }
}

/// A window over device memory, whose origins are host memory.
void host_origins_of_device_memory(Gpu& gpu, const std::string& host, const Mapped& memory) {
    constexpr int kCount = 1000;
    Buffer device(gpu, Kind::device, kCount * sizeof(int));
    std::vector<int> values(kCount, 0);
    device.write(values.data(), kCount * sizeof(int));
    MPI_Win window;
    MPI_Win_create(device.data(), kCount * sizeof(int), sizeof(int), Hint(kAsserted, host), MPI_COMM_WORLD, &window);
    const int peer = 1 - world_rank;
    std::fill_n(memory.at(0), kCount, 5 + world_rank);
    MPI_Win_fence(0, window);
    MPI_Put(memory.at(0), kCount, MPI_INT, peer, 0, kCount, MPI_INT, window);
    MPI_Win_fence(0, window);
    MPI_Accumulate(memory.at(0), kCount, MPI_INT, peer, 0, kCount, MPI_INT, MPI_SUM, window);
    MPI_Win_fence(0, window);
    MPI_Get(memory.at(1), kCount, MPI_INT, peer, 0, kCount, MPI_INT, window);
    MPI_Win_fence(0, window);
    const int* const got = memory.at(1);
    expect("host origins of device memory", std::count(got, got + kCount, 2 * (5 + world_rank)) == kCount,
           format("%d and %d instead of %d", got[0], got[kCount - 1], 2 * (5 + world_rank)));
    MPI_Win_free(&window);
}

void nothing_is_asked_for_files(const std::string& host, const std::string& device, const Mapped& memory) {
    Three<MPI_File> files{open_file(Hint(kAsserted, host)), open_file(MPI_INFO_NULL),
                          open_file(Hint(kAsserted, device))};
    compare(files, file_families(), memory);
    MPI_File_set_view(files.plain, 0, MPI_INT, MPI_INT, "native", Hint(kAsserted, host));
    const std::uint64_t asserting =
        queries_of([&] { MPI_File_read_at(files.plain, 0, memory.at(1), 8, MPI_INT, MPI_STATUS_IGNORE); });
    expect("no question after File_set_view", asserting == 0, format("the driver was asked %d times", int(asserting)));
    for (MPI_File* const each : {&files.asserting, &files.plain, &files.mixed}) {
        MPI_File_close(each);
    }
}

/// The driver is not asked about buffers of a communicator whose buffers are host memory, and is about others.
void nothing_is_asked(Gpu& gpu) {
    // The layer uses the GPU before anything is counted.
    Buffer device(gpu, Kind::device, 4096);
    MPI_Allreduce(MPI_IN_PLACE, device.data(), 1024, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    const std::string host = "system,mpi," + vendor + ":host", device_kinds = "system," + vendor + ":device";
    MPI_Comm comm = dup_with(host);
    MPI_Comm plain, mixed = dup_with(device_kinds);
    MPI_Comm_dup(comm, &plain);
    const Mapped memory;
    compare(Three<MPI_Comm>{comm, plain, mixed}, families(), memory);
    nothing_is_asked_for_windows(host, device_kinds, memory);
    nothing_is_asked_for_files(host, device_kinds, memory);
    host_origins_of_device_memory(gpu, host, memory);
    int sum = 0;
    const int own = world_rank + 1;
    std::memcpy(memory.at(0), &own, sizeof own);
    MPI_Allreduce(memory.at(0), memory.at(1), 1, MPI_INT, MPI_SUM, comm);
    std::memcpy(&sum, memory.at(1), sizeof sum);
    expect("the result", sum == 3, format("%d instead of 3", sum));
    // One rank asserts, the other passes device memory: each speaks for itself.
    MPI_Comm one = dup_with(world_rank == 0 ? "system" : "system," + vendor + ":device");
    void* const own_data = world_rank == 0 ? static_cast<void*>(memory.at(0)) : device.data();
    constexpr int kCount = 1024;
    std::vector<int> values(kCount, own);
    if (world_rank == 0) {
        std::memcpy(own_data, values.data(), kCount * sizeof(int));
    } else {
        device.write(values.data(), kCount * sizeof(int));
    }
    MPI_Allreduce(MPI_IN_PLACE, own_data, kCount, MPI_INT, MPI_SUM, one);
    if (world_rank == 0) {
        std::memcpy(values.data(), own_data, kCount * sizeof(int));
        MPI_Send(own_data, kCount, MPI_INT, 1, kTag, one);
        MPI_Recv(own_data, kCount, MPI_INT, 1, kTag, one, MPI_STATUS_IGNORE);
    } else {
        const std::vector<std::byte> image = device.read();
        std::memcpy(values.data(), image.data(), kCount * sizeof(int));
        MPI_Recv(own_data, kCount, MPI_INT, 0, kTag, one, MPI_STATUS_IGNORE);
        MPI_Send(own_data, kCount, MPI_INT, 0, kTag, one);
    }
    expect("host and device memory together", values.front() == 3 && values.back() == 3, "wrong sum");
    for (MPI_Comm* const each : {&comm, &plain, &mixed, &one}) {
        MPI_Comm_free(each);
    }
}

// ---- memory of a kind -----------------------------------------------------------------------------------------------

awaken_memory memory_of(const void* pointer) {
    const auto ask = reinterpret_cast<awaken_memory (*)(const void*)>(dlsym(RTLD_DEFAULT, "awaken_memory_of"));
    return ask(pointer);
}

void allocation(Gpu& gpu) {
    constexpr int kCount = 5000;
    const std::vector<std::pair<std::string, awaken_memory>> kinds = {
        {vendor + ":device", AWAKEN_MEMORY_DEVICE},
        {vendor, AWAKEN_MEMORY_DEVICE},
        {vendor + ":host", AWAKEN_MEMORY_PINNED},
        {vendor + ":managed", AWAKEN_MEMORY_MANAGED},
        {"mpi:alloc_mem," + vendor + ":device", AWAKEN_MEMORY_DEVICE},
        {"system", AWAKEN_MEMORY_HOST},
        {"acme:device", AWAKEN_MEMORY_HOST},
        {vendor + ":texture", AWAKEN_MEMORY_HOST},
        {vendor == "cuda" ? "rocm:device" : "cuda:device", AWAKEN_MEMORY_HOST},
        {"mpi", AWAKEN_MEMORY_HOST},
        {vendor + ":device,system", AWAKEN_MEMORY_HOST},
    };
    MPI_Comm host_only = dup_with("mpi");
    for (const auto& [kind, memory] : kinds) {
        int* data = nullptr;
        const int code = MPI_Alloc_mem(kCount * sizeof(int), Hint(kProvided, kind), &data);
        expect("allocation of " + kind, code == MPI_SUCCESS && data != nullptr && memory_of(data) == memory,
               format("code %d, memory %d instead of %d", code, int(memory_of(data)), int(memory)));
        std::vector<int> values(kCount, 1);
        const auto write = [&] { gpu.write(data, values.data(), kCount * sizeof(int)); };
        const auto read = [&] { gpu.read(values.data(), data, kCount * sizeof(int)); };
        const bool host = memory == AWAKEN_MEMORY_HOST;
        host ? void(std::memcpy(data, values.data(), kCount * sizeof(int))) : write();
        // Memory that MPI has given is of the kind `mpi`, too, wherever it lies.
        MPI_Allreduce(MPI_IN_PLACE, data, kCount, MPI_INT, MPI_SUM, host_only);
        host ? void(std::memcpy(values.data(), data, kCount * sizeof(int))) : read();
        expect("traffic of " + kind, values.front() == 2 && values.back() == 2, "wrong sum");
        expect("the end of " + kind, MPI_Free_mem(data) == MPI_SUCCESS, "MPI_Free_mem");
        if (host) {
            continue;
        }
        // A busy device keeps its memory until a later call finds it idle.
        const double limit = MPI_Wtime() + kSlowness * kLimitSeconds;
        int found = 0;
        while (memory_of(data) != AWAKEN_MEMORY_HOST && MPI_Wtime() < limit) {
            MPI_Iprobe(MPI_ANY_SOURCE, kTag, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
            MPI_Bcast(&found, 1, MPI_INT, 0, MPI_COMM_SELF);
        }
        expect("gone: " + kind, memory_of(data) == AWAKEN_MEMORY_HOST, "the driver still knows the memory");
    }
    MPI_Comm_free(&host_only);
    void* none = nullptr;
    const int code = MPI_Alloc_mem(MPI_Aint{1} << 50, Hint(kProvided, vendor + ":device"), static_cast<void*>(&none));
    expect("too much device memory", error_class(code) == MPI_ERR_NO_MEM, error_text(code));
}

void check_assertion(Gpu& gpu) {
    Buffer device(gpu, Kind::device, 4096);
    MPI_Comm comm = dup_with("system", MPI_COMM_SELF);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(device.data(), 100, MPI_INT, 0, kTag, comm, &request);
    expect("device memory that is asserted away",
           error_class(code) == MPI_ERR_BUFFER && error_text(code).find(kAsserted) != std::string::npos,
           error_text(code));
    MPI_Comm_free(&comm);
    const auto refused = [&](const std::string& object, const int error) {
        expect("device memory that a " + object + " asserts away",
               error_class(error) == MPI_ERR_BUFFER &&
                   error_text(error).find(object + "'s " + kAsserted) != std::string::npos,
               error_text(error));
    };
    int word = 0;
    MPI_Win window;
    MPI_Win_create(&word, sizeof word, 1, Hint(kAsserted, "system"), MPI_COMM_SELF, &window);
    MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
    MPI_Win_fence(0, window);
    refused("window", MPI_Put(device.data(), 1, MPI_INT, 0, 0, 1, MPI_INT, window));
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    MPI_File file = open_file(Hint(kAsserted, "system"));
    MPI_File_set_errhandler(file, MPI_ERRORS_RETURN);
    refused("file", MPI_File_write_at(file, 0, device.data(), 100, MPI_INT, MPI_STATUS_IGNORE));
    MPI_File_close(&file);
}

}  // namespace

int main(int argc, char** argv) {
    std::string gpu_name = "none", kinds;
    bool check = false;
    for (int at = 1; at < argc; ++at) {
        const std::string argument = argv[at];
        if (argument.rfind("--gpu=", 0) == 0) {
            gpu_name = argument.substr(6);
        } else if (argument.rfind("--kinds=", 0) == 0) {
            kinds = argument.substr(8);
        } else if (argument == "--check") {
            check = true;
        } else {
            std::fprintf(stderr, "unknown argument %s\n", argument.c_str());
            return 125;
        }
    }
    vendor = gpu_name == "none" ? "" : gpu_name == "hip" ? "rocm" : "cuda";
    expected = kinds.empty() ? all_kinds() : kinds;
    first_calls();
    queries("before MPI_Init");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    queries("after MPI_Init");
    {
        if (check) {
            const std::unique_ptr<Gpu> gpu = Gpu::open(gpu_name);
            gpu->use_device(0);
            check_assertion(*gpu);
        } else {
            provided();
            if (kinds.empty()) {
#if RANKS_HAVE_MPI4
                sessions();
#endif
                asserted();
                asserted_by_windows();
                asserted_by_files();
            }
            if (kinds.empty() && !vendor.empty()) {
                const std::unique_ptr<Gpu> gpu = Gpu::open(gpu_name);
                gpu->use_device(world_rank % gpu->device_count());
                nothing_is_asked(*gpu);
                allocation(*gpu);
            }
        }
    }
    int all = 0;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (world_rank == 0 && all == 0) {
        std::printf("ok all\n");
    }
    MPI_Finalize();
    queries("after MPI_Finalize");
    return failures + all == 0 ? 0 : 1;
}
