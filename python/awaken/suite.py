# SPDX-License-Identifier: Apache-2.0
"""Runs the measurements of a report, one after another, each into a file of its own.

Whatever a run leaves is kept: a measurement's file appears only when it is complete, and a later run with the same
folder does only what is missing, has failed, or is asked for differently. A measurement that crashes or hangs is a
result too: it is noted, and the next one starts.

    FOLDER/steps.json          the commands, how each ended, how long it took
    FOLDER/NAME.json           what a measurement wrote
    FOLDER/NAME.paths.json     the path report of its MPI calls through Awaken, where there is one
    FOLDER/NAME.trace.json     its timeline, where one was asked for
    FOLDER/NAME.log            what it printed
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from awaken import input_files, interruption, output_files, terminal
from awaken.jobs import RANKS, Launcher, launcher_family, without_ranks
from awaken.results import BETWEEN_NODES

GRACE_S = 15.0
"""What a step that is told to end may take: the doctor ends its own jobs before, each of which has some seconds."""
STEPS_FILE = "steps.json"
LONGEST_STEPS_FILE = 16 << 20
LOG_TAIL = 400
OUT, PATHS, TRACE = "{out}", "{paths}", "{trace}"
"""In a step's command or environment: the files that the measurement is to write; the last one is a folder."""
SECONDARY = (".paths.json", ".trace.json")
"""How files are called that a measurement writes beside its result."""


@dataclass(frozen=True)
class Step:
    """One measurement."""

    name: str
    """Of its files; letters, digits, - and _."""
    title: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    printed: bool = False
    """Whether what it prints is the result, and not a file that it writes."""
    good: tuple[int, ...] = (0, 1)
    """Exit statuses after which its file is worth reading: 1 says that something was wrong, which the file tells."""


@dataclass
class Outcome:
    """How a step ended."""

    name: str
    title: str
    command: str
    status: int | None = None
    """Exit status, negative for a signal; None after its time was up."""
    seconds: float = 0.0
    problem: str = ""
    """Why there is no result; empty when there is."""
    kept: bool = False
    """Whether an earlier run had done it."""
    files: tuple[Path, ...] = ()

    @property
    def ended(self) -> str:
        status = f"status {self.status}, " if self.status else ""
        return self.problem or f"{status}{self.seconds:.1f} s"


@dataclass(frozen=True)
class Plan:
    """What a suite is to measure with."""

    awaken: Path
    launcher: tuple[str, ...]
    """Words before "-n RANKS"; or with {ranks} in them, all of them."""
    emulate: str = ""
    full: bool = False
    ranks: int = 2
    apps: Path | None = None
    """Folder with the programs of apps/ for this MPI."""
    nodes: int = 1
    """Of the allocation."""
    commands: frozenset[str] = frozenset()
    """Of awaken, those that this installation has."""

    def launched(self, ranks: int, words: Sequence[str]) -> tuple[str, ...]:
        if any(RANKS in word for word in self.launcher):
            return (*(word.replace(RANKS, str(ranks)) for word in self.launcher), *words)
        return (*self.launcher, "-n", str(ranks), *words)

    def on_nodes(self, words: Sequence[str]) -> tuple[str, ...]:
        """Two ranks, each on a node of its own."""
        return (*Launcher(self.launcher, *launcher_family(self.launcher)).command(2, one_per_node=True), *words)


