# SPDX-License-Identifier: Apache-2.0
"""Makes the tables and pictures of the pages on performance from the measurements in bench/results.

    python3 tools/docs.py           writes them, as `make docs` does
    python3 tools/docs.py --check   says what is not current (exit status 1), as the test suite does

In the pages, what stands between `<!-- data: NAME -->` and `<!-- end of data -->` is made here; all else is written by
hand. Pictures go to docs/images: the charts of `awaken report`, and the drawings of drawings.py. The same data make the
same bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

import drawings  # noqa: E402
from awaken import charts, curves, readers, units  # noqa: E402
from awaken.curves import Labelled, Picture  # noqa: E402
from awaken.results import Document, Point, Series  # noqa: E402

RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "images"
PAGES = ("README.md", "docs/performance.md", "docs/performance-values.md", "docs/performance-misses.md")
REGION = re.compile(r"(<!-- data: ([a-z-]+) -->\n).*?(<!-- end of data -->)", re.DOTALL)
KIB, MIB = 1 << 10, 1 << 20

NAMES = {
    "awaken": ("Awaken on MPICH", 1),
    "openmpi": ("Awaken on Open MPI", 2),
    "trusting": ("MPICH, `trust`", 6),
    "openmpi-trusting": ("Open MPI, `trust`", 7),
    "ucx": ("Open MPI + UCX-CUDA", 4),
    "staged": ("staged by hand", 5),
    "raw": ("raw copy", 0),
    "xccl": ("NCCL", 3),
}
"""What `measure_all.py` calls a contender -> its name on the pages, and its colour in the charts."""
DRAWN = ("awaken", "openmpi", "ucx", "staged", "raw", "xccl")
"""In charts; the rest is in the tables."""
MESSAGES = {
    "latency": "A message at a time",
    "bw": "64 in flight, one way",
    "bibw": "64 in flight, both ways",
}
COLLECTIVES = {
    "allreduce": "Allreduce",
    "bcast": "Bcast",
    "allgather": "Allgather",
    "alltoall": "Alltoall",
    "reduce_scatter": "Reduce_scatter",
}
HEADINGS = {**MESSAGES, "allreduce": "MPI_Allreduce, 2 GPUs"}
TOLD_SIZES = (8, KIB, 4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 256 * MIB)
SHORT = 128 * KIB
"""Up to here a time says more than a rate."""


@dataclass(frozen=True)
class Data:
    """The newest measurements."""

    folder: str
    date: str
    manifest: dict[str, str]
    tests: dict[str, dict[str, Series]]
    """Test -> contender -> what was measured."""
    missing: dict[str, str]
    """Contender -> why it could not run."""

    def point(self, test: str, contender: str, size_bytes: int) -> Point | None:
        series = self.tests.get(test, {}).get(contender)
        return next((one for one in series.points if one.size_bytes == size_bytes), None) if series else None

    def time_us(self, test: str, contender: str, size_bytes: int) -> float | None:
        """Of an operation; in tests with a window, of a message. Both directions count as two messages."""
        found = self.point(test, contender, size_bytes)
        if found is None:
            return None
        return size_bytes / found.value * 1e-3 if test in ("bw", "bibw") else found.value

    def rate(self, test: str, contender: str, size_bytes: int) -> float | None:
        """GB/s."""
        time_us = self.time_us(test, contender, size_bytes)
        return size_bytes / time_us * 1e-3 if time_us else None

    def ratio(self, test: str, ours: str, theirs: str, size_bytes: int) -> float | None:
        """Our time in units of theirs."""
        mine, other = self.time_us(test, ours, size_bytes), self.time_us(test, theirs, size_bytes)
        return mine / other if mine and other else None

    def sizes(self, *tests: str) -> list[int]:
        return sorted(
            {
                point.size_bytes
                for test in tests
                for series in self.tests.get(test, {}).values()
                for point in series.points
            }
        )

    def contenders(self, test: str) -> list[str]:
        return [name for name in NAMES if self.tests.get(test, {}).get(name)]


def newest(results: Path) -> Data | None:
    """The measurements of the last day; None where there are none."""
    folders = sorted((path for path in results.glob("*/*") if any(path.glob("*.json"))), key=lambda one: one.name)
    if not folders:
        return None
    folder = folders[-1]
    manifest: dict[str, str] = {}
    tests: dict[str, dict[str, Series]] = {}
    missing: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        document: Document = readers.read(path, path.stem)
        manifest.update(document.manifest)
        for series in document.series:
            if series.unavailable:
                missing[series.implementation] = series.unavailable
            if series.points:
                tests.setdefault(series.test, {})[series.implementation] = series
    return Data(folder.relative_to(results.parent.parent).as_posix(), folder.name, manifest, tests, missing)


# -------------------------------------------------------------------------------------------------------------- tables


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def size_text(size_bytes: int) -> str:
    return units.size(size_bytes)


def ratio_text(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:.3f}"


def spread(point: Point) -> float:
    """The wider half of the interval of the median, as a part of the median."""
    if point.low is None or point.high is None:
        return 0.0
    return max(point.high - point.value, point.value - point.low) / point.value


def cell(data: Data, test: str, contender: str, size_bytes: int) -> str:
    """A time where a message is short, a rate where it is long; in collectives always a time."""
    found = data.point(test, contender, size_bytes)
    if found is None:
        return ""
    time_us = data.time_us(test, contender, size_bytes) or 0.0
    value = time_us if size_bytes <= SHORT else size_bytes / time_us * 1e-3
    return f"{value:.2f} ±{spread(found):.1%}" if size_bytes <= SHORT else f"{value:.1f} ±{spread(found):.1%}"


def machine(data: Data) -> str:
    """One sentence on what was measured where."""
    facts = data.manifest
    gpu = facts.get("gpu_0", "unknown GPU")
    mpis = {text.replace("MPICH Version: ", "MPICH ").replace("MPI v", "MPI ") for name, text in facts.items()
            if name == "mpi" or name.endswith(": mpi")}  # fmt: skip
    nccl = next((one["xccl"].description for one in data.tests.values() if "xccl" in one), "")
    named = [*sorted(mpis), facts.get("ucx", ""), nccl.split(" through")[0].split(",")[0]]
    runtime = facts.get("gpu_runtime", "")
    told = [
        f"Two {gpu} of one host ({facts.get('gpu_link', 'link unknown').removeprefix('to GPU 1: ')}), "
        f"{runtime + ', ' if runtime else ''}{', '.join(filter(None, named))}; {data.date}.",
        *(f"{NAMES.get(name, (name,))[0]} could not run: {why}." for name, why in data.missing.items()),
        f"Data: [`{data.folder}`](PREFIX{data.folder}).",
    ]
    return "\n".join(line for text in told for line in textwrap.wrap(text, 120, break_on_hyphens=False))


def ratios_of_messages(data: Data) -> str:
    """Ours in units of theirs, at sizes that tell the curve."""
    sizes = [one for one in TOLD_SIZES if one in data.sizes(*MESSAGES)]
    rows = []
    for test, title in MESSAGES.items():
        for theirs in ("ucx", "raw", "staged"):
            for ours in ("awaken", "openmpi", "trusting", "openmpi-trusting"):
                values = [data.ratio(test, ours, theirs, size) for size in sizes]
                if any(value is not None for value in values) and (theirs == "ucx" or "trusting" not in ours):
                    rows.append([title, NAMES[ours][0], NAMES[theirs][0], *map(ratio_text, values)])
    return table(["time of a message", "of", "in units of", *map(size_text, sizes)], rows)


def ratios_of_collectives(data: Data) -> str:
    sizes = data.sizes(*COLLECTIVES)
    tests = [test for test in COLLECTIVES if "xccl" in data.tests.get(test, {})]

    def value(test: str, size: int) -> str:
        ours, theirs = data.point(test, "awaken", size), data.point(test, "xccl", size)
        if ours is None or theirs is None:
            return ""
        return f"**{ours.value / theirs.value:.2f}** ({units.digits(ours.value)} / {units.digits(theirs.value)})"

    rows = [[size_text(size), *(value(test, size) for test in tests)] for size in sizes]
    return table(["bytes", *(COLLECTIVES[test] for test in tests)], rows)


def values_of(test: str, data: Data) -> str:
    names = data.contenders(test)
    rows = [[size_text(size), *(cell(data, test, name, size) for name in names)] for size in data.sizes(test)]
    return table(["bytes", *(NAMES[name][0] for name in names)], rows)


# ------------------------------------------------------------------------------------------------------------- targets


@dataclass(frozen=True)
class Target:
    """What the project wants; `judge` says whether it is met, and by what."""

    text: str
    judge: Callable[[Data, str], tuple[bool, str] | None]


def at_most_us(test: str, size: int, limit: float) -> Callable[[Data, str], tuple[bool, str] | None]:
    def judge(data: Data, ours: str) -> tuple[bool, str] | None:
        found = data.time_us(test, ours, size)
        return None if found is None else (found <= limit, f"{found:.1f} us")

    return judge


def at_least(test: str, size: int, limit: float) -> Callable[[Data, str], tuple[bool, str] | None]:
    def judge(data: Data, ours: str) -> tuple[bool, str] | None:
        found = data.rate(test, ours, size)
        return None if found is None else (found >= limit, f"{found:.0f} GB/s")

    return judge


def no_slower(
    tests: Sequence[str], theirs: str, limit: float, sizes: Sequence[int] = ()
) -> Callable[[Data, str], tuple[bool, str] | None]:
    """At no size (or none of these) more than `limit` of their time; told with the range of the ratios."""

    def judge(data: Data, ours: str) -> tuple[bool, str] | None:
        ratios = [
            (ratio, f"{size_text(size)} of `{test}`")
            for test in tests
            for size in sizes or data.sizes(test)
            if (ratio := data.ratio(test, ours, theirs, size)) is not None
        ]
        if not ratios:
            return None
        above = sum(ratio > limit for ratio, _ in ratios)
        (least, _), (most, where) = min(ratios), max(ratios)
        if len(ratios) == 1:
            return most <= limit, f"{most:.2f}"
        counted = f", above at {above} of {len(ratios)} sizes" if above else ""
        return most <= limit, f"{least:.2f} to {most:.2f} ({where}{counted})"

    return judge


TARGETS = (
    Target("8 B in 9.0 us, one way", at_most_us("latency", 8, 9.0)),
    Target("1 MiB in 12.5 us, one way", at_most_us("latency", MIB, 12.5)),
    Target("16 MiB at 315 GB/s, one way", at_least("latency", 16 * MIB, 315)),
    Target("a message at a time not slower than UCX", no_slower(["latency"], "ucx", 1.0)),
    Target("64 in flight not slower than UCX", no_slower(["bw"], "ucx", 1.0)),
    Target("both ways not slower than UCX", no_slower(["bibw"], "ucx", 1.0)),
    Target("256 MiB both ways at most 1.05 of the raw copy's time", no_slower(["bibw"], "raw", 1.05, [256 * MIB])),
    Target("Allreduce at most 1.05 of NCCL's time", no_slower(["allreduce"], "xccl", 1.05)),
    Target("Allreduce of 1 and 4 MiB at most 0.85 of it", no_slower(["allreduce"], "xccl", 0.85, [MIB, 4 * MIB])),
    Target(
        "other collectives at most 1.1 of it at 1 KiB, 1 MiB, 64 MiB",
        no_slower([one for one in COLLECTIVES if one != "allreduce"], "xccl", 1.1, [KIB, MIB, 64 * MIB]),
    ),
)


def targets(data: Data) -> str:
    """One row for each that was measured; what Awaken came to under each MPI."""
    variants = ("awaken", "trusting", "openmpi", "openmpi-trusting")
    rows = []
    for target in TARGETS:
        verdicts = [target.judge(data, ours) for ours in variants]
        if any(verdicts):
            rows.append(
                [
                    target.text,
                    *("" if one is None else f"{'met' if one[0] else '**missed**'}: {one[1]}" for one in verdicts),
                ]
            )
    return table(["target", *(NAMES[name][0] for name in variants)], rows)


# ------------------------------------------------------------------------------------------------------------ pictures


def picture(data: Data, test: str) -> Picture:
    """The lines of a test that its chart shows."""
    lines = tuple(
        Labelled(data.tests[test][name], NAMES[name][0], NAMES[name][1])
        for name in data.contenders(test)
        if name in DRAWN
    )
    return Picture(test, None, lines, ())


def chart_of(data: Data, test: str, layout: charts.Layout = charts.FILE) -> str:
    return curves.curve_of(picture(data, test), layout, HEADINGS[test])


def collectives_chart(data: Data) -> str:
    """Each collective's time in units of NCCL's."""
    lines = []
    for style, test in zip((1, 2, 3, 4, 6), COLLECTIVES):
        marks = tuple(
            charts.Mark(size, ratio, title=f"{COLLECTIVES[test]}, {size_text(size)}: {ratio:.2f}")
            for size in data.sizes(test)
            if (ratio := data.ratio(test, "awaken", "xccl", size)) is not None
        )
        if marks:
            lines.append(charts.Line(COLLECTIVES[test], style, marks))
    return charts.line_chart(
        charts.FILE,
        lines,
        title="Collectives relative to NCCL",
        description="Awaken's time divided by NCCL's, over message sizes.",
        y_title="time relative to NCCL, below 1 is faster",
        y_text=units.digits,
        ratio=True,
    )


def pictures(data: Data) -> dict[str, str]:
    """Name of the file -> its content."""
    made: dict[str, str] = {}
    for test in (*MESSAGES, "allreduce"):
        if data.contenders(test):
            made[f"{test}.svg"] = charts.as_file(chart_of(data, test))
    if any("xccl" in data.tests.get(test, {}) for test in COLLECTIVES):
        made["collectives.svg"] = charts.as_file(collectives_chart(data))
    both = [chart_of(data, test, charts.WIDE) for test in ("bw", "allreduce") if data.contenders(test)]
    if both:
        made["speed.svg"] = charts.as_file(*both)
    return made


# --------------------------------------------------------------------------------------------------------------- pages


COMPARISONS = (
    ("a message at a time, on MPICH", ("latency",), "awaken", "ucx", "UCX-CUDA"),
    ("a message at a time, on Open MPI", ("latency",), "openmpi", "ucx", "UCX-CUDA"),
    ("64 in flight, on MPICH", ("bw",), "awaken", "ucx", "UCX-CUDA"),
    ("64 in flight in both directions, on MPICH", ("bibw",), "awaken", "ucx", "UCX-CUDA"),
    ("64 in flight, on MPICH", ("bw",), "awaken", "raw", "a raw copy"),
    ("a message at a time, on MPICH", ("latency",), "awaken", "staged", "staging by hand"),
    ("Allreduce, on MPICH", ("allreduce",), "awaken", "xccl", "NCCL"),
    ("other collectives, on MPICH", tuple(one for one in COLLECTIVES if one != "allreduce"), "awaken", "xccl", "NCCL"),
)
"""What is compared: its title, tests, contender, peer, and the peer's name."""
SIZE_CLASSES = {
    "8 B to 1 KiB": (8, 16, 64, 256, KIB),
    "4 KiB to 4 MiB": (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB),
    "16 to 256 MiB": (16 * MIB, 64 * MIB, 256 * MIB),
}
LEVEL = 0.03
"""Ratios this near to 1 differ by no more than the runs of one machine do."""


