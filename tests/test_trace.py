# SPDX-License-Identifier: Apache-2.0
"""The timeline that AWAKEN_TRACE records: tests/ranks/traced.cpp under every MPI, and what its trace says.

The files are read here as any reader of Chrome's trace format reads them, with a JSON parser and nothing of Awaken's;
tests/cli/test_trace_command.py tests what Awaken makes of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import pytest

Event = dict[str, Any]
BYTES = 4096 * 8
"""Of the larger messages of traced.cpp."""


@dataclass
class Traced:
    """A run's folder, its output, and the joined trace."""

    folder: Path
    result: harness.Result

    @property
    def output(self) -> str:
        return self.result.output

    def read(self, name: str = "trace.json") -> dict[str, Any]:
        text = (self.folder / name).read_text(encoding="utf-8")
        trace = json.loads(text)
        assert isinstance(trace, dict)
        return trace

    def events(self) -> list[Event]:
        events = self.read()["traceEvents"]
        assert isinstance(events, list)
        return events


def run(
    mpi: harness.Mpi,
    ranks: int,
    folder: Path,
    *arguments: str,
    emulate: str | None = "cuda:2",
    status: int | None = 0,
    **variables: str,
) -> Traced:
    environment = {"AWAKEN_TRACE": str(folder), **variables}
    gpu = "--gpu=auto" if emulate else "--gpu=none"
    program: list[str | Path] = [mpi.programs / "traced", gpu, *arguments]
    result = harness.run_ranks(mpi, ranks, program, emulate=emulate, environment=environment, timeout=harness.HANG_S)
    if status == 0:
        result.check()
    elif status is not None:
        assert result.status == status, result.explain()
    return Traced(folder, result)


RankProgram = Callable[[str, str], Path]
MpiNamed = Callable[[str], harness.Mpi]

CASES = (
    ("mpich", "cuda:2", 2),
    ("mpich", "hip:2", 2),
    ("openmpi", "cuda:2", 2),
    ("openmpi", "hip:2", 3),
    ("mpi5", "cuda:1", 2),
    ("mpich", None, 4),
)


FOR_SANITIZERS = (("mpich", "cuda:2", 2), ("openmpi", "hip:2", 3))


@pytest.fixture(
    scope="module",
    params=harness.with_sanitizers(CASES, FOR_SANITIZERS),
    ids=lambda case: f"{case[0]}-{case[1] or 'no_gpu'}-{case[2]}",
)
def case(request: pytest.FixtureRequest) -> tuple[str, str | None, int]:
    parameter: tuple[str, str | None, int] = request.param
    return parameter


