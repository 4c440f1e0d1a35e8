// Messages while the ranks' default streams are held up, with AWAKEN_DEFAULT_STREAM=order: calls return when the order
// of their messages is settled, and the bytes come when the streams go on.
//
// A call that waits for a GPU hangs, and the watch-dog names it.
#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 41;
constexpr std::size_t kSizes[] = {1, 4096, std::size_t{64} << 10, std::size_t{1} << 20};
constexpr std::size_t kSmall = 3000;
/// Stays where it is until its receiver has it.
constexpr std::size_t kLarge = (std::size_t{1} << 20) + 24;

int next(const Run& run) {
    return (run.rank + 1) % run.size;
}
int previous(const Run& run) {
    return (run.rank + run.size - 1) % run.size;
}
int count_of(std::size_t bytes) {
    return static_cast<int>(bytes);
}

/// Messages of other memory wait as ever.
std::byte* device_memory(Run& run, std::size_t bytes) {
    return run.input_of(Kind::device, bytes);
}

/// The default streams of all ranks, or of those with `mine`, do nothing while it lives.
class HeldUp {
  public:
    explicit HeldUp(Run& run, bool mine = true) {
        if (!run.reference() && run.gpu().present() && mine) {
            _work = run.gpu().keep_busy(true);
        }
        OK(MPI_Barrier(run.comm));
    }
    void end() { _work.reset(); }

  private:
    std::shared_ptr<void> _work;
};

/// The first messages of two processes wait: they find each other's memory by them.
void meet(Run& run) {
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    for (int round = 0; round < 4; ++round) {
        for (const int shift : {1, run.size - 1}) {
            OK(MPI_Sendrecv(out, count_of(kSmall), MPI_BYTE, (run.rank + shift) % run.size, kTag, in, count_of(kSmall),
                            MPI_BYTE, (run.rank + run.size - shift) % run.size, kTag, run.comm, MPI_STATUS_IGNORE));
        }
    }
}

/// The receiver's call returns before the sender's bytes are there.
void one_way(Run& run) {
    meet(run);
    std::vector<std::byte*> out, in;
    for (const std::size_t bytes : kSizes) {
        out.push_back(device_memory(run, bytes));
        in.push_back(device_memory(run, bytes));
    }
    HeldUp held(run, run.rank == 0);
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (run.rank == 0) {
            OK(MPI_Send(out[i], count_of(kSizes[i]), MPI_BYTE, 1, kTag, run.comm));
        } else if (run.rank == 1) {
            MPI_Status status;
            OK(MPI_Recv(in[i], count_of(kSizes[i]), MPI_BYTE, MPI_ANY_SOURCE, kTag, run.comm, &status));
            run.note_status("receive " + std::to_string(i), status, MPI_BYTE);
        }
    }
    OK(MPI_Barrier(run.comm));
    held.end();
}

/// What the program queues after its send may overwrite the buffer.
void overwritten(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    HeldUp held(run);
    OK(MPI_Send(out, count_of(kSmall), MPI_BYTE, next(run), kTag, run.comm));
    if (run.reference() || !run.gpu().present()) {
        std::memset(out, 7, kSmall);
    } else {
        run.gpu().memset(out, 7, kSmall);
    }
    OK(MPI_Recv(in, count_of(kSmall), MPI_BYTE, previous(run), kTag, run.comm, MPI_STATUS_IGNORE));
    OK(MPI_Barrier(run.comm));
    held.end();
}

void exchange(Run& run, std::byte* out, std::byte* in, std::size_t bytes) {
    OK(MPI_Sendrecv(out, count_of(bytes), MPI_BYTE, next(run), kTag, in, count_of(bytes), MPI_BYTE, previous(run), kTag,
                    run.comm, MPI_STATUS_IGNORE));
}

/// The first exchange of long buffers maps them. Where mappings of older memory are in the way, it waits for an idle
/// GPU.
void exchange_first(Run& run, std::byte* out, std::byte* in, std::size_t bytes) {
    if (!run.reference() && run.gpu().present()) {
        run.gpu().synchronize();
    }
    exchange(run, out, in, bytes);
}

void exchanged(Run& run, std::size_t bytes) {
    meet(run);
    std::byte* const out = device_memory(run, bytes);
    std::byte* const in = device_memory(run, bytes);
    exchange_first(run, out, in, bytes);
    HeldUp held(run);
    exchange(run, out, in, bytes);
    OK(MPI_Barrier(run.comm));
    held.end();
}

/// Ranks that send first and receive afterwards, as short sends allow.
void sent_first(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    HeldUp held(run, run.rank % 2 == 0);
    OK(MPI_Send(out, count_of(kSmall), MPI_BYTE, next(run), kTag, run.comm));
    OK(MPI_Recv(in, count_of(kSmall), MPI_BYTE, previous(run), kTag, run.comm, MPI_STATUS_IGNORE));
    OK(MPI_Barrier(run.comm));
    held.end();
}

