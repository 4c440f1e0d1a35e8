# SPDX-License-Identifier: Apache-2.0
"""A timeline as a picture: a lane for each rank, in it a row for whatever may overlap; time runs from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from awaken import svg

WIDTH = 1000.0
LEFT = 150.0
RIGHT = 14.0
ROW_HEIGHT = 17.0
BAR_HEIGHT = 14.0
LANE_GAP = 12.0
NARROWEST = 0.6
"""Shorter bars are drawn this wide, and not at all where their place is taken by an equal one."""

THREAD_KINDS = ("range", "mpi")
"""These lie in one another on their thread; everything else has rows of its own."""
BESIDE = ("kernel", "copy", "background")
"""The order of those rows."""
OTHERS = "other"
LONGEST_NAME = 40
"""In the legend."""
NAMED = len(svg.PALETTE) - 1
"""As many names as get a colour and an entry of the legend; the rest share the last colour."""


class Bar(NamedTuple):
    """Something that took from `begin` to `end`, in seconds. `row` names where it was, `number` orders the rows."""

    kind: str
    name: str
    row: str
    number: int
    begin: float
    end: float


@dataclass
class Lane:
    """What one rank did."""

    title: str
    bars: list[Bar]


@dataclass
class Row:
    """Bars that do not overlap, in the order of time."""

    title: str
    bars: list[Bar]


def _stacked(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Bars that lie in one another, by their depth."""
    levels: list[list[Bar]] = []
    enclosing: list[float] = []
    for bar in sorted(bars, key=lambda b: (b.begin, -b.end)):
        while enclosing and enclosing[-1] <= bar.begin:
            enclosing.pop()
        if len(enclosing) == len(levels):
            levels.append([])
        levels[len(enclosing)].append(bar)
        enclosing.append(bar.end)
    return levels


