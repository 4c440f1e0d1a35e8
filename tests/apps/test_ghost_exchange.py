# SPDX-License-Identifier: Apache-2.0
"""The ghost exchange of apps/: the same bits from every memory, exchange and decomposition, and how it ends otherwise.

The truth is a loop over the whole field in Python, whose doubles round as C's do.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import re
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

import harness
import pytest
from app_runs import ABIS, AWAKEN_OF_BUILD, BUILD, PREFIX_OF_ABI, ROOT, VENV, Result, mpiexec
from test_programs import compile_library

PROGRAM = "ghost_exchange"
RESULT_LINE = re.compile(
    r"GhostExchange_ArrayAssign_HIP Timing is stencil (\d+\.\d{6}) boundary condition (\d+\.\d{6}) "
    r"ghost cell (\d+\.\d{6}) total (\d+\.\d{6})"
)
MEMORIES = ("host", "staged", "managed", "pinned", "system", "device")
EXCHANGES = ("packed", "datatype", "neighbour", "persistent", "overlap", "staged", "ccl", "enqueue", "graph")
ON_GPUS = ("ccl", "enqueue", "graph")  # they need memory that the GPU can read
CHECKS = ("decomposition", "mass", "halo", "eigenmode")


WAYS = [
    (memory, exchange)
    for memory in MEMORIES
    for exchange in EXCHANGES
    if exchange not in ON_GPUS or memory not in ("host", "staged")
]


@functools.cache
def reference(imax: int, jmax: int, iterations: int) -> tuple[float, ...]:
    """The field, row after row, after some steps."""
    sigma = 0.01 * imax * jmax

    def gaussian(cells: int) -> list[float]:
        return [math.exp(-(i - cells / 2) * (i - cells / 2) / (2 * sigma * sigma)) for i in range(cells)]

    u, v = gaussian(imax), gaussian(jmax)
    x = [[u[i] * v[j] for i in range(imax)] for j in range(jmax)]
    for _ in range(iterations):
        rows = [x[0], *x, x[-1]]
        x = [
            [
                (here[i] + here[max(i - 1, 0)] + here[min(i + 1, imax - 1)] + below[i] + above[i]) / 5.0
                for i in range(imax)
            ]
            for below, here, above in zip(rows, rows[1:], rows[2:])
        ]
    return tuple(itertools.chain.from_iterable(x))


def checksum(field: tuple[float, ...]) -> int:
    mask = 2**64 - 1
    result = 0
    for number, bits in enumerate(struct.unpack(f"{len(field)}Q", struct.pack(f"{len(field)}d", *field))):
        word = (bits + (number + 1) * 0x9E3779B97F4A7C15) & mask
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        result ^= word ^ (word >> 31)
    return result


def run(
    abi: str,
    gpus: str | None,
    *words: str,
    ranks: int = 2,
    environment: Mapping[str, str] | None = None,
    **variables: str,
) -> Result:
    """`gpus` is what awaken emulates; None: a plain MPI without any."""
    before: list[str | Path] = []
    whole = {**(environment or {}), **variables}
    if gpus is not None:
        before = [AWAKEN_OF_BUILD, "exec", "--"]
        whole = {"AWAKEN_EMULATE": gpus, "AWAKEN_TEST_FAULTS": "pageable-memory", **whole}
    return mpiexec(abi, PROGRAM, *words, ranks=ranks, before=before, environment=whole)


def check_result(result: Result, imax: int, jmax: int, iterations: int) -> None:
    assert result.status == 0, result.out + result.err
    assert f"# checksum: 0x{checksum(reference(imax, jmax, iterations)):016x}\n" in result.out
    for name in CHECKS:
        assert f"# check {name}: right, " in result.out, result.out


# ---------------------------------------------------------------------------------------------------- the same bits

SHAPES = [
    (4, "-i 23 -j 17 -h 2 -c"),
    (3, "-i 11 -j 29 -h 3"),
    (2, "-i 13 -j 10 -h 1 -c -x 1 -y 2"),
    (4, "-i 31 -j 7 -h 3 -c -x 4 -y 1"),
    (1, "-i 9 -j 14 -h 3 -c"),
    (4, "-i 19 -j 15 -h 1"),
    (2, "-i 7 -j 9 -h 3"),
]
"""ranks, and what goes with them: the shapes of blocks differ, none divides evenly."""
PLACES = [("mpich", "cuda"), ("openmpi", "hip"), ("mpich", "hip"), ("openmpi", "cuda"), ("mpi5", "cuda")]


def check_way(memory: str, exchange: str, abi: str, kind: str, ranks: int, words: str, iterations: int = 6) -> None:
    gpus = None if memory == "host" else f"{kind}:{ranks}"
    arguments = [*words.split(), "-I", str(iterations), "--check", "--memory", memory, "--exchange", exchange]
    result = run(abi, gpus, *arguments, ranks=ranks)
    sizes = dict(re.findall(r"-([ij]) (\d+)", words))
    check_result(result, int(sizes["i"]), int(sizes["j"]), iterations)


FOR_SANITIZERS = [n for n, way in enumerate(WAYS) if way[0] == "device" and PLACES[n % len(PLACES)][0] != "mpi5"]
"""Those on device memory, under the MPIs that builds with sanitizers are for."""


@pytest.mark.parametrize(
    ("number", "memory", "exchange"),
    [
        pytest.param(number, *way, marks=[pytest.mark.sanitizer] if number in FOR_SANITIZERS else [])
        for number, way in enumerate(WAYS)
    ],
)
def test_each_way_gives_the_bits_of_one_rank(number: int, memory: str, exchange: str) -> None:
    """Each way once, the shapes and MPIs in turn; all of them with each other in the long tests."""
    ranks, words = SHAPES[number % len(SHAPES)]
    check_way(memory, exchange, *PLACES[number % len(PLACES)], ranks, words)


@pytest.mark.parametrize(("abi", "gpus"), [("mpich", "cuda:2"), ("openmpi", "hip:2")])
@pytest.mark.parametrize("exchange", ["packed", "persistent"])
def test_streams_may_order_the_messages(exchange: str, abi: str, gpus: str, tmp_path: Path) -> None:
    """Its kernels' stream synchronises with the default one, so its messages may be parts of that."""
    report = tmp_path / "report.json"
    words = f"-i 41 -j 37 -I 8 --check --memory device --exchange {exchange}"
    result = run(
        abi,
        gpus,
        *words.split(),
        AWAKEN_DEFAULT_STREAM="order",
        AWAKEN_REPORT=str(report),
        AWAKEN_TEST_DELAYS="2:300",
    )
    check_result(result, 41, 37, 8)
    (note,) = (note for note in json.loads(report.read_text())["notes"] if "in the order of the default" in note)
    assert int(note.split()[0]) > 20, note


