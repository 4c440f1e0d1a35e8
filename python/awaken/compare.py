# SPDX-License-Identifier: Apache-2.0
"""`awaken compare OLD NEW`: what has become faster or slower, test by test and size by size. docs/reports.md
describes it.

The rule. Each size of each series has a value and a range. The range is the smallest that holds, over all files of
one side, the 95 % intervals of the medians and the medians of consecutive fifths of each run: the interval alone
takes samples for independent, which those of one run are not. A size has changed when the two ranges do not overlap
and the values differ by more than the threshold. A value without a range (of a single log) is its own range, and the
larger threshold for logs holds then. What logs tell of the least and the largest rank or call is no such range: a
broadcast's root returns at once, so that its ranks are further apart than any two runs.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from awaken import input_files, markdown_page, output_files, terminal, units
from awaken.command_line import Parser
from awaken.curves import plural
from awaken.output_files import Misuse
from awaken.readers.source import clean
from awaken.report import from_files
from awaken.report_data import Report
from awaken.results import (
    BANDWIDTH,
    FAILURES,
    INTERVAL_OF_MEDIAN,
    REFUSED,
    TIME,
    WORKS,
    Conformance,
    Matrix,
    Point,
    Series,
)

WORSE_STATUS, USAGE_ERROR = 1, 2
THRESHOLD, LOG_THRESHOLD = 0.05, 0.10
SMALLEST_TOLD_GBPS = 1e-5
"""Logs print bandwidths as MB/s with two digits after the point: 0.00 may have been nearly so much."""
SCHEMA, VERSION = "awaken-compare", 1

SAME, BETTER, WORSE, BROKEN, GONE, NEW = "same", "better", "worse", "broken", "gone", "new"
"""BROKEN: it ran and its data were right, and now it cannot run or they are wrong. GONE and NEW: measured on one
side only."""

Key = tuple[str, str, str, Optional[int], str, str, str]
"""Test, implementation, ranks, type, buffers, mode."""

MatrixKey = tuple[str, bool, str]
"""MPI, whether its GPUs are emulated, title."""
Cells = dict[tuple[str, str], tuple[str, str]]
"""Of a conformance matrix: outcome and remark, by function and kind of buffer."""

EPILOG = """A change counts when the ranges of old and new do not overlap and the values differ by more than the
threshold. A range is the 95 % interval of the median, widened by the medians of each run's fifths and by repeated
runs. OLD and NEW may be folders of awaken report, or several files separated by commas (repeated runs).

