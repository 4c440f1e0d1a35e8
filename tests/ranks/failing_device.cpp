// SPDX-License-Identifier: Apache-2.0
// A GPU that fails in one rank (AWAKEN_TEST_FAULTS=copy-error=N): from that rank's N-th copy on, its driver refuses
// everything. All messages, and all calls that ranks make together, end in all of them all the same. The rank hears of
// each call that needs its GPU. Where no rank hears of anything, the data is right, and what lacks the rank's data
// looks like no result.
//
//     failing_device [--gpu=KIND] [--file=PATH] [--messages] [--told]
//
// `--messages`: messages instead of calls of all ranks. `--told`: every process takes RTS messages from every other, so
// that receivers hear of messages that could not be sent.
//
// Prints `ok failing_device` on rank 0, or `FAIL failing_device: why`, and exits non-zero then.
#include <cmath>

#include "support.h"

using namespace ranks;

namespace {

constexpr int kElements = 3000;
constexpr double kUntouched = -1;

int failures = 0;

void check(const bool condition, const std::string& what) {
    if (!condition) {
        ++failures;
        std::fprintf(stderr, "FAIL failing_device: %s\n", what.c_str());
    }
}

/// In host memory, which no GPU can keep from working.
bool all_say(const bool own) {
    int mine = own ? 1 : 0, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all != 0;
}

/// Whether the program's own use of the GPU succeeds.
template <class Use>
bool works(const Use& use) {
    try {
        use();
        return true;
    } catch (const std::runtime_error&) {
        return false;
    }
}

/// A collective in its forms; `expected` is each element of the result's first block, NaN where this rank has none.
struct Collective {
    const char* name;
    double expected;
    std::function<int()> blocking;
    std::function<int(MPI_Request*)> nonblocking, persistent;
};

class Job {
  public:
    Job(Gpu& gpu, const int rank, const int size)
        : _gpu(gpu), _rank(rank), _size(size), _count(static_cast<std::size_t>(kElements * size)) {
        for (double** const memory : {&_in, &_out}) {
            *memory = static_cast<double*>(gpu.allocate(Kind::device, _count * sizeof(double)));
        }
    }

    void messages(bool told);
    void collectives();
    void windows();
    void files(const std::string& path);

  private:
    /// Fills the buffers. Keeps whether the device has failed by now.
    void begin(const std::string& name, const double before = kUntouched) {
        std::snprintf(detail::running_case, sizeof detail::running_case, "%s", name.c_str());
        detail::set_watchdog(kSlowness * kLimitSeconds);
        _before = before;
        _worked = fill(_in, _rank + 1) && fill(_out, before) && works([&] { _gpu.synchronize(); });
    }
    bool fill(double* const memory, const double value) {
        const std::vector<double> values(_count, value);
        return works([&] { _gpu.write(memory, values.data(), _count * sizeof(double)); });
    }
    /// This rank's outcome of what has begun. `told`: a rank that lacks data has heard of it.
    void end(const int code, const double expected, const bool told = false) {
        const char* const name = detail::running_case;
        check(_worked || code != MPI_SUCCESS, format("%s says nothing of the failed GPU", name));
        const bool all_well = all_say(code == MPI_SUCCESS);
        double first = 0;
        if (!std::isnan(expected) && code == MPI_SUCCESS && works([&] { _gpu.read(&first, _out, sizeof first); })) {
            const bool no_result = std::isnan(first) || first == _before;
            check(first == expected || (!all_well && no_result && !told),
                  format("%s gives %g instead of %g, and %s", name, first, expected,
                         all_well ? "no rank hears of it" : "some rank has failed"));
        }
    }
    void in_all_forms(const Collective& collective);

