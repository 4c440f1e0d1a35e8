# SPDX-License-Identifier: Apache-2.0
"""The readers: figures are found as they were put in, and whatever else a file may hold ends in a clear message."""

from __future__ import annotations

import codecs
import json
import os
import re
from pathlib import Path

import changed_json
import harness
import logs
import pytest
from awaken import curves, html_page, readers
from awaken.readers import osu
from awaken.readers.source import ReadError
from awaken.report import from_files
from awaken.results import BANDWIDTH, TIME, Document
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROWS = [(1, 1.25), (1024, 2.5), (1048576, 160.75)]
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NOT_QUADRATIC_S = 60.0
"""Ends what takes a fraction of a second, or minutes with an expression that looks at a line from each of its
places."""

sizes = st.integers(0, 40).map(lambda power: 1 << power)
times = st.integers(1, 10**9).map(lambda hundredths: hundredths / 100)
tables = st.lists(st.tuples(sizes, times), min_size=1, max_size=30, unique_by=lambda row: row[0]).map(sorted)


def read_text(tmp_path: Path, text: str, name: str = "run.log", label: str = "") -> Document:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return readers.read(file, label)


def figures(document: Document, index: int = 0) -> list[tuple[int, float]]:
    return [(point.size_bytes, round(point.value, 6)) for point in document.series[index].points]


@pytest.mark.parametrize(
    "prefix",
    [
        *("[0] ", "[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", " 0: "),
        *("        [1,0]<stdout>:", "\t[1,0]<stdout>:", "        [0] "),
        *("2026-01-02T03:04:05.678Z ", "2026-01-02T03:04:05Z ", "2026-01-02T03:04:05.123456789+02:00 "),
        "2026-01-02T03:04:05.678Z [1,0]<stdout>:",
        *(
            "node1 0: ",
            "node1.cluster.example 12: ",
            "node1: ",
            "[node1] ",
            "[node1:77]<stdout>: ",
            "rank 0: ",
            "  node1: ",
        ),
        *("node1  | ", "node1\t", "[job-n2@1,0][n2:3738]<stdout>: ", "Jan 02 03:04:05 node1 osu[77]: ", "node1:"),
        "2026-01-02T03:04:05.678Z node1 0: ",
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        logs.osu("7.4", ROWS),
        logs.nccl_tests("all_reduce_perf", ROWS),
        logs.imb("Allreduce", ROWS, ranks=4),
        "# Benchmarking" + logs.imb("Allreduce", ROWS, ranks=4).partition("# Benchmarking")[2],
        logs.first_nccl_tests([(8, 100.0)], program="all_reduce_perf"),
        logs.ucc_perftest("Allreduce", ROWS),
        logs.pasted(logs.imb("Allreduce", ROWS), "Allreduce"),
    ],
    ids=["osu", "nccl", "imb", "part of imb", "first nccl", "ucc", "pasted imb"],
)
def test_what_is_put_before_each_line_is_no_part_of_it(tmp_path: Path, prefix: str, text: str) -> None:
    plain = read_text(tmp_path, text, label="log")
    marked = "".join(f"{prefix}{line}\r\n" for line in text.splitlines())
    document = read_text(tmp_path, "\ufeff" + marked, label="log")
    assert document.series == plain.series and figures(document) == figures(plain)
    assert document.notes == []


def test_labels_differ_in_their_numbers_and_other_words_before_a_colon_are_none(tmp_path: Path) -> None:
    lines = logs.nccl_tests("all_reduce_perf", [(8, 5.0), (16, 6.0)]).splitlines()
    text = "".join(f"node{index % 3} {index % 12}: {line}\n" for index, line in enumerate(lines))
    noise = "node1 5: node1: 8 words\nremark: 8 2 float sum -1 9.00 0.00 0.00 0 9.00 0.00 0.00 0\n"
    document = read_text(tmp_path, text + noise)
    assert (document.series[0].ranks, figures(document), document.notes) == (2, [(8, 5.0), (16, 6.0)], [])