@pytest.mark.sanitizer
@pytest.mark.parametrize(("abi", "gpus"), [("mpich", "cuda:4"), ("openmpi", "hip:4"), ("mpich", "hip:4")])
@pytest.mark.parametrize("exchange", ["enqueue", "graph"])
def test_the_stream_orders_what_is_queued(exchange: str, abi: str, gpus: str, tmp_path: Path) -> None:
    """However late the GPU is. After a first update a graph of each of the two arrays is captured, however many steps
    there are."""
    sent = []
    for iterations in (8, 13):
        report = tmp_path / "report.json"
        words = ("-i", "41", "-j", "37", "-c", "-I", str(iterations), "--exchange", exchange, "--checksum")
        result = run(abi, gpus, *words, ranks=4, AWAKEN_REPORT=str(report), AWAKEN_TEST_DELAYS="3:200")
        assert f"# checksum: 0x{checksum(reference(41, 37, iterations)):016x}\n" in result.out, result.out + result.err
        calls = json.loads(report.read_text())["calls"]
        sent.append(sum(row["calls"] for row in calls if row["function"] == "MPIX_Isend_enqueue"))
    # Each rank of the grid of 2 x 2 sends two messages in an update; in those of the smallest blocks, too.
    small = 23 if exchange == "enqueue" else 2
    assert sent == [4 * 2 * (updates + small) for updates in ((9, 14) if exchange == "enqueue" else (3, 3))]


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("memory", "exchange"), WAYS)
def test_each_way_in_each_shape(memory: str, exchange: str, place: tuple[str, str]) -> None:
    for ranks, words in SHAPES:
        check_way(memory, exchange, *place, ranks, words)


@pytest.mark.long
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("ranks", [5, 6, 7, 8])
def test_more_ranks(ranks: int, exchange: str) -> None:
    check_way("device", exchange, "mpich", "cuda", ranks, "-i 41 -j 37 -h 2 -c")
    check_way("device", exchange, "openmpi", "hip", ranks, "-i 41 -j 37 -h 3")


@pytest.mark.parametrize("memory", ["host", "staged"])
def test_large_messages_travel_while_the_cpu_computes(memory: str) -> None:
    """Messages beyond what any MPI sends at once, so that both rounds are under way during the step."""
    words = ("-i", "9000", "-j", "170", "-h", "12", "-I", "3", "-x", "2", "-y", "2", "--check", "--ranges")
    result = run(
        "mpich", "hip:4" if memory == "staged" else None, *words, "--memory", memory, "--exchange", "overlap", ranks=4
    )
    assert result.status == 0, result.out + result.err
    for name in CHECKS:
        assert f"# check {name}: right, " in result.out, result.out
    # 61 rows in 16 pieces, and the frame.
    assert re.search(rf"^# stencil +0 +{3 * 17} ", result.out, re.MULTILINE), result.out


@pytest.mark.parametrize(
    ("memory", "exchange"),
    [("device", "packed"), ("device", "staged"), ("device", "ccl"), ("host", "staged"), ("staged", "overlap")],
)
def test_buffers_allocated_per_call(memory: str, exchange: str) -> None:
    way = ("--memory", memory, "--exchange", exchange)
    words = ("-i", "12", "-j", "11", "-I", "5", "--check", "--buffers", "per-call", *way)
    result = run("mpich", None if memory == "host" else "cuda:2", *words)
    check_result(result, 12, 11, 5)
    assert "# buffers were allocated 6 times on rank 0" in result.out
    assert "buffers per call" in result.out


@pytest.mark.parametrize("memory", ["managed", "pinned", "system"])
def test_the_gpu_may_touch_first(memory: str) -> None:
    words = ("-i", "12", "-j", "11", "-I", "3", "--check", "--memory", memory, "--first-touch", "gpu")
    result = run("mpich", "hip:2", *words)
    check_result(result, 12, 11, 3)
    assert "first touch, by the gpu" in result.out


