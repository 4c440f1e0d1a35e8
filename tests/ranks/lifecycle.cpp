// SPDX-License-Identifier: Apache-2.0
// Programs that begin or end in an unusual way, one per run:
//
//     lifecycle late-load         the GPU runtime is loaded long after MPI_Init
//     lifecycle early-load        ... and before it
//     lifecycle late-visible      ... and it is said after traffic of host memory which devices are visible
//     lifecycle host-functions    messages in functions that a stream calls (CUDA)
//     lifecycle capture           the first messages and collectives while another thread captures a stream (CUDA)
//     lifecycle capture-here      ... and while their own thread does
//     lifecycle reset             the device is reset before MPI_Finalize
//     lifecycle sessions-only     MPI_Init is never called
//     lifecycle threads           MPI_THREAD_MULTIPLE: four threads, each with its communicator, device buffers
//     lifecycle shared-threads    ... and all on one communicator, told apart by tags
//     lifecycle failing-copies    some copy between device and host fails: an error, and no byte in the status
//     lifecycle failing-library   collectives by NCCL or RCCL, which a rank cannot begin: an error in all ranks, once
//     lifecycle communicators     collectives on many communicators in a row: prints how much is mapped
//     lifecycle level=N           MPI_Init_thread(N): prints what was provided
//     lifecycle loading=LIBRARY   another thread loads and unloads a library during the first MPI call and MPI_Init
//     lifecycle call-sites=LIBRARY  calls in turn from two places that share a slot of the loader's table of call sites
//     lifecycle host              no GPU use at all: no thread, no descriptor may remain
//
// Each prints `ok NAME` on rank 0, or `FAIL NAME: why`, and exits non-zero then.
#include <dirent.h>
#include <dlfcn.h>

#include <atomic>
#include <bitset>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "support.h"

using namespace ranks;

// Sanitizers make calls of jumps, which dlsym() below cannot do without.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RANKS_COUNT_SYMBOLS 0
#else
#define RANKS_COUNT_SYMBOLS 1
#endif

