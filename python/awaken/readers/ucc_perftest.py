# SPDX-License-Identifier: Apache-2.0
"""Output of ucc_perftest, the benchmark of UCC (Unified Collective Communication).

    Collective:             Alltoall
    Memory type:            cuda
    Datatype:               float32
    Reduction:              N/A
    Inplace:                0
    ...
           Count        Size                Time, us                           Bandwidth, GB/s
                                     avg         min         max         avg         max         min
           65536      262144       77.46       73.62       83.30       24.00       25.27       22.30
    Total time: 0.08 ms                                                         since 1.5

Bandwidths are printed with -F only ("Bus Bandwidth" in new versions), and follow from sizes and times, so they are not
read. Barriers have N/A for count and size. The three times are those of the ranks: their mean, least and largest.

The program calls UCC and no MPI, and its log tells neither the number of ranks nor who did the work below UCC (UCP,
NCCL, CUDA or shared memory). So nothing here is about an MPI, nor about NCCL. The size of alltoall, scatter,
reduce_scatter and their v-forms is that of one rank's part up to version 1.4 and of all parts since; the log does not
always tell which, so the name of the test says whose size it is. Source: tools/perf of UCC, versions 1.0 to 1.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from awaken.readers.source import Log, Notes, clean, number, size, without_remark
from awaken.results import TIME, UCC, UNKNOWN_TEST, Document, Point, Series

NAME = "ucc_perftest"

HEAD = re.compile(r"^\s*(Collective|Memory type|Datatype|Reduction|Inplace):\s*(\S.{0,60}?)\s*$")
COLUMNS = re.compile(r"^\s*Count\s+Size\s+Time, us(?:\s|$)")
BUFFERS = {"host": "H", "cuda": "D", "rocm": "D", "cuda-managed": "MD", "rocm-managed": "MD"}
"""Kinds of memory, in the letters of `awaken bench`."""
SIZE_DIFFERS = ("alltoall", "alltoallv", "scatter", "scatterv", "reduce_scatter", "reduce_scatterv")
"""Tests whose size is one rank's part in some versions, and all parts in others."""
FIGURES = 3
"""Mean, least and largest time; count and size stand before them, bandwidths may stand behind them."""


@dataclass
class Table:
    facts: dict[str, str] = field(default_factory=dict)
    """What the head tells: Collective, Memory type, ..."""
    in_rows: bool = False
    heading: str = ""
    points: list[Point] = field(default_factory=list)


def found_in(log: Log) -> bool:
    return log.some_line("Time, us", COLUMNS.match)


def read(log: Log, document: Document, notes: Notes) -> None:
    """Adds the log's tables to the document."""
    table = Table()
    for line_number, line in log.lines(notes):
        head = HEAD.match(line)
        if head:
            if table.in_rows:
                _close(table, document)
                table = Table()
            table.facts[head.group(1)] = clean(head.group(2))
        elif COLUMNS.match(line):
            if table.in_rows:  # a second table without a head: nothing is known of it
                _close(table, document)
                table = Table()
            table.in_rows, table.heading = True, log.heading
        elif table.in_rows:
            _row(line.split(), line_number, table, notes)
    _close(table, document)


def _row(words: list[str], line_number: int, table: Table, notes: Notes) -> None:
    if len(words) < 2 or not (words[0].isdigit() or words[:2] == ["N/A", "N/A"]):
        return  # the second line of the header, or another program's output
    if without_remark(words, 2 + FIGURES, 2 + 2 * FIGURES) is None:
        notes.add(line_number, f"{len(words)} values under 5 or 8 columns: the row is left out")
        return
    size_bytes = 0 if words[1] == "N/A" else size(words[1])
    if size_bytes is None:
        notes.add(line_number, f"'{clean(words[1], 40)}' is not a size: the row is left out")
        return
    mean, least, largest = (number(word) for word in words[2 : 2 + FIGURES])
    if mean is None:
        notes.add(line_number, f"'{clean(words[2], 40)}' is not a time: the row is left out")
        return
    table.points.append(Point(size_bytes, mean, least, largest))


def _close(table: Table, document: Document) -> None:
    if not table.points:
        return
    test = re.sub(r"\W+", "_", table.facts.get("Collective", "").lower()).strip("_") or UNKNOWN_TEST
    document.series.append(
        Series(
            test=f"{test} (size of ucc_perftest)" if test in SIZE_DIFFERS else test,
            implementation=UCC,
            quantity=TIME,
            points=tuple(table.points),
            source=document.label,
            type=table.facts.get("Datatype", ""),
            buffers=BUFFERS.get(table.facts.get("Memory type", "").lower(), ""),
            mode="in place" if table.facts.get("Inplace") == "1" else "",
            band="least and largest of the ranks' means",
            description=NAME,
            heading=table.heading,
        )
    )
