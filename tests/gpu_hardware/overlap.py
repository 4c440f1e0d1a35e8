# SPDX-License-Identifier: Apache-2.0
"""Times MPI_Iallreduce beside work of equal length on the GPU: each alone, both together, and their ratio.

    mpiexec -n 2 awaken exec -- python3 tests/gpu_hardware/overlap.py [--bytes N] [--rounds N] [--json FILE]

One GPU a rank; PyTorch for the work, mpi4py for MPI. The work is a copy in memory, and then a matrix product of
doubles, of a size that takes as long as the sum alone (within 10 %). It runs in a stream of its own. Times are medians
over rounds of the slowest rank's, in microseconds; a round of each kind follows the other, so that a drift of the
machine meets all. The sum is checked. Exit status 1 when it is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from mpi4py import MPI

WARM_UP_ROUNDS = 5
TARGET_RATIO = 1.15
"""What both together may take, in units of the longer one."""

world = MPI.COMM_WORLD


def as_buffer(tensor: torch.Tensor) -> list[object]:
    """The memory of `tensor` as mpi4py takes it, without asking mpi4py to know of GPUs."""
    return [MPI.memory.fromaddress(tensor.data_ptr(), tensor.numel() * tensor.element_size()), MPI.DOUBLE]


def slowest(action: Callable[[], None]) -> float:
    """Microseconds that `action` takes on the rank where it takes longest."""
    torch.cuda.synchronize()
    world.Barrier()
    begin = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return float(world.allreduce((time.perf_counter() - begin) * 1e6, MPI.MAX))


def median_of(action: Callable[[], None], rounds: int) -> float:
    for _ in range(WARM_UP_ROUNDS):
        slowest(action)
    return statistics.median(slowest(action) for _ in range(rounds))


def copy_of(elements: int, stream: torch.cuda.Stream) -> Callable[[], None]:
    """A copy of so many doubles in the GPU's memory."""
    source = torch.ones(elements, dtype=torch.float64, device="cuda")
    target = torch.empty_like(source)

    def work() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source)

    return work


def product_of(size: int, stream: torch.cuda.Stream) -> Callable[[], None]:
    """A product of two square matrices of doubles."""
    left = torch.rand((size, size), dtype=torch.float64, device="cuda")
    result = torch.empty_like(left)

    def work() -> None:
        with torch.cuda.stream(stream):
            torch.mm(left, left, out=result)

    return work


def drawn_out(
    make: Callable[[int, torch.cuda.Stream], Callable[[], None]],
    size: int,
    exponent: float,
    step: int,
    wanted: float,
    stream: torch.cuda.Stream,
) -> tuple[int, Callable[[], None]]:
    """Work of a size that takes about `wanted` microseconds, when its time goes with size ** `exponent`."""
    for _ in range(8):
        work = make(size, stream)
        taken = median_of(work, 9)
        if abs(taken - wanted) < 0.1 * wanted:
            break
        size = max(step, round(size * math.pow(wanted / taken, 1 / exponent) / step) * step)
    return size, work


def main() -> int:
    parser = argparse.ArgumentParser(description="MPI_Iallreduce beside work of equal length on the GPU")
    parser.add_argument("--bytes", type=int, default=64 << 20, help="bytes of doubles that are summed")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path, help="also writes the figures here")
    given = parser.parse_args()
    torch.cuda.set_device(world.rank % torch.cuda.device_count())
    count = given.bytes // 8
    data = torch.full((count,), float(world.rank + 1), dtype=torch.float64, device="cuda")
    total = torch.zeros_like(data)
    sent, received = as_buffer(data), as_buffer(total)
    stream = torch.cuda.Stream()

    # A nonblocking collective is done on the GPUs when a blocking one has shown that all pass device memory.
    for _ in range(3):
        world.Allreduce(sent, received)

    def reduce() -> None:
        world.Iallreduce(sent, received).Wait()

    alone = median_of(reduce, given.rounds)
    if not bool((total == world.size * (world.size + 1) / 2).all()):
        print(f"rank {world.rank}: the sum is wrong", file=sys.stderr)
        return 1
    results = []
    for name, make, size, exponent, step in (
        ("copy in memory", copy_of, 1 << 24, 1.0, 1 << 16),
        ("product of doubles", product_of, 1792, 3.0, 64),
    ):
        size, work = drawn_out(make, size, exponent, step, alone, stream)

        def both(work: Callable[[], None] = work) -> None:
            request = world.Iallreduce(sent, received)
            work()
            request.Wait()

        for action in (reduce, work, both):
            median_of(action, 1)
        times: dict[str, list[float]] = {"sum": [], "work": [], "both": []}
        for _ in range(given.rounds):
            times["sum"].append(slowest(reduce))
            times["work"].append(slowest(work))
            times["both"].append(slowest(both))
        middle = {kind: statistics.median(values) for kind, values in times.items()}
        quartiles = statistics.quantiles(times["both"], n=4)
        longer = max(middle["sum"], middle["work"])
        results.append(
            {
                "work": name,
                "size": size,
                "sum_us": middle["sum"],
                "work_us": middle["work"],
                "both_us": middle["both"],
                "both_quartiles_us": [quartiles[0], quartiles[2]],
                "ratio": middle["both"] / longer,
            }
        )
        if world.rank == 0:
            verdict = "met" if middle["both"] < TARGET_RATIO * longer else "missed"
            print(
                f"{name} of {size}: sum {middle['sum']:.1f} us, work {middle['work']:.1f} us, both"
                f" {middle['both']:.1f} us ({quartiles[0]:.1f} to {quartiles[2]:.1f}): {middle['both'] / longer:.3f}"
                f" of the longer one ({TARGET_RATIO}: {verdict})",
                flush=True,
            )
    if world.rank == 0 and given.json is not None:
        given.json.write_text(
            json.dumps({"bytes": given.bytes, "ranks": world.size, "rounds": given.rounds, "results": results})
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
