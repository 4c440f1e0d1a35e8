# SPDX-License-Identifier: Apache-2.0
"""What MPI promises of messages, held against every path that they may take.

tests/ranks/completion.cpp (nothing hangs, nothing dawdles), messages.cpp (what a receiver is told and given),
memory_churn.cpp (memory that comes and goes) and processes.cpp (the edges of a process's life), on emulated GPUs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import harness
import pytest
import test_ranks

PATHS: dict[str, Mapping[str, str]] = {
    "auto": {},
    "staged": {"AWAKEN_PATH": "staged"},
    "no_ipc": {"AWAKEN_TEST_FAULTS": "ipc-open"},
    "order": {"AWAKEN_DEFAULT_STREAM": "order"},
}
"""What makes messages take a path: settings, and faults of the emulated driver, which leave only the ways out."""
MAPPED_PATHS = ("auto", "no_descriptors")
"""The same for memory that is mapped at reserved addresses, as PyTorch's expandable segments are (CUDA only)."""
PATHS["no_descriptors"] = {"AWAKEN_TEST_FAULTS": "descriptor-import"}
CARD_MIB = 64
"""Small, so that memory which is not given back is missed soon."""

PROGRAMS: dict[str, tuple[str, ...]] = {
    "completion": (),
    "messages": (),
    "memory_churn": (f"--card-mib={CARD_MIB}",),
}
"""What each program is given beside --gpu and the case's own arguments."""

Case = tuple[str, str, str, str, int, tuple[str, ...]]
"""(path, MPI, emulated runtime, program, ranks, more arguments)"""

DEFAULT: tuple[Case, ...] = (
    # All mixes are --long.
    *(
        ("auto", "mpich", "cuda:2", program, 2, (f"--mix={mix}",))
        for program in PROGRAMS
        for mix in ("device", "even-ranks-device")
    ),
    *(("auto", "openmpi", "hip:2", program, 2, ("--mix=drawn-1",)) for program in PROGRAMS),
    *(("auto", "mpi5", "cuda:1", program, 2, ("--mix=pool",)) for program in PROGRAMS),
    # Each path with each program, under one MPI and then the other; --long has both.
    *(
        (path, *(("mpich", "hip:2"), ("openmpi", "cuda:2"))[(at + number) % 2], program, 2, ("--mix=device",))
        for at, path in enumerate(PATHS)
        if path not in MAPPED_PATHS
        for number, program in enumerate(PROGRAMS)
        # What comes and goes is mapped on the direct path alone.
        if program != "memory_churn"
    ),
    *(("auto", "mpich", "cuda:2", program, 2, ("--mix=mapped",)) for program in PROGRAMS),
    *(("no_descriptors", "openmpi", "cuda:2", program, 2, ("--mix=mapped",)) for program in ("messages", "completion")),
    ("auto", "mpich", "hip:2", "completion", 3, ("--mix=even-ranks-device",)),
    ("auto", "openmpi", "cuda:3", "completion", 3, ("--mix=drawn-0",)),
    ("auto", "openmpi", "cuda:2", "messages", 3, ("--mix=odd-ranks-interior",)),
    ("auto", "mpich", "hip5:3", "messages", 3, ("--mix=managed",)),
    # Several threads. The other cases must not mind that level either; --long shows it.
    ("auto", "mpich", "hip:2", "completion", 2, ("--threads", "--filter=threads")),
    ("auto", "openmpi", "cuda:2", "completion", 2, ("--threads", "--filter=threads")),
    ("auto", "mpich", "cuda:2", "messages", 2, ("--threads", "--filter=threads")),
    ("auto", "openmpi", "hip:2", "messages", 2, ("--threads", "--filter=threads")),
)

FOR_SANITIZERS = tuple(
    case for case in DEFAULT if (case[0] != "auto" and case[3] == "messages") or "--threads" in case[5]
)
"""The ways that messages take only where they must, and calls on several threads."""

LONG: tuple[Case, ...] = (
    *(
        (path, mpi, emulate, program, ranks, ("--rounds=400",) if program == "memory_churn" else threads)
        for path in PATHS
        for mpi in ("mpich", "openmpi", "mpi5")
        for emulate in ("cuda:2", "hip:2", "hip5:1")
        for program in PROGRAMS
        for ranks in (2, 3)
        for threads in ((), ("--threads",))
        if program != "memory_churn" or not threads
    ),
    # Very many allocations, and one that an int cannot count.
    *(
        (path, mpi, emulate, "memory_churn", 2, arguments)
        for path in PATHS
        for mpi, emulate in (("mpich", "cuda:2"), ("openmpi", "hip:2"))
        for arguments in (
            ("--rounds=10000", "--filter=new_both_medium", "--watchdog=900"),
            ("--long", "--filter=two_gibibytes", "--watchdog=900"),
        )
    ),
)


