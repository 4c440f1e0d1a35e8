# SPDX-License-Identifier: Apache-2.0
"""Measures collectives between GPUs beside NCCL called directly, and says which targets are met.

    python3 tests/gpu_hardware/collectives.py --build build/release --mpich .venv --nccl FOLDER --json collectives.json

`--nccl` is a folder with libnccl.so.2, where the loader finds none. Each test is one launch of `awaken exec` with a
benchmark of the suite, whose contenders, Awaken and NCCL, take turns on the same ranks and buffers
(docs/benchmarks.md), each call waited for. The benchmark of 50 sums of 1e7 doubles (apps/allreduce) is run as it is,
and once more as a comparison with staging by hand. Launches are repeated: the tables show the median of their ratios,
and the spread from the least to the greatest end of their 95 % intervals. Exit status 1 when a target was missed, data
was wrong or a launch failed; on emulated GPUs (--emulate cuda:4), whose times say nothing, missed targets do not count.
`--judge FILE` judges what `--json` wrote earlier and runs nothing. stdlib only.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from measure import (
    GIB,
    KIB,
    MIB,
    VERDICT_WORDS,
    Verdict,
    cell_of,
    end_of,
    gpu_count,
    launch_command,
    parse_size,
    run,
    size_text,
    summary,
    unmeasured,
)

SCHEMA, VERSION = "awaken-collectives", 1
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0"}
"""What NCCL is told: no NVLink SHARP, whose multicast objects not every machine lends."""
SUM_ELEMENTS, SUM_CALLS = 10_000_000, 50
SUM, STAGED = f"{SUM_CALLS} x 1e7", "1e7 staged by hand"


@dataclass(frozen=True)
class Row:
    """One size: medians over the launches, in microseconds; the peer is NCCL, or staging by hand."""

    size: int
    ours_us: float
    peer_us: float
    ratio: float  # ours / peer
    low: float
    high: float
    launches: int = 1


Results = dict[str, dict[int, Row]]
"""test -> size -> row"""


@dataclass(frozen=True)
class Comparison:
    """One call of a benchmark of the suite, at sizes from `smallest` to `largest`."""

    series: str
    test: str
    smallest: int
    largest: int
    factor: int
    options: tuple[str, ...] = ()
    peer: str = "xccl"
    max_time_factor: float = 1
    repeats: bool = True


BYTES = {
    "allreduce": "bytes of each rank's vector; sum of MPI_DOUBLE",
    "bcast": "bytes of the message; MPI_CHAR",
    "allgather": "bytes that each rank contributes, of ranks times as many that it receives; MPI_CHAR",
    "reduce_scatter": "bytes of each rank's vector, of whose sum it receives its share; MPI_INT",
    "alltoall": "bytes from each rank to each; MPI_CHAR",
    SUM: "bytes of each rank's vector; a call in place, of apps/allreduce",
    STAGED: "bytes of each rank's vector; a call in place; the peer stages by hand over the same MPI",
}
"""What the size column of each test counts, as the OSU micro-benchmarks do."""
MOVING = ("bcast", "allgather", "reduce_scatter", "alltoall")


def comparisons(quick: bool, largest: int) -> list[Comparison]:
    """The most telling first: the time may be up before the last. Sizes above `largest` are left out."""
    allreduce = ("-T", "mpi_double")
    planned = [
        Comparison("allreduce", "osu_allreduce", 8, 256 * MIB, 8 if quick else 2, allreduce),
        *(Comparison(name, f"osu_{name}", KIB, 64 * MIB, 1 << 10 if quick else 4) for name in MOVING),
        Comparison(
            STAGED, "osu_allreduce", 8 * SUM_ELEMENTS, 8 * SUM_ELEMENTS, 2, (*allreduce, "-l"), "staged", 8, False
        ),
    ]
    chosen = []
    for one in planned:
        if one.smallest == one.largest or one.smallest > largest:
            # A test of one size, and what has none small enough, is run at the largest that there is.
            size = min(one.smallest, largest)
            chosen.append(change(one, size, size))
        else:
            chosen.append(change(one, one.smallest, min(one.largest, largest)))
    return chosen


def change(one: Comparison, smallest: int, largest: int) -> Comparison:
    return Comparison(**{**vars(one), "smallest": smallest, "largest": largest})


# ------------------------------------------------------------------------------------------------- reading reports


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """95 %, from order statistics, without assumption about the distribution; the range of fewer than six values."""
    ordered = sorted(values)
    count = len(ordered)
    if count < 6:
        return ordered[0], ordered[-1]
    lower = max(math.floor(count / 2 - 0.98 * math.sqrt(count)), 1)
    return ordered[lower - 1], ordered[count - lower]


def row_of(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Row:
    """Two measurements at one size. What was taken in pairs is compared in pairs: what disturbed both cancels out."""
    mine, other = cell_of(ours), cell_of(theirs)
    ratio = mine.median_us / other.median_us
    samples, others = ours["samples_us"], theirs["samples_us"]
    if len(samples) == len(others) and len(samples) > 0:
        low, high = interval_of_median([a / b for a, b in zip(samples, others)])
    else:
        low, high = mine.low_us / other.high_us, mine.high_us / other.low_us
    return Row(mine.size, mine.median_us, other.median_us, ratio, min(low, ratio), max(high, ratio))


def rows_of(report: Mapping[str, Any], peer: str) -> tuple[list[Row], list[str]]:
    """The rows of a report of `awaken bench --json`, and what was wrong with it."""
    rows, problems = [], []
    measured: dict[str, dict[int, Mapping[str, Any]]] = {}
    for contender in report["runs"][0]["contenders"]:
        if contender["unavailable"]:
            problems.append(f"{contender['name']} could not run: {contender['unavailable'].splitlines()[0]}")
        for measurement in contender["measurements"]:
            measured.setdefault(contender["name"], {})[measurement["size"]] = measurement
            if measurement["errors"]:
                problems.append(f"{contender['name']} at {size_text(measurement['size'])}: wrong data")
    theirs = measured.get(peer, {})
    for size, ours in measured.get("awaken", {}).items():
        if size in theirs:
            rows.append(row_of(ours, theirs[size]))
    return rows, problems


TABLE_LINE = re.compile(r"^# (.+?) +(waited|queued) +([\d.]+) +[\d.]+ +[\d.]+$", re.MULTILINE)


def row_of_sums(output: str, elements: int) -> Row | None:
    """The table that apps/allreduce prints: each library's call, waited for."""
    waited = {library: float(us) for library, mode, us in TABLE_LINE.findall(output) if mode == "waited"}
    mine = waited.pop("standard MPI", None)
    if mine is None or len(waited) != 1:
        return None
    (other,) = waited.values()
    return Row(8 * elements, mine, other, mine / other, mine / other, mine / other)


