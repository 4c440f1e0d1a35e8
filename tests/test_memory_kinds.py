# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory in info values (MPI-4.1, 11.4.3): tests/ranks/memory_kinds.cpp."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest

MPIS = ("mpich", "openmpi", "mpi5")
RUNTIMES = {"cuda:2": "cuda", "hip:2": "hip", "hip5:2": "hip", None: "none"}


def run(
    mpi: harness.Mpi,
    program: Path,
    emulate: str | None,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> str:
    command: list[str | Path] = [program, f"--gpu={RUNTIMES[emulate]}", *arguments]
    result = harness.run_ranks(mpi, 2, command, emulate=emulate, environment=environment, timeout=harness.HANG_S)
    result.check()
    assert "ok all\n" in result.output, result.explain()
    return result.output


@pytest.mark.parametrize("emulate", RUNTIMES, ids=str)
@pytest.mark.parametrize("mpi", MPIS)
def test_what_programs_are_told_and_assert(
    mpi: str,
    emulate: str | None,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    output = run(mpi_named(mpi), rank_program(mpi, "memory_kinds"), emulate)
    assert "ok asserted by dup_with_info" in output and "ok provided of a narrowed session" in output
    assert "ok Win_allocate_shared asserts again" in output and "ok File_set_view asserts again" in output
    for name in ("Allreduce", "Put", "File_write_at and File_read_at"):
        assert (f"ok no question: {name} of 1000 integers" in output) == (emulate is not None)
    assert "ok before MPI_Init: MPIX_Query_cuda_support" in output


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
@pytest.mark.parametrize("mpi", MPIS)
def test_a_wrong_assertion_is_found(
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    run(mpi_named(mpi), rank_program(mpi, "memory_kinds"), emulate, "--check", environment={"AWAKEN_CHECK": "1"})


@pytest.mark.parametrize("traced", [False, True], ids=["report", "report and trace"])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_the_report_leaves_out_what_carries_no_data(
    mpi: str,
    traced: bool,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
    tmp_path: Path,
) -> None:
    environment = {"AWAKEN_REPORT": str(tmp_path / "report.json")}
    if traced:
        environment["AWAKEN_TRACE"] = str(tmp_path / "trace")
    run(mpi_named(mpi), rank_program(mpi, "memory_kinds"), "cuda:2", environment=environment)
    rows = {(call["function"], call["path"]) for call in json.loads((tmp_path / "report.json").read_text())["calls"]}
    assert {("MPI_Allreduce", "native"), ("MPI_Put", "native"), ("MPI_File_read_at", "native")} <= rows
    assert ("MPI_Alloc_mem", "refused") in rows
    silent = re.compile(r"MPI_((Comm|Group|Info|Type)_\w+|(Win|File|Session)_[gs]et_\w+|File_open|(Alloc|Free)_mem)")
    assert not [function for function, path in rows if path == "native" and silent.fullmatch(function)]


@pytest.mark.parametrize(
    ("mpi", "option", "request_", "kinds"),
    [
        # Open MPI 5 passes the option on without knowing it.
        ("openmpi", "--memory-alloc-kinds", "cuda:device,acme,mpi:alloc_mem", "system,mpi,cuda:device,mpi:alloc_mem"),
        ("openmpi", "--memory-alloc-kinds", "system", "system,mpi"),
        # Hydra tells MPICH alone, which answers with those of the request that it knows itself.
        (
            "mpich",
            "-memory-alloc-kinds",
            "system,mpi:alloc_mem",
            "system,mpi,cuda,cuda:device,cuda:host,cuda:managed,mpi:alloc_mem",
        ),
    ],
)
def test_the_launcher_is_asked_for_kinds(
    mpi: str,
    option: str,
    request_: str,
    kinds: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    launcher = mpi_named(mpi)
    launcher = dataclasses.replace(launcher, arguments=(*launcher.arguments, option, request_))
    run(launcher, rank_program(mpi, "memory_kinds"), "cuda:2", f"--kinds={kinds}")
