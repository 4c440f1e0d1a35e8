# SPDX-License-Identifier: Apache-2.0
"""Paths that no command can use: each ends in one line and status 2, and nothing waits or is left behind."""

from __future__ import annotations

import ctypes
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import pytest
from awaken import output_files
from awaken.__main__ import main
from python_commands import ROOT, run

CAPABILITY_VERSION = 0x20080522
READ_EVERYTHING = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
LOG = "# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)\n8 1.00\n"
"""Of two files that can be compared."""


def made(path: Path, make: Callable[[Path], object]) -> Path:
    make(path)
    return path


def closed(path: Path) -> Path:
    """A file in a folder that nobody may search."""
    path.mkdir()
    (path / "file").write_text(LOG)
    path.chmod(0)
    return path / "file"


def unreadable(path: Path) -> Path:
    path.write_text(LOG)
    path.chmod(0)
    return path


BAD: dict[str, Callable[[Path], Path]] = {
    "long name": lambda folder: folder / ("n" * 256),
    "long path": lambda folder: folder / "/".join(["n" * 250] * 20),
    "below a file": lambda folder: folder / "good.log" / "file",
    "missing folder": lambda folder: folder / "missing" / "file",
    "circle of links": lambda folder: made(folder / "circle", lambda path: path.symlink_to(path)),
    "closed folder": lambda folder: closed(folder / "closed"),
    "unreadable": lambda folder: unreadable(folder / "unreadable"),
    "folder": lambda folder: made(folder / "folder", Path.mkdir),
    "folder that cannot be listed": lambda folder: made(folder / "dark", lambda path: path.mkdir(0)),
    "pipe": lambda folder: made(folder / "pipe", os.mkfifo),
    "long name behind a link": lambda folder: made(folder / "one-link", lambda path: path.symlink_to("n" * 256)),
}
READ = {
    "compare old": ["compare", "{}", "good.log"],
    "compare new": ["compare", "good.log", "{}"],
    "compare several": ["compare", "good.log,{}", "good.log"],
    "report": ["report", "{}"],
    "report label": ["report", "osu@4={}"],
    "report apps": ["report", "--awaken", "./program", "--launcher", "./program", "--apps", "{}/below"],
    "trace": ["trace", "{}"],
    "scale": ["scale", "--launcher", "", "{}"],
    "scale launcher": ["scale", "--launcher", "{}", "./program"],
}
WRITTEN = {
    "compare": ["compare", "good.log", "good.log", "-o", "{}"],
    "report": ["report", "good.log", "-o", "{}"],
    "doctor json": ["doctor", "--json", "{}"],
    "doctor html": ["doctor", "--matrix", "--html", "{}"],
    "topo": ["topo", "--json", "{}"],
    "scale": ["scale", "--launcher", "", "--output", "{}", "./program"],
    "scale picture": ["scale", "--launcher", "", "--picture", "{}", "./program"],
    "trace": ["trace", "good.json", "--picture", "{}"],
}
FOLDERS = {
    "report folder": ["report", "--awaken", "./program", "--launcher", "./program", "--folder", "{}/below"],
    "report pictures": ["report", "good.log", "-o", "page.md", "--pictures", "{}/below"],
}
REPLACED = ("pipe", "unreadable")
"""What can be written, or may be replaced."""
MADE = ("missing folder", "folder")
"""Where a folder can be made."""
COMMANDS = [
    *(pytest.param(words, bad, id=f"{name}: {bad}") for name, words in READ.items() for bad in BAD),
    *(
        pytest.param(words, bad, id=f"{name}: {bad}")
        for name, words in WRITTEN.items()
        for bad in BAD
        if bad not in REPLACED
    ),
    *(
        pytest.param(words, bad, id=f"{name}: {bad}")
        for name, words in FOLDERS.items()
        for bad in BAD
        if bad not in MADE
    ),
]


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current one, of a user who may not read everything, as root may."""
    (tmp_path / "good.log").write_text(LOG)
    (tmp_path / "program").write_text("#!/bin/sh\n")
    (tmp_path / "program").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    libc = ctypes.CDLL(None, use_errno=True)
    head, capabilities = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, capabilities) == 0
    effective = capabilities[0]
    capabilities[0] = effective & ~READ_EVERYTHING
    assert libc.capset(head, capabilities) == 0
    yield Path()
    capabilities[0] = effective
    assert libc.capset(head, capabilities) == 0


@pytest.mark.parametrize(("words", "bad"), COMMANDS)
def test_a_path_that_cannot_be_used_is_status_2_in_one_line(folder: Path, words: list[str], bad: str) -> None:
    path = BAD[bad](folder)
    before = sorted(folder.iterdir())
    with harness.ended_when_it_hangs():
        done = run(main, *(word.replace("{}", str(path)) for word in words), status=2)
    assert done.stdout == ""
    assert done.stderr.startswith("awaken: ") and done.stderr.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_an_error_of_the_system_that_nobody_expected_is_told_in_one_line(tmp_path: Path) -> None:
    code = "import sys; from awaken import compare; compare.run = lambda words: open(words[0]); "
    code += (
        "import runpy; sys.argv = ['awaken', 'compare', 'miss\\ning']; runpy.run_module('awaken', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True, text=True, check=False, timeout=harness.HANG_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "awaken: miss\\x0aing cannot be used (No such file or directory)\n")


# ----------------------------------------------------------------------------------------------- files that are written


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127, "n"])
def test_any_legal_name_can_be_written(folder: Path, name: str) -> None:
    for text in ("one", "other"):
        output_files.check(name)
        output_files.write(name, text)
        assert (folder / name).read_text() == text
    assert len(list(folder.iterdir())) == 3
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o666 & ~umask


def test_a_path_as_long_as_paths_can_be_is_written(folder: Path) -> None:
    """The names of temporary files may be longer than the file's own."""
    longest = os.pathconf(".", "PC_PATH_MAX") - 1  # which counts the zero
    parts = ["d" * 200] * (longest // 201)
    parts += ["e" * (longest - len("/".join([*parts, "", "f"]))), "f"]
    there = os.open(".", os.O_RDONLY)
    try:
        for part in parts[:-1]:
            Path(part).mkdir()
            os.chdir(part)
    finally:
        os.chdir(there)
        os.close(there)
    path = "/".join(parts)
    assert len(path) == longest
    output_files.check(path)
    output_files.write(path, "one")
    assert Path(path).read_text() == "one"


def test_what_cannot_be_written_whole_leaves_the_earlier_file_and_nothing_else(folder: Path) -> None:
    output_files.write("file", "earlier")
    with pytest.raises(KeyboardInterrupt), output_files.replacing(folder / "file") as stream:
        stream.write("half")
        assert len(list(folder.iterdir())) == 4
        raise KeyboardInterrupt
    assert Path("file").read_text() == "earlier" and len(list(folder.iterdir())) == 3


def test_names_of_temporary_files_follow_no_link_of_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where somebody has guessed the name."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    (folder / "victim").write_text("mine")
    (folder / ".awaken-guessed.part").symlink_to("victim")
    with pytest.raises(output_files.Misuse, match=r"file cannot be written \(File exists\)"):
        output_files.write("file", "text")
    assert (folder / "victim").read_text() == "mine" and (folder / ".awaken-guessed.part").is_symlink()


def test_links_stay_and_what_they_lead_to_is_written(folder: Path) -> None:
    (folder / "link").symlink_to("file")
    for text in ("one", "other"):
        output_files.check("link")
        output_files.write("link", text)
        assert (folder / "link").is_symlink() and (folder / "file").read_text() == text


def test_a_pipe_is_written_where_somebody_reads_it(folder: Path) -> None:
    os.mkfifo("pipe")
    with harness.ended_when_it_hangs():
        with pytest.raises(output_files.Misuse, match=r"pipe cannot be written \(No such device or address\)"):
            output_files.write("pipe", "text")
        reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
        output_files.write("pipe", "text")
        assert os.read(reader, 100) == b"text"
        os.close(reader)
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
