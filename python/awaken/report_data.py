"""What a report is made of, and the facts about the machine that all its files share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from awaken.results import Document, Series

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
    return " · ".join(part for part in parts if part) or f"{len(documents)} files"
