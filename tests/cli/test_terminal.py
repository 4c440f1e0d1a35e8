# SPDX-License-Identifier: Apache-2.0
"""Colours."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from awaken import compare, terminal


@pytest.mark.parametrize(
    ("is_terminal", "variables", "colours"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    is_terminal: bool, variables: dict[str, str], colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = "MPI\n---\nthe MPI alone  NO. device: crash\nwith Awaken    yes.\n! rank 0\n"
    assert terminal.painted_report(text) == (
        "\033[1mMPI\033[0m\n---\nthe MPI alone  \033[31mNO\033[0m. device: crash\nwith Awaken    \033[32myes\033[0m.\n"
        "\033[33m!\033[0m rank 0\n"
        if colours
        else text
    )


def test_what_became_slower_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, time_us in (("old", 1.0), ("new", 2.0)):
        (tmp_path / f"{name}.log").write_text(f"# OSU MPI Latency Test v7.5\n# Size  Avg Latency(us)\n8  {time_us}\n")
    words = [str(tmp_path / "old.log"), str(tmp_path / "new.log")]
    for more, colours in (([], True), (["--json"], False), (["--markdown"], False)):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert compare.run([*words, *more]) == compare.WORSE_STATUS
        assert ("\033[31mworse\033[0m" in stream.getvalue()) == colours, stream.getvalue()
