# SPDX-License-Identifier: Apache-2.0
"""`awaken doctor`: whether the MPI at hand takes GPU memory, by itself and with Awaken, and what would improve it.

Everything is tried for real, in child jobs under the MPI's own launcher, with time limits: a crash or a hang is an
answer. docs/doctor.md describes the output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from awaken import (
    conformance,
    conformance_page,
    interruption,
    mpi_build,
    native_cache,
    output_files,
    placement,
    terminal,
)
from awaken.command_line import Parser
from awaken.doctor_advice import advise
from awaken.doctor_text import describe
from awaken.installation import NotInstalled
from awaken.jobs import (
    JobFailed,
    Launcher,
    NoLauncher,
    Surroundings,
    add_launcher_option,
    emulation,
    find_allocation,
    find_launcher,
    leave_or_refuse,
    no_gpu,
    only,
    run_probe,
    size_of_message,
    succeeded,
)
from awaken.output_files import Misuse
from awaken.transport import DIRECT_PATHS, HOST_PATHS, judge

SCHEMA = "awaken-doctor"
VERSION = 1

QUICK_FUNCTIONS = ("MPI_Send", "MPI_Allreduce")
"""What stands for all functions where the matrix is not asked for: one of each great family."""

Report = dict[str, Any]


@dataclass
class Examination:
    """One run of the doctor: what is asked, and what was found so far."""

    options: argparse.Namespace
    launcher: Launcher
    surroundings: Surroundings
    report: Report
    started: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Since the examination began."""
        return round(time.monotonic() - self.started, 1)

    def tell(self, text: str) -> None:
        """Progress, on stderr, where somebody looks on."""
        if not self.options.quiet:
            terminal.rewrite_line(text)

    def probe(
        self,
        ranks: int,
        arguments: Sequence[str],
        *,
        with_awaken: bool = False,
        spread: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Runs a command of the probe, with these variables besides the usual ones. What went wrong is added to the
        report's problems."""
        self.tell(f"{arguments[0]}{' with Awaken' if with_awaken else ''} ...")
        records, job = run_probe(
            self.launcher,
            replace(self.surroundings, environment={**self.surroundings.environment, **(environment or {})}),
            ranks,
            arguments,
            with_awaken=with_awaken,
            limit_s=self.options.limit,
            spread=spread,
        )
        if not succeeded(records):
            failed = only(records, "failed")
            crashed = only(records, "crash")
            why = (
                failed[0]["text"]
                if failed
                else f"it crashed ({crashed[0]['signal']})"
                if crashed
                else "it did not end in time"
                if job.timed_out
                else job.explanation()
            )
            self.report["problems"].append(
                {"probe": arguments[0], "with": "awaken" if with_awaken else "native", "text": why}
            )
        return records


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="awaken doctor",
        description="Says whether this machine's MPI takes GPU memory, by itself and with Awaken, and what would help.",
        epilog="Exit status: 0 when everything that was asked for works with Awaken, 1 when something does not, "
        "2 for a wrong command line.",
    )
    add_launcher_option(parser)
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of the placement (default: one per visible GPU)")
    parser.add_argument(
        "--emulate", type=emulation, default="", metavar="KIND:N", help="examine N emulated GPUs, such as cuda:2"
    )
    parser.add_argument(
        "--bytes", type=size_of_message, default="64M", metavar="SIZE", help="size of the messages that are timed (64M)"
    )
    parser.add_argument("--samples", type=int, default=5, metavar="N", help="measurements per figure (5)")
    parser.add_argument(
        "--limit", type=float, default=60.0, metavar="S", help="seconds that a probe may be silent (60)"
    )
    parser.add_argument(
        "--json",
        nargs="?",
        default="",
        const="-",
        metavar="FILE",
        help="write everything as JSON, too; without FILE, and with -, to stdout alone",
    )
    parser.add_argument(
        "--ucx",
        default="",
        metavar="FOLDER",
        help="examine the MPI with this UCX instead of its own, as `awaken exec --ucx` runs programs",
    )
    parser.add_argument("--no-cache", action="store_true", help="do not note whether the MPI takes device memory")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    group = parser.add_argument_group("the conformance matrix")
    group.add_argument("--matrix", action="store_true", help="try every communication function with every memory")
    group.add_argument("--functions", default="", metavar="A,B", help="only these (MPI_Send,MPI_Bcast)")
    group.add_argument("--kinds", default=",".join(conformance.KINDS), metavar="A,B", help="only these kinds of memory")
    group.add_argument("--large-counts", action="store_true", help="also MPI_Send_c and its kin")
    group.add_argument("--cell-limit", type=float, default=20.0, metavar="S", help="a longer silence is a hang (20)")
    group.add_argument(
        "--matrix-limit", type=float, default=600.0, metavar="S", help="seconds for all cells of each side (600)"
    )
    group.add_argument("--jobs", type=int, default=0, metavar="N", help="jobs at once (default: by the processors)")
    group.add_argument("--html", default="", metavar="FILE", help="write the matrix as a page, too")
    options = parser.parse_args(words)
    options.matrix = options.matrix or bool(options.functions or options.html)
    options.bytes = options.bytes or "64M"
    if options.ucx:
        # By the environment, so that what is found is noted with it, and child jobs have it.
        os.environ["AWAKEN_UCX"] = str(Path(options.ucx).absolute())
    unknown = set(options.kinds.split(",")) - set(conformance.KINDS)
    if unknown:
        parser.error(f"there is no kind of memory {sorted(unknown)[0]}: use any of {', '.join(conformance.KINDS)}")
    for name, least in (
        ("ranks", 2),
        ("samples", 1),
        ("jobs", 0),
        ("limit", 1),
        ("cell_limit", 0.5),
        ("matrix_limit", 1),
    ):
        value = getattr(options, name)
        if value is not None and not value >= least:  # nan is not, either
            parser.error(f"--{name.replace('_', '-')} {value} is too small: use at least {least}")
    return options


