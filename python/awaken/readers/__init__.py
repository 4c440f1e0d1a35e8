# SPDX-License-Identifier: Apache-2.0
"""Reads results: one file per dialect beside this one. `read(path)` finds out which it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from awaken import pairs
from awaken.readers import (
    applications,
    bench,
    doctor,
    imb,
    nccl_tests,
    osu,
    path_report,
    ping_pong,
    topology,
    trace,
    ucc_perftest,
)
from awaken.readers.source import Log, Notes, ReadError, Value, clean, load_json, read_bytes
from awaken.results import BETWEEN_NODES, POINT_TO_POINT, UNKNOWN_TEST, Document, Series, Topology

__all__ = ["Document", "ReadError", "read", "relabelled", "told"]

VERSION = 1
"""Of each of Awaken's own schemas."""
SCHEMAS: dict[str, ModuleType] = {module.SCHEMA: module for module in (bench, path_report, topology, doctor)}
MOST_SERIES = 500
MOST_POINTS = 2000
LOGS: tuple[ModuleType, ...] = (osu, nccl_tests, imb, ucc_perftest, ping_pong, applications)

JSON = re.compile(rb"\s*(\{|\[\s*[{\]])")
"""How a file of JSON begins. Logs may begin with a bracket too: "[0] ", which launchers put before each line."""


def read(path: Path, label: str = "") -> Document:
    """What a file holds. `label` names it in charts; its name without suffix is used without one.

    ReadError, with file and place, when it is none of the known kinds, is damaged, or holds no result at all. Parts
    of a log that make no sense are left out and named in the document's notes.
    """
    document = Document(clean(label) or clean(path.stem), clean(str(path), 400))
    content = read_bytes(path)
    if JSON.match(content):
        _read_json(Value(load_json(path, content), str(path)), path, document)
    else:
        _read_log(Log(path, content), document)
    _limit(document)
    return document


def _limit(document: Document) -> None:
    """Keeps a page readable whatever a file holds: what is beyond these limits is left out, and said."""
    if len(document.series) > MOST_SERIES:
        document.notes.append(f"{document.path}: the last {len(document.series) - MOST_SERIES} tables are left out")
        del document.series[MOST_SERIES:]
    for index, one in enumerate(document.series):
        if len(one.points) > MOST_POINTS:
            document.notes.append(f"{document.path}: {len(one.points) - MOST_POINTS} rows of {one.test} are left out")
            document.series[index] = replace(one, points=one.points[:MOST_POINTS])


def _read_json(top: Value, path: Path, document: Document) -> None:
    schema = top.get("schema").text() if top.is_object else ""
    if schema in SCHEMAS:
        version = top.get("version").integer(0)
        if version != VERSION:
            raise ReadError(str(path), f"{schema} of version {version} is not known", f"use version {VERSION}")
        document.dialects = (schema,)
        SCHEMAS[schema].read(top, document)
    elif top.is_object and top.get("results").is_list and not top.get("nccl_version").missing:
        document.dialects = (f"{nccl_tests.NAME} JSON",)
        nccl_tests.read_json(top, document)
    elif trace.is_trace(top):
        document.dialects = ("trace",)
        trace.read(top, document)
    else:
        known = ", ".join([*SCHEMAS, "nccl-tests", "traceEvents"])
        raise ReadError(str(path), f"its schema is '{clean(schema, 60)}'", f"give one of: {known}")


def _read_log(log: Log, document: Document) -> None:
    """One log may hold the output of several programs."""
    found = [module for module in LOGS if module.found_in(log)]
    if not found:
        kinds = ", ".join(module.NAME for module in LOGS)
        raise ReadError(
            log.path,
            f"no kind of result that is known ({kinds}, JSON of awaken or a trace); {log.summary()}",
            "give the whole output, from its title on" if log.text else "the file is empty: was the run ended early?",
        )
    notes = Notes(document.path)
    for module in found:
        module.read(log, document, notes)
    document.dialects = tuple(module.NAME for module in found)
    document.notes += notes.texts()
    if document.empty:
        raise ReadError(
            document.notes[0] if document.notes else log.path,
            f"its head is that of {' and '.join(document.dialects)}, but no row of results could be read; "
            + log.summary(),
            "was the run ended early?",
        )
    document.series = _named_by_headings(document.series)
    matrices = pairs.matrices(document.series)
    if matrices:
        document.topologies.append(Topology(document.label, "", matrices))


def _named_by_headings(series: Sequence[Series]) -> list[Series]:
    """Headings name the tables that nothing else names or tells apart."""
    headings: dict[Series, set[str]] = {}
    for one in series:
        headings.setdefault(replace(one, points=(), heading=""), set()).update(filter(None, [one.heading]))
    return [
        replace(one, mode=", ".join(filter(None, [one.mode, one.heading])))
        if one.heading and (one.test == UNKNOWN_TEST or len(headings[replace(one, points=(), heading="")]) > 1)
        else one
        for one in series
    ]


def relabelled(series: Series, old: str, new: str) -> Series:
    """The series under another label of its file."""
    implementation = new if series.implementation == old else series.implementation
    return replace(series, source=new, implementation=implementation)


def told(series: Series, ranks: int | None, buffers: str) -> Series:
    """The series with what its log does not tell, as far as the user does: the number of ranks, and where buffers
    are, in the letters of one side."""
    of_two = series.test.removesuffix(BETWEEN_NODES) in POINT_TO_POINT
    sides = f"{buffers} {buffers}" if buffers and of_two else buffers
    return replace(
        series,
        ranks=series.ranks if series.ranks is not None else ranks,
        buffers=series.buffers or sides,
    )
