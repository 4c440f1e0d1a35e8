# SPDX-License-Identifier: Apache-2.0
"""Ranks of one node in pid namespaces of their own, with one /dev/shm for all or one for each, as in containers.

Each MPI is told to use only what it can there: MPICH not to copy between processes by their ids, Open MPI to use TCP.
MPICH 5.0.2 itself hangs where /dev/shm is private.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import harness
import pytest

PRIVATE_PIDS = "exec unshare --pid --fork --kill-child --mount-proc"
MOUNTED = "mount -t tmpfs -o size=256m tmpfs /dev/shm"
LITTLE = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
PRIVATE_MEMORY = f"""{PRIVATE_PIDS} --ipc --mount sh -c '{MOUNTED} && exec "$@"' sh"""

SETTINGS: dict[str, Mapping[str, str]] = {
    "mpich": {"MPIR_CVAR_CH4_CMA_ENABLE": "0"},
    "openmpi": {"OMPI_MCA_btl": "self,tcp"},
}


NATIVE_BUGS = {"mpich": ("truncated",), "openmpi": ()}
"""With that setting MPICH 5.0.2 leaves out what of a host message that is too long would fit; device memory gets it."""


@lru_cache(maxsize=1)
def why_not() -> str:
    """Why this machine gives no namespaces; empty when it does."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "needs root and the program unshare"
    words = ["sh", "-c", f"{PRIVATE_MEMORY} true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=harness.HANG_S, check=False)
    return done.stderr.strip() if done.returncode != 0 else ""


def run(
    mpi: harness.Mpi, spaces: str, emulate: str, program: Path, folder: Path, settings: Mapping[str, str]
) -> dict[str, Any]:
    """Runs messages of all kinds between two ranks in namespaces of their own; they must be right. The report."""
    if why_not():
        pytest.skip(why_not())
    launcher = folder / "launch"
    launcher.write_text(f'#!/bin/sh\n{spaces} "$@"\n')
    launcher.chmod(0o755)
    report = folder / "report.json"
    environment = {
        **harness.clean_environment(),
        **mpi.environment,
        **SETTINGS[mpi.name],
        "AWAKEN_EMULATE": emulate,
        "AWAKEN_REPORT": str(report),
        **settings,
    }
    command = harness.rank_command(mpi, 2, [launcher, harness.awaken(), "exec", "--"], with_awaken=False)
    command += [str(program), f"--gpu={emulate.split(':')[0]}", "--mix=device"]
    command += [f"--except={case}" for case in NATIVE_BUGS[mpi.name]]
    harness.run(command, environment, harness.HANG_S, foreign_files=mpi.foreign_files).check()
    answer: dict[str, Any] = json.loads(report.read_text())
    return answer


def calls(report: Mapping[str, Any], path: str) -> int:
    return int(report["totals"][path]["calls"])


@pytest.mark.parametrize(
    ("mpi", "emulate", "settings"),
    [("mpich", "cuda:2", {"AWAKEN_JOB": uuid.uuid4().hex}), ("openmpi", "hip:2", {})],
    ids=["mpich", "openmpi"],
)
def test_private_pids(
    mpi: str,
    emulate: str,
    settings: Mapping[str, str],
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The ranks share memory and find each other; the driver cannot map memory of a process that it cannot see."""
    report = run(mpi_named(mpi), PRIVATE_PIDS, emulate, rank_program(mpi, "between_nodes"), tmp_path, settings)
    assert calls(report, "ring") > 0 and calls(report, "copied") > 0, report["totals"]
    assert any("no direct path" in row["reason"] for row in report["fallbacks"]), report["fallbacks"]


def test_private_pids_without_a_name(
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """MPICH's launcher is known by its process, which cannot be seen: staged, and the report says what helps."""
    program = rank_program("mpich", "between_nodes")
    report = run(mpi_named("mpich"), PRIVATE_PIDS, "cuda:2", program, tmp_path, {})
    assert calls(report, "staged") > 0 and calls(report, "ring") == calls(report, "copied") == 0, report["totals"]
    assert any("AWAKEN_JOB" in row["reason"] for row in report["fallbacks"]), report["fallbacks"]


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "settings"),
    [
        ("mpich", "cuda:2", 2, {"AWAKEN_TEST_FAULTS": "ipc-open"}),
        ("mpich", "hip:2", 4, {"AWAKEN_PATH": "ring"}),
        ("openmpi", "hip:2", 2, {"AWAKEN_TEST_FAULTS": "no-peer"}),
    ],
    ids=["refused", "rings", "no-peer"],
)
def test_little_memory(
    mpi: str,
    emulate: str,
    ranks: int,
    settings: Mapping[str, str],
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """A container's /dev/shm: what does not fit passes through a part of it, and the MPI has room for its own."""
    if why_not():
        pytest.skip(why_not())
    chosen = mpi_named(mpi)
    program: list[str | Path] = [
        rank_program(mpi, "lifecycle"),
        "little-shared-memory",
        f"--gpu={emulate.split(':')[0]}",
    ]
    environment = {**harness.clean_environment(), **chosen.environment, "AWAKEN_EMULATE": emulate, **settings}
    command = ["unshare", "--mount", "sh", "-c", f'{LITTLE} && exec "$@"', "sh"]
    command += harness.rank_command(chosen, ranks, program)
    result = harness.run(command, environment, harness.HANG_S, foreign_files=chosen.foreign_files)
    result.check()
    assert "ok little-shared-memory" in result.output, result.explain()


def test_private_memory(
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Nothing is shared but the MPI: all messages are staged, and the report says why."""
    program = rank_program("openmpi", "between_nodes")
    report = run(mpi_named("openmpi"), PRIVATE_MEMORY, "cuda:2", program, tmp_path, {})
    assert calls(report, "staged") > 0
    # What is direct is what a rank sends to itself.
    assert calls(report, "ring") == calls(report, "copied") == 0, report["totals"]
    assert any("a /dev/shm of their own" in row["reason"] for row in report["fallbacks"]), report["fallbacks"]
