# SPDX-License-Identifier: Apache-2.0
"""The pages: everything is on them, nothing foreign gets out of its place, and nothing leaves them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import changed_json
import harness
import logs
import pytest
from awaken import findings, html_page, markdown_page, pairs, units
from awaken import report as report_command
from awaken.report import from_files
from awaken.report_data import Report
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HOSTILE = "<script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(2)>"
SIZES = [8 << power for power in range(0, 20, 3)]


class Page(HTMLParser):
    """Elements with their attributes, and the text outside of style."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._style = False
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.text += data


def results(folder: Path) -> list[Path]:
    """One file of every kind."""

    def contenders() -> list[dict[str, Any]]:
        return [
            logs.contender("native", [], unavailable="MPICH 5.0.2 does not take CUDA memory"),
            logs.contender("awaken", [logs.measurement(size, 10 + size / 1e5) for size in SIZES]),
            logs.contender("staged", [logs.measurement(size, 15 + size / 6e3) for size in SIZES]),
            logs.contender("xccl", [logs.measurement(size, 14 + size / 3e5) for size in SIZES]),
        ]

    texts = {
        "latency.json": json.dumps(logs.bench("latency", contenders())),
        "bw.json": json.dumps(logs.bench("bw", contenders()[:3])),
        "allreduce.json": json.dumps(logs.bench("allreduce", contenders(), ranks=4)),
        "paths.json": json.dumps(
            logs.path_report([("MPI_Send", "direct", 90, 9000), ("MPI_Recv", "staged", 2, 80)], "no IPC")
        ),
        "doctor.json": json.dumps(logs.doctor()),
        "topology.json": json.dumps(logs.topology()),
        "trace.json": json.dumps(
            logs.trace([(0, "MPI_Send", "direct", 1.0, 5.0), (1, "MPI_Recv", "staged", 2.0, 9.0)])
        ),
        "osu.log": logs.osu("7.4", [(size, 20 + size / 1e4) for size in SIZES]),
        "nccl.log": logs.nccl_tests("all_reduce_perf", [(size, 11 + size / 2e5) for size in SIZES], ranks=4),
        "imb.log": logs.imb("Allreduce", [(size, 40 + size / 1e4) for size in SIZES], ranks=4),
        "ucc.log": logs.ucc_perftest("Allreduce", [(size, 30 + size / 1e4) for size in SIZES]),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def report_on(paths: Sequence[Path]) -> Report:
    report = from_files([str(path) for path in paths], "Awaken report")
    assert report.problems == []
    return report


@pytest.fixture(name="report")
def _report(tmp_path: Path) -> Report:
    return report_on(results(tmp_path))


# -------------------------------------------------------------------------------------------------------- what is there


def test_every_section_and_every_chart_is_there(report: Report) -> None:
    source = html_page.page(report)
    page = Page(source)
    sections = {attributes.get("id") for tag, attributes in page.elements if tag == "h2"}
    assert sections == {"measured", "choice", "paths", "topology", "doctor", "timeline", "problems", "manifest"}
    links = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert links == {f"#{name}" for name in sections}
    charts = [attributes for tag, attributes in page.elements if tag == "svg" and "aria-hidden" not in attributes]
    assert len(charts) >= 2 * 8
    assert all(attributes.get("role") == "img" and attributes.get("aria-label") for attributes in charts)
    assert source.count('<div class="wide">') == source.count('<div class="narrow">') == len(charts) / 2


def test_ways_that_are_a_sliver_of_a_bar_are_named(tmp_path: Path) -> None:
    sums = [("MPI_Send", "direct", 90, 9000), ("MPI_Send", "staged-large", 1, 8)]
    (tmp_path / "paths.json").write_text(json.dumps(logs.path_report(sums, "")))
    page = html_page.page(report_on([tmp_path / "paths.json"]))
    (legend,) = re.findall(r'<p class="legend">(.*?)</p>', page)
    assert re.sub("<[^>]*>", " ", legend).split() == ["direct", "staged-large"]


def test_every_chart_is_well_formed_and_within_its_frame(report: Report) -> None:
    for source in re.findall(r"<svg.*?</svg>", html_page.page(report), re.DOTALL):
        chart = ElementTree.fromstring(source)
        _, _, width, height = map(float, chart.attrib["viewBox"].split())
        for element in chart.iter():
            for name in ("x", "x1", "x2", "cx"):
                if name in element.attrib and element.tag != "tspan":
                    assert -1 <= float(element.attrib[name]) <= width + 1, source
            for name in ("y", "y1", "y2", "cy"):
                if name in element.attrib:
                    assert -1 <= float(element.attrib[name]) <= height + 1, source


def test_what_copied_device_memory_is_shown(report: Report) -> None:
    assert "What copied device memory: copies of the GPU runtime: 30 (" in html_page.page(report)
    assert "| the CPU | 2 | " in markdown_page.page(report)


def test_markdown_shows_its_pictures_as_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    words = [str(path) for path in results(tmp_path / "in")]
    page = tmp_path / "page.md"
    assert report_command.run([*words, "-o", str(page), "--pictures", str(tmp_path / "some pictures")]) == 0
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())
    assert "some%20pictures/latency-2-ranks.svg" in shown and "some%20pictures/latency-2-ranks-relative.svg" in shown
    assert sorted(f"some%20pictures/{path.name}" for path in (tmp_path / "some pictures").iterdir()) == sorted(shown)
    for picture in (tmp_path / "some pictures").iterdir():
        chart = ElementTree.fromstring(picture.read_text())
        assert chart.tag == "{http://www.w3.org/2000/svg}svg" and chart.attrib["width"], picture
        assert "var(" not in picture.read_text(), "a file has no style sheet but its own"
    assert report_command.run([*words, "-o", str(tmp_path / "page.html"), "--pictures", str(tmp_path)]) == 2


