# SPDX-License-Identifier: Apache-2.0
"""The allreduce benchmark of apps/: its two lines, what it adds to them, what it notices, and how it ends.

As the other programs here, it runs on a stand-in GPU runtime whose device memory is host memory, with a stand-in for
NCCL and RCCL beside it, and on emulated GPUs under `awaken exec`.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from app_runs import ABIS, AWAKEN_OF_BUILD, BUILD, ROOT, VENV, Result, mpiexec
from test_programs import compile_library, stand_in

AWAKEN = AWAKEN_OF_BUILD
HOMES = ("NCCL_HOME", "RCCL_HOME", "ROCM_PATH", "CUDA_HOME", "VIRTUAL_ENV", "CONDA_PREFIX")
BIND = ROOT / "apps" / "bind_gpu.sh"
EMULATOR = BUILD / "lib" / "awaken" / "emulator"
CCL_SONAME = {"cuda": "libnccl.so.2", "hip": "librccl.so.1"}
CCL_NAME = {"cuda": "NCCL", "hip": "RCCL"}

SMALL = ("--elements", "1001", "--iterations", "4", "--buffers", "3")
CCL_LINE = "Time in seconds for GPU Direct MPI_Allreduce using NCCL/RCCL: "
MPI_LINE = "Time in seconds for GPU Direct MPI_Allreduce using standard MPI library: "
SCIENTIFIC = re.compile(r"\d\.\d{18}e[+-]\d\d")
TABLE_ROW = re.compile(r"# (\S.*?)  +(waited|queued) +([\d.]+) +([\d.]+) +([\d.]+)")


def machine(folder: Path, kind: str, *ccl_flags: str, with_ccl: bool = True) -> dict[str, str]:
    """Environment of a machine with two GPUs of one vendor, and that vendor's collective library."""
    stand_in(folder, kind, 2)
    stand_in(folder, "hip" if kind == "cuda" else "cuda", 0)
    if with_ccl:
        compile_library(VENV / "bin" / "mpicc", "mpi_ccl.c", folder / CCL_SONAME[kind], *ccl_flags)
    homes = {name: str(folder) for name in HOMES}
    return {"LD_LIBRARY_PATH": str(folder), **homes}


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return machine(tmp_path_factory.mktemp("cuda"), "cuda")


