"""`awaken doctor`: whether the MPI at hand takes GPU memory, by itself and with Awaken, and what would improve it.

Everything is tried for real, in child jobs under the MPI's own launcher, with time limits: a crash or a hang is an
answer. docs/doctor.md describes the output.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from awaken import conformance, conformance_page, native_cache, placement
from awaken.doctor_advice import advise
from awaken.doctor_text import describe
from awaken.installation import NotInstalled
from awaken.jobs import (
    RANK_VARIABLES,
    JobFailed,
    Launcher,
    NoLauncher,
    Surroundings,
    find_allocation,
    find_launcher,
    only,
    run_probe,
    succeeded,
)

SCHEMA = "awaken-doctor"
VERSION = 1

QUICK_FUNCTIONS = ("MPI_Send", "MPI_Allreduce")
"""What stands for all functions where the matrix is not asked for: one of each great family."""

DIRECT_OVER_HOST = 1.2
"""Messages that are so much faster than the slower direction of copies to and from the host cannot pass through it."""
TELLING_RAW_OVER_HOST = 1.5
"""Unless a raw copy between the GPUs is so much faster than the host's path, speed does not tell the two apart."""

Report = dict[str, Any]


class Misuse(Exception):
    """The command line or the surroundings are wrong; ends with status 2."""


