# SPDX-License-Identifier: Apache-2.0
"""Kernels that programs under apps/ bring along and have compiled when they run (apps/common/kernels.h)."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from pathlib import Path

import harness
import pytest
from app_runs import ABIS, AWAKEN_OF_BUILD, BUILD, ROOT, VENV, mpiexec
from test_programs import SONAMES, stand_in

BEFORE: list[str | Path] = [AWAKEN_OF_BUILD, "exec", "--"]


def is_installed(soname: str) -> bool:
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("abi", "gpus"), [*itertools.product(ABIS, ["cuda:2", "hip:2"]), ("mpich", "hip5:2"), ("mpich", "hip6:2")]
)
def test_a_programs_own_kernels_run(abi: str, gpus: str) -> None:
    result = mpiexec(abi, "own_kernel", "--count", "100003", ranks=3, before=BEFORE, AWAKEN_EMULATE=gpus)
    assert result.status == 0, result.err
    assert result.out == "PASS own_kernel: 100003 ints from kernels, round 3 ranks\n"


def own_kernel_with(text: str, folder: Path) -> Path:
    """The program own_kernel with another text of kernels."""
    (folder / "text.cpp").write_text(
        f'extern const char* const own_kernel_text;\nconst char* const own_kernel_text = R"({text})";\n'
    )
    apps = ROOT / "apps"
    sources = [folder / "text.cpp", apps / "examples" / "own_kernel.cpp", apps / "runtime" / "gpu_runtime.cpp"]
    program = folder / "own_kernel"
    flags = ["-std=c++20", "-O0", f"-I{apps / 'common'}", f"-I{apps / 'include'}"]
    subprocess.run(
        [VENV / "bin" / "mpicxx", *flags, *sources, "-o", program, "-ldl"], check=True, timeout=harness.HANG_S
    )
    return program


@pytest.mark.parametrize("gpus", ["cuda:2", "hip:2"])
def test_what_the_compiler_says_is_told(gpus: str, tmp_path: Path) -> None:
    program = own_kernel_with('extern "C" __global__ void unheard_of(int* p) { *p = 1; }', tmp_path)
    result = mpiexec("mpich", str(program), before=BEFORE, ranks=1, AWAKEN_EMULATE=gpus)
    assert result.status != 0
    assert "kernels of own_kernel: hiprtcCompileProgram: " in result.err
    # The log, which names the text as the program did.
    assert "own_kernel.hip: error: " in result.err
    assert "unheard_of" in result.err


def test_a_kernel_that_the_text_lacks_is_named(tmp_path: Path) -> None:
    program = own_kernel_with('extern "C" __global__ void own_kernel_double(int*, const int*, int) {}', tmp_path)
    result = mpiexec("mpich", str(program), before=BEFORE, ranks=1, AWAKEN_EMULATE="cuda:1")
    assert result.status != 0
    assert "kernels of own_kernel: there is no kernel own_kernel_count: " in result.err


def test_without_a_run_time_compiler_the_message_names_what_was_looked_for(tmp_path: Path) -> None:
    if is_installed("libnvrtc.so.13") or Path("/usr/local/cuda").exists():
        pytest.skip("there is a run-time compiler")
    stand_in(tmp_path, "cuda", 1)
    stand_in(tmp_path, "hip", 0)
    result = mpiexec("mpich", "own_kernel", ranks=1, LD_LIBRARY_PATH=str(tmp_path))
    assert result.status != 0
    assert "kernels of own_kernel: hiprtcCreateProgram: no run-time compiler that fits the GPU runtime" in result.err
    assert f"looked for {tmp_path / 'libnvrtc.so.13'}" in result.err
    assert SONAMES["cuda"][0] == "libcudart.so.13"


def test_the_kernels_are_in_the_program() -> None:
    """It can be copied elsewhere: the text is not read from the source tree."""
    content = (BUILD / "apps" / "mpich" / "own_kernel").read_bytes()
    assert b"__global__ void own_kernel_count" in content
    assert os.fsencode(ROOT / "apps" / "examples") not in content