def native_commands(awaken: Path) -> frozenset[str]:
    """The commands that `awaken help` lists; and bench only where the benchmarks are installed."""
    try:
        done = subprocess.run([str(awaken), "help"], capture_output=True, text=True, timeout=30, check=False)
        listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line.split()}
        bench = subprocess.run([str(awaken), "bench", "--list"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(listed if bench.returncode == 0 else listed - {"bench"})


def steps(plan: Plan) -> list[Step]:
    """The measurements of a plan, the quick and telling ones first."""
    found: list[Step] = []
    emulate = ("--emulate", plan.emulate) if plan.emulate else ()
    # The doctor and the topology start their own jobs, which have to be of the same MPI as the rest.
    jobs = ("--launcher", shlex.join(without_ranks(plan.launcher)))
    if "doctor" in plan.commands:
        # Both sides of the matrix fit into the step's time.
        matrix = ("--matrix", "--matrix-limit", "300") if plan.full else ()
        found.append(
            Step("doctor", "doctor", (str(plan.awaken), "doctor", *emulate, *jobs, *matrix, "--quiet", "--json", OUT))
        )
    if "topo" in plan.commands:
        found.append(Step("topo", "topology", (str(plan.awaken), "topo", *emulate, *jobs, "--json", OUT)))
    if "bench" in plan.commands:
        found += _benchmarks(plan, emulate)
    if plan.apps is not None:
        found += _applications(plan, plan.apps)
    return found


def _benchmarks(plan: Plan, emulate: Sequence[str]) -> list[Step]:
    largest = "1G" if plan.full and not plan.emulate else "16M" if plan.full else "4M" if not plan.emulate else "1M"
    seconds = "1" if plan.full else "0.15"
    factor = "2" if plan.full else "8"
    pairs = ("latency", "bw", "bibw") if plan.full else ("latency", "bw")
    collectives = (
        ("allreduce", "reduce", "bcast", "gather", "allgather", "alltoall", "reduce_scatter")
        if plan.full
        else ("allreduce",)
    )
    found = []

    def add(test: str, ranks: int, contenders: str, largest_size: str, *, between_nodes: bool = False) -> None:
        name = f"{test}{BETWEEN_NODES}" if between_nodes else test if ranks == 2 else f"{test}-{ranks}"
        words = (str(plan.awaken), "bench", test, "D", "D", *emulate, "--compare", contenders)
        words += (
            "-m",
            f"8:{largest_size}",
            "--step-factor",
            factor,
            "--max-time",
            seconds,
            "--no-progress",
            "--json",
            OUT,
        )
        title = f"{test}{' between nodes' if between_nodes else ''}, {ranks} ranks"
        environment = {"AWAKEN_REPORT": PATHS}
        if between_nodes and plan.nodes < 2:
            environment["AWAKEN_TEST_NODES"] = "2"
        command = plan.on_nodes(words) if between_nodes and plan.nodes > 1 else plan.launched(ranks, words)
        found.append(Step(name, title, command, environment))

    for test in pairs:
        add(test, 2, "native,awaken,staged,xccl,raw" if test == "latency" else "native,awaken,staged,raw", largest)
    for test in pairs if plan.full else ():
        add(test, 2, "native,awaken,staged", largest, between_nodes=True)
    # Nobody stages by hand without the target's help.
    for test in ("put_latency", "get_bw"):
        add(test, 2, "native,awaken,raw", largest)
    for test in collectives:
        add(
            test, plan.ranks, "native,awaken,staged,xccl", largest if plan.full else "1M" if not plan.emulate else "64K"
        )
    return found


HOST_ONLY = ("ping_pong_staged", "ping_pong_cpu")
"""Programs that give no device memory to MPI, so that a path report would have nothing to tell."""
PING_PONGS = ("ping_pong_gpu_aware", *HOST_ONLY)


def _applications(plan: Plan, apps: Path) -> list[Step]:
    """The programs of the folder that are known here, on problems that take seconds, with their results checked. The
    ghost exchange is traced: its steps are short and alike, so that the timeline shows all kinds of calls."""
    small = bool(plan.emulate)
    ping_pong = f"--max-bytes {'1M' if small else '256M'} --iterations 5"
    programs = {
        **dict.fromkeys(PING_PONGS, (2, ping_pong)),
        "ghost_exchange": (plan.ranks, f"{'-i 200 -j 200 -I 10' if small else '-i 2000 -j 2000 -I 50'} -c --check"),
        "xtx": (
            plan.ranks,
            "--dofs 1000 --vectors 100 --block 20 --repeats 1"
            if small
            else "--dofs 70000 --vectors 3660 --block 366 --repeats 3",
        ),
        "allreduce": (
            plan.ranks,
            "--elements 100000 --iterations 3 --buffers 3"
            if small
            else "--elements 10000000 --iterations 10 --buffers 5",
        ),
    }
    found = []
    for program, (ranks, arguments) in programs.items():
        if not os.access(apps / program, os.X_OK):
            continue
        words = (str(plan.awaken), "exec", "--", str(apps / program), *arguments.split())
        environment = {"AWAKEN_EMULATE": plan.emulate} if plan.emulate else {}
        if program not in HOST_ONLY:
            environment["AWAKEN_REPORT"] = PATHS
        if program == "ghost_exchange":
            environment["AWAKEN_TRACE"] = TRACE
        # There is a benchmark of that name.
        name = "allreduce_program" if program == "allreduce" else program
        title = f"{name.replace('_', ' ')}, {ranks} ranks"
        found.append(Step(name, title, plan.launched(ranks, words), environment, printed=True))
    return found


# --------------------------------------------------------------------------------------------------------------- runs


class Suite:
    """Runs steps into a folder."""

    def __init__(self, folder: Path, limit_s: float, say: Callable[[str], None]) -> None:
        """Raises OSError where nothing can be written to the folder, or another suite runs there."""
        self._folder = folder
        self._limit_s = limit_s
        self._say = say
        self._done: dict[str, dict[str, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        # As long as this process lives, however it ends.
        self._lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(errno.EBUSY, "another awaken report measures there") from None
        except OSError:
            pass  # a file system without locks
        with contextlib.suppress(OSError, ValueError):
            earlier = json.loads(input_files.read_text(folder / STEPS_FILE, LONGEST_STEPS_FILE))
            if isinstance(earlier, dict) and isinstance(earlier.get("steps"), dict):
                self._done = {name: one for name, one in earlier["steps"].items() if isinstance(one, dict)}
        self._save()

    def run(self, wanted: Sequence[Step]) -> list[Outcome]:
        """All steps; those that an earlier run has done are kept. KeyboardInterrupt ends the step that runs, and is
        passed on."""
        outcomes = []
        for number, step in enumerate(wanted, 1):
            head = f"[{number}/{len(wanted)}] {step.title}"
            kept = self._earlier(step)
            if kept is not None:
                self._say(f"{head}: done before, kept")
                outcomes.append(kept)
                continue
            self._say(f"{head} ...")
            outcome = self._run(step)
            self._say(f"{head}: {outcome.ended}")
            outcomes.append(outcome)
            self._remember(step, outcome)
        return outcomes

    def files(self, step: Step) -> tuple[Path, ...]:
        """The results of a step that are there."""
        names = [step.name + (".log" if step.printed else ".json"), *(step.name + end for end in SECONDARY)]
        return tuple(self._folder / name for name in names if (self._folder / name).exists())

    def _earlier(self, step: Step) -> Outcome | None:
        record = self._done.get(step.name)
        files = self.files(step)
        if not record or record.get("key") != self._key(step) or record.get("problem") or not files:
            return None
        seconds = record.get("seconds")
        return Outcome(
            step.name,
            step.title,
            str(record.get("command", "")),
            record["status"] if isinstance(record.get("status"), int) else 0,
            float(seconds) if isinstance(seconds, (int, float)) else 0.0,
            kept=True,
            files=files,
        )

    @staticmethod
    def _key(step: Step) -> list[Any]:
        return [list(step.command), dict(step.environment)]

    def _remember(self, step: Step, outcome: Outcome) -> None:
        self._done[step.name] = {
            "key": self._key(step),
            "command": outcome.command,
            "status": outcome.status,
            "seconds": round(outcome.seconds, 2),
            "problem": outcome.problem,
        }
        try:
            self._save()
        except OSError as error:
            self._say(f"{STEPS_FILE} cannot be written ({error.strerror}): a rerun will not know of {step.name}")

    def _save(self) -> None:
        with output_files.replacing(self._folder / STEPS_FILE) as stream:
            stream.write(json.dumps({"schema": "awaken-suite", "version": 1, "steps": self._done}, indent=1) + "\n")

    def _run(self, step: Step) -> Outcome:
        """Into files and a folder with other names, which get theirs when they are complete."""
        parts = {
            word: self._folder / f"{step.name}{end}"
            for word, end in ((OUT, ".part.json"), (PATHS, ".paths.part.json"), (TRACE, ".part.trace"))
        }
        self._remove(*parts.values(), *self.files(step))

        def filled(word: str) -> str:
            for placeholder, part in parts.items():
                word = word.replace(placeholder, str(part))
            return word

        command = [filled(word) for word in step.command]
        environment = {**os.environ, **{name: filled(value) for name, value in step.environment.items()}}
        shown = shlex.join(str(word).replace(OUT, f"{step.name}.json") for word in step.command)
        outcome = Outcome(step.name, step.title, shown)
        log = self._folder / f"{step.name}.part.log"
        started = time.monotonic()
        try:
            outcome.status = run_group(command, environment, log, self._limit_s)
            log.replace(self._folder / f"{step.name}.log")
            outcome.problem = self._problem(step, outcome, parts[OUT])
            # What is told to end because its time is up may have written what it had.
            if not outcome.problem or (outcome.status is None and has_content(parts[OUT])):
                self._keep(step, parts)
                outcome.files = self.files(step)
        except OSError as error:
            what = "started" if error.filename in (None, command[0]) else "written"
            outcome.problem = f"{error.filename or command[0]} cannot be {what} ({error.strerror})"
        except KeyboardInterrupt:
            if has_content(parts[OUT]):
                self._keep(step, parts)
            raise
        finally:
            outcome.seconds = time.monotonic() - started
            if log.exists():
                log.replace(self._folder / f"{step.name}.log")
            self._remove(*parts.values())
        return outcome

    def _keep(self, step: Step, parts: Mapping[str, Path]) -> None:
        for part, end in (
            (parts[OUT], ".json"),
            (parts[PATHS], ".paths.json"),
            (parts[TRACE] / "trace.json", ".trace.json"),
        ):
            if part.exists():
                part.replace(self._folder / f"{step.name}{end}")

    @staticmethod
    def _remove(*paths: Path) -> None:
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _problem(self, step: Step, outcome: Outcome, out: Path) -> str:
        """Why there is no result; empty when there is."""
        if outcome.status is None:
            return f"it did not end within {self._limit_s:.0f} s"
        if outcome.status < 0:
            return f"it was ended by {signal_name(-outcome.status)}"
        good = outcome.status == 0 if step.printed else outcome.status in step.good and has_content(out)
        return "" if good else f"it ended with status {outcome.status}: {self._told(step)}"

    def _told(self, step: Step) -> str:
        log = self._folder / f"{step.name}.log"
        text = " ".join(log.read_text(errors="replace").split()) if log.exists() else ""
        return text[-LOG_TAIL:] or "it printed nothing"


def signal_name(number: int) -> str:
    """SIGKILL; "signal 35" for those without a name of their own, which real-time signals are."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def has_content(file: Path) -> bool:
    """Whether there is anything in a file: what a program makes first and fills last may be empty when it fails."""
    return file.exists() and file.stat().st_size > 0


def run_group(command: Sequence[str], environment: Mapping[str, str], log: Path, limit_s: float) -> int | None:
    """Runs a command in a process group of its own, which ends with it. Returns its status, None when its time was
    up."""
    process: subprocess.Popen[bytes] | None = None
    with log.open("wb") as sink:
        try:
            with interruption.deferred():
                process = subprocess.Popen(
                    list(command),
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process is not None:
                end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a launcher and all that it started: first by asking, so that it can end its ranks in
    order. An interrupt while it is asked (a second Ctrl-C) cuts that short."""
    try:
        if signal_group(process, signal.SIGTERM):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
    finally:
        signal_group(process, signal.SIGKILL)
        process.wait()


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Whether there was anybody to get the signal."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
        return True
    return False


def progress(text: str) -> None:
    """One line on stderr; on a terminal, the line of what runs is written over when it is done."""
    if terminal.rewrites_lines():
        terminal.rewrite_line(text, end="" if text.endswith("...") else "\n")
    else:
        print(text, file=sys.stderr, flush=True)
