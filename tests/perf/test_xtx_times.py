# SPDX-License-Identifier: Apache-2.0
"""What the application xtx takes for the time of its reductions. By hand: make bench-check."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "apps"))

from app_runs import VENV
from test_programs import compile_library
from test_xtx import on_cpu, seconds, sizes


@pytest.mark.perf
def test_the_rank_that_came_last_is_found_in_each_run(tmp_path: Path) -> None:
    """The ranks are late by turns: in each run the late one has waited for nobody."""
    library = compile_library(VENV / "bin" / "mpicc", "late_ranks.c", tmp_path / "late_ranks.so")
    words = [*sizes(50, 20, 20), "--repeats", "4", "--overlap", "off"]
    result = on_cpu("mpich", *words, LD_PRELOAD=str(library), LATE_MS="100")
    assert result.status == 0, result.err
    # Either rank's median over the runs is half of the other's delay.
    assert seconds(result.out, "reductions alone") < 0.04
    assert result.err.count("<late>") == 4
