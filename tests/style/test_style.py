# SPDX-License-Identifier: Apache-2.0
"""The format of C++ and Python, and Python's types.

clang-tidy takes minutes and has a command of its own: `make lint`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("check", ["format", "ruff", "mypy"])
def test_style(check: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "lint.py", check],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=harness.HANG_S,
        check=False,
    )
    assert done.returncode == 0, f"`make format` corrects the format.\n{done.stdout}"