namespace {

std::atomic<int> failures{0};

void check(bool condition, const std::string& what) {
    if (condition) {
        return;
    }
    ++failures;
    std::fprintf(stderr, "FAIL lifecycle: %s\n", what.c_str());
}

/// As the loader does for a program that is linked with it: nothing is called.
void load_only(const std::string& gpu_name) {
    void* library = nullptr;
    for (const char* const name : {"libcuda.so.1", "libamdhip64.so.6", "libamdhip64.so.7", "libamdhip64.so.5"}) {
        const bool cuda = std::strncmp(name, "libcuda", 7) == 0;
        if (library == nullptr && cuda == (gpu_name == "cuda")) {
            library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        }
    }
    check(library != nullptr, "the GPU runtime can be loaded");
}

void check_mpi(int code, const char* call) {
    if (code != MPI_SUCCESS) {
        check(false, std::string(call) + ": " + error_text(code));
    }
}
#define MPI(call) check_mpi(call, #call)

std::set<std::string> entries(const char* folder) {
    std::set<std::string> names;
    if (DIR* const directory = opendir(folder)) {
        while (const dirent* const entry = readdir(directory)) {
            names.insert(entry->d_name);
        }
        closedir(directory);
    }
    return names;
}

/// Sends `rounds` messages around the ring and reduces them, on device memory where there is a GPU, and checks the
/// data.
void traffic(Gpu& gpu, MPI_Comm comm, int rounds, int tag = 3) {
    int rank = 0, size = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    constexpr std::size_t kCount = 5000;
    Buffer out(gpu, Kind::device, kCount * sizeof(int)), in(gpu, Kind::device, kCount * sizeof(int));
    for (int round = 0; round < rounds; ++round) {
        std::vector<int> values(kCount, rank * 1000 + round);
        out.write(values.data(), kCount * sizeof(int));
        MPI_Request request;
        MPI(MPI_Irecv(in.data(), kCount, MPI_INT, previous, tag, comm, &request));
        MPI(MPI_Send(out.data(), kCount, MPI_INT, next, tag, comm));
        MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
        const std::vector<std::byte> image = in.read();
        std::memcpy(values.data(), image.data(), image.size());
        for (const int value : values) {
            if (value != previous * 1000 + round) {
                check(false, format("round %d: %d instead of %d", round, value, previous * 1000 + round));
                break;
            }
        }
    }
    check(out.guard_damage().empty() && in.guard_damage().empty(), "guard bytes overwritten");
}

void reduction(Gpu& gpu, MPI_Comm comm) {
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

std::unique_ptr<Gpu> open_gpu(const std::string& name, int rank) {
    std::unique_ptr<Gpu> gpu = Gpu::open(name);
    if (gpu->device_count() > 0) {
        gpu->use_device(rank % gpu->device_count());
    }
    return gpu;
}

void threads(const std::string& gpu_name, int rank, bool shared) {
    constexpr int kThreads = 4;
    const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, rank);
    std::vector<MPI_Comm> comms(kThreads, MPI_COMM_WORLD);
    if (!shared) {
        for (MPI_Comm& comm : comms) {
            MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
        }
    }
    std::vector<std::thread> workers;
    for (int index = 0; index < kThreads; ++index) {
        workers.emplace_back([&, index] {
            try {
                // A new thread has no current context; the buffers' memory belongs to the rank's device.
                if (gpu->device_count() > 0) {
                    gpu->use_device(rank % gpu->device_count());
                }
                MPI_Comm comm = comms[static_cast<std::size_t>(index)];
                for (int round = 0; round < 10; ++round) {
                    traffic(*gpu, comm, 4, 10 + index);
                    // Collectives of several threads on one communicator are not legal.
                    if (!shared) {
                        reduction(*gpu, comm);
                    }
                }
            } catch (const std::exception& error) {
                check(false, error.what());
            }
        });
    }
    for (std::thread& worker : workers) {
        worker.join();
    }
    if (!shared) {
        for (MPI_Comm& comm : comms) {
            MPI(MPI_Comm_free(&comm));
        }
    }
}

/// Loads and unloads a library in another thread, as long as it lives. A second one would keep the library loaded.
class Loading {
  public:
    explicit Loading(const std::string& library)
        : _thread([this, library] {
              while (!_over) {
                  void* const handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
                  check(handle != nullptr, "the library cannot be loaded");
                  if (handle != nullptr) {
                      dlclose(handle);
                  }
                  ++_rounds;
              }
          }) {
        while (_rounds < 20) {
            std::this_thread::yield();
        }
    }
    ~Loading() {
        _over = true;
        _thread.join();
    }
    Loading(const Loading&) = delete;
    Loading& operator=(const Loading&) = delete;

  private:
    std::atomic<bool> _over{false};
    std::atomic<int> _rounds{0};
    std::thread _thread;
};

/// Symbols that were asked for by name in this process.
std::atomic<int> asked_symbols{0};

/// Looking up where a call comes from takes a fraction of a millisecond, in which the layer asks whether the caller's
/// library defines each of MPI's functions. Of ten thousand calls, the first two do. `library` is call_sites.cpp.
void call_sites(const std::string& library) {
    constexpr int kCalls = 10000;
    using Probe = int (*)();
    void* const handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) {
        throw std::runtime_error(dlerror());
    }
    const auto here = reinterpret_cast<Probe>(dlsym(handle, "probe_here"));
    const auto there = reinterpret_cast<Probe>(dlsym(handle, "probe_there"));
    if (here == nullptr || there == nullptr) {
        throw std::runtime_error(dlerror());
    }
    const int start = asked_symbols;
    int problems = here() + there();
    const int first = asked_symbols - start;
    for (int call = 2; call < kCalls; call += 2) {
        problems += here() + there();
    }
    const int later = asked_symbols - start - first;
    check(problems == 0, "a call failed, or found a message that nobody sent");
#if RANKS_COUNT_SYMBOLS
    check(first > 0, "no look-up was seen");
    check(later <= 10 * first,
          format("%d calls from two places in turn are looked up more than once: they ask for %d symbols, after %d",
                 kCalls, later, first));
#else
    static_cast<void>(later);
#endif
}

