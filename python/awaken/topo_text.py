# SPDX-License-Identifier: Apache-2.0
"""The topology as tables of text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from awaken import placement
from awaken.text_tables import WIDTH, matrix, table

Report = dict[str, Any]

MISSING = "-"


def describe(report: Report) -> str:
    """All of it, in at most 80 columns."""
    lines = title(report)
    lines += ["", *gpu_lines(report), "", *link_lines(report)]
    lines += ["", *card_lines(report)]
    if "raw" in report:
        lines += raw_lines(report)
    lines += message_lines(report)
    lines += engine_lines(report)
    if report["ranks"]:
        lines += ["", *map_lines(report["ranks"], report["placement_warnings"])]
    if "between_nodes" in report:
        lines += ["", *curve_lines(report["between_nodes"])]
    for problem in report["problems"]:
        lines += wrapped(f"! {problem['what']}: {problem['text']}")
    lines += ["", f"({report['seconds']} s)"]
    return "\n".join(lines)


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def title(report: Report) -> list[str]:
    first = report["gpus"][0]
    lines = wrapped(f"{report['host']}: {len(report['gpus'])} x {first['name']}, {report['runtime']}")
    if report["emulated"]:
        lines.append("Emulated GPUs: the figures say nothing about any real one.")
    if report["link_source"] is None:
        lines += wrapped(f"The kind of links is not known: {report['link_source_why_not']}")
    return lines


def text_of(value: Any) -> str:
    return MISSING if value is None else str(value)


def gpu_lines(report: Report) -> list[str]:
    rows = [
        [
            str(gpu["gpu"]),
            gpu["name"],
            gpu["pci_address"],
            text_of(gpu["numa_node"]),
            f"{gpu['memory_bytes'] / 2**30:.0f} GiB",
            text_of(gpu["active_links"]),
            text_of(gpu["host_limit_what"]),
        ]
        for gpu in report["gpus"]
    ]
    return table(("GPU", "name", "address", "NUMA", "memory", "links", "host link"), rows, left=3)


def link_text(link: Report) -> str:
    """ "18 NVSwitch", "4 XGMI", "XGMI/2 hops", "PCIe NODE"."""
    if link["type"] is None:
        return link["pci_path"] or MISSING
    if link["type"] == "PCIe":
        return f"PCIe {link['pci_path'] or ''}".strip()
    if link["type"] == "XGMI" and (link["hops"] or 1) > 1:
        return f"XGMI/{link['hops']} hops"  # through other GPUs: it has no links of its own
    return f"{text_of(link['links'])} {link['type']}"


def gpu_names(report: Report) -> list[str]:
    return [f"GPU {gpu['gpu']}" for gpu in report["gpus"]]


def over_pairs(report: Report, corner: str, text: Callable[[int, Any], str], *, host: bool = False) -> list[str]:
    """A matrix with a row for each GPU, and a column for each and, if asked for, for the host."""
    gpus = [gpu["gpu"] for gpu in report["gpus"]]
    columns: list[Any] = [*(["host"] if host else []), *gpus]
    names = [*(["host"] if host else []), *gpu_names(report)]
    rows = [(f"GPU {gpu}", ["" if column == gpu else text(gpu, column) for column in columns]) for gpu in gpus]
    return matrix(corner, names, rows)


def link_lines(report: Report) -> list[str]:
    if len(report["gpus"]) < 2:
        return ["One GPU is visible: there are no links between GPUs."]
    links = {(link["gpu"], link["peer"]): link for link in report["links"]}
    lines = over_pairs(report, "links", lambda gpu, peer: link_text(links[gpu, peer]))

    def sharing(gpu: int, peer: int) -> str:
        link = links[gpu, peer]
        access = "yes" if link["peer_access_works"] else "can" if link["peer_access_possible"] else "no"
        return f"{access}/{'yes' if link['ipc_works'] else 'no'}"

    lines += ["", *over_pairs(report, "peer access/IPC", sharing)]
    reasons = {
        reason
        for link in report["links"]
        for reason in (
            f"peer access, GPU {link['gpu']} to {link['peer']}: {link['peer_access_why_not']}"
            if link["peer_access_why_not"]
            else None,
            f"IPC, GPU {link['gpu']} to {link['peer']}: {link['ipc_why_not']}" if link["ipc_why_not"] else None,
        )
        if reason
    }
    for reason in sorted(reasons):
        lines += wrapped(f"! {reason}")
    limits = {text: None for link in report["links"] if (text := link["limit_what"] or link["limit_why_not"])}
    for text in limits:
        lines += wrapped(f"limit of a pair, one direction: {text}")
    return lines


def card_lines(report: Report) -> list[str]:
    cards = report["network_cards"]
    if not cards:
        return ["No network card with a PCI address is found."]
    header = ("card", "address", "rate", "NUMA", *(f"GPU {gpu['gpu']}" for gpu in report["gpus"]))
    rows = [
        [
            card["name"],
            text_of(card["pci_address"]),
            text_of(card["rate"]),
            text_of(card["numa_node"]),
            *(text_of(path["pci_path"]) for path in card["gpus"]),
        ]
        for card in cards
    ]
    return table(header, rows, left=3)


def figure(value: float, percent: float | None) -> str:
    text = f"{value:.1f}" if value < 100 else f"{value:.0f}"
    return f"{text} ({percent:.0f}%)" if percent is not None else text


RAW_FIGURES = (
    ("read", "row reads column, GB/s"),
    ("write", "row writes column, GB/s"),
    ("both", "both directions, GB/s together"),
)


Pairs = dict[tuple[int, Any], Report]
"""Figures by the two ends of a pair."""


def raw_bandwidth(pairs: Pairs, name: str, gpu: int, peer: Any) -> str:
    found = pairs[gpu, peer][name]
    return MISSING if found is None else figure(found["median_GBps"], found["percent_of_limit"])


def raw_latency(pairs: Pairs, gpu: int, peer: Any) -> str:
    value = pairs[gpu, peer]["latency_us"]
    return MISSING if value is None else f"{value:.1f}"


def copier(raw: Report, method: str) -> str:
    """What copies: on AMD the runtime's "copy engine" may be a kernel of its own, as its settings say."""
    told = raw["copy_engine"]
    if method != "copy engine" or not told["settings"]:
        return method
    settings = ", ".join(told["settings"])
    return f"{method} (between GPUs {told['between_gpus']}, with the host {told['with_host']}: {settings})"


