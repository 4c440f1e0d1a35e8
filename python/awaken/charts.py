# SPDX-License-Identifier: Apache-2.0
"""Charts as SVG: lines over message sizes, ratios, heat maps, bars and timelines.

Static pictures without script, so that they print and open anywhere. Each is drawn for a wide and for a narrow
page, because text in an SVG shrinks with it; the page shows the one that fits. Colours are classes (s1 to s8, h0 to
h5), which the page's style sheet gives values, for light and dark. Whoever cannot tell the colours has markers,
dashes, and a label at each line or a legend with both. All text is escaped.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from awaken import units
from awaken.svg import escape, only_xml, shortened, ticks

CHARACTER_WIDTH = 6.9
"""Of the page's 11.5 px text in a wide font, on average: labels are placed without measuring them."""
BOLD_WIDTH = 7.6
"""The same of a line's label."""
LABEL_HEIGHT = 14.0
KEY_WIDTH = 30.0
"""Of the piece of a line that stands in front of its name in a legend."""
SERIES_STYLES = 8


@dataclass(frozen=True)
class Layout:
    """For whom a chart is drawn; lengths in pixels."""

    name: str
    width: int
    height: int
    label_characters: int
    """A line with a longer name has no label at its end; a legend under the plot then names all lines."""
    size_ticks: int


WIDE = Layout("wide", 552, 344, 26, 8)
NARROW = Layout("narrow", 346, 280, 0, 5)
FULL = Layout("wide", 1128, 344, 40, 12)
"""A wide page's whole width; WIDE is half of it."""
FILE = Layout("file", 720, 400, 26, 10)
"""A picture in a file of its own."""
SIZE_TICK_WIDTH = 50.0


@dataclass(frozen=True)
class Mark:
    """A point of a line: where, its band, and what is said of it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    title: str = ""


@dataclass(frozen=True)
class Line:
    label: str
    style: int
    """1 to SERIES_STYLES; 0 for a reference line."""
    marks: tuple[Mark, ...]


def both(draw: Callable[[Layout], str], wide: Layout = WIDE) -> str:
    """A chart for wide and for narrow pages."""
    return "".join(f'<div class="{layout.name}">{draw(layout)}</div>' for layout in (wide, NARROW))


def legend(names: Iterable[tuple[str, int]]) -> str:
    """What the styles of bars and blocks stand for."""
    keys = "".join(
        f'<span><svg viewBox="0 0 12 12" aria-hidden="true"><g class="b{style}">'
        f'<rect width="12" height="12" rx="2"/></g></svg>{escape(name)}</span>'
        for name, style in names
    )
    return f'<p class="legend">{keys}</p>'


def distinct(labels: Sequence[str], characters: int) -> list[str]:
    """Labels cut to so many characters, with as much of their ends as tells them apart."""
    for tail in range(characters):
        head = characters - 1 - tail
        cut = [
            label if len(label) <= characters else f"{label[:head]}…{label[len(label) - tail :]}" for label in labels
        ]
        if len(set(cut)) == len(set(labels)):
            return cut
    return [shortened(label, characters) for label in labels]


def svg(layout: Layout, height: float, title: str, description: str, body: Iterable[str]) -> str:
    """The frame of a chart, with what a screen reader says instead of it."""
    return (
        f'<svg viewBox="0 0 {layout.width} {height:g}" role="img" aria-label="{escape(f"{title}. {description}")}">'
        f"{''.join(body)}</svg>"
    )


FILE_STYLE = """\
text { font: 11.5px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1b1f24; }
.tick, .axis { fill: #59636e; } .label { font-weight: 600; } .grid { stroke: #e3e7ec; }
.base { stroke: #1b1f24; stroke-width: 1.4; } .leader { stroke: #59636e; stroke-width: 0.7; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .band { opacity: 0.2; }
"""
FILE_COLOURS = ("#59636e", "#0064a4", "#b64a00", "#007a5a", "#7b3f99", "#8a6d00", "#b0306f", "#31708f", "#4d4d4d")
FILE_DASHES = {0: "2 3", 3: "9 3", 5: "6 3", 6: "8 3 2 3", 7: "3 2", 8: "12 4"}
"""The page's style sheet for lines (page_style.py), in its light colours: a picture in a file has none to refer to."""


FILE_MARGIN = 36
"""Beside a chart: other programs' letters may be wider than the page's."""


def as_file(*charts: str) -> str:
    """Charts, side by side, as a file of their own on white ground."""
    rules = [FILE_STYLE]
    for style, colour in enumerate(FILE_COLOURS):
        dashes = f" stroke-dasharray: {FILE_DASHES[style]};" if style in FILE_DASHES else ""
        rules.append(f".s{style} {{ stroke: {colour};{dashes} }} .f{style}, text.t{style} {{ fill: {colour}; }}\n")
    body, width, height = "", 0, 0.0
    for chart in charts:
        size = re.match(r'<svg viewBox="0 0 (\S+) (\S+)"', chart)
        assert size is not None, "made by svg()"
        placed = f'\n<svg x="{width}" width="{size[1]}" height="{size[2]}" overflow="visible"{chart[len("<svg") :]}'
        body += re.sub(r"(?<=>)(?=<(?:line|polyline|polygon|g |text))", "\n", placed)
        width += int(size[1]) + FILE_MARGIN
        height = max(height, float(size[2]))
    return only_xml(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}">'
        f'\n<style>\n{"".join(rules)}</style>\n<rect width="100%" height="100%" fill="#ffffff"/>{body}\n</svg>\n'
    )


def text(x: float, y: float, content: str, classes: str = "", anchor: str = "start") -> str:
    attributes = f' class="{classes}"' if classes else ""
    anchored = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchored}{attributes}>{escape(content)}</text>'


