# SPDX-License-Identifier: Apache-2.0
"""AWAKEN_DEFAULT_STREAM=order: messages as parts of the default stream. See docs/decisions/0042.

The rank programs of messages give the same results as ever; tests/ranks/stream_order.cpp holds the streams up and shows
that no call waits for them; random programs run with streams whose operations are late at random.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import harness
import pytest
import test_point_to_point_paths
import test_random_programs

ORDER = {"AWAKEN_DEFAULT_STREAM": "order"}
PATIENT = {**ORDER, "test tune large_watch_us": "30000000"}
"""No sender copies a long message out because its receiver's processor was slow: it would not be mapped then, and the
first mapping may wait for the device."""

NOT_PROMISED = ("--except=freed_receive",)
"""A receive into host memory whose request is freed: nothing tells when its data are there, and here the sender's
stream is one more to wait for."""

Case = tuple[str, str, str, int, tuple[str, ...]]
"""(MPI, emulated runtime, program, ranks, more arguments)"""

CASES: tuple[Case, ...] = (
    ("mpich", "cuda:2", "stream_order", 2, ("--mix=device",)),
    ("openmpi", "hip:2", "stream_order", 2, ("--mix=device",)),
    ("mpi5", "cuda:2", "stream_order", 2, ("--mix=device",)),
    ("mpich", "hip:2", "stream_order", 2, ("--mix=device", "--threads")),
    ("openmpi", "cuda:3", "collectives", 3, ("--mix=device", "--filter=reduce")),
    ("mpich", "cuda:2", "messages", 2, ("--mix=device",)),
    ("openmpi", "hip:2", "messages", 2, ("--mix=drawn-1",)),
    ("mpich", "hip:2", "completion", 2, ()),
    ("mpich", "cuda:3", "point_to_point", 3, ("--mix=drawn-1",)),
    ("openmpi", "hip:2", "point_to_point", 2, ("--mix=device",)),
    ("mpich", "cuda:2", "requests", 2, ("--mix=device", *NOT_PROMISED)),
    ("mpich", "cuda:2", "wrong_arguments", 2, ()),
    ("mpich", "cuda:2", "busy_device", 2, ("--except=persistent", "--except=iallreduce")),
    # Where two ranks share a GPU, none may wait there for the other one.
    ("mpich", "cuda:1", "messages", 2, ("--mix=device",)),
)

LONG_CASES: tuple[Case, ...] = (
    *(
        (mpi, emulate, program, ranks, arguments)
        for mpi in ("mpich", "openmpi", "mpi5", "debian-openmpi")
        for emulate, ranks in (("cuda:2", 2), ("hip:3", 3))
        for program, arguments in (
            ("stream_order", ("--mix=device",)),
            ("messages", ()),
            ("completion", ()),
            ("point_to_point", ()),
            ("requests", NOT_PROMISED),
            ("datatypes", ("--mix=device",)),
            ("collectives", ("--mix=device",)),
        )
        if mpi != "debian-openmpi" or program in ("point_to_point", "datatypes", "collectives")
    ),
    ("mpich", "cuda:2", "memory_churn", 2, ("--card-mib=64",)),
    ("mpich", "cuda:2", "one_sided", 2, ("--mix=device",)),
    ("mpich", "cuda:2", "message_windows", 2, ("--mix=device",)),
)


def name(case: Case) -> str:
    mpi, emulate, program, ranks, arguments = case
    return "-".join([program, mpi, emulate.replace(":", "x"), str(ranks), *(a.strip("-") for a in arguments)])


def check(case: Case, path: Path, mpi: harness.Mpi, timeout: float) -> None:
    _, emulate, program, ranks, arguments = case
    gpu = "cuda" if emulate.startswith("cuda") else "hip"
    result = harness.run_ranks(
        mpi,
        ranks,
        [path, f"--gpu={gpu}", *arguments],
        emulate=emulate,
        environment=PATIENT if program == "stream_order" else ORDER,
        timeout=timeout,
    )
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"


@pytest.mark.sanitizer
@pytest.mark.parametrize("case", CASES, ids=name)
def test_programs(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[0], case[2]), mpi_named(case[0]), harness.HANG_S)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG_CASES, ids=name)
def test_programs_long(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[0], case[2]), mpi_named(case[0]), harness.LONG_HANG_S)


Batch = tuple[str, str, int, int, int, str]
"""(MPI, emulated runtime, ranks, first program, programs, seed and microseconds of the delays)"""
BATCHES: tuple[Batch, ...] = (
    ("mpich", "cuda:2", 2, 300000, 60, "3:300"),
    ("openmpi", "hip:3", 3, 301000, 40, "5:200"),
    ("mpi5", "cuda:2", 2, 302000, 30, "7:100"),
    ("openmpi", "cuda:4", 4, 303000, 30, "9:500"),
)
LONG_BATCHES: tuple[Batch, ...] = tuple(
    (mpi, f"{vendor}:{ranks}", ranks, 310000 + 10000 * ranks, 1000, f"{ranks}:300")
    for mpi in ("mpich", "openmpi", "mpi5")
    for vendor in ("cuda", "hip")
    for ranks in (2, 3, 4)
)


@pytest.mark.parametrize(
    ("mpi", "emulate"), [pytest.param("mpich", "cuda:4", marks=pytest.mark.long), ("openmpi", "hip:4")]
)
def test_parts_of_collectives_between_nodes(
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The parts on a node may be in stream order; memory that they share with others goes back after that."""
    gpu = emulate.split(":")[0]
    result = harness.run_ranks(
        mpi_named(mpi),
        4,
        [rank_program(mpi, "collectives"), f"--gpu={gpu}", "--mix=device", "--filter=reduce_"],
        emulate=emulate,
        environment={**ORDER, "AWAKEN_TEST_NODES": "2", "AWAKEN_TEST_DELAYS": "4:500"},
        timeout=harness.HANG_S,
    )
    result.check()
    assert "\nok " in result.output, result.explain()


