# SPDX-License-Identifier: Apache-2.0
"""`awaken scale`: what it runs, what it reads from it, and what it makes of the times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import harness
import pytest
from awaken import scale
from python_commands import ROOT, Done, run

SVG = "{http://www.w3.org/2000/svg}"

GHOST = "GhostExchange_ArrayAssign_HIP Timing is stencil 0.4 boundary condition 0.0037 ghost cell 0.034 total "
ALLREDUCE = (
    "Time in seconds for GPU Direct MPI_Allreduce using NCCL/RCCL: 1.5e-01\n"
    "Time in seconds for GPU Direct MPI_Allreduce using standard MPI library: "
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def awaken(*arguments: str, status: int = 0) -> Done:
    return run(scale.run, *arguments, status=status)


def program(text: str) -> list[str]:
    """A program that starts its ranks itself and prints a text; {...} is worked out by the command."""
    return ["--launcher", "", "--", "printf", "%s\\n", text]


def study(path: str = "scale.json") -> dict[str, object]:
    loaded = json.loads(Path(path).read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--launcher", "{} -n {{ranks}}"),
        ("--mpiexec", "{}"),
        ("--launcher", "{} -n 2"),
        ("--launcher", "{} -n 2 env"),
    ],
)
def test_launchers_that_leave_the_ranks_open_are_told(tmp_path: Path, option: str, words: str) -> None:
    """What other commands take as a launcher: all runs would have the same number of ranks."""
    launcher = tmp_path / "mpiexec"
    launcher.write_text('#!/bin/sh\nshift\necho "Time in seconds: $1"\n')
    launcher.chmod(0o755)
    awaken("--ranks", "1,3", "--repeat", "1", option, words.format(launcher), "--", "true")
    points = study()["points"]
    assert isinstance(points, list)
    assert [point["median_s"] for point in points] == [1, 3]


def test_strong_scaling(tmp_path: Path) -> None:
    # 8 s, 4 s and 2 s and a half: 100, 100 and 80 %.
    text = "Time in seconds: {8000//ranks + 500*(ranks//4)}e-3"
    done = awaken("--ranks", "1,2,4", "--repeat", "2", *program(text))
    found = study()
    assert (found["schema"], found["version"], found["mode"]) == ("awaken-scale", 1, "strong")
    points = found["points"]
    assert isinstance(points, list)
    assert [point["ranks"] for point in points] == [1, 2, 4]
    assert [point["median_s"] for point in points] == [8, 4, 2.5]
    assert [point["speedup"] for point in points] == pytest.approx([1, 2, 3.2])
    assert [point["efficiency"] for point in points] == pytest.approx([1, 1, 0.8])
    assert [point["runs"] for point in points] == [2, 2, 2]
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "ranks runs median (s) min (s) max (s) speed-up efficiency",
        "1 2 8 8 8 1.000 100.0 %",
        "2 2 4 4 4 2.000 100.0 %",
        "4 2 2.5 2.5 2.5 3.200 80.0 %",
    ]
    assert "6/6: 4 ranks: 2.5 s" in done.stderr
    assert "1/6: 1 rank: 8 s" in done.stderr


def test_weak_scaling() -> None:
    # The same share takes 2 s, then 2.5 s.
    awaken(
        "--ranks",
        "1,4",
        "--repeat",
        "1",
        "--weak",
        *program("rows {1000*ranks}\nTime in seconds: {2000 + 500*(ranks//4)}e-3"),
    )
    found = study()
    points = found["points"]
    assert isinstance(points, list)
    assert found["mode"] == "weak"
    assert [point["efficiency"] for point in points] == pytest.approx([1, 0.8])
    assert [point["speedup"] for point in points] == pytest.approx([1, 3.2])
    runs = found["runs"]
    assert isinstance(runs, list)
    assert runs[1]["command"][-1].startswith("rows 4000\n")


def test_the_fewest_ranks_are_the_base() -> None:
    awaken("--ranks", "2,8", "--repeat", "1", *program("Time in seconds: {80//ranks}"))
    points = study()["points"]
    assert isinstance(points, list)
    assert [point["speedup"] for point in points] == pytest.approx([1, 4])
    assert [point["efficiency"] for point in points] == pytest.approx([1, 1])


def test_the_median_and_the_spread_are_of_all_runs(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    script = f"n=$(cat {counter} 2>/dev/null || echo 0); echo $((n + 1)) > {counter}; echo Time in seconds: $((10 - n))"
    awaken("--ranks", "1", "--repeat", "3", "--launcher", "", "--", "sh", "-c", script)
    points = study()["points"]
    assert isinstance(points, list)
    (point,) = points
    assert (point["median_s"], point["min_s"], point["max_s"]) == (9, 8, 10)


@pytest.mark.parametrize(
    ("text", "options", "seconds"),
    [
        (GHOST + "0.807627", [], 0.807627),
        (GHOST + "0.807627", ["--figure", "stencil"], 0.4),
        (GHOST + "0.807627", ["--figure", "boundary"], 0.0037),
        (GHOST + "0.807627", ["--figure", "ghost"], 0.034),
        ("Time in seconds: 1.250000000000000000e-02", [], 0.0125),
        (ALLREDUCE + "3.000000000000000000e+00", [], 3.0),
        (ALLREDUCE + "3.0e+00", ["--figure", "ccl"], 0.15),
        ("ran for 17.5 s\nran for 18 s", ["--pattern", r"ran for (\S+) s"], 18),
    ],
)
def test_times_are_found(text: str, options: list[str], seconds: float) -> None:
    awaken("--ranks", "1", "--repeat", "1", *options, *program(text))
    points = study()["points"]
    assert isinstance(points, list)
    assert points[0]["median_s"] == seconds


@pytest.mark.parametrize(
    ("word", "ranks", "expected"),
    [
        ("plain", 4, "plain"),
        ("{ranks}", 4, "4"),
        ("-n{ ranks }x", 4, "-n4x"),
        ("{1000*ranks}", 3, "3000"),
        ("{2000*sqrt(ranks)}", 2, "2828"),
        ("{100*cbrt(ranks)}", 8, "200"),
        ("{max(ranks//3, 1)}:{ranks % 3}", 7, "2:1"),
        ("{-ranks + 10}", 4, "6"),
        ("{{ranks}} {{", 4, "{ranks} {"),
    ],
)
def test_templates(word: str, ranks: int, expected: str) -> None:
    assert scale.fill(word, ranks) == expected


@pytest.mark.parametrize(
    "word",
    [
        "{}",
        "{x}",
        "{ranks +}",
        "{ranks / 0}",
        "{__import__('os')}",
        "{ranks.real}",
        "{ranks**9}",
        "{'a'*9}",
        "{(ranks,)}",
        "{min()}",
        "{print}",
    ],
)
def test_a_template_is_arithmetic_and_nothing_else(word: str) -> None:
    with pytest.raises(scale.ScaleError, match="cannot be worked out"):
        scale.fill(word, 4)


def test_the_launcher_is_put_before_the_program(tmp_path: Path) -> None:
    launcher = tmp_path / "run it"
    launcher.write_text('#!/bin/sh\necho "Time in seconds: $2"; shift 2; echo "$@" > words\n')
    launcher.chmod(0o755)
    awaken(
        "--ranks", "3", "--repeat", "1", "--launcher", f"'{launcher}' -n {{ranks}}", "--", "app", "--size={10*ranks}"
    )
    points = study()["points"]
    assert isinstance(points, list)
    assert points[0]["median_s"] == 3
    assert (tmp_path / "words").read_text() == "app --size=30\n"


def test_the_picture_shows_both_curves() -> None:
    awaken("--ranks", "1,2,4", "--repeat", "1", "--title", "a < b", *program("Time in seconds: {8//ranks + ranks//4}"))
    root = ElementTree.parse("scale.svg").getroot()
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a < b", "speed-up", "efficiency", "ideal", "ranks"} <= set(texts)
    assert {"100 %", "67 %"} <= set(texts)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    dots = list(root.iter(f"{SVG}circle"))
    assert len(dots) == 6
    for dot in dots:
        assert 0 < float(dot.attrib["cx"]) < width
        assert 0 < float(dot.attrib["cy"]) < height
    curves = list(root.iter(f"{SVG}polyline"))
    assert len(curves) == 2
    # Labels lie within the picture, with about 6 pixels a letter.
    labels = [text for text in root.iter(f"{SVG}text") if text.attrib["text-anchor"] == "start"]
    assert all(float(text.attrib["x"]) + 6 * len(text.text or "") < width for text in labels)
    # Speed-up rises on the page, efficiency falls.
    speedups = [float(point.split(",")[1]) for point in curves[0].attrib["points"].split()]
    assert speedups == sorted(speedups, reverse=True)
    efficiencies = [float(point.split(",")[1]) for point in curves[1].attrib["points"].split()]
    assert efficiencies[-1] > efficiencies[0]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["./app", "--", "x"], "app"),
        (["bin/awaken", "exec", "--emulate", "cuda:2", "--", "./app", "-i", "9"], "app"),
        (["awaken", "exec", "--report", "/bin/sh", "-c", "true"], "sh"),
        (["awaken", "exec", "./none", "9"], "awaken"),
    ],
)
def test_the_title_names_the_program(command: list[str], name: str) -> None:
    assert scale.program_of(command) == name


def test_the_picture_says_how_often_was_measured() -> None:
    awaken("--ranks", "1,8", "--repeat", "2", *program("Time in seconds: {8*ranks}"))
    texts = [text.text or "" for text in ElementTree.parse("scale.svg").getroot().iter(f"{SVG}text")]
    assert any("medians of 2 runs" in text for text in texts)
    # 8 times slower: an eighth.
    assert "1/8" in texts


def test_what_awaken_exec_is_to_start_is_looked_for(tmp_path: Path) -> None:
    exec_program = tmp_path / "awaken"
    exec_program.write_text("#!/bin/sh\ntouch started\n")
    exec_program.chmod(0o755)
    command = ["--launcher", "", "--", str(exec_program), "exec", "--report", "--", "./nosuchprogram"]
    assert "./nosuchprogram cannot be started: there is no such program" in awaken(*command, status=2).stderr
    assert not Path("started").exists()


def test_where_programs_are_found_elsewhere_the_launcher_looks() -> None:
    """A launcher that is not known may start them on another machine."""
    awaken("--ranks", "1", "--repeat", "1", "--launcher", "echo Time in seconds: 1", "--", "/elsewhere/program")
    assert study()["points"]


def test_the_names_of_the_files_can_be_chosen() -> None:
    awaken("--ranks", "1", "--repeat", "1", "--output", "a.json", "--picture", "b.svg", *program("Time in seconds: 1"))
    assert sorted(path.name for path in Path().iterdir()) == ["a.json", "b.svg"]


# ------------------------------------------------------------------------------------------------------------ failures


def test_a_failing_run_does_not_end_the_others() -> None:
    script = "if [ {ranks} = 2 ]; then echo no luck >&2; exit 3; fi; echo Time in seconds: {4//ranks}"
    done = awaken("--ranks", "1,2,4", "--repeat", "1", "--launcher", "", "--", "sh", "-c", script, status=1)
    found = study()
    points, runs = found["points"], found["runs"]
    assert isinstance(points, list)
    assert isinstance(runs, list)
    assert [point["ranks"] for point in points] == [1, 4]
    assert [run["problem"] for run in runs] == ["", "exit status 3: no luck", ""]
    assert "2 ranks: exit status 3: no luck" in done.stderr
    assert "1 of 3 runs failed" in done.stderr


DASHES = "-" * 74
BOX = f"{DASHES}\nThere are not enough slots\navailable in the system:\n\n  app\n\nlaunch.\n{DASHES}\n \n"
NOTE = f"{DASHES}\nprterun detected that one or more processes exited\n{DASHES}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("first\nno luck\n\n", "no luck"),
        (BOX, "There are not enough slots available in the system:"),
        (f"app: wrong option\n{NOTE}", "app: wrong option"),
        (f"{DASHES}\nended here", "ended here"),
        ("x" * 300, "x" * 200),
        ("", ""),
    ],
)
def test_the_last_words_are_told(text: str, words: str) -> None:
    assert scale.said(text) == words


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_each_run_alone_are_noticed(ranks: int) -> None:
    """As under the launcher of another MPI."""
    script = "for rank in $(seq {ranks}); do echo Time in seconds: 1; done"
    done = awaken("--ranks", f"1,{ranks}", "--repeat", "1", "--launcher", "", "--", "sh", "-c", script, status=1)
    assert f"{ranks} ranks: it ran {ranks} times with one rank: this launcher belongs to another MPI" in done.stderr
    points = study()["points"]
    assert isinstance(points, list)
    assert [point["ranks"] for point in points] == [1]


def test_a_pattern_of_ones_own_may_match_often() -> None:
    awaken("--ranks", "2", "--repeat", "1", "--pattern", r"step: (\S+)", *program("step: 3\nstep: 2"))
    points = study()["points"]
    assert isinstance(points, list)
    assert points[0]["median_s"] == 2


def test_a_run_without_a_time_is_a_failure() -> None:
    done = awaken("--ranks", "1", "--repeat", "1", *program("hello"), status=1)
    assert "its output has no time in it: give --pattern" in done.stderr
    assert study()["points"] == []
    assert not Path("scale.svg").exists()
    assert done.stdout == ""


@pytest.mark.parametrize("text", ["Time in seconds: 0.0", "Time in seconds: -1.0", "Time in seconds: 1e999"])
def test_a_time_that_is_none_is_a_failure(text: str) -> None:
    awaken("--ranks", "1", "--repeat", "1", *program(text), status=1)


@pytest.mark.parametrize(
    "start", ["sleep 300 & echo $! > {0}/child", "setsid sh -c 'echo $$ > {0}/child; exec sleep 300' &"]
)
def test_a_run_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, start: str) -> None:
    """Launchers start ranks in process groups of their own, and in sessions."""
    script = f"trap 'echo asked > {tmp_path}/asked; exit' TERM\n{start.format(tmp_path)}\nwait"
    done = awaken(
        "--ranks", "1", "--repeat", "1", "--timeout", "3", "--launcher", "", "--", "sh", "-c", script, status=1
    )
    assert "not over after 3 s" in done.stderr
    # Who starts ranks on other nodes is the only one to end them.
    assert (tmp_path / "asked").read_text() == "asked\n"
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")

    def over() -> bool:
        """It may still be waiting for whoever adopted it, but runs no more."""
        try:
            return state.read_text().rsplit(")", 1)[1].split()[0] in ("Z", "X")
        except OSError:
            return True

    # It was killed before the command ended, and may take an instant to die.
    deadline = time.monotonic() + harness.HANG_S
    while not over():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("option", ["--output", "--picture"])
def test_what_cannot_be_written_is_found_before_anything_runs(tmp_path: Path, option: str) -> None:
    words = ["--ranks", "1", "--launcher", "", option, "none/file.x", "--", "touch", str(tmp_path / "ran")]
    assert "none/file.x cannot be written (there is no folder" in awaken(*words, status=2).stderr
    assert not (tmp_path / "ran").exists()


def test_as_one_of_several_ranks_it_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    done = awaken("--ranks", "1", "--launcher", "", "--", "touch", str(tmp_path / "ran"), status=2)
    assert "awaken scale starts jobs by itself" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_an_interrupted_study_keeps_what_it_has(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    script = f"if [ {{ranks}} = 2 ]; then echo there > {ready}; sleep 300; fi; echo Time in seconds: 1"
    command = [sys.executable, "-m", "awaken", "scale", "--ranks", "1,2", "--repeat", "1", "--launcher", ""]
    process = subprocess.Popen(
        [*command, "--", "sh", "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests may ignore it (nohup), and processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with harness.ended_when_it_hangs():
        assert ready.read_text() == "there\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=harness.HANG_S)
    assert process.returncode == 130
    assert "which are in scale.json" in err
    assert "Traceback" not in err
    points = study()["points"]
    assert isinstance(points, list)
    assert [point["ranks"] for point in points] == [1]
    assert out.splitlines()[1].split()[0] == "1"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no program is given"),
        (["--ranks", "0,1", "--", "true"], "not a list of different numbers of ranks"),
        (["--ranks", "2,2", "--", "true"], "not a list of different numbers of ranks"),
        (["--repeat", "0", "--", "true"], "not a whole number from 1 on"),
        (["--pattern", "(", "--", "true"], "not a regular expression"),
        (["--pattern", "x", "--", "true"], "has no group"),
        (["--pattern", "(x)", "--figure", "total", "--", "true"], "not allowed with argument"),
        (["--weak", "--", "true", "100"], "--weak needs a word that grows with the ranks"),
        (["--timeout", "0", "--", "true"], "more than 0 seconds"),
        (["--timeout", "inf", "--", "true"], "at most 1000000"),
        (["--launcher", "'", "--", "true"], "write it as for a shell"),
        (["--output", "x.svg", "--", "true"], "--output is the JSON file"),
        (["--launcher", "", "--", "/nonexistent/program"], "/nonexistent/program cannot be started"),
        (
            ["--launcher", "", "--", "nosuchprogram"],
            "nosuchprogram cannot be started: there is no such program in PATH",
        ),
        (["--", "nosuchprogram"], "nosuchprogram cannot be started"),
        (["--launcher", "nosuchlauncher", "--", "true"], "nosuchlauncher cannot be started"),
        (["--launcher", "", "--", "/usr"], "it is a folder"),
        (["--launcher", "", "--", "/etc/passwd"], "chmod +x /etc/passwd"),
        (["--launcher", "", "--", "echo", "{x}"], "{x} cannot be worked out: there is no x"),
        (["--launcher", "", "--", "echo", "{1+}"], "cannot be worked out: use numbers, ranks"),
        (
            ["--launcher", "", "--weak", "--", "echo", "{5*rnks}"],
            "there is no rnks; what has a name is ranks, and sqrt",
        ),
        (["--launcher", "", "--weak", "--", "echo", "{squirt(ranks)}"], "there is no squirt"),
        (
            ["--launcher", "", "--output", "/nonexistent/x.json", "--", "echo", "Time in seconds: 1"],
            "cannot be written",
        ),
        (["--launcher", "", "--pattern", "(abc)", "--", "echo", "abc"], "is not a number"),
    ],
)
def test_wrong_use_is_an_error(arguments: list[str], complaint: str) -> None:
    assert complaint in awaken(*arguments, status=2).stderr
