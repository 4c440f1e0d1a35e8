"""JSON of `awaken topo --json`: schema "awaken-topology", version 1 (docs/topology.md). Members that are missing
are left out.

A matrix is an object with `rows`, `columns` and `cells`; ...
"""

from __future__ import annotations

from awaken.readers.source import Value
from awaken.results import Document

SCHEMA = "awaken-topology"


def read(top: Value, document: Document) -> None: ...