def together_lines(raw: Report) -> list[str]:
    if not raw["together"]:
        return []
    rows: dict[Any, list[str]] = {}
    for one in raw["together"]:
        name = "all to all" if one["from"] == "all" else f"GPU {one['from']} to all"
        found = one["together"]
        rows.setdefault(name, [name]).append(MISSING if found is None else figure(found["median_GBps"], None))
    return [
        *("", "Copies at the same time, GB/s of all together:"),
        *table(("", "copy engine", "kernel"), list(rows.values()), left=1),
        *reasons(
            [(f"{one['from']} to all", why) for one in raw["together"] if (why := one["skipped"] or one["failed"])]
        ),
    ]


def pair_name(pair: Report) -> str:
    return f"GPU {pair['gpu']} and " + ("the host" if pair["peer"] == "host" else f"GPU {pair['peer']}")


def raw_lines(report: Report) -> list[str]:
    raw = report["raw"]
    lines = []
    for method in ("copy engine", "kernel"):
        pairs = {(pair["gpu"], pair["peer"]): pair for pair in raw["pairs"] if pair["method"] == method}
        lines += [
            "",
            *wrapped(f"Raw copies by {copier(raw, method)}, {raw['bytes']} bytes (percent of the link's limit)"),
        ]
        for name, words in RAW_FIGURES:
            lines += ["", f"{words}:", *over_pairs(report, "", partial(raw_bandwidth, pairs, name), host=True)]
        lines += ["", "latency of reading 8 bytes, us:"]
        lines += over_pairs(report, "", partial(raw_latency, pairs), host=True)
        lines += reasons(
            [(pair_name(pair), why) for pair in pairs.values() if (why := pair["skipped"] or pair["failed"])]
        )
    lines += sdma_lines(report)
    lines += together_lines(raw)
    if not raw["data_checked"]:
        lines.append("The data were not checked.")
    return lines


ENGINE_FIGURES = (
    ("pairs", "<", "raw copies, the first GPU reads the second"),
    ("native", ">", "messages by the MPI alone, the first GPU sends to the second"),
    ("awaken", ">", "messages with Awaken, the first GPU sends to the second"),
)


def engine_cells(engine: Report, kind: str) -> dict[tuple[int, int], str]:
    if kind == "pairs":
        between = {(pair["gpu"], pair["peer"]): pair for pair in engine["pairs"] if pair["peer"] != "host"}
        return {pair: raw_bandwidth(between, "read", *pair) for pair in between}
    return {
        (pair["sender"], pair["receiver"]): figure(pair["bandwidth_GBps"], pair["percent_of_limit"])
        for pair in (engine[kind] or {}).get("pairs", [])
    }