def test_the_head_answers_the_four_questions(report: Report) -> None:
    answers = findings.findings(report.documents)
    assert [answer.verdict for answer in answers] == ["good", "good", "neutral", "neutral"]
    aware, direct, speed, choice = answers
    assert aware.headline == "Not by itself; with Awaken, yes"
    assert direct.headline == "Yes: 99 % of the bytes from GPU to GPU"
    assert speed.headline.startswith(units.time(10 + 8 / 1e5))
    assert "NCCL" in choice.headline and "Awaken" in choice.headline
    text = Page(html_page.page(report)).text
    assert all(answer.headline in text for answer in answers)


def test_files_that_are_labelled_by_two_gpus_make_a_matrix(tmp_path: Path) -> None:
    words: list[str] = []
    for label, rate in (("0-1", 142000.0), ("gpu0-gpu6", 76000.0), ("other", 1000.0)):
        log = tmp_path / f"run{len(words)}.log"
        log.write_text(logs.osu("7.4", [(1 << 24, rate)], title="Bandwidth", bandwidth=True))
        words.append(f"{label}={log}")
    report = from_files(words, "")
    (topology,) = [topology for document in report.documents for topology in document.topologies]
    (matrix,) = topology.matrices
    assert (matrix.rows, matrix.columns) == (("GPU 0",), ("GPU 1", "GPU 6"))
    assert [cell.value for cell in matrix.cells[0]] == [142, 76]
    assert "GPU 0 to GPU 6: 76 GB/s" in html_page.page(report)
    assert "| GPU 0 | 142 | 76 |" in markdown_page.page(report)
    assert [topology for document in from_files(words[1:], "").documents for topology in document.topologies] == []


def bandwidth_of_pair(folder: Path, name: str, rate: float, devices: str, sdma: str | None = None) -> str:
    """A file of `awaken bench bw` between two GPUs of those that are visible."""
    point = logs.measurement(1 << 24, (1 << 24) / rate * 1e-3)
    point["summary"]["mean_us"] = point["summary"]["median_us"]
    point["bandwidth_MBps"] = rate * 1e3
    manifest = {f"rank_{rank}": f"node1: rank {rank} on GPU {rank} (AMD Instinct)" for rank in (0, 1)}
    manifest["environment.HIP_VISIBLE_DEVICES"] = devices
    manifest |= {} if sdma is None else {"environment.HSA_ENABLE_SDMA": sdma}
    contenders = [logs.contender(name, [point]) for name in ("awaken", "native")]
    file = folder / f"{name}.json"
    file.write_text(json.dumps(logs.bench("bw", contenders, manifest=manifest)))
    return str(file)


