# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file: no script, no request to anywhere, the same bytes for the same input.

All text that comes from files goes through `escape`. A content security policy in the page allows nothing but its
own style sheet, by its hash, so that not even a mistake here could load or run anything.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from awaken import applications, charts, curves, units
from awaken.findings import (
    RAN_HEADER,
    AllreduceRun,
    Crossover,
    Finding,
    all_series,
    allreduce_runs,
    crossovers,
    divided,
    findings,
    in_words,
    named_applications,
    what_ran,
)
from awaken.page_style import SCROLLING, STYLE
from awaken.report_data import Report, differing_settings, machine, shared_manifest
from awaken.results import (
    BANDWIDTH,
    FAILURES,
    WORKS,
    Conformance,
    Document,
    Matrix,
    PathReport,
    Series,
    Timeline,
    Topology,
)
from awaken.svg import escape

PATH_STYLES = {
    "native": 0,
    "direct": 1,
    "ccl": 3,
    "copied": 7,
    "ring": 4,
    "pipelined": 5,
    "staged": 2,
    "staged-large": 6,
    "refused": 8,
}
HEAT_LEVELS = 6
SAME_DEVICE = "the same GPU"
"""Of a cell on the diagonal: no reason that needs telling."""
MOST_COLOURS = 12
"""Of one legend."""
MOST_ROWS = 400
"""Of one table of figures."""


def page(report: Report) -> str:
    """The whole file."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    documents = report.documents
    real, pretended = divided(documents)

    def of_each(title: str, make: Callable[[Document], str]) -> str:
        return "".join(report.part(f"{title}, {one.label}", partial(make, one), "") for one in documents)

    answers = report.part("The answers", lambda: _answers(findings(documents)), "")
    makers: list[tuple[str, str, Callable[[], str]]] = [
        ("measured", "Point-to-point and collectives", lambda: _curves(report, all_series(real))),
        ("ran", "What ran on emulated GPUs", lambda: _ran(pretended)),
        ("choice", "MPI or NCCL", lambda: _choice(crossovers(real), allreduce_runs(real))),
        ("paths", "How the bytes travelled", lambda: _paths(documents)),
        ("topology", "Topology", lambda: of_each("Topology", _topologies)),
        ("doctor", "The doctor's answers", lambda: of_each("The doctor's answers", _doctors)),
        ("applications", "Applications", lambda: _applications(documents, pretended)),
        ("timeline", "Timeline", lambda: of_each("Timeline", _timelines)),
        ("settings", "Settings in which the files differ", lambda: _settings(documents)),
        # After the others, since it tells which of them could not be made.
        ("problems", "What is missing, and why", lambda: _problems(report)),
        ("manifest", "Where and how this was measured", lambda: _manifest(report)),
    ]
    sections = [(name, title, report.part(title, make, "")) for name, title, make in makers]
    present = [(name, title, body) for name, title, body in sections if body]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in present)
    body = "".join(
        f'<section><h2 id="{name}">{escape(title)}</h2>{content}</section>' for name, title, content in present
    )
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(report.title)}</h1><p class="lead">{escape(machine(documents))}</p>'
        f"{_notice() if pretended else ''}{answers}</header>\n"
        f'<nav aria-label="Sections">{links}</nav>\n<main>{body}</main>\n'
        f"<footer>Written by awaken report{escape(f' {report.version}' if report.version else '')}. "
        "Sizes use KiB = 1024 bytes, bandwidths GB = 10⁹ bytes. "
        "Missing values are left out, and are never zero.</footer>\n"
        "</body>\n</html>\n"
    )


def paragraph(content: str, classes: str = "") -> str:
    attribute = f' class="{classes}"' if classes else ""
    return f"<p{attribute}>{escape(content)}</p>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = (), caption: str = "") -> str:
    """A table that scrolls by itself on a narrow page. `numbers` are the columns to align at the right."""
    right = set(numbers)

    def cells(row: Sequence[str], tag: str) -> str:
        def kind(index: int) -> str:
            return ' class="number"' if index in right else ' class="prose"' if tag == "td" else ""

        return "".join(f"<{tag}{kind(index)}>{escape(cell)}</{tag}>" for index, cell in enumerate(row))

    head = f"<thead><tr>{cells(header, 'th')}</tr></thead>" if header else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"{SCROLLING}<table>{title}{head}<tbody>{body}</tbody></table></div>"


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


# ------------------------------------------------------------------------------------------------------------ the head


def _notice() -> str:
    return paragraph(
        "On emulated GPUs: this shows that everything works and by which path. It says nothing about how fast a real "
        "GPU is, so times and rates are left out.",
        "notice",
    )


def _with_code(content: str) -> str:
    """Commands stand between backquotes in the findings."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(content))


