# SPDX-License-Identifier: Apache-2.0
"""The contenders of `awaken bench --compare` on emulated GPUs: each measures and checks its data, or says why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest

CONTENDERS = "native,awaken,staged,xccl,raw"
SIZES = ("-m", "8:524288", "--step-factor", "256")
"""Few sizes, the smallest and one beyond what sockets and eager protocols buffer; times do not matter here."""

Machine = tuple[str, str, str]
MACHINES: list[Machine] = [("mpich", "cuda:2", "cuda"), ("openmpi", "hip:2", "rocm")]
ON_DEVICE = "awaken,staged,xccl,raw"
"""The MPIs of the tests know no GPU: by themselves they do not run on device memory."""


def runner() -> Path:
    program = harness.build_dir() / "lib" / "awaken" / "bench" / "awaken-bench"
    assert program.exists(), f"{program} does not exist: run `make test`, or set TEST_BUILD_DIR"
    return program


@pytest.fixture
def compare(
    mpi_named: Callable[[str], harness.Mpi], awaken_program: Path, tmp_path: Path
) -> Callable[..., dict[str, dict[str, Any]]]:
    """Runs a comparison on two ranks; the contenders by name, as the JSON has them."""

    def run(machine: Machine, test: str, *words: str, **environment: str) -> dict[str, dict[str, Any]]:
        assert awaken_program.exists()
        mpi, emulate, accelerator = machine
        report = tmp_path / "report.json"
        sizes = SIZES if test != "barrier" else ()
        options = [test, *sizes, "--max-time", "0.01", "-d", accelerator, "--json", str(report), *words]
        result = harness.run_ranks(
            mpi_named(mpi), 2, [runner(), *options], emulate=emulate, environment=environment, timeout=harness.HANG_S
        )
        result.check()
        (measured,) = json.loads(report.read_text())["runs"]
        return {contender["name"]: contender for contender in measured["contenders"]}

    return run


def assert_ran(contender: dict[str, Any], *, checked: bool = True) -> None:
    assert not contender["unavailable"], contender
    assert [measurement["size"] for measurement in contender["measurements"]] == [8, 2048, 524288]
    for measurement in contender["measurements"]:
        assert measurement["summary"]["median_us"] > 0, measurement
        assert measurement["errors"] == 0, measurement
        assert measurement["validated"] is checked, measurement


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine[1])
@pytest.mark.parametrize("test", harness.with_sanitizers(["latency", "bw", "allreduce", "bcast"], ["bw", "allreduce"]))
def test_each_contender_runs_and_checks_its_data(
    compare: Callable[..., dict[str, dict[str, Any]]], machine: Machine, test: str
) -> None:
    contenders = compare(machine, test, "--compare", ON_DEVICE)
    assert list(contenders) == ON_DEVICE.split(",")
    for name in ("awaken", "staged", "xccl"):
        assert_ran(contenders[name])
    if test in ("latency", "bw"):
        assert_ran(contenders["raw"], checked=False)
    else:
        assert contenders["raw"]["unavailable"]
    library = "NCCL 2." if machine[2] == "cuda" else "RCCL 2."
    assert contenders["xccl"]["description"].startswith(library)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine[1])
def test_messages_beside_computation_run_through_each_contender(
    compare: Callable[..., dict[str, dict[str, Any]]], machine: Machine
) -> None:
    contenders = compare(machine, "isendrecv", "-t", "4", "--compare", "awaken,staged,enqueue,xccl")
    for contender in contenders.values():
        assert_ran(contender)
        for measurement in contender["measurements"]:
            assert measurement["overlap"]["pure_us"] > 0 and measurement["overlap"]["test_us"] > 0, measurement


@pytest.mark.parametrize("test", ["gather", "scatter", "alltoall", "alltoallv", "allgather", "reduce_scatter", "bibw"])
def test_xccl_composes_what_the_library_has_not(compare: Callable[..., dict[str, dict[str, Any]]], test: str) -> None:
    contenders = compare(MACHINES[0], test, "--compare", "awaken,xccl")
    assert_ran(contenders["xccl"])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("barrier",), "NCCL has no barrier"),
        (("alltoall", "-l"), "NCCL has no exchange of all with all in place"),
        (("latency", "-D", "cont"), "no counterpart of the MPI datatype"),
        (("latency_mt", "-m", "8:8"), "one thread"),
    ],
    ids=["barrier", "in place", "derived type", "threads"],
)
def test_xccl_says_what_the_library_lacks(
    compare: Callable[..., dict[str, dict[str, Any]]], words: tuple[str, ...], reason: str
) -> None:
    contenders = compare(MACHINES[0], *words, "--compare", "awaken,xccl")
    assert reason in contenders["xccl"]["unavailable"]
    assert not contenders["awaken"]["unavailable"]


@pytest.mark.parametrize(
    ("test", "words"),
    [("allgatherv_persistent", ()), ("alltoallw_persistent", ()), ("bcast", ("-D", "vect:4:2"))],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_staging_by_hand_keeps_all_that_a_collective_reads(
    compare: Callable[..., dict[str, dict[str, Any]]], test: str, words: tuple[str, ...]
) -> None:
    """A persistent collective has two inputs where gaps must stay, and so has a broadcast of a type with gaps."""
    assert_ran(compare(MACHINES[0], test, "--compare", "staged", *words)["staged"])


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine[1])
@pytest.mark.parametrize(
    ("test", "words"),
    [("allreduce", ()), ("allreduce", ("--mode", "queued", "-l")), ("bcast", ("-k", "rotate")), ("alltoall", ())],
    ids=lambda value: value if isinstance(value, str) else "".join(value),
)
def test_collectives_are_launched_in_graphs(
    compare: Callable[..., dict[str, dict[str, Any]]], machine: Machine, test: str, words: tuple[str, ...]
) -> None:
    contenders = compare(machine, test, *words, "--compare", "enqueue,graph,xccl,xccl_graph")
    for contender in contenders.values():
        assert_ran(contender)
        assert contender["description"].endswith(" in a graph") == contender["name"].endswith("graph"), contender


def test_graphs_are_of_blocking_collectives(compare: Callable[..., dict[str, dict[str, Any]]]) -> None:
    contenders = compare(MACHINES[0], "iallreduce", "--compare", "enqueue,graph,xccl_graph")
    for name in ("graph", "xccl_graph"):
        assert "only halo and blocking collectives are launched in graphs" in contenders[name]["unavailable"]
    barrier = compare(MACHINES[0], "barrier", "--compare", "graph,xccl_graph")
    assert not barrier["graph"]["unavailable"], barrier
    assert "NCCL has no barrier" in barrier["xccl_graph"]["unavailable"]  # while its call is captured


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine[1])
def test_two_ranks_on_one_gpu_are_left_to_the_others(
    compare: Callable[..., dict[str, dict[str, Any]]], machine: Machine
) -> None:
    contenders = compare(machine, "latency", "--compare", "awaken,xccl,raw", "--gpu-map", "0,0")
    assert "Duplicate GPU detected : rank 1 and rank 0" in contenders["xccl"]["unavailable"]
    assert_ran(contenders["awaken"])
    assert_ran(contenders["raw"], checked=False)


def test_a_failure_of_one_rank_is_one_of_all(compare: Callable[..., dict[str, dict[str, Any]]]) -> None:
    contenders = compare(MACHINES[0], "latency", "--compare", "awaken,xccl", AWAKEN_TEST_FAULTS="ccl-init=1")
    assert "cannot be used" in contenders["xccl"]["unavailable"]
    assert_ran(contenders["awaken"])


def test_refused_sharing_is_named(compare: Callable[..., dict[str, dict[str, Any]]]) -> None:
    contenders = compare(MACHINES[0], "latency", "--compare", "awaken,raw", AWAKEN_TEST_FAULTS="ipc-open")
    assert "cuIpcOpenMemHandle" in contenders["raw"]["unavailable"]
    assert_ran(contenders["awaken"])


def test_host_buffers_are_not_for_gpu_libraries(compare: Callable[..., dict[str, dict[str, Any]]]) -> None:
    mixed = compare(MACHINES[0], "latency", "--compare", "awaken,xccl,raw", "H", "D")
    for name in ("xccl", "raw"):
        assert "rank 0" in mixed[name]["unavailable"]
        assert "host memory" in mixed[name]["unavailable"]
    assert_ran(mixed["awaken"])
    host = compare(MACHINES[0], "latency", "--compare", CONTENDERS, "H", "H")
    for name in ("xccl", "raw"):
        assert "this run uses none" in host[name]["unavailable"]
    for name in ("native", "awaken", "staged"):
        assert_ran(host[name])


def test_the_mpi_itself_is_left_out_where_it_knows_no_gpu(compare: Callable[..., dict[str, dict[str, Any]]]) -> None:
    contenders = compare(MACHINES[0], "latency", "--compare", CONTENDERS)
    assert "does not take CUDA memory" in contenders["native"]["unavailable"]
    assert_ran(contenders["xccl"])
