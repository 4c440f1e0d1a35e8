# SPDX-License-Identifier: Apache-2.0
"""The programs of apps/ in a report: what one run of them printed about itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
    heading: str = ""
    """What its log calls the run: the page's section, what was loaded, the words before it."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The figures as the program printed them, by their titles."""


CHECKS = {
    True: "the results were checked and are right",
    False: "THE RESULTS WERE WRONG",
    None: "no result was checked",
}


def in_words(run: Application) -> str:
    """The problem and the outcome of the check, as a sentence or two."""
    return "; ".join(part for part in (run.problem, CHECKS[run.checked]) if part) + "."


def names(runs: Sequence[Application]) -> list[str]:
    """What each run is called beside the others: runs of one program by their headings, then files, then numbers."""
    programs = Counter(run.program for run in runs)
    several = [programs[run.program] > 1 for run in runs]
    found = [
        f"{run.program}: {run.heading}" if many and run.heading else run.program for run, many in zip(runs, several)
    ]
    sources = {name: {run.source for run, same in zip(runs, found) if same == name} for name in found}
    found = [f"{name}, {run.source}" if len(sources[name]) > 1 else name for name, run in zip(found, runs)]
    return [
        f"{name} ({found[: index + 1].count(name)})" if found[:index].count(name) else name
        for index, name in enumerate(found)
    ]
