# SPDX-License-Identifier: Apache-2.0
"""From measured series to charts: which belong together, how they are called, which style each gets, and what to
see in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from awaken import charts, pairs, units
from awaken.findings import name_of
from awaken.results import BANDWIDTH, PRETENDED_NODES, TIME, UNKNOWN_TEST, Point, Series, by_test

STYLES = {"awaken": 1, "native": 2, "xccl": 3, "staged": 5, "raw": 0}
"""The same thing has the same colour in every chart."""
OTHER_STYLES = (2, 4, 6, 7, 8, 1, 3, 5)
MOST_LINES = 12
"""In one chart; the rest are in its table."""
ORDER = [
    "latency",
    "pingpong",
    "bw",
    "bibw",
    "mbw_mr",
    "multi_lat",
    "put_latency",
    "put_bw",
    "put_bibw",
    "get_latency",
    "get_bw",
    "acc_latency",
    "allreduce",
    "bcast",
    "reduce",
    "allgather",
    "alltoall",
    "reduce_scatter",
]
TITLES = {
    "latency": "Latency",
    "bw": "Bandwidth",
    "bibw": "Bandwidth in both directions",
    "pingpong": "Ping-pong",
    "mbw_mr": "Bandwidth of many pairs",
    "multi_lat": "Latency of many pairs",
    "latency_mt": "Latency with threads",
    "latency_mp": "Latency with processes",
    "latency_between_nodes": "Latency between nodes",
    "bw_between_nodes": "Bandwidth between nodes",
    "bibw_between_nodes": "Bandwidth between nodes in both directions",
    "put_latency": "Latency of put",
    "put_bw": "Bandwidth of put",
    "put_bibw": "Bandwidth of put in both directions",
    "get_latency": "Latency of get",
    "get_bw": "Bandwidth of get",
    "acc_latency": "Latency of accumulate",
    "get_acc_latency": "Latency of get and accumulate",
    "fop_latency": "Latency of fetch and add",
    "cas_latency": "Latency of compare and swap",
    UNKNOWN_TEST: "A test that the log does not name",
}


@dataclass(frozen=True)
class Labelled:
    """A series in a picture."""

    series: Series
    label: str
    style: int


@dataclass(frozen=True)
class Picture:
    """Series of one test on as many ranks."""

    test: str
    ranks: int | None
    lines: tuple[Labelled, ...]
    unavailable: tuple[Labelled, ...]

    @property
    def title(self) -> str:
        name = TITLES.get(self.test, self.test.replace("_", " ").capitalize())
        if any(PRETENDED_NODES in line.series.mode for line in self.lines):
            name += f" ({PRETENDED_NODES})"
        nodes = {line.series.nodes for line in self.lines}
        told = [plural(self.ranks, "rank"), plural(nodes.pop(), "node") if len(nodes) == 1 else ""]
        return ", ".join([name, *filter(None, [" on ".join(filter(None, told))])])

    @property
    def quantity(self) -> str:
        return self.lines[0].series.quantity if self.lines else TIME

    @property
    def curved(self) -> bool:
        """Whether there is more than one size to draw; a barrier has none."""
        return len({point.size_bytes for line in self.lines for point in drawable(line.series)}) > 1


def plural(number: int | None, what: str) -> str:
    """ "1 node", "2 nodes"; empty where the number is not known."""
    return f"{number} {what}{'s' if number > 1 else ''}" if number else ""


def pictures(series: Iterable[Series]) -> list[Picture]:
    """All series, grouped; point-to-point tests first, then the common collectives, then by name."""
    groups = by_test(list(series))
    found = []
    for (test, ranks), group in groups.items():
        quantities = sorted({one.quantity for one in group if one.points}, reverse=True) or [TIME]
        for quantity in quantities:
            here = [one for one in group if one.quantity == quantity or not one.points]
            labelled = label(here)
            lines = tuple(one for one in labelled if one.series.points)
            unavailable = tuple(one for one in labelled if not one.series.points and one.series.unavailable)
            if lines or unavailable:
                found.append(Picture(test, ranks, lines, unavailable))

    def key(picture: Picture) -> tuple[int, str, int]:
        place = ORDER.index(picture.test) if picture.test in ORDER else len(ORDER)
        return place, picture.test, picture.ranks or 0

    return sorted(found, key=key)


def label(group: Sequence[Series]) -> list[Labelled]:
    """Names by what differs among the series of a picture, and no more."""
    measured = [one for one in group if one.points]
    differing = [
        attribute
        for attribute in ("pair", "nodes", "mode", "buffers", "settings")
        if len({getattr(one, attribute) for one in measured if getattr(one, attribute)}) > 1
    ]
    labelled: list[Labelled] = []
    taken: set[int] = set()
    words = [_words(one, differing) for one in group]
    for one, name in zip(group, words):
        same = [other for other, their in zip(group, words) if their == name and other.points]
        if len({other.type for other in same}) > 1 and one.type:
            name = f"{name}, {one.type}"
        if len({other.source for other in same}) > 1 and one.source not in name.split(", "):
            name = f"{name}, {one.source}"
        style = STYLES.get(one.implementation, -1)
        if style < 0 or style in taken:
            unused = (other for other in OTHER_STYLES if other not in taken)
            style = next(unused, OTHER_STYLES[len(labelled) % len(OTHER_STYLES)])
        if one.points:
            taken.add(style)
        labelled.append(Labelled(one, name, style))
    return _numbered(labelled)


def _numbered(labelled: Sequence[Labelled]) -> list[Labelled]:
    """Tables of one log that differ in nothing that is told are numbered: a benchmark was run again, maybe on another
    number of ranks, which logs may not tell."""
    names = [one.label if one.series.points else None for one in labelled]
    return [
        replace(one, label=f"{name}, table {names[: index + 1].count(name)} of the log")
        if name is not None and names.count(name) > 1
        else one
        for index, (one, name) in enumerate(zip(labelled, names))
    ]


def _words(series: Series, attributes: Sequence[str]) -> str:
    texts = {attribute: getattr(series, attribute) for attribute in attributes}
    texts.update(nodes=plural(series.nodes, "node") if "nodes" in texts else "")
    if "pair" in texts:
        words = pairs.in_words(series.pair) if series.pair else ""
        texts.update(pair="" if words in series.mode else words)
    return ", ".join([name_of(series), *filter(None, texts.values())])


def drawable(series: Series) -> list[Point]:
    """Points that a logarithmic chart can show."""
    return [point for point in series.points if point.size_bytes > 0 and point.value > 0]


def curve(picture: Picture) -> str:
    """The values over sizes, for the page."""
    return charts.both(lambda layout: curve_of(picture, layout))


def curve_of(picture: Picture, layout: charts.Layout, heading: str = "") -> str:
    """The values over sizes. `heading` stands in front of what the axis says."""
    quantity = picture.quantity
    shown = [line for line in picture.lines if drawable(line.series)][:MOST_LINES]
    lines = [
        charts.Line(
            one.label,
            one.style,
            tuple(
                charts.Mark(point.size_bytes, point.value, point.low, point.high, _said(one.label, point, quantity))
                for point in drawable(one.series)
            ),
        )
        for one in shown
    ]
    y_title = "bandwidth, more is better" if quantity == BANDWIDTH else "time of one operation, less is better"

    if heading:
        y_title = f"{heading}: {y_title}"

    def y_text(value: float) -> str:
        return units.of(quantity, value)

    return charts.line_chart(
        layout, lines, title=picture.title, description=caption(picture), y_title=y_title, y_text=y_text
    )


def _said(name: str, point: Point, quantity: str) -> str:
    band = ""
    if point.low is not None and point.high is not None:
        band = f" [{units.of(quantity, point.low)} to {units.of(quantity, point.high)}]"
    return f"{name}, {units.size(point.size_bytes)}: {units.of(quantity, point.value)}{band}"


# -------------------------------------------------------------------------------------------------------------- ratios


@dataclass(frozen=True)
class Ratio:
    """Times of one series to those of the first: below 1 is faster."""

    line: Labelled
    marks: tuple[charts.Mark, ...]


def ratios(picture: Picture) -> tuple[Labelled, list[Ratio]] | None:
    """Times relative to a first series (Awaken where it was measured), or None where nothing can be compared."""
    candidates = [one for one in picture.lines if drawable(one.series)]
    if len(candidates) < 2:
        return None
    base = next((one for one in candidates if one.series.implementation == "awaken"), candidates[0])
    found = []
    for one in candidates[:MOST_LINES]:
        same_mode = [other for other in candidates if other.series.implementation == base.series.implementation]
        own_base = next((other for other in same_mode if other.series.mode == one.series.mode), base)
        if one is own_base:
            continue
        marks = _ratio_marks(one, own_base, picture.quantity)
        if marks:
            found.append(Ratio(one, tuple(marks)))
    return (base, found) if found else None


def _ratio_marks(one: Labelled, base: Labelled, quantity: str) -> list[charts.Mark]:
    bases = {point.size_bytes: point for point in drawable(base.series)}
    marks = []
    for point in drawable(one.series):
        other = bases.get(point.size_bytes)
        if other is None:
            continue
        # Bandwidths are turned round, so that below 1 is faster in every chart.
        (value, low, high), (base_value, base_low, base_high) = (_as_time(p, quantity) for p in (point, other))
        ratio = value / base_value
        band_low = low / base_high if low and base_high else None
        band_high = high / base_low if high and base_low else None
        said = f"{one.label}, {units.size(point.size_bytes)}: {units.digits(ratio)} times {base.label}'s time"
        marks.append(charts.Mark(point.size_bytes, ratio, band_low, band_high, said))
    return marks


def _as_time(point: Point, quantity: str) -> tuple[float, float | None, float | None]:
    if quantity == TIME:
        return point.value, point.low, point.high
    low = 1 / point.high if point.high else None
    high = 1 / point.low if point.low else None
    return 1 / point.value, low, high


def ratio_chart(picture: Picture, base: Labelled, found: Sequence[Ratio]) -> str:
    """For the page."""
    return charts.both(lambda layout: ratio_chart_of(picture, base, found, layout))


def ratio_chart_of(picture: Picture, base: Labelled, found: Sequence[Ratio], layout: charts.Layout) -> str:
    return charts.line_chart(
        layout,
        [charts.Line(one.line.label, one.line.style, one.marks) for one in found],
        title=f"{picture.title}, relative",
        description=ratio_caption(base, found),
        y_title=f"time relative to {name_of(base.series)}, below 1 is faster",
        y_text=lambda value: units.digits(value),
        ratio=True,
    )


# ------------------------------------------------------------------------------------------------------------ captions


def caption(picture: Picture) -> str:
    """What was measured, and what one should see."""
    bands = sorted({one.series.band for one in picture.lines if one.series.band})
    kinds = sorted({one.series.buffers for one in picture.lines if one.series.buffers})
    types = sorted({one.series.type for one in picture.lines if one.series.type})
    where = f" Buffers {', '.join(kinds)}." if kinds else ""
    what = f" {', '.join(types)}." if types else ""
    shown = f" Shaded: {'; '.join(bands)}." if bands else ""
    left_out = sum(len(one.series.points) - len(drawable(one.series)) for one in picture.lines) if picture.curved else 0
    zeros = " Values of zero bytes, or printed as 0.00, cannot be drawn; they are in the table." if left_out else ""
    more = f" {len(picture.lines) - MOST_LINES} more lines are in the table." if len(picture.lines) > MOST_LINES else ""
    return (_sight(picture) + where + what + shown + zeros + more).strip()


def _sight(picture: Picture) -> str:
    """The sentence that compares the ends of the curves."""
    lines = [one for one in picture.lines if drawable(one.series) and one.series.implementation != "raw"]
    if not lines:
        return ""
    better = max if picture.quantity == BANDWIDTH else min
    words: list[tuple[str, str]] = []
    for place in (0, -1):
        sizes = [drawable(one.series)[place].size_bytes for one in lines]
        size_bytes = max(sizes) if place == 0 else min(sizes)
        values = {
            one.label: point.value for one in lines for point in drawable(one.series) if point.size_bytes == size_bytes
        }
        if not values:
            continue
        best = better(values, key=lambda key: values[key])
        words.append((best, f"{units.of(picture.quantity, values[best])} at {units.size(size_bytes)}"))
    if len({size for _, size in words}) == 1:
        words = words[:1]
    alone = len(lines) == 1
    if len(words) == 2 and words[0][0] == words[1][0]:
        words = [(words[0][0], f"{words[0][1]} and {words[1][1]}")]
    sentence = ", ".join(what if alone else f"{best} is fastest with {what}" for best, what in words)
    return sentence[:1].upper() + sentence[1:] + "." if sentence else ""


def ratio_caption(base: Labelled, found: Sequence[Ratio]) -> str:
    parts = []
    for one in found[:4]:
        values = [mark.y for mark in one.marks]
        low, high = units.digits(min(values)), units.digits(max(values))
        parts.append(f"{one.line.label} takes {low if low == high else f'{low} to {high}'} times as long")
    return f"Against {name_of(base.series)}: {'; '.join(parts)}."