def _side_by_side(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Bars that overlap, in as few rows as do not."""
    rows: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda b: (b.begin, -b.end)):
        free = next((row for row in rows if row[-1].end <= bar.begin), None)
        if free is None:
            rows.append([bar])
        else:
            free.append(bar)
    return rows


def rows_of(lane: Lane) -> list[Row]:
    """Threads first, each by depth; then operations under way, copies, kernels and background work."""
    rows: list[Row] = []
    on_threads = [bar for bar in lane.bars if bar.kind in THREAD_KINDS]
    threads = sorted({bar.number for bar in on_threads})
    for number in threads:
        of_thread = [bar for bar in on_threads if bar.number == number]
        title = of_thread[0].row if len(threads) > 1 else ""
        for level in _stacked(of_thread):
            rows.append(Row(title or _title_of(level), level))
            title = ""
    under_way = [bar for bar in lane.bars if bar.kind == "nonblocking"]
    rows += [Row("in flight" if index == 0 else "", row) for index, row in enumerate(_side_by_side(under_way))]
    others = [bar for bar in lane.bars if bar.kind not in (*THREAD_KINDS, "nonblocking")]
    for _, number in sorted({(BESIDE.index(bar.kind), bar.number) for bar in others}):
        in_row = sorted((bar for bar in others if bar.number == number), key=lambda b: b.begin)
        rows.append(Row(in_row[0].row, in_row))
    return rows


def _title_of(level: Sequence[Bar]) -> str:
    kinds = {bar.kind for bar in level}
    return "ranges, MPI" if len(kinds) > 1 else "MPI" if kinds == {"mpi"} else "ranges"


def _colours(lanes: Sequence[Lane]) -> dict[str, str]:
    """A colour for each of the names that take most time."""
    totals: dict[str, float] = {}
    for lane in lanes:
        for bar in lane.bars:
            totals[bar.name] = totals.get(bar.name, 0.0) + bar.end - bar.begin
    named = sorted(totals, key=lambda name: (-totals[name], name))[:NAMED]
    colours = dict(zip(named, svg.PALETTE))
    if len(totals) > len(named):
        colours[OTHERS] = svg.PALETTE[-1]
    return colours


def _clipped(lanes: Sequence[Lane], window: tuple[float, float]) -> list[Lane]:
    begin, end = window
    return [Lane(lane.title, [bar for bar in lane.bars if bar.end > begin and bar.begin < end]) for lane in lanes]


def _whole(lanes: Sequence[Lane]) -> tuple[float, float]:
    begin = min((bar.begin for lane in lanes for bar in lane.bars), default=0.0)
    end = max((bar.end for lane in lanes for bar in lane.bars), default=0.0)
    return (begin, end) if begin < end else (begin, begin + 1e-6)


def _legend(drawing: svg.Drawing, colours: dict[str, str], y: float) -> None:
    x = LEFT
    for name, colour in colours.items():
        text = svg.shortened(name, LONGEST_NAME)
        if x > LEFT and x + 16 + svg.text_width(text, 11) > WIDTH - RIGHT:
            x, y = LEFT, y + 16
        drawing.rectangle(x, y - 9, 11, 11, colour)
        drawing.text(x + 15, y, text)
        x += 15 + svg.text_width(text, 11) + 18


def _legend_lines(colours: dict[str, str]) -> int:
    x, lines = LEFT, 1
    for name in colours:
        width = svg.text_width(svg.shortened(name, LONGEST_NAME), 11)
        if x > LEFT and x + 16 + width > WIDTH - RIGHT:
            x, lines = LEFT, lines + 1
        x += 15 + width + 18
    return lines


def draw(lanes: Sequence[Lane], window: tuple[float, float] | None, title: str, note: str = "") -> svg.Drawing:
    """The picture of all lanes, or of what lies in the window (begin and end in seconds). `note` stands behind the
    title of the axis."""
    begin, end = window or _whole(lanes)
    lanes = _clipped(lanes, (begin, end))
    colours = _colours(lanes)
    rows = [rows_of(lane) for lane in lanes]
    top = 56.0 if title else 38.0
    body = sum(max(len(of_lane), 1) * ROW_HEIGHT + LANE_GAP for of_lane in rows)
    height = top + body + 24 + 16 * _legend_lines(colours)
    drawing = svg.Drawing(WIDTH, height, title or "timeline")
    if title:
        drawing.text(LEFT, 18, title, size=14, bold=True)

    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    unit, factor = next(
        ((u, f) for u, f in (("s", 1.0), ("ms", 1e3), ("us", 1e6)) if (end - begin) * f >= 2), ("ns", 1e9)
    )
    for tick in svg.ticks(begin * factor, end * factor, 10):
        x = LEFT + (tick / factor - begin) * scale
        drawing.line(x, top, x, top + body - LANE_GAP, svg.FAINT)
        drawing.text(x, top - 5, f"{tick:.6g}", anchor="middle", size=10)
    axis = f"time since the start, {unit}" + (f" ({note})" if note else "")
    drawing.text((LEFT + WIDTH - RIGHT) / 2, top - 20, axis, anchor="middle", size=10)

    y = top + 4
    for lane, of_lane in zip(lanes, rows):
        drawing.text(6, y + 11, lane.title, bold=True)
        for row in of_lane:
            drawing.text(LEFT - 6, y + 11, row.title, anchor="end", size=10)
            _draw_row(drawing, row, y, begin, end, scale, colours)
            y += ROW_HEIGHT
        y += (ROW_HEIGHT if not of_lane else 0) + LANE_GAP
        drawing.line(0, y - LANE_GAP / 2, WIDTH, y - LANE_GAP / 2, svg.FAINT)
    _legend(drawing, colours, y + 12)
    return drawing


def _draw_row(
    drawing: svg.Drawing, row: Row, y: float, begin: float, end: float, scale: float, colours: dict[str, str]
) -> None:
    taken, taken_by = -1.0, ""
    for bar in row.bars:
        left = LEFT + (max(bar.begin, begin) - begin) * scale
        width = max((min(bar.end, end) - max(bar.begin, begin)) * scale, NARROWEST)
        colour = colours.get(bar.name, svg.PALETTE[-1])
        if left + width <= taken and colour == taken_by:
            continue
        tooltip = f"{bar.name}: {svg.duration(bar.end - bar.begin)} from {svg.duration(bar.begin)} on"
        drawing.rectangle(left, y, width, BAR_HEIGHT, colour, tooltip)
        taken, taken_by = max(taken, left + max(width, 2 * NARROWEST)), colour
        if width > svg.text_width(bar.name, 10) + 4:
            drawing.text(left + 3, y + 10.5, bar.name, size=10, colour=svg.text_colour(colour))
