// SPDX-License-Identifier: Apache-2.0
// Messages at the edges of a process's life, one edge per run:
//
//     processes send-finalize    a send is over, its memory is freed and MPI_Finalize called, before the receive
//     processes freed-finalize   ... a nonblocking send whose request was freed
//     processes bsend-finalize   ... a buffered one
//     processes early-receive    receives are posted before any GPU runtime is loaded, and matched by device messages
//     processes one-gpu          only the even ranks use a GPU at all
//     processes late-gpu         ... and the odd ranks begin to in the middle
//     processes dies=PLACE       rank 0 kills the last rank, and must come to an end though it needs it
//         receive                ... while rank 0 waits to receive from it
//         before-send            ... before rank 0 sends to it
//         posted                 ... with its receive posted and tested once, rank 0 sends to that
//         sent                   ... after the beginning of its message has come; rank 0 receives it then
//         fetching               ... in the midst of fetching rank 0's message
//         writing                ... in the midst of copying its message out, which rank 0 receives
//         fetched                ... while rank 0 is in the midst of fetching its message
//         start, wait, fence     ... while rank 0 waits for it in that function of a window
//         iallreduce             ... while rank 0 waits for it in a nonblocking collective
//
// Each prints `ok MODE` on rank 0, or `FAIL processes: why`. With dies, rank 0 prints `survivor: ...` when its call
// has come to an end, by an error or not.
#include <atomic>

#include "emulated.h"
#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 51;
constexpr int kReadyTag = 52;
constexpr int kLastTag = 53;

int failures = 0;

