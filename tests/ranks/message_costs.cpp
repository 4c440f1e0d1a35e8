// SPDX-License-Identifier: Apache-2.0
// How many operations of the GPU messages take, counted by the emulated driver. Two ranks.
//
// Run under `awaken exec --emulate`; prints `ok NAME` or `FAIL NAME: why` for each case. Each rank checks its own half:
// however many blocks a type has, a send or a receive is a few operations; and however many messages are received at
// the same time, they are waited for together (with `--windows`); and however many are sent in a row, few questions are
// asked about what the program did before (with `--bursts`, and nothing else); and however many are sent before their
// receives are there, each costs the same (with `--late`, and nothing else). `--large` exchanges short messages from
// allocations of more than 64 MiB, and nothing else.
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "emulated.h"
#include "gpu_memory.h"
#include "shared_words.h"
#include "types.h"

namespace {

using ranks::Gpu;
using ranks::Kind;
using ranks::make;
using ranks::Type;

constexpr int kTag = 5;
int failures = 0;
int rank = 0;

struct Operations {
    std::uint64_t copies = 0, kernels = 0, events = 0;
};

Operations operations() {
    static auto& count = ranks::required_emulator_function<void(std::uint64_t*, std::uint64_t*, std::uint64_t*)>(
        "awaken_emulator_operations");
    Operations result;
    count(&result.copies, &result.kernels, &result.events);
    return result;
}

/// How often this process asked about an event and heard that it is over, which is what real drivers take long for.
std::uint64_t answers() {
    static auto& count = ranks::required_emulator_function<std::uint64_t()>("awaken_emulator_answers");
    return count();
}

/// Memory whose bytes say where they are.
class Field {
  public:
    Field(Gpu& gpu, std::size_t bytes, unsigned seed) : _gpu(gpu), _bytes(bytes) {
        _data = static_cast<std::byte*>(gpu.allocate(Kind::device, bytes));
        std::vector<std::byte> image(bytes);
        for (std::size_t at = 0; at < bytes; ++at) {
            image[at] = static_cast<std::byte>((at * 2654435761U + seed) >> 13);
        }
        gpu.write(_data, image.data(), bytes);
    }
    Field(const Field&) = delete;
    Field& operator=(const Field&) = delete;
    ~Field() { _gpu.free(Kind::device, _data); }
    [[nodiscard]] std::byte* data() const { return _data; }
    [[nodiscard]] std::vector<std::byte> read() const {
        std::vector<std::byte> image(_bytes);
        _gpu.read(image.data(), _data, _bytes);
        return image;
    }

