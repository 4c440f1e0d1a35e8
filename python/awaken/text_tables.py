# SPDX-License-Identifier: Apache-2.0
"""Tables of plain text, for terminals of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 80


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Lines of a table whose first `left` columns are flush left, the others flush right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return [
        "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]


def matrix(corner: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """A table that is split into several below each other where its columns do not fit."""
    first = max([len(corner), *(len(name) for name, _ in rows)])
    width = max([len(name) for name in columns] + [len(text) for _, texts in rows for text in texts] + [1])
    fitting = max(1, (WIDTH - first) // (width + 2))
    lines: list[str] = []
    for begin in range(0, len(columns), fitting):
        part = slice(begin, begin + fitting)
        if lines:
            lines.append("")
        for name, texts in ((corner, columns), *rows):
            lines.append((name.ljust(first) + "".join("  " + text.rjust(width) for text in texts[part])).rstrip())
    return lines


def facts(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Names and what is said of them, the latter wrapped."""
    width = max((len(name) for name, _ in pairs), default=0)
    lines: list[str] = []
    for name, text in pairs:
        wrapped = textwrap.wrap(text, max(30, WIDTH - width - 2), break_long_words=False, break_on_hyphens=False)
        lines += [(name if at == 0 else "").ljust(width) + "  " + part for at, part in enumerate(wrapped or ["-"])]
    return lines