@pytest.fixture(scope="session")
def hip(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return machine(tmp_path_factory.mktemp("hip"), "hip")


@pytest.fixture(scope="session")
def without_ccl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return machine(tmp_path_factory.mktemp("no-ccl"), "cuda", with_ccl=False)


@pytest.fixture(scope="session")
def faulty_mpi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(VENV / "bin" / "mpicc", "faulty_mpi.c", tmp_path_factory.mktemp("faulty") / "faulty_mpi.so")


def seconds_of(out: str, line: str) -> float | None:
    """The number of one of the two lines; None where it is not there. Both must have the original's exact form."""
    found = [text for text in out.splitlines() if text.startswith(line)]
    assert len(found) <= 1, out
    if not found:
        return None
    assert SCIENTIFIC.fullmatch(found[0][len(line) :]), found[0]
    return float(found[0][len(line) :])


def check_output(result: Result, *, elements: int, iterations: int, ranks: int, ccl: str | None) -> None:
    """All numbers of a run: the two lines in the original's order, and a table that agrees with them."""
    assert result.status == 0, result.err
    plain = [line for line in result.out.splitlines() if not line.startswith("#")]
    assert [line[: line.index(":") + 2] for line in plain] == ([CCL_LINE] if ccl else []) + [MPI_LINE]

    rows = {(row[0], row[1]): tuple(map(float, row[2:])) for row in TABLE_ROW.findall(result.out)}
    libraries = ([ccl] if ccl else []) + ["standard MPI"]
    assert set(rows) == set(itertools.product(libraries, ("waited", "queued")))
    for microseconds, algbw, busbw in rows.values():
        # The bandwidths have three decimals, the time two.
        tolerance = 0.0006 + 0.006 / microseconds * algbw
        assert algbw == pytest.approx(8e-3 * elements / microseconds, abs=tolerance)
        assert busbw == pytest.approx(algbw * 2 * (ranks - 1) / ranks, abs=0.0012)
    # Scripts compare NCCL's queued calls with MPI's blocking ones, and total seconds; so do the two lines.
    mpi_seconds = seconds_of(result.out, MPI_LINE)
    assert mpi_seconds is not None
    assert rows["standard MPI", "waited"][0] == pytest.approx(mpi_seconds / iterations * 1e6, abs=0.006)
    if ccl:
        ccl_seconds = seconds_of(result.out, CCL_LINE)
        assert ccl_seconds is not None
        assert rows[ccl, "queued"][0] == pytest.approx(ccl_seconds / iterations * 1e6, abs=0.006)
        for mode in ("queued", "waited"):
            (ratio,) = re.findall(rf"# standard MPI / {re.escape(ccl)}, {mode}: ([\d.]+)\n", result.out)
            mpi_us, ccl_us = rows["standard MPI", mode][0], rows[ccl, mode][0]
            assert (mpi_us - 0.006) / (ccl_us + 0.006) - 0.001 <= float(ratio)
            assert float(ratio) <= (mpi_us + 0.006) / max(ccl_us - 0.006, 1e-9) + 0.001
    assert "# All sums are exact on all ranks.\n" in result.out
    assert f"# Sum of {elements} doubles ({8 * elements} bytes) over {ranks} ranks" in result.out


# ------------------------------------------------------------------------------------------------------------- output


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_both_libraries_are_measured(kind: str, ranks: int, request: pytest.FixtureRequest) -> None:
    result = mpiexec("mpich", "allreduce", *SMALL, ranks=ranks, **request.getfixturevalue(kind))
    check_output(result, elements=1001, iterations=4, ranks=ranks, ccl=f"{CCL_NAME[kind]} 2.27.3")
    assert "# 4 timed calls after 5 for warm-up, on 3 buffers in turn\n" in result.out


@pytest.mark.parametrize("abi", ABIS)
def test_without_nccl_the_reason_is_told_and_mpi_measured(abi: str, without_ccl: dict[str, str]) -> None:
    result = mpiexec(abi, "allreduce", *SMALL, environment=without_ccl)
    check_output(result, elements=1001, iterations=4, ranks=2, ccl=None)
    assert "# NCCL left out: libnccl.so.2: cannot open shared object file" in result.out
    assert "put the folder of libnccl.so.2 into LD_LIBRARY_PATH" in result.out


def test_the_sizes_are_those_of_the_original() -> None:
    result = mpiexec("mpich", "allreduce", "--help", ranks=1)
    assert result.status == 0
    defaults = dict(re.findall(r"--([\w-]+) N .*\(default (\d+)\)", result.out))
    assert defaults == {"elements": "10000000", "iterations": "50", "warm-up": "5", "buffers": "50"}


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        ("NCCL_HOME", "lib"),
        ("CUDA_HOME", "lib64"),
        ("VIRTUAL_ENV", "lib/python3.11/site-packages/nvidia/nccl/lib"),
        ("", "../nccl/lib"),
    ],
)
def test_nccl_is_found_where_it_is_usually_installed(variable: str, place: str, tmp_path: Path) -> None:
    """Last beside the CUDA runtime, as Python's packages lie."""
    folder = tmp_path / "nvidia" / "cuda_runtime" / "lib"
    folder.mkdir(parents=True)
    environment = machine(folder, "cuda")
    home = folder.parent if not variable else tmp_path / "home"
    (home / place).mkdir(parents=True)
    (folder / "libnccl.so.2").rename(home / place / "libnccl.so.2")
    if variable:
        environment[variable] = str(home)
    result = mpiexec("mpich", "allreduce", *SMALL, environment=environment)
    check_output(result, elements=1001, iterations=4, ranks=2, ccl="NCCL 2.27.3")


@pytest.mark.parametrize(("code", "text"), [("2708", "2.7.8"), ("2804", "2.8.4"), ("21805", "2.18.5")])
def test_nccl_has_numbered_its_versions_in_two_ways(code: str, text: str, cuda: dict[str, str]) -> None:
    result = mpiexec("mpich", "allreduce", *SMALL, CCL_VERSION=code, environment=cuda)
    check_output(result, elements=1001, iterations=4, ranks=2, ccl=f"NCCL {text}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--warm-up", "0"), "4 timed calls after 0 for warm-up, on 3 buffers"),
        (("--warm-up", "7"), "4 timed calls after 7 for warm-up, on 3 buffers"),
        (("--warm-up", "1"), "4 timed calls after 3 for warm-up, on 3 buffers"),
        (("--buffers", "1"), "4 timed calls after 5 for warm-up, on 1 buffers"),
        (("--buffers", "50"), "4 timed calls after 5 for warm-up, on 4 buffers"),
    ],
)
def test_what_was_measured_is_told(words: tuple[str, str], told: str, without_ccl: dict[str, str]) -> None:
    result = mpiexec("mpich", "allreduce", *SMALL, *words, environment=without_ccl)
    check_output(result, elements=1001, iterations=4, ranks=2, ccl=None)
    assert told in result.out


