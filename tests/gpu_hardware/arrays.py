# SPDX-License-Identifier: Apache-2.0
"""CuPy arrays and PyTorch tensors through mpi4py, on an MPI without GPU support. Run by run.py under `awaken exec`.

Each rank sends, receives and reduces device arrays and compares with NumPy; exit status 1 on a difference.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

SIZES = [1, 1000, 1 << 20, 40 << 20]  # elements of 8 bytes; the last exceeds the default pinned pool


def check(name: str, equal: bool, rank: int) -> bool:
    if not equal:
        print(f"FAIL {name} on rank {rank}", flush=True)
    return equal


def with_cupy(comm: MPI.Comm) -> bool:
    import cupy

    rank, size = comm.Get_rank(), comm.Get_size()
    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    good = True
    for n in SIZES:
        mine = cupy.arange(n, dtype=cupy.float64) + rank
        other = cupy.zeros(n, dtype=cupy.float64)
        left, right = (rank - 1) % size, (rank + 1) % size
        comm.Sendrecv(mine, dest=right, recvbuf=other, source=left)
        good &= check(f"cupy sendrecv {n}", bool((other == cupy.arange(n) + left).all()), rank)
        total = cupy.empty_like(mine)
        comm.Allreduce(mine, total, op=MPI.SUM)
        expected = size * np.arange(n, dtype=np.float64) + size * (size - 1) / 2
        good &= check(f"cupy allreduce {n}", bool((cupy.asnumpy(total) == expected).all()), rank)
        # Zeroed by a call that returns early, and used at once.
        total.fill(7)
        cupy.cuda.runtime.memset(total.data.ptr, 0, total.nbytes)
        comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
        good &= check(f"cupy memset then allreduce {n}", bool((total == 0).all()), rank)
    # A column of a matrix, as a vector datatype.
    matrix = cupy.arange(600 * 500, dtype=cupy.float64).reshape(600, 500) * (rank + 1)
    column = MPI.DOUBLE.Create_vector(600, 1, 500).Commit()
    target = cupy.zeros(600, dtype=cupy.float64)
    requests = [
        comm.Isend([matrix, 1, column], dest=(rank + 1) % size, tag=3),
        comm.Irecv(target, source=(rank - 1) % size, tag=3),
    ]
    MPI.Request.Waitall(requests)
    column.Free()
    expected = np.arange(600 * 500, dtype=np.float64).reshape(600, 500)[:, 0] * ((rank - 1) % size + 1)
    return good & check("cupy column", bool((cupy.asnumpy(target) == expected).all()), rank)


def with_torch(comm: MPI.Comm) -> bool:
    import torch

    rank, size = comm.Get_rank(), comm.Get_size()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    good = True
    for n in SIZES:
        mine = torch.arange(n, dtype=torch.float64, device="cuda") * (rank + 1)
        other = torch.zeros(n, dtype=torch.float64, device="cuda")
        torch.cuda.synchronize()
        left, right = (rank - 1) % size, (rank + 1) % size
        requests = [comm.Irecv(other, source=left, tag=1), comm.Isend(mine, dest=right, tag=1)]
        MPI.Request.Waitall(requests)
        good &= check(f"torch isend {n}", bool((other == torch.arange(n, device="cuda") * (left + 1)).all()), rank)
        comm.Bcast(other, root=size - 1)
        last = (size - 2) % size + 1
        good &= check(f"torch bcast {n}", bool((other == torch.arange(n, device="cuda") * last).all()), rank)
    return good


def main() -> int:
    comm = MPI.COMM_WORLD
    good = True
    for name, run in (("CuPy", with_cupy), ("PyTorch", with_torch)):
        try:
            passed = run(comm)
        except ImportError as missing:
            passed = True
            if comm.Get_rank() == 0:
                print(f"skipped {name}: {missing}", flush=True)
            continue
        passed = comm.allreduce(passed, op=MPI.LAND)
        if comm.Get_rank() == 0:
            print(
                f"{'ok' if passed else 'FAIL'} {name} through {MPI.Get_library_version().splitlines()[0]}", flush=True
            )
        good &= passed
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
