# SPDX-License-Identifier: Apache-2.0
"""Programs that others reported as hanging or wrong with MPI and GPU memory, each standing for a kind, on real GPUs.

    python3 tests/gpu_hardware/outsiders.py [--build FOLDER] [--mpich PREFIX] [--openmpi PREFIX] [--only TEXT]
        [--emulate cuda:2] [--more FILE]

Each runs on two ranks under MPICH and Open MPI, through `awaken exec`, and has to end well within its time. The
built-in ones are rank programs of this repository. FILE names more, one in a line: the program, in which {mpi} stands
for mpich or openmpi, and its arguments. stdlib only.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

import measure

Case = tuple[str, str, dict[str, str]]
"""What it stands for, the program below build/release/tests/ranks/{mpi} with its arguments, settings."""
LATER = "--except=persistent --except=iallreduce"
"""Behind others these may wait for the GPU, see tests/test_busy_device.py."""
CASES: tuple[Case, ...] = (
    ("a stream is busy until the MPI call is over", f"busy_device --mix=device {LATER}", {}),
    ("so it is, and memory goes through a ring", f"busy_device --mix=device {LATER}", {"AWAKEN_PATH": "ring"}),
    *(
        (f"first call of the process beside a busy stream: {name}", f"busy_device --mix=device --filter={name}", {})
        for name in ("exchanges", "strided", "new_memory", "allreduce", "window", "iallreduce")
    ),
    ("MPI in a function that a stream calls", "lifecycle host-functions", {}),
    ("the program says late which devices it sees", "lifecycle late-visible", {}),
    ("the program resets its device", "lifecycle reset", {}),
    ("many messages under way", "completion --filter=many_ --mix=device", {}),
    ("no memory of another process can be mapped", "messages --mix=device", {"AWAKEN_PATH": "ring"}),
)
LIMIT_S = 180


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--mpich", type=Path, default=Path(".venv"))
    parser.add_argument("--openmpi", type=Path, default=Path(".venv/openmpi"))
    parser.add_argument("--emulate", metavar="VENDOR:N", help="on the emulated driver instead of a GPU")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose title or program contains it")
    parser.add_argument("--more", type=Path, metavar="FILE", help="more programs, one in a line")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    cases = [(title, f"{build}/tests/ranks/{{mpi}}/{line} --gpu=cuda", more) for title, line, more in CASES]
    if arguments.more is not None:
        lines = [line.strip() for line in arguments.more.read_text().splitlines()]
        cases += [(line, line, {}) for line in lines if line and not line.startswith("#")]
    awaken = [str(build / "bin" / "awaken"), "exec"]
    awaken += ["--emulate", arguments.emulate, "--"] if arguments.emulate else ["--"]
    failed = ran = 0
    for mpi, prefix in (("mpich", arguments.mpich), ("openmpi", arguments.openmpi)):
        launcher = measure.launch_command(prefix.resolve(), {})
        if launcher is None:
            sys.stdout.write(f"-    no MPI in {prefix}: {mpi} was not tried\n")
            continue
        for title, line, settings in cases:
            if arguments.only not in title and arguments.only not in line:
                continue
            ran += 1
            program = shlex.split(line.replace("{mpi}", mpi))
            if arguments.emulate and arguments.emulate.startswith("hip"):
                program = ["--gpu=hip" if word == "--gpu=cuda" else word for word in program]
            start = time.monotonic()
            status, output = measure.run([*shlex.split(launcher), *awaken, *program], LIMIT_S, settings)
            failed += status != 0
            shown = f"{title} ({' '.join(f'{name}={value}' for name, value in settings.items())})".replace(" ()", "")
            sys.stdout.write(
                f"{'ok  ' if status == 0 else 'FAIL'} {mpi:<8}{time.monotonic() - start:7.1f} s  {shown}\n"
            )
            if status != 0:
                sys.stdout.write("".join(f"     | {text}\n" for text in output.splitlines()[-15:]))
            sys.stdout.flush()
    sys.stdout.write(f"{ran - failed} of {ran} passed\n")
    return os.EX_OK if failed == 0 and ran != 0 else 1


if __name__ == "__main__":
    sys.exit(main())