def _answers(answers: Sequence[Finding]) -> str:
    items = []
    for answer in answers:
        details = "".join(f'<p class="detail">{_with_code(detail)}</p>' for detail in answer.details[:4])
        items.append(
            f'<li class="{answer.verdict}"><p class="question">{escape(answer.question)}</p>'
            f'<p class="headline">{escape(answer.headline)}</p>{details}</li>'
        )
    return f'<ul class="answers">{"".join(items)}</ul>'


# ---------------------------------------------------------------------------------------------------------- the curves


def _curves(report: Report, series: Sequence[Series]) -> str:
    parts = []
    single: list[tuple[str, ...]] = []
    for picture in curves.pictures(series):
        if not picture.lines:
            continue
        if not picture.curved:
            single += _single_rows(picture)
            continue
        parts.append(report.part(picture.title, partial(_picture, picture), ""))
    without = ""
    if single:
        header = ("test", "ranks", "implementation", "value", "band")
        without = "<h3>Without a size, or with one only</h3>" + table(header, single, (1, 3, 4))
    if not parts and not without:
        return ""
    return f'<div class="pair">{"".join(parts)}</div>{without}'


def _ran(pretended: Sequence[Document]) -> str:
    rows = what_ran(pretended)
    return table(RAN_HEADER, rows, (1,)) if rows else ""


def _picture(picture: curves.Picture) -> str:
    compared = curves.ratios(picture)
    figures = _figure(curves.curve(picture), curves.caption(picture))
    if compared:
        base, found = compared
        figures += _figure(curves.ratio_chart(picture, base, found), curves.ratio_caption(base, found))
    reasons = dict.fromkeys(one.series.unavailable for one in picture.unavailable)
    missing = "".join(paragraph(f"Not measured: {reason}.", "aside") for reason in reasons)
    article, inside = ("both", "pair") if compared else ("single", "one")
    return (
        f'<article class="{article}"><h3>{escape(picture.title)}</h3><div class="{inside}">{figures}</div>'
        f"{missing}{folded('These figures as a table', _figures_table(picture))}</article>"
    )


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


def _single_rows(picture: curves.Picture) -> list[tuple[str, ...]]:
    return [
        (
            picture.test,
            str(picture.ranks or ""),
            one.label,
            f"{units.of(picture.quantity, point.value)}"
            + (f" at {units.size(point.size_bytes)}" if point.size_bytes else ""),
            band_text(point.low, point.high, picture.quantity),
        )
        for one in picture.lines
        for point in one.series.points
    ]


def band_text(low: float | None, high: float | None, quantity: str) -> str:
    if low is None or high is None:
        return ""
    return f"{units.of(quantity, low)} to {units.of(quantity, high)}"


def _figures_table(picture: curves.Picture) -> str:
    sizes = sorted({point.size_bytes for one in picture.lines for point in one.series.points})
    unit = "GB/s" if picture.quantity == BANDWIDTH else "µs"
    rows = []
    for size_bytes in sizes[:MOST_ROWS]:
        row = [str(size_bytes)]
        for one in picture.lines:
            points = [point for point in one.series.points if point.size_bytes == size_bytes]
            row.append(" / ".join(_exact(point.value) + (" WRONG DATA" if point.errors else "") for point in points))
        rows.append(row)
    header = ("bytes", *(f"{one.label}, {unit}" for one in picture.lines))
    more = paragraph(f"{len(sizes) - MOST_ROWS} more sizes are left out.") if len(sizes) > MOST_ROWS else ""
    return table(header, rows, range(len(header))) + more


def _exact(value: float) -> str:
    return f"{value:.4g}" if 0 < value < 1 else f"{value:.2f}"


def _choice(found: Sequence[Crossover], runs: Sequence[AllreduceRun]) -> str:
    header = ("MPI_Allreduce in an application", "calls", "faster", "times as fast")
    rows = [(run.name, run.calls, run.winner or "level", units.digits(run.gain) if run.winner else "") for run in runs]
    return _crossovers(found) + (table(header, rows, (3,)) if rows else "")


