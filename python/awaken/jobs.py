"""Child jobs under an MPI's launcher: finding it, starting probes, reading what they tell, and ending what hangs.

A probe tells what it finds by lines on stdout that begin with "@awaken " and hold one JSON object each; launchers may
put something before the line. A job that crashes or hangs is a result like any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from awaken.installation import required_program

Record = dict[str, Any]

MARK = "@awaken "
LAUNCHER_NAMES = ("mpiexec", "mpirun")
# Set by launchers for the ranks that they start. Slurm's are no sign of that: an interactive allocation has them too.
RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK")


class NoLauncher(Exception):
    """There is nothing to start MPI jobs with; the text says what was looked for, and what to do."""


class JobFailed(Exception):
    """A job could not be started, or ended before it told anything; the text holds what it said."""


# ---------------------------------------------------------------------------------------------------------- allocation


@dataclass(frozen=True)
class Allocation:
    """What a batch system has given to this shell. Launchers read the list of hosts themselves."""

    system: str = ""  # "slurm", "pbs", or nothing
    job: str = ""
    hosts: str = ""  # as the batch system writes them
    nodes: int = 1


def find_allocation(environment: Mapping[str, str]) -> Allocation:
    """The allocation that the variables of Slurm or PBS tell of."""
    if job := environment.get("SLURM_JOB_ID", ""):
        nodes = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or "1"
        hosts = environment.get("SLURM_JOB_NODELIST", "")
        return Allocation("slurm", job, hosts, int(nodes) if nodes.isdigit() else 1)
    if node_file := environment.get("PBS_NODEFILE", ""):
        hosts_in_order: dict[str, None] = {}
        with contextlib.suppress(OSError):
            hosts_in_order = dict.fromkeys(Path(node_file).read_text().split())
        return Allocation("pbs", environment.get("PBS_JOBID", ""), ",".join(hosts_in_order), len(hosts_in_order) or 1)
    return Allocation()


# ------------------------------------------------------------------------------------------------------------ launcher


@dataclass(frozen=True)
class Launcher:
    """The words that start a job, and whose they are."""

    words: tuple[str, ...]
    family: str  # "mpich", "openmpi", "slurm" or "unknown"
    version: str  # the first line of what it says of itself

    def command(self, ranks: int, *, one_per_node: bool = False, spread: bool = False) -> list[str]:
        """The words before the program. `one_per_node`: so many nodes; `spread`: wherever the launcher puts them; else
        all on one node."""
        words = [*self.words]
        if self.family == "openmpi" and not find_allocation(os.environ).system:
            words.append("--oversubscribe")
        if one_per_node:
            words += {
                "mpich": ["-ppn", "1"],
                "openmpi": ["--map-by", "ppr:1:node"],
                "slurm": ["-N", str(ranks), "--ntasks-per-node=1"],
            }.get(self.family, [])
        elif self.family == "slurm" and not spread:
            # The others fill a node before they take the next.
            words += ["-N", "1"]
        return [*words, "-n", str(ranks)]


def launcher_family(words: Sequence[str]) -> tuple[str, str]:
    """The family of a launcher and the line by which it says so. Raises NoLauncher when it does not start."""
    try:
        done = subprocess.run(
            [*words[:1], "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoLauncher(
            f"{words[0]} cannot be started ({error}): name the launcher of your MPI with --mpiexec"
        ) from error
    text = done.stdout
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    lower = text.lower()
    if "open mpi" in lower or "openrte" in lower or "prrte" in lower or "open-mpi" in lower:
        return "openmpi", first
    if "hydra" in lower or "mpich" in lower or "intel(r) mpi" in lower:
        lines = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.strip().startswith("Version:")]
        return "mpich", f"Hydra {lines[0]}" if lines else first
    if Path(words[0]).name == "srun" or lower.startswith("slurm"):
        return "slurm", first
    return "unknown", first


def find_launcher(asked: str, environment: Mapping[str, str]) -> Launcher:
    """`asked` (the words of --mpiexec), else mpiexec or mpirun of PATH, else srun inside an allocation of Slurm, else
    the mpiexec beside `awaken`. Raises NoLauncher."""
    if asked:
        try:
            words = tuple(shlex.split(asked))
        except ValueError as error:
            raise NoLauncher(f"--mpiexec '{asked}' is no command ({error}): write it as for a shell") from error
        if not words or shutil.which(words[0]) is None:
            raise NoLauncher(f"there is no program {words[0] if words else asked!r}: check what is given to --mpiexec")
        return Launcher(words, *launcher_family(words))
    names = list(LAUNCHER_NAMES)
    if find_allocation(environment).system == "slurm":
        names.append("srun")
    candidates = [path for name in names if (path := shutil.which(name, path=environment.get("PATH")))]
    beside = required_program("awaken").parent / "mpiexec"
    if os.access(beside, os.X_OK):
        candidates.append(str(beside))
    if not candidates:
        raise NoLauncher(
            f"no MPI is found: there is no {', '.join(names)} in PATH: load the module of your MPI, install one "
            "(pip install mpich), or name its launcher with --mpiexec"
        )
    return Launcher((candidates[0],), *launcher_family(candidates[:1]))


# ----------------------------------------------------------------------------------------------------------------- jobs


@dataclass(frozen=True)
class Surroundings:
    """How ranks are started besides the launcher."""

    emulate: str = ""  # cuda:2, ... or nothing
    environment: Mapping[str, str] = field(default_factory=dict)

    def words(self, program: Path | str, arguments: Sequence[str], *, with_awaken: bool) -> list[str]:
        """What follows the launcher's words: the program with Awaken, or without it."""
        # By env(1), because each launcher has an option of its own for passing variables on.
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        emulation = ["--emulate", self.emulate] if self.emulate else []
        return [
            *("env", f"AWAKEN={int(with_awaken)}", *variables),
            *(str(required_program("awaken")), "exec", *emulation, "--", str(program), *arguments),
        ]


