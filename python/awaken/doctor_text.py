# SPDX-License-Identifier: Apache-2.0
"""The doctor's findings as text."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from typing import Any

from awaken import conformance, placement
from awaken.text_tables import WIDTH, facts, table

Report = dict[str, Any]

SHORT = {"works": "ok", "unavailable": "n/a", "absent": "-"}


def describe(report: Report) -> str:
    """All of it, where a GPU was found, in at most 80 columns but for commands."""
    lines = [*heading("MPI"), *facts(mpi_lines(report)), *heading("GPU"), *facts(gpu_lines(report))]
    lines += [*heading("Device memory in MPI calls"), *facts(verdict_lines(report))]
    lines += [*heading("Between GPUs"), *facts(hardware_lines(report))]
    lines += heading("Placement")
    lines += table(placement.HEADER, placement.rows(report["placement"]["ranks"]), left=2)
    lines += wrapped("! ", [warning["text"] for warning in report["placement"]["warnings"]])
    if report["matrix"]:
        lines += [*heading("Conformance: native / with Awaken"), *matrix_lines(report["matrix"])]
    if report["advice"]:
        lines += heading("What would help")
        for advice in report["advice"]:
            lines += wrapped("* ", [f"{advice['what']}: {advice['why']}"])
            if advice["command"]:
                lines.append(f"      {advice['command']}")
    if report["problems"]:
        lines += heading("What could not be found out")
        lines += wrapped("* ", [f"{one['probe']} ({one['with']}): {one['text']}" for one in report["problems"]])
    lines += ["", f"({report['seconds']} s)"]
    return "\n".join(lines).lstrip("\n")


def heading(text: str) -> list[str]:
    return ["", text, "-" * len(text)]


def wrapped(mark: str, texts: list[str]) -> list[str]:
    return [
        line
        for text in texts
        for line in textwrap.wrap(
            text, WIDTH, initial_indent=mark, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    ]


def build_lines(build: Report) -> list[tuple[str, str]]:
    lines = []
    open_mpi, ucx = build.get("open_mpi"), build.get("ucx")
    if open_mpi:
        parts = [f"{kind}: {', '.join(names)}" for kind, names in open_mpi["components"].items()]
        lines.append(("components", f"{'; '.join(parts)} ({open_mpi['tool']})"))
    if ucx:
        gpus = " and ".join(ucx["gpus"]).upper()
        known = f"knows {gpus}" if gpus else "knows no GPUs"
        version = f" {ucx['version']}" if ucx["version"] else ""
        configured = f"; {ucx['configured']}" if ucx["configured"] else ""
        lines.append(("UCX", f"{ucx['library']}{version}, {known}{configured}"))
    return lines


def mpi_lines(report: Report) -> list[tuple[str, str]]:
    mpi, launcher, allocation = report["mpi"], report["launcher"], report["allocation"]
    said = {name: answer for name, answer in mpi["says_gpu_aware"].items() if answer is not None}
    configured = [
        line.strip()
        for line in mpi["library_version"].splitlines()
        if "configure" in line.lower() or "device" in line.lower()
    ]
    lines = [
        ("library", f"{mpi['name']} (MPI {mpi['standard']}, ABI {mpi['abi']}), {mpi['library']}"),
        ("launcher", f"{shlex.join(launcher['words'])} ({launcher['version'] or launcher['family']})"),
    ]
    if configured:
        lines.append(("built", "; ".join(" ".join(line.split()) for line in configured)))
    lines += build_lines(report.get("build") or {})
    lines.append(
        (
            "says of GPUs",
            ", ".join(f"{name}: {'yes' if answer else 'no'}" for name, answer in said.items()) or "nothing",
        )
    )
    if mpi["headers_say"]:
        words = {True: "1", False: "0", None: "not defined"}
        lines.append(("headers say", ", ".join(f"{name}: {words[said]}" for name, said in mpi["headers_say"].items())))
    if allocation["system"]:
        lines.append(
            (
                "allocation",
                f"{allocation['system']} {allocation['job']}: {allocation['nodes']} nodes {allocation['hosts']}",
            )
        )
    return lines


def gpu_lines(report: Report) -> list[tuple[str, str]]:
    gpu = report["gpu"]
    return [
        (
            "found",
            f"{gpu['visible_devices']} x {gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB; {gpu['runtime']}"
            + (" (emulated: its speeds mean nothing)" if report["emulated"] else ""),
        )
    ]


def attempts_text(attempts: list[Report]) -> str:
    parts = []
    for kind in conformance.KINDS:
        cells = [cell for cell in attempts if cell["kind"] == kind]
        if cells:
            by_status: dict[str, list[str]] = {}
            for cell in cells:
                by_status.setdefault(cell["status"], []).append(cell["function"])
            if len(by_status) == 1:
                parts.append(f"{kind}: {next(iter(by_status))}")
            else:
                parts += [f"{kind}: {status} ({', '.join(names)})" for status, names in by_status.items()]
    return "; ".join(parts)


def side_text(side: Report) -> str:
    if side["gpu_aware"] is None:
        return f"not known: {side['why']}"
    if not side["gpu_aware"]:
        failed = next((cell for cell in side["attempts"] if cell["status"] != "works"), None)
        why = f" ({failed['function']}: {failed['text']})" if failed and failed["text"] else ""
        return f"NO. {attempts_text(side['attempts'])}{why}"
    return f"yes. {attempts_text(side['attempts'])}"


def transport_text(side: Report) -> str:
    if "bandwidth_GBps" not in side:
        return str(side["why"])
    path = f", path in the report: {side['path']}" if side.get("path") else ""
    wrong = "" if side["verified"] else "; THE DATA WERE WRONG"
    trusting = side.get("trusting_latency_us")
    saved = f" ({trusting:.1f} us with AWAKEN_DEFAULT_STREAM=trust)" if trusting is not None else ""
    return f"{side['transport']} ({side['why']}); 8 bytes in {side['latency_us']:.1f} us{saved}{path}{wrong}"


def verdict_lines(report: Report) -> list[tuple[str, str]]:
    lines = []
    for key, title in (("native", "the MPI alone"), ("awaken", "with Awaken")):
        side = report[key]
        lines.append((title, side_text(side)))
        if side["gpu_aware"]:
            lines.append(("  path", transport_text(side)))
        if report["between_nodes"]:
            attempts = report["between_nodes"][key]
            lines.append(("  two nodes", attempts_text(attempts) if attempts else "no job could be run"))
    if report["sums"] is not None:
        lines.append(("sums", sums_text(report["sums"])))
    return lines


def sums_text(sums: list[Report]) -> str:
    if not sums:
        return "not known: the probe came to no end"
    wrong = [record["kind"] for record in sums if not record["same"]]
    if wrong:
        return f"AWAKEN_REPRODUCIBLE DOES NOT WORK with {' and '.join(wrong)} memory"
    kinds = " and ".join(record["kind"] for record in sums)
    return f"the same bits in {kinds} memory of {sums[0]['ranks']} ranks with AWAKEN_REPRODUCIBLE=1"


def hardware_lines(report: Report) -> list[tuple[str, str]]:
    hardware, libraries, rdma = report["hardware"], report["libraries"], report["rdma"]
    lines = []
    for record in hardware["ipc"]:
        same = " (on one GPU)" if record.get("same_gpu") else ""
        text = (
            f"works{same}, {record['copy_GBps']:.1f} GB/s" if record["works"] else f"NO: {record.get('why_not', '?')}"
        )
        lines.append((f"IPC, {record['owner']} to {record['rank']}", text))
    reached = sum(1 for record in hardware["peer"] if record["does"])
    if hardware["peer"]:
        refused = next((record for record in hardware["peer"] if not record["does"]), None)
        why = (
            f"; GPU {refused['device']} cannot reach GPU {refused['peer']} {refused.get('why_not', '')}".rstrip()
            if refused
            else ""
        )
        lines.append(("peer access", f"{reached} of {len(hardware['peer'])} ordered pairs{why}"))
    else:
        lines.append(("peer access", "a process sees one GPU only"))
    for record in hardware["host_path"][:1]:
        text = (
            f"{record['to_host_GBps']:.1f} GB/s to the host, {record['to_device_GBps']:.1f} GB/s to the GPU"
            if "to_host_GBps" in record
            else record.get("why_not", "?")
        )
        lines.append(("host", text))
    ccl = libraries.get("ccl", {})
    lines.append(("NCCL, RCCL", ccl.get("title") or f"none: {ccl.get('why_not', 'not asked')}"))
    if report["gpu"]["vendor"] == "cuda":
        gdrcopy = libraries.get("gdrcopy", {})
        lines.append(("GDRCopy", "works" if gdrcopy.get("opens") else "not found"))
    lines.append(("kernels", kernels_text(libraries.get("kernels", {}))))
    cards = ", ".join(rdma["network_cards"]) or "no network card with RDMA"
    ways = [*rdma["peer_memory_modules"], *(["dma-buf (open driver)"] if rdma["open_nvidia_driver"] else [])]
    lines.append(("RDMA", cards + (f"; GPU memory by {', '.join(ways)}" if ways and rdma["network_cards"] else "")))
    return lines


def kernels_text(kernels: Report) -> str:
    """Which GPUs Awaken's kernels were compiled for, and where this one gets its kernels from."""
    targets = kernels.get("targets")
    known = f"compiled with Awaken for {', '.join(targets)}" if targets else "not compiled with Awaken"
    if kernels.get("loads"):
        return f"{known}; this GPU ({kernels['architecture']}) loads those for {kernels['loads']}"
    if kernels.get("compiler"):
        return f"{known}; for this GPU compiled at their first use, by {kernels['compiler']}"
    if kernels.get("why_no_compiler"):
        return f"{known}; THIS GPU HAS NONE: {kernels['why_no_compiler']}"
    return known


