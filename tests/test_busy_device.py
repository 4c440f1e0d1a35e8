# SPDX-License-Identifier: Apache-2.0
"""MPI calls while the GPUs are busy with work that ends only after them: tests/ranks/busy_device.cpp.

What waits for the GPU hangs there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import harness
import pytest

Case = tuple[str, str, int, dict[str, str], tuple[str, ...]]
"""(MPI, emulated runtime, ranks, settings, arguments)"""

AGREED = ("persistent", "iallreduce")
"""Collectives that all ranks have agreed to do by their GPUs. Behind others they may meet an old mapping that cannot be
closed, and wait until the GPU is idle: docs/decisions/0003-nothing-waits-for-the-device.md."""

COLD = ("exchanges", "strided", "new_memory", "allreduce", "new_memory_in_collectives", "window", *AGREED)
"""By themselves, before anything was sent: kernels are not loaded then, nor memory of others mapped."""

CASES: dict[str, Case] = {
    "mpich-cuda": ("mpich", "cuda:2", 2, {}, ()),
    "openmpi-hip": ("openmpi", "hip:2", 2, {}, ("--mix=d",)),
    "openmpi-cuda-3": ("openmpi", "cuda:3", 3, {}, ("--mix=device",)),
    "mpich-hip5": ("mpich", "hip5:2", 2, {}, ("--mix=device",)),
    "mpi5-hip": ("mpi5", "hip:2", 2, {}, ("--mix=device",)),
    "staged": ("mpich", "cuda:2", 2, {"AWAKEN_PATH": "staged", "AWAKEN_COLLECTIVES": "* : staged"}, ("--mix=device",)),
    "ring-mpich": ("mpich", "cuda:2", 2, {"AWAKEN_PATH": "ring"}, ("--mix=device",)),
    "ring-openmpi": ("openmpi", "cuda:2", 2, {"AWAKEN_PATH": "ring"}, ("--mix=device",)),
    "pretended-nodes": ("mpich", "cuda:2", 2, {"AWAKEN_TEST_NODES": "2"}, ("--mix=device",)),
    **{f"cold-{name}": ("mpich", "cuda:2", 2, {}, (f"--filter={name}", "--mix=device")) for name in COLD},
    **{
        f"cold-hip-{name}": ("openmpi", "hip:2", 2, {}, (f"--filter={name}", "--mix=device"))
        for name in ("allreduce", "new_memory_in_collectives", "iallreduce")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_no_call_waits_for_the_device(
    name: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    mpi, emulate, ranks, settings, arguments = CASES[name]
    without = () if name.startswith("cold-") else tuple(f"--except={case}" for case in AGREED)
    gpu = "cuda" if emulate.startswith("cuda") else "hip"
    result = harness.run_ranks(
        mpi_named(mpi),
        ranks,
        [rank_program(mpi, "busy_device"), f"--gpu={gpu}", *arguments, *without],
        emulate=emulate,
        environment=settings,
        timeout=harness.HANG_S,
    )
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"
