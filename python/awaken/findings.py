# SPDX-License-Identifier: Apache-2.0
"""What the measurements say: the answers at the head of a report, each with the figures that it rests on.

A question that nothing was measured for is answered so, together with what would answer it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from awaken import applications, units
from awaken.results import (
    BANDWIDTH,
    BETWEEN_NODES,
    FAILURES,
    INTERVAL_OF_MEDIAN,
    TIME,
    UCC,
    UNKNOWN_TEST,
    WORKS,
    Document,
    Point,
    Series,
)
from awaken.transport import DIRECT_PATHS, TELLING_RAW_OVER_HOST

GOOD, BAD, NEUTRAL, UNKNOWN = "good", "bad", "neutral", "unknown"
LEVEL_WITHOUT_BAND = 0.05
"""Two values without bands count as equal within this part of each other."""
SMALL_BYTES = 8
COPIED = "copied"
"""Through a copy, in exported memory of a GPU or in memory of the host (docs/protocol.md): which is not told."""
NAMES = {
    "awaken": "Awaken",
    "native": "the MPI alone",
    "staged": "staged",
    "raw": "raw copy",
    "xccl": "NCCL/RCCL",
    UCC: "UCC",
}


@dataclass(frozen=True)
class Finding:
    question: str
    verdict: str
    """GOOD, BAD, NEUTRAL or UNKNOWN."""
    headline: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stretch:
    """Neighbouring sizes at which the same side is faster."""

    first_bytes: int
    last_bytes: int
    winner: str
    """ "mpi", "ccl", or "" where neither is."""
    least: float
    most: float
    """How many times faster the winner is; 1 and more."""


@dataclass(frozen=True)
class Crossover:
    """MPI against NCCL or RCCL for one collective."""

    test: str
    ranks: int | None
    mode: str
    mpi: str
    ccl: str
    stretches: tuple[Stretch, ...]
    one_run: bool
    """Whether both were measured in the same run."""
    caution: str = ""
    """Why one side had it easier; empty where the calls were made alike."""


SIDE_BY_SIDE = (
    ("waited", "MPI, each call waited for", "NCCL or RCCL, each call waited for"),
    ("queued", "MPI, calls queued", "NCCL or RCCL, calls queued"),
    ("MPI waited for, the other queued", "MPI, all calls, each waited for", "NCCL or RCCL, all calls, queued"),
)
"""How the program of apps/ calls both, with the titles of its two figures; the best comparison first."""


@dataclass(frozen=True)
class AllreduceRun:
    """MPI against NCCL or RCCL in one run of a program that calls both."""

    name: str
    calls: str
    winner: str
    """ "MPI", "NCCL or RCCL", or "" where they are level."""
    gain: float
    """How many times faster the winner is; 1 and more."""


def on_device(series: Series) -> bool:
    """Whether a buffer is memory of a GPU."""
    return any(letter not in ("H", "P", "R") for letter in series.buffers.split())


def _of_mpi(series: Series) -> bool:
    """Whether an MPI, alone or with Awaken, was given these buffers."""
    return series.implementation not in ("staged", "raw", "xccl", UCC)


def _memory(series: Series) -> str:
    """Where its buffers were."""
    if not series.buffers:
        return "in memory of unknown kind"
    return "device memory" if on_device(series) else "host memory"


def name_of(series: Series) -> str:
    """What a reader calls the implementation."""
    if series.implementation == "xccl":
        words = series.description.split()
        return words[0] if words and words[0] in ("NCCL", "RCCL") else NAMES["xccl"]
    if series.implementation == "native" and series.description:
        return series.description
    return NAMES.get(series.implementation, series.implementation)


def _tells_of_emulation(document: Document) -> bool:
    """Whether its figures come from an emulated GPU, and so say nothing about any real one."""
    return any(
        name == "environment.AWAKEN_EMULATE" or "emulated GPU" in value for name, value in document.manifest.items()
    ) or any("emulated" in device for report in document.path_reports for device in report.devices)


def divided(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Those whose times and rates mean something, and those of emulated GPUs. Logs tell nothing of their GPUs: beside
    files of emulated ones, theirs were emulated, too."""
    pretended = [one for one in documents if _tells_of_emulation(one)]
    if pretended:
        pretended = [one for one in documents if _tells_of_emulation(one) or not one.manifest]
    return [one for one in documents if not any(one is other for other in pretended)], pretended