def test_visible_devices_of_manifests_make_a_matrix(tmp_path: Path) -> None:
    files = [bandwidth_of_pair(tmp_path, "a", 142, "4,1"), bandwidth_of_pair(tmp_path, "b", 76, "4,6")]
    report = from_files(files, "")
    (topology,) = [topology for document in report.documents for topology in document.topologies]
    assert [matrix.title for matrix in topology.matrices] == [
        f"bw by pairs of GPUs, 16 MiB, D D, {name}" for name in ("Awaken", "MPICH 5.0.2")
    ]
    for matrix in topology.matrices:
        assert (matrix.rows, matrix.columns) == (("GPU 4",), ("GPU 1", "GPU 6"))
        assert [cell.value for cell in matrix.cells[0]] == pytest.approx([142, 76])
    assert "Awaken, GPUs 4 and 6" in html_page.page(report)
    assert [document.topologies for document in from_files([files[0]], "").documents] == [[]]


@pytest.mark.parametrize(
    ("manifest", "pair"),
    [
        ({}, (0, 1)),
        ({"environment.ROCR_VISIBLE_DEVICES": "4,5,6", "environment.HIP_VISIBLE_DEVICES": "2,0"}, (6, 4)),
        ({"environment.CUDA_VISIBLE_DEVICES": "GPU-1f2e,GPU-3d4c"}, None),
        ({"environment.CUDA_VISIBLE_DEVICES": "3"}, None),
        ({"rank_1": "node2: rank 1 on GPU 0 (NVIDIA H200)"}, None),
        ({"rank_1": "node1: rank 1 on GPU 0 (NVIDIA H200)"}, None),
        ({"rank_1": "node1: rank 1 without a GPU"}, None),
    ],
)
def test_the_gpus_of_a_manifest(manifest: dict[str, str], pair: tuple[int, int] | None) -> None:
    places = {f"rank_{rank}": f"node1: rank {rank} on GPU {rank} (NVIDIA H200)" for rank in (0, 1)}
    assert pairs.of_manifest(places | manifest) == pair


def test_settings_that_differ_are_on_the_page_and_name_the_curves(tmp_path: Path) -> None:
    files = [
        bandwidth_of_pair(tmp_path, name, rate, devices, sdma)
        for name, rate, devices, sdma in (("a", 142, "0,1", "0"), ("b", 76, "0,6", "0"), ("c", 50, "0,1", None))
    ]
    report = from_files(files, "")
    text = markdown_page.page(report)
    assert "## Settings in which the files differ" in text
    assert r"| HSA\_ENABLE\_SDMA | 0 | a, b |" in text and r"| HSA\_ENABLE\_SDMA | not set | c |" in text
    assert "VISIBLE" not in text[text.index("## Settings") : text.index("## Where")], "they name the pair"
    assert r"Awaken, GPUs 0 and 1, HSA\_ENABLE\_SDMA=0, GB/s" in text
    assert r"Awaken, GPUs 0 and 1, no HSA\_ENABLE\_SDMA, GB/s" in text
    titles = [matrix.title for matrix in report.documents[0].topologies[0].matrices]
    assert titles[0].endswith("Awaken, HSA_ENABLE_SDMA=0") and len(titles) == 2, titles
    assert "Settings in which the files differ" in html_page.page(report)
    assert "Settings in which" not in markdown_page.page(from_files(files[:2], ""))


def test_a_file_that_is_given_twice_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "osu.log"
    log.write_text(logs.osu("7.4", [(8, 1.0)], title="Latency"))
    again = f"{tmp_path}/./osu.log"
    text = markdown_page.page(from_files([str(log), again], ""))
    assert "1 file" in text and "given twice, read once" in text and "(2)" not in text
    # Under two names somebody wants to see it beside itself, and what is told of it may differ.
    for words in ([f"a={log}", f"b={log}"], [f"a@2={log}", f"a@4={log}"]):
        assert len(from_files(words, "").documents) == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "osu.log").write_text(log.read_text())
    text = markdown_page.page(from_files([str(log), str(tmp_path / "other" / "osu.log")], ""))
    assert r"osu \(2\)" in text, text