    Gpu& _gpu;
    const int _rank, _size;
    const std::size_t _count;
    double *_in = nullptr, *_out = nullptr;
    double _before = kUntouched;  ///< in `_out`
    bool _worked = true;
};

/// The error that the program hears of first, when the request is complete.
int complete(const int code, MPI_Request* const request) {
    const int last = *request != MPI_REQUEST_NULL ? MPI_Wait(request, MPI_STATUS_IGNORE) : MPI_SUCCESS;
    return code != MPI_SUCCESS ? code : last;
}

/// A receive and a send, both of which have begun.
int complete_both(const int code, std::array<MPI_Request, 2> requests) {
    const int received = complete(code, &requests[0]);
    const int sent = complete(MPI_SUCCESS, &requests[1]);
    return received != MPI_SUCCESS ? received : sent;
}

/// Each rank sends to the next one, and receives from the one before.
void Job::messages(const bool told) {
    const MPI_Comm world = MPI_COMM_WORLD;
    const MPI_Datatype type = MPI_DOUBLE;
    const int next = (_rank + 1) % _size, previous = (_rank + _size - 1) % _size;
    MPI_Status* const ignored = MPI_STATUS_IGNORE;
    double *const in = _in, *const out = _out;
    MPI_Datatype gaps = MPI_DATATYPE_NULL;  // pairs with as much room between them
    MPI_Type_vector(kElements / 4, 2, 4, MPI_DOUBLE, &gaps);
    MPI_Type_commit(&gaps);
    std::vector<std::byte> attached(_count * sizeof(double) + MPI_BSEND_OVERHEAD);
    const auto exchange = [&](const std::string& name, const bool hears, const auto& call, const double before) {
        begin(name, before);
        end(call(), previous + 1, hears);
    };
    const auto begun = [](const auto& receive, const auto& send) {
        std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        const int receiving = receive(&requests[0]);
        const int sending = send(&requests[1]);
        return complete_both(receiving != MPI_SUCCESS ? receiving : sending, requests);
    };
    const auto persistent = [](const auto& receive, const auto& send) {
        std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        receive(&requests[0]);
        send(&requests[1]);
        const int started = MPI_Startall(2, requests.data());
        const int code = complete_both(started, requests);
        for (MPI_Request& each : requests) {
            MPI_Request_free(&each);
        }
        return code;
    };
    // Only after a first use of its GPU does a process say that it takes RTS messages, and in a later call.
    exchange(
        "the first message", false,
        [&] { return MPI_Sendrecv(in, kElements, type, next, 0, out, kElements, type, previous, 0, world, ignored); },
        kUntouched);
    struct Data {
        const char* name;
        int count;
        MPI_Datatype type;
    };
    for (const auto& [name, n, of] : {Data{"", kElements, type}, Data{", short", 3, type}, Data{", gaps", 1, gaps}}) {
        const auto each = [&exchange, suffix = std::string(name)](const char* function, const bool hears,
                                                                  const auto& call, const double before) {
            exchange(function + suffix, hears, call, before);
        };
        const auto receive = [&, n = n, of = of](MPI_Request* request) {
            return MPI_Irecv(out, n, of, previous, 0, world, request);
        };
        each(
            "MPI_Sendrecv", told,
            [&, n = n, of = of] { return MPI_Sendrecv(in, n, of, next, 0, out, n, of, previous, 0, world, ignored); },
            kUntouched);
        each(
            "MPI_Sendrecv_replace", told,
            [&, n = n, of = of] { return MPI_Sendrecv_replace(out, n, of, next, 0, previous, 0, world, ignored); },
            _rank + 1);
        each(
            "MPI_Isend", told,
            [&, n = n, of = of] {
                return begun(receive,
                             [&](MPI_Request* request) { return MPI_Isend(in, n, of, next, 0, world, request); });
            },
            kUntouched);
        each(
            "MPI_Issend", told,
            [&, n = n, of = of] {
                return begun(receive,
                             [&](MPI_Request* request) { return MPI_Issend(in, n, of, next, 0, world, request); });
            },
            kUntouched);
        each(
            "MPI_Send", told,
            [&, n = n, of = of] {
                std::array<int, 2> codes{};  // rank 0 begins
                for (const int step : {_rank == 0 ? 0 : 1, _rank == 0 ? 1 : 0}) {
                    codes.at(static_cast<std::size_t>(step)) = step == 0
                                                                   ? MPI_Send(in, n, of, next, 0, world)
                                                                   : MPI_Recv(out, n, of, previous, 0, world, ignored);
                }
                return codes[0] != MPI_SUCCESS ? codes[0] : codes[1];
            },
            kUntouched);
        each(
            "MPI_Bsend", false,
            [&, n = n, of = of] {
                MPI_Buffer_attach(attached.data(), static_cast<int>(attached.size()));
                const int sent = MPI_Bsend(in, n, of, next, 0, world);
                const int received = MPI_Recv(out, n, of, previous, 0, world, ignored);
                void* address = nullptr;
                int bytes = 0;
                MPI_Buffer_detach(&address, &bytes);
                return sent != MPI_SUCCESS ? sent : received;
            },
            kUntouched);
        each(
            "MPI_Send_init", told,
            [&, n = n, of = of] {
                return persistent(
                    [&](MPI_Request* request) { return MPI_Recv_init(out, n, of, previous, 0, world, request); },
                    [&](MPI_Request* request) { return MPI_Send_init(in, n, of, next, 0, world, request); });
            },
            kUntouched);
#if RANKS_HAVE_MPI4
        each(
            "MPI_Isendrecv", told,
            [&, n = n, of = of] {
                MPI_Request request = MPI_REQUEST_NULL;
                const int code = MPI_Isendrecv(in, n, of, next, 0, out, n, of, previous, 0, world, &request);
                return complete(code, &request);
            },
            kUntouched);
        each(
            "MPI_Isendrecv_replace", told,
            [&, n = n, of = of] {
                MPI_Request request = MPI_REQUEST_NULL;
                const int code = MPI_Isendrecv_replace(out, n, of, next, 0, previous, 0, world, &request);
                return complete(code, &request);
            },
            _rank + 1);
        each(
            "MPI_Psend_init", false,
            [&, n = n, of = of] {
                std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
                MPI_Precv_init(out, 1, n, of, previous, 0, world, MPI_INFO_NULL, &requests[0]);
                MPI_Psend_init(in, 1, n, of, next, 0, world, MPI_INFO_NULL, &requests[1]);
                const int started = MPI_Startall(2, requests.data());
                const int ready = MPI_Pready(0, requests[1]);
                const int code = complete_both(started != MPI_SUCCESS ? started : ready, requests);
                for (MPI_Request& request : requests) {
                    MPI_Request_free(&request);
                }
                return code;
            },
            kUntouched);
#endif
    }
    MPI_Type_free(&gaps);
}

void Job::in_all_forms(const Collective& collective) {
    const std::string name = collective.name;
    begin(name);
    end(collective.blocking(), collective.expected);
    begin(name + ", nonblocking");
    MPI_Request request = MPI_REQUEST_NULL;
    const int begun = collective.nonblocking(&request);
    end(complete(begun, &request), collective.expected);
    if (collective.persistent == nullptr) {
        return;
    }
    begin(name + ", persistent");
    request = MPI_REQUEST_NULL;
    const int made = collective.persistent(&request);
    const bool made_in_all = all_say(made == MPI_SUCCESS);
    check(made_in_all || made != MPI_SUCCESS, name + " is initialised in some ranks only");
    if (made_in_all) {
        const int started = MPI_Startall(1, &request);
        end(complete(started, &request), collective.expected);
        MPI_Request_free(&request);
    }
}

#if RANKS_HAVE_MPI4
#define PERSISTENT(name, ...) \
    [&](MPI_Request* request) { return MPI_##name##_init(__VA_ARGS__, MPI_INFO_NULL, request); }
#else
#define PERSISTENT(name, ...) nullptr
#endif
#define FORMS(name, nonblocking, expected, ...)                                            \
    Collective {                                                                           \
        #name, static_cast<double>(expected), [&] { return MPI_##name(__VA_ARGS__); },     \
            [&](MPI_Request* request) { return MPI_##nonblocking(__VA_ARGS__, request); }, \
            PERSISTENT(name, __VA_ARGS__)                                                  \
    }

void Job::collectives() {
    MPI_Comm ring = MPI_COMM_NULL;
    const int periodic = 1;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &_size, &periodic, 0, &ring);
    MPI_Comm_set_errhandler(ring, MPI_ERRORS_RETURN);
    const MPI_Comm world = MPI_COMM_WORLD;
    const int last = _size - 1, previous = (_rank + last) % _size;
    const double sum = _size * (_size + 1) / 2.0, none = std::nan("");
    std::vector<int> counts(static_cast<std::size_t>(_size), kElements), places, bytes;
    for (int each = 0; each < _size; ++each) {
        places.push_back(each * kElements);
        bytes.push_back(each * kElements * static_cast<int>(sizeof(double)));
    }
    const std::vector<MPI_Datatype> types(counts.size(), MPI_DOUBLE);
    MPI_Datatype gaps = MPI_DATATYPE_NULL;  // pairs with as much room between them
    MPI_Type_vector(kElements / 4, 2, 4, MPI_DOUBLE, &gaps);
    MPI_Type_commit(&gaps);
    const bool first_root = _rank == 0, last_root = _rank == last;
    double *const in = _in, *const out = _out;
    const int n = kElements;
    const MPI_Datatype type = MPI_DOUBLE;
    in_all_forms(FORMS(Bcast, Ibcast, last_root ? none : _size, last_root ? in : out, n, type, last, world));
    in_all_forms(FORMS(Bcast, Ibcast, first_root ? none : 1, first_root ? in : out, 1, gaps, 0, world));
    in_all_forms(FORMS(Reduce, Ireduce, first_root ? sum : none, in, out, n, type, MPI_SUM, 0, world));
    in_all_forms(FORMS(Allreduce, Iallreduce, sum, in, out, n, type, MPI_SUM, world));
    in_all_forms(FORMS(Allreduce, Iallreduce, sum, in, out, 3, type, MPI_SUM, world));
    in_all_forms(FORMS(Scan, Iscan, (_rank + 1) * (_rank + 2) / 2.0, in, out, n, type, MPI_SUM, world));
    in_all_forms(FORMS(Reduce_scatter, Ireduce_scatter, sum, in, out, counts.data(), type, MPI_SUM, world));
    in_all_forms(FORMS(Reduce_scatter_block, Ireduce_scatter_block, sum, in, out, n, type, MPI_SUM, world));
    in_all_forms(FORMS(Gather, Igather, first_root ? 1 : none, in, n, type, out, n, type, 0, world));
    in_all_forms(FORMS(Gatherv, Igatherv, last_root ? 1 : none, in, n, type, out, counts.data(), places.data(), type,
                       last, world));
    in_all_forms(FORMS(Scatter, Iscatter, _size, in, n, type, out, n, type, last, world));
    in_all_forms(FORMS(Allgather, Iallgather, 1, in, n, type, out, n, type, world));
    in_all_forms(FORMS(Allgatherv, Iallgatherv, 1, in, n, type, out, counts.data(), places.data(), type, world));
    in_all_forms(FORMS(Alltoall, Ialltoall, 1, in, n, type, out, n, type, world));
    in_all_forms(FORMS(Alltoall, Ialltoall, 1, in, 1, gaps, out, 1, gaps, world));
    in_all_forms(FORMS(Alltoallw, Ialltoallw, 1, in, counts.data(), bytes.data(), types.data(), out, counts.data(),
                       bytes.data(), types.data(), world));
    in_all_forms(FORMS(Neighbor_alltoall, Ineighbor_alltoall, previous + 1, in, n, type, out, n, type, ring));
    in_all_forms(FORMS(Neighbor_allgather, Ineighbor_allgather, previous + 1, in, n, type, out, n, type, ring));
    MPI_Type_free(&gaps);
    MPI_Comm_free(&ring);
}

/// What every rank does between the creation of a window and its end.
void Job::windows() {
    begin("MPI_Win_create");
    MPI_Win window = MPI_WIN_NULL;
    const auto bytes = static_cast<MPI_Aint>(_count * sizeof(double));
    const int made = MPI_Win_create(_out, bytes, sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    if (!all_say(made == MPI_SUCCESS)) {
        check(made != MPI_SUCCESS, "a window is made in some ranks only");
        return;
    }
    MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
    const int next = (_rank + 1) % _size, previous = (_rank + _size - 1) % _size;
    int code = MPI_Win_fence(0, window);
    for (int round = 0; round < 2; ++round) {
        for (const int each :
             {MPI_Put(_in, kElements, MPI_DOUBLE, next, 0, kElements, MPI_DOUBLE, window), MPI_Win_fence(0, window)}) {
            code = code != MPI_SUCCESS ? code : each;
        }
    }
    const int freed = MPI_Win_free(&window);
    end(code != MPI_SUCCESS ? code : freed, previous + 1);
}

/// The ranks write their parts of a file, one after another, and read what rank 0 wrote.
void Job::files(const std::string& path) {
    MPI_File file = MPI_FILE_NULL;
    const int opened =
        MPI_File_open(MPI_COMM_WORLD, path.c_str(), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    check(opened == MPI_SUCCESS, "the file cannot be opened: " + error_text(opened));
    if (opened != MPI_SUCCESS) {
        return;
    }
    const MPI_Offset place = static_cast<MPI_Offset>(_rank) * kElements * static_cast<MPI_Offset>(sizeof(double));
    const double none = std::nan("");
    begin("MPI_File_write_at_all");
    end(MPI_File_write_at_all(file, place, _in, kElements, MPI_DOUBLE, MPI_STATUS_IGNORE), none);
    begin("MPI_File_write_at_all_begin");
    const int begun = MPI_File_write_at_all_begin(file, place, _in, kElements, MPI_DOUBLE);
    const int ended = MPI_File_write_at_all_end(file, _in, MPI_STATUS_IGNORE);
    end(begun != MPI_SUCCESS ? begun : ended, none);
    begin("MPI_File_iwrite_at_all");
    MPI_Request request = MPI_REQUEST_NULL;
    const int started = MPI_File_iwrite_at_all(file, place, _in, kElements, MPI_DOUBLE, &request);
    end(complete(started, &request), none);
    begin("MPI_File_read_at_all");
    end(MPI_File_read_at_all(file, 0, _out, kElements, MPI_DOUBLE, MPI_STATUS_IGNORE), 1);
    MPI_File_close(&file);
}

}  // namespace

int main(int argc, char** argv) {
    std::string gpu_name = "auto", path;
    bool messages = false, told = false;
    for (int at = 1; at < argc; ++at) {
        const std::string word = argv[at];
        if (word.rfind("--gpu=", 0) == 0) {
            gpu_name = word.substr(6);
        } else if (word.rfind("--file=", 0) == 0) {
            path = word.substr(7);
        }
        messages = messages || word == "--messages";
        told = told || word == "--told";
    }
    signal(SIGALRM, detail::say_what_hangs);
    MPI_Init(&argc, &argv);
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    detail::running_rank = rank;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    const std::unique_ptr<Gpu> gpu = Gpu::open(gpu_name);
    gpu->use_device(rank % gpu->device_count());
    Job job(*gpu, rank, size);
    for (int round = 0; round < 2; ++round) {
        if (messages) {
            job.messages(told);
            continue;
        }
        job.collectives();
        job.windows();
        if (!path.empty()) {
            job.files(path);
        }
    }
    const bool well = all_say(failures == 0);
    MPI_Finalize();
    if (well && rank == 0) {
        std::printf("ok failing_device\n");
    }
    return well ? 0 : 1;
}
