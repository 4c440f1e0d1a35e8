# SPDX-License-Identifier: Apache-2.0
"""The report as Markdown: the same answers and figures as the page, with pictures as files beside it if wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from awaken import applications, charts, curves, units
from awaken.findings import (
    RAN_HEADER,
    all_series,
    allreduce_runs,
    crossovers,
    divided,
    findings,
    in_words,
    named_applications,
    what_ran,
)
from awaken.html_page import topology_name
from awaken.report_data import Report, differing_settings, machine, shared_manifest
from awaken.results import BANDWIDTH, Document, Matrix, Series

SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$])")
"""All that Markdown or HTML in it could take for more than text."""


def escape(text: str) -> str:
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


@dataclass
class Pictures:
    """Curves as files, which the page shows. `files` has their content by name."""

    folder: str
    """Before a file's name in the page's links; "" for beside the page."""
    files: dict[str, str] = field(default_factory=dict)

    def show(self, picture: curves.Picture) -> list[str]:
        """The links to a picture's curve and, where there is something to compare, its ratios."""
        if not picture.curved:
            return []
        name = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-")
        links = [self._add(name, picture.title, curves.curve_of(picture, charts.FILE))]
        compared = curves.ratios(picture)
        if compared is not None:
            chart = curves.ratio_chart_of(picture, *compared, charts.FILE)
            links.append(self._add(f"{name}-relative", f"{picture.title}, relative", chart))
        return links

    def _add(self, name: str, title: str, chart: str) -> str:
        unique = name
        for number in range(2, len(self.files) + 3):
            if f"{unique}.svg" not in self.files:
                break
            unique = f"{name}-{number}"
        self.files[f"{unique}.svg"] = charts.as_file(chart)
        place = f"{self.folder}/{unique}.svg" if self.folder else f"{unique}.svg"
        return f"![{escape(title)}]({place})"


def page(report: Report, pictures: Pictures | None = None) -> str:
    documents = report.documents
    parts = [f"# {escape(report.title)}", escape(machine(documents))]
    real, pretended = divided(documents)
    if pretended:
        told = "this says nothing about how fast a real GPU is, so times and rates are left out."
        parts.append(f"**On emulated GPUs**: {told}")
    parts += report.part("The answers", lambda: _answers(documents), [])
    parts += report.part("Point-to-point and collectives", lambda: _curves(all_series(real), pictures), [])
    parts += report.part("What ran on emulated GPUs", lambda: _ran(pretended), [])
    parts += report.part("MPI or NCCL", lambda: _crossovers(real), [])
    for document in documents:
        parts += report.part(document.label, partial(_of_document, document), [])
    parts += report.part("Applications", lambda: _applications(documents, pretended), [])
    problems = [
        *dict.fromkeys(
            (f"{one.test} {one.implementation}", one.unavailable) for one in report.series if one.unavailable
        )
    ]
    problems += report.problems
    problems += [("left out", note) for document in documents for note in document.notes]
    if problems:
        parts += ["## What is missing, and why", table(("what", "why"), problems)]
    shared = shared_manifest(documents)
    differing = differing_settings(documents)
    if differing:
        parts += ["## Settings in which the files differ", table(("setting", "value", "files"), differing)]
    if shared or report.commands:
        parts += ["## Where and how this was measured", table(("", ""), [*sorted(shared.items()), *report.commands])]
    parts.append(f"Written by awaken report{escape(f' {report.version}' if report.version else '')}.")
    return _joined(parts)


def _joined(parts: Sequence[str]) -> str:
    """An empty line between all parts but the items of a list."""
    text = parts[0]
    for before, part in zip(parts, parts[1:]):
        text += ("\n" if before.startswith("- ") and part.startswith("- ") else "\n\n") + part
    return text + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False) -> str:
    rule = ["---:" if numbers else "---" for _ in header]
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))


def _answers(documents: Sequence[Document]) -> list[str]:
    parts = []
    for finding in findings(documents):
        parts.append(f"**{escape(finding.question)}** {escape(finding.headline)}.")
        parts += [f"- {escape(detail)}" for detail in finding.details[:4]]
    return parts


