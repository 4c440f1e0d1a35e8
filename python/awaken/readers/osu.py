# SPDX-License-Identifier: Apache-2.0
"""Logs of the OSU micro-benchmarks, 5.x to 7.5, and of `awaken bench`, which prints the same.

A log is a title, lines that begin with #, a line with the names of the columns, and rows. What differs between
versions:

    5.x to 7.0   no Datatype line; "# Size          Latency (us)"; sizes of one-sided and threaded tests from 0;
                 "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)"; ibarrier names columns without #
    7.1 to 7.3   the Datatype line stands before or after the names of the columns; with -f, collectives of 7.3 print
                 least, largest and iterations under a header that does not name them
    7.4, 7.5     "# Datatype: MPI_CHAR." before the names, "# Size       Avg Latency(us)"; no sides of buffers
    one-sided    in all versions "# Window creation: MPI_Win_allocate", "# Synchronization: MPI_Win_flush",
                 "# Rank 0 Memory on DEVICE (D) and Rank 1 Memory on HOST (H)", "Latency (us)"; "failed" for wrong data
    -T all       one title, then a Datatype line and a table for each type
    -z           columns "P50 Tail Lat(us)" or "P50 Tail BW(MB/s)" behind the others; the latter fill their column but
                 for one blank
    -V           (mbw_mr) a table with one column for each window, first bandwidths, then message rates

Each line with names of columns begins a table. One of another quantity than that of the title is another program's,
whose title is missing, and nothing is known of it.

Transcripts of a shell hold the commands too. Two devices in `HIP_VISIBLE_DEVICES=0,3`, or in a heading before the test,
are the GPUs of its two ranks, unless its command names several nodes. The command tells the ranks and the nodes of the
test that it names. On a page with blocks of code (```), each block is a transcript of its own: a setting that stands
in another block is not taken to hold.

Sizes are bytes, times microseconds, MB 10^6 bytes. Source: the programs' output, versions 5.3.2, 7.0 and 7.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from awaken import pairs
from awaken.readers.launches import Launch, launch
from awaken.readers.source import Log, Notes, clean, number, size, without_remark
from awaken.results import BANDWIDTH, BETWEEN_NODES, POINT_TO_POINT, TIME, UNKNOWN_TEST, Document, Point, Series

NAME = "OSU micro-benchmarks"

LONGEST_TITLE = 300
TITLE = re.compile(
    r"^\s*# (?:OSU|OMB-Py|OMB) (?P<family>MPI|NCCL|RCCL|XCCL)?(?:-(?P<accelerator>[A-Z]+))?(?P<what>.*?)"
    r" ?(?:Test )?v(?P<version>\d[\w.+-]*)\s*$"
)
DATATYPE = re.compile(r"^# Datatype: (\w+)\.?\s*$")
SIDES = re.compile(
    r"(?:Send Buffer|Rank 0 Memory) on \w+ \((\w+)\) and (?:Receive Buffer|Rank 1 Memory) on \w+ \((\w+)\)"
)
ONE_SIDED = re.compile(r"^# (Window creation|Synchronization): (\S+)\s*$")
TAIL_COLUMN = re.compile(r" (?=P\d{1,3} Tail )")
RANKS_TOLD = re.compile(r"^nprocs: (\d+), min: ([\d.]+) ms, max: ([\d.]+) ms, avg: ([\d.]+) ms")
VISIBLE_DEVICES = re.compile(r"\b(?:HIP|ROCR|CUDA)_VISIBLE_DEVICES(?:=| )[\"']?([\w,-]*)")
PAIR = re.compile(r"(\d{1,3}),(\d{1,3})")
COPY_SETTING = re.compile(r"\b(HSA_ENABLE(?:_PEER)?_SDMA)=(\w{1,8})")
PROGRAM = re.compile(r"\bosu_(\w{1,60})")
FENCE = "```"
COLUMN_NAMES = ("Size", "Avg Latency(us)", "Overall(us)", "Latency (us)")
WINDOW = "window "
"""What the names of columns begin with in tables of -V."""
VALUES = {
    "MB/s": BANDWIDTH,
    "Bandwidth (MB/s)": BANDWIDTH,
    "Avg Latency(us)": TIME,
    "Latency (us)": TIME,
    "Overall(us)": TIME,
    "Latency(us)": TIME,
}
"""The columns that are read, by their names: the first of them that a table has."""
VERDICTS = ("pass", "passed", "fail", "failed")

OPERATIONS = {
    "all-to-all": "alltoall",
    "all-to-allv": "alltoallv",
    "all-to-allw": "alltoallw",
    "broadcast": "bcast",
    "accumulate": "acc",
    "get_accumulate": "get_acc",
    "compare_and_swap": "cas",
    "fetch_and_op": "fop",
}
POINT_TO_POINT_TITLES = {
    "latency": "latency",
    "bandwidth": "bw",
    "bi-directional bandwidth": "bibw",
    "latency persistent": "latency_persistent",
    "partitioned latency": "partitioned_latency",
    "bandwidth persistent": "bw_persistent",
    "bi-directional bandwidth persistent": "bibw_persistent",
    "multi latency": "multi_lat",
    "multi-threaded latency": "latency_mt",
    "multi-process latency": "latency_mp",
    "multiple bandwidth / message rate": "mbw_mr",
    "init": "init",
    "hello world": "hello",
}


def test_name(what: str) -> str:
    """The name of a test by its title: "Non-blocking All-to-All Latency" is ialltoall."""
    words = what.strip().lower()
    if words in POINT_TO_POINT_TITLES:
        return POINT_TO_POINT_TITLES[words]
    one_sided = re.fullmatch(r"_(\w+?)(?:-\w+)?( multiple)? (latency|bandwidth|bi-directional bandwidth)", words)
    if one_sided:
        ending = {"latency": "latency", "bandwidth": "bw", "bi-directional bandwidth": "bibw"}[one_sided.group(3)]
        return f"{OPERATIONS.get(one_sided.group(1), one_sided.group(1))}_{ending}"
    before = after = ""
    if re.match(r"non-blocking ", words):
        before, words = "i", words[len("non-blocking ") :]
    if words.startswith("neighborhood "):
        before, words = before + "neighbor_", words[len("neighborhood ") :]
    words = words.replace("personalized exchange", "").replace(" latency", "")
    if " persistent" in words:
        words, after = words.replace(" persistent", ""), "_persistent"
    operation = " ".join(words.split())
    return before + OPERATIONS.get(operation, re.sub(r"\W+", "_", operation).strip("_") or "unknown") + after


@dataclass
class Table:
    """What is known of the rows that come next."""

    family: str
    test: str
    version: str
    buffers: str = ""
    type: str = ""
    columns: list[str] = field(default_factory=list)
    window: dict[str, str] = field(default_factory=dict)
    """One-sided tests: how the window is made, and how operations in it are completed, by the words before it."""
    rates: bool = False
    """Whether these rows are message rates of -V, which are not read."""
    points: dict[str, list[Point]] = field(default_factory=dict)
    """By what was varied: the windows of -V, else ""."""
    band: str = ""
    quantity: str | None = None
    """As its title tells, and where that does not, the names of its columns."""
    ranks: int | None = None
    """As far as the test tells."""
    nodes: int | None = None
    pair: tuple[int, int] | None = None
    settings: str = ""
    heading: str = ""


@dataclass
class Shell:
    """What the commands of a transcript have set so far."""

    pair: tuple[int, int] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    launches: dict[str, Launch] = field(default_factory=dict)
    """The last command of each test."""
    told: bool = False
    """Whether a test ran since the block began."""
    block: int = 0
    """Of a page with blocks of code, the one in which this stands."""
    series: dict[tuple[str, str], list[dict[tuple[int, int], int]]] = field(default_factory=dict)
    """For each test and its settings, series of runs of which none has a pair in two blocks: pairs and their blocks."""

    def next_block(self) -> Shell:
        return Shell(block=self.block + 1, series=self.series)

    @property
    def setting(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())

    def _place(self, test: str, pair: tuple[int, int]) -> str:
        """Which of several series a run belongs to: what makes them differ stands elsewhere on the page."""
        series = self.series.setdefault((test, self.setting), [{}])
        if series[-1].setdefault(pair, self.block) != self.block:
            series.append({pair: self.block})
        return f"series {len(series)}" if len(series) > 1 else ""

    def read(self, line: str) -> None:
        if "_VISIBLE_DEVICES" in line:
            devices = VISIBLE_DEVICES.search(line)
            if devices or "unset" in line:
                two = PAIR.fullmatch(devices.group(1)) if devices else None
                self.pair = (int(two.group(1)), int(two.group(2))) if two else None
        if "HSA_ENABLE" in line:
            self.settings.update((found.group(1), found.group(2)) for found in COPY_SETTING.finditer(line))
        if "osu_" in line and (command := launch(line)) is not None:
            self.launches.update((test, command) for test in PROGRAM.findall(line))

    def tell(self, table: Table) -> Table:
        """The table with what holds for the program whose title it is."""
        self.told = True
        command = self.launches.get(table.test, Launch())
        table.ranks, table.nodes = command.ranks, command.nodes
        if table.test not in POINT_TO_POINT:
            return table
        table.ranks = 2
        pair = pairs.of_heading(table.heading) or self.pair
        if (table.nodes or 1) > 1:
            table.test += BETWEEN_NODES
        elif pair is not None:
            table.pair = pair
            table.settings = ", ".join(filter(None, [self.setting, self._place(table.test, pair)]))
        return table


def found_in(log: Log) -> bool:
    return log.some_line("# O", _title)


def _title(line: str) -> re.Match[str] | None:
    return TITLE.match(line) if "# O" in line and len(line) <= LONGEST_TITLE else None


def read(log: Log, document: Document, notes: Notes) -> None:
    """Adds the log's tables to the document."""
    table: Table | None = None
    shell = Shell()
    for line_number, line in log.lines(notes):
        title = _title(line)
        if line.startswith(FENCE):
            _close(table, document)
            if shell.settings and not shell.told:
                words = f"{shell.setting} is set in a block without a test, and is not taken to hold for another"
                notes.add(line_number, words)
            table, shell = None, shell.next_block()
        elif title:
            _close(table, document)
            table = shell.tell(_open(title, log.heading))
        elif not line.startswith("#") and ("_VISIBLE_DEVICES" in line or "HSA_ENABLE" in line or "osu_" in line):
            shell.read(line)
        elif table is None:
            continue
        elif line.startswith("#") or line.lstrip().startswith(COLUMN_NAMES):
            table = _comment(line, table, document)
        else:
            _row(line, line_number, table, notes)
    _close(table, document)


