# SPDX-License-Identifier: Apache-2.0
"""The programs under apps/ as they are without Awaken: what they print, what they notice, and how they end.

A stand-in GPU runtime, whose device memory is host memory, lets them run on any MPI; a preloaded library spoils chosen
messages, to show that wrong data is noticed. tests/apps/test_with_awaken.py runs them on an emulated GPU.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harness
import pytest
from app_runs import ABIS, BUILD, EXAMPLES, PING_PONGS, ROOT, VENV, mpiexec

HERE = Path(__file__).resolve().parent
SONAMES = {
    "hip": ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
    "cuda": ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"),
}


def compile_library(compiler: str | Path, source: str, output: Path, *flags: str) -> Path:
    command: Sequence[str | Path] = [compiler, "-shared", "-fPIC", "-O1", *flags, HERE / source, "-o", output]
    subprocess.run(command, check=True, timeout=harness.HANG_S)
    return output


def stand_in(folder: Path, kind: str, devices: int, *flags: str) -> None:
    """Puts one kind of GPU runtime, under all its names, into a folder."""
    definitions = [f"-DPREFIX={kind}", f"-DDEVICES={devices}", *flags]
    names = SONAMES[kind]
    library = compile_library(os.environ.get("CC", "cc"), "host_memory_gpu.c", folder / names[0], *definitions)
    for name in names[1:]:
        (folder / name).symlink_to(library.name)


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment with three stand-in CUDA devices, and a ROCm without any."""
    folder = tmp_path_factory.mktemp("gpu")
    stand_in(folder, "cuda", 3)
    stand_in(folder, "hip", 0)
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.fixture(scope="session")
def no_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment with every GPU runtime and not one device, also on a machine that has some."""
    folder = tmp_path_factory.mktemp("no-gpu")
    stand_in(folder, "cuda", 0)
    stand_in(folder, "hip", 0)
    return {"LD_LIBRARY_PATH": str(folder)}


def test_they_build_outside_the_tree(tmp_path: Path) -> None:
    """With the compiler wrapper of any MPI, and nothing of Awaken's build."""
    compiler = f"-DMPI_CXX_COMPILER={VENV / 'bin' / 'mpicxx'}"
    configure: list[str | Path] = ["cmake", "-S", ROOT / "apps", "-B", tmp_path, compiler]
    build: list[str | Path] = ["cmake", "--build", tmp_path, "--target", "ping_pong_cpu_mpi"]
    for command in (configure, build):
        done = subprocess.run(command, capture_output=True, text=True, timeout=harness.HANG_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    result = mpiexec("mpich", str(tmp_path / "mpi" / "ping_pong_cpu"), "--max-bytes", "8")
    assert result.status == 0 and "Transfer size (B):          8" in result.out, result


@pytest.fixture(scope="session")
def faulty_mpi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(VENV / "bin" / "mpicc", "faulty_mpi.c", tmp_path_factory.mktemp("faulty") / "faulty_mpi.so")


# ---------------------------------------------------------------------------------------------------------- ping-pong


def check_ping_pong_output(out: str, sizes: Sequence[int]) -> None:
    """Byte for byte the line that users' scripts read, and numbers that agree with each other."""
    lines = out.splitlines()
    assert len(lines) == len(sizes), out
    for line, size in zip(lines, sizes):
        seconds_text, bandwidth_text = re.findall(r"\d+\.\d{9}", line)
        seconds, bandwidth = float(seconds_text), float(bandwidth_text)
        assert line == (
            f"Transfer size (B): {size:10d}, Transfer Time (s): {seconds:15.9f}, Bandwidth (GB/s): {bandwidth:15.9f}"
        )
        # The time has been rounded to a nanosecond.
        exact = bandwidth * seconds
        assert exact == pytest.approx(size / 2**30, rel=1e-9 / seconds + 1e-6, abs=1e-9 * seconds)


@pytest.mark.parametrize("abi", ABIS)
@pytest.mark.parametrize("program", PING_PONGS)
def test_ping_pong_prints_one_line_a_size(abi: str, program: str, gpu: dict[str, str]) -> None:
    result = mpiexec(abi, program, "--max-bytes", "64K", "--iterations", "3", environment=gpu)
    assert result.status == 0, result.err
    check_ping_pong_output(result.out, [2**i for i in range(3, 17)])


def test_ping_pong_has_the_sizes_and_counts_of_the_tutorial() -> None:
    result = mpiexec("mpich", "ping_pong_cpu", "--help", ranks=1)
    assert result.status == 0
    defaults = dict(re.findall(r"--([\w-]+) N .*\(default (\d+)\)", result.out))
    assert defaults == {"max-bytes": str(2**30), "iterations": "50", "warm-up": "5"}


@pytest.mark.parametrize("program", ["ping_pong_cpu", "allreduce", "ghost_exchange", "xtx", "reduce"])
def test_programs_tell_their_version_once(program: str) -> None:
    for option in ("--version", "-V"):
        result = mpiexec("mpich", program, option, ranks=2)
        assert result.status == 0, result.err
        assert re.fullmatch(rf"{program} of Awaken \d+\.\d+\.\d+\n", result.out), result.out


@pytest.mark.parametrize(("limit", "last"), [("8", 8), ("100", 64), ("1K", 1024), ("=2M", 2**21)])
def test_ping_pong_ends_at_the_largest_size_within_the_limit(limit: str, last: int) -> None:
    words = ["--max-bytes" + limit] if limit.startswith("=") else ["--max-bytes", limit]
    result = mpiexec("mpich", "ping_pong_cpu", *words, "--iterations", "1", "--warm-up", "0")
    assert result.status == 0, result.err
    check_ping_pong_output(result.out, [2**i for i in range(3, last.bit_length())])


def test_each_rank_takes_the_device_of_its_number(gpu: dict[str, str], tmp_path: Path) -> None:
    result = mpiexec("mpich", "reduce", "--count", "10", ranks=4, environment=gpu)
    assert result.status == 0, result.err
    assert sorted(re.findall(r"<cuda device (\d)>", result.err)) == ["0", "0", "1", "2"]

    stand_in(tmp_path, "cuda", 3)
    stand_in(tmp_path, "hip", 1)
    result = mpiexec("mpich", "ping_pong_staged", "--max-bytes", "8", LD_LIBRARY_PATH=str(tmp_path))
    assert result.status == 0, result.err
    assert re.findall(r"<(\w+) device (\d)>", result.err) == [("hip", "0"), ("hip", "0")]


# With 0 warm-up and 2 timed round trips of one size, each rank receives three times: two timed, one of the last check.
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("kind", "call"), [("flip", 0), ("flip", 1), ("flip", 2), ("drop", 2)])
@pytest.mark.parametrize("program", PING_PONGS)
def test_ping_pong_notices_wrong_data(
    program: str, kind: str, call: int, rank: int, faulty_mpi: Path, gpu: dict[str, str]
) -> None:
    arguments = ("--max-bytes", "8", "--warm-up", "0", "--iterations", "2")
    fault = {"FAULT_RANK": str(rank), "FAULT_CALL": str(call), "FAULT_KIND": kind, "LD_PRELOAD": str(faulty_mpi)}
    result = mpiexec("mpich", program, *arguments, environment={**gpu, **fault})
    assert result.status == 1
    assert "wrong data: " in result.err
    assert "transfers of 8 B" in result.err


