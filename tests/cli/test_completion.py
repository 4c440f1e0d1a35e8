# SPDX-License-Identifier: Apache-2.0
"""What all commands have in common: --version, --json, one line for a wrong command line, completion and the manual
pages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import harness
import pytest

COMMANDS = (
    "exec", "bench", "report", "compare", "topo", "doctor", "trace", "scale", "completion", "settings", "version",
    "help",
)  # fmt: skip


def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`awaken` of the build under test."""
    return subprocess.run(
        [harness.awaken(), *words],
        env={**harness.clean_environment(), **harness.sanitizer_environment(), **variables},
        capture_output=True, text=True, timeout=harness.patient(harness.HANG_S), check=False,
    )  # fmt: skip


def printed(*words: str | Path, **variables: str) -> str:
    done = run(*words, **variables)
    assert (done.returncode, done.stderr) == (0, ""), (words, done)
    return done.stdout


needs_bench = pytest.mark.skipif(
    not (harness.build_dir() / "lib" / "awaken" / "bench" / "awaken-bench").exists(),
    reason="a build without benchmarks",
)


# --------------------------------------------------------------------------------------------------- version and JSON


@needs_bench
def test_each_command_tells_its_version() -> None:
    shown = printed("version")
    version = json.loads(printed("version", "--json"))["version"]
    for option in ("--version", "-V"):
        assert printed(option) == shown
        for command in set(COMMANDS) - {"bench"}:
            assert printed(command, option) == shown, command
        assert printed("bench", option).startswith(f"awaken bench {version} (")


def test_python_m_awaken_tells_the_version_of_its_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "awaken", "compare", "old", "new", "--version"],
        env={"PYTHONPATH": str(harness.ROOT / "python"), "PATH": f"{harness.awaken().parent}:/usr/bin:/bin"},
        capture_output=True, text=True, timeout=harness.HANG_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "") and re.match(r"awaken \d+\.\d+\.\d+ \(", done.stdout), done


def test_version_and_commands_as_json() -> None:
    version = json.loads(printed("version", "--json"))
    assert printed("version") == (
        f"awaken {version['version']} (MPI ABIs: {', '.join(version['abis'])})\nlibrary {version['library']}\n"
    )
    listed = json.loads(printed("help", "--json"))
    assert listed["version"] == version["version"]
    assert tuple(command["name"] for command in listed["commands"]) == COMMANDS
    text = printed("help")
    assert all(re.search(rf"^  {one['name']} +{re.escape(one['summary'])}$", text, re.M) for one in listed["commands"])


def test_settings_as_json() -> None:
    variables = {"AWAKEN_GPU": "none", "AWAKEN_TUNE": "network_bytes=5K", "AWAKEN_TEST_NODES": "2"}
    listed = json.loads(printed("settings", "--json", **variables))
    text = printed("settings", **variables)
    names = re.findall(r"^(\w+) = .*\n    ", text, re.MULTILINE)
    assert [one["name"] for kind in ("settings", "figures") for one in listed[kind]] == names
    for one in (*listed["settings"], *listed["figures"]):
        assert f"\n{one['name']} = {one['values']}\n    {one['meaning']}\n" in "\n" + text, one
        expected = {"AWAKEN_GPU": "none", "AWAKEN_TUNE": "network_bytes=5K", "network_bytes": "5K"}.get(one["name"])
        assert one["value"] == expected, one
    assert listed["test_switches"] == [{"name": "AWAKEN_TEST_NODES", "value": "2"}]
    wrong = run("settings", "--json", AWAKEN_GPU="amd")
    assert wrong.returncode == 2 and json.loads(wrong.stdout) and "AWAKEN_GPU" in wrong.stderr


@needs_bench
def test_lists_as_json() -> None:
    tests = json.loads(printed("bench", "--list", "--json"))["tests"]
    assert [[one["name"], one["summary"]] for one in tests] == [
        line.split(maxsplit=1) for line in printed("bench", "--list").splitlines()
    ]
    steps = json.loads(printed("report", "--list", "--json", "--emulate", "cuda:2"))
    assert [[one["name"], one["title"]] for one in steps] == [
        line.split(maxsplit=1) for line in printed("report", "--list", "--emulate", "cuda:2").splitlines()
    ]


