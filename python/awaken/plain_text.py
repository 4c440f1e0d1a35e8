# SPDX-License-Identifier: Apache-2.0
"""Text of others, for a terminal or a page."""

from __future__ import annotations

LONGEST_NAME = 200
LONGEST_MESSAGE = 2000


def clean(text: str, longest: int = LONGEST_NAME) -> str:
    """A name or a message in one line: control characters as \\xNN, cut off after `longest` characters."""
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text.strip()[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