def all_series(documents: Iterable[Document]) -> list[Series]:
    return [series for document in documents for series in document.series]


def named_applications(
    documents: Iterable[Document], pretended: Sequence[Document] = ()
) -> list[tuple[str, applications.Application, bool]]:
    """Name and run of each, and whether its figures mean something: those of `pretended` do not."""
    every = [
        (run, not any(document is one for one in pretended)) for document in documents for run in document.applications
    ]
    names = applications.names([run for run, _ in every])
    return [(name, run, measured) for name, (run, measured) in zip(names, every)]


def findings(documents: Sequence[Document]) -> list[Finding]:
    """The answers, in the order in which people ask."""
    real, pretended = divided(documents)
    if pretended and not real:
        return [aware(documents), direct(documents), right(documents), speed_of_emulation()]
    return [aware(documents), direct(documents), speed(real), choice(real)]


# ------------------------------------------------------------------------------------------------------ is it GPU-aware


def aware(documents: Sequence[Document]) -> Finding:
    question = "Is this MPI GPU-aware?"
    # NCCL's and UCC's answers, and copies of the benchmark's own, say nothing about an MPI.
    device = [series for series in all_series(documents) if on_device(series) and _of_mpi(series)]
    native = [series for series in device if series.implementation == "native"]
    layered = [series for series in device if series.implementation == "awaken" and series.points]
    wrong = [series for series in device if series.failed]
    details = _conformance_details(documents)
    if layered:
        details.insert(0, f"Through Awaken: {_tests(layered)} on device memory.")
    refused = next((series.unavailable for series in native if series.unavailable), "")
    if refused:
        details.insert(0, f"By itself: {refused}.")
    doctors = [doctor for document in documents for doctor in document.doctors]
    native_yes = any(series.points for series in native) or any(one.aware.get("native") for one in doctors)
    native_no = bool(refused) or any(one.aware.get("native") is False for one in doctors)
    layered_yes = bool(layered) or any(one.aware.get("awaken") for one in doctors)
    if wrong:
        return Finding(question, BAD, f"Wrong data: {_tests(wrong)}", tuple(details))
    if native_yes:
        who = next((name_of(series) for series in native if series.points), "the MPI")
        return Finding(question, GOOD, f"Yes: {who} takes device memory by itself", tuple(details))
    if layered_yes:
        headline = "Not by itself; with Awaken, yes" if native_no else "With Awaken, yes"
        return Finding(question, GOOD, headline, tuple(details))
    if native_no:
        return Finding(question, BAD, "No", tuple(details))
    logs = [series for series in device if series.points]
    if logs:
        told = f"{_tests(logs)} ran on device memory, as the logs say."
        return Finding(question, GOOD, "Yes, by its logs", (told, *details))
    if details:
        return Finding(question, NEUTRAL, "See the doctor's answers", tuple(details))
    return Finding(
        question, UNKNOWN, "Not measured", ("Run `awaken bench latency D D --compare native,awaken` to find out.",)
    )


def _tests(series: Iterable[Series]) -> str:
    names = list(dict.fromkeys("a test without a name" if one.test == UNKNOWN_TEST else one.test for one in series))
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def _conformance_details(documents: Iterable[Document]) -> list[str]:
    details = []
    for document in documents:
        for doctor in document.doctors:
            for matrix in doctor.conformance:
                outcomes = [outcome for outcome, _ in matrix.cells.values()]
                failed = sum(outcome in FAILURES for outcome in outcomes)
                works = f"{outcomes.count(WORKS)} of {len(outcomes)} combinations of call and buffer work"
                details.append(f"{matrix.title[0].upper()}{matrix.title[1:]}: {works}, {failed} fail.")
    return details


# --------------------------------------------------------------------------------------------------- does it go direct


def direct(documents: Sequence[Document]) -> Finding:
    question = "Does the data go direct?"
    moved: dict[str, int] = {}
    reasons: dict[str, int] = {}
    for document in documents:
        for report in document.path_reports:
            for row in report.rows:
                if row.path != "native":
                    moved[row.path] = moved.get(row.path, 0) + row.bytes
            for _, reason, times in report.fallbacks:
                reasons[reason] = reasons.get(reason, 0) + times
    total = sum(moved.values())
    if total:
        return _direct_by_paths(question, moved, total, reasons)
    for document in documents:
        for doctor in document.doctors:
            for side, whose in (("awaken", "With Awaken"), ("native", "The MPI alone")):
                way, why = doctor.transport.get(side, ("unknown", ""))
                if way != "unknown":
                    verdict, words = (GOOD, "yes") if way == "direct" else (BAD, "no, through the host")
                    return Finding(question, verdict, f"{whose}, {words}", (f"The doctor: {way}, {why}.",))
    return _direct_by_speed(question, divided(documents)[0])


