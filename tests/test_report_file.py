# SPDX-License-Identifier: Apache-2.0
"""Where a report goes that AWAKEN_REPORT asks for: whatever the file is or lacks, the run ends, and its report is kept
or its user told."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

RankProgram = Callable[[str, str], Path]
MpiNamed = Callable[[str], harness.Mpi]


@pytest.fixture(name="run", params=["mpich", "openmpi"])
def _run(
    request: pytest.FixtureRequest, rank_program: RankProgram, mpi_named: MpiNamed, awaken_program: Path
) -> Callable[..., harness.Result]:
    mpi = mpi_named(request.param)
    program = rank_program(mpi.name, "traced")

    def run(report: str | Path, *, within: str = '"$@"', redirected: str = "") -> harness.Result:
        """Two ranks, started by a shell as `within` says; `redirected` is what each rank's shell adds."""
        words = harness.rank_command(mpi, 2, ["/bin/sh", "-c", f'exec "$@" {redirected}', "sh", program, "--gpu=none"])
        environment = {**harness.clean_environment(), **mpi.environment, "AWAKEN_REPORT": str(report)}
        result = harness.run(["/bin/sh", "-c", within, "sh", *words], environment, foreign_files=mpi.foreign_files)
        result.check()
        return result

    return run


Run = Callable[..., harness.Result]


def told_why(result: harness.Result, report: str | Path, why: str) -> bool:
    """In one line, before the report."""
    line = f"awaken: the report cannot be written to {report} ({why}), and follows here: give AWAKEN_REPORT a file "
    return result.output.count(line) == 1 and line in result.output.partition('"schema": "awaken-report"')[0]


def test_a_report_takes_the_place_of_a_longer_one(run: Run, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("{" * 100_000)
    assert "cannot be written" not in run(report).output
    assert json.loads(report.read_text())["size"] == 2


def test_a_full_disk_is_told_and_the_report_is_not_lost(run: Run, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and the program unshare")
    report, folder = tmp_path / "report.json", shlex.quote(str(tmp_path))
    filled = f"mount -t tmpfs -o size=16k tmpfs {folder} && head -c 16384 /dev/zero >{folder}/filler"
    rest = f'{filled} && "$@"; status=$?; echo "$(wc -c <{folder}/report.json) bytes stay"; exit $status'
    result = run(report, within=f'exec unshare --mount sh -c {shlex.quote(rest)} sh "$@"')
    assert told_why(result, report, "No space left on device"), result.explain()
    assert "\n0 bytes stay" in result.output, result.explain()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "it is a pipe, not a regular file"),
        (Path.mkdir, "it is a folder"),
        (lambda path: path.symlink_to("/dev/full"), "it is a device, not a regular file"),
        (lambda path: path.symlink_to("/dev/tty"), "it is a device, not a regular file"),
        (lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "it is a socket, not a regular file"),
        (lambda path: path.symlink_to("missing/file"), "No such file or directory"),
        (lambda path: path.symlink_to("n" * 256), "File name too long"),
    ],
    ids=["pipe", "folder", "device", "terminal", "socket", "no folder", "long name"],
)
def test_what_is_no_file_is_refused(run: Run, tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    report = tmp_path / "report.json"
    make(report)
    before = os.lstat(report)
    result = run(report)
    assert told_why(result, report, why), result.explain()
    assert os.path.samestat(before, os.lstat(report))


def test_what_is_open_already_takes_the_report(run: Run, tmp_path: Path) -> None:
    """A log that ranks write to keeps what it has."""
    log = tmp_path / "log"
    log.write_text("earlier\n")
    for stream, redirected in (("/dev/stderr", "2>>"), ("/dev/stdout", ">>"), (log, "2>>")):
        result = run(stream, redirected=f"{redirected}{shlex.quote(str(log))}")
        assert "cannot be written" not in result.output + log.read_text()
    assert log.read_text().startswith("earlier\n")
    assert log.read_text().count("Awaken report: all ranks of 2") == 3
    assert run("/dev/stderr").output.count("Awaken report: all ranks of 2") == 1
    nothing = run("/dev/null").output
    assert "Awaken report" not in nothing and "cannot be written" not in nothing
