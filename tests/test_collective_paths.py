# SPDX-License-Identifier: Apache-2.0
"""The ways that a collective may take on one node, each forced in turn, with the same results as host buffers.

tests/ranks/collectives.cpp compares every collective with what host buffers give; the report says which way it went.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import pytest


@dataclass(frozen=True)
class Outcome:
    """Of a run of a rank program whose cases all passed."""

    report: dict[str, Any]

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """Calls by function and path."""
        calls: Counter[tuple[str, str]] = Counter()
        for call in self.report["calls"]:
            calls[call["function"], call["path"]] += call["calls"]
        return calls

    @property
    def reasons(self) -> str:
        """Why calls did not go the way that they might have."""
        return " ".join(fallback["reason"] for fallback in self.report["fallbacks"])

    def functions(self, *paths: str) -> set[str]:
        """Those of which calls went one of these ways."""
        return {function for (function, path), count in self.calls.items() if path in paths and count > 0}


@dataclass(frozen=True)
class Run:
    """Runs a rank program with Awaken. `words` are put before its name."""

    folder: Path
    rank_program: Callable[[str, str], Path]
    mpi_named: Callable[[str], harness.Mpi]

    def __call__(
        self,
        mpi: str,
        environment: Mapping[str, str],
        *arguments: str,
        ranks: int = 2,
        emulate: str = "cuda:2",
        program: str = "collectives",
        words: Sequence[str] = (),
    ) -> Outcome:
        file = self.folder / "report.json"
        gpu = "cuda" if emulate.startswith("cuda") else "hip"
        result = harness.run_ranks(
            self.mpi_named(mpi),
            ranks,
            [*words, self.rank_program(mpi, program), f"--gpu={gpu}", *arguments],
            emulate=emulate,
            environment={"AWAKEN_REPORT": str(file), **environment},
            timeout=harness.HANG_S if ranks <= 4 else harness.LONG_HANG_S,
        )
        result.check()
        assert "\nok " in result.output, f"no case ran\n{result.explain()}"
        return Outcome(json.loads(file.read_text()))


@pytest.fixture
def run(
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> Run:
    return Run(tmp_path, rank_program, mpi_named)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("algorithm", "mpi", "emulate", "ranks", "path"),
    [
        ("root-only", "mpich", "cuda:2", 2, "direct"),
        ("two-shot", "openmpi", "hip:2", 3, "direct"),
        ("one-shot", "mpich", "hip:1", 2, "direct"),
        ("ccl", "mpich", "cuda:2", 2, "ccl"),
        ("ccl", "openmpi", "hip:2", 2, "ccl"),
    ],
)
def test_algorithms(algorithm: str, mpi: str, emulate: str, ranks: int, path: str, run: Run) -> None:
    environment = {"AWAKEN_COLLECTIVES": f"* : {algorithm}"}
    calls = run(mpi, environment, "--mix=device", "--filter=allgather", ranks=ranks, emulate=emulate).calls
    assert calls["MPI_Allgather", path] > 0, calls


def test_asked_for_staging(run: Run) -> None:
    outcome = run("mpich", {"AWAKEN_COLLECTIVES": "* : staged"}, "--mix=device", "--filter=bcast")
    calls = outcome.calls
    assert calls["MPI_Bcast", "staged"] > 0 and calls["MPI_Bcast", "direct"] == 0, calls
    assert "the table of algorithms says so" in outcome.reasons


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"), [("mpich", "cuda:2", 4), pytest.param("openmpi", "hip:2", 3, marks=pytest.mark.long)]
)
def test_neighbourhoods_are_messages(mpi: str, emulate: str, ranks: int, run: Run) -> None:
    """What moves along an edge takes the paths of messages, unless the table says otherwise."""
    for rows, path, other in [("", "direct", "ccl"), ("neighborhood : staged", "staged", "direct")]:
        outcome = run(
            mpi, {"AWAKEN_COLLECTIVES": rows}, "--mix=device", "--filter=neighbour", ranks=ranks, emulate=emulate
        )
        assert "some edges of the graph are known to one of their two ranks only" in outcome.reasons
        assert ("the table of algorithms says so" in outcome.reasons) == (path == "staged")
        for function in ("alltoall", "allgather"):
            for form in (f"MPI_Neighbor_{function}", f"MPI_Ineighbor_{function}"):
                assert outcome.calls[form, path] > 0, (rows, outcome.calls)
                assert outcome.calls[form, other] == 0, (rows, outcome.calls)


@pytest.mark.parametrize(
    ("faults", "path", "reason"),
    [
        ("ipc-open", "staged", "cannot be mapped"),
        ("ccl-init=1", "direct", "ncclCommInitRank"),
        ("ccl-silent=1", "direct", "another rank could not join"),
    ],
)
def test_faults(faults: str, path: str, reason: str, run: Run) -> None:
    """What one rank cannot do, none does; the results stay right, and the report says why."""
    outcome = run(
        "mpich",
        {"AWAKEN_TEST_FAULTS": faults, "AWAKEN_COLLECTIVES": "allgather : ccl" if "ccl" in faults else ""},
        "--mix=device",
        "--filter=allgather",
    )
    calls = outcome.calls
    assert calls["MPI_Allgather", path] > 0, calls
    assert calls["MPI_Allgather", "ccl"] == 0, calls
    assert reason in outcome.reasons, outcome.reasons


@pytest.mark.sanitizer
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_nonblocking_is_agreed_on(mpi: str, emulate: str, run: Run) -> None:
    """Many collectives on one communicator: the nonblocking ones come to be done on the GPUs too."""
    outcome = run(mpi, {}, "--mix=device", emulate=emulate, program="collective_sequences")
    direct = outcome.functions("direct")
    assert any(function.startswith("MPI_I") and "send" not in function for function in direct), outcome.calls


@pytest.mark.parametrize(("mpi", "emulate", "ranks"), [("mpich", "cuda:2", 2), ("openmpi", "hip:2", 3)])
def test_gaps(mpi: str, emulate: str, ranks: int, run: Run) -> None:
    """Datatypes with gaps, another one on each rank and side, are packed by the GPUs and go the direct way."""
    outcome = run(
        mpi, {}, "--mix=device", "--filter=gaps", "--except=user", "--except=persistent", ranks=ranks, emulate=emulate
    )
    calls = outcome.calls
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
    assert "pack" not in outcome.reasons and "memory left" not in outcome.reasons, outcome.reasons


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "hip:2"), ("openmpi", "cuda:2")])
def test_reduce_local(mpi: str, emulate: str, run: Run) -> None:
    """Reduced where the result lies; an operand elsewhere is copied there."""
    calls = run(mpi, {}, "--mix=device", "--filter=reduce_local_sum_int", ranks=1, emulate=emulate).calls
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
def test_persistent(mpi: str, emulate: str, ranks: int, nodes: int, run: Run) -> None:
    """Started in an order of each rank's own; on one node each start is done by the GPUs, else as the MPI does it."""
    calls = run(
        mpi,
        {"AWAKEN_TEST_NODES": str(nodes)},
        "--mix=device",
        "--filter=persistent",
        program="collective_sequences",
        ranks=ranks,
        emulate=emulate,
    ).calls
    assert (calls["MPI_Start", "direct"] > 0) == (nodes == 1), calls
    assert (calls["MPI_Startall", "direct"] > 0) == (nodes == 1), calls


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "hip:2"), ("openmpi", "cuda:2")])
def test_one_rank_has_no_memory_to_pack_into(mpi: str, emulate: str, run: Run) -> None:
    """It says so in its proposal, and all go through host memory together."""
    calls = run(
        mpi,
        {},
        "--mix=device",
        "--filter=gaps",
        "--except=user",
        emulate=emulate,
        words=harness.one_differs(mpi, "AWAKEN_TEST_FAULTS=ipc-export"),
    ).calls
    assert calls["MPI_Allgather", "staged"] > 0 and calls["MPI_Allgather", "direct"] == 0, calls