def case_name(case: Case) -> str:
    path, mpi, emulate, program, ranks, arguments = case
    return "-".join([path, program, mpi, emulate.replace(":", "x"), str(ranks), *(a.strip("-") for a in arguments)])


def gpu_option(emulate: str) -> str:
    # By name, so that a driver that is not found fails the test instead of making it one of host memory.
    return f"--gpu={'cuda' if emulate.startswith('cuda') else 'hip'}"


def check(case: Case, program: Path, mpi: harness.Mpi, timeout: float) -> None:
    path, _, emulate, name, ranks, arguments = case
    arguments = (*PROGRAMS[name], *arguments)
    environment = dict(PATHS[path])
    if name == "memory_churn" and "--long" not in arguments:
        environment["AWAKEN_EMULATE_MEMORY"] = f"{CARD_MIB}M"
    command: list[str | Path] = [program, gpu_option(emulate), *arguments]
    result = harness.run_ranks(mpi, ranks, command, emulate=emulate, environment=environment, timeout=timeout)
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"
    if "--threads" in arguments:
        assert "# several threads" in result.output, f"the MPI does not allow several threads\n{result.explain()}"


@pytest.mark.parametrize("case", harness.with_sanitizers(DEFAULT, FOR_SANITIZERS), ids=case_name)
def test_paths(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[1], case[3]), mpi_named(case[1]), harness.HANG_S)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=case_name)
def test_paths_long(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[1], case[3]), mpi_named(case[1]), harness.LONG_HANG_S)


# ---- memory that is mapped at reserved addresses ---------------------------------------------------------------------


