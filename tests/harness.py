# SPDX-License-Identifier: Apache-2.0
"""Starting rank programs under the MPIs of this machine, and cleaning up after them.

A run gets a session, a temporary folder and a mark in its environment of its own. When it hangs (its time is up, or a
program's watch-dog says so), the stacks of its processes are taken with gdb and all of them are killed. When it
ends, it
must have left nothing behind: no process, no file in /dev/shm. Files there belong to the run whose processes were seen
to have them open, so that runs may go on beside each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
MARK = "RANK_TEST_RUN"
SHARED_MEMORY = Path("/dev/shm")
HANG_S = 300.0
"""Seconds that end a hang and judge nothing: of commands, compilers and launches, which take some seconds."""
LONG_HANG_S = 1800.0
"""The same of builds, many ranks and long sequences, which take minutes."""
LEFTOVER_S = 60.0
"""How long what a run has started may take to end after it."""
SLOWNESS = 5  # of programs that a sanitizer watches; tests/ranks/support.h has the same for limits inside them


def build_dir() -> Path:
    """The build under test: TEST_BUILD_DIR, else that of `make test`."""
    return (ROOT / os.environ.get("TEST_BUILD_DIR", "build/quick")).resolve()


def awaken() -> Path:
    """The `awaken` program of the build under test."""
    return build_dir() / "bin" / "awaken"


def sanitizer() -> str:
    """ "address", "thread", or nothing: how the build under test is instrumented."""
    cache = build_dir() / "CMakeCache.txt"
    if not cache.exists():
        return ""
    found = re.search(r"^AWAKEN_SANITIZE:[A-Z]+=(.*)$", cache.read_text(), re.MULTILINE)
    return found.group(1) if found else ""


def patient(seconds: float) -> float:
    """A time limit made for an ordinary build, as it is for the build under test."""
    return seconds * SLOWNESS if sanitizer() else seconds


def sanitizer_environment() -> dict[str, str]:
    """What instrumented programs need; empty for an ordinary build."""
    if not sanitizer():
        return {}
    return {
        # A program that is not instrumented gets the sanitizer's library after ours, which needs it: as ours defines
        # MPI's functions and dlopen() alone, nothing is kept from the sanitizer. The MPIs keep what they allocated; a
        # leak of ours shows in the unit tests.
        "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # Where a thread first uses thread-local memory of a library, ThreadSanitizer guesses its size from what lies
        # before it (GCC 12), and now and then asks for hundreds of terabytes of shadow.
        "TSAN_OPTIONS": f"suppressions={TESTS / 'tsan.supp'}:history_size=7:intercept_tls_get_addr=0",
        # PMIx wants its shared memory at an address that the sanitizers' shadow memory takes.
        "PMIX_MCA_gds": "hash",
        # UCX's memory hooks run on threads whose sanitizer state is gone already.
        "UCX_MEM_MMAP_HOOK_MODE": "none",
    }


def with_sanitizers(cases: Sequence[Case], chosen: Iterable[Case]) -> list[Any]:
    """The cases, of which the chosen ones are run on builds with sanitizers, too."""
    chosen = list(chosen)
    unknown = [case for case in chosen if case not in cases]
    assert not unknown, f"there are no such cases: {unknown}"
    return [pytest.param(case, marks=pytest.mark.sanitizer) if case in chosen else case for case in cases]


@dataclass(frozen=True)
class Mpi:
    """An MPI installation. `name` is also the folder of the test programs that are built for it."""

    name: str
    mpiexec: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: Path | None = None  # an interpreter whose mpi4py uses this MPI
    missing: str = ""  # why it cannot be used; empty when it can

    @property
    def foreign_files(self) -> tuple[str, ...]:
        """How names in /dev/shm begin that this MPI never makes: what others' killed programs left is not a run's."""
        return ("mpich_",) if "openmpi" in self.name else ()

    @property
    def programs(self) -> Path:
        return build_dir() / "tests" / "ranks" / self.name


MPICH_ENVIRONMENT: dict[str, str] = {}
"""MPICH needs no setting; its ways to give the processor up (MPIR_CVAR_ENABLE_HEAVY_YIELD) make every wait slower."""
OPENMPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
DEBIAN_OPENMPI_ENVIRONMENT = {
    **OPENMPI_ENVIRONMENT,
    "OMPI_MCA_btl": "self,vader,tcp",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}


FILES_OF_MPIS = ("mpich_", "sm_segment.", "ucx_", "pmix", "prte", "ompi")
"""What MPIs that are killed leave in /dev/shm is theirs, and is cleared away by the tests that kill them."""


def _missing(path: Path | None, remedy: str) -> str:
    return "" if path is not None and path.exists() else remedy


@lru_cache(maxsize=1)
def mpis() -> dict[str, Mpi]:
    """All MPIs that tests may ask for, whether they are there or not."""
    mpich = Path(os.environ.get("TEST_MPICH_ROOT", ROOT / ".venv"))
    openmpi = Path(os.environ.get("TEST_OPENMPI_ROOT", ROOT / ".venv" / "openmpi"))
    debian_mpich = Path(shutil.which("mpiexec.mpich") or "/usr/bin/mpiexec.mpich")
    debian_openmpi = Path(shutil.which("mpiexec.openmpi") or "/usr/bin/mpiexec.openmpi")
    no_mpich = _missing(mpich / "bin" / "mpiexec", f"no {mpich}/bin/mpiexec: run `make setup`")
    no_openmpi = _missing(openmpi / "bin" / "mpiexec", f"no {openmpi}/bin/mpiexec: run `make setup`")
    found = [
        Mpi("mpich", mpich / "bin" / "mpiexec", (), MPICH_ENVIRONMENT, mpich / "bin" / "python", no_mpich),
        Mpi("mpi5", mpich / "bin" / "mpiexec", (), MPICH_ENVIRONMENT, None, no_mpich),
        Mpi(
            "openmpi",
            openmpi / "bin" / "mpiexec",
            ("--oversubscribe",),
            OPENMPI_ENVIRONMENT,
            openmpi / "bin" / "python",
            no_openmpi,
        ),
        Mpi(
            "debian-mpich",
            debian_mpich,
            (),
            MPICH_ENVIRONMENT,
            None,
            _missing(debian_mpich, "Debian's MPICH is not installed (apt-get install mpich libmpich-dev)"),
        ),
        Mpi(
            "debian-openmpi",
            debian_openmpi,
            ("--oversubscribe",),
            DEBIAN_OPENMPI_ENVIRONMENT,
            None,
            _missing(debian_openmpi, "Debian's Open MPI is not installed (apt-get install openmpi-bin libopenmpi-dev)"),
        ),
    ]
    return {mpi.name: mpi for mpi in found}


@dataclass(frozen=True)
class Result:
    """How a run ended. `problems` is empty when it ended by itself and left nothing behind."""

    command: str
    status: int
    output: str
    seconds: float
    problems: tuple[str, ...]
    left: tuple[Path, ...] = ()
    """What it left in /dev/shm, with the files of which it was said that they are no problem."""

    def explain(self) -> str:
        lines = [f"$ {self.command}", f"exit status {self.status} after {self.seconds:.1f} s", *self.problems]
        failures = [line for line in self.output.splitlines() if line.startswith(("FAIL", "HUNG"))]
        if failures:
            lines += failures[:60]
        lines += ["--- end of the output ---", self.output[-6000:]]
        return "\n".join(lines)

    def check(self) -> None:
        """Fails the test unless the run succeeded and left nothing behind."""
        assert self.status == 0 and not self.problems, self.explain()


def clean_environment() -> dict[str, str]:
    """Ours without what a surrounding MPI, a preload or the user's settings and notes of Awaken would bring in.

    With what sanitizers need, on a build with one.
    """
    unwanted = ("AWAKEN", "LD_", "OMPI_", "PMIX_", "PRTE_", "PMI_", "MPIR_", "MPICH_", "HYDRA_", "HYDI_", "TEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "XDG_CACHE_HOME": str(build_dir() / "test-cache"), **sanitizer_environment()}


def rank_command(
    mpi: Mpi,
    ranks: int,
    program: Sequence[str | Path],
    *,
    with_awaken: bool = True,
    exec_arguments: Sequence[str] = (),
) -> list[str]:
    """mpiexec -n RANKS [awaken exec [ARGUMENTS] --] PROGRAM."""
    command = [str(mpi.mpiexec), *mpi.arguments, "-n", str(ranks)]
    if with_awaken:
        command += [str(awaken()), "exec", *exec_arguments, "--"]
    return [*command, *map(str, program)]


def one_differs(mpi: str, setting: str) -> list[str]:
    """Words before a program's name that give rank 1 a setting of its own."""
    variable = "OMPI_COMM_WORLD_RANK" if mpi == "openmpi" else "PMI_RANK"
    return ["/bin/sh", "-c", f'[ "${variable}" = 1 ] && export "$0"; exec "$@"', setting]


