# SPDX-License-Identifier: Apache-2.0
"""Collective benchmarks: each collective in each form runs, checks its data, notices damage, prints OMB's columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import pytest

PLAIN = ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
ROOTED = ("bcast", "gather", "gatherv", "scatter", "scatterv")
REDUCING = ("allreduce", "reduce", "reduce_scatter")
BLOCKING = (*PLAIN, *ROOTED, *REDUCING, "reduce_scatter_block")
NEIGHBORHOOD = tuple(f"neighbor_{kind}" for kind in PLAIN)
NAMES = (
    *BLOCKING,
    "barrier",
    *(f"i{name}" for name in (*BLOCKING, "barrier")),
    *(f"{name}_persistent" for name in (*PLAIN, *ROOTED, *REDUCING, "barrier")),
    *NEIGHBORHOOD,
    *(f"i{name}" for name in NEIGHBORHOOD),
    "isendrecv",
)

SIZES = ("-m", "4:65536", "--step-factor", "128")
"""The smallest size of all types, one that no number of ranks divides evenly into its neighbours, and a large one."""
ROWS = ["4", "512", "65536"]
FEW = ("-i", "2", "-x", "1", "-u", "0")


@dataclass(frozen=True)
class Setting:
    """Where a benchmark runs, and on which memory."""

    mpi: str
    ranks: int
    emulate: str = ""
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.mpi, str(self.ranks), *(part for part in (self.emulate, *self.words) if part[:1] != "-")])


HOST = Setting("mpich", 3)
SETTINGS = (
    Setting("mpich", 4, "cuda:2", ("-d", "cuda")),
    Setting("openmpi", 2, "hip:2", ("-d", "rocm")),
    Setting("mpi5", 2, "cuda:2", ("-d", "cuda")),
    Setting("openmpi", 4, "cuda:2", ("-d", "cuda", "--buffers", "D,H,P,MD")),
    Setting("mpich", 2, "hip:2", ("-d", "rocm", "--buffers", "R,D")),
    Setting("mpi5", 3),
    Setting("openmpi", 4),
)


def rows_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if re.match(r"\d+\s", line)]


def header_of(output: str) -> list[str]:
    (line,) = (line for line in output.splitlines() if line.startswith("# Size "))
    return re.split(r"\s{2,}", line.removeprefix("# "))


Bench = Callable[..., harness.Result]


@pytest.fixture(scope="session")
def bench(mpi_named: Callable[[str], harness.Mpi], awaken_program: Path) -> Bench:
    """Runs the benchmark NAME in a setting, and returns what came of it, good or bad."""
    assert awaken_program.exists()
    runner = harness.build_dir() / "lib" / "awaken" / "bench" / "awaken-bench"
    assert runner.exists(), f"{runner} does not exist: run `make test`, or set TEST_BUILD_DIR"

    def run(setting: Setting, name: str, *words: str) -> harness.Result:
        mpi = mpi_named(setting.mpi)
        environment = {}
        if setting.mpi == "mpi5":
            environment["AWAKEN_MPI"] = str(mpi.mpiexec.parent.parent / "lib" / "libmpi_abi.so.1")
        return harness.run_ranks(
            mpi,
            setting.ranks,
            [runner, name, *setting.words, *words],
            with_awaken=bool(setting.emulate),
            emulate=setting.emulate or None,
            environment=environment,
            timeout=harness.HANG_S,
        )

    return run


def settings_for(name: str) -> list[Any]:
    """One of the settings by default, the others with --long; neighbours in a ring take three ranks."""
    first = NAMES.index(name) % len(SETTINGS)
    usable = [*SETTINGS[first:], *SETTINGS[:first]]
    if "neighbor" in name:
        usable = [setting for setting in usable if setting.ranks >= 3]
    if "barrier" in name:  # has no buffers
        usable = [setting for setting in usable if "--buffers" not in setting.words]
    return [
        pytest.param(name, setting, id=f"{name}-{setting}", marks=[] if i == 0 else [pytest.mark.long])
        for i, setting in enumerate(usable)
    ]


@pytest.mark.parametrize(("name", "setting"), [case for name in NAMES for case in settings_for(name)])
def test_runs_checks_and_notices_damage(bench: Bench, name: str, setting: Setting) -> None:
    barrier = "barrier" in name
    words = FEW[:4] if barrier else (*SIZES, *FEW, "-c")
    result = bench(setting, name, *words, "-f", "--self-test")
    result.check()
    assert "self-test: corrupted data was noticed" in result.output, result.explain()
    rows = rows_of(result.output)
    if barrier:
        (line,) = (
            line for line in result.output.splitlines() if re.match(r"\s*\d+\.\d\d\s", line) and "awaken" not in line
        )
        assert all(float(figure) >= 0 for figure in line.split()), result.explain()
        return
    assert [row[0] for row in rows] == ROWS, result.explain()
    header = header_of(result.output)
    assert header[-1] == "Validation"
    for row in rows:
        assert len(row) == len(header), result.explain()
        assert row[-1] == "Pass", result.explain()
        if name.startswith("i"):
            overall, _, initiation, testing, wait, pure, low, high, overlap = map(float, row[1:-1])
            assert overall > 0 and min(initiation, testing, wait) >= 0, result.explain()
            assert low <= pure <= high and 0 <= overlap <= 100, result.explain()
        else:
            average, low, high, iterations = map(float, row[1:-1])
            assert 0 < low <= average <= high and iterations == 2, result.explain()


def passes(bench: Bench, setting: Setting, name: str, *words: str, sizes: tuple[str, ...] = SIZES) -> harness.Result:
    """Runs, and expects nothing but rows that pass."""
    result = bench(setting, name, *sizes, *FEW, "-c", *words)
    result.check()
    rows = rows_of(result.output)
    assert rows and all("Pass" in row for row in rows), result.explain()
    return result


def refused(bench: Bench, setting: Setting, name: str, *words: str) -> str:
    """Runs, and expects one line that says why not, from one rank."""
    result = bench(setting, name, *words)
    assert result.status != 0 and not [p for p in result.problems if "left over" not in p], result.explain()
    lines = [line for line in result.output.splitlines() if "awaken" in line]
    assert len(lines) == 1, result.explain()
    return lines[0]


IN_PLACE = tuple(name for name in BLOCKING if name != "bcast")
IN_PLACE_DEFAULT = (
    "allgatherv",
    "ialltoallw",
    "allreduce_persistent",
    "reduce_scatter",
    "gatherv",
    "iscatter",
    "reduce",
)


@pytest.mark.parametrize(
    "name",
    [
        *IN_PLACE_DEFAULT,
        *(
            pytest.param(name, marks=pytest.mark.long)
            for base in IN_PLACE
            for name in (base, f"i{base}", f"{base}_persistent")
            if name in NAMES and name not in IN_PLACE_DEFAULT
        ),
    ],
)
def test_in_place(bench: Bench, name: str) -> None:
    passes(bench, SETTINGS[(NAMES.index(name)) % 5], name, "-l")


@pytest.mark.parametrize("root", ["fixed:1", "rotate"])
@pytest.mark.parametrize(
    "name", ["gather", "iscatterv", "reduce_persistent", *(pytest.param(n, marks=pytest.mark.long) for n in ROOTED)]
)
def test_roots(bench: Bench, name: str, root: str) -> None:
    setting = SETTINGS[0] if root == "rotate" else SETTINGS[3]
    passes(bench, setting, name, "-k", root)


def test_a_root_that_is_not_there(bench: Bench) -> None:
    line = refused(bench, HOST, "gather", "-k", "fixed:3", *FEW)
    assert "fixed:3" in line and "0 to 2" in line


@pytest.mark.parametrize("name", ["allreduce", "ireduce_scatter", "alltoall_persistent"])
def test_all_types(bench: Bench, name: str) -> None:
    result = passes(bench, SETTINGS[1], name, "-T", "all", sizes=("-m", "1:16"))
    named = re.findall(r"# Datatype: (\w+)\.", result.output)
    assert named == ["MPI_CHAR", "MPI_INT", "MPI_FLOAT"], result.explain()
    # Sizes below one element have no row.
    assert [row[0] for row in rows_of(result.output)] == ["1", "2", "4", "8", "16", *["4", "8", "16"] * 2]


def transmitted(bench: Bench, setting: Setting, name: str, derived: str) -> list[int]:
    """The last column of each row. -D refuses -c, as OMB does, so the exit status alone says that data were right."""
    result = bench(setting, name, "-m", "16:64", *FEW, "-D", derived)
    result.check()
    assert header_of(result.output)[-1] == "Transmit Size", result.explain()
    return [int(row[-1]) for row in rows_of(result.output)]


def test_derived_types(bench: Bench, tmp_path: Path) -> None:
    blocks = tmp_path / "blocks.txt"
    blocks.write_text("# displacement, length\n9, 3\n2, 4\n")
    assert transmitted(bench, SETTINGS[0], "alltoallw", "vect:4:3") == [12, 24, 48]
    assert transmitted(bench, SETTINGS[1], "iallgatherv", f"indx:{blocks}") == [7, 7, 7]
    assert transmitted(bench, SETTINGS[2], "scatterv_persistent", "cont") == [16, 32, 64]
    assert transmitted(bench, SETTINGS[3], "alltoall", "vect:8:1") == [2, 4, 8]
    assert transmitted(bench, SETTINGS[0], "isendrecv", "vect:4:3") == [12, 24, 48]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if not any(r in name for r in ("reduce", "barrier"))])
def test_derived_types_long(bench: Bench, name: str) -> None:
    setting = SETTINGS[0] if "neighbor" in name else SETTINGS[NAMES.index(name) % 4]
    assert transmitted(bench, setting, name, "vect:8:3") == [6, 12, 24]


GRAPH = """# parallel edges, one from a rank to itself, and one that nobody answers
0, 1
0, 1
1,2
2, 2
3, 0
1, 0
"""


@pytest.mark.parametrize("name", ["neighbor_alltoallw", "ineighbor_allgatherv"])
def test_graph_topology(bench: Bench, name: str, tmp_path: Path) -> None:
    graph = tmp_path / "graph.adj"
    graph.write_text(GRAPH)
    result = passes(bench, SETTINGS[0], name, "-N", f"graph:{graph}")
    assert "Time took to create topology graph:" in result.output
    assert "Dimensions size" not in result.output


def test_wrong_topologies(bench: Bench, tmp_path: Path) -> None:
    graph = tmp_path / "graph.adj"
    graph.write_text("0, 1\n1, 3\n")
    line = refused(bench, HOST, "neighbor_allgather", "-N", f"graph:{graph}", *FEW)
    assert "line 2" in line and "rank 3 of 3" in line
    graph.write_text("0 1\n")
    assert "not an edge" in refused(bench, HOST, "neighbor_allgather", "-N", f"graph:{graph}", *FEW)
    line = refused(bench, HOST, "neighbor_allgather", "-N", "cart:1:2", *FEW)
    assert "radius of 2" in line and "5 in each dimension" in line


@pytest.mark.long
def test_grid_of_two_dimensions(bench: Bench) -> None:
    result = passes(bench, Setting("mpich", 9), "neighbor_alltoallv", "-N", "cart:2:1")
    assert "Dimensions size = 3 3" in result.output


def test_samples_of_nonblocking_calls_are_of_the_communication(bench: Bench, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    # Many calls of MPI_Test make the computation far longer than what is communicated.
    words = ("-m", "65536:65536", "-i", "20", "-x", "2", "-t", "20000", "--json", str(report))
    bench(Setting("mpich", 2), "iallreduce", *words).check()
    (run,) = json.loads(report.read_text())["runs"]
    (measurement,) = run["contenders"][0]["measurements"]
    times = measurement["overlap"]
    assert measurement["average_us"] == times["overall_us"]
    assert measurement["summary"]["count"] == 20
    # Of each call the slower rank's time: not less than the mean of the two, and not more than their sum.
    assert times["pure_us"] <= measurement["summary"]["mean_us"] <= 2 * times["pure_us"]
    assert measurement["bandwidth_MBps"] == 0


def test_percentiles_and_full_columns(bench: Bench) -> None:
    result = bench(HOST, "allgather", "-m", "64:64", "-i", "20", "-x", "2", "-f", "-c", "-z50,99")
    result.check()
    assert header_of(result.output) == [
        "Size",
        "Avg Latency(us)",
        "Min Latency(us)",
        "Max Latency(us)",
        "Iterations",
        "Validation",
        "P50 Tail Lat(us)",
        "P99 Tail Lat(us)",
    ]
    (row,) = rows_of(result.output)
    assert float(row[-2]) <= float(row[-1]), result.explain()


def test_memory_limit_ends_the_sizes(bench: Bench) -> None:
    two = Setting("mpich", 2)
    result = bench(two, "alltoall", "-m", "262144:2097152", "-M", "1M", *FEW)
    result.check()
    assert [row[0] for row in rows_of(result.output)] == ["262144", "524288"], result.explain()
    assert result.output.count("sizes above 524288 bytes are left out") == 1, result.explain()
    # A reduction's buffers do not grow with the number of ranks.
    result = bench(two, "allreduce", "-m", "262144:2097152", "-M", "1M", *FEW)
    result.check()
    assert [row[0] for row in rows_of(result.output)] == ["262144", "524288", "1048576"], result.explain()


@pytest.mark.parametrize("target", ["cpu", "gpu", "both"])
@pytest.mark.parametrize("name", ["iallgather", "isendrecv"])
def test_overlap_with_tests_and_gpu(bench: Bench, name: str, target: str) -> None:
    words = ("-t", "3", "-r", target, "-f")
    rows = rows_of(passes(bench, SETTINGS[4], name, *words).output)
    # The third of the parts of the overall time: three MPI_Test calls take some.
    assert all(float(row[4]) > 0 for row in rows)


def test_computing_on_the_gpu_beside_host_buffers(bench: Bench) -> None:
    passes(bench, Setting("mpich", 2, "cuda:2"), "iallreduce", "-r", "gpu")


def test_wrong_number_of_test_calls(bench: Bench) -> None:
    assert "-t" in refused(bench, HOST, "iallgather", "-t", "many", *FEW)


@pytest.mark.parametrize("name", ["allreduce", "alltoallv"])
def test_queued_calls(bench: Bench, name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--compare", "native", "--mode", "waited,queued", "--json", str(report), "-i", "8", "-x", "1")
    result = bench(Setting("mpich", 2), name, *SIZES, *words)
    result.check()
    (run,) = json.loads(report.read_text())["runs"]
    assert [contender["mode"] for contender in run["contenders"]] == ["waited", "queued"]
    for contender in run["contenders"]:
        assert not contender["unavailable"], contender
        assert [str(measurement["size"]) for measurement in contender["measurements"]] == ROWS
        assert all(measurement["errors"] == 0 for measurement in contender["measurements"])


def test_queued_calls_are_as_many_as_asked_for(bench: Bench, tmp_path: Path) -> None:
    """Where they come in blocks that do not divide the number."""
    report = tmp_path / "report.json"
    words = ("--compare", "native", "--mode", "queued", "--json", str(report), "-i", "70", "-x", "1")
    bench(Setting("mpich", 2), "allreduce", *SIZES, *words).check()
    (run,) = json.loads(report.read_text())["runs"]
    for measurement in run["contenders"][0]["measurements"]:
        assert measurement["iterations"] == 70
        assert measurement["iterations_per_sample"] == 3


def test_queued_calls_need_the_blocking_form(bench: Bench, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--compare", "native", "--mode", "waited,queued", "--json", str(report))
    bench(Setting("mpich", 2), "allreduce_persistent", *SIZES, *FEW, *words).check()
    (run,) = json.loads(report.read_text())["runs"]
    waited, queued = run["contenders"]
    assert not waited["unavailable"]
    assert "queued" in queued["unavailable"]


@pytest.mark.long
@pytest.mark.parametrize("setting", [Setting("mpich", 2), Setting("openmpi", 2)], ids=str)
@pytest.mark.parametrize("name", ["bcast", "ibcast", "allreduce"])
def test_more_than_two_gibibytes(bench: Bench, name: str, setting: Setting) -> None:
    size = str((2 << 30) + 4096)
    passes(bench, setting, name, "-M", "8G", sizes=("-m", f"{size}:{size}"))
