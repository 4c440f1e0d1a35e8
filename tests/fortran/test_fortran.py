"""Fortran programs (mpif.h, mpi, mpi_f08) under Debian's MPIs, sending device memory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

FOLDER = Path(__file__).resolve().parent
APPS = harness.ROOT / "apps"


def compiler_of(mpi: str) -> str:
    compiler = shutil.which(f"mpif90.{mpi.removeprefix('debian-')}")
    if compiler is None or shutil.which("gfortran") is None:
        pytest.skip("no Fortran compiler for this MPI (apt-get install gfortran)")
    return compiler


def compile_program(*command: str | Path, folder: Path) -> None:
    done = subprocess.run(
        list(command), capture_output=True, text=True, timeout=harness.HANG_S, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("binding", ["mpifh", "mpi", "f08"])
@pytest.mark.parametrize("mpi", ["debian-mpich", "debian-openmpi"])
def test_fortran(
    mpi: str, binding: str, tmp_path: Path, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    chosen = mpi_named(mpi)
    compiler = compiler_of(mpi)
    emulator = harness.build_dir() / "lib" / "awaken" / "emulator"
    program = tmp_path / binding
    compile_program(
        compiler, "-O1", "-fallow-argument-mismatch", "-w", f"-I{FOLDER}", FOLDER / f"device_memory_{binding}.f90",
        "-o", program, f"-L{emulator}", "-l:libcudart.so.12", f"-Wl,-rpath-link,{emulator}", folder=tmp_path,
    )  # fmt: skip
    result = harness.run_ranks(chosen, 2, [program], emulate="cuda:2", timeout=harness.HANG_S)
    result.check()
    assert "ok fortran" in result.output, result.explain()


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
@pytest.mark.parametrize("mpi", ["debian-mpich", "debian-openmpi"])
def test_ring(
    mpi: str, emulate: str, tmp_path: Path, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """The example in Fortran, whose calls of the GPU runtime go to the vendor that is there."""
    chosen = mpi_named(mpi)
    compiler = compiler_of(mpi)
    runtime, program = tmp_path / "gpu_runtime.o", tmp_path / "ring"
    compile_program("g++", "-std=c++20", "-O1", f"-I{APPS / 'include'}", "-c", APPS / "runtime" / "gpu_runtime.cpp",
                    "-o", runtime, folder=tmp_path)  # fmt: skip
    compile_program(compiler, "-O2", "-Wall", "-Werror", APPS / "examples" / "ring.f90", runtime, "-o", program,
                    "-lstdc++", "-ldl", folder=tmp_path)  # fmt: skip
    result = harness.run_ranks(chosen, 3, [program], emulate=emulate, timeout=harness.HANG_S)
    result.check()
    assert "PASS ring: 1048576 doubles round 3 ranks, and their sum" in result.output, result.explain()