def test_wrong_table(
    awaken_program: Path, rank_program: Callable[[str, str], Path], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """Bad input ends the program before it starts, and says what is allowed."""
    result = harness.run_ranks(
        mpi_named("mpich"),
        2,
        [rank_program("mpich", "collectives"), "--gpu=cuda"],
        emulate="cuda:2",
        environment={"AWAKEN_COLLECTIVES": "allredouce : ccl"},
        timeout=harness.HANG_S,
    )
    assert result.status != 0, result.explain()
    assert "allredouce" in result.output and "one of" in result.output, result.explain()


CHUNKS = {"tune network_fragment_bytes": "4K"}
"""Cuts from 1 KiB on, so that the cases that check everything else check this too."""

WHOLE = {
    "alltoall": {"MPI_Alltoall"},
    "scatter": {"MPI_Scatter", "MPI_Reduce_scatter_block"},
    "gather": {"MPI_Gather", "MPI_Allgather"},
    "scan_": {"MPI_Scan", "MPI_Exscan"},
}
"""By filter: collectives that the MPI does as a whole where the table says staged."""


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
def test_between_nodes(mpi: str, emulate: str, ranks: int, nodes: int, filter: str, run: Run) -> None:
    """Whatever mix of host and device memory the ranks pass, all cut alike, and get what host buffers give."""
    table = {"AWAKEN_COLLECTIVES": "* nodes=2- : staged"} if filter in WHOLE else {}
    outcome = run(
        mpi, {"AWAKEN_TEST_NODES": str(nodes), **table, **CHUNKS}, f"--filter={filter}", ranks=ranks, emulate=emulate
    )
    if filter in WHOLE:
        assert outcome.functions("staged") >= WHOLE[filter], outcome.calls
    else:
        assert outcome.functions("pipelined"), outcome.calls


IN_MESSAGES = {**CHUNKS, "tune network_bytes": "1K"}


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"),
    [("openmpi", "cuda:2", 3), ("mpich", "hip:2", 2), pytest.param("mpi5", "cuda:4", 4, marks=pytest.mark.long)],
)
def test_scans_on_a_node(mpi: str, emulate: str, ranks: int, run: Run) -> None:
    calls = run(mpi, {}, "--mix=device", "--filter=scan_sum_int", ranks=ranks, emulate=emulate).calls
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
def test_varying_parts_between_nodes(mpi: str, emulate: str, ranks: int, nodes: int, mix: str, run: Run) -> None:
    """They are messages: in chunks between nodes, and directly between the ranks of one."""
    outcome = run(
        mpi,
        {"AWAKEN_TEST_NODES": str(nodes), "AWAKEN_TEST_FAULTS": "ccl-init=1", **IN_MESSAGES},
        *filter(None, [mix]),
        "--filter=varying_again_and_again",
        ranks=ranks,
        emulate=emulate,
    )
    calls = outcome.calls
    assert outcome.functions("pipelined") >= VARYING, calls
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
def test_parts_in_messages(mpi: str, emulate: str, ranks: int, filter: str, functions: set[str], run: Run) -> None:
    """Where NCCL and RCCL are not to be had, and where each rank has a layout of its own."""
    outcome = run(
        mpi,
        {"AWAKEN_TEST_NODES": "2", "AWAKEN_TEST_FAULTS": "ccl-init=1", **IN_MESSAGES},
        f"--filter={filter}",
        ranks=ranks,
        emulate=emulate,
    )
    assert outcome.functions("pipelined") >= functions, outcome.calls


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"),
    [
        pytest.param("mpich", "cuda:2", 2, marks=pytest.mark.sanitizer),
        ("openmpi", "hip:2", 3),
        pytest.param("mpi5", "cuda:2", 4, marks=pytest.mark.long),
    ],
)
def test_exchanges_under_way_are_messages(mpi: str, emulate: str, ranks: int, run: Run) -> None:
    """Nonblocking and persistent exchanges between nodes, once a barrier has agreed on them."""
    outcome = run(
        mpi,
        {"AWAKEN_TEST_NODES": "2", "AWAKEN_TEST_FAULTS": "ccl-init=1", **IN_MESSAGES},
        "--mix=device",
        "--filter=exchanges_under_way",
        ranks=ranks,
        emulate=emulate,
    )
    exchanges = {"MPI_Ialltoall", "MPI_Iallgather", "MPI_Ialltoallv", "MPI_Iallgatherv", "MPI_Igatherv", "MPI_Iscatter"}
    assert outcome.functions("pipelined") >= exchanges | {"MPI_Start"}, outcome.calls


