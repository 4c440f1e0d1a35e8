"""Traces in Chrome's trace event format, as Awaken and many others write it, and Perfetto reads it.

An object with "traceEvents", or a list of events. Read are complete events (ph X: ts, dur), begin and end (B, E),
and the names of processes and threads (M: process_name, thread_name). Times are microseconds; pid is the rank in
Awaken's traces. Only the longest MOST_SPANS events are kept. Source: the published description of the format.
"""

from __future__ import annotations

from awaken.readers.source import Value
from awaken.results import Document, Span, Timeline

MOST_SPANS = 1500
MOST_LANES = 64


def is_trace(top: Value) -> bool:
    if top.is_object:
        return top.get("traceEvents").is_list
    return (
        top.is_list
        and any(True for _ in top.elements())
        and all(event.is_object and not event.get("ph").missing for event in top.elements())
    )


def read(top: Value, document: Document) -> None:
    """Adds the timeline to the document."""
    events = top.get("traceEvents") if top.is_object else top
    names: dict[tuple[str, str], str] = {}
    open_events: dict[tuple[str, str], list[tuple[str, float, str]]] = {}
    spans: list[tuple[tuple[str, str], str, float, float, str]] = []
    for event in events.elements():
        phase = event.get("ph").text()
        lane = (event.get("pid").text("0"), event.get("tid").text("0"))
        name, category = event.get("name").text("?"), event.get("cat").text()
        if phase == "M":
            arguments = event.get("args")
            if name in ("process_name", "thread_name") and arguments.is_object:
                names[(lane[0], lane[1] if name == "thread_name" else "")] = arguments.get("name").text()
        elif phase == "X":
            duration = event.get("dur").number_or_none() or 0.0
            spans.append((lane, name, event.get("ts").number(), max(duration, 0.0), category))
        elif phase == "B":
            open_events.setdefault(lane, []).append((name, event.get("ts").number(), category))
        elif phase == "E" and open_events.get(lane):
            begun, start, begun_category = open_events[lane].pop()
            spans.append((lane, begun, start, max(event.get("ts").number() - start, 0.0), begun_category))
    if not spans:
        raise top.refuse("has no events with a duration")
    document.timelines.append(_timeline(document.label, spans, names))


def _timeline(
    source: str,
    spans: list[tuple[tuple[str, str], str, float, float, str]],
    names: dict[tuple[str, str], str],
) -> Timeline:
    lanes = sorted({span[0] for span in spans}, key=lambda lane: (_number_first(lane[0]), _number_first(lane[1])))
    shown = lanes[:MOST_LANES]
    several = {process: sum(lane[0] == process for lane in lanes) > 1 for process, _ in lanes}
    titles = {}
    for process, thread in shown:
        title = names.get((process, ""), f"rank {process}")
        if several[process]:
            title += f", {names.get((process, thread), f'thread {thread}')}"
        titles[(process, thread)] = title
    begin = min(span[2] for span in spans)
    kept = [span for span in spans if span[0] in titles]
    kept = sorted(sorted(kept, key=lambda span: -span[3])[:MOST_SPANS], key=lambda span: (span[2], -span[3]))
    return Timeline(
        source=source,
        lanes=tuple(titles.values()),
        spans=tuple(
            Span(titles[lane], name, start - begin, length, category) for lane, name, start, length, category in kept
        ),
        left_out=len(spans) - len(kept),
    )


def _number_first(word: str) -> tuple[int, int, str]:
    return (0, int(word), "") if word.isascii() and word.isdigit() and len(word) < 18 else (1, 0, word)
