# SPDX-License-Identifier: Apache-2.0
"""Shows what Awaken does: the programs of this folder, first without it, then with it. See `make demo`.

Run after the build, with the paths of `make` as defaults. A GPU is used where there is one, with its vendor's runtime;
elsewhere, two emulated GPUs are. Exit status: 0 when every program did what it had to, 1 when one did not, 2 when the
demonstration cannot be started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
RANKS = 2
MEASURED = "latency,bw,allreduce"
MEASURED_EMULATED = f"doctor,topo,{MEASURED}"
"""What the report measures. On real GPUs, doctor and topology may take minutes, and are for their own commands."""
GRACE_S = 5
"""How long a launcher that was asked to end may take before its whole process group is killed."""
TAIL_LINES = 25
EXTRA_CUDART_WHEEL = "nvidia-cuda-runtime-cu12"
PIP_TIMEOUT_S = 300

ALLREDUCE_LINE = re.compile(r"^Time in seconds for GPU Direct MPI_Allreduce using standard MPI library: (\S+)$", re.M)
ALLREDUCE_ITERATIONS = 5
GHOST_EXCHANGE = ("-i", "60", "-j", "40", "-I", "10", "-c", "--check")
GHOST_EXCHANGE_CHECKS = ("decomposition", "mass", "halo", "eigenmode")
RESULT_LINE = re.compile(r"Transfer size \(B\): +(\d+), Transfer Time \(s\): +([\d.]+), Bandwidth \(GB/s\): +([\d.]+)")

PROBE = """
import ctypes, sys
kind, names = sys.argv[1], sys.argv[2:]
for name in names:
    try:
        library = ctypes.CDLL(name)
    except OSError:
        continue
    count, text = ctypes.c_int(0), ctypes.create_string_buffer(256)
    if kind == "cuda":
        found = library.cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(count)) == 0
        describe = library.cuDeviceGetName
    else:
        found = library.hipGetDeviceCount(ctypes.byref(count)) == 0
        describe = library.hipDeviceGetName
    if found and count.value > 0:
        describe(text, 256, 0)
        print(count.value, text.value.decode(errors="replace"))
        break
"""
"""Counts GPUs with ctypes, in a process of its own: a GPU driver stays in the one that has loaded it."""


class DemoError(Exception):
    """Why the demonstration cannot start, and what to do about it."""


# --------------------------------------------------------------------------------------------------------------- GPUs


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a run uses."""

    label: str
    environment: dict[str, str] = field(default_factory=dict)
    emulated: bool = False
    library_folders: tuple[Path, ...] = ()
    """Folders that the programs' loader must search; for emulated GPUs `awaken exec` adds its own."""


def emulated(kind: str) -> Gpus:
    return Gpus(f"{kind}, emulated", {"AWAKEN_EMULATE": kind}, emulated=True)


