# SPDX-License-Identifier: Apache-2.0
"""The rank programs, each under the MPIs and GPU runtimes that together reach every path.

By default every program runs on two ranks under each ABI and each vendor once, and the collectives on three; --long
adds
all combinations on up to eight ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import harness
import pytest

PROGRAMS = ("point_to_point", "requests", "datatypes", "collectives", "environment")
COLLECTIVE_PROGRAMS = ("collective_types", "collective_sequences")
"""They move much data: fewer cases by default."""
EMULATIONS = ("cuda:2", "hip:2", "hip5:2")

Case = tuple[str, "str | None", str, int, tuple[str, ...]]
"""(MPI, emulated runtime or None for a machine without a GPU, program, ranks, more arguments)"""

DEFAULT: tuple[Case, ...] = (
    # Each program with all mixes under one MPI, and with some under the other; --long has both.
    *(("mpich", "cuda:2", program, 2, ("--mix=drawn-2",) if program == "datatypes" else ()) for program in PROGRAMS),
    *(
        ("openmpi", "hip:2", program, 2, ("--mix=drawn-2",) if program in ("collectives", "point_to_point") else ())
        for program in PROGRAMS
    ),
    *(("mpi5", "cuda:1", program, 2, ("--mix=device",)) for program in PROGRAMS),
    *(("mpich", "hip5:2", program, 2, ("--mix=drawn-0",)) for program in PROGRAMS if program != "collectives"),
    *(("debian-mpich", "cuda:2", program, 2, ("--mix=drawn-1",)) for program in PROGRAMS),
    *(("debian-openmpi", "hip:1", program, 2, ("--mix=drawn-1",)) for program in PROGRAMS),
    ("mpich", "cuda:2", "files", 2, ("--mix=device",)),
    ("openmpi", "hip:2", "files", 2, ("--mix=drawn-1",)),
    ("mpi5", "cuda:1", "files", 2, ("--mix=drawn-2",)),
    *(
        (mpi, emulate, "files", 2, ("--mix=device", "--filter=completed_by"))
        for mpi, emulate in (("mpich", "hip:2"), ("openmpi", "cuda:2"), ("mpi5", "hip:1"))
    ),
    *((mpi, emulate, "wrong_arguments", 2, ()) for mpi in ("mpich", "openmpi") for emulate in ("cuda:2", "hip:2")),
    ("mpi5", "hip:2", "wrong_arguments", 2, ()),
    ("openmpi", "cuda:2", "collectives", 3, ("--mix=drawn-2",)),
    ("openmpi", "cuda:2", "datatypes", 3, ("--mix=drawn-1",)),
    ("openmpi", "cuda:2", "point_to_point", 4, ("--mix=drawn-1",)),
    ("mpich", "cuda:2", "collective_types", 2, ("--mix=device",)),
    ("openmpi", "hip:2", "collective_types", 2, ("--mix=device",)),
    ("mpi5", "cuda:1", "collective_types", 1, ()),
    ("debian-openmpi", "hip:1", "collective_types", 2, ("--mix=device",)),
    ("mpich", "hip:2", "collective_sequences", 3, ("--draw=5", "--mix=drawn-1")),
    ("openmpi", "cuda:2", "collective_sequences", 4, ("--draw=2",)),
    ("mpi5", "cuda:2", "collective_sequences", 2, ("--draw=3", "--single")),
    ("debian-openmpi", "hip5:2", "collective_sequences", 3, ("--draw=4", "--mix=device")),
    *((mpi, None, "collective_sequences", 2, ("--mix=device",)) for mpi in ("mpich", "openmpi")),
    # No GPU anywhere: the layer must not be noticed.
    *((mpi, None, program, 2, ("--mix=device",)) for mpi in ("mpich", "openmpi") for program in PROGRAMS[:4]),
)

FOR_SANITIZERS: tuple[Case, ...] = (
    ("mpich", "cuda:2", "files", 2, ("--mix=device",)),
    ("openmpi", "hip:2", "files", 2, ("--mix=drawn-1",)),
    ("mpich", "cuda:2", "wrong_arguments", 2, ()),
    ("openmpi", "hip:2", "wrong_arguments", 2, ()),
)
"""Others run linked on builds with sanitizers."""

LONG: tuple[Case, ...] = tuple(
    (mpi, emulate, program, ranks, ("--long",) if ranks == 2 else (f"--mix={mix}",))
    for mpi in ("mpich", "mpi5", "openmpi", "debian-mpich", "debian-openmpi")
    for emulate in EMULATIONS
    for program in (*PROGRAMS, *COLLECTIVE_PROGRAMS)
    for ranks, mix in ((2, ""), (5, "drawn-0"), (8, "device"))
    # Debian's MPICH 4.0.2 crashes in MPI_Ireduce in place, which both programs are full of.
    if mpi != "debian-mpich" or program in PROGRAMS
)


def name(case: Case) -> str:
    mpi, emulate, program, ranks, arguments = case
    return "-".join(
        [program, mpi, (emulate or "no_gpu").replace(":", "x"), str(ranks), *(a.strip("-") for a in arguments)]
    )


NATIVE_BUGS = {
    # MPICH 4.0.2 crashes in MPI_Reduce, writes past blocks in nonblocking and persistent MPI_Alltoallw, fails to
    # spawn over UCX, and gives a truncated message one byte in the status but none in the buffer. A persistent
    # MPI_Allgather sends again what the rank's own part was when it was initialised.
    ("debian-mpich", "collectives"): (
        "reduce_",
        "again_and_again",
        "alltoallw_",
        "gaps_persistent",
        "allgather_persistent",
    ),
    ("debian-mpich", "point_to_point"): ("truncation_small", "truncation_to_8_bytes", "truncation_nonblocking"),
    ("debian-mpich", "environment"): ("spawned", "errors_to_a_handler"),
    ("debian-mpich", "requests"): ("errors_in_statuses",),
    ("debian-mpich", "datatypes"): ("truncated",),
    # Open MPI 4.1.4 sends the first round's data again when a persistent buffered send is restarted.
    ("debian-openmpi", "requests"): ("bsend_init",),
    # It also compares unsigned long as if it were signed.
    ("debian-openmpi", "collective_types"): ("small_other_names_of_integers", "large_other_names_of_integers"),
}
"""Cases that older MPIs fail with host buffers and without Awaken."""


def arguments_for(case: Case) -> list[str]:
    mpi, emulate, program, _, arguments = case
    exceptions = [f"--except={text}" for text in NATIVE_BUGS.get((mpi, program), ())]
    # Asked for by name, so that a driver that is not found fails the test instead of making it one of host memory.
    gpu = "none" if emulate is None else "cuda" if emulate.startswith("cuda") else "hip"
    return [f"--gpu={gpu}", *arguments, *exceptions]


def check(case: Case, program: Path, mpi: harness.Mpi, timeout: float) -> None:
    result = harness.run_ranks(
        mpi, case[3], [program, *arguments_for(case)], emulate=case[1], timeout=timeout, environment={}
    )
    result.check()
    assert "\nok " in result.output, f"no case ran\n{result.explain()}"


@pytest.mark.parametrize("case", harness.with_sanitizers(DEFAULT, FOR_SANITIZERS), ids=name)
def test_ranks(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[0], case[2]), mpi_named(case[0]), harness.HANG_S)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=name)
def test_ranks_long(
    case: Case,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    check(case, rank_program(case[0], case[2]), mpi_named(case[0]), harness.LONG_HANG_S)


ONLY_WITH_SANITIZERS = [pytest.mark.long] if not harness.sanitizer() else []
"""Builds with sanitizers have no other form. Elsewhere each case runs with the library preloaded, too, and the programs
of many cases show nothing more."""


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "program",
    (*PROGRAMS, *(pytest.param(program, marks=ONLY_WITH_SANITIZERS) for program in COLLECTIVE_PROGRAMS)),
)
@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
def test_ranks_linked(
    mpi: str, program: str, rank_program: Callable[[str, str], Path], mpi_named: Callable[[str], harness.Mpi]
) -> None:
    """Linked with the library instead of preloading it."""
    path = rank_program(mpi, f"{program}_linked")
    emulate = {"mpich": "cuda:2", "openmpi": "hip:2"}[mpi]
    result = harness.run_ranks(
        mpi_named(mpi),
        2,
        [
            path,
            f"--gpu={emulate.split(':')[0]}",
            # Cases that move much data run with the first two mixes only.
            "--mix=device" if program in COLLECTIVE_PROGRAMS else "--mix=drawn-1",
        ],
        with_awaken=False,
        emulate=emulate,
        environment={"LD_LIBRARY_PATH": str(harness.build_dir() / "lib" / "awaken" / "emulator")},
        timeout=harness.HANG_S,
    )
    result.check()
