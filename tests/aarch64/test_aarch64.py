"""Awaken on a 64-bit Arm machine, as far as an emulated processor and emulated GPUs show it (machine.py).

What this can find: code that is wrong for the processor (entry points, relocations, calling conventions, sizes), and
builds that take something of the wrong machine. What it cannot: a missing memory barrier, since qemu-user keeps the
order of the machine that it runs on, which is stronger where that is x86-64 (docs/decisions/0038).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import harness
import machine
import pytest

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("aarch64")]

ABIS = ("mpich", "openmpi", "mpi5")
PING_PONG = "ping_pong_gpu_aware"
EXAMPLES = ("point_to_point", "reduce", "host_staged", "unified_memory", "own_kernel")
UNIT_TESTS = ("ipc_test", "node_test")
RANK_PROGRAMS = ("point_to_point", "collectives")
#: qemu-user knows no process_vm_readv, with which MPICH copies between processes.
QEMU_ENVIRONMENT = {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}


def on_arm(mpi: harness.Mpi) -> harness.Mpi:
    """This machine's launcher of the MPI, whose ranks are programs for aarch64."""
    arguments = (machine.__file__, "exec", str(mpi.mpiexec), *mpi.arguments)
    environment = {**mpi.environment, **QEMU_ENVIRONMENT}
    return harness.Mpi(mpi.name, Path(sys.executable), arguments, environment, missing=mpi.missing)


@pytest.fixture(scope="session")
def arm_build() -> Path:
    reason = machine.missing()
    if reason:
        pytest.skip(reason)
    machine.prepare()
    apps = [f"{program}_{abi}" for abi in ABIS for program in (PING_PONG, *EXAMPLES) if abi == "mpich" or program == PING_PONG]
    ranks = [f"rank_mpich_{program}" for program in RANK_PROGRAMS]
    machine.build("awaken", "awaken_cli", "emulator", *UNIT_TESTS, *apps, *ranks)
    return machine.BUILD


@pytest.fixture(autouse=True)
def _build_under_test(arm_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_BUILD_DIR", str(arm_build))
