# SPDX-License-Identifier: Apache-2.0
"""Random MPI programs on mixed buffers against the same programs on host memory under the plain MPI.

See tests/ranks/random_program.cpp. A failing program is named with the command that repeats it; put its seed into
tests/ranks/seeds.txt when it is fixed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import harness
import pytest

SEEDS_FILE = harness.TESTS / "ranks" / "seeds.txt"

Batch = tuple[str, str, int, int, int]
"""(MPI, emulated runtime, ranks, first program, programs); 500 programs in all by default."""
DEFAULT: tuple[Batch, ...] = (
    ("mpich", "cuda:2", 2, 1, 200),
    ("openmpi", "hip:2", 2, 201, 100),
    ("openmpi", "cuda:2", 3, 301, 100),
    ("mpi5", "hip5:2", 2, 401, 50),
    ("openmpi", "cuda:3", 4, 451, 50),
)
LONG: tuple[Batch, ...] = tuple(
    (mpi, emulate, ranks, 1000 + 10000 * ranks, 1000)
    for mpi, emulate in (("mpich", "cuda:2"), ("openmpi", "hip:2"), ("mpi5", "cuda:1"), ("debian-openmpi", "cuda:2"))
    for ranks in (2, 4, 5)
)


SETTINGS: dict[str, dict[str, str]] = {
    "ring": {"AWAKEN_PATH": "ring", "test tune small_bytes": "64", "test tune ring_chunk_bytes": "4K"},
    "staged": {"AWAKEN_PATH": "staged"},
    "no_ipc": {"AWAKEN_TEST_FAULTS": "ipc-open"},
    "copied": {"test tune small_watch_us": "0", "test tune small_wait_us": "0", "test tune large_watch_us": "0"},
    "nodes": {
        "AWAKEN_TEST_NODES": "2",
        "tune network_bytes": "64",
        "tune network_fragment_bytes": "4K",
    },
    "kernel": {"AWAKEN_TEST_COPY": "kernel"},
    "in_bursts": {"test tune send_burst_us": "1000"},
}
"""Ways that messages do not take by themselves here, each forced for some programs."""


def name(batch: Batch) -> str:
    mpi, emulate, ranks, first, count = batch
    return f"{mpi}-{emulate.replace(':', 'x')}-{ranks}-{first}..{first + count - 1}"


def kept_seeds(file: Path = SEEDS_FILE) -> list[int]:
    lines = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
    return [int(line) for line in lines if line]


def hashes(result: harness.Result) -> dict[int, str]:
    """Seed -> the ranks' hashes, of the programs that came to their end."""
    found = {}
    for line in result.output.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].isdigit() and all(len(word) == 16 for word in words[1:]):
            found[int(words[0])] = " ".join(words[1:])
    return found


def compare(
    mpi: harness.Mpi,
    emulate: str,
    ranks: int,
    program: Path,
    which: Sequence[str],
    timeout: float,
    settings: Mapping[str, str] | None = None,
) -> None:
    reference_result = harness.run_ranks(mpi, ranks, [program, *which, "--host"], with_awaken=False, timeout=timeout)
    reference_result.check()
    reference = hashes(reference_result)
    gpu = "cuda" if emulate.startswith("cuda") else "hip"
    command: list[str | Path] = [program, *which, f"--gpu={gpu}"]
    result = harness.run_ranks(mpi, ranks, command, emulate=emulate, timeout=timeout, environment=settings)
    actual = hashes(result)
    wrong = [seed for seed in reference if actual.get(seed) != reference[seed]]
    if wrong:
        seed = wrong[0]
        happened = "gives another result" if seed in actual else "does not end"
        again = " ".join(harness.rank_command(mpi, ranks, [program, f"--seeds={seed}", f"--gpu={gpu}", "--verbose"]))
        pytest.fail(
            f"program {seed} {happened} ({len(wrong)} of {len(reference)} differ: {wrong[:20]}). To repeat it:\n"
            f"AWAKEN_EMULATE={emulate} {' '.join(f'{n}={v}' for n, v in (settings or {}).items())} {again}\n"
            f"and add --events=N to cut it short; the reference is the same with --host, without awaken.\n"
            f"{result.explain()}"
        )
    result.check()
    assert reference, reference_result.explain()
    assert "FAIL" not in result.output, result.explain()


@pytest.mark.parametrize("batch", DEFAULT, ids=name)
def test_random_programs(
    batch: Batch,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    mpi, emulate, ranks, first, count = batch
    # TEST_FIRST_PROGRAM moves the whole range, for runs that are to find something new.
    first += int(os.environ.get("TEST_FIRST_PROGRAM", "0"))
    program = rank_program(mpi, "random_program")
    compare(mpi_named(mpi), emulate, ranks, program, [f"--first={first}", f"--count={count}"], harness.HANG_S)


@pytest.mark.sanitizer
@pytest.mark.parametrize("emulate", ["cuda:2", "hip:2"])
@pytest.mark.parametrize(("mpi", "ranks"), [("mpich", 2), ("openmpi", 3)])
def test_kept_seeds(
    mpi: str,
    ranks: int,
    emulate: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    which = "--seeds=" + ",".join(map(str, kept_seeds()))
    compare(mpi_named(mpi), emulate, ranks, rank_program(mpi, "random_program"), [which], harness.HANG_S)


@pytest.mark.long
@pytest.mark.parametrize("batch", LONG, ids=name)
def test_random_programs_long(
    batch: Batch,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    mpi, emulate, ranks, first, count = batch
    program = rank_program(mpi, "random_program")
    compare(mpi_named(mpi), emulate, ranks, program, [f"--first={first}", f"--count={count}"], 3600)


@pytest.mark.sanitizer
@pytest.mark.parametrize("way", SETTINGS)
@pytest.mark.parametrize(("mpi", "emulate"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
def test_random_programs_by_other_ways(
    mpi: str,
    emulate: str,
    way: str,
    awaken_program: Path,
    rank_program: Callable[[str, str], Path],
    mpi_named: Callable[[str], harness.Mpi],
) -> None:
    """The same programs whichever way messages are made to take."""
    first = 501 + 20 * list(SETTINGS).index(way)
    which = [f"--first={first}", "--count=20"]
    compare(mpi_named(mpi), emulate, 2, rank_program(mpi, "random_program"), which, harness.HANG_S, SETTINGS[way])