def test_a_prompt_is_no_label(tmp_path: Path) -> None:
    runs = [f"[root@node1 omb]# HIP_VISIBLE_DEVICES=0,{gpu} osu_latency\n{logs.osu('7.4', ROWS)}" for gpu in (1, 2)]
    assert [one.pair for one in read_text(tmp_path, "".join(runs)).series] == [(0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("text", "added"),
    [
        (logs.osu("7.4", ROWS), ""),
        (logs.osu("7.3", ROWS, title="Allreduce Latency", full=True), ""),
        (logs.nccl_tests("all_reduce_perf", ROWS), ""),
        (logs.nccl_tests("all_reduce_perf", ROWS), "in place"),
        (logs.imb("Allreduce", ROWS), ""),
        (logs.ucc_perftest("Allreduce", ROWS), ""),
        (logs.ucc_perftest("Allreduce", ROWS, full=True), ""),
    ],
    ids=["osu", "full osu", "nccl", "nccl in place", "imb", "ucc", "full ucc"],
)
def test_remarks_behind_a_row_are_no_part_of_it(tmp_path: Path, text: str, added: str) -> None:
    lines = text.splitlines()
    rows = [index for index, line in enumerate(lines) if line.split()[:1] in (["1024"], ["256"])]
    assert len(rows) == 1
    if added:
        text = "".join(f"{' '.join(line.split()[:9]) if line[:1] == ' ' else line}\n" for line in lines)
        lines = text.splitlines()
    plain = read_text(tmp_path, text)
    for remark in ("← drops from here", "← why so slow?", "# 2 of 5", "(one, two and three)"):
        marked = "\n".join(f"{line}  {remark}" if index in rows else line for index, line in enumerate(lines))
        document = read_text(tmp_path, marked + "\n")
        assert (document.series, document.notes) == (plain.series, [])


def test_a_verdict_that_the_names_of_columns_lack_is_no_remark(tmp_path: Path) -> None:
    text = logs.osu("7.4", [(1, 1.0), (2, 2.0)]).rstrip()
    assert read_text(tmp_path, f"{text}   Pass\n").series[0].failed is False
    assert read_text(tmp_path, f"{text}   Fail  really\n").series[0].failed


@pytest.mark.parametrize("rule", ["===", "=========", "----", "~~~", "# ***"])
def test_headings_name_what_nothing_else_tells_apart(tmp_path: Path, rule: str) -> None:
    end = rule.lstrip("# ")

    def headed(*runs: tuple[str, str]) -> Document:
        return read_text(tmp_path, "".join(f"{rule} {name} {end}\n{end}{end}\n{text}" for name, text in runs))

    tables = [
        logs.osu("7.4", ROWS),
        logs.nccl_tests("all_reduce_perf", ROWS),
        logs.imb("Allreduce", ROWS),
        logs.ucc_perftest("Allreduce", ROWS),
        logs.pasted(logs.imb("Allreduce", ROWS), "Allreduce"),
    ]
    for text in tables:
        plain = read_text(tmp_path, text).series
        same = headed(("JOB MAP", text), ("JOB MAP", text))
        assert [one.mode for one in same.series] == [one.mode for one in plain] * 2
        times = headed(("osu_x run 1/2 17:17:31", text), ("osu_x run 2/2 2026-01-02 17:18:00", text))
        assert [one.mode for one in times.series] == [one.mode for one in plain] * 2
        named = headed(("algo=Tree 17:17:31", text), ("algo=Ring 17:19:02", text))
        expected = [f"{one.mode}, algo={name}".strip(", ") for name in ("Tree", "Ring") for one in plain]
        assert [one.mode for one in named.series] == expected
    assert headed(("mine", logs.first_nccl_tests(FIRST_ROWS))).series[0].mode == "queued, mine"
    assert [one.mode for one in headed(("one", tables[0]), ("other", tables[2])).series] == ["", ""]


@pytest.mark.parametrize("words", ["pair {0},{1}  run 1/1  17:17:31", "GPUs {0} and {1}", "GCD {0} -> GCD {1}"])
def test_headings_that_name_pairs_make_a_matrix(tmp_path: Path, words: str) -> None:
    runs = [f"== {words.format(0, gpu)} ==\n{logs.osu('7.5', [(8, gpu)])}" for gpu in (1, 3)]
    assert read_text(tmp_path, "".join(runs)).topologies == []  # two characters are no rule
    document = read_text(tmp_path, "=" + "=".join(runs).replace("==\n", "===\n"))
    assert [one.pair for one in document.series] == [(0, 1), (0, 3)]
    (matrix,) = document.topologies[0].matrices
    assert [[cell.value for cell in row] for row in matrix.cells] == [[1, 3]]


# ----------------------------------------------------------------------------------------------------------------- OSU


TIMES, RATES = "# Size       Avg Latency(us)\n", "# Size      Bandwidth (MB/s)\n"


@pytest.mark.parametrize(("title", "first", "second"), [("Bandwidth", RATES, TIMES), ("Latency", TIMES, RATES)])
def test_osu_columns_of_another_quantity_are_another_test(tmp_path: Path, title: str, first: str, second: str) -> None:
    head = f"# OSU MPI {title} Test v7.5\n"
    document = read_text(tmp_path, f"{head}{first}8 1000.00\n{second}8 3000.00\n{first}8 5000.00\n")
    one, other, last = document.series
    scale = {TIME: 1000.0, BANDWIDTH: 1.0}
    assert (one.test, one.quantity) == ("bw" if first == RATES else "latency", BANDWIDTH if first == RATES else TIME)
    assert (other.test, other.ranks, other.quantity) == ("unknown", None, TIME if first == RATES else BANDWIDTH)
    assert (last.test, last.quantity) == ("unknown", one.quantity)
    for index, (series, factor) in enumerate(((one, 1), (other, 3), (last, 5))):
        assert figures(document, index) == [(8, factor * scale[series.quantity])]
    (series,) = read_text(tmp_path, f"{head}{second}8 1000.00\n").series
    assert (series.test, series.quantity) == ("unknown", other.quantity)


def test_osu_columns_of_the_same_quantity_are_the_same_test_again(tmp_path: Path) -> None:
    document = read_text(tmp_path, logs.osu("7.4", ROWS) + TIMES + "8 9.00\n")
    assert [(one.test, one.ranks, one.type) for one in document.series] == [("latency", 2, "MPI_CHAR")] * 2
    assert (figures(document), figures(document, 1)) == (ROWS, [(8, 9.0)])


@pytest.mark.parametrize("version", logs.OSU_DIALECTS)
def test_osu_latency(tmp_path: Path, version: str) -> None:
    document = read_text(tmp_path, logs.osu(version, ROWS), label="mine")
    (series,) = document.series
    assert (series.test, series.quantity, series.ranks, series.implementation) == ("latency", TIME, 2, "mine")
    assert figures(document) == ROWS
    assert series.type == ("MPI_CHAR" if version >= "7.1" else "")
    assert series.buffers == ("D H" if version == "7.0" else "")
    assert document.notes == []


@pytest.mark.parametrize("version", logs.OSU_DIALECTS)
def test_osu_bandwidth_is_in_gb_per_s(tmp_path: Path, version: str) -> None:
    document = read_text(tmp_path, logs.osu(version, [(4096, 12345.67)], title="Bandwidth", bandwidth=True))
    assert document.series[0].quantity == BANDWIDTH
    assert figures(document) == [(4096, 12.34567)]


@pytest.mark.parametrize("version", logs.OSU_DIALECTS)
def test_osu_full_collectives_have_the_ranks_extremes(tmp_path: Path, version: str) -> None:
    document = read_text(tmp_path, logs.osu(version, ROWS, title="Allreduce Latency", full=True))
    (series,) = document.series
    assert (series.test, series.ranks, series.buffers) == ("allreduce", None, "D")
    point = series.points[1]
    assert (point.value, point.low, point.high) == (2.5, 1.25, 5.0)
    assert series.band


@QUICK
@given(table=tables, version=st.sampled_from(logs.OSU_DIALECTS), full=st.booleans())
def test_osu_tables_of_any_figures(tmp_path: Path, table: list[tuple[int, float]], version: str, full: bool) -> None:
    title = "Allreduce Latency" if full else "Latency"
    document = read_text(tmp_path, logs.osu(version, table, title=title, full=full))
    assert figures(document) == [(size, round(value, 6)) for size, value in table]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Latency", "latency"),
        ("Bi-Directional Bandwidth", "bibw"),
        ("Multiple Bandwidth / Message Rate", "mbw_mr"),
        ("Multi-threaded Latency", "latency_mt"),
        ("Latency Persistent", "latency_persistent"),
        ("Partitioned Latency", "partitioned_latency"),
        ("All-to-All Personalized Exchange Latency", "alltoall"),
        ("All-to-Allw Personalized Exchange Persistent Latency", "alltoallw_persistent"),
        ("Non-blocking All-to-All Latency", "ialltoall"),
        ("Non-Blocking Broadcast Latency", "ibcast"),
        ("Non-blocking Sendrecv Latency", "isendrecv"),
        ("Reduce_scatter_block Latency", "reduce_scatter_block"),
        ("Non-blocking Neighborhood Alltoallv Latency", "ineighbor_alltoallv"),
        ("Barrier Latency", "barrier"),
        ("_Put Latency", "put_latency"),
        ("_Put Bi-directional Bandwidth", "put_bibw"),
        ("_Get_accumulate latency", "get_acc_latency"),
        ("_Fetch_and_op-CUDA latency", "fop_latency"),
        ("A Test of Next Year", "a_test_of_next_year"),
    ],
)
def test_osu_names_by_titles(title: str, name: str) -> None:
    assert osu.test_name(title) == name


@pytest.mark.parametrize("version", ["5.3.2", "7.0", "7.4", "7.5"])
def test_osu_one_sided(tmp_path: Path, version: str) -> None:
    """Window and synchronisation tell runs of one test apart."""
    text = logs.osu_one_sided(version, ROWS) + logs.osu_one_sided(
        version, [(8, 9.0)], title="MPI_Get-CUDA Bandwidth", synchronisation="MPI_Win_lock/unlock"
    )
    document = read_text(tmp_path, text)
    put, get = document.series
    assert (put.test, put.quantity, put.ranks, put.buffers) == ("put_latency", TIME, 2, "D H")
    assert put.mode == "MPI_Win_allocate, MPI_Win_flush"
    assert put.type == ("MPI_CHAR" if version >= "7.1" else "")
    assert figures(document) == ROWS
    assert (get.test, get.quantity, get.mode) == ("get_bw", BANDWIDTH, "MPI_Win_allocate, MPI_Win_lock/unlock")
    assert figures(document, 1) == [(8, 0.009)]
    assert document.notes == []


def test_osu_one_sided_data_that_failed(tmp_path: Path) -> None:
    text = logs.osu_one_sided("7.5", ROWS, title="MPI_Accumulate latency", validation="failed")
    (series,) = read_text(tmp_path, text).series
    assert series.test == "acc_latency" and series.failed
    assert [point.errors for point in series.points] == [0, 0, 1]


def test_bench_one_sided_runs_are_told_apart_by_window_and_synchronisation(tmp_path: Path) -> None:
    run = logs.bench("put_bw", [logs.contender("awaken", [logs.measurement(8, 10.0)])])
    run["runs"][0].update(window_creation="MPI_Win_create", synchronization="MPI_Win_fence")
    (series,) = read_text(tmp_path, json.dumps(run), "run.json").series
    assert (series.mode, series.quantity) == ("MPI_Win_create, MPI_Win_fence", BANDWIDTH)


def test_osu_all_types_of_one_run(tmp_path: Path) -> None:
    text = logs.osu("7.4", ROWS, title="Allreduce Latency") + "# Datatype: MPI_INT.\n4     7.50\n8     8.50\n"
    document = read_text(tmp_path, text)
    assert [series.type for series in document.series] == ["MPI_CHAR", "MPI_INT"]
    assert figures(document, 1) == [(4, 7.5), (8, 8.5)]


def test_osu_all_types_of_a_one_sided_run_keep_the_window(tmp_path: Path) -> None:
    text = logs.osu_one_sided("7.4", ROWS) + "# Datatype: MPI_INT.\n4     7.50\n"
    document = read_text(tmp_path, text)
    assert [series.mode for series in document.series] == ["MPI_Win_allocate, MPI_Win_flush"] * 2
    assert [series.buffers for series in document.series] == ["D H"] * 2


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize(
    ("title", "columns", "tail"),
    [
        ("Latency", ["Avg Latency(us)"], "Lat(us)"),
        ("Bandwidth", ["Bandwidth (MB/s)"], "BW(MB/s)"),
        ("Multiple Bandwidth / Message Rate", ["MB/s", "Messages/s"], "BW(MB/s)"),
    ],
)
def test_osu_tail_columns(tmp_path: Path, title: str, columns: list[str], tail: str, validation: bool) -> None:
    """With -z. "P50 Tail BW(MB/s)" has 17 characters in a column of 18: one blank is all that is before it."""
    names = [*columns, *(["Validation"] if validation else []), *(f"P{part} Tail {tail}" for part in (50, 90, 99))]
    words = ["1000.00"] * len(columns) + ["Pass"] * validation + ["7.00", "8.00", "9.00"]
    text = f"# OSU MPI {title} Test v7.5\n{'# Size':10}{''.join(f'{name:>18}' for name in names)}\n"
    text += f"{8:<10}{''.join(f'{word:>18}' for word in words)}\n"
    document = read_text(tmp_path, text)
    assert document.notes == []
    assert figures(document) == [(8, 1000.0 if title == "Latency" else 1.0)]
    if validation:
        (series,) = read_text(tmp_path, text.replace("Pass", "Fail")).series
        assert series.failed