@pytest.mark.parametrize("path", MAPPED_PATHS)
def test_mapped_memory_goes_by_descriptors(
    path: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Receivers read it where it lies. One that may not is asked once, and gets copies from then on."""
    report = tmp_path / "report.json"
    # A message that is copied out, since its receiver is late, finds nothing out.
    patient = {
        "test tune first_watch_us": "60000000",
        "test tune small_watch_us": "1000000",
        "test tune large_watch_us": "60000000",
    }
    environment = {"AWAKEN_REPORT": str(report), **patient, **PATHS[path]}
    program = rank_program("mpich", "point_to_point")
    command: list[str | Path] = [program, "--gpu=cuda", "--mix=mapped", "--filter=recv"]
    result = harness.run_ranks(
        mpi_named("mpich"), 2, command, emulate="cuda:2", environment=environment, timeout=harness.HANG_S
    )
    result.check()
    account = json.loads(report.read_text())
    calls: dict[str, int] = {}
    for row in account["calls"]:
        if row["function"] == "MPI_Send" and row["path"] != "native":  # the reference runs are
            calls[row["path"]] = calls.get(row["path"], 0) + row["calls"]
    refused = {row["reason"]: row["count"] for row in account["fallbacks"]}
    if path == "auto":
        assert calls.keys() == {"direct"} and not refused, (calls, refused)
    else:
        # One message of each rank found it out.
        assert calls.keys() == {"direct", "copied"} and calls["direct"] == 2, calls
        assert len(refused) == 2 and set(refused.values()) == {1}, refused
        assert all("cuMemImportFromShareableHandle" in reason for reason in refused), refused


# ---- short messages from large allocations ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mpi", "emulate", "settings"),
    [
        ("mpich", "cuda:2", {}),
        ("openmpi", "hip:2", {}),
        ("mpich", "cuda:1", {"AWAKEN_PATH": "direct"}),
        ("mpich", "hip:2", {"tune copy_first_bytes": "0"}),
        ("openmpi", "cuda:2", {"AWAKEN_TEST_FAULTS": "ipc-open"}),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else str(value),
)
def test_a_large_allocation_is_mapped_when_that_pays(
    mpi: str,
    emulate: str,
    settings: Mapping[str, str],
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    report = tmp_path / "report.json"
    # A message whose receiver is late would be copied out for that reason.
    patient = {
        "test tune first_watch_us": "60000000",
        "test tune small_wait_us": "1000000",
        "test tune large_watch_us": "60000000",
    }
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        [rank_program(mpi, "message_costs"), "--large"],
        emulate=emulate,
        environment={"AWAKEN_REPORT": str(report), **patient, **settings},
        timeout=harness.HANG_S,
    )
    result.check()
    assert result.output.count("ok a large allocation") == 2, result.explain()
    paths = {row["path"] for row in json.loads(report.read_text())["calls"] if row["function"] == "MPI_Isend"}
    if "tune copy_first_bytes" in settings:
        assert "direct" in paths and "copied" not in paths, paths
    elif "AWAKEN_TEST_FAULTS" in settings:
        assert "ring" in paths, paths
    else:
        assert {"direct", "copied"} <= paths, paths


# ---- mappings that take long, or cannot be had -----------------------------------------------------------------------

MAPPING: dict[str, tuple[dict[str, str], bool, set[int]]] = {
    "quick": ({}, False, {0, 1}),
    "slow": ({"AWAKEN_TEST_IPC_OPEN_US": "5000+50000"}, False, {0, 1}),
    "slow_for_one": ({"AWAKEN_TEST_IPC_OPEN_US": "20000"}, True, {0, 1}),
    "refused": ({"AWAKEN_TEST_FAULTS": "ipc-open"}, False, set()),
    "refused_to_one": ({"AWAKEN_TEST_FAULTS": "ipc-open"}, True, {0}),
    "not_exported": ({"AWAKEN_TEST_FAULTS": "ipc-export"}, False, set()),
}
"""Settings, whether rank 1 alone has them, and the ranks that then map memory of the other one."""
MAPPING_MACHINES = [("mpich", "cuda:2"), ("mpich", "hip:2"), ("openmpi", "hip:2"), ("openmpi", "cuda:2")]


@pytest.mark.parametrize(
    ("mapping", "mpi", "emulate"),
    [
        # Each under both MPIs and as both vendors; --long has all combinations.
        pytest.param(mapping, mpi, emulate, marks=[] if (at + number) % 2 == 0 else pytest.mark.long)
        for at, mapping in enumerate(MAPPING)
        for number, (mpi, emulate) in enumerate(MAPPING_MACHINES)
    ],
)
def test_memory_that_is_used_once(
    mapping: str,
    mpi: str,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Each message is of memory that nobody has mapped, and comes however long that takes; nothing stays mapped."""
    settings, one_alone, mapping_ranks = MAPPING[mapping]
    words = [word for setting in settings.items() for word in harness.one_differs(mpi, "=".join(setting))]
    command: list[str | Path] = [
        *(words if one_alone else []), rank_program(mpi, "memory_churn"), gpu_option(emulate), "--mix=device",
        "--filter=used_once",
    ]  # fmt: skip
    environment = {} if one_alone else settings
    result = harness.run_ranks(
        mpi_named(mpi), 2, command, emulate=emulate, environment=environment, timeout=harness.HANG_S
    )
    result.check()
    assert result.output.count("\nok used_once") == 2, result.explain()
    opened = {int(rank): int(count) for rank, count in re.findall(r"# rank (\d) opened (\d+) mappings", result.output)}
    assert opened.keys() == {0, 1}, result.explain()
    assert {rank for rank, count in opened.items() if count > 0} == mapping_ranks, opened


# ---- from host memory to device memory -------------------------------------------------------------------------------

HOST_OFFERS: tuple[tuple[str, str, str, Mapping[str, str], str, set[str]], ...] = (
    ("mpich", "cuda:2", "between_nodes", {}, "even-ranks-device", {"ring"}),
    ("openmpi", "hip:2", "between_nodes", {"AWAKEN_PATH": "direct"}, "odd-buffers-device", {"copied"}),
    ("mpich", "hip:2", "messages", {}, "odd-buffers-device", {"copied"}),
    ("openmpi", "cuda:2", "completion", {}, "even-ranks-device", {"ring"}),
)
"""(MPI, emulated runtime, program, settings, mix of buffers, paths of which one must be seen)"""


@pytest.mark.parametrize("case", HOST_OFFERS, ids=lambda case: "-".join([case[2], case[0], case[4]]))
def test_host_memory_is_fetched_into_device_memory(
    case: tuple[str, str, str, Mapping[str, str], str, set[str]],
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """Messages of any size are offered to receivers in device memory, and come as MPI promises."""
    mpi, emulate, name, settings, mix, paths = case
    report = tmp_path / "report.json"
    environment = {"tune host_offer_bytes": "1", "AWAKEN_REPORT": str(report), **settings}
    command: list[str | Path] = [rank_program(mpi, name), gpu_option(emulate), f"--mix={mix}"]
    result = harness.run_ranks(
        mpi_named(mpi), 2, command, emulate=emulate, environment=environment, timeout=harness.HANG_S
    )
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"
    seen = {row["path"] for row in json.loads(report.read_text())["calls"] if row["function"] == "MPI_Send"}
    assert seen & paths, seen


@pytest.mark.sanitizer
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_paths_linked(
    mpi: str, program: str, rank_program: Callable[[str, str], Path], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """Linked with the library instead of preloading it."""
    test_ranks.test_ranks_linked(mpi, program, rank_program, mpi_named)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("mpi", "emulate", "ranks"), [("mpich", "cuda:2", 2), ("openmpi", "hip:2", 3), ("mpi5", "hip:1", 2)]
)
def test_edges_of_life(
    mpi: str,
    emulate: str,
    ranks: int,
    path: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    program = rank_program(mpi, "processes")
    for mode in ("send-finalize", "freed-finalize", "bsend-finalize", "early-receive", "one-gpu", "late-gpu"):
        command = [program, mode, gpu_option(emulate)]
        result = harness.run_ranks(
            mpi_named(mpi), ranks, command, emulate=emulate, environment=PATHS[path], timeout=harness.HANG_S
        )
        result.check()
        assert f"ok {mode}" in result.output, result.explain()


# ---- a rank that dies ------------------------------------------------------------------------------------------------

DEATHS = ("receive", "before-send", "posted", "sent", "fence", "wait")
NO_CLEANUP = {"mpich": ("-disable-auto-cleanup",), "openmpi": ("--runtime-options", "recoverable,continuous")}
"""How a launcher is told to leave the others alone when a rank dies."""


def let_die(
    place: str,
    mpi: harness.Mpi,
    path: str,
    program: Path,
    launcher: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
) -> harness.Result:
    """Kills the last of two ranks at a place. The run has to end by itself, and to leave nothing of ours."""
    emulate = "cuda:2"
    command = harness.rank_command(mpi, 2, [program, f"dies={place}", gpu_option(emulate)])
    command[1:1] = launcher
    variables = {
        **harness.clean_environment(),
        **mpi.environment,
        **PATHS.get(path, SHORT_RING),
        "AWAKEN_EMULATE": emulate,
        **(environment or {}),
    }
    result = harness.run(command, variables, foreign_files=harness.FILES_OF_MPIS)
    for file in result.left:
        if file.name.startswith(harness.FILES_OF_MPIS):
            file.unlink(missing_ok=True)
    assert not result.problems, result.explain()
    assert "FAIL" not in result.output, result.explain()
    return result


# In stream order a receive returns before its bytes are there: the error of a sender that has died comes with the next.
@pytest.mark.parametrize("path", [path for path in PATHS if path != "order"])
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_death_ends_the_job(
    mpi: str,
    path: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The launcher ends the job when a rank has died: whatever the others are doing, they let themselves be ended."""
    for place in DEATHS:
        let_die(place, mpi_named(mpi), path, rank_program(mpi, "processes"), ())


SHORT_RING = {"AWAKEN_PATH": "ring", "test tune ring_chunks": "2"}
"""A ring that holds less than the message."""
DEATHS_IN_TRANSFER = {"auto": ("fetching", "fetched"), "ring": ("fetching", "fetched", "writing")}
"""Where in a transfer a process dies, by path: the emulated driver lets a program find the place."""


@pytest.mark.parametrize("cleanup", [True, False], ids=["cleanup", "no_cleanup"])
@pytest.mark.parametrize("path", DEATHS_IN_TRANSFER)
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_death_in_a_transfer(
    mpi: str,
    path: str,
    cleanup: bool,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
    tmp_path: Path,
) -> None:
    """The survivor comes to an end, with the launcher's help or without, and what it received is whole or an error."""
    for place in DEATHS_IN_TRANSFER[path]:
        heard = tmp_path / place
        launcher = () if cleanup else NO_CLEANUP[mpi]
        environment = {"SURVIVOR_FILE": str(heard)}
        result = let_die(place, mpi_named(mpi), path, rank_program(mpi, "processes"), launcher, environment)
        # Told to leave it alone, launchers still end the survivor in some runs, before it can say anything.
        assert not heard.exists() or heard.read_text().startswith("survivor: MPI_"), result.explain()


@pytest.mark.parametrize("setting", ["wait", "trust"])
def test_the_report_says_what_trusting_the_default_stream_would_gain(
    setting: str,
    tmp_path: Path,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """How often the stream was asked about, unless the user has it trusted already."""
    report = tmp_path / "report.json"
    command: list[str | Path] = [rank_program("mpich", "messages"), "--gpu=cuda", "--mix=device"]
    environment = {"AWAKEN_DEFAULT_STREAM": setting, "AWAKEN_REPORT": str(report)}
    result = harness.run_ranks(
        mpi_named("mpich"), 2, command, emulate="cuda:2", environment=environment, timeout=harness.HANG_S
    )
    result.check()
    notes = [note for note in json.loads(report.read_text()).get("notes", []) if "queried the default stream" in note]
    assert len(notes) == (1 if setting == "wait" else 0), notes
    assert all("AWAKEN_DEFAULT_STREAM=" in note for note in notes)
