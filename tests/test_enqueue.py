# SPDX-License-Identifier: Apache-2.0
"""MPI's stream API on any MPI: see include/awaken/mpix_stream.h and tests/ranks/enqueue.cpp."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest

Case = tuple[str, str, int, Mapping[str, str], tuple[str, ...]]
"""(MPI, emulated runtime, ranks, settings, more arguments)"""

CASES: tuple[Case, ...] = (
    ("mpich", "cuda:2", 2, {}, ("--mix=drawn-1",)),
    ("openmpi", "hip:3", 3, {}, ("--mix=drawn-1",)),
    ("mpi5", "cuda:2", 2, {}, ("--mix=drawn-0",)),
    ("mpich", "hip:2", 2, {"AWAKEN_TEST_DELAYS": "11:300"}, ("--mix=device",)),
    # Where two ranks share a GPU, each one's waiting kernel takes turns with the other's work.
    ("openmpi", "cuda:1", 2, {}, ("--mix=device",)),
    ("openmpi", "hip:3", 3, {"AWAKEN_TEST_NODES": "2"}, ("--mix=device",)),
    ("mpich", "cuda:2", 2, {"AWAKEN_DEFAULT_STREAM": "order"}, ("--mix=device",)),
    ("mpich", "cuda:2", 2, {"AWAKEN_EMULATE_CONNECTIONS": "1"}, ("--mix=device",)),
    ("mpich", "cuda:2", 2, {"AWAKEN_PATH": "staged"}, ("--mix=device",)),
    ("mpich", "cuda:2", 2, {"AWAKEN_PINNED_POOL": "16K"}, ("--mix=device",)),
)
LONG_CASES: tuple[Case, ...] = tuple(
    (mpi, f"{vendor}:{ranks}", ranks, settings, ())
    for mpi in ("mpich", "openmpi", "mpi5")
    for vendor in ("cuda", "hip")
    for ranks in (2, 3, 4)
    for settings in ({}, {"AWAKEN_TEST_NODES": "2"}, {"AWAKEN_TEST_DELAYS": "7:500"})
)


def name(case: Case) -> str:
    mpi, emulate, ranks, settings, arguments = case
    words = [f"{key.removeprefix('AWAKEN_').lower()}={value}" for key, value in settings.items()]
    return "-".join([mpi, emulate.replace(":", "x"), str(ranks), *words, *(a.strip("-") for a in arguments)])


def check(case: Case, path: Path, mpi: harness.Mpi, timeout: float) -> None:
    _, emulate, ranks, settings, arguments = case
    command: list[str | Path] = [path, f"--gpu={emulate.split(':')[0]}", *arguments]
    result = harness.run_ranks(mpi, ranks, command, emulate=emulate, environment=settings, timeout=timeout)
    result.check()
    assert "\nok one_way" in result.output, result.explain()


@pytest.mark.sanitizer
@pytest.mark.parametrize("case", CASES, ids=name)
def test_operations_in_streams(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[0], "enqueue"), mpi_named(case[0]), harness.HANG_S)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG_CASES, ids=name)
def test_operations_in_streams_long(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[0], "enqueue"), mpi_named(case[0]), harness.LONG_HANG_S)


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_work_is_queued_at_the_end(
    mpi: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """MPI_Finalize waits for what the streams have."""
    command: list[str | Path] = [rank_program(mpi, "enqueue"), "--gpu=cuda", "--ends=finalize"]
    result = harness.run_ranks(mpi_named(mpi), 2, command, emulate="cuda:2", timeout=harness.HANG_S)
    result.check()
    assert "ok finalize" in result.output, result.explain()


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_a_kernel_fails(
    mpi: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """What is queued ends, and a call of MPI tells why."""
    command: list[str | Path] = [rank_program(mpi, "enqueue"), "--gpu=cuda", "--ends=error"]
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        command,
        emulate="cuda:2",
        environment={"AWAKEN_TEST_FAULTS": "kernel-error=40"},
        timeout=harness.HANG_S,
    )
    assert result.status != 0, result.explain()
    assert "an error of an earlier kernel" in result.output or "does nothing any more" in result.output, (
        result.explain()
    )


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_a_graph_is_replayed_less_often(
    mpi: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The rank that waits says so, and goes on when the other one replays."""
    command: list[str | Path] = [rank_program(mpi, "enqueue"), "--gpu=cuda", "--ends=replays"]
    result = harness.run_ranks(mpi_named(mpi), 2, command, emulate="cuda:2", timeout=harness.HANG_S)
    result.check()
    assert "ok replays" in result.output, result.explain()
    assert "all replay their graphs equally often" in result.output, result.explain()


COLLECTIVES = ("Allgather", "Allreduce", "Alltoall", "Barrier", "Bcast", "Reduce_scatter_block")


