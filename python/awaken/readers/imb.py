# SPDX-License-Identifier: Apache-2.0
"""Output of the Intel MPI Benchmarks, part MPI-1 (IMB-MPI1), and of the parts that print the same tables.

    #    Intel(R) MPI Benchmarks 2021.11, MPI-1 part
    # MPI_Datatype for reductions    :   MPI_FLOAT
    #---------------------------------------------------
    # Benchmarking Allreduce
    # #processes = 4
    # ( 2 additional processes waiting in MPI_Barrier)
    #---------------------------------------------------
           #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
                0           10         3.15         4.52         3.88

PingPong and PingPing have the columns t[usec] and Mbytes/sec, Sendrecv and Exchange t_min, t_max, t_avg and Mbytes/sec,
collectives the three times, Barrier no bytes, Uniband and Biband Mbytes/sec and Msg/sec; nonblocking collectives
(IMB-NBC) t_ovrl, t_pure, t_CPU and overlap[%], of which t_ovrl is the time of the whole call. One-sided benchmarks
(IMB-EXT, IMB-RMA) have a table for each of two ways of calling, below "#    MODE: AGGREGATE" and "#    MODE:
NON-AGGREGATE". With -multi 1 a first column Group has the number of the group that a row is of; with -multi 0 rows are
of the slowest group. Times are microseconds.

Tables that were pasted without what is around them are read by the names of their columns; the test is the name in the
line before, if there is one. Neither the number of ranks nor the type of data is known then. What somebody wrote behind
the numbers of a row is no part of it.

Mbytes were 2^20 bytes in old versions and are 10^6 in new ones, so bandwidths are made of bytes and times, or of
bytes and messages. Source: the programs' output, version 2021.11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from awaken.readers.source import Log, Notes, clean, number, size, without_remark
from awaken.results import BANDWIDTH, POINT_TO_POINT, TIME, UNKNOWN_TEST, Document, Point, Series

NAME = "Intel MPI Benchmarks"

HEAD = re.compile(r"Intel\s*\(R\) MPI Benchmarks?(?: Suite)?(?: V(?:ersion )?)?\s*([\w. ]*)", re.IGNORECASE)
BENCHMARK = re.compile(r"^#\s*Benchmarking\s+(\S+)")
PROCESSES = re.compile(r"^#\s*#processes\s*=\s*(\d+)")
GROUPS = re.compile(r"^#\s*\(\s*(\d+) groups of (\d+) processes")
TABLE = re.compile(r"^\s*#(?:bytes\s+#repetitions|repetitions)\s+(?:\w+\[usec\]|Mbytes/sec)")
"""The names of the columns, by which a table is known without its head."""
BENCHMARKS = (
    r"(?:Ping(?:Pong|Ping)(?:SpecificSource|AnySource)?|Uniband|Biband|Sendrecv|Exchange|Bcast|Allgatherv?|Gatherv?"
    r"|Scatterv?|Alltoallv?|Reduce(?:_local|_scatter|_scatter_block)?|Allreduce|Scan|Exscan|Barrier)"
)
NAME_LINE = re.compile(rf"^[\W_]*((?:Multi-)?I?{BENCHMARKS}(?:_pure)?)[\W_]*$", re.IGNORECASE)
"""A line with nothing but the name of a benchmark."""
LONGEST_NAME_LINE = 200
MODE = re.compile(r"^#\s*MODE:\s*(AGGREGATE|NON-AGGREGATE)\b")
REDUCTION_TYPE = re.compile(r"^#\s*MPI_Datatype for reductions\s*:\s*(\w+)")
TYPE = re.compile(r"^#\s*MPI_Datatype\s*:\s*(\w+)")
MEMORY = re.compile(r"^#\s.{0,2000} -mem_alloc_type (device|host|cpu)(?:\s|$)", re.IGNORECASE)
"""The command line of the programs for GPUs, which says where both buffers are. Versions differ in what they do without
this option."""
BUFFERS = {"device": "D", "host": "P", "cpu": "H"}
"""In the letters of `awaken bench`: memory of the GPU, pinned memory, and what malloc gives."""
REDUCTIONS = ("reduce", "scan")
OSU_NAMES = {
    "pingpong": "latency",
    "uniband": "bw",
    "biband": "bibw",
}


@dataclass
class Table:
    test: str
    ranks: int | None = None
    columns: list[str] = field(default_factory=list)
    points: dict[str, list[Point]] = field(default_factory=dict)
    """By the number of the group; "" where the rows are not of one group."""
    band: str = ""
    quantity: str = TIME
    mode: str = ""
    heading: str = ""


def found_in(log: Log) -> bool:
    return (
        bool(HEAD.search(log.text))
        or log.some_line("Benchmarking", BENCHMARK.match)
        or log.some_line("#repetitions", TABLE.match)
    )


def read(log: Log, document: Document, notes: Notes) -> None:
    """Adds the log's tables to the document."""
    types = {"": "", "reductions": ""}
    memory = ""
    version = ""
    table: Table | None = None
    named: re.Match[str] | None = None
    """The line that names the next table's benchmark, where no head does."""

    def close() -> None:
        if table is not None:
            document.series.extend(
                _series(table, group, points, document, types, version, memory)
                for group, points in table.points.items()
            )

    for line_number, line in log.lines(notes):
        head = HEAD.search(line)
        allocated = MEMORY.match(line)
        benchmark = BENCHMARK.match(line)
        mode = MODE.match(line)
        if head:
            close()
            table, named, memory, version = None, None, "", clean(head.group(1))
        elif allocated:
            memory = BUFFERS[allocated.group(1).lower()]
        elif benchmark:
            close()
            table, named = _open(benchmark.group(1)), None
        elif mode and table is not None:
            close()
            table = Table(table.test, table.ranks, mode=mode.group(1).lower())
        elif TABLE.match(line):
            if table is None or table.points or named:
                close()
                table = _open(named.group(1)) if named else Table(UNKNOWN_TEST)
                # It is of two ranks by definition.
                table.ranks = 2 if table.test in ("latency", "pingping") and not table.mode else None
            table.columns, table.heading, named = line.split(), log.heading, None
        elif len(line) <= LONGEST_NAME_LINE and NAME_LINE.match(line):
            named = NAME_LINE.match(line)
        elif line.startswith("#") and not line.startswith("#bytes"):
            _comment(line, table, types)
        elif table is not None and ("[usec]" in line or "Mbytes/sec" in line):
            if table.points:
                close()
                table = Table(table.test, table.ranks, mode=table.mode)
            table.columns, table.heading = line.split(), log.heading
        elif table is not None and table.columns:
            _row(line.split(), line_number, table, notes)
    close()