# --------------------------------------------------------------------------------------------------------------- probes

SRUN_ADVICE = (
    "; srun has to start ranks as their MPI expects it (srun --mpi=list shows what it knows): "
    "--launcher 'srun --mpi=pmi2' for MPICH and its family, --launcher 'srun --mpi=pmix' for Open MPI"
)
TASKS_ADVICE = (
    "; the allocation has too few tasks or all of them are in use: ask for one task per GPU and at least 2 "
    "(salloc --ntasks=N), or share them (--launcher 'srun --overlap --overcommit')"
)
TOO_FEW_TASKS = (
    "more processors requested than permitted",
    "step creation temporarily disabled",
    "requested nodes are busy",
    "requested node configuration is not available",
    "unable to create step",
    "more tasks than",
    "not enough slots",
)
"""How Slurm, and launchers that use it, say that a step does not fit into the allocation."""


def start_advice(launcher: Launcher, problem: str) -> str:
    """What to do about a launcher that started nothing."""
    if any(words in problem.lower() for words in TOO_FEW_TASKS):
        return TASKS_ADVICE
    # An MPI that was started, and then has no GPU or no library, was started rightly.
    about_starting = any(word in problem.lower() for word in ("pmi", "singleton", "mpi_init", "mpi type", "mpi plugin"))
    return SRUN_ADVICE if launcher.family == "slurm" and about_starting else ""


def examine_facts(examination: Examination) -> None:
    """Which MPI, which GPUs, which libraries."""
    report = examination.report
    records = examination.probe(2, ["facts"])
    ranks, mpi, libraries = only(records, "rank"), only(records, "mpi"), only(records, "libraries")
    if not mpi:
        problem = report["problems"][-1]["text"] if report["problems"] else "it reported nothing"
        advice = start_advice(examination.launcher, problem)
        raise JobFailed(f"no MPI job can be run with {shlex.join(examination.launcher.words)}: {problem}{advice}")
    report["mpi"] = mpi[0]["mpi"]
    report["mpi"]["headers_say"] = headers_say(examination.launcher, report["mpi"]["library"], report["mpi"]["abi"])
    if mpi[0]["ranks"] < 2:
        raise JobFailed(
            f"the launcher starts ranks that do not know each other: {shlex.join(examination.launcher.words)} belongs "
            f"to another MPI than {report['mpi']['library']}: name the right one with --launcher, or the right library "
            "with AWAKEN_MPI"
        )
    hosts = sorted({rank["host"] for rank in ranks})
    if len(hosts) > 1:
        text = (
            f"the launcher spreads 2 ranks over {' and '.join(hosts)}, so what counts as one node here is a "
            "network: add the options to --launcher that keep ranks together"
        )
        report["problems"].append({"probe": "one node", "with": "native", "text": text})
    gpu = ranks[0]["gpu"]
    report["gpu"] = {**gpu, "found": "name" in gpu}
    report["libraries"] = libraries[0] if libraries else {}


