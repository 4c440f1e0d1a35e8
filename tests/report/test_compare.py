# SPDX-License-Identifier: Apache-2.0
"""`awaken compare`: the rule by which something has changed, and what it says to a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import logs
import pytest
from awaken import compare
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def write(path: Path, *, test: str = "latency", **measured: Any) -> str:
    """A file of `awaken bench` with one contender, awaken, at one size."""
    one = logs.measurement(measured.pop("size", 1024), measured.pop("us", 10.0), **measured)
    path.write_text(json.dumps(logs.bench(test, [logs.contender("awaken", [one])])))
    return str(path)


def verdicts(old: str, new: str, threshold: float = compare.THRESHOLD) -> list[str]:
    return [change.verdict for change in compare.changes(compare.load(old), compare.load(new), threshold)]


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ({"us": 10.0}, {"us": 10.0}, "same"),
        ({"us": 10.0}, {"us": 12.0}, "worse"),
        ({"us": 12.0}, {"us": 10.0}, "better"),
        ({"us": 10.0}, {"us": 10.4}, "same"),  # apart, but below the threshold
        ({"us": 10.0, "width": 0.2}, {"us": 12.0, "width": 0.2}, "same"),  # the intervals overlap
        ({"us": 10.0, "drift": 0.5}, {"us": 12.0, "drift": 0.5}, "same"),  # within a run it moved as far
        ({"us": 10.0}, {"us": 10.0, "errors": 1}, "broken"),
        ({"us": 10.0, "errors": 1}, {"us": 10.0, "errors": 1}, "same"),
    ],
)
def test_the_rule(tmp_path: Path, old: dict[str, Any], new: dict[str, Any], verdict: str) -> None:
    assert verdicts(write(tmp_path / "old.json", **old), write(tmp_path / "new.json", **new)) == [verdict]


def test_more_bandwidth_is_better(tmp_path: Path) -> None:
    """Of a bandwidth test the figures are GB/s; the same times mean the same verdicts."""
    slow, fast = write(tmp_path / "a.json", test="bw", us=12.0), write(tmp_path / "b.json", test="bw", us=10.0)
    assert verdicts(slow, fast) == ["better"]
    assert verdicts(fast, slow) == ["worse"]
    (change,) = compare.changes(compare.load(fast), compare.load(slow))
    assert change.ratio == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("title", "old", "new", "verdict"),
    [
        ("Bandwidth", 100.0, 0.0, "worse"),
        ("Bandwidth", 0.0, 100.0, "better"),
        ("Bandwidth", 0.0, 0.0, "same"),
        ("Bandwidth", 0.01, 0.0, "same"),  # both may have been 0.0050 MB/s
        ("Latency", 5.0, 0.0, "same"),  # 0.00 us is no time that anything took
    ],
)
def test_figures_that_are_zero(tmp_path: Path, title: str, old: float, new: float, verdict: str) -> None:
    for name, value in (("old.log", old), ("new.log", new)):
        (tmp_path / name).write_text(logs.osu("7.4", [(8, value)], title=title, bandwidth=title == "Bandwidth"))
    assert verdicts(str(tmp_path / "old.log"), str(tmp_path / "new.log")) == [verdict]


def test_quantities_are_not_compared_with_each_other(tmp_path: Path) -> None:
    """A table without the title of its test may hold times or bandwidths."""
    title = "# OSU MPI {} Test v7.4\n"
    tables = {"Latency": "# Size   Avg Latency(us)\n8 {}\n", "Bandwidth": "# Size   Bandwidth (MB/s)\n8 {}\n"}
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    old.write_text(title.format("Bandwidth") + tables["Bandwidth"].format(5) + tables["Latency"].format(5))
    new.write_text(title.format("Latency") + tables["Latency"].format(5) + tables["Bandwidth"].format(9))
    assert verdicts(str(old), str(new)) == ["gone", "gone", "new", "new"]


def test_the_threshold_is_the_users(tmp_path: Path) -> None:
    old, new = write(tmp_path / "a.json", us=10.0), write(tmp_path / "b.json", us=12.0)
    assert verdicts(old, new, threshold=0.3) == ["same"]


def test_repeated_runs_widen_the_range(tmp_path: Path) -> None:
    """Runs of one side that differ by 30 % among themselves: 15 % more than their median is no change."""
    runs = ",".join(write(tmp_path / f"old{index}.json", us=us) for index, us in enumerate((9.0, 10.0, 12.0)))
    assert verdicts(runs, write(tmp_path / "new.json", us=11.5)) == ["same"]
    assert verdicts(write(tmp_path / "one.json", us=10.0), write(tmp_path / "new.json", us=11.5)) == ["worse"]


def test_logs_without_ranges_go_by_their_own_threshold(tmp_path: Path) -> None:
    for name, us in (("old.log", 10.0), ("near.log", 10.8), ("far.log", 11.2)):
        (tmp_path / name).write_text(logs.osu("7.4", [(8, us)]))
    old = str(tmp_path / "old.log")
    assert verdicts(old, str(tmp_path / "near.log")) == ["same"]
    assert verdicts(old, str(tmp_path / "far.log")) == ["worse"]


@pytest.mark.parametrize("dialect", ["osu -f", "imb", "nccl -I"])
def test_how_far_ranks_or_calls_are_apart_hides_no_change(tmp_path: Path, dialect: str) -> None:
    """The logs tell half the value as the least and twice as the largest, of either side."""
    for name, us in (("old.log", 10.0), ("near.log", 10.8), ("far.log", 19.0)):
        text = {
            "osu -f": lambda us: logs.osu("7.4", [(8, us)], title="Bcast", full=True),
            "imb": lambda us: logs.imb("Bcast", [(8, us)]),
            "nccl -I": lambda us: logs.nccl_tests("broadcast_perf", [(8, us)], per_iteration=True),
        }[dialect](us)
        (tmp_path / name).write_text(text)
    old = str(tmp_path / "old.log")
    assert set(verdicts(old, str(tmp_path / "near.log"))) == {"same"}
    assert set(verdicts(old, str(tmp_path / "far.log"))) == {"worse"}
    runs = ",".join([old, str(tmp_path / "far.log")])
    assert set(verdicts(runs, str(tmp_path / "near.log"))) == {"same"}  # repeated runs make a range of logs, too


def test_tables_of_one_log_for_several_numbers_of_ranks_are_no_repeated_runs(tmp_path: Path) -> None:
    """OSU's logs do not tell the ranks; together their tables would have a range from the fastest to the slowest."""
    for name, middle_us in (("old.log", 50.0), ("new.log", 90.0)):
        tables = [logs.osu("7.4", [(8, us)], title="Allreduce") for us in (5.0, middle_us, 500.0)]
        (tmp_path / name).write_text("".join(tables))
    found = compare.changes(compare.load(str(tmp_path / "old.log")), compare.load(str(tmp_path / "new.log")))
    assert [change.verdict for change in found] == ["same", "worse", "same"]
    assert found[1].name == "allreduce, log, MPI_CHAR, D, table 2 of the log"