  private:
    Gpu& _gpu;
    std::byte* _data;
    std::size_t _bytes;
};

/// What MPI itself makes of the type in host memory.
std::vector<std::byte> packed(const std::vector<std::byte>& image, MPI_Aint origin, MPI_Datatype type) {
    int size = 0, position = 0;
    MPI_Type_size(type, &size);
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    MPI_Pack(image.data() + origin, 1, type, bytes.data(), size, &position, MPI_COMM_WORLD);
    return bytes;
}

void expect(const std::string& name, bool good, const std::string& why) {
    if (!good) {
        std::printf("FAIL rank %d %s: %s\n", rank, name.c_str(), why.c_str());
    }
    if (!good) {
        ++failures;
    }
}

/// Rank 0 sends the type, rank 1 receives it; once to find each other and to compile, once counted.
void message(Gpu& gpu, const std::string& name, const Type& type, std::uint64_t most) {
    const ranks::Room room(type, 1);
    const Field source(gpu, room.bytes, 1), target(gpu, room.bytes, 77);
    std::byte* const out = source.data() + room.origin;
    std::byte* const in = target.data() + room.origin;
    Operations before, after;
    for (int round = 0; round < 3; ++round) {
        MPI_Barrier(MPI_COMM_WORLD);
        before = operations();
        if (rank == 0) {
            MPI_Send(out, 1, type, 1, kTag, MPI_COMM_WORLD);
        }
        if (rank == 1) {
            MPI_Recv(in, 1, type, 0, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        after = operations();
    }
    const std::uint64_t used = after.copies - before.copies + after.kernels - before.kernels;
    expect(name, used <= most,
           std::to_string(after.copies - before.copies) + " copies and " +
               std::to_string(after.kernels - before.kernels) + " kernels");
    if (rank == 1) {
        expect(name, packed(target.read(), room.origin, type) == packed(source.read(), room.origin, type),
               "other bytes than were sent");
        std::printf("# %s: %llu copies, %llu kernels at the receiver\n", name.c_str(),
                    static_cast<unsigned long long>(after.copies - before.copies),
                    static_cast<unsigned long long>(after.kernels - before.kernels));
        std::printf("ok %s\n", name.c_str());
    }
}

/// Rank 1 receives many small messages, all of which were sent when it begins to wait. A GPU is asked about many copies
/// at once. Of what its sender is still packing or copying the receiver takes what is there, in as many parts as it
/// happens to see, so the best of several rounds is counted: were each message asked about by itself, none would be
/// better than another.
void window(Gpu& gpu) {
    constexpr int kMessages = 64, kBytes = 4096, kRounds = 42;
    const Field source(gpu, std::size_t{kMessages} * kBytes, 1), target(gpu, std::size_t{kMessages} * kBytes, 77);
    ranks::SharedWords sent(MPI_COMM_WORLD);
    for (const bool with_gaps : {false, true}) {
        const std::string name = with_gaps ? "a window of messages of a column" : "a window of messages";
        const Type type = make([&](MPI_Datatype* t) {
            return with_gaps ? MPI_Type_vector(kBytes / 32, 1, 4, MPI_DOUBLE, t)
                             : MPI_Type_contiguous(kBytes, MPI_BYTE, t);
        });
        std::uint64_t events = std::numeric_limits<std::uint64_t>::max();
        for (int round = 0; round < kRounds; ++round) {
            std::vector<MPI_Request> requests(kMessages);
            std::atomic<int>& word = sent[round + kRounds * static_cast<int>(with_gaps)];
            for (int i = 0; i < kMessages && rank == 1; ++i) {
                MPI_Irecv(target.data() + i * kBytes, 1, type, 0, kTag, MPI_COMM_WORLD, &requests[i]);
            }
            MPI_Barrier(MPI_COMM_WORLD);
            for (int i = 0; i < kMessages && rank == 0; ++i) {
                MPI_Isend(source.data() + i * kBytes, 1, type, 1, kTag, MPI_COMM_WORLD, &requests[i]);
            }
            if (rank == 0) {
                word.store(1);
            }
            while (word.load() == 0) {
                sched_yield();
            }
            const std::uint64_t before = operations().events;
            MPI_Waitall(kMessages, requests.data(), MPI_STATUSES_IGNORE);
            // In the first ones they find each other, and compile.
            if (round >= 2) {
                events = std::min(events, operations().events - before);
            }
            MPI_Barrier(MPI_COMM_WORLD);
        }
        if (rank != 1) {
            continue;
        }
        // ROCm's default stream is waited for with one event each.
        const char* const emulated = std::getenv("AWAKEN_EMULATE");
        const std::uint64_t order = emulated != nullptr && std::strncmp(emulated, "hip", 3) == 0 ? kMessages : 0;
        expect(name, events <= kMessages / 4 + order, std::to_string(events) + " events");
        const std::vector<std::byte> from = source.read(), to = target.read();
        for (int i = 0; i < kMessages; ++i) {
            expect(name, packed(to, i * kBytes, type) == packed(from, i * kBytes, type),
                   "other bytes than were sent in message " + std::to_string(i));
        }
        std::printf("# %s: %llu events for %d messages\nok %s\n", name.c_str(), static_cast<unsigned long long>(events),
                    kMessages, name.c_str());
    }
}

/// Rank 0 starts many sends in a row: one answer about its default stream serves several.
void burst(Gpu& gpu) {
    constexpr int kMessages = 64, kBytes = 4096, kRounds = 20;
    const std::size_t all = std::size_t{kMessages} * kBytes;
    const Field source(gpu, all, 1), target(gpu, all, 77);
    std::uint64_t fewest = std::numeric_limits<std::uint64_t>::max();
    for (int round = 0; round < kRounds; ++round) {
        std::vector<MPI_Request> requests(kMessages);
        for (int i = 0; i < kMessages && rank == 1; ++i) {
            MPI_Irecv(target.data() + i * kBytes, kBytes, MPI_BYTE, 0, kTag, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        const std::uint64_t before = answers();
        for (int i = 0; i < kMessages && rank == 0; ++i) {
            MPI_Isend(source.data() + i * kBytes, kBytes, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(kMessages, requests.data(), MPI_STATUSES_IGNORE);
        // In the first ones they find each other.
        if (round >= 2) {
            fewest = std::min(fewest, answers() - before);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 0) {
        expect("a burst", fewest <= kMessages / 3, std::to_string(fewest) + " answers");
    }
    if (rank != 1) {
        return;
    }
    expect("a burst", target.read() == source.read(), "other bytes than were sent");
    std::printf("ok a burst\n");
}

/// Each rank sends many small messages before the other one receives, and receives them in the reverse order. Each is
/// copied by its receiver, and by its sender where no slot is free or the receiver does not come. One event tells that
/// a copy is over, and ROCm's default stream is waited for with one more before it. A sender that offers in a burst
/// marks the default stream with one.
void late(Gpu& gpu) {
    constexpr int kBytes = 64, kRounds = 3;
    const int other = 1 - rank;
    for (const int messages : {200, 2000}) {
        const std::string name = std::to_string(messages) + " late messages";
        const std::size_t all = static_cast<std::size_t>(messages) * kBytes;
        const Field source(gpu, all, 1), target(gpu, all, 77);
        Operations before, after;
        for (int round = 0; round < kRounds; ++round) {  // in the first ones they find each other
            std::vector<MPI_Request> requests;
            before = operations();
            for (int i = 0; i < messages; ++i) {
                MPI_Isend(source.data() + i * kBytes, kBytes, MPI_BYTE, other, i, MPI_COMM_WORLD,
                          &requests.emplace_back());
            }
            MPI_Barrier(MPI_COMM_WORLD);
            for (int i = messages; i-- > 0;) {
                MPI_Irecv(target.data() + i * kBytes, kBytes, MPI_BYTE, other, i, MPI_COMM_WORLD,
                          &requests.emplace_back());
            }
            MPI_Waitall(2 * messages, requests.data(), MPI_STATUSES_IGNORE);
            after = operations();
            MPI_Barrier(MPI_COMM_WORLD);
        }
        const std::uint64_t copies = after.copies - before.copies, kernels = after.kernels - before.kernels,
                            events = after.events - before.events;
        const auto count = static_cast<std::uint64_t>(messages);
        constexpr std::uint64_t kOnce = 64;
        const std::string used = std::to_string(copies) + " copies, " + std::to_string(kernels) + " kernels, " +
                                 std::to_string(events) + " events";
        expect(name, copies + kernels <= 2 * count + kOnce && events <= 5 * count + kOnce, used);
        expect(name, target.read() == source.read(), "other bytes than were sent");
        if (rank == 0) {
            std::printf("# %s: %s\nok %s\n", name.c_str(), used.c_str(), name.c_str());
        }
    }
}

/// Short messages of several lengths and types from all over a large allocation, which is mapped after some of them.
void from_large_allocations(Gpu& gpu) {
    constexpr std::size_t kBytes = std::size_t{80} << 20, kStep = 256 << 10;
    constexpr int kMessages = static_cast<int>(kBytes / kStep);
    const int other = 1 - rank;
    const Field source(gpu, kBytes, 1), target(gpu, kBytes, 77);
    const Type column = make([](MPI_Datatype* t) { return MPI_Type_vector(512, 8, 256, MPI_BYTE, t); });
    std::vector<std::byte> expected = target.read();
    const std::vector<std::byte> sent = source.read();
    for (int i = 0; i < kMessages; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * kStep + static_cast<std::size_t>(i) % 64;
        const bool typed = i % 3 == 1;
        const int count = typed ? 1 : 1 << i % 18;
        const MPI_Datatype type = typed ? static_cast<MPI_Datatype>(column) : MPI_BYTE;
        MPI_Request requests[2];
        MPI_Irecv(target.data() + at, count, type, other, i, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(source.data() + at, count, type, other, i, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        for (std::size_t block = 0; block < (typed ? 512U : 1U); ++block) {
            const std::size_t from = at + block * 256;
            std::memcpy(expected.data() + from, sent.data() + from, typed ? 8 : static_cast<std::size_t>(count));
        }
    }
    expect("a large allocation", target.read() == expected, "other bytes than were sent");
    std::printf("ok a large allocation\n");
}

void pack_and_unpack(Gpu& gpu, const Type& type) {
    const ranks::Room room(type, 1);
    const Field source(gpu, room.bytes, 1), target(gpu, room.bytes, 77);
    const std::vector<std::byte> expected = packed(source.read(), room.origin, type);
    const int size = static_cast<int>(expected.size());
    const Field device(gpu, expected.size() + 64, 3);
    std::vector<std::byte> host(expected.size() + 64);
    for (const bool on_device : {true, false}) {
        const std::string name = on_device ? "MPI_Pack on the device" : "MPI_Pack to the host";
        std::byte* const buffer = on_device ? device.data() : host.data();
        const auto before = operations();
        int position = 8;
        MPI_Pack(source.data() + room.origin, 1, type, buffer, size + 64, &position, MPI_COMM_WORLD);
        expect(name, position == size + 8, "position " + std::to_string(position));
        position = 8;
        MPI_Unpack(buffer, size + 64, &position, target.data() + room.origin, 1, type, MPI_COMM_WORLD);
        const auto after = operations();
        expect(name, position == size + 8, "position " + std::to_string(position));
        expect(name, after.copies - before.copies + after.kernels - before.kernels <= 5,
               std::to_string(after.copies - before.copies) + " copies and " +
                   std::to_string(after.kernels - before.kernels) + " kernels");
        const std::vector<std::byte> image = on_device ? device.read() : host;
        expect(name, std::memcmp(image.data() + 8, expected.data(), expected.size()) == 0, "other bytes than MPI's");
        expect(name, packed(target.read(), room.origin, type) == expected, "not what was packed");
        if (rank == 0) {
            std::printf("ok %s\n", name.c_str());
        }
    }
}

void run(Gpu& gpu) {
    const Type column = make([](MPI_Datatype* t) { return MPI_Type_vector(16384, 1, 4, MPI_DOUBLE, t); });
    const Type face = make([](MPI_Datatype* t) {
        const int sizes[] = {40, 40, 40}, subsizes[] = {40, 30, 1}, starts[] = {0, 2, 7};
        return MPI_Type_create_subarray(3, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, t);
    });
    std::vector<int> lengths, displacements;
    for (int block = 0, at = 0; block < 10000; ++block) {
        lengths.push_back(1 + (block * 7919) % 3);
        displacements.push_back(at);
        at += lengths.back() + 1 + (block * 104729) % 2;
    }
    const Type irregular = make([&](MPI_Datatype* t) {
        return MPI_Type_indexed(static_cast<int>(lengths.size()), lengths.data(), displacements.data(), MPI_SHORT, t);
    });
    // On whatever path: a kernel for each part of the message, a copy of it where that passes through something, and
    // the same again where the sender does not wait for its receiver.
    constexpr std::uint64_t kMost = 12;
    message(gpu, "16384 blocks of a column", column, kMost);
    message(gpu, "a face of a cube", face, kMost);
    message(gpu, "10000 irregular blocks", irregular, kMost);
    pack_and_unpack(gpu, column);
    pack_and_unpack(gpu, irregular);
}

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const auto gpu = Gpu::open("auto");
    gpu->use_device(rank % gpu->device_count());
    const std::string only = argc > 1 ? argv[1] : "";
    if (only == "--bursts" || only == "--late" || only == "--large") {
        only == "--late" ? late(*gpu) : only == "--large" ? from_large_allocations(*gpu) : burst(*gpu);
        MPI_Finalize();
        return failures == 0 ? 0 : 1;
    }
    run(*gpu);
    if (only == "--windows") {
        window(*gpu);
    }
    MPI_Finalize();
    return failures == 0 ? 0 : 1;
}