@dataclass
class Examination:
    """One run of the doctor: what is asked, and what was found so far."""

    options: argparse.Namespace
    launcher: Launcher
    surroundings: Surroundings
    report: Report

    def tell(self, text: str) -> None:
        """Progress, on stderr, where somebody looks on."""
        if not self.options.quiet and sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def probe(
        self, ranks: int, arguments: Sequence[str], *, with_awaken: bool = False, spread: bool = False
    ) -> list[dict[str, Any]]:
        """Runs a command of the probe. What went wrong is added to the report's problems."""
        self.tell(f"{arguments[0]}{' with Awaken' if with_awaken else ''} ...")
        records, job = run_probe(
            self.launcher,
            self.surroundings,
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
    parser = argparse.ArgumentParser(
        prog="awaken doctor",
        description="Says whether this machine's MPI takes GPU memory, by itself and with Awaken, and what would help.",
        epilog="Exit status: 0 when everything that was asked for works with Awaken, 1 when something does not, "
        "2 for a wrong command line.",
    )
    parser.add_argument("--mpiexec", default="", metavar="'WORDS'", help="the launcher, instead of the one in PATH")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of the placement (default: one per visible GPU)")
    parser.add_argument("--emulate", default="", metavar="KIND:N", help="examine N emulated GPUs, such as cuda:2")
    parser.add_argument("--bytes", default="64M", metavar="SIZE", help="size of the messages that are timed (64M)")
    parser.add_argument("--samples", type=int, default=5, metavar="N", help="measurements per figure (5)")
    parser.add_argument(
        "--limit", type=float, default=60.0, metavar="S", help="seconds that a probe may be silent (60)"
    )
    parser.add_argument("--json", default="", metavar="FILE", help="write everything as JSON, too; - for stdout alone")
    parser.add_argument("--no-cache", action="store_true", help="do not note whether the MPI takes device memory")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    group = parser.add_argument_group("the conformance matrix")
    group.add_argument("--matrix", action="store_true", help="try every communication function with every memory")
    group.add_argument("--functions", default="", metavar="A,B", help="only these (MPI_Send,MPI_Bcast)")
    group.add_argument("--kinds", default=",".join(conformance.KINDS), metavar="A,B", help="only these kinds of memory")
    group.add_argument("--large-counts", action="store_true", help="also MPI_Send_c and its kin")
    group.add_argument("--cell-limit", type=float, default=20.0, metavar="S", help="a longer silence is a hang (20)")
    group.add_argument("--jobs", type=int, default=0, metavar="N", help="jobs at once (default: by the processors)")
    group.add_argument("--html", default="", metavar="FILE", help="write the matrix as a page, too")
    options = parser.parse_args(words)
    options.matrix = options.matrix or bool(options.functions or options.html)
    unknown = set(options.kinds.split(",")) - set(conformance.KINDS)
    if unknown:
        parser.error(f"there is no kind of memory {sorted(unknown)[0]}: use any of {', '.join(conformance.KINDS)}")
    for name, least in (("ranks", 2), ("samples", 1), ("jobs", 0), ("limit", 1), ("cell_limit", 0.5)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} {value} is too small: use at least {least}")
    return options


# --------------------------------------------------------------------------------------------------------------- probes

SRUN_ADVICE = (
    "; srun has to start ranks as their MPI expects it (srun --mpi=list tells what it knows): "
    "--mpiexec 'srun --mpi=pmi2' for MPICH and its family, --mpiexec 'srun --mpi=pmix' for Open MPI"
)


def examine_facts(examination: Examination) -> None:
    """Which MPI, which GPUs, which libraries."""
    report = examination.report
    records = examination.probe(2, ["facts"])
    ranks, mpi, libraries = only(records, "rank"), only(records, "mpi"), only(records, "libraries")
    if not mpi:
        problem = report["problems"][-1]["text"] if report["problems"] else "it told nothing"
        advice = SRUN_ADVICE if examination.launcher.family == "slurm" else ""
        raise JobFailed(f"no MPI job can be run with {shlex.join(examination.launcher.words)}: {problem}{advice}")
    report["mpi"] = mpi[0]["mpi"]
    if mpi[0]["ranks"] < 2:
        raise JobFailed(
            f"the launcher starts ranks that do not know each other: {shlex.join(examination.launcher.words)} belongs "
            f"to another MPI than {report['mpi']['library']}: name the right one with --mpiexec, or the right library "
            "with AWAKEN_MPI"
        )
    gpu = ranks[0]["gpu"]
    report["gpu"] = {**gpu, "found": "name" in gpu}
    report["libraries"] = libraries[0] if libraries else {}


def examine_placement(examination: Examination) -> None:
    """Which rank uses which GPU, with as many ranks as there are GPUs."""
    report = examination.report
    visible = report["gpu"].get("visible_devices", 0) or 0
    ranks = examination.options.ranks or max(2, visible * report["allocation"]["nodes"])
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


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def judge(bandwidth: float, raw: float | None, host: float | None) -> tuple[str, str]:
    """Whether messages go directly from GPU to GPU ("direct"), through the host ("staged"), or cannot be told
    ("unknown"), by GB/s of messages, of a raw copy between the GPUs, and of the slower direction of the host's path."""
    if raw is None or host is None:
        return "unknown", "there is no raw copy between the GPUs to compare with"
    figures = f"{bandwidth:.1f} GB/s; a raw copy {raw:.1f}, through the host at most {host:.1f}"
    if raw < TELLING_RAW_OVER_HOST * host:
        return "unknown", f"speed does not tell here: {figures}"
    if bandwidth > DIRECT_OVER_HOST * host:
        return "direct", figures
    return "staged", figures


def examine_transport(examination: Examination, *, with_awaken: bool) -> Report:
    """How a message travels between two GPUs, by its speed."""
    report = examination.report
    size = ["--bytes", examination.options.bytes, "--samples", str(examination.options.samples)]
    pairs = only(examination.probe(2, ["pairs", *size], with_awaken=with_awaken), "pair")
    if not pairs:
        return {"transport": "unknown", "why": "no message could be timed"}
    raw = [record["copy_GBps"] for record in report["hardware"]["ipc"] if record["works"]]
    host = [
        min(record["to_host_GBps"], record["to_device_GBps"])
        for record in report["hardware"]["host_path"]
        if "to_host_GBps" in record
    ]
    bandwidth = median([pair["bandwidth_GBps"] for pair in pairs])
    transport, why = judge(bandwidth, median(raw) if raw else None, min(host) if host else None)
    answer = {
        "transport": transport,
        "why": why,
        "bytes": pairs[0]["bytes"],
        "bandwidth_GBps": bandwidth,
        "both_GBps": median([pair["both_GBps"] for pair in pairs]),
        "latency_us": median([pair["latency_us"] for pair in pairs]),
        "verified": all(pair["verified"] for pair in pairs),
    }
    if with_awaken:
        answer["path"] = pairs[0]["path"]
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
        report["problems"].append({"probe": "cache", "with": "native", "text": f"{file} cannot be written: {error}"})


def examine_matrix(examination: Examination) -> Report:
    """Natively and with Awaken, cell by cell."""
    options = examination.options
    request = conformance.Request(
        functions=[name for name in options.functions.split(",") if name],
        kinds=[kind for kind in conformance.KINDS if kind in options.kinds.split(",")],
        large_counts=options.large_counts,
        start_limit_s=options.limit,
        cell_limit_s=options.cell_limit,
        # A job has two ranks, and the first cell of a job waits for its GPU's context.
        jobs_at_once=options.jobs or max(1, min(8, (os.cpu_count() or 1) // 4)),
    )
    sides: dict[str, conformance.Outcome] = {}
    for side in ("native", "awaken"):

        def progress(done: int, count: int, side: str = side) -> None:
            examination.tell(f"matrix, {'with Awaken' if side == 'awaken' else 'natively'}: {done} of {count} ...")

        sides[side] = conformance.Runner(
            examination.launcher,
            examination.surroundings,
            request,
            with_awaken=side == "awaken",
            progress=progress,
        ).run()
    cells = [
        {
            "function": native.function,
            "family": native.family,
            "kind": native.kind,
            "native": {"status": native.status, "text": native.text},
            "awaken": {"status": awaken.status, "text": awaken.text},
        }
        for native, awaken in zip(sides["native"].cells, sides["awaken"].cells)
    ]
    return {
        "kinds": list(request.kinds),
        "ranks": request.ranks,
        "cells": cells,
        "seconds": {side: round(outcome.seconds, 1) for side, outcome in sides.items()},
        "jobs": {side: outcome.jobs for side, outcome in sides.items()},
    }


# ------------------------------------------------------------------------------------------------------------- together


def works_with_awaken(report: Report) -> bool:
    """Whether nothing that was asked for fails with Awaken."""
    if not report["gpu"]["found"] or report["awaken"]["gpu_aware"] is not True:
        return False
    statuses = [cell["status"] for cell in report["awaken"]["attempts"]]
    statuses += [cell["status"] for cell in (report["between_nodes"] or {}).get("awaken", [])]
    statuses += [cell["awaken"]["status"] for cell in (report["matrix"] or {}).get("cells", [])]
    return not any(status in conformance.FAILURES for status in statuses) and report["awaken"].get("verified", True)


def examine(options: argparse.Namespace) -> Report:
    """Everything that is asked for. Raises Misuse, NoLauncher, JobFailed, NotInstalled."""
    started = time.monotonic()
    emulate = options.emulate or os.environ.get("AWAKEN_EMULATE", "")
    allocation = find_allocation(os.environ)
    try:
        launcher = find_launcher(options.mpiexec, os.environ)
    except NoLauncher as error:
        if options.mpiexec:
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
    }
    examination = Examination(options, launcher, Surroundings(emulate), report)
    examine_facts(examination)
    report["rdma"] = rdma_facts()
    examine_placement(examination)
    report["native"] = report["awaken"] = report["hardware"] = report["cache"] = report["matrix"] = None
    report["between_nodes"] = None
    if report["gpu"]["found"]:
        examine_hardware(examination)
        report["native"] = examine_side(examination, with_awaken=False)
        report["awaken"] = examine_side(examination, with_awaken=True)
        report["between_nodes"] = examine_between_nodes(examination)
        note_native_answer(examination)
        if options.matrix:
            report["matrix"] = examine_matrix(examination)
    report["advice"] = advise(report)
    report["works_with_awaken"] = report["gpu"]["found"] and works_with_awaken(report)
    report["seconds"] = round(time.monotonic() - started, 1)
    examination.tell("")
    return report


def write_text(path: str, text: str) -> None:
    """Raises Misuse where the file cannot be written."""
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise Misuse(f"{path} cannot be written ({error.strerror}): choose another file") from error


def run(words: Sequence[str]) -> int:
    """The command; `words` are those after `awaken doctor`. Returns the exit status."""
    options = parse(words)
    try:
        if any(os.environ.get(name) for name in RANK_VARIABLES):
            raise Misuse("awaken doctor starts jobs by itself: call it without mpiexec or srun, once")
        for path in (options.json, options.html):
            if path and path != "-":
                write_text(path, "")  # what cannot be written is told before minutes are spent
        report = examine(options)
        if options.json and options.json != "-":
            write_text(options.json, json.dumps(report, indent=1) + "\n")
        if options.html and report["matrix"]:
            write_text(options.html, conformance_page.page(report))
    except (Misuse, NotInstalled) as error:
        print(f"awaken: {error}", file=sys.stderr)
        return 2
    except (NoLauncher, JobFailed) as error:
        print(f"awaken: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=1) if options.json == "-" else describe(report))
    return 0 if report["works_with_awaken"] else 1