def test_rows_that_are_left_out_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.log").write_text(logs.osu("7.4", [(8, 1.0), (16, 1.0)]))
    (tmp_path / "new.log").write_text(logs.osu("7.4", [(8, 1.0)]) + "16    nan\n")
    assert compare.run([str(tmp_path / "old.log"), str(tmp_path / "new.log")]) == 0
    assert capsys.readouterr().err == f"awaken: {tmp_path}/new.log:6: 'nan' is not a time: the row is left out\n"


def test_what_is_on_one_side_only_is_named_and_is_no_change(tmp_path: Path) -> None:
    old, new = write(tmp_path / "a.json", size=8), write(tmp_path / "b.json", size=16)
    assert verdicts(old, new) == ["gone", "new"]
    assert compare.run([old, new]) == 2  # nothing in common at all
    both = [logs.measurement(8, 10.0), logs.measurement(16, 10.0)]
    (tmp_path / "both.json").write_text(json.dumps(logs.bench("latency", [logs.contender("awaken", both)])))
    assert compare.run([str(tmp_path / "both.json"), old]) == 0


def topology_file(tmp_path: Path, name: str, factor: float, engine: str = "SDMA engines") -> Path:
    """Its copies by the engine are faster by this factor."""
    found = logs.topology(3)
    found["raw"]["copy_engine"] = {"between_gpus": engine, "with_host": engine, "settings": []}
    for pair in found["raw"]["pairs"]:
        if pair["method"] == "copy engine" and pair["peer"] != "host":
            pair["read"].update(samples=3, median_GBps=100 * factor, least_GBps=99 * factor, most_GBps=101 * factor)
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(found))
    return file


