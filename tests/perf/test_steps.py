# SPDX-License-Identifier: Apache-2.0
"""How long the steps of the programs about messages take on a quiet machine: by hand (`--perf`), since a busy one says
nothing. A message path that gets on only because somebody gave up waiting takes milliseconds in each step, or seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

LIMIT_SECONDS = 1.0


@pytest.mark.perf
@pytest.mark.parametrize("program", ["completion", "messages"])
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_no_step_dawdles(
    mpi: str,
    emulate: str,
    program: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    command: list[str | Path] = [rank_program(mpi, program), f"--gpu={emulate.split(':')[0]}", "--times"]
    result = harness.run_ranks(mpi_named(mpi), 2, command, emulate=emulate, timeout=240)
    result.check()
    steps = [(float(seconds), name) for seconds, name in re.findall(r"^# step (\S+) s (.*)$", result.output, re.M)]
    assert steps, result.explain()
    slow = sorted((step for step in steps if step[0] > LIMIT_SECONDS), reverse=True)
    assert not slow, slow[:10]
