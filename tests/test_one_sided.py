"""One-sided communication on device memory: tests/ranks/one_sided.cpp, and what must be refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import harness
import pytest
import test_point_to_point_paths as paths

# (MPI, emulated runtime, ranks, more arguments)
Case = tuple[str, str, int, tuple[str, ...]]
DEFAULT: tuple[Case, ...] = (
    ("mpich", "cuda:2", 2, ()),
    ("openmpi", "hip:2", 2, ("--mix=e",)),
    ("mpi5", "cuda:1", 3, ("--mix=drawn-0",)),
    ("mpich", "hip:2", 4, ("--mix=drawn-1",)),
    ("openmpi", "cuda:2", 3, ("--mix=device",)),
    ("mpich", "cuda:2", 1, ("--mix=device",)),
)
LONG: tuple[Case, ...] = tuple(
    (mpi, emulate, ranks, ("--long", "--epochs=40"))
    for mpi in ("mpich", "mpi5", "openmpi")
    for emulate in ("cuda:2", "hip:2", "hip5:2")
    for ranks in (1, 2, 3, 4)
)
# Open MPI aborts in MPI_Accumulate of pairs, with host memory and without Awaken.
NATIVE_BUGS = {"openmpi": ("accumulate_pairs",)}

# Why ranks may not reach each other's device memory.
REFUSALS: dict[str, dict[str, str]] = {
    "ipc_open": {"AWAKEN_EMULATE_FAULTS": "ipc-open"},
    "ipc_export": {"AWAKEN_EMULATE_FAULTS": "ipc-export"},
    "ring": {"AWAKEN_PATH": "ring"},
    "nodes": {"AWAKEN_PRETEND_NODES": "2"},
}


def name(case: Case) -> str:
    mpi, emulate, ranks, arguments = case
    return "-".join([mpi, emulate.replace(":", "x"), str(ranks), *(a.strip("-") for a in arguments)])


def check(case: Case, program: Path, mpi: harness.Mpi, timeout: float) -> None:
    name_of_mpi, emulate, ranks, arguments = case
    exceptions = [f"--except={text}" for text in NATIVE_BUGS.get(name_of_mpi, ())]
    command = [program, paths.gpu_option(emulate), *arguments, *exceptions]
    result = harness.run_ranks(mpi, ranks, command, emulate=emulate, timeout=timeout)
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"


@pytest.mark.parametrize("case", DEFAULT, ids=name)
def test_one_sided(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[0], "one_sided"), mpi_named(case[0]), 240)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=name)
def test_one_sided_long(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[0], "one_sided"), mpi_named(case[0]), 1800)


@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_refused_on_all_ranks(
    mpi: str,
    emulate: str,
    why: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """One rank with device memory, or all: each rank gets the error, and nobody waits."""
    command = [rank_program(mpi, "one_sided"), paths.gpu_option(emulate), "--refused", "--mix=device"]
    result = harness.run_ranks(mpi_named(mpi), 2, command, emulate=emulate, environment=REFUSALS[why], timeout=90)
    result.check()
    assert result.output.count("\nok refused") == 2, result.explain()
