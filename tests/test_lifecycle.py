# SPDX-License-Identifier: Apache-2.0
"""Programs that begin or end in an unusual way: tests/ranks/lifecycle.cpp, one mode per run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest

MODES = ("late-load", "early-load", "reset", "sessions-only", "threads", "shared-threads", "host-functions")
MPIS = ("mpich", "openmpi")


def run(
    mpi: harness.Mpi,
    program: Path,
    mode: str,
    emulate: str | None,
    with_awaken: bool = True,
    ranks: int = 2,
    environment: Mapping[str, str] | None = None,
) -> harness.Result:
    gpu = "none" if emulate is None else "cuda" if emulate.startswith("cuda") else "hip"
    result = harness.run_ranks(
        mpi,
        ranks,
        [program, mode, f"--gpu={gpu}"],
        emulate=emulate,
        with_awaken=with_awaken,
        environment=environment,
        timeout=harness.HANG_S,
    )
    result.check()
    assert f"ok {mode}" in result.output, result.explain()
    return result


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("mode", harness.with_sanitizers(MODES, ("threads", "shared-threads")))
def test_lifecycle(
    mode: str,
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    run(mpi_named(mpi), rank_program(mpi, "lifecycle"), mode, emulate)


@pytest.mark.parametrize("mode", ["capture", "capture-here"])
@pytest.mark.parametrize("mpi", MPIS)
def test_a_capture_under_way_is_left_alone(
    mpi: str,
    mode: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The emulated HIP has no captures to begin."""
    run(mpi_named(mpi), rank_program(mpi, "lifecycle"), mode, "cuda:2")


