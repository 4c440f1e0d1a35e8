# SPDX-License-Identifier: Apache-2.0
"""`awaken topo`: how GPUs, processors and network cards of this machine are connected, and how fast each path is.

The native program awaken-topology looks and measures without MPI; messages are measured by jobs under the MPI's
launcher. docs/topology.md describes the output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from awaken import conformance, interruption, link_limits, output_files, placement, terminal
from awaken.command_line import Parser
from awaken.installation import NotInstalled, required_program
from awaken.jobs import (
    Job,
    JobFailed,
    Launcher,
    NoLauncher,
    Surroundings,
    add_launcher_option,
    emulation,
    find_allocation,
    find_launcher,
    leave_job,
    only,
    read_record,
    run_probe,
    size_of_bytes,
    size_of_message,
    succeeded,
    within_a_job,
)
from awaken.output_files import Misuse
from awaken.topo_text import describe

SCHEMA = "awaken-topology"
VERSION = 1
NO_GPU = 3
"""Exit status of awaken-topology."""
PROGRESS = "pairs: "
"""How awaken-topology --progress begins a line on stderr before each pair."""
SDMA_SETTINGS = ("HSA_ENABLE_SDMA", "HSA_ENABLE_PEER_SDMA")
"""0: kernels of AMD's runtime make its copies, those with the host and those between GPUs."""
CURVE_S = 300.0
"""What the curve between two nodes may take."""

Report = dict[str, Any]


class NoGpu(Exception):
    """There is nothing to look at; ends with status 1."""


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="awaken topo",
        description="Shows how GPUs, processors and network cards are connected, and how fast each path is.",
        epilog="Under mpiexec it prints which rank runs where, and nothing else. Exit status: 0; 1 when there is no "
        "GPU or a measurement failed; 2 for a wrong command line.",
    )
    parser.add_argument("--no-measure", action="store_true", help="show the links only")
    parser.add_argument(
        "--bytes", type=size_of_bytes, default="", metavar="SIZE", help="of each copy (512M; emulated 4M)"
    )
    parser.add_argument("--samples", type=int, default=3, metavar="N", help="per bandwidth; the median is printed (3)")
    parser.add_argument("--gpus", default="", metavar="0,1", help="only these (default: all that are visible)")
    parser.add_argument("--no-verify", action="store_true", help="do not compare what was copied")
    parser.add_argument(
        "--engines",
        action="store_true",
        help="copies and messages by each engine, side by side: SDMA engines and kernels (AMD), copy engines and a "
        "kernel (NVIDIA)",
    )
    parser.add_argument("--no-mpi", action="store_true", help="start no jobs")
    add_launcher_option(parser)
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of the map (default: one per GPU)")
    parser.add_argument(
        "--mpi-bytes", type=size_of_message, default="", metavar="SIZE", help="of each message (256M; emulated 4M)"
    )
    parser.add_argument("--pretend-nodes", action="store_true", help="the curve between nodes, on this node alone")
    parser.add_argument(
        "--curve-bytes", type=size_of_bytes, default="4M", metavar="SIZE", help="the curve's largest message (4M)"
    )
    parser.add_argument("--limit", type=float, default=120.0, metavar="S", help="seconds a job may be silent (120)")
    parser.add_argument(
        "--emulate", type=emulation, default="", metavar="KIND:N", help="look at N emulated GPUs, such as cuda:2"
    )
    parser.add_argument("--sysfs", default="/sys", metavar="DIR", help="where the system's files are (/sys)")
    parser.add_argument(
        "--json",
        nargs="?",
        default="",
        const="-",
        metavar="FILE",
        help="write everything as JSON, too; without FILE, and with -, to stdout alone",
    )
    options = parser.parse_args(words)
    for name, least in (("samples", 1), ("ranks", 1), ("limit", 1)):
        value = getattr(options, name)
        if value is not None and not value >= least:  # nan is not, either
            parser.error(f"--{name} {value} is too small: use at least {least}")
    if options.engines and options.no_measure:
        parser.error("--engines measures each engine: leave out --no-measure")
    gpus = options.gpus.split(",")
    if len(set(gpus)) < len(gpus):
        parser.error(f"--gpus {options.gpus} names a GPU twice")
    if options.sysfs != parser.get_default("sysfs") and not Path(options.sysfs).is_dir():
        parser.error(f"--sysfs {options.sysfs} is not a folder")
    options.emulate = options.emulate or os.environ.get("AWAKEN_EMULATE", "")
    options.bytes = options.bytes or ("4M" if options.emulate else "512M")
    options.mpi_bytes = options.mpi_bytes or ("4M" if options.emulate else "256M")
    return options


