# SPDX-License-Identifier: Apache-2.0
"""`awaken report` as a command: what it measures with, what it keeps, how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import harness
import logs
import pytest
from awaken import report, suite

PACKAGE = Path(__file__).resolve().parents[2] / "python"

FAKE_AWAKEN = r"""#!{python}
import json, os, sys, time
words = sys.argv[1:]
if words[0] == "help":
    print("  exec      run\n  bench     measure")
elif words[1] == "--list":
    print("latency")
else:
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "calls"), "a") as calls:
        calls.write(" ".join(words[:2]) + "\n")
    told = json.load(open(os.path.join(folder, "behaviour.json"))).get(words[1], {{}})
    if "--json" in words and "result" in told:
        with open(words[words.index("--json") + 1], "w") as out:
            out.write(told["result"])
    if told.get("hang"):
        print("waiting", flush=True)
        with open(os.path.join(folder, "part"), "w") as file:
            file.write(str(os.getpid()))
        os.rename(file.name, os.path.join(folder, "hangs"))
        time.sleep(600)
    if "signal" in told:
        os.kill(os.getpid(), told["signal"])
    print("done with", words[1])
    sys.exit(told.get("status", 0))
"""


class Installation:
    """A stand-in for the native program and the launcher, which do as they are told and note each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.awaken = folder / "awaken"
        self.awaken.write_text(FAKE_AWAKEN.format(python=sys.executable))
        self.awaken.chmod(0o755)
        launcher = folder / "mpiexec"
        launcher.write_text(
            '#!/bin/sh\nif [ "$1" = --version ]; then echo "HYDRA build details:"; exit; fi\nshift 2\nexec "$@"\n'
        )
        launcher.chmod(0o755)
        self.launcher = launcher
        self.behave()

    def behave(self, **changes: dict[str, object]) -> None:
        """By test; what is not named works."""
        behaviour: dict[str, dict[str, object]] = {}
        for test in ("latency", "bw", "allreduce"):
            sizes = [logs.measurement(size, 10.0) for size in (8, 64)]
            behaviour[test] = {"result": json.dumps(logs.bench(test, [logs.contender("awaken", sizes)]))}
        (self.folder / "behaviour.json").write_text(json.dumps({**behaviour, **changes}))

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def words(self, *words: str) -> list[str]:
        own = ["--awaken", str(self.awaken), "--launcher", str(self.launcher), "--only", "latency,bw,allreduce"]
        return [sys.executable, "-m", "awaken", "report", *own, *words]


def environment() -> dict[str, str]:
    return {**harness.clean_environment(), "PYTHONPATH": str(PACKAGE)}


