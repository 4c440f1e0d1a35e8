# SPDX-License-Identifier: Apache-2.0
"""Rates of messages between GPUs from and to memory of several allocators.

    mpiexec -n 2 awaken exec -- python3 tests/gpu_hardware/allocators.py [--mib 1,16,64] [KIND...]

Two ranks, one GPU each where there are two. A message and an answer of one byte; the median of 20, in GB/s, once with
the same buffer each time and once with buffers that were just allocated. Needs mpi4py, CuPy for `cupy`, `async` and
`managed`, PyTorch for `torch` and `expandable`. PyTorch chooses its allocator once, so `expandable` wants
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and a run of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

MIB = 1 << 20
REPETITIONS, WARMUP = 20, 5
EXPANDABLE = "expandable_segments:True"
Memory = tuple[Any, Any]  # what keeps it, and how MPI sees it


def cupy_memory(kind: str, device: int) -> Callable[[int], Memory]:
    import cupy

    cupy.cuda.Device(device % cupy.cuda.runtime.getDeviceCount()).use()
    allocator = {
        "cupy": cupy.cuda.MemoryPool().malloc,
        "async": cupy.cuda.MemoryAsyncPool().malloc,
        "managed": cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc,
    }[kind]
    cupy.cuda.set_allocator(allocator)

    def make(size: int) -> Memory:
        array = cupy.full(size, 7, dtype=cupy.uint8)
        cupy.cuda.Device().synchronize()
        return array, MPI.memory.fromaddress(array.data.ptr, array.nbytes)

    return make


def torch_memory(kind: str, device: int) -> Callable[[int], Memory]:
    if (EXPANDABLE in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")) != (kind == "expandable"):
        sys.exit(f"{kind}: set PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE} for `expandable`, and not for `torch`")
    import torch

    torch.cuda.set_device(device % torch.cuda.device_count())

    def make(size: int) -> Memory:
        tensor = torch.full((size,), 7, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        return tensor, MPI.memory.fromaddress(tensor.data_ptr(), tensor.numel())

    return make


KINDS = {
    "cupy": cupy_memory,
    "async": cupy_memory,
    "managed": cupy_memory,
    "torch": torch_memory,
    "expandable": torch_memory,
}


def seconds(comm: MPI.Comm, buffer: Any) -> float:
    """Time of one message from rank 0 to rank 1 and the answer."""
    answer = bytearray(1)
    comm.Barrier()
    begin = time.perf_counter()
    if comm.rank == 0:
        comm.Send([buffer, MPI.BYTE], 1)
        comm.Recv([answer, MPI.BYTE], 1)
    else:
        comm.Recv([buffer, MPI.BYTE], 0)
        comm.Send([answer, MPI.BYTE], 0)
    return time.perf_counter() - begin


def rate(comm: MPI.Comm, make: Callable[[int], Memory], size: int, fresh: bool) -> float:
    """Median in GB/s."""
    memory = make(size)
    times = []
    for _ in range(WARMUP + REPETITIONS):
        if fresh:
            del memory
            memory = make(size)
        times.append(seconds(comm, memory[1]))
    return size / statistics.median(times[WARMUP:]) / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description="Rates of messages from and to memory of several allocators.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--mib", default="1,4,16,64,256", metavar="SIZES", help="message sizes in MiB")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    unknown = [kind for kind in options.kinds if kind not in KINDS]
    if unknown or comm.size != 2:
        sys.exit(f"two ranks, and kinds among {', '.join(KINDS)}: {', '.join(unknown)}")
    sizes = [int(size) for size in options.mib.split(",")]
    if comm.rank == 0:
        print("GB/s".ljust(22) + "".join(f"{size:>9} MiB" for size in sizes), flush=True)
    for kind in options.kinds or ["cupy"]:
        make = KINDS[kind](kind, comm.rank)
        for fresh in (False, True):
            rates = [rate(comm, make, size * MIB, fresh) for size in sizes]
            if comm.rank == 0:
                print(f"{kind + (', new' if fresh else ''):22}" + "".join(f"{one:13.1f}" for one in rates), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