def test_xnack_lets_kernels_use_memory_from_malloc() -> None:
    words = ("-i", "12", "-j", "11", "-I", "3", "--check", "--memory", "system")
    check_result(run("mpich", "hip:2", *words, AWAKEN_TEST_FAULTS="", HSA_XNACK="1"), 12, 11, 3)


def test_a_field_of_one_row_and_no_step() -> None:
    check_result(run("mpich", "cuda:1", "-i", "5", "-j", "1", "-h", "1", "-I", "0", "--check", ranks=1), 5, 1, 0)


def test_a_field_of_one_cell() -> None:
    check_result(
        run("mpich", None, "-i", "1", "-j", "1", "-h", "1", "-I", "2", "--check", "--memory", "host", ranks=1), 1, 1, 2
    )


@pytest.mark.parametrize("abi", ABIS)
def test_the_written_file_is_the_field(abi: str, tmp_path: Path) -> None:
    file = tmp_path / "field"
    file.write_bytes(b"x" * 100_000)
    words = ("-i", "23", "-j", "17", "-I", "4", "--memory", "host", "--write", str(file))
    result = run(abi, None, *words, ranks=4)
    assert result.status == 0, result.err
    expected = reference(23, 17, 4)
    assert file.read_bytes() == struct.pack(f"{len(expected)}d", *expected)


# ----------------------------------------------------------------------------------------------------------- output


@pytest.mark.parametrize("abi", ABIS)
def test_a_file_that_cannot_be_written_is_told_before_the_steps(abi: str, tmp_path: Path) -> None:
    words = ("-i", "23", "-j", "17", "-I", "1000000000", "--memory", "host")
    result = run(abi, None, *words, "--write", str(tmp_path / "missing" / "field"), ranks=2)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("ghost_exchange: --write ")


def test_the_result_has_the_form_of_the_original() -> None:
    words = ("-x", "2", "-y", "2", "-i", "24", "-j", "24", "-h", "2", "-t", "-c", "-I", "10")
    result = run("mpich", "cuda:4", *words, ranks=4)
    assert (result.status, result.err) == (0, "")
    (line,) = [line for line in result.out.splitlines() if not line.startswith("#")]
    found = RESULT_LINE.fullmatch(line)
    assert found, line
    stencil, boundary, ghost, total = map(float, found.groups())
    assert stencil + boundary + ghost <= total + 4e-6

    rows = {name.strip(): (float(most), float(mean)) for name, most, mean in TIME_ROW.findall(result.out)}
    assert set(rows) == TIMES
    for most, mean in rows.values():
        assert 0 <= mean <= most + 1e-6
    assert rows["stencil"][0] >= stencil
    assert rows["total"][0] >= total
    assert "# 24 x 24 cells on 2 x 2 ranks, halo 2 with corners, 10 iterations\n" in result.out
    # 14 rows of 2 cells to the side, 2 rows of 16 cells up or down.
    assert re.search(
        r"# ghost cell: \d+\.\d\d us an update; \d+\.\d\d us for the smallest blocks \+ 480 bytes at 450.0 GB/s ",
        result.out,
    )


TIME_ROW = re.compile(r"# (.{26}) +(\d+\.\d{6}) +(\d+\.\d{6})")
TIMES = {
    "stencil",
    "boundary condition",
    "ghost cell",
    "total",
    "all steps",
    "allocation of the field",
    "allocation of buffers",
    "initial values",
    "first step's stencil",
    "other steps' stencil",
}


@pytest.mark.parametrize(("memory", "exchange"), [("host", "packed"), ("host", "overlap"), ("staged", "packed")])
def test_the_boundary_has_its_own_time(memory: str, exchange: str) -> None:
    """Of a field whose halo has eight times as many cells as it has itself, which the CPU writes in each step."""
    words = ("-i", "240", "-j", "240", "-h", "240", "-I", "10", "--memory", memory, "--exchange", exchange)
    result = run("mpich", None if memory == "host" else "cuda:1", *words, ranks=1)
    assert result.status == 0, result.err
    found = RESULT_LINE.search(result.out)
    assert found
    # Five million cells are written in all: that cannot be done in less time.
    assert float(found[2]) > 5e-4


def test_the_bandwidth_is_that_of_the_cells_that_kernels_computed() -> None:
    """With copies to the GPU and overlap those are the ones inside, here 100 of 360000: the CPU makes the others."""
    words = ("-i", "600", "-j", "600", "-h", "295", "-I", "3", "--memory", "staged", "--exchange", "overlap")
    result = run("mpich", "cuda:1", *words, ranks=1)
    assert result.status == 0, result.err
    found = re.search(r"# stencil: (\S+) GB/s on the slowest rank", result.out)
    assert found
    # A kernel that is done with its 1600 bytes in a microsecond would have 1.6.
    assert float(found[1]) < 1.6


@pytest.mark.parametrize("memory", ["host", "staged"])
def test_without_a_step_there_is_no_bandwidth(memory: str) -> None:
    result = run("mpich", None if memory == "host" else "hip:2", "-i", "9", "-j", "9", "-I", "0", "--memory", memory)
    assert result.status == 0, result.err
    assert "# stencil: no step\n" in result.out
    assert "-0.0" not in result.out