@pytest.mark.parametrize(("mpi", "emulate", "nodes"), [("mpich", "cuda:2", 2), ("openmpi", "hip:2", 1)])
def test_edges_under_way_are_messages(mpi: str, emulate: str, nodes: int, run: Run) -> None:
    """The nonblocking and persistent forms of neighbourhood collectives, between nodes too."""
    outcome = run(
        mpi,
        {"AWAKEN_TEST_NODES": str(nodes), **IN_MESSAGES},
        "--mix=device",
        "--filter=neighbours",
        ranks=3,
        emulate=emulate,
    )
    path = "pipelined" if nodes > 1 else "direct"
    assert outcome.functions(path) >= {"MPI_Ineighbor_alltoall", "MPI_Ineighbor_allgather", "MPI_Start"}, outcome.calls


def test_intercommunicators_exchange_messages(run: Run) -> None:
    """On one node too, where the GPUs do collectives of one group only."""
    outcome = run("mpich", IN_MESSAGES, "--mix=device", "--filter=intercommunicators", ranks=2)
    for name in ("Alltoall", "Gather", "Scatter"):
        assert outcome.calls[f"MPI_{name}", "direct"] + outcome.calls[f"MPI_{name}", "copied"] > 0, outcome.calls


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_waiting_for_a_collective_keeps_the_mpi_going(mpi: str, emulate: str, run: Run) -> None:
    calls = run(mpi, {}, "--mix=device", "--filter=waits_keep_all_going", ranks=3, emulate=emulate).calls
    assert calls["MPI_Iallreduce", "direct"] > 0, calls


