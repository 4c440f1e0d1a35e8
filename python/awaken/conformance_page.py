# SPDX-License-Identifier: Apache-2.0
"""The conformance matrix as one HTML page that needs nothing else. All text from outside is escaped."""

from __future__ import annotations

from collections import Counter
from typing import Any

from awaken import conformance
from awaken.svg import escape

COLOURS = {
    "works": ("#d8f0dc", "#14532d"),
    "wrong data": ("#e9d5ff", "#581c87"),
    "error": ("#fde7c2", "#7c2d12"),
    "crash": ("#fbd0d0", "#7f1d1d"),
    "hang": ("#c9d8f5", "#1e3a8a"),
    "refused": ("#f6efc8", "#713f12"),
    "unavailable": ("#eeeeee", "#555555"),
    "absent": ("#ffffff", "#888888"),
    conformance.NOT_TRIED: ("#ffffff", "#888888"),
}
SIDES = (("native", "alone"), ("awaken", "Awaken"))

STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.4rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: .2rem .5rem; border: 1px solid #ccc; }
thead th { background: #f5f5f5; position: sticky; top: 0; } tbody th { text-align: left; font-weight: normal; }
th.family { background: #f5f5f5; font-weight: bold; }
code { font-size: 13px; }
""" + "\n".join(
    f".{name.replace(' ', '-')} {{ background: {background}; color: {ink}; }}"
    for name, (background, ink) in COLOURS.items()
)


def page(report: dict[str, Any]) -> str:
    """The page of a report with a matrix."""
    matrix, mpi, gpu = report["matrix"], report["mpi"], report["gpu"]
    counts = {side: Counter(cell[side]["status"] for cell in matrix["cells"]) for side, _ in SIDES}
    summary = "".join(
        f"<li>{title}: "
        + ", ".join(f"{counts[side][status]} {status}" for status in conformance.STATUSES if counts[side][status])
        + f" ({matrix['seconds'][side]:.1f} s in {matrix['jobs'][side]} jobs)</li>"
        for side, title in (("native", "The MPI alone"), ("awaken", "With Awaken"))
    )
    emulated = " (emulated)" if report["emulated"] else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>MPI on GPU memory: {escape(mpi["name"])}</title><style>{STYLE}</style></head><body>
<h1>MPI on GPU memory: {escape(mpi["name"])}</h1>
<p><code>{escape(mpi["library"])}</code> on {escape(report["host"])}, {escape(gpu["name"])}{emulated},
{escape(gpu["runtime"])}, {escape(report["date"])}. Each cell is a call with that memory on {matrix["ranks"]} ranks,
with the data checked.</p>
<ul>{summary}</ul>
<div class="scroll"><table><thead>{head(matrix["kinds"])}</thead><tbody>{body(matrix)}</tbody></table></div>
</body></html>
"""


def head(kinds: list[str]) -> str:
    """Two rows: the kinds of memory, and natively and with Awaken under each."""
    upper = "".join(f'<th colspan="2">{escape(kind)}</th>' for kind in kinds)
    lower = "".join(f"<th>{title}</th>" for _ in kinds for _, title in SIDES)
    return f'<tr><th rowspan="2">function</th>{upper}</tr><tr>{lower}</tr>'


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
            html.append(f'<tr><th class="family" colspan="{1 + 2 * len(matrix["kinds"])}">{escape(family)}</th></tr>')
        html.append(f"<tr><th><code>{escape(function)}</code></th>")
        html += [status_cell(cells[kind][side]) for kind in matrix["kinds"] for side, _ in SIDES]
        html.append("</tr>")
    return "".join(html)


def status_cell(answer: dict[str, str]) -> str:
    """Statuses that are unknown here are shown without a colour."""
    status = answer["status"]
    name = status.replace(" ", "-") if status in COLOURS else ""
    return f'<td class="{name}" title="{escape(answer["text"])}">{escape(status)}</td>'