@pytest.mark.parametrize(("gpus", "binding", "buffers"), [("cuda:2", [BIND], 8), ("cuda:1", [], 4)])
def test_memory_is_shared_by_the_ranks_of_a_gpu_alone(gpus: str, binding: list[Path], buffers: int) -> None:
    """A rank that sees one GPU may have it to itself, or share it: half of what is free is for its arrays."""
    machine = {"AWAKEN_EMULATE": gpus, "AWAKEN_EMULATE_MEMORY": "16M", "BIND_GPU_COUNT": "2"}
    words = ("--elements", "128K", "--iterations", "8", "--warm-up", "0")
    result = mpiexec(
        "mpich", "allreduce", *words, before=[*binding, AWAKEN_OF_BUILD, "exec", "--"], environment=machine
    )
    assert result.status == 0, result.err
    assert f"# 8 timed calls after 0 for warm-up, on {buffers} buffers in turn\n" in result.out


def test_fewer_buffers_are_taken_where_memory_is_short(without_ccl: dict[str, str]) -> None:
    # Four ranks share two GPUs: each may take a quarter of its GPU's free memory, which is two and a half arrays.
    result = mpiexec(
        "mpich", "allreduce", *SMALL, ranks=4, STAND_IN_MEMORY_BYTES=str(10 * 8008), environment=without_ccl
    )
    check_output(result, elements=1001, iterations=4, ranks=4, ccl=None)
    assert "on 2 buffers in turn" in result.out


# --------------------------------------------------------------------------------------------------------- wrong data

CALLS = [(call, "waited" if call < 4 else "queued") for call in (0, 2, 3, 4, 6, 7)]
"""With 3 buffers and no warm-up, calls 0 to 3 are MPI's waited ones and 4 to 7 its queued ones; 3 and 7 are the only
call of their set of buffers."""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("call", "mode"), CALLS)
def test_a_wrong_sum_of_mpi_is_noticed(
    call: int, mode: str, rank: int, faulty_mpi: Path, without_ccl: dict[str, str]
) -> None:
    fault = {"FAULT_RANK": str(rank), "FAULT_CALL": str(call), "FAULT_KIND": "flip", "LD_PRELOAD": str(faulty_mpi)}
    result = mpiexec("mpich", "allreduce", *SMALL, "--warm-up", "0", environment={**fault, **without_ccl})
    assert result.status == 1
    buffer = (call % 4) % 3
    where = f"wrong data: standard MPI, {mode}: rank {rank}, element 1000 of buffer {buffer}: "
    assert result.err.count(where) == 1, result.err
    assert "All sums are exact" not in result.out
    # A time of wrong sums is not told.
    assert (MPI_LINE in result.out) == (mode == "queued")


def test_a_sum_that_never_came_is_noticed(faulty_mpi: Path, without_ccl: dict[str, str]) -> None:
    fault = {"FAULT_RANK": "1", "FAULT_CALL": "1", "FAULT_KIND": "drop", "LD_PRELOAD": str(faulty_mpi)}
    result = mpiexec("mpich", "allreduce", *SMALL, "--warm-up", "0", environment={**fault, **without_ccl})
    assert result.status == 1
    assert "wrong data: standard MPI, waited: rank 1, element 0 of buffer 1: " in result.err


def test_a_wrong_sum_in_the_warm_up_is_noticed(faulty_mpi: Path, without_ccl: dict[str, str]) -> None:
    fault = {"FAULT_RANK": "0", "FAULT_CALL": "0", "FAULT_KIND": "flip", "LD_PRELOAD": str(faulty_mpi)}
    result = mpiexec("mpich", "allreduce", *SMALL, "--warm-up", "1", environment={**fault, **without_ccl})
    assert result.status == 1
    assert "wrong data: standard MPI, waited: rank 0, element 1000 of buffer 0: " in result.err


@pytest.mark.parametrize(("call", "mode"), [(0, "queued"), (3, "queued"), (4, "waited"), (7, "waited")])
def test_a_wrong_sum_of_nccl_is_noticed(call: int, mode: str, cuda: dict[str, str]) -> None:
    result = mpiexec(
        "mpich", "allreduce", *SMALL, "--warm-up", "0", CCL_FAULT="flip", CCL_FAULT_CALL=str(call), environment=cuda
    )
    assert result.status == 1
    assert f"wrong data: NCCL 2.27.3, {mode}: rank 1, element 1000 of buffer {(call % 4) % 3}: " in result.err


# --------------------------------------------------------------------------------------------------- what can go wrong


def test_ranks_that_cannot_be_connected_leave_mpi_alone(cuda: dict[str, str]) -> None:
    result = mpiexec("mpich", "allreduce", *SMALL, CCL_FAULT="init", environment=cuda)
    check_output(result, elements=1001, iterations=4, ranks=2, ccl=None)
    assert "# NCCL 2.27.3 left out: ncclCommInitRank: invalid argument; " in result.out
    assert "each rank needs a GPU of its own" in result.out