def test_osu_varied_windows(tmp_path: Path) -> None:
    text = """# OSU MPI Multiple Bandwidth / Message Rate Test v7.4
# [ pairs: 1 ] [ window size: varied ]

# Uni-directional Bandwidth (MB/sec)
# Datatype: MPI_CHAR.
#                 1           2
1              1.00        2.00
2              3.00        4.00

# Message Rate Profile
# Datatype: MPI_CHAR.
#                 1           2
1           1000000     2000000
"""
    document = read_text(tmp_path, text)
    assert [series.mode for series in document.series] == ["window 1", "window 2"]
    assert figures(document, 1) == [(1, 0.002), (2, 0.004)]


def test_osu_rows_of_several_programs_and_of_none(tmp_path: Path) -> None:
    """A job's log: several benchmarks, a launcher's marks, and words of others between the rows."""
    text = "Loading module\n" + logs.osu("7.4", ROWS) + "WARNING: 3 ranks are late\n" + logs.osu("5.3.2", [(8, 9.0)])
    text += "\n# OSU MPI Barrier Latency Test v7.4\n# Avg Latency(us)\n             4.25\n"
    marked = "".join(f"[1,0]<stdout>: {line}\n" for line in text.splitlines())
    for content in (text, marked):
        document = read_text(tmp_path, content)
        assert [figures(document, index) for index in range(3)] == [ROWS, [(8, 9.0)], [(0, 4.25)]]
        assert document.series[2].test == "barrier"


BW = "srun -N 1 -n 2 ./mpi/pt2pt/osu_bw D D"


def test_osu_runs_between_two_gpus_each_make_a_matrix(tmp_path: Path) -> None:
    """A transcript as people publish it: the pair is that of the last export, HSA_ENABLE_SDMA is another matrix."""

    def bandwidth(*rows: tuple[int, float]) -> str:
        return logs.osu("7.0", rows, title="Bandwidth", bandwidth=True)

    large = 1 << 24
    document = read_text(
        tmp_path,
        logs.shell(
            [
                ("export HIP_VISIBLE_DEVICES=0,1", ""),
                (BW, bandwidth((8, 1.0), (large, 142000.0))),
                ("export HIP_VISIBLE_DEVICES=0,6", ""),
                (BW, bandwidth((large, 76000.0))),
                (BW, bandwidth((large, 78000.0))),
                ("HIP_VISIBLE_DEVICES=1,6 " + BW, bandwidth((large, 36000.0))),
                ("export HSA_ENABLE_SDMA=0", ""),
                ("setenv HIP_VISIBLE_DEVICES 0,1", ""),
                (BW, bandwidth((large, 50000.0))),
                ("export HIP_VISIBLE_DEVICES=0,6", ""),
                (BW, bandwidth((large, 49000.0))),
                ("srun -N 2 -n 2 ./mpi/pt2pt/osu_bw D D", bandwidth((large, 24000.0))),
                ("unset HIP_VISIBLE_DEVICES", ""),
                (BW, bandwidth((large, 1000.0))),
                ("export HIP_VISIBLE_DEVICES=0,1,2,3", ""),
                (BW, bandwidth((large, 2000.0))),
            ]
        ),
    )
    assert document.notes == []
    (topology,) = document.topologies
    by_kernel, by_engine = topology.matrices[1], topology.matrices[0]
    assert by_engine.title == "bw by pairs of GPUs, 16 MiB, D H" and by_engine.unit == "GB/s"
    assert by_kernel.title == "bw by pairs of GPUs, 16 MiB, D H, HSA_ENABLE_SDMA=0"
    assert (by_engine.rows, by_engine.columns) == (("GPU 0", "GPU 1"), ("GPU 1", "GPU 6"))
    assert [[cell.value for cell in row] for row in by_engine.cells] == [[142, 77], [None, 36]]
    assert by_engine.cells[1][0].why_missing == "the same GPU"
    assert [[cell.value for cell in row] for row in by_kernel.cells] == [[50, 49]]
    assert [one.mode for one in document.series if one.pair is None] == ["", "", ""]
    assert document.series[0].mode == "GPUs 0 and 1"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("srun -N 2 -n 8 --ntasks-per-node=4 {}", (8, 2)),
        ("$srun --nodes=2 --ntasks-per-node 4 {}", (8, 2)),
        ("flux run -N2 -n8 {}", (8, 2)),
        ("mpirun -np 8 -N 4 {}", (8, 2)),
        ("mpirun -np 8 --map-by ppr:4:node {}", (8, 2)),
        ("mpiexec -n 8 -ppn 3 {}", (8, 3)),
        ("time mpiexec.hydra -n 8 {}", (8, None)),
        ("jsrun -n 2 -a 4 {}", (None, None)),
        ("srun -N 2 -n 8 ./osu_bcast -m 128 -N 4", (None, None)),
        ("srun --ntasks=8x -N 1-2 {}", (None, None)),
    ],
)
def test_the_command_tells_ranks_and_nodes(tmp_path: Path, command: str, told: tuple[int | None, int | None]) -> None:
    table = logs.osu("7.0", ROWS, title="Allreduce Latency")
    document = read_text(tmp_path, logs.shell([(command.format("./osu_allreduce -m 128"), table)]))
    assert [(one.ranks, one.nodes) for one in document.series] == [told]


def test_ranks_and_nodes_name_the_curves(tmp_path: Path) -> None:
    runs = [(f"srun -N {nodes} -n 8 ./osu_allreduce", nodes) for nodes in (2, 1)]
    text = logs.shell([(typed, logs.osu("7.0", ROWS, title="Allreduce Latency")) for typed, _ in runs])
    (picture,) = curves.pictures(read_text(tmp_path, text).series)
    assert picture.title == "Allreduce, 8 ranks"
    assert [line.label for line in picture.lines] == ["run, 2 nodes", "run, 1 node"]
    between = read_text(tmp_path, logs.shell([("srun -N 2 -n 2 ./osu_bw D D", logs.osu("7.0", ROWS))])).series
    assert between[0].test == "latency", "the command names another test"
    bandwidth = logs.osu("7.0", ROWS, title="Bandwidth", bandwidth=True)
    (picture,) = curves.pictures(read_text(tmp_path, logs.shell([("srun -N 2 -n 2 ./osu_bw D D", bandwidth)])).series)
    assert picture.title == "Bandwidth between nodes, 2 ranks on 2 nodes"


def test_a_setting_in_another_block_of_a_page_is_not_taken_to_hold(tmp_path: Path) -> None:
    """Slides as text: the settings stand in blocks of their own, before or behind the runs that had them."""

    def runs(*rates: float) -> str:
        commands = [
            (f"export HIP_VISIBLE_DEVICES=0,{gpu}", "") if typed else (BW, table)
            for gpu, rate in enumerate(rates, 1)
            for table in [logs.osu("7.0", [(1 << 24, rate)], title="Bandwidth", bandwidth=True)]
            for typed in (True, False)
        ]
        return f"```\n{logs.shell(commands)}```\n4 ranks on node 0\n"

    setting = "```\n$export HSA_ENABLE_SDMA=0\n```\n"
    document = read_text(tmp_path, runs(142000.0, 38000.0) + setting + runs(50000.0, 36000.0))
    titles = [matrix.title for matrix in document.topologies[0].matrices]
    assert titles == ["bw by pairs of GPUs, 16 MiB, D H", "bw by pairs of GPUs, 16 MiB, D H, series 2"]
    assert [[cell.value for cell in matrix.cells[0]] for matrix in document.topologies[0].matrices] == [
        [142, 38],
        [50, 36],
    ]
    (note,) = document.notes
    assert "HSA_ENABLE_SDMA=0 is set in a block without a test" in note
    # Each run in a block of its own: the pairs differ, so that they make one matrix.
    apart = read_text(tmp_path, runs(142000.0) + runs(50000.0).replace("=0,1", "=0,2"))
    assert [[cell.value for cell in row] for row in apart.topologies[0].matrices[0].cells] == [[142, 50]]


def test_osu_latencies_of_pairs_are_compared_at_the_smallest_size(tmp_path: Path) -> None:
    exports = [("export CUDA_VISIBLE_DEVICES=2,3", 3.0), ("export CUDA_VISIBLE_DEVICES=2,4", 4.0)]
    document = read_text(
        tmp_path, logs.shell([(typed, logs.osu("7.4", [(1, value), (2, 9.0)])) for typed, value in exports])
    )
    (matrix,) = document.topologies[0].matrices
    assert (matrix.title, matrix.unit, matrix.less_is_better) == ("latency by pairs of GPUs, 1 B", "µs", True)
    assert [[cell.value for cell in row] for row in matrix.cells] == [[3, 4]]