def test_ping_pong_notices_that_the_first_message_never_came(faulty_mpi: Path) -> None:
    fault = {"FAULT_RANK": "1", "FAULT_CALL": "0", "FAULT_KIND": "drop", "LD_PRELOAD": str(faulty_mpi)}
    result = mpiexec(
        "mpich", "ping_pong_cpu", "--max-bytes", "8", "--warm-up", "0", "--iterations", "2", environment=fault
    )
    assert result.status == 1
    assert "wrong data: " in result.err


def test_the_fault_itself_is_harmless_where_it_does_not_strike(faulty_mpi: Path) -> None:
    fault = {"FAULT_RANK": "1", "FAULT_CALL": "1000", "LD_PRELOAD": str(faulty_mpi)}
    result = mpiexec("mpich", "ping_pong_cpu", "--max-bytes", "1K", "--iterations", "2", environment=fault)
    assert (result.status, result.err) == (0, "")


# ----------------------------------------------------------------------------------------------------------- examples


@pytest.mark.parametrize("abi", ABIS)
@pytest.mark.parametrize("program", EXAMPLES)
def test_examples_pass(abi: str, program: str, gpu: dict[str, str]) -> None:
    result = mpiexec(abi, program, "--count", "1001", environment=gpu)
    assert result.status == 0, result.err
    assert result.out.startswith(f"PASS {program}: ")
    assert "1001 ints" in result.out
    assert result.out.count("\n") == 1


@pytest.mark.parametrize(
    ("program", "rank", "call"),
    [
        ("point_to_point", 1, 0),
        ("host_staged", 1, 0),
        ("unified_memory", 0, 0),
        ("unified_memory", 1, 0),
        ("reduce", 0, 0),
        ("reduce", 0, 1),
    ],
)
@pytest.mark.parametrize("kind", ["flip", "drop"])
def test_examples_notice_wrong_data(
    program: str, rank: int, call: int, kind: str, faulty_mpi: Path, gpu: dict[str, str]
) -> None:
    fault = {"FAULT_RANK": str(rank), "FAULT_CALL": str(call), "FAULT_KIND": kind, "LD_PRELOAD": str(faulty_mpi)}
    result = mpiexec("mpich", program, "--count", "100", environment={**gpu, **fault})
    assert result.status == 1
    assert result.out.startswith(f"FAIL {program}: ")


