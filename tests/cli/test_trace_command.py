# SPDX-License-Identifier: Apache-2.0
"""`awaken trace`: joins, sums up and draws what ranks wrote, and believes nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import harness
import pytest
from awaken import svg, trace
from python_commands import ROOT, Done, run

SVG = "{http://www.w3.org/2000/svg}"


def awaken(*arguments: str | Path, status: int = 0) -> Done:
    return run(trace.run, *arguments, status=status)


def head(rank: int, ranks: int, **changes: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "rank": rank,
        "ranks": ranks,
        "process": 100 + rank,
        "host": "node",
        "mpi": "MPICH",
        "complete": True,
        "dropped": 0,
        "clock": {"shared": True, "offsets": []},
        **changes,
    }


def complete_event(
    rank: int, name: str, begin_us: float, length_us: float, cat: str = "mpi", **more: Any
) -> dict[str, Any]:
    arguments = {"path": "direct", "bytes": 8} if cat == "mpi" else {}
    event = {"name": name, "cat": cat, "ph": "X", "ts": begin_us, "dur": length_us, "pid": rank, "tid": 0}
    return {**event, "args": arguments, **more}


def text_of(description: dict[str, Any], events: list[dict[str, Any]]) -> str:
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{{"awakenTrace":{json.dumps(description)},"displayTimeUnit":"ns","traceEvents":[\n{lines}\n]}}\n'


def events_of(rank: int) -> list[dict[str, Any]]:
    """A stencil of 2 ms with a send of 0.5 ms (rank 0) or 0.7 ms (rank 1) after it, and a receive under way."""
    operation = {"name": "MPI_Irecv", "cat": "nonblocking", "id": f"{rank}.1", "pid": rank, "tid": 0}
    send_us = 500.0 if rank == 0 else 700.0
    return [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}},
        {"name": "thread_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": "thread 0"}},
        {"name": "thread_name", "ph": "M", "pid": rank, "tid": 1000000, "args": {"name": "GPU 0: copies"}},
        {**operation, "ph": "b", "ts": 100.0, "args": {"path": "ring", "bytes": 64}},
        complete_event(rank, "stencil", 1000, 2000, "range"),
        complete_event(rank, "MPI_Send", 3000, send_us),
        complete_event(rank, "MPI_Send", 4000, send_us),
        complete_event(rank, "copy", 3100, 50, "copy", tid=1000000),
        {**operation, "ph": "e", "ts": 5100.0},
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        (tmp_path / f"rank-{rank}.json").write_text(text_of(head(rank, 2), events_of(rank)))
    return tmp_path


def test_ranks_are_joined_once(folder: Path) -> None:
    done = awaken(folder)
    assert f"2 ranks joined in {folder}/trace.json" in done.stderr
    joined = json.loads((folder / "trace.json").read_text())
    assert joined["traceEvents"] == events_of(0) + events_of(1)
    assert joined["awakenTrace"] == {"version": 1, "ranks": 2, "merged": [head(0, 2), head(1, 2)]}
    before = (folder / "trace.json").read_bytes()
    assert "joined" not in awaken(folder).stderr
    assert (folder / "trace.json").read_bytes() == before
    # The joined file alone says the same.
    alone = awaken(folder / "trace.json")
    assert alone.stdout == done.stdout


def test_the_table_has_every_rank_and_all_of_them(folder: Path) -> None:
    out = awaken(folder).stdout
    over, first, second = out.split("\n\n")
    assert over.startswith("Wall clock over 2 ranks\n")
    assert first.startswith("rank 0 on node\n")
    assert second.rstrip().startswith("rank 1 on node\n")
    rows = {" ".join(line.split()) for line in over.splitlines()}
    assert "range stencil 2 0.004000000 0.002000000 0.002000000 0.002000000" in rows
    assert "MPI call MPI_Send direct 4 0.002400000 0.000600000 0.000500000 0.000700000" in rows
    assert "operation MPI_Irecv ring 2 0.010000000 0.005000000 0.005000000 0.005000000" in rows
    assert "GPU copy copy 2 0.000100000 0.000050000 0.000050000 0.000050000" in rows
    assert "MPI call MPI_Send direct 2 0.001400000 0.000700000 0.000700000 0.000700000" in {
        " ".join(line.split()) for line in second.splitlines()
    }
    # Ranges first; of a kind, what takes longest first.
    kinds = [line.split()[0] for line in over.splitlines()[2:]]
    assert kinds == ["range", "MPI", "operation", "GPU"]
    assert awaken(folder, "--table").stdout == out


def test_calls_shorter_than_a_microsecond_are_told(tmp_path: Path) -> None:
    calls = [complete_event(0, "MPI_Iprobe", begin_us, 0.077) for begin_us in (1.0, 2.0)]
    (tmp_path / "rank-0.json").write_text(text_of(head(0, 1), calls))
    assert "0.000000154  0.000000077  0.000000077  0.000000077" in awaken(tmp_path).stdout


def test_events_are_kept_for_the_picture_only(folder: Path) -> None:
    """A rank's file may hold a million; the table needs their sums."""
    job = trace.read(folder)
    assert [rank.events for rank in job.ranks] == [[], []]
    assert job.ranks[0].times["mpi", "MPI_Send"].count == 2
    assert [len(rank.events) for rank in trace.read(folder, keep=True).ranks] == [5, 5]


