# SPDX-License-Identifier: Apache-2.0
"""What copied device memory, as the report of a run and its trace say it: the same in both, and what did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import harness
import pytest

PATIENT = {
    "test tune first_watch_us": "60000000",
    "test tune small_watch_us": "60000000",
    "test tune large_watch_us": "60000000",
}
"""A message whose receiver is late would be copied out for that reason."""
NO_CPU = {"AWAKEN_TEST_CPU_COPY": "0"}
BY_ENGINE = {"AWAKEN_TEST_COPY": "engine"}

Run = Callable[..., dict[str, int]]


@pytest.fixture(name="copied")
def _copied(mpi_named: Callable[[str], harness.Mpi], awaken_program: Path, tmp_path: Path) -> Run:
    assert awaken_program.exists()
    runner = harness.build_dir() / "lib" / "awaken" / "bench" / "awaken-bench"

    def copied(mpi: str, emulate: str, words: tuple[str, ...], **settings: str) -> dict[str, int]:
        """The bytes that each copied, in a benchmark on device memory; "direct" and "copied": of the messages' calls
        by their path."""
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        report, trace = folder / "report.json", folder / "trace"
        folder.mkdir()
        environment = {"AWAKEN_REPORT": str(report), "AWAKEN_TRACE": str(trace), **PATIENT, **settings}
        test, *options = words
        command: list[str | Path] = [runner, test, "D", "D", "-i", "4", "-x", "1", *options]
        harness.run_ranks(mpi_named(mpi), 2, command, emulate=emulate, environment=environment).check()
        account = json.loads(report.read_text())
        counted = {by: (sums["copies"], sums["bytes"]) for by, sums in account["copies"].items()}
        assert list(counted) == ["engine", "kernel", "cpu"]

        traced = dict.fromkeys(counted, (0, 0))
        for event in json.loads((trace / "trace.json").read_text())["traceEvents"]:
            if event.get("cat") in ("copy", "kernel"):
                by = event["args"]["by"] if event["cat"] == "copy" else "kernel"
                count, size = traced[by]
                traced[by] = (count + 1, size + event["args"]["bytes"])
        assert traced == counted
        totals = {path: account["totals"][path]["bytes"] for path in ("direct", "copied")}
        return {**{by: size for by, (_, size) in counted.items()}, **totals}

    return copied


LATENCY = ("latency", "-m", "8:65536", "--step-factor", "32")


@pytest.mark.parametrize(
    ("mpi", "emulate", "by"),
    [("mpich", "cuda:2", "engine"), ("openmpi", "hip:2", "kernel"), ("openmpi", "cuda:2", "kernel")],
)
def test_each_message_is_copied_once(copied: Run, mpi: str, emulate: str, by: str) -> None:
    found = copied(mpi, emulate, LATENCY, AWAKEN_TEST_COPY=by, **NO_CPU)
    # Of each message there are two calls: a send and a receive.
    assert found["direct"] > 0 and found["copied"] == 0, found
    assert {name: found[name] for name in ("engine", "kernel", "cpu")} == {
        "engine": 0,
        "kernel": 0,
        "cpu": 0,
        by: found["direct"] // 2,
    }


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_the_cpu_copies_out_and_in(copied: Run, mpi: str) -> None:
    """With a stand-in for GDRCopy's library, which is looked for where a program has loaded it."""
    gdrcopy = harness.build_dir() / "tests" / "unit" / "fake_gdrapi" / "libgdrapi.so.2"
    assert gdrcopy.exists()
    words = ("latency", "-m", "8:4096", "--step-factor", "8")
    found = copied(mpi, "cuda:2", words, LD_PRELOAD=str(gdrcopy))
    assert found == {"engine": 0, "kernel": 0, "cpu": found["copied"], "direct": 0, "copied": found["copied"]}
    assert found["cpu"] > 0
    found = copied(mpi, "cuda:2", words, LD_PRELOAD=str(gdrcopy), **NO_CPU)
    assert found["cpu"] == 0 < found["engine"], found


def test_many_short_messages_are_copied_by_a_kernel(copied: Run) -> None:
    """Those that start together; engine forbids it."""
    words = ("bw", "-m", "1024:1024", "-W", "64", "-i", "20")
    assert copied("mpich", "cuda:2", words, **NO_CPU)["kernel"] > 0
    assert copied("mpich", "cuda:2", words, **BY_ENGINE, **NO_CPU)["kernel"] == 0


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
def test_gaps_and_sums_are_by_kernels(copied: Run, emulate: str) -> None:
    gaps = copied("mpich", emulate, ("latency", "-m", "4096:65536", "-D", "vect:8:3"), **BY_ENGINE, **NO_CPU)
    assert gaps["kernel"] > 0, gaps
    sums = copied("mpich", emulate, ("allreduce", "-m", "65536:65536"), **BY_ENGINE, **NO_CPU)
    assert sums["kernel"] > 0, sums
