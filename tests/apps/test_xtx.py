# SPDX-License-Identifier: Apache-2.0
"""The program apps/xtx: S = X^T X by blocks, on emulated GPUs and on the CPU, with each reduction and precision.

The program compares S with its own reference; here its figures are compared with formulas, and faults are put in to see
that it notices them.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from app_runs import ABIS, AWAKEN_OF_BUILD, BUILD, ROOT, VENV, Result, mpiexec
from test_programs import SONAMES, compile_library, stand_in

EMULATOR = BUILD / "lib" / "awaken" / "emulator"
BEFORE: list[str | Path] = [AWAKEN_OF_BUILD, "exec", "--"]
NO_LIBRARIES = ("libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libcblas.so", "libblas.so.3", "libblas.so")
FEW = ("--repeats", "2")


def sizes(dofs: int, vectors: int, block: int) -> tuple[str, ...]:
    return ("--dofs", str(dofs), "--vectors", str(vectors), "--block", str(block))


def on_gpus(abi: str, gpus: str, *words: str, ranks: int, **variables: str) -> Result:
    environment = {"AWAKEN_EMULATE": gpus, **variables}
    return mpiexec(abi, "xtx", *words, "--device", "gpu", ranks=ranks, before=BEFORE, environment=environment)


def on_cpu(
    abi: str, *words: str, ranks: int = 2, environment: Mapping[str, str] | None = None, **variables: str
) -> Result:
    whole = {**(environment or {}), **variables}
    return mpiexec(abi, "xtx", *words, "--device", "cpu", ranks=ranks, environment=whole)


def figure(out: str, name: str) -> str:
    found = re.findall(rf"^# {re.escape(name)}: (.*)$", out, re.MULTILINE)
    assert len(found) == 1, (name, out)
    return str(found[0])


def seconds(out: str, name: str) -> float:
    return float(figure(out, name).split()[0])


def check_run(
    result: Result, dofs: int, vectors: int, block: int, *, ranks: int, parts: int = 1, mixed: bool = False
) -> None:
    """All figures of a run with and without overlap, against formulas."""
    assert result.status == 0, result.out + result.err
    out = result.out
    plain = [line for line in out.splitlines() if not line.startswith("#")]
    assert plain[:3] == [f"nprocs: {ranks}", f"localNumDofs: {-(-dofs // ranks)}", f"numberVectors: {vectors}"]
    assert len(plain) == 4
    time = re.fullmatch(r"Time in seconds: (\d\.\d{18}e[+-]\d\d)", plain[3])
    assert time, plain

    # N (N + B) / 2 elements where B divides N.
    widths = [min(block, vectors - first) for first in range(0, vectors, block)]
    elements = sum(width * (vectors - k * block) for k, width in enumerate(widths))
    if vectors % block == 0:
        assert elements == vectors * (vectors + block) // 2
    diagonal = sum(width * width for width in widths)
    doubles = parts * (diagonal if mixed else elements)
    floats = parts * (elements - diagonal) if mixed else 0
    total = 8 * doubles + 4 * floats
    assert figure(out, "bytes reduced").startswith(f"{total} ({doubles} doubles, {floats} floats), the largest block ")
    assert figure(out, "blocks") == f"{len(widths)} of {widths[0]} vectors, the last of {widths[-1]}"
    operations = 2 * parts**2 * dofs * elements
    assert float(figure(out, "operations").split()[0]) == pytest.approx(operations, rel=1e-6)

    rows = {
        row[0]: [float(value) for value in row[1:]]
        for row in re.findall(r"^# (off|on) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", out, re.MULTILINE)
    }
    assert set(rows) == {"off", "on"}
    for median, least, most, teraflops, per_rank in rows.values():
        assert least <= median <= most
        assert teraflops == pytest.approx(operations / median * 1e-12, abs=1e-6, rel=1e-3)
        assert per_rank == pytest.approx(teraflops / ranks, abs=1e-6)
    assert float(time[1]) == pytest.approx(rows["on"][0], abs=1e-9)

    serial, ideal = seconds(out, "T_serial"), seconds(out, "T_ideal")
    products, reductions = seconds(out, "products alone"), seconds(out, "reductions alone")
    copies = seconds(out, "copies to the host alone")
    assert serial == pytest.approx(products + reductions + copies, abs=1e-8)
    assert max(products, reductions) - 1e-8 <= ideal <= serial + 1e-8
    ratio = re.fullmatch(
        r"([\d.]+), would be 0.8 to 0.2 with --dofs (\d+) to (\d+)", figure(out, "reductions alone / products alone")
    )
    assert ratio
    assert float(ratio[1]) == pytest.approx(reductions / products, abs=1e-4, rel=1e-9 / products + 1e-9 / reductions)
    for wanted, chosen in ((0.8, ratio[2]), (0.2, ratio[3])):
        assert int(chosen) == pytest.approx(max(1, dofs * float(ratio[1]) / wanted), abs=1 + dofs * 1e-4 / wanted)
    bandwidth = re.fullmatch(r"[\d.]+ s, algbw ([\d.]+) GB/s, busbw ([\d.]+) GB/s", figure(out, "reductions alone"))
    assert bandwidth
    # Seconds have nine decimals.
    assert float(bandwidth[1]) == pytest.approx(total / reductions * 1e-9, abs=6e-4, rel=1e-3 + 1e-9 / reductions)
    assert float(bandwidth[2]) == pytest.approx(float(bandwidth[1]) * 2 * (ranks - 1) / ranks, abs=1.2e-3)
    overlap = re.fullmatch(r"([\d.]+) s, ([\d.]+) x T_ideal", figure(out, "T_overlap"))
    assert overlap
    assert float(overlap[1]) == pytest.approx(rows["on"][0], abs=1e-9)
    assert float(overlap[2]) == pytest.approx(rows["on"][0] / ideal, rel=1e-3 + 1e-9 / ideal, abs=6e-5)

    off, on = (figure(out, f"bits of the result, overlap {mode}") for mode in ("off", "on"))
    assert off == on
    assert int(on, 16) != 0
    assert out.endswith("# All elements are right at all ranks.\n")


# --------------------------------------------------------------------------------------------------------- on the GPUs

PARTS = {"real": 1, "complex": 2}
CASES = [
    ("mpich", "cuda:3", "mpi", "double", "real"),
    ("mpich", "cuda:3", "mpi-nonblocking", "mixed", "complex"),
    ("mpich", "cuda:3", "ccl", "mixed-communication", "real"),
    ("mpich", "hip:3", "staged", "mixed", "real"),
    ("mpich", "hip:3", "mpi", "mixed-communication", "complex"),
    ("openmpi", "hip:3", "ccl", "double", "complex"),
    ("openmpi", "cuda:3", "mpi", "mixed", "real"),
    ("openmpi", "hip:3", "staged", "double", "complex"),
    ("mpi5", "cuda:3", "ccl", "mixed", "complex"),
    ("mpich", "cuda:3", "enqueue", "mixed", "real"),
    ("mpich", "hip:3", "enqueue", "double", "complex"),
    ("openmpi", "cuda:3", "enqueue", "mixed-communication", "complex"),
    ("openmpi", "hip:3", "enqueue", "mixed", "real"),
]
FOR_SANITIZERS = (CASES[1], CASES[5], CASES[9], CASES[12])
ALL_CASES = list(
    itertools.product(
        ("mpich", "openmpi"),
        ("cuda:3", "hip:3"),
        ("mpi", "mpi-nonblocking", "ccl", "staged", "enqueue"),
        ("double", "mixed-communication", "mixed"),
        ("real", "complex"),
    )
)


def check_on_gpus(abi: str, gpus: str, reduce: str, precision: str, numbers: str, ranks: int, block: int = 8) -> Result:
    words = ["--reduce", reduce, "--precision", precision, "--input", "random", *FEW]
    if numbers == "complex":
        words.append("--complex")
    result = on_gpus(abi, gpus, *sizes(211, 37, block), *words, ranks=ranks)
    check_run(result, 211, 37, block, ranks=ranks, parts=PARTS[numbers], mixed=precision != "double")
    return result


@pytest.mark.parametrize(
    ("abi", "gpus", "reduce", "precision", "numbers"),
    [pytest.param(*case, marks=[pytest.mark.sanitizer] if case in FOR_SANITIZERS else []) for case in CASES],
)
def test_each_reduction_and_precision(abi: str, gpus: str, reduce: str, precision: str, numbers: str) -> None:
    result = check_on_gpus(abi, gpus, reduce, precision, numbers, ranks=3)
    library = "cuBLAS 1" if gpus.startswith("cuda") else "hipBLAS (libhipblas.so."
    assert figure(result.out, "products").startswith(library)
    names = {"mpi": "MPI_Allreduce", "mpi-nonblocking": "MPI_Iallreduce", "staged": "MPI_Allreduce on a host copy",
             "enqueue": "MPIX_Allreduce_enqueue"}  # fmt: skip
    ccl = "NCCL 2." if gpus.startswith("cuda") else "RCCL 2."
    assert figure(result.out, "reductions").startswith(names.get(reduce, ccl))


@pytest.mark.long
@pytest.mark.parametrize(("abi", "gpus", "reduce", "precision", "numbers"), ALL_CASES)
def test_all_reductions_and_precisions(abi: str, gpus: str, reduce: str, precision: str, numbers: str) -> None:
    check_on_gpus(abi, gpus, reduce, precision, numbers, ranks=3)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [5, 6, 7, 8])
@pytest.mark.parametrize("reduce", ["mpi", "ccl", "staged", "enqueue"])
@pytest.mark.parametrize("abi", ["mpich", "openmpi"])
def test_many_ranks(abi: str, reduce: str, ranks: int) -> None:
    check_on_gpus(abi, f"cuda:{ranks}", reduce, "mixed", "complex", ranks=ranks, block=5)


@pytest.mark.parametrize(("gpus", "library"), [("hip5:2", "libhipblas.so.1"), ("hip6:2", "libhipblas.so.2")])
def test_the_blas_is_of_the_runtimes_release(gpus: str, library: str) -> None:
    # That of ROCm 5 takes 32-bit sizes only.
    result = on_gpus("mpich", gpus, *sizes(100, 20, 5), *FEW, "--product-ranges", ranks=2)
    check_run(result, 100, 20, 5, ranks=2)
    assert library in figure(result.out, "products")


def test_constant_input_is_exact_beyond_one_slice() -> None:
    result = on_gpus("mpich", "cuda:2", *sizes(300, 400, 150), *FEW, ranks=2)
    check_run(result, 300, 400, 150, ranks=2)


def test_a_failing_product_ends_the_job() -> None:
    result = on_gpus("mpich", "cuda:2", *sizes(100, 20, 5), ranks=2, AWAKEN_TEST_FAULTS="kernel-error=4")
    assert result.status != 0
    assert "hipEventSynchronize" in result.err
    assert "right at all ranks" not in result.out


def emulator_without(folder: Path, *names: str) -> dict[str, str]:
    """The emulated GPU libraries but some."""
    for library in EMULATOR.iterdir():
        if not library.name.startswith(names):
            (folder / library.name).symlink_to(library)
    return {"LD_LIBRARY_PATH": str(folder), "AWAKEN_EMULATE": "cuda:2"}


def test_without_the_gpus_blas_the_cpu_multiplies(tmp_path: Path) -> None:
    machine = emulator_without(tmp_path, "libcublas")
    result = mpiexec("mpich", "xtx", *sizes(100, 20, 5), *FEW, environment=machine)
    check_run(result, 100, 20, 5, ranks=2)
    assert "# no GPU: libcublas.so.13: cannot open shared object file" in result.out
    assert figure(result.out, "products").endswith(" on the CPU")

    result = mpiexec("mpich", "xtx", *sizes(100, 20, 5), "--device", "gpu", environment=machine)
    assert (result.status, result.out) == (2, "")
    assert "put the folder of libcublas.so.13 into LD_LIBRARY_PATH" in result.err


def test_without_nccl_its_reduction_is_refused(tmp_path: Path) -> None:
    machine = emulator_without(tmp_path, "libnccl")
    result = mpiexec("mpich", "xtx", *sizes(100, 20, 5), "--reduce", "ccl", environment=machine)
    assert result.status == 2
    assert "xtx: --reduce ccl: libnccl.so.2: cannot open shared object file" in result.err


@pytest.mark.parametrize(
    ("abi", "reason"),
    [("mpich", "the MPI does not know this GPU's streams"), ("openmpi", "the MPI has no MPIX_Info_set_hex")],
)
@pytest.mark.parametrize("gpus", ["cuda:2", "hip:2"])
def test_without_awaken_nothing_is_queued(abi: str, reason: str, gpus: str) -> None:
    machine = {"AWAKEN_EMULATE": gpus, "LD_LIBRARY_PATH": str(EMULATOR)}
    result = mpiexec(abi, "xtx", *sizes(100, 20, 5), "--reduce", "enqueue", environment=machine)
    assert (result.status, result.out) == (2, "")
    assert result.err.count(f"xtx: --reduce enqueue: {reason}; put `awaken exec` before the program") == 1


def test_what_is_queued_is_in_the_streams_order() -> None:
    """However late the GPU is; in parts, too, each of which is a sum of its own."""
    words = ("--reduce", "enqueue", "--input", "random", "--precision", "mixed", *FEW)
    bits = set()
    for part in ("1000", "50"):
        late = {"AWAKEN_TEST_DELAYS": "5:300"}
        result = on_gpus("mpich", "cuda:2", *sizes(120, 24, 8), *words, "--part", part, ranks=2, **late)
        check_run(result, 120, 24, 8, ranks=2, mixed=True)
        bits.add(figure(result.out, "bits of the result, overlap on"))
    assert len(bits) == 1


def test_memory_is_shared_by_the_ranks_of_a_gpu_alone() -> None:
    """A rank that sees one GPU, its own, has all of its memory."""
    few = ("--repeats", "1", "--warm-up", "0", "--overlap", "off", "--check", "samples")
    machine = {"BIND_GPU_COUNT": "2", "AWAKEN_EMULATE_MEMORY": "16M"}
    words = [*sizes(26000, 100, 20), "--device", "gpu", *few]
    before: list[str | Path] = [ROOT / "apps" / "bind_gpu.sh", *BEFORE]
    result = mpiexec("mpich", "xtx", *words, before=before, AWAKEN_EMULATE="cuda:2", environment=machine)
    assert result.status == 0, result.err
    result = mpiexec("mpich", "xtx", *words, before=BEFORE, AWAKEN_EMULATE="cuda:1", environment=machine)
    assert result.status == 2
    assert "0.00972 GiB are needed and 0.00781 GiB free" in result.err, result.err


def test_ranges_show_products_and_whole_reductions() -> None:
    words = [*sizes(40, 400, 200), "--reduce", "ccl", "--ranges", *FEW]
    result = on_gpus("mpich", "cuda:2", *words, ranks=2)
    figures, table, _ = result.out.partition("#\n# xtx: wall-clock seconds of its ranges\n")
    check_run(Result(result.status, figures, result.err), 40, 400, 200, ranks=2)
    assert table
    rows = re.findall(r"^# (\w+) +(\d+|all) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", result.out, re.MULTILINE)
    # Of each block in one run that is checked, one for warm-up and two timed ones, without overlap and with it.
    blocks = 2 * 2 * (1 + 1 + 2)
    counts = {(name, rank): int(count) for name, rank, count, *_ in rows}
    assert counts == {
        (name, rank): count * (2 if rank == "all" else 1)
        for name, count in {"gemm": blocks, "reduce": blocks, "copy": blocks, "allocation": 1}.items()
        for rank in ("0", "1", "all")
    }
    assert all(float(total) > 0 for name, _, _, total, *_ in rows if name == "reduce")


def test_what_does_not_fit_into_the_gpu_is_refused() -> None:
    result = on_gpus("mpich", "cuda:2", *sizes(40000, 1000, 10), ranks=2, AWAKEN_EMULATE_MEMORY="64M")
    assert result.status == 2
    assert "xtx: no memory for 20000 rows of 1000 vectors in blocks of 10: 0.149 GiB are needed" in result.err
    result = on_gpus("mpich", "cuda:2", *sizes(100, 100, 10), ranks=2, AWAKEN_TEST_FAULTS="pinned-oom")
    assert result.status == 2
    assert "xtx: no memory for 50 rows of 100 vectors" in result.err


# ---------------------------------------------------------------------------------------------------------- on the CPU


@pytest.mark.parametrize(
    ("dofs", "vectors", "block", "ranks", "numbers"),
    [
        (2, 7, 3, 4, "complex"),  # fewer rows than ranks
        (50, 6, 10, 1, "real"),  # one rank, one block that is not full
        (1, 1, 1, 2, "real"),
        (101, 24, 6, 4, "real"),
        (101, 24, 6, 3, "complex"),
    ],
)
def test_odd_sizes(dofs: int, vectors: int, block: int, ranks: int, numbers: str) -> None:
    words = ["--input", "random", *FEW] + (["--complex"] if numbers == "complex" else [])
    result = on_cpu("mpich", *sizes(dofs, vectors, block), *words, ranks=ranks)
    check_run(result, dofs, vectors, block, ranks=ranks, parts=PARTS[numbers])


@pytest.mark.parametrize(
    ("vectors", "words", "blocks", "filled"),
    [
        (101, ("--block", "0"), (1, 110), 110),
        (150, ("--block", "0"), (2, 90), 180),
        (90, ("--block", "0"), (1, 90), 90),
        (37, ("--block", "8", "--fill-blocks"), (5, 8), 40),
        (40, ("--block", "8", "--fill-blocks"), (5, 8), 40),
    ],
)
def test_blocks_can_be_filled_up(vectors: int, words: tuple[str, ...], blocks: tuple[int, int], filled: int) -> None:
    result = on_cpu("mpich", "--dofs", "60", "--vectors", str(vectors), *words, "--input", "random", *FEW)
    check_run(result, 60, filled, blocks[1], ranks=2)
    assert figure(result.out, "blocks") == f"{blocks[0]} of {blocks[1]} vectors, the last of {blocks[1]}"
    said = f"# vectors that fill up the last block: {filled - vectors}, beside the {vectors} asked for\n"
    assert (said in result.out) == (filled != vectors)


@pytest.mark.parametrize("numbers", ["real", "complex"])
def test_rows_in_fp32_are_filled_up_with_zeros(numbers: str) -> None:
    """Each byte of fresh memory is 0x7f, and so each float 3e38: products of what is not filled up would be wrong."""
    words = ["--precision", "mixed", "--input", "random", *FEW] + (["--complex"] if numbers == "complex" else [])
    result = on_cpu("mpich", *sizes(27, 13, 4), *words, ranks=2, GLIBC_TUNABLES="glibc.malloc.perturb=128")
    check_run(result, 27, 13, 4, ranks=2, parts=PARTS[numbers], mixed=True)
    assert figure(result.out, "rows at a rank in FP32") == "16, filled up with zeros"


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_one_mode_alone(overlap: str) -> None:
    result = on_cpu("openmpi", *sizes(60, 12, 5), *FEW, "--overlap", overlap, "--check", "samples")
    assert result.status == 0, result.err
    other = "on" if overlap == "off" else "off"
    assert f"overlap {overlap}: " in result.out
    assert f"overlap {other}: " not in result.out
    assert ("# T_ideal: " in result.out) == (overlap == "off")
    assert "# T_overlap: " not in result.out
    assert result.out.endswith("# The samples of all blocks are right at all ranks.\n")


def errors_of(out: str, what: str) -> float:
    return float(figure(out, f"largest error of the {what}").split(",")[0])


@pytest.mark.parametrize("precision", ["mixed-communication", "mixed"])
def test_mixed_precision_is_mixed(precision: str) -> None:
    """The diagonal blocks have the errors of FP64, the rest those of FP32; each within its bound (the program's)."""
    words = [*sizes(500, 30, 7), "--input", "random", *FEW]
    double = on_cpu("mpich", *words)
    mixed = on_cpu("mpich", *words, "--precision", precision)
    check_run(mixed, 500, 30, 7, ranks=2, mixed=True)
    assert errors_of(double.out, "elements") < 1e-12
    assert errors_of(mixed.out, "diagonal blocks") < 1e-12
    # Elements are of the size of 10; half a unit in the last place of a float is 2^-24 of that.
    assert 1e-7 < errors_of(mixed.out, "rest") < 1e-3


@pytest.mark.parametrize("precision", ["mixed-communication", "mixed"])
def test_one_block_has_no_rest(precision: str) -> None:
    done = on_cpu("mpich", *sizes(50, 6, 10), "--precision", precision, *FEW)
    assert done.status == 0, done.err
    assert "# largest error of the diagonal blocks: " in done.out and "of the rest" not in done.out


def test_products_in_fp32_lose_more_than_sums_in_fp32() -> None:
    words = [*sizes(20000, 6, 2), "--input", "random", "--repeats", "1"]
    rest = {}
    for precision in ("mixed-communication", "mixed"):
        result = on_cpu("mpich", *words, "--precision", precision)
        assert result.status == 0, result.err
        rest[precision] = errors_of(result.out, "rest")
    assert rest["mixed"] > 2 * rest["mixed-communication"]


def test_split_reductions_give_the_same_sums() -> None:
    # With two ranks there is one order of summation.
    words = [*sizes(200, 30, 7), "--input", "random", "--complex", "--precision", "mixed", *FEW]
    bits = set()
    for more in ([], ["--part", "7"], ["--part", "7", "--reduce", "mpi-nonblocking"], ["--reduce", "staged"]):
        result = on_cpu("mpich", *words, *more)
        check_run(result, 200, 30, 7, ranks=2, parts=2, mixed=True)
        bits.add(figure(result.out, "bits of the result, overlap on"))
    assert len(bits) == 1


@pytest.mark.parametrize(
    ("gpus", "precision"), [(None, "mixed"), ("cuda:2", "mixed-communication"), ("hip:2", "double")]
)
def test_products_are_timed_outside_of_the_pipeline(gpus: str | None, precision: str) -> None:
    words = [*sizes(3000, 40, 10), "--bare-products", "--precision", precision, *FEW]
    result = on_cpu("mpich", *words) if gpus is None else on_gpus("mpich", gpus, *words, ranks=2)
    check_run(result, 3000, 40, 10, ranks=2, mixed=precision != "double")
    speed = re.fullmatch(
        r"([\d.]+) on average, ([\d.]+) at least \(block (\d)\)",
        figure(result.out, "speed of a product alone against that"),
    )
    assert speed
    assert 0 < float(speed[2]) <= float(speed[1])
    assert 1 <= int(speed[3]) <= 4
    assert seconds(result.out, "products outside of the pipeline") > 0


def blas_machine(folder: Path, *flags: str) -> dict[str, str]:
    """A machine whose only BLAS libraries are the stand-in's."""
    library = compile_library(os.environ.get("CC", "cc"), "host_cblas.c", folder / "stand_in.so", *flags)
    for name in NO_LIBRARIES:
        (folder / name).symlink_to(library)
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.mark.parametrize("numbers", ["real", "complex"])
def test_a_host_blas_is_used_where_there_is_one(numbers: str, tmp_path: Path) -> None:
    words = ["--precision", "mixed", "--input", "random", *FEW] + (["--complex"] if numbers == "complex" else [])
    result = on_cpu("mpich", *sizes(90, 20, 6), *words, environment=blas_machine(tmp_path))
    check_run(result, 90, 20, 6, ranks=2, parts=PARTS[numbers], mixed=True)
    assert figure(result.out, "products") == "libopenblas.so.0 on the CPU"
    for letter in "sd" if numbers == "real" else "cz":
        assert f"<cblas_{letter}gemm>" in result.err


@pytest.mark.parametrize(("sizes_", "input_"), [((80_000, 10, 5), "random"), ((9_000_000, 2, 1), "constant")])
def test_products_that_are_zero_are_noticed(sizes_: tuple[int, int, int], input_: str, tmp_path: Path) -> None:
    """What rounding may do in single precision is less than the elements, for many rows too."""
    words = [*sizes(*sizes_), "--precision", "mixed", "--input", input_, "--repeats", "1", "--warm-up", "0"]
    (tmp_path / "good").mkdir()
    result = on_cpu("mpich", *words, environment=blas_machine(tmp_path / "good"))
    check_run(result, *sizes_, ranks=2, mixed=True)
    result = on_cpu("mpich", *words, environment=blas_machine(tmp_path, "-DZERO_SINGLE"))
    assert result.status == 1, result.out
    assert re.search(r"wrong data: MPI_Allreduce, overlap off: rank \d, S\(\d+, \d+\): 0 instead of ", result.err)


def test_without_a_host_blas_the_program_has_loops(tmp_path: Path) -> None:
    result = on_cpu("mpich", *sizes(90, 20, 6), *FEW, environment=blas_machine(tmp_path, "-DWITHOUT_PRODUCTS"))
    check_run(result, 90, 20, 6, ranks=2)
    assert figure(result.out, "products").startswith("own loops (no host BLAS with a C interface: looked for libopenbl")


# --------------------------------------------------------------------------------------------------------- wrong data


@pytest.fixture(scope="session")
def faulty_mpi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(VENV / "bin" / "mpicc", "faulty_mpi.c", tmp_path_factory.mktemp("faulty") / "faulty_mpi.so")


# Four blocks a run. Without overlap: run 0 is checked in all places, run 1 warms up, 2 and 3 are timed; then the same
# with overlap, from run 4 on.
@pytest.mark.parametrize(
    ("run", "block", "kind", "rank", "where"),
    [
        (0, 0, "flip", 0, "overlap off: rank 0, S(19, 4): "),
        (0, 3, "drop", 1, "overlap off: rank 1, S(15, 15): "),
        (1, 1, "flip", 1, "overlap off: rank 1, S(19, 9): "),
        (3, 2, "flip", 0, "overlap off: rank 0, S(19, 14): "),
        (7, 3, "drop", 0, "overlap on: rank 0, S(15, 15): "),
    ],
)
def test_a_wrong_sum_is_noticed(run: int, block: int, kind: str, rank: int, where: str, faulty_mpi: Path) -> None:
    fault = {"FAULT_RANK": str(rank), "FAULT_CALL": str(4 * run + block), "FAULT_KIND": kind}
    result = on_cpu("mpich", *sizes(50, 20, 5), *FEW, LD_PRELOAD=str(faulty_mpi), environment=fault)
    assert result.status == 1
    assert result.err.count(f"wrong data: MPI_Allreduce, {where}") == 1, result.err
    assert "Time in seconds" not in result.out
    assert "right at all ranks" not in result.out


def test_a_wrong_sum_on_a_gpus_host_copy_is_noticed(faulty_mpi: Path) -> None:
    fault = {"FAULT_RANK": "1", "FAULT_CALL": "2", "FAULT_KIND": "flip", "LD_PRELOAD": str(faulty_mpi)}
    machine = {"AWAKEN_EMULATE": "hip:2", "LD_LIBRARY_PATH": str(EMULATOR)}
    words = [*sizes(50, 20, 5), "--input", "random", "--reduce", "staged", "--device", "gpu"]
    result = mpiexec("mpich", "xtx", *words, environment={**machine, **fault})
    assert result.status == 1
    assert "wrong data: MPI_Allreduce on a host copy, overlap off: rank 1, S(19, 14): " in result.err


# -------------------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--dofs", "0"], "--dofs 0: out of range"),
        (["--vectors", "-1"], "--vectors -1: out of range"),
        (["--block", "-1"], "--block -1: out of range"),
        (["--reduce", "gossip"], "--reduce gossip: not one of mpi, mpi-nonblocking, ccl, staged or enqueue"),
        (["--precision"], "--precision needs a value"),
        (["--complex=1"], "--complex takes no value"),
        (["--overlap", "perhaps"], "--overlap perhaps: not one of off, on or both"),
        (["--block-size", "4"], "unknown option --block-size"),
        (["--device", "cpu", "--vectors", "1G", "--block", "1"], "and 1000000 are the most: use a larger --block"),
        (["--bare-products", "--overlap", "on"], "--bare-products compares with products that nothing overlaps"),
        (["--device", "cpu", "--reduce", "ccl"], "--reduce ccl: NCCL and RCCL need a GPU"),
        (["--device", "cpu", "--reduce", "enqueue"], "--reduce enqueue: there is no GPU whose stream could order"),
        (["--device", "cpu", "--input", "random"], "use --check samples, or --input constant"),
        (["--device", "cpu", "--dofs", "1024G"], "use fewer --dofs or --vectors, smaller --block, or more ranks"),
        # Two blocks of 2^40 numbers, and the copy that is handed on: on the CPU all come from the same memory.
        (["--device", "cpu", "--dofs", "1", "--vectors", "1M", "--block", "1M"], ": 2.46e+04 GiB are needed"),
    ],
)
def test_wrong_use_is_told(words: list[str], complaint: str) -> None:
    result = mpiexec("mpich", "xtx", *words)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("xtx: ")
    assert result.err.count(complaint) == 1
    assert result.err.count("\n") == 1


