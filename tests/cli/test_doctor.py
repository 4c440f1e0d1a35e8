# SPDX-License-Identifier: Apache-2.0
"""`awaken doctor` on emulated GPUs: what it finds, what it makes of crashes, hangs and wrong data, and its files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import child_jobs
import harness
import pytest
from awaken import conformance, conformance_page, jobs, native_cache, page_style, placement, transport
from shapes import NUMBER, check

Find = Callable[[str], harness.Mpi]


@pytest.fixture(autouse=True)
def built() -> None:
    child_jobs.skip_unless_built()


SOME_FUNCTIONS = ("MPI_Isend", "MPI_Allreduce_init", "MPI_Neighbor_allgatherv", "MPI_Put")
"""Of each family and form one, but packing, which is like the others. Natively each costs two jobs that crash."""

CELL = {"function": str, "family": str, "kind": str, "status": str, "text": str}
SIDE = {
    "gpu_aware": bool,
    "attempts": [CELL],
    "transport": str,
    "why": str,
}
TIMED = {
    **SIDE,
    "bytes": int,
    "bandwidth_GBps": float,
    "both_GBps": float,
    "latency_us": float,
    "verified": bool,
    "path": str,
    "trusting_latency_us": float,
}
RANK = {
    "rank": int,
    "local_rank": int,
    "host": str,
    "process": int,
    "cpus": [int],
    "cpus_online": int,
    "numa_nodes": [int],
    "awaken": bool,
    "gpu": dict,
}
ANSWER = {"status": str, "text": str}
MATRIX = {
    "kinds": [str],
    "ranks": int,
    "cells": [{"function": str, "family": str, "kind": str, "native": ANSWER, "awaken": ANSWER}],
    "seconds": {"native": NUMBER, "awaken": NUMBER},
    "jobs": {"native": int, "awaken": int},
}
REPORT = {
    "schema": str,
    "version": int,
    "date": str,
    "host": str,
    "emulated": bool,
    "interrupted": bool,
    "allocation": {"system": str, "job": str, "hosts": str, "nodes": int},
    "launcher": {"words": [str], "family": str, "version": str},
    "problems": [dict],
    "mpi": {
        "name": str,
        "library": str,
        "library_version": str,
        "standard": str,
        "abi": str,
        "build_id": str,
        "says_gpu_aware": dict,
        "headers_say": dict,
    },
    "gpu": {
        "vendor": str,
        "runtime": str,
        "runtime_library": str,
        "visible_devices": int,
        "device": int,
        "name": str,
        "pci_address": str,
        "uuid": str,
        "memory_bytes": int,
        "numa_node": int,
        "found": bool,
    },
    "libraries": {"gdrcopy": dict, "ccl": dict, "kernels": dict},
    "build": {
        "open_mpi": ({"tool": str, "configured": str, "components": dict}, None),
        "ucx": ({"library": str, "version": (str, None), "configured": (str, None), "gpus": [str]}, None),
    },
    "rdma": {
        "network_cards": [str],
        "peer_memory_modules": [str],
        "open_nvidia_driver": (bool, None),
        "amdgpu_driver": bool,
        "kernel": str,
    },
    "placement": {"ranks": [RANK], "warnings": [{"kind": str, "ranks": [int], "text": str}]},
    "hardware": {"ipc": [dict], "peer": [dict], "host_path": [dict]},
    "native": SIDE,
    "awaken": TIMED,
    "between_nodes": ({"native": [CELL], "awaken": [CELL]}, None),
    "sums": [{"kind": str, "ranks": int, "same": bool}],
    "cache": {"file": str, "key": str, "written": bool},
    "matrix": MATRIX,
    "advice": [{"what": str, "why": str, "command": str}],
    "works_with_awaken": bool,
    "seconds": NUMBER,
}


def run_doctor(
    mpi: harness.Mpi, emulate: str, folder: Path, *words: str, **variables: str
) -> tuple[child_jobs.Result, dict[str, Any]]:
    """The command's result, and what it wrote as JSON."""
    file = folder / "doctor.json"
    result = child_jobs.awaken(
        [
            *("doctor", "--emulate", emulate, "--mpiexec", child_jobs.launcher_words(mpi)),
            *("--bytes", "256K", "--samples", "2", "--json", str(file), *words),
        ],
        child_jobs.environment(mpi, folder, **variables),
        timeout=harness.LONG_HANG_S,
    )
    return result, json.loads(file.read_text()) if file.exists() and file.read_text() else {}