def over_launches(rows: Sequence[Row]) -> Row:
    """Several launches as one row."""
    return Row(
        rows[0].size,
        statistics.median(row.ours_us for row in rows),
        statistics.median(row.peer_us for row in rows),
        statistics.median(row.ratio for row in rows),
        min(row.low for row in rows),
        max(row.high for row in rows),
        len(rows),
    )


# ---------------------------------------------------------------------------------------------------------- targets

SIZES = {
    "allreduce": [8 << power for power in range(26)],  # 8 bytes to 256 MiB
    **{name: [KIB, MIB, 64 * MIB] for name in MOVING},
    SUM: [8 * SUM_ELEMENTS],
}
FASTER_SIZES = [MIB, 2 * MIB, 4 * MIB, 8 * MIB]


def limit_of(series: str, size: int) -> float | None:
    """The largest ratio to NCCL's time that is allowed; None where nothing is demanded."""
    if size not in SIZES.get(series, ()):
        return None
    if series == "allreduce":
        return 0.85 if size in FASTER_SIZES else 1.05
    return 1.01 if series == SUM else 1.10


@dataclass(frozen=True)
class Target:
    text: str
    judge: Callable[[Results, int], Verdict]


def at_ratio(series: str, sizes: Sequence[int], limit: float) -> Callable[[Results, int], Verdict]:
    def judge(results: Results, ranks: int) -> Verdict:
        found = [row for size, row in sorted(results.get(series, {}).items()) if size in sizes]
        if not found:
            return unmeasured()
        above = [f"{size_text(row.size)} x{row.ratio:.2f}" for row in found if row.ratio > limit]
        largest = max(row.ratio for row in found)
        return Verdict(not above, summary(above, f"{len(found)} of {len(sizes)} sizes, at most x{largest:.2f}"))

    return judge


def many_times_faster(series: str, size: int, factor: float) -> Callable[[Results, int], Verdict]:
    def judge(results: Results, ranks: int) -> Verdict:
        row = results.get(series, {}).get(size)
        return Verdict(row.ratio * factor <= 1, f"{1 / row.ratio:.0f} times") if row else unmeasured()

    return judge


def within(series: str, size: int, limit_us: float, ranks_needed: int) -> Callable[[Results, int], Verdict]:
    def judge(results: Results, ranks: int) -> Verdict:
        row = results.get(series, {}).get(size)
        if row is None or ranks != ranks_needed:
            return unmeasured()
        return Verdict(row.ours_us <= limit_us, f"{row.ours_us:.2f} us")

    return judge


