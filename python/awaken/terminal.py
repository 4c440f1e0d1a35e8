# SPDX-License-Identifier: Apache-2.0
"""What a terminal can do: colours, and lines of progress."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

COLOURS = {"bold": 1, "red": 31, "green": 32, "yellow": 33}
"""SGR parameters of ECMA-48."""


def rewrites_lines() -> bool:
    """Whether stderr is a terminal that can go back and erase a line."""
    return _obeys(sys.stderr)


def _obeys(stream: TextIO) -> bool:
    """Whether it is a terminal that obeys commands. TERM=dumb (Emacs, some CI) is one that prints them."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def painted(text: str, **patterns: str) -> str:
    """`text` for stdout, with what matches the regular expression of a colour in that colour. Unchanged where stdout is
    no terminal, and where NO_COLOR is set and not empty (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or not _obeys(sys.stdout):
        return text
    for colour, pattern in patterns.items():
        text = re.sub(pattern, rf"\033[{COLOURS[colour]}m\g<0>\033[0m", text, flags=re.MULTILINE)
    return text


def painted_report(text: str) -> str:
    """The text of a command that has headings, answers and warnings ("! ", "* ")."""
    return painted(
        text,
        bold=r"^.+(?=\n-+$)",
        red=r"\b(NO|THE DATA WERE WRONG|THIS GPU HAS NONE)\b",
        green=r"\byes\b",
        yellow=r"^[!*](?= )",
    )


def rewrite_line(text: str, end: str = "") -> None:
    """A line on stderr in the place of the one that the cursor is in. Nothing where rewrites_lines() is false."""
    if rewrites_lines():
        print(f"\r\033[K{text}", end=end, file=sys.stderr, flush=True)
