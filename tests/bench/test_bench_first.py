# SPDX-License-Identifier: Apache-2.0
"""`awaken bench first`: each time is of a launch of its own, for every operation, allocation, size and contender."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import pytest

OPERATIONS = ("message", "exchange", "allreduce")
SMALL = ("-m", "1K:64K", "-i", "1")
FIGURES = ((1 << 10, 1 << 10), (1 << 10, 64 << 10), (64 << 10, 64 << 10))
"""Sizes and allocations that follow from it."""
FindMpi = Callable[[str], harness.Mpi]
Measured = dict[tuple[str, int], dict[str, dict[str, Any]]]
"""The contenders of a run, by operation and allocation."""


@pytest.fixture
def launcher(mpi_named: FindMpi, tmp_path: Path) -> Callable[[str, int], str]:
    """The words of --launcher for an MPI of the tests. Each launch adds its command line to a file."""

    def words(name: str, ranks: int) -> str:
        mpi = mpi_named(name)
        settings = [f"{key}={value}" for key, value in mpi.environment.items()]
        if mpi.name == "mpi5":
            settings.append(f"AWAKEN_MPI={mpi.mpiexec.parent.parent / 'lib' / 'libmpi_abi.so.1'}")
        script = tmp_path / "launch.py"
        script.write_text(
            "import os, sys\n"
            f"open({str(tmp_path / 'launches')!r}, 'a').write(' '.join(sys.argv) + '\\n')\n"
            "os.execvp(sys.argv[1], sys.argv[1:])\n"
        )
        start = ["env", *settings, str(mpi.mpiexec), *mpi.arguments, "-n", str(ranks)]
        return shlex.join([sys.executable, str(script), *start])

    return words


@pytest.fixture
def first(awaken_program: Path, tmp_path: Path) -> Callable[..., harness.Result]:
    def run(*words: str, **environment: str) -> harness.Result:
        command = [str(awaken_program), "bench", "first", *words]
        return harness.run(command, {**harness.clean_environment(), **environment}, harness.LONG_HANG_S, tmp_path)

    return run


def measured_in(report: Path) -> Measured:
    runs = json.loads(report.read_text())["runs"]
    assert all(run["test"] == "first" for run in runs)
    return {
        (run["operation"], run["allocation"]): {contender["name"]: contender for contender in run["contenders"]}
        for run in runs
    }


def rows_of(output: str) -> list[list[str]]:
    """Operation, size, allocation, contender and launches of each line of the table."""
    rows = [line.split() for line in output.splitlines() if line.split(" ")[0] in OPERATIONS]
    return [[*row[:4], row[-1]] for row in rows]


def assert_measured(contender: dict[str, Any], sizes: Sequence[int], launches: int = 1) -> None:
    assert not contender["unavailable"], contender
    assert [measurement["size"] for measurement in contender["measurements"]] == list(sizes)
    for measurement in contender["measurements"]:
        assert len(measurement["samples_us"]) == measurement["iterations"] == launches, measurement
        assert min(measurement["samples_us"]) > 0, measurement
        assert measurement["validated"] and not measurement["errors"], measurement


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"),
    [("mpich", "cuda:2", 2), ("openmpi", "hip:4", 4), ("mpi5", "cuda:2", 2)],
    ids=lambda value: str(value).replace(":", "x"),
)
def test_each_contender_measures_each_figure_in_launches_of_its_own(
    first: Callable[..., harness.Result], launcher: Callable[[str, int], str], tmp_path: Path, mpi: str, emulate: str,
    ranks: int,
) -> None:  # fmt: skip
    report = tmp_path / "report.json"
    result = first(
        "D", "D", *SMALL, "--compare", "awaken,staged,xccl,native", "--launcher", launcher(mpi, ranks),
        "--json", str(report), AWAKEN_EMULATE=emulate,
    )  # fmt: skip
    result.check()
    found = measured_in(report)
    assert list(found) == [
        (f"{which} {operation}", allocation)
        for operation in OPERATIONS
        for allocation in (1 << 10, 64 << 10)
        for which in ("first", "second")
    ]
    for (_, allocation), contenders in found.items():
        assert list(contenders) == ["awaken", "staged", "xccl", "native"]
        for name in ("awaken", "staged", "xccl"):
            assert_measured(contenders[name], [size for size, room in FIGURES if room == allocation])
        assert "does not take" in contenders["native"]["unavailable"], contenders["native"]
    assert json.loads(report.read_text())["runs"][0]["ranks"] == ranks
    assert rows_of(result.output) == [
        [operation, str(size), str(allocation), contender, "1"]
        for operation in OPERATIONS
        for size, allocation in FIGURES
        for contender in ("awaken", "staged", "xccl")
    ]
    assert "# native could not run: " in result.output
    # One launch a sample; what cannot run is not tried again. The layer is where it is measured, and only there.
    launches = (tmp_path / "launches").read_text().splitlines()
    assert len(launches) == 3 * 9 + 1
    assert all(("--compare awaken=awaken" in line) == ("--native" not in line.split()) for line in launches)
    assert not list(tmp_path.glob(".awaken-bench-*"))


def test_one_contender_and_one_operation(
    first: Callable[..., harness.Result], launcher: Callable[[str, int], str]
) -> None:
    words = ("--operation", "exchange", "-m", "8:8", "-i", "3", "--launcher", launcher("mpich", 2))
    result = first(*words)
    result.check()
    assert "through Awaken" in result.output and rows_of(result.output) == [["exchange", "8", "8", "awaken", "3"]]
    result = first(*words, "--native")
    result.check()
    assert "through Awaken" not in result.output and rows_of(result.output)[0][3] == "native"


def test_each_contender_may_have_its_own_launcher_and_environment(
    first: Callable[..., harness.Result], launcher: Callable[[str, int], str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    result = first(
        "--operation", "message", "-m", "8:8", "-i", "2", "--json", str(report),
        "--compare", "native,other=native,set=native+AWAKEN_PINNED_POOL=1M,broken=native",
        "--launcher", launcher("mpich", 2), "--launcher", "other=" + launcher("openmpi", 2),
        "--launcher", "broken=sh -c 'echo the launcher is broken >&2; exit 3'",
    )  # fmt: skip
    result.check()
    contenders = measured_in(report)["first message", 8]
    for name in ("native", "other", "set"):
        assert_measured(contenders[name], [8], 2)
    assert contenders["native"]["description"].startswith("MPICH")
    assert contenders["other"]["description"].startswith("Open MPI")
    assert "the launcher is broken" in contenders["broken"]["unavailable"]
    assert "# broken could not run: the launcher is broken" in result.output
    manifest = json.loads(report.read_text())["manifest"]
    assert [key for key in manifest if key.endswith("AWAKEN_PINNED_POOL")] == ["set: environment.AWAKEN_PINNED_POOL"]


def test_a_launch_that_fails_later_ends_its_contender(
    first: Callable[..., harness.Result], launcher: Callable[[str, int], str], tmp_path: Path
) -> None:
    """What it has measured is kept, and the others go on."""
    once = tmp_path / "once"
    fails = ["sh", "-c", f'test ! -e {once} || {{ echo broken >&2; exit 3; }}; touch {once}; exec "$@"', "sh"]
    result = first(
        "--operation", "message", "-m", "8:8", "-i", "3", "--json", "report.json", "--compare", "native,frail=native",
        "--launcher", launcher("mpich", 2), "--launcher", f"frail={shlex.join(fails)} {launcher('mpich', 2)}",
    )  # fmt: skip
    assert result.status == 1, result.explain()
    assert [row[3:] for row in rows_of(result.output)] == [["native", "3"], ["frail", "1"]], result.explain()
    contenders = measured_in(tmp_path / "report.json")["first message", 8]
    assert_measured(contenders["native"], [8], 3)
    assert contenders["frail"]["unavailable"] == "it ended early: broken"


def test_nothing_that_could_run_says_why(first: Callable[..., harness.Result]) -> None:
    result = first("--launcher", "/nonexistent/mpiexec -n 2", "-m", "8:8")
    assert result.status == 2 and "no contender could run (awaken: " in result.output, result.explain()


def test_compare_and_report_read_the_results(
    first: Callable[..., harness.Result], launcher: Callable[[str, int], str], awaken_program: Path, tmp_path: Path
) -> None:
    """Each operation, first and second, and each allocation is a series of its own."""
    words = ("-m", "8:8", "--allocation", "8,16", "-i", "1", "--operation", "message", "--json", "report.json")
    first(*words, "--launcher", launcher("mpich", 2)).check()
    for command in (["compare", "report.json", "report.json", "--all"], ["report", "report.json", "-o", "page.md"]):
        done = harness.run([str(awaken_program), *command], harness.clean_environment(), harness.HANG_S, tmp_path)
        assert done.status == 0, done.explain()
        text = done.output if command[0] == "compare" else (tmp_path / "page.md").read_text()
        for which in ("first", "second"):
            for allocation in (8, 16):
                assert f"{which} message, {allocation} bytes allocated" in text, text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--operation", "bcast"), "is not an operation"),
        (("--allocation", "8", "-m", "16:16"), "no allocation holds a message of 16 bytes"),
        (("-x", "1"), "first takes no -x"),
        (("--self-test",), "first takes no --self-test"),
        (("--precision", "0.1"), "first takes no --precision"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_wrong_use(first: Callable[..., harness.Result], words: tuple[str, ...], message: str) -> None:
    result = first(*words)
    assert result.status == 2, result.explain()
    assert message in result.output and len(result.output.strip().splitlines()) == 1


def test_not_inside_an_mpi_job(mpi_named: FindMpi, awaken_program: Path) -> None:
    result = harness.run_ranks(mpi_named("mpich"), 2, [awaken_program, "bench", "first"], with_awaken=False)
    assert result.status != 0 and "run it without mpiexec" in result.output, result.explain()
