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

Transcripts of a shell hold the commands too. Two devices in `HIP_VISIBLE_DEVICES=0,3` are the GPUs of a test's two
ranks, unless its command names several nodes.

Sizes are bytes, times microseconds, MB 10^6 bytes. Source: the programs' output, versions 5.3.2, 7.0 and 7.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from awaken import pairs
from awaken.readers.source import Log, Notes, clean, number, size
from awaken.results import BANDWIDTH, POINT_TO_POINT, TIME, Document, Point, Series, Topology

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
NODES = re.compile(r"(?:^|\s)(?:-N|--nodes)[= ]?([2-9]|1\d+)\b|--ntasks-per-node[= ]1\b|-ppn[= ]1\b|ppr:1:node")
"""Of a launcher's words, those that put two ranks on two nodes."""
COLUMN_NAMES = ("Size", "Avg Latency(us)", "Overall(us)", "Latency (us)")

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
    quantity: str = TIME
    ranks: int | None = None
    """As far as the test tells."""
    pair: tuple[int, int] | None = None
    settings: str = ""


@dataclass
class Shell:
    """What the commands of a transcript have set so far."""

    pair: tuple[int, int] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    several_nodes: bool = False
    """Whether the last command with a launcher put its ranks on several nodes."""

    def read(self, line: str) -> None:
        if "_VISIBLE_DEVICES" in line:
            devices = VISIBLE_DEVICES.search(line)
            if devices or "unset" in line:
                two = PAIR.fullmatch(devices.group(1)) if devices else None
                self.pair = (int(two.group(1)), int(two.group(2))) if two else None
        if "HSA_ENABLE" in line:
            self.settings.update((found.group(1), found.group(2)) for found in COPY_SETTING.finditer(line))
        if "osu_" in line:
            self.several_nodes = NODES.search(line[:LONGEST_TITLE]) is not None

    def tell(self, table: Table) -> Table:
        """The table with what holds for the program whose title it is."""
        if table.test in POINT_TO_POINT and self.pair is not None and not self.several_nodes:
            table.pair = self.pair
            table.settings = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return table


def found_in(log: Log) -> bool:
    return log.some_line("# O", _title)


def _title(line: str) -> re.Match[str] | None:
    return TITLE.match(line) if "# O" in line and len(line) <= LONGEST_TITLE else None


def read(log: Log, document: Document, notes: Notes) -> None:
    """Adds the log's tables to the document."""
    table: Table | None = None
    shell = Shell()
    already = len(document.series)
    for line_number, line in log.lines(notes):
        title = _title(line)
        if title:
            _close(table, document)
            table = shell.tell(_open(title))
        elif not line.startswith("#") and ("_VISIBLE_DEVICES" in line or "HSA_ENABLE" in line or "osu_" in line):
            shell.read(line)
        elif table is None:
            continue
        elif line.startswith("#") or line.lstrip().startswith(COLUMN_NAMES):
            table = _comment(line, table, document)
        else:
            _row(line, line_number, table, notes)
    _close(table, document)
    matrices = pairs.matrices(document.series[already:])
    if matrices:
        document.topologies.append(Topology(document.label, "", matrices))


def _open(title: re.Match[str]) -> Table:
    family = title["family"] or ""
    accelerated = "D" if title["accelerator"] in ("CUDA", "ROCM", "OPENACC", "HIP") else ""
    # Point-to-point titles of a run on host memory say -CUDA too, so the letter is kept for collectives only.
    test = test_name(title["what"])
    return Table(family, test, title["version"], "" if test in POINT_TO_POINT else accelerated)


def _comment(line: str, table: Table, document: Document) -> Table:
    """A line with # below a title. Returns the table that holds from here on."""
    datatype = DATATYPE.match(line)
    sides = SIDES.search(line)
    one_sided = ONE_SIDED.match(line)
    names = re.split(r"\s{2,}", TAIL_COLUMN.sub("  ", line.lstrip("# \t").rstrip()))
    if datatype:
        if table.points:  # -T all: the next type's table
            _close(table, document)
            table = replace(table, points={}, quantity=TIME, band="")
        table.type = datatype.group(1)
    elif sides:
        table.buffers = f"{sides.group(1)} {sides.group(2)}"
    elif one_sided:
        table.window[one_sided.group(1)] = clean(one_sided.group(2), 60)
    elif "Message Rate Profile" in line:
        table.rates = True
    elif names[0] in COLUMN_NAMES or names[0].startswith("Size "):
        table.columns = names
    elif len(names) > 1 and all(name.isdigit() for name in names):
        table.columns = ["Size", *(f"window {clean(name)}" for name in names)]
    return table


