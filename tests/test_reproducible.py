# SPDX-License-Identifier: Apache-2.0
"""Reductions in the order of the ranks (AWAKEN_REPRODUCIBLE): the bits of a fold on one CPU, on each path.

See tests/ranks/reproducible.cpp. A draw that fails is named by its seed: `reproducible --first=SEED --count=1`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import pytest

WANTED = {"AWAKEN_REPRODUCIBLE": "1"}


@dataclass(frozen=True)
class Run:
    """Runs the rank program, and gives what it printed and the report."""

    folder: Path
    rank_program: Callable[[str, str], Path]
    mpi_named: Callable[[str], harness.Mpi]

    def __call__(
        self, mpi: str, emulate: str | None, ranks: int, environment: Mapping[str, str], *words: str
    ) -> tuple[harness.Result, dict[str, Any]]:
        file = self.folder / "report.json"
        gpu = (emulate or "none").partition(":")[0]
        result = harness.run_ranks(
            self.mpi_named(mpi),
            ranks,
            [self.rank_program(mpi, "reproducible"), f"--gpu={gpu}", *words],
            emulate=emulate,
            environment={"AWAKEN_REPORT": str(file), **environment},
            timeout=harness.LONG_HANG_S,
        )
        return result, json.loads(file.read_text()) if file.exists() else {}


@pytest.fixture
def run(
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> Run:
    return Run(tmp_path, rank_program, mpi_named)


def seeds(first: int, count: int) -> Sequence[str]:
    # TEST_FIRST_PROGRAM moves the whole range, for runs that are to find something new.
    return [f"--first={first + int(os.environ.get('TEST_FIRST_PROGRAM', '0'))}", f"--count={count}"]


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "settings"),
    [
        ("mpich", "cuda:2", 4, {}),
        ("openmpi", "hip:3", 3, {}),
        ("mpi5", "cuda:1", 2, {}),
        ("mpich", "hip:2", 5, {"AWAKEN_TEST_NODES": "2"}),
        ("openmpi", "cuda:2", 4, {"AWAKEN_TEST_NODES": "3"}),
        ("mpich", "cuda:3", 3, {"AWAKEN_DEFAULT_STREAM": "order"}),
        ("openmpi", "hip:2", 3, {"AWAKEN_PATH": "ring"}),
        ("mpich", "hip:2", 3, {"AWAKEN_PATH": "staged", "AWAKEN_DEFAULT_STREAM": "trust"}),
        ("mpich", "cuda:3", 3, {"AWAKEN_COLLECTIVES": "* : ccl"}),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else None,
)
def test_the_bits_of_one_cpu(mpi: str, emulate: str, ranks: int, settings: dict[str, str], run: Run) -> None:
    result, report = run(mpi, emulate, ranks, {**WANTED, **settings}, *seeds(100 * ranks, 40))
    result.check()
    assert "ok 40 draws" in result.output
    assert "folded in the order of the ranks: " in " ".join(report["notes"])
    ccl = [call for call in report["calls"] if call["path"] == "ccl" and "educe" in call["function"]]
    assert not ccl, "neither NCCL nor RCCL folds in the order of the ranks"


def test_on_a_node_by_kernels(run: Run) -> None:
    _, report = run("mpich", "cuda:2", 2, WANTED, *seeds(1, 30))
    (note,) = [note for note in report["notes"] if "in the order of the ranks" in note]
    kernels = int(note.partition("ranks: ")[2].split()[0])
    assert kernels > 5, note


@pytest.mark.parametrize(("mpi", "ranks"), [("mpich", 3), ("openmpi", 4)])
def test_host_memory_has_the_same_bits(mpi: str, ranks: int, run: Run) -> None:
    """Without a GPU, the setting or the key serves host buffers alike. Without both, the MPI folds as it likes."""
    result, _ = run(mpi, None, ranks, WANTED, *seeds(1, 40))
    result.check()
    result, _ = run(mpi, None, ranks, {}, *seeds(1, 40), "--key")
    result.check()
    result, _ = run(mpi, None, ranks, {}, *seeds(1, 40))
    assert result.status != 0 and "FAIL" in result.output, "these draws show nothing"


@pytest.mark.sanitizer
@pytest.mark.parametrize(("mpi", "emulate", "nodes"), [("mpich", "hip:3", "2"), ("openmpi", "cuda:2", "1")])
def test_a_communicator_asks(mpi: str, emulate: str, nodes: str, run: Run) -> None:
    result, _ = run(mpi, emulate, 3, {"AWAKEN_TEST_NODES": nodes}, *seeds(500, 30), "--key")
    result.check()


@pytest.mark.parametrize("mpi", ["mpich", "openmpi", "mpi5"])
def test_keys_that_members_do_not_share(mpi: str, run: Run) -> None:
    result, _ = run(mpi, "cuda:2", 2, {}, "--info")
    result.check()
    assert "FAIL" not in result.output and "ok it can be taken back" in result.output


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "nodes"), [("mpich", "cuda:2", 3, "1"), ("openmpi", "hip:2", 2, "2")]
)
def test_queued_in_a_stream(mpi: str, emulate: str, ranks: int, nodes: str, run: Run) -> None:
    result, _ = run(mpi, emulate, ranks, {**WANTED, "AWAKEN_TEST_NODES": nodes}, *seeds(900, 30), "--enqueue")
    result.check()


def test_ranks_that_differ(
    awaken_program: Path, rank_program: Callable[[str, str], Path], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """One rank has the setting, the others do not: all say so."""
    mpi = mpi_named("mpich")
    program = str(rank_program("mpich", "reproducible"))
    script = f'[ "$PMI_RANK" = 0 ] && export AWAKEN_REPRODUCIBLE=1; exec {program} --gpu=cuda --count=3'
    result = harness.run_ranks(mpi, 2, ["/bin/sh", "-c", script], emulate="cuda:2")
    assert result.status != 0
    assert "AWAKEN_REPRODUCIBLE is not the same on all ranks" in result.output


@pytest.mark.long
@pytest.mark.parametrize("nodes", ["1", "2", "3"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("vendor", ["cuda", "hip"])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi", "mpi5"])
def test_many_draws(mpi: str, vendor: str, ranks: int, nodes: str, run: Run) -> None:
    first = 10000 * ranks + 1000 * int(nodes)
    result, _ = run(mpi, f"{vendor}:2", ranks, {**WANTED, "AWAKEN_TEST_NODES": nodes}, *seeds(first, 170))
    result.check()