def _crossovers(found: Sequence[Crossover]) -> str:
    if not found:
        return ""
    rows = []
    for one in found:
        for stretch in one.stretches:
            sizes = units.size(stretch.first_bytes)
            if stretch.last_bytes != stretch.first_bytes:
                sizes += f" to {units.size(stretch.last_bytes)}"
            winner = {"mpi": one.mpi, "ccl": one.ccl, "": "level"}[stretch.winner]
            gain = units.digits(stretch.most)
            if units.digits(stretch.least) != gain:
                gain = f"{units.digits(stretch.least)} to {gain}"
            rows.append((one.test, str(one.ranks or ""), one.mode, sizes, winner, gain if stretch.winner else ""))
    told = "; ".join(f"{one.test}{f' on {one.ranks} ranks' if one.ranks else ''}: {in_words(one)}" for one in found[:3])
    separate = " Some were measured in separate runs." if not all(one.one_run for one in found) else ""
    rule = (
        "A side is named where its whole band is below the other's, or without bands where it is more than 5 % faster."
    )
    return (
        paragraph(f"{told}.{separate}")
        + "".join(f"<p>{_with_code(one)}</p>" for one in dict.fromkeys(one.caution for one in found if one.caution))
        + table(("collective", "ranks", "calls", "sizes", "faster", "times as fast"), rows, (1, 5))
        + paragraph(rule, "soft")
    )


# ----------------------------------------------------------------------------------------------------------- the paths


def _paths(documents: Sequence[Document]) -> str:
    reports = [_path_report(report) for document in documents for report in document.path_reports]
    return f'<div class="pair">{"".join(reports)}</div>' if reports else ""


def _path_report(report: PathReport) -> str:
    moved: dict[str, dict[str, list[int]]] = {}
    for row in report.rows:
        if row.path != "native" and row.bytes:
            sums = moved.setdefault(row.function, {}).setdefault(row.path, [0, 0])
            sums[0] += row.bytes
            sums[1] += row.calls
    native = sum(row.calls for row in report.rows if row.path == "native")
    ranks = f", {report.ranks} ranks" if report.ranks else ""
    heading = f"<h3>{escape(report.title + ranks)}</h3>"
    if not moved:
        none = paragraph(f"No call was given device memory; {units.count(native)} calls were left to the MPI.")
        return f"<article>{heading}{none}</article>"
    bars = []
    for function, paths in sorted(moved.items(), key=lambda one: -sum(sums[0] for sums in one[1].values())):
        total = sum(sums[0] for sums in paths.values())
        parts = tuple(
            (
                path,
                sums[0] / total,
                PATH_STYLES.get(path, 8),
                f"{function}, {path}: {units.size(sums[0])} in {units.count(sums[1])} calls",
            )
            for path, sums in sorted(paths.items(), key=lambda one: -one[1][0])
        )
        calls = sum(sums[1] for sums in paths.values())
        bars.append(charts.Bar(function, parts, f"{units.size(total)}, {units.count(calls)} calls"))
    caption = (
        "Share of the bytes of device memory by path: direct and ccl from GPU to GPU, "
        "copied and ring through a copy, "
        f"staged through the host. {units.count(native)} further calls had no device memory."
    )
    chart = charts.both(
        lambda layout: charts.share_bars(layout, bars[:12], title=f"Paths of {report.title}", description=caption)
    )
    names = dict.fromkeys(part[0] for bar in bars[:12] for part in bar.parts)
    colours = charts.legend((name, PATH_STYLES.get(name, 8)) for name in names)
    copies = "; ".join(f"{by}: {units.count(times)} ({units.size(total)})" for by, times, total in report.copies)
    done = paragraph(f"What copied device memory: {copies}.") if copies else ""
    fallbacks = [(function, reason, str(times)) for function, reason, times in report.fallbacks]
    reasons = table(("function", "why it took another path", "times"), fallbacks, (2,)) if fallbacks else ""
    return f"<article>{heading}{colours}{_figure(chart, caption)}{done}{reasons}</article>"


# -------------------------------------------------------------------------------------------------------- the topology


def topology_name(topology: Topology) -> str:
    """The file's label and the host."""
    return ": ".join(filter(None, [topology.source, topology.host]))


def _topologies(document: Document) -> str:
    parts = []
    for topology in document.topologies:
        name = topology_name(topology)
        if name:
            parts.append(f"<h3>{escape(name)}</h3>")
        facts = [(name, value) for name, value in topology.facts if name != "summary"]
        parts += [paragraph(value) for name, value in topology.facts if name == "summary"]
        if topology.warnings:
            parts.append("<ul>" + "".join(f"<li>{escape(warning)}</li>" for warning in topology.warnings) + "</ul>")
        major = "".join(_matrix(matrix) for matrix in topology.matrices if not matrix.minor)
        minor = "".join(_matrix(matrix) for matrix in topology.matrices if matrix.minor)
        parts.append(f'<div class="pair">{major}</div>')
        if minor:
            parts.append(folded("More matrices: other directions, latency", f'<div class="pair">{minor}</div>'))
        if facts:
            parts.append(table((), facts))
    return "".join(parts)


