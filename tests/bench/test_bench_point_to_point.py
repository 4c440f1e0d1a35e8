# SPDX-License-Identifier: Apache-2.0
"""The point-to-point benchmarks: every program under the MPIs and GPU runtimes, their options, and what wrong use says.

Values are not looked at, only that they are there, and that the data were checked: these machines are busy.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import harness
import pytest

TWO_RANKS = (
    "latency",
    "bw",
    "bibw",
    "latency_mt",
    "latency_mp",
    "latency_persistent",
    "partitioned_latency",
    "bw_persistent",
    "bibw_persistent",
)
PAIRS = ("mbw_mr", "multi_lat")
FANS = ("bw_fan_in", "bw_fan_out")
COMBINATIONS = (
    ("mpich", "cuda:2"),
    ("openmpi", "hip:2"),
    ("mpi5", "hip5:1"),
    ("openmpi", "cuda:2"),
    ("mpich", "hip:2"),
)

Case = tuple[str, str, str]
"""(test, MPI, emulated GPU)"""
ALL = TWO_RANKS + PAIRS + FANS
DEFAULT: tuple[Case, ...] = tuple((test, *COMBINATIONS[i % len(COMBINATIONS)]) for i, test in enumerate(ALL))
LONG: tuple[Case, ...] = tuple(
    (test, mpi, emulate) for test in ALL for mpi, emulate in COMBINATIONS if (test, mpi, emulate) not in DEFAULT
)

ROW = re.compile(r"^(\d+) +\d+\.\d\d\b.*$", re.MULTILINE)

FindMpi = Callable[[str], harness.Mpi]


@pytest.fixture(scope="module")
def bench_program(awaken_program: Path) -> Path:
    """`awaken`, when this build has benchmarks."""
    runner = harness.build_dir() / "lib" / "awaken" / "bench" / "awaken-bench"
    if not runner.exists():
        pytest.skip(f"{runner} was not built: nlohmann-json was not there when the build was configured")
    return awaken_program


def environment_of(mpi: harness.Mpi) -> dict[str, str]:
    """MPICH's launcher starts its own ABI and the standard one alike: which is meant must be said."""
    if mpi.name != "mpi5":
        return {}
    return {"AWAKEN_MPI": str(mpi.mpiexec.parent.parent / "lib" / "libmpi_abi.so.1")}


def run_bench(
    mpi: harness.Mpi,
    ranks: int,
    program: Path,
    words: Sequence[str],
    emulate: str | None = None,
    timeout: float = harness.HANG_S,
) -> harness.Result:
    return harness.run_ranks(
        mpi,
        ranks,
        [program, "bench", *words],
        with_awaken=False,
        emulate=emulate,
        environment=environment_of(mpi),
        timeout=timeout,
    )


def sizes_of(output: str) -> list[int]:
    return [int(match[1]) for match in ROW.finditer(output)]


def check_program(case: Case, program: Path, mpi: harness.Mpi) -> None:
    test, _, emulate = case
    ranks = 2 if test in TWO_RANKS else 3 if test in FANS else 4
    words = [test, "-m", "4:8192", "--step-factor", "32", "-i", "4", "-x", "1", "D", "D"]
    if test not in FANS:
        words.insert(1, "-c")
    result = run_bench(mpi, ranks, program, words, emulate=emulate)
    result.check()
    assert sizes_of(result.output) == [4, 128, 4096], result.explain()
    if test not in FANS:
        assert result.output.count(" Pass\n") == 3, result.explain()
    if test not in ("mbw_mr", "multi_lat"):
        vendor = "CUDA" if emulate.startswith("cuda") else "ROCM"
        assert f"# OSU MPI-{vendor} " in result.output or test in FANS, result.explain()


def name(case: Case) -> str:
    return "-".join(case).replace(":", "x")


FOR_SANITIZERS = tuple(case for case in DEFAULT if case[0] == "latency_mt")


