# SPDX-License-Identifier: Apache-2.0
"""How fast a link can be at best: the one place where these figures are (docs/topology.md shows them).

GB/s are 10^9 bytes per second and direction; vendors often print both directions together, which is twice as much. The
number of links comes from the management library and never from a device's number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GB_PER_LINK: tuple[tuple[str, str, float, str], ...] = (
    # model, by a pattern of its name; technology; GB/s of one link; what it is
    (r"\bV100\b", "NVLink", 25.0, "NVLink 2"),
    (r"\bA100\b|\bA800\b", "NVLink", 25.0, "NVLink 3"),
    (r"\bH100\b|\bH200\b|\bH20\b|\bH800\b|\bGH200\b", "NVLink", 25.0, "NVLink 4, nominal (26.56 raw)"),
    (r"\bB200\b|\bGB200\b|\bB100\b", "NVLink", 50.0, "NVLink 5"),
    (r"\bMI100\b", "XGMI", 46.0, "Infinity Fabric, 23 GT/s x 16"),
    (r"\bMI2[15]0X?\b", "XGMI", 50.0, "Infinity Fabric, 25 GT/s x 16"),
    (r"\bMI300[AX]\b|\bMI325X\b", "XGMI", 64.0, "Infinity Fabric, 32 GT/s x 16"),
)
TECHNOLOGY = {"NVLink": "NVLink", "NVSwitch": "NVLink", "XGMI": "XGMI"}
"""Links through a switch are links of the same kind."""

SDMA_ENGINE_GB: tuple[tuple[str, float], ...] = ((r"\bMI2[15]0X?\b", 50.0),)
"""By a pattern of the model's name, what one SDMA engine copies between GPUs, however many links these have: it drives
a link's worth. Source: AMD, "GPU-Aware MPI with ROCm", EuroCC workshop, May 2023, measured 49 to 50 GB/s on MI250X."""

PCIE_GB_PER_LANE = {8.0: 15.75 / 16, 16.0: 31.5 / 16, 32.0: 63.0 / 16}
"""By gigatransfers per second of a lane: generations 3, 4 and 5."""


@dataclass(frozen=True)
class Limit:
    """GB/s per direction, or why there is none."""

    GBps: float | None
    why_not: str | None = None
    what: str | None = None

    def percent(self, measured_GBps: float | None, directions: int = 1) -> float | None:
        """What a figure is of it; None where either is not known."""
        if self.GBps is None or measured_GBps is None:
            return None
        return round(100 * measured_GBps / (directions * self.GBps), 1)


def pcie(gpu: Mapping[str, Any]) -> Limit:
    """Of a GPU's own link to its host."""
    rate, lanes = gpu.get("pcie_GTps"), gpu.get("pcie_lanes")
    if rate is None or lanes is None:
        return Limit(None, f"the system does not report the PCIe link of GPU {gpu['gpu']}")
    per_lane = PCIE_GB_PER_LANE.get(rate)
    if per_lane is None:
        return Limit(None, f"no limit is known for PCIe of {rate:g} GT/s")
    return Limit(round(per_lane * lanes, 2), None, f"PCIe {rate:g} GT/s x {lanes}")


def between(link: Mapping[str, Any], gpu: Mapping[str, Any], peer: Mapping[str, Any]) -> Limit:
    """Of a pair of GPUs."""
    kind = link.get("type")
    if kind is None:
        return Limit(None, link.get("why_not_known") or "the kind of link is not known")
    if kind == "PCIe":
        limits = [pcie(gpu), pcie(peer)]
        unknown = next((limit for limit in limits if limit.GBps is None), None)
        return unknown or min(limits, key=lambda limit: limit.GBps or 0)
    if kind == "XGMI" and link.get("hops") not in (None, 1):
        return Limit(None, "the path passes through other GPUs, and it is not known which")
    if link.get("links") is None:
        return Limit(None, "the number of links is not known")
    for pattern, technology, per_link, what in GB_PER_LINK:
        if technology == TECHNOLOGY.get(kind) and re.search(pattern, gpu["name"]):
            return Limit(per_link * link["links"], None, f"{link['links']} x {per_link:g} GB/s ({what})")
    return Limit(None, f"no limit is known for {kind} of {gpu['name']}")


def sdma_engine(gpu: Mapping[str, Any]) -> float | None:
    """GB/s of one SDMA engine of a GPU, where it is known to be a bound."""
    return next((limit for pattern, limit in SDMA_ENGINE_GB if re.search(pattern, gpu["name"])), None)


def network(card: Mapping[str, Any]) -> Limit:
    """Of a network card, by the rate that it tells."""
    rate = card.get("rate_Gbps")
    return Limit(rate / 8, None, card.get("rate")) if rate else Limit(None, f"{card['name']} does not report its rate")