def _open(title: re.Match[str], heading: str) -> Table:
    family = title["family"] or ""
    accelerated = "D" if title["accelerator"] in ("CUDA", "ROCM", "OPENACC", "HIP") else ""
    # Point-to-point titles of a run on host memory say -CUDA too, so the letter is kept for collectives only.
    test = test_name(title["what"])
    quantity = next(
        (of for word, of in (("bandwidth", BANDWIDTH), ("latency", TIME)) if word in title["what"].lower()), None
    )
    buffers = "" if test in POINT_TO_POINT else accelerated
    return Table(family, test, title["version"], buffers, quantity=quantity, heading=heading)


def _comment(line: str, table: Table, document: Document) -> Table:
    """A line with # below a title. Returns the table that holds from here on."""
    datatype = DATATYPE.match(line)
    sides = SIDES.search(line)
    one_sided = ONE_SIDED.match(line)
    names = re.split(r"\s{2,}", TAIL_COLUMN.sub("  ", line.lstrip("# \t").rstrip()))
    if datatype:
        table = _next(table, document)  # -T all: the next type's table
        table.type = datatype.group(1)
    elif sides:
        table.buffers = f"{sides.group(1)} {sides.group(2)}"
    elif one_sided:
        table.window[one_sided.group(1)] = clean(one_sided.group(2), 60)
    elif "Message Rate Profile" in line:
        table.rates = True
    elif names[0] in COLUMN_NAMES or names[0].startswith("Size "):
        table = _table_of(names, next((VALUES[name] for name in VALUES if name in names), None), table, document)
    elif len(names) > 1 and all(name.isdigit() for name in names):
        columns = ["Size", *(f"{WINDOW}{clean(name)}" for name in names)]
        table = _table_of(columns, BANDWIDTH, table, document)
    return table


