# SPDX-License-Identifier: Apache-2.0
"""A GPU fails in one rank: messages and collective calls end in all ranks (tests/ranks/failing_device.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest

WAYS: dict[str, Mapping[str, str]] = {
    "together": {},
    "staged": {"AWAKEN_COLLECTIVES": "* : staged"},
    "in_chunks": {"AWAKEN_COLLECTIVES": "* : staged", "tune network_fragment_bytes": "4K"},
    "two_nodes": {
        "AWAKEN_TEST_NODES": "2",
        "tune network_bytes": "1K",
        "tune network_fragment_bytes": "4K",
    },
}


MESSAGE_WAYS: dict[str, Mapping[str, str]] = {
    "direct": {},
    "ring": {"AWAKEN_PATH": "ring"},
    "staged": {"AWAKEN_PATH": "staged"},
    "two_nodes": WAYS["two_nodes"],
}

jobs = pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"),
    [
        pytest.param("mpich", "cuda:2", 2, marks=pytest.mark.sanitizer),
        pytest.param("openmpi", "hip:2", 3, marks=pytest.mark.sanitizer),
        ("mpi5", "cuda:2", 2),
    ],
)


def run(
    mpi: harness.Mpi,
    emulate: str,
    ranks: int,
    program: Path,
    copy: int,
    words: list[str],
    environment: Mapping[str, str],
) -> None:
    """From the given copy on, the GPU of rank 1 fails."""
    result = harness.run_ranks(
        mpi,
        ranks,
        [
            *harness.one_differs(mpi.name, f"AWAKEN_TEST_FAULTS=copy-error={copy}"),
            program,
            f"--gpu={emulate.partition(':')[0]}",
            *words,
        ],
        emulate=emulate,
        environment=environment,
        timeout=harness.LONG_HANG_S,
    )
    result.check()
    assert "ok failing_device" in result.output, result.explain()


@pytest.mark.parametrize("way", WAYS)
@jobs
def test_collective_calls_end(
    mpi: str,
    emulate: str,
    ranks: int,
    way: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    # From the start; in the midst of the first collectives; and when each has been done once.
    for copy in (1, 7, 20, 400):
        program = rank_program(mpi, "failing_device")
        run(mpi_named(mpi), emulate, ranks, program, copy, [f"--file={tmp_path / str(copy)}"], WAYS[way])


@pytest.mark.parametrize("way", MESSAGE_WAYS)
@jobs
def test_messages_end(
    mpi: str,
    emulate: str,
    ranks: int,
    way: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    # From the start; in the first messages, also between the two copies of one; and when each has been sent once.
    told = ["--told"] if way in ("direct", "ring") else []
    for copy in (1, 2, 3, 5, 30, 150):
        program = rank_program(mpi, "failing_device")
        run(mpi_named(mpi), emulate, ranks, program, copy, ["--messages", *told], MESSAGE_WAYS[way])