@pytest.mark.parametrize("case", harness.with_sanitizers(DEFAULT, FOR_SANITIZERS), ids=name)
def test_device_memory(case: Case, bench_program: Path, mpi_named: FindMpi) -> None:
    check_program(case, bench_program, mpi_named(case[1]))


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=name)
def test_device_memory_long(case: Case, bench_program: Path, mpi_named: FindMpi) -> None:
    check_program(case, bench_program, mpi_named(case[1]))


@pytest.mark.parametrize("mpi", ["mpich", "openmpi", "mpi5", "debian-mpich", "debian-openmpi"])
def test_host_memory_without_the_layer(mpi: str, bench_program: Path, mpi_named: FindMpi) -> None:
    """The whole output is known but for the values."""
    result = run_bench(mpi_named(mpi), 2, bench_program, ["latency", "--native", "-m", "2", "-i", "3", "-x", "1"])
    result.check()
    expected = r"\n# OSU MPI Latency Test v7\.5\n# Datatype: MPI_CHAR\.\n# Size       Avg Latency\(us\)\n" + "".join(
        rf"{size:<10}[ \d.]{{18}}\n" for size in (1, 2)
    )
    assert re.fullmatch(expected, result.output), result.explain()


@pytest.mark.parametrize("sides", ["H D", "D H", "MD MH", "P R", "A D"])
def test_mixed_kinds_of_memory(sides: str, bench_program: Path, mpi_named: FindMpi) -> None:
    words = ["bw", "-c", "-m", "64:64", "-i", "3", "-x", "1", *sides.split()]
    result = run_bench(mpi_named("mpich"), 2, bench_program, words, emulate="cuda:2")
    result.check()
    assert result.output.count(" Pass\n") == 1, result.explain()