def descendants(process: int) -> list[int]:
    """The processes that come from `process`, by /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # "pid (name) state parent": the name may hold anything, so what counts is the last parenthesis.
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [process]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


class Job:
    """A job under way. `records()` is read to its end, whatever that is; then `ending` and `errors` tell of it."""

    GRACE_S = 3.0
    """How long a job that is told to end may take to do so."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.status: int | None = None
        self.timed_out = False
        self.errors = ""
        self.seconds = 0.0
        self._started = time.monotonic()
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise JobFailed(f"{command[0]} cannot be started: {error}") from error

    def records(self, start_limit_s: float, idle_limit_s: float) -> Iterator[Record]:
        """What the job's probes tell, until it ends, or is silent for longer than a limit and is ended for that.
        `start_limit_s` counts until the first record."""
        assert self._process.stdout is not None and self._process.stderr is not None
        deadline = time.monotonic() + start_limit_s
        rest = {"out": b"", "error": b""}
        errors: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ, "out")
            selector.register(self._process.stderr, selectors.EVENT_READ, "error")
            try:
                while selector.get_map():
                    ready = selector.select(max(0.0, deadline - time.monotonic()))
                    if not ready and time.monotonic() >= deadline:
                        self.timed_out = True
                        break
                    for key, _ in ready:
                        data = os.read(key.fd, 1 << 16)
                        if not data:
                            selector.unregister(key.fileobj)
                            continue
                        *lines, rest[key.data] = (rest[key.data] + data).split(b"\n")
                        if key.data == "error":
                            errors += lines
                            continue
                        for line in lines:
                            record = read_record(line)
                            if record is None:
                                errors.append(line)  # launchers tell of crashes on either
                                continue
                            deadline = time.monotonic() + idle_limit_s
                            yield record
            finally:
                self._end()
                self.errors = b"\n".join([*errors, rest["error"]]).decode(errors="replace")
                self.seconds = time.monotonic() - self._started

    def _end(self) -> None:
        """Leaves no process of the job behind."""
        if self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if not self.timed_out:
                    self._process.wait(timeout=self.GRACE_S)
        family = descendants(self._process.pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self._process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=self.GRACE_S)
        # What the launcher did not take along: it is ours alone, since it comes from the launcher.
        for process in family:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        self.status = self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def explanation(self, lines: int = 6) -> str:
        """The end of what the job said besides records, for messages."""
        said = [line for line in self.errors.splitlines() if line.strip()]
        ours = [line for line in said if line.startswith("awaken: ")]
        if ours:
            return ours[-1].removeprefix("awaken: ")
        return " | ".join(said[-lines:]) or f"it ended with status {self.status} and said nothing"


def read_record(line: bytes) -> Record | None:
    """The record in a line of output; None when it holds none, or only a part of one."""
    text = line.decode(errors="replace")
    at = text.find(MARK)
    if at < 0:
        return None
    with contextlib.suppress(ValueError):
        record = json.loads(text[at + len(MARK) :])
        if isinstance(record, dict):
            return record
    return None


def run_probe(
    launcher: Launcher,
    surroundings: Surroundings,
    ranks: int,
    arguments: Sequence[str],
    *,
    with_awaken: bool,
    limit_s: float,
    spread: bool = False,
) -> tuple[list[Record], Job]:
    """Runs one command of the probe to its end, and gives what it told. Whether it came to its end is for the caller to
    see: a job that did has told {"record": "done"}."""
    program = required_program("awaken-probe")
    words = surroundings.words(program, arguments, with_awaken=with_awaken)
    job = Job([*launcher.command(ranks, spread=spread), *words])
    return list(job.records(limit_s, limit_s)), job


def only(records: Sequence[Record], kind: str) -> list[Record]:
    """Those of a kind, without the word that says so."""
    return [
        {key: value for key, value in record.items() if key != "record"}
        for record in records
        if record.get("record") == kind
    ]


def succeeded(records: Sequence[Record]) -> bool:
    """Whether a probe came to its end."""
    return any(record.get("record") == "done" for record in records)
