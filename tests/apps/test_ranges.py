# SPDX-License-Identifier: Apache-2.0
"""Named ranges of the programs under apps/: which tools hear of them, and the table that needs no tool."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from app_runs import ABIS, Result, mpiexec
from test_programs import compile_library, stand_in

RUN = ("--elements", "1001", "--iterations", "3", "--buffers", "2", "--warm-up", "1")
RANKS = 2
COUNTS = {"warm-up": 2, "sum": 4, "check": 6}
"""Of each of the two ways: two buffers warmed up at once, and three sums on them in two sets. Each set is checked."""
ROW = re.compile(r"# (\S+) +(\d+|all) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)")

NVTX = ("-DPUSH=nvtxRangePushA", "-DPOP=nvtxRangePop")
ROCTX = ("-DPUSH=roctxRangePushA", "-DPOP=roctxRangePop")
AWAKEN = ("-DPUSH=awaken_range_push", "-DPOP=awaken_range_pop")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stand_in(tmp_path, "cuda", 2)
    return tmp_path


def tool(folder: Path, file: str, name: str, *flags: str) -> Path:
    return compile_library(os.environ.get("CC", "cc"), "range_tool.c", folder / file, f'-DTOOL="{name}"', *flags)


def run(folder: Path, abi: str = "mpich", **variables: str) -> Result:
    result = mpiexec(abi, "allreduce", *RUN, ranks=RANKS, environment={"LD_LIBRARY_PATH": str(folder), **variables})
    assert result.status == 0, result.err
    return result


def heard(result: Result) -> dict[str, Counter[str]]:
    """What each tool was told, over all ranks."""
    told: dict[str, Counter[str]] = {}
    for name, what in re.findall(r"<([\w ]+)> (push .*|pop)", result.err):
        told.setdefault(name, Counter())[what] += 1
    return told


EVERYTHING = Counter({f"push {name}": RANKS * count for name, count in COUNTS.items()})
EVERYTHING["pop"] = RANKS * sum(COUNTS.values())


@pytest.mark.parametrize("abi", ABIS)
def test_the_table_needs_no_tool(folder: Path, abi: str) -> None:
    result = run(folder, abi)
    assert heard(result) == {}
    rows = {(row[0], row[1]): (int(row[2]), *map(float, row[3:])) for row in ROW.findall(result.out)}
    assert set(rows) == {(name, rank) for name in COUNTS for rank in ("0", "1", "all")}
    for (name, rank), (count, total, mean, least, most) in rows.items():
        assert count == COUNTS[name] * (RANKS if rank == "all" else 1)
        assert total > 0
        assert mean == pytest.approx(total / count, abs=2e-6)
        assert least - 1e-6 <= mean <= most + 1e-6
    for name in COUNTS:
        of_ranks = [rows[name, str(rank)] for rank in range(RANKS)]
        _, total, _, least, most = rows[name, "all"]
        assert total == pytest.approx(sum(row[1] for row in of_ranks), abs=3e-6)
        assert least == min(row[3] for row in of_ranks)
        assert most == max(row[4] for row in of_ranks)


@pytest.mark.parametrize("file", ["libnvToolsExt.so.1", "libnvToolsExt.so"])
def test_nvtx_as_a_library(folder: Path, file: str) -> None:
    tool(folder, file, "nvtx", *NVTX)
    assert heard(run(folder)) == {"nvtx": EVERYTHING}


def test_nvtx_as_the_tools_inject_it(folder: Path) -> None:
    tool(folder, "libnvToolsExt.so.1", "library", *NVTX)
    injection = tool(folder, "injection.so", "injected")
    # An attached tool is told once, by the newer of the two ways.
    assert heard(run(folder, NVTX_INJECTION64_PATH=str(injection))) == {"injected": EVERYTHING}


def test_a_tool_that_does_not_want_ranges_leaves_them_to_the_library(folder: Path) -> None:
    tool(folder, "libnvToolsExt.so.1", "library", *NVTX)
    injection = tool(folder, "injection.so", "injected", "-DREFUSES")
    assert heard(run(folder, NVTX_INJECTION64_PATH=str(injection))) == {"library": EVERYTHING}
    assert heard(run(folder, NVTX_INJECTION64_PATH="/nonexistent.so")) == {"library": EVERYTHING}


@pytest.mark.parametrize("file", ["librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so.0", "libroctx64.so.4"])
def test_roctx_as_a_library(folder: Path, file: str) -> None:
    tool(folder, file, "roctx", *ROCTX)
    assert heard(run(folder)) == {"roctx": EVERYTHING}


def test_every_vendor_is_told_once(folder: Path) -> None:
    """A profiler brings its own ROCTX into the process; Awaken is preloaded; NVTX lies beside them."""
    tool(folder, "libnvToolsExt.so.1", "nvtx", *NVTX)
    tool(folder, "libroctx64.so.4", "old roctx", *ROCTX)
    profiler = tool(folder, "profiler.so", "roctx", *ROCTX)
    awaken = tool(folder, "awaken.so", "awaken", *AWAKEN)
    told = heard(run(folder, LD_PRELOAD=f"{profiler} {awaken}"))
    assert told == {"nvtx": EVERYTHING, "roctx": EVERYTHING, "awaken": EVERYTHING}