def _direct_by_paths(question: str, moved: dict[str, int], total: int, reasons: dict[str, int]) -> Finding:
    straight = sum(moved.get(path, 0) for path in DIRECT_PATHS)
    share = straight / total
    ways = ", ".join(
        f"{path} {_percent(size_bytes / total)}"
        for path, size_bytes in sorted(moved.items(), key=lambda one: -one[1])
        if size_bytes
    )
    details = [f"Of {units.size(total)} in Awaken's path reports: {ways}."]
    details += [
        f"Fallback, {units.count(times)} times: {reason}."
        for reason, times in sorted(reasons.items(), key=lambda one: -one[1])[:2]
    ]
    if share >= 0.9:
        return Finding(question, GOOD, f"Yes: {_percent(share)} of the bytes from GPU to GPU", tuple(details))
    copied = moved.get(COPIED, 0) / total
    if copied > 0.1:
        details.insert(
            1, "Copied: the sender did not wait, or its memory cannot be exported; the copy may be in a GPU's."
        )
    if share > 0.1:
        return Finding(question, NEUTRAL, f"Partly: {_percent(share)} of the bytes", tuple(details))
    if copied > 0.1:
        headline = f"{_percent(copied)} of the bytes through a copy, which may be in GPU memory"
        return Finding(question, NEUTRAL, headline, tuple(details))
    return Finding(question, BAD, "No: it goes through the host", tuple(details))


def _percent(share: float) -> str:
    """Never 100 % for what is not all, nor 0 % for what is something."""
    if 0.995 <= share < 1:
        return "over 99 %"
    if 0 < share < 0.005:
        return "under 1 %"
    return f"{share * 100:.0f} %"


def _direct_by_speed(question: str, documents: Sequence[Document]) -> Finding:
    """By the largest message, beside a raw copy and beside staging by hand."""
    for test in ("bw", "latency"):
        here = {
            one.implementation: one
            for one in all_series(documents)
            if one.test == test and one.points and on_device(one)
        }
        mine = here.get("awaken") or here.get("native")
        if mine is None or not ({"raw", "staged"} & set(here)):
            continue
        largest = mine.points[-1].size_bytes
        speeds = {name: _bandwidth_at(one, largest) for name, one in here.items()}
        own, raw, staged = speeds[mine.implementation], speeds.get("raw"), speeds.get("staged")
        if not own:
            continue
        details = [f"{name_of(mine)} moves {units.size(largest)} at {units.bandwidth(own)}."]
        details += [
            f"{NAMES[n].capitalize()}: {units.bandwidth(s)}." for n, s in (("raw", raw), ("staged", staged)) if s
        ]
        if raw and staged and raw < TELLING_RAW_OVER_HOST * staged:
            return Finding(question, NEUTRAL, "Its speed does not show it: a raw copy is hardly faster", tuple(details))
        if raw and own > 0.5 * raw:
            return Finding(question, GOOD, f"Yes, by its speed: {_percent(own / raw)} of a raw copy", tuple(details))
        if staged and own > 1.5 * staged:
            return Finding(
                question, GOOD, f"Likely: {units.digits(own / staged)} times as fast as staging", tuple(details)
            )
        return Finding(question, NEUTRAL, "Not by its speed", tuple(details))
    return Finding(question, UNKNOWN, "Not measured", ("Set `AWAKEN_REPORT=paths.json` on any run to find out.",))


def _bandwidth_at(series: Series, size_bytes: int) -> float | None:
    """GB/s of one message of this size."""
    point = next((one for one in series.points if one.size_bytes == size_bytes), None)
    if point is None or not point.value or not size_bytes:
        return None
    return point.value if series.quantity == BANDWIDTH else size_bytes / point.value * 1e-3


# ------------------------------------------------------------------------------- what emulated GPUs tell, and do not


RAN_HEADER = ("test", "ranks", "implementation", "sizes", "data")


