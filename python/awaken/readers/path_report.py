# SPDX-License-Identifier: Apache-2.0
"""JSON of `AWAKEN_REPORT=FILE.json`: schema "awaken-report", version 1 (docs/path-report.md)."""

from __future__ import annotations

from awaken.readers.source import Value
from awaken.results import CallRow, Document, PathReport

SCHEMA = "awaken-report"
MOVERS = {"engine": "copies of the GPU runtime", "kernel": "kernels of Awaken", "cpu": "the CPU"}


def read(top: Value, document: Document) -> None:
    """Adds the report to the document."""
    mpi, gpu = top.get("mpi"), top.get("gpu")
    rows = tuple(
        CallRow(
            function=row.get("function").text(),
            path=row.get("path").text(),
            size_class_bytes=row.get("size_class_bytes").integer(0),
            calls=row.get("calls").integer(0),
            bytes=row.get("bytes").integer(0),
            time_ns=row.get("time_ns").integer(0),
        )
        for row in top.get("calls").elements()
    )
    fallbacks = tuple(
        (one.get("function").text(), one.get("reason").text(), one.get("count").integer(0))
        for one in top.get("fallbacks").elements()
    )
    copies = top.get("copies")
    movers = [(by, copies.get(by)) for by in MOVERS] if copies.is_object else []
    report = PathReport(
        source=document.label,
        title=document.label,
        host=top.get("host").text(),
        ranks=top.get("size").integer_or_none(),
        mpi=mpi.get("version").text() if mpi.is_object else "",
        gpu=gpu.get("runtime").text() if gpu.is_object else "",
        devices=tuple(name.text() for name in gpu.get("devices").elements()) if gpu.is_object else (),
        rows=rows,
        fallbacks=fallbacks,
        copies=tuple(
            (MOVERS[by], number, one.get("bytes").integer(0))
            for by, one in movers
            if one.is_object and (number := one.get("copies").integer(0))
        ),
    )
    document.path_reports.append(report)
    for name, text in (("mpi", report.mpi), ("gpu_runtime", report.gpu), ("host", report.host)):
        if text:
            document.manifest.setdefault(name, text)
