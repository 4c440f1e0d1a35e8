# SPDX-License-Identifier: Apache-2.0
"""JSON of `awaken topo --json`: schema "awaken-topology", version 1 (docs/topology.md). Members that are missing are
left out, and a pair without a figure keeps its reason. Of emulated GPUs, no figure is read: they mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from awaken import units
from awaken.readers.source import Value
from awaken.results import (
    BANDWIDTH,
    BETWEEN_NODES,
    PRETENDED_NODES,
    Cell,
    Document,
    Matrix,
    Point,
    Series,
    Topology,
)

SCHEMA = "awaken-topology"
HOST = "host"
MOST_GPUS = 64
"""In one matrix."""
METHODS = ("copy engine", "kernel")
SIDES = (("awaken", "with Awaken"), ("native", "by the MPI alone"))
ITSELF = Cell(why_missing="the same GPU")

Pairs = dict[tuple[str, str], Value]
CellOf = Callable[[str, str], Cell]


def read(top: Value, document: Document) -> None:
    """Adds the topology, and the curve between nodes where there is one, to the document."""
    gpus = [gpu.get("gpu").text() for gpu in top.get("gpus").elements()]
    if len(gpus) > MOST_GPUS:
        document.notes.append(f"{document.path}: of {len(gpus)} GPUs, those after the first {MOST_GPUS} are left out")
        del gpus[MOST_GPUS:]
    matrices = []
    if len(gpus) > 1:
        matrices.append(_links(top, gpus))
    emulated = top.get("emulated").text() == "yes"
    mpi = top.get("mpi")
    if not emulated:
        matrices += _raw(top.get("raw"), gpus)
    if mpi.is_object and not emulated:
        for side, title in SIDES:
            # With --engines, the messages of one engine are those that are measured anyway.
            alike = (one for one in top.get("engines").elements() if one.get(side).is_object)
            by = next((_name_of_engine(one) for one in alike if one.get(side).raw == mpi.get(side).raw), "")
            matrices += _messages(mpi.get(side), gpus, title, by)
    matrices += _engines(top.get("engines"), gpus, {matrix.title for matrix in matrices})
    warnings = [one.get("text").text() for one in top.get("placement_warnings").elements()]
    warnings += [f"{one.get('what').text()}: {one.get('text').text()}" for one in top.get("problems").elements()]
    facts = _facts(top, timed=not emulated)
    summary = _summary(matrices)
    if summary:
        facts.insert(0, ("summary", summary))
    document.topologies.append(
        Topology(document.label, top.get("host").text(), tuple(matrices), tuple(facts), tuple(warnings))
    )
    if not top.get("date").missing:
        document.manifest["date"] = top.get("date").text()
    if emulated:
        document.manifest["topology.emulated"] = "emulated GPU"
    else:
        _between_nodes(top.get("between_nodes"), document)


def _name(gpu: str) -> str:
    return HOST if gpu == HOST else f"GPU {gpu}"


def _matrix(
    title: str,
    unit: str,
    gpus: Sequence[str],
    cell: CellOf,
    *,
    host: bool = False,
    less: bool = False,
    minor: bool = False,
    key: str = "",
) -> Matrix:
    columns = [*([HOST] if host else []), *gpus]
    cells = tuple(tuple(ITSELF if row == column else cell(row, column) for column in columns) for row in gpus)
    names = tuple(_name(column) for column in columns)
    return Matrix(title, unit, tuple(map(_name, gpus)), names, cells, "GPU", "peer", less, minor, key=key)


def _pairs(values: Value, first: str, second: str) -> Pairs:
    return {(pair.get(first).text(), pair.get(second).text()): pair for pair in values.elements()}


def _links(top: Value, gpus: Sequence[str]) -> Matrix:
    """Short names in the cells, such as NV18, and what they stand for beside the matrix."""
    links = _pairs(top.get("links"), "gpu", "peer")
    meanings: dict[str, None] = {}

    def cell(row: str, column: str) -> Cell:
        link = links.get((row, column))
        if link is None:
            return Cell(why_missing="not told")
        kind, path, count = link.get("type").text(), link.get("pci_path").text(), link.get("links").text()
        if not kind or kind == "PCIe":
            return Cell(text=path) if path else Cell(why_missing=link.get("why_not_known").text("not known"))
        short = f"{kind[:2].upper()}{count}"
        meanings[f"{short}: {count} links of {kind}"] = None
        return Cell(text=short)

    matrix = _matrix("Links", "", gpus, cell)
    return replace(matrix, explanation="; ".join(meanings))


def _raw(raw: Value, gpus: Sequence[str]) -> list[Matrix]:
    if not raw.is_object or not gpus:
        return []
    return [
        matrix
        for method in METHODS
        for matrix in _copies(_pairs_of(raw, method), gpus, _engine(raw, method), f"copies by {method}")
    ]


def _engine(raw: Value, method: str) -> str:
    """What made the copies of a method: AMD's runtime makes those of its "copy engine" by kernels where it is told."""
    told = raw.get("copy_engine")
    if method != METHODS[0] or not told.is_object:
        return method
    between, host = told.get("between_gpus").text(method), told.get("with_host").text(method)
    settings = ", ".join(setting.text() for setting in told.get("settings").elements())
    both = between if between == host else f"{between} between GPUs and {host} with the host"
    return f"{both} ({settings})" if settings else both


