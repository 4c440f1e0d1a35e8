"""Fortran programs (mpif.h, mpi, mpi_f08) under Debian's MPIs, sending device memory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

FOLDER = Path(__file__).resolve().parent


@pytest.mark.parametrize("binding", ["mpifh", "mpi", "f08"])
@pytest.mark.parametrize("mpi", ["debian-mpich", "debian-openmpi"])
def test_fortran(
    mpi: str, binding: str, tmp_path: Path, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    chosen = mpi_named(mpi)
    compiler = shutil.which(f"mpif90.{mpi.removeprefix('debian-')}")
    if compiler is None or shutil.which("gfortran") is None:
        pytest.skip("no Fortran compiler for this MPI (apt-get install gfortran)")
    emulator = harness.build_dir() / "lib" / "awaken" / "emulator"
    program = tmp_path / binding
    done = subprocess.run(
        [compiler, "-O1", "-fallow-argument-mismatch", "-w", f"-I{FOLDER}", FOLDER / f"device_memory_{binding}.f90",
         "-o", program, f"-L{emulator}", "-l:libcudart.so.12", f"-Wl,-rpath-link,{emulator}"],
        capture_output=True, text=True, timeout=harness.HANG_S, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = harness.run_ranks(chosen, 2, [program], emulate="cuda:2", timeout=harness.HANG_S)
    result.check()
    assert "ok fortran" in result.output, result.explain()