def test_the_tables_of_one_log_are_told_apart(tmp_path: Path) -> None:
    one = logs.osu("7.4", [(8, 1.0), (16, 2.0)], title="Latency")
    (tmp_path / "osu.log").write_text(one + one)
    text = markdown_page.page(from_files([str(tmp_path / "osu.log")], ""))
    assert "osu, table 1 of the log" in text and "osu, table 2 of the log" in text, text


def test_topologies_keep_their_labels(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in ("a", "b")]
    for file in files:
        file.write_text(json.dumps(logs.topology(2)))
    report = from_files([f"SDMA={files[0]}", f"kernels={files[1]}"], "")
    assert "## Topology SDMA: node1" in markdown_page.page(report)
    assert "kernels: node1" in Page(html_page.page(report)).text
    speed = findings.speed(from_files([str(files[0])], "").documents)
    assert speed.headline != "Not measured" and "380 GB/s" in " ".join(speed.details)


def test_questions_that_nothing_answers_are_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "osu.log").write_text(logs.osu("7.4", [(8, 1.0)], title="Allreduce Latency"))
    report = from_files([str(tmp_path / "osu.log")], "")
    assert "\n1 file\n" in markdown_page.page(report), "nothing is known of the machine"
    aware, direct, _, choice = findings.findings(report.documents)
    assert (direct.verdict, choice.verdict) == ("unknown", "unknown")
    assert "bench" in choice.details[0] and "AWAKEN_REPORT" in direct.details[0]
    assert aware.headline == "Yes, by its logs"  # its title says -CUDA


def test_direct_is_judged_by_speed_where_no_path_is_told(tmp_path: Path) -> None:
    for factor, verdict in ((1.2, "good"), (20.0, "neutral")):
        rows = {"awaken": 100.0 * factor, "raw": 100.0, "staged": 2000.0}
        contenders = [logs.contender(name, [logs.measurement(1 << 20, time)]) for name, time in rows.items()]
        (tmp_path / "a.json").write_text(json.dumps(logs.bench("latency", contenders)))
        assert findings.direct(from_files([str(tmp_path / "a.json")], "").documents).verdict == verdict


def test_speed_tells_nothing_where_a_raw_copy_is_no_faster_than_staging(tmp_path: Path) -> None:
    for raw, staged, verdict in ((100.0, 140.0, "neutral"), (100.0, 160.0, "good")):
        rows = {"awaken": 120.0, "raw": raw, "staged": staged}
        contenders = [logs.contender(name, [logs.measurement(1 << 20, time)]) for name, time in rows.items()]
        (tmp_path / "a.json").write_text(json.dumps(logs.bench("latency", contenders)))
        assert findings.direct(from_files([str(tmp_path / "a.json")], "").documents).verdict == verdict


def test_crossover_names_a_side_only_beyond_the_bands(tmp_path: Path) -> None:
    times = {"awaken": [10.0, 20.0, 40.0], "xccl": [15.0, 20.1, 30.0]}
    contenders = [
        logs.contender(name, [logs.measurement(8 << index, time) for index, time in enumerate(values)])
        for name, values in times.items()
    ]
    (tmp_path / "a.json").write_text(json.dumps(logs.bench("allreduce", contenders)))
    (found,) = findings.crossovers(from_files([str(tmp_path / "a.json")], "").documents)
    assert [stretch.winner for stretch in found.stretches] == ["mpi", "", "ccl"]
    assert findings.in_words(found) == "Awaken to 8 B, level to 16 B, then NCCL"


def test_bands_of_ranks_and_of_calls_decide_nothing(tmp_path: Path) -> None:
    """Half the value to twice it, as ranks and calls differ: one side that takes 1.5 times as long is slower."""
    (tmp_path / "imb.log").write_text(logs.imb("Allreduce", [(8, 10.0), (16, 15.0)], ranks=4))
    nccl = logs.nccl_tests("all_reduce_perf", [(8, 15.0), (16, 10.0)], ranks=4, per_iteration=True)
    (tmp_path / "nccl.log").write_text(nccl)
    files = [f"imb@:D={tmp_path}/imb.log", str(tmp_path / "nccl.log")]
    out_of_place, _ = findings.crossovers(from_files(files, "").documents)
    assert [stretch.winner for stretch in out_of_place.stretches] == ["mpi", "ccl"]


