# SPDX-License-Identifier: Apache-2.0
"""What all tests share: options, markers, and the fixtures that start rank programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
# Tests of commands import the tree's own Python package, whatever is installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

import harness
import progress

# Daemons and tools of the system lie where most users' PATH does not look.
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also the cases that need many ranks, minutes or gigabytes")
    parser.addoption("--perf", action="store_true", help="only the tests of speed, by hand on a quiet machine")
    parser.addoption("--strict-figures", action="store_true", help="assert the strict figures of the host-cost test")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(progress.Progress(config), "progress")
    config.addinivalue_line("markers", "long: left out unless --long is given")
    config.addinivalue_line("markers", "perf: judges measured times; --perf selects only these, else they are left out")
    config.addinivalue_line("markers", "xdist_group(name): one after another where tests run in several processes")
    config.addinivalue_line("markers", "sanitizer: makes sense, and is run, on builds with sanitizers")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    perf, long = config.getoption("--perf"), config.getoption("--long")

    def chosen(item: pytest.Item) -> bool:
        # On a busy machine a test of speed is red by chance.
        if (item.get_closest_marker("perf") is not None) != perf:
            return False
        return long or item.get_closest_marker("long") is None

    kept = [item for item in items if chosen(item)]
    dropped = [item for item in items if not chosen(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    items[:] = kept
    _skip_tests_of_benchmarks_that_cannot_be_built(kept)


def _skip_tests_of_benchmarks_that_cannot_be_built(items: list[pytest.Item]) -> None:
    """In a build that could have no benchmarks, and only there."""
    cache = harness.build_dir() / "CMakeCache.txt"
    found = re.search(r"^AWAKEN_BENCH_BUILT:INTERNAL=(.*)$", cache.read_text(), re.M) if cache.exists() else None
    if found is None or found.group(1) != "OFF":
        return  # a runner that is missing all the same is a failure
    reason = "no benchmarks in this build: nlohmann-json was missing (apt-get install nlohmann-json3-dev)"
    for item in items:
        if "tests/bench/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def mpi_named() -> Callable[[str], harness.Mpi]:
    """An MPI by name; skips the test when it is not installed."""

    def find(name: str) -> harness.Mpi:
        mpi = harness.mpis()[name]
        if mpi.missing:
            pytest.skip(mpi.missing)
        return mpi

    return find


@pytest.fixture(scope="session")
def awaken_program() -> Path:
    """The program under test. Its absence is a failure: a suite without it would test nothing."""
    program = harness.awaken()
    assert program.exists(), f"{program} does not exist: run `make test`, or set TEST_BUILD_DIR"
    return program


@pytest.fixture(scope="session")
def rank_program(mpi_named: Callable[[str], harness.Mpi]) -> Callable[[str, str], Path]:
    """A rank program by MPI and name; skips when that MPI had no part in the build."""

    def find(mpi: str, name: str) -> Path:
        path = mpi_named(mpi).programs / name
        if not path.parent.exists():
            pytest.skip(f"{path.parent} was not built: its MPI was not there when the build was configured")
        assert path.exists(), f"{path} was not built"
        return path

    return find


ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}


@pytest.fixture
def network_spaces() -> Iterator[dict[str, str]]:
    """Two network namespaces of this machine, joined by a cable: address -> name."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the program ip")
    tag = uuid.uuid4().hex[:6]
    spaces = {address: f"aw{tag}{side}" for side, address in ADDRESSES.items()}
    first, second = spaces.values()
    try:
        made = [["netns", "add", first], ["netns", "add", second]]
        made += [["link", "add", first, "type", "veth", "peer", "name", second]]
        for address, name in spaces.items():
            made += [["link", "set", name, "netns", name]]
            made += [["-n", name, "link", "set", device, "up"] for device in ("lo", name)]
            made += [["-n", name, "addr", "add", f"{address}/24", "dev", name]]
        for arguments in made:
            done = subprocess.run(
                ["ip", *arguments], capture_output=True, text=True, timeout=harness.HANG_S, check=False
            )
            if done.returncode != 0:
                pytest.skip(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
        yield spaces
    finally:
        for name in spaces.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=harness.HANG_S, check=False)
