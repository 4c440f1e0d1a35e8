# SPDX-License-Identifier: Apache-2.0
"""awaken.stream: MPI operations in a stream, from Python. stream_operations.py has the cases."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

PYTHON = {"PYTHONPATH": str(harness.ROOT / "python")}


def python_for(mpi: harness.Mpi) -> Path:
    reason = harness.python_modules(mpi.python, "mpi4py", "numpy")
    if reason:
        pytest.skip(reason)
    assert mpi.python is not None
    return mpi.python


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("vendor", ["cuda", "hip"])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_operations(
    mpi: str, vendor: str, ranks: int, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    chosen = mpi_named(mpi)
    command: list[str | Path] = [python_for(chosen), Path(__file__).with_name("stream_operations.py"), vendor]
    result = harness.run_ranks(
        chosen, ranks, command, emulate=f"{vendor}:{ranks}", environment=PYTHON, timeout=harness.HANG_S
    )
    result.check()
    assert "ok operations in a stream" in result.output, result.explain()


WITHOUT = """
from awaken.stream import On
from mpi4py import MPI
try:
    On(MPI.COMM_WORLD, 0)
except RuntimeError as error:
    print("refused:", error, flush=True)
"""


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_without_awaken(mpi: str, mpi_named: Callable[[str], harness.Mpi]) -> None:
    chosen = mpi_named(mpi)
    command: list[str | Path] = [python_for(chosen), "-c", WITHOUT]
    result = harness.run_ranks(chosen, 2, command, with_awaken=False, environment=PYTHON, timeout=harness.HANG_S)
    result.check()
    assert "refused: this process has no MPIX_" in result.output, result.explain()
    assert "run it by awaken exec" in result.output, result.explain()


ONE_THREAD = """
import ctypes
import mpi4py
mpi4py.rc.thread_level = "serialized"
from awaken.stream import On
from mpi4py import MPI
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)
try:
    On(MPI.COMM_WORLD, 0)
except MPI.Exception as error:
    print("refused:", error, flush=True)
"""


def test_without_threads(awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    chosen = mpi_named("openmpi")
    command: list[str | Path] = [python_for(chosen), "-c", ONE_THREAD]
    result = harness.run_ranks(chosen, 2, command, emulate="cuda:2", environment=PYTHON, timeout=harness.HANG_S)
    result.check()
    assert "refused:" in result.output and "call MPI_Init_thread with MPI_THREAD_MULTIPLE" in result.output, (
        result.explain()
    )


def test_only_the_module_needs_mpi4py() -> None:
    code = """
import importlib, pkgutil, sys
sys.modules["mpi4py"] = None
import awaken
missing = []
for found in pkgutil.walk_packages(awaken.__path__, "awaken."):
    if not found.name.endswith(("__main__", ".start")):
        try:
            importlib.import_module(found.name)
        except ImportError:
            missing.append(found.name)
print(*missing)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**harness.clean_environment(), **PYTHON},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=True,
    )
    assert done.stdout.split() == ["awaken.stream"], done.stdout + done.stderr