@pytest.mark.parametrize(
    ("dialect", "told"),
    [("osu", "osu@4"), ("imb", "imb@:D"), ("osu 7.4 without its title's -CUDA", "osu@4:D")],
)
def test_logs_of_mpi_and_nccl_are_held_against_each_other(tmp_path: Path, dialect: str, told: str) -> None:
    """OSU's do not tell the number of ranks, IMB's not the kind of memory: the user does, and is told how."""
    rows = [(8, 10.0), (1024, 20.0), (1 << 20, 300.0)]
    text = logs.imb("Allreduce", rows, ranks=4)
    if dialect.startswith("osu"):
        text = logs.osu("7.4", rows, title="Allreduce Latency")
    if "without" in dialect:
        text = text.replace("-CUDA", "")
    name, _, ending = told.partition("@")
    (tmp_path / f"{name}.log").write_text(text)
    (tmp_path / "nccl.log").write_text(
        logs.nccl_tests("all_reduce_perf", [(8, 15.0), (1024, 20.1), (1 << 20, 200.0)], ranks=4)
    )
    files = [str(tmp_path / f"{name}.log"), str(tmp_path / "nccl.log")]
    untold = findings.choice(from_files(files, "").documents)
    assert untold.verdict == "unknown"
    form = f"`{name}@{'RANKS' if '4' in ending else ''}{':D' if 'D' in ending else ''}=FILE`"
    assert form in untold.details[0]

    report = from_files([f"{told}={files[0]}", files[1]], "")
    found = findings.crossovers(report.documents)
    assert {(one.test, one.ranks, one.mpi) for one in found} == {("allreduce", 4, name)}
    assert [stretch.winner for stretch in found[0].stretches] == ["mpi", "", "ccl"]
    assert "Allreduce, 4 ranks" in html_page.page(report)
    # Calls of nccl-tests are queued, MPI's are waited for; with -z they are alike.
    caution = "NCCL/RCCL's calls were queued one behind the other, and each of "
    assert caution in findings.choice(report.documents).details[0]
    assert html_page.page(report).count("s calls were queued one behind the other") == 2
    waiting = (tmp_path / "nccl.log").read_text().replace("# nThread", "# Blocking Enabled: wait\n# nThread")
    (tmp_path / "waiting.log").write_text(waiting)
    alike = from_files([f"{told}={files[0]}", str(tmp_path / "waiting.log")], "")
    assert [one.caution for one in findings.crossovers(alike.documents)] == ["", ""]
    assert findings.crossovers(from_files([f"{told.replace('4', '8')}={files[0]}", files[1]], "").documents) == (
        [] if "4" in told else found
    )


def test_what_a_log_tells_is_not_overruled(tmp_path: Path) -> None:
    (tmp_path / "imb.log").write_text(logs.imb("Allreduce", [(8, 10.0)], ranks=4))
    (tmp_path / "osu.log").write_text(logs.osu("7.0", [(8, 10.0)]))
    words = [f"a@16:MD={tmp_path / 'imb.log'}", f"b@16:MD={tmp_path / 'osu.log'}"]
    imb, osu = from_files(words, "").series
    assert (imb.ranks, imb.buffers, imb.implementation) == (4, "MD", "a")
    assert (osu.ranks, osu.buffers) == (2, "D H")


def test_what_is_missing_is_not_zero(tmp_path: Path) -> None:
    """A size that one contender lacks: no mark in the chart, an empty cell in the table, no ratio."""
    contenders = [
        logs.contender("awaken", [logs.measurement(size, 10.0) for size in (8, 16, 32)]),
        logs.contender("staged", [logs.measurement(size, 20.0) for size in (8, 32)]),
    ]
    (tmp_path / "a.json").write_text(json.dumps(logs.bench("latency", contenders)))
    report = report_on([tmp_path / "a.json"])
    source = html_page.page(report)
    assert "staged, 8 B: 20 µs" in source and "staged, 16 B" not in source
    assert '<td class="number">16</td><td class="number">10.00</td><td class="number"></td>' in source
    assert "| 16 B | 10 |  |" in markdown_page.page(report)


