"""The demonstration of `make demo`: on emulated GPUs, in small, and with things that go wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from app_runs import AWAKEN_OF_BUILD, BUILD, ROOT, VENV


def demo(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "apps" / "demo.py", "--build", BUILD, "--prefix", VENV, *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWAKEN", "LD_"))}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def rows(out: str) -> list[list[str]]:
    """The rows of the table, as words."""
    lines = out.splitlines()
    rule = next(i for i, line in enumerate(lines) if line.startswith("-----"))
    table = lines[rule + 1 :]
    return [line.split() for line in table[: table.index("")]]


def test_demo_shows_the_crash_and_the_runs() -> None:
    small = ("--emulate", "--max-bytes", "64K", "--iterations", "2", "--measure", "topo,latency")
    done = demo(*small, "--awaken", AWAKEN_OF_BUILD)
    assert done.returncode == 0, done.stdout + done.stderr
    written = re.search(r"written in \d+ s: (\S+)", done.stdout)
    assert written is not None
    page = Path(written.group(1)).read_text()
    assert "Latency, 2 ranks" in page and 'id="topology"' in page and "Commands" in page
    assert "Timeline of ghost_exchange" in page and "MPI_Waitall (direct)" in page
    assert "it dies: killed by SIGSEGV" in done.stdout
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
    emulator = VENV / "lib" / "awaken" / "emulator"
    (fake.parent.parent / "lib" / "awaken").mkdir(parents=True)
    (fake.parent.parent / "lib" / "awaken" / "emulator").symlink_to(emulator)
    fake.write_text(f'#!/bin/sh\nshift 2\nLD_LIBRARY_PATH={emulator} exec "$@"\n')
    fake.chmod(0o755)
    done = demo("--emulate", "--max-bytes", "64K", "--iterations", "2", "--awaken", fake, "--measure", "")
    assert done.returncode == 1
    assert "ping_pong_gpu_aware, MPICH, cuda:2, emulated: ended with status" in done.stdout
    assert "  | " in done.stdout
    assert "FAILED" in done.stdout


def test_demo_says_what_is_missing(tmp_path: Path) -> None:
    done = demo("--awaken", tmp_path / "awaken")
    assert done.returncode == 2
    assert f"there is no {tmp_path / 'awaken'}: run `make demo`" in done.stderr