def examine_placement(examination: Examination) -> None:
    """Which rank uses which GPU, with as many ranks as there are GPUs."""
    report = examination.report
    visible = report["gpu"].get("visible_devices", 0) or 0
    ranks = examination.options.ranks or examination.launcher.ranks or max(2, visible * report["allocation"]["nodes"])
    told = only(examination.probe(ranks, ["facts"], spread=True), "rank")
    report["placement"] = {"ranks": told, "warnings": placement.warnings(told)}


def attempt(examination: Examination, *, with_awaken: bool, between_nodes: bool = False) -> list[Report]:
    """The quick functions with device memory (and with Awaken the other kinds), on one node or on two."""
    examination.tell(f"attempts{' with Awaken' if with_awaken else ''} ...")
    request = conformance.Request(
        one_per_node=between_nodes,
        functions=QUICK_FUNCTIONS,
        kinds=conformance.KINDS if with_awaken else ("device",),
        start_limit_s=examination.options.limit,
        cell_limit_s=examination.options.cell_limit,
    )
    outcome = conformance.Runner(examination.launcher, examination.surroundings, request, with_awaken=with_awaken).run()
    return [vars(cell) for cell in outcome.cells]


def transport_of(pairs: Sequence[Report], hardware: Report) -> tuple[str, str]:
    """By the path that the layer reports, where it does, else by speed."""
    raw = [record["copy_GBps"] for record in hardware["ipc"] if record["works"]]
    host = [
        min(record["to_host_GBps"], record["to_device_GBps"])
        for record in hardware["host_path"]
        if "to_host_GBps" in record
    ]
    bandwidth = statistics.median([pair["bandwidth_GBps"] for pair in pairs])
    transport, why = judge(bandwidth, statistics.median(raw) if raw else None, min(host) if host else None)
    if any(record.get("same_gpu") for record in hardware["ipc"]):
        transport, why = "unknown", f"both ranks use one GPU: {bandwidth:.1f} GB/s"
    paths = {pair["path"] for pair in pairs}
    if paths <= DIRECT_PATHS:
        told = "direct"
    elif paths <= HOST_PATHS:
        told = "staged"
    else:
        return transport, why
    # Why speed gave another answer, or none, is no reason for this one.
    return told, why if told == transport else f"by the path that the layer reports; {bandwidth:.1f} GB/s"


def examine_transport(examination: Examination, *, with_awaken: bool) -> Report:
    """How a message travels between two GPUs, by its speed."""
    report = examination.report
    size = ["--bytes", examination.options.bytes, "--samples", str(examination.options.samples)]
    pairs = only(examination.probe(2, ["pairs", *size], with_awaken=with_awaken), "pair")
    if not pairs:
        return {"transport": "unknown", "why": "no message could be timed"}
    transport, why = transport_of(pairs, report["hardware"])
    answer = {
        "transport": transport,
        "why": why,
        "bytes": pairs[0]["bytes"],
        "bandwidth_GBps": statistics.median([pair["bandwidth_GBps"] for pair in pairs]),
        "both_GBps": statistics.median([pair["both_GBps"] for pair in pairs]),
        "latency_us": statistics.median([pair["latency_us"] for pair in pairs]),
        "verified": all(pair["verified"] for pair in pairs),
    }
    if with_awaken:
        answer["path"] = pairs[0]["path"]
        trusting = {"AWAKEN_DEFAULT_STREAM": "trust"}
        small = ["--bytes", "8", "--samples", str(examination.options.samples)]
        again = only(examination.probe(2, ["pairs", *small], with_awaken=True, environment=trusting), "pair")
        if again:
            answer["trusting_latency_us"] = statistics.median([pair["latency_us"] for pair in again])
    return answer


def examine_hardware(examination: Examination) -> None:
    size = ["--bytes", examination.options.bytes, "--samples", str(examination.options.samples)]
    records = examination.probe(2, ["hardware", *size])
    examination.report["hardware"] = {kind: only(records, kind) for kind in ("ipc", "peer", "host_path")}


