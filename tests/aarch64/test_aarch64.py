# SPDX-License-Identifier: Apache-2.0
"""Awaken on a 64-bit Arm machine, as far as an emulated processor with emulated GPUs shows it (machine.py).

These tests find code that is wrong for the processor (entry points, relocations, calling conventions), and a build that
takes something of the wrong machine. They find no missing memory barrier: qemu-user keeps the order of the machine that
it runs on, which is stronger where that is x86-64 (docs/decisions/0038-memory-order-on-arm.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import harness
import machine
import pytest

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("aarch64")]

ABIS = ("mpich", "openmpi", "mpi5")
PING_PONG = "ping_pong_gpu_aware"
EXAMPLES = ("point_to_point", "reduce", "host_staged", "unified_memory", "own_kernel")
UNIT_TESTS = ("ipc_test", "node_test", "coll_test")
RANK_PROGRAMS: dict[str, tuple[str, ...]] = {
    "point_to_point": (),
    "requests": (),
    "datatypes": (),
    "collectives": ("--filter=reduce",),  # all of them take minutes
    "one_sided": ("--except=no_memory",),  # qemu-user does not limit a process's memory (RLIMIT_AS)
}
"""Rank programs under MPICH, each with the cases that do not depend on what qemu-user leaves out."""
QEMU_ENVIRONMENT = {
    # qemu-user has no process_vm_readv, with which MPICH copies between processes.
    "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    # PMIx wants its shared memory at one address in all processes, whatever their processors.
    "PMIX_MCA_gds": "hash",
}


@pytest.fixture(scope="session")
def arm_build() -> Path:
    """The build for aarch64, with what these tests run."""
    reason = machine.missing()
    if reason:
        pytest.skip(reason)
    machine.prepare()
    machine.build(
        *("awaken", "awaken_cli", "emulator"),
        *(f"{PING_PONG}_{abi}" for abi in ABIS),
        *(f"{program}_mpich" for program in EXAMPLES),
        *(f"rank_mpich_{program}" for program in RANK_PROGRAMS),
        *UNIT_TESTS,
    )
    return machine.BUILD


@pytest.fixture(autouse=True)
def _build_under_test(arm_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_BUILD_DIR", str(arm_build))


def on_arm(name: str) -> harness.Mpi:
    """An MPI with this machine's launcher, whose ranks are programs for aarch64."""
    mpi = harness.mpis()[name]
    if mpi.missing:
        pytest.skip(mpi.missing)
    arguments = (machine.__file__, "exec", str(mpi.mpiexec), *mpi.arguments)
    return harness.Mpi(name, Path(sys.executable), arguments, {**mpi.environment, **QEMU_ENVIRONMENT})


def is_for_arm(program: Path) -> bool:
    """By the machine in its ELF header (183)."""
    return program.read_bytes()[18:20] == b"\xb7\x00"


@pytest.mark.parametrize("abi", ABIS)
def test_messages_of_device_memory_go_direct(abi: str, arm_build: Path, tmp_path: Path) -> None:
    program = arm_build / "apps" / abi / PING_PONG
    assert is_for_arm(program)
    assert is_for_arm(harness.awaken())
    report = tmp_path / "report.json"
    words = [str(program), "--max-bytes", "4M", "--iterations", "2"]
    # However long the receiver takes to use its GPU, the first message waits for it.
    environment = {"AWAKEN_REPORT": str(report), "test tune first_watch_us": "60000000"}
    result = harness.run_ranks(on_arm(abi), 2, words, emulate="cuda:2", environment=environment)
    result.check()
    assert result.output.count("Transfer size (B): ") == 20, result.explain()
    paths = {call["path"] for call in json.loads(report.read_text())["calls"] if call["function"] == "MPI_Recv"}
    # Some are copied: a receiver that is late is not waited for.
    assert "direct" in paths and paths <= {"direct", "copied"}, paths


@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
@pytest.mark.parametrize("program", EXAMPLES)
def test_examples(program: str, emulate: str, arm_build: Path) -> None:
    words = [str(arm_build / "apps" / "mpich" / program), "--count", "100000"]
    result = harness.run_ranks(on_arm("mpich"), 2, words, emulate=emulate)
    result.check()
    assert f"PASS {program}: " in result.output, result.explain()


@pytest.mark.parametrize("program", RANK_PROGRAMS)
def test_rank_programs(program: str) -> None:
    mpi = on_arm("mpich")
    words = [str(mpi.programs / program), "--gpu=cuda", "--mix=device", *RANK_PROGRAMS[program]]
    result = harness.run_ranks(mpi, 2, words, emulate="cuda:2", timeout=harness.LONG_HANG_S)
    result.check()


@pytest.mark.parametrize("program", UNIT_TESTS)
def test_unit(program: str, arm_build: Path) -> None:
    done = subprocess.run(
        [sys.executable, machine.__file__, "exec", str(arm_build / "bin" / program), "--gtest_brief=1"],
        env=harness.clean_environment(),
        capture_output=True,
        text=True,
        timeout=harness.LONG_HANG_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert "[  PASSED  ] 0 tests" not in done.stdout, "the program holds no test"