def probe(kind: str, libraries: Sequence[str]) -> tuple[int, str] | None:
    """Number of GPUs and the first one's name, or None. `libraries` are tried in order."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE, kind, *libraries], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    count, _, name = done.stdout.strip().partition(" ")
    return (int(count), name) if count.isdigit() else None


def loads(library: str | Path) -> bool:
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    return subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True, check=False).returncode == 0


def cudart_folders(python: Path) -> tuple[Path, ...] | None:
    """Where libcudart is: () where the loader finds it by itself, None where there is none.

    A machine with NVIDIA's driver need not have the CUDA runtime. `python` is the environment to get it into.
    """
    sonames = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")
    if any(loads(soname) for soname in sonames):
        return ()
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    folders = [Path(home) / "lib64" for home in homes if home.startswith("/")]

    def from_wheels() -> list[Path]:
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
        site = Path(done.stdout.strip() or "/nonexistent")
        return [*site.glob("nvidia/cuda_runtime/lib"), *site.glob("nvidia/cu1*/lib")]

    def first_with_cudart(candidates: Sequence[Path]) -> Path | None:
        return next((f for f in candidates if any((f / s).exists() and loads(f / s) for s in sonames)), None)

    found = first_with_cudart([*folders, *from_wheels()])
    if found is None:
        say(f"The CUDA runtime is missing: installing {EXTRA_CUDART_WHEEL} into {python.parent.parent}")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", EXTRA_CUDART_WHEEL]
        # Without a way out to the network it fails, or waits for ever.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(pip, capture_output=True, timeout=PIP_TIMEOUT_S, check=False)
        found = first_with_cudart(from_wheels())
    return (found,) if found else None


def find_gpus(python: Path) -> tuple[list[Gpus], str]:
    """The kinds of GPU to show, and one line that says why these. Several only when they are emulated."""
    # In the order in which the programs look for a runtime.
    names = [f"libamdhip64.so.{version}" for version in (7, 6, 5)]
    rocm = Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "lib"
    hip = probe("hip", [*names, *(str(rocm / name) for name in names)])
    if hip:
        count, name = hip
        return [Gpus(name, library_folders=(rocm,) if rocm.is_dir() else ())], f"{count} x {name}"
    cuda = probe("cuda", ["libcuda.so.1"])
    if cuda:
        count, name = cuda
        folders = cudart_folders(python)
        if folders is not None:
            return [Gpus(name, library_folders=folders)], f"{count} x {name}"
        missing = f"{count} x {name}, but no libcudart: put its folder into LD_LIBRARY_PATH to use it"
        return [emulated("cuda:2"), emulated("hip:2")], f"{missing}; two emulated GPUs instead"
    return [emulated("cuda:2"), emulated("hip:2")], "none found; two emulated GPUs instead"


# ---------------------------------------------------------------------------------------------------------------- MPI


@dataclass(frozen=True)
class Mpi:
    """One of the MPIs that the programs were built for."""

    label: str
    abi: str
    """Folder of its programs below build/<preset>/apps."""
    prefix: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def mpiexec(self) -> Path:
        return self.prefix / "bin" / "mpiexec"


def known_mpis(prefix: Path, openmpi_prefix: Path) -> dict[str, Mpi]:
    # Open MPI refuses to start as root, and to start more ranks than cores, unless it is told otherwise.
    allow = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return {
        "mpich": Mpi("MPICH", "mpich", prefix),
        "openmpi": Mpi("Open MPI", "openmpi", openmpi_prefix, allow),
        "mpi5": Mpi("MPI-5 ABI", "mpi5", prefix),
    }


# --------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Outcome:
    status: int
    """Exit status as a shell gives it: 128 + n after signal n."""
    output: str
    seconds: float
    timed_out: bool


def end_group(process: subprocess.Popen[str]) -> None:
    """Ends a launcher and all that it started: first by asking it, so that it can end its ranks in order."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue


def end_by_signal(number: int, _: object) -> NoReturn:
    """Ends this process as the signal would, but after what it has started."""
    raise SystemExit(128 + number)


def execute(command: Sequence[str | Path], environment: dict[str, str], timeout_s: float) -> Outcome:
    """Runs a command in a process group of its own, which is ended with it."""
    start = time.monotonic()
    timed_out = False
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    output = ""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        end_group(process)
        try:
            output, _ = process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired as error:
            # Something outside the group holds the pipe open; what it has written so far is enough.
            output = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
    except BaseException:
        end_group(process)
        raise
    status = process.returncode if process.returncode is not None else -signal.SIGKILL
    return Outcome(status if status >= 0 else 128 - status, output, time.monotonic() - start, timed_out)


@dataclass(frozen=True)
class Run:
    """One program under one MPI on one kind of GPU."""

    program: str
    mpi: Mpi
    gpus: Gpus
    arguments: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.program}, {self.mpi.label}, {self.gpus.label}"


@dataclass
class Result:
    run: Run
    problem: str = ""
    """Why the run did not do what it had to; empty when it did."""
    output: str = ""
    seconds_per_transfer: float | None = None
    bandwidth: float | None = None
    """In GiB/s, of the largest transfer."""
    path: str = "-"
    data_checked: bool = False
    timed_out: bool = False