def what_ran(documents: Iterable[Document]) -> list[tuple[str, ...]]:
    """What there is to tell of series without their values, in the columns of RAN_HEADER."""
    rows: list[tuple[str, ...]] = []
    for one in all_series(documents):
        if one.points:
            sizes = sorted({point.size_bytes for point in one.points if point.size_bytes})
            ends = " to ".join(units.size(size) for size in dict.fromkeys([*sizes[:1], *sizes[-1:]]))
            data = "WRONG DATA" if one.failed else "not checked" if one.unchecked else "right"
            rows.append((one.test, str(one.ranks or ""), name_of(one), ends, data))
    return rows


def right(documents: Sequence[Document]) -> Finding:
    """Whether what ran delivered right data."""
    question = "Are the data right?"
    ran = [one for one in all_series(documents) if one.points and not one.unchecked]
    runs = [run for document in documents for run in document.applications]
    wrong = [one for one in ran if one.failed]
    wrong_programs = [run.program for run in runs if run.checked is False]
    details = [f"Tests: {_tests(ran)}."] if ran else []
    if checked := [run.program for run in runs if run.checked]:
        details.append(f"Programs that checked their results: {', '.join(dict.fromkeys(checked))}.")
    if wrong or wrong_programs:
        return Finding(
            question, BAD, f"No: {', '.join(filter(None, [_tests(wrong), *wrong_programs]))}", tuple(details)
        )
    if not details:
        return Finding(question, UNKNOWN, "Nothing was checked", ("`awaken bench latency D D` checks its data.",))
    return Finding(question, GOOD, "Yes, where they were checked", tuple(details))


def speed_of_emulation() -> Finding:
    told = "The same command on a machine with GPUs measures, and its page then has curves."
    return Finding("How fast is it?", UNKNOWN, "Emulated GPUs do not show it", (told,))


# ------------------------------------------------------------------------------------------------------- how fast is it


def speed(documents: Sequence[Document]) -> Finding:
    question = "How fast is it?"
    candidates = [one for one in all_series(documents) if one.points and _of_mpi(one)]
    preferred = [one for one in candidates if on_device(one) and one.implementation == "awaken"]
    device = preferred or [one for one in candidates if on_device(one)] or candidates
    small = _fastest_small(device)
    peak = _peak(device)
    details = []
    parts = []
    if small:
        series, point = small
        parts.append(units.time(point.value))
        details.append(
            f"{units.size(point.size_bytes)} in {units.time(point.value)} one way, {name_of(series)}, "
            f"{_memory(series)}."
        )
    if peak:
        series, size_bytes, fastest = peak
        parts.append(units.bandwidth(fastest))
        at = f"{units.size(size_bytes)} ({series.test})"
        details.append(f"{units.bandwidth(fastest)} at {at}, {name_of(series)}, {_memory(series)}.")
        raw = [one for one in all_series(documents) if one.implementation == "raw" and one.test == series.test]
        limit = max((_bandwidth_at(one, size_bytes) or 0.0 for one in raw), default=0.0)
        if limit:
            details.append(f"That is {_percent(fastest / limit)} of a raw copy of that size.")
    for document in documents:
        for topology in document.topologies:
            details += [value for name, value in topology.facts if name == "summary"]
    if not parts and details:
        return Finding(question, NEUTRAL, "Copies between GPUs were measured", tuple(details))
    if not parts:
        return Finding(
            question,
            UNKNOWN,
            "Not measured",
            ("Run `awaken bench latency D D` and `awaken bench bw D D` to find out.",),
        )
    return Finding(question, NEUTRAL, " and ".join(parts), tuple(details))


def _fastest_small(series: Iterable[Series]) -> tuple[Series, Point] | None:
    series = list(series)
    for tests in (("latency", "pingpong"), (f"latency{BETWEEN_NODES}",)):
        small = [
            (one, point)
            for one in series
            if one.test in tests and one.quantity == TIME and one.mode != "several groups"
            for point in one.points
            if 0 < point.size_bytes <= SMALL_BYTES and point.value > 0
        ]
        if small:
            return min(small, key=lambda pair: pair[1].value)
    return None


def _peak(series: Iterable[Series]) -> tuple[Series, int, float] | None:
    """The greatest bandwidth of one message stream, and where."""
    series = list(series)
    for tests in (("bw",), ("latency", "pingpong"), (f"bw{BETWEEN_NODES}",)):
        found = [
            (one, point.size_bytes, speed_here)
            for one in series
            if one.test in tests
            for point in one.points
            if (speed_here := _bandwidth_at(one, point.size_bytes))
        ]
        if found:
            return max(found, key=lambda one: one[2])
    return None