def test_emulated_gpus_are_announced(tmp_path: Path) -> None:
    value = logs.bench("latency", [logs.contender("awaken", [logs.measurement(8, 1.0)])])
    value["manifest"]["environment.AWAKEN_EMULATE"] = "cuda:2"
    for manifest, announced in ((value, True), ({**value, "manifest": {}}, False)):
        (tmp_path / "a.json").write_text(json.dumps(manifest))
        report = report_on([tmp_path / "a.json"])
        assert ("emulated GPUs" in html_page.page(report)) is announced
        assert ("emulated GPUs" in markdown_page.page(report)) is announced


SPEED = re.compile(r"[\d.]+ (ns|µs|ms|[kMG]B/s)")


def test_emulated_gpus_tell_no_speeds(tmp_path: Path) -> None:
    """What ran, by which way and whether it was right; a real file beside keeps its curve."""
    sizes = [logs.measurement(size, 12.5) for size in (8, 4096)]
    contenders = [logs.contender(name, sizes) for name in ("awaken", "xccl")]
    contenders.append(logs.contender("raw", [{**one, "validated": False} for one in sizes]))
    emulated = {
        "bench": logs.bench("allreduce", contenders, manifest={"environment.AWAKEN_EMULATE": "cuda:2"}),
        "doctor": {**logs.doctor(native="crash"), "emulated": True},
        "topo": {**logs.topology(2), "emulated": True},
    }
    for name, value in emulated.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    (tmp_path / "pingpong.log").write_text(
        "Transfer size (B):          8, Transfer Time (s):     0.000003537, Bandwidth (GB/s):     0.002106588\n" * 2
    )
    paths = [*(tmp_path / f"{name}.json" for name in emulated), tmp_path / "pingpong.log"]
    report = report_on(paths)
    assert [one.headline for one in findings.findings(report.documents)[2:]] == [
        "Yes, where they were checked",
        "Emulated GPUs do not show it",
    ]
    for page in (html_page.page(report), markdown_page.page(report)):
        assert not SPEED.search(page), SPEED.search(page)
        assert "What ran on emulated GPUs" in page and "8 B to 4 KiB" in page and "MPI or NCCL" not in page
        assert "NV18" in page and "device memory" in page
    assert [row[2:] for row in findings.what_ran(report.documents)[:3]] == [
        ("Awaken", "8 B to 4 KiB", "right"),
        ("NCCL", "8 B to 4 KiB", "right"),
        ("raw copy", "8 B to 4 KiB", "not checked"),
    ]
    (tmp_path / "real.json").write_text(json.dumps(logs.bench("latency", contenders[:1])))
    report = report_on([*paths, tmp_path / "real.json"])
    assert "12.5 µs one way" in findings.findings(report.documents)[2].details[0]
    assert "Awaken, 8 B: 12.5 µs" in html_page.page(report)


@pytest.mark.parametrize(("wrong", "verdict"), [(0, "good"), (3, "bad")])
def test_emulated_gpus_tell_whether_data_are_right(wrong: int, verdict: str, tmp_path: Path) -> None:
    value = logs.bench("latency", [logs.contender("awaken", [logs.measurement(8, 1.0, errors=wrong)])])
    value["manifest"]["environment.AWAKEN_EMULATE"] = "cuda:2"
    (tmp_path / "a.json").write_text(json.dumps(value))
    report = report_on([tmp_path / "a.json"])
    assert findings.findings(report.documents)[2].verdict == verdict
    assert ("WRONG DATA" in markdown_page.page(report)) is bool(wrong)


def test_wrong_data_are_the_first_thing_said(tmp_path: Path) -> None:
    contenders = [logs.contender("awaken", [logs.measurement(8, 1.0), logs.measurement(16, 1.0, errors=3)])]
    (tmp_path / "a.json").write_text(json.dumps(logs.bench("latency", contenders)))
    report = report_on([tmp_path / "a.json"])
    assert findings.aware(report.documents).verdict == "bad"
    assert "WRONG DATA at 16 B" in html_page.page(report)