# --------------------------------------------------------------------------------------------------------------- axes


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from a value to a pixel."""

    low: float
    high: float
    first_px: float
    last_px: float

    def __call__(self, value: float) -> float:
        low, high = math.log(self.low), math.log(self.high)
        part = (math.log(min(max(value, self.low), self.high)) - low) / (high - low)
        return self.first_px + part * (self.last_px - self.first_px)


def size_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of two at equal steps, at most so many."""
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    step = next(step for step in range(1, 64) if (last - first) // step + 1 <= max(most, 1))
    return [2.0**power for power in range(first, last + 1, step)]


def decade_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; with 2 and 5 between them where the axis has few."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    for factors, enough in (((1,), 3), ((1, 3), 3), ((1, 2, 5), 2), ((1, 1.5, 2, 3, 4, 5, 7), 0)):
        ticks = [factor * 10.0**decade for decade in decades for factor in factors]
        ticks = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]
        if len(ticks) >= enough:
            break
    while len(ticks) > 7:
        ticks = ticks[::2]
    return ticks


def ratio_ticks(low: float, high: float) -> list[float]:
    """Powers of two around 1, of ten where those would be many, or tenths where they would be few."""
    if high / low > 300:
        return [10.0**power for power in range(-12, 13) if low <= 10.0**power <= high]
    if high / low < 4:
        return [tick for tick in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.25, 1.5, 2, 2.5, 3) if low <= tick <= high]
    powers = range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)
    step = max(1, len(powers) // 6)
    return [2.0**power for power in powers if power % step == 0 and low <= 2.0**power <= high]


def spread(wanted: Sequence[float], lowest: float, highest: float, distance: float) -> list[float]:
    """Positions as near as possible to the wanted ones, none closer to another than `distance`."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [0.0] * len(wanted)
    above = lowest - distance
    for index in order:
        above = max(wanted[index], above + distance)
        placed[index] = above
    below = highest + distance
    for index in reversed(order):
        below = min(placed[index], below - distance)
        placed[index] = below
    return placed


# --------------------------------------------------------------------------------------------------------------- lines


def line_chart(
    layout: Layout,
    lines: Sequence[Line],
    *,
    title: str,
    description: str,
    y_title: str,
    y_text: Callable[[float], str],
    x_text: Callable[[float], str] = units.size,
    ratio: bool = False,
) -> str:
    """Lines with bands over message sizes, both axes logarithmic, each line labelled at its end.

    Marks need x > 0 and y > 0. With `ratio`, 1 is drawn as the line to which the others are compared.
    """
    marks = [mark for line in lines for mark in line.marks]
    values = [value for mark in marks for value in (mark.y, mark.low, mark.high) if value]
    if ratio:
        values += [0.8, 1.25]
    y_low, y_high = min(values), max(values)
    margin = (y_high / y_low) ** 0.06 if y_high > y_low else 1.5
    x_low, x_high = min(mark.x for mark in marks), max(mark.x for mark in marks)
    if x_low == x_high:
        x_low, x_high = x_low / 2, x_high * 2
    y_axis_values = (ratio_ticks if ratio else decade_ticks)(y_low / margin, y_high * margin)
    left = 10 + CHARACTER_WIDTH * max((len(y_text(tick)) for tick in y_axis_values), default=5)
    at_ends = all(len(line.label) <= layout.label_characters for line in lines)
    widest = max(len(line.label) for line in lines) if at_ends else 0
    right = layout.width - 16 - BOLD_WIDTH * widest
    y_titles = textwrap.wrap(y_title, int(layout.width / CHARACTER_WIDTH))
    top = 26.0 + LABEL_HEIGHT * (len(y_titles) - 1)
    bottom = layout.height - 40.0
    x = Axis(x_low, x_high, left + 6, right - 6)
    y = Axis(y_low / margin, y_high * margin, bottom, top)

    body = [text(2, 12 + LABEL_HEIGHT * index, part, "axis") for index, part in enumerate(y_titles)]
    for tick in y_axis_values:
        emphasis = "base" if ratio and tick == 1 else "grid"
        body.append(
            f'<line class="{emphasis}" x1="{left:.1f}" x2="{right:.1f}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        )
        body.append(text(left - 6, y(tick) + 4, y_text(tick), "tick", "end"))
    for tick in size_ticks(x_low, x_high, min(layout.size_ticks, int((right - left) / SIZE_TICK_WIDTH))):
        body.append(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{bottom:.1f}" y2="{bottom + 4:.1f}"/>'
        )
        body.append(text(x(tick), bottom + 17, x_text(tick), "tick", "middle"))
    body.append(text((left + right) / 2, layout.height - 6, "message size", "axis", "middle"))

    body += [_band(line, x, y) for line in lines]
    for line in lines:
        body.append(_path(line, x, y))
    if at_ends:
        body += _end_labels(lines, x, y)
        return svg(layout, layout.height, title, description, body)
    keys, height = _keys(layout, sorted(lines, key=lambda line: -line.marks[-1].y))
    return svg(layout, layout.height + height, title, description, body + keys)


def _end_labels(lines: Sequence[Line], x: Axis, y: Axis) -> list[str]:
    """Beside the plot, with a leader where a label had to move; inside of it where a line ends early."""
    body = []
    right = x.last_px + 6
    reaching = [line for line in lines if right - x(line.marks[-1].x) <= 12]
    wanted = [y(line.marks[-1].y) for line in reaching]
    for line, at, want in zip(reaching, spread(wanted, y.last_px + 4, y.first_px, LABEL_HEIGHT), wanted):
        end = x(line.marks[-1].x)
        if abs(at - want) > 3:
            body.append(f'<line class="leader" x1="{end + 5:.1f}" y1="{want:.1f}" x2="{right + 4:.1f}" y2="{at:.1f}"/>')
        body.append(text(right + 7, at + 4, line.label, f"label t{line.style}"))
    taken = [point for line in lines for point in _points_along(line, x, y)]
    for line in lines:
        if line in reaching:
            continue
        width = BOLD_WIDTH * len(line.label)
        end, level = x(line.marks[-1].x), y(line.marks[-1].y)
        # The left edge and the base line of the label: behind the mark, above and below it, in front of it.
        above, below, before = level - 9, level + 18, end - width - 9
        places = [
            (end + 9, level + 4), (end - width / 2, above), (end - width / 2, below),
            (before, level + 4), (end - width, above), (end - width, below), (end, above), (end, below),
        ]  # fmt: skip
        inside = [
            (at, base)
            for at, base in places
            if x.first_px <= at <= right - width and y.last_px + 10 <= base <= y.first_px - 3
        ]
        at, base = min(
            inside or places[3:4],
            key=lambda place: sum(
                place[0] - 3 < px < place[0] + width + 3 and place[1] - 12 < py < place[1] + 5 for px, py in taken
            ),
        )
        body.append(text(at, base, line.label, f"label t{line.style}"))
        taken += [(at + part * width / 16, base - 4) for part in range(17)]
    return body


def _points_along(line: Line, x: Axis, y: Axis) -> list[tuple[float, float]]:
    """So near to one another that no label fits between two of them."""
    marks = [(x(mark.x), y(mark.y)) for mark in line.marks]
    steps = [part / 32 for part in range(32)]
    return marks + [
        (px + (to_x - px) * part, py + (to_y - py) * part)
        for (px, py), (to_x, to_y) in zip(marks, marks[1:])
        for part in steps
    ]


def _keys(layout: Layout, lines: Sequence[Line]) -> tuple[list[str], float]:
    """A legend under a plot, and its height: a piece of each line and its whole name, in several rows if it is long."""
    body, y = [], layout.height + LABEL_HEIGHT
    for line in lines:
        body.append(
            f'<line class="line s{line.style}" x1="2" x2="{KEY_WIDTH - 6:g}" y1="{y - 4:g}" y2="{y - 4:g}"/>'
            f'<g class="mark f{line.style}">{_marker(line.style, KEY_WIDTH / 2 - 2, y - 4)}</g>'
        )
        for part in textwrap.wrap(line.label, int((layout.width - KEY_WIDTH) / BOLD_WIDTH)) or [""]:
            body.append(text(KEY_WIDTH, y, part, f"label t{line.style}"))
            y += LABEL_HEIGHT
        y += 3
    return body, y - layout.height - LABEL_HEIGHT + 4


def _band(line: Line, x: Axis, y: Axis) -> str:
    ends = [(x(mark.x), y(mark.low), y(mark.high)) for mark in line.marks if mark.low and mark.high]
    if len(ends) < 2:
        return ""
    path = [f"{px:.1f},{high:.1f}" for px, _, high in ends] + [f"{px:.1f},{low:.1f}" for px, low, _ in reversed(ends)]
    return f'<polygon class="band f{line.style}" points="{" ".join(path)}"/>'


def _path(line: Line, x: Axis, y: Axis) -> str:
    points = [(x(mark.x), y(mark.y)) for mark in line.marks]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    drawn = [f'<polyline class="line s{line.style}" points="{path}"/>'] if len(points) > 1 else []
    for mark, (px, py) in zip(line.marks, points):
        drawn.append(
            f'<g class="mark f{line.style}">{_marker(line.style, px, py)}<title>{escape(mark.title)}</title></g>'
        )
    return "".join(drawn)


def _marker(style: int, x: float, y: float) -> str:
    """A small shape that differs between styles, so that lines can be told apart without their colours."""
    shape = style % 4
    if shape == 1:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.8"/>'
    if shape == 2:
        return f'<rect x="{x - 2.6:.1f}" y="{y - 2.6:.1f}" width="5.2" height="5.2"/>'
    if shape == 3:
        return f'<path d="M{x:.1f} {y - 3.5:.1f}l3.4 6h-6.8z"/>'
    return f'<path d="M{x:.1f} {y - 3.7:.1f}l3.7 3.7l-3.7 3.7l-3.7 -3.7z"/>'


# ------------------------------------------------------------------------------------------------------------ heat map


@dataclass(frozen=True)
class HeatCell:
    text: str
    level: int | None
    """0 to 5, or None where there is no value."""
    title: str
    below: str = ""
    """A second, smaller line."""


def heat_map(
    layout: Layout,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[HeatCell]],
    *,
    title: str,
    description: str,
    row_title: str,
    column_title: str,
) -> str:
    """A matrix of coloured cells with their text; a cell without value is hatched."""
    characters = layout.label_characters or 8
    rows, columns = distinct(rows, characters), distinct(columns, characters)
    left = 14 + CHARACTER_WIDTH * max(map(len, rows))
    cell_width = min((layout.width - left - 4) / len(columns), 84.0)
    cell_height = 30.0 if layout is NARROW else 34.0
    column_width = CHARACTER_WIDTH * max(map(len, columns))
    turned = column_width > cell_width - 8
    top = 22.0 + (column_width if turned else 18.0)
    body = [
        text(2, 12, f"{row_title} ↓", "axis"),
        text(left + len(columns) * cell_width / 2, 12, f"{column_title} →", "axis", "middle"),
    ]
    for index, column in enumerate(columns):
        at = left + (index + 0.5) * cell_width
        if turned:
            label = text(0, 4, column, "tick")
            body.append(f'<g transform="translate({at:.1f} {top - 4:.1f}) rotate(-90)">{label}</g>')
        else:
            body.append(text(at, top - 5, column, "tick", "middle"))
    for index, row in enumerate(rows):
        y = top + index * cell_height
        body.append(text(left - 6, y + cell_height / 2 + 4, row, "tick", "end"))
        for position, cell in enumerate(cells[index]):
            style = "missing" if cell.level is None else f"h{cell.level}"
            x = left + position * cell_width
            body.append(
                f'<g class="cell {style}"><rect x="{x + 1:.1f}" y="{y + 1:.1f}" width="{cell_width - 2:.1f}" '
                f'height="{cell_height - 2:.1f}" rx="3"/>'
                f"{_cell_text(cell, x + cell_width / 2, y + cell_height / 2 + 4, cell_width)}"
                f"<title>{escape(cell.title)}</title></g>"
            )
    return svg(layout, top + len(rows) * cell_height + 6, title, description, body)


def _cell_text(cell: HeatCell, x: float, y: float, width: float) -> str:
    if not cell.below:
        return text(x, y, _fitting(cell.text, width), "", "middle")
    upper = text(x, y - 5, _fitting(cell.text, width), "", "middle")
    return upper + text(x, y + 7, _fitting(cell.below, width), "below", "middle")


def _fitting(content: str, width: float) -> str:
    return shortened(content, max(2, int((width - 2) / CHARACTER_WIDTH)))


# ---------------------------------------------------------------------------------------------------------------- bars


@dataclass(frozen=True)
class Bar:
    label: str
    parts: tuple[tuple[str, float, int, str], ...]
    """Name, share of the bar, style, and what is said of it."""
    remark: str


def share_bars(layout: Layout, bars: Sequence[Bar], *, title: str, description: str) -> str:
    """One bar for each thing, divided into shares that add up to 1; its remark stands under its name."""
    row = 40.0
    body = []
    for index, bar in enumerate(bars):
        y = index * row + 13
        body.append(text(2, y, bar.label, "label"))
        body.append(text(layout.width - 2, y, shortened(bar.remark, 26 if layout is NARROW else 44), "tick", "end"))
        x = 2.0
        for name, share, style, said in bar.parts:
            width = share * (layout.width - 4)
            inside = text(x + 5, y + 17, name, "in") if width > 12 + CHARACTER_WIDTH * len(name) else ""
            body.append(
                f'<g class="bar b{style}"><rect x="{x:.1f}" y="{y + 5:.1f}" width="{max(width - 1, 0.5):.1f}" '
                f'height="17" rx="2"/>{inside}<title>{escape(said)}</title></g>'
            )
            x += width
    bottom = len(bars) * row
    for percent in (0, 25, 50, 75, 100):
        x = 2 + percent / 100 * (layout.width - 4)
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.1f}" y2="{bottom + 4:.1f}"/>')
        anchor = "start" if percent == 0 else "end" if percent == 100 else "middle"
        body.append(text(x, bottom + 16, f"{percent}", "tick", anchor))
    body.append(text(layout.width / 2, bottom + 31, "share of the bytes, %", "axis", "middle"))
    return svg(layout, bottom + 36, title, description, body)


# ------------------------------------------------------------------------------------------------------------ timeline


ROW_HEIGHT = 18.0
MOST_ROWS = 16
"""Of a lane. Bars of the last one may lie over one another, and have no text."""


@dataclass(frozen=True)
class Block:
    lane: int
    start: float
    length: float
    label: str
    style: int
    title: str


def timeline(
    layout: Layout, lanes: Sequence[str], blocks: Sequence[Block], end_us: float, *, title: str, description: str
) -> str:
    """Blocks on lanes over time from 0 to `end_us`. What overlaps has a row of its own: calls by their depth, what is
    under way beside something else below it."""
    characters = 13 if layout is NARROW else 24
    parts = [lane.partition(", ")[::2] for lane in lanes]
    processes, threads = (distinct(column, characters) for column in zip(*parts))
    names = [[part for part in name if part] for name in zip(processes, threads)]
    left = 10 + CHARACTER_WIDTH * max(len(part) for name in names for part in name)
    width = layout.width - left - 8
    scale = width / end_us if end_us > 0 else 0.0
    body: list[str] = []
    y = 8.0
    for index, name in enumerate(names):
        placed = _rows([block for block in blocks if block.lane == index])
        depth = max((row for row, _ in placed), default=0) + 1
        lane_height = max(ROW_HEIGHT * depth, 12.0 * len(name) + 4)
        body += [text(left - 6, y + 13 + 12 * line, part, "tick", "end") for line, part in enumerate(name)]
        for row, block in placed:
            x, block_width = left + block.start * scale, max(block.length * scale, 1.2)
            shown = row < MOST_ROWS - 1 and block_width > 8 + CHARACTER_WIDTH * len(block.label)
            inside = text(x + 4, y + row * ROW_HEIGHT + 13, block.label, "in") if shown else ""
            body.append(
                f'<g class="bar b{block.style}"><rect x="{x:.1f}" y="{y + row * ROW_HEIGHT:.1f}" '
                f'width="{block_width:.1f}" height="{ROW_HEIGHT - 1:.1f}"/>{inside}<title>{escape(block.title)}</title>'
                "</g>"
            )
        y += lane_height + 5
        body.append(f'<line class="grid" x1="{left:.1f}" x2="{left + width:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        y += 6
    unit, unit_us = next(((unit, us) for unit, us in (("s", 1e6), ("ms", 1e3)) if end_us >= 2 * us), ("µs", 1.0))
    grid: list[str] = []
    for tick in ticks(0.0, end_us / unit_us, 3 if layout is NARROW else 8):
        x = left + tick * unit_us * scale
        grid.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{y:.1f}"/>')
        grid.append(text(x, y + 15, f"{tick:.6g}", "tick", "middle"))
    grid.append(text(left + width / 2, y + 31, f"time since the start, {unit}", "axis", "middle"))
    return svg(layout, y + 38, title, description, grid + body)


def _rows(blocks: Sequence[Block]) -> list[tuple[int, Block]]:
    """Each block with the first row of its lane that is free when it begins; the last row takes what is left over."""
    free_from = [-math.inf]
    placed = []
    for block in sorted(blocks, key=lambda block: (block.start, -block.length)):
        row = next((row for row, until in enumerate(free_from) if until <= block.start), len(free_from))
        row = min(row, MOST_ROWS - 1)
        if row == len(free_from):
            free_from.append(-math.inf)
        free_from[row] = max(free_from[row], block.start + block.length)
        placed.append((row, block))
    return placed
