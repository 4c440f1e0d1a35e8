# SPDX-License-Identifier: Apache-2.0
"""One-sided communication on device memory: tests/ranks/one_sided.cpp, where ranks reach each other's and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest
import test_point_to_point_paths as paths

PATHS: dict[str, tuple[Mapping[str, str], tuple[str, ...]]] = {
    "direct": ({}, ()),
    "nodes": ({"AWAKEN_TEST_NODES": "2"}, ("--mirrored",)),
    "ipc_open": ({"AWAKEN_TEST_FAULTS": "ipc-open"}, ("--mirrored",)),
    "ipc_export": ({"AWAKEN_TEST_FAULTS": "ipc-export"}, ("--mirrored",)),
    "ring": ({"AWAKEN_PATH": "ring"}, ("--mirrored",)),
    "staged": ({"AWAKEN_PATH": "staged"}, ("--unknown",)),
}
"""Why ranks may not reach each other's device memory, and what the program is told of it. Memory of pools is among the
kinds that it uses anyway."""

Case = tuple[str, str, str, int, tuple[str, ...]]
"""(path, MPI, emulated runtime, ranks, more arguments)"""
DEFAULT: tuple[Case, ...] = (
    ("direct", "mpich", "cuda:2", 2, ("--mix=even",)),
    ("direct", "openmpi", "hip:2", 3, ("--mix=ranks",)),
    ("direct", "mpi5", "hip:1", 2, ("--mix=drawn-0",)),
    ("direct", "mpich", "hip:2", 4, ("--mix=drawn-1",)),
    ("direct", "openmpi", "cuda:2", 2, ("--mix=pool",)),
    ("direct", "mpich", "cuda:2", 1, ("--mix=even-ranks",)),
    ("nodes", "mpich", "hip:2", 3, ("--mix=even-ranks",)),
    ("nodes", "openmpi", "cuda:2", 2, ("--mix=drawn-2",)),
    ("ipc_open", "mpich", "cuda:2", 2, ("--mix=odd-buffers",)),
    ("ipc_export", "openmpi", "hip:2", 2, ("--mix=odd-ranks",)),
    ("ring", "mpi5", "hip:2", 2, ("--mix=even-buffers",)),
    ("staged", "openmpi", "cuda:2", 2, ("--mix=even-ranks",)),
)
"""The heavy cases are done with the mixes `device` and `even-ranks-device` only. What is left out here is among
LONG."""
FOR_SANITIZERS: tuple[Case, ...] = (
    ("direct", "mpich", "cuda:2", 2, ("--mix=even",)),
    ("direct", "openmpi", "hip:2", 3, ("--mix=ranks",)),
    ("nodes", "mpich", "hip:2", 3, ("--mix=even-ranks",)),
    ("nodes", "openmpi", "cuda:2", 2, ("--mix=drawn-2",)),
)
LONG: tuple[Case, ...] = tuple(
    (path, mpi, emulate, ranks, ("--long", "--epochs=40"))
    for path in PATHS
    for mpi in ("mpich", "mpi5", "openmpi")
    for emulate in ("cuda:2", "hip:2", "hip5:2")
    for ranks in (1, 2, 3, 4)
)
NATIVE_BUGS = {"openmpi": ("accumulate_pairs",)}
"""Open MPI aborts in MPI_Accumulate of pairs, with host memory and without Awaken."""


def name(case: Case) -> str:
    path, mpi, emulate, ranks, arguments = case
    return "-".join([path, mpi, emulate.replace(":", "x"), str(ranks), *(a.strip("-") for a in arguments)])


def check(case: Case, program: Path, mpi: harness.Mpi, timeout: float) -> None:
    path, name_of_mpi, emulate, ranks, arguments = case
    environment, options = PATHS[path]
    exceptions = [f"--except={text}" for text in NATIVE_BUGS.get(name_of_mpi, ())]
    command: list[str | Path] = [program, paths.gpu_option(emulate), *options, *arguments, *exceptions]
    result = harness.run_ranks(mpi, ranks, command, emulate=emulate, environment=environment, timeout=timeout)
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"


@pytest.mark.parametrize("case", harness.with_sanitizers(DEFAULT, FOR_SANITIZERS), ids=name)
def test_one_sided(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[1], "one_sided"), mpi_named(case[1]), harness.HANG_S)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=name)
def test_one_sided_long(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[1], "one_sided"), mpi_named(case[1]), harness.LONG_HANG_S)


def test_the_report_says_why_a_window_is_served_through_host_memory(
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    command: list[str | Path] = [
        rank_program("mpich", "one_sided"),
        "--gpu=cuda",
        "--mirrored",
        "--mix=device",
        "--filter=put_and_get_f",
    ]
    environment = {"AWAKEN_TEST_NODES": "2", "AWAKEN_REPORT": "1"}
    result = harness.run_ranks(
        mpi_named("mpich"), 2, command, emulate="cuda:2", environment=environment, timeout=harness.HANG_S
    )
    result.check()
    assert "served by the MPI through host memory: its ranks are not all on one node" in result.output, result.explain()


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
@pytest.mark.parametrize("case", ["dynamic", "shared_apart"])
def test_a_window_is_the_first_to_use_the_gpu(
    case: str,
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Windows of these kinds refuse device memory that ranks cannot reach directly, and here they can."""
    check(("direct", mpi, emulate, 2, ("--mix=device", f"--filter={case}")), rank_program(mpi, "one_sided"),
          mpi_named(mpi), harness.HANG_S)  # fmt: skip