class Page(HTMLParser):
    """Which elements and links a page has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.mark.parametrize(
    ("mpi", "emulate"),
    [
        pytest.param("mpich", "cuda:2", marks=pytest.mark.sanitizer),
        pytest.param("openmpi", "hip:2", marks=pytest.mark.sanitizer),
        pytest.param("mpich", "hip:2", marks=pytest.mark.long),
        pytest.param("openmpi", "cuda:2", marks=pytest.mark.long),
        pytest.param("debian-openmpi", "cuda:2", marks=pytest.mark.long),
        pytest.param("debian-mpich", "hip:2", marks=pytest.mark.long),
    ],
)
def test_a_plain_mpi_crashes_by_itself_and_works_with_awaken(
    mpi_named: Find, mpi: str, emulate: str, tmp_path: Path
) -> None:
    page = tmp_path / "matrix.html"
    result, report = run_doctor(
        mpi_named(mpi), emulate, tmp_path, "--functions", ",".join(SOME_FUNCTIONS), "--html", str(page)
    )
    assert result.status == 0, result
    check(report, REPORT)
    assert (report["schema"], report["version"]) == ("awaken-doctor", 1)
    assert report["mpi"]["abi"] == ("openmpi" if "openmpi" in mpi else "mpich")
    assert report["gpu"]["vendor"] == emulate.split(":")[0]
    assert report["problems"] == []

    assert report["native"]["gpu_aware"] is False and report["native"]["transport"] == "none"
    assert {cell["status"] for cell in report["native"]["attempts"]} == {"crash"}
    assert report["awaken"]["gpu_aware"] is True and report["awaken"]["verified"]
    assert {cell["kind"] for cell in report["awaken"]["attempts"]} == set(conformance.KINDS)
    assert any("awaken exec" in advice["command"] for advice in report["advice"])
    assert all(record["works"] for record in report["hardware"]["ipc"]) and len(report["hardware"]["ipc"]) == 2
    assert all(record["does"] for record in report["hardware"]["peer"]) and len(report["hardware"]["peer"]) == 2
    assert re.match("NCCL|RCCL", report["libraries"]["ccl"]["title"])
    assert report["libraries"]["kernels"]["architecture"].startswith("sm_90" if emulate[:4] == "cuda" else "gfx90a")
    assert [rank["gpu"]["device"] for rank in report["placement"]["ranks"]] == [0, 1]

    cells = {(cell["function"], cell["kind"]): cell for cell in report["matrix"]["cells"]}
    assert set(cells) == {(name, kind) for name in SOME_FUNCTIONS for kind in conformance.KINDS}
    for (name, kind), cell in cells.items():
        if mpi == "debian-openmpi" and name == "MPI_Allreduce_init":  # of MPI 4, and this one is of MPI 3
            assert cell["native"]["status"] == cell["awaken"]["status"] == "absent", cell
            continue
        crashes = kind in ("device", "pool")
        assert cell["native"]["status"] == ("crash" if crashes else "works"), cell
        assert cell["awaken"]["status"] == "works", cell
    # Each crash ends a job, and the next begins behind it.
    crashes_counted = sum(1 for cell in cells.values() if cell["native"]["status"] == "crash")
    assert report["matrix"]["jobs"]["native"] in (crashes_counted + 1, crashes_counted + 2)

    for words in ("NO. device: crash", "with Awaken", "What would help", "IPC, 0 to 1", "MPI_Neighbor_allgatherv"):
        assert words in result.out, result.out
    # Commands are to be copied, and are as long as they are.
    assert max(len(line) for line in result.out.splitlines() if not line.startswith("      /")) <= 100

    html = Page(page.read_text())
    assert {"table", "title", "style"} <= html.names and not {"script", "img", "link"} & html.names
    assert html.links == []
    answers = native_cache.read(tmp_path / ".cache" / "awaken" / "native-gpu")
    assert answers == {(report["cache"]["key"], emulate.split(":")[0] + "-emulated"): False}


@pytest.mark.long
@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_the_whole_matrix(mpi_named: Find, mpi: str, emulate: str, tmp_path: Path) -> None:
    result, report = run_doctor(mpi_named(mpi), emulate, tmp_path, "--matrix", "--large-counts")
    assert result.status == 0, result
    cells = report["matrix"]["cells"]
    assert len({cell["function"] for cell in cells}) > 180
    for cell in cells:
        assert cell["awaken"]["status"] in ("works", "absent"), cell
        expected = "crash" if cell["kind"] in ("device", "pool") else "works"
        assert cell["native"]["status"] in (expected, "absent"), cell
    # What an MPI lacks is so whatever the memory, and no MPI lacks the functions that have always been there.
    absent = {cell["function"] for cell in cells if cell["native"]["status"] == "absent"}
    assert not any(name in absent for name in SOME_FUNCTIONS), absent
    assert mpi == "openmpi" or not absent


INTERPOSED = """
#include <stdlib.h>
#include <unistd.h>
int MPI_Scan() { return 0; }
int MPI_Exscan() { for (;;) pause(); }
int MPI_Scatter() { return 15; }
int MPI_Gatherv() { abort(); }
"""


def test_hangs_wrong_data_errors_and_crashes_are_told_apart(
    mpi_named: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpi = mpi_named("mpich")
    for name, value in child_jobs.environment(mpi, tmp_path).items():
        monkeypatch.setenv(name, value)
    library = child_jobs.compile_library(tmp_path, INTERPOSED)
    expected = {
        "MPI_Bcast": "works",
        "MPI_Gatherv": "crash",
        "MPI_Scatter": "error",
        "MPI_Allreduce": "works",
        "MPI_Scan": "wrong data",
        "MPI_Exscan": "hang",
        "MPI_Neighbor_alltoall": "works",
    }
    outcome = conformance.Runner(
        jobs.find_launcher(child_jobs.launcher_words(mpi), {}),
        jobs.Surroundings("cuda:2", {"LD_PRELOAD": str(library)}),
        conformance.Request(functions=tuple(expected), kinds=("host",), cell_limit_s=8.0),
        with_awaken=False,
    ).run()
    assert {cell.function: cell.status for cell in outcome.cells} == expected
    texts = {cell.function: cell.text for cell in outcome.cells}
    assert "SIGABRT" in texts["MPI_Gatherv"]
    assert "element 0 of 16 in the receive buffer is -1 instead of 7919" in texts["MPI_Scan"]
    assert texts["MPI_Scatter"]
    # The plan, the job that crashes, the one that hangs, and the one that comes to the end.
    assert outcome.jobs == 4


def test_a_failure_with_awaken_is_the_exit_status(mpi_named: Find, tmp_path: Path) -> None:
    library = child_jobs.compile_library(tmp_path, "int MPI_Allgather() { return 0; }\n")
    result, report = run_doctor(
        mpi_named("mpich"),
        "cuda:2",
        tmp_path,
        *("--functions", "MPI_Allgather", "--kinds", "host", "--no-cache"),
        LD_PRELOAD=str(library),
    )
    assert result.status == 1, result
    assert report["works_with_awaken"] is False
    assert [cell["awaken"]["status"] for cell in report["matrix"]["cells"]] == ["wrong data"]
    assert "! MPI_Allgather, host: wrong data" in result.out
    assert not (tmp_path / ".cache" / "awaken" / "native-gpu").exists()


def test_ipc_that_is_refused_is_told_with_a_remedy(mpi_named: Find, tmp_path: Path) -> None:
    result, report = run_doctor(mpi_named("mpich"), "cuda:2", tmp_path, AWAKEN_TEST_FAULTS="ipc-open,no-peer")
    assert result.status == 0, result
    assert not any(record["works"] for record in report["hardware"]["ipc"])
    assert not any(record["does"] for record in report["hardware"]["peer"])
    assert any("--ipc=host" in advice["command"] for advice in report["advice"])
    assert "IPC, 0 to 1  NO: opening:" in result.out


SRUN = """#!/bin/sh
# Stands for Slurm's launcher on two nodes, and keeps what it was asked for.
if [ "$1" = --version ]; then echo slurm 23.11; exit; fi
echo "$*" >> "$SRUN_LOG"
while :; do
    case $1 in
        -n) ranks=$2; shift 2 ;;
        -N) shift 2 ;;
        --ntasks-per-node=*) shift ;;
        *) break ;;
    esac
