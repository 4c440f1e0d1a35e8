# SPDX-License-Identifier: Apache-2.0
"""The one-sided benchmarks: each with its windows and synchronisations, on host and device memory, the data checked.

What must be in which window afterwards is known from the pattern of each rank; --self-test shows that it is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import harness
import pytest

FindMpi = Callable[[str], harness.Mpi]

BANDWIDTHS = ("put_bw", "get_bw")
LATENCIES = ("put_latency", "get_latency", "acc_latency", "get_acc_latency")
ATOMICS = ("fop_latency", "cas_latency")
TESTS = (*LATENCIES, *ATOMICS, *BANDWIDTHS, "put_bibw")
CHECKED = ("acc_latency", *ATOMICS)
"""Those that have -c, as in OMB."""

SYNCHRONISATIONS = {
    "flush": "MPI_Win_flush",
    "fence": "MPI_Win_fence",
    "lock": "MPI_Win_lock/unlock",
    "pscw": "MPI_Win_post/start/complete/wait",
    "flush_local": "MPI_Win_flush_local",
    "lock_all": "MPI_Win_lock_all/unlock_all",
}
WINDOWS = {"allocate": "MPI_Win_allocate", "create": "MPI_Win_create", "dynamic": "MPI_Win_create_dynamic"}
MACHINES = (("mpich", "cuda:2"), ("openmpi", "hip:2"), ("mpi5", "cuda:1"), ("openmpi", "cuda:2"), ("mpich", "hip:2"))
SIDES = ("D D", "D H", "H D", "MD D", "P R")

Case = tuple[str, str, str, tuple[str, str], str]
"""(test, synchronisation, window, (MPI, emulated GPU), sides)"""


def active_only(test: str) -> bool:
    return test == "put_bibw"


def default_cases() -> list[Case]:
    """Every test once; over them every synchronisation, window, MPI, GPU runtime and pair of sides."""
    cases: list[Case] = []
    for i, test in enumerate(TESTS):
        synchronisation = "fence" if active_only(test) else list(SYNCHRONISATIONS)[i % len(SYNCHRONISATIONS)]
        window = list(WINDOWS)[i % len(WINDOWS)]
        cases.append((test, synchronisation, window, MACHINES[i % len(MACHINES)], SIDES[(i // 2) % len(SIDES)]))
    return cases


DEFAULT = default_cases()
LONG: list[Case] = [
    case
    for i, test in enumerate(TESTS)
    for j, synchronisation in enumerate(SYNCHRONISATIONS)
    for k, window in enumerate(WINDOWS)
    if not active_only(test) or synchronisation in ("fence", "pscw")
    for case in [
        (test, synchronisation, window, MACHINES[(i + j + k) % len(MACHINES)], SIDES[(i + 2 * j + k) % len(SIDES)])
    ]
    if case not in DEFAULT
]


def name(case: Case) -> str:
    test, synchronisation, window, (mpi, emulate), sides = case
    return "-".join([test, synchronisation, window, mpi, emulate.replace(":", "x"), sides.replace(" ", "")])


def run_bench(
    mpi: harness.Mpi, program: Path, words: Sequence[str], emulate: str | None = None, timeout: float = harness.HANG_S
) -> harness.Result:
    environment = {}
    if mpi.name == "mpi5":  # MPICH's launcher starts its own ABI and the standard one alike
        environment["AWAKEN_MPI"] = str(mpi.mpiexec.parent.parent / "lib" / "libmpi_abi.so.1")
    command: list[str | Path] = [program, "bench", *words]
    return harness.run_ranks(
        mpi, 2, command, with_awaken=False, emulate=emulate, environment=environment, timeout=timeout
    )


def rows_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if re.match(r"\d+\s", line)]


def check_program(case: Case, program: Path, mpi: harness.Mpi) -> None:
    test, synchronisation, window, (_, emulate), sides = case
    words = [test, "-s", synchronisation, "-w", window, "-i", "4", "-x", "1"]
    sizes = ["4"]
    if test not in ATOMICS:
        words += ["-m", "4:65536", "--step-factor", "128"]
        sizes = ["4", "512", "65536"]
    if test in CHECKED:
        words.append("-c")
    if test in BANDWIDTHS or test == "put_bibw":
        words += ["-W", "5"]
    result = run_bench(mpi, program, [*words, *sides.split()], emulate=emulate)
    result.check()
    assert [row[0] for row in rows_of(result.output)] == sizes, result.explain()
    assert f"# Window creation: {WINDOWS[window]}\n" in result.output, result.explain()
    assert f"# Synchronization: {SYNCHRONISATIONS[synchronisation]}\n" in result.output, result.explain()
    if test in CHECKED:
        assert [row[-1] for row in rows_of(result.output)] == ["passed"] * len(sizes), result.explain()


FOR_SANITIZERS = [case for case in DEFAULT if case[0] in ("put_latency", "get_latency")]


@pytest.mark.parametrize("case", harness.with_sanitizers(DEFAULT, FOR_SANITIZERS), ids=name)
def test_one_sided(case: Case, awaken_program: Path, mpi_named: FindMpi) -> None:
    check_program(case, awaken_program, mpi_named(case[3][0]))


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=name)
def test_one_sided_long(case: Case, awaken_program: Path, mpi_named: FindMpi) -> None:
    check_program(case, awaken_program, mpi_named(case[3][0]))


@pytest.mark.long
@pytest.mark.parametrize("mpi", ["mpich", "openmpi", "mpi5"])
@pytest.mark.parametrize("test", TESTS)
def test_host_memory_without_the_layer(test: str, mpi: str, awaken_program: Path, mpi_named: FindMpi) -> None:
    words = [test, "--native", "-i", "4", "-x", "1"] + ([] if test in ATOMICS else ["-m", "8:8"])
    result = run_bench(mpi_named(mpi), awaken_program, words)
    result.check()
    assert len(rows_of(result.output)) == 1, result.explain()


def test_the_whole_output(awaken_program: Path, mpi_named: FindMpi) -> None:
    """As OMB 7.4 prints it, but for the version; and without an empty line first."""
    words = ["get_latency", "--native", "-m", "2", "-i", "3", "-x", "1"]
    result = run_bench(mpi_named("mpich"), awaken_program, words)
    result.check()
    head = (
        "# OSU MPI_Get latency Test v7.5\n"
        "# Window creation: MPI_Win_allocate\n"
        "# Synchronization: MPI_Win_flush\n"
        "# Datatype: MPI_CHAR.\n"
        "# Size          Latency (us)\n"
    )
    rows = "".join(rf"{size:<10}[ \d.]{{18}}\n" for size in (1, 2))
    assert re.fullmatch(re.escape(head) + rows, result.output), result.explain()


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        (("put_bw", "-s", "lock", "-W", "3"), 1),
        (("get_bw", "-w", "dynamic", "-W", "3"), 0),
        (("get_acc_latency", "-s", "fence"), 1),
        (("cas_latency", "-s", "pscw"), 1),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else str(value),
)
def test_damage_is_noticed(words: tuple[str, ...], rank: int, awaken_program: Path, mpi_named: FindMpi) -> None:
    """--self-test corrupts an element that arrived and a guard byte, and fails where nobody notices."""
    sizes = [] if words[0] in ATOMICS else ["-m", "16:16"]
    command = [*words, *sizes, "--self-test", "-i", "2", "-x", "1", "D", "D"]
    result = run_bench(mpi_named("mpich"), awaken_program, command, emulate="hip:2")
    result.check()
    pattern = rf"self-test: corrupted data was noticed \(rank {rank}, element 0: .+\), and so was an overwritten guard"
    assert re.search(pattern, result.output), result.explain()


@pytest.mark.parametrize("test", ["put_latency", "get_acc_latency"])
def test_large_messages_are_checked_in_pieces(test: str, awaken_program: Path, mpi_named: FindMpi) -> None:
    size = str((16 << 20) + 4)
    words = (test, "--self-test", "-m", f"{size}:{size}", "-i", "2", "-x", "1")
    result = run_bench(mpi_named("mpich"), awaken_program, words)
    result.check()
    assert "corrupted data was noticed" in result.output, result.explain()


def compared(
    mpi: harness.Mpi, program: Path, words: Sequence[str], report: Path
) -> tuple[dict[str, list[float]], dict[str, str], dict[str, str]]:
    """Medians by contender, why the others could not run, and what the run says of its window."""
    command = [*words, "--max-time", "0.02", "--json", str(report), "D", "D"]
    result = run_bench(mpi, program, command, emulate="cuda:2")
    result.check()
    (run,) = json.loads(report.read_text())["runs"]
    medians = {
        one["name"]: [measurement["summary"]["median_us"] for measurement in one["measurements"]]
        for one in run["contenders"]
        if not one["unavailable"]
    }
    for one in run["contenders"]:
        for measurement in one["measurements"]:
            assert measurement["validated"] is (one["name"] != "raw") and measurement["errors"] == 0, measurement
    missing = {one["name"]: one["unavailable"] for one in run["contenders"] if one["unavailable"]}
    return medians, missing, {key: run[key] for key in ("window_creation", "synchronization")}


SIZES = ("-m", "8:65536", "--step-factor", "8192")


@pytest.mark.parametrize("test", ["put_latency", "get_bw", "acc_latency"])
def test_contenders_with_an_active_target(test: str, awaken_program: Path, mpi_named: FindMpi, tmp_path: Path) -> None:
    words = [test, *SIZES, "-s", "fence", "--compare", "native,awaken,staged,xccl,raw"]
    medians, missing, window = compared(mpi_named("mpich"), awaken_program, words, tmp_path / "report.json")
    assert set(medians) == {"awaken", "staged", "raw"}
    assert all(len(values) == 2 and min(values) > 0 for values in medians.values()), medians
    assert "does not take CUDA memory" in missing["native"]
    assert "no call that works in the memory of another rank" in missing["xccl"]
    assert window == {"window_creation": "MPI_Win_allocate", "synchronization": "MPI_Win_fence"}


def test_nobody_stages_by_hand_without_the_target(awaken_program: Path, mpi_named: FindMpi, tmp_path: Path) -> None:
    words = ["put_bw", *SIZES, "--compare", "awaken,staged,raw"]
    medians, missing, _ = compared(mpi_named("openmpi"), awaken_program, words, tmp_path / "report.json")
    assert set(medians) == {"awaken", "raw"}
    assert "only when the target copies them: use -s fence or -s pscw" in missing["staged"]


def test_memory_that_no_other_rank_can_reach(awaken_program: Path, mpi_named: FindMpi) -> None:
    """IPC exports no memory of a pool, so its window has a shadow in host memory."""
    words = ["put_latency", "-w", "create", "-m", "8:8", "-i", "2", "-x", "1", "H", "A"]
    result = run_bench(mpi_named("mpich"), awaken_program, words, emulate="cuda:2")
    result.check()


def test_allocated_device_memory_is_the_windows_own(awaken_program: Path, mpi_named: FindMpi, tmp_path: Path) -> None:
    """MPI_Win_allocate gives it where it is asked to; the path report counts the calls."""
    report = tmp_path / "paths.json"
    mpi = mpi_named("mpich")
    command: list[str | Path] = [awaken_program, "bench", "put_latency", "-m", "8:8", "-i", "2", "-x", "1", "D", "D"]
    environment = {"AWAKEN_REPORT": str(report)}
    result = harness.run_ranks(mpi, 2, command, with_awaken=False, emulate="cuda:2", environment=environment)
    result.check()
    functions = {row["function"]: row["path"] for row in json.loads(report.read_text())["calls"]}
    assert "MPI_Win_allocate" in functions and "MPI_Win_create" not in functions, functions
    assert functions["MPI_Put"] == "direct", functions


WRONG = (
    (("put_bibw", "-s", "flush"), r"put_bibw takes no -s flush: use pscw or fence"),
    (("put_latency", "-f"), r"put_latency takes no -f"),
    (("put_latency", "-D", "cont"), r"put_latency takes no -D"),
    (("get_bw", "-w", "shared"), r"-w 'shared' is not understood: use one of create, allocate, dynamic"),
    (("latency", "-s", "fence"), r"it is for one-sided tests"),
)


@pytest.mark.parametrize(("words", "pattern"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_use(words: tuple[str, ...], pattern: str, awaken_program: Path, mpi_named: FindMpi) -> None:
    result = run_bench(mpi_named("mpich"), awaken_program, words, timeout=harness.HANG_S)
    assert result.status == 2 and not result.problems, result.explain()
    assert re.search(pattern, result.output), result.explain()
