# SPDX-License-Identifier: Apache-2.0
"""How long a program takes that has never run on a machine: with kernels that were compiled before, and without them.

    python3 tests/gpu_hardware/first_use.py [--build FOLDER] [--mpich PREFIX] [--emulate cuda:2]

Runs short programs on two ranks with a new cache each time: with lib/awaken/kernels.bin as it is, with its PTX alone
(without the driver's own cache), without it, and again without it, when the run-time compiler's code is kept. The first
two must compile nothing. Exit status 1 when they do, or when a program fails. For CUDA; stdlib only.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tempfile
import time
from pathlib import Path

import measure

LIMIT_S = 180
OSU = "-d cuda -m 8:65536 -x 0 -i 2"
PROGRAMS = (
    f"bin/osu_allreduce {OSU}",
    f"bin/osu_bcast {OSU}",
    f"bin/osu_latency {OSU}",
    "tests/ranks/mpich/datatypes --gpu=cuda --mix=device",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--mpich", type=Path, default=Path(".venv"))
    parser.add_argument("--emulate", metavar="cuda:N", help="on the emulated driver instead of a GPU")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    installed = (build / "lib" / "awaken" / "kernels.bin").read_bytes()
    awaken = [str(build / "bin" / "awaken"), "exec"]
    awaken += ["--emulate", arguments.emulate, "--"] if arguments.emulate else ["--"]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, portable = folder / "whole.bin", folder / "portable.bin"
        whole.write_bytes(installed)
        # Named after no GPU that there is. The names are as long, so that the offsets stay true.
        index, _, code = installed.partition(b"\n\n")
        portable.write_bytes(re.sub(rb"(?m)^sm_", b"no_", index) + b"\n\n" + code)
        cases = (
            ("machine code", whole, "1", False),
            ("PTX", portable, "2", False),
            ("compiled now", "none", "3", True),
            ("compiled before", "none", "3", True),
        )
        launcher = measure.launch_command(arguments.mpich.resolve(), {})
        if launcher is None:
            print("there is no mpiexec")
            return 1
        for program in PROGRAMS:
            words = program.split()
            for title, kernels, cache, compiles in cases:
                kept = folder / words[0].replace("/", "-") / cache
                kept.mkdir(parents=True, exist_ok=True)
                start = time.monotonic()
                status, output = measure.run(
                    [*shlex.split(launcher), *awaken, str(build / words[0]), *words[1:]],
                    LIMIT_S,
                    {
                        "XDG_CACHE_HOME": str(kept),
                        "AWAKEN_TEST_KERNELS": str(kernels),
                        "AWAKEN_TEST_COPY": "kernel",
                        "CUDA_CACHE_DISABLE": "1",
                    },
                )
                seconds = time.monotonic() - start
                compiled = len(list(kept.rglob("*.bin")))
                passed = status == 0 and (compiled > 0) == compiles
                failed += not passed
                print(f"{'ok' if passed else 'FAILED':<7} {title:<16} {seconds:6.2f} s, {compiled} compiled: {program}")
                if status != 0:
                    print(measure.end_of(output))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
