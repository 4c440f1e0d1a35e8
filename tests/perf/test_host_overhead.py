# SPDX-License-Identifier: Apache-2.0
"""The cost of Awaken to host-only programs; see host_overhead.py. --strict-figures asserts what the project
promises. By hand: make bench-check."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import host_overhead


@pytest.mark.perf
@pytest.mark.parametrize("mpi", ["mpich", pytest.param("openmpi", marks=pytest.mark.long)])
def test_host_overhead(
    mpi: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rank_program(mpi, "host_probe")
    strict = bool(request.config.getoption("--strict-figures"))
    limits = host_overhead.STRICT if strict else host_overhead.GENEROUS
    pairs = 15 if strict else 5
    costs = {
        setting: host_overhead.measure(mpi_named(mpi), setting == "driver", pairs)
        for setting in ("no driver", "driver")
    }
    text = host_overhead.table(mpi, costs)
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")
    for setting, operations in costs.items():
        for operation, cost in operations.items():
            assert not limits[setting].exceeded(operation, cost), f"{setting}, {operation}\n{text}"
