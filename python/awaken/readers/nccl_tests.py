# SPDX-License-Identifier: Apache-2.0
"""Output of nccl-tests and rccl-tests: all_reduce_perf and its siblings, as text.

    # nccl-tests version 2.19.6 nccl-headers=22807 nccl-library=22807          since 2.17
    # Collective test starting: all_reduce_perf                               since 2.17
    # nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 1 iters: 20 ...
    #  Rank  0 Group  0 Pid  14840 on node1 device  0 [0000:01:00] NVIDIA H200
    #                                                              out-of-place                       in-place
    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
       536870912     134217728     float     sum      -1   1806.7  297.16  586.06      0   1835.9  292.43  576.74      0

Older ones have no root column and "error" for "#wrong"; -I adds i_min, i_max, i_p99 and i_cv% to each half, -C says
cputime, -S ends rows with a timestamp; a half that was not run is blank or absent, #wrong is N/A without checks. Times
are those of one call out of many that are queued back to back, but for "# Blocking Enabled". GB is 10^9 bytes.

The first ones (2017 and 2018) have other names, and their times are milliseconds:

    nThread 1 nGpus 8 minBytes 9 maxBytes 33554432 step: 1048576(bytes) warmup iters: 5 iters: 20 validation: 1
    #      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
         1048576        262144   float     sum    0.553   1.90   3.56    4e-07    0.551   1.90   3.57    4e-07
     Out of bounds values : 0 OK

"error" and "res" are the largest difference from the right value, which sums of floats may have. Only the line "Out of
bounds values" tells whether it is too large; the tolerance for each type is that of the programs' source.

With -J there is JSON: "nccl_version", "config" with "devices", and "results" of "size", "type", "out_of_place" and
"in_place".

The size is that of the larger of both buffers. The OSU tests and `awaken bench` count what goes from one rank to one
other in allgather, alltoall, gather and scatter, so those sizes are divided by the number of ranks. Source: the
programs' source, version 2.19.6 and that of 2017, and printed outputs of those between.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from awaken.readers.source import Log, Notes, Value, clean, number, size
from awaken.results import TIME, UNKNOWN_TEST, Document, Point, Series

NAME = "nccl-tests"

PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|alltoallv?|broadcast|reduce_scatter|reduce|gather|scatter|sendrecv|hypercube)_perf\b"
)
OSU_NAMES = {"all_reduce": "allreduce", "all_gather": "allgather", "broadcast": "bcast"}
COUNTED_BY_RANK = {"allgather", "alltoall", "gather", "scatter"}
RANK_LINE = re.compile(r"^#?\s*Rank\s+(\d+) .*?\bdevice\s+\d+ \[[^\]]{0,40}\] (.*)")
VERSION = re.compile(r"nccl-tests version (\S+) (?:\S+ )?nccl-library=(\d+)")
COMPILED_WITH = re.compile(r"^#?\s*NCCL Tests compiled with NCCL ([\d.]{1,20})")
PARAMETERS = re.compile(r"nThread (\d{1,6}) nGpus? (\d{1,6})")
OUT_OF_BOUNDS = re.compile(r"^#?\s*Out of bounds values\s*:\s*(\d{1,18}) FAILED")
KEYS = {"size", "count", "type", "redop", "root"}
FIRST_NAMES = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
"""The names of columns in 2017 and 2018."""
FIGURE = re.compile(r"[+-]?(?:[\d.]|(?:nan|inf|N/A)$)", re.IGNORECASE)
"""What may stand in the place of a time, whether that can be read or not."""
TOLERANCES = {"half": 1e-2, "float": 1e-5, "double": 1e-12}
"""The difference that the programs allow for each rank but one; integers have none."""
MOST_RANKS = 1024
"""How many ranks the tolerance of a run is for whose number of ranks is not known."""


@dataclass
class Run:
    """One program's run, as far as it was read."""

    test: str = ""
    mode: str = "queued"
    columns: list[str] = field(default_factory=list)
    us_per_unit: float = 1.0
    """Of the times."""
    listed: set[int] = field(default_factory=set)
    """Ranks that have a line of their own."""
    ranks_of_process: int = 1
    rank_count: int | None = None
    """Where it is told otherwise."""
    type: str = ""
    heading: str = ""
    halves: tuple[list[Point], list[Point]] = field(default_factory=lambda: ([], []))
    """Out of place, in place."""
    differences: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Of each of the points, as far as the run has them and no count of wrong values."""


def found_in(log: Log) -> bool:
    return (
        "nccl-tests version" in log.text
        or log.some_line("nThread ", PARAMETERS.search)
        or log.some_line("busbw", lambda line: bool(_columns(line)))
    )


def _columns(line: str) -> list[str]:
    """The names of the columns, when the line has them; else none."""
    words = line.lstrip("# ").split()
    if words[:2] == ["bytes", "N"]:
        words = [FIRST_NAMES.get(word, word) for word in words]
    return words if words[:2] == ["size", "count"] and "busbw" in words and {"time", "cputime"} & set(words) else []


def read(log: Log, document: Document, notes: Notes) -> None:
    """Adds the log's tables to the document: out of place, and in place where that was measured."""
    run = Run()
    named = PROGRAM.search(document.path)
    last_named = named.group(1) if named else ""
    gpus: dict[str, None] = {}
    for line_number, line in log.lines(notes):
        named = PROGRAM.search(line)
        if named:
            last_named = named.group(1)
        parameters = PARAMETERS.search(line)
        if parameters or (named and not line.startswith(("#", " "))):
            if any(run.halves):
                _close(run, document)
            if any(run.halves) or run.columns:
                run = Run()
        if parameters:
            run.ranks_of_process = max(int(parameters.group(1)) * int(parameters.group(2)), 1)
        if last_named and not run.test:
            run.test = OSU_NAMES.get(last_named, last_named)
        rank, version, columns = RANK_LINE.match(line), VERSION.search(line), _columns(line)
        compiled, failed = COMPILED_WITH.match(line), OUT_OF_BOUNDS.match(line)
        if rank:
            number_of_rank = int(rank.group(1)[:9])
            if number_of_rank in run.listed:
                notes.add(line_number, f"rank {number_of_rank} appears twice: these are separate runs")
            run.listed.add(number_of_rank)
            gpus[clean(rank.group(2))] = None
        elif version:
            document.manifest["nccl_tests"] = f"nccl-tests {clean(version.group(1))}, NCCL {clean(version.group(2))}"
        elif compiled:
            document.manifest["nccl_tests"] = f"nccl-tests compiled with NCCL {clean(compiled.group(1))}"
        elif "Blocking Enabled" in line:
            run.mode = "waited"
        elif failed:
            _check_failed(run)
        elif columns:
            if any(run.halves):
                _close(run, document)
                run = replace(run, halves=([], []), differences=([], []))
            run.columns, run.heading = columns, log.heading
            run.us_per_unit = 1e3 if line.lstrip("# ").startswith("bytes") else 1.0
        elif run.columns and not line.lstrip().startswith("#"):
            _row(line.split(), line_number, run, notes)
    if gpus:
        document.manifest["gpus"] = ", ".join(list(gpus)[:8])
    _close(run, document)