@pytest.mark.parametrize("emulate", ["cuda:2", "hip5:2", "hip:2"])
@pytest.mark.parametrize("asked_for", [False, True], ids=["automatic", "asked_for"])
@pytest.mark.parametrize("mpi", MPIS)
def test_the_program_says_late_which_devices_it_sees(
    mpi: str,
    asked_for: bool,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    kind = "cuda" if emulate.startswith("cuda") else "hip"
    environment = {"AWAKEN_GPU": kind} if asked_for else None
    run(mpi_named(mpi), rank_program(mpi, "lifecycle"), "late-visible", emulate, environment=environment)


@pytest.mark.parametrize("copy", [2, 5])
@pytest.mark.parametrize("mpi", MPIS)
def test_nothing_came_where_a_copy_failed(
    mpi: str,
    copy: int,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The status of such a receive does not tell of what the layer itself has received."""
    faults = {"AWAKEN_TEST_FAULTS": f"copy-error={copy}"}
    run(mpi_named(mpi), rank_program(mpi, "lifecycle"), "failing-copies", "cuda:1", ranks=1, environment=faults)


@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks", "nodes"),
    [("mpich", "cuda:3", 3, 3), ("mpich", "cuda:3", 3, 2), ("openmpi", "hip:2", 2, 2)],
)
def test_library_that_blocks(
    mpi: str,
    emulate: str,
    ranks: int,
    nodes: int,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """A rank's call of NCCL or RCCL fails, and the others' waits for it in the library: all see an error and go on. So
    does one that shares a node with a failed one, and has no part in what goes between the nodes."""
    report = tmp_path / "report.json"
    environment = {
        "AWAKEN_TEST_NODES": str(nodes),
        "AWAKEN_TEST_FAULTS": "ccl-connect=1",
        "tune network_fragment_bytes": "64K",
        "AWAKEN_REPORT": str(report),
    }
    result = run(
        mpi_named(mpi),
        rank_program(mpi, "lifecycle"),
        "failing-library",
        emulate,
        ranks=ranks,
        environment=environment,
    )
    assert "injected failure: this rank does not connect" in result.output, result.explain()
    assert "connecting to another rank by NCCL or RCCL failed" in result.output, result.explain()
    reasons = {fallback["reason"] for fallback in json.loads(report.read_text())["fallbacks"]}
    assert any("not by NCCL or RCCL" in reason for reason in reasons), reasons


@pytest.mark.parametrize("numbers", ["$((2 - PMI_RANK))", "0"], ids=["reversed", "all_the_same"])
def test_launchers_number_ranks_as_they_like(
    numbers: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Who is who among the processes that share memory is for the MPI to say, not for the environment."""
    report = tmp_path / "report.json"
    result = harness.run_ranks(
        mpi_named("mpich"),
        3,
        [
            "/bin/sh",
            "-c",
            f'PMIX_RANK={numbers} exec "$@"',
            "sh",
            rank_program("mpich", "collectives"),
            "--gpu=cuda",
            "--mix=device",
            "--filter=alltoall",
        ],
        emulate="cuda:2",
        environment={"AWAKEN_REPORT": str(report)},
        timeout=harness.HANG_S,
    )
    result.check()
    paths = {call["path"] for call in json.loads(report.read_text())["calls"] if call["function"] == "MPI_Alltoall"}
    assert "direct" in paths, paths


def call_sites(mpi: str, rank_program: Callable[[str, str], Path]) -> Path:
    """A small library that calls MPI."""
    return rank_program(mpi, "call_sites.so")


@pytest.mark.parametrize("mpi", MPIS)
def test_threads_may_load_libraries_meanwhile(
    mpi: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The first MPI call and MPI_Init go through all loaded objects, whose list dlopen() changes under two locks."""
    run(mpi_named(mpi), rank_program(mpi, "lifecycle"), "loading=libanl.so.1", "cuda:1")


@pytest.mark.parametrize("mpi", MPIS)
def test_no_call_site_is_looked_up_twice(
    mpi: str, awaken_program: Path, rank_program: Callable[[str, str], Path], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    run(mpi_named(mpi), rank_program(mpi, "lifecycle"), f"call-sites={call_sites(mpi, rank_program)}", "cuda:1")


@pytest.mark.parametrize("emulate", ["cuda:1", "hip:1"])
@pytest.mark.parametrize("mpi", MPIS)
def test_exceptions_and_cancelled_threads_leave_calls(
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    result = harness.run_ranks(
        mpi_named(mpi),
        1,
        [rank_program(mpi, "exceptions")],
        emulate=emulate,
        environment={"AWAKEN_CHECK": "1"},
        timeout=harness.HANG_S,
    )
    result.check()
    assert result.output.count("\nok ") + result.output.startswith("ok ") == 7, result.explain()


@pytest.mark.parametrize("mpi", MPIS)
def test_thread_level_is_the_mpis_own(
    mpi: str, awaken_program: Path, rank_program: Callable[[str, str], Path], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    program = rank_program(mpi, "lifecycle")
    for level in range(4):
        answers = [
            re.findall(r"wanted.*", run(mpi_named(mpi), program, f"level={level}", None, with_awaken).output)
            for with_awaken in (False, True)
        ]
        assert answers[0] == answers[1]


@pytest.mark.parametrize("mpi", MPIS)
def test_communicators_share_what_is_mapped_for_them(
    mpi: str, awaken_program: Path, rank_program: Callable[[str, str], Path], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """UCX keeps a note of each mapping that goes, so a program that makes communicators for ever would grow."""
    program = rank_program(mpi, "lifecycle")
    plain, with_awaken = (
        int(
            re.findall(
                r"mapped (\d+) places",
                run(mpi_named(mpi), program, "communicators", emulate, emulate is not None).output,
            )[0]
        )
        for emulate in (None, "cuda:2")
    )
    # Each communicator needs a part of either rank, and a rank may leave its part later than another makes the next.
    assert with_awaken < plain + 50, f"{with_awaken} places with Awaken, {plain} without"


@pytest.mark.parametrize("mpi", MPIS)
def test_host_program_keeps_nothing(
    mpi: str, awaken_program: Path, rank_program: Callable[[str, str], Path], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """No thread and no descriptor more than without the layer, after MPI_Finalize."""
    program = rank_program(mpi, "lifecycle")
    answers = [
        re.findall(r"threads left.*", run(mpi_named(mpi), program, "host", None, with_awaken).output)
        for with_awaken in (False, True)
    ]
    assert answers[0] == answers[1]


def module_cases() -> list[tuple[str, str, str, str]]:
    """MPI, GPU, the flags of dlopen(), and how the library is named: by its path, or found as the program searches."""
    return [
        ("mpich", "cuda:2", "now+deepbind", "{folder}/"),
        ("mpich", "hip:2", "lazy+global+deepbind", ""),
        ("openmpi", "hip:2", "now+deepbind", "$ORIGIN/"),
        ("openmpi", "cuda:2", "lazy+deepbind", "{folder}/"),
        ("mpi5", "cuda:2", "now+global+deepbind", ""),
        ("mpi5", "hip:2", "lazy+deepbind", "{folder}/"),
        ("mpich", "cuda:2", "lazy", ""),
    ]


@pytest.mark.parametrize(("mpi", "emulate", "flags", "prefix"), module_cases())
def test_a_program_opens_a_library_that_has_mpi(
    mpi: str,
    emulate: str,
    flags: str,
    prefix: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """With RTLD_DEEPBIND the library finds the MPI's own functions, which cannot take its device memory."""
    host, module = rank_program(mpi, "module_host"), rank_program(mpi, "mpi_module.so")
    name = prefix.format(folder=module.parent) + module.name
    gpu = emulate.split(":")[0]
    result = harness.run_ranks(mpi_named(mpi), 2, [host, name, flags, gpu], emulate=emulate, timeout=harness.HANG_S)
    result.check()
    assert result.output.count("ok module") == 2, result.explain()