@pytest.mark.parametrize(
    ("gpus", "links", "told"),
    [
        ("cuda:2", "nvswitch:18", "450.0 GB/s (18 NVLinks, reported by NVML)"),
        ("cuda:3", "nvlink:4", "100.0 GB/s (4 NVLinks, reported by NVML)"),
        ("cuda:2", "pcie", "a link that is unknown (--link)"),
        ("hip:2", "xgmi:2", "100.0 GB/s (2 XGMI links, reported by ROCm SMI)"),
        ("hip:2", "pcie", "a link that is unknown (--link)"),
    ],
)
def test_links_are_counted_where_a_library_tells_of_them(gpus: str, links: str, told: str) -> None:
    small = ("-i", "9", "-j", "9", "-I", "1")
    result = run("mpich", gpus, *small, ranks=int(gpus[-1]), AWAKEN_EMULATE_LINKS=links)
    assert result.status == 0, result.err
    (line,) = re.findall(r"# ghost cell: .*", result.out)
    assert f" {told}" in line


@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_the_limits_are_told(kind: str) -> None:
    result = run("mpich", f"{kind}:1", "-i", "40", "-j", "40", "-I", "2", "--link", "64", ranks=1)
    assert result.status == 0, result.err
    # The emulated GPUs' clock of 1 GHz and bus of 1024 bits.
    match = re.search(
        r"# stencil: (\S+) GB/s on the slowest rank, (\S+) % of the memory limit of 256.0 GB/s "
        r"\(memory clock x bus width\)\n",
        result.out,
    )
    assert match, result.out
    assert float(match[2]) == pytest.approx(float(match[1]) / 2.56, abs=0.1)
    match = re.search(
        r"ghost cell: .* us an update; (\S+) us .* 0 bytes at 64.0 GB/s \(--link\) = (\S+) us", result.out
    )
    assert match, result.out
    assert float(match[1]) == pytest.approx(float(match[2]), abs=0.01)


def test_defaults_are_those_of_the_original() -> None:
    result = run("mpich", None, "--help", ranks=1)
    assert result.status == 0
    defaults = dict(re.findall(r"  -(\w), --\w+ N .*\(default (\d+)\)", result.out))
    assert defaults == {"i": "2000", "j": "2000", "h": "2", "I": "1000"}


def test_the_field_is_printed_with_its_halo() -> None:
    words = ("-i", "4", "-j", "3", "-h", "1", "-c", "-I", "1", "--memory", "host", "-p")
    result = run("mpich", None, *words)
    assert result.status == 0, result.err
    rows = re.findall(r"^#((?: +-?\d\.\d{5}){4})$", result.out, re.MULTILINE)
    assert len(rows) == 10, result.out
    field = reference(4, 3, 1)
    # Rank 1 has columns 2 and 3; its first line is the boundary above the top row.
    expected = [field[2 * 4 + i] for i in (1, 2, 3, 3)]
    assert [float(cell) for cell in rows[5].split()] == pytest.approx(expected, abs=1e-5)
    result = run("mpich", None, "-i", "97", "-j", "3", "-h", "2", "-I", "1", "--memory", "host", "-p", ranks=1)
    assert "more than 100 cells" in result.out


def test_a_field_of_many_rows_is_not_printed() -> None:
    """Nobody reads it, and the text of tens of millions of rows is longer than a message can be."""
    result = run("mpich", None, "-i", "9", "-j", "9997", "-I", "0", "-p", "--memory", "host")
    assert result.status == 0, result.err
    assert "# a column has more than 10000 cells with its halo: not printed\n" in result.out
    assert "with its halo\n" not in result.out


def test_with_a_wide_halo_nothing_is_timed_for_smaller_blocks() -> None:
    """They would not be smaller, and take as much memory as the field."""
    words = ("-i", "60", "-j", "60", "-I", "1", "--memory", "host", "--ranges")
    wide, narrow = (run("mpich", None, *words, "-h", halo) for halo in ("20", "2"))
    assert (wide.status, narrow.status) == (0, 0), wide.err + narrow.err
    assert re.search(r"# ghost cell: [\d.]+ us an update of \d+ bytes; not timed for smaller blocks", wide.out)
    assert re.search(r"# ghost cell: [\d.]+ us an update; [\d.]+ us for the smallest blocks", narrow.out)
    assert ("smallest blocks  " in wide.out, "smallest blocks  " in narrow.out) == (False, True)


def test_ranks_that_share_a_gpu_are_warned_of() -> None:
    small = ("-i", "8", "-j", "8", "-I", "1")
    result = run("mpich", "cuda:2", *small, ranks=3)
    assert result.status == 0, result.err
    places = re.findall(
        r"# rank (\d): host \S+, core \d+ of \S+, NUMA node \d+, GPU (\d) \((\S+), (.+)\)\n", result.out
    )
    assert [(rank, gpu) for rank, gpu, _, _ in places] == [("0", "0"), ("1", "1"), ("2", "0")]
    assert len({bus for _, _, bus, _ in places}) == 2
    (warning,) = re.findall("# warning: .*", result.out)
    assert warning.startswith("# warning: ranks 0, 2 share the GPU ")
    assert places[0][2] in warning
    assert "warning" not in run("mpich", "cuda:2", *small, ranks=2).out