def test_types_session_percentiles_and_json(bench_program: Path, mpi_named: FindMpi, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    words = ["latency", "-I", "-T", "all", "-z50,99", "-m", "2:8", "-i", "20", "-x", "1", "--json", str(file)]
    result = run_bench(mpi_named("mpich"), 2, bench_program, words)
    result.check()
    assert re.findall(r"# Datatype: (\w+)\.", result.output) == ["MPI_CHAR", "MPI_INT", "MPI_FLOAT"], result.explain()
    # Below the size of an element there is no row.
    assert sizes_of(result.output) == [2, 4, 8, 4, 8, 4, 8], result.explain()
    assert result.output.count("  P50 Tail Lat(us)  P99 Tail Lat(us)\n") == 3, result.explain()
    document = json.loads(file.read_text())
    assert document["schema"] == "awaken-bench" and document["version"] == 1
    assert [run["type"] for run in document["runs"]] == ["MPI_CHAR", "MPI_INT", "MPI_FLOAT"]
    manifest = json.dumps(document["manifest"])
    assert "libmpi.so.12" in manifest and "mpich" in manifest


def test_an_mpi_without_sessions_says_so(bench_program: Path, mpi_named: FindMpi) -> None:
    result = run_bench(mpi_named("debian-openmpi"), 2, bench_program, ["latency", "-I", "-m", "1", "-i", "2"])
    assert result.status != 0 and not result.problems, result.explain()
    assert result.output.count("awaken: Open MPI 4.") == 1 and "leave -I out" in result.output, result.explain()


def test_varied_windows(bench_program: Path, mpi_named: FindMpi) -> None:
    words = ["mbw_mr", "-V", "-m", "2", "-i", "2", "-x", "1"]
    result = run_bench(mpi_named("openmpi"), 4, bench_program, words)
    result.check()
    windows = "#      " + "".join(f"  {window:10d}" for window in (1, 2, 4, 8, 16, 32, 64, 128)) + "\n"
    assert result.output.startswith("# OSU MPI Multiple Bandwidth / Message Rate Test v7.5\n"), result.explain()
    assert "# [ pairs: 2 ] [ window size: varied ]\n\n# Uni-directional Bandwidth (MB/sec)\n" in result.output
    assert result.output.count(windows) == 2, result.explain()
    rows = re.findall(r"^(\d+) {6}(?: {2,}\d+\.\d\d){8}$", result.output, re.MULTILINE)
    assert rows == ["1", "2", "1", "2"], result.explain()


def test_varied_windows_in_json(bench_program: Path, mpi_named: FindMpi, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    words = ["mbw_mr", "-V", "-m", "1:2", "-i", "2", "-x", "1", "--json", str(file)]
    run_bench(mpi_named("mpich"), 2, bench_program, words).check()
    runs = json.loads(file.read_text())["runs"]
    assert [run["window_size"] for run in runs] == [1, 2, 4, 8, 16, 32, 64, 128]
    for run in runs:
        (contender,) = run["contenders"]
        sizes = [(one["size"], one["iterations_per_sample"]) for one in contender["measurements"]]
        assert sizes == [(1, run["window_size"]), (2, run["window_size"])]


def test_derived_type_and_unaligned(bench_program: Path, mpi_named: FindMpi) -> None:
    words = ["latency", "-D", "vect:8:4", "--unaligned", "-m", "64:128", "-i", "3", "-x", "1", "D", "D"]
    result = run_bench(mpi_named("mpich"), 2, bench_program, words, emulate="cuda:2")
    result.check()
    assert [line.split()[-1] for line in result.output.splitlines() if line[:1].isdigit()] == ["32", "64"]


@pytest.mark.long
@pytest.mark.parametrize("form", ["cont", "vect", "indx"])
@pytest.mark.parametrize("test", ALL)
def test_derived_types_long(test: str, form: str, bench_program: Path, mpi_named: FindMpi, tmp_path: Path) -> None:
    """Every test has the column of what travels; the data are checked without one."""
    blocks = tmp_path / "blocks.txt"
    blocks.write_text("5, 2\n0, 3\n")
    derived = {"cont": "cont", "vect": "vect:8:3", "indx": f"indx:{blocks}"}[form]
    moved = {"cont": ["16", "32"], "vect": ["6", "12"], "indx": ["5", "5"]}[form]
    mpi, emulate = COMBINATIONS[ALL.index(test) % len(COMBINATIONS)]
    ranks = 2 if test in TWO_RANKS else 3 if test in FANS else 4
    words = [test, "-D", derived, "-m", "16:32", "-i", "3", "-x", "1", "D", "D"]
    result = run_bench(mpi_named(mpi), ranks, bench_program, words, emulate=emulate)
    result.check()
    rows = [line.split() for line in result.output.splitlines() if line[:1].isdigit()]
    assert [row[-1] for row in rows] == moved, result.explain()


@pytest.mark.parametrize("test", ["bw", "bibw_persistent", "mbw_mr"])
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_one_by_one(test: str, mpi: str, emulate: str, bench_program: Path, mpi_named: FindMpi, tmp_path: Path) -> None:
    """Windows of 16 and 64 are completed by MPI_Waitany; the data are those of MPI_Waitall."""
    for window in (16, 64):
        file = tmp_path / f"{window}.json"
        words = [test, "--one-by-one", "--compare", "awaken,staged", "-W", str(window), "-m", "64:100000"]
        words += ["--step-factor", "1000", "-i", "4", "-x", "1", "--json", str(file), "D", "D"]
        run_bench(mpi_named(mpi), 2, bench_program, words, emulate=emulate).check()
        (run,) = json.loads(file.read_text())["runs"]
        for contender in run["contenders"]:
            assert [one["validated"] for one in contender["measurements"]] == [True, True], contender["name"]


def test_comparison(bench_program: Path, mpi_named: FindMpi, tmp_path: Path) -> None:
    """One that cannot run is named with the reason, and the others run all the same."""
    file = tmp_path / "run.json"
    words = [
        "bw",
        "--compare",
        "native,awaken,staged",
        "-m",
        "64:64",
        "-i",
        "40",
        "--json",
        str(file),
        "D",
        "D",
    ]
    result = run_bench(mpi_named("mpich"), 2, bench_program, words, emulate="cuda:2")
    result.check()
    assert "native could not run: MPICH" in result.output, result.explain()
    (run,) = json.loads(file.read_text())["runs"]
    contenders = {contender["name"]: contender for contender in run["contenders"]}
    assert list(contenders) == ["native", "awaken", "staged"]
    assert contenders["native"]["unavailable"]
    for contender in ("awaken", "staged"):
        (measurement,) = contenders[contender]["measurements"]
        assert len(measurement["samples_us"]) >= 1 and measurement["validated"] is True
    # Measured in turns: as many samples of one as of the other.
    counts = {len(contenders[c]["measurements"][0]["samples_us"]) for c in ("awaken", "staged")}
    assert len(counts) == 1, counts


@pytest.mark.parametrize("test", ["latency", "bibw", "mbw_mr"])
def test_damage_is_noticed(test: str, bench_program: Path, mpi_named: FindMpi) -> None:
    """--self-test corrupts a received element and a guard byte, and fails where nobody notices."""
    words = [test, "--self-test", "-m", "16:16", "-i", "2", "-x", "1", "D", "D"]
    result = run_bench(mpi_named("mpich"), 2, bench_program, words, emulate="hip:2")
    result.check()
    pattern = (
        r"self-test: corrupted data was noticed \(rank 1, element 0: .+ instead of .+\), and so was an overwritten"
    )
    assert re.search(pattern, result.output), result.explain()


@pytest.mark.parametrize("sides", ["H D", "D H"])
def test_a_rank_with_host_buffers_needs_no_gpu(sides: str, bench_program: Path, mpi_named: FindMpi) -> None:
    mpi = mpi_named("mpich")
    words: list[str | Path] = [bench_program, "bench", "latency", "-c", "-m", "8:4096", "--step-factor", "512"]
    words += ["-i", "4", *sides.split()]
    with_gpu: list[str | Path] = ["env", "AWAKEN_EMULATE=hip:1", *words]
    first, second = (words, with_gpu) if sides == "H D" else (with_gpu, words)
    result = harness.run_ranks(mpi, 1, [*first, ":", "-n", "1", *second], with_awaken=False)
    result.check()
    assert "# OSU MPI-ROCM Latency Test" in result.output, result.explain()
    assert result.output.count(" Pass\n") == 2, result.explain()


def test_self_test_passes_over_empty_messages(bench_program: Path, mpi_named: FindMpi) -> None:
    """Below the stride of a derived type nothing is sent, and nothing can be damaged."""
    words = ["latency", "--self-test", "-D", "vect:64:32", "-m", "32:64", "-i", "2", "-x", "1"]
    result = run_bench(mpi_named("mpich"), 2, bench_program, words)
    result.check()
    assert sizes_of(result.output) == [32, 64], result.explain()
    assert "self-test: corrupted data was noticed" in result.output


def test_threads_without_a_message_take_no_part_in_the_mean(
    bench_program: Path, mpi_named: FindMpi, tmp_path: Path
) -> None:
    """With -c a block is a single message here, which three of the four threads have nothing to do with."""
    file = tmp_path / "run.json"
    words = ["latency_mt", "-t", "4:4", "-c", "-m", "8:8", "-i", "20", "-x", "1", "--json", str(file)]
    run_bench(mpi_named("mpich"), 2, bench_program, words).check()
    (measurement,) = json.loads(file.read_text())["runs"][0]["contenders"][0]["measurements"]
    assert measurement["average_us"] == pytest.approx(measurement["summary"]["mean_us"])


def test_results_into_a_pipe_a_link_and_no_folder(bench_program: Path, mpi_named: FindMpi, tmp_path: Path) -> None:
    few = ["latency", "-m", "8:8", "-i", "2", "-x", "1", "--json"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        try:
            run_bench(mpi_named("mpich"), 2, bench_program, [*few, str(pipe)]).check()
            assert pipe.is_fifo()
            text, _ = reader.communicate(timeout=harness.HANG_S)
        finally:
            reader.kill()
    assert json.loads(text)["runs"]

    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target.name)
    run_bench(mpi_named("mpich"), 2, bench_program, [*few, str(link)]).check()
    assert link.is_symlink() and json.loads(target.read_text())["runs"]

    folder = tmp_path / "folder"
    folder.mkdir()
    result = run_bench(mpi_named("mpich"), 2, bench_program, [*few, str(folder)])
    assert result.status == 1 and f"cannot write {folder} (Is a directory)" in result.output, result.explain()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe", "target"]


@pytest.mark.parametrize(
    ("words", "option"),
    [(("barrier",), "-c"), (("bcast",), "-l"), (("put_latency",), "-c"), (("get_bw",), "-T"), (("bw_fan_in",), "-c")],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_options_without_effect_say_so(
    words: tuple[str, ...], option: str, bench_program: Path, mpi_named: FindMpi
) -> None:
    few = ["-i", "2", "-x", "1", *(() if words == ("barrier",) else ("-m", "8:8"))]
    given = [option, "mpi_int"] if option == "-T" else [option]
    result = run_bench(mpi_named("mpich"), 2, bench_program, [*words, *few, *given])
    result.check()
    assert f"awaken: {option} is accepted without effect: " in result.output, result.explain()
    assert "Validation" not in result.output.replace("no Validation column", "")


def test_shared_gpu_is_said(bench_program: Path, mpi_named: FindMpi) -> None:
    words = ["latency", "-m", "1", "-i", "2", "-x", "1", "D", "D"]
    alone = run_bench(mpi_named("mpich"), 2, bench_program, words, emulate="cuda:2")
    alone.check()
    assert "share GPU" not in alone.output, alone.explain()
    shared = run_bench(mpi_named("mpich"), 2, bench_program, [*words, "--gpu-map", "1,1"], emulate="cuda:2")
    shared.check()
    assert "2 ranks share GPU 1 on " in shared.output, shared.explain()


WRONG: tuple[tuple[str, int, tuple[str, ...], str | None, str], ...] = (
    ("unknown_name", 2, ("latancy",), None, r"latancy.*latency"),
    ("unknown_option", 2, ("latency", "--sizes", "4"), None, r"--sizes"),
    ("impossible_size", 2, ("latency", "-m", "64:8"), None, r"64.*8"),
    ("no_number", 2, ("latency", "-m", "many"), None, r"many.* is not a number"),
    ("no_device", 2, ("latency", "-d", "cuda", "D", "D"), "hip:1", r"CUDA.*: .*host buffers"),
    ("no_such_device", 2, ("latency", "--gpu-map", "0,7", "D", "D"), "cuda:2", r"GPU 7.*: use numbers from 0 to 1"),
    ("session_and_no_such_device", 2, ("latency", "-I", "--gpu-map", "0,7", "D", "D"), "cuda:2", r"rank 1: .*GPU 7"),
    ("short_native", 2, ("latency", "-m", "1", "--nat"), None, r"--nat is short for --native.*: write --native"),
    ("short_emulate", 2, ("latency", "-m", "1", "H", "H", "--emul=cuda:1"), None, r"--emul=cuda:1 is short for --emul"),
    ("rank_too_many", 3, ("latency",), None, r"exactly 2 ranks, and runs on 3: start it with mpiexec -n 2"),
    ("rank_too_few", 1, ("bw",), None, r"exactly 2 ranks, and runs on 1: start it with mpiexec -n 2"),
    ("pairs", 2, ("mbw_mr", "-p", "2"), None, r"-p 2 needs 4 ranks, and there are 2: use at most 1"),
    ("native_and_device", 2, ("latency", "--native", "D", "D"), "cuda:2", r"does not take CUDA memory: run it through"),
    ("no_file", 2, ("latency", "-m", "1", "-i", "1", "--json", "/nowhere/x"), None, r"cannot write /nowhere/x.*: give"),
)


@pytest.mark.parametrize("case", WRONG, ids=[case[0] for case in WRONG])
def test_wrong_use(
    case: tuple[str, int, tuple[str, ...], str | None, str], bench_program: Path, mpi_named: FindMpi
) -> None:
    """One line, from one rank, that says what to do; and no hang."""
    _, ranks, words, emulate, pattern = case
    result = run_bench(mpi_named("mpich"), ranks, bench_program, words, emulate=emulate, timeout=harness.HANG_S)
    assert result.status != 0 and not result.problems, result.explain()
    lines = [line for line in result.output.splitlines() if line.startswith("awaken: ")]
    assert len(lines) == 1, result.explain()
    assert re.search(pattern, lines[0]), result.explain()


def test_help_list_and_version_need_no_mpi(bench_program: Path) -> None:
    environment = {**harness.clean_environment(), "AWAKEN_MPI": "/nowhere/libmpi.so", "PATH": "/usr/bin:/bin"}
    for words, expected in (
        (["--help"], "awaken bench"),
        (["--list"], "latency"),
        (["latency", "--help"], "--message-size"),
        (["latency", "--version"], "# OSU MPI Latency Test v7.5"),
    ):
        done = subprocess.run(
            [str(bench_program), "bench", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=harness.HANG_S,
            check=False,
        )
        assert done.returncode == 0 and expected in done.stdout, done.stderr


def test_missing_mpi_is_told(bench_program: Path) -> None:
    environment = {**harness.clean_environment(), "AWAKEN_MPI": "/nowhere/libmpi.so"}
    command = [str(bench_program), "bench", "latency"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=harness.HANG_S, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("awaken: AWAKEN_MPI=/nowhere/libmpi.so cannot be opened"), done.stderr


def test_osu_names(bench_program: Path, tmp_path: Path) -> None:
    """There is a script under the OSU name of every test that OMB has, and none of any other."""
    done = subprocess.run(
        [str(bench_program), "bench", "--list"],
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=True,
        env=harness.clean_environment(),
    )
    tests = {line.split()[0] for line in done.stdout.splitlines()} - {"first", "halo", "isendrecv"}
    folder = bench_program.parent
    assert tests >= set(ALL)
    assert {path.name for path in folder.glob("osu_*")} == {f"osu_{test}" for test in tests}
    assert all(os.access(folder / f"osu_{test}", os.X_OK) for test in tests)
    through_name = subprocess.run(
        [str(folder / "osu_bw"), "--version"],
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=True,
        env=harness.clean_environment(),
    )
    assert through_name.stdout == "# OSU MPI Bandwidth Test v7.5\n"
    link = tmp_path / "osu_bw"
    link.symlink_to(folder / "osu_bw")
    through_link = subprocess.run(
        [str(link), "--version"],
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=True,
        env=harness.clean_environment(),
    )
    assert through_link.stdout == through_name.stdout


@pytest.mark.long
@pytest.mark.xdist_group("memory")
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_more_than_2_gib(mpi: str, bench_program: Path, mpi_named: FindMpi) -> None:
    """2^31 + 3 elements: by MPI_Send_c, and by a derived type where the MPI has no large counts."""
    needed_kib = 20 << 20
    available = re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())
    if available is None or int(available[1]) < needed_kib:
        pytest.skip("needs 20 GiB of free memory")
    size = str((1 << 31) + 3)
    words = ["latency", "-c", "-m", f"{size}:{size}", "-i", "1", "-x", "0", "-u", "0"]
    result = run_bench(mpi_named(mpi), 2, bench_program, words, timeout=harness.LONG_HANG_S)
    result.check()
    assert result.output.count(" Pass\n") == 1, result.explain()
