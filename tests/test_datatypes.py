# SPDX-License-Identifier: Apache-2.0
"""What a datatype with gaps costs on a GPU: operations counted by the emulated driver, on each path.

That the bytes are right is for tests/ranks/datatypes.cpp and tests/ranks/random_program.cpp, on every mix of memory.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest

PATHS: dict[str, Mapping[str, str]] = {
    "auto": {},
    "ring": {"AWAKEN_PATH": "ring"},
    "between_nodes": {"AWAKEN_TEST_NODES": "2"},
    "staged": {"AWAKEN_PATH": "staged"},
    "packed_first": {"tune strided_pull_bytes": "0"},
    "through_device_memory": {"AWAKEN_PATH": "staged", "tune pack_direct_bytes": "0"},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_a_message_is_a_few_operations(
    mpi: str,
    emulate: str,
    path: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    # Where everything is staged, messages are copied one by one.
    windows = PATHS[path].get("AWAKEN_PATH") != "staged"
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        [rank_program(mpi, "message_costs"), *(["--windows"] if windows else [])],
        emulate=emulate,
        environment=PATHS[path],
        timeout=harness.HANG_S,
    )
    result.check()
    cases = result.output.count("\nok ") + result.output.startswith("ok ")
    assert cases == (9 if windows else 7), result.explain()


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_a_burst_of_sends_is_asked_about_together(
    mpi: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    # No pause between two sends, of whatever origin, ends a burst. (On HIP the default stream is waited for with each
    # message.)
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        [rank_program(mpi, "message_costs"), "--bursts"],
        emulate="cuda:2",
        environment={"test tune send_burst_us": "1000000"},
        timeout=harness.HANG_S,
    )
    result.check()
    assert result.output.count("ok a burst") == 1, result.explain()


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_late_messages_cost_the_same_however_many_there_are(
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        [rank_program(mpi, "message_costs"), "--late"],
        emulate=emulate,
        timeout=harness.HANG_S,
    )
    result.check()
    assert result.output.count("late messages\n") == 2, result.explain()


def test_the_script_for_real_gpus(awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    """Small, and on emulated GPUs: that it runs, checks its data and prints its ratios."""
    mpi = mpi_named("mpich")
    done = subprocess.run(
        [
            sys.executable,
            harness.TESTS / "gpu_hardware" / "datatypes.py",
            f"--build={harness.build_dir()}",
            f"--mpich={mpi.mpiexec.parent.parent}",
            "--emulate=cuda:2",
            "--field=64",
            "--cube=8",
            "--dense=65536",
            "--rounds=2",
        ],
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        env=harness.clean_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("column", "face_z", "face_y", "face_x", "dense", "80 %"):
        assert word in done.stdout, done.stdout
    assert "WRONG" not in done.stdout
