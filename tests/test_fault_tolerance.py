# SPDX-License-Identifier: Apache-2.0
"""Revoked communicators and dead ranks under Open MPI with User Level Failure Mitigation (ULFM)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest

RANKS = 3
ULFM = ("--with-ft", "ulfm")
OPERATIONS = ("allreduce", "barrier", "iallreduce", "allreduce_init", "alltoallv", "neighbor", "ineighbor")
PLACES: dict[str, Mapping[str, str]] = {
    "one_node": {},
    "two_nodes": {"AWAKEN_TEST_NODES": "2", "tune network_fragment_bytes": "64K"},
}
PROCESS_FAILED = 75
"""The error class for a failed process in Open MPI 5."""
DEATHS: dict[str, tuple[str, Mapping[str, str]]] = {
    "fetched": ("MPI_Recv", {"AWAKEN_PATH": "ring", "test tune ring_chunks": "2"}),
    "start": ("MPI_Win_start", {}),
    "wait": ("MPI_Win_wait", {}),
    "iallreduce": ("MPI_Iallreduce", {}),
}
"""What rank 0 is in when the other rank dies, and the settings that this needs. The message that is being fetched is
longer than the ring that it passes through, so that it cannot have come whole."""


def run(
    mpi: harness.Mpi, ranks: int, program: list[str | Path], emulate: str, environment: Mapping[str, str]
) -> harness.Result:
    command = harness.rank_command(mpi, ranks, program)
    command[1:1] = ULFM
    variables = {**harness.clean_environment(), **mpi.environment, "AWAKEN_EMULATE": emulate, **environment}
    result = harness.run(command, variables, foreign_files=harness.FILES_OF_MPIS)
    for file in result.left:
        if file.name.startswith(harness.FILES_OF_MPIS):
            file.unlink(missing_ok=True)
    assert not result.problems, result.explain()
    return result


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("event", ["revoked", "dies"])
def test_an_operation_ends_with_the_class_of_the_mpi(
    event: str,
    place: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The error handler hears of it once, and the survivors go on with a new communicator."""
    for operation in OPERATIONS:
        mode = f"{event}={operation}"
        program: list[str | Path] = [rank_program("openmpi", "fault_tolerance"), mode, "--gpu=cuda"]
        result = run(mpi_named("openmpi"), RANKS, program, "cuda:3", PLACES[place])
        assert "FAIL" not in result.output, result.explain()
        survivors = RANKS if event == "revoked" else RANKS - 1
        assert result.output.count(f"ok {mode}\n") == survivors, result.explain()


@pytest.mark.parametrize("place", DEATHS)
def test_a_call_that_needs_a_dead_rank_names_it_and_has_the_class_of_the_mpi(
    place: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    function, settings = DEATHS[place]
    heard = tmp_path / "survivor"
    program: list[str | Path] = [rank_program("openmpi", "processes"), f"dies={place}", "--gpu=cuda"]
    result = run(mpi_named("openmpi"), 2, program, "cuda:2", {**settings, "SURVIVOR_FILE": str(heard)})
    assert heard.exists(), result.explain()
    assert heard.read_text().startswith(f"survivor: {function}: class {PROCESS_FAILED}: "), heard.read_text()
    assert "rank 1 of MPI_COMM_WORLD ended" in heard.read_text(), heard.read_text()
