# SPDX-License-Identifier: Apache-2.0
"""Messages between processes of different nodes: tests/ranks/between_nodes.cpp, many of them at once
(tests/ranks/message_windows.cpp), and what MPI promises of all messages.

One machine pretends to be two nodes (AWAKEN_TEST_NODES), and messages are cut into parts from a few KiB on, so that
the programs of tests/test_point_to_point_paths.py meet that too. A report says whether messages really were cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest

CHUNK = 4096
TWO_NODES: Mapping[str, str] = {
    "AWAKEN_TEST_NODES": "2",
    "tune network_bytes": "2K",
    "tune network_fragment_bytes": str(CHUNK),
}

SMALL_POOL: Mapping[str, str] = {**TWO_NODES, "AWAKEN_PINNED_POOL": "256K"}
"""So little pinned memory that a few messages of message_windows.cpp fill it."""

Case = tuple[str, str, str, int, tuple[str, ...]]
"""(MPI, emulated runtime, program, ranks, more arguments)"""

DEFAULT: tuple[Case, ...] = (
    ("mpich", "cuda:2", "between_nodes", 2, ()),
    ("openmpi", "hip:2", "between_nodes", 2, ("--mix=device", "--threads")),
    ("mpi5", "cuda:1", "between_nodes", 2, ("--mix=device",)),
    ("mpich", "hip:2", "between_nodes", 4, ("--distance=2", "--mix=device", "--threads")),
    ("openmpi", "cuda:2", "between_nodes", 4, ("--mix=even-buffers-device",)),
    ("mpich", "hip:2", "completion", 2, ("--mix=device",)),
    ("openmpi", "cuda:2", "completion", 2, ("--mix=device",)),
    ("openmpi", "hip:2", "completion", 2, ("--mix=device", "--threads", "--filter=threads_probing")),
    ("mpich", "cuda:2", "messages", 2, ("--mix=device",)),
    ("openmpi", "hip:2", "messages", 2, ("--mix=device",)),
)

WINDOWS_DEFAULT: tuple[Case, ...] = (
    ("mpich", "cuda:2", "message_windows", 2, ("--mix=device", "--threads")),
    ("openmpi", "hip:2", "message_windows", 2, ("--mix=device",)),
)

WINDOWS_LONG: tuple[Case, ...] = tuple(
    (mpi, emulate, "message_windows", ranks, ("--distance=2", *threads) if ranks == 4 and mpi != "openmpi" else threads)
    for mpi in ("mpich", "openmpi", "mpi5")
    for emulate in ("cuda:2", "hip:2", "hip5:1")
    for ranks in (2, 4)
    for threads in ((), ("--threads",))
)

FOR_SANITIZERS: tuple[Case, ...] = (
    ("openmpi", "hip:2", "between_nodes", 2, ("--mix=device", "--threads")),
    ("mpich", "cuda:2", "messages", 2, ("--mix=device",)),
)

LONG: tuple[Case, ...] = tuple(
    (mpi, emulate, program, ranks, ("--distance=2", *threads) if ranks == 4 and mpi != "openmpi" else threads)
    for mpi in ("mpich", "openmpi", "mpi5")
    for emulate in ("cuda:2", "hip:2", "hip5:1")
    for program in ("between_nodes", "completion", "messages")
    for ranks in (2, 3, 4)
    for threads in ((), ("--threads",))
)


def case_name(case: Case) -> str:
    mpi, emulate, program, ranks, arguments = case
    return "-".join([program, mpi, emulate.replace(":", "x"), str(ranks), *(a.strip("-") for a in arguments)])


def calls_by_path(report: Path) -> dict[str, int]:
    calls: dict[str, int] = {}
    for entry in json.loads(report.read_text())["calls"]:
        calls[entry["path"]] = calls.get(entry["path"], 0) + entry["calls"]
    return calls


def check(
    case: Case,
    program: Path,
    mpi: harness.Mpi,
    folder: Path,
    timeout: float,
    settings: Mapping[str, str] = TWO_NODES,
) -> dict[str, int]:
    """Runs a case; how many calls took each path."""
    _, emulate, name, ranks, arguments = case
    gpu = "cuda" if emulate.startswith("cuda") else "hip"
    # By name, so that a driver that is not found fails the test instead of making it one of host memory.
    command: list[str | Path] = [program, f"--gpu={gpu}", *arguments]
    if name not in ("between_nodes", "message_windows"):
        command = [part for part in command if not str(part).startswith("--distance")]
    report = folder / "report.json"
    environment = {**settings, "AWAKEN_REPORT": str(report)}
    if name == "completion":  # whose messages are larger: as many parts as elsewhere
        environment["tune network_fragment_bytes"] = str(4 * CHUNK)
    result = harness.run_ranks(mpi, ranks, command, emulate=emulate, environment=environment, timeout=timeout)
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"
    return calls_by_path(report)


@pytest.mark.parametrize("case", harness.with_sanitizers(DEFAULT, FOR_SANITIZERS), ids=case_name)
def test_between_nodes(
    case: Case,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    calls = check(case, rank_program(case[0], case[2]), mpi_named(case[0]), tmp_path, harness.HANG_S)
    assert calls.get("pipelined", 0) > 0, calls


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=case_name)
def test_between_nodes_long(
    case: Case,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    calls = check(case, rank_program(case[0], case[2]), mpi_named(case[0]), tmp_path, harness.LONG_HANG_S)
    assert calls.get("pipelined", 0) > 0, calls


@pytest.mark.parametrize(
    "case",
    [*WINDOWS_DEFAULT, *(pytest.param(case, marks=pytest.mark.long) for case in WINDOWS_LONG)],
    ids=case_name,
)
def test_message_windows(
    case: Case,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    mpi, emulate, program, ranks, arguments = case
    # Parts this small can be more than an MPI has room for on its way to the receiver.
    case = (mpi, emulate, program, ranks, (*arguments, "--except=receiver_stopped"))
    calls = check(case, rank_program(mpi, program), mpi_named(mpi), tmp_path, harness.HANG_S, SMALL_POOL)
    assert calls.get("pipelined", 0) > 0, calls


@pytest.mark.parametrize("pool", ["64M", "1M"])
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_a_send_is_complete_without_its_receiver(
    mpi: str,
    emulate: str,
    pool: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The MPI has the bytes then, in pinned memory or in ordinary memory."""
    part = 64 << 10
    settings = {
        **TWO_NODES, "tune network_bytes": "64K", "tune network_fragment_bytes": str(part), "AWAKEN_PINNED_POOL": pool,
    }  # fmt: skip
    arguments = ("--mix=device", "--filter=receiver_stopped", f"--chunk-bytes={part}")
    case: Case = (mpi, emulate, "message_windows", 2, arguments)
    calls = check(case, rank_program(mpi, "message_windows"), mpi_named(mpi), tmp_path, harness.HANG_S, settings)
    assert calls.get("pipelined", 0) > 0, calls