def compared(old: Path, new: Path) -> list[compare.Change]:
    return compare.changes(compare.load(str(old)), compare.load(str(new)))


def test_topologies_are_compared_pair_by_pair(tmp_path: Path) -> None:
    old = topology_file(tmp_path, "old", 1.0)
    new = topology_file(tmp_path, "new", 2.0, "kernels of the runtime")
    found = compared(old, new)
    better = [change for change in found if change.verdict == "better"]
    assert len(better) == 6 and better[0].name == "copies by copy engine, read, GPU 0 and GPU 1"
    assert "Copies by SDMA engines" in better[0].remark and "kernels of the runtime" in better[0].remark
    assert {change.verdict for change in found} == {"better", "same"}
    assert [change.verdict for change in compared(new, old) if change.verdict != "same"] == ["worse"] * 6
    near = topology_file(tmp_path, "near", 1.01)
    assert {change.verdict for change in compared(old, near)} == {"same"}


def test_what_cannot_run_any_more_is_worse(tmp_path: Path) -> None:
    def file(name: str, *contenders: dict[str, Any]) -> str:
        (tmp_path / name).write_text(json.dumps(logs.bench("latency", contenders)))
        return str(tmp_path / name)

    awaken = logs.contender("awaken", [logs.measurement(8, 10.0)])
    old = file("old.json", awaken, logs.contender("xccl", [logs.measurement(8, 10.0)]))
    new = file("new.json", awaken, logs.contender("xccl", [], unavailable="there is no libnccl.so.2"))
    found = compare.changes(compare.load(old), compare.load(new))
    assert [change.verdict for change in found] == ["same", "broken"]
    assert found[1].remark == "there is no libnccl.so.2"
    assert compare.run([old, new]) == 1


def test_a_call_that_works_no_more_is_worse(tmp_path: Path) -> None:
    for name, outcome in (("old", "works"), ("new", "hang")):
        (tmp_path / f"{name}.json").write_text(json.dumps(logs.doctor(with_awaken=outcome)))
    old, new = str(tmp_path / "old.json"), str(tmp_path / "new.json")
    assert set(verdicts(old, new)) == {"broken"}
    assert set(verdicts(new, old)) == {"better"}
    assert (compare.run([old, new]), compare.run([new, old]), compare.run([old, old])) == (1, 0, 0)


def doctor_file(
    path: Path,
    *,
    mpi: str = "MPICH 5.0.2",
    emulated: bool = False,
    native: str = "crash",
    with_awaken: str = "works",
) -> str:
    value = {**logs.doctor(native=native, with_awaken=with_awaken), "mpi": {"name": mpi}, "emulated": emulated}
    path.write_text(json.dumps(value))
    return str(path)


def test_matrices_of_several_mpis_are_kept_apart(tmp_path: Path) -> None:
    """One MPI takes device memory, the other crashes; compared with itself, nothing has changed."""
    files = [
        doctor_file(tmp_path / "a.json", native="works"),
        doctor_file(tmp_path / "b.json", mpi="Open MPI 5.0.3"),
        doctor_file(tmp_path / "c.json", emulated=True),
    ]
    assert verdicts(",".join(files), ",".join(files)) == []
    assert verdicts(",".join(files), ",".join(reversed(files))) == []
    assert compare.run([",".join(files), ",".join(files)]) == 0
    worse = doctor_file(tmp_path / "d.json", mpi="Open MPI 5.0.3", with_awaken="hang")
    found = compare.changes(compare.load(",".join(files)), compare.load(",".join([files[0], worse, files[2]])))
    assert {change.verdict for change in found} == {"broken"}
    assert all("Open MPI 5.0.3" in change.name for change in found)


