# SPDX-License-Identifier: Apache-2.0
"""The script that measures collectives between GPUs: on emulated ones, with small messages, and how it judges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import collectives as script
import harness
import measure
import pytest
from measure import KIB, MIB

SCRIPT = Path(script.__file__)


def run_script(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWAKEN")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--build", str(harness.build_dir()), *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
def test_it_runs_on_emulated_gpus(emulate: str, mpi_named: Callable[[str], harness.Mpi], tmp_path: Path) -> None:
    mpich = mpi_named("mpich").mpiexec.parents[1]
    file = tmp_path / "report.json"
    done = run_script(
        "--emulate", emulate, "--mpich", mpich, "--quick", "--max-size", "1K", "--max-time", "0.01", "--json", file
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    assert not found["problems"]
    assert found["ranks"] == 2
    sizes = {series: [row["size"] for row in rows] for series, rows in found["results"].items()}
    assert sizes == {
        "allreduce": [8, 64, 512],
        **{name: [KIB] for name in script.MOVING},
        script.STAGED: [KIB],
        script.SUM: [KIB],
    }
    for series in sizes:
        assert f"# {series}: {script.BYTES[series]}" in done.stdout
    assert [one["target"] for one in found["targets"]] == [target.text for target in script.TARGETS]
    # What was written can be judged again, and says the same.
    again = run_script("--judge", file)
    assert again.returncode == 0
    assert again.stdout == done.stdout


def test_without_an_mpi_it_says_so(tmp_path: Path) -> None:
    done = run_script("--emulate", "cuda:2", "--mpich", tmp_path)
    assert done.returncode == 1
    assert f"PROBLEM: there is no {tmp_path}/bin/mpiexec" in done.stdout


def launcher_that(tmp_path: Path, what: str) -> Path:
    file = tmp_path / "launcher"
    file.write_text(f"#!/bin/sh\n{what}\n")
    file.chmod(0o755)
    return file


def test_a_launch_that_hangs_is_ended(tmp_path: Path) -> None:
    launcher = launcher_that(tmp_path, "echo waiting; sleep 200")
    done = run_script("--emulate", "cuda:2", "--launcher", launcher, "--limit", "1", "--only", "bcast")
    assert done.returncode == 1
    assert "PROBLEM: bcast, 1 Ki to 64 Mi: status -1, its time was up" in done.stdout
    assert "  | waiting" in done.stdout


def test_a_launch_that_fails_is_a_problem(tmp_path: Path) -> None:
    launcher = launcher_that(tmp_path, "echo $NCCL_NVLS_ENABLE ranks cannot be started; exit 3")
    done = run_script("--emulate", "cuda:2", "--launcher", launcher, "--only", script.SUM)
    assert done.returncode == 1
    assert f"PROBLEM: {script.SUM}: status 3" in done.stdout
    assert "  | 0 ranks cannot be started" in done.stdout


def test_a_time_that_is_up_skips_the_rest(tmp_path: Path) -> None:
    launcher = launcher_that(tmp_path, "exit 3")
    done = run_script("--emulate", "cuda:2", "--launcher", launcher, "--budget", "0")
    assert done.returncode == 1
    assert "allreduce, 8 to 256 Mi: skipped, the time is up" in done.stdout
    assert "status 3" not in done.stdout


# ---------------------------------------------------------------------------------------------------------- reading


def measurement(size: int, samples: list[float], errors: int = 0) -> dict[str, Any]:
    ordered = sorted(samples)
    return {
        "size": size,
        "errors": errors,
        "summary": {"median_us": ordered[len(ordered) // 2], "median_95_us": [ordered[0], ordered[-1]]},
        "samples_us": samples,
    }


def bench_report(**contenders: list[dict[str, Any]] | str) -> dict[str, Any]:
    """As `awaken bench --json` writes it. A text in the place of measurements: why the contender could not run."""
    return {
        "manifest": {"MPI": "made up"},
        "runs": [
            {
                "ranks": 2,
                "contenders": [
                    {
                        "name": name,
                        "unavailable": found if isinstance(found, str) else "",
                        "measurements": [] if isinstance(found, str) else found,
                    }
                    for name, found in contenders.items()
                ],
            }
        ],
    }


def test_pairs_of_samples_are_compared_as_pairs() -> None:
    # Both contenders are disturbed alike: medians and their intervals are wide, and the ratio is not.
    theirs = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0]
    ours = [value * 0.9 for value in theirs]
    (row,), problems = script.rows_of(
        bench_report(awaken=[measurement(8, ours)], xccl=[measurement(8, theirs)]), "xccl"
    )
    assert not problems
    assert (row.ours_us, row.peer_us) == (54.0, 60.0)
    assert row.ratio == pytest.approx(0.9)
    assert row.low == pytest.approx(0.9)
    assert row.high == pytest.approx(0.9)
    # Without pairs only the two intervals remain.
    (alone,), _ = script.rows_of(bench_report(awaken=[measurement(8, ours)], xccl=[measurement(8, theirs[1:])]), "xccl")
    assert alone.low == pytest.approx(9 / 110)
    assert alone.high == pytest.approx(99 / 20)


def test_what_is_wrong_in_a_report_is_a_problem() -> None:
    rows, problems = script.rows_of(
        bench_report(awaken=[measurement(8, [1.0]), measurement(16, [1.0], 3)], xccl="no library\nmore"), "xccl"
    )
    assert not rows
    assert problems == ["awaken at 16: wrong data", "xccl could not run: no library"]


def test_sizes_that_only_one_has_are_left_out() -> None:
    report = bench_report(awaken=[measurement(8, [1.0]), measurement(16, [1.0])], staged=[measurement(16, [2.0])])
    rows, _ = script.rows_of(report, "staged")
    assert [(row.size, row.ratio) for row in rows] == [(16, 0.5)]


OUTPUT_OF_SUMS = """\
Time in seconds for GPU Direct MPI_Allreduce using NCCL/RCCL: 1.4e-02
Time in seconds for GPU Direct MPI_Allreduce using standard MPI library: 1.5e-02
#
# library          mode           us/call  algbw (GB/s)  busbw (GB/s)
# NCCL 2.27.5      queued          280.00       285.714       285.714
# standard MPI     waited          303.00       264.026       264.026
# NCCL 2.27.5      waited          300.00       266.667       266.667
# standard MPI     queued          290.00       275.862       275.862
# standard MPI / NCCL 2.27.5, queued: 1.036
"""


def test_the_table_of_the_sums_is_read() -> None:
    row = script.row_of_sums(OUTPUT_OF_SUMS, 10_000_000)
    assert row is not None
    assert (row.size, row.ours_us, row.peer_us) == (80_000_000, 303, 300)
    assert row.ratio == pytest.approx(1.01)
    # Without NCCL there is nothing to compare with.
    without = "\n".join(line for line in OUTPUT_OF_SUMS.splitlines() if "NCCL 2" not in line)
    assert script.row_of_sums(without, 10_000_000) is None
    assert script.row_of_sums("", 10_000_000) is None


def test_launches_are_put_together_by_their_medians() -> None:
    rows = [script.Row(8, us, 10, us / 10, us / 10 - 0.01, us / 10 + 0.02) for us in (9.0, 30.0, 10.0)]
    row = script.over_launches(rows)
    assert (row.ours_us, row.peer_us, row.ratio, row.launches) == (10, 10, 1, 3)
    assert [row.low, row.high] == pytest.approx([0.89, 3.02])


# ---------------------------------------------------------------------------------------------------------- judging


def rows(*sizes_and_ratios: tuple[int, float], us: float = 10) -> dict[int, script.Row]:
    return {size: script.Row(size, us, us / ratio, ratio, ratio, ratio) for size, ratio in sizes_and_ratios}


def verdict(beginning: str, results: script.Results, ranks: int = 2) -> measure.Verdict:
    (judge,) = [one.judge for one in script.TARGETS if one.text.startswith(beginning)]
    return judge(results, ranks)


def test_every_power_of_two_has_its_limit() -> None:
    powers = [1 << power for power in range(3, 29)]
    assert [script.limit_of("allreduce", size) for size in powers] == [
        0.85 if size in (MIB, 2 * MIB, 4 * MIB, 8 * MIB) else 1.05 for size in powers
    ]
    for size in (4, 12, 512 * MIB):
        assert script.limit_of("allreduce", size) is None
    for name in ("bcast", "allgather", "reduce_scatter", "alltoall"):
        assert [script.limit_of(name, size) for size in (KIB, 4 * KIB, MIB, 64 * MIB)] == [1.10, None, 1.10, 1.10]
    assert script.limit_of(script.SUM, 80_000_000) == 1.01
    assert script.limit_of(script.STAGED, 80_000_000) is None


def test_one_size_above_the_limit_misses() -> None:
    target = "allreduce at 1.05"
    good = rows(*((8 << power, 1.05) for power in range(26)))
    assert verdict(target, {"allreduce": good}).met is True
    assert verdict(target, {"allreduce": good}).remark == "26 of 26 sizes, at most x1.05"
    missed = verdict(target, {"allreduce": good | rows((64 * KIB, 1.06))})
    assert (missed.met, missed.remark) == (False, "64 Ki x1.06")
    # Of other sizes nothing is demanded.
    assert verdict(target, {"allreduce": good | rows((512 * MIB, 2))}).met is True
    assert verdict(target, {"allreduce": rows((12, 2))}).met is None
    assert verdict(target, {}).met is None


def test_between_one_and_eight_mebibytes_more_is_demanded() -> None:
    target = "allreduce at 0.85"
    for size in (MIB, 2 * MIB, 4 * MIB, 8 * MIB):
        assert verdict(target, {"allreduce": rows((size, 0.85))}).met is True
        assert verdict(target, {"allreduce": rows((size, 0.86))}).met is False
    assert verdict(target, {"allreduce": rows((512 * KIB, 1), (16 * MIB, 1))}).met is None


@pytest.mark.parametrize("name", script.MOVING)
def test_other_collectives(name: str) -> None:
    target = f"{name} at 1.10"
    for ratio, met in ((1.1, True), (1.11, False)):
        for size in (KIB, MIB, 64 * MIB):
            assert verdict(target, {name: rows((size, ratio), (4 * KIB, 3))}).met is met
    assert verdict(target, {name: rows((4 * KIB, 3))}).met is None


def test_the_sums() -> None:
    size = 80_000_000
    for ratio, met in ((1.01, True), (1.02, False)):
        assert verdict("50 x 1e7", {script.SUM: rows((size, ratio))}).met is met
    for ratio, met in ((1 / 200, True), (1 / 199, False)):
        assert verdict("... 200 times", {script.STAGED: rows((size, ratio))}).met is met
    # Another number of elements is another benchmark.
    assert verdict("50 x 1e7", {script.SUM: rows((size // 2, 2))}).met is None
    assert verdict("... 200 times", {script.STAGED: rows((size // 2, 2))}).met is None


def test_a_time_is_demanded_on_eight_gpus_only() -> None:
    for us, met in ((20.0, True), (20.1, False)):
        assert verdict("allreduce of 8 B", {"allreduce": rows((8, 1), us=us)}, 8).met is met
        assert verdict("allreduce of 8 B", {"allreduce": rows((8, 1), us=us)}, 4).met is None


def judged(tmp_path: Path, report: script.Report) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report.as_json()))
    return run_script("--judge", file)


def test_the_exit_status_is_that_of_the_verdicts(tmp_path: Path) -> None:
    met = script.Report(ranks=8, results={"allreduce": rows((8, 0.9), (MIB, 0.8))})
    assert judged(tmp_path, met).returncode == 0
    missed = script.Report(ranks=8, results={"allreduce": rows((8, 0.9), (MIB, 0.9))})
    done = judged(tmp_path, missed)
    assert done.returncode == 1
    assert "1 Mi x0.90" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.lstrip().startswith("1 Mi")]
    assert line.split() == ["1", "Mi", "10.00", "11.11", "0.900", "[0.900,", "0.900]", "0.85", "MISSED"]
    # Times of emulated GPUs say nothing, but everything else does.
    missed.emulated = True
    assert judged(tmp_path, missed).returncode == 0
    missed.problems = ["allreduce: awaken at 8: wrong data"]
    assert judged(tmp_path, missed).returncode == 1
    assert judged(tmp_path, script.Report(ranks=8)).returncode == 1


def test_another_file_is_not_judged(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"schema": "awaken-bench", "version": 1}))
    done = run_script("--judge", file)
    assert done.returncode == 1
    assert "this is no report of awaken-collectives 1" in done.stderr


def test_what_is_planned_holds_what_is_judged() -> None:
    def sizes(quick: bool, largest: int) -> dict[str, list[int]]:
        planned: dict[str, list[int]] = {}
        for one in script.comparisons(quick, largest):
            size = one.smallest
            while size <= one.largest:
                planned.setdefault(one.series, []).append(size)
                size *= one.factor
        return planned

    everything = sizes(False, 1 << 30)
    for series, judged_sizes in script.SIZES.items():
        assert series == script.SUM or set(judged_sizes) <= set(everything[series])
    assert everything[script.STAGED] == [80_000_000]
    for name, planned in sizes(True, 1 << 30).items():
        assert name == script.STAGED or script.limit_of(name, planned[0]) is not None
    for largest in (64, MIB, 1 << 30):
        for quick in (False, True):
            assert all(8 <= size <= largest for planned in sizes(quick, largest).values() for size in planned)


def test_gpus_are_counted() -> None:
    assert measure.gpu_count("cuda:4") == 4
    assert measure.gpu_count("hip5:2") == 2
    assert measure.gpu_count(None) >= 0
