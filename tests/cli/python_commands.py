# SPDX-License-Identifier: Apache-2.0
"""Runs commands of the Python package in this process: starting Python costs more than most of them take."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    status: int
    stdout: str
    stderr: str


def run(command: Callable[[Sequence[str]], int], *arguments: str | Path, status: int = 0) -> Done:
    """Calls a command's main function; asserts its exit status."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            ended = command([str(word) for word in arguments])
        except SystemExit as exit_:
            ended = exit_.code if isinstance(exit_.code, int) else 1
    assert ended == status, err.getvalue()
    return Done(ended, out.getvalue(), err.getvalue())