# -------------------------------------------------------------------------------------------------------- MPI or NCCL


def choice(documents: Sequence[Document]) -> Finding:
    question = "MPI or NCCL, for which sizes?"
    wrong = [one for one in all_series(documents) if one.implementation == "xccl" and one.failed]
    found = crossovers(documents)
    runs = allreduce_runs(documents)
    if not found and not wrong and runs:
        return Finding(question, NEUTRAL, *_of_runs(runs))
    if not found and not wrong:
        tells = "Run `awaken bench allreduce D D --compare awaken,xccl`, or give logs of both on as many ranks."
        return Finding(question, UNKNOWN, "Not measured side by side", (*_what_logs_lack(documents), tells))
    details = []
    for one in found[:4]:
        ranks = f", {one.ranks} ranks" if one.ranks else ""
        mode = f", {one.mode}" if one.mode else ""
        details.append(f"{one.test}{ranks}{mode}: {in_words(one)}.")
    # Before the figures: details that come last may be left out.
    details = [*dict.fromkeys(one.caution for one in found if one.caution), *details]
    details += [_of_runs(runs)[0] + " (applications)."] if runs else []
    if wrong:
        return Finding(question, BAD, f"Wrong data: {_tests(wrong)} of {name_of(wrong[0])}", tuple(details))
    winners = {stretch.winner for one in found for stretch in one.stretches}
    if winners == {""}:
        headline = "Level at all measured sizes"
    elif winners <= {"mpi", ""} or winners <= {"ccl", ""}:
        name = found[0].mpi if "mpi" in winners else found[0].ccl
        headline = f"{name}{', or level,' if '' in winners else ''} at all measured sizes"
    else:
        headline = f"{found[0].test}: {in_words(found[0])}"
    return Finding(question, NEUTRAL, headline[0].upper() + headline[1:], tuple(details))


def allreduce_runs(documents: Iterable[Document]) -> list[AllreduceRun]:
    """Runs of the program that measures MPI_Allreduce beside NCCL's or RCCL's, each by its best comparison."""
    found = []
    for name, run, _ in named_applications(documents):
        for calls, mpi, ccl in SIDE_BY_SIDE:
            times = [time for title in (mpi, ccl) if (time := run.numbers.get(title))]
            if len(times) == 2:
                winner = faster(Point(0, times[0]), Point(0, times[1]), bands_tell=False)
                named = {"mpi": "MPI", "ccl": "NCCL or RCCL", "": ""}[winner]
                found.append(AllreduceRun(name.partition(": ")[2] or name, calls, named, max(times) / min(times)))
                break
    return found


def _of_runs(runs: Sequence[AllreduceRun]) -> tuple[str, tuple[str, ...]]:
    """Headline and details."""
    won = {winner: sum(run.winner == winner for run in runs) for winner in dict.fromkeys(run.winner for run in runs)}
    parts = [f"{winner or 'level'} in {number} of {len(runs)} runs" for winner, number in won.items()]
    if len(won) == 1:
        parts = [f"{runs[0].winner or 'level'}{f' in all {len(runs)} runs' if len(runs) > 1 else ''}"]
    details = [f"{run.name}: {run.winner}, {units.digits(run.gain)} times as fast." for run in runs if run.winner]
    if any(run.calls == SIDE_BY_SIDE[-1][0] for run in runs):
        unlike = "Not alike: each call of MPI was waited for, and NCCL's or RCCL's were queued one behind the other."
        details.insert(0, unlike)
    return f"MPI_Allreduce: {', '.join(parts)}", tuple(details)


def _what_logs_lack(documents: Sequence[Document]) -> list[str]:
    """Logs that could be held against NCCL's if they told on how many ranks and on which buffers they ran."""
    series = [one for one in all_series(documents) if one.points and one.quantity == TIME]
    lacks: dict[str, None] = {}
    for ccl in series:
        for one in series:
            ranks = [side for side in (one, ccl) if side.ranks is None]
            if (
                ccl.implementation != "xccl"
                or not _of_mpi(one)
                or one.test != ccl.test
                or not (ranks or one.ranks == ccl.ranks)
                or not (ranks or not one.buffers)
            ):
                continue
            for side in dict.fromkeys([*ranks, *([one] if not one.buffers else [])]):
                missing = [
                    *(["number of ranks"] if side.ranks is None else []),
                    *(["kind of buffers"] if not side.buffers else []),
                ]
                form = f"{side.source}@{'RANKS' if side.ranks is None else ''}{'' if side.buffers else ':D'}=FILE"
                lacks[f"{side.source} does not state its {' and '.join(missing)}: give it as `{form}`."] = None
    return list(lacks)[:3]