def test_all_devices_of_a_node_are_used_in_any_order_of_ranks() -> None:
    """MPICH can take even ranks for one node and odd ones for another, as if they had been dealt out to two."""
    # Without Awaken, so that only the MPI says what a node is; messages are staged by the program.
    machine = {"AWAKEN_EMULATE": "cuda:2", "LD_LIBRARY_PATH": str(BUILD / "lib" / "awaken" / "emulator")}
    words = ("-i", "9", "-j", "9", "-I", "1", "--memory", "device", "--exchange", "staged")
    result = mpiexec("mpich", PROGRAM, *words, ranks=4, MPIR_CVAR_ODD_EVEN_CLIQUES="1", environment=machine)
    assert result.status == 0, result.err
    assert re.findall(r"# rank \d: .* GPU (\d) ", result.out) == ["0", "0", "1", "1"]


# ------------------------------------------------------------------------------------------------------- wrong data


@pytest.fixture(scope="session")
def faulty_halo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(VENV / "bin" / "mpicc", "faulty_halo.c", tmp_path_factory.mktemp("halo") / "faulty_halo.so")


ITERATIONS = 7
UPDATES = ITERATIONS + 1
SMALL_UPDATES = 23  # of the smallest blocks, to see what an update costs in any case


@pytest.mark.parametrize(
    ("call", "noticed"),
    [
        (0, {"decomposition"}),
        (UPDATES - 2, {"decomposition"}),
        (UPDATES + SMALL_UPDATES, {"halo"}),
        (UPDATES + SMALL_UPDATES + 1, {"eigenmode"}),
        (10_000, set()),
    ],
)
@pytest.mark.parametrize(("exchange", "rank"), [("packed", 0), ("datatype", 1), ("overlap", 1)])
def test_a_spoiled_message_is_noticed(
    exchange: str, rank: int, call: int, noticed: set[str], faulty_halo: Path
) -> None:
    words = ("-x", "2", "-y", "1", "-i", "12", "-j", "6", "-h", "1", "-I", str(ITERATIONS), "--check")
    fault = {"FAULT_RANK": str(rank), "FAULT_CALL": str(call), "LD_PRELOAD": str(faulty_halo)}
    result = run("mpich", None, *words, "--memory", "host", "--exchange", exchange, environment=fault)
    wrong = set(re.findall("# check (\\w+): WRONG", result.out))
    # A wrong cell changes the sum as well.
    assert wrong - {"mass"} == noticed, result.out
    assert result.status == (1 if noticed else 0)
    assert set(re.findall("wrong data: (\\w+): rank \\d: ", result.err)) == wrong


def test_a_spoiled_corner_is_noticed_by_the_halo_alone(faulty_halo: Path) -> None:
    # The last cell of a message upwards, rows with their ends, is a corner, which no step ever reads. On a grid of
    # 2 x 2, each rank sends one message sidewards and one up or down in each update.
    call = 2 * (UPDATES + SMALL_UPDATES) + 1
    words = ("-x", "2", "-y", "2", "-i", "12", "-j", "8", "-h", "1", "-c", "-I", str(ITERATIONS), "--check")
    fault = {"FAULT_RANK": "0", "FAULT_CALL": str(call), "LD_PRELOAD": str(faulty_halo)}
    result = run("mpich", None, *words, "--memory", "host", ranks=4, environment=fault)
    assert result.status == 1
    assert re.findall("# check (\\w+): WRONG", result.out) == ["halo"]
    assert "wrong data: halo: rank 2: the block's cell (6, -1): " in result.err


# ----------------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("-x 3 -y 2", "-x 3 -y 2 does not make a grid of 4 ranks"),
        ("-y 3", "-y 3 does not make a grid of 4 ranks"),
        ("-i 4 -j 4 -h 3", "local size of grid is less than the halo size: "),
        ("-i 3 -j 2000 -x 4", "local size of grid is less than the halo size: "),
        ("-i 0", "--imax 0: out of range"),
        ("-j 0", "--jmax 0: out of range"),
        ("-j -5", "--jmax -5: out of range"),
        ("-h 0", "--nhalo 0: out of range"),
        ("-x 0", "--nprocx 0: out of range"),
        ("-I 10x", "--iterations 10x: not a number"),
        ("-i 1100000000", "--imax 1100000000: out of range"),
        ("-i 1000000000 -j 1000000000 -h 100", "a message would have more than 2^31 - 1 cells: "),
        ("--memory fast", "--memory fast is not known; it is one of host, staged, managed, pinned, system, device"),
        ("--exchange", "--exchange needs a value"),
        ("-q", "unknown option -q"),
        ("--speed 3", "unknown option --speed"),
        ("-c 3", "unknown option 3"),
        ("--link 0", "--link 0: not a positive number"),
        ("--memory host --exchange ccl", "--exchange ccl: NCCL and RCCL send what the GPU can read"),
        ("--memory staged --exchange ccl", "which --memory staged is not; use --memory device"),
        ("--memory host --exchange enqueue", "no kernel reaches --memory host; use --memory device, managed, "),
        ("--memory staged --exchange graph", "--exchange graph: the stream of kernels orders the messages"),
        ("--exchange graph --buffers per-call", "what --exchange graph has queued uses its buffers later"),
        ("--exchange datatype --buffers per-call", "--exchange datatype has no buffers"),
        ("--exchange persistent --buffers per-call", "belong to buffers that stay"),
        ("--memory host --first-touch gpu", "no kernel reaches --memory host"),
        ("--first-touch cpu", "the CPU does not reach --memory device"),
    ],
)
def test_what_does_not_go_is_refused(words: str, complaint: str) -> None:
    result = run("mpich", None, *words.split(), ranks=4)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("ghost_exchange: ")
    assert result.err.count(complaint) == 1, result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("abi", ABIS)
