# SPDX-License-Identifier: Apache-2.0
"""Output of the ping-pong programs (apps/pingpong, and the tutorial programs whose output it is).

    Transfer size (B):       1024, Transfer Time (s):     0.000000901, Bandwidth (GB/s):     1.058456180

Sizes grow within one program's output. Where they begin again, another program's output begins: the text before it
tells its name, by the command that started it or by the heading that the tutorial gives it ("CUDA Staged Version").

The time is that of one transfer, half a round trip, in seconds. "GB" is 2^30 bytes there and is not read: the
bandwidth follows from size and time.
"""

from __future__ import annotations

import re

from awaken.readers.source import Log, Notes, clean, number, size
from awaken.results import TIME, Document, Point, Series

NAME = "ping-pong"
ROW = re.compile(r"Transfer size \(B\):\s*(\S+), Transfer Time \(s\):\s*(\S+), Bandwidth \(GB/s\):")

COMMAND = re.compile(r"\b(?:mpi\w*|srun|jsrun|aprun|prun|flux|awaken)\s.{0,400}?\bping_?pong_(\w+)")
HEADING = re.compile(r"\W{0,8}(\w[\w -]{0,40} Version)\W{0,4}")


def found_in(log: Log) -> bool:
    return "Transfer size (B):" in log.text


def read(log: Log, document: Document, notes: Notes) -> None:
    """Adds the log's sizes to the document: a series for each program whose output it holds."""
    runs: list[tuple[str, list[Point]]] = []
    name = ""
    for line_number, line in log.lines(notes):
        row = ROW.search(line)
        if not row or "%" in row.group(1):  # of the program's source, which a page about it shows
            name = _name(line) or name
            continue
        size_bytes, seconds = size(row.group(1)), number(row.group(2))
        if size_bytes is None or seconds is None:
            notes.add(line_number, f"'{clean(row.group(0), 80)}' has no size or no time: the row is left out")
            continue
        if not runs or name or size_bytes <= runs[-1][1][-1].size_bytes:
            runs.append((name, []))
            name = ""
        runs[-1][1].append(Point(size_bytes, seconds * 1e6))
    for index, (name, points) in enumerate(runs):
        document.series.append(
            Series(
                "pingpong",
                document.label,
                TIME,
                tuple(points),
                document.label,
                2,
                "MPI_DOUBLE",
                mode=name or (f"run {index + 1}" if len(runs) > 1 else ""),
                description="ping-pong",
            )
        )


def _name(line: str) -> str:
    """Of the program whose rows come next, as far as the line tells it."""
    command = COMMAND.search(line) if "ong_" in line and len(line) < 2000 else None
    heading = HEADING.fullmatch(line) if "Version" in line and len(line) < 80 else None
    return clean(command.group(1).replace("_", " ") if command else heading.group(1) if heading else "", 60)
