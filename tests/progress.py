# SPDX-License-Identifier: Apache-2.0
"""A test run that was interrupted goes on where it was, as a build does.

Each test that passes is written down at once. When a run ends by itself, the record is removed; what an interrupt, a
closed terminal or a power cut leaves counts for the next run of the same tests on the same files.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import harness
import pytest

ENDED_BY_ITSELF = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def tested_files() -> Iterable[Path]:
    """What the outcome of a test depends on, within this tree."""
    build = harness.build_dir()
    for folder in (
        build / "bin",
        build / "lib",
        build / "tests",
        build / "apps",
        harness.TESTS,
        harness.ROOT / "python",
    ):
        yield from (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix not in (".pyc", ".o"))
    yield from sorted(harness.ROOT.glob("apps/*.py"))


def fingerprint(config: pytest.Config) -> str:
    content = hashlib.sha256(repr(config.invocation_params.args).encode())
    for path in tested_files():
        status = path.stat()
        content.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return content.hexdigest()


class Progress:
    """The record of one run: a line that says what is tested, then the test ids that passed."""

    def __init__(self, config: pytest.Config) -> None:
        self._file = harness.build_dir() / "tests-passed.txt"
        self._passed: set[str] = set()
        self._called: set[str] = set()
        self._sink: TextIO | None = None
        self._lock: TextIO | None = None
        worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
        if worker_input is not None:  # a process of pytest-xdist: its controller keeps the record
            self._passed = set(worker_input["passed_before"])
        elif self._file.parent.is_dir() and not config.option.collectonly:
            # A build of this folder waits until the tests are over (tools/build.py), and they wait for a build.
            self._lock = harness.build_dir().with_suffix(".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            tested = fingerprint(config)
            lines = self._file.read_text().splitlines() if self._file.exists() else []
            if lines and lines[0] == tested:
                self._passed = set(lines[1:])
                self._sink = self._file.open("a", buffering=1)
            else:
                self._sink = self._file.open("w", buffering=1)
                self._sink.write(f"{tested}\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["passed_before"] = sorted(self._passed)

    def pytest_report_header(self) -> str | None:
        if not self._passed:
            return None
        return (
            f"going on after {len(self._passed)} tests that passed before an interrupt (all of them: rm {self._file})"
        )

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left = [item for item in items if item.nodeid not in self._passed]
        if left and len(left) < len(items):
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in self._passed])
            items[:] = left

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._called.add(report.nodeid)
        elif self._sink is not None and report.when == "teardown" and report.passed and report.nodeid in self._called:
            self._sink.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if self._sink is not None:
            self._sink.close()
            if exitstatus in ENDED_BY_ITSELF:
                self._file.unlink(missing_ok=True)