class Runner:
    """Runs programs of the build with and without Awaken."""

    def __init__(self, apps: Path, awaken: Path, timeout_s: float) -> None:
        self._apps = apps
        self._awaken = awaken
        self.timeout_s = timeout_s
        self._emulator = awaken.resolve().parent.parent / "lib" / "awaken" / "emulator"

    def _environment(self, run: Run, with_awaken: bool) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWAKEN_")}
        environment.update(run.mpi.environment)
        environment.update(run.gpus.environment)
        folders = [str(folder) for folder in run.gpus.library_folders]
        if run.gpus.emulated and not with_awaken:
            folders.insert(0, str(self._emulator))
        if folders:
            search_path = [*folders, environment.get("LD_LIBRARY_PATH", "")]
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, search_path))
        return environment

    def _command(self, run: Run, with_awaken: bool) -> list[str | Path]:
        layer: list[str | Path] = [self._awaken, "exec", "--"] if with_awaken else []
        program = self._apps / run.mpi.abi / run.program
        return [run.mpi.mpiexec, "-n", str(RANKS), *layer, program, *run.arguments]

    def without_awaken(self, run: Run) -> Outcome:
        return execute(self._command(run, False), self._environment(run, False), self.timeout_s)

    def traced(self, run: Run, folder: Path) -> Outcome:
        """With Awaken, and what it did when: the timeline is in folder/trace.json."""
        return execute(
            self._command(run, True), {**self._environment(run, True), "AWAKEN_TRACE": str(folder)}, self.timeout_s
        )

    def with_awaken(self, run: Run) -> Result:
        with tempfile.TemporaryDirectory(prefix="awaken-demo-") as folder:
            report = Path(folder) / "report.json"
            environment = {**self._environment(run, True), "AWAKEN_REPORT": str(report)}
            outcome = execute(self._command(run, True), environment, self.timeout_s)
            result = Result(run, output=outcome.output, timed_out=outcome.timed_out)
            if outcome.timed_out:
                result.problem = f"did not end within {self.timeout_s:.0f} s"
            elif outcome.status != 0:
                result.problem = f"ended with status {outcome.status}"
            else:
                self._read_output(result)
                self._read_report(result, report)
        return result

    @staticmethod
    def _read_output(result: Result) -> None:
        if result.run.program.startswith("ping_pong"):
            lines = RESULT_LINE.findall(result.output)
            if lines:
                _, seconds, bandwidth = lines[-1]
                result.seconds_per_transfer, result.bandwidth = float(seconds), float(bandwidth)
            result.data_checked = bool(lines)
        elif result.run.program == "allreduce":
            line = ALLREDUCE_LINE.search(result.output)
            if line:
                result.seconds_per_transfer = float(line.group(1)) / ALLREDUCE_ITERATIONS
            result.data_checked = line is not None and "# All sums are exact on all ranks." in result.output
        elif result.run.program == "ghost_exchange":
            result.data_checked = all(f"# check {check}: right" in result.output for check in GHOST_EXCHANGE_CHECKS)
        else:
            result.data_checked = f"PASS {result.run.program}:" in result.output
        if not result.data_checked:
            result.problem = "ended with status 0 but printed no result"

    @staticmethod
    def _read_report(result: Result, file: Path) -> None:
        try:
            report = json.loads(file.read_text())
            if (report["schema"], report["version"]) != ("awaken-report", 1):
                raise ValueError(f"it is {report['schema']} version {report['version']}")
            calls = report["calls"]
            # What the program is about are its largest messages; the small ones are its own book-keeping.
            largest = max(call["size_class_bytes"] for call in calls)
            paths = {call["path"]: None for call in calls if call["size_class_bytes"] == largest}
            result.path = " + ".join(paths)
        except (OSError, ValueError, KeyError, TypeError) as error:
            result.problem = result.problem or f"left no readable report ({type(error).__name__}: {error})"