def compared(data: Data) -> Iterable[tuple[str, str, list[list[float]]]]:
    """Of each comparison that was measured: title, peer, the ratios of each class of sizes."""
    for title, tests, ours, theirs, peer in COMPARISONS:
        found = [
            [ratio for test in tests for size in sizes if (ratio := data.ratio(test, ours, theirs, size)) is not None]
            for sizes in SIZE_CLASSES.values()
        ]
        if any(found):
            yield title, peer, found


def range_text(ratios: Sequence[float]) -> str:
    low, high = ratio_text(min(ratios, default=None)), ratio_text(max(ratios, default=None))
    return low if low == high else f"{low} to {high}"


def verdict(ratios: Sequence[float]) -> str:
    low, high = round(min(ratios), 2), round(max(ratios), 2)  # as they are shown
    if high <= 1 + LEVEL:
        return "level" if low >= 1 - LEVEL else "ahead" if high < 1 - LEVEL else "ahead or level"
    return "behind" if low > 1 + LEVEL else "behind or level" if low >= 1 - LEVEL else "mixed"


def summary(data: Data) -> str:
    """The README's table."""
    rows = [[f"{title}, to {peer}", *map(range_text, found)] for title, peer, found in compared(data)]
    return table(["time of Awaken", *SIZE_CLASSES], rows)


