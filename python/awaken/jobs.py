# SPDX-License-Identifier: Apache-2.0
"""Child jobs under an MPI's launcher: finding it, starting probes, reading what they tell, and ending what hangs.

A probe tells what it finds by lines on stdout that begin with "@awaken " and hold one JSON object each; launchers may
put something before the line. A job that crashes or hangs is a result like any other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from awaken import input_files, interruption
from awaken.installation import required_program
from awaken.output_files import Misuse

Record = dict[str, Any]

MARK = "@awaken "
LARGEST_NODE_FILE = 64 << 20
LAUNCHER_NAMES = ("mpiexec", "mpirun")
ROOT_REFUSED = "has detected an attempt to run as root"
"""So Open MPI's launchers begin half a page."""
ROOT_ADVICE = (
    "Open MPI starts no job as root: run as another user, or set OMPI_ALLOW_RUN_AS_ROOT=1 and "
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, as in a container"
)
RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK")
"""Set by launchers for the ranks that they start. Slurm's are no sign of that: an interactive allocation has them
too."""
SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")
"""How many ranks the launcher's job has. Slurm's comes last: mpiexec may have started its own processes by a step of
one task."""
JOB_VARIABLES = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MPI_LOCAL", "MV2_COMM_WORLD_", "HYDI_")
"""What the names of variables begin with by which a process finds the others of its job. PMIX_MCA_ and OMPI_MCA_ are a
user's settings."""


EMULATION = re.compile(r"(cuda|hip[567]?)(:([1-9]|1[0-6]))?")
"""Kinds and numbers of emulated GPUs (docs/emulator.md)."""
BYTES = re.compile(r"0*[1-9][0-9]{0,18}[kKmMgG]?")


def emulation(text: str) -> str:
    """An argument of --emulate, for argparse: nothing, or a kind and number of GPUs."""
    if text and not EMULATION.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text} is not a kind and number of GPUs: write for instance --emulate cuda:2"
        )
    return text


def size_of_bytes(text: str) -> str:
    """An argument that is a size, for argparse; as the programs take it that are given it."""
    if text and not BYTES.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text} is not a size: write a number, with K, M or G behind it, such as 64M")
    return text


def size_of_message(text: str) -> str:
    """A size_of_bytes() that the probe takes for its messages (bench/probe/module.cpp): at most 1G."""
    if size_of_bytes(text):
        unit = " KMG".find(text[-1].upper())
        size_bytes = int(text[:-1]) << 10 * unit if unit > 0 else int(text)
        if size_bytes > 1 << 30:
            raise argparse.ArgumentTypeError(f"{text} is too large for a message: use at most 1G")
    return text


def no_gpu(why_not: str) -> str:
    """What a command says that needs a GPU and finds none, in one line."""
    return f"there is no GPU ({why_not}): make one visible, or see how this works without one by --emulate cuda:2"


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
            hosts_in_order = dict.fromkeys(input_files.read_text(Path(node_file), LARGEST_NODE_FILE).split())
        return Allocation("pbs", environment.get("PBS_JOBID", ""), ",".join(hosts_in_order), len(hosts_in_order) or 1)
    return Allocation()


def within_a_job(environment: Mapping[str, str]) -> bool:
    """Whether this process is one of several ranks. `srun --pty bash` starts a job of one, which is a shell."""
    if not any(environment.get(name) for name in RANK_VARIABLES):
        return False
    return next((environment[name] for name in SIZE_VARIABLES if environment.get(name)), "") != "1"


def leave_job(environment: MutableMapping[str, str]) -> None:
    """Removes the variables of the job that this process is the only rank of: jobs started from here would take
    themselves for it."""
    if any(environment.get(name) for name in RANK_VARIABLES):
        for name in list(environment):
            if name.startswith(JOB_VARIABLES) and not name.startswith("PMIX_MCA_"):
                del environment[name]


def leave_or_refuse(command: str, environment: MutableMapping[str, str]) -> None:
    """For commands that start jobs by themselves. As many of them as a launcher starts would start their jobs at once,
    and write the same files: raises Misuse as one of several ranks, and leaves a job of one."""
    if within_a_job(environment):
        found = next(name for name in RANK_VARIABLES if environment.get(name))
        raise Misuse(
            f"awaken {command} starts jobs by itself: call it without mpiexec or srun, once; in a shell that one of "
            f"them has started: env -u {found} awaken {command}"
        )
    leave_job(environment)


# ------------------------------------------------------------------------------------------------------------ launcher

PLACING = ("-ppn", "-perhost", "--map-by", "-map-by", "--npernode", "-npernode", "--ppr", "-N")
"""Options by which a user says where ranks go; a second one would be refused or win."""