@pytest.mark.parametrize(("mpi", "emulate", "ranks"), [("mpich", "cuda:2", 2), ("openmpi", "hip:2", 3)])
@pytest.mark.parametrize("filter", ["no_such_root", "nothing_said_in_two_ways"])
def test_odd_arguments_between_nodes(mpi: str, emulate: str, ranks: int, filter: str, run: Run) -> None:
    """Errors are the MPI's, on all ranks, and what has no bytes is no message, however it is said."""
    run(
        mpi,
        {"AWAKEN_TEST_NODES": "2", "AWAKEN_TEST_FAULTS": "ccl-init=1", **IN_MESSAGES},
        f"--filter={filter}",
        ranks=ranks,
        emulate=emulate,
    )


def test_varying_parts_staged_where_the_table_says_so(run: Run) -> None:
    calls = run(
        "openmpi",
        {"AWAKEN_TEST_NODES": "2", "AWAKEN_COLLECTIVES": "alltoall nodes=2- : staged", **IN_MESSAGES},
        "--mix=device",
        "--filter=varying_again_and_again",
        ranks=2,
        emulate="cuda:2",
    ).calls
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
def test_nodes_and_columns(mpi: str, emulate: str, ranks: int, columns: int, filter: str, run: Run) -> None:
    """Where all pass device memory, each node's GPUs do their part first; nodes may have unequal numbers of ranks."""
    outcome = run(
        mpi,
        {
            "AWAKEN_TEST_NODES": "2",
            "tune network_fragment_bytes": "64K",
            "AWAKEN_COLLECTIVES": "broadcast nodes=2- : hierarchical",
        },
        "--mix=device",
        f"--filter={filter}",
        ranks=ranks,
        emulate=emulate,
    )
    assert (
        f"through host memory : chunks of 64 KiB, {columns} inter-node communicators" in outcome.report["collectives"]
    )
    assert outcome.functions("pipelined")


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
def test_library_between_nodes(mpi: str, emulate: str, ranks: int, nodes: int, run: Run) -> None:
    """Where all pass device memory of GPUs of their own, NCCL or RCCL is made for the communicator, and then used."""
    outcome = run(
        mpi,
        {"AWAKEN_TEST_NODES": str(nodes), "AWAKEN_TEST_DELAY_US": "10", **CHUNKS},
        "--mix=device",
        "--filter=again_and_again",
        ranks=ranks,
        emulate=emulate,
    )
    assert outcome.functions("ccl") == LIBRARY_CALLS | VARYING_LIBRARY_CALLS, outcome.calls
    assert any(row.startswith("* nodes=2- : ccl  # ") for row in outcome.report["collectives"])


def test_library_between_nodes_and_others(run: Run) -> None:
    """Beside collectives of other communicators and threads, whose turn it may be not to have the library."""
    outcome = run(
        "mpich",
        {"AWAKEN_TEST_NODES": "2", **CHUNKS},
        "--mix=device",
        program="collective_sequences",
        ranks=2,
        emulate="hip:2",
    )
    assert outcome.functions("ccl"), outcome.calls
    assert outcome.functions("pipelined"), outcome.calls