def _crossovers(documents: Sequence[Document]) -> list[str]:
    rows = [(one.test, str(one.ranks or ""), one.mode, in_words(one)) for one in crossovers(documents)]
    rows += [(f"MPI_Allreduce, {run.name}", "", run.calls, run.winner or "level") for run in allreduce_runs(documents)]
    return ["## MPI or NCCL", table(("collective", "ranks", "calls", "faster"), rows)] if rows else []


def _ran(pretended: Sequence[Document]) -> list[str]:
    rows = what_ran(pretended)
    return ["## What ran on emulated GPUs", table(RAN_HEADER, rows)] if rows else []


def _curves(series: Sequence[Series], pictures: Pictures | None) -> list[str]:
    parts = []
    for picture in curves.pictures(series):
        if not picture.lines:
            continue
        unit = "GB/s" if picture.quantity == BANDWIDTH else "µs"
        sizes = sorted({point.size_bytes for one in picture.lines for point in one.series.points})
        rows = [
            [units.size(size_bytes), *(_value(one.series, size_bytes) for one in picture.lines)] for size_bytes in sizes
        ]
        header = ["size", *(f"{one.label}, {unit}" for one in picture.lines)]
        parts += [f"## {escape(picture.title)}", escape(curves.caption(picture))]
        parts += pictures.show(picture) if pictures is not None else []
        parts.append(table(header, rows, numbers=True))
    return parts


def _value(series: Series, size_bytes: int) -> str:
    """Every value at this size; empty where there is none."""
    points = [point for point in series.points if point.size_bytes == size_bytes]
    return " / ".join(units.digits(point.value) + (" WRONG DATA" if point.errors else "") for point in points)


def _of_document(document: Document) -> list[str]:
    parts = []
    for report in document.path_reports:
        rows = [
            (row.function, row.path, units.size(row.size_class_bytes), str(row.calls), units.size(row.bytes))
            for row in report.rows
            if row.path != "native"
        ]
        if rows:
            parts += [
                f"## How the bytes travelled: {escape(report.title)}",
                table(("function", "path", "size to", "calls", "bytes"), rows),
            ]
        if report.copies:
            copies = [(by, str(times), units.size(total)) for by, times, total in report.copies]
            parts.append(table(("what copied device memory", "copies", "bytes"), copies))
    for topology in document.topologies:
        parts.append(f"## Topology {escape(topology_name(topology))}".rstrip())
        parts += [f"- {escape(warning)}" for warning in topology.warnings]
        for matrix in topology.matrices:
            parts += [f"### {escape(matrix.title)}", _matrix(matrix)]
    for doctor in document.doctors:
        parts += [
            f"## The doctor's answers {escape(doctor.host)}",
            table(("", ""), [answer[:2] for answer in doctor.answers]),
        ]
        parts += [f"- {escape(what)}{f' {escape(command)}' if command else ''}" for what, command in doctor.advice]
        for conformance in doctor.conformance:
            outcomes = [
                (function, *(conformance.cells.get((function, kind), ("", ""))[0] for kind in conformance.kinds))
                for function in conformance.functions
            ]
            parts += [f"### {escape(conformance.title)}", table(("function", *conformance.kinds), outcomes)]
    return parts


def _applications(documents: Sequence[Document], pretended: Sequence[Document]) -> list[str]:
    """Of emulated GPUs, without the figures."""
    parts = []
    for name, run, measured in named_applications(documents, pretended):
        parts += [f"## {escape(name)}", escape(applications.in_words(run))]
        parts += [table(("", ""), run.figures)] if measured else []
    return parts


def _matrix(matrix: Matrix) -> str:
    rows = [
        (
            name,
            *(
                units.digits(cell.value) if cell.value is not None else cell.text or f"– {cell.why_missing}"
                for cell in row
            ),
        )
        for name, row in zip(matrix.rows, matrix.cells)
    ]
    return table((matrix.unit, *matrix.columns), rows)