Exit status: 0 when nothing is worse, 1 when something is (slower, wrong data, or it cannot run any more), 2 for
wrong use."""


@dataclass(frozen=True)
class Range:
    """What a side measured at one size: the median of its values, and how far it reaches."""

    value: float
    low: float | None
    high: float | None
    wrong: bool

    @property
    def reach(self) -> tuple[float, float]:
        """The value alone where no range is known."""
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Change:
    """One size of one series, old and new; or a series that is only on one side."""

    name: str
    quantity: str
    size_bytes: int | None
    old: Range | None
    new: Range | None
    verdict: str
    remark: str = ""

    @property
    def ratio(self) -> float | None:
        """New time to old time: above 1 is slower. Bandwidths are turned round."""
        if self.old is None or self.new is None or not self.old.value or not self.new.value:
            return None
        ratio = self.new.value / self.old.value
        return 1 / ratio if self.quantity == BANDWIDTH else ratio


@dataclass
class Side:
    """All series of one side, by what is the same in them."""

    series: dict[Key, list[Series]] = field(default_factory=dict)
    conformance: dict[MatrixKey, list[Conformance]] = field(default_factory=dict)
    matrices: dict[str, list[Matrix]] = field(default_factory=dict)
    """Of topologies, by what they measure."""
    sources: list[str] = field(default_factory=list)
    steps: set[str] = field(default_factory=set)
    """Names of its files without ending: in a folder of `awaken report`, those of its measurements."""
    failed_steps: dict[str, str] = field(default_factory=dict)
    """Measurements of such a folder that left no result, and why."""


def key_of(series: Series, own_labels: Iterable[str]) -> Key:
    # The label of a log is its file's name, which differs between old and new though nothing else does.
    implementation = "log" if series.implementation in own_labels else series.implementation
    mode = ", ".join(filter(None, [plural(series.nodes, "node"), series.mode]))
    return series.test, series.quantity, implementation, series.ranks, series.type, series.buffers, mode


def name_of(key: Key) -> str:
    test, _, implementation, ranks, datatype, buffers, mode = key
    parts = [test, implementation, f"{ranks} ranks" if ranks else "", datatype, buffers, mode]
    return ", ".join(part for part in parts if part)


def side_of(report: Report) -> Side:
    side = Side(failed_steps=report.failed_steps)
    for document in report.documents:
        side.sources.append(document.path)
        side.steps.add(Path(document.path).stem)
        tables: dict[Key, int] = {}
        for one in document.series:
            key = key_of(one, (document.label,))
            tables[key] = tables.get(key, 0) + 1
            # A log that does not tell the ranks may have a table for each number of them.
            if one.ranks is None and tables[key] > 1:
                key = (*key[:-1], f"{key[-1]}{', ' if key[-1] else ''}table {tables[key]} of the log")
            side.series.setdefault(key, []).append(one)
        for topology in document.topologies:
            for figures in topology.matrices:
                side.matrices.setdefault(figures.key or figures.title, []).append(figures)
        for doctor in document.doctors:
            for matrix in doctor.conformance:
                side.conformance.setdefault((doctor.mpi, doctor.emulated, matrix.title), []).append(matrix)
    return side


# ----------------------------------------------------------------------------------------------------------- the rule


def ranges(series: Sequence[Series]) -> dict[int, Range]:
    """By size, over all runs of one side."""
    points: dict[int, list[Point]] = {}
    for one in series:
        for point in one.points:
            known = point
            if one.band != INTERVAL_OF_MEDIAN and (point.low is not None or point.high is not None):
                known = replace(point, low=None, high=None)
            points.setdefault(point.size_bytes, []).append(known)
    return {size_bytes: _range(group) for size_bytes, group in points.items()}


def _range(points: Sequence[Point]) -> Range:
    if len(points) == 1 and points[0].low is None and not points[0].drift:  # as all of a log's, which may be millions
        return Range(points[0].value, None, None, bool(points[0].errors))
    reached = [end for point in points for end in (point.low, point.high, *point.drift) if end is not None]
    if len(points) > 1:
        reached += [point.value for point in points]
    value = statistics.median(point.value for point in points)
    low, high = (min(reached), max(reached)) if len(reached) > 1 else (None, None)
    return Range(value, low, high, any(point.errors for point in points))


def judge(old: Range, new: Range, quantity: str, threshold: float, log_threshold: float) -> str:
    """SAME, BETTER, WORSE or BROKEN, by the rule at the head of this file."""
    if new.wrong and not old.wrong:
        return BROKEN
    if quantity == TIME and not (old.value and new.value):
        return SAME  # a log that prints 0.00 us tells nothing about how far it is from another
    least, most = sorted((old.value, new.value))
    apart = most / (least or SMALLEST_TOLD_GBPS) - 1
    known = old.low is not None and new.low is not None
    overlap = new.reach[0] <= old.reach[1] and old.reach[0] <= new.reach[1]
    if overlap or apart <= (threshold if known else log_threshold):
        return SAME
    more = new.value > old.value
    return BETTER if more == (quantity == BANDWIDTH) else WORSE


def changes(old: Side, new: Side, threshold: float = THRESHOLD, log_threshold: float = LOG_THRESHOLD) -> list[Change]:
    """Every size of every series, in the order of the old side; then what only the new one has."""
    found: list[Change] = []
    for key in dict.fromkeys([*old.series, *new.series]):
        before, after = old.series.get(key, []), new.series.get(key, [])
        quantity = next((one.quantity for one in (*before, *after) if one.points), TIME)
        before_ranges, after_ranges = ranges(before), ranges(after)
        name = name_of(key)
        if before_ranges and not after_ranges:
            reason = next((one.unavailable for one in after if one.unavailable), "")
            found.append(Change(name, quantity, None, None, None, BROKEN if reason else GONE, reason))
            continue
        if after_ranges and not before_ranges:
            found.append(Change(name, quantity, None, None, None, NEW))
            continue
        for size_bytes in sorted({*before_ranges, *after_ranges}):
            first, second = before_ranges.get(size_bytes), after_ranges.get(size_bytes)
            if first is not None and second is not None:
                verdict = judge(first, second, quantity, threshold, log_threshold)
            else:
                verdict = GONE if second is None else NEW
            found.append(Change(name, quantity, size_bytes, first, second, verdict))
    found += matrix_changes(old, new, threshold, log_threshold)
    return found + conformance_changes(old, new) + failures(old, new)


def matrix_changes(old: Side, new: Side, threshold: float, log_threshold: float) -> list[Change]:
    """Every pair of devices of every matrix of a topology. A remark says where another engine made the copies."""
    found = []
    for key in dict.fromkeys([*old.matrices, *new.matrices]):
        before, after = old.matrices.get(key, []), new.matrices.get(key, [])
        one = (before + after)[0]
        if not one.unit:
            continue
        quantity = TIME if one.less_is_better else BANDWIDTH
        if not before or not after:
            found.append(Change(one.title, quantity, None, None, None, NEW if after else GONE))
            continue
        other = before[0].title != after[0].title
        remark = f"{before[0].title} before, {after[0].title} now" if other else ""
        first, second = pair_ranges(before), pair_ranges(after)
        for pair in dict.fromkeys([*first, *second]):
            sides = first.get(pair), second.get(pair)
            if sides[0] is not None and sides[1] is not None:
                verdict = judge(sides[0], sides[1], quantity, threshold, log_threshold)
            else:
                verdict = GONE if sides[0] else NEW
            found.append(Change(f"{key}, {pair[0]} and {pair[1]}", quantity, None, *sides, verdict, remark))
    return found


def pair_ranges(matrices: Sequence[Matrix]) -> dict[tuple[str, str], Range]:
    """By row and column, over all files of one side."""
    points: dict[tuple[str, str], list[Point]] = {}
    for matrix in matrices:
        for row, cells in zip(matrix.rows, matrix.cells):
            for column, cell in zip(matrix.columns, cells):
                if cell.value is not None:
                    points.setdefault((row, column), []).append(Point(0, cell.value, cell.low, cell.high))
    return {pair: _range(group) for pair, group in points.items()}


def failures(old: Side, new: Side) -> list[Change]:
    """Measurements that the old side has and that failed on the new one, whatever they would have told."""
    return [
        Change(f"measurement {step}", TIME, None, None, None, BROKEN, problem)
        for step, problem in new.failed_steps.items()
        if step in old.steps and step not in old.failed_steps
    ]


def same_matrices(old: Iterable[MatrixKey], new: Iterable[MatrixKey]) -> dict[MatrixKey, MatrixKey]:
    """The keys of matrices that belong together: those of the same MPI; or, if there is but one to choose from, of
    another version of it."""
    pairs = {key: key for key in old if key in set(new)}
    left, right = ([key for key in side if key not in pairs] for side in (old, new))

    def product(key: MatrixKey) -> MatrixKey:
        return (re.sub(r"\s+v?\d.*", "", key[0]), *key[1:])

    for key in left:
        others = [other for other in right if product(other) == product(key)]
        if len(others) == 1 and [product(one) for one in left].count(product(key)) == 1:
            pairs[key] = others[0]
    return pairs


def conformance_changes(old: Side, new: Side) -> list[Change]:
    """Calls that worked and do no more, or the other way round; and matrices that are on one side only."""
    pairs = same_matrices(old.conformance, new.conformance)
    found = []
    for key, matrices in old.conformance.items():
        if key in pairs:
            found += cell_changes(matrix_name(key), cells(matrices), cells(new.conformance[pairs[key]]))
        else:
            found.append(Change(f"conformance matrix {matrix_name(key)}", TIME, None, None, None, GONE))
    alone = [key for key in new.conformance if key not in pairs.values()]
    return found + [Change(f"conformance matrix {matrix_name(key)}", TIME, None, None, None, NEW) for key in alone]


def matrix_name(key: MatrixKey) -> str:
    mpi, emulated, title = key
    return ", ".join(part for part in (title, mpi, "emulated GPUs" if emulated else "") if part)


def cells(matrices: Sequence[Conformance]) -> Cells:
    """Of repeated runs, what was worst: a call works when it always did."""
    worst: Cells = {}
    for matrix in matrices:
        for place, cell in matrix.cells.items():
            if place not in worst or _standing(cell[0]) < _standing(worst[place][0]):
                worst[place] = cell
    return worst


def _standing(outcome: str) -> int:
    return 2 if outcome == WORKS else 0 if outcome in FAILURES else 1


def cell_changes(name: str, old: Cells, new: Cells) -> list[Change]:
    found = []
    for place in dict.fromkeys([*old, *new]):
        before, after = old.get(place), new.get(place)
        verdict, remark = _cell_verdict(before, after)
        if verdict != SAME:
            found.append(Change(f"{place[0]} with {place[1]} memory, {name}", TIME, None, None, None, verdict, remark))
    return found


def _cell_verdict(old: tuple[str, str] | None, new: tuple[str, str] | None) -> tuple[str, str]:
    """Verdict and remark. A refusal, which the documentation announces, is less than to work and more than to fail;
    where there is no such call or memory, nothing can fail, but nothing works any more either."""
    before, (after, why) = old[0] if old else "", new or ("", "")
    if before == after:
        return SAME, ""
    if not before or not after:
        return (NEW if after == WORKS else GONE if before == WORKS else SAME), ""
    if before == WORKS or (before == REFUSED and after in FAILURES):
        return BROKEN, f"{after}{f': {why}' if why else ''}"
    if after == WORKS or (after == REFUSED and before in FAILURES):
        return BETTER, f"{before} before, {after} now"
    return SAME, ""


# ------------------------------------------------------------------------------------------------------------- output


def is_worse(change: Change) -> bool:
    return change.verdict in (WORSE, BROKEN)


def row(change: Change) -> tuple[str, ...]:
    size = "" if change.size_bytes is None else units.size(change.size_bytes)
    ratio = "" if change.ratio is None else f"{change.ratio:.3f}"
    values = [
        "" if side is None else units.of(change.quantity, side.value) + _range_text(side, change.quantity)
        for side in (change.old, change.new)
    ]
    return (change.verdict, change.name, size, *values, ratio, change.remark)


HEADER = ("verdict", "what", "size", "old", "new", "time ratio", "")


def _range_text(side: Range, quantity: str) -> str:
    if side.low is None or side.high is None:
        return ""
    return f" [{units.of(quantity, side.low)}, {units.of(quantity, side.high)}]"


def summary(found: Sequence[Change]) -> str:
    counts = {
        verdict: sum(change.verdict == verdict for change in found)
        for verdict in (WORSE, BROKEN, BETTER, SAME, GONE, NEW)
    }
    return ", ".join(
        f"{number} {verdict}" for verdict, number in counts.items() if number or verdict in (WORSE, BETTER, SAME)
    )


def as_text(found: Sequence[Change], everything: bool) -> str:
    shown = [row(change) for change in _shown(found, everything)]
    if not shown:
        return summary(found) + "\n"
    lines = [HEADER, *shown]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([*text, "", summary(found)]) + "\n"


def _shown(found: Sequence[Change], everything: bool) -> list[Change]:
    """What is worse first. Sizes that did not change only when everything is asked for."""
    order = {BROKEN: 0, WORSE: 1, GONE: 2, BETTER: 3, NEW: 4, SAME: 5}
    return sorted((one for one in found if everything or one.verdict != SAME), key=lambda one: order[one.verdict])


def as_markdown(found: Sequence[Change], everything: bool) -> str:
    shown = [row(change) for change in _shown(found, everything)]
    head = f"**{summary(found)}**\n"
    return head + (f"\n{markdown_page.table(HEADER, shown)}\n" if shown else "")


def as_json(found: Sequence[Change], old: Side, new: Side, threshold: float, log_threshold: float) -> str:
    """Schema "awaken-compare", version 1."""

    def side(value: Range | None) -> dict[str, object] | None:
        return (
            None
            if value is None
            else {"value": value.value, "low": value.low, "high": value.high, "wrong": value.wrong}
        )

    return (
        json.dumps(
            {
                "schema": SCHEMA,
                "version": VERSION,
                "old": old.sources,
                "new": new.sources,
                "threshold": threshold,
                "log_threshold": log_threshold,
                "worse": any(is_worse(change) for change in found),
                "changes": [
                    {
                        "name": change.name,
                        "quantity": "GBps" if change.quantity == BANDWIDTH else "us",
                        "size": change.size_bytes,
                        "verdict": change.verdict,
                        "time_ratio": change.ratio,
                        "old": side(change.old),
                        "new": side(change.new),
                        "remark": change.remark,
                    }
                    for change in found
                ],
            },
            indent=1,
        )
        + "\n"
    )


# ------------------------------------------------------------------------------------------------------------ command


def percentage(word: str) -> float:
    """0.05 and 5% are the same."""
    try:
        value = float(word[:-1]) / 100 if word.endswith("%") else float(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{word} is not a fraction: write 0.05 or 5%") from error
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{word} is out of range: write a part such as 0.05 or 5%")
    return value


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="awaken compare",
        description="Says what has become faster or slower between two measurements.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("old", metavar="OLD", help="file, folder, or files separated by commas")
    made.add_argument("new", metavar="NEW", help="the same, measured later")
    made.add_argument(
        "--threshold", type=percentage, default=THRESHOLD, metavar="PART", help="least change (default: 5%%)"
    )
    made.add_argument(
        "--log-threshold",
        type=percentage,
        default=LOG_THRESHOLD,
        metavar="PART",
        help="the same without ranges (default: 10%%)",
    )
    made.add_argument("--all", action="store_true", help="list sizes that did not change, too")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    made.add_argument("-o", "--output", metavar="FILE", help="write into a file instead")
    return made


def load(word: str) -> Side:
    """Raises Misuse when anything cannot be read: what is missing must not look like no change. What is left out of a
    file is told on stderr."""
    report = from_files([word] if input_files.is_there(Path(word)) else word.split(","), "")
    if report.problems:
        raise Misuse("; ".join(f"{file}: {problem}" for file, problem in report.problems))
    if not report.documents and not report.failed_steps:
        raise Misuse(f"{clean(word)} has no results: give JSON of awaken bench, logs, or a folder of awaken report")
    for document in report.documents:
        for note in document.notes:
            print(f"awaken: {note}", file=sys.stderr)
    return side_of(report)


def run(words: Sequence[str]) -> int:
    """The command; `words` are those after `awaken compare`. Returns the exit status."""
    options = parser().parse_args(list(words))
    try:
        if options.output:
            output_files.check(options.output)
        old, new = load(options.old), load(options.new)
        found = changes(old, new, options.threshold, options.log_threshold)
        if not (
            any(change.old is not None and change.new is not None for change in found)
            or same_matrices(old.conformance, new.conformance)
            or any(is_worse(change) for change in found)
        ):
            raise Misuse(
                "the two have no test in common: compare the same tests with the same ranks, types and buffers"
            )
        if options.json:
            text = as_json(found, old, new, options.threshold, options.log_threshold)
        else:
            text = (as_markdown if options.markdown else as_text)(found, options.all)
        if options.output:
            output_files.write(options.output, text)
    except Misuse as error:
        print(f"awaken: {error}", file=sys.stderr)
        return USAGE_ERROR
    if not options.output:
        if not (options.json or options.markdown):
            text = terminal.painted(
                text, red=r"^(worse|broken)\b|\b[1-9]\d* (worse|broken)\b", green=r"^better\b|\b[1-9]\d* better\b"
            )
        sys.stdout.write(text)
    return WORSE_STATUS if any(is_worse(change) for change in found) else 0
