// SPDX-License-Identifier: Apache-2.0
// Times messages of datatypes with gaps against the same bytes lying together, one way, between two GPUs.
//
//   datatype_times [--field=N] [--cube=M] [--dense=BYTES] [--rounds=R]
//
// A column of an N x N field of doubles (a halo), the three faces of a cube of M x M x M doubles, and a dense vector
// (512 of each 1024 bytes) of BYTES bytes. Rank 0 prints a line a case: name, bytes, microseconds one way with the
// datatype, microseconds for the same bytes together, their ratio; for the column also what copying it block by block
// to the host takes by itself. Medians of R ping-pongs. Every message is checked once. Two ranks; started by
// tests/gpu_hardware/datatypes.py.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gpu_memory.h"
#include "types.h"

namespace {

using Clock = std::chrono::steady_clock;
using ranks::Gpu;
using ranks::Kind;
using ranks::make;
using ranks::Type;

constexpr int kTag = 3;
int rank = 0;

struct Options {
    long long field = 16384, cube = 512, dense = 256LL << 20;
    int rounds = 50;
};

double microseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

class Memory {
  public:
    Memory(Gpu& gpu, std::size_t bytes) : _gpu(gpu), _data(gpu.allocate(Kind::device, bytes)) {}
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { _gpu.free(Kind::device, _data); }
    [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(_data); }

  private:
    Gpu& _gpu;
    void* _data;
};

/// Half a ping-pong.
double one_way(void* buffer, int count, MPI_Datatype type, int rounds) {
    constexpr int kWarmUp = 5;
    std::vector<double> times;
    for (int round = -kWarmUp; round < rounds; ++round) {
        MPI_Barrier(MPI_COMM_WORLD);
        const auto start = Clock::now();
        if (rank == 0) {
            MPI_Send(buffer, count, type, 1, kTag, MPI_COMM_WORLD);
            MPI_Recv(buffer, count, type, 1, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, count, type, 0, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, count, type, 0, kTag, MPI_COMM_WORLD);
        }
        if (round >= 0) {
            times.push_back(microseconds_since(start) / 2);
        }
    }
    return median(times);
}

/// The bytes of the type at `memory`, as MPI packs them.
std::vector<std::byte> packed(void* memory, MPI_Datatype type, int size) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    int position = 0;
    MPI_Pack(memory, 1, type, bytes.data(), size, &position, MPI_COMM_WORLD);
    return bytes;
}

/// `room`: from the buffer's address on. False when the bytes that arrived are not those that were sent.
bool measure(Gpu& gpu, const char* name, const Type& type, std::size_t room, const Options& options,
             double block_by_block_us = 0) {
    int size = 0;
    MPI_Type_size(type, &size);
    const Memory field(gpu, room), together(gpu, static_cast<std::size_t>(size));
    gpu.memset(field.data(), 0, room);
    std::vector<std::byte> content(static_cast<std::size_t>(size));
    for (std::size_t at = 0; at < content.size(); ++at) {
        content[at] = static_cast<std::byte>((at * 2654435761U) >> 11);
    }
    if (rank == 0) {
        int position = 0;
        MPI_Unpack(content.data(), size, &position, field.data(), 1, type, MPI_COMM_WORLD);
    }
    gpu.synchronize();
    const double typed_us = one_way(field.data(), 1, type, options.rounds);
    const double together_us = one_way(together.data(), size, MPI_BYTE, options.rounds);
    int right = packed(field.data(), type, size) == content ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0) {
        std::printf("%s bytes=%d typed_us=%.2f together_us=%.2f ratio=%.3f", name, size, typed_us, together_us,
                    typed_us / together_us);
        if (block_by_block_us > 0) {
            std::printf(" block_by_block_us=%.2f", block_by_block_us);
        }
        std::printf("%s\n", right != 0 ? "" : " WRONG");
        std::fflush(stdout);
    }
    return right != 0;
}

/// What a program without GPU-aware datatypes does: a copy for each block of the column.
double block_by_block(Gpu& gpu, long long rows) {
    const auto pitch = static_cast<std::size_t>(rows) * sizeof(double);
    const Memory field(gpu, pitch * static_cast<std::size_t>(rows));
    std::vector<double> column(static_cast<std::size_t>(rows));
    std::vector<double> times;
    for (int round = 0; round < 3; ++round) {
        const auto start = Clock::now();
        for (std::size_t row = 0; row < column.size(); ++row) {
            gpu.read(&column[row], field.data() + row * pitch, sizeof(double));
        }
        times.push_back(microseconds_since(start));
    }
    return median(times);
}

bool run(Gpu& gpu, const Options& options) {
    bool right = true;

    const int n = static_cast<int>(options.field);
    const Type column = make([&](MPI_Datatype* t) { return MPI_Type_vector(n, 1, n, MPI_DOUBLE, t); });
    const double by_hand = rank == 0 ? block_by_block(gpu, options.field) : 0;
    right &=
        measure(gpu, "column", column, static_cast<std::size_t>(n) * static_cast<std::size_t>(n) * 8, options, by_hand);

    const int m = static_cast<int>(options.cube);
    const std::size_t cube =
        static_cast<std::size_t>(m) * static_cast<std::size_t>(m) * static_cast<std::size_t>(m) * 8;
    const char* const names[] = {"face_z", "face_y", "face_x"};  // the last index is the fastest
    for (int dimension = 0; dimension < 3; ++dimension) {
        const int sizes[] = {m, m, m}, starts[] = {0, 0, 0};
        int subsizes[] = {m, m, m};
        subsizes[dimension] = 1;
        const Type face = make([&](MPI_Datatype* t) {
            return MPI_Type_create_subarray(3, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, t);
        });
        right &= measure(gpu, names[dimension], face, cube, options);
    }
    constexpr int kBlock = 512;
    const int blocks = static_cast<int>(std::max(1LL, options.dense / kBlock));
    const Type dense = make([&](MPI_Datatype* t) { return MPI_Type_vector(blocks, kBlock, 2 * kBlock, MPI_BYTE, t); });
    right &= measure(gpu, "dense", dense, static_cast<std::size_t>(blocks) * 2 * kBlock, options);
    return right;
}

bool option(const char* argument, const char* name, long long& value) {
    const std::size_t length = std::strlen(name);
    if (std::strncmp(argument, name, length) != 0 || argument[length] != '=') {
        return false;
    }
    char* end = nullptr;
    value = std::strtoll(argument + length + 1, &end, 10);
    return *end == '\0' && value > 0;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        long long rounds = 0;
        if (option(argv[i], "--rounds", rounds)) {
            options.rounds = static_cast<int>(rounds);
        } else if (!option(argv[i], "--field", options.field) && !option(argv[i], "--cube", options.cube) &&
                   !option(argv[i], "--dense", options.dense)) {
            std::fprintf(stderr, "%s is not an option: use --field=N --cube=M --dense=BYTES --rounds=R\n", argv[i]);
            return 2;
        }
    }
    MPI_Init(&argc, &argv);
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 2) {
        std::fprintf(stderr, "datatype_times: start two ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const auto gpu = Gpu::open("auto");
    gpu->use_device(rank % std::max(1, gpu->device_count()));
    const bool right = run(*gpu, options);
    MPI_Finalize();
    return right ? 0 : 1;
}