def test_of_repeated_runs_a_call_works_when_it_always_did(tmp_path: Path) -> None:
    good, bad = doctor_file(tmp_path / "a.json"), doctor_file(tmp_path / "b.json", with_awaken="hang")
    for runs in (f"{good},{bad}", f"{bad},{good}"):
        assert set(verdicts(good, runs)) == {"broken"}
        assert verdicts(runs, bad) == []


def test_another_version_of_an_mpi_is_compared_with_the_last(tmp_path: Path) -> None:
    old = doctor_file(tmp_path / "a.json")
    new = doctor_file(tmp_path / "b.json", mpi="MPICH 5.1", with_awaken="error")
    assert set(verdicts(old, new)) == {"broken"}
    other = doctor_file(tmp_path / "c.json", mpi="Open MPI 5.0.3")
    assert verdicts(old, other) == ["gone", "gone", "new", "new"]
    assert compare.run([old, other]) == 2


@pytest.mark.parametrize("outcome", ["crash", "refused", "unavailable", "absent"])
def test_a_call_that_worked_and_does_no_more_is_broken(tmp_path: Path, outcome: str) -> None:
    old, new = doctor_file(tmp_path / "a.json"), doctor_file(tmp_path / "b.json", with_awaken=outcome)
    assert set(verdicts(old, new)) == {"broken"}
    assert set(verdicts(new, old)) == {"better"}
    assert compare.run([old, new]) == 1


def test_a_refusal_that_has_become_a_failure_is_broken(tmp_path: Path) -> None:
    old = doctor_file(tmp_path / "a.json", with_awaken="refused")
    new = doctor_file(tmp_path / "b.json", with_awaken="wrong data")
    assert set(verdicts(old, new)) == {"broken"}
    assert set(verdicts(new, old)) == {"better"}


def test_calls_and_matrices_that_are_gone_are_named(tmp_path: Path) -> None:
    whole = logs.doctor()
    part = json.loads(json.dumps(whole))
    part["matrix"]["cells"] = [cell for cell in part["matrix"]["cells"] if cell["function"] != "MPI_Send"]
    none = logs.doctor(matrix=False)
    for name, value in (("whole", whole), ("part", part), ("none", none)):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    latency = write(tmp_path / "latency.json")
    old, less, nothing = (f"{tmp_path / name}.json,{latency}" for name in ("whole", "part", "none"))
    found = compare.changes(compare.load(old), compare.load(less))
    gone = [change.name for change in found if change.verdict == "gone"]
    # On the device it crashed without Awaken: that was no call that works.
    assert [name.split(",")[0] for name in gone] == [
        "MPI_Send with host memory", "MPI_Send with host memory", "MPI_Send with device memory",
    ]  # fmt: skip
    assert verdicts(old, nothing) == ["same", "gone", "gone"]
    assert verdicts(nothing, old) == ["same", "new", "new"]
    assert compare.run([old, nothing]) == 0


def run_folder(path: Path, problems: dict[str, str], *results: str) -> str:
    """A folder of `awaken report` in which some measurements failed and left their logs."""
    path.mkdir()
    for test in results:
        write(path / f"{test}.json", test=test)
    for test in problems:
        (path / f"{test}.log").write_text("rank 1: no such device\n")
    steps = {test: {"problem": problems.get(test, ""), "status": 0} for test in (*results, *problems)}
    (path / "steps.json").write_text(json.dumps({"schema": "awaken-suite", "version": 1, "steps": steps}))
    return str(path)