def test_nccl_alone_says_nothing_about_an_mpi(tmp_path: Path) -> None:
    for wrong, verdict in ((0, "unknown"), (3, "bad")):
        (tmp_path / "nccl.log").write_text(logs.nccl_tests("all_reduce_perf", [(8, 5.0), (16, 6.0)], wrong=wrong))
        report = report_on([tmp_path / "nccl.log"])
        aware, _, speed, choice = findings.findings(report.documents)
        assert (aware.verdict, aware.headline) == ("unknown", "Not measured")
        assert speed.headline == "Not measured"
        assert choice.verdict == verdict
        assert ("Wrong data: allreduce of NCCL/RCCL" in markdown_page.page(report)) is bool(wrong)


def test_logs_that_are_not_of_an_mpi_say_nothing_about_one(tmp_path: Path) -> None:
    (tmp_path / "ucc.log").write_text(logs.ucc_perftest("Allreduce", [(8, 5.0), (16, 6.0)]))
    (tmp_path / "old.log").write_text(logs.first_nccl_tests([(8, 100.0)], difference=1.0, failed=2))
    for file in ("ucc.log", "old.log"):
        report = report_on([tmp_path / file])
        aware, direct, speed, choice = findings.findings(report.documents)
        assert [one.headline for one in (aware, direct, speed)] == ["Not measured"] * 3
        wrong = "Wrong data: a test without a name of NCCL/RCCL"
        assert choice.headline == ("Not measured side by side" if file == "ucc.log" else wrong)
    page = markdown_page.page(report_on([tmp_path / "ucc.log"]))
    assert "| size | UCC, µs |" in page


def test_pasted_tables_of_imb_answer_no_more_than_they_tell(tmp_path: Path) -> None:
    (tmp_path / "pasted.txt").write_text(logs.pasted(logs.imb("PingPong", [(8, 1.0), (1 << 20, 50.0)]), "PingPong"))
    aware, direct, speed, _ = findings.findings(report_on([tmp_path / "pasted.txt"]).documents)
    assert [one.headline for one in (aware, direct)] == ["Not measured"] * 2
    assert len(speed.details) == 2 and all("memory of unknown kind" in detail for detail in speed.details)


def test_memory_that_is_not_told_is_not_called_that_of_the_host(tmp_path: Path) -> None:
    osu = logs.osu("7.4", [(8, 1.0), (1 << 20, 50.0)])
    imb = logs.imb("PingPong", [(8, 1.0), (1 << 20, 50.0)]).replace("MPI-1 part", "MPI-1 part (GPU)")
    assert "(GPU)" in imb
    for text in (osu, imb):
        (tmp_path / "a.log").write_text(text)
        speed = findings.speed(report_on([tmp_path / "a.log"]).documents)
        assert all("memory of unknown kind" in detail for detail in speed.details)
        for letter, memory in (("D", "device memory"), ("H", "host memory")):
            told = findings.speed(from_files([f"a@:{letter}={tmp_path / 'a.log'}"], "").documents)
            assert len(told.details) == 2 and all(memory in detail for detail in told.details)


@pytest.mark.parametrize("index", range(11))
def test_each_kind_of_file_makes_a_page_by_itself(tmp_path: Path, index: int) -> None:
    report = report_on([results(tmp_path)[index]])
    assert "</html>" in html_page.page(report)
    assert markdown_page.page(report).startswith("# Awaken report\n")


