"""Leaves out the tests of the benchmarks in a build that could have none, and only there."""

from __future__ import annotations

import re

import harness
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cache = harness.build_dir() / "CMakeCache.txt"
    found = re.search(r"^AWAKEN_BENCH_BUILT:INTERNAL=(.*)$", cache.read_text(), re.M) if cache.exists() else None
    if found is None or found.group(1) != "OFF":
        return  # a runner that is missing all the same is a failure
    reason = "no benchmarks in this build: nlohmann-json was missing (apt-get install nlohmann-json3-dev)"
    for item in items:
        if "tests/bench/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=reason))
