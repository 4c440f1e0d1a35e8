# SPDX-License-Identifier: Apache-2.0
"""The conformance matrix as one HTML page that needs nothing else. All text from outside is escaped."""

from __future__ import annotations

from collections import Counter
from typing import Any

from awaken import conformance
from awaken.page_style import SCROLLING, STYLE
from awaken.svg import escape

SIDES = (("native", "alone"), ("awaken", "Awaken"))
EXPLAINED = {
    "works": "the data are right",
    "refused": "Awaken ends the call with an error that its documentation announces",
    "unavailable": "there is no such memory here",
    "absent": "the MPI has no such function",
    conformance.NOT_TRIED: "the time was up, or the command was interrupted",
}


def page(report: dict[str, Any]) -> str:
    """The page of a report with a matrix, in the style of `awaken report`."""
    matrix, mpi, gpu = report["matrix"], report["mpi"], report["gpu"]
    answers = "".join(
        _answer(side, title, matrix) for side, title in (("native", "The MPI alone"), ("awaken", "With Awaken"))
    )
    emulated = " (emulated)" if report["emulated"] else ""
    seen = {cell[side]["status"] for cell in matrix["cells"] for side, _ in SIDES}
    legend = " ".join(f"{name}: {text}." for name, text in EXPLAINED.items() if name in seen)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>MPI on GPU memory: {escape(mpi["name"])}</title><style>
{STYLE}</style></head><body>
<header><h1>MPI on GPU memory: {escape(mpi["name"])}</h1>
<p class="lead"><code>{escape(mpi["library"])}</code> on {escape(report["host"])}, {escape(gpu["name"])}{emulated},
{escape(gpu["runtime"])}, {escape(report["date"])}</p>
<ul class="answers">{answers}</ul></header>
<main><h2>Every call with every kind of memory</h2>
<p>Each cell is a call with that memory on {matrix["ranks"]} ranks, with the data checked. {legend}</p>
{SCROLLING}<table class="matrix"><thead>{head(matrix["kinds"])}</thead><tbody>{body(matrix)}</tbody></table></div>
</main></body></html>
"""


def _answer(side: str, title: str, matrix: dict[str, Any]) -> str:
    """How often each status was found."""
    counts = Counter(cell[side]["status"] for cell in matrix["cells"])
    failed = sum(counts[status] for status in conformance.FAILURES)
    works = f"{counts['works']} of {len(matrix['cells'])} cells work"
    jobs = matrix["jobs"][side]
    took = f"{matrix['seconds'][side]:.1f} s in {jobs} job{'s' if jobs != 1 else ''}"
    return (
        f'<li class="{"bad" if failed else "good"}"><p class="question">{title}</p>'
        f'<p class="headline">{works}</p><p class="detail">{conformance.counted(counts)}</p>'
        f'<p class="detail">{took}</p></li>'
    )


def head(kinds: list[str]) -> str:
    """Two rows: the kinds of memory, and natively and with Awaken under each."""
    upper = "".join(f'<th scope="colgroup" colspan="2">{escape(kind)}</th>' for kind in kinds)
    lower = "".join(f'<th scope="col">{title}</th>' for _ in kinds for _, title in SIDES)
    return f'<tr><th rowspan="2" scope="col">function</th>{upper}</tr><tr>{lower}</tr>'


def body(matrix: dict[str, Any]) -> str:
    """A row for each function, under its family's name."""
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    families: dict[str, str] = {}
    for cell in matrix["cells"]:
        rows.setdefault(cell["function"], {})[cell["kind"]] = cell
        families[cell["function"]] = cell["family"]
    html = []
    family = None
    for function, cells in rows.items():
        if families[function] != family:
            family = families[function]
            columns = 1 + 2 * len(matrix["kinds"])
            html.append(f'<tr><th class="family" scope="rowgroup" colspan="{columns}">{escape(family)}</th></tr>')
        html.append(f'<tr><th scope="row">{escape(function)}</th>')
        html += [status_cell(cells[kind][side]) for kind in matrix["kinds"] for side, _ in SIDES]
        html.append("</tr>")
    return "".join(html)


def status_cell(answer: dict[str, str]) -> str:
    """What is neither right nor wrong stays grey."""
    status = answer["status"]
    style = "works" if status == "works" else "failed" if status in conformance.FAILURES else "neither"
    return f'<td class="{style}" title="{escape(answer["text"])}">{escape(status)}</td>'