@pytest.mark.parametrize("whole_folder", [True, False])
def test_a_pipe_is_not_waited_for(tmp_path: Path, whole_folder: bool) -> None:
    os.mkfifo(tmp_path / "rank-0.json")
    done = awaken(tmp_path if whole_folder else tmp_path / "rank-0.json", status=2)
    assert "rank-0.json cannot be read: it is a pipe, not a regular file" in done.stderr


def test_a_device_and_a_line_without_end_are_refused(tmp_path: Path) -> None:
    assert "it is a device, not a regular file" in awaken("/dev/zero", status=2).stderr
    file = tmp_path / "rank-0.json"
    file.touch()
    os.truncate(file, 1 << 30)
    assert "more than 67108864 bytes" in awaken(file, status=2).stderr


def test_text_of_others_is_cut_and_sends_no_commands_to_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.json"
    name = "\x1b[2J" + "x" * 1000
    file.write_text(text_of(head(0, 1, host=name), [complete_event(0, name, 1.0, 1.0, "range")]))
    out = awaken(file).stdout
    assert "\\x1b[2Jx" in out and "\x1b" not in out
    assert max(map(len, out.splitlines())) < 200
    file.write_text(text_of(head(0, 1, version=name), []))
    error = awaken(file, status=2).stderr
    assert "\x1b" not in error and len(error) < 400 + len(str(file))


def test_a_folder_that_can_only_be_read_is_summed_up(folder: Path) -> None:
    """Another user's, or on a full disk: what files may not be longer than is the same."""
    table = awaken(folder).stdout
    (folder / "trace.json").unlink()
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 0; exec {sys.executable} -m awaken trace {folder}"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, table)
    assert done.stderr == (f"awaken: {folder}/trace.json cannot be written: File too large; the ranks are not joined\n")
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.json", "rank-1.json"]


def test_json_has_the_same_figures(folder: Path) -> None:
    report = json.loads(awaken(folder, "--json").stdout)
    assert (report["schema"], report["version"], report["remarks"]) == ("awaken-wall-clock", 1, [])
    (send,) = [row for row in report["over_ranks"] if row["name"] == "MPI_Send"]
    assert send["kind"] == "mpi"
    assert send["paths"] == ["direct"]
    assert (send["count"], send["bytes"]) == (4, 32)
    assert send["total_s"] == pytest.approx(2.4e-3)
    assert send["mean_s"] == pytest.approx(6e-4)
    assert (send["min_s"], send["max_s"]) == (pytest.approx(5e-4), pytest.approx(7e-4))
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert [rank["host"] for rank in report["ranks"]] == ["node", "node"]