def examine_side(examination: Examination, *, with_awaken: bool) -> Report:
    """Whether device memory may be given to the MPI, and how it then travels."""
    try:
        attempts = attempt(examination, with_awaken=with_awaken)
    except JobFailed as error:
        return {"gpu_aware": None, "attempts": [], "why": str(error), "transport": "unknown"}
    device = [cell for cell in attempts if cell["kind"] == "device"]
    aware = bool(device) and all(cell["status"] == "works" for cell in device)
    answer: Report = {"gpu_aware": aware, "attempts": attempts, "transport": "none", "why": ""}
    if aware:
        answer.update(examine_transport(examination, with_awaken=with_awaken))
    return answer


def examine_between_nodes(examination: Examination) -> Report | None:
    """The attempts again with a rank on each of two nodes; None where there is one node."""
    if examination.report["allocation"]["nodes"] < 2:
        return None
    answers: Report = {}
    for side in ("native", "awaken"):
        try:
            answers[side] = attempt(examination, with_awaken=side == "awaken", between_nodes=True)
        except JobFailed as error:
            answers[side] = []
            examination.report["problems"].append({"probe": "between nodes", "with": side, "text": str(error)})
    return answers


HEADERS_ANSWERS = ("MPIX_CUDA_AWARE_SUPPORT", "MPIX_ROCM_AWARE_SUPPORT")
"""Macros by which a program asks at compile time whether its MPI takes device memory."""


