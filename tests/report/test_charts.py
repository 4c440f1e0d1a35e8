# SPDX-License-Identifier: Apache-2.0
"""Charts can be read: no name is cut, labels stay inside of their places, and text stands out from its ground."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from awaken import charts, page_style, svg
from awaken.charts import Block, Layout, Line, Mark

LAYOUTS = [charts.WIDE, charts.NARROW, charts.FILE]
LONG = "a-partition-of-a-cluster-with-eight-gpus-per-node-and-"
TEXT_CONTRAST = 4.5
"""Wanted by WCAG 2.2, level AA."""


def chart_of(layout: Layout, lines: Sequence[Line], y_title: str = "time of one operation") -> ElementTree.Element:
    source = charts.line_chart(
        layout, lines, title="", description="", y_title=y_title, y_text=lambda value: f"{value}"
    )
    return ElementTree.fromstring(source)


def line_of(label: str, style: int, last: float, factor: float) -> Line:
    sizes = [8.0 * 4**power for power in range(12) if 8.0 * 4**power <= last]
    return Line(label, style, tuple(Mark(size, factor * (10 + size / 1e4)) for size in sizes))


def texts(chart: ElementTree.Element, name: str = "") -> list[ElementTree.Element]:
    return [one for one in chart.iter("text") if name in one.attrib.get("class", "").split() or not name]


def place(element: ElementTree.Element, *names: str) -> list[float]:
    return [float(element.attrib[name]) for name in names]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_names_that_differ_at_their_ends_are_whole(layout: Layout) -> None:
    names = [f"{LONG}{end}" for end in ("mpich", "openmpi", "mpich, 8 ranks")]
    chart = chart_of(layout, [line_of(name, index + 1, 1e7, index + 1) for index, name in enumerate(names)])
    labels = texts(chart, "label")
    shown = "".join("".join(filter(None, [one.text])) for one in labels).replace(" ", "")
    for name in names:
        assert name.replace(" ", "") in shown
    for label in labels:
        x, y = place(label, "x", "y")
        assert x + charts.BOLD_WIDTH * len(label.text or "") <= layout.width
        assert y <= float(chart.attrib["viewBox"].split()[3])
    heights = sorted(place(label, "y")[0] for label in labels)
    assert all(high - low >= charts.LABEL_HEIGHT for low, high in zip(heights, heights[1:]))


@pytest.mark.parametrize("layout", [charts.WIDE, charts.FILE], ids=lambda layout: layout.name)
@pytest.mark.parametrize("factor", [0.1, 1.0, 40.0])
def test_the_label_of_a_line_that_ends_early_is_inside_of_the_plot(layout: Layout, factor: float) -> None:
    lines = [line_of("Awaken", 1, 1e8, 1), line_of("NCCL", 3, 1e8, 1.1), line_of("staged by hand", 5, 1e5, factor)]
    chart = chart_of(layout, lines)
    (label,) = (one for one in texts(chart, "label") if one.text == "staged by hand")
    grid = [one for one in chart.iter("line") if one.attrib["class"] == "grid"]
    left, right = min(place(one, "x1") for one in grid)[0], max(place(one, "x2") for one in grid)[0]
    x, y = place(label, "x", "y")
    assert left <= x and x + charts.BOLD_WIDTH * len("staged by hand") <= right
    end_x, end_y = (float(at) for at in chart.findall("polyline")[2].attrib["points"].split()[-1].split(","))
    nearest = max(x, min(end_x, x + charts.BOLD_WIDTH * len("staged by hand")))
    assert abs(nearest - end_x) < 20 and abs(y - 4 - end_y) < 20
    for leader in (one for one in chart.iter("line") if one.attrib["class"] == "leader"):
        assert place(leader, "x1")[0] >= right - 12, "no leader crosses the plot"
    for polyline in chart.findall("polyline")[:2]:
        for point in polyline.attrib["points"].split():
            px, py = map(float, point.split(","))
            assert not (x < px < x + charts.BOLD_WIDTH * len("staged by hand") and y - 11 < py < y + 3)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_long_title_of_an_axis_is_whole(layout: Layout) -> None:
    title = "Messages of several ranks at a time, one way: time of one operation relative to another, less is better"
    parts = texts(chart_of(layout, [line_of("Awaken", 1, 1e6, 1)], title), "axis")[:-1]
    assert " ".join(one.text or "" for one in parts) == title
    assert all(charts.CHARACTER_WIDTH * len(one.text or "") <= layout.width for one in parts)


@pytest.mark.parametrize("characters", [8, 13, 24])
def test_cut_names_stay_distinct(characters: int) -> None:
    for names in (
        [f"{LONG}{end}" for end in ("mpich", "openmpi")],
        [f"{end}{LONG}" for end in ("mpich", "openmpi")],
        ["GPU 0", "GPU 1"],
        ["0000:00:00.0", "0000:10:00.0", "0000:20:00.0"],
    ):
        cut = charts.distinct(names, characters)
        assert len(set(cut)) == len(names) and all(len(name) <= characters for name in cut), cut
    assert charts.distinct(["GPU 0", "GPU 1"], characters) == ["GPU 0", "GPU 1"]


@pytest.mark.parametrize("layout", [charts.FULL, charts.NARROW], ids=lambda layout: layout.name)
def test_rows_of_heat_maps_and_lanes_are_told_apart(layout: Layout) -> None:
    names = [f"{LONG}{number}" for number in range(3)]
    cells = [[charts.HeatCell("1", 1, "")] * 3] * 3
    heat = ElementTree.fromstring(
        charts.heat_map(layout, names, names, cells, title="", description="", row_title="r", column_title="c")
    )
    ticks = [one.text for one in texts(heat, "tick")]
    assert len(ticks) == 6 and len(set(ticks)) == 3
    time = ElementTree.fromstring(
        charts.timeline(layout, names, [Block(2, 0, 9, "", 1, "")], 9, title="", description="")
    )
    assert len({one.text for one in texts(time, "tick") if (one.text or "").startswith("a")}) == 3


def test_a_timeline_covers_no_text() -> None:
    """Calls in one another, and operations that overlap without lying in one another."""
    blocks = [
        Block(0, 0, 1000, "step", 1, "step"),
        Block(0, 10, 700, "exchange", 2, "exchange"),
        Block(0, 20, 600, "MPI_Waitall", 3, "MPI_Waitall"),
        Block(0, 720, 200, "check", 4, "check"),
        *(Block(1, start, 500, "MPI_Isend", 5, f"send {start}") for start in (0, 100, 200, 300)),
    ]
    chart = ElementTree.fromstring(
        charts.timeline(charts.FULL, ["rank 0, thread 0", "rank 0, operations"], blocks, 1000, title="", description="")
    )
    bars = [one for one in chart.iter("g") if "bar" in one.attrib.get("class", "").split()]
    boxes = {}
    for bar in bars:
        title, box = bar.find("title"), bar.find("rect")
        assert title is not None and box is not None
        boxes[title.text] = place(box, "x", "y", "width", "height")
        inside = bar.find("text")
        assert inside is not None and title.text is not None, "there is room for each"
        x, y = place(inside, "x", "y")
        left, top, width, height = boxes[title.text]
        assert left < x and x + charts.CHARACTER_WIDTH * len(inside.text or "") <= left + width
        assert top < y - 8 and y < top + height
    assert len(boxes) == len(blocks)
    for one, other in itertools.combinations(boxes.values(), 2):
        apart_x = one[0] + one[2] <= other[0] + 0.2 or other[0] + other[2] <= one[0] + 0.2
        assert apart_x or one[1] + one[3] <= other[1] or other[1] + other[3] <= one[1]
    assert boxes["step"][1] < boxes["exchange"][1] == boxes["check"][1] < boxes["MPI_Waitall"][1]


def test_very_many_operations_at_a_time_do_not_make_an_endless_picture() -> None:
    blocks = [Block(0, start, 1000, "MPI_Isend", 1, "") for start in range(500)]
    source = charts.timeline(charts.FULL, ["rank 0"], blocks, 2000, title="", description="")
    assert source.count("<rect") == 500
    assert float(ElementTree.fromstring(source).attrib["viewBox"].split()[3]) < 400


@pytest.mark.parametrize(("end_us", "unit"), [(1.5e7, "s"), (9e4, "ms"), (1500.0, "µs"), (0.5, "µs")])
def test_the_axis_of_a_timeline_has_its_unit(end_us: float, unit: str) -> None:
    source = charts.timeline(
        charts.FULL, ["rank 0"], [Block(0, 0, end_us, "x", 1, "")], end_us, title="", description=""
    )
    assert f">time since the start, {unit}<" in source


def test_shares_have_an_axis() -> None:
    bar = charts.Bar("MPI_Send", (("direct", 1.0, 1, ""),), "")
    source = charts.share_bars(charts.NARROW, [bar], title="", description="")
    assert ">share of the bytes, %<" in source and ">50<" in source


# ------------------------------------------------------------------------------------------------------------- colours


def test_contrast_is_that_of_wcag() -> None:
    assert svg.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert svg.contrast("#777777", "#ffffff") == svg.contrast("#ffffff", "#777777") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("colour", svg.PALETTE)
def test_text_on_a_bar_is_legible(colour: str) -> None:
    assert svg.contrast(svg.text_colour(colour), colour) >= TEXT_CONTRAST


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_on_the_pages_colours_is_legible(theme: str) -> None:
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", block))
        for block in re.findall(r":root \{(.*?)\}", page_style.STYLE, re.DOTALL)
    )
    colours = light if theme == "light" else {**light, **dark}
    pairs = [(colours["page"], colours[f"s{style}"]) for style in range(1, charts.SERIES_STYLES + 1)]
    pairs += [
        (colours["text"], colours["edge"]),
        (colours["soft"], colours["page"]),
        (colours["soft"], colours["panel"]),
    ]
    pairs += [(colours["good"], colours["good-tint"]), (colours["bad"], colours["bad-tint"])]
    pairs += [(colours["on-low"], colours[f"h{level}"]) for level in range(4)]
    pairs += [(colours["on-high"], colours[f"h{level}"]) for level in (4, 5)]
    for text, ground in pairs:
        assert svg.contrast(text, ground) >= TEXT_CONTRAST, (text, ground)
    high = re.findall(r"svg \.h(\d) text", page_style.STYLE)
    assert high == ["4", "5"], "which levels have the other text colour"