def random_programs(batch: Batch, program: Path, mpi: harness.Mpi, timeout: float) -> None:
    _, emulate, ranks, first, count, delays = batch
    settings = {**ORDER, "AWAKEN_TEST_DELAYS": delays}
    test_random_programs.compare(
        mpi, emulate, ranks, program, [f"--first={first}", f"--count={count}"], timeout, settings
    )


@pytest.mark.sanitizer
@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"{batch[0]}-{batch[1].replace(':', 'x')}-{batch[2]}")
def test_random_programs_with_late_streams(
    batch: Batch,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    random_programs(batch, rank_program(batch[0], "random_program"), mpi_named(batch[0]), harness.HANG_S)


@pytest.mark.long
@pytest.mark.parametrize("batch", LONG_BATCHES, ids=lambda batch: f"{batch[0]}-{batch[1].replace(':', 'x')}-{batch[2]}")
def test_random_programs_with_late_streams_long(
    batch: Batch,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    random_programs(batch, rank_program(batch[0], "random_program"), mpi_named(batch[0]), 3600)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_early_looks_find_a_pattern(
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """With order,check a buffer holds a pattern until its data come; all other results are as ever."""
    gpu = emulate.split(":")[0]
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        [rank_program(mpi, "stream_order"), f"--gpu={gpu}", "--mix=device"],
        emulate=emulate,
        environment={**PATIENT, "AWAKEN_DEFAULT_STREAM": "order,check"},
        timeout=harness.HANG_S,
    )
    result.check()
    assert "ok looked_at_early" in result.output, result.explain()


@pytest.mark.parametrize(
    ("ranks_in_order", "some_in_order"), [((0, 1), True), ((0,), False)], ids=["both", "one_waits"]
)
def test_the_report_counts_what_was_ordered(
    ranks_in_order: tuple[int, ...],
    some_in_order: bool,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Messages go in stream order where both ranks do; what waited is named with its reason."""
    report = tmp_path / "report.json"
    script = tmp_path / "rank.sh"
    which = "|".join(map(str, ranks_in_order))
    script.write_text(
        f"case $PMI_RANK in {which}) export AWAKEN_DEFAULT_STREAM=order ;; esac\n"
        f'exec "{rank_program("mpich", "messages")}" "$@"\n'
    )
    result = harness.run_ranks(
        mpi_named("mpich"),
        2,
        ["/bin/sh", script, "--gpu=cuda", "--mix=device"],
        emulate="cuda:2",
        environment={"AWAKEN_REPORT": str(report)},
        timeout=harness.HANG_S,
    )
    result.check()
    told = json.loads(report.read_text())
    (note,) = (note for note in told["notes"] if "in the order of the default stream" in note)
    ordered, waited = (int(word) for word in note.split() if word.isdigit())
    assert (ordered > 1000) == some_in_order, note
    assert waited > 0, note
    reasons = {entry["reason"] for entry in told["fallbacks"] if entry["reason"].startswith("waited for the default")}
    assert any("datatype with gaps" in reason for reason in reasons), reasons


# ---- ends ------------------------------------------------------------------------------------------------------------

LATE = {**ORDER, "AWAKEN_TEST_DELAYS": "3:1000"}


@pytest.mark.sanitizer
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2"), ("mpi5", "hip:2")])
@pytest.mark.parametrize("mode", ["finalize", "reset"])
def test_work_is_queued_at_the_end(
    mode: str,
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """MPI_Finalize finishes what the streams have; after a reset of the device it ends without."""
    command: list[str | Path] = [rank_program(mpi, "order_ends"), mode, f"--gpu={emulate.split(':')[0]}"]
    result = harness.run_ranks(mpi_named(mpi), 2, command, emulate=emulate, environment=LATE, timeout=harness.HANG_S)
    result.check()
    assert f"ok {mode}" in result.output, result.explain()


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
@pytest.mark.parametrize("mode", ["message", "collective", "abort"])
def test_a_rank_dies_with_work_queued(
    mode: str,
    mpi: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The others' streams go on, by the launcher's help or without, and the job ends."""
    heard = tmp_path / "heard"
    for launcher in ((), test_point_to_point_paths.NO_CLEANUP[mpi]):
        command = harness.rank_command(mpi_named(mpi), 2, [rank_program(mpi, "order_ends"), mode, "--gpu=cuda"])
        command[1:1] = launcher
        variables = {
            **harness.clean_environment(),
            **mpi_named(mpi).environment,
            **LATE,
            "AWAKEN_EMULATE": "cuda:2",
            "SURVIVOR_FILE": str(heard),
        }
        result = harness.run(command, variables, foreign_files=harness.FILES_OF_MPIS)
        for file in result.left:
            if file.name.startswith(harness.FILES_OF_MPIS):
                file.unlink(missing_ok=True)
        assert not result.problems, result.explain()
        assert "FAIL" not in result.output, result.explain()
        # Told to leave it alone, launchers still end the survivor in some runs, before it can say anything.
        assert not heard.exists() or heard.read_text() == f"ok {mode}\n", result.explain()


@pytest.mark.parametrize(("mpi", "variable"), [("mpich", "PMI_RANK"), ("openmpi", "OMPI_COMM_WORLD_RANK")])
def test_a_kernel_fails(
    mpi: str,
    variable: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """An error of the default stream comes out in a call of MPI, and the job ends."""
    script = tmp_path / "rank.sh"
    script.write_text(
        f"case ${variable} in 1) export AWAKEN_TEST_FAULTS=kernel-error=60 ;; esac\n"
        f'exec "{rank_program(mpi, "order_ends")}" "$@"\n'
    )
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        ["/bin/sh", script, "error", "--gpu=cuda"],
        emulate="cuda:2",
        environment=LATE,
        timeout=harness.HANG_S,
    )
    assert result.status != 0, result.explain()
    # The other rank may be the first to say so.
    assert "an error of an earlier kernel" in result.output or "the GPU of rank 1" in result.output, result.explain()


def test_an_unknown_word_lists_all(
    awaken_program: Path, rank_program: Callable[[str, str], Path], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    result = harness.run_ranks(
        mpi_named("mpich"),
        1,
        [rank_program("mpich", "messages"), "--gpu=cuda"],
        emulate="cuda:1",
        environment={"AWAKEN_DEFAULT_STREAM": "ordered"},
        timeout=harness.HANG_S,
    )
    assert result.status != 0, result.explain()
    assert "use wait, trust, order or order,check" in result.output, result.explain()
