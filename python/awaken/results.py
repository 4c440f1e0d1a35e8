# SPDX-License-Identifier: Apache-2.0
"""What was measured, whoever measured it: the form into which the readers bring every kind of file.

Units are fixed here, so that nothing after the readers converts any: sizes in bytes, times in microseconds, bandwidths
in GB/s (10^9 bytes a second). A value that was not measured is None or absent, and never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from awaken.applications import Application

TIME = "time"
"""Quantity of a series: microseconds of one operation; less is better."""
BANDWIDTH = "bandwidth"
"""Quantity of a series: GB/s; more is better."""

UCC = "ucc"
"""Implementation of a series: UCC, called by itself and not through an MPI."""

INTERVAL_OF_MEDIAN = "95 % interval of the median"
"""Of `Series.band`, the one that tells how far another run's value may be. What ranks or calls differ by, which logs
tell, is many times wider and says nothing about that."""

UNKNOWN_TEST = "unknown"
"""Of `Series.test`, where a log does not tell which test it is."""

POINT_TO_POINT = frozenset(
    [
        "latency",
        "bw",
        "bibw",
        "latency_persistent",
        "partitioned_latency",
        "bw_persistent",
        "bibw_persistent",
        "latency_mt",
        "latency_mp",
        "pingpong",
        "put_latency",
        "put_bw",
        "put_bibw",
        "get_latency",
        "get_bw",
        "acc_latency",
        "get_acc_latency",
        "fop_latency",
        "cas_latency",
    ]
)
"""Tests of two ranks, whatever else the job started."""


BETWEEN_NODES = "_between_nodes"
"""Behind the name of a test of two ranks whose ranks were on two nodes."""
PRETENDED_NODES = "nodes pretended"
"""Mode of such a test on one node (AWAKEN_TEST_NODES)."""


@dataclass(frozen=True)
class Point:
    """One message size of a series."""

    size_bytes: int
    value: float
    low: float | None = None
    high: float | None = None
    """The band around the value; what it means is `Series.band`."""
    drift: tuple[float, ...] = ()
    """Medians of consecutive parts of the run, in order: how much the value moved within it. Empty when not known."""
    samples: int | None = None
    errors: int = 0
    """Wrong elements, or 1 where a log says no more than that the check failed."""


@dataclass(frozen=True)
class Series:
    """One implementation over sizes."""

    test: str
    """As `awaken bench` calls it: latency, bw, allreduce, ..."""
    implementation: str
    """awaken, native, staged, xccl and raw as in `awaken bench`; UCC; the file's label for logs of unknown origin."""
    quantity: str
    points: tuple[Point, ...]
    source: str = ""
    ranks: int | None = None
    type: str = ""
    """The MPI datatype, or "" when not told."""
    buffers: str = ""
    """Where buffers were, in the letters of `awaken bench`, such as "D D"; "" when not told."""
    mode: str = ""
    """ "waited" or "queued"; of one-sided tests, how the window is made and synchronised; "" when not told."""
    band: str = ""
    """What low and high are: INTERVAL_OF_MEDIAN, "least and largest of the ranks"; "" without a band."""
    description: str = ""
    unavailable: str = ""
    """Why there are no points."""
    pair: tuple[int, int] | None = None
    """The GPUs of rank 0 and rank 1, where a run of two ranks is told to be theirs."""
    heading: str = ""
    """What a log calls the run in the heading before it."""
    unchecked: bool = False
    """Whether its data are known not to have been checked."""
    nodes: int | None = None
    """Over how many nodes the ranks were spread; None when not told."""
    settings: str = ""
    """Of the environment, those in which its file differs from others of the report."""

    @property
    def failed(self) -> bool:
        return any(point.errors for point in self.points)


@dataclass(frozen=True)
class CallRow:
    """A row of the path report: the calls of one function that went one way, in one size class."""

    function: str
    path: str
    size_class_bytes: int
    calls: int
    bytes: int
    time_ns: int


