# SPDX-License-Identifier: Apache-2.0
"""What the doctor concludes from what jobs tell: made-up jobs, so that each case is there and takes a moment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import child_jobs
import pytest
from awaken import conformance, doctor, doctor_advice, jobs, mpi_build, native_cache
from fake_mpi import GPU, FakeMpi


@pytest.fixture(autouse=True)
def built() -> None:
    child_jobs.skip_unless_built()


@pytest.fixture(name="mpi")
def _mpi(tmp_path: Path) -> FakeMpi:
    return FakeMpi(tmp_path / "mpi")


def run_doctor(mpi: FakeMpi, folder: Path, *words: str, **variables: str) -> tuple[child_jobs.Result, dict[str, Any]]:
    file = folder / "doctor.json"
    command = ["doctor", "--emulate", "cuda:2", "--mpiexec", str(mpi.launcher), "--json", str(file), *words]
    result = child_jobs.awaken(command, child_jobs.environment(None, folder, **variables))
    return result, json.loads(file.read_text()) if file.exists() else {}


def commands(report: dict[str, Any]) -> str:
    return "\n".join(one["command"] for one in report["advice"])


# --------------------------------------------------------------------------------------------------------- the matrix


def runner(mpi: FakeMpi, functions: list[str], **changes: Any) -> conformance.Runner:
    request = conformance.Request(functions=functions, kinds=("host", "device"), **changes)
    launcher = jobs.find_launcher(str(mpi.launcher), os.environ)
    return conformance.Runner(launcher, jobs.Surroundings("cuda:2"), request, with_awaken=False)


def names(count: int) -> list[str]:
    return [f"MPI_{number}" for number in range(count)]


def test_only_the_first_cell_that_hangs_is_waited_for_in_full(mpi: FakeMpi, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = [f"MPI_{number} device" for number in (1, 2, 5)]
    mpi.behave(native=dict.fromkeys(hanging, "hang") | {"MPI_3 device": "crash", "MPI_4 device": "slow"})
    given: list[float] = []
    records = jobs.Job.records

    def noted(job: jobs.Job, start_limit_s: float, idle_limit_s: float) -> Generator[jobs.Record, None, None]:
        given.append(idle_limit_s)
        return records(job, start_limit_s, idle_limit_s)

    monkeypatch.setattr(jobs.Job, "records", noted)
    trial = runner(mpi, names(6), cell_limit_s=4.0, hang_again_limit_s=2.0)
    outcome = trial.run()
    statuses = {f"{cell.function} {cell.kind}": cell.status for cell in outcome.cells}
    assert [name for name, status in statuses.items() if status == "hang"] == hanging
    assert [name for name, status in statuses.items() if status == "crash"] == ["MPI_3 device"]
    assert statuses["MPI_4 device"] == "works" and len(statuses) == 12
    # What is slow is no hang, and what comes after it gets four times as long.
    assert trial._slowest_s > 0
    assert trial._limit_s() == min(4.0, max(2.0, 4 * trial._slowest_s))
    # The jobs of the plan and of the first that hangs; then of the second, of the crash and of the third.
    assert given[:2] == [4.0] * 2 and len(given) == 5
    assert all(2.0 <= limit_s <= trial._limit_s() for limit_s in given[2:])


def test_the_time_of_all_cells_is_bounded_and_none_is_lost(mpi: FakeMpi) -> None:
    mpi.behave(native=dict.fromkeys([f"MPI_{number} device" for number in range(3, 30)], "slow"))
    outcome = runner(mpi, names(30), total_limit_s=1.5).run()
    statuses = [cell.status for cell in outcome.cells]
    tried = statuses.index(conformance.NOT_TRIED)
    assert len(statuses) == 60
    assert set(statuses[:tried]) <= {"works"} and set(statuses[tried:]) == {conformance.NOT_TRIED}


def test_a_stretch_without_a_job_costs_no_other_its_cells(mpi: FakeMpi) -> None:
    mpi.behave(native={"MPI_0 host": "no start"})
    trial = runner(mpi, names(24), jobs_at_once=2)
    with pytest.raises(jobs.JobFailed, match="cannot be started here"):
        trial.run()
    statuses = [cell.status for cell in trial.outcome.cells]
    assert statuses == [conformance.NOT_TRIED] * 12 + ["works"] * 36


def test_a_matrix_without_jobs_keeps_everything_else(mpi: FakeMpi, tmp_path: Path) -> None:
    mpi.behave(functions=["MPI_Bcast"], awaken={"MPI_Bcast device": "no start"})
    result, report = run_doctor(mpi, tmp_path, "--functions", "MPI_Bcast", "--kinds", "device", "--no-cache")
    assert result.status == 1 and report["works_with_awaken"] is False
    assert report["awaken"]["gpu_aware"] is True and report["awaken"]["transport"] == "direct"
    assert [cell["native"]["status"] for cell in report["matrix"]["cells"]] == ["works"]
    assert [cell["awaken"]["status"] for cell in report["matrix"]["cells"]] == [conformance.NOT_TRIED]
    told = [problem["text"] for problem in report["problems"]]
    assert told[0] == "it cannot be started here" and "1 cells were not tried" in told[1]
    assert "1 not tried" in result.out


def test_cells_are_counted_in_words() -> None:
    assert conformance.counted({"works": 8, "crash": 12, "hang": 1}) == "8 work, 12 crashes, 1 hang"


def test_sums_with_other_bits_are_a_failure(mpi: FakeMpi, tmp_path: Path) -> None:
    mpi.behave(same_sums=False)
    result, report = run_doctor(mpi, tmp_path, "--no-cache")
    assert result.status == 1 and report["works_with_awaken"] is False
    assert "AWAKEN_REPRODUCIBLE DOES NOT WORK with device memory" in result.out


# ------------------------------------------------------------------------------------------------------- surroundings


def test_two_nodes_between_which_no_job_runs(mpi: FakeMpi, tmp_path: Path) -> None:
    mpi.behave(no_second_node=True)
    nodes = tmp_path / "nodes"
    nodes.write_text("a\nb\n")
    result, report = run_doctor(mpi, tmp_path, "--no-cache", "--ranks", "5", PBS_NODEFILE=str(nodes))
    # Five ranks share the two GPUs of a node, as they are told here; the GPUs of both nodes count.
    assert f"{mpi.launcher} -n 4 awaken exec ./app" in commands(report)
    assert report["between_nodes"] == {"native": [], "awaken": []}
    assert result.status == 1 and report["works_with_awaken"] is False
    assert "no route to the second node" in result.out


def test_ranks_that_are_spread_where_they_should_be_together(mpi: FakeMpi, tmp_path: Path) -> None:
    mpi.behave(hosts=["one", "two"])
    _, report = run_doctor(mpi, tmp_path, "--no-cache")
    assert [problem["probe"] for problem in report["problems"]] == ["one node"]
    assert "one and two" in report["problems"][0]["text"]


def test_a_note_of_another_encoding_costs_no_result(mpi: FakeMpi, tmp_path: Path) -> None:
    file = tmp_path / ".cache" / "awaken" / "native-gpu"
    file.parent.mkdir(parents=True)
    line = b"file:1:2:/opt/\xe9/libmpi.so cuda no 2026-01-31T12:00:00Z MPI \xe9t\xe9\n"
    file.write_bytes(line)
    result, report = run_doctor(mpi, tmp_path)
    assert result.status == 0 and report["cache"]["written"], result
    assert line in file.read_bytes()
    assert native_cache.read(file)["build-id:ab12", "cuda-emulated"] is True


# ------------------------------------------------------------------------------------------------------------- advice


def test_advice_with_one_gpu_is_not_to_use_fewer_ranks(mpi: FakeMpi, tmp_path: Path) -> None:
    mpi.behave(gpu={**GPU, "visible_devices": 1}, same_gpu=True, path="copied")
    _, report = run_doctor(mpi, tmp_path, "--no-cache")
    assert [warning["kind"] for warning in report["placement"]["warnings"]] == ["shared GPU"]
    assert "-n 1 " not in commands(report) and "-n 0 " not in commands(report)
    assert report["native"]["transport"] == report["awaken"]["transport"] == "unknown"
    assert "both ranks use one GPU" in report["native"]["why"]


@pytest.mark.parametrize(
    ("vendor", "latency", "shared", "advised"),
    [
        ("cuda", 158.2, True, True),
        ("cuda", 17.4, True, False),
        ("cuda", 158.2, False, False),
        ("hip", 158.2, True, False),
    ],
)
def test_advice_for_ranks_that_share_a_gpu(vendor: str, latency: float, shared: bool, advised: bool) -> None:
    report = {
        "gpu": {"vendor": vendor},
        "emulated": False,
        "awaken": {"latency_us": latency},
        "placement": {"warnings": [{"kind": "shared GPU", "text": "ranks 0-1 share GPU 0"}] if shared else []},
    }
    found = doctor_advice.sharing_advice(report)
    assert len(found) == advised
    if advised:
        assert "158 us" in found[0]["why"]
        assert found[0]["command"].startswith("nvidia-cuda-mps-control -d")


OMPI_INFO = """#!/bin/sh
cat <<'END'
                Open MPI: 5.0.5
  Configure command line: '--prefix=/opt/openmpi' '--with-ucx={ucx}'
                          '--enable-mca-no-build=btl-uct'
         MCA accelerator: null (MCA v2.1.0, API v1.0.0, Component v5.0.5)
                 MCA pml: ob1 (MCA v2.1.0, API v2.1.0, Component v5.0.5)
                 MCA pml: ucx (MCA v2.1.0, API v2.1.0, Component v5.0.5)
