# SPDX-License-Identifier: Apache-2.0
"""Programs that have used up their file descriptors, or may open few: tests/ranks/descriptors.cpp."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import harness
import pytest


# Not on builds with sanitizers: to look at memory, UndefinedBehaviorSanitizer opens a pipe.
@pytest.mark.parametrize(
    ("mpi", "emulate"),
    [
        ("mpich", "cuda:2"),
        ("openmpi", "hip:2"),
        *(
            pytest.param(mpi, emulate, marks=pytest.mark.long)
            for mpi, emulate in (("mpich", "hip:2"), ("openmpi", "cuda:2"), ("mpi5", "cuda:2"), ("mpi5", "hip:2"))
        ),
    ],
)
def test_a_process_without_descriptors_takes_nobody_for_dead(
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    command: list[str | Path] = [rank_program(mpi, "descriptors"), f"--gpu={emulate.split(':')[0]}", "--mix=device"]
    result = harness.run_ranks(mpi_named(mpi), 2, command, emulate=emulate, environment={}, timeout=harness.HANG_S)
    result.check()
    assert "ok windows_with_0_free" in result.output, result.explain()