@pytest.mark.parametrize(
    ("settings", "pipelined"),
    [
        ({}, False),  # one node
        ({**TWO_NODES, "AWAKEN_NODES": "0"}, False),
        ({**TWO_NODES, "AWAKEN_PATH": "staged"}, False),
        ({**TWO_NODES, "AWAKEN_NATIVE_GPU": "no"}, True),
    ],
    ids=["one_node", "nodes_off", "staged", "no_native_gpu"],
)
def test_settings(
    settings: Mapping[str, str],
    pipelined: bool,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    case: Case = ("mpich", "cuda:2", "between_nodes", 2, ("--mix=device", "--filter=send"))
    calls = check(case, rank_program("mpich", "between_nodes"), mpi_named("mpich"), tmp_path, harness.HANG_S, settings)
    assert (calls.get("pipelined", 0) > 0) == pipelined, calls


@pytest.mark.parametrize("settings", [{"AWAKEN_GPU": "none"}, {"AWAKEN_EMULATE": ""}], ids=["gpu_none", "no_driver"])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_ranks_without_gpu(
    mpi: str,
    settings: Mapping[str, str],
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """One rank cannot have a GPU and gets its MPI back; it takes part in what the others begin and end."""
    program = rank_program(mpi, "between_nodes")
    found = mpi_named(mpi)
    half = [str(harness.awaken()), "exec", "--", str(program)]
    options = ["--mix=device", "--filter=send"]
    environment = {**harness.clean_environment(), **found.environment, **TWO_NODES}
    environment["AWAKEN_EMULATE"] = "cuda:2"
    without = ["env", *(f"{name}={value}" for name, value in settings.items())]
    command = [str(found.mpiexec), *found.arguments, "-n", "1", *half, "--gpu=cuda", *options]
    command += [":", "-n", "1", *without, *half, "--gpu=none", *options]
    harness.run(command, environment, harness.HANG_S, foreign_files=found.foreign_files).check()


NATIVE_BUGS_OVER_TCP = ("from_anybody", "in_order", "truncated", "errors_in_statuses", "more_room_than_data")
"""Over TCP MPICH 5.0.2 loses messages that are received from MPI_ANY_SOURCE: a program of nothing but MPI_Isend and
MPI_Recv on host memory, without the layer, hangs there within a few rounds. What receives so is left out, and so is
what looks at the buffer of a message that was too long, where it leaves now this and now that. A get of less than there
is room for, in one piece, fetches what there is room for."""

SpacesCase = tuple[str, tuple[str, ...], int, str]
"""(program, arguments, ranks on each node, path that calls must have taken)"""

SPACES_DEFAULT: tuple[SpacesCase, ...] = (
    ("between_nodes", ("--mix=device",), 1, "pipelined"),
    ("collective_sequences", (), 1, "staged"),
    ("one_sided", ("--mirrored", "--except=shared", "--mix=device"), 1, "staged"),
)
SPACES_LONG: tuple[SpacesCase, ...] = (
    ("requests", (), 1, "pipelined"),
    ("datatypes", (), 1, "staged"),
    ("collective_types", (), 1, "staged"),
    ("collectives", (), 1, "staged"),
    ("collectives", (), 2, "direct"),
    ("collective_sequences", (), 2, "direct"),
)


@pytest.mark.parametrize(
    "case",
    [*SPACES_DEFAULT, *(pytest.param(case, marks=pytest.mark.long) for case in SPACES_LONG)],
    ids=lambda case: f"{case[0]}-{case[2]}",
)
def test_two_network_spaces(
    case: SpacesCase,
    network_spaces: dict[str, str],
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Ranks in each of two network namespaces, which to the launcher and to the MPI are two machines."""
    program, arguments, on_each, path = case
    launcher = tmp_path / "launch"
    cases = "\n".join(f"    {address}) space={name} ;;" for address, name in network_spaces.items())
    launcher.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        f'case "$1" in\n{cases}\nesac\n'
        "shift\n"
        'exec ip netns exec "$space" /bin/sh -c "$*"\n'
    )
    launcher.chmod(0o755)
    mpi = mpi_named("mpich")
    address, space = next(iter(network_spaces.items()))
    report = tmp_path / "report.json"
    command = ["ip", "netns", "exec", space, str(mpi.mpiexec), "-launcher", "ssh", "-launcher-exec", str(launcher)]
    command += ["-disable-hostname-propagation", "-localhost", address, "-iface", space]
    command += ["-hosts", ",".join(network_spaces), "-ppn", str(on_each), "-n", str(len(network_spaces) * on_each)]
    command += [str(awaken_program), "exec", "--", str(rank_program("mpich", program)), "--gpu=cuda", *arguments]
    command += [f"--except={case}" for case in NATIVE_BUGS_OVER_TCP]
    environment = {
        **harness.clean_environment(),
        **mpi.environment,
        **{name: value for name, value in TWO_NODES.items() if name != "AWAKEN_TEST_NODES"},
        "AWAKEN_EMULATE": "cuda:2",
        "AWAKEN_REPORT": str(report),
        "UCX_TLS": "tcp,self",  # or it finds out that the machine is one
    }
    harness.run(command, environment, harness.HANG_S * on_each, foreign_files=mpi.foreign_files).check()
    assert calls_by_path(report).get(path, 0) > 0


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("mpi", "emulate", "name", "options"),
    [
        ("mpich", "cuda:2", "between_nodes", ()),
        ("openmpi", "hip:2", "between_nodes", ()),
        pytest.param("mpich", "cuda:2", "message_windows", ("--threads",), marks=pytest.mark.long),
        pytest.param("openmpi", "hip:2", "message_windows", ("--threads",), marks=pytest.mark.long),
    ],
)
def test_between_nodes_linked(
    mpi: str,
    emulate: str,
    name: str,
    options: tuple[str, ...],
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Linked with the library instead of preloading it."""
    program = rank_program(mpi, f"{name}_linked")
    emulator = program.parents[3] / "lib" / "awaken" / "emulator"
    environment = {**TWO_NODES, "LD_LIBRARY_PATH": str(emulator)}
    gpu = "cuda" if emulate.startswith("cuda") else "hip"
    command: list[str | Path] = [program, f"--gpu={gpu}", "--mix=device", *options]
    result = harness.run_ranks(
        mpi_named(mpi), 2, command, with_awaken=False, emulate=emulate, environment=environment, timeout=harness.HANG_S
    )
    result.check()