def read_json(top: Value, document: Document) -> None:
    """Adds the results of a JSON file to the document."""
    words = " ".join(word.text() for word in top.get("args").elements())
    program = PROGRAM.search(words) or PROGRAM.search(document.path)
    name = program.group(1) if program else ""
    run = Run(OSU_NAMES.get(name, name))
    config = top.get("config")
    if config.is_object:
        run.mode = "waited" if config.get("blocking_collectives").text() in ("yes", "true") else "queued"
        run.rank_count = _rank_count(config)
    document.manifest["command"] = clean(words, 2000)
    without_time = 0
    for result in top.get("results").elements():
        run.type = run.type or result.get("type").text()
        for points, place in zip(run.halves, ("out_of_place", "in_place")):
            half = result.get(place)
            if not half.is_object:
                continue
            size_bytes, time = result.get("size").integer(), half.first("time", "cpu_time")
            if time.raw == "nan":
                without_time += 1
            elif not time.missing:
                errors = int(half.get("nwrong").number_or_none() or 0)
                points.append(Point(size_bytes, time.number(), errors=errors))
    if without_time:
        document.notes.append(f"{document.path}: {without_time} results whose time is nan are left out")
    _close(run, document)


def _rank_count(config: Value) -> int | None:
    """Of the collective. Only the first GPU of each process is listed, and its rank is a multiple of the process's
    number of GPUs. None where no GPU is listed."""
    for_each = max(config.get("nthreads").integer(1), 1) * max(config.get("ngpus").integer(1), 1)
    largest = max((device.get("rank").integer(0) for device in config.get("devices").elements()), default=None)
    return None if largest is None else largest // for_each * for_each + for_each


