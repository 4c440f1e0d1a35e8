# SPDX-License-Identifier: Apache-2.0
"""What a terminal can do with a line of progress."""

from __future__ import annotations

import os
import sys


def rewrites_lines() -> bool:
    """Whether stderr is a terminal that can go back and erase a line. TERM=dumb (Emacs, some CI) is one that prints
    the commands for it."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def rewrite_line(text: str, end: str = "") -> None:
    """A line on stderr in the place of the one that the cursor is in. Nothing where rewrites_lines() is false."""
    if rewrites_lines():
        print(f"\r\033[K{text}", end=end, file=sys.stderr, flush=True)
