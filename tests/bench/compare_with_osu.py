#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the real OSU micro-benchmarks and `awaken bench` beside each other, and says where they differ.

Not part of the tests: it needs the OSU programs, built for the same MPI, and a quiet machine. Host buffers only.

    ./configure CC=mpicc CXX=mpicxx && make        # in the unpacked sources of the OSU micro-benchmarks, 7.4 or later
    tests/bench/compare_with_osu.py <folder of that build> --mpiexec <mpiexec of that MPI>

Both programs run with the same words under the same launcher, in turns, the first of each pair changing. Two things are
looked at for each benchmark:

  format   the header byte for byte, but for the version's number; in each row the sizes, the end of each column, the
           decimals and the Validation text.
  values   per size the median of all runs of each side, and the range of each. A size agrees where the ranges
           meet; a benchmark passes where at most one size in ten does not, which chance alone may cause.

With --calibrate the second side is the OSU program too: what is told then is the machine's own noise.

Exit status: 0 when every benchmark passes, 1 when one does not, 2 when nothing can be compared.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VARYING = re.compile(r"(?<= Test v)[\d.]+$|(?<=topology graph:)[\d.]+")
"""What may differ in a header: the version, and a time that some of them hold."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")
RESOLUTION = 0.01
"""Of the values, which have two decimals."""


class CompareError(Exception):
    """Why nothing can be compared, and what to do about it."""


@dataclass(frozen=True)
class Case:
    benchmark: str
    ranks: int
    arguments: tuple[str, ...]

    @property
    def title(self) -> str:
        return " ".join((f"osu_{self.benchmark}", *self.arguments)) + f", {self.ranks} ranks"


CASES = (
    Case("latency", 2, ("-m", "1:4194304")),
    Case("bw", 2, ("-m", "1:4194304")),
    Case("bibw", 2, ("-m", "1:4194304")),
    Case("mbw_mr", 2, ("-m", "1:1048576")),
    Case("multi_lat", 2, ("-m", "1:1048576")),
    Case("latency_persistent", 2, ("-m", "1:1048576")),
    Case("bw_persistent", 2, ("-m", "1:1048576")),
    Case("put_latency", 2, ("-m", "1:1048576")),
    Case("put_bw", 2, ("-m", "1:1048576")),
    Case("put_bibw", 2, ("-m", "1:1048576")),
    Case("get_latency", 2, ("-m", "1:1048576", "-s", "lock")),
    Case("get_bw", 2, ("-m", "1:1048576", "-s", "fence")),
    Case("acc_latency", 2, ("-T", "mpi_int", "-m", "4:1048576", "-w", "create")),
    Case("get_acc_latency", 2, ("-m", "1:65536")),
    Case("fop_latency", 2, ("-T", "mpi_int", "-w", "dynamic")),
    Case("cas_latency", 2, ("-T", "mpi_int", "-s", "lock_all")),
    Case("allreduce", 2, ("-T", "mpi_int", "-m", "4:1048576", "-f")),
    Case("reduce", 2, ("-T", "mpi_int", "-m", "4:1048576", "-f")),
    Case("alltoall", 2, ("-m", "1:1048576", "-f")),
    Case("allgather", 2, ("-m", "1:1048576", "-f")),
    Case("bcast", 2, ("-m", "1:1048576", "-f")),
    Case("barrier", 2, ("-f",)),
    Case("iallreduce", 2, ("-T", "mpi_int", "-m", "4:65536")),
    Case("ialltoall", 2, ("-m", "1:65536")),
    Case("allreduce_persistent", 2, ("-T", "mpi_int", "-m", "4:65536")),
    # Three ranks: on a ring of two, each neighbour is there twice, which not every version accepts.
    Case("neighbor_alltoall", 3, ("-m", "1:65536")),
)
"""The default type of reductions has changed from version to version, so it is given."""


# --------------------------------------------------------------------------------------------------------------- output


@dataclass(frozen=True)
class Row:
    size: str
    """The first column; empty for those benchmarks that have none."""
    shape: str
    """The row with its values made alike, whatever their length: see shape_of()."""
    value: float
    """The first value: latency in us, or bandwidth in MB/s."""


@dataclass(frozen=True)
class Output:
    header: tuple[str, ...]
    rows: tuple[Row, ...]


def shape_of(text: str) -> str:
    """Keeps where a column ends and its decimals, and forgets its value: "   12.34 Pass" gives "       9.99 Pass"."""

    def blank(match: re.Match[str]) -> str:
        whole, dot, decimals = match.group().partition(".")
        return "9".rjust(len(whole)) + dot + "9" * len(decimals)

    return NUMBER.sub(blank, text)


def parse(text: str) -> Output:
    """Splits an output into header and rows. Lines that are neither make it incomparable."""
    header: list[str] = []
    rows: list[Row] = []
    for line in text.splitlines():
        if not rows and not re.match(r" *\d", line):
            header.append(VARYING.sub("", line))
            continue
        with_size = re.match(r"(\d+)( +.*)$", line)
        size, rest = with_size.groups() if with_size else ("", line)
        value = NUMBER.search(rest)
        if value is None:
            raise CompareError(f"this line is no row of results: {line!r}")
        # The first column is left-aligned: its length says nothing, but where the next begins does.
        rows.append(Row(size, " " * len(size) + shape_of(rest), float(value.group())))
    if not rows:
        raise CompareError("there are no results in the output: " + repr(text[:200]))
    return Output(tuple(header), tuple(rows))


def differences(theirs: Output, ours: Output) -> list[str]:
    """In which points the format differs; empty when it does not."""
    if theirs.header != ours.header:
        return [f"header {theirs.header!r} is {ours.header!r}"]
    sizes = ([row.size for row in theirs.rows], [row.size for row in ours.rows])
    if sizes[0] != sizes[1]:
        return [f"sizes {' '.join(sizes[0])} are {' '.join(sizes[1])}"]
    pairs = zip(theirs.rows, ours.rows)
    return [f"row {a.size}: {a.shape!r} is {b.shape!r}" for a, b in pairs if a.shape != b.shape]


# --------------------------------------------------------------------------------------------------------------- values


@dataclass
class Samples:
    """The values of one size, over all runs."""

    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    @staticmethod
    def _range(values: Sequence[float]) -> tuple[float, float]:
        return min(values), max(values)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / max(statistics.median(self.theirs), RESOLUTION)

    @property
    def agree(self) -> bool:
        (their_low, their_high), (our_low, our_high) = self._range(self.theirs), self._range(self.ours)
        return our_low <= their_high + RESOLUTION and their_low <= our_high + RESOLUTION

    def line(self, size: str) -> str:
        cells = [size.rjust(9)]
        for values in (self.theirs, self.ours):
            low, high = self._range(values)
            cells.append(f"{statistics.median(values):12.2f}  [{low:10.2f} ..{high:10.2f}]")
        return "  ".join(cells) + f"  {self.ratio:6.3f}" + ("" if self.agree else "  differs")


@dataclass
class Verdict:
    case: Case
    format_problems: list[str] = field(default_factory=list)
    samples: dict[str, Samples] = field(default_factory=dict)
    problem: str = ""
    """Why it could not be compared at all."""

    @property
    def differing(self) -> list[str]:
        return [size for size, samples in self.samples.items() if not samples.agree]

    @property
    def values_pass(self) -> bool:
        return len(self.differing) <= len(self.samples) // 10

    @property
    def passes(self) -> bool:
        return not self.problem and not self.format_problems and self.values_pass

    @property
    def ratio(self) -> float:
        return statistics.geometric_mean(max(samples.ratio, 1e-9) for samples in self.samples.values())


# ----------------------------------------------------------------------------------------------------------------- runs


def run(command: Sequence[str], timeout_s: float) -> str:
    """Standard output of a job, which ends with this call."""
    environment = dict(os.environ)
    # Open MPI refuses to start as root, and more ranks than cores, unless it is told otherwise.
    environment.update(
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
    )
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise CompareError(f"{shlex.join(command)} did not end within {timeout_s:.0f} s") from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        raise CompareError(
            f"{shlex.join(command)} ended with status {process.returncode}: {(err or out).strip()[-400:]}"
        )
    return out


def find_programs(folder: Path) -> dict[str, Path]:
    """The OSU programs below a folder, by their names without "osu_"."""
    found = {}
    for path in sorted(folder.rglob("osu_*")):
        name = path.name.removeprefix("osu_")
        # A libtool wrapper beside .libs/osu_x starts it too, and a shell first.
        if path.is_file() and os.access(path, os.X_OK) and (name not in found or path.parent.name == ".libs"):
            found[name] = path
    if not found:
        raise CompareError(f"there is no executable osu_* below {folder}: name the folder of a finished build")
    return found


def compare(case: Case, theirs: Sequence[str], ours: Sequence[str], options: argparse.Namespace) -> Verdict:
    launcher = [options.mpiexec, "-n", str(case.ranks)]
    words = [*case.arguments, *(["-i", str(options.iterations)] if options.iterations else [])]
    verdict = Verdict(case)
    seen: set[str] = set()
    try:
        for repetition in range(options.repetitions):
            outputs = {}
            # Whoever comes second finds another machine: warmer, or throttled.
            for side in ("theirs", "ours") if repetition % 2 == 0 else ("ours", "theirs"):
                command = [*launcher, *(theirs if side == "theirs" else ours), *words]
                outputs[side] = parse(run(command, options.timeout))
            for problem in differences(outputs["theirs"], outputs["ours"]):
                if problem not in seen:
                    verdict.format_problems.append(problem)
                seen.add(problem)
            for side, output in outputs.items():
                for row in output.rows:
                    getattr(verdict.samples.setdefault(row.size, Samples()), side).append(row.value)
        if any(not samples.theirs or not samples.ours for samples in verdict.samples.values()):
            verdict.samples = {}
            raise CompareError("the two sides have not measured the same sizes")
    except CompareError as error:
        verdict.problem = str(error)
    return verdict


def report(verdict: Verdict, details: bool) -> None:
    print(f"\n{verdict.case.title}: {'pass' if verdict.passes else 'FAIL'}")
    if verdict.problem:
        print(f"    {verdict.problem}")
        return
    for problem in verdict.format_problems[:5]:
        print(f"    format: {problem}")
    if details or not verdict.values_pass:
        print("         size        OSU  [lowest   ..   highest]        ours  [lowest   ..   highest]   ratio")
        for size, samples in verdict.samples.items():
            print(samples.line(size or "-"))


def summary(verdicts: Sequence[Verdict], repetitions: int) -> None:
    print(f"\n{'benchmark':<24}{'ranks':>6}{'format':>9}{'sizes':>7}{'differ':>8}{'ours/OSU':>10}  verdict")
    for verdict in verdicts:
        case = verdict.case
        if verdict.problem:
            print(f"{case.benchmark:<24}{case.ranks:>6}{'-':>9}{'-':>7}{'-':>8}{'-':>10}  FAIL: not compared")
            continue
        print(
            f"{case.benchmark:<24}{case.ranks:>6}{'DIFFERS' if verdict.format_problems else 'same':>9}"
            f"{len(verdict.samples):>7}{len(verdict.differing):>8}{verdict.ratio:>10.3f}"
            f"  {'pass' if verdict.passes else 'FAIL'}"
        )
    print(f"\nours/OSU: geometric mean over the sizes of the ratio of medians, {repetitions} runs a side.")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("osu", type=Path, help="folder of a finished build of the OSU micro-benchmarks")
    parser.add_argument("--mpiexec", default="mpiexec", help="launcher of the MPI that build is for (default: mpiexec)")
    parser.add_argument(
        "--ours",
        default=f"{ROOT / '.venv' / 'bin' / 'awaken'} bench {{}} --native",
        help="our command, {} being the benchmark (default: %(default)s); without --native, through the layer",
    )
    parser.add_argument("--only", help="benchmarks, with commas between them (default: all)")
    parser.add_argument(
        "--repetitions", type=int, default=7, help="runs of each side (default: %(default)s; at least 4)"
    )
    parser.add_argument("--iterations", type=int, help="-i for both sides (default: each benchmark's own)")
    parser.add_argument(
        "--timeout", type=float, default=120, help="seconds that one run may take (default: %(default)s)"
    )
    parser.add_argument("--calibrate", action="store_true", help="compare the OSU programs with themselves")
    parser.add_argument("--details", action="store_true", help="print every size, not only those of failures")
    options = parser.parse_args()

    # As an exception, so that the job that is running ends with this program.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        if options.repetitions < 4:
            raise CompareError("a range needs at least --repetitions 4")
        if "{}" not in options.ours:
            raise CompareError("--ours has no {}: write it where the benchmark's name belongs")
        programs = find_programs(options.osu)
        wanted = options.only.split(",") if options.only else [case.benchmark for case in CASES]
        unknown = sorted(set(wanted) - {case.benchmark for case in CASES})
        if unknown:
            raise CompareError(f"--only {','.join(unknown)}: choose from {', '.join(case.benchmark for case in CASES)}")
        cases = [case for case in CASES if case.benchmark in wanted]
        missing = [case.benchmark for case in cases if case.benchmark not in programs]
        if missing:
            raise CompareError(f"{options.osu} has no osu_{missing[0]}: build it, or leave it out with --only")
    except CompareError as error:
        print(f"compare_with_osu: {error}", file=sys.stderr)
        return 2

    verdicts = []
    for case in cases:
        theirs = [str(programs[case.benchmark])]
        ours = (
            theirs if options.calibrate else [word.replace("{}", case.benchmark) for word in shlex.split(options.ours)]
        )
        verdicts.append(compare(case, theirs, ours, options))
        report(verdicts[-1], options.details)
        sys.stdout.flush()
    summary(verdicts, options.repetitions)
    return 0 if all(verdict.passes for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
