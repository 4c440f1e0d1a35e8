# SPDX-License-Identifier: Apache-2.0
"""`awaken bench halo`: kernels in the default stream and messages of what they write, through every contender."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest

KERNELS = 3
"""One kernel would often be over before its message is asked for. The sizes have tails of words."""
SIZES = ("-m", "3:100000", "--step-factor", "180")
MEASURED = [3, 540, 97200]

FindMpi = Callable[[str], harness.Mpi]


def assert_ran(contender: dict[str, Any]) -> None:
    assert not contender["unavailable"], contender
    assert [measurement["size"] for measurement in contender["measurements"]] == MEASURED
    for measurement in contender["measurements"]:
        assert measurement["validated"] and not measurement["errors"], measurement
        assert measurement["average_us"] > 0 and min(measurement["samples_us"]) > 0, measurement
        # The clock goes around all iterations of a turn, of which there are 20.
        assert measurement["iterations"] == 40 and measurement["iterations_per_sample"] == 2, measurement


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"),
    [("mpich", "cuda:2", 2), ("mpich", "hip:3", 3), ("openmpi", "hip:2", 2), ("openmpi", "cuda:3", 3)],
    ids=lambda value: str(value).replace(":", "x"),
)
def test_each_contender_delivers_what_the_last_kernel_wrote(
    mpi_named: FindMpi, awaken_program: Path, tmp_path: Path, mpi: str, emulate: str, ranks: int
) -> None:
    """In processes of their own, since whether messages follow the default stream is a matter of the environment."""
    report = tmp_path / "report.json"
    found = mpi_named(mpi)
    settings = [f"{key}={value}" for key, value in found.environment.items()]
    launcher = shlex.join(["env", *settings, str(found.mpiexec), *found.arguments, "-n", str(ranks)])
    command = [str(awaken_program), "bench", "halo", "D", "D", "--kernels", str(KERNELS), *SIZES, "-i", "40", "-x", "1"]
    queued = ["enqueue", "graph", "xccl", "xccl_graph"]
    contenders_asked = ["wait=awaken", "trust=awaken+AWAKEN_DEFAULT_STREAM=trust", "staged", *queued, "native"]
    command += ["--compare", ",".join(contenders_asked)]
    command += ["--launcher", launcher, "--json", str(report)]
    environment = {**harness.clean_environment(), "AWAKEN_EMULATE": emulate}
    result = harness.run(command, environment, harness.LONG_HANG_S, tmp_path)
    result.check()
    assert f"# Halo Exchange Test: {ranks} ranks, MPI_CHAR, {KERNELS} kernels\n" in result.output, result.explain()
    (run,) = json.loads(report.read_text())["runs"]
    assert run["kernels"] == KERNELS
    contenders = {contender["name"]: contender for contender in run["contenders"]}
    for name in ("wait", "trust", "staged", *queued):
        assert_ran(contenders[name])
    assert "does not take" in contenders["native"]["unavailable"]
    # Another number of kernels is another series.
    words = [str(awaken_program), "compare", str(report), str(report), "--all"]
    compared = harness.run(words, harness.clean_environment(), harness.HANG_S, tmp_path)
    assert compared.status == 0 and f"{KERNELS} kernels" in compared.output, compared.explain()


def test_output_and_self_test(mpi_named: FindMpi, awaken_program: Path) -> None:
    """--self-test damages a received halo, and fails where nobody notices."""
    words = ["halo", "--self-test", "-c", "-m", "8:16", "-i", "4", "-x", "1", "--unaligned", "D", "D"]
    result = harness.run_ranks(
        mpi_named("mpich"), 3, [awaken_program, "bench", *words], with_awaken=False, emulate="cuda:2"
    )
    result.check()
    head = "\n# Halo Exchange Test\n# [ kernels: 1 ]\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)        Valid"
    assert head in result.output and result.output.count(" Pass\n") == 2, result.explain()
    assert "self-test: corrupted data was noticed (rank 1, element 0: " in result.output, result.explain()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "a buffer is in other memory: write D D"),
        (("--buffers", "D,D,P"), "a buffer is in other memory: write D D"),
        (("D", "D", "--mode", "queued"), "halo takes no --mode"),
        (("D", "D", "--kernels", "0"), "--kernels '0' is out of range"),
    ],
    ids=lambda value: "-".join(value).replace("--", "") if isinstance(value, tuple) else "",
)
def test_wrong_use(mpi_named: FindMpi, awaken_program: Path, words: tuple[str, ...], message: str) -> None:
    result = harness.run_ranks(
        mpi_named("mpich"), 2, [awaken_program, "bench", "halo", *words], with_awaken=False, emulate="cuda:2"
    )
    assert result.status != 0 and message in result.output, result.explain()