# --------------------------------------------------------------------------------------------------------- this machine


def look(options: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Report:
    """What the native program tells, with these variables set. Raises NoGpu, Misuse."""
    arguments = ["--bytes", options.bytes, "--samples", str(options.samples), "--sysfs", options.sysfs]
    if options.gpus:
        arguments += ["--devices", options.gpus]
    if options.no_measure:
        arguments.append("--no-measure")
    if options.no_verify:
        arguments.append("--no-verify")
    if options.emulate:
        # An emulated figure means nothing, so that there is no use in waiting for many.
        arguments += ["--copies", "1", "--latency-samples", "5"]
    program = required_program("awaken-topology")
    surroundings = Surroundings(options.emulate, environment or {})
    job = Job(surroundings.words(program, [*arguments, "--progress"], with_awaken=False))
    printed = job.output(options.limit, show_progress)
    terminal.rewrite_line("")
    lines = [line for line in job.errors.splitlines() if not line.startswith(PROGRESS)]
    said = "\n".join(lines).strip().removeprefix("awaken: ")
    if job.status == NO_GPU:
        raise NoGpu(said or "there is no GPU to look at")
    if job.status == 2:
        raise Misuse(said or "awaken-topology refuses its arguments")
    try:
        report: Report = json.loads(printed)
    except ValueError as error:
        how = f"it said nothing for {options.limit:g} s" if job.timed_out else f"it ended with status {job.status}"
        raise JobFailed(f"awaken-topology did not finish: {how}{f': {said}' if said else ''}") from error
    return report


def show_progress(data: bytes) -> None:
    """The last of the lines that tell of it, over the one before."""
    for line in data.decode(errors="replace").splitlines()[-1:]:
        if line.startswith(PROGRESS):
            terminal.rewrite_line(f"{line} ...")


def add_limits(report: Report) -> None:
    """The limit of each link, and what each raw figure is of it."""
    gpus = {gpu["gpu"]: gpu for gpu in report["gpus"]}
    for gpu in report["gpus"]:
        limit = link_limits.pcie(gpu)
        gpu.update(host_limit_GBps=limit.GBps, host_limit_why_not=limit.why_not, host_limit_what=limit.what)
        gpu["sdma_engine_GBps"] = link_limits.sdma_engine(gpu)
    for link in report["links"]:
        limit = link_limits.between(link, gpus[link["gpu"]], gpus[link["peer"]])
        link.update(limit_GBps=limit.GBps, limit_why_not=limit.why_not, limit_what=limit.what)
    for card in report["network_cards"]:
        limit = link_limits.network(card)
        card.update(limit_GBps=limit.GBps, limit_why_not=limit.why_not)
    compare_with_limits(report, report.get("raw", {}).get("pairs", []))


def compare_with_limits(report: Report, pairs: Sequence[Report]) -> None:
    """What raw figures are of the links' limits."""
    limits = {(link["gpu"], link["peer"]): link_limits.Limit(link["limit_GBps"]) for link in report["links"]}
    limits.update({(gpu["gpu"], "host"): link_limits.Limit(gpu["host_limit_GBps"]) for gpu in report["gpus"]})
    for pair in pairs:
        limit = limits[pair["gpu"], pair["peer"]]
        pair["limit_GBps"] = limit.GBps
        for name, directions in (("read", 1), ("write", 1), ("both", 2)):
            if pair[name] is not None:
                pair[name]["percent_of_limit"] = limit.percent(pair[name]["median_GBps"], directions)


# ------------------------------------------------------------------------------------------------------------- with MPI


def map_ranks(options: argparse.Namespace, launcher: Launcher, surroundings: Surroundings, report: Report) -> None:
    """Which rank runs where, by a job of its own."""
    ranks = options.ranks or launcher.ranks or max(1, len(report["gpus"]) * report["allocation"]["nodes"])
    arguments = ["facts", *gpu_map(report)]
    records, job = run_probe(
        launcher, surroundings, ranks, arguments, with_awaken=False, limit_s=options.limit, spread=True
    )
    if not succeeded(records):
        report["problems"].append({"what": "map of the ranks", "text": why_not(records, job.explanation())})
    report["ranks"] = only(records, "rank")
    report["placement_warnings"] = placement.warnings(report["ranks"])
    if mpi := only(records, "mpi"):
        report["mpi"]["name"] = mpi[0]["mpi"]["name"]
        report["mpi"]["library"] = mpi[0]["mpi"]["library"]


def why_not(records: Sequence[dict[str, Any]], otherwise: str) -> str:
    """What a probe that did not finish said."""
    for kind, text in (("failed", "text"), ("no_gpu", "why_not"), ("crash", "signal")):
        if found := only(records, kind):
            return str(found[0][text])
    return otherwise


def gpu_map(report: Report) -> list[str]:
    """The devices that were asked for, one per rank of a node."""
    return ["--gpu-map", ",".join(str(gpu["gpu"]) for gpu in report["gpus"])]


def native_refusal(options: argparse.Namespace, launcher: Launcher, surroundings: Surroundings) -> str:
    """Why device memory is not given to the MPI alone; empty when it may be. Tried, because it may well crash."""
    request = conformance.Request(functions=("MPI_Send",), kinds=("device",), start_limit_s=options.limit)
    try:
        cell = conformance.Runner(launcher, surroundings, request, with_awaken=False).run().cells[0]
    except JobFailed as error:
        return str(error)
    return "" if cell.status == "works" else f"MPI_Send of device memory: {cell.status} ({cell.text})"


def measure_messages(
    options: argparse.Namespace, launcher: Launcher, surroundings: Surroundings, report: Report, *, with_awaken: bool
) -> Report:
    """Messages between each ordered pair of this node's GPUs."""
    gpus = [gpu["gpu"] for gpu in report["gpus"]]
    answer: Report = {"why_not": None, "pairs": []}
    if len(gpus) < 2:
        return {**answer, "why_not": "one GPU is visible"}
    if not with_awaken and (refusal := native_refusal(options, launcher, surroundings)):
        return {**answer, "why_not": refusal}
    arguments = ["pairs", "--bytes", options.mpi_bytes, "--samples", str(options.samples), *gpu_map(report)]
    records, job = run_probe(
        launcher, surroundings, len(gpus), arguments, with_awaken=with_awaken, limit_s=options.limit
    )
    if not succeeded(records):
        answer["why_not"] = why_not(records, "it did not end in time" if job.timed_out else job.explanation())
    limits = {(link["gpu"], link["peer"]): link_limits.Limit(link["limit_GBps"]) for link in report["links"]}
    for pair in only(records, "pair"):
        sender, receiver = gpus[pair["from"]], gpus[pair["to"]]
        limit = limits[receiver, sender]
        answer["pairs"].append(
            {
                "sender": sender,
                "receiver": receiver,
                "bytes": pair["bytes"],
                "samples": pair["samples"],
                "bandwidth_GBps": pair["bandwidth_GBps"],
                "both_GBps": pair["both_GBps"],
                "latency_us": pair["latency_us"],
                "percent_of_limit": limit.percent(pair["bandwidth_GBps"]),
                "both_percent_of_limit": limit.percent(pair["both_GBps"], 2),
                "verified": pair["verified"],
                "path": pair["path"] or None,
            }
        )
    return answer


def measure_between_nodes(
    options: argparse.Namespace, launcher: Launcher, surroundings: Surroundings, report: Report
) -> Report:
    """The bandwidth over sizes between two nodes, as osu_bw measures it."""
    real = report["allocation"]["nodes"] > 1
    answer: Report = {"pretended": not real, "why_not": None, "points": [], "limit_GBps": None}
    if not real and not options.pretend_nodes:
        return {**answer, "why_not": "there is one node (--pretend-nodes shows the path between nodes on one)"}
    environment = {} if real else {"AWAKEN_TEST_NODES": "2"}
    words = [
        *launcher.command(2, one_per_node=real),
        *("env", *(f"{name}={value}" for name, value in environment.items()), str(required_program("awaken"))),
        *("bench", "bw", "D", "D", "-m", options.curve_bytes, "--json", "-", "--no-progress", "--quiet"),
        *(["--emulate", surroundings.emulate, "-i", "5", "-x", "1"] if surroundings.emulate else []),
    ]
    rates = [card["limit_GBps"] for card in report["network_cards"] if card["limit_GBps"] and real]
    limit = link_limits.Limit(max(rates) if rates else None)
    answer["limit_GBps"] = limit.GBps
    job = Job(words)
    try:
        # The whole curve is told at its end.
        printed = job.output(options.limit + CURVE_S)
        contender = json.loads(printed)["runs"][0]["contenders"][0]
        answer["why_not"] = contender["unavailable"] or None
        answer["points"] = [
            {
                "bytes": point["size"],
                "bandwidth_MBps": point["bandwidth_MBps"],
                "percent_of_limit": limit.percent(point["bandwidth_MBps"] / 1e3),
            }
            for point in contender["measurements"]
        ]
    except JobFailed as error:
        answer["why_not"] = str(error)
    except (ValueError, LookupError, TypeError):
        answer["why_not"] = "the job did not end in time" if job.timed_out else job.explanation()
    return answer


def ask_mpi(options: argparse.Namespace, report: Report, environment: Mapping[str, str]) -> Launcher | None:
    """All that needs jobs, and what starts them. What cannot be had is told, and the rest goes on."""
    report["mpi"] = {"why_not": None}
    report["ranks"], report["placement_warnings"] = [], []
    if options.no_mpi:
        report["mpi"]["why_not"] = "not asked for (--no-mpi)"
        return None
    try:
        launcher = find_launcher(options.launcher, os.environ)
    except NoLauncher as error:
        if options.launcher:
            raise Misuse(str(error)) from error
        report["mpi"]["why_not"] = str(error)
        return None
    surroundings = Surroundings(options.emulate, environment)
    report["mpi"]["launcher"] = list(launcher.words)
    map_ranks(options, launcher, surroundings, report)
    if options.no_measure:
        return launcher
    for side in ("native", "awaken"):
        report["mpi"][side] = measure_messages(options, launcher, surroundings, report, with_awaken=side == "awaken")
    report["between_nodes"] = measure_between_nodes(options, launcher, surroundings, report)
    return launcher


def engine(name: str, environment: Mapping[str, str], pairs: Sequence[Report]) -> Report:
    settings = [f"{variable}={value}" for variable, value in environment.items()]
    return {"name": name, "settings": settings, "pairs": list(pairs), "native": None, "awaken": None}


def measure_engines(
    options: argparse.Namespace, launcher: Launcher | None, environment: Mapping[str, str], report: Report
) -> list[Report]:
    """Copies and messages by each engine. `environment` is what the report was made with."""
    of_method = {
        method: [pair for pair in report["raw"]["pairs"] if pair["method"] == method]
        for method in ("copy engine", "kernel")
    }
    first = engine(report["raw"]["copy_engine"]["between_gpus"], environment, of_method["copy engine"])
    kernel = engine("kernel", {}, of_method["kernel"])
    if report["vendor"] == "hip":
        for side in ("native", "awaken"):
            first[side] = report["mpi"].get(side)
        off = dict.fromkeys(SDMA_SETTINGS, "0")
        raw = look(options, off)["raw"]
        pairs = [pair for pair in raw["pairs"] if pair["method"] == "copy engine"]
        compare_with_limits(report, pairs)
        second = engine(raw["copy_engine"]["between_gpus"], off, pairs)
        engines, jobs = [first, second, kernel], [(second, side, off) for side in ("native", "awaken")]
    else:
        engines = [engine(first["name"], {}, first["pairs"]), kernel]
        jobs = [(one, "awaken", {"AWAKEN_TEST_COPY": choice}) for one, choice in zip(engines, ("engine", "kernel"))]
    if launcher is None:
        return engines
    for one, side, settings in jobs:
        surroundings = Surroundings(options.emulate, settings)
        one[side] = measure_messages(options, launcher, surroundings, report, with_awaken=side == "awaken")
    return engines


# ------------------------------------------------------------------------------------------------------------- together


def problems_of(report: Report) -> list[dict[str, str]]:
    """Measurements that failed, rather than could not be made."""
    more = [one for one in report.get("engines", []) if one["name"] == "kernels of the runtime"]
    found = [
        {"what": f"raw copy, GPU {pair['gpu']} and {pair['peer']}, {name}", "text": pair["failed"]}
        for pairs, by in [(report.get("raw", {}).get("pairs", []), ""), *((one["pairs"], one["name"]) for one in more)]
        for pair in pairs
        if pair["failed"]
        for name in [by or pair["method"]]
    ]
    found += [
        {"what": f"raw copies at the same time, from {one['from']}, {one['method']}", "text": one["failed"]}
        for one in report.get("raw", {}).get("together", [])
        if one["failed"]
    ]
    awaken = report["mpi"].get("awaken", {})
    if awaken.get("why_not") and len(report["gpus"]) > 1:
        found.append({"what": "messages with Awaken", "text": awaken["why_not"]})
    for who, sides in [("", report["mpi"]), *((f", {one['name']}", one) for one in report.get("engines", []))]:
        for side in ("native", "awaken"):
            found += [
                {
                    "what": f"messages ({side}{who}) from GPU {pair['sender']} to GPU {pair['receiver']}",
                    "text": "the data were wrong",
                }
                for pair in (sides.get(side) or {}).get("pairs", [])
                if not pair["verified"]
            ]
    return found


def examine(options: argparse.Namespace, report: Report) -> None:
    """Everything that is asked for, into the report."""
    started = time.monotonic()
    try:
        environment = dict.fromkeys(SDMA_SETTINGS, "1") if options.engines else {}
        report.update(look(options, environment))
        add_limits(report)
        launcher = ask_mpi(options, report, environment)
        if options.engines:
            report["engines"] = measure_engines(options, launcher, environment, report)
        report["problems"] += problems_of(report)
    finally:
        report["seconds"] = round(time.monotonic() - started, 1)


def begun(options: argparse.Namespace) -> Report:
    """A report without anything found yet."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": os.uname().nodename,
        "emulated": bool(options.emulate),
        "allocation": vars(find_allocation(os.environ)),
        "problems": [],
        "interrupted": False,
    }


def show_map_of_this_job(options: argparse.Namespace) -> int:
    """Under mpiexec: this process becomes one rank of the probe, and the one that is told of all prints the map."""
    surroundings = Surroundings(options.emulate)
    words = surroundings.words(required_program("awaken-probe"), ["facts"], with_awaken=False)
    # The launcher's descriptors are how a rank finds the others.
    done = subprocess.run(words, stdout=subprocess.PIPE, close_fds=False, check=False)
    records = [record for line in done.stdout.splitlines() if (record := read_record(line)) is not None]
    ranks = only(records, "rank")
    if ranks:
        from awaken.topo_text import map_lines

        print("\n".join(map_lines(ranks, placement.warnings(ranks))), flush=True)
    return done.returncode


def run(words: Sequence[str]) -> int:
    """The command; `words` are those after `awaken topo`. Returns the exit status."""
    options = parse(words)
    report = begun(options)
    try:
        if within_a_job(os.environ):
            return show_map_of_this_job(options)
        leave_job(os.environ)
        if options.json and options.json != "-":
            output_files.check(options.json)
        examine(options, report)
    except (Misuse, NotInstalled) as error:
        print(f"awaken: {error}", file=sys.stderr)
        return 2
    except (NoGpu, JobFailed) as error:
        print(f"awaken: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        return interrupted(options, report, interrupt)
    # What took minutes to find is told, whether its file can be written (a full disk) or not.
    unwritten = ""
    try:
        write(options, report)
    except Misuse as error:
        unwritten = str(error)
    if options.json != "-":
        print(terminal.painted_report(describe(report)))
    if unwritten:
        print(f"awaken: {unwritten}", file=sys.stderr)
        return 2
    return 1 if report["problems"] else 0


def write(options: argparse.Namespace, report: Report) -> None:
    """Where JSON is asked for. Raises Misuse."""
    text = json.dumps(report, indent=1)
    if options.json == "-":
        print(text)
    elif options.json:
        output_files.write(options.json, text + "\n")


def interrupted(options: argparse.Namespace, report: Report, interrupt: KeyboardInterrupt) -> int:
    """Tells what was found until then, if that is anything of the machine: as JSON, and as text."""
    told = "interrupted"
    if "gpus" in report:
        report["interrupted"] = True
        with contextlib.suppress(Misuse):
            write(options, report)
            told += f": {options.json} has what was found" if options.json not in ("", "-") else ""
        if "ranks" in report and options.json != "-":
            print(describe(report), flush=True)
    print(f"awaken: {told}", file=sys.stderr)
    return interruption.exit_status(interrupt)
