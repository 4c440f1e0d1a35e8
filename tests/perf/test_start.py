# SPDX-License-Identifier: Apache-2.0
"""What `awaken exec` adds to the start of a program. By hand: make bench-check."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import harness
import pytest


@pytest.mark.perf
def test_starting_takes_less_than_five_milliseconds(awaken_program: Path) -> None:
    """The best of many runs; the bare program's own time is taken off."""

    def best_s(command: Sequence[str | Path]) -> float:
        times = []
        for _ in range(30):
            start = time.perf_counter()
            # Without the library, whose loading is another matter.
            environment = {**harness.clean_environment(), "AWAKEN": "0"}
            subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL, timeout=harness.HANG_S)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best_s([awaken_program, "exec", "/bin/true"]) - best_s(["/bin/true"]) < 0.005
