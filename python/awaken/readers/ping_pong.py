"""Output of the ping-pong programs (apps/pingpong, and the tutorial programs whose output it is).

    Transfer size (B):       1024, Transfer Time (s):     0.000000901, Bandwidth (GB/s):     1.058456180

The time is that of one transfer, half a round trip, in seconds. "GB" is 2^30 bytes there and is not read: the
bandwidth follows from size and time.
"""

from __future__ import annotations

import re

from awaken.readers.source import Log, Notes, clean, number, size
from awaken.results import TIME, Document, Point, Series

NAME = "ping-pong"
ROW = re.compile(r"Transfer size \(B\):\s*(\S+), Transfer Time \(s\):\s*(\S+), Bandwidth \(GB/s\):")


def found_in(log: Log) -> bool:
    return "Transfer size (B):" in log.text


def read(log: Log, document: Document, notes: Notes) -> None:
    """Adds the log's sizes to the document, as one series."""
    points = []
    for line_number, line in log.lines(notes):
        row = ROW.search(line)
        if not row:
            continue
        size_bytes, seconds = size(row.group(1)), number(row.group(2))
        if size_bytes is None or seconds is None:
            notes.add(line_number, f"'{clean(row.group(0), 80)}' has no size or no time: the row is left out")
            continue
        points.append(Point(size_bytes, seconds * 1e6))
    if points:
        document.series.append(
            Series(
                "pingpong",
                document.label,
                TIME,
                tuple(points),
                document.label,
                2,
                "MPI_DOUBLE",
                description="ping-pong",
            )
        )