done
exec env -u SLURM_JOB_ID -u SLURM_JOB_NUM_NODES MPIEXEC -n "$ranks" "$@"
"""


def test_in_an_allocation_of_slurm_both_nodes_are_tried(mpi_named: Find, tmp_path: Path) -> None:
    mpi = mpi_named("mpich")
    (tmp_path / "srun").write_text(SRUN.replace("MPIEXEC", str(mpi.mpiexec)))
    (tmp_path / "srun").chmod(0o755)
    file = tmp_path / "doctor.json"
    variables = child_jobs.environment(
        mpi, tmp_path, SLURM_JOB_ID="17", SLURM_JOB_NUM_NODES="2", SRUN_LOG=str(tmp_path / "log")
    )
    variables["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    words = ["--bytes", "64K", "--samples", "1", "--emulate", "cuda:1", "--json", str(file)]
    # By its name, because a machine may have an mpiexec in PATH, which would come first.
    result = child_jobs.awaken(["doctor", "--mpiexec", "srun", *words], variables)
    assert result.status == 0, result
    report = json.loads(file.read_text())
    check(report, {**REPORT, "matrix": None})
    assert report["allocation"] == {"system": "slurm", "job": "17", "hosts": "", "nodes": 2}
    assert report["launcher"]["family"] == "slurm"
    assert {cell["status"] for cell in report["between_nodes"]["native"]} == {"crash"}
    assert {cell["status"] for cell in report["between_nodes"]["awaken"]} == {"works"}
    assert [warning["kind"] for warning in report["placement"]["warnings"]] == ["shared GPU"]
    asked = (tmp_path / "log").read_text().splitlines()
    assert any(line.startswith("-N 1 -n 2 ") for line in asked)
    assert any(line.startswith("-N 2 --ntasks-per-node=1 -n 2 ") for line in asked)
    assert "two nodes" in result.out


def test_srun_of_another_kind_than_the_mpi_expects(mpi_named: Find, tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\necho unsupported PMI version PMIx >&2\nexit 16\n")
    (tmp_path / "srun").chmod(0o755)
    variables = child_jobs.environment(mpi_named("mpich"), tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    result = child_jobs.awaken(["doctor", "--mpiexec", "srun --mpi=pmix", "--emulate", "cuda:1"], variables)
    assert result.status == 1, result
    assert "unsupported PMI version PMIx" in result.err and "srun --mpi=pmi2" in result.err


def test_no_mpi_is_said(tmp_path: Path) -> None:
    """In an installation: a build knows the MPI for which it was made."""
    (tmp_path / "python3").symlink_to(sys.executable)
    build, prefix = harness.build_dir(), tmp_path / "prefix"
    (prefix / "bin").mkdir(parents=True)
    shutil.copy(build / "bin" / "awaken", prefix / "bin")
    shutil.copytree(build / "lib" / "awaken" / "python", prefix / "lib" / "awaken" / "python")
    done = subprocess.run(
        [prefix / "bin" / "awaken", "doctor"],
        env=child_jobs.environment(None, tmp_path, PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "no MPI is found" in done.stderr and "--launcher" in done.stderr


def test_a_build_knows_the_launcher_of_its_mpi(tmp_path: Path) -> None:
    """Where PATH has none; what PATH has may be the user's choice and comes first."""
    build, elsewhere = tmp_path / "build" / "release", tmp_path / "elsewhere"
    launchers = [tmp_path / mpi / "bin" / "mpiexec" for mpi in ("mpich", "openmpi")] + [elsewhere / "mpiexec"]
    for file in (build / "bin" / "awaken", *launchers):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    awaken, nothing = build / "bin" / "awaken", str(tmp_path)
    with pytest.raises(jobs.NoLauncher):
        jobs.launcher_words("", {"PATH": nothing}, awaken)
    roots = [f"AWAKEN_{mpi}_ROOT:PATH={tmp_path / mpi.lower()}\n" for mpi in ("OPENMPI", "MPICH")]
    (build / "CMakeCache.txt").write_text("".join(roots))
    assert jobs.launcher_words("", {"PATH": nothing}, awaken)[0] == (str(launchers[0]),)
    launchers[0].unlink()
    assert jobs.launcher_words("", {"PATH": nothing}, awaken)[0] == (str(launchers[1]),)
    assert jobs.launcher_words("", {"PATH": str(elsewhere)}, awaken)[0] == (str(launchers[2]),)