def run(words: list[str], folder: Path, timeout_s: float = harness.HANG_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.fixture(name="installation")
def _installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_it_measures_writes_the_page_and_keeps_the_parts(installation: Installation) -> None:
    folder = installation.folder
    done = run(installation.words(), folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "[1/3] latency, 2 ranks" in done.stderr and done.stderr.endswith("report written: awaken-report.html\n")
    page = (folder / "awaken-report.html").read_text()
    assert "Latency, 2 ranks" in page and "Allreduce, 2 ranks" in page and "Commands" in page
    kept = {path.name for path in (folder / "awaken-report").iterdir()}
    assert kept == {
        "steps.json",
        *(f"{test}.{end}" for test in ("latency", "bw", "allreduce") for end in ("json", "log")),
    }


def test_a_rerun_goes_on_where_the_last_one_ended(installation: Installation) -> None:
    folder = installation.folder
    installation.behave(bw={"status": 3})
    done = run(installation.words(), folder)
    assert done.returncode == 1
    assert "awaken: bw, 2 ranks: it ended with status 3: done with bw" in done.stderr
    assert "it ended with status 3" in (folder / "awaken-report.html").read_text()
    installation.behave()
    done = run(installation.words(), folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("done before, kept") == 2
    assert installation.calls == ["bench latency", "bench bw", "bench allreduce", "bench bw"]
    # Asked for differently, all is measured again.
    assert run(installation.words("--full"), folder).returncode == 0
    assert len(installation.calls) == 4 + 3


@pytest.mark.parametrize("nodes", [1, 3])
def test_full_measures_more_and_between_nodes(installation: Installation, nodes: int) -> None:
    """On the nodes of an allocation; else on nodes that Awaken pretends."""
    commands = frozenset({"bench"})
    plan = suite.Plan(installation.awaken, (str(installation.launcher),), ranks=4, nodes=nodes, commands=commands)
    quick, full = ({step.name: step for step in suite.steps(replace(plan, full=more))} for more in (False, True))
    assert set(full) - set(quick) == {
        *("bibw", "latency_between_nodes", "bw_between_nodes", "bibw_between_nodes"),
        *(f"{name}-4" for name in ("reduce", "bcast", "gather", "allgather", "alltoall", "reduce_scatter")),
    }
    ranks = ("-n", "2") if nodes == 1 else ("-ppn", "1", "-n", "2")
    for test in ("latency", "bw", "bibw"):
        step = full[f"{test}_between_nodes"]
        assert step.environment.get("AWAKEN_TEST_NODES", "") == ("2" if nodes == 1 else "")
        assert step.command[: step.command.index("bench") - 1] == (str(installation.launcher), *ranks)
        assert step.command[step.command.index("bench") + 1] == test


def test_the_signal_that_ended_a_measurement_is_told(installation: Installation) -> None:
    """Not all have a name: Python knows none for most of the real-time signals."""
    installation.behave(latency={"signal": int(signal.SIGKILL)}, bw={"signal": int(signal.SIGRTMIN) + 1})
    done = run(installation.words(), installation.folder)
    assert done.returncode == 1
    assert "awaken: latency, 2 ranks: it was ended by SIGKILL\n" in done.stderr
    assert f"awaken: bw, 2 ranks: it was ended by signal {int(signal.SIGRTMIN) + 1}\n" in done.stderr


@pytest.mark.parametrize(("terminal", "rewrites"), [("xterm-256color", True), ("dumb", False), ("", False)])
def test_progress_goes_by_what_the_terminal_can(terminal: str, rewrites: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", terminal)
    suite.progress("latency ...")
    suite.progress("latency: 2 s")
    clear = "\r\x1b[K"
    assert stream.getvalue() == (
        f"{clear}latency ...{clear}latency: 2 s\n" if rewrites else "latency ...\nlatency: 2 s\n"
    )


def test_an_empty_result_is_none(installation: Installation) -> None:
    """A command may make its file first, and fail before it has anything to write to it."""
    folder = installation.folder
    installation.behave(bw={"result": "", "status": 1})
    done = run(installation.words(), folder)
    assert done.returncode == 1
    assert "awaken: bw, 2 ranks: it ended with status 1: done with bw" in done.stderr
    assert not (folder / "awaken-report" / "bw.json").exists()
    installation.behave()
    done = run(installation.words(), folder)
    assert done.returncode == 0, done.stderr
    assert installation.calls == ["bench latency", "bench bw", "bench allreduce", "bench bw"]


def test_what_hangs_is_ended_and_the_next_is_measured(installation: Installation) -> None:
    sizes = [logs.measurement(size, 10.0) for size in (8, 64)]
    found = json.dumps(logs.bench("bw", [logs.contender("awaken", sizes)]))
    installation.behave(latency={"hang": True}, bw={"hang": True, "result": found})
    done = run(installation.words("--time-limit", "5"), installation.folder)
    assert done.returncode == 1
    assert "latency, 2 ranks: it did not end within 5 s" in done.stderr
    # What had been written when the time was up is shown, and a rerun measures it again.
    assert "bw, 2 ranks: it did not end within 5 s" in done.stderr
    page = (installation.folder / "awaken-report.html").read_text()
    assert "Allreduce, 2 ranks" in page and "Bandwidth, 2 ranks" in page and "Latency, 2 ranks" not in page
    installation.behave()
    done = run(installation.words(), installation.folder)
    assert done.returncode == 0 and done.stderr.count("done before, kept") == 1


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("number", "found"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_interrupted_it_writes_what_it_has(installation: Installation, number: signal.Signals, found: bool) -> None:
    """`found`: whether the step that was interrupted had written anything."""
    sizes = [logs.measurement(size, 10.0) for size in (8, 64)]
    result = json.dumps(logs.bench("allreduce", [logs.contender("awaken", sizes)]))
    installation.behave(allreduce={"hang": True, **({"result": result} if found else {})})
    folder = installation.folder
    words = installation.words()
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests may ignore it (nohup), and processes inherit that.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        deadline = time.monotonic() + harness.HANG_S
        while not (folder / "hangs").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=harness.HANG_S)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    page = (folder / "awaken-report.html").read_text()
    assert "Latency, 2 ranks" in page and "Bandwidth, 2 ranks" in page and ("Allreduce, 2 ranks" in page) == found
    assert not [
        path for path in (folder / "awaken-report").iterdir() if ".part" in path.name and path.suffix == ".json"
    ]
    # Killed, it is gone as soon as whoever it was left to takes note of it.
    hanging, deadline = int((folder / "hangs").read_text()), time.monotonic() + harness.HANG_S
    while is_running(hanging):
        assert time.monotonic() < deadline, "what was measured is still running"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("mpiexec", "mpiexec"),
        ("srun -n {ranks}", "srun"),
        ("srun --mpi=pmix --ntasks={ranks}", "srun --mpi=pmix"),
        ("srun -n {ranks} --mpi pmi2 --overlap", "srun --mpi pmi2 --overlap"),
        ("mpiexec -np {ranks} -bind-to core", "mpiexec -bind-to core"),
        ("mpiexec -n {ranks} numactl -l", "mpiexec -n {ranks} numactl -l"),
        ("mpiexec -n {ranks} -bind-to core numactl -l", "mpiexec -n {ranks} -bind-to core numactl -l"),
        ("start {ranks}", "start {ranks}"),
        ("mpiexec -n {ranks} -ppn {ranks}", "mpiexec -n {ranks} -ppn {ranks}"),
    ],
)
def test_the_doctor_uses_the_launcher_of_the_others(tmp_path: Path, launcher: str, words: str) -> None:
    """Else it tells of the MPI whose mpiexec is first in PATH."""
    plan = suite.Plan(tmp_path / "awaken", tuple(launcher.split()), commands=frozenset({"doctor", "topo"}))
    for step in suite.steps(plan):
        assert shlex.split(step.command[step.command.index("--launcher") + 1]) == words.split()


@pytest.mark.parametrize("words", [("--launcher", "mpiexec -n 4"), ("--mpiexec", "mpiexec -n {ranks}", "--ranks", "4")])
def test_the_launcher_may_name_the_ranks(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str]
) -> None:
    """As for awaken bench, whose launcher names them."""
    monkeypatch.setattr(suite, "native_commands", lambda _program: frozenset({"bench"}))
    monkeypatch.setenv("PATH", str(installation.launcher.parent))
    options = report.parser().parse_args([*words, "--awaken", str(tmp_path / "awaken")])
    plan, steps = report._plan(options)
    assert plan.launched(2, ("app",)) == ("mpiexec", "-n", "2", "app")
    commands = {step.name: step.command for step in steps}
    assert commands["latency"][:3] == ("mpiexec", "-n", "2")
    assert commands["allreduce-4"][:3] == ("mpiexec", "-n", "4")
    assert commands["doctor"][commands["doctor"].index("--launcher") + 1] == "mpiexec"


def test_the_launcher_is_that_which_the_doctor_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another MPI's would start each rank as a job of its own."""
    monkeypatch.setattr(suite, "native_commands", lambda _program: frozenset({"bench"}))
    for folder in ("path", "package", "mpi"):
        launcher = tmp_path / folder / "bin" / "mpiexec"
        launcher.parent.mkdir(parents=True)
        launcher.write_text("#!/bin/sh\n")
        launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.delenv("AWAKEN_MPI", raising=False)

    def found(awaken: str) -> str:
        plan, _ = report._plan(report.parser().parse_args(["--awaken", str(tmp_path / awaken / "bin" / "awaken")]))
        return str(Path(plan.launcher[0]).relative_to(tmp_path))

    assert found("elsewhere") == "path/bin/mpiexec"
    assert found("package") == "package/bin/mpiexec"
    monkeypatch.setenv("AWAKEN_MPI", str(tmp_path / "mpi" / "lib" / "libmpi.so.12"))
    assert found("package") == "mpi/bin/mpiexec"


def test_two_runs_do_not_measure_into_one_folder(installation: Installation) -> None:
    installation.behave(latency={"hang": True})
    with subprocess.Popen(
        installation.words(), cwd=installation.folder, env=environment(), stderr=subprocess.PIPE, text=True
    ) as first:
        try:
            deadline = time.monotonic() + harness.HANG_S
            while not (installation.folder / "hangs").exists():
                assert time.monotonic() < deadline and first.poll() is None
                time.sleep(0.01)
            second = run(installation.words(), installation.folder)
        finally:
            first.terminate()
            first.communicate(timeout=harness.HANG_S)
    assert second.returncode == 2
    assert second.stderr == (
        "awaken: awaken-report cannot be used (another awaken report measures there): "
        "choose another folder with --folder\n"
    )
    assert installation.calls == ["bench latency"]
    installation.behave()
    assert run(installation.words(), installation.folder).returncode == 0


def test_a_folder_that_nothing_can_be_written_to(installation: Installation) -> None:
    done = run(installation.words("--folder", "/proc"), installation.folder)
    assert done.returncode == 2
    assert done.stderr.startswith("awaken: /proc cannot be used (") and done.stderr.count("\n") == 1
    assert installation.calls == []


def test_as_one_of_several_ranks_it_measures_nothing(installation: Installation) -> None:
    """The ranks would all do so at once, in one folder."""
    rank = {**environment(), "PMI_RANK": "1", "PMI_SIZE": "2"}
    done = subprocess.run(
        installation.words(),
        cwd=installation.folder,
        env=rank,
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )
    assert done.returncode == 2
    assert "awaken report starts jobs by itself: call it without mpiexec or srun, once" in done.stderr
    assert installation.calls == []


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_nothing_takes_the_place_of_a_pipe_or_a_link(tmp_path: Path, kind: str) -> None:
    """As it would of /dev/stdout and /dev/null, where the user may change those."""
    (tmp_path / "a.log").write_text(logs.osu("7.4", [(8, 1.0)]))
    output, target = tmp_path / "page.html", tmp_path / "target.html"
    command = [sys.executable, "-m", "awaken", "report", "a.log", "-o", str(output)]
    if kind == "link":
        target.write_text("")
        output.symlink_to(target)
        assert run(command, tmp_path).returncode == 0
        assert output.is_symlink()
        page = target.read_text()
    else:
        os.mkfifo(output)
        with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL) as process:
            reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)
            assert process.wait(timeout=harness.HANG_S) == 0
            with os.fdopen(reader) as stream:
                page = stream.read()
    assert page.endswith("</html>\n")