@pytest.fixture(scope="module")
def traced(
    case: tuple[str, str | None, int],
    mpi_named: MpiNamed,
    rank_program: RankProgram,
    awaken_program: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Traced:
    """One run for all the questions below."""
    mpi, emulate, ranks = case
    rank_program(mpi, "traced")
    return run(mpi_named(mpi), ranks, tmp_path_factory.mktemp("trace") / "new" / "folder", emulate=emulate)


def test_every_rank_is_in_the_trace(traced: Traced, case: tuple[str, str | None, int]) -> None:
    ranks = case[2]
    assert {path.name for path in traced.folder.iterdir()} == {
        "trace.json",
        *(f"rank-{rank}.json" for rank in range(ranks)),
    }
    heads = traced.read()["awakenTrace"]["merged"]
    assert [head["rank"] for head in heads] == list(range(ranks))
    for rank in range(ranks):
        own = traced.read(f"rank-{rank}.json")
        assert own["awakenTrace"] == heads[rank]
        assert own["awakenTrace"]["complete"] is True
        assert own["awakenTrace"]["dropped"] == 0
        joined = [event for event in traced.events() if event["pid"] == rank]
        assert joined == own["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in traced.events() if event["name"] == "process_name"}
    assert set(names) == set(range(ranks))
    assert all(name.startswith(f"rank {rank} (") for rank, name in names.items())


def test_the_events_are_of_chromes_format(traced: Traced) -> None:
    open_operations: dict[tuple[str, str], float] = {}
    for event in traced.events():
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            continue
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0, "the first thing that any rank did is at the begin of the timeline"
        assert event["cat"] in ("mpi", "nonblocking", "range", "copy", "kernel", "background")
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["cat"] != "nonblocking"
        elif event["ph"] == "b":
            assert (event["cat"], event["id"]) not in open_operations
            open_operations[event["cat"], event["id"]] = event["ts"]
        else:
            assert event["ph"] == "e"
            assert event["ts"] >= open_operations.pop((event["cat"], event["id"]))
    assert not open_operations


def test_events_of_a_row_lie_in_one_another(traced: Traced) -> None:
    """In nanoseconds, since that is what the times are, so that sums are exact."""
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in traced.events():
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            rows.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
    assert rows
    for row, events in rows.items():
        enclosing: list[int] = []
        for begin, end in sorted(events, key=lambda event: (event[0], -event[1])):
            while enclosing and enclosing[-1] <= begin:
                enclosing.pop()
            assert not enclosing or end <= enclosing[-1], f"row {row}"
            enclosing.append(end)


def calls(traced: Traced, name: str, rank: int) -> list[Event]:
    return [e for e in traced.events() if e["name"] == name and e["pid"] == rank and e.get("cat") == "mpi"]


def test_every_call_is_there_once_with_its_path_and_bytes(traced: Traced, case: tuple[str, str | None, int]) -> None:
    _, emulate, ranks = case
    for rank in range(ranks):
        counts = Counter(e["name"] for e in traced.events() if e["pid"] == rank and e.get("cat") == "mpi")
        expected = {
            "MPI_Init_thread": 1,
            "MPI_Send": 2,
            "MPI_Recv": 1,
            "MPI_Sendrecv": 1,
            "MPI_Irecv": 1,
            "MPI_Isend": 1,
            "MPI_Waitall": 1,
            "MPI_Iallreduce": 1,
            "MPI_Startall": 3,
            "MPI_Waitany": 6,
            "MPI_Request_free": 2,
            "MPI_Allreduce": 3,
            "MPI_Barrier": 1,
            "MPI_Comm_dup": 1,
            "MPI_Bcast": 1,
            "MPI_Comm_free": 1,
            "MPI_Finalize": 1,
        }
        assert {name: counts[name] for name in expected} == expected
        assert "MPI_Comm_rank" not in counts, "what only looks something up is left out"
        # A program that waits by asking does not fill the trace.
        assert 1 <= counts["MPI_Test"] <= 1000
        for event in traced.events():
            if event.get("cat") == "mpi":
                assert "path" in event["args"]

        send, to_nobody = calls(traced, "MPI_Send", rank)
        assert send["args"]["bytes"] == BYTES
        assert send["args"]["size_class_bytes"] == BYTES
        assert send["args"]["peer"] == (rank + 1) % ranks
        assert send["args"]["ranks"] == ranks
        assert to_nobody["args"]["peer"] == "none"
        (receive,) = calls(traced, "MPI_Recv", rank)
        assert receive["args"]["bytes"] == BYTES
        assert receive["args"]["peer"] == ("any" if rank % 2 == 0 else rank - 1)
        for reduction in calls(traced, "MPI_Allreduce", rank):
            assert reduction["args"]["bytes"] >= BYTES
            assert reduction["args"]["ranks"] == ranks
        # What the layer has no part in is the MPI's own.
        (duplicate,) = calls(traced, "MPI_Comm_dup", rank)
        assert duplicate["args"] == {"path": "native"}
        paths = {e["args"]["path"] for e in traced.events() if e.get("cat") == "mpi" and e["pid"] == rank}
        assert (paths == {"native"}) == (emulate is None)


def spans(traced: Traced, rank: int) -> list[tuple[str, float, float, dict[str, Any]]]:
    """Operations: name, begin, end, arguments."""
    begun: dict[str, Event] = {}
    found = []
    for event in traced.events():
        if event.get("cat") == "nonblocking" and event["pid"] == rank:
            if event["ph"] == "b":
                begun[event["id"]] = event
            else:
                begin = begun[event["id"]]
                found.append((begin["name"], begin["ts"], event["ts"], begin["args"]))
    return found


def test_an_operation_lasts_until_its_completion(traced: Traced, case: tuple[str, str | None, int]) -> None:
    _, emulate, ranks = case
    for rank in range(ranks):
        operations = spans(traced, rank)
        counts = Counter(name for name, *_ in operations)
        assert counts == {
            "MPI_Irecv": 1,
            "MPI_Isend": 1,
            "MPI_Iallreduce": 1,
            "MPI_Recv_init": 3,
            "MPI_Send_init": 3,
        }
        (compute,) = [e for e in traced.events() if e["name"] == "compute" and e["pid"] == rank]
        (wait,) = calls(traced, "MPI_Waitall", rank)
        for name, begin, end, arguments in operations:
            assert "open" not in arguments
            if name in ("MPI_Irecv", "MPI_Isend"):
                # From the call that starts it, over the computation, to the call that completes it.
                (start,) = calls(traced, name, rank)
                assert begin == start["ts"]
                assert begin < compute["ts"] and end > compute["ts"] + compute["dur"]
                assert wait["ts"] <= end <= wait["ts"] + wait["dur"] + 0.001
                assert arguments["bytes"] == BYTES
                assert (arguments["path"] == "native") == (emulate is None)
        last = max(e["ts"] + e["dur"] for e in calls(traced, "MPI_Test", rank))
        (reduction,) = [operation for operation in operations if operation[0] == "MPI_Iallreduce"]
        assert reduction[2] <= last + 0.001
        assert reduction[2] >= max(e["ts"] for e in calls(traced, "MPI_Test", rank)) - 0.001


def test_ranges_enclose_what_happens_in_them(traced: Traced, case: tuple[str, str | None, int]) -> None:
    for rank in range(case[2]):
        ranges = {e["name"]: e for e in traced.events() if e.get("cat") == "range" and e["pid"] == rank}
        assert set(ranges) == {
            'before "MPI" \ufffd',
            "blocking",
            "nonblocking",
            "compute",
            "collective",
            "left open",
        }
        (whole,) = [e for name, e in ranges.items() if name.startswith("before")]
        (init,) = calls(traced, "MPI_Init_thread", rank)
        assert whole["ts"] <= init["ts"]
        assert ranges["left open"]["args"]["open"] is True
        assert whole["args"]["open"] is True, "the trace is written before the program's end"
        assert "open" not in ranges["blocking"]["args"]
        for call in calls(traced, "MPI_Allreduce", rank):
            assert ranges["collective"]["ts"] <= call["ts"]
            assert call["ts"] + call["dur"] <= ranges["collective"]["ts"] + ranges["collective"]["dur"] + 0.001


def test_the_gpus_work_stands_beside(traced: Traced, case: tuple[str, str | None, int]) -> None:
    work = [e for e in traced.events() if e.get("cat") in ("copy", "kernel", "background")]
    if case[1] is None:
        assert not work
        return
    rows = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in traced.events()
        if e["name"] == "thread_name" and e["ph"] == "M"
    }
    for event in work:
        row = rows[event["pid"], event["tid"]]
        if event["cat"] == "background":
            assert row.startswith("background")
        else:
            assert row.startswith("GPU ") and ("copies" if event["cat"] == "copy" else "kernels") in row
        assert "open" not in event["args"], "everything is over when MPI ends"
    for rank in range(case[2]):
        own = [e for e in work if e["pid"] == rank]
        fetched = [e for e in own if e["name"] == "message fetched" and e["args"].get("bytes") == BYTES]
        # The first message comes before both sides know of each other's GPU.
        assert fetched
        assert any(e["cat"] in ("copy", "kernel") for e in own)
        assert any(e["name"] == "allreduce" and e["cat"] == "background" for e in own), "a round of the collective"


def test_one_machine_has_one_clock(traced: Traced, case: tuple[str, str | None, int]) -> None:
    heads = traced.read()["awakenTrace"]["merged"]
    for head in heads[1:]:
        assert head["clock"]["shared"] is True
        first, last = head["clock"]["offsets"]
        assert first["at_ns"] < last["at_ns"]
        for offset in (first, last):
            # The estimate knows nothing of that, and must find it out within its own limits.
            assert abs(offset["offset_ns"]) <= offset["uncertainty_ns"]
            assert offset["uncertainty_ns"] > 0
    assert heads[0]["clock"] == {"shared": False, "offsets": []}


def test_a_message_does_not_arrive_before_it_leaves(traced: Traced, case: tuple[str, str | None, int]) -> None:
    ranks = case[2]
    for rank in range(ranks):
        sent = calls(traced, "MPI_Send", rank)[0]["ts"]
        (receive,) = calls(traced, "MPI_Recv", (rank + 1) % ranks)
        assert receive["ts"] + receive["dur"] >= sent


# ------------------------------------------------------------------------------------------------------- other endings


@pytest.fixture
def mpich(mpi_named: MpiNamed, rank_program: RankProgram, awaken_program: Path) -> harness.Mpi:
    rank_program("mpich", "traced")
    return mpi_named("mpich")


def test_without_the_setting_there_is_no_trace(mpich: harness.Mpi, tmp_path: Path) -> None:
    for value in (None, "", "0"):
        environment = {} if value is None else {"AWAKEN_TRACE": value}
        result = harness.run_ranks(
            mpich, 2, [mpich.programs / "traced"], emulate="cuda:2", environment=environment, cwd=tmp_path
        )
        result.check()
        assert "trace" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_trace_of_before_stays(mpich: harness.Mpi, tmp_path: Path) -> None:
    first = run(mpich, 2, tmp_path, emulate=None)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    second = run(mpich, 2, tmp_path, emulate=None)
    assert "already holds a trace" not in first.output
    assert f"{tmp_path} already holds a trace, which is kept: this one goes to {tmp_path}/run-2" in second.output
    run(mpich, 2, tmp_path, emulate=None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    for folder in ("run-2", "run-3"):
        assert {path.name for path in (tmp_path / folder).iterdir()} == {"trace.json", "rank-0.json", "rank-1.json"}


def test_a_run_beside_another_says_so(mpich: harness.Mpi, tmp_path: Path) -> None:
    """The other one has written nothing so far."""
    claim = tmp_path / ".awaken-trace-of-a-run"
    claim.write_text("another-kernel:0,1 17 node7\n")
    traced = run(mpich, 2, tmp_path, emulate=None)
    told = (
        f"{tmp_path} belongs to another run (process 17 on node7), which seems to be still running: this one goes "
        f"to {tmp_path}/run-2; if it was killed, remove {claim}\n"
    )
    assert told in traced.output and "already holds a trace" not in traced.output


def test_what_does_not_fit_is_counted(mpich: harness.Mpi, tmp_path: Path) -> None:
    traced = run(mpich, 2, tmp_path, "many", emulate=None, AWAKEN_TRACE_LIMIT="32K")
    for head in traced.read()["awakenTrace"]["merged"]:
        kept = [e for e in traced.events() if e["pid"] == head["rank"] and e["ph"] == "X"]
        assert 0 < len(kept) <= 32 * 1024 // 56
        assert head["dropped"] + len(kept) > 2000
        assert f"the trace of rank-{head['rank']}.json lacks {head['dropped']} events" in traced.output


def test_a_program_that_exits_leaves_what_there_is(mpich: harness.Mpi, tmp_path: Path) -> None:
    run(mpich, 1, tmp_path, "exit", emulate=None, status=None)
    trace = Traced(tmp_path, harness.Result("", 0, "", 0, ())).read("rank-0.json")
    assert trace["awakenTrace"]["complete"] is False
    assert sum(e["name"] == "MPI_Allreduce" for e in trace["traceEvents"]) == 3
    assert not (tmp_path / "trace.json").exists()


def test_a_rank_that_aborts_leaves_what_there_is(mpich: harness.Mpi, tmp_path: Path) -> None:
    traced = run(mpich, 2, tmp_path, "abort", emulate=None, status=None)
    assert traced.result.status != 0
    trace = traced.read("rank-1.json")
    assert trace["awakenTrace"]["complete"] is False
    assert sum(e["name"] == "MPI_Abort" for e in trace["traceEvents"]) == 1


@pytest.mark.sanitizer
def test_threads_have_rows_of_their_own(mpich: harness.Mpi, tmp_path: Path) -> None:
    traced = run(mpich, 2, tmp_path, "threads", emulate=None)
    if "no MPI_THREAD_MULTIPLE" in traced.output:
        pytest.skip("this MPI has no MPI_THREAD_MULTIPLE")
    for rank in range(2):
        rows = Counter(
            e["tid"] for e in traced.events() if e["pid"] == rank and e["ph"] == "X" and e["name"] == "MPI_Sendrecv"
        )
        assert list(rows.values()) == [25, 25, 25, 25]
        ranges = Counter(
            e["tid"] for e in traced.events() if e["pid"] == rank and e["ph"] == "X" and e["name"] == "on a thread"
        )
        assert ranges == rows
    test_events_of_a_row_lie_in_one_another(traced)


@pytest.mark.parametrize("folder", ["file/trace", "file", "pipe", "null"])
def test_a_folder_that_cannot_be_made_is_an_error(mpich: harness.Mpi, tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "null").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    traced = run(mpich, 2, tmp_path / folder, emulate=None, status=None)
    assert traced.result.status != 0
    assert "the trace cannot make the folder" in traced.output
    assert "give AWAKEN_TRACE a folder that can be written to" in traced.output


def test_a_pipe_in_the_folder_is_an_error(mpich: harness.Mpi, tmp_path: Path) -> None:
    claim = tmp_path / ".awaken-trace-of-a-run"
    os.mkfifo(claim)
    traced = run(mpich, 2, tmp_path, emulate=None, status=None)
    assert traced.result.status != 0
    assert f"the trace cannot use {claim} (it is a pipe, not a regular file): remove it" in traced.output


@pytest.mark.parametrize("tracer", [0, 1])
@pytest.mark.parametrize(
    ("name", "emulate", "layer"),
    [
        ("mpich", None, "1"),
        ("openmpi", None, "1"),
        ("mpich", "cuda:2", "1"),
        ("openmpi", "hip:2", "1"),
        # Nobody can tell that rank, and the others wait half a minute.
        pytest.param("mpich", None, "0", marks=pytest.mark.long),
        pytest.param("openmpi", None, "0", marks=pytest.mark.long),
    ],
)
def test_a_trace_of_some_ranks_is_an_error(
    name: str,
    emulate: str | None,
    layer: str,
    tracer: int,
    tmp_path: Path,
    rank_program: RankProgram,
    awaken_program: Path,
    mpi_named: MpiNamed,
) -> None:
    """`layer` is AWAKEN of the rank that does not trace."""
    program = [rank_program(name, "traced"), "--gpu=auto" if emulate else "--gpu=none"]
    number = "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"
    setting = f"if [ {number} = {tracer} ]; then export AWAKEN_TRACE={tmp_path}/trace; else export AWAKEN={layer}; fi"
    words = ["/bin/sh", "-c", f'{setting}; exec "$@"', "sh", *program]
    result = harness.run_ranks(mpi_named(name), 2, words, emulate=emulate)
    assert result.status != 0
    told = f"for some rank, but not for rank {1 - tracer} of MPI_COMM_WORLD"
    if layer == "0":
        told = f"for rank {tracer} of MPI_COMM_WORLD, but some other rank does not trace"
    assert f"AWAKEN_TRACE is set {told}: set it for all ranks, or for none" in result.output, result.explain()
    assert not (tmp_path / "trace").exists()


def test_the_joined_trace_is_what_the_command_makes(mpich: harness.Mpi, tmp_path: Path) -> None:
    """The library and `awaken trace` join the same files to the same trace."""
    traced = run(mpich, 2, tmp_path, emulate=None)
    by_library = traced.read()
    (tmp_path / "trace.json").unlink()
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT / "python")}
    subprocess.run(
        [sys.executable, "-m", "awaken", "trace", str(tmp_path)],
        env=environment,
        check=True,
        capture_output=True,
        timeout=harness.HANG_S,
    )
    assert traced.read() == by_library