def _matrix(matrix: Matrix) -> str:
    values = [cell.value for row in matrix.cells for cell in row if cell.value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    cells = []
    for row_name, row in zip(matrix.rows, matrix.cells):
        drawn = []
        for column_name, cell in zip(matrix.columns, row):
            where = f"{row_name} to {column_name}"
            if cell.value is not None:
                part = (cell.value - low) / (high - low) if high > low else 0.5
                level = min(HEAT_LEVELS - 1, int(part * HEAT_LEVELS))
                level = HEAT_LEVELS - 1 - level if matrix.less_is_better else level
                said = f"{where}: {units.digits(cell.value)} {matrix.unit}{', ' + cell.text if cell.text else ''}"
                drawn.append(charts.HeatCell(units.digits(cell.value), level, said, cell.text))
            elif cell.text:
                drawn.append(charts.HeatCell(cell.text, 0, f"{where}: {cell.text}"))
            else:
                drawn.append(
                    charts.HeatCell(
                        "" if cell.why_missing == SAME_DEVICE else "–",
                        None,
                        f"{where}: {cell.why_missing or 'not measured'}",
                    )
                )
        cells.append(drawn)
    missing = sorted({cell.why_missing for row in matrix.cells for cell in row if cell.why_missing} - {SAME_DEVICE})
    parts = []
    if matrix.unit:
        parts.append(f"In {matrix.unit}; {'less' if matrix.less_is_better else 'more'} is better.")
    if matrix.explanation:
        parts.append(f"{matrix.explanation}.")
    if low < high:
        parts.append(f"From {units.digits(low)} to {units.digits(high)}.")
    if any(cell.text.endswith("%") for row in matrix.cells for cell in row):
        parts.append("In per cent: of the link's limit.")
    if missing:
        parts.append(f"– is missing: {'; '.join(missing[:3])}.")
    caption = " ".join(parts)
    chart = charts.both(
        lambda layout: charts.heat_map(
            layout,
            matrix.rows,
            matrix.columns,
            cells,
            title=matrix.title,
            description=caption,
            row_title=matrix.row_title,
            column_title=matrix.column_title,
        )
    )
    return f"<figure><h4>{escape(matrix.title)}</h4>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


# ---------------------------------------------------------------------------------------------------------- the doctor


def _doctors(document: Document) -> str:
    parts = []
    for doctor in document.doctors:
        if doctor.host:
            parts.append(f"<h3>{escape(doctor.host)}</h3>")
        marks = {"good": "✓ ", "bad": "✗ "}
        rows = [(question, marks.get(verdict, "") + answer) for question, answer, verdict in doctor.answers]
        if rows:
            parts.append(table((), rows))
        if doctor.advice:
            items = "".join(
                f"<li>{escape(what)}{f'<br><code>{escape(command)}</code>' if command else ''}</li>"
                for what, command in doctor.advice
            )
            parts.append(f"<h3>What would improve it</h3><ul>{items}</ul>")
        if doctor.conformance:
            parts.append(_conformance(doctor.conformance))
    return "".join(parts)


def _conformance(matrices: Sequence[Conformance]) -> str:
    """All matrices side by side: one row for each function."""
    functions = list(dict.fromkeys(function for matrix in matrices for function in matrix.functions))
    groups = "".join(
        f'<th scope="colgroup" colspan="{len(matrix.kinds)}">{escape(matrix.title)}</th>' for matrix in matrices
    )
    kinds = "".join(f'<th scope="col">{escape(kind)}</th>' for matrix in matrices for kind in matrix.kinds)
    rows = []
    for function in functions:
        cells = []
        for matrix in matrices:
            for kind in matrix.kinds:
                outcome, remark = matrix.cells.get((function, kind), ("", ""))
                title = f' title="{escape(remark)}"' if remark else ""
                known = (
                    ' class="works"'
                    if outcome == WORKS
                    else ' class="failed"'
                    if outcome in FAILURES
                    else ' class="neither"'
                )
                cells.append(f"<td{known}{title}>{escape(outcome) or '–'}</td>")
        rows.append(f'<tr><th scope="row">{escape(function)}</th>{"".join(cells)}</tr>')
    counts = []
    for matrix in matrices:
        outcomes = [outcome for outcome, _ in matrix.cells.values()]
        told = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(sorted(outcomes)))
        counts.append(f"{matrix.title}: {told}")
    return (
        "<h3>Every call with every kind of buffer</h3>"
        + paragraph("; ".join(counts) + ".")
        + f'{SCROLLING}<table class="matrix">'
        + f'<thead><tr><td></td>{groups}</tr><tr><th scope="col">function</th>{kinds}</tr></thead>'
        + f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


# ---------------------------------------------------------------------------------------------------- the applications


def _applications(documents: Sequence[Document], pretended: Sequence[Document]) -> str:
    """Of emulated GPUs, without the figures."""
    articles = [
        f"<article><h3>{escape(name)}</h3>{paragraph(applications.in_words(run))}"
        f"{table((), run.figures, (1,)) if measured else ''}</article>"
        for name, run, measured in named_applications(documents, pretended)
    ]
    return f'<div class="pair">{"".join(articles)}</div>' if articles else ""


# -------------------------------------------------------------------------------------------------------- the timeline


def _timelines(document: Document) -> str:
    return "".join(map(_timeline, document.timelines))


def _timeline(line: Timeline) -> str:
    names = list(dict.fromkeys(span.category or span.name for span in line.spans))
    free = [style for style in range(1, charts.SERIES_STYLES + 1) if style not in map(PATH_STYLES.get, names)] or [8]
    others = [name for name in names if name not in PATH_STYLES]
    styles = {**PATH_STYLES, **{name: free[index % len(free)] for index, name in enumerate(others)}}
    blocks = [
        charts.Block(
            span.lane,
            span.start_us,
            span.duration_us,
            span.name,
            styles[span.category or span.name],
            f"{line.lanes[span.lane]}, {span.name}{f' ({span.category})' if span.category else ''}: "
            f"{units.time(span.duration_us)} from {units.time(span.start_us)} on",
        )
        for span in line.spans
    ]
    end_us = max(span.start_us + span.duration_us for span in line.spans)
    busy: dict[str, float] = {}
    for span in line.spans:
        busy[span.name] = busy.get(span.name, 0.0) + span.duration_us
    longest = ", ".join(
        f"{name} {units.time(time_us)}" for name, time_us in sorted(busy.items(), key=lambda one: (-one[1], one[0]))[:4]
    )
    caption = f"{len(line.lanes)} lanes, {units.time(end_us)}. Longest in total: {longest}."
    if line.left_out:
        caption += f" The {units.count(line.left_out)} shortest events are left out."
    caption += f" {line.note}" if line.note else ""
    chart = charts.both(
        lambda layout: charts.timeline(
            layout, line.lanes, blocks, end_us, title=f"Timeline of {line.source}", description=caption
        ),
        charts.FULL,
    )
    colours = charts.legend((name, styles[name]) for name in names[:MOST_COLOURS])
    return f"<h3>{escape(line.source)}</h3>{colours}{_figure(chart, caption)}"


# -------------------------------------------------------------------------------------------------------------- the end


def _settings(documents: Sequence[Document]) -> str:
    rows = differing_settings(documents)
    return table(("setting", "value", "files"), rows) if rows else ""


def _problems(report: Report) -> str:
    seen = [one for one in report.series if one.unavailable]
    reasons: dict[str, dict[str, None]] = {}
    for one in seen:
        reasons.setdefault(one.unavailable, {})[_what(one)] = None
    rows = [(", ".join(names), f"could not run: {reason}") for reason, names in reasons.items()]
    rows += [(name, problem) for name, problem in report.problems]
    rows += [("left out", note) for document in report.documents for note in document.notes]
    wrong = [one for one in report.series if one.failed]
    rows += [(_what(one), f"WRONG DATA at {_wrong_sizes(one)}") for one in wrong]
    return table((), rows) if rows else ""


def _what(series: Series) -> str:
    return " ".join(filter(None, (series.test, series.implementation, series.mode, series.buffers)))


def _wrong_sizes(series: Series) -> str:
    return ", ".join(units.size(point.size_bytes) for point in series.points if point.errors)


def _manifest(report: Report) -> str:
    shared = shared_manifest(report.documents)
    parts = [table((), sorted(shared.items()))] if shared else []
    if report.commands:
        parts.append("<h3>Commands</h3>" + table((), report.commands))
    rows = []
    for document in report.documents:
        own = {name: value for name, value in document.manifest.items() if name not in shared}
        parts_of = [f"{name}: {value}" for name, value in sorted(own.items())]
        rows.append((document.label, ", ".join(document.dialects), "; ".join(parts_of)))
    parts.append(
        folded(
            "The files that were read" if len(rows) > 1 else "The file that was read",
            table(("name", "kind", "what only this file says"), rows),
        )
    )
    return "".join(parts)
