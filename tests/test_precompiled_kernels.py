# SPDX-License-Identifier: Apache-2.0
"""Kernels that were compiled when Awaken was built: what compile_kernels.py makes, and that they are what runs.

The emulated run-time compilers make code for the emulated GPUs. NVRTC, from the package index, makes real code, whose
head and names the emulated driver reads.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import harness
import pytest

SCRIPT = harness.ROOT / "src" / "gpu" / "compile_kernels.py"
EM_CUDA = 190


def compile_kernels(folder: Path, *words: str | Path) -> tuple[Path, str]:
    """The file that the script makes, and what it says."""
    output = folder / "kernels.bin"
    kernels = harness.ROOT / "src" / "gpu" / "kernels"
    done = subprocess.run(
        [
            sys.executable, SCRIPT, "--texts", harness.build_dir() / "src" / "gpu" / "kernel_texts.cpp",
            "--codes", kernels / "codes.h", "--output", output, "--folder", folder / "compiled", *words,
        ],
        capture_output=True, text=True, timeout=harness.LONG_HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return output, done.stdout


def code_by_target(file: Path) -> dict[str, list[bytes]]:
    content = file.read_bytes()
    lines = content.partition(b"\n\n")[0].decode().splitlines()
    assert lines[0] == "AWAKEN KERNELS 1"
    found: dict[str, list[bytes]] = {}
    for line in lines[1:]:
        target, _, offset, size = line.split()
        found.setdefault(target, []).append(content[int(offset) : int(offset) + int(size)])
    return found


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file for the emulated GPUs of both vendors."""
    folder = harness.build_dir() / "lib" / "awaken" / "emulator"
    compilers = ("--nvrtc", folder / "libnvrtc.so.12", "--hiprtc", folder / "libhiprtc.so.6")
    return compile_kernels(tmp_path_factory.mktemp("emulated"), *compilers)[0]


@dataclass(frozen=True)
class Run:
    """Runs a benchmark or a rank program on two emulated GPUs."""

    folder: Path
    mpi: harness.Mpi

    def compiles(self, program: str, emulate: str, kernels: str | Path) -> bool:
        """Whether the run-time compiler was needed where the file `kernels` is there ("none": where there is none)."""
        vendor = emulate.partition(":")[0]
        words: list[str | Path] = [self.mpi.programs / program, f"--gpu={vendor}", "--mix=device"]
        if program.startswith("osu_"):
            device = {"cuda": "cuda", "hip": "rocm"}[vendor]
            words = [harness.build_dir() / "bin" / program, "-d", device, "-m", "8:65536", "-x", "0", "-i", "2"]
        with tempfile.TemporaryDirectory(dir=self.folder) as cache:
            result = harness.run_ranks(
                self.mpi,
                2,
                words,
                emulate=emulate,
                environment={
                    "AWAKEN_TEST_KERNELS": str(kernels), "XDG_CACHE_HOME": cache, "AWAKEN_TEST_COPY": "kernel",
                },
            )  # fmt: skip
            result.check()
            return any(Path(cache).rglob("*.bin"))  # each piece of code that it made, and that could be loaded


@pytest.fixture
def run(tmp_path: Path, mpi_named: Callable[[str], harness.Mpi]) -> Run:
    return Run(tmp_path, mpi_named("mpich"))


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
@pytest.mark.parametrize("program", ["osu_allreduce", "osu_bcast", "osu_latency", "datatypes"])
def test_nothing_is_compiled(program: str, emulate: str, emulated: Path, run: Run) -> None:
    """What a program with the common types needs is there; without the file the same program compiles it."""
    assert not run.compiles(program, emulate, emulated)
    assert run.compiles(program, emulate, "none")


def test_without_a_compiler_the_file_is_empty(tmp_path: Path) -> None:
    file, said = compile_kernels(tmp_path)
    assert said == "GPU kernels: no NVRTC and no HIPRTC is there, so each is compiled at its first use\n"
    assert code_by_target(file) == {}


@pytest.fixture(scope="module")
def nvrtc() -> Path:
    """NVRTC's library, as `make build` has it from the package index; kept in the build folder."""
    folder = harness.ROOT / "build" / "nvrtc"
    requirements = harness.ROOT / "tools" / "requirements" / "nvrtc.txt"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "--requirement", requirements],
        capture_output=True, text=True, timeout=harness.LONG_HANG_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"NVRTC cannot be installed: {done.stderr}")
    (library,) = folder.glob("nvidia/*/lib/libnvrtc.so.12")
    return library


def test_code_for_nvidias_gpus(nvrtc: Path, tmp_path: Path, run: Run) -> None:
    """NVRTC makes code for each major version since Volta, and PTX that CUDA 11 takes. A GPU loads either."""
    file, _ = compile_kernels(tmp_path, "--nvrtc", nvrtc, "--first", "1")
    code = code_by_target(file)
    assert list(code) == ["sm_70", "sm_80", "sm_90", "sm_100", "sm_120", "compute_70"]
    for target, (content,) in code.items():
        number = int(target.partition("_")[2])
        if target.startswith("compute"):
            assert re.search(rb"^\.version 7\.0\n\.target sm_70\n", content, re.M), content[:500]
            assert b".entry awaken_copy(" in content and content.endswith(b"\0")
            continue
        assert content[:4] == b"\x7fELF" and b"awaken_copy_batch" in content
        machine, flags = struct.unpack_from("<H", content, 18)[0], struct.unpack_from("<I", content, 48)[0]
        assert machine == EM_CUDA and number in (flags & 0xFF, flags >> 8 & 0xFFFF), (target, hex(flags))
    assert not run.compiles("osu_latency", "cuda:2", file)
    portable, foreign = tmp_path / "portable.bin", tmp_path / "foreign.bin"
    portable.write_bytes(file.read_bytes().replace(b"sm_90 ", b"sm_91 "))
    assert not run.compiles("osu_latency", "cuda:2", portable)
    # A driver that refuses all of it: the machine code is for another GPU, and the PTX is none.
    mixed = file.read_bytes().replace(b"sm_90 ", b"sm_91 ").replace(b"sm_80 ", b"sm_90 ")
    foreign.write_bytes(mixed.replace(b".entry awaken_copy", b".entry another_one"))
    assert run.compiles("osu_latency", "cuda:2", foreign)


def test_code_for_amds_gpus(tmp_path: Path, run: Run) -> None:
    """HIPRTC's code for gfx90a is what such a GPU loads; a GPU that it does not know is left out."""
    folders = ("/opt/rocm/lib", f"/usr/lib/{os.uname().machine}-linux-gnu")
    names = ("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libamdhip64.so.5")
    library = next((path for folder in folders for name in names if (path := Path(folder, name)).exists()), None)
    if library is None:
        pytest.skip("there is no HIPRTC")
    file, said = compile_kernels(tmp_path, "--hiprtc", library, "--first", "1")
    code = code_by_target(file)
    known = {"gfx908", "gfx90a", "gfx942"}
    left_out = set(re.findall(r"makes none for (\w+): ", said))
    assert "gfx90a" in code and set(code) | left_out == known and not set(code) & left_out, said
    assert not run.compiles("osu_latency", "hip:2", file)
