"""A GPU fails in one rank: collective calls end in all ranks. tests/ranks/failing_device.cpp has the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest

WAYS: dict[str, Mapping[str, str]] = {
    "together": {},
    "staged": {"AWAKEN_COLLECTIVES": "* : staged"},
    "in_chunks": {"AWAKEN_COLLECTIVES": "* : staged", "tune collective_chunk_bytes": "4K"},
    "two_nodes": {
        "AWAKEN_TEST_NODES": "2",
        "tune collective_chunk_bytes": "4K",
        "tune network_bytes": "1K",
        "tune network_fragment_bytes": "4K",
    },
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"), [("mpich", "cuda:2", 2), ("openmpi", "hip:2", 3), ("mpi5", "cuda:2", 2)]
)
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
        result = harness.run_ranks(
            mpi_named(mpi),
            ranks,
            [
                *harness.one_differs(mpi, f"AWAKEN_TEST_FAULTS=copy-error={copy}"),
                rank_program(mpi, "failing_device"),
                f"--gpu={emulate.partition(':')[0]}",
                f"--file={tmp_path / str(copy)}",
            ],
            emulate=emulate,
            environment=WAYS[way],
            timeout=harness.LONG_HANG_S,
        )
        result.check()
        assert "ok failing_device" in result.output, result.explain()