def test_root_is_told_what_open_mpi_wants(mpi_named: Find, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("Open MPI refuses nobody but root")
    mpi = mpi_named("openmpi")
    variables = child_jobs.environment(mpi, tmp_path)
    variables = {name: value for name, value in variables.items() if "AS_ROOT" not in name}
    result = child_jobs.awaken(
        ["doctor", "--emulate", "cuda:1", "--mpiexec", child_jobs.launcher_words(mpi)], variables
    )
    assert result.status == 1 and result.err.count("\n") == 1
    assert "OMPI_ALLOW_RUN_AS_ROOT=1" in result.err and "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in result.err


def test_no_gpu_is_said(mpi_named: Find, tmp_path: Path) -> None:
    if child_jobs.machine_has_gpu():
        pytest.skip("this machine has a GPU")
    mpi = mpi_named("mpich")
    words = ["doctor", "--mpiexec", child_jobs.launcher_words(mpi)]
    result = child_jobs.awaken(words, child_jobs.environment(mpi, tmp_path))
    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1), result
    assert result.err.startswith("awaken: there is no GPU (") and result.err.endswith("by --emulate cuda:2\n")
    # As JSON, all that was found.
    result = child_jobs.awaken([*words, "--json", "-", "--quiet"], child_jobs.environment(mpi, tmp_path))
    told = json.loads(result.out)
    assert (result.status, told["gpu"]["found"], told["native"]) == (1, False, None)
    assert told["mpi"]["name"].startswith("MPICH") and told["advice"][0]["command"].startswith(
        "awaken doctor --emulate"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--bogus"], "--bogus"),
        (["--kinds", "device,memory"], "memory"),
        (["--ranks", "1"], "--ranks 1 is too small"),
        (["--bytes", "much"], "much is not a size"),
        (["--bytes", "0"], "0 is not a size"),
        (["--bytes", "2G"], "2G is too large for a message: use at most 1G"),
        (["--bytes", "1073741825"], "1073741825 is too large for a message"),
        (["--emulate", "voodoo:2"], "voodoo:2 is not a kind and number of GPUs"),
        (["--emulate", "cuda:17"], "cuda:17 is not a kind and number of GPUs"),
        (["--mpiexec", "/no/such/launcher"], "/no/such/launcher"),
        (["--json", "/no/such/folder/file"], "/no/such/folder/file"),
    ],
)
def test_misuse(words: list[str], told: str, tmp_path: Path) -> None:
    result = child_jobs.awaken(["doctor", *words], child_jobs.environment(None, tmp_path))
    assert (result.status, result.out) == (2, "") and told in result.err, result