def test_it_ends_alike_under_each_mpi(abi: str) -> None:
    result = run(abi, None, "-x", "3", ranks=2)
    assert (result.status, result.out) == (2, "")
    assert "-x 3 does not make a grid of 2 ranks" in result.err


@pytest.mark.parametrize(
    ("gpus", "words", "variables", "complaint"),
    [
        ("cuda:2", "--memory system", {"AWAKEN_TEST_FAULTS": ""}, "(pageableMemoryAccess is 0)"),
        ("hip:2", "--memory system", {"AWAKEN_TEST_FAULTS": ""}, "HSA_XNACK=1"),
        ("cuda:1", "--exchange ccl", {}, "each rank needs a GPU of its own"),
        ("cuda:2", "-i 1000 -j 1000", {"AWAKEN_EMULATE_MEMORY": "4M"}, "no memory for two arrays of "),
        ("hip:2", "-i 1000 -j 1000 --memory staged", {"AWAKEN_EMULATE_MEMORY": "4M"}, "use a smaller field or more "),
    ],
)
def test_what_the_gpu_cannot_is_refused(gpus: str, words: str, variables: dict[str, str], complaint: str) -> None:
    result = run("mpich", gpus, *words.split(), environment=variables)
    assert result.status == 2
    assert result.err.count(complaint) == 1, result.err
    assert not RESULT_LINE.search(result.out)


@pytest.mark.parametrize(
    ("abi", "gpus", "exchange", "reason"),
    [
        ("mpich", "cuda:2", "enqueue", "the MPI does not know this GPU's streams"),  # it has the functions
        ("mpich", "hip:2", "graph", "the MPI does not know this GPU's streams"),
        ("openmpi", "cuda:2", "graph", "the MPI has no MPIX_Info_set_hex"),
        ("openmpi", "hip:2", "enqueue", "the MPI has no MPIX_Info_set_hex"),
        ("mpi5", "cuda:2", "enqueue", "the MPI has no MPIX_Info_set_hex"),
    ],
)
def test_nothing_is_queued_without_awaken(abi: str, gpus: str, exchange: str, reason: str) -> None:
    machine = {"AWAKEN_EMULATE": gpus, "LD_LIBRARY_PATH": str(BUILD / "lib" / "awaken" / "emulator")}
    result = mpiexec(abi, PROGRAM, "-i", "9", "-j", "9", "-I", "1", "--exchange", exchange, environment=machine)
    assert result.status == 2
    assert result.err.count(f"ghost_exchange: --exchange {exchange}: {reason}; put `awaken exec` before") == 1
    assert not RESULT_LINE.search(result.out)


def test_nothing_is_queued_without_a_gpu() -> None:
    result = run("mpich", None, "--exchange", "graph")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("ghost_exchange: no GPU, or no GPU runtime: looked for ")


@pytest.mark.parametrize("abi", ["mpich", "openmpi"])
def test_nothing_is_queued_by_an_mpi_for_one_thread(abi: str, tmp_path: Path) -> None:
    compiler = PREFIX_OF_ABI[abi] / "bin" / "mpicc"
    library = compile_library(compiler, "one_thread.c", tmp_path / "one_thread.so")
    words = ("-i", "9", "-j", "9", "-I", "1", "--exchange", "enqueue")
    result = run(abi, "cuda:2", *words, LD_PRELOAD=str(library))
    assert result.status == 2
    assert result.err.count("ghost_exchange: --exchange enqueue: queued operations need MPI_THREAD_MULTIPLE") == 1


# ---------------------------------------------------------------------------------------------------------- binding

BIND = ROOT / "apps" / "bind_gpu.sh"
SHOW_VARIABLES = (
    "echo CUDA $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER ROCR $ROCR_VISIBLE_DEVICES HIP $HIP_VISIBLE_DEVICES"
)


