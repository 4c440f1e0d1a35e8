"""The conformance matrix: each communication function of MPI with each kind of memory, tried for real.

Many cells run in one job. The probe says which cell it begins; when a job crashes or hangs, that cell is to blame, and
another job goes on behind it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from awaken.installation import required_program
from awaken.jobs import Job, JobFailed, Launcher, Record, Surroundings

KINDS = ("host", "device", "managed", "pool")
STATUSES = ("works", "wrong data", "error", "crash", "hang", "refused", "unavailable", "absent")
"""`refused`: an error that Awaken's documentation announces. `unavailable`: there is no such memory here. `absent`: the
MPI has no such function."""
FAILURES = ("wrong data", "error", "crash", "hang")

REFUSALS = ("use host memory for the window, or cudaMalloc or hipMalloc", "attach host memory")
"""Words of the errors with which Awaken refuses what its documentation says it does not serve."""


@dataclass(frozen=True)
class Request:
    """What is to be tried, and how."""

    ranks: int = 2
    one_per_node: bool = False
    functions: Sequence[str] = ()  # all when empty
    kinds: Sequence[str] = KINDS
    large_counts: bool = False
    start_limit_s: float = 60.0
    cell_limit_s: float = 20.0
    jobs_at_once: int = 1

    def words(self, first: int, end: int) -> list[str]:
        """The probe's arguments for the cells from `first` up to `end`."""
        words = ["cells", "--kinds", ",".join(self.kinds), "--from", str(first), "--to", str(end)]
        if self.functions:
            words += ["--functions", ",".join(self.functions)]
        return [*words, "--large-counts"] if self.large_counts else words


@dataclass
class Cell:
    """One function with one kind of memory."""

    function: str
    family: str
    kind: str
    status: str = ""
    text: str = ""


@dataclass
class Outcome:
    """All cells in the order of the plan, and what it took."""

    cells: list[Cell] = field(default_factory=list)
    jobs: int = 0
    seconds: float = 0.0


class Runner:
    """Tries the cells of a request, natively or with Awaken."""

    def __init__(
        self,
        launcher: Launcher,
        surroundings: Surroundings,
        request: Request,
        *,
        with_awaken: bool,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._launcher = launcher
        self._surroundings = surroundings
        self._request = request
        self._with_awaken = with_awaken
        self._progress = progress or (lambda _done, _all: None)
        self._outcome = Outcome()
        self._lock = threading.Lock()

    def run(self) -> Outcome:
        """Raises JobFailed when jobs cannot be started at all."""
        started = time.monotonic()
        plan, job = self._records(0, 0)
        if not self._outcome.cells:
            told = [record["text"] for record in plan if record.get("record") == "failed"]
            raise JobFailed(told[0] if told else job.explanation())
        count = len(self._outcome.cells)
        workers = max(1, min(self._request.jobs_at_once, count))
        borders = [count * worker // workers for worker in range(workers + 1)]
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self._try_range, *part) for part in zip(borders, borders[1:])]:
                done.result()
        self._outcome.seconds = time.monotonic() - started
        return self._outcome

    def _records(self, first: int, end: int) -> tuple[list[Record], Job]:
        job = Job(
            [
                *self._launcher.command(self._request.ranks, one_per_node=self._request.one_per_node),
                *self._surroundings.words(
                    required_program("awaken-probe"), self._request.words(first, end), with_awaken=self._with_awaken
                ),
            ]
        )
        with self._lock:
            self._outcome.jobs += 1
        kept = []
        for record in job.records(self._request.start_limit_s, self._request.cell_limit_s):
            kept.append(record)
            if record["record"] == "plan" and not self._outcome.cells:
                self._outcome.cells = [Cell(**cell) for cell in record["cells"]]
            elif record["record"] == "end":
                self._note(record["index"], record["status"], self._text_of(kept, record))
        return kept, job

    @staticmethod
    def _text_of(records: Sequence[Record], end: Record) -> str:
        problems = [record for record in records if record["record"] == "problem" and record["index"] == end["index"]]
        # The lines of the ranks come in any order; the lowest rank's is shown.
        problems.sort(key=lambda problem: problem["rank"])
        told = [record["text"] for record in problems if record["status"] == end["status"]]
        return str(end.get("text") or (told[0] if told else ""))

    def _note(self, index: int, status: str, text: str) -> None:
        if status == "error" and any(words in text for words in REFUSALS):
            status = "refused"
        with self._lock:
            cell = self._outcome.cells[index]
            cell.status, cell.text = status, text
            done = sum(1 for one in self._outcome.cells if one.status)
        self._progress(done, len(self._outcome.cells))

    def _try_range(self, first: int, end: int) -> None:
        cells = self._outcome.cells
        silent_starts = 0
        while first < end:
            records, job = self._records(first, end)
            while first < end and cells[first].status:
                first += 1
            if first == end:
                return
            if not any(record["record"] == "begin" for record in records):
                # Not even the first cell was begun, so none is to blame; once is bad luck.
                silent_starts += 1
                if silent_starts > 1:
                    raise JobFailed(job.explanation())
                continue
            silent_starts = 0
            self._note(first, *self._blame(first, records, job))
            first += 1

    @staticmethod
    def _blame(index: int, records: Sequence[Record], job: Job) -> tuple[str, str]:
        """Status and text of the cell that a job ended in."""
        crashes = [record for record in records if record["record"] == "crash"]
        problems = [record for record in records if record["record"] == "problem" and record["index"] == index]
        if crashes:
            return "crash", f"{crashes[0]['signal']} at rank {crashes[0]['rank']}"
        if problems:
            return str(problems[0]["status"]), f"rank {problems[0]['rank']}: {problems[0]['text']}"
        if job.timed_out:
            return "hang", "it did not come back in time, and was ended"
        return "crash", job.explanation()