def calls_by_library(
    run: tuple[Path, harness.Mpi],
    ranks: int,
    emulate: str,
    environment: Mapping[str, str],
    report: Path,
    cases: str = "library",
) -> tuple[set[str], str]:
    """Runs the cases for NCCL and RCCL: the collectives that went by it, and the reasons of the report."""
    command: list[str | Path] = [run[0], f"--gpu={emulate.split(':')[0]}", "--mix=device", f"--filter={cases}"]
    result = harness.run_ranks(
        run[1],
        ranks,
        command,
        emulate=emulate,
        environment={"AWAKEN_REPORT": str(report), **environment},
        timeout=harness.HANG_S,
    )
    result.check()
    assert f"\nok {cases}" in result.output, result.explain()
    told = json.loads(report.read_text())
    ways = {(call["function"], call["path"]) for call in told["calls"] if call["function"].endswith("_enqueue")}
    assert ("MPIX_Allreduce_enqueue", "staged") in ways, ways  # what the library lacks
    return {function for function, path in ways if path == "ccl"}, " ".join(
        fallback["reason"] for fallback in told["fallbacks"]
    )


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "environment"),
    [
        ("mpich", "cuda:2", 2, {}),
        ("openmpi", "hip:3", 3, {}),
        ("openmpi", "cuda:3", 3, {"AWAKEN_TEST_NODES": "2"}),
        pytest.param("mpich", "hip:4", 4, {"AWAKEN_TEST_DELAYS": "5:300"}, marks=pytest.mark.long),
        ("mpi5", "cuda:2", 2, {"AWAKEN_COLLECTIVES": "* : ccl"}),
        ("mpich", "cuda:2", 2, {"AWAKEN_EMULATE_CONNECTIONS": "1", "AWAKEN_PINNED_POOL": "16K"}),
    ],
)
def test_collectives_by_library(
    mpi: str,
    emulate: str,
    ranks: int,
    environment: Mapping[str, str],
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """NCCL and RCCL do the collectives in the stream, and in graphs."""
    run = (rank_program(mpi, "enqueue"), mpi_named(mpi))
    functions, reasons = calls_by_library(run, ranks, emulate, environment, tmp_path / "report.json")
    assert functions == {f"MPIX_{name}_enqueue" for name in COLLECTIVES}, functions
    assert "NCCL" not in reasons, reasons


@pytest.mark.parametrize(
    ("mpi", "emulate", "environment", "reason"),
    [
        ("mpich", "cuda:2", {"AWAKEN_COLLECTIVES": "* : staged"}, ""),
        ("mpich", "cuda:2", {"AWAKEN_PATH": "ring"}, ""),
        ("openmpi", "cuda:1", {}, ""),
        ("mpich", "cuda:2", {"AWAKEN_CCL": "/nowhere/libnccl.so"}, "/nowhere/libnccl.so"),
        ("mpich", "cuda:2", {"AWAKEN_TEST_FAULTS": "ccl-init=1"}, "ncclCommInitRank"),
        ("openmpi", "hip:2", {"AWAKEN_TEST_FAULTS": "ccl-silent=1"}, "another rank could not join"),
        ("openmpi", "cuda:2", {"AWAKEN_TEST_FAULTS": "ccl-connect=1"}, "does not connect to the others"),
    ],
)
def test_collectives_without_library(
    mpi: str,
    emulate: str,
    environment: Mapping[str, str],
    reason: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """All ranks do without, whichever of them cannot use it."""
    run = (rank_program(mpi, "enqueue"), mpi_named(mpi))
    functions, reasons = calls_by_library(run, 2, emulate, environment, tmp_path / "report.json")
    assert functions == set(), functions
    assert reason in reasons, reasons


@pytest.mark.parametrize(("mpi", "emulate", "ranks"), [("mpich", "cuda:3", 3), ("openmpi", "hip:2", 2)])
def test_no_library_on_a_busy_gpu(
    mpi: str,
    emulate: str,
    ranks: int,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """No rank uses the library on a communicator that was made while a GPU had work."""
    run = (rank_program(mpi, "enqueue"), mpi_named(mpi))
    functions, reasons = calls_by_library(run, ranks, emulate, {}, tmp_path / "report.json", "made_on_a_busy_gpu")
    assert functions == set(), functions
    assert "a GPU had work when a communicator got its stream" in reasons, reasons


def test_rows_choose_collectives_of_the_library(
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    run = (rank_program("mpich", "enqueue"), mpi_named("mpich"))
    rows = {"AWAKEN_COLLECTIVES": "alltoall : staged; broadcast bytes=2K- : two-shot; allgather bytes=-1K : staged"}
    functions, _ = calls_by_library(run, 2, "cuda:2", rows, tmp_path / "report.json")
    assert "MPIX_Alltoall_enqueue" not in functions, functions
    assert {"MPIX_Bcast_enqueue", "MPIX_Allgather_enqueue", "MPIX_Allreduce_enqueue"} <= functions, functions


PYTHON = """
import ctypes
mpi, layer, driver = ctypes.CDLL("{library}", ctypes.RTLD_GLOBAL), ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)
layer.MPI_Init(None, None)
info, stream, comm = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
layer.MPI_Info_create(ctypes.byref(info))
layer.MPI_Info_set(info, b"type", b"cudaStream_t")
layer.MPIX_Info_set_hex(info, b"value", ctypes.byref(ctypes.c_void_p()), 8)
layer.MPIX_Stream_create(info, ctypes.byref(stream))
print("stream", flush=True)
layer.MPIX_Stream_comm_create(0x44000000, stream, ctypes.byref(comm))
print("not refused", flush=True)
"""


def test_without_threads_it_is_refused(awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    """Who finds the functions by their names must ask MPI for threads."""
    mpi = mpi_named("mpich")
    command: list[str | Path] = [
        sys.executable,
        "-c",
        PYTHON.format(library=mpi.mpiexec.parent.parent / "lib" / "libmpi.so.12"),
    ]
    result = harness.run_ranks(mpi, 2, command, emulate="cuda:2", timeout=harness.HANG_S)
    assert result.status != 0, result.explain()
    assert "call MPI_Init_thread with MPI_THREAD_MULTIPLE" in result.output, result.explain()
    assert "not refused" not in result.output, result.explain()
