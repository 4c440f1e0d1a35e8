# SPDX-License-Identifier: Apache-2.0
"""The programs under apps/, unchanged, on emulated GPUs: they die on a plain MPI and run under `awaken exec`."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path

import harness
import pytest
from app_runs import ABIS, AWAKEN_OF_BUILD, BUILD, EXAMPLES, PING_PONGS, PREFIX_OF_ABI, ROOT, mpiexec

AWAKEN = AWAKEN_OF_BUILD
EMULATOR = BUILD / "lib" / "awaken" / "emulator"
GPUS = ("cuda:2", "hip:2", "hip5:2")
USES_DEVICE_POINTERS = ("ping_pong_gpu_aware", "point_to_point", "reduce", "unified_memory")


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("program", ["ping_pong_gpu_aware", "point_to_point", "reduce"])
def test_a_plain_mpi_dies_of_device_pointers(program: str, gpus: str) -> None:
    # Small messages: for large ones, MPICH asks the kernel to copy, and ends with the error that it gets.
    size = ("--max-bytes", "1K") if program.startswith("ping_pong") else ("--count", "10")
    result = mpiexec("mpich", program, *size, LD_LIBRARY_PATH=str(EMULATOR), AWAKEN_EMULATE=gpus)
    assert result.status != 0
    assert "PASS" not in result.out
    assert "Segmentation fault (signal 11)" in result.out + result.err


# What a ROCm release changes has nothing to do with the MPI, so ROCm 5 runs under one.
@pytest.mark.parametrize(("abi", "gpus"), [*itertools.product(ABIS, GPUS[:2]), ("mpich", "hip5:2")])
@pytest.mark.parametrize("program", [*PING_PONGS, *EXAMPLES])
def test_every_program_runs_under_awaken(program: str, abi: str, gpus: str, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    is_ping_pong = program.startswith("ping_pong")
    # Beyond what one staging slice or one eager message holds.
    arguments = ("--max-bytes", "4M", "--iterations", "2") if is_ping_pong else ("--count", "1048577")
    variables = {"AWAKEN_EMULATE": gpus, "AWAKEN_REPORT": str(report_file)}
    result = mpiexec(abi, program, *arguments, before=[AWAKEN, "exec", "--"], environment=variables)
    assert result.status == 0, result.err
    if is_ping_pong:
        assert result.out.count("Transfer size (B): ") == 20
        assert len(result.out.splitlines()) == 20
    else:
        assert result.out.startswith(f"PASS {program}: ")

    calls = json.loads(report_file.read_text())["calls"]
    largest = max(call["size_class_bytes"] for call in calls)
    assert largest >= (4 << 20)
    paths = {call["path"] for call in calls if call["size_class_bytes"] == largest}
    if program in USES_DEVICE_POINTERS:
        assert "refused" not in paths
        assert paths - {"native"}
    else:
        assert paths == {"native"}


# ROCm 5 has nothing to do with when a process finds its runtime.
@pytest.mark.parametrize(("abi", "gpus"), [*itertools.product(ABIS, GPUS[:2])])
def test_the_first_message_goes_direct(abi: str, gpus: str, tmp_path: Path) -> None:
    """One message between ranks that begin to use their GPUs after MPI_Init, however late the receiver is."""
    report_file = tmp_path / "report.json"
    variables = {
        "AWAKEN_EMULATE": gpus,
        "AWAKEN_REPORT": str(report_file),
        # Until the receiver has found its GPU runtime, and then until it comes for the message.
        "AWAKEN_TEST_TUNE": "first_watch_us=60000000,large_watch_us=60000000",
    }
    result = mpiexec(abi, "point_to_point", "--count", "100000", before=[AWAKEN, "exec", "--"], environment=variables)
    assert result.status == 0, result.err
    calls = json.loads(report_file.read_text())["calls"]
    assert {call["path"] for call in calls if call["function"] in ("MPI_Send", "MPI_Recv")} == {"direct"}


@pytest.mark.parametrize("ranks", [1, 4])
def test_reduce_runs_on_any_number_of_ranks(ranks: int) -> None:
    before: list[str | Path] = [AWAKEN, "exec", "--"]
    result = mpiexec("mpich", "reduce", "--count", "1000", ranks=ranks, before=before, AWAKEN_EMULATE="cuda:2")
    assert result.status == 0, result.err
    assert f"{ranks} ranks" in result.out


@pytest.fixture(scope="module")
def debian_ping_pong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GPU-aware ping-pong, built as a user of Debian's MPICH (libmpich.so.12) builds it."""
    compiler = shutil.which("mpicxx.mpich")
    if compiler is None or shutil.which("mpiexec.mpich") is None:
        pytest.skip("Debian's MPICH is not installed (apt-get install mpich libmpich-dev)")
    program = tmp_path_factory.mktemp("debian") / "ping_pong_gpu_aware"
    sources = [ROOT / "apps" / "pingpong" / "ping_pong_gpu_aware.cpp", ROOT / "apps" / "runtime" / "gpu_runtime.cpp"]
    includes = [f"-I{ROOT / 'apps' / folder}" for folder in ("common", "include")]
    subprocess.run(
        [
            compiler,
            "-std=c++20",
            "-O1",
            "-Wno-cast-function-type",
            *includes,
            *map(str, sources),
            "-o",
            program,
            "-ldl",
        ],
        check=True,
        timeout=harness.HANG_S,
    )
    return program


@pytest.mark.parametrize("gpus", GPUS)
def test_debians_mpich(debian_ping_pong: Path, gpus: str) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AWAKEN", "LD_"))},
        "AWAKEN_EMULATE": gpus,
    }
    ranks = ["timeout", str(harness.HANG_S), "mpiexec.mpich", "-n", "2"]
    words = [debian_ping_pong, "--max-bytes", "64K", "--iterations", "2"]

    def run(*before: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in (*ranks, *before, *words)],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=harness.HANG_S,
            check=False,
        )

    plain = run(LD_LIBRARY_PATH=str(EMULATOR))
    assert plain.returncode != 0, "without Awaken, device pointers must kill it"
    result = run(AWAKEN, "exec", "--")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("Transfer size (B): ") == 14


@pytest.fixture(scope="module", params=["mpich", "openmpi"])
def graph_halo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The MPI, and the program that the tutorial compiles, which the build leaves out."""
    abi = str(request.param)
    apps, program = ROOT / "apps", tmp_path_factory.mktemp(abi) / "graph_halo"
    sources = [apps / "examples" / "graph_halo.cpp", apps / "runtime" / "gpu_runtime.cpp"]
    folders = [f"-I{folder}" for folder in (ROOT / "include", apps / "include", apps / "common")]
    compiler = PREFIX_OF_ABI[abi] / "bin" / "mpicxx"
    # Open MPI has no such functions to link.
    flags = ["-std=c++20", "-DAWAKEN_WEAK_MPIX", *folders]
    subprocess.run([compiler, *flags, *sources, "-o", program, "-ldl"], check=True, timeout=harness.HANG_S)
    return abi, program


@pytest.mark.parametrize("gpus", ["cuda:2", "hip:2"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_graph_replays_a_halo(graph_halo: tuple[str, Path], ranks: int, gpus: str) -> None:
    abi, program = graph_halo
    late = {"AWAKEN_TEST_DELAYS": "4:100"}
    result = mpiexec(
        abi, str(program), ranks=ranks, before=[AWAKEN, "exec", "--"], AWAKEN_EMULATE=gpus, environment=late
    )
    assert result.status == 0, result.err
    assert result.out == f"PASS graph_halo: 50 steps of {ranks * 100_000} cells, 0 wrong\n"