# ---------------------------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    "words",
    [
        ["--nonsense"], ["exec", "--nonsense"], ["bench", "latency", "--nonsense"], ["report", "--nonsense"],
        ["compare", "old", "new", "--nonsense"], ["topo", "--nonsense"], ["doctor", "--nonsense"],
        ["trace", "folder", "--nonsense"], ["scale", "--nonsense"], ["completion", "bash", "--nonsense"],
        ["settings", "--nonsense"], ["version", "--json", "--nonsense"],
    ],
)  # fmt: skip
@needs_bench
def test_a_wrong_option_is_refused_in_one_line(words: Sequence[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("awaken: ") and done.stderr.count("\n") == 1, done.stderr
    assert "--nonsense" in done.stderr and re.search(r"see `awaken .*help`|write awaken ", done.stderr), done.stderr


# ----------------------------------------------------------------------------------------- completion, manual pages

CASES = [
    ("awaken co", {"compare", "completion"}),
    ("awaken exec --g", {"--gpu"}),
    ("awaken exec --gpu cuda bas", {"bash"}),
    ("awaken exec -- bas", {"bash"}),
    ("awaken scale --figure g", {"ghost"}),
    ("awaken scale -- bas", {"bash"}),
    ("awaken bench latency_m", {"latency_mp", "latency_mt"}),
    ("awaken bench latency -d ro", {"rocm"}),
    ("awaken bench latency --bu", {"--buffer-num", "--buffers"}),
    ("awaken help e", {"exec"}),
    ("awaken completion b", {"bash"}),
    ("awaken compare --th", {"--threshold"}),
    ("awaken settings --", {"--json", "--help", "--version"}),
]
"""What is typed, and what of these words a shell offers."""


def shell(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


def script(name: str, folder: Path) -> Path:
    file = folder / f"awaken.{name}"
    file.write_text(printed("completion", name))
    return file


@needs_bench
def test_bash_completes(tmp_path: Path) -> None:
    lines = [f"source '{script('bash', tmp_path)}'"]
    for typed, _ in CASES:
        words = typed.split(" ")
        lines += [
            f"COMP_WORDS=({' '.join(map(repr, words))}) COMP_CWORD={len(words) - 1}",
            'COMPREPLY=(); _awaken; echo "${COMPREPLY[*]}"',
        ]
    done = subprocess.run(
        [shell("bash"), "--norc", "-c", "\n".join(lines)],
        capture_output=True, text=True, timeout=harness.HANG_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for (typed, expected), offered in zip(CASES, done.stdout.splitlines()):
        found = set(offered.split())
        assert expected <= found if "bas" in typed else found == expected, (typed, offered)


@needs_bench
def test_fish_completes(tmp_path: Path) -> None:
    file = script("fish", tmp_path)
    lines = [f"source {file}", *(f"complete -C '{typed}' | string join ';'; echo ==" for typed, _ in CASES)]
    done = subprocess.run(
        [shell("fish"), "--no-config", "-c", "\n".join(lines)],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=harness.HANG_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for (typed, expected), offered in zip(CASES, done.stdout.split("==\n")):
        assert expected <= {line.partition("\t")[0] for line in re.split(r"[;\n]", offered)}, (typed, offered)


@needs_bench
def test_zsh_understands_its_script(tmp_path: Path) -> None:
    subprocess.run([shell("zsh"), "-n", script("zsh", tmp_path)], check=True, timeout=harness.HANG_S)


@needs_bench
def test_manual_pages_say_what_the_help_says(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, harness.ROOT / "tools" / "man_pages.py", "--build", harness.build_dir(), "--output", tmp_path],
        check=True, timeout=harness.HANG_S,
    )  # fmt: skip
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (harness.ROOT / "docs" / "man").iterdir()}
    assert set(kept) == {"awaken.1", *(f"awaken-{command}.1" for command in COMMANDS)}
    changed = [name for name in kept if kept[name] != written.get(name)]
    assert not changed, f"{', '.join(changed)}: run `make man` and commit docs/man"
    man = shutil.which("man")
    if man is not None:
        for name in kept:
            done = subprocess.run(
                [man, "--warnings", "-l", tmp_path / name],
                env={**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
                capture_output=True, text=True, timeout=harness.HANG_S, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
