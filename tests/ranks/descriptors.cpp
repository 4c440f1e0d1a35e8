// SPDX-License-Identifier: Apache-2.0
// A program that has used up its file descriptors, but for a few: operations whose partner is late, so that whoever
// waits looks whether it is alive. Each is done in peace first, which opens what an MPI opens late. And a program that
// may open few files at all, and sends memory that others reach by descriptors.
#include <fcntl.h>
#include <sys/resource.h>

#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 5;
/// A few times as long as a process waits before it looks at others.
constexpr double kLate_ms = 40;
constexpr int kSizes[] = {8, 5000, 1 << 20};
constexpr std::size_t kLargest = 1 << 20;

/// While it lives, this process can open so many files more.
class FewDescriptors {
  public:
    explicit FewDescriptors(const int free) {
        getrlimit(RLIMIT_NOFILE, &_before);
        rlimit low = _before;
        low.rlim_cur = std::min(low.rlim_cur, kEnough);
        setrlimit(RLIMIT_NOFILE, &low);
        for (int file = open_one(); file >= 0; file = open_one()) {
            _taken.push_back(file);
        }
        for (int at = 0; at < free && !_taken.empty(); ++at) {
            close(_taken.back());
            _taken.pop_back();
        }
    }
    FewDescriptors(const FewDescriptors&) = delete;
    FewDescriptors& operator=(const FewDescriptors&) = delete;
    ~FewDescriptors() {
        for (const int file : _taken) {
            close(file);
        }
        setrlimit(RLIMIT_NOFILE, &_before);
    }

  private:
    static constexpr rlim_t kEnough = 512;  // for what the MPI and the GPU runtime have open
    static int open_one() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }
    rlimit _before{};
    std::vector<int> _taken;
};

/// In peace, and then with so few free descriptors.
template <class Work>
void twice(Run& run, const int free, const Work& work) {
    work(0);
    OK(MPI_Barrier(run.comm));
    const FewDescriptors few(free);
    work(kLate_ms);
    OK(MPI_Barrier(run.comm));
}