void check(bool condition, const std::string& what) {
    if (condition) {
        return;
    }
    ++failures;
    std::fprintf(stderr, "FAIL processes: %s\n", what.c_str());
}
#define MPI(call)                                                                 \
    do {                                                                          \
        const int code = (call);                                                  \
        check(code == MPI_SUCCESS, #call + std::string(": ") + error_text(code)); \
    } while (false)

const std::vector<int> kSizes = {8, 67, 1000, 65544, (1 << 20) + 3};

std::vector<std::byte> content(int bytes, int seed) {
    std::vector<std::byte> image(static_cast<std::size_t>(bytes));
    fill_random(image.data(), image.size(), combine(88, combine(static_cast<std::uint64_t>(seed), image.size())));
    return image;
}

Buffer filled(Gpu& gpu, Kind kind, int bytes, int seed) {
    Buffer buffer(gpu, kind, static_cast<std::size_t>(bytes));
    buffer.write(content(bytes, seed).data(), static_cast<std::size_t>(bytes));
    return buffer;
}

void expect_content(const Buffer& buffer, int bytes, int seed, const std::string& name) {
    std::vector<std::byte> actual = buffer.read();
    actual.resize(static_cast<std::size_t>(bytes));
    check(actual == content(bytes, seed), format("%s: wrong bytes in a message of %d", name.c_str(), bytes));
    check(buffer.guard_damage().empty(), name + ": guard damaged");
}

struct World {
    World() {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
    }
    int rank = 0, size = 0;
};

std::unique_ptr<Gpu> open_gpu(const std::string& name, int rank) {
    std::unique_ptr<Gpu> gpu = Gpu::open(name);
    if (gpu->device_count() > 0) {
        gpu->use_device(rank % gpu->device_count());
    }
    return gpu;
}

// ---- the end --------------------------------------------------------------------------------------------------------

enum class Ending { send, freed, buffered };

/// Rank 0 sends and goes; the other ranks compute first. What they got is checked before their own MPI_Finalize.
void send_and_go(const World& world, const std::string& gpu_name, Ending ending) {
    const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, world.rank);
    if (world.rank == 0) {
        std::vector<std::byte> room;
        if (ending == Ending::buffered) {
            std::size_t bytes = 0;
            for (const int size : kSizes) {
                bytes +=
                    static_cast<std::size_t>(world.size) * (static_cast<std::size_t>(size) + MPI_BSEND_OVERHEAD + 64);
            }
            room.resize(bytes);
            MPI(MPI_Buffer_attach(room.data(), static_cast<int>(bytes)));
        }
        std::vector<Buffer> kept;  // until the barrier: a freed request's buffer is still MPI's
        for (int peer = 1; peer < world.size; ++peer) {
            for (const int bytes : kSizes) {
                Buffer buffer = filled(*gpu, Kind::device, bytes, peer);
                if (ending == Ending::send) {
                    MPI(MPI_Send(buffer.data(), bytes, MPI_BYTE, peer, kTag, MPI_COMM_WORLD));
                } else if (ending == Ending::buffered) {
                    MPI(MPI_Bsend(buffer.data(), bytes, MPI_BYTE, peer, kTag, MPI_COMM_WORLD));
                } else {
                    MPI_Request request;
                    MPI(MPI_Isend(buffer.data(), bytes, MPI_BYTE, peer, kTag, MPI_COMM_WORLD, &request));
                    MPI(MPI_Request_free(&request));
                    kept.push_back(std::move(buffer));
                    continue;
                }
                // The send is over: its memory is overwritten, and freed at the end of the scope.
                const std::vector<std::byte> rubbish(static_cast<std::size_t>(bytes), std::byte{0xee});
                buffer.write(rubbish.data(), rubbish.size());
            }
        }
        if (ending == Ending::freed) {
            MPI(MPI_Barrier(MPI_COMM_WORLD));
        }
        if (ending == Ending::buffered) {
            void* address = nullptr;
            int bytes = 0;
            MPI(MPI_Buffer_detach(&address, &bytes));
        }
        return;
    }
    // Posted or not, by turns, while the processor is busy with other things.
    std::vector<Buffer> buffers;
    std::vector<MPI_Request> requests(kSizes.size(), MPI_REQUEST_NULL);
    for (const int bytes : kSizes) {
        buffers.emplace_back(*gpu, Kind::device, static_cast<std::size_t>(bytes));
    }
    for (std::size_t at = 0; at < kSizes.size(); ++at) {
        if (at % 2 == 1) {
            compute(10);
        }
        MPI(MPI_Irecv(buffers[at].data(), kSizes[at], MPI_BYTE, 0, kTag, MPI_COMM_WORLD, &requests[at]));
    }
    compute(30);
    MPI(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
    for (std::size_t at = 0; at < kSizes.size(); ++at) {
        expect_content(buffers[at], kSizes[at], world.rank, "last messages");
    }
    if (ending == Ending::freed) {
        MPI(MPI_Barrier(MPI_COMM_WORLD));
    }
}

// ---- the beginning --------------------------------------------------------------------------------------------------

/// Messages between each even rank and the odd one after it, in both directions.
void exchange(const World& world, Gpu& own, Kind kind, const std::string& name) {
    const int peer = world.rank ^ 1;
    if (peer >= world.size) {
        return;
    }
    for (const int bytes : kSizes) {
        for (const bool sending : {world.rank % 2 == 0, world.rank % 2 == 1}) {
            if (sending) {
                const Buffer buffer = filled(own, kind, bytes, world.rank);
                MPI(MPI_Send(buffer.data(), bytes, MPI_BYTE, peer, kTag, MPI_COMM_WORLD));
            } else {
                const Buffer buffer(own, kind, static_cast<std::size_t>(bytes) + 50);
                MPI_Status status{};
                int count = 0;
                MPI(MPI_Probe(peer, kTag, MPI_COMM_WORLD, &status));
                MPI(MPI_Get_count(&status, MPI_BYTE, &count));
                check(count == bytes, format("%s: a probe says %d bytes instead of %d", name.c_str(), count, bytes));
                MPI(MPI_Recv(buffer.data(), bytes + 50, MPI_BYTE, peer, kTag, MPI_COMM_WORLD, &status));
                MPI(MPI_Get_count(&status, MPI_BYTE, &count));
                check(count == bytes, format("%s: a status says %d bytes instead of %d", name.c_str(), count, bytes));
                expect_content(buffer, bytes, peer, name);
            }
        }
    }
}

/// Receives into host memory and wildcards, posted by processes that have not loaded a GPU runtime yet.
void early_receive(const World& world, const std::string& gpu_name) {
    NoGpu host;
    const int next = (world.rank + 1) % world.size, previous = (world.rank + world.size - 1) % world.size;
    std::vector<Buffer> early;
    std::vector<MPI_Request> requests(kSizes.size());
    for (std::size_t at = 0; at < kSizes.size(); ++at) {
        early.emplace_back(host, Kind::host, static_cast<std::size_t>(kSizes[at]) + 20);
        MPI(MPI_Irecv(early.back().data(), kSizes[at] + 20, MPI_BYTE, at % 2 == 0 ? previous : MPI_ANY_SOURCE, kTag,
                      MPI_COMM_WORLD, &requests[at]));
    }
    const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, world.rank);
    // Receives into the device on another tag, so that senders learn that this rank does such things.
    const Buffer in(*gpu, Kind::device, 70000);
    const Buffer out = filled(*gpu, Kind::device, 70000, world.rank);
    for (int round = 0; round < 3; ++round) {
        MPI(MPI_Sendrecv(out.data(), 70000, MPI_BYTE, next, kReadyTag, in.data(), 70000, MPI_BYTE, previous, kReadyTag,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        expect_content(in, 70000, previous, "exchange");
    }
    for (const int bytes : kSizes) {
        const Buffer buffer = filled(*gpu, Kind::device, bytes, world.rank);
        MPI_Request request;
        MPI(MPI_Isend(buffer.data(), bytes, MPI_BYTE, next, kTag, MPI_COMM_WORLD, &request));
        // The receiver sees to its old receives only after the barrier, and its sender waits for none of them.
        if (bytes <= 1000) {
            MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
        }
        if (bytes > 1000) {
            const std::size_t at = bytes == kSizes[3] ? 3 : 4;
            MPI_Status status{};
            MPI(MPI_Wait(&requests[at], &status));
            MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
            int count = 0;
            MPI(MPI_Get_count(&status, MPI_BYTE, &count));
            check(count == bytes, format("a status says %d bytes instead of %d", count, bytes));
        }
    }
    MPI(MPI_Barrier(MPI_COMM_WORLD));
    for (std::size_t at = 0; at < kSizes.size(); ++at) {
        MPI(MPI_Wait(&requests[at], MPI_STATUS_IGNORE));
        expect_content(early[at], kSizes[at], previous, "early receive");
    }
}

void only_even_ranks_have_one(const World& world, const std::string& gpu_name, bool all_in_the_end) {
    NoGpu host;
    std::unique_ptr<Gpu> gpu;
    if (world.rank % 2 == 0) {
        gpu = open_gpu(gpu_name, world.rank);
    }
    exchange(world, gpu ? *gpu : static_cast<Gpu&>(host), gpu ? Kind::device : Kind::host, "half of them");
    if (gpu) {
        exchange(world, *gpu, Kind::managed, "managed");
    }
    if (!gpu) {
        exchange(world, host, Kind::host, "managed");
    }
    if (!all_in_the_end) {
        return;
    }
    if (!gpu) {
        gpu = open_gpu(gpu_name, world.rank);
    }
    exchange(world, *gpu, Kind::device, "all of them");
    exchange(world, *gpu, Kind::pool, "pools");
}

// ---- death ----------------------------------------------------------------------------------------------------------

/// The last rank tells who it is, and waits for its end.
[[noreturn]] void await_death() {
    const auto own = static_cast<std::int64_t>(getpid());
    MPI(MPI_Send(&own, 1, MPI_INT64_T, 0, kReadyTag, MPI_COMM_WORLD));
    for (;;) {
        pause();
    }
}

/// Rank 0 hears that the last rank is ready, and ends it: so nothing that it sent before is lost with it.
void end_rank(int rank) {
    std::int64_t victim = 0;
    MPI(MPI_Recv(&victim, 1, MPI_INT64_T, rank, kReadyTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    kill(static_cast<pid_t>(victim), SIGKILL);
}

/// Rank 0 reports an error and leaves at once: MPI_Finalize with a dead rank would wait for it.
/// A launcher may be gone by then, and with it what reads our output: the file SURVIVOR_FILE hears it as well.
void survive(int code, const char* call) {
    const bool well = code == MPI_SUCCESS;
    int error_class = MPI_SUCCESS;
    MPI_Error_class(code, &error_class);
    const std::string error = format(": class %d: ", error_class) + error_text(code);
    const std::string text = format("survivor: %s%s\n", call, well ? " succeeded" : error.c_str());
    write_survivor_file(text);
    std::fputs(text.c_str(), stdout);
    if (well) {
        return;
    }
    std::fflush(stdout);
    _exit(0);
}

/// Has the emulated driver call in the midst of this process's next large copy.
void interrupt_copy(void (*const halfway)()) {
    auto* const found = emulator_function<void(std::size_t, void (*)())>("awaken_emulator_interrupt_copy");
    if (found == nullptr) {
        throw std::runtime_error("only the emulated driver can be interrupted");
    }
    constexpr std::size_t kLarge = 256 << 10;
    found(kLarge, halfway);
}

std::atomic<std::int64_t> other_process{0};

void die() {
    kill(getpid(), SIGKILL);
}

/// Ends the other process for good: nothing of it runs any more when this returns.
void end_other() {
    const auto victim = static_cast<pid_t>(other_process.load());
    kill(victim, SIGKILL);
    const std::string path = format("/proc/%d/stat", static_cast<int>(victim));
    for (;;) {
        std::FILE* const file = std::fopen(path.c_str(), "r");
        if (file == nullptr) {
            return;
        }
        char state = 0;
        const int read = std::fscanf(file, "%*d (%*[^)]) %c", &state);
        std::fclose(file);
        if (read != 1 || state == 'Z' || state == 'X') {
            return;
        }
    }
}

/// One of the two ranks is killed while a message of the one who sends is on its way to the one who receives.
void dies_in_transfer(const World& world, const std::string& place, const Buffer& out, const Buffer& in, int bytes) {
    const int last = world.size - 1, peer = last - world.rank;
    const bool sends = (world.rank == last) != (place == "fetching");
    const auto own = static_cast<std::int64_t>(getpid());
    std::int64_t other = 0;
    MPI(MPI_Sendrecv(&own, 1, MPI_INT64_T, peer, kReadyTag, &other, 1, MPI_INT64_T, peer, kReadyTag, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE));
    other_process = other;
    if (place == "fetched" && !sends) {
        interrupt_copy(&end_other);
    }
    if (place == "fetching" && !sends) {
        interrupt_copy(&die);
    }
    if (sends) {
        MPI_Request request;
        MPI(MPI_Isend(out.data(), bytes, MPI_BYTE, peer, kLastTag, MPI_COMM_WORLD, &request));
        // Only now: a ring is filled before its receiver hears of the message.
        if (place == "writing") {
            interrupt_copy(&die);
        }
        const int code = MPI_Wait(&request, MPI_STATUS_IGNORE);
        // With its message copied out, a sender has succeeded whatever becomes of the receiver.
        if (world.rank == 0) {
            survive(code, "MPI_Isend");
        }
    } else {
        const int code = MPI_Recv(in.data(), bytes, MPI_BYTE, peer, kLastTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (world.rank == 0) {
            survive(code, "MPI_Recv");
            expect_content(in, bytes, last + 100, "a dead rank's message");
        }
    }
    if (world.rank == last) {
        check(place == "fetched", "nothing was interrupted");
        for (;;) {
            pause();  // has its buffer back, and is killed all the same
        }
    }
}

/// Rank 0 waits for the last rank, which is killed, in a function of all ranks.
void dies_before_all_have_come(const World& world, const std::string& gpu_name, const std::string& place) {
    constexpr int kIntegers = 1 << 16, kBytes = kIntegers * static_cast<int>(sizeof(int));
    const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, world.rank);
    const int last = world.size - 1;
    const Buffer memory(*gpu, Kind::device, kBytes), out(*gpu, Kind::device, kBytes);
    MPI_Win window = MPI_WIN_NULL;
    MPI(MPI_Win_create(memory.data(), kBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
    MPI(MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
    const auto reduce = [&] {
        MPI_Request request = MPI_REQUEST_NULL;
        const int code =
            MPI_Iallreduce(out.data(), memory.data(), kIntegers, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
        return code == MPI_SUCCESS ? MPI_Wait(&request, MPI_STATUS_IGNORE) : code;
    };
    // First in peace, so that all that is set up lazily is there, and the ranks have agreed on nonblocking collectives.
    for (int round = 0; round < 6; ++round) {
        MPI(MPI_Win_fence(0, window));
        MPI(MPI_Put(out.data(), kBytes, MPI_BYTE, last - world.rank, 0, kBytes, MPI_BYTE, window));
        MPI(MPI_Win_fence(MPI_MODE_NOSUCCEED, window));
        MPI(MPI_Allreduce(out.data(), memory.data(), kIntegers, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        MPI(reduce());
    }
    if (world.rank == last) {
        await_death();
    }
    end_rank(last);
    MPI_Group all = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
    MPI(MPI_Comm_group(MPI_COMM_WORLD, &all));
    MPI(MPI_Group_incl(all, 1, &last, &group));
    if (place == "start") {
        survive(MPI_Win_start(group, 0, window), "MPI_Win_start");
    } else if (place == "wait") {
        MPI(MPI_Win_post(group, 0, window));
        survive(MPI_Win_wait(window), "MPI_Win_wait");
    } else if (place == "fence") {
        survive(MPI_Win_fence(0, window), "MPI_Win_fence");
    } else {
        survive(reduce(), "MPI_Iallreduce");
    }
    check(false, "it came to its end without the last rank");
}

void last_rank_dies(const World& world, const std::string& gpu_name, const std::string& place) {
    constexpr int kBytes = 6 << 20;
    if (place == "start" || place == "wait" || place == "fence" || place == "iallreduce") {
        dies_before_all_have_come(world, gpu_name, place);
        return;
    }
    const std::unique_ptr<Gpu> gpu = open_gpu(gpu_name, world.rank);
    const int last = world.size - 1;
    if (world.rank != 0 && world.rank != last) {
        return;
    }
    const int peer = last - world.rank;
    const Buffer buffer = filled(*gpu, Kind::device, kBytes, world.rank);
    const Buffer last_words = filled(*gpu, Kind::device, kBytes, world.rank + 100);
    const Buffer in(*gpu, Kind::device, kBytes);
    // First in peace, so that all that is set up lazily is there.
    MPI(MPI_Sendrecv(buffer.data(), kBytes, MPI_BYTE, peer, kTag, in.data(), kBytes, MPI_BYTE, peer, kTag,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    expect_content(in, kBytes, peer, "in peace");
    if (place == "fetching" || place == "writing" || place == "fetched") {
        dies_in_transfer(world, place, world.rank == last ? last_words : buffer, in, kBytes);
        return;
    }
    MPI_Request request;
    int flag = 0;
    if (world.rank == last) {
        if (place == "posted") {
            MPI(MPI_Irecv(in.data(), kBytes, MPI_BYTE, 0, kLastTag, MPI_COMM_WORLD, &request));
            MPI(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
        } else if (place == "sent") {
            MPI(MPI_Isend(last_words.data(), kBytes, MPI_BYTE, 0, kLastTag, MPI_COMM_WORLD, &request));
        }
        await_death();
    }
    end_rank(last);
    if (place == "receive" || place == "sent") {
        survive(MPI_Recv(in.data(), kBytes, MPI_BYTE, last, kLastTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
        // A success is right only if the whole message had come before.
        check(place == "sent", "a message came that was never sent");
        expect_content(in, kBytes, last + 100, "a dead rank's message");
    } else {
        survive(MPI_Send(buffer.data(), kBytes, MPI_BYTE, last, kLastTag, MPI_COMM_WORLD), "MPI_Send");
    }
}

bool run_mode(const World& world, const std::string& mode, const std::string& gpu_name) {
    if (mode == "send-finalize") {
        send_and_go(world, gpu_name, Ending::send);
    } else if (mode == "freed-finalize") {
        send_and_go(world, gpu_name, Ending::freed);
    } else if (mode == "bsend-finalize") {
        send_and_go(world, gpu_name, Ending::buffered);
    } else if (mode == "early-receive") {
        early_receive(world, gpu_name);
    } else if (mode == "one-gpu") {
        only_even_ranks_have_one(world, gpu_name, false);
    } else if (mode == "late-gpu") {
        only_even_ranks_have_one(world, gpu_name, true);
    } else if (mode.rfind("dies=", 0) == 0) {
        last_rank_dies(world, gpu_name, mode.substr(5));
        std::fflush(stdout);
        _exit(0);  // the others' MPI_Finalize would wait for the dead one
    } else {
        return false;
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string gpu_name = take_option(argc, argv, "--gpu").value_or("auto");
    const std::string mode = argc > 1 ? argv[1] : "";
    std::snprintf(detail::running_case, sizeof detail::running_case, "%s", mode.c_str());
    signal(SIGALRM, detail::say_what_hangs);
    detail::set_watchdog(kSlowness * kLimitSeconds);
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    const World world;
    detail::running_rank = world.rank;
    try {
        check(run_mode(world, mode, gpu_name), "unknown mode " + mode);
    } catch (const std::exception& error) {
        check(false, error.what());
    }
    // No collective call before this one, which would hide what MPI_Finalize has to wait for.
    MPI_Finalize();
    if (failures == 0 && world.rank == 0) {
        std::printf("ok %s\n", mode.c_str());
    }
    return failures == 0 ? 0 : 1;
}
