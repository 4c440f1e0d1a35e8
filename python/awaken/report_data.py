# SPDX-License-Identifier: Apache-2.0
"""What a report is made of, and the facts about the machine that all its files share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from awaken.readers.source import clean
from awaken.results import Document, Series

Part = TypeVar("Part")

SETTING = "environment."
"""Before the names of the environment's variables in a manifest."""
NO_SETTING = re.compile(
    r"_VISIBLE_DEVICES$|^LD_PRELOAD$|^AWAKEN_(REPORT|TRACE|LIBRARY|MPI|MODE)|jobid|nspace|session|tmpdir|uri|_ess_|vpid"
)
"""Variables that differ from job to job and say nothing about how it was measured: files, numbers of jobs. The GPUs
that a job saw name its pair."""

EACH_ITS_OWN = ("command", "date")
"""Of a manifest: true of one file only, even where there is but one."""


@dataclass
class Report:
    title: str
    version: str
    documents: list[Document]
    problems: list[tuple[str, str]] = field(default_factory=list)
    """What was to be measured or read, and why it was not."""
    commands: list[tuple[str, str]] = field(default_factory=list)
    """Name of a measurement, its command and how it ended."""

    failed_steps: dict[str, str] = field(default_factory=dict)
    """Measurements of an earlier run that left no result, and why."""

    def part(self, title: str, make: Callable[[], Part], otherwise: Part) -> Part:
        """What `make` makes of the files. Files come from anywhere: one that nobody foresaw costs the part of the page
        that it breaks, which is then a problem of the report, and no more."""
        try:
            return make()
        except Exception as error:
            why = clean(f"{type(error).__name__}: {error}")
            problem = (title, f"this part of the page cannot be made of these files ({why})")
            if problem not in self.problems:
                self.problems.append(problem)
            return otherwise

    @property
    def series(self) -> list[Series]:
        return [series for document in self.documents for series in document.series]


def shared_manifest(documents: Sequence[Document]) -> dict[str, str]:
    """What every file that says it says alike."""
    values: dict[str, set[str]] = {}
    for document in documents:
        for name, value in document.manifest.items():
            values.setdefault(name, set()).add(value)
    return {name: next(iter(found)) for name, found in values.items() if len(found) == 1 and name not in EACH_ITS_OWN}


def differing(documents: Sequence[Document]) -> dict[str, dict[str, list[Document]]]:
    """The environment's variables that not all files with a manifest set alike: the files by value, "" for not set."""
    told = [one for one in documents if one.manifest and one.series]
    names = sorted({name for one in told for name in one.manifest if name.startswith(SETTING)})
    found: dict[str, dict[str, list[Document]]] = {}
    for name in names:
        values: dict[str, list[Document]] = {}
        for one in told:
            values.setdefault(one.manifest.get(name, ""), []).append(one)
        if len(values) > 1 and not NO_SETTING.search(name[len(SETTING) :]):
            found[name[len(SETTING) :]] = values
    return found


def differing_settings(documents: Sequence[Document]) -> list[tuple[str, str, str]]:
    """Rows of a table: variable, value, files."""
    return [
        (name, value or "not set", ", ".join(one.label for one in files))
        for name, values in differing(documents).items()
        for value, files in values.items()
    ]


def machine(documents: Sequence[Document]) -> str:
    """One line: MPI, GPU, processor, date of the first measurement."""
    shared = shared_manifest(documents)
    gpus = sorted(
        {
            value.split(" (", 1)[1].rsplit(", ", 1)[0]
            for document in documents
            for name, value in document.manifest.items()
            if name.startswith("rank_") and " (" in value
        }
    )
    dates = sorted(document.manifest["date"][:10] for document in documents if document.manifest.get("date"))
    host = shared.get("rank_0", "").split(":")[0]
    parts = [
        shared.get("mpi", "").replace(" Version:", ""),
        ", ".join(gpus[:2]) or shared.get("gpu_runtime", ""),
        shared.get("cpu", ""),
    ]
    parts += [f"host {host}" if host else "", dates[0] if dates else ""]
    return " · ".join(part for part in parts if part) or (
        "1 file" if len(documents) == 1 else f"{len(documents)} files"
    )
