# SPDX-License-Identifier: Apache-2.0
"""Rank programs of messages, requests and collectives with AddressSanitizer and UndefinedBehaviorSanitizer.

The core is built for MPICH alone, and with nothing else that these programs do not need. `make test-asan` has the rest.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import harness
import pytest

PRESET = "asan-core"
BUILD = harness.ROOT / "build" / PRESET
RUNS = {
    "point_to_point": ("--mix=drawn-1",),
    "messages": ("--mix=device",),
    "requests": ("--mix=device",),
    "collectives": ("--mix=device",),
    "reproducible": ("--count=60", "--key"),
}
"""Programs, each linked with the library, and their arguments."""
EMULATOR = harness.build_dir() / "lib" / "awaken" / "emulator"
"""That of the build under test: it shares no C++ with the core, and calls memcpy() as the sanitizer has it."""
REPORT = re.compile(r"^.*(?:ERROR: AddressSanitizer|: runtime error: )", re.MULTILINE)

pytestmark = [
    pytest.mark.xdist_group("sanitized-core"),
    pytest.mark.skipif(harness.sanitizer() != "", reason="the build under test has a sanitizer itself"),
]


@pytest.fixture(scope="module")
def built(mpi_named: Callable[[str], harness.Mpi]) -> None:
    """Built here, so that a choice of other tests does not wait for it."""
    mpi_named("mpich")
    targets = [f"rank_mpich_{program}_linked" for program in RUNS]
    done = subprocess.run(
        [sys.executable, harness.ROOT / "tools" / "build.py", "--preset", PRESET, "--tests", *targets],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=harness.LONG_HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.fixture
def instrumented(built: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with harness.alone("ranks"):  # of the build under test, which is another one from here on
        monkeypatch.setenv("TEST_BUILD_DIR", str(BUILD))
        assert harness.sanitizer() == "address"
        yield


@pytest.mark.parametrize("program", RUNS)
def test_no_sanitizer_reports(program: str, instrumented: None, mpi_named: Callable[[str], harness.Mpi]) -> None:
    mpi = mpi_named("mpich")
    result = harness.run_ranks(
        mpi,
        2,
        [mpi.programs / f"{program}_linked", "--gpu=cuda", *RUNS[program]],
        with_awaken=False,
        emulate="cuda:2",
        environment={"LD_LIBRARY_PATH": str(EMULATOR)},
    )
    report = REPORT.search(result.output)
    assert report is None, f"$ {result.command}\na sanitizer reports:\n{result.output[report.start() :][:8000]}"
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"


def test_the_library_is_instrumented(instrumented: None) -> None:
    content = (BUILD / "lib" / "awaken" / "libawaken.so").read_bytes()
    assert b"__asan_report_load" in content and b"__ubsan_handle" in content
