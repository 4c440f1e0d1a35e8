"""MPI calls while the GPUs are busy with work that ends only after them: tests/ranks/busy_device.cpp.

What waits for the GPU hangs there, or fails on the emulated driver, which names it (AWAKEN_EMULATE_BUSY=error).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import harness
import pytest

# (MPI, emulated runtime, ranks, settings, arguments)
Case = tuple[str, str, int, dict[str, str], tuple[str, ...]]

# By themselves, before anything was sent: kernels are not loaded then, nor memory of others mapped.
COLD = ("exchanges", "strided", "new_memory", "allreduce", "new_memory_in_collectives", "persistent", "window")

CASES: dict[str, Case] = {
    "mpich-cuda": ("mpich", "cuda:2", 2, {}, ()),
    "openmpi-hip": ("openmpi", "hip:2", 2, {}, ("--mix=d",)),
    "openmpi-cuda-3": ("openmpi", "cuda:3", 3, {}, ("--mix=device",)),
    "mpich-hip5": ("mpich", "hip5:2", 2, {}, ("--mix=device",)),
    "mpi5-hip": ("mpi5", "hip:2", 2, {}, ("--mix=device",)),
    "staged": ("mpich", "cuda:2", 2, {"AWAKEN_PATH": "staged", "AWAKEN_COLLECTIVES": "* : staged"}, ("--mix=device",)),
    "ring-mpich": ("mpich", "cuda:2", 2, {"AWAKEN_PATH": "ring"}, ("--mix=device",)),
    "ring-openmpi": ("openmpi", "hip:2", 2, {"AWAKEN_PATH": "ring"}, ("--mix=device",)),
    "pretended-nodes": ("mpich", "cuda:2", 2, {"AWAKEN_PRETEND_NODES": "2"}, ("--mix=device",)),
    **{f"cold-{name}": ("mpich", "cuda:2", 2, {}, (f"--filter={name}", "--mix=device")) for name in COLD},
    **{f"cold-hip-{name}": ("openmpi", "hip:2", 2, {}, (f"--filter={name}", "--mix=device")) for name in COLD[3:5]},
}


@pytest.mark.parametrize("name", CASES)
def test_no_call_waits_for_the_device(
    name: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    mpi, emulate, ranks, settings, arguments = CASES[name]
    gpu = "cuda" if emulate.startswith("cuda") else "hip"
    result = harness.run_ranks(
        mpi_named(mpi),
        ranks,
        [rank_program(mpi, "busy_device"), f"--gpu={gpu}", *arguments],
        emulate=emulate,
        environment={**settings, "AWAKEN_EMULATE_BUSY": "error"},
        timeout=harness.HANG_S,
    )
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"
    assert "AWAKEN_EMULATE_BUSY=error makes that an error" not in result.output, result.explain()