/// One message in a function that the default stream calls.
struct HostCall {
    void* buffer;
    int bytes, rank, error;

    static void run(void* self) {
        auto& call = *static_cast<HostCall*>(self);
        const int peer = 1 - call.rank;
        call.error = call.rank == 0
                         ? MPI_Send(call.buffer, call.bytes, MPI_BYTE, peer, 4, MPI_COMM_WORLD)
                         : MPI_Recv(call.buffer, call.bytes, MPI_BYTE, peer, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
};

/// The driver may not be called from there, so that host memory goes as without a GPU, and device memory is an error.
void host_functions(Gpu& gpu, const int rank) {
    using Launch = int (*)(void*, void (*)(void*), void*);
    auto* const launch =
        reinterpret_cast<Launch>(dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuLaunchHostFunc"));
    const auto refused = [&] {
        HostCall call{gpu.allocate(Kind::device, 64), 64, rank, MPI_SUCCESS};
        if (rank == 0) {
            check(launch(nullptr, &HostCall::run, &call) == 0, "cuLaunchHostFunc");
            gpu.synchronize();
            check(call.error != MPI_SUCCESS, "device memory in a host function is an error");
            char text[MPI_MAX_ERROR_STRING] = {};
            int length = 0;
            MPI_Error_string(call.error, text, &length);
            check(std::strstr(text, "host function") != nullptr, std::string("the error says why: ") + text);
        }
        gpu.free(Kind::device, call.buffer);
    };
    refused();  // before the layer has seen any memory
    for (const int bytes : {64, 60'000, 2'000'000}) {
        for (const Kind kind : {Kind::host, Kind::pinned, Kind::managed}) {
            void* const buffer = gpu.allocate(kind, static_cast<std::size_t>(bytes));
            std::memset(buffer, rank == 0 ? 'a' : 'z', static_cast<std::size_t>(bytes));
            HostCall call{buffer, bytes, rank, -1};
            check(launch(nullptr, &HostCall::run, &call) == 0, "cuLaunchHostFunc");
            gpu.synchronize();
            check(call.error == MPI_SUCCESS, "host memory in a host function");
            const std::string_view text(static_cast<const char*>(buffer), static_cast<std::size_t>(bytes));
            check(text.find_first_not_of('a') == std::string_view::npos, "the message's data");
            gpu.free(kind, buffer);
        }
        // Messages of device memory meanwhile, from which each side guesses how the next ones go.
        traffic(gpu, MPI_COMM_WORLD, 2);
    }
    refused();
    traffic(gpu, MPI_COMM_WORLD, 2);
}

/// A capture of a blocking stream of the current context into a graph, in the global mode, which is the strictest. No
/// question of the driver's recognises that of a non-blocking one.
class Capture {
  public:
    Capture() {
        check(driver("cuStreamCreate", &_stream, 0U) == 0, "cuStreamCreate");
        check(driver("cuStreamBeginCapture_v2", _stream, 0) == 0, "cuStreamBeginCapture");
    }
    void end() {
        void* graph = nullptr;
        const int code = driver("cuStreamEndCapture", _stream, &graph);
        check(code == 0, format("the capture is spoiled: cuStreamEndCapture answers %d", code));
    }

  private:
    template <class... Arguments>
    static int driver(const char* const name, Arguments... arguments) {
        void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        return reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name))(arguments...);
    }
    void* _stream = nullptr;
};

/// Small and large messages, with gaps too, and collectives of device memory, which the layer meets for the first time.
class FirstCalls {
  public:
    FirstCalls(Gpu& gpu, const int rank) : _rank(rank) {
        for (const int count : {20, 50'000, 800'000}) {
            const std::vector<double> values(static_cast<std::size_t>(count), rank + 1);
            for (std::vector<Buffer>* const buffers : {&_sent, &_received}) {
                buffers->emplace_back(gpu, Kind::device, values.size() * sizeof(double));
                buffers->back().write(values.data(), values.size() * sizeof(double));
            }
        }
        MPI(MPI_Type_vector(10'000, 2, 5, MPI_DOUBLE, &_pairs));
        MPI(MPI_Type_commit(&_pairs));
    }
    ~FirstCalls() { MPI_Type_free(&_pairs); }
    FirstCalls(const FirstCalls&) = delete;
    FirstCalls& operator=(const FirstCalls&) = delete;
    void run() {
        const int peer = 1 - _rank;
        for (std::size_t each = 0; each < _sent.size(); ++each) {
            void *const from = _sent[each].data(), *const to = _received[each].data();
            const auto count = static_cast<int>(_sent[each].size() / sizeof(double));
            MPI(MPI_Sendrecv(from, count, MPI_DOUBLE, peer, 1, to, count, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE));
            MPI(MPI_Allreduce(MPI_IN_PLACE, to, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
        }
        void *const from = _sent.back().data(), *const to = _received.back().data();
        MPI(MPI_Sendrecv(from, 1, _pairs, peer, 2, to, 1, _pairs, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    }
    void check_data() const {
        for (const Buffer& buffer : _received) {
            const std::vector<std::byte> image = buffer.read();
            std::vector<double> values(image.size() / sizeof(double));
            std::memcpy(values.data(), image.data(), image.size());
            const bool pairs = &buffer == &_received.back();
            for (std::size_t at = 0; at < values.size(); ++at) {
                const bool in_pair = pairs && at < 50'000 && at % 5 < 2;
                const double expected = in_pair ? 2 - _rank : 3;
                if (values[at] != expected) {
                    check(false, format("element %zu of %zu is %g, not %g", at, values.size(), values[at], expected));
                    break;
                }
            }
        }
    }

  private:
    const int _rank;
    std::vector<Buffer> _sent, _received;
    MPI_Datatype _pairs = MPI_DATATYPE_NULL;
};

void captured(Gpu& gpu, const int rank, const bool here) {
    FirstCalls calls(gpu, rank);
    if (here) {
        Capture capture;
        calls.run();
        capture.end();
    } else {
        std::atomic<bool> begun{false}, over{false};
        std::thread other([&] {
            gpu.use_device(rank % gpu.device_count());
            Capture capture;
            begun = true;
            begun.notify_one();
            over.wait(false);
            capture.end();
        });
        begun.wait(false);
        calls.run();
        over = true;
        over.notify_one();
        other.join();
    }
    calls.check_data();
}

#if RANKS_HAVE_MPI4
int sessions_only(const std::string& gpu_name) {
    MPI_Session session;
    MPI_Group group;
    MPI_Comm comm;
    MPI(MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session));
    MPI(MPI_Group_from_session_pset(session, "mpi://WORLD", &group));
    MPI(MPI_Comm_create_from_group(group, "awaken.lifecycle", MPI_INFO_NULL, MPI_ERRORS_RETURN, &comm));
    MPI(MPI_Group_free(&group));
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    {
        const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, rank);
        traffic(*gpu, comm, 5);
        reduction(*gpu, comm);
        // Requests of every sort need whatever the layer builds at the start.
        Buffer out(*gpu, Kind::device, 800), in(*gpu, Kind::device, 800);
        MPI_Request requests[2];
        MPI(MPI_Recv_init(in.data(), 800, MPI_BYTE, rank, 1, comm, &requests[0]));
        MPI(MPI_Send_init(out.data(), 800, MPI_BYTE, rank, 1, comm, &requests[1]));
        for (int round = 0; round < 3; ++round) {
            MPI(MPI_Startall(2, requests));
            MPI(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        }
        MPI(MPI_Request_free(&requests[0]));
        MPI(MPI_Request_free(&requests[1]));
        check(in.read() == out.read(), "the persistent message to myself");
        // The layer asks the MPI about the type, where MPI_COMM_SELF is not valid.
        MPI_Datatype gaps;
        MPI(MPI_Type_vector(10, 4, 8, MPI_BYTE, &gaps));
        MPI(MPI_Type_commit(&gaps));
        MPI(MPI_Sendrecv(out.data(), 1, gaps, rank, 2, in.data(), 1, gaps, rank, 2, comm, MPI_STATUS_IGNORE));
        MPI(MPI_Type_free(&gaps));
    }
    MPI(MPI_Comm_free(&comm));
    MPI(MPI_Session_finalize(&session));
    if (rank == 0 && failures == 0) {
        std::printf("ok sessions-only\n");
    }
    return failures == 0 ? 0 : 1;
}
#endif

/// Of message `number` from `rank`.
std::vector<std::byte> numbered_content(int rank, int number, std::size_t bytes) {
    std::vector<std::byte> content(bytes);
    std::uint64_t word = static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint64_t>(number + 1);
    for (std::size_t at = 0; at + sizeof word <= bytes; at += sizeof word) {
        word = word * 6364136223846793005u + 1442695040888963407u;
        std::memcpy(content.data() + at, &word, sizeof word);
    }
    return content;
}

/// Messages that are larger than the node's shared memory, many that are so together, and the MPI's own beside them.
/// An even number of ranks.
void little_shared_memory(Gpu& gpu, int rank) {
    constexpr int kLarge = 80 << 20, kMany = 16, kEach = 3 << 20, kHost = 4 << 20;
    int size = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int other = rank ^ 1;
    Buffer out(gpu, Kind::device, kLarge), in(gpu, Kind::device, kLarge);
    // Each sends before it receives; then the receivers are in a barrier until the senders are through.
    for (int round = 0; round < 2; ++round) {
        const bool sends = round == 0 || rank % 2 == 0, receives = round == 0 || rank % 2 != 0;
        out.write(numbered_content(rank, round, kLarge).data(), kLarge);
        MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        if (receives) {
            MPI(MPI_Irecv(in.data(), kLarge, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[0]));
        }
        if (sends && round == 0) {
            MPI(MPI_Isend(out.data(), kLarge, MPI_BYTE, other, 1, MPI_COMM_WORLD, &requests[1]));
        }
        if (sends && round == 1) {
            MPI(MPI_Send(out.data(), kLarge, MPI_BYTE, other, 1, MPI_COMM_WORLD));
            out.write(numbered_content(rank, 9, kLarge).data(), kLarge);
        }
        if (round == 1) {
            MPI(MPI_Barrier(MPI_COMM_WORLD));
        }
        MPI(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        if (receives) {
            check(in.read() == numbered_content(other, round, kLarge), format("large message %d", round));
        }
    }
    std::vector<MPI_Request> requests;
    std::byte* const from = static_cast<std::byte*>(out.data());
    out.write(numbered_content(rank, 5, kLarge).data(), kLarge);
    for (int at = 0; at < kMany; ++at) {
        MPI(MPI_Irecv(static_cast<std::byte*>(in.data()) + at * kEach, kEach, MPI_BYTE, other, at, MPI_COMM_WORLD,
                      &requests.emplace_back()));
    }
    for (int at = 0; at < kMany; ++at) {
        MPI(MPI_Isend(from + at * kEach, kEach, MPI_BYTE, other, at, MPI_COMM_WORLD, &requests.emplace_back()));
    }
    MPI(MPI_Waitall(2 * kMany, requests.data(), MPI_STATUSES_IGNORE));
    std::vector<std::byte> all = in.read(), expected = numbered_content(other, 5, kLarge);
    all.resize(kMany * kEach);
    expected.resize(kMany * kEach);
    check(all == expected, "many messages");
    std::vector<std::byte> mine(static_cast<std::size_t>(size) * kHost, std::byte(rank)), theirs(mine.size());
    for (int round = 0; round < 5; ++round) {
        MPI(MPI_Alltoall(mine.data(), kHost, MPI_BYTE, theirs.data(), kHost, MPI_BYTE, MPI_COMM_WORLD));
    }
    check(theirs[static_cast<std::size_t>(other) * kHost] == std::byte(other), "host memory");
}

/// Messages from host memory to the GPU, of this process to itself, until one fails, and one more.
void failing_copies(Gpu& gpu, int rank) {
    constexpr int kBytes = 200000;
    void* const device = gpu.allocate(Kind::device, kBytes);
    std::vector<std::byte> host(kBytes);
    int failed = 0;
    for (int message = 0; message < 40 && failed < 2; ++message) {
        MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        MPI_Status statuses[2] = {};
        int codes[2] = {};
        MPI(MPI_Irecv(device, kBytes, MPI_BYTE, rank, 5, MPI_COMM_WORLD, &requests[0]));
        if (MPI_Isend(host.data(), kBytes, MPI_BYTE, rank, 5, MPI_COMM_WORLD, &requests[1]) != MPI_SUCCESS) {
            MPI(MPI_Cancel(&requests[0]));
            MPI(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
            ++failed;
            continue;
        }
        for (int at : {1, 0}) {
            codes[at] = MPI_Wait(&requests[at], &statuses[at]);
        }
        int count = -1;
        MPI(MPI_Get_count(&statuses[0], MPI_BYTE, &count));
        check(count == (codes[0] == MPI_SUCCESS ? kBytes : 0), "a receive with the outcome " + error_text(codes[0]) +
                                                                   " says that " + std::to_string(count) +
                                                                   " bytes came");
        failed += codes[0] != MPI_SUCCESS ? 1 : 0;
    }
    check(failed > 0, "no copy failed");
}

/// Makes and frees communicators, with a collective on each. Prints how many places of files in shared memory this
/// process has had mapped meanwhile.
void communicators(int rank) {
    constexpr int kCommunicators = 100;
    std::set<std::string> places;
    for (int made = 0; made < kCommunicators; ++made) {
        MPI_Comm comm = MPI_COMM_NULL;
        MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
        int sum = 0;
        MPI(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm));
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
            if (const std::size_t name = line.find("/dev/shm/"); name != std::string::npos) {
                std::string offset;
                std::istringstream(line.substr(line.find(' ') + 6)) >> offset;  // after the range and what is allowed
                places.insert(line.substr(name) + offset);
            }
        }
        MPI(MPI_Comm_free(&comm));
    }
    if (rank == 0) {
        std::printf("mapped %zu places for %d communicators\n", places.size(), kCommunicators);
    }
}

/// Allreduces on communicators of which the library connects none: all ranks are told, of the same ones, and what
/// follows goes another way: in levels, whose columns may have to find out once more. What the library held on to is
/// left behind by then, and ends.
void failing_library(Gpu& gpu) {
    constexpr int kCount = 60000, kCommunicators = 3, kRounds = 8;
    std::vector<std::size_t> threads;
    for (int made = 0; made < kCommunicators; ++made) {
        MPI_Comm comm = MPI_COMM_NULL;
        MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
        int size = 0;
        unsigned failed = 0;  // a bit for each round
        MPI_Comm_size(comm, &size);
        for (int round = 0; round < kRounds; ++round) {
            Buffer data(gpu, Kind::device, kCount * sizeof(int));
            std::vector<int> values(kCount, round + 1);
            data.write(values.data(), kCount * sizeof(int));
            if (MPI_Allreduce(MPI_IN_PLACE, data.data(), kCount, MPI_INT, MPI_SUM, comm) != MPI_SUCCESS) {
                failed |= 1U << round;
                continue;
            }
            const std::vector<std::byte> image = data.read();
            std::memcpy(values.data(), image.data(), image.size());
            check(values.front() == size * (round + 1) && values.back() == values.front(),
                  format("wrong sum in round %d", round));
        }
        unsigned in_all = 0, in_any = 0;
        MPI(MPI_Allreduce(&failed, &in_all, 1, MPI_UNSIGNED, MPI_BAND, comm));
        MPI(MPI_Allreduce(&failed, &in_any, 1, MPI_UNSIGNED, MPI_BOR, comm));
        const auto rounds = std::bitset<kRounds>(failed).count();
        check(in_all == in_any && (rounds == 1 || rounds == 2),
              format("rounds that failed here: %#x, in any rank: %#x, in all: %#x", failed, in_any, in_all));
        MPI(MPI_Comm_free(&comm));
        threads.push_back(entries("/proc/self/task").size());
    }
    std::snprintf(detail::running_case, sizeof detail::running_case, "threads of %d communicators that are gone",
                  kCommunicators);
    detail::set_watchdog(kSlowness * kLimitSeconds);
    while (entries("/proc/self/task").size() > threads.front()) {
        std::this_thread::yield();
    }
}

}  // namespace

#if RANKS_COUNT_SYMBOLS
// Comes before the C library's for all in this process. RTLD_NEXT is what comes after the caller, which the jump at the
// end leaves as it is.
extern "C" __attribute__((visibility("default"), optimize("optimize-sibling-calls"))) void* dlsym(void* handle,
                                                                                                  const char* name) {
    using Find = void* (*)(void*, const char*);
    static const auto find = [] {
        void* found = nullptr;
        for (const char* const version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
            found = found == nullptr ? dlvsym(RTLD_DEFAULT, "dlsym", version) : found;
        }
        return reinterpret_cast<Find>(found);
    }();
    ++asked_symbols;
    return find(handle, name);
}
#endif

int main(int argc, char** argv) {
    const std::string mode = argc > 1 ? argv[1] : "";
    std::string gpu_name = "auto";
    if (argc > 2 && std::strncmp(argv[2], "--gpu=", 6) == 0) {
        gpu_name = argv[2] + 6;
    }
    std::snprintf(detail::running_case, sizeof detail::running_case, "%s", mode.c_str());
    signal(SIGALRM, detail::say_what_hangs);
    detail::set_watchdog(kSlowness * kLimitSeconds);

#if RANKS_HAVE_MPI4
    if (mode == "sessions-only") {
        return sessions_only(gpu_name);
    }
#endif
    const std::set<std::string> threads_before = entries("/proc/self/task");
    const std::set<std::string> descriptors_before = entries("/proc/self/fd");
    std::unique_ptr<Gpu> early;
    if (mode == "early-load") {
        early = open_gpu(gpu_name, 0);
    }
    if (mode == "late-visible") {
        load_only(gpu_name);
    }
    std::unique_ptr<Loading> loading;
    const bool loads = mode.rfind("loading=", 0) == 0;
    if (loads) {
        loading = std::make_unique<Loading>(mode.substr(std::strlen("loading=")));
    }
    int initialised = -1, finalised = -1;
    MPI(MPI_Initialized(&initialised));
    MPI(MPI_Finalized(&finalised));
    check(initialised == 0 && finalised == 0, "neither initialised nor finalised at the start");

    int wanted = MPI_THREAD_SINGLE, provided = -1;
    const bool threaded = mode == "threads" || mode == "shared-threads", in_streams = mode == "host-functions";
    const bool captures = mode == "capture" || mode == "capture-here";
    if (mode.rfind("level=", 0) == 0) {
        const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
        wanted = levels[std::stoi(mode.substr(6)) % 4];
        MPI(MPI_Init_thread(&argc, &argv, wanted, &provided));
    } else if (threaded || loads || in_streams || captures) {
        wanted = MPI_THREAD_MULTIPLE;
        MPI(MPI_Init_thread(&argc, &argv, wanted, &provided));
    } else {
        MPI(MPI_Init(&argc, &argv));
    }
    loading.reset();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    detail::running_rank = rank;
    bool known = true;
    try {
        NoGpu host;
        if (mode == "late-load") {
            traffic(host, MPI_COMM_WORLD, 3);
            reduction(host, MPI_COMM_WORLD);
            const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, rank);
            traffic(*gpu, MPI_COMM_WORLD, 3);
            reduction(*gpu, MPI_COMM_WORLD);
        } else if (mode == "late-visible") {
            traffic(host, MPI_COMM_WORLD, 3);
            reduction(host, MPI_COMM_WORLD);
            const char* const variable = gpu_name == "cuda" ? "CUDA_VISIBLE_DEVICES" : "HIP_VISIBLE_DEVICES";
            setenv(variable, std::to_string(rank % 2).c_str(), 1);
            const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, 0);
            check(gpu->device_count() == 1, "the device that was made visible is the only one");
            traffic(*gpu, MPI_COMM_WORLD, 3);
            reduction(*gpu, MPI_COMM_WORLD);
        } else if (in_streams && gpu_name == "cuda" && provided == MPI_THREAD_MULTIPLE) {
            host_functions(*open_gpu(gpu_name, rank), rank);
        } else if (in_streams) {
            if (rank == 0) {
                std::printf("skip %s: needs CUDA and MPI_THREAD_MULTIPLE\n", mode.c_str());
            }
        } else if (captures) {
            captured(*open_gpu(gpu_name, rank), rank, mode == "capture-here");
        } else if (mode == "early-load") {
            if (early->device_count() > 0) {
                early->use_device(rank % early->device_count());
            }
            traffic(*early, MPI_COMM_WORLD, 3);
            reduction(*early, MPI_COMM_WORLD);
        } else if (mode == "reset") {
            const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, rank);
            traffic(*gpu, MPI_COMM_WORLD, 3);
            reduction(*gpu, MPI_COMM_WORLD);
            MPI(MPI_Barrier(MPI_COMM_WORLD));
            gpu->reset();
            // Host memory still works.
            traffic(host, MPI_COMM_WORLD, 2);
            if (gpu_name == "cuda") {
                // What the layer has made on the device is gone. Whoever goes on with the GPU is told, and goes on with
                // everything else.
                constexpr std::size_t kBytes = 4096;
                gpu->use_device(0);
                MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
                void* const anew = gpu->allocate(Kind::device, kBytes);
                const int error =
                    MPI_Sendrecv(anew, kBytes / 2, MPI_BYTE, 0, 1, static_cast<std::byte*>(anew) + kBytes / 2,
                                 kBytes / 2, MPI_BYTE, 0, 1, MPI_COMM_SELF, MPI_STATUS_IGNORE);
                check(error != MPI_SUCCESS, "device memory after the reset is refused with an error");
                traffic(host, MPI_COMM_WORLD, 2);
            }
        } else if (mode == "little-shared-memory") {
            const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, rank);
            little_shared_memory(*gpu, rank);
        } else if (mode == "failing-copies") {
            const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, rank);
            failing_copies(*gpu, rank);
        } else if (mode == "communicators") {
            communicators(rank);
        } else if (mode == "failing-library") {
            const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, rank);
            failing_library(*gpu);
        } else if (threaded) {
            if (provided == MPI_THREAD_MULTIPLE) {
                threads(gpu_name, rank, mode == "shared-threads");
            } else if (rank == 0) {
                std::printf("skip %s: the MPI does not provide MPI_THREAD_MULTIPLE\n", mode.c_str());
            }
        } else if (mode.rfind("level=", 0) == 0) {
            int queried = -1, main_thread = 0;
            MPI(MPI_Query_thread(&queried));
            MPI(MPI_Is_thread_main(&main_thread));
            check(queried == provided && main_thread != 0, "Query_thread agrees with Init_thread");
            if (rank == 0) {
                std::printf("wanted %d provided %d\n", wanted, provided);
            }
        } else if (mode.rfind("call-sites=", 0) == 0) {
            call_sites(mode.substr(std::strlen("call-sites=")));
        } else if (mode == "host" || loads) {
            traffic(host, MPI_COMM_WORLD, 10);
            reduction(host, MPI_COMM_WORLD);
        } else {
            known = false;
            std::fprintf(stderr, "lifecycle: unknown mode %s\n", mode.c_str());
        }
    } catch (const std::exception& error) {
        check(false, error.what());
    }
    int mine = failures, sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI(MPI_Finalize());
    MPI(MPI_Initialized(&initialised));
    MPI(MPI_Finalized(&finalised));
    check(initialised == 1 && finalised == 1, "initialised and finalised at the end");
    if (mode == "host" && rank == 0) {
        // Compared by the caller with a run of the same program without the layer.
        std::printf("threads left %zu descriptors left %zu\n",
                    entries("/proc/self/task").size() - threads_before.size(),
                    entries("/proc/self/fd").size() - descriptors_before.size());
    }
    if (rank == 0 && sum == 0 && failures == 0 && known) {
        std::printf("ok %s\n", mode.c_str());
    }
    return sum == 0 && failures == 0 && known ? 0 : 1;
}
