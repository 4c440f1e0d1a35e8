# SPDX-License-Identifier: Apache-2.0
"""mpi4py under Awaken: arrays on the GPU, and mpi4py's own tests, unchanged, on host memory."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

MPIS = ("mpich", "openmpi")
SELECTED = (
    "test_p2p_buf",
    "test_p2p_buf_matched",
    "test_cco_buf",
    "test_cco_vec",
    "test_cco_nb_buf",
    "test_cco_ngh_buf",
    "test_request",
    "test_grequest",
    "test_status",
    "test_errhandler",
    "test_comm",
    "test_op",
)
"""The parts of mpi4py's suite that use what the layer serves. test_datatype passes no buffers and takes longer than all
others together: test_own_suite_whole has it."""


def python_for(mpi: harness.Mpi, *modules: str) -> Path:
    reason = harness.python_modules(mpi.python, *modules)
    if reason:
        pytest.skip(reason)
    assert mpi.python is not None
    return mpi.python


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mpi", MPIS)
def test_device_arrays(mpi: str, ranks: int, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    chosen = mpi_named(mpi)
    python = python_for(chosen, "mpi4py", "numpy")
    script = Path(__file__).with_name("device_arrays.py")
    result = harness.run_ranks(chosen, ranks, [python, script], emulate="cuda:2", timeout=harness.HANG_S)
    result.check()
    assert "ok device arrays" in result.output, result.explain()


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
@pytest.mark.parametrize("mpi", MPIS)
def test_ring(mpi: str, emulate: str, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]) -> None:
    """The example in Python, which has a device array without CuPy or PyTorch."""
    chosen = mpi_named(mpi)
    python = python_for(chosen, "mpi4py", "numpy")
    script = harness.ROOT / "apps" / "examples" / "ring.py"
    result = harness.run_ranks(chosen, 3, [python, script], emulate=emulate, timeout=harness.HANG_S)
    result.check()
    assert "PASS ring: 1048576 doubles round 3 ranks, and their sum" in result.output, result.explain()


DEEPLY_BOUND = """
import os, runpy, sys
sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "hip:2"), ("openmpi", "cuda:2")])
def test_extensions_that_search_themselves_first(
    mpi: str, emulate: str, awaken_program: Path, mpi_named: Callable[[str], harness.Mpi]
) -> None:
    chosen = mpi_named(mpi)
    python = python_for(chosen, "mpi4py", "numpy")
    script = harness.ROOT / "apps" / "examples" / "ring.py"
    result = harness.run_ranks(chosen, 2, [python, "-c", DEEPLY_BOUND, script], emulate=emulate, timeout=harness.HANG_S)
    result.check()
    assert "PASS ring" in result.output, result.explain()


@pytest.fixture(scope="session")
def mpi4py_suite() -> Callable[[Path], Path]:
    """The tests of the installed version of mpi4py, from its source distribution."""

    def fetch(python: Path) -> Path:
        code = "import importlib.metadata as m; print(m.version('mpi4py'))"
        version = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True, timeout=harness.HANG_S
        ).stdout.strip()
        folder = harness.build_dir() / "mpi4py-suite"
        suite = folder / f"mpi4py-{version}" / "test"
        with harness.alone("mpi4py"):
            if not suite.exists():
                folder.mkdir(parents=True, exist_ok=True)
                # Not ":all:", which would also build what mpi4py's build needs.
                done = subprocess.run(
                    [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "mpi4py",
                     "--dest", str(folder), f"mpi4py=={version}"],
                    capture_output=True, text=True, timeout=harness.HANG_S, check=False,
                )  # fmt: skip
                archive = folder / f"mpi4py-{version}.tar.gz"
                if done.returncode != 0 or not archive.exists():
                    pytest.skip(f"mpi4py's tests could not be downloaded: {done.stderr.strip()[-300:]}")
                with tarfile.open(archive) as contents:
                    members = [member for member in contents if "/test/" in f"{member.name}/"]
                    contents.extractall(folder, members)
        return suite

    return fetch


def failing_tests(output: str) -> set[str]:
    return set(re.findall(r"^(?:FAIL|ERROR): (.*)$", output, re.MULTILINE))


def run_suite(
    mpi: harness.Mpi, suite: Path, arguments: list[str], ranks: int, emulate: str | None, timeout: float
) -> None:
    """Passes when no test fails, or only such as fail without Awaken too: an MPI's own disagreements with mpi4py."""
    assert mpi.python is not None
    command: list[str | Path] = [mpi.python, suite / "main.py", *arguments]
    result = harness.run_ranks(mpi, ranks, command, emulate=emulate, timeout=timeout, cwd=suite.parent)
    assert re.search(r"^Ran \d+ tests", result.output, re.MULTILINE) and not result.problems, result.explain()
    failing = failing_tests(result.output)
    if result.status == 0 and not failing:
        assert "OK" in result.output, result.explain()
        return
    plain = harness.run_ranks(mpi, ranks, command, with_awaken=False, timeout=timeout, cwd=suite.parent)
    assert failing and failing <= failing_tests(plain.output), result.explain()


# Under MPICH it takes twice as long; test_own_suite_whole has both.
@pytest.mark.parametrize("mpi", [pytest.param(mpi, marks=[pytest.mark.long] * (mpi == "mpich")) for mpi in MPIS])
def test_own_suite(
    mpi: str,
    awaken_program: Path,
    mpi_named: Callable[[str], harness.Mpi],
    mpi4py_suite: Callable[[Path], Path],
) -> None:
    chosen = mpi_named(mpi)
    suite = mpi4py_suite(python_for(chosen, "mpi4py", "numpy"))
    include = [argument for name in SELECTED for argument in ("-i", name)]
    # A driver is there and none of the buffers is its memory: the layer looks at every call.
    run_suite(chosen, suite, [*include, "--no-threads"], 2, "cuda:1", harness.LONG_HANG_S)


@pytest.mark.long
@pytest.mark.parametrize("emulate", [None, "cuda:1"])
@pytest.mark.parametrize("mpi", MPIS)
def test_own_suite_whole(
    mpi: str,
    emulate: str | None,
    awaken_program: Path,
    mpi_named: Callable[[str], harness.Mpi],
    mpi4py_suite: Callable[[Path], Path],
) -> None:
    chosen = mpi_named(mpi)
    run_suite(chosen, mpi4py_suite(python_for(chosen, "mpi4py", "numpy")), [], 2, emulate, harness.LONG_HANG_S)
