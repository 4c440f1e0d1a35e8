# SPDX-License-Identifier: Apache-2.0
"""The unit tests: every GoogleTest program of the build, as one test each."""

from __future__ import annotations

import subprocess
from pathlib import Path

import harness
import pytest

SLOW = "*CompilesAllReductions*:*CompilesThePartsOfPackingSoon*"
"""Seconds of compiling for two architectures each; what is left compiles every kernel, and one reduction."""

LEAKS = "detect_leaks=1:intercept_tls_get_addr=0"
"""The check for leaks, which programs of MPI go without. GCC's run time up to 13 takes thread-local memory of an opened
library that begins at a certain offset for that of a glibc before 2.25, and crashes in the check, unless it is told not
to look for such memory."""


def programs() -> list[Path]:
    folders = [harness.build_dir() / "tests" / "unit", harness.build_dir() / "bin"]
    found = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*_test")) if path.is_file()]
    return [path for path in found if path.stat().st_mode & 0o111]


@pytest.mark.sanitizer
@pytest.mark.parametrize("program", programs(), ids=lambda path: path.name)
def test_unit(program: Path, request: pytest.FixtureRequest) -> None:
    chosen = [] if request.config.getoption("--long") else [f"--gtest_filter=-{SLOW}"]
    done = subprocess.run(
        [str(program), "--gtest_brief=1", *chosen],
        env={**harness.clean_environment(), "ASAN_OPTIONS": LEAKS},
        capture_output=True,
        text=True,
        timeout=harness.patient(harness.HANG_S),
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    # A program whose tests were all filtered or forgotten succeeds too.
    assert "[  PASSED  ] 0 tests" not in done.stdout, "the program holds no test"


@pytest.mark.sanitizer
def test_unit_programs_were_built() -> None:
    if "gtest" not in (harness.build_dir() / "build.ninja").read_text():
        pytest.skip("GoogleTest was not found when the build was configured (apt-get install libgtest-dev)")
    assert programs(), f"no *_test program in {harness.build_dir()}"
