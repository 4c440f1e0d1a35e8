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
    "two_nodes": {"AWAKEN_TEST_NODES": "2", "tune collective_chunk_bytes": "64K"},
}
# The error class for a failed process in Open MPI 5.
PROCESS_FAILED = 75


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


def test_a_receive_from_a_dead_rank_has_the_class_of_the_mpi(
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The message is longer than the ring that it passes through, so that it cannot have come whole."""
    heard = tmp_path / "survivor"
    ring = {"AWAKEN_PATH": "ring", "tune ring_chunks": "2", "SURVIVOR_FILE": str(heard)}
    program: list[str | Path] = [rank_program("openmpi", "processes"), "dies=fetched", "--gpu=cuda"]
    result = run(mpi_named("openmpi"), 2, program, "cuda:2", ring)
    assert heard.exists(), result.explain()
    assert heard.read_text().startswith(f"survivor: MPI_Recv: class {PROCESS_FAILED}: "), heard.read_text()