@pytest.mark.parametrize(
    ("emulate", "environment", "reason"),
    [
        ("cuda:2", {"AWAKEN_TEST_FAULTS": "ccl-init=1"}, "ncclCommInitRank"),
        ("hip:2", {"AWAKEN_TEST_FAULTS": "ccl-silent=1"}, "another rank could not join"),
        ("hip:1", {}, "two ranks share a GPU"),
        pytest.param("cuda:2", {"AWAKEN_CCL": "/nowhere/libnccl.so"}, "/nowhere/libnccl.so", marks=pytest.mark.long),
        ("cuda:2", {"AWAKEN_COLLECTIVES": "* nodes=2- : staged"}, ""),
    ],
)
def test_no_library_between_nodes(emulate: str, environment: dict[str, str], reason: str, run: Run) -> None:
    """Where one rank cannot use it none does, nobody waits for ever, and the report says why."""
    outcome = run(
        "mpich",
        {"AWAKEN_TEST_NODES": "2", "AWAKEN_TEST_DELAY_US": "10", **IN_MESSAGES, **environment},
        "--mix=device",
        "--filter=again_and_again",
        ranks=2,
        emulate=emulate,
    )
    calls = outcome.calls
    assert not any(path == "ccl" for _, path in calls), calls
    cut = {"MPI_Allreduce", "MPI_Bcast"}
    if "AWAKEN_COLLECTIVES" not in environment:
        cut |= {"MPI_Allgather", "MPI_Alltoall"}  # whose messages are
    assert outcome.functions("pipelined") & LIBRARY_CALLS == cut, calls
    assert outcome.functions("staged") >= LIBRARY_CALLS - cut, calls
    assert reason in outcome.reasons, outcome.reasons


@pytest.mark.parametrize(
    ("rows", "ranks"),
    [
        ("* nodes=2- : staged", 2),
        pytest.param("allreduce types=floating : staged", 4, marks=pytest.mark.long),
        pytest.param("* nodes=2- : hierarchical", 4, marks=pytest.mark.long),
    ],
)
def test_different_tables_between_nodes(rows: str, ranks: int, run: Run) -> None:
    """Tables that differ are a mistake; the ranks agree on what all of theirs allow, and nobody waits for ever."""
    calls = run(
        "mpich",
        {"AWAKEN_TEST_NODES": "2", "AWAKEN_TEST_DELAY_US": "10", **CHUNKS},
        "--mix=device",
        "--filter=again_and_again",
        ranks=ranks,
        emulate=f"cuda:{ranks}",
        words=harness.one_differs("mpich", f"AWAKEN_COLLECTIVES={rows}"),
    ).calls
    assert calls["MPI_Allreduce", "ccl"] == 0 and calls["MPI_Allreduce", "pipelined"] > 0, calls


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "hip:2"), ("openmpi", "cuda:2")])
def test_staged_on_one_node_in_chunks(mpi: str, emulate: str, run: Run) -> None:
    calls = run(mpi, {"AWAKEN_COLLECTIVES": "* : staged", **CHUNKS}, "--filter=reduce_sum_int", emulate=emulate).calls
    assert calls["MPI_Allreduce", "pipelined"] > 0 and calls["MPI_Reduce", "staged"] > 0, calls


def test_a_table_that_has_no_part_is_told(mpi_named: Callable[[str], harness.Mpi], tmp_path: Path) -> None:
    """The ring keeps collectives from reading each other's memory, so that they are all staged."""
    report = tmp_path / "report.txt"
    for path, told in (("ring", True), ("auto", False)):
        environment = {"AWAKEN_COLLECTIVES": "* : two-shot", "AWAKEN_PATH": path, "AWAKEN_REPORT": str(report)}
        mpich = mpi_named("mpich")
        program: list[str | Path] = [mpich.programs / "collectives", "--gpu=cuda", "--mix=device", "--filter=bcast"]
        harness.run_ranks(mpich, 2, program, emulate="cuda:2", environment=environment).check()
        assert ("AWAKEN_COLLECTIVES had no effect: AWAKEN_PATH=ring" in report.read_text()) == told