def _copies(pairs: Pairs, gpus: Sequence[str], by: str, key: str) -> list[Matrix]:
    if not pairs:
        return []
    host = any(peer == HOST for _, peer in pairs)
    found = [
        _matrix(
            f"Copies by {by}: {words}",
            "GB/s",
            gpus,
            _figure(pairs, name),
            host=host,
            minor=name != "read",
            key=f"{key}, {name}",
        )
        for name, words in (
            ("read", "the GPU reads its peer"),
            ("write", "the GPU writes its peer"),
            ("both", "both directions, together"),
        )
    ]
    title = f"Copies by {by}: latency of 8 B"
    latency = _matrix(title, "µs", gpus, _latency(pairs), host=host, less=True, minor=True, key=f"{key}, latency")
    return [*found, latency]


def _name_of_engine(engine: Value) -> str:
    name = engine.get("name").text()
    off = [text for setting in engine.get("settings").elements() if (text := setting.text()).endswith("=0")]
    return f"{name} ({', '.join(off)})" if off else name


def _engines(engines: Value, gpus: Sequence[str], titles: Set[str]) -> list[Matrix]:
    """Of `--engines`, what the matrices of these titles do not have already."""
    found = []
    for engine in engines.elements():
        by = _name_of_engine(engine)
        found += _copies(_pairs(engine.get("pairs"), "gpu", "peer"), gpus, by, f"copies by {by}")
        for side, title in SIDES:
            found += _messages(engine.get(side), gpus, title, by, f"{title}, copies by {by}")
    return [matrix for matrix in found if matrix.title not in titles]


def _pairs_of(raw: Value, method: str) -> Pairs:
    return {
        (pair.get("gpu").text(), pair.get("peer").text()): pair
        for pair in raw.get("pairs").elements()
        if pair.get("method").text() == method
    }


def _why_not(pair: Value) -> str:
    return pair.get("skipped").text() or pair.get("failed").text() or "not measured"


def _figure(pairs: Pairs, name: str) -> CellOf:
    def cell(row: str, column: str) -> Cell:
        pair = pairs.get((row, column))
        if pair is None:
            return Cell(why_missing="not measured")
        figure = pair.get(name)
        value = figure.get("median_GBps").number_or_none() if figure.is_object else None
        if value is None:
            return Cell(why_missing=_why_not(pair))
        percent = _percent(figure.get("percent_of_limit"))
        if figure.get("samples").integer(1) < 2:
            return Cell(value, percent)
        ends = (figure.get(end).number_or_none() for end in ("least_GBps", "most_GBps"))
        return Cell(value, percent, "", *ends)

    return cell


def _latency(pairs: Pairs) -> CellOf:
    def cell(row: str, column: str) -> Cell:
        pair = pairs.get((row, column))
        value = pair.get("latency_us").number_or_none() if pair is not None else None
        return Cell(value) if value else Cell(why_missing=_why_not(pair) if pair is not None else "not measured")

    return cell


def _percent(value: Value) -> str:
    found = value.number_or_none()
    return "" if found is None else f"{found:.0f} %"