RANKS = "{ranks}"
"""Stands for the number of ranks in the words of a launcher."""
RANKS_OPTIONS = ("-n", "-np", "--ntasks", "--np")


def named_ranks(words: Sequence[str]) -> tuple[tuple[str, ...], int | None]:
    """The words of a launcher with {ranks} in the place of the number of ranks ("-n 4"), and that number; as they are
    where they name none, or several, as for several programs."""
    places: list[tuple[int, str, int]] = []
    for at, word in enumerate(words):
        joined = re.fullmatch(r"(-n|--ntasks=|--np=)([0-9]+)", word)
        if joined:
            places.append((at, joined[1] + RANKS, int(joined[2])))
        elif at > 1 and words[at - 1] in RANKS_OPTIONS and re.fullmatch("[0-9]+", word):
            places.append((at, RANKS, int(word)))
    if len(places) != 1 or places[0][2] == 0 or any(RANKS in word for word in words):
        return tuple(words), None
    at, word, ranks = places[0]
    return (*words[:at], word, *words[at + 1 :]), ranks


def without_ranks(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a launcher without those that hold {ranks}, so that "-n RANKS" may follow; as they are where it may
    not, as behind a program that comes after them ("mpiexec -n {ranks} numactl -l")."""
    for at, word in enumerate(words):
        joined = word in tuple(f"{option}{RANKS}" for option in ("-n", "--ntasks=", "--np="))
        if joined or (word in RANKS_OPTIONS and words[at + 1 : at + 2] == (RANKS,)):
            after = words[at + (1 if joined else 2) :]
            # A word that is no option must be the argument of one.
            options = all(one.startswith("-") or (i and after[i - 1].startswith("-")) for i, one in enumerate(after))
            rest = (*words[:at], *after)
            return rest if options and rest and not any(RANKS in one for one in rest) else words
    return words


@dataclass(frozen=True)
class Launcher:
    """The words that start a job, and whose they are."""

    words: tuple[str, ...]
    family: str  # "mpich", "openmpi", "slurm" or "unknown"
    version: str  # the first line of what it says of itself
    ranks: int | None = None  # how many the user's words named

    def command(self, ranks: int, *, one_per_node: bool = False, spread: bool = False) -> list[str]:
        """The words before the program. `one_per_node`: so many nodes; `spread`: wherever the launcher puts them; else
        all on one node. Where the words hold {ranks}, they say themselves where ranks go."""
        if any(RANKS in word for word in self.words):
            return [word.replace(RANKS, str(ranks)) for word in self.words]
        words = [*self.words]
        if self.family == "openmpi":
            # An allocation may have fewer tasks than GPUs, and this machine fewer cores than a probe has ranks.
            words.append("--oversubscribe")
        if not spread and not any(word.split("=")[0] in PLACING for word in self.words[1:]):
            on_each = 1 if one_per_node else ranks
            words += {
                "mpich": ["-ppn", str(on_each)],
                "openmpi": ["--map-by", f"ppr:{on_each}:node"],
                "slurm": ["-N", str(ranks), "--ntasks-per-node=1"] if one_per_node else ["-N", "1"],
            }.get(self.family, [])
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
            f"{words[0]} cannot be started ({error}): name the launcher of your MPI with --launcher"
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


def add_launcher_option(parser: argparse._ActionsContainer) -> None:
    """--launcher, as all commands that start jobs spell it, and --mpiexec, as some did."""
    parser.add_argument(
        "--launcher",
        "--mpiexec",
        default="",
        metavar="'WORDS'",
        help="what starts ranks, instead of the mpiexec that is found: mpiexec, 'srun --mpi=pmix'; ranks that it names "
        "('mpiexec -n 4') are those of --ranks",
    )


def _launchers_of_installations(environment: Mapping[str, str], awaken: Path | None) -> list[str]:
    """Those that come with the MPI in use: of another MPI, each rank would be a job of its own."""
    library = Path(environment.get("AWAKEN_MPI", ""))
    # <prefix>/lib/libmpi.so, and deeper where a system keeps several MPIs or kinds of machine.
    libraries = [folder for folder in library.parents if library.is_absolute() and folder.name in ("lib", "lib64")]
    folders = [folder.with_name("bin") for folder in libraries] + ([awaken.parent] if awaken else [])
    return [str(folder / name) for folder in folders for name in LAUNCHER_NAMES if os.access(folder / name, os.X_OK)]


def _launchers_of_the_build(awaken: Path | None) -> list[str]:
    """Of the MPIs for which a build was made, MPICH first, where `awaken` lies in one that nobody has installed."""
    cache = awaken.resolve().parents[1] / "CMakeCache.txt" if awaken else None
    if cache is None or not cache.is_file():
        return []
    found = dict(
        re.findall(r"^AWAKEN_(MPICH|OPENMPI)_ROOT:PATH=(.+)$", cache.read_text(errors="replace"), re.MULTILINE)
    )
    folders = [Path(found[mpi], "bin") for mpi in ("MPICH", "OPENMPI") if mpi in found]
    return [str(folder / name) for folder in folders for name in LAUNCHER_NAMES if os.access(folder / name, os.X_OK)]


def launcher_words(
    asked: str, environment: Mapping[str, str], awaken: Path | None
) -> tuple[tuple[str, ...], int | None]:
    """`asked` (the words of --launcher), else mpiexec or mpirun of the installation whose library AWAKEN_MPI names,
    else beside the program `awaken`, else of PATH, else srun inside an allocation of Slurm, else of the MPI for which a
    build in the source tree was made. {ranks} stands in the place of a number of ranks that they name, which is given
    too. Raises NoLauncher."""
    if asked:
        try:
            words = tuple(shlex.split(asked))
        except ValueError as error:
            raise NoLauncher(f"--launcher '{asked}' is not a command ({error}): write it as for a shell") from error
        if not words or shutil.which(words[0]) is None:
            raise NoLauncher(f"there is no program {words[0] if words else asked!r}: check what is given to --launcher")
        return named_ranks(words)
    names = list(LAUNCHER_NAMES)
    if find_allocation(environment).system == "slurm":
        names.append("srun")
    in_path = (shutil.which(name, path=environment.get("PATH")) for name in names)
    candidates = [
        *_launchers_of_installations(environment, awaken),
        *filter(None, in_path),
        *_launchers_of_the_build(awaken),
    ]
    if not candidates:
        raise NoLauncher(
            f"no MPI is found: there is no {', '.join(names)} in PATH: load the module of your MPI, install one "
            "(pip install mpich), or name its launcher with --launcher"
        )
    return (candidates[0],), None


def find_launcher(asked: str, environment: Mapping[str, str]) -> Launcher:
    """The launcher of `launcher_words`, and whose it is. Raises NoLauncher, NotInstalled."""
    words, ranks = launcher_words(asked, environment, None if asked else required_program("awaken"))
    return Launcher(without_ranks(words), *launcher_family(words), ranks)


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


MARK_VARIABLE = "JOB_OF_AWAKEN"
"""In the environment of each process of a job: what it is found by when its launcher is gone."""


def members(launcher: int, mark: str) -> set[int]:
    """The living processes of a job on this machine, but its launcher: those that come from it, and those that carry
    its mark."""
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    needle = f"{MARK_VARIABLE}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            # "pid (name) state parent": the name may hold anything, so what counts is the last parenthesis.
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.name))
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    waiting = [launcher]
    while waiting:
        more = children.get(waiting.pop(), [])
        found.update(more)
        waiting += more
    return found - {launcher, os.getpid()}


def end(process: subprocess.Popen[Any], mark: str, grace_s: float) -> None:
    """Ends a launcher, and leaves no process of its job behind. It is asked first: nobody else can reach its ranks on
    other nodes. What it does not take along is ours alone to end; ranks may be in sessions of their own."""
    family: set[int] = set()
    try:
        if process.poll() is None:
            # While the launcher is there, all that comes from it can be found: a process that is just becoming another
            # program has no environment, and so no mark.
            family = members(process.pid, mark)
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=grace_s)
    finally:  # whoever interrupts the asking (a second Ctrl-C) wants it quicker, not undone
        if process.poll() is None:
            family |= members(process.pid, mark)
            process.kill()
        killed: set[int] = set()
        # What they start meanwhile is found in the next turn.
        while left := (family | members(process.pid, mark)) - killed:
            for one in left:
                with contextlib.suppress(OSError):
                    os.kill(one, signal.SIGKILL)
            killed |= left
        # A process within a system call that never ends (a GPU's driver) cannot be killed, and is not waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_s)


class Job:
    """A job under way. `records()`, or `output()`, is read to its end, whatever that is; then `status`, `timed_out` and
    `errors` tell of it."""

    GRACE_S = 3.0
    """How long a job that is told to end may take to do so."""
    AFTERMATH_S = 5.0
    """How long a job may go on after one of its ranks has told of a crash."""
    LOOK_S = 0.2
    """How often it is looked whether the job is to be stopped."""
    KEPT_BYTES = 64 << 10
    """Of what a job says besides records, the end is kept."""
    LONGEST_LINE = 4 << 20
    """Bytes; no record is as long, and what has no line ends is not collected without limit."""

    def __init__(self, command: Sequence[str], *, stop: threading.Event | None = None) -> None:
        """`stop`: ends the job when it is set."""
        self.command = list(command)
        self.status: int | None = None
        self.timed_out = False
        self.seconds = 0.0
        self._stop = stop or threading.Event()
        self._mark = uuid.uuid4().hex
        self._deadline = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._said: deque[bytes] = deque()
        self._said_bytes = 0

    def records(self, start_limit_s: float, idle_limit_s: float) -> Generator[Record, None, None]:
        """What the job's probes tell, until it ends, or is silent for longer than a limit and is ended for that.
        `start_limit_s` counts until the first record. Raises JobFailed when the job cannot be started."""
        rest = b""
        with contextlib.closing(self._chunks(start_limit_s)) as chunks:
            for is_error, data in chunks:
                if is_error:
                    self._note(data)
                    continue
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    record = read_record(line)
                    if record is None:
                        self._note(line + b"\n")  # launchers tell of crashes on either
                        continue
                    if record.get("record") in ("crash", "abandoned"):
                        idle_limit_s = min(idle_limit_s, self.AFTERMATH_S)
                    self._deadline = time.monotonic() + idle_limit_s
                    yield record
                if len(rest) > self.LONGEST_LINE:
                    self._note(rest[-self.KEPT_BYTES :])
                    rest = b""
        self._note(rest[-self.KEPT_BYTES :])

    def all_records(self, start_limit_s: float, idle_limit_s: float) -> list[Record]:
        """The same as a list."""
        with contextlib.closing(self.records(start_limit_s, idle_limit_s)) as told:
            return list(told)

    def output(self, idle_limit_s: float, progress: Callable[[bytes], None] | None = None) -> bytes:
        """All that the job prints on stdout, for programs that tell no records; `progress` is given what comes on
        stderr meanwhile. Either is a sign of life. Raises JobFailed when the job cannot be started."""
        parts = []
        with contextlib.closing(self._chunks(idle_limit_s)) as chunks:
            for is_error, data in chunks:
                self._deadline = time.monotonic() + idle_limit_s
                if not is_error:
                    parts.append(data)
                    continue
                self._note(data)
                if progress:
                    progress(data)
        return b"".join(parts)

    @property
    def errors(self) -> str:
        """The end of what it said besides records. It ends up on a terminal, to which it may send no commands: control
        characters but the ends of lines are shown as \\xNN."""
        text = b"".join(self._said)[-self.KEPT_BYTES :].decode(errors="replace")
        return "".join(c if c.isprintable() or c in "\n\r\t" else f"\\x{ord(c):02x}" for c in text)

    def _note(self, data: bytes) -> None:
        self._said.append(data)
        self._said_bytes += len(data)
        while self._said_bytes - len(self._said[0]) > self.KEPT_BYTES:
            self._said_bytes -= len(self._said.popleft())

    def _chunks(self, limit_s: float) -> Generator[tuple[bool, bytes], None, None]:
        """Pieces of stderr (True) and stdout (False) as they come, until both have ended, the job is to be stopped, or
        the deadline is over, which readers may put off. Nothing of the job is left afterwards."""
        started = time.monotonic()
        self._deadline = started + limit_s
        try:
            with interruption.deferred():
                self._process = self._start()
            assert self._process.stdout is not None and self._process.stderr is not None
            with selectors.DefaultSelector() as selector:
                selector.register(self._process.stdout, selectors.EVENT_READ, False)
                selector.register(self._process.stderr, selectors.EVENT_READ, True)
                while selector.get_map() and not self._stop.is_set():
                    # Looked at in each turn: there is always something to read of a job that never stops talking.
                    left_s = self._deadline - time.monotonic()
                    if left_s <= 0:
                        self.timed_out = True
                        break
                    for key, _ in selector.select(min(left_s, self.LOOK_S)):
                        data = os.read(key.fd, 1 << 16)
                        if data:
                            yield key.data, data
                        else:
                            selector.unregister(key.fileobj)
                # What it has said by now counts, and is no more than a pipe holds.
                if self._stop.is_set():
                    for key, _ in selector.select(0):
                        yield key.data, os.read(key.fd, 1 << 16)
            if not self.timed_out and not self._stop.is_set():
                # A launcher that has closed its output is about to end by itself, with a status worth knowing.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=self.GRACE_S)
        finally:
            try:
                self._end()
            finally:
                self.seconds = time.monotonic() - started

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self.command,
                env={**os.environ, MARK_VARIABLE: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise JobFailed(f"{self.command[0]} cannot be started ({error.strerror or error})") from error

    def _end(self) -> None:
        if self._process is None:
            return
        try:
            end(self._process, self._mark, self.GRACE_S)
        finally:
            self.status = self._process.poll()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()

    def explanation(self, lines: int = 6) -> str:
        """What the job said last besides records, for messages."""
        if ROOT_REFUSED in self.errors:
            return ROOT_ADVICE
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
    return job.all_records(limit_s, limit_s), job


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
