# SPDX-License-Identifier: Apache-2.0
"""The programs of apps/ in a report: what is run, what is read of their output, and where it is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import harness
import logs
import pytest
from awaken import findings, html_page, markdown_page, readers, suite
from awaken.applications import Application
from awaken.readers.source import ReadError
from awaken.report import from_files

PACKAGE = Path(__file__).resolve().parents[2] / "python"

GHOST = """# rank 0: host node, core 0 of 0-1, NUMA node 0, GPU 0 (0000:10:00.0, Some GPU)
GhostExchange_ArrayAssign_HIP Timing is stencil 0.395301 boundary condition 0.003739 ghost cell 0.034184 total 0.807627
# 400 x 300 cells on 1 x 2 ranks, halo 2 with corners, 20 iterations
# memory device, exchange packed, buffers once
# stencil: 3800.5 GB/s on the slowest rank, 79.2 % of the memory limit of 4800.0 GB/s (memory clock x bus width)
# ghost cell: 275.50 us an update; 17.50 us for the smallest blocks, and 6464 bytes over a link that is unknown (--link)
# check decomposition: right, each cell has the bits that one rank computes
# check mass: right, changed by 3.7e-16 of itself, rounding may do 3.8e-13
"""
XTX = """# S = X^T X, random input, FP64
# products: cuBLAS 13.0.0 (libcublas.so.13) on Some GPU
# reductions: MPI_Allreduce
nprocs: 2
localNumDofs: 1000
numberVectors: 200
Time in seconds: 3.820170750009310723e-02
#
# blocks: 5 of 40 vectors, the last of 40
# products alone: 0.009008857 s, 0.005328 TFLOP/s at a rank
# reductions alone: 0.008206155 s, algbw 0.023 GB/s, busbw 0.023 GB/s
# T_ideal: 0.012702730 s
# T_overlap: 0.038201708 s, 3.0074 x T_ideal
# All elements are right at all ranks.
"""
ALLREDUCE = """# Sum of 200000 doubles (1600000 bytes) over 2 ranks, in place on the GPU
# 5 timed calls after 5 for warm-up, on 5 buffers in turn
Time in seconds for GPU Direct MPI_Allreduce using NCCL/RCCL: 1.144141500003570400e-02
Time in seconds for GPU Direct MPI_Allreduce using standard MPI library: 2.305078999984289112e-02
#
# library          mode           us/call  algbw (GB/s)  busbw (GB/s)
# NCCL 2.27.3      queued         2288.28         0.699         0.699
# standard MPI     waited         4610.16         0.347         0.347
# NCCL 2.27.3      waited         3639.13         0.440         0.440
# standard MPI     queued         6981.32         0.229         0.229
# All sums are exact on all ranks.
"""


def read(folder: Path, text: str) -> list[Application]:
    file = folder / "some.log"
    file.write_text(text)
    return readers.read(file).applications


def test_what_each_program_tells(tmp_path: Path) -> None:
    (ghost,) = read(tmp_path, GHOST)
    assert (ghost.program, ghost.source, ghost.checked) == ("ghost exchange", "some", True)
    assert ghost.problem.startswith("400 x 300 cells on 1 x 2 ranks") and "exchange packed" in ghost.problem
    assert dict(ghost.figures) == {
        "stencil, all steps": "395 ms",
        "boundary condition, all steps": "3.74 ms",
        "halo exchange, all steps": "34.2 ms",
        "total": "808 ms",
        "bandwidth of the stencil, slowest rank": "3800 GB/s",
        "one halo exchange": "276 µs",
    }
    (xtx,) = read(tmp_path, XTX)
    assert xtx.checked is True and "MPI_Allreduce" in xtx.problem
    assert dict(xtx.figures) == {
        "products beside reductions": "38.2 ms",
        "products alone": "9.01 ms",
        "reductions alone": "8.21 ms",
        "ideal overlap": "12.7 ms",
        "times the ideal": "3.01",
    }
    (allreduce,) = read(tmp_path, ALLREDUCE)
    assert dict(allreduce.figures) == {
        "MPI, all calls, each waited for": "23.1 ms",
        "NCCL or RCCL, all calls, queued": "11.4 ms",
        "MPI, each call waited for": "4.61 ms",
        "NCCL or RCCL, each call waited for": "3.64 ms",
        "MPI, calls queued": "6.98 ms",
        "NCCL or RCCL, calls queued": "2.29 ms",
    }


def test_wrong_and_unchecked_results_are_called_so(tmp_path: Path) -> None:
    (wrong,) = read(tmp_path, GHOST.replace("check mass: right", "check mass: WRONG"))
    assert wrong.checked is False
    (unchecked,) = read(tmp_path, GHOST[: GHOST.index("# check")])
    assert unchecked.checked is None
    page = html_page.page(from_files([str(tmp_path / "some.log")], "title"))
    assert "no result was checked" in page


def test_several_programs_in_one_log_and_none(tmp_path: Path) -> None:
    assert [run.program for run in read(tmp_path, XTX + GHOST)] == ["ghost exchange", "X^T X"]
    with pytest.raises(ReadError, match="no row of results could be read"):
        read(tmp_path, "Time in seconds: nan\n")


def test_the_lines_of_the_original_allreduce_alone_and_several_runs(tmp_path: Path) -> None:
    """As its authors publish them: a heading, then one line of each library; either may be missing."""
    lines = [line for line in ALLREDUCE.splitlines() if line.startswith("Time")]
    slower = [line.replace("e-0", "e+0") for line in lines]
    text = [
        *["  1 node and 6 GPUs:", "```", *(f"  {line}" for line in lines), "```", "", "  2 nodes and 12 GPUs:"],
        *["```", "export MPICH_SMP_SINGLE_COPY_MODE=NONE", slower[0], slower[1] + "  ", "```", lines[1], slower[0]],
    ]
    runs = read(tmp_path, "\n".join(text) + "\n")
    names = ("NCCL or RCCL, all calls, queued", "MPI, all calls, each waited for")
    found = [(run.problem, *(dict(run.figures).get(name) for name in names), run.checked) for run in runs]
    assert found == [
        ("1 node and 6 GPUs", "11.4 ms", "23.1 ms", None),
        ("2 nodes and 12 GPUs, MPICH_SMP_SINGLE_COPY_MODE=NONE", "114 s", "231 s", None),
        ("", None, "23.1 ms", None),
        ("", "114 s", None, None),
    ]


def test_runs_of_one_program_in_one_log(tmp_path: Path) -> None:
    """Each keeps its own problem and its own check, whether a program tells its problem before or behind its times."""
    wrong = ALLREDUCE.replace("over 2 ranks", "over 4 ranks").replace("# All sums are exact on all ranks.\n", "")
    first, second = read(tmp_path, ALLREDUCE + wrong + "wrong data: rank 3\n")
    assert "over 2 ranks" in first.problem and first.checked is True
    assert "over 4 ranks" in second.problem and second.checked is False
    ghosts = read(tmp_path, GHOST + GHOST.replace("400 x 300", "40 x 30").replace("mass: right", "mass: WRONG"))
    assert [(run.problem.split(" cells")[0], run.checked) for run in ghosts] == [
        ("400 x 300", True),
        ("40 x 30", False),
    ]


def test_runs_of_one_name_are_told_apart_and_answer_the_question(tmp_path: Path) -> None:
    """A page of results as people publish it: sections, what was loaded, and headings that occur again."""
    lines = "\n".join(line for line in ALLREDUCE.splitlines() if line.startswith("Time"))
    run = f"  1 node and 8 GCDs:\n```\n{lines}\n```\n"
    loaded = [f"```\n  module load {word}\n```\n" for word in ("cmake rocm", "rocm/5.4.0", "cray-mpich/8.1.23")]
    (tmp_path / "page.md").write_text(
        f"Steps\n=====\n{loaded[2]}Crusher results\n------\n{loaded[0]}{run}{loaded[1]}{run}{run}Frontier results\n"
        f"------\n{run}"
    )
    report = from_files([str(tmp_path / "page.md")], "title")
    text = markdown_page.page(report)
    headings = [line for line in text.splitlines() if line.startswith(r"## MPI\_Allreduce")]
    ours = r"## MPI\_Allreduce against NCCL or RCCL: "
    assert [heading.removeprefix(ours) for heading in headings] == [
        "Crusher results, rocm, 1 node and 8 GCDs",
        "Crusher results, rocm/5.4.0, 1 node and 8 GCDs",
        r"Crusher results, rocm/5.4.0, 1 node and 8 GCDs \(2\)",
        "Frontier results, 1 node and 8 GCDs",
    ]
    answer = findings.choice(report.documents)
    assert answer.headline == "MPI_Allreduce: NCCL or RCCL in all 4 runs"
    assert answer.details[0].startswith("Not alike") and "2.01 times as fast" in answer.details[1]
    assert "Not measured side by side" not in html_page.page(report)


def test_the_best_comparison_of_a_run_counts(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(ALLREDUCE)
    (tmp_path / "b.log").write_text(ALLREDUCE.replace("4610.16", "2000.00"))
    report = from_files([str(tmp_path / "a.log"), str(tmp_path / "b.log")], "title")
    runs = findings.allreduce_runs(report.documents)
    assert [(run.name, run.calls, run.winner) for run in runs] == [
        ("MPI_Allreduce against NCCL or RCCL, a", "waited", "NCCL or RCCL"),
        ("MPI_Allreduce against NCCL or RCCL, b", "waited", "MPI"),
    ]
    answer = findings.choice(report.documents)
    assert answer.headline == "MPI_Allreduce: NCCL or RCCL in 1 of 2 runs, MPI in 1 of 2 runs"
    assert not any("Not alike" in detail for detail in answer.details)


def test_they_are_on_the_page_and_hostile_text_is_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    (tmp_path / "a.log").write_text(XTX.replace("MPI_Allreduce", hostile))
    (tmp_path / "b.log").write_text(ALLREDUCE)
    report = from_files([str(tmp_path / "a.log"), str(tmp_path / "b.log")], "title")
    assert report.problems == []
    page = html_page.page(report)
    assert 'id="applications"' in page and "products beside reductions" in page and "38.2 ms" in page
    assert hostile not in page and "&lt;script&gt;" in page
    text = markdown_page.page(report)
    assert "## X^T X".replace("^", "^") in text and "| MPI, calls queued | 6.98 ms |" in text and hostile not in text


# ------------------------------------------------------------------------------------------------------------ measured


def program(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def awaken_report(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "awaken", "report", *words],
        cwd=folder,
        env={**harness.clean_environment(), "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )


def test_programs_are_run_and_one_is_traced(tmp_path: Path) -> None:
    apps = tmp_path / "apps"
    apps.mkdir()
    spans = [(rank, "MPI_Send", "mpi", 10.0 * rank, 5.0) for rank in range(2)]
    (tmp_path / "given").write_text(json.dumps(logs.trace(spans)))
    (tmp_path / "ghost.log").write_text(GHOST)
    (tmp_path / "xtx.log").write_text(XTX)
    program(
        apps / "ghost_exchange",
        f'mkdir -p "$AWAKEN_TRACE"; cp {tmp_path}/given "$AWAKEN_TRACE/trace.json"; cat {tmp_path}/ghost.log',
    )
    program(apps / "xtx", f"cat {tmp_path}/xtx.log; [ $# -gt 0 ]")
    program(tmp_path / "awaken", 'case $1 in help) echo "  exec  run" ;; exec) shift 2; exec "$@" ;; *) exit 1 ;; esac')
    program(tmp_path / "mpiexec", 'shift 2; exec "$@"')
    words = ["--awaken", str(tmp_path / "awaken"), "--launcher", str(tmp_path / "mpiexec"), "--apps", str(apps)]
    listed = awaken_report([*words, "--list"], tmp_path).stdout
    assert "ghost_exchange" in listed and "xtx" in listed and "allreduce_program" not in listed
    done = awaken_report([*words, "--only", "ghost_exchange,xtx"], tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "awaken-report.html").read_text()
    assert "Timeline of ghost_exchange" in page and "halo exchange, all steps" in page and "X^T X" in page
    kept = {path.name for path in (tmp_path / "awaken-report").iterdir()}
    assert kept == {"steps.json", "ghost_exchange.log", "ghost_exchange.trace.json", "xtx.log"}
    # A folder of an earlier run has them, too.
    done = awaken_report(["awaken-report", "-o", "again.html"], tmp_path)
    assert done.returncode == 0 and "Timeline of ghost_exchange" in (tmp_path / "again.html").read_text()


def test_sizes_are_small_where_gpus_are_emulated(tmp_path: Path) -> None:
    for name in (*suite.PING_PONGS, "ghost_exchange", "xtx", "allreduce"):
        program(tmp_path / name, "true")
    for emulate, largest in (("cuda:2", "1M"), ("", "256M")):
        plan = suite.Plan(Path("awaken"), ("mpiexec",), emulate=emulate, ranks=4, apps=tmp_path)
        steps = {step.name: step for step in suite.steps(plan)}
        assert list(steps) == [*suite.PING_PONGS, "ghost_exchange", "xtx", "allreduce_program"]
        assert steps["ping_pong_cpu"].command[:3] == ("mpiexec", "-n", "2")
        assert largest in steps["ping_pong_cpu"].command
        assert steps["xtx"].command[:3] == ("mpiexec", "-n", "4")
        assert [name for name, step in steps.items() if "AWAKEN_TRACE" in step.environment] == ["ghost_exchange"]
        assert all(step.environment.get("AWAKEN_EMULATE", "") == emulate for step in steps.values())


def test_on_emulated_gpus(tmp_path: Path) -> None:
    """The real programs: whatever they print is read."""
    mpi = harness.mpis()["mpich"]
    apps = harness.build_dir() / "apps" / "mpich"
    if mpi.missing or not (apps / "ghost_exchange").exists() or harness.sanitizer():
        pytest.skip(mpi.missing or f"{apps} was not built")
    names = ["ping_pong_gpu_aware", "ghost_exchange", "xtx", "allreduce_program"]
    words = ["--awaken", str(harness.awaken()), "--launcher", str(mpi.mpiexec), "--emulate", "cuda:2"]
    done = awaken_report([*words, "--apps", str(apps), "--only", ",".join(names)], tmp_path)
    assert done.returncode == 0, done.stderr
    runs = [
        run
        for name in names[1:]
        for run in readers.read(tmp_path / "awaken-report" / f"{name}.log").applications
        if run.checked
    ]
    assert [len(run.figures) for run in runs] == [6, 5, 6]
    assert "Timeline of ghost_exchange" in (tmp_path / "awaken-report.html").read_text()


# ------------------------------------------------------------------------------------------------------ the way it went


@pytest.mark.parametrize(
    ("moved", "verdict", "headline"),
    [
        ({"copied": 95, "direct": 5}, "neutral", "95 % of the bytes through a copy, which may be in GPU memory"),
        ({"copied": 50, "direct": 50}, "neutral", "Partly: 50 % of the bytes"),
        ({"ring": 95, "copied": 5}, "bad", "No: it goes through the host"),
        ({"direct": 95, "copied": 5}, "good", "Yes: 95 % of the bytes from GPU to GPU"),
    ],
)
def test_copied_bytes_are_not_called_staged(moved: dict[str, int], verdict: str, headline: str, tmp_path: Path) -> None:
    calls = [("MPI_Send", path, 1, share << 20) for path, share in moved.items()]
    (tmp_path / "paths.json").write_text(json.dumps(logs.path_report(calls)))
    answer = findings.direct([readers.read(tmp_path / "paths.json")])
    assert (answer.verdict, answer.headline) == (verdict, headline)
    assert any("may be in a GPU's" in detail for detail in answer.details) == (moved.get("copied", 0) > 10)