def test_a_measurement_that_failed_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = run_folder(tmp_path / "old", {}, "latency", "bw")
    new = run_folder(tmp_path / "new", {"bw": "it did not end within 3 s"}, "latency")
    assert compare.run([old, new]) == 1
    out = capsys.readouterr().out
    assert "measurement bw" in out and "it did not end within 3 s" in out and "1 broken" in out
    # What failed before, or was not measured before, is no change.
    assert compare.run([new, new]) == 0
    assert compare.run([run_folder(tmp_path / "less", {}, "latency"), new]) == 0
    # Not even when nothing else is left.
    assert compare.run([old, run_folder(tmp_path / "none", {"bw": "it was ended by SIGSEGV"})]) == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    old=st.floats(0.1, 1e6),
    new=st.floats(0.1, 1e6),
    width=st.floats(0, 0.5),
    drift=st.floats(0, 0.5),
    bandwidth=st.booleans(),
)
def test_turned_round_it_says_the_opposite(
    tmp_path: Path, old: float, new: float, width: float, drift: float, bandwidth: bool
) -> None:
    test = "bw" if bandwidth else "latency"
    first = write(tmp_path / "a.json", test=test, us=old, width=width, drift=drift)
    second = write(tmp_path / "b.json", test=test, us=new, width=width, drift=drift)
    opposite = {"same": "same", "better": "worse", "worse": "better"}
    assert [opposite[verdict] for verdict in verdicts(first, second)] == verdicts(second, first)
    assert verdicts(first, first) == ["same"]


def test_exit_status_and_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "old.json", us=10.0), write(tmp_path / "new.json", us=15.0)
    assert compare.run([old, new]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[1].split()[:2] == ["worse", "latency,"]
    assert "1.500" in out and "1 worse, 0 better, 0 same" in out
    assert compare.run([new, old]) == 0
    capsys.readouterr()

    assert compare.run([old, new, "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert (value["schema"], value["version"], value["worse"]) == ("awaken-compare", 1, True)
    (change,) = value["changes"]
    assert (change["size"], change["verdict"], change["time_ratio"]) == (1024, "worse", 1.5)

    assert compare.run([old, new, "--markdown", "-o", str(tmp_path / "out.md")]) == 1
    assert "| worse |" in (tmp_path / "out.md").read_text()
    assert compare.run([old, old, "--all"]) == 0
    assert "same" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize(
    "words",
    [
        ["old.json", "missing.json"],
        ["old.json", "bad.json"],
        ["old.json", "old.json", "-o", "none/out.txt"],
        ["old.json", "empty"],
    ],
)
def test_misuse_is_status_2_with_one_line(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "old.json")
    (tmp_path / "bad.json").write_text('{"schema": "awaken-bench", "version": 1, "runs": [')
    (tmp_path / "empty").mkdir()
    assert compare.run(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("awaken: ") and error.count("\n") == 1


def in_a_shell(folder: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program = f"{sys.executable} -m awaken compare old.json new.json"
    package = str(Path(__file__).resolve().parents[2] / "python")
    return subprocess.run(
        ["sh", "-c", command.format(program)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": package, **variables},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )


def test_where_the_output_goes(tmp_path: Path) -> None:
    write(tmp_path / "old.json", us=10.0)
    write(tmp_path / "new.json", us=15.0)
    plain = in_a_shell(tmp_path, "{}", PYTHONIOENCODING="ascii")  # as in a locale that has no µ
    assert (plain.returncode, plain.stderr) == (1, "")
    assert "15 \\xb5s" in plain.stdout
    full = in_a_shell(tmp_path, "{} > /dev/full")
    assert (full.returncode, full.stderr) == (2, "awaken: the output cannot be written (No space left on device)\n")
    (tmp_path / "out.txt").symlink_to("there.txt")
    assert in_a_shell(tmp_path, "{} -o out.txt").returncode == 1
    assert "1 worse" in (tmp_path / "there.txt").read_text()


@pytest.mark.parametrize(
    "words", [[], ["one.json"], ["a", "b", "--threshold", "much"], ["a", "b", "--threshold", "-1"]]
)
def test_wrong_words_are_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.run(words)
    assert ended.value.code == 2


def test_thresholds_are_parts_or_per_cent() -> None:
    assert compare.percentage("5%") == compare.percentage("0.05") == 0.05
