# SPDX-License-Identifier: Apache-2.0
"""Comparisons whose contenders need processes of their own: other environments, other MPIs, launches that fail."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest
from aborted_runs import clean_up

SIZES = ("-m", "8:4096", "--step-factor", "512", "--max-time", "0.02")


@pytest.fixture
def launcher(mpi_named: Callable[[str], harness.Mpi]) -> Callable[..., str]:
    """The words of --launcher for an MPI of the tests, with the settings that it needs on this machine."""

    def words(name: str, ranks: int = 2) -> str:
        mpi = mpi_named(name)
        settings = [f"{key}={value}" for key, value in mpi.environment.items()]
        return shlex.join(["env", *settings, str(mpi.mpiexec), *mpi.arguments, "-n", str(ranks)])

    return words


@pytest.fixture
def compare(awaken_program: Path) -> Callable[..., harness.Result]:
    """Starts `awaken bench` itself, without a launcher."""

    def run(*words: str, **environment: str) -> harness.Result:
        command = [str(awaken_program), "bench", *words]
        return harness.run(command, {**harness.clean_environment(), **environment}, harness.HANG_S)

    return run


def contenders_in(report: Path) -> dict[str, dict[str, Any]]:
    (measured,) = json.loads(report.read_text())["runs"]
    return {contender["name"]: contender for contender in measured["contenders"]}


def test_two_mpis_and_two_environments(
    compare: Callable[..., harness.Result], launcher: Callable[..., str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    result = compare(
        "latency", "D", "D", *SIZES, "--json", str(report),
        "--compare", "awaken,staged,other=awaken,copied=awaken+AWAKEN_PINNED_POOL=1M",
        "--launcher", launcher("mpich"), "--launcher", "other=" + launcher("openmpi"),
        AWAKEN_EMULATE="cuda:2",
    )  # fmt: skip
    result.check()
    found = contenders_in(report)
    assert list(found) == ["awaken", "staged", "other", "copied"]
    for contender in found.values():
        assert not contender["unavailable"], contender
        assert [measurement["size"] for measurement in contender["measurements"]] == [8, 4096]
        assert all(measurement["validated"] and not measurement["errors"] for measurement in contender["measurements"])
    assert found["awaken"]["description"].startswith("MPICH")
    assert found["other"]["description"].startswith("Open MPI")
    # The variable reached that contender's ranks, and no others'.
    manifest = json.loads(report.read_text())["manifest"]
    with_pool = [key for key in manifest if key.endswith("environment.AWAKEN_PINNED_POOL")]
    assert with_pool == ["copied: environment.AWAKEN_PINNED_POOL"], manifest
    for name in found:
        assert name in result.output


def test_a_terminal_is_told_how_far_it_is(
    awaken_program: Path, launcher: Callable[..., str], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """Which size and which contender; and nothing of it stays."""
    words = [
        str(awaken_program), "bench", "latency", *SIZES, "--compare", "native,other=native+A=1", "--launcher",
        launcher("mpich"),
    ]  # fmt: skip
    for more, told in (([], True), (["--no-progress"], False)):
        terminal, stderr = os.openpty()
        with subprocess.Popen(
            [*words, *more], env=harness.clean_environment(), stdout=subprocess.PIPE, stderr=stderr
        ) as process:
            os.close(stderr)
            shown = b""
            # The end of a terminal whose other side has gone is an error.
            with contextlib.suppress(OSError):
                while read := os.read(terminal, 65536):
                    shown += read
            os.close(terminal)
            assert process.stdout is not None and b"\033" not in process.stdout.read()
            assert process.wait(harness.HANG_S) == 0, shown
        lines = shown.decode().split("\r\033[K")
        expected = [
            f"latency: {size} bytes ({at} of 2), {name}"
            for at, size in ((1, 8), (2, 4096))
            for name in ("native", "other")
        ]
        assert (set(expected) <= set(lines)) == told, lines
        assert lines[-1] == "", lines


def test_command_lines_tell_no_secret(
    compare: Callable[..., harness.Result], launcher: Callable[..., str], tmp_path: Path
) -> None:
    """Every user of the machine can read them. What lets a rank ask for its turn is in a file of this user's."""
    words = tmp_path / "words"
    script = tmp_path / "launch.py"
    script.write_text(
        "import os, stat, sys\n"
        "file = sys.argv[sys.argv.index('--turns') + 1]\n"
        "open_to = stat.S_IMODE(os.stat(os.path.dirname(file)).st_mode)\n"
        "parts = open(file).read().split(':')\n"
        f"open({str(words)!r}, 'w').write(f'{{open_to:o}} {{any(parts[-2] in word for word in sys.argv)}}')\n"
        "os.execvp(sys.argv[1], sys.argv[1:])\n"
    )
    result = compare(
        "latency", *SIZES, "--compare", "native,other=native+A=1",
        "--launcher", f"{sys.executable} {script} {launcher('mpich')}",
    )  # fmt: skip
    assert result.status == 0, result.explain()
    assert words.read_text() == "700 False"