def test_without_a_gpu_the_message_names_what_was_looked_for(tmp_path: Path) -> None:
    stand_in(tmp_path, "cuda", 0)
    stand_in(tmp_path, "hip", 0)
    result = mpiexec("mpich", "xtx", "--device", "gpu", LD_LIBRARY_PATH=str(tmp_path))
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("xtx: no GPU")
    assert all(soname in result.err for soname in (*SONAMES["hip"], *SONAMES["cuda"]))


def test_the_sizes_are_those_of_the_original() -> None:
    result = mpiexec("mpich", "xtx", "--help", ranks=1)
    assert result.status == 0
    defaults = dict(re.findall(r"--([\w-]+) N .*\(default (\d+)\)", result.out))
    assert (defaults["dofs"], defaults["vectors"], defaults["block"]) == ("70000", "36600", "732")
    assert re.search(r"--reduce WORD .*\(default mpi\)", result.out)


@pytest.mark.parametrize("abi", ABIS)
def test_the_program_needs_nothing_of_awaken(abi: str) -> None:
    program = (BUILD / "apps" / abi / "xtx").read_bytes()
    # Ranges are told to every tool that is there, by name.
    assert b"awaken_" not in program.replace(b"awaken_range_push", b"").replace(b"awaken_range_pop", b"")
    assert b"libawaken" not in program