def test_one_pair_and_collectives_make_no_matrix(tmp_path: Path) -> None:
    one_pair = [("export CUDA_VISIBLE_DEVICES=0,1", logs.osu("7.4", ROWS))]
    assert read_text(tmp_path, logs.shell(one_pair)).topologies == []
    collectives = [
        (f"CUDA_VISIBLE_DEVICES=0,{gpu} osu_bcast", logs.osu("7.4", ROWS, title="Broadcast")) for gpu in (1, 2)
    ]
    document = read_text(tmp_path, logs.shell(collectives))
    assert document.topologies == [] and [one.mode for one in document.series] == ["", ""]


def test_osu_names_of_columns_without_their_mark(tmp_path: Path) -> None:
    """As 7.0 prints them for ibarrier."""
    text = """
# OSU MPI Non-blocking Barrier Latency Test v7.0
# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait

       Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)
             11.50              1.46              1.34              0.00
"""
    document = read_text(tmp_path, text)
    assert (document.series[0].test, figures(document)) == ("ibarrier", [(0, 11.5)])


def test_osu_init_tells_the_ranks_and_its_words_may_be_no_numbers(tmp_path: Path) -> None:
    text = "# OSU MPI Init Test v7.4\nnprocs: {}, min: {} ms, max: 210.00 ms, avg: 205.50 ms\n"
    (series,) = read_text(tmp_path, text.format(4, "200.00")).series
    assert (series.test, series.ranks, series.points[0].value) == ("init", 4, 205500.0)
    assert (series.points[0].low, series.points[0].high) == (200000.0, 210000.0)
    for bad in ("1.2.3", ".", "9" * 400):
        with pytest.raises(ReadError, match="not times: the row is left out"):
            read_text(tmp_path, text.format(4, bad))


def test_osu_failed_validation_is_an_error(tmp_path: Path) -> None:
    text = "# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)        Validation\n1  1.00  Pass\n2  1.00  Fail\n"
    document = read_text(tmp_path, text)
    assert [point.errors for point in document.series[0].points] == [0, 1]
    assert document.series[0].failed


# --------------------------------------------------------------------------------------------------- nccl-tests and IMB


