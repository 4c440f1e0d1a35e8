# SPDX-License-Identifier: Apache-2.0
"""How the table of waiting calls is made, which needs no GPU: what becomes of a process that ends by itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import waiting_calls

ATTEMPTS = 10
"""A process that has just ended may pass for a running one, so once shows little."""


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("exit 3", "it ends at once"),
        ("echo no driver >&2; exit 3", "no driver"),
        ("echo busy; exit 3", "it ends"),
        ("echo busy; echo 12; exit 0", "12"),
        ("echo cuMemAlloc failed; exit 0", "cuMemAlloc failed"),
        ("sleep 1000 & echo not now; exit 0", "not now"),
    ],
)
def test_a_process_that_has_ended_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, answer: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    for _ in range(ATTEMPTS):
        assert waiting_calls.judge("any", "kernel", "", seconds=60) == answer
