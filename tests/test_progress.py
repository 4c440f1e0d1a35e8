# SPDX-License-Identifier: Apache-2.0
"""A test run that was interrupted goes on where it was, and one that ended by itself begins anew."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import harness
import pytest

CONFTEST = """
import sys

sys.path.insert(0, {tests!r})
import progress


def pytest_configure(config):
    config.pluginmanager.register(progress.Progress(config), "progress")
"""

CASES = """
import os
import signal
from pathlib import Path

HERE = Path(__file__).parent


def note(name):
    with (HERE / "called").open("a") as file:
        file.write(name)


def test_a():
    note("a")


def test_b():
    note("b")
    if not (HERE / "interrupted").exists():
        (HERE / "interrupted").touch()
        os.kill(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid(), signal.SIGKILL)
        signal.pause()


def test_c():
    note("c")
    assert not (HERE / "broken").exists()
"""
"""The second test ends the whole run the first time, as a power cut does."""


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one_process", "worker"])
def test_an_interrupted_run_goes_on_where_it_was(workers: list[str], tmp_path: Path) -> None:
    build = tmp_path / "build"
    (build / "bin").mkdir(parents=True)
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tests=str(harness.TESTS)))
    (tmp_path / "test_cases.py").write_text(CASES)
    # Workers of pytest-xdist are told from it, and this test may itself be run by one.
    environment = {name: value for name, value in harness.clean_environment().items() if "XDIST" not in name}
    called, record = tmp_path / "called", build / "tests-passed.txt"

    def run() -> tuple[int, str]:
        """The status, and the tests that it called."""
        called.write_text("")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, "test_cases.py"],
            cwd=tmp_path,
            env={**environment, "TEST_BUILD_DIR": str(build)},
            capture_output=True,
            text=True,
            timeout=harness.HANG_S,
            check=False,
        )
        if done.returncode in (0, 1):
            assert not record.exists(), done.stdout
        return done.returncode, called.read_text()

    assert run() == (-signal.SIGKILL, "ab")
    assert record.read_text().endswith("::test_a\n")
    if not workers:
        # Whatever is built or changed makes the record one of other tests.
        (build / "bin" / "awaken").touch()
        (tmp_path / "interrupted").unlink()
        assert run() == (-signal.SIGKILL, "ab")
        # What fails is no reason to keep the record: the run has ended, and the next one is asked for all of it.
        (tmp_path / "broken").touch()
    assert run() == (1 if (tmp_path / "broken").exists() else 0, "bc")