@pytest.mark.parametrize("per_iteration", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_nccl_tests(tmp_path: Path, old: bool, per_iteration: bool) -> None:
    rows = [(8, 12.5), (1048576, 25.75)]
    document = read_text(tmp_path, logs.nccl_tests("all_reduce_perf", rows, old=old, per_iteration=per_iteration))
    out_of_place, in_place = document.series
    assert (out_of_place.test, out_of_place.ranks, out_of_place.implementation) == ("allreduce", 2, "xccl")
    assert (out_of_place.mode, in_place.mode) == ("queued", "queued, in place")
    assert figures(document) == rows
    assert figures(document, 1) == [(size, 2 * value) for size, value in rows]
    assert document.manifest["gpus"] == "NVIDIA H200"


@QUICK
@given(table=tables, ranks=st.integers(1, 16))
def test_nccl_tables_of_any_figures(tmp_path: Path, table: list[tuple[int, float]], ranks: int) -> None:
    small = [(size, value) for size, value in table if value < 9999]
    if small:
        document = read_text(tmp_path, logs.nccl_tests("broadcast_perf", small, ranks=ranks))
        assert document.series[0].ranks == ranks
        assert figures(document) == [(size, round(value, 6)) for size, value in small]


def test_nccl_sizes_of_gathers_are_per_rank(tmp_path: Path) -> None:
    assert figures(read_text(tmp_path, logs.nccl_tests("all_gather_perf", [(4096, 5.0)], ranks=4))) == [(1024, 5.0)]
    assert figures(read_text(tmp_path, logs.nccl_tests("reduce_scatter_perf", [(4096, 5.0)], ranks=4))) == [(4096, 5.0)]


def test_nccl_wrong_values_are_errors(tmp_path: Path) -> None:
    document = read_text(tmp_path, logs.nccl_tests("all_reduce_perf", [(8, 5.0)], wrong=3))
    assert document.series[0].points[0].errors == 3


FIRST_ROWS = [(8, 100.0), (1048576, 553.0)]


def test_the_first_nccl_tests_print_milliseconds(tmp_path: Path) -> None:
    document = read_text(tmp_path, logs.first_nccl_tests(FIRST_ROWS, program="all_reduce_perf", difference=4e-7))
    out_of_place, in_place = document.series
    assert (out_of_place.test, out_of_place.ranks, out_of_place.implementation) == ("allreduce", 2, "xccl")
    assert (out_of_place.type, out_of_place.buffers, in_place.mode) == ("float", "D", "queued, in place")
    assert figures(document) == FIRST_ROWS
    assert figures(document, 1) == [(size, 2 * value) for size, value in FIRST_ROWS]
    assert not out_of_place.failed and document.notes == []
    assert document.manifest["nccl_tests"] == "nccl-tests compiled with NCCL 2.1"


def test_a_log_of_nccl_tests_may_not_name_its_program(tmp_path: Path) -> None:
    document = read_text(tmp_path, logs.first_nccl_tests(FIRST_ROWS))
    assert [series.test for series in document.series] == ["unknown", "unknown"]


@pytest.mark.parametrize(
    ("difference", "failed", "wrong"), [(1.0, 4, [1, 1]), (1.0, 0, [0, 0]), (1e-5, 4, [0, 0]), (2e-5, 4, [1, 1])]
)
def test_the_check_of_the_first_nccl_tests_is_that_of_the_run(
    tmp_path: Path, difference: float, failed: int, wrong: list[int]
) -> None:
    """Rows have the difference from the right value alone, and floats may differ by 1e-5 for each rank but one."""
    document = read_text(tmp_path, logs.first_nccl_tests(FIRST_ROWS, difference=difference, failed=failed))
    assert [[point.errors for point in series.points] for series in document.series] == [wrong, wrong]


def test_nccl_ranks_are_not_known_where_a_process_lists_fewer_than_it_has(tmp_path: Path) -> None:
    assert read_text(tmp_path, logs.first_nccl_tests(FIRST_ROWS, listed=2, gpus=8)).series[0].ranks is None
    assert read_text(tmp_path, logs.first_nccl_tests(FIRST_ROWS, listed=8, gpus=4)).series[0].ranks == 8


def test_nccl_ranks_are_not_known_where_some_are_not_listed(tmp_path: Path) -> None:
    lines = logs.nccl_tests("all_reduce_perf", [(8, 5.0)], ranks=9).splitlines()
    some = [line for line in lines if not re.match(r"#  Rank +[2-7] ", line)]
    assert len(some) == len(lines) - 6
    assert read_text(tmp_path, "\n".join(lines) + "\n").series[0].ranks == 9
    assert read_text(tmp_path, "\n".join(some) + "\n").series[0].ranks is None


def test_nccl_runs_that_know_nothing_of_each_other_are_named(tmp_path: Path) -> None:
    lines = logs.nccl_tests("all_reduce_perf", [(8, 5.0)], ranks=1).splitlines()
    at = next(index for index, line in enumerate(lines) if "Rank  0" in line)
    document = read_text(tmp_path, "\n".join([*lines[: at + 1], *lines[at:]]) + "\n")
    assert document.series[0].ranks == 1
    (note,) = document.notes
    assert "rank 0 appears twice" in note


def test_nccl_columns_begin_a_table(tmp_path: Path) -> None:
    """Of milliseconds here, below one of microseconds."""
    old = logs.first_nccl_tests([(8, 100.0)])
    names = next(line for line in old.splitlines() if line.split()[:2] == ["#", "bytes"])
    document = read_text(
        tmp_path, logs.nccl_tests("all_reduce_perf", [(8, 5.0)]) + f"{names}\n" + old.splitlines()[-4] + "\n"
    )
    assert [one.test for one in document.series] == ["allreduce"] * 4
    assert [figures(document, index) for index in range(4)] == [[(8, value)] for value in (5.0, 10.0, 100.0, 200.0)]


def test_nccl_halves_that_were_not_run_are_no_remark(tmp_path: Path) -> None:
    lines = logs.nccl_tests("all_reduce_perf", [(8, 5.0)]).splitlines()
    row = next(index for index, line in enumerate(lines) if line.startswith("           8"))
    lines[row] = " ".join([*lines[row].split()[:9], "N/A", "N/A", "N/A", "N/A"])
    (series,) = read_text(tmp_path, "\n".join(lines) + "\n").series
    assert (series.mode, series.points[0].value) == ("queued", 5.0)


def test_nccl_in_place_alone(tmp_path: Path) -> None:
    lines = logs.nccl_tests("all_reduce_perf", [(8, 5.0)]).splitlines()
    row = next(index for index, line in enumerate(lines) if line.startswith("           8"))
    words = lines[row].split()
    lines[row] = " ".join(words[:5]) + " " * 32 + "  ".join(words[9:])
    (series,) = read_text(tmp_path, "\n".join(lines) + "\n").series
    assert (series.mode, series.points[0].value) == ("queued, in place", 10.0)


def test_nccl_json(tmp_path: Path) -> None:
    half = {"time": 12.5, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0}
    value = {
        "args": ["./all_reduce_perf", "-b", "8"],
        "nccl_version": 22807,
        "config": {"devices": [{"rank": 0}, {"rank": 1}], "blocking_collectives": "false"},
        "results": [{"size": 8, "type": "float", "out_of_place": None, "in_place": half}],
    }
    (series,) = read_text(tmp_path, json.dumps(value), "a.json").series
    assert (series.test, series.ranks, series.mode) == ("allreduce", 2, "queued, in place")
    assert series.points[0].value == 12.5


@pytest.mark.parametrize(
    ("listed", "threads", "gpus", "ranks"),
    [
        ([0], 1, 8, 8),  # all_gather_perf -g 8
        ([0, 8], 2, 4, 16),  # two processes of two threads with four GPUs each
        ([0, 1, 2], 1, 1, 3),
        ([0, 1, 2, 3], 1, 2, 4),  # were it mended there: all GPUs of two processes
    ],
)
def test_nccl_json_lists_the_first_gpu_of_each_process(
    tmp_path: Path, listed: list[int], threads: int, gpus: int, ranks: int
) -> None:
    half = {"time": 12.5, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0}
    value = {
        "args": ["./all_gather_perf"],
        "nccl_version": 22807,
        "config": {"nthreads": threads, "ngpus": gpus, "devices": [{"rank": rank} for rank in listed]},
        "results": [{"size": 4800, "type": "float", "out_of_place": half}],
    }
    document = read_text(tmp_path, json.dumps(value), "a.json")
    assert document.series[0].ranks == ranks
    assert figures(document) == [(4800 // ranks, 12.5)]


def test_nccl_json_times_that_are_nan_are_left_out_and_named(tmp_path: Path) -> None:
    halves = [{"time": time, "alg_bw": "nan", "bus_bw": "nan", "nwrong": None} for time in ("nan", 12.5)]
    value = {
        "args": ["./all_reduce_perf"],
        "nccl_version": 22807,
        "config": {"nthreads": 1, "ngpus": 2, "devices": [{"rank": 0}]},
        "results": [{"size": 8 << index, "type": "float", "out_of_place": half} for index, half in enumerate(halves)],
    }
    document = read_text(tmp_path, json.dumps(value), "a.json")
    assert figures(document) == [(16, 12.5)]
    assert document.notes == [f"{tmp_path / 'a.json'}: 1 results whose time is nan are left out"]


def test_nccl_bands_are_found_by_the_names_of_their_columns(tmp_path: Path) -> None:
    """A column more, between those that older versions have."""
    text = logs.nccl_tests("all_reduce_perf", [(8, 5.0)], per_iteration=True)
    lines = [line.replace("#wrong", "#wrong  #bitdiff") for line in text.splitlines()]
    row = next(index for index, line in enumerate(lines) if line.startswith("           8"))
    words = lines[row].split()
    lines[row] = "  ".join([*words[:9], "77", *words[9:17], "77", *words[17:]])
    for series, time_us in zip(read_text(tmp_path, "\n".join(lines) + "\n").series, (5.0, 10.0)):
        (point,) = series.points
        assert (point.value, point.low, point.high) == (time_us, time_us / 2, time_us * 2)


@pytest.mark.parametrize(
    ("benchmark", "name", "expected"),
    [
        ("PingPong", "latency", [(1, 1.25), (1024, 2.5)]),
        ("Sendrecv", "sendrecv", [(1, 1.25), (1024, 2.5)]),
        ("Allreduce", "allreduce", [(1, 1.25), (1024, 2.5)]),
        ("Barrier", "barrier", [(0, 1.25)]),
        ("Uniband", "bw", [(1, 0.00125), (1024, 0.0025)]),
        ("Iallreduce", "iallreduce", [(1, 1.25), (1024, 2.5)]),
    ],
)
def test_imb(tmp_path: Path, benchmark: str, name: str, expected: list[tuple[int, float]]) -> None:
    rows = ROWS[:1] if benchmark == "Barrier" else ROWS[:2]
    document = read_text(tmp_path, logs.imb(benchmark, rows, ranks=2))
    (series,) = document.series
    assert (series.test, series.ranks) == (name, 2)
    found = figures(document)
    assert [size for size, _ in found] == [size for size, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-3)
    assert series.type == ("MPI_FLOAT" if benchmark in ("Allreduce", "Iallreduce") else "MPI_BYTE")
    assert bool(series.band) == (benchmark in ("Sendrecv", "Allreduce", "Barrier"))


@pytest.mark.parametrize("name", ["Sendrecv：", "# Sendrecv", "== Sendrecv ==", "sendrecv"])
def test_a_pasted_table_of_imb_is_known_by_its_columns(tmp_path: Path, name: str) -> None:
    text = logs.pasted(logs.imb("Sendrecv", ROWS), name) + logs.pasted(logs.imb("Exchange", ROWS[:2]), "Exchange：")
    document = read_text(tmp_path, "■ MPI result (excerpt)\n\n" + text)
    found = [(one.test, one.ranks, one.type, one.buffers) for one in document.series]
    assert found == [("sendrecv", None, "", ""), ("exchange", None, "", "")]
    assert figures(document) == ROWS and figures(document, 1) == ROWS[:2]
    assert document.notes == []


def test_a_pasted_table_of_imb_may_have_no_name(tmp_path: Path) -> None:
    document = read_text(tmp_path, logs.pasted(logs.imb("Allreduce", ROWS)) + logs.pasted(logs.imb("Bcast", ROWS)))
    assert [(one.test, one.ranks) for one in document.series] == [("unknown", None), ("unknown", None)]
    pingpong = read_text(tmp_path, logs.pasted(logs.imb("PingPong", ROWS), "PingPong"))
    assert [(one.test, one.ranks) for one in pingpong.series] == [("latency", 2)]


def test_the_list_of_benchmarks_names_no_table(tmp_path: Path) -> None:
    """A whole log names its benchmarks before their tables, too."""
    document = read_text(tmp_path, logs.imb("Allreduce", ROWS).replace("# Allreduce\n", "# Allreduce\n# Bcast\n"))
    assert [(one.test, one.ranks, one.type) for one in document.series] == [("allreduce", 2, "MPI_FLOAT")]


def test_remarks_behind_a_row_of_imb_are_no_part_of_it(tmp_path: Path) -> None:
    lines = logs.imb("Allreduce", ROWS).splitlines()
    row = next(index for index, line in enumerate(lines) if line.split()[:1] == ["1024"])
    remarked = "\n".join([*lines[:row], lines[row] + " ★←drops from here", *lines[row + 1 :]]) + "\n"
    assert figures(read_text(tmp_path, remarked)) == ROWS
    shifted = read_text(tmp_path, remarked.replace("★←drops", "12.5"))
    assert figures(shifted) == [ROWS[0], ROWS[2]] and "under 5 columns" in shifted.notes[0]


@pytest.mark.parametrize(("option", "letter"), [("device", "D"), ("host", "P"), ("CPU", "H"), ("other", "")])
def test_the_command_line_of_imb_may_tell_where_buffers_are(tmp_path: Path, option: str, letter: str) -> None:
    command = f"# /opt/bin/IMB-MPI1-GPU PingPong -mem_alloc_type {option} -npmin 2\n\n# List of"
    runs = [logs.imb(benchmark, ROWS).replace("# List of", command) for benchmark in ("PingPong", "Allreduce")]
    document = read_text(tmp_path, "".join(runs) + logs.imb("PingPong", ROWS))
    both = f"{letter} {letter}" if letter else ""
    assert [one.buffers for one in document.series] == [both, letter, ""]
    assert "-mem_alloc_type" in runs[0]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("memory", "buffers"), [("cuda", "D"), ("rocm", "D"), ("host", "H"), ("cuda-managed", "MD"), ("other", "")]
)
def test_ucc_perftest(tmp_path: Path, memory: str, buffers: str, full: bool) -> None:
    text = logs.ucc_perftest("Allreduce", ROWS, memory=memory, full=full)
    text += logs.ucc_perftest("Alltoall", ROWS[1:], in_place=True, full=full)
    one, other = read_text(tmp_path, text).series
    assert (one.test, one.implementation, one.ranks, one.type, one.buffers, one.mode) == (
        *("allreduce", "ucc", None, "float32", buffers, ""),
    )
    assert [(point.size_bytes, point.value) for point in one.points] == ROWS
    assert [point.low for point in one.points] == pytest.approx([value / 2 for _, value in ROWS], abs=0.01)
    assert [point.high for point in one.points] == [value * 2 for _, value in ROWS]
    # Versions count its size differently, so it is compared with no other program's.
    assert (other.test, other.mode, len(other.points)) == ("alltoall (size of ucc_perftest)", "in place", 2)


def test_what_a_log_of_ucc_does_not_tell_is_unknown(tmp_path: Path) -> None:
    (series,) = read_text(tmp_path, logs.ucc_perftest("Allreduce", ROWS, head=False)).series
    assert (series.test, series.buffers, series.type, series.ranks) == ("unknown", "", "", None)
    (barrier,) = read_text(tmp_path, logs.ucc_perftest("Barrier", [(0, 3.5)])).series
    assert (barrier.test, [(point.size_bytes, point.value) for point in barrier.points]) == ("barrier", [(0, 3.5)])


def test_rows_of_ucc_that_make_no_sense_are_named(tmp_path: Path) -> None:
    text = logs.ucc_perftest("Allreduce", ROWS)
    rows = "1 4 nan 1 1\n1 99999999999999999999 1 1 1\n1 4 1.0\nnode1: 4 1 1 1\n"
    document = read_text(tmp_path, text.replace("Total time", rows + "Total time"))
    assert figures(document) == ROWS
    assert [note.partition(": ")[2] for note in document.notes] == [
        "'nan' is not a time: the row is left out",
        "'99999999999999999999' is not a size: the row is left out",
        "3 values under 5 or 8 columns: the row is left out",
    ]


def test_imb_ways_of_calling_are_kept_apart(tmp_path: Path) -> None:
    """One-sided benchmarks have two tables below one title."""
    text = """# Benchmarking Unidir_Put
# #processes = 2
# ( 2 additional processes waiting in MPI_Barrier)
#---------------------------------------------------
#
#    MODE: AGGREGATE
#
       #bytes #repetitions      t[usec]   Mbytes/sec
         1024         1000         0.50      2048.00
#
#    MODE: NON-AGGREGATE
#
       #bytes #repetitions      t[usec]   Mbytes/sec
         1024          100         4.00       256.00
"""
    document = read_text(tmp_path, text)
    assert [(series.test, series.ranks, series.mode) for series in document.series] == [
        ("unidir_put", 2, "aggregate"),
        ("unidir_put", 2, "non-aggregate"),
    ]
    assert [figures(document, index) for index in range(2)] == [[(1024, 0.5)], [(1024, 4.0)]]


def test_imb_groups_are_kept_apart(tmp_path: Path) -> None:
    """With -multi 1 each group of ranks has a row of its own."""
    text = """# Benchmarking Multi-PingPong
# ( 2 groups of 2 processes each running simultaneous )
# Group  0:     0    1
# Group  1:     2    3
#---------------------------------------------------
 Group       #bytes #repetitions      t[usec]   Mbytes/sec
     0            8         1000         1.00         8.00
     1            8         1000         5.00         1.60

     0           16         1000         2.00         8.00
     1           16         1000         6.00         2.67
"""
    document = read_text(tmp_path, text)
    assert [(series.test, series.ranks, series.mode) for series in document.series] == [
        ("latency", 2, "several groups, group 0"),
        ("latency", 2, "several groups, group 1"),
    ]
    assert [figures(document, index) for index in range(2)] == [[(8, 1.0), (16, 2.0)], [(8, 5.0), (16, 6.0)]]


@QUICK
@given(table=tables, ranks=st.integers(2, 4096))
def test_imb_tables_of_any_figures(tmp_path: Path, table: list[tuple[int, float]], ranks: int) -> None:
    document = read_text(tmp_path, logs.imb("Bcast", table, ranks=ranks))
    assert document.series[0].ranks == ranks
    assert figures(document) == [(size, round(value, 6)) for size, value in table]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(logs.bench("latency", [logs.contender("awaken", [logs.measurement(8, 1.0)])])),
        logs.osu("7.4", [(8, 1.0)]).lstrip(),
    ],
)
def test_a_mark_of_utf8_is_no_part_of_the_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.txt").write_bytes(codecs.BOM_UTF8 + text.encode())
    assert figures(readers.read(tmp_path / "run.txt")) == [(8, 1.0)]