def _row(words: Sequence[str], line_number: int, run: Run, notes: Notes) -> None:
    keys = [name for name in run.columns if name in KEYS]
    if len(words) < len(keys) + 4 or not words[0].isdigit():
        return  # another program's output, such as NCCL's own messages
    size_bytes = size(words[0])
    if size_bytes is None:
        notes.add(line_number, f"'{clean(words[0], 40)}' is not a size: the row is left out")
        return
    row = dict(zip(keys, words))
    run.type = run.type or row.get("type", "")
    values = words[len(keys) :]
    columns = [name for name in run.columns if name not in KEYS and name != "timestamp"]
    width = len(columns) // 2
    if len(values) > width and not FIGURE.match(values[width]):
        values = values[:width]  # one half, and a remark
    halves = [values[:width], values[width : 2 * width]]
    if len(values) < 2 * width:
        halves = [[], values[:width]]  # only in place was run: the other half is blank
    for points, differences, half in zip(run.halves, run.differences, halves):
        figures = dict(zip(columns[:width], half))
        if not figures:
            continue
        word = figures.get("time", figures.get("cputime", ""))
        time = number(word)
        if time is None:
            if word != "N/A":
                notes.add(line_number, f"'{clean(word, 40)}' is not a time: it is left out")
            continue
        low, high = (number(figures.get(name, "")) for name in ("i_min", "i_max"))
        errors = int(number(figures.get("#wrong", "")) or 0)
        points.append(Point(size_bytes, time * run.us_per_unit, low, high, errors=errors))
        differences.append(number(figures.get("error", "")) or 0.0)


def _check_failed(run: Run) -> None:
    """Marks the rows whose data was wrong, in a run that says that some was but does not count it row by row."""
    tolerance = TOLERANCES.get(run.type, 0.0) * ((_ranks(run) or MOST_RANKS) - 1)
    for points, differences in zip(run.halves, run.differences):
        for index, difference in enumerate(differences):
            if difference > tolerance:
                points[index] = replace(points[index], errors=max(points[index].errors, 1))


def _ranks(run: Run) -> int | None:
    """How many they are. Not known where lines that name ranks are missing, of the last ranks too, perhaps: a process
    has as many as its threads have GPUs."""
    complete = len(run.listed) == max(run.listed, default=0) + 1 and len(run.listed) % run.ranks_of_process == 0
    return run.rank_count or (len(run.listed) if complete else None)


def _close(run: Run, document: Document) -> None:
    ranks = _ranks(run)
    test = run.test or UNKNOWN_TEST
    divisor = ranks if test in COUNTED_BY_RANK and ranks else 1
    if test in COUNTED_BY_RANK and ranks is None:
        test += " (whole buffer)"
    for place, points in zip(("", "in place"), run.halves):
        if not points:
            continue
        scaled = [Point(one.size_bytes // divisor, one.value, one.low, one.high, errors=one.errors) for one in points]
        document.series.append(
            Series(
                test=test,
                implementation="xccl",
                quantity=TIME,
                points=tuple(scaled),
                source=document.label,
                ranks=ranks,
                type=clean(run.type),
                buffers="D",
                mode=f"{run.mode}, in place" if place else run.mode,
                band="least and largest call" if scaled[0].low is not None else "",
                description="nccl-tests",
                heading=run.heading,
            )
        )