def overview(data: Data) -> str:
    """The same with a verdict for each class of sizes."""
    rows = [
        [title, peer, *(f"{range_text(ratios)}: {verdict(ratios)}" if ratios else "" for ratios in found)]
        for title, peer, found in compared(data)
    ]
    return table(["time of Awaken", "in units of", *SIZE_CLASSES], rows)


REGIONS: dict[str, Callable[[Data], str]] = {
    "machine": machine,
    "summary": summary,
    "overview": overview,
    "ratios-messages": ratios_of_messages,
    "ratios-collectives": ratios_of_collectives,
    "targets": targets,
    **{f"values-{test}": partial(values_of, test) for test in MESSAGES},
}


def filled(text: str, data: Data, prefix: str) -> str:
    """The page with all its regions made anew. `prefix` leads from the page to the root."""

    def made(found: re.Match[str]) -> str:
        content = REGIONS[found[2]](data).replace("PREFIX", prefix)
        return f"{found[1]}{content}\n{found[3]}"

    return REGION.sub(made, text)


def outputs(root: Path, data: Data) -> dict[Path, str]:
    """All files that are made, with their content."""
    made = {root / "docs" / "images" / name: text for name, text in {**pictures(data), **drawings.pictures()}.items()}
    for page in PAGES:
        path = root / page
        if path.exists():
            made[path] = filled(path.read_text(encoding="utf-8"), data, "../" * page.count("/"))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 when something is not current"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="other measurements (bench/results)")
    options = parser.parse_args()
    data = newest(options.results.absolute())
    if data is None:
        print(f"docs: there are no measurements in {options.results}", file=sys.stderr)
        return 1
    old = []
    for path, text in outputs(ROOT, data).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            old.append(path.relative_to(ROOT).as_posix())
            if not options.check:
                path.write_text(text, encoding="utf-8")
    for name in old:
        print(f"docs: {name} {'is not current: run make docs' if options.check else 'written'}")
    return 1 if options.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
