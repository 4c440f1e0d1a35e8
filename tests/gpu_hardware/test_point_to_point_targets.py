# SPDX-License-Identifier: Apache-2.0
"""The script that measures messages between GPUs: on emulated ones, with small messages, and how it judges."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import measure
import point_to_point as script
import pytest

SCRIPT = Path(script.__file__)


def run_script(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWAKEN")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--build", str(harness.build_dir()), *map(str, words)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
def test_it_runs_on_emulated_gpus(emulate: str, mpi_named: Callable[[str], harness.Mpi], tmp_path: Path) -> None:
    mpich = mpi_named("mpich").mpiexec.parents[1]
    report = tmp_path / "report.json"
    done = run_script(
        "--emulate", emulate, "--mpich", mpich, "--openmpi", tmp_path, "--max-size", "64", "--max-time", "0.01",
        "--json", report,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"openmpi and ucx are skipped: there is no {tmp_path}/bin/mpiexec" in done.stdout
    found: dict[str, Any] = json.loads(report.read_text())
    assert not found["problems"]
    assert [cell["size"] for cell in found["results"][script.LATENCY]["awaken"]] == [8, 16, 32, 64]
    for series, contenders in found["results"].items():
        assert f"# {series}: " in done.stdout
        assert all(cells for cells in contenders.values())
    assert set(found["results"]) >= {script.LATENCY, script.BANDWIDTH, script.BOTH, script.FORCED, script.PINNED}
    assert set(found["results"][script.FORCED]) == {"ring", "nodes"}
    judged = {one["target"]: one["met"] for one in found["targets"] if one["contender"] == "awaken"}
    assert list(judged) == [target.text for target in script.TARGETS]
    assert judged["8 B in 9.0 us"] in (True, False)
    assert judged["1 GiB at 390 GB/s"] is None


def test_without_an_mpi_it_says_so(tmp_path: Path) -> None:
    done = run_script("--emulate", "cuda:2", "--mpich", tmp_path)
    assert done.returncode == 1
    assert f"PROBLEM: there is no {tmp_path}/bin/mpiexec" in done.stdout


def test_a_time_that_is_up_skips_the_rest(mpi_named: Callable[[str], harness.Mpi], tmp_path: Path) -> None:
    mpich = mpi_named("mpich").mpiexec.parents[1]
    done = run_script("--emulate", "cuda:2", "--mpich", mpich, "--openmpi", tmp_path, "--budget", "0")
    assert done.returncode == 1
    assert "latency, 8 to 16 Mi: skipped, the time is up" in done.stdout


def test_the_folder_of_ucx_must_hold_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpiexec").touch()
    arguments = argparse.Namespace(mpich=tmp_path, openmpi=tmp_path, ucx=tmp_path)
    without = script.Machine(arguments, 0)
    without.prepare()
    assert without.notes == [f"ucx is skipped: there is no libucp.so in {tmp_path}"]
    assert "ucx" not in without.launchers
    (tmp_path / "libucp.so.0").touch()
    with_it = script.Machine(arguments, 0)
    with_it.prepare()
    assert not with_it.notes
    assert f"LD_LIBRARY_PATH={tmp_path}:" in with_it.launchers["ucx"]
    assert "OMPI_MCA_pml=ucx" in with_it.launchers["ucx"]


# ----------------------------------------------------------------------------------------------------------- judging


def cells(*sizes_and_times: tuple[int, float]) -> dict[int, measure.Cell]:
    """Cells whose intervals are 1 % to either side."""
    return {size: measure.Cell(size, us, us * 0.99, us * 1.01) for size, us in sizes_and_times}


def verdict(target: str, results: script.Results, contender: str = "awaken") -> bool | None:
    (judge,) = [one.judge for one in script.TARGETS if one.text == target]
    met: bool | None = judge(results, contender).met
    return met


def test_limits_of_time_and_rate() -> None:
    for us, met in ((8.9, True), (9.1, False)):
        assert verdict("8 B in 9.0 us", {script.LATENCY: {"awaken": cells((8, us))}}) is met
    gib_us = measure.GIB / 1e3  # at 1 GB/s
    for rate, met in ((391, True), (389, False)):
        assert verdict("1 GiB at 390 GB/s", {script.LATENCY: {"awaken": cells((measure.GIB, gib_us / rate))}}) is met
    assert verdict("8 B in 9.0 us", {}) is None
    assert verdict("8 B in 9.0 us", {script.LATENCY: {"awaken": cells((8, 1))}}, "openmpi") is None


def test_each_mpi_is_judged_by_its_own_variant() -> None:
    size = 256 * measure.MIB
    slow, fast = size / 1e3 / 40, size / 1e3 / 50
    results: script.Results = {script.FORCED: {"ring": cells((size, slow)), "openmpi-ring": cells((size, fast))}}
    assert verdict("256 MiB through the ring at 45 GB/s", results) is False
    assert verdict("256 MiB through the ring at 45 GB/s", results, "openmpi") is True
    nodes: script.Results = {
        script.FORCED: {"nodes": cells((size, 95)), "openmpi-nodes": cells((size, 95))},
        script.PINNED: {"native": cells((size, 90)), "openmpi-native": cells((size, 80))},
    }
    assert verdict("256 MiB between nodes at 0.9 of pinned", nodes) is True
    assert verdict("256 MiB between nodes at 0.9 of pinned", nodes, "openmpi") is False


def test_slower_than_ucx_is_slower_beyond_the_intervals() -> None:
    ucx = cells((8, 10), (16, 10))
    for ours, met in (((8, 10.1), True), ((8, 10.3), False), ((8, 5), True)):
        results = {script.LATENCY: {"awaken": cells(ours), "ucx": ucx}}
        assert verdict("no size slower than UCX", results) is met
    assert verdict("no size slower than UCX", {script.LATENCY: {"awaken": cells((8, 1))}}) is None


def test_a_dip_is_a_loss_of_bandwidth_to_the_next_size() -> None:
    for larger, met in ((2.2, True), (2.3, False)):
        results = {script.BANDWIDTH: {"awaken": cells((16, larger), (8, 1))}}
        assert verdict("no dip of more than 10 %", results) is met
    # Sizes of different tests are not neighbours.
    apart = {script.BANDWIDTH: {"awaken": cells((8, 1))}, script.LARGE_BANDWIDTH: {"awaken": cells((16, 9))}}
    assert verdict("no dip of more than 10 %", apart) is None


def test_sizes() -> None:
    assert [measure.parse_size(text) for text in ("8", "64K", "1g")] == [8, 65536, 1 << 30]
    for wrong in ("", "7", "1T", "K", "-8"):
        with pytest.raises(argparse.ArgumentTypeError):
            measure.parse_size(wrong)
    for largest in (64, measure.MIB, measure.GIB):
        for one in script.comparisons(largest):
            assert 8 <= one.smallest <= one.largest <= largest