def death(outcome: Outcome) -> str | None:
    """In words, how a job of MPICH died of a signal; None when it did not."""
    # Hydra tells the signal of the rank in words; its own exit status could as well be the program's.
    told = re.search(r"\(signal (\d+)\)|KILLED BY SIGNAL: (\d+)", outcome.output)
    if not told:
        return None
    number = int(told.group(1) or told.group(2))
    names = {one.value: one.name for one in signal.Signals}
    return f"killed by {names.get(number, f'signal {number}')}"


# ------------------------------------------------------------------------------------------------------------- output


def say(text: str) -> None:
    print(text, flush=True)


def report_failure(title: str, problem: str, output: str) -> None:
    tail = output.rstrip().splitlines()[-TAIL_LINES:]
    say(f"\n{title}: {problem}. The end of its output:")
    say("\n".join(f"  | {line}" for line in tail) if tail else "  | (none)")


def readable_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def table(results: Sequence[Result], *, timed: bool) -> str:
    """`timed`: with times and rates, which mean nothing where GPUs are emulated."""
    header = ("program", "MPI", "GPU", *(("time", "GiB/s") if timed else ()), "path", "data")
    rows = []
    for result in results:
        time_text = readable_time(result.seconds_per_transfer)
        rate = "-" if result.bandwidth is None else f"{result.bandwidth:.2f}"
        rows.append(
            (
                result.run.program,
                result.run.mpi.label,
                "-" if result.run.program == "ping_pong_cpu" else result.run.gpus.label,
                *((time_text, rate) if timed else ()),
                result.path,
                "FAILED" if result.problem else "checked",
            )
        )
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    right = {3, 4} if timed else set()

    def line(row: Sequence[str]) -> str:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *(line(row) for row in rows)])


# --------------------------------------------------------------------------------------------------------------- main


def plan(gpus: Sequence[Gpus], mpis: dict[str, Mpi], arguments: tuple[str, ...]) -> Iterator[Run]:
    """Everything under MPICH; then the GPU-aware program under the other MPIs, and on the other kinds of GPU."""
    first = gpus[0]
    for program in ("ping_pong_cpu", "ping_pong_staged", "ping_pong_gpu_aware"):
        yield Run(program, mpis["mpich"], first, arguments)
    for program in ("point_to_point", "reduce", "host_staged", "unified_memory"):
        yield Run(program, mpis["mpich"], first)
    # A short one: what the machine can do is for `allreduce` by itself to tell.
    allreduce = ("--elements", "100000", "--iterations", str(ALLREDUCE_ITERATIONS), "--buffers", "1")
    yield Run("allreduce", mpis["mpich"], first, allreduce)
    # It has kernels, and a machine with a GPU need not have the compiler for them.
    if first.emulated:
        yield Run("ghost_exchange", mpis["mpich"], first, GHOST_EXCHANGE)
    for abi in ("openmpi", "mpi5"):
        if abi in mpis:
            yield Run("ping_pong_gpu_aware", mpis[abi], first, arguments)
    for other in gpus[1:]:
        yield Run("ping_pong_gpu_aware", mpis["mpich"], other, arguments)
        yield Run("reduce", mpis["mpich"], other)


def available_mpis(apps: Path, prefix: Path, openmpi_prefix: Path) -> dict[str, Mpi]:
    """The MPIs whose programs and launcher are there. MPICH must be; what else is missing is said."""
    found = {}
    for abi, mpi in known_mpis(prefix, openmpi_prefix).items():
        missing = next((p for p in (apps / abi / "ping_pong_gpu_aware", mpi.mpiexec) if not p.exists()), None)
        if missing is None:
            found[abi] = mpi
        elif abi == "mpich":
            raise DemoError(f"there is no {missing}: run `make demo`, which builds it first")
        else:
            say(f"note: {mpi.label} is left out, because there is no {missing} (`make` builds for all MPIs)")
    return found