def test_copies_say_by_what_they_were_done(folder: Path) -> None:
    copies = [complete_event(0, "copy", 6000, 10, "copy", args={"by": by, "bytes": 8}) for by in ("kernel", "engine")]
    (folder / "rank-0.json").write_text(text_of(head(0, 2), [*events_of(0), *copies]))
    (row,) = [row for row in json.loads(awaken(folder, "--json").stdout)["over_ranks"] if row["kind"] == "copy"]
    assert (row["name"], row["paths"], row["bytes"]) == ("copy", ["engine", "kernel"], 16)


def test_a_number_of_calls_that_nobody_has_made(folder: Path) -> None:
    polls = complete_event(0, "MPI_Test", 6000, 10, args={"calls": int("9" * 400), "bytes": int("9" * 400)})
    (folder / "rank-0.json").write_text(text_of(head(0, 2), [*events_of(0), polls]))
    (row,) = [row for row in json.loads(awaken(folder, "--json").stdout)["over_ranks"] if row["name"] == "MPI_Test"]
    assert (row["count"], row["mean_s"]) == (1, pytest.approx(1e-5))
    assert "MPI_Test" in awaken(folder).stdout


def test_what_is_missing_is_said(folder: Path) -> None:
    (folder / "rank-0.json").write_text(text_of(head(0, 4, dropped=17), events_of(0)))
    (folder / "rank-1.json").write_text(text_of(head(1, 4, complete=False), events_of(1)))
    err = awaken(folder).stderr
    assert "2 of 4 ranks are missing: 2, 3" in err
    assert "rank 0 lacks its last 17 events (AWAKEN_TRACE_LIMIT)" in err
    assert "rank 1 did not reach MPI_Finalize" in err
    assert len(json.loads(awaken(folder, "--json").stdout)["remarks"]) == 3


# ------------------------------------------------------------------------------------------------------------- picture


def rectangles(picture: Path) -> dict[str, list[ElementTree.Element]]:
    """Bars of the picture by what they show."""
    found: dict[str, list[ElementTree.Element]] = {}
    for box in ElementTree.parse(picture).getroot().iter(f"{SVG}rect"):
        title = box.find(f"{SVG}title")
        if title is not None and title.text:
            found.setdefault(title.text.split(":")[0], []).append(box)
    return found