def _messages(side: Value, gpus: Sequence[str], title: str, by: str, key: str = "") -> list[Matrix]:
    """`by` is the engine that made the copies, where it is told; "key" what is compared, else the title alone."""
    key = f"messages {key or title}"
    title = f"{title}, copies by {by}" if by else title
    if not side.is_object or not gpus:
        return []
    pairs = _pairs(side.get("pairs"), "sender", "receiver")
    if not pairs:
        return []
    why_not = side.get("why_not").text("not measured")

    def cell_of(name: str, percent: str) -> CellOf:
        def cell(row: str, column: str) -> Cell:
            pair = pairs.get((row, column))
            value = pair.get(name).number_or_none() if pair is not None else None
            if pair is None or value is None:
                return Cell(why_missing=why_not)
            if pair.get("verified").text() == "no":
                return Cell(why_missing="THE DATA WERE WRONG")
            return Cell(value, _percent(pair.get(percent)) if percent else "")

        return cell

    matrices = [
        _matrix(f"Messages {title}", "GB/s", gpus, cell_of("bandwidth_GBps", "percent_of_limit"), key=key),
        _matrix(
            f"Messages {title}: both directions, together",
            "GB/s",
            gpus,
            cell_of("both_GBps", "both_percent_of_limit"),
            minor=True,
            key=f"{key}, both directions",
        ),
        _matrix(
            f"Messages {title}: latency of 8 B",
            "µs",
            gpus,
            cell_of("latency_us", ""),
            less=True,
            key=f"{key}, latency",
        ),
    ]
    return [replace(matrix, row_title="sender", column_title="receiver") for matrix in matrices]


def _facts(top: Value, *, timed: bool) -> list[tuple[str, str]]:
    """`timed`: with rates, and the limits that these are held against."""
    facts = []
    for gpu in top.get("gpus").elements():
        parts = [gpu.get("name").text(), gpu.get("pci_address").text()]
        numa, limit = gpu.get("numa_node").text(), gpu.get("host_limit_what").text()
        parts += [f"NUMA node {numa}" if numa else "", limit if timed else ""]
        facts.append((_name(gpu.get("gpu").text()), ", ".join(part for part in parts if part)))
    for card in top.get("network_cards").elements():
        paths = [
            f"{path.get('pci_path').text('?')} to {_name(path.get('gpu').text())}"
            for path in card.get("gpus").elements()
        ]
        rate = card.get("rate").text()
        facts.append((f"network card {card.get('name').text()}", ", ".join([*([rate] if rate else []), *paths])))
    for rank in top.get("ranks").elements():
        gpu = rank.get("gpu")
        device = gpu.get("device").text("none") if gpu.is_object else "none"
        facts.append((f"rank {rank.get('rank').text()}", f"{rank.get('host').text()}, GPU {device}"))
    if timed:
        facts += _together(top.get("raw"))
        limits = dict.fromkeys(link.get("limit_what").text() for link in top.get("links").elements())
        facts += [("limit of a pair", limit) for limit in limits if limit]
    return facts


def _together(raw: Value) -> list[tuple[str, str]]:
    facts = []
    for one in raw.get("together").elements() if raw.is_object else ():
        together = one.get("together")
        value = together.get("median_GBps").number_or_none() if together.is_object else None
        source = one.get("from").text()
        name = "all GPUs to all" if source == "all" else f"{_name(source)} to all"
        if value is not None:
            facts.append((f"{name}, {one.get('method').text()}", f"{units.bandwidth(value)} together"))
    return facts


def _summary(matrices: Sequence[Matrix]) -> str:
    """One sentence about copies between GPUs by the engine that the runtime used."""
    for matrix in matrices:
        if matrix.unit == "GB/s":
            cells = [
                cell
                for row in matrix.cells
                for column, cell in zip(matrix.columns, row)
                if cell.value is not None and column != HOST
            ]
            values = [cell.value for cell in cells if cell.value is not None]
            if values:
                low, high = min(values), max(values)
                told = units.bandwidth(high) if low == high else f"{units.bandwidth(low)} to {units.bandwidth(high)}"
                best = next(cell for cell in cells if cell.value == high)
                limit = f", at best {best.text} of the link's limit" if best.text else ""
                return f"{matrix.title}, between GPUs: {told}{limit}."
    return ""


def _between_nodes(curve: Value, document: Document) -> None:
    if not curve.is_object:
        return
    points = tuple(
        Point(size_bytes, rate / 1e3)
        for point in curve.get("points").elements()
        if (size_bytes := point.get("bytes").integer_or_none()) is not None
        and (rate := point.get("bandwidth_MBps").number_or_none())
        and rate > 0
    )
    pretended = curve.get("pretended").text() == "yes"
    why_not = curve.get("why_not").text()
    if points or why_not:
        document.series.append(
            Series(
                f"bw{BETWEEN_NODES}",
                "awaken",
                BANDWIDTH,
                points,
                document.label,
                2,
                "MPI_CHAR",
                "D D",
                PRETENDED_NODES if pretended else "",
                unavailable="" if points else why_not,
            )
        )
