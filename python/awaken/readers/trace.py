# SPDX-License-Identifier: Apache-2.0
"""Traces in Chrome's trace event format, as Awaken (docs/trace.md) and many others write it, and Perfetto reads it.

An object with "traceEvents", or a list of events. Read are complete events (ph X: ts, dur), begin and end (B, E),
begin and end of asynchronous ones (b, e, paired by cat and id), and the names of processes and threads (M:
process_name, thread_name). Times are microseconds; pid is the rank in Awaken's traces, and args.path how the bytes of
a call travelled. Only the longest MOST_SPANS events are kept. Source: the published description of the format.

Of Awaken's traces the application is shown: the time axis begins when the last rank has left MPI_Init, which is the
MPI's start and Awaken's, and stretches in which a program measures links for its own output are left out.
"""

from __future__ import annotations

from awaken import units
from awaken.readers.source import Value
from awaken.results import Document, Span, Timeline

MOST_SPANS = 1500
MOST_LANES = 64
START = ("MPI_Init", "MPI_Init_thread")
CALIBRATION = "smallest blocks"
"""The range in which the ghost exchange measures what its links can do (apps/ghost_exchange)."""
NO_KERNELS = (
    "Kernels of the program are not shown: Awaken records what it starts itself, and leaves the vendors' interfaces "
    "for tracing (CUPTI, ROCprofiler) to nsys and rocprofv3, which show them."
)
ASYNCHRONOUS = "operations"
"""The lane of asynchronous events, which belong to no thread."""

Lane = tuple[str, str]
"""Process, and thread or ASYNCHRONOUS."""
Raw = tuple[Lane, str, float, float, str]
"""Lane, name, begin, length, category."""


def is_trace(top: Value) -> bool:
    if top.is_object:
        return top.get("traceEvents").is_list
    return (
        top.is_list
        and any(True for _ in top.elements())
        and all(event.is_object and not event.get("ph").missing for event in top.elements())
    )


class Events:
    """Pairs beginnings with ends."""

    def __init__(self) -> None:
        self.names: dict[Lane, str] = {}
        self.spans: list[Raw] = []
        self._open: dict[Lane, list[tuple[str, float, str]]] = {}
        self._started: dict[tuple[str, str, str], tuple[str, float, str]] = {}

    def add(self, event: Value) -> None:
        phase = event.get("ph").text()
        process, name = event.get("pid").text("0"), event.get("name").text("?")
        lane = (process, event.get("tid").text("0"))
        if phase == "M":
            arguments = event.get("args")
            if name in ("process_name", "thread_name") and arguments.is_object:
                self.names[(process, lane[1] if name == "thread_name" else "")] = arguments.get("name").text()
        elif phase == "X":
            self._keep(lane, name, event.get("ts").number(), event.get("dur").number_or_none() or 0.0, category(event))
        elif phase == "B":
            self._open.setdefault(lane, []).append((name, event.get("ts").number(), category(event)))
        elif phase == "E" and self._open.get(lane):
            begun, start, kind = self._open[lane].pop()
            self._keep(lane, begun, start, event.get("ts").number() - start, kind)
        elif phase in ("b", "e"):
            key = (process, event.get("cat").text(), event.get("id").text())
            if phase == "b":
                self._started[key] = (name, event.get("ts").number(), category(event))
            elif key in self._started:
                begun, start, kind = self._started.pop(key)
                self._keep((process, ASYNCHRONOUS), begun, start, event.get("ts").number() - start, kind)

    def _keep(self, lane: Lane, name: str, start: float, length: float, kind: str) -> None:
        self.spans.append((lane, name, start, max(length, 0.0), kind))


def category(event: Value) -> str:
    """By which way the bytes went where that is told, else what the writer sorts the event under."""
    arguments = event.get("args")
    path = arguments.get("path").text() if arguments.is_object else ""
    return path or event.get("cat").text()


def read(top: Value, document: Document) -> None:
    """Adds the timeline to the document."""
    events = Events()
    for event in (top.get("traceEvents") if top.is_object else top).elements():
        events.add(event)
    if not events.spans:
        raise top.refuse("has no events with a duration")
    ours = top.is_object and not top.get("awakenTrace").missing
    spans, note = _of_application(events.spans) if ours else (events.spans, "")
    document.timelines.append(_timeline(document.label, spans, events.names, note))


def _of_application(spans: list[Raw]) -> tuple[list[Raw], str]:
    """Without the start and without calibration, and what is told of that."""
    told = []
    starts = [span for span in spans if span[1] in START]
    begin = max((start + length for _, _, start, length, _ in starts), default=0.0)
    shown = [span for span in spans if span[2] >= begin]
    if starts and shown:
        longest = max(length for _, _, _, length, _ in starts)
        told.append(f"{starts[0][1]} ({units.time(longest)}) and what went on meanwhile are left out")
    else:
        shown = spans
    stretches: dict[str, list[tuple[float, float]]] = {}
    for (process, _), name, start, length, _ in shown:
        if name == CALIBRATION:
            stretches.setdefault(process, []).append((start, start + length))
    outside = [
        span
        for span in shown
        if not any(first <= span[2] and span[2] + span[3] <= last for first, last in stretches.get(span[0][0], ()))
    ]
    if stretches and outside:
        told.append(f'{len(shown) - len(outside)} events of "{CALIBRATION}", which measures links, are left out')
        shown = outside
    sentences = "; ".join(told)
    return shown, f"{sentences}. {NO_KERNELS}" if sentences else NO_KERNELS


def _timeline(source: str, spans: list[Raw], names: dict[Lane, str], note: str) -> Timeline:
    lanes = sorted({span[0] for span in spans}, key=lambda lane: (_number_first(lane[0]), _number_first(lane[1])))
    shown = lanes[:MOST_LANES]
    places = {lane: index for index, lane in enumerate(shown)}
    begin = min(span[2] for span in spans)
    kept = [span for span in spans if span[0] in places]
    kept = sorted(sorted(kept, key=lambda span: -span[3])[:MOST_SPANS], key=lambda span: (span[2], -span[3]))
    return Timeline(
        source=source,
        lanes=tuple(_titles(shown, names)),
        spans=tuple(
            Span(places[lane], name, start - begin, length, category) for lane, name, start, length, category in kept
        ),
        left_out=len(spans) - len(kept),
        note=note,
    )


def _titles(lanes: list[Lane], names: dict[Lane, str]) -> list[str]:
    """Of each lane: its process, and its thread where the process has several lanes."""
    processes = _distinct({process: names.get((process, ""), f"rank {process}") for process, _ in lanes})
    threads: dict[str, dict[str, str]] = {process: {} for process in processes}
    for process, thread in lanes:
        own = ASYNCHRONOUS if thread == ASYNCHRONOUS else f"thread {thread}"
        threads[process][thread] = names.get((process, thread), own)
    threads = {process: _distinct(titles) for process, titles in threads.items()}
    return [
        f"{processes[process]}, {threads[process][thread]}" if len(threads[process]) > 1 else processes[process]
        for process, thread in lanes
    ]


def _distinct(titles: dict[str, str]) -> dict[str, str]:
    """Titles by pid or tid; those that several have get the number before them."""
    held = list(titles.values())
    return {number: f"{number}: {title}" if held.count(title) > 1 else title for number, title in titles.items()}


def _number_first(word: str) -> tuple[int, int, str]:
    return (0, int(word), "") if word.isascii() and word.isdigit() and len(word) < 18 else (1, 0, word)