def headers_say(launcher: Launcher, library: str, abi: str) -> dict[str, bool | None]:
    """What this MPI's headers answer: by macro, None where they do not define it. Empty where the MPI has no compiler
    wrapper beside its library or its launcher, or that finds no compiler."""
    wrapper_name = "mpicc_abi" if abi == "mpi5" else "mpicc"
    starter = Path(shutil.which(launcher.words[0]) or "")
    wrappers = [
        Path(library).parent.parent / "bin" / wrapper_name,
        # mpiexec.openmpi and mpicc.openmpi
        *(starter.parent / name for name in (wrapper_name + starter.suffix, wrapper_name) if starter.name),
    ]
    wrapper = next((path for path in wrappers if os.access(path, os.X_OK)), None)
    if wrapper is None:
        return {}
    asks = "".join(f"awaken_asks {number} {name}\n" for number, name in enumerate(HEADERS_ANSWERS))
    text = f"#include <mpi.h>\n#if __has_include(<mpi-ext.h>)\n#include <mpi-ext.h>\n#endif\n{asks}"
    try:
        done = subprocess.run(
            [wrapper, "-E", "-P", "-x", "c", "-"], input=text, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    answers = {}
    for line in done.stdout.splitlines():
        word, _, answer = line.partition(" ")
        number, _, value = answer.partition(" ")
        if word == "awaken_asks":
            name = HEADERS_ANSWERS[int(number)]
            answers[name] = None if value == name else value.strip("() ") != "0"
    return answers


def rdma_facts() -> Report:
    """What the kernel tells of network cards that could reach GPU memory."""
    infiniband = Path("/sys/class/infiniband")
    modules = Path("/sys/module")
    cards = sorted(entry.name for entry in infiniband.iterdir()) if infiniband.is_dir() else []
    loaded = [name for name in ("nvidia_peermem", "nv_peer_mem", "ib_peer_mem") if (modules / name).is_dir()]
    driver = Path("/proc/driver/nvidia/version")
    return {
        "network_cards": cards,
        "peer_memory_modules": loaded,
        "open_nvidia_driver": "Open Kernel Module" in driver.read_text() if driver.exists() else None,
        "amdgpu_driver": (modules / "amdgpu").is_dir(),
        "kernel": os.uname().release,
    }


def examine_sums(examination: Examination) -> list[Report]:
    """Whether reductions fold in the order of the ranks where a communicator asks for it, by kind of memory."""
    ranks = len(examination.report["placement"]["ranks"]) or 2
    return only(examination.probe(ranks, ["sums", "--kinds", "host,device"], with_awaken=True), "sums")


def note_native_answer(examination: Examination) -> None:
    """Keeps the answer for others, by the identity of the library."""
    report = examination.report
    aware = report["native"]["gpu_aware"]
    file = native_cache.cache_file(os.environ)
    key = native_cache.library_key(report["mpi"]["build_id"], report["mpi"]["library"])
    report["cache"] = {"file": str(file or ""), "key": key, "written": False}
    if examination.options.no_cache or aware is None or file is None or not key:
        return
    vendor = report["gpu"]["vendor"] + ("-emulated" if report["emulated"] else "")
    try:
        switches = native_cache.gpu_switches(os.environ)
        native_cache.write(file, key, vendor, aware, report["mpi"]["name"], switches)
        report["cache"]["written"] = True
    except OSError as error:
        why = (
            f"{file} cannot be written ({error.strerror or error}): set XDG_CACHE_HOME to a folder, or give --no-cache"
        )
        report["problems"].append({"probe": "cache", "with": "native", "text": why})


def jobs_at_once() -> int:
    """A job has two ranks that do not sleep while they wait. More than a dozen pairs of contexts would fill a GPU."""
    return max(1, min(12, len(os.sched_getaffinity(0)) // 2))


def examine_matrix(examination: Examination) -> None:
    """Natively and with Awaken, cell by cell. The report gets what was found, however this ends."""
    options, report = examination.options, examination.report
    request = conformance.Request(
        functions=[name for name in options.functions.split(",") if name],
        kinds=[kind for kind in conformance.KINDS if kind in options.kinds.split(",")],
        large_counts=options.large_counts,
        start_limit_s=options.limit,
        cell_limit_s=options.cell_limit,
        total_limit_s=options.matrix_limit,
        jobs_at_once=options.jobs or jobs_at_once(),
    )
    outcomes = {"native": conformance.Outcome(), "awaken": conformance.Outcome()}
    try:
        for side in outcomes:

            def progress(done: int, count: int, left_s: float, side: str = side) -> None:
                how = "with Awaken" if side == "awaken" else "natively"
                examination.tell(f"matrix, {how}: {done} of {count} cells, about {left_s:.0f} s more ...")

            runner = conformance.Runner(
                examination.launcher,
                examination.surroundings,
                request,
                with_awaken=side == "awaken",
                progress=progress,
            )
            outcomes[side] = runner.outcome
            try:
                runner.run()
            except JobFailed as error:
                report["problems"].append({"probe": "matrix", "with": side, "text": str(error)})
            left = sum(1 for cell in runner.outcome.cells if cell.status == conformance.NOT_TRIED)
            if left:
                text = f"{left} cells were not tried: give --matrix-limit more seconds than {options.matrix_limit:g}"
                report["problems"].append({"probe": "matrix", "with": side, "text": text})
    finally:
        report["matrix"] = matrix_of(request, outcomes)


def matrix_of(request: conformance.Request, outcomes: dict[str, conformance.Outcome]) -> Report | None:
    """Both sides' cells beside each other; None where neither side has any."""
    answers: dict[tuple[str, str, str], Report] = {}
    for side, outcome in outcomes.items():
        for cell in outcome.cells:
            place = (cell.function, cell.family, cell.kind)
            untried = {one: {"status": conformance.NOT_TRIED, "text": ""} for one in outcomes}
            answers.setdefault(place, untried)[side] = {"status": cell.status, "text": cell.text}
    if not answers:
        return None
    return {
        "kinds": list(request.kinds),
        "ranks": request.ranks,
        "cells": [
            {"function": function, "family": family, "kind": kind, **sides}
            for (function, family, kind), sides in answers.items()
        ],
        "seconds": {side: round(outcome.seconds, 1) for side, outcome in outcomes.items()},
        "jobs": {side: outcome.jobs for side, outcome in outcomes.items()},
    }


# ------------------------------------------------------------------------------------------------------------- together


def works_with_awaken(report: Report, *, matrix_asked: bool) -> bool:
    """Whether nothing that was asked for fails with Awaken, or was left untried."""
    if not report["gpu"]["found"] or report["awaken"]["gpu_aware"] is not True:
        return False
    statuses = [cell["status"] for cell in report["awaken"]["attempts"]]
    for part, cells in (
        (report["between_nodes"], (report["between_nodes"] or {}).get("awaken", [])),
        (matrix_asked, [cell["awaken"] for cell in (report["matrix"] or {}).get("cells", [])]),
    ):
        if part and not cells:
            return False  # no job could be run
        statuses += [cell["status"] for cell in cells]
    if not all(record["same"] for record in report["sums"] or []):
        return False
    failures = (*conformance.FAILURES, conformance.NOT_TRIED)
    return not any(status in failures for status in statuses) and report["awaken"].get("verified", True)


def begin(options: argparse.Namespace) -> Examination:
    """Finds the launcher. Raises Misuse, NoLauncher, NotInstalled."""
    emulate = options.emulate or os.environ.get("AWAKEN_EMULATE", "")
    allocation = find_allocation(os.environ)
    try:
        launcher = find_launcher(options.launcher, os.environ)
    except NoLauncher as error:
        if options.launcher:
            raise Misuse(str(error)) from error
        raise
    report: Report = {
        "schema": SCHEMA,
        "version": VERSION,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": os.uname().nodename,
        "emulated": bool(emulate),
        "allocation": vars(allocation),
        "launcher": {"words": list(launcher.words), "family": launcher.family, "version": launcher.version},
        "problems": [],
        "interrupted": False,
    }
    return Examination(options, launcher, Surroundings(emulate), report)


def examine(examination: Examination) -> None:
    """Everything that is asked for, into the report. Raises JobFailed, NotInstalled."""
    options, report = examination.options, examination.report
    examine_facts(examination)
    report["rdma"] = rdma_facts()
    report["build"] = mpi_build.examine(report["mpi"]["library"], examination.launcher.words)
    examine_placement(examination)
    report["native"] = report["awaken"] = report["hardware"] = report["cache"] = report["matrix"] = None
    report["between_nodes"] = report["sums"] = None
    if report["gpu"]["found"]:
        examine_hardware(examination)
        report["native"] = examine_side(examination, with_awaken=False)
        report["awaken"] = examine_side(examination, with_awaken=True)
        report["between_nodes"] = examine_between_nodes(examination)
        if report["awaken"]["gpu_aware"]:
            report["sums"] = examine_sums(examination)
        note_native_answer(examination)
        if options.matrix:
            examine_matrix(examination)
    report["advice"] = advise(report)
    report["works_with_awaken"] = report["gpu"]["found"] and works_with_awaken(report, matrix_asked=options.matrix)
    report["seconds"] = examination.seconds()
    examination.tell("")


def write(options: argparse.Namespace, report: Report) -> None:
    """What is asked for besides text. Raises Misuse."""
    if options.json == "-":
        print(json.dumps(report, indent=1))
    elif options.json:
        output_files.write(options.json, json.dumps(report, indent=1) + "\n")
    if options.html and report.get("matrix"):
        output_files.write(options.html, conformance_page.page(report))


def run(words: Sequence[str]) -> int:
    """The command; `words` are those after `awaken doctor`. Returns the exit status."""
    options = parse(words)
    examination: Examination | None = None
    try:
        leave_or_refuse("doctor", os.environ)
        for path in (options.json, options.html):
            if path and path != "-":
                output_files.check(path)
        examination = begin(options)
        examine(examination)
    except (Misuse, NotInstalled) as error:
        print(f"awaken: {error}", file=sys.stderr)
        return 2
    except (NoLauncher, JobFailed) as error:
        print(f"awaken: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        return interrupted(examination, interrupt)
    # What took minutes to find is told, whether its file can be written (a full disk) or not.
    unwritten = ""
    try:
        write(options, examination.report)
    except Misuse as error:
        unwritten = str(error)
    gpu = examination.report["gpu"]
    if not gpu["found"]:
        print(f"awaken: {no_gpu(gpu.get('why_not', 'no reason given'))}", file=sys.stderr)
    elif options.json != "-":
        print(terminal.painted_report(describe(examination.report)))
    if unwritten:
        print(f"awaken: {unwritten}", file=sys.stderr)
        return 2
    return 0 if examination.report["works_with_awaken"] else 1


def interrupted(examination: Examination | None, interrupt: KeyboardInterrupt) -> int:
    """Tells what was found until then, if it is more than the launcher's name: as JSON, and as text when it was in the
    matrix already, which takes minutes, and before which all the rest comes."""
    told = "interrupted"
    if examination is not None and "mpi" in examination.report:
        options, report = examination.options, examination.report
        report["interrupted"] = True
        with contextlib.suppress(Misuse):
            write(options, report)
            told += f": {options.json} has what was found" if options.json not in ("", "-") else ""
        if report.get("matrix") and options.json != "-":
            examination.tell("")
            print(describe({**report, "advice": advise(report), "seconds": examination.seconds()}), flush=True)
    print(f"awaken: {told}", file=sys.stderr)
    return interruption.exit_status(interrupt)