TARGETS = [
    Target("allreduce at 1.05 of NCCL, 8 B to 256 Mi", at_ratio("allreduce", SIZES["allreduce"], 1.05)),
    Target("allreduce at 0.85 of NCCL, 1 to 8 Mi", at_ratio("allreduce", FASTER_SIZES, 0.85)),
    Target("50 x 1e7 doubles at 1.01 of NCCL", at_ratio(SUM, SIZES[SUM], 1.01)),
    Target("... 200 times faster than staged by hand", many_times_faster(STAGED, 8 * SUM_ELEMENTS, 200)),
    *(Target(f"{name} at 1.10 of NCCL, 1 Ki, 1 and 64 Mi", at_ratio(name, SIZES[name], 1.10)) for name in MOVING),
    Target("allreduce of 8 B on 8 GPUs in 20 us", within("allreduce", 8, 20, 8)),
]


# ---------------------------------------------------------------------------------------------------------- running


@dataclass
class Report:
    """What came of a run, or is read from an earlier one's file."""

    ranks: int = 0
    emulated: bool = False
    seconds: float = 0
    manifest: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    results: Results = field(default_factory=dict)

    def verdicts(self) -> dict[str, Verdict]:
        return {target.text: target.judge(self.results, self.ranks) for target in TARGETS}

    def failed(self) -> bool:
        missed = any(verdict.met is False for verdict in self.verdicts().values())
        return bool(self.problems) or not self.results or (missed and not self.emulated)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "version": VERSION,
            **{name: value for name, value in vars(self).items() if name != "results"},
            "results": {
                series: [asdict(row) | {"limit": limit_of(series, size)} for size, row in sorted(rows.items())]
                for series, rows in self.results.items()
            },
            "targets": [
                {"target": text, "met": one.met, "remark": one.remark} for text, one in self.verdicts().items()
            ],
        }

    @staticmethod
    def from_json(text: Mapping[str, Any]) -> Report:
        if (text.get("schema"), text.get("version")) != (SCHEMA, VERSION):
            raise ValueError(f"this is no report of {SCHEMA} {VERSION}")
        report = Report(**{name: text[name] for name in vars(Report()) if name != "results"})
        for series, rows in text["results"].items():
            for row in rows:
                values = {name: value for name, value in row.items() if name != "limit"}
                report.results.setdefault(series, {})[values["size"]] = Row(**values)
        return report


