# SPDX-License-Identifier: Apache-2.0
"""Runs between two GPUs each, such as osu_bw under `HIP_VISIBLE_DEVICES=0,3`, as one matrix of GPUs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence

from awaken import units
from awaken.findings import name_of
from awaken.results import TIME, Cell, Matrix, Series

MOST_GPUS = 64
"""In one matrix."""
LABEL = re.compile(r"(?:gpu|gcd)?(\d{1,3})[-,_](?:gpu|gcd)?(\d{1,3})", re.IGNORECASE)
"""The label of a file that holds the runs of one pair: 0-3, gpu0-gpu3, GCD0,GCD3."""

IN_HEADING = re.compile(
    r"\b(?:pair|gpus?|gcds?|devices?)[ :=(]*(\d{1,3})"
    r"(?: ?(?:[-,_/]|<?-+>|and|to) ?)(?:(?:gpu|gcd|device) ?)?(\d{1,3})\b",
    re.IGNORECASE,
)


def of_label(label: str) -> tuple[int, int] | None:
    found = LABEL.fullmatch(label)
    return (int(found.group(1)), int(found.group(2))) if found else None


def of_heading(heading: str) -> tuple[int, int] | None:
    """The GPUs that the heading of a run names: "pair 0,1", "GPUs 0 and 3", "GCD 0 -> GCD 4"."""
    found = IN_HEADING.search(heading)
    return (int(found.group(1)), int(found.group(2))) if found else None


PLACE = re.compile(r"(\S+): .*\bon GPU (\d{1,3})\b")
"""Of a rank, in a manifest: "node1: rank 0 on GPU 0 (NVIDIA H200)"."""
VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""In the order in which they count: HIP numbers the GPUs that ROCr leaves."""


def of_manifest(manifest: Mapping[str, str]) -> tuple[int, int] | None:
    """The GPUs of ranks 0 and 1 by their numbers on the node, as the visible devices of the job tell them."""
    places = [PLACE.match(manifest.get(f"rank_{rank}", "")) for rank in (0, 1)]
    if places[0] is None or places[1] is None or places[0][1] != places[1][1]:
        return None
    gpus = [int(place[2]) for place in places if place]
    for name in reversed(VISIBLE):
        visible = manifest.get(f"environment.{name}", "")
        if visible:
            numbers = visible.split(",")
            if not all(number.strip().isdigit() for number in numbers) or max(gpus) >= len(numbers):
                return None
            gpus = [int(numbers[gpu]) for gpu in gpus]
    return (gpus[0], gpus[1]) if gpus[0] != gpus[1] else None


def in_words(pair: tuple[int, int]) -> str:
    return f"GPUs {pair[0]} and {pair[1]}"


def matrices(series: Sequence[Series]) -> tuple[Matrix, ...]:
    """One matrix for each test and way of running it, at the size that all its pairs have: the largest, and of times
    the smallest. Nothing for a way in which one pair alone was measured."""
    groups: dict[tuple[str, ...], dict[tuple[int, int], list[Series]]] = {}
    for one in series:
        if one.pair is not None and one.points and max(one.pair) < MOST_GPUS:
            # A log's implementation is its label, which differs from file to file.
            who = name_of(one) if one.implementation != one.source else ""
            mode = one.mode.replace(in_words(one.pair), "").strip(", ")
            way = ", ".join(filter(None, [who, mode if mode != "waited" else "", one.settings]))
            key = (one.test, one.quantity, one.type, one.buffers, way)
            groups.setdefault(key, {}).setdefault(one.pair, []).append(one)
    found = []
    for (test, quantity, _, buffers, way), pairs in groups.items():
        runs = [one for same in pairs.values() for one in same]
        shared = set.intersection(*({point.size_bytes for point in one.points} for one in runs))
        if len(pairs) < 2 or not shared:
            continue
        less = quantity == TIME
        size_bytes = min(shared) if less else max(shared)
        values = {
            pair: statistics.median(
                point.value for one in same for point in one.points if point.size_bytes == size_bytes
            )
            for pair, same in pairs.items()
        }
        rows, columns = (sorted({pair[side] for pair in pairs}) for side in (0, 1))
        title = f"{test} by pairs of GPUs, {units.size(size_bytes)}"
        found.append(
            Matrix(
                ", ".join(part for part in (title, buffers, way) if part),
                "µs" if less else "GB/s",
                tuple(f"GPU {row}" for row in rows),
                tuple(f"GPU {column}" for column in columns),
                tuple(tuple(_cell(values.get((row, column)), row == column) for column in columns) for row in rows),
                "rank 0",
                "rank 1",
                less,
            )
        )
    return tuple(found)


def _cell(value: float | None, itself: bool) -> Cell:
    return Cell(value) if value is not None else Cell(why_missing="the same GPU" if itself else "not measured")