def run_ranks(
    mpi: Mpi,
    ranks: int,
    program: Sequence[str | Path],
    *,
    with_awaken: bool = True,
    emulate: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = HANG_S,
    cwd: Path | None = None,
) -> Result:
    """Runs a program on several ranks. `emulate`: cuda:N, hip:N or hip5:N; needs Awaken's driver for device memory."""
    variables = {**clean_environment(), **mpi.environment, **(environment or {})}
    if emulate:
        variables["AWAKEN_EMULATE"] = emulate
    command = rank_command(mpi, ranks, program, with_awaken=with_awaken)
    return run(command, variables, timeout, cwd, mpi.foreign_files)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout: float = HANG_S,
    cwd: Path | None = None,
    foreign_files: tuple[str, ...] = (),
) -> Result:
    """Runs a command with the care described at the head of this file; `timeout` is an ordinary build's.

    One at a time, whatever other tests do: ranks spin while they wait, so two jobs at a time take longer than one after
    the other.
    """
    with alone("ranks"):
        return _run(command, with_figures(environment), timeout, cwd, foreign_files)


def with_figures(environment: Mapping[str, str]) -> dict[str, str]:
    """Puts the tuning figures into AWAKEN_TUNE, and those of tests into AWAKEN_TEST_TUNE. Keys are "tune NAME" and
    "test tune NAME", so that environments can be merged."""
    variables: dict[str, str] = {}
    for name, value in environment.items():
        words, _, figure = name.rpartition(" ")
        if words:
            variable = {"tune": "AWAKEN_TUNE", "test tune": "AWAKEN_TEST_TUNE"}[words]
            variables[variable] = ",".join(filter(None, [variables.get(variable), f"{figure}={value}"]))
        else:
            variables[name] = value
    return variables


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    cwd: Path | None,
    foreign_files: tuple[str, ...],
) -> Result:
    mark = uuid.uuid4().hex
    # Open MPI builds socket names below TMPDIR, which must stay under 108 characters.
    with tempfile.TemporaryDirectory(prefix="aw", dir="/tmp", ignore_cleanup_errors=True) as folder:
        variables = {**environment, MARK: mark, "TMPDIR": folder}
        output_file = Path(folder) / "output"
        files = FileWatch(mark)
        start = time.monotonic()
        problems: list[str] = []
        with output_file.open("wb") as sink:
            process = subprocess.Popen(
                list(command),
                env=variables,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            problem = wait(process, output_file, patient(timeout), files)
            if problem:
                problems += [problem, stacks(mark, {process.pid})]
        finally:
            if process.poll() is None or problems:
                kill_marked(mark)
            status = process.wait()
        if not problems:
            problems += leftover_processes(mark)
        kill_marked(mark)
        left = files.left()
        problems += [f"/dev/shm/{name} is left over" for name in left if not name.startswith(foreign_files)]
        seconds = time.monotonic() - start
        output = output_file.read_text(errors="replace")
    shown = {name: environment[name] for name in sorted(environment) if name.startswith("AWAKEN")}
    text = " ".join([*(f"{name}={value}" for name, value in shown.items()), *command])
    return Result(text, status, output, seconds, tuple(problems), tuple(SHARED_MEMORY / name for name in left))


def wait(process: subprocess.Popen[bytes], output: Path, limit_s: float, files: FileWatch) -> str:
    """Waits for the end; what is wrong, when the time is up or a watch-dog has spoken.

    A time in which the whole machine stands still, as virtual ones do for a minute now and then, is not counted.
    """
    spent, seen = 0.0, time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
            break
        files.look()
        now = time.monotonic()
        spent += min(now - seen, 2.0)
        seen = now
        if spent > limit_s:
            return "the time is up: the program hangs, or the limit is too short"
        if b"\nHUNG " in b"\n" + output.read_bytes():
            # Give the other ranks' watch-dogs time to say where they are.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            return "a case hangs"
    return ""


def marked_processes(mark: str) -> Iterator[int]:
    needle = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def kill_marked(mark: str) -> None:
    """Ends every process of a run, and those that they start meanwhile."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        pids = list(marked_processes(mark))
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"


def leftover_processes(mark: str) -> list[str]:
    """Processes of a run that has ended; daemons of a launcher get a moment to notice."""
    deadline = time.monotonic() + LEFTOVER_S
    pids = list(marked_processes(mark))
    while pids and time.monotonic() < deadline:
        time.sleep(0.05)
        pids = list(marked_processes(mark))
    return [f"process {pid} is left over: {command_line(pid)}" for pid in pids]


def shared_memory_files() -> set[str]:
    with contextlib.suppress(OSError):
        return {entry.name for entry in SHARED_MEMORY.iterdir()}
    return set()


def files_in_use(pid: int) -> set[str]:
    """The names in /dev/shm that a process has mapped or open."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if "/dev/shm/" in line:
                found.add(line.split("/dev/shm/", 1)[1].removesuffix(" (deleted)"))
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                target = str(descriptor.readlink())
                if target.startswith("/dev/shm/"):
                    found.add(target.removeprefix("/dev/shm/").removesuffix(" (deleted)"))
    return found


class FileWatch:
    """Whose the new files in /dev/shm are. Names do not tell (MPICH draws them), and the kernel keeps no maker but the
    user, so it is looked who has them while the run goes on: one that a process of the run has had is the run's."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._before = shared_memory_files()
        self._own: set[str] = set()
        self._others: set[str] = set()
        self._looks: Counter[str] = Counter()

    def look(self) -> None:
        """Cheap as long as there is no new file."""
        # What nobody has had for seconds was left by others' killed processes.
        new = {name for name in self._unowned() if self._looks[name] < 50}
        if not new:
            return
        self._looks.update(new)
        for pid in marked_processes(self._mark):
            self._own |= files_in_use(pid) & new
        if new - self._own:
            self._others |= self._used_by_anybody(new - self._own)

    def left(self) -> list[str]:
        """The run's files that are there and that nobody uses, after its end. What nobody was seen to have, since it
        lived too shortly, is the run's unless other tests run beside this one."""
        own = set(self._own)
        if not os.environ.get("PYTEST_XDIST_WORKER"):
            new = self._unowned()
            own |= new - self._used_by_anybody(new)
        own &= shared_memory_files()
        return sorted(own - self._used_by_anybody(own)) if own else []

    def _unowned(self) -> set[str]:
        return shared_memory_files() - self._before - self._own - self._others

    @staticmethod
    def _used_by_anybody(names: set[str]) -> set[str]:
        if not names:
            return set()
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return set().union(*map(files_in_use, pids)) & names


@contextlib.contextmanager
def ended_when_it_hangs(limit_s: float = HANG_S) -> Iterator[None]:
    """Fails a test whose own process does not come to an end of what it does here."""

    def give_up(_number: int, _frame: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, patient(limit_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """Other tests that name the same thing of this build wait meanwhile, in whatever process they are."""
    name = f"awaken-tests-{os.getuid()}-{hashlib.sha256(str(build_dir()).encode()).hexdigest()[:16]}-{what}.lock"
    with (Path(tempfile.gettempdir()) / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def stacks(mark: str, ignored: set[int]) -> str:
    """The stacks of all threads of a run's processes, but for the launcher's."""
    gdb = shutil.which("gdb")
    if gdb is None:
        return "(install gdb for the stacks of the processes)"
    parts = []
    for pid in marked_processes(mark):
        name = command_line(pid)
        if pid in ignored or re.search(r"hydra|prted|prterun|orted|mpiexec|mpirun", name.split(" ")[0]):
            continue
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [gdb, "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off", "-ex", "thread apply all bt 25"],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            frames = [line for line in done.stdout.splitlines() if line.startswith(("#", "Thread"))]
            parts.append("\n".join([f"--- process {pid}: {name}", *frames]))
    return "\n".join(parts)


def python_modules(python: Path | None, *modules: str) -> str:
    """Empty when the interpreter can import the modules, else why not."""
    if python is None or not python.exists():
        return f"no interpreter {python}"
    # Found, not imported: importing mpi4py.MPI would start an MPI.
    code = "import importlib.util as u, sys; print(' '.join(m for m in sys.argv[1:] if u.find_spec(m) is None))"
    done = subprocess.run(
        [str(python), "-c", code, *modules], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    if done.returncode != 0:
        return f"{python} does not start: {done.stderr.strip()[-200:]}"
    return f"{python} lacks {done.stdout.strip()}" if done.stdout.strip() else ""


if __name__ == "__main__":
    for known in mpis().values():
        sys.stdout.write(f"{known.name:16}{known.missing or known.mpiexec}\n")