/// More messages than one launch takes, of all sizes, completed in several ways.
void windows(Run& run) {
    meet(run);
    constexpr int kMessages = 36;
    for (const char* const way : {"all", "any", "some", "test", "each"}) {
        const Step step(run, way);
        std::vector<std::byte*> out, in;
        std::vector<std::size_t> sizes;
        for (int i = 0; i < kMessages; ++i) {
            sizes.push_back(i % 20 == 1 ? kLarge : 100 + 97 * static_cast<std::size_t>(i));
            out.push_back(device_memory(run, sizes.back()));
            in.push_back(device_memory(run, sizes.back()));
            if (sizes.back() == kLarge) {
                exchange_first(run, out.back(), in.back(), kLarge);
            }
        }
        HeldUp held(run);
        std::vector<MPI_Request> requests;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            const int tag = kTag + static_cast<int>(i);
            OK(MPI_Irecv(in[i], count_of(sizes[i]), MPI_BYTE, previous(run), tag, run.comm, &requests.emplace_back()));
            OK(MPI_Isend(out[i], count_of(sizes[i]), MPI_BYTE, next(run), tag, run.comm, &requests.emplace_back()));
        }
        const int count = static_cast<int>(requests.size());
        const std::string completed = way;
        if (completed == "all") {
            OK(MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE));
        } else if (completed == "any") {
            for (int i = 0; i < count; ++i) {
                int index = 0;
                OK(MPI_Waitany(count, requests.data(), &index, MPI_STATUS_IGNORE));
            }
        } else if (completed == "some") {
            std::vector<int> indices(requests.size());
            for (int over = 0, outcount = 0; over < count; over += outcount) {
                OK(MPI_Waitsome(count, requests.data(), &outcount, indices.data(), MPI_STATUSES_IGNORE));
            }
        } else if (completed == "test") {
            for (int flag = 0; flag == 0;) {
                OK(MPI_Testall(count, requests.data(), &flag, MPI_STATUSES_IGNORE));
            }
        } else {
            for (MPI_Request& request : requests) {
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            }
        }
        OK(MPI_Barrier(run.comm));
        held.end();
    }
}

/// The sender makes no further call: its part of the message goes to its stream nevertheless.
void left_alone(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    MPI_Request request = MPI_REQUEST_NULL;
    if (run.rank == 0) {
        OK(MPI_Isend(out, count_of(kSmall), MPI_BYTE, 1, kTag, run.comm, &request));
        compute(300);
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else if (run.rank == 1) {
        OK(MPI_Recv(in, count_of(kSmall), MPI_BYTE, 0, kTag, run.comm, MPI_STATUS_IGNORE));
        run.note_bytes("received", in, kSmall);
    }
}

void persistent(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    MPI_Request requests[2];
    OK(MPI_Recv_init(in, count_of(kSmall), MPI_BYTE, previous(run), kTag, run.comm, &requests[0]));
    OK(MPI_Send_init(out, count_of(kSmall), MPI_BYTE, next(run), kTag, run.comm, &requests[1]));
    HeldUp held(run);
    for (int round = 0; round < 5; ++round) {
        OK(MPI_Startall(2, requests));
        OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    }
    OK(MPI_Barrier(run.comm));
    held.end();
    OK(MPI_Request_free(&requests[0]));
    OK(MPI_Request_free(&requests[1]));
}

void probed(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kLarge);
    std::byte* const in = device_memory(run, kLarge);
    HeldUp held(run);
    MPI_Request request = MPI_REQUEST_NULL;
    OK(MPI_Isend(out, count_of(kSmall), MPI_BYTE, next(run), kTag, run.comm, &request));
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    OK(MPI_Mprobe(previous(run), kTag, run.comm, &message, &status));
    run.note_status("probe", status, MPI_BYTE);
    OK(MPI_Mrecv(in, count_of(kLarge), MPI_BYTE, &message, &status));
    run.note_status("receive", status, MPI_BYTE);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Barrier(run.comm));
    held.end();
}

void add_cases(Suite& suite) {
    suite.add("one_way", one_way, 2);
    suite.add("overwritten", overwritten);
    for (const std::size_t bytes : kSizes) {
        suite.add("exchanged_" + std::to_string(bytes), [bytes](Run& run) { exchanged(run, bytes); });
    }
    suite.add("exchanged_large", [](Run& run) { exchanged(run, kLarge); });
    suite.add("sent_first", sent_first);
    suite.add("windows", windows);
    suite.add("left_alone", left_alone, 2);
    suite.add("persistent", persistent);
    suite.add("probed", probed);
}

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    add_cases(suite);
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