def test_a_part_that_cannot_be_made_costs_no_other(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("on <purpose>")

    monkeypatch.setattr(html_page, "_timeline", fail)
    monkeypatch.setattr(markdown_page, "_matrix", fail)
    for page in (html_page.page(report), html_page.page(report)):
        assert 'id="timeline"' not in page and 'id="topology"' in page and 'id="manifest"' in page
        assert "ZeroDivisionError: on &lt;purpose&gt;" in page
    assert [title for title, _ in report.problems] == ["Timeline, trace"]
    assert "## The doctor" in markdown_page.page(report)
    assert [title for title, _ in report.problems] == ["Timeline, trace", "topology"]


@pytest.mark.parametrize("case", ["interval below zero", "no time at all", "no GPUs"])
def test_figures_that_are_none_leave_the_page_whole(tmp_path: Path, case: str) -> None:
    def contenders(test: str, us: float, low: float) -> dict[str, Any]:
        one = logs.measurement(8, us)
        one["summary"]["median_95_us"] = [low, 11.0]
        one["bandwidth_MBps"] = 1.0
        both = [logs.measurement(4, 10.0), one, logs.measurement(16, 10.0)]
        return logs.bench(test, [logs.contender(name, both) for name in ("awaken", "staged")])

    files = {
        "interval below zero": contenders("bw", 10.0, -1.0),
        "no time at all": contenders("latency", 5e-324, 5e-324),
        "no GPUs": {**logs.topology(2), "gpus": []},
    }
    (tmp_path / "hostile.json").write_text(json.dumps(files[case]))
    report = from_files([str(path) for path in (tmp_path / "hostile.json", *results(tmp_path))], "")
    source = html_page.page(report)
    assert report.problems == []
    assert "Latency, 2 ranks" in source and 'id="topology"' in source


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_json_with_anything_in_any_place_makes_a_whole_page_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    (tmp_path / "a.json").write_text(json.dumps(changed_json.changed(data, most=3)))
    report = from_files([str(tmp_path / "a.json")], "")
    refused = len(report.problems)
    for page in (html_page.page(report), markdown_page.page(report)):
        assert page
    assert len(report.problems) == refused, report.problems


# ----------------------------------------------------------------------------------------------- what must not be there


def test_nothing_leaves_the_page(report: Report) -> None:
    source = html_page.page(report)
    page = Page(source)
    assert not re.findall(r"https?:|//\w|@import|url\(", source)
    assert not {tag for tag, _ in page.elements} & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    }
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or name in ("src", "srcset", "style") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a for tag, a in page.elements if tag == "meta" and a.get("http-equiv"))["content"]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy


def hostile(value: Any) -> Any:
    """The value with all texts replaced, but for those that decide how it is read."""
    if isinstance(value, dict):
        kept = ("schema", "ph", "kind", "name" if "measurements" in value else "")
        return {
            key: inner if key in kept and isinstance(inner, str) else hostile(inner) for key, inner in value.items()
        }
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return HOSTILE if isinstance(value, str) else value


def test_foreign_text_stays_text(tmp_path: Path) -> None:
    files = results(tmp_path)
    for path in files:
        if path.suffix == ".json":
            path.write_text(json.dumps(hostile(json.loads(path.read_text()))))
    (tmp_path / "osu.log").write_text(
        f"# OSU MPI {HOSTILE} Test v7.4\n# Size       Avg Latency(us)\n8   1.00\n16   2.00\n32   {HOSTILE}\n"
    )
    words = [f"{HOSTILE.replace('/', '')}={path}" for path in files]
    report = from_files(words, HOSTILE)
    report.problems.append((HOSTILE, HOSTILE))
    source = html_page.page(report)
    page = Page(source)
    assert not {tag for tag, _ in page.elements} & {"script", "img"}
    assert all(not name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert source.count("<script") == 0 and "alert(1)" in page.text
    for chart in re.findall(r"<svg.*?</svg>", source, re.DOTALL):
        ElementTree.fromstring(chart)
    markdown = markdown_page.page(report)
    assert not re.search(r"(?<!\\)<", markdown)


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    files = results(tmp_path)
    made = []
    for seed in ("1", "2"):
        for suffix in ("html", "md"):
            output = tmp_path / f"page-{seed}.{suffix}"
            command = [sys.executable, "-m", "awaken", "report", *map(str, files), "-o", str(output)]
            package = Path(html_page.__file__).parents[1]
            environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(package), "TZ": f"UTC+{seed}"}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=harness.HANG_S, check=False
            )
            assert done.returncode == 0, done.stderr
            made.append(output.read_bytes())
    assert made[0] == made[2] and made[1] == made[3]
    assert len(made[0]) < 400_000


# -------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.size(0), "0 B"),
        (units.size(8), "8 B"),
        (units.size(1536), "1.5 KiB"),
        (units.size(1 << 30), "1 GiB"),
        (units.time(0.25), "250 ns"),
        (units.time(999.9), "1 ms"),
        (units.time(14.04), "14 µs"),
        (units.time(2.5e6), "2.5 s"),
        (units.bandwidth(0.0000123), "12.3 kB/s"),
        (units.bandwidth(0.5), "500 MB/s"),
        (units.bandwidth(395.04), "395 GB/s"),
        (units.count(1234567), "1\u202f234\u202f567"),
    ],
)
def test_figures_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected
