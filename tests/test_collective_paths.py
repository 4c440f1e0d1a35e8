"""The ways that a collective may take on one node, each forced in turn, with the same results as host buffers.

tests/ranks/collectives.cpp compares every collective with what host buffers give; the report says which way it went.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harness
import pytest

RankProgram = Callable[[str, str], Path]
MpiNamed = Callable[[str], harness.Mpi]


def report_of(
    mpi: harness.Mpi,
    program: Path,
    folder: Path,
    environment: Mapping[str, str],
    *arguments: str,
    ranks: int = 2,
    emulate: str = "cuda:2",
) -> tuple[Counter[tuple[str, str]], str]:
    """The report of a run of a rank program whose cases all passed."""
    file = folder / "report.json"
    gpu = "cuda" if emulate.startswith("cuda") else "hip"
    result = harness.run_ranks(
        mpi,
        ranks,
        [program, f"--gpu={gpu}", *arguments],
        emulate=emulate,
        environment={"AWAKEN_REPORT": str(file), **environment},
        timeout=120 if ranks <= 4 else 900,
    )
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def calls_of(report: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Calls by function and path."""
    calls: Counter[tuple[str, str]] = Counter()
    for call in report["calls"]:
        calls[call["function"], call["path"]] += call["calls"]
    return calls


def run(*given: Any, **more: Any) -> tuple[Counter[tuple[str, str]], str]:
    """Calls by function and path, and the reasons of fallbacks."""
    report = report_of(*given, **more)
    return calls_of(report), " ".join(fallback["reason"] for fallback in report["fallbacks"])


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("algorithm", "mpi", "emulate", "ranks", "path"),
    [
        ("one", "mpich", "cuda:2", 2, "direct"),
        ("all", "openmpi", "hip:2", 3, "direct"),
        ("each", "mpich", "hip:1", 2, "direct"),
        ("ccl", "mpich", "cuda:2", 2, "ccl"),
        ("ccl", "openmpi", "hip:2", 2, "ccl"),
    ],
)
def test_algorithms(
    algorithm: str,
    mpi: str,
    emulate: str,
    ranks: int,
    path: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    environment = {"AWAKEN_COLLECTIVES": f"* : {algorithm}"}
    calls, _ = run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        environment,
        "--mix=device",
        "--filter=allgather",
        ranks=ranks,
        emulate=emulate,
    )
    assert calls["MPI_Allgather", path] > 0, calls


def test_asked_for_staging(
    tmp_path: Path, awaken_program: Path, rank_program: RankProgram, mpi_named: MpiNamed
) -> None:
    calls, reasons = run(
        mpi_named("mpich"),
        rank_program("mpich", "collectives"),
        tmp_path,
        {"AWAKEN_COLLECTIVES": "* : staged"},
        "--mix=device",
        "--filter=bcast",
    )
    assert calls["MPI_Bcast", "staged"] > 0 and calls["MPI_Bcast", "direct"] == 0, calls
    assert "the table of algorithms says so" in reasons


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"), [("mpich", "cuda:2", 4), pytest.param("openmpi", "hip:2", 3, marks=pytest.mark.long)]
)
def test_neighbourhoods_are_messages(
    mpi: str,
    emulate: str,
    ranks: int,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """What moves along an edge takes the paths of messages, unless the table says otherwise."""
    for rows, path, other in [("", "direct", "ccl"), ("neighborhood : staged", "staged", "direct")]:
        calls, reasons = run(
            mpi_named(mpi),
            rank_program(mpi, "collectives"),
            tmp_path,
            {"AWAKEN_COLLECTIVES": rows},
            "--mix=device",
            "--filter=neighbour",
            ranks=ranks,
            emulate=emulate,
        )
        assert "some edges of a graph are known at one of their ends only" in reasons
        assert ("the table of algorithms says so" in reasons) == (path == "staged")
        for function in ("alltoall", "allgather"):
            for form in (f"MPI_Neighbor_{function}", f"MPI_Ineighbor_{function}"):
                assert calls[form, path] > 0, (rows, calls)
                assert calls[form, other] == 0, (rows, calls)


@pytest.mark.parametrize(
    ("faults", "path", "reason"),
    [
        ("ipc-open", "staged", "cannot be mapped"),
        ("ccl-init=1", "direct", "ncclCommInitRank"),
        ("ccl-silent=1", "direct", "another rank could not join"),
    ],
)
def test_faults(
    faults: str,
    path: str,
    reason: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """What one rank cannot do, none does; the results stay right, and the report says why."""
    calls, reasons = run(
        mpi_named("mpich"),
        rank_program("mpich", "collectives"),
        tmp_path,
        {"AWAKEN_EMULATE_FAULTS": faults, "AWAKEN_COLLECTIVES": "allgather : ccl" if "ccl" in faults else ""},
        "--mix=device",
        "--filter=allgather",
    )
    assert calls["MPI_Allgather", path] > 0, calls
    assert calls["MPI_Allgather", "ccl"] == 0, calls
    assert reason in reasons, reasons


@pytest.mark.sanitizer
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_nonblocking_is_agreed_on(
    mpi: str,
    emulate: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Many collectives on one communicator: the nonblocking ones come to be done on the GPUs too."""
    calls, _ = run(
        mpi_named(mpi), rank_program(mpi, "collective_sequences"), tmp_path, {}, "--mix=device", emulate=emulate
    )
    direct = {function for (function, path), count in calls.items() if path == "direct" and count > 0}
    assert any(function.startswith("MPI_I") and "send" not in function for function in direct), calls


@pytest.mark.parametrize(("mpi", "emulate", "ranks"), [("mpich", "cuda:2", 2), ("openmpi", "hip:2", 3)])
def test_gaps(
    mpi: str,
    emulate: str,
    ranks: int,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Datatypes with gaps, another one on each rank and side, are packed by the GPUs and go the direct way."""
    calls, reasons = run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {},
        "--mix=device",
        "--filter=gaps",
        "--except=user",
        "--except=persistent",
        ranks=ranks,
        emulate=emulate,
    )
    for name in (
        "Bcast",
        "Gather",
        "Gatherv",
        "Scatter",
        "Scatterv",
        "Allgather",
        "Allgatherv",
        "Alltoall",
        "Alltoallv",
    ):
        assert calls[f"MPI_{name}", "direct"] > 0 and calls[f"MPI_I{name.lower()}", "direct"] > 0, calls
    assert calls["MPI_Alltoallw", "direct"] > 0 and calls["MPI_Ialltoallw", "direct"] > 0, calls
    assert "pack" not in reasons and "memory left" not in reasons, reasons


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "hip:2"), ("openmpi", "cuda:2")])
def test_reduce_local(
    mpi: str,
    emulate: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Reduced where the result lies; an operand elsewhere is copied there."""
    calls, _ = run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {},
        "--mix=device",
        "--filter=reduce_local_sum_int",
        ranks=1,
        emulate=emulate,
    )
    assert calls["MPI_Reduce_local", "direct"] > 0 and calls["MPI_Reduce_local", "copied"] > 0, calls


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "nodes"),
    [
        ("mpich", "cuda:2", 2, 1),
        ("openmpi", "hip:2", 3, 1),
        ("openmpi", "cuda:2", 2, 2),
        pytest.param("mpich", "hip:2", 4, 2, marks=pytest.mark.long),
    ],
)
def test_persistent(
    mpi: str,
    emulate: str,
    ranks: int,
    nodes: int,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Started in an order of each rank's own; on one node each start is done by the GPUs, else as the MPI does it."""
    calls, _ = run(
        mpi_named(mpi),
        rank_program(mpi, "collective_sequences"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": str(nodes)},
        "--mix=device",
        "--filter=persistent",
        ranks=ranks,
        emulate=emulate,
    )
    assert (calls["MPI_Start", "direct"] > 0) == (nodes == 1), calls
    assert (calls["MPI_Startall", "direct"] > 0) == (nodes == 1), calls


@pytest.mark.parametrize(
    ("mpi", "emulate", "variable"), [("mpich", "hip:2", "PMI_RANK"), ("openmpi", "cuda:2", "OMPI_COMM_WORLD_RANK")]
)
def test_one_rank_has_no_memory_to_pack_into(
    mpi: str,
    emulate: str,
    variable: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """It says so in its vote, and all go through host memory together."""
    file = tmp_path / "report.json"
    one_differs = f'[ "${variable}" = 1 ] && export AWAKEN_EMULATE_FAULTS=ipc-export; exec "$@"'
    gpu = emulate.split(":")[0]
    program = [rank_program(mpi, "collectives"), f"--gpu={gpu}", "--mix=device", "--filter=gaps", "--except=user"]
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        ["/bin/sh", "-c", one_differs, "sh", *program],
        emulate=emulate,
        environment={"AWAKEN_REPORT": str(file)},
        timeout=120,
    )
    result.check()
    assert "\nok gaps" in result.output, result.explain()
    report = json.loads(file.read_text())
    calls = calls_of(report)
    assert calls["MPI_Allgather", "staged"] > 0 and calls["MPI_Allgather", "direct"] == 0, calls


def test_wrong_table(awaken_program: Path, rank_program: RankProgram, mpi_named: MpiNamed) -> None:
    """Bad input ends the program before it starts, and says what is allowed."""
    result = harness.run_ranks(
        mpi_named("mpich"),
        2,
        [rank_program("mpich", "collectives"), "--gpu=cuda"],
        emulate="cuda:2",
        environment={"AWAKEN_COLLECTIVES": "allredouce : ccl"},
        timeout=60,
    )
    assert result.status != 0, result.explain()
    assert "allredouce" in result.output and "one of" in result.output, result.explain()


CHUNKS = {"AWAKEN_TUNE_COLLECTIVE_CHUNK_BYTES": "4K"}
"""Cuts from 1 KiB on, so that the cases that check everything else check this too."""

CUT_WITH_BLOCKS = {
    "alltoall": {"MPI_Alltoall"},
    "scatter": {"MPI_Scatter", "MPI_Reduce_scatter_block"},
    "gather": {"MPI_Gather", "MPI_Allgather"},
}
"""By filter: collectives with a block for each rank, of which a chunk takes the same part."""


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "nodes", "filter"),
    [
        ("mpich", "cuda:2", 2, 2, "bcast"),
        ("mpich", "hip:1", 2, 2, "reduce_sum_int"),
        ("openmpi", "cuda:2", 3, 2, "scan_"),
        pytest.param("openmpi", "hip:2", 2, 2, "reduce_sum", marks=pytest.mark.sanitizer),
        pytest.param("openmpi", "cuda:2", 2, 2, "reduce_", marks=pytest.mark.long),
        pytest.param("mpi5", "cuda:1", 3, 3, "one_rank_differs", marks=pytest.mark.long),
        ("mpich", "cuda:2", 3, 2, "sub_communicators"),
        ("mpich", "hip:2", 3, 2, "alltoall"),
        ("openmpi", "cuda:2", 2, 2, "scatter"),
        pytest.param("mpich", "cuda:2", 4, 2, "gather", marks=pytest.mark.long),
        # Open MPI's ranks leave the processor to others while they wait, as so many need.
        pytest.param("openmpi", "cuda:2", 6, 3, "", marks=pytest.mark.long),
        pytest.param("openmpi", "hip:2", 8, 2, "", marks=pytest.mark.long),
    ],
)
def test_between_nodes(
    mpi: str,
    emulate: str,
    ranks: int,
    nodes: int,
    filter: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Whatever mix of host and device memory the ranks pass, all cut alike, and get what host buffers give."""
    cut = {"AWAKEN_COLLECTIVES": "* nodes=2- : staged"} if filter in CUT_WITH_BLOCKS else {}
    calls, _ = run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": str(nodes), **cut, **CHUNKS},
        f"--filter={filter}",
        ranks=ranks,
        emulate=emulate,
    )
    pipelined = {function for (function, path), count in calls.items() if path == "pipelined" and count > 0}
    assert pipelined >= CUT_WITH_BLOCKS.get(filter, set()) and pipelined, calls


IN_MESSAGES = {**CHUNKS, "AWAKEN_TUNE_NETWORK_BYTES": "1K", "AWAKEN_TUNE_NETWORK_CHUNK_BYTES": "4K"}


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"),
    [("openmpi", "cuda:2", 3), ("mpich", "hip:2", 2), pytest.param("mpi5", "cuda:4", 4, marks=pytest.mark.long)],
)
def test_scans_on_a_node(
    mpi: str,
    emulate: str,
    ranks: int,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    calls, _ = run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {},
        "--mix=device",
        "--filter=scan_sum_int",
        ranks=ranks,
        emulate=emulate,
    )
    # In place, what the others read is a copy.
    for function in ("MPI_Scan", "MPI_Exscan"):
        assert calls[function, "direct"] > 0 and calls[function, "copied"] > 0, calls


VARYING = {f"MPI_{name}" for name in ("Gatherv", "Scatterv", "Allgatherv", "Alltoallv", "Alltoallw")}


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "nodes", "mix"),
    [
        pytest.param("mpich", "cuda:2", 2, 2, "", marks=pytest.mark.sanitizer),
        ("openmpi", "hip:2", 3, 2, "--mix=device"),
        pytest.param("mpi5", "cuda:2", 4, 2, "", marks=pytest.mark.long),
        pytest.param("mpich", "hip:2", 4, 3, "", marks=pytest.mark.long),
        pytest.param("openmpi", "cuda:4", 7, 2, "", marks=pytest.mark.long),
    ],
)
def test_varying_parts_between_nodes(
    mpi: str,
    emulate: str,
    ranks: int,
    nodes: int,
    mix: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """They are messages: in chunks between nodes, and directly between the ranks of one."""
    calls, _ = run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": str(nodes), "AWAKEN_EMULATE_FAULTS": "ccl-init=1", **IN_MESSAGES},
        *filter(None, [mix]),
        "--filter=varying_again_and_again",
        ranks=ranks,
        emulate=emulate,
    )
    assert {function for function, path in calls if path == "pipelined"} >= VARYING, calls
    if ranks > nodes:
        # A call counts for the path of most of it.
        assert {"MPI_Gatherv", "MPI_Scatterv"} <= {
            function for function, path in calls if path in ("direct", "copied")
        }, calls


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "filter", "functions"),
    [
        ("mpich", "hip:2", 2, "gather_scatter", {"MPI_Gather", "MPI_Scatter"}),
        pytest.param("openmpi", "cuda:1", 3, "gaps", {"MPI_Gather", "MPI_Scatterv"}, marks=pytest.mark.sanitizer),
        pytest.param("mpich", "cuda:2", 4, "all", {"MPI_Allgather", "MPI_Alltoall"}, marks=pytest.mark.long),
    ],
)
def test_parts_in_messages(
    mpi: str,
    emulate: str,
    ranks: int,
    filter: str,
    functions: set[str],
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Where NCCL and RCCL are not to be had, and where each rank has a layout of its own."""
    calls, _ = run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": "2", "AWAKEN_EMULATE_FAULTS": "ccl-init=1", **IN_MESSAGES},
        f"--filter={filter}",
        ranks=ranks,
        emulate=emulate,
    )
    assert {function for function, path in calls if path == "pipelined"} >= functions, calls


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_waiting_for_a_collective_keeps_the_mpi_going(
    mpi: str,
    emulate: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    calls, _ = run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {},
        "--mix=device",
        "--filter=waits_keep_all_going",
        ranks=3,
        emulate=emulate,
    )
    assert calls["MPI_Iallreduce", "direct"] > 0, calls


@pytest.mark.parametrize(("mpi", "emulate", "ranks"), [("mpich", "cuda:2", 2), ("openmpi", "hip:2", 3)])
@pytest.mark.parametrize("filter", ["no_such_root", "nothing_said_in_two_ways"])
def test_odd_arguments_between_nodes(
    mpi: str,
    emulate: str,
    ranks: int,
    filter: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Errors are the MPI's, on all ranks, and what has no bytes is no message, however it is said."""
    run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": "2", "AWAKEN_EMULATE_FAULTS": "ccl-init=1", **IN_MESSAGES},
        f"--filter={filter}",
        ranks=ranks,
        emulate=emulate,
    )


def test_varying_parts_staged_where_the_table_says_so(
    tmp_path: Path, awaken_program: Path, rank_program: RankProgram, mpi_named: MpiNamed
) -> None:
    calls, _ = run(
        mpi_named("openmpi"),
        rank_program("openmpi", "collectives"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": "2", "AWAKEN_COLLECTIVES": "alltoall nodes=2- : staged", **IN_MESSAGES},
        "--mix=device",
        "--filter=varying_again_and_again",
        ranks=2,
        emulate="cuda:2",
    )
    assert calls["MPI_Alltoallv", "staged"] > 0 and calls["MPI_Alltoallv", "pipelined"] == 0, calls
    assert calls["MPI_Gatherv", "ccl"] > 0, calls


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "columns", "filter"),
    [
        pytest.param("mpich", "cuda:2", 4, 2, "bcast", marks=pytest.mark.sanitizer),
        ("openmpi", "hip:2", 3, 1, "bcast"),
        ("openmpi", "hip:2", 3, 1, "reduce_sum_double"),
        pytest.param("mpich", "hip:2", 4, 2, "reduce_sum_double", marks=pytest.mark.long),
        pytest.param("openmpi", "cuda:2", 5, 2, "reduce_sum_double", marks=pytest.mark.long),
        pytest.param("mpi5", "cuda:2", 7, 3, "reduce_sum_double", marks=pytest.mark.long),
    ],
)
def test_nodes_and_columns(
    mpi: str,
    emulate: str,
    ranks: int,
    columns: int,
    filter: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Where all pass device memory, each node's GPUs do their part first; nodes may have unequal numbers of ranks."""
    report = report_of(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": "2", "AWAKEN_TUNE_COLLECTIVE_CHUNK_BYTES": "64K"},
        "--mix=device",
        f"--filter={filter}",
        ranks=ranks,
        emulate=emulate,
    )
    assert f"through host memory : chunks of 64 KiB, {columns} columns of nodes" in report["collectives"]
    assert sum(count for (_, path), count in calls_of(report).items() if path == "pipelined") > 0


LIBRARY_CALLS = {
    f"MPI_{name}" for name in ("Allreduce", "Reduce", "Bcast", "Allgather", "Alltoall", "Reduce_scatter_block")
}
VARYING_LIBRARY_CALLS = VARYING - {"MPI_Alltoallw"}  # which has parts with gaps there


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "nodes"),
    [
        pytest.param("mpich", "cuda:2", 2, 2, marks=pytest.mark.sanitizer),
        ("openmpi", "hip:4", 4, 2),
        pytest.param("mpich", "cuda:4", 3, 3, marks=pytest.mark.long),
        pytest.param("openmpi", "cuda:3", 3, 2, marks=pytest.mark.long),
        pytest.param("mpi5", "cuda:4", 4, 4, marks=pytest.mark.long),
        pytest.param("mpich", "hip:8", 8, 3, marks=pytest.mark.long),
    ],
)
def test_library_between_nodes(
    mpi: str,
    emulate: str,
    ranks: int,
    nodes: int,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Where all pass device memory of GPUs of their own, NCCL or RCCL is made for the communicator, and then used."""
    report = report_of(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": str(nodes), "AWAKEN_EMULATE_DELAY_US": "10", **CHUNKS},
        "--mix=device",
        "--filter=again_and_again",
        ranks=ranks,
        emulate=emulate,
    )
    calls = calls_of(report)
    assert {function for function, path in calls if path == "ccl"} == LIBRARY_CALLS | VARYING_LIBRARY_CALLS, calls
    assert "* nodes=2- : ccl" in report["collectives"]


def test_library_between_nodes_and_others(
    tmp_path: Path, awaken_program: Path, rank_program: RankProgram, mpi_named: MpiNamed
) -> None:
    """Beside collectives of other communicators and threads, whose turn it may be not to have the library."""
    calls, _ = run(
        mpi_named("mpich"),
        rank_program("mpich", "collective_sequences"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": "2", **CHUNKS},
        "--mix=device",
        ranks=2,
        emulate="hip:2",
    )
    assert sum(count for (_, path), count in calls.items() if path == "ccl") > 0, calls
    assert sum(count for (_, path), count in calls.items() if path == "pipelined") > 0, calls


@pytest.mark.parametrize(
    ("emulate", "environment", "reason"),
    [
        ("cuda:2", {"AWAKEN_EMULATE_FAULTS": "ccl-init=1"}, "ncclCommInitRank"),
        ("hip:2", {"AWAKEN_EMULATE_FAULTS": "ccl-silent=1"}, "another rank could not join"),
        ("hip:1", {}, "two ranks share a GPU"),
        pytest.param("cuda:2", {"AWAKEN_CCL": "/nowhere/libnccl.so"}, "/nowhere/libnccl.so", marks=pytest.mark.long),
        ("cuda:2", {"AWAKEN_COLLECTIVES": "* nodes=2- : staged"}, ""),
    ],
)
def test_no_library_between_nodes(
    emulate: str,
    environment: dict[str, str],
    reason: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    """Where one rank cannot use it none does, nobody waits for ever, and the report says why."""
    calls, reasons = run(
        mpi_named("mpich"),
        rank_program("mpich", "collectives"),
        tmp_path,
        {"AWAKEN_PRETEND_NODES": "2", "AWAKEN_EMULATE_DELAY_US": "10", **IN_MESSAGES, **environment},
        "--mix=device",
        "--filter=again_and_again",
        ranks=2,
        emulate=emulate,
    )
    assert not any(path == "ccl" for _, path in calls), calls
    assert all(calls[function, "pipelined"] > 0 for function in LIBRARY_CALLS), calls
    assert reason in reasons, reasons


@pytest.mark.parametrize(
    ("rows", "ranks"),
    [
        ("* nodes=2- : staged", 2),
        pytest.param("allreduce types=floating : staged", 4, marks=pytest.mark.long),
        pytest.param("* nodes=2- : levels", 4, marks=pytest.mark.long),
    ],
)
def test_different_tables_between_nodes(
    rows: str, ranks: int, tmp_path: Path, awaken_program: Path, rank_program: RankProgram, mpi_named: MpiNamed
) -> None:
    """Tables that differ are a mistake; the ranks agree on what all of theirs allow, and nobody waits for ever."""
    script = tmp_path / "one_differs"
    program = rank_program("mpich", "collectives")
    script.write_text(
        f"#!/bin/sh\nif [ $PMI_RANK = 1 ]; then export AWAKEN_COLLECTIVES='{rows}'; fi\nexec {program} \"$@\"\n"
    )
    script.chmod(0o755)
    calls, _ = run(
        mpi_named("mpich"),
        script,
        tmp_path,
        {"AWAKEN_PRETEND_NODES": "2", "AWAKEN_EMULATE_DELAY_US": "10", **CHUNKS},
        "--mix=device",
        "--filter=again_and_again",
        ranks=ranks,
        emulate=f"cuda:{ranks}",
    )
    assert calls["MPI_Allreduce", "ccl"] == 0 and calls["MPI_Allreduce", "pipelined"] > 0, calls


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "hip:2"), ("openmpi", "cuda:2")])
def test_staged_on_one_node_in_chunks(
    mpi: str,
    emulate: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: RankProgram,
    mpi_named: MpiNamed,
) -> None:
    calls, _ = run(
        mpi_named(mpi),
        rank_program(mpi, "collectives"),
        tmp_path,
        {"AWAKEN_COLLECTIVES": "* : staged", **CHUNKS},
        "--filter=reduce_sum_int",
        emulate=emulate,
    )
    assert calls["MPI_Allreduce", "pipelined"] > 0 and calls["MPI_Reduce", "pipelined"] > 0, calls
