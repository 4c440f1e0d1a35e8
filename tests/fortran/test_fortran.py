# SPDX-License-Identifier: Apache-2.0
"""Fortran programs (mpif.h, mpi, mpi_f08) under Debian's MPIs, sending device memory."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mpi", ["debian-mpich", "debian-openmpi"])
def test_streams(
    mpi: str, ranks: int, tmp_path: Path, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """MPI's stream API from Fortran, with the module and the C file that programs compile."""
    chosen = mpi_named(mpi)
    compiler, flavour = compiler_of(mpi), mpi.removeprefix("debian-")
    emulator = harness.build_dir() / "lib" / "awaken" / "emulator"
    include = harness.ROOT / "include" / "awaken"
    for source in ("mpix_stream_f08.f90", "mpix_stream_f08.c", "streams_f08.f90"):
        folder = FOLDER if source.startswith("streams") else include
        with_language = f"mpicc.{flavour}" if source.endswith(".c") else compiler
        flags = ["-Wextra", "-std=c11"] if source.endswith(".c") else ["-std=f2018"]
        compile_program(
            with_language, "-O2", "-Wall", "-Werror", *flags, "-c", folder / source, "-o", f"{source}.o",
            folder=tmp_path,
        )  # fmt: skip
    program = tmp_path / "streams"
    library = harness.build_dir() / "lib" / "awaken"
    compile_program(
        compiler, *sorted(tmp_path.glob("*.o")), "-o", program, "-Wl,--no-as-needed", f"-L{library}", "-lawaken",
        f"-Wl,-rpath,{library}", f"-L{emulator}", "-l:libcudart.so.12", f"-Wl,-rpath-link,{emulator}", folder=tmp_path,
    )  # fmt: skip
    result = harness.run_ranks(chosen, ranks, [program], emulate="cuda:2", timeout=harness.HANG_S)
    result.check()
    assert "ok fortran" in result.output, result.explain()


def test_streams_have_all_functions() -> None:
    """What the header declares, the module has, and its C file defines what the module binds."""
    include = harness.ROOT / "include" / "awaken"
    declared = set(re.findall(r"int (MPIX_\w+)\(", (include / "mpix_stream.h").read_text()))
    module = (include / "mpix_stream_f08.f90").read_text()
    public = " ".join(re.findall(r"^    public :: ((?:.*&\n)*.*)", module, re.MULTILINE))
    assert {name.removesuffix("_c") for name in declared} == set(re.findall(r"MPIX_\w+", public))
    bound = set(re.findall(r"(?:subroutine|function) (awaken_f08_\w+)\(", module))
    file = (include / "mpix_stream_f08.c").read_text()
    defined = set(re.findall(r"(?:void|int) (awaken_f08_\w+)\(", file))
    forms = re.findall(r"void (awaken_f08_\w+)##FORM\(", file)
    assert bound == defined | {name + form for name in forms for form in ("", "_c")}


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