def _row(line: str, line_number: int, table: Table, notes: Notes) -> None:
    words = line.split()
    init = RANKS_TOLD.match(line) if table.test == "init" else None
    if init:
        mean, least, largest = (number(init.group(index)) for index in (4, 2, 3))
        if mean is None or least is None or largest is None:
            notes.add(line_number, f"'{clean(line, 80)}' has words that are no times: the row is left out")
            return
        table.ranks = size(init.group(1))
        table.points[""] = [Point(0, mean * 1e3, least * 1e3, largest * 1e3)]  # ms to us
        table.band = "least and largest of the ranks"
        return
    if not words or table.rates or not table.columns:
        return
    if number(words[0]) is None:
        if words[0].lower().lstrip("+-") in ("nan", "inf", "infinity") or re.match(r"-\d", words[0]):
            notes.add(line_number, f"'{clean(words[0], 40)}' is no size: the row is left out")
        return  # another program's output between the rows
    columns = _columns_of(words, table.columns)
    if columns is None:
        notes.add(line_number, f"{len(words)} values under {len(table.columns)} columns: the row is left out")
        return
    row = dict(zip(columns, words))
    size_bytes = size(row["Size"]) if "Size" in row else 0
    if size_bytes is None:
        notes.add(line_number, f"'{clean(words[0], 40)}' is no size: the row is left out")
        return
    errors = 1 if row.get("Validation", "Pass").lower() in ("fail", "failed") else 0
    for name, word in row.items():
        if name.startswith("window "):
            _add(table, name, size_bytes, word, line_number, notes, BANDWIDTH)
    for name in ("MB/s", "Bandwidth (MB/s)"):
        if name in row:
            _add(table, "", size_bytes, row[name], line_number, notes, BANDWIDTH, errors)
            return
    for name in ("Avg Latency(us)", "Latency (us)", "Overall(us)", "Latency(us)"):
        if name in row:
            low, high = number(row.get("Min Latency(us)", "")), number(row.get("Max Latency(us)", ""))
            if low is not None and high is not None:
                table.band = "least and largest of the ranks' means"
            _add(table, "", size_bytes, row[name], line_number, notes, TIME, errors, low, high)
            return


def _columns_of(words: list[str], columns: list[str]) -> list[str] | None:
    """The columns of a row, or None when their number does not fit."""
    if len(words) == len(columns):
        return columns
    if len(columns) == 2 and columns[1] == "Avg Latency(us)" and len(words) == 5:
        return [*columns, "Min Latency(us)", "Max Latency(us)", "Iterations"]  # -f of 7.3
    return None


def _add(
    table: Table,
    mode: str,
    size_bytes: int,
    word: str,
    line_number: int,
    notes: Notes,
    quantity: str,
    errors: int = 0,
    low: float | None = None,
    high: float | None = None,
) -> None:
    value = number(word)
    if value is None:
        notes.add(line_number, f"'{clean(word, 40)}' is no {quantity}: the row is left out")
        return
    table.quantity = quantity
    scale = 1e-3 if quantity == BANDWIDTH else 1.0  # MB/s to GB/s
    table.points.setdefault(mode, []).append(Point(size_bytes, value * scale, low, high, errors=errors))


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
                quantity=table.quantity,
                points=tuple(points),
                source=document.label,
                ranks=2 if table.test in POINT_TO_POINT else table.ranks,
                type=table.type,
                buffers=table.buffers,
                mode=", ".join([*told, mode or ", ".join(table.window.values())]).strip(", "),
                band=table.band,
                description=f"OSU micro-benchmarks {clean(table.version)}",
                pair=table.pair,
            )
        )
