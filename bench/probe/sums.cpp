// SPDX-License-Identifier: Apache-2.0
// Whether a sum of floating-point numbers has the bits of a fold in the order of the ranks, on a communicator that asks
// for that ("awaken_reproducible").
#include <algorithm>
#include <cstring>
#include <functional>
#include <span>

#include "mpi/mpi_communication.h"
#include "probe/commands.h"
#include "probe/record.h"

namespace awaken::probe {
namespace {

using bench::check_mpi;
using Numbers = std::vector<double>;

/// Of very different magnitudes, so that another order gives other bits.
Numbers summands(const int rank, const int count) {
    Numbers all;
    for (int i = 0; i < count; ++i) {
        const int draw = (rank * 7919 + i * 104729) % 1021;
        all.push_back((draw % 2 == 0 ? 1.0 : -1.0) / (1 + draw) * static_cast<double>(1 << (draw % 29)));
    }
    return all;
}

Numbers folded(const int ranks, const int count) {
    Numbers sum = summands(0, count);
    for (int rank = 1; rank < ranks; ++rank) {
        const Numbers next = summands(rank, count);
        std::transform(sum.begin(), sum.end(), next.begin(), sum.begin(), std::plus<>());
    }
    return sum;
}

bool sums_are_folded(const Job& job, const MPI_Comm comm, const bench::BufferKind kind, const int count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(double);
    bench::Buffer numbers(*job.placement.gpu, job.placement.device, {kind, false}, bytes);
    const Numbers own = summands(job.rank, count), expected = folded(job.ranks, count);
    numbers.write(std::as_bytes(std::span(own)));
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, numbers.data(), count, MPI_DOUBLE, MPI_SUM, comm), "MPI_Allreduce");
    std::vector<std::byte> found(bytes);
    numbers.read(found);
    return std::memcmp(found.data(), expected.data(), bytes) == 0;
}

}  // namespace

void try_sums(const Job& job, const Arguments& arguments) {
    if (!all_have_gpus(job)) {
        finish(job);
        return;
    }
    MPI_Info info = MPI_INFO_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Info_create(&info), "MPI_Info_create");
    check_mpi(MPI_Info_set(info, "awaken_reproducible", "true"), "MPI_Info_set");
    check_mpi(MPI_Comm_dup_with_info(job.communicator, info, &comm), "MPI_Comm_dup_with_info");
    check_mpi(MPI_Info_free(&info), "MPI_Info_free");
    for (const bench::BufferKind kind : arguments.kinds) {
        if (kind != bench::BufferKind::host && kind != bench::BufferKind::device) {
            continue;
        }
        int same = 1, all = 0;
        for (const int count : {1, 1000, 100000}) {
            same = sums_are_folded(job, comm, kind, count) ? same : 0;
        }
        check_mpi(MPI_Allreduce(&same, &all, 1, MPI_INT, MPI_MIN, job.communicator), "MPI_Allreduce");
        if (job.rank == 0) {
            write_record(
                {{"record", "sums"}, {"kind", bench::to_string(kind)}, {"ranks", job.ranks}, {"same", all != 0}});
        }
    }
    check_mpi(MPI_Comm_free(&comm), "MPI_Comm_free");
    finish(job);
}

}  // namespace awaken::probe
