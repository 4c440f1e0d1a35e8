# SPDX-License-Identifier: Apache-2.0
"""`awaken topo` on emulated GPUs: links, the raw matrix, messages, the map of the ranks, and what cannot be had."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import child_jobs
import harness
import pytest
from awaken import link_limits, readers, topo, topo_text
from shapes import NUMBER, check

Find = Callable[[str], harness.Mpi]


@pytest.fixture(autouse=True)
def built() -> None:
    child_jobs.skip_unless_built()


TEXT = (str, None)
FIGURE = (
    {
        "median_GBps": float,
        "least_GBps": float,
        "most_GBps": float,
        "samples": int,
        "percent_of_limit": (*NUMBER, None),
    },
    None,
)
MESSAGES = {
    "why_not": TEXT,
    "pairs": [
        {
            "sender": int,
            "receiver": int,
            "bytes": int,
            "samples": int,
            "bandwidth_GBps": float,
            "both_GBps": float,
            "latency_us": float,
            "percent_of_limit": (*NUMBER, None),
            "both_percent_of_limit": (*NUMBER, None),
            "verified": bool,
            "path": TEXT,
        }
    ],
}
REPORT = {
    "schema": str,
    "version": int,
    "date": str,
    "host": str,
    "emulated": bool,
    "interrupted": bool,
    "allocation": {"system": str, "job": str, "hosts": str, "nodes": int},
    "problems": [{"what": str, "text": str}],
    "vendor": str,
    "runtime": str,
    "runtime_library": str,
    "link_source": TEXT,
    "link_source_why_not": TEXT,
    "pci_source": str,
    "gpus": [
        {
            "gpu": int,
            "name": str,
            "pci_address": str,
            "uuid": str,
            "architecture": str,
            "memory_bytes": int,
            "numa_node": (int, None),
            "numa_processors": TEXT,
            "active_links": (int, None),
            "pcie_GTps": (*NUMBER, None),
            "pcie_lanes": (int, None),
            "host_limit_GBps": (*NUMBER, None),
            "host_limit_why_not": TEXT,
            "host_limit_what": TEXT,
            "sdma_engine_GBps": (*NUMBER, None),
        }
    ],
    "links": [
        {
            "gpu": int,
            "peer": int,
            "type": TEXT,
            "links": (int, None),
            "hops": (int, None),
            "pci_path": TEXT,
            "why_not_known": TEXT,
            "peer_access_possible": bool,
            "peer_access_works": bool,
            "peer_access_why_not": TEXT,
            "ipc_works": bool,
            "ipc_why_not": TEXT,
            "limit_GBps": (*NUMBER, None),
            "limit_why_not": TEXT,
            "limit_what": TEXT,
        }
    ],
    "ipc_within_gpu": [{"gpu": int, "works": bool, "why_not": TEXT}],
    "network_cards": [
        {
            "name": str,
            "kind": str,
            "pci_address": TEXT,
            "numa_node": (int, None),
            "rate": TEXT,
            "rate_Gbps": (*NUMBER, None),
            "gpus": [{"gpu": int, "pci_path": TEXT}],
            "limit_GBps": (*NUMBER, None),
            "limit_why_not": TEXT,
        }
    ],
    "numa_distances": [[int]],
    "raw": {
        "bytes": int,
        "samples": int,
        "copies_per_sample": int,
        "data_checked": bool,
        "copy_engine": {"between_gpus": str, "with_host": str, "settings": [str]},
        "together": [
            {
                "from": (int, str),
                "method": str,
                "copies": int,
                "together": ({"median_GBps": float, "least_GBps": float, "most_GBps": float, "samples": int}, None),
                "verified": bool,
                "skipped": TEXT,
                "failed": TEXT,
            }
        ],
        "pairs": [
            {
                "gpu": int,
                "peer": (int, str),
                "method": str,
                "read": FIGURE,
                "write": FIGURE,
                "both": FIGURE,
                "latency_us": (float, None),
                "verified": bool,
                "skipped": TEXT,
                "failed": TEXT,
                "limit_GBps": (*NUMBER, None),
            }
        ],
    },
    "mpi": {
        "why_not": TEXT,
        "launcher": [str],
        "name": str,
        "library": str,
        "native": MESSAGES,
        "awaken": MESSAGES,
    },
    "ranks": [dict],
    "placement_warnings": [{"kind": str, "ranks": [int], "text": str}],
    "between_nodes": {
        "pretended": bool,
        "why_not": TEXT,
        "points": [{"bytes": int, "bandwidth_MBps": float, "percent_of_limit": (*NUMBER, None)}],
        "limit_GBps": (*NUMBER, None),
    },
    "seconds": NUMBER,
}


def run_topo(
    emulate: str, folder: Path, *words: str, mpi: harness.Mpi | None = None, **variables: str
) -> tuple[child_jobs.Result, dict[str, Any]]:
    """The command's result and its JSON."""
    file = folder / "topology.json"
    launcher = ["--mpiexec", child_jobs.launcher_words(mpi)] if mpi else ["--no-mpi"]
    result = child_jobs.awaken(
        ["topo", "--emulate", emulate, "--bytes", "256K", "--json", str(file), *launcher, *words],
        child_jobs.environment(mpi, folder, **variables),
    )
    return result, json.loads(file.read_text()) if file.exists() and file.read_text() else {}


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("mpi", "emulate", "link"), [("mpich", "cuda:3", ("NVSwitch", 18, 2)), ("openmpi", "hip:2", ("XGMI", 4, 1))]
)
def test_every_pair_is_looked_at_and_measured(
    mpi_named: Find, mpi: str, emulate: str, link: tuple[str, int, int], tmp_path: Path
) -> None:
    words = ["--mpi-bytes", "64K", "--samples", "2", "--pretend-nodes", "--curve-bytes", "1K"]
    result, report = run_topo(emulate, tmp_path, *words, mpi=mpi_named(mpi))
    assert result.status == 0, result
    check(report, REPORT)
    assert (report["schema"], report["version"]) == ("awaken-topology", 1)
    count = int(emulate.split(":")[1])
    gpus = list(range(count))
    ordered = {(one, other) for one in gpus for other in gpus if one != other}

    assert [gpu["gpu"] for gpu in report["gpus"]] == gpus
    assert {(found["gpu"], found["peer"]) for found in report["links"]} == ordered
    for found in report["links"]:
        assert (found["type"], found["links"], found["hops"]) == link
        assert found["peer_access_works"] and found["ipc_works"], found
        assert found["limit_GBps"] is None and "no limit is known" in found["limit_why_not"]

    with_host = ordered | {(gpu, "host") for gpu in gpus}
    for method in ("copy engine", "kernel"):
        pairs = [pair for pair in report["raw"]["pairs"] if pair["method"] == method]
        assert {(pair["gpu"], pair["peer"]) for pair in pairs} == with_host and len(pairs) == len(with_host)
        for pair in pairs:
            assert pair["skipped"] is None and pair["failed"] is None and pair["verified"], pair
            assert all(pair[name]["samples"] == 2 and pair[name]["median_GBps"] > 0 for name in ("read", "write"))
            assert pair["both"]["median_GBps"] > 0 and pair["latency_us"] > 0

    # Two GPUs have nothing to add to what a pair does both ways.
    together = {(one["from"], one["method"]): one for one in report["raw"]["together"]}
    sources = ["all", *gpus] if count > 2 else []
    assert set(together) == {(source, method) for source in sources for method in ("copy engine", "kernel")}
    for (source, _), one in together.items():
        assert one["skipped"] is None and one["failed"] is None and one["verified"], one
        assert one["copies"] == (count * (count - 1) if source == "all" else count - 1)
        assert one["together"]["median_GBps"] > 0 and one["together"]["samples"] == 2
    assert ("all to all" in result.out) == (count > 2)

    assert re.match("MPI_Send of device memory: crash", report["mpi"]["native"]["why_not"])
    messages = report["mpi"]["awaken"]["pairs"]
    assert {(pair["sender"], pair["receiver"]) for pair in messages} == ordered and len(messages) == len(ordered)
    assert all(pair["verified"] and pair["bandwidth_GBps"] > 0 and pair["path"] for pair in messages)
    assert [rank["gpu"]["device"] for rank in report["ranks"]] == gpus
    assert report["between_nodes"]["pretended"] is True
    assert [point["bytes"] for point in report["between_nodes"]["points"]] == [2**i for i in range(11)]

    for words_of_text in (f"{link[1]} {link[0]}", "row reads column", "by kernel", "row sends to column", "Ranks"):
        assert words_of_text in result.out, result.out
    assert max(map(len, result.out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("variables", "between_gpus", "with_host"),
    [
        ({}, "SDMA engines", "SDMA engines"),
        ({"HSA_ENABLE_SDMA": "0"}, "kernels of the runtime", "kernels of the runtime"),
        ({"HSA_ENABLE_PEER_SDMA": "0"}, "kernels of the runtime", "SDMA engines"),
        ({"HSA_ENABLE_PEER_SDMA": "1"}, "SDMA engines", "SDMA engines"),
    ],
)
def test_what_the_copy_engine_is_on_amd(
    tmp_path: Path, variables: dict[str, str], between_gpus: str, with_host: str
) -> None:
    result, report = run_topo("hip:2", tmp_path, "--samples", "1", mpi=None, **variables)
    assert result.status == 0, result
    settings = [f"{name}={value}" for name, value in variables.items() if value == "0"]
    assert report["raw"]["copy_engine"] == {
        "between_gpus": between_gpus,
        "with_host": with_host,
        "settings": settings,
    }
    said = " ".join(result.out.split())
    for setting in settings:
        assert f"copy engine (between GPUs {between_gpus}, with the host {with_host}: {setting})" in said
    assert settings or "copy engine (" not in said


@pytest.mark.parametrize("vendor", ["hip", "cuda"])
def test_engines_side_by_side(mpi_named: Find, vendor: str, tmp_path: Path) -> None:
    words = ["--engines", "--mpi-bytes", "64K", "--samples", "1"]
    result, report = run_topo(f"{vendor}:2", tmp_path, *words, mpi=mpi_named("mpich"))
    assert result.status == 0, result
    names = ["SDMA engines", "kernels of the runtime", "kernel"] if vendor == "hip" else ["copy engines", "kernel"]
    engines = report["engines"]
    assert [engine["name"] for engine in engines] == names
    for engine in engines:
        assert {(pair["gpu"], pair["peer"]) for pair in engine["pairs"]} >= {(0, 1), (1, 0)}
        assert all(pair["verified"] and pair["read"]["median_GBps"] > 0 for pair in engine["pairs"])
    sent = [engine["name"] for engine in engines if engine["awaken"]]
    assert sent == (names[:2] if vendor == "hip" else names)
    assert all(len(engine["awaken"]["pairs"]) == 2 for engine in engines if engine["awaken"])
    settings = [[f"HSA_ENABLE{peer}_SDMA={on}" for peer in ("", "_PEER")] for on in (1, 0)]
    assert [engine["settings"] for engine in engines] == ([*settings, []] if vendor == "hip" else [[], []])
    assert result.out.count("Engines side by side") == 2 and "GPU 0 < 1" in result.out and "GPU 0 > 1" in result.out

    document = readers.read(tmp_path / "topology.json", "label")
    titles = [matrix.title for matrix in document.topologies[0].matrices]
    off = " (HSA_ENABLE_SDMA=0, HSA_ENABLE_PEER_SDMA=0)"
    for name in [f"{names[0]}", f"{names[1]}{off if vendor == 'hip' else ''}"]:
        assert titles.count(f"Copies by {name}: the GPU reads its peer") == 1, titles
        assert titles.count(f"Messages with Awaken, copies by {name}") == 1, titles
    assert len(set(titles)) == len(titles)


def test_engines_need_measurements(tmp_path: Path) -> None:
    result, _ = run_topo("cuda:2", tmp_path, "--engines", "--no-measure")
    assert result.status == 2 and "leave out --no-measure" in result.err


@pytest.mark.parametrize(
    ("name", "links", "by", "told"),
    [
        ("AMD Instinct MI250X", 4, "SDMA engines", True),
        ("AMD Instinct MI250X", 1, "SDMA engines", False),
        ("AMD Instinct MI250X", 4, "kernels of the runtime", False),
        ("AMD Instinct MI300X", 1, "SDMA engines", False),
    ],
)
def test_what_bounds_an_sdma_engine(name: str, links: int, by: str, told: bool) -> None:
    gpus = [{"gpu": gpu, "name": name, "pcie_GTps": None, "pcie_lanes": None} for gpu in (0, 1)]
    link = {"gpu": 0, "peer": 1, "type": "XGMI", "links": links, "hops": 1}
    report = {"gpus": gpus, "links": [link], "network_cards": [], "raw": {"copy_engine": {"between_gpus": by}}}
    topo.add_limits(report)
    lines = " ".join(topo_text.sdma_lines(report))
    assert ("at most 50 GB/s" in lines and "HSA_ENABLE_SDMA=0" in lines) == told == bool(lines)


def test_parts_that_are_too_small_are_not_measured_together(tmp_path: Path) -> None:
    result, report = run_topo("cuda:3", tmp_path, "--samples", "1", "--bytes", "256")
    assert result.status == 0, result
    assert all("less than 256 bytes" in one["skipped"] and not one["together"] for one in report["raw"]["together"])
    assert "less than 256 bytes" in result.out


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    result, report = run_topo("cuda:2", tmp_path, AWAKEN_TEST_FAULTS="no-peer,ipc-open")
    assert result.status == 0, result
    for pair in report["raw"]["pairs"]:
        if pair["method"] == "kernel" and pair["peer"] != "host":
            assert "cannot access the memory of GPU" in pair["skipped"]
            assert (pair["read"], pair["latency_us"], pair["verified"]) == (None, None, False)
        else:  # the runtime copies through the host
            assert pair["read"]["median_GBps"] > 0 and pair["verified"]
    assert not any(link["peer_access_possible"] or link["ipc_works"] for link in report["links"])
    assert all(link["ipc_why_not"].startswith("opening: ") for link in report["links"])
    assert re.search(r"not measured \(GPU 0 cannot access the memory of GPU 1\): GPU 0 and GPU 1", result.out)
    assert report["mpi"]["why_not"] == "not asked for (--no-mpi)"


@pytest.mark.parametrize(
    ("emulate", "links", "expected"),
    [
        ("cuda:3", "nvlink:4", ("NVLink", 4, 1)),
        ("cuda:2", "pcie", ("PCIe", None, None)),
        ("hip:2", "pcie", ("PCIe", None, 2)),
        ("hip:3", "xgmi:2", ("XGMI", 2, 1)),
        ("hip:4", "mi300a", ("XGMI", 2, 1)),
        ("cuda:2", "dgx", ("NVSwitch", 18, 2)),
    ],
)
def test_kinds_of_links(emulate: str, links: str, expected: tuple[str, int, int], tmp_path: Path) -> None:
    result, report = run_topo(emulate, tmp_path, "--no-measure", AWAKEN_EMULATE_LINKS=links)
    assert result.status == 0 and "raw" not in report, result
    assert {(link["type"], link["links"], link["hops"]) for link in report["links"]} == {expected}


@pytest.mark.parametrize(
    ("emulate", "link", "without"),
    [("cuda:4", "NVLink", ("PCIe", None, None)), ("hip:4", "XGMI", ("XGMI", None, 2))],
)
def test_links_of_each_pair(emulate: str, link: str, without: tuple[str, None, int | None], tmp_path: Path) -> None:
    matrix = ((0, 4, 2, 0), (4, 0, 0, 1), (2, 0, 0, 3), (0, 1, 3, 0))
    text = "matrix:" + "/".join(",".join(map(str, row)) for row in matrix)
    result, report = run_topo(emulate, tmp_path, "--no-measure", AWAKEN_EMULATE_LINKS=text)
    assert result.status == 0, result
    assert len(report["links"]) == 12
    for found in report["links"]:
        count = matrix[found["gpu"]][found["peer"]]
        expected = (link, count, 1) if count else without
        assert (found["type"], found["links"], found["hops"]) == expected, found


def test_gpus_that_are_not_connected_at_all(tmp_path: Path) -> None:
    _, report = run_topo("hip:3", tmp_path, "--no-measure", AWAKEN_EMULATE_LINKS="matrix:0,1,0/1,0,0/0,0,0")
    found = {(link["gpu"], link["peer"]): (link["type"], link["hops"]) for link in report["links"]}
    assert found[0, 1] == ("XGMI", 1)
    assert found[0, 2] == found[1, 2] == ("PCIe", 2)


def test_the_links_of_an_mi250x(tmp_path: Path) -> None:
    """ROCm SMI's hops are 1 for all of them: the weights have the length of the path."""
    result, report = run_topo("hip:8", tmp_path, "--no-measure", AWAKEN_EMULATE_LINKS="mi250x")
    of_the_first = [(link["links"], link["hops"]) for link in report["links"] if link["gpu"] == 0]
    assert of_the_first == [(4, 1), (1, 1), (None, 2), (None, 2), (None, 2), (2, 1), (None, 2)]
    assert {link["type"] for link in report["links"]} == {"XGMI"}
    assert {gpu["active_links"] for gpu in report["gpus"]} == {6, 7}
    assert "  XGMI/2 hops" in result.out, result


def test_the_links_of_a_node_of_summit(tmp_path: Path) -> None:
    _, report = run_topo("cuda:6", tmp_path, "--no-measure", AWAKEN_EMULATE_LINKS="summit")
    for link in report["links"]:
        near = link["gpu"] // 3 == link["peer"] // 3
        expected = ("NVLink", 2, "NODE") if near else ("PCIe", None, "SYS")
        assert (link["type"], link["links"], link["pci_path"]) == expected, link


@pytest.mark.parametrize(
    ("links", "why"),
    [
        (
            "xgmi:4",
            " is not understood: use dgx, summit, pcie, nvlink:N, nvswitch:N with N from 1 to 64, or matrix:ROW/ROW/",
        ),
        ("matrix:0,1", ": it has 1 rows: write one for each of the 2 devices"),
        ("matrix:0,1/1,0,0", ": row 1 has 3 numbers: write one for each of the 2 devices"),
        ("matrix:0,1/65,0", ': row 1 has "65": write a number of links from 0 (PCIe) to 64'),
        ("matrix:0,/1,0", ': row 0 has "": write a number of links from 0 (PCIe) to 64'),
        ("matrix:0,1/1,2", ": device 1 has links with itself: write 0 there"),
        ("matrix:0,3/1,0", ": devices 0 and 1 have 3 links one way and 1 the other: write the same number twice"),
    ],
)
def test_links_that_the_emulator_does_not_know(links: str, why: str, tmp_path: Path) -> None:
    result, _ = run_topo("cuda:2", tmp_path, AWAKEN_EMULATE_LINKS=links)
    assert result.status == 2 and f"AWAKEN_EMULATE_LINKS={links}{why}" in " ".join(result.err.split()), result


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def test_the_machine_around_the_gpus(tmp_path: Path) -> None:
    """Two GPUs and a card at one switch, a second card elsewhere; GPU 1 has a slower link."""
    root = tmp_path / "sys"
    switch = root / "devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    far = root / "devices/pci0000:80/0000:80:01.0"
    devices = {
        "0000:10:00.0": (switch / "0000:02:00.0/0000:10:00.0", 0),
        "0000:11:00.0": (switch / "0000:02:01.0/0000:11:00.0", 0),
        "0000:12:00.0": (switch / "0000:02:02.0/0000:12:00.0", 0),
        "0000:81:00.0": (far / "0000:81:00.0", 1),
    }
    for address, (folder, node) in devices.items():
        write(folder / "numa_node", str(node))
        link = root / "bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
    for address, lanes in (("0000:10:00.0", 16), ("0000:11:00.0", 8)):
        write(devices[address][0] / "max_link_speed", "32.0 GT/s PCIe")
        write(devices[address][0] / "max_link_width", str(lanes))
    for node in (0, 1):
        write(root / f"devices/system/node/node{node}/distance", "10 21" if node == 0 else "21 10")
        write(root / f"devices/system/node/node{node}/cpulist", f"{node * 8}-{node * 8 + 7}")
    for name, address, rate in (
        ("mlx5_0", "0000:12:00.0", "400 Gb/sec (4X NDR)"),
        ("mlx5_1", "0000:81:00.0", "200 Gb/sec (4X HDR)"),
    ):
        write(root / "class/infiniband" / name / "ports/1/rate", rate)
        (root / "class/infiniband" / name / "device").symlink_to(devices[address][0])

    result, report = run_topo("cuda:2", tmp_path, "--no-measure", "--sysfs", str(root), AWAKEN_EMULATE_LINKS="pcie")
    assert result.status == 0, result
    assert [(gpu["numa_node"], gpu["numa_processors"]) for gpu in report["gpus"]] == [(0, "0-7")] * 2
    assert [gpu["host_limit_GBps"] for gpu in report["gpus"]] == [63.0, 31.5]
    assert {link["limit_GBps"] for link in report["links"]} == {31.5}
    assert report["numa_distances"] == [[10, 21], [21, 10]]
    cards = {card["name"]: card for card in report["network_cards"]}
    assert {path["pci_path"] for path in cards["mlx5_0"]["gpus"]} == {"PIX"}
    assert {path["pci_path"] for path in cards["mlx5_1"]["gpus"]} == {"SYS"}
    assert [cards[name]["limit_GBps"] for name in ("mlx5_0", "mlx5_1")] == [50.0, 25.0]
    assert cards["mlx5_1"]["numa_node"] == 1
    assert "400 Gb/sec (4X NDR)" in result.out and "PCIe 32 GT/s x 16" in result.out


def test_under_mpiexec_it_prints_the_map_once(mpi_named: Find, tmp_path: Path) -> None:
    mpi = mpi_named("mpich")
    done = subprocess.run(
        [str(mpi.mpiexec), "-n", "2", str(harness.awaken()), "topo", "--emulate", "cuda:1"],
        env=child_jobs.environment(mpi, tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )
    assert done.returncode == 0, done
    assert done.stdout.count("GPU's NUMA") == 1
    assert "! ranks 0-1 share GPU 0 (0000:10:00.0)" in done.stdout


def test_no_gpu_is_said(tmp_path: Path) -> None:
    if child_jobs.machine_has_gpu():
        pytest.skip("this machine has a GPU")
    result = child_jobs.awaken(["topo"], child_jobs.environment(None, tmp_path))
    assert (result.status, result.out) == (1, "")
    assert "there is no GPU to look at" in result.err and "--emulate cuda:2" in result.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--bogus"], "--bogus"),
        (["--samples", "0"], "--samples 0 is too small"),
        (["--bytes", "much"], "much is not a size"),
        (["--mpi-bytes", "2g"], "2g is too large for a message: use at most 1G"),
        (["--mpi-bytes", "-1"], "-1 is not a size"),
        (["--mpi-bytes", "1.5G"], "1.5G is not a size"),
        (["--gpus", "0,0"], "names a GPU twice"),
        (["--sysfs", "/nonexistent"], "--sysfs /nonexistent is not a folder"),
        (["--gpus", "0,7"], "there is no GPU 7"),
        (["--json", "/no/such/folder/file"], "/no/such/folder/file"),
    ],
)
def test_misuse(words: list[str], told: str, tmp_path: Path) -> None:
    result = child_jobs.awaken(
        ["topo", "--emulate", "cuda:2", "--no-mpi", *words], child_jobs.environment(None, tmp_path)
    )
    assert (result.status, result.out) == (2, "") and told in result.err, result


