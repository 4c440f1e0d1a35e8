# SPDX-License-Identifier: Apache-2.0
"""Running the commands that start jobs of their own (`awaken doctor`, `awaken topo`) on emulated GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import harness
import pytest

PACKAGE = harness.build_dir() / "lib" / "awaken" / "python"
# The package of the build under test, so that it finds the programs beside it.
sys.path.insert(0, str(PACKAGE))


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


def skip_unless_built() -> None:
    """Skips where the build has no emulator or no benchmarks (it found no nlohmann-json)."""
    cache = harness.build_dir() / "CMakeCache.txt"
    built = re.search(r"^AWAKEN_BENCH_BUILT:INTERNAL=(.*)$", cache.read_text(), re.M) if cache.exists() else None
    if built is None or built.group(1) != "ON":
        pytest.skip("this build has no benchmarks: nlohmann-json was missing when it was configured")
    if not (harness.build_dir() / "lib" / "awaken" / "emulator").is_dir():
        pytest.skip("this build has no emulated GPU driver")


def machine_has_gpu() -> bool:
    return any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/kfd"))


def environment(mpi: harness.Mpi | None, home: Path, **variables: str) -> dict[str, str]:
    """Ours without what a user's settings or a surrounding job would bring in."""
    kept = harness.clean_environment()
    for name in list(kept):
        if name.startswith(("SLURM_", "PBS_", "CUDA_", "HIP_", "ROCR_", "XDG_")):
            del kept[name]
    return {**kept, **(mpi.environment if mpi else {}), "HOME": str(home), **variables}


def launcher_words(mpi: harness.Mpi) -> str:
    return str(mpi.mpiexec)


def awaken(words: list[str], variables: dict[str, str], timeout: float = harness.HANG_S) -> Result:
    """Runs `awaken`. A command that leaves a process behind keeps our pipe open, and fails by the time limit."""
    done = subprocess.run(
        [str(harness.awaken()), *words],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=harness.patient(timeout),
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def compile_library(folder: Path, text: str) -> Path:
    """A shared library to be preloaded, of the C text."""
    source = folder / "interposed.c"
    source.write_text(text)
    library = folder / "interposed.so"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source], check=True, timeout=harness.HANG_S
    )
    return library