def test_ping_pong(tmp_path: Path) -> None:
    assert figures(read_text(tmp_path, logs.ping_pong([(8, 1.5), (1024, 2.25)]))) == [(8, 1.5), (1024, 2.25)]


def test_ping_pong_programs_of_one_log_stay_apart(tmp_path: Path) -> None:
    """By the command, or the tutorial's heading, or else by their number."""
    one, other = [(8, 1.5), (1024, 2.25)], [(8, 3.0), (1024, 4.0)]
    source = (
        'if(rank == 0) printf("Transfer size (B): %10li, Transfer Time (s): %15.9f, Bandwidth (GB/s): %15.9f\\n");\n'
    )
    page = f"CPU Version\n{source}Results\n{logs.ping_pong(one)}\nCUDA Staged Version\n{source}{logs.ping_pong(other)}"
    document = read_text(tmp_path, page)
    assert [series.mode for series in document.series] == ["CPU Version", "CUDA Staged Version"]
    assert (figures(document), figures(document, 1), document.notes) == (one, other, [])
    commands = [
        ("mpiexec -n 2 ./ping_pong_cpu", logs.ping_pong(one)),
        ("mpiexec -n 2 awaken exec build/ping_pong_gpu_aware --max-bytes 1K", logs.ping_pong(other[1:])),
    ]
    document = read_text(tmp_path, logs.shell(commands))
    assert [series.mode for series in document.series] == ["cpu", "gpu aware"]
    assert figures(document, 1) == other[1:]
    document = read_text(tmp_path, logs.ping_pong(one) + logs.ping_pong(other))
    assert [series.mode for series in document.series] == ["run 1", "run 2"]
    assert (figures(document), figures(document, 1)) == (one, other)


# ---------------------------------------------------------------------------------------------------------------- JSON


def test_bench_medians_bands_and_drift(tmp_path: Path) -> None:
    value = logs.bench("latency", [logs.contender("awaken", [logs.measurement(8, 10.0, drift=0.2)])])
    (series,) = read_text(tmp_path, json.dumps(value), "a.json").series
    (point,) = series.points
    assert (series.buffers, series.mode, series.ranks) == ("D D", "waited", 2)
    assert (point.value, point.low, point.high) == (10.0, 9.9, 10.1)
    assert len(point.drift) == 5
    assert point.drift[0] == pytest.approx(9.2, abs=0.02) and point.drift[-1] == pytest.approx(10.8, abs=0.02)


def test_bench_bandwidths_go_by_the_median(tmp_path: Path) -> None:
    one = logs.measurement(1000, 10.0)
    one["summary"]["mean_us"] = 20.0  # half as fast on average as by the median
    one["bandwidth_MBps"] = 1000 / 20.0
    (series,) = read_text(tmp_path, json.dumps(logs.bench("bw", [logs.contender("awaken", [one])])), "a.json").series
    (point,) = series.points
    assert series.quantity == BANDWIDTH
    assert point.value == pytest.approx(0.1)
    assert point.low is not None and point.high is not None and point.low < point.value < point.high


@pytest.mark.parametrize(
    ("manifest", "test", "expected", "mode"),
    [
        ({"rank_1": "node1: rank 1 on GPU 1"}, "latency", "latency", "waited"),
        ({"rank_1": "node2: rank 1 on GPU 0"}, "latency", "latency_between_nodes", "waited"),
        ({"rank_1": "node2: rank 1 on GPU 0"}, "allreduce", "allreduce", "waited"),
        ({"environment.AWAKEN_TEST_NODES": "2"}, "bw", "bw_between_nodes", "waited, nodes pretended"),
    ],
)
def test_bench_between_nodes_is_another_test(
    tmp_path: Path, manifest: dict[str, str], test: str, expected: str, mode: str
) -> None:
    found = logs.bench(test, [logs.contender("awaken", [logs.measurement(8, 5.0)])], manifest=manifest)
    (series,) = read_text(tmp_path, json.dumps(found)).series
    assert (series.test, series.mode) == (expected, mode)
    (picture,) = curves.pictures([series])
    assert ("(nodes pretended)" in picture.title) == ("nodes pretended" in mode)