@pytest.mark.parametrize(
    ("abi", "gpus", "inherited", "buses"),
    [
        ("mpich", "cuda:3", {"CUDA_VISIBLE_DEVICES": "2,1,0"}, 3),
        ("openmpi", "hip:3", {}, 3),
        ("mpich", "hip:3", {"HIP_VISIBLE_DEVICES": "1,2,0"}, 3),
        ("mpich", "hip:3", {"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "0,1"}, 2),
    ],
)
def test_a_wrapper_gives_each_rank_a_gpu(abi: str, gpus: str, inherited: dict[str, str], buses: int) -> None:
    """Through the program itself: the emulated driver heeds the variables as the real ones do."""
    before: list[str | Path] = [BIND, AWAKEN_OF_BUILD, "exec", "--"]
    variables = {"AWAKEN_EMULATE": gpus, "BIND_GPU_COUNT": "3", **inherited}
    result = mpiexec(abi, PROGRAM, "-i", "9", "-j", "9", "-I", "1", ranks=buses, before=before, environment=variables)
    assert result.status == 0, result.err
    places = re.findall(r"# rank (\d): .* GPU (\d) \((\S+), ", result.out)
    # Each sees one device, the first, and each another one.
    assert [gpu for _, gpu, _ in places] == ["0"] * buses
    assert len({bus for _, _, bus in places}) == buses
    assert "warning" not in result.out


@pytest.mark.parametrize(
    ("words", "variables", "chosen"),
    [
        (["--emulate", "cuda:3", "--", "app"], {}, "CUDA 1 PCI_BUS_ID ROCR HIP"),
        (["--report", "--emulate=hip:3", "app"], {}, "CUDA ROCR 1 HIP"),
        (["--emulate", "cuda", "app"], {"AWAKEN_EMULATE": "hip:1"}, "CUDA 0 PCI_BUS_ID ROCR HIP"),
        (["--", "app", "--emulate", "cuda:4"], {"AWAKEN_EMULATE": "hip7:3"}, "CUDA ROCR 1 HIP"),
        (["app"], {"AWAKEN_EMULATE": "cuda:3", "CUDA_VISIBLE_DEVICES": "2,0"}, "CUDA 2 PCI_BUS_ID ROCR HIP"),
    ],
)
def test_the_wrapper_follows_emulated_gpus(
    words: list[str], variables: dict[str, str], chosen: str, tmp_path: Path
) -> None:
    """Local rank 4 of a host without a GPU."""
    awaken = tmp_path / "awaken"
    awaken.write_text(f"#!/bin/sh\n{SHOW_VARIABLES}\n")
    awaken.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "BIND_GPU_SYS": str(tmp_path), "MPI_LOCALRANKID": "4", **variables}
    done = subprocess.run(
        [BIND, awaken, "exec", *words],
        env=environment, capture_output=True, text=True, timeout=harness.HANG_S, check=False,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (chosen.split(), "")


def visible_gpus(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the program behind the wrapper has in its variables, with a /sys of its own in that folder."""
    environment = {"PATH": os.environ["PATH"], "BIND_GPU_SYS": str(folder), **variables}
    return subprocess.run(
        [BIND, "sh", "-c", SHOW_VARIABLES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("variables", "chosen"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "1"),
        ({"MPI_LOCALRANKID": "3"}, "3"),
        ({"SLURM_LOCALID": "5"}, "1"),
        ({"PMI_LOCAL_RANK": "2"}, "2"),
        ({"MPI_LOCALRANKID": "1", "CUDA_VISIBLE_DEVICES": "6,4,2"}, "4"),
        ({"SLURM_LOCALID": "7", "MPI_LOCALRANKID": "2"}, "2"),
        ({"SLURM_LOCALID": "7", "MPI_LOCALRANKID": ""}, "3"),
        ({"SLURM_LOCALID": "0", "MV2_COMM_WORLD_LOCAL_RANK": "1"}, "1"),
        ({"MVP_COMM_WORLD_LOCAL_RANK": "2"}, "2"),
        ({"FLUX_TASK_LOCAL_ID": "3", "CUDA_VISIBLE_DEVICES": "GPU-8f1e,GPU-03c7"}, "GPU-03c7"),
        ({"MPI_LOCALRANKID": "1", "CUDA_VISIBLE_DEVICES": "0,,3"}, "3"),
        ({"MPI_LOCALRANKID": "1", "CUDA_VISIBLE_DEVICES": "7,"}, "7"),
    ],
)
def test_the_wrapper_reads_the_launchers_variables(variables: dict[str, str], chosen: str, tmp_path: Path) -> None:
    done = visible_gpus(tmp_path, {"BIND_GPU_COUNT": "4", **variables})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"CUDA {chosen} PCI_BUS_ID ROCR HIP\n"


def amd_machine(folder: Path, gpus: int) -> None:
    """/sys of a machine with a CPU and some GPUs of AMD."""
    for node in range(gpus + 1):
        properties = folder / "class" / "kfd" / "kfd" / "topology" / "nodes" / str(node) / "properties"
        properties.parent.mkdir(parents=True)
        properties.write_text(f"simd_count {0 if node == 0 else 304}\nlocation_id {node << 8}\ndomain 0\n")


@pytest.mark.parametrize(
    ("variables", "chosen"),
    [
        ({}, "1"),
        ({"ROCR_VISIBLE_DEVICES": "3,7"}, "7"),
        ({"HIP_VISIBLE_DEVICES": "3,2"}, "2"),
        ({"CUDA_VISIBLE_DEVICES": "3,2"}, "2"),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "0,3"}, "7"),
        ({"ROCR_VISIBLE_DEVICES": ",4,,5,"}, "5"),
        # As Slurm sets them for a job with a part of a node.
        (dict.fromkeys(("ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"), "4,5"), "5"),
    ],
)
def test_on_amd_one_variable_chooses(variables: dict[str, str], chosen: str, tmp_path: Path) -> None:
    amd_machine(tmp_path, 8)
    done = visible_gpus(tmp_path, {"MPI_LOCALRANKID": "1", **variables})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"CUDA ROCR {chosen} HIP\n"


def test_lists_that_leave_no_gpu_are_refused(tmp_path: Path) -> None:
    amd_machine(tmp_path, 8)
    lists = {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "6"}
    done = visible_gpus(tmp_path, {"MPI_LOCALRANKID": "0", **lists})
    assert done.returncode == 2
    assert "ROCR_VISIBLE_DEVICES leaves no GPU with the numbers 6" in done.stderr


@pytest.mark.parametrize(
    ("variables", "words", "complaint"),
    [
        ({"BIND_GPU_COUNT": "4"}, ["true"], "no variable gives the rank on this host"),
        ({"BIND_GPU_COUNT": "none", "SLURM_LOCALID": "0"}, ["true"], "BIND_GPU_COUNT=none is not a number"),
        ({"BIND_GPU_COUNT": "0", "SLURM_LOCALID": "0"}, ["true"], "there is no GPU on this host"),
        ({"BIND_GPU_COUNT": "00", "SLURM_LOCALID": "0"}, ["true"], "there is no GPU on this host"),
        ({"BIND_GPU_COUNT": "4", "SLURM_LOCALID": "-1"}, ["true"], "SLURM_LOCALID=-1 is not a number"),
        (
            {"BIND_GPU_COUNT": "4", "SLURM_LOCALID": "0", "CUDA_VISIBLE_DEVICES": ""},
            ["true"],
            "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs: unset it",
        ),
        (
            {"BIND_GPU_COUNT": "4", "SLURM_LOCALID": "0", "CUDA_VISIBLE_DEVICES": ","},
            ["true"],
            "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs: unset it",
        ),
        ({"BIND_GPU_COUNT": "4", "SLURM_LOCALID": "0"}, [], "usage: "),
    ],
)
def test_the_wrapper_says_what_is_wrong(variables: dict[str, str], words: list[str], complaint: str) -> None:
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(
        [BIND, *words], env=environment, capture_output=True, text=True, timeout=harness.HANG_S, check=False
    )
    assert done.returncode == 2
    assert complaint in done.stderr


NVIDIA_SMI = """#!/bin/sh
case $1 in
    --query-gpu=pci.bus_id) printf '00000000:1B:00.0\\n00000000:9C:00.0\\n' ;;
    --query-gpu=uuid,pci.bus_id)
        printf 'GPU-8f1e-77, 00000000:1B:00.0\\nGPU-8f1e-9a, 00000000:9C:00.0\\nGPU-03, 00000000:9C:00.0\\n' ;;
esac
"""


@pytest.mark.parametrize(
    ("variables", "printed"),
    [
        ({}, "cores 32-63\n1 PCI_BUS_ID\n"),
        # Which GPU number 1 is, only CUDA knows then.
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "1 FASTEST_FIRST\n"),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "cores 32-63\n1 PCI_BUS_ID\n"),
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-8f1e-9a"}, "cores 32-63\nGPU-8f1e-9a PCI_BUS_ID\n"),
        (
            {"CUDA_VISIBLE_DEVICES": "0,GPU-8f1e-9", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
            "cores 32-63\nGPU-8f1e-9 FASTEST_FIRST\n",
        ),
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-8f1e"}, "GPU-8f1e PCI_BUS_ID\n"),  # two begin so
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-77"}, "GPU-77 PCI_BUS_ID\n"),
        ({"CUDA_VISIBLE_DEVICES": "0,MIG-03"}, "MIG-03 PCI_BUS_ID\n"),
    ],
)
def test_the_wrapper_binds_to_the_cores_near_the_gpu(variables: dict[str, str], printed: str, tmp_path: Path) -> None:
    """With a machine of its own: nvidia-smi, /sys and taskset as that machine has them."""
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "taskset").write_text('#!/bin/sh\n[ "$1" = -c ] || exit 1\necho "cores $2"\nshift 2\nexec "$@"\n')
    # As GNU's: OpenMP's variables count, but for --all.
    (tmp_path / "nproc").write_text('#!/bin/sh\n[ "$1" = --all ] && echo 64 || echo ${OMP_NUM_THREADS:-64}\n')
    for name in ("nvidia-smi", "taskset", "nproc"):
        (tmp_path / name).chmod(0o755)
    folder = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:9c:00.0"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text("32-63\n")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BIND_GPU_SYS": str(tmp_path / "sys")}
    done = subprocess.run(
        [BIND, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"],
        env={**environment, "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMP_NUM_THREADS": "8", **variables},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed


@pytest.mark.parametrize("abi", ABIS)
def test_the_program_needs_nothing_of_awaken(abi: str) -> None:
    program = (BUILD / "apps" / abi / PROGRAM).read_bytes()
    # Ranges are told to every tool that is there, by name.
    assert b"awaken_" not in program.replace(b"awaken_range_push", b"").replace(b"awaken_range_pop", b"")


def test_the_table_of_ranges_counts_what_was_done() -> None:
    result = run("mpich", "cuda:2", "-i", "20", "-j", "16", "-I", "5", "--ranges")
    assert result.status == 0, result.err
    rows = re.findall(r"^# (\w[\w ]*?) +(\d+|all) +(\d+)(?: +\d+\.\d{6}){4}$", result.out, re.MULTILINE)
    counts = {(name, rank): int(count) for name, rank, count in rows}
    # Five steps, and one update before them. Columns and rows are exchanged one after the other; the field and the
    # buffers are allocated. What is done on the smallest blocks is not among them.
    own = {"stencil": 5, "boundary": 6, "pack": 6, "exchange": 12, "unpack": 6, "allocation": 2, "smallest blocks": 1}
    assert counts == {
        (name, rank): count * (2 if rank == "all" else 1) for name, count in own.items() for rank in ("0", "1", "all")
    }
