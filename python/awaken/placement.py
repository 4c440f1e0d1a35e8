# SPDX-License-Identifier: Apache-2.0
"""Which rank runs where and uses which GPU, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Rank = dict[str, Any]


def numbers_text(numbers: Sequence[int]) -> str:
    """ "0-3,8" for 0, 1, 2, 3 and 8."""
    parts: list[str] = []
    ordered = sorted(numbers)
    begin = 0
    for at in range(1, len(ordered) + 1):
        if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
            first, last = ordered[begin], ordered[at - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            begin = at
    return ",".join(parts)


def gpu_identity(rank: Rank) -> tuple[str, str] | None:
    """Host and address of a rank's GPU, whatever number it has in its process; None without one."""
    address = rank["gpu"].get("pci_address", "")
    return (rank["host"], address + rank["gpu"].get("uuid", "")) if address else None


def warnings(ranks: Sequence[Rank]) -> list[dict[str, Any]]:
    """What is likely to be a mistake: {"kind", "ranks", "text"}."""
    found: list[dict[str, Any]] = []
    users: dict[tuple[str, str], list[Rank]] = {}
    for rank in ranks:
        if (identity := gpu_identity(rank)) is not None:
            users.setdefault(identity, []).append(rank)
    for sharing in users.values():
        if len(sharing) > 1:
            gpu = sharing[0]["gpu"]
            numbers = [rank["rank"] for rank in sharing]
            found.append(
                {
                    "kind": "shared GPU",
                    "ranks": numbers,
                    "text": f"ranks {numbers_text(numbers)} share GPU {gpu['device']} ({gpu['pci_address']}) on "
                    f"{sharing[0]['host']}",
                }
            )
    for rank in ranks:
        node = rank["gpu"].get("numa_node", -1)
        if node >= 0 and rank["numa_nodes"] and node not in rank["numa_nodes"]:
            found.append(
                {
                    "kind": "far NUMA node",
                    "ranks": [rank["rank"]],
                    "text": f"rank {rank['rank']} runs on NUMA node {numbers_text(rank['numa_nodes'])} and its GPU "
                    f"{rank['gpu']['device']} is at node {node}",
                }
            )
    unbound = [
        rank["rank"]
        for rank in ranks
        if len(rank["numa_nodes"]) > 1 and len(rank["cpus"]) == rank["cpus_online"] and rank["gpu"].get("pci_address")
    ]
    if unbound:
        found.append(
            {
                "kind": "not bound",
                "ranks": unbound,
                "text": f"ranks {numbers_text(unbound)} may run on any processor, near their GPU or far from it",
            }
        )
    return found


def rows(ranks: Sequence[Rank]) -> list[list[str]]:
    """Rank, host, processors, NUMA nodes, GPU, its address and its NUMA node, as texts."""
    return [
        [
            str(rank["rank"]),
            rank["host"],
            numbers_text(rank["cpus"]),
            numbers_text(rank["numa_nodes"]) or "-",
            str(rank["gpu"].get("device", "-")),
            rank["gpu"].get("pci_address", "-"),
            str(rank["gpu"]["numa_node"]) if rank["gpu"].get("numa_node", -1) >= 0 else "-",
        ]
        for rank in ranks
    ]


HEADER = ("rank", "host", "processors", "NUMA", "GPU", "address", "GPU's NUMA")
