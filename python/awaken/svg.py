# SPDX-License-Identifier: Apache-2.0
"""What all pictures share (text that is safe in SVG, ticks), and drawings in files of their own, as `awaken trace` and
`awaken scale` make them; charts.py has those of the report's page, whose style sheet gives them their colours."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from awaken import output_files

PALETTE = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")
"""Colours that are told apart by most eyes, also next to each other."""
INK = "#1b1e23"
FAINT = "#d0d4da"
FONT = "Helvetica, Arial, sans-serif"

_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What XML 1.0 has no place for, not even escaped."""


def escape(text: str) -> str:
    """Text between tags or in the quotes of an attribute."""
    return html.escape(text, quote=True)


def only_xml(text: str) -> str:
    """What XML has no place for becomes a replacement character."""
    return _FORBIDDEN.sub("\ufffd", text)


def _text(text: str) -> str:
    """For a file of its own, which is XML; HTML is read whatever is in it."""
    return escape(only_xml(text))


def shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _number(value: float) -> str:
    """With two decimals at most: a hundredth of a pixel is not seen."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text_width(text: str, size: float) -> float:
    """About how wide a text is drawn in a wide font, in the units of `size`."""
    return 0.6 * size * len(text)


def contrast(one: str, other: str) -> float:
    """1 to 21, of two colours as #rrggbb. Source: WCAG 2.2, contrast ratio; it wants 4.5 for text."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def text_colour(ground: str) -> str:
    """What is read best on that colour."""
    return max("#ffffff", "#000000", key=lambda colour: contrast(colour, ground))


class Drawing:
    """An SVG document. Lengths are pixels, y grows downwards. Later things are drawn over earlier ones."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width = width
        self.height = height
        self._title = title
        self._parts: list[str] = []

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str, tooltip: str = "") -> None:
        box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        if tooltip:
            self._parts.append(f'<rect {box} fill="{fill}"><title>{_text(tooltip)}</title></rect>')
        else:
            self._parts.append(f'<rect {box} fill="{fill}"/>')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = INK, width: float = 1, dashes: str = ""
    ) -> None:
        ends = f'x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" y2="{_number(y2)}"'
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(f'<line {ends} stroke="{colour}" stroke-width="{_number(width)}"{dashed}/>')

    def path(self, points: Sequence[tuple[float, float]], colour: str, width: float = 2) -> None:
        joined = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width}"/>')

    def dot(self, x: float, y: float, radius: float, fill: str, tooltip: str = "") -> None:
        place = f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"'
        self._parts.append(f'<circle {place} fill="{fill}"><title>{_text(tooltip)}</title></circle>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 11,
        anchor: str = "start",
        colour: str = INK,
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """`anchor`: which part of the text is at x: start, middle or end. y is its base line. `halo`: what was drawn
        before stays clear of the letters."""
        weight = ' font-weight="bold"' if bold else ""
        if halo:
            weight += ' paint-order="stroke" stroke="#ffffff" stroke-width="4" stroke-linejoin="round"'
        self._parts.append(
            f'<text x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}" text-anchor="{anchor}"'
            f' fill="{colour}"{weight}>{_text(text)}</text>'
        )

    def document(self) -> str:
        size = f"{_number(self.width)} {_number(self.height)}"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{_number(self.width)}"'
            f' height="{_number(self.height)}" font-family={quoteattr(FONT)} role="img">'
        )
        ground = f'<rect width="{_number(self.width)}" height="{_number(self.height)}" fill="#ffffff"/>'
        return "\n".join([head, f"<title>{_text(self._title)}</title>", ground, *self._parts, "</svg>", ""])

    def save(self, path: Path) -> None:
        """Raises output_files.Misuse."""
        output_files.write(str(path), self.document())


def ticks(least: float, most: float, wanted: int) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from `least` to `most`, about `wanted` of them."""
    if not least < most:
        return [least]
    rough = (most - least) / max(wanted, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(least / step - 1e-9)
    last = math.floor(most / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def duration(seconds: float) -> str:
    """Three digits and a unit: "1.25 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
