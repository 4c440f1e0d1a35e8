# SPDX-License-Identifier: Apache-2.0
"""MPIs that take device memory by themselves: who is believed, and what is handed to them then.

With its licence `host-access` the emulated driver lets the host touch device memory: every MPI is GPU-aware then, and
says that it is not. What `awaken doctor` would have noted is written here; that it does write it is shown once.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harness
import pytest
import test_between_nodes

# The package of the build under test.
sys.path.insert(0, str(harness.build_dir() / "lib" / "awaken" / "python"))
from awaken import native_cache

LIBRARIES = {"mpich": "lib/libmpi.so.12", "openmpi": "lib/libmpi.so.40"}
GPU_AWARE = {"AWAKEN_TEST_FAULTS": "host-access"}


def key_of(mpi: harness.Mpi) -> str:
    """What the doctor would call the MPI's library."""
    library = mpi.mpiexec.parent.parent / LIBRARIES[mpi.name]
    notes = harness.run(["readelf", "-n", str(library)], harness.clean_environment(), 20).output
    found = re.search(r"Build ID: ([0-9a-f]+)", notes)
    return native_cache.library_key(found.group(1) if found else "", str(library))


def note(home: Path, mpi: harness.Mpi, vendor: str, answer: bool) -> Path:
    switches = native_cache.gpu_switches({**mpi.environment, **GPU_AWARE})
    file = native_cache.cache_file({"HOME": str(home)})
    assert file is not None
    native_cache.write(file, key_of(mpi), f"{vendor}-emulated", answer, mpi.name, switches)
    return file


def report_of(
    mpi: harness.Mpi,
    emulate: str,
    folder: Path,
    program: Path,
    variables: Mapping[str, str],
    arguments: tuple[str, ...] = ("--mix=device", "--filter=send"),
) -> dict[str, Any]:
    """Runs the messages between two nodes; they must be right. The report of all ranks."""
    report = folder / "report.json"
    command: list[str | Path] = [program, f"--gpu={emulate.split(':')[0]}", *arguments]
    environment = {
        **test_between_nodes.TWO_NODES,
        **GPU_AWARE,
        "HOME": str(folder),
        "XDG_CACHE_HOME": "",
        "AWAKEN_REPORT": str(report),
        **variables,
    }
    result = harness.run_ranks(mpi, 2, command, emulate=emulate, environment=environment, timeout=harness.HANG_S)
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"
    answer: dict[str, Any] = json.loads(report.read_text())
    return answer


def passed_through(report: Mapping[str, Any]) -> set[str]:
    return {row["function"] for row in report["fallbacks"] if row["reason"].startswith("passed through")}


def calls(report: Mapping[str, Any], function: str) -> set[str]:
    """Paths that messages took."""
    return {row["path"] for row in report["calls"] if row["function"] == function and row["bytes"] > 0}


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_device_pointers_go_to_an_mpi_that_the_doctor_found_aware(
    mpi: str,
    emulate: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    found = mpi_named(mpi)
    note(tmp_path, found, emulate.split(":")[0], True)
    report = report_of(found, emulate, tmp_path, rank_program(mpi, "between_nodes"), {})
    assert report["mpi"]["takes_device_memory"].startswith("yes: `awaken doctor` tried it (20")
    # Sends and receives, in both of which the MPI was given device memory.
    assert {"MPI_Send", "MPI_Isend", "MPI_Recv", "MPI_Irecv"} <= passed_through(report)
    assert calls(report, "MPI_Send") == calls(report, "MPI_Recv") == {"native"}
    assert report["totals"]["pipelined"]["calls"] == 0


def test_the_rest_is_served_as_ever(
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Strided datatypes, pool and managed memory, receives from anybody, probes: right data, in whatever way."""
    found = mpi_named("mpich")
    note(tmp_path, found, "cuda", True)
    program = rank_program("mpich", "between_nodes")
    for mix in ("device", "pool"):
        report = report_of(found, "cuda:2", tmp_path, program, {}, (f"--mix={mix}",))
        # On one node ours is the faster one; pool memory is not the MPI's, which nobody has tried.
        assert ("MPI_Send" in passed_through(report)) == (mix == "device")


Case = tuple[dict[str, str], "bool | None", str, bool]
"""(environment, what is noted, the report's answer begins with, passed through)"""
CASES: dict[str, Case] = {
    "the MPI's own word, without a note": ({}, None, "no: the MPI says so (MPIX_GPU_query_support", False),
    "the doctor's no": ({}, False, "no: `awaken doctor` tried it", False),
    "the user's yes, against the doctor": ({"AWAKEN_NATIVE_GPU": "yes"}, False, "yes: AWAKEN_NATIVE_GPU", True),
    "the user's no, against the doctor": ({"AWAKEN_NATIVE_GPU": "no"}, True, "no: AWAKEN_NATIVE_GPU", False),
    "staged is staged": (
        {"AWAKEN_PATH": "staged", "AWAKEN_NODES": "0"},
        True,
        "not used: AWAKEN_PATH=staged was chosen",
        False,
    ),
    "other settings than the doctor's": ({"MPIR_CVAR_ENABLE_GPU": "0"}, True, "no: the MPI says so", False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_who_is_believed(
    case: Case,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    variables, noted, answer, through = case
    found = mpi_named("mpich")
    if noted is not None:
        note(tmp_path, found, "cuda", noted)
    program = rank_program("mpich", "between_nodes")
    report = report_of(found, "cuda:2", tmp_path, program, variables, ("--mix=device", "--filter=there_and_back_send"))
    assert report["mpi"]["takes_device_memory"].startswith(answer)
    assert bool(passed_through(report)) == through


def test_a_file_that_anybody_may_write_is_told_and_not_believed(
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    found = mpi_named("mpich")
    note(tmp_path, found, "cuda", True).chmod(0o666)
    program = rank_program("mpich", "between_nodes")
    report = report_of(found, "cuda:2", tmp_path, program, {}, ("--mix=device", "--filter=there_and_back_send"))
    assert not passed_through(report)
    assert any("others may write it" in row["reason"] for row in report["fallbacks"])


def test_both_know_the_same_switches() -> None:
    source = (harness.ROOT / "src" / "base" / "doctor_notes.cpp").read_text()
    table = source[source.index("kSwitches = {") : source.index("};", source.index("kSwitches = {"))]
    assert tuple(re.findall(r'"(\w+)"', table)) == native_cache.GPU_SWITCHES
    odd = {"UCX_TLS": "tcp, cuda\u00e9", "OMPI_MCA_pml": "^ucx", "PATH": "/bin"}
    assert native_cache.gpu_switches(odd) == "with:OMPI_MCA_pml=^ucx,UCX_TLS=tcp%2C%20cuda%C3%A9"
    assert native_cache.gpu_switches({}) == ""


@pytest.mark.long
def test_what_the_doctor_writes_is_what_the_library_reads(
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    found = mpi_named("mpich")
    environment = {**harness.clean_environment(), **found.environment, **GPU_AWARE, "HOME": str(tmp_path)}
    environment.pop("XDG_CACHE_HOME", None)
    command = [str(awaken_program), "doctor", "--emulate", "cuda:2", "--mpiexec", str(found.mpiexec)]
    harness.run(command, environment, 200).check()
    report = report_of(found, "cuda:2", tmp_path, rank_program("mpich", "between_nodes"), {})
    assert report["mpi"]["takes_device_memory"].startswith("yes: `awaken doctor` tried it (20")
