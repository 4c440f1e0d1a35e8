# SPDX-License-Identifier: Apache-2.0
"""Random programs of operations that streams order against the same programs in plain functions on host memory.

See tests/ranks/random_enqueue.cpp. A failing program is named with the command that repeats it; put its seed into
tests/ranks/enqueue_seeds.txt when it is fixed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest
from test_random_programs import Batch, compare, kept_seeds, name

SEEDS_FILE = harness.TESTS / "ranks" / "enqueue_seeds.txt"

DEFAULT: tuple[Batch, ...] = (
    ("mpich", "cuda:2", 2, 1, 15),
    ("openmpi", "hip:2", 2, 101, 15),
    ("mpi5", "cuda:1", 2, 201, 10),
    ("mpich", "hip:3", 3, 301, 10),
    ("openmpi", "cuda:2", 4, 401, 5),
    ("mpich", "hip:3", 3, 1084, 1),  # a wait brings more copies than the launch queue has room for
)
LONG: tuple[Batch, ...] = tuple(
    (mpi, f"{vendor}:{ranks - 1}", ranks, 1000 + 10000 * ranks, 500)
    for mpi in ("mpich", "openmpi", "mpi5")
    for vendor in ("cuda", "hip")
    for ranks in (2, 3, 4)
)
SETTINGS: dict[str, dict[str, str]] = {
    "late": {"AWAKEN_TEST_DELAYS": "5:300"},
    "little_pinned": {"AWAKEN_PINNED_POOL": "16K"},
    "nodes": {"AWAKEN_TEST_NODES": "2"},
    "one_connection": {"AWAKEN_EMULATE_CONNECTIONS": "1"},
    "order": {"AWAKEN_DEFAULT_STREAM": "order"},
}
"""What the streams and the messages do is forced for some programs."""


@pytest.mark.parametrize("batch", DEFAULT, ids=name)
def test_random_enqueue(
    batch: Batch,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    mpi, emulate, ranks, first, count = batch
    # TEST_FIRST_PROGRAM moves the whole range, for runs that are to find something new.
    first += int(os.environ.get("TEST_FIRST_PROGRAM", "0"))
    which = [f"--first={first}", f"--count={count}"]
    compare(mpi_named(mpi), emulate, ranks, rank_program(mpi, "random_enqueue"), which, harness.HANG_S)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_kept_seeds(
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    which = "--seeds=" + ",".join(map(str, kept_seeds(SEEDS_FILE)))
    compare(mpi_named(mpi), emulate, 2, rank_program(mpi, "random_enqueue"), [which], harness.HANG_S)


@pytest.mark.parametrize("way", SETTINGS)
def test_random_enqueue_by_other_ways(
    way: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    at = list(SETTINGS).index(way)
    mpi, emulate = ("mpich", "cuda:2") if at % 2 == 0 else ("openmpi", "hip:2")
    which = [f"--first={501 + 5 * at}", "--count=5"]
    settings: Mapping[str, str] = SETTINGS[way]
    compare(mpi_named(mpi), emulate, 2, rank_program(mpi, "random_enqueue"), which, harness.HANG_S, settings)


@pytest.mark.long
@pytest.mark.parametrize("batch", LONG, ids=name)
def test_random_enqueue_long(
    batch: Batch,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    mpi, emulate, ranks, first, count = batch
    which = [f"--first={first}", f"--count={count}"]
    compare(mpi_named(mpi), emulate, ranks, rank_program(mpi, "random_enqueue"), which, 3600)