def matrix_lines(matrix: Report) -> list[str]:
    """One line per function; of a family in which all are alike, one line for it."""
    kinds = matrix["kinds"]
    by_function: dict[str, dict[str, str]] = {}
    families: dict[str, list[str]] = {}
    for cell in matrix["cells"]:
        native, awaken = (SHORT.get(cell[side]["status"], cell[side]["status"]) for side in ("native", "awaken"))
        by_function.setdefault(cell["function"], {})[cell["kind"]] = f"{native} / {awaken}"
        names = families.setdefault(cell["family"], [])
        if cell["function"] not in names:
            names.append(cell["function"])
    rows = []
    for family, names in families.items():
        lines = {tuple(by_function[name].get(kind, "") for kind in kinds) for name in names}
        if len(lines) == 1 and len(names) > 1:
            rows.append([f"all {len(names)} {family}", *next(iter(lines))])
        else:
            rows += [[name, *(by_function[name].get(kind, "") for kind in kinds)] for name in names]
    counts = {side: Counter(cell[side]["status"] for cell in matrix["cells"]) for side in ("native", "awaken")}
    summaries = [
        f"{'with Awaken' if side == 'awaken' else 'natively'}: "
        + conformance.counted(counts[side])
        + f"; {matrix['seconds'][side]} s in {matrix['jobs'][side]} jobs"
        for side in ("native", "awaken")
    ]
    texts = {
        f"{cell['function']}, {cell['kind']}: {cell['awaken']['status']}: {cell['awaken']['text']}"
        for cell in matrix["cells"]
        if cell["awaken"]["status"] in conformance.FAILURES
    }
    return [*table(["", *kinds], rows), "", *wrapped("", summaries), *wrapped("! ", sorted(texts))]
