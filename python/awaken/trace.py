# SPDX-License-Identifier: Apache-2.0
"""`awaken trace`: joins the traces of a job's ranks, sums them up as a table of wall-clock times, and draws them.

The files are what AWAKEN_TRACE writes (docs/trace.md): JSON in Chrome's trace format with one event to a line, which
lets a large trace be read without holding all of its text in memory. They come from outside, so nothing in them is
taken on trust.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from awaken import output_files, timeline
from awaken.command_line import Parser
from awaken.input_files import NoRegularFile, files_in, is_folder, is_there, open_regular
from awaken.plain_text import clean
from awaken.readers.trace import START

NOT_JOINED, USAGE_ERROR = 1, 2

HEAD = '{"awakenTrace":'
EVENTS = ',"displayTimeUnit":"ns","traceEvents":['
TAIL = "]}"
VERSION = 1

LONGEST_LINE = 64 << 20
"""Bytes. The longest is the first of a joined trace, which describes each rank in some hundred of them."""
MOST_CALLS = 1 << 48
"""Polls that are one event; a number beyond that is none that was counted."""

LONGEST_NAME = 80
"""In a table, of a range that the program named, say."""

KINDS = ("range", "mpi", "nonblocking", "copy", "kernel", "background")
"""The categories of events, in the order of the tables."""
KIND_TITLES = {
    "range": "range",
    "mpi": "MPI call",
    "nonblocking": "operation",
    "copy": "GPU copy",
    "kernel": "GPU kernel",
    "background": "background",
}


class TraceError(Exception):
    """A trace that cannot be used: what is wrong, and what to do."""


class Event(NamedTuple):
    """Something that took time. Times are seconds since the first rank began."""

    kind: str
    name: str
    row: int
    begin: float
    end: float
    arguments: dict[str, Any]


@dataclass
class Times:
    """Wall-clock seconds of everything of one kind and name."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = 0.0
    bytes: int = 0
    paths: set[str] = field(default_factory=set)

    def add(self, event: Event) -> None:
        calls = event.arguments.get("calls")
        calls = calls if isinstance(calls, int) and not isinstance(calls, bool) and 0 < calls <= MOST_CALLS else 1
        self.count += calls
        self.total += event.end - event.begin
        # Of polls that are one event, it is not known how long each took.
        seconds = (event.end - event.begin) / calls
        self.least = min(self.least, seconds)
        self.most = max(self.most, seconds)
        size = event.arguments.get("bytes")
        if isinstance(size, int) and not isinstance(size, bool):
            self.bytes += size
        path = event.arguments.get("path", event.arguments.get("by"))
        if isinstance(path, str):
            self.paths.add(path)

    def merge(self, other: Times) -> None:
        self.count += other.count
        self.total += other.total
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)
        self.bytes += other.bytes
        self.paths |= other.paths

    def as_json(self, kind: str, name: str) -> dict[str, Any]:
        return {
            "kind": kind,
            "name": name,
            "paths": sorted(self.paths),
            "count": self.count,
            "bytes": self.bytes,
            "total_s": self.total,
            "mean_s": self.total / self.count,
            "min_s": self.least,
            "max_s": self.most,
        }


Table = dict[tuple[str, str], Times]


@dataclass
class RankTrace:
    """What one rank did. `rank` is -1 for a process without MPI_COMM_WORLD."""

    rank: int
    head: dict[str, Any]
    times: Table = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    """Only where they were asked for: a rank may have a million, of about a kilobyte each."""
    rows: dict[int, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"rank {self.rank}" if self.rank >= 0 else f"process {self.head['process']}"


# ------------------------------------------------------------------------------------------------------------- reading


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} is not a number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{what} is out of range") from None
    if not math.isfinite(number):
        raise ValueError(f"{what} is out of range")
    return number