def in_words(crossover: Crossover) -> str:
    """ "Awaken to 1 MiB, level to 4 MiB, then NCCL"."""
    names = {"mpi": crossover.mpi, "ccl": crossover.ccl, "": "level"}
    words = [names[stretch.winner] for stretch in crossover.stretches]
    if len(words) == 1:
        return f"{words[0]} at all {'' if words[0] == 'level' else 'measured '}sizes"
    parts = [f"{word} to {units.size(stretch.last_bytes)}" for word, stretch in zip(words[:-1], crossover.stretches)]
    if len(parts) > 4:
        return f"{parts[0]}, then changing, {words[-1]} at {units.size(crossover.stretches[-1].last_bytes)}"
    return ", ".join(parts) + f", then {words[-1]}"


def crossovers(documents: Sequence[Document]) -> list[Crossover]:
    """MPI against NCCL/RCCL, for each collective, number of ranks and mode in which both were measured on device
    memory."""
    series = [one for one in all_series(documents) if one.points and one.quantity == TIME]
    found = []
    for ccl in (one for one in series if one.implementation == "xccl" and one.test not in ("latency", "bw", "bibw")):
        mode = ccl.mode.split(",")[0]
        rivals = [
            one
            for one in series
            if one.test == ccl.test
            and one.ranks == ccl.ranks
            and (one.nodes == ccl.nodes or None in (one.nodes, ccl.nodes))
            and _of_mpi(one)
            and on_device(one)
            and (one.mode == ccl.mode or (one.source != ccl.source and one.mode in ("", mode)))
        ]
        # The best that MPI can do here: through Awaken where that was measured.
        for rival in sorted(rivals, key=lambda one: one.implementation != "awaken")[:1]:
            stretches = _stretches(rival, ccl)
            if stretches:
                one_run = rival.source == ccl.source
                names = name_of(rival), name_of(ccl)
                caution = queued_beside_waited(*names) if mode == "queued" and not rival.mode else ""
                found.append(Crossover(ccl.test, ccl.ranks, ccl.mode, *names, tuple(stretches), one_run, caution))
    return found


def queued_beside_waited(mpi: str, ccl: str) -> str:
    """A blocking MPI call is waited for; nccl-tests waits for the last of many calls only, unless told otherwise."""
    return (
        f"Not alike: {ccl}'s calls were queued one behind the other, and each of {mpi}'s was waited for, which favours "
        f"{ccl} at small sizes; `-z 1` lets nccl-tests wait, too."
    )


def _stretches(mpi: Series, ccl: Series) -> list[Stretch]:
    others = {point.size_bytes: point for point in ccl.points}
    stretches: list[Stretch] = []
    for point in sorted(mpi.points, key=lambda one: one.size_bytes):
        other = others.get(point.size_bytes)
        if other is None or not point.value or not other.value:
            continue
        # Only these bands mean the same on both sides, and say where another run's value may be.
        bands_tell = mpi.band == ccl.band == INTERVAL_OF_MEDIAN
        winner = faster(point, other, bands_tell=bands_tell)
        gain = max(point.value, other.value) / min(point.value, other.value)
        if stretches and stretches[-1].winner == winner:
            last = stretches[-1]
            stretches[-1] = Stretch(
                last.first_bytes, point.size_bytes, winner, min(last.least, gain), max(last.most, gain)
            )
        else:
            stretches.append(Stretch(point.size_bytes, point.size_bytes, winner, gain, gain))
    return stretches


def faster(mpi: Point, ccl: Point, *, bands_tell: bool) -> str:
    """ "mpi", "ccl", or "" where their bands overlap or, without bands that tell, they are within
    LEVEL_WITHOUT_BAND."""
    if bands_tell and mpi.low is not None and mpi.high is not None and ccl.low is not None and ccl.high is not None:
        if mpi.high < ccl.low:
            return "mpi"
        return "ccl" if ccl.high < mpi.low else ""
    if abs(mpi.value - ccl.value) <= LEVEL_WITHOUT_BAND * min(mpi.value, ccl.value):
        return ""
    return "mpi" if mpi.value < ccl.value else "ccl"