def show_without_awaken(runner: Runner, run: Run) -> bool:
    """Runs the GPU-aware program on the plain MPI. Returns whether that did what it does there: die."""
    outcome = runner.without_awaken(run)
    how = death(outcome)
    say(f"Without Awaken: mpiexec -n {RANKS} {run.program}    # {run.mpi.label}, {run.gpus.label}")
    if outcome.timed_out:
        report_failure(run.title, f"did not end within {runner.timeout_s:.0f} s", outcome.output)
        return False
    if outcome.status == 0 and not run.gpus.emulated:
        say("    it runs: on this machine the CPU, or this MPI, reaches device memory by itself")
        return True
    if how is None:
        report_failure(
            run.title, f"should have died of a signal, but ended with status {outcome.status}", outcome.output
        )
        return False
    say(f"    it crashes: {how}, exit status {outcome.status}, as this MPI cannot read device memory")
    return True


def write_report(options: argparse.Namespace, runner: Runner, awaken: Path, mpi: Mpi, gpus: Gpus, python: Path) -> bool:
    """Measures a little, traces one program, and writes the page about both. Returns whether that went well."""
    build = Path(options.build).absolute()
    page, folder = build / "awaken-report.html", build / "awaken-report"
    shutil.rmtree(folder, ignore_errors=True)  # a demonstration measures anew
    measure = options.measure or (MEASURED_EMULATED if gpus.emulated else MEASURED)
    command = [str(python), "-m", "awaken", "report"]
    measuring = [*command, "--awaken", str(awaken), "--launcher", str(mpi.mpiexec)]
    measuring += ["--only", measure, "--folder", str(folder), "--output", str(page)]
    if gpus.emulated:
        measuring += ["--emulate", gpus.environment["AWAKEN_EMULATE"]]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWAKEN_")}
    environment["PYTHONPATH"] = str(ROOT / "python")
    folders = [*map(str, gpus.library_folders), environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    program = timeline_program(mpi, gpus)
    trace = folder / f"{program.program}.trace"
    reading = [*command, str(folder), f"{program.program}={trace / 'trace.json'}", "--output", str(page)]
    say(f"\nThe report: awaken report, measuring {measure.replace(',', ', ')}; and a timeline of {program.program}")
    start = time.monotonic()
    limit_s = len(measure.split(",")) * options.timeout
    parts: list[tuple[str, Callable[[], Outcome], Path]] = [
        ("awaken report", lambda: execute(measuring, environment, limit_s), page),
        (program.title, lambda: runner.traced(program, trace), trace / "trace.json"),
        ("awaken report", lambda: execute(reading, environment, options.timeout), page),
    ]
    for title, do, written in parts:
        outcome = do()
        if outcome.status != 0 or not written.exists():
            report_failure(title, f"ended with status {outcome.status}", outcome.output)
            return False
    say(f"    written in {time.monotonic() - start:.0f} s: {page}")
    return not gpus.emulated or write_sample(command, environment, options.timeout, build / "awaken-report-sample.html")


def write_sample(command: Sequence[str], environment: dict[str, str], timeout_s: float, page: Path) -> bool:
    """The same page about real GPUs, from the newest measurements of the tree. Returns whether that went well."""
    measured = max((file.parent for file in RESULTS.glob("*/*/*.json")), key=lambda folder: folder.name)
    title = f"Awaken report: {measured.relative_to(RESULTS)}"
    outcome = execute([*command, str(measured), "--title", title, "--output", str(page)], environment, timeout_s)
    if outcome.status != 0:
        report_failure("awaken report", f"ended with status {outcome.status}", outcome.output)
        return False
    say(f"    a report on real GPUs, from {measured.relative_to(ROOT)}: {page}")
    return True


def timeline_program(mpi: Mpi, gpus: Gpus) -> Run:
    """A short run that is worth looking at. The stencil has kernels, for which a machine with a GPU may lack the
    compiler."""
    if gpus.emulated:
        return Run("ghost_exchange", mpi, gpus, GHOST_EXCHANGE)
    return Run("ping_pong_gpu_aware", mpi, gpus, ("--max-bytes", "1M", "--iterations", "5"))


def demonstrate(options: argparse.Namespace) -> bool:
    """Returns whether all went as it had to."""
    prefix = Path(options.prefix).absolute()
    apps = Path(options.build).absolute() / "apps"
    awaken = Path(options.awaken or Path(options.build) / "bin" / "awaken").absolute()
    if not awaken.exists():
        raise DemoError(f"there is no {awaken}: run `make demo`, which builds it first")
    mpis = available_mpis(apps, prefix, Path(options.openmpi_prefix or prefix / "openmpi").absolute())

    own_python = prefix / "bin" / "python"
    if options.emulate:
        gpus, found = [emulated("cuda:2"), emulated("hip:2")], "two emulated GPUs, as asked for"
    else:
        gpus, found = find_gpus(own_python if own_python.exists() else Path(sys.executable))
    say(f"GPU: {found}\n")

    # The largest size is what the table shows. Emulated GPUs copy at the speed of one core.
    max_bytes = options.max_bytes or ("16M" if gpus[0].emulated else "256M")
    iterations = options.iterations or (10 if gpus[0].emulated else 20)
    arguments = ("--max-bytes", max_bytes, "--iterations", str(iterations))

    runner = Runner(apps, awaken, options.timeout)
    good = show_without_awaken(runner, Run("ping_pong_gpu_aware", mpis["mpich"], gpus[0], ("--max-bytes", "8")))

    say(f"\nWith Awaken: mpiexec -n {RANKS} awaken exec PROGRAM; ping-pong to {max_bytes}, {iterations} iterations")
    runs = list(plan(gpus, mpis, arguments))
    results = []
    for number, run in enumerate(runs, 1):
        print(f"    [{number:{len(str(len(runs)))}}/{len(runs)}] {run.title} ... ", end="", flush=True)
        start = time.monotonic()
        result = runner.with_awaken(run)
        say(result.problem or f"{time.monotonic() - start:.1f} s")
        results.append(result)
        if result.problem:
            report_failure(run.title, result.problem, result.output)
        if result.timed_out:
            say("\nThe remaining programs are left out: what made this one hang would stop them too.")
            break
    say("\n" + table(results, timed=not gpus[0].emulated) + "\n")
    if not gpus[0].emulated:
        say("time and GiB/s: one transfer of the largest size, or one call of allreduce.")
    say("path: how its bytes went, from AWAKEN_REPORT.")
    if options.measure != "" and not any(result.timed_out for result in results):
        python = own_python if own_python.exists() else Path(sys.executable)
        good = write_report(options, runner, awaken, mpis["mpich"], gpus[0], python) and good
    return good and not any(result.problem for result in results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--prefix", default=ROOT / ".venv", help="where MPICH is installed (default: .venv)")
    parser.add_argument("--openmpi-prefix", help="where Open MPI is installed (default: <prefix>/openmpi)")
    parser.add_argument("--build", default=ROOT / "build" / "quick", help="build folder (default: build/quick)")
    parser.add_argument("--awaken", help="the awaken program (default: <build>/bin/awaken)")
    parser.add_argument(
        "--max-bytes", help="largest ping-pong transfer, with K, M or G (default: 16M emulated, else 256M)"
    )
    parser.add_argument("--iterations", type=int, help="ping-pong round trips a size (default: 10 emulated, else 20)")
    parser.add_argument("--timeout", type=float, default=90, help="seconds that one program may take (default: 90)")
    parser.add_argument("--emulate", action="store_true", help="use emulated GPUs even where there is a real one")
    parser.add_argument(
        "--measure",
        metavar="NAME,..",
        help=f'what the report measures; "" for no report (default: {MEASURED}; doctor and topo too if emulated)',
    )
    options = parser.parse_args()

    # The programs run in sessions of their own, which neither a closed terminal nor a signal to this process ends.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end_by_signal)
    # A rank is meant to crash; its core file is of no use to anyone.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        good = demonstrate(options)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    say("\nAll data checked, all as expected." if good else "\nSomething failed: see above.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