def engine_lines(report: Report) -> list[str]:
    """Each pair by each engine, where they were measured side by side."""
    engines = report.get("engines", [])
    lines = []
    for kind, mark, words in ENGINE_FIGURES:
        columns = {one["name"]: cells for one in engines if (cells := engine_cells(one, kind))}
        pairs = dict.fromkeys(pair for cells in columns.values() for pair in cells)
        rows = [[f"GPU {a} {mark} {b}", *(cells.get((a, b), MISSING) for cells in columns.values())] for a, b in pairs]
        if rows:
            lines += ["", *wrapped(f"Engines side by side, GB/s (percent of the link's limit): {words}")]
            lines += table(("", *columns), rows)
    for one in engines:
        lines += wrapped(f"{one['name']}: {', '.join(one['settings'])}") if one["settings"] else []
    return lines


def sdma_lines(report: Report) -> list[str]:
    """What bounds copies by SDMA engines, where that is less than the links carry."""
    bound = max((gpu.get("sdma_engine_GBps") or 0.0 for gpu in report["gpus"]), default=0.0)
    more = any((link["limit_GBps"] or 0.0) > bound for link in report["links"])
    if not bound or not more or report["raw"]["copy_engine"]["between_gpus"] != "SDMA engines":
        return []
    return wrapped(
        f"! One SDMA engine copies at most {bound:g} GB/s, however many links two GPUs have. HSA_ENABLE_SDMA=0 lets "
        "kernels copy over all links, which then share the compute units with the program's (--engines measures both)."
    )


def reasons(pairs_and_why: Sequence[tuple[str, str]]) -> list[str]:
    """Why there are no figures: one line per reason, with the pairs that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for pair, why in pairs_and_why:
        by_reason.setdefault(why, []).append(pair)
    lines: list[str] = []
    for why, pairs in by_reason.items():
        lines += wrapped(f"not measured ({why}): {', '.join(pairs)}")
    return lines


MESSAGE_FIGURES = (
    ("bandwidth_GBps", "percent_of_limit", "row sends to column, GB/s"),
    ("both_GBps", "both_percent_of_limit", "both directions, GB/s together"),
    ("latency_us", "", "latency of 8 bytes, us"),
)


def message_figure(pairs: Pairs, name: str, percent: str, gpu: int, peer: Any) -> str:
    pair = pairs.get((gpu, peer))
    return MISSING if pair is None else figure(pair[name], pair[percent] if percent else None)


def message_lines(report: Report) -> list[str]:
    mpi = report["mpi"]
    if mpi.get("why_not"):
        return ["", *wrapped(f"Messages were not measured: {mpi['why_not']}")]
    lines = []
    for side, words in (("native", "the MPI alone"), ("awaken", "the MPI with Awaken")):
        if side not in mpi:
            continue
        lines += ["", f"Messages through {mpi.get('name', 'MPI')}: {words}"]
        if mpi[side]["why_not"]:
            lines += wrapped(f"not measured: {mpi[side]['why_not']}")
        pairs = {(pair["sender"], pair["receiver"]): pair for pair in mpi[side]["pairs"]}
        if not pairs:
            continue
        for name, percent, text in MESSAGE_FIGURES:
            lines += ["", f"{text}:", *over_pairs(report, "", partial(message_figure, pairs, name, percent))]
        paths = sorted({pair["path"] for pair in pairs.values() if pair["path"]})
        if paths:
            lines.append(f"path of the layer: {', '.join(paths)}")
    return lines


def map_lines(ranks: Sequence[Report], warnings: Sequence[Report]) -> list[str]:
    lines = ["Ranks", *table(placement.HEADER, placement.rows(ranks), left=2)]
    for warning in warnings:
        lines += wrapped(f"! {warning['text']}")
    return lines


def curve_lines(curve: Report) -> list[str]:
    where = "between two pretended nodes" if curve["pretended"] else "between two nodes"
    if not curve["points"]:
        return wrapped(f"No curve {where}: {curve['why_not']}")
    rows = [
        [str(point["bytes"]), f"{point['bandwidth_MBps']:.2f}", percent_text(point["percent_of_limit"])]
        for point in curve["points"]
    ]
    return [f"Messages {where} (device memory, windows of 64)", *table(("bytes", "MB/s", "% of limit"), rows, left=0)]


def percent_text(value: float | None) -> str:
    return MISSING if value is None else f"{value:.0f}%"
