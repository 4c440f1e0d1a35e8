# SPDX-License-Identifier: Apache-2.0
"""What the scripts that measure on real GPUs share: cells, sizes, launches with a time limit, verdicts. stdlib only."""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Cell:
    """A median with its 95 % interval, in microseconds; of a test with a window, per message."""

    size: int
    median_us: float
    low_us: float
    high_us: float

    @property
    def rate(self) -> float:
        """GB/s (10^9 bytes)."""
        return self.size / self.median_us / 1e3


def cell_of(measurement: Mapping[str, Any]) -> Cell:
    """From a measurement in a report of `awaken bench --json`."""
    summary = measurement["summary"]
    return Cell(measurement["size"], summary["median_us"], *summary["median_95_us"])


@dataclass
class Verdict:
    met: bool | None  # None: not measured
    remark: str


def unmeasured() -> Verdict:
    return Verdict(None, "not measured")


VERDICT_WORDS = {True: "met", False: "MISSED", None: "-"}
"""How a verdict is printed."""


def summary(found: Sequence[str], otherwise: str) -> str:
    shown = ", ".join(found[:4])
    return (f"{shown} and {len(found) - 4} more" if len(found) > 4 else shown) if found else otherwise


# ------------------------------------------------------------------------------------------------------------ sizes


def size_text(size: int) -> str:
    for unit, suffix in ((GIB, "Gi"), (MIB, "Mi"), (KIB, "Ki")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {suffix}"
    return str(size)


def parse_size(text: str) -> int:
    units = {"K": KIB, "M": MIB, "G": GIB}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isdigit() or int(number) * unit < 8:
        raise argparse.ArgumentTypeError(f"{text} is not a size from 8 on, such as 64K or 1G")
    return int(number) * unit


# --------------------------------------------------------------------------------------------------------- launches


def launch_command(prefix: Path, variables: Mapping[str, str], first: Path | None = None, ranks: int = 2) -> str | None:
    """The words of --launcher; None when there is no such MPI. The libraries in `first` come before the MPI's own."""
    program = prefix / "bin" / "mpiexec"
    if not program.exists():
        return None
    folders = [str(first)] if first is not None else []
    path = [*folders, str(prefix / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    settings = {"LD_LIBRARY_PATH": ":".join(filter(None, path)), **variables}
    options: list[str] = []
    if (prefix / "bin" / "ompi_info").exists():
        settings |= {"OPAL_PREFIX": str(prefix), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        options = ["--oversubscribe"]
    words = [f"{name}={value}" for name, value in settings.items()]
    return shlex.join(["env", *words, str(program), *options, "-n", str(ranks)])


def run(command: Sequence[str], limit_s: float, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit status (-1: ended when its time was up) and what was printed. `variables` come on top of our own."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        # Launchers end their ranks, and the benchmark its launches, when they are told to.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return -1, output + f"\n(ended after {limit_s:.0f} s)"
    return process.returncode, output


def end_of(output: str) -> str:
    """What of a failed launch's output is worth to be shown."""
    return "\n".join("  | " + line for line in output.splitlines()[-15:])


def gpu_count(emulate: str | None) -> int:
    """GPUs that a rank of this machine sees, or those to be emulated (cuda:4)."""
    if emulate is not None:
        return int(emulate.split(":")[1])
    count = ctypes.c_int(0)
    for name, initialise, function in (
        ("libcuda.so.1", "cuInit", "cuDeviceGetCount"),
        ("libamdhip64.so", "hipInit", "hipGetDeviceCount"),
    ):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if getattr(library, initialise)(0) == 0 and getattr(library, function)(ctypes.byref(count)) == 0:
            return count.value
    return 0