def test_bench_says_why_a_contender_is_missing(tmp_path: Path) -> None:
    value = logs.bench("latency", [logs.contender("xccl", [], unavailable="there is no libnccl.so.2")])
    (series,) = read_text(tmp_path, json.dumps(value), "a.json").series
    assert (series.points, series.unavailable) == ((), "there is no libnccl.so.2")


@pytest.mark.parametrize("test", ["latency", "bw"])
def test_bench_intervals_that_are_none_are_left_out(tmp_path: Path, test: str) -> None:
    one = logs.measurement(8, 10.0)
    one["summary"]["median_95_us"] = [-1.0, 11.0]
    one["samples_us"] = [-5.0] * 100
    (series,) = read_text(tmp_path, json.dumps(logs.bench(test, [logs.contender("awaken", [one])])), "a.json").series
    (point,) = series.points
    assert (point.low, point.high, point.drift) == (None, None, ())


@pytest.mark.parametrize("median", [-1.0, 1e-320])
@pytest.mark.parametrize("test", ["latency", "bw"])
def test_bench_times_that_are_none_are_left_out(tmp_path: Path, test: str, median: float) -> None:
    one = logs.measurement(8, 10.0)
    one["summary"]["median_us"] = median
    one["average_us"] = median
    measured = [logs.measurement(4, 10.0), one]
    (series,) = read_text(tmp_path, json.dumps(logs.bench(test, [logs.contender("awaken", measured)])), "a.json").series
    assert [point.size_bytes for point in series.points] == [4]


def test_path_report(tmp_path: Path) -> None:
    value = logs.path_report([("MPI_Send", "direct", 3, 3000)], reason="no peer access")
    (report,) = read_text(tmp_path, json.dumps(value), "a.json").path_reports
    assert (report.rows[0].function, report.rows[0].path, report.rows[0].bytes) == ("MPI_Send", "direct", 3000)
    assert report.fallbacks == (("MPI_Send", "no peer access", 3),)
    assert report.copies == (("copies of the GPU runtime", 30, 9000), ("the CPU", 2, 80))
    del value["copies"]  # of an older version
    assert read_text(tmp_path, json.dumps(value), "b.json").path_reports[0].copies == ()


def test_doctor(tmp_path: Path) -> None:
    (doctor,) = read_text(tmp_path, json.dumps(logs.doctor()), "a.json").doctors
    assert (doctor.aware, doctor.transport["awaken"][0]) == ({"native": False, "awaken": True}, "direct")
    native, layered = doctor.conformance
    assert native.cells[("MPI_Send", "device")] == ("crash", "SIGSEGV at rank 0")
    assert layered.cells[("MPI_Win_create", "device")][0] == "refused"
    assert doctor.advice[0][1].startswith("mpiexec")


def test_doctor_with_members_missing(tmp_path: Path) -> None:
    whole = logs.doctor()
    for member in whole:
        if member not in ("schema", "version"):
            part = {name: value for name, value in whole.items() if name != member}
            assert read_text(tmp_path, json.dumps(part), "a.json").doctors
    assert read_text(tmp_path, '{"schema": "awaken-doctor", "version": 1}', "a.json").doctors


def test_topology(tmp_path: Path) -> None:
    document = read_text(tmp_path, json.dumps(logs.topology(3)), "a.json")
    (topology,) = document.topologies
    by_title = {matrix.title: matrix for matrix in topology.matrices}
    links = by_title["Links"]
    assert (links.cells[0][1].text, links.explanation) == ("NV18", "NV18: 18 links of NVSwitch")
    engine, kernel = (by_title[f"Copies by {method}: the GPU reads its peer"] for method in ("copy engine", "kernel"))
    assert engine.columns == ("host", "GPU 0", "GPU 1", "GPU 2") and engine.rows == ("GPU 0", "GPU 1", "GPU 2")
    assert (engine.cells[1][1].value, engine.cells[1][1].text) == (381.0, "85 %")
    assert (kernel.cells[0][3].value, kernel.cells[0][3].why_missing) == (None, "no peer access")
    assert by_title["Messages with Awaken"].cells[0][1].value == 370.0
    assert topology.warnings == ("ranks 0 and 1 share GPU 0",)
    assert dict(topology.facts)["summary"].startswith("Copies by copy engine")
    assert dict(topology.facts)["all GPUs to all, copy engine"] == "1900 GB/s together"
    assert not any("GPU 0 to all" in name for name, _ in topology.facts)
    (curve,) = document.series
    assert (curve.test, curve.points[0].value, curve.mode) == ("bw_between_nodes", 0.01, "nodes pretended")


@pytest.mark.parametrize(
    ("between", "host", "settings", "name"),
    [
        ("SDMA engines", "SDMA engines", [], "SDMA engines"),
        ("kernels of the runtime", "kernels of the runtime", ["A=0"], "kernels of the runtime (A=0)"),
        ("K", "SDMA engines", ["A=0", "B=0"], "K between GPUs and SDMA engines with the host (A=0, B=0)"),
    ],
)
def test_topology_names_the_engine_that_was_used(
    tmp_path: Path, between: str, host: str, settings: list[str], name: str
) -> None:
    found = logs.topology(2)
    found["raw"]["copy_engine"] = {"between_gpus": between, "with_host": host, "settings": settings}
    (topology,) = read_text(tmp_path, json.dumps(found), "a.json", "before the update").topologies
    titles = [matrix.title for matrix in topology.matrices]
    assert (
        f"Copies by {name}: the GPU reads its peer" in titles and "Copies by kernel: the GPU reads its peer" in titles
    )
    assert not any("copy engine" in title for title in titles)
    assert dict(topology.facts)["summary"].startswith(f"Copies by {name}")
    assert topology.source == "before the update"


def test_topology_with_members_missing(tmp_path: Path) -> None:
    whole = logs.topology(2)
    for member in whole:
        if member not in ("schema", "version"):
            part = {name: value for name, value in whole.items() if name != member}
            assert read_text(tmp_path, json.dumps(part), "a.json").topologies
    assert read_text(tmp_path, '{"schema": "awaken-topology", "version": 1}', "a.json").topologies


def test_topology_without_gpus_or_rates_has_no_matrix_and_no_curve(tmp_path: Path) -> None:
    whole = {**logs.topology(2), "gpus": []}
    whole["between_nodes"]["points"] = [{"bytes": 8, "bandwidth_MBps": -1.0}]
    document = read_text(tmp_path, json.dumps(whole), "a.json")
    assert document.topologies[0].matrices == () and document.series == []


def test_topology_of_more_gpus_than_a_page_can_show(tmp_path: Path) -> None:
    whole = {**logs.topology(2), "gpus": [{"gpu": gpu} for gpu in range(5000)]}
    document = read_text(tmp_path, json.dumps(whole), "a.json")
    assert all(len(matrix.rows) == 64 for matrix in document.topologies[0].matrices)
    assert "of 5000 GPUs" in document.notes[0]


def test_trace_with_complete_and_with_paired_events(tmp_path: Path) -> None:
    value = logs.trace([(0, "MPI_Send", "direct", 100.0, 5.0), (1, "MPI_Recv", "direct", 101.0, 7.0)])
    value["traceEvents"] += [
        {"ph": "B", "pid": 0, "tid": 0, "name": "compute", "ts": 110},
        {"ph": "E", "pid": 0, "tid": 0, "ts": 125},
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "rank 0 on node1"}},
        {
            "ph": "b",
            "pid": 1,
            "cat": "operation",
            "id": "1.7",
            "name": "MPI_Isend",
            "ts": 120,
            "args": {"path": "staged"},
        },
        {"ph": "e", "pid": 1, "cat": "operation", "id": "1.7", "name": "MPI_Isend", "ts": 122},
    ]
    (line,) = read_text(tmp_path, json.dumps(value), "a.json").timelines
    assert line.lanes == ("rank 0 on node1", "rank 1, thread 0", "rank 1, operations")
    assert [(span.name, span.start_us, span.duration_us) for span in line.spans] == [
        ("MPI_Send", 0.0, 5.0),
        ("MPI_Recv", 1.0, 7.0),
        ("compute", 10.0, 15.0),
        ("MPI_Isend", 20.0, 2.0),
    ]
    assert [span.category for span in line.spans] == ["direct", "direct", "", "staged"]
    (as_list,) = read_text(tmp_path, json.dumps(value["traceEvents"]), "b.json").timelines
    assert as_list.spans == line.spans


