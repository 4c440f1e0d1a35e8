"""What a datatype with gaps costs on a GPU: operations counted by the emulated driver, on each path.

That the bytes are right is for tests/ranks/datatypes.cpp and tests/ranks/random_program.cpp, on every mix of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest

PATHS: dict[str, Mapping[str, str]] = {
    "auto": {},
    "ring": {"AWAKEN_PATH": "ring"},
    "staged": {"AWAKEN_PATH": "staged"},
    "packed_first": {"AWAKEN_TUNE_STRIDED_PULL_BYTES": "0"},
    "through_device_memory": {"AWAKEN_PATH": "staged", "AWAKEN_TUNE_PACK_DIRECT_BYTES": "0"},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_a_message_is_a_few_operations(
    mpi: str,
    emulate: str,
    path: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        [rank_program(mpi, "datatype_costs")],
        emulate=emulate,
        environment=PATHS[path],
        timeout=90,
    )
    result.check()
    assert result.output.count("\nok ") + result.output.startswith("ok ") >= 6, result.explain()
