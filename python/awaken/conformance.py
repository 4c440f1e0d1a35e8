# SPDX-License-Identifier: Apache-2.0
"""The conformance matrix: each communication function of MPI with each kind of memory, tried for real.

Many cells run in one job. The probe says which cell it begins; when a job crashes or hangs, that cell is to blame, and
another job goes on behind it. Several jobs run at once, each on a stretch of cells.

What it takes is bounded: a cell may be silent for `cell_limit_s`, after the first that hung for `hang_again_limit_s` or
a few times what cells take that come back, and all of them for `total_limit_s`. What is left then is "not tried".
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from awaken.installation import required_program
from awaken.jobs import Job, JobFailed, Launcher, Record, Surroundings

KINDS = ("host", "device", "managed", "pool")
NOT_TRIED = "not tried"
STATUSES = ("works", "wrong data", "error", "crash", "hang", "refused", "unavailable", "absent", NOT_TRIED)
"""`refused`: an error that Awaken's documentation announces. `unavailable`: there is no such memory here. `absent`: the
MPI has no such function. `not tried`: the time was up, or the command was interrupted."""
FAILURES = ("wrong data", "error", "crash", "hang")
_SEVERAL = {"works": "work", "error": "errors", "crash": "crashes", "hang": "hangs"}

REFUSALS = ("use host memory for the window, or cudaMalloc or hipMalloc", "attach host memory")
"""Words of the errors with which Awaken refuses what its documentation says it does not serve."""


def counted(counts: Mapping[str, int]) -> str:
    """How many cells have each status: "8 work, 3 wrong data, 1 crash"."""
    return ", ".join(
        f"{number} {status if number == 1 else _SEVERAL.get(status, status)}"
        for status in STATUSES
        if (number := counts.get(status, 0))
    )


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
    hang_again_limit_s: float = 3.0
    total_limit_s: float = 3600.0
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
    status: str = NOT_TRIED
    text: str = ""


@dataclass
class Outcome:
    """All cells in the order of the plan, and what it took."""

    cells: list[Cell] = field(default_factory=list)
    jobs: int = 0
    seconds: float = 0.0


SLOWER_THAN_OTHERS = 4
"""A cell that takes so many times as long as the slowest that came back is taken to hang, once another has hung."""
LEAST_STRETCH = 12
"""Cells; shorter stretches would spread the work better, and start more jobs."""


class Runner:
    """Tries the cells of a request, natively or with Awaken. `outcome` has what was found, also when run() raises."""

    def __init__(
        self,
        launcher: Launcher,
        surroundings: Surroundings,
        request: Request,
        *,
        with_awaken: bool,
        progress: Callable[[int, int, float], None] | None = None,
    ) -> None:
        """`progress` is called with the cells done, all cells, and about how many seconds are left."""
        self.outcome = Outcome()
        self._launcher = launcher
        self._surroundings = surroundings
        self._request = request
        self._with_awaken = with_awaken
        self._progress = progress or (lambda _done, _all, _left_s: None)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._started = 0.0
        self._slowest_s = 0.0
        self._has_hung = False

    def run(self) -> Outcome:
        """Raises JobFailed when jobs cannot be started at all. KeyboardInterrupt ends the jobs that run."""
        self._started = time.monotonic()
        try:
            plan, job = self._records(0, 0)
            if not self.outcome.cells:
                told = [record["text"] for record in plan if record.get("record") == "failed"]
                raise JobFailed(told[0] if told else job.explanation())
            self._try_all()
        finally:
            self.outcome.seconds = time.monotonic() - self._started
        return self.outcome

    def _try_all(self) -> None:
        count = len(self.outcome.cells)
        workers = max(1, min(self._request.jobs_at_once, count))
        # Cells that crash lie together: several stretches for each worker, so that all have some of them.
        length = count if workers == 1 else max(LEAST_STRETCH, -(-count // (4 * workers)))
        stretches = [(first, min(first + length, count)) for first in range(0, count, length)]
        failures: list[JobFailed] = []
        pool = ThreadPoolExecutor(workers)
        try:
            for done in [pool.submit(self._try_range, *stretch) for stretch in stretches]:
                # A stretch without a job does not keep the others from theirs.
                try:
                    done.result()
                except JobFailed as failure:
                    failures.append(failure)
        except BaseException:
            self._stop.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        if failures:
            raise failures[0]

    def _late(self) -> bool:
        return time.monotonic() - self._started > self._request.total_limit_s

    def _over(self) -> bool:
        return self._stop.is_set() or self._late()

    def _limit_s(self) -> float:
        """How long a cell may be silent. Waiting in full for the first that hangs is enough to know how slow this
        machine is."""
        limit_s = self._request.cell_limit_s
        if self._has_hung:
            limit_s = min(limit_s, max(self._request.hang_again_limit_s, SLOWER_THAN_OTHERS * self._slowest_s))
        return limit_s

    def _records(self, first: int, end: int) -> tuple[list[Record], Job]:
        job = Job(
            [
                *self._launcher.command(self._request.ranks, one_per_node=self._request.one_per_node),
                *self._surroundings.words(
                    required_program("awaken-probe"), self._request.words(first, end), with_awaken=self._with_awaken
                ),
            ],
            stop=self._stop,
        )
        with self._lock:
            self.outcome.jobs += 1
        kept = []
        begun = time.monotonic()
        with contextlib.closing(job.records(self._request.start_limit_s, self._limit_s())) as records:
            for record in records:
                kept.append(record)
                if record["record"] == "plan" and not self.outcome.cells:
                    self.outcome.cells = [Cell(**cell) for cell in record["cells"]]
                elif record["record"] == "begin":
                    begun = time.monotonic()
                elif record["record"] == "end":
                    with self._lock:
                        self._slowest_s = max(self._slowest_s, time.monotonic() - begun)
                    self._note(record["index"], record["status"], self._text_of(kept, record))
                    if self._late():  # one that is stopped ends by itself
                        break
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
            cell = self.outcome.cells[index]
            cell.status, cell.text = status, text
            done = sum(1 for one in self.outcome.cells if one.status != NOT_TRIED)
        count = len(self.outcome.cells)
        spent_s = time.monotonic() - self._started
        left_s = min(spent_s / done * (count - done), max(0.0, self._request.total_limit_s - spent_s))
        self._progress(done, count, left_s)

    def _try_range(self, first: int, end: int) -> None:
        cells = self.outcome.cells
        silent_starts = 0
        while first < end and not self._over():
            records, job = self._records(first, end)
            while first < end and cells[first].status != NOT_TRIED:
                first += 1
            if first == end or self._over():
                return
            if not any(record["record"] == "begin" for record in records):
                # Not even the first cell was begun, so none is to blame; once is bad luck.
                silent_starts += 1
                if silent_starts > 1:
                    raise JobFailed(job.explanation())
                continue
            silent_starts = 0
            status, text = self._blame(first, records, job)
            self._has_hung = self._has_hung or status == "hang"
            self._note(first, status, text)
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