def _next(table: Table, document: Document) -> Table:
    """The table itself, or where it has rows already, one more below the same title."""
    if not table.points:
        return table
    _close(table, document)
    return replace(table, points={}, band="")


def _table_of(columns: list[str], quantity: str | None, table: Table, document: Document) -> Table:
    table = _next(table, document)
    if quantity and table.quantity and quantity != table.quantity:
        table = Table("", UNKNOWN_TEST, "", heading=table.heading)
    table.quantity = quantity or table.quantity
    table.columns = columns
    return table


def _row(line: str, line_number: int, table: Table, notes: Notes) -> None:
    words = line.split()
    init = RANKS_TOLD.match(line) if table.test == "init" else None
    if init:
        mean, least, largest = (number(init.group(index)) for index in (4, 2, 3))
        if mean is None or least is None or largest is None:
            notes.add(line_number, f"'{clean(line, 80)}' has words that are not times: the row is left out")
            return
        table.ranks = size(init.group(1))
        table.points[""] = [Point(0, mean * 1e3, least * 1e3, largest * 1e3)]  # ms to us
        table.band = "least and largest of the ranks"
        return
    if not words or table.rates or not table.columns:
        return
    if number(words[0]) is None:
        if words[0].lower().lstrip("+-") in ("nan", "inf", "infinity") or re.match(r"-\d", words[0]):
            notes.add(line_number, f"'{clean(words[0], 40)}' is not a size: the row is left out")
        return  # another program's output between the rows
    columns = _columns_of(words, table.columns)
    if columns is None:
        notes.add(line_number, f"{len(words)} values under {len(table.columns)} columns: the row is left out")
        return
    row = dict(zip(columns, words))
    size_bytes = size(row["Size"]) if "Size" in row else 0
    if size_bytes is None:
        notes.add(line_number, f"'{clean(words[0], 40)}' is not a size: the row is left out")
        return
    errors = 1 if row.get("Validation", "Pass").lower() in ("fail", "failed") else 0
    low, high = number(row.get("Min Latency(us)", "")), number(row.get("Max Latency(us)", ""))
    if low is not None and high is not None:
        table.band = "least and largest of the ranks' means"
    windows = [name for name in row if name.startswith(WINDOW)]
    for name in windows or [name for name in VALUES if name in row][:1]:
        value = number(row[name])
        if value is None:
            notes.add(line_number, f"'{clean(row[name], 40)}' is not a {table.quantity}: the row is left out")
            continue
        scale = 1e-3 if table.quantity == BANDWIDTH else 1.0  # MB/s to GB/s
        point = Point(size_bytes, value * scale, low, high, errors=errors)
        table.points.setdefault(name if windows else "", []).append(point)


