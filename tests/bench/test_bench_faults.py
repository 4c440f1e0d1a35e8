# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks say of an MPI that delivers wrong data or fails at one rank, and what they keep of the rest."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest
from aborted_runs import clean_up

SOURCE = Path(__file__).with_name("faulty_mpi.c")
SIZES = ("-m", "256:4096", "--step-factor", "4")
"""Sizes before the first that has the fault, and some that have it."""

Bench = Callable[..., harness.Result]


@pytest.fixture(scope="module")
def faulty_mpi(mpi_named: Callable[[str], harness.Mpi], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library to preload, for MPICH."""
    installed = mpi_named("mpich").mpiexec
    library = tmp_path_factory.mktemp("faulty_mpi") / "libfaulty_mpi.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-Wl,-rpath,{installed.parents[1] / 'lib'}"]
    command: list[str | Path] = [installed.with_name("mpicc"), *flags, SOURCE, "-o", library]
    done = subprocess.run(command, capture_output=True, text=True, timeout=harness.HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture
def bench(mpi_named: Callable[[str], harness.Mpi], awaken_program: Path, faulty_mpi: Path) -> Bench:
    """Runs `awaken bench` on two ranks of an MPI with a fault: below Awaken, since native calls go past preloads."""

    def run(fault: str, *words: str, timeout: float = harness.HANG_S, limit: str = "") -> harness.Result:
        command = [
            *limit.split(), "env", f"LD_PRELOAD={faulty_mpi}", f"TEST_FAULT={fault}",
            str(awaken_program), "bench", *words,
        ]  # fmt: skip
        return harness.run_ranks(mpi_named("mpich"), 2, command, with_awaken=False, timeout=timeout)

    return run


def contenders_in(report: Path) -> dict[str, dict[str, Any]]:
    (measured,) = json.loads(report.read_text())["runs"]
    return {contender["name"]: contender for contender in measured["contenders"]}


def sizes_of(contender: dict[str, Any]) -> list[int]:
    return [measurement["size"] for measurement in contender["measurements"] if measurement["samples_us"]]


@pytest.mark.parametrize(
    ("test", "fault"),
    [
        ("latency", "receive"),
        ("multi_lat", "receive"),
        ("latency_mp", "receive"),
        ("latency_mt", "receive"),
        ("latency_persistent", "persistent receive"),
        ("partitioned_latency", "partitioned receive"),
        ("bw_persistent", "persistent receive"),
        ("bibw_persistent", "persistent receive"),
    ],
)
def test_what_is_timed_is_what_is_checked(bench: Bench, test: str, fault: str) -> None:
    result = bench(fault, test, "-i", "4", "-x", "1", "-c", *SIZES)
    assert result.status == 1, result.explain()
    assert "wrong data at 1024 bytes" in result.output
    lines = [line.split() for line in result.output.splitlines() if line[:1].isdigit()]
    assert [(words[0], words[-1]) for words in lines] == [("256", "Pass"), ("1024", "Fail")], result.explain()


@pytest.mark.parametrize("fault", ["first receive", "receive", "none"])
def test_the_first_message_is_checked_itself(
    mpi_named: Callable[[str], harness.Mpi], awaken_program: Path, faulty_mpi: Path, tmp_path: Path, fault: str
) -> None:
    """Of `awaken bench first`, which starts its ranks: nothing comes between the first message and the second."""
    report = tmp_path / "report.json"
    settings = ["env", f"LD_PRELOAD={faulty_mpi}", f"TEST_FAULT={fault}"]
    result = harness.run(
        [
            str(awaken_program), "bench", "first", "--operation", "message", "-m", "1024:1024", "-i", "2",
            "--launcher", shlex.join([str(mpi_named("mpich").mpiexec), "-n", "2", *settings]), "--json", str(report),
        ],
        harness.clean_environment(),
        harness.HANG_S,
    )  # fmt: skip
    (first, second) = (run["contenders"][0] for run in json.loads(report.read_text())["runs"])
    if fault == "none":
        result.check()
        assert sizes_of(first) == sizes_of(second) == [1024]
        return
    assert result.status == 1, result.explain()
    assert "# awaken WRONG DATA: message of 1024 bytes: 1 elements; rank 1, element 1023: " in result.output
    assert first["unavailable"] == "wrong data at 1024 bytes" and sizes_of(first) == []


def test_the_last_element_of_a_large_message_is_looked_at(bench: Bench) -> None:
    """Large ones are compared in pieces, and elements counted from the beginning."""
    size = str((16 << 20) + 4)
    sound = bench("", "latency", "-i", "2", "-x", "0", "-u", "0", "-c", "-m", f"{size}:{size}")
    sound.check()
    assert sound.output.count(" Pass\n") == 1, sound.explain()
    result = bench("receive", "latency", "-i", "2", "-x", "0", "-u", "0", "-m", f"{size}:{size}")
    assert result.status == 1, result.explain()
    assert "element 16777219: " in result.output, result.explain()


def test_queued_collectives_are_checked_as_they_are_timed(bench: Bench, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("allreduce", "-T", "mpi_char", *SIZES, "-i", "4", "--compare", "awaken", "--mode", "queued,waited")
    result = bench("nonblocking reduction", *words, "--json", str(report))
    assert result.status == 1, result.explain()
    (measured,) = json.loads(report.read_text())["runs"]
    queued, waited = measured["contenders"]
    assert queued["unavailable"] == "wrong data at 1024 bytes"
    assert sizes_of(queued) == [256]
    assert not waited["unavailable"]
    assert sizes_of(waited) == [256, 1024, 4096]


def test_wrong_data_after_many_calls_are_noticed(bench: Bench) -> None:
    words = ("latency", "-m", "1024:4096", "-i", "60", "-x", "1")
    result = bench("later receives", *words)
    assert result.status == 1, result.explain()
    assert "wrong data at 1024 bytes" in result.output
    assert not [line for line in result.output.splitlines() if line[:1].isdigit()], result.explain()
    with_column = bench("later receives", *words, "-c")
    assert with_column.status == 1, with_column.explain()
    assert with_column.output.count("Fail\n") == 1


def test_wrong_data_of_the_last_window_end_the_table(bench: Bench) -> None:
    """-V prints at the end: a size whose last window had wrong data is no line of it."""
    words = ("mbw_mr", "-V", "-m", "256:1024", "--step-factor", "4", "-i", "1", "-x", "0")
    result = bench("last window", *words)
    assert result.status == 1, result.explain()
    assert "wrong data at 1024 bytes" in result.output
    lines = [line.split() for line in result.output.splitlines() if line[:1].isdigit()]
    assert [line[0] for line in lines] == ["256", "256"], result.explain()


def test_windows_before_an_error_are_kept(bench: Bench, tmp_path: Path) -> None:
    """-V: sizes that were done before the MPI fails have their lines and their place in the file."""
    report = tmp_path / "report.json"
    words = ("mbw_mr", "-V", "-m", "256:1024", "--step-factor", "4", "-i", "1", "-x", "0", "--json", str(report))
    result = bench("last window error", *words)
    clean_up(result)
    assert result.status != 0, result.explain()
    lines = [line.split() for line in result.output.splitlines() if line[:1].isdigit()]
    assert lines[0][0] == "256" and len(lines[0]) == 9, result.explain()
    runs = json.loads(report.read_text())["runs"]
    assert [[m["size"] for m in run["contenders"][0]["measurements"]] for run in runs] == [[256, 1024]] * 7 + [[256]]


def test_a_session_that_grants_no_threads_is_believed(bench: Bench) -> None:
    words = ("latency_mt", "-I", "-m", "8:8", "-i", "2", "-x", "0")
    bench("none", *words).check()
    result = bench("session without threads", *words)
    assert result.status != 0 and "MPI_THREAD_MULTIPLE" in result.output, result.explain()


def test_many_iterations_do_not_take_all_memory_at_once(bench: Bench) -> None:
    """Samples of 2^31 - 1 iterations are 16 GiB; what fails here is the MPI, after a few of them."""
    words = ("allreduce", "-m", "4096:4096", "-i", "2147483647", "-x", "0")
    result = bench("later reduction error", *words, limit="prlimit --as=4294967296")
    clean_up(result)
    assert "MPI_Allreduce failed" in result.output, result.explain()


def test_wrong_data_leave_out_one_contender(bench: Bench, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("latency", *SIZES, "-i", "20", "--compare", "native,awaken", "--json", str(report))
    result = bench("receive", *words)
    assert result.status == 1, result.explain()
    found = contenders_in(report)
    assert sizes_of(found["native"]) == [256, 1024, 4096]
    assert sizes_of(found["awaken"]) == [256]
    assert found["awaken"]["unavailable"] == "wrong data at 1024 bytes"
    assert "# awaken WRONG DATA at 1024 bytes: " in result.output


def test_an_error_at_one_rank_ends_all_and_keeps_what_was_measured(bench: Bench, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = bench("error", "latency", *SIZES, "-i", "4", "--json", str(report), timeout=harness.HANG_S)
    clean_up(result)
    assert result.status not in (0, 2), result.explain()
    assert "awaken: rank 1: MPI_Recv failed" in result.output, result.explain()
    assert sizes_of(contenders_in(report)["awaken"]) == [256]


def test_no_memory_at_a_size_keeps_what_was_measured(bench: Bench, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    sizes = ("-m", "8:1125899906842624", "--step-factor", "140737488355328")
    result = bench("", "latency", *sizes, "-i", "20", "--compare", "native,awaken", "--json", str(report))
    assert result.status == 1, result.explain()
    assert "memory" in result.output
    assert "# Median time of an operation, us" in result.output, result.explain()
    for contender in contenders_in(report).values():
        assert sizes_of(contender) == [8]


def test_without_warm_up_nothing_is_warmed_up(bench: Bench) -> None:
    """One cold call, and those that are timed."""
    words = ("latency", "-m", "1024:1024", "-i", "3", "--no-check")
    for warmup, receives in (("0", 4), ("2", 6)):
        result = bench("none, but count", *words, "-x", warmup)
        result.check()
        assert f"receives: {receives}\n" in result.output, result.explain()


def test_the_most_time_is_kept_beside_faster_contenders(bench: Bench, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("latency", "-m", "1024:1024", "--max-time", "0.3", "--precision", "0.0001", "--compare", "native,awaken")
    result = bench("slow receive", *words, "--json", str(report), timeout=harness.HANG_S)
    result.check()
    found = contenders_in(report)
    for contender in found.values():
        (measurement,) = contender["measurements"]
        assert measurement["stopped"] in ("out of time", "precise"), contender
    # No call takes less than 2 ms there, and a block too many is taken at most.
    assert found["awaken"]["measurements"][0]["iterations"] <= 2 * 0.3 / 2e-3, found["awaken"]


def test_precise_is_what_is_reported(bench: Bench, tmp_path: Path) -> None:
    """Rank 0's own times are all alike; the slowest rank's, of which medians are made, are of two kinds."""
    report = tmp_path / "report.json"
    precision = 0.1
    words = ("allreduce", "-m", "4096:4096", "--precision", str(precision), "--max-time", "0.4")
    bench("uneven reduction", *words, "--json", str(report)).check()
    (contender,) = contenders_in(report).values()
    (measurement,) = contender["measurements"]
    median = measurement["summary"]["median_us"]
    low, high = measurement["summary"]["median_95_us"]
    is_precise = (1 - precision) * median <= low and high <= (1 + precision) * median
    assert is_precise == (measurement["stopped"] == "precise"), measurement["summary"]


def test_a_launch_that_ends_midway_is_named(
    awaken_program: Path, mpi_named: Callable[[str], harness.Mpi], faulty_mpi: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    launcher = f"{mpi_named('mpich').mpiexec} -n 2"
    words = [
        "latency", *SIZES, "-i", "60", "--json", str(report),
        "--compare", f"native,dying=awaken+TEST_FAULT=later error+LD_PRELOAD={faulty_mpi}", "--launcher", launcher,
    ]  # fmt: skip
    result = harness.run([str(awaken_program), "bench", *words], harness.clean_environment(), harness.HANG_S)
    clean_up(result)
    assert result.status == 1, result.explain()
    found = contenders_in(report)
    assert sizes_of(found["native"]) == [256, 1024, 4096]
    assert "ended early" in found["dying"]["unavailable"]
    assert sizes_of(found["dying"]) == [256]
    assert "# dying could not run: it ended early: rank 1: MPI_Recv failed" in result.output