def _open(name: str) -> Table:
    several = name.startswith("Multi-")
    lower = name[len("Multi-") if several else 0 :].lower()
    return Table(clean(OSU_NAMES.get(lower, lower)), mode="several groups" if several else "")


def _comment(line: str, table: Table | None, types: dict[str, str]) -> None:
    reduction, plain = REDUCTION_TYPE.match(line), TYPE.match(line)
    if reduction:
        types["reductions"] = reduction.group(1)
    elif plain:
        types[""] = plain.group(1)
    processes, groups = PROCESSES.match(line), GROUPS.match(line)
    if table is not None and processes:
        table.ranks = int(processes.group(1)[:9])
    elif table is not None and groups:
        table.ranks = int(groups.group(2)[:9])


def _row(words: list[str], line_number: int, table: Table, notes: Notes) -> None:
    if not words or number(words[0]) is None:
        return
    values = without_remark(words, len(table.columns))
    if values is None:
        notes.add(line_number, f"{len(words)} values under {len(table.columns)} columns: the row is left out")
        return
    row = dict(zip(table.columns, values))
    size_bytes = size(row.get("#bytes", "0"))
    if size_bytes is None:
        notes.add(line_number, f"'{clean(words[0], 40)}' is not a size: the row is left out")
        return
    low = high = None
    if "Msg/sec" in row and "t[usec]" not in row:
        table.quantity = BANDWIDTH
        rate = number(row["Msg/sec"])
        value = None if rate is None else rate * size_bytes / 1e9
        word = row["Msg/sec"]
        if size_bytes == 0:
            return  # a bandwidth of messages without bytes is none
    else:
        word = row.get("t_avg[usec]", row.get("t[usec]", row.get("t_ovrl[usec]", "")))
        value = number(word)
        if "t_min[usec]" in row:
            low, high = number(row["t_min[usec]"]), number(row.get("t_max[usec]", ""))
            table.band = "least and largest of the ranks' means"
    if value is None:
        notes.add(line_number, f"'{clean(word, 40)}' is not a {table.quantity}: the row is left out")
        return
    table.points.setdefault(clean(row.get("Group", ""), 20), []).append(Point(size_bytes, value, low, high))


def _series(
    table: Table, group: str, points: list[Point], document: Document, types: dict[str, str], version: str, memory: str
) -> Series:
    reduces = any(word in table.test for word in REDUCTIONS)
    return Series(
        test=table.test,
        implementation=document.label,
        quantity=table.quantity,
        points=tuple(points),
        source=document.label,
        ranks=table.ranks,
        type=types["reductions" if reduces else ""],
        buffers=f"{memory} {memory}" if memory and table.test in POINT_TO_POINT else memory,
        mode=f"{table.mode}, group {group}" if group else table.mode,
        band=table.band,
        description=f"Intel MPI Benchmarks {version}".strip(),
        heading=table.heading,
    )