def test_under_mpiexec_it_refuses(tmp_path: Path) -> None:
    result = child_jobs.awaken(["doctor"], child_jobs.environment(None, tmp_path, PMI_RANK="0"))
    assert result.status == 2 and "without mpiexec" in result.err


# ------------------------------------------------------------------------------------------------------------ the parts


def test_allocations(tmp_path: Path) -> None:
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]"}
    assert jobs.find_allocation(slurm) == jobs.Allocation("slurm", "17", "n[1-3]", 3)
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\n")
    assert jobs.find_allocation({"PBS_NODEFILE": str(nodes), "PBS_JOBID": "5.s"}) == jobs.Allocation(
        "pbs", "5.s", "a,b", 2
    )
    assert jobs.find_allocation({}).system == ""


def test_srun_is_taken_inside_an_allocation_without_mpiexec(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho slurm 23.11\n")
    srun.chmod(0o755)
    launcher = jobs.find_launcher("", {"PATH": str(tmp_path), "SLURM_JOB_ID": "1"})
    assert (launcher.words, launcher.family, launcher.version) == ((str(srun),), "slurm", "slurm 23.11")
    assert launcher.command(2)[1:] == ["-N", "1", "-n", "2"]
    assert launcher.command(8, spread=True)[1:] == ["-n", "8"]
    assert launcher.command(2, one_per_node=True)[1:] == ["-N", "2", "--ntasks-per-node=1", "-n", "2"]


def test_transport_is_judged_by_speed() -> None:
    assert transport.judge(380, 390, 50)[0] == "direct"
    assert transport.judge(49, 390, 50)[0] == "staged"
    assert transport.judge(26, 390, 50)[0] == "staged"
    # A slow direct way looks the same as a slow one through the host.
    assert transport.judge(8, 390, 50)[0] == "unknown"
    assert transport.judge(24, 26, 25)[0] == "unknown"
    assert transport.judge(24, None, 25)[0] == "unknown"


def test_the_cache_keeps_one_answer_per_library_and_vendor(tmp_path: Path) -> None:
    file = tmp_path / "awaken" / "native-gpu"
    native_cache.write(file, "build-id:ab", "cuda", False, "MPICH 5")
    native_cache.write(file, "build-id:ab", "hip", True, "MPICH 5")
    native_cache.write(file, "build-id:ab", "cuda", True, "MPICH\n5")
    assert native_cache.read(file) == {("build-id:ab", "cuda"): True, ("build-id:ab", "hip"): True}
    assert {entry.name for entry in file.parent.iterdir()} == {"native-gpu", "native-gpu.lock"}
    file.write_text("nonsense\n# build-id:x cuda yes t n\nbuild-id:y cuda maybe t n\n")
    assert native_cache.read(file) == {}
    library = tmp_path / "lib mpi.so"
    library.write_bytes(b"12345")
    assert re.fullmatch(rf"file:5:\d+:{tmp_path}/lib%20mpi.so", native_cache.library_key("", str(library)))
    assert native_cache.library_key("", "/no/such/library") == ""


def test_two_doctors_at_once_lose_no_answer(tmp_path: Path) -> None:
    file = tmp_path / "awaken" / "native-gpu"
    native_cache.write(file, "build-id:a", "cuda", True, "MPI 1")
    write = f"from awaken import native_cache as c; import pathlib; c.write(pathlib.Path({str(file)!r}), "
    others = [[sys.executable, "-c", f"{write}'build-id:{number}', 'cuda', True, 'MPI 2')"] for number in range(2)]
    package = str(Path(native_cache.__file__).parents[1])
    with file.with_name("native-gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Both have begun, and neither reads what the other, or this one, is about to replace.
        running = [subprocess.Popen(words, env={**os.environ, "PYTHONPATH": package}) for words in others]
        assert [wait_briefly(one) for one in running] == [None, None]
        file.write_text("build-id:b cuda no t MPI 3\n")
    assert [one.wait(60) for one in running] == [0, 0]
    assert {key for key, _ in native_cache.read(file)} == {"build-id:b", "build-id:0", "build-id:1"}


def wait_briefly(process: subprocess.Popen[bytes]) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(1)
    return None


def test_placement_warnings() -> None:
    def rank(number: int, device: int, near: int, runs_on: int) -> dict[str, Any]:
        gpu = {"device": device, "pci_address": f"0000:0{device}:00.0", "uuid": "", "numa_node": near}
        return {"rank": number, "host": "a", "cpus": [0], "cpus_online": 8, "numa_nodes": [runs_on], "gpu": gpu}

    assert placement.warnings([rank(0, 0, 0, 0), rank(1, 1, 1, 1)]) == []
    found = placement.warnings([rank(0, 0, 0, 0), rank(1, 0, 0, 0), rank(2, 1, 1, 0)])
    assert [(warning["kind"], warning["ranks"]) for warning in found] == [
        ("shared GPU", [0, 1]),
        ("far NUMA node", [2]),
    ]
    assert placement.numbers_text([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def matrix_page(matrix: dict[str, Any]) -> str:
    report = {"mpi": {"name": "MPICH", "library": "libmpi.so"}, "gpu": {"name": "GPU", "runtime": "CUDA"}}
    facts = {"host": "node1", "date": "today", "emulated": False, "matrix": matrix}
    return conformance_page.page({**report, **facts})


def test_the_page_has_the_reports_style_and_counts() -> None:
    """Each status has one of the style sheet's three looks, and each side is judged by its failures."""
    cells = [
        {
            "function": f"MPI_{status}",
            "family": "all",
            "kind": "device",
            "native": {"status": status, "text": ""},
            "awaken": {"status": "works", "text": ""},
        }
        for status in conformance.STATUSES
    ]
    sides = {"seconds": {"native": 2.0, "awaken": 1.0}, "jobs": {"native": 5, "awaken": 1}}
    page = matrix_page({"kinds": ["device"], "ranks": 2, "cells": cells, **sides})
    assert page_style.STYLE in page
    looks = {
        text: look for look, text in re.findall(r'<td class="(\w+)" title="">([^<]+)</td>', page) if text != "works"
    }
    assert set(looks) == set(conformance.STATUSES) - {"works"}
    assert {status for status, look in looks.items() if look == "failed"} == set(conformance.FAILURES)
    assert {look for status, look in looks.items() if status not in conformance.FAILURES} == {"neither"}
    assert all(f".{look} {{" in page_style.STYLE for look in {"works", *looks.values()})
    total = len(conformance.STATUSES)
    bad, good = re.findall(r'<li class="(\w+)">.*?headline">([^<]+)<', page)
    assert bad == ("bad", f"1 of {total} cells work") and good == ("good", f"{total} of {total} cells work")
    assert "2.0 s in 5 jobs" in page and "1.0 s in 1 job<" in page


def test_the_page_escapes_what_comes_from_outside() -> None:
    hostile = '<script>alert("x")</script>'
    answer = {"status": hostile, "text": f'"{hostile}'}
    cell = {"function": hostile, "family": hostile, "kind": hostile, "native": answer, "awaken": answer}
    matrix = {
        "kinds": [hostile],
        "ranks": 2,
        "cells": [cell],
        "seconds": {"native": 1.0, "awaken": 1.0},
        "jobs": {"native": 1, "awaken": 1},
    }
    page = conformance_page.page(
        {
            "matrix": matrix,
            "mpi": {"name": hostile, "library": hostile},
            "gpu": {"name": hostile, "runtime": hostile},
            "host": hostile,
            "date": hostile,
            "emulated": True,
        }
    )
    assert "script" not in Page(page).names and "<script" not in page