# ------------------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize("abi", ABIS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_ping_pong_needs_two_ranks(abi: str, ranks: int) -> None:
    result = mpiexec(abi, "ping_pong_cpu", ranks=ranks)
    assert (result.status, result.out) == (2, "")
    assert f"ping_pong_cpu: needs exactly 2 ranks, but was started with {ranks}" in result.err
    assert result.err.count("exactly 2 ranks") == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sizes", "8"], "unknown option --sizes"),
        (["17"], "unknown option 17"),
        (["--max-bytes"], "--max-bytes needs a value"),
        (["--max-bytes", "7"], "out of range"),
        (["--max-bytes", "2G"], "out of range"),
        (["--max-bytes", "99999999999999999999"], "out of range"),
        (["--max-bytes", "9999999999999G"], "out of range"),
        (["--max-bytes=8x"], "not a number"),
        (["--max-bytes="], "not a number"),
        (["--iterations", "0"], "out of range"),
        (["--warm-up", "-1"], "out of range"),
    ],
)
def test_wrong_options_are_refused(words: list[str], complaint: str) -> None:
    result = mpiexec("mpich", "ping_pong_cpu", *words)
    assert (result.status, result.out) == (2, "")
    assert result.err.count(complaint) == 1


@pytest.mark.parametrize("program", [*PING_PONGS[1:], *EXAMPLES])
def test_without_a_gpu_the_message_names_what_was_looked_for(program: str, no_gpu: dict[str, str]) -> None:
    result = mpiexec("mpich", program, environment=no_gpu)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"{program}: no GPU")
    for soname in (*SONAMES["hip"], *SONAMES["cuda"]):
        assert result.err.count(f"{soname} (no device here)") == 1


def test_a_runtime_that_lacks_a_function_serves_what_does_not_use_it(tmp_path: Path) -> None:
    stand_in(tmp_path, "cuda", 1, "-DWITHOUT_PINNED")
    stand_in(tmp_path, "hip", 0)
    path = {"LD_LIBRARY_PATH": str(tmp_path)}
    assert mpiexec("mpich", "point_to_point", environment=path).status == 0
    result = mpiexec("mpich", "host_staged", environment=path)
    assert result.status != 0
    assert "hipHostMalloc(&h_buffer, bytes)" in result.err


# ------------------------------------------------------------------------------------------------- as tutorial programs


@pytest.mark.parametrize("abi", ABIS)
@pytest.mark.parametrize("program", [*PING_PONGS, *EXAMPLES, "own_kernel"])
def test_programs_know_nothing_of_awaken(abi: str, program: str) -> None:
    assert b"awaken_" not in (BUILD / "apps" / abi / program).read_bytes()
    assert b"libawaken" not in (BUILD / "apps" / abi / program).read_bytes()


@pytest.mark.parametrize("pair", [PING_PONGS[:2], PING_PONGS[1:]])
def test_the_variants_differ_only_in_their_lesson(pair: tuple[str, str]) -> None:
    """A dozen lines of code: buffers, copies, and what is passed to MPI."""

    def code(program: str) -> list[str]:
        lines = (ROOT / "apps" / "pingpong" / f"{program}.cpp").read_text().splitlines()
        return [line for line in lines if not line.startswith(("//", "#include"))]

    old, new = (code(program) for program in pair)
    changed = [line for line in difflib.ndiff(old, new) if line.startswith(("+ ", "- "))]
    assert 0 < len(changed) <= 24, "\n".join(changed)


@pytest.mark.long
def test_programs_compile_against_rocms_own_headers() -> None:
    header = next((p for p in ("/opt/rocm/include", "/usr/include") if Path(p, "hip/hip_runtime.h").exists()), None)
    if header is None:
        pytest.skip("no ROCm headers here (Debian: libamdhip64-dev)")
    # The system's own folder must not be named again: that would change the order of its headers.
    folder = [] if header == "/usr/include" else ["-isystem", header]
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-D__HIP_PLATFORM_AMD__", *folder]
    includes = [f"-I{VENV / 'include'}", f"-I{ROOT / 'apps' / 'common'}"]

    def problem(source: Path) -> str:
        done = subprocess.run(
            [*command, *includes, source], capture_output=True, text=True, timeout=harness.HANG_S, check=False
        )
        return done.stderr if done.returncode != 0 else ""

    sources = [path for path in (ROOT / "apps").glob("*/*.cpp") if path.parent.name != "runtime"]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        assert [text for text in workers.map(problem, sources) if text] == []