def test_the_picture_shows_ranks_as_lanes(folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "timeline.svg"
    done = awaken(folder, "--picture", picture, "--title", 'a "stencil" & <more>')
    assert done.stdout == ""
    root = ElementTree.parse(picture).getroot()
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert 'a "stencil" & <more>' in texts
    assert {"rank 0", "rank 1", "in flight", "GPU 0: copies"} <= set(texts)
    assert texts.count("stencil") == 2 + 1, "on its two bars, and in the legend"
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert width <= 1000
    bars = rectangles(picture)
    assert {name: len(boxes) for name, boxes in bars.items()} == {
        "stencil": 2,
        "MPI_Send": 4,
        "MPI_Irecv": 2,
        "copy": 2,
    }
    for boxes in bars.values():
        for box in boxes:
            x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            assert x >= 0 and x + w <= width and y >= 0 and y + h <= height
    # Lengths are times: 2 ms beside 0.5 ms.
    stencil, send = bars["stencil"][0], bars["MPI_Send"][0]
    assert float(stencil.attrib["width"]) == pytest.approx(4 * float(send.attrib["width"]), rel=1e-2)
    # The text of a bar stands out from its colour.
    for text in root.iter(f"{SVG}text"):
        if text.text == "stencil" and text.attrib["font-size"] == "10":
            assert svg.contrast(text.attrib["fill"], stencil.attrib["fill"]) >= 4.5
    # What lies in another row does not lie at the same height.
    assert stencil.attrib["y"] != bars["MPI_Irecv"][0].attrib["y"]


def test_the_picture_begins_behind_the_start(tmp_path: Path) -> None:
    for rank, length_us in ((0, 400), (1, 1500)):
        start = complete_event(rank, "MPI_Init_thread", 0, length_us)
        (tmp_path / f"rank-{rank}.json").write_text(text_of(head(rank, 2), [start, *events_of(rank)]))
    picture = tmp_path / "timeline.svg"
    for words, starts in (([], 0), (["--kinds", "range,mpi"], 0), (["--window", "0:6"], 2)):
        awaken(tmp_path, "--picture", picture, *words)
        bars = rectangles(picture)
        assert (len(bars.get("MPI_Init_thread", [])), len(bars["MPI_Send"])) == (starts, 4)
        texts = [text.text for text in ElementTree.parse(picture).getroot().iter(f"{SVG}text")]
        left_out = "" if starts else " (MPI_Init is left out)"
        assert f"time since the start, ms{left_out}" in texts


def test_a_window_cuts_what_it_does_not_show(folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "timeline.svg"
    awaken(folder, "--picture", picture, "--window", "2.5:3.25", "--kinds", "range,mpi")
    bars = rectangles(picture)
    assert {name: len(boxes) for name, boxes in bars.items()} == {"stencil": 2, "MPI_Send": 2}
    assert float(bars["stencil"][0].attrib["width"]) == pytest.approx(
        2 * float(bars["MPI_Send"][0].attrib["width"]), rel=1e-2
    )


def test_many_short_calls_do_not_make_a_large_picture(tmp_path: Path) -> None:
    calls = [complete_event(0, "MPI_Test", index * 2, 1) for index in range(50_000)]
    (tmp_path / "rank-0.json").write_text(text_of(head(0, 1), calls))
    picture = tmp_path / "timeline.svg"
    awaken(tmp_path, "--picture", picture)
    assert len(rectangles(picture)["MPI_Test"]) < 2000
    assert picture.stat().st_size < 500_000


def test_an_empty_trace_can_be_drawn_and_summed_up(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_text(
        '{"awakenTrace":' + json.dumps(head(0, 1)) + ',"displayTimeUnit":"ns","traceEvents":[\n]}\n'
    )
    assert "Wall clock over 1 rank\n" in awaken(tmp_path).stdout
    awaken(tmp_path, "--picture", tmp_path / "empty.svg")
    ElementTree.parse(tmp_path / "empty.svg")


# ------------------------------------------------------------------------------------------------------- hostile files

GOOD = text_of(head(0, 1), events_of(0))


def changed(event: dict[str, Any]) -> str:
    return text_of(head(0, 1), [event])


HOSTILE = {
    "empty": ("", "line 1: it does not begin as one"),
    "not JSON": ("hello\n", "line 1: it does not begin as one"),
    "another format": ('{"traceEvents":[\n]}\n', "line 1: it does not begin as one"),
    "cut in the head": (GOOD[:50], "line 1"),
    "cut in a line": (GOOD[: GOOD.index("stencil")], "line 6"),
    "cut between lines": (GOOD[: GOOD.index("\n", GOOD.index("MPI_Send")) + 1], "it ends too early"),
    "more than a trace": (GOOD + "more\n", "something follows its end"),
    "without an end": (GOOD.removesuffix("\n]}\n"), "it ends too early"),
    "another version": (text_of(head(0, 1, version=2), []), "version 2 of the format is not known here"),
    "a rank that is text": (text_of({**head(0, 1), "rank": "0"}, []), "the rank is not a whole number"),
    "a negative rank": (text_of({**head(0, 1), "rank": -5}, []), "the rank is out of range"),
    "no host": (text_of(head(0, 1, host=None), []), "the host is not a text"),
    "a list": (
        GOOD.replace('{"name": "process_name"', '[{"name": "process_name"').replace("rank 0", "rank 0"),
        "line 2",
    ),
    "an event that is a number": (text_of(head(0, 1), []).replace("[\n\n]", "[\n17\n]"), "an event is not an object"),
    "another rank's event": (
        changed(complete_event(3, "MPI_Send", 0, 1)),
        "an event of pid 3, which is not a rank of this trace",
    ),
    "not a number": (changed(complete_event(0, "MPI_Send", float("nan"), 1)), "NaN is not a number"),
    "endless": (
        changed(complete_event(0, "MPI_Send", 0, 1)).replace('"ts": 0', '"ts": 1e999'),
        "the ts of an event is out of range",
    ),
    "a huge number": (
        changed(complete_event(0, "MPI_Send", 0, 1)).replace('"ts": 0', '"ts": 1' + "0" * 400),
        "out of range",
    ),
    "a time that is text": (changed(complete_event(0, "MPI_Send", 0, 1, ts="0")), "the ts of an event is not a number"),
    "a negative length": (changed(complete_event(0, "MPI_Send", 0, -1)), "an event ends before it begins"),
    "no name": (changed({**complete_event(0, "MPI_Send", 0, 1), "name": None}), "the name of an event is not a text"),
    "an unknown kind": (changed(complete_event(0, "MPI_Send", 0, 1, "spam")), "the unknown category 'spam'"),
    "an unknown phase": (changed(complete_event(0, "MPI_Send", 0, 1, ph="Q")), "the unknown phase 'Q'"),
    "an end without a begin": (text_of(head(0, 1), events_of(0)[-1:]), "operation 0.1 ends without a begin"),
    "a begin without an end": (text_of(head(0, 1), events_of(0)[:-1]), "operation 0.1 has no end"),
    "nested without end": (
        changed(complete_event(0, "MPI_Send", 0, 1)).replace('"args": {', '"args": ' + "[" * 100_000 + "{"),
        "line 2",
    ),
    "no ranks": (text_of({"version": 1, "merged": []}, []), "it names no ranks"),
    "a rank twice": (text_of({"version": 1, "merged": [head(0, 1), head(0, 1)]}, []), "rank 0 is there twice"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_is_no_trace_is_an_error(what: str, tmp_path: Path) -> None:
    text, complaint = HOSTILE[what]
    (tmp_path / "rank-0.json").write_text(text)
    done = awaken(tmp_path, "--picture", tmp_path / "timeline.svg", status=2)
    assert done.stderr.startswith(f"awaken: {tmp_path}/rank-0.json is not a trace of Awaken: ")
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.json"], "nothing is made of it"


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_bytes(GOOD.replace("stencil", "\udcff").encode(errors="surrogateescape"))
    assert "it is not UTF-8 text" in awaken(tmp_path, status=2).stderr


def test_names_cannot_break_the_table_or_the_picture(tmp_path: Path) -> None:
    name = "</text><script>alert(1)</script>\x1b[31m\n\u202e & \ud800"
    (tmp_path / "rank-0.json").write_text(text_of(head(0, 1, host="a\x1bb"), [complete_event(0, name, 0, 10, "range")]))
    out = awaken(tmp_path, "--picture", tmp_path / "timeline.svg", "--table").stdout
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert len(out.splitlines()) == 7
    root = ElementTree.parse(tmp_path / "timeline.svg").getroot()
    assert not list(root.iter(f"{SVG}script"))


def test_two_files_of_one_rank_are_an_error(folder: Path) -> None:
    (folder / "rank-1-4711.json").write_text((folder / "rank-1.json").read_text())
    assert "is of rank 1, as another file of the folder is" in awaken(folder, status=2).stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: FOLDER"),
        (["{folder}", "--window", "3:2", "--picture", "x.svg"], "write BEGIN:END in milliseconds"),
        (["{folder}", "--window", "1:2"], "are of --picture: name its file"),
        (["{folder}", "--picture", "x.svg", "--kinds", "spam"], "there is no kind 'spam'"),
        (["{folder}", "--json", "--table"], "not allowed with argument"),
        (["{folder}/missing"], "cannot be read"),
        (["{folder}", "--picture", "/nonexistent/x.svg"], "/nonexistent/x.svg cannot be written"),
    ],
)
def test_wrong_use_is_an_error(folder: Path, arguments: list[str], complaint: str) -> None:
    done = awaken(*(word.replace("{folder}", str(folder)) for word in arguments), status=2)
    assert complaint in done.stderr


def test_a_folder_without_a_trace_is_an_error(tmp_path: Path) -> None:
    assert f"{tmp_path} holds no trace" in awaken(tmp_path, status=2).stderr
