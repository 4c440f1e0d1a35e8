# SPDX-License-Identifier: Apache-2.0
"""The programs of apps/ in a report: what one run of them printed about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Application:
    """One run of a program."""

    source: str
    """The file's label."""
    program: str
    problem: str
    """What was computed: sizes, ranks, ways."""
    figures: tuple[tuple[str, str], ...]
    """What was measured, and the value with its unit."""
    checked: bool | None = None
    """Whether all results were right; None where the program was not asked to check, or did not come to it."""


CHECKS = {
    True: "the results were checked and are right",
    False: "THE RESULTS WERE WRONG",
    None: "no result was checked",
}


def in_words(run: Application) -> str:
    """The problem and the outcome of the check, as a sentence or two."""
    return "; ".join(part for part in (run.problem, CHECKS[run.checked]) if part) + "."
