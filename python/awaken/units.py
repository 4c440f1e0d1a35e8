# SPDX-License-Identifier: Apache-2.0
"""Figures as people read them: sizes in KiB, times in the unit that fits, three significant digits."""

from __future__ import annotations

SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(size_bytes: float) -> str:
    """8 B, 64 KiB, 1.5 MiB."""
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(SIZE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{digits(value)} {SIZE_UNITS[unit]}"


def digits(value: float) -> str:
    """Three significant digits without exponent for what is common: 0.0123, 1.23, 123, 12345."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.2e}"


def time(time_us: float) -> str:
    """850 ns, 12.3 µs, 4.5 ms, 2 s."""
    for limit, scale, unit in ((1, 1e3, "ns"), (1e3, 1, "µs"), (1e6, 1e-3, "ms")):
        if time_us < limit * 0.9995:
            return f"{digits(time_us * scale)} {unit}"
    return f"{digits(time_us * 1e-6)} s"


def bandwidth(gb_per_s: float) -> str:
    """12.3 GB/s, 45.6 MB/s, 120 kB/s."""
    for limit, scale, unit in ((1e-3, 1e6, "kB/s"), (1, 1e3, "MB/s")):
        if gb_per_s < limit * 0.9995:
            return f"{digits(gb_per_s * scale)} {unit}"
    return f"{digits(gb_per_s)} GB/s"


def of(quantity: str, value: float) -> str:
    """A value of a series: a time in microseconds or a bandwidth in GB/s."""
    return bandwidth(value) if quantity == "bandwidth" else time(value)


def count(number: int) -> str:
    """12 345, with narrow spaces that do not break."""
    return f"{number:,}".replace(",", "\u202f")