END
"""
UCX_INFO = """#!/bin/sh
echo "# Library version: 1.17.0"
echo "# Configured with: --prefix=/opt/ucx --with-rocm=/opt/rocm LIBRARIES=$LD_LIBRARY_PATH"
"""


def test_how_open_mpi_and_its_ucx_were_built(tmp_path: Path) -> None:
    for name, text in (("ompi/bin/ompi_info", OMPI_INFO.format(ucx=tmp_path / "ucx")), ("ucx/bin/ucx_info", UCX_INFO)):
        tool = tmp_path / name
        tool.parent.mkdir(parents=True)
        tool.write_text(text)
        tool.chmod(0o755)
    ucx, lib = tmp_path / "ucx" / "lib", tmp_path / "ompi" / "lib"
    for folder in (ucx / "ucx", lib):
        folder.mkdir(parents=True)
    (ucx / "ucx" / "libuct_rocm.so.0").touch()
    source = tmp_path / "x.c"
    source.write_text("int x;")
    link = ["cc", "-shared", "-fPIC", str(source), "-o"]
    subprocess.run([*link, str(ucx / "libucp.so.0"), "-Wl,-soname,libucp.so.0"], check=True)
    needed = ["-Wl,--no-as-needed", str(ucx / "libucp.so.0"), f"-Wl,-rpath,{ucx}"]
    subprocess.run([*link, str(lib / "libmpi.so.40"), *needed], check=True)
    found = mpi_build.examine(str(lib / "libmpi.so.40"), [str(tmp_path / "nowhere" / "mpiexec")])
    assert found["open_mpi"]["components"] == {"accelerator": ["null"], "pml": ["ob1", "ucx"]}
    assert found["open_mpi"]["configured"].endswith("'--enable-mca-no-build=btl-uct'")
    assert (found["ucx"]["library"], found["ucx"]["version"]) == (str(ucx / "libucp.so.0"), "1.17.0")
    assert found["ucx"]["gpus"] == ["rocm"] and f"LIBRARIES={ucx}" in found["ucx"]["configured"]
    (tmp_path / "ompi" / "bin" / "ompi_info").write_text("#!/bin/sh\nexit 1\n")
    assert mpi_build.examine(str(source), [str(tmp_path / "nowhere" / "mpiexec")]) == {"open_mpi": None, "ucx": None}


@pytest.mark.parametrize(
    ("gpus", "aware", "vendor", "advised"),
    [
        ([], False, "cuda", "pip install libucx-cu12"),
        ([], False, "hip", "build UCX with --with-rocm"),
        (["cuda"], False, "cuda", ""),
        ([], True, "cuda", ""),
    ],
)
def test_advice_on_a_ucx_that_knows_no_gpus(gpus: list[str], aware: bool, vendor: str, advised: str) -> None:
    report = {
        "build": {"ucx": {"library": "/lib/libucp.so.0", "gpus": gpus}},
        "native": {"gpu_aware": aware},
        "gpu": {"vendor": vendor, "visible_devices": 2},
        "allocation": {"nodes": 1},
        "placement": {"ranks": []},
        "launcher": {"words": ["mpiexec"]},
        "emulated": False,
    }
    found = doctor_advice.ucx_advice(report)
    assert bool(found) == bool(advised)
    if found:
        assert advised in found[0]["why"] and "mpiexec -n 2 awaken exec --ucx" in found[0]["command"]
    assert (
        doctor_advice.ucx_advice({**report, "emulated": True})
        == doctor_advice.ucx_advice({**report, "build": {}})
        == []
    )


def test_advice_on_containers_is_not_for_gpus_that_cannot_reach_each_other() -> None:
    def advice(reason: str) -> list[dict[str, str]]:
        refused = {"works": False, "applies": True, "why_not": f"opening: cuIpcOpenMemHandle: {reason}"}
        return doctor_advice.ipc_advice({"hardware": {"ipc": [refused], "peer": []}})

    assert advice("peer access is not supported between these two devices (217)") == []
    assert "--ipc=host" in advice("mapping of buffer object failed (205)")[0]["command"]


@pytest.mark.parametrize(
    ("can", "same_gpu", "advised"),
    [
        ([False, False], False, False),  # nothing but a path between them would help
        ([True, True], False, True),
        ([False, False], True, True),
        ([], False, True),  # not known
    ],
)
def test_hip_says_the_same_of_containers_and_of_gpus_out_of_reach(
    can: list[bool], same_gpu: bool, advised: bool
) -> None:
    why_not = "opening: hipIpcOpenMemHandle: invalid device pointer (17)"
    refused = {"works": False, "applies": True, "same_gpu": same_gpu, "why_not": why_not}
    peers = [{"device": at, "peer": 1 - at, "can": one, "does": one} for at, one in enumerate(can)]
    assert bool(doctor_advice.ipc_advice({"hardware": {"ipc": [refused], "peer": peers}})) == advised


def test_advice_for_a_launcher_with_a_program_behind_its_words() -> None:
    report = {"launcher": {"words": ["srun", "-n", "{ranks}", "numactl", "-l"]}, "placement": {"ranks": [{}, {}]}}
    assert doctor_advice.launch(report) == "srun -n 2 numactl -l"


def test_advice_without_a_map_of_the_ranks() -> None:
    report = {
        "launcher": {"words": ["mpiexec"]},
        "placement": {"ranks": []},
        "gpu": {"visible_devices": 2},
        "allocation": {"nodes": 2},
    }
    assert doctor_advice.launch(report) == "mpiexec -n 4"


@pytest.mark.parametrize(
    ("sent", "told"),
    [("works", "takes device memory in some calls only"), ("crash", "cannot take device memory")],
)
def test_advice_tells_how_far_the_mpi_takes_device_memory(sent: str, told: str) -> None:
    report: dict[str, Any] = {
        "launcher": {"words": ["mpiexec"]},
        "placement": {"ranks": [{}, {}]},
        "gpu": {"vendor": "cuda", "visible_devices": 2},
        "allocation": {"nodes": 1},
        "hardware": {"ipc": []},
        "mpi": {"name": "Open MPI", "abi": "openmpi", "library_version": "", "says_gpu_aware": {}, "headers_say": {}},
        "native": {
            "gpu_aware": False,
            "transport": "none",
            "attempts": [
                {"kind": "device", "function": "MPI_Send", "status": sent},
                {"kind": "device", "function": "MPI_Allreduce", "status": "crash"},
            ],
        },
        "awaken": {"gpu_aware": True},
    }
    (advice,) = doctor_advice.native_advice(report)
    assert told in advice["why"]


@pytest.mark.parametrize(("transport", "how"), [("staged", "they pass through the host"), ("unknown", "they are slow")])
def test_advice_for_open_mpi_is_for_every_launcher(transport: str, how: str) -> None:
    report: dict[str, Any] = {
        "launcher": {"words": ["srun"]},
        "placement": {"ranks": [{}, {}]},
        "gpu": {"vendor": "cuda", "visible_devices": 2},
        "allocation": {"nodes": 1},
        "hardware": {"ipc": [{"works": True, "copy_GBps": 400.0}]},
        "mpi": {"name": "Open MPI", "abi": "openmpi", "library_version": "", "says_gpu_aware": {}, "headers_say": {}},
        "native": {"gpu_aware": True, "transport": transport, "why": "7.0 GB/s", "bandwidth_GBps": 7.0},
        "awaken": {"gpu_aware": True},
    }
    (advice,) = doctor_advice.native_advice(report)
    assert advice["why"].startswith(how)
    assert advice["command"].startswith("export OMPI_MCA_pml=ucx UCX_TLS=sm,self,cuda_copy,cuda_ipc ")
    assert "needs UCX with CUDA built in" in advice["command"]
    report["hardware"]["ipc"][0]["copy_GBps"] = 12.0
    assert bool(doctor_advice.native_advice(report)) == (transport == "staged")


def test_of_both_directions_neither_alone_is_told() -> None:
    """The middle of two figures is between them."""
    hardware = {
        "ipc": [{"works": True, "copy_GBps": 400.0}, {"works": True, "copy_GBps": 60.0}],
        "host_path": [{"to_host_GBps": 50.0, "to_device_GBps": 55.0}],
    }
    pairs = [{"bandwidth_GBps": speed, "path": ""} for speed in (40.0, 100.0)]
    assert doctor.transport_of(pairs, hardware) == (
        "direct",
        "70.0 GB/s; a raw copy 230.0, through the host at most 50.0",
    )


def test_headers_that_answer_no(mpi: FakeMpi, tmp_path: Path) -> None:
    """By the wrapper beside the launcher; without one nothing is said."""
    result, report = run_doctor(mpi, tmp_path, "--no-cache")
    assert report["mpi"]["headers_say"] == {} and "headers say" not in result.out
    compiler = mpi.folder / "mpicc"
    compiler.write_text("#!/bin/sh\nsed -n 's/^\\(awaken_asks 0\\) .*/\\1 (0)/p; /awaken_asks 1/p'\n")
    compiler.chmod(0o755)
    result, report = run_doctor(mpi, tmp_path, "--no-cache")
    assert report["mpi"]["headers_say"] == {"MPIX_CUDA_AWARE_SUPPORT": False, "MPIX_ROCM_AWARE_SUPPORT": None}
    assert "MPIX_CUDA_AWARE_SUPPORT: 0, MPIX_ROCM_AWARE_SUPPORT: not defined" in result.out
    assert "mpicc $(pkg-config --cflags awaken-gpu-aware) -c app.c" in commands(report)
    compiler.write_text("#!/bin/sh\nsed -n 's/^\\(awaken_asks .\\) .*/\\1 1/p'\n")
    result, report = run_doctor(mpi, tmp_path, "--no-cache")
    assert report["mpi"]["headers_say"] == {"MPIX_CUDA_AWARE_SUPPORT": True, "MPIX_ROCM_AWARE_SUPPORT": True}
    assert "awaken-gpu-aware" not in commands(report)


def test_what_was_found_is_told_though_its_file_cannot_be_written(mpi: FakeMpi, tmp_path: Path) -> None:
    result, _ = run_doctor(mpi, tmp_path, "--no-cache", "--json", "/dev/full")
    assert result.status == 2 and "Some MPI 1.0" in result.out
    assert result.err == "awaken: /dev/full cannot be written (No space left on device): choose another file\n"


def test_an_answer_that_cannot_be_kept_says_where_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As with a home that compute nodes cannot write to."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    report: dict[str, Any] = {
        "native": {"gpu_aware": False},
        "mpi": {"build_id": "ab", "library": "/usr/lib/libmpi.so", "name": "Some MPI"},
        "gpu": {"vendor": "cuda"},
        "emulated": False,
        "problems": [],
    }
    options = SimpleNamespace(no_cache=False)
    doctor.note_native_answer(cast(doctor.Examination, SimpleNamespace(report=report, options=options)))
    (problem,) = report["problems"]
    assert "native-gpu cannot be written (" in problem["text"] and "Errno" not in problem["text"]
    assert problem["text"].endswith("set XDG_CACHE_HOME to a folder, or give --no-cache")
    assert report["cache"]["written"] is False


def test_the_way_that_the_layer_tells_of_decides() -> None:
    hardware = {
        "ipc": [{"works": True, "copy_GBps": 400.0}],
        "host_path": [{"to_host_GBps": 50.0, "to_device_GBps": 55.0}],
    }

    def transport(bandwidth: float, path: str) -> str:
        return doctor.transport_of([{"bandwidth_GBps": bandwidth, "path": path}], hardware)[0]

    assert [transport(10.0, path) for path in ("direct", "ring", "copied", "")] == [
        "direct",
        "staged",
        "unknown",
        "unknown",
    ]
    assert transport(380.0, "copied") == "direct"


def test_the_reason_is_that_of_the_answer() -> None:
    """Where speed tells nothing, and the path of the layer decides, the reason is not that speed tells nothing."""
    hardware = {
        "ipc": [{"works": True, "copy_GBps": 26.0}],
        "host_path": [{"to_host_GBps": 25.0, "to_device_GBps": 25.0}],
    }

    def answer(path: str) -> tuple[str, str]:
        return doctor.transport_of([{"bandwidth_GBps": 24.0, "path": path}], hardware)

    figures = "24.0 GB/s; a raw copy 26.0, through the host at most 25.0"
    assert answer("") == ("unknown", f"speed does not show it here: {figures}")
    assert answer("direct") == ("direct", "by the path that the layer reports; 24.0 GB/s")
    hardware["ipc"] = [{"works": True, "copy_GBps": 400.0}]
    assert answer("staged") == ("staged", figures.replace("26.0", "400.0"))