def test_a_trace_of_awakens_shows_the_application(tmp_path: Path) -> None:
    events = [
        (0, "MPI_Init_thread", "native", 0.0, 900.0),
        (0, "copy", "", 500.0, 10.0),
        (1, "MPI_Init_thread", "native", 0.0, 1000.0),
        (0, "MPI_Barrier", "native", 950.0, 60.0),
        (0, "MPI_Send", "direct", 1010.0, 5.0),
        (0, "smallest blocks", "", 1100.0, 100.0),
        (0, "MPI_Isend", "direct", 1120.0, 10.0),
        (1, "MPI_Recv", "direct", 1150.0, 10.0),
        (0, "stencil", "", 1300.0, 10.0),
    ]
    value = {**logs.trace(events), "awakenTrace": {"version": 1}}
    (line,) = read_text(tmp_path, json.dumps(value), "a.json").timelines
    assert [(span.name, span.start_us) for span in line.spans] == [
        ("MPI_Send", 0.0),
        ("MPI_Recv", 140.0),
        ("stencil", 290.0),
    ]
    assert "MPI_Init_thread (1 ms) and what went on meanwhile are left out" in line.note
    assert "2 events of" in line.note and "Kernels of the program are not shown" in line.note
    assert "Kernels of the program" in html_page.page(from_files([str(tmp_path / "a.json")], ""))
    del value["awakenTrace"]
    (foreign,) = read_text(tmp_path, json.dumps(value), "a.json").timelines
    assert (len(foreign.spans), foreign.note) == (len(events), "")
    alone = {**logs.trace(events[:2]), "awakenTrace": {"version": 1}}
    (line,) = read_text(tmp_path, json.dumps(alone), "a.json").timelines
    assert len(line.spans) == 2, "there is nothing else to show"


def test_trace_lanes_of_one_name_stay_apart(tmp_path: Path) -> None:
    """Two processes that are called alike, and two threads of one of them."""
    value = logs.trace([(12, "a", "", 0.0, 1.0), (13, "b", "", 1.0, 1.0)])
    value["traceEvents"] += [
        {"ph": "X", "pid": 13, "tid": 1, "name": "c", "ts": 2, "dur": 1},
        *({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": "python"}} for pid in (12, 13)),
        *({"ph": "M", "pid": 13, "tid": tid, "name": "thread_name", "args": {"name": "worker"}} for tid in (0, 1)),
    ]
    (line,) = read_text(tmp_path, json.dumps(value), "a.json").timelines
    assert line.lanes == ("12: python", "13: python, 0: worker", "13: python, 1: worker")
    assert [(span.name, span.lane) for span in line.spans] == [("a", 0), ("b", 1), ("c", 2)]


# ------------------------------------------------------------------------------------------------------ what is no log


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"just words\n", "no kind of result"),
        (b"\x7fELF\0\0\0" * 100, "not text"),
        (b"# OSU MPI Latency Test v7.4\n", "no row"),
        (b'{"schema": "awaken-bench", "version": 1, "runs": [', "not JSON"),
        (b'{"schema": "awaken-bench", "version": 2}', "version 2"),
        (b'{"schema": "other"}', "other"),
        (b"[]", "schema"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"schema": "awaken-bench", "version": 1, "runs": 5}', "runs: is not a list"),
        (b'{"schema": "awaken-bench", "version": 1, "runs": [{"test": "bw", "ranks": NaN}]}', "NaN"),
        (b'{"schema": "awaken-bench", "version": 1, "runs": [{"ranks": 1e999, "contenders": [{}]}]}', "runs[0].ranks"),
        (b'{"a": ' + b"[" * 100_000, "nested"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "run.log"
    file.write_bytes(content)
    with pytest.raises(ReadError) as error:
        readers.read(file)
    text = str(error.value)
    assert str(file) in text and words in text, text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (
            "just\x1b[31m words\n# one\n\n",
            r"of its lines 1 are other text, 1 are comments; line 1 is 'just\x1b[31m words'",
        ),
        (
            "# OSU MPI Latency Test v7.4\n8; 1.00\n",
            "of its lines 1 are other text, 1 are comments; line 2 is '8; 1.00'",
        ),
        (
            "words\n# OSU MPI Latency Test v7.4\n8 1.00\n9 1.00\n",
            "of its lines 2 begin with a number, 1 are other text, 1 are comments; line 3 is '8 1.00'",
        ),
        ("\n\n", "it is blank"),
    ],
)
def test_a_refusal_says_what_was_seen(tmp_path: Path, content: str, seen: str) -> None:
    with pytest.raises(ReadError) as error:
        read_text(tmp_path, content)
    assert seen in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ReadError, match=str(path)):
            readers.read(path)


def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    pipe, sparse = tmp_path / "pipe", tmp_path / "sparse"
    os.mkfifo(pipe)
    sparse.touch()
    os.truncate(sparse, 1 << 30)
    for path, why in (
        (pipe, "it is a pipe, not a regular file: write its output to a file first"),
        (Path("/dev/zero"), "it is a device, not a regular file: name a file"),
        (sparse, f"it has {1 << 30} bytes, more than "),
    ):
        with pytest.raises(ReadError, match=f"{path}: {why}"):
            readers.read(path)


@pytest.mark.parametrize("bad", ["nan", "-nan", "inf", "1e999", "-5.00", "9" * 400, "0x10", "１２", "<b>5</b>"])
def test_rows_with_numbers_that_are_none_are_left_out_and_named(tmp_path: Path, bad: str) -> None:
    text = logs.osu("7.4", [(1, 1.0)]) + f"2     {bad}\n{bad}     2.00\n4     4.00\n"
    document = read_text(tmp_path, text)
    assert figures(document) == [(1, 1.0), (4, 4.0)]
    assert document.notes and f"{tmp_path / 'run.log'}:6: " in document.notes[0]


def test_a_truncated_log_loses_its_last_line_only(tmp_path: Path) -> None:
    whole = logs.osu("7.4", [(1, 1.0), (2, 22.25)])
    document = read_text(tmp_path, whole[:-3])  # 22. is not 22.25
    assert figures(document) == [(1, 1.0)]
    assert "ends within this line" in document.notes[0]


@pytest.mark.parametrize("lines", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_million_lines_take_little_page(tmp_path: Path, lines: int) -> None:
    rows = "8    1.00\n" * (lines // 2) + "8    nan\n" * (lines // 2)
    text = "# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)\n" + rows
    with harness.ended_when_it_hangs():
        document = read_text(tmp_path, text)
    assert len(document.series[0].points) <= readers.MOST_POINTS
    assert len(document.notes) < 30 and "left out" in document.notes[-1]


def test_lines_that_are_made_to_be_slow(tmp_path: Path) -> None:
    """Long lines and blank ones, on which a careless expression takes quadratic time: some minutes and more."""
    line = "# OSU " + "v1" * 4000 + "\n"
    with harness.ended_when_it_hangs(NOT_QUADRATIC_S):
        document = read_text(tmp_path, line * 500 + "\n" * 200_000 + "#\t" * 4000 + "\n" + logs.osu("7.4", ROWS))
    assert figures(document) == ROWS


@pytest.mark.parametrize(
    "line",
    [
        "# OSU " * 40_000,
        "size count type " * 20_000,
        "# size count " + "time " * 50_000,
        "nccl-tests version 1 " * 15_000,
        "# Rank 0 " + "device 0 [" * 30_000,
    ],
)
def test_one_line_that_is_made_to_be_slow(tmp_path: Path, line: str) -> None:
    """Of some 300 000 characters, before the log and, as many lines as a line may be long, within it."""
    within = "\n".join(line[:9000] for _ in range(30))
    with harness.ended_when_it_hangs(NOT_QUADRATIC_S):
        document = read_text(tmp_path, f"{line}\n{logs.nccl_tests('all_reduce_perf', [(8, 5.0)])}{within}\n")
        assert figures(document) == [(8, 5.0)]
        with pytest.raises(ReadError, match=r"no kind of result|no row"):
            read_text(tmp_path, f"{line}\n")


@QUICK
@given(
    content=st.binary(max_size=400),
    head=st.sampled_from([b"", b"# OSU MPI Latency Test v7.4\n# Size   Latency (us)\n", b"{", b"["]),
)
def test_no_bytes_end_in_anything_but_a_document_or_a_refusal(tmp_path: Path, content: bytes, head: bytes) -> None:
    file = tmp_path / "run.log"
    file.write_bytes(head + content)
    try:
        document = readers.read(file)
    except ReadError as error:
        assert str(file) in str(error)
    else:
        assert not document.empty


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_json_with_anything_in_any_place_ends_in_a_document_or_a_refusal(tmp_path: Path, data: st.DataObject) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(changed_json.changed(data)))
    try:
        readers.read(file)
    except ReadError as error:
        assert str(file) in str(error)


def test_names_lose_their_control_characters_and_their_length(tmp_path: Path) -> None:
    value = logs.bench("latency", [logs.contender("a\x1b[31m\nb\ud800" + "x" * 5000, [logs.measurement(8, 1.0)])])
    (series,) = read_text(tmp_path, json.dumps(value), "a.json").series
    assert series.implementation.isprintable() and len(series.implementation) <= 2000