@dataclass
class Machine:
    """Runs launches and keeps what came of them."""

    arguments: argparse.Namespace
    launcher: list[str]
    deadline: float
    report: Report
    rows: dict[str, dict[int, list[Row]]] = field(default_factory=dict)

    def launch(self, label: str, words: Sequence[str]) -> str | None:
        """What a program under `awaken exec` printed; None, and why, when it failed or there is no time for it."""
        left = self.deadline - time.monotonic()
        if left < 5:
            self.report.notes.append(f"{label}: skipped, the time is up")
            return None
        emulate = ["--emulate", self.arguments.emulate] if self.arguments.emulate else []
        awaken = [str(self.arguments.build / "bin" / "awaken"), "exec", *emulate, "--"]
        status, output = run([*self.launcher, *awaken, *words], min(left, self.arguments.limit), ENVIRONMENT)
        if status != 0:
            self.report.problems.append(f"{label}: status {status}" + (", its time was up" if status == -1 else ""))
            print(end_of(output), flush=True)
        return output

    def compare(self, comparison: Comparison) -> None:
        arguments = self.arguments
        label = f"{comparison.series}, {size_text(comparison.smallest)} to {size_text(comparison.largest)}"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            output = self.launch(label, [
                str(arguments.build / "bin" / comparison.test), "D", "D", *comparison.options,
                "-m", f"{comparison.smallest}:{comparison.largest}", "--step-factor", str(comparison.factor),
                "-M", str(GIB), "--compare", f"awaken,{comparison.peer}", "--mode", "waited",
                "--max-time", str(arguments.max_time * comparison.max_time_factor), "--precision", "0.002",
                "--quiet", "--no-progress", "--json", str(file),
            ])  # fmt: skip
            if output is None:
                return
            try:
                found = json.loads(file.read_text())
                rows, problems = rows_of(found, comparison.peer)
                ranks = found["runs"][0]["ranks"]
            except (OSError, ValueError, KeyError, IndexError) as error:
                self.report.problems.append(f"{label}: no report ({type(error).__name__}: {error})")
                return
        self.report.manifest.update(found["manifest"])
        self.report.problems += [f"{comparison.series}: {problem}" for problem in problems]
        if ranks != self.report.ranks:
            self.report.problems.append(f"{label}: ran on {ranks} ranks instead of {self.report.ranks}")
        self.add(comparison.series, rows)

    def sums(self, quick: bool, largest: int) -> None:
        elements = min(SUM_ELEMENTS, largest // 8)
        calls = 10 if quick else SUM_CALLS
        program = self.arguments.build / "apps" / "mpich" / "allreduce"
        output = self.launch(SUM, [str(program), "--elements", str(elements), "--iterations", str(calls)])
        if output is None:
            return
        row = row_of_sums(output, elements)
        if row is None:
            self.report.problems.append(f"{SUM}: no table of both libraries")
            print(end_of(output), flush=True)
        else:
            self.add(SUM, [row])

    def add(self, series: str, rows: Sequence[Row]) -> None:
        for row in rows:
            found = self.rows.setdefault(series, {}).setdefault(row.size, [])
            found.append(row)
            self.report.results.setdefault(series, {})[row.size] = over_launches(found)


def measure_all(arguments: argparse.Namespace) -> Report:
    start = time.monotonic()
    report = Report(emulated=arguments.emulate is not None)
    report.ranks = arguments.ranks or gpu_count(arguments.emulate)
    if report.ranks < 1:
        report.problems.append("there is no GPU: give --ranks, or --emulate cuda:4")
        return report
    command = arguments.launcher
    if command is None:
        command = launch_command(arguments.mpich, ENVIRONMENT, arguments.nccl, report.ranks)
    if command is None:
        report.problems.append(f"there is no {arguments.mpich}/bin/mpiexec")
        return report
    machine = Machine(arguments, shlex.split(command), start + arguments.budget, report)
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    for repeat in range(repeats):
        planned = comparisons(arguments.quick, arguments.max_size)
        for comparison in (one for one in planned if arguments.only in one.series):
            if repeat == 0 or comparison.repeats:
                machine.compare(comparison)
        if arguments.only in SUM:
            machine.sums(arguments.quick, arguments.max_size)
        if report.problems:
            break
    report.seconds = round(time.monotonic() - start, 1)
    return report


# --------------------------------------------------------------------------------------------------------- printing


def print_series(series: str, rows: Mapping[int, Row]) -> None:
    peer = "staged us" if series == STAGED else "NCCL us"
    print(f"\n# {series}: {BYTES[series]}")
    print(f"{'bytes':>10}{'ours us':>12}{peer:>14}   {'ratio [spread]':<26}{'limit':>6}  verdict")
    for size, row in sorted(rows.items()):
        limit = limit_of(series, size)
        verdict = VERDICT_WORDS[None if limit is None else row.ratio <= limit]
        spread = f"{row.ratio:.3f} [{row.low:.3f}, {row.high:.3f}]"
        limit_text = "-" if limit is None else f"{limit:.2f}"
        print(f"{size_text(size):>10}{row.ours_us:>12.2f}{row.peer_us:>14.2f}   {spread:<26}{limit_text:>6}  {verdict}")


def print_report(report: Report) -> None:
    for series, rows in report.results.items():
        print_series(series, rows)
    print(f"\n# Targets, {report.ranks} ranks")
    for text, verdict in report.verdicts().items():
        print(f"{text:<51}{VERDICT_WORDS[verdict.met]:<8}{verdict.remark}")
    for note in (*report.notes, *(f"PROBLEM: {problem}" for problem in report.problems)):
        print(f"# {note}")
    print(f"# {report.seconds:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"), help="bin/ and apps/ are in it")
    parser.add_argument("--mpich", type=Path, default=Path(".venv"), help="bin/mpiexec and lib/ of MPICH are in it")
    parser.add_argument("--nccl", type=Path, help="folder with libnccl.so.2, before all others")
    parser.add_argument("--launcher", help="launch command instead of --mpich's, with its number of ranks")
    parser.add_argument("--ranks", type=int, default=0, help="as many as GPUs, unless given")
    parser.add_argument("--quick", action="store_true", help="a third of the sizes, once, and ten of the fifty sums")
    parser.add_argument("--repeats", type=int, default=0, help="launches of each test (3, or 1 with --quick)")
    parser.add_argument("--max-size", type=parse_size, default=GIB, help="largest size (all)")
    parser.add_argument("--max-time", type=float, default=0.3, help="seconds for a contender and size (0.3)")
    parser.add_argument("--limit", type=float, default=150, help="seconds for a launch (150)")
    parser.add_argument("--budget", type=float, default=540, help="seconds for everything (540)")
    parser.add_argument("--only", default="", help="only tests whose name contains this text")
    parser.add_argument("--json", type=Path, help="everything that was found, as JSON")
    parser.add_argument("--emulate", help="on emulated GPUs: cuda:4 or hip:4")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="judges what --json wrote, and runs nothing")
    arguments = parser.parse_args()
    for name in ("build", "mpich", "nccl"):
        folder = getattr(arguments, name)
        setattr(arguments, name, folder.absolute() if folder is not None else None)

    report = Report.from_json(json.loads(arguments.judge.read_text())) if arguments.judge else measure_all(arguments)
    print_report(report)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    return 1 if report.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