def _columns_of(words: list[str], columns: list[str]) -> list[str] | None:
    """The columns of a row, or None when their number does not fit."""
    width = len(columns)
    if len(words) > width and words[width].lower() in VERDICTS:
        return [*columns, "Validation"]  # under a header that does not name it
    full = columns == ["Size", "Avg Latency(us)"]  # -f of 7.3
    named = [*columns, "Min Latency(us)", "Max Latency(us)", "Iterations"] if full else columns
    row = without_remark(words, width, len(named))
    return None if row is None else named[: len(row)]


def _close(table: Table | None, document: Document) -> None:
    if table is None:
        return
    ccl = table.family in ("NCCL", "RCCL", "XCCL")
    told = [pairs.in_words(table.pair), *([table.settings] if table.settings else [])] if table.pair else []
    for mode, points in table.points.items():
        document.series.append(
            Series(
                test=table.test,
                implementation="xccl" if ccl else document.label,
                quantity=table.quantity or TIME,
                points=tuple(points),
                source=document.label,
                ranks=table.ranks,
                nodes=table.nodes,
                type=table.type,
                buffers=table.buffers,
                mode=", ".join([*told, mode or ", ".join(table.window.values())]).strip(", "),
                band=table.band,
                description=f"OSU micro-benchmarks {clean(table.version)}".strip(),
                pair=table.pair,
                heading=table.heading,
            )
        )
