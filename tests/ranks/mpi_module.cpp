// SPDX-License-Identifier: Apache-2.0
// A library that is linked with MPI, for programs that are not (module_host.cpp): messages and a reduction on device
// memory, called directly and through a pointer, of which the dynamic loader writes each in a table of its own.
#include "support.h"

using namespace ranks;

namespace {

int (*const volatile reduce_by_pointer)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm) = MPI_Allreduce;

bool holds(Buffer& buffer, const std::vector<double>& wanted) {
    const std::vector<std::byte> bytes = buffer.read();
    return std::memcmp(bytes.data(), wanted.data(), bytes.size()) == 0;
}

}  // namespace

/// 0 when all data have come.
extern "C" __attribute__((visibility("default"))) int run_module(const char* const gpu_name) {
    constexpr int kCount = 50000;
    constexpr std::size_t kBytes = kCount * sizeof(double);
    int rank = 0, size = 0;
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    bool right = true;
    {
        const std::unique_ptr<Gpu> gpu = Gpu::open(gpu_name);
        gpu->use_device(rank % gpu->device_count());
        Buffer own(*gpu, Kind::device, kBytes), other(*gpu, Kind::device, kBytes);
        own.write(std::vector<double>(kCount, rank + 1).data(), kBytes);
        const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
        MPI_Sendrecv(own.data(), kCount, MPI_DOUBLE, next, 0, other.data(), kCount, MPI_DOUBLE, previous, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        right = holds(other, std::vector<double>(kCount, previous + 1));
        reduce_by_pointer(MPI_IN_PLACE, own.data(), kCount, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        right = holds(own, std::vector<double>(kCount, size * (size + 1) / 2)) && right;
    }
    MPI_Finalize();
    return right ? 0 : 1;
}
