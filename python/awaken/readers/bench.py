# SPDX-License-Identifier: Apache-2.0
"""JSON of `awaken bench --json`: schema "awaken-bench", version 1 (docs/benchmarks-output.md).

The value of a size is the median, its band the median's 95 % interval. A bandwidth is bytes over the median time:
the file's bandwidth, which goes by the mean, times mean over median.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from awaken import pairs
from awaken.readers.source import Value
from awaken.results import (
    BANDWIDTH,
    BETWEEN_NODES,
    INTERVAL_OF_MEDIAN,
    POINT_TO_POINT,
    PRETENDED_NODES,
    TIME,
    Document,
    Point,
    Series,
)

SCHEMA = "awaken-bench"
DRIFT_PARTS = 5
FEWEST_FOR_DRIFT = 10 * DRIFT_PARTS
BANDWIDTH_TESTS = (
    "bw",
    "bibw",
    "bw_persistent",
    "bibw_persistent",
    "mbw_mr",
    "bw_fan_in",
    "bw_fan_out",
    "put_bw",
    "put_bibw",
    "get_bw",
)


def read(top: Value, document: Document) -> None:
    """Adds all runs of the file to the document."""
    for name, text in top.get("manifest").members():
        document.manifest[name] = text.text()
    sides = " ".join(side.text() for side in top.get("options").get("sides").elements()) if _has_options(top) else ""
    if not sides and _has_options(top) and top.get("options").get("accelerator").text("none") != "none":
        sides = "D"
    hosts = {document.manifest.get(f"rank_{rank}", "").partition(":")[0] for rank in range(2)} - {""}
    pair = pairs.of_manifest(document.manifest)
    pretended = document.manifest.get("environment.AWAKEN_TEST_NODES", "1") != "1"
    for run in top.get("runs").elements():
        for contender in run.get("contenders").elements():
            series = _series(run, contender, document.label, sides)
            if series.test in POINT_TO_POINT and series.ranks == 2 and (pretended or len(hosts) > 1):
                mode = ", ".join([series.mode, *([PRETENDED_NODES] if pretended else [])]).strip(", ")
                series = replace(series, test=series.test + BETWEEN_NODES, mode=mode)
            elif series.test in POINT_TO_POINT and series.ranks == 2:
                series = replace(series, pair=pair)
            document.series.append(series)


def _has_options(top: Value) -> bool:
    return top.get("options").is_object


def _series(run: Value, contender: Value, source: str, buffers: str) -> Series:
    test = run.get("test").text()
    bandwidth = test in BANDWIDTH_TESTS
    points = []
    unchecked = False
    for measurement in contender.get("measurements").elements():
        point = _point(measurement, bandwidth)
        if point is not None:
            points.append(point)
            unchecked = unchecked or (measurement.get("validated").text() == "no" and not point.errors)
    # What tells one-sided runs apart, and those of `first` and `halo`; they know one mode only.
    traits = [text for key in ("window_creation", "synchronization", "operation") if (text := run.get(key).text(""))]
    if allocation_bytes := run.get("allocation").integer(0):
        traits.append(f"{allocation_bytes} bytes allocated")
    if kernels := run.get("kernels").integer(0):
        traits.append(f"{kernels} kernel{'s' if kernels > 1 else ''}")
    return Series(
        test=test,
        implementation=contender.get("name").text("MPI") or "MPI",
        quantity=BANDWIDTH if bandwidth else TIME,
        points=tuple(points),
        source=source,
        ranks=run.get("ranks").integer_or_none(),
        type=run.get("type").text(),
        buffers=buffers,
        mode=", ".join(traits) or contender.get("mode").text(),
        band=INTERVAL_OF_MEDIAN,
        description=contender.get("description").text(),
        unavailable=contender.get("unavailable").text(),
        unchecked=unchecked,
    )


def _point(measurement: Value, bandwidth: bool) -> Point | None:
    """None where the test has no time, as `init` without samples."""
    summary = measurement.get("summary")
    samples = [value.number() for value in measurement.get("samples_us").elements()]
    if summary.is_object and summary.get("median_us").number_or_none():
        median, mean = summary.get("median_us").number(), summary.get("mean_us").number_or_none()
        ends = [value.number() for value in summary.get("median_95_us").elements()]
    else:
        overlap = measurement.get("overlap")
        median = overlap.get("overall_us").number() if overlap.is_object else measurement.get("average_us").number()
        mean, ends = median, []
    low, high = (min(ends), max(ends)) if len(ends) == 2 and min(ends) > 0 else (None, None)
    drift = _drift(samples)
    size_bytes = measurement.get("size").integer(0)
    errors = measurement.get("errors").integer(0)
    if not bandwidth:
        return Point(size_bytes, median, low, high, drift, len(samples) or None, errors) if median > 0 else None
    rate = measurement.get("bandwidth_MBps").number_or_none()
    if not (rate and rate > 0 and median > 0 and mean and mean > 0):
        return None
    bytes_per_us = rate * mean  # bytes in microseconds of one operation: MB/s is bytes/us

    def gb_per_s(time_us: float) -> float:
        return bytes_per_us / time_us * 1e-3

    return Point(
        size_bytes,
        gb_per_s(median),
        gb_per_s(high) if high else None,
        gb_per_s(low) if low else None,
        tuple(gb_per_s(part) for part in drift),
        len(samples) or None,
        errors,
    )


def _drift(samples: Sequence[float]) -> tuple[float, ...]:
    """The medians of consecutive fifths of the run. Those that are no times are left out."""
    if len(samples) < FEWEST_FOR_DRIFT:
        return ()
    length = len(samples) // DRIFT_PARTS
    medians = (statistics.median(samples[part * length : (part + 1) * length]) for part in range(DRIFT_PARTS))
    return tuple(median for median in medians if median > 0)