void messages(Run& run, const int free) {
    const Pair pair(run);
    std::byte* const out = run.input(kLargest);
    std::byte* const in = run.input(kLargest);
    twice(run, free, [&](const double late_ms) {
        for (const int bytes : kSizes) {
            for (const bool late_sender : {false, true}) {
                compute(pair.sender == late_sender ? late_ms : 0);
                if (pair.sender) {
                    OK(MPI_Send(out, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
                    OK(MPI_Ssend(out, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
                } else {
                    OK(MPI_Recv(in, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
                    OK(MPI_Recv(in, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
                }
            }
        }
    });
}

void collectives(Run& run, const int free) {
    constexpr int kCount = 1 << 16;
    int* const out = run.values<int>(kCount);
    int* const in = run.values<int>(kCount);
    twice(run, free, [&](const double late_ms) {
        for (int late = 0; late < run.size; ++late) {
            compute(run.rank == late ? late_ms : 0);
            OK(MPI_Allreduce(out, in, kCount, MPI_INT, MPI_SUM, run.comm));
            compute(run.rank == late ? late_ms : 0);
            OK(MPI_Bcast(in, kCount, MPI_INT, late, run.comm));
            compute(run.rank == late ? late_ms : 0);
            MPI_Request request = MPI_REQUEST_NULL;
            OK(MPI_Iallreduce(out, in, kCount, MPI_INT, MPI_MAX, run.comm, &request));
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        }
    });
}

void windows(Run& run, const int free) {
    constexpr int kBytes = 1 << 16;
    std::byte* const memory = run.input(kBytes);
    std::byte* const out = run.input(kBytes);
    const Ring ring(run);
    MPI_Win window = MPI_WIN_NULL;
    OK(MPI_Win_create(memory, kBytes, 1, MPI_INFO_NULL, run.comm, &window));
    MPI_Group all = MPI_GROUP_NULL, next = MPI_GROUP_NULL, previous = MPI_GROUP_NULL;
    OK(MPI_Comm_group(run.comm, &all));
    OK(MPI_Group_incl(all, 1, &ring.next, &next));
    OK(MPI_Group_incl(all, 1, &ring.previous, &previous));
    twice(run, free, [&](const double late_ms) {
        OK(MPI_Win_fence(0, window));
        OK(MPI_Put(out, kBytes, MPI_BYTE, ring.next, 0, kBytes, MPI_BYTE, window));
        compute(run.rank == 0 ? late_ms : 0);
        OK(MPI_Win_fence(MPI_MODE_NOSUCCEED, window));

        compute(run.rank == 0 ? late_ms : 0);
        OK(MPI_Win_post(previous, 0, window));
        OK(MPI_Win_start(next, 0, window));
        OK(MPI_Put(out, kBytes / 2, MPI_BYTE, ring.next, 0, kBytes / 2, MPI_BYTE, window));
        compute(run.rank == 1 ? late_ms : 0);
        OK(MPI_Win_complete(window));
        OK(MPI_Win_wait(window));

        for (int time = 0; time < 2; ++time) {
            OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window));
            compute(late_ms);
            OK(MPI_Win_unlock(0, window));
        }
    });
    OK(MPI_Win_free(&window));
    for (MPI_Group* const group : {&all, &next, &previous}) {
        OK(MPI_Group_free(group));
    }
}

void files(Run& run, const int free) {
    constexpr int kBytes = 1 << 16;
    std::byte* const out = run.input(kBytes);
    std::byte* const in = run.input(kBytes);
    const char* const folder = std::getenv("TMPDIR");
    std::string name = format("%s/descriptors-%d", folder != nullptr ? folder : "/tmp", static_cast<int>(getpid()));
    name.resize(4096);
    OK(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, run.comm));
    MPI_File file = MPI_FILE_NULL;
    OK(MPI_File_open(run.comm, name.c_str(), MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL,
                     &file));
    const MPI_Offset mine = MPI_Offset{kBytes} * run.rank;
    twice(run, free, [&](const double late_ms) {
        compute(run.rank == 0 ? late_ms : 0);
        OK(MPI_File_write_at_all(file, mine, out, kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
        OK(MPI_File_read_at(file, mine, in, kBytes, MPI_BYTE, MPI_STATUS_IGNORE));
    });
    OK(MPI_File_close(&file));
}

/// Needs no descriptor itself.
int open_files() {
    constexpr int kMany = 4096;
    int count = 0;
    for (int file = 0; file < kMany; ++file) {
        count += fcntl(file, F_GETFD) >= 0 ? 1 : 0;
    }
    return count;
}

/// Sends allocations of two mappings each, more than an eighth of what the process may open. The layer keeps
/// descriptors of them for the next message.
void mapped_memory(Run& run, const int files) {
    constexpr int kBytes = 1 << 16;
    const Pair pair(run);
    std::vector<std::byte*> buffers;
    for (int at = 0; at < files / 16 + 4; ++at) {
        buffers.push_back(run.input_of(Kind::mapped, kBytes));
    }
    const auto pass = [&](std::byte* const buffer) {
        if (pair.sender) {
            OK(MPI_Send(buffer, kBytes, MPI_BYTE, pair.peer, kTag, run.comm));
        } else if (pair.receiver) {
            OK(MPI_Recv(buffer, kBytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
    };
    pass(buffers.front());  // opens what is opened late
    rlimit before{};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit low{static_cast<rlim_t>(files), before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    const int used = open_files();
    for (std::byte* const buffer : buffers) {
        pass(buffer);
    }
    OK(MPI_Barrier(run.comm));
    // In a receiver, the emulated driver has one for each mapping of another process's memory.
    const int taken = open_files() - used;
    run.expect(!pair.sender || taken <= files / 8, format("%d descriptors of %d were taken", taken, files));
    setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    for (const int free : {0, 1, 2, 8}) {
        const auto add = [&](const char* const name, void (*const work)(Run&, int)) {
            suite.add(format("%s_with_%d_free", name, free), [work, free](Run& run) { work(run, free); });
        };
        add("messages", messages);
        add("collectives", collectives);
        add("windows", windows);
        add("files", files);
    }
    suite.add("mapped_memory_in_64_files", [](Run& run) { mapped_memory(run, 64); });
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