def test_a_title_of_other_bytes_than_text(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(logs.osu("7.4", [(8, 1.0)]))
    title = os.fsdecode(b"caf\xe9")
    done = run([sys.executable, "-m", "awaken", "report", "a.log", "--title", title], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<h1>caf\\udce9</h1>" in (tmp_path / "awaken-report.html").read_text()


def test_results_that_cannot_be_read_are_named(installation: Installation) -> None:
    installation.behave(bw={"result": '{"schema": "awaken-bench", "version": 1, "runs": ['})
    done = run(installation.words(), installation.folder)
    assert done.returncode == 1
    assert "bw.json:1: it is not JSON" in done.stderr


@pytest.mark.parametrize("emulate", ["cuda", "hip7:2", "hip:16"])
def test_gpus_that_the_emulated_driver_knows(installation: Installation, emulate: str) -> None:
    assert run(installation.words("--emulate", emulate, "--list"), installation.folder).returncode == 0


def test_a_list_measures_nothing(installation: Installation) -> None:
    done = run(installation.words("--list"), installation.folder)
    assert done.returncode == 0 and done.stdout.split()[0] == "latency"
    assert installation.calls == [] and not (installation.folder / "awaken-report.html").exists()
    name = "latency_between_nodes"
    done = run(installation.words("--full", "--only", name, "--list"), installation.folder)
    assert done.stdout.split()[0] == name


def test_a_folder_of_an_earlier_run_can_be_read(installation: Installation) -> None:
    folder = installation.folder
    assert run(installation.words(), folder).returncode == 0
    done = run([sys.executable, "-m", "awaken", "report", "awaken-report", "-o", "again.md"], folder)
    assert done.returncode == 0, done.stderr
    page = (folder / "again.md").read_text()
    assert "## Latency, 2 ranks" in page
    assert re.search(r"^\| latency \| .*bench latency D D .* \\\(\d+\.\d s\\\) \|$", page, re.MULTILINE)
    same = run([sys.executable, "-m", "awaken", "compare", "awaken-report", "awaken-report"], folder)
    assert (same.returncode, same.stdout) == (0, "0 worse, 0 better, 6 same\n")


def test_a_folder_of_a_run_in_which_one_failed(installation: Installation) -> None:
    """The log of what failed is no result that cannot be read: what went wrong is told instead."""
    folder = installation.folder
    installation.behave(bw={"status": 3})
    assert run(installation.words(), folder).returncode == 1
    done = run([sys.executable, "-m", "awaken", "report", "awaken-report", "-o", "again.html"], folder)
    assert done.returncode == 1
    assert done.stderr.startswith("awaken: bw: it ended with status 3: done with bw\n")
    assert "no kind of result" not in done.stderr
    page = (folder / "again.html").read_text()
    assert "Latency, 2 ranks" in page and "it ended with status 3" in page


@pytest.mark.parametrize("joined", [True, False])
def test_a_folder_of_a_trace_is_drawn_once(tmp_path: Path, joined: bool) -> None:
    ranks = [logs.trace([(rank, "MPI_Send", "direct", 1.0, 5.0)]) for rank in range(3)]
    for rank, one in enumerate(ranks):
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(one))
    (tmp_path / "process-7.json").write_text(json.dumps(ranks[0]))
    (tmp_path / "rank-times.json").write_text(json.dumps(ranks[0]))
    if joined:
        together = {"traceEvents": [event for one in ranks for event in one["traceEvents"]]}
        (tmp_path / "trace.json").write_text(json.dumps(together))
    done = run([sys.executable, "-m", "awaken", "report", ".", "-o", "page.html"], tmp_path)
    assert done.returncode == 0, done.stderr
    drawn = re.findall(r"Timeline of ([\w-]+)", (tmp_path / "page.html").read_text())
    assert set(drawn) == (
        {"rank-times", "trace"} if joined else {"rank-0", "rank-1", "rank-2", "process-7", "rank-times"}
    )


@pytest.mark.parametrize(
    ("command", "label"),
    [("report", "osu@"), ("report", "osu@4x"), ("report", "osu@0"), ("report", "osu@4:X"), ("compare", "a@b")],
)
def test_what_is_told_of_a_log_must_make_sense(tmp_path: Path, command: str, label: str) -> None:
    word = f"{label}=good.log"
    (tmp_path / "good.log").write_text(logs.osu("7.4", [(8, 1.0)]))
    done = run([sys.executable, "-m", "awaken", command, word, "good.log"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"awaken: {word}: after @") and done.stderr.count("\n") == 1


def test_of_several_files_a_bad_one_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text(logs.osu("7.4", [(8, 1.0), (16, 2.0)]))
    (tmp_path / "bad.log").write_text("nothing\n")
    words = [sys.executable, "-m", "awaken", "report", "first=good.log", "second=good.log", "bad.log"]
    done = run(words, tmp_path)
    assert done.returncode == 1
    assert "bad.log: no kind of result" in done.stderr
    page = (tmp_path / "awaken-report.html").read_text()
    assert "first, 8 B" in page and "second, 8 B" in page and "bad.log" in page


@pytest.mark.parametrize("command", ["report", "compare"])
def test_nothing_waits_for_pipes_in_a_folder(tmp_path: Path, command: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("steps.json", "a.json", "trace.json", "rank-0.json", "b.log"):
        os.mkfifo(folder / name)
    good = tmp_path / "good.log"
    good.write_text(logs.osu("7.4", [(8, 1.0), (16, 2.0)]))
    done = run([sys.executable, "-m", "awaken", command, "folder", "good.log"], tmp_path)
    assert done.returncode == (1 if command == "report" else 2)
    for name in ("a.json", "trace.json", "b.log"):
        assert f"folder/{name}: it is a pipe" in done.stderr


def test_words_of_the_user_send_no_commands_to_the_terminal(tmp_path: Path) -> None:
    erase = "\x1b[2J"
    for words in (
        [f"{erase}x"],
        ["report", f"{erase}x"],
        ["report", "-o", f"{erase}/x"],
        ["compare", erase, erase],
        ["scale", "--launcher", "", erase],
        *(
            [*command, f"--{erase}"]
            for command in (["compare", "a", "b"], ["doctor"], ["report"], ["topo"], ["trace", "a"])
        ),
    ):
        done = run([sys.executable, "-m", "awaken", *words], tmp_path)
        assert done.returncode in (1, 2)
        assert "\\x1b[2J" in done.stderr and "\x1b" not in done.stderr
    done = run([sys.executable, "-m", "awaken", "x" * 5000], tmp_path)
    assert len(done.stderr) < 500


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--emulate", "voodoo:2"], "--emulate cuda:2"),
        (["--ranks", "1"], "at least 2"),
        (["--only", "nonsense"], "no measurement nonsense"),
        (["-o", "missing/page.html"], "there is no folder"),
        (["-o", "page.json"], ".html or .md"),
        (["--time-limit", "0"], "above 0"),
        (["--time-limit", "inf"], "at most 1000000"),
        (["--launcher", "'"], "write it as for a shell"),
        (["--launcher", "no-such-launcher"], "there is no program 'no-such-launcher'"),
        (["--apps", "missing"], "no such folder"),
        (["--folder", "awaken"], "cannot be used"),
    ],
)
def test_misuse_is_status_2_with_one_line(installation: Installation, words: list[str], told: str) -> None:
    done = run(installation.words(*words), installation.folder)
    assert done.returncode == 2
    assert done.stderr.startswith("awaken: ") and done.stderr.count("\n") == 1 and told in done.stderr
    assert installation.calls == []


def test_without_any_result_there_is_no_page(tmp_path: Path) -> None:
    done = run([sys.executable, "-m", "awaken", "report", "missing.json"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("awaken: missing.json: No such file") and "no page is written" in done.stderr
    assert done.stderr.count("missing.json") == 1 and done.stderr.count("\n") == 1
    assert not (tmp_path / "awaken-report.html").exists()


def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    """One line says so, and what to do."""
    mpi = harness.mpis()["mpich"]
    if mpi.missing or any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/kfd")) or harness.sanitizer():
        pytest.skip(mpi.missing or "this machine has a GPU, or the build is slow")
    words = ["--awaken", str(harness.awaken()), "--launcher", str(mpi.mpiexec), "--only", "latency"]
    done = run([sys.executable, "-m", "awaken", "report", *words], tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith("awaken: there is no GPU (") and "--emulate cuda:2" in done.stderr
    assert not list(tmp_path.iterdir())


def test_on_emulated_gpus(tmp_path: Path) -> None:
    """The real programs, in small: one test, whose page has what ran and the paths, and no times."""
    mpi = harness.mpis()["mpich"]
    if mpi.missing:
        pytest.skip(mpi.missing)
    runner = harness.awaken().parent.parent / "lib" / "awaken" / "bench" / "awaken-bench"
    if not runner.exists() or harness.sanitizer():
        pytest.skip(f"{runner} was not built")
    words = [
        "--awaken",
        str(harness.awaken()),
        "--launcher",
        str(mpi.mpiexec),
        "--emulate",
        "cuda:2",
        "--only",
        "latency",
    ]
    done = run([sys.executable, "-m", "awaken", "report", *words], tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "awaken-report.html").read_text()
    assert "Not by itself; with Awaken, yes" in page
    assert "emulated GPUs" in page and "How the bytes travelled" in page
    assert '<td class="prose">Awaken</td><td class="prose">8 B to ' in page and "raw copy" in page
    assert not re.search(r"\d (µs|ms|[kMG]B/s)", page) and "Emulated GPUs do not show it" in page
    measured = json.loads((tmp_path / "awaken-report" / "latency.json").read_text())
    assert {one["name"] for one in measured["runs"][0]["contenders"]} == {"native", "awaken", "staged", "xccl", "raw"}


REAL_LOGS = os.environ.get("TEST_BENCHMARK_PROGRAMS", "")


@pytest.mark.skipif(not REAL_LOGS, reason="TEST_BENCHMARK_PROGRAMS names no folder with osu_* or IMB-MPI1 programs")
def test_logs_of_the_real_programs(tmp_path: Path) -> None:
    """TEST_BENCHMARK_PROGRAMS=DIR: every osu_* and IMB-MPI1 below it that two ranks can run prints what can be read."""
    mpi = harness.mpis()["mpich"]
    programs = sorted(path for path in Path(REAL_LOGS).rglob("*") if path.name.startswith(("osu_", "IMB-MPI1")))
    programs = [path for path in programs if path.is_file() and os.access(path, os.X_OK) and path.suffix == ""]
    assert programs, f"there is no osu_* and no IMB-MPI1 below {REAL_LOGS}"
    read = 0
    for path in programs:
        arguments = ["-iter", "5", "-msglog", "0:3"] if path.name == "IMB-MPI1" else ["-i", "5", "-x", "1", "-m", "64"]
        if path.name in ("osu_init", "osu_hello"):
            arguments = []
        command = [str(mpi.mpiexec), "-n", "2", str(path), *arguments]
        done = subprocess.run(
            command,
            env=harness.clean_environment(),
            capture_output=True,
            text=True,
            timeout=harness.HANG_S,
            check=False,
        )
        if done.returncode != 0 or not re.search(r"^\s*\d[\d.]*\s+[\d. ]*\d$|^nprocs", done.stdout, re.MULTILINE):
            continue  # it needs more ranks or nodes, knows other options, or has no figures
        log = tmp_path / f"{path.name}.log"
        log.write_text(done.stdout)
        checked = run([sys.executable, "-m", "awaken", "report", str(log), "-o", "page.md"], tmp_path)
        assert (checked.returncode, checked.stderr) == (0, "report written: page.md\n"), f"{path}\n{done.stdout}"
        read += 1
    assert read