@dataclass(frozen=True)
class PathReport:
    """What `AWAKEN_REPORT` wrote (docs/path-report.md)."""

    source: str
    title: str
    """What ran, as far as that is known."""
    host: str
    ranks: int | None
    mpi: str
    gpu: str
    devices: tuple[str, ...]
    rows: tuple[CallRow, ...]
    fallbacks: tuple[tuple[str, str, int], ...]
    """Function, reason, how often."""
    copies: tuple[tuple[str, int, int], ...] = ()
    """What copied device memory, how often, how many bytes: of what copied any."""


@dataclass(frozen=True)
class Cell:
    """One cell of a matrix: a value, a text, or the reason why there is neither."""

    value: float | None = None
    text: str = ""
    why_missing: str = ""
    low: float | None = None
    high: float | None = None
    """The least and the largest sample, where there were several."""


@dataclass(frozen=True)
class Matrix:
    """Figures or links between devices. `cells[row][column]`."""

    title: str
    unit: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    row_title: str = "from"
    column_title: str = "to"
    less_is_better: bool = False
    minor: bool = False
    """Whether it may be folded away."""
    explanation: str = ""
    """What the texts in the cells stand for."""
    key: str = ""
    """What is compared with the same of another file, whichever engine was used; "" where nothing is."""


@dataclass(frozen=True)
class Topology:
    source: str
    host: str
    matrices: tuple[Matrix, ...]
    facts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


WORKS, REFUSED = "works", "refused"
FAILURES = ("wrong data", "error", "crash", "hang")
"""Outcomes of a call that worked neither nor was refused as documented, nor impossible here; see `Conformance`."""


@dataclass(frozen=True)
class Conformance:
    """MPI functions by kinds of buffer. `cells[(function, buffer kind)]` is an outcome and a remark."""

    title: str
    functions: tuple[str, ...]
    kinds: tuple[str, ...]
    cells: Mapping[tuple[str, str], tuple[str, str]]


@dataclass(frozen=True)
class Doctor:
    source: str
    host: str
    answers: tuple[tuple[str, str, str], ...]
    """Question, answer, verdict: "good", "bad" or "" where it is neither."""
    advice: tuple[tuple[str, str], ...]
    """What and why, and the words to type or ""."""
    conformance: tuple[Conformance, ...]
    aware: Mapping[str, bool]
    """Whether device memory is taken, for "native" and "awaken" as far as that is known."""
    transport: Mapping[str, tuple[str, str]]
    """ "direct", "staged" or "unknown", and why, for the same two."""
    mpi: str = ""
    """Name and version, such as "MPICH 5.0.2"."""
    emulated: bool = False
    """Whether its GPUs were."""


@dataclass(frozen=True)
class Span:
    """One stretch of time on one lane of a timeline; microseconds from the trace's first event on."""

    lane: int
    """Index into `Timeline.lanes`: two processes may have one name."""
    name: str
    start_us: float
    duration_us: float
    category: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Timeline:
    source: str
    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    left_out: int = 0
    """Events that are not shown, because there were too many."""
    note: str = ""
    """What else is not shown, and why."""


@dataclass
class Document:
    """What one file holds."""

    label: str
    path: str
    dialects: tuple[str, ...] = ()
    manifest: dict[str, str] = field(default_factory=dict)
    series: list[Series] = field(default_factory=list)
    path_reports: list[PathReport] = field(default_factory=list)
    topologies: list[Topology] = field(default_factory=list)
    doctors: list[Doctor] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    applications: list[Application] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out of the file, each with file and line."""

    @property
    def empty(self) -> bool:
        return not (
            self.series or self.path_reports or self.topologies or self.doctors or self.timelines or self.applications
        )


def by_test(series: Sequence[Series]) -> dict[tuple[str, int | None], list[Series]]:
    """Series that belong into one picture: of one test on as many ranks. In order of first appearance."""
    groups: dict[tuple[str, int | None], list[Series]] = {}
    for one in series:
        groups.setdefault((one.test, one.ranks), []).append(one)
    return groups
