# SPDX-License-Identifier: Apache-2.0
"""The readers that people have for the output of the OSU micro-benchmarks, applied to ours.

What they must find is what the same run writes with --json. The readers:

  ReFrame   the OSU checks of its hpctestlib: the value after one message size, at the beginning of a line.
  Ramble    its application "osu-micro-benchmarks", which Benchpark inherits: a header line says which kind of table
            follows, and an expression for that kind takes the rows apart; by default with -z.
  columns   scripts that make CSV of it: headers are parted by two blanks or more, values by any.
  awk       the one-liners: what does not begin with # and is not empty is a row.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import pytest

POINT_TO_POINT = ("-m", "1:8192", "-i", "20", "-x", "2")
COLLECTIVE = ("-m", "4:4096", "-i", "20", "-x", "2")


@dataclass(frozen=True)
class Bench:
    """One run: what it printed, and the same in JSON."""

    text: str
    measurements: list[dict[str, Any]]

    def column(self, key: str) -> list[str]:
        """One value of all sizes, as a table with two decimals shows it."""
        return [f"{measurement[key]:.2f}" for measurement in self.measurements]

    def overlap(self, key: str) -> list[str]:
        return [f"{measurement['overlap'][key]:.2f}" for measurement in self.measurements]

    def percentile(self, index: int) -> list[str]:
        return [f"{measurement['percentiles'][index]:.2f}" for measurement in self.measurements]

    @property
    def sizes(self) -> list[str]:
        return [str(measurement["size"]) for measurement in self.measurements]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    mpi = harness.mpis()["mpich"]
    assert not mpi.missing, mpi.missing

    def run(name: str, *words: str, ranks: int = 2) -> Bench:
        file = tmp_path_factory.mktemp("bench") / "run.json"
        command = [mpi.mpiexec, "-n", str(ranks), harness.awaken(), "bench", name, *words, "--native", "--json", file]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWAKEN")}
        done = subprocess.run(
            [str(word) for word in command],
            env={**environment, **mpi.environment},
            capture_output=True,
            text=True,
            timeout=harness.HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(file.read_text())
        assert (report["schema"], report["version"]) == ("awaken-bench", 1)
        (run,) = report["runs"]
        (contender,) = run["contenders"]
        assert contender["measurements"]
        return Bench(done.stdout, contender["measurements"])

    return run


# ------------------------------------------------------------------------------------------------------------- ReFrame


@pytest.mark.parametrize(
    ("name", "size", "words", "key"),
    [
        ("alltoall", 8, ("-m", "8"), "average_us"),
        ("allreduce", 8, ("-m", "8"), "average_us"),
        ("latency", 8, ("-m", "8"), "average_us"),
        ("bw", 4194304, ("-m", "4194304"), "bandwidth_MBps"),
    ],
)
def test_reframe_finds_the_value_of_its_size(bench: Any, name: str, size: int, words: Sequence[str], key: str) -> None:
    run = bench(name, *words, "-x", "2", "-i", "10")
    assert re.search(rf"^{size}", run.text, re.MULTILINE)
    found = re.search(rf"^{size}\s+(\S+)", run.text, re.MULTILINE)
    assert found is not None
    (measurement,) = [one for one in run.measurements if one["size"] == size]
    assert found.group(1) == f"{measurement[key]:.2f}"


# -------------------------------------------------------------------------------------------------------------- Ramble

NUMBER = r"[0-9\.]+"
TAIL_LATENCY = r"\s+P50 Tail Lat\(us\)\s+P90 Tail Lat\(us\)\s+P99 Tail Lat\(us\)\s*$"
TAIL_BANDWIDTH = r" P50 Tail BW\(MB/s\) P90 Tail BW\(MB/s\) P99 Tail BW\(MB/s\)\s*$"

RAMBLE_HEADERS = {
    "single_lat": r"#\s+Size\s+Latency \(us\)\s*$",
    "single_tail_lat": r"# Size\s+Latency \(us\)" + TAIL_LATENCY,
    "avg_lat": r"#\s+Size\s+Avg Latency\(us\)\s*$",
    "avg_tail_lat": r"# Size\s+Avg Latency\(us\)" + TAIL_LATENCY,
    "multi_lat": r"#\s+Size\s+Overall\(us\)\s+Compute\(us\)\s+Pure Comm\.\(us\)\s+Overlap\(%\)\s*$",
    "multi_tail_lat": (
        r"# Size\s+Overall\(us\)\s+Compute\(us\)\s+Pure Comm\.\(us\)\s+Overlap\(%\)"
        r"  P50 Tail Lat\(us\)  P90 Tail Lat\(us\)  P99 Tail Lat\(us\)\s*$"
    ),
    "single_bw": r"# Size\s+Bandwidth \(MB/s\)\s*$",
    "single_tail_bw": r"# Size\s+Bandwidth \(MB/s\)" + TAIL_BANDWIDTH,
    "multi_bw": r"# Size\s+MB/s\s+Messages/s\s*$",
    "multi_tail_bw": r"# Size\s+MB/s\s+Messages/s" + TAIL_BANDWIDTH,
    "single_avg_lat": r"# Avg Latency\(us\)\s*$",
    "single_avg_tail_lat": r"# Avg Latency\(us\)" + TAIL_LATENCY,
}


def ramble_kind(text: str) -> str:
    """The kind of table: the first header line that one of the expressions matches, from its beginning."""
    for line in text.splitlines():
        kinds = [kind for kind, header in RAMBLE_HEADERS.items() if re.match(header, line)]
        if kinds:
            assert len(kinds) == 1
            return kinds[0]
    raise AssertionError("Ramble finds no header in:\n" + text)


def ramble_rows(text: str, *groups: str) -> list[tuple[str, ...]]:
    """The rows that consist of as many numbers as there are groups, line by line."""
    expression = re.compile(r"\s*" + r"\s+".join(rf"(?P<{group}>{NUMBER})" for group in groups) + r"\s*$")
    found = [expression.match(line) for line in text.splitlines()]
    return [match.groups() for match in found if match]


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        ("latency", "avg_lat", "average_us"),
        ("multi_lat", "avg_lat", "average_us"),
        ("allreduce", "avg_lat", "average_us"),
        ("alltoall", "avg_lat", "average_us"),
        ("bcast", "avg_lat", "average_us"),
        ("bw", "single_bw", "bandwidth_MBps"),
        ("bibw", "single_bw", "bandwidth_MBps"),
    ],
)
def test_ramble_reads_tables_of_one_value(bench: Any, name: str, kind: str, key: str, tail: bool) -> None:
    collective = name in ("allreduce", "alltoall", "bcast")
    run = bench(name, *(COLLECTIVE if collective else POINT_TO_POINT), *(["-z"] if tail else []))
    assert ramble_kind(run.text) == (re.sub("_(?=lat|bw)", "_tail_", kind) if tail else kind)
    expected = [run.sizes, run.column(key)]
    groups = ["msg_size", "value"]
    if tail:
        expected += [run.percentile(index) for index in range(3)]
        groups += ["p50", "p90", "p99"]
    assert ramble_rows(run.text, *groups) == list(zip(*expected))


@pytest.mark.parametrize("tail", [False, True])
def test_ramble_reads_message_rates(bench: Any, tail: bool) -> None:
    run = bench("mbw_mr", *POINT_TO_POINT, *(["-z"] if tail else []))
    assert ramble_kind(run.text) == ("multi_tail_bw" if tail else "multi_bw")
    expected = [run.sizes, run.column("bandwidth_MBps"), run.column("message_rate_per_s")]
    groups = ["msg_size", "avg_bw", "msg_rate"]
    if tail:
        expected += [run.percentile(index) for index in range(3)]
        groups += ["p50_bw", "p90_bw", "p99_bw"]
    assert ramble_rows(run.text, *groups) == list(zip(*expected))


@pytest.mark.parametrize("name", ["iallreduce", "ialltoall"])
def test_ramble_knows_nonblocking_collectives_by_their_headers(bench: Any, name: str) -> None:
    run = bench(name, *COLLECTIVE)
    assert ramble_kind(run.text) == "multi_lat"
    keys = ("overall_us", "compute_us", "pure_us", "overlap_percent")
    rows = ramble_rows(run.text, "msg_size", "overall", "compute", "comm", "overlap")
    assert rows == list(zip(run.sizes, *(run.overlap(key) for key in keys)))
    assert ramble_kind(bench(name, *COLLECTIVE, "-z").text) == "multi_tail_lat"


def test_ramble_reads_barriers(bench: Any) -> None:
    run = bench("barrier", "-i", "20", "-x", "2")
    assert ramble_kind(run.text) == "single_avg_lat"
    assert ramble_rows(run.text, "avg_lat") == list(zip(run.column("average_us")))
    assert ramble_kind(bench("barrier", "-i", "20", "-x", "2", "-z").text) == "single_avg_tail_lat"


def test_ramble_finds_datatype_and_version(bench: Any) -> None:
    text = bench("latency", *POINT_TO_POINT).text
    assert re.findall(r"# Datatype: (?P<type>\S+)\.", text) == ["MPI_CHAR"]
    assert re.findall(r"# OSU.*Test (?P<ver>v[0-9\.]+)", text) == ["v7.5"]
    assert re.findall(r"# Datatype: (?P<type>\S+)\.", bench("allreduce", *COLLECTIVE).text) == ["MPI_INT"]


def test_rambles_context_is_the_message_size(bench: Any) -> None:
    """Its expression for that is not anchored: no header line may have two numbers that it takes for a row."""
    run = bench("latency", *POINT_TO_POINT)
    found = [re.match(r"(?P<msg_size>[0-9.]+)+\s+(?P<fom>[0-9.]+)", line) for line in run.text.splitlines()]
    assert [match.groups() for match in found if match] == list(zip(run.sizes, run.column("average_us")))


# --------------------------------------------------------------------------------------------------------- CSV readers

FULL = ("average_us", "minimum_us", "maximum_us")
FULL_HEADER = ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations"]
OVERLAP_HEADER = ["Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)"]
FULL_OVERLAP = {
    "Overall(us)": "overall_us",
    "Compute(us)": "compute_us",
    "Coll. Init(us)": "initiate_us",
    "MPI_Test(us)": "test_us",
    "MPI_Wait(us)": "wait_us",
    "Pure Comm.(us)": "pure_us",
    "Min Comm.(us)": "pure_minimum_us",
    "Max Comm.(us)": "pure_maximum_us",
    "Overlap(%)": "overlap_percent",
}


def columns(text: str) -> dict[str, list[str]]:
    """A table by its header: the line before the first one that begins with a number."""
    lines = text.splitlines()
    first_row = next(i for i, line in enumerate(lines) if re.match(r"\s*\d", line))
    names = re.split(r"\s{2,}", lines[first_row - 1].removeprefix("#").strip())
    rows = [line.split() for line in lines[first_row:] if line]
    assert {len(row) for row in rows} == {len(names)}
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


@pytest.mark.parametrize("name", ["allreduce", "alltoall", "allreduce_persistent", "neighbor_allgather"])
def test_columns_of_full_collectives(bench: Any, name: str) -> None:
    # A ring of two ranks would have each neighbour twice.
    run = bench(name, *COLLECTIVE, "-f", ranks=3 if name.startswith("neighbor") else 2)
    table = columns(run.text)
    assert list(table) == ["Size", *FULL_HEADER]
    assert table["Size"] == run.sizes
    for header, key in zip(FULL_HEADER, FULL):
        assert table[header] == run.column(key)
    assert table["Iterations"] == [str(measurement["iterations"]) for measurement in run.measurements]
    assert set(table["Iterations"]) == {"20"}


def test_columns_of_full_nonblocking_collectives(bench: Any) -> None:
    run = bench("iallreduce", *COLLECTIVE, "-f")
    table = columns(run.text)
    assert list(table) == ["Size", *FULL_OVERLAP]
    for header, key in FULL_OVERLAP.items():
        assert table[header] == run.overlap(key)


def test_columns_with_validation(bench: Any) -> None:
    run = bench("bibw", *POINT_TO_POINT, "-c")
    table = columns(run.text)
    assert list(table) == ["Size", "Bandwidth (MB/s)", "Validation"]
    assert table["Bandwidth (MB/s)"] == run.column("bandwidth_MBps")
    assert set(table["Validation"]) == {"Pass"}
    assert all(measurement["validated"] for measurement in run.measurements)


def test_columns_of_version_7_0(bench: Any) -> None:
    run = bench("latency", *POINT_TO_POINT, "--omb-version", "7.0")
    assert ramble_kind(run.text) == "single_lat"
    assert columns(run.text) == {"Size": run.sizes, "Latency (us)": run.column("average_us")}


@pytest.mark.skipif(shutil.which("awk") is None, reason="there is no awk")
def test_awk_makes_csv(bench: Any, tmp_path: Path) -> None:
    run = bench("mbw_mr", *POINT_TO_POINT)
    file = tmp_path / "mbw_mr.txt"
    file.write_text(run.text)
    awk = ["awk", "-v", "OFS=,", "!/^#/ && NF { $1 = $1; print }", str(file)]
    done = subprocess.run(awk, capture_output=True, text=True, timeout=harness.HANG_S, check=True)
    values = zip(run.sizes, run.column("bandwidth_MBps"), run.column("message_rate_per_s"))
    assert done.stdout.splitlines() == [",".join(row) for row in values]