def test_a_launch_that_fails_is_named_and_the_others_go_on(
    compare: Callable[..., harness.Result], launcher: Callable[..., str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    result = compare(
        "latency", *SIZES, "--json", str(report), "--compare", "native,absent=native,broken=native",
        "--launcher", launcher("mpich"), "--launcher", "absent=/nonexistent/mpiexec -n 2",
        "--launcher", "broken=sh -c 'echo the launcher is broken >&2; exit 3'",
    )  # fmt: skip
    result.check()
    found = contenders_in(report)
    assert not found["native"]["unavailable"]
    assert "No such file" in found["absent"]["unavailable"]
    assert "the launcher is broken" in found["broken"]["unavailable"]
    assert "# broken could not run: the launcher is broken" in result.output


def test_a_launch_that_crashes_is_named_and_the_others_go_on(
    compare: Callable[..., harness.Result], launcher: Callable[..., str], tmp_path: Path
) -> None:
    """Device memory given to an MPI that cannot take it, because the user said so."""
    report = tmp_path / "report.json"
    result = compare(
        "latency", "D", "D", *SIZES, "--json", str(report), "--assume-gpu-aware",
        "--compare", "awaken,plain=native", "--launcher", launcher("mpich"),
        "--launcher", "plain=" + launcher("openmpi"),
        AWAKEN_EMULATE="cuda:2",
    )  # fmt: skip
    assert result.status == 0, result.explain()
    found = contenders_in(report)
    assert not found["awaken"]["unavailable"]
    assert len(found["awaken"]["measurements"]) == 2
    assert found["plain"]["unavailable"], found
    assert "# plain could not run: " in result.output


def test_a_launch_whose_contender_cannot_run_is_no_failure(
    compare: Callable[..., harness.Result], launcher: Callable[..., str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    result = compare(
        "latency", "D", "D", *SIZES, "--json", str(report), "--compare", "awaken,plain=native",
        "--launcher", launcher("mpich"), "--launcher", "plain=" + launcher("openmpi"),
        AWAKEN_EMULATE="cuda:2",
    )  # fmt: skip
    result.check()
    found = contenders_in(report)
    assert not found["awaken"]["unavailable"]
    assert "does not take CUDA memory" in found["plain"]["unavailable"]
    assert "ended early" not in result.output


@pytest.mark.parametrize("words", ["{}", "{} -n {{ranks}} env"])
def test_ranks_may_be_told_beside_the_launcher(
    compare: Callable[..., harness.Result], mpi_named: Callable[[str], harness.Mpi], tmp_path: Path, words: str
) -> None:
    """As for the commands that start their ranks themselves."""
    report = tmp_path / "report.json"
    launcher = words.format(mpi_named("mpich").mpiexec)
    arguments = ("allreduce", *SIZES, "--json", str(report), "--compare", "native", "--ranks", "3")
    result = compare(*arguments, "--mpiexec", launcher)
    clean_up(result)
    assert result.status == 0, result.explain()
    assert not contenders_in(report)["native"]["unavailable"]
    assert json.loads(report.read_text())["runs"][0]["ranks"] == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--launcher", "mpiexec -n {ranks}"), "does not say how many ranks to start: add --ranks N"),
        (("--launcher", "mpiexec -n 2", "--ranks", "4"), "says how many ranks, and so does --ranks 4: leave out one"),
    ],
)
def test_ranks_have_to_be_told_once(compare: Callable[..., harness.Result], words: tuple[str, ...], told: str) -> None:
    result = compare("latency", *SIZES, "--compare", "native", *words)
    assert result.status != 0 and told in result.output, result.explain()


def test_when_no_launch_works_it_says_why(compare: Callable[..., harness.Result]) -> None:
    result = compare("latency", *SIZES, "--compare", "native", "--launcher", "/nonexistent/mpiexec -n 2")
    assert result.status != 0
    assert "no contender could run" in result.output
    assert "No such file" in result.output


def test_other_numbers_of_ranks_are_left_out(
    compare: Callable[..., harness.Result], launcher: Callable[..., str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    result = compare(
        "allreduce", *SIZES, "--json", str(report), "--compare", "native,more=native",
        "--launcher", launcher("mpich"), "--launcher", "more=" + launcher("mpich", 3),
    )  # fmt: skip
    clean_up(result)
    assert result.status == 0, result.explain()
    found = contenders_in(report)
    assert found["more"]["unavailable"] == "it runs on 3 ranks, and native on 2"
    assert len(found["native"]["measurements"]) == 2


def test_inside_a_batch_script_and_with_words_behind_two_dashes(
    compare: Callable[..., harness.Result], launcher: Callable[..., str], tmp_path: Path
) -> None:
    """Slurm's batch scripts know how many tasks there may be; nothing has been launched yet."""
    report = tmp_path / "report.json"
    result = compare(
        "latency", *SIZES, "--json", str(report), "--compare", "native",
        "--launcher", launcher("mpich"), "--", "H", "H",
        SLURM_NTASKS="4",
    )  # fmt: skip
    result.check()
    assert len(contenders_in(report)["native"]["measurements"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_launch_that_never_gets_going_is_given_up(
    compare: Callable[..., harness.Result], launcher: Callable[..., str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    result = compare(
        "latency", *SIZES, "--json", str(report), "--start-limit", "10", "--compare", "native,mute=native",
        "--launcher", launcher("mpich"), "--launcher", "mute=sh -c 'exec tail -f /dev/null'",
    )  # fmt: skip
    result.check()
    found = contenders_in(report)
    assert not found["native"]["unavailable"]
    assert "came within 10 s" in found["mute"]["unavailable"]


@pytest.mark.parametrize("named", ["beside awaken", "in PATH", "by AWAKEN_MPI"])
def test_ranks_are_started_without_a_launcher(
    compare: Callable[..., harness.Result],
    mpi_named: Callable[[str], harness.Mpi],
    awaken_program: Path,
    tmp_path: Path,
    named: str,
) -> None:
    """As `awaken doctor` finds it; another one, which comes later, fails."""
    mpi = mpi_named("mpich")
    installed = mpi.mpiexec.parents[1]
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "mpiexec").write_text("#!/bin/sh\nexit 3\n")
    (wrong / "mpiexec").chmod(0o755)
    path = f"{wrong}:{harness.clean_environment()['PATH']}"
    report = tmp_path / "report.json"
    words = ["allreduce", "D", "D", *SIZES, "--json", str(report), "--compare", "native,awaken", "--ranks", "3"]
    if named == "beside awaken":
        prefix = tmp_path / "prefix"
        shutil.copytree(awaken_program.parent, prefix / "bin", symlinks=True)
        shutil.copytree(awaken_program.parents[1] / "lib" / "awaken", prefix / "lib" / "awaken", symlinks=True)
        (prefix / "bin" / "mpiexec").write_text(f'#!/bin/sh\nexec {mpi.mpiexec} "$@"\n')
        (prefix / "bin" / "mpiexec").chmod(0o755)
        environment = {**harness.clean_environment(), "AWAKEN_EMULATE": "cuda:2", "PATH": path}
        result = harness.run([str(prefix / "bin" / "awaken"), "bench", *words], environment, harness.HANG_S)
    elif named == "in PATH":
        result = compare(*words, AWAKEN_EMULATE="cuda:2", PATH=f"{mpi.mpiexec.parent}:{path}")
    else:
        library = next((installed / "lib").glob("libmpi.so.12"))
        result = compare(*words, AWAKEN_EMULATE="cuda:2", AWAKEN_MPI=str(library), PATH=path)
    result.check()
    found = contenders_in(report)
    assert list(found) == ["native", "awaken"] and not found["awaken"]["unavailable"]
    assert json.loads(report.read_text())["runs"][0]["ranks"] == 3


def test_no_launcher_at_all(compare: Callable[..., harness.Result], tmp_path: Path) -> None:
    result = compare("latency", "--compare", "native,awaken", PATH=str(tmp_path))
    assert result.status == 2, result.explain()
    assert "no launcher is found to start native with" in result.output and "--launcher" in result.output
    result = compare("latency", PATH=str(tmp_path))
    assert result.status == 2, result.explain()
    assert "no launcher is found to start latency with" in result.output and "before `awaken bench`" in result.output


@pytest.mark.parametrize("more", [(), ("--compare", "native"), ("--quiet",)], ids=["alone", "compared", "quiet"])
def test_ranks_that_nobody_has_started(
    compare: Callable[..., harness.Result], mpi_named: Callable[[str], harness.Mpi], more: tuple[str, ...]
) -> None:
    """Two, and it is said who starts them."""
    mpi = mpi_named("mpich")
    path = f"{mpi.mpiexec.parent}:{harness.clean_environment()['PATH']}"
    result = compare("allreduce", "-m", "4:8", "-i", "2", *more, PATH=path)
    result.check()
    assert len([line for line in result.output.splitlines() if line.split()[:1] in (["4"], ["8"])]) in (2, 4)
    note = f"awaken: no launcher is named, so {'native' if more[1:] else 'allreduce'} runs under {mpi.mpiexec} -n 2"
    assert result.output.count(note) == (0 if "--quiet" in more else 1), result.output


def test_ranks_of_a_launched_comparison(mpi_named: Callable[[str], harness.Mpi], awaken_program: Path) -> None:
    """They are the launcher's, be it a single one; a comparison must not start others from within."""
    mpi = mpi_named("mpich")
    environment = {**harness.clean_environment(), **mpi.environment}
    start = [
        str(mpi.mpiexec),
        *mpi.arguments,
        "-n",
        "1",
        str(awaken_program),
        "bench",
        "latency",
        "--compare",
        "native",
    ]
    result = harness.run(start, environment, harness.HANG_S)
    assert result.status != 0 and "latency needs exactly 2 ranks, and runs on 1" in result.output
    result = harness.run([*start, "--ranks", "2"], environment, harness.HANG_S)
    assert result.status != 0 and "--ranks is for comparisons that start their own ranks" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "2"), "--ranks is for comparisons: add --compare, or write the launcher before it"),
        (
            ("--launcher", "mpiexec -n 2"),
            "--launcher is for comparisons: add --compare, or write the launcher before it",
        ),
        (("--compare", "native", "--launcher", "y=mpiexec -n 2"), "names the contender y"),
        (("--compare", "native", "--launcher", "mpiexec -n 2 |"), "is not a command"),
        (("--compare", "native", "--launcher", "mpiexec 'x"), "is not a command"),
        (("--compare", "native", "--launcher", "true", "--listen", "256.1.1.1"), "cannot be used"),
        (("--compare", "a=native,b=native+A=1", "--launcher", "true", "-clog:logs"), "one folder for 2 launches"),
        # Before anything is started: `false` would be the reason otherwise.
        (("--compare", "native", "--launcher", "false", "--json", "/nowhere/x"), "cannot write /nowhere/x"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_wrong_use(compare: Callable[..., harness.Result], words: tuple[str, ...], message: str) -> None:
    result = compare("latency", *words)
    assert result.status == 2, result.explain()
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_not_inside_an_mpi_job(mpi_named: Callable[[str], harness.Mpi], awaken_program: Path) -> None:
    command: list[str | Path] = [
        awaken_program,
        "bench",
        "latency",
        "--compare",
        "native,x=native+A=1",
        "--launcher",
        "mpiexec -n 2",
    ]
    result = harness.run_ranks(mpi_named("mpich"), 2, command, with_awaken=False)
    assert result.status != 0
    assert "without mpiexec" in result.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_interrupting_leaves_nothing(
    number: signal.Signals, awaken_program: Path, launcher: Callable[..., str], tmp_path: Path
) -> None:
    mark = f"interrupted-{os.getpid()}-{time.monotonic_ns()}"
    words = ["latency", "-m", "8:64M", "--max-time", "30", "--compare", "a=native+A=1,b=native+B=1"]
    process = subprocess.Popen(
        [awaken_program, "bench", *words, "--launcher", launcher("mpich")],
        env={**harness.clean_environment(), harness.MARK: mark, "TMPDIR": str(tmp_path)}, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # Whoever runs the tests may ignore it (nohup), and processes inherit that.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )  # fmt: skip
    # Once ranks of both launches run, they are measuring or waiting for their turn.
    deadline = time.monotonic() + harness.HANG_S
    while sum("awaken-bench" in harness.command_line(pid) for pid in harness.marked_processes(mark)) < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=harness.HANG_S)
    assert process.returncode == 128 + number, output
    assert f"ended by {signal.strsignal(number)}" in output
    assert harness.leftover_processes(mark) == []
    assert list(tmp_path.iterdir()) == []


def test_interrupting_keeps_what_was_measured(
    awaken_program: Path, launcher: Callable[..., str], tmp_path: Path
) -> None:
    mark = f"interrupted-{os.getpid()}-{time.monotonic_ns()}"
    report = tmp_path / "report.json"
    words = ["latency", "-m", "8:64M", "--precision", "0.0001", "--max-time", "0.5", "--json", str(report)]
    process = subprocess.Popen(
        [awaken_program, "bench", *words, "--compare", "a=native+A=1,b=native+B=1", "--launcher", launcher("mpich")],
        env={**harness.clean_environment(), harness.MARK: mark}, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + harness.HANG_S
    while sum('"size":8,' in file.read_text() for file in tmp_path.glob(".awaken-bench-*/?.json")) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=harness.HANG_S)
    assert process.returncode == 128 + signal.SIGINT, output
    found = contenders_in(report)
    assert all(found[name]["measurements"][0]["size"] == 8 for name in "ab"), output
    assert "the comparison was ended by Interrupt" in found["a"]["unavailable"], output
    assert "# b could not run: it ended early: the comparison was ended by Interrupt" in output
    assert harness.leftover_processes(mark) == []
    assert list(tmp_path.iterdir()) == [report]