# -------------------------------------------------------------------------------------------------------------- limits


def link_of(kind: str | None, count: int | None = None, hops: int | None = None) -> dict[str, Any]:
    return {"type": kind, "links": count, "hops": hops, "why_not_known": None}


def gpu_of(name: str, rate: float | None = None, lanes: int | None = None) -> dict[str, Any]:
    return {"gpu": 0, "name": name, "pcie_GTps": rate, "pcie_lanes": lanes}


@pytest.mark.parametrize(
    ("name", "link", "expected"),
    [
        ("NVIDIA H200", link_of("NVSwitch", 18, 2), 450),
        ("NVIDIA A100-SXM4-40GB", link_of("NVSwitch", 12, 2), 300),
        ("NVIDIA A100-SXM4-40GB", link_of("NVLink", 4, 1), 100),
        ("Tesla V100-SXM2-16GB", link_of("NVLink", 2, 1), 50),
        ("NVIDIA B200", link_of("NVSwitch", 18, 2), 900),
        ("AMD Instinct MI250X", link_of("XGMI", 4, 1), 200),
        ("AMD Instinct MI250X", link_of("XGMI", None, 2), None),
        ("AMD Instinct MI300X", link_of("XGMI", 1, 1), 64),
        ("AMD Instinct MI300A", link_of("XGMI", 2, 1), 128),
        ("Some GPU", link_of("NVLink", 4, 1), None),
        ("NVIDIA H200", link_of("NVLink", None, 1), None),
        ("NVIDIA H200", link_of(None), None),
    ],
)
def test_limits_of_pairs(name: str, link: dict[str, Any], expected: float | None) -> None:
    limit = link_limits.between(link, gpu_of(name), gpu_of(name))
    assert limit.GBps == expected
    assert (limit.why_not is None) == (expected is not None)


def test_percentages() -> None:
    assert link_limits.pcie(gpu_of("", 32.0, 16)).percent(55) == 87.3
    assert link_limits.pcie(gpu_of("", 16.0, 16)).percent(50, 2) == 79.4
    assert link_limits.pcie(gpu_of("")).percent(55) is None
    assert link_limits.Limit(450).percent(None) is None
