# SPDX-License-Identifier: Apache-2.0
"""Whose the files in /dev/shm are that tests find, and what ends a test that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import harness
import pytest

MAKER = "import sys; kept = open(sys.argv[1], 'w'); print('made', flush=True); sys.stdin.readline()"
"""Makes a file, says so, and leaves it behind when it is told to go on."""


def maker(path: Path, mark: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKER, path],
        env={**os.environ, harness.MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "made\n"
    return process


@pytest.mark.parametrize("beside_others", [False, True])
def test_a_file_is_the_runs_whose_processes_had_it(beside_others: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if beside_others:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    else:
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    mark, folder = uuid.uuid4().hex, harness.SHARED_MEMORY
    own, others, used = (folder / f"harness-{what}-{mark}" for what in ("own", "others", "used"))
    watch = harness.FileWatch(mark)
    processes = [maker(own, mark), maker(others, "another"), maker(used, mark)]
    try:
        watch.look()
        for process in processes[:2]:
            process.communicate("\n", timeout=harness.HANG_S)
        found = [name for name in watch.left() if mark in name]
        assert found == [own.name]
        processes[2].communicate("\n", timeout=harness.HANG_S)
        assert used.name in watch.left()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for path in (own, others, used):
            path.unlink(missing_ok=True)


def test_what_a_run_leaves_is_told() -> None:
    path = harness.SHARED_MEMORY / f"harness-left-{uuid.uuid4().hex}"
    try:
        result = harness.run(["touch", str(path)], harness.clean_environment(), foreign_files=("another",))
        if not os.environ.get("PYTEST_XDIST_WORKER"):  # beside other tests it lived too shortly to be the run's
            assert f"{path} is left over" in result.problems and path in result.left
    finally:
        path.unlink(missing_ok=True)


def test_what_hangs_is_ended() -> None:
    with pytest.raises(AssertionError, match="it hangs"), harness.ended_when_it_hangs(0.05):
        signal.pause()


GROUPED = """\
import os, pathlib, pytest

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("case", range(8))
def test_of_a_group(case):
    pathlib.Path(f"{case}.worker").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""


def test_a_group_has_one_worker(tmp_path: Path) -> None:
    """A pytest that pytest-xdist does not know runs tests of a group beside each other, without a word."""
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    words = ["-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "test_grouped.py"]
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tmp_path, check=True, timeout=harness.HANG_S)
    workers = [file.read_text() for file in tmp_path.glob("*.worker")]
    assert len(workers) == 8 and len(set(workers)) == 1, workers