def test_a_library_that_lacks_a_function_is_left_out(tmp_path: Path) -> None:
    result = mpiexec("mpich", "allreduce", *SMALL, environment=machine(tmp_path, "hip", "-DWITHOUT_DESTROY"))
    check_output(result, elements=1001, iterations=4, ranks=2, ccl=None)
    assert "# RCCL left out: librccl.so.1 has no ncclCommDestroy\n" in result.out


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("call", "rank 1: NCCL 2.27.3: ncclAllReduce: internal error"),
        ("async", "rank 1: NCCL 2.27.3: an operation that had been started: remote error"),
    ],
)
def test_a_failure_of_nccl_ends_the_job(fault: str, told: str, cuda: dict[str, str]) -> None:
    result = mpiexec("mpich", "allreduce", *SMALL, CCL_FAULT=fault, environment=cuda)
    assert result.status != 0
    assert told in result.err
    assert CCL_LINE not in result.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--elements", "0"], "--elements 0: out of range (a whole number from 1 to 2147483647)"),
        (["--elements", "2G"], "--elements 2G: out of range"),
        (["--iterations", "0"], "--iterations 0: out of range"),
        (["--buffers", "0"], "--buffers 0: out of range"),
        (["--size", "8"], "unknown option --size"),
    ],
)
def test_wrong_options_are_refused(words: list[str], complaint: str, cuda: dict[str, str]) -> None:
    result = mpiexec("mpich", "allreduce", *words, environment=cuda)
    assert (result.status, result.out) == (2, "")
    assert result.err.count(complaint) == 1
    assert result.err.count("\n") == 1


def test_without_a_gpu_the_message_names_what_was_looked_for(tmp_path: Path) -> None:
    stand_in(tmp_path, "cuda", 0)
    stand_in(tmp_path, "hip", 0)
    result = mpiexec("mpich", "allreduce", LD_LIBRARY_PATH=str(tmp_path))
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("allreduce: no GPU")
    assert result.err.count("\n") == 1


# ------------------------------------------------------------------------------------------------------- with Awaken


def emulated(abi: str, kind: str, *arguments: str, ranks: int) -> Result:
    variables = {"AWAKEN_EMULATE": f"{kind}:{ranks}"}
    return mpiexec(abi, "allreduce", *arguments, ranks=ranks, before=[AWAKEN, "exec", "--"], environment=variables)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", ["cuda", "hip"])
@pytest.mark.parametrize("abi", ABIS)
def test_it_runs_under_awaken(abi: str, kind: str, ranks: int) -> None:
    result = emulated(abi, kind, "--elements", "9001", "--iterations", "3", ranks=ranks)
    names = set(re.findall(rf"# ({CCL_NAME[kind]} [\d.]+) +queued", result.out))
    assert len(names) == 1, result.out + result.err
    check_output(result, elements=9001, iterations=3, ranks=ranks, ccl=names.pop())


@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_ranks_that_share_a_gpu_leave_nccl_out(kind: str) -> None:
    variables = {"AWAKEN_EMULATE": f"{kind}:1"}
    result = mpiexec("mpich", "allreduce", *SMALL, before=[AWAKEN, "exec", "--"], environment=variables)
    check_output(result, elements=1001, iterations=4, ranks=2, ccl=None)
    assert re.search(
        rf"# {CCL_NAME[kind]} [\d.]+ left out: ncclCommInitRank: .*each rank needs a GPU of its own", result.out
    )


def test_an_array_beyond_the_memory_is_refused_with_advice() -> None:
    result = emulated("mpich", "cuda", "--elements", "1000000000", ranks=2)
    assert (result.status, result.out) == (2, "")
    assert "allreduce: no memory for 1000000000 doubles on rank 0 (" in result.err
    assert "use fewer --elements" in result.err
    assert result.err.count("\n") == 1


def test_a_plain_mpi_dies_of_the_device_pointers() -> None:
    result = mpiexec("mpich", "allreduce", *SMALL, LD_LIBRARY_PATH=str(EMULATOR), AWAKEN_EMULATE="cuda:2")
    assert result.status != 0
    assert MPI_LINE not in result.out
    assert "Segmentation fault (signal 11)" in result.out + result.err


# ------------------------------------------------------------------------------------------------ as a tutorial program


@pytest.mark.parametrize("abi", ABIS)
def test_the_program_needs_nothing_of_awaken(abi: str) -> None:
    program = (BUILD / "apps" / abi / "allreduce").read_bytes()
    # The ranges of ranges.h are told to every tool that is there, by name.
    assert b"awaken_" not in program.replace(b"awaken_range_push", b"").replace(b"awaken_range_pop", b"")
    assert b"libawaken" not in program