def _integer(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{what} is not a whole number")
    return value


def _string(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a text")
    return value


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def _head(value: object) -> dict[str, Any]:
    """The description of a rank, checked as far as it is used."""
    head = _object(value, "the head")
    if head.get("version") != VERSION:
        raise ValueError(f"version {head.get('version')!r} of the format is not known here")
    if head.get("rank") is not None and not 0 <= _integer(head["rank"], "the rank") < 2**31:
        raise ValueError("the rank is out of range")
    _integer(head.get("ranks"), "the number of ranks")
    _integer(head.get("process"), "the process")
    _string(head.get("host"), "the host")
    if _integer(head.get("dropped"), "the number of dropped events") < 0:
        raise ValueError("the number of dropped events is negative")
    if not isinstance(head.get("complete"), bool):
        raise ValueError("it does not say whether it is complete")
    return head


class _Reader:
    """Turns lines into events."""

    def __init__(self, keep: bool) -> None:
        self._keep = keep
        self.line = 1
        self.ranks: dict[int, RankTrace] = {}
        self._open: dict[tuple[int, str], tuple[str, int, float, dict[str, Any]]] = {}

    def add_rank(self, head: dict[str, Any]) -> None:
        rank = head["rank"]
        process = head["process"] if rank is None else rank
        if process in self.ranks:
            raise ValueError(f"rank {process} is there twice")
        self.ranks[process] = RankTrace(-1 if rank is None else rank, head)

    def add(self, line: str) -> None:
        event = _object(_parse(line), "an event")
        phase = event.get("ph")
        process = _integer(event.get("pid"), "the pid of an event")
        trace = self.ranks.get(process)
        if trace is None:
            raise ValueError(f"an event of pid {process}, which is not a rank of this trace")
        name = _string(event.get("name"), "the name of an event")
        if phase == "M":
            if name == "thread_name":
                arguments = _object(event.get("args"), "the args of an event")
                row = _integer(event.get("tid"), "the tid of an event")
                trace.rows[row] = _string(arguments.get("name"), "the name of a row")
            return
        begin = _number(event.get("ts"), "the ts of an event") * 1e-6
        row = _integer(event.get("tid"), "the tid of an event")
        kind = _string(event.get("cat"), "the cat of an event")
        if kind not in KINDS:
            raise ValueError(f"an event of the unknown category {kind[:40]!r}")
        if phase == "X":
            length = _number(event.get("dur"), "the dur of an event") * 1e-6
            if length < 0:
                raise ValueError("an event ends before it begins")
            arguments = _object(event.get("args", {}), "the args of an event")
            self._take(trace, Event(kind, name, row, begin, begin + length, arguments))
        elif phase == "b":
            number = _string(event.get("id"), "the id of an event")
            arguments = _object(event.get("args", {}), "the args of an event")
            self._open[process, number] = (name, row, begin, arguments)
        elif phase == "e":
            number = _string(event.get("id"), "the id of an event")
            started = self._open.pop((process, number), None)
            if started is None:
                raise ValueError(f"operation {number[:40]} ends without a begin")
            if begin < started[2]:
                raise ValueError("an event ends before it begins")
            self._take(trace, Event(kind, started[0], started[1], started[2], begin, started[3]))
        else:
            raise ValueError(f"an event of the unknown phase {phase!r}")

    def _take(self, trace: RankTrace, event: Event) -> None:
        trace.times.setdefault((event.kind, event.name), Times()).add(event)
        if self._keep:
            trace.events.append(event)

    def finish(self) -> None:
        if self._open:
            (_, number), _ = next(iter(self._open.items()))
            raise ValueError(f"operation {number[:40]} has no end")


def _lines(path: Path) -> Iterator[str]:
    """Raises OSError, NoRegularFile, and ValueError where a line is none of a trace."""
    with open_regular(path) as stream:
        while line := stream.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise ValueError(f"the line after it has more than {LONGEST_LINE} bytes")
            yield line.decode("utf-8").rstrip("\r\n")


def _read_lines(reader: _Reader, lines: Iterator[str]) -> None:
    """Gives the reader all lines of a file. Throws ValueError."""
    first = next(lines, "")
    if not (first.startswith(HEAD) and first.endswith(EVENTS)):
        raise ValueError("it does not begin as one")
    head = _object(_parse(first[len(HEAD) : -len(EVENTS)]), "the head")
    heads = head.get("merged", [head])
    if not isinstance(heads, list) or not heads:
        raise ValueError("it names no ranks")
    for one in heads:
        reader.add_rank(_head(one))
    for line in lines:
        reader.line += 1
        if line == TAIL:
            break
        reader.add(line.removesuffix(","))
    else:
        raise ValueError("it ends too early: its rank was ended while it wrote, or the disk was full")
    if any(lines):
        raise ValueError("something follows its end")
    reader.finish()


def _shown(path: Path) -> str:
    return clean(str(path), 400)


def read_file(path: Path, keep: bool = False) -> list[RankTrace]:
    """The ranks of one file, which is that of one rank or of several that were joined, with all events if they are to
    be kept. Throws TraceError."""
    reader = _Reader(keep)
    try:
        _read_lines(reader, _lines(path))
    except OSError as error:
        raise TraceError(f"{_shown(path)} cannot be read: {error.strerror}") from None
    except NoRegularFile as error:
        raise TraceError(f"{_shown(path)} cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{_shown(path)} is not a trace of Awaken: it is not UTF-8 text") from None
    except ValueError as error:
        why = clean(str(error))
        raise TraceError(f"{_shown(path)} is not a trace of Awaken: line {reader.line}: {why}") from None
    return list(reader.ranks.values())


@dataclass
class Job:
    """The traces of a job's ranks, by rank."""

    ranks: list[RankTrace]
    files: list[Path]
    remarks: list[str]


def read(path: Path, keep: bool = False) -> Job:
    """All ranks of a folder, or of a single file, with all events if they are to be kept. Throws TraceError; what is
    merely missing is remarked."""
    if is_folder(path):
        try:
            files = files_in(path, "rank-*.json", "process-*.json") or files_in(path, "trace.json")
        except OSError as error:
            raise TraceError(f"{_shown(path)} cannot be read: {error.strerror}") from None
        if not files:
            raise TraceError(
                f"{_shown(path)} holds no trace: give the folder that AWAKEN_TRACE named, or one of its files"
            )
    else:
        files = [path]
    ranks: dict[int, RankTrace] = {}
    others: list[RankTrace] = []
    for file in files:
        for trace in read_file(file, keep):
            if trace.rank < 0:
                others.append(trace)
            elif trace.rank in ranks:
                raise TraceError(
                    f"{_shown(file)} is of rank {trace.rank}, as another file of the folder is: "
                    "keep each run in its own folder"
                )
            else:
                ranks[trace.rank] = trace
    found = [ranks[rank] for rank in sorted(ranks)] + others
    return Job(found, files, _remarks(found))


def _remarks(traces: Sequence[RankTrace]) -> list[str]:
    remarks: list[str] = []
    ranks = {trace.rank for trace in traces if trace.rank >= 0}
    expected = max((trace.head["ranks"] for trace in traces), default=0)
    missing = expected - len(ranks)
    if missing > 0:
        named = [rank for rank in range(min(expected, 100_000)) if rank not in ranks]
        listed = ", ".join(map(str, named[:8])) + (", ..." if missing > 8 else "")
        remarks.append(f"{missing} of {expected} ranks are missing: {listed}")
    for trace in traces:
        if trace.head["dropped"]:
            remarks.append(f"{trace.title} lacks its last {trace.head['dropped']} events (AWAKEN_TRACE_LIMIT)")
        if not trace.head["complete"]:
            remarks.append(f"{trace.title} did not reach MPI_Finalize")
    return remarks


def join(files: Sequence[Path], path: Path) -> None:
    """Writes the files, which read() has found to be good, as one trace. Nothing is left of it when that fails."""
    heads: list[str] = []
    for file in files:
        head = next(_lines(file))[len(HEAD) : -len(EVENTS)]
        merged = _parse(head).get("merged")
        heads += [json.dumps(one) for one in merged] if merged else [head]
    try:
        with output_files.replacing(path) as stream:
            stream.write(f'{HEAD}{{"version":1,"ranks":{len(heads)},"merged":[{",".join(heads)}]}}{EVENTS}')
            separator = "\n"
            for file in files:
                for line in list_events(file):
                    stream.write(separator + line)
                    separator = ",\n"
            stream.write(f"\n{TAIL}\n")
    except OSError as error:
        raise TraceError(f"{_shown(path)} cannot be written: {error.strerror}") from None


def list_events(file: Path) -> Iterator[str]:
    """The events of a file as they are, without the commas between them."""
    lines = _lines(file)
    next(lines)
    for line in lines:
        if line == TAIL:
            return
        yield line.removesuffix(",")


# --------------------------------------------------------------------------------------------------------------- table


def over_ranks(tables: Iterable[Table]) -> Table:
    """The count and the total are sums over the ranks."""
    sums: Table = {}
    for table in tables:
        for key, times in table.items():
            sums.setdefault(key, Times()).merge(times)
    return in_order(sums)


def in_order(table: Table) -> Table:
    """By kind; what takes longest comes first in its kind."""
    return dict(sorted(table.items(), key=lambda item: (KINDS.index(item[0][0]), -item[1].total, item[0][1])))


def table_text(table: Table) -> str:
    titles = ("kind", "name", "path", "count", "total (s)", "mean (s)", "min (s)", "max (s)")
    rows: list[tuple[str, ...]] = [titles]
    for (kind, name), times in table.items():
        seconds = (times.total, times.total / times.count, times.least, times.most)
        rows.append(
            (
                KIND_TITLES[kind],
                clean(name, LONGEST_NAME),
                clean(" ".join(sorted(times.paths)), LONGEST_NAME),
                str(times.count),
                *(f"{value:.9f}" for value in seconds),  # the files have nanoseconds
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    left = 3
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )


def report_text(job: Job) -> str:
    tables = [in_order(trace.times) for trace in job.ranks]
    parts = [
        f"Wall clock over {len(job.ranks)} rank{'s' if len(job.ranks) != 1 else ''}",
        table_text(over_ranks(tables)),
    ]
    for trace, table in zip(job.ranks, tables):
        parts += ["", f"{trace.title} on {clean(trace.head['host'], LONGEST_NAME)}", table_text(table)]
    return "\n".join(parts)


def report_json(job: Job) -> str:
    tables = [in_order(trace.times) for trace in job.ranks]

    def rows(table: Table) -> list[dict[str, Any]]:
        return [times.as_json(kind, name) for (kind, name), times in table.items()]

    report = {
        "schema": "awaken-wall-clock",
        "version": 1,
        "remarks": job.remarks,
        "over_ranks": rows(over_ranks(tables)),
        "ranks": [{**trace.head, "times": rows(table)} for trace, table in zip(job.ranks, tables)],
    }
    return json.dumps(report, indent=1)


# ------------------------------------------------------------------------------------------------------------- command


def _window(text: str) -> tuple[float, float]:
    begin, colon, end = text.partition(":")
    try:
        window = (float(begin) * 1e-3, float(end) * 1e-3)
    except ValueError:
        window = (0.0, 0.0)
    if not colon or not math.isfinite(window[0]) or not math.isfinite(window[1]) or window[0] >= window[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not a window: write BEGIN:END in milliseconds, such as 12.5:14")
    return window


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="awaken trace",
        description="Joins the traces of a job's ranks (AWAKEN_TRACE), and prints their wall-clock times.",
        epilog="Perfetto (https://ui.perfetto.dev) and chrome://tracing show the joined trace. See docs/trace.md.",
    )
    parser.add_argument("path", type=Path, metavar="FOLDER", help="what AWAKEN_TRACE named, or one file of it")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--table", action="store_true", help="print the table of wall-clock times; this is the default")
    form.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the timeline instead of printing")
    parser.add_argument(
        "--window",
        type=_window,
        metavar="BEGIN:END",
        help="draw these milliseconds of it, counted from the start (default: all after MPI_Init)",
    )
    parser.add_argument(
        "--kinds",
        metavar="LIST",
        help=f"draw these kinds only, separated by commas: {', '.join(KINDS)}",
    )
    parser.add_argument("--title", help="of the picture")
    return parser


def _draw(job: Job, options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    kinds = tuple(options.kinds.split(",")) if options.kinds else KINDS
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        parser.error(f"there is no kind {unknown[0]!r}: the kinds are {', '.join(KINDS)}")
    lanes = [
        timeline.Lane(
            trace.title,
            [
                timeline.Bar(event.kind, event.name, trace.rows.get(event.row, ""), event.row, event.begin, event.end)
                for event in trace.events
                if event.kind in kinds
            ],
        )
        for trace in job.ranks
    ]
    application = None if options.window else _application(job)
    note = "MPI_Init is left out" if application else ""
    timeline.draw(lanes, options.window or application, options.title or "", note).save(options.picture)


def _application(job: Job) -> tuple[float, float] | None:
    """From when the last rank has left MPI_Init; None where nothing came after that."""
    events = [event for trace in job.ranks for event in trace.events]
    begin = max((event.end for event in events if event.name in START), default=0.0)
    end = max((event.end for event in events), default=0.0)
    return (begin, end) if 0.0 < begin < end else None


def run(arguments: Sequence[str]) -> int:
    """`awaken trace`; returns the exit status: 1 when the ranks cannot be joined, 2 for a trace that cannot be used."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.picture is None and (options.window or options.kinds or options.title):
        parser.error("--window, --kinds and --title are of --picture: name its file")
    try:
        if options.picture is not None:
            output_files.check(str(options.picture))
        job = read(options.path, keep=options.picture is not None)
        for remark in job.remarks:
            print(f"awaken: {remark}", file=sys.stderr)
        joined = options.path / "trace.json"
        status = 0
        if is_folder(options.path) and not is_there(joined):
            status = _join(job, joined)
        if options.picture is not None:
            _draw(job, options, parser)
        if options.json:
            print(report_json(job))
        elif options.table or options.picture is None:
            print(report_text(job))
    except (TraceError, output_files.Misuse) as error:
        print(f"awaken: {error}", file=sys.stderr)
        return USAGE_ERROR
    return status


def _join(job: Job, path: Path) -> int:
    """The exit status. Somebody else's folder, which can only be read, can be summed up and drawn all the same."""
    try:
        join(job.files, path)
    except TraceError as error:
        print(f"awaken: {error}; the ranks are not joined", file=sys.stderr)
        return NOT_JOINED
    print(f"awaken: {len(job.ranks)} ranks joined in {_shown(path)}", file=sys.stderr)
    return 0
